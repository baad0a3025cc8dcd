"""One member of a metadata quorum: what it knows, whom it follows or leads, and what is committed. Sans-I/O.

`roles` has what it can be, `answers` what it says when it is asked; here is what it does by itself, and what it makes of answers.

Rules
- Calls take what happened and the time, in seconds of a monotonic clock, and leave what is to be done in `effects`; only the log and the
  vote are touched at once.
- A follower asks for more once what it has is on its disk: what it asks for says what it will keep.
- An answer counts only while the question is the one that its link waits for; with a new role or epoch no link waits any more.
- Where nobody listens in the leader's place any more, it is not waited for until the fetch time-out: a follower asks who would vote for it,
  and would itself vote for who asks, soon after. That can only cost a vote that comes to nothing: who hears the leader refuses.
Sources: KafkaRaftClient; KIP-595, KIP-853, KIP-996.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from fastq.errors import ErrorCode, KafkaStorageError
from fastq_broker.log import failures
from fastq_broker.log.files import is_shortage, passes
from fastq_broker.raft.membership import Membership
from fastq_broker.raft.messages import (
    AddVoter,
    Answer,
    AnyAnswer,
    Ask,
    BeginEpoch,
    EndEpoch,
    EpochEnd,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    RemoveVoter,
    SnapshotId,
    UpdateVoter,
    Versions,
    VersionsAnswer,
    Vote,
    VoterAnswer,
)
from fastq_broker.raft.roles import ELECTABLE, NEVER, NOBODY, Effect, Link, LoadSnapshot, NoRoom, RaftFatal, Role
from fastq_broker.raft.voters import Endpoint, ReplicaKey

logger = logging.getLogger(__name__)

GONE_S = 0.1
"""How long a follower whose leader is gone leaves to the others to find out; up to twice that, so that they do not stand at once."""
SPEAK_S = 2.0
"""How often a controller asks its leader in its own matter."""


class RaftMachine(Membership):
    """The whole member. Thread rule: one thread."""

    _half_cut = False
    """Whether a shortage has kept the log from a cut, or amid it: the log finishes that by itself."""
    _half_begun: SnapshotId | None = None
    """What the log begins anew behind then."""

    _speak_at = 0.0
    _spoke_in = -1  # the epoch whose leader knows this voter's endpoints, without kraft.version 1

    # -- what to send, and when

    def poll(self, now: float) -> list[Effect]:
        """What is to be done now, with what was left to do before."""
        if self._half_cut:
            self._see_cut()
        for link in self._links.values():
            if link.asked is not None and now >= link.until:
                self._failed(link, now)
        for _ in range(4):  # a lonely voter goes from one role to the next
            before = self.role, self.epoch
            try:
                self._poll_role(now)
            except NoRoom:
                self._deadline = now + self._election_s()  # as one that has lost an election
            except KafkaStorageError as error:
                if not passes(error):
                    raise
                failures.say(
                    logger.error,
                    f"the first record of node {self.config.key.node_id}",
                    "node %d cannot lead its metadata quorum for now, and tries again: %s",
                    self.config.key.node_id,
                    error,
                )
            if (self.role, self.epoch) == before:
                break
        effects, self.effects = self.effects, []
        return effects

    def _poll_role(self, now: float) -> None:
        role, late = self.role, now >= self._deadline
        if role is Role.LEADER:
            self._poll_leader(now)
        elif role is Role.RESIGNED:
            self._poll_resigned(now)
        elif role is Role.CANDIDATE:
            if late:
                self.leader_id = NOBODY
                self._would_win(now)
            else:
                self._ask_for_votes(now)
        elif role is Role.PROSPECTIVE:
            if late:
                self._lost(now)
            else:
                self._ask_for_votes(now)
        elif late and self.may_stand and not self._stopping:
            self._would_win(now)
        else:
            if late:
                self._deadline = now + self.config.fetch_timeout_s  # an observer has time
                if role is Role.FOLLOWER:
                    self._wait_for_leader(now)
                    return
            self._fetch_more(now)

    def _poll_leader(self, now: float) -> None:
        assert self.leadership is not None
        config = self.config
        if now >= self._quorum_due():
            logger.warning(
                "a majority of the metadata quorum's voters has not fetched from its leader, node %d, for %.1f s: it resigns from epoch %d",
                config.key.node_id,
                config.quorum_timeout_s,
                self.epoch,
            )
            self._resigned(now)
            return
        self._wake(now)
        self._poll_change(now)
        for voter in self.voters:
            if now >= self.leadership.tell_at(voter.key, config.fetch_timeout_s / 2):
                ask = BeginEpoch(config.cluster_id, self.epoch, config.key.node_id, voter.key, config.endpoints)
                if self._send(voter.key.node_id, None, ask, now):
                    self.leadership.told(voter.key, now)

    def _quorum_due(self) -> float:
        """When this leader has been without a majority for too long."""
        assert self.leadership is not None
        return self.leadership.majority_heard(self.voters) + self.config.quorum_timeout_s

    def _poll_resigned(self, now: float) -> None:
        if now >= self._deadline:
            self._unattached(self.epoch + 1, now)
            self._deadline = now + self._election_s()
            return
        ask = EndEpoch(
            self.config.cluster_id, self.epoch, self.config.key.node_id, self._successors, self.config.endpoints
        )
        for voter in self.voters:
            if voter.key.node_id not in self._told and not voter.key.is_of(self.config.key):
                self._send(voter.key.node_id, None, ask, now)

    def _ask_for_votes(self, now: float) -> None:
        heard = self.granted | self.refused
        for voter in self.voters:
            if voter.key.node_id not in heard:
                ask = Vote(
                    self.config.cluster_id,
                    self.epoch,
                    self.config.key,
                    voter.key,
                    self.log.last_epoch,
                    self.log.end,
                    self.role is Role.PROSPECTIVE,
                )
                self._send(voter.key.node_id, None, ask, now)

    def _fetch_more(self, now: float) -> None:
        """Ask the leader for what follows, or somebody who may know the leader. Nobody is asked only while no link is free: each wakes."""
        if self._fetching is not None or self.log.durable_end < self.log.end:
            return
        leader = self.leader_endpoint if self.role is Role.FOLLOWER else None
        link = self._links.get(self.leader_id)
        is_free = link is None or link.is_free(now)
        own = None if leader is None or not is_free else self._for_itself(now)
        ask = own or self._next_fetch()
        others = list(self._free_places(now)) if own is None and isinstance(ask, Fetch) else []
        if leader is not None and (
            not others or link is None or not link.failed or (is_free and self._random.random() < 0.5)
        ):
            if self._send(self.leader_id, leader, ask, now):
                self._fetching = self.leader_id
                if own is not None:
                    self._speak_at = now + SPEAK_S
        elif others:
            number, place = others[self._random.randrange(len(others))]
            if self._send(number, place, ask, now):
                self._fetching = number

    def _next_fetch(self) -> Fetch | FetchSnapshot:
        config = self.config
        if self._receiving is not None:
            snapshot, position = self._receiving
            return FetchSnapshot(config.cluster_id, self.epoch, config.key, snapshot, position, config.fetch_bytes_max)
        return Fetch(
            config.cluster_id,
            self.epoch,
            config.key,
            self.log.end,
            self.log.last_epoch,
            self.high_watermark,
            config.fetch_wait_s,
            config.fetch_bytes_max,
        )

    def _for_itself(self, now: float) -> UpdateVoter | AddVoter | RemoveVoter | None:
        """What this controller is to ask its leader for in its own matter: to have its endpoints right, or to become a voter."""
        config, me = self.config, self.config.key
        if self.role is not Role.FOLLOWER or not config.may_vote or now < self._speak_at:
            return None
        known, version = self.voters.voter(me.node_id), self.history.kraft_version
        if known is not None and known.key.is_of(me):
            if known != config.voter if version > 0 else self._spoke_in != self.epoch:
                return UpdateVoter(config.cluster_id, self.epoch, config.voter)
        elif config.joins and version > 0:
            if known is not None:
                return RemoveVoter(config.cluster_id, known.key)  # with a directory that this node has no more
            return AddVoter(config.cluster_id, SPEAK_S, config.voter, when_committed=False)
        return None

    def _spoken_for(self, ask: UpdateVoter | AddVoter | RemoveVoter, answer: VoterAnswer, now: float) -> None:
        """The leader's answer in this controller's own matter; it is asked again in a while where there is something left."""
        if answer.error != ErrorCode.NONE:
            logger.info(
                "node %d: %s is refused by its leader, node %d, for now: %s%s",
                self.config.key.node_id,
                type(ask).__name__,
                self.leader_id,
                ErrorCode(answer.error).name,
                f": {answer.message}" if answer.message else "",
            )
        elif isinstance(ask, UpdateVoter):
            self._spoke_in = ask.epoch
        if answer.epoch >= 0:
            self._learned(answer, now)

    def _places(self) -> Sequence[Endpoint]:
        """Where somebody may know the leader."""
        if self.config.bootstrap:
            return self.config.bootstrap
        others = self.voters.ids - {self.config.key.node_id}
        return [place for node_id in others if (place := self._endpoint_of(node_id)) is not None]

    def _free_places(self, now: float) -> Iterator[tuple[int, Endpoint]]:
        """Where else than with the leader somebody may know of one, and can be asked now; with the number of its link."""
        for index, place in enumerate(self._places()):
            link = self._links.get(-2 - index)
            if place != self.leader_endpoint and (link is None or link.is_free(now)):
                yield -2 - index, place

    def answered(
        self,
        number: int,
        ask: Ask,
        answer: AnyAnswer | None,
        now: float,
        *,
        unsupported: bool = False,
        refused: bool = False,
    ) -> None:
        """What came of a Send: an answer, or None where there was none. `unsupported`: the other one does not know this question;
        `refused`: nobody listens there. One that a full disk has no room for is as none, and is asked for again later."""
        link = self._links.get(number)
        if link is None or link.asked is not ask:
            return
        try:
            self._answered(number, link, ask, answer, now, unsupported=unsupported, refused=refused)
        except NoRoom:
            link.asked, link.failed, link.until = None, True, now + self.config.request_timeout_s

    def _answered(
        self,
        number: int,
        link: Link,
        ask: Ask,
        answer: AnyAnswer | None,
        now: float,
        *,
        unsupported: bool,
        refused: bool,
    ) -> None:
        if answer is None:
            if unsupported and isinstance(ask, Vote) and ask.pre and self.role is Role.PROSPECTIVE:
                link.asked, link.until = None, now
                self._stand(now, self.epoch + 1)
            else:
                self._failed(link, now)
                if refused and isinstance(ask, EndEpoch):
                    self._told.add(number)  # nobody is there to be told: who comes later asks who leads
                if refused and self.role is Role.FOLLOWER and number == self.leader_id:
                    self._has_fetched = False
                    self._deadline = min(self._deadline, now + GONE_S * (1 + self._random.random()))
            return
        link.asked, link.failed = None, answer.error != ErrorCode.NONE
        link.until = now + self.config.retry_backoff_s if link.failed else now
        if self._fetching == number:
            self._fetching = None
        if isinstance(ask, Versions):
            assert isinstance(answer, VersionsAnswer)
            self._has_versions(ask, answer, now)
            return
        if isinstance(ask, UpdateVoter | AddVoter | RemoveVoter):
            assert isinstance(answer, VoterAnswer)
            self._spoken_for(ask, answer, now)
            return
        if answer.error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REQUEST):
            self._refused(link, ask, answer, now)
            return
        if self._learned(answer, now):
            return
        if isinstance(ask, Vote):
            assert isinstance(answer, Answer)
            self._voted(number, ask, answer, now)
        elif isinstance(ask, EndEpoch):
            if answer.error == ErrorCode.NONE:
                self._told.add(number)
        elif isinstance(ask, Fetch):
            assert isinstance(answer, Fetched)
            self._fetched_more(link, answer, now)
        elif isinstance(ask, FetchSnapshot):
            assert isinstance(answer, FetchedSnapshot)
            self._received(link, ask, answer, now)

    def _refused(
        self, link: Link, ask: Vote | BeginEpoch | EndEpoch | Fetch | FetchSnapshot, answer: AnyAnswer, now: float
    ) -> None:
        """An answer that a member of this quorum would not give."""
        link.failed, link.until = True, now + self.config.request_timeout_s
        place = "{}:{}".format(*link.endpoint)
        failures.say(
            logger.error,
            f"{place} refuses node {self.config.key.node_id}",
            "%s refuses a %s of node %d in epoch %d: %s; it is of another cluster, or has another's node id: compare cluster.id in the "
            "meta.properties of both, and the addresses of the controllers",
            place,
            type(ask).__name__,
            self.config.key.node_id,
            ask.epoch,
            ErrorCode(answer.error).name,
        )

    def _learned(self, answer: AnyAnswer, now: float) -> bool:
        """Take over what an answer says of leaders; whether that changed anything, so that the rest of it is of the past."""
        if answer.epoch < self.epoch:
            return True
        known = answer.leader_id not in (NOBODY, self.config.key.node_id)
        endpoint = answer.endpoint
        if answer.leader_id == self.config.key.node_id and answer.epoch > self._led_epoch:
            failures.say(
                logger.error,
                f"node {answer.leader_id} leads elsewhere",
                "node %d leads the metadata quorum in epoch %d, and that is not this process, which has the same node.id: stop it and "
                "give it an id that no other node has (a controller whose disk is new may be told this until the others elect again)",
                answer.leader_id,
                answer.epoch,
            )
        if known and endpoint is None:
            endpoint = self._endpoint_of(answer.leader_id)
        if answer.epoch > self.epoch:
            if known and endpoint is not None:
                self._follow(answer.epoch, answer.leader_id, endpoint, now)
            else:
                self._unattached(answer.epoch, now)
            return True
        if known and endpoint is not None and self.leader_id == NOBODY:
            self._follow(answer.epoch, answer.leader_id, endpoint, now)
            return True
        return False

    def _voted(self, number: int, ask: Vote, answer: Answer, now: float) -> None:
        if self.role not in ELECTABLE or ask.pre != (self.role is Role.PROSPECTIVE) or answer.error != ErrorCode.NONE:
            return
        (self.granted if answer.granted else self.refused).add(number)
        self._count(now)

    # -- the follower

    def _fetched_more(self, link: Link, answer: Fetched, now: float) -> None:
        if self.role is not Role.FOLLOWER or answer.leader_id != self.leader_id:
            return
        if answer.error != ErrorCode.NONE:
            return
        self._heard_leader(now)
        if answer.diverging is not None:
            self._cut(link, answer.diverging, now)
        elif answer.snapshot is not None:
            self._receiving = (answer.snapshot, 0)
        else:
            before = self.log.end
            if answer.records:
                self._store_records(link, answer.records, now)
            if self.log.end > before:
                self.log.flush()
                self._take_in(before)
            self._learn_mark(answer.high_watermark)

    def _store_records(self, link: Link, records: bytes, now: float) -> None:
        try:
            self.log.append(records, self.epoch)
        except KafkaStorageError as error:
            if not passes(error):
                raise
            self._wait_for_room(link, error, now)
        except ValueError as error:
            logger.error(
                "records of the metadata log from its leader, node %d at %s:%d, are damaged at offset %d: %s; they are fetched again",
                self.leader_id,
                *link.endpoint,
                self.log.end,
                error,
            )
            link.failed, link.until = True, now + self.config.request_timeout_s

    def _wait_for_room(self, link: Link, error: KafkaStorageError | OSError, now: float) -> None:
        """What the leader has said cannot be kept now: it is asked again later."""
        failures.say(
            logger.error,
            f"the log of node {self.config.key.node_id}",
            "records of the metadata log wait: %s",
            error,
        )
        link.failed, link.until = True, now + self.config.request_timeout_s

    def _learn_mark(self, mark: int) -> None:
        if mark < 0:
            return
        mark = min(mark, self.log.end)
        if mark < self.high_watermark:
            raise RaftFatal(
                f"node {self.leader_id}, the leader of epoch {self.epoch}, says that the metadata log is committed up to {mark}: "
                f"{self.high_watermark} was committed before"
            )
        if mark > self.high_watermark:
            self._commit(mark)

    def _cut(self, link: Link, diverging: EpochEnd, now: float) -> None:
        """The leader's log parts from this one: what it does not have goes."""
        mine = self.log.end_of_epoch(diverging.epoch)
        end = min(diverging.end_offset, mine.end_offset)
        if end < self.high_watermark:
            raise RaftFatal(
                f"node {self.leader_id}, the leader of epoch {self.epoch}, has another metadata log from offset {end} on: up to "
                f"{self.high_watermark} was committed before"
            )
        logger.info("the metadata log is cut from %d to %d: epoch %d ends there", self.log.end, end, diverging.epoch)
        try:
            self.log.truncate(end)
        except KafkaStorageError as error:
            if not passes(error):
                raise
            self._half_cut = True
            self._wait_for_room(link, error, now)
            return
        self.history.truncate(end)

    def flushed(self, now: float) -> None:
        if self._half_cut:
            self._see_cut()
        super().flushed(now)

    def _see_cut(self) -> None:
        """The log has done by itself what a shortage had kept it from, or has not begun with it."""
        self._half_cut = False
        self.history.truncate(self.log.end)
        snapshot, self._half_begun = self._half_begun, None
        if snapshot is not None and self.log.start == snapshot.end_offset:
            self._begun_behind(snapshot)

    def _received(self, link: Link, ask: FetchSnapshot, answer: FetchedSnapshot, now: float) -> None:
        if self.role is not Role.FOLLOWER or self._receiving != (ask.snapshot, ask.position):
            return
        if answer.error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
            self._receiving = None  # the leader has another by now
            return
        if answer.error != ErrorCode.NONE or answer.position != ask.position or answer.snapshot != ask.snapshot:
            link.failed, link.until = True, now + self.config.retry_backoff_s
            return
        self._heard_leader(now)
        if not answer.data and ask.position < answer.size:  # or it would be asked for again without a pause
            link.failed, link.until = True, now + self.config.retry_backoff_s
            return
        try:
            self.log.receive_snapshot(ask.snapshot, ask.position, answer.data)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and ask.position:
                logger.warning(
                    "what there was of the snapshot %s of node %d is gone, not by this node's doing: it is fetched from its begin (%s)",
                    *(ask.snapshot.file_name, self.leader_id, error),
                )
                self._receiving = (ask.snapshot, 0)
                return
            if not is_shortage(error):
                raise
            self._wait_for_room(link, error, now)
            return
        position = ask.position + len(answer.data)
        if position < answer.size:
            self._receiving = (ask.snapshot, position)
            return
        self._receiving = None
        try:
            self.log.finish_snapshot(ask.snapshot)
        except ValueError as error:
            logger.error("the snapshot %s of node %d is not whole: %s", ask.snapshot.file_name, self.leader_id, error)
            link.failed, link.until = True, now + self.config.request_timeout_s
            return
        except (KafkaStorageError, OSError) as error:
            if not (passes(error) if isinstance(error, KafkaStorageError) else is_shortage(error)):
                raise
            if ask.snapshot in self.log.snapshots:
                self._half_cut, self._half_begun = True, ask.snapshot
            self._wait_for_room(link, error, now)  # else it is fetched anew, as the log is the old one
            return
        self._begun_behind(ask.snapshot)

    def _begun_behind(self, snapshot: SnapshotId) -> None:
        """The log begins anew where a snapshot ends."""
        self.history.truncate(0)
        self._take_in(0)
        self.effects.append(LoadSnapshot(snapshot))
        if snapshot.end_offset > self.high_watermark:
            self._commit(snapshot.end_offset)

    # -- time

    def next_wakeup(self, now: float) -> float:
        """When `poll` is to be called at the latest, if nothing happens after one at `now`."""
        due = self._deadline
        for link in self._links.values():
            if link.until > now:
                due = min(due, link.until)
        for waiter in self._waiters:
            due = min(due, waiter.until)
        if self.leadership is not None:
            due = min(due, self._quorum_due(), NEVER if self.change is None else self.change.until)
            due = min([due, *(self._tell_due(voter.key) for voter in self.voters)])
        return due

    def _tell_due(self, key: ReplicaKey) -> float:
        assert self.leadership is not None
        if self._endpoint_of(key.node_id) is None:
            return NEVER
        link = self._links.get(key.node_id)
        tell_at = self.leadership.tell_at(key, self.config.fetch_timeout_s / 2)
        return max(tell_at, 0.0 if link is None else link.until)
