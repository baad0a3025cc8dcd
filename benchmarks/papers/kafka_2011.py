"""The experiments of the Kafka paper (NetDB 2011), and the promise of Jafka, its clone of 2012: one producer, one consumer, one broker.

Rules: all brokers run at once, and idle while another one is loaded; a round makes a topic, a queue or a stream anew. No broker waits
for a disk: what it is sent is in a file that the system writes out when it likes. Where a client has a way not to wait for
acknowledgements that loses nothing while broker and connection live, it is used, as the paper's producer did.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import loads
import peers
from apache_kafka import available
from experiment import Experiment, Figures, Rounds, Run
from support import Target, apache_kafka, cpu_seconds, fastq_broker, interleave, touch_memory

from broker import GONE_AT_ONCE, fetch_frame, receive_frame
from fastq import Admin, Consumer, TopicPartition

SIZE, BATCH = 200, 50
FETCH_BYTES = 200 * 1024
FETCH = {"max.partition.fetch.bytes": FETCH_BYTES, "fetch.max.bytes": FETCH_BYTES}
JAFKA_HEADER_BYTES = 10
"""Length, version, codec and checksum of each message in the log of Kafka 0.7."""
TOUCHED_TIMES = 3
"""What is touched before a run that writes, of what it writes: no page of it is the machine's first."""

# side -> messages of a round: one by one, in batches, read
COUNTS: Mapping[str, tuple[int, int, int]] = {
    "fastq": (500_000, 5_000_000, 4_500_000),
    "Apache Kafka": (500_000, 5_000_000, 4_500_000),
    "Apache Kafka, fastq's client": (500_000, 5_000_000, 4_500_000),
    "Jafka": (500_000, 5_000_000, 4_500_000),
    "RabbitMQ queue": (200_000, 0, 200_000),
    "RabbitMQ stream": (500_000, 2_000_000, 2_000_000),
    "Artemis": (300_000, 0, 300_000),
    "RocketMQ": (200_000, 1_000_000, 1_000_000),
}
NEEDS = {
    "Jafka": "jafka",
    "RabbitMQ queue": "rabbitmq",
    "RabbitMQ stream": "rabbitmq",
    "Artemis": "artemis",
    "RocketMQ": "rocketmq",
}


def left_out(run: Run) -> dict[str, str]:
    """The sides that cannot be run here, and why."""
    reasons = {side: peers.missing(name) for side, name in NEEDS.items()}
    reasons |= {side: available() for side in COUNTS if side.startswith("Apache")}
    return {side: reason for side, reason in reasons.items() if reason is not None}


def batched(client: loads.Client, batch: int, size: int) -> dict[str, object]:
    """Settings for batches of so many messages. Kafka's own client knows bytes only; what it makes of them is read from the log."""
    settings: dict[str, object] = {"acks": 0, "linger.ms": 0 if batch == 1 else 5}
    if client is loads.FASTQ:
        return settings | {"batch.records.max": batch}
    return settings | {"batch.size": 0 if batch == 1 else 61 + batch * (size + 10), "enable.idempotence": "false"}


@contextmanager
def new_topic(target: Target, partitions: int = 1) -> Iterator[str]:
    topic = f"paper-{time.monotonic_ns()}"
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=partitions, replication_factor=1, configs=GONE_AT_ONCE)
        try:
            yield topic
        finally:
            admin.delete_topic(topic)


def arrived(target: Target, topic: str, count: int, seconds: float = 60) -> None:
    """Wait until the topic has so many records: without acknowledgements nothing else says that none is lost."""
    tp = TopicPartition(topic, 0)
    until = time.monotonic() + seconds
    with Consumer(bootstrap_servers=target.bootstrap_servers) as consumer:
        while (end := consumer.end_offsets([tp])[tp]) < count:
            if time.monotonic() > until:
                raise RuntimeError(f"{target.name} has {end} of {count} records {seconds:g} s after they were sent")
            time.sleep(0.05)
    if end != count:
        raise RuntimeError(f"{target.name} has {end} records of {topic}, expected {count}")


