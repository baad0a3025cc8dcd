"""What always holds in a cluster, whatever befalls it; looked at from the outside, by what nodes have in their logs.

Rules: what was seen committed on one node is what every node has there, then and ever after. A check that fails raises Violation, and says
which node, partition, offset and epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastq_broker.raft.roles import Role

from fastq._native.records import decode_records, iter_headers
from simulation.elector import RISKY
from simulation.renewer import TOPIC as RENEWED
from simulation.world import Violation, World

if TYPE_CHECKING:
    from simulation.client import Producer
    from simulation.node import Node
    from simulation.transactions import CommittedReader

READ_BYTES = 4 << 20
MIN_IN_SYNC = 2
"""min.insync.replicas of all topics but one."""
RESIGNS_S = 4.0
"""A leader of the metadata quorum that no majority reaches has resigned by then: its own time-out, and what was on its way."""
FOLLOWS_S = 1.0
"""A broker has taken in by then what it knows of a topic that was made anew."""
FENCED_S = 5.5
"""A broker that is gone is fenced by a controller that has been active for so long: a session, and what a change takes."""


class Batch(NamedTuple):
    """A batch, as far as it is the same on all nodes."""

    next_offset: int
    epoch: int
    crc: int


class History:
    """The committed batches of one log, as some node had them first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches: dict[int, Batch] = {}
        self.first = 0
        self.end = 0

    def take(self, node: object, start: int, batches: Iterator[tuple[int, Batch]]) -> int:
        """Compare what a node has committed with what was; where that ends."""
        end = start
        for base, batch in batches:
            known = self.batches.get(base)
            if known is None:
                if base < self.end:
                    raise Violation(f"{self.name} on {node} has a committed batch at {base}, where others have none")
                self.batches[base] = batch
                self.end = batch.next_offset
            elif known != batch:
                raise Violation(f"{self.name} on {node} has {batch} at offset {base}, where {known} was committed")
            end = batch.next_offset
        return end


