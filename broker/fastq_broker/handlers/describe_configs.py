"""DescribeConfigs: every key of topics, groups, brokers and loggers, with its source and, on request, synonyms and description.

Rules: a sensitive value is always null. Keys that are named come once each, in the order asked for (Kafka: in any).
A broker tells its own configuration, and (name "") what was set for all brokers.
Source: ConfigHelper.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import DescribeConfigsRequest, DescribeConfigsResponse
from fastq.values import replace
from fastq_broker import group_config, topic_config
from fastq_broker.config_keys import ConfigKey, ConfigSource, ConfigType, ResourceType, shown
from fastq_broker.config_table import BROKER_KEYS
from fastq_broker.controller.config_changes import check_resource
from fastq_broker.controller.topics import Refused
from fastq_broker.handlers import loggers
from fastq_broker.topic_config import ConfigEntry, Layer

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 32
VERSIONS = (1, 4)


def handle(context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """One result a resource, in the order asked for."""
    return DescribeConfigsResponse(results=[_result(context, request, resource) for resource in request.resources])


def _result(
    context: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsRequest.DescribeConfigsResource
) -> DescribeConfigsResponse.DescribeConfigsResult:
    result = DescribeConfigsResponse.DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
    )
    try:
        entries = _entries(context, resource.resource_type, resource.resource_name)
    except Refused as refused:
        result.error_code = refused.error
        result.error_message = refused.message
        return result
    if resource.configuration_keys:
        by_name = {entry.key.name: entry for entry in entries}
        entries = [by_name[name] for name in dict.fromkeys(resource.configuration_keys) if name in by_name]
    result.configs = [_response(entry, request) for entry in entries]
    return result


def _entries(context: RequestContext, resource_type: int, name: str) -> Iterable[ConfigEntry]:
    controller = context.controller
    if resource_type == ResourceType.TOPIC:
        check_resource(controller.image, resource_type, name, controller.node_id)
        return topic_config.describe(controller.image.topic_configs(name), controller.layers)
    if resource_type == ResourceType.GROUP:
        check_resource(controller.image, resource_type, name, controller.node_id)
        return group_config.describe(controller.image.configs_of(resource_type, name), controller.layers)
    if resource_type == ResourceType.BROKER:
        if name == "":
            return [
                _dynamic_default(key, value) for key, value in controller.image.configs_of(resource_type, "").items()
            ]
        if name != str(controller.node_id):
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {controller.node_id} or empty string, but received {shown(name)}",
            )
        return topic_config.describe_broker(controller.layers)
    if resource_type == ResourceType.BROKER_LOGGER:
        loggers.check_node(controller.node_id, name)
        return [_logger(logger, level) for logger, level in loggers.levels().items()]
    raise Refused(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource_type}")


def _dynamic_default(name: str, value: str) -> ConfigEntry:
    """What is set for all brokers, as it is stored: a value that another version let pass and this one does not is told as its text."""
    key = BROKER_KEYS.get(name) or ConfigKey(name, ConfigType.STRING, dynamic=True)
    parsed = topic_config.stored_value(key, value)
    if parsed is None:
        key, parsed = replace(key, type=ConfigType.STRING), value
    layer = Layer(name, parsed, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    return ConfigEntry(key, None if key.sensitive else value, layer.source, [layer])


def _logger(name: str, level: str) -> ConfigEntry:
    key = ConfigKey(name, ConfigType.STRING, doc=f"The level of the logger: {', '.join(loggers.LEVELS)}.")
    return ConfigEntry(key, level, ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG, [])


def _response(
    entry: ConfigEntry, request: DescribeConfigsRequest
) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    response = DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.key.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.key.sensitive,
        config_type=entry.key.type,
        synonyms=[],
        documentation=entry.key.documentation if request.include_documentation else None,
    )
    if request.include_synonyms:
        response.synonyms = [
            DescribeConfigsResponse.DescribeConfigsSynonym(
                name=layer.name,
                value=None if entry.key.sensitive else entry.key.render(layer.value),
                source=layer.source,
            )
            for layer in entry.synonyms
        ]
    return response
