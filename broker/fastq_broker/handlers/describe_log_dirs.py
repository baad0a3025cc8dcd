"""DescribeLogDirs: what lies in each log directory, its size, and the room left (KIP-113, KIP-827), and whether it is cordoned (KIP-1066).

Rules: a directory that is offline answers KAFKA_STORAGE_ERROR and lists nothing. Null topics means all. A log that is being moved is
listed in both directories: its copy as a future one, with the offsets that it does not have yet. Source: ReplicaManager.describeLogDirs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from fastq_broker.controller.features import METADATA_VERSION
from fastq_broker.controller.view import CORDONED

if TYPE_CHECKING:
    from fastq_broker.log import LogManager, PartitionLog
    from fastq_broker.router import RequestContext

API_KEY = 35
VERSIONS = (1, 5)
UNKNOWN_LAG = -1
"""Of a log whose end cannot be read. Source: DescribeLogDirsResponse.INVALID_OFFSET_LAG."""

Result = DescribeLogDirsResponse.DescribeLogDirsResult


def handle(context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """One result a directory, in the order of log.dirs."""
    logs = context.logs
    by_directory: dict[str, list[PartitionLog]] = {}
    for log in _asked(logs, request):
        by_directory.setdefault(log.dir.path, []).append(log)
        if log.future is not None:
            by_directory.setdefault(log.future.dir.path, []).append(log.future)
    told = context.image.features.get(METADATA_VERSION, 0) >= CORDONED
    results = []
    for path in map(os.path.abspath, context.config.log_dirs):
        if path in logs.offline_dirs:
            results.append(Result(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path, topics=[]))
        else:
            result = _result(path, by_directory.get(path, []), logs)
            result.is_cordoned = told and path in logs.cordoned
            results.append(result)
    return DescribeLogDirsResponse(results=results)


def _asked(logs: LogManager, request: DescribeLogDirsRequest) -> Iterator[PartitionLog]:
    if request.topics is None:
        return iter(logs.logs.values())
    wanted = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    return (log for log in logs.logs.values() if (log.topic, log.partition) in wanted)


def _result(path: str, found: list[PartitionLog], logs: LogManager) -> Result:
    topics: dict[str, list[DescribeLogDirsResponse.DescribeLogDirsPartition]] = {}
    for log in found:
        current = logs.logs[log.topic, log.partition]
        topics.setdefault(log.topic, []).append(
            DescribeLogDirsResponse.DescribeLogDirsPartition(
                partition_index=log.partition,
                partition_size=_size_bytes(log),
                offset_lag=_lag(log, current) if log is not current else 0,
                is_future_key=log is not current,
            )
        )
    room = os.statvfs(path)
    return Result(
        log_dir=path,
        topics=[
            DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
        total_bytes=room.f_blocks * room.f_frsize,
        usable_bytes=room.f_bavail * room.f_frsize,
    )


def _lag(future: PartitionLog, current: PartitionLog) -> int:
    try:
        return max(0, current.log_end_offset - future.log_end_offset)
    except KafkaError:  # one of them cannot be loaded now, which its own requests tell
        return UNKNOWN_LAG


def _size_bytes(log: PartitionLog) -> int:
    """Bytes of the segments; of a log that nobody has touched yet as the file system tells, without loading it."""
    if log.loaded:
        return log.size_bytes
    if log.unmade:
        return 0
    with os.scandir(log.path) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.name.endswith(".log"))
