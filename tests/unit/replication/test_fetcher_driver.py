"""Fetchers on loopback sockets: partitions spread, follow leaders as they change, and go on after a leader that went."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.replication import fetcher_driver
from fastq_broker.replication.catch_up import CATCH_UP_BYTES
from fastq_broker.replication.fetcher import FetcherConfig, Phase, ReplicaFetcher
from fastq_broker.replication.fetcher_driver import Assignment, NodeState, ReplicaFetchers
from fastq_broker.replication.fetcher_session import FollowerSession, ReplicaPartition
from fastq_broker.replication.follower_log import FollowerLog
from fastq_broker.surroundings import Surroundings, start_threads
from fetcher_world import BROKER_EPOCH, LATEST_LEVEL, Leader, MemoryLog
from thread_slices import KNOWS_SLICES, slice_us

from fastq._native.scheduling import set_slice_us
from fastq._native.wire import Reader, Writer
from fastq.config import ClientConfig
from fastq.errors import ErrorCode, KafkaError
from fastq.metadata import Node
from fastq.net import peers
from fastq.net.requests import EncodedRequest
from fastq.net.tcp_info import round_trip_s
from fastq.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
)

TOPIC_ID = bytes([7]) * 16
VERSIONS = [
    ApiVersionsResponse.ApiVersion(api_key=api.API_KEY, min_version=api.MIN_VERSION, max_version=api.MAX_VERSION)
    for api in (FetchRequest, ListOffsetsRequest)
]
ASKING = ApiVersionsResponse.ApiVersion(api_key=ApiVersionsRequest.API_KEY, min_version=0, max_version=4)


class Broker:
    """A leader behind a socket. A fetch without news waits `wait_s`."""

    def __init__(self, node_id: int, wait_s: float = 0.01) -> None:
        self.leader = Leader()
        self.versions = VERSIONS
        self.node_id = node_id
        self.wait_s = wait_s
        self.connections: list[asyncio.StreamWriter] = []
        self.serving: list[asyncio.Task[None]] = []
        self.asked = 0
        self._waiting = 0
        self.most_waiting = 0

    async def start(self, port: int = 0) -> Node:
        self.server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        return Node(self.node_id, "127.0.0.1", self.server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self.server.close()
        for task in self.serving:
            task.cancel()
        for writer in self.connections:
            writer.close()
        await self.server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.get_running_loop().create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                head = Reader(frame)
                key, version, correlation = head.read_int16(), head.read_int16(), head.read_int32()
                head.read_nullable_string()
                head.skip_tagged_fields()
                answer = correlation.to_bytes(4, "big") + await self._answer(key, version, frame[head.position :])
                writer.write(len(answer).to_bytes(4, "big") + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, key: int, version: int, body: bytes) -> bytes:
        if key == ApiVersionsRequest.API_KEY:
            out = Writer()
            ApiVersionsResponse(api_keys=[*self.versions, ASKING]).encode(out, version)
            return out.getvalue()
        self.asked += 1
        self._waiting += 1
        self.most_waiting = max(self.most_waiting, self._waiting)
        await asyncio.sleep(self.wait_s)
        self._waiting -= 1
        return b"\0" + self.leader.answer_bytes(EncodedRequest(key, version, (body,), bytes))


class Node2:
    """The node that follows."""

    def __init__(self, count: int = 1, **settings: Any) -> None:
        self.logs: dict[ReplicaPartition, MemoryLog] = {}
        self.turns_us: list[int] = []
        self.fetchers = ReplicaFetchers(
            FetcherConfig(replica_id=2, backoff_s=0.02, **settings),
            ClientConfig(reconnect_backoff_ms=5, reconnect_backoff_max_ms=10),
            asyncio.get_running_loop(),
            NodeState(lambda: BROKER_EPOCH, lambda: LATEST_LEVEL),
            now_ms=lambda: int(time.time() * 1000),
            count=count,
            surroundings=Surroundings(turns_us=self.turns_us.append),
        )

    def follow(self, leader: Node, epoch: int, *partitions: ReplicaPartition, fsync: bool = False) -> None:
        assignments = []
        for partition in partitions:
            log: FollowerLog = self.logs.setdefault(partition, MemoryLog(fsync=fsync))
            assignments.append(Assignment(partition, leader, epoch, log))
        self.fetchers.follow(assignments)


def partition(number: int) -> ReplicaPartition:
    return ReplicaPartition("t", TOPIC_ID, number)


def log_of(*epochs: int) -> MemoryLog:
    log = MemoryLog()
    for epoch in epochs:
        log.append(epoch, b"v" * 100)
    log.high_watermark = log.log_end_offset
    return log


def no_memory(*given: Any) -> Any:
    raise MemoryError


async def until(what: Callable[[], bool]) -> None:
    for _ in range(6000):
        if what():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("not in time")


def test_partitions_follow_their_leaders_over_two_fetchers_each() -> None:
    async def scenario() -> None:
        brokers = [Broker(1), Broker(3)]
        nodes = [await broker.start() for broker in brokers]
        follower = Node2(count=2)
        names = [partition(number) for number in range(8)]
        leads = {name: log_of(0, 0, 0) for name in names}
        for name in names:
            brokers[name.number % 2].leader.lead(name, leads[name], 0)
        for broker, node in zip(brokers, nodes, strict=True):
            follower.follow(node, 0, *(name for name in names if name.key in broker.leader.led))
        await until(lambda: all(follower.logs[name].data == leads[name].data for name in names))
        assert [len(broker.leader.sessions) for broker in brokers] == [2, 2]
        assert [broker.most_waiting for broker in brokers] == [2, 2]
        assert [broker.connections and len(broker.connections) for broker in brokers] == [2, 2]
        # The first goes: its partitions have another leader, who had written less, and goes on.
        await brokers[0].stop()
        moved = [name for name in names if name.key in brokers[0].leader.led]
        for name in moved:
            leads[name] = log_of(0, 0, 1, 1)
            brokers[1].leader.lead(name, leads[name], 1)
        follower.follow(nodes[1], 1, *moved)
        await until(lambda: all(follower.logs[name].data == leads[name].data for name in names))
        assert set(follower.fetchers.followed.values()) == {3}
        follower.fetchers.close()
        follower.fetchers.close()
        await brokers[1].stop()

    asyncio.run(scenario())


def test_a_node_that_catches_up_asks_for_long_turns_until_all_it_follows_is_here() -> None:
    async def scenario() -> None:
        brokers = [Broker(1), Broker(3)]
        nodes = [await broker.start() for broker in brokers]
        follower = Node2(partition_bytes_max=1)  # a batch a fetch
        leads = [log_of(*[0] * 4), log_of(*[0] * 12)]
        for number, (broker, node) in enumerate(zip(brokers, nodes, strict=True)):
            broker.leader.lead(partition(number), leads[number], 0)
            follower.follow(node, 0, partition(number))
        await until(lambda: all(follower.logs[partition(n)].data == leads[n].data for n in range(2)))
        await until(lambda: len(follower.turns_us) == 2)
        assert follower.turns_us == [fetcher_driver.CATCH_UP_TURNS_US, 0]
        follower.fetchers.close()
        assert follower.turns_us[2:] == []
        for broker in brokers:
            await broker.stop()

    asyncio.run(scenario())


def test_a_node_that_catches_up_knows_how_far_its_leader_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from the system, of the connection that it fetches on: one that others share its client with may lead elsewhere."""
    ways_s: dict[socket.socket, float] = {}

    def told(sock: socket.socket | None) -> float:
        assert sock is not None and round_trip_s(sock) < 30
        return ways_s.setdefault(sock, 0.003)

    monkeypatch.setattr(peers, "round_trip_s", told)

    async def scenario() -> None:
        broker = Broker(1)
        node, follower = await broker.start(), Node2(partition_bytes_max=1)
        broker.leader.lead(partition(0), log_of(*[0] * 6), 0)
        follower.follow(node, 0, partition(0))
        await until(lambda: follower.turns_us == [fetcher_driver.CATCH_UP_TURNS_US, 0])
        asked = [request.max_bytes for request in broker.leader.requests]
        assert 3 * CATCH_UP_BYTES in asked and len(ways_s) == 1
        follower.fetchers.close()
        await broker.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["unfollowed", "moved", "closed", "gone", "refused", "unasked", "others stopped"])
