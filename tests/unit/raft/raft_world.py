"""A quorum in one process on virtual time: real machines, logs in memory that forget at a crash what was not flushed, and a network that
delays, loses and parts. Everything is drawn from one seed.

After every step: one leader an epoch; what is committed anywhere is a prefix of one history, and stays; no committed record is ever missing
from a later leader's log.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

from fastq_broker.raft.log import Vote as Kept
from fastq_broker.raft.machine import RaftMachine
from fastq_broker.raft.messages import (
    AddVoter,
    BeginEpoch,
    EndEpoch,
    EpochEnd,
    Fetch,
    FetchSnapshot,
    RemoveVoter,
    SnapshotId,
    UpdateVoter,
    Versions,
    VersionsAnswer,
    Vote,
)
from fastq_broker.raft.roles import Became, Committed, LoadSnapshot, NoRoom, RaftConfig, Role, Send
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Said, Voter, VoterSet

from fastq.errors import KafkaStorageError

LISTENER = "CONTROLLER"
DOUBLE_LATE_S = 5.0


class Entry(NamedTuple):
    """A record. `value` None: a leader's first, or one that names the voters."""

    offset: int
    epoch: int
    value: bytes | None
    voters: VoterSet | None = None
    kraft_version: int | None = None


class Disk:
    """What a log and votes are on. `full`: it has no room for anything."""

    full = False
    code = errno.ENOSPC

    def write(self) -> None:
        if self.full:
            raise OSError(self.code, os.strerror(self.code))

    def append(self) -> None:
        try:
            self.write()
        except OSError as error:
            raise KafkaStorageError("writing a batch failed") from error


