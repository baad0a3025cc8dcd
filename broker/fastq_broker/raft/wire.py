"""The quorum's messages as Kafka's, and back.

    Vote 0-2, BeginQuorumEpoch 0-1, EndQuorumEpoch 0-1, Fetch 17-18 (of `__cluster_metadata` by its id), FetchSnapshot 0-1,
    AddRaftVoter 0-1, RemoveRaftVoter 0, UpdateRaftVoter 0; and ApiVersions, for the range of kraft.version

Rules: a request names one partition, that of the metadata log; what names another, or more than one, is None here and INVALID_REQUEST
to its sender. An error that stands at the top of a response counts before the partition's. Sources: RaftUtil, KafkaRaftClient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastq.errors import ErrorCode, ProtocolError
from fastq.protocol.messages import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from fastq.protocol.uuid import METADATA_TOPIC_ID
from fastq_broker.controller.storage import METADATA_TOPIC
from fastq_broker.raft.messages import (
    AddVoter,
    Answer,
    AnyAnswer,
    Ask,
    BeginEpoch,
    EndEpoch,
    EpochEnd,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    RemoveVoter,
    SnapshotId,
    UpdateVoter,
    Versions,
    VersionsAnswer,
    Vote,
    VoterAnswer,
)
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter

PARTITION = 0
FETCH_VERSIONS = (17, 18)  # with the replica's directory

KRAFT_VERSION = "kraft.version"

QuorumRequest = VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | FetchRequest | FetchSnapshotRequest
QuorumResponse = (
    VoteResponse | BeginQuorumEpochResponse | EndQuorumEpochResponse | FetchResponse | FetchSnapshotResponse
)
VoterRequest = AddRaftVoterRequest | RemoveRaftVoterRequest | UpdateRaftVoterRequest
VoterResponse = AddRaftVoterResponse | RemoveRaftVoterResponse | UpdateRaftVoterResponse
Request = QuorumRequest | VoterRequest | ApiVersionsRequest
Response = QuorumResponse | VoterResponse | ApiVersionsResponse
QuorumAsk = Vote | BeginEpoch | EndEpoch | Fetch | FetchSnapshot
VoterAsk = AddVoter | RemoveVoter | UpdateVoter


# -- requests


def request_of(ask: Ask) -> Request:
    """What to send for a question."""
    if isinstance(ask, Vote):
        return _vote_request(ask)
    if isinstance(ask, BeginEpoch):
        begun = BeginQuorumEpochRequest.PartitionData(
            partition_index=PARTITION,
            voter_directory_id=_voter(ask.voter).directory_id,
            leader_id=ask.leader_id,
            leader_epoch=ask.epoch,
        )
        return BeginQuorumEpochRequest(
            cluster_id=ask.cluster_id,
            voter_id=_voter(ask.voter).node_id,
            topics=[BeginQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[begun])],
            leader_endpoints=_listeners(BeginQuorumEpochRequest.LeaderEndpoint, ask.endpoints),
        )
    if isinstance(ask, EndEpoch):
        ended = EndQuorumEpochRequest.PartitionData(
            partition_index=PARTITION,
            leader_id=ask.leader_id,
            leader_epoch=ask.epoch,
            preferred_successors=[key.node_id for key in ask.successors],
            preferred_candidates=[
                EndQuorumEpochRequest.ReplicaInfo(candidate_id=key.node_id, candidate_directory_id=key.directory_id)
                for key in ask.successors
            ],
        )
        return EndQuorumEpochRequest(
            cluster_id=ask.cluster_id,
            topics=[EndQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[ended])],
            leader_endpoints=_listeners(EndQuorumEpochRequest.LeaderEndpoint, ask.endpoints),
        )
    if isinstance(ask, Fetch):
        return _fetch_request(ask)
    if isinstance(ask, FetchSnapshot):
        return _snapshot_request(ask)
    if isinstance(ask, Versions):
        return ApiVersionsRequest(client_software_name="fastq", client_software_version="raft")
    return _voter_request(ask)


def _voter(key: ReplicaKey | None) -> ReplicaKey:
    return ReplicaKey(-1) if key is None else key


def _listeners(kind: Any, endpoints: Mapping[str, Endpoint]) -> list[Any]:
    return [kind(name=name, host=place.host, port=place.port) for name, place in endpoints.items()]


def _vote_request(ask: Vote) -> VoteRequest:
    wanted = VoteRequest.PartitionData(
        partition_index=PARTITION,
        replica_epoch=ask.epoch,
        replica_id=ask.candidate.node_id,
        replica_directory_id=ask.candidate.directory_id,
        voter_directory_id=_voter(ask.voter).directory_id,
        last_offset_epoch=ask.last_epoch,
        last_offset=ask.end_offset,
        pre_vote=ask.pre,
    )
    return VoteRequest(
        cluster_id=ask.cluster_id,
        voter_id=_voter(ask.voter).node_id,
        topics=[VoteRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[wanted])],
    )


def _fetch_request(ask: Fetch) -> FetchRequest:
    wanted = FetchRequest.FetchPartition(
        partition=PARTITION,
        current_leader_epoch=ask.epoch,
        fetch_offset=ask.offset,
        last_fetched_epoch=ask.last_epoch,
        partition_max_bytes=0,
        replica_directory_id=ask.replica.directory_id,
        high_watermark=ask.high_watermark,
    )
    return FetchRequest(
        cluster_id=ask.cluster_id,
        replica_state=FetchRequest.ReplicaState(replica_id=ask.replica.node_id),
        max_wait_ms=round(ask.wait_s * 1000),
        min_bytes=0,
        max_bytes=ask.bytes_max,
        topics=[FetchRequest.FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[wanted])],
        forgotten_topics_data=[],
    )


def _snapshot_request(ask: FetchSnapshot) -> FetchSnapshotRequest:
    wanted = FetchSnapshotRequest.PartitionSnapshot(
        partition=PARTITION,
        current_leader_epoch=ask.epoch,
        snapshot_id=FetchSnapshotRequest.SnapshotId(end_offset=ask.snapshot.end_offset, epoch=ask.snapshot.epoch),
        position=ask.position,
        replica_directory_id=ask.replica.directory_id,
    )
    return FetchSnapshotRequest(
        cluster_id=ask.cluster_id,
        replica_id=ask.replica.node_id,
        max_bytes=ask.bytes_max,
        topics=[FetchSnapshotRequest.TopicSnapshot(name=METADATA_TOPIC, partitions=[wanted])],
    )


def _voter_request(ask: VoterAsk) -> VoterRequest:
    if isinstance(ask, RemoveVoter):
        return RemoveRaftVoterRequest(
            cluster_id=ask.cluster_id, voter_id=ask.key.node_id, voter_directory_id=ask.key.directory_id
        )
    key, places, (low, high) = ask.voter.key, ask.voter.endpoints, ask.voter.versions
    if isinstance(ask, AddVoter):
        return AddRaftVoterRequest(
            cluster_id=ask.cluster_id,
            timeout_ms=round(ask.timeout_s * 1000),
            voter_id=key.node_id,
            voter_directory_id=key.directory_id,
            listeners=_listeners(AddRaftVoterRequest.Listener, places),
            ack_when_committed=ask.when_committed,
        )
    return UpdateRaftVoterRequest(
        cluster_id=ask.cluster_id,
        current_leader_epoch=ask.epoch,
        voter_id=key.node_id,
        voter_directory_id=key.directory_id,
        listeners=_listeners(UpdateRaftVoterRequest.Listener, places),
        kraft_version_feature=UpdateRaftVoterRequest.KRaftVersionFeature(
            min_supported_version=low, max_supported_version=high
        ),
    )


def voter_ask_of(request: VoterRequest) -> VoterAsk:
    """What a request wants of the voters."""
    key = ReplicaKey(request.voter_id, request.voter_directory_id)
    if isinstance(request, RemoveRaftVoterRequest):
        return RemoveVoter(request.cluster_id, key)
    voter = Voter(key, _places(request.listeners))
    if isinstance(request, AddRaftVoterRequest):
        return AddVoter(request.cluster_id, request.timeout_ms / 1000, voter, request.ack_when_committed)
    known = request.kraft_version_feature
    voter = Voter(key, voter.endpoints, (known.min_supported_version, known.max_supported_version))
    return UpdateVoter(request.cluster_id, request.current_leader_epoch, voter)


def ask_of(request: QuorumRequest) -> QuorumAsk | None:
    """The question of a request; None where it names another partition than that of the metadata log, or not just one."""
    found = _only(request)
    if found is None:
        return None
    if isinstance(request, VoteRequest):
        return Vote(
            request.cluster_id,
            found.replica_epoch,
            ReplicaKey(found.replica_id, found.replica_directory_id),
            _asked(request.voter_id, found.voter_directory_id),
            found.last_offset_epoch,
            found.last_offset,
            found.pre_vote,
        )
    if isinstance(request, BeginQuorumEpochRequest):
        return BeginEpoch(
            request.cluster_id,
            found.leader_epoch,
            found.leader_id,
            _asked(request.voter_id, found.voter_directory_id),
            _places(request.leader_endpoints),
        )
    if isinstance(request, EndQuorumEpochRequest):
        successors = [ReplicaKey(info.candidate_id, info.candidate_directory_id) for info in found.preferred_candidates]
        return EndEpoch(
            request.cluster_id,
            found.leader_epoch,
            found.leader_id,
            tuple(successors or [ReplicaKey(node_id) for node_id in found.preferred_successors]),
            _places(request.leader_endpoints),
        )
    if isinstance(request, FetchRequest):
        node_id = request.replica_state.replica_id if request.replica_id < 0 else request.replica_id
        return Fetch(
            request.cluster_id,
            found.current_leader_epoch,
            ReplicaKey(node_id, found.replica_directory_id),
            found.fetch_offset,
            found.last_fetched_epoch,
            found.high_watermark,
            request.max_wait_ms / 1000,
            request.max_bytes,
        )
    return FetchSnapshot(
        request.cluster_id,
        found.current_leader_epoch,
        ReplicaKey(request.replica_id, found.replica_directory_id),
        SnapshotId(found.snapshot_id.end_offset, found.snapshot_id.epoch),
        found.position,
        request.max_bytes,
    )


def _only(request: QuorumRequest) -> Any:
    """The partition that a request names, when it is the one of the metadata log alone."""
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    topic: Any = request.topics[0]
    part = topic.partitions[0]
    if isinstance(request, FetchRequest):
        right = topic.topic == METADATA_TOPIC or topic.topic_id == METADATA_TOPIC_ID
        return part if right and part.partition == PARTITION else None
    if isinstance(request, FetchSnapshotRequest):
        return part if topic.name == METADATA_TOPIC and part.partition == PARTITION else None
    return part if topic.topic_name == METADATA_TOPIC and part.partition_index == PARTITION else None


def _asked(node_id: int, directory_id: bytes) -> ReplicaKey | None:
    """Whom a request means; None in versions that do not say."""
    return None if node_id < 0 else ReplicaKey(node_id, directory_id)


def _places(listeners: Sequence[Any]) -> dict[str, Endpoint]:
    return {place.name: Endpoint(place.host, place.port) for place in listeners}


# -- responses


def invalid(request: QuorumRequest) -> QuorumResponse:
    """To a request that `ask_of` makes nothing of."""
    response: QuorumResponse = _response_class(request)(error_code=ErrorCode.INVALID_REQUEST)
    return response


def _response_class(request: QuorumRequest) -> Any:
    return {
        VoteRequest: VoteResponse,
        BeginQuorumEpochRequest: BeginQuorumEpochResponse,
        EndQuorumEpochRequest: EndQuorumEpochResponse,
        FetchRequest: FetchResponse,
        FetchSnapshotRequest: FetchSnapshotResponse,
    }[type(request)]


def response_of(request: QuorumRequest, answer: Answer | Fetched | FetchedSnapshot, version: int) -> QuorumResponse:
    """What to send for an answer to a request of this version. 0 does not say where the leader is."""
    kind = _response_class(request)
    if answer.error == ErrorCode.INCONSISTENT_CLUSTER_ID:
        refused: QuorumResponse = kind(error_code=answer.error)
        return refused
    nodes = []
    if answer.endpoint is not None and answer.leader_id >= 0 and version > 0:
        nodes = [kind.NodeEndpoint(node_id=answer.leader_id, host=answer.endpoint.host, port=answer.endpoint.port)]
    if isinstance(answer, Fetched):
        topic = FetchResponse.FetchableTopicResponse(
            topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[_fetched_part(answer)]
        )
        return FetchResponse(responses=[topic], node_endpoints=nodes)
    if isinstance(answer, FetchedSnapshot):
        piece = FetchSnapshotResponse.TopicSnapshot(name=METADATA_TOPIC, partitions=[_snapshot_part(answer)])
        return FetchSnapshotResponse(topics=[piece], node_endpoints=nodes)
    fields: dict[str, Any] = {"vote_granted": answer.granted} if kind is VoteResponse else {}
    part = kind.PartitionData(
        partition_index=PARTITION,
        error_code=answer.error,
        leader_id=answer.leader_id,
        leader_epoch=answer.epoch,
        **fields,
    )
    response: QuorumResponse = kind(
        topics=[kind.TopicData(topic_name=METADATA_TOPIC, partitions=[part])], node_endpoints=nodes
    )
    return response


def _fetched_part(answer: Fetched) -> FetchResponse.PartitionData:
    part = FetchResponse.PartitionData(
        partition_index=PARTITION,
        error_code=answer.error,
        high_watermark=answer.high_watermark,
        log_start_offset=answer.log_start,
        current_leader=FetchResponse.LeaderIdAndEpoch(leader_id=answer.leader_id, leader_epoch=answer.epoch),
        aborted_transactions=[],
        records=answer.records,
    )
    if answer.diverging is not None:
        part.diverging_epoch = FetchResponse.EpochEndOffset(
            epoch=answer.diverging.epoch, end_offset=answer.diverging.end_offset
        )
    if answer.snapshot is not None:
        part.snapshot_id = FetchResponse.SnapshotId(end_offset=answer.snapshot.end_offset, epoch=answer.snapshot.epoch)
    return part


def _snapshot_part(answer: FetchedSnapshot) -> FetchSnapshotResponse.PartitionSnapshot:
    snapshot = answer.snapshot or SnapshotId(0, 0)
    return FetchSnapshotResponse.PartitionSnapshot(
        index=PARTITION,
        error_code=answer.error,
        snapshot_id=FetchSnapshotResponse.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        current_leader=FetchSnapshotResponse.LeaderIdAndEpoch(leader_id=answer.leader_id, leader_epoch=answer.epoch),
        size=max(answer.size, 0),
        position=max(answer.position, 0),
        unaligned_records=answer.data,
    )


def voter_response_of(request: VoterRequest, answer: VoterAnswer) -> VoterResponse:
    """What to send for an answer about voters."""
    if isinstance(request, UpdateRaftVoterRequest):
        place = answer.endpoint or Endpoint("", 0)
        leader = UpdateRaftVoterResponse.CurrentLeader(
            leader_id=answer.leader_id, leader_epoch=answer.epoch, host=place.host, port=place.port
        )
        return UpdateRaftVoterResponse(error_code=answer.error, current_leader=leader)
    kind = AddRaftVoterResponse if isinstance(request, AddRaftVoterRequest) else RemoveRaftVoterResponse
    return kind(error_code=answer.error, error_message=answer.message or None)


def _voter_answer_of(response: VoterResponse) -> VoterAnswer:
    if not isinstance(response, UpdateRaftVoterResponse):
        return VoterAnswer(response.error_code, -1, -1, None, response.error_message or "")
    leader = response.current_leader
    place = Endpoint(leader.host, leader.port) if leader.host else None
    return VoterAnswer(response.error_code, leader.leader_id, leader.leader_epoch, place)


def _versions_of(response: ApiVersionsResponse) -> VersionsAnswer:
    """The range of kraft.version; version 3 of ApiVersions, and nodes before KIP-853, do not say that they can 0."""
    found = next((known for known in response.supported_features if known.name == KRAFT_VERSION), None)
    highest = 0 if found is None else found.max_version
    return VersionsAnswer(response.error_code, lowest=0 if found is None else found.min_version, highest=highest)


def answer_of(response: Response) -> AnyAnswer:
    """What a response says. ProtocolError where it is not of the metadata log's partition."""
    if isinstance(response, AddRaftVoterResponse | RemoveRaftVoterResponse | UpdateRaftVoterResponse):
        return _voter_answer_of(response)
    if isinstance(response, ApiVersionsResponse):
        return _versions_of(response)
    if response.error_code != 0:
        return Answer(response.error_code, -1, -1)
    topics: Sequence[Any] = response.responses if isinstance(response, FetchResponse) else response.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise ProtocolError(f"the metadata quorum's {type(response).__name__} names {len(topics)} topics, expected 1")
    part = topics[0].partitions[0]
    leader: Any = part if hasattr(part, "leader_id") else part.current_leader
    found = next((node for node in response.node_endpoints if node.node_id == leader.leader_id), None)
    place = None if found is None else Endpoint(found.host, found.port)
    said = (part.error_code, leader.leader_id, leader.leader_epoch, place)
    if isinstance(response, FetchResponse):
        diverging, snapshot = part.diverging_epoch, part.snapshot_id
        return Fetched(
            *said,
            part.high_watermark,
            part.log_start_offset,
            bytes(part.records or b""),
            EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
            SnapshotId(snapshot.end_offset, snapshot.epoch) if snapshot.end_offset >= 0 else None,
        )
    if isinstance(response, FetchSnapshotResponse):
        snapshot = SnapshotId(part.snapshot_id.end_offset, part.snapshot_id.epoch)
        return FetchedSnapshot(*said, snapshot, part.size, part.position, bytes(part.unaligned_records))
    return Answer(*said, isinstance(response, VoteResponse) and part.vote_granted)
