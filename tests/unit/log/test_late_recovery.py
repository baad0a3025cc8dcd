"""Logs that a clean stop has left and that are not whole: a thread reads them beside a broker that serves."""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog, partition_log, stored_batches
from fastq_broker.log.failures import failures
from fastq_broker.log.recovery_progress import RecoveryProgress
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, TOPIC_ID, Later, Loop, crash, one_batch, open_manager, records_of

from fastq.errors import KafkaStorageError, ReplicaNotAvailable

SIZE = len(one_batch([b"v000"]))
CONFIG = LogConfig(segment_bytes=100 * SIZE, index_interval_bytes=5 * SIZE)
COUNT = 250


class Served:
    """A manager whose logs are recovered by a thread."""

    def __init__(self, directory: Path, files: FaultyFiles | None = None, config: LogConfig = CONFIG) -> None:
        self.loop, self.thread = Loop(), Later()
        self.logs = open_manager(directory, config, files=files)
        self.logs.late.attach(self.logs.dirs, self.loop, lambda count, name: self.thread)

    @property
    def log(self) -> PartitionLog:
        return self.logs.logs["t", 0]

    def recover(self) -> None:
        self.thread.run()
        self.loop.turn()


def fill(manager: LogManager) -> None:
    log = manager.create("t", 0, TOPIC_ID)
    sequences = {5: 0, 6: 0, 9: 0}
    for number in range(COUNT):
        transactional = number % 10 == 3
        producer = 9 if transactional else 5 + number % 2
        batch = one_batch(
            [b"v%03d" % number],
            timestamp_ms=START_MS + number,
            producer_id=producer,
            epoch=0,
            sequence=sequences[producer],
            transactional=transactional,
        )
        sequences[producer] += 1
        log.append(batch, leader_epoch=number // 50, now_ms=START_MS, transaction_version=1 if transactional else -1)
        if transactional:
            log.append_transaction_marker(
                producer_id=9,
                producer_epoch=0,
                coordinator_epoch=0,
                commit=number % 20 == 3,
                leader_epoch=number // 50,
                now_ms=START_MS,
            )


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + size if size < 0 else size)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def last(folder: Path, suffix: str) -> Path:
    return max(folder.glob(f"*{suffix}"))


def first(folder: Path, suffix: str) -> Path:
    return min(folder.glob(f"*{suffix}"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "the tail is none": lambda folder: append(last(folder, ".log"), b"\x17" * 500),
    "the tail is cut within a batch": lambda folder: cut(last(folder, ".log"), -7),
    "the end is below the recovery point": lambda folder: cut(last(folder, ".log"), 0),
    "the last segment is gone": lambda folder: (
        [last(folder, s).unlink() for s in (".log", ".index", ".timeindex")] and None
    ),
    "an index is missing": lambda folder: first(folder, ".index").unlink(),
    "a time index is missing": lambda folder: first(folder, ".timeindex").unlink(),
    "the last index names no batch": lambda folder: flip(
        last(folder, ".index"), last(folder, ".index").stat().st_size - 1
    ),
    "leader epochs are missing": lambda folder: (folder / "leader-epoch-checkpoint").unlink(),
    "snapshots are missing": lambda folder: [path.unlink() for path in folder.glob("*.snapshot")] and None,
    "a transaction index is damaged": lambda folder: cut(first(folder, ".txnindex"), -5),
}


def damaged(directory: Path, damage: str) -> None:
    manager = open_manager(directory, CONFIG)
    fill(manager)
    manager.close()
    DAMAGES[damage](directory / "t-0")


def seen(log: PartitionLog) -> dict[str, object]:
    """What is to be known of a log, and what its files have."""
    values = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = records_of(log.read(offset, 1 << 20))
        values += [(record.offset, record.value) for record in found]
        offset = found[-1].offset + 1
    indexes = {
        path.name: path.read_bytes()
        for suffix in (".index", ".timeindex")
        for path in Path(log.path).glob(f"*{suffix}")
    }
    return {
        "records": values,
        "offsets": (log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset),
        "recovery point": log.recovery_point,
        "epochs": log.epochs.entries(),
        "producers": log.producers.encode(),
        "indexes": indexes,
        "aborts": {path.name: path.read_bytes() for path in Path(log.path).glob("*.txnindex")},
    }


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log, "LOOP_BYTES_MAX", 20 * SIZE)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_thread_finds_what_the_loop_would(tmp_path: Path, damage: str) -> None:
    damaged(tmp_path / "data", damage)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    obvious = open_manager(tmp_path / "copy", CONFIG)  # whose loop reads all of it
    obvious.logs["t", 0].load()
    obvious.close()
    expected = open_manager(tmp_path / "copy", CONFIG)
    served = Served(tmp_path / "data")
    for _ in range(3):
        with pytest.raises(ReplicaNotAvailable):
            served.log.log_end_offset  # noqa: B018
    assert len(served.thread.jobs) == 1 and not served.log.loaded
    served.thread.run()
    with pytest.raises(ReplicaNotAvailable):  # the loop has not heard of it
        served.log.append(one_batch([b"x"]), leader_epoch=9, now_ms=START_MS)
    served.loop.turn()
    assert seen(served.log) == seen(expected.logs["t", 0])
    assert not served.thread.jobs
    served.logs.close()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    again = Served(tmp_path / "data")
    again.log.load()
    assert not again.thread.jobs and again.log.recovery.bytes_read == 0


