"""The broker as a process: what it does when descriptors run out, when signals come, while it recovers, and what its health says."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_kafka import RawConnection, batch, create_topic, fetch, produce

import fastq
from fastq._native.records import build_batch
from fastq.errors import ErrorCode
from fastq.protocol.messages import (
    DeleteRecordsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)


class Process:
    """A broker of the command line, its standard error in a file."""

    def __init__(self, directory: Path, *arguments: str, open_files: int | None = None, soft: bool = False) -> None:
        """`open_files`: how many it may have open, by its soft limit alone where that is `soft`."""
        self.log_path = directory / "stderr"
        command = [sys.executable, "-m", "fastq_broker", "--data-dir", str(directory / "data"), *arguments]
        if "--listen" not in arguments:
            command += ["--listen", "127.0.0.1:0"]
        if open_files is not None:
            command = ["bash", "-c", f'ulimit {"-Sn" if soft else "-n"} {open_files} && exec "$@"', "bash", *command]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.address = ""

    def wait_ready(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("fastq-broker ready on "), self.log()
        self.address = line.split()[3].rstrip(",")
        return self.address

    def log(self) -> str:
        return self.log_path.read_text()

    def lines_with(self, part: str) -> list[str]:
        return [line for line in self.log().splitlines() if part in line]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, answer the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def running(directory: Path, *arguments: str, open_files: int | None = None, soft: bool = False) -> Iterator[Process]:
    process = Process(directory, *arguments, open_files=open_files, soft=soft)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.wait()


def get(address: str, path: str) -> tuple[int, str]:
    """Status and body of an HTTP GET."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def is_open(sock: socket.socket) -> bool:
    """Whether the other end has not closed it, who sends nothing."""
    sock.settimeout(0.001)
    try:
        return sock.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("apart", [False, True], ids=["metadata beside topics", "metadata apart"])
def test_idle_connections_take_no_descriptor_from_the_storage(tmp_path: Path, apart: bool) -> None:
    settings = ["--set", "metadata.log.max.record.bytes.between.snapshots=100"]
    metadata = tmp_path / ("metadata" if apart else "data")
    if apart:
        settings += ["--set", f"metadata.log.dir={metadata}"]
    with running(tmp_path, "--metrics-listen", "127.0.0.1:0", *settings, open_files=256) as process:
        process.wait_ready()
        metrics = process.lines_with("metrics and health are served on")[0].rpartition(" ")[2]
        host, _, port = process.address.rpartition(":")
        with RawConnection(process.address) as connection, contextlib.ExitStack() as idle:
            create_topic(connection, "t", partitions=200, durability="fsync")
            places = [idle.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(316)]
            deadline = time.monotonic() + 30
            while len(places) > 256 // 2:  # who is refused sees it after a while
                assert time.monotonic() < deadline, f"{len(places)} connections are open"
                places = [sock for sock in places if is_open(sock)]
            for turn in range(3):  # more files than may be open, each with its syncs
                for partition in range(200):
                    answer = produce(connection, "t", batch(b"v" * 500), partition=partition)
                    assert (answer.error_code, answer.base_offset) == (0, turn)
            for partition in range(200):
                assert fetch(connection, "t", 1, partition=partition).error_code == 0
            before = set(metadata.rglob("*.checkpoint"))
            create_topic(connection, "late", partitions=20, durability="fsync")
            assert produce(connection, "late", batch(b"v"), partition=19).error_code == 0
            deadline = time.monotonic() + 30
            while not set(metadata.rglob("*.checkpoint")) - before:
                assert time.monotonic() < deadline, "no snapshot in half a minute"
                time.sleep(0.01)
            assert get(metrics, "/health/ready") == (200, "ready\n")
            assert len(process.lines_with("a connection was refused")) in (1, 2)
            assert "ulimit -n" in process.lines_with("a connection was refused")[0]
            assert not process.lines_with("offline") and not process.lines_with("EMFILE")
        # All are to be seen to have gone: then there is room again.
        while 'fastq_connections{listener="PLAINTEXT"}' in get(metrics, "/metrics")[1]:
            time.sleep(0.01)
        with RawConnection(process.address) as connection:
            assert produce(connection, "t", batch(b"more")).error_code == 0
        assert process.end() == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_the_soft_limit_is_raised(tmp_path: Path) -> None:
    with running(tmp_path, open_files=128, soft=True) as process:
        process.wait_ready()
        limits = Path(f"/proc/{process.process.pid}/limits")
        if limits.exists():
            soft, hard = next(line for line in limits.read_text().splitlines() if "open files" in line).split()[3:5]
            assert soft == hard and (hard == "unlimited" or int(hard) > 128)
        assert process.end() == 0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_the_version(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "fastq_broker", "--version"], capture_output=True, text=True, timeout=30
    )
    assert (told.returncode, told.stdout) == (0, f"fastq-broker {fastq.__version__}\n")


