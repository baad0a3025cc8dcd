"""Makes benchmarks/results/README.md, the table of all figures, from the JSON files beside it, and puts the chief ones into README.md.

    python benchmarks/compare/report.py

Rules: a figure that was not measured is shown as such; what misses its bound is marked, and is one of the chief figures; nothing is
rounded in favour. Where only the other side has not come to its end in the time that both were given, that is what the row says, and the
bound is met. A table says of which machine and day it is where not all are of the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker import ALIKE_LOAD, MIX_LOAD

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- figures: made by benchmarks/compare/report.py -->", "<!-- end of figures -->"

LONG_S, NOT_REACHED = 900, "not reached within 15 min"
"""What cluster_many.py gives each side for a step."""

PAPERS = "papers.md"

Document = dict[str, Any]


class NotReached(Exception):
    """The other side has not come to its end: what the row says."""


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
        "simulation",
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


def not_reached(document: Document, key: str) -> bool:
    """Whether a figure of ours has none beside it because the other side had not come to its end in the time that it was given."""
    rounds = document["rounds"]
    parts = [part for part, rows in rounds["fastq"].items() if any(key in row for row in rows)]
    theirs = [row for part in parts for row in rounds["apache-kafka"].get(part, ())]
    return bool(theirs) and all(row.get("given_up_s", LONG_S) >= LONG_S for row in theirs if key not in row)


def cluster_many(key: str, unit: str) -> Callable[[dict[str, Document]], float]:
    def figure(found: dict[str, Document]) -> float:
        document = found["cluster_many"]
        if key not in document["ratio"] and not_reached(document, key):
            raise NotReached(f"{document['medians']['fastq'][key]:.3g} {unit}; Apache Kafka: {NOT_REACHED}")
        return float(document["ratio"][key])

    return figure


def three_nodes(key: str, scale: float = 1.0) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["cluster"]["medians"]["fastq"][key] * scale


def mirror(side: str, other: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["mirror"]["sides"][side]["mb_per_s"] / found["mirror"]["sides"][other]["mb_per_s"]


def console(key: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["console"]["figures"][key]


def most_requests(found: dict[str, Document]) -> float:
    """Of what a topic's page asks the nodes, by the one that is asked most."""
    return float(max(sum(asked.values()) for asked in found["console"]["topic_requests"].values()))


def not_idle(found: dict[str, Document]) -> float:
    idle = found["coordination"]["idle members"]
    return float(idle["late"] + idle["refused"] + idle["hurried"])


def spark(title: str) -> Callable[[dict[str, Document]], float]:
    return lambda found: found["spark"]["ratios"][title]


