"""`fastq groups`: list and describe consumer groups, move and delete their offsets, put members out, delete groups.

Rules: what a reset would do is shown unless `--execute` is given. A file of offsets has lines `topic,partition,offset`, as
Kafka's tools write and read them; `--export` prints that form.
"""

from __future__ import annotations

import argparse
import csv
import re
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, described, opened_admin
from fastq.cli.output import (
    INT64_MAX,
    Subparsers,
    UsageError,
    add_json_option,
    complain,
    is_name,
    is_whole,
    nonempty,
    of_known,
    print_json,
    print_records,
    read_text,
    whole,
)
from fastq.words import read_time_ms

if TYPE_CHECKING:
    from fastq import TopicPartition
    from fastq.admin import Admin, GroupDescription, GroupMember, OffsetReset


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
    describe.add_argument("groups", type=nonempty, nargs="*", metavar="GROUP")
    describe.add_argument("--all-groups", action="store_true", help="all consumer groups that there are")
    style = describe.add_mutually_exclusive_group()
    style.add_argument("--members", action="store_true", help="a line a member: host, assignment, epoch")
    style.add_argument("--state", action="store_true", help="a line a group: state, protocol, coordinator")
    describe.set_defaults(run=run_describe)

    reset = kinds.add(
        "reset-offsets",
        "Show where a group's offsets would go, and with --execute move them. The group must have no members.",
        "fastq groups reset-offsets billing --topic orders --to-datetime 2026-11-21T10:00:00 --execute",
    )
    reset.add_argument("group", type=nonempty)
    _add_reset_options(reset)
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


def add_topic_option(parser: Any, *, required: bool = False) -> None:
    parser.add_argument(
        "--topic",
        type=nonempty,
        action="append",
        default=[],
        required=required,
        metavar="TOPIC[:P,P...]",
        help="this topic, or some of its partitions; may be repeated",
    )


def _add_reset_options(parser: argparse.ArgumentParser) -> None:
    add_topic_option(parser)
    parser.add_argument("--execute", action="store_true", help="move them; without it nothing is changed")
    parser.add_argument(
        "--export", action="store_true", help="print topic,partition,offset lines, as --from-file reads"
    )
    where = parser.add_mutually_exclusive_group(required=True)
    add = where.add_argument
    add("--to-earliest", action="store_true", help="the first record that is there")
    add("--to-latest", action="store_true", help="the end: only what comes from now on")
    add("--to-current", action="store_true", help="what is committed; the end where nothing is")
    add("--to-datetime", metavar="WHEN", help="an ISO date and time (local unless it says), or milliseconds since 1970")
    add("--by-duration", metavar="DURATION", help="so long ago: 90s, 15m, 2h, 7d, or ISO 8601 as PT1H30M")
    add(
        "--shift-by",
        type=whole(-INT64_MAX, INT64_MAX),
        metavar="N",
        help="N records further, or back where it is negative",
    )
    add("--to-offset", type=whole(0, INT64_MAX), metavar="N", help="this offset, in every partition")
    add("--from-file", type=Path, metavar="FILE", help="lines topic,partition,offset; - is standard input")


# -- looking -----------------------------------------------------------------------------------------------------------------


def run_list(options: argparse.Namespace) -> int:
    from fastq.admin.group_types import GROUP_STATES, GROUP_TYPES

    states, types = of_known(options.state, GROUP_STATES, "--state"), of_known(options.type, GROUP_TYPES, "--type")
    with opened_admin(options) as admin:
        found = admin.list_groups(states=states, types=types)
    rows = [
        {"group": group.group_id, "type": group.type, "protocol": group.protocol_type or None, "state": group.state}
        for group in found.values()
    ]
    print_records(["group", "type", "protocol", "state"], rows, options.json)
    return 0


def run_describe(options: argparse.Namespace) -> int:
    if bool(options.groups) == options.all_groups:
        raise UsageError("say which: GROUP, or --all-groups")
    with opened_admin(options) as admin:
        named = options.groups or sorted(admin.list_groups(types=["Classic", "Consumer"]))
        groups = admin.describe_groups(named).results() if named else {}
        if options.state:
            columns = ["group", "type", "state", "protocol", "assignor", "members", "coordinator", "epoch"]
            rows = [_state_row(group) for group in groups.values()]
        elif options.members:
            columns = ["group", "member", "instance", "client", "host", "partitions", "epoch", "assignment"]
            rows = [_member_row(group, member) for group in groups.values() for member in group.members]
        else:
            columns = ["group", "topic", "partition", "committed", "end", "lag", "member", "client", "host"]
            rows = [row for group in groups.values() for row in _lag_rows(admin, group)]
    print_records(columns, rows, options.json)
    return 0


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