def test_the_loop_hears_that_the_first_files_are_gone(tmp_path: Path) -> None:
    """The thread has the log begin behind them, so that its files do not say it any more."""
    damaged(tmp_path, "the tail is none")
    bases = sorted(int(path.stem) for path in (tmp_path / "t-0").glob("*.log"))
    for path in (tmp_path / "t-0").glob(f"{bases[0]:020d}.*"):
        path.unlink()
    served = Served(tmp_path)
    with pytest.raises(ReplicaNotAvailable):
        served.log.load()
    served.recover()
    served.log.load()
    assert (served.log.log_start_offset, served.log.lost_start) == (bases[1], (bases[0], bases[1]))
    assert served.log.missing_offsets == bases[1] - bases[0]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_stop_anywhere_loses_nothing(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(tmp_path / "data", damage)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    obvious = open_manager(tmp_path / "copy", CONFIG)
    expected = seen(obvious.logs["t", 0])
    read = RecoveryProgress.read
    stops = 0
    monkeypatch.setattr(stored_batches, "_CHUNK_BYTES", 20 * SIZE)
    for pieces in range(1, 60):
        left = pieces

        def stop_after(progress: RecoveryProgress, size: int) -> None:
            nonlocal left, stops
            left -= 1
            if not left:
                stops += 1
                progress.stop()
            read(progress, size)

        shutil.copytree(tmp_path / "data", tmp_path / "stopped")
        served = Served(tmp_path / "stopped")
        with monkeypatch.context() as patched:
            patched.setattr(RecoveryProgress, "read", stop_after)
            with pytest.raises(ReplicaNotAvailable):
                served.log.load()
            served.thread.run()
        served.logs.close()
        assert not (tmp_path / "stopped" / ".kafka_cleanshutdown").exists()
        found = seen(open_manager(tmp_path / "stopped", CONFIG).logs["t", 0])
        for what in ("records", "offsets", "epochs", "aborts"):
            assert found[what] == expected[what]
        shutil.rmtree(tmp_path / "stopped")
        if left > 0:  # it was through
            break
    assert stops >= 6 and left > 0


def test_what_is_whole_or_small_is_loaded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = open_manager(tmp_path / "whole", CONFIG)
    fill(manager)
    manager.close()
    served = Served(tmp_path / "whole")
    assert served.log.log_end_offset == COUNT + COUNT // 10
    damaged(tmp_path / "small", "the tail is none")
    monkeypatch.setattr(partition_log, "LOOP_BYTES_MAX", 1 << 20)
    small = Served(tmp_path / "small")
    assert small.log.log_end_offset == COUNT + COUNT // 10
    assert not served.thread.jobs and not small.thread.jobs


def test_an_index_without_entries_before_many_batches(tmp_path: Path) -> None:
    """Whether the tail is whole would take the loop a walk over the whole segment."""
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, TOPIC_ID)
    for number in range(12):
        batch = b"".join(bytes(one_batch([b""])) for _ in range(1000))  # what a leader sends, in one append
        batches = bytearray(batch)
        for index in range(1000):
            at = index * len(one_batch([b""]))
            batches[at : at + 8] = (number * 1000 + index).to_bytes(8, "big")
        log.append_as_follower(bytes(batches), now_ms=START_MS)
    manager.close()
    (tmp_path / "t-0" / f"{0:020d}.index").write_bytes(b"")
    served = Served(tmp_path, config=LogConfig())
    with pytest.raises(ReplicaNotAvailable):
        served.log.load()
    served.recover()
    assert served.log.log_end_offset == 12_000 and not served.thread.jobs


