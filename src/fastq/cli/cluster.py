"""`fastq cluster`: what the cluster is, its nodes, its features' levels, and the end of a node's registration."""

from __future__ import annotations

import argparse
import importlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, described, opened_admin
from fastq.cli.output import (
    INT16_MAX,
    Subparsers,
    UsageError,
    add_json_option,
    complain,
    is_whole,
    key_values,
    nonempty,
    print_facts,
    print_json,
    print_records,
    sent,
    whole,
)
from fastq.cli.quorum import described_quorum
from fastq.errors import BrokerIdNotRegistered, KafkaError, NotLeaderOrFollower
from fastq.words import counted

if TYPE_CHECKING:
    from fastq import Admin
    from fastq.admin import ClusterDescription, FeatureUpdate

KRAFT_VERSION = "kraft.version"
RELEASES = "fastq_broker.controller.releases"


def register(commands: Any) -> None:
    parser = Subparsers(commands).add("cluster", "The cluster, its nodes and its features.", "fastq cluster describe")
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))

    describe = kinds.add("describe", "What there is, and what is wrong with it.", "fastq cluster describe")
    describe.set_defaults(run=run_describe)

    nodes = kinds.add("nodes", "Brokers: where they are, and how much they have.", "fastq cluster nodes")
    nodes.set_defaults(run=run_nodes)

    unregister = kinds.add(
        "unregister", "Take a broker that is gone for good out of the cluster.", "fastq cluster unregister 3"
    )
    unregister.add_argument("node", type=whole(), metavar="NODE", help="the broker's id")
    unregister.add_argument(
        "--force", action="store_true", help="also one that lives, which is shut out until it is started again"
    )
    unregister.set_defaults(run=run_unregister)

    features = kinds.add(
        "features",
        "Levels of features; without an option they are shown.",
        "fastq cluster features --upgrade metadata.version=29",
    )
    features.add_argument(
        "--upgrade",
        type=sent,
        metavar="FEATURE=LEVEL",
        action="append",
        default=[],
        help="raise a level; may be repeated",
    )
    features.add_argument(
        "--downgrade",
        type=sent,
        metavar="FEATURE=LEVEL",
        action="append",
        default=[],
        help="lower a level where nothing is lost by it, 0 takes the feature away; may be repeated",
    )
    for option, text in (("--upgrade-to", "raise"), ("--downgrade-to", "lower")):
        features.add_argument(
            option,
            type=nonempty,
            metavar="RELEASE",
            help=f"{text} each level but kraft.version's to what a release of Kafka begins with, as in 4.1",
        )
    features.add_argument(
        "--version-mapping",
        nargs="?",
        const=True,
        type=nonempty,
        metavar="RELEASE",
        help="show the levels that a release of Kafka begins with (default: the newest that is known), without a cluster",
    )
    features.add_argument("--unsafe", action="store_true", help="lower levels whatever is lost by it")
    features.add_argument("--validate-only", action="store_true", help="check all and change nothing")
    features.add_argument("--node", type=whole(), metavar="ID", help="show what this broker supports, not any one")
    features.set_defaults(run=run_features)

    for action in (describe, nodes, unregister, features):
        add_client_options(action)
        add_json_option(action)


