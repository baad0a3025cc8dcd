"""`fastq produce`: lines of standard input or a file become records.

Rules: the command has sent everything, or says how many records were acknowledged and why the first of the others was not. With
`--dead-letter` it goes on past lines that are no record and records that are refused, and writes their lines there as they came; the exit
code is 1 all the same. Without, the first ends it.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fastq.cli.clients import Default, add_client_options, opened_producer
from fastq.cli.codes import code_of
from fastq.cli.output import Progress, Subparsers, UsageError, complain, nonempty, rate, whole
from fastq.cli.produce_lines import BadLine, Headers, Parsed, Schemas, line_parser, without_end
from fastq.errors import FastqError
from fastq.words import counted

if TYPE_CHECKING:
    from fastq import Producer

LINE_BYTES_MAX = 256 << 20


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "produce",
        "Send each line of standard input (or of a file) as a record.",
        "fastq produce logs --file /var/log/syslog --compression zstd\n"
        "  fastq consume logs --from-beginning --exit-at-end --json | fastq produce copies --json",
    )
    parser.add_argument("topic", type=nonempty)
    add_client_options(parser)
    parser.add_argument("--file", type=Path, help="read lines from this file instead of standard input")
    parser.add_argument("--key", help="the same key for every record that has none of its own")
    parser.add_argument("--key-separator", metavar="TEXT", help="split each line at the first TEXT into key and value")
    parser.add_argument("--header", metavar="KEY=VALUE", action="append", default=[], help="a header of every record")
    parser.add_argument(
        "--header-separator",
        metavar="TEXT",
        help="what is before the first TEXT of a line are its headers, NAME=VALUE,...",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="lines are JSON, as fastq consume --json or kcat -J print them: value, key, headers, timestamp_ms",
    )
    parser.add_argument("--keep-partition", action="store_true", help="with --json: to the partition that a line says")
    parser.add_argument("--partition", type=whole(), help="send to this partition instead of choosing one")
    parser.add_argument("--null-marker", metavar="TEXT", help="a value equal to TEXT is sent as null (a tombstone)")
    parser.add_argument(
        "--encoding",
        default="utf-8",
        choices=["utf-8", "base64"],
        help="base64: keys and values of the lines are base64",
    )
    _add_schema_options(parser)
    parser.add_argument("--rate", type=rate, metavar="PER_SECOND", help="send not more records a second than this")
    parser.add_argument(
        "--dead-letter",
        type=Path,
        metavar="FILE",
        help="append lines that are no record, or whose record is refused, to FILE, and go on",
    )
    parser.add_argument("--compression", default=Default("none"), choices=["none", "gzip", "snappy", "lz4", "zstd"])
    parser.add_argument("--acks", default=Default("all"), choices=["0", "1", "all"])
    parser.set_defaults(run=run)


def _add_schema_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--schema-registry",
        type=nonempty,
        metavar="URL",
        help="lines are JSON that goes out as Avro, Protobuf or by a JSON Schema (needs fastavro, protobuf or jsonschema)",
    )
    for part in ("value", "key"):
        schema = parser.add_mutually_exclusive_group()
        schema.add_argument(
            f"--{part}-schema",
            type=Path,
            metavar="FILE",
            help=f"register this for {part}s of the topic: .avsc, .json (a JSON Schema) or .desc (descriptors that protoc made)",
        )
        schema.add_argument(
            f"--{part}-subject",
            type=nonempty,
            metavar="NAME",
            help=f"{part}s as the latest schema of this subject has it",
        )


def _schemas(options: argparse.Namespace) -> Schemas:
    """What the options say of schemas; the registry has been asked then. Raises UsageError, FastqError."""
    given = {
        part: (getattr(options, f"{part}_schema"), getattr(options, f"{part}_subject")) for part in ("key", "value")
    }
    asked = {part: where for part, where in given.items() if where != (None, None)}
    if options.schema_registry is None:
        if asked:
            raise UsageError(f"--{next(iter(asked))}-schema and -subject need --schema-registry URL")
        return Schemas()
    if not asked:
        raise UsageError("--schema-registry needs --value-schema FILE or --value-subject NAME (or --key-...)")
    from fastq.cli.schemas import opened_registry, schema_writer

    if options.encoding != "utf-8":
        raise UsageError("--schema-registry and --encoding exclude each other: lines are JSON")
    registry = opened_registry(options.schema_registry)
    return Schemas(
        **{
            part: schema_writer(registry, options.topic, is_key=part == "key", file=file, subject=subject)
            for part, (file, subject) in asked.items()
        }
    )


class _Sent:
    """What became of the lines of one run. Safe for any thread: a delivery ends in one of the producer's.

    Invariant: in the end each of `count` lines was acknowledged, is in the file of dead letters, or came after `error` where there is none.
    """

    def __init__(self, dead_letters: BinaryIO | None) -> None:
        self._dead_letters = dead_letters
        self._lock = threading.Lock()
        self.count = self.acknowledged = self.dead = 0
        self.error: BaseException | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the next line is sent whatever became of one."""
        return self._dead_letters is not None

    def done(self, delivery: Any, line: bytes) -> None:
        error = delivery.exception()
        with self._lock:
            if error is None:
                self.acknowledged += 1
                return
        self.failed(error, line)

    def failed(self, error: BaseException, line: bytes) -> None:
        """A line whose record did not come through."""
        with self._lock:
            if self.error is None:
                self.error = error
            if self._dead_letters is not None:
                try:
                    self._dead_letters.write(line if line.endswith(b"\n") else line + b"\n")
                    self.dead += 1
                except OSError as problem:  # a callback's would end in the log of the client
                    self.error, self._dead_letters = problem, None


