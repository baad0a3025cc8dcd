"""Errors that mean "not here" tell where instead, from the versions on that can (KIP-951)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.image import BrokerImage, Endpoint, MetadataImage, PartitionImage, TopicImage
from fastq_broker.fetch_session import FetchSessionCache
from fastq_broker.handlers import fetch, produce
from fastq_broker.replicas import Replica, ReplicaTable

from fastq._native.records import build_batch
from fastq._native.wire import Writer
from fastq.protocol.frames import decode_response
from fastq.protocol.messages import FetchRequest, ProduceRequest

ID = bytes(range(16))
ADDRESSES = (Endpoint("OTHER", "no", 1, 0), Endpoint("INSIDE", "two.example", 9094, 0))
NODE_2 = BrokerImage(2, 5, ID, ADDRESSES, (), "r", False, False, ())


def broker() -> Any:
    """Node 1 with partition 0, led by node 2, and partition 1, which nobody leads."""
    partitions = tuple(PartitionImage(leader, 7, 0, (1, 2), (2,), ()) for leader in (2, -1))
    topic = TopicImage("logs", ID, partitions)
    image = MetadataImage(brokers={2: NODE_2}, topics_by_name={"logs": topic}, topics_by_id={ID: topic})
    replicas = ReplicaTable(node_id=1)
    for number, partition in enumerate(partitions):
        log: Any = SimpleNamespace(on_advance=lambda callback: None)
        replica = Replica(log, "logs", ID, number)
        replica.leader_id, replica.leader_epoch = partition.leader, 7
        replicas.add(replica)
    return SimpleNamespace(
        node_id=1,
        clock=lambda: 0,
        monotonic_ms=lambda: 0,
        config=BrokerConfig.from_mapping({}),
        image=image,
        fetch_sessions=FetchSessionCache(10),
        replicas=replicas,
        router=SimpleNamespace(partition_failed=lambda api_key, code: None, counts_fetches=False),
    )


def answer(handler: Any, request: Any, version: int, listener: str = "INSIDE") -> Any:
    """Through a handler of raw frames, as bytes both ways."""
    writer = Writer()
    request.encode(writer, version)
    body = bytearray(writer.getvalue())
    connection: Any = SimpleNamespace(listener=listener, peer=("", 0))
    parts = handler.handle_frame(connection, broker(), body, (handler.API_KEY, version, 3, None, 0, len(body)))
    frame = parts if isinstance(parts, bytes) else b"".join(parts)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, response = decode_response(frame[4:], handler.API_KEY, version)
    assert correlation_id == 3
    return response


def of_topic(version: int) -> dict[str, Any]:
    return {"topic_id": ID} if version >= 13 else {}


@pytest.mark.parametrize("version", range(produce.VERSIONS[0], produce.VERSIONS[1] + 1))
def test_produce_tells_the_leader_from_version_10_on(version: int) -> None:
    named = of_topic(version) or {"name": "logs"}
    records = bytes(build_batch([(0, None, b"x", [])]))
    data = [ProduceRequest.PartitionProduceData(index=index, records=records) for index in (0, 1, 5)]
    request = ProduceRequest(
        acks=1, timeout_ms=1, topic_data=[ProduceRequest.TopicProduceData(partition_data=data, **named)]
    )
    response = answer(produce, request, version)
    partitions = response.responses[0].partition_responses
    assert [(partition.index, partition.error_code) for partition in partitions] == [(0, 6), (1, 6), (5, 3)]
    assert all(partition.base_offset == -1 for partition in partitions)
    leaders = [(each.current_leader.leader_id, each.current_leader.leader_epoch) for each in partitions]
    told = version >= 10
    assert leaders == [(2, 7) if told else (-1, -1), (-1, -1), (-1, -1)]
    nodes = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
    assert nodes == ([(2, "two.example", 9094, "r")] if told else [])


@pytest.mark.parametrize("version", range(12, fetch.VERSIONS[1] + 1))
def test_fetch_tells_the_leader_from_version_16_on(version: int) -> None:
    named = of_topic(version) or {"topic": "logs"}
    asked = [
        FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000, current_leader_epoch=-1)
        for index in (0, 1, 5)
    ]
    request = FetchRequest(
        max_wait_ms=1000, min_bytes=1, session_epoch=-1, topics=[FetchRequest.FetchTopic(partitions=asked, **named)]
    )
    response = answer(fetch, request, version)
    partitions = response.responses[0].partitions
    assert [(partition.partition_index, partition.error_code) for partition in partitions] == [(0, 6), (1, 6), (5, 3)]
    leaders = [(each.current_leader.leader_id, each.current_leader.leader_epoch) for each in partitions]
    told = version >= 16
    assert leaders == [(2, 7) if told else (-1, -1), (-1, -1), (-1, -1)]
    nodes = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
    assert nodes == ([(2, "two.example", 9094, "r")] if told else [])


def test_a_leader_without_the_listener_of_the_client_has_no_address() -> None:
    asked = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=1000, session_epoch=-1, topics=[FetchRequest.FetchTopic(topic_id=ID, partitions=[asked])]
    )
    response = answer(fetch, request, 17, "ELSEWHERE")
    assert response.responses[0].partitions[0].current_leader.leader_id == 2
    assert response.node_endpoints == []