@pytest.mark.parametrize("option", ["--listen", "--advertise"])
@pytest.mark.parametrize(
    ("given", "example"), [("9092", "127.0.0.1:9092"), ("localhost", "127.0.0.1:9092"), ("h:65536", "127.0.0.1:9092")]
)
def test_an_address_that_is_none_is_told_in_the_option_s_words(
    tmp_path: Path, option: str, given: str, example: str
) -> None:
    command = [sys.executable, "-m", "fastq_broker", "--data-dir", str(tmp_path / "data"), option, given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    expected = f"fastq-broker: {option} {given!r}: it takes HOST:PORT, a port of 0 to 65535, as in {option} {example}\n"
    assert (done.returncode, done.stderr) == (2, expected)


def test_a_hang_up_changes_nothing_and_the_stop_has_a_last_line(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        process.wait_ready()
        process.process.send_signal(signal.SIGHUP)
        with RawConnection(process.address) as connection:
            create_topic(connection, "t")
            assert produce(connection, "t", batch(b"v")).error_code == 0
        assert process.end() == 0
    assert len(process.lines_with("SIGHUP changes nothing")) == 1
    assert process.log().splitlines()[-1].endswith(" INFO fastq_broker: stopped")


def test_a_hang_up_before_there_is_anybody_to_hear_it_waits(tmp_path: Path) -> None:
    """From the first module that it loads on: a reload while the service starts must not end it."""
    command = [sys.executable, "-X", "importtime", "-m", "fastq_broker", "--data-dir", str(tmp_path / "data")]
    command += ["--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        # It is loaded by others, and indented so.
        next(line for line in process.stderr if line.rpartition("|")[2].strip() == "asyncio.events")
        process.send_signal(signal.SIGHUP)
        # No more than this is read: the rest ends with the broker.
        said = next(line for line in process.stderr if "SIGHUP" in line or "ready" in line)
        assert "the file of settings is read again once" in said
        assert process.stdout.readline().startswith("fastq-broker ready")
        next(line for line in process.stderr if "SIGHUP changes nothing" in line)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(60) == 0


def test_a_second_signal_is_the_same_stop(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        process.wait_ready()
        with RawConnection(process.address) as connection:
            create_topic(connection, "t")
            host, _, port = process.address.rpartition(":")
            # A client that does not read keeps the stop waiting for its grace.
            with socket.create_connection((host, int(port))) as half:
                half.sendall(b"\0\0\1")
                process.process.send_signal(signal.SIGTERM)
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                    if process.process.poll() is None:
                        process.process.send_signal(number)
                assert process.wait() == 0
    assert process.log().splitlines()[-1].endswith("stopped")
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def make_ended(directory: Path, size: int, number: int = signal.SIGKILL) -> None:
    """A directory as a crash leaves it, or another signal, with a log of about `size` bytes above its recovery point and indexes."""
    with running(directory) as process:
        process.wait_ready()
        with RawConnection(process.address) as connection:
            create_topic(connection, "t", partitions=3)
            for partition in range(3):
                assert produce(connection, "t", batch(b"v"), partition=partition).error_code == 0
        process.end(number)
    one = build_batch([(1_700_000_000_000, None, b"v" * 20)], base_offset=0)
    log = directory / "data" / "t-1" / f"{0:020d}.log"
    count = size // len(one)
    with log.open("wb") as file:
        for offset in range(count):
            one[0:8] = offset.to_bytes(8, "big")
            file.write(one)


def test_a_recovery_is_watched_and_can_be_stopped(tmp_path: Path) -> None:
    make_ended(tmp_path, 60_000_000)
    port = free_port()
    with running(tmp_path, "--metrics-listen", f"127.0.0.1:{port}") as process:
        address = f"127.0.0.1:{port}"
        ready = 0, ""
        for _ in range(3000):
            with contextlib.suppress(OSError):  # it does not listen yet
                ready = get(address, "/health/ready")
            if "recovering" in ready[1]:
                break
            time.sleep(0.01)
        assert ready[0] == 503
        assert re.fullmatch(r"the broker is starting: recovering, \d of 3 logs, \d+ MB read\n", ready[1])
        assert get(address, "/health/live") == (200, "live\n")
        status, text = get(address, "/metrics")
        assert status == 200 and "fastq_log_dir_free_bytes{" in text
        assert process.end() == 1
        assert process.process.stdout is None or process.process.stdout.closed
    assert "stopped before it was ready" in process.log().splitlines()[-1]
    assert "Traceback" not in process.log()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    with running(tmp_path) as process:  # it is recovered again, and all of it is there
        process.wait_ready()
        with RawConnection(process.address) as connection:
            answer = fetch(connection, "t", 0, partition=1)
            assert answer.error_code == 0 and answer.high_watermark > 500_000
            assert fetch(connection, "t", 0, partition=0).high_watermark == 1
        assert process.end() == 0


def codes_of_all_who_touch(connection: RawConnection) -> dict[str, int]:
    """What each request that touches a log is answered for partition 1."""
    topic = "t"
    asked = ListOffsetsRequest.ListOffsetsPartition
    codes = {
        "produce": produce(connection, topic, batch(b"v"), partition=1).error_code,
        "fetch": fetch(connection, topic, 0, partition=1).error_code,
    }
    for timestamp in (-1, -2, -3, 1_000):
        topics = [
            ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked(partition_index=1, timestamp=timestamp)])
        ]
        answer = connection.call(ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        codes[f"list offsets {timestamp}"] = answer.topics[0].partitions[0].error_code
    epochs = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
        topic=topic,
        partitions=[OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=1, leader_epoch=0)],
    )
    answer = connection.call(OffsetForLeaderEpochRequest(topics=[epochs]), 4)
    codes["offset for leader epoch"] = answer.topics[0].partitions[0].error_code
    records = DeleteRecordsRequest.DeleteRecordsTopic(
        name=topic, partitions=[DeleteRecordsRequest.DeleteRecordsPartition(partition_index=1, offset=-1)]
    )
    answer = connection.call(DeleteRecordsRequest(topics=[records], timeout_ms=100), 2)
    codes["delete records"] = answer.topics[0].partitions[0].error_code
    producers = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[1])
    answer = connection.call(DescribeProducersRequest(topics=[producers]), 0)
    codes["describe producers"] = answer.topics[0].partitions[0].error_code
    return codes


