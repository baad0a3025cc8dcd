"""A broker that fetches from a mirror's source by itself, and the source answers what no broker should: nothing of it is appended, each
partition is told its own error, and the next pull goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from net_fakes import FakeBroker
from raw_kafka import RawConnection

from fastq import Admin, TopicPartition
from fastq._native.records import build_batch
from fastq.errors import ErrorCode
from fastq.mirror.config import Side
from fastq.mirror.same import MIRROR_SOURCE
from fastq.mirror.target_writer import Ask, TargetWriter
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import FetchResponse, MetadataResponse, MirrorPullRequest
from fastq.testing import Broker

NAME = "logs"
THERE = NAME.encode().ljust(16, b".")
SOURCE = f"A/fake/{THERE.hex()}"
END = 10
"""Where each partition of the source ends."""
LIES_AT = {"magic": 16, "length": 8, "codec": 22, "last delta": 23}


def batch(offset: int, *, records: int = 1, epoch: int = 3) -> bytes:
    values: list[Any] = [(1, None, b"v%d" % (offset + n)) for n in range(records)]
    return bytes(build_batch(values, base_offset=offset, leader_epoch=epoch))


def lying(what: str, lie: bytes, offset: int = 1) -> bytes:
    data = bytearray(batch(offset))
    data[LIES_AT[what] : LIES_AT[what] + len(lie)] = lie
    return bytes(data)


class Source:
    """Two nodes, each of which leads a partition, with the records 0 to END."""

    def __init__(self) -> None:
        self.nodes = [FakeBroker(node_id=1), FakeBroker(node_id=2)]
        self.answer: Callable[[Any], FetchResponse.PartitionData | bytes | None] = self.rest
        self.throttle_ms = 0
        self.released = threading.Event()
        for node in self.nodes:
            node.handlers[ApiKey.METADATA] = lambda *_: self._metadata()
            node.handlers[ApiKey.FETCH] = lambda request, _: self._fetch(request)

    def _metadata(self) -> MetadataResponse:
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port)
            for node in self.nodes
        ]
        partitions = [
            MetadataResponse.MetadataResponsePartition(partition_index=index, leader_id=node.node_id, leader_epoch=0)
            for index, node in enumerate(self.nodes)
        ]
        topic = MetadataResponse.MetadataResponseTopic(name=NAME, topic_id=THERE, partitions=partitions)
        return MetadataResponse(cluster_id="fake", controller_id=1, brokers=brokers, topics=[topic])

    def _fetch(self, request: Any) -> Any:
        (part,) = request.topics[0].partitions
        answer = self.answer(part) if part.partition == 0 else self.rest(part)
        if answer is None:
            self.released.wait()  # a broker answers what comes on a connection in order
        if answer is None or isinstance(answer, bytes):
            return answer
        topic = FetchResponse.FetchableTopicResponse(topic_id=THERE, partitions=[answer])
        is_empty = self.throttle_ms and self.answer == self.rest  # as Apache Kafka throttles
        return FetchResponse(throttle_time_ms=self.throttle_ms, responses=[] if is_empty else [topic])

    def of(self, part: Any, records: bytes | None, **more: Any) -> FetchResponse.PartitionData:
        fields = {"partition_index": part.partition, "high_watermark": END, "log_start_offset": 0, **more}
        return FetchResponse.PartitionData(records=records, **fields)

    def rest(self, part: Any) -> FetchResponse.PartitionData:
        return self.of(part, b"".join(batch(offset) for offset in range(part.fetch_offset, END)))

    def close(self) -> None:
        self.released.set()
        for node in self.nodes:
            node.close()


@pytest.fixture
def source() -> Iterator[Source]:
    with closing(Source()) as made:
        yield made


@pytest.fixture
def target(source: Source) -> Iterator[Broker]:
    address = {"mirror.pull.A.bootstrap.servers": source.nodes[1].address}
    with Broker(in_memory=True, config=address) as broker:
        yield broker


def made(target: Broker, name: str = "t") -> bytes:
    """The id of a topic whose two partitions end at offset 1."""
    side = Side("B", {"bootstrap_servers": target.bootstrap_servers}, {}, {})
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin, closing(TargetWriter(side)) as writer:
        topic_id = admin.create_topic(name, 2, configs={MIRROR_SOURCE: SOURCE}).topic_id
        for index in (0, 1):
            tp = TopicPartition(name, index)
            ask = Ask(topic_id, SOURCE, 0, records=memoryview(bytearray(batch(0))))
            assert writer.ask_until({tp: ask}, lambda: None, 20)[tp].error is None
    return topic_id


def pulled(
    target: Broker, topic_id: bytes, indexes: tuple[int, ...] = (0, 1), timeout_ms: int = 4_000, offset: int = 1
) -> list[Any]:
    wanted = [MirrorPullRequest.PulledPartition(index=index, offset=offset, epoch=3) for index in indexes]
    topic = MirrorPullRequest.PulledTopic(topic_id=topic_id, source=SOURCE, name=NAME, partitions=wanted)
    with RawConnection(target.bootstrap_servers) as raw:
        answer = raw.call(MirrorPullRequest(timeout_ms=timeout_ms, bytes_max=1 << 20, topics=[topic]), 0)
    assert answer.error_code == 0, answer.error_message
    return list(answer.topics[0].partitions)


WRONG: dict[str, tuple[bytes | None, dict[str, Any], int, int]] = {
    "a checksum": (lying("last delta", b"\0\0\0\1"), {}, ErrorCode.CORRUPT_MESSAGE, 0),
    "garbage": (os.urandom(16) + b"\1" + os.urandom(200), {}, 0, ErrorCode.UNKNOWN_SERVER_ERROR),
    "an older format": (lying("magic", b"\1"), {}, 0, ErrorCode.UNKNOWN_SERVER_ERROR),
    "no length": (lying("length", bytes(4)), {}, 0, ErrorCode.UNKNOWN_SERVER_ERROR),
    "a length below zero": (lying("length", b"\xff" * 4), {}, 0, ErrorCode.UNKNOWN_SERVER_ERROR),
    "a length beyond the end": (lying("length", b"\x7f\xff\xff\xff"), {}, 0, 0),
    "an unknown codec": (lying("codec", b"\7"), {}, ErrorCode.CORRUPT_MESSAGE, 0),
    "an end before the begin": (lying("last delta", b"\xff" * 4), {}, 0, ErrorCode.CORRUPT_MESSAGE),
    "a batch that is cut off": (batch(1)[:-1], {}, 0, 0),
    "what is there": (batch(0), {}, 0, ErrorCode.CORRUPT_MESSAGE),
    "what begins before": (batch(0, records=3), {}, ErrorCode.INVALID_RECORD, 0),
    "twice the same": (batch(1) + batch(1), {}, ErrorCode.INVALID_RECORD, 0),
    "what descends": (batch(5) + batch(1), {}, ErrorCode.INVALID_RECORD, 0),
    "offsets below zero": (batch(-5), {}, 0, ErrorCode.CORRUPT_MESSAGE),
    "offsets of no cluster": (batch((1 << 62) + 5), {}, ErrorCode.INVALID_RECORD, 0),
    "nothing": (None, {}, 0, 0),
    "another partition": (batch(1), {"partition_index": 7}, 0, ErrorCode.UNKNOWN_SERVER_ERROR),
    "an unknown error": (None, {"error_code": 999}, 0, ErrorCode.UNKNOWN_SERVER_ERROR),
    "an error that is its own": (None, {"error_code": -1}, 0, ErrorCode.UNKNOWN_SERVER_ERROR),
    "an end of its log before it": (None, {"high_watermark": -1}, 0, 0),
}


def test_what_no_source_should_answer_is_not_appended_and_harms_no_other(source: Source, target: Broker) -> None:
    for what, (records, more, code, source_code) in WRONG.items():
        source.answer = lambda part, records=records, more=more: source.of(part, records, **more)  # type: ignore[misc]
        topic_id = made(target, what.replace(" ", "-"))
        one, other = pulled(target, topic_id)
        assert (one.error_code, one.source_error) == (code, source_code), (what, one)
        assert (one.next_offset, one.log_end_offset, one.records) == (1, 1, 0), what
        assert (other.error_code, other.source_error, other.next_offset) == (0, 0, END), what
        source.answer = source.rest
        (again,) = pulled(target, topic_id, (0,))
        assert (again.error_code, again.source_error, again.log_end_offset) == (0, 0, END), what
    assert "Traceback" not in target.log


@pytest.mark.parametrize("answer", [None, b"\x05\xff\xff\xff", b"\0\0\1\0\0"], ids=["silent", "a huge frame", "half"])
def test_a_node_of_the_source_that_does_not_answer_keeps_no_other_from_it(
    source: Source, target: Broker, answer: bytes | None
) -> None:
    source.answer = lambda _: answer
    one, other = pulled(target, made(target), timeout_ms=1_000)
    assert (one.error_code, one.source_error, one.next_offset) == (0, ErrorCode.NETWORK_EXCEPTION, 1)
    assert "node 1" in one.error_message and "did not answer" in one.error_message
    assert (other.error_code, other.source_error, other.next_offset) == (0, 0, END)


def test_for_an_answer_of_more_than_a_node_takes_there_is_no_memory_taken(source: Source, target: Broker) -> None:
    source.answer = lambda _: b"\x1f\xff\xff\xff"  # which a client takes by itself
    one, other = pulled(target, made(target))
    assert (one.error_code, one.source_error, one.next_offset) == (0, ErrorCode.UNKNOWN_SERVER_ERROR, 1)
    assert "at most 104857600 are accepted" in one.error_message
    assert (other.error_code, other.source_error, other.next_offset) == (0, 0, END)


def test_a_source_that_is_another_cluster_is_named_by_the_beginning_of_its_id(source: Source, target: Broker) -> None:
    def other() -> MetadataResponse:
        return MetadataResponse(cluster_id="x" * 30_000, brokers=metadata.brokers, topics=metadata.topics)

    metadata = source._metadata()
    for node in source.nodes:
        node.handlers[ApiKey.METADATA] = lambda *_: other()
    for part in pulled(target, made(target)):
        assert (part.source_error, part.next_offset) == (ErrorCode.INCONSISTENT_CLUSTER_ID, 1)
        assert "'fake'" in part.error_message and "'xxx" in part.error_message and len(part.error_message) < 1_000


def test_a_connection_that_a_quota_of_the_source_mutes_is_not_kept(source: Source, target: Broker) -> None:
    topic_id = made(target)
    source.throttle_ms = 60_000
    source.answer = lambda part: source.of(part, batch(1), high_watermark=1 << 40)
    (part,) = pulled(target, topic_id, (0,))
    assert (part.error_code, part.source_error) == (0, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    assert (part.next_offset, part.log_end_offset) == (2, 2)
    before = source.nodes[0].accepted
    pulled(target, topic_id, (0,))  # from where it no longer is: nobody is asked
    assert source.nodes[0].accepted == before
    source.answer = source.rest
    (part,) = pulled(target, topic_id, (0,), offset=2)
    assert (part.error_code, part.source_error, part.next_offset) == (0, ErrorCode.THROTTLING_QUOTA_EXCEEDED, 2)
    assert "keeps it from answering for 60000 ms" in part.error_message
    source.throttle_ms = 0
    (part,) = pulled(target, topic_id, (0,), offset=2)
    assert (part.error_code, part.source_error, part.next_offset) == (0, 0, END)
    assert source.nodes[0].accepted == before + 2
