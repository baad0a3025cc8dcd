"""Recovers in a thread, beside a broker that serves, the logs that have much to read when they are first touched.

Rules
- After a clean stop a log is loaded in the loop, which has little to read. One that is not whole after all, or has lost what is made again
  from its batches, may have gigabytes: a thread reads them for an object of its own, writes down and syncs what follows from them, and the
  loop loads the files that it leaves.
- Who touches such a log meanwhile gets REPLICA_NOT_AVAILABLE, which all clients try again. Apache Kafka, which loads all logs before it
  serves, answers nothing so long.
- A line says so at the begin, every 5 s, and at the end.
- It ends at the next megabyte when the log's directory is to be renamed, or the broker stops: then the log directory gets no clean-shutdown
  marker, and the next start recovers.
Source: LogManager.loadLogs.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future, wait
from functools import partial
from typing import Any, Final, NoReturn

from fastq.errors import ErrorCode, KafkaError, error_for_code

from .failures import failures
from .files import FdBudget
from .half_done import no_memory
from .index_rebuild import IndexRebuilds
from .log_dir import LogDir
from .partition_log import PartitionLog
from .recovery_progress import RecoveryProgress, RecoveryStopped
from .tell_loop import tell_loop

logger = logging.getLogger(__name__)

_FILES_MAX: Final = 16
"""Files and maps that the thread has open at a time, beside the budget of the loop's."""


class _ThreadsDir(LogDir):
    """The log directory as the thread has it: an error is the loop's to judge, and takes nothing offline here."""

    failed = False
    """Whether the error is one after which the directory is offline."""

    def __init__(self, log_dir: LogDir, on_read: Callable[[int], None]) -> None:
        budget = FdBudget(_FILES_MAX)
        super().__init__(log_dir.path, log_dir.files, budget, log_dir.flusher, monotonic_ms=log_dir.monotonic_ms)
        self.on_recovery_read = on_read

    def fail(self, action: str, path: str, error: OSError) -> NoReturn:
        self.failed = True
        raise error

    def refuse(self, action: str, path: str, error: OSError) -> NoReturn:
        raise error

    def delete_later(self, paths: Sequence[str], delay_ms: int) -> None:
        for path in paths:  # nobody reads them
            self.files.remove_if_exists(path)