def test_a_log_that_goes_is_let_go_of(tmp_path: Path) -> None:
    damaged(tmp_path / "data", "the tail is none")
    served = Served(tmp_path / "data")
    with pytest.raises(ReplicaNotAvailable):
        served.log.load()
    served.logs.delete("t", 0)
    served.thread.run()
    fresh = served.logs.create("t", 0, bytes(16))
    served.loop.turn()
    assert fresh.log_end_offset == 0 and not list(Path(fresh.path).glob("*.snapshot"))


def test_a_thread_that_is_amid_a_log_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written under a name that is another log's by then."""
    damaged(tmp_path / "data", "the tail is none")
    amid, told = threading.Event(), threading.Event()
    read, stop = RecoveryProgress.read, RecoveryProgress.stop

    def reading(progress: RecoveryProgress, size: int) -> None:
        if size:
            amid.set()
            assert told.wait(30)
        read(progress, size)

    def stopping(progress: RecoveryProgress) -> None:
        stop(progress)
        told.set()

    monkeypatch.setattr(RecoveryProgress, "read", reading)
    monkeypatch.setattr(RecoveryProgress, "stop", stopping)
    manager = open_manager(tmp_path / "data", CONFIG)
    loop = Loop()
    manager.late.attach(manager.dirs, loop, ThreadPoolExecutor)
    log = manager.logs["t", 0]
    with pytest.raises(ReplicaNotAvailable):
        log.load()
    assert amid.wait(30)
    manager.delete("t", 0)
    fresh = manager.create("t", 0, bytes(16))
    loop.turn()
    assert fresh.log_end_offset == 0 and log.recovering is None
    manager.close()
    assert {path.suffix for path in Path(fresh.path).iterdir()} == {".index", ".log", ".metadata", ".timeindex"}


@pytest.mark.parametrize(
    ("operation", "code", "suffix", "offline"),
    [
        ("read", errno.EIO, ".log", True),
        ("open", errno.EMFILE, ".log", False),
        ("open", errno.EIO, ".index", True),
        ("sync", errno.EIO, ".log", True),
        ("write", errno.ENOSPC, ".snapshot", False),
    ],
)
def test_an_error_of_the_thread_is_judged_by_the_loop(
    tmp_path: Path, operation: Any, code: int, suffix: str, offline: bool
) -> None:
    damaged(tmp_path / "data", "the tail is none")
    files = FaultyFiles()
    served = Served(tmp_path / "data", files)
    with pytest.raises(ReplicaNotAvailable):
        served.log.load()
    fault = files.plan(Fault(operation, code, suffix))
    served.recover()
    assert fault.struck and bool(served.logs.offline_dirs) is offline
    files.heal()
    if offline:
        with pytest.raises(KafkaStorageError):
            served.log.append(one_batch([b"v"]), leader_epoch=9, now_ms=START_MS)
        assert not served.thread.jobs
        return
    with contextlib.suppress(ReplicaNotAvailable):  # what was left undone may be little
        served.log.load()
    served.recover()
    assert served.log.log_end_offset == COUNT + COUNT // 10


