"""The rules of a partition with followers, one by one: what the leader counts, whom it takes in, what it asks and what it answers."""

from __future__ import annotations

import pytest
from fastq_broker.controller.image import BrokerImage, Endpoint, PartitionImage
from fastq_broker.replication.isr import IsrChange
from fastq_broker.replication.partition import (
    Advanced,
    AskController,
    Effect,
    Ends,
    EpochBegan,
    Follow,
    IsrAnswer,
    Partition,
    StartMoved,
    StoppedLeading,
)

LAG_MS = 30_000


class Bench:
    """Node 1 with replicas on 1, 2 and 3, and the metadata as the test sets it."""

    def __init__(self, min_insync_replicas: int = 1) -> None:
        self.brokers = {n: broker(n) for n in (1, 2, 3)}
        self.now = 1_000_000
        self.partition = Partition(1, self.brokers.get, lag_max_ms=LAG_MS, min_insync_replicas=min_insync_replicas)

    def lead(
        self, isr: tuple[int, ...] = (1, 2, 3), end: int = 10, watermark: int = 0, epoch: int = 5, change: int = 7
    ) -> list[Effect]:
        return self.partition.apply(image(1, isr, epoch, change), Ends(end, end, watermark), self.now)

    def fetch(self, node: int, offset: int, start: int = 0, broker_epoch: int | None = None) -> list[Effect]:
        known = self.brokers[node].epoch if broker_epoch is None else broker_epoch
        assert self.partition.fetch_error(node, self.partition.leader_epoch, known) == 0
        return self.partition.fetched(node, offset, start, known, self.now)

    def append(self, end: int, kept: int | None = None) -> list[Effect]:
        return self.partition.appended(end, end if kept is None else kept, self.now)

    def answer(self, change: IsrChange, code: int = 0, isr: tuple[int, ...] = (), up: int = 1) -> list[Effect]:
        told = IsrAnswer(code, change.leader_epoch, change.partition_epoch + up, isr or tuple(change.nodes))
        return self.partition.answered(change, told, self.now)

    @property
    def watermark(self) -> int:
        return self.partition.high_watermark


def broker(node: int, rack: str | None = None) -> BrokerImage:
    endpoint = Endpoint("PLAINTEXT", "127.0.0.1", 9000 + node, 0)
    return BrokerImage(node, 100 + node, b"", (endpoint,), (), rack, False, False, ())


def image(leader: int, isr: tuple[int, ...], epoch: int = 5, change: int = 7) -> PartitionImage:
    return PartitionImage(leader, epoch, change, (1, 2, 3), isr, ())


def asked(effects: list[Effect]) -> IsrChange:
    [found] = [effect.change for effect in effects if isinstance(effect, AskController)]
    return found


# -- becoming leader and follower


def test_a_new_leader_begins_its_epoch_at_its_end_and_knows_nobodys_offsets() -> None:
    bench = Bench()
    assert bench.lead(end=10, watermark=4) == [EpochBegan(5, 10)]
    assert (bench.watermark, bench.partition.epoch_start) == (4, 10)
    assert bench.fetch(2, 10) == [StartMoved()]
    assert bench.fetch(3, 8) == [Advanced(8), StartMoved()]


def test_a_sole_leader_has_committed_all_it_has() -> None:
    assert Bench().lead(isr=(1,), end=10) == [EpochBegan(5, 10), Advanced(10)]


def test_older_metadata_says_nothing() -> None:
    bench = Bench()
    bench.lead(change=7)
    assert bench.lead(isr=(1,), change=6) == []
    assert bench.partition.apply(image(2, (2,), 4, 9), Ends(10, 10, 0), bench.now) == []
    assert bench.partition.isr.committed == {1, 2, 3}


def test_a_new_epoch_of_the_same_leader_keeps_offsets_and_the_high_watermark() -> None:
    bench = Bench()
    bench.lead(end=10)
    bench.fetch(2, 9)
    bench.fetch(3, 9)
    bench.now += 5
    effects = bench.partition.apply(image(1, (1, 2), 6, 8), Ends(12, 12, 0), bench.now)
    assert effects == [EpochBegan(6, 12)]
    assert bench.watermark == 9
    follower = bench.partition.follower(2)
    assert follower is not None
    assert (follower.log_end, follower.caught_up_ms) == (9, bench.now)


