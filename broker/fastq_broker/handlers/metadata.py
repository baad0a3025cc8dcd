"""Metadata: who the brokers are, and where the partitions of topics are; may create the topics it is asked for.

Rules
- Topics are named, or (version 12 and later) given by id; null, or the empty list in version 0, means all of them. Versions 10 and 11 have
  the ids, but may not use them: INVALID_REQUEST for the whole request.
- A topic that is not there is created when the request and auto.create.topics.enable both allow it, never for "all".
- Addresses are those of the listener on which the request came in.
Source: KafkaApis.handleTopicMetadataRequest, KRaftMetadataCache.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import MetadataRequest, MetadataResponse
from fastq.protocol.uuid import ZERO_UUID
from fastq_broker.controller.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from fastq_broker.controller.storage import METADATA_TOPIC
from fastq_broker.controller.topics import INTERNAL_TOPICS, CreatedTopic, internal_topic, name_problem
from fastq_broker.handlers import operations

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 3
VERSIONS = (0, 13)

# Before this version a partition whose listener is not found was told to have no leader.
FIRST_VERSION_WITH_LISTENER_ERROR = 6
FIRST_VERSION_WITH_IDS = 12


def handle(context: RequestContext, request: MetadataRequest) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Answer at once, or, when topics are created on the way, once they are on disk."""
    if context.api_version < FIRST_VERSION_WITH_IDS and any(
        item.name is None or item.topic_id != ZERO_UUID for item in request.topics or ()
    ):
        return _refused(request)
    missing = _to_create(context, request)
    if not missing:
        return _answer(context, request, {})
    # In the same step as the look that found them missing: two clients that name a new topic at the same time must not both create it.
    wanted = [internal_topic(context.config, name, context.image) for name in missing]
    if context.cluster is not None:
        return _answer_once_known(context, request, context.cluster.topics.create(wanted))
    return _answer_once_durable(context, request, context.controller.create_topics(wanted))


async def _answer_once_known(
    context: RequestContext, request: MetadataRequest, created: Awaitable[dict[str, ErrorCode]]
) -> MetadataResponse:
    return _answer(context, request, {name: code for name, code in (await created).items() if code})


async def _answer_once_durable(
    context: RequestContext, request: MetadataRequest, created: list[CreatedTopic]
) -> MetadataResponse:
    results = await context.controller.durable(created)
    # Another request may have been the one that makes it.
    failed = {
        item.name: item.error for item in results if item.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    }
    return _answer(context, request, failed)


def _to_create(context: RequestContext, request: MetadataRequest) -> list[str]:
    """Names asked for that are not there, may be a topic's, and may be created."""
    if not request.topics or not request.allow_auto_topic_creation:
        return []
    if not context.config.auto_create_topics_enable:
        return []
    known = context.image.topics_by_name
    names = (item.name for item in request.topics if item.name is not None and item.topic_id == ZERO_UUID)
    new = dict.fromkeys(name for name in names if name not in known and name != METADATA_TOPIC)
    return [name for name in new if name_problem(name) is None]


def _answer(context: RequestContext, request: MetadataRequest, failed: Mapping[str, ErrorCode]) -> MetadataResponse:
    image = context.image
    response = MetadataResponse(
        brokers=_brokers(image, context.listener),
        cluster_id=image.cluster_id,
        controller_id=context.node_id,
        topics=_topics(context, request, image, failed),
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = operations.CLUSTER
    return response


def _brokers(image: MetadataImage, listener: str) -> list[MetadataResponse.MetadataResponseBroker]:
    found = ((broker, broker.endpoint(listener)) for broker in image.live_brokers())
    return [
        MetadataResponse.MetadataResponseBroker(
            node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
        )
        for broker, endpoint in found
        if endpoint is not None
    ]


def _topics(
    context: RequestContext, request: MetadataRequest, image: MetadataImage, failed: Mapping[str, ErrorCode]
) -> list[MetadataResponse.MetadataResponseTopic]:
    view = _View(image, context)
    asked = request.include_topic_authorized_operations
    if request.topics is None or (context.api_version == 0 and not request.topics):
        return [view.topic(topic, asked) for topic in image.topics_by_name.values()]
    found = []
    for item in request.topics:
        if item.name is None or item.topic_id != ZERO_UUID:
            topic = image.topic_of_id(item.topic_id)
            found.append(view.topic(topic, asked) if topic else _unknown_id(item.topic_id))
            continue
        topic = image.topic(item.name) if item.name not in failed else None
        found.append(view.topic(topic, asked) if topic else _unknown_name(item.name, failed))
    return found


def _refused(request: MetadataRequest) -> MetadataResponse:
    """Kafka's answer to ids where there are none yet; a response of such a version cannot do without a name."""
    return MetadataResponse(
        topics=[
            MetadataResponse.MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=item.name or "", topic_id=item.topic_id, partitions=[]
            )
            for item in request.topics or ()
        ]
    )


def _unknown_id(topic_id: bytes) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id, partitions=[]
    )


def _unknown_name(name: str, failed: Mapping[str, ErrorCode]) -> MetadataResponse.MetadataResponseTopic:
    error = failed.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if name_problem(name) is not None:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponse.MetadataResponseTopic(
        error_code=error, name=name, is_internal=name in INTERNAL_TOPICS, partitions=[]
    )


def offline_replicas(image: MetadataImage, partition: PartitionImage, listener: str) -> list[int]:
    """The replicas that a client of a listener is told are offline: their broker is fenced or has no such listener, or their directory has
    failed (KRaftMetadataCache.isReplicaOffline)."""

    def is_offline(broker: BrokerImage | None) -> bool:
        if broker is None or broker.fenced or broker.endpoint(listener) is None:
            return True
        return not broker.is_online(partition.directory_of(broker.broker_id))

    return [replica for replica in partition.replicas if is_offline(image.brokers.get(replica))]


class _View:
    """What one client sees of an image: leaders it can reach on its listener. Made for one request."""

    def __init__(self, image: MetadataImage, context: RequestContext) -> None:
        self.image, self.listener = image, context.listener
        self.live = {broker.broker_id for broker in image.live_brokers()}
        self.reachable = {broker.broker_id for broker in image.live_brokers() if broker.endpoint(context.listener)}
        old = context.api_version < FIRST_VERSION_WITH_LISTENER_ERROR
        self.no_listener = ErrorCode.LEADER_NOT_AVAILABLE if old else ErrorCode.LISTENER_NOT_FOUND

    def topic(self, topic: TopicImage, with_operations: bool) -> MetadataResponse.MetadataResponseTopic:
        partition = self.partition
        response = MetadataResponse.MetadataResponseTopic(
            error_code=0,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=[partition(number, item) for number, item in enumerate(topic.partitions)],
        )
        if with_operations:
            response.topic_authorized_operations = operations.TOPIC
        return response

    def partition(self, number: int, partition: PartitionImage) -> MetadataResponse.MetadataResponsePartition:
        error = ErrorCode.NONE
        leader = partition.leader
        if leader not in self.reachable:
            error = self.no_listener if leader in self.live else ErrorCode.LEADER_NOT_AVAILABLE
            leader = -1
        return MetadataResponse.MetadataResponsePartition(
            error_code=error,
            partition_index=number,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            offline_replicas=offline_replicas(self.image, partition, self.listener),
        )
