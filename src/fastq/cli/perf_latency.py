"""`fastq perf latency`: from the send of a record to the poll that brings it, one at a time or at a rate.

Rules: what is measured is found again by what its value begins with, a name of the run and a number, so that records of others are passed
over. One at a time, the next is sent when the one before has come; at a rate a record counts from when it was due. The reader stands at the
end of every partition before the first is sent. A record that does not come within --timeout ends the run.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from fastq.cli import latencies
from fastq.cli.clients import Default, add_client_options, check_served, opened_consumer, opened_producer
from fastq.cli.latencies import Sample
from fastq.cli.output import (
    Progress,
    UsageError,
    add_json_option,
    count,
    nonempty,
    print_facts,
    print_json,
    print_table,
    rate,
    seconds,
    whole,
)
from fastq.errors import WaitTimeout

if TYPE_CHECKING:
    from fastq import Consumer, Producer

SIZE_MIN, SIZE_MAX = 24, 256 * 1024 * 1024
BAR_MAX = 40


def register(kinds: Any) -> None:
    parser = kinds.add(
        "latency",
        "Measure from send to poll, one at a time or at a rate.",
        "fastq perf latency logs --records 2000 --rate 500",
    )
    parser.add_argument("topic", type=nonempty, metavar="TOPIC")
    add_client_options(parser)
    add_json_option(parser)
    parser.add_argument("--records", type=count, default=1_000, help="how many (default: %(default)s)")
    parser.add_argument(
        "--size",
        type=whole(1, SIZE_MAX),
        default=100,
        metavar="BYTES",
        help=f"of each value, {SIZE_MIN} or more (default: %(default)s)",
    )
    parser.add_argument("--rate", type=rate, metavar="PER_SECOND", help="send at this rate, not one at a time")
    parser.add_argument("--acks", default=Default("all"), choices=["0", "1", "all"])
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="give up when a record has not come for so long",
    )
    parser.set_defaults(run=run)


class _Sending(threading.Thread):
    """Sends at a rate, beside the reader. `due` has the time of each record that was sent or is about to be."""

    def __init__(self, producer: Producer, options: argparse.Namespace, values: _Values) -> None:
        super().__init__(name="fastq-perf-latency", daemon=True)
        self._producer, self._options, self._values = producer, options, values
        self.due: list[float] = []
        self.error: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        start = time.perf_counter()
        try:
            for number in range(self._options.records):
                due = start + number / self._options.rate
                if self.stopping.wait(max(0.0, due - time.perf_counter())) or self.error is not None:
                    return
                self.due.append(due)
                self._producer.send(self._options.topic, self._values.make(number)).add_done_callback(self._answered)
        except Exception as error:
            self.error = error

    def _answered(self, delivery: Any) -> None:
        error = delivery.exception()
        if error is not None and self.error is None:
            self.error = error


class _Values:
    """Values of one run, and the numbers of those that come back."""

    def __init__(self, size: int) -> None:
        self._name = os.urandom(6).hex().encode()
        self._rest = os.urandom(size).hex().encode()[: size - SIZE_MIN]

    def make(self, number: int) -> bytes:
        return b"%b%012d%b" % (self._name, number, self._rest)

    def number(self, value: bytes | None) -> int | None:
        if value is None or len(value) != SIZE_MIN + len(self._rest) or not value.startswith(self._name):
            return None
        return int(value[len(self._name) : SIZE_MIN])


def run(options: argparse.Namespace) -> int:
    if options.size < SIZE_MIN:
        raise UsageError(f"--size {options.size}: {SIZE_MIN} bytes or more, which name the record, are expected")
    values, progress = _Values(options.size), Progress("came", options.records)
    reader = {"auto_offset_reset": "latest", "fetch_max_wait_ms": 500}
    with (
        opened_producer(options, acks=options.acks, linger_ms=0) as producer,
        opened_consumer(options, [], **reader) as consumer,
    ):
        partitions = [(options.topic, number) for number in range(len(producer.partitions_for(options.topic)))]
        consumer.assign(partitions)
        for partition, end in consumer.end_offsets(partitions).items():
            consumer.seek(partition, end)
        try:
            samples = (_at_a_rate if options.rate else _one_at_a_time)(producer, consumer, options, values, progress)
        finally:
            progress.close()
    found = latencies.figures(samples)
    bars = latencies.histogram(samples)
    if options.json:
        shown = [{"up_to_ms": bound, "records": records} for bound, records in bars]
        print_json({"records": len(samples), "rate": options.rate, **found, "histogram": shown}, options.json)
        return 0
    print_facts({"records": len(samples), **{name.replace("_ms", " ms"): value for name, value in found.items()}}, "")
    print()
    most = max(records for _, records in bars)
    print_table(
        ["up to ms", "records", "percent", ""],
        [
            [f"{bound:g}", records, 100 * records / len(samples), "#" * -(-BAR_MAX * records // most)]
            for bound, records in bars
        ],
    )
    return 0


def _one_at_a_time(
    producer: Producer, consumer: Consumer, options: argparse.Namespace, values: _Values, progress: Progress
) -> list[Sample]:
    samples: list[Sample] = []
    start = time.perf_counter()
    for number in range(options.records):
        began = time.perf_counter()
        producer.send(options.topic, values.make(number)).result(options.timeout)
        while number not in (got := _came(consumer, options, values, began)):
            pass
        samples.append(Sample(got[number] - start, got[number] - began))
        progress.update(number + 1)
    return samples


def _at_a_rate(
    producer: Producer, consumer: Consumer, options: argparse.Namespace, values: _Values, progress: Progress
) -> list[Sample]:
    samples: list[Sample] = []
    sending = _Sending(producer, options, values)
    start = last = time.perf_counter()
    sending.start()
    try:
        while len(samples) < options.records:
            if sending.error is not None:
                raise sending.error
            found = _came(consumer, options, values, max(last, sending.due[-1] if sending.due else last), wait_s=0.1)
            for number, now in found.items():
                last = now
                samples.append(Sample(now - start, now - sending.due[number]))
            progress.update(len(samples))
    finally:
        sending.stopping.set()
        sending.join()
    return samples


def _came(
    consumer: Consumer, options: argparse.Namespace, values: _Values, since: float, wait_s: float | None = None
) -> dict[int, float]:
    """Numbers of the records of this run that one poll brings, and when. Raises WaitTimeout when none has come for --timeout."""
    left = since + options.timeout - time.perf_counter()
    if left <= 0:
        check_served(consumer)
        raise WaitTimeout(
            f"{options.topic}: a record that was sent has not come back within {options.timeout:g} s; "
            "is the topic being deleted, or the broker overloaded?"
        )
    records = consumer.poll(timeout=left if wait_s is None else min(left, wait_s))
    now = time.perf_counter()
    numbers = (values.number(record.value) for record in records)
    return {number: now for number in numbers if number is not None}
