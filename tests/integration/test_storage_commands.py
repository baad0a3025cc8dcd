"""`fastq-broker format`, `info` and `random-uuid` as processes, and the node that they make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fastq import Admin
from fastq.testing import Broker


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastq_broker", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_node_is_formatted_looked_at_and_started(tmp_path: Path) -> None:
    made = run("random-uuid")
    cluster_id = made.stdout.strip()
    assert (made.returncode, len(cluster_id), made.stderr) == (0, 22, "")
    data = tmp_path / "data"
    config = tmp_path / "server.properties"
    config.write_text(f"node.id=7\nlisteners=PLAINTEXT://:0,CONTROLLER://localhost:9093\nlog.dirs={data}\n")
    formatted = run("format", "--cluster-id", cluster_id, "--standalone", "--config", config)
    assert (formatted.returncode, formatted.stderr) == (0, "")
    assert formatted.stdout == f"Formatting dynamic metadata voter directory {data} with metadata.version 4.3-IV0.\n"
    again = run("format", "--cluster-id", cluster_id, "--standalone", "--config", config)
    assert again.returncode == 1
    assert again.stderr == (
        f"fastq-broker format: {data} is formatted already: --ignore-formatted leaves it so, and formats the others\n"
    )
    info = run("info", "--config", config)
    assert info.returncode == 0 and f"cluster.id={cluster_id}" in info.stdout and "node.id=7" in info.stdout
    assert run("info", "--data-dir", data).stdout == info.stdout
    assert run("info").returncode == 2
    with (
        Broker(data_dir=data, config={"node.id": 7}) as broker,
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):
        assert admin.describe_cluster().cluster_id == cluster_id


def test_a_node_among_others_is_formatted_and_ends_where_it_finds_no_controller(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        "process.roles=broker\nnode.id=7\ncontroller.quorum.bootstrap.servers=127.0.0.1:1,127.0.0.1:2\n"
        f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'data'}\ninitial.broker.registration.timeout.ms=1000\n"
    )
    formatted = run("format", "-t", "a-cluster", "-c", config)
    assert formatted.returncode == 0
    assert formatted.stdout.startswith("Formatting metadata directory ")
    started = run("--config", config)
    assert started.returncode == 1 and "INFO fastq_broker.controller.directory: formatted" not in started.stderr
    said = [line for line in started.stderr.splitlines() if line.startswith("fastq-broker: ")]
    assert said and said[-1].startswith(
        "fastq-broker: broker 7 was not registered within 1 s: is there an active controller"
    )
