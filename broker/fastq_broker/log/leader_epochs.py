"""The leader epochs of a log: which epoch began at which offset. Kept in `leader-epoch-checkpoint`.

Source: LeaderEpochFileCache, KIP-101, KIP-279.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise

from .checkpoints import LEADER_EPOCHS, CorruptCheckpoint, format_epochs, parse_epochs
from .files import Files, is_shortage

NO_EPOCH = -1


class LeaderEpochs:
    """Epochs with their start offsets, both growing. Changes are written at once, but synced only with the log's next full flush:
    `unsynced` says that there are some. A file lost in a crash is rebuilt from the batches, which carry their epochs. One that a crash
    has left of another time than the log, as the log was cut back and that is undone, gives way to the batches that are recovered.
    What goes at the start is written with that flush too, or before files are deleted there: loading a log takes it away once more.

    Event-loop thread only.
    """

    __slots__ = ("_behind", "_epochs", "_files", "_offsets", "path", "unsynced")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._behind = False  # the file has not seen the last truncation from the start
        self.unsynced = False
        self.path = os.path.join(directory, LEADER_EPOCHS)
        self._epochs: list[int] = []
        self._offsets: list[int] = []

    def __len__(self) -> int:
        return len(self._epochs)

    def load(self) -> bool:
        """Read the file; False, and no epochs, where there is none, or an empty one, which Apache Kafka begins with.

        Raises CorruptCheckpoint, OSError.
        """
        try:
            data = self._files.read_file(self.path)
        except FileNotFoundError:
            return False
        if not data:
            return False
        entries = parse_epochs(self.path, data)
        for before, after in pairwise(entries):
            if after[0] <= before[0] or after[1] < before[1]:
                raise CorruptCheckpoint(
                    f"{self.path}: epoch {after[0]} at {after[1]} follows epoch {before[0]} at {before[1]}"
                )
        self._epochs = [epoch for epoch, _ in entries]
        self._offsets = [offset for _, offset in entries]
        return True

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._offsets, strict=True))

    @property
    def latest(self) -> int:
        """The latest epoch; -1 when there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def earliest(self) -> tuple[int, int]:
        return (self._epochs[0], self._offsets[0]) if self._epochs else (NO_EPOCH, -1)

    def assign(self, epoch: int, start_offset: int, *, write: bool = True) -> None:
        """Note that `epoch` begins at `start_offset`. An epoch at or below the latest, or -1, changes nothing.

        Epochs that began at or after `start_offset` have no records and are dropped (as Kafka does).
        """
        if epoch <= self.latest or start_offset < 0:
            return
        keep = bisect_left(self._offsets, start_offset)
        epochs, offsets = [*self._epochs[:keep], epoch], [*self._offsets[:keep], start_offset]
        self._epochs, self._offsets = epochs, offsets  # both or, where there is no memory, neither
        if write:
            self.keep()

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch at or below `epoch`, and the offset where it ends; (-1, -1) when that is not known."""
        if epoch == NO_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return NO_EPOCH, -1
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        following = bisect_right(self._epochs, epoch)
        end = self._offsets[following]
        return (self._epochs[following - 1] if following else epoch), end

    def epoch_for_offset(self, offset: int) -> int:
        """Epoch of the record at `offset`; -1 when it lies before the first known one."""
        following = bisect_right(self._offsets, offset)
        return self._epochs[following - 1] if following else NO_EPOCH

    def truncate_from_end(self, end_offset: int, *, write: bool = True) -> None:
        """Forget epochs that begin at or after `end_offset`."""
        keep = bisect_left(self._offsets, end_offset)
        if keep < len(self._offsets):
            del self._epochs[keep:], self._offsets[keep:]
            if write:
                self.keep()

    def truncate_epochs_above(self, epoch: int) -> None:
        """Forget epochs later than `epoch`, in memory: a batch of `epoch` lies where they should be."""
        keep = bisect_right(self._epochs, epoch)
        del self._epochs[keep:], self._offsets[keep:]

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that end at or before `start_offset`; the one that covers it begins there now."""
        covering = bisect_right(self._offsets, start_offset) - 1
        if covering < 0 or (covering == 0 and self._offsets[0] == start_offset):
            return
        del self._epochs[:covering], self._offsets[:covering]
        self._offsets[0] = start_offset
        self._behind = self.unsynced = True

    def moved(self, directory: str) -> None:
        """The file lies in a directory of another name now."""
        self.path = os.path.join(directory, LEADER_EPOCHS)

    def take(self, entries: Iterable[tuple[int, int]]) -> None:
        """Have these epochs and no others. Raises OSError."""
        entries = list(entries)
        if entries != self.entries():
            self._epochs = [epoch for epoch, _ in entries]
            self._offsets = [offset for _, offset in entries]
            self.keep()

    def clear(self) -> None:
        self._epochs.clear()
        self._offsets.clear()
        self.keep()

    def keep(self) -> None:
        """Replace the file, at a shortage with the next flush: until then a load takes what it lacks from the batches, and what is beyond
        them away. Raises OSError."""
        self._behind = self.unsynced = True
        try:
            self.write()
        except (OSError, MemoryError) as error:
            if isinstance(error, OSError) and not is_shortage(error):
                raise

    def keep_if_behind(self) -> None:
        """As `keep`, if the file does not say what is known. Raises OSError."""
        if self._behind:
            self.keep()

    def write(self) -> None:
        """Replace the file. Raises OSError."""
        self._files.write_file(self.path, format_epochs(self.entries()), sync=False)
        self._behind = False
        self.unsynced = True

    def write_if_behind(self) -> None:
        """Replace the file if it does not say what is known. Raises OSError."""
        if self._behind:
            self.write()
