"""`fastq partitions`: which nodes have them and which lead: reassign, elect, rebalance."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastq.cli import reassign, reassign_throttles
from fastq.cli.clients import add_client_options, described, opened_admin
from fastq.cli.output import (
    Subparsers,
    UsageError,
    add_json_option,
    complain,
    count,
    nonempty,
    print_json,
    print_records,
    print_table,
    whole,
)
from fastq.cli.partition_names import add_topic_option, partitions_of
from fastq.cli.reassignment_files import assignment_document, read_partitions
from fastq.errors import ElectionNotNeeded
from fastq.words import counted

if TYPE_CHECKING:
    from fastq import TopicPartition
    from fastq.admin import TopicDescription

Replicas = Mapping["TopicPartition", Sequence[int]]


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "partitions", "Replicas and leaders: move, elect, even out.", "fastq partitions rebalance"
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))

    moves = reassign.register(kinds)

    elect = kinds.add(
        "elect", "Elect leaders: the preferred ones, or whoever is left.", "fastq partitions elect preferred --all"
    )
    elect.add_argument(
        "kind",
        metavar="preferred|unclean",
        choices=["preferred", "unclean"],
        help="the first replica of the list, or, where no replica in sync is left, any that lives: records are lost then",
    )
    which = elect.add_mutually_exclusive_group(required=True)
    add_topic_option(which)
    which.add_argument("--file", metavar="FILE", help='{"partitions": [{"topic", "partition"}]}; - is standard input')
    which.add_argument("--all", action="store_true", help="every partition that needs it")
    elect.set_defaults(run=run_elect)

    rebalance = kinds.add(
        "rebalance",
        "Plan few moves that give nodes equally many replicas and leaders, with racks apart.",
        "fastq partitions rebalance --drain 3 --execute",
    )
    rebalance.add_argument(
        "--topic", type=nonempty, action="append", default=[], help="only this topic's; may be repeated"
    )
    rebalance.add_argument(
        "--drain",
        type=whole(),
        action="append",
        default=[],
        metavar="NODE",
        help="take all from this node; may be repeated",
    )
    rebalance.add_argument(
        "--replication-factor",
        type=whole(1),
        metavar="N",
        help="how many replicas each partition is to have (default: as many as it has)",
    )
    what = rebalance.add_mutually_exclusive_group()
    what.add_argument("--execute", action="store_true", help="begin the moves; without it nothing is changed")
    what.add_argument(
        "--verify",
        action="store_true",
        help="whether anything still moves, exit code 1 until nothing does; then take throttles away",
    )
    rebalance.add_argument("--throttle", type=count, metavar="BYTES", help=reassign.THROTTLE_HELP)
    rebalance.set_defaults(run=run_rebalance)

    for action in (moves, elect, rebalance):
        add_client_options(action)
        add_json_option(action)


# -- elections ---------------------------------------------------------------------------------------------------------------


def run_elect(options: argparse.Namespace) -> int:
    from fastq.admin import ElectionType

    named = None if options.file is None else read_partitions(options.file)
    with opened_admin(options) as admin:
        if options.topic:
            named = partitions_of(admin, options.topic)
        outcomes = admin.elect_leaders(ElectionType[options.kind.upper()], named)
    failed = {tp: error for tp, error in outcomes.errors.items() if not isinstance(error, ElectionNotNeeded)}
    rows: list[dict[str, object]] = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "result": "failed" if tp in failed else "elected" if outcome.error is None else "not needed",
        }
        for tp, outcome in outcomes.items()
    ]
    if rows or options.json:
        print_records(["topic", "partition", "result"], rows, options.json)
    else:
        print("no partition needs an election")
    for error in failed.values():
        complain(str(error))
    return 1 if failed else 0


# -- evening out -------------------------------------------------------------------------------------------------------------


def run_rebalance(options: argparse.Namespace) -> int:
    from fastq.admin.balance import plan_balance

    if options.throttle is not None and not options.execute:
        raise UsageError("--throttle is about --execute")
    if options.verify:
        return _verify_moves(options)
    with opened_admin(options) as admin:
        racks = reassign.racks_of(admin)
        before, leaderless = _movable(described(admin, options.topic or None))
        _check_drained(options.drain, racks, {**before, **leaderless})
        # While partitions move, their lists have the old replicas and the new ones: no state to plan from.
        reassign.check_nothing_moves(admin, "a plan takes what is at rest")
        moves = plan_balance(before, racks, options.drain, replication_factor=options.replication_factor)
        failed = {}
        if options.execute and moves:
            reassign_throttles.throttle(admin, before, moves, options.throttle)
            failed = reassign.begin(admin, moves)
    after = {**before, **moves}
    for tp in leaderless:
        complain(f"{tp} has no leader, so there is nothing to copy: it stays as it is")
    if options.json:
        print_json(assignment_document(moves), options.json)
    elif not moves:
        print(f"nothing to move: {_spread(after, racks.keys() - set(options.drain))}")
    else:
        _show_plan(options, before, moves, after, racks)
        _tell_next(options, len(moves) - len(failed), before, moves)
    for error in failed.values():
        complain(str(error))
    return 1 if failed else 0


def _verify_moves(options: argparse.Namespace) -> int:
    """Whether all is done that was begun, whoever began it."""
    if options.drain or options.replication_factor is not None:
        raise UsageError("--verify looks at what moves, it plans nothing: leave --drain and --replication-factor out")
    with opened_admin(options) as admin:
        topics = described(admin, options.topic or None)
        moving = sorted(tp for tp in admin.list_partition_reassignments() if tp.topic in topics)
        freed = None if moving else reassign_throttles.unthrottle(admin, sorted(topics))
    taken = freed is not None and freed.taken
    if options.json:
        print_json({"moving": list(map(str, moving)), "throttles_taken_away": taken}, options.json)
    elif moving:
        print(
            f"{counted(len(moving), 'partition')} {'moves' if len(moving) == 1 else 'move'}; {reassign_throttles.LIST} shows how far"
        )
    else:
        print(f"no partition moves{'; throttles were taken away' if taken else ''}")
    if freed is not None:
        freed.tell()
    return 1 if moving else 0


def _movable(
    topics: Mapping[str, TopicDescription],
) -> tuple[dict[TopicPartition, tuple[int, ...]], dict[TopicPartition, tuple[int, ...]]]:
    """The replicas of the partitions that can be moved, and of those that cannot, as they have no leader."""
    from fastq import TopicPartition

    parts = {TopicPartition(name, part.index): part for name, topic in topics.items() for part in topic.partitions}
    return (
        {tp: part.replicas for tp, part in parts.items() if part.leader is not None},
        {tp: part.replicas for tp, part in parts.items() if part.leader is None},
    )


def _check_drained(drained: Collection[int], racks: Mapping[int, str | None], replicas: Replicas) -> None:
    known = set(racks) | {node for nodes in replicas.values() for node in nodes}
    for node in drained:
        if node not in known:
            raise ValueError(
                f"--drain {node}: there is no such node, and no replica on it; fastq cluster nodes lists them"
            )


def _spread(replicas: Replicas, nodes: Collection[int]) -> str:
    """How evenly nodes have replicas and leaders, in words."""
    from fastq.admin.balance import held_by_node, led_by_node

    held, led = held_by_node(replicas), led_by_node(replicas)
    return (
        f"each node has {_range([held[node] for node in nodes], 'replica')} "
        f"and is the preferred leader of {_range([led[node] for node in nodes], 'partition')}"
    )


def _range(counts: Sequence[int], thing: str) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return counted(high, thing) if low == high else f"{low:,} to {counted(high, thing)}"


def _show_plan(
    options: argparse.Namespace, before: Replicas, moves: Replicas, after: Replicas, racks: Mapping[int, str | None]
) -> None:
    from fastq.admin.balance import held_by_node, led_by_node

    print_table(
        ["topic", "partition", "before", "after"],
        [[tp.topic, tp.partition, list(before[tp]), list(nodes)] for tp, nodes in moves.items()],
    )
    counts = [*map(held_by_node, (before, after)), *map(led_by_node, (before, after))]
    print()
    print_table(
        ["node", "rack", "replicas", "then", "leads", "then"],
        [
            [node, racks.get(node), *(count[node] for count in counts)]
            for node in sorted(set(racks) | set(options.drain) | set(counts[0]))
        ],
    )
    print()


def _tell_next(options: argparse.Namespace, begun: int, before: Replicas, moves: Replicas) -> None:
    copies = sum(len(set(nodes) - set(before[tp])) for tp, nodes in moves.items())
    what = f"{counted(len(moves), 'partition')} {'changes' if len(moves) == 1 else 'change'}, {counted(copies, 'replica')} of "
    what += "them is copied" if copies == 1 else "them are copied"
    if not options.execute:
        print(f"{what}; --execute begins that, --json prints it as a file for fastq partitions reassign")
        return
    print(
        f"{what}; begun with {counted(begun, 'partition')}, {reassign.THROTTLED if options.throttle else reassign.NOT_THROTTLED}"
    )
    print(
        "once fastq partitions rebalance --verify finds it done, fastq partitions elect preferred --all has the leaders follow"
    )
