"""The log cleaner: which log is compacted next, the process that does it, and taking over what it has made.

Rules
- Compaction is a process of its own for each round (cleaner_worker): it never holds this one's GIL, and its memory goes with it. Here are
  only cheap steps: choosing, starting, renaming a few files.
- The next log is the one whose uncompacted part is largest, relative to its size, above min.cleanable.dirty.ratio, or any that has a record
  older than max.compaction.lag.ms. Never touched are the active segment, what lies at or above the last stable offset or the recovery
  point, and segments younger than min.compaction.lag.ms.
- A round is taken over only while the segments that it has read are still there as they were; else it is thrown away.
- How far a log is compacted is written down once the new names are on disk: written earlier, a tombstone could go whose older records a
  loss of power has brought back.
- A round that fails is tried again, later each time; a log whose records cannot be read is left alone until the next start, and logged.
- The worker knows of aborted transactions what their files say. A log waits while one of these lacks what memory has, for a shortage or
  as it is made again; one that the worker finds damaged is made again first.
Source: LogCleaner, LogCleanerManager, KIP-354 (max.compaction.lag.ms).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from typing import IO, Final, Protocol

from fastq.errors import KafkaError
from fastq.values import NamedTuple

from .checkpoints import TopicPartition
from .cleaner_job import CleaningJob, CleaningResult
from .cleaner_swap import NotAsMade, remove_cleaned
from .config import CleanerConfig
from .failures import failures
from .files import READ, FileHandle
from .log_manager import LogManager
from .partition_log import PartitionLog
from .segment import Segment

logger = logging.getLogger(__name__)

_LOGS_PER_TICK: Final = 200
_GROUPS_PER_TICK: Final = 8
_BUFFER_BYTES_MIN: Final = 64 << 10
_RETRY_MS: Final = 1000
_RETRY_MS_MAX: Final = 5 * 60 * 1000
_END_S: Final = 5.0
_NICENESS: Final = 10
_NICENESS_MAX: Final = 19
_START: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); from fastq_broker.log.cleaner_worker import main; main()"
)
"""The modules are those of the broker, none of the directory that it was started in."""


class Failure(NamedTuple):
    """Why a round has failed, and whether another attempt would end in the same way."""

    reason: str
    uncleanable: bool
    aborts: int | None = None
    """The segment whose transaction index is damaged, and can be made again; None where it is something else."""


class Worker(Protocol):
    """Something that does one round."""

    def poll(self) -> CleaningResult | Failure | None:
        """What has become of it, None while it runs. Never waits."""

    def close(self) -> None:
        """End it, if it still runs; it writes nothing afterwards."""


class WorkerProcess:
    """A round in a process of its own. Event-loop thread only."""

    def __init__(self, job: CleaningJob) -> None:
        """Start it. Raises OSError."""
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        command = [sys.executable, "-c", _START, str(os.getpid())]
        with _text_file() as text:  # a pipe would hold this thread up until the process reads
            text.write(job.encode())
            text.seek(0)
            # A session of its own: Ctrl-C is for the broker, which then ends its workers.
            self._process = subprocess.Popen(
                command, stdin=text, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )
        yield_processor(self.pid)
        assert self._process.stdout is not None
        self._out: IO[bytes] = self._process.stdout
        os.set_blocking(self._out.fileno(), False)
        self._answer = bytearray()
        self._ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> CleaningResult | Failure | None:
        while not self._ended:
            try:
                chunk = os.read(self._out.fileno(), 1 << 16)
            except BlockingIOError:
                return None
            self._answer += chunk
            self._ended = not chunk
        code = self._process.poll()
        return None if code is None else parse_answer(bytes(self._answer), code)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(_END_S)
        self._out.close()


def _text_file() -> IO[str]:
    """A file without a name; in memory where the system has such, as a root that cannot be written to has no place for others."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("cleaner's job"), "w+")
    return tempfile.TemporaryFile("w+")


