"""SIGHUP: the file of settings is read again. What may change counts at once, what may not is named, a bad file changes nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig
from fastq_broker.config_keys import ConfigSource, ResourceType
from fastq_broker.controller.config_changes import ConfigChange, ResourceChange
from fastq_broker.controller.topics import NewTopic
from fastq_broker.reload import Reloader
from fastq_broker.topic_config import broker_layers_of

from fastq import Admin
from fastq.admin import ConfigResource
from fastq.errors import ErrorCode

FIRST = """log.retention.hours=24
log.cleaner.threads=2
num.io.threads=3
"""


class Reloaded:
    """A broker whose file is written and read again."""

    def __init__(self, broker: Broker, path: Path, insecure_ignore: tuple[str, ...] = ()) -> None:
        self.broker = broker
        self.path = path
        overrides = {"log.dirs": str(path.parent / "data"), "listeners": "PLAINTEXT://127.0.0.1:0"}
        self.reloader = Reloader(broker.controller, str(path), overrides, insecure_ignore)

    def reload(self, text: str) -> bool:
        self.path.write_text(text)
        return self.reloader.reload()

    def retention_ms(self, topic: str) -> int:
        replica = self.broker.replicas.get(topic, 0)
        assert replica is not None
        return replica.log.config.retention_ms


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Reloaded], Awaitable[None]]], None]:
    def running(test: Callable[[Reloaded], Awaitable[None]]) -> None:
        async def main() -> None:
            path = tmp_path / "server.properties"
            path.write_text(FIRST)
            overrides = {"log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0"}
            broker = Broker(BrokerConfig.read(path, overrides), asyncio.get_running_loop())
            await broker.start()
            try:
                broker.controller.create_topics([NewTopic("t", 1, 1)])
                broker.controller.settle()
                await broker.controller.flushed()
                await asyncio.wait_for(test(Reloaded(broker, path)), 30)
            finally:
                assert await broker.close()

        asyncio.run(main())

    return running


Run = Callable[[Callable[[Reloaded], Awaitable[None]]], None]


def test_what_may_change_counts_at_once_and_nothing_is_written(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def test(one: Reloaded) -> None:
        broker = one.broker
        end, image = broker.controller.quorum.end_offset, broker.image
        assert one.retention_ms("t") == 24 * 3_600_000
        assert one.reload("log.retention.hours=48\nlog.cleaner.threads=3\ndisk.refuse.free.bytes=77\n")
        assert one.retention_ms("t") == 48 * 3_600_000
        assert broker.cleaner.config.threads == 3
        assert broker.space.marks.refuse_bytes == 77
        assert one.reload("log.retention.ms=5000\n")
        assert (one.retention_ms("t"), broker.cleaner.config.threads) == (5000, 1)
        layer = broker_layers_of("log.retention.ms", broker.controller.layers)[0]
        assert (layer.value, layer.source) == (5000, ConfigSource.STATIC_BROKER_CONFIG)
        assert (broker.controller.quorum.end_offset, broker.image) == (end, image)
        assert one.reload(FIRST) and one.retention_ms("t") == 24 * 3_600_000

    run(test)
    said = [record.getMessage() for record in caplog.records if "SIGHUP" in record.getMessage()]
    assert "log.cleaner.threads=3; log.retention.hours=48" in said[0] and len(said) == 3, said


def test_what_was_altered_stands_above_the_file(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def test(one: Reloaded) -> None:
        change = ResourceChange(ResourceType.BROKER, "1", [ConfigChange("log.retention.ms", 0, "9000")])
        assert [result.error for result in one.broker.controller.alter_configs([change])] == [ErrorCode.NONE]
        one.broker.controller.settle()
        await one.broker.controller.flushed()
        assert one.reload("log.retention.ms=5000\n")
        assert one.retention_ms("t") == 9000
        change = ResourceChange(ResourceType.BROKER, "1", [ConfigChange("log.retention.ms", 1, None)])
        one.broker.controller.alter_configs([change])
        one.broker.controller.settle()
        await one.broker.controller.flushed()
        assert one.retention_ms("t") == 5000

    run(test)
    assert "log.retention.ms=5000 (which was altered by AlterConfigs, and that stands above it)" in caplog.text


def test_what_cannot_change_is_named_in_one_line(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def test(one: Reloaded) -> None:
        file = "log.retention.hours=48\nnum.partitions=7\ndurability=fsync\nnum.io.threads=9\n"
        for _ in range(2):
            caplog.clear()
            assert one.reload(file)
            (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
            assert line.endswith("count from the next start on: durability, num.partitions"), (
                "num.io.threads has no effect"
            )
        assert one.retention_ms("t") == 48 * 3_600_000
        assert one.broker.controller.config.num_partitions == 1

    run(test)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("log.retention.hours=many\n", "log.retention.hours = 'many' is not allowed"),
        ("log.retention.hour=3\n", "did you mean log.retention.hours?"),
        ("authorizer.class.name=a.b.C\n", "--insecure-ignore authorizer.class.name"),
        (None, "cannot read the configuration"),
    ],
)
def test_a_bad_file_changes_nothing_and_says_so(
    run: Run, caplog: pytest.LogCaptureFixture, text: str | None, word: str
) -> None:
    async def test(one: Reloaded) -> None:
        if text is None:
            one.path.unlink()
            assert not one.reloader.reload()
        else:
            assert not one.reload(f"log.cleaner.threads=5\n{text}")
        assert one.retention_ms("t") == 24 * 3_600_000
        assert one.broker.cleaner.config.threads == 2
        assert one.reload(FIRST)

    run(test)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert word in line and "is not taken, and nothing has changed" in line


def test_names_of_hosts_are_not_looked_up_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count from the next start on. The loop would wait for a name server, and without one nothing of the file was taken."""

    def away(*_: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def test(one: Reloaded) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", away)
            assert one.reload("log.retention.hours=48\nmax.connections.per.ip.overrides=clients.example:7\n")
            assert not one.reload("log.retention.hours=72\nmax.connections.per.ip.overrides=clients.example:many\n")
        assert one.retention_ms("t") == 48 * 3_600_000

    run(test)


def test_a_pipe_is_not_read_twice(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def test(one: Reloaded) -> None:
        one.path.unlink()
        os.mkfifo(one.path)
        assert not one.reloader.reload(), "it would wait for who writes"
        one.path.unlink()
        read, write = os.pipe()
        os.close(write)
        one.path.symlink_to(f"/dev/fd/{read}")
        assert not one.reloader.reload(), "it has been read, and is empty"
        os.close(read)
        assert one.retention_ms("t") == 24 * 3_600_000

    run(test)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(lines) == 2 and all("is not taken, and nothing has changed: it is no file" in line for line in lines)


# --- the command


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], socket.socket, Path]]:
    """A broker that a service manager has started, and what that hears."""
    path, notify = tmp_path / "server.properties", tmp_path / "notify"
    path.write_text(f"{FIRST}log.dirs={tmp_path}/data\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, (tmp_path / "errors").open("w") as errors:
        manager.bind(str(notify))
        manager.settimeout(30)
        process = subprocess.Popen(
            [sys.executable, "-m", "fastq_broker", "--config", str(path)],
            env={**os.environ, "NOTIFY_SOCKET": str(notify)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield process, manager, path
        finally:
            process.kill()
            process.communicate()


def test_the_signal_reaches_the_broker_and_the_service_manager_hears(
    started: tuple[subprocess.Popen[str], socket.socket, Path],
) -> None:
    process, manager, path = started
    assert process.stdout is not None
    servers = process.stdout.readline().split()[3]
    while not manager.recv(4096).startswith(b"READY=1"):
        pass
    for text, word in (("log.retention.ms=77000", "log.retention.ms=77000"), ("no.such.key=1", "is not taken")):
        path.write_text(f"{FIRST}log.dirs={path.parent}/data\nlisteners=PLAINTEXT://127.0.0.1:0\n{text}\n")
        process.send_signal(signal.SIGHUP)
        told = manager.recv(4096).decode()
        assert told.startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert 0 <= time.monotonic_ns() // 1000 - int(told.rpartition("=")[2]) < 60_000_000
        assert manager.recv(4096).startswith(b"READY=1")
        assert word in (path.parent / "errors").read_text()
    with Admin(bootstrap_servers=servers) as admin:
        (configs,) = admin.describe_configs([ConfigResource.broker(1)]).results().values()
    assert configs["log.retention.ms"].value == "77000"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_without_a_file_and_below_a_supervisor_the_signal_does_no_harm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fastq_broker", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None and process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        line = next(line for line in process.stderr if "SIGHUP" in line)
        assert "SIGHUP changes nothing: this broker was started without a file" in line
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
