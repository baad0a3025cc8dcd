"""Records that a loss of power has taken out of the middle of a log, where a later file was written back before an earlier one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from cleaner_support import cleaner_of
from cleaner_support import run as clean
from fastq_broker.log import LogConfig, partition_log
from fastq_broker.log.retention import apply_retention
from log_support import START_MS, Later, Loop, crash, flush_rolled, one_batch, open_manager, reconfigure, records_of
from test_dir_moves import KEY, directories, opened, read_all, run, write
from test_log_recovery import CONFIG, SIZE, fill, reopen

from fastq._native.records import build_batch
from fastq.errors import ReplicaNotAvailable


@pytest.mark.parametrize("left", [0, 40])
def test_records_that_are_gone_from_the_middle_are_told_until_they_are_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, left: int
) -> None:
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 250)
    crash(manager)
    with open(tmp_path / "t-0" / f"{100:020d}.log", "r+b") as file:
        file.truncate(left * SIZE)
    log = reopen(tmp_path)
    assert (log.gap_offset, log.log_end_offset, log.recovery.cut) == (100 + left, 250, [])
    assert log.missing_offsets == 100 - left
    assert [record.levelname for record in caplog.records if "passed over" in record.message] == ["ERROR"]
    log.truncate_to(240)
    assert log.gap_offset == 100 + left
    log.truncate_to(100 + left)
    assert (log.gap_offset, log.missing_offsets, log.log_end_offset) == (None, 0, 100 + left)
    log.append(one_batch([b"again"]), leader_epoch=9, now_ms=START_MS)
    assert [record.value for record in records_of(log.read(100 + left, 10_000))][-1] == b"again"


def test_all_that_is_missing_is_known_until_it_is_there_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Over clean stops, flushes and crashes; what lies below a cut stays."""
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 450)
    crash(manager)
    for base, left in ((100, 10), (300, 20)):
        with open(tmp_path / "t-0" / f"{base:020d}.log", "r+b") as file:
            file.truncate(left * SIZE)
    for stop in ("clean", "clean", "crash", "crash", "clean"):
        caplog.clear()
        manager = open_manager(tmp_path, CONFIG)
        log = manager.get("t", 0)
        assert log is not None
        log.load()
        assert log.recovery.gaps == [(110, 200), (320, 400)] and log.gap_offset == 110
        assert sum("the records between are gone" in record.message for record in caplog.records) == 2
        log.append(one_batch([b"more"]), leader_epoch=9, now_ms=START_MS)
        log.flush()
        log.dir.flusher.wait()
        manager.write_checkpoints(log.dir, wait=True)
        if stop == "clean":
            assert manager.close()
        else:
            crash(manager)
    manager = open_manager(tmp_path, CONFIG)
    log = manager.get("t", 0)
    assert log is not None
    log.truncate_to(320)
    assert log.recovery.gaps == [(110, 200)]
    log.raise_start(150)
    assert (log.gap_offset, log.missing_offsets) == (110, 50)
    log.raise_start(200)
    assert (log.gap_offset, log.missing_offsets) == (None, 0)
    assert manager.close()
    caplog.clear()
    log = reopen(tmp_path)
    assert (log.gap_offset, log.log_start_offset, log.log_end_offset) == (None, 200, 320) and not caplog.records


