"""Transaction indexes that are made again from segments with a damaged batch: what it said, and what is behind it, stays known."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from aborts_world import CONFIG, DAMAGES, World, overwrite, with_two_aborts
from fastq_broker.log import partition_log, txn_index
from fastq_broker.log.index_rebuild import rebuild
from fastq_broker.log.scan import WildIndex
from fastq_broker.log.segment import TXN_INDEX_SUFFIX
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, crash, one_batch

from fastq._native.records import iter_headers
from fastq.errors import ReplicaNotAvailable


def _of_close_entries(path: Path) -> World:
    """One whose segment begins here and has an entry of its offset index for every batch or two."""
    world = World(path)
    world.log.apply_config(replace(CONFIG, index_interval_bytes=100))
    world.log.roll(START_MS)
    return world


def _with_eight_aborts(path: Path) -> World:
    world = _of_close_entries(path)
    for producer in range(10, 18):
        world.abort(producer)
    return world


def _roll_and_stop(world: World, stop: str | None) -> None:
    """Close the segment, with all of it on disk, and end as `stop` says; None: go on."""
    world.log.roll(START_MS)
    world.log.flush()
    world.log.dir.flusher.wait()
    world.manager.write_checkpoints(world.log.dir, wait=True)
    if stop == "clean":
        assert world.manager.close()
    elif stop == "crash":
        crash(world.manager)


def _damage_batch(log: Path, number: int, field: str) -> None:
    position = [position for position, _ in iter_headers(log.read_bytes(), strict=True)][number]
    for each in field.split(" and "):
        at, wrong = {"offset": (0, b"\x40"), "length": (8, b"\x7f"), "checksum": (17, bytes(4))}[each]
        overwrite(wrong, position + at)(log)


@pytest.mark.parametrize("stop", [None, "clean", "crash", "not even closed"])
@pytest.mark.parametrize("field", ["length", "checksum", "offset and checksum"])
@pytest.mark.parametrize("batch", [2, 3])
def test_what_a_damaged_batch_said_of_aborted_transactions_is_kept(
    tmp_path: Path, batch: int, field: str, stop: str | None
) -> None:
    """The segment has a damaged batch, of the second transaction the first one or the marker, and the file has lost its last entry."""
    world = _with_eight_aborts(tmp_path)
    segment = world.log.active_segment
    path = Path(segment.path_of(TXN_INDEX_SUFFIX))
    if stop != "not even closed":  # where entries of the offset index wait in memory
        _roll_and_stop(world, stop)
    _damage_batch(Path(segment.log.path), batch, field)
    DAMAGES["cut within an entry"](path)
    if stop in ("clean", "crash"):
        world.begin()
    world.settle()
    assert path.stat().st_size == 8 * txn_index.ENTRY_BYTES
    first, upper = world.aborted[-7][1], world.aborted[-7][2]
    told = world.log.aborted_transactions(first, upper)
    assert [each.first_offset for each in told] == [first]


def test_an_offset_index_that_is_made_again_comes_before_what_is_behind_damage(tmp_path: Path) -> None:
    """Until then it leads nowhere."""
    world = _with_eight_aborts(tmp_path)
    segment = world.log.active_segment
    path = Path(segment.path_of(TXN_INDEX_SUFFIX))
    _damage_batch(Path(segment.log.path), 2, "length")
    DAMAGES["cut within an entry"](path)
    assert rebuild(world.log, segment, WildIndex(segment.index.path, 0, "wild"))
    world.settle()
    assert path.stat().st_size == 8 * txn_index.ENTRY_BYTES


@pytest.mark.parametrize("stop", [None, "clean", "crash"])
@pytest.mark.parametrize("field", ["length", "checksum", "offset and checksum"])
@pytest.mark.parametrize("which", ["a batch before", "the transaction's"])
def test_what_was_begun_in_a_segment_with_a_damaged_batch_is_known_in_the_next(
    tmp_path: Path, which: str, field: str, stop: str | None
) -> None:
    """What is open where a segment begins is told by the one before, where no snapshot does."""
    world = _of_close_entries(tmp_path)
    for _ in range(4):
        world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    damaged = Path(world.log.active_segment.log.path)
    first = world.begin_transaction(20)
    world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    world.log.roll(START_MS)
    world.end_transaction(20, first)
    path = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    _roll_and_stop(world, stop)
    for snapshot in path.parent.glob("*.snapshot"):
        if int(snapshot.stem) <= int(path.stem):
            snapshot.unlink()
    if which == "a batch before":
        _damage_batch(damaged, 1, field)
        path.write_bytes(b"torn")
    else:
        _damage_batch(damaged, 4, field)
        path.write_bytes(path.read_bytes() + b"torn")
    if stop is not None:
        world.begin()
    world.settle()


@pytest.mark.parametrize("stop", [None, "clean", "crash"])
def test_a_damaged_file_forgets_what_is_cut_off(tmp_path: Path, stop: str | None) -> None:
    """Else it would be told of the records that came in its place."""
    world, path = with_two_aborts(tmp_path)
    segment = world.log.active_segment
    path.write_bytes(path.read_bytes() + b"torn")
    end = world.log.log_end_offset
    world.log.truncate_to(world.aborted.pop()[1])
    while world.log.log_end_offset < end:
        world.log.append(one_batch([b"v"]), leader_epoch=1, now_ms=START_MS)
    _roll_and_stop(world, stop)
    _damage_batch(Path(segment.log.path), 0, "checksum")
    if stop is not None:
        world.begin()
    world.settle()


def _transact(world: World, epoch: int, producer_id: int = 30) -> int:
    batch = one_batch([b"v"], producer_id=producer_id, epoch=epoch, sequence=0, transactional=True)
    return world.log.append(batch, leader_epoch=0, now_ms=START_MS, transaction_version=2).base_offset


def _end(world: World, epoch: int, *, commit: bool, producer_id: int = 30) -> int:
    """As transaction version 2 ends one: the epoch is the next one's."""
    marker = world.log.append_transaction_marker(
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=0,
        commit=commit,
        leader_epoch=0,
        now_ms=START_MS,
    )
    return marker.base_offset