def test_a_recovery_beside_a_broker_that_serves(tmp_path: Path) -> None:
    """After a clean stop a log may not be whole: nobody waits for it but who asks for it, and a signal ends it."""
    make_ended(tmp_path, 60_000_000, signal.SIGTERM)
    with running(tmp_path, "--metrics-listen", "127.0.0.1:0") as process:
        process.wait_ready()
        metrics = process.lines_with("metrics and health are served on")[0].rpartition(" ")[2]
        with RawConnection(process.address) as connection:
            codes = codes_of_all_who_touch(connection)
            assert codes == dict.fromkeys(codes, ErrorCode.REPLICA_NOT_AVAILABLE)
            assert fetch(connection, "t", 0, partition=0).high_watermark == 1
            assert produce(connection, "t", batch(b"v"), partition=0).error_code == 0
            answer = connection.call(DescribeLogDirsRequest(topics=None), 4)
            assert answer.results[0].error_code == 0
        assert get(metrics, "/health/live") == (200, "live\n")
        assert get(metrics, "/metrics")[0] == 200
        assert process.end() == 1
    assert "the next start recovers" in process.log().splitlines()[-1]
    assert "Traceback" not in process.log()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_clients_wait_for_a_log_that_is_recovered(tmp_path: Path) -> None:
    make_ended(tmp_path, 3_000_000, signal.SIGTERM)
    with running(tmp_path) as process, fastq.Producer(bootstrap_servers=process.wait_ready()) as producer:
        sent = producer.send("t", b"after", partition=1).result(timeout=60)
        assert sent.offset > 30_000
        with fastq.Consumer(bootstrap_servers=process.address) as consumer:
            consumer.assign([("t", 1)])
            consumer.seek(("t", 1), sent.offset)
            assert [record.value for record in consumer.poll(timeout=60)] == [b"after"]
    assert len(process.lines_with("is whole now: recovered in")) == 1
