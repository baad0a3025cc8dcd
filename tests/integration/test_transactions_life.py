"""Transactions on broker processes of their own: fsync, time-outs, restarts, and decisions that a killed broker left behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.log import LogManager
from fastq_broker.transactions.records import decode_value, encode_key, encode_value
from fastq_broker.transactions.states import TransactionState
from raw_cluster import connect
from raw_kafka import RawConnection, batch, create_topic, produce_request
from raw_transactions import CONCURRENT, Producer, committed_values, latest, wait_for
from under_test import ONE_COORDINATOR, broker_under_test, nodes_of, wait_in_sync

from fastq._native.records import build_batch, decode_records, iter_headers

pytestmark = pytest.mark.any_nodes

NewName = Callable[[], str]


@pytest.mark.parametrize("version", [1, 2])
def test_with_fsync_nothing_is_answered_before_it_is_on_disk(version: int, new_topic_name: NewName) -> None:
    """Every step waits for the disk, and none of them fails because the one before it is not there yet."""
    with (
        broker_under_test(config={"durability": "fsync", **ONE_COORDINATOR}) as broker,
        connect(broker.bootstrap_servers) as connection,
    ):
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
    interval = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50, **ONE_COORDINATOR}
    with broker_under_test(config=interval) as broker, connect(broker.bootstrap_servers) as connection:
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
    with broker_under_test(tmp_path, ONE_COORDINATOR) as broker:
        with connect(broker.bootstrap_servers) as connection:
            create_topic(connection, topic, 2)
            producer = Producer(connection, topic)
            assert producer.send(topic, b"a").error_code == producer.send(topic, b"b", partition=1).error_code == 0
        wait_in_sync(broker)
        broker.kill()
        for node in nodes_of(broker):
            decide(node.data_dir, topic, committed)
        broker.start()
        with connect(broker.bootstrap_servers, topic=topic) as connection:
            wait_for(lambda: latest(connection, topic, 1), lambda offset: offset < 2)
            see(connection, topic, [b"a"] if committed else [])
            see(connection, topic, [b"b"] if committed else [], partition=1)
            producer.connection = connection
            answer = wait_for(lambda: producer.end(committed), lambda answer: answer.error_code in (14, CONCURRENT))
            assert (answer.error_code, producer.epoch) == (0, 1), "the client's retry"
            assert producer.send(topic, b"next").error_code == 0
            assert producer.end(True).error_code == 0
            wait_for(lambda: committed_values(connection, topic)[-1:], lambda values: values != [b"next"])
            assert committed_values(connection, topic)[-1] == b"next"


def see(connection: RawConnection, topic: str, values: list[bytes], partition: int = 0) -> None:
    """A reader finds these, and no others, once a leader of several nodes knows how far its followers are, and the markers are there."""

    def seen() -> list[bytes]:
        return committed_values(connection, topic, partition)

    assert wait_for(seen, lambda found: found != values) == values


def decide(data_dir: Path, transactional_id: str, committed: bool) -> None:
    """Write the decision about a transaction into the log of the coordinator, which does not run, or of one of its followers."""
    manager = LogManager([data_dir], clock=lambda: int(time.time() * 1000))
    manager.start()
    log = manager.get("__transaction_state", 0)
    assert log is not None
    last = read_records(log.read(0, 1 << 20).read())[-1]
    open_now = decode_value(transactional_id, last.value)
    assert open_now.state == TransactionState.ONGOING
    state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    decided = open_now.to(state, producer_epoch=open_now.producer_epoch + 1, version=2)
    record = (last.timestamp_ms, encode_key(transactional_id), encode_value(decided))
    log.append(build_batch([record]), leader_epoch=log.leader_epoch, now_ms=last.timestamp_ms, from_client=False)
    manager.close()


def test_a_record_that_makes_no_sense_is_named_and_the_other_ids_are_served(
    tmp_path: Path, new_topic_name: NewName
) -> None:
    topic = new_topic_name()
    names = [f"{topic}-{number}" for number in range(2)]
    with broker_under_test(tmp_path, ONE_COORDINATOR) as broker:
        with connect(broker.bootstrap_servers) as connection:
            create_topic(connection, topic)
            producers = [Producer(connection, name) for name in names]
            assert producers[1].send(topic, b"v").error_code == 0
        broker.stop()
        now_ms = int(time.time() * 1000)
        rubbish = build_batch([(now_ms, encode_key(names[0]), b"\x00\x01rubbish")])
        for node in nodes_of(broker):
            manager = LogManager([node.data_dir], clock=lambda: int(time.time() * 1000))
            manager.start()
            log = manager.get("__transaction_state", 0)
            assert log is not None
            written = log.append(rubbish, leader_epoch=log.leader_epoch, now_ms=now_ms, from_client=False)
            manager.close()
        broker.start()
        with connect(broker.bootstrap_servers, topic=topic) as connection:
            for producer in producers:
                producer.connection = connection
            assert (
                wait_for(lambda: producers[1].send(topic, b"w"), lambda answer: answer.error_code == 19).error_code == 0
            )
            assert producers[1].end(True).error_code == 0
            see(connection, topic, [b"v", b"w"])
            assert producers[0].state() == "Empty", "its last record that makes sense counts"
        named = f"the record at offset {written.base_offset} ("
        assert named in broker.log and "__transaction_state-0/" in broker.log.split(named)[1].splitlines()[0]


def read_records(data: bytes) -> list[Any]:
    return [record for position, _ in iter_headers(data) for record in decode_records(data, position)]


def test_a_restart_keeps_ids_and_open_transactions(tmp_path: Path, new_topic_name: NewName) -> None:
    topic = new_topic_name()
    with broker_under_test(tmp_path, ONE_COORDINATOR) as broker:
        with connect(broker.bootstrap_servers) as connection:
            create_topic(connection, topic, 2)
            producer = Producer(connection, topic)
            assert producer.send(topic, b"before").error_code == 0
        broker.restart()
        with connect(broker.bootstrap_servers, topic=topic) as connection:
            producer.connection = connection
            assert wait_for(lambda: latest(connection, topic, 1), lambda offset: offset == -1) == 0
            sent = wait_for(lambda: producer.send(topic, b"after", partition=1), lambda answer: answer.error_code == 19)
            assert sent.error_code == 0
            assert producer.send(topic, b"more").error_code == 0
            assert producer.end(True).error_code == 0
            see(connection, topic, [b"before", b"more"])
            other = Producer(connection, topic + "-other")
            assert other.id != producer.id


def test_a_client_that_leaves_while_its_batch_waits_loses_nothing_else(new_topic_name: NewName) -> None:
    """With fsync a batch waits for the coordinator; its connection may be gone when that is done."""
    with broker_under_test(config={"durability": "fsync", **ONE_COORDINATOR}) as broker:
        topic = new_topic_name()
        with connect(broker.bootstrap_servers) as connection:
            create_topic(connection, topic)
            producer = Producer(connection, topic)
            records = batch(
                b"v", transactional=True, producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=0
            )
            connection.send(produce_request(topic, records, acks=-1, transactional_id=topic), 12)
        with connect(broker.bootstrap_servers, topic=topic) as connection:
            successor = Producer(connection, topic)
            assert successor.send(topic, b"kept").error_code == 0
            assert successor.end(True).error_code == 0
            see(connection, topic, [b"kept"])
