"""Kafka's JSON files about partitions: what is to be moved, where partitions go, and which are to elect a leader.

Rules: version 1, also where none is said; any other is refused. What is wrong is told with the file, the place in it and what was expected
(UsageError). A file named `-` is standard input. What is written is what Kafka's own tools read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastq.cli.output import INT32_MAX, UsageError, is_name, read_text
from fastq.metadata import TopicPartition

ANY_DIRECTORY = "any"


class Placement(NamedTuple):
    """Where a partition is to be: its replicas, and the log directory of each (None: any)."""

    replicas: tuple[int, ...]
    log_dirs: tuple[str | None, ...]


def read_assignment(path: str) -> dict[TopicPartition, Placement]:
    """`{"version": 1, "partitions": [{"topic", "partition", "replicas", "log_dirs"}]}`."""
    document = _document(path)
    found: dict[TopicPartition, Placement] = {}
    for at, item in enumerate(_list(document, "partitions", path)):
        where = f"{path}: partitions[{at}]"
        tp = _partition(item, where)
        if tp in found:
            raise UsageError(f"{where}: {tp} is there twice")
        found[tp] = _placement(item, where)
    return found


def _placement(item: Mapping[str, Any], where: str) -> Placement:
    replicas = item.get("replicas")
    if not isinstance(replicas, list) or not replicas or not all(_is_number(node) for node in replicas):
        raise UsageError(f'{where}: "replicas" takes a list of node ids, not {replicas!r}')
    if len(set(replicas)) < len(replicas):
        raise UsageError(f'{where}: "replicas" names a node twice: {replicas}')
    log_dirs = item.get("log_dirs", [ANY_DIRECTORY] * len(replicas))
    if not isinstance(log_dirs, list) or len(log_dirs) != len(replicas):
        raise UsageError(
            f'{where}: "log_dirs" takes a directory for each of the {len(replicas)} replicas, not {log_dirs!r}'
        )
    for path in log_dirs:
        if path != ANY_DIRECTORY and not (isinstance(path, str) and os.path.isabs(path)):
            raise UsageError(f'{where}: a log directory is an absolute path or "any", not {path!r}')
    return Placement(tuple(replicas), tuple(None if path == ANY_DIRECTORY else path for path in log_dirs))


def read_topics(path: str) -> list[str]:
    """`{"version": 1, "topics": [{"topic"}]}`."""
    names = []
    for at, item in enumerate(_list(_document(path), "topics", path)):
        if not isinstance(item, dict) or not is_name(item.get("topic")):
            raise UsageError(f'{path}: topics[{at}]: {{"topic": NAME}} is expected, not {item!r}')
        names.append(item["topic"])
    return list(dict.fromkeys(names))


def read_partitions(path: str) -> list[TopicPartition]:
    """`{"partitions": [{"topic", "partition"}]}`."""
    items = _list(_document(path), "partitions", path)
    return list(dict.fromkeys(_partition(item, f"{path}: partitions[{at}]") for at, item in enumerate(items)))


def assignment_document(replicas: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """What `read_assignment` reads, with any log directories."""
    return {
        "version": 1,
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "replicas": list(nodes),
                "log_dirs": [ANY_DIRECTORY] * len(nodes),
            }
            for tp, nodes in replicas.items()
        ],
    }


def on_one_line(replicas: Mapping[TopicPartition, Sequence[int]]) -> str:
    """The document as Kafka's tools print it."""
    return json.dumps(assignment_document(replicas), separators=(",", ":"))


def _document(path: str) -> Mapping[str, Any]:
    text = read_text(Path(path))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # the parser calls itself for what is nested
        raise UsageError(f"{path}: JSON is expected: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path}: a JSON object is expected, not {text.strip()[:40]!r}")
    if document.get("version", 1) != 1:
        raise UsageError(f"{path}: version 1 is expected, not {document['version']!r}")
    return document


def _list(document: Mapping[str, Any], key: str, path: str) -> Iterable[Any]:
    items = document.get(key)
    if not isinstance(items, list) or not items:
        raise UsageError(f'{path}: a list "{key}" is expected; it has {", ".join(map(repr, document)) or "nothing"}')
    return items


def _partition(item: Any, where: str) -> TopicPartition:
    if not isinstance(item, dict) or not is_name(item.get("topic")) or not _is_number(item.get("partition")):
        raise UsageError(f'{where}: {{"topic": NAME, "partition": NUMBER}} is expected, not {item!r}')
    return TopicPartition(item["topic"], item["partition"])


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT32_MAX
