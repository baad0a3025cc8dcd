"""The member of a KIP-848 group without I/O: its requests are answered by hand."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

from fastq.consumer.effects import Outgoing
from fastq.consumer.group.consumer_protocol import ConsumerProtocolMembership
from fastq.consumer.group.consumer_protocol_states import State
from fastq.consumer.group.coordinator import Doing
from fastq.consumer.group.membership import Change, Subscription
from fastq.errors import FastqError
from fastq.metadata import ClusterMetadata, TopicPartition
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, MetadataResponse

T, U = b"t" * 16, b"u" * 16
IDS = {"t": T, "u": U}


class FakeCoordinator:
    """Node 7 is the coordinator, until it is lost."""

    def __init__(self) -> None:
        self.known = True
        self.node_id = 7
        self.group_id = "g"
        self.label = "host:9092 (node 7)"
        self.reasons: list[str] = []
        self.refusals: dict[Doing, FastqError] = {}  # of what has not come through since

    def lost(self, now: float, why: str) -> None:
        self.known = False
        self.reasons.append(why)

    def worked(self) -> None:
        pass

    def refused(self, doing: Doing, error: FastqError, now: float) -> None:
        self.refusals[doing] = error

    def came_through(self, doing: Doing, now: float) -> None:
        self.refusals.pop(doing, None)

    def pause_s(self, failures: int) -> float:
        return 0.1 * failures


def metadata_of(*names: str) -> ClusterMetadata:
    """A cluster that has these topics."""
    metadata = ClusterMetadata()
    topics = [
        MetadataResponse.MetadataResponseTopic(
            name=name,
            topic_id=IDS[name],
            partitions=[
                MetadataResponse.MetadataResponsePartition(partition_index=i, leader_id=1, leader_epoch=0)
                for i in range(8)
            ],
        )
        for name in names
    ]
    metadata.update(MetadataResponse(topics=topics))
    return metadata


class Harness:
    """One member at a time `now`; its requests answered by hand."""

    def __init__(self, *names: str, version: int = 1, assignor: str | None = None, **config: Any) -> None:
        self.now = 100.0
        self.version = version
        self.coordinator = cast(Any, FakeCoordinator())
        defaults = {
            "group_id": "g",
            "group_instance_id": None,
            "client_rack": "r1",
            "max_poll_interval_ms": 300_000,
            "exclude_internal_topics": True,
        }
        settings: Any = SimpleNamespace(**{**defaults, **config})
        self.metadata = metadata_of(*(names or ("t", "u")))
        self.member = ConsumerProtocolMembership(
            settings, self.coordinator, self.metadata, assignor=assignor, rng=random.Random(1)
        )
        self.sent: list[Outgoing] = []

    def beat(self) -> ConsumerGroupHeartbeatRequest | None:
        """What is sent now, if anything."""
        out = list(self.member.requests(self.now, lambda node: True))
        assert len(out) <= 1
        if not out:
            return None
        self.sent += out
        request = out[0].build(self.version)
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        if request.member_epoch == 0:
            assert request.topic_partitions == [], "no coordinator takes a member that joins with partitions"
        return request

    def answer(self, code: int = 0, epoch: int = 1, assigned: dict[bytes, list[int]] | None = None) -> None:
        """Answer what was sent last."""
        assignment = None
        if assigned is not None:
            assignment = ConsumerGroupHeartbeatResponse.Assignment(
                topic_partitions=[
                    ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic, partitions=parts)
                    for topic, parts in assigned.items()
                ]
            )
        response = ConsumerGroupHeartbeatResponse(
            error_code=code, member_id=None, member_epoch=epoch, heartbeat_interval_ms=5000, assignment=assignment
        )
        self.sent.pop().done(response, None, self.now)

    def refused(self, code: int) -> None:
        """The heartbeat that is due is refused, and the one after it when it says what is owned."""
        while self.beat() is not None:
            self.answer(code)

    def join(self, *topics: str, assigned: dict[bytes, list[int]], epoch: int = 1) -> None:
        """A member that has carried out its first assignment, and said so."""
        self.member.subscribe(Subscription(topics))
        assert self.beat() is not None
        self.answer(epoch=epoch, assigned=assigned)
        self.carry_out()
        if self.beat() is not None:
            self.answer(epoch=epoch)
        assert self.member.state is State.STABLE

    def carry_out(self) -> list[Change]:
        """Do all that the member has to do now."""
        done = []
        while (change := self.member.changes()) is not None:
            done.append(change)
            self.member.carried_out(change)
        return done

    def later(self, seconds: float = 5.0) -> None:
        """Time passes."""
        self.now += seconds


def owned(*pairs: tuple[str, int]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(*pair) for pair in pairs)


def parts(request: ConsumerGroupHeartbeatRequest) -> dict[bytes, list[int]] | None:
    """The owned partitions that a heartbeat names."""
    if request.topic_partitions is None:
        return None
    return {entry.topic_id: entry.partitions for entry in request.topic_partitions}
