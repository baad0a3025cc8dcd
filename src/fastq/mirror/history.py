"""Whether a source still has what was copied of it, where records are produced anew: it may have been truncated, and have grown again past
where the mirror stands, while nobody looked.

Rules
- Of each partition a `Mark` is kept with its progress: the last record that was copied, by the leader epoch and the time that it has in the
  source. The source says where that epoch ends (KIP-101), which shows a truncation by an election; the time shows one in the same epoch.
- What cannot be known, as of a record that compaction has taken, is no loss.
- The times cost a fetch a partition. Who looks again and again compares them where the mirror stands still, and once for each end of the
  source (`SoundMarks`): where it goes on it has read behind what it has copied.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from contextlib import closing

from fastq.errors import FastqError, UnsupportedVersion
from fastq.metadata import TopicPartition
from fastq.mirror.config import Side
from fastq.mirror.progress import Mark, Progress
from fastq.mirror.source_reader import SourceReader
from fastq.mirror.state import Opened, consumer_at

LOOK_S = 5.0
TRIES, PAUSE_S = 5, 0.1


def marks_of(
    progress: Mapping[TopicPartition, Progress], topic_ids: Mapping[TopicPartition, str]
) -> dict[TopicPartition, Mark]:
    """Of partitions whose topic is the one that was copied."""
    return {
        tp: found.mark
        for tp, topic_id in topic_ids.items()
        if (found := progress.get(tp)) is not None and found.mark is not None and found.topic_id == topic_id
    }


def lost_from(
    side: Side,
    marks: Mapping[TopicPartition, Mark],
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    sound: Container[TopicPartition] = (),
    opened: Opened = lambda wake: None,
) -> dict[TopicPartition, int | FastqError]:
    """Of partitions of which the source has lost copied records: from which offset on, and where the epoch is the same, at the latest from
    which; or why that cannot be asked of a partition. Raises why nothing can be asked, and ClientClosed or WakeupError after what
    `opened` gets was called. Times of `sound` ones are not compared."""
    asked = {tp: mark for tp, mark in marks.items() if begins.get(tp, mark.end) < mark.end}
    lost = _by_epochs(side, {tp: mark for tp, mark in asked.items() if mark.epoch >= 0}, opened)
    left = {
        tp: mark
        for tp, mark in asked.items()
        if tp not in lost and tp not in sound and mark.end <= ends[tp] and mark.time_ms >= 0
    }
    return lost | _by_times(side, left, opened)


class SoundMarks:
    """Of looks one after the other: where the times of marks need not be compared."""

    def __init__(self) -> None:
        self._before: Mapping[TopicPartition, Mark] = {}
        self._compared: dict[TopicPartition, tuple[Mark, int | None]] = {}

    def of(self, marks: Mapping[TopicPartition, Mark], ends: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Those that have moved since the last look, and those that were compared since the source came to its end."""
        moved = {tp for tp, mark in marks.items() if self._before.get(tp, mark) != mark}
        return moved | {tp for tp, mark in marks.items() if self._compared.get(tp) == (mark, ends.get(tp))}

    def compared(
        self,
        marks: Mapping[TopicPartition, Mark],
        ends: Mapping[TopicPartition, int],
        lost: Container[TopicPartition],
    ) -> None:
        """After a look, which has found these to have `lost` records."""
        moved = {tp for tp, mark in marks.items() if self._before.get(tp, mark) != mark}
        self._compared = {tp: (mark, ends.get(tp)) for tp, mark in marks.items() if tp not in moved and tp not in lost}
        self._before = dict(marks)


def _by_epochs(
    side: Side, marks: Mapping[TopicPartition, Mark], opened: Opened
) -> dict[TopicPartition, int | FastqError]:
    lost: dict[TopicPartition, int | FastqError] = {}
    left = {tp: mark.epoch for tp, mark in marks.items()}
    with closing(SourceReader(side)) as reader:
        opened(reader.close)
        for attempt in range(TRIES):
            if not left:
                break
            if attempt:
                time.sleep(PAUSE_S)
            for tp, answer in reader.epoch_ends(left).items():
                if isinstance(answer, UnsupportedVersion):
                    return {}  # before Kafka 2.3: its epochs do not tell
                if isinstance(answer, FastqError):
                    lost[tp] = answer
                    if not answer.retriable:
                        del left[tp]
                    continue
                del left[tp]
                lost.pop(tp, None)
                epoch, end = answer
                if epoch >= 0 and 0 <= end < marks[tp].end:
                    lost[tp] = end
    return lost


def _by_times(
    side: Side, marks: Mapping[TopicPartition, Mark], opened: Opened
) -> dict[TopicPartition, int | FastqError]:
    """Read the last record of each that was copied, and compare its time."""
    lost: dict[TopicPartition, int | FastqError] = {}
    left = dict(marks)
    if not left:
        return lost
    own = {"isolation_level": "read_uncommitted", "auto_offset_reset": "none", "max_partition_fetch_bytes": 1}
    with consumer_at(side, **own) as consumer:
        opened(consumer.wakeup)
        consumer.assign(left)
        for tp, mark in left.items():
            consumer.seek(tp, mark.end - 1)
        until = time.monotonic() + LOOK_S
        while left and (wait_s := until - time.monotonic()) > 0:
            batch = consumer._poll_chunk(wait_s)
            if not len(batch):
                continue
            (place, *_) = batch.next_offsets
            tp = TopicPartition(*place)
            found = left.pop(tp, None)
            if found is not None and batch.offsets[0] == found.end - 1 and batch.timestamps[0] != found.time_ms:
                lost[tp] = found.end - 1
            consumer.pause(tp)
    return lost