def test_a_replica_that_comes_or_goes_begins_no_epoch() -> None:
    bench = Bench()
    bench.lead()
    fewer = image(1, (1, 2), 5, 8)._replace(replicas=(1, 2))
    assert bench.partition.apply(fewer, Ends(10, 10, 0), bench.now) == []
    assert bench.partition.fetch_error(3, 5, 103) == 75
    assert bench.partition.fetch_error(3, -1, 103) == 6


def test_a_leader_that_becomes_a_follower_sends_all_away_and_fetches() -> None:
    bench = Bench()
    bench.lead()
    effects = bench.partition.apply(image(2, (2, 3), 6, 8), Ends(10, 10, 0), bench.now)
    assert effects == [StoppedLeading(), Follow(2, 6)]
    assert bench.partition.isr.committed == frozenset()
    assert bench.partition.acknowledgement(1) == 6
    assert not bench.partition.leads and not bench.partition.is_under_min_isr
    assert bench.partition.fetch_error(3, 6, 103) == 6


def test_a_follower_fetches_anew_in_a_new_leader_epoch_only() -> None:
    bench = Bench()
    assert bench.partition.apply(image(2, (2, 3), 6, 8), Ends(10, 10, 0), 0) == [Follow(2, 6)]
    assert bench.partition.apply(image(2, (2,), 6, 9), Ends(10, 10, 0), 0) == []
    assert bench.partition.apply(image(-1, (2,), 7, 10), Ends(10, 10, 0), 0) == [Follow(-1, 7)]


def test_until_its_epoch_is_committed_a_leader_does_not_know_what_is() -> None:
    bench = Bench()
    bench.lead(end=10, watermark=4)
    assert not bench.partition.knows_latest
    bench.fetch(2, 10)
    bench.fetch(3, 10)
    assert bench.partition.knows_latest


# -- the high watermark


def test_all_who_are_in_sync_count_and_the_leader_as_far_as_it_keeps() -> None:
    bench = Bench()
    bench.lead(end=0)
    bench.fetch(2, 0)
    bench.fetch(3, 0)
    assert bench.append(6, kept=0) == []
    assert bench.fetch(2, 6) == []
    assert bench.fetch(3, 5) == []
    assert bench.append(6, kept=4) == [Advanced(4)]
    assert bench.append(6, kept=6) == [Advanced(5)]


def test_it_never_goes_back() -> None:
    bench = Bench()
    bench.lead(end=10)
    bench.fetch(2, 10)
    bench.fetch(3, 10)
    bench.fetch(3, 2)  # it has been started anew, without what it had
    assert bench.append(11) == []
    assert bench.watermark == 10


def test_below_min_isr_it_stands_still() -> None:
    bench = Bench(min_insync_replicas=2)
    assert bench.lead(isr=(1,)) == [EpochBegan(5, 10)]
    assert bench.partition.configure(1, bench.now) == [Advanced(10)]


def test_no_more_have_to_be_in_sync_than_there_are_replicas() -> None:
    bench = Bench(min_insync_replicas=9)
    assert bench.lead() == [EpochBegan(5, 10)]
    assert bench.partition.min_isr == 3


def test_who_is_about_to_join_counts() -> None:
    bench = Bench()
    bench.lead(isr=(1, 2), end=10)
    bench.fetch(2, 10)
    assert bench.watermark == 10
    bench.append(20)
    bench.fetch(3, 20 - 1)
    assert bench.fetch(2, 20) == [Advanced(19)]


def test_who_has_been_caught_up_lately_counts_outside_of_the_set_if_its_broker_is_up() -> None:
    bench = Bench()
    bench.lead(isr=(1, 2, 3), end=10)
    bench.fetch(2, 10)
    bench.fetch(3, 10)
    bench.partition.apply(image(1, (1, 2), 5, 8), Ends(0, 0, 0), bench.now)
    bench.append(20)
    assert bench.fetch(2, 20) == []
    # KAFKA-15021: one that is shutting down keeps nobody waiting
    bench.brokers[3] = bench.brokers[3]._replace(in_controlled_shutdown=True)
    assert bench.partition.check(bench.now) == [Advanced(20)]


