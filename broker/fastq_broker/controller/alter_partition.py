"""AlterPartition: what a leader may change of its partition, its ISR and whether it has recovered.

Rules: a leader is the only one who changes what it was told (leader and partition epoch name it). It may know more than this node: then
this node is no controller any more, and says so, or the leader would wait for good (KAFKA-14154). One that knows less has to take what
is new first. Who comes into the ISR is active, and in the epoch in which the leader saw it. A change that completes a reassignment may
make another the leader: it is made, and refused to the asker, who is told by the metadata. The request is only read: the same one may
come again (KAFKA-15353).
Source: ReplicationControlManager.alterPartition, validateAlterPartitionData; KIP-497, KIP-704, KIP-841, KIP-903.
"""

from __future__ import annotations

import logging
from typing import Final

from fastq.errors import ErrorCode
from fastq.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from fastq_broker.controller.elections import RECOVERED, RECOVERING, Election, PartitionChange
from fastq_broker.controller.image import NO_LEADER_CHANGE, PartitionImage, Record, changed_partition
from fastq_broker.controller.topics import Refused
from fastq_broker.controller.view import ControlView, Located
from fastq_broker.log import failures

logger = logging.getLogger(__name__)

ANY_EPOCH: Final = -1
_BROKER_EPOCHS_SINCE = 3

PartitionRequest = AlterPartitionRequest.PartitionData
PartitionResponse = AlterPartitionResponse.PartitionData


def plan_alter_partition(
    view: ControlView, request: AlterPartitionRequest, version: int
) -> tuple[AlterPartitionResponse, list[Record]]:
    """The answer, a result a partition in the order asked for, and the records."""
    try:
        view.check_broker_epoch(request.broker_id, request.broker_epoch)
    except Refused as refused:
        place = f"AlterPartition of broker {request.broker_id}"
        failures.say(logger.info, place, "AlterPartition is refused: %s", refused.message)
        return AlterPartitionResponse(error_code=refused.error, topics=[]), []
    plan = _Plan(view, request.broker_id, version)
    topics = [
        AlterPartitionResponse.TopicData(
            topic_id=topic.topic_id, partitions=[plan.alter(topic.topic_id, item) for item in topic.partitions]
        )
        for topic in request.topics
    ]
    return AlterPartitionResponse(error_code=ErrorCode.NONE, topics=topics), plan.records


class _Plan:
    """One request: what its partitions have become so far."""

    def __init__(self, view: ControlView, asker: int, version: int) -> None:
        self.records: list[Record] = []
        self._view = view
        self._asker = asker
        self._version = version
        self._changed: set[tuple[bytes, int]] = set()

    def alter(self, topic_id: bytes, item: PartitionRequest) -> PartitionResponse:
        try:
            return self._altered(topic_id, item)
        except Refused as refused:
            place = f"AlterPartition of broker {self._asker}"
            failures.say(logger.info, place, "AlterPartition of broker %d is refused: %s", self._asker, refused.message)
            return PartitionResponse(partition_index=item.partition_index, error_code=refused.error)

    def _altered(self, topic_id: bytes, item: PartitionRequest) -> PartitionResponse:
        found = self._found(topic_id, item.partition_index)
        members = self._members(item)
        _check(self._view, self._asker, found, item, members)
        change = PartitionChange(self._view, found)
        if self._view.allows_unclean(found.topic):
            change.election = Election.UNCLEAN
        change.isr = [broker_id for broker_id, _ in members]
        change.recovery = item.leader_recovery_state
        record = change.build()
        partition = found.partition
        if record is not None:
            self.records.append(record)
            self._changed.add((topic_id, found.number))
            partition = changed_partition(partition, record)
            if record.leader not in (self._asker, NO_LEADER_CHANGE):
                raise Refused(
                    ErrorCode.NEW_LEADER_ELECTED,
                    f"the change completes the reassignment of {found}, which broker {record.leader} leads now",
                )
        return _response(found.number, partition)

    def _members(self, item: PartitionRequest) -> list[tuple[int, int]]:
        """The new ISR, each broker with its epoch."""
        if self._version < _BROKER_EPOCHS_SINCE:
            return [(broker_id, ANY_EPOCH) for broker_id in item.new_isr]
        return [(member.broker_id, member.broker_epoch) for member in item.new_isr_with_epochs]

    def _found(self, topic_id: bytes, number: int) -> Located:
        topic = self._view.image.topic_of_id(topic_id)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic of the id {topic_id.hex()}")
        if not 0 <= number < len(topic.partitions):
            raise Refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{topic.name} has {len(topic.partitions)} partitions, and none of the number {number}",
            )
        if (topic_id, number) in self._changed:
            raise Refused(ErrorCode.INVALID_UPDATE_VERSION, f"the request changes {topic.name}-{number} twice")
        return Located(topic, number)


