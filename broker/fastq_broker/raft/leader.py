"""What a leader knows of the others: how far they are, and when they were heard.

Rules: only what a replica asks for moves it, as it asks for what is behind its disk's end. Who has no node id (a reader that is no
replica) is answered, and not known; of those that are no voters only so many. Source: LeaderState.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastq_broker.raft.voters import ReplicaKey, Voter, VoterSet

OBSERVED_S = 300.0
"""How long an observer that is silent is known."""
OBSERVERS_MAX = 10_000
"""More than that are answered, and not known until others are silent: anybody can call himself one."""


@dataclass
class Progress:
    """One other replica. `end`: what it has, -1 while that is not known; `told_at`: when it was told who leads, `caught_up_at`: when it had
    all that there was."""

    key: ReplicaKey
    heard_at: float
    end: int = -1
    told_at: float = float("-inf")
    caught_up_at: float = float("-inf")
    fetched_at: float = float("-inf")
    log_end: int = -1  # the leader's, when it fetched last


class Leadership:
    """Invariants: `others` has every other voter since it is one, and observers while they fetch; `epoch_start` is the offset of the
    leader's first record in its epoch. Thread rule: the machine's."""

    def __init__(self, me: ReplicaKey, epoch_start: int, voters: Iterable[ReplicaKey], now: float) -> None:
        self.me = me
        self.epoch_start = epoch_start
        self.began_at = now
        self.updated: dict[int, Voter] = {}  # what voters have said of themselves, while the log has no place for it
        self.others: dict[ReplicaKey, Progress] = {key: Progress(key, now) for key in voters}

    def _of(self, key: ReplicaKey, now: float, voter: bool) -> Progress | None:
        """What is known of a replica that speaks; None for one that is not to be known."""
        if key.is_of(self.me) or key.node_id < 0:
            return None
        known = self.others.get(key)
        if known is None:
            # A voter whose directory the voter set does not say.
            known = next((other for other in self.others.values() if other.key.is_of(key)), None)
        if known is None:
            for old in [other for other in self.others.values() if now - other.heard_at > OBSERVED_S]:
                del self.others[old.key]
            if not voter and len(self.others) >= OBSERVERS_MAX:
                return None
            known = self.others[key] = Progress(key, now)
        return known

    def named(self, voters: VoterSet) -> None:
        """The log names directories of voters that had none by then: what others of the same nodes do counts for these no more."""
        for voter in voters:
            known = self.others.pop(ReplicaKey(voter.key.node_id), None)
            if known is not None:
                known.key = voter.key
                self.others[voter.key] = known

    def heard(self, key: ReplicaKey, now: float, *, voter: bool = True) -> None:
        """A replica spoke, which is a `voter` or an observer."""
        progress = self._of(key, now, voter)
        if progress is not None:
            progress.heard_at = now

    def has(self, key: ReplicaKey, end: int, log_end: int, now: float, *, voter: bool = True) -> None:
        """A replica, a `voter` or an observer, has all below `end`, of a log that ends at `log_end`."""
        progress = self._of(key, now, voter)
        if progress is None:
            return
        if end >= log_end:
            progress.caught_up_at = now
        elif 0 <= progress.log_end <= end:
            progress.caught_up_at = max(progress.caught_up_at, progress.fetched_at)
        progress.heard_at = progress.fetched_at = now
        progress.end, progress.log_end = end, log_end

    def _voters(self, voters: VoterSet) -> list[Progress | None]:
        """What is known of each voter but this one."""
        return [
            next((other for other in self.others.values() if voter.key.is_of(other.key)), None)
            for voter in voters
            if not voter.key.is_of(self.me)
        ]

    def majority_has(self, voters: VoterSet, own_end: int) -> int:
        """The offset up to which a majority of voters has everything; -1 for none."""
        ends = [-1 if progress is None else progress.end for progress in self._voters(voters)]
        if voters.has(self.me):
            ends.append(own_end)
        ends.sort(reverse=True)
        return ends[voters.majority - 1] if len(ends) >= voters.majority else -1

    def majority_heard(self, voters: VoterSet) -> float:
        """Since when a majority of voters has not been heard, this one counted as heard; infinity for a lonely one."""
        heard = [self.began_at if progress is None else progress.heard_at for progress in self._voters(voters)]
        needed = voters.majority - voters.has(self.me)
        return sorted(heard, reverse=True)[needed - 1] if needed else float("inf")

    def tell_at(self, key: ReplicaKey, after_s: float) -> float:
        """When a voter is to be told who leads: it never fetched, or not for so long, and was not told a moment ago."""
        if key.is_of(self.me):
            return float("inf")
        progress = next((other for other in self.others.values() if key.is_of(other.key)), None)
        return float("-inf") if progress is None else max(progress.fetched_at, progress.told_at) + after_s

    def caught_up_at(self, key: ReplicaKey) -> float:
        """When a replica had all that there was; minus infinity where that is not known."""
        progress = self.others.get(key)
        return float("-inf") if progress is None else progress.caught_up_at

    def directory_of(self, node_id: int) -> bytes | None:
        """With which directory a node was heard last; None where it was not."""
        known = [progress for key, progress in self.others.items() if key.node_id == node_id]
        return max(known, key=lambda progress: progress.heard_at).key.directory_id if known else None

    def told(self, key: ReplicaKey, now: float) -> None:
        """A voter is being told who leads."""
        progress = self._of(key, now, True)
        assert progress is not None
        progress.told_at = now

    def successors(self, voters: VoterSet) -> tuple[ReplicaKey, ...]:
        """The other voters, those that have most first."""
        known = {
            voter.key: progress
            for voter in voters
            for progress in self.others.values()
            if voter.key.is_of(progress.key)
        }
        return tuple(sorted(known, key=lambda key: -known[key].end))
