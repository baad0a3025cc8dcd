"""One round of compaction over one log, from files to files: what the cleaner's worker does, apart from being a process.

Rules
- Segments are only read. The round's files are `<offset>.log.cleaned` and so on, beside them, each synced before the round ends;
  whoever asked for the round puts them in place (see cleaner_swap), or they are removed: here after an error, else with the next load.
- Memory is bounded by the map's bytes, a few buffers, and the largest batch, unpacked where it is compressed.
- Consecutive segments become one as long as their sizes, as they were, fit into a segment, and their indexes into an index.
Source: Cleaner.doClean, buildOffsetMap, groupSegmentsBySize, cleanSegments.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from fastq._native.cleaned_segment import SegmentWriter
from fastq._native.compaction import BatchFilter, OldFormat, TransactionFilter, index_batches
from fastq._native.offset_map import OffsetMap
from fastq._native.wire import DecodeError
from fastq.errors import MissingPackage
from fastq.values import Value

from . import txn_index
from .files import READ, READ_WRITE_CREATE, FileHandle, Files
from .scan import CorruptSegment
from .segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    INT32_MAX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_file_name,
)
from .txn_index import AbortedTransaction

_PIECE_BYTES: Final = 8 << 20
"""Written data goes to the disk in pieces, one behind the other, so that it never has much of it to write while a broker appends."""
_PAUSE_S: Final = 0.0001
"""A pause after each buffer of some ms of work: who waits for the processor has it then, which a low priority alone does not say."""
_SLEEP_S_MIN: Final = 0.01
_SLEEP_S_MAX: Final = 0.5
_LENGTH_END: Final = 12  # a batch's offset and length, which say how long it is


class UncleanableLog(Exception):
    """A log that cannot be compacted, as its records cannot be read or must not be rewritten: file, place and reason."""


class DamagedAborts(Exception):
    """A transaction index that is not whole: aborted records would be taken for committed ones. It can be made again from its segment,
    which begins at `base_offset`."""

    def __init__(self, base_offset: int, reason: str) -> None:
        super().__init__(reason)
        self.base_offset = base_offset


class CleaningJob(Value, kw_only=True):
    """A round of compaction: all that the worker must know. Times in ms, sizes in bytes.

    `segments` are (base offset, size) of the log's segments from its first one up to `upper_offset`, where the next one begins.
    Below `dirty_offset` no key is twice. `aborts` are the segments whose transaction indexes may tell of aborted transactions there, with
    the bytes that such a file has at least. `last_offsets` are (producer id, last offset of its data or -1, epoch).
    """

    directory: str
    segments: Sequence[tuple[int, int]]
    dirty_offset: int
    upper_offset: int
    aborts: Sequence[tuple[int, int]]
    last_offsets: Sequence[tuple[int, int, int]]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    map_load_factor: float
    buffer_bytes: int
    bytes_per_second_max: float

    def encode(self) -> str:
        return json.dumps({name: getattr(self, name) for name in type(self)._fields})

    @classmethod
    def decode(cls, text: str) -> CleaningJob:
        return cls(**json.loads(text))

    def end_of(self, number: int) -> int:
        """Where the segment of that number ends: the next one's base offset."""
        return self.segments[number + 1][0] if number + 1 < len(self.segments) else self.upper_offset


@dataclass
class CleaningResult:
    """What a round has made. `groups` are the base offsets of the segments that one cleaned segment, with the first's name, replaces;
    `made` are the sizes of the files of each of these, by their suffixes.

    Records below `end_offset` are compacted now.
    """

    end_offset: int = 0
    groups: list[list[int]] = field(default_factory=list)
    made: list[dict[str, int]] = field(default_factory=list)
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    keyless_records: int = 0
    keys: int = 0
    seconds: float = 0.0

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> CleaningResult:
        return cls(**json.loads(text))


