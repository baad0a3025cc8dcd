"""`fastq groups`: list and describe consumer groups, move and delete their offsets, put members out, delete groups."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.codes import code_of
from fastq.cli.each_broker import shown_of
from fastq.cli.group_resets import (
    CONSUMER_TYPES,
    add_group_names,
    add_reset_options,
    check_group_names,
    groups_named,
    run_reset,
)
from fastq.cli.output import (
    Subparsers,
    UsageError,
    add_json_option,
    complain,
    nonempty,
    of_known,
    print_json,
    print_records,
)
from fastq.cli.partition_names import add_topic_option, partitions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastq.admin import Admin, GroupDescription, GroupMember
    from fastq.errors import FastqError
    from fastq.metadata import TopicPartition

ENDS_S = 10.0
"""As long as ends are waited for of partitions whose leader is silent: who leads in its place is mostly known sooner."""


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "groups", "Consumer groups: members, lag, offsets.", "fastq groups describe billing"
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))

    listing = kinds.add("list", "All groups with their states.", "fastq groups list --state Stable")
    listing.add_argument("--state", action="append", default=[], help="only groups in this state; may be repeated")
    listing.add_argument("--type", action="append", default=[], help="classic, consumer, ...; may be repeated")
    listing.set_defaults(run=run_list)

    describe = kinds.add(
        "describe", "Partitions of groups with their lag, or members.", "fastq groups describe billing --members"
    )
    add_group_names(describe)
    style = describe.add_mutually_exclusive_group()
    style.add_argument("--members", action="store_true", help="a line a member: host, assignment, epoch")
    style.add_argument("--state", action="store_true", help="a line a group: state, protocol, coordinator")
    describe.set_defaults(run=run_describe)

    reset = kinds.add(
        "reset-offsets",
        "Show where the offsets of groups would go, and with --execute move them. A group must have no members.",
        "fastq groups reset-offsets billing --topic orders --to-datetime 2026-11-21T10:00:00 --execute",
    )
    add_group_names(reset)
    add_reset_options(reset)
    reset.set_defaults(run=run_reset)

    delete = kinds.add("delete", "Delete groups with their offsets.", "fastq groups delete billing")
    delete.add_argument("groups", type=nonempty, nargs="+", metavar="GROUP")
    delete.set_defaults(run=run_delete)

    offsets = kinds.add(
        "delete-offsets", "Forget what a group has committed.", "fastq groups delete-offsets billing --topic orders:0,1"
    )
    offsets.add_argument("group", type=nonempty)
    add_topic_option(offsets, required=True)
    offsets.set_defaults(run=run_delete_offsets)

    remove = kinds.add(
        "remove-members",
        "Put members out of a group; who still runs joins again.",
        "fastq groups remove-members billing --instance worker-3",
    )
    remove.add_argument("group", type=nonempty)
    remove.add_argument(
        "--instance", type=nonempty, action="append", default=[], metavar="ID", help="a static member; repeatable"
    )
    remove.add_argument(
        "--member", type=nonempty, action="append", default=[], metavar="ID", help="a member by its id; repeatable"
    )
    remove.add_argument("--all", action="store_true", help="all members")
    remove.set_defaults(run=run_remove)

    for action in (listing, describe, reset, delete, offsets, remove):
        add_client_options(action)
        add_json_option(action)


# -- looking -----------------------------------------------------------------------------------------------------------------


def run_list(options: argparse.Namespace) -> int:
    from fastq.admin.group_types import GROUP_STATES, GROUP_TYPES
    from fastq.admin.groups import groups_shown

    states, types = of_known(options.state, GROUP_STATES, "--state"), of_known(options.type, GROUP_TYPES, "--type")
    with opened_admin(options) as admin:
        told = shown_of(admin, groups_shown(states, types))
    rows = [
        {"group": group.group_id, "type": group.type, "protocol": group.protocol_type or None, "state": group.state}
        for group in told.found.values()
    ]
    print_records(["group", "type", "protocol", "state"], rows, options.json)
    return 1 if told.silent else 0


def run_describe(options: argparse.Namespace) -> int:
    from fastq.admin.groups import groups_shown

    check_group_names(options)
    with opened_admin(options) as admin:
        silent = 0
        if options.all_groups:
            told = shown_of(admin, groups_shown((), CONSUMER_TYPES))
            named, silent = list(told.found), len(told.silent)
        else:
            named = groups_named(admin, options)
        outcomes = admin.describe_groups(named) if named else {}
        errors: dict[str, FastqError] = {name: o.error for name, o in outcomes.items() if o.error is not None}
        if len(errors) == len(named) and errors:
            raise next(iter(errors.values()))
        groups = [outcome.result() for outcome in outcomes.values() if outcome.error is None]
        if options.state:
            columns = ["group", "type", "state", "protocol", "assignor", "members", "coordinator", "epoch"]
            rows = [_state_row(group) for group in groups]
        elif options.members:
            columns = ["group", "member", "instance", "client", "host", "partitions", "epoch", "assignment"]
            rows = [_member_row(group, member) for group in groups for member in group.members]
        else:
            columns = ["group", "topic", "partition", "committed", "end", "lag", "member", "client", "host"]
            rows = _lag_rows(admin, groups)
    for name, error in errors.items():
        complain(f"{name}: {error}")
    print_records(columns, rows, options.json)
    return max((code_of(error) for error in errors.values()), default=1 if silent else 0)


def _state_row(group: GroupDescription) -> dict[str, object]:
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "protocol": group.protocol_type or None,
        "assignor": group.assignor or None,
        "members": len(group.members),
        "coordinator": str(group.coordinator),
        "epoch": group.group_epoch,
    }


def _member_row(group: GroupDescription, member: GroupMember) -> dict[str, object]:
    return {
        "group": group.group_id,
        "member": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.host,
        "partitions": len(member.assignment),
        "epoch": member.member_epoch,
        "assignment": [str(tp) for tp in member.assignment],
    }


def _lag_rows(admin: Admin, groups: Sequence[GroupDescription]) -> list[dict[str, object]]:
    """A line for each partition that a group has committed in, or that a member reads. The ends are asked for once for all of them."""
    from fastq.admin import OffsetSpec

    places: dict[tuple[str, TopicPartition], tuple[int | None, GroupMember | None]] = {}
    unknown: dict[str, None] = {}
    for group in groups:
        owners = {tp: member for member in group.members for tp in member.assignment}
        committed = admin.list_group_offsets(group.group_id)
        for tp in sorted({*committed, *owners}):
            found = committed.get(tp)
            if found is not None and found.error is not None:
                unknown[f"what {group.group_id} has committed in {tp} is not known: {found.error}"] = None
            at = None if found is None or found.value is None else found.value.offset
            places[group.group_id, tp] = at, owners.get(tp)
    partitions = dict.fromkeys((tp for _, tp in places), OffsetSpec.LATEST)
    ends = admin.list_offsets(partitions, timeout=ENDS_S)
    # A leader that is gone has the same error for all its partitions.
    for words in dict.fromkeys(f"not all ends are known: {error}" for error in ends.errors.values()) | unknown:
        complain(words)
    rows: list[dict[str, object]] = []
    for (group_id, tp), (at, owner) in places.items():
        last = ends[tp].value
        rows.append(
            {
                "group": group_id,
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": at,
                "end": None if last is None else last.offset,
                "lag": None if last is None or at is None else max(0, last.offset - at),
                "member": owner.member_id if owner is not None else None,
                "client": owner.client_id if owner is not None else None,
                "host": owner.host if owner is not None else None,
            }
        )
    return rows


# -- changing ----------------------------------------------------------------------------------------------------------------


def run_delete(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        outcomes = admin.delete_groups(options.groups)
    return _tell_outcomes(options, "group", "deleted", outcomes)


def run_delete_offsets(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        outcomes = admin.delete_group_offsets(options.group, partitions_of(admin, options.topic))
    return _tell_outcomes(options, "partition", "deleted", outcomes)


def run_remove(options: argparse.Namespace) -> int:
    if options.all == bool(options.instance or options.member):
        raise UsageError("say who: --instance ID or --member ID, or --all")
    with opened_admin(options) as admin:
        outcomes = admin.remove_members(options.group, instance_ids=options.instance, member_ids=options.member)
    return _tell_outcomes(options, "member", "removed", outcomes)


def _tell_outcomes(options: argparse.Namespace, what: str, done: str, outcomes: Any) -> int:
    """What became of each item; 1 when one failed."""
    if options.json:
        rows = [{what: str(key), "error": str(o.error) if o.error else None} for key, o in outcomes.items()]
        print_json(rows, options.json)
    else:
        for key, outcome in outcomes.items():
            if outcome.error is None:
                print(f"{done} {key}")
            else:
                complain(f"{key}: {outcome.error}")
    return 1 if outcomes.errors else 0
