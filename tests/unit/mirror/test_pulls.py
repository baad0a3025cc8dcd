"""What a lane has the target fetch by itself: what has much to come, for as long as that works, and nothing that needs the lane."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, cast

import pytest

from fastq.errors import (
    ConnectionRefused,
    FastqError,
    InconsistentClusterId,
    NetworkException,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
    ResourceNotFound,
    ThrottlingQuotaExceeded,
    UnsupportedVersion,
)
from fastq.metadata import TopicPartition
from fastq.mirror import pulls as pulls_module
from fastq.mirror.config import MirrorConfig, parse_config
from fastq.mirror.lane import Work
from fastq.mirror.pulls import AGAIN_S, LATER_S, MORE_BYTES, MUCH_BYTES, SOON_S, WARN_S, Pulls, Said
from fastq.mirror.same import Epochs
from fastq.mirror.same_lane import FIRST_BYTES, SameLane, _At
from fastq.mirror.source_reader import Fetched
from fastq.mirror.target_puller import Outcomes, Pull, Pulled
from fastq.mirror.target_writer import Ask, Told
from fastq.mirror.topics import Mirrored
from fastq.net.batches import PARTITION_BYTES

TP = TopicPartition("t", 0)
THERE = TopicPartition("A.t", 0)
MIRRORED = Mirrored("A.t", "1" * 32, "2" * 32, "A/c/1")
WELL = Pulled(500, 0, 0, 500, 400, 4_000, 1_000)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Waiting:
    """In the place of the thread that waits for a pull."""

    def __init__(self) -> None:
        self.asked: list[Mapping[TopicPartition, Pull]] = []
        self.future: Future[Outcomes] = Future()

    def submit(self, _call: object, wanted: Mapping[TopicPartition, Pull], _bytes: int) -> Future[Outcomes]:
        self.asked.append(wanted)
        self.future = Future()
        return self.future

    pull = None


def configured() -> MirrorConfig:
    side = {"bootstrap.servers": "127.0.0.1:1"}
    document = {"source": {"alias": "A", **side}, "target": {"alias": "B", **side}}
    return parse_config({**document, "mirror": {"topics": ["t"], "offsets": "same"}})


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pulls_module, "SAID", Said())
    yield


class Lane:
    """A lane whose partition is copied up to offset 100, and what is asked of its sides."""

    def __init__(self) -> None:
        self.clock, self.waiting = Clock(), Waiting()
        config = configured()
        self.lane = lane = SameLane(0, config, lambda: Work(0, {}), lambda _: True, clock=self.clock)
        lane._pulls = self.pulls = Pulls(config, cast("Any", self.waiting), cast("Any", self.waiting), self.clock)
        lane._at, lane._pulled, lane._lags, lane._tries = {TP: _At(MIRRORED, 100, 100, 0)}, {}, {}, {}
        lane._epochs, lane._asked = {TP: Epochs("1" * 32, ((3, 0),))}, {}
        self.starts: list[int] = []

    def ask(self, asks: Mapping[TopicPartition, Ask]) -> dict[TopicPartition, Told]:
        self.starts += [ask.log_start for ask in asks.values()]
        assert all(ask.records is None or not ask.records.nbytes for ask in asks.values())
        return {tp: Told(ask.log_start, 500, 500, None) for tp, ask in asks.items()}

    def hold(self, left: int = MUCH_BYTES) -> None:
        """A record of a byte each has come, and so many are left."""
        self.lane._hold(TP, 0, 100, 100, 100 + left)
        self.lane._begin_pull()

    def take_up(self, outcome: Pulled | FastqError) -> None:
        self.waiting.future.set_result({THERE: outcome})
        self.lane._take_up(cast("Any", None), cast("Any", self))


def test_what_has_much_to_come_is_held_and_pulled() -> None:
    one = Lane()
    lane = one.lane
    one.hold(MUCH_BYTES - 1)
    assert (one.pulls.held, one.waiting.asked, list(lane._wanted())) == ({}, [], [TP])
    lane._hold(TP, 0, 100, 100, 100 + MUCH_BYTES)
    assert (list(one.pulls.held), lane._wanted()) == ([TP], {}), "nobody fetches it until then"
    lane._begin_pull()
    assert one.waiting.asked == [{THERE: Pull(bytes.fromhex("2" * 32), "A/c/1", "t", 100, 3)}]
    assert (lane._at, list(lane._pulled), one.pulls.held) == ({}, [TP], {})
    one.take_up(WELL)
    assert lane._at == {TP: _At(MIRRORED, 500, 500, 0)}
    assert (lane._pulled, one.pulls.under_way, one.pulls.held, lane.failed) == ({}, None, {}, {})
    counts = lane.counts
    assert (counts.records, counts.bytes, counts.chunks, counts.transactions) == (400, 4_000, 1, 1)
    assert (counts.lag, one.starts) == ({TP: 0}, [])


def test_a_partition_of_which_an_epoch_is_not_known_is_not_pulled() -> None:
    one = Lane()
    one.lane._epochs = {}
    one.hold()
    assert (one.pulls.held, one.waiting.asked) == ({}, [])
    one.lane._epochs = {TP: Epochs("1" * 32, ((-1, 0),))}  # as batches of a source before KIP-101
    one.hold()
    one.lane._epochs = {TP: Epochs("1" * 32, ((3, 0),))}
    one.lane._at = {TP: _At(MIRRORED._replace(topic_id="0" * 32), 100, 100, 0)}  # and one before topics had ids
    one.hold()
    assert one.waiting.asked == []


def test_one_whose_append_was_refused_is_not_pulled() -> None:
    one = Lane()
    one.lane._hold(TP, 0, 100, 100, 100 + MUCH_BYTES)
    one.lane._anew(TP, "it ends elsewhere")
    one.lane._begin_pull()
    assert (one.waiting.asked, one.pulls.held, one.lane._pulled) == ([], {}, {})


def test_with_much_left_it_is_pulled_again_and_else_copied() -> None:
    one = Lane()
    one.hold()
    one.take_up(WELL._replace(source_end=500 + MORE_BYTES // 10 + 1))  # ten bytes each
    assert list(one.pulls.held) == [TP], "less than what it takes to begin"
    one.lane._begin_pull()
    assert [asked[THERE].offset for asked in one.waiting.asked] == [100, 500]
    one.lane._pulled = {TP: one.lane._pulled[TP]._replace(bytes_max=PARTITION_BYTES)}
    one.take_up(WELL._replace(next_offset=900, source_end=900 + MUCH_BYTES, later_epoch=4))
    assert (one.pulls.held, list(one.lane._wanted())) == ({}, [TP]), "the lane writes the epoch down first"
    assert (one.lane._at[TP].end, one.lane._at[TP].bytes_max) == (900, FIRST_BYTES), "and reads little for that"
    one.hold()
    one.take_up(WELL._replace(source_end=500 + MORE_BYTES // 10))
    assert (one.pulls.held, list(one.lane._wanted())) == ({}, [TP])


def test_where_the_source_begins_is_told_as_ever() -> None:
    one = Lane()
    one.hold()
    one.take_up(WELL._replace(source_start=50))
    assert (one.starts, one.lane._at[TP].log_start) == ([50], 50)


@pytest.mark.parametrize(
    "outcome",
    [
        WELL._replace(diverged=True),
        WELL._replace(source_error=OffsetOutOfRange()),
        WELL._replace(error=OffsetOutOfRange()),
        WELL._replace(error=NotLeaderOrFollower()),
        WELL._replace(error=RequestTimedOut()),
        WELL._replace(error=PolicyViolation()),
        WELL._replace(source_error=NetworkException("it went away")),
        ConnectionRefused(),
        FastqError("a defect"),
    ],
)
def test_what_may_be_elsewhere_now_is_placed_anew(outcome: Pulled | FastqError) -> None:
    one = Lane()
    one.hold()
    one.take_up(outcome)
    assert (one.lane._at, one.lane._pulled, one.pulls.held) == ({}, {}, {})
    assert one.lane.failed[TP].until <= one.clock.now
    one.lane._at = {TP: _At(MIRRORED, 100, 100, 0)}
    one.hold()
    assert len(one.waiting.asked) == 1, "not again at once"


@pytest.mark.parametrize(
    ("outcome", "rest_s", "said"),
    [
        (ResourceNotFound("not told"), LATER_S, "B does not fetch from A by itself"),
        (UnsupportedVersion("older"), LATER_S, "B does not fetch from A by itself"),
        (ThrottlingQuotaExceeded("enough"), SOON_S, ""),
        (WELL._replace(source_error=NotLeaderOrFollower()), SOON_S, ""),
        (
            WELL._replace(source_error=NetworkException("no way"), source_end=-1),
            AGAIN_S,
            "B was told how to fetch from A",
        ),
        (WELL._replace(source_error=InconsistentClusterId("another")), AGAIN_S, "B was told how to fetch from A"),
    ],
)
def test_who_does_not_pull_is_asked_again_later_and_it_is_copied_meanwhile(
    outcome: Any, rest_s: float, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastq.mirror")
    one = Lane()
    end = 500 if isinstance(outcome, Pulled) else 100
    for _ in range(2):
        one.lane._at = {TP: _At(MIRRORED, 100, 100, 0)}
        one.hold()
        one.take_up(outcome)
        assert one.lane._at == {TP: _At(MIRRORED, end, end, 0)} and one.lane.failed == {}
        one.clock.now += rest_s - 0.001
        one.hold()
        assert list(one.lane._wanted()) == [TP]
        one.clock.now += 0.002
    assert len(one.waiting.asked) == 2
    told = [message for message in caplog.messages if message.startswith(("B does", "B was"))]
    assert len(told) == (1 if said else 0), "once, however often it is asked"
    assert all(said in message for message in told)
    one.clock.now += WARN_S
    one.hold()
    one.take_up(outcome)
    assert len([m for m in caplog.messages if m.startswith(("B does", "B was"))]) == (
        2 if "was told" in said else len(told)
    )


def test_a_partition_that_is_no_longer_to_be_copied_is_let_go() -> None:
    one = Lane()
    one.hold()
    one.lane._pulled = {}  # as `_follow_same` does
    one.take_up(WELL)
    assert (one.lane._at, one.lane.counts.records) == ({}, 0)


def test_what_a_quota_of_the_source_keeps_back_stays_where_it_is() -> None:
    one = Lane()
    one.lane._wanted()
    assert one.lane._usable({TP: ThrottlingQuotaExceeded("for a second")}) == {}
    assert (one.lane._at, one.lane.failed) == ({TP: _At(MIRRORED, 100, 100, 0)}, {})


def test_what_was_fetched_before_it_was_held_is_not_taken_for_more() -> None:
    one = Lane()
    one.lane._wanted()
    one.hold()
    late = Fetched(100, memoryview(b""), 200, 100, (), 0, 200)
    assert one.lane._usable({TP: late}) == {}
    one.take_up(WELL)
    one.lane._wanted()
    assert one.lane._usable({TP: late}) == {}
