"""The `fastq` command as a process: pipes that break, interrupts, streams that are closed. No traceback, and the right exit code."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fastq import Admin, Producer, TopicPartition
from fastq.testing import Broker

PROGRAMS = [[sys.executable, "-m", "fastq"], [sys.executable, "-m", "fastq.cli"]]
FASTQ = PROGRAMS[0]
COUNT = 50_000


@pytest.fixture(autouse=True)
def servers(shared_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FASTQ_BOOTSTRAP", shared_broker.bootstrap_servers)
    return shared_broker.bootstrap_servers


@pytest.fixture
def topic(servers: str, make_topic: Callable[..., str]) -> str:
    name = make_topic(servers, 2)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(name, [b"line %d" % number for number in range(COUNT)])
    return name


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, with pipes; ended at the end."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([*FASTQ, *arguments], stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit code and standard error; nothing of a traceback in it."""
    assert process.stderr is not None
    code, err = process.wait(60), process.stderr.read().decode()
    assert "Traceback" not in err and "Exception ignored" not in err, err
    return code, err


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[-1])
def test_the_module_is_the_command(program: list[str], topic: str) -> None:
    done = subprocess.run([*program, "topics", "list"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert topic in done.stdout.split()


@pytest.mark.parametrize("more", [[], ["--exit-at-end"], ["--json"], ["--verbose", "--exit-at-end"]], ids=" ".join)
def test_a_reader_that_goes_away(topic: str, more: list[str]) -> None:
    with started("consume", topic, "--from-beginning", *more) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert ended(process) == (141, "")


def test_help_for_a_reader_that_goes_away() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*FASTQ, "--help"], stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert done.returncode in (0, 141)  # argparse itself does not mind
    assert done.stderr == b""


def test_an_interrupt_while_consuming(topic: str) -> None:
    with started("consume", topic, "--from-beginning") as process:
        assert process.stdout is not None
        for _ in range(COUNT):
            assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "")


def test_a_termination_in_the_background_of_a_script(topic: str) -> None:
    """Where a shell has the process ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with started("consume", topic, "--from-beginning") as process:
            assert process.stdout is not None
            for _ in range(COUNT):
                assert process.stdout.readline()
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            assert ended(process) == (143, "")
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_termination_of_a_console_in_the_background_of_a_script() -> None:
    pytest.importorskip("uvicorn")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with started("console", "--listen", "127.0.0.1:0") as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"fastq console on")
            process.send_signal(signal.SIGTERM)
            assert ended(process) == (143, "")
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_producing(topic: str) -> None:
    with started("produce", topic) as process:
        assert process.stdin is not None
        process.stdin.write(b"line\n" * 100_000)
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        code, err = ended(process)
    assert code == 130
    assert "records" in err or err == ""


def test_what_an_interrupt_leaves_undelivered_is_no_line_twice() -> None:
    with Broker(in_memory=True) as broker:
        broker.fail("Produce", error="KAFKA_STORAGE_ERROR", times=None)
        with started("produce", "t", "--bootstrap", broker.bootstrap_servers) as process:
            assert process.stdin is not None and process.stderr is not None
            process.stdin.write(b"line\n")
            process.stdin.flush()
            told = [process.stderr.readline().decode()]  # once it is on its way
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
            told += process.stderr.read().decode().splitlines()
    assert "cannot be written to" in told[0] and "0 of 1 record was acknowledged" in told[-1]
    assert len(set(told)) == len(told)


def test_an_interrupt_without_a_broker() -> None:
    with started("topics", "list", "--bootstrap", "127.0.0.1:1", "--connect-timeout", "60") as process:
        assert process.stderr is not None
        assert b"127.0.0.1:1" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("gone", [False, True], ids=["with its broker", "its broker gone"])
def test_a_member_leaves_its_group(number: signal.Signals, code: int, gone: bool) -> None:
    """Also when nobody takes its commit: then without, and soon."""
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send_many("t", [b"line"] * 10)
        with started(
            "consume", "t", "--group", "g", "--from-beginning", "--bootstrap", broker.bootstrap_servers
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            for _ in range(10):
                assert process.stdout.readline() == b"line\n"
            if gone:
                broker.stop()
            process.send_signal(number)
            assert process.wait(20) == code  # 30 s are what a commit may take elsewhere
            assert b"Traceback" not in process.stderr.read()
        if not gone:
            assert not admin.describe_group("g").members


@pytest.mark.parametrize("closed", [0, 1, 2])
@pytest.mark.parametrize(
    "command", ["topics list", "produce {topic}", "consume {topic} --exit-at-end", "topics describe no-such"]
)
def test_closed_streams(topic: str, command: str, closed: int) -> None:
    done = subprocess.run(
        [*FASTQ, *command.format(topic=topic).split()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        preexec_fn=lambda: os.close(closed),
    )
    assert b"Traceback" not in done.stderr, done.stderr
    expected = {"produce {topic}": 2 if closed == 0 else 0, "topics describe no-such": 1}
    assert done.returncode == expected.get(command, 0)


def test_a_full_disk(topic: str) -> None:
    with open("/dev/full", "wb") as full:
        command = [*FASTQ, "consume", topic, "--from-beginning", "--exit-at-end"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (1, b"fastq: No space left on device\n")


LINES, PIPE_BYTES = 5_000, 4096
LINE_BYTES = 16


@pytest.fixture
def even(servers: str, make_topic: Callable[..., str]) -> str:
    """A topic of one partition whose lines are all as long: what of it fits into a pipe is known."""
    name = make_topic(servers, 1)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(name, [b"%015d" % number for number in range(LINES)])
    return name


def committed_of(servers: str, topic: str) -> int:
    with Admin(bootstrap_servers=servers) as admin:
        found = admin.list_group_offsets(topic).get(TopicPartition(topic, 0))
        return 0 if found is None else found.result().offset


@pytest.fixture
def as_group(even: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command that reads it as a group of the same name and commits often, and holds back what it writes, as Python does."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    command = ["consume", even, "--group", even, "--from-beginning", "--exit-at-end"]
    return [*FASTQ, *command, "--property", "auto.commit.interval.ms=50"]


def test_a_group_is_not_past_what_a_full_disk_took(servers: str, even: str, as_group: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(as_group, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (1, b"fastq: No space left on device\n")
    assert committed_of(servers, even) == 0


@pytest.mark.parametrize("ending", ["its reader goes", "it is killed"])
def test_a_group_is_not_past_what_was_written(servers: str, even: str, as_group: list[str], ending: str) -> None:
    """A pipe that is full holds the command while its commits go on by themselves."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    process = subprocess.Popen(as_group, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    try:
        assert os.read(reader, LINE_BYTES) == b"%015d\n" % 0
        deadline = time.monotonic() + 30
        while not committed_of(servers, even):
            assert time.monotonic() < deadline, "nothing was committed"
        if ending == "it is killed":
            process.kill()
            process.wait(30)
        os.close(reader)
        if ending == "its reader goes":
            assert ended(process) == (141, "")
    finally:
        process.kill()
        process.communicate()
    assert 0 < committed_of(servers, even) <= 1 + PIPE_BYTES // LINE_BYTES


def test_a_group_that_was_read_to_the_end_has_committed_all(servers: str, even: str, as_group: list[str]) -> None:
    done = subprocess.run(as_group, stdout=subprocess.PIPE, timeout=60, check=True)
    assert len(done.stdout) == LINES * LINE_BYTES and committed_of(servers, even) == LINES
