"""How old the oldest record is that a mirror has not copied, by partition, at a price that does not grow with what is behind.

Rules
- A time is that of the batch which has the record: batches are not opened, and of each partition BATCH_BYTES are fetched, many at once.
- What was read once is known as long as the mirror stands there. What does not come within WAIT_S is not left out, as it is when much is
  behind: the record is taken to be as old as the last one that is known before it.
- Thread rule: one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from fastq._native.records import iter_headers
from fastq.errors import FastqError
from fastq.metadata import TopicPartition
from fastq.mirror.config import Side
from fastq.mirror.source_reader import Fetched, SourceReader, Wanted
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.mirror")

BATCH_BYTES = 64 * 1024
WAIT_S = 3.0


class Behind(NamedTuple):
    """Where a partition is to go on: the source's id of its topic (hex), the offset, and the time (ms) of the last record that was copied;
    -1: not known."""

    topic_id: str
    offset: int
    copied_ms: int = -1


class Ages:
    """Asks the source, over a connection that stays."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._reader: SourceReader | None = None
        self._known: dict[TopicPartition, tuple[Behind, int]] = {}

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def times(self, behind: Mapping[TopicPartition, Behind]) -> dict[TopicPartition, int]:
        """The time (ms) of the first record at or behind each offset, where anything is known of it."""
        before = {
            tp: known for tp, known in self._known.items() if tp in behind and known[0].topic_id == behind[tp].topic_id
        }
        self._known = {tp: known for tp, known in before.items() if known[0].offset == behind[tp].offset}
        asked = {tp: at for tp, at in behind.items() if tp not in self._known}
        self._known |= {tp: (behind[tp], time_ms) for tp, time_ms in self._asked(asked).items()}
        found = {tp: at.copied_ms for tp, at in behind.items() if at.copied_ms >= 0}
        found |= {tp: max(time_ms, found.get(tp, -1)) for tp, (_, time_ms) in before.items()}
        return found | {tp: time_ms for tp, (_, time_ms) in self._known.items()}

    def _asked(self, behind: Mapping[TopicPartition, Behind]) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        left = {tp: Wanted(bytes.fromhex(at.topic_id), at.offset, bytes_max=BATCH_BYTES) for tp, at in behind.items()}
        end = time.monotonic() + WAIT_S
        while left and (wait_s := end - time.monotonic()) > 0:
            if self._reader is None:
                self._reader = SourceReader(self._side)
            try:
                answers = self._reader.fetch(left, 0, wait_s)
            except FastqError as error:
                logger.info("the oldest records in %s cannot be read: %s", self._side.alias, error)
                break
            came = 0
            for tp, answer in answers.items():
                if isinstance(answer, FastqError):
                    del left[tp]
                elif answer.next_offset > answer.asked:
                    came += 1
                    del left[tp]
                    if (time_ms := _time_of(answer)) >= 0:
                        found[tp] = time_ms
            if not came:
                break  # of each node the first that has something gives it, however large it is
        return found


def _time_of(fetched: Fetched) -> int:
    for _, header in iter_headers(fetched.records):
        return header.max_timestamp if header.timestamp_type else header.base_timestamp
    return -1