def _response(number: int, partition: PartitionImage) -> PartitionResponse:
    return PartitionResponse(
        partition_index=number,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )


def _check(
    view: ControlView, asker: int, found: Located, item: PartitionRequest, members: list[tuple[int, int]]
) -> None:
    """Refuse what the asker may not change, in Kafka's order."""
    partition = found.partition
    _check_epochs(asker, found, item)
    isr = [broker_id for broker_id, _ in members]
    problem = ""
    if not isr or len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas):
        problem = f"are not some of its replicas {list(partition.replicas)}, each once"
    elif partition.leader not in isr:
        problem = f"are without its leader {partition.leader}"
    elif item.leader_recovery_state not in (RECOVERED, RECOVERING):
        problem = f"come with the recovery state {item.leader_recovery_state}, which is none"
    elif item.leader_recovery_state == RECOVERING and len(isr) > 1:
        problem = "are more than the leader, which is still recovering from an unclean election"
    elif item.leader_recovery_state == RECOVERING and partition.leader_recovery_state == RECOVERED:
        problem = "come with RECOVERING, though the leader has recovered"
    if problem:
        raise Refused(ErrorCode.INVALID_REQUEST, f"the members of the ISR of {found}, {isr}, {problem}")
    for broker_id, epoch in members:
        _check_member(view, found, broker_id, epoch)


def _check_epochs(asker: int, found: Located, item: PartitionRequest) -> None:
    partition = found.partition
    if item.leader_epoch > partition.leader_epoch or item.partition_epoch > partition.partition_epoch:
        raise Refused(
            ErrorCode.NOT_CONTROLLER,
            f"{found} is in leader epoch {partition.leader_epoch} and partition epoch {partition.partition_epoch} here, and the asker "
            f"knows {item.leader_epoch} and {item.partition_epoch}: another controller is active",
        )
    if item.leader_epoch < partition.leader_epoch:
        raise Refused(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"{found} is in leader epoch {partition.leader_epoch}, the asker in {item.leader_epoch}",
        )
    if asker != partition.leader:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{found} is led by broker {partition.leader}")
    if item.partition_epoch < partition.partition_epoch:
        raise Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{found} is in partition epoch {partition.partition_epoch}, the asker knows {item.partition_epoch}",
        )


def _check_member(view: ControlView, found: Located, broker_id: int, epoch: int) -> None:
    broker = view.image.brokers.get(broker_id)
    problem = ""
    if broker is None:
        problem = "is not registered"
    elif broker.in_controlled_shutdown:
        problem = "shuts down"
    elif broker.fenced:
        problem = "is fenced"
    elif epoch not in (ANY_EPOCH, broker.epoch):
        problem = f"is in epoch {broker.epoch}, and was seen in {epoch}"
    if problem:
        raise Refused(ErrorCode.INELIGIBLE_REPLICA, f"broker {broker_id} cannot be in the ISR of {found}: it {problem}")
