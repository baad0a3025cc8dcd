"""docs/operations.md works as it stands, in its own order: a node becomes three, a fourth comes and goes, all with what the page says.

Rules: ports and waits differ from the page, nothing else. A line that starts nodes is waited for before the next one that does not. What
needs Apache Kafka is marked as text: `interop/test_rolling_replacement.py` does that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from nodes import free_ports

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operations.md"
PORTS = ("9092", "9093", "9192", "9193", "9292", "9293", "9392")
READY = """ready() {
  for log in node-?.log; do
    until grep -q " ready on " "$log" || ! kill -0 "$(cat "${log%.log}.pid")" 2>/dev/null; do sleep 0.05; done
  done
}
"""


def blocks() -> list[tuple[str, str]]:
    """The code blocks as (language, text), in order; "" is the language of commands."""
    return re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def script() -> str:
    """All blocks as one program of the shell."""
    lines = ["set -eo pipefail", READY]
    for language, text in blocks():
        if language == "properties":
            name = re.match(r"# (\S+)\n", text)
            assert name is not None, "the first line names the file"
            lines.append(f"cat > {name[1]} <<'END'\n{text}END")
        elif language == "python":
            lines.append(f"python - <<'END'\n{text}END")
        elif language != "text":
            for line in text.splitlines():
                if not line.startswith("fastq-broker --"):
                    lines.append("ready")
                lines.append(line)
    lines += ["ready", "fastq cluster nodes --json > nodes.json"]
    found = "\n".join(lines).replace("tail --pid", "tail -s 0.05 --pid").replace("sleep 1;", "sleep 0.1;")
    first = free_ports(len(PORTS))
    ports = {port: str(first + at) for at, port in enumerate(PORTS)}
    return re.sub(rf":({'|'.join(PORTS)})\b", lambda port: f":{ports[port[1]]}", found)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None or sys.platform != "linux", reason="commands of a Linux shell")
def test_every_command_works_in_the_order_of_the_page(tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    # No link for python: an interpreter takes the place that it was called by for its environment's.
    for name, module in (("fastq", " -m fastq"), ("fastq-broker", " -m fastq_broker"), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        (commands / name).chmod(0o755)
    text = script()
    (address,) = set(re.findall(r"--listen (\S+)", text))
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "FASTQ_BOOTSTRAP": address}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        done = subprocess.run(
            ["bash", "-xc", text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        logs = "".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in tmp_path.glob("node-?.log"))
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}\n{logs}"
        assert "Traceback" not in done.stderr + logs, done.stderr + logs
        nodes = json.loads((tmp_path / "nodes.json").read_text())
        assert [(one["node"], one["state"], one["replicas"], one["in_sync"]) for one in nodes] == [
            (node, "running", 6, 6) for node in (1, 2, 3)
        ]
        assert "all replicas are the same" in done.stdout
    finally:
        end(tmp_path)


def end(directory: Path) -> None:
    """Kill what still runs."""
    for path in directory.glob("node-?.pid"):
        pid = int(path.read_text())
        with suppress(OSError):
            if str(path.stem) in Path(f"/proc/{pid}/cmdline").read_text():  # it is still ours
                os.kill(pid, signal.SIGKILL)


def test_what_it_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / target).exists(), target
    for name in re.findall(r"`(test_\w+\.py)`", PAGE.read_text(encoding="utf-8")):
        assert (ROOT / "tests" / "interop" / name).exists(), name
