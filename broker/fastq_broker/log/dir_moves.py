"""Moves of logs to other directories of their node: a copy grows in the other directory, and takes the log's place.

    begin -> COPYING -> FLUSHING -> READY -> the copy is the log        given up: the copy goes, the log stays as it is

Rules
- The copy is a log in `<topic>-<partition>.<uuid>-future`, which follows its log as another node's would: piece by piece, with what is cut
  off there, and with its start. A thread reads the pieces, and waits for the disk that takes them; the loop appends them.
- The log is not compacted meanwhile: the copy would have what compaction has taken.
- The copy takes its place in one turn of the loop, once it is at the log's end, was synced up to some offset before, and the metadata has
  the replica in its directory. First the copy gets the log's name, then the log's directory goes. So at any moment a log of that name, or a
  copy that the metadata knows, is on disk: `promote` takes that for the log, and where both have the name the one that the metadata knows
  is taken.
- A copy that is found at the start goes on from where it agrees with its log; that of a compacted log begins again.
- A directory that fails gives its moves up; nothing but them is lost. A copy that somebody has removed costs that move, which begins anew.
Source: ReplicaAlterLogDirsThread, LogManager.replaceCurrentWithFutureLog; KIP-113, KIP-858.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastq._native.records import read_header
from fastq.errors import CorruptMessage, ErrorCode, InvalidRecord, KafkaError, error_for_code

from .byte_rate import ByteRate
from .checkpoints import TopicPartition
from .config import copied
from .failures import failures
from .files import FileHandle, is_full, is_shortage, passes
from .log_dir import LogDir
from .partition_log import PartitionLog
from .scan import CorruptSegment, LogSlice
from .tell_loop import tell_loop

if TYPE_CHECKING:
    from .log_manager import LogManager

logger = logging.getLogger(__name__)

FUTURE_NAME = re.compile(
    r"^(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,8})\.(?P<unique>[0-9a-f]{32})-future\Z"
)
PIECE_BYTES: Final = 256 << 10
"""What is appended in one turn of the loop; a batch that is larger goes alone."""
WRITE_BACK_BYTES: Final = 8 << 20
"""So much of a copy may wait to be written to its disk, while as much is written: else appends of others would have to wait for it."""
NAME_BYTES_MAX: Final = 255
PREFERRED_MAX: Final = 100_000


class Phase(Enum):
    """How far a move is."""

    COPYING = "copying"
    FLUSHING = "flushing"
    READY = "ready"


class LogMove:
    """One log on its way. `future` is the copy; `busy`: a thread has a piece of it in hand; `held`: there was no room for one."""

    __slots__ = ("_writing", "_written", "busy", "flush_to", "future", "held", "log", "phase")

    def __init__(self, log: PartitionLog, future: PartitionLog) -> None:
        self.log = log
        self.future = future
        self.phase = Phase.COPYING
        self.busy = self.held = False
        self.flush_to = 0
        self._written: list[tuple[FileHandle, int, int]] = []
        self._writing: list[tuple[FileHandle, int, int]] = []

    @property
    def lag(self) -> int:
        """Offsets that the copy does not have yet."""
        return self.log.log_end_offset - self.future.log_end_offset

    def note_written(self, size: int) -> None:
        """The copy has grown by so many bytes."""
        file = self.future.active_segment.log
        self._written.append((file.handle(), max(0, file.size - size), min(size, file.size)))

    def take_written(self) -> Callable[[], None] | None:
        """What a thread does so that little waits to be written to the disk; None while there is too little of it."""
        if sum(size for _, _, size in self._written) < WRITE_BACK_BYTES:
            return None
        begin, self._written = self._written, []
        wait, self._writing = self._writing, begin
        files = self.future.files

        def write_back() -> None:
            for handle, position, size in begin:
                files.write_range(handle.fd, position, size)
            for handle, position, size in wait:
                files.write_range(handle.fd, position, size, wait=True)

        return write_back


class LogMoves:
    """The moves of a LogManager's logs. Event-loop thread only.

    Invariants: `moves` holds, by its log, each move under way, and only their logs have a `future`; at most `threads` pieces are in hand.
    `found` are copies on disk whose logs nobody has asked for yet, or that cannot be gone on with, now or ever.

    `on_changed(log)` hears when a log's `home` is another; `may_swap(log, directory)` says whether the metadata has it there.
    """

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self.moves: dict[PartitionLog, LogMove] = {}
        self.found: dict[TopicPartition, list[PartitionLog]] = {}
        self.preferred: dict[TopicPartition, LogDir] = {}
        """Where logs that are still to come are to be made."""
        self.rate = ByteRate()
        self.threads: int | None = None
        """How many pieces may be in hand; None: one a directory."""
        self.on_changed: Callable[[PartitionLog], object] = lambda log: None
        self.may_swap: Callable[[PartitionLog, LogDir], bool] = lambda log, log_dir: True
        self._queue: deque[LogMove] = deque()
        self._in_hand = 0
        self._loop: Any = None
        self._begin_threads: Callable[[int, str], Executor] = ThreadPoolExecutor
        self._pool: Executor | None = None
        self._timer: Any = None
        self._closed = False

    def attach(self, loop: Any, begin_threads: Callable[[int, str], Executor]) -> None:
        """Use an asyncio event loop and threads, which `begin_threads(count, name)` begins; without, `tick` does a piece of each move."""
        self._loop = loop
        self._begin_threads = begin_threads

    def close(self) -> None:
        """Copy no more; what has been copied is found at the next start. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._loop = self._pool = None

    # -- what a request asks for

    def begin(self, log: PartitionLog, log_dir: LogDir) -> None:
        """Move a log to another directory of this node; to its own: stop a move that is under way.

        Raises InvalidTopicException for a name that is too long, KafkaStorageError.
        """
        move = self.moves.get(log)
        if move is not None:
            if move.future.dir is log_dir:
                return
            self._give_up(move, f"it is to be in {log_dir.path} now", logging.INFO)
        if log.dir is log_dir:
            self._drop_found((log.topic, log.partition))  # one that waits to go on is stopped too
            return
        name = f"{log.name}.{self._manager.unique()}-future"
        if len(name) > NAME_BYTES_MAX:
            raise error_for_code(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is too long for the name of a directory")
        for offline in self._manager.offline_dirs.values():  # a copy of this log may lie there
            raise offline.with_traceback(None)
        log.load()
        key = log.topic, log.partition
        self._manager.make_way(key, log_dir)
        future = self._manager.make_log(
            log_dir,
            key,
            os.path.join(log_dir.path, name),
            config=copied(log.config),
            topic_id=log.topic_id,
            log_start_offset=log.log_start_offset,
        )
        future.unmade = True
        future.share(True)
        future.load()
        logger.info("%s: moving from %s to %s, %d bytes", log.name, log.dir.path, log_dir.path, log.size_bytes)
        self._start(log, future)

    def prefer(self, key: TopicPartition, log_dir: LogDir) -> None:
        """Have a log that is not here yet made in this directory, when it comes."""
        self.preferred.pop(key, None)
        self.preferred[key] = log_dir
        if len(self.preferred) > PREFERRED_MAX:
            del self.preferred[next(iter(self.preferred))]

    def home(self, log: PartitionLog) -> LogDir:
        """The directory in which the metadata is to have a log."""
        move = self.moves.get(log)
        return move.future.dir if move is not None and move.phase is Phase.READY else log.dir

    def stop(self, log: PartitionLog, reason: str) -> None:
        """Give a log's move up, if it has one."""
        move = self.moves.get(log)
        if move is not None:
            self._give_up(move, reason, logging.INFO)

    def follow_start(self, log: PartitionLog) -> None:
        """Records were deleted: a log's copy begins where the log does now, at once."""
        move = self.moves.get(log)
        if move is not None:
            with contextlib.suppress(KafkaError):  # the look at it sees what has failed
                self._follow_start(move)

    def forget(self, key: TopicPartition) -> None:
        """A partition is deleted, or placed on other nodes: what is left here of a move goes."""
        self.preferred.pop(key, None)
        self._drop_found(key)

    def _drop_found(self, key: TopicPartition) -> None:
        for future in self.found.pop(key, ()):
            failures.attempt(f"deleting {future.path}", partial(self._manager.retire, future))

    def copies(self) -> Iterator[tuple[TopicPartition, PartitionLog]]:
        """All that lie on disk."""
        for log, move in self.moves.items():
            yield (log.topic, log.partition), move.future
        for key, found in self.found.items():
            yield from ((key, future) for future in found)

    # -- what the start finds

    def resume(self, log: PartitionLog) -> None:
        """Go on with the move of a log whose copy was found. What is wrong with a copy is said and costs that alone."""
        key, again = (log.topic, log.partition), False
        for future in self.found.pop(key, ()):
            if _is_gone(future):
                logger.warning(
                    "%s, a copy of %s, was removed by somebody: that move is given up", future.path, log.name
                )
                continue
            try:
                belongs = future.dir is not log.dir and self._manager.id_of(future) == log.topic_id
                if not belongs or log in self.moves:
                    logger.warning("%s is no copy of %s, or one too many: it is deleted", future.path, log.path)
                    self._manager.retire(future)
                    continue
                log.load()
                future.share(True)
                future.load()
                self._agree(log, future)
            except (KafkaError, OSError) as error:
                # It stays known: what nobody has checked must not be called whole by a clean stop.
                self.found.setdefault(key, []).append(future)
                if _passes(error) and (log.dir.offline or future.dir.offline) is None:
                    again = True
                else:
                    logger.warning("the move of %s to %s does not go on: %s", log.name, future.dir.path, error)
                continue
            logger.info(
                "%s: moving from %s to %s goes on at offset %d of %d",
                log.name,
                log.dir.path,
                future.dir.path,
                future.log_end_offset,
                log.log_end_offset,
            )
            self._start(log, future)
        if again:
            log.dir.soon(partial(self._resume_again, log))

    def _resume_again(self, log: PartitionLog) -> None:
        if self._manager.get(log.topic, log.partition) is log:
            self.resume(log)

    @staticmethod
    def _agree(log: PartitionLog, future: PartitionLog) -> None:
        """Cut off what a copy has that its log has not. Raises KafkaStorageError."""
        if log.config.compacted:  # it may have been compacted meanwhile
            future.truncate_fully_and_start_at(log.log_start_offset)
            return
        end = min(log.log_end_offset, future.log_end_offset)
        if future.gap_offset is not None:
            end = min(end, future.gap_offset)
        for epoch, start in reversed(future.epochs.entries()):
            known, known_end = log.epoch_end_offset(epoch)
            if known == epoch:
                end = min(end, known_end)
                break
            end = min(end, start)
        future.truncate_to(end)

    def promote(self, key: TopicPartition, topic_id: bytes | None, home: str | None) -> PartitionLog | None:
        """The copy that is the log, as a stop amid the swap has left it: the one where the metadata has the replica (`home`; None: it does
        not say). Raises KafkaStorageError."""
        for future in self.found.get(key, ()):
            if future.dir.path == (home or future.dir.path) and self._manager.id_of(future) == topic_id:
                self.found[key].remove(future)
                if _is_gone(future):
                    logger.warning("%s, about to be the log of %s-%d, was removed by somebody", future.path, *key)
                    return None
                logger.warning("%s was about to be the log of %s-%d: it is now", future.path, *key)
                self._take_name(future)
                return future
        return None

    # -- copying

    def tick(self) -> None:
        """Go on with every move that waits."""
        for move in list(self.moves.values()):
            move.held = move.future.dir.refusal is not None  # what room is left there is for those that have no other
            failures.attempt(f"moving {move.log.name}", partial(self._look, move))
        self._go_on()

    def _start(self, log: PartitionLog, future: PartitionLog) -> None:
        move = self.moves[log] = LogMove(log, future)
        log.future = future
        self._queue.append(move)
        if self._loop is not None:
            self._loop.call_soon(self._go_on)

    def _now(self) -> float:
        return self._manager.monotonic_ms() / 1000

    def _go_on(self) -> None:
        """Have the next pieces read, as many as may be in hand."""
        if self._timer is not None:
            self._timer.cancel()  # the rate may be another now
            self._timer = None
        for _ in range(len(self._queue)):
            if self._closed or self._in_hand >= (self.threads or len(self._manager.dirs)):
                return
            wait_s = self.rate.wait_s(self._now())
            if wait_s:
                if self._loop is not None:
                    self._timer = self._loop.call_later(wait_s, self._go_on)
                return
            move = self._queue.popleft()
            if self.moves.get(move.log) is not move:
                continue
            self._queue.append(move)
            if not move.busy and not move.held:
                failures.attempt(f"moving {move.log.name}", partial(self._next_piece, move))

    def _look(self, move: LogMove) -> None:
        """Whether a move is a step further, or over."""
        log, future = move.log, move.future
        for log_dir in (log.dir, future.dir):
            if log_dir.offline is not None:
                self._give_up(move, f"the log directory {log_dir.path} is offline")
                return
        if self._begun_anew(move):
            return
        try:
            self._follow_start(move)
            if move.phase is Phase.COPYING and not move.busy and self._catch_up(move):
                move.phase, move.flush_to = Phase.FLUSHING, future.log_end_offset
                future.flush()
            elif move.phase is Phase.FLUSHING and not future.durability.flushing:
                if future.recovery_point >= min(move.flush_to, future.log_end_offset):
                    move.phase = Phase.READY
                    self.on_changed(log)
                else:
                    future.flush()
            if move.phase is Phase.READY and not move.busy and self.may_swap(log, future.dir) and self._catch_up(move):
                self._swap(move)
        except KafkaError as error:
            if log.dir.offline is not None or future.dir.offline is not None:
                self._give_up(move, str(error))  # else a shortage, which has been told: the next tick tries it again

    def _begun_anew(self, move: LogMove) -> bool:
        """Whether a move had to begin anew, as somebody has removed its copy: no disk has failed then."""
        log, future = move.log, move.future
        if future.unmade or not _is_gone(future):
            return False
        self._give_up(move, f"{future.path} was removed by somebody; it begins anew")
        if self.moves.get(log) is None:  # else who was told has asked for another
            failures.attempt(f"moving {log.name}", partial(self.begin, log, future.dir))
        return True

    def _follow_start(self, move: LogMove) -> None:
        log, future = move.log, move.future
        if future.log_end_offset < log.log_start_offset:  # retention was faster
            future.truncate_fully_and_start_at(log.log_start_offset)
        future.advance_as_follower(max(min(log.high_watermark, future.log_end_offset), 0), log.log_start_offset)

    def _piece(self, move: LogMove) -> LogSlice | None:
        """The next piece, at or above the copy's end; None where the copy is at the log's end."""
        log, future = move.log, move.future
        if not move.lag:
            return None
        bound = self.rate.bytes_per_s_max
        piece = log.read(future.log_end_offset, PIECE_BYTES if bound > PIECE_BYTES else max(int(bound), 1))
        if piece.file is None or (not piece.cold and not piece.size):  # nothing is left of the records up to the end
            future.begin_segment_at(log.log_end_offset, self._manager.clock())
            return None
        return piece

    def _next_piece(self, move: LogMove) -> None:
        """Have a piece read, if there is one."""
        try:
            self._follow_start(move)
            piece = self._piece(move)
        except CorruptMessage as error:
            self._give_up(move, str(error))
            return
        except KafkaError:
            return  # the look at it sees what has failed
        write_back = move.take_written()
        if piece is None and write_back is None:
            return
        truncations = move.log.truncations
        came: list[bytes | Exception] = [b""]

        def work() -> None:
            try:
                if write_back is not None:
                    write_back()
                if piece is not None:
                    came[0] = piece.read()
            except Exception as error:  # whatever it is, it is for `_not_read` to judge: nobody else hears of it
                came[0] = error

        move.busy = True
        self._in_hand += 1
        try:
            self._run(work, lambda: self._came(move, truncations, came))
        except BaseException:
            if move.busy:  # nobody comes with the piece: the next tick has it read again
                move.busy = False
                self._in_hand -= 1
            raise

    def _run(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:
            work()
            done()
            return
        if self._pool is None:
            self._pool = self._begin_threads(self.threads or len(self._manager.dirs), "fastq-move-logs")

        left = [work]

        def take() -> bool:
            """Do the work, once: whether it was left."""
            try:
                mine = left.pop()
            except IndexError:
                return False
            mine()
            return True

        def in_thread() -> None:
            if take():
                tell_loop(loop, done)

        try:
            self._pool.submit(in_thread)
        except (RuntimeError, MemoryError):  # no thread can be started; one that was there before may do it yet
            if take():
                loop.call_soon(done)

    def _came(self, move: LogMove, truncations: int, came: list[bytes | Exception]) -> None:
        """Append what a thread has read."""
        self._in_hand -= 1
        move.busy = False
        if self._closed or self.moves.get(move.log) is not move:
            return
        (data,) = came
        if isinstance(data, Exception):
            self._not_read(move, data)
            return
        if not self._begun_anew(move) and truncations == move.log.truncations and data:
            failures.attempt(f"moving {move.log.name}", partial(self._append, move, data, gently=True))
        if self._loop is not None and self.moves.get(move.log) is move:
            self._look(move)
            self._go_on()

    def _not_read(self, move: LogMove, error: Exception) -> None:
        """A piece cannot be read: at a shortage the next tick tries it again."""
        if isinstance(error, MemoryError):
            return
        if not isinstance(error, OSError | CorruptSegment):
            failures.report(f"moving {move.log.name}", error)
        if not (isinstance(error, OSError) and is_shortage(error) and not is_full(error)):
            self._give_up(move, f"a piece of it cannot be read: {error}")

    def _append(self, move: LogMove, data: bytes, *, gently: bool = False) -> None:
        log, future = move.log, move.future
        try:
            self.rate.record(len(data), self._now())
            first = read_header(data).base_offset
            if first < future.log_end_offset and not future.size_bytes:  # the log starts within a batch
                future.truncate_fully_and_start_at(first)
            future.append_as_follower(data, now_ms=self._manager.clock(), gently=gently)
            move.note_written(len(data))
        except (CorruptMessage, InvalidRecord) as error:
            self._give_up(move, f"what {log.path} has at offset {future.log_end_offset} cannot be copied: {error}")
        except KafkaError as error:
            move.held = True  # a shortage: the next tick tries it again
            if future.dir.offline is not None:
                self._give_up(move, str(error))

    def _catch_up(self, move: LogMove) -> bool:
        """Copy what has come since, where that is one piece at hand; whether the copy is at the log's end."""
        piece = self._piece(move)
        if (
            piece is not None
            and not move.held
            and not piece.cold
            and not self.rate.exceeded(self._now())
            and piece.is_cached()
        ):
            try:
                data = piece.read()
            except (OSError, CorruptSegment) as error:
                self._not_read(move, error)
            else:
                self._append(move, data)
        return self.moves.get(move.log) is move and not move.lag

    # -- the end

    def _take_name(self, future: PartitionLog) -> None:
        """Give a copy's directory the log's name. Raises KafkaStorageError."""
        path = os.path.join(future.dir.path, future.name)
        try:
            future.files.rename(future.path, path)
        except OSError as error:
            raise future.dir.refuse("naming a log that was moved", future.path, error) from error
        future.renamed(path)

    def _swap(self, move: LogMove) -> None:
        """The copy takes its log's place. Raises KafkaStorageError: then the log is where it was."""
        log, future, manager = move.log, move.future, self._manager
        if log.config.synchronous and future.on_disk_offset < log.on_disk_offset:
            future.sync_now()  # who was told that records are on disk was told so for good
        try:
            future.epochs.take(log.epochs.entries())
        except OSError as error:
            raise future.dir.refuse("writing leader epochs", future.epochs.path, error) from error
        self._take_name(future)
        source = log.dir
        log.exchange(future)
        log.future = None
        del self.moves[log]
        logger.info("%s: moved from %s to %s", log.name, source.path, log.dir.path)
        failures.attempt(f"deleting {future.path}", partial(manager.retire, future))
        log.flush()
        for log_dir in (log.dir, source):
            manager.checkpoint(log_dir)

    def _give_up(self, move: LogMove, reason: str, level: int = logging.WARNING) -> None:
        """The log stays where it is, and its copy goes."""
        log, future = move.log, move.future
        del self.moves[log]
        log.future = None
        logger.log(
            level,
            "%s stays in %s: its move to %s is given up, as %s",
            *(log.name, log.dir.path, future.dir.path, reason),
        )
        if future.dir.offline is None:
            failures.attempt(f"deleting {future.path}", partial(self._manager.retire, future))
        else:
            future.abandon()
        self.on_changed(log)


def _is_gone(log: PartitionLog) -> bool:
    """Whether somebody has removed a log's directory, and not the log directory that it lies in."""
    try:
        os.stat(log.path)
    except FileNotFoundError:
        return os.path.exists(log.dir.path)
    except OSError:
        pass  # which is another matter
    return False


def _passes(error: KafkaError | OSError) -> bool:
    """Whether it is a shortage, or a thread reads the log."""
    return passes(error) if isinstance(error, KafkaError) else is_shortage(error)
