"""Whether the target has the records of the source: read on both sides, and compared one by one.

Rules
- Compared is from the first record whose place on both sides is known and that both still have, up to the target's end when the
  comparison came to it: key, value, headers and time. The first difference ends a partition; so does a record of the target behind the
  last that was copied. Where the target has more than when the comparison began, how far the mirror is, is asked anew: what it copies
  meanwhile is compared as well. What came after a fail-over is not looked at.
- Where offsets are the same each record's offset is compared too, and records are read whether they are committed or not.
- Of a compacted topic, whose sides are cleaned each by itself, the last record of each key is compared, as a print (XXH3-128; of another
  hash where there is no package xxhash: no print leaves this process). What is cleaned away on one side while a mirror runs may look
  like a difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b

from fastq.admin import ConfigResource
from fastq.consumer import Record
from fastq.errors import RequestTimedOut, UnknownTopicOrPartition
from fastq.metadata import TopicPartition
from fastq.mirror.config import MirrorConfig, Side
from fastq.mirror.names import Names, state_topic
from fastq.mirror.progress import Progress, is_another
from fastq.mirror.same_progress import progress_of
from fastq.mirror.state import consumer_at, read_state
from fastq.mirror.survey import Survey, partitions_of
from fastq.values import NamedTuple

STEP_TIMEOUT_S = 30.0
PAUSE_S = 0.1


def _blake2b(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


_digest: Callable[[bytes], bytes] = _blake2b
try:
    from xxhash import xxh3_128_digest
except ImportError:
    pass
else:
    _digest = xxh3_128_digest


class _Print(NamedTuple):
    """Of a record: its time, below 0 where it has none of its own, and a digest of the rest."""

    time_ms: int
    digest: bytes


class Comparison(NamedTuple):
    """Of one partition: "same", "differs", or "unknown" and why it cannot be compared. Offsets are the source's, from `start` up to
    `end`."""

    partition: TopicPartition
    target: str
    result: str
    compared: int = 0
    start: int | None = None
    end: int | None = None
    detail: str | None = None


class Far:
    """How far a comparison is: partitions, and offsets of the source, of so many in all. Written by who compares, read by any thread.

    Invariant: `offsets` never falls; that of a partition which is done is all that it had.
    """

    def __init__(self) -> None:
        self.partitions = self.partitions_in_all = self.offsets = self.offsets_in_all = 0
        self._before = 0
        self._partition = (0, 0)

    def begin(self, places: Iterable[tuple[int, int]]) -> None:
        """Where each partition begins and ends."""
        sizes = [end - begin for begin, end in places]
        self.partitions_in_all, self.offsets_in_all = len(sizes), sum(sizes)

    def enter(self, begin: int, end: int) -> None:
        """A partition's comparison begins."""
        self._before, self._partition = self.offsets, (begin, end)

    def at(self, position: int) -> None:
        """The source's records were read up to an offset of the partition; what comes behind its end is not counted."""
        begin, end = self._partition
        self.offsets = max(self.offsets, self._before + min(position, end) - begin)

    def leave(self) -> None:
        """A partition's comparison has ended, wherever."""
        self.at(self._partition[1])
        self.partitions += 1


def compare_all(config: MirrorConfig, topics: Sequence[str], far: Far | None = None) -> Iterator[Comparison]:
    """Compare what was copied of some topics, or of all; `far` is told how far that is."""
    far = Far() if far is None else far
    survey, names = Survey(config), Names.of(config)
    try:
        lanes = range(survey.lanes())
        state = read_state(config.target, state_topic(config.source.alias), lanes)
        known = progress_of(config, survey.target, state)

        ends = {tp: end for stopped in state.stopped.values() for tp, end in stopped.ends.items()}

        def again(tp: TopicPartition) -> Progress | None:
            _wait_for_open_transactions(config, lanes)
            newer = read_state(config.target, state_topic(config.source.alias), lanes)
            return progress_of(config, survey.target, newer).get(tp)

        copied = {tp: of for tp, of in sorted(known.items()) if tp.topic in topics or not topics}
        unknown = sorted(set(topics) - {tp.topic for tp in copied})
        if unknown:
            raise UnknownTopicOrPartition(
                "nothing of it was mirrored", topic=unknown[0], hint="fastq mirror status shows what is"
            )
        ours = partitions_of(survey.source, copied)
        wanted = {tp: TopicPartition(names.in_target(tp.topic), tp.partition) for tp in copied}
        theirs = partitions_of(survey.target, wanted.values())
        targets = sorted({tp.topic for tp in theirs})
        answers = survey.target.describe_configs([ConfigResource.topic(name) for name in targets]).results()
        compacted = {r.name for r, entries in answers.items() if "compact" in (entries["cleanup.policy"].value or "")}
        with consumer_at(config.source) as consumer:
            begins = consumer.beginning_offsets([tp for tp in copied if tp in ours])
        # Of what is not there any more nothing is read.
        places = {
            tp: (min(begins.get(tp, of.next_offset), of.next_offset), of.next_offset) for tp, of in copied.items()
        }
        far.begin(places.values())
        for tp, progress in copied.items():
            far.enter(*places[tp])
            name = wanted[tp].topic
            why = gone(config, progress, ours.get(tp), theirs.get(wanted[tp]))
            if why:
                found = Comparison(tp, name, "unknown", detail=why)
            else:
                end, is_compacted = ends.get(wanted[tp]), name in compacted
                found = compare(config, tp, wanted[tp], progress, again, far, target_end=end, compacted=is_compacted)
            far.leave()
            yield found
    finally:
        survey.close()


