"""DescribeClientQuotas (KIP-546): those that the metadata has, which came with a directory of Apache Kafka. None is enforced here.

Rules: filters and their errors are ClientQuotasImage.describe's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from fastq_broker.controller.quotas import CLIENT_ID, IP, USER, Entity, quotas_of
from fastq_broker.controller.topics import Refused

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 48
VERSIONS = (0, 1)

EXACT, DEFAULT, SPECIFIED = 0, 1, 2

Component = DescribeClientQuotasRequest.ComponentData


def handle(context: RequestContext, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    """The entities that fit the filter; no components fit all."""
    try:
        components = _checked(request.components)
    except Refused as refused:
        return DescribeClientQuotasResponse(error_code=refused.error, error_message=refused.message, entries=None)
    found = quotas_of(context.image)
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            DescribeClientQuotasResponse.EntryData(
                entity=[
                    DescribeClientQuotasResponse.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
                ],
                values=[DescribeClientQuotasResponse.ValueData(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in found.items()
            if _fits(entity, components, request.strict)
        ],
    )


def _checked(asked: Iterable[Component]) -> Mapping[str, Component]:
    """The components by their type. Raises Refused."""
    found: dict[str, Component] = {}
    for item in asked:
        kind, code, words = item.entity_type, ErrorCode.INVALID_REQUEST, ""
        if not kind:
            words = "Invalid empty entity type."
        elif kind in found:
            words = f"Entity type {kind} cannot appear more than once in the filter."
        elif kind not in (USER, CLIENT_ID, IP):
            code, words = ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}"
        elif item.match_type not in (EXACT, DEFAULT, SPECIFIED):
            words = f"Unknown match type {item.match_type}"
        elif item.match_type == EXACT and item.match is None:
            words = "Request specified MATCH_TYPE_EXACT, but set match string to null."
        elif item.match_type != EXACT and item.match is not None:
            name = "MATCH_TYPE_DEFAULT" if item.match_type == DEFAULT else "MATCH_TYPE_SPECIFIED"
            words = f"Request specified {name}, but also specified a match string."
        if words:
            raise Refused(code, words)
        found[kind] = item
    if IP in found and len(found) > 1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        )
    return found


def _fits(entity: Entity, components: Mapping[str, Component], strict: bool) -> bool:
    named = dict(entity)
    if strict and len(named) != len(components):
        return False
    return all(kind in named and _matches(item, named[kind]) for kind, item in components.items())


def _matches(item: Component, name: str | None) -> bool:
    if item.match_type == SPECIFIED:
        return True
    return name == item.match  # the default entity's name is null
