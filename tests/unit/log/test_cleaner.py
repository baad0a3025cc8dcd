"""Which log is compacted, how far, and when; the worker's process; the settings."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cleaner_support import DirectWorker, cleaner_of, live_values, run, stored_batches
from fastq_broker.config import BrokerConfig
from fastq_broker.log import CleanerConfig, LogCleaner, LogConfig, LogManager, PartitionLog
from fastq_broker.log import cleaner as cleaner_module
from fastq_broker.log.cleaner import Candidate, Failure, WorkerProcess, candidate_of, parse_answer
from fastq_broker.log.cleaner_job import CleaningJob, CleaningResult, Throttle, clean
from fastq_broker.log.cleaner_worker import answer
from fastq_broker.log.files import Files
from fastq_broker.topic_config import BrokerLayers, cleaner_config
from log_support import START_MS, clock_of, crash, flush_rolled, one_batch, open_manager

from fastq._native.records import build_batch
from fastq.testing import Broker as BrokerProcess

CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.5, segment_bytes=1 << 20)


def add_segment(log: PartitionLog, records: int = 10, *, timestamp_ms: int = START_MS, keys: int = 3) -> None:
    for number in range(records):
        row = (timestamp_ms, b"key-%d" % (number % keys), b"v" * 50)
        log.append(build_batch([row]), leader_epoch=0, now_ms=timestamp_ms, from_client=False)
    log.roll(START_MS)
    flush_rolled(log)


def make_log(directory: Path, config: LogConfig = CONFIG, topic: str = "t") -> tuple[LogManager, PartitionLog]:
    manager = open_manager(directory, config)
    return manager, manager.create(topic, 0, bytes(16), config)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


# --- what a round would be


def test_the_active_segment_is_never_part_of_a_round(tmp_path: Path) -> None:
    _, log = make_log(tmp_path)
    assert candidate_of(log, START_MS) is None
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    assert candidate_of(log, START_MS) is None
    log.roll(START_MS)
    assert candidate_of(log, START_MS) is None, "what lies above the recovery point might be cut off by a recovery"
    flush_rolled(log)
    candidate = candidate_of(log, START_MS)
    assert candidate is not None
    assert (candidate.upper_offset, candidate.segments) == (1, log.segments[:1])


def test_the_last_stable_offset_bounds_a_round(tmp_path: Path) -> None:
    _, log = make_log(tmp_path)
    add_segment(log)
    batch = one_batch([b"open"], producer_id=1, epoch=0, sequence=0, transactional=True)
    log.append(batch, leader_epoch=0, now_ms=START_MS, from_client=False)
    add_segment(log)
    add_segment(log)
    candidate = candidate_of(log, START_MS)
    assert candidate is not None
    assert (log.last_stable_offset, candidate.upper_offset) == (10, 10)


def test_young_segments_wait(tmp_path: Path) -> None:
    _, log = make_log(tmp_path, replace(CONFIG, min_compaction_lag_ms=1000, min_cleanable_dirty_ratio=0.0))
    add_segment(log, timestamp_ms=START_MS)
    add_segment(log, timestamp_ms=START_MS + 500)

    def bound(now_ms: int) -> int | None:
        candidate = candidate_of(log, now_ms)
        return candidate and candidate.upper_offset

    assert bound(START_MS + 999) is None
    assert bound(START_MS + 1000) == 10
    assert bound(START_MS + 1500) == 20


def test_a_log_is_due_when_enough_of_it_is_dirty_or_for_too_long(tmp_path: Path) -> None:
    manager, log = make_log(tmp_path, replace(CONFIG, max_compaction_lag_ms=60_000))
    add_segment(log, keys=10)
    assert run(cleaner_of(manager), START_MS) == 1
    assert candidate_of(log, START_MS) is None
    add_segment(log, 5, timestamp_ms=START_MS + 10, keys=5)
    assert candidate_of(log, START_MS + 60_000) is None, "a third is dirty"
    due = candidate_of(log, START_MS + 60_011)
    assert due is not None
    assert due.due
    add_segment(log, 8, keys=5)
    plain = candidate_of(log, START_MS)
    assert plain is not None
    assert not plain.due
    assert plain.ratio > 0.5
    log.apply_config(CONFIG)
    assert log.config.roll_ms == CONFIG.segment_ms


def test_a_compacted_log_rolls_in_time_for_its_longest_lag() -> None:
    lag = LogConfig(max_compaction_lag_ms=5000, segment_ms=9000)
    assert lag.roll_ms == 9000
    assert replace(lag, cleanup_policy=frozenset({"compact"})).roll_ms == 5000
    assert replace(lag, cleanup_policy=frozenset({"compact", "delete"}), segment_ms=3000).roll_ms == 3000


@pytest.mark.parametrize("wrong", [-5, 7, 10_000])
def test_a_cleaned_offset_outside_of_the_log_counts_for_nothing(tmp_path: Path, wrong: int) -> None:
    _, log = make_log(tmp_path, replace(CONFIG, cleanup_policy=frozenset({"compact", "delete"})))
    add_segment(log)
    add_segment(log)
    log.delete_records_before(9)
    log.cleaned_offset = wrong
    candidate = candidate_of(log, START_MS)
    assert candidate is not None
    assert candidate.dirty_offset == 9


def test_the_dirtiest_log_comes_first(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, CONFIG)
    for topic, dirty in (("a", 1), ("b", 4), ("c", 2)):
        log = manager.create(topic, 0, bytes(16), CONFIG)
        add_segment(log, 10)
        log.cleaned_offset = log.log_end_offset
        add_segment(log, 10 * dirty)
    other = manager.create("plain", 0, bytes(16), LogConfig())
    add_segment(other, 100)
    order: list[str] = []

    def start(job: CleaningJob) -> DirectWorker:
        order.append(os.path.basename(job.directory))
        return DirectWorker(job)

    cleaner = LogCleaner(manager, CleanerConfig(backoff_ms=0), start_worker=start)
    run(cleaner, START_MS)
    assert order == ["b-0", "c-0"]  # of a's log one half is dirty, which is not above the ratio


@pytest.mark.parametrize("what", ["deleted", "unloaded", "of another policy", "cut"])
def test_a_log_that_is_gone_or_cut_before_its_round_begins_is_passed_over(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner_module, "_LOGS_PER_TICK", 1)
    manager = open_manager(tmp_path, CONFIG)
    for topic, dirty in (("a", 3), ("b", 2)):
        log = manager.create(topic, 0, bytes(16), CONFIG)
        add_segment(log)
        log.cleaned_offset = log.log_end_offset
        add_segment(log, 10 * dirty)
    log = manager.logs["a", 0]
    order: list[str] = []

    def start(job: CleaningJob) -> DirectWorker:
        order.append(os.path.basename(job.directory))
        return DirectWorker(job)

    cleaner = LogCleaner(manager, CleanerConfig(backoff_ms=0), start_worker=start)
    cleaner.tick(START_MS)
    if what == "deleted":
        manager.delete("a", 0)
    elif what == "unloaded":
        log.half_swapped(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), 0)
        assert not log.loaded
    elif what == "cut":
        log.truncate_to(log.log_end_offset - 1)
    else:
        log.apply_config(LogConfig())
    cleaner.tick(START_MS)
    assert order == []
    run(cleaner, START_MS)
    assert order == ["b-0"]


def test_there_are_as_many_rounds_as_threads_and_they_share_the_memory(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, CONFIG)
    for topic in "abc":
        add_segment(manager.create(topic, 0, bytes(16), CONFIG))
    jobs: list[CleaningJob] = []

    class Endless:
        def poll(self) -> None:
            return None

        def close(self) -> None:
            pass

    def start(job: CleaningJob) -> Endless:
        jobs.append(job)
        return Endless()

    config = CleanerConfig(backoff_ms=0, threads=2, dedupe_buffer_bytes=100 << 20, io_bytes_per_second_max=1000.0)
    cleaner = LogCleaner(manager, config, start_worker=start)
    for _ in range(5):
        cleaner.tick(START_MS)
    assert len({job.directory for job in jobs}) == len(jobs) == 2
    assert {(job.map_bytes, job.bytes_per_second_max) for job in jobs} == {(50 << 20, 500.0)}
    cleaner.close()
    for switched_off in (CleanerConfig(backoff_ms=0, threads=0), CleanerConfig(backoff_ms=0, enabled=False)):
        cleaner.apply_config(switched_off)
        cleaner.tick(START_MS)
        assert len(jobs) == 2


def test_nothing_is_looked_at_before_the_backoff_is_over(tmp_path: Path) -> None:
    manager, log = make_log(tmp_path)
    cleaner = LogCleaner(manager, CleanerConfig(backoff_ms=5000), start_worker=DirectWorker)
    cleaner.tick(START_MS)
    add_segment(log)
    clock_of(manager).advance(4999)
    cleaner.tick(START_MS + 4999)
    assert not cleaner.busy
    clock_of(manager).advance(1)
    cleaner.tick(START_MS + 5000)
    assert cleaner.busy


def test_how_far_a_log_is_compacted_outlives_a_restart_and_follows_truncations(tmp_path: Path) -> None:
    manager, log = make_log(tmp_path)
    add_segment(log)
    add_segment(log)
    run(cleaner_of(manager), START_MS)
    manager.flusher.wait()
    crash(manager)
    manager = open_manager(tmp_path, CONFIG)
    (log,) = manager.logs.values()
    assert log.cleaned_offset == 20
    log.truncate_to(19)
    assert log.cleaned_offset < 20
    manager.close()
    manager = open_manager(tmp_path, CONFIG)
    assert next(iter(manager.logs.values())).cleaned_offset < 20


def test_what_is_compacted_and_deleted_too_loses_its_oldest_segments(tmp_path: Path) -> None:
    both = replace(CONFIG, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1000)
    manager, log = make_log(tmp_path, both)
    add_segment(log, keys=3)
    add_segment(log, timestamp_ms=START_MS + 5000, keys=4)
    run(cleaner_of(manager), START_MS + 900)
    assert set(live_values(stored_batches(log))) == {b"key-0", b"key-1", b"key-2", b"key-3"}
    from fastq_broker.log.retention import apply_retention

    apply_retention(log, START_MS + 100_000)
    assert log.size_bytes == 0
    assert log.log_end_offset == 20


# --- the worker


def job_for(candidate: Candidate) -> CleaningJob:
    jobs: list[CleaningJob] = []

    def keep(job: CleaningJob) -> DirectWorker:
        jobs.append(job)
        raise OSError("not now")

    manager = open_manager(Path(candidate.log.path).parent.parent / "unused", CONFIG)
    manager.logs[candidate.log.topic, 0] = candidate.log
    LogCleaner(manager, CleanerConfig(), start_worker=keep).tick(START_MS)
    return jobs[0]


@pytest.fixture
def job(tmp_path: Path) -> CleaningJob:
    _, log = make_log(tmp_path / "data")
    add_segment(log, 200)
    candidate = candidate_of(log, START_MS)
    assert candidate is not None
    return job_for(candidate)


def test_a_job_is_the_same_after_its_way_to_the_process(job: CleaningJob) -> None:
    again = CleaningJob.decode(job.encode())
    assert again.encode() == job.encode()
    assert [tuple(pair) for pair in again.segments] == job.segments


def test_a_process_does_the_round(job: CleaningJob) -> None:
    worker = WorkerProcess(job)
    wait_for(lambda: worker.poll() is not None, "the worker did not answer")
    result = worker.poll()
    worker.close()
    assert isinstance(result, CleaningResult)
    assert (result.end_offset, result.groups, result.records_read, result.records_kept) == (200, [[0]], 200, 3)
    assert os.path.getsize(os.path.join(job.directory, f"{0:020d}.log.cleaned")) == result.bytes_written


def test_a_process_needs_no_directory_for_temporary_files(job: CleaningJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that cannot be written to has none, and a full one is no reason not to compact."""
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    worker = WorkerProcess(job)
    wait_for(lambda: worker.poll() is not None, "the worker did not answer")
    result = worker.poll()
    worker.close()
    assert isinstance(result, CleaningResult)


