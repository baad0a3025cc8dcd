"""Offsets: as JSON, as limits that a user gave, and as what the brokers say of them.

Rules
- The text of offsets is that of Spark's JVM connector, `{"topic": {"0": 23}}`, topics and partitions in order: Spark compares
  offsets as text, and the checkpoints of that connector can be read here. An offset is that of the next record. The end of a
  query's first micro-batch holds where it began as well, as `{"topic@start": {"0": 7}}`. The id of a topic, by which one that was made
  anew is told, is there as `{"topic@id=mPoIPw9tTtKvt6UyGz9R3g": {}}`, in which that connector finds no partition. `read_offsets` passes
  over both.
- `OffsetReader` keeps one client open, and asks for all partitions at once: one request for the topics, one to each leader.
- What cannot be is said with every partition it concerns, and what to do.
Source: Spark's JsonUtils, KafkaOffsetReaderAdmin and ConsumerStrategy.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fastq.errors import ConfigError, ConnectionFailed, FastqError, UnknownTopicOrPartition
from fastq.metadata import TopicPartition
from fastq.protocol.uuid import ZERO_UUID, uuid_from_str, uuid_to_str

if TYPE_CHECKING:
    from fastq.admin import Admin
    from fastq.spark.options import SourceOptions

logger = logging.getLogger("fastq.spark")

LATEST, EARLIEST = -1, -2
# Follows the names of topics whose places are where a micro-batch began; no topic has an @ in its name.
START_SUFFIX = "@start"
# Stands between the name of a topic and its id.
ID_MARK = "@id="
Offsets = dict[TopicPartition, int]
NOTHING_KNOWN: Mapping[Any, Any] = MappingProxyType({})
T = TypeVar("T")

OFFSETS_FORM = 'JSON such as {"topicA": {"0": 23, "1": -1}, "topicB": {"0": -2}}'
PARTITIONS_FORM = 'JSON such as {"topicA": [0, 1], "topicB": [2]}'
# How many partitions an error names before it counts the rest.
NAMED_MAX = 10


class DataLoss(FastqError):
    """Records that a query was to read are not there any more, and failOnDataLoss is true."""

    cure = "Set failOnDataLoss to false to go on with what is there; lengthen the topic's retention."
    default_message = "records that were to be read are gone"


def report_data_loss(fail: bool, message: str, hint: str | None = None, **context: Any) -> None:
    """Raise DataLoss, or log it as a warning: what `failOnDataLoss` decides."""
    if fail:
        why = hint or "records were deleted by retention, or with their topic"
        raise DataLoss(message, **context, hint=f"{why}; to go on with what is there, set failOnDataLoss to false")
    logger.warning("%s; going on, because failOnDataLoss is false", message)


def named(partitions: Iterable[TopicPartition]) -> str:
    """Partitions for a message, in order, the first of them by name."""
    found = sorted(partitions)
    shown = ", ".join(str(tp) for tp in found[:NAMED_MAX])
    return shown if len(found) <= NAMED_MAX else f"{shown} and {len(found) - NAMED_MAX} more"


# -- JSON


def _read_json(text: str, form: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{form} ({error})") from None
    if not isinstance(found, dict) or not found:
        raise ValueError(form)
    return found


def _partition(topic: str, index: object, form: str) -> TopicPartition:
    """A partition whose index is a number, or its text as JSON's keys are."""
    if isinstance(index, bool) or not str(index).isascii() or not str(index).isdigit() or not topic:
        raise ValueError(f"{form}; {index!r} of topic {topic!r} is no partition")
    return TopicPartition(topic, int(str(index)))


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """Partitions from `{"topic": [0, 1]}`, in order. Raises ValueError with what is allowed."""
    found: set[TopicPartition] = set()
    for topic, indexes in _read_json(text, PARTITIONS_FORM).items():
        if not isinstance(indexes, list) or not indexes:
            raise ValueError(f"{PARTITIONS_FORM}; topic {topic!r} has no list of partitions")
        for index in indexes:
            if not isinstance(index, int):
                raise ValueError(f"{PARTITIONS_FORM}; {index!r} of topic {topic!r} is no partition")
            found.add(_partition(topic, index, PARTITIONS_FORM))
    return tuple(sorted(found))


