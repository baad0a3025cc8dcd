"""Makes benchmarks/results/README.md, the table of all figures, from the JSON files beside it, and puts it into README.md.

    python benchmarks/compare/report.py

Rules: a figure that was not measured is shown as such; what misses its bound is marked; nothing is rounded in favour.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- figures: made by benchmarks/compare/report.py -->", "<!-- end of figures -->"

Document = dict[str, Any]


def load() -> dict[str, Document]:
    names = (
        "clients",
        "broker",
        "latency",
        "start",
        "memory",
        "cleaner",
        "coordination",
        "cluster",
        "cluster_many",
        "rolling",
        "mirror",
        "mirror_failover",
        "console",
        "observability",
        "spark",
        "growth",
        "fresh",
        "instructions",
    )
    return {name: json.loads(path.read_text()) for name in names if (path := RESULTS / f"{name}.json").exists()}


def ratio(title: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["clients"]["ratios"][title]


def cpu_ratio(title: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["clients"]["cpu_ratios"][title]


def latency(rate: str, key: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["latency"][rate]["ratio"][key]


def broker(title: str, key: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["broker"][title]["ratio"][key]


def watching(loop: str, side: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["observability"]["cpu_ratio"][loop][side]


def cluster(key: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["cluster"]["ratio"][key]


def cluster_many(key: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["cluster_many"]["ratio"][key]


def three_nodes(key: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["cluster"]["medians"]["fastq"][key]


def mirror(side: str, other: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["mirror"]["sides"][side]["mb_per_s"] / found["mirror"]["sides"][other]["mb_per_s"]


def console(key: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["console"]["figures"][key]


def spark(title: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["spark"]["ratios"][title]


# what, figure, unit, bound, whether higher is better, aim
ROWS: list[tuple[str, Callable[[dict[str, Document]], float], str, float, bool, float | None]] = [
    ("`send()` loop, acks=all, 100 bytes / confluent-kafka", ratio("send() loop, 100 B / confluent-kafka"), "x", 3, True, 5),
    ("the same: CPU a record", cpu_ratio("send() loop, 100 B / confluent-kafka"), "x", 99, False, None),
    ("`send()` loop, zstd, real log lines / confluent-kafka", ratio("send() loop, zstd, log lines / confluent-kafka"), "x", 2, True, 3),
    ("`send_many()` of a list, 100 bytes / confluent-kafka's loop", ratio("send_many(), 100 B / confluent-kafka"), "x", 6, True, 12),
    ("`for record in consumer`, 100 bytes / confluent-kafka", ratio("for record, 100 B / confluent-kafka"), "x", 7, True, 12),
    ("the same: CPU a record", cpu_ratio("for record, 100 B / confluent-kafka"), "x", 99, False, None),
    ("`poll_batch().to_arrow()`, 100 bytes / confluent-kafka", ratio("to_arrow(), 100 B / confluent-kafka"), "x", 20, True, 40),
    ("the same / fetches that nobody reads: what loopback gives", ratio("to_arrow(), 100 B / what loopback gives"), "x", 0, True, None),
    ("asyncio `await send()` loop, 100 bytes / aiokafka", ratio("await send() loop, 100 B / aiokafka"), "x", 8, True, None),
    ("asyncio `async for`, 100 bytes / aiokafka", ratio("async for, 100 B / aiokafka"), "x", 8, True, None),
    ("asyncio `await send()` / the sync path", ratio("await send() / the sync path"), "x", 0, True, 0.5),
    ("asyncio `async for` / the sync path", ratio("async for / the sync path"), "x", 0, True, 0.5),
    ("mix with keys: `send()` loop / confluent-kafka", ratio("send() loop / confluent-kafka"), "x", 0, True, None),
    ("mix with keys: the same, CPU a record", cpu_ratio("send() loop / confluent-kafka"), "x", 99, False, None),
    ("mix with keys: `send()` loop / the Java client's performance tool", ratio("send() loop / Java"), "x", 0, True, None),
    ("mix with keys: `send_many()` of a list / confluent-kafka's loop",
     ratio("send_many() of a list / confluent-kafka"), "x", 0, True, None),
    ("mix with keys: `for record in consumer` / confluent-kafka", ratio("for record in consumer / confluent-kafka"), "x", 0, True, None),
    ("mix with keys: the same, CPU a record", cpu_ratio("for record in consumer / confluent-kafka"), "x", 99, False, None),
    ("mix with keys: `for record in consumer` / the Java client's performance tool",
     ratio("for record in consumer / Java"), "x", 0, True, None),
    ("mix with keys: `poll_batch().to_arrow()` / confluent-kafka", ratio("to_arrow() / confluent-kafka"), "x", 0, True, None),
    ("mix with keys: the same / fetches that nobody reads",
     ratio("to_arrow() / what loopback gives: fetches that nobody reads"), "x", 0, True, None),
    ("mix with keys: asyncio `await send()` loop / aiokafka", ratio("await send() loop / aiokafka"), "x", 0, True, None),
    ("mix with keys: asyncio `async for` / aiokafka", ratio("async for / aiokafka"), "x", 0, True, None),
    ("10 bytes: `send()` loop / confluent-kafka", ratio("send() loop, 10 B / confluent-kafka"), "x", 0, True, None),
    ("10 bytes: `for record in consumer` / confluent-kafka", ratio("for record, 10 B / confluent-kafka"), "x", 0, True, None),
    ("10 KB: `send()` loop / confluent-kafka", ratio("send() loop, 10 KB / confluent-kafka"), "x", 0, True, None),
    ("10 KB: `for record in consumer` / confluent-kafka", ratio("for record, 10 KB / confluent-kafka"), "x", 0, True, None),
    ("`send()` loop, metrics and tracing loaded but off / absent: CPU", watching("send", "off"), "x", 0, True, None),
    ("`for record in consumer`, the same: CPU", watching("consume", "off"), "x", 0, True, None),
    ("noise of these two: `send()` loop, absent once more / absent", watching("send", "absent again"), "x", 0, True, None),
    ("`send()` loop, metrics scraped each second / absent: CPU", watching("send", "metrics"), "x", 0, True, None),
    ("`for record in consumer`, the same: CPU", watching("consume", "metrics"), "x", 0, True, None),
    ("client RSS over 10 M sends, growth beyond buffer_memory",
     lambda f: f["memory"]["grown_MiB"] - (f["memory"]["bound_MiB"] - 64), "MiB", 64, False, None),
    ("broker, 900 kB produce: MB/s / Apache Kafka", broker("produce 900 kB, 5 in flight", "MB_per_s"), "x", 4, True, 8),
    ("broker, 900 kB produce: CPU a byte / Apache Kafka", broker("produce 900 kB, 5 in flight", "cpu_s_per_GB"), "x", 0.25, False, 0.125),
    ("broker, fetch loop: MB/s / Apache Kafka", broker("fetch 8 MiB", "MB_per_s"), "x", 0.8, True, 1),
    ("broker, fetch loop: CPU a byte / Apache Kafka", broker("fetch 8 MiB", "cpu_s_per_GB"), "x", 99, False, 1.2),
    ("broker, one-record produce, 50 connections: CPU a request / Apache Kafka",
     broker("produce 1 record, 50 connections", "cpu_us_per_request"), "x", 1, False, 0.5),
    ("broker, start to ready, empty directory", lambda f: f["start"]["empty"]["ready_s"], "s", 0.5, False, 0.2),
    ("broker, idle RSS", lambda f: f["start"]["empty"]["idle_rss_MiB"], "MiB", 80, False, 50),
    ("end to end p99 at 10,000/s / confluent-kafka", latency("10000/s", "p99_ms"), "x", 1, False, 0.5),
    ("end to end p50 at 10,000/s / confluent-kafka", latency("10000/s", "p50_ms"), "x", 99, False, None),
    ("end to end p99 at 100/s / confluent-kafka", latency("100/s", "p99_ms"), "x", 99, False, None),
    ("end to end p99 at 100,000/s / confluent-kafka", latency("100000/s", "p99_ms"), "x", 99, False, None),
    ("end to end p50 at 100,000/s / confluent-kafka", latency("100000/s", "p50_ms"), "x", 99, False, None),
    ("three nodes, 900 kB produce, acks=all: MB/s / Apache Kafka", cluster("MB_per_s"), "x", 3, True, 6),
    ("the same: CPU of all nodes a byte / Apache Kafka", cluster("cpu_s_per_GB"), "x", 1 / 3, False, 0.15),
    ("three nodes, 5,000 records/s, acks=all: p99 / Apache Kafka", cluster("p99_ms"), "x", 1, False, 0.5),
    ("three nodes, from empty to the first acknowledged record", three_nodes("first_record_s"), "s", 1.5, False, 0.8),
    ("three idle nodes, RSS together", three_nodes("idle_rss_MiB"), "MiB", 200, False, 130),
    ("a leader is killed: longest gap / Apache Kafka", cluster("kill_gap_s"), "x", 1, False, 0.15),
    ("a leader is stopped: longest gap / Apache Kafka", cluster("end_gap_s"), "x", 1, False, None),
    ("the active controller is killed: first change / Apache Kafka", cluster("controller_gap_s"), "x", 1, False, None),
    ("10,000 partitions of three replicas, made and written to / Apache Kafka", cluster_many("create_s"), "x", 1, False, 0.5),
    ("the same, a node is killed: all it led written to / Apache Kafka", cluster_many("fail_over_s"), "x", 1, False, 0.5),
    ("the same, a node is restarted: all in sync / Apache Kafka", cluster_many("restart_s"), "x", 1, False, 0.5),
    ("20 GiB behind: MB/s of the follower / Apache Kafka", cluster_many("MB_per_s"), "x", 1, True, None),
    ("the leader's produce p99 meanwhile / before",
     lambda f: f["cluster_many"]["medians"]["fastq"]["p99_ratio"], "x", 2, False, None),
    ("5,000 partitions, restart to the first acknowledged record",
     lambda f: f["start"]["5000 partitions"]["first_acknowledged_s"], "s", 5, False, 2),
    ("cleaner: bytes a second of a core, 100-byte records, one key in ten distinct",
     lambda f: f["cleaner"]["alone"]["medians"]["MB_per_cpu_s"], "MB/s", 150, True, 300),
    ("cleaner: largest RSS of its process",
     lambda f: f["cleaner"]["alone"]["medians"]["rss_MiB"], "MiB", 256, False, None),
    ("broker, produce p99 while it compacts / while it does not",
     lambda f: f["cleaner"]["produce"]["medians"]["ratio"], "x", 2, False, None),
    ("synchronous offset commits / confluent-kafka", lambda f: f["coordination"]["commits"]["ratio"], "x", 1, True, None),
    ("transactions of 100 records / confluent-kafka", lambda f: f["coordination"]["transactions"]["ratio"], "x", 2, True, 5),
    ("broker, rebalance of 100 members over 1,000 partitions: CPU",
     lambda f: f["coordination"]["rebalance"]["cpu_s"], "s", 0.1, False, None),
    ("sticky assignor, 100 members, 1,000 partitions, ten members leave",
     lambda f: f["coordination"]["sticky assignor"]["s"], "s", 0.5, False, None),
    ("the same: partitions moved / the fewest that can be",
     lambda f: f["coordination"]["sticky assignor"]["moved"] / f["coordination"]["sticky assignor"]["minimum"], "x", 1, False, None),
    ("broker, 10,000 idle members in 100 groups: share of a core",
     lambda f: f["coordination"]["idle members"]["cpu_share"], "", 1, False, None),
    ("`fastq.testing` broker, start to the first acknowledged record",
     lambda f: f["coordination"]["testing broker"]["seconds"], "s", 0.2, False, None),
    ("cooperative rolling restart of 10 members: records doubled or lost",
     lambda f: f["rolling"]["cooperative-sticky"]["doubled"] + f["rolling"]["cooperative-sticky"]["lost"], "", 0, False, None),
    ("the same: longest pause in a step, median of steps, partitions that stay",
     lambda f: f["rolling"]["cooperative-sticky"]["stayed_pause_ms_p50"],
     "ms", 0, True, None),
    ("the same: longest pause in a step, median of steps, partitions that move",
     lambda f: f["rolling"]["cooperative-sticky"]["moved_pause_ms_p50"],
     "ms", 0, True, None),
    ("KIP-848, four members join within a second: the slowest one's first record",
     lambda f: f["rolling"]["joins, fastq"]["slowest_s"], "s", 1.5, False, None),
    ("the same on Apache Kafka, whose brokers tell members that own partitions to come every five seconds",
     lambda f: f["rolling"]["joins, apache-kafka"]["slowest_s"], "s", 99, False, None),
    ("`fastq mirror`, 1 GiB of 100-byte records: MB/s / MirrorMaker 2", mirror("fastq mirror", "MirrorMaker 2"), "x", 3, True, None),
    ("the same / a loop of confluent-kafka's clients", mirror("fastq mirror", "confluent-kafka loop"), "x", 3, True, None),
    ("the same with the same offsets / fetches that nobody reads", mirror("fastq mirror, same offsets", "fetch alone"),
     "x", 0.5, True, None),
    ("a mirror's source is killed at 10,000 records/s: records lost, the most of five rounds",
     lambda f: f["mirror_failover"]["rpo_records"]["most"], "", 0, True, None),
    ("the same: until the target may be written to", lambda f: f["mirror_failover"]["rto_s"]["median"], "s", 0, True, None),
    ("console of 10,000 topics: start to the first page", console("first_page_s"), "s", 1, False, None),
    ("the same: list of topics", console("topic_list_ms"), "ms", 300, False, None),
    ("the same: largest RSS", console("largest_rss_mib"), "MiB", 120, False, None),
    ("the same: live tail of 20,000 records/s, how far behind", console("tail_behind_s"), "s", 1, False, None),
    ("`pip install` from source, two cores", lambda f: f["fresh"]["install_s"], "s", 90, False, 60),
    ("`make demo` in a fresh clone, to its last line", lambda f: f["fresh"]["demo_s"], "s", 150, False, 100),
    ("`import fastq`", lambda f: f["fresh"]["import_ms"]["import fastq"], "ms", 15, False, 8),
    ("`from fastq import Producer, Consumer`", lambda f: f["fresh"]["import_ms"]["Producer and Consumer"], "ms", 60, False, 35),
    ("Spark: batch read, 7 columns / its JVM connector", spark("batch read, 7 columns"), "x", 2, True, 4),
    ("the same with Spark's own settings", spark("batch read, 7 columns, Spark's defaults"), "x", 0, True, None),
    ("Spark: batch read to Parquet / its JVM connector", spark("batch read to Parquet"), "x", 1.5, True, 2.5),
    ("the same with Spark's own settings", spark("batch read to Parquet, Spark's defaults"), "x", 0, True, None),
    ("Spark: batch write of key, value, topic / its JVM connector", spark("batch write"), "x", 1, True, 1.5),
    ("Spark: `ForeachPartitionProducer` / an empty `foreachPartition`", spark("foreachPartition"), "x", 0.9, True, None),
    ("Spark: `foreach_partition_arrow` / `ForeachPartitionProducer`", spark("foreach_partition_arrow"), "x", 4, True, None),
    ("Spark: duration of a micro-batch of 100 rows / its JVM connector", spark("micro-batch of 100 rows"), "x", 1.5, False, 1),
]  # fmt: skip


def table(found: dict[str, Document]) -> list[str]:
    lines = ["| what | measured | must | aim | |", "|---|---|---|---|---|"]
    for title, figure, unit, must, higher, aim in ROWS:
        try:
            value = figure(found)
        except KeyError:
            lines.append(f"| {title} | not measured | | | |")
            continue

        def bound(limit: float | None, higher: bool = higher, unit: str = unit) -> str:
            return "" if limit in (None, 0, 99) else f"{'>=' if higher else '<='} {limit:g} {unit}"

        def met(limit: float, value: float = value, higher: bool = higher) -> bool:
            return value >= limit if higher else value <= limit

        verdict = (
            "missed"
            if not met(must)
            else "aim met"
            if aim is not None and met(aim)
            else "met"
            if must not in (0, 99)
            else ""
        )
        lines.append(f"| {title} | {value:.3g} {unit} | {bound(must)} | {bound(aim)} | {verdict} |")
    return lines


def rates(found: dict[str, Document]) -> list[str]:
    lines: list[str] = []
    if "clients" in found:
        lines += [
            "## Clients on one fastq broker, medians",
            "",
            "The part before the colon is what the values are: `mix` a third each of real log lines, 100 random bytes and JSON of",
            "1 KB, with keys; the others without. `-best`: the peer with the settings that its users choose for speed (client_runs.py).",
            "",
            "| run | records/s | CPU a record, us |",
            "|---|---|---|",
        ]
        for run, row in found["clients"]["medians"].items():
            lines.append(f"| {run} | {row['records_per_s']:,.0f} | {row['cpu_us_per_record']:.3f} |")
    if "broker" in found:
        lines += [
            "",
            "## Brokers under the same frames, medians",
            "",
            "| load | figure | fastq | Apache Kafka |",
            "|---|---|---|---|",
        ]
        for title, row in found["broker"].items():
            for key in row.get("ratio", ()):
                lines.append(f"| {title} | {key} | {row['fastq'][key]:,.4g} | {row['apache-kafka'][key]:,.4g} |")
    if "cluster" in found:
        lines += ["", "## Three nodes, every record on each, medians (cluster.py says of what)", ""]
        lines += ["| figure | fastq | Apache Kafka |", "|---|---|---|"]
        sides = found["cluster"]["medians"]
        for key, value in sides["fastq"].items():
            lines.append(f"| {key} | {value:,.4g} | {sides['apache-kafka'][key]:,.4g} |")
    if "cluster_many" in found:
        lines += ["", "## Many partitions, and much to catch up with (cluster_many.py says of what)", ""]
        lines += ["| figure | fastq | Apache Kafka |", "|---|---|---|"]
        sides = found["cluster_many"]["medians"]
        for key, value in sides["fastq"].items():
            theirs = sides["apache-kafka"].get(key)
            lines.append(f"| {key} | {value:,.4g} | {'not reached' if theirs is None else f'{theirs:,.4g}'} |")
    if "latency" in found:
        lines += [
            "",
            "## End to end, ms, medians",
            "",
            "| records/s | client | p50 | p99 | p99.9 |",
            "|---|---|---|---|---|",
        ]
        for rate, document in found["latency"].items():
            for library, row in document.get("medians", {}).items():
                shown = " | ".join(f"{row[key]:.3f}" for key in ("p50_ms", "p99_ms", "p999_ms"))
                lines.append(f"| {rate.removesuffix('/s')} | {library} | {shown} |")
    if "instructions" in found:
        lines += [
            "",
            "## Instructions a record or request, counted by valgrind",
            "",
            "Before: of the first version, before defects were mended. What `send` has more are prefetches of the values to come (its time",
            "went down by them), and the order of records in asyncio.",
            "",
            "| what | before | now | |",
            "|---|---|---|---|",
        ]
        for what, row in found["instructions"]["a unit"].items():
            if "base" in row:
                lines.append(
                    f"| {what} | {row['base']:,.0f} | {row['this']:,.0f} | {row['this'] / row['base']:.3f} x |"
                )
    for subject, rows in found.get("growth", {}).items():
        if subject == "machine":
            continue
        keys = list(next(iter(rows.values())))
        lines += ["", f"## As it grows: {subject} (growth.svg)", "", f"| {subject} | {' | '.join(keys)} |"]
        lines += ["|---" * (len(keys) + 1) + "|"]
        lines += [f"| {int(step):,} | {' | '.join(f'{row[key]:.3g}' for key in keys)} |" for step, row in rows.items()]
    if "spark" in found:
        lines += [
            "",
            "## Spark on one fastq broker, local[2], medians",
            "",
            "CPU is that of the session: driver, JVM and Python workers.",
            "",
            "| run | rows/s | CPU a row, us | ms |",
            "|---|---|---|---|",
        ]
        for run, row in found["spark"]["medians"].items():
            rate = f"{row['rows_per_s']:,.0f} | {row['cpu_us_per_row']:.3f}" if "rows_per_s" in row else " | "
            lines.append(f"| {run} | {rate} | {row.get('median_ms', '')} |")
    return lines


def with_figures(text: str, lines: list[str]) -> str:
    """The project's README, with these lines between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, *lines, END + after])


def page(found: dict[str, Document]) -> str:
    """The page of all figures."""
    machine = next(iter(found.values()), {}).get("machine", {})
    lines = [
        "# Measured",
        "",
        "Made by `make bench` from the JSON files beside it: values that differ, sides interleaved in one run, medians; of a peer",
        "its defaults and its best settings are measured, and a ratio is to the faster one.",
        f"Machine: {', '.join(f'{key} {value}' for key, value in machine.items())}.",
        "",
        *table(found),
        "",
        *rates(found),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    found = load()
    readme = ROOT / "README.md"
    readme.write_text(with_figures(readme.read_text(), table(found)))
    (RESULTS / "README.md").write_text(page(found))
    print(page(found), end="")


if __name__ == "__main__":
    main()
