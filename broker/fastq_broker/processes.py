"""Which process holds a node's directory, by the lock that it has there, as /proc tells.

Rules: a process is found by what it holds, not by its name or by a number that was written down once: the system forgets a lock with its
process, so what is found runs. Linux tells which open file has a lock (fdinfo); elsewhere nobody does, and `check_supported` says so. A
process is signalled through a descriptor of it that was opened before it was looked at, so that nobody who has its number by then is hit.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fastq.errors import ConfigError
from fastq.values import NamedTuple

from .log.directories import LOCK

PROC = Path("/proc")
NAMES = ("fastq-broker", "fastq_broker")
LISTENING = "0A"
"""A socket's state in /proc/net/tcp."""


class Process(NamedTuple):
    """A process that was found, with how it was called and when it began (seconds since 1970)."""

    pid: int
    parent: int
    arguments: tuple[str, ...]
    started: float

    @property
    def is_broker(self) -> bool:
        """Whether it is a fastq-broker that serves, not Apache Kafka, and not `fastq-broker repair`."""
        for at, argument in enumerate(self.arguments[:4]):
            if Path(argument).name in NAMES or f"{NAMES[1]}/__main__.py" in argument:
                return self.arguments[at + 1 : at + 2] != ("repair",)
        return False

    @property
    def is_supervised(self) -> bool:
        """Whether a `fastq-broker --nodes` started it, and would do so again."""
        return self.is_broker and "--supervised" in self.arguments


def check_supported() -> None:
    """ConfigError where the system does not tell who holds a lock."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        raise ConfigError(
            "who holds a directory is known on Linux alone: stop the broker where it was started, or send SIGTERM to it"
        )


def holders(directories: Iterable[Path]) -> dict[Path, int]:
    """Of those directories that a process holds, its id; -1 for one that this user may not look at."""
    locks: dict[tuple[int, int], Path] = {}
    for directory in directories:
        try:
            there = os.stat(directory / LOCK)
        except FileNotFoundError:
            continue
        locks[there.st_dev, there.st_ino] = directory
    found: dict[Path, int] = {}
    for pid in _pids() if locks else ():
        for place in _held_by(pid, locks):
            found[locks[place]] = pid
    hidden = {place for place in locks if locks[place] not in found} & _locked_places()
    return found | {locks[place]: -1 for place in hidden}


def locked_directories() -> dict[Path, int]:
    """Every directory that a process of this user holds by a lock file, and the process."""
    found = {}
    for pid in _pids():
        for descriptor in _descriptors(pid):
            try:
                path = Path(os.readlink(descriptor))
            except OSError:
                continue
            if path.name == LOCK and _has_lock(pid, descriptor.name):
                found[path.parent] = pid
    return found


def process(pid: int) -> Process | None:
    """What is known of a process; None when it is gone."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        uptime_s = float((PROC / "uptime").read_bytes().split()[0])
    except OSError:
        return None
    age_s = uptime_s - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return Process(pid, int(fields[1]), tuple(map(os.fsdecode, words)), time.time() - age_s)


def listening(pid: int) -> list[str]:
    """Addresses on which a process takes connections, as HOST:PORT."""
    sockets = set()
    for descriptor in _descriptors(pid):
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:["):
            sockets.add(target[8:-1])
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / str(pid) / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        rows = map(str.split, lines)
        found.update(_address(row[1]) for row in rows if row[3] == LISTENING and row[9] in sockets)
    return sorted(found)


@contextmanager
def handle(pid: int) -> Iterator[int | None]:
    """A descriptor of a process, whoever gets its number later; None when it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def terminate(descriptor: int) -> None:
    """SIGTERM; nothing when the process is gone."""
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    except ProcessLookupError:
        pass


def has_ended(descriptor: int, timeout_s: float) -> bool:
    """Whether a process has ended within that time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]


def _descriptors(pid: int) -> Sequence[Path]:
    try:
        return list((PROC / str(pid) / "fd").iterdir())
    except OSError:  # it is gone, or somebody else's
        return ()


def _held_by(pid: int, places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    wanted = set(places)
    for descriptor in _descriptors(pid):
        try:
            there = os.stat(descriptor)
        except OSError:
            continue
        place = there.st_dev, there.st_ino
        if place in wanted and _has_lock(pid, descriptor.name):
            yield place


def _has_lock(pid: int, descriptor: str) -> bool:
    try:
        return "\nlock:" in (PROC / str(pid) / "fdinfo" / descriptor).read_text()
    except OSError:
        return False


def _locked_places() -> set[tuple[int, int]]:
    """Device and inode of every file that has a lock, whosever it is."""
    found = set()
    for line in (PROC / "locks").read_text().splitlines():
        for word in line.split():
            parts = word.split(":")
            if len(parts) == 3:
                found.add((os.makedev(int(parts[0], 16), int(parts[1], 16)), int(parts[2])))
    return found


def _address(text: str) -> str:
    """An address of /proc/net/tcp: words of 4 bytes in the machine's order, and the port, in hexadecimal."""
    import socket

    host, _, port = text.partition(":")
    words = [int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8)]
    raw = b"".join(words)
    name = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    return f"[{name}]:{int(port, 16)}" if len(raw) == 16 else f"{name}:{int(port, 16)}"