def test_what_is_missing_is_known_where_its_segments_index_is_damaged(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 250)
    crash(manager)
    with open(tmp_path / "t-0" / f"{100:020d}.log", "r+b") as file:
        file.truncate(40 * SIZE)
    manager = open_manager(tmp_path, CONFIG)
    log = manager.get("t", 0)
    assert log is not None and log.gap_offset == 140
    assert manager.close()
    index = tmp_path / "t-0" / f"{100:020d}.index"
    index.write_bytes(b"\0\0\0\5\x7f\xff\xff\0" * (index.stat().st_size // 8))
    log = reopen(tmp_path)
    assert (log.gap_offset, log.log_end_offset, log.checkpointed_recovery_point) == (140, 250, 140)


def test_only_what_is_missing_in_what_is_left_of_the_log_is_told(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, CONFIG)
    log = fill(manager, 0, 250)
    log.raise_start(200)
    manager.write_checkpoints(log.dir, wait=True)
    crash(manager)
    with open(tmp_path / "t-0" / f"{100:020d}.log", "r+b") as file:
        file.truncate(0)
    log = reopen(tmp_path)
    assert (log.gap_offset, log.log_start_offset, log.log_end_offset) == (None, 200, 250)


def test_a_compacted_log_has_records_missing_anyhow(tmp_path: Path) -> None:
    config = replace(CONFIG, cleanup_policy=frozenset({"compact"}))
    manager = open_manager(tmp_path, config)
    fill(manager, 0, 250)
    crash(manager)
    with open(tmp_path / "t-0" / f"{100:020d}.log", "r+b") as file:
        file.truncate(0)
    found = open_manager(tmp_path, config).get("t", 0)
    assert found is not None and found.gap_offset is None and found.log_end_offset == 250


@pytest.mark.parametrize("stop", ["clean", "crash", "lacks an index"])
def test_what_compaction_has_taken_is_not_missing_once_the_policy_is_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    """Below what the cleaner's checkpoint says, that is: the records above it are missing if they are."""
    row = build_batch([(START_MS, b"key-0", b"v")])
    config = LogConfig(segment_bytes=10 * len(row), min_cleanable_dirty_ratio=0.1)
    compacted = replace(config, cleanup_policy=frozenset({"compact"}))

    def add(keys: list[int]) -> None:
        for key in keys:
            log.append(build_batch([(START_MS, b"key-%d" % key, b"v")]), leader_epoch=0, now_ms=START_MS)

    manager = open_manager(tmp_path, compacted)
    log = manager.create("t", 0, bytes(16))
    add([*range(10), *[9] * 10, *[5, 6, 7, 8] * 2, 0, 9])
    add([9])
    flush_rolled(log)
    assert clean(cleaner_of(manager), START_MS) == 1
    assert log.cleaned_offset == 30
    sizes = {segment.base_offset: segment.size // len(row) for segment in log.segments}
    assert [sizes[base] for base in (0, 20, 30)] == [4, 6, 1] and not sizes.get(10), (
        "of the first, what is last is gone"
    )
    reconfigure(manager, "t", config)
    manager.default_config = config
    add([0] * 30)  # and three segments that have never been compacted
    assert [segment.base_offset for segment in log.segments[-3:]] == [40, 50, 60]
    if stop == "crash":
        manager.write_checkpoints(log.dir, wait=True)
        crash(manager)
    else:
        assert manager.close()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    manager = open_manager(tmp_path, config)
    found = manager.get("t", 0)
    assert found is not None
    if stop == "lacks an index":  # a thread recovers it while the broker serves
        monkeypatch.setattr(partition_log, "LOOP_BYTES_MAX", 0)
        Path(found.path, f"{40:020d}.index").unlink()
        loop, thread = Loop(), Later()
        manager.late.attach(manager.dirs, loop, lambda count, name: thread)
        with pytest.raises(ReplicaNotAvailable):
            found.load()
        thread.run()
        assert f"{found.path} is whole now" in caplog.text
        loop.turn()
        assert found.recovery_point == 61
    assert (found.log_end_offset, found.recovery.gaps) == (61, [])
    assert not [record for record in caplog.records if "are gone" in record.message]
    crash(manager)
    os.truncate(tmp_path / "t-0" / f"{40:020d}.log", 3 * len(row))
    (tmp_path / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    found = open_manager(tmp_path, config).get("t", 0)
    assert found is not None
    assert (found.log_end_offset, found.recovery.gaps) == (61, [(43, 50)])


def test_what_a_leaders_log_does_not_have_is_not_missing(tmp_path: Path) -> None:
    """A replica of a log that was compacted before this one was made, so that no checkpoint here says it."""
    manager = open_manager(tmp_path, CONFIG)
    log = manager.create("t", 0, bytes(16))
    for offset in (0, 500, 1000):
        batch = build_batch([(START_MS, None, b"v" * 99 * SIZE)], base_offset=offset)
        log.append_as_follower(memoryview(batch), now_ms=START_MS)
    assert len(log.segments) == 3
    crash(manager)
    log = reopen(tmp_path)
    assert (log.log_end_offset, log.recovery.gaps) == (1001, [])
    assert [record.offset for record in records_of(log.read(1, 1 << 20))][:1] == [500]


@pytest.mark.parametrize("stop", ["clean", "crash"])
def test_a_log_whose_first_files_are_gone_begins_behind_them_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stop: str
) -> None:
    manager = open_manager(tmp_path, CONFIG)
    log = fill(manager, 0, 450)
    log.delete_records_before(150)
    if stop == "clean":
        assert manager.close()
    else:
        manager.write_checkpoints(log.dir, wait=True)
        crash(manager)
    for base in (0, 100):
        for path in (tmp_path / "t-0").glob(f"{base:020d}.*"):
            path.unlink()
    caplog.clear()
    manager = open_manager(tmp_path, CONFIG)
    found = manager.get("t", 0)
    assert found is not None
    assert (found.log_start_offset, found.lost_start, found.missing_offsets) == (200, (150, 200), 50)
    (told,) = [record for record in caplog.records if "begins at offset" in record.message]
    assert told.levelname == "ERROR" and "t-0 begins at offset 200, not at 150" in told.message
    assert found.gap_offset is None and len(records_of(found.read(200, 1 << 20))) > 0
    for _ in range(2):  # the next loads know it, too
        if stop == "clean":
            assert manager.close()
        else:
            manager.write_checkpoints(found.dir, wait=True)
            crash(manager)
        manager = open_manager(tmp_path, CONFIG)
        found = manager.create("t", 0, bytes(16))
        assert (found.log_start_offset, found.lost_start, found.missing_offsets) == (200, (150, 200), 50)
    found.raise_start(300)
    assert found.missing_offsets == 0
    assert manager.close()
    caplog.clear()
    found = reopen(tmp_path)
    assert (found.log_start_offset, found.lost_start, found.missing_offsets) == (300, None, 0)
    assert not caplog.records


def test_a_log_without_leader_epochs_whose_first_file_is_gone(tmp_path: Path) -> None:
    """Its records are of a time before there were some: after a clean stop the checkpoint of its start counts."""
    manager = open_manager(tmp_path, CONFIG)
    log = manager.create("t", 0, bytes(16))
    for number in range(250):
        log.append_as_follower(
            memoryview(build_batch([(START_MS, None, b"v" * SIZE)], base_offset=number)), now_ms=START_MS
        )
    first, second, *_ = (segment.base_offset for segment in log.segments)
    log.advance_as_follower(250, 3)
    assert not len(log.epochs) and manager.close()
    for path in (tmp_path / "t-0").glob(f"{first:020d}.*"):
        path.unlink()
    found = reopen(tmp_path)
    assert (found.log_start_offset, found.lost_start) == (second, (3, second))


@pytest.mark.parametrize("change", ["retention", "full truncation", "deletion"])
@pytest.mark.parametrize("stop", ["clean", "crash"])
def test_a_log_that_begins_later_than_before_has_lost_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str, stop: str
) -> None:
    """After a crash too, when no checkpoint and no flush has come since."""
    manager = open_manager(tmp_path, CONFIG)
    log = fill(manager, 0, 450)
    log.delete_records_before(20)
    manager.write_checkpoints(log.dir, wait=True)
    log.flush()
    log.dir.flusher.wait()
    if change == "retention":
        log.apply_config(replace(CONFIG, retention_bytes=SIZE))
        assert apply_retention(log, START_MS) == 4
    elif change == "deletion":
        log.delete_records_before(210)
        assert apply_retention(log, START_MS) == 2
    else:
        log.truncate_fully_and_start_at(1000)
    start = log.log_start_offset if change != "deletion" or stop == "clean" else 200
    assert start > 20
    if stop == "clean":
        assert manager.close()
    else:
        crash(manager)
    caplog.clear()
    found = reopen(tmp_path)
    assert (found.log_start_offset, found.lost_start, found.missing_offsets) == (start, None, 0)
    assert not [record for record in caplog.records if "begins at offset" in record.message]


@pytest.mark.parametrize("stop", ["clean", "crash"])
@pytest.mark.parametrize("suffixes", [["index", "timeindex", "txnindex"], ["timeindex", "txnindex"], ["txnindex"]])
def test_indexes_of_which_a_deletion_was_cut_short_go_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stop: str, suffixes: list[str]
) -> None:
    manager = open_manager(tmp_path, CONFIG)
    log = fill(manager, 0, 450)
    log.delete_records_before(250)
    assert apply_retention(log, START_MS) == 2
    if stop == "clean":
        assert manager.close()
    else:
        crash(manager)
    left = [tmp_path / "t-0" / f"{base:020d}.{suffix}" for base in (0, 100) for suffix in suffixes]
    for path in left:
        path.write_bytes(b"x" * 34)
    caplog.clear()
    found = reopen(tmp_path)
    assert (found.log_start_offset // 100, found.log_end_offset, found.missing_offsets) == (2, 450, 0)
    assert [path.name for path in left if path.exists()] == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_deletion_cut_short_has_lost_nothing_where_the_leader_epochs_are_gone_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss of power may leave their file empty, which the deletion has just replaced, and of the segment that it was at the index."""
    manager = open_manager(tmp_path, CONFIG)
    log = fill(manager, 0, 450)
    log.delete_records_before(250)
    assert apply_retention(log, START_MS) == 2
    crash(manager)
    left = [tmp_path / "t-0" / f"{100:020d}.{suffix}" for suffix in ("index", "timeindex")]
    for path in left:
        path.write_bytes(b"x" * 24)
    Path(log.epochs.path).write_bytes(b"")
    for load in range(2):
        caplog.clear()
        manager = open_manager(tmp_path, CONFIG)
        found = manager.create("t", 0, bytes(16))
        found.load()
        assert (found.log_start_offset, found.lost_start, found.missing_offsets) == (200, None, 0)
        assert ("unless a deletion was cut short" in caplog.text) == (not load)
        crash(manager)
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize("base", [0, 200])
def test_indexes_whose_log_is_gone_are_kept_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, base: int
) -> None:
    """They are wanted where the `.log` is had back from a copy: it alone does not say what was aborted."""
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 450)
    assert manager.close()
    path = tmp_path / "t-0" / f"{base:020d}.log"
    path.unlink()
    assert reopen(tmp_path).log_end_offset == 450
    assert f"{path} is not there, but its index is" in caplog.text
    assert path.with_suffix(".index").exists() and path.with_suffix(".timeindex").exists()


@pytest.mark.parametrize("epochs", ["there", "gone"])
@pytest.mark.parametrize("stop", ["clean", "crash"])
def test_what_is_missing_before_the_first_segment_is_known_to_each_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stop: str, epochs: str
) -> None:
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 450)
    assert manager.close()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.unlink()
    if epochs == "gone":
        path.with_name("leader-epoch-checkpoint").unlink()
    for _ in range(3):
        caplog.clear()
        manager = open_manager(tmp_path, CONFIG)
        log = manager.create("t", 0, bytes(16))
        log.append(one_batch([b"v"]), leader_epoch=7, now_ms=START_MS)
        assert (log.log_start_offset, log.lost_start, log.missing_offsets) == (100, (0, 100), 100)
        assert path.with_suffix(".index").exists() and path.with_suffix(".timeindex").exists()
        assert f"{path} is not there, but its index is" in caplog.text
        log.flush()
        log.dir.flusher.wait()
        manager.write_checkpoints(log.dir, wait=True)
        if stop == "clean":
            assert manager.close()
        else:
            crash(manager)
    manager = open_manager(tmp_path, CONFIG)
    log = manager.create("t", 0, bytes(16))
    log.delete_records_before(150)
    assert log.missing_offsets == 0
    assert manager.close()
    caplog.clear()
    log = reopen(tmp_path)
    assert (log.log_start_offset, log.lost_start, caplog.text) == (150, None, "")
    assert not path.with_suffix(".index").exists()


def test_a_copy_that_has_lost_records_in_its_middle_has_them_copied_again(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY)
    values = write(log, 90)
    manager.moves.begin(log, manager.dirs[1])
    manager.tick()
    assert log.future is not None and len(log.future.segments) > 1
    lost = log.future.segments[0].log.path
    crash(manager)
    os.truncate(lost, 0)
    again = opened(tmp_path)
    run(again)
    assert directories(tmp_path) == ["b/t-0"]
    assert read_all(again.create(*KEY)) == values
