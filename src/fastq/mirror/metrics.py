"""What Prometheus reads of a mirror: how far it is, from both clusters, and what this process has done.

Rules
- Names are `fastq_mirror_...` and end in their unit; counters, which end in `_total`, are of this process alone, all else is of the whole
  mirror and the same in each process. Every sample has the labels source and target, the aliases.
- A scrape is answered from the last look and never waits for a cluster. A thread looks every `interval_s`; when a look fails, the
  samples of clusters are left out, `fastq_mirror_look_ok` is 0, and the reason is logged once. But the age of the last heartbeat is told
  as long as one is known of, and grows: by it who waits for a source that is gone is told so. It is that of the target, while that
  answers, else of the last time that it did.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from fastq.errors import FastqError
from fastq.mirror.config import MirrorConfig
from fastq.mirror.lane import Counts
from fastq.mirror.mirror import Mirror
from fastq.mirror.report import MirrorStatus, Watch, heartbeat_age_s
from fastq.observability.prometheus import Family, PrometheusExporter, text_of

logger = logging.getLogger("fastq.mirror")

LOOK_S = 10.0
OF_PARTITIONS = (
    ("lag_records", "Offsets of the source that are not in the target yet.", lambda p: p.lag),
    ("lag_seconds", "Age of the oldest record that is not in the target yet.", lambda p: p.age_s),
    ("records_per_second", "Offsets copied a second.", lambda p: p.rate),
    ("next_offset", "First offset of the source that was not looked at.", lambda p: p.next_offset),
    ("stopped", "1 where a partition is not mirrored because records are missing.", lambda p: int(p.state.startswith("stopped"))),
)  # fmt: skip
OF_PROCESS: tuple[tuple[str, str, Callable[[Counts], float]], ...] = (
    ("records_total", "Records that this process has copied.", lambda c: c.records),
    ("bytes_total", "Bytes of them: of the batches with the same offsets, else uncompressed.", lambda c: c.bytes),
    ("pulled_bytes_total", "Of these, bytes that the target has fetched from the source by itself.", lambda c: c.pulled_bytes),
    ("transactions_total", "Transactions it has committed; with the same offsets, appends.", lambda c: c.transactions),
    ("transaction_seconds_total", "Time that these took.", lambda c: c.transactions_s),
    ("chunks_total", "Chunks it has copied, of one partition each, whose records have times.", lambda c: c.chunks),
    ("latency_seconds_total", "How old the last record of each chunk was once it was copied, added up.", lambda c: c.latency_s),
    ("failures_total", "How often a lane of it began anew.", lambda c: c.failures),
)  # fmt: skip


def families_of(config: MirrorConfig, found: MirrorStatus) -> list[Family]:
    """The metrics of a status."""
    sides = _sides(config)
    families = [
        Family(
            f"fastq_mirror_{name}",
            "gauge",
            meaning,
            [
                ({**sides, "topic": part.partition.topic, "partition": str(part.partition.partition)}, value)
                for part in found.partitions
                if (value := of(part)) is not None
            ],
        )
        for name, meaning, of in OF_PARTITIONS
    ]
    if found.heartbeat_age_s is not None:
        families.append(_heartbeat(config, found.heartbeat_age_s))
    families.append(_one("refused_topics", "gauge", "Topics that cannot be mirrored.", sides, len(found.refused)))
    over = int(found.stopped is not None)
    families.append(_one("failed_over", "gauge", "1 once the mirror was failed over.", sides, over))
    return families


def prometheus_text(config: MirrorConfig, found: MirrorStatus) -> str:
    """The status in Prometheus's text form."""
    return text_of(families_of(config, found))


class MirrorExporter(PrometheusExporter):
    """The metrics of a mirror that runs in this process. `serve` answers them over HTTP, `close` ends that; the mirror is not touched.

    interval_s: seconds between two looks at the clusters, above 0.
    """

    def __init__(
        self,
        mirror: Mirror,
        *,
        interval_s: float = LOOK_S,
        watch: Callable[[MirrorConfig], Watch] = Watch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._mirror, self._interval_s, self._new_watch, self._clock = mirror, interval_s, watch, clock
        self._found: MirrorStatus | None = None
        self._sent: float | None = None  # when the last heartbeat was that has arrived, by the clock
        self._watching: Watch | None = None
        self._told = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def serve(self, host: str = "127.0.0.1", port: int = 0) -> int:
        taken = super().serve(host, port)
        self._thread = threading.Thread(target=self._watch, name="fastq-mirror-metrics", daemon=True)
        self._thread.start()
        return taken

    def close(self) -> None:
        self._ended.set()
        super().close()

    def families(self) -> list[Family]:
        config, found, sent = self._mirror.config, self._found, self._sent
        told = [] if found is None else families_of(config, found._replace(heartbeat_age_s=None))
        if sent is not None:
            told.append(_heartbeat(config, max(self._clock() - sent, 0.0)))
        return [*told, *super().families(), *self._own(found is not None)]

    def _own(self, looked: bool) -> Iterator[Family]:
        sides, lanes = _sides(self._mirror.config), list(self._mirror.lanes.values())
        yield _one("look_ok", "gauge", "1 where both clusters answered the last look.", sides, int(looked))
        yield _one("lanes", "gauge", "Lanes that this process has.", sides, len(lanes))
        totals = self._mirror.totals
        for name, meaning, of in OF_PROCESS:
            yield _one(name, "counter", meaning, sides, of(totals))
        left_out = [
            ({**sides, "topic": tp.topic, "partition": str(tp.partition)}, 1.0)
            for lane in lanes
            for tp in sorted(lane.failed)
        ]
        yield Family("fastq_mirror_left_out", "gauge", "1 for what it leaves out, as its log says.", left_out)

    def look(self) -> None:
        """Look once, as the thread does again and again."""
        try:
            if self._watching is None:
                self._watching = self._new_watch(self._mirror.config)
            found = self._watching.look()
            self._arrived(found.heartbeat_age_s)
            self._found, self._told = found, ""
        except Exception as error:  # one that ended it would leave the last numbers there for ever
            self._found = None
            if str(error) != self._told:
                self._told = str(error)
                trace = None if isinstance(error, FastqError) else error
                logger.warning("the metrics are without the clusters for now: %s", error, exc_info=trace)
            _close(self._watching)
            self._watching = None
            with suppress(Exception):  # as above
                self._arrived(heartbeat_age_s(self._mirror.config))

    def _arrived(self, age_s: float | None) -> None:
        """How old the target says the last heartbeat is; None: it does not say, and what it said before stands."""
        if age_s is not None:
            self._sent = self._clock() - age_s

    def _watch(self) -> None:
        while not self._ended.is_set():
            self.look()
            self._ended.wait(self._interval_s)
        _close(self._watching)


def _heartbeat(config: MirrorConfig, age_s: float) -> Family:
    meaning = "Since the last heartbeat that arrived was sent."
    return _one("heartbeat_age_seconds", "gauge", meaning, _sides(config), age_s)


def _close(watch: Watch | None) -> None:
    if watch is not None:
        with suppress(Exception):  # as in a look: the next one is made anew
            watch.close()


def _sides(config: MirrorConfig) -> dict[str, str]:
    return {"source": config.source.alias, "target": config.target.alias}


def _one(name: str, kind: str, meaning: str, labels: dict[str, str], value: float) -> Family:
    return Family(f"fastq_mirror_{name}", kind, meaning, [(labels, value)])
