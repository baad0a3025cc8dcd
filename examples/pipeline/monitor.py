"""Looks at the lag of the jobs while they work, as `fastq groups describe` does, from outside of them.

Rules: what is known is what brokers tell: ends of partitions, and what the groups have committed. The latency of a record is
the time from when its partition was first seen to hold it until its group was first seen to have committed it; so it is
from end to end, and true within two intervals. What was there before the
first look has no latency.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastq import Admin, TopicPartition
from pipeline.workload import GROUPS

INTERVAL_S = 0.2


@dataclass(frozen=True)
class Sample:
    """Seconds since the start; ends of all partitions; what each group has committed there, 0 where it has nothing yet."""

    at_s: float
    ends: dict[TopicPartition, int]
    committed: dict[str, dict[TopicPartition, int]]


class Monitor(threading.Thread):
    """Samples until `stop`; a context manager. `samples` only grows, and others may read it at any time."""

    def __init__(self, servers: str, partitions: Sequence[TopicPartition], groups: Sequence[str] = GROUPS) -> None:
        super().__init__(name="monitor", daemon=True)
        self.servers = servers
        self.partitions = list(partitions)
        self.groups = groups
        self.samples: list[Sample] = []
        self._stop_asked = threading.Event()

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def run(self) -> None:
        start = time.monotonic()
        with Admin(bootstrap_servers=self.servers) as admin:
            while not self._stop_asked.wait(INTERVAL_S):
                self.samples.append(self._look(admin, start))
            self.samples.append(self._look(admin, start))

    def stop(self) -> None:
        """Take a last sample and end."""
        self._stop_asked.set()
        self.join(60)

    def _look(self, admin: Admin, start: float) -> Sample:
        lags = {group: admin.group_lag(group, self.partitions).results() for group in self.groups}
        ends = {tp: max(lag[tp].end for lag in lags.values()) for tp in self.partitions}
        committed = {group: {tp: found.committed or 0 for tp, found in lag.items()} for group, lag in lags.items()}
        return Sample(time.monotonic() - start, ends, committed)

    # -- what the samples say ---------------------------------------------------------------------------------------------

    def lag(self, group: str) -> list[tuple[float, int]]:
        """(seconds, records that the group was behind), over all partitions."""
        return [
            (sample.at_s, sum(max(0, end - sample.committed[group][tp]) for tp, end in sample.ends.items()))
            for sample in self.samples
        ]

    def produced(self) -> list[tuple[float, int]]:
        """(seconds, records in all partitions)."""
        return [(sample.at_s, sum(sample.ends.values())) for sample in self.samples]

    def latencies(self, group: str) -> list[tuple[float, int]]:
        """(latency in seconds, records that had it), the shortest first; records not committed by the end are left out."""
        found: list[tuple[float, int]] = []
        for tp in self.partitions:
            ends = [(sample.at_s, sample.ends[tp]) for sample in self.samples]
            committed = [(sample.at_s, sample.committed[group][tp]) for sample in self.samples]
            found.extend(distances(ends, committed))
        return sorted(found)


def distances(ends: Sequence[tuple[float, int]], reached: Sequence[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """How long after the first rising curve the second one got as far, and for how many steps that holds.

    What was there at the first look is left out: it is not known since when.
    """
    later = iter(reached)
    at, level, done = 0.0, 0, ends[0][1] if ends else 0
    for since, end in ends:
        while done < end:
            while level <= done:
                step = next(later, None)
                if step is None:
                    return
                at, level = step[0], max(level, step[1])
            count = min(end, level) - done
            yield max(0.0, at - since), count
            done += count


def percentile(latencies: Sequence[tuple[float, int]], share: float) -> float:
    """The latency that `share` (0 to 1) of the records had at most; NaN of none."""
    total, seen = sum(count for _, count in latencies), 0
    for latency, count in latencies:
        seen += count
        if seen >= share * total:
            return latency
    return float("nan")
