"""What the admin clients do, written once: each function is an operation of `fastq.net.operations`.

Rules of this file:
- One outcome for each item that was asked for, whatever the broker leaves out of its answer.
- An item whose error passes by itself (no leader, not the controller, quota) is tried again until the time is over, the
  others are not sent twice.
- A request that changes something goes to the controller, one about a partition to its leader, any other to any broker.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fastq.admin.arguments import names_of
from fastq.admin.types import (
    ApiVersion,
    ClusterDescription,
    ConfigEntry,
    ConfigSource,
    CreatedTopic,
    LogDirDescription,
    NewPartitions,
    NewTopic,
    Outcome,
    Outcomes,
    PartitionDescription,
    ReplicaInfo,
    TopicDescription,
    TopicListing,
)
from fastq.arguments import int_of, items_of, mapping_of
from fastq.errors import (
    ConnectionFailed,
    ConnectionTimeout,
    ErrorCode,
    FastqError,
    KafkaError,
    UnknownServerError,
    UnknownTopicOrPartition,
    error_for_code,
)
from fastq.metadata import Node, TopicPartition, partition_of
from fastq.net.connection import SOFTWARE_NAME, SOFTWARE_VERSION
from fastq.net.diagnosis import leaderless
from fastq.net.operations import ANY, CONTROLLER, Broker, Call, Found, Operation, OutOfTime, Retry, Route
from fastq.net.requests import VersionedRequest
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey, api_name
from fastq.protocol.message import Message
from fastq.settings import INT32_MAX
from fastq.words import counted

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Answers = Mapping[K, "V | FastqError"]

RETRIED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Errors of an item that pass by themselves, and after which the item was certainly not done."""
LEADS = "which led what it was to be asked about"
LOOKS_AGAIN = 3
"""For a topic that is not known, before who leads it is asked: with the first back-offs of `retry_backoff_ms`, 0.7 s."""


def _error(code: int, message: str | None, **context: Any) -> KafkaError:
    return error_for_code(code, message or None, **context)


def _unanswered(key: object) -> FastqError:
    return UnknownServerError(f"the broker's answer leaves out {key}")


def broker_of(node_id: int) -> Broker:
    """The route to a broker that the application names. Ids below 0 are of bootstrap servers, whichever brokers those are."""
    return Broker(int_of(node_id, "the id of a broker", 0, INT32_MAX))


def per_item(
    keys: Sequence[K],
    send: Callable[[list[K]], Operation[Answers[K, V]]],
    *,
    finds: bool = False,
) -> Operation[Outcomes[K, V]]:
    """Ask for `keys`, and again for those whose error passes, until all are settled or the time is over. `finds`: `send` looks each time
    for who is to be asked, so another may have taken the place of one that cannot be reached; what it asks may be done twice. What fails
    `send` as a whole fails this, but where some are settled: those are told, and of the others what it was."""
    left = list(dict.fromkeys(keys))
    settled: dict[K, V | FastqError] = dict.fromkeys(left, UnknownServerError("it was not asked about"))
    before: dict[K, V | FastqError] = {}
    while left:
        try:
            answers = yield from send(left)
        except OutOfTime:
            if not before:
                raise
            break  # the others are settled, and of these the last error is known
        except FastqError as error:
            if len(left) == len(settled):
                raise
            settled.update(dict.fromkeys(left, error))
            break
        settled.update((key, answers.get(key, _unanswered(key))) for key in left)
        left = [key for key in left if _passes(settled[key], finds=finds)]
        if left:
            first = settled[left[0]]
            assert isinstance(first, FastqError)
            again = yield Retry(first)
            if not again:
                # What was sent in the last moment had no time to be answered: what came before says more.
                late = [key for key in left if isinstance(settled[key], ConnectionTimeout)]
                settled.update((key, before[key]) for key in late if key in before)
                break
            before = {key: settled[key] for key in left}
    return Outcomes(
        {key: Outcome(error=of) if isinstance(of, FastqError) else Outcome(of) for key, of in settled.items()}
    )


