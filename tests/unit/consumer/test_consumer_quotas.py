"""What a consumer does while a quota keeps it from asking a broker (KIP-219)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from consumer_fakes import SocketCluster
from consumer_on_sockets import async_consumer, consumer, fill

from fastq import Consumer, TopicPartition
from fastq.consumer.effects import Outgoing
from fastq.consumer.group.commits import OFFSET_COMMIT_API, codes_answered
from fastq.errors import RequestTimedOut, ThrottlingQuotaExceeded
from fastq.metadata import ZERO_UUID
from fastq.protocol.messages import OffsetCommitResponse

TP = TopicPartition("t", 0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_call_that_a_quota_holds_up_names_it(cluster: SocketCluster, asynchronous: bool) -> None:
    fill(cluster)

    def mute(core: Any) -> None:
        for node_id in core.metadata.nodes:
            core.throttle(node_id, 60.0, core.clock())

    async def main() -> None:
        async with async_consumer(cluster, "logs") as reader:
            await reader.end_offsets([("logs", 0)])
            mute(reader._core)
            await reader.end_offsets([("logs", 0)], timeout=0.05)

    def blocking() -> None:
        with consumer(cluster, "logs") as reader:
            reader.end_offsets([("logs", 0)])
            mute(reader._core)
            reader.end_offsets([("logs", 0)], timeout=0.05)

    with pytest.raises(RequestTimedOut) as caught:
        if asynchronous:
            asyncio.run(main())
        else:
            blocking()
    assert isinstance(caught.value.cause, ThrottlingQuotaExceeded)
    assert "(node 1) keeps it from being asked" in str(caught.value.cause)


def test_a_call_that_waits_for_another_broker_names_no_quota(cluster: SocketCluster) -> None:
    """What kept records from being fetched hid why the broker that the call waited for could not be reached."""
    fill(cluster)
    with consumer(cluster, "logs") as reader:
        assert reader.poll(timeout=30)
        core: Any = reader._core
        core.throttle(1, 60.0, core.clock())
        causes = []
        for node_id in (1, 2):

            def asks(now: float, can_send: Callable[[int], bool], node_id: int = node_id) -> list[Outgoing]:
                can_send(node_id)
                return []

            query: Any = SimpleNamespace(requests=asks, wants_metadata=None)
            reader._queries.append(query)
            reader._step()
            causes.append(getattr(reader._timed_out("end_offsets()", 1.0), "cause", None))
            reader._queries.remove(query)
        assert isinstance(causes[0], ThrottlingQuotaExceeded) and causes[1] is None


def test_the_end_of_a_quota_is_waited_for_without_a_look_around(cluster: SocketCluster) -> None:
    """An AsyncConsumer took fifty turns a second meanwhile, as while it waits for a connection."""
    fill(cluster)
    with consumer(cluster, "logs") as reader:
        assert reader.poll(timeout=30)
        core = reader._core
        core.throttle(1, 60.0, core.clock())
        reader._sends_blocked = False
        assert not reader._can_send(1) and not reader._sends_blocked
        wait_s = reader._wakeup_in()
        assert wait_s is not None and 50.0 < reader._heard_at - core.clock() <= 60.0


def test_a_quota_that_comes_with_a_commit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of all other answers: who commits often is who meets it."""
    consumer: Any = Consumer("t", group_id="g", bootstrap_servers="127.0.0.1:1")
    core, answered = consumer._core, list[Any]()
    monkeypatch.setattr(core, "api_version", lambda *_args, **_more: 9)
    monkeypatch.setattr(core, "send", lambda node_id, request, on_done, **_more: answered.append((request, on_done)))
    part = OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=0, error_code=0)
    topic = OffsetCommitResponse.OffsetCommitResponseTopic(name="t", partitions=[part])
    body = OffsetCommitResponse(throttle_time_ms=60_000, topics=[topic]).to_bytes(9)
    taken: list[Any] = []
    consumer._send(
        Outgoing(
            -1,
            OFFSET_COMMIT_API,
            lambda version: b"",
            partial(codes_answered, {TP: ZERO_UUID}),
            lambda *outcome: taken.append(outcome[:2]),
        )
    )
    ((request, on_done),) = answered
    on_done(request.decode(bytearray(body)), None)
    assert taken == [({TP: 0}, None)]
    assert core.throttled_until(-1) > core.clock() + 50.0
    consumer._closed = True
