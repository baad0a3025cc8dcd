"""The native thread that stands in for heartbeats, as its consumer sees it: what it is given to say, and when it is to be silent. Without a
thread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from consumer_protocol_harness import Harness, T

from fastq.consumer.config import ConsumerConfig
from fastq.consumer.group import liveness as room
from fastq.consumer.group.liveness import Liveness
from fastq.consumer.group.membership import ChangeKind
from fastq.errors import ErrorCode
from fastq.protocol.frames import encode_response
from fastq.protocol.messages import ConsumerGroupHeartbeatResponse


class FakeThread:
    """Notes what it is told, and gives up when the test says so: just before a call, if need be."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.armed = False
        self.overdue_s = 0.0
        self.unheard = 0
        self.intervals: list[int] = []
        self.tokens: list[int] = []
        self.answers: list[tuple[int, bool, bytes]] = []
        self.gives_up_before = ""

    def give_up(self, call: str = "") -> None:
        if self.armed and self.gives_up_before == call:
            self.armed, self.overdue_s, self.progress.stopped = False, 2.0, True

    def connect_to(self, ip: str, port: int) -> None:
        pass

    def arm(self, token: int, frame: bytes, *, interval_ms: int, **more: Any) -> None:
        self.tokens.append(token)
        self.intervals.append(interval_ms)
        self.armed, self.overdue_s = True, 0.0

    def disarm(self) -> None:
        self.give_up("disarm")
        self.armed = False

    def alive(self) -> None:
        pass

    def take(self) -> list[tuple[int, bool, bytes]]:
        taken, self.answers = self.answers, []
        return taken

    def answer(self, code: int, epoch: int = 4, token: int | None = None) -> None:
        response = ConsumerGroupHeartbeatResponse(error_code=code, member_epoch=epoch, heartbeat_interval_ms=5000)
        bytes_ = bytes(encode_response(9, response, 1)[4:])
        self.answers.append((self.tokens[-1] if token is None else token, False, bytes_))


class World:
    """A member in epoch 4 that has one partition, and the thread that stands in for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.threads: list[FakeThread] = []

        def made(progress: Any) -> FakeThread:
            self.threads.append(FakeThread(progress))
            return self.threads[-1]

        monkeypatch.setattr(room, "HeartbeatThread", made)
        self.harness = Harness()
        self.member = self.harness.member
        core = SimpleNamespace(
            clock=lambda: self.now, peer_address=lambda node: ("127.0.0.1", 9092), api_version=lambda node, key: 1
        )
        config = ConsumerConfig(group_id="g", max_poll_interval_ms=1000)
        self.liveness = Liveness(config, cast(Any, core), self.harness.coordinator)
        self.liveness._plain = True
        self.harness.join("t", assigned={T: [0]}, epoch=4)
        self.member.poll(self.now)
        self.liveness.follow(self.member)
        (self.thread,) = self.threads


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_the_interval_that_the_coordinator_asks_for_is_followed(world: World) -> None:
    """It is short while a member waits for partitions: one that went on so spoke as often as that, for good."""
    assert world.thread.intervals == [5000]
    world.member.interval_s = 0.25
    world.liveness.follow(world.member)
    world.liveness.follow(world.member)
    assert world.thread.intervals == [5000, 250]


def test_a_thread_that_was_told_an_error_goes_on_when_the_member_is_not(world: World) -> None:
    """It sends nothing after one, and what it heard may be over when the member asks itself."""
    world.thread.armed = False
    world.thread.answer(ErrorCode.NOT_COORDINATOR)
    world.liveness.follow(world.member)
    assert world.thread.armed and len(world.thread.tokens) == 2
    world.thread.answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # which does not end it
    world.liveness.follow(world.member)
    assert world.thread.armed and len(world.thread.tokens) == 2


def test_a_thread_speaks_no_more_for_a_member_that_was_too_slow(world: World) -> None:
    """Python has noticed: its thread would have kept a static member alive that has left."""
    world.member.too_slow = True
    world.member.overdue()
    assert world.liveness.asked(world.member, None) is not None
    assert not world.thread.armed
    world.liveness.follow(None)
    assert not world.thread.armed


def test_what_a_thread_heard_in_an_earlier_life_is_of_no_epoch(world: World) -> None:
    world.member.lost_generation(ErrorCode.UNKNOWN_MEMBER_ID)
    world.liveness.follow(world.member)
    assert not world.thread.armed
    world.thread.answer(0, epoch=7)  # it was on its way
    world.harness.carry_out()
    world.harness.later()
    world.harness.beat()
    world.harness.answer(epoch=2, assigned={T: [0]})
    world.liveness.follow(world.member)
    assert world.member.generation == 2


def test_a_farewell_at_the_last_moment_is_heard_of(world: World) -> None:
    """Between the look whether it was said and the end of the settings under which it was."""
    world.thread.gives_up_before = "disarm"
    world.harness.later()
    world.harness.beat()
    world.harness.answer(epoch=5)
    world.liveness.follow(world.member)
    assert world.liveness.settle(world.member, lambda node: True) == []
    assert not world.member.may_commit, "as it leaves, it has nothing to commit for any more"


def test_the_next_member_hears_nothing_of_a_farewell_at_the_last_moment(world: World) -> None:
    world.thread.gives_up_before = "disarm"
    world.liveness.follow(None)
    assert not world.thread.armed
    assert world.liveness.asked(world.member, None) is None
    assert world.member.may_commit


def test_a_process_that_stood_still_while_its_application_waited_has_left_and_was_not_too_slow(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped and continued: the thread finds that nobody has asked for long, as nobody could."""
    assert world.liveness.asked(world.member, None) is None
    world.liveness.waiting(world.member)
    world.now += 60
    world.thread.give_up()
    world.liveness.waiting(world.member)
    world.liveness.follow(world.member)
    assert [change.kind for change in world.harness.carry_out()] == [ChangeKind.LOSE]
    assert "stood still" in caplog.text
    world.harness.now = world.now
    request = world.harness.beat()
    assert request is not None and request.member_epoch == 0
    world.harness.answer(epoch=9, assigned={T: [0]})
    world.liveness.follow(world.member)
    assert world.thread.armed
    assert world.liveness.asked(world.member, None) is None
    assert world.member.may_commit
