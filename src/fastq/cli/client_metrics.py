"""`fastq client-metrics`: subscriptions of brokers to the metrics of their clients (KIP-714).

Rules: a subscription is a resource with three settings, `interval.ms`, `metrics` and `match`; it is there while it has one, so to delete it
is to take all back. What is not given stays as it is. Brokers that have none refuse, fastq's too.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.output import (
    Subparsers,
    UsageError,
    add_json_option,
    count,
    key_values,
    nonempty,
    print_json,
    print_records,
    sent,
)
from fastq.errors import InvalidRequest

if TYPE_CHECKING:
    from fastq import Admin
    from fastq.admin import ConfigResource

SETTINGS = ("interval.ms", "metrics", "match")


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "client-metrics", "What brokers collect of their clients' metrics (KIP-714).", "fastq client-metrics list"
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))

    listing = kinds.add("list", "Names of the subscriptions.", "fastq client-metrics list")
    listing.set_defaults(run=run_list)

    describe = kinds.add("describe", "Subscriptions with their settings.", "fastq client-metrics describe latency")
    describe.add_argument("names", type=nonempty, nargs="*", metavar="NAME", help="without one: all")
    describe.set_defaults(run=run_describe)

    change = kinds.add(
        "set",
        "Make a subscription, or change one.",
        "fastq client-metrics set latency --metrics org.apache.kafka.producer. --interval-ms 60000 --match client_software_name=fastq",
    )
    change.add_argument("name", type=nonempty, metavar="NAME")
    change.add_argument("--interval-ms", type=count, metavar="MS", help="how often clients push")
    change.add_argument(
        "--metrics", type=sent, metavar="PREFIX[,...]", help="names begin with one of these; an empty one: all"
    )
    change.add_argument(
        "--match",
        type=sent,
        metavar="KEY=REGEX",
        action="append",
        help="of clients alone whose attribute matches; may be repeated",
    )
    change.set_defaults(run=run_set)

    delete = kinds.add("delete", "Take a subscription back.", "fastq client-metrics delete latency")
    delete.add_argument("name", type=nonempty, metavar="NAME")
    delete.set_defaults(run=run_delete)

    for action in (listing, describe, change, delete):
        add_client_options(action)
        add_json_option(action)


def _resource(name: str) -> ConfigResource:
    from fastq.admin import ConfigResource, ResourceType

    return ConfigResource(ResourceType.CLIENT_METRICS, name)


def _names(admin: Admin) -> list[str]:
    from fastq.admin import ResourceType

    return sorted(item.name for item in admin.list_config_resources([ResourceType.CLIENT_METRICS]))


def _settings(admin: Admin, names: list[str]) -> dict[str, dict[str, str | None]]:
    """What is set of each, by name."""
    outcomes = admin.describe_configs([_resource(name) for name in names])
    return {
        resource.name: {name: entry.value for name, entry in outcome.result().items() if not entry.is_default}
        for resource, outcome in outcomes.items()
    }


def run_list(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        names = _names(admin)
    if options.json:
        print_json(names, options.json, ["name"])
    else:
        for name in names:
            print(name)
    return 0


def run_describe(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        known = _names(admin)
        for name in options.names:
            _check_known(name, known)
        names = options.names or known
        found = _settings(admin, names) if names else {}
    rows: list[dict[str, object]] = [
        {"name": name, **{key: found[name].get(key) for key in SETTINGS}} for name in names
    ]
    print_records(["name", *SETTINGS], rows, options.json)
    return 0


def _check_known(name: str, known: list[str]) -> None:
    if name not in known:
        raise ValueError(f"no subscription has the name {name}; fastq client-metrics list shows those that are there")


def run_set(options: argparse.Namespace) -> int:
    given = {"interval.ms": options.interval_ms, "metrics": options.metrics, "match": options.match}
    if options.match is not None:
        key_values(options.match, "--match")
        given["match"] = ",".join(options.match)
    values: dict[str, str | None] = {key: str(value) for key, value in given.items() if value is not None}
    if not values:
        raise UsageError("nothing to set: give --interval-ms, --metrics or --match")
    with opened_admin(options) as admin:
        try:
            admin.set_configs(_resource(options.name), values)
        except InvalidRequest as error:
            raise error.with_context(hint="A fastq broker collects no metrics of its clients") from None
    if options.json:
        print_json({"name": options.name, "set": values}, options.json)
    else:
        print(f"{options.name}: " + ", ".join(f"{key} = {value}" for key, value in values.items()))
    return 0


def run_delete(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        _check_known(options.name, _names(admin))
        admin.set_configs(_resource(options.name), dict.fromkeys(_settings(admin, [options.name])[options.name]))
    if options.json:
        print_json({"deleted": options.name}, options.json)
    else:
        print(f"deleted {options.name}")
    return 0
