"""One seed: a cluster of three, its clients, the faults that befall it, and that it is well again afterwards."""

from __future__ import annotations

import errno
import gc
import logging
import warnings
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from fastq_broker.controller.image import PartitionImage
from faulty_files import Fault as DiskFault
from faulty_files import Operation

from fastq.protocol.messages import CreateTopicsRequest
from simulation.checks import Checks
from simulation.client import Client, Producer, Reader, Unreachable
from simulation.consumer_group import ConsumerWorker
from simulation.faults import FAULTS_S, NODES, Fault, Moment, faults_of, vote_of, watermarks_of
from simulation.network import Network
from simulation.node import Node, ip_of
from simulation.operator import Operator, Places
from simulation.own_client import OwnConsumer, OwnProducer, lent
from simulation.renewer import Renewer
from simulation.story import surroundings
from simulation.transactions import CommittedReader, Ledger, Worker
from simulation.world import Violation, World

WORKERS = 2
LOOK_S = 0.02
"""How often the checks look."""
UP_S, WELL_S = 30.0, 60.0
TOLD_MAX = 12
SHORT = {
    "metadata.log.max.record.bytes.between.snapshots": "1500",
    "metadata.log.segment.ms": "700",
    "log.roll.ms": "900",
}
"""Settings by which logs have many segments, and the metadata log many snapshots and a start that moves."""
LATE_S = 3.0
"""A request that nobody waits for any more has been seen to by then."""
IDLE_S = 5.0
"""Longer than a follower may lag behind."""
IDLE_DELAY_S = 0.05
"""So that a follower does not have at once what comes then."""


def _is_whole(partition: PartitionImage) -> bool:
    """Whether it has all its replicas in sync, one that leads, and stays where it is."""
    moves = partition.adding_replicas or partition.removing_replicas
    return len(partition.replicas) == len(partition.isr) == NODES and partition.leader >= 0 and not moves


class Outcome(NamedTuple):
    """What has become of a seed. `problem`: None when all held."""

    seed: int
    problem: str | None
    story: list[str]
    print: int
    virtual_s: float
    steps: int
    records: int


