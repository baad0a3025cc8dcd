"""A little room that is kept beside the metadata log for what a node must write to start and to vote, however full its disk is.

    .fastq-reserve      a file of SIZE_BYTES, given up from its end in pieces of PIECE_BYTES

Rules
- Only what cannot wait takes from it: a vote, a leader's first record, and the records of a start. All else waits for room.
- It is given up piece by piece, since what is free is anybody's: a process that is killed on a full disk time and again has some each time.
- It is made where there is far more room than it takes, so that it never is what fills a disk. Without one everything goes on as it can.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, TypeVar

from fastq.errors import KafkaError

from .files import READ_WRITE, FileHandle, Files, is_full

logger = logging.getLogger(__name__)

RESERVE: Final = ".fastq-reserve"
SIZE_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 64 << 10
FREE_BYTES_MIN: Final = 16 * SIZE_BYTES
LOOK_MS: Final = 60_000

T = TypeVar("T")


class Reserve:
    """The reserve of one directory. Event-loop thread only.

    `starting`: whether the node is not ready yet, so that all that it writes to the metadata log cannot wait.
    """

    def __init__(self, directory: str | os.PathLike[str], files: Files, monotonic_ms: Callable[[], int]) -> None:
        self._path = os.path.join(directory, RESERVE)
        self._directory = directory
        self._files = files
        self._monotonic_ms = monotonic_ms
        self._whole = False
        self._due_ms = monotonic_ms()
        self.starting = True

    def spend(self, work: Callable[[], T]) -> T:
        """Do `work`, which changes nothing where it finds no room: again for each piece that is given up for it, until it succeeds or
        nothing is left. Raises what `work` raises."""
        while True:
            try:
                return work()
            except (OSError, KafkaError) as error:
                cause = error if isinstance(error, OSError) else error.__cause__
                if not isinstance(cause, OSError) or not is_full(cause) or not self._give():
                    raise

    def tick(self) -> None:
        """The node is ready. Make the reserve where it is not whole and there is room: looked at once a minute."""
        self.starting = False
        if self._whole or self._monotonic_ms() < self._due_ms:
            return
        self._due_ms = self._monotonic_ms() + LOOK_MS
        try:
            self._make()
        except OSError as error:
            logger.info("%s cannot be made now: %s", self._path, error.strerror or error)

    def _make(self) -> None:
        if self._files.own_size_bytes(self._path) == SIZE_BYTES:
            self._whole = True
        elif self._files.space(os.fspath(self._directory)).free_bytes >= FREE_BYTES_MIN:
            self._files.remove_if_exists(self._path)
            self._files.allocate(self._path, SIZE_BYTES)
            self._whole = True  # or this system cannot

    def _give(self) -> bool:
        """Give a piece up; whether there was one."""
        try:
            size = self._files.own_size_bytes(self._path)
            if not size:
                return False
            left = max(0, size - PIECE_BYTES)
            if left:
                handle = FileHandle(self._files, self._path, READ_WRITE)
                self._files.truncate(handle.fd, left)
            else:
                self._files.remove_if_exists(self._path)
        except OSError as error:
            logger.warning("%s cannot be given up: %s", self._path, error.strerror or error)
            return False
        self._whole = False
        logger.warning(
            "the disk is full: %d bytes of %s are given up for what cannot wait, %d are left; make room soon",
            size - left,
            self._path,
            left,
        )
        return True