def or_error_of_each(keys: Iterable[K], operation: Operation[Outcomes[K, V]]) -> Operation[Outcomes[K, V]]:
    """The outcomes of an operation about `keys`, of which an error of all of them is each one's: for who has others to tell of."""
    failed: FastqError
    try:
        return (yield from operation)
    except OutOfTime as late:
        failed = late.error
    except FastqError as error:
        failed = error
    return Outcomes({key: Outcome(error=failed) for key in keys})


def asked_for(keys: Iterable[K], answer: Answers[K, V] | FastqError) -> Answers[K, V]:
    """What one broker has told of the items that it was asked about; an error is that of all of them. Of others it says nothing: another
    broker was asked."""
    if isinstance(answer, FastqError):
        return dict.fromkeys(keys, answer)
    return {key: answer[key] for key in keys if key in answer}


def _passes(answer: object, *, finds: bool) -> bool:
    if isinstance(answer, KafkaError):
        return answer.code in RETRIED
    return finds and isinstance(answer, ConnectionFailed) and answer.retriable


def _one_call(
    route: Route, request: Callable[[list[K]], Message | VersionedRequest], read: Callable[[Any], Answers[K, V]]
) -> Callable[[list[K]], Operation[Answers[K, V]]]:
    def send(keys: list[K]) -> Operation[Answers[K, V]]:
        response = yield Call(route, request(keys))
        return read(response)

    return send


def _by_route(
    route_of: Callable[[K], Route],
    request: Callable[[list[K]], Message | VersionedRequest],
    read: Callable[[Any], Answers[K, V]],
    versions: tuple[int, int] | None = None,
) -> Callable[[list[K]], Operation[Answers[K, V]]]:
    """One request to each broker concerned, in parallel; a broker that cannot be asked fails its items only."""

    def send(keys: list[K]) -> Operation[Answers[K, V]]:
        groups: dict[Route, list[K]] = {}
        for key in keys:
            groups.setdefault(route_of(key), []).append(key)
        responses = yield [Call(route, request(group), versions) for route, group in groups.items()]
        answers: dict[K, V | FastqError] = {}
        for group, response in zip(groups.values(), responses, strict=True):
            answers.update(asked_for(group, response if isinstance(response, FastqError) else read(response)))
        return answers

    return send


# -- topics ------------------------------------------------------------------------------------------------------------------


def create_topics(
    topics: Sequence[NewTopic], *, validate_only: bool, timeout_ms: int
) -> Operation[Outcomes[str, CreatedTopic]]:
    """CreateTopics (KIP-4)."""
    by_name = {topic.name: topic for topic in items_of(topics, NewTopic, "topics", '[NewTopic(name="logs")]')}

    def request(names: list[str]) -> m.CreateTopicsRequest:
        return m.CreateTopicsRequest(
            topics=[_creatable(by_name[name]) for name in names], timeout_ms=timeout_ms, validate_only=validate_only
        )

    def read(response: m.CreateTopicsResponse) -> Answers[str, CreatedTopic]:
        return {
            topic.name: _error(topic.error_code, topic.error_message, topic=topic.name)
            if topic.error_code
            else _created(topic)
            for topic in response.topics
        }

    return per_item(list(by_name), _one_call(CONTROLLER, request, read))


def _creatable(topic: NewTopic) -> m.CreateTopicsRequest.CreatableTopic:
    assignments = topic.replica_assignments
    if assignments is not None and (topic.partitions != -1 or topic.replication_factor != -1):
        raise ValueError(
            f"topic {topic.name}: replica_assignments says how many partitions and replicas there are; "
            "leave partitions and replication_factor out"
        )
    return m.CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            m.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in (assignments or {}).items()
        ],
        configs=[
            m.CreateTopicsRequest.CreatableTopicConfig(name=name, value=None if value is None else str(value))
            for name, value in topic.configs.items()
        ],
    )


def _created(topic: m.CreateTopicsResponse.CreatableTopicResult) -> CreatedTopic:
    configs = None
    if topic.configs is not None and topic.num_partitions >= 0:
        configs = {
            c.name: ConfigEntry(c.name, c.value, ConfigSource(c.config_source), c.is_sensitive, c.read_only)
            for c in topic.configs
        }
    return CreatedTopic(
        topic.name,
        topic.topic_id,
        topic.num_partitions if topic.num_partitions >= 0 else None,
        topic.replication_factor if topic.replication_factor >= 0 else None,
        configs,
    )


