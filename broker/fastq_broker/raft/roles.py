"""The role of a member of a metadata quorum, and how one leads to another.

    Unattached    knows an epoch, no leader          -> Prospective at the election time-out; Follower when a leader is known
    Prospective   asks whether it would win          -> Candidate with a majority; Follower or Unattached without
    Candidate     epoch + 1, voted for itself        -> Leader with a majority; Prospective at the election time-out
    Follower      fetches from its leader            -> Prospective when the leader is silent
    Leader        appends, counts what others have   -> Resigned at a stop, or when a majority is silent
    Resigned      tells the others, votes no more    -> Unattached in the next epoch
    A higher epoch, whoever speaks of it, makes any of them Follower or Unattached in that epoch.

Rules: a vote, and an epoch, are on disk before anybody hears of them: where a shortage keeps one from being written (a full disk, no
descriptor), nothing has changed, and nothing is said (NoRoom). A start among several says nothing that is not there already, so that it
needs none. An observer (a replica that is no voter) follows and answers, and never stands for election. Sources: QuorumState and its
states; KIP-595, KIP-996.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from fastq.errors import FastqError, KafkaStorageError
from fastq.values import NamedTuple
from fastq_broker.log import failures
from fastq_broker.log.files import is_shortage, passes
from fastq_broker.log.log_dir import advice_for
from fastq_broker.raft.leader import Leadership
from fastq_broker.raft.log import RaftLog, VoteStore
from fastq_broker.raft.log import Vote as Kept
from fastq_broker.raft.messages import Ask, Fetch, Fetched, SnapshotId
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet

logger = logging.getLogger(__name__)

NOBODY = -1
NEVER = float("inf")
LAST_EPOCH = 2**31 - 1
"""None comes after it in the messages: what speaks of it is no leader, and no candidate."""
FIRST_SHARE = 0.1
"""Of an election time-out: how long a member that starts without a leader waits before it asks who would vote for it."""


class RaftFatal(FastqError):
    """What is committed here and what the leader has cannot both be true: this node must not go on."""


class NoRoom(OSError):
    """A vote or an epoch cannot be written now: the disk is full, or descriptors or memory are short. Nothing has changed, so that what
    led to it may come again."""


class Role(Enum):
    """What a member does."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"
    RESIGNED = "resigned"


ELECTABLE = (Role.PROSPECTIVE, Role.CANDIDATE)


@dataclass(frozen=True, kw_only=True)
class RaftConfig:
    """Who this replica is, and its patience, in seconds. `listener`: by which voters reach each other; `bootstrap`: where to ask for a
    leader; `may_vote`: whether it is a controller; `joins`: whether it becomes a voter by itself; `versions`: of kraft.version;
    `addresses`: where voters are by now, whatever the log says."""

    key: ReplicaKey
    cluster_id: str
    listener: str = "CONTROLLER"
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    bootstrap: Sequence[Endpoint] = ()
    may_vote: bool = True
    joins: bool = False
    versions: tuple[int, int] = (0, 1)
    addresses: Mapping[int, Endpoint] = field(default_factory=dict)
    election_timeout_s: float = 1.0
    fetch_timeout_s: float = 2.0
    election_backoff_max_s: float = 1.0
    request_timeout_s: float = 2.0
    retry_backoff_s: float = 0.02
    fetch_wait_s: float = 0.5
    fetch_bytes_max: int = 1 << 20

    @property
    def voter(self) -> Voter:
        """This replica as a voter."""
        return Voter(self.key, self.endpoints, self.versions)

    @property
    def quorum_timeout_s(self) -> float:
        """How long a leader goes on without a majority that fetches."""
        return self.fetch_timeout_s * 1.5


class Send(NamedTuple):
    """Ask a node at a place. The driver tells `answered` of it, with `link` and `ask` as they are here."""

    link: int
    endpoint: Endpoint
    ask: Ask


class Became(NamedTuple):
    """The role, the epoch or the leader changed. A leader may write from now on, others may not."""

    role: Role
    epoch: int
    leader_id: int


class Committed(NamedTuple):
    """Everything below is committed."""

    high_watermark: int


class LoadSnapshot(NamedTuple):
    """This snapshot has taken the place of the log."""

    snapshot: SnapshotId


Effect = Send | Became | Committed | LoadSnapshot


@dataclass
class Link:
    """The way to a node (its id), or to a place of the bootstrap servers (below -1): one question at a time."""

    endpoint: Endpoint
    asked: Ask | None = None
    until: float = 0.0  # of the question on its way, or of the pause after one that failed
    failed: bool = False

    def is_free(self, now: float) -> bool:
        """Whether it can be asked now."""
        return self.asked is None and now >= self.until


