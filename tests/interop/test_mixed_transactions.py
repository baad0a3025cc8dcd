"""A broker of Apache Kafka among three nodes of ours: each coordinates transactions over partitions that the other leads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import apache_kafka
import pytest
from nodes import COUNT, Nodes, free_ports, running
from raw_kafka import RawConnection

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.protocol.messages import CreateTopicsRequest, FindCoordinatorRequest

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

THEIRS = 11
IDS = [f"id-{number}" for number in range(12)]
PLACES = [[THEIRS, 1, 2], [1, THEIRS, 3], [THEIRS, 3, 1], [2, 3, THEIRS]]
"""The replicas of each partition; the first one leads."""


def kafka_broker(path: Path, data: Path, port: int) -> apache_kafka.ApacheKafka:
    """One that is no controller, in the cluster whose nodes are in `data`."""
    found = re.search(r"cluster\.id=(\S+)", (data / "node-1" / "meta.properties").read_text())
    assert found is not None
    made = apache_kafka.ApacheKafka(path / "theirs", heap="256m", cluster_id=found[1])
    made.properties |= {
        "process.roles": "broker",
        "node.id": str(THEIRS),
        "listeners": f"PLAINTEXT://127.0.0.1:{made.port}",
        "controller.quorum.voters": ",".join(f"{at + 1}@127.0.0.1:{port + COUNT + at}" for at in range(COUNT)),
    }
    del made.properties["controller.quorum.bootstrap.servers"]
    return made


def create_placed(servers: str, name: str) -> None:
    kind = CreateTopicsRequest
    placed = [
        kind.CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in enumerate(PLACES)
    ]
    topic = kind.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=placed)
    with RawConnection(servers.partition(",")[0]) as connection:
        (made,) = connection.call(kind(topics=[topic], timeout_ms=10_000), 7).topics
    assert made.error_code == 0, made.error_message


def coordinators(servers: str) -> set[int]:
    """The nodes that coordinate the transactional ids."""
    with RawConnection(servers.partition(",")[0]) as connection:
        for _ in range(200):
            answer = connection.call(FindCoordinatorRequest(key_type=1, coordinator_keys=IDS), 4)
            if all(not found.error_code for found in answer.coordinators):
                return {found.node_id for found in answer.coordinators}
    raise AssertionError(answer)


def run_transactions(servers: str, transactional_id: str) -> None:
    """One that is committed and one that is aborted, each in all partitions and with offsets of a group."""
    group = f"group-of-{transactional_id}"
    with (
        Producer(bootstrap_servers=servers, transactional_id=transactional_id) as producer,
        Consumer(
            "from", bootstrap_servers=servers, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
        ) as consumer,
    ):
        records = []
        while len(records) < len(PLACES):
            records += consumer.poll(timeout=30)
        with producer.transaction(consumer=consumer):
            for partition in range(len(PLACES)):
                producer.send("to", f"{transactional_id} committed".encode(), partition=partition)
        producer.begin_transaction()
        for partition in range(len(PLACES)):
            producer.send("to", f"{transactional_id} aborted".encode(), partition=partition)
        # All of it is there, which no leader takes before the commit's markers are: an abort throws away what is not sent yet.
        producer.flush()
        producer.abort_transaction()


def go(nodes: Nodes, servers: str) -> None:
    for name in ("from", "to"):
        create_placed(servers, name)
    with Producer(bootstrap_servers=servers) as producer:
        for partition in range(len(PLACES)):
            producer.send("from", b"x", partition=partition)
    assert THEIRS in coordinators(servers) and coordinators(servers) - {THEIRS}
    for transactional_id in IDS:
        run_transactions(servers, transactional_id)
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed") as reader:
        for partition in range(len(PLACES)):
            reader.assign([TopicPartition("to", partition)])
            assert [record.value for record in reader.read_to_end()] == [f"{name} committed".encode() for name in IDS]
    with Admin(bootstrap_servers=servers) as admin:
        for name in IDS:
            offsets = admin.list_group_offsets(f"group-of-{name}").results()
            assert {at.partition: one.offset for at, one in offsets.items() if one} == dict.fromkeys(
                range(len(PLACES)), 1
            )


def look_at_marks(nodes: Nodes, servers: str) -> None:
    """Every replica tells its high watermark and last stable offset, leaders and followers of both kinds."""
    for _ in range(300):
        command = [
            sys.executable,
            "-m",
            "fastq",
            "topics",
            "describe",
            "to",
            "--states",
            "--json",
            "--bootstrap",
            servers,
        ]
        rows = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
        if all(None not in (row["hw"], row["lso"]) and row["hw"] == row["lso"] == row["leo"] for row in rows):
            break
        time.sleep(0.1)  # followers hear of marks with their next fetch
    else:
        raise AssertionError(rows)
    assert len(rows) == sum(map(len, PLACES)) and {row["replica"] for row in rows} == {"OnlineReplica"}


def test_transactions_over_brokers_of_both_kinds(tmp_path: Path) -> None:
    data, port = tmp_path / "ours", free_ports(2 * COUNT)
    with running(data, port, session_ms=20_000) as nodes:
        nodes.ready()
        theirs = kafka_broker(tmp_path, data, port)
        try:
            theirs.start()
            go(nodes, f"{nodes.servers},{theirs.bootstrap_servers}")
            look_at_marks(nodes, nodes.servers)
        except BaseException:
            print(theirs.log_text()[-6000:], *nodes.log[-60:])
            raise
        finally:
            theirs.stop()