def gone(config: MirrorConfig, progress: Progress, topic_id: str | None, target_id: str | None) -> str:
    """Why what was copied is not there any more, with the ids of the topics of now; "" where it is."""
    for alias, found, known in (
        (config.source.alias, topic_id, progress.topic_id),
        (config.target.alias, target_id, progress.target_id),
    ):
        if found is None:
            return f"it was deleted in {alias}"
        if is_another(found, known):
            return f"it was deleted and made anew in {alias} (id {found}, was {known})"
    return ""


def compare(
    config: MirrorConfig,
    partition: TopicPartition,
    there: TopicPartition,
    progress: Progress,
    again: Callable[[TopicPartition], Progress | None],
    far: Far,
    *,
    target_end: int | None,
    compacted: bool,
) -> Comparison:
    """Compare a partition of the source with that of the target, up to `target_end` (None: that of now). `again` says how far it is now."""
    topic, end = there.topic, progress.next_offset
    same = config.options.offsets == "same"
    level = "read_committed" if config.options.read_committed and not same else "read_uncommitted"
    if not progress.runs and progress.mark is not None:
        why = "records were copied, and where they are in the target is not known any more: it has lost some, or had them already"
        return Comparison(partition, topic, "unknown", detail=why)
    if not progress.runs:
        return Comparison(partition, topic, "same", 0, end, end)  # nothing was copied yet
    (begin, readable, log_end), target_begin = _bounds(config.source, partition, level), _begin(config.target, there)
    if end > log_end:
        why = f"the source ends at offset {log_end}, and the target has what was there up to {end}"
        return Comparison(partition, topic, "differs", 0, begin, end, why)
    if end > readable:
        why = f"a transaction is open in the source at offset {readable}, and the target has what it has sent"
        return Comparison(partition, topic, "unknown", detail=why)
    start: tuple[int, int] | None
    if not compacted:
        start = common_start(progress, begin, target_begin)
    elif same:  # of a key that one side alone has from before the other begins, nothing is to be said
        start = (max(begin, target_begin),) * 2
    else:
        start = begin, target_begin
    if start is None:
        why = "there is no record whose place is known on both sides and that both still have"
        return Comparison(partition, topic, "unknown", detail=why)

    def more() -> Iterator[Record[bytes, bytes]]:
        """What was copied since: what `theirs` goes up to was there before this is asked."""
        newer = again(partition)
        return _records(config.source, partition, end, end if newer is None else newer.next_offset, level)

    ours = _records(config.source, partition, start[0], end, level, far.at)
    theirs = _records(config.target, there, start[1], target_end, level if same else "read_committed")
    if compacted:
        compared, detail = _compare_keys(ours, theirs, more)
    else:
        compared, detail = _compare_records(ours, theirs, more, end, same=same)
    return Comparison(partition, topic, "differs" if detail else "same", compared, start[0], end, detail)


def _compare_records(
    ours: Iterator[Record[bytes, bytes]],
    theirs: Iterator[Record[bytes, bytes]],
    more: Callable[[], Iterator[Record[bytes, bytes]]],
    end: int,
    *,
    same: bool,
) -> tuple[int, str | None]:
    """How many records were compared, and what is another."""
    compared = 0
    for record in ours:
        detail = _difference(record, next(theirs, None), same=same)
        if detail is not None:
            return compared, detail
        compared += 1
    found = next(theirs, None)
    if found is None:
        return compared, None
    for record in more():
        detail = _difference(record, found, same=same)
        if detail is not None:
            return compared, detail
        compared, end = compared + 1, record.offset + 1
        found = next(theirs, None)
        if found is None:
            return compared, None
    return compared, (
        f"the target has a record at offset {found.offset} that was not copied, behind all that was copied up to offset {end}: "
        f"value is {_short(found.value)}"
    )


def common_start(progress: Progress, begin: int, target_begin: int) -> tuple[int, int] | None:
    """The first offsets of both sides that are of one record, at or behind where both logs begin and behind the last gap."""
    floor = begin if progress.gap is None else max(begin, progress.gap[0])
    for run in progress.runs:
        skip = max(floor - run.source, target_begin - run.target, 0)
        if skip < run.records:
            return run.source + skip, run.target + skip
    return None


def _begin(side: Side, partition: TopicPartition) -> int:
    with consumer_at(side) as consumer:
        return consumer.beginning_offsets([partition])[partition]


