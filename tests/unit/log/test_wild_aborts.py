"""Transaction indexes that are damaged while their log is in use: nothing aborted is told as committed, and a thread makes them again."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
from pathlib import Path

import pytest
from aborts_world import CERTAIN, COUNT, DAMAGES, World, with_two_aborts
from fastq_broker.log import PartitionLog, index_rebuild, txn_index
from fastq_broker.log.segment import TXN_INDEX_SUFFIX
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, crash, one_batch

from fastq.errors import KafkaError, KafkaStorageError, ReplicaNotAvailable


@pytest.mark.parametrize("how", DAMAGES)
def test_nothing_aborted_is_told_as_committed(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path)
    assert world.told() == world.wanted()
    (path, *_), good = world.paths(), [path.read_bytes() for path in world.paths()]
    DAMAGES[how](path)
    for _ in range(3):
        with pytest.raises(ReplicaNotAvailable, match="is being made again"):
            world.told()
    assert len(world.thread.jobs) == 1
    for number in range(COUNT, COUNT + 9):
        world.step(number)
    world.settle()
    assert [path.read_bytes() for path in world.paths()][: len(good) - 1] == good[:-1]
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith(f"{path} is damaged, it is made again from the segment")


def test_an_empty_file_is_no_error_and_still_looked_into(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Apache Kafka leaves such; an operator is told, and nothing is taken for committed."""
    world = World(tmp_path)
    path = world.paths()[0]
    none = Path(world.log.segments[0].path_of(TXN_INDEX_SUFFIX)).with_name(f"{0:020d}{TXN_INDEX_SUFFIX}")
    assert world.manager.close()
    DAMAGES["empty"](path)
    none.touch()
    world.begin()
    world.settle()
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.levelname for record in told} == {"WARNING"}
    assert any(f"{path}: at byte 0: the file is empty" in record.message for record in told)
    assert path.stat().st_size and (none == path or not none.exists())


