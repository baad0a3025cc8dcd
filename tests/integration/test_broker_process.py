"""The command `fastq-broker`: its ready line, its errors, its ends, and what a restart finds."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nodes import free_ports
from raw_kafka import RawConnection, batch, create_topic, fetch, fetch_request, produce, produce_request

from fastq._native.records import iter_headers, read_header
from fastq.protocol.uuid import uuid_from_str
from fastq.testing import Broker, BrokerFailed


def run_broker(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end: for starts that must fail."""
    command = [sys.executable, "-m", "fastq_broker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def refused(*arguments: str) -> tuple[int, str]:
    """Exit code and the one line of a start that fails."""
    result = run_broker(*arguments)
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("fastq-broker:")]
    assert "Traceback" not in result.stderr
    assert len(lines) == 1, result.stderr
    return result.returncode, lines[0]


def test_the_ready_line_is_all_of_standard_output(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fastq_broker", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait(20) == 0
    head, _, seconds = line.rpartition(" in ")
    assert head.startswith("fastq-broker ready on 127.0.0.1:")
    assert int(head.rsplit(":", 1)[1]) > 0
    assert seconds.endswith(" s\n")
    assert float(seconds[:-3]) < 60
    assert rest == ""


@pytest.mark.parametrize("nodes", [1, 3])
def test_systemd_is_told(tmp_path: Path, nodes: int) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(30)
        first = free_ports(2 * nodes)
        process = subprocess.Popen(
            [sys.executable, "-m", "fastq_broker", "--nodes", str(nodes), "--data-dir", str(tmp_path / "data"),
             "--listen", f"127.0.0.1:{first}"],
            env={**os.environ, "NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        told = []
        while not told or told[-1] != "WATCHDOG=1":
            told.append(manager.recv(4096).decode())
        process.send_signal(signal.SIGTERM)
        while told[-1] != "STOPPING=1":
            told.append(manager.recv(4096).decode())
        assert process.wait(30) == 0
    assert told[0] == "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=starting"
    assert sum(line.startswith("READY=1") for line in told) == 1, "the nodes below tell nobody"


def test_a_node_ends_with_who_supervises_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fastq_broker", "--supervised", "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline().startswith(b"fastq-broker ready")
    assert process.poll() is None
    rest, log = process.communicate(timeout=30)  # ends its standard input, as the supervisor's own end does
    assert process.returncode == 0 and rest == b""
    assert b"that started this node has ended: stopping" in log and log.rstrip().endswith(b"stopped")


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, line = refused("--data-dir", str(tmp_path), "--listen", f"127.0.0.1:{port}")
    assert code == 1
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


def test_a_directory_that_another_broker_has() -> None:
    with Broker() as broker:
        code, line = refused("--data-dir", str(broker.data_dir), "--listen", "127.0.0.1:0")
        assert code == 1
        assert str(broker.data_dir) in line
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, "unharmed")


def test_a_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    code, line = refused("--data-dir", str(tmp_path / "file"), "--listen", "127.0.0.1:0")
    assert code == 1
    assert str(tmp_path / "file") in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "log.retention.hour=1"], ["log.retention.hour", "log.retention.hours"]),
        (["--set", "num.partitions=many"], ["num.partitions", "many"]),
        (["--set", "nonsense"], ["nonsense", "KEY=VALUE"]),
        (["--listen", "nowhere"], ["nowhere"]),
        (["--config", "/no/such/file.toml"], ["/no/such/file.toml"]),
    ],
)
def test_a_bad_configuration(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    code, line = refused("--data-dir", str(tmp_path / "data"), *arguments)
    assert code == 2
    for word in words:
        assert word in line


def test_the_node_of_a_directory_is_kept(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", node_id=7):
        pass
    code, line = refused("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--node-id", "8")
    assert code == 1
    assert "node 7" in line


@pytest.mark.parametrize("crash", [False, True])
def test_a_restart_keeps_what_was_acknowledged(crash: bool) -> None:
    with Broker() as broker:
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, "kept", partitions=3)
            for i in range(30):
                assert produce(connection, "kept", batch(b"%d" % i), partition=i % 3).error_code == 0
        if crash:
            broker.kill()
            broker.start()
        else:
            broker.restart()
        with RawConnection(broker.bootstrap_servers) as connection:
            for partition in range(3):
                answer = fetch(connection, "kept", 0, partition=partition)
                assert answer.high_watermark == 10
                produced = produce(connection, "kept", batch(b"after"), partition=partition)
                assert (produced.error_code, produced.base_offset) == (0, 10)
            epoch = read_header(fetch(connection, "kept", 10).records).partition_leader_epoch
            assert epoch == (1 if crash else 0), "a new leader epoch begins only where the stop was not clean"


def test_a_stop_answers_long_polls_and_ends_soon() -> None:
    with Broker() as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        connection.send(fetch_request("t", 0, max_wait_ms=60_000), 12)
        time.sleep(0.1)
        started = time.monotonic()
        broker.stop()
        assert time.monotonic() - started < 50
        assert bytes(connection.receive().responses[0].partitions[0].records) == b""
        assert connection.closed()


def test_ipv6_and_an_advertised_address() -> None:
    from fastq.protocol.messages import MetadataRequest

    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    config = {"advertised.listeners": "PLAINTEXT://broker.example:19092"}
    with Broker(host="::1", config=config) as broker, RawConnection(broker.bootstrap_servers) as connection:
        (node,) = connection.call(MetadataRequest(topics=[]), 12).brokers
        assert (node.host, node.port) == ("broker.example", 19092)


def test_a_failed_start_shows_the_log(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", config={"num.partitions": "many"})
    with pytest.raises(BrokerFailed, match=r"num\.partitions"):
        broker.start()


def test_memory_of_an_idle_broker_stays_small() -> None:
    with Broker() as broker:
        time.sleep(0.2)
        status = Path(f"/proc/{broker.pid}/status")
        if not status.exists():
            pytest.skip("needs /proc")
        resident = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
        assert int(resident.split()[1]) < 80 * 1024


def test_what_would_protect_and_is_not_honoured_ends_the_start(tmp_path: Path) -> None:
    setting = ["--set", "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"]
    code, line = refused("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", *setting)
    assert code == 2
    assert "--insecure-ignore authorizer.class.name" in line
    log = tmp_path / "log"
    ignoring = ["--insecure-ignore", "authorizer.class.name", "--insecure-ignore", "acls"]
    for _ in range(2):  # it is said at each start
        with log.open("w") as file:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "fastq_broker", "--data-dir", str(tmp_path / "data")),
                    *("--listen", "127.0.0.1:0", *setting, *ignoring),
                ],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
            assert process.stdout is not None
            process.stdout.readline()
            process.terminate()
            assert process.wait(20) == 0
            process.stdout.close()
        lines = [line for line in log.read_text().splitlines() if "INSECURE" in line]
        assert len(lines) == 1 and "WARNING" in lines[0] and "authorizer.class.name" in lines[0]