def batches(target: Target, topic: str) -> tuple[int, int]:
    """Batches and records of the first half MiB of a topic after its very first batch."""
    room = bytearray(1 << 20)
    with socket.create_connection(target.address) as sock:
        sock.sendall(fetch_frame(topic, 1, 1 << 19))
        body = receive_frame(sock, room)
    name_size = struct.unpack_from(">h", body, 12)[0]
    at = 12 + 2 + name_size + 4 + 4 + 18
    at += 4 + max(struct.unpack_from(">i", body, at)[0], 0) * 16  # aborted transactions
    size = struct.unpack_from(">i", body, at)[0]
    records = body[at + 4 : at + 4 + size]
    position = count = found = 0
    while position + 61 <= size:
        length = struct.unpack_from(">i", records, position + 8)[0]
        if position + 12 + length > size:
            break
        count, found = count + 1, found + struct.unpack_from(">i", records, position + 57)[0]
        position += 12 + length
    return count, found


def counted(cpu: Callable[[], float], records: int, name: str, load: Callable[[], Figures]) -> Figures:
    """A load's rate, and the CPU of both ends a record, in microseconds."""
    before = cpu()
    found = load()
    broker = (cpu() - before) / records * 1e6
    return {
        name: found["records_per_s"],
        f"{name} client us": found["cpu_us_per_record"],
        f"{name} broker us": broker,
    }


def on_kafka(
    target: Target, client: loads.Client, size: int, sends: Mapping[str, tuple[int, int]], reads: int
) -> Figures:
    """`sends`: figure -> messages, batch; the last one's topic is read then."""
    figures: Figures = {}

    def cpu() -> float:
        return cpu_seconds(target.pid)

    servers = target.bootstrap_servers
    for number, (name, (records, batch)) in enumerate(sends.items(), 1):
        with new_topic(target) as topic:
            touch_memory(TOUCHED_TIMES * records * (size + 70))
            settings = batched(client, batch, size)
            total = client.sent(records)

            def send(topic: str = topic, records: int = records, settings: loads.Settings = settings) -> Figures:
                return client.produce(servers, topic, records, size, settings)

            figures |= counted(cpu, total, name, send)
            arrived(target, topic, total)
            found, inside = batches(target, topic)
            figures[f"{name} records a batch"] = inside / max(found, 1)
            written = _written(target.data_dir, f"{topic}-0/*.log", total * size)
            figures[f"{name} bytes beside each value"] = written / total - size
            if reads and number == len(sends):
                figures |= counted(cpu, reads, "read", lambda topic=topic: client.consume(servers, topic, reads, FETCH))
    return figures


def on_peer(peer: peers.Peer, side: str, size: int, sends: Mapping[str, tuple[int, int]], reads: int) -> Figures:
    """The same on a peer, in queues or topics of their own; a side that has no batches is asked for none."""
    figures: Figures = {}
    topic = ""
    for name, (records, batch) in sends.items():
        topic = f"paper-{time.monotonic_ns()}"
        touch_memory(TOUCHED_TIMES * records * (size + 150))
        if side == "RabbitMQ queue":

            def send(topic: str = topic, records: int = records) -> Figures:
                return loads.perf_test(peer, "produce", topic, records, size=size)

            total = records
        else:

            def send(topic: str = topic, records: int = records, batch: int = batch) -> Figures:
                return loads.peer_load(peer, "produce", topic, records, batch=batch, size=size)

            total = records + loads.warm_up_of(records, batch)
        figures |= counted(peer.cpu_seconds, total, name, send)
        if peer.data_dir is not None:
            written = _written(peer.data_dir, f"{topic}-0/*", total * (size + JAFKA_HEADER_BYTES))
            figures[f"{name} bytes beside each value"] = written / total - size
    if reads:
        read = loads.perf_test if side == "RabbitMQ queue" else loads.peer_load
        figures |= counted(peer.cpu_seconds, reads, "read", lambda: read(peer, "consume", topic, reads))
    return figures


def _written(folder: Path, files: str, at_least: int, seconds: float = 60) -> int:
    """Bytes in a log's files, once they are as many as there must be: a broker that answers nothing is asked so."""
    until = time.monotonic() + seconds
    while (found := sum(path.stat().st_size for path in folder.glob(files))) < at_least:
        if time.monotonic() > until:
            raise RuntimeError(f"{folder}/{files}: {found} bytes {seconds:g} s after {at_least} were sent, or more")
        time.sleep(0.05)
    return found


