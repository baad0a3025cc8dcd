"""A partition or a group that nobody serves, with connections that are well: each client's log says so when it lasts, and when it is over.

A cluster of three real nodes. A topic, `__consumer_offsets` and `__transaction_state` have one replica each, on a node that is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from fastq import AsyncConsumer, AsyncProducer, Consumer, Producer
from fastq.admin import Admin
from fastq.errors import DeliveryTimeout, LeaderNotAvailable, RequestTimedOut, TransactionTimeout
from fastq.testing import Broker, Cluster

PATIENCE_S = 40.0
ONE_REPLICA = {
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 300,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, in_memory=True, config=ONE_REPLICA) as cluster:
        yield cluster


class Log(logging.Handler):
    """What the clients say, line by line; safe for any thread."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name} {record.levelname} {record.getMessage()}")

    def has(self, *words: str) -> bool:
        """Whether one line has all of them."""
        return any(all(word in line for word in words) for line in list(self.lines))

    def line(self, *words: str) -> str:
        (found,) = (line for line in self.lines if all(word in line for word in words))
        return found


@pytest.fixture
def log() -> Iterator[Log]:
    handler, logger = Log(), logging.getLogger("fastq")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(level)
    logger.removeHandler(handler)


@contextmanager
def gone(node: Broker) -> Iterator[None]:
    """The node is dead while this lasts, and ready again after it."""
    node.kill()
    try:
        yield
    finally:
        node.start()


