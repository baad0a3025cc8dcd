"""DescribeQuorum: the voters of the metadata quorum and how far they are (KIP-595, KIP-853).

Rules: only `__cluster_metadata-0` can be asked for, and only its leader knows how far the others are; who hears none says so. The leader
tells of itself as a voter that is always caught up.
Voters are told by their ids, in whichever order they joined. Times are -1 of a replica that has not fetched in the leader's epoch.
Source: KafkaRaftClient.handleDescribeQuorumRequest, LeaderState.updateVoterAndObserverStates.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import DescribeQuorumRequest, DescribeQuorumResponse
from fastq.protocol.uuid import ZERO_UUID
from fastq_broker.controller.storage import METADATA_TOPIC
from fastq_broker.raft.leader import Leadership, Progress
from fastq_broker.raft.voters import ReplicaKey

if TYPE_CHECKING:
    from fastq_broker.controller import Controller
    from fastq_broker.raft.machine import RaftMachine
    from fastq_broker.router import RequestContext

API_KEY = 55
VERSIONS = (0, 2)

FIRST_VERSION_WITH_DIRECTORIES = 2

NEVER = float("-inf")

PartitionData = DescribeQuorumResponse.PartitionData
ReplicaState = DescribeQuorumResponse.ReplicaState


def handle(context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Answer the state of the quorum; any other partition is unknown here."""
    controller = context.controller
    with_directories = context.api_version >= FIRST_VERSION_WITH_DIRECTORIES
    return DescribeQuorumResponse(
        topics=[
            DescribeQuorumResponse.TopicData(
                topic_name=topic.topic_name,
                partitions=[
                    _partition(controller, topic.topic_name, item.partition_index, with_directories)
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=_nodes(controller) if with_directories else [],
    )


def _partition(controller: Controller, topic: str, number: int, with_directories: bool) -> PartitionData:
    if (topic, number) != (METADATA_TOPIC, 0):
        return _refusal(number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"only {METADATA_TOPIC}-0 can be described")
    machine = controller.quorum.driver.machine
    leadership = machine.leadership
    if leadership is None:
        return _refusal(
            number,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"node {controller.node_id} does not lead the metadata quorum; node {machine.leader_id} may"
            if machine.hears_leader
            else _without_leader(controller.node_id, machine),
        )
    voters = controller.quorum.voters
    in_order = sorted((voter.key for voter in voters), key=attrgetter("node_id"))
    observers = [other for other in leadership.others.values() if not voters.has(other.key)]
    told = _Teller(controller, leadership, with_directories)
    return PartitionData(
        partition_index=0,
        leader_id=controller.node_id,
        leader_epoch=controller.epoch,
        high_watermark=controller.quorum.high_watermark,
        current_voters=[told.voter(key) for key in in_order],
        observers=[told.other(observer) for observer in observers],
    )


def _without_leader(node_id: int, machine: RaftMachine) -> str:
    """What this node knows of a quorum whose leader it does not hear."""
    voted = "has not voted" if machine.voted is None else f"has voted for node {machine.voted.node_id}"
    latest = "" if machine.leader_id < 0 else f", whose leader was node {machine.leader_id}"
    return (
        f"node {node_id} hears no leader of the metadata quorum: it is in epoch {machine.epoch}{latest}, {voted}, and has its log up to "
        f"offset {machine.log.end}; the voters are {', '.join(map(str, sorted(machine.voters.ids)))}"
    )


def _refusal(number: int, code: ErrorCode, message: str) -> PartitionData:
    return PartitionData(
        partition_index=number, error_code=code, error_message=message, current_voters=[], observers=[]
    )


class _Teller:
    """How far each replica is, for one answer."""

    def __init__(self, controller: Controller, leadership: Leadership, with_directories: bool) -> None:
        self._controller = controller
        self._leadership = leadership
        self._with_directories = with_directories
        self._now_ms = controller.clock()
        self._now_s = controller.quorum.driver.now()

    def voter(self, key: ReplicaKey) -> ReplicaState:
        if key.is_of(self._leadership.me):
            quorum = self._controller.quorum
            return self._state(key, quorum.end_offset, self._now_s, self._now_s)
        known = next((other for other in self._leadership.others.values() if key.is_of(other.key)), None)
        return self.other(Progress(key, NEVER) if known is None else replace(known, key=key))

    def other(self, progress: Progress) -> ReplicaState:
        return self._state(progress.key, progress.end, progress.fetched_at, progress.caught_up_at)

    def _state(self, key: ReplicaKey, end: int, fetched_at: float, caught_up_at: float) -> ReplicaState:
        return ReplicaState(
            replica_id=key.node_id,
            replica_directory_id=key.directory_id if self._with_directories else ZERO_UUID,
            log_end_offset=end,
            last_fetch_timestamp=self._time_ms(fetched_at),
            last_caught_up_timestamp=self._time_ms(caught_up_at),
        )

    def _time_ms(self, at_s: float) -> int:
        """A time of the leader's clock as ms since 1970."""
        return -1 if at_s == NEVER else self._now_ms - int((self._now_s - at_s) * 1000)


def _nodes(controller: Controller) -> list[DescribeQuorumResponse.Node]:
    return [
        DescribeQuorumResponse.Node(
            node_id=voter.key.node_id,
            listeners=[
                DescribeQuorumResponse.Listener(name=name, host=place.host, port=place.port)
                for name, place in voter.endpoints.items()
            ],
        )
        for voter in controller.quorum.voters
    ]