@pytest.mark.parametrize("stop", [None, "clean", "crash"])
@pytest.mark.parametrize("field", ["length", "checksum"])
@pytest.mark.parametrize("rolled", [False, True])
def test_an_epoch_that_rises_behind_damage_tells_that_a_transaction_has_ended(
    tmp_path: Path, rolled: bool, field: str, stop: str | None
) -> None:
    """What was committed before a damaged marker is no part of the transaction that was aborted after it."""
    world = _of_close_entries(tmp_path)
    damaged = Path(world.log.active_segment.log.path)
    _transact(world, 5)
    _end(world, 6, commit=True)
    for _ in range(3):
        world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    if rolled:
        world.log.roll(START_MS)
    world.aborted.append((30, _transact(world, 6), _end(world, 7, commit=False)))
    path = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    _roll_and_stop(world, stop)
    for snapshot in path.parent.glob("*.snapshot"):
        if rolled and int(snapshot.stem) <= int(path.stem):
            snapshot.unlink()
    _damage_batch(damaged, 1, field)
    DAMAGES["cut within an entry"](path)
    if stop is not None:
        world.begin()
    world.settle()


@pytest.mark.parametrize("damage", ["before", "behind"])
def test_an_epoch_that_rises_without_damage_tells_nothing(tmp_path: Path, damage: str) -> None:
    """A late record of an old producer may have begun what nobody has ended, and what follows ends it with its own."""
    world = World(tmp_path)
    world.log.roll(START_MS)
    segment = world.log.active_segment
    path = Path(segment.path_of(TXN_INDEX_SUFFIX))
    world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    first = _transact(world, 5)
    _transact(world, 6)
    world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    world.aborted.append((30, first, _end(world, 7, commit=False)))
    _roll_and_stop(world, None)
    _damage_batch(Path(segment.log.path), 0 if damage == "before" else 3, "checksum")
    DAMAGES["cut within an entry"](path)
    world.settle()


