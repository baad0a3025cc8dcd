"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Rules
- Such a member gets its assignment from the same target as the others. It never leads: it hears of the assignor it named first,
  and of no other members.
- A generation is the member's epoch. A join reconciles the member and answers at once; the sync that follows brings what it has.
- REBALANCE_IN_PROGRESS makes it join again: when the group went on to another epoch, when it has to revoke, or when what it waits for
  has become free. It has its rebalance time-out for that, and for the sync after a join.
- Checks in Kafka's order: member 25 and 82, generation 22, protocol 23, rebalance 27.
Source: GroupMetadataManager.classicGroupJoinToConsumerGroup and its neighbours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastq._native.wire import DecodeError
from fastq.errors import ErrorCode, KafkaError
from fastq_broker.coordinator.errors import store_error

from .classic_member import JoinRequest, JoinResult, SyncResult
from .consumer_change import GroupChange, is_waiting
from .consumer_group import ConsumerGroup
from .consumer_member import ClassicMember, ClassicProtocol, Member, MemberState, copied
from .group import UNKNOWN_MEMBER, Committer
from .migration import assignment_of, can_downgrade
from .subscriptions import CONSUMER_PROTOCOL_TYPE, decode_subscription

if TYPE_CHECKING:
    from fastq.protocol.messages import ConsumerProtocolSubscription

    from .consumer_groups import ConsumerGroups
    from .reconciliation import Owned

logger = logging.getLogger(__name__)