def _kafka_sides(
    stack: ExitStack, measure: Callable[[Target, loads.Client], Figures], wanted: list[str]
) -> dict[str, Callable[[], Figures]]:
    sides: dict[str, Callable[[], Figures]] = {}
    if "fastq" in wanted:
        ours = stack.enter_context(fastq_broker())
        sides["fastq"] = lambda: measure(ours, loads.FASTQ)
    if any(side.startswith("Apache") for side in wanted):
        theirs = stack.enter_context(apache_kafka())
        clients = {"Apache Kafka": loads.KAFKA_TOOLS, "Apache Kafka, fastq's client": loads.FASTQ}
        for side, client in clients.items():
            if side in wanted:
                sides[side] = lambda client=client: measure(theirs, client)  # type: ignore[misc]
    return sides


def paper(run: Run) -> Rounds:
    wanted = [side for side in COUNTS if run.wants(side) and side not in left_out(run)]
    counts = {
        side: (run.records(one), run.records(many, BATCH) if many else 0, run.records(read))
        for side, (one, many, read) in COUNTS.items()
    }

    def kafka(target: Target, client: loads.Client) -> Figures:
        one, many, read = counts["fastq" if target.name == "fastq" else "Apache Kafka"]
        return on_kafka(target, client, SIZE, {"batch 1": (one, 1), "batch 50": (many, BATCH)}, min(read, many))

    with ExitStack() as stack:
        sides = _kafka_sides(stack, kafka, wanted)
        started: dict[str, peers.Peer] = {}
        for side in wanted:
            if side in NEEDS:
                name = NEEDS[side]
                if name not in started:
                    started[name] = stack.enter_context(peers.STARTED[name]())
                peer = started[name]
                one, many, read = counts[side]
                sends = {"batch 1": (one, 1)} | ({"batch 50": (many, BATCH)} if many else {})
                sides[side] = lambda peer=peer, side=side, sends=sends, read=read: on_peer(  # type: ignore[misc]
                    peer, side, SIZE, sends, read
                )
        return interleave(sides, run.rounds)


JAFKA_SIDES = ("fastq", "Apache Kafka", "Apache Kafka, fastq's client", "Jafka")
JAFKA_BATCH, JAFKA_SIZE, JAFKA_MESSAGES = 100, 100, 5_000_000


def jafka(run: Run) -> Rounds:
    wanted = [side for side in JAFKA_SIDES if run.wants(side) and side not in left_out(run)]
    records = run.records(JAFKA_MESSAGES, JAFKA_BATCH)

    def kafka(target: Target, client: loads.Client) -> Figures:
        return on_kafka(target, client, JAFKA_SIZE, {"batch 100": (records, JAFKA_BATCH)}, 0)

    with ExitStack() as stack:
        sides = _kafka_sides(stack, kafka, wanted)
        if "Jafka" in wanted:
            peer = stack.enter_context(peers.jafka())
            sides["Jafka"] = lambda: on_peer(peer, "Jafka", JAFKA_SIZE, {"batch 100": (records, JAFKA_BATCH)}, 0)
        return interleave(sides, run.rounds)