def parse_offsets(text: str) -> Offsets:
    """Offsets (or timestamps) from `{"topic": {"0": 23}}`. Raises ValueError with what is allowed."""
    return _offsets_of(_read_json(text, OFFSETS_FORM))


def _offsets_of(found: Mapping[str, Any]) -> Offsets:
    offsets: Offsets = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, Mapping) or not partitions:
            raise ValueError(f"{OFFSETS_FORM}; topic {topic!r} has no offsets by partition")
        for index, offset in partitions.items():
            if isinstance(offset, bool) or not isinstance(offset, int):
                raise ValueError(f"{OFFSETS_FORM}; {offset!r} of {topic}-{index} is no offset")
            offsets[_partition(topic, index, OFFSETS_FORM)] = offset
    return offsets


def read_offsets(offsets: str | Mapping[str, Any]) -> Offsets:
    """Offsets of a checkpoint or of a query's progress, as text or as what its JSON says; of either connector.

    No topics at all are no offsets: a pattern may match nothing yet. Raises ValueError for anything else.
    """
    found = json.loads(offsets) if isinstance(offsets, str) else offsets
    if not isinstance(found, Mapping):
        raise ValueError(f"offsets are {OFFSETS_FORM}; got {offsets!r}")
    return _offsets_of({topic: places for topic, places in found.items() if "@" not in topic})


def write_offsets(
    offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes] = NOTHING_KNOWN
) -> dict[str, dict[str, int]]:
    """Offsets as what Spark makes JSON of: topics in order, partitions in the order of their numbers, and the ids that are known."""
    found: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    ids = {topic: topic_ids.get(topic, ZERO_UUID) for topic in found}
    return found | {f"{topic}{ID_MARK}{uuid_to_str(one)}": {} for topic, one in ids.items() if one != ZERO_UUID}


def topic_ids_within(offsets: Mapping[str, Any]) -> dict[str, bytes]:
    """The ids of topics that offsets tell."""
    marked = (topic.partition(ID_MARK) for topic in offsets if ID_MARK in topic)
    return {topic: uuid_from_str(one) for topic, _, one in marked}


