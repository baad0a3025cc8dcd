"""Who may work on what, and what may be committed: checked against a plain list of everything that happened."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from fastq._native.consume import Record
from fastq.consumer.lanes import Lanes, Progress, Task
from fastq.metadata import OffsetAndMetadata, TopicPartition


def record(offset: int, key: bytes | None = None, partition: int = 0, leader_epoch: int = -1) -> Record:
    return Record("t", partition, offset, key=key, leader_epoch=leader_epoch)


def offsets_of(lanes: Lanes) -> dict[TopicPartition, int]:
    return {tp: place.offset for tp, place in lanes.commits().items()}


@pytest.mark.parametrize("seed", range(20))
def test_progress_has_no_gaps(seed: int) -> None:
    rng = random.Random(seed)
    offsets = sorted(rng.sample(range(100, 400), 60))
    progress = Progress(offsets[0])
    begun: list[int] = []
    done: set[int] = set()
    todo = list(offsets)
    while todo or len(done) < len(offsets):
        if todo and (rng.random() < 0.5 or len(done) == len(begun)):
            begun.append(todo.pop(0))
            progress.begin(begun[-1])
        else:
            offset = rng.choice([offset for offset in begun if offset not in done])
            done.add(offset)
            progress.end(offset)
        missing = [offset for offset in begun if offset not in done]
        assert progress.offset == (missing[0] if missing else begun[-1] + 1)
        assert progress.pending == len(missing)


def test_what_is_for_no_application_is_committed_once_all_before_it_is_done() -> None:
    lanes, tp = Lanes("none", clock=lambda: 0.0), TopicPartition("t", 0)
    lanes.add([record(3), record(4)])
    behind = {tp: OffsetAndMetadata(6, "", 2), TopicPartition("t", 1): OffsetAndMetadata(9, "", 2)}
    first, second = lanes.take(), lanes.take()
    assert first is not None and second is not None
    lanes.done(second)
    lanes.reached(behind)
    assert lanes.commits() == {}, "the first one is not done"
    lanes.done(first)
    lanes.reached(behind)
    assert lanes.commits() == {tp: OffsetAndMetadata(6, "", 2)}
    lanes.reached({tp: OffsetAndMetadata(5, "", 2)})
    assert lanes.commits() == {tp: OffsetAndMetadata(6, "", 2)}


@pytest.mark.parametrize("order", ["partition", "key", "none"])
@pytest.mark.parametrize("seed", range(10))
def test_order_is_kept_and_nothing_is_lost(order: str, seed: int) -> None:
    rng = random.Random(seed)
    now = 0.0
    lanes = Lanes(order, clock=lambda: now)
    nexts: defaultdict[int, int] = defaultdict(int)
    running: list[Task] = []
    seen: defaultdict[object, list[int]] = defaultdict(list)
    given = 0

    def lane_of(r: Record) -> object:
        if order == "none" or (order == "key" and r.key is None):
            return r.partition, r.offset
        return (r.partition, r.key) if order == "key" else r.partition

    for step in range(2000):
        now += 0.01
        roll = rng.random()
        if step < 1000 and roll < 0.3:
            fresh = []
            for _ in range(rng.randrange(1, 4)):
                partition = rng.randrange(3)
                nexts[partition] += rng.randrange(1, 3)
                fresh.append(record(nexts[partition], rng.choice([None, b"a", b"b"]), partition))
            lanes.add(fresh)
            given += len(fresh)
        elif roll < 0.7:
            task = lanes.take()
            if task is not None:
                assert lane_of(task.record) not in [lane_of(other.record) for other in running]
                running.append(task)
        elif running:
            task = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.2:
                lanes.again(task, rng.random())
            else:
                seen[lane_of(task.record)].append(task.record.offset)
                lanes.done(task)
        assert lanes.running() == len(running)
        assert lanes.pending == given - sum(map(len, seen.values()))
    now += 10
    for task in running:
        seen[lane_of(task.record)].append(task.record.offset)
        lanes.done(task)
    while (task := lanes.take()) is not None:
        seen[lane_of(task.record)].append(task.record.offset)
        lanes.done(task)
    assert lanes.pending == 0
    assert lanes.wait_s() is None
    assert all(offsets == sorted(offsets) for offsets in seen.values())
    assert offsets_of(lanes) == {TopicPartition("t", p): last + 1 for p, last in nexts.items()}


def test_commits_are_told_once() -> None:
    lanes = Lanes("none", clock=lambda: 0.0)
    lanes.add([record(5), record(6)])
    first, second = lanes.take(), lanes.take()
    assert first is not None
    assert second is not None
    lanes.done(second)
    assert lanes.commits() == {}
    lanes.done(first)
    assert offsets_of(lanes) == {("t", 0): 7}
    lanes.committed(lanes.commits())
    assert lanes.commits() == {}


def test_a_pause_holds_its_lane_and_no_other() -> None:
    now = 0.0
    lanes = Lanes("key", clock=lambda: now)
    lanes.add([record(0, b"a"), record(1, b"a"), record(2, b"b")])
    task = lanes.take()
    assert task is not None
    lanes.again(task, 5.0)
    other = lanes.take()
    assert other is not None
    assert other.record.key == b"b"
    assert lanes.take() is None
    assert lanes.wait_s() == 5.0
    now = 5.0
    assert lanes.take() is task


def test_partitions_that_are_given_up_leave_nothing_behind() -> None:
    lanes = Lanes("partition", clock=lambda: 0.0)
    lanes.add([record(0), record(1), record(0, partition=1), record(1, partition=1)])
    gone = TopicPartition("t", 0)
    task = lanes.take()
    assert task is not None
    assert task.record.partition == 0
    lanes.drop_waiting([gone])
    assert (lanes.pending, lanes.running([gone])) == (3, 1)
    lanes.done(task)
    assert offsets_of(lanes) == {gone: 1}
    lanes.give_up([gone])
    assert lanes.commits() == {}
    assert lanes.pending == 2
    # What a worker finishes later counts no more, also when the partition came back.
    other = lanes.take()
    assert other is not None
    lanes.give_up([TopicPartition("t", 1)])
    lanes.add([record(7, partition=1)])
    lanes.done(other)
    assert lanes.commits() == {}
    assert lanes.pending == 1


def test_gaps_are_closed_before_a_partition_goes() -> None:
    lanes = Lanes("key", clock=lambda: 0.0)
    gone = TopicPartition("t", 0)
    lanes.add([record(0, b"x", partition=1)])
    lanes.add([record(offset, key) for offset, key in enumerate([b"a", b"a", b"b", b"c", b"a", b"b"])])
    _, slow, quick, last = (lanes.take() for _ in range(4))
    assert slow is not None and quick is not None and last is not None
    lanes.add([record(1, b"y", partition=1)])
    lanes.done(last)  # offset 3, above 1, which waits for its key
    assert lanes.close_gaps([gone])
    assert (lanes.pending, lanes.running([gone])) == (5, 2)  # two of the partition that stays; 0, 1 and 2
    lanes.done(quick)
    lanes.done(slow)
    assert lanes.close_gaps([gone])
    passed_over = lanes.take()
    assert passed_over is not None and passed_over.record.offset == 1  # before what waits of others
    assert lanes.close_gaps([gone])
    lanes.done(passed_over)
    assert not lanes.close_gaps([gone])
    assert offsets_of(lanes) == {gone: 4}
    assert lanes.pending == 2


def test_no_gap_is_closed_behind_a_pause() -> None:
    lanes = Lanes("key", clock=lambda: 0.0)
    gone = TopicPartition("t", 0)
    lanes.add([record(offset, key) for offset, key in enumerate([b"a", b"b", b"c", b"c", b"d"])])
    first, failed, third = (lanes.take() for _ in range(3))
    assert first is not None and failed is not None and third is not None
    lanes.done(third)
    fourth, last = lanes.take(), lanes.take()
    assert fourth is not None and last is not None and last.record.offset == 3
    lanes.done(fourth)
    lanes.again(failed, 60.0)
    assert lanes.close_gaps([gone])
    assert (lanes.pending, lanes.running()) == (2, 2)
    lanes.done(first)
    lanes.again(last, 60.0)
    assert not lanes.close_gaps([gone])
    assert (offsets_of(lanes), lanes.pending, lanes.running()) == ({gone: 1}, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_done_is_committed_when_partitions_go(seed: int) -> None:
    """Whatever was passed over: unless something fails, the commit is behind all that was done, and nothing else was begun."""
    rng = random.Random(seed)
    lanes = Lanes("key", clock=lambda: 0.0)
    gone = {TopicPartition("t", 0), TopicPartition("t", 1)}
    lanes.add([record(offset, rng.choice([None, b"a", b"b"]), offset % 3) for offset in range(60)])
    running: list[Task] = []
    done: list[tuple[int, int]] = []

    def step() -> None:
        if running and rng.random() < 0.5:
            task = running.pop(rng.randrange(len(running)))
            done.append((task.record.partition, task.record.offset))
            lanes.done(task)
        elif len(running) < 3 and (found := lanes.take()) is not None:
            running.append(found)

    for _ in range(50):
        step()
    begun = [(task.record.partition, task.record.offset) for task in running] + done
    while lanes.close_gaps(gone):
        step()
    ends = offsets_of(lanes)
    for tp in gone:
        last = max((offset for partition, offset in begun if partition == tp.partition), default=-1)
        assert ends.get(tp, 0) > last
        assert max((offset for partition, offset in done if partition == tp.partition), default=-1) == last


def test_an_order_that_is_none_of_them() -> None:
    with pytest.raises(ValueError, match="partition, key, none"):
        Lanes("random", clock=lambda: 0.0)


def test_what_is_committed_has_the_leader_epoch_of_the_last_record_before_it() -> None:
    lanes = Lanes("none", clock=lambda: 0.0)
    lanes.add([record(0, leader_epoch=3), record(1, leader_epoch=4), record(5, leader_epoch=6)])
    tasks = [task for _ in range(3) if (task := lanes.take()) is not None]
    for finished, expected in ((0, (1, 3)), (2, (1, 3)), (1, (6, 6))):
        lanes.done(tasks[finished])
        ((_, place),) = lanes.commits().items()
        assert place == OffsetAndMetadata(expected[0], "", expected[1])
