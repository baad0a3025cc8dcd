"""LinkedIn's tables of 2014: "2 million writes per second (on three cheap machines)".

Rules: three nodes of a side at a time, made anew each round (cluster.py of the comparisons starts them); on Apache Kafka's, each load
is run by Kafka's own tools and by fastq's client, in turn. Settings are those of the commands that LinkedIn published with the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import loads
from apache_kafka import available
from cluster import Cluster, all_pids, patiently, settled, started
from experiment import Experiment, Figures, Rounds, Run
from kafka_2011 import TOUCHED_TIMES, counted, new_topic
from support import apache_kafka, cpu_seconds, fastq_broker, interleave, touch_memory

from fastq import Admin

SIZE, PARTITIONS, NODES = 100, 6, 3
OVERHEAD_BYTES = 22
SOURCE = (
    "Jay Kreps: Benchmarking Apache Kafka: 2 Million Writes Per Second (On Three Cheap Machines). LinkedIn Engineering, April 2014, "
    "with the commands he published beside it"
)
MACHINE = "six machines, Xeon 2.5 GHz with six cores, six disks of 7,200 rpm, 32 GB, 1 Gb/s; three were brokers, three clients"
ONE_MACHINE = (
    "Three brokers and all clients share two cores, one disk and loopback; theirs had 36 cores, 18 disks and three networks. The three "
    "copies of a record are written by one machine here."
)
ASYNC = {"acks": 1, "buffer.memory": 67_108_864, "batch.size": 8_196}
SYNC = {"acks": -1, "buffer.memory": 67_108_864, "batch.size": 64_000}
SIZED = {"acks": 1, "buffer.memory": 67_108_864, "batch.size": 128_000}
# figure -> records of a round, by each client
COUNTS = {
    "no replication": 5_000_000,
    "async": 3_000_000,
    "sync": 3_000_000,
    "three producers": 1_500_000,
    "consumer": 3_000_000,
    "three consumers": 2_000_000,
    "both": 2_000_000,
}
LATENCIES = 5_000
OWN_TOOLS, OUR_CLIENT = "Apache Kafka", "Apache Kafka, fastq's client"
CLUSTERS: Mapping[str, tuple[str, Mapping[str, loads.Client]]] = {
    "fastq": ("fastq", {"fastq": loads.FASTQ}),
    "Apache Kafka": ("apache-kafka", {OWN_TOOLS: loads.KAFKA_TOOLS, OUR_CLIENT: loads.FASTQ}),
}


def left_out(run: Run) -> dict[str, str]:
    reason = available()
    return {} if reason is None else {OWN_TOOLS: reason, OUR_CLIENT: reason}


def make(cluster: Cluster, topics: Mapping[str, int]) -> None:
    """Topics of six partitions, by their number of replicas; all of them in sync afterwards."""

    def create() -> None:
        with Admin(bootstrap_servers=cluster.servers) as admin:
            there = set(admin.list_topics())
            if len(admin.describe_cluster().nodes) < NODES:
                raise OSError("a node is missing")
            for topic, replicas in topics.items():
                if topic not in there:
                    admin.create_topic(topic, PARTITIONS, replicas, configs={"min.insync.replicas": "1"})

    patiently(create)
    replicated = tuple(topic for topic, replicas in topics.items() if replicas == NODES)
    if replicated:
        settled(cluster.servers, replicated)


def cpu_of(cluster: Cluster) -> Callable[[], float]:
    return lambda: sum(map(cpu_seconds, all_pids(cluster)))


def table(cluster: Cluster, client: loads.Client, run: Run, tag: str) -> Figures:
    """The whole of LinkedIn's table by one client, in topics of its own."""
    servers, cpu, figures = cluster.servers, cpu_of(cluster), Figures()
    one, three, both, latency = f"one-{tag}", f"test-{tag}", f"both-{tag}", f"latency-{tag}"
    make(cluster, {one: 1, three: NODES, both: NODES, latency: NODES})
    counts = {name: run.records(count) for name, count in COUNTS.items()}

    def send(name: str, topic: str, settings: loads.Settings, producers: int = 1) -> None:
        nonlocal figures
        replicas = 1 if topic == one else NODES
        records = counts[name]
        touch_memory(TOUCHED_TIMES * replicas * producers * records * (SIZE + OVERHEAD_BYTES))
        calls = [lambda: client.produce(servers, topic, records, SIZE, settings)] * producers
        total = producers * client.sent(records)
        figures |= counted(cpu, total, name, lambda: loads.at_once(calls))

    send("no replication", one, ASYNC)
    send("async", three, ASYNC)
    send("sync", three, SYNC)
    send("three producers", three, ASYNC, 3)
    for name, consumers in (("consumer", 1), ("three consumers", 3)):
        records = counts[name]
        calls = [lambda records=records: client.consume(servers, three, records, {})] * consumers  # type: ignore[misc]
        figures |= counted(cpu, consumers * records, name, lambda calls=calls: loads.at_once(calls))  # type: ignore[misc]
    records = counts["both"]
    touch_memory(TOUCHED_TIMES * NODES * records * (SIZE + OVERHEAD_BYTES))
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.produce, servers, both, records, SIZE, ASYNC)
        figures |= counted(cpu, records, "both", lambda: client.consume(servers, both, records, {}))
        sending.result()
    found = client.latency(servers, latency, max(run.records(LATENCIES), 100), SIZE)
    return figures | {f"latency {name}": value for name, value in found.items()}


