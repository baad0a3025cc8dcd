"""OffsetCommit: a group's offsets, by topic name, or by topic id from version 10 on (KIP-848 brought its errors in version 9).

Rules: topics and partitions that the cluster does not have are refused one by one; the rest is committed as one batch.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import KafkaError
from fastq.protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from fastq_broker.groups.group import Committer
from fastq_broker.groups.offsets import TopicPartition
from fastq_broker.groups.shard import Commit

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 8
VERSIONS = (2, 10)

FIRST_VERSION_WITH_TOPIC_IDS = 10
UNKNOWN_TOPIC_OR_PARTITION = 3
UNKNOWN_TOPIC_ID = 100


def handle(
    context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Commit, and answer an error for each partition."""
    names = _topic_names(context, request)
    offsets, refused = _known_partitions(context, request, names)
    respond = partial(_respond, request, names, refused)
    if not offsets:
        return respond({})
    try:
        shard = context.broker.groups.shard(request.group_id)
    except KafkaError as unavailable:
        return respond(dict.fromkeys(((topic, partition) for topic, partition, *_ in offsets), unavailable.code))
    commit = Commit(
        request.group_id,
        Committer(request.member_id, request.generation_id_or_member_epoch, request.group_instance_id),
        offsets,
        context.api_version,
        request.retention_time_ms,
    )
    return context.broker.groups.answer(partial(shard.commit, commit), respond)


def _topic_names(context: RequestContext, request: OffsetCommitRequest) -> list[str | None]:
    """The name of each topic of the request; None for an id that the cluster does not have."""
    if context.api_version < FIRST_VERSION_WITH_TOPIC_IDS:
        return [topic.name for topic in request.topics]
    image = context.broker.controller.image
    found = [image.topic_of_id(topic.topic_id) for topic in request.topics]
    return [None if topic is None else topic.name for topic in found]


def _known_partitions(
    context: RequestContext, request: OffsetCommitRequest, names: list[str | None]
) -> tuple[list[tuple[str, int, int, int, str | None]], dict[TopicPartition, int]]:
    """What can be committed, and the errors of the named partitions that cannot."""
    image = context.broker.controller.image
    offsets: list[tuple[str, int, int, int, str | None]] = []
    refused: dict[TopicPartition, int] = {}
    for topic, name in zip(request.topics, names, strict=True):
        if name is None:
            continue
        for item in topic.partitions:
            if image.partition(name, item.partition_index) is None:
                refused[name, item.partition_index] = UNKNOWN_TOPIC_OR_PARTITION
            else:
                offsets.append(
                    (
                        name,
                        item.partition_index,
                        item.committed_offset,
                        item.committed_leader_epoch,
                        item.committed_metadata,
                    )
                )
    return offsets, refused


def _respond(
    request: OffsetCommitRequest,
    names: list[str | None],
    refused: dict[TopicPartition, int],
    errors: dict[TopicPartition, int],
) -> OffsetCommitResponse:
    codes = {**refused, **errors}
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=item.partition_index,
                        error_code=UNKNOWN_TOPIC_ID if name is None else codes[name, item.partition_index],
                    )
                    for item in topic.partitions
                ],
            )
            for topic, name in zip(request.topics, names, strict=True)
        ]
    )
