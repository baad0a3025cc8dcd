"""`fastq configs`: show and change the settings of a topic, a group, a broker or its loggers, the quotas of users, clients and
addresses, and users' SCRAM credentials; list what has any of them.

Rules: as kafka-configs.sh has it, whose words for a credential are taken too: `SCRAM-SHA-512=[iterations=8192,password=secret]`. A password
that is not in them is asked for, or is the first line of standard input: arguments are seen by others. No secret is ever printed.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.output import (
    Subparsers,
    UsageError,
    add_json_option,
    is_secret,
    is_whole,
    key_values,
    nonempty,
    print_json,
    print_records,
    sent,
)

if TYPE_CHECKING:
    from fastq.admin import (
        Admin,
        ClientQuotaEntity,
        ConfigResource,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )

ENTITIES = {"user": "user", "client": "client-id", "ip": "ip"}
"""Whom quotas are for: the option's word, and Kafka's."""
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_CREDENTIAL = re.compile(r"\[(?:iterations=(?P<iterations>\d{1,9}))?,?(?:password=(?P<password>.+))?\]")


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "configs",
        "Show and change settings of topics, groups and brokers, quotas and SCRAM credentials.",
        "fastq configs show --topic logs",
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))

    show = kinds.add(
        "show", "Settings with their values and where they come from.", "fastq configs show --topic logs --all"
    )
    show.add_argument("--all", action="store_true", help="those left at their default too")
    show.set_defaults(run=run_show)

    change = kinds.add(
        "set",
        "Change settings; an empty value takes one back to its default, or away.",
        "fastq configs set --topic logs retention.ms=3600000",
    )
    change.add_argument(
        "settings",
        type=sent,
        nargs="+",
        metavar="KEY=VALUE",
        help="of a user also SCRAM-SHA-512=[iterations=8192], whose password is asked for",
    )
    change.set_defaults(run=run_set)

    listing = kinds.add("list", "What has, or may have, settings.", "fastq configs list --type group")
    listing.add_argument(
        "--type",
        choices=["topic", "group", "broker", "broker_logger", "client_metrics", *ENTITIES],
        help="of users, clients and ips: those that have quotas or credentials, which are in no list of all",
    )
    add_client_options(listing)
    add_json_option(listing)
    listing.set_defaults(run=run_list)

    for action in (show, change):
        action.add_argument("--topic", type=nonempty)
        action.add_argument("--group", type=nonempty, help="a group of the consumer protocol")
        action.add_argument("--broker", metavar="ID", help='the id of a broker, or "default" for all of them')
        action.add_argument("--broker-logger", metavar="ID", help="the levels of a broker's loggers")
        action.add_argument("--user", type=nonempty, help="quotas and credentials of a user; --client may go with it")
        action.add_argument("--client", type=nonempty, metavar="CLIENT_ID", help="quotas of clients of this id")
        action.add_argument("--ip", type=nonempty, metavar="ADDRESS", help="quotas of connections from an address")
        for kind, of in (("user", "users"), ("client", "clients"), ("ip", "addresses")):
            action.add_argument(
                f"--{kind}-defaults", action="store_true", help=f"quotas of all {of} that have none of their own"
            )
        add_client_options(action)
        add_json_option(action)


def _of(options: argparse.Namespace) -> ConfigResource | ClientQuotaEntity:
    """The one thing that options name: of something with settings a resource, else whom quotas are for."""
    from fastq.admin import ClientQuotaEntity, ConfigResource, ResourceType

    resources = [kind for kind in ("topic", "group", "broker", "broker_logger") if getattr(options, kind) is not None]
    entity: dict[str, str | None] = {}
    for word, kind in ENTITIES.items():
        name, is_default = getattr(options, word), getattr(options, f"{word}_defaults")
        if name is not None and is_default:
            raise UsageError(f"--{word} and --{word}-defaults are two things: give one of them")
        if name is not None or is_default:
            entity[kind] = name
    if len(resources) + bool(entity) != 1 or ("ip" in entity and len(entity) > 1):
        raise UsageError(
            "give one of --topic, --group, --broker, --broker-logger, --user, --client, --ip, or of "
            "--user-defaults, --client-defaults, --ip-defaults; of a user and a client both"
        )
    if entity:
        return ClientQuotaEntity(entity)
    kind, name = resources[0], getattr(options, resources[0])
    if kind == "broker" and name == "default":
        return ConfigResource.broker(None)
    if kind.startswith("broker") and not is_whole(name):
        allowed = 'the id of a broker, or "default"' if kind == "broker" else "the id of a broker"
        raise UsageError(f"--{kind.replace('_', '-')} takes {allowed}, not {name!r}")
    return ConfigResource(ResourceType[kind.upper()], str(int(name)) if kind.startswith("broker") else name)


def _is_user(of: ClientQuotaEntity) -> bool:
    """Whether it is one that may have credentials: a user, and no client of it."""
    return list(of.entries) == ["user"] and of.entries["user"] is not None


def run_show(options: argparse.Namespace) -> int:
    from fastq.admin import ConfigResource

    of = _of(options)
    with opened_admin(options) as admin:
        if isinstance(of, ConfigResource):
            entries = admin.describe_configs([of])[of].result()
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
        else:
            rows = _quotas(admin, of) + (_credentials(admin, of) if _is_user(of) else [])
    print_records(["name", "value", "source", "read_only"], rows, options.json)
    return 0


def _quotas(admin: Admin, of: ClientQuotaEntity) -> list[dict[str, object]]:
    from fastq.admin import ClientQuotaFilter

    found = admin.describe_client_quotas(ClientQuotaFilter(of.entries, strict=True))
    return [
        {"name": key, "value": _plain(value), "source": "client-quota", "read_only": "no"}
        for values in found.values()
        for key, value in values.items()
    ]


def _plain(value: float) -> int | float:
    """Bytes a second without a fraction that says nothing."""
    return int(value) if math.isfinite(value) and value == int(value) else value


def _credentials(admin: Admin, of: ClientQuotaEntity) -> list[dict[str, object]]:
    from fastq.errors import ResourceNotFound

    user = of.entries["user"] or ""
    outcome = admin.describe_user_scram_credentials([user])[user]
    if isinstance(outcome.error, ResourceNotFound):
        return []
    return [
        {
            "name": found.mechanism.name.replace("_", "-"),
            "value": f"iterations={found.iterations}",
            "source": "scram-credential",
            "read_only": "no",
        }
        for found in outcome.result()
    ]


def run_list(options: argparse.Namespace) -> int:
    from fastq.admin import ResourceType

    with opened_admin(options) as admin:
        if options.type in ENTITIES:
            rows = _entities(admin, options.type)
        else:
            types = [] if options.type is None else [ResourceType[options.type.upper()]]
            rows = [{"type": item.type.name.lower(), "name": item.name} for item in admin.list_config_resources(types)]
    print_records(["type", "name"], rows, options.json)
    return 0


def _entities(admin: Admin, word: str) -> list[dict[str, object]]:
    """Those of a kind that have quotas, by themselves or with another, and of users those with credentials."""
    from fastq.admin import ClientQuotaFilter, ClientQuotaMatch

    kind = ENTITIES[word]
    found = admin.describe_client_quotas(ClientQuotaFilter({kind: ClientQuotaMatch.ANY}))
    names = {entity.entries[kind] for entity in found}
    if word == "user":
        names |= set(admin.describe_user_scram_credentials())
    ordered = sorted(names, key=lambda name: (name is not None, name or ""))
    return [{"type": word, "name": "<default>" if name is None else name} for name in ordered]


def run_set(options: argparse.Namespace) -> int:
    from fastq.admin import ConfigResource

    of = _of(options)
    values = {key: value or None for key, value in key_values(options.settings, "a setting", once=True).items()}
    if isinstance(of, ConfigResource):
        with opened_admin(options) as admin:
            admin.set_configs(of, values)
    else:
        values = _set_of_entity(options, of, values)
    shown = {key: "[hidden]" if value and is_secret(value, key) else value for key, value in values.items()}
    if options.json:
        print_json({"resource": str(of), "set": shown}, options.json)
    else:
        print(
            f"{of}: "
            + ", ".join(
                f"{key} {'back to its default' if value is None else f'= {value}'}" for key, value in shown.items()
            )
        )
    return 0


def _set_of_entity(
    options: argparse.Namespace, of: ClientQuotaEntity, values: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Change quotas and credentials, all of whose values are read before anything is sent; what is told of them."""
    changes = [_credential(of, key, value) for key, value in values.items() if key in MECHANISMS]
    quotas = {key: _rate(key, value) for key, value in values.items() if key not in MECHANISMS}
    with opened_admin(options) as admin:
        if quotas:
            admin.alter_client_quotas({of: quotas}).results()
        if changes:
            try:
                admin.alter_user_scram_credentials(changes).results()
            except Exception:
                if quotas:
                    print(f"{of}: the quotas are set, the credentials are not", file=sys.stderr)
                raise
    rates: dict[str, str | None] = {key: None if value is None else f"{value:g}" for key, value in quotas.items()}
    return {key: rates.get(key, value and "[hidden]") for key, value in values.items()}


