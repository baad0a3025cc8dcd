"""`fastq topics`: list, describe, create, alter and delete topics, add partitions, delete records."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Sequence
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
    key_values,
    nonempty,
    print_json,
    print_records,
    read_text,
    sent,
    whole,
)
from fastq.errors import TopicAlreadyExists, UnknownTopicOrPartition
from fastq.words import counted

if TYPE_CHECKING:
    from fastq import Admin
    from fastq.admin import PartitionDescription

MIN_ISR = "min.insync.replicas"
OFFSETS_TIMEOUT_MS = 10_000
"""How long a leader may take to tell them, and is looked for where it is silent: who leads in its place is mostly known sooner."""
RARE = ("offline", "elr", "last_known_elr")


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "topics", "List, make, change and delete topics.", "fastq topics create logs --partitions 6"
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))

    listing = kinds.add("list", "Names of all topics.", "fastq topics list")
    listing.add_argument("--internal", action="store_true", help="those of the brokers' own too")
    add_pattern_option(listing)
    listing.set_defaults(run=run_list)

    describe = kinds.add("describe", "Partitions of topics: leader, replicas, offsets.", "fastq topics describe logs")
    describe.add_argument(
        "topics",
        type=nonempty,
        nargs="*",
        metavar="TOPIC",
        help="may be left out with an option below: all topics then",
    )
    add_pattern_option(describe)
    only = describe.add_mutually_exclusive_group()
    only.add_argument("--under-replicated", action="store_true", help="only partitions with a replica out of sync")
    only.add_argument("--unavailable", action="store_true", help="only partitions without a leader")
    only.add_argument(
        "--at-min-isr",
        action="store_true",
        help="only partitions with just min.insync.replicas in sync: one less, no writes",
    )
    only.add_argument(
        "--under-min-isr", action="store_true", help="only partitions with fewer than that in sync: acks=all is refused"
    )
    describe.add_argument(
        "--states",
        action="store_true",
        help="a line a replica: its state and its partition's, and its offsets (LW, LSO, HW, LEO) where its node tells them",
    )
    describe.set_defaults(run=run_describe)

    create = kinds.add(
        "create", "Make a topic.", "fastq topics create logs --partitions 6 --config retention.ms=3600000"
    )
    create.add_argument("topic", type=nonempty)
    create.add_argument("--partitions", type=whole(1), metavar="N", default=-1, help="how many (default: the broker's)")
    create.add_argument(
        "--replication-factor", type=whole(1), metavar="N", default=-1, help="copies of each (default: the broker's)"
    )
    create.add_argument(
        "--config", type=sent, metavar="KEY=VALUE", action="append", default=[], help="a topic setting; may be repeated"
    )
    create.add_argument(
        "--replica-assignment",
        metavar="1:2,2:3",
        help="the nodes of each partition, the preferred leader first, instead of both numbers",
    )
    create.add_argument("--validate-only", action="store_true", help="check all and make nothing")
    create.add_argument("--if-not-exists", action="store_true", help="leave a topic that is there as it is; no failure")
    create.set_defaults(run=run_create)

    grow = kinds.add(
        "add-partitions", "Raise the number of partitions to a total.", "fastq topics add-partitions logs 12"
    )
    grow.add_argument("topic", type=nonempty)
    grow.add_argument("total", type=whole(1), help="the new number of partitions; it cannot be lowered")
    grow.set_defaults(run=run_add_partitions)

    delete = kinds.add("delete", "Delete topics with all their records.", "fastq topics delete logs")
    delete.add_argument("topics", type=nonempty, nargs="*", metavar="TOPIC")
    add_pattern_option(delete)
    delete.add_argument(
        "--execute",
        action="store_true",
        help="with --include: delete them; without it they are named, and nothing is changed",
    )
    delete.add_argument("--if-exists", action="store_true", help="a topic that is not there is no failure")
    delete.set_defaults(run=run_delete)

    records = kinds.add(
        "delete-records", "Delete a partition's records before an offset.", "fastq topics delete-records logs:0:5000"
    )
    records.add_argument(
        "places", type=nonempty, nargs="*", metavar="TOPIC:PARTITION:OFFSET", help="offset -1: all that are there now"
    )
    records.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help='such places as JSON, as kafka-delete-records.sh takes it: {"partitions": [{"topic": ..., "partition": ..., "offset": ...}]}',
    )
    records.set_defaults(run=run_delete_records)

    for action in (listing, describe, create, grow, delete, records):
        add_client_options(action)
        add_json_option(action)


def add_pattern_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--include", metavar="REGEX", type=pattern, help="topics whose whole name matches, as Kafka's --topic takes it"
    )


def pattern(text: str) -> re.Pattern[str]:
    """The type of options that take a regular expression."""
    try:
        return re.compile(nonempty(text))
    except (re.error, RecursionError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"a regular expression is expected, not {text!r} ({error})") from None


def _matching(names: Iterable[str], include: re.Pattern[str] | None) -> list[str]:
    return [name for name in names if include is None or include.fullmatch(name)]


def _included(admin: Admin, options: argparse.Namespace) -> list[str]:
    """The names that --include matches; UnknownTopicOrPartition where there is none. Kafka's own topics are not among them."""
    found = _matching(sorted(admin.list_topics()), options.include)
    if not found:
        raise UnknownTopicOrPartition(f"no topic has a name that {options.include.pattern} matches")
    return found


