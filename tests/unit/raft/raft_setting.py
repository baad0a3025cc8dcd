"""One member of a quorum of three, whose every message and answer a test gives."""

from __future__ import annotations

from random import Random
from typing import Any

from fastq_broker.raft.log import Vote as Kept
from fastq_broker.raft.machine import RaftMachine
from fastq_broker.raft.messages import Answer, BeginEpoch, Fetch, Fetched, SnapshotId, UpdateVoter, Vote, VoterAnswer
from fastq_broker.raft.roles import RaftConfig, Role, Send
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from raft_world import Entry, MemoryLog, MemoryVotes

ME, B, C = (ReplicaKey(number, bytes([number]) * 16) for number in (1, 2, 3))
PLACES = {key.node_id: Endpoint("h", key.node_id) for key in (ME, B, C)}
VOTERS = VoterSet(Voter(key, {"CONTROLLER": PLACES[key.node_id]}) for key in (ME, B, C))
T = 1000.0


class Setting:
    """A machine of node 1 of three, its log of `epochs` (one a record), all on disk, and what it does."""

    def __init__(
        self, *epochs: int, kept: Kept | None = None, voters: VoterSet = VOTERS, at: float = T, **options: Any
    ) -> None:
        self.log, self.votes = MemoryLog(), MemoryVotes()
        self.log.entries = [Entry(offset, epoch, b"v") for offset, epoch in enumerate(epochs)]
        self.log.durable_end = len(epochs)
        self.votes.kept = kept
        config = RaftConfig(key=ME, cluster_id="c", endpoints={"CONTROLLER": PLACES[1]}, **options)
        self.now = at
        self.asked: list[Send] = []
        self.machine = RaftMachine(config, self.log, self.votes, voters, Random(1))
        self.machine.start(at)

    def poll(self, now: float) -> list[Any]:
        return self.machine.poll(now)

    def sent(self, now: float) -> list[Send]:
        return [effect for effect in self.poll(now) if isinstance(effect, Send)]

    def vote(self, **fields: Any) -> Answer:
        ask = Vote("c", 5, B, ME, 4, 100, False)._replace(**fields)
        return self.machine.vote(ask, T)

    def fetch(self, **fields: Any) -> list[Fetched]:
        """The answers that there are at once."""
        ask = Fetch("c", self.machine.epoch, B, 0, 0, -1, 0.5, 1 << 20)._replace(**fields)
        answers: list[Fetched] = []
        self.machine.fetch(ask, self.now, answers.append)
        return answers

    def lead(self) -> float:
        """Win an election; the time after it."""
        now = T
        while self.machine.role is not Role.LEADER:
            now += 0.5
            for send in self.sent(now):
                if isinstance(send.ask, Vote):
                    self.machine.answered(send.link, send.ask, Answer(0, -1, send.ask.epoch, None, True), now)
        self.disk(now)
        self.now = now
        return now

    def disk(self, now: float) -> None:
        self.log.durable_end = self.log.end
        self.machine.flushed(now)

    def follow(self, epoch: int = 5, leader: ReplicaKey = B) -> None:
        answer = self.machine.begin_epoch(
            BeginEpoch("c", epoch, leader.node_id, ME, {"CONTROLLER": PLACES[leader.node_id]}), T
        )
        assert answer.error == 0

    def asks(self, now: float = T) -> Send:
        """What the follower asks its leader, after it has told it where it listens."""
        (send,) = self.asked or self.sent(now)
        self.asked = []
        if isinstance(send.ask, UpdateVoter):
            self.machine.answered(send.link, send.ask, VoterAnswer(0, self.machine.leader_id, self.machine.epoch), now)
            (send,) = self.sent(now)
        return send

    def fetched(self, answer: Fetched, now: float = T) -> list[Any]:
        """Have the follower ask, and answer it; what it does then."""
        send = self.asks(now)
        assert isinstance(send.ask, Fetch)
        self.machine.answered(send.link, send.ask, answer, now)
        effects = self.poll(now)
        self.asked = [effect for effect in effects if isinstance(effect, Send)]
        return [effect for effect in effects if not isinstance(effect, Send)]


def from_leader(epoch: int = 5, **fields: Any) -> Fetched:
    return Fetched(0, 2, epoch, PLACES[2])._replace(**fields)


def packed(*entries: Entry) -> bytes:
    log = MemoryLog()
    log.entries = list(entries)
    return log.read(0, 1 << 20)


def with_snapshot() -> Setting:
    """A leader whose log begins at 3, behind a snapshot; another one ends at 4."""
    setting = Setting(1, 1, 2, 2, 4)
    setting.log.make_snapshot(3)
    setting.log.held[SnapshotId(4, 2)] = setting.log.history(4)
    setting.lead()
    return setting