def until(found: Callable[[], bool], meanwhile: Callable[[], object]) -> None:
    """Do something that waits for a moment, again and again, until it is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline
        meanwhile()


async def async_until(found: Callable[[], bool], consumer: AsyncConsumer) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline
        await consumer.poll(timeout=0.2)


def make_topic(cluster: Cluster, name: str, *partitions: list[int]) -> str:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(name, replica_assignments=dict(enumerate(partitions)))
    return name


READ, WRITTEN = "fastq.consumer WARNING", "fastq.producer WARNING"


def check_partition_lines(log: Log, topic: str) -> None:
    """One line of each client, which says what is wrong and what to do, and one when it is over."""
    for who, doing in ((READ, "read"), (WRITTEN, "written to")):
        line = log.line(who, f"{topic}-0 cannot be {doing}: {topic}-0 has no leader: its only replica is on node 3")
        assert f"fastq topics describe {topic}" in line and line.endswith("trying on")
        assert log.has(f"INFO {topic}-0 can be {doing} again, after ")


def command(cluster: Cluster, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes, list[str]]:
    """`fastq` in a process of its own: exit code, output, and lines of the standard error."""
    ended = subprocess.run(
        [sys.executable, "-m", "fastq.cli", *arguments, "--bootstrap", cluster.bootstrap_servers],
        input=stdin,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return ended.returncode, ended.stdout, ended.stderr.decode().splitlines()


def check_commands(cluster: Cluster, topic: str) -> None:
    """Commands that get nothing of partition 0, which has no leader, say so and end with 3; of the others they print what there is."""
    why = f"{topic}-0 has no leader: its only replica is on node 3, which is down"
    start = ("consume", topic, "--from-beginning")
    soon = ("--property", "default.api.timeout.ms=4000")
    wanted: dict[tuple[str, ...], bytes] = {
        (*start, "--timeout", "2"): b"other\n",
        (*start, "--timeout", "2", "--exit-at-end"): b"",
        (*start, "--exit-at-end", *soon): b"",
        ("consume", topic, "--partition", "0", "--to", "2030-01-01", "--timeout", "2", *soon): b"",
    }
    with ThreadPoolExecutor() as pool:
        ended = dict(zip(wanted, pool.map(lambda arguments: command(cluster, *arguments), wanted), strict=True))
    for arguments, (code, out, lines) in ended.items():
        assert (code, out) == (3, wanted[arguments]), (arguments, lines)
        assert any(why in line for line in lines), (arguments, lines)
    code, out, lines = command(cluster, "offsets", topic, *soon)
    assert (code, out.split()[-4:]) == (3, [topic.encode(), b"1", b"1", b"-1"]) and why in lines[-1], (out, lines)
    code, _, lines = command(
        cluster,
        *("produce", topic, "--partition", "0"),
        *("--property", "delivery.timeout.ms=2500", "--property", "request.timeout.ms=2000"),
        stdin=b"lost\n",
    )
    assert code == 3 and "no leader of it has been known for " in lines[-1] and why in lines[-1], lines
    assert command(cluster, *start, "--partition", "1", "--exit-at-end")[:2] == (0, b"other\n")


def test_a_partition_without_a_leader(cluster: Cluster, log: Log) -> None:
    topic, servers = make_topic(cluster, "blocking", [3], [1]), cluster.bootstrap_servers
    with (
        Producer(bootstrap_servers=servers, delivery_timeout_ms=6000, request_timeout_ms=3000, linger_ms=0) as producer,
        Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
    ):
        producer.send(topic, b"before", partition=0).result(20)
        assert [record.value for record in consumer.poll(timeout=20)] == [b"before"]
        with gone(cluster.node(3)):
            lost = producer.send(topic, b"lost", partition=0)
            told = lambda: log.has(READ, "cannot be read") and log.has(WRITTEN, "cannot be written to")  # noqa: E731
            until(told, lambda: consumer.poll(timeout=0.2))
            with pytest.raises(
                DeliveryTimeout, match=rf"no leader of it has been known for \d.*{topic}-0 has no leader"
            ) as raised:
                lost.result(20)
            assert isinstance(raised.value.cause, LeaderNotAvailable)
            producer.send(topic, b"other", partition=1).result(20)
            assert [record.value for record in consumer.poll(timeout=20)] == [b"other"], "the others are read on"
            with pytest.raises(RequestTimedOut, match=f"{topic}-0 has no leader"):
                consumer.end_offsets([(topic, 0)], timeout=1.0)
        producer.send(topic, b"after", partition=0).result(20)
        assert [record.value for record in consumer.poll(timeout=20)] == [b"after"]
    check_partition_lines(log, topic)


def test_a_partition_without_a_leader_in_asyncio(cluster: Cluster, log: Log) -> None:
    topic, servers = make_topic(cluster, "asyncio", [3]), cluster.bootstrap_servers

    async def main() -> None:
        async with (
            AsyncProducer(
                bootstrap_servers=servers, delivery_timeout_ms=6000, request_timeout_ms=3000, linger_ms=0
            ) as producer,
            AsyncConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
        ):
            await (await producer.send(topic, b"before"))
            assert [record.value for record in await consumer.poll(timeout=20)] == [b"before"]
            with gone(cluster.node(3)):
                lost = await producer.send(topic, b"lost")
                told = lambda: log.has(READ, "cannot be read") and log.has(WRITTEN, "cannot be written to")  # noqa: E731
                await async_until(told, consumer)
                with pytest.raises(DeliveryTimeout, match=f"{topic}-0 has no leader"):
                    await lost
            await (await producer.send(topic, b"after"))
            assert [record.value for record in await consumer.poll(timeout=20)] == [b"after"]

    asyncio.run(main())
    check_partition_lines(log, topic)


def test_commands_of_a_partition_without_a_leader(cluster: Cluster) -> None:
    topic = make_topic(cluster, "commands", [3], [1])
    assert command(cluster, "produce", topic, "--partition", "1", stdin=b"other\n")[0] == 0
    node = cluster.node(3)
    with gone(node), Admin(bootstrap_servers=cluster.node(1).bootstrap_servers) as admin:
        leaderless = lambda: admin.describe_topic(topic).partitions[0].leader is None  # noqa: E731
        until(leaderless, lambda: time.sleep(0.05))
        check_commands(cluster, topic)


@pytest.mark.parametrize("group", [(), ("--group", "those-who-lose-a-leader")])
def test_a_leader_that_is_lost_while_a_command_reads_to_the_end(cluster: Cluster, group: tuple[str, ...]) -> None:
    """It ends with what there was, says why, and with its own code: a member of a group waited for ever."""
    topic = make_topic(cluster, f"lost-{len(group)}", [3])
    node = cluster.node(3)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_many(topic, [b"%099d" % number for number in range(20_000)])
    small = [f"{name}={size}" for name, size in (("max.partition.fetch.bytes", 5000), ("prefetch.bytes.max", 20_000))]
    command = [
        sys.executable,
        "-m",
        "fastq.cli",
        "consume",
        topic,
        "--from-beginning",
        "--exit-at-end",
        "--timeout",
        "3",
    ]
    command += [*group, *(word for setting in small for word in ("--property", setting))]
    servers = ",".join(cluster.node(number).bootstrap_servers for number in (1, 2))
    with subprocess.Popen(
        [*command, "--bootstrap", servers], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as reading:
        assert reading.stdout is not None
        out = reading.stdout.readline()  # the rest of them waits for the pipe
        with gone(node):
            rest, err = reading.communicate(timeout=PATIENCE_S)
    lines = (out + rest).splitlines()
    assert reading.returncode == 3, err
    assert lines == [b"%099d" % number for number in range(len(lines))] and len(lines) < 20_000
    assert f"{topic}-0 has no leader".encode() in err or b"node 3" in err


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_groups_without_a_coordinator(cluster: Cluster, log: Log, protocol: str) -> None:
    """A member of the blocking consumer's, one of the asyncio one's, and one that was in the group before."""
    topic = make_topic(cluster, f"groups-{protocol}", [1, 2, 3])
    options = {"bootstrap_servers": cluster.bootstrap_servers, "group_protocol": protocol}
    found = lambda group: log.has(  # noqa: E731
        READ, f"the coordinator of group {protocol}-{group} cannot be found: COORDINATOR_NOT_AVAILABLE"
    )

    async def joining() -> None:
        async with AsyncConsumer(topic, group_id=f"{protocol}-async", **options) as consumer:
            await async_until(lambda: found("async"), consumer)

    with Consumer(topic, group_id=f"{protocol}-old", **options) as old:
        until(lambda: bool(old.assignment()), lambda: old.poll(timeout=0.2))
        with gone(cluster.leader("__consumer_offsets")):
            thread = threading.Thread(target=asyncio.run, args=(joining(),))
            thread.start()
            with Consumer(topic, group_id=f"{protocol}-new", **options) as new:
                until(lambda: found("old") and found("new"), lambda: (old.poll(timeout=0.1), new.poll(timeout=0.1)))
            thread.join()
            assert found("async")
            code, _, lines = command(cluster, "consume", topic, "--group", f"{protocol}-command", "--timeout", "5")
            assert code == 3 and "COORDINATOR_NOT_AVAILABLE" in lines[-1], lines
        until(
            lambda: log.has(f"INFO the coordinator of group {protocol}-old can be found again, after "),
            lambda: old.poll(timeout=0.2),
        )


def test_a_transaction_without_a_coordinator(cluster: Cluster, log: Log) -> None:
    topic, servers = make_topic(cluster, "transactions", [1, 2, 3]), cluster.bootstrap_servers

    async def asking() -> None:
        async with AsyncProducer(bootstrap_servers=servers, transactional_id="async") as producer:
            with pytest.raises(TransactionTimeout, match="COORDINATOR_NOT_AVAILABLE"):
                await producer.init_transactions(timeout=6.0)

    with Producer(bootstrap_servers=servers, transactional_id="blocking") as producer:
        with producer.transaction():
            producer.send(topic, b"before")
        with gone(cluster.leader("__transaction_state")):
            thread = threading.Thread(target=asyncio.run, args=(asking(),))
            thread.start()
            producer.begin_transaction()
            producer.send(topic, b"after")
            with pytest.raises(TransactionTimeout, match="COORDINATOR_NOT_AVAILABLE"):
                producer.commit_transaction(timeout=8.0)
            thread.join()
        producer.commit_transaction(timeout=PATIENCE_S)
    assert log.has(WRITTEN, "the coordinator of transactional id async cannot be found: COORDINATOR_NOT_AVAILABLE")
    assert log.has(WRITTEN, f"{topic}-0 cannot be written to: ", "COORDINATOR_NOT_AVAILABLE") or log.has(
        WRITTEN, "transactional id blocking cannot be "
    )


@contextmanager
def frozen(broker: Broker) -> Iterator[None]:
    """The process stands still while this lasts; its connections stay."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_a_broker_that_stands_still(fastq_broker: Broker, log: Log) -> None:
    """No connection breaks for as long as a request may take: that a fetch is not answered is said before."""
    servers = fastq_broker.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic("still", 1)

    async def reading() -> None:
        async with AsyncConsumer("still", bootstrap_servers=servers) as consumer:
            await consumer.poll(timeout=0.5)
            both.wait()
            await async_until(lambda: not going.is_set(), consumer)

    going, both = threading.Event(), threading.Barrier(2)
    going.set()
    told = lambda: [line for line in log.lines if line.startswith(f"{READ} {servers} (node ")]  # noqa: E731
    with Consumer("still", bootstrap_servers=servers) as consumer:
        consumer.poll(timeout=0.5)
        thread = threading.Thread(target=asyncio.run, args=(reading(),))
        thread.start()
        both.wait()
        with frozen(fastq_broker):
            until(lambda: len(told()) == 2, lambda: consumer.poll(timeout=0.2))
        back = lambda: sum("can be read from again, after " in line for line in list(log.lines)) == 2  # noqa: E731
        until(back, lambda: consumer.poll(timeout=0.2))
        going.clear()
        thread.join()
    assert all("cannot be read from: the broker did not answer Fetch in time" in line for line in told())