class LateRecovery:
    """One thread, begun with the first such log. Event-loop thread only, but for `_recover`.

    Invariant: `_under_way` holds, by its log, each recovery that has not been heard of, and only those logs are `recovering`.
    """

    def __init__(self) -> None:
        self._loop: Any = None
        self._threads: Callable[[int, str], Executor]
        self._thread: Executor | None = None
        self._under_way: dict[PartitionLog, tuple[RecoveryProgress, Future[None]]] = {}
        self.indexes = IndexRebuilds()
        """What makes wild indexes of loaded logs again: it begins and ends with this."""

    def attach(self, dirs: Sequence[LogDir], loop: Any, threads: Callable[[int, str], Executor]) -> None:
        """Have the logs of these directories recovered from now on: `loop` is an asyncio event loop, `threads(count, name)` begins some."""
        self._loop = loop
        self._threads = threads
        for log_dir in dirs:
            log_dir.late_recovery = self.begin
        self.indexes.attach(dirs, loop, threads)

    def begin(self, log: PartitionLog) -> KafkaError:
        """Have a thread read a log; answers what to tell who touches it until then. Raises KafkaStorageError."""
        if log.dir.offline is not None:
            raise log.dir.offline.with_traceback(None)
        if self._thread is None:
            self._thread = self._threads(1, "fastq-recover-logs")
        progress = RecoveryProgress(log.dir.monotonic_ms)
        progress.logs = 1
        log_dir = _ThreadsDir(log.dir, progress.read)
        own = PartitionLog(
            log_dir,
            log.path,
            log.topic,
            log.partition,
            config=log.config,
            clock=log.clock,
            topic_id=log.topic_id,
            recovery_point=log.recovery_point,
            log_start_offset=log.checkpointed_start_offset,
            cleaned_offset=log.cleaned_offset,
            clean=log.clean,
            producer_expiration_ms=log.producer_expiration_ms,
        )
        try:
            future = self._thread.submit(_recover, own, log_dir, progress)
        except RuntimeError as error:  # no thread can be started
            self._thread = None
            raise log.dir.refuse("beginning a thread", log.path, OSError(errno.EAGAIN, str(error))) from None
        try:
            refusal = error_for_code(
                ErrorCode.REPLICA_NOT_AVAILABLE,
                "the log was not whole and is being recovered",
                topic=log.topic,
                partition=log.partition,
                hint="Try it again; the broker's log says how far it is",
            )
            logger.warning("%s is recovered while the broker serves; until then it is refused", log.path)
            self._under_way[log] = progress, future
            future.add_done_callback(partial(self._done, log, own, log_dir))
        except BaseException:  # nobody would hear of its end: who touches the log next has it begun anew
            self._under_way.pop(log, None)
            progress.stop()
            future.cancel()
            log.clean = False  # it may be half made anew
            raise
        log.recovering = refusal
        return refusal

    def stop(self, log: PartitionLog) -> None:
        """Recover a log no more: its directory gets another name. Waits for the thread to let go of it, a megabyte at most."""
        found = self._under_way.pop(log, None)
        if found is not None:
            progress, future = found
            progress.stop()
            if not future.cancel():
                wait([future])
                log.clean = False  # it may be half made anew
            log.recovering = None

    def close(self) -> None:
        """The broker stops. What was not recovered by now still is `recovering`. Idempotent."""
        self.indexes.close()
        for progress, future in self._under_way.values():
            progress.stop()
            future.cancel()
        self._under_way.clear()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _done(self, log: PartitionLog, own: PartitionLog, log_dir: _ThreadsDir, future: Future[None]) -> None:
        """Runs in the thread, or where the future was cancelled, of which nobody has to hear."""
        if not future.cancelled():
            tell_loop(self._loop, self._heard, log, own, log_dir, future)

    def _heard(self, log: PartitionLog, own: PartitionLog, log_dir: _ThreadsDir, future: Future[None]) -> None:
        found = self._under_way.get(log)
        if found is None or found[1] is not future:
            return  # it was stopped
        del self._under_way[log]
        log.recovering = None
        log.clean = False  # what has failed may be half made anew
        try:
            future.result()
        except (RecoveryStopped, CancelledError):
            return
        except OSError as error:
            (log.dir.fail if log_dir.failed else log.dir.refuse)("recovering a log", error.filename or log.path, error)
            return
        except KafkaError as error:
            log.failure = error.with_traceback(None)
            return
        except MemoryError as error:  # which passes
            log.dir.refuse("recovering a log", log.path, no_memory(error))
            return
        except Exception as error:
            failures.report(f"recovering {log.path}", error)
            log.failure = error_for_code(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"it cannot be recovered: {error!r}",
                topic=log.topic,
                partition=log.partition,
            )
            return
        log.recovery_point = own.checkpointed_recovery_point
        log.lost_start = own.lost_start  # which has been said
        log.clean = log.takes_long = True
        log.known_producers = own.producers


def _recover(own: PartitionLog, log_dir: _ThreadsDir, progress: RecoveryProgress) -> None:
    """Load a log, and leave it whole and on disk. Runs in the thread. Raises OSError, KafkaError for one that is not to be recovered."""
    progress.begin(own.name)
    started_ms = log_dir.monotonic_ms()
    own.load()
    own.finish()
    try:
        own.durability.sync_alone()
    except OSError as error:
        log_dir.fail("syncing a recovered log", error.filename or own.path, error)
    for segment in own.segments:
        segment.release()
    logger.warning(
        "%s is whole now: recovered in %.2f s, %d bytes read, %d places cut",
        own.path,
        (log_dir.monotonic_ms() - started_ms) / 1000,
        own.recovery.bytes_read,
        len(own.recovery.cut),
    )
