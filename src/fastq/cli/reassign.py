"""`fastq partitions reassign`: partitions to other replicas, with the JSON files of Kafka's tool.

Rules: nothing is moved while something else moves, unless that is asked for. What is to be moved is checked before anything is begun, and
where it was is printed first, as a file to go back by. The copying is throttled where that is asked for, as reassign_throttles says, and by
whomever; --verify and --cancel take throttles away once nothing moves.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastq.cli import reassign_throttles
from fastq.cli.clients import described, opened_admin
from fastq.cli.output import UsageError, complain, count, is_whole, print_json, print_records, seconds
from fastq.cli.reassignment_files import Placement, assignment_document, on_one_line, read_assignment, read_topics
from fastq.errors import FastqError, NoReassignmentInProgress, ReplicaNotAvailable
from fastq.metadata import TopicPartition
from fastq.words import counted

if TYPE_CHECKING:
    from fastq import Admin
    from fastq.admin import LogDirDescription, PartitionReassignment, TopicPartitionReplica

LOG_DIRS_TIMEOUT_S = 10.0
NOT_THROTTLED = "the copying is not throttled"
THROTTLE_HELP = "with --execute: bytes a second that each broker sends, and takes, of what moves between brokers (default: no bound)"
THROTTLED = "throttled until --verify finds it done"


def register(kinds: Any) -> argparse.ArgumentParser:
    """The action below `fastq partitions`."""
    parser: argparse.ArgumentParser = kinds.add(
        "reassign",
        "Move partitions to other replicas, with the JSON files of Kafka's tool.",
        "fastq partitions reassign --execute moves.json",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    add = what.add_argument
    add(
        "--generate",
        metavar="TOPICS",
        help='propose moves of {"topics": [{"topic": NAME}]} to --brokers; nothing moves',
    )
    add(
        "--execute",
        metavar="MOVES",
        help='begin {"partitions": [{"topic", "partition", "replicas"}]}; - is standard input',
    )
    add("--verify", metavar="MOVES", help="what of it is done, under way and failed; exit code 1 until all is done")
    add("--cancel", metavar="MOVES", help="stop what of it is under way: partitions go back to their former replicas")
    add("--list", action="store_true", help="all partitions that move")
    parser.add_argument("--brokers", metavar="ID[,ID...]", help="with --generate: the nodes that are to have them")
    parser.add_argument("--additional", action="store_true", help="with --execute: also while others move")
    parser.add_argument(
        "--same-factor", action="store_true", help="with --execute: refuse to change how many replicas there are"
    )
    parser.add_argument(
        "--throttle",
        type=count,
        metavar="BYTES",
        help=THROTTLE_HELP,
    )
    parser.add_argument(
        "--replica-alter-log-dirs-throttle",
        type=count,
        metavar="BYTES",
        help="with --execute: bytes a second that each broker copies between its directories (default: no bound)",
    )
    parser.add_argument(
        "--preserve-throttles",
        action="store_true",
        help="with --verify and --cancel: leave throttles as they are; else they go once nothing moves",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help=f"with --execute: how long brokers may take to begin log_dirs (default: {LOG_DIRS_TIMEOUT_S:.0f})",
    )
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    _check(options)
    if options.generate is not None:
        return _generate(options)
    if options.execute is not None:
        return _execute(options)
    if options.verify is not None:
        return _verify(options)
    return _cancel(options) if options.cancel is not None else _list(options)


def _check(options: argparse.Namespace) -> None:
    if (options.brokers is not None) != (options.generate is not None):
        raise UsageError("--generate TOPICS and --brokers ID,ID go together")
    for name in ("additional", "same_factor", "throttle", "replica_alter_log_dirs_throttle", "timeout"):
        if getattr(options, name) and options.execute is None:
            raise UsageError(f"--{name.replace('_', '-')} is about --execute")
    if options.preserve_throttles and options.verify is None and options.cancel is None:
        raise UsageError("--preserve-throttles is about --verify and --cancel")


# -- proposing ---------------------------------------------------------------------------------------------------------------


def _generate(options: argparse.Namespace) -> int:
    from fastq.admin.balance import plan_balance

    topics = read_topics(options.generate)
    with opened_admin(options) as admin:
        racks = racks_of(admin)
        nodes = _node_ids(options.brokers, racks)
        before = replicas_of_topics(admin, topics)
    elsewhere = {node for replicas in before.values() for node in replicas} - set(nodes)
    after = {**before, **plan_balance(before, {node: racks[node] for node in nodes}, elsewhere)}
    if options.json:
        print_json({"current": assignment_document(before), "proposed": assignment_document(after)}, options.json)
    else:
        print(f"current replicas\n{on_one_line(before)}\n\nproposed replicas\n{on_one_line(after)}")
    return 0


def _node_ids(text: str, known: Collection[int]) -> list[int]:
    ids = text.split(",")
    if not all(is_whole(node.strip()) for node in ids):
        raise UsageError(f"--brokers takes ids as 1,2,3, not {text!r}")
    nodes = sorted({int(node) for node in ids})
    check_nodes(nodes, known)
    return nodes


def check_nodes(nodes: Iterable[int], known: Collection[int]) -> None:
    """ValueError for a node that is not running."""
    missing = sorted(set(nodes) - set(known))
    if missing:
        raise ValueError(
            f"{_nodes(missing)} {'is' if len(missing) == 1 else 'are'} not running; fastq cluster nodes lists those that are"
        )


def _nodes(nodes: Sequence[int]) -> str:
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(map(str, nodes))}"


def racks_of(admin: Admin) -> dict[int, str | None]:
    """The running brokers, with their racks."""
    return {node.node_id: node.rack for node in admin.describe_cluster().nodes}


def replicas_of_topics(admin: Admin, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas of all partitions of topics."""
    found = described(admin, topics)
    return {
        TopicPartition(name, part.index): part.replicas for name, topic in found.items() for part in topic.partitions
    }


