"""Records of one topic written to another as they are: what could not be handled is set aside, or what was set aside is replayed.

Rules: what is copied is named by partition and offset, as it was shown; nothing is looked for again. Keys, values and headers go over as
bytes. A record that is gone meanwhile is told, and the others are copied. The reader is bounded by COPY_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fastq.admin import OffsetSpec
from fastq.admin.offsets import list_several
from fastq.console.clusters import API_TIMEOUT_S, Cluster
from fastq.errors import FastqError
from fastq.metadata import TopicPartition

COPY_MAX = 1_000
COPY_S = 60.0
GAP_MAX = 500
"""Offsets that are read and left, before it is quicker to ask for the next one by itself."""
ORIGIN_HEADER = "fastq.copied.from"
"""Of a copy: `topic:partition:offset` of what it was made of."""


class Copied(NamedTuple):
    """What became of a record: where its copy is, or why there is none."""

    source: TopicPartition
    offset: int
    outcome: str
    failed: bool


async def copy(
    cluster: Cluster,
    topic: str,
    places: Mapping[int, Sequence[int]],
    target: str,
    *,
    keep_partition: bool,
    tell_origin: bool,
    who: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> list[Copied]:
    """Copy the records at some offsets of partitions; in the order of the offsets of each partition."""
    outcomes, sends = [], []
    async with cluster.reader(who, isolation_level="read_uncommitted") as consumer:
        end = clock() + COPY_S
        for partition, offsets in sorted(places.items()):
            source = TopicPartition(topic, partition)
            wanted = sorted(set(offsets))
            found = await read_at(cluster, consumer, source, wanted, end, clock)
            for offset in wanted:
                record = found.get(offset)
                if record is None:
                    why = "not there any more" if offset in found else f"not read within {COPY_S:.0f} s"
                    outcomes.append(Copied(source, offset, f"{why}: not copied", True))
                    continue
                headers = list(record.headers)
                if tell_origin:
                    headers.append((ORIGIN_HEADER, f"{topic}:{partition}:{offset}".encode()))
                sending = await cluster.producer.send(
                    target,
                    record.value,
                    key=record.key,
                    headers=headers,
                    partition=partition if keep_partition else None,
                )
                sends.append((source, offset, sending))
    results = await asyncio.gather(*(sending for _, _, sending in sends), return_exceptions=True)
    for (source, offset, _), result in zip(sends, results, strict=True):
        if isinstance(result, FastqError):
            outcomes.append(Copied(source, offset, str(result), True))
        elif isinstance(result, BaseException):
            raise result
        else:
            outcomes.append(Copied(source, offset, f"{target}-{result.partition} at offset {result.offset:,}", False))
    return sorted(outcomes)


async def read_at(
    cluster: Cluster,
    consumer: Any,
    source: TopicPartition,
    offsets: Sequence[int],
    end: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, Any]:
    """The records at some offsets of a partition; None for one that is not there, and nothing for one that was not read before `end`."""
    listed = await cluster.run(
        list_several(
            [{source: OffsetSpec.EARLIEST}, {source: OffsetSpec.LATEST}],
            read_committed=False,
            timeout_ms=int(API_TIMEOUT_S * 1000),
        )
    )
    bounds = [one[source].result().offset for one in listed]
    found: dict[int, Any] = {offset: None for offset in offsets if not bounds[0] <= offset < bounds[1]}
    consumer.assign([source])
    for run in _runs([offset for offset in offsets if offset not in found]):
        consumer.seek(source, run[0])
        at = run[0]
        while at <= run[-1] and clock() < end:
            for record in await consumer.poll(max_records=run[-1] - at + 1, timeout=1.0):
                if record.offset in run:
                    found[record.offset] = record
            at = await consumer.position(source)
            # What lies behind the position and was not handed out is gone: compacted, or deleted meanwhile.
            found.update(dict.fromkeys([offset for offset in run if offset < at and offset not in found]))
    return found


def _runs(offsets: Sequence[int]) -> Iterator[list[int]]:
    """Offsets in order, parted where what lies between is not worth reading."""
    run: list[int] = []
    for offset in offsets:
        if run and offset - run[-1] > GAP_MAX:
            yield run
            run = []
        run.append(offset)
    if run:
        yield run
