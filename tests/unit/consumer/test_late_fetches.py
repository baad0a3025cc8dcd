"""A fetch that is not answered in time: what the log says of the broker, and when it takes that back."""

from __future__ import annotations

import logging

import pytest
from test_closest_replica import LEADER, World
from virtual_time import A, VirtualTime

from fastq._native.fetch import decode_fetch_response
from fastq._native.wire import Writer
from fastq.consumer.fetcher import LATE_S
from fastq.errors import ConnectionClosed, ConnectionTimeout
from fastq.net.troubles import GRACE_S
from fastq.protocol.messages import FetchResponse


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if " read from" in record.getMessage()]
    caplog.clear()
    return found


def late(caplog: pytest.LogCaptureFixture) -> tuple[World, list[str]]:
    """A world whose leader has not answered a fetch for so long that it was said, and what was."""
    caplog.set_level(logging.INFO, "fastq.consumer")
    world = World()
    outgoing = world.ask()
    for _ in range(10):
        world.now += (GRACE_S + LATE_S) / 4
        assert world.ask() is None
    lines = told(caplog)
    outgoing.done(None, ConnectionTimeout(broker="h:1", phase="ready"), world.now)
    world.now += 1.0
    return world, lines


def test_a_broker_whose_fetch_is_given_up_can_not_be_read_from_before_it_has_answered_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, lines = late(caplog)
    assert len(lines) == 1 and "cannot be read from: the broker did not answer Fetch in time" in lines[0]
    outgoing = world.ask()
    outgoing.done(None, ConnectionClosed(broker="h:1", phase="ready"), world.now)
    world.now += 1.0
    assert told(caplog) == []
    assert world.fetch() == LEADER
    (line,) = told(caplog)
    assert "can be read from again, after " in line


@pytest.mark.parametrize("how", ["unassigned", "led by another"])
def test_a_broker_that_nothing_is_read_from_any_more_is_no_trouble(caplog: pytest.LogCaptureFixture, how: str) -> None:
    world, _ = late(caplog)
    assert LEADER in world.fetcher.troubles.open
    if how == "unassigned":
        world.fetcher.assign([])
    else:
        world.log.leader += 1
        world.metadata.update(world.cluster.metadata())
    world.ask()
    assert LEADER not in world.fetcher.troubles.open
    assert told(caplog) == []


def test_a_fetch_that_a_quota_leaves_without_an_answer_is_not_answered_wrongly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Apache Kafka answers a fetch that it throttles with no partition at all, and no session."""
    world, warned = World(), list[bool]()
    for throttle_ms in (1000, 0):
        for _ in range(4):
            outgoing = world.ask()
            outgoing.build(17)
            writer = Writer()
            FetchResponse(throttle_time_ms=throttle_ms, session_id=0, responses=[]).encode(writer, 17)
            outgoing.done(decode_fetch_response(memoryview(writer.getvalue()), 17), None, world.now)
            world.now += 2.0
        warned.append("report this to whoever runs the broker" in caplog.text)
    assert warned == [False, True]


@pytest.mark.parametrize("epoch", [-1, 0])
def test_who_leads_now_is_asked_while_the_leader_before_stands_still(epoch: int) -> None:
    """Also where nothing was read yet, so that nothing is to be checked."""
    time = VirtualTime()
    time.fill(A, 1)
    time.run(0.1)
    assert time.drain(A) == 1
    state = time.fetcher.partitions[A]
    time.fetcher.seek(A, 1)
    state.offset_epoch = epoch
    time.run(1.0)
    (late,) = time.flying
    time.flying.clear()
    assert state.requested
    time.cluster.nodes[2] = ("127.0.0.1", 9002)
    for log in time.logs:
        log.leader, log.epoch = 2, 1
    time.fill(A, 1)
    time.metadata.update(time.cluster.metadata())
    time.run(0.1)
    assert time.drain(A) == 1
    late[1].done(late[2], None, time.now)
    assert state.position == state.fetch_offset == 2
