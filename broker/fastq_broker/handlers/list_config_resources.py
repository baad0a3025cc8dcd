"""ListConfigResources: the resources that have, or may have, configuration (KIP-1142); version 0 asks for client metrics alone.

Rules: groups and client metrics are those with settings of their own; topics and brokers are all there are. Source: KafkaApis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import ListConfigResourcesRequest, ListConfigResourcesResponse
from fastq_broker.config_keys import ResourceType

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 74
VERSIONS = (0, 1)

ALL = tuple(kind for kind in ResourceType if kind is not ResourceType.UNKNOWN)


def handle(context: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """The names of the resources of the types asked for; none named: of all types."""
    if context.api_version == 0:
        wanted: Iterable[int] = (ResourceType.CLIENT_METRICS,)
    else:
        wanted = sorted(set(request.resource_types)) or ALL
    if not set(wanted) <= set(ALL):
        return ListConfigResourcesResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
    return ListConfigResourcesResponse(
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for kind in wanted
            for name in _names(context, kind)
        ]
    )


def _names(context: RequestContext, kind: int) -> list[str]:
    image = context.image
    if kind == ResourceType.TOPIC:
        return sorted(image.topics_by_name)
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(node_id) for node_id in sorted(image.brokers)]
    return sorted(name for resource_type, name in image.configs if resource_type == kind)