def run_list(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        names = sorted(admin.list_topics(include_internal=options.internal))
    names = _matching(names, options.include)
    if options.json:
        print_json(names, options.json, ["topic"])
    else:
        print("\n".join(names)) if names else None
    return 0


def run_describe(options: argparse.Namespace) -> int:
    from fastq import TopicPartition
    from fastq.admin import OffsetSpec
    from fastq.admin.offsets import list_several

    chosen = _filter(options)
    if options.topics and options.include is not None:
        raise UsageError("TOPIC and --include are two ways to name topics: give one")
    if not options.topics and chosen is None and options.include is None:
        raise UsageError(
            "name a topic, or give --include REGEX, or say which partitions: --under-replicated, --unavailable, --at-min-isr, "
            "--under-min-isr"
        )
    rows: list[dict[str, object]] = []
    with opened_admin(options) as admin:
        topics = described(admin, _included(admin, options) if options.include is not None else options.topics or None)
        shown = [(name, part) for name, topic in topics.items() for part in topic.partitions]
        if chosen is not None:
            minimum = _min_isr(admin, list(topics)) if options.at_min_isr or options.under_min_isr else {}
            shown = [(name, part) for name, part in shown if chosen(part, minimum.get(name, 1))]
        if options.states:
            return _print_states(admin, shown, options.json)
        # The offsets of a partition without a leader would be waited for.
        places = [TopicPartition(name, part.index) for name, part in shown if part.leader is not None]
        times = [dict.fromkeys(places, spec) for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)]
        first, last = admin._client.run(
            list_several(times, read_committed=False, timeout_ms=OFFSETS_TIMEOUT_MS), OFFSETS_TIMEOUT_MS / 1000
        )
    # A leader that is gone has the same error for all its partitions.
    for words in dict.fromkeys(str(error) for error in [*first.errors.values(), *last.errors.values()]):
        complain(f"not all offsets are known: {words}")
    for name, part in shown:
        place = TopicPartition(name, part.index)
        ends = (found[place].value if place in found else None for found in (first, last))
        start, end = (found.offset if found is not None else None for found in ends)
        rows.append(
            {
                "topic": name,
                "partition": part.index,
                "leader": part.leader.node_id if part.leader is not None else None,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "offline": list(part.offline_replicas),
                "elr": None if part.elr is None else list(part.elr),
                "last_known_elr": None if part.last_known_elr is None else list(part.last_known_elr),
                "epoch": part.leader_epoch,
                "start": start,
                "end": end,
            }
        )
    columns = [
        "topic",
        "partition",
        "leader",
        "replicas",
        "isr",
        "offline",
        "elr",
        "last_known_elr",
        "epoch",
        "start",
        "end",
    ]
    if not options.json:  # seldom there, and a terminal is narrow
        columns = [name for name in columns if name not in RARE or any(row[name] for row in rows)]
    print_records(columns, rows, options.json)
    return 0


