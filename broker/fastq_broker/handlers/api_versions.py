"""ApiVersions: what the broker serves, and the cluster's features.

Rules: every API of the router's table is listed with its handler's versions. Produce is listed from version 0, though 0 to
2 are refused, because librdkafka takes a broker without them for one that is too old (KAFKA-18659).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fastq.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from fastq_broker.controller import features

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 18
VERSIONS = (0, 4)

PRODUCE = 0
FIRST_VERSION_WITH_SOFTWARE = 3
FIRST_VERSION_WITH_LEVEL_0 = 4
INVALID_REQUEST = 42

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Answer the table of APIs, and note the client's software."""
    if context.api_version >= FIRST_VERSION_WITH_SOFTWARE:
        software = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE_NAME.fullmatch(part) for part in software):
            return ApiVersionsResponse(error_code=INVALID_REQUEST)
        context.connection.software = software
    broker = context.broker
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=0 if key == PRODUCE else versions[0], max_version=versions[1]
            )
            for key, versions in broker.router.versions().items()
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in _supported(context.api_version).items()
        ],
        finalized_features_epoch=broker.controller.image.offset,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in broker.controller.finalized_features.items()
        ],
    )


def _supported(api_version: int) -> dict[str, tuple[int, int]]:
    """Supported feature levels. Clients before version 4 stumble over a range that begins at 0 (KAFKA-17011)."""
    ranges = features.SUPPORTED.items()
    return {name: bounds for name, bounds in ranges if api_version >= FIRST_VERSION_WITH_LEVEL_0 or bounds[0] > 0}
