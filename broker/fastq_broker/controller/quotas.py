"""Client quotas as the metadata has them (KIP-546): nothing here enforces one, so none can be set; those of a foreign directory can go.

Rules: checks and their words are ClientQuotaControlManager's. An entity is (type, name) pairs; a name of None is the default.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping, Sequence
from typing import Final

from fastq.errors import ErrorCode
from fastq.protocol.messages import ClientQuotaRecord
from fastq.values import NamedTuple

from .image import MetadataImage, Record
from .topics import Refused, Result

USER, CLIENT_ID, IP = "user", "client-id", "ip"
Entity = tuple[tuple[str, "str | None"], ...]

_WHOLE: Final = frozenset({"producer_byte_rate", "consumer_byte_rate", "connection_creation_rate"})
_OF_CLIENTS: Final = frozenset(
    {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
)
_OF_ADDRESSES: Final = frozenset({"connection_creation_rate"})


class QuotaOp(NamedTuple):
    """A value that an entity is to get, or lose."""

    key: str
    value: float
    remove: bool


class QuotaChange(NamedTuple):
    """What is to become of one entity's quotas."""

    entity: Entity
    ops: Sequence[QuotaOp]


def quotas_of(image: MetadataImage) -> Mapping[Entity, Mapping[str, float]]:
    """All quotas, by entity and key."""
    found: dict[Entity, dict[str, float]] = {}
    for record in image.kept.values():
        if isinstance(record, ClientQuotaRecord):
            entity = tuple(sorted((item.entity_type, item.entity_name) for item in record.entity))
            found.setdefault(entity, {})[record.key] = record.value
    return found


def plan_quotas(image: MetadataImage, changes: Sequence[QuotaChange]) -> tuple[list[Result], list[Record]]:
    """Results in the order asked for, and the records that take quotas away."""
    known = quotas_of(image)
    results: list[Result] = []
    records: list[Record] = []
    for change in changes:
        entity = tuple(sorted(dict(change.entity).items()))
        try:
            _check(change)
        except Refused as refused:
            results.append(Result(refused.error, refused.message))
            continue
        results.append(Result())
        records += [
            ClientQuotaRecord(
                entity=[ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                key=op.key,
                value=0.0,
                remove=True,
            )
            for op in change.ops
            if op.key in known.get(entity, {})
        ]
    return results, records


def _check(change: QuotaChange) -> None:
    """Raises Refused for what Kafka refuses, and for each value that would be set."""
    kinds = dict(change.entity)
    if not kinds:
        raise Refused(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    for kind, name in kinds.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise Refused(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
    if IP in kinds and len(kinds) > 1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId",
        )
    keys = [op.key for op in change.ops]
    if len(set(keys)) != len(keys):
        raise Refused(ErrorCode.INVALID_REQUEST, f"A quota of {dict(kinds)} is named twice")
    for op in change.ops:
        if not op.remove:
            _check_value(kinds, op)
    if any(not op.remove for op in change.ops):
        raise Refused(
            ErrorCode.UNSUPPORTED_VERSION,
            "this version enforces no quotas, so it sets none: clients would be held to nothing",
        )


def _check_value(kinds: Mapping[str, str | None], op: QuotaOp) -> None:
    if op.key not in (_OF_ADDRESSES if IP in kinds else _OF_CLIENTS):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {op.key}")
    address = kinds.get(IP)
    if address is not None and not _is_address(address):
        raise Refused(ErrorCode.INVALID_REQUEST, f"{address} is not a valid IP.")
    if op.value <= 0 or math.isnan(op.value):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Quota {op.key} must be greater than 0")
    if op.key in _WHOLE and not op.value.is_integer():
        raise Refused(ErrorCode.INVALID_REQUEST, f"{op.key} cannot be a fractional value.")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
