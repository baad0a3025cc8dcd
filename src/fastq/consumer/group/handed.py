"""What a member of a group has handed out, and what of it is committed. Sans-I/O."""

from __future__ import annotations

from collections.abc import Iterable

from fastq._native.consume import FetchedRecords
from fastq._native.heartbeat import Progress
from fastq.consumer.partition import PartitionState, Phase
from fastq.metadata import TopicPartition

Place = tuple[int, int]  # an offset, and the leader epoch of the record before it


class Handed:
    """What the application has in hand: records it was given and has not shown to be done with, by asking for the next ones.

    Invariants: `before` has the offset of the first record in hand, and the leader epoch before it, of each partition that a list or a
    batch took some from;
    `chunk` is the one that is iterated over, of which the record handed out last is in hand; `given` are the partitions that the
    application was given records of where they stand, `chosen` those of which it has committed an offset before that; `uncommitted` those
    of which it was given some that no commit is known to cover, but for `chunk`, of which it was given some where `progress`, which counts
    the records that are iterated over, is not at `counted` any more; `taken` are those of them that it does not have any more, with what
    was known of them, and `told` those of which the application has heard, and that are to begin where they began. Thread rule: under the
    driver's lock.
    """

    def __init__(self) -> None:
        self.before: dict[TopicPartition, Place] = {}
        self.chunk: FetchedRecords | None = None
        self.given: set[TopicPartition] = set()
        self.chosen: set[TopicPartition] = set()
        self.uncommitted: set[TopicPartition] = set()
        self.taken: dict[TopicPartition, PartitionState] = {}
        self.told: dict[TopicPartition, PartitionState] = {}
        self.progress = Progress()
        self.counted = 0

    def next_asked(self) -> None:
        """The application asks for more: it is done with what it had."""
        self._count()
        self.before.clear()
        self.chunk = None

    def taking(self, tp: TopicPartition, place: Place) -> None:
        """Records of a partition are about to be handed out together, from a place on."""
        self.before.setdefault(tp, place)
        self.given.add(tp)

    def took(self, tp: TopicPartition) -> None:
        """There were some."""
        self.uncommitted.add(tp)

    def iterating(self, chunk: FetchedRecords | None) -> None:
        """The records of a chunk are about to be handed out, one by one; None: there is none."""
        self._count()
        self.chunk = chunk
        if chunk is not None:
            self.given.add(TopicPartition(chunk.topic, chunk.partition))

    def _count(self) -> None:
        """Take in what was iterated over."""
        count, chunk = self.progress.count, self.chunk
        if chunk is not None and count != self.counted:
            self.uncommitted.add(TopicPartition(chunk.topic, chunk.partition))
        self.counted = count

    def choosing(self, partitions: Iterable[TopicPartition]) -> None:
        """The application commits offsets of its own choice."""
        self.chosen |= set(partitions) - self.given

    def is_chosen(self, tp: TopicPartition) -> bool:
        """Whether the application has said where the group is to go on, and was given nothing that would say more."""
        return tp in self.chosen and tp not in self.given

    def forget(self, tp: TopicPartition) -> None:
        """The partition was moved, or is not read any more."""
        self._count()
        self.before.pop(tp, None)
        self.given.discard(tp)
        self.chosen.discard(tp)
        if self.chunk is not None and (self.chunk.topic, self.chunk.partition) == tp:
            self.chunk = None

    def committing(self, state: PartitionState, offset: int) -> None:
        """An offset of a partition is committed, or goes with a transaction; with all that was given there is nothing left to cover."""
        self._count()
        if offset >= state.position:
            self.uncommitted.discard(state.tp)

    def taking_away(self, state: PartitionState) -> None:
        """The partition is not read any more: it is somebody else's, or will be given anew."""
        self.forget(state.tp)
        if state.tp in self.uncommitted:
            self.taken.setdefault(state.tp, state)  # where it was first begun is where it is to begin again
            self.uncommitted.discard(state.tp)

    def undone(self) -> dict[TopicPartition, PartitionState]:
        """What was given and not committed is to be given again; what was taken away of it, as it was known."""
        self._count()
        taken, self.taken, self.told, self.uncommitted = {**self.taken, **self.told}, {}, {}, set()
        return taken

    def tell(self) -> list[TopicPartition]:
        """What was taken away, once: whoever hears of it gives up what it has made of that."""
        self.told, self.taken, gone = {**self.taken, **self.told}, {}, sorted(self.taken)
        return gone

    def in_hand(self) -> tuple[TopicPartition, int, bool] | None:
        """A partition and an offset in it that the application has: the one record in hand, or the first of several (False)."""
        chunk = self.chunk
        if chunk is not None:
            return TopicPartition(chunk.topic, chunk.partition), chunk.finished_position, True
        for tp, (offset, _) in self.before.items():
            return tp, offset, False
        return None

    def finished(self, state: PartitionState) -> Place:
        """The offset up to which the application is done with a partition, -1 when there is none; and the leader epoch before it."""
        before = self.before.get(state.tp)
        if before is not None:
            return before
        chunk = self.chunk
        if chunk is not None and (chunk.topic, chunk.partition) == state.tp:
            return chunk.finished_position, chunk.finished_epoch
        return (state.position, state.position_epoch) if state.phase in (Phase.FETCH, Phase.VALIDATE) else (-1, -1)
