"""What a fail-over of `fastq mirror` loses (RPO), and how long it takes (RTO), when the source is killed under load.

    python benchmarks/compare/mirror_failover.py [--rate 10000] [--partitions 8] [--rounds 10] [--seconds 5]

Rules: the source gets records at a rate, each with the time at which it was sent, and is killed at a random moment; then `fastq mirror
fail-over` is run as an operator would, a process of its own, while the mirror's process still runs. What was lost are the records that the
source has acknowledged and the target has not: their number, and the age that the oldest of them had at the kill. Fail-over begins at the
kill, so that the mirror has no time to write what it has fetched. The time goes from the kill to the answer to the first record that is
written to the target once fail-over has said that it may be; how long an operator takes to decide is not in it. A group that has read
everything goes on in the target at what was translated last: so many records it reads again.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support import save

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.testing import Broker

TOPIC, GROUP = "records", "readers"
QUICK = {"group.initial.rebalance.delay.ms": 0}
TURN_S = 0.01
MIRROR = """
source = {{ alias = "A", bootstrap.servers = "{source}" }}
target = {{ alias = "B", bootstrap.servers = "{target}" }}
mirror = {{ topics = ["records"], names = "identity", refresh_interval_ms = 500, group_interval_ms = 1000 }}
"""


def in_target(target: Broker) -> dict[int, list[int]]:
    """The numbers of the records that are committed there, by partition."""
    found: dict[int, list[int]] = {}
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "allow_auto_create_topics": False}
    with Consumer(TOPIC, bootstrap_servers=target.bootstrap_servers, **settings) as consumer:
        for record in consumer.read_to_end():
            found.setdefault(record.partition, []).append(int(record.value or b""))
    return found


Sent = list[tuple[float, list[tuple[int, Any]]]]


def load(source: Broker, producer: Producer, rate: int, partitions: int, seconds: float) -> Sent:
    """Send at a rate until the time is over, and kill the source; what was sent, turn by turn, with the time of each."""
    sent: Sent = []
    number, begin = 0, time.monotonic()
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        while (now := time.monotonic()) < begin + seconds:
            due = int((now - begin) * rate)
            sent.append(
                (now, [(n, producer.send(TOPIC, b"%d" % n, partition=n % partitions)) for n in range(number, due)])
            )
            if due // rate > number // rate:  # a group that has read all of it, each second
                ends = {TopicPartition(TOPIC, p): due // partitions for p in range(partitions)}
                admin.alter_group_offsets(GROUP, ends).results()
            number = due
            time.sleep(TURN_S)
        source.kill()
    return sent


def once(rate: int, partitions: int, seconds: float) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-failover-") as name,
        Broker(config=QUICK) as source,
        Broker(config=QUICK) as target,
    ):
        path = Path(name) / "mirror.toml"
        path.write_text(MIRROR.format(source=source.bootstrap_servers, target=target.bootstrap_servers))
        fastq = [sys.executable, "-m", "fastq", "mirror"]
        with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, partitions)
        producer = Producer(
            bootstrap_servers=source.bootstrap_servers, linger_ms=5, delivery_timeout_ms=1_100, request_timeout_ms=1_000
        )
        mirror = subprocess.Popen([*fastq, "--config", str(path)], stderr=subprocess.DEVNULL)
        try:
            wait_for_topic(target)
            sent = load(source, producer, rate, partitions, seconds)
            killed = time.monotonic()
            over = subprocess.Popen(
                [*fastq, "fail-over", "--config", str(path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            if over.stdout is None or "may be written to" not in over.stdout.readline():
                raise RuntimeError(f"the fail-over has ended with {over.wait()}")
            with Producer(bootstrap_servers=target.bootstrap_servers) as going_on:
                going_on.send(TOPIC, b"-1", partition=0).result()
            rto_s = time.monotonic() - killed
            over.communicate()
            producer.close(2.0)  # only now: it waits for answers that never come
        finally:
            mirror.kill()
            mirror.wait()
        acknowledged = {n: at for at, turn in sent for n, delivery in turn if delivery.exception() is None}
        found = in_target(target)
        there = {n for numbers in found.values() for n in numbers}
        lost = sorted(acknowledged.keys() - there)
        last = max(acknowledged.values())
        with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            offsets = admin.list_group_offsets(GROUP)
            goes_on = {tp.partition: o.value.offset for tp, o in offsets.items() if o.value is not None}
        again = sum(records_behind(target, partition, offset) for partition, offset in goes_on.items())
        return {
            "rpo_records": len(lost),
            "rpo_s": last - acknowledged[lost[0]] if lost else 0.0,
            "rto_s": rto_s,
            "read_again": again,
        }


def wait_for_topic(target: Broker) -> None:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        end = time.monotonic() + 30
        while TOPIC not in admin.list_topics():
            if time.monotonic() > end:
                raise RuntimeError("the mirror has not made its topic within 30 s")
            time.sleep(0.1)


def records_behind(target: Broker, partition: int, offset: int) -> int:
    """How many records a group reads that goes on there."""
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    with Consumer(bootstrap_servers=target.bootstrap_servers, **settings) as consumer:
        tp = TopicPartition(TOPIC, partition)
        consumer.assign([tp])
        consumer.seek(tp, offset)
        return sum(1 for _ in consumer.read_to_end())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=10_000, help="records a second")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load, at the least, before the kill")
    options = parser.parse_args()
    rng = random.Random(7)
    rounds = [once(options.rate, options.partitions, options.seconds + rng.random()) for _ in range(options.rounds)]
    figures = {}
    for name in rounds[0]:
        values = sorted(found[name] for found in rounds)
        figures[name] = {"median": statistics.median(values), "most": values[-1]}
        print(
            f"{name}: {figures[name]['median']:.3g} in the median of {len(values)} rounds, {values[-1]:.3g} at the most"
        )
    save("mirror_failover", {"rate": options.rate, "partitions": options.partitions, **figures})


if __name__ == "__main__":
    main()
