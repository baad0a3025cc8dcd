"""A follower that has all there is costs its leader nothing, and counts as what it is: one that goes on fetching."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.fetch_session import FetchSession
from fastq_broker.handlers import fetch
from shared_bench import LAG_MS, Bench


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The partitions that fetches have looked at."""
    found: list[Any] = []
    read_one = fetch._Fetch._read_one

    def counted(self: Any, replica: Any, *rest: Any) -> Any:
        found.append(replica)
        return read_one(self, replica, *rest)

    monkeypatch.setattr(fetch._Fetch, "_read_one", counted)
    return found


def idle(bench: Bench, seconds: float) -> None:
    """Time in which followers fetch and get nothing."""
    for _ in range(int(seconds * 2)):
        bench.loop.pass_time(0.5)
        for node in bench.nodes.values():
            node.turn()


def settled(tmp_path: Path, nodes: int = 2) -> Bench:
    bench = Bench(tmp_path, nodes)
    bench.nodes[1].produce(b"a")
    bench.settle()
    bench.settle()
    assert len(bench.nodes[1].replica.sleepers) == nodes - 1
    return bench


def test_what_sleeps_is_not_looked_at(tmp_path: Path, reads: list[Any]) -> None:
    bench = settled(tmp_path)
    reads.clear()
    idle(bench, 5)
    assert reads == []
    bench.nodes[1].produce(b"b")
    bench.settle()
    assert reads and bench.nodes[2].values() == [b"a", b"b"]


def test_who_has_slept_for_long_is_in_sync_at_the_next_append(tmp_path: Path) -> None:
    bench = settled(tmp_path)
    leader = bench.nodes[1]
    idle(bench, 2 * LAG_MS / 1000)
    answer = leader.produce(b"b")
    leader.replication.check()
    leader.grant()
    assert (bench.placed.isr, answer.done) == ((1, 2), False)
    bench.settle()
    assert answer.code == 0


def test_who_has_slept_and_does_not_come_back_goes_in_time(tmp_path: Path) -> None:
    bench = settled(tmp_path)
    leader = bench.nodes[1]
    idle(bench, 2 * LAG_MS / 1000)
    leader.produce(b"b")
    bench.loop.pass_time(LAG_MS / 1000 + 1)
    leader.replication.check()
    leader.grant()
    assert bench.placed.isr == (1,)


def test_who_is_taken_out_while_it_sleeps_asks_to_come_back(tmp_path: Path) -> None:
    bench = settled(tmp_path, 3)
    bench.publish(isr=(1, 3))
    bench.settle()  # its wait ends, and its next fetch has it asked for
    bench.settle()
    assert bench.placed.isr == (1, 2, 3)


def test_a_change_that_comes_to_nothing_is_asked_for_again(tmp_path: Path) -> None:
    bench = settled(tmp_path)
    leader = bench.nodes[1]
    bench.publish(isr=(1,))
    idle(bench, 0.5)  # it has asked to join
    bench.loop.pass_time(0.6)
    leader.replica.shared.machine.isr.roll_back()  # type: ignore[union-attr]
    bench.settle()
    assert bench.placed.isr == (1, 2)


def test_who_sleeps_hears_that_the_log_starts_later(tmp_path: Path) -> None:
    bench = settled(tmp_path)
    leader, follower = bench.nodes.values()
    leader.log.delete_records_before(1)
    bench.settle()
    assert follower.log.log_start_offset == 1


def test_a_new_leader_is_followed_by_who_slept(tmp_path: Path) -> None:
    bench = settled(tmp_path, 3)
    bench.elect(2, (2, 3))
    assert not bench.nodes[1].replica.sleepers
    bench.nodes[2].produce(b"b")
    bench.settle()
    assert [node.values() for node in bench.nodes.values()] == [[b"a", b"b"]] * 3


def test_a_session_that_has_ended_leaves_nobody_asleep(tmp_path: Path) -> None:
    bench = settled(tmp_path)
    leader = bench.nodes[1]
    for session in list(leader.ports.fetch_sessions.sessions.values()):
        leader.ports.fetch_sessions.begin(session.session_id, 0, [], [], True, 0)
    assert not leader.replica.sleepers and not leader.ports.fetch_sessions.sessions


def test_what_is_gone_wakes_who_sleeps(tmp_path: Path) -> None:
    bench = settled(tmp_path)
    leader = bench.nodes[1]
    for replica in leader.table.remove_topic("events", leader.replica.topic_id):
        replica.retire()
    leader.ports.purgatory.changed(leader.replica)
    bench.loop.pass_time()
    assert not leader.replica.sleepers
    assert all(deferred.answered for _, _, _, deferred in bench.nodes[2].answers)


def test_who_sleeps_follows_all_the_same_and_whose_followers_ask_no_more_may_lead_no_more(tmp_path: Path) -> None:
    bench = settled(tmp_path)
    leader = bench.nodes[1].replica
    idle(bench, 30)
    assert leader.is_followed(3_000)
    bench.loop.pass_time(4)
    assert not leader.is_followed(3_000)
    bench.nodes[1].turn()
    assert not bench.nodes[2].replica.is_followed(3_000), "a follower leads nothing"


def test_who_is_in_sync_alone_leads_whoever_asks(tmp_path: Path) -> None:
    bench = settled(tmp_path)
    bench.publish(isr=(1,))
    bench.loop.pass_time(60)
    assert bench.nodes[1].replica.is_followed(3_000)


def test_no_allocation_that_fails_as_it_is_woken_has_anybody_sleep_for_good(tmp_path: Path) -> None:
    """A follower that could not be woken, and those that were to be woken behind it, slept on whatever came: they fell out of sync."""
    for first in range(20):
        bench = settled(tmp_path / str(first), 3)
        with suppress(MemoryError), AllocationsFail(first):
            bench.nodes[1].replica.wake()
        bench.nodes[1].produce(b"b")
        bench.settle()
        bench.settle()
        assert [node.values() for node in bench.nodes.values()] == [[b"a", b"b"]] * 3, first


def test_who_could_not_be_woken_is_in_sync_at_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had fetched all the while, and was taken out as one that does not."""
    bench = settled(tmp_path)
    leader = bench.nodes[1]
    idle(bench, 2 * LAG_MS / 1000)

    def no_memory(*_: Any) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as short:
        short.setattr(FetchSession, "woken", no_memory)
        answer = leader.produce(b"b", timeout_ms=10 * LAG_MS)
    assert not answer.done and leader.replica.sleepers
    leader.replication.check()
    bench.settle()
    bench.settle()
    assert answer.done and answer.code == 0
    assert leader.replica.shared is not None and leader.replica.shared.machine.isr.committed == {1, 2}
    assert [node.values() for node in bench.nodes.values()] == [[b"a", b"b"]] * 2
    assert not leader.replica.unwoken
