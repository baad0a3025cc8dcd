"""A consumer's side of its group: the coordinator, the membership, commits and the offsets to begin at. Sans-I/O.

Rules
- Whatever is sent comes out of `requests`; whatever is to be done by the application's thread is a Change of the membership.
- Without a subscription (the partitions are assigned by hand) there is no membership, and commits are made in the name of nobody.
- A partition that is assigned waits in Phase.COMMITTED until its committed offset is known, or the user seeks.
- Committed by itself is only what the application is done with: see `Handed`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from fastq._native.consume import FetchedRecords
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.effects import Outgoing
from fastq.consumer.fetcher import Fetcher
from fastq.consumer.group.assignors import find_assignors
from fastq.consumer.group.classic import ClassicMember
from fastq.consumer.group.commits import Commit, CommittedQuery, Committer, Offsets
from fastq.consumer.group.consumer_protocol import ConsumerProtocolMembership
from fastq.consumer.group.coordinator import JOINED, KEPT, TAKEN, Coordinator
from fastq.consumer.group.handed import Handed, Place
from fastq.consumer.group.listener import Callback
from fastq.consumer.group.membership import (
    CanSend,
    Change,
    ChangeKind,
    Membership,
    Subscription,
    group_error,
    subscription_of,
)
from fastq.consumer.partition import PartitionState, Phase
from fastq.errors import ErrorCode, FastqError, UnknownTopicId, UnsupportedVersion
from fastq.metadata import ZERO_UUID, GroupMetadata, OffsetAndMetadata, TopicPartition
from fastq.net.core import ClientCore
from fastq.net.diagnosis import muted

logger = logging.getLogger("fastq.consumer")

CONSUMER_GROUP_HEARTBEAT_API = 68
GROUP_FEATURE = "group.version"
HEARTBEATS = 3
"""Of others and of this member, until a share that waits for others is known; and one more, as they take some time to give up theirs."""


class GroupSession:
    """Invariants: `membership` is set exactly while there is a subscription and the coordinator has been asked once which protocols
    it speaks, and of somebody who has asked for records since (`polled`): a member that nobody polls has others wait for their
    partitions, up to max_poll_interval_ms. `_committed` is what the coordinator is known to have, of partitions that are read. Thread
    rule: under the driver's lock, or in its loop.
    """

    def __init__(self, config: ConsumerConfig, core: ClientCore, fetcher: Fetcher) -> None:
        assert config.group_id is not None
        self.config = config
        self.core = core
        self.fetcher = fetcher
        self.handed = Handed()
        self.membership: Membership | None = None
        self.callbacks: Mapping[ChangeKind, Callback] = {}
        self.pattern: re.Pattern[str] | None = None
        self.subscribed = False
        self.errors: list[FastqError] = []
        self.assignors = find_assignors(config.partition_assignment_strategy)
        self.coordinator = Coordinator(
            config.group_id,
            troubles=fetcher.troubles,
            any_broker=core.least_loaded,
            separate=core.separate,
            backoff_ms=(config.retry_backoff_ms, config.retry_backoff_max_ms),
            random=core.random,
        )
        self.committer = Committer(
            self.coordinator,
            self._commit_refused,
            self._restamped,
            self._note_committed,
            self._is_gone,
            self._topic_id,
            partial(muted, core),
        )
        self.polled = False
        self.assigned = False  # a share, perhaps of nothing, which was not lost since
        self._protocol = config.group_protocol
        self._refused: FastqError | None = None  # why there will be no membership
        self._subscription = Subscription()
        self._ask_at = 0.0  # when to ask where to begin, after it was refused
        self._asked = False  # the application has asked what is committed
        self._query: CommittedQuery | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._commit_at = core.clock() + config.auto_commit_interval_ms / 1000
        self._auto: Commit | None = None
        # What was taken away from a member that is to be given its records again, in case that the rebalance gives it back.
        self._again: dict[TopicPartition, PartitionState] = {}

    # -- who

    def group_metadata(self) -> GroupMetadata:
        """This consumer, for a producer's transaction. One that has lost its place is named by that: the coordinator refuses what it
        has read, which may be somebody else's by now, and would take it from nobody in particular."""
        lost = None if self.membership is None else self.membership.lost
        return self._who() if lost is None else lost

    def _who(self) -> GroupMetadata:
        """This consumer, as its commits name it."""
        instance, group_id = self.config.group_instance_id, self.coordinator.group_id
        member = self.membership
        if member is None or not member.member_id:
            return GroupMetadata(group_id, group_instance_id=instance)
        return GroupMetadata(group_id, member.generation, member.member_id, instance)

    def describe(self) -> str:
        """The group and the member, for messages."""
        who = self._who()
        member = f", member {who.member_id}, generation {who.generation_id}" if who.member_id else ""
        return f"group {who.group_id}{member}"

    # -- the subscription

    def subscribe(
        self, topics: Sequence[str], pattern: re.Pattern[str] | None, callbacks: Mapping[ChangeKind, Callback]
    ) -> None:
        """Want these topics, or those that match."""
        self._refused = None  # the cluster may offer by now what it did not
        self.subscribed, self.pattern, self.callbacks = True, pattern, callbacks
        self._want(tuple(topics))

    def _want(self, topics: tuple[str, ...]) -> None:
        self._subscription = subscription_of(topics, self.pattern)
        if self.membership is not None:
            self.membership.subscribe(self._subscription)

    def matching(self) -> list[str] | None:
        """The topics that the pattern matches, in order; None while no topics are known."""
        metadata = self.core.metadata
        if self.pattern is None or not metadata.nodes or not metadata.has_all_topics:
            return None
        return self._known_to_match(self.pattern)

    def matched_so_far(self, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """What a member that is to follow a pattern reads until all topics are known: else it would give up what it keeps then."""
        return () if self.membership is None else tuple(self._known_to_match(pattern))

    def _known_to_match(self, pattern: re.Pattern[str]) -> list[str]:
        skip_internal = self.config.exclude_internal_topics
        return sorted(
            name
            for name, topic in self.core.metadata.topics.items()
            if pattern.match(name) and topic.partitions and not (skip_internal and topic.is_internal)
        )

    def follow_pattern(self) -> list[str] | None:
        """The metadata changed: the topics that match now, when they are others than before."""
        found = self.matching()
        if found is None or (tuple(found) == self._subscription.topics and self.membership is not None):
            return None
        self._want(tuple(found))
        return found

    def end_membership(self, reason: str) -> list[Outgoing]:
        """Leave the group, if in it: what to send."""
        member, self.membership = self.membership, None
        self.coordinator.given_up(JOINED, KEPT, TAKEN)
        self.subscribed, self.pattern, self.callbacks, self.polled, self.assigned = False, None, {}, False, False
        self._subscription = Subscription()
        return [] if member is None else member.leave(reason)

    def _choose(self) -> None:
        """The coordinator is known: speak the newest protocol that it offers and that the configuration allows."""
        core, node_id = self.core, self.coordinator.node_id
        if not core.can_send(node_id):
            return
        offered = core.supports(node_id, CONSUMER_GROUP_HEARTBEAT_API) and core.features.get(GROUP_FEATURE, 0) >= 1
        if self._protocol == "auto":
            # Strategies of one's own are part of the classic protocol alone.
            default = ConsumerConfig.partition_assignment_strategy
            self._protocol = (
                "consumer" if offered and self.config.partition_assignment_strategy == default else "classic"
            )
        elif self._protocol == "consumer" and not offered:
            self._refused = UnsupportedVersion(
                "group_protocol='consumer': the cluster does not offer it (KIP-848: group.version 1)",
                broker=self.coordinator.label,
                hint="Use group_protocol='auto' or 'classic', or upgrade the feature group.version",
            )
            return
        logger.debug("group %s: protocol %s", self.coordinator.group_id, self._protocol)
        if self._protocol == "consumer":
            self._tell_of_no_effect()
        self.membership = self._begin_member()

    def _tell_of_no_effect(self) -> None:
        """Settings that only members of the classic protocol have: Kafka refuses them under the newer one; `auto` chose it here."""
        for key, theirs in (
            ("session_timeout_ms", "group.consumer.session.timeout.ms"),
            ("heartbeat_interval_ms", "group.consumer.heartbeat.interval.ms"),
        ):
            given = getattr(self.config, key)
            if given != getattr(ConsumerConfig, key):
                logger.warning(
                    "group %s: %s=%s has no effect in the consumer protocol (KIP-848), where the brokers' %s decides; "
                    "set that, or group_protocol='classic'",
                    self.coordinator.group_id,
                    key,
                    given,
                    theirs,
                )

    def _begin_member(self) -> Membership:
        member = self._make_member()
        member.subscribe(self._subscription)
        member.poll(self.core.clock())
        return member

    def _make_member(self) -> Membership:
        if self._protocol == "consumer":
            return ConsumerProtocolMembership(
                self.config,
                self.coordinator,
                self.core.metadata,
                assignor=self.config.group_remote_assignor,
                rng=self.core.random,
            )
        return ClassicMember(self.config, self.coordinator, self.core.metadata, self.assignors, self.core.watch_topics)

    def has_no_share(self, topics: Iterable[str]) -> bool:
        """Whether the group has given it nothing of these topics, which are all there, and no rebalance is under way."""
        member, found = self.membership, map(self.core.metadata.topic, topics)
        if member is None or member.generation < 0 or not member.is_stable or self.fetcher.partitions:
            return False
        return all(topic is not None and topic.error == 0 for topic in found)

    @property
    def share_grows_s(self) -> float:
        """How long a member that joins, and is given nothing, may yet be given what others have to give up first: they hear of it in their
        heartbeats, and it in one of its own. Eager ones have given up all before."""
        member = self.membership
        if isinstance(member, ConsumerProtocolMembership):
            return HEARTBEATS * member.interval_s
        is_eager = isinstance(member, ClassicMember) and not member.cooperative
        return 0.0 if is_eager else HEARTBEATS * self.config.heartbeat_interval_ms / 1000

    def _falls_back(self) -> bool:
        """Whether the coordinator refuses the newer protocol for this group, and the classic one is allowed."""
        member = self.membership
        return (
            self.config.group_protocol == "auto"
            and isinstance(member, ConsumerProtocolMembership)
            and member.unsupported is not None
        )

    def _fall_back(self, refused: ConsumerProtocolMembership) -> None:
        """Speak the classic protocol. The member that was refused has told the application what it has lost."""
        logger.info("group %s: going on with the classic protocol", self.coordinator.group_id)
        self._protocol = "classic"
        self.membership = self._begin_member()
        self.membership.lost = refused.lost
        self.coordinator.given_up(TAKEN)  # which only a member of the newer protocol says

    # -- what to send, and when

    def requests(self, now: float, can_send: CanSend) -> Iterator[Outgoing]:
        """What to send now: each before the next one is made, as there may be no memory for that. Nor is any taken for what is made."""
        coordinator = self.coordinator
        if coordinator.known and not self.core.knows(coordinator.node_id):
            coordinator.lost(now, "the broker left the cluster")
        elif coordinator.known and self.core.failed_since(coordinator.node_id, coordinator.found_at):
            coordinator.lost(now, "it cannot be connected to")  # another broker may be the coordinator by now
        out = coordinator.requests(now, can_send) if self._needs_coordinator() else []
        while out:
            yield out.pop()
        if isinstance(self.membership, ConsumerProtocolMembership):
            self._serve(self.membership, now)
        if self.subscribed and self.polled and self.membership is None and coordinator.known and self._refused is None:
            ready = self.pattern is None or self._subscription.topics or self.matching() is not None
            if ready and can_send(coordinator.node_id):
                self._choose()
        if self.membership is not None:
            yield from self.membership.requests(now, can_send)  # made before it makes anything
        self._ask_committed(now)
        if self._query is not None:
            out = self._query.requests(now, can_send)
            while out:
                yield out.pop()
        out = self._committing(now, can_send)
        while out:
            yield out.pop()

    def _serve(self, member: ConsumerProtocolMembership, now: float) -> None:
        """What a member of the newer protocol needs beside its coordinator."""
        if self._falls_back() and not member.due:
            self._fall_back(member)
            return
        if member.wants_all_topics and not self.core.metadata.has_all_topics:
            self.core.watch_all_topics()
        if member.wants_metadata is None:
            self.coordinator.came_through(TAKEN, now)
        else:
            self.core.request_metadata_update(member.wants_metadata)
            self.coordinator.refused(TAKEN, UnknownTopicId(group=self.coordinator.group_id), now)
            member.wants_metadata = None

    def heartbeats(self, now: float, can_send: CanSend) -> Iterator[Outgoing]:
        """What keeps the membership alive and the finished offsets committed while the application is busy; likewise."""
        if self.membership is None:
            return
        asked = (self.coordinator.requests, self.membership.heartbeats, self._committing)
        for requests in asked:
            out = requests(now, can_send)
            while out:
                yield out.pop()

    def _committing(self, now: float, can_send: CanSend) -> list[Outgoing]:
        """A commit, with what is due to be committed by itself."""
        self._auto_commit(now)
        return self.committer.requests(now, can_send)

    def _needs_coordinator(self) -> bool:
        return (
            self.subscribed or self._asked or self.committer.busy or self._query is not None or bool(self._unplaced())
        )

    def next_wakeup(self, now: float) -> float | None:
        """Seconds until `requests` has something to do."""
        waits = [self.committer.next_wakeup(now)]
        if self._needs_coordinator():
            waits.append(self.coordinator.next_wakeup(now))
        if self.membership is not None:
            waits.append(self.membership.next_wakeup(now))
            if self.config.enable_auto_commit:
                waits.append(max(0.01, self._commit_at - now))
        if self._query is not None:
            waits.append(self._query.next_wakeup(now))
        if self._ask_at > now:
            waits.append(self._ask_at - now)
        due = [wait for wait in waits if wait is not None]
        return min(due) if due else None

    def next_heartbeat(self, now: float) -> float | None:
        """Seconds until `heartbeats` has something to do; None while there is no membership to keep alive."""
        if self.membership is None:
            return None
        beat = self.membership.next_heartbeat(now)
        if beat is None:
            return None
        return min(beat, max(0.01, self._commit_at - now)) if self.config.enable_auto_commit else beat

    def take_error(self) -> FastqError | None:
        """What the application has to know: once, or as often as it asks when it stays so."""
        if self._refused is not None and self.subscribed:
            return self._refused
        if self.errors:
            return self.errors.pop(0)
        error = self.coordinator.take_error()
        if error is None and self.membership is not None and not self._falls_back():
            error = self.membership.take_error()
        return error

    # -- rebalances

    def apply(self, change: Change) -> None:
        """Read, or do not read any more, what a step names."""
        current = self.fetcher.partitions
        if change.kind is ChangeKind.ASSIGN:
            wanted = [*current, *change.partitions]
            self.core.watch_topics({tp.topic for tp in change.partitions})
        else:
            gone = set(change.partitions)
            wanted = [tp for tp in current if tp not in gone]
            self.let_go(gone)
        self.fetcher.assign(wanted, initial=Phase.COMMITTED)
        if change.kind is ChangeKind.ASSIGN:
            for tp in change.partitions:
                self._begins_again(tp, self._again)
            self._again.clear()
        if change.kind is not ChangeKind.REVOKE:
            self.assigned = change.kind is ChangeKind.ASSIGN

    def let_go(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions are about to be read no more."""
        for tp in partitions:
            state = self.fetcher.partitions.get(tp)
            if state is not None:
                self.handed.taking_away(state)
            self._committed.pop(tp, None)

    # -- what is handed out

    def taking(self, tp: TopicPartition, place: Place) -> None:
        """Records of a partition are about to be handed out together, from a place on."""
        self.handed.taking(tp, place)
        self._begins(tp, place)

    def iterating(self, chunk: FetchedRecords | None) -> None:
        """The records of a chunk are about to be handed out, one by one; None: there is none."""
        self.handed.iterating(chunk)
        if chunk is not None:
            self._begins(TopicPartition(chunk.topic, chunk.partition), (chunk.position, chunk.position_epoch))

    def _begins(self, tp: TopicPartition, place: Place) -> None:
        state = self.fetcher.partitions.get(tp)
        if state is not None and state.began is None:
            state.began = place

    def _begins_again(self, tp: TopicPartition, before: Mapping[TopicPartition, PartitionState]) -> None:
        """A partition that was taken away came back: it began where it did before, unless that was of another topic."""
        state, old, topic = self.fetcher.partitions.get(tp), before.get(tp), self.core.metadata.topic(tp.topic)
        if state is not None and old is not None and topic is not None and topic.topic_id == old.topic_id:
            state.began = old.began

    # -- where to begin

    def back_to_committed(self) -> None:
        """Have every partition go on at what is committed; an answer that is on its way is of before, and does not count."""
        self._query, self._ask_at = None, 0.0
        self._again = self.handed.undone()
        for tp in self.fetcher.partitions:
            self._begins_again(tp, self._again)
            self.fetcher.forget_position(tp)
            self.handed.forget(tp)
            self._committed.pop(tp, None)

    def _unplaced(self) -> list[TopicPartition]:
        return [tp for tp, state in self.fetcher.partitions.items() if state.phase is Phase.COMMITTED]

    def _ask_committed(self, now: float) -> None:
        """Take in where the group stands, and ask about partitions that wait for it."""
        query = self._query
        if query is not None and query.finished:
            self._query = None
            if query.error is not None:
                self.errors.append(query.error)
                self._ask_at = now + self.config.retry_backoff_max_ms / 1000
            for tp, place in query.results.items():
                self._place(tp, place)
        if self._query is None and now >= self._ask_at:
            unplaced = self._unplaced()
            if unplaced:
                self._query = CommittedQuery(self.coordinator, unplaced)

    def _place(self, tp: TopicPartition, place: OffsetAndMetadata | None) -> None:
        state = self.fetcher.partitions.get(tp)
        if state is None or state.phase is not Phase.COMMITTED:
            return
        if place is None and state.began is not None:
            offset, epoch = state.began
            logger.debug("%s has no committed offset in group %s: again at %d", tp, self.coordinator.group_id, offset)
            if epoch >= 0:
                self.fetcher.seek(tp, offset, epoch)
            else:
                self.fetcher.go_back(tp, offset, epoch)
        elif place is None:
            logger.debug("%s has no committed offset in group %s", tp, self.coordinator.group_id)
            state.begin_reset(state.reset_timestamp)  # set where it was on its way there
        else:
            self._committed[tp] = place.offset
            self.fetcher.seek(tp, place.offset, place.leader_epoch)

    def committed_query(self, partitions: Iterable[TopicPartition]) -> CommittedQuery:
        """Ask what is committed; the caller drives it."""
        self._asked = True
        return CommittedQuery(self.coordinator, partitions)

    # -- commits

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Behind everything that was handed out."""
        return {
            tp: OffsetAndMetadata(state.position, "", state.position_epoch)
            for tp, state in self.fetcher.partitions.items()
            if state.position >= 0 and state.phase in (Phase.FETCH, Phase.VALIDATE)
        }

    def finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Behind everything that the application is done with, where the group does not have it yet."""
        found = {}
        for tp in self.fetcher.made_anew:  # of another topic by now
            self.handed.forget(tp)
            self._committed.pop(tp, None)
        self.fetcher.made_anew.clear()
        # What is on its way counts as if it were there: a commit of less, behind it, would take it back.
        committed = {**self._committed, **self.committer.asked()}
        for tp, state in self.fetcher.partitions.items():
            (offset, epoch), known = self.handed.finished(state), committed.get(tp, -1)
            if 0 <= offset < known <= state.position:
                continue  # the application committed what it has in hand
            if self.handed.is_chosen(tp):
                continue
            if offset >= 0 and offset != known:
                found[tp] = OffsetAndMetadata(offset, "", epoch)
        return found

    def commit(self, offsets: Offsets, timeout_s: float, on_done: Callable[[Commit], object] | None = None) -> Commit:
        """Commit offsets in this member's name; what cannot be committed is refused in the Commit."""
        who = self._who()
        deadline = self.core.clock() + timeout_s
        member = self.membership
        if self.subscribed and (member is None or not member.may_commit):
            commit = Commit(offsets, who, deadline, on_done, {})
            commit.finish(self._not_a_member(offsets, who) if offsets else None)
            return commit
        return self.committer.add(offsets, who, deadline, on_done)

    def _note_committed(self, offsets: Offsets) -> None:
        partitions = self.fetcher.partitions
        for tp, place in offsets.items():
            if tp in partitions:
                self._committed[tp] = place.offset
                self.handed.committing(partitions[tp], place.offset)

    def covered(self, offsets: Offsets) -> None:
        """Offsets are committed by somebody else: a transaction, in this member's name."""
        for tp, place in offsets.items():
            state = self.fetcher.partitions.get(tp)
            if state is not None:
                self.handed.committing(state, place.offset)

    def _not_a_member(self, offsets: Offsets, who: GroupMetadata) -> FastqError:
        rebalancing = self.membership is not None and self.membership.generation >= 0
        code = ErrorCode.REBALANCE_IN_PROGRESS if rebalancing else ErrorCode.UNKNOWN_MEMBER_ID
        tp = next(iter(offsets))
        what = "the offsets were not committed: this consumer has no place in the group at the moment"
        return group_error(code, what, who, topic=tp.topic, partition=tp.partition)

    def _auto_commit(self, now: float) -> None:
        """The commit of every auto_commit_interval_ms."""
        member = self.membership
        if not self.config.enable_auto_commit or now < self._commit_at or (self._auto and not self._auto.finished):
            return
        self._commit_at = now + self.config.auto_commit_interval_ms / 1000
        if self.subscribed and (member is None or not member.may_commit):
            return
        offsets = self.finished()
        if offsets:
            self._auto = self.commit(offsets, self.config.default_api_timeout_ms / 1000, log_failure)

    def _is_gone(self, tp: TopicPartition) -> bool:
        """Whether the topic was deleted, or made anew with fewer partitions: a rebalance does not wait for the time-out of its commit."""
        topic = self.core.metadata.topic(tp.topic)
        return self.core.metadata.is_gone(tp.topic) or (topic is not None and 0 < len(topic.partitions) <= tp.partition)

    def _topic_id(self, tp: TopicPartition) -> bytes:
        """Of the topic that is read under this name, or that the cluster has, where it is not read."""
        state = self.fetcher.partitions.get(tp)
        if state is not None:
            return state.topic_id
        topic = self.core.metadata.topic(tp.topic)
        return ZERO_UUID if topic is None else topic.topic_id

    def _commit_refused(self, code: int, who: GroupMetadata) -> None:
        member = self.membership
        codes = (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.STALE_MEMBER_EPOCH,
        )
        if member is not None and code in codes and who == self._who():
            member.lost_generation(code)

    def _restamped(self, who: GroupMetadata, partitions: Iterable[TopicPartition]) -> GroupMetadata | None:
        """Who commits what was refused as of a stale epoch: the same member with the epoch of now, or as it is until that is known.
        None when somebody else may have read on from there: not all is this member's, or was throughout."""
        member, now = self.membership, self._who()
        if not isinstance(member, ConsumerProtocolMembership) or now.member_id != who.member_id:
            return None
        throughout = member.joined_epoch <= who.generation_id <= now.generation_id
        return now if throughout and member.owned.issuperset(partitions) else None


def log_failure(commit: Commit) -> None:
    """What becomes of an error that nobody waits for."""
    if commit.error is not None:
        logger.warning("auto-commit failed; what was not committed is read again after a rebalance: %s", commit.error)
