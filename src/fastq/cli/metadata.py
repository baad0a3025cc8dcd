"""`fastq metadata`: the cluster's metadata as a tree, from a live cluster, a metadata log or a snapshot of one.

Rules: the paths are those of Kafka's metadata shell, which begin at /image; of a live cluster there is what its brokers tell a client. A
file is read by the broker's own code, which is loaded for this alone and may not be installed. `*` and `?` in a path stand for
characters of one name. Nothing is changed. Exit code 1 when a path is not there, or a broker does not answer.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fastq.cli.clients import add_client_options, described, opened_admin
from fastq.cli.each_broker import NODE_S, answers_of
from fastq.cli.output import Subparsers, UsageError, add_json_option, complain, print_json
from fastq.protocol.uuid import uuid_to_str

READER = "fastq_broker.controller.tree"
DEFAULT_ROOT = "/image"


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "metadata",
        "The cluster's metadata as a tree: of a live cluster, a metadata log or a snapshot.",
        "fastq metadata tree /image/topics/byName --file data/__cluster_metadata-0",
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))
    for name, summary in (
        ("ls", "Names in a folder."),
        ("cat", "What a leaf says."),
        ("tree", "A folder with all that is in it."),
        ("find", "Every path below a folder."),
    ):
        action = kinds.add(
            name,
            summary,
            f"fastq metadata {name} {'/image/topics/byName/logs/0' if name == 'cat' else '/image/topics'}",
        )
        action.add_argument(
            "paths",
            nargs="+" if name == "cat" else "*",
            metavar="PATH",
            help=f"* and ? are taken (default: {DEFAULT_ROOT})",
        )
        action.add_argument(
            "--file",
            type=Path,
            metavar="PATH",
            help="a .checkpoint or .log of the metadata, or a directory with them, not a cluster",
        )
        if name == "find":
            action.add_argument("--name", metavar="PATTERN", help="only paths whose last name is like this")
        add_client_options(action)
        add_json_option(action)
        action.set_defaults(run=run, action=name)


def run(options: argparse.Namespace) -> int:
    root, is_whole = (_of_file(options.file), True) if options.file is not None else _live(options)
    found: dict[str, Any] = {}
    code = 0 if is_whole else 1
    for path in options.paths or [DEFAULT_ROOT]:
        places = dict(_matching(root, path))
        if not places:
            complain(f"{path}: there is no such path; fastq metadata find shows all")
            code = 1
        found.update(places)
    return max(code, _ACTIONS[options.action](found, options))


def _of_file(path: Path) -> dict[str, Any]:
    try:
        reader = importlib.import_module(READER)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("fastq_broker"):
            raise
        raise UsageError("--file takes the broker's code, fastq_broker, which is not installed here") from None
    tree: dict[str, Any] = reader.read_tree(path)
    return tree


# -- of a live cluster


def _live(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """The tree, and whether it is whole: a broker that stands still leaves its own settings out."""
    from fastq.admin import ConfigResource

    with opened_admin(options) as admin:
        cluster = admin.describe_cluster(include_fenced=True)
        quorum = admin.describe_quorum()
        features = admin.describe_features()
        topics = described(admin)
        wanted = [ConfigResource.broker(None), *(ConfigResource.topic(name) for name in topics)]
        entries = {resource: outcome.result() for resource, outcome in admin.describe_configs(wanted).items()}

        def of_broker(node: int) -> dict[str, Any]:  # which it alone knows
            resource = ConfigResource.broker(node)
            return admin.describe_configs([resource], timeout=NODE_S)[resource].result()

        nodes = {node.node_id: node for node in cluster.nodes}
        answers = answers_of(nodes, of_broker)
        entries |= {ConfigResource.broker(node): found for node, found in answers.items()}
    configs: dict[str, Any] = {}
    for resource, found in entries.items():
        own = {
            name: "(hidden)" if entry.is_sensitive else str(entry.value)
            for name, entry in sorted(found.items())
            if not entry.is_default and _is_own(resource, entry)
        }
        if own:
            kind = resource.type.name
            configs[f"{kind}:{resource.name}" if resource.name else kind] = own
    brokers = {str(node.node_id): _broker(node, fenced=False) for node in cluster.nodes}
    brokers |= {str(node.node_id): _broker(node, fenced=True) for node in cluster.fenced_nodes}
    shown = {name: _topic(topic) for name, topic in topics.items()}
    finalized = {
        f"finalized_{name}": str(level) for name, level in features.finalized.items() if name != "metadata.version"
    }
    return {
        "image": {
            "cluster": {
                "id": str(cluster.cluster_id),
                "brokers": brokers,
                "controllers": {
                    str(voter.node_id): "leads" if voter.node_id == quorum.leader_id else "votes"
                    for voter in quorum.voters
                },
            },
            "configs": configs,
            "features": {**finalized, "metadataVersion": str(features.finalized.get("metadata.version"))},
            "topics": {"byId": {topic["id"]: topic for topic in shown.values()}, "byName": shown},
        }
    }, len(answers) == len(nodes)


def _is_own(resource: Any, entry: Any) -> bool:
    """Whether a setting is this resource's in the metadata, not one that it has from another or from its file."""
    source = entry.source.name
    if resource.type.name == "TOPIC":
        return bool(source == "DYNAMIC_TOPIC_CONFIG")
    return bool(source == ("DYNAMIC_BROKER_CONFIG" if resource.name else "DYNAMIC_DEFAULT_BROKER_CONFIG"))


