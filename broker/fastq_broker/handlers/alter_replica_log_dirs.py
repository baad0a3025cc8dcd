"""AlterReplicaLogDirs (KIP-113): logs of this node are moved to other directories of it.

Rules: the answer says that a move has begun, not that it is over; DescribeLogDirs shows the copy until then. The directory that a log is in
ends its move. A replica that is not here yet is made in that directory when it comes, and the answer is REPLICA_NOT_AVAILABLE all the same.
Codes as ReplicaManager.alterReplicaLogDirs; the response has no place for words, so a line in the log says why.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from fastq_broker.log import failures

if TYPE_CHECKING:
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
                partition_index=number, error_code=_move(context, topic, number, path)
            )
        )
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
    )


def _move(context: RequestContext, topic: str, number: int, path: str) -> int:
    """Begin a move; the error code."""
    logs = context.logs
    directory = next((one for one in logs.dirs if os.path.isabs(path) and one.path == os.path.abspath(path)), None)
    if directory is None:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if directory.offline is not None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if directory.path in logs.cordoned:
        _say(topic, number, f"is not moved to {path}: cordoned.log.dirs has it")
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT
    replica = context.replicas.get(topic, number)
    if replica is None:
        code = context.replicas.missing_error(topic.encode(), number, by_id=False)
        if code == ErrorCode.KAFKA_STORAGE_ERROR:
            return code
        logs.moves.prefer((topic, number), directory)
        return ErrorCode.REPLICA_NOT_AVAILABLE if code == ErrorCode.NOT_LEADER_OR_FOLLOWER else code
    try:
        logs.moves.begin(replica.log, directory)
    except KafkaError as error:
        _say(topic, number, f"stays in {replica.log.dir.path}, although it was to move to {path}: {error}")
        return int(error.code)
    return ErrorCode.NONE


def _say(topic: str, number: int, what: str) -> None:
    failures.say(logger.warning, f"moving {topic}-{number}", "%s-%d %s", topic, number, what)
