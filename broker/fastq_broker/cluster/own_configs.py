"""What of a client's AlterConfigs the node that got it judges itself, and does not forward.

Rules: loggers are this process's alone. Which log directories a broker has, by their paths, the active controller does not know: so
cordoned.log.dirs of this broker is checked here, and another broker's is refused (it is to be asked itself). Source: ConfigAdminManager.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from fastq.errors import ErrorCode
from fastq.protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from fastq.values import NamedTuple
from fastq_broker.config import CORDONED_LOG_DIRS
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller.config_changes import change_of, plan_changes
from fastq_broker.controller.topics import Refused, Result

if TYPE_CHECKING:
    from fastq.protocol.message import Message
    from fastq_broker.cluster.forwarding import ClientRequest, Forwarder
    from fastq_broker.controller import MetadataImage
    from fastq_broker.topic_config import BrokerLayers

_RESPONSES: dict[int, Callable[[], Any]] = {
    AlterConfigsRequest.API_KEY: AlterConfigsResponse,
    IncrementalAlterConfigsRequest.API_KEY: IncrementalAlterConfigsResponse,
}
ALTERS_CONFIGS = frozenset(_RESPONSES)
"""The APIs that this is about."""


def is_logger(item: Any) -> bool:
    """Whether a resource of AlterConfigs is this process's alone."""
    return bool(item.resource_type == ResourceType.BROKER_LOGGER)


class Parts(NamedTuple):
    """The resources of a request: loggers, an `answer` with what is refused here, and the `rest`, which is the active controller's."""

    loggers: list[Any]
    answer: Any
    rest: list[Any]


def split(request: Any, image: MetadataImage, layers: BrokerLayers) -> Parts:
    """Who is to see to what of a request."""
    loggers = [item for item in request.resources if is_logger(item)]
    answer = _RESPONSES[request.API_KEY]()
    rest = []
    for item in request.resources:
        if is_logger(item):
            continue
        result = _judged(item, image, layers)
        if result.error == ErrorCode.NONE:
            rest.append(item)
        else:
            answer.responses.append(
                type(answer).AlterConfigsResourceResponse(
                    error_code=result.error,
                    error_message=result.message,
                    resource_type=item.resource_type,
                    resource_name=item.resource_name,
                )
            )
    return Parts(loggers, answer, rest)


async def answered(
    client: ClientRequest, request: Any, parts: Parts, alter: Callable[[Any], Any], forwarder: Forwarder
) -> Message | None:
    """The answer to a request of which not all is the active controller's; None where that does not know its version. Loggers are altered
    first. Source: ConfigAdminManager.preprocess."""
    kind, check, answer = type(request), request.validate_only, parts.answer
    if parts.loggers:
        done = alter(kind(resources=parts.loggers, validate_only=check))
        response: Any = await done if inspect.isawaitable(done) else done
        answer.responses = [*response.responses, *answer.responses]
    if parts.rest:
        body = kind(resources=parts.rest, validate_only=check).to_bytes(client.api_version)
        others: Any = await forwarder.forward(client._replace(body=body))
        if others is None:
            return None
        answer.responses += others.responses
    return cast("Message", answer)


def _judged(item: Any, image: MetadataImage, layers: BrokerLayers) -> Result:
    """What the controller could not tell of a resource; all is well where it can."""
    names = {config.name for config in item.configs}
    if item.resource_type != ResourceType.BROKER or not item.resource_name or CORDONED_LOG_DIRS not in names:
        return Result()
    own = str(layers.config.node_id)
    if item.resource_name != own:
        refused = Refused(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {own}, but received {item.resource_name}: {CORDONED_LOG_DIRS} is altered at its broker",
        )
        return Result(refused.error, refused.message)
    (result,), _ = plan_changes(image, [change_of(item)], layers)
    return result
