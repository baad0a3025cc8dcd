"""`fastq-broker --nodes N`: what its arguments are for each node, what it refuses, and what becomes of the directories."""

from __future__ import annotations

import argparse
import gc
import inspect
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastq_broker import __main__ as command
from fastq_broker.cluster import nodes
from fastq_broker.cluster.lifecycle import LifecycleConfig
from fastq_broker.cluster.supervisor import NodePlan, SupervisorConfig, marked, marked_json
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.storage import METADATA_DIRECTORY, MetaProperties
from fastq_broker.log.directories import DirectoryLocks
from nodes import free_ports

from fastq.errors import ConfigError


def arguments(*given: str) -> argparse.Namespace:
    return command._parser().parse_args(given)


def settings_of(*given: str) -> dict[int, dict[str, Any]]:
    return nodes.plan(arguments(*given))[1]


def configs_of(count: int, root: Path) -> list[BrokerConfig]:
    return [
        BrokerConfig.from_mapping(settings)
        for settings in settings_of("--nodes", str(count), "--data-dir", str(root)).values()
    ]


def test_the_first_three_are_controllers_and_all_know_them() -> None:
    found = settings_of("--nodes", "5", "--data-dir", "d", "--listen", "0.0.0.0:9000", "--set", "num.partitions=7")
    voters = "1@127.0.0.1:9005,2@127.0.0.1:9006,3@127.0.0.1:9007"
    assert {settings["controller.quorum.voters"] for settings in found.values()} == {voters}
    assert [settings["process.roles"] for settings in found.values()] == ["broker,controller"] * 3 + ["broker"] * 2
    assert found[3]["listeners"] == "PLAINTEXT://0.0.0.0:9002,CONTROLLER://127.0.0.1:9007"
    assert found[4]["listeners"] == "PLAINTEXT://0.0.0.0:9003" and found[4]["log.dirs"] == "d/node-4"
    assert {settings["num.partitions"] for settings in found.values()} == {"7"}
    assert [BrokerConfig.from_mapping(settings).node_id for settings in found.values()] == [1, 2, 3, 4, 5]


