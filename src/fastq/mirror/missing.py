"""What the source has that the target has not, once a mirror was failed over.

Rules
- Offsets are counted up to the high watermark, whatever transactions are open: what was acknowledged is missed.
- A partition that the target has not counts whole, and so does one whose topic is another one on either side than that which was copied.
- What cannot be known is told as such, with the reason, and never taken for nothing.
- What was deleted in the source cannot be missed. Nor can heartbeats that go on, as with the same offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress

from fastq.errors import FastqError
from fastq.metadata import TopicPartition
from fastq.mirror.config import MirrorConfig
from fastq.mirror.names import HEARTBEATS, Names
from fastq.mirror.progress import Progress, is_another
from fastq.mirror.same import Epochs
from fastq.mirror.state import consumer_at, offsets_of
from fastq.mirror.survey import Survey, partitions_of
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.mirror")


class Missing(NamedTuple):
    """By partition of the source: how many offsets the target has not, 0 too, and the first of them; why that is, in words, where it is
    known, and of a partition that the target lacks, though it is empty; `unknown`: those of which nobody can say, and why. `refused`:
    topics that are not mirrored at all, and why."""

    counts: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]
    reasons: Mapping[TopicPartition, str]
    unknown: Mapping[TopicPartition, str]
    refused: Mapping[str, str]


def missing_in_target(
    config: MirrorConfig,
    survey: Survey,
    progress: Mapping[TopicPartition, Progress],
    epochs: Mapping[TopicPartition, Epochs],
) -> Missing:
    """Ask both sides. `progress` is what was copied; `epochs`, of which source's topics where offsets are the same. Raises what keeps all
    from being known."""
    survey.identify()
    plan, names = survey.look(), Names.of(config)
    source, target = config.source.alias, config.target.alias
    planned = {tp for tp in (*plan.partitions, *plan.to_come) if tp.topic != HEARTBEATS or tp in progress}
    ours = partitions_of(survey.source, {*progress, *planned})
    there = {tp: TopicPartition(names.in_target(tp.topic), tp.partition) for tp in ours}
    theirs = partitions_of(survey.target, there.values())
    not_made: Mapping[str, str] = {}
    with suppress(FastqError):  # that they are missing is known without it
        not_made = survey.not_made(plan.changes)
    with consumer_at(config.source, isolation_level="read_uncommitted") as consumer:
        begins, ends, silent = offsets_of(consumer, ours, alone=False)
    counts: dict[TopicPartition, int] = {}
    starts: dict[TopicPartition, int] = {}
    reasons: dict[TopicPartition, str] = {}
    unknown = {tp: str(error) for tp, error in silent.items()}
    for tp in sorted(ours.keys() - silent.keys()):
        begin, end, known = begins[tp], ends[tp], progress.get(tp)
        source_id = "" if known is None else known.topic_id
        if not source_id and tp in epochs:
            source_id = epochs[tp].topic_id
        is_there, why = there[tp] in theirs, ""
        if not is_there:
            refused = not_made.get(tp.topic)
            why = f"{target} has no such partition{f', for {refused}' if refused else ''}"
        elif known is None:
            pass
        elif is_another(ours[tp], source_id):
            why = f"the topic was deleted and made anew in {source}"
        elif is_another(theirs[there[tp]], known.target_id):
            why = f"the topic was deleted and made anew in {target}"
        elif known.next_offset > end:
            unknown[tp] = (
                f"it ends at offset {end}, and all before {known.next_offset} was copied: {source} was truncated there, and may have "
                "other records since"
            )
            continue
        else:
            begin = known.next_offset
        starts[tp], counts[tp] = begin, end - begin
        if why and (counts[tp] or not is_there):
            reasons[tp] = why
    if config.options.read_committed and config.options.offsets != "same":
        held = _open_transactions(config, [tp for tp, count in counts.items() if count and tp not in reasons], ends)
        for tp, offset in held.items():
            reasons[tp] = (
                f"a transaction is open in {source} at offset {offset}, and nothing behind it is copied before it ends"
            )
    return Missing(counts, starts, reasons, unknown, plan.refused)


def never_copied(
    config: MirrorConfig, survey: Survey, copied: Container[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """What the source has of partitions that are to be mirrored and are none of those that were `copied`."""
    survey.identify()
    plan = survey.look()
    planned = (tp for tp in (*plan.partitions, *plan.to_come) if tp.topic != HEARTBEATS and tp not in copied)
    with consumer_at(config.source, isolation_level="read_uncommitted") as consumer:
        begins, ends, silent = offsets_of(consumer, planned, alone=False)
    for tp, error in silent.items():
        logger.warning("%s: whether %s has records of it is not known: %s", tp, config.source.alias, error)
    return {tp: (begins[tp], end) for tp, end in ends.items() if end > begins[tp]}


def _open_transactions(
    config: MirrorConfig, partitions: Iterable[TopicPartition], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Where transactions are open in the source, as far as it says."""
    with consumer_at(config.source) as consumer:
        stable = offsets_of(consumer, partitions, alone=False).ends
    return {tp: offset for tp, offset in stable.items() if offset < ends[tp]}
