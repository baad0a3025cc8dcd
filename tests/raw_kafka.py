"""A Kafka client of a few lines for tests: generated messages over a blocking socket, nothing retried, nothing hidden."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from fastq._native.records import build_batch
from fastq.protocol.frames import decode_response, encode_request
from fastq.protocol.messages import CreateTopicsRequest, FetchRequest, MetadataRequest, ProduceRequest


class RawConnection:
    """One connection; requests may be sent ahead of reading responses. `address`: the node's, for others to the same one."""

    replicas: tuple[int, ...] = ()
    """Where the topics that it creates are to be, the leader first; empty: the broker says."""

    def __init__(self, address: str, timeout: float = 20.0) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host.strip("[]"), int(port)), timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next_id = 1
        self._sent: list[tuple[int, int]] = []

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send(self, request: Any, version: int, *, expects_response: bool = True) -> None:
        self.sock.sendall(encode_request(self._next_id, "raw", request, version))
        if expects_response:
            self._sent.append((request.API_KEY, version))
        self._next_id += 1

    def receive(self) -> Any:
        key, version = self._sent.pop(0)
        return decode_response(self.frame(), key, version)[1]

    def wait_for_topic(self, name: str) -> None:
        """Until what has been created can be used: with one broker it can."""

    def call(self, request: Any, version: int) -> Any:
        self.send(request, version)
        return self.receive()

    def frame(self) -> bytes:
        """One frame without its size. EOFError when the broker closes the connection first."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def closed(self) -> bool:
        """Whether the broker has closed the connection, waiting for that up to the time-out."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.sock.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise EOFError(f"closed after {len(data)} of {size} bytes")
            data += piece
        return bytes(data)


def batch(*values: bytes, timestamp_ms: int | None = None, key: bytes | None = None, **settings: Any) -> bytes:
    """A record batch as a producer sends it."""
    now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    return bytes(build_batch([(now, key, value, []) for value in values], **settings))


def create_topic(connection: RawConnection, name: str, partitions: int = 1, **configs: str) -> bytes:
    """Create a topic, config names with underscores for dots; answers its id."""
    placed = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(connection.replicas))
        for index in range(partitions if connection.replicas else 0)
    ]
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=-1 if placed else partitions,
        replication_factor=-1 if placed else 1,
        assignments=placed,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    (result,) = connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7).topics
    assert result.error_code == 0, result
    connection.wait_for_topic(name)
    topic_id: bytes = result.topic_id
    return topic_id


def topic_id_of(connection: RawConnection, name: str) -> bytes:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
    (topic,) = connection.call(request, 12).topics
    topic_id: bytes = topic.topic_id
    return topic_id


def produce_request(
    topic: str | bytes, records: bytes | None, *, partition: int = 0, acks: int = -1, **fields: Any
) -> ProduceRequest:
    """One batch for one partition; the topic by name or, as bytes, by id."""
    data = ProduceRequest.PartitionProduceData(index=partition, records=records)
    named = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
    return ProduceRequest(
        acks=acks,
        timeout_ms=5000,
        topic_data=[ProduceRequest.TopicProduceData(**named, partition_data=[data])],
        **fields,
    )


def produce(
    connection: RawConnection, topic: str | bytes, records: bytes | None, version: int = 9, **fields: Any
) -> Any:
    """Produce one batch; answers the partition's response."""
    response = connection.call(produce_request(topic, records, **fields), version)
    return response.responses[0].partition_responses[0]


def fetch_request(
    topic: str | bytes, offset: int, *, partition: int = 0, max_wait_ms: int = 0, partition_max_bytes: int = 1 << 20,
    current_leader_epoch: int = -1, last_fetched_epoch: int = -1, **fields: Any,
) -> FetchRequest:  # fmt: skip
    """A fetch of one partition, without a session unless `session_epoch` says so."""
    asked = FetchRequest.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes,
        current_leader_epoch=current_leader_epoch, last_fetched_epoch=last_fetched_epoch,
    )  # fmt: skip
    named = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
    fields = {"min_bytes": 1, "max_bytes": 1 << 26, "session_epoch": -1, **fields}
    return FetchRequest(
        max_wait_ms=max_wait_ms, topics=[FetchRequest.FetchTopic(**named, partitions=[asked])], **fields
    )


def fetch(connection: RawConnection, topic: str | bytes, offset: int, version: int = 12, **fields: Any) -> Any:
    """Fetch one partition; answers the partition's response."""
    response = connection.call(fetch_request(topic, offset, **fields), version)
    assert response.error_code == 0
    return response.responses[0].partitions[0]
