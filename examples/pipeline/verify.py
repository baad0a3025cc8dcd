"""Do the totals agree? What the front end sent, against what each job made of it.

Rules: topics are read back by a plain consumer that sees only what is committed, the stored data by pyarrow and not by the
Spark that wrote it. A check says what it compared, with numbers, whether it holds or not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset
from xxhash import xxh3_128

from fastq import Admin, Consumer, Record, TopicPartition
from pipeline.workload import ALERTS, CLOSING, COUNTS, GROUPS, Check, Replay, Results, Workload


def records(servers: str, *topics: str) -> Iterator[Record]:
    """All committed records of topics."""
    with Consumer(
        *topics, bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        yield from consumer.read_to_end()


def results(servers: str) -> Results:
    """Read COUNTS and ALERTS."""
    found: dict[str, list[dict[str, Any]]] = {COUNTS: [], ALERTS: []}
    keys: Counter[tuple[str, bytes | None]] = Counter()
    for record in records(servers, COUNTS, ALERTS):
        found[record.topic].append(json.loads(record.value or b""))
        keys[record.topic, record.key] += 1
    for of_topic in found.values():
        of_topic.sort(key=lambda value: str(value["start"]))
    return Results(found[COUNTS], found[ALERTS], sum(count - 1 for count in keys.values()))


def check_sent(servers: str, replay: Replay, sent: Counter[TopicPartition]) -> Check:
    """Every event was acknowledged, and the topics hold so many and the closing records."""
    partitions = [TopicPartition(topic, p) for topic, count in replay.topics.items() for p in range(count)]
    with Consumer(bootstrap_servers=servers) as consumer:
        ends = consumer.end_offsets(partitions)
    holds = all(ends[tp] == sent[tp] + 1 for tp in partitions) and sent.total() == len(replay.events)
    detail = f"{len(replay.events):,} events, {sent.total():,} acknowledged, {sum(ends.values()) - len(partitions):,} in the topics"
    return Check("front end", holds, detail)


def check_totals(name: str, expected: Counter[str], found: Counter[str]) -> Check:
    """All totals, by name."""
    wrong = [key for key in expected.keys() | found.keys() if expected[key] != found[key]]
    detail = f"{len(expected)} totals"
    if wrong:
        shown = ", ".join(f"{key}: {found[key]:,} and not {expected[key]:,}" for key in sorted(wrong)[:5])
        detail += f", {len(wrong)} wrong: {shown}"
    return Check(name, not wrong, detail)


def check_offsets(warehouse: Path, sent: Counter[TopicPartition]) -> Check:
    """Each offset of each partition is stored once, none is missing."""
    columns = ["topic", "partition", "offset"]
    table = pyarrow.dataset.dataset(warehouse, partitioning="hive").to_table(columns=columns)
    sums = [("offset", "count"), ("offset", "count_distinct"), ("offset", "min"), ("offset", "max")]
    wrong, seen = [], 0
    for row in table.group_by(["topic", "partition"]).aggregate(sums).to_pylist():
        tp = TopicPartition(row["topic"], row["partition"])
        whole = (sent[tp], sent[tp], 0, sent[tp] - 1)
        stored = tuple(row[f"offset_{name}"] for name in ("count", "count_distinct", "min", "max"))
        seen += 1
        if stored != whole:
            wrong.append(f"{tp}: rows, distinct offsets, first, last are {stored} and not {whole}")
    expected = sum(count > 0 for count in sent.values())
    holds = not wrong and seen == expected
    return Check("offline load, offsets", holds, f"{table.num_rows:,} rows of {seen} partitions" + "".join(wrong[:3]))


def digests(servers: str, replay: Replay) -> dict[TopicPartition, tuple[int, str]]:
    """For each partition the number of events and a hash over all keys and values, in their order."""
    hashes: dict[TopicPartition, Any] = {}
    counts: Counter[TopicPartition] = Counter()
    for record in records(servers, *replay.topics):
        if record.key == CLOSING:
            continue
        tp = TopicPartition(record.topic, record.partition)
        hashes.setdefault(tp, xxh3_128()).update(b"%b\0%b\n" % (record.key, record.value))
        counts[tp] += 1
    return {tp: (counts[tp], hashed.hexdigest()) for tp, hashed in hashes.items()}


def check_mirror(near: str, far: str, replay: Replay) -> Check:
    """Keys and values of every partition are there once and in the same order."""
    originals, copies = digests(near, replay), digests(far, replay)
    wrong = [str(tp) for tp in originals.keys() | copies.keys() if originals.get(tp) != copies.get(tp)]
    detail = f"{sum(count for count, _ in copies.values()):,} records in {len(copies)} partitions, by their hashes"
    return Check("mirror", not wrong, detail + (f"; these differ: {', '.join(sorted(wrong)[:5])}" if wrong else ""))


def check_lag(servers: str, replay: Replay) -> Check:
    """All groups are at the end."""
    partitions = [TopicPartition(topic, p) for topic, count in replay.topics.items() for p in range(count)]
    with Admin(bootstrap_servers=servers) as admin:
        lags = {
            group: [found.lag for found in admin.group_lag(group, partitions).results().values()] for group in GROUPS
        }
    holds = all(lag == 0 for found in lags.values() for lag in found)
    shown = ", ".join(f"{group} {sum(lag or 0 for lag in found):,}" for group, found in lags.items())
    return Check("lag of the groups", holds, shown)


def check_all(
    workload: Workload, replay: Replay, sent: Counter[TopicPartition], near: str, far: str, warehouse: Path
) -> tuple[list[Check], Results]:
    """Every check of a finished run, and what the real-time job wrote."""
    expected = workload.totals(replay)
    found = results(near)
    counted: Counter[str] = Counter()
    for facts in found.facts:
        counted.update(workload.counted(facts))
    once = Check(
        "real-time job, once",
        found.doubled == 0,
        f"{len(found.facts):,} windows and {len(found.alerts):,} alerts, {found.doubled} written twice",
    )
    return [
        check_sent(near, replay, sent),
        check_totals("real-time job, counts", expected, counted),
        once,
        check_totals("offline load, rows", expected, workload.loaded(warehouse)),
        check_offsets(warehouse, sent),
        check_mirror(near, far, replay),
        check_lag(near, replay),
    ], found
