"""DeleteTopics: deletes topics by name, or (version 6) by name or id; answered once that is on disk.

Source: ControllerApis.deleteTopics.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import DeleteTopicsRequest, DeleteTopicsResponse
from fastq.protocol.uuid import ZERO_UUID
from fastq.values import NamedTuple
from fastq_broker.config_keys import shown
from fastq_broker.controller.image import MetadataImage
from fastq_broker.controller.topics import Refused

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 20
VERSIONS = (1, 6)

FIRST_VERSION_WITH_DISABLED_ERROR = 3
FIRST_VERSION_WITH_IDS = 6


class _Named(NamedTuple):
    """A topic as the request names it: by name or by id."""

    name: str | None
    topic_id: bytes


async def handle(context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """One result a topic, in the order asked for."""
    wanted = Counter(_wanted(context.api_version, request))
    found: list[tuple[_Named, bytes]] = []
    responses = []
    for item in wanted:
        try:
            _check_enabled(context.config.delete_topic_enable, context.api_version)
            found.append((item, _resolve(context.image, item, wanted)))
        except Refused as refused:
            responses.append(_response(item, refused.error, refused.message))
    controller = context.controller
    results = await controller.durable(controller.delete_topics([topic_id for _, topic_id in found]))
    for (item, topic_id), result in zip(found, results, strict=True):
        responses.append(_response(item._replace(topic_id=topic_id), result.error, result.message))
    return DeleteTopicsResponse(responses=responses)


def _wanted(version: int, request: DeleteTopicsRequest) -> list[_Named]:
    if version < FIRST_VERSION_WITH_IDS:
        return [_Named(name, ZERO_UUID) for name in request.topic_names]
    return [_Named(topic.name, topic.topic_id) for topic in request.topics]


def _check_enabled(enabled: bool, version: int) -> None:
    if not enabled:
        old = version < FIRST_VERSION_WITH_DISABLED_ERROR
        code = ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED
        raise Refused(code, "Topic deletion is disabled: set delete.topic.enable")


def _resolve(image: MetadataImage, item: _Named, wanted: Counter[_Named]) -> bytes:
    """The id of the topic that is meant."""
    if item.name is None and item.topic_id == ZERO_UUID:
        raise Refused(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if item.name is not None and item.topic_id != ZERO_UUID:
        raise Refused(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if wanted[item] > 1:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Duplicate topic {'id' if item.name is None else 'name'}.")
    if item.name is None:
        topic = image.topic_of_id(item.topic_id)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID.meaning)
        if _Named(topic.name, ZERO_UUID) in wanted:
            raise Refused(ErrorCode.INVALID_REQUEST, "The same topic was specified by name and by id.")
        return topic.topic_id
    topic = image.topic(item.name)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise Refused(code, f"The topic {shown(item.name)} does not exist.")
    if _Named(None, topic.topic_id) in wanted:
        raise Refused(ErrorCode.INVALID_REQUEST, "The same topic was specified by name and by id.")
    return topic.topic_id


def _response(item: _Named, error: ErrorCode, message: str | None) -> DeleteTopicsResponse.DeletableTopicResult:
    return DeleteTopicsResponse.DeletableTopicResult(
        name=item.name, topic_id=item.topic_id, error_code=error, error_message=message
    )
