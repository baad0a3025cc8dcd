"""Compaction cut short: at every rename of a swap, in every step of a round, by damage, by a change of the log meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import pytest
from cleaner_support import DirectWorker, cleaner_of, live_values, run, stored_batches
from fastq_broker.log import CleanerConfig, LogCleaner, LogConfig, LogManager, PartitionLog
from fastq_broker.log.cleaner import Failure
from fastq_broker.log.cleaner_job import CleaningJob, CleaningResult
from fastq_broker.log.flusher import ManualFlusher
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, StandingClock, clock_of, crash, open_manager, records_of

from fastq._native.records import build_batch, iter_headers
from fastq.errors import KafkaStorageError

CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=3000,
    index_interval_bytes=300,
    min_cleanable_dirty_ratio=0.1,
    file_delete_delay_ms=60_000,
)
TAIL = 15


def fill(log: PartitionLog, count: int = 300, keys: int = 20) -> None:
    for number in range(count):
        rows = [(START_MS + number, b"key-%d" % (number * 7 % keys), b"value-%d" % number)]
        log.append(build_batch(rows), leader_epoch=0, now_ms=START_MS, from_client=False)
    log.append_transaction_marker(
        producer_id=4, producer_epoch=0, coordinator_epoch=0, commit=True, leader_epoch=0, now_ms=START_MS
    )
    log.roll(START_MS)


def make(directory: Path, files: FaultyFiles | None = None) -> tuple[LogManager, PartitionLog]:
    manager = open_manager(directory, CONFIG, files=files)
    log = manager.get("t", 0) or manager.create("t", 0, bytes(16), CONFIG)
    log.load()
    return manager, log


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a log of many segments that was never compacted, as a clean stop leaves it."""
    directory = tmp_path_factory.mktemp("filled") / "data"
    manager, log = make(directory)
    fill(log)
    manager.close()
    return directory


def copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target / "data"))


def names_of(log: PartitionLog) -> set[str]:
    return {name for name in os.listdir(log.path) if name.endswith((".cleaned", ".swap"))}


def expected_end(filled: Path, scratch: Path) -> tuple[list[tuple[object, ...]], int]:
    manager, log = make(copied(filled, scratch))
    assert run(cleaner_of(manager), START_MS) == 1
    return [batch.seen() for batch in stored_batches(log)], len(log.segments)


def renames_of_a_round(filled: Path, scratch: Path) -> int:
    files = FaultyFiles()
    manager, log = make(copied(filled, scratch), files)
    assert log.log_end_offset
    before = files.calls.get("rename", 0)
    run(cleaner_of(manager), START_MS)
    return files.calls["rename"] - before


def test_a_crash_at_every_rename_loses_nothing_and_the_next_round_ends_the_same(filled: Path, tmp_path: Path) -> None:
    final, segments = expected_end(filled, tmp_path / "end")
    steps = renames_of_a_round(filled, tmp_path / "count")
    assert steps > 3 * segments
    struck = 0
    for step in range(steps):
        directory = copied(filled, tmp_path / f"step-{step}")
        files = FaultyFiles()
        manager, log = make(directory, files)
        before = live_values(stored_batches(log))
        end = log.log_end_offset
        fault = files.plan(Fault("rename", errno.EIO, path_part="/t-0/", passes=step))
        cleaner = cleaner_of(manager)
        for _ in range(20):
            cleaner.tick(START_MS)
            manager.flusher.drain()
        assert (log.dir.offline is not None) == bool(fault.struck)
        struck += bool(fault.struck)
        crash(manager)
        manager, log = make(directory)
        assert log.log_end_offset == end
        assert not names_of(log)
        batches = stored_batches(log)
        assert live_values(batches) == before
        offsets = [row.offset for batch in batches for row in batch.rows]
        assert offsets == sorted(set(offsets))
        assert {record.offset for record in records_of(log.read(0, 1 << 20))} <= set(offsets)
        run(cleaner_of(manager), START_MS)
        assert [batch.seen() for batch in stored_batches(log)] == final, step
        assert log.cleaned_offset
    assert struck >= steps - 2, "all but the checkpoint's"


