"""`fastq metadata`: the tree of a live cluster and of its files. tests/interop compares it with what Kafka's metadata shell shows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastq import Admin
from fastq._native.records import iter_headers
from fastq.cli import main, metadata
from fastq.testing import Broker

Ask = Callable[..., str]


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    """Runs the command and answers what it printed, its errors behind it."""

    def run(*words: object, code: int = 0) -> str:
        capfd.readouterr()
        assert main(["metadata", *map(str, words)]) == code
        out, err = capfd.readouterr()
        return out + err

    return run


def test_a_live_cluster_and_its_files_tell_the_same(tmp_path: Path, ask: Ask) -> None:
    with Broker(data_dir=tmp_path / "data") as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic("logs", 2, 1, configs={"retention.ms": "1000"})
        admin.create_topic("copies", 1, 1)
        live = ("--bootstrap", broker.bootstrap_servers)
        tree = json.loads(ask("tree", "/image", "--json", *live))["/image"]
        file = json.loads(ask("tree", "/image", "--json", "--file", tmp_path / "data"))["/image"]
        assert _within(tree["topics"], file["topics"])
        otherwise = ("metadataVersion", "finalized_kraft.version")  # one by its name, one that no metadata record has
        levels = {name: level for name, level in tree["features"].items() if name not in otherwise}
        assert _within(levels, file["features"]) and levels
        assert tree["configs"] == file["configs"]
        assert list(tree["cluster"]["brokers"]) == list(file["cluster"]["brokers"]) == ["1"]
        assert ask("ls", "/image/topics/byName", *live).split() == ["copies", "logs"]
        assert ask("find", "/image/topics/byName", "--name", "1", *live) == "/image/topics/byName/logs/1\n"
        assert ask("cat", "/image/configs/TOPIC:logs/*", *live) == "1000\n"
        assert ask("cat", "/image/topics/byName/logs/1", *live).startswith(
            "PartitionRegistration(replicas=[1], isr=[1], "
        )
        assert "is a folder; fastq metadata tree" in ask("cat", "/image/topics", *live, code=1)
        assert "there is no such path; fastq metadata find" in ask("ls", "/image/topicz", *live, code=1)


def _within(part: Any, whole: Any) -> bool:
    """Whether all that the first says is said by the other too."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(name in whole and _within(part[name], whole[name]) for name in part)
    return bool(part == whole)


def test_files_of_every_kind(tmp_path: Path, ask: Ask) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic("logs", 1, 1)
    log = data / "__cluster_metadata-0"
    (first,) = log.glob("*.log")
    (snapshot,) = log.glob("*.checkpoint")
    whole = ask("tree", "--file", data)
    assert ask("tree", "--file", log) == ask("tree", "/image", "--file", first) == whole
    assert "topics:\n  byId:\n  byName:\n" in ask("tree", "--file", snapshot)  # the first one is empty
    assert ask("ls", "/image/features", "--file", snapshot) == ""
    assert "PartitionRegistration(replicas=[1], directories=[" in whole
    assert ask("ls", "/", "--file", data) == "image\n"
    assert ask("ls", "/image/topics/byName/log?", "/image/features", "--file", data).startswith(
        "/image/topics/byName/logs:\n0\nid\n"
    )
    copy = tmp_path / "00000000000000000007.log"
    shutil.copy(first, copy)
    assert "begins with offset 7: what was before is in a snapshot" in ask("ls", "--file", copy, code=2)
    copy = tmp_path / "copy-of-a.log"
    shutil.copy(first, copy)
    assert ask("tree", "--file", copy) == whole
    copy.write_bytes(b"no log at all")
    assert "copy-of-a.log holds no metadata" in ask("ls", "--file", copy, code=2)
    first.write_bytes(first.read_bytes()[:-3])  # as a running node's may end
    ask("ls", "/image/topics/byName", "--file", log)
    damaged = bytearray(first.read_bytes())
    damaged[200] ^= 1
    first.write_bytes(damaged)
    assert f"{first} is damaged" in ask("ls", "--file", first, code=1)
    assert f"{first} is damaged" in ask("ls", "--file", log, code=1)
    (data / "none").mkdir()
    assert "holds no metadata" in ask("ls", "--file", data / "none", code=2)
    assert "a .checkpoint or .log" in ask("ls", "--file", data / "meta.properties", code=2)


def test_a_log_with_a_gap_is_not_told_as_if_it_were_whole(tmp_path: Path, ask: Ask) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        for name in ("a", "b", "c"):
            admin.create_topic(name, 1, 1)
    log = data / "__cluster_metadata-0"
    (first,) = log.glob("*.log")
    whole = first.read_bytes()
    starts = [(position, header.base_offset) for position, header in iter_headers(whole)]
    (cut, missing), (behind, offset) = starts[3:5]
    second = log / f"{offset:020d}.log"
    first.write_bytes(whole[:behind])
    second.write_bytes(whole[behind:])
    assert ask("ls", "/image/topics/byName", "--file", log) == "a\nb\nc\n"
    first.write_bytes(whole[:cut])
    told = ask("ls", "/image/topics/byName", "--file", log, code=1)
    assert f"{second} goes on with offset {offset}, and what is before it ends with {missing - 1}" in told
    first.unlink()
    assert "goes on with offset" in ask("ls", "--file", log, code=1), "behind the snapshot too"


def test_without_the_brokers_code(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "READER", "fastq_broker.nowhere")
    assert "which is not installed here" in ask("ls", "--file", tmp_path, code=2)
