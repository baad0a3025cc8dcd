"""Members of a KIP-848 group, each with a thread that stands in for its heartbeats, against the coordinator, under a seed: whoever asks
first in a member's name is told, requests lie with the coordinator for long, also those whose connection is closed, answers get lost, steps
take their time, and the coordinator moves. In the end each member has its share, and nobody loses what nobody took from it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from group_world import CLIENT, World

from fastq._native.wire import Reader
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.group import liveness as room
from fastq.consumer.group.consumer_protocol import ConsumerProtocolMembership
from fastq.consumer.group.liveness import Liveness
from fastq.consumer.group.membership import Change, ChangeKind, Subscription
from fastq.errors import ConnectionClosed, FastqError, KafkaError
from fastq.metadata import ClusterMetadata, TopicPartition
from fastq.protocol.frames import decode_request_header, encode_response
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, MetadataResponse

VERSION = 1
WANTED = (Subscription(("t",)), Subscription(("t", "u")), Subscription(("t",), "t.*"), Subscription(("u",)))
NODE = 7
OF_LATER = {14, 15, 27}  # errors after which a thread goes on


class Connection:
    """Requests that the coordinator has not read yet, and what it has answered. A closed one has no reader, and is read to its end."""

    def __init__(self, network: Network) -> None:
        self.requests: deque[ConsumerGroupHeartbeatRequest] = deque()
        self.answers: deque[ConsumerGroupHeartbeatResponse] = deque()
        network.connections.append(self)


class Network:
    """The coordinator, and all that lies with it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(session_timeout_ms=60_000, heartbeat_interval_ms=1000)
        self.world.topics(t=self.rng.randrange(1, 6), u=2)
        self.connections: list[Connection] = []

    @property
    def now(self) -> float:
        return self.world.clock_ms / 1000

    def serve(self, connection: Connection) -> None:
        if not connection.requests:
            return
        request = connection.requests.popleft()

        def answer(response: ConsumerGroupHeartbeatResponse | None, error: KafkaError | None) -> None:
            if response is None:
                assert error is not None
                response = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=str(error))
            connection.answers.append(response)

        try:
            self.world.consumers.heartbeat(request, CLIENT, VERSION, answer)
        except KafkaError as error:
            answer(None, error)

    def move(self, members: Sequence[Member]) -> None:
        """Another coordinator, of what was written. What lay with the one before is never answered."""
        self.world.load()
        for connection in self.connections:
            connection.requests.clear()
        for one in members:
            one.hang_up()
            one.stand_in.hang_up()


class StandIn:
    """The native thread, as `heartbeat.h` has it."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.connection: Connection | None = None
        self.armed = False
        self.token = -1
        self.asked: tuple[int, float] | None = None
        self.unheard = 0
        self.overdue_s = 0.0
        self.answers: list[tuple[int, bool, bytes]] = []
        self.next_at = 0.0
        self.request = ConsumerGroupHeartbeatRequest()
        self.interval_s = 1.0

    def connect_to(self, ip: str, port: int) -> None:
        pass

    def arm(self, token: int, frame: bytes, *, interval_ms: int, **more: Any) -> None:
        header = decode_request_header(Reader(frame, 4))
        self.request = ConsumerGroupHeartbeatRequest.decode(Reader(frame, header.position), VERSION)
        self.token, self.armed, self.interval_s = token, True, interval_ms / 1000
        self.postpone()

    def disarm(self) -> None:
        self.armed, self.token = False, -1

    def postpone(self) -> None:
        self.next_at = self.network.now + 1.5 * self.interval_s

    def alive(self) -> None:
        pass

    def take(self) -> list[tuple[int, bool, bytes]]:
        taken, self.answers = self.answers, []
        return taken

    def turn(self) -> None:
        connection, now = self.connection, self.network.now
        if self.asked is not None and connection is not None:
            token, until = self.asked
            if connection.answers:
                self.asked = None
                self.heard(token, connection.answers.popleft())
            elif now >= until:
                self.hang_up()
        elif self.armed and now >= self.next_at:
            self.next_at = now + self.interval_s
            self.connection = connection = connection or Connection(self.network)
            connection.requests.append(_copied(self.request))
            self.asked = self.token, now + 3.0

    def hang_up(self) -> None:
        self.unheard += self.asked is not None
        self.asked, self.connection = None, None

    def heard(self, token: int, response: ConsumerGroupHeartbeatResponse) -> None:
        if token != self.token:
            self.unheard += 1
            return
        if response.error_code == 0:
            self.request.member_epoch = response.member_epoch
        elif response.error_code not in OF_LATER:
            self.armed = False
        self.answers.append((token, False, bytes(encode_response(1, response, VERSION)[4:])))


class Member:
    """One consumer: a turn of it is what Python does when it can run."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.connection: Connection | None = Connection(network)
        self.under_way: deque[tuple[Connection, Callable[..., None], float]] = deque()
        self.frozen_until = 0.0
        self.wrong: list[str] = []
        self.step: Change | None = None  # what the application is at
        self.step_until = 0.0
        coordinator = SimpleNamespace(
            group_id="g",
            known=True,
            node_id=NODE,
            label="node 7",
            worked=lambda: None,
            refused=lambda doing, error, now: None,
            came_through=lambda doing, now: None,
            pause_s=lambda failures: 0.1,
            lost=lambda now, why: None,
        )
        config = ConsumerConfig(group_id="g", max_poll_interval_ms=10_000_000)
        metadata = ClusterMetadata()
        part, topic = MetadataResponse.MetadataResponsePartition, MetadataResponse.MetadataResponseTopic
        parts = [part(partition_index=index, leader_id=1, leader_epoch=0) for index in range(8)]
        ids = {name: name.encode().ljust(16, b".") for name in "tu"}
        metadata.update(MetadataResponse(topics=[topic(name=n, topic_id=i, partitions=parts) for n, i in ids.items()]))
        self.member = ConsumerProtocolMembership(config, cast(Any, coordinator), metadata, rng=network.rng)
        core = SimpleNamespace(
            clock=lambda: network.now, peer_address=lambda node: ("127.0.0.1", 1), api_version=lambda node, key: VERSION
        )
        self.liveness = Liveness(config, cast(Any, core), cast(Any, coordinator))
        self.liveness._plain = True
        self.stand_in = StandIn(network)
        self.subscribe(WANTED[0])

    def subscribe(self, subscription: Subscription) -> None:
        self.wants = subscription.topics
        self.member.subscribe(subscription)

    def turn(self) -> None:
        now, member = self.network.now, self.member
        while self.under_way and self.under_way[0][0].answers:
            connection, done, _ = self.under_way.popleft()
            done(connection.answers.popleft(), None, now)
        if self.under_way and now >= self.under_way[0][2]:
            self.hang_up()
        member.poll(now)
        self.liveness.follow(member)
        if self.step is not None and now >= self.step_until:
            member.carried_out(self.step)
            self.step = None
        if self.step is None and (change := member.changes()) is not None:
            if change.kind is ChangeKind.LOSE:
                self.wrong.append(f"{member.member_id} lost {change.partitions} at {now}")
            self.step, self.step_until = change, now + self.network.rng.choice((0.0, 0.0, 0.1, 0.1, 3.0))
        for outgoing in member.requests(now, lambda node: True):
            self.connection = self.connection or Connection(self.network)
            self.liveness.sent()
            self.connection.requests.append(outgoing.build(VERSION))
            self.under_way.append((self.connection, outgoing.done, now + 8.0))

    def hang_up(self) -> None:
        self.connection = None
        under_way, self.under_way = self.under_way, deque()
        error: FastqError = ConnectionClosed("cut")
        for _, done, _ in under_way:
            done(None, error, self.network.now)