class Cluster:
    """Nodes, clients, checks."""

    def __init__(self, world: World, root: Path) -> None:
        self.world = world
        self.network = Network(world)
        random = world.random_of("cluster")
        self.durable = random.random() < 0.5
        """Whether records are on disk before they are acknowledged. Only then does power go, but for one node at a time."""
        self.moving = random.random() < 0.4
        self._root = root
        self._settings = settings = {"durability": "fsync"} if self.durable else {}
        settings["replica.lag.time.max.ms"] = random.choice(("1000", "3000"))
        size = random.choice(("1000", "1048576"))
        settings |= {"replica.fetch.max.bytes": size, "replica.fetch.response.max.bytes": size}
        more = world.random_of("housekeeping")
        self._founded = more.random() < 0.5
        if more.random() < 0.5:
            settings |= SHORT
        self.nodes = [self._node(number) for number in range(1, NODES + 1)]
        self.checks = Checks(world, self.nodes)
        self.clients: list[Client] = []
        self.producers: list[Producer] = []
        self.operator: Operator | None = None
        self.ledger = Ledger()
        self.workers: list[Worker] = []
        self.outputs: list[CommittedReader] = []
        self.own: tuple[OwnProducer, OwnConsumer] | None = None
        self.renewer: Renewer | None = None
        self._look_at = 0.0
        self._armed: list[Callable[[], bool]] = []
        """What befalls the cluster once something happens: asked after each step until it says that it has."""
        world.after_step = self._stepped
        self.transactional = random.random() < 0.5
        self.network.delay_s = 0.0001, random.choice((0.001, 0.005, 0.05))
        disk_s = random.choice((0.0005, 0.002, 0.02, 0.1))
        self._sync_s = disk_s / 10, disk_s
        for node in self.nodes:
            node.sync_s = self._sync_s

    def _node(self, number: int) -> Node:
        return Node(self.world, self.network, number, NODES, self._root, founded=self._founded, **self._settings)

    def _stepped(self, host: Any) -> None:
        self.network.sweep()
        if self.world.now >= self._look_at:
            self._look_at = self.world.now + LOOK_S
            self.checks.look()
        if self._armed:
            self._armed = [each for each in self._armed if not each()]

    def client(self) -> Client:
        made = Client(self.world, self.network, len(self.clients) + 1, [node.node_id for node in self.nodes])
        self.clients.append(made)
        return made

    def go(self, client: Client, work: Any) -> Any:
        """Have a client do something; what it raises ends the seed."""
        task = client.host.loop.create_task(work)
        task.add_done_callback(partial(_raise, client))
        return task

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self.until(UP_S, lambda: all(node.ready for node in self.nodes), "the nodes do not come up")

    def until(self, seconds: float, true: Callable[[], bool], what: str) -> None:
        if not self.world.run(seconds, true):
            raise Violation(f"{what}, {seconds} s later")

    def make_topic(self, name: str, partitions: int) -> None:
        async def make() -> None:
            configs = [CreateTopicsRequest.CreatableTopicConfig(name="min.insync.replicas", value="2")]
            topic = CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=NODES, configs=configs
            )
            while True:
                try:
                    answer = await client.ask(1, CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7, 10.0)
                    if answer.topics[0].error_code in (0, 36):
                        return
                except Unreachable:
                    pass
                await client.pause(0.1)

        client = self.client()
        task = self.go(client, make())
        self.until(20.0, task.done, f"topic {name} is not made")

    def produce(self, topic: str, partition: int, most: float = inf) -> Producer:
        client = self.client()
        producer = Producer(client, f"p{len(self.producers)}", topic, partition, most)
        self.producers.append(producer)
        self.go(client, producer.run())
        return producer

    def read(self, topic: str, partition: int) -> None:
        client = self.client()
        self.go(client, Reader(client, topic, partition).run())

    def use_own_client(self, topic: str) -> None:
        """A producer and a consumer of fastq's, on two partitions."""
        producer = OwnProducer(self.client(), topic)
        self.own = producer, OwnConsumer(self.client(), producer)
        for each in self.own:
            self.go(each.client, each.run())

    def process(self, source: str, target: str) -> None:
        """Members of a group read one topic and write another, in transactions."""
        version = self.world.random_of("transactions").choice((1, 2))
        worker = self.world.random_of("protocol of the group").choice((Worker, ConsumerWorker))
        for number in range(WORKERS):
            self._work(worker(self.client(), f"w{number}", 1, source, target, version, self.ledger))
        for partition in range(2):
            self.outputs.append(CommittedReader(self.client(), source, target, partition, self.ledger))
            self.go(self.outputs[-1].client, self.outputs[-1].run())

    def _work(self, worker: Worker) -> None:
        self.workers.append(worker)
        worker.replace = self._replace
        self.go(worker.client, worker.run())

    def _replace(self, worker: Worker) -> None:
        """Another begins with its transactional id."""
        self._work(
            type(worker)(
                self.client(), worker.name, worker.life + 1, worker.source, worker.target, worker.version, self.ledger
            )
        )

    def renew(self) -> None:
        """Have a topic deleted and made anew again and again."""
        client = self.client()
        self.renewer = Renewer(client, self.producers)
        self.go(client, self.renewer.run())

    # -- a node more, and one less

    def operate(self, topics: dict[str, int]) -> None:
        """Have partitions moved about, and a node join a while later."""
        random = self.world.random_of("operator")
        self.operator = Operator(
            self.client(), topics, lambda: [node.node_id for node in self.nodes], random.choice((0.2, 1.0))
        )
        self.go(self.operator.client, self.operator.run())
        self.operator.client.host.loop.call_later(random.uniform(0.0, FAULTS_S / 2), self._join)

    def _join(self) -> None:
        node = self._node(NODES + 1)
        node.sync_s = self._sync_s
        self.nodes.append(node)
        node.start()

    def _let_go(self, operator: Operator) -> None:
        """The node that came last goes."""
        operator.stopping = True
        self.until(WELL_S, lambda: operator.ended, "the operator still waits for an answer")
        self.world.run(LATE_S)
        node = self.nodes[-1]
        task = self.go(operator.client, operator.drain(node.node_id, partial(self._placed_on, node.node_id)))
        self.until(WELL_S, task.done, f"{node} is not drained")
        self.until(WELL_S, self.is_well, "partitions are still moved, with all nodes up")
        node.stop()
        self.until(WELL_S, lambda: node.broker is None, f"{node} does not end")
        self.nodes.remove(node)
        task = self.go(operator.client, operator.unregister(node.node_id))
        self.until(WELL_S, task.done, f"{node} is not unregistered")

    def _placed_on(self, node_id: int) -> Places:
        """What is on a node, and where it is to be instead."""
        first = self.nodes[0].broker
        assert first is not None
        return {
            (topic.name, number): [each.node_id for each in self.nodes[:NODES]]
            for topic in first.image.topics_by_name.values()
            for number, partition in enumerate(topic.partitions)
            if node_id in partition.replicas
        }

    # -- faults

    def befall(self, fault: Fault) -> None:
        world, network = self.world, self.network
        node, other = self.nodes[fault.first - 1], self.nodes[fault.second - 1]
        if len(self.nodes) > NODES and fault.first == fault.second:
            node = self.nodes[-1]
        client = self.clients[fault.second]
        here, there = ip_of(node.node_id), ip_of(other.node_id)
        kind = fault.kind
        world.tell("FAULT", str(fault))
        if kind == "kill":
            node.kill()
        elif kind == "power":
            node.kill(power=self.durable)
        elif kind == "kill all":
            self._kill_all()
        elif kind == "stand still" and node.broker is not None:
            node.host.stands_until = max(node.host.stands_until, world.now + fault.seconds)
        elif kind == "isolate":
            others = [each for each in network.hosts if each != here]
            network.cut |= {(here, each) for each in others} | {(each, here) for each in others}
        elif kind == "isolate from nodes":
            others = [ip_of(each.node_id) for each in self.nodes if each is not node]
            network.cut |= {(here, each) for each in others} | {(each, here) for each in others}
        elif kind == "one way" and here != there:
            network.cut.add((here, there))
        elif kind == "part":
            network.cut |= {(here, there), (there, here)} if here != there else set()
        elif kind == "slow":
            network.slow[here, there] = fault.seconds / 10
        elif kind == "resets":
            for link in network.links:
                if world.random_of(f"{fault} {link.number}").random() < 0.5:
                    network.reset(link)
        elif kind == "clock":
            # Up to two hours apart; who is an hour behind its clients refuses their records (message.timestamp.after.max.ms).
            node.skew_ms = int((fault.seconds - 2.0) * 1_700_000)
        elif kind == "client away":
            network.cut |= {(here, client.host.ip), (client.host.ip, here)}
        elif kind == "disk error" and node.disk is not None:
            # What a sync fails for is gone: nothing that was acknowledged, only where that waits for syncs.
            operation: Operation = ("sync" if self.durable else "write", "write", "truncate")[fault.second - 1]
            node.disk.plan(DiskFault(operation, errno.EIO, passes=int(fault.seconds * 5), repeat=False))
        elif kind == "disk full":
            node.full_until = max(node.full_until, world.now + fault.seconds)
        elif kind == "restart":
            node.restart()
        elif kind == "restart at a vote":
            one, two = [ip_of(each.node_id) for each in self.nodes[:NODES] if each is not node][:2]
            network.cut |= {(one, two), (two, one)}  # both may ask it alone
            node.restart()
            self._armed.append(
                partial(self._restarts_after, Moment(partial(vote_of, node), fault.seconds / 10_000), node)
            )
        elif kind == "power at a commit":
            self._armed.append(partial(self._power_goes_at, Moment(partial(watermarks_of, node), fault.seconds / 1000)))
        elif kind == "power of one":
            self._armed.append(partial(self._power_of_one_goes, node))
        elif kind == "stop" and node.ready:
            node.stop()
        elif kind == "mend":
            network.mend()
        elif kind == "start":
            self.revive()

    def _restarts_after(self, moment: Moment, node: Node) -> bool:
        if moment.has_come(self.world.now):
            self.world.tell("FAULT", f"{node} has voted, and is killed")
            node.restart()
            return True
        return False

    def _power_goes_at(self, moment: Moment) -> bool:
        if moment.has_come(self.world.now):
            self.world.tell("FAULT", "something was committed, and power goes")
            self._kill_all()
            return True
        return False

    def _power_of_one_goes(self, node: Node) -> bool:
        if node.broker is not None and not self.is_well():
            return False
        self.world.tell("FAULT", f"{node} has no power, and the others have all that was acknowledged")
        node.kill(power=True)
        return True

    def _kill_all(self) -> None:
        for each in self.nodes:
            each.kill(power=self.durable)

    def revive(self) -> None:
        for node in self.nodes:
            if node.broker is None:
                node.start()

    # -- the end

    def _end_own_client(self, producer: OwnProducer, consumer: OwnConsumer) -> None:
        producer.stopping = True
        self.until(WELL_S, lambda: producer.ended, "fastq's producer still waits for an answer")
        self.until(WELL_S, consumer.has_all, "fastq's consumer has not read all that was acknowledged")
        consumer.stopping = True
        self.until(WELL_S, lambda: consumer.ended, "fastq's consumer does not end")

    def rest(self) -> None:
        """No more faults: all comes back, what is on its way ends, and everything is accounted for."""
        self.world.tell("FAULT", "no more: all is mended")
        self.network.mend()
        self._armed.clear()
        for node in self.nodes:
            node.full_until = 0.0
            if node.disk is not None:
                node.disk.heal()
        end = self.world.now + WELL_S
        while True:
            self.revive()
            if self.world.run(1.0, self.is_well):
                break
            if self.world.now > end:
                raise Violation(f"{WELL_S} s after the last fault the cluster is not well: {self._what_is_wrong()}")
        if self.operator is not None:
            self._let_go(self.operator)
        if self.renewer is not None:
            self.renewer.stopping = True
            self.until(WELL_S, lambda: self.renewer.ended, f"{self.renewer} still waits: {self.renewer.waits_for}")
        for producer in self.producers:
            producer.stopping = True
        self.until(
            WELL_S, lambda: all(producer.ended for producer in self.producers), "producers still wait for an answer"
        )
        if self.own is not None:
            self._end_own_client(*self.own)
        self._idle()
        if not self.world.run(WELL_S, self.is_processed):
            raise Violation(
                f"not all was processed in transactions, {WELL_S} s after the last write: {self._what_workers_do()}"
            )
        for worker in self.workers:
            worker.stopping = True
        self.until(WELL_S, lambda: all(worker.ended for worker in self.workers), "a worker still waits for an answer")
        if not self.world.run(WELL_S, self.is_even):
            raise Violation(f"replicas are not alike, {WELL_S} s after the last write: {self._uneven()}")
        self.checks.at_rest(self.producers, self.outputs)

    def _idle(self) -> None:
        """Who has had nothing to fetch for long is in sync all the same, when there is something again."""
        places = sorted({(producer.topic, producer.partition) for producer in self.producers})
        self.world.run(IDLE_S)
        ips = [ip_of(node.node_id) for node in self.nodes]
        self.network.slow = {(here, there): IDLE_DELAY_S for here in ips for there in ips}
        before = [self._in_sync_epoch(place) for place in places]
        for place in places:
            self.produce(*place, most=3)
        self.until(WELL_S, lambda: all(each.ended for each in self.producers), "producers still wait for an answer")
        self.network.slow = {}
        after = [self._in_sync_epoch(place) for place in places]
        if before != after:
            raise Violation(
                f"the in-sync replicas of {places} have changed after an idle time: {before} became {after}"
            )

    def _in_sync_epoch(self, place: tuple[str, int]) -> int:
        """The latest partition epoch that a node knows of."""
        images = [node.broker.image.partition(*place) for node in self.nodes if node.broker is not None]
        return max(image.partition_epoch for image in images if image is not None)

    def _what_is_wrong(self) -> str:
        found = [f"{node} is down: {node.ended}" for node in self.nodes if not node.ready]
        for node in self.nodes:
            for topic, image in [] if node.broker is None else node.broker.image.topics_by_name.items():
                found += [
                    f"{topic}-{n} on {node}: leader {p.leader}, in sync {p.isr} of {p.replicas}"
                    for n, p in enumerate(image.partitions)
                    if not _is_whole(p)
                ]
        return "; ".join(found[:TOLD_MAX]) + ("; ..." if len(found) > TOLD_MAX else "")

    def _what_workers_do(self) -> str:
        read = {each.partition: len(each.values) for each in self.outputs}
        workers = [f"{each}: {each.last}" for each in self.workers if not each.ended]
        return f"{read} read, {self.ledger.committed} committed; {'; '.join(workers)}"

    def is_well(self) -> bool:
        """Whether every node is up, and in sync with all partitions."""
        if not all(node.ready for node in self.nodes):
            return False
        for node in self.nodes:
            assert node.broker is not None
            for topic in node.broker.image.topics_by_name.values():
                if not all(map(_is_whole, topic.partitions)):
                    return False
        return True

    def is_processed(self) -> bool:
        """Whether the group has committed all of its input, and all output is read."""
        for reader in self.outputs:
            place = reader.source, reader.partition
            count = sum(len(each.acknowledged) for each in self.producers if (each.topic, each.partition) == place)
            if len(reader.values) < count or self.ledger.committed.get(reader.partition, 0) < count:
                return False
        return True

    def is_even(self) -> bool:
        """Whether every replica of every partition ends alike."""
        if not self.is_well():
            return False
        return not self._uneven()

    def _uneven(self) -> dict[Any, Any]:
        """Partitions whose replicas differ: log end and high watermark on each node."""
        ends: dict[Any, dict[int, tuple[int, int]]] = {}
        for node in self.nodes:
            for replica in [] if node.broker is None else node.broker.replicas:
                found = ends.setdefault((replica.topic, replica.partition), {})
                found[node.node_id] = replica.log.log_end_offset, replica.log.high_watermark
        return {key: found for key, found in ends.items() if len({end for pair in found.values() for end in pair}) > 1}


