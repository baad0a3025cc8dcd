"""Random faults against producers, transactions, a group of readers and a pipeline; then the history is checked.

Rules: the faults come from a seed, which the test's name tells; one broker, killed and restarted among other things, its
coordinators moved away and back, and a member that is killed while its group takes it in; a few seeds in an ordinary run, fifty
under `make soak`. What counts is in `history.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from history import ABORTED, ACKNOWLEDGED, COMMITTED, UNKNOWN, History, check

from fastq import Admin, Consumer, FastqError, Producer
from fastq.errors import FatalTransactionError
from fastq.testing import Broker

SEEDS = range(50) if os.environ.get("FASTQ_SOAK") == "1" else range(1)
PARTITIONS = 3
SETTINGS = {"group.initial.rebalance.delay.ms": 100, "group.min.session.timeout.ms": 1000}
SECONDS, LONGER_S = 6.0, 60.0
KINDS = ["disconnect", "delay", "leader", "kill", "restart", "disconnect", "fail", "coordinator", "member", "member"]
APIS = ["Produce", "Fetch", "EndTxn", "TxnOffsetCommit", "OffsetCommit", "OffsetFetch", "FindCoordinator", "Heartbeat"]
COORDINATED = [("__consumer_offsets", "readers"), ("__consumer_offsets", "copier")]
COORDINATED += [("__transaction_state", "writer"), ("__transaction_state", "copier")]
# A member of the readers that joins, reads, and is killed: what it has read and not committed the others read.
VICTIM = """
import sys
from fastq import Consumer, FastqError
consumer = Consumer("log", bootstrap_servers=sys.argv[1], group_id="readers", enable_auto_commit=False,
                    session_timeout_ms=3000, heartbeat_interval_ms=500, group_protocol="classic")
while True:
    try:
        consumer.poll(timeout=0.2)
    except FastqError:
        pass
