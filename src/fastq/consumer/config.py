"""Consumer configuration: Kafka's keys and defaults, and a few of our own.

Rules: declared on the machinery of fastq.settings; our own keys end in their unit.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from fastq.callbacks import check_object, check_plain_methods, check_takes
from fastq.config import ClientConfig
from fastq.consumer.deserializers import find_deserializer
from fastq.errors import ConfigError
from fastq.settings import INT32_MAX, option

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2

_DURATION = r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?"


def duration_ms(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days, hours, minutes and seconds, such as PT1H30M.

    Raises ValueError with what is allowed.
    """
    found = re.fullmatch(_DURATION, text.strip(), re.IGNORECASE)
    if found is None or not any(found.groups()):
        raise ValueError("an ISO 8601 duration such as by_duration:P1DT2H30M")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


_DESERIALIZERS = "a name, a function, or an object with deserialize(topic, headers, data)"
_TOPICS = "topics are given by themselves: Consumer('a', 'b', group_id='g')"
_RESETS = "'earliest', 'latest', 'none' or 'by_duration:' with an ISO 8601 duration"


def _check_reset(value: Any) -> str:
    text = str(value).strip()
    if text.lower().startswith("by_duration:"):
        duration_ms(text.partition(":")[2])
        return text
    if text.lower() in ("earliest", "latest", "none"):
        return text.lower()
    old = {"smallest": "earliest", "largest": "latest"}.get(text.lower())
    if old is None:
        raise ValueError(_RESETS)
    return old


def _check_interceptors(value: Any) -> tuple[Any, ...]:
    found = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not all(callable(getattr(item, "on_consume", None)) for item in found):
        raise ValueError("objects with a method on_consume(records)")
    for item in found:
        check_object(item)
        check_plain_methods(item, ("on_consume", "on_idle", "close"), "interceptors are called, not awaited")
        check_takes(item.on_consume, "records", "on_consume")
    return found


STRATEGIES = ("range", "cooperative-sticky")