def _raise(client: Client, task: Any) -> None:
    if not task.cancelled() and task.exception() is not None:
        error = task.exception()
        raise error if isinstance(error, Violation) else Violation(f"{client}: {error!r}") from error


def simulate(seed: int, play: Callable[[Cluster], None]) -> Outcome:
    """One seed, played; what a step of it raises is its problem."""
    world = World(seed)
    problem: str | None = None
    with surroundings(world) as (root, log), lent(world):
        cluster = Cluster(world, root)
        try:
            play(cluster)
        except Violation as violation:
            problem = str(violation)
            world.tell("VIOLATED", problem)
        problem = problem or log.problem
        records = sum(len(producer.acknowledged) for producer in cluster.producers)
        world.after_step = lambda host: None
        for node in cluster.nodes:
            node.kill()
        logging.disable()
        for host in world.hosts:
            host.dead = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what was begun and never awaited
            for host in world.hosts:
                host.loop.end()
            cluster.network.close()
            gc.collect()
    world.note("\n".join(world.story).encode())
    return Outcome(seed, problem, world.story, world.print, world.now, world.steps, records)


def first_record(cluster: Cluster) -> None:
    """They elect, make a topic, and replicate records."""
    cluster.start()
    cluster.make_topic("t", 1)
    producer = cluster.produce("t", 0)
    cluster.until(10.0, lambda: len(producer.acknowledged) >= 1, "no record is acknowledged")
    cluster.rest()


