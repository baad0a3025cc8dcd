"""What must hold of a history of sends, transactions and polls, whatever went wrong meanwhile.

The rules are those of Jepsen's workload for Kafka: values are unique, so that each anomaly shows by itself. `check` is pure
and answers every anomaly that it finds, in words; no anomaly is an empty list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

Place = tuple[int, int | None]
"""Partition and offset; None where a batch that was sent again long after was acknowledged without its offset, which was forgotten."""

ACKNOWLEDGED, REFUSED, UNKNOWN = "acknowledged", "refused", "unknown"
COMMITTED, ABORTED = "committed", "aborted"


@dataclass
class History:
    """What happened, as the clients saw it. Lists are appended to by one thread each, or under the GIL."""

    sends: list[tuple[int, str, Place | None]] = field(default_factory=list)
    """Value, outcome (acknowledged, refused, unknown), and the place if it was acknowledged."""
    transactions: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    """The values of a transaction and its outcome (committed, aborted, unknown)."""
    polls: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Stretch of one reader without a rebalance or restart, partition, offset, value: in the order of reading."""
    final: list[tuple[int, int, int]] = field(default_factory=list)
    """Partition, offset, value: what a reader of committed records finds at the end, from the beginning to the end."""


def check(history: History) -> list[str]:
    """All anomalies of a history."""
    return [
        *_doubled(history.final),
        *_lost(history),
        *_transactions(history),
        *_reads(history),
    ]


def _doubled(final: Iterable[tuple[int, int, int]]) -> list[str]:
    counts = Counter(value for _, _, value in final)
    return [f"value {value} is there {count} times" for value, count in counts.items() if count > 1]


def _is_at(found: tuple[int, int], told: Place) -> bool:
    return found[0] == told[0] and told[1] in (None, found[1])


def _lost(history: History) -> list[str]:
    found = {value: (partition, offset) for partition, offset, value in history.final}
    anomalies = []
    for value, outcome, place in history.sends:
        if outcome == ACKNOWLEDGED and value not in found:
            anomalies.append(f"lost write: value {value} was acknowledged at {place}")
        elif outcome == ACKNOWLEDGED and place is not None and not _is_at(found[value], place):
            anomalies.append(f"value {value} was acknowledged at {place} and lies at {found[value]}")
        elif outcome == REFUSED and value in found:
            anomalies.append(f"value {value} was refused for good and lies at {found[value]}")
    return anomalies


def _transactions(history: History) -> list[str]:
    found = {value for _, _, value in history.final}
    anomalies = []
    for values, outcome in history.transactions:
        there = [value for value in values if value in found]
        if outcome == COMMITTED and len(there) < len(values):
            anomalies.append(f"lost write: of the committed transaction {values} only {there} is there")
        elif outcome == ABORTED and there:
            anomalies.append(f"aborted read (G1a): {there} of the aborted transaction {values}")
        elif outcome == UNKNOWN and 0 < len(there) < len(values):
            anomalies.append(f"torn transaction: of {values} only {there} is there")
    return anomalies


def _reads(history: History) -> list[str]:
    order: dict[int, list[tuple[int, int]]] = {}
    for partition, offset, value in sorted(history.final):
        order.setdefault(partition, []).append((offset, value))
    index = {
        partition: {offset: number for number, (offset, _) in enumerate(rows)} for partition, rows in order.items()
    }
    last: dict[tuple[str, int], int] = {}
    anomalies = []
    for stretch, partition, offset, value in history.polls:
        number = index.get(partition, {}).get(offset)
        if number is None:
            anomalies.append(f"{stretch} read value {value} at {(partition, offset)}, where nothing committed is")
            continue
        if order[partition][number][1] != value:
            anomalies.append(f"two values at {(partition, offset)}: {value} and {order[partition][number][1]}")
        before = last.get((stretch, partition))
        if before is not None and number <= before:
            anomalies.append(f"{stretch} went back in partition {partition}, to offset {offset}")
        elif before is not None and number > before + 1:
            skipped = [place[0] for place in order[partition][before + 1 : number]]
            anomalies.append(f"{stretch} skipped offsets {skipped} of partition {partition}")
        last[stretch, partition] = number
    return anomalies