class Checks:
    """All that is watched. `look` is called again and again. `cleaning`: compacted logs are compacted, so that their batches change."""

    def __init__(self, world: World, nodes: Sequence[Node], *, cleaning: bool = False) -> None:
        self.world, self.nodes, self._cleaning = world, nodes, cleaning
        self.histories: dict[Any, History] = {}
        self._leaders: dict[int, int] = {}
        self._partition_leaders: dict[tuple[Any, int], int] = {}
        self._watermarks: dict[tuple[Any, int, int, int], tuple[int, int, int]] = {}
        """High watermark of a leader in an epoch, how many it had in sync, and the partition epoch."""
        self._alone_since: dict[int, float] = {}
        """Leaders of the metadata quorum that no majority reaches."""
        self._gone_since: dict[int, float] = {}
        self._active_since: dict[tuple[int, int], float] = {}
        """Controllers that can have changes committed, by node and epoch."""
        self._unfenced_since: dict[tuple[int, int, int], float] = {}
        """Since when a controller, by node and epoch, has had a broker unfenced: a heartbeat that was on its way for long unfences one that
        is gone, for a session."""
        self._held_back: dict[tuple[Any, int, int, int], tuple[int, int]] = {}
        """High watermarks that nobody who counts keeps back, and since when, by the clock of who leads."""
        self._of_before_since: dict[int, float] = {}
        """Nodes that have a topic of before under the name of the one of now."""
        self._read: dict[tuple[int, int, Any], int] = {}

    def look(self) -> None:
        for node in self.nodes:
            if node.broker is None:
                self._gone_since.setdefault(node.node_id, self.world.now)
            else:
                self._gone_since.pop(node.node_id, None)
        for node in self.nodes:
            broker = node.broker
            if broker is None or not hasattr(broker.controller, "quorum"):
                continue
            self._look_at_quorum(node, broker.controller.quorum)
            self._look_at_lives(node, broker)
            for replica in broker.replicas:
                self._look_at_replica(node, replica)

    def _look_at_lives(self, node: Node, broker: Any) -> None:
        """A topic that was made anew is the new one on every node, wherever the log of the one before lies (KAFKA-16157)."""
        now, topic, replica = self.world.now, broker.image.topic(RENEWED), broker.replicas.get(RENEWED, 0)
        if topic is None or replica is None or replica.topic_id == topic.topic_id:
            self._of_before_since.pop(node.node_id, None)
        elif now - self._of_before_since.setdefault(node.node_id, now) > FOLLOWS_S:
            raise Violation(
                f"{node} has {RENEWED} with the id {replica.topic_id.hex()}, in {replica.log.dir.path}, where the metadata that it knows "
                f"has {topic.topic_id.hex()}"
            )

    def _look_at_quorum(self, node: Node, quorum: Any) -> None:
        machine = quorum.driver.machine
        if quorum.driver.closed:
            return
        if machine.role is Role.LEADER:
            other = self._leaders.setdefault(machine.epoch, node.node_id)
            if other != node.node_id:
                raise Violation(f"{node} and node-{other} both lead the metadata quorum in epoch {machine.epoch}")
        self._look_at_majority(node, machine)
        self._look_at_fences(node, machine)
        self._compare(node, "metadata", quorum._log, machine.high_watermark)

    def _look_at_majority(self, node: Node, machine: Any) -> None:
        """Check-quorum (KAFKA-15489): who leads without a majority that can fetch does not do so for long."""
        now = self.world.now
        leads = machine.role is Role.LEADER and node.host.stands_until <= now
        if not leads or 2 * (1 + len(self._who_reaches(node))) > len(self._voters):
            self._alone_since.pop(node.node_id, None)
        elif now - self._alone_since.setdefault(node.node_id, now) > RESIGNS_S:
            raise Violation(
                f"{node} leads the metadata quorum in epoch {machine.epoch}, though for {RESIGNS_S:.0f} s no majority has reached it"
            )

    def _look_at_fences(self, node: Node, machine: Any) -> None:
        """A broker that is gone does not stay unfenced (KAFKA-18138)."""
        now, place = self.world.now, (node.node_id, machine.epoch)
        others = self._who_reaches(node)
        whole = 2 * (1 + len(others)) > len(self._voters) and not any(
            each.full_until > now or each.host.stands_until > now for each in [node, *others]
        )
        if machine.role is not Role.LEADER or not whole:
            self._active_since.pop(place, None)
            return
        since = self._active_since.setdefault(place, now)
        assert node.broker is not None
        for broker_id, gone_since in self._gone_since.items():
            known = node.broker.image.brokers.get(broker_id)
            if known is None or known.fenced:
                self._unfenced_since.pop((*place, broker_id), None)
                continue
            unfenced_since = self._unfenced_since.setdefault((*place, broker_id), now)
            if now - max(since, gone_since, unfenced_since) > FENCED_S:
                raise Violation(
                    f"broker {broker_id} is gone since {gone_since:.2f} s, and {node}, the active controller since {since:.2f} s, has "
                    "not fenced it"
                )

    @property
    def _voters(self) -> Sequence[Node]:
        return [node for node in self.nodes if "controller" in node.roles]

    def _who_reaches(self, leader: Node) -> list[Node]:
        """The other voters that it has an exchange with, both ways, and that are awake."""
        here, cut = leader.host.ip, self.world.network.cut
        return [
            node
            for node in self._voters
            if node is not leader
            and node.broker is not None
            and node.host.stands_until <= self.world.now
            and not {(here, node.host.ip), (node.host.ip, here)} & cut
        ]

    def _look_at_replica(self, node: Node, replica: Any) -> None:
        log, shared = replica.log, replica.shared
        if shared is None or not log.loaded or log.dir.offline is not None:
            return
        key = f"{replica.topic}-{replica.partition}", replica.topic_id
        watermark = log.high_watermark
        if log.leader_epoch > replica.leader_epoch:
            raise Violation(
                f"{key[0]} on {node} has records of epoch {log.leader_epoch}, of which it does not know: its leader's is "
                f"{replica.leader_epoch} (KAFKA-18723)"
            )
        if shared.machine.leads:
            epoch = replica.leader_epoch
            other = self._partition_leaders.setdefault((key, epoch), node.node_id)
            if other != node.node_id:
                raise Violation(f"{node} and node-{other} both lead {key[0]} in epoch {epoch}")
            place = key, node.node_id, node.lives, epoch
            partition_epoch = shared.machine.partition_epoch
            before, count, seen_epoch = self._watermarks.get(place, (0, len(self.nodes), partition_epoch))
            in_sync = len(shared.machine.isr.committed)
            if partition_epoch - seen_epoch > 1:
                # Several changes came at once: more may have been in sync between them.
                count = len(self.nodes)
            if watermark < before:
                raise Violation(
                    f"the high watermark of {key[0]} on {node} went from {before} back to {watermark} in epoch {epoch}"
                )
            if watermark > before and max(in_sync, count) < MIN_IN_SYNC and replica.topic != RISKY:
                raise Violation(
                    f"the high watermark of {key[0]} on {node} went from {before} to {watermark} in epoch {epoch} with {in_sync} in sync"
                )
            self._watermarks[place] = watermark, in_sync, partition_epoch
            self._look_at_progress(place, node, shared.machine, watermark)
            self._look_at_in_sync(node, replica, watermark)
        if replica.topic != RISKY and not (log.config.compacted and self._cleaning):
            self._compare(node, key, log, watermark)

    def _look_at_progress(self, place: tuple[Any, int, int, int], leader: Node, machine: Any, watermark: int) -> None:
        """What all have who are in sync is committed with the next fetch of one of them, unless another who is up is about to join them:
        who goes keeps nobody waiting (KAFKA-15021)."""
        assert leader.broker is not None
        in_sync = [each for each in machine.isr.maximal if each != leader.node_id]
        followers = [machine.follower(each) for each in in_sync]
        brokers = leader.broker.image.brokers
        may_join = any(
            number in brokers and not brokers[number].fenced and not brokers[number].in_controlled_shutdown
            for number in range(1, len(self.nodes) + 1)
            if number not in machine.isr.maximal and machine.follower(number) is not None
        )
        least = min([machine.ends.kept, *(each.log_end for each in followers if each is not None)])
        enough = len(machine.isr.committed) >= machine.min_isr
        if least <= watermark or may_join or None in followers or not enough:
            self._held_back.pop(place, None)
            return
        now_ms = leader.broker.replicas.replication.monotonic_ms()  # type: ignore[union-attr]
        before, since_ms = self._held_back.get(place, (-1, 0))
        if before != watermark:
            self._held_back[place] = watermark, now_ms
        elif any(each.fetched_at_ms > since_ms for each in followers):
            raise Violation(
                f"the high watermark of {place[0][0]} on {leader} stays at {watermark}, though {sorted(machine.isr.maximal)} are in sync, "
                f"have all up to {least}, and fetch"
            )

    def _look_at_in_sync(self, leader: Node, replica: Any, watermark: int) -> None:
        """What a leader takes for committed, all have whom it takes for in sync. But for one who knows of a later partition epoch than
        the leader: it may have been taken off the partition, its log with it, and put back, while the leader was cut off. Or the topic
        was deleted and made anew."""
        for node in self.nodes:
            if node is leader or node.broker is None or node.node_id not in replica.shared.machine.isr.committed:
                continue
            other = node.broker.replicas.get(replica.topic, replica.partition)
            if other is None or other.topic_id != replica.topic_id or other.shared is None or not other.log.loaded:
                continue
            if other.shared.machine.partition_epoch > replica.shared.machine.partition_epoch:
                continue
            if other.log.log_end_offset < watermark:
                raise Violation(
                    f"{replica.topic}-{replica.partition} is committed up to {watermark} for {leader}, and in-sync {node} ends at "
                    f"{other.log.log_end_offset}"
                )

    def _compare(self, node: Node, key: Any, log: Any, watermark: int) -> None:
        if node.fails("read", log.path):
            return
        history = self.histories.get(key)
        if history is None:
            history = self.histories[key] = History(key if isinstance(key, str) else key[0])
        place = node.node_id, node.lives, key
        start = self._read.get(place, 0)
        if watermark > start and log.log_end_offset >= watermark:
            start = max(start, log.log_start_offset)
            self._read[place] = history.take(node, start, _batches(log, start, watermark))

    def at_rest(self, producers: Sequence[Producer], readers: Sequence[CommittedReader]) -> None:
        """All is well again, and nobody writes: every replica has the same, no transaction is open, all that was acknowledged is there
        once, in order, and what transactions made of it too."""
        for node in self.nodes:  # from the beginning: nothing that was committed may have changed since
            for place in [place for place in self._read if place[0] == node.node_id]:
                del self._read[place]
        self.look()
        self._compare_images()
        for key in {(producer.topic, producer.partition): None for producer in producers}:
            ends = {}
            found: dict[Node, list[tuple[bytes | None, bytes | None]]] = {}
            for node in self.nodes:
                assert node.broker is not None
                replica = node.broker.replicas.get(*key)
                placed = node.broker.image.partition(*key)
                if placed is not None and node.node_id not in placed.replicas:
                    continue
                if replica is None:
                    raise Violation(f"{node} has no replica of {key}")
                ends[str(node)] = replica.log.log_end_offset, replica.log.high_watermark
                found[node] = list(_records(replica.log))
            if len(set(ends.values())) > 1:
                raise Violation(f"{key} does not end alike: (log end, high watermark) are {ends}")
            for node, records in found.items():
                own = (each for each in producers if (each.topic, each.partition) == key)
                problem = next(filter(None, (each.problem_of(records) for each in own)), None)
                if problem is not None:
                    raise Violation(f"{key} on {node}: {problem}")

        for node in self.nodes:
            assert node.broker is not None
            for replica in node.broker.replicas:
                log = replica.log
                if log.loaded and log.last_stable_offset != log.high_watermark:
                    raise Violation(
                        f"{replica.topic}-{replica.partition} on {node} has a transaction open at {log.last_stable_offset}, below its "
                        f"high watermark {log.high_watermark}, with nobody who writes"
                    )
        for reader in readers:
            self._account_for_output(reader)

    def _compare_images(self) -> None:
        """Nodes that have taken in the same metadata, by records, snapshots or both, know the same."""
        images: dict[int, tuple[Node, Any]] = {}
        for node in self.nodes:
            assert node.broker is not None
            image = node.broker.image
            other, known = images.setdefault(image.offset, (node, image))
            for name in image._fields:
                here, there = getattr(image, name), getattr(known, name)
                if name != "timestamp_ms" and here != there:
                    raise Violation(
                        f"{name} of the metadata up to offset {image.offset} is {here} on {node} and {there} on {other}"
                    )

    def _account_for_output(self, reader: CommittedReader) -> None:
        """The input's records, each once, in order."""
        found = [node.broker.replicas.get(reader.source, reader.partition) for node in self.nodes if node.broker]
        log = next(replica for replica in found if replica is not None).log
        expected = [value or b"" for _, value in _records(log)]
        if reader.values != expected:
            at = next(
                (at for at, pair in enumerate(zip(reader.values, expected, strict=False)) if pair[0] != pair[1]), -1
            )
            raise Violation(
                f"{reader.topic}-{reader.partition} has {len(reader.values)} committed records of {len(expected)} of {reader.source}, and "
                f"differs at {at}: {reader.values[at : at + 3]} in place of {expected[at : at + 3]}"
            )


def _batches(log: Any, start: int, end: int) -> Iterator[tuple[int, Batch]]:
    """The batches that begin from `start` on and end by `end`."""
    while start < end:
        data = log.read(start, READ_BYTES, upper_offset=end).read()
        if not data:
            return
        for _, header in iter_headers(data):
            if header.next_offset > end:
                return
            if header.base_offset >= start:
                yield header.base_offset, Batch(header.next_offset, header.partition_leader_epoch, header.crc)
            start = max(start, header.next_offset)


def _records(log: Any) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Keys and values, from its start to its end."""
    at = log.log_start_offset
    while at < log.log_end_offset:
        data = log.read(at, READ_BYTES).read()
        if not data:
            return  # what was there up to its end was compacted
        for position, header in iter_headers(data):
            at = header.next_offset
            if not header.is_control:
                for record in decode_records(data, position):
                    yield _bytes(record.key), _bytes(record.value)


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)
