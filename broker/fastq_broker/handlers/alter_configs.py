"""AlterConfigs: replaces all overrides of a resource; what is not named goes back to its default.

Deprecated in Kafka for IncrementalAlterConfigs, and still spoken by older clients. Answered once it is on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import AlterConfigsRequest, AlterConfigsResponse
from fastq_broker.controller.config_changes import change_of

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 33
VERSIONS = (0, 2)


async def handle(context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """One result a resource, in the order asked for."""
    controller = context.controller
    changes = [change_of(resource) for resource in request.resources]
    results = controller.alter_configs(changes, validate_only=request.validate_only, forwarded=context.forwarded)
    if not request.validate_only:
        results = await controller.durable(results)
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=result.error,
                error_message=result.message,
                resource_type=change.resource_type,
                resource_name=change.name,
            )
            for change, result in zip(changes, results, strict=True)
        ]
    )
