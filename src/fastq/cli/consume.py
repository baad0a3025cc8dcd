"""`fastq consume`: records to standard output, as text, as JSON lines or with all their fields.

Rules: records are written and flushed before the next ones are asked for, so that with `--group` what is committed was written. A
topic that is not there is an error, not a new topic. What says where to begin or to stop (`--from`, `--to`, `--tail`) takes the partitions
that are there at the start. A filter decides what is shown, last: `--max-records` counts what is shown, `--last-of-each-key` looks for
the last of all, and shows it if it fits.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import (
    Default,
    add_client_options,
    check_served,
    described,
    opened_admin,
    opened_consumer,
)
from fastq.cli.consume_filter import milliseconds, parse_filter
from fastq.cli.consume_shapes import Shown, Sink, decoder, opened_sink, shower
from fastq.cli.output import (
    INT64_MAX,
    Progress,
    Subparsers,
    UsageError,
    add_encoding_option,
    complain,
    count,
    nonempty,
    seconds,
    whole,
)
from fastq.errors import FastqError

if TYPE_CHECKING:
    from fastq import Consumer, Record
    from fastq.consumer.calls import Ends


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "consume",
        "Print the records of topics, the new ones or all.",
        "fastq consume logs --from-beginning --exit-at-end --json",
    )
    parser.add_argument("topics", type=nonempty, nargs="*", metavar="TOPIC")
    parser.add_argument(
        "--include", metavar="REGEX", help="topics whose whole name matches; with --group those that come later too"
    )
    add_client_options(parser)
    parser.add_argument(
        "--group", type=nonempty, metavar="ID", help="read as a member of this group, and commit what was printed"
    )
    parser.add_argument("--from-beginning", action="store_true", help="start at the earliest record, not at the end")
    parser.add_argument("--partition", type=whole(), help="read only this partition of the topic")
    parser.add_argument(
        "--offset",
        type=whole(0, INT64_MAX),
        help="start at this offset (with --partition); one that is not there is an error",
    )
    parser.add_argument("--from", dest="start", metavar="TIME", help="start at the first record of this time, or later")
    parser.add_argument(
        "--to", dest="stop", metavar="TIME", help="stop at the first record of this time, or at the end"
    )
    parser.add_argument("--tail", type=count, metavar="N", help="start N offsets before the end of each partition")
    parser.add_argument(
        "--last-of-each-key",
        action="store_true",
        help="read to the end, print the last record of each key; keys are held in memory",
    )
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="FILTER",
        help="only records that fit, as in value.order.price>10, key=a, headers.trace?, timestamp<TIME; may be repeated, all must fit",
    )
    parser.add_argument("--max-records", type=count, metavar="N", help="stop after N records")
    parser.add_argument("--exit-at-end", action="store_true", help="stop at the offsets that were the end at the start")
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="stop when no record came for so long")
    parser.add_argument(
        "--isolation", default=Default("read_uncommitted"), choices=["read_uncommitted", "read_committed"]
    )
    decoding = parser.add_mutually_exclusive_group()
    decoding.add_argument(
        "--schema-registry",
        type=nonempty,
        metavar="URL",
        help="keys and values that name a schema there (Avro, Protobuf, JSON Schema) as JSON (needs fastavro, protobuf or jsonschema)",
    )
    decoding.add_argument(
        "--decode",
        action="store_true",
        help="keys and values of Kafka's own topics, such as __consumer_offsets, as JSON",
    )
    style = parser.add_mutually_exclusive_group()
    style.add_argument(
        "--output",
        default="text",
        choices=["text", "json", "csv"],
        help="json: one object a line, with every field; csv: a line of names, and one for each record",
    )
    style.add_argument("--json", dest="output", action="store_const", const="json", help="short for --output json")
    style.add_argument(
        "--parquet",
        type=Path,
        metavar="FILE",
        help="write the records to a file of Parquet (needs pip install pyarrow)",
    )
    style.add_argument("--verbose", action="store_true", help="partition, offset, time and key before the value")
    style.add_argument(
        "--format",
        metavar="TEXT",
        help="kcat's letters: %%t %%p %%o %%T topic, partition, offset, time, %%k %%s key, value, %%h headers, \\n",
    )
    style.add_argument("--key-separator", metavar="TEXT", help="print key, TEXT, value")
    add_encoding_option(
        parser,
        'of keys and values. auto: as they are; in JSON, what is no UTF-8 as {"base64": ...}. utf-8: text, what is none replaced. '
        "base64: all of them",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fastq import TopicPartition

    _check(options)
    decode, show, fits = decoder(options), shower(options), _filters(options)
    placed = options.start is not None or options.stop is not None or options.tail is not None
    placed = placed or (options.include is not None and options.group is None)
    earliest = options.from_beginning or options.last_of_each_key
    start = "earliest" if earliest else Default("latest") if options.offset is None else "none"
    settings: dict[str, Any] = {"auto_offset_reset": start, "isolation_level": options.isolation}
    if options.group is not None:
        settings["group_id"] = options.group
    named = options.topics if options.partition is None and not placed and options.include is None else []
    with opened_consumer(options, named, **settings) as consumer:
        stops: Ends | None = None
        if placed:
            stops = _place(consumer, options)
        elif options.partition is not None:
            partition = TopicPartition(options.topics[0], options.partition)
            consumer.assign([partition])
            if options.offset is not None:
                consumer.seek(partition, options.offset)
        elif options.include is not None:
            consumer.subscribe(_pattern(options.include))
        left = _Left(options.max_records)
        records = _records(consumer, options, stops, left)
        if options.last_of_each_key:
            records = _last_of_each_key(records)
        sink = opened_sink(options, show)
        try:
            shown = ((found for found in map(decode, left.seen(some)) if fits(found.record)) for some in records)
            _write(shown, sink, left)
        finally:
            sink.close()
        if not left.anything and options.start is options.stop is options.tail is options.offset is None:
            _tell_where_it_began(consumer)
        if consumer.config.group_id is not None:
            consumer.commit()
    return 0


class _Left:
    """How many records are still to be shown; None: without end. No more than these are asked for, so that a group is not committed past
    what was shown. `anything`: whether any was read, shown or not."""

    def __init__(self, records: int | None) -> None:
        self.records = records
        self.anything = False

    def seen(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, noted."""
        for record in records:
            self.anything = True
            yield record


