"""Records of one topic written to another as they are: what could not be handled is set aside, or what was set aside is replayed.

Rules: what is copied is named by partition and offset, as it was shown; nothing is looked for again. Keys, values and headers go over as
bytes. A record that is gone meanwhile is told, and the others are copied. The reader is bounded by COPY_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fastq.console.clusters import Cluster
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
    clock: Callable[[], float] = time.monotonic,
) -> list[Copied]:
    """Copy the records at some offsets of partitions; in the order of the offsets of each partition."""
    outcomes, sends = [], []
    async with cluster.reader(isolation_level="read_uncommitted") as consumer:
        end = clock() + COPY_S
        for partition, offsets in sorted(places.items()):
            source = TopicPartition(topic, partition)
            consumer.assign([source])
            wanted = sorted(set(offsets))
            found = await _read(consumer, source, wanted, end, clock)
            for offset in wanted:
                record = found.get(offset)
                if record is None:
                    outcomes.append(Copied(source, offset, "not there any more: not copied", True))
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


async def _read(
    consumer: Any, source: TopicPartition, wanted: Sequence[int], end: float, clock: Callable[[], float]
) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for run in _runs(wanted):
        consumer.seek(source, run[0])
        at = run[0]
        while at <= run[-1] and clock() < end:
            records = await consumer.poll(max_records=run[-1] - at + 1, timeout=1.0)
            if not records and at >= await consumer.position(source):
                break  # its end
            for record in records:
                at = record.offset + 1
                if record.offset in run:
                    found[record.offset] = record
            at = max(at, await consumer.position(source))
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
