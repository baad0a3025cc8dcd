"""The `.txnindex` file of a segment: the aborted transactions whose markers lie in it. Absent where there are none.

An entry has 34 bytes, big-endian:
    0  version 2 (0)    2  producer id 8    10  first offset 8    18  last offset 8 (the marker's)    26  last stable offset 8
Entries are in the order of their markers. One that makes no sense is never passed over: what it stood for would be read as committed. A
load makes such a file again from the segment, and so does a read that meets it. Source: TransactionIndex, AbortedTxn.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from fastq.values import NamedTuple

from .files import READ_WRITE, READ_WRITE_CREATE, FileHandle, Files
from .producer_state import INT32_MAX, CompletedTransaction
from .scan import NO_UPPER, CorruptSegment

_ENTRY = struct.Struct(">hqqqq")
_MARKER = struct.Struct(">hqqq")  # of it, up to the marker
ENTRY_BYTES: Final = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """An aborted transaction; `last_stable_offset` is the LSO once it had ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def damage(data: bytes, path: str, base_offset: int) -> CorruptSegment | None:
    """What is wrong with a file's bytes, None for nothing; `base_offset` is its segment's."""
    before = base_offset - 1
    for at in range(0, len(data), ENTRY_BYTES):
        if at + ENTRY_BYTES > len(data):
            return CorruptSegment(path, at, f"an entry has {ENTRY_BYTES} bytes, {len(data) - at} are there")
        version, _, first, last, _ = _ENTRY.unpack_from(data, at)
        if problem := _problem(version, first, last, before):
            return CorruptSegment(path, at, problem)
        before = last
    return None if data else CorruptSegment(path, 0, "the file is empty, one without aborted transactions is not there")


def _problem(version: int, first: int, last: int, before: int) -> str:
    """What is wrong with an entry behind one whose marker lies at `before`."""
    if version != 0:
        return f"the entry has version {version}, expected 0"
    if last <= first or last <= before:
        return f"the transaction from {first} to {last} cannot follow one that ended at {before}"
    return ""


def read_whole(files: Files, path: str, base_offset: int) -> list[AbortedTransaction]:
    """All entries of a file, none when it is absent. Raises OSError, CorruptSegment."""
    try:
        data = files.read_file(path)
    except FileNotFoundError:
        return []
    if (problem := damage(data, path, base_offset)) is not None:
        raise problem
    return [AbortedTransaction(*_ENTRY.unpack_from(data, at)[1:]) for at in range(0, len(data), ENTRY_BYTES)]


def entries_from(
    files: Files, path: str, base_offset: int, offset: int, end_offset: int = NO_UPPER
) -> list[AbortedTransaction]:
    """What a damaged file still says of aborted transactions whose markers lie at `offset` or above, and below `end_offset`: the entries
    that make sense, and can follow the one before. None when it is absent. Raises OSError."""
    try:
        data = files.read_file(path)
    except FileNotFoundError:
        return []
    return [entry for _, entry in _sensible(data, base_offset, offset, end_offset)]


def _sensible(data: bytes, base_offset: int, offset: int, end_offset: int) -> Iterator[tuple[int, AbortedTransaction]]:
    """Such entries of a file's bytes, with where each lies."""
    before = max(base_offset, offset) - 1
    for at in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
        version, producer_id, first, last, stable = _ENTRY.unpack_from(data, at)
        sensible = producer_id >= 0 and first >= 0 and 0 <= stable <= last + 1 and last < end_offset
        if sensible and last - base_offset <= INT32_MAX and not _problem(version, first, last, before):
            yield at, AbortedTransaction(producer_id, first, last, stable)
            before = last


def known_to(files: Files, path: str, base_offset: int, end_offset: int) -> int:
    """The offset up to which a damaged file tells of all aborted transactions: that of the last marker before the damage, also of an entry
    that is cut off behind it. Markers lie below `end_offset`. Raises OSError."""
    before = base_offset - 1
    try:
        data = files.read_file(path)
    except FileNotFoundError:
        return before
    for at in range(0, len(data) - _MARKER.size + 1, ENTRY_BYTES):
        version, _, first, last = _MARKER.unpack_from(data, at)
        if last >= end_offset or last - base_offset > INT32_MAX or _problem(version, first, last, before):
            break
        before = last
    return before


def find(data: bytes, path: str, first_offset: int, upper_offset: int) -> tuple[list[AbortedTransaction], bool]:
    """From a file's bytes, the transactions with records at or above `first_offset` and below `upper_offset`, and whether these are all
    that there can be: else the files of later segments may hold more. Raises CorruptSegment.

    Source: TransactionIndex.collectAbortedTxns.
    """
    found: list[AbortedTransaction] = []
    count = len(data) // ENTRY_BYTES
    # In the order of the markers: those that end before the range are passed over unseen.
    start = bisect_left(
        range(count), first_offset, key=lambda number: _ENTRY.unpack_from(data, number * ENTRY_BYTES)[3]
    )
    before = first_offset - 1
    for number in range(start, count):
        version, producer_id, first, last, stable = _ENTRY.unpack_from(data, number * ENTRY_BYTES)
        if problem := _problem(version, first, last, before):
            raise CorruptSegment(path, number * ENTRY_BYTES, problem)
        before = last
        if first < upper_offset:
            found.append(AbortedTransaction(producer_id, first, last, stable))
        if stable >= upper_offset:
            return found, True
    return found, False


def encode(entries: Iterable[tuple[int, int, int, int]]) -> bytes:
    """The bytes of a file with these entries."""
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def encode_completed(transactions: Iterable[CompletedTransaction]) -> bytes:
    """The same of transactions that have been aborted."""
    return encode((one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset) for one in transactions)


def append_entry(files: Files, path: str, transaction: CompletedTransaction, position: int) -> None:
    """Write an aborted transaction at `position`, where the whole entries end. Raises OSError."""
    handle = FileHandle(files, path, READ_WRITE_CREATE)
    files.write_all(handle.fd, encode_completed([transaction]), position)


def truncate(files: Files, path: str, end_offset: int, base_offset: int) -> bool:
    """Drop the entries whose marker lies at or above `end_offset`; whether a file is left, which has to be synced. One that is damaged
    stays damaged, and of its size, which needs no room: what cannot be read in it must not be forgotten. Raises OSError."""
    try:
        entries = read_whole(files, path, base_offset)
    except CorruptSegment:
        if entries_from(files, path, base_offset, end_offset):
            data = files.read_file(path)
            left = bytearray(len(data))
            for at, _ in _sensible(data, base_offset, base_offset, end_offset):
                left[at : at + ENTRY_BYTES] = data[at : at + ENTRY_BYTES]
            handle = FileHandle(files, path, READ_WRITE)
            files.write_all(handle.fd, left, 0)
        return True
    if not entries:
        return False
    keep = [entry for entry in entries if entry.last_offset < end_offset]
    if not keep:
        files.remove_if_exists(path)
        return False
    handle = FileHandle(files, path, READ_WRITE_CREATE)
    files.truncate(handle.fd, len(keep) * ENTRY_BYTES)
    return True
