"""The offset checkpoints of one log directory: read at the start, written while it runs, and never taken for another log's.

Rules
- Kafka's files name a partition, not a topic id, so an entry outlives its log. Before a new log of a name is made, `names` is asked, and
  the files are written without it where one may still have it.
- Nothing is appended to a log of which a file on disk may say more than holds since a cut (`overstating`): what came in the place of what
  was cut off would be trusted after a crash as that was, taken for compacted, or for deleted where the log begins lower now.
- A file is replaced once its new content is synced. `write_later` leaves that to the flusher; `write_now` overtakes what is in flight.
- A temporary file that somebody removed meanwhile costs that one write, not the directory.
Source: LogManager.checkpointLogRecoveryOffsets, OffsetCheckpointFile.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from .checkpoints import (
    CLEANED,
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    CorruptCheckpoint,
    TopicPartition,
    format_offsets,
    read_offsets,
)
from .files import READ, READ_WRITE_CREATE, FileHandle
from .log_dir import LogDir

if TYPE_CHECKING:
    from .partition_log import PartitionLog

logger = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]
NAMES: Final = (RECOVERY_POINT, HIGH_WATERMARK, LOG_START, CLEANED)


def watermarks_of(logs: Iterable[tuple[TopicPartition, PartitionLog]]) -> Offsets:
    """What replication-offset-checkpoint says of logs."""
    found: Offsets = {}
    for key, log in logs:
        known = log.checkpointed_watermark  # it stands while nobody has said whether others have the log too
        found[key] = known if known >= 0 else log.high_watermark if log.loaded else log.recovery_point
    return found


def offsets_of(logs: Iterable[tuple[TopicPartition, PartitionLog]]) -> dict[str, Offsets]:
    """What the files that every directory has say of its logs."""
    points: Offsets = {}
    starts: Offsets = {}
    logs = list(logs)
    for key, log in logs:
        points[key] = log.checkpointed_recovery_point
        if log.loaded:
            if log.log_start_offset > log.segments[0].base_offset:
                starts[key] = log.log_start_offset
        elif log.checkpointed_start_offset:
            starts[key] = log.checkpointed_start_offset
    return {RECOVERY_POINT: points, HIGH_WATERMARK: watermarks_of(logs), LOG_START: starts}


def cleaned_offsets_of(logs: Iterable[tuple[TopicPartition, PartitionLog]], directory: str) -> Offsets | None:
    """How far the logs of a directory are compacted; None where none ever was."""
    found = {key: log.cleaned_offset for key, log in logs if log.cleaned_offset}
    return found if found or os.path.exists(os.path.join(directory, CLEANED)) else None


class DirCheckpoints:
    """The checkpoints of a log directory. Event-loop thread only.

    Invariant: `_said` holds, by file, every partition of which the content on disk may have an entry, after a loss of power too, and the
    largest offset that it may have.
    """

    def __init__(self, log_dir: LogDir) -> None:
        self._dir = log_dir
        self._said: dict[str, Offsets] = {name: {} for name in NAMES}
        self._generation = dict.fromkeys(NAMES, 0)
        self._in_flight: set[str] = set()

    def read(self, name: str) -> dict[TopicPartition, int]:
        """The entries of a file; none when it is corrupt, which is reported. Raises OSError."""
        try:
            found = read_offsets(self._dir.files, self._dir.path, name)
        except CorruptCheckpoint as error:
            logger.error("%s: recovery, or compaction, starts at the begin of every log", error)
            return {}
        self._said[name] = dict(found)
        return found

    def check_kinds(self) -> None:
        """Raises IsADirectoryError when a directory lies in the place of a file, which could not be replaced later."""
        for path in map(self._path, NAMES):
            if os.path.isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)

    def names(self, key: TopicPartition) -> bool:
        """Whether a file on disk may have an entry of this partition."""
        return any(key in said for said in self._said.values())

    def overstating(self, log: PartitionLog) -> list[str]:
        """The files that may say more of a loaded log than holds."""
        holds = {
            RECOVERY_POINT: log.checkpointed_recovery_point,
            LOG_START: log.log_start_offset,
            CLEANED: log.cleaned_offset,
        }
        if log.shared:  # else all that it has is visible
            holds[HIGH_WATERMARK] = log.high_watermark
        key = (log.topic, log.partition)
        return [name for name, offset in holds.items() if self._said[name].get(key, 0) > offset]

    def _may_say(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """This may be the content on disk from now on, or still the one before."""
        said = self._said[name]
        for key, offset in offsets.items():
            said[key] = max(offset, said.get(key, 0))

    def write_now(self, contents: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Replace files; they are on disk when this returns. Raises OSError."""
        for name, offsets in contents.items():
            # A replacement in flight, whose temporary file this one takes, comes to nothing.
            self._generation[name] += 1
            self._may_say(name, offsets)  # and does where only the directory cannot be synced
            self._dir.files.write_file(self._path(name), format_offsets(offsets), sync=True)
            self._said[name] = dict(offsets)

    def write_later(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a file once its new content has been synced, without waiting for the disk. Raises OSError.

        A disk that has not ended the one before gets the next one.
        """
        if name in self._in_flight:
            return
        files = self._dir.files
        handle = FileHandle(files, self._path(name) + ".tmp", READ_WRITE_CREATE)
        files.truncate(handle.fd, 0)
        files.write_all(handle.fd, format_offsets(offsets), 0)
        self._may_say(name, offsets)
        self._generation[name] += 1
        self._dir.flusher.submit([handle], partial(self._synced, name, self._generation[name], offsets))
        self._in_flight.add(name)  # not before: a job that could not be begun has no end

    def _synced(self, name: str, generation: int, offsets: Mapping[TopicPartition, int], error: OSError | None) -> None:
        """The new content of a file is on disk: give it its name, and have that synced too where the old one names or says more."""
        self._in_flight.discard(name)
        if generation != self._generation[name]:
            return
        path = self._path(name)
        if error is not None:
            # Of a full disk, too: what was to be synced is no file in use, and the next one is written from its begin.
            self._dir.refuse("syncing a checkpoint", path, error)
            return
        try:
            self._dir.files.rename(path + ".tmp", path)
            if self._said[name] != offsets:
                handle = FileHandle(self._dir.files, self._dir.path, READ)
                self._dir.flusher.submit([handle], partial(self._name_synced, name, generation, offsets))
        except FileNotFoundError:
            logger.warning("%s.tmp was removed by somebody before it was in place: it is written again later", path)
        except OSError as failure:
            self._dir.refuse("writing a checkpoint", path, failure)

    def _name_synced(
        self, name: str, generation: int, offsets: Mapping[TopicPartition, int], error: OSError | None
    ) -> None:
        if error is not None:
            # It may name more than it does, for all that is known.
            self._dir.refuse("syncing a checkpoint", self._path(name), error)
        elif generation == self._generation[name]:
            self._said[name] = dict(offsets)

    def _path(self, name: str) -> str:
        return os.path.join(self._dir.path, name)
