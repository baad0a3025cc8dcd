"""What systemd is told, and when."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastq_broker import service_manager
from fastq_broker.__main__ import _parser
from fastq_broker.cluster.nodes import SHUTDOWN_S
from fastq_broker.exit_codes import WRONG_USAGE
from fastq_broker.service_manager import ServiceManager

UNIT = Path(__file__).parents[3] / "ops" / "fastq-broker.service"


class Listener:
    """The manager's end."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


class Loop:
    """Timers by a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[asyncio.TimerHandle, Callable[[], object]]] = []

    def call_later(self, delay: float, call: Callable[..., object], *given: object) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.now + delay, call, given, self)  # type: ignore[arg-type]
        self._timers.append((handle, partial(call, *given)))
        return handle

    def pass_by(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self._timers if not timer[0].cancelled() and timer[0].when() <= end]:
            first = min(due, key=lambda timer: timer[0].when())
            self._timers.remove(first)
            self.now = first[0].when()
            first[1]()
        self.now = end

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """What a real loop counts."""


def test_a_life_is_told_and_the_watchdog_fed(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "8000000", "WATCHDOG_PID": "7", "A": "b"}
    manager = ServiceManager(environment, 7)
    assert environment == {"A": "b"}, "what the broker starts is not who is watched"
    clock = Loop()
    loop: Any = clock
    manager.starting(loop, lambda: f"starting: {clock.now:.0f} of 9 logs")
    clock.pass_by(12)
    extended = "EXTEND_TIMEOUT_USEC=30000000\nSTATUS="
    assert listener.heard() == [f"{extended}starting: {n} of 9 logs" for n in (0, 5, 10)]
    manager.ready(loop, "ready on here")
    clock.pass_by(11)
    assert listener.heard() == ["READY=1\nSTATUS=ready on here", *["WATCHDOG=1"] * 3], "twice in eight seconds"
    manager.stopping(loop)
    clock.pass_by(6)
    assert listener.heard() == ["STOPPING=1", *[f"{extended}stopping", "WATCHDOG=1"] * 2]
    manager.close()
    clock.pass_by(60)
    assert listener.heard() == []
    listener.close()


def test_a_stop_while_it_starts_and_a_second_one_ask_for_time_once(tmp_path: Path) -> None:
    """The first went on asking: its status came and went with the other's, after the end too."""
    listener = Listener(tmp_path / "notify")
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}, 7)
    clock = Loop()
    loop: Any = clock
    manager.starting(loop, lambda: "starting")
    clock.pass_by(1)
    for _ in range(2):
        manager.stopping(loop)
    assert len(listener.heard()) == 5
    clock.pass_by(6)
    assert listener.heard() == ["EXTEND_TIMEOUT_USEC=30000000\nSTATUS=stopping"]
    manager.close()
    clock.pass_by(60)
    assert listener.heard() == []
    listener.close()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nobody/listens"},
        {"NOTIFY_SOCKET": "host:9"},
        {"NOTIFY_SOCKET": "@fastq-nobody", "WATCHDOG_USEC": "-1"},
    ],
)
def test_nobody_to_tell_is_no_fault(environment: dict[str, str]) -> None:
    manager = ServiceManager(environment, 1)

    async def live() -> None:
        loop = asyncio.get_running_loop()
        manager.starting(loop, lambda: "starting")
        manager.ready(loop, "ready")
        manager.stopping(loop)
        manager.close()

    asyncio.run(live())


def test_a_manager_that_takes_nothing_for_a_while_hears_of_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_manager, "AGAIN_S", 0.01)
    listener = Listener(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as crowd:
        crowd.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                crowd.sendto(b"x", str(tmp_path / "notify"))
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}, 7)

    async def live() -> list[str]:
        manager.ready(asyncio.get_running_loop(), "ready")
        assert set(listener.heard()) == {"x"}
        told: list[str] = []
        for _ in range(500):
            await asyncio.sleep(0.01)
            if told := listener.heard():
                break
        await asyncio.sleep(0.05)
        return told + listener.heard()

    assert asyncio.run(live()) == ["READY=1\nSTATUS=ready"]
    listener.close()


def test_a_status_is_one_line_whatever_a_directory_is_called(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "notify")
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}, 7)
    manager.tell("READY=1", "STATUS=reads /a\nREADY=0 \udcff")
    assert listener.heard() == ["READY=1\nSTATUS=reads /a READY=0 \\udcff"]
    listener.close()


def test_a_manager_that_takes_nothing_for_a_while_hears_of_a_reloads_end_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_manager, "AGAIN_S", 0.01)
    listener = Listener(tmp_path / "notify")
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}, 7)

    def crowded() -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as crowd:
            crowd.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    crowd.sendto(b"x", str(tmp_path / "notify"))
        return True

    async def live() -> list[str]:
        loop = asyncio.get_running_loop()
        manager.ready(loop, "ready")
        manager.reloading(loop, crowded)
        assert listener.heard()[0] == "READY=1\nSTATUS=ready"
        told: list[str] = []
        for _ in range(500):
            await asyncio.sleep(0.01)
            if told := listener.heard():
                break
        return told

    assert asyncio.run(live()) == ["READY=1\nSTATUS=ready"]
    listener.close()


