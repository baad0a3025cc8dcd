"""A lone node's directory becomes that of the first of several: whole, or as it was, wherever it is cut short; and what is refused."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastq_broker import __main__ as command
from fastq_broker.cluster import lone_node, nodes
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import Controller, NewTopic
from fastq_broker.controller.feature_changes import UPGRADE, FeatureUpdate
from fastq_broker.controller.storage import METADATA_DIRECTORY, MetaProperties, QuorumState, format_directories
from fastq_broker.log.directories import DirectoryLocks
from fastq_broker.raft.messages import SnapshotId

from fastq.errors import ConfigError
from fastq.protocol.uuid import random_uuid

NOW = 1_790_000_000_000
LOGS = ("logs-0", "node-1", "node-2", "gone-0.0123456789abcdef0123456789abcdef-delete")
"""A topic whose logs have the names of nodes among them."""
OTHERS = ("notes.txt", "lost+found", "backups")


class Killed(BaseException):
    """The process ends here."""


def opened(root: Path, **settings: str) -> Controller:
    """The controller of a lone node."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    given = {"log.dirs": str(root), "listeners": "PLAINTEXT://127.0.0.1:9092", **given}
    controller = Controller(BrokerConfig.from_mapping(given), clock=lambda: NOW)
    controller.open()
    controller.register_broker(BrokerConfig.from_mapping(given).advertised_listeners)
    return controller


def a_lone_node(root: Path, **settings: str) -> Path:
    """A directory that one has left, with what its owner keeps there beside."""
    controller = opened(root, **settings)
    controller.create_topics([NewTopic("logs", 1), NewTopic("node", 3)])
    controller.settle()
    controller.quorum.close()
    for name in LOGS:
        (root / name).mkdir()
        (root / name / "00000000000000000000.log").write_bytes(name.encode())
    for name in ("recovery-point-offset-checkpoint", ".kafka_cleanshutdown", OTHERS[0]):
        (root / name).write_text(name)
    for name in OTHERS[1:]:
        (root / name).mkdir()
    return root


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def of_the_node(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in files(root).items() if not name.startswith((*OTHERS, ".lock"))}


def configs(root: Path, count: int = 3) -> list[BrokerConfig]:
    given = command._parser().parse_args(["--nodes", str(count), "--data-dir", str(root)])
    return [BrokerConfig.from_mapping(settings) for settings in nodes.plan(given)[1].values()]


def test_all_that_is_the_nodes_is_the_first_ones_and_the_others_join_it(tmp_path: Path) -> None:
    root = a_lone_node(tmp_path)
    before, asked = of_the_node(root), configs(root)
    assert lone_node.is_there(root)
    lone_node.move(root)
    assert not lone_node.is_there(root)
    assert of_the_node(root / "node-1") == before
    assert sorted(path.name for path in root.iterdir()) == sorted((".lock", "node-1", *OTHERS))
    nodes.prepare(root, asked)
    found = [MetaProperties.read(root / f"node-{number}") for number in (1, 2, 3)]
    assert len({each.cluster_id for each in found if each is not None}) == 1 and None not in found
    assert not any((root / f"node-{number}" / METADATA_DIRECTORY).exists() for number in (2, 3))
    for config in (*asked, *configs(root), *configs(root, 4)[:3]):
        assert config.controller_quorum_voters == {} and config.controller_quorum_auto_join_enable
        assert [place.port for place in config.controller_quorum_bootstrap_servers] == [
            place.port for place in config.controller_quorum_voter_addresses.values()
        ]
    nodes.prepare(root, configs(root, 4))
    back = opened(root / "node-1")  # nobody has joined: it can still be alone
    assert set(back.image.topics_by_name) == {"logs", "node"}
    back.quorum.close()


def cut_short(at: int, error: BaseException) -> Callable[[Any, Any], None]:
    """A rename of which the one with that number is the last, or (OSError) fails."""
    rename, done = os.rename, 0

    def renamed(source: Any, target: Any) -> None:
        nonlocal done
        done += 1
        if done == at and isinstance(error, OSError):
            raise error
        rename(source, target)
        if done == at:
            raise error

    return renamed


