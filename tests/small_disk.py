"""A file system of a few MiB in memory, in a namespace that goes with whoever is in it: a disk that is full in earnest. For Linux."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

PLUG = "plug"
"""A file on it that takes what is to be taken away."""


def in_namespace() -> list[str]:
    """The command before a command that mounts."""
    return ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m"]


def mount_command(directory: Path, size_mib: int) -> str:
    """For a shell in there."""
    return f'mount -t tmpfs -o size={size_mib}m tmpfs "{directory}"'


def fill(plug: str) -> None:
    """Not a byte is free any more."""
    with open(plug, "ab", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                size //= 2


class SmallDisk:
    """One that is there until it is closed, for processes that come and go."""

    def __init__(self, directory: Path, size_mib: int) -> None:
        script = f"{mount_command(directory, size_mib)} && echo mounted && exec sleep infinity"
        self._keeper = subprocess.Popen([*in_namespace(), "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == "mounted\n"
        self.seen_from_outside = Path(f"/proc/{self._keeper.pid}/root{directory}")
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        self.enter = ["nsenter", "-t", str(self._keeper.pid), *user, "-m"]
        """The command before a command that is to see it; it becomes that one."""

    def fill(self) -> None:
        fill(str(self.seen_from_outside / PLUG))

    def make_room(self) -> None:
        (self.seen_from_outside / PLUG).unlink()

    def close(self) -> None:
        self._keeper.kill()
        self._keeper.communicate()
