"""All logs of a broker: the log directories, start and clean stop, checkpoints, and the background work in small steps.

Rules
- `start()` lists the directories and reads the checkpoints; logs are loaded when they are first touched. Only after an unclean stop
  are they all loaded, and so recovered, at once.
- `tick()` does a bounded amount of work per call, so that the event loop can call it often.
- A directory that fails goes offline with its logs; the others go on.
- Timers count on a monotonic clock; the wall clock is for what is compared with the times of records (retention, producers).
- A piece of work that raises for one log, or a directory, is reported and holds up no other.
- Nothing but Kafka's own files is kept. Source: LogManager.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from fastq.errors import ConfigError, KafkaError

from .checkpoints import CLEANED, HIGH_WATERMARK, LOG_START, RECOVERY_POINT, TopicPartition
from .config import METADATA_TOPIC, UNLIMITED, LogConfig, copied
from .dir_checkpoints import NAMES, DirCheckpoints, cleaned_offsets_of, offsets_of, watermarks_of
from .dir_moves import FUTURE_NAME, LogMoves
from .directories import DELETED_NAME, LOG_NAME, DirectoryLocks, check_nesting, check_no_brokers, why_unusable
from .failures import failures
from .files import FdBudget, Files, default_fd_budget, is_full, is_shortage
from .flusher import Flusher, open_flusher
from .late_recovery import LateRecovery
from .log_dir import LogDir, system_clock_ms, system_monotonic_ms
from .log_identity import LogIdentity
from .log_maker import LogMaker
from .partition_log import PartitionLog
from .recovery_progress import RecoveryProgress
from .retention import apply_retention

logger = logging.getLogger(__name__)

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
_LOGS_PER_TICK: Final = 20
_SYNCED_ONE_BY_ONE: Final = 32
_FLUSH_CHECK_INTERVAL_MS: Final = 500
_DIRECTORY_CHECK_INTERVAL_MS: Final = 5_000
_CLOCK_JUMP_MS: Final = 10_000
"""What the wall clock gains or loses between two ticks before it counts as set by hand."""


class LogManager(LogIdentity):
    """The logs of all partitions on this broker. Event-loop thread only.

    `logs` maps (topic, partition) to its log. `offline_dirs` maps the paths of failed directories to their errors,
    `cordoned` has the paths of those that get no new logs as long as there are others (KIP-1066).
    """

    def __init__(
        self,
        log_dirs: Sequence[str | os.PathLike[str]],
        *,
        default_config: LogConfig | None = None,
        clock: Callable[[], int] = system_clock_ms,
        monotonic_ms: Callable[[], int] | None = None,
        files: Files | None = None,
        flusher: Flusher | None = None,
        fd_budget: int | None = None,
        retention_check_interval_ms: int = 300_000,
        checkpoint_interval_ms: int = 60_000,
        watermark_interval_ms: int | None = None,
        producer_expiration_ms: int = 86_400_000,
        producer_expiration_check_interval_ms: int = 600_000,
        randomness: random.Random | None = None,
        threads: Callable[[int, str], Executor] = ThreadPoolExecutor,
    ) -> None:
        """Times in ms. `watermark_interval_ms`: how often high watermarks are written down apart from the other checkpoints, where
        leaders may change; None: with them. `monotonic_ms` is what timers count on; None: the system's, or `clock` where that is
        another than the system's. `files`, `flusher` and `threads` are for tests and the simulator; the lock file always is the system's
        own."""
        self.files = files or Files()
        self.default_config = default_config or LogConfig()
        self.clock = clock
        self.monotonic_ms = monotonic_ms or (system_monotonic_ms if clock is system_clock_ms else clock)
        self._wall_ahead_ms = clock() - self.monotonic_ms()
        self.budget = FdBudget(fd_budget or default_fd_budget())
        self.files.make_room = self.budget.make_room
        self.flusher = flusher or open_flusher(self.files)
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline_dirs: dict[str, KafkaError] = {}
        self.cordoned: Collection[str] = frozenset()
        self.on_dir_offline: Callable[[LogDir], None] | None = None
        self.dirs = [self._make_dir(os.path.abspath(os.fspath(path))) for path in log_dirs]
        self._locks = DirectoryLocks()
        self._random = randomness or random.Random()
        self._threads = threads
        self._producer_expiration_ms = producer_expiration_ms
        self._intervals = {
            "retention": retention_check_interval_ms,
            "checkpoint": checkpoint_interval_ms,
            "producers": producer_expiration_check_interval_ms,
            "flush": _FLUSH_CHECK_INTERVAL_MS,
            "directories": _DIRECTORY_CHECK_INTERVAL_MS,
        }
        if watermark_interval_ms is not None:
            self._intervals["watermarks"] = watermark_interval_ms
        self._due: dict[str, int] = {}
        self._sweeps: dict[str, deque[PartitionLog]] = {"retention": deque(), "producers": deque(), "flush": deque()}
        self._deleted_dirs: deque[tuple[int, LogDir, str]] = deque()
        self._maker: LogMaker | None = None
        self.recovery = RecoveryProgress(self.monotonic_ms)
        self._unclean: list[tuple[LogDir, list[PartitionLog]]] = []  # what `recover` has to load
        self._checkpoints = {log_dir.path: DirCheckpoints(log_dir) for log_dir in self.dirs}
        self._doubles: dict[TopicPartition, list[PartitionLog]] = {}
        """Logs that were found in a second directory: which one is the topic's, its id decides."""
        self.moves = LogMoves(self)
        self.late = LateRecovery()
        self._loop: Any = None
        self._ended = False

    def _make_dir(self, path: str) -> LogDir:
        log_dir = LogDir(path, self.files, self.budget, self.flusher, monotonic_ms=self.monotonic_ms)
        log_dir.on_offline = self._dir_went_offline
        log_dir.on_short = self._give_back_room
        log_dir.restate = self.restate
        return log_dir

    def _dir_went_offline(self, log_dir: LogDir) -> None:
        assert log_dir.offline is not None
        self.offline_dirs[log_dir.path] = log_dir.offline
        if self.on_dir_offline is not None:
            self.on_dir_offline(log_dir)

    def _give_back_room(self, log_dir: LogDir) -> int:
        return sum(log.give_back_room() for _, log in self._logs_in(log_dir))

    # -- start and stop

    def lock(self, metadata_dir: str | None = None) -> None:
        """Make the directories and lock them against other processes, that of the metadata too where it is none of them; `start` does it
        where it has not been done.

        Raises ConfigError when another process holds one, or none can be used.
        """
        if self._locks:
            return
        check_nesting([*self._checkpoints, *([] if metadata_dir is None else [metadata_dir])])
        if metadata_dir is not None and os.path.realpath(metadata_dir) not in map(os.path.realpath, self._checkpoints):
            self._locks.take_metadata(os.path.abspath(metadata_dir))
        unusable: list[tuple[LogDir, OSError]] = []
        for log_dir in self.dirs:
            try:
                self._locks.take(log_dir.path)
            except OSError as error:
                if is_shortage(error) and not is_full(error):
                    raise  # the logs in it are not known: a new one might be made in the place of an old one
                unusable.append((log_dir, error))
        if len(unusable) == len(self.dirs):
            raise ConfigError("; ".join(why_unusable("log.dirs", log_dir.path, error) for log_dir, error in unusable))
        for log_dir, problem in unusable:
            log_dir.fail("opening the log directory", problem.filename or log_dir.path, problem)

    def start(self, topic_configs: Mapping[str, LogConfig] | None = None) -> None:
        """`find` the logs and `recover` them."""
        self.find(topic_configs)
        self.recover()

    def find(self, topic_configs: Mapping[str, LogConfig] | None = None) -> None:
        """Lock the directories and find the logs in them; `recover` has to follow when the last stop was not clean.

        `topic_configs` are the settings of topics that do not have the default ones. A directory that cannot be read goes offline.
        Raises ConfigError when another process holds a directory, or none can be used, or one holds another broker's data directory where
        logs of topics are looked for; KafkaStorageError when all are offline; OSError for want of descriptors or memory.
        """
        now = self.monotonic_ms()
        self._due = {name: now + interval for name, interval in self._intervals.items()}
        self.lock()
        for log_dir in self.dirs:
            if log_dir.offline is not None:
                continue
            try:
                self._find_logs(log_dir, topic_configs or {})
            except OSError as error:
                if is_shortage(error):
                    raise  # the logs in it are not known: a new one might be made in the place of an old one
                log_dir.fail("opening the log directory", error.filename or log_dir.path, error)
        if len(self.offline_dirs) == len(self.dirs):
            raise next(iter(self.offline_dirs.values()))

    def _find_logs(self, log_dir: LogDir, topic_configs: Mapping[str, LogConfig]) -> None:
        names = self.files.listdir(log_dir.path)
        check_no_brokers(log_dir.path, names)
        clean = CLEAN_SHUTDOWN in names
        if clean:
            # From here on a crash is one: the marker goes before the first write, and stays away when power is lost.
            self.files.remove_if_exists(os.path.join(log_dir.path, CLEAN_SHUTDOWN))
            self.files.sync_directory(log_dir.path)
        checkpoints = self._checkpoints[log_dir.path]
        checkpoints.check_kinds()
        recovery_points = checkpoints.read(RECOVERY_POINT)
        watermarks = checkpoints.read(HIGH_WATERMARK)
        start_offsets = checkpoints.read(LOG_START)
        cleaned_offsets = checkpoints.read(CLEANED)
        found: dict[TopicPartition, PartitionLog] = {}
        copies: list[PartitionLog] = []
        for name in names:
            if not os.path.isdir(os.path.join(log_dir.path, name)):
                if LOG_NAME.match(name) or DELETED_NAME.match(name):
                    logger.warning("%s is no directory, and no log: it is left alone", os.path.join(log_dir.path, name))
                continue
            match = LOG_NAME.match(name)
            if match and match["topic"] != METADATA_TOPIC:
                key = match["topic"], int(match["partition"])
                found[key] = self.make_log(
                    log_dir,
                    key,
                    config=topic_configs.get(key[0], self.default_config),
                    recovery_point=recovery_points.get(key, 0),
                    log_start_offset=start_offsets.get(key, 0),
                    high_watermark=watermarks.get(key, 0),
                    cleaned_offset=cleaned_offsets.get(key, 0),
                    clean=clean,
                )
            elif match := FUTURE_NAME.match(name):
                key = match["topic"], int(match["partition"])
                copy = self.make_log(
                    log_dir,
                    key,
                    os.path.join(log_dir.path, name),
                    config=copied(topic_configs.get(key[0], self.default_config)),
                    recovery_point=recovery_points.get(key, 0),
                    log_start_offset=start_offsets.get(key, 0),
                    high_watermark=watermarks.get(key, 0),
                    clean=clean,
                )
                copies.append(copy)
                self.moves.found.setdefault(key, []).append(copy)
            elif DELETED_NAME.match(name):
                self._deleted_dirs.append((0, log_dir, os.path.join(log_dir.path, name)))
        for key, log in found.items():
            if key in self.logs:
                logger.warning(
                    "%s is there beside %s: the one with the topic's id counts", log.path, self.logs[key].path
                )
                self._doubles.setdefault(key, []).append(log)
            else:
                self.logs[key] = log
        if not clean and (found or copies):
            self._unclean.append((log_dir, [*found.values(), *copies]))
            self.recovery.logs += len(found) + len(copies)

    def recover(self) -> None:
        """Load, and so recover, the logs of directories that were not closed cleanly; `recovery` tells how far it is.

        Any thread, as long as nobody else uses the logs. Raises RecoveryStopped when `recovery` was told to stop: then what was found is
        as after a crash. Raises KafkaStorageError when no directory is left online.
        """
        unclean, self._unclean = self._unclean, []
        for log_dir, logs in unclean:
            log_dir.on_recovery_read = self.recovery.read
            try:
                self._recover(log_dir, logs)
            finally:
                log_dir.on_recovery_read = None
        if len(self.offline_dirs) == len(self.dirs):
            raise next(iter(self.offline_dirs.values()))

    def _recover(self, log_dir: LogDir, logs: list[PartitionLog]) -> None:
        started_ms = self.monotonic_ms()
        for log in logs:
            self.recovery.begin(log.name)
            with contextlib.suppress(KafkaError):
                # The directory is offline then, or the log has a failure: both say so.
                log.load()
            self.recovery.done += 1
        logs = [log for log in logs if log.loaded]
        if log_dir.offline is None:
            logger.warning(
                "%s had not been closed cleanly: %d logs recovered in %.2f s, %d bytes read, %d places cut",
                log_dir.path,
                len(logs),
                (self.monotonic_ms() - started_ms) / 1000,
                sum(log.recovery.bytes_read for log in logs),
                sum(len(log.recovery.cut) for log in logs),
            )

    def make_log(self, log_dir: LogDir, key: TopicPartition, path: str | None = None, **settings: Any) -> PartitionLog:
        """A log object in a directory (`path`: not under its own name); no file is touched."""
        topic, partition = key
        return PartitionLog(
            log_dir,
            path or os.path.join(log_dir.path, f"{topic}-{partition}"),
            topic,
            partition,
            clock=self.clock,
            producer_expiration_ms=self._producer_expiration_ms,
            randomness=self._random,
            **settings,
        )

    def attach(self, loop: Any) -> None:
        """Have an asyncio event loop drain the flusher when that has something to report."""
        if self.flusher.fileno() >= 0:
            self._loop = loop
            self._maker = LogMaker(loop, self._threads)
            self.late.attach(self.dirs, loop, self._threads)
            self.moves.attach(loop, self._threads)
            loop.add_reader(self.flusher.fileno(), self.flusher.drain)

    def close(self, broker_epoch: int = -1) -> bool:
        """Flush and close all logs, write the checkpoints and, in the directories that are whole, the clean-shutdown marker; whether all
        of them are: in the others the next start recovers."""
        marked = 0
        self._end_maker()
        self.flusher.wait()
        for log_dir in self.dirs:
            whole = self._finish_logs(log_dir)
            if log_dir.offline is not None:
                continue
            try:
                self.write_checkpoints(log_dir, wait=True)
                if not whole or any(log.unchecked for _, log in self._logs_in(log_dir)):
                    continue  # a log is not whole, so the next start has to recover
                marker = os.path.join(log_dir.path, CLEAN_SHUTDOWN)
                self.files.write_file(
                    marker, json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode(), sync=True
                )
                marked += 1
            except OSError as error:
                log_dir.refuse("closing the log directory", error.filename or log_dir.path, error)
        self.flusher.close()
        self._ended = True
        self.budget.close()
        self.release_locks()
        return marked == len(self.dirs)

    def abandon(self) -> None:
        """End the threads of a start that failed, and let others have the directories: what they find is what a crash leaves. Nothing
        happens when it was closed."""
        if not self._ended:
            self._ended = True
            self._end_maker()
            self.flusher.close()
            self.budget.close()
        self.release_locks()

    def _end_maker(self) -> None:
        self.moves.close()
        self.late.close()
        if self._loop is not None:
            self._loop.remove_reader(self.flusher.fileno())
            self._loop = None
        if self._maker is not None:
            self._maker.close()
            self._maker = None

    def _finish_logs(self, log_dir: LogDir) -> bool:
        """Finish the files of a directory's logs and sync them: each, or all at once where they are many. Whether all are whole."""
        logs = [log for _, log in self._logs_in(log_dir) if log.may_finish()]
        finished = {log for log in logs if log_dir.offline is None and log.finish()}
        unsettled = [log for log in logs if not log.durability.settled]
        if log_dir.offline is not None:
            return False
        if len(unsettled) <= _SYNCED_ONE_BY_ONE:
            for log in unsettled:
                log.flush()
                self.flusher.wait()
            return len(finished) == len(logs) and all(log.durability.settled for log in unsettled)
        try:
            self.files.sync_filesystem(self._locks.descriptor(log_dir.path))
        except OSError as error:
            log_dir.fail("syncing the file system", log_dir.path, error)
            return False
        for log in finished.intersection(unsettled):  # what others could not write, a recovery is to look for
            log.durability.all_on_disk()
        return len(finished) == len(logs)

    def release_locks(self) -> None:
        """Let others have the directories. Without a `close` before it, what they find is what a crash leaves."""
        self._locks.release()

    # -- partitions

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The log of a partition, None when there is none."""
        return self.logs.get((topic, partition))

    def create(
        self,
        topic: str,
        partition: int,
        topic_id: bytes | None = None,
        config: LogConfig | None = None,
        home: str | None = None,
    ) -> PartitionLog:
        """The log of a partition, made when there is none, in the online directory with the fewest logs that is not cordoned,
        or where it was to be.
        A move of it that a stop has interrupted goes on.

        `topic_id` has 16 bytes and is the controller's word: a log that belongs to another topic of that name, which was deleted, is
        set aside and a new one made. `home` is the directory in which the metadata has it, None where it does not say. Raises
        KafkaStorageError, also for a log that cannot be loaded.
        """
        key = topic, partition
        if key in self._doubles and topic_id is not None:
            self._choose_double(key, topic_id, home)
        while (log := self.logs.get(key) or self._take_double(key)) is not None:
            if self._adopt(log, topic_id):
                if log.failure is not None:
                    raise log.failure.with_traceback(None)
                if config is not None:
                    log.apply_config(config)
                self.moves.resume(log)
                return log
            self._set_aside(log, topic_id)
        promoted = self.moves.promote(key, topic_id, home)
        if promoted is not None:
            promoted.apply_config(config or self.default_config)
            self.logs[key] = promoted
            self.moves.resume(promoted)
            return promoted
        log_dir = self._choose_dir(key)
        self.make_way(key, log_dir)
        log = self.make_log(log_dir, key, config=config or self.default_config, topic_id=topic_id)
        log.unmade = True
        if self._maker is None:
            log.load()
        else:
            self._maker.add(log)
        self.logs[key] = log
        self.moves.resume(log)
        return log

    def delete(self, topic: str, partition: int) -> bool:
        """Take a log out of use whose topic is deleted: who waits for it gets an error, its directory is renamed at once and emptied later,
        in small steps. False when there is none. Raises KafkaStorageError."""
        self.moves.forget((topic, partition))
        log = self.logs.pop((topic, partition), None)
        if log is None:
            return False
        self.retire(log)
        return True

    def retire(self, log: PartitionLog) -> None:
        """Have the directory of a log, or of a copy, that is not used any more renamed now and emptied later. Raises KafkaStorageError."""
        target = self._out_of_use(log, "delete", "deleting a log")
        if target is not None:
            self._deleted_dirs.append((self.monotonic_ms() + log.config.file_delete_delay_ms, log.dir, target))

    # -- background work

    def tick(self) -> None:
        """Do what is due, in a bounded amount: flushes by time, retention, expiry of producers, checkpoints, deletions."""
        now, wall_ms = self.monotonic_ms(), self.clock()
        self._follow_wall_clock(wall_ms - now)
        self.flusher.drain()
        if not self._sweeps["flush"] and self._is_due("flush", now):
            self._sweeps["flush"] = deque(log for log in self.logs.values() if log.config.flush_ms != UNLIMITED)
        self._sweep("flush", _LOGS_PER_TICK * 10, lambda log: log.flush_if_due(), only_loaded=True)
        if not self._sweeps["retention"] and self._is_due("retention", now):
            self._sweeps["retention"] = deque(self.logs.values())
        self._sweep("retention", _LOGS_PER_TICK, lambda log: apply_retention(log, wall_ms))
        if not self._sweeps["producers"] and self._is_due("producers", now):
            self._sweeps["producers"] = deque(self.logs.values())
        self._sweep("producers", _LOGS_PER_TICK * 10, lambda log: log.producers.expire(wall_ms), only_loaded=True)
        if self._is_due("checkpoint", now):
            for log_dir in self.dirs:
                failures.attempt(f"writing the checkpoints of {log_dir.path}", partial(self._checkpoint, log_dir))
        elif self._is_due("watermarks", now):
            for log_dir in self.dirs:
                failures.attempt(
                    f"writing down high watermarks in {log_dir.path}", partial(self._write_watermarks, log_dir)
                )
        if self._is_due("directories", now):
            self._check_directories()
        self.moves.tick()  # before flushes of copies that somebody has removed are due
        for log_dir in self.dirs:
            log_dir.tick()
        self._delete_directories(now)

    def _check_directories(self) -> None:
        """Notice directories that are gone from their paths: what is written to open files would not be found by the next start."""
        for log_dir in self.dirs:
            if log_dir.offline is None:
                try:
                    self._locks.check(log_dir.path)
                except OSError as error:
                    log_dir.refuse("looking for the log directory", log_dir.path, error)

    def _follow_wall_clock(self, ahead_ms: int) -> None:
        """Notice that somebody has set the wall clock, or no producer that is at work would be remembered after a jump forward."""
        jump_ms = ahead_ms - self._wall_ahead_ms
        if abs(jump_ms) < _CLOCK_JUMP_MS:
            return
        self._wall_ahead_ms = ahead_ms
        logger.warning(
            "the system's clock was set by %+.0f s: retention by time follows it, timers do not", jump_ms / 1000
        )
        for log in self.logs.values():
            if log.loaded:
                log.producers.shift_times(jump_ms)

    def _is_due(self, name: str, now: int) -> bool:
        if now < self._due.get(name, now + 1):
            return False
        self._due[name] = now + self._intervals[name]
        return True

    def _sweep(
        self, name: str, limit: int, work: Callable[[PartitionLog], object], *, only_loaded: bool = False
    ) -> None:
        """Do a piece of work for the next logs of a round, which comes to the last one before another begins, however late that is."""
        queue = self._sweeps[name]
        for _ in range(min(limit, len(queue))):
            log = queue.popleft()
            if log.dir.offline is not None or self.logs.get((log.topic, log.partition)) is not log:
                continue
            if only_loaded and not log.loaded:
                continue
            try:
                work(log)
            except KafkaError:
                pass  # the directory is offline, or has told of a shortage
            except OSError as error:
                log.dir.refuse(f"the {name} round", error.filename or log.path, error)
            except Exception as error:
                failures.report(f"the {name} round of {log.name}", error)

    def checkpoint(self, log_dir: LogDir) -> None:
        """Have the checkpoints of a directory written, without waiting for the disk."""
        if log_dir.offline is None:
            try:
                self.write_checkpoints(log_dir, wait=False)
            except OSError as error:
                log_dir.refuse("writing checkpoints", error.filename or log_dir.path, error)

    def _checkpoint(self, log_dir: LogDir) -> None:
        self.checkpoint(log_dir)
        for log in self.logs.values():
            if log.dir is log_dir and log.loaded and log.config.synchronous and log.recovery_point < log.log_end_offset:
                log.flush()  # what is acknowledged is on disk already; this moves the recovery point

    def _write_watermarks(self, log_dir: LogDir) -> None:
        if log_dir.offline is None:
            try:
                self._checkpoints[log_dir.path].write_later(HIGH_WATERMARK, watermarks_of(self._logs_in(log_dir)))
            except OSError as error:
                log_dir.refuse("writing down high watermarks", error.filename or log_dir.path, error)

    def write_checkpoints(self, log_dir: LogDir, *, wait: bool, names: Collection[str] = NAMES) -> None:
        """Write checkpoints of a directory, and `wait` for the disk or leave that to the flusher. Raises OSError."""
        contents = offsets_of(self._logs_in(log_dir))
        if (cleaned := cleaned_offsets_of(self._logs_in(log_dir), log_dir.path)) is not None:
            contents[CLEANED] = cleaned
        contents = {name: offsets for name, offsets in contents.items() if name in names}
        checkpoints = self._checkpoints[log_dir.path]
        if wait:
            checkpoints.write_now(contents)
            return
        for name, offsets in contents.items():
            checkpoints.write_later(name, offsets)

    def _logs_in(self, log_dir: LogDir) -> Iterator[tuple[TopicPartition, PartitionLog]]:
        """The logs that have files in a directory: those of a deletion that is not on disk yet may be needed again."""
        for key, log in self.logs.items():
            if log.dir is log_dir:
                yield key, log
        for key, others in self._doubles.items():
            yield from ((key, log) for log in others if log.dir is log_dir)
        yield from ((key, log) for key, log in self.moves.copies() if log.dir is log_dir)

    def write_cleaned_offsets(self, log_dir: LogDir) -> None:
        """Have it written down how far the logs of a directory are compacted, where any is. Raises OSError."""
        offsets = cleaned_offsets_of(self._logs_in(log_dir), log_dir.path)
        if offsets is not None:
            self._checkpoints[log_dir.path].write_later(CLEANED, offsets)

    def _delete_directories(self, now: int) -> None:
        """Have the next renamed directories of deleted logs removed, those that are due."""
        for _ in range(min(_LOGS_PER_TICK, len(self._deleted_dirs))):
            at_ms, log_dir, path = self._deleted_dirs.popleft()
            if at_ms > now:
                self._deleted_dirs.append((at_ms, log_dir, path))
                continue
            try:
                log_dir.remove_directory(path)
            except OSError as error:
                log_dir.refuse("deleting a log's directory", path, error)
                if log_dir.offline is None:
                    self._deleted_dirs.append((at_ms, log_dir, path))