class WatchedFiles(FaultyFiles):
    """Looks at a file after each operation that may have changed it."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: Path | None = None
        self.seen: list[bytes | None] = []

    def _look(self) -> None:
        if self.watched is not None:
            self.seen.append(self.watched.read_bytes() if self.watched.exists() else None)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._look()
        return super().pread(fd, size, position)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:  # type: ignore[override]
        written = super().pwrite(fd, data, position)
        self._look()
        return written

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        super().rename(source, target)
        self._look()

    def unlink(self, path: str) -> None:  # type: ignore[override]
        super().unlink(path)
        self._look()


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("how", [how for how in CERTAIN if how != "empty"])
def test_a_load_that_is_killed_leaves_the_damaged_file_or_the_whole_one(tmp_path: Path, how: str, clean: bool) -> None:
    files = WatchedFiles()
    world = World(tmp_path, files)
    world.log.flush()
    world.log.dir.flusher.wait()
    world.manager.write_checkpoints(world.log.dir, wait=True)
    path = max(world.paths(), key=lambda path: path.stat().st_size)
    good = path.read_bytes()
    assert len(good) > txn_index.ENTRY_BYTES
    if clean:
        assert world.manager.close()
    else:
        crash(world.manager)
    DAMAGES[how](path)
    files.watched, damaged = path, path.read_bytes()
    world.begin()
    world.settle()
    assert [seen for number, seen in enumerate(files.seen) if number == files.seen.index(seen)] == [damaged, good]
    assert files.synced[str(path)] == len(good)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("again", ["heal", "crash"])
@pytest.mark.parametrize("which", [0, -1])
def test_room_that_is_short_while_a_load_makes_it(tmp_path: Path, which: int, again: str, cut: bool) -> None:
    files = FaultyFiles()
    world = World(tmp_path, files)
    world.log.flush()
    world.log.dir.flusher.wait()
    world.manager.write_checkpoints(world.log.dir, wait=True)
    crash(world.manager)
    path = world.paths()[which]
    good = path.read_bytes()
    DAMAGES["cut within an entry"](path)
    damaged = path.read_bytes()
    files.plan(Fault("write", errno.ENOSPC, TXN_INDEX_SUFFIX))
    world.begin()
    assert world.told() == world.wanted()
    if which == 0:  # else all of it lies where recovery looks
        assert path.read_bytes() == damaged, "the next process finds it damaged too"
    if cut:
        end = int(path.name[:20])
        world.log.truncate_to(end + 1)
        world.aborted = [each for each in world.aborted if each[2] <= end]
        assert world.told() == world.wanted()
    files.heal()
    if again == "heal":
        world.log.flush()
        world.log.dir.flusher.wait()
        world.manager.write_checkpoints(world.log.dir, wait=True)
    crash(world.manager)
    world.begin()
    assert world.log.dir.offline is None
    assert world.told() == world.wanted()
    world.log.roll(START_MS)
    assert cut or path.read_bytes() == good


@pytest.mark.parametrize("how", ["in use", "with an abort meanwhile", "without a thread", "once there is room"])
def test_a_loss_of_power_leaves_the_damaged_file_or_the_whole_one(tmp_path: Path, how: str) -> None:
    """One that is put in its place before it is on disk may be left as a part, which looks whole."""

    class Unsynced(FaultyFiles):
        replaced = 0

        def rename(self, source: str, target: str) -> None:  # type: ignore[override]
            if target == str(path):
                self.replaced += 1
                assert self.synced.get(source) == Path(source).stat().st_size
            super().rename(source, target)

    files, path = Unsynced(), tmp_path
    world = World(tmp_path, files)
    assert world.told() == world.wanted()
    world.log.flush()
    world.log.dir.flusher.wait()
    path = world.paths()[-1]
    if how == "once there is room":
        world.manager.write_checkpoints(world.log.dir, wait=True)
        crash(world.manager)
        path = world.paths()[0]
        files.plan(Fault("write", errno.ENOSPC, TXN_INDEX_SUFFIX))
    DAMAGES["cut within an entry"](path)
    if how == "once there is room":
        world.begin()
        assert world.told() == world.wanted()
        files.heal()
        world.log.flush()
    elif how == "without a thread":
        world.log.dir.index_rebuild = None
        assert world.told() == world.wanted()
    else:
        with pytest.raises(ReplicaNotAvailable):
            world.told()
        if how == "with an abort meanwhile":
            world.abort(20)
        world.settle()
    assert files.replaced == 1
    assert not list(path.parent.glob("*.tmp"))


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("which", [0, -1])
def test_whatever_goes_on_beside_it(tmp_path: Path, how: str, which: int) -> None:
    steps = ("append", "roll", "truncate", "delete", "close", "crash")
    for number, (step, when) in enumerate(itertools.product(steps, ("before", "beside", "heard"))):
        if step in ("close", "crash") and when == "before" and how not in CERTAIN:
            continue  # nobody has looked: it is not missed, nor by Apache Kafka
        directory = tmp_path / str(number)
        directory.mkdir()
        world = World(directory)
        assert world.told() == world.wanted()
        DAMAGES[how](world.paths()[which])
        if when != "before":
            with pytest.raises(ReplicaNotAvailable):
                world.told()
        if when == "heard":
            world.thread.run()
        log = world.log
        if step == "append":
            for each in range(COUNT, COUNT + 12):
                world.step(each)
        elif step == "roll":
            log.roll(START_MS)
        elif step == "truncate":
            end = max(last for _, _, last in world.aborted)
            log.truncate_to(end)
            world.aborted = [each for each in world.aborted if each[2] < end]
        elif step == "delete":
            log.high_watermark = log.log_end_offset
            log.delete_records_before(log.segments[1].base_offset)
            log.drop_oldest(1)
        else:
            if step == "close":
                assert world.manager.close()
            else:
                crash(world.manager)
            world.thread.jobs.clear()
            world.begin()
        world.loop.turn()
        world.settle()
        with contextlib.suppress(KafkaError):
            world.manager.close()
        world.begin()
        world.settle()


@pytest.mark.parametrize("when", ["beside", "made"])
def test_a_topic_that_is_deleted_meanwhile_takes_nothing_offline(tmp_path: Path, when: str) -> None:
    world = World(tmp_path)
    world.paths()[0].unlink()
    with pytest.raises(ReplicaNotAvailable):
        world.told()
    if when == "made":
        world.thread.run()
    log = world.log
    world.manager.delete("t", 0)
    world.clock.advance(120_000)
    world.manager.tick()
    world.thread.run()
    world.loop.turn()
    assert log.dir.offline is None
    world.manager.create("t", 0, bytes(16)).append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)


def test_room_that_is_short_while_it_is_made(tmp_path: Path) -> None:
    files = FaultyFiles()
    world = World(tmp_path, files)
    path = world.paths()[0]
    DAMAGES["backwards"](path)
    with pytest.raises(ReplicaNotAvailable):
        world.told()
    files.plan(Fault("write", errno.ENOSPC, TXN_INDEX_SUFFIX))
    world.thread.run()
    world.loop.turn()
    damaged = path.read_bytes()
    with pytest.raises((ReplicaNotAvailable, KafkaStorageError)):
        world.told()
    assert path.read_bytes() == damaged, "it is not forgotten that it is damaged"
    assert world.log.dir.offline is None
    files.heal()
    world.settle()


LOST = pytest.mark.parametrize("how", ["cut within an entry", "cut between entries", "gone"])


@LOST
def test_what_is_aborted_behind_a_cut_does_not_make_a_damaged_file_whole(tmp_path: Path, how: str) -> None:
    world, path = with_two_aborts(tmp_path)
    DAMAGES[how](path)
    world.log.truncate_to(world.log.log_end_offset - 1)
    world.abort(12)
    world.settle()
    crash(world.manager)
    world.begin()
    world.settle()


@LOST
def test_what_waits_for_a_file_that_could_not_be_made_again_does_not_make_it_whole(tmp_path: Path, how: str) -> None:
    files = FaultyFiles()
    world, path = with_two_aborts(tmp_path, files)
    DAMAGES[how](path)
    with pytest.raises(ReplicaNotAvailable):
        world.told()
    world.abort(12)
    fault = files.plan(Fault("write", errno.ENOSPC, TXN_INDEX_SUFFIX))
    world.thread.run()
    world.loop.turn()
    assert fault.struck
    files.heal()
    world.log.roll(START_MS)  # else a recovery would look at all of the segment
    world.log.flush()
    world.log.dir.flusher.wait()
    world.manager.write_checkpoints(world.log.dir, wait=True)
    assert world.log.recovery_point == world.log.log_end_offset
    crash(world.manager)
    world.begin()
    world.settle()
    assert path.stat().st_size == 3 * txn_index.ENTRY_BYTES


@pytest.mark.parametrize("partial", [0, 16])
def test_what_was_cut_off_does_not_stay_before_an_entry_that_had_no_room(tmp_path: Path, partial: int) -> None:
    files = FaultyFiles()
    world, path = with_two_aborts(tmp_path, files)
    files.plan(Fault("write", errno.ENOSPC, TXN_INDEX_SUFFIX, partial=partial))
    world.abort(12)
    assert path.stat().st_size == 2 * txn_index.ENTRY_BYTES + partial
    end = world.log.log_end_offset
    cut = world.aborted[-2][1]
    world.log.truncate_to(cut)
    world.aborted = [each for each in world.aborted if each[2] < cut]
    files.heal()
    while world.log.log_end_offset < end:
        world.log.append(one_batch([b"v"]), leader_epoch=1, now_ms=START_MS)
    world.abort(13)
    assert Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX)) == path
    assert world.told() == world.wanted()


def test_an_only_entry_that_had_no_room_and_was_cut_off_leaves_no_file(tmp_path: Path) -> None:
    files = FaultyFiles()
    world = World(tmp_path, files)
    world.log.roll(START_MS)
    files.plan(Fault("write", errno.ENOSPC, TXN_INDEX_SUFFIX, partial=16))
    world.abort(10)
    path = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    assert path.stat().st_size == 16
    files.heal()
    world.log.truncate_to(world.aborted.pop()[2])
    assert not path.exists()
    assert world.told() == world.wanted()


@pytest.mark.parametrize("more", [0, 1])
def test_a_file_that_is_emptied_before_anybody_has_looked_is_made_again(tmp_path: Path, more: int) -> None:
    world, path = with_two_aborts(tmp_path)
    assert world.manager.close()
    world.begin()
    world.log.load()
    DAMAGES["empty"](path)
    for number in range(more):
        world.abort(12 + number)
    world.settle()
    assert path.stat().st_size == (2 + more) * txn_index.ENTRY_BYTES


def test_zeros_are_no_transaction() -> None:
    """One has a record at least before its marker, in the first segment too."""
    assert txn_index.damage(bytes(txn_index.ENTRY_BYTES), "path", 0) is not None


@pytest.mark.parametrize("when", ["beside", "made"])
def test_older_segments_that_go_meanwhile_take_nothing_offline(tmp_path: Path, when: str) -> None:
    """Their batches are read for what was open at the segment's begin, where no snapshot tells it."""
    world = World(tmp_path)
    log = world.log
    assert world.told() == world.wanted()
    for snapshot in Path(log.path).glob("*.snapshot"):
        snapshot.unlink()
    DAMAGES["cut within an entry"](Path(log.segments[-2].path_of(TXN_INDEX_SUFFIX)))
    with pytest.raises(ReplicaNotAvailable):
        world.told()
    if when == "made":
        world.thread.run()
    log.high_watermark = log.log_end_offset
    log.delete_records_before(log.segments[2].base_offset)
    log.drop_oldest(2)
    world.thread.run()
    world.loop.turn()
    assert log.dir.offline is None
    world.settle()


