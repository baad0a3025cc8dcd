"""Apache Kafka's tools and our commands say the same of one cluster of ours, and each takes the files that the other writes."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import apache_kafka
import pytest
from nodes import COUNT, Nodes, free_ports, running

from fastq.cli import main

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

TOOLS = "org.apache.kafka.tools."
REASSIGN = "reassign.ReassignPartitionsCommand"


class Both:
    """Runs Apache Kafka's tools and our commands against one cluster."""

    def __init__(self, nodes: Nodes, capfd: pytest.CaptureFixture[str]) -> None:
        self.nodes, self.capfd = nodes, capfd

    def kafka(self, name: str, *arguments: str) -> str:
        return apache_kafka.run_tool(TOOLS + name, "--bootstrap-server", self.nodes.servers, *arguments).stdout

    def fastq(self, *arguments: str, code: int = 0) -> str:
        self.capfd.readouterr()
        found = main([*arguments, "--bootstrap", self.nodes.servers])
        out, err = self.capfd.readouterr()
        assert found == code, out + err
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.fastq(*arguments, "--json", code=code))

    def until_nothing_moves(self) -> None:
        deadline = time.monotonic() + 30
        while self.json("partitions", "reassign", "--list"):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.timeout(240)
def test_both_say_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path / "data", free_ports(2 * COUNT)) as nodes:
        nodes.ready()
        both = Both(nodes, capfd)
        the_cluster_and_its_features(both)
        the_quorum(both)
        moves_and_elections(both, tmp_path)
        voters_that_come_and_go(both)


def the_cluster_and_its_features(both: Both) -> None:
    facts = both.json("cluster", "describe")
    told = apache_kafka.run_tool(f"{TOOLS}ClusterTool", "cluster-id", "--bootstrap-server", both.nodes.servers).stdout
    assert told.split() == ["Cluster", "ID:", facts["cluster_id"]]
    told = apache_kafka.run_tool(
        f"{TOOLS}ClusterTool", "list-endpoints", "--bootstrap-server", both.nodes.servers
    ).stdout
    rows = both.json("cluster", "nodes")
    assert [line.split()[:3] for line in told.splitlines()[1:]] == [
        [str(row["node"]), *row["address"].split(":")] for row in rows
    ]
    told = both.kafka("FeatureCommand", "describe")
    levels = {}
    for line in told.splitlines():
        # Feature: NAME SupportedMinVersion: N SupportedMaxVersion: N FinalizedVersionLevel: N Epoch: N.
        words = line.split()
        levels[words[1]] = words[3:9:2]
    shown = {
        row["feature"]: [str(row[key]) for key in ("lowest", "highest", "level")]
        for row in both.json("cluster", "features")
    }
    del levels["metadata.version"], shown["metadata.version"]  # there by the names of releases
    assert levels == shown


def the_quorum(both: Both) -> None:
    told = dict(
        line.split(":", 1)
        for line in both.kafka("MetadataQuorumCommand", "describe", "--status").splitlines()
        if ":" in line
    )
    status = both.json("quorum", "status")
    assert (told["ClusterId"].strip(), int(told["LeaderId"]), int(told["LeaderEpoch"])) == (
        status["cluster_id"],
        status["leader"],
        status["leader_epoch"],
    )
    assert re.findall(r'"id": (\d+)', told["CurrentVoters"]) == [str(voter) for voter in status["voters"]]
    lines = both.kafka("MetadataQuorumCommand", "describe", "--replication").splitlines()
    rows = both.json("quorum", "replication")
    assert [(line.split()[0], line.split()[-1].lower()) for line in lines[1:]] == [
        (str(row["node"]), row["status"]) for row in rows
    ]


def voters_that_come_and_go(both: Both) -> None:
    """From kraft.version 1 on, which Kafka's tool finalizes."""
    raised = ("upgrade", "--feature", "kraft.version=1")
    assert "kraft.version can be upgraded to 1" in both.kafka("FeatureCommand", *raised, "--dry-run")
    assert "kraft.version was upgraded to 1" in both.kafka("FeatureCommand", *raised)
    levels = {row["feature"]: row["level"] for row in both.json("cluster", "features")}
    assert levels["kraft.version"] == 1
    goes = max({1, 2, 3} - {both.json("quorum", "status")["leader"]})
    keys = {row["node"]: row["directory_id"] for row in both.json("quorum", "replication")}
    removed = ("--controller-id", str(goes), "--controller-directory-id", keys[goes])
    told = both.kafka("MetadataQuorumCommand", "remove-controller", *removed).split()
    assert told[:4] == ["Removed", "KRaft", "controller", str(goes)]
    assert both.json("quorum", "status")["voters"] == sorted({1, 2, 3} - {goes})


def moves_and_elections(both: Both, path: Path) -> None:
    both.fastq("topics", "create", "moved", "--replica-assignment", "1:2,2:1")
    topics, there, back = (path / name for name in ("topics.json", "there.json", "back.json"))
    topics.write_text('{"topics": [{"topic": "moved"}], "version": 1}')
    # Our plan, begun by Kafka's tool.
    there.write_text(
        json.dumps(both.json("partitions", "reassign", "--generate", str(topics), "--brokers", "2,3")["proposed"])
    )
    told = both.kafka(REASSIGN, "--execute", "--reassignment-json-file", str(there))
    back.write_text(told.splitlines()[2])
    both.until_nothing_moves()
    assert "No partition reassignments found" in both.kafka(REASSIGN, "--list")
    told = both.kafka(REASSIGN, "--verify", "--reassignment-json-file", str(there))
    assert told.count("is completed") == 2, told
    assert {row["state"] for row in both.json("partitions", "reassign", "--verify", str(there))} == {"done"}
    # What Kafka's tool wrote to go back by, begun by us.
    both.fastq("partitions", "reassign", "--execute", str(back))
    both.until_nothing_moves()
    assert [row["replicas"] for row in both.json("topics", "describe", "moved")] == [[1, 2], [2, 1]]
    told = both.kafka(REASSIGN, "--verify", "--reassignment-json-file", str(back))
    assert told.count("is completed") == 2, told
    told = both.kafka(REASSIGN, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2")
    with_directories = path / "current.json"
    with_directories.write_text(told.splitlines()[1])
    assert "/node-1" in told
    assert {row["state"] for row in both.json("partitions", "reassign", "--verify", str(with_directories))} == {"done"}
    # Whoever elects, the other one has nothing to elect then.
    leaders = [row["leader"] for row in both.json("topics", "describe", "moved")]
    told = both.kafka("LeaderElectionCommand", "--election-type", "preferred", "--path-to-json-file", str(back))
    assert ("Successfully completed leader election" in told) == (leaders != [1, 2])
    assert [row["leader"] for row in both.json("topics", "describe", "moved")] == [1, 2]
    assert {row["result"] for row in both.json("partitions", "elect", "preferred", "--file", str(back))} == {
        "not needed"
    }
    assert {row["result"] for row in both.json("replicas", "verify", "moved")} == {"same"}