@pytest.mark.parametrize("how", ["below the recovery point", "appended after the load", "after two loads"])
@pytest.mark.parametrize("commit", [True, False])
def test_an_epoch_that_rises_behind_damage_tells_the_same_where_the_file_is_whole(
    tmp_path: Path, commit: bool, how: str
) -> None:
    """What comes behind a damaged marker is added to the file by a recovery, or by the appends after it."""
    world = _of_close_entries(tmp_path)
    damaged = Path(world.log.active_segment.log.path)
    first = _transact(world, 5)
    marker = _end(world, 6, commit=commit)
    if not commit:
        world.aborted.append((30, first, marker))
    for _ in range(3):
        world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    world.log.flush()
    world.log.dir.flusher.wait()
    world.manager.write_checkpoints(world.log.dir, wait=True)
    if how == "below the recovery point":
        world.aborted.append((30, _transact(world, 6), _end(world, 7, commit=False)))
    crash(world.manager)
    _damage_batch(damaged, 1, "checksum")
    world.begin()
    if how == "after two loads":
        assert world.log.log_end_offset
        assert world.manager.close()
        world.begin()
    if how != "below the recovery point":
        world.aborted.append((30, _transact(world, 6), _end(world, 7, commit=False)))
    world.settle()


def _aborted_by_each(world: World, producers: int, index_interval_bytes: int) -> tuple[Path, list[int], list[int]]:
    """A segment that begins with an aborted transaction of each producer, and goes on with others' records: its file, the producers' ids,
    and where their transactions begin."""
    world.log.apply_config(replace(CONFIG, index_interval_bytes=index_interval_bytes))
    world.log.roll(START_MS)
    damaged = Path(world.log.active_segment.log.path)
    ids = [30, 31][:producers]
    firsts = [_transact(world, 5, producer) for producer in ids]
    for producer, first in zip(ids, firsts, strict=True):
        world.aborted.append((producer, first, _end(world, 6, commit=False, producer_id=producer)))
    for _ in range(6):
        world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    return damaged, ids, firsts


