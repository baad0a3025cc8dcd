"""One seed: a cluster of three, its clients, the faults that befall it, and that it is well again afterwards."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fastq_broker.controller.image import PartitionImage

from fastq.protocol.messages import CreateTopicsRequest
from simulation import cleaning, elector
from simulation.checks import Checks
from simulation.cleaning import KeyedProducer, TrimmedProducer, Trimmer
from simulation.client import Client, Producer, Reader, Unreachable
from simulation.consumer_group import ConsumerWorker
from simulation.elector import CarelessProducer, Elector
from simulation.faults import FAULTS_S, NODES, Fault, faults_of
from simulation.mover import Mover
from simulation.network import Network
from simulation.node import Node, ip_of
from simulation.operator import Operator, Places
from simulation.own_client import OwnConsumer, OwnProducer, lent
from simulation.own_copier import COPY, CopyReader, OwnCopier
from simulation.renewer import TOPIC, Renewer
from simulation.story import cold_reads, room_ahead, surroundings
from simulation.transactions import CommittedReader, Ledger, Worker
from simulation.trouble import Trouble
from simulation.world import Violation, World

P = TypeVar("P", bound=Producer)

WORKERS = 2
PROTOCOLS = "classic", "consumer"
"""Of groups."""
LOOK_S = 0.02
"""How often the checks look."""
UP_S, WELL_S = 30.0, 60.0
TOLD_MAX = 12
SHORT = {
    "metadata.log.max.record.bytes.between.snapshots": "1500",
    "metadata.log.segment.ms": "700",
    "metadata.max.retention.bytes": "4000",
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
    return len(partition.replicas) == len(partition.isr) and partition.leader >= 0 and not moves


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
        self.cleaning = world.has("cleaning")
        if self.cleaning:
            settings |= cleaning.SETTINGS
        self.directories = 2 if world.has("directories") else 1
        self.nodes = [self._node(number) for number in range(1, NODES + 1)]
        self.checks = Checks(world, self.nodes, cleaning=self.cleaning)
        self.clients: list[Client] = []
        self.producers: list[Producer] = []
        self.operator: Operator | None = None
        self.ledger = Ledger()
        self.workers: list[Worker] = []
        self.outputs: list[CommittedReader] = []
        self.own: tuple[OwnProducer, OwnConsumer] | None = None
        self.renewer: Renewer | None = None
        self.copiers: list[OwnCopier] = []
        self.copy: CopyReader | None = None
        self.askers: list[Elector | Mover] = []
        self._look_at = 0.0
        self.trouble = Trouble(self)
        world.after_step = self._stepped
        self.transactional = random.random() < 0.5
        self.network.delay_s = 0.0001, random.choice((0.001, 0.005, 0.05))
        disk_s = random.choice((0.0005, 0.002, 0.02, 0.1))
        self._sync_s = disk_s / 10, disk_s
        for node in self.nodes:
            node.sync_s = self._sync_s

    def _node(self, number: int) -> Node:
        return Node(
            self.world,
            self.network,
            number,
            NODES,
            self._root,
            founded=self._founded,
            directories=self.directories,
            **self._settings,
        )

    def _stepped(self, host: Any) -> None:
        self.network.sweep()
        if self.world.now >= self._look_at:
            self._look_at = self.world.now + LOOK_S
            self.checks.look()
        self.trouble.stepped()

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

    def make_topic(
        self, name: str, partitions: int, *, replicas: int = NODES, configs: Mapping[str, str] | None = None
    ) -> None:
        asked = {"min.insync.replicas": "2", **(configs or {})}

        async def make() -> None:
            topic = CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replicas,
                configs=[CreateTopicsRequest.CreatableTopicConfig(name=each, value=asked[each]) for each in asked],
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

    def produce(self, topic: str, partition: int, most: float = inf, kind: type[P] = Producer) -> P:  # type: ignore[assignment]
        client = self.client()
        producer = kind(client, f"p{len(self.producers)}", topic, partition, most)
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

    def copy_own(self, topic: str) -> None:
        """Have members of a group that are fastq's copy what its producer sends."""
        assert self.own is not None
        changes = self.moving  # of group.version too: without it there is no protocol but the classic one
        protocol = "classic" if changes else self.world.random_of("protocol of the copiers").choice(PROTOCOLS)
        self.copiers = [
            OwnCopier(self.client(), number, topic, protocol, lambda: any(node.skew_ms for node in self.nodes))
            for number in range(WORKERS)
        ]
        self.copy = CopyReader(self.client(), self.own[0])
        for each in (self.copy, *self.copiers):
            self.go(each.client, each.run())

    def clean(self) -> None:
        """Have logs compacted and trimmed."""
        for topic in (cleaning.KEYED, cleaning.TRIMMED):
            self.make_topic(topic, 1, configs=cleaning.CONFIGS[topic])
        self.produce(cleaning.KEYED, 0, kind=KeyedProducer)
        trimmer = Trimmer(self.client(), self.produce(cleaning.TRIMMED, 0, kind=TrimmedProducer))
        self.go(trimmer.client, trimmer.run())

    def elect(self, topics: dict[str, int]) -> None:
        """Have elections asked for."""
        self.make_topic(elector.RISKY, 1, replicas=elector.REPLICAS, configs=elector.CONFIGS)
        self._ask(Elector(self.client(), topics, self.produce(elector.RISKY, 0, kind=CarelessProducer)))

    def move_within(self, topics: dict[str, int]) -> None:
        """Have replicas moved to other directories."""
        self._ask(Mover(self.client(), topics, lambda: self.nodes))

    def _ask(self, asker: Elector | Mover) -> None:
        self.askers.append(asker)
        self.go(asker.client, asker.run())

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
        self._drain(operator, node)
        self.until(WELL_S, self.is_well, "partitions are still moved, with all nodes up")
        node.stop()
        self.until(WELL_S, lambda: node.broker is None, f"{node} does not end")
        self.nodes.remove(node)
        self._drain(operator, node)  # a topic may have been made before the controller heard that it goes
        task = self.go(operator.client, operator.unregister(node.node_id))
        self.until(WELL_S, task.done, f"{node} is not unregistered")

    def _drain(self, operator: Operator, node: Node) -> None:
        task = self.go(operator.client, operator.drain(node.node_id, partial(self._placed_on, node.node_id)))
        self.until(WELL_S, task.done, f"{node} is not drained")

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

    # -- the end

    def revive(self) -> None:
        for node in self.nodes:
            if node.has_failed_directory and self.world.now >= node.fails_until:
                node.kill()
            if node.broker is None:
                node.start()

    def _end_own_client(self, producer: OwnProducer, consumer: OwnConsumer) -> None:
        producer.stopping = True
        self.until(WELL_S, lambda: producer.ended, "fastq's producer still waits for an answer")
        self.until(WELL_S, consumer.has_all, "fastq's consumer has not read all that was acknowledged")
        if self.copy is not None:
            self.until(WELL_S, self.copy.has_all, "not all is copied, or read of the copy")
            others = (self.copy, *self.copiers)
            for each in others:
                each.stopping = True
            self.until(WELL_S, lambda: all(each.ended for each in others), "a copier does not end")
        consumer.stopping = True
        self.until(WELL_S, lambda: consumer.ended, "fastq's consumer does not end")

    def rest(self) -> None:
        """No more faults: all comes back, what is on its way ends, and everything is accounted for."""
        self.world.tell("FAULT", "no more: all is mended")
        self.trouble.mend()
        end = self.world.now + WELL_S
        for asker in self.askers:
            asker.stopping = True
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
        processed = self._processed()
        while not self.world.run(WELL_S, self.is_processed):
            before, processed = processed, self._processed()
            if processed == before:
                what = f"nothing more is processed in transactions, and not all was, in {WELL_S} s"
                raise Violation(f"{what}: {self._what_workers_do()}")
        for worker in self.workers:
            worker.stopping = True
        self.until(WELL_S, lambda: all(worker.ended for worker in self.workers), "a worker still waits for an answer")
        if not self.world.run(WELL_S, self.is_even):
            wrong = self._what_is_wrong() or self._uneven() or self._misplaced()[:TOLD_MAX]
            raise Violation(f"replicas are not alike, {WELL_S} s after the last write: {wrong}")
        self.checks.at_rest(self.producers, self.outputs)

    def _idle(self) -> None:
        """Who has had nothing to fetch for long is in sync all the same, when there is something again."""
        places = sorted({(each.topic, each.partition) for each in self.producers if type(each) is Producer})
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

    def _processed(self) -> tuple[int, int]:
        """How much is read and how much committed: workers that are replaced often have much left when the last write is done."""
        return sum(len(each.values) for each in self.outputs), sum(self.ledger.committed.values())

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
        return self.is_well() and not self._uneven() and not self._misplaced()

    def _misplaced(self) -> list[str]:
        """Replicas that are on their way to another directory, or in another than the metadata has them in."""
        found = []
        for node in self.nodes:
            broker = node.broker
            for replica in [] if broker is None else broker.replicas:
                image = broker.image.partition(replica.topic, replica.partition)
                here = broker.controller.directory_ids[broker.logs.dirs.index(replica.log.dir)]
                known = None if image is None else image.directory_of(node.node_id)
                if replica.log.future is not None or known != here:
                    place = f"{replica.topic}-{replica.partition} on {node} is in {Path(replica.log.dir.path).name}"
                    found.append(f"{place}, id {here.hex()}, not {known and known.hex()}")
        return found

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


