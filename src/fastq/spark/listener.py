"""What a streaming query has consumed, committed to a consumer group, so that ordinary lag monitors see the query.

Rules: offsets are committed after the micro-batch that read them has ended, as a simple client does it; the group is never joined,
and Spark's checkpoint stays the only place from which a query goes on. A commit that fails is logged and hinders no query: the next
one tells more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from fastq.admin import Admin
from fastq.admin.config import AdminConfig
from fastq.admin.options import AdminOptions
from fastq.errors import FastqError
from fastq.spark.offsets import Offsets
from fastq.spark.progress import SourceRead, earliest_of, kafka_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from typing_extensions import Unpack

logger = logging.getLogger("fastq.spark")

COMMIT_TIMEOUT_S = 10.0
# Brokers forget the offsets of a group without members after a while (offsets.retention.minutes, by default a week).
REFRESH_S = 3600.0


@dataclass
class _Run:
    """One run of a query. `query` is None where the listener came after its end; `said` is the last failure that was logged."""

    query: StreamingQuery | None
    admins: dict[AdminConfig, Admin] = field(default_factory=dict)
    committed: dict[tuple[str, AdminConfig], Offsets] = field(default_factory=dict)
    committed_at: float = 0.0
    said: str | None = None

    def close(self) -> None:
        for admin in self.admins.values():
            admin.close()
        self.admins.clear()


class OffsetCommitListener(StreamingQueryListener):
    """Commits what the queries of a session have consumed to consumer groups, after each micro-batch.

        spark.streams.addListener(OffsetCommitListener(spark))            # the group of a query is named as the query
        spark.streams.addListener(OffsetCommitListener(spark, {"load": "offline-load"}))

    group: the group of all queries; or groups by the name of the query, where others are left alone; or None for kafka.group.id of
    the source and, without that, the query's name: a query with neither commits nothing. Two queries that read the same topic need
    two groups. client: fields of `AdminConfig`, where the brokers are not to be reached as the source reaches them. timeout_s: how
    long one commit may take.

    Sources of the format fastq and of Spark's JVM connector are seen; a query of others is left alone. Nothing is raised into the
    query: what fails is a warning of the logger fastq.spark. A group that has members refuses (UnknownMemberId): it is in use by
    consumers that join it.

    Invariants: what is committed is what finished micro-batches have read. Thread rule: Spark calls from one thread; `commit` may be
    called from any.
    """

    def __init__(
        self,
        spark: SparkSession,
        group: str | Mapping[str, str] | None = None,
        *,
        timeout_s: float = COMMIT_TIMEOUT_S,
        **client: Unpack[AdminOptions],
    ) -> None:
        if client:
            AdminConfig(**client)  # a bad value is an error here, not a warning later
        self._streams = spark.streams
        self._group = group
        self._timeout_s = timeout_s
        self._client: dict[str, Any] = dict(client)
        self._runs: dict[str, _Run] = {}

    def commit(self, query: StreamingQuery) -> dict[str, Offsets]:
        """Commit now what a query has read, and return it by group; raises what goes wrong.

        For programs that end with their query, such as those with the trigger availableNow, as events may come after it.
        """
        run = _Run(query)
        try:
            progress = query.lastProgress
            if progress is not None:
                self._commit(run, progress)
            return {group: offsets for (group, _), offsets in run.committed.items()}
        finally:
            run.close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """The handle of the query, of which events may come when it has ended already."""
        self._run(str(event.id), str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A micro-batch has ended: commit what it has read, where that is new."""
        progress = event.progress
        run = self._run(str(progress.id), str(progress.runId))
        try:
            self._commit(run, progress)
        except FastqError as error:
            self._warn(run, progress.name or str(progress.id), error)
        else:
            run.said = None

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing was read; offsets that have been committed long ago are committed again, or brokers would forget them."""
        run = self._run(str(event.id), str(event.runId))
        if not run.committed or time.monotonic() - run.committed_at < REFRESH_S:
            return
        try:
            for (group, config), offsets in run.committed.items():
                self._write(run, group, config, offsets)
        except FastqError as error:
            self._warn(run, str(event.id), error)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The connections of the query are closed; its group stays as it is."""
        run = self._runs.pop(str(event.runId), None)
        if run is not None:
            run.close()

    def _run(self, query_id: str, run_id: str) -> _Run:
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _Run(self._streams.get(query_id))
        return run

    def _commit(self, run: _Run, progress: StreamingQueryProgress) -> None:
        groups: dict[tuple[str, AdminConfig], list[SourceRead]] = {}
        for source in kafka_sources(run.query, progress):
            group = self._group_of(source, progress.name)
            if group is not None:
                groups.setdefault((group, source.admin_config(self._client)), []).append(source)
        for (group, config), sources in groups.items():
            offsets = earliest_of(sources)
            if offsets != run.committed.get((group, config)):
                self._write(run, group, config, offsets)

    def _group_of(self, source: SourceRead, name: str | None) -> str | None:
        if isinstance(self._group, str):
            return self._group
        if self._group is not None:
            return self._group.get(name or "")
        return source.group_id or name

    def _write(self, run: _Run, group: str, config: AdminConfig, offsets: Offsets) -> None:
        admin = run.admins.get(config)
        if admin is None:
            admin = run.admins[config] = Admin(config)
        outcomes = admin.alter_group_offsets(group, offsets, timeout=self._timeout_s)
        for outcome in outcomes.values():
            outcome.result()
        run.committed[group, config] = offsets
        run.committed_at = time.monotonic()

    def _warn(self, run: _Run, name: str, error: FastqError) -> None:
        """A failure in words, once until a commit is well again or fails in another way."""
        if str(error) != run.said:
            logger.warning("what the query %s has consumed could not be committed: %s", name, error)
            run.said = str(error)
