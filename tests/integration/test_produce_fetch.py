"""Produce, Fetch and what belongs to them, over raw sockets against a broker process: Kafka's rules, code by code."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_cluster import connect
from raw_kafka import RawConnection, batch, create_topic, fetch, fetch_request, produce, produce_request
from under_test import broker_under_test, leader_of

from fastq._native.records import decode_records, read_header
from fastq.protocol.messages import (
    ApiVersionsRequest,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from fastq.testing import Broker

NewName = Callable[[], str]
pytestmark = pytest.mark.any_nodes


@pytest.fixture
def connection(shared_broker: Broker) -> Iterator[RawConnection]:
    with connect(shared_broker.bootstrap_servers) as connection:
        yield connection


def stored(base_offset: int, records: bytes, leader_epoch: int = 0) -> bytes:
    """A batch as it lies in the log: stamped with its offset and the leader's epoch."""
    return base_offset.to_bytes(8, "big") + records[8:12] + leader_epoch.to_bytes(4, "big") + records[16:]


# --- versions ---


def test_api_versions_lists_what_is_served(connection: RawConnection) -> None:
    for version in range(5):
        request = ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")
        response = connection.call(request if version >= 3 else ApiVersionsRequest(), version)
        assert response.error_code == 0
        versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        assert versions[0] == (0, 13)
        assert versions[1] == (4, 18)
        assert versions[22] == (0, 5)
        if version >= 3:
            assert "metadata.version" in {feature.name for feature in response.finalized_features}


def test_api_versions_of_the_future_are_answered_in_version_0(connection: RawConnection) -> None:
    connection.sock.sendall(b"\0\0\0\x0a" + b"\0\x12" + b"\0\x63" + b"\0\0\0\7" + b"\xff\xff")
    with pytest.raises(EOFError):  # a flexible header without its tags is not even a header
        connection.frame()


def test_api_versions_of_a_future_version_say_how_to_come_down(connection: RawConnection) -> None:
    connection.sock.sendall(b"\0\0\0\x0b" + b"\0\x12" + b"\0\x63" + b"\0\0\0\7" + b"\xff\xff" + b"\0")
    assert connection.frame() == b"\0\0\0\7" + b"\0\x23" + b"\0\0\0\1" + b"\0\x12" + b"\0\0" + b"\0\4"


def test_a_bad_software_name_is_refused(connection: RawConnection) -> None:
    request = ApiVersionsRequest(client_software_name="-bad-", client_software_version="1")
    assert connection.call(request, 3).error_code == 42


@pytest.mark.parametrize(("key", "version"), [(999, 0), (-1, 0), (0, 2), (0, 99), (1, 3)])
def test_other_unknown_keys_and_versions_close(connection: RawConnection, key: int, version: int) -> None:
    head = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff" + bytes(8)
    connection.sock.sendall(len(head).to_bytes(4, "big") + head)
    assert connection.closed()


# --- produce and fetch ---


def test_every_version_of_produce_and_fetch(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    topic_id = create_topic(connection, name)
    log = b""
    for version in range(3, 14):
        records = batch(b"one %d" % version, b"two")
        answer = produce(connection, topic_id if version >= 13 else name, records, version)
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 2 * (version - 3), -1)
        log += stored(answer.base_offset, records)
    for version in range(4, 19):
        topic = topic_id if version >= 13 else name
        answer = fetch(connection, topic, 0, version)
        assert bytes(answer.records) == log
        assert (answer.high_watermark, answer.last_stable_offset) == (22, 22)
        middle = fetch(connection, topic, 3, version)
        assert read_header(middle.records).base_offset == 2, "the batch that holds the offset comes whole"
        assert bytes(fetch(connection, topic, 22, version).records) == b""


