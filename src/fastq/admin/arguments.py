"""What the admin methods make of their arguments, for both faces."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TypeVar

from fastq.admin.types import AlterConfigOp, ConfigResource
from fastq.arguments import items_of, mapping_of

V = TypeVar("V")

REMOVAL_REASON = "removed by an administrator"
TRANSACTION_TIMEOUT_MAX_MS = 900_000
"""The longest that a transaction may take where brokers do not say otherwise (transaction.max.timeout.ms)."""


def names_of(given: Iterable[str] | None) -> list[str]:
    """A list of names; a str is a sequence of its letters, which is the most frequent slip there is."""
    if isinstance(given, str):
        raise TypeError(f"a list of names is needed, got the string {given!r}")
    names = list(given or ())
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a list of names is needed, and a name is a str, got {name!r}")
    return names


def by_resource(given: Mapping[ConfigResource, V]) -> Mapping[ConfigResource, V]:
    """Settings by resource. Raises TypeError for what is none, as the name of a topic."""
    found = mapping_of(given, "settings", '{ConfigResource.topic("logs"): {"retention.ms": "60000"}}')
    items_of(found, ConfigResource, "resources", '[ConfigResource.topic("logs")]')
    return found


def clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def resource_of(given: ConfigResource) -> ConfigResource:
    """One resource. Raises TypeError for what is none, as the name of a topic."""
    if not isinstance(given, ConfigResource):
        raise TypeError(f'resource: a ConfigResource is needed, as in ConfigResource.topic("logs"), got {given!r}')
    return given


def operations_of(values: Mapping[str, str | None]) -> list[tuple[AlterConfigOp, str, str | None]]:
    """Settings to change, as operations; None takes one back to its default."""
    return [
        (AlterConfigOp.DELETE if value is None else AlterConfigOp.SET, name, None if value is None else str(value))
        for name, value in mapping_of(values, "settings", '{"retention.ms": "60000"}').items()
    ]
