"""`fastq perf produce`, `consume` and `latency`: what this machine, this network and this broker allow.

Rules: what is reported is what the broker acknowledged, or what came; a record that fails ends the run with its error. At a rate, a latency
counts from when the record was due, so that a stall is seen in every record that it held up.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastq.cli import latencies, perf_latency
from fastq.cli.clients import (
    Default,
    add_client_options,
    check_reachable,
    check_served,
    opened_consumer,
    opened_producer,
)
from fastq.cli.latencies import Sample
from fastq.cli.output import (
    Progress,
    Subparsers,
    UsageError,
    add_json_option,
    columns,
    complain,
    count,
    nonempty,
    print_json,
    rate,
    seconds,
    whole,
)
from fastq.words import counted

if TYPE_CHECKING:
    from fastq import Producer

CHUNK_RECORDS = 10_000
PAYLOADS_BYTES_MAX = 256 * 1024 * 1024
IN_TERMINAL = "-"


def register(commands: Any) -> None:
    both = Subparsers(commands).add("perf", "Measure rates and latencies.", "fastq perf produce logs --records 5000000")
    kinds = Subparsers(both.add_subparsers(title="kinds", metavar="KIND", required=True))

    produce = kinds.add(
        "produce", "Send records as fast as the broker takes them.", "fastq perf produce logs --size 100 --plot"
    )
    produce.add_argument("topics", type=nonempty, nargs="+", metavar="TOPIC", help="several ones take turns")
    add_client_options(produce)
    add_json_option(produce)
    produce.add_argument("--records", type=count, default=1_000_000, help="how many (default: %(default)s)")
    values = produce.add_mutually_exclusive_group()
    values.add_argument(
        "--size",
        type=whole(1, PAYLOADS_BYTES_MAX),
        default=100,
        metavar="BYTES",
        help="of each value (default: %(default)s)",
    )
    values.add_argument("--payload-file", type=Path, metavar="FILE", help="the values, a line each, over and over")
    produce.add_argument("--acks", default=Default("all"), choices=["0", "1", "all"])
    produce.add_argument("--compression", default=Default("none"), choices=["none", "gzip", "snappy", "lz4", "zstd"])
    produce.add_argument("--rate", type=rate, metavar="PER_SECOND", help="hold this rate instead of the highest")
    produce.add_argument("--one-by-one", action="store_true", help="call send() for each record, not send_many()")
    produce.add_argument(
        "--transaction-ms", type=count, metavar="MS", help="in transactions, each committed after so long"
    )
    produce.add_argument(
        "--plot",
        nargs="?",
        const=IN_TERMINAL,
        metavar="FILE.svg",
        help="rate and latency over time, in the terminal or as an SVG file",
    )
    produce.set_defaults(run=run_produce)

    consume = kinds.add(
        "consume", "Read records as fast as they come.", "fastq perf consume logs --records 5000000 --as arrow"
    )
    consume.add_argument("topics", type=nonempty, nargs="+", metavar="TOPIC")
    add_client_options(consume)
    add_json_option(consume)
    consume.add_argument("--group", type=nonempty, metavar="ID", help="read as a member of this group")
    consume.add_argument(
        "--records",
        type=count,
        default=1_000_000,
        help="stop after so many, or, in batches, soon after (default: %(default)s)",
    )
    consume.add_argument(
        "--as", dest="shape", default="records", choices=["records", "batches", "arrow"], help="how they are asked for"
    )
    consume.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="SECONDS", help="stop when nothing came for so long"
    )
    consume.set_defaults(run=run_consume)
    perf_latency.register(kinds)


def run_produce(options: argparse.Namespace) -> int:
    _check_plot(options.plot)
    payloads = _payloads(options)
    settings: dict[str, Any] = {"acks": options.acks, "compression_type": options.compression}
    if options.transaction_ms is not None:
        settings["transactional_id"] = f"fastq-perf-{os.urandom(8).hex()}"
    progress = Progress("sent", options.records)
    with opened_producer(options, **settings) as producer:
        for topic in options.topics:
            producer.partitions_for(topic)
        run = _Producing(options, producer, payloads, progress)
        try:
            run.send_all()
        finally:
            progress.close()
    figures = _figures(options.records, run.size, run.elapsed_s, run.samples)
    if options.transaction_ms is not None:
        figures["transactions"] = run.transactions
    _print(figures, options)
    if options.plot is not None:
        _plot(options, run.samples)
    return 0


def _check_plot(plot: str | None) -> None:
    """UsageError for where no plot could be written, before the run that it would be of."""
    if plot is None or plot == IN_TERMINAL:
        return
    if not plot.endswith(".svg"):
        raise UsageError(f"--plot {plot}: a name ending in .svg is expected, or none, for a plot in the terminal")
    if not Path(plot).parent.is_dir():
        raise UsageError(f"--plot {plot}: {Path(plot).parent} is no directory")


def _payloads(options: argparse.Namespace) -> list[bytes]:
    if options.payload_file is None:
        return [os.urandom(max(options.size // 2, 1)).hex().encode()[: options.size]]
    with options.payload_file.open("rb") as file:
        payloads = file.read(PAYLOADS_BYTES_MAX + 1)  # its size says nothing where it is a device or a pipe
    if len(payloads) > PAYLOADS_BYTES_MAX:
        raise UsageError(f"--payload-file {options.payload_file}: it has more than {PAYLOADS_BYTES_MAX >> 20} MiB")
    lines: list[bytes] = payloads.splitlines()
    if not lines:
        raise UsageError(f"--payload-file {options.payload_file}: it has no line")
    return lines


class _Producing:
    """One run. Invariant: `samples` stand for all records that were acknowledged; `error` is the first that was not."""

    def __init__(
        self, options: argparse.Namespace, producer: Producer, payloads: Sequence[bytes], progress: Progress
    ) -> None:
        self._options = options
        self._producer = producer
        self._values = itertools.cycle(payloads)
        self._progress = progress
        self.samples: list[Sample] = []
        self.error: BaseException | None = None
        self.size = self.transactions = 0
        self.start = time.perf_counter()
        self.elapsed_s = 0.0

    def send_all(self) -> None:
        """Raises what a record failed with."""
        options, producer = self._options, self._producer
        period_s = None if options.transaction_ms is None else options.transaction_ms / 1000
        chunks = self._chunks()
        more = True
        if period_s is not None:
            producer.init_transactions()
        self.start = time.perf_counter()
        while more:
            with producer.transaction() if period_s is not None else nullcontext():
                began = time.perf_counter()
                more = False
                sent = 0
                for topic, values, due in chunks:
                    self._send(topic, values, due)
                    sent += len(values)
                    if period_s is not None and time.perf_counter() - began >= period_s:
                        more = True
                        break
            self.transactions += sent > 0  # the last may have come too late for one
        producer.flush()
        self.elapsed_s = time.perf_counter() - self.start
        if self.error is not None:
            raise self.error

    def _chunks(self) -> Iterator[tuple[str, list[bytes], float]]:
        """Topic, values and when they are due, each at its time, until all are out or one has failed."""
        options, done = self._options, 0
        most = max(1, min(CHUNK_RECORDS, int(options.rate / 100) if options.rate else CHUNK_RECORDS))
        for topic in itertools.cycle(options.topics):
            if done == options.records or self.error is not None:
                return
            values = list(itertools.islice(self._values, min(most, options.records - done)))
            due = time.perf_counter()
            if options.rate:
                due = self.start + done / options.rate
                time.sleep(max(0.0, due - time.perf_counter()))
            yield topic, values, due
            done += len(values)
            self.size += sum(map(len, values))
            self._progress.update(done)

    def _send(self, topic: str, values: list[bytes], due: float) -> None:
        delivery: Any
        if self._options.one_by_one:
            for value in values:
                delivery = self._producer.send(topic, value)
                delivery.add_done_callback(lambda done: self._arrived(done, due, 1))
        else:
            delivery = self._producer.send_many(topic, values)
            delivery.add_done_callback(lambda done: self._arrived(done, due, len(values)))

    def _arrived(self, delivery: Any, due: float, records: int) -> None:
        error = delivery.exception()
        if error is None:
            now = time.perf_counter()
            self.samples.append(Sample(now - self.start, now - due, records))
        elif self.error is None:
            self.error = error


def _plot(options: argparse.Namespace, samples: Sequence[Sample]) -> None:
    from fastq.cli.plots import BARS, LABEL_MAX, PLAIN_BARS, Line, Panel, as_svg, as_text

    # The figures of --json stay alone on standard output.
    out = sys.stderr if options.json else sys.stdout
    room = columns(out) - LABEL_MAX if options.plot == IN_TERMINAL else latencies.POINTS_MAX
    points = latencies.over_time(samples, room)
    end_s = points[-1].at_s if points else 0.0
    panels = [
        Panel("records a second", [Line("", [point.records_per_s for point in points])]),
        Panel(
            "latency in ms",
            [Line("p50", [point.p50_ms for point in points]), Line("p99", [point.p99_ms for point in points])],
        ),
    ]
    if options.plot == IN_TERMINAL:
        try:
            BARS.encode(out.encoding or "utf-8")
            bars = BARS
        except UnicodeEncodeError:
            bars = PLAIN_BARS
        print(f"\n{as_text(panels, end_s, bars)}", file=out)
        return
    Path(options.plot).write_text(
        as_svg(f"fastq perf produce {' '.join(options.topics)}", panels, end_s), encoding="utf-8"
    )
    complain(f"the plot is in {options.plot}")


def run_consume(options: argparse.Namespace) -> int:
    progress = Progress("read", options.records)
    done = size = 0
    settings = {} if options.group is None else {"group_id": options.group}
    if options.shape == "arrow":
        importlib.import_module("pyarrow")  # which takes longer than many a run, and is nobody's speed
    with opened_consumer(options, options.topics, auto_offset_reset="earliest", **settings) as consumer:
        start = last = time.perf_counter()
        while done < options.records:
            if options.shape == "records":
                records = consumer.poll(max_records=min(CHUNK_RECORDS, options.records - done), timeout=options.timeout)
                size += sum(len(record.value or b"") for record in records)
                came = len(records)
            else:
                batch = consumer.poll_batch(timeout=options.timeout)
                came = len(batch)
                if options.shape == "arrow" and came:
                    size += batch.to_arrow(columns=["value"]).nbytes
                else:
                    size += sum(len(value or b"") for value in batch.values)
            if not came:
                check_reachable(consumer) if done else check_served(consumer)
                break
            done += came
            progress.update(done)
            last = time.perf_counter()  # what is waited for in vain, at the end, is nobody's speed
    progress.close()
    _print(_figures(done, size, last - start, ()), options)
    if done < options.records:
        complain(f"{done:,} of {counted(options.records, 'record')} came, then none for {options.timeout:g} s")
    return 0 if done >= options.records else 1


def _figures(records: int, size: int, elapsed_s: float, samples: Sequence[Sample]) -> dict[str, Any]:
    return {
        "records": records,
        "seconds": round(elapsed_s, 3),
        "records_per_s": round(records / elapsed_s) if elapsed_s else 0,
        "MB_per_s": round(size / elapsed_s / 1e6, 1) if elapsed_s else 0.0,
        **latencies.figures(samples),
    }


def _print(figures: dict[str, Any], options: argparse.Namespace) -> None:
    if options.json:
        print_json(figures, options.json)
    else:
        print("  ".join(f"{key} {value:,}" for key, value in figures.items()))