def test_the_process_steps_back_behind_the_broker(job: CleaningJob) -> None:
    worker = WorkerProcess(replace(job, bytes_per_second_max=1.0))
    try:
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
        session = Path(f"/proc/{worker.pid}/autogroup")
        if session.exists() and os.geteuid() == 0:  # others may be told to come back later
            assert session.read_text().endswith("nice 10\n")
    finally:
        worker.close()


def test_a_process_that_is_killed_is_a_failure_that_may_pass(job: CleaningJob) -> None:
    worker = WorkerProcess(replace(job, bytes_per_second_max=1.0))
    os.kill(worker.pid, signal.SIGKILL)
    wait_for(lambda: worker.poll() is not None, "the end was not seen")
    outcome = worker.poll()
    worker.close()
    assert isinstance(outcome, Failure)
    assert not outcome.uncleanable
    assert "code -9" in outcome.reason


def test_closing_ends_the_process(job: CleaningJob) -> None:
    worker = WorkerProcess(replace(job, bytes_per_second_max=1.0))
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


def test_a_process_whose_broker_has_gone_ends_and_leaves_nothing(job: CleaningJob) -> None:
    text = answer(job.encode(), parent=os.getppid() + 1)
    assert parse_answer(text.encode(), 0) == Failure("the broker has ended", False)
    assert not [name for name in os.listdir(job.directory) if name.endswith(".cleaned")]


