"""Voters that are added, removed and updated: in which order a change is refused, and when it counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from fastq_broker.raft.messages import (
    AddVoter,
    EndEpoch,
    EpochEnd,
    Fetch,
    Fetched,
    RemoveVoter,
    UpdateVoter,
    Versions,
    VersionsAnswer,
    VoterAnswer,
)
from fastq_broker.raft.roles import Role, Send
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Said, Voter, VoterHistory, VoterSet
from raft_setting import ME, PLACES, VOTERS, B, C, Setting, T
from raft_world import Entry

from fastq.errors import ErrorCode
from fastq.protocol.uuid import uuid_to_str

D = ReplicaKey(4, b"\x04" * 16)
NEW = Voter(D, {"CONTROLLER": Endpoint("h", 4)}, (0, 1))
CONFIGURED = VoterSet(Voter(ReplicaKey(number), {"CONTROLLER": PLACES[number]}) for number in (1, 2, 3))
"""As controller.quorum.voters names them, without their directories."""
KNOWN = VoterSet(Voter(key, {"CONTROLLER": PLACES[key.node_id]}, (0, 1)) for key in (ME, B, C))
T0 = T + 10


class Changing(Setting):
    """A leader of epoch 5 whose log has the voters (kraft.version 1), all of it committed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(1, 4, voters=VoterSet(), at=T, **options)
        self.log.entries.append(Entry(2, 4, None, KNOWN, 1))
        self.log.durable_end = 3
        self.machine.history = VoterHistory(VoterSet())
        self.machine.history.take_in(self.log.said_from(0))
        self.machine._deadline = T + 1
        self.lead()
        self.answers: list[VoterAnswer] = []
        self.commit()

    def commit(self) -> None:
        self.disk(self.now)
        self.fetch(replica=B, offset=self.log.end, last_epoch=self.machine.epoch)

    def caught_up(self) -> None:
        self.fetch(replica=D, offset=self.log.end, last_epoch=self.machine.epoch, wait_s=0.0)

    def add(self, **fields: Any) -> None:
        self.machine.add_voter(AddVoter("c", 5.0, NEW)._replace(**fields), self.now, self.answers.append)

    def remove(self, key: ReplicaKey, cluster_id: str = "c") -> None:
        self.machine.remove_voter(RemoveVoter(cluster_id, key), self.now, self.answers.append)

    def update(self, voter: Voter, **fields: Any) -> None:
        ask = UpdateVoter("c", self.machine.epoch, voter)._replace(**fields)
        self.machine.update_voter(ask, self.now, self.answers.append)

    def asked_versions(self) -> Send:
        (send,) = [send for send in self.sent(self.now) if isinstance(send.ask, Versions)]
        assert send.endpoint == Endpoint("h", 4)
        return send

    @property
    def said(self) -> ErrorCode:
        (answer,) = self.answers
        self.answers.clear()
        return ErrorCode(answer.error)


def test_a_voter_is_added_when_it_is_committed() -> None:
    setting = Changing()
    setting.caught_up()
    setting.add()
    send = setting.asked_versions()
    setting.machine.answered(send.link, send.ask, VersionsAnswer(0, lowest=0, highest=1), setting.now)
    assert setting.machine.voters.ids == {1, 2, 3, 4} and not setting.answers  # it counts at once
    setting.disk(setting.now)
    setting.fetch(replica=B, offset=setting.log.end, last_epoch=5)
    assert not setting.answers  # two of four are no majority
    setting.caught_up()
    assert setting.said == ErrorCode.NONE


def test_an_acknowledgement_may_come_before_the_commit() -> None:
    setting = Changing()
    setting.caught_up()
    setting.add(when_committed=False)
    send = setting.asked_versions()
    setting.machine.answered(send.link, send.ask, VersionsAnswer(0, lowest=0, highest=1), setting.now)
    assert setting.said == ErrorCode.NONE
    setting.remove(B)
    assert setting.said == ErrorCode.REQUEST_TIMED_OUT  # the next one waits for it all the same


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster_id": "x"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"voter": Voter(ReplicaKey(4), NEW.endpoints)}, ErrorCode.INVALID_REQUEST),
        ({"voter": Voter(D, {"OTHER": Endpoint("h", 4)})}, ErrorCode.INVALID_REQUEST),
        ({"voter": Voter(ReplicaKey(2, b"x" * 16), NEW.endpoints)}, ErrorCode.DUPLICATE_VOTER),
    ],
)
def test_voters_that_cannot_be_added(fields: dict[str, Any], error: ErrorCode) -> None:
    setting = Changing()
    setting.add(**fields)
    assert setting.said == error and setting.machine.change is None


