"""AssignReplicasToDirs: a broker says in which log directory it has put its replicas.

Rules: a directory of a replica is no leadership's matter, so no leader epoch grows. Where the broker says that a replica lies in a
directory that has failed in the meantime, it has lost that replica: it leaves the ISR, too.
Source: ReplicationControlManager.handleAssignReplicasToDirs; KIP-858.
"""

from __future__ import annotations

from fastq.errors import ErrorCode
from fastq.protocol.messages import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from fastq_broker.controller import view as control
from fastq_broker.controller.elections import PartitionChange, partition_changes
from fastq_broker.controller.image import Record
from fastq_broker.controller.topics import Refused
from fastq_broker.controller.view import ControlView, Located

Directory = AssignReplicasToDirsResponse.DirectoryData
Topic = AssignReplicasToDirsResponse.TopicData
Partition = AssignReplicasToDirsResponse.PartitionData


def plan_assignments(
    view: ControlView, request: AssignReplicasToDirsRequest
) -> tuple[AssignReplicasToDirsResponse, list[Record]]:
    """The answer, a result a partition in the order asked for, and the records."""
    broker_id = request.broker_id
    if view.metadata_version < control.DIRECTORIES:
        return AssignReplicasToDirsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, directories=[]), []
    try:
        view.check_broker_epoch(broker_id, request.broker_epoch)
    except Refused as refused:
        return AssignReplicasToDirsResponse(error_code=refused.error, directories=[]), []
    records: list[Record] = []
    lost: list[tuple[bytes, int]] = []
    directories = []
    for directory in request.directories:
        offline = not view.is_online(broker_id, directory.id)
        topics = []
        for topic in directory.topics:
            results = []
            for item in topic.partitions:
                code = ErrorCode.NONE
                try:
                    found = _found(view, broker_id, topic.topic_id, item.partition_index)
                    change = PartitionChange(view, found)
                    change.directories[broker_id] = directory.id
                    record = change.build()
                    if record is not None:
                        records.append(record)
                    if offline:
                        lost.append((topic.topic_id, item.partition_index))
                except Refused as refused:
                    code = refused.error
                results.append(Partition(partition_index=item.partition_index, error_code=code))
            topics.append(Topic(topic_id=topic.topic_id, partitions=results))
        directories.append(Directory(id=directory.id, topics=topics))
    after = view.after(records) if lost else view
    gone = (Located(after.image.topics_by_id[topic_id], number) for topic_id, number in dict.fromkeys(lost))
    records += partition_changes(after, gone, leaving=broker_id)
    return AssignReplicasToDirsResponse(error_code=ErrorCode.NONE, directories=directories), records


def _found(view: ControlView, broker_id: int, topic_id: bytes, number: int) -> Located:
    topic = view.image.topic_of_id(topic_id)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic of the id {topic_id.hex()}")
    if not 0 <= number < len(topic.partitions):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {number}")
    if broker_id not in topic.partitions[number].replicas:
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} has no replica of {topic.name}-{number}")
    return Located(topic, number)