def test_internal_topics_have_no_more_replicas_than_there_are_nodes() -> None:
    two = BrokerConfig.from_mapping(settings_of("--nodes", "2")[1])
    assert (two.offsets_topic_replication_factor, two.transaction_state_log_replication_factor) == (2, 2)
    assert two.transaction_state_log_min_isr == 1
    said = settings_of("--nodes", "2", "--set", "offsets.topic.replication.factor=1")[1]
    assert BrokerConfig.from_mapping(said).offsets_topic_replication_factor == 1
    three = BrokerConfig.from_mapping(settings_of("--nodes", "3")[1])
    assert (three.offsets_topic_replication_factor, three.transaction_state_log_min_isr) == (3, 2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--config", "a.properties"), "--config does not go with --nodes: a file holds what is each node's own"),
        (("--advertise", "h:1"), "--advertise does not go with --nodes"),
        (("--node-id", "4"), "--node-id does not go with --nodes"),
        (("--control-fd", "3"), "--control-fd does not go with --nodes"),
        (("--set", "log.dirs=a,b"), "--set log.dirs does not go with --nodes"),
        (("--set", "node_id=1"), "--set node_id does not go with --nodes"),
        (("--set", "unheard.of=1"), "unheard.of"),
        (("--set", "num.partitions=many"), "num.partitions"),
        (("--listen", "A://h:1,B://h:2"), "it takes HOST:PORT, the address of the first node"),
        (("--listen", "h:65533"), "--nodes 3 takes the 6 ports from 65533 on"),
        (("--listen", "h:0"), "the first one lies between 1 and 65530"),
        (("--listen", "h"), "--listen = 'h' is not allowed"),
        (("--metrics-listen", "h"), "--metrics-listen 'h': it takes HOST:PORT"),
        (("--metrics-listen", ":65534"), "3 nodes take the 3 ports from there on"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_made(
    given: Sequence[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nodes.run(arguments("--nodes", "3", "--data-dir", str(tmp_path / "data"), *given)) == 2
    said = capsys.readouterr().err
    assert said.startswith("fastq-broker: ") and says in said and said.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_port_that_is_taken_is_named_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        where = ["--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}"]
        assert nodes.run(arguments("--nodes", "2", *where)) == 1
    said = capsys.readouterr().err
    assert f"node-1 cannot listen on 127.0.0.1:{port}: " in said and "the first of 4 ports that are free" in said
    assert not (tmp_path / "data").exists()


def test_a_port_of_metrics_that_is_taken_is_named_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that cannot have it ends with a code that another start may mend: it would be started again for ever."""
    monkeypatch.setattr(nodes, "run_nodes", lambda *_, **__: pytest.fail("nodes are started"))
    first = free_ports(7)
    with socket.create_server(("127.0.0.1", first + 5)):
        where = ["--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{first}"]
        given = arguments("--nodes", "2", *where, "--metrics-listen", f"127.0.0.1:{first + 4}")
        assert nodes.run(given) == 1
    said = capsys.readouterr().err
    assert f"node-2 cannot serve metrics on 127.0.0.1:{first + 5}: Address already in use" in said
    assert said.endswith("--metrics-listen takes the first of 2 ports that are free\n") and said.count("\n") == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("host", "at", "owner"), [("127.0.0.1", 1, "node-2"), ("localhost", 3, "node-1"), ("", 5, "node-3")]
)
def test_metrics_at_ports_of_the_nodes_are_refused(
    host: str, at: int, owner: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "run_nodes", lambda *_, **__: pytest.fail("nodes are started"))
    first = free_ports(9)
    where = ["--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{first}"]
    assert nodes.run(arguments("--nodes", "3", *where, "--metrics-listen", f"{host}:{first + at}")) == 2
    said = capsys.readouterr().err
    assert said == (
        f"fastq-broker: --metrics-listen: node-1 would serve metrics on {host}:{first + at}, where {owner} listens "
        f"(127.0.0.1:{first + at}): the nodes listen on the 6 ports from {first} on, take one beyond them, as in "
        f"--metrics-listen {host}:{first + 6}\n"
    )
    assert not (tmp_path / "data").exists()


def test_all_addresses_of_a_name_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a node listens on all of them."""
    first = free_ports(4)
    plans, _ = nodes.plan(arguments("--nodes", "2", "--listen", f"two.example:{first}"))
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.2", "127.0.0.3")]

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        found = both if host == "two.example" else both[:1]
        return [(*each[:4], (each[4][0], port)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    nodes.check_ports(plans, {})
    with socket.create_server(("127.0.0.3", first + 1)), pytest.raises(ConfigError, match="node-2 cannot listen"):
        nodes.check_ports(plans, {})


def test_what_is_no_name_of_a_host_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--nodes", "2", "--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{free_ports(4)}"]
    assert nodes.run(arguments(*given, "--metrics-listen", "a..b:9644")) == 1
    assert "node-1 cannot serve metrics on a..b:9644: " in capsys.readouterr().err


def test_a_directory_in_use_is_named_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "check_ports", lambda *_: None)
    monkeypatch.setattr(nodes, "run_nodes", lambda *_, **__: pytest.fail("nodes are started"))
    held = DirectoryLocks()
    held.take(str(tmp_path / "node-2"))
    assert nodes.run(arguments("--nodes", "3", "--data-dir", str(tmp_path))) == 1
    said = capsys.readouterr().err
    assert f"another process holds the lock {tmp_path / 'node-2' / '.lock'}" in said and said.count("\n") == 1
    held.release()


@pytest.mark.parametrize("text", ["0", "101", "-1", "three", "1.5"])
def test_there_are_one_to_a_hundred_nodes(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments(f"--nodes={text}")
    assert ended.value.code == 2 and "it takes 1 to 100" in capsys.readouterr().err


def test_the_directories_are_formatted_once_as_one_cluster_and_more_may_join(tmp_path: Path) -> None:
    root = tmp_path / "data"
    nodes.prepare(root, configs_of(3, root))
    first = [MetaProperties.read(root / f"node-{number}") for number in (1, 2, 3)]
    nodes.prepare(root, configs_of(3, root))
    assert first == [MetaProperties.read(root / f"node-{number}") for number in (1, 2, 3)]
    nodes.prepare(root, configs_of(5, root))
    found = [MetaProperties.read(root / f"node-{number}") for number in (1, 2, 3, 4, 5)]
    assert found[:3] == first and len({each.cluster_id for each in found if each is not None}) == 1
    assert [each.node_id for each in found if each is not None] == [1, 2, 3, 4, 5]


def test_fewer_nodes_than_there_are_leave_none_out(tmp_path: Path) -> None:
    nodes.prepare(tmp_path, configs_of(3, tmp_path))
    with pytest.raises(ConfigError, match="holds 3 nodes, and --nodes 2 would leave some out: give --nodes 3 or more"):
        nodes.prepare(tmp_path, configs_of(2, tmp_path))


def test_the_directory_of_nodes_is_not_that_of_a_node_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = tmp_path / "several"
    nodes.prepare(several, configs_of(3, several))
    try:
        assert command.main(["--data-dir", str(several), "--log-level", "error"]) == 1
    finally:
        gc.enable()
    assert f"{several} holds the nodes of a cluster: give --nodes" in capsys.readouterr().err


def test_a_cluster_that_has_lost_most_controllers_does_not_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.prepare(tmp_path, configs_of(2, tmp_path))
    for number in (1, 2):
        (tmp_path / f"node-{number}" / METADATA_DIRECTORY).mkdir()
        (tmp_path / f"node-{number}" / METADATA_DIRECTORY / "00000000000000000000.log").touch()
    nodes.prepare(tmp_path, configs_of(4, tmp_path))
    assert "node-3 has no directory" in caplog.text and "node-4" not in caplog.text
    for number in (1, 3):
        (tmp_path / f"node-{number}" / "meta.properties").unlink()
    with pytest.raises(ConfigError, match="has lost node-1, node-3: without the metadata of most controllers"):
        nodes.prepare(tmp_path, configs_of(4, tmp_path))


def test_two_that_begin_at_once_are_not_both_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one finds ports and nodes' directories free, as the first one has not started its nodes yet."""
    monkeypatch.setattr(nodes, "check_ports", lambda *_: None)
    given = arguments("--nodes", "3", "--data-dir", str(tmp_path))
    codes: list[int] = []

    def run_nodes(*_given: Any, **_named: Any) -> int:
        codes.append(nodes.run(given))
        return 0

    monkeypatch.setattr(nodes, "run_nodes", run_nodes)
    assert nodes.run(given) == 0 and codes == [1]
    said = capsys.readouterr().err
    assert f"another process holds the lock {tmp_path / '.nodes.lock'}" in said and said.count("\n") == 1
    monkeypatch.setattr(nodes, "run_nodes", lambda *_given, **_named: 0)
    assert nodes.run(given) == 0


@pytest.mark.parametrize(("form", "mark"), [("text", marked), ("json", marked_json)])
def test_each_node_is_started_with_what_all_share_and_what_is_its_own(
    form: str, mark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run_nodes(plans: Sequence[NodePlan], argv: Any, config: SupervisorConfig, *, mark: Any, at_end: Any) -> int:
        commands.extend(argv(each) for each in plans)
        default_s = inspect.signature(LifecycleConfig).parameters["shutdown_timeout_s"].default
        assert config.stop_timeout_s > default_s and mark is expected
        return 0

    expected = mark
    monkeypatch.setattr(nodes, "run_nodes", run_nodes)
    monkeypatch.setattr(nodes, "check_ports", lambda *_: None)
    given = ["--log-format", form, "--log-level", "debug", "--insecure-ignore", "acls", "--set", "num.partitions=7"]
    where = ["--nodes", "2", "--data-dir", str(tmp_path), "--listen", "[::1]:9000", "--metrics-listen", "[::1]:9100"]
    assert nodes.run(arguments(*given, *where)) == 0
    for number, each in enumerate(commands, 1):
        assert each[:3] == [sys.executable, "-m", "fastq_broker"]
        parsed = arguments(*each[3:])
        assert (parsed.log_format, parsed.log_level, parsed.insecure_ignore) == (form, "debug", ["acls"])
        assert parsed.metrics_listen == f"[::1]:{9099 + number}" and parsed.nodes == 1
        config = BrokerConfig.load(None, command._overrides(parsed), insecure_ignore=parsed.insecure_ignore)
        assert (config.node_id, config.num_partitions, config.log_dirs) == (
            number,
            7,
            [str(tmp_path / f"node-{number}")],
        )
        assert str(config.listeners[0]) == f"PLAINTEXT://[::1]:{8999 + number}"
    assert len(commands) == 2


def test_metrics_at_free_ports(tmp_path: Path) -> None:
    plans, _ = nodes.plan(arguments("--nodes", "2"))
    assert nodes._metrics("h:0", plans) == {1: "h:0", 2: "h:0"} and nodes._metrics(None, plans) == {}