def _print_states(admin: Admin, shown: Sequence[tuple[str, PartitionDescription]], shape: str) -> int:
    """A line a replica."""
    from fastq import TopicPartition
    from fastq.admin.replica_states import replica_states

    partitions = {TopicPartition(name, part.index): part for name, part in shown}
    moving = admin.list_partition_reassignments(list(partitions)) if partitions else {}
    adding = {tp: move.adding_replicas for tp, move in moving.items()}
    states = admin._client.run(replica_states(partitions, adding))
    for node, error in states.silent.items():
        complain(f"node {node} does not tell how far its logs reach: {error}")
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "state": status.state,
            "epoch": partitions[tp].leader_epoch,
            "node": replica.node_id,
            "replica": replica.state,
            "role": "leader" if replica.is_leader else "follower",
            "isr": replica.in_sync if shape else "yes" if replica.in_sync else "no",
            "elr": replica.eligible if shape else "yes" if replica.eligible else "no",
            "lw": replica.log_start,
            "lso": replica.last_stable,
            "hw": replica.high_watermark,
            "leo": replica.log_end,
        }
        for tp, status in states.found.items()
        for replica in status.replicas
    ]
    names = ["topic", "partition", "state", "epoch", "node", "replica", "role", "isr", "elr", "lw", "lso", "hw", "leo"]
    print_records(names, rows, shape)
    return 0


def _filter(options: argparse.Namespace) -> Callable[[PartitionDescription, int], bool] | None:
    """Which partitions are shown, by what is known of them and the topic's min.insync.replicas; None shows all.

    A topic with fewer replicas than that needs all of them.
    """
    if options.under_replicated:
        return lambda part, _: len(part.isr) < len(part.replicas)
    if options.unavailable:
        return lambda part, _: part.leader is None
    if options.at_min_isr:
        return lambda part, minimum: len(part.isr) == min(minimum, len(part.replicas))
    if options.under_min_isr:
        return lambda part, minimum: len(part.isr) < min(minimum, len(part.replicas))
    return None


def _min_isr(admin: Admin, names: Sequence[str]) -> dict[str, int]:
    from fastq.admin import ConfigResource

    settings = admin.describe_configs([ConfigResource.topic(name) for name in names]).results()
    return {resource.name: int(entries[MIN_ISR].value or 1) for resource, entries in settings.items()}


def _assignment(text: str) -> dict[int, list[int]]:
    """`1:2,2:3` as the nodes of partitions 0 and 1."""
    if not all(is_whole(node.strip()) for nodes in text.split(",") for node in nodes.split(":")):
        raise UsageError(f"--replica-assignment takes the nodes of each partition as 1:2,2:3, not {text!r}")
    found = {index: [int(node) for node in nodes.split(":")] for index, nodes in enumerate(text.split(","))}
    for index, nodes in found.items():
        if len(set(nodes)) < len(nodes):
            raise UsageError(f"--replica-assignment: partition {index} has a node twice: {':'.join(map(str, nodes))}")
    return found


def run_create(options: argparse.Namespace) -> int:
    assignment = None if options.replica_assignment is None else _assignment(options.replica_assignment)
    if assignment is not None and (options.partitions != -1 or options.replication_factor != -1):
        raise UsageError(
            "--replica-assignment says how many partitions and copies there are: leave --partitions and "
            "--replication-factor out"
        )
    configs = dict(key_values(options.config, "--config", once=True))
    with opened_admin(options) as admin:
        try:
            made = admin.create_topic(
                options.topic,
                options.partitions,
                options.replication_factor,
                configs=configs,
                replica_assignments=assignment,
                validate_only=options.validate_only,
            )
        except TopicAlreadyExists as error:
            if not options.if_not_exists:
                raise error.with_context(hint="With --if-not-exists that is no failure") from None
            count = len(admin.describe_topics([options.topic])[options.topic].result().partitions)
            _tell(
                options,
                {"topic": options.topic, "partitions": count, "existed": True},
                f"{options.topic} is there, with {counted(count, 'partition')}; nothing was changed",
            )
            return 0
    if options.json:
        print_json(
            {"topic": made.name, "partitions": made.partitions, "replication_factor": made.replication_factor},
            options.json,
        )
    else:
        verb = "would make" if options.validate_only else "made"
        counts = ""
        if made.partitions is not None and made.replication_factor is not None:
            counts = f": {counted(made.partitions, 'partition')}, {counted(made.replication_factor, 'copy')} of each"
        print(f"{verb} {made.name}{counts}")
    return 0


