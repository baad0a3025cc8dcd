"""The groups of one partition of `__consumer_offsets`: records to state, requests to groups, effects to the world.

Rules
- `groups` has one object a group id, so an id has one kind at a time. Offsets of groups that have no metadata record (consumers
  without group management) have an empty classic group in it.
- Records dispatch by the type in their key: 0 and 1 to the offsets, 2 to classic groups, 3 to 8 and 16 to groups of KIP-848.
- A classic group lives in memory and is only written out: the replay of a record that it has just written changes nothing.
- Who was cut off may go by a state of before: the member of now is another, and more is committed. While it is not sure to coordinate, what
  ends a membership is COORDINATOR_NOT_AVAILABLE, and no offset is told. What is written needs no such care: it is answered once the
  replicas have it.
Source: GroupCoordinatorShard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from fastq._native.commit_path import encode_offset_key, encode_offset_value
from fastq.errors import ErrorCode, KafkaError, NotCoordinator, error_for_code
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, GroupMetadataKey
from fastq.values import NamedTuple
from fastq_broker.controller import MetadataImage
from fastq_broker.coordinator.deadlines import Deadlines
from fastq_broker.coordinator.errors import LED_ELSEWHERE, store_error
from fastq_broker.coordinator.records import decode_key, record_type
from fastq_broker.log import failures

from .classic_effects import carry_out
from .classic_group import ClassicGroup
from .classic_member import JoinRequest, JoinResult, SyncResult
from .classic_records import group_record, read_group
from .classic_state import Settings, Store, Wake
from .classic_stores import Stores
from .commit_patience import Done, Patience, Readers
from .consumer_change import ConsumerGroupSettings
from .consumer_classic import ClassicMembers
from .consumer_group import ConsumerGroup
from .consumer_groups import RETRY_MS, ConsumerGroups
from .consumer_records import RECORD_TYPES as CONSUMER_TYPES
from .errors import ENDS_A_MEMBERSHIP
from .group import UNKNOWN_MEMBER, Committer, Group
from .offsets import NO_ID, CommittedOffset, NamedId, Offsets, TopicPartition, is_of_another

if TYPE_CHECKING:
    from fastq_broker.coordinator.shard import CoordinatorRecord, ShardContext

    from .consumer_groups import Answer as ConsumerAnswer
    from .consumer_groups import Client

logger = logging.getLogger(__name__)

R = TypeVar("R", JoinResult, SyncResult)

OFFSET_TYPES = (0, 1)
CLASSIC_TYPE = 2
NEW_IDS_VERSION = 9
"""The version of OffsetCommit from which an unknown group has its own error (KIP-848)."""


class ShardSettings(NamedTuple):
    """What the broker's configuration says about groups and their offsets."""

    classic: Settings = Settings()
    consumer: ConsumerGroupSettings = ConsumerGroupSettings()
    offset_metadata_bytes_max: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    commit_timeout_ms: int = 5_000


DEFAULTS = ShardSettings()
_PARTITION = itemgetter(0, 1)  # of a CommitEntry

CommitEntry = tuple[str, int, int, int, str | None]
"""Topic, partition, offset, leader epoch, metadata."""


class Commit(NamedTuple):
    """A commit of offsets for one group. `retention_ms` -1: the broker's."""

    group_id: str
    committer: Committer
    offsets: Sequence[CommitEntry]
    version: int
    retention_ms: int = -1
    producer_id: int = -1
    producer_epoch: int = -1

    @property
    def transactional(self) -> bool:
        return self.producer_id >= 0


Errors = Callable[[dict[TopicPartition, int]], None]
"""Told the error of each partition of a commit, 0 for none."""


