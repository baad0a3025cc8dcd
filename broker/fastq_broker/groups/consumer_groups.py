"""The consumer groups (KIP-848) of one partition of `__consumer_offsets`: heartbeats, leaving, time-outs.

Rules
- A heartbeat that brings nothing new, of a member that has all it should have, is answered from memory: it moves a deadline.
- Everything else is worked out as a `GroupChange`, written, and takes effect as it is replayed; the answer comes once it is durable.
- One timer a group, for the earliest of its deadlines; a deadline that has moved meanwhile is seen when the timer fires.
- Deadlines are in monotonic milliseconds, what is written in milliseconds since 1970.

| member epoch   | means          | must come with                                         | answer                        |
|----------------|----------------|--------------------------------------------------------|-------------------------------|
| 0              | join, join again | rebalance time-out, topics or pattern, no partitions | the whole assignment          |
| n > 0          | heartbeat      | member id                                              | the assignment if it changed  |
| -1             | leave          | member id                                              | -1                            |
| -2             | leave for a while | instance id                                         | -2, its partitions wait       |

Order of checks: request (42, 112, 128), group (69), size (81), member and instance (25, 82, 111), epoch (110).
Source: GroupMetadataManager.consumerGroupHeartbeat, KIP-848.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fastq.errors import (
    ErrorCode,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRequest,
    KafkaError,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from fastq.values import NamedTuple
from fastq_broker.log import failures

from .classic_group import ClassicGroup
from .commit_patience import Done, Patience
from .consumer_change import ConsumerGroupSettings, GroupChange, needs_rebalance_deadline, pattern_of
from .consumer_group import ConsumerGroup, MemberDeadlines, as_plain
from .consumer_member import LEAVE_EPOCH, STATIC_LEAVE_EPOCH, Member, MemberState, copied
from .consumer_records import group_of_record, group_records, take_record
from .migration import can_downgrade, downgrade, upgrade
from .reconciliation import is_subset

if TYPE_CHECKING:
    from fastq_broker.controller import MetadataDelta, MetadataImage
    from fastq_broker.coordinator.shard import CoordinatorRecord, ShardContext

    from .consumer_member import Epochs
    from .reconciliation import Owned

logger = logging.getLogger(__name__)

FIRST_VERSION_WITH_CLIENT_IDS: Final = 1
"""From this version on the client makes its member id, and may send a pattern."""
RETRY_MS: Final = 1000
"""A change by a time-out that could not be written is tried again."""
SETTLING_MS: Final = 250
"""Between the heartbeats of a member that waits for partitions which others have to let go of first, in a small group."""
SETTLING_MS_PER_MEMBER: Final = 12
"""The same for each member there is, so that a group makes some 80 of these heartbeats a second at most."""
AFTER_ASSIGNMENT_MS: Final = 20
"""A heartbeat for an assignment comes this long after it is due: the one before it would hear nothing."""

Answer: TypeAlias = "Callable[[ConsumerGroupHeartbeatResponse | None, KafkaError | None], None]"
_Assignment = ConsumerGroupHeartbeatResponse.Assignment


class Client(NamedTuple):
    """Who sent a request: its client id, and its host as Kafka writes it (`/127.0.0.1`)."""

    client_id: str
    host: str


class ConsumerGroups:
    """The consumer groups among `groups`, which other kinds of groups share. Loop thread only.

    `image` answers the metadata as it is; `became_classic(group id, rebalance)` is told of groups that have gone down;
    `when_durable(done)` tells when all that was written so far is, `patience` how long that may take; `settings_of(group id)` answers what
    holds for one group, `settings` where it is not given.
    """

    def __init__(
        self,
        groups: dict[str, Any],
        context: ShardContext,
        settings: ConsumerGroupSettings,
        image: Callable[[], MetadataImage],
        became_classic: Callable[[str, bool], None],
        when_durable: Callable[[Done], None],
        patience: Patience,
        settings_of: Callable[[str], ConsumerGroupSettings] | None = None,
    ) -> None:
        self.groups = groups
        self.settings = settings
        self.settings_of = settings_of or (lambda _: self.settings)
        self.image = image
        self.monotonic_ms = context.monotonic_ms
        self.new_name = context.new_name
        self.upgrading = False
        """The tombstone that is replayed now is that of a classic group on its way to a consumer group."""
        self._context = context
        self._became_classic = became_classic
        self._when_durable = when_durable
        self._patience = patience

    # --- records, loading, metadata ---

    def replay(self, record_type: int, key: bytes, value: bytes | None) -> None:
        """Take a record of one of `consumer_records.RECORD_TYPES` in."""
        group_id = group_of_record(record_type, key)
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self.groups[group_id] = ConsumerGroup(group_id, self.image)
        if record_type == 3 and value is None:
            _stop_timer(group)
            del self.groups[group_id]
        else:
            take_record(group, record_type, key, value)

    def loaded(self) -> None:
        """All is replayed: every member has a whole session from now on."""
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                for member in group.members.values():
                    self.start_session(group, member)
                    self._follow_revocation(group, member)

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Topics have come, gone, or changed: groups that read them look again with the next heartbeat."""
        changed = {topic.name for _, topic in delta.changed_topics}
        changed.update(topic.name for topic in delta.deleted_topics)
        if not changed:
            return
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup) and (group.regex_counts or not changed.isdisjoint(group.topic_counts)):
                group.metadata_stale = True

    def settings_changed(self, group_ids: Iterable[str]) -> None:
        """Groups have other settings: each of their members has a whole session of the new length from now on."""
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                for member in group.members.values():
                    self.start_session(group, member)

    # --- heartbeats ---

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, client: Client, version: int, answer: Answer) -> None:
        """Serve a ConsumerGroupHeartbeat: `answer` is called once, now or when the change is durable. Raises KafkaError."""
        self.check_request(request, version)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            self._leave(request, answer)
            return
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            idle = self._idle(group, request, client)
            if idle is not None:
                answer(idle, None)
                return
        self._beat(request, client, answer)

    def check_request(self, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
        """Raises InvalidRequest, UnsupportedAssignor, InvalidRegularExpression for what no group could serve."""
        wrong = _contradiction(request, version)
        if wrong:
            raise InvalidRequest(f"consumer group {request.group_id!r}, member {request.member_id!r}: {wrong}")
        assignor = request.server_assignor
        if assignor is not None and assignor not in self.settings.assignors:
            raise UnsupportedAssignor(
                f"consumer group {request.group_id!r}: there is no assignor {assignor!r}; "
                f"the broker has {', '.join(self.settings.assignors)}"
            )
        if request.subscribed_topic_regex:
            pattern_of(request.subscribed_topic_regex)

    def _idle(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, client: Client
    ) -> ConsumerGroupHeartbeatResponse | None:
        """The answer to a heartbeat that changes nothing; None when it may change something."""
        member = group.members.get(request.member_id)
        if (
            member is None
            or request.member_epoch != member.member_epoch
            or not member.is_reconciled_to(group.group_epoch)
            or group.target_epoch != group.group_epoch
            or group.metadata_stale
            or request.topic_partitions is not None
            or request.subscribed_topic_names is not None
            or request.subscribed_topic_regex is not None
            or request.server_assignor is not None
            or request.rack_id is not None
            or request.rebalance_timeout_ms != -1
            or request.instance_id != member.instance_id
            or member.client_id != client.client_id
            or member.client_host != client.host
            or member.classic is not None
            or (group.regex_counts and self._regexes_due(group))
        ):
            return None
        deadlines = group.deadlines.get(member.member_id)
        if deadlines is None:
            return None
        deadlines.session_ms = self.monotonic_ms() + deadlines.session_timeout_ms
        return self._response(group, member, None)

    def _beat(self, request: ConsumerGroupHeartbeatRequest, client: Client, answer: Answer) -> None:
        """Create or update the member, then its group's target, then reconcile it."""
        change, upgraded = self._change_for(request)
        member_id = request.member_id or self.new_name()
        draft = change.draft
        if len(draft.members) >= self.settings.max_size and member_id not in draft.members:
            raise draft.error(GroupMaxSizeReached, f"it has the {self.settings.max_size} members that it may have")
        owned = _owned(request)
        before = self._member_for(change, member_id, request, owned)
        updated = _updated(before, request, client)
        names_changed = change.put_member(updated)
        regex_changed = change.put_regex(before.topic_regex, updated.topic_regex)
        changed = names_changed or regex_changed
        if draft.metadata_stale or self._regexes_due(draft):
            change.refresh_regexes()
            change.bump_epoch(changed)
        elif changed or draft.group_epoch == 0:
            change.bump_epoch(changed)
        change.refresh_target()
        after = change.reconcile(member_id, owned, changed)
        whole = request.member_epoch == 0 or _is_full(request) or as_plain(before.assigned) != as_plain(after.assigned)
        response = self._response(draft, after, after.assigned if whole else None)
        self.upgrading = upgraded
        try:
            in_force = self.commit(change, lambda error: answer(None if error else response, error))
        finally:
            self.upgrading = False
        if in_force:
            group = self.groups[request.group_id]
            for member in group.members.values() if upgraded else (after,):
                self.start_session(group, member)
            if not after.same_assignment(before):
                self._follow_revocation(group, after)

    def _change_for(self, request: ConsumerGroupHeartbeatRequest) -> tuple[GroupChange, bool]:
        """The change of the group that a heartbeat is for, and whether it begins with the end of a classic group.

        A member that joins has its group made, or converted. Raises GroupIdNotFound.
        """
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self.change(group), False
        if request.member_epoch != 0:
            raise GroupIdNotFound(f"there is no consumer group {request.group_id!r}; members have to join again")
        if not isinstance(group, ClassicGroup):
            return self.change(ConsumerGroup(request.group_id, self.image)), False
        if group.is_empty:
            change = self.change(ConsumerGroup(request.group_id, self.image), group.tombstones())
        else:
            consumer = upgrade(group, self.settings, self.image)
            change = self.change(consumer, [*group.tombstones(), *group_records(consumer)])
        return change, True

    def _member_for(
        self, change: GroupChange, member_id: str, request: ConsumerGroupHeartbeatRequest, owned: Owned | None
    ) -> Member:
        """The member as it was before, or a new one. Raises UnknownMemberId, FencedInstanceId, UnreleasedInstanceId, FencedMemberEpoch."""
        draft = change.draft
        joins = request.member_epoch == 0
        if request.instance_id is None:
            found = draft.members.get(member_id)
            if found is None and not joins:
                raise draft.error(UnknownMemberId, f"member {member_id!r} is not in the group; it has to join again")
        else:
            found = draft.static_member(request.instance_id)
            if not joins:
                found = draft.member(member_id, request.instance_id)
            elif found is not None and found.member_id != member_id:
                if found.classic is None and found.member_epoch != STATIC_LEAVE_EPOCH:
                    raise draft.error(
                        UnreleasedInstanceId,
                        f"instance {request.instance_id!r} still belongs to member {found.member_id}; it has to leave first, "
                        "or its session to end",
                    )
                found = change.replace_static(found, member_id, 0)
        if found is None:
            return Member(member_id)
        self._check_epoch(draft, found, request.member_epoch, owned)
        return found

    def _check_epoch(self, draft: ConsumerGroup, member: Member, epoch: int, owned: Owned | None) -> None:
        """The member's epoch, or the one before while it owns nothing else than it should: the answer that told it may be lost."""
        if epoch in (0, member.member_epoch):
            return
        if epoch == member.previous_epoch < member.member_epoch and is_subset(owned, member.assigned):
            return
        raise draft.error(
            FencedMemberEpoch,
            f"member {member.member_id} came with epoch {epoch}, it is in epoch {member.member_epoch}; it has to give up all its "
            "partitions and join again",
        )

    def _interval_ms(self, group: ConsumerGroup, member: Member) -> int:
        """When to come again: sooner than usual while there is an assignment to be heard of.

        That is while others have partitions of the member, and until the group's target may be worked out anew: what has changed in
        the time since the last one waits for that, and who joined first hears then what to give up.
        """
        settings = self.settings_of(group.group_id)
        interval_ms = settings.heartbeat_interval_ms
        if member.state is MemberState.UNRELEASED_PARTITIONS:
            wait_ms = 0
        else:
            wait_ms = group.target_timestamp_ms + settings.assignment_interval_ms - self._context.now_ms()
            if not 0 < wait_ms <= settings.assignment_interval_ms:
                return interval_ms
            wait_ms += AFTER_ASSIGNMENT_MS
        return min(interval_ms, max(wait_ms, SETTLING_MS, SETTLING_MS_PER_MEMBER * len(group.members)))

    def _response(
        self, group: ConsumerGroup, member: Member, assigned: Epochs | None
    ) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._interval_ms(group, member),
            assignment=None
            if assigned is None
            else _Assignment(
                topic_partitions=[
                    ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in sorted(assigned.items())
                ]
            ),
        )

    def _regexes_due(self, group: ConsumerGroup) -> bool:
        """Whether a pattern was not looked at for so long that it has to be."""
        if not group.regexes:
            return False
        now_ms, interval_ms = self._context.now_ms(), self.settings.regex_refresh_interval_ms
        return not all(resolved.is_fresh(now_ms, interval_ms) for resolved in group.regexes.values())

    # --- leaving ---

    def _leave(self, request: ConsumerGroupHeartbeatRequest, answer: Answer) -> None:
        group = self.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFound(f"there is no consumer group {request.group_id!r}")
        member = group.member(request.member_id, request.instance_id)
        response = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)

        def written(error: KafkaError | None) -> None:
            answer(None if error else response, error)

        if request.member_epoch == LEAVE_EPOCH:
            self.fence(group, [member.member_id], written)
            return
        change = self.change(group)
        change.put_current(copied(member, member_epoch=STATIC_LEAVE_EPOCH, revoking={}))
        if self.commit(change, written):
            deadlines = group.deadlines.get(member.member_id)
            if deadlines is not None:  # its session goes on: that is how long its partitions wait
                deadlines.rebalance_ms = 0

    def fence(
        self, group: ConsumerGroup, member_ids: Iterable[str], written: Callable[[KafkaError | None], None]
    ) -> bool:
        """Remove members; the others get a new target with their next heartbeats. Whether that could be written."""
        change = self.change(group)
        change.remove(member_ids)
        if can_downgrade(change.draft, self.settings):
            return self.go_down(group, change, True, written)
        change.bump_epoch(True)
        return self.commit(change, written)

    def _fence_in_parts(self, group: ConsumerGroup, member_ids: list[str]) -> bool:
        """`fence`, in as many changes as it takes to fit a batch each. Whether all that could be written."""
        if self.groups.get(group.group_id) is not group:
            return True  # it has become a classic group, which has sessions of its own
        too_large = False

        def written(error: KafkaError | None) -> None:
            nonlocal too_large
            too_large = error is not None and error.code == ErrorCode.MESSAGE_TOO_LARGE

        if self.fence(group, member_ids, written):
            return True
        half = len(member_ids) // 2
        if not too_large or not half:
            return False
        return self._fence_in_parts(group, member_ids[:half]) and self._fence_in_parts(group, member_ids[half:])

    def go_down(
        self,
        group: ConsumerGroup,
        change: GroupChange,
        rebalance: bool,
        written: Callable[[KafkaError | None], None],
    ) -> bool:
        """Make a group that has only members of the classic protocol left a classic one. Whether that could be written."""
        change.records = downgrade(group, change.draft, self.image(), self._context)
        if not self.commit(change, written):
            return False
        logger.info("group %s is a classic group now", group.group_id)
        self._became_classic(group.group_id, rebalance)
        return True

    # --- writing ---

    def change(self, group: ConsumerGroup, written: Iterable[CoordinatorRecord] = ()) -> GroupChange:
        """A change of a group, to be worked out; `written` are records that come before it."""
        settings, bytes_max = self.settings_of(group.group_id), self._context.record_bytes_max
        return GroupChange(group, self.image(), self._context.now_ms(), settings, written, bytes_max)

    def commit(self, change: GroupChange, written: Callable[[KafkaError | None], None]) -> bool:
        """Write a change; whether it is in force. `written` is called once, with the error where it is not, when it is durable else, or
        with REQUEST_TIMED_OUT where it is not in time.

        One without records comes after others: a request that is sent again is answered with what the first has changed.
        """
        failed = False

        def done(error: KafkaError | None) -> None:
            nonlocal failed
            failed = failed or error is not None
            written(error)

        if change.records:
            self._patience.wait(partial(self._context.append, change.records), done)
        else:
            self._when_durable(done)
        if failed:
            return False
        group = self.groups.get(change.draft.group_id)
        if isinstance(group, ConsumerGroup):
            group.metadata_stale = change.draft.metadata_stale
            if change.assignment_due_ms:
                delay_ms = change.assignment_due_ms - self._context.now_ms()
                group.assignment_due_ms = self.monotonic_ms() + delay_ms
                self._wake_at(group, group.assignment_due_ms)
        return True

    # --- deadlines ---

    def start_session(self, group: ConsumerGroup, member: Member) -> None:
        """A member is alive: its session ends a time-out from now, unless it is heard of again."""
        timeout_ms = self.settings_of(group.group_id).session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        deadlines = group.deadlines.setdefault(member.member_id, MemberDeadlines())
        deadlines.session_timeout_ms = timeout_ms
        deadlines.session_ms = self.monotonic_ms() + timeout_ms
        self._wake_at(group, deadlines.session_ms)

    def _follow_revocation(self, group: ConsumerGroup, member: Member) -> None:
        """A member that has to revoke has its rebalance time-out for it."""
        deadlines = group.deadlines.setdefault(member.member_id, MemberDeadlines())
        if member.classic is not None:
            return
        if needs_rebalance_deadline(member):
            self.start_rebalance(group, member)
        else:
            deadlines.rebalance_ms = 0

    def start_rebalance(self, group: ConsumerGroup, member: Member) -> None:
        """A member has its rebalance time-out from now to do what it was told."""
        deadlines = group.deadlines.setdefault(member.member_id, MemberDeadlines())
        deadlines.rebalance_ms = self.monotonic_ms() + max(member.rebalance_timeout_ms, 0)
        deadlines.rebalance_epoch = member.member_epoch
        self._wake_at(group, deadlines.rebalance_ms)

    def _wake_at(self, group: ConsumerGroup, at_ms: int) -> None:
        """Look at the group's deadlines at this time, if not before."""
        before = group.timer
        if before is not None and group.timer_at_ms <= at_ms:
            return
        delay_s = max(at_ms - self.monotonic_ms(), 0) / 1000
        group.timer = self._context.call_later(delay_s, lambda: self._wake(group))
        group.timer_at_ms = at_ms
        if before is not None:  # until then: there may be no memory for the other
            before.cancel()

    def _wake(self, group: ConsumerGroup) -> None:
        """Do what is due, then wait for what is due next; what fails inside is due again, as nothing else may have it looked at."""
        group.timer = None
        if self.groups.get(group.group_id) is not group:
            return
        now_ms = self.monotonic_ms()
        try:
            self._do_due(group, now_ms)
        except Exception as error:
            self._wake_at(group, now_ms + RETRY_MS)
            failures.report(f"looking after the groups of {self._context.partition}", error)

    def _do_due(self, group: ConsumerGroup, now_ms: int) -> None:
        expired = [member_id for member_id in group.deadlines if self._is_expired(group, member_id, now_ms)]
        if expired:
            if not self._fence_in_parts(group, expired):
                self._wake_at(group, now_ms + RETRY_MS)
                return
        elif group.assignment_due_ms and group.assignment_due_ms <= now_ms:
            change = self.change(group)
            change.refresh_target()
            group.assignment_due_ms = 0
            written = False
            try:
                written = self.commit(change, lambda error: None)
            finally:
                if not written:
                    group.assignment_due_ms = now_ms + RETRY_MS
        if self.groups.get(group.group_id) is not group:
            return  # it has become a classic group
        dues = [due for deadlines in group.deadlines.values() if (due := deadlines.earliest())]
        if group.assignment_due_ms:
            dues.append(group.assignment_due_ms)
        if dues:
            self._wake_at(group, min(dues))

    def _is_expired(self, group: ConsumerGroup, member_id: str, now_ms: int) -> bool:
        """Whether a member is to be given up: not heard of for its session, or too slow to revoke in the epoch it was told."""
        deadlines = group.deadlines[member_id]
        member = group.members[member_id]
        if deadlines.session_ms and deadlines.session_ms <= now_ms:
            return True
        if not deadlines.rebalance_ms or deadlines.rebalance_ms > now_ms:
            return False
        if deadlines.rebalance_epoch == member.member_epoch:
            return True  # the deadline goes with the member: where that cannot be written, the next try finds it again
        deadlines.rebalance_ms = 0
        return False


