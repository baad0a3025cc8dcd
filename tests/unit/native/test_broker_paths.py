"""The hand-made Produce and Fetch codecs of the broker against the generated messages, in every version."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fastq._native.fetch_path import PartitionData, decode_fetch, encode_fetch_response
from fastq._native.produce_path import PartitionResponse, decode_produce, encode_produce_response, scan_request
from fastq._native.wire import DecodeError
from fastq.protocol.frames import decode_response, encode_request
from fastq.protocol.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse

FLEXIBLE = bytes([9, 12]) + b"\xff" * 126
LIMIT = 1 << 20


def topic_fields(rng: random.Random, version: int, by_id_from: int, name_field: str) -> dict[str, Any]:
    if version >= by_id_from:
        return {"topic_id": rng.randbytes(16)}
    return {name_field: "t" * rng.randint(1, 200) + str(rng.randint(0, 10**6))}


def raw_topic(message: Any, name_field: str) -> bytes:
    name = getattr(message, name_field)
    return name.encode() if name else message.topic_id


def random_produce(rng: random.Random, version: int) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=rng.choice([None, "", "tx-é"]),
        acks=rng.choice([-1, 0, 1]),
        timeout_ms=rng.randint(-(2**31), 2**31 - 1),
        topic_data=[
            ProduceRequest.TopicProduceData(
                **topic_fields(rng, version, 13, "name"),
                partition_data=[
                    ProduceRequest.PartitionProduceData(
                        index=rng.randint(0, 2**31 - 1),
                        records=rng.choice([None, b"", rng.randbytes(rng.randint(1, 300))]),
                    )
                    for _ in range(rng.randint(0, 3))
                ],
            )
            for _ in range(rng.randint(0, 3))
        ],
    )


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_request_equals_the_generated_message(version: int) -> None:
    rng = random.Random(version)
    for _ in range(100):
        request = random_produce(rng, version)
        client_id = rng.choice([None, "", "client"])
        frame = bytearray(encode_request(7, client_id, request, version))
        header = scan_request(frame, 0, len(frame), FLEXIBLE, LIMIT)
        assert header is not None
        assert header[:4] == (0, version, 7, None if client_id is None else client_id.encode())
        assert header[5] == len(frame)
        transactional_id, acks, timeout_ms, partitions = decode_produce(frame, header[4], header[5], version)
        assert (transactional_id, acks, timeout_ms) == (request.transactional_id, request.acks, request.timeout_ms)
        got = [(t, p, None if start < 0 else bytes(frame[start:end])) for t, p, start, end in partitions]
        assert got == [
            (raw_topic(topic, "name"), partition.index, partition.records)
            for topic in request.topic_data
            for partition in topic.partition_data
        ]


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_request_equals_the_generated_message(version: int) -> None:
    rng = random.Random(version)
    for _ in range(100):
        request = FetchRequest(
            max_wait_ms=rng.randint(0, 500),
            min_bytes=rng.randint(0, 99),
            max_bytes=rng.randint(1, 2**31 - 1),
            isolation_level=rng.randint(0, 1),
            topics=[
                FetchRequest.FetchTopic(
                    **topic_fields(rng, version, 13, "topic"),
                    partitions=[random_partition(rng, version) for _ in range(rng.randint(0, 4))],
                )
                for _ in range(rng.randint(0, 3))
            ],
        )
        if version >= 15:
            request.replica_state = FetchRequest.ReplicaState(
                replica_id=rng.randint(-1, 9), replica_epoch=rng.randint(-1, 9)
            )
        else:
            request.replica_id = rng.randint(-1, 9)
        if version >= 7:
            request.session_id, request.session_epoch = rng.randint(0, 2**31 - 1), rng.randint(-1, 99)
            request.forgotten_topics_data = [
                FetchRequest.ForgottenTopic(
                    **topic_fields(rng, version, 13, "topic"), partitions=[1, 2, rng.randint(0, 99)]
                )
                for _ in range(rng.randint(0, 2))
            ]
        if version >= 11:
            request.rack_id = rng.choice(["", "räck"])
        if version >= 12:
            request.cluster_id = rng.choice([None, "cluster"])
        frame = encode_request(9, "c", request, version)
        header = scan_request(frame, 0, len(frame), FLEXIBLE, LIMIT)
        assert header is not None
        check_fetch_body(decode_fetch(frame, header[4], header[5], version), request, version)


def random_partition(rng: random.Random, version: int) -> FetchRequest.FetchPartition:
    partition = FetchRequest.FetchPartition(
        partition=rng.randint(0, 99), fetch_offset=rng.randint(-1, 2**62), partition_max_bytes=rng.randint(0, 2**31 - 1)
    )
    if version >= 5:
        partition.log_start_offset = rng.randint(-1, 99)
    if version >= 9:
        partition.current_leader_epoch = rng.randint(-1, 99)
    if version >= 12:
        partition.last_fetched_epoch = rng.randint(-1, 99)
    if version >= 17:
        partition.replica_directory_id = rng.randbytes(16)
    if version >= 18:
        partition.high_watermark = rng.randint(0, 99)
    return partition


def check_fetch_body(body: Any, request: FetchRequest, version: int) -> None:
    for name in ("max_wait_ms", "min_bytes", "max_bytes", "isolation_level", "session_id", "session_epoch", "rack_id"):
        assert getattr(body, name) == getattr(request, name), name
    assert body.cluster_id == request.cluster_id
    if version >= 15:
        assert (body.replica_id, body.replica_epoch) == (
            request.replica_state.replica_id,
            request.replica_state.replica_epoch,
        )
    else:
        assert body.replica_id == request.replica_id
    got = [
        (
            asked.topic,
            asked.partition,
            asked.current_leader_epoch,
            asked.fetch_offset,
            asked.last_fetched_epoch,
            asked.log_start_offset,
            asked.partition_max_bytes,
        )
        for asked in body.partitions
    ]
    assert got == [
        (
            raw_topic(topic, "topic"),
            p.partition,
            p.current_leader_epoch,
            p.fetch_offset,
            p.last_fetched_epoch,
            p.log_start_offset,
            p.partition_max_bytes,
        )
        for topic in request.topics
        for p in topic.partitions
    ]
    assert body.forgotten == [
        (raw_topic(topic, "topic"), p) for topic in request.forgotten_topics_data for p in topic.partitions
    ]


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_response_equals_the_generated_message(version: int) -> None:
    rng = random.Random(version)
    for _ in range(50):
        results = []
        for _ in range(rng.randint(0, 3)):
            topic = rng.randbytes(16) if version >= 13 else b"topic" + str(rng.random()).encode()
            for partition in range(rng.randint(1, 3)):
                errors = (
                    [(i, rng.choice([None, "x" * 300])) for i in range(rng.randint(1, 3))]
                    if rng.random() < 0.3
                    else None
                )
                results.append(
                    (
                        topic,
                        partition,
                        rng.randint(-1, 100),
                        rng.randint(-1, 2**62),
                        -1,
                        5,
                        errors,
                        rng.choice([None, "é"]),
                    )
                )
        throttle = rng.randint(0, 999)
        frame = encode_produce_response(version, 77, [PartitionResponse(*result) for result in results], throttle)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        correlation_id, response = decode_response(frame[4:], 0, version)
        assert isinstance(response, ProduceResponse)
        assert (correlation_id, response.throttle_time_ms) == (77, throttle)
        got = [
            (
                raw_topic(topic, "name"),
                p.index,
                p.error_code,
                p.base_offset,
                p.log_append_time_ms,
                p.log_start_offset if version >= 5 else 5,
                [(e.batch_index, e.batch_index_error_message) for e in p.record_errors] or None,
                p.error_message,
            )
            for topic in response.responses
            for p in topic.partition_responses
        ]
        assert got == [r if version >= 8 else (*r[:6], None, None) for r in results]


class Records(bytes):
    @property
    def size(self) -> int:
        return len(self)


def random_fetch_result(rng: random.Random, topic: bytes, partition: int, version: int) -> tuple[Any, ...]:
    return (
        topic,
        partition,
        rng.randint(-1, 100),
        rng.randint(-1, 2**62),
        3,
        5,
        rng.choice([None, [], [(2**40, 7), (1, 2)]]),
        rng.randint(-1, 5),
        rng.choice([None, Records(rng.randbytes(rng.randint(1, 300)))]),
        (3, 2**40) if version >= 12 and rng.random() < 0.3 else None,
        (4, 5) if version >= 12 and rng.random() < 0.3 else None,
    )


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_response_equals_the_generated_message(version: int) -> None:
    rng = random.Random(version)
    for _ in range(50):
        results = [
            random_fetch_result(rng, topic, partition, version)
            for topic in [rng.randbytes(16) if version >= 13 else b"topic %d" % i for i in range(rng.randint(0, 3))]
            for partition in range(rng.randint(1, 3))
        ]
        endpoints = [(4, "höst", 9092, None), (5, "b", 1, "rack")] if version >= 16 and rng.random() < 0.5 else None
        answers = [
            PartitionData(*r[:6], r[8], r[6], r[9], current_leader=r[10], preferred_read_replica=r[7]) for r in results
        ]
        frame = b"".join(encode_fetch_response(version, 77, 6, 70, 8, answers, endpoints))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        correlation_id, response = decode_response(frame[4:], 1, version)
        assert isinstance(response, FetchResponse)
        assert (correlation_id, response.throttle_time_ms) == (77, 6)
        if version >= 7:
            assert (response.error_code, response.session_id) == (70, 8)
        assert [(e.node_id, e.host, e.port, e.rack) for e in response.node_endpoints] == (endpoints or [])
        assert [fetched(topic, p, version) for topic in response.responses for p in topic.partitions] == [
            (*r[:5], r[5] if version >= 5 else -1, r[6], r[7] if version >= 11 else -1, r[8] or b"", *r[9:])
            for r in results
        ]


def fetched(topic: Any, p: Any, version: int) -> tuple[Any, ...]:
    diverging = (p.diverging_epoch.epoch, p.diverging_epoch.end_offset)
    leader = (p.current_leader.leader_id, p.current_leader.leader_epoch)
    aborted = p.aborted_transactions
    return (
        raw_topic(topic, "topic"), p.partition_index, p.error_code, p.high_watermark, p.last_stable_offset, p.log_start_offset,
        None if aborted is None else [(a.producer_id, a.first_offset) for a in aborted],
        p.preferred_read_replica, bytes(p.records),
        None if diverging == (-1, -1) else diverging, None if leader == (-1, -1) else leader,
    )  # fmt: skip


def test_every_truncation_is_refused() -> None:
    rng = random.Random(1)
    for version in (3, 8, 9, 13):
        frame = encode_request(1, "c", random_produce(rng, version), version)
        header = scan_request(frame, 0, len(frame), FLEXIBLE, LIMIT)
        assert header is not None
        for end in range(header[4], len(frame)):
            with pytest.raises(DecodeError):
                decode_produce(frame, header[4], end, version)


def test_bytes_behind_a_body_are_let_pass() -> None:
    frame = encode_request(1, None, ProduceRequest(acks=1, timeout_ms=7, topic_data=[]), 9)
    header = scan_request(frame, 0, len(frame), FLEXIBLE, LIMIT)
    assert header is not None
    body = frame[header[4] :] + b"abc"
    assert decode_produce(body, 0, len(body), 9) == (None, 1, 7, [])
    fetch_body = FetchRequest(max_wait_ms=5, min_bytes=1).to_bytes(12) + b"abc"
    assert decode_fetch(fetch_body, 0, len(fetch_body), 12).max_wait_ms == 5


@pytest.mark.parametrize("count", [-2, -1, 1000, 2**31 - 1])
def test_counts_that_the_bytes_cannot_hold_are_refused(count: int) -> None:
    body = b"\xff\xff" + b"\0\1" + b"\0\0\0\1" + count.to_bytes(4, "big", signed=True) + bytes(20)
    with pytest.raises(DecodeError):
        decode_produce(body, 0, len(body), 3)


@pytest.mark.parametrize("size", [-1, 0, 9, LIMIT + 1, 2**31 - 1])
def test_sizes_out_of_range_are_refused_before_the_frame_is_there(size: int) -> None:
    with pytest.raises(DecodeError, match="size field"):
        scan_request(size.to_bytes(4, "big", signed=True), 0, 4, FLEXIBLE, LIMIT)


def test_an_incomplete_frame_is_none() -> None:
    frame = encode_request(1, "c", ProduceRequest(acks=1, timeout_ms=1, topic_data=[]), 9)
    for end in range(len(frame)):
        assert scan_request(frame, 0, end, FLEXIBLE, LIMIT) is None


def test_unknown_tags_are_skipped() -> None:
    frame = bytearray(encode_request(1, None, ProduceRequest(acks=1, timeout_ms=1, topic_data=[]), 9))
    header = scan_request(frame, 0, len(frame), FLEXIBLE, LIMIT)
    assert header is not None
    body = bytes(frame[header[4] : -1]) + b"\x01\x63\x03abc"
    assert decode_produce(body, 0, len(body), 9) == (None, 1, 1, [])
