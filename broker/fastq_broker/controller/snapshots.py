"""Snapshots of the metadata: when one is due, who writes it, and what it makes superfluous.

Rules: a snapshot holds what is committed, and no more. It is written in another thread, which reads an image that never changes. The
latest stays, whatever its size and age, and the log from the oldest that is left on: one that is damaged can be stepped over where there
is another. Source: SnapshotGenerator, KafkaRaftLog.maybeClean.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from fastq.errors import KafkaError
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.image import MetadataImage
from fastq_broker.controller.snapshot import image_records, list_snapshots, reaches_until_ms, write_snapshot
from fastq_broker.log.partition_log import PartitionLog
from fastq_broker.log.retention import apply_retention
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.raft.voters import VoterHistory

logger = logging.getLogger(__name__)

RETRY_MS = 10_000
"""A snapshot that a shortage of descriptors, memory or threads has prevented is tried again after this."""
CLEAN_MS = 60_000
"""How often it is looked whether old ones may go, besides after each new one."""


class SnapshotKeeper:
    """Writes the snapshots of one node. Event-loop thread only.

    Invariant: one snapshot at most is being written. `changed` is called when there are others than before.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: PartitionLog,
        history: VoterHistory,
        *,
        monotonic_ms: Callable[[], int],
        changed: Callable[[Sequence[SnapshotId]], object],
        threads: Callable[[int, str], Executor] = ThreadPoolExecutor,
    ) -> None:
        """`threads(count, name)` begins some, and `changed` hears which snapshots there are, before the log begins behind one."""
        self._threads = threads
        self._config = config
        self._log = log
        self._history = history
        self._monotonic_ms = monotonic_ms
        self._changed = changed
        self._bytes = 0  # of records since the last one
        self._last_ms = monotonic_ms()
        self._last_offset = 0
        self._not_before_ms = 0
        self._cleaned_ms = monotonic_ms()
        self._writer: Executor | None = None
        self._writing: Future[None] | None = None

    @property
    def writing(self) -> Future[None] | None:
        """The one that is being written, or is to be taken down by the next tick."""
        return self._writing

    def found(self, end_offset: int, age_ms: int) -> None:
        """The one that the start has found ends there, and is so old."""
        self._last_offset = end_offset
        self._last_ms = self._monotonic_ms() - max(age_ms, 0)

    def grown(self, size_bytes: int) -> None:
        """So much of the log is not in a snapshot yet, in addition."""
        self._bytes += size_bytes

    def tick(self, image: MetadataImage, now_ms: int) -> None:
        """Begin a snapshot of `image` when metadata.log.max.record.bytes.between.snapshots were written or
        metadata.log.max.snapshot.interval.ms went by since the last one, and something is new.

        The tick after its end drops what metadata.max.retention.bytes and .ms do not keep, and so does one a minute.
        """
        if self._writing is not None:
            if self._writing.done():
                self._end(now_ms)
        elif self._is_due(image):
            self._begin(image, now_ms)
        elif self._monotonic_ms() - self._cleaned_ms >= CLEAN_MS and self._log.dir.offline is None:
            self._clean(now_ms)

    def _is_due(self, image: MetadataImage) -> bool:
        if image.offset + 1 <= self._last_offset or not self._bytes or self._log.dir.offline is not None:
            return False
        if self._monotonic_ms() < self._not_before_ms:
            return False
        interval = self._config.metadata_log_max_snapshot_interval_ms
        late = interval > 0 and self._monotonic_ms() - self._last_ms >= interval
        return late or self._bytes >= self._config.metadata_log_max_record_bytes_between_snapshots

    def _begin(self, image: MetadataImage, now_ms: int) -> None:
        made = SnapshotId(image.offset + 1, image.epoch)
        self._last_offset = made.end_offset
        self._last_ms = self._monotonic_ms()
        self._bytes = 0
        kraft_version, voters = self._history.at(made.end_offset)
        work = partial(
            write_snapshot,
            Path(self._log.path) / made.file_name,
            epoch=image.epoch,
            timestamp_ms=now_ms,
            last_timestamp_ms=image.timestamp_ms,
            kraft_version=kraft_version or None,
            voters=voters.to_record() if kraft_version else None,
        )

        def write() -> None:
            work(list(image_records(image)))

        if self._writer is None:
            self._writer = self._threads(1, "fastq-snapshot")
        try:
            self._writing = self._writer.submit(write)
        except RuntimeError as error:  # no thread can be started now
            self._writer, self._writing = None, Future()
            self._writing.set_exception(OSError(errno.EAGAIN, str(error)))

    def _end(self, now_ms: int) -> KafkaError | None:
        """Take down how the last snapshot ended; a failed one takes the directory offline as any failed write does, but for a
        shortage, after which it is due again a while later. Answers why there is none."""
        ended, self._writing = self._writing, None
        assert ended is not None
        try:
            ended.result()
        except (OSError, MemoryError) as failure:
            error = failure if isinstance(failure, OSError) else OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            self._last_offset = 0
            self._bytes += self._config.metadata_log_max_record_bytes_between_snapshots
            self._not_before_ms = self._monotonic_ms() + RETRY_MS
            return self._log.dir.refuse("writing a metadata snapshot", error.filename or self._log.path, error)
        self._clean(now_ms)
        return None

    def write(self, image: MetadataImage, now_ms: int) -> SnapshotId:
        """Write a snapshot of `image`, which is committed, and wait for it. KafkaStorageError when the disk fails."""
        if self._writing is not None:
            wait([self._writing])
            self._end(now_ms)
        self._begin(image, now_ms)
        assert self._writing is not None
        wait([self._writing])
        failure = self._end(now_ms) or self._log.dir.offline
        if failure is not None:
            raise failure
        return SnapshotId(image.offset + 1, image.epoch)

    def _clean(self, now_ms: int) -> None:
        """Drop the oldest snapshot, and the log before the next one, while there is another and they have more bytes together than
        metadata.max.retention.bytes, or it reaches until longer ago than metadata.max.retention.ms."""
        self._cleaned_ms = self._monotonic_ms()
        directory = Path(self._log.path)
        try:
            left = list_snapshots(directory)
        except OSError as error:  # without a descriptor nobody knows what may go
            self._cleaned_ms += RETRY_MS - CLEAN_MS
            self._log.dir.refuse("looking for metadata snapshots", error.filename or self._log.path, error)
            return
        self._changed(left)
        sizes = {snapshot: _size(directory / snapshot.file_name) for snapshot in left}
        while len(left) > 1:
            oldest, following = left[:2]
            path = directory / oldest.file_name
            reason = self._goes(path, sum(sizes[snapshot] for snapshot in left), now_ms)
            if reason is None or following.end_offset > self._log.high_watermark:
                break  # what is committed may not be on this node's own disk yet
            self._log.delete_records_before(following.end_offset)
            apply_retention(self._log, now_ms)
            try:
                path.unlink(missing_ok=True)
                logger.info("%s: deleted, %d bytes, %s", path, sizes[oldest], reason)
            except OSError as error:  # it is in nobody's way; the next time tries it again
                logger.warning("%s cannot be removed: %s", path, error.strerror or error)
            del left[0]
            self._changed(left)

    def _goes(self, path: Path, snapshots_bytes: int, now_ms: int) -> str | None:
        """Why the oldest snapshot need not be kept; None where it has to be."""
        bytes_max, age_max_ms = self._config.metadata_max_retention_bytes, self._config.metadata_max_retention_ms
        if 0 <= bytes_max < self._log.size_bytes + snapshots_bytes:
            return f"beyond metadata.max.retention.bytes {bytes_max}"
        if age_max_ms < 0:
            return None
        until_ms = reaches_until_ms(path)
        if until_ms is not None and now_ms - until_ms > age_max_ms:
            return f"older than metadata.max.retention.ms {age_max_ms}"
        return None

    def close(self) -> None:
        """Wait for the one that is being written."""
        if self._writer is not None:
            self._writer.shutdown()


def _size(path: Path) -> int:
    """In bytes; 0 where that cannot be told."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