def test_a_reload_ends_whatever_it_came_to_and_a_good_one_takes_a_bad_ones_words_back(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "notify")
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}, 7)

    def fail() -> bool:
        raise RuntimeError

    async def live() -> None:
        loop = asyncio.get_running_loop()
        manager.ready(loop, "ready on here")
        manager.reloading(loop, lambda: False)
        manager.reloading(loop, lambda: True)
        with pytest.raises(RuntimeError):
            manager.reloading(loop, fail)
        manager.close()

    asyncio.run(live())
    told = [each for each in listener.heard() if each.startswith("READY=1")][1:]
    mistake = "READY=1\nSTATUS=ready on here; the file of settings has a mistake, and was not taken"
    assert told == [mistake, "READY=1\nSTATUS=ready on here", mistake]
    listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="abstract names are Linux'")
def test_a_manager_with_an_abstract_name_is_told() -> None:
    name = f"fastq-test-{os.getpid()}-\u00e9"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.settimeout(10)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}, 7).tell("READY=1")
        assert listener.recv(100) == b"READY=1"


def test_who_is_watched_is_fed_again_after_a_shortage_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog starved, and the manager ended a broker that was well."""
    listener = Listener(tmp_path / "notify")
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "8000000"}, 7)
    clock, short = Loop(), [0]
    loop: Any = clock
    call_later, connect = clock.call_later, socket.socket

    def no_timer(*arguments: Any) -> Any:
        if short[0]:
            short[0] -= 1
            raise MemoryError("none left")
        return call_later(*arguments)

    def no_socket(*arguments: Any) -> Any:
        if short[0]:
            raise MemoryError("none left")
        return connect(*arguments)

    monkeypatch.setattr(clock, "call_later", no_timer)
    monkeypatch.setattr(service_manager.socket, "socket", no_socket)
    manager.ready(loop, "ready")
    assert listener.heard() == ["READY=1\nSTATUS=ready", "WATCHDOG=1"]
    for shortage in (1, 2):
        short[0] = shortage
        with suppress(MemoryError):
            clock.pass_by(5)
        clock.pass_by(3)
        assert "WATCHDOG=1" in listener.heard(), f"{shortage} in a row"
        clock.pass_by(30)
        assert len(listener.heard()) >= 7
    manager.close()
    listener.close()


def test_who_is_not_watched_feeds_nobody(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "8"}
    loop: Any = Loop()
    ServiceManager(environment, 7).ready(loop, "ready")
    loop.pass_by(60)
    assert listener.heard() == ["READY=1\nSTATUS=ready"]
    listener.close()


def test_the_unit_starts_what_there_is(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name == "fastq-broker"
    parsed = _parser().parse_args(arguments)
    assert (parsed.config, parsed.log_format) == ("/etc/fastq/server.properties", "json")
    assert (service["Type"], service["RestartPreventExitStatus"]) == ("notify", str(WRONG_USAGE))
    # Where a relative log.dirs may be written.
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    assert float(service["TimeoutStartSec"]) > 2 * service_manager.ASK_S
    assert float(service["TimeoutStopSec"]) >= SHUTDOWN_S
    if analyze := shutil.which("systemd-analyze"):  # systemd's own word, where it is
        copy = tmp_path / "fastq-broker.service"
        copy.write_text(UNIT.read_text().replace(f"ExecStart={program} ", "ExecStart=/bin/true "))
        done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        hardened = [analyze, "security", "--offline=yes", "--threshold=20", str(copy)]
        assert subprocess.run(hardened, capture_output=True, timeout=60).returncode == 0, "exposure above 2.0 of 10"


def test_the_unit_says_how_passwords_are_kept_and_who_looks_at_the_file() -> None:
    header = UNIT.read_text().partition("[Unit]")[0]
    commands = [shlex.split(line[1:], comments=True) for line in header.splitlines() if re.match("#   [a-z]", line)]
    programs = [words[0] for words in commands]
    (copy,) = [words for words in commands if words[-1] == "/etc/fastq/server.properties" and words[0] == "install"]
    options = dict(zip(copy[2:8:2], copy[3:8:2], strict=True))
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(UNIT)
    user, group, files = (unit["Service"][key] for key in ("User", "Group", "LimitNOFILE"))
    assert options == {"-m": "0640", "-o": "root", "-g": group}
    added = commands[programs.index("useradd")]
    assert "--user-group" in added and added[-1] == user == group and commands.index(added) < commands.index(copy)
    # What root may do, and a shell's limit, is not what holds for the service.
    (check,) = [words for words in commands if "--check-config" in words]
    assert check[:6] == ["prlimit", f"--nofile={files}", "runuser", "-u", user, "--"]
    assert _parser().parse_args(check[7:]).config == "/etc/fastq/server.properties"
    (made,) = [words for words in commands if words[:2] == ["install", "-d"]]
    assert made[-1] == unit["Service"]["WorkingDirectory"] and commands.index(made) < commands.index(check)