# -- moving ------------------------------------------------------------------------------------------------------------------


def _execute(options: argparse.Namespace) -> int:
    wanted = read_assignment(options.execute)
    with opened_admin(options) as admin:
        check_nodes({node for place in wanted.values() for node in place.replicas}, racks_of(admin))
        before = _present(admin, wanted)
        if not options.additional:
            check_nothing_moves(admin, "--additional begins all the same")
        moves = {tp: place.replicas for tp, place in wanted.items()}
        if not options.json:
            print(f"replicas before; --execute goes back to them:\n{on_one_line(before)}\n")
        bounds = options.throttle, options.replica_alter_log_dirs_throttle
        reassign_throttles.throttle(admin, before, moves, options.throttle)
        reassign_throttles.throttle_log_dirs(admin, wanted, options.replica_alter_log_dirs_throttle)
        failed = begin(admin, moves, allow_other_factor=not options.same_factor)
        waiting = _move_logs(admin, {tp: place for tp, place in wanted.items() if tp not in failed}, options.timeout)
    failed |= waiting
    begun = [tp for tp in wanted if tp not in failed]
    if options.json:
        print_json(
            {"before": assignment_document(before), "begun": list(map(str, begun)), "failed": _texts(failed)},
            options.json,
        )
    else:
        _tell_begun(begun, options.execute, THROTTLED if any(bounds) else NOT_THROTTLED)
    for error in failed.values():
        complain(str(error))
    return 1 if failed else 0


def _tell_begun(begun: Sequence[TopicPartition], path: str, how: str) -> None:
    if not begun:
        print("nothing was begun" + ("" if how == NOT_THROTTLED else "; --verify takes the throttles away"))
        return
    # What was read from standard input cannot be named again.
    look = "--list" if path == "-" else f"--verify {path}"
    print(f"begun with {counted(len(begun), 'partition')}, {how}; fastq partitions reassign {look} tells how far")


def _texts(errors: Mapping[TopicPartition, FastqError]) -> dict[str, str]:
    return {str(tp): str(error) for tp, error in errors.items()}


def check_nothing_moves(admin: Admin, hint: str) -> None:
    """ValueError while partitions move."""
    moving = len(admin.list_partition_reassignments())
    if moving:
        verb, them = ("moves", "it") if moving == 1 else ("move", "them")
        raise ValueError(
            f"{counted(moving, 'partition')} {verb} already: {reassign_throttles.LIST} shows {them}, {hint}"
        )


