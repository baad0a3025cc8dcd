"""Partitions that several nodes have, through the handlers, with real logs and fetchers: what is written, acknowledged, seen and kept."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.coordinator import ShardContext
from fastq_broker.handlers import delete_records as delete_records_handler
from fastq_broker.handlers import produce
from fastq_broker.log import LogConfig
from fastq_broker.log.half_done import HalfDone
from fastq_broker.replication.partition import Ends, IsrAnswer
from fastq_broker.replication.shared import SharedPartition
from shared_bench import LAG_MS, Answer, Bench

from fastq.errors import ErrorCode, KafkaError, KafkaStorageError, ReplicaNotAvailable
from fastq.protocol.messages import DeleteRecordsRequest

FSYNC = LogConfig(durability="fsync")


def test_acks_all_waits_until_all_in_sync_have_the_records(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes=3)
    leader = bench.nodes[1]
    answer = leader.produce(b"a", b"b")
    assert (answer.done, leader.values(), leader.log.high_watermark) == (False, [], 0)
    bench.settle()
    assert (answer.done, answer.code) == (True, 0)
    for node in bench.nodes.values():
        assert (node.values(), node.log.log_end_offset, node.log.high_watermark) == ([b"a", b"b"], 2, 2)
        assert node.log.epochs.entries() == [(0, 0)]


def test_what_is_appended_because_a_follower_has_the_one_before_is_fetched_at_once(tmp_path: Path) -> None:
    """A connection with several produces in flight goes on with the next one as soon as one is acknowledged: while the fetch that says
    what the follower has is served."""
    bench = Bench(tmp_path)
    leader = bench.nodes[1]
    bench.settle()
    assert leader.replica.shared is not None
    produced = [leader.produce(b"first")]

    def go_on(error: object) -> None:
        if len(produced) < 10:
            produced.append(leader.produce(b"next"))
            leader.replica.shared.wait(leader.log.log_end_offset, go_on)

    leader.replica.shared.wait(leader.log.log_end_offset, go_on)
    for _ in range(30):
        for node in bench.nodes.values():
            node.turn()
        bench.loop.pass_time()
    assert len(produced) == 10 and all(answer.done and not answer.code for answer in produced)


def test_acks_one_is_answered_at_once_and_seen_later(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader = bench.nodes[1]
    assert leader.produce(b"a", acks=1).code == 0
    assert leader.values() == []
    bench.settle()
    assert leader.values() == [b"a"]


def told_of(answer: Answer) -> list[str]:
    """What its connection is told: that there is an answer, or why it is closed."""
    told: list[str] = []
    answer._result.hand_over(SimpleNamespace(complete=lambda *_: told.append("an answer"), fail=told.append))
    return told


def test_a_produce_whose_refusal_cannot_be_made_has_its_connection_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection waited for it for ever, and was read from no more."""

    def no_memory(*_: Any, **__: Any) -> Any:
        raise MemoryError("none left")

    bench = Bench(tmp_path)
    told = told_of(bench.nodes[1].produce(b"a"))
    with monkeypatch.context() as patch:
        patch.setattr(produce, "PartitionResponse", no_memory)
        bench.elect(2, (2,))
    assert told == ["Produce failed: MemoryError('none left')"]


