"""Whether the target has the records of the source: read on both sides, and compared one by one.

Rules
- Compared is from the first record whose place on both sides is known and that both still have, up to what was copied when the
  comparison began: key, value, headers and time. The first difference ends a partition.
- Where offsets are the same each record's offset is compared too, and records are read whether they are committed or not.
- Of a compacted topic, whose sides are cleaned each by itself, the last values of all keys are compared. What a running mirror
  copies meanwhile may look like a difference there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def compare_all(config: MirrorConfig, topics: Sequence[str]) -> Iterator[Comparison]:
    """Compare what was copied of some topics, or of all."""
    survey, names = Survey(config), Names.of(config)
    try:
        state = read_state(config.target, state_topic(config.source.alias), range(survey.lanes()))
        known = progress_of(config, survey.target, state)
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
        for tp, progress in copied.items():
            name = wanted[tp].topic
            why = gone(config, progress, ours.get(tp), theirs.get(wanted[tp]))
            if why:
                yield Comparison(tp, name, "unknown", detail=why)
                continue
            yield compare(config, tp, name, progress, compacted=name in compacted)
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
    config: MirrorConfig, partition: TopicPartition, topic: str, progress: Progress, *, compacted: bool
) -> Comparison:
    """Compare a partition of the source with that of the target's `topic`."""
    there, end = TopicPartition(topic, partition.partition), progress.next_offset
    same = config.options.offsets == "same"
    level = "read_committed" if config.options.read_committed and not same else "read_uncommitted"
    if not progress.runs:
        return Comparison(partition, topic, "same", 0, end, end)  # nothing was copied yet
    begins = _begin(config.source, partition), _begin(config.target, there)
    start = (begins[0], begins[1]) if compacted else common_start(progress, *begins)
    if start is None:
        why = "there is no record whose place is known on both sides and that both still have"
        return Comparison(partition, topic, "unknown", detail=why)
    ours = _records(config.source, partition, start[0], end, level)
    theirs = _records(config.target, there, start[1], None, level if same else "read_committed")
    if compacted:
        return _compare_keys(partition, topic, ours, theirs, start[0], end)
    compared = 0
    for record in ours:
        found = next(theirs, None)
        detail = _difference(record, found)
        if detail is None and same and found is not None and found.offset != record.offset:
            detail = f"the record at offset {record.offset} lies at {found.offset} in the target"
        if detail is not None:
            return Comparison(partition, topic, "differs", compared, start[0], end, detail)
        compared += 1
    return Comparison(partition, topic, "same", compared, start[0], end)


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


def _records(
    side: Side, partition: TopicPartition, start: int, end: int | None, level: str
) -> Iterator[Record[bytes, bytes]]:
    """The records from `start` up to `end` (None: the end of now)."""
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


def _difference(record: Record[bytes, bytes], found: Record[bytes, bytes] | None) -> str | None:
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
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} letters)"


def _compare_keys(
    partition: TopicPartition,
    topic: str,
    ours: Iterator[Record[bytes, bytes]],
    theirs: Iterator[Record[bytes, bytes]],
    start: int,
    end: int,
) -> Comparison:
    """The last value of each key, as a digest; a key without one is a key that is not there."""
    last: list[dict[bytes | None, bytes]] = []
    for records in (ours, theirs):
        values: dict[bytes | None, bytes] = {}
        for record in records:
            if record.value is None:
                values.pop(record.key, None)
            else:
                values[record.key] = blake2b(record.value, digest_size=16).digest()
        last.append(values)
    different = sorted(repr(key) for key in last[0].keys() | last[1].keys() if last[0].get(key) != last[1].get(key))
    if different:
        detail = f"the last value of the key {_short(different[0])} is another ({len(different)} such keys; is the mirror running?)"
        return Comparison(partition, topic, "differs", len(last[0]), start, end, detail)
    return Comparison(partition, topic, "same", len(last[0]), start, end)
