"""`fastq streams reset`: a Kafka Streams application begins anew, as by Kafka's kafka-streams-application-reset.sh.

Rules: what would be done is shown unless `--execute` is given. The offsets of input topics go where it is asked for, those of intermediate
topics to the end, and the topics that Kafka Streams has made for the application are deleted; nothing else is. All names are looked up
before anything is changed. The state that the instances keep on their own disks is theirs: KafkaStreams#cleanUp() deletes it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, described, opened_admin
from fastq.cli.group_resets import PLAN_COLUMNS, add_places, move_offsets, plan_row, reset_of, tell_clamped
from fastq.cli.output import Subparsers, UsageError, add_json_option, complain, nonempty, print_json, print_table
from fastq.errors import GroupIdNotFound, NonEmptyGroup, UnknownMemberId
from fastq.words import counted

if TYPE_CHECKING:
    from fastq import Admin, TopicPartition
    from fastq.admin import OffsetChange

INTERNAL = re.compile(
    r".*-(changelog|repartition|subscription-registration-topic|subscription-response-topic)"
    r"|.+-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic"
)
"""How Kafka Streams names topics of its own, behind the application's id (Kafka's StreamsResetter)."""


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "streams", "Kafka Streams applications.", "fastq streams reset word-count --input-topics lines"
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))
    reset = kinds.add(
        "reset",
        "Show what would be done for an application to begin anew, and with --execute do it: offsets of input topics go to the first "
        "record or where it is asked for, internal topics are deleted. No instance may run; its own state each deletes by "
        "KafkaStreams#cleanUp().",
        "fastq streams reset word-count --input-topics lines,words --execute",
    )
    reset.add_argument(
        "application", type=nonempty, metavar="APPLICATION", help="the application.id, which is its group's name"
    )
    for option, text in (
        (
            "--input-topics",
            "topics that it reads: their offsets go where one of the options below says (default: the first record)",
        ),
        ("--intermediate-topics", "topics that it writes and reads: their offsets go to the end"),
        ("--internal-topics", "of the topics that Kafka Streams has made for it, delete these alone (default: all)"),
    ):
        reset.add_argument(
            option, type=names, action="extend", default=[], metavar="TOPIC[,...]", help=f"{text}; may be repeated"
        )
    reset.add_argument("--execute", action="store_true", help="do it; without it nothing is changed")
    reset.add_argument(
        "--force",
        action="store_true",
        help="put out members of the group that are left, of instances that have stopped",
    )
    add_places(reset.add_mutually_exclusive_group(), of_streams=True)
    reset.set_defaults(run=run_reset, to_current=False)
    add_client_options(reset)
    add_json_option(reset)


def names(text: str) -> list[str]:
    """The type of options that take topics, separated by commas."""
    return [nonempty(name.strip()) for name in text.split(",")]


def run_reset(options: argparse.Namespace) -> int:
    twice = set(options.input_topics) & set(options.intermediate_topics)
    if twice:
        raise UsageError(f"{', '.join(sorted(twice))}: an input topic or an intermediate one, not both")
    reset = reset_of(options)
    with opened_admin(options) as admin:
        inputs, ends = (_partitions(admin, wanted) for wanted in (options.input_topics, options.intermediate_topics))
        internal = _internal(options, admin.list_topics())
        removed = _leave_no_member(admin, options)
        plan = _move(admin, options, inputs, ends, reset)
        deleted = admin.delete_topics(internal) if options.execute and internal else None
    errors = {} if deleted is None else deleted.errors
    gone = [name for name in internal if name not in errors]
    _print(options, plan, gone, removed)
    for name, error in errors.items():
        complain(f"{name} was not deleted: {error}")
    if not options.execute:
        complain("nothing was changed; --execute does it")
    return 1 if errors else 0


def _partitions(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    from fastq import TopicPartition

    found = described(admin, list(dict.fromkeys(topics))) if topics else {}
    return [TopicPartition(name, part.index) for name, topic in found.items() for part in topic.partitions]


def _internal(options: argparse.Namespace, there: Iterable[str]) -> list[str]:
    """The topics to delete: what is named as the application's own and not named as a topic of the user's."""
    prefix = f"{options.application}-"
    users = {*options.input_topics, *options.intermediate_topics}
    own = sorted(name for name in there if name.startswith(prefix) and INTERNAL.fullmatch(name) and name not in users)
    foreign = [name for name in options.internal_topics if name not in own]
    if foreign:
        raise UsageError(
            f"--internal-topics: {', '.join(foreign)} is none that Kafka Streams has made for {options.application}; there "
            f"{'is' if len(own) == 1 else 'are'} {', '.join(own) or 'none'}"
        )
    return list(dict.fromkeys(options.internal_topics)) or own


def _leave_no_member(admin: Admin, options: argparse.Namespace) -> int:
    """How many members were put out, or would be. Raises NonEmptyGroup where there are some and nobody said --force."""
    outcome = admin.describe_groups([options.application])[options.application]
    if isinstance(outcome.error, GroupIdNotFound):
        return 0
    members = outcome.result().members
    if not members:
        return 0
    if not options.force:
        raise NonEmptyGroup(
            f"the application runs: its group has {counted(len(members), 'member')}. Stop all instances; --force puts out members of those "
            "that have stopped",
            group_id=options.application,
        )
    if options.execute:
        outcomes = admin.remove_members(options.application, member_ids=[member.member_id for member in members])
        for error in outcomes.errors.values():
            # One that has left meanwhile; and one of the consumer protocol (KIP-848), which nobody can put out: it is met again when
            # offsets are to be moved.
            if not isinstance(error, UnknownMemberId):
                raise error
    return len(members)


def _move(
    admin: Admin,
    options: argparse.Namespace,
    inputs: Sequence[TopicPartition],
    ends: Sequence[TopicPartition],
    reset: Any,
) -> dict[TopicPartition, OffsetChange]:
    """Where offsets go, and with --execute went."""
    from fastq.admin import OffsetReset

    plan: dict[TopicPartition, OffsetChange] = {}
    for places, to in ((inputs, reset), (ends, OffsetReset.to_latest())):
        if places:
            plan |= move_offsets(admin, options.application, to, places, dry_run=not options.execute)
    return plan


def _print(
    options: argparse.Namespace, plan: dict[TopicPartition, OffsetChange], topics: list[str], removed: int
) -> None:
    rows = [plan_row(tp, change) for tp, change in plan.items()]
    if options.json:
        print_json(
            {
                "application": options.application,
                "executed": options.execute,
                "members_removed": removed,
                "offsets": rows,
                "deleted": topics,
            },
            options.json,
        )
    else:
        would = "" if options.execute else "would be "
        if removed:
            print(f"{counted(removed, 'member')} {would}put out of the group")
        if rows:
            print_table(PLAN_COLUMNS, [[row[name] for name in PLAN_COLUMNS] for row in rows])
        for name in topics:
            print(f"{would}deleted {name}")
        if not rows and not topics:
            print("there is nothing to do: no topic of its own is there, and no --input-topics were given")
    for tp, change in plan.items():
        tell_clamped(tp, change)