class ClassicMembers:
    """Serves the classic protocol in consumer groups. Loop thread only; all state is in the groups."""

    def __init__(self, consumers: ConsumerGroups) -> None:
        self._consumers = consumers

    # --- join ---

    def join(self, group: ConsumerGroup, request: JoinRequest, answer: Callable[[JoinResult], None]) -> None:
        """A JoinGroup: `answer` is called once, when the change is durable."""
        member_id = request.member_id or f"{request.client_id}-{self._consumers.new_name()}"
        error = self._refusal(group, member_id, request)
        if error:
            answer(JoinResult(error, member_id if error == ErrorCode.MEMBER_ID_REQUIRED else request.member_id))
            return
        try:
            subscription = decode_subscription(request.protocols[0][1])
            self._join(group, member_id, request, subscription, answer)
        except DecodeError:
            answer(JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        except KafkaError as refused:
            answer(JoinResult(int(refused.code), request.member_id))

    def _refusal(self, group: ConsumerGroup, member_id: str, request: JoinRequest) -> int:
        if len(group.members) >= self._consumers.settings.max_size and member_id not in group.members:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        shared = any(group.classic_protocols[name] == group.classic_count for name, _ in request.protocols)
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not shared:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.member_id == UNKNOWN_MEMBER and request.instance_id is None and request.requires_member_id:
            return ErrorCode.MEMBER_ID_REQUIRED
        return ErrorCode.NONE

    def _join(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: JoinRequest,
        subscription: ConsumerProtocolSubscription,
        answer: Callable[[JoinResult], None],
    ) -> None:
        consumers = self._consumers
        change = consumers.change(group)
        before = self._member_for(change, member_id, request)
        updated = _updated(before, request, subscription)
        names_changed = change.put_member(updated)
        changed = change.put_regex(before.topic_regex, updated.topic_regex) or names_changed
        if changed or change.draft.metadata_stale:
            if change.draft.metadata_stale:
                change.refresh_regexes()
            change.bump_epoch(changed)
        down = before.member_id in change.draft.members and _replaces_last(group, change.draft, updated)
        down = down and can_downgrade(change.draft, consumers.settings)
        owned = self._owned(subscription)
        if not down:
            change.refresh_target()
        after = updated
        if not (down and changed):
            after = change.reconcile(member_id, owned, changed)
        result = JoinResult(
            ErrorCode.NONE,
            member_id,
            after.member_epoch,
            CONSUMER_PROTOCOL_TYPE,
            request.protocols[0][0],
        )

        def done(error: KafkaError | None) -> None:
            live = consumers.groups.get(group.group_id)
            if isinstance(live, ConsumerGroup):
                there = live.members.get(member_id)
                # What is in force may come with an error: too few had it in time. Without a session a member would stay for ever.
                if there is not None and there.member_epoch == after.member_epoch:
                    consumers.start_session(live, after)
                    consumers.start_rebalance(live, after)  # until its sync
            answer(_joined(result, error))

        if down:
            consumers.go_down(group, change, changed, done)
        else:
            consumers.commit(change, done)

    def _member_for(self, change: GroupChange, member_id: str, request: JoinRequest) -> Member:
        """The member as it was, or a new one. Raises UnknownMemberId, FencedInstanceId."""
        draft = change.draft
        if request.instance_id is None:
            return draft.members.get(member_id) or Member(member_id)
        if request.member_id != UNKNOWN_MEMBER:
            return draft.member(member_id, request.instance_id)
        found = draft.static_member(request.instance_id)
        return Member(member_id) if found is None else change.replace_static(found, member_id, 0)

    def _owned(self, subscription: ConsumerProtocolSubscription) -> Owned:
        image = self._consumers.image()
        return {
            topic.topic_id: item.partitions
            for item in subscription.owned_partitions
            if (topic := image.topic(item.topic)) is not None
        }

    # --- sync and heartbeat ---

    def sync(
        self, group: ConsumerGroup, committer: Committer, protocol_type: str | None, protocol_name: str | None
    ) -> SyncResult:
        """The answer to a SyncGroup."""
        member, error = self._classic_member(group, committer)
        if member is None:
            return SyncResult(error)
        assert member.classic is not None
        name = member.classic.protocols[0].name
        if protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or protocol_name not in (None, name):
            return SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.group_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._must_join(group, member)
            return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
        self._consumers.start_session(group, member)
        group.deadlines[member.member_id].rebalance_ms = 0
        return SyncResult(ErrorCode.NONE, CONSUMER_PROTOCOL_TYPE, name, assignment_of(member, self._consumers.image()))

    def heartbeat(self, group: ConsumerGroup, committer: Committer) -> int:
        """The error of a Heartbeat."""
        member, error = self._classic_member(group, committer)
        if member is None:
            return error
        self._consumers.start_session(group, member)
        if (
            member.member_epoch < group.group_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not is_waiting(group, member))
        ):
            self._must_join(group, member)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _classic_member(self, group: ConsumerGroup, committer: Committer) -> tuple[Member | None, int]:
        """The member, or the error: who it is first, then its generation."""
        try:
            member = group.member(committer.member_id, committer.instance_id)
        except KafkaError as error:
            return None, int(error.code)
        if member.classic is None:
            return None, ErrorCode.UNKNOWN_MEMBER_ID
        if committer.generation != member.member_epoch:
            return None, ErrorCode.ILLEGAL_GENERATION
        return member, ErrorCode.NONE

    def _must_join(self, group: ConsumerGroup, member: Member) -> None:
        """A member is told to join again; the time it has for that begins with the first time it is told."""
        deadlines = group.deadlines.get(member.member_id)
        if deadlines is None or not deadlines.rebalance_ms:
            self._consumers.start_rebalance(group, member)

    # --- leave ---

    def leave(self, group: ConsumerGroup, leaving: Sequence[tuple[str, str | None]]) -> int | list[int]:
        """Remove members, given by id and instance id, or by instance id alone; answers an error for each, or one for all where it
        could not be written: none has gone then."""
        errors: list[int] = []
        gone: list[str] = []
        for member_id, instance_id in leaving:
            error, found = self._leaving(group, member_id, instance_id)
            errors.append(error)
            if found is not None and found not in gone:
                gone.append(found)
        if gone:
            refused: list[KafkaError] = []
            self._consumers.fence(group, gone, lambda error: refused.append(error) if error else None)
            if refused:
                return store_error(refused[0])
        return errors

    def _leaving(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> tuple[int, str | None]:
        if member_id == UNKNOWN_MEMBER:
            member = group.static_member(instance_id) if instance_id is not None else None
            return (ErrorCode.UNKNOWN_MEMBER_ID, None) if member is None else (ErrorCode.NONE, member.member_id)
        try:
            member = group.member(member_id, instance_id)
        except KafkaError as error:
            return int(error.code), None
        if member.classic is None and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, None
        return ErrorCode.NONE, member.member_id


def _updated(member: Member, request: JoinRequest, subscription: ConsumerProtocolSubscription) -> Member:
    """The member with what its JoinGroup says. Patterns are the clients' own business in the classic protocol."""
    changes: dict[str, Any] = {
        "client_id": request.client_id,
        "client_host": request.client_host,
        "topic_names": frozenset(subscription.topics),
        "topic_regex": "",
        "classic": ClassicMember(
            request.session_timeout_ms,
            tuple([ClassicProtocol(name, bytes(metadata)) for name, metadata in request.protocols]),
        ),
    }
    if request.instance_id is not None:
        changes["instance_id"] = request.instance_id
    if subscription.rack_id:
        changes["rack_id"] = subscription.rack_id
    if request.rebalance_timeout_ms != -1:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    return copied(member, **changes)


def _replaces_last(group: ConsumerGroup, draft: ConsumerGroup, updated: Member) -> bool:
    """Whether this classic member has taken the place of the last one of the consumer protocol."""
    if updated.instance_id is None or group.classic_count == len(group.members):
        return False
    return draft.classic_count == len(draft.members) == len(group.members)


def _joined(result: JoinResult, error: KafkaError | None) -> JoinResult:
    return result if error is None else JoinResult(store_error(error), result.member_id)