class MemoryLog:
    """A RaftLog of entries; `durable_end` follows `flush` when the world says so. A snapshot is its id and the entries below, of which only
    the last voters are read, as in a file.

    What a file still has below `start` is `below`; where the log starts is kept nowhere, so that a restart finds it by the snapshots, as
    `storage.first_offset` does."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self.entries: list[Entry] = []
        self.below: list[Entry] = []
        self.start = 0
        self.durable_end = 0
        self.base_epoch = 0
        self.held: dict[SnapshotId, list[Entry]] = {}
        self.incoming: dict[SnapshotId, bytearray] = {}
        self.wants_flush = False
        self.formatted: Said | None = None  # of the snapshot 0-0

    @property
    def end(self) -> int:
        return self.entries[-1].offset + 1 if self.entries else self.start

    @property
    def last_epoch(self) -> int:
        return self.entries[-1].epoch if self.entries else self.base_epoch

    @property
    def snapshots(self) -> Sequence[SnapshotId]:
        return sorted(self.held)

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        found = [entry for entry in self.entries if entry.epoch <= epoch]
        if found:
            return EpochEnd(found[-1].epoch, found[-1].offset + 1)
        if self.start > 0 and self.base_epoch <= epoch:
            return EpochEnd(self.base_epoch, self.start)
        return EpochEnd(epoch, self.start)

    def said_from(self, offset: int) -> Iterable[Said]:
        if offset == 0 and self.held:
            offset = max(self.held).end_offset
            below = [said for said in map(_said, self.held[max(self.held)]) if said is not None]
            if self.formatted is not None:
                below.insert(0, self.formatted)
            voters = [said.voters for said in below if said.voters is not None]
            versions = [said.kraft_version for said in below if said.kraft_version is not None]
            if below:
                yield Said(offset - 1, versions[-1] if versions else None, voters[-1] if voters else None)
        elif offset == 0 and self.formatted is not None:
            yield self.formatted
        for entry in self.entries:
            if entry.offset >= offset and (said := _said(entry)) is not None:
                yield said

    def append(self, records: bytes, epoch: int) -> int:
        self.disk.append()
        for entry in _unpack(records):
            if entry.offset != self.end or entry.epoch > epoch:
                break
            self.entries.append(entry)
        return len(records)

    def append_leader_change(
        self,
        epoch: int,
        leader_id: int,
        voters: VoterSet,
        granting: Sequence[ReplicaKey],
        kraft_version: int | None,
    ) -> None:
        self.disk.append()
        says = None if kraft_version is None else voters
        self.entries.append(Entry(self.end, epoch, None, says, kraft_version))

    def append_voters(self, epoch: int, voters: VoterSet, kraft_version: int | None = None) -> int:
        self.disk.append()
        self.entries.append(Entry(self.end, epoch, None, voters, kraft_version))
        return self.entries[-1].offset

    def append_records(self, values: Sequence[bytes], epoch: int) -> int:
        self.disk.append()
        first = self.end
        self.entries += [Entry(first + at, epoch, value) for at, value in enumerate(values)]
        return sum(map(len, values))

    def truncate(self, end: int) -> None:
        self.entries = [entry for entry in self.entries if entry.offset < end]
        self.durable_end = min(self.durable_end, self.end)

    def read(self, offset: int, bytes_max: int) -> bytes:
        return _pack([entry for entry in self.entries if entry.offset >= offset][: max(1, bytes_max // 100)])

    def flush(self) -> None:
        self.wants_flush = True

    def snapshot_size(self, snapshot: SnapshotId) -> int:
        return len(_pack(self.held[snapshot])) if snapshot in self.held else -1

    def read_snapshot(self, snapshot: SnapshotId, position: int, bytes_max: int) -> bytes:
        return _pack(self.held[snapshot])[position : position + bytes_max]

    def receive_snapshot(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        self.disk.write()
        if position == 0:
            self.incoming[snapshot] = bytearray()
        assert len(self.incoming[snapshot]) == position
        self.incoming[snapshot] += data

    def finish_snapshot(self, snapshot: SnapshotId) -> None:
        received = self.incoming.pop(snapshot)
        self.disk.write()
        self.held = {snapshot: _unpack(bytes(received))}
        self.entries, self.below, self.start, self.base_epoch = [], [], *snapshot
        self.durable_end = self.start

    # -- what the world does

    def history(self, end: int) -> list[Entry]:
        """All records below an offset, those of the snapshot too."""
        below = self.held[max(self.held)] if self.held else []
        known = {entry.offset: entry for entry in [*below, *self.entries]}
        return [known[offset] for offset in range(end)]

    def make_snapshot(self, high_watermark: int) -> None:
        """A snapshot of what is committed and on disk; the log begins there."""
        end = min(high_watermark, self.durable_end)
        if end <= self.start or end <= 0:
            return
        made = SnapshotId(end, next(entry.epoch for entry in self.entries if entry.offset == end - 1))
        entries = self.history(end)
        self.held[made] = entries
        for old in sorted(self.held)[:-2]:
            del self.held[old]
        self.start, self.base_epoch = min(self.held)
        filed = [*self.below, *self.entries]
        # A file ends here and there, and goes as a whole.
        first = 0 if len(self.held) == 1 else self.start - self.start % 7
        self.below = [entry for entry in filed if first <= entry.offset < self.start]
        self.entries = [entry for entry in filed if entry.offset >= self.start]

    def crash(self) -> None:
        """Only what was flushed is left."""
        filed = [entry for entry in [*self.below, *self.entries] if entry.offset < self.durable_end]
        self.incoming.clear()
        base = filed[0].offset if filed else self.start
        if behind := [snapshot for snapshot in self.held if snapshot.end_offset >= base]:
            self.start, self.base_epoch = min(behind)
        else:
            self.start, self.base_epoch = base, 0
        self.below = [entry for entry in filed if entry.offset < self.start]
        self.entries = [entry for entry in filed if entry.offset >= self.start]


def _pack(entries: Sequence[Entry]) -> bytes:
    return pickle.dumps(list(entries)) if entries else b""


def _unpack(data: bytes) -> list[Entry]:
    return pickle.loads(data) if data else []


def _said(entry: Entry) -> Said | None:
    if entry.voters is None and entry.kraft_version is None:
        return None
    return Said(entry.offset, entry.kraft_version, entry.voters)


class MemoryVotes:
    """Votes that are on disk at once."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self.kept: Kept | None = None

    def read(self) -> Kept | None:
        return self.kept

    def write(self, vote: Kept) -> None:
        self.disk.write()
        if self.kept is not None:
            assert vote.epoch >= self.kept.epoch, "an epoch was forgotten"
            if vote.epoch == self.kept.epoch and self.kept.voted is not None:
                leads = vote.voted is None and vote.leader_id == self.kept.voted.node_id  # it says no less
                assert vote.voted == self.kept.voted or leads, "a vote was changed"
        self.kept = vote