def _rate(key: str, value: str | None) -> float | None:
    try:
        found = None if value is None else float(value)
    except ValueError:
        found = math.nan
    if found is not None and not math.isfinite(found):
        # What was given is not told: it may be a password behind a mechanism that is misspelt.
        raise UsageError(f"{key} is a quota, which is a number (credentials are of {', '.join(MECHANISMS)})")
    return found


def _credential(
    of: ClientQuotaEntity, key: str, value: str | None
) -> UserScramCredentialUpsertion | UserScramCredentialDeletion:
    from fastq.admin import ScramMechanism, UserScramCredentialDeletion, UserScramCredentialUpsertion

    if not _is_user(of):
        raise UsageError(f"{key} is of a user: give --user alone")
    user, mechanism = of.entries["user"] or "", ScramMechanism[key.replace("-", "_")]
    if value is None:
        return UserScramCredentialDeletion(user, mechanism)
    found = _CREDENTIAL.fullmatch(value)
    if found is None:  # and what was given is not told: there is a password in it
        raise UsageError(
            f"{key} takes [iterations=8192,password=SECRET], or [iterations=8192] and asks for the password"
        )
    iterations = int(found["iterations"] or 4096)
    password = found["password"] or _asked_for(user)
    try:
        return UserScramCredentialUpsertion(user, password, mechanism, iterations)
    except ValueError as error:
        raise UsageError(f"{key}: {error}") from None


def _asked_for(user: str) -> str:
    """Twice on a terminal, else a line of standard input."""
    if sys.stdin is not None and sys.stdin.isatty():
        from getpass import getpass

        password = getpass(f"password of {user}: ")
        if getpass("again: ") != password:
            raise UsageError("the two are not the same")
        return password
    return (sys.stdin.readline() if sys.stdin is not None else "").rstrip("\r\n")
