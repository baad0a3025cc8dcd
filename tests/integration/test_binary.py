"""`make binary`'s one file in a root that has nothing but it and an empty /tmp: no C library, no /proc, no /dev, no /etc, no environment.

The oracle is a client outside, of the sources: what the binary has written it reads, and the other way round. FASTQ_BINARY names a binary
that was made before; else one is made, which takes a quarter of a minute.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nodes import free_ports

from fastq import Admin, Consumer, Producer
from fastq.admin import NewTopic

ROOT = Path(__file__).resolve().parents[2]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

OFTEN = ("--set", "log.cleaner.backoff.ms=100", "--set", "log.retention.check.interval.ms=100")

pytestmark = pytest.mark.soak


class EmptyRoot:
    """A directory that is / for the binary in it."""

    def __init__(self, path: Path, binary: Path) -> None:
        self.path = path
        (path / "tmp").mkdir(parents=True)
        shutil.copy(binary, path / "fastq-broker")
        (path / "fastq").symlink_to("fastq-broker")

    def command(self, *arguments: str) -> list[str]:
        as_root = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]
        return [*as_root, shutil.which("chroot") or "/usr/sbin/chroot", str(self.path), *arguments]

    def run(self, *arguments: str, text: str = "", environment: dict[str, str] | None = None) -> tuple[int, str, str]:
        done = subprocess.run(
            self.command(*arguments), input=text, capture_output=True, text=True, timeout=60, env=environment or {}
        )
        return done.returncode, done.stdout, done.stderr

    def output(self, *arguments: str, text: str = "") -> str:
        code, out, err = self.run(*arguments, text=text)
        assert code == 0, (arguments, code, out, err)
        return out


class Running:
    """A process of the binary, with what it says."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # ignored, where tests run in the background
        )
        self.log: list[str] = []
        self._said, self._ended = threading.Condition(), 0
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any) -> None:
        for line in stream:
            with self._said:
                self.log.append(line)
                self._said.notify_all()
        with self._said:
            self._ended += 1
            self._said.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line that matches."""
        found: list[re.Match[str]] = []

        def said() -> bool:
            found.extend(match for line in self.log if (match := re.search(pattern, line)))
            return bool(found) or self._ended == 2

        with self._said:
            assert self._said.wait_for(said, 60) and found, (pattern, self.log)
        return found[0]

    def interrupt(self) -> int:
        """Ctrl-C: SIGINT to all processes of the terminal's group."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        for reader in self._readers:
            reader.join(60)
        assert self.process.stdout is not None and self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "FASTQ_BINARY" in os.environ:
        return Path(os.environ["FASTQ_BINARY"]).resolve()
    output = tmp_path_factory.mktemp("dist")
    made = subprocess.run(
        [sys.executable, str(ROOT / "tools/binary/build.py"), "--output", str(output)], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return output / "fastq-broker"


@pytest.fixture(scope="module")
def root(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmptyRoot]:
    path = tmp_path_factory.mktemp("empty") / "root"
    yield EmptyRoot(path, binary)
    shutil.rmtree(path)


@pytest.fixture
def start(root: EmptyRoot) -> Iterator[Callable[..., Running]]:
    open_ones: list[Running] = []

    def start(*arguments: str, command: list[str] | None = None, environment: dict[str, str] | None = None) -> Running:
        open_ones.append(Running(command or root.command(*arguments), environment or {}))
        return open_ones[-1]

    yield start
    for running in open_ones:
        running.close()


def ready(broker: Running) -> str:
    return broker.wait_for(r"ready(?:: 3 nodes)? on (127\.0\.0\.1:\d+)")[1]


def values(root: EmptyRoot, servers: str, topic: str) -> list[str]:
    out = root.output("/fastq", "consume", topic, "--from-beginning", "--exit-at-end", "--json", "--bootstrap", servers)
    return [json.loads(line)["value"] for line in out.splitlines()]


def has_compacted(broker: Running, servers: str) -> None:
    """Its cleaner, a process of its own, has done a round."""
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1048576"}
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(name="compacted", partitions=1, configs=compacted)])
    with Producer(bootstrap_servers=servers, batch_size=4096) as producer:
        for number in range(3000):
            producer.send("compacted", b"%04d" % number * 250, key=b"key-%d" % (number % 3))
    broker.wait_for(r"compacted-0: compacted up to offset")


