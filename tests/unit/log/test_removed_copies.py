"""A log's copy on its way to another directory that somebody removes: that move begins anew, and no directory goes offline."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.dir_moves import Phase
from log_support import TOPIC_ID, crash, one_batch, open_manager, records_of

KEY = ("t", 0)
SMALL = LogConfig(segment_bytes=2000)


def opened(tmp_path: Path) -> LogManager:
    return open_manager([tmp_path / "a", tmp_path / "b"], SMALL)  # type: ignore[arg-type]


def write(log: PartitionLog, count: int) -> None:
    for number in range(count):
        log.append(one_batch([b"%06d" % number]), leader_epoch=1, now_ms=log.clock())


def copy_of(log: PartitionLog) -> Path:
    assert log.future is not None
    return Path(log.future.path)


def run(manager: LogManager) -> None:
    for _ in range(50):
        manager.tick()
        manager.flusher.wait()
        if not manager.moves.moves:
            return
    raise AssertionError(f"{manager.moves.moves} do not end")


@pytest.mark.parametrize("phase", Phase)
def test_a_move_begins_anew(tmp_path: Path, phase: Phase, caplog: pytest.LogCaptureFixture) -> None:
    manager = opened(tmp_path)
    log = manager.create(*KEY, TOPIC_ID)
    write(log, 100)
    allowed = False
    manager.moves.may_swap = lambda log, log_dir: allowed
    manager.moves.begin(log, manager.dirs[1])
    while manager.moves.moves[log].phase is not phase:
        manager.tick()
        manager.flusher.wait()
    allowed = True
    first = copy_of(log)
    shutil.rmtree(first)
    manager.tick()
    assert copy_of(log) != first
    run(manager)
    assert manager.offline_dirs == {}
    assert log.dir is manager.dirs[1] and log.log_end_offset == 100
    assert f"{first} was removed by somebody; it begins anew" in caplog.text
    write(log, 10)
    assert len(records_of(log.read(100, 1 << 20))) == 10
    assert manager.close()


@pytest.mark.parametrize("home", ["a", "b"])
def test_a_copy_that_the_start_has_found_is_not_missed(
    tmp_path: Path, home: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At `home` b the stop came amid the swap, after the metadata had the log there."""
    manager = opened(tmp_path)
    log = manager.create(*KEY, TOPIC_ID)
    write(log, 100)
    manager.moves.may_swap = lambda log, log_dir: False
    manager.moves.begin(log, manager.dirs[1])
    for _ in range(5):
        manager.tick()
        manager.flusher.wait()
    crash(manager)
    if home == "b":
        shutil.rmtree(tmp_path / "a" / "t-0")
    manager = opened(tmp_path)
    (copy,) = (tmp_path / "b").glob("*-future")
    shutil.rmtree(copy)
    log = manager.create(*KEY, TOPIC_ID, home=str(tmp_path / home))
    run(manager)
    assert log.log_end_offset == (100 if home == "a" else 0)
    assert manager.offline_dirs == {}
    assert f"{copy}, a" in caplog.text and "removed by somebody" in caplog.text
    assert manager.close()
