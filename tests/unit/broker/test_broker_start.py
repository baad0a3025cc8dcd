"""Starts that fail, in this process: they leave no thread and no directory behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.broker import Broker, StartFailed, StartStopped
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.image import MetadataDelta
from fastq_broker.controller.replay import Replayer
from fastq_broker.controller.storage import format_directories
from fastq_broker.descriptors import DescriptorPlan
from fastq_broker.metrics import BrokerMetrics, MeteredRouter

from fastq.errors import ConfigError, FastqError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


made: list[Broker] = []
"""Those of a test: what has them still must not keep their threads."""


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    made.clear()


def start(directory: Path, port: int = 0, **settings: str) -> None:
    """Start a broker, and close it where that goes well."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    config = BrokerConfig.from_mapping(
        {"log.dirs": str(directory), "listeners": f"PLAINTEXT://127.0.0.1:{port}", **named}
    )

    async def run() -> None:
        broker = Broker(config, asyncio.get_running_loop())
        made.append(broker)
        await broker.start()
        await broker.close()

    asyncio.run(run())


TIMES = 6


def threads() -> int:
    """Of this process, native ones too. Other tests' libraries have some that come and go, so it takes several starts to see what one
    leaves."""
    return len(os.listdir("/proc/self/task"))


def test_the_room_beside_the_metadata_is_looked_after_where_that_has_a_disk_of_its_own(tmp_path: Path) -> None:
    logs, metadata = str(tmp_path / "logs"), str(tmp_path / "metadata")
    for settings, looked_at in (
        ({"metadata_log_dir": metadata}, {logs, metadata}),
        ({"metadata_log_dir": logs}, {logs}),
    ):
        shutil.rmtree(logs, ignore_errors=True)
        start(Path(logs), **settings)
        made[-1].space.look_now()
        assert set(made[-1].space.looks) == looked_at


def test_a_port_in_use_leaves_nothing(tmp_path: Path, taken: int) -> None:
    before, directory = threads(), tmp_path / "new" / "data"
    for _ in range(TIMES):
        with pytest.raises(StartFailed, match="in use"):
            start(directory, taken)
    assert threads() < before + TIMES
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_leaves_a_directory_that_is_there_as_it_is(tmp_path: Path, taken: int) -> None:
    with pytest.raises(StartFailed, match="in use"):
        start(tmp_path, taken)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at", ["lock", "metadata", "logs"])
def test_a_start_that_fails_later_leaves_no_threads(tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path)
    settings: dict[str, str] = {}
    expected: type[Exception] = ConfigError
    if at == "lock":
        settings["metadata_log_dir"] = str(tmp_path / "file")
        (tmp_path / "file").touch()
    elif at == "metadata":
        settings["node_id"] = "2"
    else:
        expected = FastqError

        async def fail(_: Broker) -> None:
            raise FastqError("no logs")

        monkeypatch.setattr(Broker, "_attach_logs", fail)
    before = threads()
    for _ in range(TIMES):
        with pytest.raises(expected):
            start(tmp_path, **settings)
    assert threads() < before + TIMES
    monkeypatch.undo()
    start(tmp_path)


