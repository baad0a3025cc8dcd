"""CreateTopics: creates topics, or says whether they could be created; answered once they are on disk.

Source: ControllerApis.createTopics, ReplicationControlManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from fastq_broker import topic_config
from fastq_broker.controller.topics import CreatedTopic, NewTopic

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 19
VERSIONS = (2, 7)


async def handle(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """One result a topic, in the order asked for."""
    controller = context.controller
    results = controller.create_topics(
        [_wanted(topic) for topic in request.topics], validate_only=request.validate_only
    )
    if not request.validate_only:
        results = await controller.durable(results)
    layers = controller.layers
    seen: set[str] = set()
    topics = []
    for result in results:
        # A topic that is named twice is answered once.
        if result.name not in seen:
            seen.add(result.name)
            topics.append(_response(result, layers))
    return CreateTopicsResponse(topics=topics)


def _wanted(topic: CreateTopicsRequest.CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(item.partition_index, item.broker_ids) for item in topic.assignments],
        [(item.name, item.value) for item in topic.configs],
    )


def _response(result: CreatedTopic, layers: topic_config.BrokerLayers) -> CreateTopicsResponse.CreatableTopicResult:
    response = CreateTopicsResponse.CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_code=result.error,
        error_message=result.message,
        num_partitions=result.num_partitions,
        replication_factor=result.replication_factor,
    )
    if not result.error:
        response.configs = [
            CreateTopicsResponse.CreatableTopicConfigs(
                name=entry.key.name, value=entry.value, config_source=entry.source, is_sensitive=entry.key.sensitive
            )
            for entry in topic_config.describe(result.configs, layers)
        ]
    return response
