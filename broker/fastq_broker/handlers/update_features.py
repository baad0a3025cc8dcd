"""UpdateFeatures: finalizes other levels of features, all that are asked for or none; answered once that is on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import UpdateFeaturesRequest, UpdateFeaturesResponse
from fastq_broker.controller.feature_changes import SAFE_DOWNGRADE, UPGRADE, FeatureUpdate
from fastq_broker.controller.topics import Refused

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 57
VERSIONS = (0, 2)

FIRST_VERSION_WITH_UPGRADE_TYPE = 1
FIRST_VERSION_WITHOUT_RESULTS = 2


async def handle(context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """One error for all; below version 2 a result for each feature of a request that succeeds."""
    controller = context.controller
    updates = [
        FeatureUpdate(item.feature, item.max_version_level, _upgrade_type(context.api_version, item))
        for item in request.feature_updates
    ]
    try:
        controller.update_features(updates, validate_only=request.validate_only)
    except Refused as refused:
        return UpdateFeaturesResponse(error_code=refused.error, error_message=refused.message, results=[])
    if not request.validate_only:
        await controller.flushed()
    told = updates if context.api_version < FIRST_VERSION_WITHOUT_RESULTS else []
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdateFeaturesResponse.UpdatableFeatureResult(feature=update.name, error_message="NONE") for update in told
        ],
    )


def _upgrade_type(version: int, item: UpdateFeaturesRequest.FeatureUpdateKey) -> int:
    if version >= FIRST_VERSION_WITH_UPGRADE_TYPE:
        return item.upgrade_type
    return SAFE_DOWNGRADE if item.allow_downgrade else UPGRADE