PAPER = Experiment(
    name="kafka-2011",
    title="The Kafka paper: one producer, one consumer",
    source="Jay Kreps, Neha Narkhede, Jun Rao: Kafka: a Distributed Messaging System for Log Processing. NetDB 2011, section 5",
    asked="A single producer publishes 10 million messages of 200 bytes to one broker that flushes asynchronously, in batches of 1 and "
    "of 50, and waits for no acknowledgement; a single consumer reads 10 million, with fetches of up to 1,000 messages or 200 KB, out "
    "of memory. Kafka beside ActiveMQ 5.4 (KahaDB) and RabbitMQ 2.4, which have no batches and acknowledge automatically.",
    machine="two machines, 8 cores of 2 GHz, 16 GB, six disks in RAID 10, 1 Gb/s between them; broker and client apart",
    had={
        "Kafka in 2011": {"batch 1": 50_000, "batch 50": 400_000, "read": 22_000},
    },
    here=(
        "Half a million messages one by one and five million in batches of 50 (fewer of the peers that need longer), one partition, "
        "acks=0. A batch of fastq's client is bounded in records; of Kafka's own in bytes, and what came of it is read from the log.",
        "Broker and client share two cores and talk over loopback; the paper's had eight each, and a network that their batch of 50 "
        "almost filled.",
        "The consumer reads the topic of the batches of 50 from its start, 200 KB a fetch at most; all of it is in the page cache.",
        "RabbitMQ's queue is a durable classic one of version 2, messages persistent, no confirms, consumer with automatic "
        "acknowledgement, loaded by its PerfTest. Its stream, which keeps a log as Kafka does, is loaded by its client: up to 50,000 "
        "unconfirmed.",
        "Artemis takes the place of ActiveMQ: a mapped journal that is not synced, durable messages, sends and acknowledgements that do "
        "not block, a consumer's window of 200 KB. Its `perf` tool does not say a rate over a number of messages, so its own core "
        "client is run in a loop.",
        "RocketMQ flushes asynchronously, its default. Its client sends asynchronously, up to 2,000 messages unacknowledged (those that "
        "are sent one-way are dropped when the broker is busy); reads pull 1,000 messages. Its benchmark tool for batches does not "
        "end after a number of messages, so its client is run in a loop.",
        "Jafka (3.0.6, of 2019) is Kafka 0.7 in Java, the broker of the paper as near as it can be had; its own client, whose requests "
        "nothing answers; it flushes once a second in the background.",
        "A Java client is warm after a tenth of its messages, which are not counted in its rate; PerfTest, and Kafka's consumer tool, "
        "count from their first message on.",
    ),
    figure="Messages a second by the client's clock until the last is handed over (acks=0), confirmed (streams, Artemis, RocketMQ) or "
    "read; with acks=0 the broker is then asked whether it has them all, and a run that lost one fails. CPU is of the client's process "
    "(of Kafka's tools and of PerfTest the whole of it, their start included) and of all of the broker's.",
    why=(
        "A message a request is a system call, a header and a turn of the broker's loop each: batches of 1 measure these, and two cores "
        "have to do both ends of them.",
        "In batches of 50 the cost of a request is shared; what is left is the client's loop over messages and copying. Loopback has no "
        "1 Gb/s limit, which is 600,000 messages of 200 bytes.",
        "The paper does not say what bound its consumer at 22,000 messages; what Jafka's, of the same design, reads here says what "
        "machine and JVM have become since. fastq's client decodes a fetched batch natively.",
        "Brokers that keep the state of each message (RabbitMQ's queues, Artemis) pay for it on every one; logs (Kafka, fastq, streams, "
        "RocketMQ) append, and remember an offset.",
    ),
    shown={
        "batch 1": "messages/s sent, batches of 1",
        "batch 50": "messages/s sent, batches of 50",
        "read": "messages/s read",
        "batch 1 client us": "batches of 1: CPU of the client a message, us",
        "batch 1 broker us": "batches of 1: CPU of the broker a message, us",
        "batch 50 client us": "batches of 50: CPU of the client a message, us",
        "batch 50 broker us": "batches of 50: CPU of the broker a message, us",
        "read client us": "read: CPU of the client a message, us",
        "read broker us": "read: CPU of the broker a message, us",
        "batch 1 records a batch": "batches of 1: messages a batch in the log",
        "batch 50 records a batch": "batches of 50: messages a batch in the log",
        "batch 50 bytes beside each value": "batches of 50: bytes in the log beside each value",
    },
    measure=paper,
    left_out=left_out,
)

JAFKA = Experiment(
    name="jafka-2012",
    title="Jafka's promise",
    source="Jafka's README (sohu.com, 2012): a single broker on very modest hardware supports hundreds of thousands of messages a "
    "second; its load script, clients/python/jafka-performance.py",
    asked="One producer sends batches of 100 messages of 100 bytes to one broker and waits for no answer; 100,000 messages a second is "
    "what the promise comes to at least.",
    machine="not said",
    had={"Jafka in 2012": {"batch 100": 100_000}},
    here=(
        "The same batches, acks=0, one partition, five million messages; Jafka itself (3.0.6) with its own client beside them.",
        "The script sends one buffer of zeros over and over; values differ here. Broker and client share two cores.",
    ),
    figure="As above: the client's clock, and the broker has them all.",
    why=("The promise is that of the paper's broker, whose design Jafka cloned, and as easily kept.",),
    shown={
        "batch 100": "messages/s sent, batches of 100",
        "batch 100 client us": "CPU of the client a message, us",
        "batch 100 broker us": "CPU of the broker a message, us",
        "batch 100 records a batch": "messages a batch in the log",
        "batch 100 bytes beside each value": "bytes in the log beside each value",
    },
    measure=jafka,
    left_out=lambda run: {side: reason for side, reason in left_out(run).items() if side in JAFKA_SIDES},
)
