"""When all have what a mirror wrote: each partition is told once, and whoever waits for all of them too, whatever comes of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.config_keys import SHOWN_CHARACTERS_MAX, shown
from fastq_broker.handlers import mirror_append
from fastq_broker.mirrored_replicas import check_writes, when_kept, words_of

from fastq.errors import (
    ConnectionRefused,
    CorruptMessage,
    KafkaError,
    NotLeaderOrFollower,
    PolicyViolation,
    RequestTimedOut,
    error_for_code,
)
from fastq.protocol.messages import MirrorAppendResponse


class Waits:
    """In the place of a replica: others have its records too (`shared`), or it has them alone."""

    def __init__(self, *, is_shared: bool = True, error: BaseException | None = None) -> None:
        self.shared = self if is_shared else None
        self.error = error
        self.callback: Callable[[KafkaError | None], None] | None = None

    def wait_committed(self, offset: int, callback: Callable[[KafkaError | None], None]) -> Any:
        if self.error is not None:
            raise self.error
        self.callback = callback
        return SimpleNamespace(offset=offset) if self.shared is not None else None

    def give_up(self, _waiting: object) -> None:
        self.tell(RequestTimedOut())

    def tell(self, error: KafkaError | None) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback(error)


class Asked:
    def __init__(self, *replicas: Waits) -> None:
        self.told: list[tuple[int, Any]] = []
        self.done = 0
        self.waiting: list[Any] = [
            (replica, 5, lambda error, number=number: self.told.append((number, type(error))))
            for number, replica in enumerate(replicas)
        ]

    def end(self) -> None:
        self.done += 1


def test_all_are_told_once_and_then_who_waits_for_all() -> None:
    async def play() -> None:
        one, two, alone = Waits(), Waits(), Waits(is_shared=False)
        asked = Asked(one, two, alone)
        give_up = when_kept(asyncio.get_running_loop(), 60.0, asked.waiting, asked.end)
        one.tell(None)
        alone.tell(None)
        assert (asked.told, asked.done) == ([(0, type(None)), (2, type(None))], 0)
        two.tell(NotLeaderOrFollower())
        assert (asked.told[2:], asked.done) == ([(1, NotLeaderOrFollower)], 1)
        give_up()
        assert (len(asked.told), asked.done) == (3, 1)

    asyncio.run(play())


def test_with_nothing_to_wait_for_it_is_over_at_once() -> None:
    async def play() -> None:
        asked = Asked()
        when_kept(asyncio.get_running_loop(), 0.0, asked.waiting, asked.end)
        assert asked.done == 1

    asyncio.run(play())


@pytest.mark.parametrize("by_time", [True, False])
def test_what_is_given_up_has_timed_out(by_time: bool) -> None:
    async def play() -> None:
        one, alone = Waits(), Waits(is_shared=False)
        asked = Asked(one, alone)
        ended = asyncio.Event()
        waiting = [*asked.waiting, (Waits(), 5, lambda _: ended.set())]
        give_up = when_kept(asyncio.get_running_loop(), 0.0 if by_time else 60.0, waiting, asked.end)
        if not by_time:
            give_up()
        await ended.wait()
        assert (asked.told, asked.done) == ([(0, RequestTimedOut)], 0), "its own disk is waited for"
        alone.tell(None)
        assert asked.done == 1

    asyncio.run(play())


def test_one_that_cannot_be_told_keeps_nobody_waiting() -> None:
    async def play() -> None:
        one, two = Waits(), Waits()
        asked = Asked(one, two)

        def fails(_error: object) -> None:
            raise MemoryError

        when_kept(asyncio.get_running_loop(), 60.0, [(one, 5, fails), *asked.waiting[1:]], asked.end)  # type: ignore[list-item]
        with pytest.raises(MemoryError):
            one.tell(None)
        two.tell(None)
        assert (asked.told, asked.done) == ([(1, type(None))], 1)

    asyncio.run(play())


def test_where_one_cannot_be_waited_for_the_others_are_given_up() -> None:
    async def play() -> None:
        one = Waits()
        asked = Asked(one, Waits(error=MemoryError()))
        with pytest.raises(MemoryError):
            when_kept(asyncio.get_running_loop(), 60.0, asked.waiting, asked.end)
        assert (asked.told, asked.done, one.callback) == ([(0, RequestTimedOut)], 0, None)

    asyncio.run(play())


class Long(str):
    """One that must not be quoted as a whole: of ten thousand partitions each refusal has it."""

    def __repr__(self) -> str:
        raise AssertionError("all of it was quoted")


def test_a_long_name_of_a_source_is_refused_by_its_beginning() -> None:
    log = SimpleNamespace(config=SimpleNamespace(mirror_source="A/c/1/ended"))
    replica: Any = SimpleNamespace(log=log, mirrored=True, under_min_isr=False, topic="t", partition=0)
    with pytest.raises(PolicyViolation, match=r"A/c/1/ended") as caught:
        check_writes(replica, Long("\x01" * 32_000))
    assert len(str(caught.value)) < 1_000
    for text in ("", "it's", "x" * (SHOWN_CHARACTERS_MAX - 2), "x" * SHOWN_CHARACTERS_MAX, b"bytes"):
        quoted = repr(text)
        assert shown(text) == (quoted if len(quoted) <= SHOWN_CHARACTERS_MAX else quoted[:SHOWN_CHARACTERS_MAX] + "...")


def test_what_an_answer_says_of_an_error_is_not_said_a_second_time() -> None:
    told: list[tuple[Exception, str]] = [
        (error_for_code(44, "it is another's", topic="t", partition=1), "it is another's"),
        (error_for_code(6), NotLeaderOrFollower.default_message),
        (error_for_code(6, topic="t"), NotLeaderOrFollower.default_message),
        (CorruptMessage("a batch ends early", topic="t", hint="Copy it anew"), "a batch ends early. Copy it anew"),
        (ConnectionRefused(), "the broker refused the connection"),
    ]
    for error, words in told:
        assert words_of(error) == words
    for error, words in told[:3]:
        assert str(error_for_code(error.code, words)).count(error.name) == 1  # type: ignore[attr-defined]
    again = error_for_code(44, words_of(told[0][0]), topic="A.t", partition=1)
    assert str(again) == f"{PolicyViolation.default_message} [topic A.t, partition 1]: it is another's"


def test_what_there_is_no_memory_to_begin_when_all_have_it_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer was to be made by what there was no memory for by then: its connection waited for it for ever."""

    def no_memory(*_: Any) -> Any:
        raise MemoryError("none left")

    async def play() -> None:
        replica: Any = Waits()
        replica.topic_id, replica.partition = bytes(16), 0
        replica.log = SimpleNamespace(name="t-0", log_start_offset=0, log_end_offset=5, high_watermark=5)
        ports: Any = SimpleNamespace(loop=asyncio.get_running_loop())
        answer = MirrorAppendResponse.MirroredPartitionResult(index=0)
        topic = MirrorAppendResponse.MirroredTopicResult(topic_id=bytes(16), partitions=[answer])
        deferred = mirror_append._answer_when_kept(
            SimpleNamespace(),  # type: ignore[arg-type]
            ports,
            1,
            0,
            MirrorAppendResponse(topics=[topic]),
            [(answer, replica, 5)],
            {(bytes(16), 0): 0},
            60_000,
        )
        monkeypatch.setattr(mirror_append, "partial", no_memory)
        replica.tell(None)
        assert deferred.answered

    asyncio.run(play())