class Waiter(NamedTuple):
    """A Fetch that waits for news."""

    ask: Fetch
    until: float
    done: Callable[[Fetched], object]


class Roles:
    """Invariants: `leader_id` is this node exactly while `role` is LEADER or RESIGNED from leading; `granted`, `refused` are of the
    election under way; `leadership` is there exactly while LEADER; `high_watermark` never goes back. Thread rule: one thread."""

    def __init__(self, config: RaftConfig, log: RaftLog, store: VoteStore, static: VoterSet, random: Random) -> None:
        self.config = config
        self.log = log
        self.history = VoterHistory(static)
        self.role = Role.UNATTACHED
        self.epoch = 0
        self.leader_id = NOBODY
        self.voted: ReplicaKey | None = None
        self.high_watermark = -1
        self.leadership: Leadership | None = None
        self.granted: set[int] = set()
        self.refused: set[int] = set()
        self.effects: list[Effect] = []
        self._store = store
        self._kept = Kept(0)  # what the store has
        self._random = random
        self._deadline = NEVER  # of the election, the leader's silence or the resignation
        self._led_epoch = -1  # the last one in which this process led
        self._leader_endpoint: Endpoint | None = None
        self._has_fetched = False  # from this leader, with success, and it has not said that it goes
        self._ended = -1  # the epoch whose leader has said that it goes
        self._receiving: tuple[SnapshotId, int] | None = None  # and the bytes that are here
        self._links: dict[int, Link] = {}
        self._fetching: int | None = None  # the link that a Fetch or FetchSnapshot is on
        self._waiters: list[Waiter] = []
        self._successors: tuple[ReplicaKey, ...] = ()
        self._told: set[int] = set()  # voters that know of the resignation, or are gone
        self._stopping = False
        self._take_in(0)

    # -- what is known

    @property
    def voters(self) -> VoterSet:
        """Who votes now."""
        return self.history.voters

    @property
    def is_voter(self) -> bool:
        """Whether this replica is one of them."""
        return self.config.may_vote and self.voters.has(self.config.key)

    @property
    def may_stand(self) -> bool:
        """Whether this replica may be elected. One whose removal is in its log, but not committed, may: those who do not have that record
        need its vote, and would not get it, while its log is longer than theirs (Ongaro's dissertation, 4.2.2)."""
        sets = self.history.sets_from(max(self.high_watermark, 0))
        return self.config.may_vote and any(voters.has(self.config.key) for voters in sets)

    @property
    def hears_leader(self) -> bool:
        """Whether this replica leads, or has heard its leader since it follows it."""
        return self.role is Role.LEADER or (self.role is Role.FOLLOWER and self._has_fetched)

    @property
    def leader_endpoint(self) -> Endpoint | None:
        """Where the leader listens."""
        if self.leader_id == NOBODY:
            return None
        if self.leader_id == self.config.key.node_id:
            return self.config.endpoints.get(self.config.listener)
        return self._endpoint_of(self.leader_id) or self._leader_endpoint

    def _endpoint_of(self, node_id: int) -> Endpoint | None:
        """Where a voter listens; None for a node that is none, or whose endpoint nothing says."""
        moved = self.config.addresses.get(node_id) if node_id in self.voters.ids else None
        return moved or self.voters.endpoint(node_id, self.config.listener)

    def start(self, now: float) -> None:
        """Begin with what the disk has."""
        kept, last_epoch = self._store.read() or Kept(0), self.log.last_epoch
        self.high_watermark = self.log.snapshots[-1].end_offset if self.log.snapshots else -1
        self.epoch, self.voted, self._kept = kept.epoch, kept.voted, kept
        me = self.config.key
        if kept.epoch < last_epoch:
            try:
                self._unattached(last_epoch, now)
            except NoRoom:  # the log says the epoch again at the next start
                self.voted = None
                self._set(Role.UNATTACHED, last_epoch, NOBODY, now + self._election_s())
        elif kept.leader_id == me.node_id:
            self._resigned(now)
        elif kept.voted is not None and kept.voted.is_of(me) and kept.leader_id == NOBODY and self.may_stand:
            self._stand(now)
        elif kept.leader_id != NOBODY and self._endpoint_of(kept.leader_id) is not None:
            self._follow(kept.epoch, kept.leader_id, None, now)
        else:
            self._wait_for_leader(now)
            # Whoever leads says so to who asks for votes; where nobody does, the first majority that is up elects at once.
            self._deadline = now + FIRST_SHARE * self._election_s()
        if self.voters.is_only(me) and self.is_voter and self.role is not Role.LEADER:
            self._would_win(now)

    # -- roles

    def _keep(self, epoch: int, leader_id: int, voted: ReplicaKey | None) -> None:
        """Write down what must not be forgotten, before anything of it is so. Raises NoRoom at a shortage, other
        OSError where the disk fails."""
        wanted = Kept(epoch, leader_id, voted)
        try:
            self._store.write(wanted)
            self._kept = wanted
        except OSError as error:
            if not is_shortage(error):
                raise
            if wanted == self._kept:  # as at a start, which is as it was
                return
            failures.say(
                logger.error,
                f"the vote of node {self.config.key.node_id}",
                "node %d takes no part in elections of its metadata quorum for now: %s; %s",
                self.config.key.node_id,
                error,
                advice_for(error),
            )
            raise NoRoom(error.errno, error.strerror, error.filename) from error

    def _set(self, role: Role, epoch: int, leader_id: int, deadline: float) -> None:
        """Take a role, of which is written down what must not be forgotten."""
        if leader_id == self.config.key.node_id:
            self._led_epoch = epoch
        changed = (role, epoch, leader_id) != (self.role, self.epoch, self.leader_id)
        self.role, self.epoch, self.leader_id = role, epoch, leader_id
        self._deadline = deadline
        self._fetching = None
        self._receiving = None
        if role is not Role.LEADER:
            self.leadership = None
        for link in self._links.values():
            if link.asked is not None:  # its answer is of another time; it may be asked anew
                link.asked, link.until = None, 0.0
        if changed:
            self.effects.append(Became(role, epoch, leader_id))
            self._answer_waiters()
            self._end_change()

    def _election_s(self) -> float:
        return self.config.election_timeout_s * (1 + self._random.random())

    def _unattached(self, epoch: int, now: float) -> None:
        """Another epoch, and no word of its leader."""
        keeps_time = self.role in (Role.UNATTACHED, Role.CANDIDATE, Role.RESIGNED, Role.PROSPECTIVE)
        deadline = self._deadline if keeps_time and self._deadline < NEVER else now + self._election_s()
        voted = None if epoch > self.epoch else self.voted
        self._keep(epoch, NOBODY, voted)
        self.voted = voted
        self._set(Role.UNATTACHED, epoch, NOBODY, deadline)

    def _wait_for_leader(self, now: float) -> None:
        """This epoch, and no word of its leader any more."""
        self._set(Role.UNATTACHED, self.epoch, NOBODY, now + self._election_s())

    def _follow(self, epoch: int, leader_id: int, endpoint: Endpoint | None, now: float) -> None:
        """A leader is known."""
        if (self.role, self.epoch, self.leader_id) == (Role.FOLLOWER, epoch, leader_id):
            self._leader_endpoint = endpoint or self._leader_endpoint
            return
        assert leader_id != self.config.key.node_id
        voted = None if epoch > self.epoch else self.voted
        self._keep(epoch, leader_id, voted)
        self.voted = voted
        self._leader_endpoint, self._has_fetched = endpoint, False
        # Who has lost an election after a leader that has gone is not to wait for that one again.
        wait_s = self._election_s() if epoch == self._ended else self.config.fetch_timeout_s
        self._set(Role.FOLLOWER, epoch, leader_id, now + wait_s)

    def _heard_leader(self, now: float) -> None:
        """It has its time again; but not where it has said that it goes, as what it had sent before comes after that."""
        if self.epoch != self._ended:
            self._deadline = now + self.config.fetch_timeout_s
            self._has_fetched = True

    def _would_win(self, now: float) -> None:
        """Ask the others whether they would vote for this replica, before an epoch is spent on it."""
        self.granted, self.refused = {self.config.key.node_id}, set()
        self._set(Role.PROSPECTIVE, self.epoch, self.leader_id, now + self._election_s())
        self._count(now)

    def _stand(self, now: float, epoch: int | None = None) -> None:
        """Stand for election: in the next epoch, or in the one in which this replica had voted for itself."""
        epoch = self.epoch if epoch is None else epoch
        if epoch >= LAST_EPOCH:
            raise RaftFatal(f"no epoch comes after {self.epoch}: something spoke of epochs that never were")
        self._keep(epoch, NOBODY, self.config.key)
        self.granted, self.refused = {self.config.key.node_id}, set()
        self.voted = self.config.key
        self._set(Role.CANDIDATE, epoch, NOBODY, now + self._election_s())
        self._count(now)

    def _lead(self, now: float) -> None:
        """The election is won. What is not of this epoch is committed with the first record that is: who has no room for it leads no more.
        Raises KafkaStorageError where nobody else can: who asks for it hears why, or it stands again in a while."""
        me = self.config.key
        self._keep(self.epoch, me.node_id, None)  # as Kafka writes it down: who leads votes for nobody
        self.voted = None
        self._set(Role.LEADER, self.epoch, me.node_id, NEVER)
        others = [voter.key for voter in self.voters if not voter.key.is_of(me)]
        voters, version = self.voters, self.history.kraft_version
        says: int | None = None
        if version > 0 and (self.history.voters_offset < 0 or voters.voter(me.node_id) != self.config.voter):
            # What the node was formatted with nobody else has.
            says, voters = version, voters.with_voter(self.config.voter) if voters.has(me) else voters
        granting = [voter.key for voter in self.voters if voter.key.node_id in self.granted]
        self.leadership = Leadership(me, self.log.end, others, now)
        try:
            self.log.append_leader_change(self.epoch, me.node_id, voters, granting, says)
        except KafkaStorageError as error:
            if not passes(error):
                raise
            self._resigned(now, self.leadership.successors(self.voters))
            if not others:
                raise
            failures.say(
                logger.error,
                f"the first record of node {me.node_id}",
                "node %d was elected in epoch %d and resigns: %s",
                *(me.node_id, self.epoch, error),
            )
            return
        self.log.flush()
        self._take_in(self.leadership.epoch_start)
        self._advance(now)

    def _resigned(self, now: float, successors: tuple[ReplicaKey, ...] = ()) -> None:
        """Lead no more, and say so."""
        self._successors, self._told = successors, set()
        self._set(Role.RESIGNED, self.epoch, self.config.key.node_id, now + self._election_s())

    def resign(self, epoch: int, now: float) -> None:
        """Lead no more in this epoch, as the controller asks. Nothing, where it does not lead in it."""
        if self.role is Role.LEADER and self.epoch == epoch:
            assert self.leadership is not None
            self._resigned(now, self.leadership.successors(self.voters))

    def stop(self, now: float) -> None:
        """The node stops: it leads no more, and does not stand for election."""
        self._stopping = True
        self.resign(self.epoch, now)

    @property
    def may_end(self) -> bool:
        """After `stop`: whether the others know, or are gone."""
        others = {voter.key.node_id for voter in self.voters} - {self.config.key.node_id}
        return self.role is not Role.RESIGNED or others <= self._told

    # -- elections

    def _count(self, now: float) -> None:
        """Whether the election is decided."""
        voters = self.voters
        if len(self.granted & voters.ids) >= voters.majority:
            if self.role is Role.PROSPECTIVE:
                self._stand(now, self.epoch + 1)
            else:
                self._lead(now)
        elif len(self.refused & voters.ids) > len(voters) - voters.majority and self.role is Role.PROSPECTIVE:
            self._lost(now)

    def _lost(self, now: float) -> None:
        """Nobody, or not enough, would have this replica lead."""
        if self.leader_id != NOBODY and self.leader_endpoint is not None:
            leader_id, endpoint = self.leader_id, self.leader_endpoint
            self._follow(self.epoch, leader_id, endpoint, now)
        else:
            self._wait_for_leader(now)

    def _commit(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self.effects.append(Committed(high_watermark))

    def _take_in(self, start: int) -> None:
        """What the log says of voters from an offset on."""
        self.history.take_in(self.log.said_from(start))

    # -- questions to others

    def _send(self, number: int, endpoint: Endpoint | None, ask: Ask, now: float) -> bool:
        """Ask, where the link is free and it is known where to."""
        place = endpoint or self._endpoint_of(number)
        if place is None:
            return False
        link = self._links.get(number)
        if link is None:
            link = self._links[number] = Link(place)
        if not link.is_free(now):
            return False
        link.endpoint, link.asked, link.until = place, ask, now + self.config.request_timeout_s
        self.effects.append(Send(number, place, ask))
        return True

    def _failed(self, link: Link, now: float) -> None:
        number = next(number for number, known in self._links.items() if known is link)
        link.asked, link.failed, link.until = None, True, now + self.config.retry_backoff_s
        if self._fetching == number:
            self._fetching = None

    # -- what the layers above know how to do

    def _advance(self, now: float) -> None:
        """What a majority has on disk is committed, once there is a record of this epoch in it."""
        raise NotImplementedError

    def _answer_waiters(self) -> None:
        """Nobody who waits for this leader is to wait any longer."""
        raise NotImplementedError

    def _end_change(self) -> None:
        """A change of the voters that is under way is not this leader's any more."""
        raise NotImplementedError
