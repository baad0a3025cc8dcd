"""`fastq-broker --nodes 3` as its user meets it: one ready line, one log, a node that dies and comes back, one Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest
from fastq_broker.controller.storage import METADATA_DIRECTORY, format_directories
from nodes import COUNT, children, free_ports, running
from waiting import until

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.admin import NewTopic
from fastq.cli import main
from fastq.testing import Broker


def records(bootstrap: str, count: int) -> list[bytes]:
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        values: list[bytes] = []
        while len(values) < count:
            values += [record.value or b"" for record in consumer.poll(timeout=30)]
        return values


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_cluster_by_one_command(tmp_path: Path) -> None:
    root, port = tmp_path / "data", free_ports(2 * COUNT)
    with running(root, port) as nodes:
        addresses = ", ".join(f"127.0.0.1:{port + at}" for at in range(COUNT))
        assert nodes.ready() == f"fastq-broker ready: 3 nodes on {addresses}\n"
        with Admin(bootstrap_servers=nodes.bootstrap) as admin:
            admin.create_topic("t", 1, 3, configs={"min.insync.replicas": "2"})
        with Producer(bootstrap_servers=nodes.bootstrap) as producer:
            producer.send("t", b"before").result(30)
            os.kill(children(nodes.process.pid)["node-3"], signal.SIGKILL)
            producer.send("t", b"without").result(60)
        nodes.says(r"node-3: its process was ended by signal 9; it is started again in 1 s")
        assert records(nodes.bootstrap, 2) == [b"before", b"without"]
        nodes.says(r"^node-3 \| .* RUNNING after RECOVERY", 2)
        nodes.process.send_signal(signal.SIGINT)
        code, rest = nodes.end()
        assert (code, rest) == (0, ""), "".join(nodes.log)
        stops = [line for line in nodes.log if "SIGTERM: stopping" in line]
        assert len(stops) == COUNT and stops[0].startswith("node-3 | ")
        assert not any("Traceback" in line for line in nodes.log), "".join(nodes.log)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_all_nodes_are_killed_at_once_and_every_acknowledged_record_is_there(tmp_path: Path) -> None:
    with running(tmp_path / "data", free_ports(2 * COUNT)) as nodes:
        nodes.ready()
        with Admin(bootstrap_servers=nodes.bootstrap) as admin:
            admin.create_topic("t", 4, 3, configs={"min.insync.replicas": "2"})
        sending = Sending(nodes.servers, 4)
        until(lambda: sending.begun)
        for process in children(nodes.process.pid).values():
            os.kill(process, signal.SIGKILL)
        nodes.says("RUNNING after RECOVERY", 2 * COUNT)
        sending.stop()
        with Consumer(bootstrap_servers=nodes.servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", number) for number in range(4)])
            found = [((one.partition, int(one.value or b"")), one.offset) for one in consumer.read_to_end()]
        assert len(found) > 100 and sorted(found) == sorted(sending.acknowledged.items())
        told = nodes.says(r"WARNING .* leads again what it led last")
        assert any("t-" in line for line in told) and len(told) <= 2 * COUNT, told
        assert not any("unclean election" in line for line in nodes.log)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_node_that_was_alone_becomes_the_first_of_three(tmp_path: Path) -> None:
    """Records, committed offsets and transactions are there as before; then any node may go, the first one too."""
    root, port = tmp_path / "data", free_ports(2 * COUNT)
    here = f"127.0.0.1:{port}"
    with Broker(data_dir=root) as alone:
        with Admin(bootstrap_servers=alone.bootstrap_servers) as admin:
            admin.create_topics(
                [NewTopic(name="t", partitions=1), NewTopic(name="node", partitions=4)]
            ).results()  # node-1 is the log of one as well
        with Producer(bootstrap_servers=alone.bootstrap_servers, transactional_id="x") as producer:
            producer.init_transactions()
            for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
                producer.begin_transaction()
                for number in range(10):
                    producer.send("t", b"%d" % number)
                producer.send("node", end.__name__.encode(), partition=1)
                end()
        with reading(alone.bootstrap_servers) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            assert [record.value for record in consumer.read_to_end()] == [b"%d" % number for number in range(10)] * 2
            consumer.commit({TopicPartition("t", 0): 5})
    with running(root, port) as nodes:
        assert nodes.ready().startswith("fastq-broker ready: 3 nodes on ")
        nodes.says("fastq partitions rebalance --replication-factor 3")
        assert main(["partitions", "rebalance", "--replication-factor", "3", "--execute", "--bootstrap", here]) == 0
        until(lambda: main(["partitions", "rebalance", "--verify", "--bootstrap", here]) == 0)
        with Admin(bootstrap_servers=nodes.servers) as admin:
            until(lambda: {voter.node_id for voter in admin.describe_quorum().voters} == {1, 2, 3})
        os.kill(children(nodes.process.pid)["node-1"], signal.SIGKILL)
        with Producer(bootstrap_servers=nodes.servers, transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"of three")
            producer.commit_transaction()
        with reading(nodes.servers) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            assert consumer.committed([TopicPartition("t", 0)])[TopicPartition("t", 0)].offset == 5
            expected = [b"%d" % number for number in range(10)] * 2 + [b"of three"]
            until(lambda: all_of(consumer) == expected)  # the marker of a transaction is written behind the answer
            consumer.assign([TopicPartition("node", 1)])
            assert all_of(consumer) == [b"commit_transaction"] * 2
        nodes.says(r"^node-1 \| .* RUNNING after RECOVERY", 2)
        nodes.process.send_signal(signal.SIGINT)
        code, rest = nodes.end()
        assert (code, rest) == (0, ""), "".join(nodes.log)
        assert not any("Traceback" in line for line in nodes.log), "".join(nodes.log)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_node_whose_only_voter_was_configured_becomes_the_first_of_three_too(tmp_path: Path) -> None:
    """As the refusal to take it in advises: once its log names it."""
    root, port = tmp_path / "data", free_ports(2 * COUNT)
    root.mkdir()
    format_directories([root], 1, "a" * 22)
    (root / METADATA_DIRECTORY).mkdir()
    with Broker(data_dir=root) as alone:
        here = ["--bootstrap", alone.bootstrap_servers]
        assert main(["topics", "create", "t", *here]) == 0
    with running(root, port) as nodes:
        nodes.says("fastq cluster features --upgrade kraft.version=1")
    with Broker(data_dir=root) as alone:
        here = ["--bootstrap", alone.bootstrap_servers]
        assert main(["cluster", "features", "--upgrade", "kraft.version=1", *here]) == 0
    with running(root, port) as nodes:
        nodes.ready()
        with Admin(bootstrap_servers=nodes.servers) as admin:
            until(lambda: {voter.node_id for voter in admin.describe_quorum().voters} == {1, 2, 3})
            assert set(admin.list_topics()) == {"t"}


def reading(bootstrap: str) -> Consumer:
    return Consumer(
        bootstrap_servers=bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    )


def all_of(consumer: Consumer) -> list[bytes]:
    """The values in what is assigned, from the beginning."""
    consumer.seek_to_beginning()
    return [record.value for record in consumer.read_to_end()]


class Sending:
    """Sends numbers to all partitions until it is stopped, and keeps where each acknowledged one is."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.bootstrap, self.partitions = bootstrap, partitions
        self.acknowledged: dict[tuple[int, int], int] = {}
        """By partition and number, once it is stopped."""
        self.begun = False
        """Whether something is acknowledged."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Producer(bootstrap_servers=self.bootstrap, acks="all", delivery_timeout_ms=60_000) as producer:
            sent = []
            while not self._stop.wait(0.02):
                for number in range(len(sent), len(sent) + 20):
                    partition = number % self.partitions
                    sent.append((partition, number, producer.send("t", b"%d" % number, partition=partition)))
                self.begun = self.begun or sent[0][2].done()
            for partition, number, future in sent:
                self.acknowledged[partition, number] = future.result(90).offset

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_whoever_is_killed_every_acknowledged_record_is_there_once_and_in_order(tmp_path: Path) -> None:
    """Nodes are killed, or end, and are started again: leaders of partitions and the active controller are among them."""
    random = Random(1)
    port = free_ports(2 * COUNT)
    with running(tmp_path / "data", port) as nodes:
        nodes.ready()
        bootstrap = nodes.servers
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic("t", 4, 3, configs={"min.insync.replicas": "2"})
        sending = Sending(bootstrap, 4)
        for round_ in range(1, 16):
            time.sleep(random.uniform(3, 6))
            victim = children(nodes.process.pid)[f"node-{random.randint(1, COUNT)}"]
            os.kill(victim, random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            nodes.says("RUNNING after RECOVERY", COUNT + round_)
        sending.stop()
        found: dict[tuple[int, int], int] = {}
        with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", number) for number in range(4)])
            for record in consumer.read_to_end():
                assert (record.partition, int(record.value or b"")) not in found
                found[record.partition, int(record.value or b"")] = record.offset
        assert len(sending.acknowledged) > 1000 and found == sending.acknowledged
        for partition in range(4):
            numbers = [number for place, number in found if place == partition]
            assert numbers == sorted(numbers)