class GroupShard:
    """All groups of one partition. Loop thread only.

    Invariant: a classic group has no effects left over between two calls, but what failed inside: `_run` carries them out.
    """

    def __init__(
        self,
        context: ShardContext,
        settings: ShardSettings = DEFAULTS,
        image: Callable[[], MetadataImage] = MetadataImage,
        settings_of: Callable[[str], ConsumerGroupSettings] | None = None,
        gone: Callable[[Set[NamedId]], Set[NamedId]] = lambda topics: frozenset(),
        is_surely_here: Callable[[], bool] = lambda: True,
    ) -> None:
        """`image` answers the metadata as it is, `gone` which of the topics that have offsets in the log are no more, `is_surely_here`
        whether no other node can coordinate these groups by now."""
        self.context = context
        self.settings = settings
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self._image = image
        self._gone = gone
        self._is_surely_here = is_surely_here
        self._patience = Patience(settings.commit_timeout_ms, context.monotonic_ms, context.call_later)
        place = f"going on with groups in {context.partition} that are stored"
        self._stores = Stores(settings.commit_timeout_ms, context.monotonic_ms, context.call_later, place)
        self._readers = Readers(lambda: context.end_offset, context.when_durable, self._patience)
        self.consumer = ConsumerGroups(
            self.groups,
            context,
            settings.consumer,
            image,
            self._became_classic,
            self._readers.add,
            self._patience,
            settings_of,
        )
        self._classic_members = ClassicMembers(self.consumer)
        self._deadlines: Deadlines[tuple[ClassicGroup, str]] = Deadlines(
            context.monotonic_ms, context.call_later, self._wake
        )
        self._written_own: str | None = None
        """The classic group whose record is being written: its replay changes nothing. What that tells may write of other groups."""

    # --- records ---

    def replay(
        self, key: bytes, value: bytes | None, timestamp_ms: int, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        """Take a record in. Raises DecodeError."""
        kind = record_type(key)
        if kind in OFFSET_TYPES:
            group_id, deleted = self.offsets.replay(key, value, producer_id)
            if not deleted and group_id not in self.groups:
                self._create(group_id)
        elif kind == CLASSIC_TYPE:
            group_id = decode_key(GroupMetadataKey, key).group
            if group_id != self._written_own:
                self._replay_classic(group_id, value)
        elif kind in CONSUMER_TYPES:
            self.consumer.replay(kind, key, value)
        else:
            logger.debug("a record of type %d is not for this coordinator", kind)

    def _replay_classic(self, group_id: str, value: bytes | None) -> None:
        if value is not None:
            self.groups[group_id] = read_group(
                group_id, value, self.settings.classic, self.context.now_ms, self.context.new_name
            )
        else:
            group = self.groups.get(group_id)
            if isinstance(group, ClassicGroup):
                # Whoever waits for it; in an upgrade, its members are to join what it has become.
                group.kill(ErrorCode.REBALANCE_IN_PROGRESS if self.consumer.upgrading else ErrorCode.GROUP_ID_NOT_FOUND)
                self._run(group)
                del self.groups[group_id]

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """A transaction has ended."""
        self.offsets.end_transaction(producer_id, committed)

    def loaded(self) -> None:
        """Sessions begin anew: members had no chance to be heard."""
        now_ms = self.context.monotonic_ms()
        for group in list(self.groups.values()):
            if isinstance(group, ClassicGroup):
                group.start_sessions(now_ms)
                group.rebalance_if_too_large(now_ms)
                self._run(group)
        self.consumer.loaded()
        # Topics may have been deleted while nobody was here to forget their offsets: the broker was down, or this was loading.
        gone = self._gone(self.offsets.topics())
        if gone:
            names = sorted({name for name, _ in gone})
            logger.info("offsets of topics that are gone are deleted: %s", ", ".join(names[:20]))
            self._delete_offsets_of_topics(self.offsets.tombstones_of_ids(gone))

    def unloaded(self) -> None:
        """Turn away who waits."""
        self._deadlines.clear()
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                failures.attempt("turning away the members of a group", partial(self._turn_away, group))
        self.groups.clear()
        self._patience.end(NotCoordinator("the groups of this partition are coordinated elsewhere by now"))

    def _turn_away(self, group: ClassicGroup) -> None:
        group.kill(ErrorCode.NOT_COORDINATOR)
        self._run(group)

    # --- classic groups ---

    def join(self, group_id: str, request: JoinRequest, answer: Callable[[JoinResult], None]) -> None:
        """A JoinGroup; `answer` is called once, now or when the rebalance is complete."""
        answer = self._told_as_known(answer)
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            self._classic_members.join(group, request, answer)
            return
        created = not isinstance(group, ClassicGroup)
        if not isinstance(group, ClassicGroup):
            if request.member_id != UNKNOWN_MEMBER:
                answer(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
                return
            left = [] if group is None else group.tombstones()
            group = ClassicGroup(
                group_id, self.settings.classic, wall_clock=self.context.now_ms, new_name=self.context.new_name
            )
        if created:
            # A group that nobody has heard of is stored before it has members, so that it can be found and deleted.
            error = self._append_now(group_id, [*left, group_record(group, {})])
            if error:
                answer(JoinResult(error, request.member_id))
                return
            self.groups[group_id] = group
        group.join(request, answer, self.context.monotonic_ms())
        self._run(group, answer)

    def sync(
        self,
        group_id: str,
        committer: Committer,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: dict[str, bytes],
        answer: Callable[[SyncResult], None],
    ) -> None:
        """A SyncGroup; `answer` is called once, now or when the leader has assigned."""
        answer = self._told_as_known(answer)
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            answer(self._classic_members.sync(group, committer, protocol_type, protocol_name))
            return
        if not isinstance(group, ClassicGroup):
            answer(SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        group.sync(
            committer.member_id,
            committer.instance_id,
            committer.generation,
            protocol_type,
            protocol_name,
            assignments,
            answer,
            self.context.monotonic_ms(),
        )
        self._run(group, answer)

    def heartbeat(self, group_id: str, committer: Committer) -> int:
        """The error of a Heartbeat."""
        return self._as_is_known(self._heartbeat(group_id, committer))

    def _heartbeat(self, group_id: str, committer: Committer) -> int:
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.heartbeat(group, committer)
        if not isinstance(group, ClassicGroup):
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id, generation, instance_id = committer
        error = group.heartbeat(member_id, instance_id, generation, self.context.monotonic_ms())
        if group.effects:
            self._run(group)
        return error

    def leave(self, group_id: str, leaving: Sequence[tuple[str, str | None]]) -> int | list[int]:
        """The errors of the members of a LeaveGroup, in their order; one error for all where there is no such group, or where what it is
        without them could not be written."""
        errors = self._leave(group_id, leaving)
        return self._as_is_known(errors) if isinstance(errors, int) else [*map(self._as_is_known, errors)]

    def _leave(self, group_id: str, leaving: Sequence[tuple[str, str | None]]) -> int | list[int]:
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.leave(group, leaving)
        if not isinstance(group, ClassicGroup):
            return ErrorCode.UNKNOWN_MEMBER_ID
        errors = group.leave(leaving, self.context.monotonic_ms())
        return self._run(group) or errors

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, version: int, answer: ConsumerAnswer
    ) -> None:
        """A ConsumerGroupHeartbeat: see ConsumerGroups.heartbeat. Raises KafkaError."""

        def told(response: ConsumerGroupHeartbeatResponse | None, error: KafkaError | None) -> None:
            answer(response, None if error is None else self._known_error(error))

        try:
            self.consumer.heartbeat(request, client, version, told)
        except KafkaError as error:
            raise self._known_error(error) from None

    # --- whether what is known here still holds ---

    def _as_is_known(self, code: int) -> int:
        """A refusal; who may coordinate no more does not know whether it holds."""
        if code not in ENDS_A_MEMBERSHIP or self._is_surely_here():
            return code
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _known_error(self, error: KafkaError) -> KafkaError:
        code = self._as_is_known(error.code)
        return error if code == error.code else error_for_code(code, f"another node may say otherwise: {error}")

    def _told_as_known(self, answer: Callable[[R], None]) -> Callable[[R], None]:
        return lambda result: answer(result._replace(error=self._as_is_known(result.error)))

    def _became_classic(self, group_id: str, rebalance: bool) -> None:
        """A consumer group has become a classic one, which has just been replayed."""
        group = self.groups[group_id]
        assert isinstance(group, ClassicGroup)
        now_ms = self.context.monotonic_ms()
        group.start_sessions(now_ms)
        if rebalance:
            group.rebalance(now_ms)
        self._run(group)

    # --- offsets ---

    def commit(self, commit: Commit, answer: Errors) -> None:
        """Commit offsets: `answer` is told the partitions' errors, once what is committed is durable."""
        group = self.groups.get(commit.group_id)
        error = self._as_is_known(self._commit_error(group, commit))
        if error:
            answer({(topic, partition): error for topic, partition, *_ in commit.offsets})
            return
        if group is not None and not commit.transactional:
            group.note_commit(commit.committer, self.context.monotonic_ms())
            self._run(group)
        self._commit(commit, answer)

    def _commit_error(self, group: Group | None, commit: Commit) -> int:
        if group is not None:
            partitions = map(_PARTITION, commit.offsets)
            return group.check_commit(
                commit.committer, partitions, transactional=commit.transactional, version=commit.version
            )
        if commit.committer.generation < 0:
            return ErrorCode.NONE  # a consumer without group management: the group comes with its offsets
        return (
            ErrorCode.GROUP_ID_NOT_FOUND
            if commit.version >= NEW_IDS_VERSION and not commit.transactional
            else ErrorCode.ILLEGAL_GENERATION
        )

    def _commit(self, commit: Commit, answer: Errors) -> None:
        now_ms = self.context.now_ms()
        expires_ms = now_ms + commit.retention_ms if commit.retention_ms >= 0 else -1
        errors: dict[TopicPartition, int] = {}
        records: list[CoordinatorRecord] = []
        image = self._image()
        for topic, partition, offset, leader_epoch, metadata in commit.offsets:
            if metadata is not None and len(metadata) > self.settings.offset_metadata_bytes_max:
                errors[topic, partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            errors[topic, partition] = ErrorCode.NONE
            found = image.topic(topic)
            topic_id = NO_ID if found is None else found.topic_id
            value = encode_offset_value(offset, leader_epoch, metadata or "", now_ms, expires_ms, topic_id)
            records.append((encode_offset_key(commit.group_id, topic, partition), value))

        def done(error: KafkaError | None) -> None:
            if error is not None:
                code = store_error(error)
                for item in errors:
                    errors[item] = errors[item] or code
            answer(errors)

        self._write_in_time(records, done, commit.producer_id, commit.producer_epoch)

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """What a group has committed in topics as they are now; not in those of the same names that are gone, whose tombstones may be on
        their way, or wait until they can be written."""
        image = self._image()
        return {
            item: found
            for item, found in self.offsets.of_group(group_id).items()
            if not is_of_another(found, image.topic(item[0]))
        }

    def committed_in(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The same of one partition; None when there is none."""
        found = self.offsets.get(group_id, topic, partition)
        return None if found is None or is_of_another(found, self._image().topic(topic)) else found

    def fetch_error(self, group_id: str, committer: Committer) -> int:
        """Why a group's offsets may not be read; one that does not exist has none, which is no error. Older ones than were committed are
        not read: a member would go back by them."""
        if not self._is_surely_here():
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE
        error = group.check_fetch(committer)
        return ErrorCode.NONE if error == ErrorCode.GROUP_ID_NOT_FOUND else error

    def when_durable(self, done: Done) -> None:
        """Tell once all that was written so far is safe, or why it is not, or not within offsets.commit.timeout.ms."""
        self._readers.add(done)

    def delete_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition],
        answer: Callable[[int, dict[TopicPartition, int]], None],
    ) -> None:
        """OffsetDelete: `answer` is told an error for all, and one for each partition."""
        group = self.groups.get(group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_offset_delete()
        if group is None or error:
            answer(error, {})
            return
        errors: dict[tuple[str, int], int] = {
            item: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(item[0]) else ErrorCode.NONE
            for item in partitions
        }
        records = self.offsets.tombstones(group_id, [item for item, code in errors.items() if not code])
        self._write_in_time(
            records, lambda error: answer(ErrorCode.NONE, errors) if error is None else answer(store_error(error), {})
        )

    # --- groups ---

    def delete_group(self, group_id: str, answer: Callable[[int], None]) -> None:
        """DeleteGroups, for one of them."""
        group = self.groups.get(group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_delete()
        if group is None or error:
            answer(error)
            return
        # Its offsets first: a deletion that is cut short leaves a group that can be deleted again.
        records = [*self.offsets.tombstones(group_id), *group.tombstones()]
        self._write_in_time(records, lambda error: answer(ErrorCode.NONE if error is None else store_error(error)))

    def expire_offsets(self) -> int:
        """Delete offsets whose time is over, or whose topic is, and groups that have nothing left; answers how many records that took."""
        now_ms, image = self.context.now_ms(), self._image()
        of_others = {
            (name, topic_id)
            for name, topic_id in self.offsets.topics()
            if topic_id != NO_ID and ((found := image.topic(name)) is None or found.topic_id != topic_id)
        }
        tombstones = self.offsets.tombstones_of_ids(of_others)  # once more, those that could not be written
        self._delete_offsets_of_topics(tombstones)
        count = len(tombstones)
        for group_id, group in list(self.groups.items()):
            if isinstance(group, ClassicGroup):
                group.write_again()
                self._run(group)
            records, nothing_left = self.offsets.expired(group_id, group, now_ms, self.settings.offsets_retention_ms)
            if nothing_left and group.is_empty:
                records += group.tombstones()
            if records:
                count += len(records)
                self._write(records, f"expiring offsets of group {group_id}")
        return count

    def topics_deleted(self, topics: frozenset[str]) -> bool:
        """Topics are gone, and so are their offsets: a topic that comes under one of these names begins anew. Whether there were any."""
        return self._delete_offsets_of_topics(self.offsets.tombstones_of_topics(topics))

    def _delete_offsets_of_topics(self, tombstones: list[CoordinatorRecord]) -> bool:
        if tombstones:
            self._write(tombstones, "deleting offsets of deleted topics")
        return bool(tombstones)

    # --- the world ---

    def _create(self, group_id: str) -> ClassicGroup:
        group = ClassicGroup(
            group_id, self.settings.classic, wall_clock=self.context.now_ms, new_name=self.context.new_name
        )
        self.groups[group_id] = group
        return group

    def _append_now(self, group_id: str, records: list[CoordinatorRecord]) -> int:
        """Write a group's own record; answers the error that it is refused with at once."""
        codes: list[int] = []
        before, self._written_own = self._written_own, group_id
        try:
            self.context.append(
                records, lambda error: codes.append(ErrorCode.NONE if error is None else store_error(error))
            )
        finally:
            self._written_own = before
        return codes[0] if codes else ErrorCode.NONE

    def _write_in_time(
        self, records: list[CoordinatorRecord], done: Done, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        """Write what need not come together, in a transaction where there is a producer; `done` is told once, no later than
        offsets.commit.timeout.ms. Without records it comes after those before it: who asks again may be told what the first has changed."""
        if not records:
            self._readers.add(done)
            return
        append = partial(
            self.context.append_in_parts,
            records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id >= 0,
        )
        self._patience.wait(append, done)

    def _write(self, records: list[CoordinatorRecord], what: str) -> None:
        def done(error: KafkaError | None) -> None:
            if error is not None and error.code not in LED_ELSEWHERE:
                failures.say(logger.warning, f"{what} in {self.context.partition}", "%s failed: %s", what, error)

        self.context.append_in_parts(records, done)

    def _run(self, group: Any, asked: Callable[..., None] | None = None) -> int:
        """Carry out what a classic group wants; groups of the other kind want nothing this way. Answers the last error with which it was
        refused at once to be stored. The group counts on all of it: what fails inside is done with the next call, or after a while. Not an
        answer: who `asked` hears what that raises, once the rest is done."""
        if not isinstance(group, ClassicGroup) or not group.effects:
            return ErrorCode.NONE
        refusal: int = ErrorCode.NONE

        def do(effect: Store | Wake) -> None:
            nonlocal refusal
            if isinstance(effect, Wake):
                self._deadlines.add(effect.at_ms, (group, effect.key))
            else:
                refusal = self._store(group, effect) or refusal

        try:
            failure = carry_out(group, do, asked)
        finally:
            if group.effects:
                self._deadlines.add(self.context.monotonic_ms() + RETRY_MS, (group, UNKNOWN_MEMBER))
        if failure is not None:
            raise failure
        return refusal

    def _store(self, group: ClassicGroup, effect: Store) -> int:
        """Write a group, and tell it how that went: perhaps later, when the disk has it, or when it had the time for that. Answers the
        error that it is refused with at once."""
        codes: list[int] = []

        def tell(error: KafkaError | None) -> None:
            code = ErrorCode.NONE if error is None else store_error(error)
            codes.append(code)
            if error is not None and error.code not in LED_ELSEWHERE:
                place = f"storing groups in {self.context.partition}"
                late = error.code == ErrorCode.REQUEST_TIMED_OUT
                words = "was not known to be stored in time" if late else "could not be stored"
                failures.say(logger.warning, place, "group %s %s: %s", group.group_id, words, error)
            effect.then(code, self.context.monotonic_ms())
            if self._written_own != group.group_id:  # else who writes it goes on with that
                self._run(group)

        storing = self._stores.begin(tell)  # the group counts on it
        before, self._written_own = self._written_own, group.group_id
        try:
            self._patience.wait(
                lambda told: self.context.append([group_record(group, effect.assignments)], told), storing.done
            )
        except BaseException:
            storing.tell = None  # it is stored anew
            raise
        finally:
            self._written_own = before
        return codes[0] if codes else ErrorCode.NONE

    def _wake(self, item: tuple[ClassicGroup, str], now_ms: int) -> None:
        group, key = item
        try:
            try:
                group.wake(key, now_ms)
            finally:
                self._run(group)
        except Exception as error:
            self._deadlines.add(now_ms + RETRY_MS, item)  # nothing else may have it looked at
            failures.report(f"looking after the groups of {self.context.partition}", error)