"""
GROUP = {"session_timeout_ms": 3000, "heartbeat_interval_ms": 500, "group_protocol": "classic"}


class Run:
    """One run: the clients' threads, the history they leave, and the end of it all."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.servers = broker.bootstrap_servers
        self.rng = random.Random(seed)
        self.stop = threading.Event()
        self.log, self.out = History(), History()
        self.numbers = iter(range(1 << 60))
        self.failures: list[BaseException] = []
        self.victim: subprocess.Popen[bytes] | None = None

    def thread(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=guarded, name=work.__name__)
        thread.start()
        return thread

    def send_plainly(self) -> None:
        """Idempotent sends; the outcome of each."""
        with Producer(bootstrap_servers=self.servers, linger_ms=2, delivery_timeout_ms=60_000) as producer:
            while not self.stop.is_set():
                values = [next(self.numbers) for _ in range(20)]
                sent = [(value, producer.send("log", b"%d" % value, key=b"%d" % value)) for value in values]
                producer.flush(timeout=90)
                for value, delivery in sent:
                    error = delivery.exception(timeout=1)
                    if error is None:
                        place = delivery.result(1)
                        self.log.sends.append((value, ACKNOWLEDGED, (place.partition, place.offset)))
                    else:
                        self.log.sends.append((value, UNKNOWN, None))

    def send_in_transactions(self) -> None:
        """Transactions of a few records, some of them aborted on purpose."""
        rng = random.Random(self.rng.random())
        producer: Producer | None = None
        while not self.stop.is_set():
            values = tuple(next(self.numbers) for _ in range(rng.randint(1, 8)))
            outcome = UNKNOWN
            try:
                if producer is None:
                    producer = Producer(bootstrap_servers=self.servers, transactional_id="writer")
                producer.begin_transaction()
                for value in values:
                    producer.send("log", b"%d" % value, key=b"%d" % value)
                if rng.random() < 0.3:
                    outcome = ABORTED  # nothing was asked to commit it: it cannot be committed by now
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    outcome = COMMITTED
            except FatalTransactionError:
                assert producer is not None
                producer.close(timeout=10)
                producer = None
            except FastqError:
                with contextlib.suppress(FastqError):
                    if producer is not None:
                        producer.abort_transaction()
            self.log.transactions.append((values, outcome))
        if producer is not None:
            producer.close(timeout=60)

    def read(self, name: str) -> None:
        """A member of a group: what it reads, in stretches without a rebalance; now and then it leaves and comes back."""
        rng = random.Random(self.rng.random())
        stretch = 0

        def changed(_: object) -> None:
            nonlocal stretch
            stretch += 1

        while not self.stop.is_set():
            stretch += 1
            consumer = Consumer(
                bootstrap_servers=self.servers,
                group_id="readers",
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                **GROUP,
            )
            consumer.subscribe(["log"], on_assigned=changed, on_revoked=changed, on_lost=changed)
            end, found = time.monotonic() + rng.uniform(1, 4), False
            with consumer:
                # It stays until it has read something: on a slow machine a group might do nothing but rebalance.
                while (time.monotonic() < end or not found) and not self.stop.is_set():
                    with contextlib.suppress(FastqError):
                        for record in consumer.poll(max_records=50, timeout=0.2):
                            found = True
                            row = (f"{name}/{stretch}", record.partition, record.offset, int(record.value))
                            self.log.polls.append(row)

    def copy(self) -> None:
        """Exactly once from `log` to `copy`: read, write and commit in one transaction; some of them fail half-way."""
        rng = random.Random(self.rng.random())
        while not self.stop.is_set():
            with contextlib.suppress(FastqError), contextlib.ExitStack() as stack:
                producer = stack.enter_context(Producer(bootstrap_servers=self.servers, transactional_id="copier"))
                consumer = stack.enter_context(self.copiers_consumer())
                self.copy_some(producer, consumer, rng)

    def copiers_consumer(self) -> Consumer:
        return Consumer(
            "log",
            bootstrap_servers=self.servers,
            group_id="copier",
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            **GROUP,
        )

    def copy_some(self, producer: Producer, consumer: Consumer, rng: random.Random, idle_s: float = 1e9) -> None:
        """Copy until stopped, or until nothing has come for `idle_s`; ends early in the middle of a transaction by chance."""
        last = time.monotonic()
        while not self.stop.is_set() or idle_s < 1e9:
            records = consumer.poll(max_records=20, timeout=0.2)
            if not records:
                if time.monotonic() - last > idle_s:
                    return
                continue
            last = time.monotonic()
            producer.begin_transaction()
            for record in records:
                producer.send("copy", record.value, partition=record.partition)
            producer.send_offsets_to_transaction(consumer)
            if idle_s == 1e9 and rng.random() < 0.1:
                return  # as if it had crashed: the next one fences it off
            producer.commit_transaction()

    def tells_enough(self) -> bool:
        """Whether a check of the history would notice something: the bounds of the test's end."""
        written = sum(outcome == ACKNOWLEDGED for _, outcome, _ in self.log.sends)
        written += sum(len(values) for values, outcome in self.log.transactions if outcome == COMMITTED)
        return written > 100 and len(self.log.polls) > 100

    def kill_or_start_a_member(self) -> None:
        """Kill the member that is a process of its own, or start it: it joins a moment later."""
        victim, self.victim = self.victim, None
        if victim is not None:
            victim.kill()
            victim.wait()
        else:
            self.victim = subprocess.Popen([sys.executable, "-c", VICTIM, self.servers], stderr=subprocess.DEVNULL)

    def move_a_coordinator(self) -> None:
        """A coordinator is unloaded, and loaded again under another leader epoch."""
        topic, key = self.rng.choice(COORDINATED)
        with contextlib.suppress(RuntimeError):  # nobody has asked for it yet
            self.broker.change_leader(topic, coordinated_by(key))

    def trouble(self) -> None:
        """Faults until the time is over, and on a slow machine until enough has happened."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or (not self.tells_enough() and time.monotonic() < end + LONGER_S):
            time.sleep(self.rng.uniform(0.1, 0.6))
            kind = self.rng.choice(KINDS)
            if kind == "disconnect":
                self.broker.disconnect(self.rng.choice(APIS), times=self.rng.randint(1, 3))
            elif kind == "delay":
                self.broker.delay(self.rng.choice(APIS), seconds=self.rng.uniform(0.05, 0.5), times=2)
            elif kind == "fail":
                self.broker.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)
            elif kind == "coordinator":
                self.move_a_coordinator()
            elif kind == "member":
                self.kill_or_start_a_member()
            elif kind == "leader":
                self.broker.change_leader("log", self.rng.randrange(PARTITIONS))
            else:
                if kind == "kill":
                    self.broker.kill()
                self.broker.restart()
        self.broker.clear_faults()


def coordinated_by(key: str) -> int:
    """The partition of a coordinator's topic that a group or transactional id belongs to: Java's hash of the text, modulo 50."""
    value = 0
    for character in key:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >= 1 << 31 else value) % 50


def read_all(servers: str, topic: str) -> list[tuple[int, int, int]]:
    with Consumer(
        topic, bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        return [(record.partition, record.offset, int(record.value)) for record in consumer.read_to_end(timeout=60)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_history_has_no_anomaly(tmp_path: Path, seed: int) -> None:
    with Broker(data_dir=tmp_path / "data", config=SETTINGS) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            for topic in ("log", "copy"):
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
        run = Run(broker, seed)
        work = [run.send_plainly, run.send_in_transactions, run.copy]
        threads = [run.thread(each) for each in work]
        threads += [run.thread(lambda name=name: run.read(name)) for name in ("a", "b")]  # type: ignore[misc]
        try:
            run.trouble()
        finally:
            run.stop.set()
            if run.victim is not None:
                run.kill_or_start_a_member()
            for thread in threads:
                thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        assert run.failures == []
        for _ in range(5):  # what the faults have left behind may still fence off a copier or fail its commit
            with contextlib.suppress(FastqError):
                finish_copy(run)
                break
        run.log.final = read_all(run.servers, "log")
        run.out.final = read_all(run.servers, "copy")
    assert len(run.log.final) > 100 and len(run.log.polls) > 100, "the run did too little to tell"
    assert check(run.log) == []
    assert check(run.out) == []
    assert sorted(value for _, _, value in run.out.final) == sorted(value for _, _, value in run.log.final)


def finish_copy(run: Run) -> None:
    """What the copier has not come to yet."""
    with Producer(bootstrap_servers=run.servers, transactional_id="copier") as producer:
        producer.init_transactions()
        with run.copiers_consumer() as consumer:
            run.copy_some(producer, consumer, random.Random(0), idle_s=8.0)
