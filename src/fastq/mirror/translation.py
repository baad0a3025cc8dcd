"""Offsets of groups, as they are in the target.

Rules: pure. A group's offset goes to the target where the group has no members there, and never back: who reads there already knows
better. A partition without a translation is left alone, so the group begins there as its `auto.offset.reset` says.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastq.metadata import TopicPartition
from fastq.mirror.mm2 import Checkpoint
from fastq.mirror.names import Names
from fastq.mirror.progress import Progress

NOTHING: Mapping[TopicPartition, str] = {}


def checkpoints(
    group: str,
    committed: Mapping[TopicPartition, int],
    progress: Mapping[TopicPartition, Progress],
    names: Names,
    metadata: Mapping[TopicPartition, str] = NOTHING,
) -> list[Checkpoint]:
    """Where a group that has committed these offsets in the source, with that metadata, goes on in the target."""
    found: list[Checkpoint] = []
    for tp, offset in sorted(committed.items()):
        downstream = progress[tp].translated(offset) if tp in progress else None
        if downstream is not None:
            place = names.in_target(tp.topic), tp.partition
            found.append(Checkpoint(group, *place, offset, downstream, metadata.get(tp, "")))
    return found


def to_commit(checkpoints: list[Checkpoint], committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """What is to be committed in the target, where a group has committed these."""
    wanted = {TopicPartition(c.topic, c.partition): c.downstream for c in checkpoints}
    return {tp: offset for tp, offset in wanted.items() if committed.get(tp, -1) < offset}
