"""The commands about nodes, leaders and replicas against `fastq-broker --nodes 3`: what is printed, what is done, and the exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nodes import COUNT, Nodes, children, free_ports, running

from fastq import Admin, Producer
from fastq.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with running(tmp_path_factory.mktemp("cluster") / "data", free_ports(2 * COUNT)) as nodes:
        nodes.ready()
        yield nodes


class Shell:
    """Runs commands in this process against the cluster."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self.capfd.readouterr()
        found = main(arguments)
        out, self.err = self.capfd.readouterr()
        assert found == code, out + self.err
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))

    def error(self, *arguments: str, code: int = 1) -> str:
        self(*arguments, code=code)
        assert self.err.startswith("fastq: ") and self.err.count("\n") == 1, self.err
        return self.err

    def until(self, what: Callable[[], bool]) -> None:
        """What brokers do in their own time."""
        deadline = time.monotonic() + 30
        while not what():
            assert time.monotonic() < deadline, "it did not come to be"
            time.sleep(0.05)

    def settled(self, topic: str) -> None:
        """Nothing moves, and all replicas of a topic are in sync."""
        self.until(
            lambda: (
                not self.json("partitions", "reassign", "--list")
                and all(sorted(p["isr"]) == sorted(p["replicas"]) for p in self.json("topics", "describe", topic))
            )
        )