def _tell_where_it_began(consumer: Consumer) -> None:
    """Nothing has come: say so where there are records, and reading began behind them as nobody said where else."""
    if consumer.config.auto_offset_reset != "latest":
        return
    with suppress(FastqError):  # no more than a word of advice
        places, group, more = consumer.assignment(), consumer.config.group_id, "--from-beginning reads that too"
        if group is not None:
            places = [place for place, found in consumer.committed(places).items() if found is None]
            more = f"the group goes on there; fastq groups reset-offsets {group} --to-earliest --execute has it go back"
        begins = consumer.beginning_offsets(places)
        if any(consumer.position(place) > begin for place, begin in begins.items()):
            complain(f"no record came: reading began at the end of what is there; {more}")


def _check(options: argparse.Namespace) -> None:
    """UsageError for what makes no sense together."""
    if not options.topics and options.include is None:
        raise UsageError("TOPIC or --include is required")
    if options.include is not None:
        _pattern(options.include)
    if options.topics and options.include is not None:
        raise UsageError("--include and TOPIC exclude each other: REGEX may be a|b")
    if options.offset is not None and options.partition is None:
        raise UsageError("--offset needs --partition: each partition has offsets of its own")
    if options.partition is not None and len(options.topics) != 1:
        raise UsageError("--partition is for one topic")
    if options.group is not None and options.partition is not None:
        raise UsageError("--group and --partition exclude each other: a group divides the partitions itself")
    if options.group is not None and options.parquet is not None:
        raise UsageError(
            "--group and --parquet exclude each other: the file is whole at its end, and a group commits before"
        )
    for option, text in {"--from": options.start, "--to": options.stop}.items():
        if text is not None:
            milliseconds(text, option)
    starts = {"--from": options.start, "--tail": options.tail, "--offset": options.offset}
    given = [name for name, value in starts.items() if value is not None]
    if options.from_beginning and options.offset is None:  # with an offset it says where to go when that is gone
        given.append("--from-beginning")
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other: each says where to start")
    placed = {**starts, "--to": options.stop, "--last-of-each-key": options.last_of_each_key or None}
    for name, value in placed.items():
        if value is not None and options.group is not None:
            raise UsageError(f"--group and {name} exclude each other: a group goes on where it was")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(rf"(?:{text})\Z")
    except re.error as error:
        raise UsageError(f"--include {text!r} is no regular expression: {error}") from None


