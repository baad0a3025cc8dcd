"""AlterReplicaLogDirs (KIP-113): a log is answered with success where it is already; none is moved to another directory.

Rules: codes as ReplicaManager.alterReplicaLogDirs; a move, which Kafka would begin, is INVALID_REQUEST, and a line in the log says why,
because the response has no place for words.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse

if TYPE_CHECKING:
    from fastq_broker.log import LogManager
    from fastq_broker.router import RequestContext

API_KEY = 34
VERSIONS = (1, 2)

logger = logging.getLogger(__name__)


def handle(context: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """One result a partition; of one that is named twice the later directory counts."""
    wanted = {
        (topic.name, number): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for number in topic.partitions
    }
    topics: dict[str, list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]] = {}
    for (topic, number), path in wanted.items():
        topics.setdefault(topic, []).append(
            AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
                partition_index=number, error_code=_error(context.logs, topic, number, path)
            )
        )
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
    )


def _error(logs: LogManager, topic: str, number: int, path: str) -> ErrorCode:
    directories = [directory.path for directory in logs.dirs]
    if not os.path.isabs(path) or os.path.abspath(path) not in directories:
        return ErrorCode.LOG_DIR_NOT_FOUND
    path = os.path.abspath(path)
    if path in logs.offline_dirs:
        return ErrorCode.KAFKA_STORAGE_ERROR
    log = logs.get(topic, number)
    if log is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if os.path.abspath(log.dir.path) == path:
        return ErrorCode.NONE
    logger.warning(
        "%s-%d stays in %s: AlterReplicaLogDirs asked for %s, and this version moves no logs between directories",
        *(topic, number, log.dir.path, path),
    )
    return ErrorCode.INVALID_REQUEST
