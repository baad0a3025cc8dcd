"""docs/tutorial.md works line by line, in its own order, and prints what it shows; and so does the first page of the site.

Rules: only the port differs from the page. A block of commands is run as it stands, but that what serves until it is stopped is waited for
until it is ready. A block of text behind commands is what they print, in any order of its lines. What installs has runs of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import free_ports

DOCS = Path(__file__).resolve().parents[2] / "docs"
ADDRESS = "127.0.0.1:9092"  # as it is written there
INSTALLS = ("python3 -m venv ", "pip ")
SERVES = "fastq-broker --"
PORTS_OF_A_CLUSTER = 6  # three for clients, and behind them those of the controllers


def blocks(page: str = "tutorial.md") -> list[tuple[str, str]]:
    """The code blocks as (language, text), in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody who does what the page says, in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.served: list[subprocess.Popen[str]] = []
        self.address = f"127.0.0.1:{free_ports(PORTS_OF_A_CLUSTER)}"
        commands = directory / "bin"
        commands.mkdir()
        for name, module in (("fastq", " -m fastq"), ("fastq-broker", " -m fastq_broker"), ("python", "")):
            (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
            (commands / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "FASTQ_BOOTSTRAP": self.address,
        }

    def write(self, program: str) -> None:
        name = re.match(r"# (\w+\.py)\n", program)
        assert name is not None, f"the first line names the file:\n{program}"
        (self.directory / name[1]).write_text(program.replace(ADDRESS, self.address))

    def do(self, commands: str) -> str:
        """What they print."""
        lines = [line for line in commands.splitlines() if not line.startswith(INSTALLS)]
        if any(line.startswith(SERVES) for line in lines):
            (line,) = lines
            self.serve(line.replace(ADDRESS, self.address))
            return ""
        script = "\n".join(["set -eo pipefail", *lines]).replace("sleep 1;", "sleep 0.1;")
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"{commands}\n{done.stderr}"
        return done.stdout

    def serve(self, line: str) -> None:
        with open(self.directory / "broker.log", "a") as log:
            process = subprocess.Popen(
                shlex.split(line),
                cwd=self.directory,
                env=self.environment,
                executable=str(self.directory / "bin" / "fastq-broker"),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.served.append(process)
        assert process.stdout is not None
        assert " ready" in process.stdout.readline(), (self.directory / "broker.log").read_text()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    for process in reader.served:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)


def follow(reader: Reader, page: list[tuple[str, str]]) -> None:
    printed = ""
    for language, text in page:
        if language == "python":
            reader.write(text)
        elif language == "text":
            assert sorted(map(str.rstrip, printed.splitlines())) == sorted(text.splitlines())
        else:
            assert language == "sh"
            printed = reader.do(text)
    assert all(process.wait(30) == 0 for process in reader.served), "the page stops what it starts"


ON_LINUX = pytest.mark.skipif(
    shutil.which("bash") is None or sys.platform != "linux", reason="commands of a Linux shell"
)
WHOLE = blocks()
CLUSTER_FROM = next(at for at, (_, text) in enumerate(WHOLE) if text.startswith("fastq-broker --nodes"))


def test_the_page_has_what_it_promises() -> None:
    assert sum(language == "python" for language, _ in WHOLE) >= 5
    assert sum(language == "text" for language, _ in WHOLE) >= 7


@pytest.mark.slow
@ON_LINUX
def test_one_broker_as_the_page_has_it(reader: Reader) -> None:
    follow(reader, WHOLE[:CLUSTER_FROM])


@pytest.mark.slow
@ON_LINUX
def test_three_nodes_as_the_page_has_them(reader: Reader) -> None:
    follow(reader, WHOLE[CLUSTER_FROM:])


@pytest.mark.slow
@ON_LINUX
def test_the_program_of_the_first_page(reader: Reader) -> None:
    (_, broker), (_, program) = blocks("index.md")
    reader.do(broker)
    reader.write(f"# first.py\n{program}")
    assert reader.do("python first.py") == "0 0 b'host-1' b'line'\n"
