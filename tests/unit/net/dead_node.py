"""A cluster of a small broker and of a node that is dead, and in the metadata still."""

from __future__ import annotations

import socket
from typing import Any

from net_fakes import FakeBroker

from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey

Partition = m.MetadataResponse.MetadataResponsePartition


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def metadata_of(broker: FakeBroker, port: int) -> Any:
    """Node 2 leads partition 1 of the topic, and nothing listens at its port."""
    node = m.MetadataResponse.MetadataResponseBroker
    brokers = [node(node_id=1, host=broker.host, port=broker.port), node(node_id=2, host="127.0.0.1", port=port)]
    parts = [
        Partition(partition_index=index, leader_id=index + 1, replica_nodes=[1, 2], isr_nodes=[1, 2])
        for index in range(2)
    ]

    def answer(request: Any, version: int) -> Any:
        topic = m.MetadataResponse.MetadataResponseTopic(name="logs", topic_id=b"l" * 16, partitions=parts)
        wanted = request.topics is None or any(of.name == "logs" for of in request.topics)
        return m.MetadataResponse(brokers=brokers, cluster_id="fake", controller_id=1, topics=[topic] if wanted else [])

    return answer


def offsets(request: Any, version: int) -> Any:
    part, topic = m.ListOffsetsResponse.ListOffsetsPartitionResponse, m.ListOffsetsResponse.ListOffsetsTopicResponse
    return m.ListOffsetsResponse(
        topics=[
            topic(
                name=of.name, partitions=[part(partition_index=p.partition_index, offset=4321) for p in of.partitions]
            )
            for of in request.topics
        ]
    )


def log_dirs(request: Any, version: int) -> Any:
    held, topic = m.DescribeLogDirsResponse.DescribeLogDirsPartition, m.DescribeLogDirsResponse.DescribeLogDirsTopic
    topics = [
        topic(name=of.topic, partitions=[held(partition_index=index, partition_size=5) for index in of.partitions])
        for of in request.topics
    ]
    result = m.DescribeLogDirsResponse.DescribeLogDirsResult(
        log_dir="/d", topics=topics, total_bytes=10, usable_bytes=5
    )
    return m.DescribeLogDirsResponse(results=[result])


def moving(request: Any, version: int) -> Any:
    moves = m.ListPartitionReassignmentsResponse
    part = moves.OngoingPartitionReassignment(
        partition_index=0, replicas=[1, 2], adding_replicas=[2], removing_replicas=[]
    )
    return moves(error_message=None, topics=[moves.OngoingTopicReassignment(name="logs", partitions=[part])])


def make_second_node_dead(broker: FakeBroker) -> None:
    """The broker is node 1 of two from now on, an old one, and answers for what it has of topic `logs`."""
    gone = (ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_CLUSTER)
    broker.versions = [entry for entry in broker.versions if entry.api_key not in gone]
    broker.handlers.update(
        {
            ApiKey.METADATA: metadata_of(broker, closed_port()),
            ApiKey.LIST_OFFSETS: offsets,
            ApiKey.DESCRIBE_LOG_DIRS: log_dirs,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: moving,
            ApiKey.FETCH: lambda request, version: m.FetchResponse(responses=[]),
        }
    )
