"""`fastq configs`: show and change the settings of a topic, a group or a broker; list what has settings."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.output import (
    Subparsers,
    UsageError,
    add_json_option,
    is_whole,
    key_values,
    nonempty,
    print_json,
    print_records,
    sent,
)

if TYPE_CHECKING:
    from fastq.admin import ConfigResource


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "configs", "Show and change settings of topics, groups and brokers.", "fastq configs show --topic logs"
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))

    show = kinds.add(
        "show", "Settings with their values and where they come from.", "fastq configs show --topic logs --all"
    )
    show.add_argument("--all", action="store_true", help="those left at their default too")
    show.set_defaults(run=run_show)

    change = kinds.add(
        "set",
        "Change settings; an empty value takes one back to its default.",
        "fastq configs set --topic logs retention.ms=3600000",
    )
    change.add_argument("settings", type=sent, nargs="+", metavar="KEY=VALUE")
    change.set_defaults(run=run_set)

    listing = kinds.add("list", "What has, or may have, settings.", "fastq configs list --type group")
    listing.add_argument("--type", choices=["topic", "group", "broker", "broker_logger", "client_metrics"])
    add_client_options(listing)
    add_json_option(listing)
    listing.set_defaults(run=run_list)

    for action in (show, change):
        which = action.add_mutually_exclusive_group(required=True)
        which.add_argument("--topic", type=nonempty)
        which.add_argument("--group", type=nonempty, help="a group of the consumer protocol")
        which.add_argument("--broker", metavar="ID", help='the id of a broker, or "default" for all of them')
        add_client_options(action)
        add_json_option(action)


def _resource(options: argparse.Namespace) -> ConfigResource:
    from fastq.admin import ConfigResource

    if options.topic is not None:
        return ConfigResource.topic(options.topic)
    if options.group is not None:
        return ConfigResource.group(options.group)
    if options.broker != "default" and not is_whole(options.broker):
        raise UsageError(f'--broker takes the id of a broker, or "default", not {options.broker!r}')
    return ConfigResource.broker(None if options.broker == "default" else int(options.broker))


def run_show(options: argparse.Namespace) -> int:
    resource = _resource(options)
    with opened_admin(options) as admin:
        entries = admin.describe_configs([resource])[resource].result()
    rows: list[dict[str, object]] = [
        {
            "name": entry.name,
            "value": "(hidden)" if entry.is_sensitive else entry.value,
            "source": entry.source.name.lower().replace("_", "-"),
            "read_only": "yes" if entry.is_read_only else "no",
        }
        for entry in sorted(entries.values(), key=lambda entry: entry.name)
        if options.all or not entry.is_default
    ]
    print_records(["name", "value", "source", "read_only"], rows, options.json)
    return 0


def run_list(options: argparse.Namespace) -> int:
    from fastq.admin import ResourceType

    types = [] if options.type is None else [ResourceType[options.type.upper()]]
    with opened_admin(options) as admin:
        found = admin.list_config_resources(types)
    rows: list[dict[str, object]] = [{"type": item.type.name.lower(), "name": item.name} for item in found]
    print_records(["type", "name"], rows, options.json)
    return 0


def run_set(options: argparse.Namespace) -> int:
    resource = _resource(options)
    values = {key: value or None for key, value in key_values(options.settings, "a setting", once=True).items()}
    with opened_admin(options) as admin:
        admin.set_configs(resource, values)
    if options.json:
        print_json({"resource": str(resource), "set": values}, options.json)
    else:
        print(
            f"{resource}: "
            + ", ".join(
                f"{key} {'back to its default' if value is None else f'= {value}'}" for key, value in values.items()
            )
        )
    return 0
