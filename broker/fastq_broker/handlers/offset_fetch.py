"""OffsetFetch: what groups have committed, for named partitions or (null topics) all of a group; many groups from version 8 on.

Rules: what was never committed is offset -1 without an error, and so is everything of a group that does not exist. With
`require_stable` (KIP-447) an offset that an open transaction is about to commit is UNSTABLE_OFFSET_COMMIT. Version 10 has topic ids.
The answer waits until all that was written before is safe: on disk under durability=fsync, on all in sync among several nodes, however few
they are by now. Where it is not after offsets.commit.timeout.ms, nothing is told of that group. Kafka does so for who asks with
`require_stable`, as its own consumers do, and tells others at once what is committed.
A coordinator that cannot tell says NOT_COORDINATOR, as Kafka's: COORDINATOR_NOT_AVAILABLE ends Java's consumers before 3.9.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.messages import OffsetFetchRequest, OffsetFetchResponse
from fastq.protocol.uuid import ZERO_UUID
from fastq.values import NamedTuple
from fastq_broker.coordinator.errors import store_error
from fastq_broker.groups.group import Committer
from fastq_broker.groups.offsets import CommittedOffset
from fastq_broker.groups.shard import GroupShard

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 9
VERSIONS = (1, 10)

FIRST_VERSION_WITH_GROUP_ERROR = 2
FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10

NOTHING = CommittedOffset(-1)


class Asked(NamedTuple):
    """A topic that is asked for; `name` None: its id is not known."""

    name: str | None
    topic_id: bytes
    partitions: Sequence[int]


class Fetched(NamedTuple):
    """What is answered for a topic: partition, offset and error."""

    topic: Asked
    offsets: list[tuple[int, CommittedOffset, int]]


def handle(
    context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    """Look offsets up, for one group or many."""
    found = _look_up(context, request)
    one = context.api_version < FIRST_VERSION_WITH_GROUPS
    group_ids = [request.group_id] if one else [group.group_id for group in request.groups]

    def respond(errors: Mapping[str, KafkaError]) -> OffsetFetchResponse:
        """Each group for itself. What was looked up is told, as more may have been committed since, and not be safe."""
        refusals = {group_id: store_error(error) for group_id, error in errors.items()}
        if one:
            return _one_group(context, request, refusals[request.group_id]) if refusals else found
        for position, group in enumerate(request.groups):
            if group.group_id in refusals:
                refusal = refusals[group.group_id]
                found.groups[position] = _group(context, group, request.require_stable, refusal)
        return found

    return context.groups.once_durable(group_ids, respond)


def _look_up(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """What is committed."""
    if context.api_version < FIRST_VERSION_WITH_GROUPS:
        return _one_group(context, request)
    return OffsetFetchResponse(
        topics=[], groups=[_group(context, group, request.require_stable) for group in request.groups]
    )


def _one_group(context: RequestContext, request: OffsetFetchRequest, refusal: int = 0) -> OffsetFetchResponse:
    asked = None
    if request.topics is not None:
        asked = [Asked(topic.name, ZERO_UUID, topic.partition_indexes) for topic in request.topics]
    error, fetched = _fetch(context, request.group_id, Committer(), asked, request.require_stable, refusal)
    if error and context.api_version < FIRST_VERSION_WITH_GROUP_ERROR:
        fetched = [Fetched(topic, [(number, NOTHING, error) for number in topic.partitions]) for topic in asked or ()]
    return OffsetFetchResponse(
        error_code=error,
        groups=[],
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name or "",
                partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=number,
                        committed_offset=found.offset,
                        committed_leader_epoch=found.leader_epoch,
                        metadata=found.metadata,
                        error_code=code,
                    )
                    for number, found, code in offsets
                ],
            )
            for topic, offsets in fetched
        ],
    )


def _group(
    context: RequestContext,
    group: OffsetFetchRequest.OffsetFetchRequestGroup,
    require_stable: bool,
    refusal: int = 0,
) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    image = context.image
    asked: list[Asked] | None = None
    if group.topics is not None:
        asked = []
        for topic in group.topics:
            name: str | None = topic.name
            if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
                found = image.topic_of_id(topic.topic_id)
                name = None if found is None else found.name
            asked.append(Asked(name, topic.topic_id, topic.partition_indexes))
    committer = Committer(group.member_id or "", group.member_epoch)
    error, fetched = _fetch(context, group.group_id, committer, asked, require_stable, refusal)
    return OffsetFetchResponse.OffsetFetchResponseGroup(
        group_id=group.group_id, error_code=error, topics=[_topic_response(item) for item in fetched]
    )


def _topic_response(fetched: Fetched) -> OffsetFetchResponse.OffsetFetchResponseTopics:
    return OffsetFetchResponse.OffsetFetchResponseTopics(
        name=fetched.topic.name or "",
        topic_id=fetched.topic.topic_id,
        partitions=[
            OffsetFetchResponse.OffsetFetchResponsePartitions(
                partition_index=number,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                metadata=found.metadata,
                error_code=code,
            )
            for number, found, code in fetched.offsets
        ],
    )


def _fetch(
    context: RequestContext,
    group_id: str,
    committer: Committer,
    asked: list[Asked] | None,
    require_stable: bool,
    refusal: int,
) -> tuple[int, list[Fetched]]:
    """An error for the whole group, or its offsets."""
    try:
        shard = context.groups.shard(group_id)
        error = refusal or shard.fetch_error(group_id, committer)
    except KafkaError as unavailable:
        error = unavailable.code
    if error:
        return ErrorCode.NOT_COORDINATOR if error == ErrorCode.COORDINATOR_NOT_AVAILABLE else error, []
    if asked is None:
        asked = _all_of(context, shard, group_id)
    return 0, [
        Fetched(
            topic, [(number, *_lookup(shard, group_id, topic, number, require_stable)) for number in topic.partitions]
        )
        for topic in asked
    ]


def _all_of(context: RequestContext, shard: GroupShard, group_id: str) -> list[Asked]:
    """All partitions that the group has offsets for; with topic ids those of topics that are still there."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in shard.committed(group_id):
        by_topic.setdefault(topic, []).append(partition)
    image = context.image
    asked = []
    for name, partitions in by_topic.items():
        known = image.topic(name)
        if known is not None or context.api_version < FIRST_VERSION_WITH_TOPIC_IDS:
            asked.append(Asked(name, ZERO_UUID if known is None else known.topic_id, sorted(partitions)))
    return asked


def _lookup(
    shard: GroupShard, group_id: str, topic: Asked, partition: int, require_stable: bool
) -> tuple[CommittedOffset, int]:
    if topic.name is None:
        return NOTHING, ErrorCode.UNKNOWN_TOPIC_ID
    if require_stable and shard.offsets.is_pending(group_id, topic.name, partition):
        return NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT
    return shard.committed_in(group_id, topic.name, partition) or NOTHING, 0