def run_add_partitions(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        admin.create_partitions({options.topic: options.total})[options.topic].result()
    _tell(
        options,
        {"topic": options.topic, "partitions": options.total},
        f"{options.topic} has {counted(options.total, 'partition')} now",
    )
    return 0


def run_delete(options: argparse.Namespace) -> int:
    if bool(options.topics) == (options.include is not None):
        raise UsageError("say which: TOPIC, or --include REGEX")
    if options.execute and options.topics:
        raise UsageError("--execute is about --include REGEX: topics that are named are deleted")
    with opened_admin(options) as admin:
        topics = options.topics or _included(admin, options)
        if not options.topics and not options.execute:
            _tell(options, {"deleted": [], "would_delete": topics}, f"would delete {', '.join(topics)}")
            complain("nothing was changed; --execute does it")
            return 0
        outcomes = admin.delete_topics(topics)
    missing = [name for name, error in outcomes.errors.items() if isinstance(error, UnknownTopicOrPartition)]
    failed = {name: error for name, error in outcomes.errors.items() if not (options.if_exists and name in missing)}
    deleted = [name for name in topics if name not in outcomes.errors]
    if deleted or not failed:
        _tell(options, {"deleted": deleted}, f"deleted {', '.join(deleted) or 'nothing'}")
    for name, error in failed.items():
        complain(str(error.with_context(hint="With --if-exists that is no failure") if name in missing else error))
    return 1 if failed else 0


def run_delete_records(options: argparse.Namespace) -> int:
    from fastq import TopicPartition

    if bool(options.places) == (options.file is not None):
        raise UsageError("say what: TOPIC:PARTITION:OFFSET, or --file FILE")
    wanted: dict[TopicPartition, int] = {}
    for place in options.places or _places_of(options.file):
        parts = place.rsplit(":", 2)
        if (
            len(parts) != 3
            or not parts[0]
            or not is_whole(parts[1])
            or not (parts[2] == "-1" or is_whole(parts[2], INT64_MAX))
        ):
            raise UsageError(f"TOPIC:PARTITION:OFFSET is expected, not {place!r}")
        partition = TopicPartition(parts[0], int(parts[1]))
        if partition in wanted:
            raise UsageError(
                f"{partition} is named twice, with offset {wanted[partition]} and {parts[2]}: name it once"
            )
        wanted[partition] = int(parts[2])
    with opened_admin(options) as admin:
        starts = admin.delete_records(wanted).results()
    rows = [{"topic": place.topic, "partition": place.partition, "start": start} for place, start in starts.items()]
    print_records(["topic", "partition", "start"], rows, options.json)
    return 0


def _places_of(path: Path) -> list[str]:
    """TOPIC:PARTITION:OFFSET of each that a file of Kafka's form names. Raises UsageError, OSError."""
    try:
        document = json.loads(read_text(path))
        places = [(each["topic"], each["partition"], each["offset"]) for each in document["partitions"]]
        if document.get("version", 1) != 1 or not places:
            raise ValueError("version 1 and a partition are expected")
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f'{path}: {{"partitions": [{{"topic": "t", "partition": 0, "offset": 1}}]}} is expected ({type(error).__name__} {error})'
        ) from None
    if wrong := next((place for place in places if not is_name(place[0])), None):
        raise UsageError(f"{path}: {wrong[0]!r} is no name of a topic")
    return [f"{topic}:{partition}:{offset}" for topic, partition, offset in places]


def _tell(options: argparse.Namespace, document: dict[str, object], sentence: str) -> None:
    if options.json:
        print_json(document, options.json)
    else:
        print(sentence)