# what, figure, unit, must (None: no bound), whether higher is better, aim
ROWS: list[tuple[str, Callable[[dict[str, Document]], float], str, float | None, bool, float | None]] = [
    ("`send()` loop, acks=all, 100 bytes / confluent-kafka", ratio("send() loop, 100 B / confluent-kafka"), "x", 3, True, 5),
    ("the same: CPU a record", cpu_ratio("send() loop, 100 B / confluent-kafka"), "x", None, False, None),
    ("`send()` loop, zstd, real log lines / confluent-kafka", ratio("send() loop, zstd, log lines / confluent-kafka"), "x", 2, True, 3),
    ("`send_many()` of a list, 100 bytes / confluent-kafka's loop", ratio("send_many(), 100 B / confluent-kafka"), "x", 6, True, 12),
    ("`send()` loop, 100 bytes / the Java client's performance tool", ratio("send() loop, 100 B / Java"), "x", None, True, None),
    ("`for record in consumer`, 100 bytes / confluent-kafka", ratio("for record, 100 B / confluent-kafka"), "x", 7, True, 12),
    ("the same: CPU a record", cpu_ratio("for record, 100 B / confluent-kafka"), "x", None, False, None),
    ("`for record in consumer`, 100 bytes / the Java client's performance tool", ratio("for record, 100 B / Java"), "x", None, True, None),
    ("`poll_batch().to_arrow()`, 100 bytes / confluent-kafka", ratio("to_arrow(), 100 B / confluent-kafka"), "x", 20, True, 40),
    ("the same / fetches that nobody reads: what loopback gives", ratio("to_arrow(), 100 B / what loopback gives"), "x", None, True, None),
    ("asyncio `await send()` loop, 100 bytes / aiokafka", ratio("await send() loop, 100 B / aiokafka"), "x", 8, True, None),
    ("asyncio `async for`, 100 bytes / aiokafka", ratio("async for, 100 B / aiokafka"), "x", 8, True, None),
    ("asyncio `await send()` / the sync path", ratio("await send() / the sync path"), "x", None, True, 0.5),
    ("asyncio `async for` / the sync path", ratio("async for / the sync path"), "x", None, True, 0.5),
    ("mix with keys: `send()` loop / confluent-kafka", ratio("send() loop / confluent-kafka"), "x", None, True, None),
    ("mix with keys: `send()` loop, CPU a record / confluent-kafka", cpu_ratio("send() loop / confluent-kafka"), "x", None, False, None),
    ("mix: `send()` loop with keys / the Java client's performance tool, which sends none",
     ratio("send() loop / Java"), "x", None, True, None),
    ("mix with keys: `send_many()` of a list / confluent-kafka's loop",
     ratio("send_many() of a list / confluent-kafka"), "x", None, True, None),
    ("mix with keys: `for record in consumer` / confluent-kafka", ratio("for record in consumer / confluent-kafka"), "x", None, True, None),
    ("mix with keys: `for record in consumer`, CPU a record / confluent-kafka",
     cpu_ratio("for record in consumer / confluent-kafka"), "x", None, False, None),
    ("mix with keys: `for record in consumer` / the Java client's performance tool",
     ratio("for record in consumer / Java"), "x", None, True, None),
    ("mix with keys: `poll_batch().to_arrow()` / confluent-kafka", ratio("to_arrow() / confluent-kafka"), "x", None, True, None),
    ("mix with keys: the same / fetches that nobody reads",
     ratio("to_arrow() / what loopback gives: fetches that nobody reads"), "x", None, True, None),
    ("mix with keys: asyncio `await send()` loop / aiokafka", ratio("await send() loop / aiokafka"), "x", None, True, None),
    ("mix with keys: asyncio `async for` / aiokafka", ratio("async for / aiokafka"), "x", None, True, None),
    ("10 bytes: `send()` loop / confluent-kafka", ratio("send() loop, 10 B / confluent-kafka"), "x", None, True, None),
    ("10 bytes: `for record in consumer` / confluent-kafka", ratio("for record, 10 B / confluent-kafka"), "x", None, True, None),
    ("10 KB: `send()` loop / confluent-kafka", ratio("send() loop, 10 KB / confluent-kafka"), "x", None, True, None),
    ("10 KB: `for record in consumer` / confluent-kafka", ratio("for record, 10 KB / confluent-kafka"), "x", None, True, None),
    ("`send()` loop, metrics and tracing loaded but off / absent: CPU", watching("send", "off"), "x", None, True, None),
    ("`for record in consumer`, the same: CPU", watching("consume", "off"), "x", None, True, None),
    ("noise of these two: `send()` loop, absent once more / absent", watching("send", "absent again"), "x", None, True, None),
    ("`send()` loop, metrics scraped each second / absent: CPU", watching("send", "metrics"), "x", None, True, None),
    ("`for record in consumer`, the same: CPU", watching("consume", "metrics"), "x", None, True, None),
    ("client RSS over 10 M sends, growth beyond buffer_memory",
     lambda f: f["memory"]["grown_MiB"] - (f["memory"]["bound_MiB"] - 64), "MiB", 64, False, None),
    ("broker, 900 kB produce of the mix with keys: MB/s / Apache Kafka", broker(MIX_LOAD, "MB_per_s"), "x", 4, True, 8),
    ("broker, 900 kB produce of the mix with keys: CPU a byte / Apache Kafka", broker(MIX_LOAD, "cpu_s_per_GB"), "x", 0.25, False, 0.125),
    ("broker, 900 kB produce of records that are all alike: MB/s / Apache Kafka", broker(ALIKE_LOAD, "MB_per_s"), "x", None, True, None),
    ("broker, the same: CPU a byte / Apache Kafka", broker(ALIKE_LOAD, "cpu_s_per_GB"), "x", None, False, None),
    ("broker, fetch loop: MB/s / Apache Kafka", broker("fetch 8 MiB", "MB_per_s"), "x", 0.8, True, 1),
    ("broker, fetch loop: CPU a byte / Apache Kafka", broker("fetch 8 MiB", "cpu_s_per_GB"), "x", None, False, 1.2),
    ("broker, one-record produce, 50 connections: CPU a request / Apache Kafka",
     broker("produce 1 record, 50 connections", "cpu_us_per_request"), "x", 1, False, 0.5),
    ("broker, start to ready, empty directory", lambda f: f["start"]["empty"]["ready_s"], "s", 0.5, False, 0.2),
    ("broker, idle RSS", lambda f: f["start"]["empty"]["idle_rss_MiB"], "MiB", 80, False, 50),
    ("end to end p99 at 10,000/s / confluent-kafka", latency("10000/s", "p99_ms"), "x", 1, False, 0.5),
    ("end to end p50 at 10,000/s / confluent-kafka", latency("10000/s", "p50_ms"), "x", None, False, None),
    ("end to end p50 at 100/s / confluent-kafka", latency("100/s", "p50_ms"), "x", None, False, None),
    ("end to end p99 at 100/s / confluent-kafka", latency("100/s", "p99_ms"), "x", None, False, None),
    ("end to end p99 at 100,000/s / confluent-kafka", latency("100000/s", "p99_ms"), "x", None, False, None),
    ("end to end p50 at 100,000/s / confluent-kafka", latency("100000/s", "p50_ms"), "x", None, False, None),
    ("three nodes, 900 kB produce of the mix, acks=all: MB/s / Apache Kafka", cluster("mix_MB_per_s"), "x", 3, True, 6),
    ("the same: CPU of all nodes a byte / Apache Kafka", cluster("mix_cpu_s_per_GB"), "x", 1 / 3, False, 0.15),
    ("three nodes, the same of records that are all alike: MB/s / Apache Kafka", cluster("alike_MB_per_s"), "x", None, True, None),
    ("the same: CPU of all nodes a byte / Apache Kafka", cluster("alike_cpu_s_per_GB"), "x", None, False, None),
    ("three nodes, 5,000 records/s, acks=all: p99 / Apache Kafka", cluster("p99_ms"), "x", 1, False, 0.5),
    ("three nodes, from empty to the first acknowledged record", three_nodes("first_record_s"), "s", 1.5, False, 0.8),
    ("three idle nodes, RSS together", three_nodes("idle_rss_MiB"), "MiB", 200, False, 130),
    ("a leader is killed: longest gap / Apache Kafka", cluster("kill_gap_s"), "x", 1, False, 0.15),
    ("a leader is stopped: longest gap / Apache Kafka", cluster("end_gap_s"), "x", 1, False, None),
    ("a leader is stopped: longest gap", three_nodes("end_gap_s", 1e3), "ms", None, False, 100),
    ("the active controller is killed: first change / Apache Kafka", cluster("controller_gap_s"), "x", 1, False, None),
    ("the same: first change, of an election time-out of a second", three_nodes("controller_gap_s"), "s", None, False, 1.2),
    ("10,000 partitions of three replicas, made and written to / Apache Kafka",
     cluster_many("create_s", "s"), "x", 1, False, 0.5),
    ("the same, a node is killed: all it led written to / Apache Kafka",
     cluster_many("fail_over_s", "s"), "x", 1, False, 0.5),
    ("the same, a node is restarted: all in sync / Apache Kafka", cluster_many("restart_s", "s"), "x", 1, False, 0.5),
    ("20 GiB behind: MB/s of the follower / Apache Kafka", cluster_many("MB_per_s", "MB/s"), "x", 1, True, None),
    ("a follower catches up with 20 GiB: produce p99 of a client of its leader meanwhile / before",
     lambda f: f["cluster_many"]["medians"]["fastq"]["client_p99_ratio"], "x", 2, False, None),
    ("the same: p99 meanwhile / Apache Kafka's", cluster_many("client_meanwhile_p99_ms", "ms"), "x", None, False, None),
    ("simulation of three nodes with a light load: virtual time / real time",
     lambda f: f["simulation"]["medians"]["times_as_fast"], "x", 20, True, 100),
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
    ("the same: heartbeats that were late, refused or of members not idle", not_idle, "", 10, False, None),
    ("`fastq.testing` broker, start to the first acknowledged record",
     lambda f: f["coordination"]["testing broker"]["seconds"], "s", 0.2, False, None),
    ("cooperative rolling restart of 10 members: records doubled or lost",
     lambda f: f["rolling"]["cooperative-sticky"]["doubled"] + f["rolling"]["cooperative-sticky"]["lost"], "", 0, False, None),
    ("the same: longest pause in a step, median of steps, partitions that stay",
     lambda f: f["rolling"]["cooperative-sticky"]["stayed_pause_ms_p50"],
     "ms", None, True, None),
    ("the same: longest pause in a step, median of steps, partitions that move",
     lambda f: f["rolling"]["cooperative-sticky"]["moved_pause_ms_p50"],
     "ms", None, True, None),
    ("KIP-848, four members join within a second: the slowest one's first record",
     lambda f: f["rolling"]["joins, fastq"]["slowest_s"], "s", 1.5, False, None),
    ("the same on Apache Kafka, whose brokers tell members that own partitions to come every five seconds",
     lambda f: f["rolling"]["joins, apache-kafka"]["slowest_s"], "s", None, False, None),
    ("`fastq mirror`, 1 GiB of 100-byte records: MB/s / MirrorMaker 2", mirror("fastq mirror", "MirrorMaker 2"), "x", 3, True, None),
    ("the same / a loop of confluent-kafka's clients", mirror("fastq mirror", "confluent-kafka loop"), "x", 3, True, None),
    ("`fastq mirror` with the same offsets, the target pulls: MB/s / fetches that nobody reads",
     mirror("fastq mirror, same offsets, the target pulls", "fetch alone"), "x", 0.5, True, None),
    ("the same where the bytes go through the mirror's process", mirror("fastq mirror, same offsets", "fetch alone"),
     "x", None, True, None),
    ("the latter / a bare copy: two sockets, three processes, a checksum and a write", mirror("fastq mirror, same offsets", "bare copy"),
     "x", None, True, None),
    ("a mirror's source is killed at 10,000 records/s: records lost, the most of five rounds",
     lambda f: f["mirror_failover"]["rpo_records"]["most"], "", None, True, None),
    ("the same: until the target may be written to", lambda f: f["mirror_failover"]["rto_s"]["median"], "s", None, True, None),
    ("console of 10,000 topics: start to the first page", console("first_page_s"), "s", 1, False, None),
    ("the same: list of topics", console("topic_list_ms"), "ms", 300, False, None),
    ("the same: largest RSS", console("largest_rss_mib"), "MiB", 120, False, None),
    ("the same: live tail of 20,000 records/s, how far behind", console("tail_behind_s"), "s", 1, False, None),
    ("the same, three nodes: requests that opening a topic costs a node, at most", most_requests, "", 1, False, None),
    ("`pip install` from source, two cores", lambda f: f["fresh"]["install_s"], "s", 90, False, 60),
    ("`make demo` in a fresh clone, to its last line", lambda f: f["fresh"]["demo_s"], "s", 150, False, 100),
    ("`import fastq`", lambda f: f["fresh"]["import_ms"]["import fastq"], "ms", 15, False, 8),
    ("`from fastq import Producer, Consumer`", lambda f: f["fresh"]["import_ms"]["Producer and Consumer"], "ms", 60, False, 35),
    ("Spark: batch read, 7 columns (`read_topics`) / its JVM connector", spark("batch read, 7 columns"), "x", 2, True, 4),
    ("the same by `format(\"fastq\")`", spark("batch read, 7 columns, by the format"), "x", None, True, None),
    ("the same by the format with Spark's own settings", spark("batch read, 7 columns, Spark's defaults"), "x", None, True, None),
    ("Spark: batch read to Parquet (`read_topics`) / its JVM connector", spark("batch read to Parquet"), "x", 1.5, True, 2.5),
    ("the same by `format(\"fastq\")`", spark("batch read to Parquet, by the format"), "x", None, True, None),
    ("the same by the format with Spark's own settings", spark("batch read to Parquet, Spark's defaults"), "x", None, True, None),
    ("Spark: batch write of key, value, topic / its JVM connector", spark("batch write"), "x", 1, True, 1.5),
    ("Spark: `ForeachPartitionProducer` / an empty `foreachPartition`", spark("foreachPartition"), "x", 0.9, True, None),
    ("Spark: `foreach_partition_arrow` / `ForeachPartitionProducer`", spark("foreach_partition_arrow"), "x", 4, True, None),
    ("Spark: duration of a micro-batch of 100 rows / its JVM connector", spark("micro-batch of 100 rows"), "x", 1.5, False, 1),
]  # fmt: skip

