"""What of a log is visible, and who decides: its high watermark, its last stable offset, and those who wait for either to move.

Rules
- Offsets: log start <= last stable offset <= high watermark <= log end.
- A log that this node alone has moves its high watermark itself: at the append, or with durability "fsync" once the data is on disk.
- One that others have too (`shared`) is told it: by the leader of the partition, or on the leader's node by who counts the followers.
  It begins with what was written down of it, as what lies above may be in no other log.
- Who listens hears of each move of the log's start and end, of what is on disk, and of the high watermark.
Source: UnifiedLog.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastq.errors import KafkaError

from .durability import Durability
from .failures import failures
from .log_dir import LogDir
from .producer_state import ProducerState

if TYPE_CHECKING:
    from .partition_log import PartitionLog

NOT_SHARED = -2
"""As the checkpointed watermark of a log that is not loaded: others do not have it, so all of it counts until they do."""


class Visibility:
    """The visible part of a partition's log; see PartitionLog for what the attributes are. Event-loop thread only."""

    __slots__ = (
        "_listeners",
        "_shows_appends",
        "checkpointed_watermark",
        "high_watermark",
        "last_stable_offset",
        "log_end_offset",
        "shared",
    )

    _flush_messages: int
    _listeners: tuple[Callable[[PartitionLog], None], ...]
    _shows_appends: bool
    _synchronous: bool
    checkpointed_watermark: int
    dir: LogDir
    durability: Durability
    high_watermark: int
    last_stable_offset: int
    loaded: bool
    log_end_offset: int
    log_start_offset: int
    producers: ProducerState
    recovery_point: int
    shared: bool

    @property
    def name(self) -> str:
        raise NotImplementedError

    def load(self) -> None:
        raise NotImplementedError

    def raise_start(self, offset: int) -> None:
        raise NotImplementedError

    # -- what is visible

    def _advance_end(self, end: int) -> None:
        """The log ends at `end` now: make it visible, have it synced first, or leave it to who decides."""
        self.log_end_offset = end
        if self._shows_appends:
            self.high_watermark = end
            self.last_stable_offset = end if not self.producers.has_transactions else self._stable_offset()
            if end - self.durability.on_disk_offset >= self._flush_messages:
                self.durability.request(full=True)
        elif self._synchronous:
            if not self.durability.flushing:
                self.durability.request(full=False)
        elif end - self.durability.on_disk_offset >= self._flush_messages:
            self.durability.request(full=True)
        self._announce()

    def on_disk(self, offset: int) -> None:
        """The records below `offset` are on disk: with durability "fsync" they become visible, unless others have to have them too."""
        if not self._synchronous:
            return
        if offset > self.high_watermark and not self.shared:
            self._show(offset)
        else:
            self._announce()

    def _show(self, watermark: int) -> None:
        """The records below `watermark` become visible."""
        self.high_watermark = watermark
        self.last_stable_offset = self._stable_offset()
        self._announce()

    def _announce(self) -> None:
        for callback in self._listeners:
            try:
                callback(self)  # type: ignore[arg-type]
            except Exception as error:  # the append is done, whatever becomes of those who wait for it
                failures.report(f"telling the readers of {self.name}", error)

    def _stable_offset(self) -> int:
        """The first offset that a transaction holds back, but not below the log's start (its records may be deleted by then)."""
        first = self.producers.first_unstable_offset(self.high_watermark)
        return self.high_watermark if first < 0 else min(max(first, self.log_start_offset), self.high_watermark)

    def _promise_changed(self) -> None:
        """Other settings call more records acknowledged, or others do not have the log any more. In a directory that is offline nothing
        becomes visible; the high watermark never goes back."""
        if self.dir.offline is not None:
            return
        kept = self.durable_end
        if self.high_watermark < kept and not self.shared:
            self._show(kept)
        elif self.shared:
            self._announce()

    # -- who decides

    def share(self, shared: bool) -> None:
        """Say whether other nodes have the log too. To be said before anybody reads it; and again when that changes."""
        if shared and self.checkpointed_watermark >= 0 and self.loaded:  # recovery has loaded it before anybody knew
            self.high_watermark = self._bounded(self.checkpointed_watermark)
            self.last_stable_offset = self._stable_offset()
        if self.loaded:
            self.checkpointed_watermark = -1
        elif not shared:
            self.checkpointed_watermark = NOT_SHARED
        elif self.checkpointed_watermark == NOT_SHARED:  # all was committed, and this much is there
            self.checkpointed_watermark = self.recovery_point
        changed, self.shared = self.shared != shared, shared
        self._shows_appends = not (shared or self._synchronous)
        if changed and self.loaded:
            self._promise_changed()

    def _first_watermark(self, start: int, end: int) -> int:
        """Where the high watermark of a log that is being loaded begins."""
        if not self.shared:
            return end
        known, self.checkpointed_watermark = self.checkpointed_watermark, -1
        return min(max(known, start), end)

    def _bounded(self, offset: int) -> int:
        return min(max(offset, self.log_start_offset), self.log_end_offset)

    def advance_high_watermark(self, offset: int) -> None:
        """Who decides of a shared log says that the records below `offset` are committed. It never goes back, nor past the log's end."""
        watermark = min(offset, self.log_end_offset)
        if watermark > self.high_watermark:
            self._show(watermark)

    def advance_as_follower(self, high_watermark: int, log_start_offset: int) -> None:
        """The leader's high watermark, the log's end at most, and its log start, which is followed up to that high watermark."""
        self.advance_high_watermark(high_watermark)
        start = min(log_start_offset, self.high_watermark)
        if start > self.log_start_offset:
            self.raise_start(start)

    # -- who waits

    def on_advance(self, callback: Callable[[PartitionLog], None]) -> None:
        """Have `callback(log)` called after each move of the log's start or end, of what is on disk or of the high watermark, until
        `remove_listener`."""
        self._listeners = (*self._listeners, callback)

    def remove_listener(self, callback: Callable[[PartitionLog], None]) -> None:
        """Stop calling `callback`; nothing happens when it is not registered."""
        self._listeners = tuple(known for known in self._listeners if known != callback)

    @property
    def durable_end(self) -> int:
        """What a replica may say that it has: the log's end, with durability "fsync" as far as it is on disk."""
        return self.on_disk_offset if self._synchronous else self.log_end_offset

    @property
    def on_disk_offset(self) -> int:
        """Records below this offset are known to be on disk."""
        if not self.loaded:
            self.load()
        return self.durability.on_disk_offset

    def wait_durable(self, offset: int, callback: Callable[[KafkaError | None], None]) -> None:
        """Call back once this node has the records below `offset` as safely as its settings promise: at once with page-cache durability,
        else once they are on disk, or with the error that took the directory offline."""
        if self._synchronous:
            self.durability.wait(offset, callback)
        else:
            callback(None)
