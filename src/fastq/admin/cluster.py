"""What the admin clients do with the nodes of a cluster, written once: operations of `fastq.net.operations`, by the rules of `core.py`.

Rules of this file:
- What the active controller decides is asked of a broker, which forwards it. What is about one broker's disks is asked of that broker.
- An answer that is about one thing is asked for again while its error passes (`until_settled`); one that has items, item by item.
- Nothing is made up: an id of zeros and a time of -1 become None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fastq.admin.cluster_types import (
    ElectionType,
    FeatureMetadata,
    FeatureUpdate,
    PartitionReassignment,
    QuorumDescription,
    QuorumReplica,
    RaftVoterEndpoint,
    TopicPartitionReplica,
)
from fastq.admin.core import (
    RETRIED,
    Answers,
    _api_versions_response,
    _error,
    _group_by_topic,
    _unanswered,
    asked_for,
    per_item,
)
from fastq.admin.types import Outcome, Outcomes
from fastq.arguments import mapping_of
from fastq.errors import FastqError, KafkaError
from fastq.metadata import TopicPartition, partition_of
from fastq.net.operations import ANY, CONTROLLER, Broker, Call, Operation, Retry
from fastq.protocol import messages as m
from fastq.protocol.message import Message
from fastq.protocol.uuid import ZERO_UUID

V = TypeVar("V")

METADATA_TOPIC = "__cluster_metadata"
NEWEST = 32767
"""The upper end of a range of versions that has none of its own."""


def until_settled(call: Call, error_of: Callable[[Any], FastqError | None]) -> Operation[Any]:
    """The answer to a request about one thing, asked for again while its error passes; raises the error that it ends with."""
    while True:
        response = yield call
        error = error_of(response)
        if error is None:
            return response
        passes = isinstance(error, KafkaError) and error.code in RETRIED
        if not passes or not (yield Retry(error)):
            raise error


def _top_error(response: Any) -> FastqError | None:
    return _error(response.error_code, response.error_message) if response.error_code else None


# -- the metadata quorum -----------------------------------------------------------------------------------------------------


def describe_quorum() -> Operation[QuorumDescription]:
    """DescribeQuorum (KIP-595, KIP-853): the metadata's partition alone has a quorum."""
    response = yield from until_settled(Call(ANY, _quorum_request()), _quorum_error)
    return _quorum(response)


def quorum_as_known(node_id: int) -> Operation[QuorumDescription]:
    """What one broker says of the quorum at once: without a leader, its error says what it knows itself."""
    response: m.DescribeQuorumResponse = yield Call(Broker(node_id), _quorum_request())
    error = _quorum_error(response)
    if error is not None:
        raise error
    return _quorum(response)


def _quorum_request() -> m.DescribeQuorumRequest:
    return m.DescribeQuorumRequest(
        topics=[
            m.DescribeQuorumRequest.TopicData(
                topic_name=METADATA_TOPIC, partitions=[m.DescribeQuorumRequest.PartitionData(partition_index=0)]
            )
        ]
    )


def _quorum(response: m.DescribeQuorumResponse) -> QuorumDescription:
    found = _metadata_partition(response)
    assert found is not None  # or it would have been the error
    end = next((r.log_end_offset for r in found.current_voters if r.replica_id == found.leader_id), -1)
    return QuorumDescription(
        found.leader_id,
        found.leader_epoch,
        found.high_watermark,
        tuple(_quorum_replica(replica, end) for replica in found.current_voters),
        tuple(_quorum_replica(replica, end) for replica in found.observers),
        {
            node.node_id: tuple(RaftVoterEndpoint(e.name, e.host, e.port) for e in node.listeners)
            for node in response.nodes
        },
    )


def _metadata_partition(response: m.DescribeQuorumResponse) -> m.DescribeQuorumResponse.PartitionData | None:
    return next((p for t in response.topics for p in t.partitions if t.topic_name == METADATA_TOPIC), None)


def _quorum_error(response: m.DescribeQuorumResponse) -> FastqError | None:
    if response.error_code:
        return _top_error(response)
    found = _metadata_partition(response)
    if found is None:
        return _unanswered(METADATA_TOPIC)
    return (
        _error(found.error_code, found.error_message, topic=METADATA_TOPIC, partition=0) if found.error_code else None
    )


def _quorum_replica(replica: m.DescribeQuorumResponse.ReplicaState, end: int) -> QuorumReplica:
    return QuorumReplica(
        replica.replica_id,
        None if replica.replica_directory_id == ZERO_UUID else replica.replica_directory_id,
        replica.log_end_offset,
        max(0, end - replica.log_end_offset),
        replica.last_fetch_timestamp if replica.last_fetch_timestamp >= 0 else None,
        replica.last_caught_up_timestamp if replica.last_caught_up_timestamp >= 0 else None,
    )


def add_raft_voter(
    voter_id: int,
    directory_id: bytes,
    endpoints: Sequence[RaftVoterEndpoint],
    *,
    cluster_id: str | None,
    timeout_ms: int,
) -> Operation[None]:
    """AddRaftVoter (KIP-853); answered once the change is committed."""
    request = m.AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=timeout_ms,
        voter_id=voter_id,
        voter_directory_id=directory_id,
        listeners=[m.AddRaftVoterRequest.Listener(name=name, host=host, port=port) for name, host, port in endpoints],
    )
    yield from until_settled(Call(ANY, request), _top_error)