@pytest.mark.parametrize("moments", [1, 2])
def test_what_there_was_no_memory_to_do_as_another_leads_is_done_when_that_is_said_again(
    tmp_path: Path, moments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition's machine says it once: a node followed nobody until the next leader epoch, or led without one in its log."""
    bench = Bench(tmp_path, nodes=3)
    bench.settle()
    placed = bench.placed._replace(leader=2, leader_epoch=7, partition_epoch=bench.placed.partition_epoch + 1)

    def no_memory(*arguments: object) -> None:
        raise MemoryError

    for node in bench.nodes.values():
        with monkeypatch.context() as short:
            short.setattr(node.replication, "follow", no_memory)
            for _ in range(moments):
                with pytest.raises(MemoryError):
                    node.replica.apply(placed)
        assert node.table.leader("events", 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER, (
            "the new one leads not yet, the old no more"
        )
    bench.placed = placed._replace(partition_epoch=placed.partition_epoch - 1)
    bench.publish()
    answer = bench.nodes[2].produce(b"a")
    bench.settle()
    assert (answer.done, answer.code) == (True, 0)
    for node in bench.nodes.values():
        assert (node.values(), node.log.epochs.entries()[-1]) == ([b"a"], (7, 0))


def test_no_allocation_that_fails_as_another_leads_costs_more_than_another_try(tmp_path: Path) -> None:
    """Amid the machine's own notes: the new leader went on fetching from the old one, or a follower followed nobody."""
    for first in itertools.count():
        bench = Bench(tmp_path / str(first), nodes=3)
        bench.settle()
        placed = bench.placed._replace(leader=2, leader_epoch=7, partition_epoch=bench.placed.partition_epoch + 1)
        failed = 0
        for node in bench.nodes.values():
            try:
                with AllocationsFail(first):
                    node.replica.apply(placed)
            except MemoryError:
                failed += 1
        bench.placed = placed._replace(partition_epoch=placed.partition_epoch - 1)
        bench.publish()
        for _ in range(3):  # a log that could not be read rests for a second
            bench.settle()
            bench.loop.pass_time(1.1)
        answer = bench.nodes[2].produce(b"a")
        bench.settle()
        assert answer.done and answer.code == 0, first
        for node in bench.nodes.values():
            assert (node.values(), node.log.epochs.entries()[-1]) == ([b"a"], (7, 0)), first
        if not failed:
            break


def test_no_allocation_that_fails_as_a_record_is_committed_keeps_it_from_anybody_for_long(tmp_path: Path) -> None:
    """It was seen once more was written, and its producer was told that its time is over, or nothing at all."""
    for first in itertools.count():
        bench = Bench(tmp_path / str(first))
        bench.settle()
        leader, failed = bench.nodes[1], False
        told = told_of(leader.produce(b"a"))
        assert leader.replica.shared is not None
        try:
            with AllocationsFail(first):
                leader.replica.shared.fetched(2, 1, 0, bench.brokers[2].epoch)
        except MemoryError:
            failed = True
        leader.replication.check()
        leader.replica.shared.fetched(2, 1, 0, bench.brokers[2].epoch)
        leader.replication.check()
        assert leader.values() == [b"a"] and len(told) == 1, first
        if not failed:
            break


def test_when_its_time_is_over_a_produce_is_told_so_and_the_records_stay(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    answer = bench.nodes[1].produce(b"a", timeout_ms=100)
    bench.loop.pass_time(0.099)
    assert not answer.done
    bench.loop.pass_time(0.001)
    assert answer.code == 7
    bench.settle()
    assert bench.nodes[2].values() == [b"a"]


def test_below_min_isr_acks_all_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes=3, min_isr=2)
    bench.publish(isr=(1,))
    leader = bench.nodes[1]
    assert [leader.produce(b"a", acks=acks).code for acks in (-1, 1)] == [19, 0]
    bench.settle()  # the others join
    assert leader.produce(b"b", acks=1).code == 0
    bench.settle()
    assert leader.values() == [b"a", b"b"]
    assert bench.placed.isr == (1, 2, 3)


def test_one_replica_needs_no_second_whatever_min_isr_says(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes=1, min_isr=2)
    assert bench.nodes[1].produce(b"a").code == 0


def test_who_waits_when_the_leader_goes_is_sent_away_and_what_was_not_committed_is_cut_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes=3)
    old, new = bench.nodes[1], bench.nodes[2]
    old.produce(b"kept")
    bench.settle()
    answer = old.produce(b"lost")
    bench.elect(2, (2, 3))
    assert answer.code == 6
    assert old.log.log_end_offset == 2
    kept = new.produce(b"new")
    bench.settle()
    assert kept.code == 0
    for node in bench.nodes.values():
        assert node.values() == [b"kept", b"new"]
        assert node.log.epochs.entries() == [(0, 0), (1, 1)]
    assert bench.placed.isr == (1, 2, 3)
    assert old.produce(b"x", acks=1).code == 6


def test_who_is_told_where_the_logs_part_hears_of_the_high_watermark_with_the_next_answer(tmp_path: Path) -> None:
    """What else stands in such an answer is not made use of, so it has not been told."""
    bench = Bench(tmp_path, nodes=3)
    old = bench.nodes[1]
    old.produce(b"a")
    bench.settle()
    old.produce(b"b")
    bench.loop.pass_time()
    for node in (2, 3):  # they have it, and the old leader does not know
        bench.nodes[node].take_answers()
    old.produce(b"lost", acks=1)
    bench.elect(2, (2, 3))
    for _ in range(4):
        bench.nodes[3].turn()
        bench.loop.pass_time()
    assert (bench.nodes[2].log.high_watermark, old.log.high_watermark) == (2, 1)
    bench.settle()
    assert (old.log.log_end_offset, old.log.high_watermark) == (2, 2)


def test_who_debugs_is_told_where_the_log_of_a_follower_ends(tmp_path: Path) -> None:
    """A consumer is sent to the leader; replica id -2 asks the very node, as Kafka's tools that compare replicas do."""
    bench = Bench(tmp_path)
    bench.nodes[1].produce(b"a")
    bench.settle()
    bench.nodes[1].produce(b"b")
    assert bench.nodes[2].latest() == (6, -1)
    assert (bench.nodes[1].latest(replica_id=-2), bench.nodes[2].latest(replica_id=-2)) == ((0, 2), (0, 1))


def test_a_new_leader_does_not_tell_the_end_before_it_knows_what_is_committed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.nodes[1].produce(b"a")
    bench.settle()
    bench.nodes[1].produce(b"b")
    bench.loop.pass_time()
    bench.nodes[2].turn()  # has it, and does not know that it is committed
    new = bench.nodes[2]
    assert (new.log.log_end_offset, new.log.high_watermark) == (2, 1)
    bench.elect(2, (1, 2))
    assert [new.latest(version) for version in (4, 5)] == [(5, -1), (78, -1)]
    bench.settle()
    assert new.latest() == (0, 2)


def test_in_fsync_durability_all_disks_have_it_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, config=FSYNC)
    leader, follower = bench.nodes.values()
    answer = leader.produce(b"a")
    for effect in follower.fetchers[1].poll(bench.loop.now):
        follower._send(follower.fetchers[1], 1, effect)  # type: ignore[arg-type]
    assert (follower.log.log_end_offset, follower.log.durable_end) == (1, 0)
    assert (leader.log.durable_end, answer.done) == (0, False)
    bench.settle()
    assert answer.code == 0
    assert leader.produce(b"b", acks=1).done is False  # on the leader's disk at least
    bench.settle()
    assert follower.values() == [b"a", b"b"]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("appended", [True, False], ids=["followers have it", "followers have it later"])
