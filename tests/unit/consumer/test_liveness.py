"""Signs of life, and what the native thread is given to send: without threads and sockets, but for one fork."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastq._native.wire import Reader
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.group import liveness as room
from fastq.consumer.group.liveness import Liveness
from fastq.errors import MaxPollIntervalExceeded
from fastq.metadata import TopicPartition
from fastq.protocol.api import APIS, ApiKey
from fastq.protocol.frames import decode_request_header, encode_request, encode_response
from fastq.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
)


class FakeMember:
    """Notes when it was polled."""

    def __init__(self) -> None:
        self.member_id = "m-1"
        self.generation = 3
        self.may_commit = True
        self.too_slow = False
        self.given_up = False
        self.polled: list[float] = []
        self.heard: list[Any] = []

    def overheard(self, response: Any, now: float) -> None:
        self.heard.append(response)

    def poll(self, now: float) -> None:
        self.polled.append(now)

    def overdue(self) -> None:
        self.given_up = True


class World:
    def __init__(self, **more: Any) -> None:
        self.now = 100.0
        core = cast(Any, SimpleNamespace(clock=lambda: self.now))
        coordinator = cast(Any, SimpleNamespace(group_id="g", known=False, node_id=1))
        config = ConsumerConfig(group_id="g", max_poll_interval_ms=1000, **more)
        self.liveness = Liveness(config, core, coordinator)
        self.member = cast(Any, FakeMember())


def test_records_handed_out_count_as_polls() -> None:
    world = World()
    world.liveness.observe(world.member)
    assert world.member.polled == []
    world.liveness.progress.add()
    world.now += 5
    world.liveness.observe(world.member)
    world.liveness.observe(world.member)
    assert world.member.polled == [105.0]


@pytest.mark.parametrize(
    ("in_hand", "words"),
    [
        ((TopicPartition("t", 4), 17, True), "the record of t-4 at offset 17 took 7.0 s"),
        (
            (TopicPartition("t", 4), 17, False),
            "the records polled together, from the one of t-4 at offset 17 took 7.0 s",
        ),
        (None, "no record in hand took 7.0 s"),
    ],
)
def test_the_error_names_the_record_and_the_time(in_hand: Any, words: str) -> None:
    world = World()
    assert world.liveness.asked(world.member, None) is None
    world.now += 7
    world.member.too_slow = True
    error = world.liveness.asked(world.member, in_hand)
    assert isinstance(error, MaxPollIntervalExceeded)
    assert words in str(error)
    assert "max_poll_interval_ms=1000" in str(error)
    if in_hand is not None:
        assert (error.topic, error.partition, error.offset) == ("t", 4, 17)
    assert error.elapsed_s == 7.0
    # Once.
    assert world.liveness.asked(world.member, in_hand) is None


@pytest.mark.parametrize(
    ("looks_at", "overdue_s", "words", "elapsed_s"),
    [
        ([101.0], None, "at least 7.0 s", 7.0),  # it was handed out some time before
        ([101.0], 7.5, "at least 7.5 s", 7.5),
        ([], None, "at least 1.0 s", 1.0),  # of the record in hand nothing is known but that the member was given up
        ([], 6.0, "at least 6.0 s", 6.0),
        (None, 6.0, "8.0 s", 8.0),
    ],
)
def test_how_long_a_record_of_an_iterator_took_is_said_as_far_as_it_is_known(
    looks_at: list[float] | None, overdue_s: float | None, words: str, elapsed_s: float
) -> None:
    """Eight seconds with a heartbeat after one of them were told as "7.0 s"."""
    world = World()
    liveness: Any = world.liveness
    liveness.asked(world.member, None)
    if overdue_s is not None:
        liveness._thread = SimpleNamespace(overdue_s=overdue_s, alive=lambda: None, disarm=lambda: None)
    if looks_at is not None:
        liveness.progress.add()
    for world.now in looks_at or ():
        liveness.observe(world.member)
    world.now = 108.0
    world.member.too_slow = True
    error = liveness.asked(world.member, (TopicPartition("t", 4), 17, True))
    assert f"offset 17 took {words}, more than" in str(error)
    assert error.elapsed_s == elapsed_s
    world.now += 3
    world.member.too_slow = True
    assert "took 3.0 s" in str(liveness.asked(world.member, None))


@pytest.mark.parametrize("client_id", ["", "fastq", "ä" * 40])
@pytest.mark.parametrize("version", [0, 1])
def test_where_the_member_epoch_lies(client_id: str, version: int) -> None:
    request = ConsumerGroupHeartbeatRequest(group_id="some group", member_id="some member", member_epoch=258)
    at = room._epoch_at(request, client_id, version)
    assert request.member_epoch == 258
    frame = bytearray(encode_request(0, client_id, request, version))
    frame[at : at + 4] = (77).to_bytes(4, "big")
    header = decode_request_header(Reader(frame, 4))
    decoded = ConsumerGroupHeartbeatRequest.decode(Reader(frame, header.position), version)
    assert (decoded.member_epoch, decoded.group_id, decoded.member_id) == (77, "some group", "some member")
    assert room._epoch_at(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), client_id, version) == -1


def test_where_the_error_code_lies() -> None:
    for key, make in (
        (ApiKey.HEARTBEAT, HeartbeatResponse),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, ConsumerGroupHeartbeatResponse),
    ):
        for version in range(APIS[key].min_version, APIS[key].max_version + 1):
            at = room._error_at(key, version)
            answer = encode_response(9, make(error_code=25), version)[4:]
            assert int.from_bytes(answer[at : at + 2], "big") == 25


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_only_plain_connections_get_a_native_thread(protocol: str) -> None:
    sasl = {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"} if "SASL" in protocol else {}
    world = World(security_protocol=protocol, **sasl)
    assert not world.liveness._plain
    world.liveness.follow(world.member)
    world.liveness.close()
    assert World().liveness._plain


def test_a_child_of_a_fork_has_no_thread() -> None:
    world = World()
    pid = os.fork()
    if pid == 0:
        os._exit(1 if world.liveness._plain else 0)
    assert os.waitpid(pid, 0)[1] == 0
    assert world.liveness._plain


def test_iterators_stop_before_the_place_is_given_up() -> None:
    world = World()
    liveness, member = world.liveness, world.member
    liveness.asked(member, None)
    world.now += 0.9
    liveness.observe(member)
    assert not liveness.progress.stopped
    liveness.progress.add()
    world.now += 0.9
    liveness.observe(member)  # one was handed out meanwhile
    assert not liveness.progress.stopped and member.polled == [world.now]
    world.now += 1.0
    liveness.observe(member)
    assert liveness.progress.stopped
    assert liveness.asked(member, (TopicPartition("t", 0), 3, True)) is not None
    assert member.given_up and not liveness.progress.stopped


def test_another_member_is_not_told_that_one_before_it_was_given_up() -> None:
    """The application has heard of that by what it has lost."""
    world = World()
    liveness: Any = world.liveness
    liveness._thread, liveness._armed = (
        SimpleNamespace(overdue_s=5.0, disarm=lambda: None, alive=lambda: None, unheard=0, take=list),
        ("m-0",),
    )
    liveness.follow(None)
    assert liveness.asked(world.member, None) is None
    assert not world.member.given_up


def test_a_member_hears_of_what_the_native_thread_was_told_and_of_what_it_was_not() -> None:
    """An assignment is told once: an answer of older settings, or one that did not come, may have been it."""
    world = World()
    liveness: Any = world.liveness
    answer = bytes(encode_response(9, HeartbeatResponse(error_code=27), 3)[4:])
    answers: list[tuple[int, bool, bytes]] = []
    thread = SimpleNamespace(
        overdue_s=0.0,
        unheard=0,
        armed=True,
        disarm=lambda: None,
        take=lambda: [answers.pop() for _ in list(answers)],
    )
    liveness._thread, liveness._token, liveness._api_key, liveness._version = thread, 2, int(ApiKey.HEARTBEAT), 3
    heard = world.member.heard
    liveness.follow(world.member)
    assert heard == []
    answers.append((2, False, answer))
    liveness.follow(world.member)
    assert [response.error_code for response in heard] == [27]
    answers.append((2, True, answer))  # the farewell's
    liveness.follow(world.member)
    assert len(heard) == 1
    answers.append((1, False, answer))
    liveness.follow(world.member)
    answers.append((2, False, answer[:4]))
    liveness.follow(world.member)
    thread.unheard = 1
    liveness.follow(world.member)
    liveness.follow(world.member)
    assert heard[1:] == [None, None, None]


def test_what_could_not_be_said_of_the_native_thread_is_said_later() -> None:
    world = World()
    liveness: Any = world.liveness

    def no_memory() -> list[tuple[int, bool, bytes]]:
        raise MemoryError

    liveness._thread = thread = SimpleNamespace(overdue_s=0.0, unheard=0, disarm=lambda: None, take=no_memory)
    with pytest.raises(MemoryError):
        liveness.follow(world.member)
    thread.take = list
    liveness.follow(world.member)
    liveness.follow(world.member)
    assert world.member.heard == [None]


def test_a_native_thread_that_gives_up_as_the_application_comes_back_is_heard() -> None:
    """At the last moment: between two looks at it."""
    world = World()
    liveness: Any = world.liveness
    thread = SimpleNamespace(overdue_s=0.0, disarm=lambda: None)
    thread.alive = lambda: setattr(thread, "overdue_s", 1.0)
    liveness._thread, liveness._armed = thread, ("m-1",)
    assert isinstance(liveness.asked(world.member, None), MaxPollIntervalExceeded)
    assert world.member.given_up


def test_the_time_before_a_member_is_asked_for_is_not_the_members() -> None:
    """As of a consumer that was made long before, or that has read nothing between two subscriptions: whoever looked first, between the
    member's beginning and the next call for records, found the application gone."""
    world = World()
    liveness: Any = world.liveness
    alive: list[float] = []
    liveness._thread = SimpleNamespace(overdue_s=0.0, alive=lambda: alive.append(world.now), disarm=lambda: None)
    world.now += 60
    liveness.waiting(None)
    assert alive == [160.0], "the native thread, too"
    world.now += 0.5
    liveness.observe(world.member)
    assert not liveness.progress.stopped
    assert liveness.asked(world.member, None) is None and not world.member.given_up