def test_it_advances_when_the_set_is_down_to_the_leader() -> None:
    bench = Bench()
    bench.lead(end=10)
    bench.now += LAG_MS + 1
    change = asked(bench.partition.check(bench.now))
    assert change.nodes == [1]
    assert bench.watermark == 0  # those who are to go count until they have gone
    assert bench.answer(change) == [Advanced(10)]


# -- caught up, in and out


def test_who_is_always_one_fetch_behind_is_caught_up() -> None:
    bench = Bench()
    bench.lead(end=10)
    for _ in range(8):
        end = bench.partition._log.log_end
        bench.fetch(2, end)
        bench.fetch(3, end - 1)  # never at the end
        bench.now += LAG_MS // 2
        bench.append(end + 10)
    assert asked(bench.partition.check(bench.now + 2)).nodes == [1, 2]
    assert bench.partition.isr.maximal == {1, 2, 3}


def test_who_asks_for_what_was_the_end_is_caught_up_as_of_then() -> None:
    bench = Bench()
    bench.lead(end=10)
    bench.fetch(2, 5)
    at = bench.now
    bench.now += 100
    bench.append(20)
    bench.fetch(2, 10)
    follower = bench.partition.follower(2)
    assert follower is not None
    assert follower.caught_up_ms == at


def test_who_has_all_is_in_sync_however_long_it_is_silent() -> None:
    bench = Bench()
    bench.lead(end=10)
    bench.fetch(2, 10)
    bench.fetch(3, 10)
    bench.now += 10 * LAG_MS
    assert bench.partition.check(bench.now) == []


def test_one_change_at_a_time() -> None:
    bench = Bench()
    bench.lead(isr=(1,), end=10)
    assert asked(bench.fetch(2, 10)).nodes == [1, 2]
    assert not any(isinstance(effect, AskController) for effect in bench.fetch(3, 10))
    bench.now += 2 * LAG_MS
    bench.append(11)
    assert bench.partition.check(bench.now) == []


def test_nobody_joins_below_the_epochs_start() -> None:
    """KAFKA-7128: the new leader's high watermark may be behind what is committed."""
    bench = Bench()
    bench.lead(isr=(1, 2), end=10, watermark=4)
    assert bench.fetch(3, 9) == [StartMoved()]
    assert asked(bench.fetch(3, 10)).nodes == [1, 2, 3]


def test_nobody_joins_below_the_high_watermark() -> None:
    bench = Bench()
    bench.lead(isr=(1,), end=10)
    bench.append(20)
    assert bench.fetch(3, 15) == [StartMoved()]


@pytest.mark.parametrize(
    "why", [{"fenced": True}, {"in_controlled_shutdown": True}, {"epoch": 999}], ids=["fenced", "shutting down", "anew"]
)
def test_a_broker_that_is_not_up_does_not_join(why: dict[str, int]) -> None:
    bench = Bench()
    bench.lead(isr=(1,), end=10)
    follower = bench.partition
    follower.fetched(3, 9, 0, 103, bench.now)
    bench.brokers[3] = bench.brokers[3]._replace(**why)  # type: ignore[arg-type]
    assert follower.fetched(3, 10, 0, 103, bench.now) == []
    del bench.brokers[3]
    assert follower.fetched(3, 10, 0, 103, bench.now) == []


def test_a_replica_whose_directory_has_failed_is_not_waited_for() -> None:
    """Nor does it join: its broker lives, and was caught up a moment ago."""
    bench = Bench()
    placed = image(1, (1, 2, 3))._replace(directories=(b"a" * 16, b"b" * 16, b"c" * 16))
    bench.brokers[3] = bench.brokers[3]._replace(directories=(b"c" * 16, b"d" * 16))
    bench.partition.apply(placed, Ends(10, 10, 10), bench.now)
    for node in (2, 3):
        bench.fetch(node, 10)
    bench.append(12)
    assert bench.fetch(2, 12) == []  # the third is waited for
    bench.brokers[3] = bench.brokers[3]._replace(directories=(b"d" * 16,))
    without = placed._replace(isr=(1, 2), partition_epoch=8)
    assert bench.partition.apply(without, Ends(12, 12, 10), bench.now) == [Advanced(12)]
    assert bench.partition.fetched(3, 12, 0, 103, bench.now) == []