CHIEF = frozenset({
    "`send()` loop, acks=all, 100 bytes / confluent-kafka",
    "`for record in consumer`, 100 bytes / confluent-kafka",
    "`poll_batch().to_arrow()`, 100 bytes / confluent-kafka",
    "asyncio `await send()` loop, 100 bytes / aiokafka",
    "asyncio `async for`, 100 bytes / aiokafka",
    "mix with keys: `send()` loop / confluent-kafka",
    "mix with keys: `send()` loop, CPU a record / confluent-kafka",
    "mix with keys: `send_many()` of a list / confluent-kafka's loop",
    "mix with keys: `for record in consumer` / confluent-kafka",
    "mix with keys: `for record in consumer` / the Java client's performance tool",
    "mix with keys: asyncio `await send()` loop / aiokafka",
    "mix with keys: asyncio `async for` / aiokafka",
    "10 KB: `send()` loop / confluent-kafka",
    "10 KB: `for record in consumer` / confluent-kafka",
    "end to end p99 at 10,000/s / confluent-kafka",
    "end to end p50 at 10,000/s / confluent-kafka",
    "transactions of 100 records / confluent-kafka",
    "broker, 900 kB produce of the mix with keys: MB/s / Apache Kafka",
    "broker, 900 kB produce of the mix with keys: CPU a byte / Apache Kafka",
    "broker, fetch loop: MB/s / Apache Kafka",
    "broker, start to ready, empty directory",
    "broker, idle RSS",
    "three nodes, 900 kB produce of the mix, acks=all: MB/s / Apache Kafka",
    "three nodes, from empty to the first acknowledged record",
    "three idle nodes, RSS together",
    "a leader is killed: longest gap / Apache Kafka",
    "a leader is stopped: longest gap / Apache Kafka",
    "`fastq mirror`, 1 GiB of 100-byte records: MB/s / MirrorMaker 2",
    "`fastq mirror` with the same offsets, the target pulls: MB/s / fetches that nobody reads",
    "`make demo` in a fresh clone, to its last line",
    "`from fastq import Producer, Consumer`",
    "Spark: batch read, 7 columns (`read_topics`) / its JVM connector",
    "Spark: batch read to Parquet (`read_topics`) / its JVM connector",
    "Spark: batch write of key, value, topic / its JVM connector",
    "Spark: duration of a micro-batch of 100 rows / its JVM connector",
})  # fmt: skip
"""What README.md shows of ROWS, beside all that misses its bound."""


