"""From the log to images: what is committed, record by record, as each node of the cluster reads it.

Rules: an image ends between two changes; records of a transaction count when it ends. A snapshot that was fetched takes the place of all
before: listeners are told how it differs from the image that they know. Source: MetadataLoader (KIP-630, KIP-868).
"""

from __future__ import annotations

from collections.abc import Iterable

from fastq_broker.controller.image import MetadataDelta, MetadataImage
from fastq_broker.controller.snapshot import Batch, TransactionFilter


class Replayer:
    """Takes batches in their order, and makes images of them. Used by one thread.

    Invariants: everything below `next_offset` was taken; `image` is what all closed changes among it make.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.next_offset = 0
        self._delta = MetadataDelta(image)
        self._filter = TransactionFilter()
        self._last: Batch | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether what was taken ends inside of a transaction of records."""
        return self._filter.is_open

    def take(self, batches: Iterable[Batch]) -> None:
        """Take the next batches. MetadataError when a record does not fit."""
        for batch in batches:
            for record in self._filter.closed(batch):
                self._delta.replay(record)
            if batch.records:
                self._last = batch
            self.next_offset = batch.last_offset + 1

    def give(self, *, force: bool = False) -> MetadataDelta | None:
        """The change from the image before to what was taken since, which `image` is now; None where that was no metadata, or (but with
        `force`) a transaction is open."""
        last = self._last
        if last is None or (self.in_transaction and not force):
            return None
        delta = self._delta
        self.image = delta.apply(last.last_offset, last.epoch, last.timestamp_ms)
        self.go_on(self.image, self.next_offset)
        return delta

    def abandon(self) -> None:
        """The open transaction comes to nothing, where there is one."""
        self._filter = TransactionFilter()

    def go_on(self, image: MetadataImage, next_offset: int) -> None:
        """Go on from an image that somebody else has made of everything below an offset."""
        self.image, self.next_offset, self._last = image, next_offset, None
        self._delta = MetadataDelta(image)

    def begin_at(self, batches: Iterable[Batch], end_offset: int, epoch: int) -> MetadataDelta:
        """Begin anew with the batches of a snapshot; the change from the image before to it."""
        before, last = self.image, None
        delta = MetadataDelta(MetadataImage(cluster_id=before.cluster_id))
        for last in batches:
            for record in last.records:
                delta.replay(record)
        assert last is not None, "a snapshot has a header"
        self.abandon()
        self.go_on(delta.apply(end_offset - 1, epoch, last.timestamp_ms), end_offset)
        return MetadataDelta.between(before, self.image)
