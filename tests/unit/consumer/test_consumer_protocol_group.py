"""Many members of a KIP-848 group against a plain coordinator, in any order of events: everything is shared and nothing twice."""

from __future__ import annotations

import random

import pytest
from consumer_protocol_harness import Harness, T

from fastq.consumer.group.membership import Subscription
from fastq.errors import ConnectionClosed, ErrorCode
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse


class Group:
    """The coordinator in its plainest form: a target per member; a partition is given when nobody else has it."""

    def __init__(self, partitions: int) -> None:
        self.partitions = [(T, index) for index in range(partitions)]
        self.epoch = 0
        self.epochs: dict[str, int] = {}
        self.held: dict[str, set[tuple[bytes, int]]] = {}  # what a member may be reading
        self.target: dict[str, set[tuple[bytes, int]]] = {}

    def rebalance(self) -> None:
        self.epoch += 1
        members = sorted(self.epochs)
        self.target = {m: set(self.partitions[i :: len(members)]) for i, m in enumerate(members)}

    def remove(self, member: str) -> None:
        self.epochs.pop(member, None)
        self.held.pop(member, None)
        self.rebalance()

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        member = request.member_id
        if request.member_epoch == -1:
            self.remove(member)
            return ConsumerGroupHeartbeatResponse(member_epoch=-1)
        if request.member_epoch == 0:
            self.epochs[member], self.held[member] = 0, set()
            self.rebalance()
        elif member not in self.epochs:
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        if request.topic_partitions is not None:
            has = {(entry.topic_id, index) for entry in request.topic_partitions for index in entry.partitions}
            assert has <= self.held[member], "it reads what it was not given"
            self.held[member] &= has | self.target[member]
            if has <= self.target[member]:
                self.epochs[member] = self.epoch
        others: set[tuple[bytes, int]] = set()
        for other, held in self.held.items():
            others |= held if other != member else set()
        given = (self.target[member] & self.held[member]) | (self.target[member] - others)
        self.held[member] |= given
        topics: dict[bytes, list[int]] = {}
        for topic, index in sorted(given):
            topics.setdefault(topic, []).append(index)
        return ConsumerGroupHeartbeatResponse(
            member_epoch=max(1, self.epochs[member]),
            heartbeat_interval_ms=1000,
            assignment=ConsumerGroupHeartbeatResponse.Assignment(
                topic_partitions=[
                    ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic, partitions=indexes)
                    for topic, indexes in topics.items()
                ]
            ),
        )


@pytest.mark.parametrize("seed", range(30))
def test_a_group_of_many_shares_everything_and_never_twice(seed: int) -> None:
    rng = random.Random(seed)
    group = Group(rng.randrange(1, 8))
    members: list[Harness] = []
    for step in range(400):
        calm = step >= 300  # nothing goes wrong any more: it has to settle
        if not members or (not calm and rng.random() < 0.02):
            harness = Harness("t")
            harness.member.member_id = f"m-{step}"
            harness.member.subscribe(Subscription(("t",)))
            members.append(harness)
        harness = rng.choice(members)
        harness.later(rng.choice((0.2, 1.5)))
        request = harness.beat()
        if request is not None:
            outgoing = harness.sent.pop()
            dice = 1.0 if calm else rng.random()
            if dice < 0.05:
                outgoing.done(None, ConnectionClosed("cut"), harness.now)
            elif dice < 0.1:
                group.remove(request.member_id)  # its session ended
                outgoing.done(group.heartbeat(request), None, harness.now)
            else:
                outgoing.done(group.heartbeat(request), None, harness.now)
            harness.coordinator.known = True
        if rng.random() < 0.5 and (change := harness.member.changes()) is not None:
            harness.member.carried_out(change)
        if not calm and len(members) > 1 and rng.random() < 0.01:
            members.remove(harness)
            group.remove(harness.member.member_id)
        live = [h.member for h in members if h.member.member_id in group.epochs and h.member.may_commit]
        for one in live:
            for other in live:
                assert one is other or not one.owned & other.owned
    for _ in range(20):
        for harness in members:
            harness.later(1.5)
            if (request := harness.beat()) is not None:
                harness.sent.pop().done(group.heartbeat(request), None, harness.now)
            harness.carry_out()
    assert sorted(tp.partition for h in members for tp in h.member.owned) == list(range(len(group.partitions)))
    assert all(h.member.is_stable for h in members)
