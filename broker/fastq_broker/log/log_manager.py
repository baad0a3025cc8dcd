"""All logs of a broker: the log directories, start and clean stop, checkpoints, and the background work in small steps.

Rules
- `start()` lists the directories and reads the checkpoints; logs are loaded when they are first touched. Only after an unclean stop
  are they all loaded, and so recovered, at once.
- `tick()` does a bounded amount of work per call, so that the event loop can call it often.
- A directory that fails goes offline with its logs; the others go on.
- Nothing but Kafka's own files is kept. Source: LogManager.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from fastq.errors import ErrorCode, KafkaError, error_for_code

from .checkpoints import (
    CLEANED,
    HIGH_WATERMARK,
    LOG_START,
    PARTITION_METADATA,
    RECOVERY_POINT,
    CorruptCheckpoint,
    TopicPartition,
    format_offsets,
    format_partition_metadata,
    read_offsets,
)
from .config import UNLIMITED, LogConfig
from .files import READ_WRITE_CREATE, FdBudget, FileHandle, Files
from .flusher import Flusher, open_flusher
from .log_dir import LogDir
from .partition_log import PartitionLog
from .recovery import topic_id_on_disk
from .retention import apply_retention

try:
    import fcntl
except ImportError:  # Windows has no flock; nor does the broker run there
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
METADATA_TOPIC: Final = "__cluster_metadata"
"""Its log is the controller's, which opens it before any other."""
_LOG_NAME = re.compile(r"^(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)$")
_DELETED_NAME = re.compile(r"^[a-zA-Z0-9._-]+\.[0-9a-f]{32}-delete$")
_LOGS_PER_TICK: Final = 20
_SYNCED_ONE_BY_ONE: Final = 32
_FLUSH_CHECK_INTERVAL_MS: Final = 500


def system_clock_ms() -> int:
    """The time in ms since the epoch."""
    return time.time_ns() // 1_000_000