def remove_raft_voter(voter_id: int, directory_id: bytes, *, cluster_id: str | None) -> Operation[None]:
    """RemoveRaftVoter (KIP-853); answered once the change is committed."""
    request = m.RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=directory_id)
    yield from until_settled(Call(ANY, request), _top_error)


# -- features and registrations ----------------------------------------------------------------------------------------------


def describe_features(node_id: int | None) -> Operation[FeatureMetadata]:
    """The features in a broker's ApiVersions (KIP-584), of any broker or of one."""
    response = yield from _api_versions_response(node_id)
    return FeatureMetadata(
        {f.name: (f.min_version, f.max_version) for f in sorted(response.supported_features, key=lambda f: f.name)},
        {f.name: f.max_version_level for f in sorted(response.finalized_features, key=lambda f: f.name)},
        response.finalized_features_epoch if response.finalized_features_epoch >= 0 else None,
    )


def update_features(
    updates: Mapping[str, int | FeatureUpdate], *, validate_only: bool, timeout_ms: int
) -> Operation[None]:
    """UpdateFeatures (KIP-584, KIP-778): all of them or none. Version 0 knows neither kinds of downgrade nor a trial."""
    if not updates:
        raise ValueError("no feature is named: {'metadata.version': 29} sets one")
    given = mapping_of(updates, "updates", '{"metadata.version": 29}')
    wanted = {
        name: update if isinstance(update, FeatureUpdate) else FeatureUpdate(update) for name, update in given.items()
    }
    request = m.UpdateFeaturesRequest(
        timeout_ms=timeout_ms,
        feature_updates=[
            m.UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name, max_version_level=update.level, upgrade_type=update.upgrade_type
            )
            for name, update in wanted.items()
        ],
        validate_only=validate_only,
    )
    yield from until_settled(Call(CONTROLLER, request, (1, NEWEST)), _features_error)


def _features_error(response: m.UpdateFeaturesResponse) -> FastqError | None:
    """The error of all, or below version 2 the first one of a feature."""
    if response.error_code:
        return _top_error(response)
    failed = next((result for result in response.results if result.error_code), None)
    return None if failed is None else _error(failed.error_code, failed.error_message, feature=failed.feature)


def unregister_broker(broker_id: int) -> Operation[None]:
    """UnregisterBroker (KIP-500)."""
    request = m.UnregisterBrokerRequest(broker_id=broker_id)

    def error_of(response: m.UnregisterBrokerResponse) -> FastqError | None:
        if not response.error_code:
            return None
        return _error(response.error_code, response.error_message, broker=f"node {broker_id}")

    yield from until_settled(Call(ANY, request), error_of)


# -- replicas and leaders ----------------------------------------------------------------------------------------------------


def alter_partition_reassignments(
    reassignments: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool,
    timeout_ms: int,
) -> Operation[Outcomes[TopicPartition, None]]:
    """AlterPartitionReassignments (KIP-455, KIP-860): other replicas for partitions; None cancels what is under way."""
    given = mapping_of(reassignments, "reassignments", '{TopicPartition("logs", 0): [1, 2, 3]}')
    wanted = {partition_of(tp): replicas for tp, replicas in given.items()}
    topic = m.AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = m.AlterPartitionReassignmentsRequest.ReassignablePartition

    def replicas_of(tp: TopicPartition) -> list[int] | None:
        replicas = wanted[tp]
        return None if replicas is None else list(replicas)

    def send(left: list[TopicPartition]) -> Operation[Answers[TopicPartition, None]]:
        request = m.AlterPartitionReassignmentsRequest(
            timeout_ms=timeout_ms,
            allow_replication_factor_change=allow_replication_factor_change,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        partition(partition_index=index, replicas=replicas_of(TopicPartition(name, index)))
                        for index in indexes
                    ],
                )
                for name, indexes in _group_by_topic(left).items()
            ],
        )
        versions = (0 if allow_replication_factor_change else 1, NEWEST)
        response: m.AlterPartitionReassignmentsResponse = yield Call(CONTROLLER, request, versions)
        if response.error_code:
            return dict.fromkeys(left, _error(response.error_code, response.error_message))
        return {
            TopicPartition(t.name, p.partition_index): _error(
                p.error_code, p.error_message, topic=t.name, partition=p.partition_index
            )
            if p.error_code
            else None
            for t in response.responses
            for p in t.partitions
        }

    return per_item(list(wanted), send)


def list_partition_reassignments(
    partitions: Iterable[TopicPartition] | None, *, timeout_ms: int
) -> Operation[dict[TopicPartition, PartitionReassignment]]:
    """ListPartitionReassignments (KIP-455) of all partitions (None), or of some; one that does not move is left out."""
    topics = None
    if partitions is not None:
        named = m.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
        grouped = _group_by_topic(partition_of(tp) for tp in partitions)
        if not grouped:
            return {}
        topics = [named(name=name, partition_indexes=indexes) for name, indexes in grouped.items()]
    request = m.ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=topics)
    response: m.ListPartitionReassignmentsResponse = yield from until_settled(Call(CONTROLLER, request), _top_error)
    found = {
        TopicPartition(topic.name, p.partition_index): PartitionReassignment(
            tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
        )
        for topic in response.topics
        for p in topic.partitions
    }
    return dict(sorted(found.items()))