def test_without_fsync_nobody_waits_for_a_disk_any_more(
    tmp_path: Path, order: tuple[int, ...], appended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting is altered while a produce waits; no disk is ever done, as one that takes its time."""
    bench = Bench(tmp_path, nodes=3, config=FSYNC, min_isr=2)
    bench.settle()
    for node in bench.nodes.values():
        monkeypatch.setattr(node.logs.flusher, "wait", lambda: None)
    leader = bench.nodes[1]
    everyone, leaders = leader.produce(b"a", timeout_ms=60_000), leader.produce(b"b", acks=1, timeout_ms=60_000)
    if appended:
        bench.settle()
        assert [node.log.log_end_offset for node in bench.nodes.values()] == [2, 2, 2]
    assert (everyone.done, leaders.done, leader.log.high_watermark) == (False, False, 0)
    for number in order:
        node = bench.nodes[number]
        node.log.apply_config(LogConfig())
        node.replica.apply_config(LogConfig(), 2)
        if number == 1:
            assert leaders.done
        if number != order[-1]:
            bench.settle()
            assert not everyone.done
    bench.settle()
    assert (everyone.code, leaders.code) == (0, 0)
    assert [node.values() for node in bench.nodes.values()] == [[b"a", b"b"]] * 3
    assert [node.log.high_watermark for node in bench.nodes.values()] == [2, 2, 2]
    assert leader.latest() == (0, 2)
    after = leader.produce(b"c")
    bench.settle()
    assert after.code == 0


def test_who_falls_behind_goes_and_who_catches_up_joins(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader, follower = bench.nodes.values()
    bench.settle()
    answer = leader.produce(b"a", timeout_ms=10 * LAG_MS)
    bench.loop.pass_time(LAG_MS / 1000 + 1)
    leader.replication.check()
    assert not answer.done
    leader.grant()
    assert (bench.placed.isr, answer.code) == ((1,), 0)
    bench.settle()
    assert bench.placed.isr == (1, 2)
    assert follower.values() == [b"a"]


def test_a_set_that_there_was_no_memory_to_ask_for_is_asked_for_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as asked for until the next leader epoch: who had fallen behind stayed in sync, and no acks=all was answered."""
    bench = Bench(tmp_path)
    leader = bench.nodes[1]
    bench.settle()
    answer = leader.produce(b"a", timeout_ms=10 * LAG_MS)
    bench.loop.pass_time(LAG_MS / 1000 + 1)

    def no_memory(*_: Any) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(leader.replication.alter, "submit", no_memory)
        leader.replication.check()
    leader.grant()
    assert bench.placed.isr == (1, 2)
    leader.replication.check()
    leader.replication.check()
    leader.grant()
    assert (bench.placed.isr, answer.code) == ((1,), 0)


def test_what_the_controller_refuses_of_an_isr_is_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader = bench.nodes[1]
    bench.settle()
    leader.produce(b"a", timeout_ms=10 * LAG_MS)
    bench.loop.pass_time(LAG_MS / 1000 + 1)
    leader.replication.check()
    ((key, change),) = (leader.replication.alter.take(int(bench.loop.now * 1000)) or {}).items()
    assert leader.replication.refused == 0
    leader.replication.answered(key, change, IsrAnswer(ErrorCode.INVALID_UPDATE_VERSION))
    assert (leader.replication.refused, leader.replication.shrunk) == (1, 0)


def test_records_that_too_few_have_say_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, min_isr=2)
    leader = bench.nodes[1]
    leader.produce(b"a")
    bench.settle()
    bench.publish(isr=(1,))
    heard: list[int] = []
    leader.replica.wait_committed(1, lambda error: heard.append(0 if error is None else int(error.code)))
    assert heard == [20]


