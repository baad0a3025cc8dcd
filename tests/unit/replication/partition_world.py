"""Replicas of one partition and a controller in one process on virtual time: real machines for leaders, logs in memory, a network that
delays, loses and reorders. Everything is drawn from one seed.

After every step: a leader's high watermark never goes back within its epoch; what is visible or acknowledged anywhere is one history,
that min.insync.replicas nodes keep; who leads, or is elected, has all of it. At the end, with all
faults over: all are in sync, all is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from fastq_broker.controller.image import BrokerImage, PartitionImage
from fastq_broker.log.leader_epochs import NO_EPOCH
from fastq_broker.replication.alter_partition import AlterPartitions, build_request
from fastq_broker.replication.partition import (
    Advanced,
    AskController,
    Effect,
    Ends,
    EpochBegan,
    Follow,
    Partition,
    StoppedLeading,
)

from fastq.protocol.messages import AlterPartitionRequest, AlterPartitionResponse

KEY = (b"t" * 16, 0)
LAG_MS = 400


class Entry(NamedTuple):
    epoch: int
    value: int


class Metadata(NamedTuple):
    partition: PartitionImage
    brokers: dict[int, BrokerImage]


class Fetch(NamedTuple):
    replica: int
    leader: int
    leader_epoch: int
    offset: int
    last_epoch: int
    broker_epoch: int


class Fetched(NamedTuple):
    """What a leader answers: an error, where the logs part, or records."""

    asked: Fetch
    error: int = 0
    diverging: tuple[int, int] | None = None
    records: tuple[Entry, ...] = ()
    high_watermark: int = 0


class Asked(NamedTuple):
    node: int
    incarnation: int
    request: AlterPartitionRequest


class Told(NamedTuple):
    asked: Asked
    response: AlterPartitionResponse | None
    """None: it was lost on the way, or the controller's answer was."""


def ends_of(log: list[Entry], cache: list[tuple[int, int]], epoch: int) -> tuple[int, int]:
    """As LeaderEpochs.end_offset: the largest epoch at or below `epoch`, and where it ends."""
    if not cache or epoch > cache[-1][0]:
        return NO_EPOCH, -1
    below = [known for known, _ in cache if known <= epoch]
    later = [start for known, start in cache if known > epoch]
    return (below[-1] if below else epoch), min(later, default=len(log))


