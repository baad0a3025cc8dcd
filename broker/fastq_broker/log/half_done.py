"""A log that a shortage, or a mistake, has left half done, amid a cut or the swap of a compacted segment: it is loaded anew, with a
recovery, and the cut is finished then.

Rules
- Nobody reads, appends or hears of it before: what a load finds may be on disk, and is to go. Who touches the log has it loaded, or gets
  the error of the shortage.
- While that lasts it is tried at the directory's ticks, and when somebody touches the log, but at a bounded rate: each attempt reads files,
  and says what it finds.
- Who waits for the disk waits on. He is answered when the log is loaded, or once it is known that it never is.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from fastq.errors import ErrorCode, KafkaError, error_for_code

from .visibility import NOT_SHARED

if TYPE_CHECKING:
    from .partition_log import PartitionLog

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
RETRY_MS_MAX: Final = 10_000
"""Between two attempts to load the log: at first, and while a shortage lasts."""
OF_A_LOADED_LOG: Final = (
    "_active",
    "_bases",
    "_recent",
    "epochs",
    "high_watermark",
    "last_stable_offset",
    "leader_epoch",
    "log_end_offset",
    "log_start_offset",
    "producers",
    "recovery",
    "segments",
)
"""What a log loses that is not loaded any more, and is loaded for."""
OF_ITS_FILES: Final = ("_active", "_bases", "_recent", "epochs", "segments")
"""What of it leads to files."""


class HalfDone:
    """What is to be done of one log before anybody has it. Event-loop thread only.

    Invariant: it is the log's `half_done` until the log is whole, or has failed for good; until then the directory's next tick knows it.
    """

    __slots__ = ("_due_ms", "_log", "_refusal", "_tick_again", "_wait_ms", "base", "cut")

    def __init__(self, log: PartitionLog, base: int) -> None:
        self._log = log
        self._due_ms = 0
        self._refusal: KafkaError | None = None
        self._wait_ms = RETRY_MS
        self.base = base
        """The log's files may have changed from this segment on."""
        self.cut: Callable[[], object] | None = None
        """What finishes a cut, of a log that is loaded."""
        self._tick_again = self._tick  # at each tick there may be no memory to make it
        log.dir.soon(self._tick_again)

    def add(self, cut: Callable[[], object]) -> None:
        """Another cut is to follow. Where there is no memory to note that the directory goes offline."""
        try:
            self.cut = cut if self.cut is None or self.cut is cut else partial(_in_turn, self.cut, cut)
        except BaseException:
            self._log.dir.fail_inside()
            raise

    def load(self) -> None:
        """Load the log, and finish its cut. Raises KafkaError: the log is not loaded then, and may be tried again later, or its directory
        is offline, or it has a `failure`."""
        log = self._log
        refusal = log.durability.deleted or log.dir.offline
        if refusal is None and log.dir.monotonic_ms() < self._due_ms:
            refusal = self._refusal
        if refusal is not None:
            raise refusal.with_traceback(None)
        cut = self.cut
        try:
            log.load_files()
            if cut is not None:
                cut()
            if log.pending_leader_epoch >= 0:  # behind a cut: an epoch that has no record there goes with it
                log.assign_leader_epoch(log.pending_leader_epoch)
            log.durability.note_cut_off()
        except Exception as error:
            if log.loaded and log.dir.offline is None:  # the cut could not even begin, or not all of it be told
                log.unload(self.base)
            self.cut = cut
            self._put_off(error)
            assert self._refusal is not None
            raise self._refusal from self._refusal.__cause__
        log.half_done = None
        log.durability.loaded_anew()
        logger.warning("%s is whole again, and loaded: what a shortage had left half done is done", log.path)

    def end(self) -> None:
        """The broker stops: who waits is told so."""
        log = self._log
        words = "the broker stops before the log was whole again, which a shortage had left half done"
        error = error_for_code(ErrorCode.KAFKA_STORAGE_ERROR, words, topic=log.topic, partition=log.partition)
        log.durability.give_up(self._refusal or error)

    def _put_off(self, error: Exception) -> None:
        log = self._log
        cause: BaseException | None = error.__cause__
        if isinstance(error, KafkaError):
            self._refusal = error
        elif isinstance(error, MemoryError):
            cause = no_memory(error)
            self._refusal = log.dir.refuse("loading a log", log.path, cause)
        else:
            logger.error("loading %s anew failed inside", log.path, exc_info=error)
            cause = error
            self._refusal = error_for_code(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the log cannot be loaded: {error!r}; it is tried again",
                topic=log.topic,
                partition=log.partition,
            )
        self._refusal.__cause__ = cause
        self._due_ms = log.dir.monotonic_ms() + self._wait_ms
        self._wait_ms = min(2 * self._wait_ms, RETRY_MS_MAX)

    def _tick(self) -> None:
        log = self._log
        if log.half_done is not self:
            return
        ended = log.durability.deleted or log.dir.offline or log.failure
        if ended is not None:
            log.durability.give_up(ended)
            return
        log.dir.soon(self._tick_again)
        if log.dir.monotonic_ms() >= self._due_ms:
            with contextlib.suppress(KafkaError):  # which has been told
                log.load()


def _in_turn(*cuts: Callable[[], object]) -> None:
    for cut in cuts:
        cut()


def unload(log: PartitionLog, base: int, cut: Callable[[], object] | None) -> None:
    """Have a log loaded anew before anybody has it, whose files may have changed from the segment at `base` on, and `cut` then. Where there
    is no memory for that its directory goes offline."""
    try:
        half_done = log.half_done or HalfDone(log, base)
        half_done.base = base = min(base, half_done.base)
        half_done.cut = cut
        for segment in log.segments:
            segment.release()
        log.recovery_point = log.checkpointed_recovery_point  # below a gap, to find it again
        log.checkpointed_start_offset = log.log_start_offset
        if log.shared:
            log.checkpointed_watermark = log.high_watermark
        elif log.checkpointed_watermark < 0:
            log.checkpointed_watermark = NOT_SHARED
        log.durability.unloaded(base)
        log.truncations += 1
        log.known_producers = None
        log.half_done = half_done
    except BaseException:
        log.dir.fail_inside()
        raise


def let_go(log: PartitionLog) -> None:
    """Have nobody find the files of a loaded log that is deleted; what its offsets were stays known."""
    for segment in log.segments:
        segment.release()
    forget(log, OF_ITS_FILES)


def forget(log: PartitionLog, names: tuple[str, ...] = OF_A_LOADED_LOG) -> None:
    """Have nobody find what only a loaded log has."""
    for name in names:
        try:
            delattr(log, name)
        except AttributeError:  # a load that has failed has not come to it
            pass


def no_memory(error: BaseException) -> OSError:
    """The error as the operating system has it."""
    return error if isinstance(error, OSError) else OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
