"""What the blocking and the asyncio consumer have in common: everything but waiting.

Rules: `_step` does all that can be done now, and never waits; the two consumers differ in how they come back to it. All of it
runs under the driver's lock, or in its loop.
"""

from __future__ import annotations

import math
import os
import re
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import FetchedRecords, Record
from fastq._native.heartbeat import Progress
from fastq._native.wire import EncodeError
from fastq.consumer.config import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ConsumerConfig
from fastq.consumer.effects import Outgoing
from fastq.consumer.fetcher import FETCH_API, Fetcher
from fastq.consumer.group.commits import Commit, CommittedQuery, OffsetAndMetadata
from fastq.consumer.group.listener import Callback, callbacks_of
from fastq.consumer.group.liveness import HEARTBEAT_APIS, Liveness
from fastq.consumer.group.membership import Change, ChangeKind, GroupMetadata
from fastq.consumer.group.session import GroupSession, log_failure
from fastq.consumer.hooks import Hooks
from fastq.consumer.interrupts import Interruptible
from fastq.consumer.offsets import OffsetQuery
from fastq.consumer.partition import PartitionState, Phase
from fastq.errors import (
    ClientClosed,
    ConfigError,
    ErrorCode,
    FastqError,
    NotAssigned,
    RequestTimedOut,
    UnknownTopicOrPartition,
    error_for_code,
)
from fastq.metadata import TopicPartition
from fastq.metrics import ConsumerMetrics, PartitionMetrics
from fastq.net.core import ClientCore
from fastq.net.diagnosis import not_encodable
from fastq.net.requests import EncodedRequest, VersionedRequest
from fastq.protocol.api import api_name

# A topic or a partition may be in creation: not known for so long is an error.
UNKNOWN_GRACE_S = 3.0
FETCH_VERSION_MIN, FETCH_VERSION_MAX = 4, 18

CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], "FastqError | None"], Any]
# What can be committed: None for all that was handed out, one record, several of them, a batch, or offsets by partition.
Committable: TypeAlias = (
    "Record | Sequence[Record] | ConsumerBatch"
    " | Mapping[TopicPartition | tuple[str, int], int | OffsetAndMetadata] | None"
)


