"""`fastq acls`: access control lists, who may do what with which topic, group or cluster (KIP-11, KIP-290).

Rules: Kafka's names, in any case and with any dashes. A resource is named as it is (`literal`), unless `--prefixed` or `--pattern` says
otherwise, as Kafka's own tool takes it. What a kind of resource does not know is refused here: a broker would keep it, without effect. What
is made and most likely means something else is told.
Nothing is removed that nobody named. Brokers without an authorizer refuse, fastq's too.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.output import Subparsers, UsageError, add_json_option, complain, nonempty, print_records
from fastq.errors import SecurityDisabled
from fastq.words import ACL_OPERATIONS, acl_remarks, check_acl_operation, check_principal

if TYPE_CHECKING:
    from fastq.admin import Acl, AclFilter, AclOperation, AclPatternType, AclPermission, AclResourceType

OPERATIONS = ("all", *dict.fromkeys(itertools.chain.from_iterable(ACL_OPERATIONS.values())))
PRODUCER = {"topic": ("write", "describe", "create"), "transactional-id": ("write", "describe")}
CONSUMER = {"topic": ("read", "describe"), "group": ("read",)}
CLUSTER = "kafka-cluster"
"""The name by which every cluster is a resource."""
COLUMNS = ("resource", "name", "pattern", "principal", "permission", "operation", "host")


def operation(text: str) -> str:
    """The type of options that take an operation: `describe-configs`, whether it is DESCRIBE_CONFIGS or DescribeConfigs."""
    squashed = re.sub("[-_]", "", text.lower())
    return next((name for name in OPERATIONS if name.replace("-", "") == squashed), text)


def principal(text: str) -> str:
    """The type of options that take who it is about."""
    try:
        check_principal(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return nonempty(text)


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "acls", "Access control lists: who may do what.", "fastq acls list --topic orders --pattern match"
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))

    listing = kinds.add("list", "Access controls, or those that are asked for.", "fastq acls list --principal User:bob")
    listing.set_defaults(run=run_list)

    add = kinds.add(
        "add",
        "Make access controls: one for each resource, operation, principal and host.",
        "fastq acls add --allow User:alice --operation read --topic orders\n"
        "  fastq acls add --allow User:alice --consumer --topic orders --group billing",
    )
    add.add_argument("--allow", type=principal, metavar="PRINCIPAL", action="append", default=[], help="who may")
    add.add_argument("--deny", type=principal, metavar="PRINCIPAL", action="append", default=[], help="who may not")
    _add_operation_option(add, "what; `all` for everything")
    add.add_argument("--producer", action="store_true", help="what a producer does with --topic and --transactional-id")
    add.add_argument("--consumer", action="store_true", help="what a consumer does with --topic and --group")
    add.add_argument("--host", type=nonempty, action="append", help="from this address (default: from any)")
    add.add_argument("--prefixed", action="store_true", help="all resources whose names begin so")
    add.set_defaults(run=run_add)

    remove = kinds.add(
        "remove",
        "Remove those that `list` shows with the same options.",
        "fastq acls remove --topic orders --principal User:alice",
    )
    remove.add_argument("--all", action="store_true", help="every access control that there is")
    remove.set_defaults(run=run_remove)

    for action in (listing, remove):
        action.add_argument(
            "--pattern",
            choices=("literal", "prefixed", "any", "match"),
            help="how names are meant: `match` for all that concern a resource, its prefixes and `*` too (default: literal)",
        )
        action.add_argument("--principal", type=principal, action="append", help="of this one; may be repeated")
        _add_operation_option(action, "of this operation")
        action.add_argument("--permission", choices=("allow", "deny"))
        action.add_argument("--host", type=nonempty, action="append", help="from this address; may be repeated")
    for action in (listing, add, remove):
        for kind in ACL_OPERATIONS:
            if kind == "cluster":
                action.add_argument("--cluster", action="store_true", help="the cluster itself")
                continue
            option = "--user-principal" if kind == "user" else f"--{kind}"
            kind_of = principal if kind == "user" else nonempty
            words = "may be repeated" if kind == "user" else "may be repeated; `*` is every one"
            action.add_argument(option, type=kind_of, metavar="NAME", action="append", default=[], help=words)
        add_client_options(action)
        add_json_option(action)


def _add_operation_option(parser: argparse.ArgumentParser, words: str) -> None:
    parser.add_argument(
        "--operation",
        type=operation,
        choices=OPERATIONS,
        metavar="OPERATION",
        action="append",
        help=f"{words}; may be repeated: {', '.join(OPERATIONS)}",
    )


def _named(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The resources that are named: kinds of ACL_OPERATIONS, and names."""
    found = [("cluster", CLUSTER)] if options.cluster else []
    for kind in ACL_OPERATIONS:
        if kind != "cluster":
            names = options.user_principal if kind == "user" else getattr(options, kind.replace("-", "_"))
            found += [(kind, name) for name in dict.fromkeys(names)]
    return found


def _resource_type(kind: str) -> AclResourceType:
    from fastq.admin import AclResourceType

    return AclResourceType[kind.upper().replace("-", "_")]


def _operation(name: str) -> AclOperation:
    from fastq.admin import AclOperation

    return AclOperation[name.upper().replace("-", "_")]


@contextlib.contextmanager
def _authorizer_is_there() -> Iterator[None]:
    try:
        yield
    except SecurityDisabled as error:
        raise error.with_context(
            hint="A fastq broker has no authorizer; a node of Apache Kafka has one with authorizer.class.name"
        ) from None


# -- list and remove


