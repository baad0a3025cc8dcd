"""DescribeQuorum: the voters of the metadata quorum and how far they are (KIP-595, KIP-853).

Rules: only `__cluster_metadata-0` can be asked for. The leader tells of itself as a voter that is always caught up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import DescribeQuorumRequest, DescribeQuorumResponse
from fastq.protocol.uuid import ZERO_UUID
from fastq_broker.controller.storage import METADATA_TOPIC

if TYPE_CHECKING:
    from fastq_broker.controller import Controller
    from fastq_broker.router import RequestContext

API_KEY = 55
VERSIONS = (0, 2)

FIRST_VERSION_WITH_DIRECTORIES = 2

PartitionData = DescribeQuorumResponse.PartitionData


def handle(context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Answer the state of the quorum; any other partition is unknown here."""
    controller = context.controller
    with_directories = context.api_version >= FIRST_VERSION_WITH_DIRECTORIES
    return DescribeQuorumResponse(
        topics=[
            DescribeQuorumResponse.TopicData(
                topic_name=topic.topic_name,
                partitions=[
                    _partition(controller, topic.topic_name, item.partition_index, with_directories)
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=_nodes(controller) if with_directories else [],
    )


def _partition(controller: Controller, topic: str, number: int, with_directories: bool) -> PartitionData:
    if (topic, number) != (METADATA_TOPIC, 0):
        return PartitionData(
            partition_index=number,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"only {METADATA_TOPIC}-0 can be described",
            current_voters=[],
            observers=[],
        )
    now_ms = controller.clock()
    voter = DescribeQuorumResponse.ReplicaState(
        replica_id=controller.node_id,
        replica_directory_id=controller.quorum.voter_directory if with_directories else ZERO_UUID,
        log_end_offset=controller.quorum.end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return PartitionData(
        partition_index=0,
        leader_id=controller.node_id,
        leader_epoch=controller.epoch,
        high_watermark=controller.quorum.high_watermark,
        current_voters=[voter],
        observers=[],
    )


def _nodes(controller: Controller) -> list[DescribeQuorumResponse.Node]:
    return [
        DescribeQuorumResponse.Node(
            node_id=voter.key.node_id,
            listeners=[
                DescribeQuorumResponse.Listener(name=name, host=place.host, port=place.port)
                for name, place in voter.endpoints.items()
            ],
        )
        for voter in controller.quorum.voters
    ]