def run_describe(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        cluster = admin.describe_cluster(include_fenced=True)
        quorum = described_quorum(admin)
        features = admin.describe_features()
        topics = described(admin)
        moving = len(admin.list_partition_reassignments())
    partitions = [part for topic in topics.values() for part in topic.partitions]
    facts: dict[str, object] = {
        "cluster id": cluster.cluster_id,
        "brokers": [node.node_id for node in cluster.nodes],
        "fenced brokers": [node.node_id for node in cluster.fenced_nodes],
        "controllers": [voter.node_id for voter in quorum.voters],
        "active controller": quorum.leader_id,
        "metadata version": features.finalized.get("metadata.version"),
        "topics": len(topics),
        "partitions": len(partitions),
        "under-replicated partitions": sum(len(part.isr) < len(part.replicas) for part in partitions),
        "partitions without leader": sum(part.leader is None for part in partitions),
        "partitions that move": moving,
    }
    print_facts(facts, options.json)
    return 0


def run_nodes(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        cluster = admin.describe_cluster(include_fenced=True)
        topics = described(admin)
        stale = _stale(admin)
    partitions = [part for topic in topics.values() for part in topic.partitions]
    replicas = Counter(node for part in partitions for node in part.replicas)
    in_sync = Counter(node for part in partitions for node in part.isr)
    leaders = Counter(part.leader.node_id for part in partitions if part.leader is not None)
    known = [(node, "running") for node in cluster.nodes] + [(node, "fenced") for node in cluster.fenced_nodes]
    rows: list[dict[str, object]] = [
        {
            "node": node.node_id,
            "address": f"{node.host}:{node.port}",
            "rack": node.rack,
            "state": state,
            "replicas": replicas[node.node_id],
            "in_sync": in_sync[node.node_id],
            "leads": leaders[node.node_id],
        }
        for node, state in sorted(known, key=lambda item: item[0].node_id)
    ]
    print_records(["node", "address", "rack", "state", "replicas", "in_sync", "leads"], rows, options.json)
    if stale:
        complain(f"{stale}. Until then this is what was known last: a node that has died since counts as running")
    return 1 if stale else 0


def _stale(admin: Admin) -> str:
    """Why nobody changes the metadata at the moment; empty where somebody does, or nobody can be asked about it."""
    try:
        described_quorum(admin)
    except NotLeaderOrFollower as error:
        return str(error)
    except KafkaError:  # it is another cluster's matter, or none of who asks
        return ""
    return ""


def run_unregister(options: argparse.Namespace) -> int:
    node = options.node
    with opened_admin(options) as admin:
        if not options.force:
            _check_gone(admin.describe_cluster(), node)
        try:
            admin.unregister_broker(node)
        except BrokerIdNotRegistered as error:
            raise error.with_context(hint="fastq cluster nodes lists those that are") from None
        held = sum(node in part.replicas for topic in described(admin).values() for part in topic.partitions)
    if options.json:
        print_json({"unregistered": node, "replicas_left": held}, options.json)
        return 0
    print(f"node {node} is not registered any more")
    if held:
        print(
            f"{counted(held, 'partition')} still {'has a replica' if held == 1 else 'have replicas'} on it: "
            f"fastq partitions rebalance --drain {node} plans where to"
        )
    return 0


def _check_gone(cluster: ClusterDescription, node: int) -> None:
    if any(live.node_id == node for live in cluster.nodes):
        raise ValueError(
            f"node {node} is running, and would be shut out until it is started again. To take it out for good: "
            f"fastq partitions rebalance --drain {node} --execute, stop it, then this again. --force unregisters it as it is"
        )


def run_features(options: argparse.Namespace) -> int:
    if options.version_mapping is not None:
        if any(
            (options.upgrade, options.downgrade, options.upgrade_to, options.downgrade_to, options.node is not None)
        ):
            raise UsageError("--version-mapping shows what a release has, and changes nothing: give it alone")
        return _print_mapping(options)
    updates = _updates(options)
    with opened_admin(options) as admin:
        if updates:
            admin.update_features(updates, validate_only=options.validate_only)
        known = admin.describe_features(options.node)
    if updates:
        levels = {name: update.level for name, update in updates.items()}
        if options.json:
            print_json({"features": levels, "validate_only": options.validate_only}, options.json)
        else:
            verb = "would be" if options.validate_only else "is"
            for name, level in levels.items():
                print(f"{name} {verb} {f'at level {level}' if level else 'taken away'}")
        return 0
    rows: list[dict[str, object]] = [
        {
            "feature": name,
            "level": known.finalized.get(name, 0),
            "lowest": known.supported.get(name, (None, None))[0],
            "highest": known.supported.get(name, (None, None))[1],
        }
        for name in sorted(known.supported.keys() | known.finalized.keys())
    ]
    print_records(["feature", "level", "lowest", "highest"], rows, options.json)
    return 0


def _updates(options: argparse.Namespace) -> dict[str, FeatureUpdate]:
    from fastq.admin import FeatureUpdate, UpgradeType

    down = UpgradeType.UNSAFE_DOWNGRADE if options.unsafe else UpgradeType.SAFE_DOWNGRADE
    updates: dict[str, FeatureUpdate] = {}
    if options.upgrade_to is not None and options.downgrade_to is not None:
        raise UsageError("--upgrade-to and --downgrade-to: give one")
    for release, kind in ((options.upgrade_to, UpgradeType.UPGRADE), (options.downgrade_to, down)):
        # As with Kafka's tool a feature that the release has not is not taken away by an upgrade. How the quorum knows its voters is no
        # matter of a release: --upgrade kraft.version=1.
        levels = {} if release is None else release_levels(release)
        updates |= {
            name: FeatureUpdate(level, kind)
            for name, level in levels.items()
            if name != KRAFT_VERSION and (level or kind is down)
        }
    for option, pairs, kind in (
        ("--upgrade", options.upgrade, UpgradeType.UPGRADE),
        ("--downgrade", options.downgrade, down),
    ):
        for name, level in key_values(pairs, option).items():
            if not is_whole(level, INT16_MAX):
                raise UsageError(f"{option} takes FEATURE=LEVEL with a number of 0 to {INT16_MAX}, not {name}={level}")
            if name in updates:
                raise UsageError(f"{name} is to go to two levels; name it once")
            updates[name] = FeatureUpdate(int(level), kind)
    if options.unsafe and not options.downgrade and options.downgrade_to is None:
        raise UsageError("--unsafe is about --downgrade FEATURE=LEVEL and --downgrade-to RELEASE")
    if options.validate_only and not updates:
        raise UsageError("--validate-only needs one of --upgrade, --downgrade, --upgrade-to, --downgrade-to")
    if options.node is not None and updates:
        raise UsageError("--node is about showing; levels are the cluster's")
    return updates


def release_levels(release: str | None) -> dict[str, int]:
    """The level of each feature that a release begins with (Kafka's Feature); of None the newest that is known. UsageError."""
    try:
        known = importlib.import_module(RELEASES)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("fastq_broker"):
            raise
        raise UsageError(
            "levels of releases are in the broker's code, fastq_broker, which is not installed here"
        ) from None
    levels: dict[str, int] = known.mapping_of(release)
    return levels


def _print_mapping(options: argparse.Namespace) -> int:
    levels = release_levels(None if options.version_mapping is True else options.version_mapping)
    print_records(
        ["feature", "level"], [{"feature": n, "level": level} for n, level in sorted(levels.items())], options.json
    )
    return 0