@pytest.mark.parametrize(
    ("caught_up", "answer", "error"),
    [
        (True, VersionsAnswer(ErrorCode.UNSUPPORTED_VERSION), ErrorCode.REQUEST_TIMED_OUT),
        (True, VersionsAnswer(0, lowest=0, highest=0), ErrorCode.INVALID_REQUEST),
        (False, VersionsAnswer(0, lowest=0, highest=1), ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_a_new_voter_has_to_be_able_and_there(caught_up: bool, answer: VersionsAnswer, error: ErrorCode) -> None:
    setting = Changing()
    if caught_up:
        setting.caught_up()
    setting.add()
    send = setting.asked_versions()
    setting.machine.answered(send.link, send.ask, answer, setting.now)
    assert setting.said == error and setting.machine.voters.ids == {1, 2, 3}


def test_a_new_voter_that_does_not_answer_is_given_up() -> None:
    setting = Changing()
    setting.add()
    setting.remove(B)
    assert setting.said == ErrorCode.REQUEST_TIMED_OUT  # one at a time
    setting.machine.leadership.has(B, setting.log.end, setting.log.end, setting.now + 4)  # type: ignore[union-attr]
    assert setting.machine.next_wakeup(setting.now) <= setting.now + 5
    setting.poll(setting.now + 5)
    assert setting.said == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("refused", [True, False])
def test_where_a_new_voter_should_be_and_nobody_listens_is_told_at_once(refused: bool) -> None:
    """It was asked again until the request's time-out, when who had sent that waited no more, and nobody could change anything else."""
    setting = Changing()
    setting.caught_up()
    setting.add()
    send = setting.asked_versions()
    setting.machine.answered(send.link, send.ask, None, setting.now, refused=refused)
    (answer,) = setting.answers
    assert (answer.error, setting.machine.change) == (ErrorCode.REQUEST_TIMED_OUT, None)
    assert answer.message == "node 4 does not answer at h:4: see that it runs and listens there"


@pytest.mark.parametrize("was_there", [True, False])
def test_a_directory_that_its_node_does_not_follow_with_is_no_voter(was_there: bool) -> None:
    """One that is gone was there a moment ago, and would never vote: the one in its place is named."""
    setting = Changing()
    gone = ReplicaKey(4, b"\x05" * 16)
    if was_there:
        setting.fetch(replica=gone, offset=setting.log.end, last_epoch=5, wait_s=0.0)
        setting.now += 1
    setting.caught_up()
    setting.add(voter=Voter(gone, NEW.endpoints, NEW.versions))
    send = setting.asked_versions()
    setting.machine.answered(send.link, send.ask, VersionsAnswer(0, lowest=0, highest=1), setting.now)
    (answer,) = setting.answers
    assert answer.error == ErrorCode.REQUEST_TIMED_OUT and setting.machine.voters.ids == {1, 2, 3}
    known, asked = uuid_to_str(D.directory_id), uuid_to_str(gone.directory_id)
    assert answer.message == f"node 4 follows the metadata log with the directory {known}, not with {asked}"


def test_who_does_not_lead_changes_nothing() -> None:
    setting = Changing()
    setting.add()
    setting.machine.resign(5, setting.now)
    assert setting.said == ErrorCode.NOT_LEADER_OR_FOLLOWER
    for change in (setting.add, lambda: setting.remove(B), lambda: setting.update(NEW)):
        change()
        assert setting.said == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_nothing_is_changed_before_something_of_this_epoch_is_committed() -> None:
    setting = Setting(1, 4, voters=KNOWN)
    setting.lead()
    answers: list[VoterAnswer] = []
    setting.machine.remove_voter(RemoveVoter("c", B), T, answers.append)
    assert answers[0].error == ErrorCode.REQUEST_TIMED_OUT
    setting.fetch(offset=3, last_epoch=5)
    setting.machine.remove_voter(RemoveVoter("c", B), T, answers.append)
    assert answers[1].error == ErrorCode.UNSUPPORTED_VERSION and "controller.quorum.voters" in answers[1].message


@pytest.mark.parametrize("key", [D, ReplicaKey(2, b"x" * 16), ReplicaKey(2)])
def test_only_a_voter_can_be_removed(key: ReplicaKey) -> None:
    setting = Changing()
    setting.remove(key)
    assert setting.said == ErrorCode.VOTER_NOT_FOUND


def test_a_leader_that_removes_itself_leads_until_that_is_committed() -> None:
    setting = Changing()
    setting.remove(ME)
    setting.disk(setting.now)
    setting.fetch(replica=B, offset=setting.log.end, last_epoch=5)
    assert setting.machine.role is Role.LEADER and not setting.answers  # its own disk does not count any more
    setting.fetch(replica=C, offset=setting.log.end, last_epoch=5)
    assert setting.said == ErrorCode.NONE and setting.machine.role is Role.RESIGNED
    assert {send.link for send in setting.sent(setting.now) if isinstance(send.ask, EndEpoch)} == {2, 3}
    setting.poll(setting.now + 60)
    assert setting.machine.role is Role.UNATTACHED  # and it does not stand


CHANGES = ("add", "remove B", "remove the leader", "update B", "update B elsewhere")


def ask_for(setting: Changing, change: str) -> None:
    """Ask for a change, and answer what the leader asks for it."""
    if change == "add":
        setting.caught_up()
        setting.add()
        for send in [send for send in setting.sent(setting.now) if isinstance(send.ask, Versions)]:
            setting.machine.answered(send.link, send.ask, VersionsAnswer(0, lowest=0, highest=1), setting.now)
    elif change.startswith("update"):
        place = Endpoint("h2" if change.endswith("elsewhere") else "h1", 2)
        setting.update(Voter(B, {"CONTROLLER": place}, (0, 1)))
    else:
        setting.remove(B if change == "remove B" else ME)


def all_commit(setting: Changing) -> None:
    """Everybody there is has all that the leader has."""
    setting.disk(setting.now)
    for key in (B, C, D):
        if setting.machine.role is Role.LEADER:
            setting.fetch(replica=key, offset=setting.log.end, last_epoch=setting.machine.epoch, wait_s=0.0)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("second", CHANGES)
@pytest.mark.parametrize("first", CHANGES)
def test_two_changes_in_any_order_are_answered_once_each_and_one_at_a_time(
    first: str, second: str, committed: bool
) -> None:
    setting = Changing()
    sets = [setting.machine.voters.ids]
    ask_for(setting, first)
    sets.append(setting.machine.voters.ids)
    if committed:
        all_commit(setting)
        assert setting.said == ErrorCode.NONE
    ask_for(setting, second)
    sets.append(setting.machine.voters.ids)
    if not committed:
        assert setting.said == ErrorCode.REQUEST_TIMED_OUT and sets[1] == sets[2]
        all_commit(setting)
        assert setting.said == ErrorCode.NONE
    elif first == "remove the leader":
        assert setting.said == ErrorCode.NOT_LEADER_OR_FOLLOWER and setting.machine.role is Role.RESIGNED
    elif first == second == "add":
        assert setting.said == ErrorCode.DUPLICATE_VOTER
    elif first == "remove B" and second.endswith((" B", "elsewhere")):
        assert setting.said == ErrorCode.VOTER_NOT_FOUND
    else:
        all_commit(setting)
        assert setting.said == ErrorCode.NONE
    assert all(len(before ^ after) <= 1 for before, after in pairwise(sets))
    assert setting.machine.change is None and not setting.answers


def test_the_last_voter_stays() -> None:
    setting = Changing()
    for gone in (C, B):
        setting.remove(gone)
        setting.disk(setting.now)
        setting.fetch(replica=B, offset=setting.log.end, last_epoch=5)
        assert setting.said == ErrorCode.NONE
    setting.remove(ME)
    assert setting.said == ErrorCode.VOTER_NOT_FOUND


def test_a_voter_says_where_it_listens_now() -> None:
    setting = Changing()
    moved = Voter(B, {"CONTROLLER": Endpoint("elsewhere", 2)}, (0, 1))
    setting.update(moved, epoch=4)
    assert setting.said == ErrorCode.FENCED_LEADER_EPOCH
    setting.update(moved, epoch=6)
    assert setting.said == ErrorCode.UNKNOWN_LEADER_EPOCH
    setting.update(Voter(B, moved.endpoints, (0, 0)))
    assert setting.said == ErrorCode.INVALID_REQUEST
    setting.update(Voter(D, NEW.endpoints, (0, 1)))
    assert setting.said == ErrorCode.VOTER_NOT_FOUND
    setting.update(moved)
    assert setting.machine.voters.endpoint(2, "CONTROLLER") == Endpoint("elsewhere", 2)
    setting.commit()
    assert setting.said == ErrorCode.NONE


def test_what_is_cut_off_was_not_said() -> None:
    history = VoterHistory(VOTERS)
    history.take_in([Said(3, 1, None), Said(4, None, KNOWN), Said(9, None, KNOWN.without(3))])
    assert history.at(3) == (0, VOTERS) and history.at(5) == (1, KNOWN) and history.voters.ids == {1, 2}
    history.truncate(9)
    assert history.voters == KNOWN and history.voters_offset == 4
    history.truncate(3)
    assert history.voters == VOTERS and history.kraft_version == 0 and history.voters_offset == -1


def test_voters_that_are_cut_off_with_the_log_are_none() -> None:
    setting = following()
    setting.log.entries.append(Entry(2, 4, None, KNOWN.without(3)))
    setting.log.durable_end = 3
    setting.machine.history.take_in(setting.log.said_from(2))
    assert setting.machine.voters.ids == {1, 2}
    setting.fetched(Fetched(0, 2, 5, PLACES[2], diverging=EpochEnd(4, 2)))
    assert setting.log.end == 2 and setting.machine.voters == KNOWN


def static() -> tuple[Setting, float]:
    """A leader of epoch 5 whose voters the configuration names, and the time."""
    setting = Setting(1, 4, voters=CONFIGURED)
    now = setting.lead()
    setting.fetch(offset=3, last_epoch=5)
    return setting, now


def tell(setting: Setting, voter: Voter, now: float) -> None:
    answers: list[VoterAnswer] = []
    setting.machine.update_voter(UpdateVoter("c", 5, voter), now, answers.append)
    assert [answer.error for answer in answers] == [0]


NOT_ALL = "Invalid upgrade of kraft.version to KRAFT_VERSION_1 because not all of the voters support it: those of nodes"


@pytest.mark.parametrize("validate_only", [False, True])
def test_kraft_version_is_finalized_when_all_voters_have_said_that_they_can(validate_only: bool) -> None:
    setting, now = static()
    end = setting.log.end

    def finalize() -> VoterAnswer:
        return setting.machine.finalize_version(now, validate_only=validate_only)

    def refused() -> str:
        answer = finalize()
        assert answer.error == ErrorCode.INVALID_UPDATE_VERSION and answer.message.startswith(NOT_ALL)
        return answer.message[len(NOT_ALL) :].split(" have ")[0]

    second, third = (voter for voter in KNOWN if voter.key != ME)
    assert refused() == " 2, 3"
    tell(setting, second, now)
    assert refused() == " 3"
    tell(setting, replace(third, versions=(0, 0)), now)
    assert refused() == " 3"
    tell(setting, replace(third, key=ReplicaKey(3)), now)
    assert refused() == " 3", "its directory is not known"
    tell(setting, third, now)
    assert setting.log.end == end
    assert finalize().error == 0
    if validate_only:
        assert setting.log.end == end and setting.machine.history.kraft_version == 0
        return
    assert (setting.log.entries[-1].kraft_version, setting.log.entries[-1].voters) == (1, KNOWN), "in one batch"
    assert setting.machine.history.kraft_version == 1 and setting.machine.voters == KNOWN
    written = setting.log.end
    assert finalize().error == 0 and setting.log.end == written, "it is at that level"
    answers: list[VoterAnswer] = []
    setting.machine.remove_voter(RemoveVoter("c", C), now, answers.append)
    assert answers.pop().error == ErrorCode.REQUEST_TIMED_OUT, "one change at a time"
    setting.disk(now)
    setting.fetch(offset=written, last_epoch=5)
    setting.machine.remove_voter(RemoveVoter("c", C), now, answers.append)
    setting.disk(now)
    setting.fetch(offset=setting.log.end, last_epoch=5)
    assert [answer.error for answer in answers] == [0] and setting.machine.voters == KNOWN.without(3)


def test_kraft_version_is_finalized_by_a_leader_that_knows_what_is_committed() -> None:
    setting = Setting(1, 4)
    setting.follow(5)
    assert setting.machine.finalize_version(T).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    setting = Setting(1, 4)
    now = setting.lead()
    assert setting.machine.finalize_version(now).error == ErrorCode.REQUEST_TIMED_OUT
    assert setting.machine.history.kraft_version == 0


def test_once_directories_are_named_another_one_of_a_voters_node_does_not_count_for_it() -> None:
    setting, now = static()
    for voter in KNOWN:
        if voter.key != ME:
            tell(setting, voter, now)
    assert setting.machine.finalize_version(now).error == 0
    setting.disk(now)
    before = setting.machine.high_watermark
    for number in (2, 3):
        other = ReplicaKey(number, b"another-disk----")
        setting.fetch(replica=other, offset=setting.log.end, last_epoch=5)
    assert setting.machine.high_watermark == before
    setting.fetch(replica=B, offset=setting.log.end, last_epoch=5)
    assert setting.machine.high_watermark == setting.log.end


# -- what a controller asks for in its own matter


def following(**options: Any) -> Setting:
    setting = Setting(1, 4, voters=VoterSet(), **options)
    setting.machine.history.take_in([Said(1, 1, KNOWN)])
    setting.follow(5)
    return setting


def test_a_voter_that_listens_elsewhere_says_so_until_the_log_has_it() -> None:
    setting = following()
    assert not [send for send in setting.sent(T) if isinstance(send.ask, UpdateVoter)]  # all is as the log says
    setting = following(versions=(0, 2))
    (send,) = setting.sent(T)
    assert send.ask == UpdateVoter("c", 5, Voter(ME, {"CONTROLLER": PLACES[1]}, (0, 2)))
    setting.machine.answered(send.link, send.ask, VoterAnswer(ErrorCode.REQUEST_TIMED_OUT, 2, 5, PLACES[2], ""), T)
    (fetch,) = setting.sent(T + 0.1)
    setting.machine.answered(fetch.link, fetch.ask, Fetched(0, 2, 5, PLACES[2]), T + 0.2)
    (again,) = setting.sent(T + 2.1)
    assert isinstance(again.ask, UpdateVoter)


def test_a_controller_joins_by_itself_where_it_may() -> None:
    for joins in (False, True):
        setting = following(joins=joins)
        setting.machine.history.take_in([Said(2, None, KNOWN.without(1))])
        asks = [send.ask for send in setting.sent(T)]
        assert [type(ask) for ask in asks] != [AddVoter] if not joins else isinstance(asks[0], AddVoter)
    setting = following(joins=True)
    other = Voter(ReplicaKey(1, b"old-directory---"), {}, (0, 1))
    setting.machine.history.take_in([Said(2, None, KNOWN.with_voter(other))])
    (send,) = setting.sent(T)
    assert send.ask == RemoveVoter("c", other.key)


def test_voters_that_have_all_moved_find_each_other_and_have_the_log_know() -> None:
    moved = {key.node_id: Endpoint("new", key.node_id) for key in (ME, B, C)}
    setting = Setting(1, 4, voters=VoterSet(), addresses={**moved, 9: Endpoint("no voter", 9)})
    setting.log.entries.append(Entry(2, 4, None, KNOWN, 1))
    setting.log.durable_end = 3
    setting.machine.history.take_in(setting.log.said_from(0))
    sends = [send for at in range(1, 5) for send in setting.sent(T + at)]
    assert sends and {send.endpoint for send in sends} == {moved[2], moved[3]}
    assert setting.machine._endpoint_of(9) is None
    setting = following(addresses=moved)
    assert setting.machine.leader_endpoint == moved[setting.machine.leader_id]


def test_without_kraft_version_1_a_voter_tells_each_leader_once() -> None:
    setting = Setting(1, 4)
    setting.follow(5)
    (send,) = setting.sent(T)
    assert isinstance(send.ask, UpdateVoter)
    setting.machine.answered(send.link, send.ask, VoterAnswer(0, 2, 5, PLACES[2]), T)
    for now in (T + 0.1, T + 1.9, T + 2.1):
        (fetch,) = setting.sent(now)
        assert isinstance(fetch.ask, Fetch)
        setting.machine.answered(fetch.link, fetch.ask, Fetched(0, 2, 5, PLACES[2]), now)