class Node:
    """One broker with its replica."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.log: list[Entry] = []
        self.cache: list[tuple[int, int]] = []
        self.durable = 0
        self.high_watermark = 0
        self.broker_epoch = node_id
        self.incarnation = 0
        self.up = True
        self.start()

    def start(self) -> None:
        self.version = -1
        self.metadata: Metadata | None = None
        self.machine = self.world.partition_class(
            self.node_id, self.known_broker, lag_max_ms=self.world.lag_ms, min_insync_replicas=self.world.min_isr
        )
        self.sender = AlterPartitions()
        self.following: tuple[int, int] | None = None
        self.fetching: Fetch | None = None
        self.asked_at = 0
        self.waiting: list[tuple[int, Entry]] = []
        self.slow_until = 0
        self.seen = (-1, -1)  # epoch and high watermark of this leader

    def known_broker(self, node_id: int) -> BrokerImage | None:
        return None if self.metadata is None else self.metadata.brokers.get(node_id)

    @property
    def kept(self) -> int:
        return self.durable if self.world.fsync else len(self.log)

    def learn(self, version: int) -> None:
        self.version, self.metadata = version, self.world.history[version]
        ends = Ends(len(self.log), self.kept, self.high_watermark)
        self.do(self.machine.apply(self.metadata.partition, ends, self.world.now))

    def do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, EpochBegan):
                self.following = self.fetching = None
                if effect.leader_epoch > (self.cache[-1][0] if self.cache else -1):
                    self.cache = [(e, s) for e, s in self.cache if s < effect.start_offset]
                    self.cache.append((effect.leader_epoch, effect.start_offset))
                self.world.check_leader(self)
            elif isinstance(effect, Advanced):
                self.world.check_advance(self, effect.high_watermark)
                self.high_watermark = effect.high_watermark
            elif isinstance(effect, AskController):
                self.sender.submit(KEY, effect.change)
            elif isinstance(effect, StoppedLeading):
                self.waiting = []
            elif isinstance(effect, Follow):
                self.sender.forget(KEY)
                self.following = None if effect.leader_id < 0 else (effect.leader_id, effect.leader_epoch)
                self.fetching = None
        if self.machine.leads:
            self.acknowledge()

    def acknowledge(self) -> None:
        left = []
        for end, entry in self.waiting:
            answer = self.machine.acknowledgement(end)
            if answer is None:
                left.append((end, entry))
            elif answer == 0:
                self.world.acknowledged(end - 1, entry)
        self.waiting = left

    def produce(self, value: int) -> None:
        if not self.machine.leads or self.machine.is_under_min_isr:  # as a broker asks
            return
        entry = Entry(self.machine.leader_epoch, value)
        self.log.append(entry)
        self.waiting.append((len(self.log), entry))
        self.do(self.machine.appended(len(self.log), self.kept, self.world.now))

    def sync(self) -> None:
        self.durable = len(self.log)
        self.do(self.machine.appended(len(self.log), self.kept, self.world.now))

    def ask(self) -> Fetch | None:
        """The next fetch; one that was lost is given up after a while."""
        if (
            self.following is None
            or self.world.now < self.slow_until
            or (self.fetching is not None and self.world.now < self.asked_at + 120)
        ):
            return None
        if self.kept < len(self.log):
            self.sync()
        last = self.cache[-1][0] if self.cache else NO_EPOCH
        leader, epoch = self.following
        self.fetching = Fetch(self.node_id, leader, epoch, len(self.log), last, self.broker_epoch)
        self.asked_at = self.world.now
        return self.fetching

    def serve(self, asked: Fetch) -> Fetched:
        error = self.machine.fetch_error(asked.replica, asked.leader_epoch, asked.broker_epoch)
        if error:
            return Fetched(asked, error)
        if asked.last_epoch >= 0:
            epoch, end = ends_of(self.log, self.cache, asked.last_epoch)
            if epoch < asked.last_epoch or end < asked.offset:
                return Fetched(asked, 0, (epoch, end))
        if asked.offset > len(self.log):
            return Fetched(asked, 1)
        self.do(self.machine.fetched(asked.replica, asked.offset, 0, asked.broker_epoch, self.world.now))
        count = self.world.random.randrange(1, 4)
        records = tuple(self.log[asked.offset : asked.offset + count])
        return Fetched(asked, 0, None, records, self.machine.high_watermark)

    def take(self, answer: Fetched) -> None:
        if answer.asked is not self.fetching or len(self.log) != answer.asked.offset:
            return
        self.fetching = None
        if answer.diverging is not None:
            epoch, end = answer.diverging
            known, own = ends_of(self.log, self.cache, epoch)
            self.truncate(max(0, min(end, own if known >= 0 else end, len(self.log))))
        elif not answer.error:
            for entry in answer.records:
                if entry.epoch > (self.cache[-1][0] if self.cache else -1):
                    self.cache.append((entry.epoch, len(self.log)))
                self.log.append(entry)
            self.high_watermark = max(self.high_watermark, min(answer.high_watermark, len(self.log)))

    def truncate(self, end: int) -> None:
        del self.log[end:]
        self.cache = [(e, s) for e, s in self.cache if s < end]
        self.durable = min(self.durable, end)
        self.high_watermark = min(self.high_watermark, end)

    def stop(self, *, lost: int) -> None:
        """The process ends: of the last records `lost` go, but of those that were synced none. The checkpoint of the high watermark is
        as old as it likes."""
        self.up = False
        self.truncate(max(self.durable, len(self.log) - lost))
        self.high_watermark = self.world.random.randint(0, self.high_watermark)


class World:
    """`fsync` False: logs live in the page cache, which outlives a process but not a power cut."""

    def __init__(self, seed: int, partition_class: type[Partition] = Partition) -> None:
        self.random = Random(seed)
        self.partition_class = partition_class
        self.fsync = self.random.random() < 0.5
        self.min_isr = self.random.choice((1, 2, 2))
        self.lag_ms = self.random.choice((40, LAG_MS))
        self.spite = self.random.random() < 0.7
        self.faults = self.random.choice((0.005, 0.015, 0.04))
        self.now = 0
        self.values = 0
        self.next_broker_epoch = 100
        self.committed: list[Entry] = []
        self.bag: list[object] = []
        self.fragile: int | None = None  # a node that has lost records, until it is known to have been away
        self.power_cut = False  # whether records were lost that a leader had counted
        ids = (1, 2, 3)
        brokers = {n: BrokerImage(n, n, b"", (), (), None, False, False, ()) for n in ids}
        self.history = [Metadata(PartitionImage(1, 0, 0, ids, ids, ()), brokers)]
        self.nodes = {n: Node(self, n) for n in ids}
        for node in self.nodes.values():
            node.learn(0)

    # -- the oracle

    def check_leader(self, node: Node) -> None:
        assert node.log[: len(self.committed)] == self.committed, f"node {node.node_id} leads without what is committed"

    def check_advance(self, node: Node, watermark: int) -> None:
        epoch, before = node.seen
        assert node.machine.leader_epoch != epoch or watermark > before, "the high watermark went back"
        node.seen = (node.machine.leader_epoch, watermark)
        visible = node.log[:watermark]
        shared = min(len(visible), len(self.committed))
        assert visible[:shared] == self.committed[:shared], "readers saw two histories"
        self.committed += visible[shared:]
        self.check_elected()

    def acknowledged(self, offset: int, entry: Entry) -> None:
        assert self.committed[offset] == entry, "acknowledged and not visible"
        keep = [n for n in self.nodes.values() if n.kept > offset and n.log[offset] == entry]
        assert len(keep) >= self.min_isr or self.power_cut, "acknowledged below min.insync.replicas"

    def check_elected(self) -> None:
        leader = self.history[-1].partition.leader
        if leader not in (-1, self.fragile):
            self.check_leader(self.nodes[leader])

    # -- the controller

    def write(self, isr: Iterable[int], brokers: dict[int, BrokerImage] | None = None) -> None:
        """One more version of the metadata: with a leader who is in sync and up, if there is one."""
        partition, known = self.history[-1]
        brokers = known if brokers is None else brokers
        in_sync = tuple(sorted(isr))
        able = [n for n in in_sync if not brokers[n].fenced and not brokers[n].in_controlled_shutdown]
        # A new leader is the one with the shortest log as often as not: that is who shows what went wrong.
        able.sort(key=lambda n: len(self.nodes[n].log) if self.spite else self.random.random())
        leader = partition.leader if partition.leader in able else able[0] if able else -1
        epoch = partition.leader_epoch + (leader != partition.leader)
        if (leader, in_sync) != (partition.leader, partition.isr):
            partition = partition._replace(
                leader=leader, isr=in_sync, leader_epoch=epoch, partition_epoch=partition.partition_epoch + 1
            )
        self.history.append(Metadata(partition, brokers))
        self.check_elected()

    def change_broker(self, node_id: int, **what: object) -> None:
        """A broker is fenced, unfenced, registered or goes: out of the in-sync set with it, unless it is the last there."""
        partition, known = self.history[-1]
        broker = known[node_id]._replace(**what)  # type: ignore[arg-type]
        isr = set(partition.isr)
        if broker.fenced or broker.in_controlled_shutdown:
            isr = isr - {node_id} or isr
        self.write(isr, {**known, node_id: broker})

    def alter_partition(self, asked: Asked) -> AlterPartitionResponse:
        partition, known = self.history[-1]
        request = asked.request
        if known[asked.node].epoch != request.broker_epoch:
            return AlterPartitionResponse(error_code=77)
        [topic] = request.topics
        [wanted] = topic.partitions
        isr = {state.broker_id for state in wanted.new_isr_with_epochs}
        error = 0
        if self.random.random() < 0.1:
            error = self.random.choice((41, 55))
        elif wanted.partition_epoch > partition.partition_epoch:
            error = 41
        elif wanted.leader_epoch < partition.leader_epoch:
            error = 74
        elif partition.leader != asked.node or asked.node not in isr:
            error = 42
        elif wanted.partition_epoch < partition.partition_epoch:
            error = 95
        elif any(
            known[s.broker_id].fenced
            or known[s.broker_id].in_controlled_shutdown
            or s.broker_epoch not in (-1, known[s.broker_id].epoch)
            for s in wanted.new_isr_with_epochs
        ):
            error = 107
        else:
            self.write(isr)
            partition = self.history[-1].partition
        told = AlterPartitionResponse.PartitionData(
            partition_index=0,
            error_code=error,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=list(partition.isr),
            partition_epoch=partition.partition_epoch,
        )
        return AlterPartitionResponse(topics=[AlterPartitionResponse.TopicData(topic_id=KEY[0], partitions=[told])])

    # -- what happens

    def deliver(self, message: object) -> None:
        if isinstance(message, Fetch):
            leader = self.nodes[message.leader]
            if leader.up:
                self.bag.append(leader.serve(message))
        elif isinstance(message, Fetched):
            node = self.nodes[message.asked.replica]
            if node.up:
                node.take(message)
        elif isinstance(message, Asked):
            self.bag.append(Told(message, self.alter_partition(message)))
        elif isinstance(message, Told):
            node = self.nodes[message.asked.node]
            if not node.up or node.incarnation != message.asked.incarnation:
                return
            if message.response is None:
                node.sender.failed(self.now)
                return
            for _, change, answer in node.sender.answered(message.response, self.now):
                node.do(node.machine.answered(change, answer, self.now))

    def lose(self, message: object) -> None:
        if isinstance(message, Told):
            message = message.asked
        if isinstance(message, Asked):
            self.bag.append(Told(message, None))

    def send(self, node: Node) -> None:
        fetch = node.ask()
        if fetch is not None:
            self.bag.append(fetch)
        changes = node.sender.take(self.now)
        if changes is not None:
            request = build_request(changes, node.node_id, node.broker_epoch, 3)
            self.bag.append(Asked(node.node_id, node.incarnation, request))

    def restart(self, node: Node) -> None:
        """It registers, which fences what was there of it, and catches up with the metadata before it is unfenced."""
        node.broker_epoch = self.next_broker_epoch = self.next_broker_epoch + 1
        node.incarnation += 1
        node.up = True
        self.change_broker(node.node_id, epoch=node.broker_epoch, fenced=True, in_controlled_shutdown=False)
        node.start()
        node.learn(len(self.history) - 1)
        self.change_broker(node.node_id, fenced=False)
        if self.fragile == node.node_id:
            self.fragile = None

    def may_lose(self, node: Node) -> bool:
        others = [n for n in self.nodes.values() if n is not node]
        in_sync = self.history[-1].partition.isr
        return all(n.up for n in others) and any(
            n.node_id in in_sync and not self.history[-1].brokers[n.node_id].fenced for n in others
        )

    def disturb(self, node: Node) -> None:
        """A fault; none but the return of a node whose records are lost, while there is one."""
        known = self.history[-1].brokers[node.node_id]
        if self.fragile is not None:
            if self.fragile == node.node_id and not node.up:
                self.restart(node)
            return
        draw = self.random.random()
        if not node.up:
            if draw < 0.5:
                self.restart(node)
            elif not known.fenced:
                self.change_broker(node.node_id, fenced=True)
        elif draw < 0.3:
            node.stop(lost=99 if self.fsync else 0)
        elif draw < 0.5 and self.may_lose(node):
            node.stop(lost=99)
            self.fragile = node.node_id
            self.power_cut = not self.fsync
        elif draw < 0.7:
            self.change_broker(node.node_id, fenced=not known.fenced)
        elif draw < 0.8 and self.may_lose(node):  # and is back before anybody has noticed
            node.stop(lost=99)
            self.power_cut = not self.fsync
            self.restart(node)
        elif draw < 0.9:
            node.slow_until = self.now + self.random.randrange(300)
        else:
            self.change_broker(node.node_id, in_controlled_shutdown=not known.in_controlled_shutdown)

    def step(self, *, calm: bool = False) -> None:
        random = self.random
        self.now += random.randrange(8)
        node = random.choice(list(self.nodes.values()))
        if not calm and random.random() < self.faults:
            self.disturb(node)
        elif self.bag and random.random() < 0.6:
            message = self.bag.pop(0 if calm else random.randrange(len(self.bag)))
            if random.random() < 0.08 and not calm:
                self.lose(message)
            else:
                self.deliver(message)
        elif node.up:
            draw = random.random()
            if draw < 0.3:
                if node.version < len(self.history) - 1:
                    node.learn(random.randint(node.version + 1, len(self.history) - 1))
            elif draw < 0.5:
                if not calm:
                    self.values += 1
                    node.produce(self.values)
            elif draw < 0.6:
                node.sync()
            elif draw < 0.65:
                node.do(node.machine.check(self.now))
            else:
                self.send(node)

    def heal(self) -> None:
        """No faults any more: all come up, nothing is lost, nobody writes."""
        self.lag_ms = LAG_MS
        for node in self.nodes.values():
            node.machine._lag_max_ms = LAG_MS
            if not node.up:
                self.restart(node)
            self.change_broker(node.node_id, fenced=False, in_controlled_shutdown=False)
        for _ in range(40):
            for _ in range(100):
                self.step(calm=True)
            if self.settled():
                return
        raise AssertionError(f"it never settles: {self.history[-1].partition}")

    def settled(self) -> bool:
        leader = self.nodes[self.history[-1].partition.leader]
        same = all(node.log == leader.log for node in self.nodes.values())
        in_sync = self.history[-1].partition.isr == (1, 2, 3) == tuple(sorted(leader.machine.isr.committed))
        return same and in_sync and leader.high_watermark == len(leader.log) and not leader.waiting


def run(seed: int, partition_class: type[Partition] = Partition, steps: int = 800) -> World:
    world = World(seed, partition_class)
    for _ in range(steps):
        world.step()
    world.heal()
    return world
