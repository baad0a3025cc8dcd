"""`fastq-broker status` and `stop`: nodes are found by the locks on their directories, and stopped in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fastq_broker import processes
from fastq_broker.__main__ import main
from fastq_broker.log.directories import DirectoryLocks
from nodes import children, free_ports, running

from fastq.testing import Broker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def said(capfd: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """What a command prints, its errors behind it."""
    capfd.readouterr()
    assert main([str(argument) for argument in arguments]) == code
    out, err = capfd.readouterr()
    assert "Traceback" not in err and err.count("\n") <= 1
    return out + err


def test_a_node_is_found_and_stopped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data, config={"node.id": 4711}) as broker:
        told = said(capfd, 0, "status", "--data-dir", data)
        assert told.startswith("node 4711 of cluster ") and f"runs as pid {broker.pid} since " in told
        (row,) = json.loads(said(capfd, 0, "status", "--data-dir", data, "--json"))
        assert row["listening"] == [broker.bootstrap_servers] and row["pid"] == broker.pid and row["held_by"] is None
        rows = json.loads(said(capfd, 0, "status", "--json"))
        assert row in rows
        assert "holds no such node" in said(capfd, 2, "stop", "--data-dir", data, "--node-id", 5)
        assert "which one? give --data-dir" in said(capfd, 2, "stop")
        lines = said(capfd, 0, "stop", "--node-id", 4711).splitlines()
        assert lines == [f"stopping node 4711 (pid {broker.pid})", "node 4711 has stopped"]
        assert (data / ".kafka_cleanshutdown").exists()
    assert f"node 4711 in {data} does not run" in said(capfd, 1, "stop", "--data-dir", data)
    assert "does not run" in said(capfd, 1, "status", "--data-dir", data)
    assert "no node 4711 of this user runs" in said(capfd, 1, "stop", "--node-id", 4711)


@pytest.mark.slow
def test_the_nodes_of_one_command_are_stopped_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    with running(root, free_ports(6)) as nodes:
        nodes.ready()
        rows = json.loads(said(capfd, 0, "status", "--data-dir", root, "--json"))
        assert {f"node-{row['node_id']}": row["pid"] for row in rows} == children(nodes.process.pid)
        assert {row["supervisor_pid"] for row in rows} == {nodes.process.pid}
        refused = said(capfd, 2, "stop", "--data-dir", root / "node-2")
        assert f"belongs to fastq-broker --nodes (pid {nodes.process.pid})" in refused
        assert f"stop all of them with --data-dir {root}" in refused
        assert "has stopped" in said(capfd, 0, "stop", "--data-dir", root)
        assert nodes.end()[0] == 0


def test_who_holds_a_directory_and_is_no_broker(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=9\ncluster.id=c\n")
    locks = DirectoryLocks()
    locks.take(str(tmp_path))
    assert processes.holders([tmp_path, tmp_path / "none"]) == {tmp_path: os.getpid()}
    assert f"held by pid {os.getpid()}, which is no fastq-broker" in said(capfd, 0, "status", "--data-dir", tmp_path)
    assert "which is no fastq-broker" in said(capfd, 2, "stop", "--data-dir", tmp_path)
    locks.release()
    with (tmp_path / ".lock").open():  # open, and not locked
        assert processes.holders([tmp_path]) == {}
    assert processes.process(2**22 + 1) is None


@pytest.mark.parametrize(
    ("words", "serves", "supervised"),
    [
        (("python", "-m", "fastq_broker", "--supervised", "--set", "a=b"), True, True),
        (("/usr/bin/python3", "/usr/bin/fastq-broker", "--nodes", "3"), True, False),
        (("python", "/x/fastq_broker/__main__.py"), True, False),
        (("python", "-m", "fastq_broker", "repair", "--data-dir", "x"), False, False),
        (("java", "-cp", "x", "kafka.Kafka", "fastq-broker"), False, False),
    ],
    ids=str,
)
def test_what_a_process_is(words: tuple[str, ...], serves: bool, supervised: bool) -> None:
    found = processes.Process(1, 0, words, 0.0)
    assert (found.is_broker, found.is_supervised) == (serves, supervised)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("stop", "--data-dir", "/no/such"), "/no/such is no directory"),
        (("status", "--data-dir", "{empty}"), "no meta.properties is there"),
        (("status", "--config", "/no/such"), "cannot read the configuration /no/such"),
    ],
    ids=str,
)
def test_wrong_places(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert words in said(capfd, 2, *(word.format(empty=tmp_path) for word in arguments))


def test_a_time_that_is_none() -> None:
    command = [sys.executable, "-m", "fastq_broker", "stop", "--data-dir", "x", "--timeout", "soon"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "a number of seconds is expected, not 'soon'" in done.stderr
