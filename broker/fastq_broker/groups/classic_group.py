"""A classic group (JoinGroup, SyncGroup) as a state machine: events and time in, effects out.

Rules
- Nothing here does I/O. A method changes the group and leaves effects in `effects`, which the shard carries out in order: answers to
  who waits, records to store (the outcome comes back through `Store.then`), times at which to call `wake`.
- Times are monotonic milliseconds, but for `state_since_ms`, which is stored: that one comes from `wall_clock`.
- A heartbeat only moves a deadline; a member is looked at when its earlier deadline comes.
- States and their transitions are in `classic_state`.
- Where there is no memory for an effect, nothing is changed: the time that has come is looked at again.
Source: the classic part of GroupMetadataManager; KIP-134 (initial delay), 345 (static members), 394 (member ids), 814.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastq.errors import ErrorCode

from .classic_member import JoinRequest, JoinResult, Member, SyncResult, Waiter
from .classic_state import CAN_REBALANCE, Answer, GroupState, State, Store, Wake
from .group import UNKNOWN_MEMBER, Committer
from .subscriptions import subscribed_topics

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
JOIN_KEY = "\0join"
SYNC_KEY = "\0sync"
"""Keys of `wake` that are no member ids."""


class ClassicGroup(GroupState):
    """One group and what happens to it. Loop thread only; invariants: see GroupState."""

    # --- what others ask (see group.Group) ---

    def note_commit(self, committer: Committer, now_ms: int) -> None:
        member = self.members.get(committer.member_id)
        if member is not None and self.state in (State.STABLE, State.PREPARING_REBALANCE):
            self._touch(member, now_ms)

    # --- joining ---

    def join(self, request: JoinRequest, waiter: Waiter, now_ms: int) -> None:
        """A JoinGroup; the answer comes as an effect, at once or when the rebalance is complete."""
        if not self._accepts(request.member_id):
            self._remove(request.member_id)
            self._answer(waiter, JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED))
            self._complete_join_if_all_here(now_ms)
        elif self.state is State.DEAD:
            self._answer(waiter, JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id))
        elif not self._shares_protocol(request):
            self._answer(waiter, JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        elif request.member_id != UNKNOWN_MEMBER:
            self._join_known(request, waiter, now_ms)
        elif request.instance_id is not None:
            self._join_static(request, request.instance_id, waiter, now_ms)
        else:
            self._join_dynamic(request, waiter, now_ms)

    def _join_dynamic(self, request: JoinRequest, waiter: Waiter, now_ms: int) -> None:
        member_id = f"{request.client_id}-{self._new_name()}"
        if not request.requires_member_id:
            self._add_and_rebalance(member_id, request, waiter, now_ms)
            return
        self.pending_joins[member_id] = now_ms + request.session_timeout_ms
        self.effects.append(Wake(now_ms + request.session_timeout_ms, member_id))
        self._answer(waiter, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _join_static(self, request: JoinRequest, instance_id: str, waiter: Waiter, now_ms: int) -> None:
        """A static member that has started (again): it gets a new id, which fences the old one."""
        member_id = f"{instance_id}-{self._new_name()}"
        old_id = self.instances.get(instance_id)
        if old_id is None:
            self._add_and_rebalance(member_id, request, waiter, now_ms)
            return
        old_leader = self.leader_id or ""
        before = self.members[old_id]
        member = self._replace_static(instance_id, member_id)
        self._touch(member, now_ms)
        self._update(member, request, waiter)
        if self.state is State.STABLE:
            if self._select_protocol() == self.protocol_name:
                self._store_replacement(member, before, old_leader, request.can_skip_assignment)
            else:
                self._rebalance_or_complete(now_ms)
        elif self.state is State.COMPLETING_REBALANCE:
            # The leader may be assigning to the old id already.
            self._prepare_rebalance(now_ms)
        else:
            self._complete_join_if_all_here(now_ms)

    def _store_replacement(self, member: Member, before: Member, old_leader: str, can_skip: bool) -> None:
        """Persist a static member's new id and answer it; its assignment stays, so nobody rebalances."""
        old_id, waiter = before.member_id, member.join_waiter

        def stored(error: int, now_ms: int) -> None:
            if self.state is State.DEAD or self.members.get(member.member_id) is not member:
                return  # it has been removed or replaced meanwhile, or the group is gone, and answered then
            if member.join_waiter is not waiter:
                return  # a rebalance has told it its new id, which it may be using, or it has asked again
            if error:
                self._take_join_waiter(member)
                assert member.instance_id is not None
                restored = self._replace_static(member.instance_id, old_id)
                self._support(restored, -1)
                restored.protocols = before.protocols
                self._support(restored, 1)
                restored.rebalance_timeout_ms = before.rebalance_timeout_ms
                restored.session_timeout_ms = before.session_timeout_ms
                self._touch(restored, now_ms)
                self._answer(waiter, JoinResult(error))
                return
            self._touch(member, now_ms)  # while it waited it had no need of a session, and nobody looks at it any more
            if can_skip:
                leads = self.leader_id == member.member_id
                joined = self._joined(member, self._metadata_of_all() if leads else ())
                self._answer(self._take_join_waiter(member), joined._replace(skip_assignment=leads))
            else:
                # Older clients that find themselves leaders assign anew: they are told of the leader before them.
                self._answer(self._take_join_waiter(member), self._joined(member)._replace(leader=old_leader))

        self.effects.append(Store(self.assignments(), stored))

    def _join_known(self, request: JoinRequest, waiter: Waiter, now_ms: int) -> None:
        member_id = request.member_id
        if member_id in self.pending_joins and request.instance_id is None:
            self._add_and_rebalance(member_id, request, waiter, now_ms)
            return
        error = self.member_error(member_id, request.instance_id)
        if error or self.state is State.EMPTY:
            self._answer(waiter, JoinResult(error or ErrorCode.UNKNOWN_MEMBER_ID, member_id))
            return
        member = self.members[member_id]
        unchanged = member.protocols == request.protocols
        completing = self.state is State.COMPLETING_REBALANCE
        # A leader of a stable group may join again to have it rebalance, as topics may have changed.
        if unchanged and (completing or (self.state is State.STABLE and self.leader_id != member_id)):
            everyone = self._metadata_of_all() if completing and self.leader_id == member_id else ()
            self._answer(waiter, self._joined(member, everyone))
            return
        self._update(member, request, waiter)
        self._rebalance_or_complete(now_ms)

    def _add_and_rebalance(self, member_id: str, request: JoinRequest, waiter: Waiter, now_ms: int) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
        )
        member.is_new = True
        if self.state is State.PREPARING_REBALANCE and self.previous_state is State.EMPTY:
            self._new_member_added = True
        self.add(member, request.protocol_type)
        member.join_waiter = waiter
        self.awaiting_join += 1
        # It does not know its id yet, so it sends no heartbeats; a client that is gone must not stay for ever.
        self._touch(member, now_ms, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(now_ms)

    # --- rebalancing ---

    def _rebalance_or_complete(self, now_ms: int) -> None:
        if self.state in CAN_REBALANCE:
            self._prepare_rebalance(now_ms)
        else:
            self._complete_join_if_all_here(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> None:
        """Have all members join (again). The first ones of a group wait for others before they begin."""
        if self.state is State.COMPLETING_REBALANCE:
            self._propagate({}, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        if self.state is State.EMPTY:
            delay_ms = self.settings.initial_rebalance_delay_ms
            self._initial_remaining_ms = max(self.rebalance_timeout_ms - delay_ms, 0)
            self._schedule_join(now_ms + delay_ms)
        elif not self._all_here():
            self._schedule_join(now_ms + self.rebalance_timeout_ms)
        self._go(State.PREPARING_REBALANCE)
        self._sync_deadline_ms = None
        self._complete_join_if_all_here(now_ms)

    def _schedule_join(self, at_ms: int) -> None:
        self.effects.append(Wake(at_ms, JOIN_KEY))
        self._join_deadline_ms = at_ms

    def _complete_join_if_all_here(self, now_ms: int) -> None:
        """End the joining once everybody is here; the first rebalance lasts its whole delay."""
        waits = self.state is State.PREPARING_REBALANCE and self.previous_state is not State.EMPTY
        if waits and self._all_here():
            self._complete_join(now_ms)

    def _join_time_is_up(self, now_ms: int) -> None:
        remaining = self._initial_remaining_ms
        if remaining is not None and self._new_member_added and remaining > 0:
            delay_ms = self.settings.initial_rebalance_delay_ms
            self._new_member_added = False
            self._initial_remaining_ms = max(remaining - delay_ms, 0)
            self._schedule_join(now_ms + min(delay_ms, remaining))
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Begin the next generation with those that have joined; static members may be late, the others are out."""
        for member in [m for m in self.members.values() if m.join_waiter is None and m.instance_id is None]:
            self._remove(member.member_id)
        if self.members and not self._elect_leader():
            self._schedule_join(now_ms + self.rebalance_timeout_ms)  # until their sessions end
            return
        generation, pending_syncs = self.generation + 1, set(self.members)
        protocol_name = self._select_protocol() if self.members else None
        subscribed = subscribed_topics(self.protocol_type, protocol_name, self.members.values())
        sync_deadline_ms = now_ms + self.rebalance_timeout_ms
        self.effects.append(Wake(sync_deadline_ms, SYNC_KEY) if self.members else Store({}, self._emptied))
        self._go(State.COMPLETING_REBALANCE if self.members else State.EMPTY)
        self._join_deadline_ms = self._initial_remaining_ms = None
        self._new_member_added = False
        self.generation, self.pending_syncs = generation, pending_syncs
        self.protocol_name, self.subscribed = protocol_name, subscribed
        if not self.members:
            return
        self._sync_deadline_ms = sync_deadline_ms
        everyone = self._metadata_of_all()
        for member in self.members.values():
            member.is_new = False
            joined = self._joined(member, everyone if member.member_id == self.leader_id else ())
            self._answer(member.join_waiter, joined)
            self._take_join_waiter(member)
            self._touch(member, now_ms)

    def _emptied(self, error: int, now_ms: int) -> None:
        if error:
            self._unwritten = True

    def write_again(self) -> None:
        """Store that nobody is in the group, where that could not be: whoever loads it had its last members still."""
        if self._unwritten and self.state is State.EMPTY:
            self._unwritten = False
            self.effects.append(Store({}, self._emptied))

    def rebalance(self, now_ms: int) -> None:
        """Have all members of a stable group join again."""
        self._prepare_rebalance(now_ms)

    def rebalance_if_too_large(self, now_ms: int) -> None:
        """A group that has just been loaded may have more members than the broker allows by now."""
        if len(self.members) > self.settings.size_max:
            self._prepare_rebalance(now_ms)

    # --- assignments ---

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: dict[str, bytes],
        waiter: Waiter,
        now_ms: int,
    ) -> None:
        """A SyncGroup; the leader's carries the assignments. Checks come in Kafka's order: member, generation, protocol, state."""
        error = self._sync_error(member_id, instance_id, generation, protocol_type, protocol_name)
        if error:
            self._answer(waiter, SyncResult(error))
            return
        member = self.members[member_id]
        if self.state is State.STABLE:
            self._answer(waiter, SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment))
            self.pending_syncs.discard(member_id)
            return
        if member.sync_waiter is not None:  # the client has asked again, on another connection
            self._answer(member.sync_waiter, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
            member.sync_waiter = None
        if member_id == self.leader_id:
            assigned = {known: assignments.get(known, b"") for known in self.members}
            self.effects.append(Store(assigned, self._assignment_stored(assigned)))
        self.pending_syncs.discard(member_id)
        member.sync_waiter = waiter

    def _sync_error(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol_name: str | None,
    ) -> int:
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.member_error(member_id, instance_id)
        if error:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if protocol_type not in (None, self.protocol_type) or protocol_name not in (None, self.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is State.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is State.PREPARING_REBALANCE else ErrorCode.NONE

    def _assignment_stored(self, assigned: dict[str, bytes]) -> Callable[[int, int], None]:
        generation = self.generation

        def stored(error: int, now_ms: int) -> None:
            if self.state is not State.COMPLETING_REBALANCE or self.generation != generation:
                return  # another member has joined meanwhile
            if error:
                self._propagate({}, error, now_ms)
                self._rebalance_or_complete(now_ms)
            else:
                self._propagate(assigned, ErrorCode.NONE, now_ms)
                self._go(State.STABLE)

        return stored

    def _propagate(self, assigned: dict[str, bytes], error: int, now_ms: int) -> None:
        """Give members their assignments, or take them away, and tell those that wait."""
        told = (self.protocol_type, self.protocol_name) if not error else (None, None)
        for member in self.members.values():
            member.assignment = assigned.get(member.member_id, b"")
            if member.sync_waiter is not None:
                self._answer(member.sync_waiter, SyncResult(error, *told, member.assignment))
                member.sync_waiter = None
                self._touch(member, now_ms)

    # --- staying and leaving ---

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> int:
        """The error to answer. Checks come in Kafka's order: member 25, generation 22, rebalance 27."""
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.member_error(member_id, instance_id)
        if error:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is State.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._touch(self.members[member_id], now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is State.PREPARING_REBALANCE else ErrorCode.NONE

    def leave(self, leaving: Sequence[tuple[str, str | None]], now_ms: int) -> list[int]:
        """Remove members, given by id and instance id, or by instance id alone; answers an error for each."""
        errors: list[int] = []
        for member_id, instance_id in leaving:
            if member_id == UNKNOWN_MEMBER:
                current = self.instances.get(instance_id) if instance_id is not None else None
                error: int = ErrorCode.UNKNOWN_MEMBER_ID if current is None else ErrorCode.NONE
                target = current or ""
            else:
                pending = member_id in self.pending_joins
                error = ErrorCode.NONE if pending else self.member_error(member_id, instance_id)
                target = member_id
            if not error:
                self._unfollowed = True
                self._remove(target)
            errors.append(error)
        if self._unfollowed:
            self._after_removal(now_ms)
        else:  # one that is sent again, perhaps
            self.write_again()
        return errors

    def _after_removal(self, now_ms: int) -> None:
        self._unfollowed = True
        if self.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self._prepare_rebalance(now_ms)
        else:
            self._complete_join_if_all_here(now_ms)
        self._unfollowed = False

    def wake(self, key: str, now_ms: int) -> None:
        """The time that a `Wake` named has come; what it was for may have moved or be done. Where it raises it is called again."""
        if self.state is State.DEAD:
            return
        if self._unfollowed:
            self._after_removal(now_ms)
        if key == JOIN_KEY:
            due_ms = self._join_deadline_ms
            if self.state is State.PREPARING_REBALANCE and due_ms is not None and due_ms <= now_ms:
                self._join_time_is_up(now_ms)
        elif key == SYNC_KEY:
            if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
                self._sync_time_is_up(now_ms)
        elif key in self.pending_joins:
            if self.pending_joins[key] <= now_ms:
                self._remove(key)
                self._complete_join_if_all_here(now_ms)
        elif key in self.members:
            self._check_session(self.members[key], now_ms)

    def _check_session(self, member: Member, now_ms: int) -> None:
        if member.armed_ms is None or member.armed_ms > now_ms:
            return  # a later look is due
        if member.deadline_ms > now_ms:
            self._arm(member)
        elif member.is_new or (member.join_waiter is None and member.sync_waiter is None):
            self._remove(member.member_id)
            self._after_removal(now_ms)
        else:
            member.armed_ms = None

    def _sync_time_is_up(self, now_ms: int) -> None:
        """Members that never asked for their assignment are out."""
        if self.pending_syncs and self.state in (State.COMPLETING_REBALANCE, State.STABLE):
            for member_id in list(self.pending_syncs):
                self._remove(member_id)
            self._after_removal(now_ms)
        else:
            self._sync_deadline_ms = None

    def kill(self, error: int) -> None:
        """The group is deleted or coordinated elsewhere: who waits gets this error."""
        for member in list(self.members.values()):
            self._answer(self._take_join_waiter(member), JoinResult(error, member.member_id))
            waiter, member.sync_waiter = member.sync_waiter, None
            self._answer(waiter, SyncResult(error))
        self._go(State.DEAD)

    # --- members ---

    def _update(self, member: Member, request: JoinRequest, waiter: Waiter) -> None:
        """Take over what a member says as it joins again."""
        self._support(member, -1)
        member.protocols = request.protocols
        self._support(member, 1)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        # The client may have lost its connection and ask again; nobody reads the answer to the first.
        self._answer(self._take_join_waiter(member), JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.join_waiter = waiter
        self.awaiting_join += 1

    def _replace_static(self, instance_id: str, member_id: str) -> Member:
        """Give a static member a new id; who waits under the old one is fenced."""
        old = self.members.pop(self.instances[instance_id])
        self._answer(self._take_join_waiter(old), JoinResult(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
        waiter, old.sync_waiter = old.sync_waiter, None
        self._answer(waiter, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        self.pending_syncs.discard(old.member_id)
        member = old.successor(member_id)
        self.members[member_id] = member
        self.instances[instance_id] = member_id
        if self.leader_id == old.member_id:
            self.leader_id = member_id
        return member

    def _remove(self, member_id: str) -> None:
        """Take a member (or an id that was given out) out; who waits for it is told to join anew."""
        member = self.members.get(member_id)
        told: list[Answer] = []
        if member is not None and member.join_waiter is not None:
            told.append(Answer(member.join_waiter, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID)))
        if member is not None and member.sync_waiter is not None:
            told.append(Answer(member.sync_waiter, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)))
        if member is not None:
            self._support(member, -1)
        self.effects += told
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.discard(member_id)
        if member is None:
            return
        del self.members[member_id]
        self._take_join_waiter(member)
        member.sync_waiter = None
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    # --- sessions and answers ---

    def start_sessions(self, now_ms: int) -> None:
        """The group has been loaded: its members have a session from now on."""
        for member in self.members.values():
            self._touch(member, now_ms)

    def _touch(self, member: Member, now_ms: int, timeout_ms: int | None = None) -> None:
        """The member is alive: move its deadline, and look at it no later than then."""
        deadline_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        member.deadline_ms = deadline_ms
        if member.armed_ms is None or member.armed_ms > deadline_ms:
            self._arm(member)

    def _arm(self, member: Member) -> None:
        self.effects.append(Wake(member.deadline_ms, member.member_id))
        member.armed_ms = member.deadline_ms

    def _take_join_waiter(self, member: Member) -> Waiter | None:
        waiter, member.join_waiter = member.join_waiter, None
        if waiter is not None:
            self.awaiting_join -= 1
        return waiter

    def _answer(self, waiter: Waiter | None, result: Any) -> None:
        if waiter is not None:
            self.effects.append(Answer(waiter, result))
