"""The transaction APIs over raw sockets against a broker process: versions, codes, and what readers see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.coordinator.hashing import partition_of
from fastq_broker.log import LogManager
from fastq_broker.transactions.records import decode_value, encode_key, encode_value
from fastq_broker.transactions.states import TransactionState
from raw_kafka import RawConnection, batch, create_topic, fetch, produce, produce_request

from fastq._native.records import build_batch, decode_records, iter_headers
from fastq.protocol.messages import (
    AddPartitionsToTxnRequest,
    DeleteTopicsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)
from fastq.testing import Broker

NewName = Callable[[], str]
COORDINATOR_NOT_THERE_YET = (14, 15, 16)
CONCURRENT = 51


@pytest.fixture
def connection(shared_broker: Broker) -> Iterator[RawConnection]:
    with RawConnection(shared_broker.bootstrap_servers) as connection:
        yield connection


def wait_for(call: Callable[[], Any], wrong: Callable[[Any], bool]) -> Any:
    """The first answer that is not one that tells to try again."""
    deadline = time.monotonic() + 20
    while wrong(answer := call()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer


def initialize(connection: RawConnection, name: str, version: int = 5, **fields: Any) -> Any:
    """InitProducerId as a client does it: find the coordinator, and have patience while it loads."""
    if name:
        asked = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
        wait_for(
            lambda: connection.call(asked, 4).coordinators[0].error_code, lambda code: code in COORDINATOR_NOT_THERE_YET
        )
    request = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=fields.pop("transaction_timeout_ms", 60_000), **fields
    )
    return wait_for(
        lambda: connection.call(request, version), lambda answer: answer.error_code in COORDINATOR_NOT_THERE_YET
    )


class Producer:
    """A transactional producer of a few lines. `version` is that of the transactions, 1 or 2."""

    def __init__(self, connection: RawConnection, name: str, version: int = 2, **fields: Any) -> None:
        self.connection = connection
        self.name = name
        self.version = version
        answer = wait_for(
            lambda: initialize(connection, name, **fields), lambda answer: answer.error_code == CONCURRENT
        )
        assert answer.error_code == 0, answer
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences: dict[tuple[str, int], int] = {}

    def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        (result,) = self.connection.call(request, version).results_by_topic_v3_and_below
        return [partition.partition_error_code for partition in result.results_by_partition]

    def send(self, topic: str, *values: bytes, partition: int = 0, version: int | None = None) -> Any:
        place = topic, partition
        records = batch(
            *values,
            transactional=True,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(place, 0),
        )
        version = version or (12 if self.version == 2 else 9)
        answer = produce(
            self.connection, topic, records, version, partition=partition, acks=-1, transactional_id=self.name
        )
        if answer.error_code == 0:
            self.sequences[place] = self.sequences.get(place, 0) + len(values)
        return answer

    def end(self, committed: bool, version: int | None = None) -> Any:
        version = version or (5 if self.version == 2 else 4)
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, committed=committed
        )
        answer = self.connection.call(request, version)
        if answer.error_code == 0 and version >= 5:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer


def committed_values(connection: RawConnection, topic: str, partition: int = 0) -> list[bytes]:
    """What a read_committed consumer sees, worked out from one fetch as consumers do."""
    answer = fetch(connection, topic, 0, partition=partition, isolation_level=1)
    assert answer.error_code == 0
    aborted = sorted((entry.first_offset, entry.producer_id) for entry in answer.aborted_transactions or ())
    dropping: set[int] = set()
    found: list[bytes] = []
    records = bytes(answer.records or b"")
    for position, header in iter_headers(records):
        while aborted and aborted[0][0] <= header.last_offset:
            dropping.add(aborted.pop(0)[1])
        if header.is_control:
            dropping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            found += [record.value for record in decode_records(records, position)]
    return found


def latest(connection: RawConnection, topic: str, isolation_level: int) -> int:
    asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])],
    )
    offset: int = connection.call(request, 7).topics[0].partitions[0].offset
    return offset


@pytest.fixture
def topic(connection: RawConnection, new_topic_name: NewName) -> str:
    name = new_topic_name()
    create_topic(connection, name, 3)
    return name


@pytest.mark.parametrize("version", [1, 2])
def test_readers_see_what_was_committed(connection: RawConnection, topic: str, version: int) -> None:
    producer = Producer(connection, topic, version)
    kept: list[bytes] = []
    for number, committed in enumerate([True, False, True, False, False, True]):
        if version == 1:
            assert producer.add(topic, 0, 1) == [0, 0]
        for partition in (0, 1):
            answer = producer.send(topic, b"%d" % number, b"x%d" % number, partition=partition)
            assert answer.error_code == 0, answer
        assert latest(connection, topic, 1) == number * 3
        assert latest(connection, topic, 0) == number * 3 + 2
        assert producer.end(committed).error_code == 0
        kept += [b"%d" % number, b"x%d" % number] if committed else []
        assert committed_values(connection, topic) == kept
    assert latest(connection, topic, 1) == latest(connection, topic, 0) == 18
    for partition in (0, 1):
        assert committed_values(connection, topic, partition) == kept == [b"0", b"x0", b"2", b"x2", b"5", b"x5"]
    assert committed_values(connection, topic, 2) == []


def test_version_2_answers_the_next_epoch_each_time(connection: RawConnection, topic: str) -> None:
    producer = Producer(connection, topic)
    before = producer.id, producer.epoch
    for number in range(3):
        assert producer.send(topic, b"v").error_code == 0
        request = EndTxnRequest(
            transactional_id=topic, producer_id=producer.id, producer_epoch=producer.epoch, committed=True
        )
        assert producer.end(True).error_code == 0
        assert (producer.id, producer.epoch) == (before[0], before[1] + number + 1)
        again = wait_for(partial(connection.call, request, 5), lambda answer: answer.error_code == CONCURRENT)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, producer.id, producer.epoch)


def test_a_transaction_of_another_epoch_starts_at_sequence_0(connection: RawConnection, topic: str) -> None:
    producer = Producer(connection, topic)
    producer.sequences[topic, 0] = 5
    assert producer.send(topic, b"v").error_code == 45
    producer.sequences.clear()
    assert producer.send(topic, b"v").error_code == 0
    producer.end(True)
    producer.sequences[topic, 0] = 1
    assert producer.send(topic, b"v").error_code == 45


def test_version_1_goes_on_with_its_sequence(connection: RawConnection, topic: str) -> None:
    producer = Producer(connection, topic, 1)
    for sequence in range(3):
        producer.add(topic, 0)
        assert producer.sequences.get((topic, 0), 0) == sequence
        assert producer.send(topic, b"v").error_code == 0
        assert producer.end(True).error_code == 0
    assert committed_values(connection, topic) == [b"v"] * 3


@pytest.mark.parametrize(("version", "code"), [(9, 48), (10, 48), (11, 120)])
def test_a_partition_that_was_not_added_is_refused(
    connection: RawConnection, topic: str, version: int, code: int
) -> None:
    producer = Producer(connection, topic, 1)
    assert producer.send(topic, b"v", version=version).error_code == code
    assert producer.add(topic, 1) == [0]
    assert producer.send(topic, b"v", version=version).error_code == code
    assert producer.send(topic, b"v", partition=1, version=version).error_code == 0
    assert latest(connection, topic, 0) == 0
    assert producer.end(False).error_code == 0


def test_another_producer_fences_the_first(connection: RawConnection, topic: str) -> None:
    first = Producer(connection, topic)
    assert first.send(topic, b"lost").error_code == 0
    assert initialize(connection, topic).error_code == CONCURRENT
    second = Producer(connection, topic)
    assert second.epoch > first.epoch
    assert first.send(topic, b"late").error_code == 47
    assert first.send(topic, b"late", partition=1).error_code == 47
    assert first.end(True).error_code == 90
    assert first.end(True, version=1).error_code == 47
    assert first.add(topic, 1) == [90]
    assert first.add(topic, 1, version=1) == [47]
    assert second.send(topic, b"kept").error_code == 0
    assert second.end(True).error_code == 0
    assert committed_values(connection, topic) == [b"kept"]


@pytest.mark.parametrize(("version", "code"), [(3, 47), (4, 90)])
def test_fencing_in_init_producer_id(connection: RawConnection, topic: str, version: int, code: int) -> None:
    old = Producer(connection, topic)
    Producer(connection, topic)
    answer = initialize(connection, topic, version, producer_id=old.id, producer_epoch=old.epoch)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)


def test_a_producer_goes_on_after_an_error(connection: RawConnection, topic: str) -> None:
    first = Producer(connection, topic)
    bumped = Producer(connection, topic, producer_id=first.id, producer_epoch=first.epoch)
    assert (bumped.id, bumped.epoch) == (first.id, first.epoch + 1)


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [
        ("", {}, 42),
        ("t", {"producer_id": 5}, 42),
        ("t", {"producer_epoch": 5}, 42),
        ("t", {"transaction_timeout_ms": 900_001}, 50),
        ("t", {"transaction_timeout_ms": 0}, 50),
    ],
)
def test_bad_initializations(connection: RawConnection, name: str, fields: dict[str, int], code: int) -> None:
    assert initialize(connection, name, **fields).error_code == code


def test_unknown_ids_and_partitions(connection: RawConnection, topic: str) -> None:
    producer = Producer(connection, topic)
    assert producer.add(topic, 0, 7) == [55, 3]
    assert producer.end(True).error_code == 48
    stranger = Producer(connection, topic + "-other")
    stranger.name = topic + "-nobody"
    assert stranger.end(True).error_code == 49
    assert stranger.send(topic, b"v").error_code == 49
    assert stranger.add(topic, 0) == [49]
    stranger.name = ""
    assert stranger.end(True).error_code == 42


def test_a_batch_of_several_transactions_and_verification(connection: RawConnection, topic: str) -> None:
    producers = [Producer(connection, f"{topic}-{number}") for number in range(2)]

    def asked(producer: Producer, partitions: list[int], *, verify: bool) -> Any:
        return AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=producer.name,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            verify_only=verify,
            topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=partitions)],
        )

    def codes(*transactions: Any) -> list[list[int]]:
        answer = connection.call(AddPartitionsToTxnRequest(transactions=list(transactions)), 5)
        assert answer.error_code == 0
        return [
            [partition.partition_error_code for partition in result.topic_results[0].results_by_partition]
            for result in answer.results_by_transaction
        ]

    assert codes(asked(producers[0], [0, 1], verify=False), asked(producers[1], [2], verify=False)) == [[0, 0], [0]]
    assert codes(asked(producers[0], [0, 1, 2], verify=True), asked(producers[1], [2], verify=True)) == [
        [0, 0, 120],
        [0],
    ]
    producers[1].epoch += 1
    assert codes(asked(producers[1], [2], verify=True)) == [[90]]


def test_what_administrators_see(connection: RawConnection, topic: str) -> None:
    producer = Producer(connection, topic, transaction_timeout_ms=12_345)

    def described() -> Any:
        names = [topic, topic + "-nobody", ""]
        states = connection.call(DescribeTransactionsRequest(transactional_ids=names), 0).transaction_states
        assert [state.error_code for state in states] == [0, 105, 42]
        return states[0]

    def listed(version: int = 2, **filters: Any) -> list[tuple[str, str]]:
        answer = connection.call(ListTransactionsRequest(**filters), version)
        assert answer.error_code == 0
        return [
            (state.transactional_id, state.transaction_state)
            for state in answer.transaction_states
            if state.transactional_id.startswith(topic)
        ]

    assert described().transaction_state == "Empty"
    producer.send(topic, b"a", partition=2)
    producer.send(topic, b"b", b"c")
    state = described()
    assert (state.transaction_state, state.transaction_timeout_ms) == ("Ongoing", 12_345)
    assert (state.producer_id, state.producer_epoch) == (producer.id, producer.epoch)
    assert [(entry.topic, entry.partitions) for entry in state.topics] == [(topic, [0, 2])]
    assert abs(state.transaction_start_time_ms / 1000 - time.time()) < 60

    mine = [(topic, "Ongoing")]
    assert listed() == listed(0) == mine
    assert listed(state_filters=["Ongoing", "Empty"]) == listed(producer_id_filters=[producer.id]) == mine
    assert listed(transactional_id_pattern=topic[:-1] + ".") == mine
    assert listed(transactional_id_pattern=topic[:-1]) == listed(state_filters=["Empty"]) == []
    assert listed(producer_id_filters=[producer.id + 1000]) == listed(duration_filter=60_000) == []
    answer = connection.call(ListTransactionsRequest(state_filters=["Ongoing", "Odd"]), 1)
    assert answer.unknown_state_filters == ["Odd"]
    assert connection.call(ListTransactionsRequest(transactional_id_pattern="("), 2).error_code == 128

    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0, 1, 9])
    (result,) = connection.call(DescribeProducersRequest(topics=[asked]), 0).topics
    assert [partition.error_code for partition in result.partitions] == [0, 0, 3]
    (active,) = result.partitions[0].active_producers
    assert (active.producer_id, active.producer_epoch, active.last_sequence) == (producer.id, producer.epoch, 1)
    assert (active.coordinator_epoch, active.current_txn_start_offset) == (-1, 0)
    assert result.partitions[1].active_producers == []
    assert producer.end(False).error_code == 0
    assert described().transaction_state == "CompleteAbort"


def test_an_administrator_ends_a_hanging_transaction(connection: RawConnection, topic: str) -> None:
    producer = Producer(connection, topic)
    producer.send(topic, b"stuck")

    def write(epoch: int, version: int, coordinator_epoch: int = 0) -> list[int]:
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer.id,
            producer_epoch=epoch,
            transaction_result=False,
            coordinator_epoch=coordinator_epoch,
            transaction_version=2 if version == 2 else 0,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[0, 9])],
        )
        (result,) = connection.call(WriteTxnMarkersRequest(markers=[marker]), version).markers
        assert result.producer_id == producer.id
        return [partition.error_code for partition in result.topics[0].partitions]

    assert write(producer.epoch - 1, 1) == [47, 3]
    assert write(producer.epoch, 2) == [47, 3], "under version 2 a marker has the next epoch"
    assert latest(connection, topic, 1) == 0
    assert write(producer.epoch, 1, coordinator_epoch=4) == [0, 3]
    assert latest(connection, topic, 1) == latest(connection, topic, 0) == 2
    assert write(producer.epoch, 1, coordinator_epoch=3) == [52, 3]
    assert committed_values(connection, topic) == []


def test_a_request_of_several_producers_is_refused(connection: RawConnection, topic: str) -> None:
    producer = Producer(connection, topic)
    request = produce_request(topic, None, acks=-1, transactional_id=topic)
    request.topic_data[0].partition_data = [
        type(request.topic_data[0].partition_data[0])(
            index=index,
            records=batch(
                b"v",
                transactional=True,
                producer_id=producer.id + index,
                producer_epoch=producer.epoch,
                base_sequence=0,
            ),
        )
        for index in range(2)
    ]
    answers = connection.call(request, 12).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == [49, 49]


@pytest.mark.parametrize("version", [1, 2])
def test_with_fsync_nothing_is_answered_before_it_is_on_disk(version: int, new_topic_name: NewName) -> None:
    """Every step waits for the disk, and none of them fails because the one before it is not there yet."""
    with Broker(config={"durability": "fsync"}) as broker, RawConnection(broker.bootstrap_servers) as connection:
        topic = new_topic_name()
        create_topic(connection, topic, 2)
        producer = Producer(connection, topic, version)
        for number in range(10):
            if version == 1:
                added = wait_for(lambda: producer.add(topic, 0, 1), lambda codes: CONCURRENT in codes)
                assert added == [0, 0]
            for partition in (0, 1):
                assert producer.send(topic, b"%d" % number, partition=partition).error_code == 0
            assert producer.end(number % 2 == 0).error_code == 0
        wait_for(lambda: latest(connection, topic, 1), lambda offset: offset < 20)
        assert committed_values(connection, topic) == [b"0", b"2", b"4", b"6", b"8"]


def test_a_transaction_past_its_time_out_is_aborted(new_topic_name: NewName) -> None:
    interval = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}
    with Broker(config=interval) as broker, RawConnection(broker.bootstrap_servers) as connection:
        topic = new_topic_name()
        create_topic(connection, topic, 2)
        producer = Producer(connection, topic, transaction_timeout_ms=100)
        assert producer.send(topic, b"late").error_code == 0
        wait_for(lambda: latest(connection, topic, 1), lambda offset: offset == 0)
        assert latest(connection, topic, 1) == 2
        assert producer.send(topic, b"later").error_code == 47
        assert producer.end(True).error_code == 90
        assert committed_values(connection, topic) == []


@pytest.mark.parametrize("committed", [True, False])
def test_a_decision_without_markers_is_carried_out_at_the_next_start(
    committed: bool, tmp_path: Path, new_topic_name: NewName
) -> None:
    """The broker dies with the decision in its log and no marker written."""
    topic = new_topic_name()
    with Broker(data_dir=tmp_path) as broker:
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, topic, 2)
            producer = Producer(connection, topic)
            assert producer.send(topic, b"a").error_code == producer.send(topic, b"b", partition=1).error_code == 0
        broker.kill()
        decide(tmp_path, topic, committed)
        broker.start()
        with RawConnection(broker.bootstrap_servers) as connection:
            wait_for(lambda: latest(connection, topic, 1), lambda offset: offset == 0)
            assert committed_values(connection, topic) == ([b"a"] if committed else [])
            assert committed_values(connection, topic, 1) == ([b"b"] if committed else [])
            producer.connection = connection
            answer = wait_for(lambda: producer.end(committed), lambda answer: answer.error_code in (14, CONCURRENT))
            assert (answer.error_code, producer.epoch) == (0, 1), "the client's retry"
            assert producer.send(topic, b"next").error_code == 0
            assert producer.end(True).error_code == 0
            assert committed_values(connection, topic)[-1] == b"next"


def decide(data_dir: Path, transactional_id: str, committed: bool) -> None:
    """Write the decision about a transaction into the log of the coordinator, which does not run."""
    partition = partition_of(transactional_id, 50)
    manager = LogManager([data_dir], clock=lambda: int(time.time() * 1000))
    manager.start()
    log = manager.get("__transaction_state", partition)
    assert log is not None
    last = read_records(log.read(0, 1 << 20).read())[-1]
    open_now = decode_value(transactional_id, last.value)
    assert open_now.state == TransactionState.ONGOING
    state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    decided = open_now.to(state, producer_epoch=open_now.producer_epoch + 1, version=2)
    record = (last.timestamp_ms, encode_key(transactional_id), encode_value(decided))
    log.append(build_batch([record]), leader_epoch=log.leader_epoch, now_ms=last.timestamp_ms, from_client=False)
    manager.close()


def read_records(data: bytes) -> list[Any]:
    return [record for position, _ in iter_headers(data) for record in decode_records(data, position)]


def test_a_topic_that_is_deleted_does_not_hold_its_transactions(connection: RawConnection, topic: str) -> None:
    producer = Producer(connection, topic)
    assert producer.send(topic, b"v").error_code == 0
    gone = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)], timeout_ms=5000)
    assert connection.call(gone, 6).responses[0].error_code == 0
    assert producer.end(True).error_code == 0
    states = connection.call(DescribeTransactionsRequest(transactional_ids=[topic]), 0).transaction_states
    assert states[0].transaction_state == "CompleteCommit"


def test_a_restart_keeps_ids_and_open_transactions(tmp_path: Path, new_topic_name: NewName) -> None:
    topic = new_topic_name()
    with Broker(data_dir=tmp_path) as broker:
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, topic, 2)
            producer = Producer(connection, topic)
            assert producer.send(topic, b"before").error_code == 0
        broker.restart()
        with RawConnection(broker.bootstrap_servers) as connection:
            producer.connection = connection
            assert latest(connection, topic, 1) == 0
            sent = wait_for(lambda: producer.send(topic, b"after", partition=1), lambda answer: answer.error_code == 19)
            assert sent.error_code == 0
            assert producer.send(topic, b"more").error_code == 0
            assert producer.end(True).error_code == 0
            assert committed_values(connection, topic) == [b"before", b"more"]
            other = Producer(connection, topic + "-other")
            assert other.id != producer.id


def test_a_client_that_leaves_while_its_batch_waits_loses_nothing_else(new_topic_name: NewName) -> None:
    """With fsync a batch waits for the coordinator; its connection may be gone when that is done."""
    with Broker(config={"durability": "fsync"}) as broker:
        topic = new_topic_name()
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, topic)
            producer = Producer(connection, topic)
            records = batch(
                b"v", transactional=True, producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=0
            )
            connection.send(produce_request(topic, records, acks=-1, transactional_id=topic), 12)
        with RawConnection(broker.bootstrap_servers) as connection:
            successor = Producer(connection, topic)
            assert successor.send(topic, b"kept").error_code == 0
            assert successor.end(True).error_code == 0
            wait_for(lambda: committed_values(connection, topic), lambda values: not values)
            assert committed_values(connection, topic) == [b"kept"]