def test_a_node_that_catches_up_no_more_asks_for_no_long_turns(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        brokers = [Broker(1), Broker(3)]
        nodes = [await broker.start() for broker in brokers]
        follower, name = Node2(partition_bytes_max=1, catch_up_pause_s=0.3), partition(0)
        for broker in brokers:
            broker.leader.lead(name, log_of(*[0] * 3000), 0)
        follower.follow(nodes[0], 0, name)
        if end == "others stopped":
            # By their leader, which is in another epoch; and the one goes while there is a pause.
            brokers[0].leader.lead(partition(1), log_of(0), 1)
            follower.follow(nodes[0], 0, partition(1))
            (runner,) = follower.fetchers._runners.values()
            await until(lambda: runner.machine.partitions[partition(1).key].phase is Phase.STOPPED)
            await until(lambda: not runner.machine.in_flight and runner.machine.is_behind)
        await until(lambda: follower.turns_us == [fetcher_driver.CATCH_UP_TURNS_US])
        brokers[1].wait_s = 3600.0
        if end in ("unfollowed", "others stopped"):
            follower.fetchers.unfollow([name.key])
        elif end == "moved":
            follower.follow(nodes[1], 1, name)
        elif end == "closed":
            follower.fetchers.close()
            follower.fetchers.close()
        elif end == "refused":  # all of it, as to who may not ask any more
            refusal = FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            monkeypatch.setattr(brokers[0].leader, "fetch", lambda request, version: refusal)
        elif end == "unasked":
            monkeypatch.setattr(fetcher_driver, "fetch_request", no_memory)
        else:
            await brokers[0].stop()
        if end not in ("unfollowed", "moved", "closed"):
            await until(lambda: len(follower.turns_us) > 1)
        assert follower.turns_us == [fetcher_driver.CATCH_UP_TURNS_US, 0]
        follower.fetchers.close()
        for broker in brokers:
            await broker.stop()

    asyncio.run(scenario())


@pytest.mark.skipif(not KNOWS_SLICES, reason="this system has no slices")
def test_a_thread_of_the_node_that_is_begun_meanwhile_has_its_turns_as_the_system_has_them() -> None:
    """It had the long ones for good: one that reads for consumers, say."""
    found: list[int] = []

    def catch_up() -> None:
        set_slice_us(fetcher_driver.CATCH_UP_TURNS_US)
        with start_threads(1, "pool") as pool:
            found.append(pool.submit(slice_us).result())

    before = slice_us()
    loop = threading.Thread(target=catch_up)
    loop.start()
    loop.join()
    assert found == [before]


@pytest.mark.parametrize("short", ["question", "answer", "answer and failure"])
def test_a_shortage_of_memory_amid_a_question_or_its_answer_does_not_end_the_questions(
    short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No partition of that leader was followed any more."""
    left = 1

    def once(call: Callable[..., Any], *given: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise MemoryError
        return call(*given)

    async def scenario() -> None:
        broker = Broker(1)
        node = await broker.start()
        follower = Node2()
        name, leads = partition(0), log_of(0, 0, 0)
        broker.leader.lead(name, leads, 0)
        follower.follow(node, 0, name)
        fetchers, log = follower.fetchers, follower.logs[name]
        await until(lambda: log.data == leads.data)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        if short == "question":
            monkeypatch.setattr(fetcher_driver, "fetch_request", partial(once, fetcher_driver.fetch_request))
        else:
            answered = FollowerSession.answered
            monkeypatch.setattr(FollowerSession, "answered", lambda *given: once(answered, *given))
        if short == "answer and failure":  # as which it is told once more
            monkeypatch.setattr(ReplicaFetcher, "failed", no_memory)
        await until(lambda: left < 1)
        leads.append(0, b"later")
        await until(lambda: log.data == leads.data)
        fetchers.close()
        await broker.stop()

    asyncio.run(scenario())


class Waiting(Broker):
    """Its second fetch waits until more is asked on the connection, as one of ours has it."""

    reader: asyncio.StreamReader

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        super()._connected(reader, writer)

    async def _answer(self, key: int, version: int, body: bytes) -> bytes:
        if key == FetchRequest.API_KEY and self.asked == 1:
            self.asked += 1
            await until(lambda: bool(self.reader._buffer))  # type: ignore[attr-defined]
        return await super()._answer(key, version, body)


def test_what_is_followed_from_now_on_waits_for_no_long_poll() -> None:
    async def scenario() -> None:
        broker, follower = Waiting(1), Node2()
        names = [partition(0), partition(1)]
        for name in names:
            broker.leader.lead(name, log_of(0), 0)
        leader = await broker.start()
        follower.follow(leader, 0, names[0])
        await until(lambda: broker.asked == 2)
        follower.follow(leader, 0, names[1])
        await until(lambda: follower.logs[names[1]].log_end_offset == 1)
        follower.fetchers.close()
        await broker.stop()

    asyncio.run(scenario())


def test_a_leader_that_was_left_is_not_asked_any_more() -> None:
    async def scenario() -> None:
        old, new, follower, name = Broker(1), Broker(3), Node2(), partition(0)
        old.leader.lead(name, log_of(0), 0)
        follower.follow(await old.start(), 0, name)
        await until(lambda: old.asked > 2)
        lead = log_of(0, 1)
        new.leader.lead(name, lead, 1)
        follower.follow(await new.start(), 1, name)
        asked = old.asked
        await until(lambda: new.asked > 5)
        assert old.asked - asked <= 1  # one was on its way
        assert follower.logs[name].data == lead.data
        follower.fetchers.close()
        await old.stop()
        await new.stop()

    asyncio.run(scenario())


def test_what_there_was_no_memory_to_follow_no_more_is_not_followed_when_that_is_said_again() -> None:
    """Its fetcher went on with it, and wrote what its old leader had to a log that was led here by then."""

    async def scenario() -> None:
        broker, follower = Broker(1), Node2()
        leader = await broker.start()
        for first in range(20):
            name = partition(first)
            broker.leader.lead(name, log_of(0), 0)
            follower.follow(leader, 0, name)
            await until(lambda name=name: bool(follower.logs[name].data))  # type: ignore[misc]
            with suppress(MemoryError), AllocationsFail(first):
                follower.fetchers.unfollow([name.key])
            follower.fetchers.unfollow([name.key])
            runners = follower.fetchers._runners.values()
            assert not any(name.key in runner.machine.partitions for runner in runners), first
        follower.fetchers.close()
        await broker.stop()

    asyncio.run(scenario())


def test_what_is_said_one_by_one_is_asked_for_together() -> None:
    async def scenario() -> None:
        broker, follower = Broker(1), Node2(wait_ms=600_000)
        node = await broker.start()
        names = [partition(number) for number in range(5)]
        for name in names:
            broker.leader.lead(name, log_of(0), 0)
            follower.follow(node, 0, name)
        await until(lambda: len(broker.leader.requests) > 0)
        (topic,) = broker.leader.requests[0].topics
        assert [wanted.partition for wanted in topic.partitions] == [0, 1, 2, 3, 4]
        follower.fetchers.close()
        await broker.stop()

    asyncio.run(scenario())


def test_a_leader_that_comes_back_elsewhere_is_asked_there() -> None:
    async def scenario() -> None:
        broker, again, follower, name = Broker(1, wait_s=60.0), Broker(1), Node2(), partition(0)
        broker.leader.lead(name, log_of(0), 0)
        follower.follow(await broker.start(), 0, name)
        await until(lambda: broker.asked == 1)  # it will not answer within this test
        moved = log_of(0, 0, 1)
        again.leader.lead(name, moved, 1)
        follower.follow(await again.start(), 1, name)
        await until(lambda: follower.logs[name].data == moved.data)
        follower.fetchers.close()
        await broker.stop()
        await again.stop()

    asyncio.run(scenario())


def test_a_leader_that_is_away_for_a_while_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker, follower, name = Broker(1), Node2(), partition(0)
        node = await broker.start()
        lead = log_of(0)
        broker.leader.lead(name, lead, 0)
        follower.follow(node, 0, name)
        await until(lambda: follower.logs[name].log_end_offset == 1)
        await broker.stop()
        lead.append(0, b"more")
        await broker.start(node.port)
        await until(lambda: follower.logs[name].log_end_offset == 2)
        gone, back = (record.message for record in caplog.records if "following" in record.message)
        assert gone.startswith(f"following {node}: ") and back == f"following {node}: it answers again"
        follower.fetchers.unfollow([name.key])
        assert follower.fetchers.followed == {}
        lead.append(0, b"yet more")
        asked = broker.asked
        await asyncio.sleep(0.03)
        assert (broker.asked - asked <= 1, follower.logs[name].log_end_offset) == (True, 2)
        follower.fetchers.close()
        await broker.stop()

    asyncio.run(scenario())


def test_a_leader_that_cannot_speak_the_version_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker, follower = Broker(1), Node2()
        broker.versions = [ApiVersionsResponse.ApiVersion(api_key=FetchRequest.API_KEY, min_version=4, max_version=17)]
        node = await broker.start()
        follower.follow(node, 0, partition(0))
        await until(lambda: len(caplog.records) > 0)
        await asyncio.sleep(0.06)  # it is tried again meanwhile
        assert [record.levelname for record in caplog.records if "following" in record.message] == ["WARNING"]
        assert str(node) in caplog.text and "Fetch" in caplog.text
        follower.fetchers.close()
        await broker.stop()

    asyncio.run(scenario())


def test_what_the_disk_has_is_told_when_the_disk_has_it() -> None:
    async def scenario() -> None:
        broker, follower, name = Broker(1), Node2(wait_ms=600_000), partition(0)
        told: list[int] = []
        broker.leader.lead(name, log_of(0, 0), 0).on_fetch = lambda replica, offset: told.append(offset)
        follower.follow(await broker.start(), 0, name, fsync=True)
        log = follower.logs[name]
        await until(lambda: log.log_end_offset == 2)
        await asyncio.sleep(0.03)
        assert told == [0]
        log.sync()
        await until(lambda: 2 in told)
        follower.fetchers.close()
        await broker.stop()

    asyncio.run(scenario())


class QuickDisk(MemoryLog):
    """It has all on disk when it is asked to say when."""

    def wait_durable(self, offset: int, callback: Callable[[KafkaError | None], None]) -> None:
        self.synced = self.log_end_offset
        callback(None)


def test_a_disk_that_is_done_at_once_holds_up_nothing() -> None:
    async def scenario() -> None:
        broker, follower, name = Broker(1), Node2(wait_ms=600_000), partition(0)
        lead = log_of(0, 0)
        broker.leader.lead(name, lead, 0)
        follower.logs[name] = QuickDisk(fsync=True)
        follower.follow(await broker.start(), 0, name)
        await until(lambda: follower.logs[name].data == lead.data)
        lead.append(0, b"more")
        await until(lambda: follower.logs[name].data == lead.data)
        follower.fetchers.close()
        await broker.stop()

    asyncio.run(scenario())


def test_a_log_below_the_leaders_start_begins_there_anew() -> None:
    """ListOffsets over the wire."""

    async def scenario() -> None:
        broker, follower, name = Broker(1), Node2(), partition(0)
        lead = log_of(0, 0, 0)
        lead.delete_before(2)
        broker.leader.lead(name, lead, 0)
        follower.follow(await broker.start(), 0, name)
        await until(lambda: follower.logs[name].data == lead.data)
        assert follower.logs[name].log_start_offset == 2
        follower.fetchers.close()
        await broker.stop()

    asyncio.run(scenario())