def delete_topics(names: Sequence[str], *, timeout_ms: int) -> Operation[Outcomes[str, None]]:
    """DeleteTopics, by name."""

    def request(left: list[str]) -> VersionedRequest:
        def build(version: int) -> m.DeleteTopicsRequest:
            if version < 6:
                return m.DeleteTopicsRequest(topic_names=left, timeout_ms=timeout_ms)
            states = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in left]
            return m.DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms)

        return VersionedRequest(ApiKey.DELETE_TOPICS, build)

    def read(response: m.DeleteTopicsResponse) -> Answers[str, None]:
        return {
            r.name: _error(r.error_code, r.error_message, topic=r.name) if r.error_code else None
            for r in response.responses
            if r.name is not None
        }

    return per_item(names, _one_call(CONTROLLER, request, read))


def list_topics(*, include_internal: bool) -> Operation[dict[str, TopicListing]]:
    """Every topic that this client may see."""
    response: m.MetadataResponse = yield Call(ANY, _metadata_request(None))
    return {
        topic.name: TopicListing(topic.name, topic.topic_id, topic.is_internal)
        for topic in sorted(response.topics, key=lambda topic: topic.name or "")
        if topic.name is not None and (include_internal or not topic.is_internal)
    }


def _metadata_request(names: list[str] | None) -> VersionedRequest:
    def build(version: int) -> m.MetadataRequest:
        topics = None if names is None else [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        # "All topics" is an empty list in version 0; creation cannot be declined before version 4.
        return m.MetadataRequest(
            topics=[] if topics is None and version == 0 else topics, allow_auto_topic_creation=version < 4
        )

    return VersionedRequest(ApiKey.METADATA, build)


def look_up_topics(names: Sequence[str]) -> Operation[Outcomes[str, TopicDescription]]:
    """Topics with their partitions by one Metadata request; an unknown one is an error of that item, and is not created."""
    return per_item(names, look_at_topics)


def look_at_topics(names: list[str]) -> Operation[Answers[str, TopicDescription]]:
    """The same for who asks again what passes: a topic whose error does so holds up no other."""

    def read(response: m.MetadataResponse) -> Answers[str, TopicDescription]:
        nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        return {
            topic.name: _error(topic.error_code, None, topic=topic.name)
            if topic.error_code
            else _described(topic, nodes)
            for topic in response.topics
            if topic.name is not None
        }

    return _one_call(ANY, lambda left: _metadata_request(list(left)), read)(names)


def _described(topic: m.MetadataResponse.MetadataResponseTopic, nodes: Mapping[int, Node]) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            p.partition_index,
            nodes.get(p.leader_id),
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.offline_replicas),
        )
        for p in sorted(topic.partitions, key=lambda p: p.partition_index)
    )
    return TopicDescription(topic.name or "", topic.topic_id, topic.is_internal, partitions)


def create_partitions(
    totals: Mapping[str, int | NewPartitions], *, validate_only: bool, timeout_ms: int
) -> Operation[Outcomes[str, None]]:
    """CreatePartitions (KIP-195): raise the number of partitions of topics."""
    given = mapping_of(totals, "totals", '{"logs": 6}')
    wanted = {
        name: total if isinstance(total, NewPartitions) else NewPartitions(total) for name, total in given.items()
    }

    def topic(name: str) -> m.CreatePartitionsRequest.CreatePartitionsTopic:
        assignments = wanted[name].assignments
        return m.CreatePartitionsRequest.CreatePartitionsTopic(
            name=name,
            count=wanted[name].total,
            assignments=None
            if assignments is None
            else [m.CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(ids)) for ids in assignments],
        )

    def request(left: list[str]) -> m.CreatePartitionsRequest:
        return m.CreatePartitionsRequest(
            topics=[topic(name) for name in left], timeout_ms=timeout_ms, validate_only=validate_only
        )

    def read(response: m.CreatePartitionsResponse) -> Answers[str, None]:
        return {
            r.name: _error(r.error_code, r.error_message, topic=r.name) if r.error_code else None
            for r in response.results
        }

    return per_item(list(wanted), _one_call(CONTROLLER, request, read))


# -- records and offsets -----------------------------------------------------------------------------------------------------