@pytest.mark.parametrize("repeat", [True, False])
def test_a_shortage_at_every_rename_of_a_swap_takes_nothing_offline(filled: Path, tmp_path: Path, repeat: bool) -> None:
    final, _ = expected_end(filled, tmp_path / "end")
    interrupted = 0
    for step in range(0, renames_of_a_round(filled, tmp_path / "count"), 4 if repeat else 5):
        directory = copied(filled, tmp_path / f"step-{step}")
        files = FaultyFiles()
        manager, log = make(directory, files)
        log.assign_leader_epoch(5)
        before, end = live_values(stored_batches(log)), log.log_end_offset
        files.plan(Fault("rename", errno.ENOMEM, path_part="/t-0/", passes=step, repeat=repeat))
        cleaner = cleaner_of(manager)
        for _ in range(20):
            cleaner.tick(START_MS)
            manager.flusher.drain()
            interrupted += not log.loaded
        assert manager.offline_dirs == {}, step
        files.heal()
        assert (log.log_end_offset, log.high_watermark, log.leader_epoch) == (end, end, 5)
        assert live_values(stored_batches(log)) == before, step
        clock_of(manager).advance(10**7)
        run(cleaner, START_MS)
        assert [batch.seen() for batch in stored_batches(log)] == final, step
        log.append(build_batch([(START_MS, b"key", b"next")]), leader_epoch=5, now_ms=START_MS)
        assert not names_of(log)
        assert manager.close()
        manager, log = make(directory)
        assert log.log_end_offset == end + 1 and log.gap_offset is None
    assert interrupted