def _broker(node: Any, *, fenced: bool) -> tuple[str, dict[str, Any]]:
    rack = "Optional.empty" if node.rack is None else f"Optional[{node.rack}]"
    return "BrokerRegistration", {
        "id": node.node_id,
        "host": node.host,
        "port": node.port,
        "rack": rack,
        "fenced": fenced,
    }


def _topic(topic: Any) -> dict[str, Any]:
    partitions = {
        str(partition.index): (
            "PartitionRegistration",
            {
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "elr": list(partition.elr or ()),
                "lastKnownElr": list(partition.last_known_elr or ()),
                "leader": -1 if partition.leader is None else partition.leader.node_id,
                "leaderEpoch": partition.leader_epoch,
            },
        )
        for partition in topic.partitions
    }
    return {**partitions, "id": uuid_to_str(topic.topic_id), "name": topic.name}


# -- the tree


def _children(node: Any) -> Mapping[str, Any]:
    """A folder's names in order; those of partitions by their number's digits, as Kafka's shell has them. A leaf has none."""
    return dict(sorted(node.items())) if isinstance(node, Mapping) else {}


def _matching(root: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """What a path, with patterns or without, stands for."""
    found: list[tuple[str, Any]] = [("", root)]
    for part in filter(None, path.split("/")):
        found = [
            (f"{above}/{name}", child)
            for above, node in found
            for name, child in _children(node).items()
            if name == part or fnmatchcase(name, part)
        ]
    return iter((place or "/", node) for place, node in found)


def _ls(found: dict[str, Any], options: argparse.Namespace) -> int:
    names = {
        path: list(_children(node)) if isinstance(node, Mapping) else [path.rpartition("/")[2]]
        for path, node in found.items()
    }
    if options.json:
        print_json(names, options.json)
        return 0
    for at, (path, listed) in enumerate(names.items()):
        if len(names) > 1:
            print(f"{'' if at == 0 else chr(10)}{path}:")
        for name in listed:
            print(name)
    return 0


def _cat(found: dict[str, Any], options: argparse.Namespace) -> int:
    code = 0
    for path, node in found.items():
        if isinstance(node, Mapping):
            complain(f"{path} is a folder; fastq metadata tree shows what is in it")
            code = 1
        elif not options.json:
            print(in_words(node))
    if options.json:
        print_json({path: plain(node) for path, node in found.items() if not isinstance(node, Mapping)}, options.json)
    return code


def _tree(found: dict[str, Any], options: argparse.Namespace) -> int:
    if options.json:
        print_json({path: plain(node) for path, node in found.items()}, options.json)
        return 0
    for path, node in found.items():
        if len(found) > 1:
            print(f"{path}:")
        for line in _lines(node, len(found) > 1):
            print(line)
    return 0


def _lines(node: Any, depth: int) -> Iterator[str]:
    if not isinstance(node, Mapping):
        yield "  " * depth + in_words(node)
        return
    for name, child in _children(node).items():
        yield "  " * depth + f"{name}:"
        yield from _lines(child, depth + 1)


def _find(found: dict[str, Any], options: argparse.Namespace) -> int:
    paths = [
        path
        for start, node in found.items()
        for path in _paths(start, node)
        if options.name is None or fnmatchcase(path.rpartition("/")[2], options.name)
    ]
    if options.json:
        print_json(paths, options.json, ["path"])
    else:
        for path in paths:
            print(path)
    return 0


def _paths(start: str, node: Any) -> Iterator[str]:
    yield start
    for name, child in _children(node).items():
        yield from _paths(f"{start.rstrip('/')}/{name}", child)


_ACTIONS = {"ls": _ls, "cat": _cat, "tree": _tree, "find": _find}


def in_words(leaf: Any) -> str:
    """A leaf, or a part of one, as Kafka's shell writes it."""
    if isinstance(leaf, tuple):
        kind, fields = leaf
        if kind == "StandardAcl":  # a Java record, which has other brackets
            return f"{kind}[{', '.join(f'{name}={in_words(value)}' for name, value in fields.items())}]"
        return f"{kind}({', '.join(f'{name}={in_words(value)}' for name, value in fields.items())})"
    if isinstance(leaf, list):
        return f"[{', '.join(map(in_words, leaf))}]"
    if isinstance(leaf, Mapping):
        return "{" + ", ".join(f"{name}: {in_words(value)}" for name, value in leaf.items()) + "}"
    return str(leaf).lower() if isinstance(leaf, bool) else str(leaf)


def plain(node: Any) -> Any:
    """The same as JSON has it: fields by their names."""
    if isinstance(node, tuple):
        return plain(node[1])
    if isinstance(node, Mapping):
        return {name: plain(value) for name, value in node.items()}
    if isinstance(node, list):
        return [plain(value) for value in node]
    return node.strip("'") if isinstance(node, str) else node
