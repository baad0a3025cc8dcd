"""What a directory has to be to hold logs: one that nobody else uses, by a name that is no log's, and one that can be written.

Rules: a lock file, which the system forgets with its process, keeps other processes away, those of Apache Kafka too. Nothing is made
before the lock but the directory itself. Source: LogManager.lockLogDirs, FileLock.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from fastq.errors import ConfigError

from .files import READ_WRITE_CREATE, FileHandle, Files, is_shortage

try:
    import fcntl
except ImportError:  # Windows has no flock; nor does the broker run there
    fcntl = None  # type: ignore[assignment]

LOCK: Final = ".lock"
META_PROPERTIES: Final = "meta.properties"
"""A data directory has it, a log has not."""
LOG_NAME = re.compile(r"^(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,8})\Z")
"""As logs are named: another spelling of a partition's number is somebody else's directory."""
DELETED_NAME = re.compile(r"^[a-zA-Z0-9._-]+\.[0-9a-f]{32}-delete\Z")


def why_unusable(setting: str, directory: str, error: OSError) -> str:
    """Why a directory cannot be used, and what to do."""
    where = "" if error.filename in (None, directory) else f" ({error.filename})"
    return (
        f"{setting}={directory} cannot be used: {error.strerror or error}{where}; it takes a directory that the broker's user may make, "
        "read and write: choose another, or move away what is there, or mend its permissions or its disk"
    )


def check_nesting(directories: Sequence[str]) -> None:
    """A directory within another must not be taken for a log there, or for what is left of one. Raises ConfigError."""
    for outer in directories:
        root = os.path.join(os.path.realpath(outer), "")
        for inner in directories:
            path = os.path.realpath(inner)
            name = path[len(root) :].partition(os.sep)[0] if path.startswith(root) else ""
            if LOG_NAME.match(name) or DELETED_NAME.match(name):
                raise ConfigError(
                    f"{inner} lies within the log directory {outer}, where {name} is the name of a topic's log: put it elsewhere, or give "
                    "it a name without a number at its end"
                )


def check_no_brokers(directory: str, names: Iterable[str]) -> None:
    """What has the name of a log must not be another broker's data directory. Raises ConfigError."""
    for name in names:
        path = os.path.join(directory, name)
        if LOG_NAME.match(name) and os.path.exists(os.path.join(path, META_PROPERTIES)):
            raise ConfigError(
                f"{path} is the data directory of a broker (it has {META_PROPERTIES}), and has the name of a topic's log in {directory}: "
                "move one of them, or give it a name without a number at its end"
            )


def _lock(fd: int) -> None:
    """BlockingIOError where somebody has it.

    A record lock, because that is what Java's FileLock is, and `flock` knows nothing of those: a broker was started on the directory of an
    Apache Kafka that was still writing its logs. One of the open file, not of the process, so that it also keeps away a second user in
    this process, and does not go when that closes its descriptor.
    """
    if hasattr(fcntl, "F_OFD_SETLK"):
        whole_file = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, whole_file)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class DirectoryLocks:
    """The locks of this process. A lock file is open from the start on, so that a sync by it hears of all errors since."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[str, FileHandle] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def take(self, directory: str, name: str = LOCK) -> None:
        """Make a directory where there is none, and lock it by a file of that name. ConfigError when another process holds it, OSError."""
        if os.path.lexists(directory) and not os.path.isdir(directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, name)
        handle = FileHandle(Files(), path, READ_WRITE_CREATE)
        if fcntl is not None:
            try:
                _lock(handle.fd)
            except BlockingIOError:
                raise ConfigError(
                    f"another process holds the lock {path}: a directory serves one broker, or one `fastq-broker repair`; stop that one, "
                    "or choose another directory"
                ) from None
        self._held[directory] = handle

    def take_metadata(self, directory: str) -> None:
        """Lock the directory of the metadata log, where it is none of the log directories: two brokers over one such log would both write
        to it. ConfigError, also where it cannot be used; OSError for want of descriptors or memory."""
        try:
            self.take(directory)
        except OSError as error:
            if is_shortage(error):
                raise
            raise ConfigError(why_unusable("metadata.log.dir", directory, error)) from error

    def check(self, directory: str) -> None:
        """OSError where another directory than the one that was locked, or none, has this path now. A lock file that somebody has
        removed by itself is not missed."""
        held = self._held[directory]
        try:
            if os.path.samestat(os.stat(held.path), os.fstat(held.fd)):
                return
        except FileNotFoundError:
            if os.path.exists(os.path.join(directory, META_PROPERTIES)):
                return
        raise FileNotFoundError(errno.ENOENT, "it was moved away or removed", directory)

    def descriptor(self, directory: str) -> int:
        """That of a lock file."""
        return self._held[directory].fd

    def release(self) -> None:
        """Let others have the directories."""
        self._held.clear()
