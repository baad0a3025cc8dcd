"""The transaction APIs over raw sockets, on each kind of broker: error codes by version, and what readers see."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from raw_kafka import RawConnection, batch, create_topic, fetch, produce_request
from raw_transactions import CONCURRENT, Producer, committed_values, initialize, latest, wait_for

from fastq.protocol.messages import (
    AddPartitionsToTxnRequest,
    DeleteTopicsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)
from fastq.testing import Broker

NewName = Callable[[], str]


@pytest.fixture(scope="module")
def fastq_servers(one_coordinator: Broker) -> str:
    return one_coordinator.bootstrap_servers


@pytest.fixture
def topic(connection: RawConnection, new_topic_name: NewName) -> str:
    name = new_topic_name()
    create_topic(connection, name, 3)
    for partition in range(3):
        wait_for(partial(fetch, connection, name, 0, partition=partition), lambda answer: answer.error_code != 0)
    return name


@pytest.mark.parametrize("version", [1, 2])
def test_readers_see_what_was_committed(connection: RawConnection, topic: str, version: int) -> None:
    producer = Producer(connection, topic, version)
    kept: list[bytes] = []
    for number, committed in enumerate([True, False, True, False, False, True]):
        if version == 1:
            assert wait_for(partial(producer.add, topic, 0, 1), lambda codes: CONCURRENT in codes) == [0, 0]
        for partition in (0, 1):
            answer = producer.send(topic, b"%d" % number, b"x%d" % number, partition=partition)
            assert answer.error_code == 0, answer
        assert latest(connection, topic, 1) == number * 3
        assert latest(connection, topic, 0) == number * 3 + 2
        assert producer.finish(committed) == 0
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
        assert producer.finish(True) == 0
        assert (producer.id, producer.epoch) == (before[0], before[1] + number + 1)
        again = wait_for(partial(connection.call, request, 5), lambda answer: answer.error_code == CONCURRENT)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, producer.id, producer.epoch)


def test_a_transaction_of_another_epoch_starts_at_sequence_0(connection: RawConnection, topic: str) -> None:
    producer = Producer(connection, topic)
    producer.sequences[topic, 0] = 5
    assert producer.send(topic, b"v").error_code == 45
    producer.sequences.clear()
    assert producer.send(topic, b"v").error_code == 0
    producer.finish(True)
    producer.sequences[topic, 0] = 1
    assert producer.send(topic, b"v").error_code == 45


def test_version_1_goes_on_with_its_sequence(connection: RawConnection, topic: str) -> None:
    producer = Producer(connection, topic, 1)
    for sequence in range(3):
        assert wait_for(partial(producer.add, topic, 0), lambda codes: CONCURRENT in codes) == [0]
        assert producer.sequences.get((topic, 0), 0) == sequence
        assert producer.send(topic, b"v").error_code == 0
        assert producer.finish(True) == 0
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
    assert producer.finish(False) == 0


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
    assert second.finish(True) == 0
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
    assert producer.finish(True) == 48
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
            [
                partition.partition_error_code
                for partition in sorted(
                    result.topic_results[0].results_by_partition, key=lambda partition: partition.partition_index
                )
            ]
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
    assert [(entry.topic, sorted(entry.partitions)) for entry in state.topics] == [(topic, [0, 2])]
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
    assert producer.finish(False) == 0
    assert described().transaction_state == "CompleteAbort"


def test_an_administrator_ends_a_hanging_transaction(connection: RawConnection, topic: str) -> None:
    Producer(connection, topic)
    producer = Producer(connection, topic)
    producer.send(topic, b"stuck")

    def write(epoch: int, version: int, coordinator_epoch: int = 0) -> list[int]:
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer.id,
            producer_epoch=epoch,
            transaction_result=False,
            coordinator_epoch=coordinator_epoch,
            transaction_version=2 if version == 2 else 0,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
        )
        (result,) = connection.call(WriteTxnMarkersRequest(markers=[marker]), version).markers
        assert result.producer_id == producer.id
        return [partition.error_code for partition in result.topics[0].partitions]

    assert write(producer.epoch - 1, 1) == [47]
    assert write(producer.epoch, 2) == [47], "under version 2 a marker has the next epoch"
    assert latest(connection, topic, 1) == 0
    assert write(producer.epoch, 1, coordinator_epoch=4) == [0]
    assert latest(connection, topic, 1) == latest(connection, topic, 0) == 2
    assert write(producer.epoch, 1, coordinator_epoch=3) == [52]
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


def test_a_topic_that_is_deleted_does_not_hold_its_transactions(connection: RawConnection, topic: str) -> None:
    producer = Producer(connection, topic)
    assert producer.send(topic, b"v").error_code == 0
    gone = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)], timeout_ms=5000)
    assert connection.call(gone, 6).responses[0].error_code == 0
    assert producer.finish(True) == 0
    states = connection.call(DescribeTransactionsRequest(transactional_ids=[topic]), 0).transaction_states
    assert states[0].transaction_state == "CompleteCommit"
