"""cordoned.log.dirs as the node judges it that a client asks, and as the active controller does, which knows no other node's paths."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.cluster import own_configs
from fastq_broker.cluster.node import ClusterNode
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.config_changes import ConfigChange, ConfigOperation, ResourceChange, plan_changes
from fastq_broker.controller.image import MetadataDelta, MetadataImage, Record
from fastq_broker.topic_config import BrokerLayers

from fastq.errors import ErrorCode
from fastq.protocol.messages import (
    AlterConfigsRequest,
    ConfigRecord,
    FeatureLevelRecord,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    RegisterBrokerRecord,
)

NAME = "cordoned.log.dirs"


def image(*, level: int = 30, value: str | None = None) -> MetadataImage:
    records: list[Record] = [FeatureLevelRecord(name="metadata.version", feature_level=level)]
    records += [RegisterBrokerRecord(broker_id=node_id, incarnation_id=bytes(16)) for node_id in (1, 2, 3)]
    if value is not None:
        records.append(ConfigRecord(resource_type=4, resource_name="2", name=NAME, value=value))
    delta = MetadataDelta(MetadataImage())
    for record in records:
        delta.replay(record)
    return delta.apply(len(records), 1, 0)


def layers(node_id: int = 2) -> BrokerLayers:
    return BrokerLayers(BrokerConfig.from_mapping({"node.id": node_id, "log.dirs": "/a,/b"}))


def asking(name: str, value: str, kind: Any = IncrementalAlterConfigsRequest, key: str = NAME) -> Any:
    config = kind.AlterableConfig(name=key, value=value)
    return kind.AlterConfigsResource(resource_type=4, resource_name=name, configs=[config])


@pytest.mark.parametrize("kind", [AlterConfigsRequest, IncrementalAlterConfigsRequest])
def test_a_node_judges_its_own_and_refuses_the_others(kind: Any) -> None:
    good = [asking("2", "/b", kind), asking("3", "7", kind, "log.retention.ms"), asking("", "/c", kind)]
    bad = [asking("2", "/c", kind), asking("3", "/b", kind), asking("2", "*,/a", kind)]
    logger = kind.AlterConfigsResource(resource_type=8, resource_name="2", configs=[])
    request = kind(resources=[*good, logger, *bad], validate_only=False)
    loggers, answer, rest = own_configs.split(request, image(), layers())
    assert (loggers, rest) == ([logger], good)
    assert {item.error_code for item in answer.responses} == {ErrorCode.INVALID_REQUEST}
    assert [(item.resource_type, item.resource_name) for item in answer.responses] == [(4, "2"), (4, "3"), (4, "2")]
    unknown, other, mixed = (item.error_message for item in answer.responses)
    assert "/c is none of log.dirs, /a, /b" in unknown and "stands alone" in mixed
    assert other.startswith("Unexpected broker id, expected 2, but received 3")


def test_what_is_refused_here_does_not_keep_the_rest_from_the_controller() -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[asking("2", "/c"), asking("3", "1", key="log.retention.ms")], validate_only=True
    )
    sent: list[Any] = []

    async def forward(wrapped: Any) -> Any:
        sent.append(wrapped)
        kind = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
        return IncrementalAlterConfigsResponse(responses=[kind(resource_type=4, resource_name="3")])

    def never(*_: Any) -> Any:
        raise AssertionError("it is about no logger")

    node = object.__new__(ClusterNode)
    node.forwarder = SimpleNamespace(forward=forward)  # type: ignore[assignment]
    node._ports = SimpleNamespace(image=image(), controller=SimpleNamespace(layers=layers()))  # type: ignore[assignment]

    async def ask(asked: Any) -> Any:
        body = bytearray(asked.to_bytes(1))
        header = (asked.API_KEY, 1, 7, b"c", 0, len(body))
        return await node.forward(SimpleNamespace(peer=("127.0.0.1", 1)), header, body, asked, never)  # type: ignore[arg-type]

    response = asyncio.run(ask(request))
    assert [(item.resource_name, item.error_code) for item in response.responses] == [("2", 42), ("3", 0)]
    assert len(sent) == 1
    request.resources = request.resources[:1]
    response = asyncio.run(ask(request))
    assert [item.error_code for item in response.responses] == [42] and len(sent) == 1, "nothing is left to ask"


def plan(found: MetadataImage, value: str | None, *, forwarded: bool) -> int:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    change = ResourceChange(4, "2", [ConfigChange(NAME, operation, value)])
    (result,), _ = plan_changes(found, [change], layers(1), forwarded=forwarded)
    return int(result.error)


def test_the_controller_takes_more_only_from_who_knows_the_directories() -> None:
    found = image(value="/x, /y")
    for less in ("/y", "/y,/x", "", None):
        assert plan(found, less, forwarded=False) == ErrorCode.NONE
    assert plan(found, "/x,/z", forwarded=False) == ErrorCode.INVALID_CONFIG
    assert plan(image(), "*", forwarded=False) == ErrorCode.INVALID_CONFIG
    assert plan(found, "/x,/z", forwarded=True) == ErrorCode.NONE


def test_metadata_that_has_no_word_for_it_takes_none() -> None:
    assert plan(image(level=29), "/x", forwarded=True) == ErrorCode.INVALID_CONFIG