def test_it_is_one_file_that_asks_for_no_other(binary: Path) -> None:
    headers = subprocess.run(["readelf", "-l", str(binary)], capture_output=True, text=True, check=True).stdout
    assert "INTERP" not in headers and "DYNAMIC" not in headers
    assert binary.stat().st_size < 60e6


def test_versions_and_exit_codes(root: EmptyRoot) -> None:
    version = root.output("/fastq-broker", "--version").split()
    assert version[0] == "fastq-broker"
    assert root.output("/fastq", "--version").split() == ["fastq", version[1]]
    code, _, err = root.run("/fastq-broker", "--set", "no.such.setting=1")
    assert code == 2 and "no.such.setting" in err
    code, _, err = root.run("/fastq", "topics", "list", "--bootstrap", "127.0.0.1:9", "--connect-timeout", "1")
    assert code == 3, err
    assert "complete" in root.output("/fastq", "completion", "bash")


def test_one_node_with_every_codec_its_cleaner_and_ctrl_c(root: EmptyRoot, start: Callable[..., Running]) -> None:
    broker = start("/fastq-broker", "--data-dir", "/tmp/one", "--listen", "127.0.0.1:0", *OFTEN)
    servers = ready(broker)
    pid = broker.process.pid
    assert Path(f"/proc/{pid}/comm").read_text() == "fastq-broker\n"
    assert Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2] == [b"fastq-broker", b"--data-dir"]

    for codec in CODECS:
        line = f"from inside, {codec}"
        root.output(
            "/fastq", "produce", codec, "--property", f"compression.type={codec}", "--bootstrap", servers, text=line
        )
        with Producer(bootstrap_servers=servers, compression_type=codec) as producer:
            producer.send(codec, f"from outside, {codec}".encode())
        with Consumer(codec, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            assert [record.value.decode() for record in consumer.read_to_end()] == [line, f"from outside, {codec}"]
        assert values(root, servers, codec) == [line, f"from outside, {codec}"]

    has_compacted(broker, servers)
    assert broker.interrupt() == 0
    broker.wait_for(r"fastq_broker: stopped$")


def test_three_nodes_and_ctrl_c(root: EmptyRoot, start: Callable[..., Running]) -> None:
    cluster = start(
        "/fastq-broker", "--nodes", "3", "--data-dir", "/tmp/three", "--listen", f"127.0.0.1:{free_ports(6)}"
    )
    servers = ready(cluster)
    root.output("/fastq", "topics", "create", "logs", "--replication-factor", "3", "--bootstrap", servers)
    root.output("/fastq", "produce", "logs", "--property", "acks=all", "--bootstrap", servers, text="one\ntwo\n")
    assert sorted(values(root, servers, "logs")) == ["one", "two"]
    assert cluster.interrupt() == 0, cluster.log


def test_a_mirror_and_the_console(root: EmptyRoot, start: Callable[..., Running]) -> None:
    servers = [
        ready(start("/fastq-broker", "--data-dir", f"/tmp/{name}", "--listen", "127.0.0.1:0")) for name in ("A", "B")
    ]
    root.output("/fastq", "produce", "logs", "--bootstrap", servers[0], text="mirrored\n")
    (root.path / "tmp/mirror.toml").write_text(
        f'source = {{ alias = "A", bootstrap_servers = "{servers[0]}" }}\n'
        f'target = {{ alias = "B", bootstrap_servers = "{servers[1]}" }}\n'
        'mirror = { topics = ["logs"], names = "identity" }\n'
    )
    mirror = start("/fastq", "mirror", "--config", "/tmp/mirror.toml")
    with Consumer("logs", bootstrap_servers=servers[1], auto_offset_reset="earliest") as consumer:
        assert next(iter(consumer)).value == b"mirrored"
    assert mirror.interrupt() in (0, 130), mirror.log

    console = start("/fastq", "console", "--listen", "127.0.0.1:0", "--bootstrap", servers[1])
    url = console.wait_for(r"fastq console on (http://\S+)")[1]
    with urllib.request.urlopen(f"{url}c/cluster/topics", timeout=30) as page:
        assert "logs" in page.read().decode()
    assert console.interrupt() in (0, 130), console.log


EVERY_MODULE = """
import importlib, pkgutil, sys, fastq, fastq_broker
failed = {}
for package in (fastq, fastq_broker):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda name: None):
        if module.name.startswith("fastq.spark") or module.name.endswith((".__main__", ".pytest_plugin", ".tracing", ".oidc")):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            failed[module.name] = str(error)
import fastavro, google.protobuf, jsonschema, lz4, snappy, uvloop, xxhash, zstandard
jsonschema.Draft202012Validator({"type": "integer"}).validate(1)
print(failed, sys.prefix, [path for path in sys.path if not path.startswith(sys.prefix)])
"""


def test_all_modules_are_there_and_none_of_elsewhere(root: EmptyRoot) -> None:
    root.output("/fastq", "--version")
    (python,) = (root.path / "tmp").glob("fastq-0/*/bin/fastq-python")
    inside = f"/{python.relative_to(root.path)}"
    environment = {"PYTHONPATH": "/elsewhere", "PYTHONHOME": "/elsewhere", "LD_LIBRARY_PATH": "/elsewhere"}
    code, out, err = root.run(inside, "-c", EVERY_MODULE, environment=environment)
    assert (code, out, err) == (0, f"{{}} {Path(inside).parents[1]} []\n", "")


def test_closed_streams_stay_closed(root: EmptyRoot) -> None:
    """What is held open for the process's life does not become its standard output."""
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&- <&-', "sh", *root.command("/fastq-broker", "--version")], capture_output=True, timeout=60
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_no_tmp_at_all(root: EmptyRoot, binary: Path, tmp_path: Path) -> None:
    """A directory of one's own choice is enough; without any, the error says which were looked at."""
    bare = EmptyRoot(tmp_path / "root", binary)
    (bare.path / "tmp").rmdir()
    code, _, err = bare.run("/fastq-broker", "--version")
    assert code == 1 and "/tmp/fastq-" in err and "FASTQ_RUNTIME_DIR" in err
    (bare.path / "run").mkdir(mode=0o700)
    code, out, err = bare.run("/fastq-broker", "--version", environment={"FASTQ_RUNTIME_DIR": "/run"})
    assert (code, err) == (0, "") and out.startswith("fastq-broker ")


def test_a_root_that_cannot_be_written_to(binary: Path, start: Callable[..., Running], tmp_path: Path) -> None:
    """As an image has it that was made with its files unpacked: only the data can be written."""
    image = EmptyRoot(tmp_path / "root", binary)
    (image.path / "tmp").rmdir()
    (image.path / "data").mkdir()
    environment = {"FASTQ_RUNTIME_DIR": "/opt"}
    code, _, err = image.run("/fastq-broker", "--version", environment=environment)
    assert code == 0, err
    script = (
        'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && mount -t tmpfs none "$0/data" && '
        'cd "$0" && ! touch here 2>&- && exec "$@"'
    )
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    chroot = shutil.which("chroot") or "/usr/sbin/chroot"
    broker = start(
        command=[
            *(shutil.which("unshare") or "/usr/bin/unshare", "--mount", *as_root, "sh", "-c", script, str(image.path)),
            *(chroot, str(image.path), "/fastq-broker", "--data-dir", "/data/log", "--listen", "127.0.0.1:0", *OFTEN),
        ],
        environment=environment | {"PATH": os.environ["PATH"]},
    )
    has_compacted(broker, ready(broker))
    assert broker.interrupt() == 0, broker.log
    shutil.rmtree(image.path)
