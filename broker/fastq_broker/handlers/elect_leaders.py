"""ElectLeaders: who leads on one node is settled (KIP-183, KIP-460): a partition that has a leader needs no election, for another
leader there is nobody.

Rules: the codes are ReplicationControlManager.electLeaders'. Asked for all partitions (null), those that need none are left out.
This node leads what it may since its start; one that it may not lead (it was not in sync when the cluster's directory was taken) stays
without a leader, because an unclean election would lose records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import ElectLeadersRequest, ElectLeadersResponse
from fastq_broker.controller.image import NO_LEADER, MetadataImage

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 43
VERSIONS = (0, 2)

PREFERRED, UNCLEAN = 0, 1

PartitionResult = ElectLeadersResponse.PartitionResult


def handle(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """One result a partition, in the order asked for."""
    image = context.image
    known = request.election_type in (PREFERRED, UNCLEAN)
    wanted = request.topic_partitions
    asked = [(topic.topic, topic.partitions) for topic in wanted or ()]
    if wanted is None and known:
        asked = [(topic.name, list(range(len(topic.partitions)))) for topic in image.topics_by_name.values()]
    results = []
    for topic, partitions in asked:
        found = [_elect(image, request.election_type, topic, number) for number in partitions]
        if wanted is None:
            found = [result for result in found if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        results.append(ElectLeadersResponse.ReplicaElectionResult(topic=topic, partition_result=found))
    code = ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


def _elect(image: MetadataImage, election_type: int, topic: str, number: int) -> PartitionResult:
    """Why nobody is elected."""
    code, words = _reason(image, election_type, topic, number)
    return PartitionResult(partition_id=number, error_code=code, error_message=words)


def _reason(image: MetadataImage, election_type: int, topic: str, number: int) -> tuple[ErrorCode, str]:
    if election_type not in (PREFERRED, UNCLEAN):
        return ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}"
    if image.topic(topic) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}"
    partition = image.partition(topic, number)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{number}"
    settled = partition.leader != NO_LEADER if election_type == UNCLEAN else partition.leader == partition.replicas[0]
    if settled:
        return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    if election_type == PREFERRED:
        return (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader of {topic}-{number}, node {partition.replicas[0]}, is not there",
        )
    return (
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        f"No replica of {topic}-{number} that is there was in sync; this node holds no unclean elections, which lose records",
    )