def ended(pid: int) -> bool:
    """Whether a process has ended; one that nobody waits for stays as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks into /proc")
def test_a_killed_broker_takes_its_workers_along(job: CleaningJob) -> None:
    code = (
        "import os, sys, time\n"
        "from fastq_broker.log.cleaner import WorkerProcess\n"
        "from fastq_broker.log.cleaner_job import CleaningJob\n"
        "worker = WorkerProcess(CleaningJob.decode(sys.stdin.read()))\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    slow = replace(job, bytes_per_second_max=1.0)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(slow.encode())
        parent.stdin.close()
        pid = int(parent.stdout.readline())
        reading = Path(job.directory)
        time.sleep(0.3)
        assert not ended(pid)
        parent.kill()
        wait_for(lambda: ended(pid), "the worker goes on")
    assert not list(reading.glob("*.cleaned"))


@pytest.mark.parametrize("text", [b"", b"{", b"{}", b"[]", b'{"result": "{\\"none\\": 1}"}', b'{"result": 3}'])
def test_an_answer_that_makes_no_sense_is_a_failure(text: bytes) -> None:
    outcome = parse_answer(text, 1)
    assert isinstance(outcome, Failure)
    assert "code 1" in outcome.reason


def test_the_process_runs_where_the_broker_finds_its_modules(job: CleaningJob, tmp_path: Path) -> None:
    """Not from the directory that the broker was started in, which may hold anything."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    code = (
        "import sys, time\n"
        "from fastq_broker.log.cleaner import WorkerProcess\n"
        "from fastq_broker.log.cleaner_job import CleaningJob\n"
        "worker = WorkerProcess(CleaningJob.decode(sys.stdin.read()))\n"
        "while worker.poll() is None: time.sleep(0.01)\n"
        "print(type(worker.poll()).__name__)\n"
    )
    script = tmp_path / "elsewhere" / "broker.py"
    script.parent.mkdir()
    script.write_text(code)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, input=job.encode(), capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stdout == "CleaningResult\n", done.stderr