@pytest.mark.parametrize("stop", [None, "clean", "crash"])
@pytest.mark.parametrize("field", ["length", "checksum"])
@pytest.mark.parametrize("epoch", [6, 8])
@pytest.mark.parametrize("producers", [1, 2])
def test_a_transaction_of_which_nothing_tells_how_it_ended_is_taken_for_aborted(
    tmp_path: Path, producers: int, epoch: int, field: str, stop: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its marker is damaged, and the file has lost its entry: shown wrongly, its records would have been taken for true."""
    world = World(tmp_path)
    damaged, ids, firsts = _aborted_by_each(world, producers, 200)
    for producer in ids:
        first = _transact(world, epoch, producer)
        world.aborted.append((producer, first, _end(world, epoch + 1, commit=False, producer_id=producer)))
    path = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    _roll_and_stop(world, stop)
    for number in range(producers):
        _damage_batch(damaged, producers + number, "checksum")
    if field == "length":
        _damage_batch(damaged, producers, field)
    DAMAGES["empty"](path)
    if stop is not None:
        world.begin()
    world.settle()
    assert caplog.text.count("is taken for aborted") == producers
    assert f"from offset {firsts[0]} on" in caplog.text


@pytest.mark.parametrize("stop", [None, "clean", "crash"])
@pytest.mark.parametrize("field", ["length", "checksum", "offset and checksum"])
@pytest.mark.parametrize("producers", [1, 2])
def test_more_damage_has_no_later_transaction_taken_for_aborted(
    tmp_path: Path, producers: int, field: str, stop: str | None
) -> None:
    """Between the markers that are lost and what their producers committed next."""
    world = World(tmp_path)
    damaged, ids, _ = _aborted_by_each(world, producers, 100)
    for producer in ids:
        _transact(world, 6, producer)
    for producer in ids:
        _end(world, 7, commit=True, producer_id=producer)
    path = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    _roll_and_stop(world, stop)
    for number in range(producers):
        _damage_batch(damaged, producers + number, "checksum")
    _damage_batch(damaged, 2 * producers + 5, field)
    DAMAGES["empty"](path)
    if stop is not None:
        world.begin()
    world.settle()


def _flip_bit_of_checksum(log: Path, number: int, bit: int) -> None:
    position = [position for position, _ in iter_headers(log.read_bytes(), strict=True)][number]
    data = bytearray(log.read_bytes())
    data[position + 17 + bit // 8] ^= 1 << bit % 8
    log.write_bytes(data)


@pytest.mark.parametrize("stop", [None, "clean", "crash"])
def test_a_batch_that_is_believed_parts_the_damage_before_it_from_that_behind(tmp_path: Path, stop: str | None) -> None:
    """The two would count as the one before it, and a marker that is lost behind it as none: its aborted records would be told as committed
    ones."""
    world = _of_close_entries(tmp_path)
    damaged = Path(world.log.active_segment.log.path)
    world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    world.aborted.append((30, _transact(world, 5), _end(world, 6, commit=False)))
    world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    world.aborted.append((30, _transact(world, 6), _end(world, 7, commit=False)))
    path = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    _roll_and_stop(world, stop)
    for number in (0, 2):
        _damage_batch(damaged, number, "checksum")
    _flip_bit_of_checksum(damaged, 1, 5)
    DAMAGES["empty"](path)
    if stop is not None:
        world.begin()
    world.settle()


@pytest.mark.parametrize("stop", [None, "clean", "crash"])
@pytest.mark.parametrize("bit", [0, 13, 31])
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_of_which_one_bit_of_the_checksum_is_wrong_is_believed(
    tmp_path: Path, commit: bool, bit: int, stop: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its producer goes on with the same epoch, as before transaction version 2, so that nothing else tells where the first one ended."""
    world = _of_close_entries(tmp_path)
    damaged = Path(world.log.active_segment.log.path)
    first = _transact(world, 5)
    marker = _end(world, 5, commit=commit)
    if not commit:
        world.aborted.append((30, first, marker))
    batch = one_batch([b"v"], producer_id=30, epoch=5, sequence=1, transactional=True)
    first = world.log.append(batch, leader_epoch=0, now_ms=START_MS, transaction_version=1).base_offset
    world.aborted.append((30, first, _end(world, 5, commit=False)))
    stable = world.log.last_stable_offset
    path = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    _roll_and_stop(world, stop)
    _flip_bit_of_checksum(damaged, 1, bit)
    DAMAGES["empty"](path)
    if stop is not None:
        for snapshot in path.parent.glob("*.snapshot"):
            snapshot.unlink()
        world.begin()
    world.settle()
    assert world.log.last_stable_offset == stable
    assert "is wrong by one bit" in caplog.text


@pytest.mark.parametrize("operation", ["open", "write"])
def test_a_damaged_file_forgets_what_is_cut_off_without_room_on_the_disk(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles()
    world, path = with_two_aborts(tmp_path, files)
    path.write_bytes(path.read_bytes() + b"torn")
    end = world.log.log_end_offset
    files.plan(Fault(operation, errno.ENOSPC, TXN_INDEX_SUFFIX + ".tmp"))
    world.log.truncate_to(world.aborted.pop()[1])
    assert world.log.loaded
    files.heal()
    while world.log.log_end_offset < end:
        world.log.append(one_batch([b"v"]), leader_epoch=1, now_ms=START_MS)
    segment = world.log.active_segment
    _roll_and_stop(world, None)
    _damage_batch(Path(segment.log.path), 0, "checksum")
    world.settle()


def _with_damage(directory: Path) -> World:
    """A world with a closed segment of eight aborts, a damaged batch among them that hides where the next begins, and a damaged file."""
    world = World(directory)
    world.log.apply_config(replace(CONFIG, index_interval_bytes=100))
    world.log.roll(START_MS)
    for producer in range(10, 18):
        world.abort(producer)
    segment = world.log.active_segment
    _roll_and_stop(world, None)
    assert segment.index.entry_count
    _damage_batch(Path(segment.log.path), 2, "length")
    DAMAGES["cut within an entry"](Path(segment.path_of(TXN_INDEX_SUFFIX)))
    return world


def test_an_offset_index_that_is_begun_anew_meanwhile_comes_before_what_is_behind_damage(tmp_path: Path) -> None:
    """A flush takes what its file had, before a thread comes to either."""
    world = _with_damage(tmp_path)
    segment = world.log.segments[-2]
    with pytest.raises(ReplicaNotAvailable):
        world.told()
    assert rebuild(world.log, segment, WildIndex(segment.index.path, 0, "wild"))
    segment.index.write_pending()
    world.settle()
    assert Path(segment.path_of(TXN_INDEX_SUFFIX)).stat().st_size == 8 * txn_index.ENTRY_BYTES


def test_an_offset_index_that_somebody_has_cut_is_made_again_before_what_is_behind_damage(tmp_path: Path) -> None:
    world = _with_damage(tmp_path)
    segment = world.log.segments[-2]
    path = Path(segment.index.path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 8)
    world.settle()
    assert Path(segment.path_of(TXN_INDEX_SUFFIX)).stat().st_size == 8 * txn_index.ENTRY_BYTES


def test_an_offset_index_that_could_not_be_made_again_leads_on_behind_damage(tmp_path: Path) -> None:
    """Its file has the old entries yet, and the batches tell which of them are true."""
    world = _with_damage(tmp_path)
    segment = world.log.segments[-2]
    assert rebuild(world.log, segment, WildIndex(segment.index.path, 0, "wild"))
    world.thread.jobs.clear()
    assert segment.rebuilding is not None
    segment.rebuilding.give_up()
    world.settle()
    assert Path(segment.path_of(TXN_INDEX_SUFFIX)).stat().st_size == 8 * txn_index.ENTRY_BYTES


@pytest.mark.parametrize("stop", [None, "clean", "crash"])
@pytest.mark.parametrize("rolled", [False, True])
def test_a_damaged_file_is_not_believed_of_what_lies_beyond_its_segment(
    tmp_path: Path, rolled: bool, stop: str | None
) -> None:
    """It would hide what its producer commits later, and what is aborted could not follow it."""
    world = _with_eight_aborts(tmp_path)
    segment = world.log.active_segment
    path = Path(segment.path_of(TXN_INDEX_SUFFIX))
    world.log.flush()
    world.log.dir.flusher.wait()
    if rolled:
        _roll_and_stop(world, stop)
    elif stop == "clean":
        assert world.manager.close()
    elif stop == "crash":
        world.manager.write_checkpoints(world.log.dir, wait=True)
        crash(world.manager)
    first, last = world.aborted[-1][1:]
    path.write_bytes(path.read_bytes() + txn_index.encode([(10, first, last + 100, first)]) + b"torn")
    _damage_batch(Path(segment.log.path), 0, "checksum")
    if stop is not None:
        world.begin()
    world.settle()
    world.abort(20)
    assert world.told() == world.wanted()


@pytest.mark.parametrize("behind", ["torn", "beyond the segment"])
def test_of_two_markers_that_are_lost_the_file_still_tells_one(
    tmp_path: Path, behind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is none of those that nothing tells of, and takes no place of theirs; what makes no sense behind it tells nothing."""
    world = _of_close_entries(tmp_path)
    damaged = Path(world.log.active_segment.log.path)
    firsts = [_transact(world, 5, producer) for producer in (30, 31)]
    for producer, first in zip((30, 31), firsts, strict=True):
        world.aborted.append((producer, first, _end(world, 6, commit=False, producer_id=producer)))
    for producer in (30, 31):
        _transact(world, 6, producer)
    path = Path(world.log.active_segment.path_of(TXN_INDEX_SUFFIX))
    _roll_and_stop(world, None)
    for number in (2, 3):
        _damage_batch(damaged, number, "checksum")
    told = path.read_bytes()[: txn_index.ENTRY_BYTES]
    first, last = world.aborted[-1][1:]
    path.write_bytes(
        told + (b"torn" if behind == "torn" else txn_index.encode([(10, first, last + 100, first)]) + b"torn")
    )
    world.settle()
    assert caplog.text.count("is taken for aborted") == 1


@pytest.mark.parametrize("commit", [True, False])
def test_the_loop_does_not_read_what_a_thread_has_read_over_damage(
    tmp_path: Path, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No snapshot tells it of the producers then: it takes them as the thread has found them."""
    world = _of_close_entries(tmp_path)
    damaged = Path(world.log.active_segment.log.path)
    first = _transact(world, 5)
    marker = _end(world, 6, commit=commit)
    if not commit:
        world.aborted.append((30, first, marker))
    for _ in range(3):
        world.log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    assert world.manager.close()
    for snapshot in damaged.parent.glob("*.snapshot"):
        snapshot.unlink()
    _damage_batch(damaged, 1, "checksum")
    monkeypatch.setattr(partition_log, "LOOP_BYTES_MAX", 0)
    for _ in range(2):
        world.begin()
        with pytest.raises(ReplicaNotAvailable):
            world.log.load()
        world.thread.run()
        world.loop.turn()
        world.log.load()
        assert world.log.recovery.bytes_read == 0
        assert not list(damaged.parent.glob("*.snapshot"))
        assert world.manager.close()
    world.begin()
    world.settle()
    world.aborted.append((30, _transact(world, 6), _end(world, 7, commit=False)))
    world.settle()
