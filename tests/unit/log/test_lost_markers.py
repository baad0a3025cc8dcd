"""Markers that are damaged, and of which a damaged index of aborted transactions tells nothing either: what is known from behind them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from aborts_world import CONFIG, DAMAGES, World
from fastq_broker.log.segment import TXN_INDEX_SUFFIX
from log_support import START_MS, crash, one_batch
from test_aborts_behind_damage import _damage_batch, _end, _transact


class Damaged(World):
    """One whose active segment begins here, and is damaged later."""

    def __init__(self, directory: Path, index_interval_bytes: int = 100) -> None:
        super().__init__(directory)
        self.log.apply_config(replace(CONFIG, index_interval_bytes=index_interval_bytes))
        self.log.roll(START_MS)
        segment = self.log.active_segment
        self.path, self.aborts = Path(segment.log.path), Path(segment.path_of(TXN_INDEX_SUFFIX))

    def pad(self, count: int) -> None:
        for _ in range(count):
            self.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)

    def damage(self, batch: int, field: str, stop: str | None) -> None:
        """All of it is on disk; then a batch of the segment and its index are damaged, and it goes on as `stop` says."""
        self.log.flush()
        self.log.dir.flusher.wait()
        if stop == "clean":
            assert self.manager.close()
        elif stop == "crash":
            self.manager.write_checkpoints(self.log.dir, wait=True)
            crash(self.manager)
        _damage_batch(self.path, batch, field)
        DAMAGES["empty"](self.aborts)
        if stop is not None:
            self.begin()


STOPS = pytest.mark.parametrize("stop", [None, "clean", "crash"])
FIELDS = pytest.mark.parametrize("field", ["length", "checksum", "offset and checksum"])


@STOPS
@FIELDS
@pytest.mark.parametrize("following", ["in the next segment", "nowhere", "nowhere, and the segment ends there"])
def test_a_transaction_counts_as_aborted_that_is_known_to_have_ended_when_its_segment_did(
    tmp_path: Path, following: str, field: str, stop: str | None
) -> None:
    """Nothing of its producer comes behind it in the segment: its aborted records were told as committed ones."""
    world = Damaged(tmp_path)
    first = _transact(world, 5)
    world.pad(1)
    world.aborted.append((30, first, _end(world, 6, commit=False)))
    world.pad(0 if following.endswith("there") else 6)
    world.log.roll(START_MS)
    if following == "in the next segment":
        world.aborted.append((30, _transact(world, 6), _end(world, 7, commit=False)))
    world.damage(2, field, stop)
    world.settle()


@STOPS
@FIELDS
@pytest.mark.parametrize("producers", [1, 3])
def test_a_transaction_counts_as_aborted_that_is_known_to_have_ended_by_now(
    tmp_path: Path, producers: int, field: str, stop: str | None
) -> None:
    """The log in use knows of it, or the snapshot that a flush has left, also of those that began behind that one."""
    world = Damaged(tmp_path)
    firsts = [_transact(world, 5, 30 + number) for number in range(producers)]
    for number, first in enumerate(firsts):
        world.aborted.append((30 + number, first, _end(world, 6, commit=False, producer_id=30 + number)))
    world.pad(6)
    world.log.flush()
    world.log.dir.flusher.wait()
    world.abort(40)
    world.pad(1)
    world.damage(producers, field, stop)
    world.settle()


@STOPS
@FIELDS
@pytest.mark.parametrize("rolled", [False, True])
def test_a_transaction_that_goes_on_behind_damage_does_not_count_as_aborted(
    tmp_path: Path, rolled: bool, field: str, stop: str | None
) -> None:
    world = Damaged(tmp_path)
    world.abort(20)
    first = _transact(world, 5)
    world.pad(3)
    if rolled:
        world.log.roll(START_MS)
        batch = one_batch([b"v"], producer_id=30, epoch=5, sequence=1, transactional=True)
        world.log.append(batch, leader_epoch=0, now_ms=START_MS, transaction_version=2)
    world.damage(3, field, stop)
    world.settle()
    assert world.log.producers.open_since()[30] == first
    _end(world, 6, commit=True)
    assert 30 not in world.log.producers.open_since()
    world.settle()


@pytest.mark.parametrize("stop", ["clean", "crash"])
@FIELDS
def test_damage_where_the_segment_before_ended_in_rubbish_is_another_one(tmp_path: Path, field: str, stop: str) -> None:
    """Both are passed over at the same offset: what ended at the second one was told as committed."""
    world = Damaged(tmp_path)
    first = _transact(world, 5)
    before = world.path
    world.log.roll(START_MS)
    segment = world.log.active_segment
    world.path, world.aborts = Path(segment.log.path), Path(segment.path_of(TXN_INDEX_SUFFIX))
    world.aborted.append((30, first, _end(world, 6, commit=False)))
    world.pad(6)
    world.log.roll(START_MS)
    world.log.flush()
    world.log.dir.flusher.wait()
    with before.open("ab") as file:
        file.write(bytes(100))
    Path(segment.path_of(".snapshot")).unlink()
    world.damage(0, field, stop)
    world.settle()