def elect_leaders(
    election_type: ElectionType, partitions: Iterable[TopicPartition] | None, *, timeout_ms: int
) -> Operation[Outcomes[TopicPartition, None]]:
    """ElectLeaders (KIP-183, KIP-460) of partitions, or of all that need it (None): those alone have an outcome then."""
    if election_type not in tuple(ElectionType):
        raise TypeError(f"election_type is ElectionType.PREFERRED or ElectionType.UNCLEAN, got {election_type!r}")
    election_type = ElectionType(election_type)
    versions = (0 if election_type is ElectionType.PREFERRED else 1, NEWEST)

    def request(wanted: Iterable[TopicPartition] | None) -> Message:
        topics = None
        if wanted is not None:
            named = m.ElectLeadersRequest.TopicPartitions
            topics = [named(topic=name, partitions=indexes) for name, indexes in _group_by_topic(wanted).items()]
        return m.ElectLeadersRequest(election_type=election_type, topic_partitions=topics, timeout_ms=timeout_ms)

    def send(left: list[TopicPartition]) -> Operation[Answers[TopicPartition, None]]:
        response: m.ElectLeadersResponse = yield Call(CONTROLLER, request(left), versions)
        if response.error_code:
            return dict.fromkeys(left, _error(response.error_code, None))
        return _elected(response)

    if partitions is not None:
        outcomes = yield from per_item([partition_of(tp) for tp in partitions], send)
        return outcomes
    response = yield from until_settled(
        Call(CONTROLLER, request(None), versions),
        lambda answer: _error(answer.error_code, None) if answer.error_code else None,
    )
    return Outcomes({tp: Outcome(error=error) for tp, error in sorted(_elected(response).items())})


def _elected(response: m.ElectLeadersResponse) -> dict[TopicPartition, FastqError | None]:
    return {
        TopicPartition(result.topic, p.partition_id): _error(
            p.error_code, p.error_message, topic=result.topic, partition=p.partition_id
        )
        if p.error_code
        else None
        for result in response.replica_election_results
        for p in result.partition_result
    }


def alter_replica_log_dirs(
    moves: Mapping[TopicPartitionReplica, str],
) -> Operation[Outcomes[TopicPartitionReplica, None]]:
    """AlterReplicaLogDirs (KIP-113): a replica's log to another directory of its broker; answered when the copying has begun."""
    given = mapping_of(moves, "moves", '{TopicPartitionReplica("logs", 0, 1): "/disk2"}')
    wanted = {TopicPartitionReplica(*replica): path for replica, path in given.items()}

    def send(left: list[TopicPartitionReplica]) -> Operation[Answers[TopicPartitionReplica, None]]:
        by_broker: dict[int, list[TopicPartitionReplica]] = {}
        for replica in left:
            by_broker.setdefault(replica.broker_id, []).append(replica)
        calls = [Call(Broker(node_id), _log_dirs_request(wanted, replicas)) for node_id, replicas in by_broker.items()]
        responses = yield calls
        answers: dict[TopicPartitionReplica, FastqError | None] = {}
        for (node_id, replicas), response in zip(by_broker.items(), responses, strict=True):
            moved = response if isinstance(response, FastqError) else _moved_logs(response, node_id, wanted)
            answers.update(asked_for(replicas, moved))
        return answers

    return per_item(list(wanted), send)


def _log_dirs_request(
    wanted: Mapping[TopicPartitionReplica, str], replicas: Iterable[TopicPartitionReplica]
) -> m.AlterReplicaLogDirsRequest:
    by_path: dict[str, list[TopicPartition]] = {}
    for replica in replicas:
        by_path.setdefault(wanted[replica], []).append(TopicPartition(replica.topic, replica.partition))
    topic = m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic
    return m.AlterReplicaLogDirsRequest(
        dirs=[
            m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                path=path,
                topics=[topic(name=name, partitions=indexes) for name, indexes in _group_by_topic(partitions).items()],
            )
            for path, partitions in by_path.items()
        ]
    )


def _moved_logs(
    response: m.AlterReplicaLogDirsResponse, node_id: int, wanted: Mapping[TopicPartitionReplica, str]
) -> dict[TopicPartitionReplica, FastqError | None]:
    answers: dict[TopicPartitionReplica, FastqError | None] = {}
    for topic in response.results:
        for p in topic.partitions:
            replica = TopicPartitionReplica(topic.topic_name, p.partition_index, node_id)
            answers[replica] = (
                _error(
                    p.error_code,
                    None,
                    topic=topic.topic_name,
                    partition=p.partition_index,
                    broker=f"node {node_id}",
                    path=wanted.get(replica),
                )
                if p.error_code
                else None
            )
    return answers