def sizes(cluster: Cluster, client: loads.Client, run: Run, tag: str) -> Figures:
    """One producer, messages of 10 bytes to 100 kB."""
    cpu, figures = cpu_of(cluster), Figures()
    for size in SIZES:
        topic = f"size-{size}-{tag}"
        make(cluster, {topic: NODES})
        records = run.records(min(SIZED_BYTES // size, SIZED_RECORDS_MAX))
        touch_memory(TOUCHED_TIMES * NODES * records * (size + OVERHEAD_BYTES))
        figures |= counted(
            cpu,
            client.sent(records),
            f"{size} B",
            lambda topic=topic, records=records, size=size: client.produce(  # type: ignore[misc]
                cluster.servers, topic, records, size, SIZED
            ),
        )
        figures[f"{size} B MB/s"] = figures[f"{size} B"] * size / 1e6
        with Admin(bootstrap_servers=cluster.servers) as admin:
            admin.delete_topic(topic)
    return figures


SIZES = (10, 100, 1_000, 10_000, 100_000)
SIZED_BYTES, SIZED_RECORDS_MAX = 200_000_000, 3_000_000

Measure = Callable[[Cluster, loads.Client, Run, str], Figures]


def on_clusters(run: Run, measure: Measure) -> Rounds:
    """Each round: a cluster of a side, and all that its clients measure on it; a side is a cluster and a client."""
    wanted = {
        name: (
            kind,
            {side: client for side, client in clients.items() if run.wants(side) and side not in left_out(run)},
        )
        for name, (kind, clients) in CLUSTERS.items()
    }

    def once(kind: str, clients: Mapping[str, loads.Client]) -> Figures:
        figures = Figures()
        with started(kind) as (cluster, _):
            for number, (side, client) in enumerate(clients.items()):
                found = measure(cluster, client, run, str(number))
                figures |= {f"{side}: {name}": value for name, value in found.items()}
        return figures

    sides = {
        name: (lambda kind=kind, clients=clients: once(kind, clients))  # type: ignore[misc]
        for name, (kind, clients) in wanted.items()
        if clients
    }
    rounds: Rounds = {}
    for found in interleave(sides, run.rounds).values():
        for row in found:
            apart: dict[str, Figures] = {}
            for key, value in row.items():
                side, _, name = key.partition(": ")
                apart.setdefault(side, {})[name] = value
            for side, figures in apart.items():
                rounds.setdefault(side, []).append(figures)
    return rounds


def stored(run: Run) -> Rounds:
    """One producer fills a topic of six partitions, and its rate is told on the way. Once a side: it takes long."""
    records = int(run.stored_gb * run.share * 1e9) // SIZE
    every = max(records // WINDOWS, 1)
    rounds: Rounds = {}
    for side, broker, client in (
        ("fastq", fastq_broker, loads.FASTQ),
        (OWN_TOOLS, apache_kafka, loads.KAFKA_TOOLS),
    ):
        if not run.wants(side) or side in left_out(run):
            continue
        with ExitStack() as stack:
            target = stack.enter_context(broker())
            topic = stack.enter_context(new_topic(target, PARTITIONS))
            cpu = cpu_seconds(target.pid)
            windows = client.windows(target.bootstrap_servers, topic, records, SIZE, ASYNC, every)
            cpu = (cpu_seconds(target.pid) - cpu) / records * 1e6
        rates = [rate * SIZE / 1e6 for _, rate in windows]
        tenth = max(len(rates) // 10, 1)
        figures = {
            "first tenth MB/s": sum(rates[:tenth]) / tenth,
            "last tenth MB/s": sum(rates[-tenth:]) / tenth,
            "slowest MB/s": min(rates),
            "stored GB": records * SIZE / 1e9,
            "broker us": cpu,
        }
        figures |= {f"at {sent * SIZE / 1e9:.4f} GB": rate * SIZE / 1e6 for sent, rate in windows}
        rounds[side] = [figures]
        print(f"  {side:<34} first {figures['first tenth MB/s']:.0f}, last {figures['last tenth MB/s']:.0f} MB/s")
    return rounds


WINDOWS = 200

WORDS = {
    "no replication": "one producer, no replication, records/s",
    "async": "one producer, three replicas, asynchronous",
    "sync": "one producer, three replicas, synchronous",
    "three producers": "three producers, three replicas, asynchronous",
    "consumer": "one consumer",
    "three consumers": "three consumers, each reads all",
    "both": "one producer and one consumer: the consumer's",
}

TABLE = Experiment(
    name="linkedin-2014",
    title="LinkedIn's table of 2014: two million writes a second",
    source=SOURCE,
    asked="50 million records of 100 bytes in a topic of six partitions: one producer without replication, with three replicas "
    "asynchronously (acks=1) and synchronously (acks=-1), three producers; one and three consumers; both at once; 5,000 records one "
    "after the other from producer to consumer. Producers with batch.size=8196 (synchronous: 64000) and buffer.memory=64 MiB.",
    machine=MACHINE,
    had={
        "LinkedIn in 2014": {
            "no replication": 821_557,
            "async": 786_980,
            "sync": 421_823,
            "three producers": 2_024_032,
            "consumer": 940_521,
            "three consumers": 2_615_968,
            "both": 795_064,
            "latency p50_ms": 2,
            "latency p99_ms": 3,
            "latency p999_ms": 14,
        }
    },
    here=(
        ONE_MACHINE,
        "The same settings for all; 5 million records without replication, 1.5 to 3 million a client with three replicas, of which one "
        "in sync is enough.",
        "Three consumers are three processes that each read the whole topic, as theirs were; rates of several clients are added up.",
        "Kafka's own tools are those of Apache Kafka today (ProducerPerformance, ConsumerPerformance, EndToEndLatency, which tells whole "
        "milliseconds); a tenth of the records warms the producer up.",
        "Latency is from send to poll, acks=1, without other load, as theirs.",
    ),
    figure="A client's own clock until all is acknowledged, or read; of three clients the sum; CPU of the brokers is that of all three "
    "nodes and of what belongs to them; that of a client of Kafka's tools has its start in it.",
    why=(
        "Theirs was bound by the network (1 Gb/s is about 75 MB/s of 100-byte records with what belongs to them): here it is the CPU that "
        "is shared by all, so three producers gain little over one, and three replicas cost three times.",
        "batch.size=8196 was set for 2014's client; it makes a request out of some 70 records a partition.",
        "A consumer reads what lies in the page cache on both sides.",
    ),
    shown={
        **WORDS,
        "latency p50_ms": "end to end, p50, ms",
        "latency p99_ms": "end to end, p99, ms",
        "latency p999_ms": "end to end, p99.9, ms",
        **{
            f"{name} client us": f"{words.split(', records')[0]}: CPU of a client a record, us"
            for name, words in WORDS.items()
        },
        **{
            f"{name} broker us": f"{words.split(', records')[0]}: CPU of all brokers a record, us"
            for name, words in WORDS.items()
        },
    },
    measure=lambda run: on_clusters(run, table),
    left_out=left_out,
)

MESSAGE_SIZE = Experiment(
    name="message-size",
    title="LinkedIn 2014: the effect of message size",
    source=f"{SOURCE}; Effect of Message Size",
    asked="One producer, three replicas, acks=1, batch.size=128000: messages of 10 bytes to 100 kB, about 1 GB of each size. Told as a "
    "plot: records a second fall with the size, bytes a second rise.",
    machine=MACHINE,
    had={},
    here=(ONE_MACHINE, "200 MB of each size, 3 million records at most."),
    figure="The producer's clock until all is acknowledged; MB are those of values.",
    why=(
        "With 10 bytes theirs was bound by the CPU of the client, from 100 bytes on by the network, so that bytes a second went on to "
        "rise only by what records cost beside their values. Here small records cost by the record, in the client's loop; large ones by "
        "the byte, which one machine writes three times.",
    ),
    shown={
        **{f"{size} B": f"{size:,} bytes: records/s" for size in SIZES},
        **{f"{size} B MB/s": f"{size:,} bytes: MB/s" for size in SIZES},
        **{f"{size} B client us": f"{size:,} bytes: CPU of the client a record, us" for size in SIZES},
        **{f"{size} B broker us": f"{size:,} bytes: CPU of all brokers a record, us" for size in SIZES},
    },
    measure=lambda run: on_clusters(run, sizes),
    left_out=left_out,
)

STORED = Experiment(
    name="stored",
    title="LinkedIn 2014: throughput against stored data",
    source=f"{SOURCE}; Producer Throughput Versus Stored Data",
    asked="One producer writes 100-byte records for hours (the command is for 50 billion), and the rate is plotted against what is stored: "
    "it should not fall.",
    machine=MACHINE,
    had={},
    here=(
        "One broker, six partitions, no replication, batch.size=8196, acks=1; 60 GB, more than the memory twice over (`--stored-gb 100` "
        "for 100).",
        ONE_MACHINE,
    ),
    figure="The producer's rate over each two-hundredth of the records (Kafka's tool: over each five seconds).",
    why=(
        "An append costs the same whatever is there: index and log grow at their end. What varies is the system's writing out of pages, "
        "which they saw too, and which sets the rate once the memory is full.",
    ),
    shown={
        "stored GB": "stored, GB",
        "first tenth MB/s": "the first tenth, MB/s",
        "last tenth MB/s": "the last tenth, MB/s",
        "slowest MB/s": "the slowest stretch, MB/s",
        "broker us": "CPU of the broker a record, us",
    },
    measure=stored,
    left_out=left_out,
)
