"""Descriptors of the process: the limit is raised at the start, and divided, so that clients never take what files need.

Rules
- The soft limit (RLIMIT_NOFILE) becomes the hard one, once, before anything is opened.
- Half is for segment files and index maps; connections get the rest, but for what is kept for all else: standard streams, the loop,
  locks, syncs, the metadata's files, the cleaner's pipes, metrics. A node without logs leaves the half to connections.
- A quarter of the connections is a reserve for other nodes: those on listeners that are not for clients. They use the others too.
- Who accepts connections takes a descriptor from `DescriptorCount` first; one that is not there is refused, not waited for.
"""

from __future__ import annotations

from fastq.values import NamedTuple

FILES_MAX = 50_000
FILES_MIN = 16
KEPT_MIN = 48
KEPT_MAX = 1_024
UNLIMITED = 1 << 20
"""What a limit that is none counts as."""


class DescriptorPlan(NamedTuple):
    """How the `limit` of a process is divided: for files of logs, kept for all else, for connections, and how many of those are a reserve
    for other nodes."""

    limit: int
    files: int
    kept: int
    connections: int
    reserve: int


def raise_limit() -> int:
    """Let this process open as many files as it may, and answer how many that is."""
    try:
        import resource
    except ImportError:  # Windows
        return 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # macOS: a hard limit beyond what the system allows
            pass
    return UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)


def plan_descriptors(limit: int, *, logs: bool = True) -> DescriptorPlan:
    """Divide a limit: half for files (FILES_MIN to FILES_MAX; FILES_MIN for a node without `logs`), an eighth kept (KEPT_MIN to KEPT_MAX, a
    quarter at most), the rest for connections."""
    files = max(FILES_MIN, min(limit // 2, FILES_MAX)) if logs else FILES_MIN
    kept = min(max(limit // 8, KEPT_MIN), KEPT_MAX, limit // 4)
    connections = max(limit - files - kept, 1)
    return DescriptorPlan(limit, files, kept, connections, connections // 4)


class DescriptorCount:
    """The descriptors of connections. Loop thread only.

    Invariants: 0 <= `used` <= `limit`; `lent` were taken `beyond` the limit, from those of others, and are given back to them first.
    """

    __slots__ = ("beyond", "lent", "limit", "used")

    def __init__(self, limit: int, *, beyond: DescriptorCount | None = None) -> None:
        """`beyond`: from where more come once `limit` are used."""
        self.limit = limit
        self.beyond = beyond
        self.used = 0
        self.lent = 0

    def take(self) -> bool:
        """Count one more; False when there is none left."""
        if self.used < self.limit:
            self.used += 1
            return True
        if self.beyond is None or not self.beyond.take():
            return False
        self.lent += 1
        return True

    def give_back(self) -> None:
        """One that was taken is closed."""
        if self.lent and self.beyond is not None:
            self.lent -= 1
            self.beyond.give_back()
        else:
            self.used -= 1

    @property
    def taken(self) -> int:
        """How many are taken, those of others included."""
        return self.used + self.lent