def _filters(options: argparse.Namespace) -> list[AclFilter]:
    from fastq.admin import AclFilter, AclOperation, AclPatternType, AclPermission, AclResourceType

    named = _named(options)
    if options.pattern is not None and not named:
        raise UsageError(f"--pattern {options.pattern} is how a name is meant: give --topic, --group or another, too")
    pattern = AclPatternType[(options.pattern or "literal").upper()] if named else AclPatternType.ANY
    resources: list[tuple[AclResourceType, str | None]] = [(_resource_type(kind), name) for kind, name in named]
    return [
        AclFilter(kind, name, who, what, permission, host, pattern)
        for (kind, name), who, what, permission, host in itertools.product(
            resources or [(AclResourceType.ANY, None)],
            options.principal or [None],
            [_operation(name) for name in options.operation or ()] or [AclOperation.ANY],
            [AclPermission[options.permission.upper()] if options.permission else AclPermission.ANY],
            options.host or [None],
        )
    ]


def run_list(options: argparse.Namespace) -> int:
    filters = _filters(options)
    with opened_admin(options) as admin, _authorizer_is_there():
        found = dict.fromkeys(acl for wanted in filters for acl in admin.describe_acls(wanted))
    _show(list(found), options.json)
    return 0


def run_remove(options: argparse.Namespace) -> int:
    filters = _filters(options)
    says_which = _named(options) or options.principal or options.operation or options.permission or options.host
    if bool(says_which) == options.all:
        raise UsageError("say which: --topic or another resource, --principal, --operation, --host; or --all alone")
    with opened_admin(options) as admin, _authorizer_is_there():
        outcomes = admin.delete_acls(filters)
        if len(outcomes.errors) == len(filters):
            outcomes.results()
    removed = dict.fromkeys(
        acl for wanted, outcome in outcomes.items() if wanted not in outcomes.errors for acl in outcome.result()
    )
    _show(list(removed), options.json)
    for error in outcomes.errors.values():
        complain(str(error))
    if not removed and not outcomes.errors:
        complain("nothing is removed: no access control is as asked for; fastq acls list shows those that are there")
    return 1 if outcomes.errors else 0


# -- add


def _wanted(options: argparse.Namespace) -> dict[tuple[str, str], list[str]]:
    """The operations on each resource that is named; UsageError where some make no sense."""
    named = _named(options)
    if not named:
        raise UsageError("say with what: --topic, --group, --transactional-id, --cluster or another resource")
    roles = [role for role, given in ((PRODUCER, options.producer), (CONSUMER, options.consumer)) if given]
    if bool(roles) == bool(options.operation):
        raise UsageError("say what: --operation, or --producer, --consumer or both of these")
    if roles and not options.topic:
        raise UsageError("--producer and --consumer need --topic")
    if options.consumer and not options.group:
        raise UsageError("--consumer needs --group")
    found: dict[tuple[str, str], list[str]] = {}
    for kind, name in named:
        if roles:
            operations = list(dict.fromkeys(each for role in roles for each in role.get(kind, ())))
            if not operations:
                raise UsageError(f"--{kind} has nothing to do with --producer or --consumer: give --operation for it")
        else:
            operations = list(dict.fromkeys(options.operation))
            for each in operations:
                try:
                    check_acl_operation(kind, each)
                except ValueError as error:
                    raise UsageError(str(error)) from None
        found[kind, name] = operations
    return found


def _to_add(options: argparse.Namespace) -> list[Acl]:
    from fastq.admin import Acl, AclPatternType, AclPermission

    wanted = _wanted(options)
    if not options.allow and not options.deny:
        raise UsageError("say who: --allow or --deny")
    if both := sorted(set(options.allow) & set(options.deny)):
        raise UsageError(f"{both[0]} is allowed and denied at once: denied alone would count")
    if options.prefixed and options.cluster:
        raise UsageError("--prefixed is for names that begin so, and there is one --cluster: add that apart")
    who: list[tuple[str, AclPermission]] = [(name, AclPermission.ALLOW) for name in dict.fromkeys(options.allow)]
    who += [(name, AclPermission.DENY) for name in dict.fromkeys(options.deny)]
    pattern: AclPatternType = AclPatternType.PREFIXED if options.prefixed else AclPatternType.LITERAL
    return [
        Acl(_resource_type(kind), name, one, _operation(what), permission, host, pattern)
        for (kind, name), operations in wanted.items()
        for what in operations
        for one, permission in who
        for host in dict.fromkeys(options.host or ["*"])
    ]


def run_add(options: argparse.Namespace) -> int:
    wanted = _to_add(options)
    with opened_admin(options) as admin, _authorizer_is_there():
        outcomes = admin.create_acls(wanted)
        if len(outcomes.errors) == len(wanted):
            outcomes.results()
    made = [acl for acl in wanted if acl not in outcomes.errors]
    _show(made, options.json)
    remarks = (acl_remarks(acl.name, acl.host, prefixed=options.prefixed) for acl in made)
    for remark in dict.fromkeys(itertools.chain.from_iterable(remarks)):
        complain(remark)
    for acl, error in outcomes.errors.items():
        complain(f"{acl.principal}, {acl.operation.name}, {acl.resource_type.name} {acl.name} is not made: {error}")
    return 1 if outcomes.errors else 0


def _show(acls: Sequence[Acl], shape: str) -> None:
    rows: list[dict[str, object]] = [
        {
            "resource": acl.resource_type.name,
            "name": acl.name,
            "pattern": acl.pattern_type.name,
            "principal": acl.principal,
            "permission": acl.permission.name,
            "operation": acl.operation.name,
            "host": acl.host,
        }
        for acl in acls
    ]
    print_records(COLUMNS, rows, shape)
