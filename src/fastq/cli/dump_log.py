"""`fastq dump-log`: what stands in the files of a data directory, without a broker.

Rules: reads only; a corrupt or torn place is reported with its position and everything before it is printed; the formats are those of the
reference in `fastq_broker.log` (Apache Kafka's own). One batch is held at a time, and what is printed is not held: a file may be of any
size. Records of Kafka's own topics are decoded by the name of the directory that a file stands in, or as `--decoder` says.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from fastq._native.records import BATCH_OVERHEAD, BatchHeader, decode_records, iter_headers, verify_crc
from fastq._native.wire import DecodeError
from fastq.cli.output import (
    INT64_MAX,
    Progress,
    Subparsers,
    UsageError,
    count,
    is_whole,
    print_json_stream,
    print_table,
)
from fastq.compression import Codec, decompress

BATCH_START = struct.Struct(">qi")
"""Base offset, and how many bytes of the batch follow."""
PRODUCER_ENTRY = struct.Struct(">qhiqiqiq")
ABORTED_ENTRY = struct.Struct(">hqqqq")
CHUNK_ENTRIES = 4096
"""How many entries of an index are read at once."""
WIDTHS_OF = 100
"""How many rows say how wide a table is."""
DECODERS = ("offsets", "transactions", "share-state", "metadata", "remote-log")

Row = dict[str, Any]
Decode = Callable[[bytes | None, bytes | None], tuple[Any, Any]]


class Fault(ValueError):
    """A place in a file that is not as its format has it."""


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "dump-log",
        "Print a .log, .index, .timeindex, .txnindex or .snapshot file of a partition, or a .checkpoint of the metadata (Kafka's or "
        "fastq's: they are the same).",
        "fastq dump-log data/logs-0/00000000000000000000.log --records --limit 20",
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--records", action="store_true", help="print the records of a .log file too")
    parser.add_argument(
        "--decode",
        action="store_true",
        help="print the records, and those of Kafka's own topics as JSON: offsets and groups, transactions, share groups' state, metadata, "
        "remote log metadata; by the name of the file's directory",
    )
    parser.add_argument(
        "--decoder",
        choices=DECODERS,
        help="--decode of a file whose directory does not say what it holds",
    )
    parser.add_argument("--limit", type=count, metavar="N", help="stop after N batches or entries of a file")
    parser.add_argument("--json", action="store_true", help="one JSON document a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    for path in options.files:
        if path.suffix not in READERS:
            raise UsageError(f"{path}: a name ending in {', '.join(READERS)} is expected")
    return max([_dump(path, options) for path in options.files])


def _dump(path: Path, options: argparse.Namespace) -> int:
    """Print one file; 1 when it has a fault."""
    faults: list[ValueError] = []

    def rows(file: BinaryIO) -> Iterator[Row]:
        try:
            yield from islice(READERS[path.suffix](file, path, options), options.limit)
        except Fault as error:
            faults.append(error)

    with path.open("rb") as file:
        if options.json:
            print_json_stream(
                {"file": str(path)}, "entries", rows(file), lambda: {"fault": str(faults[0]) if faults else None}
            )
            return len(faults)
        print(path)
        found = rows(file)
        first = next(found, None)
        if first is not None:
            print_table(list(first), _cells(first, found), widths_of=WIDTHS_OF)
    for fault in faults:
        print(f"FAULT {path}: {fault}")
    return len(faults)


def _cells(first: Row, others: Iterator[Row]) -> Iterator[list[Any]]:
    yield [_cell(value) for value in first.values()]
    for row in others:
        yield [_cell(value) for value in row.values()]


def _cell(value: Any) -> Any:
    """What a table shows of keys, values and headers; JSON has them whole."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, tuple | list):
        return " ".join(f"{key}={_cell(data)}" for key, data in value) or None
    return value


# -- segments