def test_who_waits_again_as_the_last_other_replica_goes_waits_for_this_one_alone(tmp_path: Path) -> None:
    """It waited behind those who were sent away just then, and was never told."""
    bench = Bench(tmp_path)
    leader = bench.nodes[1]
    leader.produce(b"a")
    heard: list[int] = []

    def told(error: KafkaError | None) -> None:
        heard.append(0 if error is None else int(error.code))
        if error is not None:
            leader.replica.wait_committed(1, told)

    leader.replica.wait_committed(1, told)
    leader.replica.apply(bench.placed._replace(replicas=(1,), isr=(1,), leader_epoch=1, partition_epoch=9))
    assert heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]


def test_a_coordinator_tells_what_all_in_sync_have_however_few_they_are_by_now(tmp_path: Path) -> None:
    """Committed offsets could not be read for as long as too few were in sync."""
    bench = Bench(tmp_path, min_isr=2)
    leader = bench.nodes[1]
    here = SimpleNamespace(clock=lambda: 0, new_name=lambda: "")
    context: Any = ShardContext(leader.replica, bench.loop, here)  # type: ignore[arg-type]
    heard: list[int] = []

    def ask() -> list[int]:
        heard.clear()
        context.when_durable(lambda error: heard.append(0 if error is None else int(error.code)))
        return heard

    leader.produce(b"a")
    assert ask() == []
    bench.settle()
    assert heard == [0]
    bench.publish(isr=(1,))
    assert leader.replica.under_min_isr and ask() == [0]
    bench.elect(2, (1, 2))
    assert ask() == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    context.close()
    assert ask() == [ErrorCode.NOT_COORDINATOR]


