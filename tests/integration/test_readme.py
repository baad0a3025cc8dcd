"""The README works line by line, in its own order, on one broker that its own command starts."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
PORT = "127.0.0.1:9092"  # as it is written there
COMMANDS = {"fastq": [sys.executable, "-m", "fastq"], "fastq-broker": [sys.executable, "-m", "fastq_broker"]}
# Spark's JVM hangs up on a planning worker without reading its last four bytes: whether the worker still writes them then is a race
# of PySpark's own, which the worker's parent prints, as far as it comes: it is killed with the JVM.
DAEMON = re.compile(
    r"^Traceback .*\n(?:  File .*/pyspark/daemon\.py\".*\n(?:    .*\n)*)*(?:BrokenPipeError: .*\n|.*\Z)", re.MULTILINE
)
LASTING = "fastq console"  # serves until it is told to end
NOT_HERE = ("pip ", "make ")  # what sets the machine up, and has runs of its own


def blocks(language: str | None = None) -> list[tuple[str, str]]:
    """The code blocks as (language, text), in order; "" is the language of commands."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block for block in found if language is None or block[0] == language]


def test_there_are_blocks_of_both_kinds() -> None:
    assert len(blocks("python")) >= 4
    assert sum(line.startswith("fastq ") for _, text in blocks("") for line in text.splitlines()) >= 4


class Machine:
    """A directory, an address in place of the one in the README, and the broker once a line has started it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker: subprocess.Popen[str] | None = None
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.environment = {**os.environ, "FASTQ_BOOTSTRAP": self.address}

    def python(self, text: str, timeout_s: float = 100) -> None:
        program = self.directory / "program.py"
        program.write_text(text.replace(PORT, self.address))
        self.run(" ".join([shlex.quote(sys.executable), str(program)]), timeout_s)

    def line(self, text: str) -> None:
        """One line of a block of commands."""
        text = text.split("  #")[0].strip().replace(PORT, self.address)
        text = re.sub(r"--records \d{6,}", "--records 20000", text)  # the same, for less time
        if not text or text.startswith(NOT_HERE):
            return
        lasts = text.startswith(LASTING)
        for name, command in COMMANDS.items():
            text = re.sub(rf"(^|\| ){name} ", lambda found, words=command: f"{found[1]}{shlex.join(words)} ", text)
        if "fastq_broker" in text:
            self.broker = subprocess.Popen(
                shlex.split(text), cwd=self.directory, env=self.environment, stdout=subprocess.PIPE, text=True
            )
            assert self.broker.stdout is not None
            assert " ready on " in self.broker.stdout.readline()
        elif lasts:
            self.look_at(shlex.split(text))
        else:
            self.run(text)

    def look_at(self, command: list[str]) -> None:
        """A command that serves a page: it is there, and the command ends when it is told to."""
        command += ["--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            page = re.search(r"http://\S+", process.stdout.readline())
            assert page is not None
            assert urllib.request.urlopen(page[0], timeout=20).status == 200
            process.terminate()
            assert process.wait(20) in (0, 143)

    def run(self, command: str, timeout_s: float = 100) -> None:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        assert "Traceback" not in DAEMON.sub("", done.stderr), done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    if machine.broker is not None:
        machine.broker.terminate()
        machine.broker.communicate(timeout=30)


def test_every_line_works_in_the_order_of_the_page(machine: Machine) -> None:
    for language, text in blocks():
        if language == "python":
            if "fastq.spark" not in text:
                machine.python(text)
            continue
        for line in text.splitlines():
            machine.line(line)
    assert machine.broker is not None and machine.broker.poll() is None


@pytest.mark.slow
@pytest.mark.spark
def test_the_program_for_spark(machine: Machine) -> None:
    machine.line(f"fastq-broker --data-dir ./data --listen {PORT}")
    machine.line("echo hello | fastq produce logs")
    (program,) = [text for language, text in blocks() if language == "python" and "fastq.spark" in text]
    # 25 s alone, most of it the JVM and its workers: more on a machine that is busy.
    machine.python(program, timeout_s=400)


def test_what_it_links_to_is_there() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert targets
    missing = [target for target in targets if "://" not in target and not (README.parent / target).exists()]
    assert missing == []