def _copied(request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest.decode(Reader(request.to_bytes(VERSION)), VERSION)


@pytest.mark.parametrize("seed", range(60))
def test_whoever_is_told_a_member_has_its_share_and_loses_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(seed)
    rng, world = network.rng, network.world
    members: list[Member] = []
    cuts, moves = rng.random() < 0.5, rng.random() < 0.3

    def made(progress: Any) -> StandIn:
        return making.stand_in

    monkeypatch.setattr(room, "HeartbeatThread", made)
    stalled_until = 0.0
    for step in range(2000):
        calm = step >= 700
        now = network.now
        if not calm and (not members or (len(members) < 4 and rng.random() < 0.02)):
            members.append(Member(network))
        if not calm and len(members) > 1 and rng.random() < 0.01:
            leaver = members.pop(rng.randrange(len(members)))
            for outgoing in leaver.member.leave("the test"):
                connection = leaver.connection or Connection(network)
                connection.requests.append(outgoing.build(VERSION))
            leaver.stand_in.disarm()
        if not calm and rng.random() < 0.01:
            world.topics(t=rng.randrange(1, 8), u=2)
        if members and not calm and rng.random() < 0.03:
            rng.choice(members).subscribe(rng.choice(WANTED))
        if not calm and rng.random() < 0.04:
            stalled_until = now + rng.uniform(0.5, 6.0 if cuts else 2.0)
        if moves and not calm and rng.random() < 0.01:
            network.move(members)
        for making in members:
            if not calm and rng.random() < 0.05:
                making.frozen_until = now + rng.uniform(0.5, 5.0)
            if calm or now >= making.frozen_until:
                making.turn()
            making.stand_in.turn()
            if cuts and not calm and rng.random() < 0.01:
                making.hang_up()
        if calm or now >= stalled_until:
            for connection in rng.sample(network.connections, len(network.connections)):
                if calm or not cuts or rng.random() < 0.8:
                    network.serve(connection)
        network.connections = [
            c
            for c in network.connections
            if c.requests or any(c in (m.connection, m.stand_in.connection) for m in members)
        ]
        world.advance(100)
        reads = [tp for one in members for tp in one.member.owned]
        assert cuts or len(reads) == len(set(reads)), f"two read the same at {network.now}"
    # What a closed connection has left says what was owned then, and two epochs that are told to those put a member out.
    assert cuts or moves or [fault for one in members for fault in one.wrong] == []
    assert set(world.group.members) == {one.member.member_id for one in members}
    for one in members:
        assert {tp.topic for tp in one.member.owned} <= set(one.wants)
    counts = {topic: len(world.image.topics_by_name[topic].partitions) for one in members for topic in one.wants}
    owned = sorted(tp for one in members for tp in one.member.owned)
    assert owned == sorted(TopicPartition(topic, index) for topic, count in counts.items() for index in range(count))