def _present(admin: Admin, wanted: Mapping[TopicPartition, Placement]) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas that partitions have now; UnknownTopicOrPartition or ValueError for one that is not there."""
    found = replicas_of_topics(admin, list(dict.fromkeys(tp.topic for tp in wanted)))
    for tp in wanted:
        if tp not in found:
            raise ValueError(f"{tp} is not there; fastq topics describe {tp.topic} lists the partitions that are")
    return {tp: found[tp] for tp in wanted}


def begin(
    admin: Admin, moves: Mapping[TopicPartition, Sequence[int]], *, allow_other_factor: bool = True
) -> dict[TopicPartition, FastqError]:
    """Begin to move partitions; those that were refused, and why."""
    # An older broker cannot refuse another factor: it is asked to only where somebody wants it.
    outcomes = admin.alter_partition_reassignments(moves, allow_replication_factor_change=allow_other_factor)
    return outcomes.errors


def _move_logs(
    admin: Admin, wanted: Mapping[TopicPartition, Placement], timeout_s: float | None
) -> dict[TopicPartition, FastqError]:
    """Begin to move logs to the directories that are named; what was refused."""
    from fastq.admin import TopicPartitionReplica

    moves = {
        TopicPartitionReplica(tp.topic, tp.partition, node): path
        for tp, place in wanted.items()
        for node, path in zip(place.replicas, place.log_dirs, strict=True)
        if path is not None
    }
    if not moves:
        return {}
    outcomes = admin.alter_replica_log_dirs(moves, timeout=LOG_DIRS_TIMEOUT_S if timeout_s is None else timeout_s)
    return {
        TopicPartition(replica.topic, replica.partition): error.with_context(
            hint=f"The answer has no words for it: the log of node {replica.broker_id} may say why"
        )
        # A log that is still to come is made where the broker was told to have it.
        for replica, error in outcomes.errors.items()
        if not isinstance(error, ReplicaNotAvailable)
    }


# -- looking and cancelling --------------------------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        moving = admin.list_partition_reassignments()
        sizes = _sizes_bytes(admin, moving)
    rows: list[dict[str, object]] = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "replicas": list(move.replicas),
            "adding": list(move.adding_replicas),
            "removing": list(move.removing_replicas),
            "copied_percent": move.copied_percent(sizes.get(tp, {})),
        }
        for tp, move in moving.items()
    ]
    if rows or options.json:
        columns = ["topic", "partition", "replicas", "adding", "removing", "copied_percent"]
        print_records(columns, rows, options.json)
    else:
        print("no partition moves")
    return 0


def _sizes_bytes(
    admin: Admin, moving: Mapping[TopicPartition, PartitionReassignment]
) -> dict[TopicPartition, dict[int, int]]:
    """What replicas that move take on the disks of their nodes; without those of nodes that do not run, or may not be asked."""
    sizes: dict[TopicPartition, dict[int, int]] = {tp: {} for tp in moving}
    if not moving:
        return sizes
    concerned = {node for move in moving.values() for node in move.replicas}
    running = [node.node_id for node in admin.describe_cluster().nodes if node.node_id in concerned]
    found = admin.describe_log_dirs(running, topics=sorted({tp.topic for tp in moving}))
    for node, outcome in found.items():
        for directory in outcome.value or ():
            for info in directory.replicas:
                if info.topic_partition in sizes and not info.is_future:
                    sizes[info.topic_partition][node] = info.size_bytes
    return sizes


def _verify(options: argparse.Namespace) -> int:
    wanted = read_assignment(options.verify)
    with opened_admin(options) as admin:
        moving = admin.list_partition_reassignments(wanted)
        outcomes = admin.describe_topics(list(dict.fromkeys(tp.topic for tp in wanted)))
        present = {
            TopicPartition(name, part.index): part.replicas
            for name, outcome in outcomes.items()
            if outcome.error is None
            for part in outcome.result().partitions
        }
        logs = _logs(admin, wanted)
        sizes = _sizes_bytes(admin, moving)
        rows: list[dict[str, object]] = []
        for tp, place in wanted.items():
            state, detail = progress(place, present.get(tp), moving.get(tp), sizes.get(tp, {}))
            if state == "done":
                state, detail = log_progress(tp, place, logs)
            rows.append(
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "replicas": list(place.replicas),
                    "state": state,
                    "detail": detail or None,
                }
            )
        counts = Counter(row["state"] for row in rows)
        keeps = options.preserve_throttles or counts["under way"] > 0
        freed = None if keeps else _unthrottle(admin, wanted)
    print_records(["topic", "partition", "replicas", "state", "detail"], rows, options.json)
    if not options.json:
        print(f"\n{counts['done']} done, {counts['under way']} under way, {counts['failed']} failed")
    _tell_freed(freed, options)
    return 0 if counts["done"] == len(rows) else 1


def progress(
    place: Placement,
    present: Sequence[int] | None,
    moving: PartitionReassignment | None,
    sizes_bytes: Mapping[int, int],
) -> tuple[str, str]:
    """How far a partition is on its way: `done`, `under way` or `failed`, and more about it."""
    if present is None:
        return "failed", "the partition is not there"
    if moving is not None:
        there = set(moving.target) == set(place.replicas)
        detail = "; ".join(
            f"{what} {', '.join(map(str, nodes))}"
            for what, nodes in (("adding", moving.adding_replicas), ("removing", moving.removing_replicas))
            if nodes
        )
        if there:
            copied = moving.copied_percent(sizes_bytes)
            return "under way", detail if copied is None else f"{detail}; {copied} % copied"
        return "failed", f"it moves to {', '.join(map(str, moving.target))} instead"
    if tuple(present) == place.replicas:
        return "done", ""
    return "failed", f"it has {', '.join(map(str, present))}, and does not move"


Logs = dict["TopicPartitionReplica", list[tuple[str, bool]]]
"""The directories that have a replica, and whether it is still a copy on its way there."""


def _logs(admin: Admin, wanted: Mapping[TopicPartition, Placement]) -> Logs:
    """Where the logs are, of the partitions whose directories matter."""
    named = {tp: place for tp, place in wanted.items() if any(place.log_dirs)}
    if not named:
        return {}
    nodes = {node for place in named.values() for node in place.replicas}
    found = admin.describe_log_dirs(sorted(nodes), topics=sorted({tp.topic for tp in named}))
    return _by_replica({node: outcome.result() for node, outcome in found.items() if outcome.error is None})


def _by_replica(found: Mapping[int, Iterable[LogDirDescription]]) -> Logs:
    from fastq.admin import TopicPartitionReplica

    logs: Logs = {}
    for node, directories in found.items():
        for directory in directories:
            for info in directory.replicas:
                replica = TopicPartitionReplica(*info.topic_partition, node)
                logs.setdefault(replica, []).append((directory.path, info.is_future))
    return logs


def log_progress(tp: TopicPartition, place: Placement, logs: Logs) -> tuple[str, str]:
    """How far the logs of a partition are, whose replicas are where they are to be."""
    from fastq.admin import TopicPartitionReplica

    for node, path in zip(place.replicas, place.log_dirs, strict=True):
        if path is None:
            continue
        places = logs.get(TopicPartitionReplica(*tp, node), [])
        if (path, True) in places:
            return "under way", f"its log on node {node} is copied to {path}"
        if (path, False) not in places:
            where = places[0][0] if places else "no directory that answers"
            return "failed", f"its log on node {node} is in {where}, not in {path}"
    return "done", ""


def _cancel(options: argparse.Namespace) -> int:
    wanted = read_assignment(options.cancel)
    with opened_admin(options) as admin:
        outcomes = admin.alter_partition_reassignments(dict.fromkeys(wanted))
        stayed = _stay(admin, wanted)
        freed = None if options.preserve_throttles else _unthrottle(admin, wanted)
    idle = [tp for tp, error in outcomes.errors.items() if isinstance(error, NoReassignmentInProgress)]
    failed = {tp: error for tp, error in outcomes.errors.items() if tp not in idle} | stayed
    cancelled = [tp for tp in wanted if tp not in outcomes.errors]
    if options.json:
        print_json(
            {"cancelled": list(map(str, cancelled)), "not_moving": list(map(str, idle)), "failed": _texts(failed)},
            options.json,
        )
    else:
        moves = f"{counted(len(cancelled), 'move')}: {', '.join(map(str, cancelled))}" if cancelled else "nothing"
        print(f"cancelled {moves}")
        if idle:
            print(f"{counted(len(idle), 'partition')} did not move: {', '.join(map(str, idle))}")
    _tell_freed(freed, options)
    for error in failed.values():
        complain(str(error))
    return 1 if failed else 0


def _unthrottle(admin: Admin, wanted: Iterable[TopicPartition]) -> reassign_throttles.Freed:
    return reassign_throttles.unthrottle(admin, sorted({tp.topic for tp in wanted}))


def _tell_freed(freed: reassign_throttles.Freed | None, options: argparse.Namespace) -> None:
    if freed is not None:
        if freed.taken and not options.json:
            print("throttles were taken away")
        freed.tell()


def _stay(admin: Admin, wanted: Mapping[TopicPartition, Placement]) -> dict[TopicPartition, FastqError]:
    """Logs that are copied to the directories named stay where they are: told to go there, brokers drop the copies."""
    back = {
        replica: current
        for replica, places in _logs(admin, wanted).items()
        if any(future for _, future in places)
        for current, future in places
        if not future and TopicPartition(replica.topic, replica.partition) in wanted
    }
    outcomes = admin.alter_replica_log_dirs(back) if back else None
    errors = outcomes.errors if outcomes is not None else {}
    return {TopicPartition(replica.topic, replica.partition): error for replica, error in errors.items()}