def table(found: dict[str, Document], chief: bool) -> list[str]:
    """All figures, or the chief ones."""
    lines = ["| what | measured | must | aim | |", "|---|---|---|---|---|"]
    for title, figure, unit, must, higher, aim in ROWS:

        def bound(limit: float | None, higher: bool = higher, unit: str = unit) -> str:
            return "" if limit is None else f"{'>=' if higher else '<='} {limit:g} {unit}"

        try:
            value = figure(found)
        except KeyError:
            if title in CHIEF or not chief:
                lines.append(f"| {title} | not measured | | | |")
            continue
        except NotReached as error:
            if chief and title not in CHIEF:
                continue
            verdict = "met" if aim is None else "aim met"
            lines.append(f"| {title} | {error} | {bound(must)} | {bound(aim)} | {verdict} |")
            continue

        def met(limit: float, value: float = value, higher: bool = higher) -> bool:
            return value >= limit if higher else value <= limit

        if must is not None and not met(must):
            verdict = "missed"
        elif aim is not None and met(aim):
            verdict = "aim met"
        elif aim is not None and must is None:
            verdict = "aim missed"
        else:
            verdict = "" if must is None else "met"
        if chief and title not in CHIEF and verdict not in ("missed", "aim missed"):
            continue
        lines.append(f"| {title} | {value:.3g} {unit} | {bound(must)} | {bound(aim)} | {verdict} |")
    return lines


