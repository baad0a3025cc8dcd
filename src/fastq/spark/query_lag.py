"""How far a streaming query is behind the end of its topics.

Rules: the offsets are those of the query's last finished micro-batch, the ends are asked of the brokers at the time of the call; no
group is needed, and none is touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastq.admin import Admin
from fastq.admin.config import AdminConfig
from fastq.admin.options import AdminOptions
from fastq.admin.types import OffsetSpec
from fastq.metadata import TopicPartition
from fastq.spark.progress import SourceRead, earliest_of, kafka_sources

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class QueryLag:
    """How far a query is behind in a partition. `offset`: the next one that it reads. `end`: that of the next record to come, or
    of the first open transaction for a query that reads what is committed."""

    offset: int
    end: int

    @property
    def lag(self) -> int:
        """Offsets between the two; never below zero."""
        return max(0, self.end - self.offset)


def lag(
    query: StreamingQuery, *, timeout: float | None = None, **client: Unpack[AdminOptions]
) -> dict[TopicPartition, QueryLag]:
    """The lag of a streaming query, for each partition that it reads, in order; a stopped query's is that of its last batch.

    Empty before the first micro-batch has ended. The brokers are found in the options of the query's sources; `client` (the fields
    of `AdminConfig`, such as bootstrap_servers) is for where these cannot be seen, as in Spark Connect; without it the ends there
    are those that the source saw at its last trigger. `timeout` is in seconds (None: default_api_timeout_ms). Raises the error of
    a partition that cannot be asked for, such as UnknownTopicOrPartition.
    """
    progress = query.lastProgress
    if progress is None:
        return {}
    groups: dict[tuple[AdminConfig | None, bool], list[SourceRead]] = {}
    for source in kafka_sources(query, progress):
        known = source.client is not None or client.get("bootstrap_servers")
        config = source.admin_config(client) if known else None
        groups.setdefault((config, source.read_committed), []).append(source)
    found: dict[TopicPartition, QueryLag] = {}
    for (config, read_committed), sources in groups.items():
        ends = _ends(config, read_committed, sources, timeout)
        found.update((tp, QueryLag(offset, ends[tp])) for tp, offset in earliest_of(sources).items() if tp in ends)
    return dict(sorted(found.items()))


def _ends(
    config: AdminConfig | None, read_committed: bool, sources: list[SourceRead], timeout: float | None
) -> dict[TopicPartition, int]:
    if config is None:
        return {tp: offset for source in sources for tp, offset in source.latest.items()}
    times: dict[TopicPartition, Any] = {tp: OffsetSpec.LATEST for source in sources for tp in source.offsets}
    with Admin(config) as admin:
        outcomes = admin.list_offsets(times, read_committed=read_committed, timeout=timeout)
    return {tp: outcome.result().offset for tp, outcome in outcomes.items()}
