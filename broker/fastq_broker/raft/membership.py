"""Changes of the voters, one at a time, while the quorum works.

Rules: one voter more or less a change, and the next one only when that is committed and something of the leader's epoch is: so any two
majorities of neighbouring sets share a voter. A set counts from the moment when it is in the leader's log. Without kraft.version 1
voters have no directories in the log, and their set does not change. Sources: KIP-853, KIP-1186; AddVoterHandler, RemoveVoterHandler,
UpdateVoterHandler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fastq.errors import ErrorCode, KafkaStorageError
from fastq.protocol.uuid import ZERO_UUID, uuid_to_str
from fastq_broker.log.files import passes
from fastq_broker.raft.answers import Answers
from fastq_broker.raft.messages import AddVoter, RemoveVoter, UpdateVoter, Versions, VersionsAnswer, VoterAnswer
from fastq_broker.raft.roles import Link, Role
from fastq_broker.raft.voters import Voter, VoterSet

logger = logging.getLogger(__name__)

REMOVE_S = 2.0
"""How long the removal or update of a voter may take."""
CAUGHT_UP_S = 3600.0
"""A new voter has had all that there was so lately, at least."""

Done = Callable[[VoterAnswer], object]


@dataclass
class VoterChange:
    """A change under way. `adds`: the voter that is to be one, until it said which versions it can; `offset`: of its record, -1 before."""

    until: float
    done: Done
    adds: Voter | None = None
    when_committed: bool = True
    asked: Versions | None = None
    offset: int = -1


def _can_be_named(voter: Voter | None) -> bool:
    """Whether what a voter said of itself will do in the log of kraft.version 1: which it can, in a directory of its own."""
    return voter is not None and voter.versions[0] <= 1 <= voter.versions[1] and voter.key.directory_id != ZERO_UUID


class Membership(Answers):
    """The part that changes the voters. Invariant: `change` is there only while this node leads."""

    change: VoterChange | None = None

    def _said(self, error: ErrorCode, message: str = "") -> VoterAnswer:
        return VoterAnswer(error, self.leader_id, self.epoch, self.leader_endpoint, message)

    def _refuse_change(self, cluster_id: str | None) -> VoterAnswer | None:
        """Why nobody can change the voters here."""
        if not self._same_cluster(cluster_id):
            return self._said(ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {self.config.cluster_id}")
        if self.role is not Role.LEADER:
            return self._said(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the leader is node {self.leader_id}")
        return None

    def _refuse_now(self) -> VoterAnswer | None:
        """Why nobody can change the voters now."""
        if self.change is not None:
            return self._said(ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is under way: try again")
        if self._known_mark < 0:
            return self._said(
                ErrorCode.REQUEST_TIMED_OUT, f"nothing of epoch {self.epoch} is committed yet: try again in a moment"
            )
        if self.history.kraft_version == 0:
            return self._said(
                ErrorCode.UNSUPPORTED_VERSION,
                "the voters are those of controller.quorum.voters, as kraft.version is 0: voters come and go from 1 on, which "
                "`fastq cluster features --upgrade kraft.version=1` finalizes",
            )
        if self.history.voters_offset >= self.high_watermark:
            return self._said(ErrorCode.REQUEST_TIMED_OUT, "the last change of the voters is not committed: try again")
        return None

    # -- one more

    def add_voter(self, ask: AddVoter, now: float, done: Done) -> None:
        """Make a replica a voter that has caught up: `done` has the answer."""
        key = ask.voter.key
        refusal = self._refuse_change(ask.cluster_id)
        what = (
            "a node id"
            if key.node_id < 0
            else "its directory id"
            if key.directory_id == ZERO_UUID
            else f"an endpoint of listener {self.config.listener}"
            if self.config.listener not in ask.voter.endpoints
            else ""
        )
        if refusal is None and what:
            refusal = self._said(ErrorCode.INVALID_REQUEST, f"voter {key.node_id} cannot be added without {what}")
        refusal = refusal or self._refuse_now()
        if refusal is None and key.node_id in self.voters.ids:
            refusal = self._said(ErrorCode.DUPLICATE_VOTER, f"node {key.node_id} is a voter: remove it first")
        if refusal is not None:
            done(refusal)
            return
        self.change = VoterChange(now + ask.timeout_s, done, ask.voter, ask.when_committed, Versions(self.log.end))

    def _poll_change(self, now: float) -> None:
        """Ask the new voter what it can; give up what takes too long."""
        change = self.change
        if change is None:
            return
        if now >= change.until:
            what = (
                "its record is written, and not committed yet"
                if change.offset >= 0
                else "the new voter does not answer"
            )
            self._settle(self._said(ErrorCode.REQUEST_TIMED_OUT, what))
        elif change.adds is not None and change.asked is not None:
            self._send(change.adds.key.node_id, change.adds.endpoints[self.config.listener], change.asked, now)

    def _failed(self, link: Link, now: float) -> None:
        """A new voter that does not answer is none, as with Apache Kafka: a vote more that nobody gives is soon one too many."""
        ask, change = link.asked, self.change
        super()._failed(link, now)
        if change is not None and change.adds is not None and change.asked is not None and change.asked is ask:
            self._settle(
                self._said(
                    ErrorCode.REQUEST_TIMED_OUT,
                    "node {} does not answer at {}:{}: see that it runs and listens there".format(
                        change.adds.key.node_id, *change.adds.endpoints[self.config.listener]
                    ),
                )
            )

    def _has_versions(self, ask: Versions, answer: VersionsAnswer, now: float) -> None:
        change = self.change
        if change is None or change.asked is not ask or change.adds is None:
            return
        voter, change.asked = change.adds, None
        if answer.error != ErrorCode.NONE:
            self._settle(self._said(ErrorCode.REQUEST_TIMED_OUT, f"node {voter.key.node_id} does not say what it can"))
            return
        if not answer.lowest <= self.history.kraft_version <= answer.highest:
            self._settle(
                self._said(
                    ErrorCode.INVALID_REQUEST,
                    f"node {voter.key.node_id} can kraft.version {answer.lowest} to {answer.highest}, this quorum has "
                    f"{self.history.kraft_version}",
                )
            )
            return
        assert self.leadership is not None
        behind_s = now - self.leadership.caught_up_at(voter.key)
        directory = self.leadership.directory_of(voter.key.node_id)
        elsewhere = directory is not None and directory != voter.key.directory_id
        if behind_s > CAUGHT_UP_S or elsewhere:  # a directory that is gone may have been there a moment ago
            what = (
                f"follows the metadata log with the directory {uuid_to_str(directory or ZERO_UUID)}, not with "
                f"{uuid_to_str(voter.key.directory_id)}"
                if elsewhere
                else "has not caught up with the metadata log: start it, and try again when it has"
            )
            self._settle(self._said(ErrorCode.REQUEST_TIMED_OUT, f"node {voter.key.node_id} {what}"))
            return
        change.adds = None
        self._write(self.voters.with_voter(Voter(voter.key, voter.endpoints, (answer.lowest, answer.highest))), now)

    # -- one less, or another place

    def remove_voter(self, ask: RemoveVoter, now: float, done: Done) -> None:
        """Make a voter none. This leader, too: it leads until that is committed."""
        refusal = self._refuse_change(ask.cluster_id) or self._refuse_now()
        if refusal is None and (len(self.voters) == 1 or not self._is_exactly(ask)):
            refusal = self._said(
                ErrorCode.VOTER_NOT_FOUND,
                "it is the last voter"
                if self._is_exactly(ask)
                else f"node {ask.key.node_id} with that directory is no voter: see `fastq quorum replication`",
            )
        if refusal is not None:
            done(refusal)
            return
        self.change = VoterChange(now + REMOVE_S, done)
        self._write(self.voters.without(ask.key.node_id), now)

    def _is_exactly(self, ask: RemoveVoter) -> bool:
        voter = self.voters.voter(ask.key.node_id)
        return voter is not None and voter.key == ask.key

    def update_voter(self, ask: UpdateVoter, now: float, done: Done) -> None:
        """A voter listens elsewhere, or can other versions."""
        refusal = self._refuse_change(ask.cluster_id)
        if refusal is None and ask.epoch != self.epoch:
            older = ask.epoch < self.epoch
            refusal = self._said(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)
        if refusal is None and self.config.listener not in ask.voter.endpoints:
            refusal = self._said(ErrorCode.INVALID_REQUEST, f"there is no endpoint of listener {self.config.listener}")
        if refusal is None and self.history.kraft_version == 0:
            self._keep_update(ask, now, done)
            return
        refusal = refusal or self._refuse_now()
        if refusal is None:
            low, high = ask.voter.versions
            voter = self.voters.voter(ask.voter.key.node_id)
            if not low <= self.history.kraft_version <= high:
                refusal = self._said(
                    ErrorCode.INVALID_REQUEST, f"it can kraft.version {low} to {high}, not {self.history.kraft_version}"
                )
            elif voter is None or voter.key != ask.voter.key:
                refusal = self._said(ErrorCode.VOTER_NOT_FOUND, f"node {ask.voter.key.node_id} is no voter")
        if refusal is not None:
            done(refusal)
            return
        assert self.leadership is not None
        self.leadership.heard(ask.voter.key, now)
        self.change = VoterChange(now + REMOVE_S, done)
        self._write(self.voters.with_voter(ask.voter), now)

    def _keep_update(self, ask: UpdateVoter, now: float, done: Done) -> None:
        """Before kraft.version 1 the leader only remembers it: what all voters have said is written when that is finalized."""
        assert self.leadership is not None
        if ask.voter.key.node_id not in self.voters.ids:
            done(self._said(ErrorCode.VOTER_NOT_FOUND, f"node {ask.voter.key.node_id} is no voter"))
            return
        self.leadership.heard(ask.voter.key, now)
        self.leadership.updated[ask.voter.key.node_id] = ask.voter
        done(self._said(ErrorCode.NONE))

    def finalize_version(self, now: float, *, validate_only: bool = False) -> VoterAnswer:
        """Finalize kraft.version 1: from then on the log has the voters. Never back. Answers once that is written, or why it is not."""
        refusal = self._refuse_change(None)
        if refusal is not None or self.history.kraft_version > 0:
            return refusal or self._said(ErrorCode.NONE)
        assert self.leadership is not None
        if self._known_mark < 0:
            return self._said(ErrorCode.REQUEST_TIMED_OUT, "the quorum is changing: try again in a moment")
        known = {**self.leadership.updated, self.config.key.node_id: self.config.voter}
        unknown = sorted(node_id for node_id in self.voters.ids if not _can_be_named(known.get(node_id)))
        if unknown:
            return self._said(
                ErrorCode.INVALID_UPDATE_VERSION,
                "Invalid upgrade of kraft.version to KRAFT_VERSION_1 because not all of the voters support it: those of nodes "
                f"{', '.join(map(str, unknown))} have not told this leader that they do; start or upgrade them",
            )
        answers = [self._said(ErrorCode.NONE)]
        if not validate_only:
            voters = VoterSet(known[node_id] for node_id in sorted(self.voters.ids))
            answers.clear()
            self.change = VoterChange(now + REMOVE_S, answers.append, when_committed=False)
            self._write(voters, now, kraft_version=1)
            if answers[0].error == ErrorCode.NONE:
                self.leadership.named(voters)
        return answers[0]

    # -- in the log, and committed

    def _write(self, voters: VoterSet, now: float, kraft_version: int | None = None) -> None:
        change = self.change
        assert change is not None and self.leadership is not None
        before = self.log.end
        try:
            change.offset = self.log.append_voters(self.epoch, voters, kraft_version)
        except KafkaStorageError as error:
            if not passes(error):
                raise
            self._settle(
                self._said(ErrorCode.KAFKA_STORAGE_ERROR, f"there is no room for it in the metadata log: {error}")
            )
            return
        self.log.flush()
        self._take_in(before)
        for voter in voters:
            if not voter.key.is_of(self.config.key):
                self.leadership.heard(voter.key, now)
        logger.info(
            "epoch %d: the voters of the metadata quorum are the nodes %s, from offset %d on",
            self.epoch,
            ", ".join(map(str, sorted(voters.ids))),
            change.offset,
        )
        if not change.when_committed:
            change.done(self._said(ErrorCode.NONE))
            self.change = None
        self._advance(now)
        self._wake(None)

    def _settle(self, answer: VoterAnswer) -> None:
        change, self.change = self.change, None
        assert change is not None
        change.done(answer)

    def _end_change(self) -> None:
        if self.change is not None:
            self._settle(self._said(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader has changed: ask the new one"))

    def _advance(self, now: float) -> None:
        super()._advance(now)
        if self.change is not None and 0 <= self.change.offset < self.high_watermark:
            self._settle(self._said(ErrorCode.NONE))
        committed = self.history.voters_offset < self.high_watermark
        if self.role is Role.LEADER and committed and not self.is_voter:
            assert self.leadership is not None
            self._resigned(now, self.leadership.successors(self.voters))