@pytest.mark.parametrize("step", range(5))
def test_a_mistake_at_a_rename_of_a_swap_leaves_none_half_done(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    final, _ = expected_end(filled, tmp_path / "end")
    files = FaultyFiles()
    manager, log = make(copied(filled, tmp_path), files)
    before, rename, renames = live_values(stored_batches(log)), files.rename, count()

    def mistaken(source: str, target: str) -> None:
        if ".cleaned" in source and target.endswith(".swap") and next(renames) == step:
            raise RuntimeError("no")
        rename(source, target)

    monkeypatch.setattr(files, "rename", mistaken)
    cleaner = cleaner_of(manager)
    run(cleaner, START_MS)
    assert next(renames) > step
    clock_of(manager).advance(10**7)
    assert live_values(stored_batches(log)) == before
    assert not names_of(log) and not manager.offline_dirs
    run(cleaner, START_MS)
    assert [batch.seen() for batch in stored_batches(log)] == final


def test_a_swap_that_is_complete_counts_and_one_that_is_not_is_undone(filled: Path, tmp_path: Path) -> None:
    """By hand, and with a second crash while recovery renames."""
    for complete in (True, False):
        directory = copied(filled, tmp_path / str(complete))
        manager, log = make(directory)
        base, following = (segment.base_offset for segment in log.segments[1:3])
        kept = [batch for batch in stored_batches(log) if base <= batch.base_offset < following]
        path = log.segments[1].log.path
        crash(manager)
        survivor = kept[-1]
        assert survivor.rows
        row = survivor.rows[0]
        batch = build_batch([(row.timestamp_ms, row.key, b"swapped")], base_offset=row.offset, leader_epoch=0)
        Path(path + ".swap").write_bytes(batch)
        Path(path.replace(".log", ".index") + ".swap").write_bytes(b"")
        time_index = Path(path.replace(".log", ".timeindex") + (".swap" if complete else ".cleaned"))
        time_index.write_bytes(b"")
        files = FaultyFiles()
        fault = Fault("rename", errno.EIO, path_part=".index.swap") if complete else Fault("unlink", errno.EIO)
        files.plan(fault)
        broken = LogManager(
            [directory], default_config=CONFIG, clock=StandingClock(), files=files, flusher=ManualFlusher(files)
        )
        with pytest.raises(KafkaStorageError):
            broken.start()
        crash(broken)
        manager, log = make(directory)
        values = [row.value for batch in stored_batches(log) for row in batch.rows]
        assert (b"swapped" in values) == complete
        assert log.segments[1].base_offset == base
        assert log.segments[2].base_offset == following
        assert not names_of(log)


def test_a_swap_file_that_is_not_whole_is_not_believed(filled: Path, tmp_path: Path) -> None:
    directory = copied(filled, tmp_path)
    (directory / ".kafka_cleanshutdown").unlink()
    segment = sorted((directory / "t-0").glob("*.log"))[1]
    swap = Path(f"{segment}.swap")
    swap.write_bytes(segment.read_bytes()[:-5])
    manager = open_manager(directory, CONFIG)
    log = manager.get("t", 0)
    assert log is not None
    with pytest.raises(KafkaStorageError, match="nothing was changed"):
        log.load()
    assert swap.exists()
    assert segment.exists()


@pytest.mark.parametrize("left", ["nothing", "half", "all but a batch"])
@pytest.mark.parametrize("replaced", [False, True], ids=["at their place", "set aside"])
def test_a_swap_that_was_cut_between_batches_is_not_believed(
    tmp_path: Path, left: str, replaced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After a stop amid a swap somebody cuts its file: what it stands for is still there, and must not go for it."""
    directory = tmp_path / "data"
    files = FaultyFiles()
    manager, log = make(directory, files)
    fill(log, keys=300)  # of which nothing is dead
    log.flush()
    manager.flusher.drain()
    live = live_values(stored_batches(log))
    files.plan(Fault("rename", errno.EIO, path_part=".log.swap" if replaced else ".log", passes=0 if replaced else 1))
    cleaner = cleaner_of(manager)
    for _ in range(20):
        cleaner.tick(START_MS)
    assert log.dir.offline is not None
    crash(manager)
    (swap,) = (directory / "t-0").glob("*.log.swap")
    segment = swap.with_suffix("")
    assert segment.exists() != replaced
    whole = swap.read_bytes()
    places = [position for position, _ in iter_headers(whole, strict=True)]
    assert len(places) > 3
    os.truncate(swap, {"nothing": 0, "half": places[len(places) // 2], "all but a batch": places[-1]}[left])
    names = set(os.listdir(directory / "t-0"))
    manager = open_manager(directory, CONFIG)
    again = manager.get("t", 0)
    assert again is not None
    with pytest.raises(KafkaStorageError, match="ends at offset"):
        again.load()
    assert "nothing was changed and the partition is not served" in caplog.text
    assert set(os.listdir(directory / "t-0")) == names
    assert manager.offline_dirs == {}
    manager.close()
    # As it is told: the swap is undone.
    swap.rename(f"{segment}.cleaned")
    for path in (directory / "t-0").glob(f"{segment.stem}*.deleted"):
        path.rename(path.with_suffix(""))
    manager, log = make(directory)
    assert live_values(stored_batches(log)) == live
    assert not names_of(log)


def test_a_swap_without_its_indexes_is_taken_and_they_are_made_again(filled: Path, tmp_path: Path) -> None:
    directory = copied(filled, tmp_path)
    manager, log = make(directory)
    base, following = (segment.base_offset for segment in log.segments[1:3])
    live = live_values(stored_batches(log))
    crash(manager)
    for suffix in (".log", ".index", ".timeindex"):
        path = directory / "t-0" / f"{base:020d}{suffix}"
        if suffix == ".log":
            path.rename(f"{path}.swap")
        else:
            path.unlink()
    manager, log = make(directory)
    assert [segment.base_offset for segment in log.segments[1:3]] == [base, following]
    assert live_values(stored_batches(log)) == live
    assert not names_of(log)


@pytest.mark.parametrize("operation", ["open", "write", "sync", "read", "truncate"])
def test_a_round_that_fails_leaves_nothing_and_is_tried_again(filled: Path, tmp_path: Path, operation: str) -> None:
    """Whatever fails in the worker concerns no reader or writer: the directory stays online."""
    files = FaultyFiles()
    manager, log = make(copied(filled, tmp_path), files)
    clock = clock_of(manager)
    before = [batch.seen() for batch in stored_batches(log)]
    worker_files = FaultyFiles()
    cleaner = LogCleaner(manager, CleanerConfig(backoff_ms=0), start_worker=lambda job: DirectWorker(job, worker_files))
    if operation == "truncate":  # not done by a round: the fault never strikes
        worker_files.plan(Fault("truncate", errno.EIO))
        assert run(cleaner, clock()) == 1
        return
    for passes in range(30):
        fault = worker_files.plan(Fault(operation, errno.ENOSPC, passes=passes))  # type: ignore[arg-type]
        rounds = cleaner.rounds_done
        assert run(cleaner, clock.advance(10 * 60_000)) == cleaner.rounds_done - rounds
        worker_files.heal()
        if not fault.struck:
            break
        assert log.dir.offline is None
        assert not names_of(log)
        assert [batch.seen() for batch in stored_batches(log)] == before
        assert run(cleaner, clock()) == 0, "not before its time"
    assert run(cleaner, clock.advance(10 * 60_000)) + cleaner.rounds_done >= 1
    assert [batch.seen() for batch in stored_batches(log)] != before


def test_attempts_come_later_each_time(filled: Path, tmp_path: Path) -> None:
    manager, _ = make(copied(filled, tmp_path))
    manager.logs["t", 0].load()
    started: list[int] = []
    now = START_MS

    def fail(job: CleaningJob) -> DirectWorker:
        started.append(now)
        raise OSError(errno.ENOMEM, "no process")

    cleaner = LogCleaner(manager, CleanerConfig(backoff_ms=0), start_worker=fail)
    for _ in range(4000):
        now = clock_of(manager).advance(500)
        cleaner.tick(now)
    waits = [later - earlier for earlier, later in pairwise(started)]
    assert waits[:3] == [1000, 2000, 4000]
    assert max(waits) == waits[-1] == 300_000


@pytest.mark.parametrize("place", [30, 2500])
def test_a_log_that_cannot_be_read_is_left_alone_and_named(
    filled: Path, tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    directory = copied(filled, tmp_path)
    segment = sorted((directory / "t-0").glob("*.log"))[2]
    data = bytearray(segment.read_bytes())
    data[place] ^= 0xFF
    segment.write_bytes(data)
    manager, log = make(directory)
    log.load()
    cleaner = cleaner_of(manager)
    assert run(cleaner, START_MS) == 0
    assert list(cleaner.uncleanable) == [log]
    assert segment.name in cleaner.uncleanable[log]
    assert "left as it is until the next start" in caplog.text
    assert log.dir.offline is None
    assert not names_of(log)
    assert run(cleaner, START_MS + 10**7) == 0
    assert len(list((directory / "t-0").glob("*.log"))) == len(log.segments)
    manager.delete("t", 0)
    cleaner.tick(START_MS + 2 * 10**7)
    cleaner.tick(START_MS + 2 * 10**7)
    assert not cleaner.uncleanable


class HeldWorker:
    """A worker whose answer comes when it is let go."""

    def __init__(self, job: CleaningJob) -> None:
        self.job = job
        self.inner: DirectWorker | None = None
        self.closed = False

    def poll(self) -> CleaningResult | Failure | None:
        return None if self.inner is None else self.inner.poll()

    def work(self) -> None:
        self.inner = DirectWorker(self.job)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    "change", ["truncate", "truncate fully", "policy", "retention", "delete", "create anew", "close"]
)
def test_what_changes_under_a_round_is_never_overwritten(filled: Path, tmp_path: Path, change: str) -> None:
    manager, log = make(copied(filled, tmp_path))
    log.load()
    workers: list[HeldWorker] = []

    def start(job: CleaningJob) -> HeldWorker:
        workers.append(HeldWorker(job))
        return workers[-1]

    cleaner = LogCleaner(manager, CleanerConfig(), start_worker=start)
    cleaner.tick(START_MS)
    assert len(workers) == 1
    workers[0].work()
    cleaner.apply_config(CleanerConfig(enabled=False))  # no other round after this one
    match change:
        case "truncate":
            log.truncate_to(200)
            fill(log)
        case "truncate fully":
            log.truncate_fully_and_start_at(50)
        case "policy":
            log.apply_config(replace(CONFIG, cleanup_policy=frozenset({"delete"})))
        case "retention":
            log.drop_oldest(2)
        case "delete" | "create anew":
            manager.delete("t", 0)
            if change == "create anew":
                log = manager.create("t", 0, bytes(15) + b"x", CONFIG)
                fill(log, 5)
        case "close":
            cleaner.close()
    before = [] if change == "delete" else [batch.seen() for batch in stored_batches(log)]
    for _ in range(5):
        cleaner.tick(START_MS)
        manager.flusher.wait()
    assert workers[0].closed
    assert not cleaner.busy
    assert cleaner.rounds_done == 0
    if change != "delete":
        assert [batch.seen() for batch in stored_batches(log)] == before
        assert not names_of(log)
    manager.close()


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("change", ["unlink", "truncate"])
def test_what_somebody_has_taken_from_a_round_is_not_put_in_place(
    filled: Path, tmp_path: Path, suffix: str, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    manager, log = make(copied(filled, tmp_path))
    before = [batch.seen() for batch in stored_batches(log)]
    workers: list[HeldWorker] = []

    def start(job: CleaningJob) -> HeldWorker | DirectWorker:
        if workers:
            return DirectWorker(job)
        workers.append(HeldWorker(job))
        return workers[-1]

    cleaner = LogCleaner(manager, CleanerConfig(backoff_ms=0), start_worker=start)
    cleaner.tick(START_MS)
    workers[0].work()
    victim = min(path for path in Path(log.path).glob(f"*{suffix}.cleaned") if path.stat().st_size)
    if change == "unlink":
        victim.unlink()
    else:
        os.truncate(victim, victim.stat().st_size - 1)
    live = live_values(stored_batches(log))
    for _ in range(20):
        cleaner.tick(START_MS)
    assert not cleaner.busy and cleaner.rounds_done == 0
    assert ([batch.seen() for batch in stored_batches(log)] == before) == victim.name.startswith("0" * 20)
    assert live_values(stored_batches(log)) == live, "no record is gone"
    assert f"{victim} was made with" in caplog.text and "next attempt in" in caplog.text
    assert not names_of(log)
    assert run(cleaner, clock_of(manager).advance(10_000)) >= 1
    assert live_values(stored_batches(log)) == live
    assert [batch.seen() for batch in stored_batches(log)] != before
    assert log.dir.offline is None


@pytest.mark.parametrize("renamed", [".index.swap", ".log.swap"])
def test_a_swap_whose_records_were_removed_after_a_crash_costs_nothing_more(
    filled: Path, tmp_path: Path, renamed: str
) -> None:
    """The old segment has its other name already: it must not go with the leftovers, as nobody else has its records."""
    directory = copied(filled, tmp_path)
    segment = sorted((directory / "t-0").glob("*.log"))[1]
    old = segment.read_bytes()
    segment.rename(f"{segment}.deleted")
    swap = segment.with_name(segment.name.replace(".log", renamed))
    swap.write_bytes(b"")
    if renamed == ".log.swap":
        swap.unlink()
        segment.with_suffix(".timeindex").rename(segment.with_name(f"{segment.stem}.timeindex.swap"))
    (directory / ".kafka_cleanshutdown").unlink()
    manager = open_manager(directory, CONFIG)
    log = manager.get("t", 0)
    assert log is not None
    with pytest.raises(KafkaStorageError, match="nothing was changed"):
        log.load()
    assert manager.offline_dirs == {}
    assert Path(f"{segment}.deleted").read_bytes() == old
    manager.close()
    for path in (directory / "t-0").glob("*.swap"):
        path.unlink()
    Path(f"{segment}.deleted").rename(segment)
    manager, log = make(directory)
    assert sum(len(batch.rows) for batch in stored_batches(log)) == 301
    assert log.gap_offset is None


def test_readers_keep_what_they_were_given(filled: Path, tmp_path: Path) -> None:
    manager, log = make(copied(filled, tmp_path))
    held = log.read(0, 2000)
    before = held.read()
    run(cleaner_of(manager), START_MS)
    clock_of(manager).advance(120_000)
    manager.tick()
    assert held.read() == before
    assert log.read(0, 2000).read() != before


def test_the_checkpoint_is_written_after_the_names_are_on_disk(filled: Path, tmp_path: Path) -> None:
    directory = copied(filled, tmp_path)
    files = FaultyFiles()
    manager, log = make(directory, files)
    log.load()
    cleaner = cleaner_of(manager)
    cleaner.tick(START_MS)
    cleaner.tick(START_MS)
    cleaner.tick(START_MS)
    assert len(log.segments) > 1
    assert cleaner.busy
    assert not (directory / "cleaner-offset-checkpoint").exists()
    assert log.cleaned_offset == 0
    files.plan(Fault("sync", errno.EIO, path_part="t-0"))
    manager.flusher.drain()
    assert log.dir.offline is not None
    assert log.cleaned_offset == 0
    crash(manager)
    manager, log = make(directory)
    run(cleaner_of(manager), START_MS)
    manager.flusher.wait()
    lines = (directory / "cleaner-offset-checkpoint").read_text().splitlines()
    assert lines == ["0", "1", f"t 0 {log.cleaned_offset}"]
    manager.delete("t", 0)
    manager.create("t", 0)  # it shall not be taken for compacted
    assert (directory / "cleaner-offset-checkpoint").read_text() == "0\n0\n"