class Member:
    """A node: what survives a crash, and the machine while it runs."""

    def __init__(self, world: World, key: ReplicaKey) -> None:
        self.world, self.key = world, key
        self.disk = Disk()
        self.log, self.votes = MemoryLog(self.disk), MemoryVotes(self.disk)
        self.machine: RaftMachine | None = None
        self.life = 0

    def start(self) -> None:
        world = self.world
        config = RaftConfig(
            key=self.key, cluster_id="c", endpoints={LISTENER: world.place(self.key.node_id)}, **world.options
        )
        self.life += 1
        self.log.wants_flush = False
        self.machine = RaftMachine(config, self.log, self.votes, world.voters, Random(world.random.random()))
        try:
            self.machine.start(world.now)
        except NoRoom:  # whoever supervises it starts it again
            self.crash()
        world.turn(self)

    def wipe(self) -> None:
        """The node is gone, and comes back with another, empty disk."""
        self.crash()
        self.disk = Disk()
        self.log, self.votes = MemoryLog(self.disk), MemoryVotes(self.disk)
        self.key = ReplicaKey(self.key.node_id, self.world.random.randbytes(16))

    def crash(self) -> None:
        self.machine = None
        self.life += 1
        self.log.crash()


class World:
    """`delay_s`, `flush_s`: ranges; `loss`: share of messages that never arrive; `cut`: pairs (from, to) that do not hear each other;
    `doubled`: share of the messages about epochs that arrive once more, DOUBLE_LATE_S later at most."""

    def __init__(self, seed: int, count: int = 3, observers: int = 0, *, joining: bool = False, **options: Any) -> None:
        """`joining`: the first node is formatted alone, the others become voters by themselves."""
        self.random = Random(seed)
        self.options = options
        self.now = 0.0
        self.delay_s, self.flush_s, self.loss, self.doubled = (0.0002, 0.002), (0.0001, 0.005), 0.0, 0.0
        self.cut: set[tuple[int, int]] = set()
        keys = [ReplicaKey(number, bytes([number]) * 16) for number in range(1, count + observers + 1)]
        self.voters = VoterSet(
            Voter(ReplicaKey(key.node_id), {LISTENER: self.place(key.node_id)}) for key in keys[:count]
        )
        self.members = {key.node_id: Member(self, key) for key in keys}
        if joining:
            self.voters = VoterSet()
            self.options = {**options, "joins": True, "bootstrap": [self.place(key.node_id) for key in keys]}
            alone = Voter(keys[0], {LISTENER: self.place(1)}, (0, 1))
            self.members[1].log.formatted = Said(-1, 1, VoterSet([alone]))
        self.due: list[tuple[float, int, Callable[[], object]]] = []
        self.order = itertools.count()
        self.woken: dict[int, float] = {}
        self.leaders: dict[int, int] = {}
        self.committed: list[Entry] = []
        self.steps = 0
        self.sent = 0

    @staticmethod
    def place(node_id: int) -> Endpoint:
        return Endpoint("127.0.0.1", 9000 + node_id)

    def at(self, delay_s: float, call: Callable[[], object]) -> None:
        heapq.heappush(self.due, (self.now + delay_s, next(self.order), call))

    def start(self) -> None:
        for member in self.members.values():
            member.start()

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """So much virtual time, or until something is so; whether it is."""
        end = self.now + seconds
        while self.due and self.due[0][0] <= end:
            self.now, _, call = heapq.heappop(self.due)
            call()
            self.steps += 1
            if until is not None and until():
                return True
        self.now = end
        return until is not None and until()

    # -- one member's turn

    def turn(self, member: Member) -> None:
        """Have a member do what is due, and see to what it wants."""
        machine = member.machine
        if machine is None:
            return
        for effect in machine.poll(self.now):
            if isinstance(effect, Send):
                self.send(member, effect)
            elif isinstance(effect, Became):
                if effect.role is Role.LEADER:
                    assert self.leaders.setdefault(effect.epoch, effect.leader_id) == effect.leader_id, "two leaders"
                    self.check_complete(member)
            elif isinstance(effect, Committed):
                self.check_committed(member, effect.high_watermark)
            else:
                assert isinstance(effect, LoadSnapshot)
        if member.log.wants_flush:
            member.log.wants_flush = False
            end, life = member.log.end, member.life
            self.at(self.random.uniform(*self.flush_s), lambda: self.flushed(member, life, end))
        wakeup = machine.next_wakeup(self.now)
        if wakeup < float("inf") and self.woken.get(member.key.node_id, float("inf")) != wakeup:
            self.woken[member.key.node_id] = wakeup
            life = member.life
            self.at(max(wakeup - self.now, 1e-6), lambda: self.wake(member, life, wakeup))

    def wake(self, member: Member, life: int, wakeup: float) -> None:
        if member.life == life and self.woken.get(member.key.node_id) == wakeup:
            del self.woken[member.key.node_id]
            self.turn(member)

    def flushed(self, member: Member, life: int, end: int) -> None:
        if member.life != life or member.machine is None:
            return
        member.log.durable_end = max(member.log.durable_end, min(end, member.log.end))
        member.machine.flushed(self.now)
        self.turn(member)

    # -- the network

    def send(self, member: Member, send: Send) -> None:
        self.sent += 1
        target = self.members[send.endpoint.port - 9000]
        here, there, life = member.key.node_id, target.key.node_id, member.life

        def arrive(answer: Any) -> None:
            if self.lost(there, here):
                return
            self.at(self.random.uniform(*self.delay_s), lambda: back(answer))

        def back(answer: Any) -> None:
            if member.life == life and member.machine is not None:
                refused = target.machine is None and self.random.random() < 0.5
                member.machine.answered(send.link, send.ask, answer, self.now, refused=answer is None and refused)
                self.turn(member)

        def go(arrive: Callable[[Any], None] = arrive) -> None:
            machine, ask = target.machine, send.ask
            if machine is None:
                arrive(None)
                return
            if isinstance(ask, Vote | BeginEpoch | EndEpoch):
                try:
                    if isinstance(ask, Vote):
                        arrive(machine.vote(ask, self.now))
                    elif isinstance(ask, BeginEpoch):
                        arrive(machine.begin_epoch(ask, self.now))
                    else:
                        arrive(machine.end_epoch(ask, self.now))
                except NoRoom:
                    arrive(None)
            elif isinstance(ask, Fetch):
                machine.fetch(ask, self.now, arrive)
            elif isinstance(ask, FetchSnapshot):
                arrive(machine.fetch_snapshot(ask, self.now))
            elif isinstance(ask, UpdateVoter):
                machine.update_voter(ask, self.now, arrive)
            elif isinstance(ask, AddVoter):
                machine.add_voter(ask, self.now, arrive)
            elif isinstance(ask, RemoveVoter):
                machine.remove_voter(ask, self.now, arrive)
            else:
                assert isinstance(ask, Versions)
                arrive(VersionsAnswer(0, lowest=0, highest=1))
            self.turn(target)

        if not self.lost(here, there):
            self.at(self.random.uniform(*self.delay_s), go)
        if self.doubled and isinstance(send.ask, Vote | BeginEpoch | EndEpoch) and self.random.random() < self.doubled:
            self.at(self.random.uniform(0.0, DOUBLE_LATE_S), lambda: go(lambda answer: None))

    def lost(self, here: int, there: int) -> bool:
        return (here, there) in self.cut or self.random.random() < self.loss

    # -- what must always be so

    def check_committed(self, member: Member, end: int) -> None:
        history = member.log.history(min(end, member.log.end))
        shared = min(len(history), len(self.committed))
        assert history[:shared] == self.committed[:shared], "two histories"
        assert end <= member.log.end
        self.committed += history[shared:]

    def check_complete(self, member: Member) -> None:
        assert member.log.history(len(self.committed)) == self.committed, "a leader lacks what is committed"

    # -- for tests

    @property
    def leader(self) -> Member | None:
        """The leader of the highest epoch."""
        leading = [m for m in self.members.values() if m.machine is not None and m.machine.role is Role.LEADER]
        return max(leading, key=lambda member: member.machine.epoch if member.machine else 0, default=None)

    def append(self, value: bytes) -> int | None:
        """Append at the leader, where there is one; the offset."""
        leader = self.leader
        if leader is None or leader.machine is None:
            return None
        first = leader.machine.log.end
        if not self.tell(leader, value):
            return None
        return first

    def tell(self, leader: Member, value: bytes) -> bool:
        """Append at a leader, which resigns where it has no room, as the controller has it do; whether it had some."""
        assert leader.machine is not None
        try:
            leader.machine.append([value])
        except KafkaStorageError:
            leader.machine.resign(leader.machine.epoch, self.now)
        self.turn(leader)
        return not leader.disk.full

    def part(self, *groups: Iterable[int]) -> None:
        """Nodes hear those of their group only."""
        of = {node: at for at, group in enumerate(groups) for node in group}
        self.cut = {(a, b) for a in self.members for b in self.members if of.get(a, -1) != of.get(b, -1)}