def test_a_broker_that_tells_no_epoch_joins() -> None:
    bench = Bench()
    bench.lead(isr=(1,), end=10)
    assert asked(bench.fetch(3, 10, broker_epoch=-1)).isr == ((1, 101), (3, -1))


def test_members_are_proposed_with_the_epoch_they_fetched_with() -> None:
    """KIP-903: the controller sees who has been started anew since."""
    bench = Bench()
    bench.lead(isr=(1, 2), end=10)
    bench.brokers[3] = bench.brokers[3]._replace(epoch=50)
    change = asked(bench.fetch(3, 10, broker_epoch=50))
    assert change == IsrChange(5, 7, ((1, 101), (2, -1), (3, 50)), joining=3)


def test_a_fetch_of_a_broker_that_was_started_anew_since_is_refused() -> None:
    bench = Bench()
    bench.lead()
    assert [bench.partition.fetch_error(2, 5, epoch) for epoch in (101, 102, 103, -1)] == [6, 0, 0, 0]
    assert [bench.partition.fetch_error(2, epoch, 102) for epoch in (4, 5, 6, -1)] == [74, 0, 75, 0]


# -- the controller's answers


@pytest.fixture
def joining() -> tuple[Bench, IsrChange]:
    bench = Bench()
    bench.lead(isr=(1, 2), end=10)
    bench.fetch(2, 10)
    change = asked(bench.fetch(3, 10))
    bench.append(12)
    bench.fetch(2, 12)
    assert bench.watermark == 10
    return bench, change


def test_a_change_that_is_made_is_committed(joining: tuple[Bench, IsrChange]) -> None:
    bench, change = joining
    bench.answer(change)
    assert (bench.partition.isr.committed, bench.partition.partition_epoch) == ({1, 2, 3}, 8)
    assert bench.partition.isr.pending is None
    bench.lead(isr=(1, 2), change=7)  # the metadata from before it
    assert bench.partition.isr.committed == {1, 2, 3}


def test_a_change_that_was_made_before_is_committed_too(joining: tuple[Bench, IsrChange]) -> None:
    bench, change = joining
    bench.answer(change, up=0)
    assert bench.partition.isr.committed == {1, 2, 3}


@pytest.mark.parametrize("code", [55, 107])
def test_what_is_refused_for_certain_is_undone(joining: tuple[Bench, IsrChange], code: int) -> None:
    bench, change = joining
    bench.answer(change, code)
    assert bench.partition.isr.pending is None
    assert bench.partition.isr.maximal == {1, 2}
    assert asked(bench.fetch(3, 12)).nodes == [1, 2, 3]


@pytest.mark.parametrize("code", [3, 100, 74, 95, 42, 108])
def test_after_these_only_the_metadata_says_what_holds(joining: tuple[Bench, IsrChange], code: int) -> None:
    bench, change = joining
    assert bench.answer(change, code) == []
    assert bench.partition.isr.pending is change
    assert bench.partition.isr.maximal == {1, 2, 3}
    bench.lead(isr=(1, 2), change=8)
    assert bench.partition.isr.pending is None


@pytest.mark.parametrize("code", [-1, 7, 13, 41])
def test_after_others_the_same_is_asked_again(joining: tuple[Bench, IsrChange], code: int) -> None:
    """KAFKA-14154: 41 is of a controller that is none any more. KAFKA-15353: with the whole set."""
    bench, change = joining
    assert bench.answer(change, code) == [AskController(change)]
    assert bench.partition.isr.pending is change


def test_the_answer_to_another_change_does_not_count(joining: tuple[Bench, IsrChange]) -> None:
    bench, change = joining
    bench.lead(isr=(1, 2), change=9)
    assert bench.answer(change, isr=(1,)) == []
    again = asked(bench.fetch(3, 12))
    assert bench.answer(IsrChange(*again)) == []  # alike is not the same
    assert bench.partition.isr.pending is again


def test_an_answer_of_an_older_epoch_does_not_count(joining: tuple[Bench, IsrChange]) -> None:
    bench, change = joining
    assert bench.answer(change, up=-1) == []
    older = IsrAnswer(0, 4, 9, (1, 2, 3))
    assert bench.partition.answered(change, older, bench.now) == []
    assert bench.partition.isr.pending is change