def test_what_cannot_be_recovered_fails_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged(tmp_path / "data", "the tail is none")
    served = Served(tmp_path / "data")
    path = last(tmp_path / "data" / "t-0", ".log")
    data = bytearray(path.read_bytes()[:-500])
    start = len(data)
    data += one_batch([b"old"])
    data[start + 16] = 1  # magic
    path.write_bytes(data)
    with pytest.raises(ReplicaNotAvailable):
        served.log.load()
    served.recover()
    with pytest.raises(KafkaStorageError, match="old format"):
        served.log.load()
    assert not served.logs.offline_dirs and not served.thread.jobs
    served.logs.close()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_mistake_of_ours_is_not_made_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(tmp_path / "data", "the tail is none")
    served = Served(tmp_path / "data")
    with pytest.raises(ReplicaNotAvailable):
        served.log.load()
    told: list[str] = []
    monkeypatch.setattr(failures, "report", lambda place, error: told.append(f"{place}: {error!r}"))
    monkeypatch.setattr(RecoveryProgress, "begin", lambda progress, name: 1 // 0)
    served.recover()
    with pytest.raises(KafkaStorageError, match="ZeroDivisionError"):
        served.log.load()
    assert len(told) == 1 and "recovering" in told[0] and not served.thread.jobs


@pytest.mark.parametrize("where", ["to hear of the thread", "in the thread"])
def test_a_recovery_for_which_there_is_no_memory_is_begun_anew(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused until the next start: nobody heard of the thread's end, or what passes was taken for a mistake."""

    def no_memory(*arguments: object) -> None:
        raise MemoryError

    damaged(tmp_path / "data", "the tail is none")
    served = Served(tmp_path / "data")
    with monkeypatch.context() as short:
        if where == "in the thread":
            short.setattr(RecoveryProgress, "begin", no_memory)
            with pytest.raises(ReplicaNotAvailable):
                served.log.load()
        else:
            short.setattr(Future, "add_done_callback", no_memory)
            with pytest.raises(MemoryError):
                served.log.load()
        served.recover()
    assert not served.log.loaded and not served.logs.offline_dirs
    with pytest.raises(ReplicaNotAvailable):
        served.log.load()
    served.recover()
    assert served.log.log_end_offset == COUNT + COUNT // 10


def test_who_looks_after_all_logs_passes_one_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Retention, checkpoints and settings meanwhile; what they came to holds once it is whole."""
    damaged(tmp_path / "data", "the tail is none")
    served = Served(tmp_path / "data")
    with caplog.at_level(logging.WARNING):
        served.logs._due["retention"] = 0
        for _ in range(50):
            served.logs.tick()
        served.logs.checkpoint(served.logs.dirs[0])
        served.log.apply_config(LogConfig(segment_bytes=100 * SIZE, max_message_bytes=100))
        served.log.assign_leader_epoch(7)
    assert len(served.thread.jobs) == 1
    assert len([line for line in caplog.messages if "recovered while the broker serves" in line]) == 1
    served.recover()
    assert served.log.epochs.latest == 7 and served.log.config.max_message_bytes == 100
    assert "is whole now: recovered in" in caplog.text


def test_what_a_thread_has_left_undone_is_not_called_whole(tmp_path: Path) -> None:
    """Its files may be half made anew: a stop before it was tried again had left them as those of a clean one."""
    damaged(tmp_path / "data", "the tail is none")
    files = FaultyFiles()
    served = Served(tmp_path / "data", files)
    with pytest.raises(ReplicaNotAvailable):
        served.log.load()
    files.plan(Fault("write", errno.ENOSPC, ".snapshot"))
    served.recover()
    files.heal()
    assert not served.logs.close()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def with_a_copy(tmp_path: Path, *, crashed: bool = False) -> list[Path]:
    """Two directories after a stop: the log in the first, and in the other its whole copy, which has not taken its place."""
    places = [tmp_path / "a", tmp_path / "b"]
    manager = open_manager(places, CONFIG)
    fill(manager)
    manager.moves.may_swap = lambda log, log_dir: False
    manager.moves.begin(manager.logs["t", 0], manager.dirs[1])
    for _ in range(COUNT):
        manager.tick()
        manager.flusher.wait()
    if crashed:
        crash(manager)
    else:
        manager.close()
    return places


def test_the_move_of_a_log_goes_on_once_it_and_its_copy_are_whole(tmp_path: Path) -> None:
    """Both were refused while a thread read them, and the move was forgotten."""
    places = with_a_copy(tmp_path)
    for place in places:
        append(last(next(place.glob("t-0*")), ".log"), b"\x17" * 500)
    loop, thread = Loop(), Later()
    manager = open_manager(places, CONFIG)
    manager.late.attach(manager.dirs, loop, lambda count, name: thread)
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(2):
        manager.tick()
        assert thread.jobs and not manager.moves.moves
        thread.run()
        loop.turn()
    manager.tick()
    assert log in manager.moves.moves
    for _ in range(COUNT):
        manager.tick()
        manager.flusher.wait()
    assert log.dir is manager.dirs[1] and log.log_end_offset == COUNT + COUNT // 10
    assert not list(places[0].glob("t-0")) and not list(places[1].glob("*-future"))


def test_a_copy_that_is_not_whole_is_not_called_so(tmp_path: Path) -> None:
    places = with_a_copy(tmp_path)
    append(last(next(places[1].glob("t-0*")), ".log"), b"\x17" * 500)
    manager = open_manager(places, CONFIG)
    thread = Later()
    manager.late.attach(manager.dirs, Loop(), lambda count, name: thread)
    manager.create("t", 0, TOPIC_ID)
    manager.tick()
    assert thread.jobs
    assert not manager.close()
    assert [(place / ".kafka_cleanshutdown").exists() for place in places] == [True, False]


@pytest.mark.parametrize("healed", [True, False])
def test_a_shortage_holds_up_the_move_that_a_crash_has_left(tmp_path: Path, healed: bool) -> None:
    """It was forgotten until the next start; and a clean stop called the copy whole, which nobody had checked."""
    places = with_a_copy(tmp_path, crashed=True)
    files = FaultyFiles()
    fault = files.plan(Fault("open", errno.EMFILE, "-future"))
    manager = open_manager(places, CONFIG, files=files)
    log = manager.create("t", 0, TOPIC_ID)
    manager.tick()
    assert fault.struck and log not in manager.moves.moves and not manager.offline_dirs
    files.heal()
    if healed:
        manager.tick()
        assert log in manager.moves.moves
    assert manager.close() is healed
    assert [(place / ".kafka_cleanshutdown").exists() for place in places] == [True, healed]


def test_a_move_that_waits_to_go_on_can_be_stopped(tmp_path: Path) -> None:
    places = with_a_copy(tmp_path, crashed=True)
    files = FaultyFiles()
    files.plan(Fault("open", errno.EMFILE, "-future"))
    manager = open_manager(places, CONFIG, files=files)
    log = manager.create("t", 0, TOPIC_ID)
    manager.moves.begin(log, log.dir)
    files.heal()
    manager.tick()
    assert not manager.moves.moves
    assert not list(places[1].glob("*-future"))


@pytest.mark.parametrize("touched", [True, False])
def test_what_a_shortage_kept_from_recovery_is_not_called_whole(tmp_path: Path, touched: bool) -> None:
    """Whoever stopped such a broker cleanly left a log as whole that nobody had checked."""
    manager = open_manager(tmp_path, CONFIG)
    fill(manager)
    crash(manager)
    files = FaultyFiles()
    fault = files.plan(Fault("open", errno.EMFILE, ".log"))
    manager = open_manager(tmp_path, CONFIG, files=files)
    assert fault.struck and not manager.logs["t", 0].loaded and not manager.offline_dirs
    files.heal()
    if touched:
        manager.logs["t", 0].load()
    assert manager.close() is touched
    assert (tmp_path / ".kafka_cleanshutdown").exists() is touched
