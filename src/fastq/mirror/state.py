"""The mirror's memory: a compacted topic of the target, `fastq-mirror.ALIAS.internal`.

Rules
- Its partitions are the lanes. A partition of the source has its progress in the lane that `lane_of` says, written in the transaction
  that copies its records: so either both are there or neither. A topic and not a group's offsets, because those are forgotten after
  offsets.retention.minutes without a commit, and a mirror that was off for a week would begin anew; and because what is kept is
  more than a number.
- Records are JSON, so that any tool can read them. Keys: `["progress", topic, partition]`, and `["topic", name in the target]` with the
  provenance of what a mirror writes; `["epochs", topic, partition]`, with the source's leader epochs where offsets are the same;
  `["target"]`, in the first lane, with the alias that the target has: it is in the lanes' transactional ids, which fence by it;
  `["stopped"]`, in each lane, once a mirror was failed over: nobody copies in that lane then; `["returned"]`, in each lane, once it was
  prepared to copy back what such a mirror has copied, and which end of that one it was for.
- What is read is what was committed before the read began. A lane is read by its owner only after the transactional id was
  initialised, which ends what an owner before has left open.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from fastq.consumer import Consumer, Record
from fastq.errors import ConfigError, FastqError, WakeupError
from fastq.metadata import TopicPartition
from fastq.mirror.config import Side
from fastq.mirror.progress import Progress, StateError
from fastq.mirror.same import Epochs
from fastq.mirror.topics import Provenance
from fastq.values import NamedTuple

CONFIGS = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": "0",
    "segment.ms": "3600000",
    "segment.bytes": str(16 * 1024 * 1024),  # who takes a lane over reads what is not compacted yet
    "delete.retention.ms": "3600000",  # markers of transactions are kept so long
}
logger = logging.getLogger("fastq.mirror")

READ_TIMEOUT_S = 30.0
OFFSETS_S, OFFSETS_ALONE_S = 10.0, 1.0
ASKED_ALONE = 3
"""So many partitions of a node that says nothing are asked for one by one; one that has told of one is asked for all of its own."""
K = TypeVar("K")
V = TypeVar("V")
Opened: TypeAlias = "Callable[[Callable[[], object]], object]"
"""Gets what ends a wait for the source, from any thread."""


def lane_of(partition: TopicPartition, lanes: int) -> int:
    """The lane of a partition: neighbours go to different ones."""
    return (zlib.crc32(partition.topic.encode()) + partition.partition) % lanes


def progress_key(partition: TopicPartition) -> bytes:
    return json.dumps(["progress", partition.topic, partition.partition], separators=(",", ":")).encode()


def epochs_key(partition: TopicPartition) -> bytes:
    return json.dumps(["epochs", partition.topic, partition.partition], separators=(",", ":")).encode()


def provenance_key(topic: str) -> bytes:
    return json.dumps(["topic", topic], separators=(",", ":")).encode()


def provenance_value(provenance: Provenance) -> bytes:
    return json.dumps({"from": provenance.topic, "clusters": provenance.clusters}, separators=(",", ":")).encode()


def target_key() -> bytes:
    return json.dumps(["target"]).encode()


def target_value(alias: str) -> bytes:
    return json.dumps({"alias": alias}, separators=(",", ":")).encode()


def stopped_key() -> bytes:
    return json.dumps(["stopped"]).encode()


def returned_key() -> bytes:
    return json.dumps(["returned"]).encode()


def returned_value(time_ms: int) -> bytes:
    """That a lane was seeded after the mirror the other way was failed over, which was done at `time_ms`."""
    return json.dumps({"time_ms": time_ms}, separators=(",", ":")).encode()


def end_of(stopped: Mapping[int, Stopped]) -> int:
    """When the last of a mirror's lanes was failed over; 0 where none was."""
    return max((lane.time_ms for lane in stopped.values()), default=0)