def test_the_rate_of_a_round_is_bounded() -> None:
    now, slept = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    throttle = Throttle(1000.0, sleep, lambda: now)
    for _ in range(10):
        throttle.passed(500, lambda: None)
    assert now == pytest.approx(5.0)
    now += 100.0
    throttle.passed(500, lambda: None)
    assert now == pytest.approx(105.5), "what was not used before is not made up for"
    assert max(slept) <= 0.5


# --- settings, and the whole


def test_a_round_lets_go_of_the_processor_after_each_buffer(job: CleaningJob) -> None:
    pauses: list[float] = []
    throttle = Throttle(sys.float_info.max, pauses.append, lambda: 0.0)
    result = clean(replace(job, buffer_bytes=1000), throttle=throttle)
    assert len(pauses) >= result.bytes_read // 1000 >= 20
    assert set(pauses) == {0.0001}


class RangeFiles(Files):
    """Says what is written to the disk, and when."""

    def __init__(self, *, ranges: bool) -> None:
        self.ranges = ranges
        self.told: list[tuple[str, int, int]] = []

    def write_range(self, fd: int, position: int, size: int, *, wait: bool = False) -> bool:
        if self.ranges:
            self.told.append(("wait" if wait else "begin", position, position + size))
        return self.ranges

    def sync_data(self, fd: int) -> None:  # type: ignore[override]
        self.told.append(("sync", 0, os.fstat(fd).st_size))