def test_a_snapshot_that_goes_meanwhile_takes_nothing_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush removes the one before its own."""
    world = World(tmp_path)
    log = world.log
    assert world.told() == world.wanted()
    look = index_rebuild.producer_snapshots

    def too_late(log: PartitionLog) -> list[int]:
        found = look(log)
        for snapshot in Path(log.path).glob("*.snapshot"):
            snapshot.unlink()
        return found

    monkeypatch.setattr(index_rebuild, "producer_snapshots", too_late)
    DAMAGES["cut within an entry"](Path(log.segments[-2].path_of(TXN_INDEX_SUFFIX)))
    world.settle()
    assert log.dir.offline is None


def test_an_empty_file_that_could_not_be_removed_for_a_shortage_goes_with_the_next_flush(tmp_path: Path) -> None:
    """A file system that copies on write may have no room for that."""
    files = FaultyFiles()
    world = World(tmp_path, files)
    world.log.roll(START_MS)
    world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    none = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    world.log.roll(START_MS)
    world.log.flush()
    world.log.dir.flusher.wait()
    world.manager.write_checkpoints(world.log.dir, wait=True)
    crash(world.manager)
    none.touch()
    fault = files.plan(Fault("unlink", errno.ENOSPC, TXN_INDEX_SUFFIX))
    world.begin()
    assert world.told() == world.wanted()
    assert fault.struck and none.exists()
    files.heal()
    world.log.flush()
    world.log.dir.flusher.wait()
    assert not none.exists()
    assert world.log.dir.offline is None
    assert world.told() == world.wanted()


@pytest.mark.parametrize("own", [True, False])
def test_older_segments_that_go_once_they_were_read_are_no_reason_to_begin_anew(tmp_path: Path, own: bool) -> None:
    """But for one that had another's file by then.

    Where retention takes one in the time that it takes to read all of them, it would never end."""
    world = World(tmp_path)
    log = world.log
    assert world.told() == world.wanted()
    for snapshot in Path(log.path).glob("*.snapshot"):
        snapshot.unlink()
    path = Path(log.segments[-2].path_of(TXN_INDEX_SUFFIX))
    DAMAGES["cut within an entry"](path)
    with pytest.raises(ReplicaNotAvailable):
        world.told()
    if not own:
        with Path(log.segments[0].log.path).open("ab") as file:
            file.write(b"more")
    world.thread.run()
    log.high_watermark = log.log_end_offset
    log.delete_records_before(log.segments[1].base_offset)
    log.drop_oldest(1)
    world.loop.turn()
    assert (path.stat().st_size % txn_index.ENTRY_BYTES == 0) == own
    world.settle()