def with_start(end: Mapping[str, dict[str, int]], start: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The offsets `end` as `write_offsets` has made them, with those where their micro-batch began."""
    began = {f"{topic}{START_SUFFIX}": places for topic, places in write_offsets(start).items()}
    return dict(sorted({**end, **began}.items()))


def start_within(offsets: Mapping[str, Any]) -> Offsets | None:
    """Where the micro-batch of these offsets began; None when they do not tell."""
    began = {topic[: -len(START_SUFFIX)]: places for topic, places in offsets.items() if topic.endswith(START_SUFFIX)}
    return _offsets_of(began) if began else None


# -- what a user asked for


@dataclass(frozen=True)
class OffsetLimit:
    """Where to begin or to end: `everywhere` (-2 earliest, -1 latest), `offsets` or `times_ms` for each partition, or `time_ms`
    for all. One of them is set."""

    everywhere: int | None = None
    offsets: Mapping[TopicPartition, int] | None = field(default=None, hash=False)
    times_ms: Mapping[TopicPartition, int] | None = field(default=None, hash=False)
    time_ms: int | None = None

    @classmethod
    def earliest(cls) -> OffsetLimit:
        return cls(everywhere=EARLIEST)

    @classmethod
    def latest(cls) -> OffsetLimit:
        return cls(everywhere=LATEST)

    @classmethod
    def exactly(cls, offsets: Mapping[TopicPartition, int]) -> OffsetLimit:
        return cls(offsets=offsets)

    @classmethod
    def at_times(cls, times_ms: Mapping[TopicPartition, int]) -> OffsetLimit:
        return cls(times_ms=times_ms)

    @classmethod
    def at_time(cls, time_ms: int) -> OffsetLimit:
        return cls(time_ms=time_ms)

    def refuse(self, special: int, option: str, word: str, why: str) -> None:
        """Raise ConfigError if this is `special` (-1, -2) for all or for some partitions."""
        wrong = [tp for tp, offset in (self.offsets or {}).items() if offset == special]
        if self.everywhere == special or wrong:
            where = f" for {named(wrong)}" if wrong else ""
            raise ConfigError(f"{option} cannot be {word}{where} in a batch query: {why}")

    def check_before(self, end: OffsetLimit) -> None:
        """Raise ConfigError where both limits are given for each partition and this one is behind `end`, or names others."""
        for mine, others, what in ((self.offsets, end.offsets, "offset"), (self.times_ms, end.times_ms, "timestamp")):
            if mine is None or others is None:
                continue
            if mine.keys() != others.keys():
                raise ConfigError(
                    f"starting and ending {what}s are for the same partitions: "
                    f"only one of the two names {named(mine.keys() ^ others.keys())}"
                )
            for tp, start in mine.items():
                if start > others[tp] >= 0:
                    raise ConfigError(f"the starting {what} {start} of {tp} is above its ending {what} {others[tp]}")


# -- what the brokers say


class OffsetReader:
    """Which partitions a source reads, and where they begin and end.

    Invariants: at most one client is open, made when it is first needed and never used by another process than its own. Pickles
    without it. `topic_ids` and `epochs` are what the last answers told: a topic made anew has another id, and a log in which a later
    leader has not all records has a later epoch. Thread rule: one thread at a time.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.topic_ids: dict[str, bytes] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self._admin: Admin | None = None
        self._pid = 0

    def __reduce__(self) -> tuple[type[OffsetReader], tuple[SourceOptions]]:
        return OffsetReader, (self.options,)

    @property
    def admin(self) -> Admin:
        """The client of this process."""
        if self._admin is None or self._pid != os.getpid():
            self._admin, self._pid = self.open_admin(), os.getpid()
        return self._admin

    def open_admin(self) -> Admin:
        """Another client."""
        from fastq.admin import Admin

        return Admin(self.options.admin_config())

    def close(self) -> None:
        """Close the client, if there is one. The next question opens another."""
        admin, self._admin = self._admin, None
        if admin is not None and self._pid == os.getpid():
            admin.close()

    def partitions(self, known: Iterable[TopicPartition] = ()) -> set[TopicPartition]:
        """All partitions of what was asked for, as of now; what matches a pattern may be none.

        known: partitions that were there before: they may be gone. Raises UnknownTopicOrPartition for other topics and
        partitions that are named and not there.
        """
        selection, before = self.options.selection, set(known)
        gone: set[str] = set()
        if selection.pattern is not None:
            matches = selection.pattern.fullmatch
            return self._partitions_of([name for name in self.admin.list_topics() if matches(name)], gone)
        topics = selection.topics or tuple(dict.fromkeys(tp.topic for tp in selection.partitions))
        there = self._partitions_of(list(topics), gone)
        gone -= {tp.topic for tp in before}
        if gone:
            self._no_such_topics(gone)
        missing = set(selection.partitions) - there - before
        if missing:
            sizes = {tp.topic: sum(tp.topic == other.topic for other in there) for tp in missing}
            have = ", ".join(f"{topic} has {size}, from 0 on" for topic, size in sorted(sizes.items()))
            raise UnknownTopicOrPartition(
                f"the option assign names partitions that are not there: {named(missing)} ({have})"
            )
        return there & set(selection.partitions) if selection.partitions else there

    def _no_such_topics(self, names: Iterable[str]) -> NoReturn:
        raise UnknownTopicOrPartition(
            f"no such topic: {', '.join(sorted(names))}, of {self.options.selection}",
            hint="Create it, or look at its name and at kafka.bootstrap.servers",
        )

    def _partitions_of(self, names: list[str], gone: set[str]) -> set[TopicPartition]:
        """The partitions of topics; those that are not there go into `gone`."""
        found: set[TopicPartition] = set()
        for name, outcome in self.admin.describe_topics(names).items() if names else ():
            if isinstance(outcome.error, UnknownTopicOrPartition):
                gone.add(name)
            else:
                topic = outcome.result()
                self.topic_ids[name] = topic.topic_id
                found.update(TopicPartition(name, index) for index in range(len(topic.partitions)))
        return found

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first offset of each of these partitions."""
        return self._ask(dict.fromkeys(partitions, EARLIEST))

    def latest(
        self, partitions: Iterable[TopicPartition], known: Mapping[TopicPartition, int] | None = None
    ) -> Offsets:
        """The offset behind the last record of each; under read_committed, of what is decided.

        known: offsets that were there before: a broker that has just begun to lead may not know of them yet (KAFKA-7703), and is
        asked again.
        """
        wanted = dict.fromkeys(partitions, LATEST)
        for attempt in range(self.options.offset_attempts):
            found = self._ask(wanted)
            behind = [tp for tp, offset in found.items() if offset < (known or {}).get(tp, 0)]
            if not behind or attempt + 1 == self.options.offset_attempts:
                break
            logger.warning("the end of %s is before what was read: asking again", named(behind))
            time.sleep(self.options.offset_retry_interval_ms / 1000)
        return found

    def _ask(self, times: Mapping[TopicPartition, int]) -> Offsets:
        if not times:
            return {}
        outcomes = self.admin.list_offsets(times, read_committed=self.options.read_committed)
        found = {tp: outcomes[tp].result() for tp in times}
        for tp, place in found.items():
            # The first record's epoch may be older than that of the end, which the leader of now has told.
            self.epochs[tp] = max(place.leader_epoch, self.epochs.get(tp, -1))
        return {tp: place.offset for tp, place in found.items()}

    def resolve(self, limit: OffsetLimit, partitions: set[TopicPartition], *, starting: bool) -> Offsets:
        """The offsets that a limit means for `partitions`. Special offsets and times are looked up; others are not checked
        against the logs. Raises ConfigError when a limit names other partitions, or a time that nothing is younger than."""
        which = "starting" if starting else "ending"
        if limit.everywhere is not None:
            return self._ask(dict.fromkeys(partitions, limit.everywhere))
        if limit.time_ms is not None:
            return self._at_times(dict.fromkeys(partitions, limit.time_ms), starting)
        if limit.times_ms is not None:
            self._check_named(limit.times_ms, partitions, f"{which}OffsetsByTimestamp", "")
            return self._at_times(limit.times_ms, starting)
        given = limit.offsets or {}
        self._check_named(given, partitions, f"{which}Offsets", "; -1 is latest, -2 earliest")
        special = self._ask({tp: offset for tp, offset in given.items() if offset < 0})
        return {tp: special.get(tp, offset) for tp, offset in given.items()}

    def _check_named(
        self, given: Iterable[TopicPartition], wanted: set[TopicPartition], option: str, more: str
    ) -> None:
        missing, extra = wanted - set(given), set(given) - wanted
        if missing or extra:
            parts = [f"{named(missing)} missing"] if missing else []
            parts += [f"{named(extra)} not among what is read"] if extra else []
            raise ConfigError(
                f"{option} names every partition that is read, and no other: {', '.join(parts)} "
                f"({self.options.selection}{more})"
            )

    def _at_times(self, times_ms: Mapping[TopicPartition, int], starting: bool) -> Offsets:
        found = self._ask(times_ms)
        none = [tp for tp, offset in found.items() if offset < 0]
        if none and starting and not self.options.no_match_is_latest:
            raise ConfigError(
                f"no record of {named(none)} is as young as the starting timestamp "
                f"{times_ms[none[0]]}; to begin at the end there, set startingOffsetsByTimestampStrategy to latest"
            )
        return {**found, **self._ask(dict.fromkeys(none, LATEST))}

    def attempts(self, ask: Callable[[], T]) -> T:
        """Ask again what failed with an error that may pass, `fetchOffset.numRetries` times in all, with a client of its own each
        time. Topics that are not there and brokers that cannot be reached are final: the client has waited for them already, as
        long as kafka.default.api.timeout.ms says."""
        for _ in range(self.options.offset_attempts - 1):
            try:
                return ask()
            except (UnknownTopicOrPartition, ConnectionFailed):
                raise
            except FastqError as error:
                if not error.retriable:
                    raise
                logger.warning("offsets could not be learned, trying again: %s", error)
                self.close()
                time.sleep(self.options.offset_retry_interval_ms / 1000)
        return ask()