def test_a_metadata_directory_serves_one_broker(tmp_path: Path) -> None:
    """Whatever directories their logs have: both would write to the one metadata log."""
    shared = f"metadata.log.dir={tmp_path / 'metadata'}"
    with Broker(data_dir=tmp_path / "one", config={"metadata.log.dir": tmp_path / "metadata"}):
        code, line = refused("--data-dir", str(tmp_path / "two"), "--listen", "127.0.0.1:0", "--set", shared)
        assert code == 1
        assert "another process holds the lock" in line and "metadata/.lock" in line
        (tmp_path / "two").mkdir()
        repair = run_broker("repair", "--data-dir", str(tmp_path / "two"), "--set", shared)
        assert repair.returncode == 2
        assert "another process holds the lock" in repair.stderr


def test_names_of_clients_begin_no_line_of_the_log(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        with RawConnection(broker.bootstrap_servers) as connection:
            asked = produce_request("a\n2026-01-01 ERROR forged\x1b[31m", batch(b"v"), acks=0)
            connection.send(asked, 9, expects_response=False)
            assert connection.closed()
        with RawConnection(broker.bootstrap_servers) as connection:
            topic_id = uuid_from_str("AAAAAAAAAAAAAAAAAAAAAQ")
            connection.send(produce_request(topic_id, batch(b"v"), acks=0), 13, expects_response=False)
            assert connection.closed()
    lines = [line for line in broker.log.splitlines() if "acks=0 failed" in line]
    assert r"a\n2026-01-01 ERROR forged\x1b[31m" in lines[0]
    assert "AAAAAAAAAAAAAAAAAAAAAQ-0" in lines[1]
    assert not any(line.startswith("2026-01-01 ERROR forged") for line in broker.log.splitlines())
    assert "\x1b" not in broker.log


def run_limited(limits: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Start a broker under limits of the shell's `ulimit` that it cannot start with."""
    words = [sys.executable, "-m", "fastq_broker", "--data-dir", str(directory), "--listen", "127.0.0.1:0"]
    command = ["sh", "-c", f"ulimit {limits}; exec {shlex.join(words)}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_start_without_descriptors_says_what_to_raise(tmp_path: Path) -> None:
    """Wherever it runs out of them: while the loop is made, a module is loaded, or a file of the data directory is read."""
    with Broker(data_dir=tmp_path):
        pass
    for limit in range(9, 17):
        ended = run_limited(f"-n {limit}", tmp_path)
        assert ended.returncode == 1, (limit, ended.stdout)
        (line,) = [line for line in ended.stderr.splitlines() if line.startswith("fastq-broker: ")]
        assert "Too many open files" in line and "aise the limit of open files" in line, limit
        assert "Traceback" not in ended.stderr, limit
    with Broker(data_dir=tmp_path) as broker:
        assert broker.running


def test_a_limit_of_file_sizes_is_named(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path):
        pass
    ended = run_limited("-f 1", tmp_path)
    assert ended.returncode == 1
    assert "Raise the limit of file sizes (ulimit -f" in ended.stderr
    assert "Traceback" not in ended.stderr
    with Broker(data_dir=tmp_path) as broker:
        assert broker.running


def test_a_stop_that_fails_on_the_disk_says_so_and_the_next_start_recovers(tmp_path: Path) -> None:
    """The disk fails while everything is written down: code 1, which file, and no mark of a clean stop."""
    with Broker(data_dir=tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        for number in range(20):
            assert produce(connection, "t", batch(b"%d" % number)).error_code == 0
        checkpoint = tmp_path / "replication-offset-checkpoint.tmp"
        checkpoint.mkdir()  # what the stop writes, and cannot
        with pytest.raises(BrokerFailed, match="ended with code 1"):
            broker.stop()
        text = broker.log
    assert "replication-offset-checkpoint" in text and "stopped, but not cleanly: the next start recovers" in text
    assert "Traceback" not in text
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    checkpoint.rmdir()
    with Broker(data_dir=tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert "had not been closed cleanly" in broker.log
        offset = 0
        while offset < 20:
            offset = list(iter_headers(bytes(fetch(connection, "t", offset).records)))[-1][1].next_offset
