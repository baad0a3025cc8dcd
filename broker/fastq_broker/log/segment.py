"""One segment of a log: its `.log` file, the indexes beside it, and what is remembered about the batches in it.

Rules
- A segment knows nothing of producers, epochs or high watermarks: it stores batches at their offsets and finds them again.
- Files are named by the base offset in 20 digits and opened when first used; the descriptor budget may close them at any time.
- Index entries are made where Kafka makes them (LogSegment.append): before a batch, when more than index.interval.bytes have been
  written since the last one. Recovery's rebuild makes the same ones.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from . import txn_index
from .files import READ_WRITE, READ_WRITE_CREATE, FdBudget, FileHandle, Files, is_shortage
from .log_file import NEVER, LogFile
from .offset_index import OffsetIndex
from .producer_state import CompletedTransaction
from .scan import HEADER_BYTES, CorruptSegment, WildIndex, largest_timestamp_in
from .time_index import NO_TIMESTAMP, TimeIndex

if TYPE_CHECKING:
    from fastq._native.records import BatchHeader

    from .flusher import Flusher
    from .index_rebuild import AbortsRebuild, IndexRebuild

INT32_MAX: Final = (1 << 31) - 1
LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
WRITE_BACK_BYTES: Final = 16 << 20
"""What a follower that catches up writes to a segment before the disk is to begin with it. Left to the kernel, it begins at a tenth of the
memory, and who writes then waits for the disk, who leads other partitions on it too."""


def offset_file_name(offset: int, suffix: str) -> str:
    """Kafka's name of a file that starts at an offset: 20 digits and a suffix."""
    return f"{offset:020d}{suffix}"