@pytest.mark.parametrize("at", range(1, 11))
def test_killed_anywhere_the_node_starts_alone_or_the_nodes_go_on(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = a_lone_node(tmp_path)
    before = of_the_node(root)
    assert len({Path(name).parts[0] for name in before}) + 1 == 10, "each is one step, and so is the last rename"
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(os, "rename", cut_short(at, Killed()))
        lone_node.move(root)
    assert not (root / "meta.properties").exists(), "it is not to be taken for a node's directory, nor for a new one"
    try:
        assert command.main(["--data-dir", str(root), "--log-level", "error"]) == 1
    finally:
        gc.enable()
    assert f"{root} holds the nodes of a cluster: give --nodes" in capsys.readouterr().err
    asked = configs(root)
    if lone_node.is_there(root):
        lone_node.move(root)
    nodes.prepare(root, asked)
    assert of_the_node(root / "node-1") == before
    assert all(config.controller_quorum_auto_join_enable for config in asked)


def test_killed_before_the_first_step_it_is_a_lone_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = a_lone_node(tmp_path)
    (root / lone_node.MOVING).mkdir()
    opened(root).quorum.close()
    before = of_the_node(root)
    lone_node.move(root)
    assert of_the_node(root / "node-1") == before


@pytest.mark.parametrize("at", range(1, 11))
def test_a_step_that_fails_leaves_all_as_it_was(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = a_lone_node(tmp_path)
    before = files(root)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="busy"):
        patched.setattr(os, "rename", cut_short(at, OSError(errno.EBUSY, "busy")))
        lone_node.move(root)
    assert {name: data for name, data in files(root).items() if name != ".lock"} == before
    assert not (root / lone_node.MOVING).exists() and lone_node.is_there(root)


def test_what_is_no_lone_node_is_refused_as_it_is(tmp_path: Path) -> None:
    def refused(root: Path, words: str) -> None:
        before = of_the_node(root)
        with pytest.raises(ConfigError, match=words):
            lone_node.move(root)
        assert of_the_node(root) == before

    five = a_lone_node(tmp_path / "five", node_id="5")
    refused(five, "directory of node 5, and the first of --nodes is node 1")
    both = a_lone_node(tmp_path / "both")
    (both / "node-3").mkdir()
    MetaProperties("c", 3, random_uuid()).write(both / "node-3")
    refused(both, "holds node-3, which are others'")
    apart = a_lone_node(tmp_path / "apart", metadata_log_dir=str(tmp_path / "metadata"))
    refused(apart, "bring it here from metadata.log.dir")
    two = a_lone_node(tmp_path / "two", log_dirs=f"{tmp_path / 'two'},{tmp_path / 'three'}")
    refused(two, "is one of the 2 log directories of its node")
    used = a_lone_node(tmp_path / "used")
    locks = DirectoryLocks()
    locks.take(str(used))
    refused(used, "another process holds the lock")
    locks.release()
    damaged = a_lone_node(tmp_path / "damaged")
    (log,) = (damaged / METADATA_DIRECTORY).glob("*.log")
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    refused(damaged, f"{damaged / METADATA_DIRECTORY} cannot be read: .*start its node alone")
    static = a_lone_node(tmp_path / "static")
    (static / METADATA_DIRECTORY / SnapshotId(0, 0).file_name).unlink()
    (log,) = (static / METADATA_DIRECTORY).glob("*.log")
    log.write_bytes(b"")
    refused(static, "whose voters are not in its log")


def test_a_node_that_was_formatted_without_voters_in_its_log_may_finalize_that_it_has_them(tmp_path: Path) -> None:
    format_directories([tmp_path], 1, "a" * 22)
    (tmp_path / METADATA_DIRECTORY).mkdir()  # as one leaves it whose only voter was configured
    root = a_lone_node(tmp_path)
    with pytest.raises(ConfigError, match=r"start it alone and run `fastq cluster features --upgrade kraft.version=1`"):
        lone_node.move(root)
    node = opened(root)
    assert "kraft.version" not in node.finalized_features
    node.update_features([FeatureUpdate("kraft.version", 1, UPGRADE)], validate_only=True)
    assert "kraft.version" not in node.finalized_features
    node.update_features([FeatureUpdate("kraft.version", 1, UPGRADE)])
    node.settle()
    assert node.finalized_features["kraft.version"] == 1
    node.quorum.close()
    lone_node.move(root)
    nodes.prepare(root, configs(root))
    assert configs(root)[0].controller_quorum_voters == {}
    back = opened(root / "node-1")
    assert back.finalized_features["kraft.version"] == 1 and back.quorum.voters.ids == {1}
    assert set(back.image.topics_by_name) == {"logs", "node"}
    back.quorum.close()


def test_a_joined_node_is_no_lone_one_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = a_lone_node(tmp_path)
    voters, image = lone_node.read_metadata(root / METADATA_DIRECTORY)
    assert voters is not None and voters.ids == {1} and set(image.topics_by_name) == {"logs", "node"}
    joined = voters.with_voter(next(iter(voters)).__class__(next(iter(voters)).key._replace(node_id=2)))
    monkeypatch.setattr(lone_node, "read_metadata", lambda directory: (joined, image))
    with pytest.raises(ConfigError, match=r"a node among others \(1, 2\)"):
        lone_node.move(root)


def test_most_voters_must_have_their_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = a_lone_node(tmp_path)
    lone_node.move(root)
    nodes.prepare(root, configs(root))
    voters, image = lone_node.read_metadata(root / "node-1" / METADATA_DIRECTORY)
    assert voters is not None
    (first,) = voters
    for number in (2, 3):
        found = MetaProperties.read(root / f"node-{number}")
        assert found is not None
        key = first.key._replace(node_id=number, directory_id=found.directory_id)
        voters = voters.with_voter(first.__class__(key))
    monkeypatch.setattr(lone_node, "read_metadata", lambda directory: (voters, image))
    for number, rest in ((3, None), (2, "has lost node-2, node-3, most of the controllers that its log names")):
        (root / f"node-{number}" / "meta.properties").unlink()
        (root / f"node-{number}" / "bootstrap.checkpoint").unlink()
        if rest is None:
            nodes.prepare(root, configs(root))
            assert "node-3 has no directory" in caplog.text and "node-2 has" not in caplog.text
        else:
            with pytest.raises(ConfigError, match=rest):
                nodes.prepare(root, configs(root))


def test_whether_voters_are_in_the_log_is_known_or_refused(tmp_path: Path) -> None:
    def state(number: int, **fields: Any) -> None:
        directory = tmp_path / f"node-{number}" / METADATA_DIRECTORY
        directory.mkdir(parents=True, exist_ok=True)
        QuorumState(1, **fields).write(directory)

    assert not nodes.has_dynamic_voters(tmp_path)
    state(1, data_version=0, voters=(1, 2, 3))
    assert not nodes.has_dynamic_voters(tmp_path)
    state(2, data_version=1)
    assert not nodes.has_dynamic_voters(tmp_path), (
        "kraft.version 1 may not be committed: the log names them, or they are these"
    )
    state(1, data_version=1)
    assert nodes.has_dynamic_voters(tmp_path)
    state(1, data_version=0, voters=(1, 2, 3))
    (tmp_path / "node-2" / METADATA_DIRECTORY / "quorum-state").write_text("{")
    assert not nodes.has_dynamic_voters(tmp_path), "another one says so"
    state(3, data_version=0, voters=())  # it had nothing of the log yet
    (tmp_path / "node-1" / METADATA_DIRECTORY / "quorum-state").unlink()
    assert nodes.has_dynamic_voters(tmp_path)
    (tmp_path / "node-3" / METADATA_DIRECTORY / "quorum-state").unlink()
    with pytest.raises(ConfigError, match="quorum-state is not JSON"):
        nodes.has_dynamic_voters(tmp_path)