class Stopped(NamedTuple):
    """A lane was failed over at this time (milliseconds since 1970); `ends` are the target's, by its own partitions."""

    time_ms: int
    ends: Mapping[TopicPartition, int]

    def to_json(self) -> bytes:
        ends = [[tp.topic, tp.partition, end] for tp, end in sorted(self.ends.items())]
        return json.dumps({"time_ms": self.time_ms, "ends": ends}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, value: bytes) -> Stopped:
        try:
            found = json.loads(value)
            ends = {TopicPartition(str(topic), int(partition)): int(end) for topic, partition, end in found["ends"]}
            return cls(int(found["time_ms"]), ends)
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"no end of a lane: {value[:100]!r}", cause=error) from None


def consumer_at(side: Side, **settings: object) -> Consumer:
    """A consumer without a group, of what is committed."""
    own = {"isolation_level": "read_committed", "allow_auto_create_topics": False, **settings}
    return Consumer({**side.common, **side.consumer, **own})


class Offsets(NamedTuple):
    """Where the logs of partitions begin and end; `missing` are those that did not tell, as without a leader, and why."""

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    missing: Mapping[TopicPartition, FastqError]


def offsets_of(
    consumer: Consumer, partitions: Iterable[TopicPartition], wait_s: float | None = None, alone: bool = True
) -> Offsets:
    """Ask for all at once, within `wait_s` (None: OFFSETS_S), and where that fails leader by leader, and one by one where a leader answers:
    a partition without a leader is not the others' trouble, nor is a node that says nothing that of the other nodes' partitions. Raises why
    when nobody tells, unless others than these are known to be told (`alone`), and WakeupError."""
    wanted = list(partitions)
    if not wanted:
        return Offsets({}, {}, {})
    begins: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    missing: dict[TopicPartition, FastqError] = {}

    def ask(some: list[TopicPartition], seconds: float) -> FastqError | None:
        try:
            found = consumer.beginning_offsets(some, seconds), consumer.end_offsets(some, seconds)
        except WakeupError:
            raise
        except FastqError as error:
            return error
        begins.update(found[0])
        ends.update(found[1])
        return None

    why = ask(wanted, OFFSETS_S if wait_s is None else wait_s)
    if why is None:
        return Offsets(begins, ends, {})
    for led in _by_leader(consumer, wanted):
        error, silent, answers = ask(led, OFFSETS_ALONE_S), 0, False
        if error is None:
            continue
        for tp in led:
            if len(led) > 1 and (answers or silent < ASKED_ALONE):
                error = ask([tp], OFFSETS_ALONE_S)
            if error is None:
                answers = True
            else:
                missing[tp] = error
                silent += error.retriable  # else it was answered, at once
    if alone and not ends:
        raise why  # it is the cluster, as far as anybody can tell
    return Offsets(begins, ends, missing)


def _by_leader(consumer: Consumer, partitions: Iterable[TopicPartition]) -> list[list[TopicPartition]]:
    """By who leads them, as far as the consumer knows; those that nobody leads last."""
    found: dict[int, list[TopicPartition]] = {}
    nobody: list[TopicPartition] = []
    for tp in partitions:
        leader = consumer._fetcher.metadata.leader(*tp)
        (nobody if leader is None else found.setdefault(leader.node_id, [])).append(tp)
    return [*found.values(), *([nobody] if nobody else [])]


def with_open_transactions(
    side: Side,
    progress: Mapping[TopicPartition, Progress],
    ends: Mapping[TopicPartition, int],
    opened: Opened = lambda wake: None,
) -> dict[TopicPartition, int]:
    """Ends of partitions; where more was copied than is committed, as by a mirror that read uncommitted records, that of the log.
    Raises WakeupError after what `opened` gets was called."""
    beyond = [tp for tp, end in ends.items() if tp in progress and progress[tp].next_offset > end]
    if not beyond:
        return dict(ends)
    with consumer_at(side, isolation_level="read_uncommitted") as consumer:
        opened(consumer.wakeup)
        return {**ends, **consumer.end_offsets(beyond)}