def _bounds(side: Side, partition: TopicPartition, level: str) -> tuple[int, int, int]:
    """Where a partition begins, ends for who reads at this isolation level, and ends."""
    with consumer_at(side, isolation_level=level) as consumer:
        begin = consumer.beginning_offsets([partition])[partition]
        readable = consumer.end_offsets([partition])[partition]
    with consumer_at(side, isolation_level="read_uncommitted") as consumer:
        return begin, readable, consumer.end_offsets([partition])[partition]


def _wait_for_open_transactions(config: MirrorConfig, lanes: Sequence[int]) -> None:
    """What is committed of a transaction shows in one partition sooner than in another: progress may be behind its records."""
    topic = state_topic(config.source.alias)
    partitions = [TopicPartition(topic, lane) for lane in lanes]
    with consumer_at(config.target, isolation_level="read_uncommitted") as consumer:
        ends = consumer.end_offsets(partitions)
    until = time.monotonic() + STEP_TIMEOUT_S
    with consumer_at(config.target) as consumer:
        while any(end < ends[tp] for tp, end in consumer.end_offsets(partitions).items()):
            if time.monotonic() > until:
                raise RequestTimedOut(
                    f"a transaction is open in {topic} for more than {STEP_TIMEOUT_S:g} s: how far the mirror is cannot be said"
                )
            time.sleep(PAUSE_S)


def _records(
    side: Side,
    partition: TopicPartition,
    start: int,
    end: int | None,
    level: str,
    at: Callable[[int], None] | None = None,
) -> Iterator[Record[bytes, bytes]]:
    """The records from `start` up to `end` (None: the end of now); `at` is told up to where they were taken."""
    with consumer_at(side, isolation_level=level, auto_offset_reset="none") as consumer:
        ends = consumer.end_offsets([partition]) if end is None else {partition: end}
        consumer.assign([partition])
        consumer.seek(partition, start)
        while consumer.position(partition) < ends[partition]:
            batch = consumer.poll_batch(timeout=STEP_TIMEOUT_S, until=ends)
            if not len(batch) and consumer.position(partition) < ends[partition]:
                raise RequestTimedOut(
                    f"{partition} in {side.alias}: nothing came within {STEP_TIMEOUT_S:g} s at offset "
                    f"{consumer.position(partition)}, and the end is {ends[partition]}"
                )
            yield from batch
            if at is not None:
                at(consumer.position(partition))


def _difference(record: Record[bytes, bytes], found: Record[bytes, bytes] | None, *, same: bool) -> str | None:
    """What is another in the target, in words."""
    if found is None:
        return f"the record at offset {record.offset} is not in the target"
    for name in ("key", "value", "headers", "timestamp_ms"):
        mine, other = getattr(record, name), getattr(found, name)
        if mine != other and not (name == "timestamp_ms" and mine < 0):  # none of its own: that of the copying
            return (
                f"the record at offset {record.offset}, in the target at {found.offset}: {name} is {_short(mine)} in the source, "
                f"{_short(other)} in the target"
            )
    if same and found.offset != record.offset:
        return f"the record at offset {record.offset} lies at {found.offset} in the target"
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} letters)"


def _compare_keys(
    ours: Iterator[Record[bytes, bytes]],
    theirs: Iterator[Record[bytes, bytes]],
    more: Callable[[], Iterator[Record[bytes, bytes]]],
) -> tuple[int, str | None]:
    """The last record of each key; a key whose last one has no value is a key that is not there."""
    mine, other = _last_of(ours), _last_of(theirs)
    different = {key for key in mine.keys() | other.keys() if not _are_alike(mine.get(key), other.get(key))}
    if different:
        for record in more():  # any of these may have been the last when the target was read
            if record.key in different and _are_alike(_print_of(record), other.get(record.key)):
                different.discard(record.key)
    if not different:
        return len(mine), None
    first = min(map(repr, different))
    return len(mine), (
        f"the last record of the key {_short(first)} is another ({len(different)} such keys; is the mirror running?)"
    )


def _last_of(records: Iterator[Record[bytes, bytes]]) -> dict[bytes | None, _Print]:
    found: dict[bytes | None, _Print] = {}
    for record in records:
        value = _print_of(record)
        if value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = value
    return found


def _print_of(record: Record[bytes, bytes]) -> _Print | None:
    """None of a record that deletes its key."""
    if record.value is None:
        return None
    headers = [(name.encode(), value) for name, value in record.headers]
    parts = [part for header in headers for part in header]
    lengths = [-1 if part is None else len(part) for part in parts]
    return _Print(record.timestamp_ms, _digest(b"".join([repr(lengths).encode(), *filter(None, parts), record.value])))


def _are_alike(mine: _Print | None, other: _Print | None) -> bool:
    if mine is None or other is None:
        return mine is other
    return mine.digest == other.digest and (mine.time_ms == other.time_ms or mine.time_ms < 0)