def default_fd_budget() -> int:
    """Half of the descriptors that the process may open, at most 50,000: the other half is for connections."""
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError):
        soft = 1024
    return max(16, min(soft // 2, 50_000))


class LogManager:
    """The logs of all partitions on this broker. Event-loop thread only.

    `logs` maps (topic, partition) to its log. `offline_dirs` maps the paths of failed directories to their errors.
    """

    def __init__(
        self,
        log_dirs: Sequence[str | os.PathLike[str]],
        *,
        default_config: LogConfig | None = None,
        clock: Callable[[], int] = system_clock_ms,
        files: Files | None = None,
        flusher: Flusher | None = None,
        fd_budget: int | None = None,
        retention_check_interval_ms: int = 300_000,
        checkpoint_interval_ms: int = 60_000,
        producer_expiration_ms: int = 86_400_000,
        producer_expiration_check_interval_ms: int = 600_000,
        randomness: random.Random | None = None,
    ) -> None:
        """Times in ms. `files` and `flusher` are for tests and the simulator; the lock file always is the system's own."""
        self.files = files or Files()
        self.default_config = default_config or LogConfig()
        self.clock = clock
        self.budget = FdBudget(fd_budget or default_fd_budget())
        self.flusher = flusher or open_flusher(self.files)
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline_dirs: dict[str, KafkaError] = {}
        self.on_dir_offline: Callable[[LogDir], None] | None = None
        self.dirs = [self._make_dir(os.path.abspath(os.fspath(path))) for path in log_dirs]
        self._locks: dict[
            str, FileHandle
        ] = {}  # open from the start on, so that a sync by them hears of all errors since
        self._random = randomness or random.Random()
        self._producer_expiration_ms = producer_expiration_ms
        self._intervals = {
            "retention": retention_check_interval_ms,
            "checkpoint": checkpoint_interval_ms,
            "producers": producer_expiration_check_interval_ms,
            "flush": _FLUSH_CHECK_INTERVAL_MS,
        }
        self._due: dict[str, int] = {}
        self._sweeps: dict[str, deque[PartitionLog]] = {"retention": deque(), "producers": deque(), "flush": deque()}
        self._deleted_dirs: deque[tuple[int, LogDir, str]] = deque()
        self._unmade: deque[PartitionLog] = deque()  # new logs whose files the maker's thread has to make
        self._maker: ThreadPoolExecutor | None = None
        self._replacing: set[str] = set()  # checkpoints whose new content is being synced
        self._loop: Any = None

    def _make_dir(self, path: str) -> LogDir:
        log_dir = LogDir(path, self.files, self.budget, self.flusher)
        log_dir.on_offline = self._dir_went_offline
        return log_dir

    def _dir_went_offline(self, log_dir: LogDir) -> None:
        assert log_dir.offline is not None
        self.offline_dirs[log_dir.path] = log_dir.offline
        if self.on_dir_offline is not None:
            self.on_dir_offline(log_dir)

    # -- start and stop

    def lock(self) -> None:
        """Make the directories and lock them against other processes; `start` does it where it has not been done.

        Raises KafkaStorageError when another process holds one, or none can be used.
        """
        if self._locks:
            return
        for log_dir in self.dirs:
            try:
                os.makedirs(log_dir.path, exist_ok=True)
                self._lock(log_dir)
            except OSError as error:
                log_dir.fail("opening the log directory", error.filename or log_dir.path, error)
        if len(self.offline_dirs) == len(self.dirs):
            raise next(iter(self.offline_dirs.values()))

    def start(self, topic_configs: Mapping[str, LogConfig] | None = None) -> None:
        """Lock the directories and find the logs in them; recover them when the last stop was not clean.

        `topic_configs` are the settings of topics that do not have the default ones. A directory that cannot be read goes offline.
        Raises KafkaStorageError when another process holds a directory, or all are offline.
        """
        now = self.clock()
        self._due = {name: now + interval for name, interval in self._intervals.items()}
        self.lock()
        for log_dir in self.dirs:
            if log_dir.offline is not None:
                continue
            try:
                self._find_logs(log_dir, topic_configs or {})
            except OSError as error:
                log_dir.fail("opening the log directory", error.filename or log_dir.path, error)
        if len(self.offline_dirs) == len(self.dirs):
            raise next(iter(self.offline_dirs.values()))

    def _lock(self, log_dir: LogDir) -> None:
        path = os.path.join(log_dir.path, LOCK)
        handle = FileHandle(Files(), path, READ_WRITE_CREATE)
        if fcntl is not None:
            try:
                fcntl.flock(handle.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise error_for_code(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"another process holds the lock {path}: a directory serves one broker; stop that one or choose another directory",
                ) from None
        self._locks[log_dir.path] = handle

    def _find_logs(self, log_dir: LogDir, topic_configs: Mapping[str, LogConfig]) -> None:
        names = self.files.listdir(log_dir.path)
        clean = CLEAN_SHUTDOWN in names
        if clean:
            # From here on a crash is one: the marker goes before the first write.
            self.files.unlink(os.path.join(log_dir.path, CLEAN_SHUTDOWN))
        recovery_points = self._read_checkpoint(log_dir, RECOVERY_POINT)
        start_offsets = self._read_checkpoint(log_dir, LOG_START)
        cleaned_offsets = self._read_checkpoint(log_dir, CLEANED)
        found = []
        for name in names:
            match = _LOG_NAME.match(name)
            if match and match["topic"] != METADATA_TOPIC:
                key = match["topic"], int(match["partition"])
                if key in self.logs:
                    logger.error("%s is in two log directories; %s is ignored", name, log_dir.path)
                    continue
                log = self._make_log(
                    log_dir,
                    key,
                    config=topic_configs.get(key[0], self.default_config),
                    recovery_point=recovery_points.get(key, 0),
                    log_start_offset=start_offsets.get(key, 0),
                    cleaned_offset=cleaned_offsets.get(key, 0),
                    clean=clean,
                )
                self.logs[key] = log
                found.append(log)
            elif _DELETED_NAME.match(name):
                self._deleted_dirs.append((0, log_dir, os.path.join(log_dir.path, name)))
        if not clean and found:
            self._recover(log_dir, found)

    def _read_checkpoint(self, log_dir: LogDir, name: str) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self.files, log_dir.path, name)
        except CorruptCheckpoint as error:
            logger.error("%s: recovery, or compaction, starts at the begin of every log", error)
            return {}

    def _recover(self, log_dir: LogDir, logs: list[PartitionLog]) -> None:
        started = time.monotonic()
        for log in logs:
            with contextlib.suppress(
                KafkaError
            ):  # the directory is offline then, or the log has a failure: both say so
                log.load()
        logs = [log for log in logs if log.loaded]
        if log_dir.offline is None:
            logger.warning(
                "%s had not been closed cleanly: %d logs recovered in %.2f s, %d bytes read, %d places cut",
                log_dir.path,
                len(logs),
                time.monotonic() - started,
                sum(log.recovery.bytes_read for log in logs),
                sum(len(log.recovery.cut) for log in logs),
            )

    def _make_log(self, log_dir: LogDir, key: TopicPartition, **settings: Any) -> PartitionLog:
        topic, partition = key
        return PartitionLog(
            log_dir,
            os.path.join(log_dir.path, f"{topic}-{partition}"),
            topic,
            partition,
            clock=self.clock,
            producer_expiration_ms=self._producer_expiration_ms,
            randomness=self._random,
            **settings,
        )

    def attach(self, loop: Any) -> None:
        """Have an asyncio event loop call `drain_flushes` when the flusher has something to report."""
        if self.flusher.fileno() >= 0:
            self._loop = loop
            loop.add_reader(self.flusher.fileno(), self.flusher.drain)

    def drain_flushes(self) -> None:
        """Run the callbacks of flushes that have ended."""
        self.flusher.drain()

    def close(self, broker_epoch: int = -1) -> None:
        """Flush and close all logs, write the checkpoints and, in the directories that are whole, the clean-shutdown marker."""
        if self._loop is not None:
            self._loop.remove_reader(self.flusher.fileno())
            self._loop = None
        if self._maker is not None:
            self._unmade.clear()  # the next start makes what has no directory by now
            self._maker.shutdown()
        self.flusher.wait()
        for log_dir in self.dirs:
            self._finish_logs(log_dir)
            if log_dir.offline is not None:
                continue
            try:
                self.write_checkpoints(log_dir, wait=True)
                if any(log.dir is log_dir and log.failure is not None for log in self.logs.values()):
                    continue  # that log is not whole, so the next start has to recover as this one did
                marker = os.path.join(log_dir.path, CLEAN_SHUTDOWN)
                self.files.write_file(
                    marker, json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode(), sync=True
                )
            except OSError as error:
                log_dir.fail("closing the log directory", error.filename or log_dir.path, error)
        self.flusher.close()
        self.release_locks()

    def _finish_logs(self, log_dir: LogDir) -> None:
        """Finish the files of a directory's logs and sync them: each, or all at once where they are many."""
        logs = [log for log in self.logs.values() if log.dir is log_dir and log.loaded]
        for log in logs:
            if log_dir.offline is None:
                log.finish()
        unsettled = [log for log in logs if not log.durability.settled]
        if log_dir.offline is not None:
            return
        if len(unsettled) <= _SYNCED_ONE_BY_ONE:
            for log in unsettled:
                log.flush()
            self.flusher.wait()
            return
        try:
            self.files.sync_filesystem(self._locks[log_dir.path].fd)
        except OSError as error:
            log_dir.fail("syncing the file system", log_dir.path, error)
            return
        for log in unsettled:
            log.durability.all_on_disk()

    def release_locks(self) -> None:
        """Let others have the directories. Without a `close` before it, what they find is what a crash leaves."""
        self._locks.clear()

    # -- partitions

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The log of a partition, None when there is none."""
        return self.logs.get((topic, partition))

    def create(
        self, topic: str, partition: int, topic_id: bytes | None = None, config: LogConfig | None = None
    ) -> PartitionLog:
        """The log of a partition, made when there is none, in the online directory with the fewest logs.

        `topic_id` has 16 bytes and is the controller's word: a log that belongs to another topic of that name, which was deleted, is
        set aside and a new one made. Raises KafkaStorageError, also for a log that cannot be loaded.
        """
        key = topic, partition
        log = self.logs.get(key)
        if log is not None:
            if self._adopt(log, topic_id):
                if log.failure is not None:
                    raise log.failure.with_traceback(None)
                if config is not None:
                    log.apply_config(config)
                return log
            self._set_aside(log, topic_id)
        log_dir = self._choose_dir()
        log = self._make_log(log_dir, key, config=config or self.default_config, topic_id=topic_id)
        log.unmade = True
        if self._loop is None:
            log.load()
        else:
            self._make_later(log)
        self.logs[key] = log
        return log

    def _make_later(self, log: PartitionLog) -> None:
        """Have a thread make the files of a new log, once the change that brings it is through: hundreds come at once, and each file
        takes the system a third of a millisecond. Who touches the log before that makes them itself."""
        self._unmade.append(log)
        if len(self._unmade) == 1:
            self._loop.call_soon(self._begin_making)

    def _begin_making(self) -> None:
        if self._maker is None:
            self._maker = ThreadPoolExecutor(1, thread_name_prefix="fastq-make-logs")
        self._maker.submit(self._make_all)

    def _make_all(self) -> None:
        """Runs in the maker's thread."""
        while True:
            try:
                self._unmade.popleft().make()
            except IndexError:
                return
            except OSError:
                continue  # it fails again when the log is first touched, which takes the directory offline and says so

    def _adopt(self, log: PartitionLog, topic_id: bytes | None) -> bool:
        """Whether an existing log is that of the controller's topic: an id on disk decides, before any record is served or appended.

        For a log that is not loaded this reads one file of some 50 bytes. Where that is missing or damaged the controller's id is taken,
        and written down. Raises KafkaStorageError.
        """
        if topic_id is None:
            return True
        try:
            if log.topic_id is None and not log.loaded:
                log.topic_id = topic_id_on_disk(self.files, log.path)
            if log.topic_id is None:
                log.topic_id = topic_id
                if log.dir.offline is None:
                    self._write_topic_id(log, topic_id, sync=True)
                    logger.warning("%s had no readable topic id: it is %s now", log.path, topic_id.hex())
        except OSError as error:
            raise log.dir.fail("reading or writing a log's topic id", error.filename or log.path, error) from error
        return log.topic_id == topic_id

    def _write_topic_id(self, log: PartitionLog, topic_id: bytes, *, sync: bool) -> None:
        path = os.path.join(log.path, PARTITION_METADATA)
        self.files.write_file(path, format_partition_metadata(topic_id), sync=sync)

    def _set_aside(self, log: PartitionLog, topic_id: bytes | None) -> None:
        """Rename the directory of a log whose topic is gone to `-stray`, as Kafka does; its records stay for the operator.

        Raises KafkaStorageError.
        """
        if log.dir.offline is not None:
            raise log.dir.offline.with_traceback(None)
        target = self._out_of_use(log, "stray", "setting a stray log aside")
        logger.warning(
            "%s belongs to topic id %s, which is not the one of topic %s now (%s): it was left from a deleted topic and is kept as %s; "
            "delete that directory when its records are not needed",
            log.path,
            log.topic_id and log.topic_id.hex(),
            log.topic,
            topic_id and topic_id.hex(),
            target,
        )

    def _out_of_use(self, log: PartitionLog, suffix: str, action: str) -> str | None:
        """Forget a log and rename its directory to `<topic>-<partition>.<uuid>-<suffix>`; answers that path, or None for a log that
        has no directory yet. Raises KafkaStorageError."""
        self.logs.pop((log.topic, log.partition))
        unique = uuid.UUID(int=self._random.getrandbits(128)).hex
        target = os.path.join(log.dir.path, f"{log.topic[:200]}-{log.partition}.{unique}-{suffix}")
        log.abandon()
        if log.forget_unmade():
            return None
        try:
            self.files.rename(log.path, target)
            if log.cleaned_offset:  # or a later log of that name would be taken for compacted
                self.write_cleaned_offsets(log.dir)
        except OSError as error:
            raise log.dir.fail(action, log.path, error) from error
        return target

    def _choose_dir(self) -> LogDir:
        online = [log_dir for log_dir in self.dirs if log_dir.offline is None]
        if not online:
            raise next(iter(self.offline_dirs.values()))
        if len(online) == 1:
            return online[0]
        counts = {id(log_dir): 0 for log_dir in online}
        for log in self.logs.values():
            if id(log.dir) in counts:
                counts[id(log.dir)] += 1
        return min(online, key=lambda log_dir: counts[id(log_dir)])

    def delete(self, topic: str, partition: int) -> bool:
        """Delete a log: its directory is renamed at once and emptied later, in small steps. False when there is none.

        Raises KafkaStorageError.
        """
        log = self.logs.get((topic, partition))
        if log is None:
            return False
        config = log.config
        target = self._out_of_use(log, "delete", "deleting a log")
        if target is not None:
            self._deleted_dirs.append((self.clock() + config.file_delete_delay_ms, log.dir, target))
        return True

    def update_config(self, topic: str, config: LogConfig) -> None:
        """Use other settings for all logs of a topic."""
        for (name, _), log in self.logs.items():
            if name == topic:
                log.apply_config(config)

    # -- background work

    def tick(self, now_ms: int | None = None) -> None:
        """Do what is due, in a bounded amount: flushes by time, retention, expiry of producers, checkpoints, deletions."""
        now = self.clock() if now_ms is None else now_ms
        self.flusher.drain()
        if self._is_due("flush", now):
            self._sweeps["flush"] = deque(log for log in self.logs.values() if log.config.flush_ms != UNLIMITED)
        self._sweep("flush", now, _LOGS_PER_TICK * 10, lambda log: log.flush_if_due(now), only_loaded=True)
        if self._is_due("retention", now):
            self._sweeps["retention"] = deque(self.logs.values())
        self._sweep("retention", now, _LOGS_PER_TICK, lambda log: apply_retention(log, now))
        if self._is_due("producers", now):
            self._sweeps["producers"] = deque(self.logs.values())
        self._sweep("producers", now, _LOGS_PER_TICK * 10, lambda log: log.producers.expire(now), only_loaded=True)
        if self._is_due("checkpoint", now):
            for log_dir in self.dirs:
                self._checkpoint(log_dir)
        for log_dir in self.dirs:
            log_dir.tick(now)
        self._delete_directories(now)

    def _is_due(self, name: str, now: int) -> bool:
        if now < self._due.get(name, now + 1):
            return False
        self._due[name] = now + self._intervals[name]
        return True

    def _sweep(
        self, name: str, now: int, limit: int, work: Callable[[PartitionLog], object], *, only_loaded: bool = False
    ) -> None:
        """Do a piece of work for the next logs of a round over all of them."""
        queue = self._sweeps[name]
        for _ in range(min(limit, len(queue))):
            log = queue.popleft()
            if log.dir.offline is not None or self.logs.get((log.topic, log.partition)) is not log:
                continue
            if only_loaded and not log.loaded:
                continue
            with contextlib.suppress(KafkaError):  # the directory is offline then, and says so
                work(log)

    def _checkpoint(self, log_dir: LogDir) -> None:
        if log_dir.offline is None:
            try:
                self.write_checkpoints(log_dir, wait=False)
            except OSError as error:
                log_dir.fail("writing checkpoints", error.filename or log_dir.path, error)
        for log in self.logs.values():
            if log.dir is log_dir and log.loaded and log.config.synchronous and log.recovery_point < log.log_end_offset:
                log.flush()  # what is acknowledged is on disk already; this moves the recovery point

    def write_checkpoints(self, log_dir: LogDir, *, wait: bool) -> None:
        """Write recovery points, high watermarks and log start offsets of a directory, and `wait` for the disk or leave that to
        the flusher. Raises OSError."""
        points: dict[TopicPartition, int] = {}
        watermarks: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        for key, log in self.logs.items():
            if log.dir is not log_dir:
                continue
            points[key] = log.recovery_point
            if log.loaded:
                watermarks[key] = log.high_watermark
                if log.log_start_offset > log.segments[0].base_offset:
                    starts[key] = log.log_start_offset
            else:
                watermarks[key] = log.recovery_point
                if log.checkpointed_start_offset:
                    starts[key] = log.checkpointed_start_offset
        for name, offsets in ((RECOVERY_POINT, points), (HIGH_WATERMARK, watermarks), (LOG_START, starts)):
            self._write_offsets(log_dir, name, offsets, wait=wait)
        self.write_cleaned_offsets(log_dir, wait=wait)

    def write_cleaned_offsets(self, log_dir: LogDir, *, wait: bool = False) -> None:
        """Write down how far the logs of a directory are compacted, where any is; waits as `write_checkpoints`. Raises OSError."""
        offsets = {
            key: log.cleaned_offset for key, log in self.logs.items() if log.dir is log_dir and log.cleaned_offset
        }
        if offsets or os.path.exists(os.path.join(log_dir.path, CLEANED)):
            self._write_offsets(log_dir, CLEANED, offsets, wait=wait)

    def _write_offsets(self, log_dir: LogDir, name: str, offsets: Mapping[TopicPartition, int], *, wait: bool) -> None:
        path = os.path.join(log_dir.path, name)
        if wait:
            self.files.write_file(path, format_offsets(offsets), sync=True)
        else:
            self._replace_later(log_dir, path, format_offsets(offsets))

    def _replace_later(self, log_dir: LogDir, path: str, data: bytes) -> None:
        """Replace a file once its new content has been synced, without waiting for the disk. Raises OSError."""
        temporary = path + ".tmp"
        if temporary in self._replacing:
            return  # a disk that slow gets the next one
        handle = FileHandle(self.files, temporary, READ_WRITE_CREATE)
        self.files.truncate(handle.fd, 0)
        self.files.write_all(handle.fd, data, 0)
        self._replacing.add(temporary)

        def synced(error: OSError | None) -> None:
            self._replacing.discard(temporary)
            try:
                if error is not None:
                    raise error
                self.files.rename(temporary, path)
            except OSError as failure:
                log_dir.fail("writing a checkpoint", path, failure)

        self.flusher.submit([handle], synced)

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
                log_dir.fail("deleting a log's directory", path, error)
