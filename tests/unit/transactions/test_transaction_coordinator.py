"""The coordinator inside a broker of this process: partitions that move away and back, ids at hand, who waits."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, NewTopic
from fastq_broker.handlers import produce, write_txn_markers
from fastq_broker.replication.shared import Replication
from fastq_broker.router import Deferred, bound_context
from fastq_broker.server import flexible_versions
from fastq_broker.transactions import Operation, markers
from fastq_broker.transactions.markers import UNTOLD_MS, MarkerWriter
from fastq_broker.transactions.transaction import Partition, Transaction

from fastq._native.produce_path import scan_request
from fastq._native.records import build_batch
from fastq.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    TransactionAbortable,
    error_for_code,
)
from fastq.protocol.frames import encode_request
from fastq.protocol.messages import ProduceRequest, WriteTxnMarkersRequest

PLACE = ("t", 0)


def run(tmp_path: Path, test: Callable[[Broker], Awaitable[None]], **settings: str) -> None:
    """A test within a broker's loop."""

    async def main() -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        config = BrokerConfig.from_mapping({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0", **named})
        broker = Broker(config, asyncio.get_running_loop())
        await broker.start()
        try:
            broker.controller.create_topics([NewTopic("t", 2, 1)])
            broker.controller.settle()
            await asyncio.wait_for(test(broker), 30)
        finally:
            assert await broker.close()

    asyncio.run(main())


async def patiently(ask: Callable[[], Any]) -> Any:
    """What `ask` answers once the coordinator is there."""
    while True:
        try:
            answer = ask()
            return await answer if inspect.isawaitable(answer) else answer
        except (CoordinatorNotAvailable, CoordinatorLoadInProgress):
            await asyncio.sleep(0.005)


async def opened(broker: Broker) -> Transaction:
    """A transaction with one partition."""
    txn: Transaction = await patiently(lambda: broker.transactions.initialize("id", 60_000, None))
    await patiently(
        lambda: broker.transactions.add_partitions("id", txn.producer_id, txn.producer_epoch, frozenset({PLACE}), 2)
    )
    return txn


@pytest.mark.parametrize("state", ["torn", "waiting", "nowhere"])
def test_a_partition_that_could_not_be_begun_to_be_loaded_is_without_being_asked_for(
    tmp_path: Path, state: str
) -> None:
    """For want of memory: the transaction of a client that is gone stood, and with it who reads what is committed, until the next change
    of the metadata."""

    async def test(broker: Broker) -> None:
        await opened(broker)
        runtime = broker.transactions.runtime
        partition = runtime.partition_for("id")
        shard = runtime.shard_of(partition)
        if state == "torn":
            runtime._active[partition][0].closed = True
        else:
            runtime.unload(partition)
            runtime._waiting += [partition] if state == "waiting" else []
        while (found := runtime.shard_of(partition)) is None:  # noqa: ASYNC110 - it is not to be asked for
            await asyncio.sleep(0.005)
        assert found is not shard and found.transactions["id"].state.label == "Ongoing"

    run(tmp_path, test, transaction_abort_timed_out_transaction_cleanup_interval_ms="10")


@pytest.mark.parametrize("heard", [True, False])
def test_a_node_that_no_controller_hears_ends_no_producer(tmp_path: Path, heard: bool) -> None:
    """Another node may coordinate by now, with a transaction that this one knows nothing of: its refusal was the producer's end."""

    async def test(broker: Broker) -> None:
        transactions = broker.transactions
        txn: Transaction = await patiently(lambda: transactions.initialize("id", 60_000, None))
        broker.cluster = SimpleNamespace(is_heard=heard)  # type: ignore[assignment]
        asks: list[tuple[int, int, type[Exception]]] = [
            (txn.producer_id, txn.producer_epoch, InvalidTxnState),
            (txn.producer_id, txn.producer_epoch + 3, ProducerFenced),
            (txn.producer_id + 1, txn.producer_epoch, InvalidProducerIdMapping),
        ]
        try:
            for producer_id, epoch, error in asks:
                with pytest.raises(error if heard else CoordinatorNotAvailable):
                    transactions.end("id", producer_id, epoch, True, 2)
        finally:
            broker.cluster = None

    run(tmp_path, test)


@pytest.mark.parametrize("heard", [True, False])
def test_a_node_that_no_controller_hears_refuses_no_batch_for_good(tmp_path: Path, heard: bool) -> None:
    """What may be appended goes by the same states: a transaction was aborted, and a producer ended, that only this node did not know."""

    async def test(broker: Broker) -> None:
        txn = await opened(broker)
        producer_id, epoch = txn.producer_id, txn.producer_epoch
        transactions = broker.transactions
        asks: list[tuple[int, int, int, Operation, type[Exception], type[Exception]]] = [
            (producer_id, epoch + 3, 0, Operation.ADD, InvalidProducerEpoch, ProducerFenced),
            (producer_id, epoch + 3, 0, Operation.ABORTABLE, InvalidProducerEpoch, ProducerFenced),
            (producer_id + 1, epoch, 0, Operation.ADD, InvalidProducerIdMapping, InvalidProducerIdMapping),
            (producer_id, epoch, 1, Operation.ABORTABLE, TransactionAbortable, NotEnoughReplicas),
            (producer_id, epoch, 1, Operation.INVALID_STATE, InvalidTxnState, NotEnoughReplicas),
        ]
        broker.cluster = SimpleNamespace(is_heard=heard)  # type: ignore[assignment]
        try:
            for asked_id, asked_epoch, index, wanted, refused, looked_up in asks:
                with pytest.raises(refused if heard else NotEnoughReplicas):
                    await transactions.check("id", asked_id, asked_epoch, "t", index, wanted)
                place = frozenset({("t", index)})
                if index and heard:
                    assert transactions.verify("id", asked_id, asked_epoch, place) == place
                else:
                    with pytest.raises(looked_up if heard else CoordinatorNotAvailable):
                        transactions.verify("id", asked_id, asked_epoch, place)
            assert not transactions.verify("id", producer_id, epoch, frozenset({PLACE}))
        finally:
            broker.cluster = None

    run(tmp_path, test)


@pytest.mark.parametrize("heard", [True, False])
def test_a_node_that_no_controller_hears_confirms_nothing_that_it_does_not_write(tmp_path: Path, heard: bool) -> None:
    """Transactions of version 1 keep their epoch: the end of the one before was taken for that of the one that another node has now, which
    was counted as committed and then aborted for its time-out."""

    async def test(broker: Broker) -> None:
        txn = await opened(broker)
        transactions = broker.transactions
        producer = txn.producer_id, txn.producer_epoch

        def asked_again(ask: Callable[[], Any]) -> None:
            broker.cluster = SimpleNamespace(is_heard=heard)  # type: ignore[assignment]
            try:
                if heard:
                    assert isinstance(ask(), Transaction), "it is known already"
                else:
                    with pytest.raises(CoordinatorNotAvailable):
                        ask()
            finally:
                broker.cluster = None

        asked_again(lambda: transactions.add_partitions("id", *producer, frozenset({PLACE}), 0))
        await patiently(lambda: transactions.end("id", *producer, True, 0))
        completed = asyncio.get_running_loop().create_future()
        if transactions.shard("id").wait_settled("id", lambda: completed.set_result(None)):
            await completed
        asked_again(lambda: transactions.end("id", *producer, True, 0))

    run(tmp_path, test)


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
def test_a_partition_that_moves_away_and_back_has_lost_nothing(tmp_path: Path, durability: str) -> None:
    async def test(broker: Broker) -> None:
        txn = await opened(broker)
        transactions = broker.transactions
        transactions.runtime.unload(transactions.runtime.partition_for("id"))
        with pytest.raises(NotCoordinator):
            transactions.end("id", txn.producer_id, txn.producer_epoch, True, 2)
        with pytest.raises(NotEnoughReplicas, match="could not be verified"):
            await transactions.check("id", txn.producer_id, txn.producer_epoch, *PLACE, Operation.ADD)
        transactions.follow()
        ended = await patiently(lambda: transactions.end("id", txn.producer_id, txn.producer_epoch, True, 2))
        assert ended.next_producer == (txn.producer_id, txn.producer_epoch + 1)

    run(tmp_path, test, durability=durability)


def test_what_a_shortage_has_kept_shut_is_coordinated_once_it_is_led(tmp_path: Path) -> None:
    """No change of the metadata says so a second time."""

    async def test(broker: Broker) -> None:
        txn = await opened(broker)
        transactions = broker.transactions
        transactions.runtime.unload(transactions.runtime.partition_for("id"))
        broker._open_again()
        with pytest.raises(NotCoordinator):
            transactions.end("id", txn.producer_id, txn.producer_epoch, True, 2)
        broker.partitions._kept_shut.add(TRANSACTIONS_TOPIC)
        broker._open_again()
        await patiently(lambda: transactions.end("id", txn.producer_id, txn.producer_epoch, True, 2))

    run(tmp_path, test)


def test_who_waits_for_the_end_of_a_transaction_hears_that_its_coordinator_has_moved(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        txn = await opened(broker)
        transactions = broker.transactions
        ended = await patiently(lambda: transactions.end("id", txn.producer_id, txn.producer_epoch, True, 2))
        waiting = asyncio.ensure_future(transactions.check("id", *ended.next_producer, *PLACE, Operation.ADD))
        transactions.runtime.unload(transactions.runtime.partition_for("id"))
        with pytest.raises(NotEnoughReplicas):
            await waiting

    run(tmp_path, test, durability="fsync")


def test_a_check_waits_until_the_partition_is_added_for_good(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        txn = await opened(broker)
        transactions = broker.transactions
        producer = txn.producer_id, txn.producer_epoch
        await transactions.check("id", *producer, *PLACE, Operation.ABORTABLE)
        with pytest.raises(TransactionAbortable):
            await transactions.check("id", *producer, "t", 1, Operation.ABORTABLE)
        await transactions.check("id", *producer, "t", 1, Operation.ADD)
        await transactions.check("id", *producer, "t", 1, Operation.INVALID_STATE)
        with pytest.raises(InvalidProducerEpoch):
            await transactions.check("id", txn.producer_id, 99, "t", 1, Operation.ADD)

    run(tmp_path, test, durability="fsync")


def test_producer_ids_are_fetched_ahead_and_never_given_twice(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        asked = [
            patiently(lambda number=number: broker.transactions.initialize(f"id-{number}", 60_000, None))
            for number in range(50)
        ]
        given = await asyncio.gather(*asked)
        assert len({txn.producer_id for txn in given}) == 50
        assert {txn.producer_epoch for txn in given} == {0}
        (other,) = await broker.producer_ids.take()
        assert other not in {txn.producer_id for txn in given}

    run(tmp_path, test)


def test_nothing_is_created_before_it_is_asked_for(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        assert broker.controller.image.topic("__transaction_state") is None
        with pytest.raises(CoordinatorNotAvailable):
            broker.transactions.initialize("id", 60_000, None)
        broker.controller.settle()
        assert broker.controller.image.topic("__transaction_state") is not None

    run(tmp_path, test)


def test_a_shard_that_raises_does_not_keep_the_others_from_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(broker: Broker) -> None:
        seen: list[str] = []

        def broken(*_: object) -> int:
            raise ValueError("broken shard")

        shards = [
            SimpleNamespace(abort_timed_out=broken, expire=broken),
            SimpleNamespace(abort_timed_out=lambda: seen.append("abort"), expire=lambda ms: seen.append("expire")),
        ]
        monkeypatch.setattr(broker.transactions.runtime, "shards", lambda: shards)
        broker.transactions._abort_late()
        broker.transactions._expire()
        assert seen == ["abort", "expire"]
        monkeypatch.undo()

    run(tmp_path, test)
    assert caplog.text.count("broken shard") >= 2


def test_markers_that_cannot_be_written_are_said_at_a_bounded_rate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition that is away gets a marker of each transaction that ends, and each is tried again."""

    async def test(broker: Broker) -> None:
        now_ms = [0]
        ports: Any = SimpleNamespace(
            replicas=broker.replicas,
            image=broker.image,
            cluster=None,
            clock=broker.clock,
            monotonic_ms=lambda: now_ms[0],
        )
        writer = MarkerWriter(ports)
        txn = await opened(broker)
        left: list[frozenset[Partition]] = []
        replica = broker.replicas.get(*PLACE)
        assert replica is not None
        replica.leader_id = 99
        for number in range(500):
            now_ms[0] = number * UNTOLD_MS // 400
            writer.write_all(0, txn, frozenset({PLACE}), left.append)
        replica.leader_id = broker.node_id
        assert left == [frozenset({PLACE})] * 500

    run(tmp_path, test)
    lines = [record.getMessage() for record in caplog.records if "no marker into" in record.getMessage()]
    assert len(lines) == 2
    assert "t-0, trying again" in lines[0]
    assert "399 times more" in lines[1]


def test_a_marker_whose_failure_cannot_be_said_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there was no memory for the line in the log, who waited for the markers was never told."""

    def no_memory(*_: object) -> None:
        raise MemoryError("none left")

    ports: Any = SimpleNamespace(monotonic_ms=lambda: 0, image=SimpleNamespace(partition=lambda *at: at))
    writer = MarkerWriter(ports)
    asked: list[Callable[[KafkaError], None]] = []
    monkeypatch.setattr(writer, "_write_anywhere", lambda at, marker, on_done: asked.append(on_done))
    monkeypatch.setattr(writer, "_say", no_memory)
    left: list[frozenset[Partition]] = []
    writer.write_all(0, Transaction("id", 1, 60_000), frozenset({PLACE}), left.append)
    with pytest.raises(MemoryError):
        asked[0](error_for_code(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert left == [frozenset({PLACE})]


@pytest.mark.parametrize("asked_for", [True, False])
def test_markers_are_asked_for_again_once_those_before_are_told(
    monkeypatch: pytest.MonkeyPatch, asked_for: bool
) -> None:
    """Begun again while some waited for their node, they came behind the transaction's end, and ended the next one of its epoch."""
    ports: Any = SimpleNamespace(monotonic_ms=lambda: 0, image=SimpleNamespace(partition=lambda *at: at))
    writer = MarkerWriter(ports)
    first, second, third = (("t", index) for index in range(3))
    asked: dict[Partition, Callable[[KafkaError | None], None]] = {}

    def write(at: Partition, marker: object, on_done: Callable[[KafkaError | None], None]) -> None:
        if at != second or asked_for:
            asked[at] = on_done
        if at == second:
            raise MemoryError("none left")

    monkeypatch.setattr(writer, "_write_anywhere", write)
    left: list[frozenset[Partition]] = []
    writer.write_all(0, Transaction("id", 1, 60_000), frozenset({first, second, third}), left.append)
    asked[first](None)
    assert not left
    asked[third](None)
    assert left == [frozenset({second})]
    if asked_for:
        asked[second](None)
        assert len(left) == 1


def test_markers_whose_time_limit_cannot_be_set_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError("none left")

    ports: Any = SimpleNamespace(
        monotonic_ms=lambda: 0,
        image=SimpleNamespace(partition=lambda *at: at),
        loop=SimpleNamespace(call_later=no_memory),
    )
    writer = MarkerWriter(ports)
    timed_out = error_for_code(ErrorCode.REQUEST_TIMED_OUT)
    monkeypatch.setattr(writer, "_write_anywhere", lambda at, marker, on_done: lambda: on_done(timed_out))
    left: list[frozenset[Partition]] = []
    writer.write_all(0, Transaction("id", 1, 60_000), frozenset({PLACE}), left.append)
    assert left == [frozenset({PLACE})]


async def markers_written(broker: Broker, txn: Transaction, *places: Partition) -> dict[Partition, int]:
    """What WriteTxnMarkers answers for each of these partitions, asked for all in one request."""
    wanted = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        transaction_result=True,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])
            for topic, index in places
        ],
    )
    connection: Any = SimpleNamespace(listener="PLAINTEXT", peer=("127.0.0.1", 1))
    context = bound_context(broker)(connection, 1, b"test")
    response = await write_txn_markers.handle(context, WriteTxnMarkersRequest(markers=[wanted]))
    return {
        (topic.name, result.partition_index): result.error_code
        for marker in response.markers
        for topic in marker.topics
        for result in topic.partitions
    }


def test_a_partition_with_too_few_in_sync_is_refused_its_marker_at_once(tmp_path: Path) -> None:
    """It was written, and waited for the others: all markers for the partitions of that node waited behind it, 30 s each time."""

    async def test(broker: Broker) -> None:
        txn = await opened(broker)
        replica = broker.replicas.get(*PLACE)
        assert replica is not None
        end = replica.log.log_end_offset
        replica.under_min_isr = True
        assert await markers_written(broker, txn, PLACE, ("t", 1)) == {
            PLACE: ErrorCode.NOT_ENOUGH_REPLICAS,
            ("t", 1): 0,
        }
        assert replica.log.log_end_offset == end
        replica.under_min_isr = False
        assert await markers_written(broker, txn, PLACE) == {PLACE: 0}

    run(tmp_path, test)


def test_a_partition_whose_replicas_do_not_follow_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator of a topic of its own hears of the marker all the same, once the replicas have it."""

    async def test(broker: Broker) -> None:
        txn = await opened(broker)
        await patiently(lambda: broker.groups.shard("g"))
        slow = (OFFSETS_TOPIC, 0)
        replica, alone = broker.replicas.get(*slow), broker.image.partition(*slow)
        assert replica is not None and alone is not None
        replica._replication = Replication(
            broker.node_id, lambda node: None, lambda: 0, lag_max_ms=30_000, follow=lambda *_: None
        )
        both = (broker.node_id, broker.node_id + 1)
        replica.apply(alone._replace(partition_epoch=alone.partition_epoch + 1, replicas=both, isr=both))
        assert replica.shared is not None
        told: list[tuple[int, ...]] = []
        with monkeypatch.context() as patch:
            patch.setattr(markers, "TIMEOUT_S", 0)
            patch.setattr(broker.groups.runtime, "marker_written", lambda *marker: told.append(marker))
            assert await markers_written(broker, txn, PLACE, slow) == {PLACE: 0, slow: ErrorCode.REQUEST_TIMED_OUT}
            given_up: asyncio.Queue[frozenset[Partition]] = asyncio.Queue()
            broker.transactions.markers.write_all(0, txn, frozenset({PLACE, slow}), given_up.put_nowait)
            assert await given_up.get() == {slow}, "the coordinator's own, of which who waits for the end is told"
            assert told == []
            replica.shared.fetched(both[1], replica.log.log_end_offset, 0, -1)
            assert told == [(0, txn.producer_id, txn.producer_epoch, committed) for committed in (True, False)]
        replica.apply(alone)

    run(tmp_path, test, offsets_topic_num_partitions="1")


def test_a_batch_that_waited_and_cannot_be_answered_has_its_connection_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection waited for it for ever, and was read from no more."""

    def no_memory(*_: Any) -> bytes:
        raise MemoryError("none left")

    async def test(broker: Broker) -> None:
        txn = await opened(broker)
        told: asyncio.Queue[str] = asyncio.Queue()
        connection: Any = SimpleNamespace(complete=lambda *_: told.put_nowait("an answer"), fail=told.put_nowait)
        producer = {"producer_id": txn.producer_id, "producer_epoch": txn.producer_epoch, "base_sequence": 0}
        records = bytes(build_batch([(0, None, b"v", [])], transactional=True, **producer))
        batch = ProduceRequest.PartitionProduceData(index=1, records=records)
        topic = ProduceRequest.TopicProduceData(name="t", partition_data=[batch])
        request = ProduceRequest(transactional_id="id", acks=1, timeout_ms=1000, topic_data=[topic])
        frame = bytearray(encode_request(1, "test", request, 12))
        header = scan_request(frame, 0, len(frame), flexible_versions(), len(frame))
        assert header is not None
        with monkeypatch.context() as patch:
            patch.setattr(produce, "_append_all", no_memory)
            deferred = produce.handle_frame(connection, broker, frame, header)
            assert isinstance(deferred, Deferred), "the partition is being added to the transaction"
            deferred.attached = True
            assert (await asyncio.wait_for(told.get(), 10)).startswith("Produce failed")

    run(tmp_path, test, durability="fsync")
