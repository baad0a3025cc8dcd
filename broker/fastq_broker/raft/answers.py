"""What a member of a metadata quorum answers: to candidates, to leaders, and as the leader to those who fetch.

Rules: who asks with a higher epoch is believed before its question is looked at. Only a Fetch that agrees with the log says how far its
sender is. A record is committed when a majority of voters has it on disk, the leader too, and a record of the leader's own epoch is
among them. Sources: KafkaRaftClient, LeaderState; KIP-630, KIP-996, KIP-1166.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from fastq.errors import ErrorCode, KafkaError, NotLeaderOrFollower
from fastq_broker.log import failures
from fastq_broker.raft.messages import (
    Answer,
    BeginEpoch,
    EndEpoch,
    EpochEnd,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    SnapshotId,
    Vote,
)
from fastq_broker.raft.roles import LAST_EPOCH, NOBODY, Role, Roles, Waiter

logger = logging.getLogger(__name__)


class Answers(Roles):
    """The part that is asked. Invariant: `_waiters` are Fetches at the log's end, while this node leads."""

    # -- candidates

    def vote(self, ask: Vote, now: float) -> Answer:
        """Whether this replica votes for, or would vote for, a candidate. Raises NoRoom, as the other answers about epochs do."""
        if not self._same_cluster(ask.cluster_id):
            return self._answer(ErrorCode.INCONSISTENT_CLUSTER_ID)
        too_late = ask.last_epoch > ask.epoch if ask.pre else ask.last_epoch >= ask.epoch
        if ask.end_offset < 0 or ask.last_epoch < 0 or ask.candidate.node_id < 0 or too_late or ask.epoch >= LAST_EPOCH:
            return self._answer(ErrorCode.INVALID_REQUEST)
        if ask.epoch < self.epoch:
            return self._answer(ErrorCode.FENCED_LEADER_EPOCH)
        if ask.epoch > self.epoch:
            self._unattached(ask.epoch, now)
        if ask.voter is not None and not ask.voter.is_of(self.config.key):
            return self._answer(ErrorCode.INVALID_VOTER_KEY)
        granted = self._grants(ask)
        if granted and not ask.pre and self.voted is None:
            self._keep(self.epoch, self.leader_id, ask.candidate)
            self.voted = ask.candidate
            self._set(self.role, self.epoch, self.leader_id, now + self._election_s())
        return self._answer(ErrorCode.NONE, granted=granted)

    def _grants(self, ask: Vote) -> bool:
        up_to_date = (ask.last_epoch, ask.end_offset) >= (self.log.last_epoch, self.log.end)
        if ask.pre:
            if self.role is Role.LEADER:
                return False
            return up_to_date and not (self.role is Role.FOLLOWER and self._has_fetched)
        if self.role not in (Role.UNATTACHED, Role.PROSPECTIVE):
            return False
        if self.voted is not None:
            return self.voted.is_of(ask.candidate)
        return up_to_date and self.leader_id == NOBODY

    # -- a leader's beginning and end

    def begin_epoch(self, ask: BeginEpoch, now: float) -> Answer:
        """A leader says that it is one."""
        refusal = self._refuse_leader(ask, now)
        if refusal is not None:
            return refusal
        self._follow(ask.epoch, ask.leader_id, ask.endpoints.get(self.config.listener), now)
        if ask.voter is not None and not ask.voter.is_of(self.config.key):
            return self._answer(ErrorCode.INVALID_VOTER_KEY)
        return self._answer(ErrorCode.NONE)

    def end_epoch(self, ask: EndEpoch, now: float) -> Answer:
        """A leader says that it goes: who stands first is said by how far each is, so that they do not stand at once."""
        refusal = self._refuse_leader(ask, now)
        if refusal is not None:
            return refusal
        self._follow(ask.epoch, ask.leader_id, ask.endpoints.get(self.config.listener), now)
        self._ended, self._has_fetched = ask.epoch, False
        if self.role in (Role.FOLLOWER, Role.UNATTACHED):
            most, count = self.config.election_backoff_max_s, len(ask.successors)
            place = next((at for at, key in enumerate(ask.successors) if key.is_of(self.config.key)), None)
            if place is None:
                backoff_s = most
            else:
                backoff_s = 0.0 if place == 0 else math.ldexp(most, place - count)
            self._deadline = now + backoff_s
        return self._answer(ErrorCode.NONE)

    def _refuse_leader(self, ask: BeginEpoch | EndEpoch, now: float) -> Answer | None:
        """Why somebody's word that it leads, or led, does not count."""
        if not self._same_cluster(ask.cluster_id):
            return self._answer(ErrorCode.INCONSISTENT_CLUSTER_ID)
        if ask.leader_id < 0 or ask.leader_id == self.config.key.node_id or ask.epoch >= LAST_EPOCH:
            return self._answer(ErrorCode.INVALID_REQUEST)
        if ask.epoch < self.epoch:
            return self._answer(ErrorCode.FENCED_LEADER_EPOCH)
        if ask.epoch == self.epoch and self.leader_id not in (NOBODY, ask.leader_id):
            failures.say(
                logger.error,
                f"node {ask.leader_id} leads too",
                "node %d says that it leads epoch %d, which node %d leads: one of them has another's data directory",
                ask.leader_id,
                ask.epoch,
                self.leader_id,
            )
            return self._answer(ErrorCode.INVALID_REQUEST)
        return None

    # -- the leader: records, and those who fetch them

    def append(self, values: Sequence[bytes]) -> int:
        """Append records; how many bytes they take in the log. NotLeaderOrFollower where this node does not lead."""
        if self.role is not Role.LEADER:
            raise NotLeaderOrFollower(
                f"node {self.config.key.node_id} does not lead the metadata quorum in epoch {self.epoch}"
            )
        size_bytes = self.log.append_records(values, self.epoch)
        self.log.flush()
        self._wake(None)
        return size_bytes

    def flushed(self, now: float) -> None:
        """More of the log is on disk."""
        if self.role is Role.LEADER:
            self._advance(now)

    def fetch(self, ask: Fetch, now: float, done: Callable[[Fetched], object]) -> None:
        """A replica asks for records: `done` has the answer, at once or when there is something to say."""
        error = self._refuse_fetch(ask.cluster_id, ask.epoch)
        if error is None and (ask.offset < 0 or ask.last_epoch < 0 or ask.last_epoch > ask.epoch):
            error = ErrorCode.INVALID_REQUEST
        if error is not None:
            done(self._fetched(error))
            return
        answer = self._look(ask, now)
        if answer is None:
            # No follower waits longer: what asks for more may be gone before it is told.
            self._waiters.append(Waiter(ask, now + min(ask.wait_s, self.config.fetch_timeout_s), done))
        else:
            done(answer)

    def _refuse_fetch(self, cluster_id: str | None, epoch: int) -> ErrorCode | None:
        if not self._same_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if self._stopping:
            return ErrorCode.BROKER_NOT_AVAILABLE
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self.role is not Role.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return None

    def _look(self, ask: Fetch, now: float) -> Fetched | None:
        """The answer, where there is something to say. What the replica asks for it has: so it is noted where the logs agree."""
        assert self.leadership is not None
        log = self.log
        snapshot = self._snapshot_for(ask)
        if snapshot is not None:
            return self._fetched(ErrorCode.NONE, snapshot=snapshot)
        if ask.offset > 0:
            end = log.end_of_epoch(ask.last_epoch)
            if end.epoch != ask.last_epoch or end.end_offset < ask.offset:
                return self._fetched(ErrorCode.NONE, diverging=end)
        self.leadership.has(ask.replica, ask.offset, log.end, now, voter=self.voters.has(ask.replica))
        self._advance(now)
        if self.role is not Role.LEADER:
            return self._fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if ask.offset < log.end:
            return self._records(ask)
        if self._known_mark > ask.high_watermark or ask.wait_s <= 0:
            return self._fetched(ErrorCode.NONE)
        return None

    def _records(self, ask: Fetch) -> Fetched:
        """What is asked for. Where it cannot be read that is said to who asks, and to nobody else who waits."""
        try:
            records = self.log.read(ask.offset, min(max(ask.bytes_max, 0), self.config.fetch_bytes_max))
        except KafkaError as error:
            return self._fetched(error.code)
        return self._fetched(ErrorCode.NONE, records=records)

    def _snapshot_for(self, ask: Fetch) -> SnapshotId | None:
        """The snapshot that is to be had before what is asked for."""
        snapshots = self.log.snapshots
        if not snapshots:
            return None
        if ask.offset == 0:
            return snapshots[-1] if snapshots[-1].end_offset > 0 else None
        earliest = snapshots[0]
        start = self.log.start
        if ask.offset < start or (ask.offset == start and start > 0 and ask.last_epoch != earliest.epoch):
            return snapshots[-1]
        return snapshots[-1] if start > 0 and ask.last_epoch < earliest.epoch else None

    def fetch_snapshot(self, ask: FetchSnapshot, now: float) -> FetchedSnapshot:
        """A replica asks for a piece of a snapshot."""
        error = self._refuse_fetch(ask.cluster_id, ask.epoch)
        if error is None and ask.bytes_max < 0:
            error = ErrorCode.INVALID_REQUEST
        if error is not None:
            return self._fetched_snapshot(error)
        size = self.log.snapshot_size(ask.snapshot)
        if size < 0 or ask.snapshot.end_offset == 0:
            return self._fetched_snapshot(ErrorCode.SNAPSHOT_NOT_FOUND)
        if not 0 <= ask.position < size:
            return self._fetched_snapshot(ErrorCode.POSITION_OUT_OF_RANGE)
        assert self.leadership is not None
        self.leadership.heard(ask.replica, now, voter=self.voters.has(ask.replica))
        data = self.log.read_snapshot(ask.snapshot, ask.position, min(ask.bytes_max, self.config.fetch_bytes_max))
        return self._fetched_snapshot(
            ErrorCode.NONE, snapshot=ask.snapshot, size=size, position=ask.position, data=data
        )

    def _advance(self, now: float) -> None:
        """What a majority has on disk is committed, once there is a record of this epoch in it."""
        assert self.leadership is not None
        found = self.leadership.majority_has(self.voters, self.log.durable_end)
        if found <= self.leadership.epoch_start or found <= self.high_watermark:
            return
        self._commit(found)
        self._wake(now)

    def _wake(self, now: float | None) -> None:
        """Answer those that wait for what there is now. Without a time: nobody's time is over."""
        waiting, self._waiters = self._waiters, []
        for waiter in waiting:
            expired = now is not None and waiter.until <= now
            if waiter.ask.offset < self.log.end:
                waiter.done(self._records(waiter.ask))
            elif expired or self._known_mark > waiter.ask.high_watermark:
                waiter.done(self._fetched(ErrorCode.NONE))
            else:
                self._waiters.append(waiter)

    def _answer_waiters(self) -> None:
        waiting, self._waiters = self._waiters, []
        for waiter in waiting:
            waiter.done(self._fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # -- answers

    def _same_cluster(self, cluster_id: str | None) -> bool:
        return cluster_id is None or cluster_id == self.config.cluster_id

    def _answer(self, error: ErrorCode, *, granted: bool = False) -> Answer:
        return Answer(error, self.leader_id, self.epoch, self.leader_endpoint, granted)

    def _fetched(
        self,
        error: ErrorCode,
        *,
        records: bytes = b"",
        diverging: EpochEnd | None = None,
        snapshot: SnapshotId | None = None,
    ) -> Fetched:
        return Fetched(
            error,
            self.leader_id,
            self.epoch,
            self.leader_endpoint,
            self._known_mark,
            self.log.start,
            records,
            diverging,
            snapshot,
        )

    @property
    def _known_mark(self) -> int:
        """The high watermark that a leader tells: a new one does not know how far is committed, until something of its own epoch is."""
        if self.leadership is None or self.high_watermark <= self.leadership.epoch_start:
            return -1
        return self.high_watermark

    def _fetched_snapshot(
        self,
        error: ErrorCode,
        *,
        snapshot: SnapshotId | None = None,
        size: int = -1,
        position: int = -1,
        data: bytes = b"",
    ) -> FetchedSnapshot:
        return FetchedSnapshot(error, self.leader_id, self.epoch, self.leader_endpoint, snapshot, size, position, data)

    # -- what to send, and when
