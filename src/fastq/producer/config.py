"""The producer's configuration: Kafka's keys and defaults, and the names of the 0.8 era.

Rules: one option a key, see fastq.settings; what depends on several keys is settled in `resolve`. Defaults are Kafka's, but
`batch_size`, which may grow while it is not given (see `batch_bytes_max`). Source: Kafka's ProducerConfig.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from math import ceil
from typing import Any, ClassVar

from fastq.callbacks import check_object, check_plain_methods, check_takes
from fastq.compression import LEVELS, Codec, codec_by_name
from fastq.config import ClientConfig
from fastq.errors import ConfigError
from fastq.producer.partitioners import BY_NAME, Crc32Partitioner
from fastq.serializers import Serializer, find_serializer
from fastq.settings import INT32_MAX, Renamed, option, renamed

logger = logging.getLogger("fastq.producer")

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")
BATCH_SIZE_DEFAULT = 16_384
BATCH_BYTES_GROWN = 1_000_000
_ACKS_ALLOWED = "'all' (the same as -1), 0 or 1"
_SERIALIZERS = "a name, a function, or an object with serialize(topic, value)"
_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}


def _check_acks(value: Any) -> int:
    found = _ACKS.get(str(value).strip().lower())
    if found is None or isinstance(value, bool):
        raise ValueError(_ACKS_ALLOWED)
    return found


_NAMES = ", ".join(name for name in BY_NAME if "." not in name)


def _partitioner_of_ones_own(name: str) -> Any:
    if "." not in name and ":" not in name:
        from difflib import get_close_matches

        near = get_close_matches(name, BY_NAME, 1)
        raise ValueError(
            f"{_NAMES}, or the dotted name of one of your own" + (f" (did you mean {near[0]}?)" if near else "")
        )
    return load_object(name)


def _check_partitioner(value: Any) -> Any:
    if isinstance(value, str):
        if value.strip() in BY_NAME:
            return BY_NAME[value.strip()]()
        value = _partitioner_of_ones_own(value)
    if isinstance(value, type):
        value = value()
    methodless = isinstance(value, bytes | bytearray)  # whose `partition` is another thing
    if methodless or (not callable(value) and not callable(getattr(value, "partition", None))):
        raise ValueError(f"an object with partition(...), a function, the dotted name of one, or {_NAMES}")
    check_plain_methods(value, ("partition",), "it answers a partition at once")
    if callable(value):
        check_takes(value, "key_bytes, partitions, available")
    else:
        check_takes(value.partition, "topic, key, key_bytes, value, value_bytes, partitions, available", "partition")
    return value


def _check_interceptors(value: Any) -> tuple[Any, ...]:
    items = value if isinstance(value, list | tuple) else (value,)
    found = tuple(load_object(item)() if isinstance(item, str) else item for item in items)
    for item in found:
        check_object(item)
        check_plain_methods(
            item, ("on_send", "on_acknowledgement", "on_delivery"), "interceptors are called, not awaited"
        )
        if not all(callable(getattr(item, name, None)) for name in ("on_send", "on_acknowledgement")):
            raise ValueError("objects with on_send(record) and on_acknowledgement(metadata, error)")
        check_takes(item.on_send, "record", "on_send")
        check_takes(item.on_acknowledgement, "metadata, error", "on_acknowledgement")
        if getattr(item, "on_delivery", None) is not None:
            check_takes(item.on_delivery, "record, metadata, error", "on_delivery")
    return found


def load_object(name: str) -> Any:
    """What a dotted name stands for. ValueError when there is no such thing."""
    module, _, attribute = name.strip().replace(":", ".").rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the dotted name of something importable ({error})") from None


def _codec_of_the_past(value: Any) -> Mapping[str, Any]:
    names = {"0": "none", "1": "gzip", "2": "snappy", "3": "lz4", "4": "zstd"}
    name = names.get(str(value).strip(), str(value).strip().lower())
    if name not in COMPRESSION_TYPES:
        raise ValueError("none, gzip, snappy, lz4 or zstd, or its number from 0 to 4")
    return {"compression_type": name}


def _serializer_of_the_past(value: Any) -> Mapping[str, Any]:
    found = find_serializer(value)
    return {"key_serializer": found, "value_serializer": found}


def _producer_type(value: Any) -> Mapping[str, Any]:
    name = str(value).strip().lower()
    if name not in ("sync", "async"):
        raise ValueError("sync or async")
    return {"wait_for_delivery": name == "sync"}


def _queue_timeout(value: Any) -> Mapping[str, Any]:
    timeout_ms = int(value)
    return {"max_block_ms": INT32_MAX if timeout_ms < 0 else timeout_ms}


class ProducerConfig(ClientConfig):
    """Everything a producer can be told. Settings without a Kafka namesake end in their unit."""

    PAGE: ClassVar[str] = "docs/reference/producer-settings.md"
    acks: int | str = option(
        "all", kind=object, convert=_check_acks, accepts=_ACKS_ALLOWED, doc="who must have a record: all, 1 (leader), 0"
    )
    enable_idempotence: bool | None = option(
        None, kind=bool, nullable=True, doc="no record twice, order kept; None: as acks, retries and in-flight allow"
    )
    linger_ms: float = option(5.0, low=0, high=INT32_MAX, doc="how long a batch that is not full waits for records")
    batch_size: int | None = option(
        None, kind=int, low=0, high=INT32_MAX, doc="bytes of a batch; 0: no batching; None: 16384, and grows on demand"
    )
    batch_bytes_max: int | None = option(
        None, kind=int, low=1, high=INT32_MAX, doc="how far batches grow; None: batch_size if given, else 1000000"
    )
    batch_records_max: int = option(0, low=0, high=INT32_MAX, doc="records of a batch; 0: no bound")
    buffer_memory: int = option(33_554_432, low=1024, high=2**62, doc="bytes of all records that wait or are in flight")
    buffer_records_max: int = option(0, low=0, high=2**62, doc="records that wait or are in flight; 0: no bound")
    max_block_ms: int = option(60_000, low=0, high=INT32_MAX, doc="how long send waits for room or for metadata")
    max_request_size: int = option(1_048_576, low=1024, high=INT32_MAX, doc="bytes of a request, so of a record too")
    max_in_flight_requests_per_connection: int = option(
        5, low=1, high=INT32_MAX, aliases=("max_in_flight",), doc="requests without an answer; 5 or fewer if idempotent"
    )
    delivery_timeout_ms: int = option(
        120_000, low=1, high=INT32_MAX, aliases=("message_timeout_ms",), doc="after this time a record has failed"
    )
    compression_type: str = option("none", choices=COMPRESSION_TYPES, doc="the codec of batches")
    compression_level: int | None = option(
        None,
        kind=int,
        low=-131072,
        high=22,
        doc="of that codec; None: its own of the next three, or its default",
    )
    compression_gzip_level: int | None = option(
        None, kind=int, low=1, high=9, also=(-1,), doc="where the codec is gzip; -1, None: zlib's default"
    )
    compression_lz4_level: int | None = option(
        None, kind=int, low=1, high=17, doc="where the codec is lz4; None: 9, the fast compressor"
    )
    compression_zstd_level: int | None = option(
        None, kind=int, low=-131072, high=22, doc="where the codec is zstd; None: 3"
    )
    compressed_topics: str | Sequence[str] = option((), kind=tuple, doc="compress only these topics; empty: all")
    partitioner: Any = option(
        None, kind=object, nullable=True, aliases=("partitioner_class",),
        convert=lambda v: None if v is None else _check_partitioner(v),
        accepts="a name, a function, or an object with partition(...)",
        doc="one of your own, or a name as librdkafka has them: murmur2_random (default), murmur2, consistent_random, consistent, random, "
        "round_robin; None: murmur2 of the key, sticky without a key",
    )  # fmt: skip
    partitioner_ignore_keys: bool = option(False, doc="spread keyed records as keyless ones")
    partitioner_adaptive_partitioning_enable: bool = option(True, doc="send less to partitions with long queues")
    key_serializer: Serializer | None = option(
        None,
        kind=object,
        nullable=True,
        convert=find_serializer,
        accepts=_SERIALIZERS,
        doc="what makes bytes of a key: a name (str, json, int, float, uuid, bytes), a type (str, int ...), a function; None: bytes",
    )
    value_serializer: Serializer | None = option(
        None,
        kind=object,
        nullable=True,
        convert=find_serializer,
        accepts=_SERIALIZERS,
        doc="what makes bytes of a value: as key_serializer",
    )
    interceptors: Any = option(
        (),
        kind=object,
        aliases=("interceptor_classes",),
        convert=_check_interceptors,
        accepts="a list of objects",
        doc="objects that see each record on its way out, and what became of it: fastq.interceptors.ProducerInterceptor",
    )
    wait_for_delivery: bool = option(False, doc="send returns once the broker has answered")
    raise_on_close: bool = option(
        False, doc="close(), and the end of `with`, raise UndeliveredRecords when records were not delivered"
    )
    allow_auto_create_topics: bool = option(True, doc="let the broker make a topic that does not exist")
    transactional_id: str | None = option(
        None, kind=str, nullable=True, doc="who this producer is across restarts; records go in transactions (KIP-98)"
    )
    transaction_timeout_ms: int = option(
        60_000, low=1, high=INT32_MAX, doc="the coordinator aborts a transaction that has been open for so long"
    )

    RENAMED: ClassVar[Mapping[str, Renamed]] = {
        "producer_type": Renamed("wait_for_delivery", _producer_type),
        "request_required_acks": renamed("acks"),
        "request_timeout": renamed("request_timeout_ms"),
        "message_send_max_retries": renamed("retries"),
        "queue_buffering_max_ms": renamed("linger_ms"),
        "queue_buffering_max_messages": renamed("buffer_records_max"),
        "queue_buffering_max_kbytes": renamed("buffer_memory", scale=1024),
        "queue_enqueue_timeout_ms": Renamed("max_block_ms", _queue_timeout),
        "batch_num_messages": renamed("batch_records_max"),
        "compression_codec": Renamed("compression_type", _codec_of_the_past),
        "serializer_class": Renamed("value_serializer and key_serializer", _serializer_of_the_past),
        "key_serializer_class": Renamed("key_serializer", lambda value: {"key_serializer": find_serializer(value)}),
    }
    REFUSED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("on_delivery", "dr_cb", "dr_msg_cb", "delivery_report_only_error"),
        "`send` answers a delivery: wait for its result(), or give it a function with add_done_callback()",
    )
    IGNORED: ClassVar[Mapping[str, str]] = {
        "partitioner_availability_timeout_ms": "keyless records go to partitions that have a leader",
        "metadata_max_idle_ms": "a topic stays known for as long as the producer lives",
        "sticky_partitioning_linger_ms": "the sticky partition changes with the batch",
    }

    @property
    def key_hash(self) -> int:
        """How a key becomes a partition where no partitioner is asked: the accumulator's number for it."""
        if self.partitioner_ignore_keys:
            return 0
        return 2 if self.partitioner == Crc32Partitioner() else 1

    @property
    def asks_partitioner(self) -> bool:
        """Whether a partitioner is asked for each record."""
        return self.partitioner is not None and self.partitioner != Crc32Partitioner()

    @property
    def is_idempotent(self) -> bool:
        """Whether retries can neither duplicate nor reorder."""
        return bool(self.enable_idempotence)

    @property
    def batch_bytes(self) -> tuple[int, int]:
        """Where the batch size starts, and how far it may grow."""
        start = BATCH_SIZE_DEFAULT if self.batch_size is None else self.batch_size
        if self.batch_bytes_max is not None:
            return min(start, self.batch_bytes_max), self.batch_bytes_max
        grown = min(BATCH_BYTES_GROWN, max(self.max_request_size // 16 * 15, start))
        return start, grown if self.batch_size is None else start

    @property
    def codec(self) -> Codec:
        """`compression_type` as a number."""
        return codec_by_name(self.compression_type)

    @property
    def codec_level(self) -> int | None:
        """The level of `codec`; None: its default."""
        if self.compression_level is not None:
            return self.compression_level
        own: int | None = getattr(self, f"compression_{self.compression_type}_level", None)
        return None if own == -1 and self.codec is Codec.GZIP else own

    def codec_of(self, topic: str) -> int:
        """The codec of a topic's batches."""
        if self.compressed_topics and topic not in self.compressed_topics:
            return 0
        return int(self.codec)

    def resolve(self) -> None:
        super().resolve()
        self._resolve_idempotence()
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigError(
                f"transactional_id={self.transactional_id!r} needs idempotence: drop enable_idempotence=False, or what turns "
                "it off (acks other than 'all', retries=0, more than 5 requests in flight)"
            )
        if self.transactional_id == "":
            raise ConfigError("bad value for transactional_id: ''; allowed: None, or at least one character")
        # As Kafka: a delivery_timeout_ms that was given must leave room for one request; a default one follows. Its own bound is enough.
        least_ms = min(ceil(self.linger_ms + self.request_timeout_ms), INT32_MAX)
        if self.delivery_timeout_ms < least_ms:
            if "delivery_timeout_ms" in self._given:
                raise ConfigError(
                    f"bad value for delivery_timeout_ms: {self.delivery_timeout_ms}; allowed: at least linger_ms + "
                    f"request_timeout_ms = {least_ms}"
                )
            self._set("delivery_timeout_ms", least_ms)
        self._check_levels()

    def _check_levels(self) -> None:
        level, allowed = self.compression_level, LEVELS.get(self.codec)
        if level is None:
            return
        if allowed is None or not allowed[0] <= level <= allowed[1]:
            words = "None" if allowed is None else f"{allowed[0]} to {allowed[1]}"
            raise ConfigError(f"bad value for compression_level: {level}; allowed for {self.compression_type}: {words}")
        key = f"compression_{self.compression_type}_level"
        own = getattr(self, key)
        if own is not None and own != level:
            raise ConfigError(
                f"compression_level and {key} are two names of one level and disagree: {level} and {own}; give one of them"
            )

    def _resolve_idempotence(self) -> None:
        conflict = None
        if self.acks != -1:
            conflict = f"acks={self.acks}"
        elif self.retries == 0:
            conflict = "retries=0"
        elif self.max_in_flight_requests_per_connection > 5:
            conflict = f"max_in_flight_requests_per_connection={self.max_in_flight_requests_per_connection}"
        if self.enable_idempotence and conflict:
            raise ConfigError(
                f"enable_idempotence=True needs acks='all', retries above 0 and at most 5 requests in flight, "
                f"but {conflict}; drop one of the two"
            )
        if self.enable_idempotence is None:
            self._set("enable_idempotence", conflict is None)
            if conflict is not None:
                logger.info(
                    "idempotence is off because of %s: a retry may write a record twice or out of order", conflict
                )


def make_config(config: Mapping[str, Any] | ProducerConfig | None, options: Mapping[str, Any]) -> ProducerConfig:
    """A ProducerConfig from what a constructor was given."""
    return ProducerConfig.of(config, options)
