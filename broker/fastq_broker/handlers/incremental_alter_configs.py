"""IncrementalAlterConfigs: sets, deletes, appends to and subtracts from single keys (KIP-339).

Levels of this process's loggers are set at once and not written anywhere; the rest is answered once it is on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller.config_changes import ResourceChange, change_of
from fastq_broker.controller.topics import Result
from fastq_broker.handlers import loggers

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 44
VERSIONS = (0, 1)


async def handle(context: RequestContext, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    """One result a resource, in the order asked for."""
    controller = context.controller
    changes = [change_of(resource) for resource in request.resources]
    stored = [change for change in changes if change.resource_type != ResourceType.BROKER_LOGGER]
    answers = controller.alter_configs(stored, validate_only=request.validate_only, forwarded=context.forwarded)
    if not request.validate_only:
        answers = await controller.durable(answers)
    results = iter(answers)
    responses = []
    for change in changes:
        if change.resource_type == ResourceType.BROKER_LOGGER:
            result = loggers.alter(controller.node_id, change, request.validate_only)
        else:
            result = next(results)
        responses.append(_response(change, result))
    return IncrementalAlterConfigsResponse(responses=responses)


def _response(change: ResourceChange, result: Result) -> IncrementalAlterConfigsResponse.AlterConfigsResourceResponse:
    return IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=result.error,
        error_message=result.message,
        resource_type=change.resource_type,
        resource_name=change.name,
    )