def _place(consumer: Consumer, options: argparse.Namespace) -> Ends | None:
    """Assign all partitions that are asked for, go to where they are to be read from, and answer up to where: None for on and on."""
    from fastq import TopicPartition
    from fastq.consumer.calls import Ends

    start = None if options.start is None else milliseconds(options.start, "--from")
    stop = None if options.stop is None else milliseconds(options.stop, "--to")
    with opened_admin(options) as admin:
        if options.include is not None:
            matches = _pattern(options.include).match
            topics = described(admin, [name for name in admin.list_topics() if matches(name)])
            if not topics:
                raise UsageError(
                    f"--include {options.include!r} matches no topic; fastq topics list shows those that are there"
                )
        else:
            topics = described(admin, options.topics)
    places = [TopicPartition(name, part.index) for name, topic in topics.items() for part in topic.partitions]
    if options.partition is not None:
        places = [place for place in places if place.partition == options.partition]
        if not places:
            raise UsageError(f"--partition {options.partition}: {options.topics[0]} has no such partition")
    consumer.assign(places)
    ends = consumer._call(consumer._find_ends(None))
    if start is not None:
        for place, found in consumer.offsets_for_times(dict.fromkeys(places, start)).items():
            consumer.seek(place, ends[place] if found is None else found.offset)
    elif options.tail is not None:
        for place, first in consumer.beginning_offsets(places).items():
            consumer.seek(place, max(first, ends[place] - options.tail))
    elif options.offset is not None:
        consumer.seek(places[0], options.offset)
    elif stop is not None or options.from_beginning or options.last_of_each_key:
        consumer.seek_to_beginning(*places)
    else:
        for place, end in ends.items():
            consumer.seek(place, end)
    if stop is None:
        return None
    found_stops = consumer.offsets_for_times(dict.fromkeys(places, stop))
    # What has come since the ends were asked for is behind them, as what they are compared with is of then, too: the leader epochs.
    stops = {
        place: ends[place] if (at := found_stops[place]) is None else min(at.offset, ends[place]) for place in places
    }
    return Ends(stops, ends.topic_ids, ends.epochs)


def _filters(options: argparse.Namespace) -> Callable[[Record], bool]:
    filters = [parse_filter(text) for text in options.filter]
    return lambda record: all(fits(record) for fits in filters)


def _records(
    consumer: Consumer, options: argparse.Namespace, stops: Ends | None, left: _Left
) -> Iterator[Iterable[Record]]:
    """What comes, some at a time, until it is to stop."""
    if stops is not None or options.exit_at_end or options.last_of_each_key:
        ends = consumer._call(consumer._find_ends(options.timeout)) if stops is None else stops
        to_end = consumer._iterate_before(ends, options.timeout)
        if options.group is None:
            yield to_end
        else:  # each is done with, and may be committed at any time, when the next is asked for
            yield from ([record] for record in to_end)
        if options.timeout is not None and consumer._pending_ends(ends):
            check_served(consumer)
        return
    wait = options.timeout if options.timeout is not None else 3600.0
    while True:
        records = consumer.poll(max_records=500 if left.records is None else min(500, left.records), timeout=wait)
        if not records and options.timeout is not None:
            check_served(consumer)
            return
        yield records


def _last_of_each_key(records: Iterable[Iterable[Record]]) -> Iterator[Iterable[Record]]:
    """Records without a key have no last one."""
    last: dict[tuple[str, bytes], Record] = {}
    progress = Progress("records read")
    try:
        for count, record in enumerate(itertools.chain.from_iterable(records), 1):
            progress.update(count)
            if record.key is not None:
                last[record.topic, record.key] = record
    finally:
        progress.close()
    yield sorted(last.values(), key=lambda record: (record.topic, record.partition, record.offset))


def _write(records: Iterable[Iterable[Shown]], sink: Sink, left: _Left) -> None:
    """Write them, some at a time."""
    for some in records:
        for shown in some:
            sink.write(shown)
            if left.records is not None:
                left.records -= 1
                if not left.records:
                    sink.flush()
                    return
        sink.flush()