def _lag_rows(admin: Admin, group: GroupDescription) -> list[dict[str, object]]:
    """A line for each partition that the group has committed in, or that a member reads."""
    owners = {tp: member for member in group.members for tp in member.assignment}
    lags = dict(admin.group_lag(group.group_id))
    lags.update(admin.group_lag(group.group_id, [tp for tp in owners if tp not in lags]))
    rows: list[dict[str, object]] = []
    for tp in sorted(lags):
        found, owner = lags[tp].value, owners.get(tp)
        rows.append(
            {
                "group": group.group_id,
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": found.committed if found is not None else None,
                "end": found.end if found is not None else None,
                "lag": found.lag if found is not None else None,
                "member": owner.member_id if owner is not None else None,
                "client": owner.client_id if owner is not None else None,
                "host": owner.host if owner is not None else None,
            }
        )
    return rows


# -- changing ----------------------------------------------------------------------------------------------------------------


def run_reset(options: argparse.Namespace) -> int:
    if options.export and options.json:
        raise UsageError("--export and --json are two forms of the same output: give one")
    reset = reset_of(options)
    with opened_admin(options) as admin:
        partitions = partitions_of(admin, options.topic) if options.topic else None
        plan = admin.reset_group_offsets(options.group, reset, partitions=partitions, dry_run=not options.execute)
    if options.export:
        for tp, change in plan.items():
            print(f"{tp.topic},{tp.partition},{change.after}")
    else:
        rows: list[dict[str, object]] = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "before": change.before,
                "after": change.after,
                "start": change.start,
                "end": change.end,
            }
            for tp, change in plan.items()
        ]
        print_records(["topic", "partition", "before", "after", "start", "end"], rows, options.json)
    for tp, change in plan.items():
        if change.clamped:
            complain(f"{tp}: what was asked for is not there, {change.after} is the nearest")
    if not plan:
        complain(f"group {options.group} has no offsets; name the topics with --topic")
        return 1
    if not options.execute:
        complain("nothing was changed; --execute does it")
    return 0


def reset_of(options: argparse.Namespace) -> OffsetReset:
    from fastq.admin import OffsetReset

    if options.to_earliest:
        return OffsetReset.to_earliest()
    if options.to_latest:
        return OffsetReset.to_latest()
    if options.to_current:
        return OffsetReset.to_current()
    if options.to_datetime is not None:
        return OffsetReset.to_datetime(_moment(options.to_datetime))
    if options.by_duration is not None:
        return OffsetReset.by_duration(duration(options.by_duration))
    if options.shift_by is not None:
        return OffsetReset.shift_by(options.shift_by)
    if options.to_offset is not None:
        return OffsetReset.to_offset(options.to_offset)
    return OffsetReset.to_offsets(_read_file(options.from_file))


def _moment(text: str) -> int:
    try:
        return read_time_ms(text)
    except ValueError:
        raise UsageError(
            f"a date like 2026-11-21T10:00:00, or milliseconds since 1970, are expected, not {text!r}"
        ) from None


_SHORT_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_ISO_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def duration(text: str) -> timedelta:
    """`15m`, `1h30m`, or ISO 8601 as Kafka's tools take it: `PT1H30M`. UsageError for anything else, and for what leads to before 1970."""
    iso = _ISO_DURATION.fullmatch(text)
    parts = _SHORT_DURATION.findall(text)
    if iso is not None and any(iso.groups()):
        long_s = sum(float(part or 0) * unit_s for part, unit_s in zip(iso.groups(), (86400, 3600, 60, 1), strict=True))
    elif parts and "".join(number + unit for number, unit in parts) == text:
        long_s = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        raise UsageError(f"a duration like 90s, 15m, 1h30m, 7d or PT1H30M is expected, not {text!r}")
    if long_s > time.time():
        raise UsageError(f"a duration that ends after 1970 is expected, not {text!r}")
    return timedelta(seconds=long_s)


def _read_file(path: Path) -> dict[TopicPartition, int]:
    """Lines topic,partition,offset; empty ones and those that begin with # are left out."""
    from fastq import TopicPartition

    offsets: dict[TopicPartition, int] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            row = next(csv.reader([line]), [])
        except csv.Error:
            row = [line]
        if not row or row[0].startswith("#"):
            continue
        topic, *numbers = (cell.strip() for cell in row)
        topic = topic.strip('"')
        wrong = len(numbers) != 2 or not is_whole(numbers[0]) or not is_whole(numbers[1], INT64_MAX)
        if wrong or not is_name(topic):
            raise UsageError(f"{path}, line {number}: topic,partition,offset is expected, not {line!r}")
        offsets[TopicPartition(topic, int(numbers[0]))] = int(numbers[1])
    return offsets


def partitions_of(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    """The partitions that `--topic` options mean: `orders:0,2`, or all of `orders`."""
    from fastq import TopicPartition

    found: list[TopicPartition] = []
    whole: list[str] = []
    for text in topics:
        name, colon, numbers = text.partition(":")
        if not colon:
            whole.append(name)
            continue
        if not name or not all(is_whole(number) for number in numbers.split(",")):
            raise UsageError(f"TOPIC or TOPIC:0,1,2 is expected, not {text!r}")
        found += [TopicPartition(name, int(number)) for number in numbers.split(",")]
    for name, topic in described(admin, whole).items() if whole else ():
        found += [TopicPartition(name, part.index) for part in topic.partitions]
    return list(dict.fromkeys(found))


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
