"""The calls of a consumer that have to wait, written once as generators: each face runs them in its own way.

    found = yield Wait(look, timeout_s)     # what look() found, None when the time is over; errors are thrown in
    yield Tell(callback, partitions)        # the application's code, which may raise

Rules: a call never waits by itself, and leaves nothing behind, whatever is thrown in at a yield. All of it runs under the driver's lock, or
in its loop, but for what is told.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from operator import index
from typing import Any, SupportsIndex, TypeAlias, TypeVar

from fastq._native.consume import FetchedRecords
from fastq.arguments import mapping_of
from fastq.consumer.base import Partition
from fastq.consumer.committable import Committable
from fastq.consumer.config import LATEST_TIMESTAMP
from fastq.consumer.group.commits import Commit
from fastq.consumer.group.listener import Callback, is_due
from fastq.consumer.group.membership import Change, ChangeKind
from fastq.consumer.group.session import GroupSession
from fastq.consumer.offsets import EpochEndQuery, OffsetAndTimestamp, epochs_of, offsets_of
from fastq.consumer.reading import Reading
from fastq.errors import OffsetOutOfRange, UnknownTopicId, UnsupportedVersion
from fastq.metadata import ZERO_UUID, OffsetAndMetadata, TopicPartition, partition_of, partitions_of
from fastq.values import NamedTuple

T = TypeVar("T")
# How long a farewell to the group may take.
LEAVE_S = 3.0


class Wait(NamedTuple):
    """Until `look()` finds something (not None), or the time is over (None: it takes as long as it takes). `asks`: for records, so
    rebalances go on. `quiet`: errors wait for the next call."""

    look: Callable[[], Any]
    timeout_s: float | None
    asks: bool = False
    quiet: bool = False


class Ends(dict[TopicPartition, int]):
    """By partition, the offset after the last record to read. `topic_ids`: of the topics whose ends these are, by name; one that is made
    anew has another. `epochs`: the leader epochs in which brokers have told the ends, where they do; a later leader may have less.
    `held`: those in which leaders are known to have the log up to its end. For one reader."""

    def __init__(
        self,
        offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, bytes],
        epochs: Mapping[TopicPartition, int],
    ) -> None:
        super().__init__(offsets)
        self.topic_ids = topic_ids
        self.epochs = epochs
        self.held = dict(epochs)

    def anew(self) -> Ends:
        """For another reader."""
        return Ends(self, self.topic_ids, self.epochs)


def _truncated(tp: TopicPartition, end: int, place: OffsetAndTimestamp | None) -> OffsetOutOfRange:
    has = "nothing of it" if place is None else f"it up to offset {place.offset} only"
    return OffsetOutOfRange(
        f"the log ended at offset {end} when its end was asked for, and the leader of now has {has}: it was elected without all records",
        topic=tp.topic,
        partition=tp.partition,
        hint="What was read is of the log before, and partly gone; ask again for what is to be read of the log of now",
    )


class Tell(NamedTuple):
    """Call a rebalance listener."""

    callback: Callback
    partitions: Iterable[TopicPartition]


Steps: TypeAlias = Generator["Wait | Tell", Any, T]


class ConsumerCalls(Reading):
    """What both faces do in their own way: run Steps."""

    # -- waiting

    def _must_find(self, look: Callable[[], T | None], timeout: float | None, what: str) -> Steps[T]:
        """What `look` finds; raises when it finds nothing in time."""
        timeout_s = self._api_timeout(timeout)
        found: T | None = yield Wait(look, timeout_s)
        if found is None:
            raise self._timed_out(what, timeout_s)
        return found

    # -- records

    def _first_before(self, ends: Mapping[TopicPartition, int], timeout: float | None) -> Steps[FetchedRecords | None]:
        """The first chunk of what lies before `ends`; None when none came in time, or nothing does any more."""
        # A fetch behind the ends would be for nothing, and hold up what the application does next.
        self._fetcher.until = ends
        while pending := self._before(ends):
            if isinstance(ends, Ends) and (moved := self._moved(ends, pending)):
                if not (yield from self._check_history(ends, moved, timeout)):
                    return None
                continue
            found = yield Wait(partial(self._progress_before, ends, pending), timeout, asks=True)
            if found is None or isinstance(found, FetchedRecords):
                return found
        return None

    def _moved(self, ends: Ends, pending: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The partitions whose leader epoch is later than any that is known to have the log up to its end, and that epoch."""
        found = {}
        for tp in pending:
            held, partition = ends.held.get(tp), self._core.metadata.partition(*tp)
            if held is not None and partition is not None and partition.leader_epoch > held:
                found[tp] = partition.leader_epoch
        return found

    def _check_history(self, ends: Ends, moved: Mapping[TopicPartition, int], timeout: float | None) -> Steps[bool]:
        """See that new leaders have the logs up to their ends, before a record of theirs is handed out; False when that was not known in
        time. One that was elected without all records has less, and gets others in their places: raises OffsetOutOfRange."""
        core, targets = self._core, {tp: ends.epochs[tp] for tp in moved}
        query = EpochEndQuery(core.metadata, core.metadata_updater, targets, False, self._fetcher.troubles)
        self._queries.append(query)
        try:
            if (yield Wait(lambda: query.finished or None, timeout, asks=True)) is None:
                return False
        finally:
            self._queries.remove(query)
            query.end()
        if not isinstance(query.error, UnsupportedVersion):  # a broker that cannot tell is believed
            for tp, place in query.answers(moved).items():
                if place is None or place.offset < ends[tp]:
                    raise _truncated(tp, ends[tp], place)
        ends.held.update(moved)
        return True

    def _before(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The partitions that have not come to their end yet. Raises UnknownTopicId where the topic is another by now: nothing of what is
        in its place lies before that end."""
        topic_ids: Mapping[str, bytes] = ends.topic_ids if isinstance(ends, Ends) else {}
        for name, topic_id in topic_ids.items():
            found = self._core.metadata.topic(name)
            if found is not None and found.topic_id not in (ZERO_UUID, topic_id):
                raise UnknownTopicId(
                    "the topic was deleted and made anew since its end was asked for",
                    topic=name,
                    hint="What was read is of the topic before; ask again for what is to be read of the new one",
                )
        return self._pending_ends(ends)

    def _progress_before(
        self, ends: Mapping[TopicPartition, int], pending: Mapping[TopicPartition, int]
    ) -> FetchedRecords | bool | None:
        """`_progress_to` the ends of the same topics, under leaders that are known to have them."""
        self._before(ends)
        if isinstance(ends, Ends) and self._moved(ends, pending):
            return True
        return self._progress_to(pending)

    def _at_hand_before(self, ends: Mapping[TopicPartition, int]) -> FetchedRecords | None:
        """A further chunk before `ends`, of what was fetched by now."""
        pending = self._pending_ends(ends)
        if not pending or (isinstance(ends, Ends) and self._moved(ends, pending)):
            return None
        return self._fetcher.next_chunk(pending)

    def _next_to_iterate(
        self, ends: Mapping[TopicPartition, int] | None = None, timeout: float | None = None
    ) -> Steps[FetchedRecords | None]:
        """The next chunk of an iterator, before `ends`, or without an end. None behind the ends, or when none came within `timeout`."""
        chunk: FetchedRecords | None
        if ends is not None:
            chunk = yield from self._first_before(ends, timeout)
        else:
            self._fetcher.until = None
            chunk = yield Wait(self._fetcher.next_chunk, None, asks=True)
        if self._group is not None:
            self._group.iterating(chunk)
        return chunk

    def _find_partitions(self, timeout: float | None) -> Steps[list[TopicPartition]]:
        """What is assigned, once the topics are found and the group has given a share of them, which may be nothing; nothing, too, where
        `stop` was called."""
        self._check_open()
        self._must_read()
        timeout_s, partitions = self._api_timeout(timeout), self._fetcher
        end, is_subscribed = self._core.clock() + timeout_s, bool(self._watch.names)
        group = self._group

        def has_nothing() -> bool:
            return group is not None and group.has_no_share(self._watch.names)

        while not partitions.partitions and (is_subscribed or (group is not None and group.subscribed)):
            left_s = max(end - self._core.clock(), 0.0)
            found = yield Wait(lambda: bool(partitions.partitions) or has_nothing() or None, left_s, asks=True)
            if found is None and not self._stopping and not self._reads_nothing:
                raise self._timed_out("finding the topics", timeout_s)
            if found is None or group is None or partitions.partitions:
                break
            # Others may have to give up first what it is to get.
            grows_s = min(group.share_grows_s, max(end - self._core.clock(), 0.0))
            if (yield Wait(lambda: None if has_nothing() else True, grows_s, asks=True)) is None:
                break
        return self.assignment()

    def _find_ends(self, timeout: float | None) -> Steps[Ends]:
        """The end offsets of what is assigned, as soon as it is; of nothing, where `stop` was called."""
        partitions = yield from self._find_partitions(timeout)
        known = self._topic_ids(partitions)
        found = yield from self._ask(dict.fromkeys(partitions, LATEST_TIMESTAMP), timeout, stops=True)
        return Ends(offsets_of(found), {**self._topic_ids(partitions), **known}, epochs_of(found))

    def _topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, bytes]:
        """The ids of their topics, where brokers tell them, by name."""
        topics = (self._core.metadata.topic(name) for name in {tp.topic for tp in partitions})
        return {topic.name: topic.topic_id for topic in topics if topic is not None and topic.topic_id != ZERO_UUID}

    # -- offsets

    def _ask(
        self, targets: Mapping[TopicPartition, int], timeout: float | None, *, stops: bool = False
    ) -> Steps[dict[TopicPartition, OffsetAndTimestamp | None]]:
        """Where points in time lie in the logs. `stops`: nothing is answered where `stop` is called."""
        query = self._query(targets)
        try:
            yield from self._must_find(
                lambda: query.finished or (stops and self._stopping) or None, timeout, "asking for offsets"
            )
        finally:
            self._end_query(query, targets)
        return {} if stops and self._stopping else query.answers(targets)

    def _ask_ends(
        self, partitions: Iterable[Partition], end: int, timeout: float | None
    ) -> Steps[dict[TopicPartition, int]]:
        """The first offset of partitions, or the one after the last: EARLIEST_TIMESTAMP or LATEST_TIMESTAMP."""
        return offsets_of((yield from self._ask(dict.fromkeys(partitions_of(partitions), end), timeout)))

    def _ask_times(
        self, timestamps: Mapping[Any, int], timeout: float | None
    ) -> Steps[dict[TopicPartition, OffsetAndTimestamp | None]]:
        """Where times lie in partitions. TypeError for a time that is no int, ValueError for a negative one."""
        for time_ms in mapping_of(timestamps, "timestamps", '{TopicPartition("logs", 0): 1700000000000}').values():
            if isinstance(time_ms, bool) or not isinstance(time_ms, SupportsIndex):
                raise TypeError(f"a time is an int of milliseconds since 1970, got {time_ms!r}")
            if not 0 <= index(time_ms) < 2**63:
                raise ValueError(
                    f"a time is milliseconds since 1970, 0 to 2**63 - 1, got {time_ms}; beginning_offsets() and end_offsets() know the ends"
                )
        times = {partition_of(tp): index(time_ms) for tp, time_ms in timestamps.items()}
        return (yield from self._ask(times, timeout))

    def _ask_position(self, partition: Partition, timeout: float | None) -> Steps[int]:
        """The position of a partition, once it is known."""
        state = self._state(partition)
        if state.position >= 0:
            return state.position

        def look() -> int | None:
            """-1 for a partition that is not read any more: nobody finds its position, however long the call waits."""
            now = self._fetcher.partitions.get(state.tp)
            return -1 if now is None else now.position if now.position >= 0 else None

        found = yield from self._must_find(look, timeout, f"position({partition})")
        if found < 0:
            raise self._not_assigned(state.tp)
        return found

    def _ask_committed(
        self, partitions: Iterable[Partition], timeout: float | None
    ) -> Steps[dict[TopicPartition, OffsetAndMetadata | None]]:
        """What the group has committed."""
        wanted = partitions_of(partitions)
        self._check_open()
        query = self._in_group().committed_query(wanted)
        self._queries.append(query)
        try:
            yield from self._must_find(lambda: query.finished or None, timeout, "asking for committed offsets")
        finally:
            self._queries.remove(query)
        if query.error is not None:
            raise query.error
        return {tp: query.results[tp] for tp in wanted}

    # -- commits

    def _commit(
        self, what: Committable, timeout: float | None, hurry: Callable[[Commit, float], None] | None = None
    ) -> Steps[None]:
        """Commit, and wait until it is done. hurry: a short way to try first."""
        timeout_s = self._api_timeout(timeout)
        commit = self._begin_commit(what, timeout_s)
        if not commit.finished and hurry is not None:
            hurry(commit, timeout_s)
        if not commit.finished:
            yield Wait(lambda: commit.finished or None, timeout_s + 1.0, quiet=True)
        if commit.error is not None or not commit.finished:
            raise commit.error or self._timed_out("commit()", timeout_s)

    def _commit_and_wait(self, timeout: float | None = None) -> Steps[None]:
        """Commit what is finished, and wait for this and all commits before it."""
        self._commit_finished()
        committer = self._in_group().committer
        if committer.busy:
            timeout_s = self.config.request_timeout_ms / 1000 if timeout is None else timeout
            yield Wait(lambda: not committer.busy or None, timeout_s, quiet=True)

    # -- groups

    def _carry_out(self, change: Change) -> Steps[None]:
        """A step of a rebalance. It is done whatever the listener raises, which comes out of the call."""
        group = self._in_group()
        member = group.membership
        if change.kind is ChangeKind.ASSIGN:
            group.apply(change)  # before: where there is no memory for it, it is a step of the next call
        try:
            if change.kind is ChangeKind.REVOKE:
                yield from self._commit_and_wait()
            callback = group.callbacks.get(change.kind)
            if callback is not None and is_due(change):
                yield Tell(callback, change.partitions)
        finally:
            # A listener may have ended the membership, and assigned other partitions since.
            if change.kind is not ChangeKind.ASSIGN and group.membership is member:
                group.apply(change)
            if member is not None:
                member.carried_out(change)
            self._watch.tidy()

    def _unsubscribe(self) -> Steps[None]:
        self._check_open()
        self._detach()
        yield from self._leave_group("the application unsubscribes")
        if self._group is not None:
            self._group.let_go(list(self._fetcher.partitions))
        self._fetcher.assign(())
        self._watch.read(())
        self._changed()

    def _leave_group(self, reason: str, timeout: float | None = None) -> Steps[None]:
        """Commit what is due, tell the listener, unless it is the one that leaves, and leave. Errors of leaving are nobody's concern.

        What a member still has without a place in the group is lost: it belongs to others.
        """
        group, told = self._group, self._in_listener
        if group is None:
            return
        self._settle_life()
        yield from self._commit_and_wait(timeout)
        self._settle_life()
        member = group.membership
        owned = tuple(member.owned) if member is not None else ()
        kind = ChangeKind.REVOKE if member is not None and member.generation >= 0 else ChangeKind.LOSE
        callback = group.callbacks.get(kind)
        try:
            if owned and callback is not None and not told:
                yield Tell(callback, sorted(owned))
        finally:
            yield from self._farewell(group, reason, LEAVE_S)

    def _farewell(self, group: GroupSession, reason: str, timeout_s: float) -> Steps[None]:
        """Say what is left to say, leave for good, and wait for the answer."""
        left: list[bool] = []
        for outgoing in group.end_membership(reason):
            for commit in group.committer.requests(self._core.clock(), self._core.can_send):
                self._send(commit)
            self._send(outgoing._replace(done=lambda response, error, at: left.append(True), timeout_s=timeout_s))
            yield Wait(lambda: left or None, timeout_s, quiet=True)
