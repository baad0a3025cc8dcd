"""Reassignments: another set of replicas for a partition, and back.

Rules: a partition gets all replicas at once, those to come and those to go, with both kinds named; `elections.PartitionChange` takes
away what is to go once what is to come is in sync. A replica is never of both kinds. To ask for other replicas while a partition moves
counts from what it has now: what is asked for is not to go, what is not asked for is, and who has not come in sync yet is still to come.
(Apache Kafka leaves such a list as it was where the new one is empty; the move then never ends, or takes away what was asked for.)
Source: ReplicationControlManager.alterPartitionReassignments, PartitionReassignmentReplicas, PartitionReassignmentRevert; KIP-455, KIP-860.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastq.errors import ErrorCode
from fastq.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponse,
)
from fastq_broker.controller.elections import Election, PartitionChange
from fastq_broker.controller.image import MetadataImage, PartitionImage, Record
from fastq_broker.controller.topics import Refused, check_replicas
from fastq_broker.controller.view import ControlView, Located

PartitionResponse = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


def is_moving(partition: PartitionImage) -> bool:
    """Whether a reassignment is under way."""
    return bool(partition.adding_replicas or partition.removing_replicas)


def plan_reassignments(
    view: ControlView, request: AlterPartitionReassignmentsRequest
) -> tuple[AlterPartitionReassignmentsResponse, list[Record]]:
    """AlterPartitionReassignments: a result a partition, in the order asked for, and the records."""
    records: list[Record] = []
    may_change = request.allow_replication_factor_change
    responses = []
    for topic in request.topics:
        partitions = []
        for item in topic.partitions:
            result = PartitionResponse(partition_index=item.partition_index, error_message=None)
            try:
                found = _found(view.image, topic.name, item.partition_index)
                change = (
                    _cancelled(view, found)
                    if item.replicas is None
                    else _moved(view, found, item.replicas, may_change=may_change)
                )
                record = change.build()
                if record is not None:
                    records.append(record)
            except Refused as refused:
                result.error_code, result.error_message = refused.error, refused.message
            partitions.append(result)
        responses.append(
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=topic.name, partitions=partitions)
        )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change, error_message=None, responses=responses
    ), records


def _found(image: MetadataImage, name: str, number: int) -> Located:
    topic = image.topic(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= number < len(topic.partitions):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}.")
    return Located(topic, number)


def _moved(view: ControlView, found: Located, target: Sequence[int], *, may_change: bool) -> PartitionChange:
    partition = found.partition
    check_replicas(view.image, target, len(target))
    if not may_change:
        _check_factor(found, target)
    removing = sorted(set(partition.replicas) - set(target))
    still_to_come = set(partition.adding_replicas) & set(target)
    change = PartitionChange(view, found)
    change.replicas = [*target, *removing]
    change.removing = removing
    change.adding = sorted(set(target) - set(partition.replicas) | still_to_come)
    return change


def _check_factor(found: Located, target: Sequence[int]) -> None:
    """Refuse another number of replicas than the partition has, or is about to have."""
    partition = found.partition
    factor = len(set(partition.replicas) - set(partition.removing_replicas))
    if factor != len(target):
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {factor} to {len(target)}, which the request does not allow for {found}",
        )


def _cancelled(view: ControlView, found: Located) -> PartitionChange:
    """What the partition had before; where nobody of that is in sync any more, the first of it leads, and records are lost."""
    partition = found.partition
    if not is_moving(partition):
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS.meaning)
    replicas = [replica for replica in partition.replicas if replica not in partition.adding_replicas]
    isr = [replica for replica in partition.isr if replica not in partition.adding_replicas]
    unclean = view.allows_unclean(found.topic)
    if not replicas:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"All replicas of {found} are new: there is nothing to go back to."
        )
    if not isr and not unclean:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert the partition assignment of {found}: {_nobody_left(partition, replicas)}. It would take an unclean leader "
            "election, which the topic does not allow.",
        )
    change = PartitionChange(view, found)
    if unclean:
        change.election = Election.UNCLEAN
    change.isr = isr or replicas[:1]
    change.replicas = replicas
    change.removing = change.adding = ()
    return change


def _nobody_left(partition: PartitionImage, replicas: Sequence[int]) -> str:
    """Why none of the replicas that a partition had before leads it, and which to start: not one that would go."""
    if partition.isr:
        return f"in sync are {list(partition.isr)}, all of them new"
    may_lead = [*partition.eligible_leader_replicas, *partition.last_known_elr]
    start = [replica for replica in may_lead if replica in replicas]
    if may_lead and not start:
        return (
            f"nobody is in sync, and of {may_lead}, which may lead without a loss, all are new; start one of them, and have {replicas} in "
            "sync first"
        )
    return f"nobody is in sync; start a broker that may lead without a loss first (one of {start or replicas})"


def list_reassignments(
    image: MetadataImage, wanted: Iterable[tuple[str, Sequence[int]]] | None
) -> ListPartitionReassignmentsResponse:
    """ListPartitionReassignments: partitions that move, of these (those that do not exist are left out) or of all (None)."""
    if wanted is None:
        wanted = [(topic.name, range(len(topic.partitions))) for topic in image.topics_by_name.values()]
    topics = []
    for name, numbers in wanted:
        partitions = [(number, image.partition(name, number)) for number in numbers]
        moving = [
            ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                partition_index=number,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
            for number, partition in partitions
            if partition is not None and is_moving(partition)
        ]
        if moving:
            topics.append(ListPartitionReassignmentsResponse.OngoingTopicReassignment(name=name, partitions=moving))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)