def test_metadata_that_is_known_leaves_a_change_under_way(joining: tuple[Bench, IsrChange]) -> None:
    bench, change = joining
    bench.lead(isr=(1, 2), change=7)
    assert bench.partition.isr.pending is change


# -- what clients are told


def test_too_few_in_sync_refuse_those_who_ask_for_all() -> None:
    bench = Bench(min_insync_replicas=2)
    bench.lead(isr=(1,))
    assert bench.partition.leads and bench.partition.is_under_min_isr
    bench.lead(isr=(1, 2), change=8)
    assert not bench.partition.is_under_min_isr


def test_records_are_acknowledged_when_they_are_committed() -> None:
    bench = Bench(min_insync_replicas=2)
    bench.lead(isr=(1, 2), end=10)
    assert bench.partition.acknowledgement(10) is None
    bench.fetch(2, 10)
    assert [bench.partition.acknowledgement(end) for end in (9, 10, 11)] == [0, 0, None]


def test_records_that_are_committed_by_too_few_say_so() -> None:
    bench = Bench(min_insync_replicas=2)
    bench.lead(isr=(1, 2), end=10)
    bench.fetch(2, 10)
    bench.partition.apply(image(1, (1,), 5, 8), Ends(0, 0, 0), bench.now)
    assert bench.partition.acknowledgement(10) == 20


def test_the_low_watermark_is_that_of_all_live_replicas() -> None:
    bench = Bench()
    bench.lead()
    assert bench.partition.low_watermark(7) == -1
    assert StartMoved() in bench.fetch(2, 10, start=5)
    assert bench.fetch(2, 10, start=5) == []
    bench.fetch(3, 10, start=6)
    assert bench.partition.low_watermark(7) == 5
    assert bench.partition.low_watermark(4) == 4
    bench.brokers[2] = bench.brokers[2]._replace(fenced=True)
    assert bench.partition.low_watermark(7) == 6


def test_a_consumer_reads_from_the_most_caught_up_replica_of_its_rack() -> None:
    bench = Bench()
    bench.brokers.update({1: broker(1, "a"), 2: broker(2, "b"), 3: broker(3, "b")})
    bench.lead(end=10)
    bench.fetch(2, 8, start=3)
    bench.fetch(3, 9, start=5)

    def preferred(rack: str | None, offset: int, listener: str = "PLAINTEXT") -> int:
        return bench.partition.preferred_replica(rack, offset, listener)

    assert [preferred(rack, 6) for rack in ("b", "a", "c", "", None)] == [3, -1, -1, -1, -1]
    assert [preferred("b", offset) for offset in (2, 4, 9, 10)] == [-1, 2, 3, -1]
    assert preferred("b", 6, "OTHER") == -1
    bench.fetch(2, 9)
    assert preferred("b", 6) == 3  # the same end, and caught up alike: the greater id
    bench.brokers[3] = bench.brokers[3]._replace(fenced=True)
    assert preferred("b", 6) == 2


def test_a_fetch_is_a_sign_of_following_once_its_answer_was_fetched_after() -> None:
    """A leader that stood still finds fetches in its sockets from before its followers followed another."""
    bench = Bench()
    bench.lead()
    followed = lambda: bench.partition.is_followed(bench.now, 3_000)  # noqa: E731
    assert not followed()
    for node in (2, 3, 2, 3):
        bench.fetch(node, 10)
        bench.now += 10
    assert followed()
    bench.now += 60_000
    for node in (2, 3):
        bench.fetch(node, 10)
    assert not followed()
    bench.fetch(2, 10)
    assert not followed(), "one of them may lead by now"
    bench.fetch(3, 10)
    assert followed()


def test_who_has_slept_is_as_good_as_its_last_fetch_but_one() -> None:
    bench = Bench()
    bench.lead(isr=(1, 2))
    bench.fetch(2, 10)
    bench.now += 60_000
    bench.partition.slept(2, bench.now, bench.now - 60_000)
    assert not bench.partition.is_followed(bench.now, 3_000)
    bench.partition.slept(2, bench.now, bench.now - 500)
    assert bench.partition.is_followed(bench.now, 3_000)
