"""`fastq api-versions`: which versions of which APIs each broker takes, and which both sides would use.

Rules: brokers that say the same of an API share a line, so that what differs is seen. `used` is the highest version that the brokers of the
line and this client know, which the client would take if nothing else bounded it. Exit code 1 where a broker does not answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.each_broker import NODE_S, answers_of
from fastq.cli.output import Subparsers, add_json_option, print_records, whole
from fastq.errors import UnsupportedVersion
from fastq.protocol.api import APIS
from fastq.protocol.negotiation import BrokerVersions

if TYPE_CHECKING:
    from fastq.admin import ApiVersion


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "api-versions",
        "Versions of the protocol's APIs that brokers and this client know.",
        "fastq api-versions --broker 1",
    )
    parser.add_argument("--broker", type=whole(), metavar="ID", help="of this broker only")
    parser.add_argument("--api", metavar="NAME", help="of this API only, by Kafka's name: Produce, Fetch, ...")
    add_client_options(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        if options.broker is not None:
            told, wanted = {options.broker: admin.api_versions(options.broker)}, 1
        else:
            nodes = admin._client.driver.core.metadata.nodes
            told, wanted = answers_of(nodes, lambda node: admin.api_versions(node, timeout=NODE_S)), len(nodes)
    by_node = {node: versions.values() for node, versions in told.items()}
    rows = [row for row in lines(by_node) if options.api is None or str(row["api"]).lower() == options.api.lower()]
    if options.api is not None and not rows:
        raise ValueError(f"no broker takes an API with the name {options.api}; without --api all are shown")
    print_records(["api", "key", "min", "max", "client_min", "client_max", "used", "brokers"], rows, options.json)
    return 0 if len(told) == wanted else 1


def lines(told: Mapping[int, Iterable[ApiVersion]]) -> list[dict[str, object]]:
    """One for each API and range, with the brokers that have it."""
    brokers: dict[tuple[int, int, int, str], list[int]] = {}
    for node, versions in told.items():
        for version in versions:
            at = (version.api_key, version.min_version, version.max_version, version.name)
            brokers.setdefault(at, []).append(node)
    return [
        {
            "api": name,
            "key": key,
            "min": low,
            "max": high,
            "client_min": None if (ours := APIS.get(key)) is None else ours.min_version,
            "client_max": None if ours is None else ours.max_stable_version,
            "used": _used(key, low, high),
            "brokers": nodes,
        }
        for (key, low, high, name), nodes in sorted(brokers.items())
    ]


class _Range:
    """A broker's range, as BrokerVersions asks for it."""

    def __init__(self, api_key: int, min_version: int, max_version: int) -> None:
        self.api_key, self.min_version, self.max_version = api_key, min_version, max_version


def _used(key: int, low: int, high: int) -> int | None:
    if key not in APIS:
        return None
    try:
        return BrokerVersions([_Range(key, low, high)]).pick(key)
    except UnsupportedVersion:
        return None