@pytest.fixture
def fastq(nodes: Nodes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("FASTQ_BOOTSTRAP", nodes.servers)
    return Shell(capfd)


def fill(nodes: Nodes, topic: str, partitions: int) -> None:
    with Producer(bootstrap_servers=nodes.servers, acks="all") as producer:
        for number in range(300):
            producer.send(topic, b"%d" % number * 20, partition=number % partitions)


def placed(fastq: Shell, topic: str) -> list[list[int]]:
    return [row["replicas"] for row in fastq.json("topics", "describe", topic)]


def test_the_cluster_and_its_nodes(fastq: Shell, nodes: Nodes) -> None:
    facts = fastq.json("cluster", "describe")
    assert (facts["brokers"], facts["fenced_brokers"], facts["controllers"]) == ([1, 2, 3], [], [1, 2, 3])
    assert facts["active_controller"] in (1, 2, 3) and facts["partitions_that_move"] == 0
    assert "active controller" in fastq("cluster", "describe")
    rows = fastq.json("cluster", "nodes")
    assert [(row["node"], row["state"], row["address"]) for row in rows] == [
        (index + 1, "running", address) for index, address in enumerate(nodes.servers.split(","))
    ]
    assert "ADDRESS" in fastq("cluster", "nodes")


def test_the_states_of_partitions_and_replicas(fastq: Shell, nodes: Nodes) -> None:
    fastq("topics", "create", "stated", "--partitions", "2", "--replication-factor", "3")
    fill(nodes, "stated", 2)
    rows = fastq.json("topics", "describe", "stated", "--states")
    assert [row["partition"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert {(row["state"], row["replica"], row["isr"], row["elr"]) for row in rows} == {
        ("OnlinePartition", "OnlineReplica", True, False)
    }
    assert all((row["lw"], row["leo"]) == (0, 150) for row in rows)

    def marks() -> set[tuple[int, int]]:
        return {(row["hw"], row["lso"]) for row in fastq.json("topics", "describe", "stated", "--states")}

    fastq.until(lambda: marks() == {(150, 150)})  # followers hear of it with their next fetch
    assert [row["role"] for row in rows].count("leader") == 2
    assert "REPLICA" in fastq("topics", "describe", "stated", "--states")


def test_features(fastq: Shell) -> None:
    rows = {row["feature"]: row for row in fastq.json("cluster", "features")}
    assert (
        rows["metadata.version"]["lowest"] <= rows["metadata.version"]["level"] <= rows["metadata.version"]["highest"]
    )
    level = rows["group.version"]["level"]
    assert "group.version would be at level 1" in fastq(
        "cluster", "features", "--upgrade", "group.version=1", "--validate-only"
    )
    assert fastq.json("cluster", "features", "--upgrade", f"group.version={level}")["features"] == {
        "group.version": level
    }
    assert "INVALID_UPDATE_VERSION" in fastq.error("cluster", "features", "--upgrade", "metadata.version=99")
    assert "metadata.version" in fastq("cluster", "features", "--node", "2")


def test_eligible_replicas_while_it_runs(fastq: Shell) -> None:
    """Each node has it from what is committed: one min.insync.replicas for the cluster with it, a broker's own without it."""
    name, key = "eligible.leader.replicas.version", "min.insync.replicas"

    def level() -> int:
        return int({row["feature"]: row for row in fastq.json("cluster", "features")}[name]["level"])

    def own() -> bool:
        """Whether node 2 has a value of its own."""
        rows = fastq.json("configs", "show", "--broker", "2")
        return (key, "dynamic-broker-config") in [(row["name"], row["source"]) for row in rows]

    assert level() == 1
    assert "cannot be altered while ELR is enabled" in fastq.error("configs", "set", "--broker", "2", f"{key}=1")
    fastq("cluster", "features", "--downgrade", f"{name}=0")
    fastq("configs", "set", "--broker", "2", f"{key}=1")
    deadline = time.monotonic() + 20
    while not own():  # node 2 hears of it a little later
        assert time.monotonic() < deadline
    fastq("cluster", "features", "--upgrade", f"{name}=1")
    while own():
        assert time.monotonic() < deadline
    assert level() == 1
    assert "cannot be altered while ELR is enabled" in fastq.error("configs", "set", "--broker", "2", f"{key}=1")


def test_a_node_that_runs_is_not_taken_out(fastq: Shell) -> None:
    told = fastq.error("cluster", "unregister", "2")
    assert "node 2 is running" in told and "fastq partitions rebalance --drain 2" in told
    assert "fastq cluster nodes" in fastq.error("cluster", "unregister", "9")


def test_the_quorum(fastq: Shell) -> None:
    status = fastq.json("quorum", "status")
    assert status["voters"] == [1, 2, 3] and status["observers"] == [] and status["leader"] in status["voters"]
    rows = fastq.json("quorum", "replication")
    assert [row["status"] for row in rows] == ["leader", "follower", "follower"]
    assert rows[0]["lag"] == 0 and all(row["end"] > 0 and row["endpoints"] for row in rows)
    assert "DIRECTORY_ID" in fastq("quorum", "replication")


def test_voters_that_are_fixed_are_not_changed(fastq: Shell) -> None:
    assert "does not vote; who does: 1, 2, 3" in fastq.error("quorum", "remove-controller", "7")
    for change in (("remove-controller", "2"), ("add-controller", "4@127.0.0.1:9094:J5bVhg1zR6mYyIjDqIWfOg")):
        told = fastq.error("quorum", *change)
        assert "UNSUPPORTED_VERSION" in told and "kraft.version" in told


def test_voters_come_and_go_once_that_is_finalized(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fastq, port = Shell(capfd), free_ports(2 * COUNT)
    with running(tmp_path / "data", port) as nodes:
        nodes.ready()
        monkeypatch.setenv("FASTQ_BOOTSTRAP", nodes.servers)
        raised = ("cluster", "features", "--upgrade", "kraft.version=1")
        fastq.until(lambda: main([*raised, "--validate-only"]) == 0)  # each voter tells its leader that it can
        assert "kraft.version" not in {row["feature"] for row in fastq.json("cluster", "features") if row["level"]}
        assert fastq.json(*raised)["features"] == {"kraft.version": 1}
        assert {row["feature"]: row["level"] for row in fastq.json("cluster", "features")}["kraft.version"] == 1
        goes = max({1, 2, 3} - {fastq.json("quorum", "status")["leader"]})
        stay = sorted({1, 2, 3} - {goes})
        assert fastq.json("quorum", "remove-controller", str(goes)) == {"removed": goes, "voters": stay}
    with running(tmp_path / "data", port) as nodes:
        nodes.ready()
        fastq.until(lambda: fastq.json("quorum", "status")["voters"] == [1, 2, 3])  # it joins by itself now
        assert {row["feature"]: row["level"] for row in fastq.json("cluster", "features")}["kraft.version"] == 1


def test_partitions_are_moved_with_kafkas_files(fastq: Shell, nodes: Nodes, tmp_path: Path) -> None:
    assert "2 partitions, 2 copies of each" in fastq("topics", "create", "moved", "--replica-assignment", "1:2,2:1")
    fill(nodes, "moved", 2)
    topics, moves, back = (tmp_path / name for name in ("topics.json", "moves.json", "back.json"))
    topics.write_text('{"topics": [{"topic": "moved"}], "version": 1}')
    proposed = fastq.json("partitions", "reassign", "--generate", str(topics), "--brokers", "2,3")
    assert [item["replicas"] for item in proposed["current"]["partitions"]] == [[1, 2], [2, 1]]
    assert [sorted(item["replicas"]) for item in proposed["proposed"]["partitions"]] == [[2, 3], [2, 3]]
    assert "proposed replicas" in fastq("partitions", "reassign", "--generate", str(topics), "--brokers", "2,3")
    moves.write_text(json.dumps(proposed["proposed"]))
    assert fastq.json("partitions", "reassign", "--verify", str(moves), code=1)[0]["state"] == "failed"
    told = fastq("partitions", "reassign", "--execute", str(moves))
    assert "begun with 2 partitions, the copying is not throttled" in told
    back.write_text(told.splitlines()[1])
    fastq.settled("moved")
    assert "2 done, 0 under way, 0 failed" in fastq("partitions", "reassign", "--verify", str(moves))
    assert "no partition moves" in fastq("partitions", "reassign", "--list")
    assert fastq.json("partitions", "reassign", "--execute", str(back))["begun"] == ["moved-0", "moved-1"]
    fastq.settled("moved")
    assert placed(fastq, "moved") == [[1, 2], [2, 1]]
    assert {row["result"] for row in fastq.json("replicas", "verify", "moved")} == {"same"}
    assert "2 partitions did not move: moved-0, moved-1" in fastq("partitions", "reassign", "--cancel", str(back))


def test_what_cannot_be_moved_is_told(fastq: Shell, tmp_path: Path) -> None:
    fastq("topics", "create", "stays", "--replica-assignment", "1")
    moves = tmp_path / "moves.json"

    def told(partition: int, *replicas: int, options: tuple[str, ...] = ()) -> str:
        item = {"topic": "stays", "partition": partition, "replicas": replicas}
        moves.write_text(json.dumps({"partitions": [item]}))
        return fastq.error("partitions", "reassign", "--execute", str(moves), *options)

    assert "nodes 8, 9 are not running; fastq cluster nodes" in told(0, 8, 9)
    assert "stays-4 is not there; fastq topics describe stays" in told(4, 1)
    assert "stays-0" in told(0, 1, 2, options=("--same-factor",))
    assert placed(fastq, "stays") == [[1]]
    assert "no such file" in fastq.error("partitions", "reassign", "--verify", str(tmp_path / "none.json"))


def test_leaders_are_elected(fastq: Shell, tmp_path: Path) -> None:
    fastq("topics", "create", "led", "--replica-assignment", "1:2:3,2:3:1")
    fastq.settled("led")
    moves = tmp_path / "moves.json"
    items = [
        {"topic": "led", "partition": 0, "replicas": [3, 2, 1]},
        {"topic": "led", "partition": 1, "replicas": [2, 3, 1]},
    ]
    moves.write_text(json.dumps({"partitions": items}))
    fastq("partitions", "reassign", "--execute", str(moves))
    fastq.settled("led")
    rows = fastq.json("partitions", "elect", "preferred", "--file", str(moves))
    assert [row["result"] for row in rows] == ["elected", "not needed"]
    assert [row["leader"] for row in fastq.json("topics", "describe", "led")] == [3, 2]
    assert "not needed" in fastq("partitions", "elect", "unclean", "--topic", "led:0")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in _complaint(fastq, "partitions", "elect", "preferred", "--topic", "led:7")


def _complaint(fastq: Shell, *arguments: str) -> str:
    """A command that tells of all items and complains of those that failed."""
    fastq(*arguments, code=1)
    return fastq.err


def test_replicas_are_evened_out_and_a_node_is_drained(fastq: Shell, nodes: Nodes) -> None:
    fastq("topics", "create", "uneven", "--replica-assignment", "1:2,1:2,1:2,1:2,1:2,1:2")
    fill(nodes, "uneven", 6)
    only = ("--topic", "uneven")
    plan = fastq.json("partitions", "rebalance", *only)
    assert len(plan["partitions"]) > 0 and placed(fastq, "uneven") == [[1, 2]] * 6, "a plan moves nothing"
    assert "--execute begins that" in fastq("partitions", "rebalance", *only)
    assert "begun with" in fastq("partitions", "rebalance", *only, "--execute")
    fastq.settled("uneven")
    fastq("partitions", "elect", "preferred", "--all")
    rows = fastq.json("topics", "describe", "uneven")
    assert Counter(node for row in rows for node in row["replicas"]) == {1: 4, 2: 4, 3: 4}
    assert Counter(row["leader"] for row in rows) == {1: 2, 2: 2, 3: 2}
    assert "nothing to move: each node has 4 replicas" in fastq("partitions", "rebalance", *only)
    fastq("partitions", "rebalance", *only, "--drain", "2", "--execute", "--json")
    fastq.settled("uneven")
    assert {node for replicas in placed(fastq, "uneven") for node in replicas} == {1, 3}
    assert {row["result"] for row in fastq.json("replicas", "verify", "uneven:0,5")} == {"same"}
    assert "only 1 of the nodes" in fastq.error("partitions", "rebalance", *only, "--drain", "1", "--drain", "2")
    assert "no such node" in fastq.error("partitions", "rebalance", "--drain", "9")


def test_all_get_more_replicas_throttled_until_that_is_verified(fastq: Shell, nodes: Nodes) -> None:
    fastq("topics", "create", "few", "--replica-assignment", "1,1,1")
    fill(nodes, "few", 3)
    only = ("--topic", "few")
    assert "--throttle is about --execute" in fastq.error("partitions", "rebalance", "--throttle", "1", code=2)
    assert "leave --drain and" in fastq.error("partitions", "rebalance", "--verify", "--drain", "1", code=2)
    more = ("partitions", "rebalance", *only, "--replication-factor", "3", "--execute")
    assert "throttled until --verify finds it done" in fastq(*more, "--throttle", "100000000")
    topic = ("configs", "show", "--topic", "few")
    fastq.until(lambda: "leader.replication.throttled.replicas" in fastq(*topic))
    fastq.settled("few")
    assert {len(replicas) for replicas in placed(fastq, "few")} == {3}
    assert "no partition moves; throttles were taken away" in fastq("partitions", "rebalance", *only, "--verify")
    fastq.until(lambda: "throttled" not in fastq(*topic))
    assert fastq.json("partitions", "rebalance", *only, "--verify") == {"moving": [], "throttles_taken_away": False}
    assert {row["result"] for row in fastq.json("replicas", "verify", "few")} == {"same"}
    fastq("partitions", "rebalance", *only, "--replication-factor", "1", "--execute")
    fastq.settled("few")
    assert {len(replicas) for replicas in placed(fastq, "few")} == {1}
    fastq("topics", "delete", "few")


def test_replicas_are_compared(fastq: Shell, nodes: Nodes) -> None:
    fastq("topics", "create", "copied", "--replica-assignment", "1:2:3,2:3:1")
    fill(nodes, "copied", 2)
    rows = fastq.json("replicas", "verify", "copied")
    assert [
        (row["partition"], row["node"], row["role"], row["compared"], row["end"], row["result"]) for row in rows
    ] == [
        (partition, node, "leader" if node == partition + 1 else "follower", "records", 150, "same")
        for partition in (0, 1)
        for node in (1, 2, 3)
    ]
    assert "2 partitions compared: all replicas are the same" in fastq("replicas", "verify", "copied")
    fastq("topics", "create", "compacted", "--replica-assignment", "1:2", "--config", "cleanup.policy=compact")
    rows = fastq.json("replicas", "verify", "compacted:0")
    assert [(row["node"], row["compared"], row["result"]) for row in rows] == [(1, "ends", "same"), (2, "ends", "same")]
    assert "the topic is compacted" in fastq("replicas", "verify", "compacted:0")
    assert "copied-9 was not compared: the topic has 2 partitions" in _complaint(
        fastq, "replicas", "verify", "copied:9"
    )


def test_partitions_by_their_state(fastq: Shell, nodes: Nodes) -> None:
    fastq("topics", "create", "watched", "--replica-assignment", "1:2:3", "--config", "min.insync.replicas=3")
    fastq.settled("watched")

    def shown(option: str) -> list[str]:
        return [row["topic"] for row in fastq.json("topics", "describe", option)]

    assert "watched" in shown("--at-min-isr") and "watched" not in shown("--under-min-isr")
    assert "watched" not in shown("--under-replicated") + shown("--unavailable")
    with Admin(bootstrap_servers=nodes.servers) as admin:
        part = admin.describe_topic("watched").partitions[0]
    assert (part.replicas, part.offline_replicas) == ((1, 2, 3), ()) and part.elr is not None


@contextmanager
def standing_still(shell: Shell, nodes: Nodes, node: int, others: str) -> Iterator[None]:
    """A node that is there and does nothing, and is fenced for it."""
    pid = children(nodes.process.pid)[f"node-{node}"]

    def fenced(admin: Admin) -> list[int]:
        return [one.node_id for one in admin.describe_cluster(include_fenced=True).fenced_nodes]

    # It takes connections all the same: what is asked of it before it is fenced is to be given up soon.
    with Admin(bootstrap_servers=others, request_timeout_ms=500, socket_connection_setup_timeout_ms=500) as admin:
        os.kill(pid, signal.SIGSTOP)
        try:
            shell.until(lambda: fenced(admin) == [node])
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
        shell.until(lambda: fenced(admin) == [])


def test_what_is_seen_and_done_without_a_node(
    fastq: Shell, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fastq("topics", "create", "held", "--replica-assignment", "1")
    out = next(voter for voter in (3, 2) if voter != fastq.json("quorum", "status")["leader"])
    others = [node for node in (1, 2, 3) if node != out]
    servers = ",".join(nodes.servers.split(",")[node - 1] for node in others)
    fastq("topics", "create", "alone", "--replica-assignment", str(out))
    fastq("topics", "create", "shared", "--replica-assignment", f"{out}:1", "--config", "min.insync.replicas=2")
    fastq.settled("shared")
    moves = tmp_path / "moves.json"
    moves.write_text(json.dumps({"partitions": [{"topic": "held", "partition": 0, "replicas": [1, out]}]}))
    monkeypatch.setenv("FASTQ_BOOTSTRAP", servers)
    with standing_still(fastq, nodes, out, servers):
        assert [row["state"] for row in fastq.json("cluster", "nodes")].count("fenced") == 1
        assert fastq.json("quorum", "status")["voters"] == [1, 2, 3] and fastq.err.count("\n") <= 1
        rows = {row["topic"]: row for row in fastq.json("topics", "describe", "--under-min-isr")}
        assert rows["shared"]["isr"] == [1] and rows["shared"]["elr"] == rows["shared"]["offline"] == [out]
        (row,) = fastq.json("topics", "describe", "--unavailable")
        assert (row["topic"], row["leader"], row["end"]) == ("alone", None, None)
        assert "PREFERRED_LEADER_NOT_AVAILABLE" in _complaint(
            fastq, "partitions", "elect", "preferred", "--topic", "alone"
        )
        assert f"node {out} is not running" in fastq.error("partitions", "reassign", "--execute", str(moves))
        assert "has no leader" in _complaint(fastq, "replicas", "verify", "alone")
        fastq("partitions", "rebalance", "--topic", "alone", "--drain", str(out))
        assert "alone-0 has no leader, so there is nothing to copy" in fastq.err

        with Admin(bootstrap_servers=servers) as admin:
            admin.alter_partition_reassignments({("held", 0): [1, out]}).results()  # type: ignore[dict-item]
        assert fastq.json("partitions", "reassign", "--list") == [
            {
                "topic": "held",
                "partition": 0,
                "replicas": [1, out],
                "adding": [out],
                "removing": [],
                "copied_percent": 0,
            }
        ]
        (row,) = fastq.json("partitions", "reassign", "--verify", str(moves), code=1)
        assert (row["state"], row["detail"]) == ("under way", f"adding {out}; 0 % copied")
        assert fastq.json("cluster", "describe")["partitions_that_move"] == 1
        back = tmp_path / "back.json"
        back.write_text(json.dumps({"partitions": [{"topic": "held", "partition": 0, "replicas": [others[-1]]}]}))
        told = fastq.error("partitions", "reassign", "--execute", str(back))
        assert "1 partition moves already: fastq partitions reassign --list shows it, --additional" in told
        assert "1 partition moves already" in fastq.error("partitions", "rebalance")
        assert fastq("partitions", "reassign", "--cancel", str(moves)) == "cancelled 1 move: held-0\n"
        assert "no partition moves" in fastq("partitions", "reassign", "--list")
    assert placed(fastq, "held") == [[1]]


@contextmanager
def formatted_node(path: Path, node: int, ports: int, cluster_id: str, quorum: str) -> Iterator[None]:
    """A node whose voters come and go: formatted, started, and ready where it founds the cluster."""
    settings = {
        "node.id": node,
        "process.roles": "broker,controller",
        "log.dirs": path / f"node-{node}",
        "listeners": f"PLAINTEXT://127.0.0.1:{ports + node},CONTROLLER://127.0.0.1:{ports + 2 + node}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{ports + 3},127.0.0.1:{ports + 4}",
    }
    config = path / f"{node}.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [sys.executable, "-m", "fastq_broker"]
    subprocess.run([*command, "format", "-t", cluster_id, "-c", config, quorum], check=True, capture_output=True)
    process = subprocess.Popen(
        [*command, "--config", config], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline(), "it has ended"
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_a_controller_votes_and_votes_no_more(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports, cluster_id = free_ports(5), "J5bVhg1zR6mYyIjDqIWfOg"
    monkeypatch.setenv("FASTQ_BOOTSTRAP", f"127.0.0.1:{ports + 1}")
    fastq = Shell(capfd)
    with (
        formatted_node(tmp_path, 1, ports, cluster_id, "--standalone"),
        formatted_node(tmp_path, 2, ports, cluster_id, "--no-initial-controllers"),
    ):
        rows = {row["node"]: row for row in fastq.json("quorum", "replication")}
        assert (rows[1]["status"], rows[2]["status"]) == ("leader", "observer")
        place = f"2@127.0.0.1:{ports + 4}:{rows[2]['directory_id']}"
        assert fastq("quorum", "add-controller", place) == "controller 2 votes now; voters: 1, 2\n"
        told = fastq.error("quorum", "add-controller", place)
        assert "DUPLICATE_VOTER" in told and "fastq quorum replication" in told
        assert fastq.json("quorum", "remove-controller", "2") == {"removed": 2, "voters": [1]}
        assert "controller 2 does not vote; who does: 1" in fastq.error("quorum", "remove-controller", "2")
        assert "VOTER_NOT_FOUND" in fastq.error("quorum", "remove-controller", "1")