def run(options: argparse.Namespace) -> int:
    line_parser(options)  # what makes no sense is told before the registry is asked
    parse, headers = line_parser(options, _schemas(options)), _headers(options.header)
    if options.file is None and sys.stdin is None:
        raise UsageError("standard input is closed: give --file")
    typed = options.file is None and sys.stdin.isatty()
    progress = Progress("sent", shown=not typed)  # not into a line that is being typed
    source = options.file.open("rb") if options.file else nullcontext(sys.stdin.buffer)
    dead_letters = options.dead_letter.open("ab") if options.dead_letter is not None else nullcontext(None)
    settings = {"acks": options.acks, "compression_type": options.compression}
    with source as lines, dead_letters as file:
        sent, pace = _Sent(file), _Pace(options.rate)
        if typed:
            complain("each line is a record; Ctrl-D ends it")
        try:
            with opened_producer(options, **settings) as producer:
                for line, record in _records(lines, parse, sent):
                    pace.wait(sent.count)
                    sent.count += 1
                    _send(producer, options, record, headers, line, sent)
                    progress.update(sent.count)
                    if sent.error is not None and not sent.goes_on:
                        break
                producer.flush()
        finally:
            progress.close()
            _tell(sent, options)
    if not sent.count:
        complain("nothing to send: the input has no lines")
    return 0 if sent.error is None else code_of(sent.error)


def _headers(pairs: list[str]) -> Headers:
    """Those of every record; a name may come more than once, as Kafka has it, and a value keeps its blanks."""
    found: Headers = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--header takes KEY=VALUE, not {pair!r}")
        found.append((name, value.encode("utf-8", "surrogateescape")))
    return found


def _records(lines: BinaryIO, parse: Any, sent: _Sent) -> Iterator[tuple[bytes, Parsed]]:
    """Each line with its record. One that is none is a dead letter, or UsageError."""
    for number, line in enumerate(iter(partial(lines.readline, LINE_BYTES_MAX + 1), b""), 1):
        if len(line) > LINE_BYTES_MAX:  # of /dev/zero, for one, there is no end
            raise UsageError(f"line {number} has more than {LINE_BYTES_MAX >> 20} MiB: each line is a record")
        try:
            record = parse(without_end(line))
        except BadLine as error:
            problem = UsageError(f"line {number}: {error}")
            if not sent.goes_on:
                raise problem from None
            sent.count += 1
            sent.failed(problem, line)
            continue
        yield line, record


def _send(
    producer: Producer, options: argparse.Namespace, record: Parsed, headers: Headers, line: bytes, sent: _Sent
) -> None:
    partition = options.partition if record.partition is None else record.partition
    kept = line if options.dead_letter is not None else b""  # until it is answered for
    try:
        delivery = producer.send(
            options.topic,
            record.value,
            key=record.key,
            headers=[*headers, *record.headers] or None,
            partition=partition,
            timestamp_ms=record.timestamp_ms,
        )
    except FastqError as error:
        sent.failed(error, line)
    else:
        delivery.add_done_callback(lambda done: sent.done(done, kept))


class _Pace:
    """Holds a rate; None: none."""

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._start: float | None = None

    def wait(self, number: int) -> None:
        """Until record `number`, from 0, is due. The time begins with the first."""
        if self._per_second is None:
            return
        if self._start is None:
            self._start = time.monotonic()
        time.sleep(max(0.0, self._start + number / self._per_second - time.monotonic()))


def _tell(sent: _Sent, options: argparse.Namespace) -> None:
    """One line of how it went."""
    if not sent.count:
        return
    if sent.acknowledged == sent.count:
        complain(f"{counted(sent.acknowledged, 'record')} sent to {options.topic}")
        return
    words = [
        f"{sent.acknowledged:,} of {counted(sent.count, 'record')} {'was' if sent.count == 1 else 'were'} acknowledged"
    ]
    if sent.dead:
        words.append(f"{counted(sent.dead, 'line')} put into {options.dead_letter}")
    if sent.error is not None:
        words.append(f"the first that failed: {sent.error}")
    complain("; ".join(words))