def _check_strategies(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    found = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not found:
        raise ValueError("one strategy or more")
    if found != STRATEGIES:
        # Who takes the defaults and has no group does not load them.
        from fastq.consumer.group.assignors import find_assignors

        find_assignors(found)
    return found


class ConsumerConfig(ClientConfig):
    """What a consumer is made with; `ClientConfig` has the keys about the cluster and the connections."""

    PAGE: ClassVar[str] = "docs/reference/consumer-settings.md"
    IGNORED: ClassVar[dict[str, str]] = {
        "queued_max_messages_kbytes": "prefetching is bounded by prefetch_bytes_max",
        "queued_min_messages": "prefetching is bounded by prefetch_bytes_max",
        "enable_partition_eof": "read_to_end() ends at the end of every partition",
    }
    REFUSED: ClassVar[dict[str, str]] = {
        "topics": _TOPICS,
        "topic": _TOPICS,
        "pattern": "it is given by itself, compiled: Consumer(re.compile('b.*'), group_id='g')",
        "rebalance_cb": "give subscribe() a listener, or on_assigned, on_revoked and on_lost",
        "on_assign": "give it to subscribe(), as on_assigned",
        "on_revoke": "give it to subscribe(), as on_revoked",
        "on_lost": "give it to subscribe(), as on_lost",
        "on_commit": "give commit_async() a callback",
        "offset_commit_cb": "give commit_async() a callback",
        "enable_auto_offset_store": "what was handed out counts as stored when the next is asked for; to store by hand, set "
        "enable_auto_commit=False and commit() records",
        "consumer_timeout_ms": "give poll() a timeout, or iterate over read_to_end()",
    }

    group_id: str | None = option(
        None,
        kind=str,
        doc="the group to be a member of, and to commit offsets for; None: read everything, commit nothing",
    )
    group_instance_id: str | None = option(
        None, kind=str, doc="a name for a static member (KIP-345): it may restart without a rebalance"
    )
    group_protocol: str = option(
        "auto",
        choices=("auto", "classic", "consumer"),
        doc="auto: the consumer protocol (KIP-848) where the cluster has it, else the classic one",
    )
    partition_assignment_strategy: Any = option(
        STRATEGIES,
        kind=object,
        convert=_check_strategies,
        accepts="names of strategies, or objects that are Assignors",
        doc="of the classic protocol, best first: range, roundrobin, sticky, cooperative-sticky, or objects of your own",
    )
    group_remote_assignor: str | None = option(
        None,
        kind=str,
        doc="of the consumer protocol: uniform, range, or what else the coordinator has; None: its default",
    )
    session_timeout_ms: int = option(
        45_000,
        low=1,
        high=INT32_MAX,
        doc="a member of the classic protocol that is silent for so long is taken out of the group; in the consumer protocol the "
        "brokers' group.consumer.session.timeout.ms says so",
    )
    heartbeat_interval_ms: int = option(
        3_000, low=1, high=INT32_MAX, doc="how often a member of the classic protocol speaks"
    )
    max_poll_interval_ms: int = option(
        300_000, low=1, high=INT32_MAX, doc="a member whose application asks for nothing for so long leaves the group"
    )
    enable_auto_commit: bool = option(
        True, doc="commit what the application is done with: at intervals, before a rebalance and on close"
    )
    auto_commit_interval_ms: int = option(
        5_000, low=0, high=INT32_MAX, doc="the least time between two commits of enable_auto_commit"
    )
    exclude_internal_topics: bool = option(True, doc="whether patterns pass over topics like __consumer_offsets")
    auto_offset_reset: str = option(
        "latest",
        kind=object,
        convert=_check_reset,
        accepts=_RESETS,
        doc="where to begin, and to go on when an offset is gone: earliest, latest, none (raise), by_duration:PT1H",
    )
    fetch_min_bytes: int = option(1, low=0, high=INT32_MAX, doc="a broker waits for so much before it answers a fetch")
    fetch_max_wait_ms: int = option(
        500, low=0, high=INT32_MAX, aliases=("fetch_wait_max_ms",), doc="but not longer than this"
    )
    fetch_max_bytes: int = option(50 * 1024 * 1024, low=1, high=INT32_MAX, doc="the most that one fetch may answer")
    max_partition_fetch_bytes: int = option(
        1024 * 1024,
        low=1,
        high=INT32_MAX,
        aliases=("fetch_message_max_bytes",),
        doc="the most that one fetch may answer for a partition; one larger batch is let through",
    )
    max_poll_records: int = option(500, low=1, high=INT32_MAX, doc="the most that poll() returns unless it is told")
    prefetch_bytes_max: int = option(
        64 * 1024 * 1024, low=1, high=INT32_MAX, doc="fetched and not handed out yet, over all partitions and brokers"
    )
    check_crcs: bool = option(True, doc="check the CRC32C of every batch")
    isolation_level: str = option(
        "read_uncommitted",
        choices=("read_uncommitted", "read_committed"),
        doc="read_committed leaves out what was aborted, and what is not decided yet",
    )
    default_api_timeout_ms: int = option(
        60_000, low=1, high=INT32_MAX, doc="how long position(), offsets_for_times() and their kin may take"
    )
    allow_auto_create_topics: bool = option(True, doc="let a broker that does so create a topic that is asked for")
    key_deserializer: Any = option(
        None,
        kind=object,
        convert=find_deserializer,
        accepts=_DESERIALIZERS,
        doc="what makes an object of a key's bytes: a name (str, json, int ...), a type (str, int ...), a function; None: bytes",
    )
    value_deserializer: Any = option(
        None,
        kind=object,
        convert=find_deserializer,
        accepts=_DESERIALIZERS,
        doc="what makes an object of a value's bytes: as key_deserializer",
    )
    on_deserialization_error: str = option(
        "raise",
        choices=("raise", "skip", "raw"),
        doc="a record that cannot be read: raise DeserializationError, leave it out, or hand over its bytes",
    )
    interceptors: Any = option(
        (),
        kind=object,
        aliases=("interceptor_classes",),
        convert=_check_interceptors,
        accepts="a list of objects",
        doc="objects whose on_consume(records) sees records first, and may answer others for them (None: these)",
    )
    decompressed_batch_bytes_max: int = option(
        256 * 1024 * 1024, low=1, high=INT32_MAX, doc="a compressed batch that would grow beyond this is refused"
    )

    def resolve(self) -> None:
        super().resolve()
        if self.group_id is None:
            if self.group_instance_id is not None:
                raise ConfigError(f"group_instance_id={self.group_instance_id!r}: a static member needs a group_id")
            return
        if not self.group_id:
            raise ConfigError("group_id='': a group is named by a non-empty string; leave it out to be in no group")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms}: less than session_timeout_ms, "
                f"which is {self.session_timeout_ms}; a third of it is usual"
            )

    @property
    def read_committed(self) -> bool:
        """True when transactions are honoured."""
        return self.isolation_level == "read_committed"

    def reset_timestamp(self, now_ms: int) -> int | None:
        """The timestamp that ListOffsets is asked for where no offset is known; None for the policy none."""
        if self.auto_offset_reset == "none":
            return None
        if self.auto_offset_reset == "earliest":
            return EARLIEST_TIMESTAMP
        if self.auto_offset_reset == "latest":
            return LATEST_TIMESTAMP
        return max(0, now_ms - duration_ms(self.auto_offset_reset.partition(":")[2]))