class ConsumerBase(Interruptible):
    """Invariants: with topics and no group, the assignment is all their partitions, as of the metadata last looked at; with a
    group, what its rebalances gave; without topics, it is what the user assigned. `_queries` are those that somebody waits for.
    """

    def __init__(self, topics: tuple[str | re.Pattern[str], ...], config: ConsumerConfig) -> None:
        self.config = config
        self._topics: tuple[str, ...] = ()
        self._hooks = Hooks(config)
        self._core = ClientCore(config, allow_auto_topic_creation=config.allow_auto_create_topics)
        self._fetcher = Fetcher(
            config, self._core.metadata, wall_clock_ms=lambda: int(time.time() * 1000), rng=self._core.random
        )
        self._group: GroupSession | None = None
        self._liveness: Liveness | None = None
        if config.group_id is not None:
            self._group = GroupSession(config, self._core, self._fetcher)
            self._liveness = Liveness(config, self._core, self._group.coordinator)
        self._progress = Progress() if self._liveness is None else self._liveness.progress
        self._in_listener = False
        self._callbacks: deque[Callable[[], Any]] = deque()  # of commit_async, to be called by the application's thread
        self._queries: list[OffsetQuery | CommittedQuery] = []
        self._seen_topics: set[str] = set()
        self._unknown_since: dict[str | TopicPartition, float] = {}
        self._metadata_generation = -1
        self._closed = False
        self._asking = 0  # calls that wait for records
        self._unreachable_since = 0.0  # the first wait without any broker
        self._sends_blocked = False
        self._made_with = topics
        if topics:
            self._subscribe(topics, {})
        _consumers.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """A consumer pickles as what it was made with: topics and configuration, not its position."""
        default = ConsumerConfig()
        given = {key: value for key, value in self.config.as_dict().items() if value != getattr(default, key)}
        return _rebuild, (type(self), self._made_with, given)

    # -- what both sides offer as it is

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, in no particular order."""
        return list(self._fetcher.partitions)

    def subscription(self) -> list[str]:
        """The topics that are subscribed to, those that match the pattern too; empty when partitions were assigned by hand."""
        return list(self._topics)

    def group_metadata(self) -> GroupMetadata:
        """Who commits: group, generation (member epoch under KIP-848), member and instance, for a producer's transaction
        (KIP-447). Raises ConfigError without a group_id."""
        return self._in_group().group_metadata()

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """By partition, the place behind the last record that was handed out: what a producer's transaction commits for this
        consumer. Raises ConfigError without a group_id."""
        return self._in_group().positions()

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
        the distance (None while unknown)."""
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

    def __repr__(self) -> str:
        pattern = self._group.pattern if self._group is not None else None
        what = ", ".join(self._topics) if pattern is None else pattern.pattern
        what = what or f"{len(self._fetcher.partitions)} assigned partitions"
        return f"{type(self).__name__}({what}; {self.config!r})"

    # -- for the two sides

    def _detach(self) -> None:
        """The records at hand may not be the right ones any more: iterators ask again. They lose nothing."""
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed")

    def _raise_errors(self) -> None:
        """Raise what a partition or a topic has to report, once."""
        group = self._group
        error = self._fetcher.take_error() or self._unknown() or (group.take_error() if group else None)
        if error is not None:
            raise error

    def _raise_hopeless(self) -> None:
        """Raise what waiting will not mend, and why no broker was ever reached within default_api_timeout_ms."""
        core = self._core
        error = core.hopeless()
        if error is None and not core.metadata.nodes:
            now = core.clock()
            self._unreachable_since = self._unreachable_since or now
            if now - self._unreachable_since > self.config.default_api_timeout_ms / 1000:
                self._unreachable_since = now
                error = core.last_error
        if error is not None:
            raise error

    def _unknown(self) -> FastqError | None:
        now = self._core.clock()
        for subject, since in self._unknown_since.items():
            if now >= since + UNKNOWN_GRACE_S:
                self._unknown_since[subject] = math.inf  # once
                if isinstance(subject, str):
                    what = "no broker knows the topic; create it, or look at its name"
                    return UnknownTopicOrPartition(what, topic=subject)
                what = "the topic has no such partition; it is read as soon as it has"
                return UnknownTopicOrPartition(what, topic=subject.topic, partition=subject.partition)
        return None

    def _step(self) -> None:
        """Do all that can be done now: follow the metadata, send what is to be sent."""
        now, core, fetcher = self._core.clock(), self._core, self._fetcher
        if core.metadata.generation != self._metadata_generation:
            self._metadata_generation = core.metadata.generation
            self._follow_topics(now)
        self._sends_blocked = any(core.metadata.topic(topic) is None for topic in self._topics)
        if self._group is not None:
            self._follow_life()
            for outgoing in self._group.requests(now, self._can_send):
                self._send(outgoing)
        wants = None
        sources: list[Fetcher | OffsetQuery | CommittedQuery] = [fetcher, *self._queries]
        for source in sources:
            for outgoing in source.requests(now, self._can_send):
                self._send(outgoing)
            if source.wants_metadata is not None:
                wants, source.wants_metadata = source.wants_metadata, None
        if wants is not None:
            self._sends_blocked = True
            core.request_metadata_update(wants)

    def _follow_life(self) -> None:
        """Take in the records that were handed out, and have the thread that stands in for heartbeats follow the membership."""
        if self._group is not None and self._liveness is not None:
            member = self._group.membership
            if member is not None and self._asking:
                self._liveness.waiting(member)
            elif member is not None:
                self._liveness.observe(member)
            self._liveness.follow(member)

    def _can_send(self, node_id: int) -> bool:
        if self._core.can_send(node_id):
            return True
        self._sends_blocked = True
        return False

    def _wakeup_in(self) -> float | None:
        """Seconds until `_step` has something to do without anything happening before."""
        now = self._core.clock()
        waits = [self._fetcher.next_wakeup(now), *(query.next_wakeup(now) for query in self._queries)]
        due = [wait for wait in waits if wait is not None]
        if self._group is not None:
            wait = self._group.next_wakeup(now)
            due += [] if wait is None else [wait]
        reports = (since + UNKNOWN_GRACE_S for since in self._unknown_since.values())
        due += [report - now for report in reports if now < report < math.inf]
        return min(due) if due else None

    def _send(self, outgoing: Outgoing, exchange: Callable[..., None] | None = None) -> None:
        """Send a request; by `exchange` (the blocking driver's) what the application waits for and that is encoded here."""
        core = self._core
        node_id, api_key, build, decode, done, timeout_s, versions = outgoing
        if api_key in HEARTBEAT_APIS and self._liveness is not None:
            self._liveness.sent()

        def completed(response: Any, error: FastqError | None) -> None:
            done(response, error, core.clock())
            self._on_progress()

        try:
            if decode is None:
                core.send(
                    node_id,
                    VersionedRequest(api_key, build),  # type: ignore[arg-type]  # bytes are for those with a decoder
                    completed,
                    timeout_s=timeout_s,
                    versions=versions,
                )
                return
            if api_key == FETCH_API:
                versions = (FETCH_VERSION_MIN, self._fetcher.fetch_version(FETCH_VERSION_MAX))
                # A broker may hold a fetch back for fetch_max_wait_ms before the time-out of the request begins to count.
                timeout_s = (self.config.request_timeout_ms + self.config.fetch_max_wait_ms) / 1000
            low, high = versions or (None, None)
            version = core.api_version(node_id, api_key, min_version=low, max_version=high)
            made = build(version)
            body = made if isinstance(made, bytes) else made.to_bytes(version)
            request = EncodedRequest(api_key, version, [body], lambda view: decode(view, version))
            (exchange or core.send)(node_id, request, completed, timeout_s=timeout_s)
        except FastqError as error:
            done(None, error, core.clock())
        except EncodeError as error:
            done(None, not_encodable(core.broker_label(node_id), api_name(api_key), error), core.clock())

    def _on_progress(self) -> None:
        """An answer has been taken in."""

    def _follow_topics(self, now: float) -> None:
        """Bring the assignment in step with the metadata of the topics."""
        metadata, assigned = self._core.metadata, self._fetcher.partitions
        if self._group is not None and self._group.subscribed:
            self._follow_subscription(self._group, now)
            return
        if not self._topics:
            self._check_assigned(now)
            return
        wanted: list[TopicPartition] = []
        for topic in self._topics:
            found = metadata.topic(topic)
            if found is None or found.error != 0:
                wanted.extend(tp for tp in assigned if tp.topic == topic)
                if found is not None:
                    self._topic_error(topic, found.error, now)
                continue
            self._unknown_since.pop(topic, None)
            wanted.extend(TopicPartition(topic, part.index) for part in found.partitions)
        fresh = [tp for tp in wanted if tp not in assigned and tp.topic in self._seen_topics]
        self._seen_topics.update(tp.topic for tp in wanted)
        self._fetcher.assign(wanted)
        for tp in fresh:
            # Made while this consumer was reading: all of it is new, so "latest" must not pass over it.
            self._fetcher.reset(tp, EARLIEST_TIMESTAMP)

    def _follow_subscription(self, group: GroupSession, now: float) -> None:
        """The metadata of topics that the group divides: report those that are not there, follow the pattern."""
        if group.pattern is not None:
            found = group.follow_pattern()
            if found is not None:
                self._topics = tuple(found)
                self._core.watch_topics(found)
        for topic in self._topics:
            entry = self._core.metadata.topic(topic)
            if entry is not None and entry.error != 0 and group.pattern is None:
                self._topic_error(topic, entry.error, now)
            elif entry is not None:
                self._unknown_since.pop(topic, None)

    def _check_assigned(self, now: float) -> None:
        """What the user assigned may not be there, or not yet: other clients may hear of new partitions first."""
        for topic in {tp.topic for tp in self._fetcher.partitions}:
            found = self._core.metadata.topic(topic)
            if found is not None and found.error != 0:
                self._topic_error(topic, found.error, now)
            elif found is not None:
                self._unknown_since.pop(topic, None)
        for tp in self._fetcher.partitions:
            found = self._core.metadata.topic(tp.topic)
            if found is not None and found.error == 0 and tp.partition >= len(found.partitions):
                self._unknown_since.setdefault(tp, now)
            else:
                self._unknown_since.pop(tp, None)

    def _topic_error(self, topic: str, code: int, now: float) -> None:
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or code == ErrorCode.LEADER_NOT_AVAILABLE:
            self._unknown_since.setdefault(topic, now)
        else:
            self._fetcher.add_error(error_for_code(code, topic=topic))

    def _state(self, tp: TopicPartition | tuple[str, int]) -> PartitionState:
        state = self._fetcher.partitions.get(TopicPartition(*tp))
        if state is None:
            raise ValueError(f"{tp[0]}-{tp[1]} is not assigned to this consumer")
        return state

    def _subscribe(self, topics: Sequence[str | re.Pattern[str]], callbacks: Mapping[ChangeKind, Callback]) -> None:
        """Read these topics: all their partitions, or what the group gives of them."""
        self._check_open()
        names, pattern = _topics_and_pattern(topics)
        group = self._group
        if group is None:
            if pattern is not None:
                raise ConfigError(
                    f"{pattern.pattern!r}: a pattern is subscribed to with a group_id; name the topics instead"
                )
            if callbacks:
                raise ConfigError("rebalance listeners are told of nothing without a group_id")
        elif not group.subscribed and self._fetcher.partitions:
            raise ValueError("partitions are assigned by hand: unsubscribe() first")
        self._core.unwatch_topics(set(self._topics) - set(names))
        self._topics = names
        self._unknown_since.clear()
        if pattern is not None:
            self._core.watch_all_topics()
        self._core.watch_topics(names)
        self._metadata_generation = -1
        if group is not None:
            group.subscribe(names, pattern, callbacks)

    def _assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        self._check_open()
        wanted = [TopicPartition(*tp) for tp in partitions]
        group = self._group
        if group is not None and group.subscribed:
            raise ValueError(f"{group.describe()} decides what is read: unsubscribe() before assign()")
        if self._topics:
            self._core.unwatch_topics(self._topics)
            self._topics = ()
        self._unknown_since.clear()
        self._core.watch_topics({tp.topic for tp in wanted})
        self._detach()
        if group is not None:
            group.dropped(set(self._fetcher.partitions) - set(wanted))
        self._fetcher.assign(wanted, initial=Phase.RESET if group is None else Phase.COMMITTED)
        self._metadata_generation = -1

    def _seek(self, tp: TopicPartition | tuple[str, int], offset: int) -> None:
        self._check_open()
        if offset < 0:
            raise ValueError(
                f"an offset is 0 or more, got {offset}; seek_to_beginning() and seek_to_end() know the ends"
            )
        state = self._state(tp)
        self._detach()
        self._fetcher.seek(state.tp, offset)
        if self._group is not None:
            self._group.handed.forget(state.tp)

    def _reset(self, partitions: Iterable[TopicPartition | tuple[str, int]], timestamp: int) -> None:
        self._check_open()
        states = [self._state(tp) for tp in partitions] or list(self._fetcher.partitions.values())
        self._detach()
        for state in states:
            self._fetcher.reset(state.tp, timestamp)
            if self._group is not None:
                self._group.handed.forget(state.tp)

    def _set_paused(self, partitions: Iterable[TopicPartition | tuple[str, int]], paused: bool) -> None:
        self._check_open()
        states = [self._state(tp) for tp in partitions]
        self._detach()
        for state in states:
            state.paused = paused

    def _query(self, targets: Mapping[TopicPartition, int]) -> OffsetQuery:
        self._check_open()
        self._core.watch_topics({tp.topic for tp in targets})
        query = OffsetQuery(self._core.metadata, targets, self.config.read_committed)
        self._queries.append(query)
        return query

    def _timed_out(self, what: str, timeout_s: float) -> FastqError:
        """The error of a call that did not end in time: what the connections say, if they say anything."""
        return self._core.last_error or RequestTimedOut(f"{what} did not finish within {timeout_s:.3g} s")

    def _pending_ends(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The partitions that have not come to their end yet."""
        states = self._fetcher.partitions
        return {tp: end for tp, end in ends.items() if tp in states and states[tp].position < end}

    def _progress_to(self, pending: Mapping[TopicPartition, int]) -> FetchedRecords | bool | None:
        """A chunk of one of `pending`; True when one of them came to its end without any; None for neither."""
        chunk = self._fetcher.next_chunk(pending)
        if chunk is not None:
            return chunk
        return True if len(self._pending_ends(pending)) < len(pending) else None

    def _take(self, chunk: FetchedRecords, records: list[Record], wanted: int) -> bool:
        """Add records of a chunk to `records`, through the deserializers; whether another chunk may follow.

        Only the first record of a call may raise: an error behind records that were taken is the next call's.
        """
        if self._group is not None:
            self._group.handed.taking(chunk)
        records += chunk.take(wanted - len(records), self._hooks.deserialize, quiet=bool(records))
        return len(records) < wanted and chunk.exhausted

    # -- groups

    def _in_group(self) -> GroupSession:
        if self._group is None:
            raise ConfigError("this needs a group_id: without one there is nothing to commit to")
        return self._group

    def _asks(self) -> None:
        """The application asks for records: it is alive, and done with those it has."""
        if self._in_listener:
            raise RuntimeError("a rebalance listener may commit and seek, but not ask for records")
        group, late = self._group, None
        if group is not None:
            member = group.membership
            if member is not None and self._liveness is not None:
                late = self._liveness.asked(member, group.handed.in_hand())
                member.poll(self._core.clock())
            group.handed.next_asked()
        if late is not None:
            raise late

    def _next_change(self) -> Change | None:
        """The step of a rebalance that is to be carried out before records are handed out."""
        member = self._group.membership if self._group is not None else None
        if member is None:
            return None
        member.poll(self._core.clock())
        return member.changes()

    def _offsets_of(self, what: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is to be committed, by partition; see `Committable`."""
        group = self._in_group()
        if what is None:
            return group.positions()
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        assigned = self._fetcher.partitions
        if isinstance(what, ConsumerBatch):
            what = what.next_offsets
        if type(what) is dict or isinstance(what, Mapping):
            for tp, place in what.items():
                if type(place) is not OffsetAndMetadata:
                    place = OffsetAndMetadata(place)
                offset = place.offset
                if not isinstance(offset, int) or offset < 0:
                    raise ValueError(f"{tp[0]}-{tp[1]}: an offset to commit is an int of 0 or more, got {offset!r}")
                found[tp if type(tp) is TopicPartition else TopicPartition(*tp)] = place
        else:
            for record in [what] if isinstance(what, Record) else what:
                if not isinstance(record, Record):
                    raise TypeError(f"commit takes records, a batch or offsets by partition, got {record!r}")
                tp = TopicPartition(record.topic, record.partition)
                if tp not in found or found[tp].offset <= record.offset:
                    found[tp] = OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)
        if found.keys() <= assigned.keys() or not (group.subscribed or assigned):
            return found
        for tp in found:
            if tp not in assigned:
                raise NotAssigned(
                    f"offset {found[tp].offset} was not committed: the partition is not assigned to this consumer",
                    topic=tp.topic,
                    partition=tp.partition,
                    **{
                        k: v
                        for k, v in zip(("group", "generation", "member"), group.group_metadata()[:3], strict=True)
                        if v
                    },
                    hint="it may belong to another member since the last rebalance, which reads on from the last commit",
                )
        return found

    def _begin_commit(self, what: Any, timeout_s: float, callback: CommitCallback | None = None) -> Commit:
        self._check_open()
        on_done: Callable[[Commit], object] | None = None
        if callback is not None:
            called = callback

            def on_done(commit: Commit) -> None:
                self._callbacks.append(lambda: called(commit.offsets, commit.error))

        return self._in_group().commit(self._offsets_of(what), timeout_s, on_done)

    def _commit_finished(self) -> Commit | None:
        """Begin the commit of what the application is done with, before partitions are given up."""
        group = self._group
        if group is None or not self.config.enable_auto_commit:
            return None
        offsets = group.finished()
        if not offsets:
            return None
        return group.commit(offsets, self.config.request_timeout_ms / 1000, log_failure)