def _stop_timer(group: ConsumerGroup) -> None:
    if group.timer is not None:
        group.timer.cancel()
        group.timer = None


def _contradiction(request: ConsumerGroupHeartbeatRequest, version: int) -> str:
    """What is wrong with a request by itself; empty when nothing is."""
    epoch = request.member_epoch
    problems = {
        "the group id is empty": not request.group_id.strip(),
        "the instance id is empty; leave it out": request.instance_id == "",
        "the rack id is empty; leave it out": request.rack_id == "",
        "the member id is empty": not request.member_id
        and (epoch > 0 or epoch == LEAVE_EPOCH or version >= FIRST_VERSION_WITH_CLIENT_IDS),
        f"member epoch {epoch}; it takes -2 or more": epoch < STATIC_LEAVE_EPOCH,
        "a static member leaves with its instance id": epoch == STATIC_LEAVE_EPOCH and request.instance_id is None,
    }
    if epoch == 0:
        problems |= {
            "a member joins with its rebalance time-out": request.rebalance_timeout_ms == -1,
            "a member joins with an empty list of partitions": request.topic_partitions is None
            or bool(request.topic_partitions),
            "a member joins with its topics or its pattern": request.subscribed_topic_names is None
            and request.subscribed_topic_regex is None,
        }
    return next((words for words, is_so in problems.items() if is_so), "")


def _owned(request: ConsumerGroupHeartbeatRequest) -> Owned | None:
    """What the member says that it owns."""
    if request.topic_partitions is None:
        return None
    return {item.topic_id: item.partitions for item in request.topic_partitions}


def _updated(member: Member, request: ConsumerGroupHeartbeatRequest, client: Client) -> Member:
    """The member with what the request says anew; what it leaves out stays."""
    changes: dict[str, Any] = {"client_id": client.client_id, "client_host": client.host, "classic": None}
    if request.instance_id is not None:
        changes["instance_id"] = request.instance_id
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != -1:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.server_assignor is not None:
        changes["server_assignor"] = request.server_assignor
    if request.subscribed_topic_names is not None:
        changes["topic_names"] = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        changes["topic_regex"] = request.subscribed_topic_regex
    return copied(member, **changes)


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the member said all there is to say, as it does after an error: then it hears all, too."""
    subscribed = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and subscribed and request.topic_partitions is not None