@pytest.mark.parametrize("stopped", [False, True])
def test_the_loop_goes_on_while_a_lone_node_reads_its_metadata(
    tmp_path: Path, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health is answered meanwhile, and a signal is heard."""
    start(tmp_path)
    reads, goes_on = threading.Event(), threading.Event()
    begin_at = Replayer.begin_at

    def wait(replayer: Replayer, *arguments: Any) -> MetadataDelta:
        reads.set()
        assert goes_on.wait(20), "the loop stands still"
        return begin_at(replayer, *arguments)

    monkeypatch.setattr(Replayer, "begin_at", wait)
    config = BrokerConfig.from_mapping({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"})

    async def run() -> None:
        broker = Broker(config, asyncio.get_running_loop())
        made.append(broker)
        metrics = BrokerMetrics(broker, MeteredRouter(broker))
        starting = asyncio.ensure_future(broker.start())
        assert await asyncio.to_thread(reads.wait, 20)
        assert metrics.death() is None and metrics.problem() == "the broker is starting"
        assert "kafka_server_raftmetrics_current_leader" in metrics.text()
        if stopped:
            broker.stop_start()
        goes_on.set()
        try:
            await starting
        finally:
            await broker.close()

    if stopped:
        with pytest.raises(StartStopped):
            asyncio.run(run())
        monkeypatch.undo()
        start(tmp_path)
    else:
        asyncio.run(run())


def among_others() -> dict[str, str]:
    return {
        "node_id": "3",
        "process_roles": "broker,controller",
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "controller_quorum_voters": "1@127.0.0.1:1,2@127.0.0.1:1,3@127.0.0.1:1",
    }


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (None, "is not formatted, and this node is one of several"),
        ("meta.properties", "meta.properties has no version"),
        (
            "__cluster_metadata-0/quorum-state",
            "quorum-state is not JSON.*remove it while the other controllers have a leader",
        ),
    ],
)
def test_a_node_among_others_that_cannot_open_its_metadata_says_that_alone(
    damage: str | None, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if damage is not None:
        format_directories([tmp_path], 3, "a" * 22)
        (tmp_path / damage).parent.mkdir(exist_ok=True)
        (tmp_path / damage).write_text("")
    with pytest.raises(ConfigError, match=says):
        start(tmp_path, **among_others())
    assert not [record for record in caplog.records if record.exc_info]


ENDED = """
import os, signal, threading
from fastq_broker import __main__ as command

threading.Thread(target=threading.Event().wait, daemon=True).start()
loop = command._new_loop()

async def signals():
    command._take_signals(loop, lambda: False, lambda: None)

loop.run_until_complete(signals())
command.hold_signals(loop)
loop.close()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    os.kill(os.getpid(), number)
"""


def test_a_signal_at_the_very_end_does_not_change_how_the_process_ends() -> None:
    """Whoever stops several nodes tells one again when the others have gone, which may be as it ends. Other threads are there still."""
    assert subprocess.run([sys.executable, "-c", ENDED], timeout=60).returncode == 0


def test_clients_take_no_descriptor_of_the_listener_between_brokers(tmp_path: Path) -> None:
    config = BrokerConfig.from_mapping(
        {
            "log.dirs": str(tmp_path),
            "listeners": "PLAINTEXT://127.0.0.1:0,NODES://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,NODES:PLAINTEXT",
            "inter.broker.listener.name": "NODES",
        }
    )

    async def run() -> None:
        broker = Broker(config, asyncio.get_running_loop(), descriptors=DescriptorPlan(64, 16, 40, 8, 2))
        made.append(broker)
        await broker.start()
        clients, nodes = (listener.port for listener in broker.advertised_listeners)
        try:
            sockets = [socket.create_connection(("127.0.0.1", clients)) for _ in range(9)]
            sockets += [socket.create_connection(("127.0.0.1", nodes)) for _ in range(2)]
            for _ in range(1000):
                if sum(each.listener == "NODES" for each in broker.server.connections) == 2:
                    break
                await asyncio.sleep(0.005)
            assert sorted(each.listener for each in broker.server.connections) == ["NODES"] * 2 + ["PLAINTEXT"] * 6
            for each in sockets:
                each.close()
        finally:
            await broker.close()

    asyncio.run(run())


def test_a_metadata_log_in_a_directory_of_its_own_shares_the_files_and_the_budget_of_the_others(tmp_path: Path) -> None:
    """An open of it that finds no descriptor has files of topics closed, and what it holds is part of the half that is for files."""

    async def scenario() -> None:
        config = BrokerConfig.from_mapping(
            {"node.id": 1, "log.dirs": str(tmp_path / "data"), "metadata.log.dir": str(tmp_path / "metadata")}
        )
        broker = Broker(config, asyncio.get_running_loop())
        try:
            own = broker.controller.log_dir
            assert own not in broker.logs.dirs
            assert own.budget is broker.logs.budget and own.files is broker.logs.files
            assert own.files.make_room is not None
        finally:
            await broker.close()

    asyncio.run(scenario())