@pytest.mark.parametrize("ranges", [True, False])
def test_what_a_round_writes_goes_to_the_disk_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: bool
) -> None:
    monkeypatch.setattr("fastq_broker.log.cleaner_job._PIECE_BYTES", 2000)
    _, log = make_log(tmp_path / "data")
    add_segment(log, 100, keys=100)
    candidate = candidate_of(log, START_MS)
    assert candidate is not None
    files = RangeFiles(ranges=ranges)
    written = clean(replace(job_for(candidate), buffer_bytes=1000), files).bytes_written
    *pieces, whole, _, _ = files.told  # the last two are the indexes
    assert whole == ("sync", 0, written)
    if not ranges:
        assert written // 4000 <= len(pieces) <= written // 2000
        return
    begun = [(start, end) for what, start, end in pieces if what == "begin"]
    assert [start for start, _ in begun] == [0, *(end for _, end in begun[:-1])]
    assert len(begun) >= written // 4000
    assert all(2000 <= end - start <= 4000 for start, end in begun)
    assert [end for what, _, end in pieces if what == "wait"] == [end for _, end in begun[:-1]]


def test_the_settings_are_those_of_the_brokers_keys() -> None:
    assert cleaner_config(BrokerLayers(BrokerConfig.from_mapping({}))) == CleanerConfig()
    settings = {
        "log.cleaner.enable": "false",
        "log.cleaner.threads": "3",
        "log.cleaner.dedupe.buffer.size": "2000000",
        "log.cleaner.io.buffer.load.factor": "0.5",
        "log.cleaner.io.buffer.size": "70000",
        "log.cleaner.io.max.bytes.per.second": "1e6",
        "log.cleaner.backoff.ms": "7",
    }
    static = BrokerConfig.from_mapping(settings)
    assert cleaner_config(BrokerLayers(static)) == CleanerConfig(
        enabled=False,
        threads=3,
        dedupe_buffer_bytes=2_000_000,
        dedupe_load_factor=0.5,
        io_buffer_bytes=70_000,
        io_bytes_per_second_max=1e6,
        backoff_ms=7,
    )
    altered = BrokerLayers(static, all_brokers={"log.cleaner.threads": "2", "log.cleaner.backoff.ms": "9"})
    assert (cleaner_config(altered).threads, cleaner_config(altered).backoff_ms) == (2, 9)


def test_a_broker_compacts_a_topic_and_serves_it_on(tmp_path: Path) -> None:
    from fastq import Admin, Consumer, Producer

    topic = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    config = {"log.cleaner.backoff.ms": 100}
    with BrokerProcess(data_dir=tmp_path / "data", config=config) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topic("latest", partitions=1, replication_factor=1, configs=topic)
        expected: dict[bytes, bytes] = {}
        with Producer(bootstrap_servers=broker.bootstrap_servers, compression_type="lz4", batch_size=16384) as producer:
            for number in range(40_000):
                key, value = b"key-%d" % (number % 500), os.urandom(60) + b"%d" % number
                producer.send("latest", value, key=key)
                expected[key] = value
        directory = tmp_path / "data" / "latest-0"
        checkpoint = tmp_path / "data" / "cleaner-offset-checkpoint"
        wait_for(checkpoint.exists, "nothing was compacted")
        found: dict[bytes, bytes] = {}
        count = 0
        with Consumer("latest", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            while found != expected:
                batch = consumer.poll_batch(timeout=10)
                assert batch is not None
                for key, value in zip(batch.keys, batch.values, strict=True):
                    count += 1
                    found[bytes(key)] = bytes(value)
        assert count < 40_000
    assert not list(directory.glob("*.swap")) + list(directory.glob("*.cleaned"))
