"""`fastq groups reset-offsets`: where the offsets of groups go.

Rules: what a reset would do is shown unless `--execute` is given. A file of offsets has lines `topic,partition,offset`, or with a group
before them, as Kafka's tools write and read them; `--export` prints that form. Of several groups each is done by itself: one that is
refused leaves the others as they were done.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import opened_admin
from fastq.cli.output import (
    INT64_MAX,
    UsageError,
    complain,
    is_name,
    is_whole,
    nonempty,
    print_records,
    read_text,
    whole,
)
from fastq.cli.partition_names import add_topic_option, partitions_of
from fastq.errors import FastqError, UnknownMemberId
from fastq.words import read_time_ms

if TYPE_CHECKING:
    from fastq import Admin, TopicPartition
    from fastq.admin import OffsetChange, OffsetReset


CONSUMER_TYPES = ("Classic", "Consumer")


def add_group_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("groups", type=nonempty, nargs="*", metavar="GROUP")
    parser.add_argument("--all-groups", action="store_true", help="all consumer groups that there are")


def check_group_names(options: argparse.Namespace) -> None:
    if bool(options.groups) == options.all_groups:
        raise UsageError("say which: GROUP, or --all-groups")


def groups_named(admin: Admin, options: argparse.Namespace) -> list[str]:
    """The groups that are named, each once, or all that have committed offsets or could."""
    if options.groups:
        return list(dict.fromkeys(options.groups))
    return sorted(admin.list_groups(types=CONSUMER_TYPES))


def add_reset_options(parser: argparse.ArgumentParser) -> None:
    add_topic_option(parser)
    parser.add_argument("--execute", action="store_true", help="move them; without it nothing is changed")
    parser.add_argument(
        "--export", action="store_true", help="print [group,]topic,partition,offset lines, as --from-file reads"
    )
    add_places(parser.add_mutually_exclusive_group(required=True))


def add_places(where: Any, *, of_streams: bool = False) -> None:
    """Options of which one says where offsets go."""
    add = where.add_argument
    add("--to-earliest", action="store_true", help="the first record that is there")
    add("--to-latest", action="store_true", help="the end: only what comes from now on")
    if not of_streams:
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
    add("--from-file", type=Path, metavar="FILE", help="lines [group,]topic,partition,offset; - is standard input")


# -- the command


def run_reset(options: argparse.Namespace) -> int:
    check_group_names(options)
    if options.export and options.json:
        raise UsageError("--export and --json are two forms of the same output: give one")
    resets = _resets(options)
    with opened_admin(options) as admin:
        groups = groups_named(admin, options)
        partitions = partitions_of(admin, options.topic) if options.topic else None
        failed: list[tuple[str, FastqError | ValueError]] = []
        plans: dict[str, dict[TopicPartition, OffsetChange]] = {}
        for group in groups:
            reset = resets.get(group, resets.get(None))
            try:
                plans[group] = (
                    {} if reset is None else move_offsets(admin, group, reset, partitions, dry_run=not options.execute)
                )
            except (FastqError, ValueError) as error:
                if len(groups) == 1:
                    raise
                failed.append((group, error))
    _print_plans(plans, options, with_group=options.export and (len(groups) > 1 or None not in resets))
    for group, refusal in failed:
        complain(f"{group}: {refusal}")
    empty = [group for group, plan in plans.items() if not plan]
    for group in empty if not options.all_groups else ():
        complain(f"group {group} has no offsets; name the topics with --topic")
    if not options.execute and len(empty) < len(plans):
        complain("nothing was changed; --execute does it")
    return 1 if failed or (empty and not options.all_groups) else 0


def move_offsets(
    admin: Admin, group: str, reset: OffsetReset, partitions: Sequence[TopicPartition] | None, *, dry_run: bool
) -> dict[TopicPartition, OffsetChange]:
    """The plan of a reset, which is done unless it is a dry run."""
    try:
        return admin.reset_group_offsets(group, reset, partitions=partitions, dry_run=dry_run)
    except UnknownMemberId as error:  # so a coordinator refuses who is no member, while there are some
        hint = f"The group has members: stop them first, fastq groups describe {group} --members shows them"
        raise error.with_context(hint=hint) from None


def _print_plans(
    plans: Mapping[str, Mapping[TopicPartition, OffsetChange]], options: argparse.Namespace, *, with_group: bool
) -> None:
    changes = [(group, tp, change) for group, plan in plans.items() for tp, change in plan.items()]
    if options.export:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        for group, tp, change in changes:
            writer.writerow([*([group] if with_group else []), tp.topic, tp.partition, change.after])
    else:
        rows: list[dict[str, object]] = [{"group": group, **plan_row(tp, change)} for group, tp, change in changes]
        print_records(["group", *PLAN_COLUMNS], rows, options.json)
    for _, tp, change in changes:
        tell_clamped(tp, change)


PLAN_COLUMNS = ("topic", "partition", "before", "after", "start", "end")


def plan_row(tp: TopicPartition, change: OffsetChange) -> dict[str, object]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "before": change.before,
        "after": change.after,
        "start": change.start,
        "end": change.end,
    }


def tell_clamped(tp: TopicPartition, change: OffsetChange) -> None:
    if change.clamped:
        complain(f"{tp}: what was asked for is not there, {change.after} is the nearest")


def _resets(options: argparse.Namespace) -> dict[str | None, OffsetReset]:
    """Where the offsets of each group go that a file names, or those of every group (None)."""
    from fastq.admin import OffsetReset

    if options.from_file is None:
        return {None: reset_of(options)}
    found = _read_file(options.from_file)
    given = {*options.groups}
    if None not in found and given and not given <= found.keys():
        raise UsageError(f"{options.from_file} says nothing about {', '.join(sorted(given - {*found}))}")
    return {group: OffsetReset.to_offsets(offsets) for group, offsets in found.items()}


# -- what the arguments say


def reset_of(options: argparse.Namespace) -> OffsetReset:
    from fastq.admin import OffsetReset

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
    if options.from_file is not None:
        found = _read_file(options.from_file)
        if None not in found:
            raise UsageError(f"{options.from_file}: lines topic,partition,offset are expected, without a group")
        return OffsetReset.to_offsets(found[None])
    return OffsetReset.to_earliest()


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


def _read_file(path: Path) -> dict[str | None, dict[TopicPartition, int]]:
    """Lines topic,partition,offset, or with a group before them; empty ones and those that begin with # are left out. Offsets by group,
    None where the lines have none."""
    from fastq import TopicPartition

    found: dict[str | None, dict[TopicPartition, int]] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            row = next(csv.reader([line]), [])
        except csv.Error:
            row = [line]
        if not row or row[0].startswith("#"):
            continue
        cells = [cell.strip() for cell in row]
        *names, partition, offset = cells if len(cells) in (3, 4) else ["", "", ""]
        names = [name.strip('"') for name in names]
        if not (all(map(is_name, names)) and is_whole(partition) and is_whole(offset, INT64_MAX)):
            raise UsageError(f"{path}, line {number}: [group,]topic,partition,offset is expected, not {line!r}")
        *group, topic = names
        if found and bool(group) == (None in found):
            raise UsageError(f"{path}, line {number}: a group in every line or in none is expected, not {line!r}")
        found.setdefault(group[0] if group else None, {})[TopicPartition(topic, int(partition))] = int(offset)
    if not found:
        raise UsageError(f"{path}: no line [group,]topic,partition,offset is in it")
    return found
