"""A broker that is alone with its controller: what it registers as, and what it leads.

Rules: nobody else is there to be asked, and nobody is waited for. It leads what it has all committed records of: where it is in sync, or
eligible, or was the last that was. What several nodes do is planned in `brokers` and `elections`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fastq.protocol.messages import PartitionChangeRecord, RegisterBrokerRecord
from fastq.protocol.uuid import random_uuid
from fastq_broker.config import Listener
from fastq_broker.controller import features
from fastq_broker.controller.image import NO_LEADER, MetadataDelta, MetadataImage, PartitionImage, Record

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


def begun(image: MetadataImage, bootstrap: Callable[[], Iterable[Record]]) -> MetadataImage:
    """What this node begins with: the image, in a new cluster with the records that it is formatted with, which are read only then."""
    if features.METADATA_VERSION in image.features:
        return image
    planned = MetadataDelta(image)
    for record in bootstrap():
        planned.replay(record)
    return planned.apply(image.offset, image.epoch, image.timestamp_ms)


def registration(
    node_id: int, listeners: Sequence[Listener], epoch: int, *, rack: str | None, directories: Iterable[bytes]
) -> RegisterBrokerRecord:
    """This start of the broker, fenced."""
    return RegisterBrokerRecord(
        broker_id=node_id,
        incarnation_id=random_uuid(),
        broker_epoch=epoch,
        end_points=[
            RegisterBrokerRecord.BrokerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=SECURITY_PROTOCOLS[listener.security_protocol],
            )
            for listener in listeners
        ],
        features=[
            RegisterBrokerRecord.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in features.SUPPORTED.items()
        ],
        rack=rack,
        fenced=True,
        log_dirs=sorted(directories),
    )


def elections(image: MetadataImage, node_id: int, *, bump: bool) -> list[Record]:
    """Changes that make the node the leader of its partitions that have none, or (`bump`) begin a new epoch in all."""
    return [
        election(topic.topic_id, number, partition, node_id)
        for topic in image.topics_by_name.values()
        for number, partition in enumerate(topic.partitions)
        if may_lead(partition, node_id) and (bump or partition.leader == NO_LEADER)
    ]


def may_lead(partition: PartitionImage, node_id: int) -> bool:
    """Whether the node has what was committed: it is in sync, or eligible, or the last that was."""
    if partition.leader not in (NO_LEADER, node_id):
        return False
    if node_id in partition.isr or node_id in partition.eligible_leader_replicas:
        return True
    nobody = not partition.isr and not partition.eligible_leader_replicas
    return nobody and partition.last_known_elr == (node_id,)


def election(topic_id: bytes, number: int, partition: PartitionImage, node_id: int) -> PartitionChangeRecord:
    """The node leads the partition, alone in sync."""
    record = PartitionChangeRecord(partition_id=number, topic_id=topic_id, leader=node_id)
    if partition.isr != (node_id,):
        record.isr = [node_id]
    if partition.eligible_leader_replicas:
        record.eligible_leader_replicas = []
    if partition.last_known_elr:
        record.last_known_elr = []
    return record
