"""What dashboards for Apache Kafka ask for of the last minute: quantiles of requests' times, how much of the loop is idle, and what waits.

Rules
- Nothing is counted for it: what is counted since the start is compared with what it was WINDOW_S ago, or at the scrape before that. The
  loop's processor time is the system's account of its thread, so it is read in that thread.
- Quantiles are read from buckets, and so are as exact as those; of times above the last bound they are that bound.
- One thread reads, judges and answers requests: both of Kafka's idle figures are this one's. What Kafka has queues for is not told.
Sources: kafka.network.RequestMetrics, SocketServer; kafka.server.KafkaRequestHandlerPool, DelayedOperationPurgatory.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fastq.protocol.api import APIS
from fastq.values import NamedTuple

if TYPE_CHECKING:
    from .metrics import ApiStats, Exposition

WINDOW_S = 60.0
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)  # as Kafka's histograms have them
PRODUCE, FETCH = 0, 1


class _Look(NamedTuple):
    """What was counted at a time: the loop's processor time, and counts of buckets by API and phase."""

    at_s: float
    busy_s: float
    buckets: Mapping[tuple[int, str], Sequence[int]]


class Recent:
    """Loop thread only."""

    def __init__(
        self,
        bounds: Sequence[float],
        clock: Callable[[], float] = time.monotonic,
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        """`bounds`: of the buckets, in seconds."""
        self._bounds, self._clock, self._busy = bounds, clock, busy
        self._looks = deque([_Look(clock(), busy(), {})])

    def tell(self, out: Exposition, stats: Mapping[int, ApiStats], waiting: Mapping[int, int]) -> None:
        """`waiting` are requests whose answers come later, by API."""
        now = _Look(self._clock(), self._busy(), dict(_buckets(stats)))
        self._looks.append(now)
        while len(self._looks) > 2 and now.at_s - self._looks[1].at_s >= WINDOW_S:
            self._looks.popleft()
        before = self._looks[0]
        for name, meaning, phase in (
            (
                "kafka_network_requestmetrics_totaltimems",
                "Milliseconds from a request's last byte to its answer, of the last minute.",
                "total",
            ),
            (
                "kafka_network_requestmetrics_localtimems",
                "Milliseconds of it in the handler, of the last minute.",
                "local",
            ),
            (
                "kafka_network_requestmetrics_remotetimems",
                "Milliseconds of it waiting for nodes, disks or records, of the last minute.",
                "remote",
            ),
        ):
            samples = [
                ({"request": APIS[api].name, "quantile": quantile}, found_ms)
                for (api, each), counts in now.buckets.items()
                if each == phase
                for quantile, found_ms in self._quantiles(counts, before.buckets.get((api, each), ()))
            ]
            out.family(name, "gauge", meaning, samples)
        answered = [({"request": APIS[api].name}, found.requests) for api, found in stats.items() if api in APIS]
        out.family("kafka_network_requestmetrics_totaltimems_count", "counter", "Requests answered.", answered)
        elapsed_s = max(now.at_s - before.at_s, 1e-9)
        idle = min(max(1.0 - (now.busy_s - before.busy_s) / elapsed_s, 0.0), 1.0)
        for name, meaning in (
            (
                "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
                "Share of the last minute in which the loop did not compute, 0 to 1.",
            ),
            ("kafka_network_socketserver_networkprocessoravgidle_percent", "The same: one thread does both."),
        ):
            out.family(name, "gauge", meaning, idle)
        delayed = [
            ({"delayedOperation": kind}, waiting.get(api, 0)) for api, kind in ((PRODUCE, "Produce"), (FETCH, "Fetch"))
        ]
        out.family(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "gauge",
            "Requests that wait for their answer.",
            delayed,
        )

    def _quantiles(self, counts: Sequence[int], before: Sequence[int]) -> Iterator[tuple[float, float]]:
        """Each quantile in milliseconds of what was counted since; none where nothing was."""
        new = [now - then for now, then in zip(counts, before or [0] * len(counts), strict=True)]
        total = sum(new)
        for quantile in QUANTILES if total else ():
            left, low = quantile * total, 0.0
            for bound, count in zip(self._bounds, new, strict=False):
                if left <= count:
                    low += (bound - low) * left / count if count else 0.0
                    break
                left, low = left - count, bound
            yield quantile, low * 1000


def _buckets(stats: Mapping[int, ApiStats]) -> Iterator[tuple[tuple[int, str], Sequence[int]]]:
    for api, found in stats.items():
        if api in APIS:
            yield (api, "total"), list(found.buckets)
            yield (api, "local"), found.local[0]
            waited = list(found.waited.buckets)
            waited[0] += found.requests - sum(waited)  # what is answered at once has not waited
            yield (api, "remote"), waited


def waiting_by_api(stats: Mapping[int, ApiStats], pending: Iterable[ApiStats]) -> Counter[int]:
    """How many requests of each API are pending."""
    apis = {id(found): api for api, found in stats.items()}
    return Counter(apis[id(each)] for each in pending if id(each) in apis)