class Segment:
    """A segment. Offsets from `base_offset` on, up to the next segment's.

    `max_timestamp` is the largest of the segment (-1: none known), `max_timestamp_offset` the last offset of the batch that has it.
    `indexes_full` asks for a roll. Event-loop thread only.
    """

    __slots__ = (
        "_aborts_bytes",
        "_aborts_crc",
        "_aborts_held",
        "_aborts_torn_at",
        "_bytes_since_index_entry",
        "_files",
        "_first_timestamp",
        "_has_aborts",
        "_index_entries_left",
        "_indexes_made",
        "_timestamps_known",
        "_written_back",
        "aborts_rebuilding",
        "aborts_rebuilt_ms",
        "base_offset",
        "created_ms",
        "directory",
        "doubt",
        "index",
        "index_bytes_max",
        "index_interval_bytes",
        "indexes_full",
        "log",
        "max_timestamp",
        "max_timestamp_offset",
        "name_synced",
        "rebuilding",
        "rebuilt_ms",
        "roll_jitter_ms",
        "roll_ms",
        "time_index",
        "times_tried",
        "times_unchecked",
        "txn_index_unsynced",
        "unwritten_aborts",
    )

    def __init__(
        self,
        files: Files,
        budget: FdBudget,
        directory: str,
        base_offset: int,
        *,
        size: int,
        index_interval_bytes: int,
        index_bytes_max: int,
        created_ms: int,
        roll_ms: int = NEVER,
        roll_jitter_ms: int = 0,
    ) -> None:
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.index_bytes_max = index_bytes_max
        self.indexes_full = False
        self.created_ms = created_ms
        self.roll_ms = roll_ms
        self.roll_jitter_ms = roll_jitter_ms
        self.log = LogFile(files, budget, self.path_of(LOG_SUFFIX), size)
        self.index = OffsetIndex(files, budget, self.path_of(INDEX_SUFFIX), base_offset)
        self.time_index = TimeIndex(files, budget, self.path_of(TIME_INDEX_SUFFIX), base_offset)
        self.doubt: WildIndex | None = None
        """What a search in another thread has found wrong with an index; the next read has the indexes made again."""
        self.rebuilding: IndexRebuild | None = None
        """What makes the indexes again; they have the entries of later appends until then."""
        self._indexes_made = False  # from the batches, by such a one
        self.rebuilt_ms: int | None = None
        """When that was last begun, on the clock of timers."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._timestamps_known = size == 0
        self.times_tried = False
        """Whether somebody has looked who would not wait for the disk."""
        self.times_unchecked = False
        """Whether the largest timestamp comes from the time index, and nobody has looked whether the batches bear it out."""
        self._first_timestamp: int | None = None
        self._bytes_since_index_entry = 0
        self._written_back = size  # up to here the disk was told to begin; -1 while it is being told
        self._index_entries_left = 0  # at least as many can be made before an index is full
        self.name_synced = size > 0
        """Whether the files' names are known to be on disk."""
        self._has_aborts = True  # for all that is known
        self._aborts_bytes = -1 if size else 0  # as many the `.txnindex` has at least; -1 until it has been looked at
        self._aborts_crc = 0  # of its bytes when they were last found whole
        self._aborts_torn_at = -1  # where an entry of this object's begins of which it may have written a part
        self.aborts_rebuilding: AbortsRebuild | None = None
        """What makes the `.txnindex` again; what is to be added to it waits in `unwritten_aborts`."""
        self.aborts_rebuilt_ms: int | None = None
        self._aborts_held = False  # whether the file is damaged, and `unwritten_aborts` are all of them
        self.txn_index_unsynced = False
        """Whether the `.txnindex` was changed since it was last synced."""
        self.unwritten_aborts: list[CompletedTransaction] = []
        """What a shortage has kept from the `.txnindex`, written before it is synced, or its damage, until it is made again."""

    def __repr__(self) -> str:
        return f"Segment({self.log.path!r}, size={self.log.size})"

    @property
    def size(self) -> int:
        return self.log.size

    def moved(self, directory: str) -> None:
        """The files lie in a directory of another name now."""
        self.directory = directory
        self.log.path = self.path_of(LOG_SUFFIX)
        self.index.path = self.path_of(INDEX_SUFFIX)
        self.time_index.path = self.path_of(TIME_INDEX_SUFFIX)

    def path_of(self, suffix: str) -> str:
        return os.path.join(self.directory, offset_file_name(self.base_offset, suffix))

    def create_files(self, preallocate_bytes: int = 0) -> None:
        """Make the files of a new, empty segment. Raises OSError.

        Those of an older one of its name may lie there, whose removal a crash has cut short: its aborts go before there is a `.log`."""
        self.index.start_empty()
        self.time_index.start_empty()
        if os.access(aborts := self.path_of(TXN_INDEX_SUFFIX), os.F_OK):
            self._files.unlink(aborts)
        handle = self.log.handle(READ_WRITE_CREATE)
        self.log.size = 0
        left_bytes = os.fstat(handle.fd).st_size
        if left_bytes:  # ext4 writes a file out at its close that was cut to nothing, an empty one too
            self.log.truncate(0)
        if preallocate_bytes and self._files.preallocate(self.log.handle().fd, preallocate_bytes):
            self.log.reserved = NEVER  # it has its room, which what fails to get more would give back
        self.index.trim()
        self.time_index.trim()
        self._timestamps_known = True

    def remove_files(self) -> None:
        """Leave nothing of a segment whose files could not all be made. Raises OSError."""
        self.release()
        for path in (self.log.path, self.index.path, self.time_index.path):
            self._files.remove_if_exists(path)

    # -- appending

    def append(self, data: bytes | bytearray | memoryview, size: int, last_offset: int, max_timestamp: int) -> int:
        """Write one whole batch of `size` bytes at the end and answer where it begins.

        Raises OSError; then the file may hold a part of the batch past `size`, which the caller has to cut off.
        The batch must fit: see `can_hold`.
        """
        log = self.log
        position = log.size
        handle = log._handle
        if handle is None:
            handle = log.handle()
        if self.time_index.last_timestamp is None:
            self._look_up_times()
        log.recently_used = True
        self._files.write_all(handle.fd, data, position)
        log.size = position + size
        self.note_batch(position, size, last_offset, max_timestamp)
        return position

    def _look_up_times(self) -> None:
        """Read what the batches that come are compared with, before one is written: where it cannot be read, nothing is left of that.
        Raises OSError."""
        if not self._timestamps_known:
            self.load_max_timestamp()
        self.time_index.know_last()

    def append_run(self, data: memoryview, headers: Sequence[BatchHeader], *, gently: bool = False) -> None:
        """Write whole batches that follow each other at the end, as one, or `gently`. Raises OSError as `append` does. See `index_room`."""
        log = self.log
        position = log.size
        if self.time_index.last_timestamp is None:
            self._look_up_times()
        write = self._files.write_pieces if gently else self._files.write_all
        write(log.handle().fd, data, position)
        log.size = position + len(data)
        for header in headers:
            size = header.size_bytes
            self.note_batch(position, size, header.last_offset, header.max_timestamp)
            position += size

    def begin_write_back(self, flusher: Flusher) -> None:
        """Have the disk begin with what was appended, when that is much: one range at a time, in a thread that may wait for it."""
        begin, end = self._written_back, self.log.size
        if begin < 0 or end - begin < WRITE_BACK_BYTES:
            return

        def told(error: OSError | None) -> None:
            # What a truncation takes, and writes again below this, the kernel writes back in its own time.
            self._written_back = end

        with contextlib.suppress(OSError, MemoryError):  # what cannot be begun now is begun with the next append
            flusher.write_back(self.log.handle(), begin, end - begin, told)
            self._written_back = -1

    @property
    def index_room(self) -> int:
        """How many batches may be appended before `indexes_full` is to be asked again; one at least."""
        if self._index_entries_left <= 0:
            self.update_indexes_full()
        return max(1, self._index_entries_left)

    def note_batch(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Remember a batch that lies in the file: timestamps, and an index entry where one is due."""
        if max_timestamp > self.max_timestamp:
            if not self._timestamps_known:
                self.load_max_timestamp()
            if max_timestamp > self.max_timestamp:
                self.max_timestamp = max_timestamp
                self.max_timestamp_offset = last_offset
        if not position:
            self._first_timestamp = max_timestamp
        if self._bytes_since_index_entry > self.index_interval_bytes:
            self.index.append(last_offset, position)
            self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)
            self._bytes_since_index_entry = 0
            self._index_entries_left -= 1
            if self._index_entries_left <= 0:
                self.update_indexes_full()
        self._bytes_since_index_entry += size

    def load_max_timestamp(self) -> None:
        """Take the largest timestamp of a segment that was closed or rolled from its time index."""
        try:
            timestamp, offset = self.time_index.last()
        except WildIndex as error:
            self.doubt = error
            timestamp, offset = NO_TIMESTAMP, self.base_offset
        self._timestamps_known = self.times_unchecked = True
        if timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = timestamp, offset

    def largest_timestamp(self) -> int:
        """Largest timestamp of the records; the file's modification time when no record has one (as Kafka)."""
        if not self._timestamps_known:
            self.load_max_timestamp()
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return int(os.stat(self.log.path).st_mtime * 1000)

    def first_timestamp(self) -> int:
        """Largest timestamp of the first batch, which time-based rolling counts from; -1 when there is none."""
        if self._first_timestamp is None:
            if not self.log.size:
                return NO_TIMESTAMP
            data = self._files.pread(self.log.handle().fd, HEADER_BYTES, 0)
            self._first_timestamp = largest_timestamp_in(data)
        return self._first_timestamp

    def forget_indexes(self, position: int, offset: int) -> None:
        """Drop index entries of batches at or above `position`, whose first offset is `offset`, to note those batches again.

        Past them the files may hold anything, as after a loss of power. Who makes them again does so for nothing.
        """
        self.rebuilding = self.doubt = None
        self.index.truncate_entries(self.index.trusted_count(position, offset) if position else 0)
        self.time_index.truncate_entries(self.time_index.trusted_count(offset) if position else 0)
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        self._timestamps_known = True
        self._first_timestamp = None
        # An entry is due for the batch at `position`, if there was one before.
        self._bytes_since_index_entry = self.index_interval_bytes + 1 if position else 0

    def is_indexed_sparsely(self, walk_bytes: int) -> bool:
        """Whether so long a walk says that entries are missing, which were not made again yet."""
        return not self._indexes_made and self.index_interval_bytes <= walk_bytes // 2

    def expect_entry(self) -> None:
        """Have an index entry made for the next batch that is noted."""
        self._bytes_since_index_entry = self.index_interval_bytes + 1

    def begin_indexes_anew(self, rebuild: IndexRebuild) -> None:
        """Have no index entries but those of batches that come from now on, until `take_indexes` has those before them."""
        self.rebuilding, self.doubt = rebuild, None
        self.index.start_empty()
        self.time_index.start_empty()
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self._timestamps_known, self.times_unchecked = True, False

    def take_indexes(self, made: Segment, *, closed: bool) -> None:
        """Put the entries that were made again in the place of the wild ones; `closed` says whether no batches follow. Raises OSError,
        WildIndex where this file is wild again."""
        self.rebuilding, self._indexes_made = None, True
        if made.max_timestamp >= self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = made.max_timestamp, made.max_timestamp_offset
        self.index.put_before(made.index)
        self.time_index.put_before(made.time_index)
        if closed:
            self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)
        self.index.trim_if_room()
        self.time_index.trim_if_room()
        self.update_indexes_full()

    # -- aborted transactions

    def note_abort(self, transaction: CompletedTransaction) -> None:
        """Add an aborted transaction whose marker lies in this segment to its `.txnindex`. Raises OSError, but for a shortage: then it
        waits in `unwritten_aborts`."""
        self.txn_index_unsynced = self._has_aborts = True
        self.unwritten_aborts.append(transaction)
        try:
            self.write_aborts()
        except OSError as error:
            if not is_shortage(error):
                raise

    def write_aborts(self) -> None:
        """Write the aborted transactions that a shortage has kept from the `.txnindex`. Raises OSError.

        One that somebody else has torn, or emptied, stays so, and they wait: with them it would be taken for whole."""
        if self._aborts_held:
            self.take_aborts(())
        path = self.path_of(TXN_INDEX_SUFFIX)
        while self.unwritten_aborts and self.aborts_rebuilding is None:
            size = self._files.size_bytes(path)
            end = size - size % txn_index.ENTRY_BYTES
            if end != self._aborts_torn_at and (size != end or (not size and os.access(path, os.F_OK))):
                return
            self._aborts_torn_at = end
            txn_index.append_entry(self._files, path, self.unwritten_aborts[0], end)
            self._aborts_torn_at = -1
            del self.unwritten_aborts[0]
            if self._aborts_bytes >= 0:
                self._aborts_bytes += txn_index.ENTRY_BYTES

    def expect_aborts(self) -> None:
        """A `.txnindex` is there that nobody has looked into; of an empty segment none is expected."""
        self._aborts_bytes = -1

    @property
    def aborts_bytes(self) -> int:
        """As many the `.txnindex` has at least; below 0 where nobody has looked."""
        return self._aborts_bytes

    def aborted(self, first_offset: int, upper_offset: int) -> tuple[list[txn_index.AbortedTransaction], bool]:
        """What txn_index.find says of the `.txnindex` file and of what waits for it; where there is none, that is remembered.

        Raises CorruptSegment where the file is not whole, or has less than was written, OSError.
        """
        if not self._has_aborts:
            return [], False
        path = self.path_of(TXN_INDEX_SUFFIX)
        try:
            data = b"" if self._aborts_held else self._files.read_file(path)
            if not data and not self._aborts_held and self._aborts_torn_at:  # at 0: an entry of its own had no room
                raise CorruptSegment(path, 0, "the file is empty")
        except FileNotFoundError:
            data = b""
        self._check_aborts(data, path)
        if self.unwritten_aborts:
            data += txn_index.encode_completed(self.unwritten_aborts)
        elif not data:
            self._has_aborts = False
            return [], False
        return txn_index.find(data, path, first_offset, upper_offset)

    def _check_aborts(self, data: bytes, path: str) -> None:
        """See that the bytes of the `.txnindex` are whole. Raises CorruptSegment."""
        if len(data) < self._aborts_bytes:
            raise CorruptSegment(path, len(data), f"the file has {len(data)} bytes, {self._aborts_bytes} were written")
        crc = zlib.crc32(data)
        if data and crc != self._aborts_crc:
            problem = txn_index.damage(data, path, self.base_offset)
            if problem is not None:
                raise problem
            self._aborts_crc = crc
        self._aborts_bytes = len(data)

    def begin_aborts_anew(self, rebuild: AbortsRebuild) -> None:
        """Leave the `.txnindex` to `take_aborts`. Until then it is such that a load makes it again, too. Raises OSError."""
        self._spoil_aborts(self._files.size_bytes(self.path_of(TXN_INDEX_SUFFIX)))
        self.aborts_rebuilding = rebuild

    def _spoil_aborts(self, size: int) -> None:
        """Have a `.txnindex` of so many bytes end within an entry, which nobody takes for whole. Raises OSError."""
        self._aborts_torn_at = -1
        if not size % txn_index.ENTRY_BYTES:
            handle = FileHandle(self._files, self.path_of(TXN_INDEX_SUFFIX), READ_WRITE_CREATE)
            self._files.write_all(handle.fd, b"\0", size)

    def hold_aborts(self, made: Sequence[CompletedTransaction]) -> None:
        """Put the aborted transactions that a load has found again in the place of the damaged file, on disk. At a shortage it stays, and
        they wait in `unwritten_aborts`. Raises OSError."""
        self.unwritten_aborts = [*made]
        self._aborts_held = self.txn_index_unsynced = self._has_aborts = True
        self._take_held()

    def _take_held(self) -> None:
        """Put them there if there is room by now. Raises OSError."""
        try:
            self.take_aborts(())
        except OSError as error:
            if not is_shortage(error):
                raise

    def take_aborts(self, made: Sequence[CompletedTransaction], beside: str | None = None) -> None:
        """Put the aborted transactions that were found again, and what waits behind them, in the place of the damaged file, on disk: a loss
        of power must not leave a part, which may look whole. `made` alone are in the file `beside` already, if one is given. Raises
        OSError: the damaged one stays then."""
        known = made[-1].last_offset if made else -1
        waiting = [one for one in self.unwritten_aborts if one.last_offset > known]
        path = self.path_of(TXN_INDEX_SUFFIX)
        data = txn_index.encode_completed([*made, *waiting])
        if beside is not None and not waiting:
            self._files.rename(beside, path)
        elif data:
            self._files.write_file(path, data, sync=True)
        else:
            self._files.remove_if_exists(path)
        self.aborts_rebuilding = None
        self._aborts_held = False
        self.unwritten_aborts = []
        self._aborts_bytes = len(data)
        self._aborts_torn_at = -1
        self.txn_index_unsynced = self._has_aborts = bool(data)

    def forget_aborts(self, offset: int) -> None:
        """Drop the aborted transactions whose markers lie at or above `offset`; a damaged file stays so, to be made again when it is looked
        at. Raises OSError."""
        self.aborts_rebuilding = self.aborts_rebuilt_ms = None
        path = self.path_of(TXN_INDEX_SUFFIX)
        size = self._files.size_bytes(path)
        torn_at, self._aborts_torn_at = self._aborts_torn_at, -1
        if 0 <= torn_at <= size < torn_at + txn_index.ENTRY_BYTES:  # its own doing, and no damage
            size = torn_at
            if size:
                handle = FileHandle(self._files, path, READ_WRITE)
                self._files.truncate(handle.fd, size)
            else:
                self._files.remove_if_exists(path)
        if size < self._aborts_bytes:
            self._spoil_aborts(size)
        self._aborts_bytes = -1
        self.unwritten_aborts = [one for one in self.unwritten_aborts if one.last_offset < offset]
        if self._aborts_held:
            self._take_held()
        left = self._aborts_held or txn_index.truncate(self._files, path, offset, self.base_offset)
        self.txn_index_unsynced = left or bool(self.unwritten_aborts)

    # -- rolling

    def apply_limits(self, *, roll_ms: int, index_bytes_max: int, index_interval_bytes: int) -> None:
        """Use other limits from now on."""
        self.roll_ms = roll_ms
        self.index_bytes_max = index_bytes_max
        self.index_interval_bytes = index_interval_bytes
        self._index_entries_left = 0

    def time_to_roll(self, now_ms: int, max_timestamp: int) -> bool:
        """Whether segment.ms (less the jitter) has passed, by the clock of the records or, without timestamps, by the broker's."""
        if not self.log.size:
            return False
        first = self._first_timestamp
        if first is None:
            first = self.first_timestamp()
        waited = max_timestamp - first if first >= 0 else now_ms - self.created_ms
        return waited > self.roll_ms - self.roll_jitter_ms

    @property
    def indexes_unsynced(self) -> bool:
        """Whether an index has what is not on disk, in its file or in memory."""
        return self.index.is_behind or self.time_index.is_behind or self.txn_index_unsynced

    def update_indexes_full(self) -> None:
        """Note whether an index has reached segment.index.bytes (the time index keeps its last entry for the roll)."""
        limit = self.index_bytes_max
        left = min(limit // 8 - self.index.entry_count, limit // 12 - 1 - self.time_index.entry_count)
        self._index_entries_left = left
        self.indexes_full = left <= 0

    def finish(self) -> None:
        """Leave the files as Kafka leaves those of a rolled or closed segment: last time index entry, everything trimmed."""
        if not self._timestamps_known:
            self.load_max_timestamp()
        self.time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)
        self.index.trim()
        self.time_index.trim()
        self.write_aborts()
        self.log.give_back()

    def release(self) -> None:
        self.rebuilding = self.aborts_rebuilding = None
        self.log.release()
        self.index.release()
        self.time_index.release()