def yield_processor(pid: int) -> None:
    """Have a process step back behind the others, where the system lets us.

    Linux may share the processor among sessions first (its autogroups), and heed a process's own niceness only within its session.
    And niceness is about shares: who wakes may wait for a tick of 4 ms. From an idle process the processor is taken at once.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, pid, min(os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS, _NICENESS_MAX))
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError), open(f"/proc/{pid}/autogroup", "w") as file:
        file.write(str(_NICENESS))


def parse_answer(answer: bytes, code: int) -> CleaningResult | Failure:
    """What a worker has said, or that it has ended without a word."""
    try:
        document = json.loads(answer)
        if "error" in document:
            return Failure(str(document["error"]), bool(document["uncleanable"]), document.get("aborts"))
        return CleaningResult.decode(document["result"])
    except (ValueError, KeyError, TypeError):
        return Failure(f"the cleaner's process ended with code {code}" + (" (killed)" if code == -9 else ""), False)


class Candidate(NamedTuple):
    """A log that may be compacted: the segments of the round, and how much of them is dirty."""

    log: PartitionLog
    segments: list[Segment]
    dirty_offset: int
    upper_offset: int
    dirty_bytes: int
    due: bool
    """Whether a record waits for longer than max.compaction.lag.ms."""

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / sum(segment.size for segment in self.segments)


def candidate_of(log: PartitionLog, now_ms: int) -> Candidate | None:
    """What a round over a loaded log would be, None when there is nothing to do. Raises OSError."""
    config = log.config
    dirty_offset = log.cleaned_offset
    if not log.log_start_offset <= dirty_offset <= log.log_end_offset:
        dirty_offset = log.log_start_offset
    segments: list[Segment] = []
    dirty: list[Segment] = []
    limit = min(log.last_stable_offset, log.recovery_point)
    upper_offset = log.segments[0].base_offset
    for segment, following in zip(log.segments[:-1], log.segments[1:], strict=True):
        is_dirty = following.base_offset > dirty_offset
        young = config.min_compaction_lag_ms > 0 and segment.largest_timestamp() > now_ms - config.min_compaction_lag_ms
        if following.base_offset > limit or (is_dirty and young):
            break
        segments.append(segment)
        upper_offset = following.base_offset
        if is_dirty:
            dirty.append(segment)
    dirty_bytes = sum(segment.size for segment in dirty)
    if not dirty_bytes:
        return None
    times = [time for segment in dirty if (time := segment.first_timestamp()) > 0]
    due = bool(times) and min(times) < now_ms - config.max_compaction_lag_ms
    candidate = Candidate(log, segments, dirty_offset, upper_offset, dirty_bytes, due)
    return candidate if due or candidate.ratio > config.min_cleanable_dirty_ratio else None


class _Round:
    """A round under way: first the worker runs, then `groups` wait to be put in place, then the names for the disk."""

    def __init__(self, candidate: Candidate, worker: Worker) -> None:
        self.log = candidate.log
        self.worker = worker
        self.segments = [(segment, segment.size) for segment in candidate.segments]
        self.truncations = self.log.truncations
        self.result: CleaningResult | None = None
        self.groups: deque[tuple[list[int], dict[str, int]]] = deque()
        self.syncing = False

    def is_stale(self) -> bool:
        """Whether the segments are not the ones any more that the worker reads or has read."""
        log = self.log
        if log.truncations != self.truncations or not log.config.compacted or log.future is not None:
            return True
        present = set(map(id, log.segments[:-1]))
        return any(id(segment) not in present or segment.size != size for segment, size in self.segments)


class LogCleaner:
    """Compacts the logs of a LogManager. Event-loop thread only.

    Invariants: at most `config.threads` rounds at a time, one a log. `uncleanable` tells why a log is left alone. Logs that are not loaded
    are not looked at: the rounds of retention load them.
    """

    def __init__(
        self,
        manager: LogManager,
        config: CleanerConfig | None = None,
        *,
        start_worker: Callable[[CleaningJob], Worker] = WorkerProcess,
    ) -> None:
        self.manager = manager
        self.config = config or CleanerConfig()
        self.uncleanable: dict[PartitionLog, str] = {}
        self.rounds_done = 0
        self.bytes_read = self.bytes_written = 0
        self.seconds = 0.0
        """Of the rounds that are done, and what they have taken."""
        self._start_worker = start_worker
        self._rounds: list[_Round] = []
        self._look_at_ms = 0
        self._to_look_at: deque[PartitionLog] = deque()
        self._best: Candidate | None = None
        self._failures: dict[TopicPartition, tuple[int, int]] = {}  # how many in a row, and when to try again

    def apply_config(self, config: CleanerConfig) -> None:
        """Use other settings, from the next round on."""
        self.config = config

    @property
    def busy(self) -> bool:
        """Whether a round is under way."""
        return bool(self._rounds)

    def tick(self, now_ms: int) -> None:
        """A bounded step: take over what has been done, look at some logs, start a round. `now_ms` is what the times of records are
        compared with; retries and back-offs count on the manager's monotonic clock."""
        for round_ in list(self._rounds):
            try:
                self._advance(round_)
            except Exception as error:
                failures.report(f"compacting {round_.log.name}", error)
                self._failed(round_.log, Failure(f"taking over what was made: {error!r}", False))
                if round_ in self._rounds and not round_.syncing:
                    self._drop(round_)
        if self.config.enabled and len(self._rounds) < self.config.threads:
            self._look(now_ms)

    def close(self) -> None:
        """End the workers; what they have written is removed. Segments that are in place stay so."""
        for round_ in list(self._rounds):
            if not round_.syncing:
                self._drop(round_)

    # -- choosing

    def _look(self, now_ms: int) -> None:
        if not self._to_look_at:
            if self.manager.monotonic_ms() < self._look_at_ms:
                return
            self._to_look_at.extend(self.manager.logs.values())
            self._best = None
            self._forget_deleted()
        for _ in range(min(_LOGS_PER_TICK, len(self._to_look_at))):
            self._consider(self._to_look_at.popleft(), now_ms)
        if self._to_look_at:
            return
        best, self._best = self._best, None
        if best is None:
            self._look_at_ms = self.manager.monotonic_ms() + self.config.backoff_ms
            return
        self._consider(best.log, now_ms)  # it may have been cut, or gone, while others were looked at, at later ticks
        best, self._best = self._best, None
        if best is not None:
            self._start(best, now_ms)

    def _forget_deleted(self) -> None:
        logs = self.manager.logs
        self.uncleanable = {
            log: why for log, why in self.uncleanable.items() if logs.get((log.topic, log.partition)) is log
        }
        self._failures = {key: failure for key, failure in self._failures.items() if key in logs}

    def _may_begin(self, log: PartitionLog) -> bool:
        """Whether a round of a log may begin now, as far as it is not for its records to say."""
        key = log.topic, log.partition
        return (
            log.loaded
            and log.config.compacted
            and log.future is None
            and log.dir.offline is None
            and log not in self.uncleanable
            and self.manager.logs.get(key) is log
            and not (key in self._failures and self._failures[key][1] > self.manager.monotonic_ms())
            and not any(round_.log.path == log.path for round_ in self._rounds)
        )

    def _consider(self, log: PartitionLog, now_ms: int) -> None:
        if not self._may_begin(log):
            return
        try:
            candidate = candidate_of(log, now_ms)
            if candidate is None or (self._best is not None and candidate.ratio <= self._best.ratio):
                return
            for segment in log.segments:
                segment.write_aborts()
                if segment.unwritten_aborts:  # its file is damaged, and who looks into it has it made again
                    with contextlib.suppress(KafkaError):
                        log.aborted_transactions(segment.base_offset, segment.base_offset + 1)
                    return
        except OSError as error:
            log.dir.refuse("looking at a log to compact it", error.filename or log.path, error)
            return
        if all(segment.aborts_rebuilding is None for segment in log.segments):
            self._best = candidate

    def _start(self, candidate: Candidate, now_ms: int) -> None:
        job = self._job(candidate, now_ms)
        try:
            worker = self._start_worker(job)
        except OSError as error:
            self._failed(candidate.log, Failure(f"starting the cleaner's process: {error}", False))
            return
        logger.info(
            "%s: compacting %d bytes, %d of them dirty, up to offset %d",
            candidate.log.name,
            sum(segment.size for segment in candidate.segments),
            candidate.dirty_bytes,
            candidate.upper_offset,
        )
        self._rounds.append(_Round(candidate, worker))

    def _job(self, candidate: Candidate, now_ms: int) -> CleaningJob:
        log, config, own = candidate.log, candidate.log.config, self.config
        return CleaningJob(
            directory=log.path,
            segments=[(segment.base_offset, segment.size) for segment in candidate.segments],
            dirty_offset=candidate.dirty_offset,
            upper_offset=candidate.upper_offset,
            # A transaction that began in the round's range may have been aborted by a marker beyond it. A file whose first entry is written
            # while the worker reads is none of its business, and may be empty as it looks.
            aborts=[(segment.base_offset, segment.aborts_bytes) for segment in log.segments if segment.aborts_bytes],
            last_offsets=[
                (producer_id, entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
                for producer_id, entry in log.producers.items()
            ],
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            map_bytes=own.dedupe_buffer_bytes // max(own.threads, 1),
            map_load_factor=own.dedupe_load_factor,
            buffer_bytes=max(own.io_buffer_bytes // max(own.threads, 1), _BUFFER_BYTES_MIN),
            bytes_per_second_max=own.io_bytes_per_second_max / max(own.threads, 1),
        )

    # -- taking over

    def _advance(self, round_: _Round) -> None:
        log = round_.log
        if round_.syncing:
            return
        gone = self.manager.logs.get((log.topic, log.partition)) is not log
        if gone or log.dir.offline is not None:
            self._drop(round_)
            return
        if round_.is_stale():
            logger.info("%s: the log has changed while it was compacted: that is done again later", log.name)
            self._look_at_ms = self.manager.monotonic_ms() + self.config.backoff_ms
            self._drop(round_)
            return
        if round_.result is None:
            outcome = round_.worker.poll()
            if outcome is None:
                return
            round_.worker.close()
            if isinstance(outcome, Failure):
                self._drop(round_)
                self._failed(log, outcome)
                return
            round_.result = outcome
            round_.groups.extend(zip(outcome.groups, outcome.made, strict=True))
        self._swap(round_)

    def _swap(self, round_: _Round) -> None:
        """Put the next groups in place, in the order of their offsets; after the last one have the names synced."""
        log = round_.log
        try:
            for _ in range(min(_GROUPS_PER_TICK, len(round_.groups))):
                bases, made = round_.groups.popleft()
                old = [segment for segment, _ in round_.segments if segment.base_offset in bases]
                round_.segments = [pair for pair in round_.segments if pair[0].base_offset not in bases]
                log.replace_segments(old, made)
        except NotAsMade as error:
            self._drop(round_)
            self._failed(log, Failure(str(error), False))
            return
        except KafkaError:
            # Which the directory has told: it is offline, or short of something, and another round comes.
            self._drop(round_)
            return
        if not round_.groups:
            try:
                handle = FileHandle(log.files, log.path, READ)
            except OSError as error:
                log.dir.refuse("opening a log's directory", log.path, error)  # a shortage: the next tick tries it again
                return
            log.dir.flusher.submit([handle], lambda error: self._synced(round_, error))
            round_.syncing = True  # not before: a job that could not be begun has no end

    def _synced(self, round_: _Round, error: OSError | None) -> None:
        log, result = round_.log, round_.result
        assert result is not None
        self._rounds.remove(round_)
        if error is not None:
            log.dir.fail("syncing the names of compacted segments", log.path, error)
            return
        self._failures.pop((log.topic, log.partition), None)
        self._look_at_ms = 0  # as long as there is something to do, it goes on
        self.rounds_done += 1
        self.bytes_read += result.bytes_read
        self.bytes_written += result.bytes_written
        self.seconds += result.seconds
        if self.manager.logs.get((log.topic, log.partition)) is not log or log.truncations != round_.truncations:
            return
        log.cleaned_offset = result.end_offset
        try:
            self.manager.write_cleaned_offsets(log.dir)
        except OSError as failure:
            log.dir.refuse("writing the cleaner's checkpoint", failure.filename or log.dir.path, failure)
        _report(log, result)

    def _drop(self, round_: _Round) -> None:
        """Give a round up."""
        round_.worker.close()
        self._rounds.remove(round_)
        log = round_.log
        # Of a log that a swap has left half done, the load needs them to know how far it came.
        if log.loaded and self.manager.logs.get((log.topic, log.partition)) is log:
            try:
                remove_cleaned(log.files, log.path)
            except OSError as error:
                logger.warning("%s: what a compaction has left cannot be removed yet: %s", log.name, error)

    def _failed(self, log: PartitionLog, failure: Failure) -> None:
        if failure.uncleanable:
            self.uncleanable[log] = failure.reason
            logger.error(
                "%s cannot be compacted and is left as it is until the next start: %s; dump that segment with `fastq dump-log`",
                log.name,
                failure.reason,
            )
            return
        if failure.aborts is not None:
            with contextlib.suppress(KafkaError):  # which says how that goes on
                log.aborted_transactions(failure.aborts, failure.aborts + 1)
        key = log.topic, log.partition
        count = self._failures.get(key, (0, 0))[0]
        wait_ms = min(_RETRY_MS << min(count, 20), _RETRY_MS_MAX)
        self._failures[key] = count + 1, self.manager.monotonic_ms() + wait_ms
        logger.warning("%s: compaction failed, next attempt in %.0f s: %s", log.name, wait_ms / 1000, failure.reason)


def _report(log: PartitionLog, result: CleaningResult) -> None:
    logger.info(
        "%s: compacted up to offset %d: %d of %d records kept, %d keys, %d bytes read, %d written, %.2f s",
        log.name,
        result.end_offset,
        result.records_kept,
        result.records_read,
        result.keys,
        result.bytes_read,
        result.bytes_written,
        result.seconds,
    )
    if result.keyless_records:
        logger.warning(
            "%s: %d records without a key were dropped: a compacted topic has no use for them",
            log.name,
            result.keyless_records,
        )
