"""What a program gives to `commit`, as offsets by partition.

Rules: an offset to commit is that of the next record to be read; what is no offset, and what another member reads by now, is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, SupportsIndex, TypeAlias

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import Record
from fastq.consumer.group.session import GroupSession
from fastq.errors import NotAssigned
from fastq.metadata import OffsetAndMetadata, TopicPartition, partition_of

# What can be committed: None for all that was handed out, one record, several of them, a batch, or offsets by partition.
Committable: TypeAlias = (
    "Record | Sequence[Record] | ConsumerBatch"
    " | Mapping[TopicPartition | tuple[str, int], int | OffsetAndMetadata]"
    " | Mapping[TopicPartition, OffsetAndMetadata] | Mapping[TopicPartition, int] | None"
)


def offsets_to_commit(
    what: Any, group: GroupSession, assigned: Mapping[TopicPartition, object]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What is to be committed, by partition; see `Committable`. Raises ValueError, TypeError and NotAssigned."""
    if what is None:
        return group.positions()
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    if isinstance(what, ConsumerBatch):
        what = {tp: OffsetAndMetadata(offset, "", epoch) for tp, (offset, epoch) in what.next_positions.items()}
    if type(what) is dict or isinstance(what, Mapping):
        for tp, place in what.items():
            if type(place) is not OffsetAndMetadata:
                place = OffsetAndMetadata(place)
            offset = place.offset
            if type(offset) not in (int, bool) and isinstance(offset, SupportsIndex):
                # As seek takes them: of numpy, say.
                offset = index(offset)
                place = place._replace(offset=offset)
            if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < 2**63:
                raise ValueError(f"{partition_of(tp)}: an offset to commit is an int, 0 to 2**63 - 1, got {offset!r}")
            found[partition_of(tp)] = place
    else:
        several = isinstance(what, Iterable) and not isinstance(what, Record)
        for record in what if several else [what]:
            if not isinstance(record, Record):
                raise TypeError(f"commit takes records, a batch or offsets by partition, got {record!r}")
            tp = TopicPartition(record.topic, record.partition)
            if tp not in found or found[tp].offset <= record.offset:
                found[tp] = OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)
    if found.keys() <= assigned.keys() or not (group.subscribed or assigned):
        return found
    hint = "It may belong to another member since the last rebalance, which reads on from the last commit"
    if group.subscribed and not group.polled:
        hint = "Call poll() or iterate first: a consumer joins its group when it is asked for records, and is given partitions then"
    for tp in found:
        if tp not in assigned:
            raise NotAssigned(
                f"offset {found[tp].offset} was not committed: the partition is not assigned to this consumer",
                topic=tp.topic,
                partition=tp.partition,
                **{
                    k: v
                    for k, v in zip(("group", "generation", "member"), group.group_metadata()[:3], strict=True)
                    if v
                },
                hint=hint,
            )
    return found