class Throttle:
    """Keeps the bytes that pass at or below a rate, by sleeping. `sleep` and `now` are for tests."""

    def __init__(
        self,
        bytes_per_second_max: float,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = bytes_per_second_max
        self._sleep = sleep
        self._now = now
        self._free_at = now()

    def passed(self, size: int, check: Callable[[], None]) -> None:
        """Account for bytes that were read or written; `check` is called now and then while it sleeps, and may end that."""
        now = self._now()
        self._free_at = max(self._free_at, now) + size / self._rate
        while (left := self._free_at - now) > _SLEEP_S_MIN:
            check()
            self._sleep(min(left, _SLEEP_S_MAX))
            now = self._now()

    def pause(self) -> None:
        """Let go of the processor."""
        self._sleep(_PAUSE_S)


class Cleaning:
    """A round while it runs. `check` is called between reads; what it raises ends the round."""

    def __init__(self, job: CleaningJob, files: Files, check: Callable[[], None], throttle: Throttle) -> None:
        self.job = job
        self.result = CleaningResult()
        self._files = files
        self._check = check
        self._throttle = throttle
        self._made: list[str] = []

    def run(self) -> CleaningResult:
        """Do the round. Raises UncleanableLog, DamagedAborts, OSError, MemoryError; then nothing is left of it."""
        started = time.monotonic()
        job, result = self.job, self.result
        try:
            self.remove_leftovers()
            aborted = self._aborted_transactions()
            offsets = self._build_map(aborted)
            result.keys = len(offsets)
            result.end_offset = offsets.latest_offset + 1
            transactions = TransactionFilter(aborted)
            batches = BatchFilter(
                offsets,
                transactions,
                now_ms=job.now_ms,
                delete_retention_ms=job.delete_retention_ms,
                upper_offset=job.upper_offset,
                last_offsets={producer_id: (last, epoch) for producer_id, last, epoch in job.last_offsets},
            )
            for group in self._groups(result.end_offset):
                result.made.append(self._clean_group(group, batches, transactions))
                result.groups.append([job.segments[number][0] for number in group])
        except BaseException:
            for path in self._made:
                self._files.remove_if_exists(path)
            raise
        result.records_read = batches.records_read
        result.records_kept = batches.records_kept
        result.keyless_records = batches.keyless_records
        result.seconds = time.monotonic() - started
        return result

    def remove_leftovers(self) -> None:
        """Remove what a round before this one has left: recovery takes a leftover for a sign that a swap is not complete."""
        for name in self._files.listdir(self.job.directory):
            if name.endswith(CLEANED_SUFFIX):
                self._files.remove_if_exists(os.path.join(self.job.directory, name))

    # -- the map

    def _aborted_transactions(self) -> list[AbortedTransaction]:
        found: list[AbortedTransaction] = []
        for base, least in self.job.aborts:
            path = self._path(base, TXN_INDEX_SUFFIX)
            try:
                entries = txn_index.read_whole(self._files, path, base)
            except CorruptSegment as error:
                raise DamagedAborts(base, str(error)) from error
            size = len(entries) * txn_index.ENTRY_BYTES
            if size < least:
                raise DamagedAborts(base, f"{path}: the file has {size} bytes, {least} were written")
            found += entries
        return found

    def _build_map(self, aborted: Sequence[AbortedTransaction]) -> OffsetMap:
        """The latest offset of each key in the dirty part, as far as the map's memory goes."""
        job = self.job
        offsets = OffsetMap(job.map_bytes, job.map_load_factor)
        dirty = [number for number in range(len(job.segments)) if job.end_of(number) > job.dirty_offset]
        start = job.segments[dirty[0]][0] if dirty else 0
        # Not those that ended before: their producers may have begun, and committed, another transaction since.
        transactions = TransactionFilter(entry for entry in aborted if entry.last_offset >= start)
        for number in dirty:

            def index(data: bytes, position: int) -> tuple[int, bool]:
                return index_batches(offsets, transactions, data, position, job.dirty_offset)

            if not self._walk(number, index):
                break
            offsets.advance(job.end_of(number) - 1)
        return offsets

    def _walk(self, number: int, take: Callable[[bytes, int], tuple[int, bool]]) -> bool:
        """Give a segment's bytes, whole batches at a time, to `take(data, position)`, which answers (bytes taken, whether to stop).

        False when it was stopped. Raises UncleanableLog where the segment cannot be read.
        """
        base, size = self.job.segments[number]
        handle = FileHandle(self._files, self._path(base, LOG_SUFFIX), READ)
        position = 0
        want = self.job.buffer_bytes
        while position < size:
            self._check()
            data = self._files.pread(handle.fd, min(want, size - position), position)
            self._throttle.passed(len(data), self._check)
            self.result.bytes_read += len(data)
            try:
                taken, stop = take(data, position)
            except (DecodeError, OldFormat, OverflowError, MissingPackage) as error:
                raise UncleanableLog(f"{handle.path}: {error}") from error
            self._throttle.pause()
            if stop:
                return False
            position += taken
            want = self.job.buffer_bytes
            if not taken:
                want = self._size_of_batch(handle.path, data, position, size)
        return True

    @staticmethod
    def _size_of_batch(path: str, data: bytes, position: int, size: int) -> int:
        """Bytes of the batch that `data` begins with and does not hold wholly."""
        wanted = _LENGTH_END + int.from_bytes(data[8:_LENGTH_END], "big", signed=True) if len(data) > _LENGTH_END else 0
        if wanted <= len(data) or position + wanted > size:
            raise UncleanableLog(str(CorruptSegment(path, position, "the segment ends inside a batch")))
        return wanted

    # -- segments

    def _groups(self, end_offset: int) -> Iterator[list[int]]:
        """Numbers of the segments that become one, group after group."""
        job = self.job
        group: list[int] = []
        size = index_size = time_index_size = 0
        for number, (base, segment_size) in enumerate(job.segments):
            if base >= end_offset:
                break
            index = self._files.size_bytes(self._path(base, INDEX_SUFFIX))
            time_index = self._files.size_bytes(self._path(base, TIME_INDEX_SUFFIX))
            size, index_size, time_index_size = size + segment_size, index_size + index, time_index_size + time_index
            if group and (
                size > job.segment_bytes
                or max(index_size, time_index_size) > job.segment_index_bytes
                or job.end_of(number) - 1 - job.segments[group[0]][0] > INT32_MAX
            ):
                yield group
                group = []
                size, index_size, time_index_size = segment_size, index, time_index
            group.append(number)
        if group:
            yield group

    def _clean_group(
        self, group: Sequence[int], batches: BatchFilter, transactions: TransactionFilter
    ) -> dict[str, int]:
        """Write the cleaned segment of a group, with its indexes, and sync it all; answers the sizes of the files by their suffixes."""
        base = self.job.segments[group[0]][0]
        writer = SegmentWriter(base, self.job.index_interval_bytes)
        handle = self._create(base, LOG_SUFFIX)
        written = begun = 0

        def spill(least: int) -> None:
            nonlocal written, begun
            if writer.pending_bytes < least:
                return
            data = writer.take()
            self._files.write_all(handle.fd, data, written)
            self._throttle.passed(len(data), self._check)
            written += len(data)
            if written - begun >= _PIECE_BYTES:
                self._write_back(handle.fd, begun, written)
                begun = written

        def clean(data: bytes, position: int) -> tuple[int, bool]:
            taken = batches.feed(data, position, writer)
            spill(self.job.buffer_bytes)
            return taken, False

        for number in group:
            self._walk(number, clean)
        spill(1)
        self.result.bytes_written += written
        self._files.sync_data(handle.fd)
        offset_index, time_index = writer.finish()
        indexes = {INDEX_SUFFIX: offset_index, TIME_INDEX_SUFFIX: time_index}
        kept = transactions.take_kept()
        if kept:
            indexes[TXN_INDEX_SUFFIX] = txn_index.encode(kept)
        for suffix, data in indexes.items():
            self._write(base, suffix, data)
        # The age of a segment whose records have no timestamps, which retention asks for, is that of the latest one.
        last = os.stat(self._path(self.job.segments[group[-1]][0], LOG_SUFFIX))
        os.utime(handle.path, ns=(last.st_atime_ns, last.st_mtime_ns))
        return {LOG_SUFFIX: written, **{suffix: len(data) for suffix, data in indexes.items()}}

    def _write_back(self, fd: int, start: int, end: int) -> None:
        """Have the bytes from `start` to `end` written while the round goes on, and wait for those before."""
        if not self._files.write_range(fd, start, end - start):
            self._files.sync_data(fd)
        elif start:
            self._files.write_range(fd, 0, start, wait=True)

    def _create(self, base: int, suffix: str) -> FileHandle:
        self._check()
        path = self._path(base, suffix) + CLEANED_SUFFIX
        self._made.append(path)
        return FileHandle(self._files, path, READ_WRITE_CREATE | os.O_TRUNC)

    def _write(self, base: int, suffix: str, data: bytes) -> None:
        handle = self._create(base, suffix)
        if data:
            self._files.write_all(handle.fd, data, 0)
        self._files.sync_data(handle.fd)

    def _path(self, base: int, suffix: str) -> str:
        return os.path.join(self.job.directory, offset_file_name(base, suffix))


def clean(
    job: CleaningJob,
    files: Files | None = None,
    check: Callable[[], None] = lambda: None,
    throttle: Throttle | None = None,
) -> CleaningResult:
    """Do one round. Raises UncleanableLog, DamagedAborts, OSError, MemoryError, and what `check` raises; then nothing is left of it."""
    return Cleaning(job, files or Files(), check, throttle or Throttle(job.bytes_per_second_max)).run()