def test_pipelined_requests_are_answered_in_order(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    for i in range(300):
        connection.send(produce_request(name, batch(b"x" * (i * 7 % 3000))), 9)
        connection.send(fetch_request(name, i), 12)
    for i in range(300):
        assert connection.receive().responses[0].partition_responses[0].base_offset == i
        assert read_header(connection.receive().responses[0].partitions[0].records).base_offset == i


def code_of(
    connection: RawConnection, topic: str | bytes, records: bytes | None, version: int = 9, **fields: Any
) -> int:
    code: int = produce(connection, topic, records, version, **fields).error_code
    return code


def test_a_long_poll_ends_when_its_connection_asks_for_more(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    asked = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=600_000, min_bytes=1, topics=[FetchRequest.FetchTopic(topic=name, partitions=[asked])]
    )
    connection.send(request, 11)
    connection.send(ApiVersionsRequest(), 2)
    (topic,) = connection.receive().responses
    assert topic.partitions[0].error_code == 0 and not topic.partitions[0].records
    assert connection.receive().error_code == 0


def test_produce_errors(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name, max_message_bytes="1000", segment_bytes="1048576")
    good = batch(b"good")
    corrupt = good[:-1] + b"?"
    assert code_of(connection, name, corrupt) == 2
    assert code_of(connection, "no-such-topic", good) == 3
    assert code_of(connection, name, good, partition=7) == 3
    assert code_of(connection, name, good, partition=-1) == 3
    assert code_of(connection, name, batch(bytes(2000))) == 10
    assert code_of(connection, name, good, acks=2) == 21
    assert code_of(connection, name, good + good) == 87
    assert code_of(connection, name, b"") == 87
    assert code_of(connection, name, None) == 87
    assert code_of(connection, bytes(range(16)), good, version=13) == 100
    assert code_of(connection, name, batch(b"v", timestamp_ms=int(time.time() * 1000) + 7_200_000)) == 32
    assert fetch(connection, name, 0).high_watermark == 0, "nothing of it was written"
    assert code_of(connection, name, good) == 0


def test_zstd_needs_produce_7(connection: RawConnection, new_topic_name: NewName) -> None:
    from fastq.compression import compress

    name = new_topic_name()
    create_topic(connection, name)
    records = batch(b"value", codec=4, compress=compress)
    assert code_of(connection, name, records, version=6) == 76
    assert code_of(connection, name, records, version=7) == 0
    (record,) = decode_records(fetch(connection, name, 0).records, decompress=decompressor())
    assert record.value == b"value"


def decompressor() -> Any:
    from fastq.compression import decompress

    return decompress


def test_a_compacted_topic_wants_keys_and_says_which_records_have_none(
    connection: RawConnection, new_topic_name: NewName
) -> None:
    name = new_topic_name()
    create_topic(connection, name, cleanup_policy="compact")
    answer = produce(connection, name, batch(b"no key", b"nor this"))
    assert answer.error_code == 87
    assert [error.batch_index for error in answer.record_errors] == [0, 1]
    assert produce(connection, name, batch(b"value", key=b"key")).error_code == 0


def test_min_insync_replicas_counts_for_acks_all_only(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name, min_insync_replicas="2")
    in_sync = code_of(connection, name, batch(b"x"), acks=-1)
    assert in_sync in (0, 19)  # with eligible leader replicas (KIP-966) the cluster's setting stands
    assert code_of(connection, name, batch(b"x"), acks=1) == 0


def test_log_append_time(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name, message_timestamp_type="LogAppendTime")
    answer = produce(connection, name, batch(b"v", timestamp_ms=5))
    assert abs(answer.log_append_time_ms - time.time() * 1000) < 60_000
    records = fetch(connection, name, 0).records
    header = read_header(records)
    assert (header.timestamp_type, header.max_timestamp) == (1, answer.log_append_time_ms)
    assert decode_records(records)[0].timestamp_ms == answer.log_append_time_ms


def test_acks_0_is_not_answered_and_an_error_closes(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    connection.send(produce_request(name, batch(b"quiet"), acks=0), 9, expects_response=False)
    assert produce(connection, name, batch(b"loud")).base_offset == 1
    connection.send(produce_request("no-such-topic", batch(b"lost"), acks=0), 9, expects_response=False)
    assert connection.closed()


def test_an_idempotent_producer(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    first, second = (
        connection.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4) for _ in range(2)
    )
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert first.producer_id != second.producer_id

    def send(sequence: int, epoch: int = 0) -> Any:
        ids = {"producer_id": first.producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        return produce(connection, name, batch(b"a", b"b", **ids), acks=-1)

    assert [send(sequence).base_offset for sequence in (0, 2, 4)] == [0, 2, 4]
    assert [(send(s).error_code, send(s).base_offset) for s in (2, 4)] == [(0, 2), (0, 4)], "duplicates succeed again"
    assert send(8).error_code == 45
    assert send(6).base_offset == 6
    assert send(0, epoch=1).base_offset == 8
    assert send(8).error_code == 47
    assert fetch(connection, name, 0).high_watermark == 10


def test_transactional_batches_need_a_transactional_id(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    ids = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    answer = produce(connection, name, batch(b"open", transactional=True, **ids), acks=-1)
    assert (answer.error_code, answer.base_offset) == (48, -1)
    assert "named no transactional id" in answer.error_message
    assert produce(connection, name, batch(b"plain", **ids)).base_offset == 0
    assert fetch(connection, name, 0).last_stable_offset == 1


def test_a_topic_with_fsync_durability(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name, flush_messages="1")
    for i in range(5):
        connection.send(produce_request(name, batch(b"%d" % i)), 9)
    for i in range(5):
        assert connection.receive().responses[0].partition_responses[0].base_offset == i
    assert fetch(connection, name, 0).high_watermark == 5
    ids = {"producer_id": 77, "producer_epoch": 0, "base_sequence": 0}
    again = [produce(connection, name, batch(b"once", **ids)) for _ in range(2)]
    assert [(answer.error_code, answer.base_offset) for answer in again] == [(0, 5), (0, 5)], "on disk already: at once"


# --- fetch ---


def test_fetch_errors(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    produce(connection, name, batch(b"x"))
    assert fetch(connection, name, 2).error_code == 1
    assert fetch(connection, name, -5).error_code == 1
    assert fetch(connection, "no-such-topic", 0).error_code == 3
    assert fetch(connection, name, 0, partition=9).error_code == 3
    assert fetch(connection, bytes(range(16)), 0, 13).error_code == 100
    assert fetch(connection, name, 0, current_leader_epoch=0).error_code == 0
    assert fetch(connection, name, 0, current_leader_epoch=5).error_code == 75
    assert fetch(connection, name, 0, last_fetched_epoch=0).error_code == 0
    assert fetch(connection, name, 1, last_fetched_epoch=0).error_code == 0


def test_size_limits_let_the_first_batch_pass(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name, partitions=3)
    for partition in range(3):
        for _ in range(3):
            produce(connection, name, batch(bytes(1000)), partition=partition)
    asked = [FetchRequest.FetchPartition(partition=p, fetch_offset=0, partition_max_bytes=2500) for p in range(3)]

    def sizes(max_bytes: int) -> list[int]:
        topics = [FetchRequest.FetchTopic(topic=name, partitions=asked)]
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, session_epoch=-1, topics=topics)
        return [len(partition.records) // 1000 for partition in connection.call(request, 12).responses[0].partitions]

    assert sizes(1 << 20) == [2, 2, 2]
    assert sizes(3500) == [2, 1, 0]
    assert sizes(1) == [1, 0, 0]


def test_a_long_poll_ends_when_data_comes(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    with RawConnection(connection.address, 90) as other:
        started = time.monotonic()
        other.send(fetch_request(name, 0, max_wait_ms=60_000), 12)
        time.sleep(0.05)
        produce(connection, name, batch(b"news"))
        assert decode_records(other.receive().responses[0].partitions[0].records)[0].value == b"news"
        assert time.monotonic() - started < 50

        other.send(fetch_request(name, 1, max_wait_ms=60_000, min_bytes=3000), 12)
        for _ in range(4):
            produce(connection, name, batch(bytes(900)))
        assert len(other.receive().responses[0].partitions[0].records) >= 3000


def test_a_long_poll_ends_when_the_client_is_done(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    with RawConnection(connection.address, 90) as other:
        started = time.monotonic()
        other.send(fetch_request(name, 0, max_wait_ms=60_000), 12)
        time.sleep(0.05)
        other.sock.shutdown(socket.SHUT_WR)
        assert bytes(other.receive().responses[0].partitions[0].records) == b""
        assert other.closed()
        assert time.monotonic() - started < 50


def test_a_long_poll_is_not_ended_by_what_is_not_on_disk_yet(
    connection: RawConnection, new_topic_name: NewName
) -> None:
    name = new_topic_name()
    create_topic(connection, name, durability="fsync")
    with RawConnection(connection.address) as other:
        for offset in range(5):
            other.send(fetch_request(name, offset, max_wait_ms=10_000), 12)
            time.sleep(0.02)
            produce(connection, name, batch(b"%d" % offset))
            records = other.receive().responses[0].partitions[0].records
            assert [record.value for record in decode_records(records)] == [b"%d" % offset]


@pytest.mark.parametrize("who", ["nobody", "the leader", "another"])
def test_nobody_fetches_in_the_name_of_a_replica_that_is_none(
    connection: RawConnection, new_topic_name: NewName, who: str
) -> None:
    replica_id = {"nobody": 0, "the leader": (*connection.replicas, 1)[0], "another": 7}[who]
    name = new_topic_name()
    create_topic(connection, name)
    produce(connection, name, batch(b"x"))
    assert fetch(connection, name, 0, replica_id=replica_id).error_code == 6
    assert fetch(connection, name, 0, replica_id=replica_id, current_leader_epoch=0).error_code == 75
    assert fetch(connection, name, 0, replica_id=-2).error_code == 0


@pytest.mark.parametrize("replica_id", [-2, 0, 1, 7])
def test_offsets_are_listed_in_the_name_of_any_replica(
    connection: RawConnection, new_topic_name: NewName, replica_id: int
) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    produce(connection, name, batch(b"x"))
    for epoch in (-1, 0):
        answer = list_offset(connection, name, -1, replica_id=replica_id, current_leader_epoch=epoch)
        assert (answer.error_code, answer.offset) == (0, 1)
    assert list_offset(connection, name, -2, replica_id=replica_id).offset == 0
    assert list_offset(connection, name, 0, replica_id=replica_id).offset == 0
    assert list_offset(connection, name, -1, replica_id=replica_id, current_leader_epoch=9).error_code == 75


def test_a_long_poll_ends_with_its_time(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    started = time.monotonic()
    assert bytes(fetch(connection, name, 0, max_wait_ms=120).records) == b""
    assert time.monotonic() - started >= 0.1


def test_a_long_poll_ends_when_the_topic_goes(connection: RawConnection, new_topic_name: NewName) -> None:
    from fastq.protocol.messages import DeleteTopicsRequest

    name = new_topic_name()
    create_topic(connection, name)
    with RawConnection(connection.address) as other:
        other.send(fetch_request(name, 0, max_wait_ms=10_000), 12)
        time.sleep(0.05)
        connection.call(DeleteTopicsRequest(topic_names=[name], timeout_ms=5000), 5)
        assert other.receive().responses[0].partitions[0].error_code == 3


def test_sessions_answer_news_only(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name, partitions=3)
    topic = FetchRequest.FetchTopic(
        topic=name,
        partitions=[
            FetchRequest.FetchPartition(partition=p, fetch_offset=0, partition_max_bytes=9999) for p in range(3)
        ],
    )
    common = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20}
    full = connection.call(FetchRequest(**common, session_epoch=0, topics=[topic]), 12)
    assert len(full.responses[0].partitions) == 3
    session = {"session_id": full.session_id}
    assert full.session_id > 0
    assert connection.call(FetchRequest(**common, **session, session_epoch=1), 12).responses == []
    produce(connection, name, batch(b"x"), partition=1)
    news = connection.call(FetchRequest(**common, **session, session_epoch=2), 12)
    assert [(p.partition_index, bool(p.records)) for p in news.responses[0].partitions] == [(1, True)]
    assert connection.call(FetchRequest(**common, **session, session_epoch=2), 12).error_code == 71
    forgotten = [FetchRequest.ForgottenTopic(topic=name, partitions=[0, 1])]
    left = connection.call(FetchRequest(**common, **session, session_epoch=3, forgotten_topics_data=forgotten), 12)
    assert left.responses == []
    assert connection.call(FetchRequest(**common, session_id=12345678, session_epoch=1), 12).error_code == 70
    assert connection.call(FetchRequest(**common, **session, session_epoch=4), 13).error_code == 106
    assert connection.call(FetchRequest(**common, **session, session_epoch=-1), 12).session_id == 0
    assert connection.call(FetchRequest(**common, **session, session_epoch=4), 12).error_code == 70


def test_read_committed_has_a_list_of_aborted_transactions(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    produce(connection, name, batch(b"x"))
    assert fetch(connection, name, 0, isolation_level=1).aborted_transactions == []
    assert fetch(connection, name, 0, isolation_level=0).aborted_transactions is None


def test_what_is_not_in_memory_is_fetched_too() -> None:
    values = [os.urandom(900_000) for _ in range(40)]
    with broker_under_test() as broker, connect(broker.bootstrap_servers) as connection:
        create_topic(connection, "cold", segment_bytes="10000000")
        for value in values:
            assert produce(connection, "cold", batch(value)).error_code == 0
        segments = sorted((leader_of(broker, "cold").data_dir / "cold-0").glob("*.log"))
        assert len(segments) > 2
        for segment in segments:
            descriptor = os.open(segment, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        got: list[bytes | None] = []
        while len(got) < len(values):
            records = fetch(connection, "cold", len(got), partition_max_bytes=5_000_000).records
            position = 0
            while position < len(records):
                got += [record.value for record in decode_records(records, position)]
                position += read_header(records, position).size_bytes
        assert got == values


# --- offsets ---


def list_offset(
    connection: RawConnection, topic: str, timestamp: int, version: int = 11, *, replica_id: int = -1, **fields: int
) -> Any:
    asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp, **fields)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])]
    return connection.call(ListOffsetsRequest(replica_id=replica_id, topics=topics), version).topics[0].partitions[0]


def test_list_offsets(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    assert (list_offset(connection, name, -1).offset, list_offset(connection, name, -3).offset) == (0, -1)
    now = int(time.time() * 1000)
    for timestamp in (now - 3000, now - 1000, now - 2000):
        produce(connection, name, batch(b"x", timestamp_ms=timestamp))

    def found(timestamp: int, version: int = 11) -> tuple[int, int, int]:
        answer = list_offset(connection, name, timestamp, version)
        assert answer.error_code == 0
        return answer.timestamp, answer.offset, answer.leader_epoch

    assert found(-1) == (-1, 3, 0)
    assert found(-2) == found(-4) == (-1, 0, 0)
    assert found(-3) == (now - 1000, 1, 0)
    assert found(-5) == found(-6) == (-1, -1, -1)
    assert found(now - 3000) == (now - 3000, 0, 0)
    assert found(now - 2500) == (now - 1000, 1, 0)
    assert found(now) == (-1, -1, -1)
    assert found(0) == (now - 3000, 0, 0)
    for version in range(1, 12):
        assert found(-1, version)[:2] == (-1, 3)
    assert list_offset(connection, name, -3, version=6).error_code == 35
    assert list_offset(connection, name, -99).error_code == 35
    assert list_offset(connection, "no-such-topic", -1).error_code == 3
    assert list_offset(connection, name, -1, current_leader_epoch=9).error_code == 75


def test_offset_for_leader_epoch(connection: RawConnection, new_topic_name: NewName) -> None:
    name = new_topic_name()
    create_topic(connection, name)
    produce(connection, name, batch(b"x"))
    for version in (2, 3, 4):
        asked = [OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=p, leader_epoch=0) for p in (0, 5)]
        topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=asked)]
        response = connection.call(OffsetForLeaderEpochRequest(topics=topics), version)
        assert [(p.error_code, p.leader_epoch, p.end_offset) for p in response.topics[0].partitions] == [
            (0, 0, 1),
            (3, -1, -1),
        ]


def test_a_malformed_body_closes(connection: RawConnection) -> None:
    frame = bytearray(40)
    frame[:4] = (36).to_bytes(4, "big")
    frame[4:8] = b"\0\0\0\x09"
    connection.sock.sendall(frame)
    assert connection.closed()


def test_many_partitions_in_one_produce(connection: RawConnection, new_topic_name: NewName) -> None:
    names = [new_topic_name() for _ in range(3)]
    for name in names:
        create_topic(connection, name, partitions=20)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=20_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=name,
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=p, records=batch(b"%d" % p)) for p in range(22)
                ],
            )
            for name in names
        ],
    )
    response = connection.call(request, 9)
    assert [topic.name for topic in response.responses] == names
    for topic in response.responses:
        assert [p.error_code for p in topic.partition_responses] == [0] * 20 + [3] * 2
