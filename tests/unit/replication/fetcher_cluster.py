"""Nodes that follow each other in one process on virtual time: real fetchers, obvious leaders, a controller that is never wrong, and a
network that delays, loses, doubles and keeps back. Everything is drawn from one seed.

Leaders change, are cut off from the news and write on, nodes end and forget what was not synced, sessions are forgotten, logs lose their
beginning. Always: what was committed once is never another record, and no log ever cuts it off.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from fastq_broker.replication.fetcher import AwaitDurable, FetcherConfig, ReplicaFetcher, SendFetch
from fastq_broker.replication.fetcher_session import ReplicaPartition
from fastq_broker.replication.fetcher_wire import fetch_request, list_offsets_request
from fetcher_world import BROKER_EPOCH, LATEST_LEVEL, Batch, Leader, Led, MemoryLog

TIMEOUT_S = 1.0
NOBODY = -1


class Truth:
    """What the controller knows of a partition."""

    def __init__(self, nodes: list[int]) -> None:
        self.epoch = 0
        self.leader = nodes[0]
        self.isr = set(nodes)


class Leading:
    """A partition that a node leads, or believes to. `isr` stands still once another leads."""

    def __init__(self, led: Led, isr: set[int]) -> None:
        self.led = led
        self.isr = isr
        self.epoch_start = led.log.log_end_offset
        self.ends: dict[int, int] = {}


class Runner:
    """A fetcher of a node, and its place in time."""

    def __init__(self, cluster: Cluster, node: Member, leader_id: int) -> None:
        self.cluster, self.node, self.leader_id = cluster, node, leader_id
        config = FetcherConfig(
            replica_id=node.node_id, partition_bytes_max=cluster.rng.choice([1, 300, 1 << 20]), backoff_s=0.2
        )
        self.machine = cluster.fetcher(config, f"node {leader_id}", lambda: 5)
        self.life = node.life

    def turn(self) -> None:
        cluster, machine = self.cluster, self.machine
        if self.life != self.node.life:
            return
        for effect in machine.poll(cluster.now):
            if isinstance(effect, AwaitDurable):
                effect.log.wait_durable(effect.offset, lambda error: cluster.soon(self.turn))
                cluster.sync_soon(self.node)
                continue
            if isinstance(effect, SendFetch):
                request = fetch_request(effect, machine.config, LATEST_LEVEL, BROKER_EPOCH)
                take: Callable[[int, Any, float], None] = machine.fetched
            else:
                request = list_offsets_request(effect, machine.config, LATEST_LEVEL)
                take = machine.listed
            cluster.ask(self, effect.number, request, take)
        due = machine.next_wakeup(cluster.now)
        if due != float("inf"):
            cluster.at(max(due, cluster.now + 0.001), self.turn)

    def answered(self, number: int, take: Callable[[int, Any, float], None], answer: Any) -> None:
        if self.life == self.node.life:
            take(number, answer, self.cluster.now)
            self.turn()

    def failed(self, number: int) -> None:
        if self.life == self.node.life:
            self.machine.failed(number, self.cluster.now)
            self.turn()


class Member:
    """A node. `life` counts its starts."""

    def __init__(self, cluster: Cluster, node_id: int, names: list[ReplicaPartition], fsync: bool) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.up = True
        self.life = 0
        self.logs = {name: MemoryLog(fsync=fsync) for name in names}
        for name, log in self.logs.items():
            log.on_cut = partial(cluster.check_cut, self, name)
        self._begin()

    def _begin(self) -> None:
        self.server = Leader(itertools.count(1 + 1_000_000 * self.life))
        self.leading: dict[ReplicaPartition, Leading] = {}
        self.epochs: dict[ReplicaPartition, int] = {}
        self.runners: dict[int, Runner] = {}

    def crash(self) -> None:
        rng = self.cluster.rng
        self.up = False
        self.life += 1
        self._begin()
        for log in self.logs.values():
            log.crash()
            if rng.random() < 0.5:  # the checkpoint is older
                log.high_watermark = rng.randint(log.log_start_offset, log.high_watermark)

    def learn(self, name: ReplicaPartition, epoch: int, leader: int) -> None:
        """Metadata."""
        if epoch <= self.epochs.get(name, -1) or not self.up:
            return
        self.epochs[name] = epoch
        log, cluster = self.logs[name], self.cluster
        self.server.led.pop(name.key, None)
        self.leading.pop(name, None)
        for runner in self.runners.values():
            if runner.leader_id != leader:
                runner.machine.remove([name.key])
        if leader == self.node_id:
            truth = cluster.truth[name]
            log.assign_epoch(epoch, log.log_end_offset)
            led = self.server.lead(name, log, epoch)
            self.leading[name] = Leading(led, set(truth.isr))
            led.on_fetch = partial(self._fetched, name, self.leading[name])
            self.advance(name)
        elif leader != NOBODY:
            runner = self.runners.setdefault(leader, Runner(cluster, self, leader))
            runner.machine.add(name, epoch, log, cluster.now)
            runner.turn()

    # -- as a leader

    def _fetched(self, name: ReplicaPartition, leading: Leading, replica: int, offset: int) -> None:
        leading.ends[replica] = offset
        truth = self.cluster.truth[name]
        joins = offset >= max(leading.led.log.high_watermark, leading.epoch_start)
        if truth.epoch == leading.led.epoch and joins and self.cluster.nodes[replica].up:
            truth.isr.add(replica)
        if self.leading.get(name) is leading:
            self.advance(name)

    def advance(self, name: ReplicaPartition) -> None:
        """Commit what all in sync have."""
        leading = self.leading.get(name)
        if leading is None:
            return
        truth, log = self.cluster.truth[name], leading.led.log
        if truth.epoch == leading.led.epoch:
            leading.isr = set(truth.isr)
        ends = [leading.ends.get(node, -1) for node in leading.isr if node != self.node_id]
        high_watermark = min([log.durable_end, *ends])
        if high_watermark > log.high_watermark:
            log.high_watermark = high_watermark
            self.cluster.commit(name, [batch for batch in log.batches if batch.last < high_watermark])

    def write(self, name: ReplicaPartition, value: bytes, count: int) -> None:
        leading = self.leading[name]
        leading.led.log.append(leading.led.epoch, *[value] * count)
        self.advance(name)
        self.cluster.sync_soon(self)

    def sync(self, life: int) -> None:
        if life == self.life:
            for name, log in self.logs.items():
                log.sync()
                self.advance(name)


class Cluster:
    """All of it. `run` goes through the troubles, `settle` ends them."""

    def __init__(
        self, seed: int, *, nodes: int = 3, partitions: int = 3, fetcher: type[ReplicaFetcher] = ReplicaFetcher
    ) -> None:
        self.fetcher = fetcher
        self.rng = rng = Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], object]]] = []
        self.order = itertools.count()
        self.names = [ReplicaPartition(f"t{n // 2}", bytes([n // 2 + 1]) * 16, n % 2) for n in range(partitions)]
        ids = list(range(nodes))
        self.truth = {name: Truth(rng.sample(ids, nodes)) for name in self.names}
        self.committed: dict[ReplicaPartition, dict[int, Batch]] = {name: {} for name in self.names}
        self.loss = rng.choice([0.0, 0.02, 0.1])
        self.nodes = [Member(self, node, self.names, fsync=seed % 2 == 0) for node in ids]
        self.cuts = self.requests = 0
        self.publish_all()

    # -- time

    def at(self, when: float, what: Callable[[], object]) -> None:
        heapq.heappush(self.events, (when, next(self.order), what))

    def soon(self, what: Callable[[], object]) -> None:
        self.at(self.now, what)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.events and self.events[0][0] <= end:
            self.now, _, what = heapq.heappop(self.events)
            what()
        self.now = end

    # -- what is checked

    def commit(self, name: ReplicaPartition, batches: list[Batch]) -> None:
        known = self.committed[name]
        for batch in batches:
            assert known.setdefault(batch.base, batch) == batch, f"offset {batch.base} of {name} was another record"

    def check_cut(self, node: Member, name: ReplicaPartition, gone: list[Batch]) -> None:
        self.cuts += bool(gone)
        leader = self.truth[name].leader
        start = self.nodes[leader].logs[name].log_start_offset if leader != NOBODY else 0
        for batch in gone:
            if batch.last >= start:
                assert self.committed[name].get(batch.base) != batch, f"node {node.node_id} cuts off {batch} of {name}"

    # -- the network

    def ask(self, runner: Runner, number: int, request: Any, take: Callable[[int, Any, float], None]) -> None:
        rng, node = self.rng, self.nodes[runner.leader_id]
        self.requests += 1
        self.at(self.now + TIMEOUT_S, lambda: runner.failed(number))

        def arrive() -> None:
            if not node.up:
                self.at(self.now + 0.01, lambda: runner.failed(number))
                return
            answer = node.server.answer(request)
            for _ in range(1 if rng.random() < 0.95 else 2):
                if rng.random() >= self.loss:
                    slow = 2 * TIMEOUT_S if rng.random() < 0.02 else 0.05
                    self.at(self.now + rng.random() * slow, lambda: runner.answered(number, take, answer))

        if rng.random() >= self.loss:
            self.at(self.now + rng.choice([0.001, 0.05, 0.3]) * rng.random(), arrive)

    def sync_soon(self, node: Member) -> None:
        if next(iter(node.logs.values())).fsync:
            life = node.life
            self.at(self.now + self.rng.random() * self.rng.choice([0.05, 0.5]), lambda: node.sync(life))

    # -- the controller

    def elect(self, name: ReplicaPartition, leader: int) -> None:
        truth = self.truth[name]
        before = truth.leader
        if before != NOBODY and name in self.nodes[before].leading:
            self.nodes[before].leading[name].isr = set(truth.isr)
        truth.epoch += 1
        truth.leader = leader
        for node in self.nodes:
            delay = self.rng.choice([0.0, 0.1, 1.5]) * self.rng.random()
            epoch = truth.epoch
            self.at(self.now + delay, partial(node.learn, name, epoch, leader))

    def publish_all(self) -> None:
        for name, truth in self.truth.items():
            for node in self.nodes:
                self.soon(partial(node.learn, name, truth.epoch, truth.leader))

    def fence(self, node: Member) -> None:
        for name, truth in self.truth.items():
            if node.node_id in truth.isr and len(truth.isr) > 1:
                truth.isr.discard(node.node_id)
                if truth.leader not in (NOBODY, node.node_id):
                    self.soon(partial(self.nodes[truth.leader].advance, name))
            if truth.leader == node.node_id:
                alive = [one for one in sorted(truth.isr) if self.nodes[one].up]
                self.elect(name, self.rng.choice(alive) if alive else NOBODY)

    def crash(self, node: Member) -> None:
        node.crash()
        self.fence(node)

    def start(self, node: Member) -> None:
        node.up = True
        for name, truth in self.truth.items():
            if truth.leader == NOBODY and node.node_id in truth.isr:
                self.elect(name, node.node_id)
            self.at(self.now + 0.1 * self.rng.random(), partial(node.learn, name, truth.epoch, truth.leader))

    # -- troubles

    def trouble(self, step: int) -> None:
        rng = self.rng
        down = [node for node in self.nodes if not node.up]
        if down and rng.random() < 0.15:
            self.start(rng.choice(down))
        for node in self.nodes:
            for name in list(node.leading):
                if rng.random() < 0.5:
                    node.write(name, b"%d of node %d" % (step, node.node_id), rng.randint(1, 3))
        what, name = rng.random(), rng.choice(self.names)
        truth = self.truth[name]
        alive = [one for one in sorted(truth.isr) if self.nodes[one].up]
        if what < 0.15 and alive:
            self.elect(name, rng.choice(alive))
        elif what < 0.20:
            node = rng.choice(self.nodes)
            if node.up:
                self.crash(node)
        elif what < 0.22:
            for node in rng.sample(self.nodes, len(self.nodes)):  # the power goes
                if node.up:
                    self.crash(node)
        elif what < 0.25:
            rng.choice(self.nodes).server.sessions.clear()
        elif what < 0.30 and truth.leader != NOBODY:
            node = self.nodes[truth.leader]
            log = node.logs[name]
            if name in node.leading and log.high_watermark > log.log_start_offset:
                log.delete_before(rng.randint(log.log_start_offset, log.high_watermark))

    def settle(self) -> None:
        """All are well, and each leader writes once more, and begins where the shortest log does: all have its log, byte for byte."""
        self.loss = 0.0
        for node in self.nodes:
            if not node.up:
                self.start(node)
        self.run(5.0)
        for name, truth in self.truth.items():
            assert truth.leader != NOBODY
            self.nodes[truth.leader].write(name, b"the last", 1)
        self.run(5.0)
        for name, truth in self.truth.items():
            self.nodes[truth.leader].logs[name].delete_before(
                max(node.logs[name].log_start_offset for node in self.nodes)
            )
        self.run(5.0)
        for name, truth in self.truth.items():
            leader = self.nodes[truth.leader].logs[name]
            assert leader.high_watermark == leader.log_end_offset, f"{name} is not committed to its end"
            assert truth.isr == {node.node_id for node in self.nodes}
            for batch in self.committed[name].values():
                if batch.last >= leader.log_start_offset:
                    assert batch in leader.batches, f"{batch} of {name} is gone"
            for node in self.nodes:
                log = node.logs[name]
                assert log.data == leader.data, f"node {node.node_id} has another {name}"
                assert (log.log_start_offset, log.high_watermark) == (leader.log_start_offset, leader.high_watermark)
                assert log.epochs == leader.epochs


def troubled(seed: int, fetcher: type[ReplicaFetcher] = ReplicaFetcher, steps: int = 120) -> Cluster:
    """A cluster that went through its troubles and came out whole."""
    cluster = Cluster(seed, fetcher=fetcher)
    for step in range(steps):
        cluster.trouble(step)
        cluster.run(cluster.rng.random() * 0.3)
    cluster.settle()
    return cluster
