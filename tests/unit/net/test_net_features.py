"""What the cluster has finalized, as its brokers say when a connection is made (KIP-584)."""

from __future__ import annotations

from typing import Any

import pytest
from net_fakes import FakeBroker

from fastq.config import ClientConfig
from fastq.net.blocking import BlockingDriver
from fastq.net.core import ClientCore
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import ApiVersionsResponse


@pytest.mark.parametrize(
    ("answers", "known"),
    [
        ([(3, {"transaction.version": 2}), (4, {"transaction.version": 1, "group.version": 1})], [2, 1]),
        ([(5, {"transaction.version": 2}), (4, {"transaction.version": 1})], [2, 2]),  # a broker that lags behind
        ([(-1, {}), (0, {"transaction.version": 2})], [None, 2]),  # one that says nothing: older than the feature
    ],
)
def test_the_newest_answer_counts(
    broker: FakeBroker, answers: list[tuple[int, dict[str, int]]], known: list[int | None]
) -> None:
    turn = 0

    def api_versions(request: Any, version: int) -> ApiVersionsResponse:
        epoch, levels = answers[turn]
        features = [
            ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in levels.items()
        ]
        return ApiVersionsResponse(
            api_keys=broker.versions, finalized_features=features, finalized_features_epoch=epoch
        )

    broker.handlers[ApiKey.API_VERSIONS] = api_versions
    core = ClientCore(ClientConfig(bootstrap_servers=broker.address, reconnect_backoff_ms=1, retry_backoff_ms=1))
    driver = BlockingDriver(core)
    updater = core.metadata_updater
    for turn, level in enumerate(known):  # noqa: B007  # the broker reads it
        answered = updater.successes
        core.request_metadata_update("the test asks")
        assert driver.wait_until(lambda answered=answered: updater.successes > answered, 10)
        assert core.features.get("transaction.version") == level
        broker.drop_connections()
    driver.close()
