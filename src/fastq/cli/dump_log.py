"""`fastq dump-log`: what stands in the files of a data directory, without a broker.

Rules: reads only; a corrupt or torn place is reported with its position and everything before it is printed; the
formats are those of the reference in `fastq_broker.log` (Apache Kafka's own).
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from fastq._native.records import BatchHeader, decode_records, iter_headers, verify_crc
from fastq._native.wire import DecodeError
from fastq.cli.output import INT64_MAX, Subparsers, UsageError, count, is_whole, print_json, print_table
from fastq.compression import Codec, decompress

PRODUCER_ENTRY = struct.Struct(">qhiqiqiq")


class Fault(ValueError):
    """A place in a file that is not as its format has it."""


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "dump-log",
        "Print a .log, .index, .timeindex or .snapshot file of a partition (Kafka's or fastq's: they are the same).",
        "fastq dump-log data/logs-0/00000000000000000000.log --records --limit 20",
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--records", action="store_true", help="print the records of a .log file too")
    parser.add_argument("--limit", type=count, metavar="N", help="stop after N batches or entries of a file")
    parser.add_argument("--json", action="store_true", help="one JSON array a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    faults = 0
    for path in options.files:
        reader = READERS.get(path.suffix)
        if reader is None:
            raise UsageError(f"{path}: a name ending in {', '.join(READERS)} is expected")
        rows: list[dict[str, Any]] = []
        fault: ValueError | None = None
        try:
            for row in islice(reader(path, options), options.limit):
                rows.append(row)  # noqa: PERF402  (what came before a fault is kept)
        except (Fault, DecodeError) as error:
            fault = error
        if options.json:
            print_json({"file": str(path), "entries": rows, "fault": str(fault) if fault else None})
        else:
            print(path)
            if rows:
                print_table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows])
        if fault is not None:
            faults += 1
            if not options.json:
                print(f"FAULT {path}: {fault}")
    return 1 if faults else 0


def read_log(path: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Batches of a segment (or its records with `--records`); raises Fault at the first bad one."""
    data = memoryview(path.read_bytes())
    end = 0
    for position, header in iter_headers(data):
        end = position + header.size_bytes
        if not verify_crc(data, position):
            raise Fault(f"the batch at position {position} (base offset {header.base_offset}) fails its checksum")
        if options.records:
            yield from _records(data, position, header)
        else:
            yield _batch(position, header)
    if end < len(data):
        raise Fault(f"{len(data) - end} bytes from position {end} on are no whole batch")


def _batch(position: int, header: BatchHeader) -> dict[str, Any]:
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


def _records(data: memoryview, position: int, header: BatchHeader) -> Iterator[dict[str, Any]]:
    for record in decode_records(data, position, decompress):
        yield {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": record.key,
            "value": record.value,
            "headers": record.headers,
            "control": header.is_control,
        }


def _cell(value: Any) -> Any:
    """What a table shows of keys, values and headers; JSON has them whole."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, tuple):
        return " ".join(f"{key}={_cell(data)}" for key, data in value) or None
    return value


def read_offset_index(path: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    base = _base_offset(path)
    for offset, position in _entries(path, ">ii"):
        yield {"offset": base + offset, "position": position}


def read_time_index(path: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    base = _base_offset(path)
    for timestamp, offset in _entries(path, ">qi"):
        yield {"timestamp_ms": timestamp, "offset": base + offset}


def _base_offset(path: Path) -> int:
    """What the entries of an index count from."""
    if not is_whole(path.stem, INT64_MAX):
        raise Fault("the name of an index is the first offset of its segment, as 00000000000000000000.index")
    return int(path.stem)


def _entries(path: Path, layout: str) -> Iterator[tuple[int, int]]:
    """Entries up to the zeros that a running broker has laid out ahead."""
    data = path.read_bytes()
    size = struct.calcsize(layout)
    if len(data) % size:
        raise Fault(f"{len(data)} bytes are no multiple of an entry's {size}")
    for number, entry in enumerate(struct.iter_unpack(layout, data)):
        if number and not any(entry):
            return
        yield entry


def read_snapshot(path: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Producers of a `.snapshot`: version 2, crc 4, count 4, then 46 bytes each (Kafka's ProducerStateManager)."""
    data = path.read_bytes()
    if len(data) < 10:
        raise Fault(f"{len(data)} bytes are no producer snapshot, which begins with 10")
    version, _, count = struct.unpack_from(">hIi", data)
    if version != 1 or len(data) != 10 + count * PRODUCER_ENTRY.size:
        raise Fault(f"version {version} with {count} producers in {len(data)} bytes is no producer snapshot")
    names = "producer_id producer_epoch last_sequence last_offset offset_delta timestamp_ms coordinator_epoch first_txn_offset"
    for entry in PRODUCER_ENTRY.iter_unpack(data[10:]):
        yield dict(zip(names.split(), entry, strict=True))


READERS = {".log": read_log, ".index": read_offset_index, ".timeindex": read_time_index, ".snapshot": read_snapshot}
