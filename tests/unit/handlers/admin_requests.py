"""Requests of the admin APIs, and what is in their answers."""

from __future__ import annotations

from typing import Any

from fastq.protocol import messages as m


def versions(handler: Any) -> range:
    return range(handler.VERSIONS[0], handler.VERSIONS[1] + 1)


def wanted(name: str, partitions: int = 2, replicas: int = 1, **configs: str) -> m.CreateTopicsRequest.CreatableTopic:
    return m.CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[],
        configs=[
            m.CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def describe(kind: int, name: str, keys: list[str] | None = None, **options: bool) -> m.DescribeConfigsRequest:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    return m.DescribeConfigsRequest(resources=[resource], **options)


def increment(kind: int, name: str, *changes: tuple[str, int, str | None], validate: bool = False) -> Any:
    config = m.IncrementalAlterConfigsRequest.AlterableConfig
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[config(name=key, config_operation=operation, value=value) for key, operation, value in changes],
    )
    return m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate)


def errors_of(response: Any) -> list[int]:
    return [item.error_code for item in response.responses]
