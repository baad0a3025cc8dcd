"""A change of a live topic's settings, through the whole broker: who waits in a produce or a fetch goes on at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller.config_changes import ConfigChange, ResourceChange
from fastq_broker.controller.topics import NewTopic
from fastq_broker.handlers import fetch, produce
from fastq_broker.router import Deferred

from fastq._native.records import CONTROL_ABORT, build_batch, build_transaction_marker, iter_headers
from fastq._native.wire import Writer
from fastq.errors import ErrorCode
from fastq.protocol.frames import decode_response
from fastq.protocol.messages import FetchRequest, ProduceRequest

SET, DELETE = 0, 1


def run(tmp_path: Path, test: Callable[[Broker], Awaitable[None]]) -> None:
    async def main() -> None:
        config = BrokerConfig.from_mapping({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"})
        broker = Broker(config, asyncio.get_running_loop())
        await broker.start()
        try:
            await asyncio.wait_for(test(broker), 30)
        finally:
            assert await broker.close()

    asyncio.run(main())


def ask(broker: Broker, handler: Any, request: Any, version: int) -> Any:
    """What a handler of raw frames answers: bytes, parts, or a Deferred."""
    writer = Writer()
    request.encode(writer, version)
    body = bytearray(writer.getvalue())
    connection: Any = SimpleNamespace(listener="PLAINTEXT", peer=("", 0))
    return handler.handle_frame(connection, broker, body, (handler.API_KEY, version, 3, None, 0, len(body)))


def decoded(handler: Any, answer: Any, version: int) -> Any:
    parts = answer if isinstance(answer, list) else [answer]
    raw = b"".join(part if isinstance(part, bytes) else part.read() for part in parts)
    return decode_response(raw[4:], handler.API_KEY, version)[1]


def fetch_request(min_bytes: int = 1, isolation_level: int = 0, offset: int = 0) -> FetchRequest:
    asked = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=60_000,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        isolation_level=isolation_level,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[asked])],
    )


def produce_request() -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=0, records=bytes(build_batch([(1, b"k", b"v")])))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


@pytest.mark.parametrize("key, before, after", [("durability", "fsync", "page-cache"), ("flush.messages", "1", "5")])
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_disk_that_takes_its_time_holds_nobody_up_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, before: str, after: str, isolation_level: int
) -> None:
    async def test(broker: Broker) -> None:
        broker.controller.create_topics([NewTopic("t", 1, 1, configs=[(key, before)])])
        broker.controller.settle()
        await broker.controller.flushed()
        replica = broker.replicas.get("t", 0)
        assert replica is not None
        replica.log.load()
        flusher = replica.log.dir.flusher
        held: list[Any] = []
        submit = flusher.submit

        def hold(handles: Any, done: Any) -> None:
            if any("/t-0" in handle.path for handle in handles):
                held.append(done)
            else:
                submit(handles, done)

        monkeypatch.setattr(flusher, "submit", hold)
        produced = ask(broker, produce, produce_request(), 9)
        fetched = ask(broker, fetch, fetch_request(isolation_level=isolation_level), 12)
        assert isinstance(produced, Deferred) and isinstance(fetched, Deferred)
        for _ in range(3):
            await asyncio.sleep(0)
        assert held and not produced.answered and not fetched.answered
        change = ResourceChange(ResourceType.TOPIC, "t", [ConfigChange(key, SET, after)])
        assert [result.error for result in broker.controller.alter_configs([change])] == [ErrorCode.NONE]
        await broker.controller.flushed()
        assert produced.answered
        for _ in range(3):  # ends of fetches are run in the next turn of the loop
            await asyncio.sleep(0)
        assert fetched.answered
        answer = decoded(produce, produced.answer, 9).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, 0)
        data = decoded(fetch, fetched.answer, 12).responses[0].partitions[0]
        assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 1, 1)
        assert data.records
        monkeypatch.undo()
        for done in held:
            done(None)

    run(tmp_path, test)


def test_latest_is_fetched_also_where_an_open_transaction_lost_its_records(tmp_path: Path) -> None:
    from fastq_broker.handlers import list_offsets
    from fastq_broker.router import bound_context

    from fastq.protocol.messages import ListOffsetsRequest

    async def test(broker: Broker) -> None:
        broker.controller.create_topics([NewTopic("t", 1, 1)])
        broker.controller.settle()
        await broker.controller.flushed()
        replica = broker.replicas.get("t", 0)
        assert replica is not None
        log, now = replica.log, broker.clock()
        batch = build_batch([(now, b"k", b"v")], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        log.append(batch, leader_epoch=0, now_ms=now, transaction_version=1)
        for _ in range(4):
            log.append(build_batch([(now, b"k", b"v")]), leader_epoch=0, now_ms=now)
        log.delete_records_before(3)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name="t", partitions=[ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)]
                )
            ],
        )
        connection: Any = SimpleNamespace(peer=("", 0), listener="PLAINTEXT")
        context = bound_context(broker)(connection, 7, None)
        listed: Any = list_offsets.handle(context, request)
        latest = listed.topics[0].partitions[0].offset
        assert latest == 3
        asked = fetch_request(isolation_level=1, offset=latest)
        asked.max_wait_ms = 0
        data = decoded(fetch, ask(broker, fetch, asked, 12), 12).responses[0].partitions[0]
        assert (data.error_code, data.log_start_offset, data.last_stable_offset) == (0, 3, 3)

    run(tmp_path, test)


def test_a_fetch_tells_no_aborted_transaction_beyond_its_records(tmp_path: Path) -> None:
    """Of a long log with many, each answer would have them all."""

    async def test(broker: Broker) -> None:
        broker.controller.create_topics([NewTopic("t", 1, 1)])
        broker.controller.settle()
        await broker.controller.flushed()
        replica = broker.replicas.get("t", 0)
        assert replica is not None
        log, now = replica.log, broker.clock()
        for number in range(100):
            ids: Any = {"producer_id": number, "producer_epoch": 0}
            batch = build_batch([(now, b"k", bytes(5000))], **ids, base_sequence=0, transactional=True)
            log.append(batch, leader_epoch=0, now_ms=now, transaction_version=1)
            marker = build_transaction_marker(CONTROL_ABORT, **ids, coordinator_epoch=0, timestamp_ms=now)
            log.append(marker, leader_epoch=0, now_ms=now, from_client=False)
        assert log.last_stable_offset == 200
        offset, told = 0, 0
        while offset < 200:
            asked = fetch_request(isolation_level=1, offset=offset)
            asked.topics[0].partitions[0].partition_max_bytes = 12_000
            data = decoded(fetch, ask(broker, fetch, asked, 12), 12).responses[0].partitions[0]
            headers = [header for _, header in iter_headers(bytes(data.records))]
            last, begun = headers[-1].last_offset, {header.base_offset for header in headers if not header.is_control}
            beyond = last + 5  # an entry of the index, of which there is one for each 4 KiB
            firsts = {entry.first_offset for entry in data.aborted_transactions}
            assert begun <= firsts and all(offset - 1 <= first < beyond for first in firsts)
            offset, told = last + 1, told + len(firsts)
        assert 100 <= told < 300

    run(tmp_path, test)


def test_replication_quotas_come_and_go(tmp_path: Path) -> None:
    """A broker's own rate before the cluster's default, and none once both are taken away; a topic's replicas as they are named."""
    names = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"]
    names.append("replica.alter.log.dirs.io.max.bytes.per.second")

    async def test(broker: Broker) -> None:
        rates = [broker.throttles.leader.rate, broker.throttles.follower.rate, broker.logs.moves.rate]
        none = float("inf")

        async def alter(kind: ResourceType, resource: str, *changes: ConfigChange) -> None:
            results = broker.controller.alter_configs([ResourceChange(kind, resource, list(changes))])
            assert [result.error for result in results] == [ErrorCode.NONE]
            broker.controller.settle()
            await broker.controller.flushed()

        def bounds() -> list[float]:
            return [rate.bytes_per_s_max for rate in rates]

        assert bounds() == [none] * 3
        own = str(broker.config.node_id)
        for resource, value, expected in (("", "100", 100), (own, "7", 7), (own, None, 100), ("", None, none)):
            operation = DELETE if value is None else SET
            await alter(ResourceType.BROKER, resource, *(ConfigChange(name, operation, value) for name in names))
            assert bounds() == [expected] * 3
        side = "follower.replication.throttled.replicas"
        broker.controller.create_topics([NewTopic("t", 3, 1, configs=[(side, f"1:{own}")])])
        broker.controller.settle()
        await broker.controller.flushed()
        throttle = broker.throttles.follower
        assert [number for _, number in throttle.keys] == [1] and not broker.throttles.leader.keys
        for operation, value, expected in ((SET, "*", [0, 1, 2]), (SET, f"2:{own},0:9", [2]), (DELETE, None, [])):
            await alter(ResourceType.TOPIC, "t", ConfigChange(side, operation, value))
            assert sorted(number for _, number in throttle.keys) == expected
        await alter(ResourceType.TOPIC, "t", ConfigChange(side, SET, "*"))
        broker.controller.delete_topics([broker.image.topics_by_name["t"].topic_id])
        broker.controller.settle()
        await broker.controller.flushed()
        assert not throttle.keys

    run(tmp_path, test)