def simulate(seed: int, play: Callable[[Cluster], None], without: Collection[str] = ()) -> Outcome:
    """One seed, played; what a step of it raises is its problem."""
    world = World(seed, without)
    problem: str | None = None
    with surroundings(world) as (root, log), cold_reads(world), room_ahead(world), lent(world):
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
    copied = cluster.world.has("own copiers")
    if copied or cluster.world.random_of("own client").random() < 0.4:
        cluster.make_topic("own", 2)
        cluster.use_own_client("own")
    if copied:
        cluster.make_topic(COPY, 2)
        cluster.copy_own("own")
    if cluster.transactional:
        cluster.make_topic("out", 2)
        cluster.process("t", "out")
    if cluster.world.random_of("renewer").random() < 0.4:
        cluster.renew()
    topics = {"t": 2, "out": 2} if cluster.transactional else {"t": 2}
    if cluster.moving:
        cluster.operate(topics)
    if cluster.cleaning:
        cluster.clean()
        topics = {**topics, cleaning.KEYED: 1, cleaning.TRIMMED: 1}
    if cluster.world.has("elections"):
        cluster.elect(topics)
    if cluster.directories > 1:
        cluster.move_within({**topics, "__consumer_offsets": 1, TOPIC: 1})
    for partition in (0, 0, 1):
        cluster.produce("t", partition)
    for partition in (0, 1):
        cluster.read("t", partition)
    begun = cluster.world.now
    for fault in faults:
        cluster.world.run(begun + fault.at - cluster.world.now)
        cluster.trouble.befall(fault)
    cluster.world.run(max(0.0, begun + FAULTS_S - cluster.world.now))
    cluster.rest()


def run_seed(seed: int, faults: list[Fault] | None = None, without: Collection[str] = ()) -> Outcome:
    """A seed, with its faults or others; `without` kinds of trouble that last all its time."""
    return simulate(seed, partial(live_through, faults_of(seed) if faults is None else faults), without)


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
