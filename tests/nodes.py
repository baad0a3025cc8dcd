"""`fastq-broker --nodes 3` in a process of its own: what it says, its nodes' processes, and how it ends."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

COUNT = 3
FIRST_PORT, PLACE, PLACES = 21000, 97, 120
_places: dict[int, IO[bytes]] = {}
"""This process's own, by their first ports, and the file that it holds each by."""
_given_once: set[int] = set()
"""Those of them that nobody is given again."""


def free_ports(count: int, *, anew: bool = False) -> int:
    """The first of so many ports in a row that nobody listens on, below those that the system gives away. No other process of tests is
    given any of them while this one lives: nodes that start again are to find theirs. `anew`: nor was any test in this one, nor will be,
    as clients may live on, and take other nodes for their own."""
    own = [] if anew else [first for first in _places if first not in _given_once]
    for first in [*own, *(FIRST_PORT + (os.getpid() + at) % PLACES * PLACE for at in range(PLACES))]:
        if (first in own or _takes_place(first)) and _are_free(range(first, first + count)):
            if anew:
                _given_once.add(first)
            return first
    raise OSError(f"no {count} free ports in a row")


def _takes_place(first: int) -> bool:
    file = (Path(tempfile.gettempdir()) / f"fastq-tests-port-{first}").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return False
    _places[first] = file
    return True


def _are_free(ports: Iterable[int]) -> bool:
    with ExitStack() as taken:
        try:
            for port in ports:
                one = taken.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of before may still be ending
                one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Nodes:
    """The command at work."""

    def __init__(
        self, root: Path, port: int, session_ms: int = 1000, *more: str, open_files: int | None = None
    ) -> None:
        """`open_files`: how many each process may have."""
        self.bootstrap = f"127.0.0.1:{port}"
        """The first node."""
        self.servers = ",".join(f"127.0.0.1:{port + at}" for at in range(COUNT))
        command = [sys.executable, "-m", "fastq_broker", "--nodes", str(COUNT), "--data-dir", str(root)]
        for setting in ("broker.heartbeat.interval.ms=200", f"broker.session.timeout.ms={session_ms}"):
            command += ["--set", setting]
        if open_files is not None:
            command = ["bash", "-c", f'ulimit -n {open_files} && exec "$@"', "bash", *command]
        self.process = subprocess.Popen(
            [*command, "--listen", self.bootstrap, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.log: list[str] = []
        self._heard = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._heard:
                self.log.append(line)
                self._heard.notify_all()

    def says(self, pattern: str, times: int = 1) -> list[str]:
        """Wait until the log has so many of these lines."""

        def found() -> list[str]:
            return [line for line in self.log if re.search(pattern, line)]

        with self._heard:
            assert self._heard.wait_for(lambda: len(found()) >= times, 60), "".join(self.log)
        return found()

    def ready(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "".join(self.log)
        return line

    def end(self) -> tuple[int, str]:
        """After a signal: the code, and what else standard output got."""
        assert self.process.stdout is not None and self.process.stderr is not None
        code = self.process.wait(60)
        self._reader.join(10)
        rest = self.process.stdout.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return code, rest


@contextmanager
def running(
    root: Path, port: int, session_ms: int = 1000, *more: str, open_files: int | None = None
) -> Iterator[Nodes]:
    nodes = Nodes(root, port, session_ms, *more, open_files=open_files)
    try:
        yield nodes
    finally:
        for _ in range(3):  # the third one kills what is left
            if nodes.process.poll() is None:
                nodes.process.send_signal(signal.SIGTERM)
        nodes.process.wait(60)


def children(pid: int) -> dict[str, int]:
    """The nodes' processes, by name."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        name = re.search(r"log\.dirs=\S*?(node-\d+)", Path(f"/proc/{child}/cmdline").read_text().replace("\0", " "))
        assert name is not None
        found[name[1]] = int(child)
    return found