def _group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def look_for_leaders(names: list[str]) -> Operation[Answers[str, TopicDescription]]:
    """`look_at_topics`, a little longer for those that are not known: who answers may not have heard yet of what was made a moment ago.
    Kafka's Admin looks until its time is over (PartitionLeaderStrategy), which a typing error is not worth."""
    described = dict((yield from look_at_topics(names)))
    for _ in range(LOOKS_AGAIN):
        unknown = {name: found for name, found in described.items() if isinstance(found, UnknownTopicOrPartition)}
        if not unknown or not (yield Retry(next(iter(unknown.values())))):
            break
        try:
            described.update((yield from look_at_topics(list(unknown))))
        except (FastqError, OutOfTime):
            break  # the others are asked about all the same
    return described


def _per_leader(
    request: Callable[[list[TopicPartition]], Message | VersionedRequest],
    read: Callable[[Any], Answers[TopicPartition, V]],
    versions: tuple[int, int] | None = None,
) -> Callable[[list[TopicPartition]], Operation[Answers[TopicPartition, V]]]:
    """One request to each leader, after a look at the topics so that an unknown one fails soon."""

    def send(left: list[TopicPartition]) -> Operation[Answers[TopicPartition, V]]:
        described = yield from look_for_leaders(list(_group_by_topic(left)))
        answers: dict[TopicPartition, V | FastqError] = {}
        askable: dict[TopicPartition, Route] = {}
        for tp in left:
            found = _leader_of(tp, described)
            if isinstance(found, FastqError):
                answers[tp] = found
            else:
                askable[tp] = Found(found.node_id, LEADS)
        asked = yield from _by_route(askable.__getitem__, request, read, versions)(list(askable))
        answers.update(of_leaders(asked))
        return answers

    return send


def of_leaders(answers: Answers[TopicPartition, V]) -> Answers[TopicPartition, V]:
    """What leaders have told of partitions that were there by the metadata a moment ago: one that its leader does not know it has not heard
    of yet, or is no more, which the next look tells."""
    return {
        tp: _error(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "its leader, as the metadata has it, does not know it", **tp._asdict()
        )
        if isinstance(answer, UnknownTopicOrPartition)
        else answer
        for tp, answer in answers.items()
    }


def _leader_of(tp: TopicPartition, described: Answers[str, TopicDescription]) -> Node | FastqError:
    topic = described.get(tp.topic, _unanswered(tp.topic))
    if isinstance(topic, FastqError):
        return topic
    partitions = topic.partitions
    found = partitions[tp.partition] if 0 <= tp.partition < len(partitions) else None
    if found is None or found.index != tp.partition:  # an answer may leave one out
        found = next((part for part in partitions if part.index == tp.partition), None)
    if found is None and partitions and 0 <= tp.partition < partitions[-1].index:
        return _unanswered(tp)
    if found is None:
        return _error(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"the topic has {counted(len(partitions), 'partition')}",
            topic=tp.topic,
            partition=tp.partition,
        )
    return found.leader or leaderless(*tp, found.replicas, found.offline_replicas)


