"""Settings of topics, brokers and other resources, read and changed: operations as those of `core`, whose rules they keep.

What belongs to one broker is asked of it; what else changes something goes to the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fastq.admin.arguments import by_resource
from fastq.admin.core import Answers, _by_route, _error, broker_of, per_item
from fastq.admin.types import (
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    Outcomes,
    ResourceType,
)
from fastq.arguments import int_of, items_of, mapping_of
from fastq.errors import FastqError
from fastq.net.operations import ANY, CONTROLLER, Call, Operation, Route
from fastq.net.requests import VersionedRequest
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey

BROKER_TYPES = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)


def _config_route(default: Route) -> Callable[[ConfigResource], Route]:
    """What belongs to one broker is asked of it; the default of all brokers is not any one's."""

    def route(resource: ConfigResource) -> Route:
        if resource.type in BROKER_TYPES and resource.name:
            if not (resource.name.isascii() and resource.name.isdigit()):
                raise ValueError(
                    f"settings of a broker have its id, as in ConfigResource.broker(1), got {resource.name!r}"
                )
            return broker_of(int(resource.name))
        return default

    return route


def _resource(resource_type: int, name: str) -> ConfigResource:
    return ConfigResource(ResourceType(resource_type), name)


def describe_configs(
    resources: Sequence[ConfigResource], *, include_synonyms: bool, include_documentation: bool
) -> Operation[Outcomes[ConfigResource, dict[str, ConfigEntry]]]:
    """DescribeConfigs (KIP-133, KIP-226)."""
    resources = items_of(resources, ConfigResource, "resources", '[ConfigResource.topic("logs")]')

    def request(left: list[ConfigResource]) -> VersionedRequest:
        def build(version: int) -> m.DescribeConfigsRequest:
            return m.DescribeConfigsRequest(
                resources=[
                    m.DescribeConfigsRequest.DescribeConfigsResource(
                        resource_type=resource.type, resource_name=resource.name, configuration_keys=None
                    )
                    for resource in left
                ],
                include_synonyms=include_synonyms,
                include_documentation=include_documentation and version >= 3,
            )

        return VersionedRequest(ApiKey.DESCRIBE_CONFIGS, build)

    def read(response: m.DescribeConfigsResponse) -> Answers[ConfigResource, dict[str, ConfigEntry]]:
        answers: dict[ConfigResource, dict[str, ConfigEntry] | FastqError] = {}
        for result in response.results:
            resource = _resource(result.resource_type, result.resource_name)
            if result.error_code:
                answers[resource] = _error(result.error_code, result.error_message, resource=str(resource))
            else:
                answers[resource] = {config.name: _entry(config) for config in result.configs}
        return answers

    return per_item(resources, _by_route(_config_route(ANY), request, read))


def _entry(config: m.DescribeConfigsResponse.DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        ConfigSource(config.config_source),
        config.is_sensitive,
        config.read_only,
        ConfigType(config.config_type),
        config.documentation or None,
        tuple(ConfigSynonym(s.name, s.value, ConfigSource(s.source)) for s in config.synonyms),
    )


def list_config_resources(types: Sequence[ResourceType]) -> Operation[list[ConfigResource]]:
    """ListConfigResources (KIP-1142); version 0 knows client metrics alone."""
    request = m.ListConfigResourcesRequest(
        resource_types=sorted({int_of(kind, "the type of a resource", 0, 127) for kind in types})
    )
    response: m.ListConfigResourcesResponse = yield Call(ANY, request, versions=(1, 1))
    if response.error_code:
        raise _error(response.error_code, None)
    return [_resource(item.resource_type, item.resource_name) for item in response.config_resources]


def incremental_alter_configs(
    changes: Mapping[ConfigResource, Iterable[tuple[AlterConfigOp, str, str | None]]], *, validate_only: bool
) -> Operation[Outcomes[ConfigResource, None]]:
    """IncrementalAlterConfigs (KIP-339)."""
    example = '[(AlterConfigOp.SET, "retention.ms", "60000")]'
    wanted: dict[ConfigResource, list[Any]] = {
        resource: items_of(ops, object, f"changes of {resource}", example)
        for resource, ops in by_resource(changes).items()
    }

    def request(left: list[ConfigResource]) -> m.IncrementalAlterConfigsRequest:
        return m.IncrementalAlterConfigsRequest(
            resources=[
                m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configs=[
                        m.IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=op, value=value)
                        for op, name, value in wanted[resource]
                    ],
                )
                for resource in left
            ],
            validate_only=validate_only,
        )

    return per_item(list(wanted), _by_route(_config_route(CONTROLLER), request, _read_altered))


def alter_configs(
    configs: Mapping[ConfigResource, Mapping[str, str | None]], *, validate_only: bool
) -> Operation[Outcomes[ConfigResource, None]]:
    """AlterConfigs: replace all settings of resources by those given."""
    configs = {
        resource: mapping_of(values, f"settings of {resource}", '{"retention.ms": "60000"}')
        for resource, values in by_resource(configs).items()
    }

    def request(left: list[ConfigResource]) -> m.AlterConfigsRequest:
        return m.AlterConfigsRequest(
            resources=[
                m.AlterConfigsRequest.AlterConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configs=[
                        m.AlterConfigsRequest.AlterableConfig(name=name, value=value)
                        for name, value in configs[resource].items()
                    ],
                )
                for resource in left
            ],
            validate_only=validate_only,
        )

    return per_item(list(configs), _by_route(_config_route(CONTROLLER), request, _read_altered))


def _read_altered(response: Any) -> Answers[ConfigResource, None]:
    answers: dict[ConfigResource, FastqError | None] = {}
    for result in response.responses:
        resource = _resource(result.resource_type, result.resource_name)
        failed = result.error_code != 0
        answers[resource] = _error(result.error_code, result.error_message, resource=str(resource)) if failed else None
    return answers
