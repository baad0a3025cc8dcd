"""Descriptors of the process: the limit is raised at the start, and divided, so that clients never take what files need.

Rules
- The soft limit (RLIMIT_NOFILE) becomes the hard one, once, before anything is opened.
- Half is for segment files and index maps; connections get the rest, but for what is kept for all else: standard streams, the loop,
  locks, syncs, the metadata's files, the cleaner's pipes, metrics.
- Who accepts connections takes a descriptor from `DescriptorCount` first; one that is not there is refused, not waited for.
"""

from __future__ import annotations

from typing import NamedTuple

FILES_MAX = 50_000
KEPT_MIN = 48
KEPT_MAX = 1_024
UNLIMITED = 1 << 20
"""What a limit that is none counts as."""


class DescriptorPlan(NamedTuple):
    """How the `limit` of a process is divided: for files of logs, kept for all else, for connections."""

    limit: int
    files: int
    kept: int
    connections: int


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


def plan_descriptors(limit: int) -> DescriptorPlan:
    """Divide a limit: half for files (16 to FILES_MAX), an eighth kept (KEPT_MIN to KEPT_MAX, a quarter at most), the rest
    for connections."""
    files = max(16, min(limit // 2, FILES_MAX))
    kept = min(max(limit // 8, KEPT_MIN), KEPT_MAX, limit // 4)
    return DescriptorPlan(limit, files, kept, max(limit - files - kept, 1))


class DescriptorCount:
    """The descriptors of connections. Loop thread only. Invariant: 0 <= `used` <= `limit`."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self) -> bool:
        """Count one more; False when there is none left."""
        if self.used >= self.limit:
            return False
        self.used += 1
        return True

    def give_back(self) -> None:
        """One that was taken is closed."""
        self.used -= 1
