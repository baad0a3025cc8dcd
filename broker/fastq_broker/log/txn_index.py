"""The `.txnindex` file of a segment: the aborted transactions whose markers lie in it. Absent where there are none.

An entry has 34 bytes, big-endian:
    0  version 2 (0)    2  producer id 8    10  first offset 8    18  last offset 8 (the marker's)    26  last stable offset 8
Entries are in the order of their markers. Source: TransactionIndex, AbortedTxn.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from .files import READ_WRITE_CREATE, FileHandle, Files
from .producer_state import CompletedTransaction

_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES: Final = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """An aborted transaction; `last_stable_offset` is the LSO once it had ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def read_entries(files: Files, path: str) -> list[AbortedTransaction]:
    """All entries of a file, none when it is absent; stops at the first that makes no sense. Raises OSError."""
    try:
        data = files.read_file(path)
    except FileNotFoundError:
        return []
    entries: list[AbortedTransaction] = []
    for at in range(0, len(data) - len(data) % ENTRY_BYTES, ENTRY_BYTES):
        version, producer_id, first, last, stable = _ENTRY.unpack_from(data, at)
        if version != 0 or last < first or (entries and last <= entries[-1].last_offset):
            break
        entries.append(AbortedTransaction(producer_id, first, last, stable))
    return entries


def encode(entries: Iterable[tuple[int, int, int, int]]) -> bytes:
    """The bytes of a file with these entries."""
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def append_entry(files: Files, path: str, transaction: CompletedTransaction) -> None:
    """Add an aborted transaction. Raises OSError."""
    entry = _ENTRY.pack(
        0,
        transaction.producer_id,
        transaction.first_offset,
        transaction.last_offset,
        transaction.last_stable_offset,
    )
    size = files.size_bytes(path)
    handle = FileHandle(files, path, READ_WRITE_CREATE)
    files.write_all(handle.fd, entry, size - size % ENTRY_BYTES)


def truncate(files: Files, path: str, end_offset: int) -> bool:
    """Drop the entries whose marker lies at or above `end_offset`; whether there is a file to change. Raises OSError."""
    if not files.size_bytes(path):
        return False
    keep = [entry for entry in read_entries(files, path) if entry.last_offset < end_offset]
    handle = FileHandle(files, path, READ_WRITE_CREATE)
    files.truncate(handle.fd, len(keep) * ENTRY_BYTES)
    return True
