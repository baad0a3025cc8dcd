"""How much room the disks of a node have, and what follows from it before they are full.

    OK         nothing
    LOW        below disk.warn.free.bytes: one line, the metrics tell, and logs give back the room ahead of their ends
    REFUSING   below disk.refuse.free.bytes: records of clients are refused, and the ballast is given up

Rules
- A thread looks once a second, and at each tick where a disk could be full in a second; a disk that does not answer holds it up, and no
  request ever. What a look has found is acted upon in the event loop's thread, by its next tick.
- Back again takes more room than was missed (a tenth of the mark), and from REFUSING also what the ballast needs that was given up: it is
  for whoever has to work on a full disk, and no more space for producers. One that was never there keeps nobody out.
- A disk that is full all the same (faster than a look, or by its quota) refuses what it has no room for, one write at a time: see LogDir.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from enum import IntEnum
from functools import partial
from typing import Final

from fastq.values import NamedTuple

from .files import Files, Space
from .log_dir import LogDir

logger = logging.getLogger(__name__)

LOOK_MS: Final = 1_000
WRITTEN_IN_A_LOOK_MAX: Final = 4 << 30
"""More is not written between two looks."""
BALLAST: Final = ".fastq-ballast"
_BALLAST_RETRY_LOOKS: Final = 60
_WARN_MAX: Final = 16 << 30
_REFUSE_MAX: Final = 256 << 20


class Level(IntEnum):
    """How much room there is."""

    OK = 0
    LOW = 1
    REFUSING = 2


class Marks(NamedTuple):
    """The settings: free bytes below which is warned and refused (-1: by the size of the file system, 0: never), and of the ballast."""

    warn_bytes: int = -1
    refuse_bytes: int = -1
    ballast_bytes: int = 0

    def on(self, size_bytes: int) -> Marks:
        """The same for a file system of this size, without -1."""
        return Marks(
            min(size_bytes // 20, _WARN_MAX) if self.warn_bytes < 0 else self.warn_bytes,
            min(size_bytes // 100, _REFUSE_MAX) if self.refuse_bytes < 0 else self.refuse_bytes,
            self.ballast_bytes,
        )


class Look(NamedTuple):
    """What was found. `problem`: what is wrong with the ballast."""

    level: Level
    space: Space
    marks: Marks
    ballast_bytes: int
    problem: str = ""


def judge(level: Level, free_bytes: int, marks: Marks, missing_bytes: int) -> Level:
    """The level that follows upon another; `missing_bytes` are to be there for the ballast before clients are served again."""
    back_at = marks.refuse_bytes + marks.refuse_bytes // 10 + missing_bytes
    if free_bytes < marks.refuse_bytes or (level is Level.REFUSING and free_bytes < back_at and marks.refuse_bytes):
        return Level.REFUSING
    warned_to = marks.warn_bytes + (marks.warn_bytes // 10 if level is not Level.OK else 0)
    return Level.LOW if free_bytes < warned_to else Level.OK


class SpaceLooker:
    """Looks at one directory. Used by one thread at a time.

    Invariant: the ballast is made only where what is left afterwards is above both marks, and there is none while REFUSING.
    The ballast is a file of the directory's own: a link or an empty file in its place is removed, anything else is said.
    """

    def __init__(self, path: str, files: Files) -> None:
        self.path = path
        self.level = Level.OK
        self._files = files
        self._ballast = os.path.join(path, BALLAST)
        self._wait_looks = 0
        self._settings = Marks()
        self._given_up_bytes = 0

    def look(self, settings: Marks) -> Look:
        """Find out how much room there is; make the ballast, or give it up. Raises OSError where the directory cannot be looked at."""
        if settings != self._settings:  # what kept the ballast away may not do so now
            self._settings, self._wait_looks = settings, 0
        space = self._files.space(self.path)
        marks = settings.on(space.size_bytes)
        there = self._files.own_size_bytes(self._ballast)
        self.level = judge(self.level, space.free_bytes, marks, min(self._given_up_bytes, marks.ballast_bytes))
        problem = ""
        try:
            if there and (self.level is Level.REFUSING or there != marks.ballast_bytes):
                self._files.remove_if_exists(self._ballast)
                self._given_up_bytes = there if self.level is Level.REFUSING else 0
                there, self._wait_looks = 0, 0
            elif self.level is not Level.REFUSING and there < marks.ballast_bytes:
                problem, there = self._make(space, marks)
        except OSError as error:
            self._wait_looks = _BALLAST_RETRY_LOOKS
            problem = f"the ballast {self._ballast} cannot be made or given up: {error.strerror or error}"
        return Look(self.level, self._files.space(self.path) if there or problem else space, marks, there, problem)

    def _make(self, space: Space, marks: Marks) -> tuple[str, int]:
        """Make the ballast where there is room; what is wrong, and how large it is."""
        above = max(marks.warn_bytes, marks.refuse_bytes)
        if self._wait_looks:
            self._wait_looks -= 1
            return "", 0
        if space.free_bytes - marks.ballast_bytes < above + above // 10:
            self._wait_looks = _BALLAST_RETRY_LOOKS
            return (
                f"there is no room for a ballast of {marks.ballast_bytes} bytes: {above + above // 10} more are to be free",
                0,
            )
        self._files.remove_if_exists(self._ballast)
        if self._files.allocate(self._ballast, marks.ballast_bytes):
            self._given_up_bytes = 0
            return "", marks.ballast_bytes
        self._wait_looks = 1 << 62
        return "disk.ballast.bytes has no effect: this system allocates no files", 0


class SpaceGuard:
    """Looks after the room of a node's log directories. Event-loop thread only.

    Invariants: one round of looks at most is under way; `looks` has the last one of each directory, by its path.
    """

    def __init__(
        self,
        dirs: Sequence[LogDir],
        monotonic_ms: Callable[[], int],
        threads: Callable[[int, str], Executor] = ThreadPoolExecutor,
        metadata_dirs: Sequence[LogDir] = (),
    ) -> None:
        """`threads(count, name)` begins some. `metadata_dirs` have the metadata alone: there is nobody to refuse, only something to say."""
        self.marks = Marks()
        self.looks: dict[str, Look] = {}
        self._lookers = [(log_dir, SpaceLooker(log_dir.path, log_dir.files)) for log_dir in (*dirs, *metadata_dirs)]
        self._monotonic_ms = monotonic_ms
        self._metadata_dirs = metadata_dirs
        self._threads = threads
        self._thread: Executor | None = None
        self._looking: Future[list[Look | OSError]] | None = None
        self._due_ms = 0
        self._closed = False
        self._levels: dict[str, Level] = {}  # acted upon; one that cannot be looked at keeps its own
        self._problems: dict[str, str] = {}

    def look_now(self) -> None:
        """Look in this thread: before anything is written. A full disk loses its ballast here, if it has one."""
        self._take(self._look_all(self.marks))

    def apply(self, marks: Marks) -> None:
        """Use other settings: from the next look on, which is soon."""
        if marks != self.marks:
            self.marks, self._due_ms = marks, 0

    def tick(self) -> None:
        """Act upon a round of looks that is through, and begin one that is due."""
        if self._looking is not None:
            if not self._looking.done():
                return
            ended, self._looking = self._looking, None
            self._take(ended.result())
        now_ms = self._monotonic_ms()
        if self._closed or (now_ms < self._due_ms and not self._may_fill_up()):
            return
        self._due_ms = now_ms + LOOK_MS
        if self._thread is None:
            self._thread = self._threads(1, "fastq-space")
        try:
            self._looking = self._thread.submit(partial(self._look_all, self.marks))
        except RuntimeError:  # no thread can be started now
            self._thread = None

    def close(self) -> None:
        """Look no more. The ballast stays. Idempotent."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None
        self._closed = True

    def _may_fill_up(self) -> bool:
        """Whether a disk could be below the mark before a second is over."""
        bound = WRITTEN_IN_A_LOOK_MAX
        return any(0 < look.marks.refuse_bytes > look.space.free_bytes - bound for look in self.looks.values())

    def _look_all(self, marks: Marks) -> list[Look | OSError]:
        """Runs in the thread."""
        found: list[Look | OSError] = []
        for log_dir, looker in self._lookers:
            if log_dir.offline is not None:
                found.append(OSError(errno.EIO, "it is offline", log_dir.path))
                continue
            try:
                found.append(looker.look(marks))
            except OSError as error:
                found.append(error)
        return found

    def _take(self, looks: list[Look | OSError]) -> None:
        for (log_dir, _), look in zip(self._lookers, looks, strict=True):
            if isinstance(look, OSError):
                self.looks.pop(log_dir.path, None)  # who writes to it finds out what it has
                continue
            self.looks[log_dir.path] = look
            before, self._levels[log_dir.path] = self._levels.get(log_dir.path, Level.OK), look.level
            self._follow(log_dir, before, look)
            if look.problem and look.problem != self._problems.get(log_dir.path):
                logger.warning("%s: %s", log_dir.path, look.problem)
            if look.problem or look.ballast_bytes:
                self._problems[log_dir.path] = look.problem

    def _follow(self, log_dir: LogDir, before: Level, look: Look) -> None:
        free, marks, level = look.space.free_bytes, look.marks, look.level
        if level is Level.OK:
            log_dir.take_room_again(free - marks.warn_bytes - marks.warn_bytes // 10)
        else:
            log_dir.give_back_room()
        if log_dir in self._metadata_dirs:
            self._tell(log_dir.path, before, look)
            return
        if level is Level.REFUSING:
            if before is not level:
                log_dir.close_to_clients(
                    f"{free} bytes are free, fewer than disk.refuse.free.bytes ({marks.refuse_bytes}): records of clients are refused "
                    "until there is room; nothing of this was acknowledged",
                    "Delete topics or records, shorten retention, or add space",
                )
                logger.error(
                    "%s has %d bytes free, fewer than disk.refuse.free.bytes (%d): records of clients are refused until there is room; "
                    "delete topics or records, shorten retention, or add space",
                    log_dir.path,
                    free,
                    marks.refuse_bytes,
                )
            return
        if before is Level.REFUSING:
            log_dir.open_to_clients()
            logger.warning("%s has %d bytes free: records of clients are taken again", log_dir.path, free)
        elif level is Level.LOW and before is Level.OK:
            logger.warning(
                "%s has %d bytes free, fewer than disk.warn.free.bytes (%d); below %d records of clients are refused",
                log_dir.path,
                free,
                marks.warn_bytes,
                marks.refuse_bytes,
            )
        elif level is Level.OK and before is Level.LOW:
            logger.info("%s has %d bytes free again", log_dir.path, free)

    def _tell(self, path: str, before: Level, look: Look) -> None:
        """Say of a disk that has the metadata alone how much room there is."""
        free, marks, level = look.space.free_bytes, look.marks, look.level
        if level is Level.REFUSING and before is not level:
            logger.error(
                "%s has %d bytes free, fewer than disk.refuse.free.bytes (%d): once none are, what comes of the metadata waits for "
                "room, and a controller leads no more; add space",
                path,
                free,
                marks.refuse_bytes,
            )
        elif level is Level.LOW and before is Level.OK:
            logger.warning(
                "%s has %d bytes free, fewer than disk.warn.free.bytes (%d): the metadata needs room",
                path,
                free,
                marks.warn_bytes,
            )
        elif level < before:
            log = logger.warning if before is Level.REFUSING else logger.info
            log("%s has %d bytes free again", path, free)