def of_machine(document: Document) -> str:
    machine = document["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}"


def papers(folder: str) -> list[str]:
    """A link to the page of `make bench-papers`, where there is one."""
    if not (RESULTS / PAPERS).exists():
        return []
    return ["", f"What the classic texts about Kafka measured, measured again: [a page of its own]({folder}{PAPERS})."]


def machines(found: dict[str, Document]) -> list[str]:
    """What was measured on which machine, and when."""
    of: dict[str, dict[str, list[str]]] = {}
    for name, document in found.items():
        of.setdefault(of_machine(document), {}).setdefault(document["machine"]["date"], []).append(name)
    return [
        f"- {machine}: " + "; ".join(f"{', '.join(names)} ({date})" for date, names in sorted(dates.items())) + "."
        for machine, dates in sorted(of.items(), key=lambda pair: -sum(map(len, pair[1].values())))
    ]


def heading(found: dict[str, Document], name: str, title: str, machine: dict[str, str] | None = None) -> list[str]:
    """Of a table, with its machine and day."""
    told = machine or found[name]["machine"]
    return ["", f"## {title}", "", f"{of_machine({'machine': told})}, {told['date']}.", ""]


def sides(found: dict[str, Document], name: str, title: str) -> list[str]:
    """A table of both sides' medians."""
    lines = [*heading(found, name, title), "| figure | fastq | Apache Kafka |", "|---|---|---|"]
    ours, theirs = (found[name]["medians"][side] for side in ("fastq", "apache-kafka"))
    for key, value in ours.items():
        if key != "given_up_s":
            missing = NOT_REACHED if name == "cluster_many" and not_reached(found[name], key) else "not measured"
            lines.append(f"| {key} | {value:,.4g} | {f'{theirs[key]:,.4g}' if key in theirs else missing} |")
    return lines


def rates(found: dict[str, Document]) -> list[str]:
    lines: list[str] = []
    if "clients" in found:
        lines += [
            *heading(found, "clients", "Clients on one fastq broker, medians"),
            "The part before the colon is what the values are: `mix` a third each of real log lines, 100 random bytes and JSON of",
            "1 KB, with keys; the others without, as is all that Java's producer sends. `-best`: the peer with the settings that its users",
            "choose for speed (client_runs.py).",
            "",
            "| run | records/s | CPU a record, us |",
            "|---|---|---|",
        ]
        for run, row in found["clients"]["medians"].items():
            lines.append(f"| {run} | {row['records_per_s']:,.0f} | {row['cpu_us_per_record']:.3f} |")
    if "broker" in found:
        lines += heading(found, "broker", "Brokers under the same frames, medians")
        lines += ["| load | figure | fastq | Apache Kafka |", "|---|---|---|---|"]
        for title, row in found["broker"].items():
            for key in row.get("ratio", ()):
                lines.append(f"| {title} | {key} | {row['fastq'][key]:,.4g} | {row['apache-kafka'][key]:,.4g} |")
    if "cluster" in found:
        lines += sides(found, "cluster", "Three nodes, every record on each, medians (cluster.py says of what)")
    if "cluster_many" in found:
        lines += sides(
            found, "cluster_many", "Many partitions, and much to catch up with (cluster_many.py says of what)"
        )
    if "latency" in found:
        lines += [
            *heading(found, "latency", "End to end, ms, medians"),
            "CPU is that of the sending and of the reading process, keeping to the rate with it.",
            "",
            "| records/s | client | p50 | p99 | p99.9 | CPU a record sent, us | read, us |",
            "|---|---|---|---|---|---|---|",
        ]
        for rate, document in found["latency"].items():
            for library, row in document.get("medians", {}).items():
                shown = [f"{row[key]:.3f}" for key in ("p50_ms", "p99_ms", "p999_ms")]
                shown += [f"{row[key]:.3g}" if key in row else "" for key in ("produce_cpu_us", "consume_cpu_us")]
                lines.append(f"| {rate.removesuffix('/s')} | {library} | {' | '.join(shown)} |")
    if "coordination" in found:
        lines += heading(found, "coordination", "Commits and transactions on one fastq broker, medians")
        lines += ["| what | client | a second | CPU of the client each, us |", "|---|---|---|---|"]
        for what in ("commits", "transactions"):
            for library, row in found["coordination"][what]["medians"].items():
                lines.append(f"| {what} | {library} | {row['per_s']:,.0f} | {row['cpu_us']:,.0f} |")
    if "instructions" in found:
        lines += [
            *heading(found, "instructions", "Instructions a record or request, counted by valgrind"),
            "Before: of 2026-11-22, when a node was alone and had neither mirrors nor console. What a fetch of one record has more is the",
            "sleep of partitions that have nothing new, by which thousands of them cost it nothing; what a produce of 900 kB has more, the",
            "room reserved ahead of it, which takes a third off the kernel's share of a write, that is not counted here.",
            "",
            "| what | before | now | |",
            "|---|---|---|---|",
        ]
        for what, row in found["instructions"]["a unit"].items():
            if "base" in row:
                lines.append(
                    f"| {what} | {row['base']:,.0f} | {row['this']:,.0f} | {row['this'] / row['base']:.3f} x |"
                )
    growth = found.get("growth", {})
    for subject, rows in growth.items():
        if subject in ("machine", "measured", "notes"):
            continue
        keys = list(next(iter(rows.values())))
        measured = growth.get("measured", {}).get(subject)
        lines += heading(found, "growth", f"As it grows: {subject} (growth.svg)", measured)
        lines += [growth["notes"][subject], ""] if subject in growth.get("notes", {}) else []
        lines += [f"| {subject} | {' | '.join(keys)} |", "|---" * (len(keys) + 1) + "|"]
        lines += [f"| {int(step):,} | {' | '.join(f'{row[key]:.3g}' for key in keys)} |" for step, row in rows.items()]
    if "spark" in found:
        lines += [
            *heading(found, "spark", "Spark on one fastq broker, local[2], medians"),
            "CPU is that of the session: driver, JVM and Python workers.",
            "",
            "| run | rows/s | CPU a row, us | ms | CPU a micro-batch, ms |",
            "|---|---|---|---|---|",
        ]
        for run, row in found["spark"]["medians"].items():
            rate = f"{row['rows_per_s']:,.0f} | {row['cpu_us_per_row']:.3f}" if "rows_per_s" in row else " | "
            lines.append(f"| {run} | {rate} | {row.get('median_ms', '')} | {row.get('cpu_ms_per_batch', '')} |")
    return lines


def with_figures(text: str, found: dict[str, Document]) -> str:
    """The project's README, with these figures between its two marks."""
    lines = [*papers("benchmarks/results/"), "", *table(found, chief=True)]
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, *lines, END + after])


def page(found: dict[str, Document]) -> str:
    """The page of all figures."""
    lines = [
        "# Measured",
        "",
        "Made from the JSON files beside it, which programs of the same names in benchmarks/compare/ write (start is partitions.py's):",
        "sides interleaved in one run, medians; of a peer its defaults and its best settings are measured, and a ratio is to the faster",
        "one. Values differ where nothing else is said. `make bench` runs all but three: growth is `make bench-growth`, cluster_many",
        "`make bench-cluster`, and instructions, which valgrind counts against an older tree, `make bench-instructions`.",
        *papers(""),
        "",
        "Machines and days:",
        "",
        *machines(found),
        "",
        *table(found, chief=False),
        *rates(found),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    found = load()
    readme = ROOT / "README.md"
    readme.write_text(with_figures(readme.read_text(), found))
    (RESULTS / "README.md").write_text(page(found))
    print(page(found), end="")


if __name__ == "__main__":
    main()
