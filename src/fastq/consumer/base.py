"""What the blocking and the asyncio consumer have in common: everything but waiting.

Rules: `_step` does all that can be done now, and never waits; the two consumers differ in how they come back to it. All of it
runs under the driver's lock, or in its loop.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import FetchedRecords, Record
from fastq._native.heartbeat import Progress
from fastq.arguments import int_of
from fastq.callbacks import check_plain
from fastq.consumer.committable import Committable, offsets_to_commit
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.effects import Outgoing
from fastq.consumer.fetcher import FETCH_API, Fetcher
from fastq.consumer.group.commits import Commit, CommittedQuery
from fastq.consumer.group.handed import Place
from fastq.consumer.group.listener import Callback
from fastq.consumer.group.liveness import HEARTBEAT_APIS, Liveness
from fastq.consumer.group.membership import Change, ChangeKind
from fastq.consumer.group.session import GroupSession, log_failure
from fastq.consumer.hooks import Hooks
from fastq.consumer.interrupts import Interruptible
from fastq.consumer.left_over import kept_by_the_last_error
from fastq.consumer.offsets import OffsetQuery
from fastq.consumer.topic_watch import TopicWatch
from fastq.consumer.topics import settings_and_topics, topics_and_pattern
from fastq.errors import (
    ClientClosed,
    ConfigError,
    FastqError,
    NotAssigned,
    RequestTimedOut,
    WaitTimeout,
)
from fastq.metadata import OffsetAndMetadata, TopicPartition
from fastq.net.core import ClientCore
from fastq.net.diagnosis import muted, not_sent
from fastq.net.requests import EncodedRequest, VersionedRequest
from fastq.other_clients import refuse_keywords
from fastq.protocol.api import api_name
from fastq.timeouts import check_timeout

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:  # as in fastq.producer.typed: a default is for type checkers, and typing has it from Python 3.13 on
    from typing import TypeVar

    K, V = TypeVar("K"), TypeVar("V")

logger = logging.getLogger("fastq.consumer")

FETCH_VERSION_MIN, FETCH_VERSION_MAX = 4, 18
OVERDUE_S = 0.02
"""How long to wait for what is due and cannot be sent, before it is tried again."""

Partition: TypeAlias = "TopicPartition | tuple[str, int]"
# A topic by its name, a pattern, or several topics by their names.
Topics: TypeAlias = "str | re.Pattern[str] | Iterable[str]"
CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], "FastqError | None"], Any]


class ConsumerBase(Interruptible):
    """Invariants: `_watch` says what is assigned; `_queries` are those that somebody waits for."""

    def __init__(self, given: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        settings, topics = settings_and_topics(given)
        config = ConsumerConfig.of(settings, options)
        self.config = config
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
            self._group.handed.progress = self._liveness.progress
        self._watch = TopicWatch(self._core, self._fetcher, self._group)
        self._progress = Progress() if self._liveness is None else self._liveness.progress
        self._in_listener = False
        self._deserializing: FetchedRecords | None = None  # what a deserializer is called for, perhaps
        self._taken: dict[TopicPartition, Place] | None = None  # by a call that has not returned: where it began
        self._callbacks: deque[Callable[[], Any]] = deque()  # of commit_async, to be called by the application's thread
        self._queries: list[OffsetQuery | CommittedQuery] = []
        # Those that were handed out: they keep their consumer alive, not it them.
        self._iterators: list[weakref.ref[Any]] = []
        self._closed = False
        self._asking = 0  # calls that wait for records
        self._unreachable_since = 0.0  # the first wait without any broker
        self._muted: int | None = None  # the broker that a quota kept from being asked in the last step
        self._heard_at = math.inf  # when the first of those that kept the last step from asking may be asked
        self._sends_blocked = False
        self._made_with = topics
        if topics:
            try:
                self._subscribe(topics, {})
            except BaseException:
                self._closed = True  # nobody gets it, so nobody is to be reminded of close()
                raise
        _consumers.add(self)
        if self._group is not None:
            self._tell_of_left_over()

    def _tell_of_left_over(self) -> None:
        """Say that an earlier consumer still has a share of the group's partitions, where it is known that nobody reads it any more."""
        config = self.config
        for other in kept_by_the_last_error(ConsumerBase):
            group, theirs = other._group, other.config
            if (theirs.group_id, theirs.bootstrap_servers) != (config.group_id, config.bootstrap_servers):
                continue
            if group is not None and group.membership is not None and not other._closed and not other._asking:
                logger.warning(
                    "group %s has a member in this process already, %r, which was open when the last error came (sys.last_value keeps "
                    "it): records of its %d partitions come to nobody before it is closed, or max_poll_interval_ms=%d is over; use `with "
                    "%s(...)`, or call its close() before a cell is run again",
                    config.group_id,
                    other,
                    len(other._fetcher.partitions),
                    theirs.max_poll_interval_ms,
                    type(other).__name__,
                )

    def __reduce__(self) -> tuple[Any, ...]:
        """A consumer pickles as what it was made with: topics and configuration, not its position."""
        default = ConsumerConfig()
        given = {key: value for key, value in self.config.as_dict().items() if value != getattr(default, key)}
        return _rebuild, (type(self), self._made_with, given)

    def __repr__(self) -> str:
        pattern = self._group.pattern if self._group is not None else None
        what = ", ".join(self._watch.names) if pattern is None else pattern.pattern
        what = what or f"{len(self._fetcher.partitions)} assigned partitions"
        return f"{type(self).__name__}({what}; {self.config!r})"

    # -- what the two sides do in their own way

    _turn: AbstractContextManager[Any]  # held by every call: the lock, or nothing in an event loop

    def _dropped(self) -> None:
        """Nobody has it any more, or the program ends: let go of the group and of the connections, without the application's code."""
        raise NotImplementedError

    def _pump(self) -> None:
        """Send what can be sent."""
        raise NotImplementedError

    def _changed(self) -> None:
        """What is read is another: whoever waits looks again."""

    def _check_listener(self, callback: Callback) -> None:
        """Refuse a function that cannot be called for a rebalance."""

    def _told(self) -> Callable[[], None] | None:
        """What is called when an answer has been taken in."""
        return None

    # -- for the two sides

    def _api_timeout(self, timeout: float | None) -> float:
        check_timeout(timeout)
        return self.config.default_api_timeout_ms / 1000 if timeout is None else timeout

    def _detach(self) -> None:
        """The records at hand may not be the right ones any more: iterators ask again. They lose nothing."""
        self._fetcher.until = None
        self._detach_iterators()

    def _detach_iterators(self) -> None:
        for ref in self._iterators:
            iterator = ref()
            if iterator is not None:
                iterator.detach()

    def _remember(self, iterator: Any) -> None:
        """An iterator is handed out."""
        self._iterators = [ref for ref in self._iterators if ref() is not None] + [weakref.ref(iterator)]

    def __del__(self) -> None:
        # Where __init__ has failed there is nothing to close.
        if not self.__dict__.get("_closed", True):
            warnings.warn(f"{self!r} was dropped without close()", ResourceWarning, stacklevel=2)
            self._dropped()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed")

    def _raise_errors(self) -> None:
        """Raise what a partition or a topic has to report, once."""
        group = self._group
        error = (
            self._fetcher.take_error()
            or self._watch.missing(self._core.clock())
            or (group.take_error() if group else None)
        )
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

    def _step(self) -> None:
        """Do all that can be done now: follow the metadata, send what is to be sent."""
        now, core, fetcher = self._core.clock(), self._core, self._fetcher
        self._sends_blocked, self._heard_at = not self._watch.follow(now), math.inf
        if self._group is not None:
            self._follow_life()
            for outgoing in self._group.requests(now, self._can_send):
                self._send(outgoing)
        wants = None
        sources: list[Fetcher | OffsetQuery | CommittedQuery] = [fetcher, *self._queries]
        for source in sources:
            self._muted = None  # of the last of them, which is the call's: others may wait for others
            for outgoing in source.requests(now, self._can_send):
                self._send(outgoing)
            if source.wants_metadata is not None:
                wants, source.wants_metadata = source.wants_metadata, None
        if wants is not None:
            self._sends_blocked = True
            core.request_metadata_update(wants)

    def _follow_life(self) -> None:
        """Take in the records that were handed out, and have the thread that stands in for heartbeats follow the membership."""
        if self._group is not None and self._asking:
            self._group.polled = True
        if self._group is not None and self._liveness is not None:
            member = self._group.membership
            if self._asking:
                self._liveness.waiting(member)
            elif member is not None:
                self._liveness.observe(member)
            self._liveness.follow(member)
        if self._group is not None and self._group.membership is not None and self._group.membership.due:
            self._detach_iterators()  # an iterator's chunk may last for long: what is to be given up is not to wait for its end

    def _settle_life(self) -> None:
        """Have the member know whether it still has its place in the group: nobody may have looked since the application came back."""
        member = self._group.membership if self._group is not None else None
        if member is not None and self._liveness is not None:
            for outgoing in self._liveness.settle(member, self._core.can_send):
                self._send(outgoing)

    def _can_send(self, node_id: int) -> bool:
        core = self._core
        if core.can_send(node_id):
            return True
        heard_at = core.throttled_until(node_id)
        if heard_at > core.clock():  # nothing but the clock changes that
            self._muted, self._heard_at = node_id, min(self._heard_at, heard_at)
        else:
            self._sends_blocked = True
        return False

    def _wakeup_in(self) -> float | None:
        """Seconds until `_step` has something to do without anything happening before. What was due in the last one already could not be
        sent: it waits for an event, as a connection is, or for the end of somebody's back-off."""
        now = self._core.clock()
        waits = [self._fetcher.next_wakeup(now), *(query.next_wakeup(now) for query in self._queries)]
        due = [wait for wait in waits if wait is not None]
        if self._group is not None:
            wait = self._group.next_wakeup(now)
            due += [] if wait is None else [wait]
        due += self._watch.next_reports(now)
        if self._heard_at < math.inf:
            due.append(self._heard_at - now)
        return min(wait if wait > 0 else OVERDUE_S for wait in due) if due else None

    def _send(self, outgoing: Outgoing, exchange: Callable[..., None] | None = None) -> None:
        """Send a request; by `exchange` (the blocking driver's) what the application waits for and that is encoded here."""
        core = self._core
        node_id, api_key, build, decode, done, timeout_s, versions = outgoing
        failed = False
        try:
            if api_key in HEARTBEAT_APIS and self._liveness is not None:
                self._liveness.sent()
            told = self._told()

            # Without a reference to the consumer, which nobody may have any more when the answer comes.
            def completed(response: Any, error: FastqError | None) -> None:
                if failed:
                    return
                if error is None and (throttle_ms := getattr(response, "throttle_time_ms", 0)) > 0:
                    core.throttle(node_id, throttle_ms / 1000, core.clock())
                done(response, error, core.clock())
                if told is not None:
                    told()

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
        except Exception as error:  # no memory, for one: who made it takes it for sent, and waits
            failed = True
            done(None, not_sent(core.broker_label(node_id), api_name(api_key), error), core.clock())

    @property
    def _reads_nothing(self) -> bool:
        """Whether there is neither a subscription nor an assignment, so that no waiting brings a record."""
        subscribed = self._watch.names or (self._group is not None and self._group.subscribed)
        return not subscribed and not self._fetcher.partitions

    def _must_read(self) -> None:
        """Raises NotAssigned when there is nothing to wait for."""
        if self._reads_nothing and not self._closed and not self._stopping:
            raise NotAssigned(
                "there is nothing to read: the consumer is not subscribed to any topics, and no partitions are assigned to it",
                hint="Name topics when it is made, Consumer('orders', ...), or call subscribe('orders') or assign([('orders', 0)])",
            )

    def _subscribe(self, topics: Sequence[str | re.Pattern[str]], callbacks: Mapping[ChangeKind, Callback]) -> None:
        """Read these topics: all their partitions, or what the group gives of them."""
        self._check_open()
        names, pattern = topics_and_pattern(topics)
        group = self._group
        if not names and pattern is None:
            raise ValueError("no topics are named: unsubscribe() is what reads nothing any more")
        if self._fetcher.partitions and not self._watch.names and (group is None or not group.subscribed):
            raise ValueError("partitions are assigned by hand: unsubscribe() first")
        if group is None:
            if pattern is not None:
                raise ConfigError(
                    f"{pattern.pattern!r}: a pattern is subscribed to with a group_id; name the topics instead"
                )
            if callbacks:
                raise ConfigError("rebalance listeners are told of nothing without a group_id")
        if group is not None and pattern is not None:
            names = group.matched_so_far(pattern)
        self._watch.read(names, pattern)
        if group is not None:
            group.subscribe(names, pattern, callbacks)

    def _query(self, targets: Mapping[TopicPartition, int]) -> OffsetQuery:
        self._check_open()
        self._core.metadata_updater.look_at({tp.topic for tp in targets})
        core, fetcher = self._core, self._fetcher
        query = OffsetQuery(core.metadata, core.metadata_updater, targets, self.config.read_committed, fetcher.troubles)
        self._queries.append(query)
        return query

    def _end_query(self, query: OffsetQuery, targets: Iterable[TopicPartition]) -> None:
        self._queries.remove(query)
        query.end()
        self._core.metadata_updater.look_away({tp.topic for tp in targets})

    def _timed_out(self, what: str, timeout_s: float) -> FastqError:
        """The error of a call that did not end in time: what does not get on, or what the connections say, if they say anything."""
        late = f"{what} did not finish within {timeout_s:.3g} s"
        for trouble in self._fetcher.troubles:
            return RequestTimedOut(late, cause=trouble.why())
        core = self._core
        quota = None if self._muted is None else muted(core, self._muted)
        if quota is not None:
            return RequestTimedOut(late, cause=quota)
        return core.last_error or RequestTimedOut(late)

    def _unserved(self) -> FastqError | None:
        """Why no record comes although brokers can be reached, when it is not that there is none."""
        core = self._core
        for trouble in self._fetcher.troubles:
            return trouble.why()
        for tp in self._fetcher.partitions:
            leader = core.metadata.leader(*tp)
            error = None if leader is None else core.why_not(leader.node_id)
            if error is not None:
                return error.with_context(topic=tp.topic, partition=tp.partition)
        group = self._group
        if group is None or not group.subscribed or (group.membership is not None and group.membership.generation >= 0):
            return None
        coordinator = group.coordinator
        error = core.why_not(coordinator.node_id) if coordinator.known else None
        return error or WaitTimeout(f"group {coordinator.group_id} has not been joined", group=coordinator.group_id)

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

    def _wanted(self, refused: tuple[Any, ...], foreign: Mapping[str, Any], max_records: int | None) -> int:
        """How many records a call of poll() is to answer at most."""
        self._by_name("poll", refused)
        if foreign:
            refuse_keywords("poll", foreign)
        wanted = self.config.max_poll_records if max_records is None else max_records
        return wanted if type(wanted) is int and 0 < wanted < 2**31 else int_of(wanted, "max_records", 1)

    @staticmethod
    def _by_name(call: str, refused: tuple[Any, ...]) -> None:
        """Seconds to one client's users are a number of records to another's: neither is guessed."""
        if refused:
            count = f", a number of records {call}(max_records={refused[0]!r})" if call == "poll" else ""
            raise TypeError(
                f"{call}({', '.join(map(repr, refused))}): its arguments go by name; a time-out in seconds is "
                f"{call}(timeout={refused[0]!r}){count}"
            )

    def _take(self, chunk: FetchedRecords, records: list[Record], wanted: int) -> bool:
        """Add records of a chunk to `records`, through the deserializers; whether another chunk may follow.

        Only the first record of a call may raise: an error behind records that were taken is the next call's.
        """
        self._taking(chunk)
        before = len(records)
        # The mark is the chunk's own, which is native: one made here could be left behind by an interrupt.
        self._deserializing = chunk
        try:
            records += chunk.take(wanted - len(records), self._hooks.deserialize, quiet=bool(records))
        except Exception:
            self._taken = None
            raise
        finally:
            self._deserializing = None
        if self._group is not None and len(records) > before:
            self._group.handed.took(TopicPartition(chunk.topic, chunk.partition))
        return len(records) < wanted and chunk.exhausted

    def _take_columns(self, chunk: FetchedRecords, batch: ConsumerBatch) -> bool:
        """Add what is left of a chunk to a batch; whether another chunk may follow. Raises as `_take` does."""
        self._taking(chunk)
        try:
            added = batch.add(chunk, bytes_max=self.config.prefetch_bytes_max)
        except Exception:
            if len(batch):
                return False
            self._taken = None
            raise
        if self._group is not None and added:
            self._group.handed.took(TopicPartition(chunk.topic, chunk.partition))
        return True

    def _taking(self, chunk: FetchedRecords) -> None:
        """Records of a chunk are about to be taken, and returned by the call that is under way unless something interrupts it."""
        tp = TopicPartition(chunk.topic, chunk.partition)
        place = chunk.position, chunk.position_epoch
        if self._taken is None:
            self._taken = {}
        self._taken.setdefault(tp, place)
        if self._group is not None:
            self._group.taking(tp, place)

    def _put_back(self) -> None:
        """What a call had taken when it was interrupted (KeyboardInterrupt, SystemExit of a handler) was seen by nobody."""
        taken = self._taken
        if taken is None:
            return
        self._detach()
        for tp, (offset, epoch) in taken.items():
            state = self._fetcher.partitions.get(tp)
            if state is not None and state.position > offset:
                self._fetcher.go_back(tp, offset, epoch)
        self._taken = None

    # -- groups

    def _in_group(self) -> GroupSession:
        if self._group is None:
            raise ConfigError("this needs a group_id: without one there is nothing to commit to")
        return self._group

    def _asks(self) -> None:
        """The application asks for records: it is alive, and done with those it has."""
        if self._deserializing is not None and self._deserializing.taking:
            raise RuntimeError("a deserializer may not ask the consumer that calls it for records")
        self._put_back()
        if self._in_listener:
            raise RuntimeError("a rebalance listener may commit and seek, but not ask for records")
        self._must_read()
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

    def _begin_commit(self, what: Committable, timeout_s: float, callback: CommitCallback | None = None) -> Commit:
        self._check_open()
        on_done: Callable[[Commit], object] | None = None
        if callback is not None:
            check_plain(callback, "the callback of commit_async", "It is called with (offsets, error), and not awaited")
            called, callbacks = callback, self._callbacks

            def on_done(commit: Commit) -> None:
                callbacks.append(lambda: called(commit.offsets, commit.error))

        self._put_back()
        group = self._in_group()
        offsets = offsets_to_commit(what, group, self._fetcher.partitions)
        group.handed.choosing(offsets)
        return group.commit(offsets, timeout_s, on_done)

    def _tell_callbacks(self) -> None:
        """Call what is left to call of commit_async, at the end. What one raises comes out when all have been called."""
        with ExitStack() as calls:
            while self._callbacks:
                calls.callback(self._callbacks.pop())  # the last one first: a stack calls them the other way round

    def _commit_finished(self) -> Commit | None:
        """Begin the commit of what the application is done with, before partitions are given up."""
        group = self._group
        if group is None or not self.config.enable_auto_commit:
            return None
        offsets = group.finished()
        if not offsets:
            return None
        return group.commit(offsets, self.config.request_timeout_ms / 1000, log_failure)


def _rebuild(cls: Callable[..., Any], topics: tuple[str, ...], given: dict[str, Any]) -> Any:
    return cls(*topics, **given)


_consumers: weakref.WeakSet[ConsumerBase] = weakref.WeakSet()


def _forked() -> None:
    """In a child: nothing at hand is to be handed out twice; the driver refuses the rest."""
    for consumer in list(_consumers):
        consumer._detach()


def _close_at_exit() -> None:
    """Members that the program forgets leave their groups, which would wait for them for session_timeout_ms."""
    for consumer in list(_consumers):
        if not consumer._closed and consumer._group is not None:
            consumer._dropped()


atexit.register(_close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
