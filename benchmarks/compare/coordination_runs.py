"""One measured run of commits or transactions, in a process of its own: prints its figures as one JSON line.

    python benchmarks/compare/coordination_runs.py commits fastq --bootstrap HOST:PORT --topic t --count 5000

Rules: a commit is one offset of one partition, waited for; a transaction is 100 records of 100 random bytes, acks=all, from its
begin to its end; the clock starts after the first of them, when the coordinator is known. The plain run of the peer has its
defaults, `-best` what its users set so that nothing is waited for.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import client_values

RECORDS_PER_TRANSACTION = 100


CONFLUENT_COMMITS_BEST = {"socket.nagle.disable": True}
# A batch that holds the whole transaction, and goes as soon as that ends.
CONFLUENT_TRANSACTIONS_BEST = {
    "socket.nagle.disable": True,
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "sticky.partitioning.linger.ms": 20,
}


def slices(count: int) -> list[list[bytes]]:
    """The values of each transaction."""
    values = client_values.values("100 B", (count + 1) * RECORDS_PER_TRANSACTION)
    return [values[at : at + RECORDS_PER_TRANSACTION] for at in range(0, len(values), RECORDS_PER_TRANSACTION)]


def timed(once: Callable[[int], None], count: int) -> dict[str, float]:
    once(0)
    cpu, start = time.process_time(), time.perf_counter()
    for number in range(1, count + 1):
        once(number)
    seconds = time.perf_counter() - start
    return {"per_s": count / seconds, "cpu_us": (time.process_time() - cpu) / count * 1e6}


def commits_fastq(options: argparse.Namespace) -> dict[str, float]:
    from fastq import Consumer, TopicPartition

    partition = TopicPartition(options.topic, 0)
    with Consumer(bootstrap_servers=options.bootstrap, group_id="fastq", enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        return timed(lambda number: consumer.commit({partition: number}), options.count)


def commits_confluent(options: argparse.Namespace, **config: object) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": options.bootstrap, "group.id": "confluent", "enable.auto.commit": False, **config}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(options.topic, 0, 0)])

    def once(number: int) -> None:
        consumer.commit(offsets=[TopicPartition(options.topic, 0, number)], asynchronous=False)

    figures = timed(once, options.count)
    consumer.close()
    return figures


def transactions_fastq(options: argparse.Namespace) -> dict[str, float]:
    from fastq import Producer

    values_of = slices(options.count)
    with Producer(bootstrap_servers=options.bootstrap, transactional_id="fastq", acks="all") as producer:

        def once(number: int) -> None:
            with producer.transaction():
                for value in values_of[number]:
                    producer.send(options.topic, value)

        return timed(once, options.count)


def transactions_confluent(options: argparse.Namespace, **config: object) -> dict[str, float]:
    from confluent_kafka import Producer

    values_of = slices(options.count)
    settings = {"bootstrap.servers": options.bootstrap, "transactional.id": "confluent", "acks": "all"}
    producer = Producer({**settings, **config})
    producer.init_transactions()

    def once(number: int) -> None:
        producer.begin_transaction()
        for value in values_of[number]:
            producer.produce(options.topic, value)
        producer.commit_transaction()

    return timed(once, options.count)


RUNS: dict[tuple[str, str], Callable[[argparse.Namespace], dict[str, float]]] = {
    ("commits", "fastq"): commits_fastq,
    ("commits", "confluent"): commits_confluent,
    ("commits", "confluent-best"): lambda options: commits_confluent(options, **CONFLUENT_COMMITS_BEST),
    ("transactions", "fastq"): transactions_fastq,
    ("transactions", "confluent"): transactions_confluent,
    ("transactions", "confluent-best"): lambda options: transactions_confluent(options, **CONFLUENT_TRANSACTIONS_BEST),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["commits", "transactions"])
    parser.add_argument("library", choices=["fastq", "confluent", "confluent-best"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(RUNS[options.what, options.library](options)), flush=True)


if __name__ == "__main__":
    main()
