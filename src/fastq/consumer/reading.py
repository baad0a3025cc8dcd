"""What a consumer reads, from where, and what it knows of it: the calls that need not wait, the same in both consumers.

Rules: each holds `_turn`, which is the blocking consumer's lock, and nothing in an event loop. Another task that waits for records
meanwhile is told by `_changed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import index
from typing import TYPE_CHECKING, SupportsIndex

from fastq.consumer.base import CommitCallback, ConsumerBase, Partition
from fastq.consumer.committable import Committable
from fastq.consumer.config import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from fastq.consumer.group.listener import Callback, callbacks_of
from fastq.consumer.partition import PartitionState, Phase
from fastq.errors import NotAssigned
from fastq.metadata import GroupMetadata, OffsetAndMetadata, TopicPartition, partition_of
from fastq.metrics import ConsumerMetrics, PartitionMetrics
from fastq.other_clients import refuse_keywords

if TYPE_CHECKING:
    from typing_extensions import Never

# What to do about a partition that is not assigned.
_ASSIGNING = (
    "What is subscribed to is assigned by the first call that asks for records: call poll() before, or seek in on_assigned; "
    "assign([('logs', 0)]) chooses partitions by hand"
)


class Reading(ConsumerBase):
    """The public calls of both consumers that answer at once."""

    # -- what is read

    def subscribe(
        self,
        *topics: str | re.Pattern[str] | Iterable[str],
        listener: object | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
        **foreign: Never,
    ) -> None:
        """Read these topics, or those that match one pattern, in place of those subscribed to before. Raises ValueError without any,
        or while partitions are assigned by hand: `unsubscribe` first.

        listener: an object with some of `on_assigned`, `on_revoked` and `on_lost` (see RebalanceListener), or give functions; those of
        an AsyncConsumer may be coroutine functions. They are called with a list of partitions during the calls that ask for records, and
        may commit and seek. Partitions that were lost are told to `on_revoked` when there is no `on_lost`.
        """
        if foreign:
            refuse_keywords("subscribe", foreign)
        callbacks = callbacks_of(listener, on_assigned, on_revoked, on_lost)
        for callback in callbacks.values():
            self._check_listener(callback)
        with self._turn:
            self._detach()
            self._subscribe(topics, callbacks)  # type: ignore[arg-type]  # checked there
            self._changed()

    def assign(self, partitions: Iterable[Partition], *refused: Never) -> None:
        """Read exactly these partitions from now on; those that stay keep their position. Raises ValueError while topics are subscribed
        to: `unsubscribe` first.

        A partition is a TopicPartition or a pair of topic and number, here and in every other call: `assign([("logs", 0)])`.
        """
        if refused:
            raise TypeError(
                f"assign({', '.join(map(repr, (partitions, *refused)))}): it takes one list of partitions, each a TopicPartition or a "
                'pair of topic and number, as in assign([("logs", 0)])'
            )
        if isinstance(partitions, str) or not isinstance(partitions, Iterable):
            raise TypeError(
                f"assign takes a list of partitions, each a TopicPartition or a pair (topic, number), got {partitions!r}; "
                "assign([]) reads nothing"
            )
        with self._turn:
            self._check_open()
            wanted = [partition_of(tp) for tp in partitions]
            group = self._group
            if group is not None and group.subscribed:
                raise ValueError(f"{group.describe()} decides what is read: unsubscribe() before assign()")
            if self._watch.names:
                names = ", ".join(self._watch.names)
                raise ValueError(f"all partitions of {names} are read: unsubscribe() before assign()")
            self._watch.read_assigned({tp.topic for tp in wanted})
            self._detach()
            if group is not None:
                group.let_go(set(self._fetcher.partitions) - set(wanted))
            self._fetcher.assign(wanted, initial=Phase.RESET if group is None else Phase.COMMITTED)
            self._changed()

    def pause(self, *partitions: Partition) -> None:
        """Hand out nothing of these partitions until `resume`. What is prefetched is kept while others find room in prefetch_bytes_max
        beside it, and fetched again where they do not."""
        self._set_paused(partitions, True)

    def resume(self, *partitions: Partition) -> None:
        """End a pause."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[Partition], paused: bool) -> None:
        with self._turn:
            self._check_open()
            states = [self._state(tp) for tp in partitions]
            self._detach()
            for state in states:
                state.paused = paused
            self._changed()

    # -- from where

    def seek(self, partition: Partition, offset: int, *refused: Never) -> None:
        """Go on at `offset`. Raises ValueError for a negative offset, NotAssigned for a partition that is not assigned."""
        if refused:
            raise TypeError(
                f"seek({', '.join(map(repr, (partition, offset, *refused)))}): it takes a partition, which is a TopicPartition or a pair "
                'of topic and number, and an offset, as in seek(("logs", 0), 5)'
            )
        with self._turn:
            self._check_open()
            if isinstance(offset, bool) or not isinstance(offset, SupportsIndex):
                raise TypeError(f"an offset is an int, got {offset!r}")
            offset = index(offset)
            if not 0 <= offset < 2**63:
                raise ValueError(
                    f"an offset is 0 to 2**63 - 1, got {offset}; seek_to_beginning() and seek_to_end() know the ends"
                )
            state = self._state(partition)
            self._detach()
            self._fetcher.seek(state.tp, offset)
            if self._group is not None:
                self._group.handed.forget(state.tp)
            self._changed()

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Go on at the first record of these partitions; none given: of all that are assigned."""
        self._reset(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Go on after the last record of these partitions; none given: of all that are assigned."""
        self._reset(partitions, LATEST_TIMESTAMP)

    def _reset(self, partitions: Iterable[Partition], timestamp: int) -> None:
        with self._turn:
            self._check_open()
            states = [self._state(tp) for tp in partitions] or list(self._fetcher.partitions.values())
            if not states and self._assigned_nothing_yet:
                raise NotAssigned(
                    "no partitions are assigned to this consumer yet, which could go there", hint=_ASSIGNING
                )
            self._put_back()
            self._detach()
            for state in states:
                self._fetcher.reset(state.tp, timestamp)
                if self._group is not None:
                    self._group.handed.forget(state.tp)
            self._changed()

    def seek_to_committed(self) -> None:
        """Go on, with all partitions, from what the group has committed, as after a transaction that was aborted: what was handed out
        since is handed out again. Makes no request: the offsets are asked for when records are.

        A partition of which the group has committed nothing goes on at the first record that this consumer was given of it. Another member
        that has it by then begins where auto_offset_reset says: with "latest" it passes over what was handed out here.
        """
        with self._turn:
            self._check_open()
            group = self._in_group()
            self._put_back()
            self._detach()
            group.back_to_committed()
            self._changed()

    def commit_async(self, what: Committable = None, callback: CommitCallback | None = None) -> None:
        """Commit offsets without waiting. `callback(offsets, error)` is called during a later call of a Consumer, and by the event loop of
        an AsyncConsumer; without one, a failure is logged. Commits are made in the order of their calls."""
        with self._turn:
            self._begin_commit(what, self._api_timeout(None), callback)
            self._pump()

    def _state(self, tp: Partition) -> PartitionState:
        self._put_back()
        state = self._fetcher.partitions.get(partition_of(tp))
        if state is None:
            raise self._not_assigned(tp)
        return state

    @staticmethod
    def _not_assigned(tp: Partition) -> NotAssigned:
        return NotAssigned(topic=tp[0], partition=tp[1], hint=_ASSIGNING)

    @property
    def _assigned_nothing_yet(self) -> bool:
        """Whether none of its partitions is known here: no call has asked for records since the subscription, or its share is to come."""
        if self._fetcher.partitions:
            return False
        group = self._group
        member = group.membership if group is not None else None
        if group is None or member is None or member.generation < 0:
            return True
        return not (group.assigned or member.is_stable)

    # -- what is known of it

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, in no particular order."""
        return list(self._fetcher.partitions)

    def subscription(self) -> list[str]:
        """The topics that are subscribed to, those that match the pattern too; empty when partitions were assigned by hand."""
        return list(self._watch.names)

    def group_metadata(self) -> GroupMetadata:
        """Who commits: group, generation (member epoch under KIP-848), member and instance, for a producer's transaction
        (KIP-447). Raises ConfigError without a group_id."""
        return self._in_group().group_metadata()

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """By partition, the place behind the last record that was handed out: what a producer's transaction commits for this
        consumer. Raises ConfigError without a group_id."""
        self._put_back()
        return self._in_group().positions()

    def _tell_taken_away(self) -> list[TopicPartition]:
        """The partitions that it does not have any more, and of which records were handed out that no commit covers: once."""
        return self._in_group().handed.tell()

    def _goes_with_transaction(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """A producer's transaction has these offsets."""
        self._in_group().covered(offsets)

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return [tp for tp, state in self._fetcher.partitions.items() if state.paused]

    def lag(self) -> dict[TopicPartition, int | None]:
        """How many offsets each assigned partition is behind its end: the high watermark, or what is decided of transactions
        under read_committed, as of the last fetch; None until there was one. No request is made.
        """
        lags: dict[TopicPartition, int | None] = {}
        for tp, state in self._fetcher.partitions.items():
            end = state.last_stable_offset if self.config.read_committed else state.high_watermark
            position = state.position
            lags[tp] = max(0, end - position) if end >= 0 and position >= 0 else None
        return lags

    def metrics(self) -> ConsumerMetrics:
        """Counters since the start, what is buffered now, and by partition the position, the end as of the last fetch, and
        the distance (None while unknown): `fastq.metrics.ConsumerMetrics`."""
        fetcher, lags = self._fetcher, self.lag()
        partitions: dict[TopicPartition, PartitionMetrics] = {}
        for tp, state in fetcher.partitions.items():
            end = state.last_stable_offset if self.config.read_committed else state.high_watermark
            position = state.position
            partitions[tp] = {
                "position": position if position >= 0 else None,
                "end_offset": end if end >= 0 else None,
                "lag": lags[tp],
                "buffered_bytes": state.buffered_bytes,
            }
        return {
            "fetches": fetcher.counters["fetches"],
            "fetch_errors": fetcher.counters["fetch_errors"],
            "fetched_bytes": fetcher.counters["fetched_bytes"],
            "buffered_bytes": fetcher.buffered_bytes,
            "skipped_records": self._hooks.skipped,
            "partitions": partitions,
        }
