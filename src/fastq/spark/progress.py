"""What a streaming query has read of Kafka topics, told from its progress and its plan.

Rules: works for sources of the format fastq and of Spark's JVM connector alike, whose offsets have one form; other sources of the
query are passed over. Nothing here changes a query. The options of a source are in the plan of the query, which this process sees
in a classic session only; in Spark Connect the caller names the brokers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastq.admin.config import AdminConfig
from fastq.errors import ConfigError
from fastq.spark.offsets import Offsets, read_offsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

KAFKA = "kafka."


@dataclass(frozen=True)
class SourceRead:
    """One source of a query: what it has read, as offsets of the next record, and how its brokers are asked.

    `latest`: the ends that the source itself saw at its last trigger, where it tells them. `client`: the kafka.* options of the
    source without that prefix; None where the plan cannot be seen.
    """

    offsets: Offsets
    latest: Offsets = field(default_factory=dict)
    client: Mapping[str, str] | None = None

    @property
    def group_id(self) -> str | None:
        """kafka.group.id, where the user set it."""
        return (self.client or {}).get("group.id")

    @property
    def read_committed(self) -> bool:
        """True when the source passes over transactions that are open (kafka.isolation.level)."""
        return (self.client or {}).get("isolation.level", "").strip().lower() == "read_committed"

    def admin_config(self, given: Mapping[str, Any]) -> AdminConfig:
        """How to reach the brokers: as `given`, or, where that names none, as the source does. ConfigError when neither says."""
        if given.get("bootstrap_servers"):
            return AdminConfig(**given)
        if not (self.client or {}).get("bootstrap.servers"):
            raise ConfigError("the options of the query's source cannot be seen from here: give bootstrap_servers")
        return AdminConfig.from_mapping(dict(_for_admin(self.client or {})), **given)


def _for_admin(client: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Of a consumer's configuration what is about the cluster and the connections."""
    known = {name.replace("_", ".") for name in AdminConfig.options()}
    known |= {alias.replace("_", ".") for option in AdminConfig.options().values() for alias in option.aliases}
    return ((name, value) for name, value in client.items() if name in known or name == "sasl.jaas.config")


def kafka_sources(query: StreamingQuery | None, progress: StreamingQueryProgress) -> list[SourceRead]:
    """The sources of a progress that read topics. `query` tells their options, where it is a classic one."""
    options = _options_by_source(query)
    found = []
    for source in progress.sources:
        offsets = _offsets(source.endOffset)
        if not offsets:
            continue
        client = None
        if options is not None:
            client = options.get(source.description) or _only(options)
            if client is None:
                continue  # its offsets look like ours, and it is of another kind
        found.append(SourceRead(offsets, _offsets(source.latestOffset), client))
    return found


def _only(options: Mapping[str, dict[str, str]]) -> dict[str, str] | None:
    """The options that all Kafka sources of a query share. Before Spark 4.2 a trigger may wrap a source in the plan, and progress
    describes it by another name."""
    first = next(iter(options.values()), None)
    return first if all(other == first for other in options.values()) else None


def _offsets(value: str | Mapping[str, Any] | None) -> Offsets:
    """Offsets in the form of a Kafka source; none of them for anything else.

    Before PySpark 4.2 the text of `query.lastProgress` is not the JSON that it was read from, but what Python prints of it.
    """
    try:
        if isinstance(value, str) and value.startswith("{'"):
            value = ast.literal_eval(value)
        return read_offsets(value) if value else {}
    except (ValueError, SyntaxError):
        return {}


def _options_by_source(query: StreamingQuery | None) -> dict[str, dict[str, str]] | None:
    """kafka.* options of each Kafka source, by the description that a progress has of it; None where there is no plan to look at."""
    handle = getattr(query, "_jsq", None)
    if handle is None:
        return None
    leaves = handle.streamingQuery().logicalPlan().collectLeaves()
    found = {}
    for number in range(leaves.length()):
        options = _options_of(leaves.apply(number))
        if options is not None:
            found[options[0]] = options[1]
    return found


def _options_of(leaf: Any) -> tuple[str, dict[str, str]] | None:
    """Description and kafka.* options of a leaf of the plan, if it is a source that was told of brokers."""
    if leaf.getClass().getSimpleName() != "StreamingDataSourceV2ScanRelation":
        return None  # a table, or a source of the older kind
    options, stream = leaf.relation().options(), leaf.stream()
    given = {str(key).lower(): str(options.get(key)) for key in options.keySet()}
    client = {key[len(KAFKA) :]: value for key, value in given.items() if key.startswith(KAFKA)}
    return (stream.toString(), client) if client.get("bootstrap.servers") else None


def earliest_of(sources: Sequence[SourceRead]) -> Offsets:
    """What all of these sources have read: where two read a partition, as in a join of a topic with itself, the one behind."""
    merged: Offsets = {}
    for source in sources:
        for tp, offset in source.offsets.items():
            merged[tp] = min(offset, merged.get(tp, offset))
    return merged