def read_log(file: BinaryIO, path: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Batches of a segment (or its records with `--records`); raises Fault at the first bad one."""
    decode = _decoder(path, options)
    size = os.fstat(file.fileno()).st_size
    # Lines on the terminal are progress enough.
    progress = Progress("bytes read", size, shown=not sys.stdout.isatty())
    try:
        for position, data, header in _batches(file, size):
            progress.update(position)
            if not verify_crc(data):
                raise Fault(f"the batch at position {position} (base offset {header.base_offset}) fails its checksum")
            try:
                if decode is not None:
                    yield from _decoded(data, header, decode)
                elif options.records:
                    yield from _records(data, header)
                else:
                    yield _batch(position, header)
            except DecodeError as error:
                raise Fault(f"the batch at position {position} (base offset {header.base_offset}): {error}") from None
    finally:
        progress.close()


def _decoder(path: Path, options: argparse.Namespace) -> Decode | None:
    """How the records are to be decoded; None where they are not."""
    if not options.decode and options.decoder is None:
        return None
    from fastq.cli.internal_records import DECODERS as KNOWN
    from fastq.cli.internal_records import as_bytes, decoder_for

    if options.decoder is not None:
        return KNOWN[options.decoder].decode
    if path.suffix == ".checkpoint":  # which only the metadata has
        return KNOWN["metadata"].decode
    found = decoder_for(path.absolute().parent.name.rpartition("-")[0])
    return as_bytes if found is None else found.decode


def _batches(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes, BatchHeader]]:
    """Each batch with where it begins. Raises Fault where there is none."""
    position = 0
    while position < size:
        start = file.read(BATCH_START.size)
        length = BATCH_START.unpack(start)[1] if len(start) == BATCH_START.size else -1
        whole = BATCH_START.size + length
        if not BATCH_OVERHEAD <= whole <= size - position:
            raise Fault(f"{size - position} bytes from position {position} on are no whole batch")
        data = start + file.read(length)
        try:
            found = next(iter_headers(data), None)
        except DecodeError as error:
            raise Fault(f"the batch at position {position}: {error}") from None
        if found is None:  # the file has become shorter meanwhile
            raise Fault(f"{len(data)} bytes from position {position} on are no whole batch")
        yield position, data, found[1]
        position += whole


def _batch(position: int, header: BatchHeader) -> Row:
    marks = [("transactional", header.is_transactional), ("control", header.is_control)]
    return {
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "bytes": header.size_bytes,
        "codec": Codec(header.codec).name.lower(),
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "log-append" if header.timestamp_type else "create",
        "leader_epoch": header.partition_leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "marks": ",".join(name for name, set_ in marks if set_) or None,
    }


def _records(data: bytes, header: BatchHeader) -> Iterator[Row]:
    for record in decode_records(data, 0, decompress):
        yield {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": record.key,
            "value": record.value,
            "headers": record.headers,
            "control": header.is_control,
        }


def _decoded(data: bytes, header: BatchHeader, decode: Decode) -> Iterator[Row]:
    from fastq.cli.internal_records import decode_control

    read = decode_control if header.is_control else decode
    for row in _records(data, header):
        key, value = read(row["key"], row["value"])
        yield {**row, "key": key, "value": value}


# -- indexes and states of producers


def read_offset_index(file: BinaryIO, path: Path, options: argparse.Namespace) -> Iterator[Row]:
    base = _base_offset(path)
    for offset, position in _laid_out(file, struct.Struct(">ii")):
        yield {"offset": base + offset, "position": position}


def read_time_index(file: BinaryIO, path: Path, options: argparse.Namespace) -> Iterator[Row]:
    base = _base_offset(path)
    for timestamp, offset in _laid_out(file, struct.Struct(">qi")):
        yield {"timestamp_ms": timestamp, "offset": base + offset}


def read_aborted(file: BinaryIO, path: Path, options: argparse.Namespace) -> Iterator[Row]:
    """The aborted transactions whose markers lie in a segment (Kafka's TransactionIndex)."""
    _base_offset(path)
    names = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
    for number, entry in enumerate(_entries(file, ABORTED_ENTRY)):
        if entry[0] != 0:
            raise Fault(f"entry {number} has version {entry[0]}, not 0")
        yield dict(zip(names, entry, strict=True))


def _base_offset(path: Path) -> int:
    """What the entries of an index count from."""
    if not is_whole(path.stem, INT64_MAX):
        raise Fault("the name of an index is the first offset of its segment, as 00000000000000000000.index")
    return int(path.stem)


def _laid_out(file: BinaryIO, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
    """Entries up to the zeros that a running broker has laid out ahead."""
    for number, entry in enumerate(_entries(file, layout)):
        if number and not any(entry):
            return
        yield entry


def _entries(file: BinaryIO, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
    size = os.fstat(file.fileno()).st_size
    if size % layout.size:
        raise Fault(f"{size} bytes are no multiple of an entry's {layout.size}")
    while data := file.read(layout.size * CHUNK_ENTRIES):
        yield from layout.iter_unpack(data[: len(data) - len(data) % layout.size])


def read_snapshot(file: BinaryIO, path: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Producers of a `.snapshot`: version 2, crc 4, count 4, then 46 bytes each (Kafka's ProducerStateManager)."""
    size = os.fstat(file.fileno()).st_size
    if size < 10:
        raise Fault(f"{size} bytes are no producer snapshot, which begins with 10")
    version, _, producers = struct.unpack(">hIi", file.read(10))
    if version != 1 or size != 10 + producers * PRODUCER_ENTRY.size:
        raise Fault(f"version {version} with {producers} producers in {size} bytes is no producer snapshot")
    names = "producer_id producer_epoch last_sequence last_offset offset_delta timestamp_ms coordinator_epoch first_txn_offset"
    while data := file.read(PRODUCER_ENTRY.size * CHUNK_ENTRIES):
        for entry in PRODUCER_ENTRY.iter_unpack(data):
            yield dict(zip(names.split(), entry, strict=True))


READERS = {
    ".log": read_log,
    ".checkpoint": read_log,
    ".index": read_offset_index,
    ".timeindex": read_time_index,
    ".txnindex": read_aborted,
    ".snapshot": read_snapshot,
}