def _topics_and_pattern(topics: Sequence[Any]) -> tuple[tuple[str, ...], re.Pattern[str] | None]:
    """Topics by name, or the one pattern: compiled, or a string that begins with ^, which no name does."""
    if len(topics) == 1 and not isinstance(topics[0], (str, re.Pattern)) and isinstance(topics[0], Iterable):
        topics = tuple(topics[0])
    patterns = [topic for topic in topics if isinstance(topic, re.Pattern) or str(topic).startswith("^")]
    if patterns:
        if len(topics) > 1:
            raise TypeError(f"a subscription is either topics by name or one pattern, got {topics!r}")
        try:
            return (), re.compile(patterns[0])
        except re.error as error:
            raise ValueError(f"the pattern {patterns[0]!r} is not a regular expression: {error}") from error
    for topic in topics:
        if not isinstance(topic, str) or not topic:
            raise TypeError(f"a topic is named by a non-empty str, got {topic!r}")
    return tuple(dict.fromkeys(topics)), None


def listener_callbacks(
    listener: object | None, on_assigned: Callback | None, on_revoked: Callback | None, on_lost: Callback | None
) -> dict[ChangeKind, Callback]:
    """The arguments of `subscribe` as what is called for each kind of change."""
    return callbacks_of(listener, on_assigned, on_revoked, on_lost)


def timestamps_of(partitions: Iterable[TopicPartition | tuple[str, int]], timestamp: int) -> dict[TopicPartition, int]:
    """The same point in time for every partition."""
    return {TopicPartition(*tp): timestamp for tp in partitions}


BEGINNING, END = EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


def _rebuild(cls: Callable[..., Any], topics: tuple[str, ...], given: dict[str, Any]) -> Any:
    return cls(*topics, **given)


_consumers: weakref.WeakSet[ConsumerBase] = weakref.WeakSet()


def _forked() -> None:
    """In a child: nothing at hand is to be handed out twice; the driver refuses the rest."""
    for consumer in list(_consumers):
        consumer._detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