def delete_records(
    offsets: Mapping[TopicPartition, int], *, timeout_ms: int
) -> Operation[Outcomes[TopicPartition, int]]:
    """DeleteRecords (KIP-107): everything before an offset; -1 is the high watermark. Gives the new first offsets."""
    offsets = {
        partition_of(tp): int_of(offset, f"{tp[0]}-{tp[1]}: an offset", -1)
        for tp, offset in mapping_of(offsets, "offsets", '{TopicPartition("logs", 0): 100}').items()
    }

    def request(left: list[TopicPartition]) -> m.DeleteRecordsRequest:
        return m.DeleteRecordsRequest(
            topics=[
                m.DeleteRecordsRequest.DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        m.DeleteRecordsRequest.DeleteRecordsPartition(
                            partition_index=index, offset=offsets[TopicPartition(topic, index)]
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in _group_by_topic(left).items()
            ],
            timeout_ms=timeout_ms,
        )

    def read(response: m.DeleteRecordsResponse) -> Answers[TopicPartition, int]:
        return {
            TopicPartition(topic.name, p.partition_index): _error(
                p.error_code, None, topic=topic.name, partition=p.partition_index
            )
            if p.error_code
            else p.low_watermark
            for topic in response.topics
            for p in topic.partitions
        }

    return per_item(list(offsets), _per_leader(request, read), finds=True)


# -- cluster -----------------------------------------------------------------------------------------------------------------


def describe_cluster() -> Operation[ClusterDescription]:
    """The brokers and the controller."""
    response: m.MetadataResponse = yield Call(ANY, _cluster_request())
    nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
    return ClusterDescription(
        response.cluster_id, nodes.get(response.controller_id), tuple(nodes[node_id] for node_id in sorted(nodes))
    )


def _cluster_request() -> VersionedRequest:
    # Metadata without topics says what DescribeCluster says, and every broker has it.
    def build(version: int) -> m.MetadataRequest:
        return m.MetadataRequest(topics=[], allow_auto_topic_creation=version < 4)

    return VersionedRequest(ApiKey.METADATA, build)


def describe_log_dirs(
    broker_ids: Iterable[int] | None, topics: Iterable[str] | None
) -> Operation[Outcomes[int, tuple[LogDirDescription, ...]]]:
    """DescribeLogDirs (KIP-113) of brokers (None: all), for some topics (None: all)."""
    if isinstance(broker_ids, (int, str)):
        raise TypeError(f"broker_ids is a list of ids, got {broker_ids!r}: write [{broker_ids}]")
    cluster = yield from describe_cluster()
    ids = [node.node_id for node in cluster.nodes] if broker_ids is None else list(dict.fromkeys(broker_ids))
    wanted = None if topics is None else (yield from _all_partitions(names_of(topics)))
    responses = yield [Call(broker_of(node_id), m.DescribeLogDirsRequest(topics=wanted)) for node_id in ids]
    outcomes: dict[int, Outcome[tuple[LogDirDescription, ...]]] = {}
    for node_id, response in zip(ids, responses, strict=True):
        if isinstance(response, FastqError):
            outcomes[node_id] = Outcome(error=response)
        elif response.error_code:
            outcomes[node_id] = Outcome(error=_error(response.error_code, None, broker=f"node {node_id}"))
        else:
            outcomes[node_id] = Outcome(tuple(_log_dir(result) for result in response.results))
    return Outcomes(outcomes)


def _all_partitions(topics: list[str]) -> Operation[list[m.DescribeLogDirsRequest.DescribableLogDirTopic]]:
    described = yield from look_up_topics(topics)
    return [
        m.DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=[p.index for p in topic.partitions])
        for name, topic in described.results().items()
    ]


def _log_dir(result: m.DescribeLogDirsResponse.DescribeLogDirsResult) -> LogDirDescription:
    replicas = tuple(
        ReplicaInfo(TopicPartition(topic.name, p.partition_index), p.partition_size, p.offset_lag, p.is_future_key)
        for topic in result.topics
        for p in topic.partitions
    )
    return LogDirDescription(
        result.log_dir,
        _error(result.error_code, None, path=result.log_dir) if result.error_code else None,
        replicas,
        result.total_bytes if result.total_bytes >= 0 else None,
        result.usable_bytes if result.usable_bytes >= 0 else None,
        result.is_cordoned,
    )


def api_versions(node_id: int | None) -> Operation[dict[str, ApiVersion]]:
    """What a broker supports (None: any one), by Kafka's name of the API."""
    response = yield from _api_versions_response(node_id)
    found = [ApiVersion(e.api_key, api_name(e.api_key), e.min_version, e.max_version) for e in response.api_keys]
    return {version.name: version for version in sorted(found, key=lambda version: version.api_key)}


def _api_versions_response(node_id: int | None) -> Operation[m.ApiVersionsResponse]:
    request = m.ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
    response: m.ApiVersionsResponse = yield Call(
        ANY if node_id is None else broker_of(node_id), _api_versions_request(request)
    )
    if response.error_code:
        raise _error(response.error_code, None, api="ApiVersions")
    return response


def _api_versions_request(request: m.ApiVersionsRequest) -> VersionedRequest:
    # Before version 3 the request is empty.
    return VersionedRequest(ApiKey.API_VERSIONS, lambda version: request if version >= 3 else m.ApiVersionsRequest())