def test_consumers_may_read_from_followers(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader, follower = bench.nodes.values()
    leader.produce(b"a")
    bench.settle()
    assert [follower.fetch(0, version).error_code for version in (10, 11, 12, 17)] == [6, 0, 0, 0]
    told = leader.fetch(0, rack="r2")
    assert (told.preferred_read_replica, told.records or b"", told.high_watermark) == (2, b"", 1)
    assert [leader.fetch(0, rack=rack).preferred_read_replica for rack in ("r1", "r9", "")] == [-1, -1, -1]


def test_only_a_replica_of_the_partition_in_its_latest_life_is_served_as_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader = bench.nodes[1]
    errors = [leader.replica.follower_error(node, epoch, 102) for node in (2, 9) for epoch in (-1, 0, 1)]
    assert errors == [0, 0, 75, 6, 75, 75]
    assert [leader.replica.follower_error(2, 0, broker_epoch) for broker_epoch in (101, 102)] == [6, 0]


def test_a_partition_goes_from_one_node_to_two_and_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.publish(replicas=(1,), isr=(1,))
    leader = bench.nodes[1]
    leader.produce(b"a")
    assert (leader.log.high_watermark, leader.log.shared) == (1, False)
    bench.publish(replicas=(1, 2), isr=(1,))
    assert (leader.log.high_watermark, leader.log.shared) == (1, True)
    bench.settle()
    assert bench.placed.isr == (1, 2)
    answer = leader.produce(b"b")
    assert not answer.done
    bench.publish(replicas=(1,), isr=(1,))
    assert answer.code == 6  # who asks again finds one that needs nobody else
    assert leader.produce(b"c").code == 0
    assert leader.values() == [b"a", b"b", b"c"]


def test_a_deleted_partition_sends_everybody_away(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader, follower = bench.nodes.values()
    answer = leader.produce(b"a")
    for node in bench.nodes.values():
        for replica in node.table.remove_topic("events", leader.replica.topic_id):
            replica.retire()
    assert answer.code == 6
    assert not follower.fetchers[1].partitions
    assert not leader.replication.partitions


def test_a_followers_offset_moves_by_its_fetches_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader, follower = bench.nodes.values()
    follower.turn()
    leader.produce(b"a")
    bench.loop.pass_time()  # the fetch that waited is answered with it
    assert leader.replica.shared is not None
    known = leader.replica.shared.machine.follower(2)
    assert known is not None
    assert known.log_end == 0


def delete_records(bench: Bench, offset: int) -> asyncio.Task[Any]:
    """DeleteRecords at node 1, begun."""
    leader = bench.nodes[1]
    item = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="events", partitions=[item])
    context: Any = SimpleNamespace(image=bench.image, logs=leader.logs, node_id=1, replicas=leader.table)
    answer: Any = delete_records_handler.handle(context, DeleteRecordsRequest(topics=[topic], timeout_ms=50))

    async def result() -> Any:
        response = await answer if asyncio.iscoroutine(answer) else answer
        told = response.topics[0].partitions[0]
        return told.error_code, told.low_watermark

    return asyncio.ensure_future(result())


def test_records_are_deleted_when_all_live_replicas_have_deleted_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes=3)
    for value in (b"a", b"b", b"c"):
        bench.nodes[1].produce(value)
        bench.settle()

    async def run() -> None:
        deletion = delete_records(bench, 2)
        await asyncio.sleep(0)
        assert not deletion.done()
        bench.loop.pass_time(2)
        bench.settle()
        bench.loop.pass_time(2)
        bench.settle()
        assert await deletion == (0, 2)
        assert [node.log.log_start_offset for node in bench.nodes.values()] == [2, 2, 2]
        assert await delete_records(bench, 1) == (0, 2)
        assert await delete_records(bench, 3) == (7, 2)
        deletion = delete_records(bench, -1)
        await asyncio.sleep(0)
        bench.elect(2, (1, 2, 3))
        assert await deletion == (6, -1)

    asyncio.run(run())


@pytest.mark.parametrize("offline", [False, True])
def test_who_cannot_lead_yet_for_want_of_its_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    """While a thread recovers the log. It had said that it leads: what was written in between came into a log that still followed."""
    bench = Bench(tmp_path)
    bench.settle()
    second = bench.nodes[2]
    refused: KafkaError = KafkaStorageError("broken") if offline else ReplicaNotAvailable("being recovered")

    def ends(partition: SharedPartition) -> Ends:
        raise refused

    with monkeypatch.context() as patched:
        patched.setattr(SharedPartition, "_ends", ends)
        if offline:
            second.log.dir.offline = second.log.dir.refusal = refused
        with pytest.raises(type(refused)):
            bench.elect(2, (1, 2))
    answer = second.produce(b"x", acks=1)
    assert answer.done
    if offline:
        assert answer.code == ErrorCode.KAFKA_STORAGE_ERROR, "which is not for now only"
        return
    assert answer.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and second.log.log_end_offset == 0
    assert second.replica.apply(bench.placed), "as if it were told first now"
    assert second.produce(b"y", acks=1).code == 0
    bench.settle()
    assert [node.values() for node in bench.nodes.values()] == [[b"y"], [b"y"]]


def test_what_is_committed_while_a_shortage_has_left_the_log_half_done_is_seen_once_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was acknowledged when more happened, and seen when more was written."""
    bench = Bench(tmp_path)
    leader = bench.nodes[1]
    shared = leader.replica.shared
    assert shared is not None
    answer = leader.produce(b"a", timeout_ms=10 * LAG_MS)
    bench.loop.now += 2 * LAG_MS / 1000

    def refuse(_: object) -> None:
        raise KafkaStorageError("loading a log failed: Too many open files")

    with monkeypatch.context() as short:
        short.setattr(HalfDone, "load", refuse)
        leader.log.unload(0)
        shared.check()
        change = shared.machine.isr.pending
        assert change is not None
        shared.answered(change, IsrAnswer(0, change.leader_epoch, change.partition_epoch + 1, (1,)))
        bench.loop.pass_time()
        assert (answer.done, answer.code) == (True, 0)
    assert leader.values() == [b"a"]