class State:
    """What some lanes of a state topic say, as far as it was read. `provenance` is by the name of the topic that is written, `stopped` and
    `returned` by lane; `target` is its alias, "" where it is not known. Thread rule: one thread.
    """

    def __init__(self, side: Side, topic: str, lanes: Sequence[int]) -> None:
        self.progress: dict[TopicPartition, Progress] = {}
        self.provenance: dict[str, Provenance] = {}
        self.epochs: dict[TopicPartition, Epochs] = {}
        self.stopped: dict[int, Stopped] = {}
        self.returned: dict[int, int] = {}
        self.target = ""
        self._broken: dict[tuple[int, bytes | None], FastqError] = {}  # the last records of their keys, as far as read
        self._places: dict[TopicPartition, int] = {}
        self._topic = topic
        self._consumer = consumer_at(side, auto_offset_reset="earliest")
        self._consumer.assign([TopicPartition(topic, lane) for lane in lanes])

    def catch_up(self) -> None:
        """Read what was committed before this call. Raises StateError, with the place, where the last record of a key of ours cannot be
        read; keys that are not ours are none of our business."""
        for record in self._consumer.read_to_end(READ_TIMEOUT_S):
            place = record.partition, record.key
            try:
                self._take(record)
                self._broken.pop(place, None)
            except StateError as error:
                self._broken[place] = error.with_context(
                    topic=self._topic, partition=record.partition, offset=record.offset
                )
        for broken in self._broken.values():
            raise broken

    def check_lanes(self, lanes: int) -> None:
        """Raises ConfigError where progress lies in another lane than that of `lanes` which would look for it: it would begin anew."""
        for tp, lane in self._places.items():
            if (tp in self.progress or tp in self.epochs) and lane != lane_of(tp, lanes):
                raise ConfigError(
                    f"{self._topic} has {lanes} partitions, and the mirror began with fewer: {tp} has its progress in {lane}, and lane "
                    f"{lane_of(tp, lanes)} would copy it from the beginning once more",
                    hint="Somebody has added partitions to it. Begin a mirror of another source alias, or delete this topic and the copies",
                )

    def check_target(self, alias: str) -> None:
        """Raises ConfigError where the mirror calls its target otherwise: its lanes would not be fenced."""
        if self.target not in ("", alias):
            raise ConfigError(
                f"{self._topic} is of a mirror that calls its target {self.target}, and here it is {alias}: the lanes of one would not end "
                "those of the other",
                hint=f'Write alias = "{self.target}" in [target]. To rename it, stop all processes of the mirror, and write a record with '
                f'the key ["target"] and the value {target_value(alias).decode()} to {self._topic}, partition 0',
            )

    def close(self) -> None:
        self._consumer.close()

    def _take(self, record: Record[bytes, bytes]) -> None:
        value = record.value
        try:
            kind, *rest = json.loads(record.key or b"")
            tp = TopicPartition(str(rest[0]), int(rest[1])) if kind in ("progress", "epochs") else None
            topic = str(rest[0]) if kind == "topic" else ""
        except (ValueError, TypeError, IndexError):
            logger.warning(
                "%s-%d: the record at offset %d is none of the mirror's, and passed over: its key is %r",
                self._topic, record.partition, record.offset, record.key,
            )  # fmt: skip
            return
        if tp is not None:
            self._places[tp] = record.partition
            if kind == "epochs":
                _put(self.epochs, tp, None if value is None else Epochs.from_json(value))
            else:
                _put(self.progress, tp, None if value is None else Progress.from_json(value))
        elif kind == "topic":
            _put(self.provenance, topic, None if value is None else provenance_of(value))
        elif kind == "target":
            self.target = "" if value is None else _target(value)
        elif kind == "stopped":
            _put(self.stopped, record.partition, None if value is None else Stopped.from_json(value))
        elif kind == "returned":
            _put(self.returned, record.partition, None if value is None else _returned(value))


def _target(value: bytes) -> str:
    try:
        return str(json.loads(value)["alias"])
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"no alias of a target: {value[:100]!r}", cause=error) from None


def _returned(value: bytes) -> int:
    try:
        return int(json.loads(value)["time_ms"])
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"no fail-back of a lane: {value[:100]!r}", cause=error) from None


def _put(table: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def provenance_of(value: bytes) -> Provenance:
    try:
        found = json.loads(value)
        return Provenance(str(found["from"]), tuple(map(str, found["clusters"])))
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"no provenance of a topic: {value[:100]!r}", cause=error) from None


def read_state(side: Side, topic: str, lanes: Sequence[int]) -> State:
    """What is committed now in some lanes of a state topic."""
    state = State(side, topic, lanes)
    try:
        state.catch_up()
    finally:
        state.close()
    return state
