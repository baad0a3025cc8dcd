"""TxnOffsetCommit: offsets that count once the producer's transaction commits (KIP-98, KIP-447).

Rules: the group's partition of `__consumer_offsets` must be in the producer's transaction; version 5 leaves it to the broker to add it
(KIP-890). Clients before version 2 do not know that a coordinator may be loading.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from fastq_broker.controller.topics import OFFSETS_TOPIC
from fastq_broker.coordinator.errors import store_error
from fastq_broker.groups.group import Committer
from fastq_broker.groups.offsets import TopicPartition
from fastq_broker.groups.shard import Commit, CommitEntry
from fastq_broker.transactions.verification import operation

if TYPE_CHECKING:
    from fastq_broker.controller import MetadataImage
    from fastq_broker.router import RequestContext

API_KEY = 28
VERSIONS = (0, 5)

FIRST_VERSION_WITH_LOADING = 2
FIRST_VERSION_ADDING = 5

Codes = dict[TopicPartition, int]


async def handle(context: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    """Write the offsets as part of the transaction."""
    offsets, codes = _known_partitions(context.image, request)
    if offsets:
        refused = await _refusal(context, request)
        # A topic may have gone while the transaction before was ending: its offsets would be those of the next one of its name.
        offsets, codes = _known_partitions(context.image, request)
        if refused:
            codes.update(dict.fromkeys(((topic, number) for topic, number, *_ in offsets), refused))
        elif offsets:
            codes.update(await _commit(context, request, offsets))
    return _respond(request, codes)


def _known_partitions(image: MetadataImage, request: TxnOffsetCommitRequest) -> tuple[list[CommitEntry], Codes]:
    """What can be committed, and the errors of the partitions that cannot."""
    codes: Codes = {}
    offsets: list[CommitEntry] = []
    for topic in request.topics:
        for item in topic.partitions:
            number = item.partition_index
            if image.partition(topic.name, number) is None:
                codes[topic.name, number] = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                metadata = item.committed_metadata
                offsets.append((topic.name, number, item.committed_offset, item.committed_leader_epoch, metadata))
    return offsets, codes


async def _refusal(context: RequestContext, request: TxnOffsetCommitRequest) -> int:
    """Why nothing of it may be committed, 0 when it may; waits for the end of the transaction before."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    version = context.api_version
    try:
        shard = context.groups.shard(request.group_id)
        await context.transactions.check(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            OFFSETS_TOPIC,
            shard.context.partition,
            operation(version, FIRST_VERSION_ADDING),
        )
        context.groups.shard(request.group_id)  # it may have moved meanwhile
    except KafkaError as error:
        code = store_error(error)
        loading = code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return int(ErrorCode.COORDINATOR_NOT_AVAILABLE) if loading and version < FIRST_VERSION_WITH_LOADING else code
    return ErrorCode.NONE


async def _commit(context: RequestContext, request: TxnOffsetCommitRequest, offsets: list[CommitEntry]) -> Codes:
    """The errors of the partitions."""
    shard = context.groups.shard(request.group_id)
    commit = Commit(
        request.group_id,
        Committer(request.member_id, request.generation_id, request.group_instance_id),
        offsets,
        context.api_version,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
    )
    answer = context.groups.answer(partial(shard.commit, commit), Codes)
    return await answer if isinstance(answer, Awaitable) else answer


def _respond(request: TxnOffsetCommitRequest, codes: Codes) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=item.partition_index, error_code=codes[topic.name, item.partition_index]
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