def live_through(faults: list[Fault], cluster: Cluster) -> None:
    """Clients at work while faults befall the cluster; then none any more, and all is accounted for."""
    cluster.start()
    cluster.make_topic("t", 2)
    if cluster.world.random_of("own client").random() < 0.5:
        cluster.make_topic("own", 2)
        cluster.use_own_client("own")
    if cluster.transactional:
        cluster.make_topic("out", 2)
        cluster.process("t", "out")
    if cluster.world.random_of("renewer").random() < 0.4:
        cluster.renew()
    if cluster.moving:
        cluster.operate({"t": 2, "out": 2} if cluster.transactional else {"t": 2})
    for partition in (0, 0, 1):
        cluster.produce("t", partition)
    for partition in (0, 1):
        cluster.read("t", partition)
    begun = cluster.world.now
    for fault in faults:
        cluster.world.run(begun + fault.at - cluster.world.now)
        cluster.befall(fault)
    cluster.world.run(max(0.0, begun + FAULTS_S - cluster.world.now))
    cluster.rest()


def run_seed(seed: int, faults: list[Fault] | None = None) -> Outcome:
    """A seed, with its faults or others."""
    return simulate(seed, partial(live_through, faults_of(seed) if faults is None else faults))


def shrink(seed: int, faults: list[Fault], tries: int = 60) -> tuple[list[Fault], Outcome]:
    """As few of the faults as still make it fail, and what comes of those."""
    best, size = (faults, run_seed(seed, faults)), max(1, len(faults) // 2)
    while tries > 0:
        at, before = 0, len(best[0])
        while at < len(best[0]) and tries > 0:
            fewer = best[0][:at] + best[0][at + size :]
            tries -= 1
            outcome = run_seed(seed, fewer)
            if outcome.problem is not None:
                best = fewer, outcome
            else:
                at += size
        if size == 1 and len(best[0]) == before:
            break
        size = max(1, size // 2)
    return best
