"""Commits and questions about them, against answers made up here: order, what is sent again, and what is final."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from fastq._native.wire import EncodeError, Reader
from fastq.consumer.effects import Outgoing
from fastq.consumer.group.commits import Commit, CommittedQuery, Committer, codes_answered
from fastq.consumer.group.coordinator import Coordinator
from fastq.errors import (
    ClientClosed,
    ConnectionClosed,
    ErrorCode,
    FastqError,
    IllegalGeneration,
    NotCoordinator,
    RequestTimedOut,
    StaleMemberEpoch,
    ThrottlingQuotaExceeded,
)
from fastq.metadata import ZERO_UUID, GroupMetadata, Node, OffsetAndMetadata, TopicPartition
from fastq.net.troubles import Troubles
from fastq.protocol.messages import (
    FindCoordinatorResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchResponse,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
WHO = GroupMetadata("g", 3, "member-1", None)


def yes(node_id: int) -> bool:
    return True


class Setting:
    """A coordinator that is known, a committer, and what was refused."""

    def __init__(self) -> None:
        self.now = 0.0
        self.separated: list[Node] = []
        self.coordinator = Coordinator(
            "g",
            troubles=Troubles(logging.getLogger("fastq.consumer")),
            any_broker=lambda now: 1,
            separate=self.separate,
            backoff_ms=(100, 1000),
            random=random.Random(1),
        )
        self.refused: list[int] = []
        self.gone: set[TopicPartition] = set()
        self.ids: dict[str, bytes] = {}
        self.taken: list[Any] = []
        self.quotas: dict[int, FastqError] = {}
        self.fresh: GroupMetadata | None = None
        self.committer = Committer(
            self.coordinator,
            lambda code, who: self.refused.append(code),
            lambda who, partitions: self.fresh,
            self.taken.append,
            lambda tp: tp in self.gone,
            lambda tp: self.ids.get(tp.topic, ZERO_UUID),
            self.quotas.get,
        )
        self.find()

    def separate(self, node: Node) -> int:
        self.separated.append(node)
        return 1000 + node.node_id

    def find(self, node_id: int = 7) -> None:
        (lookup,) = self.coordinator.requests(self.now, yes)
        assert lookup.build(6).coordinator_keys == ["g"] and lookup.build(0).key == "g"
        found = FindCoordinatorResponse.Coordinator(key="g", node_id=node_id, host="h", port=1)
        lookup.done(FindCoordinatorResponse(coordinators=[found]), None, self.now)
        assert self.coordinator.known

    def commit(self, offsets: dict[TopicPartition, int], who: GroupMetadata = WHO, wait_s: float = 60.0) -> Commit:
        return self.committer.add({tp: OffsetAndMetadata(o) for tp, o in offsets.items()}, who, self.now + wait_s)

    def sent(self) -> Outgoing:
        (outgoing,) = self.committer.requests(self.now, yes)
        return outgoing


def request_of(outgoing: Outgoing) -> OffsetCommitRequest:
    body = outgoing.build(9)
    assert isinstance(body, bytes) and outgoing.versions == (2, 9)
    return OffsetCommitRequest.decode(Reader(body), 9)


def offsets_in(outgoing: Outgoing) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, part.partition_index): part.committed_offset
        for topic in request_of(outgoing).topics
        for part in topic.partitions
    }


def answer(codes: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """What the decoder makes of an answer with these errors."""
    part = OffsetCommitResponse.OffsetCommitResponsePartition
    topics = [
        OffsetCommitResponse.OffsetCommitResponseTopic(
            name=tp.topic, partitions=[part(partition_index=tp.partition, error_code=code)]
        )
        for tp, code in codes.items()
    ]
    return codes_answered(
        dict.fromkeys(codes, ZERO_UUID), bytearray(OffsetCommitResponse(topics=topics).to_bytes(9)), 9
    )


def test_a_request_says_who_commits_and_all_of_what() -> None:
    setting = Setting()
    who = GroupMetadata("g", 3, "member-1", "instance-1")
    other = TopicPartition("a", 4)
    places = {A: OffsetAndMetadata(5, "note", 2), other: OffsetAndMetadata(7)}
    setting.committer.add(places, who, 60.0)
    request = request_of(setting.sent())
    assert (request.group_id, request.generation_id_or_member_epoch) == ("g", 3)
    assert (request.member_id, request.group_instance_id) == ("member-1", "instance-1")
    found = [
        (topic.name, part.partition_index, part.committed_offset, part.committed_metadata, part.committed_leader_epoch)
        for topic in request.topics
        for part in topic.partitions
    ]
    assert found == [("a", 4, 7, "", -1), ("t", 0, 5, "note", 2)]


def test_a_partition_that_the_answer_leaves_out_is_not_committed() -> None:
    setting = Setting()
    commit = setting.commit({A: 1, B: 2})
    setting.sent().done(answer({A: 0}), None, 0.0)
    assert commit.error is not None and commit.error.partition == B.partition


def test_a_note_that_the_version_cannot_carry_is_refused() -> None:
    setting = Setting()
    setting.committer.add({A: OffsetAndMetadata(5, "n" * 40_000)}, WHO, 60.0)
    with pytest.raises(EncodeError):
        setting.sent().build(7)


def test_what_waits_goes_out_as_one_request_and_the_latest_offset_counts() -> None:
    setting = Setting()
    first = setting.commit({A: 1})
    outgoing = setting.sent()
    assert outgoing.node_id == 1007 and offsets_in(outgoing) == {A: 1}
    second, third = setting.commit({A: 2, B: 1}), setting.commit({A: 3})
    assert setting.committer.requests(0.0, yes) == [] and not first.finished
    outgoing.done(answer({A: 0}), None, 0.0)
    assert first.finished and first.error is None and setting.taken == [{A: OffsetAndMetadata(1)}]
    outgoing = setting.sent()
    assert offsets_in(outgoing) == {A: 3, B: 1}
    outgoing.done(answer({A: 0, B: ErrorCode.OFFSET_METADATA_TOO_LARGE}), None, 0.0)
    assert third.error is None and third.finished and setting.taken[1:] == [{A: OffsetAndMetadata(3)}]
    assert second.error is not None and "t" in str(second.error) and second.error.partition == 1


def test_a_commit_that_is_sent_again_does_not_undo_a_later_one() -> None:
    setting = Setting()
    first = setting.commit({A: 1, B: 5})
    lost = setting.sent()
    setting.commit({A: 2})
    lost.done(None, ConnectionClosed("gone"), 0.0)
    assert not setting.coordinator.known and setting.committer.requests(0.0, yes) == []
    setting.now = 1.0
    setting.find(8)
    outgoing = setting.sent()
    assert outgoing.node_id == 1008 and offsets_in(outgoing) == {A: 2, B: 5}
    outgoing.done(answer({A: 0, B: 0}), None, 1.0)
    assert first.finished and first.error is None and not setting.committer.busy


def test_members_of_different_generations_do_not_share_a_request() -> None:
    setting = Setting()
    setting.commit({A: 1})
    setting.commit({A: 2}, WHO._replace(generation_id=4))
    outgoing = setting.sent()
    request = request_of(outgoing)
    assert (request.generation_id_or_member_epoch, offsets_in(outgoing)) == (3, {A: 1})


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_moved_is_looked_up_again(code: ErrorCode) -> None:
    setting = Setting()
    commit = setting.commit({A: 1})
    setting.sent().done(answer({A: code}), None, 0.0)
    assert not setting.coordinator.known and not commit.finished
    setting.now = 61.0
    assert setting.committer.requests(setting.now, yes) == []
    assert commit.finished and commit.error is not None and commit.error.name == code.name  # type: ignore[attr-defined]


def test_what_the_group_refuses_is_final_and_says_who_and_what_to_do() -> None:
    setting = Setting()
    commit = setting.commit({A: 41})
    setting.sent().done(answer({A: ErrorCode.ILLEGAL_GENERATION}), None, 0.0)
    assert isinstance(commit.error, IllegalGeneration) and setting.refused == [ErrorCode.ILLEGAL_GENERATION]
    text = str(commit.error)
    for part in ("offset 41", "group g", "member member-1", "generation 3", "topic t", "partition 0", "h:1 (node 7)"):
        assert part in text, text
    assert "Another rebalance has happened since" in text


def test_a_stale_member_epoch_is_stamped_anew_once_it_is_known() -> None:
    setting = Setting()
    setting.fresh = WHO._replace(generation_id=9)
    commit = setting.commit({A: 1})
    setting.sent().done(answer({A: ErrorCode.STALE_MEMBER_EPOCH}), None, 0.0)
    setting.now = 1.0
    outgoing = setting.sent()
    request = request_of(outgoing)
    assert request.generation_id_or_member_epoch == 9
    setting.fresh = None
    outgoing.done(answer({A: ErrorCode.STALE_MEMBER_EPOCH}), None, 1.0)
    assert isinstance(commit.error, StaleMemberEpoch)


def test_the_end_of_time_and_of_the_client() -> None:
    setting = Setting()
    late = setting.commit({A: 1}, wait_s=5.0)
    setting.coordinator.lost(0.0, "the test says so")
    assert setting.committer.next_wakeup(1.0) == 4.0
    setting.committer.requests(5.0, yes)
    assert isinstance(late.error, RequestTimedOut) and "Commit again" in str(late.error)
    waiting = setting.commit({A: 2})
    setting.committer.fail_all(ClientClosed())
    assert isinstance(waiting.error, ClientClosed) and not setting.committer.busy
    assert setting.commit({}).finished


@pytest.mark.parametrize("version", [7, 9])
def test_what_is_committed_in_old_and_new_versions(version: int) -> None:
    setting = Setting()
    query = CommittedQuery(setting.coordinator, [A, B])
    (outgoing,) = query.requests(0.0, yes)
    request: Any = outgoing.build(version)
    assert request.require_stable
    if version < 8:
        part = OffsetFetchResponse.OffsetFetchResponsePartition
        parts = [
            part(partition_index=0, committed_offset=5, metadata="m"),
            part(partition_index=1, committed_offset=-1),
        ]
        topic = OffsetFetchResponse.OffsetFetchResponseTopic(name="t", partitions=parts)
        outgoing.done(OffsetFetchResponse(topics=[topic]), None, 0.0)
    else:
        newer = OffsetFetchResponse.OffsetFetchResponsePartitions
        found = [
            newer(partition_index=0, committed_offset=5, metadata="m"),
            newer(partition_index=1, committed_offset=-1),
        ]
        topics = [OffsetFetchResponse.OffsetFetchResponseTopics(name="t", partitions=found)]
        group = OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", topics=topics)
        outgoing.done(OffsetFetchResponse(groups=[group]), None, 0.0)
    assert query.finished and query.results == {A: OffsetAndMetadata(5, "m"), B: None}


def test_offsets_that_a_transaction_may_change_are_asked_for_again() -> None:
    setting = Setting()
    query = CommittedQuery(setting.coordinator, [A])
    (outgoing,) = query.requests(0.0, yes)
    part = OffsetFetchResponse.OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=-1, metadata="", error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT
    )
    topic = OffsetFetchResponse.OffsetFetchResponseTopics(name="t", partitions=[part])
    group = OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", topics=[topic])
    outgoing.done(OffsetFetchResponse(groups=[group]), None, 0.0)
    assert not query.finished and query.requests(0.0, yes) == [] and query.next_wakeup(0.0)
    (outgoing,) = query.requests(2.0, yes)
    refused = OffsetFetchResponse.OffsetFetchResponseGroup(
        group_id="g", topics=[], error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
    outgoing.done(OffsetFetchResponse(groups=[refused]), None, 2.0)
    assert query.error is not None and "group g" in str(query.error)


def test_a_look_up_that_fails_for_good_and_one_that_does_not() -> None:
    setting = Setting()
    setting.coordinator.lost(0.0, "the test says so")
    setting.now = 5.0
    (lookup,) = setting.coordinator.requests(5.0, yes)
    loading = FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    lookup.done(loading, None, 5.0)
    assert setting.coordinator.take_error() is None and setting.coordinator.requests(5.0, yes) == []
    (lookup,) = setting.coordinator.requests(9.0, yes)
    lookup.done(FindCoordinatorResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED), None, 9.0)
    error = setting.coordinator.take_error()
    assert isinstance(error, FastqError) and not isinstance(error, NotCoordinator) and "READ on the group" in str(error)
    assert setting.coordinator.take_error() is None


def test_an_offset_of_a_partition_that_is_gone_is_not_committed_again_and_again() -> None:
    setting = Setting()
    tp = TopicPartition("t", 3)
    commit = setting.commit({tp: 5})
    setting.sent().done(answer({tp: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}), None, setting.now)
    assert not commit.finished  # it may be new, and not known to every broker
    setting.now, setting.gone = 2.0, {tp}
    setting.sent().done(answer({tp: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}), None, setting.now)
    assert (
        commit.finished
        and commit.error is not None
        and "t-3" in str(commit.error).replace("topic t, partition 3", "t-3")
    )


def test_commits_name_topics_by_the_ids_that_they_had_when_they_were_read() -> None:
    setting, other = Setting(), TopicPartition("u", 1)
    setting.ids = {"t": b"T" * 16, "u": b"U" * 16}
    commit = setting.commit({A: 5, other: 7})
    setting.ids["t"] = b"V" * 16  # it is made anew meanwhile
    outgoing = setting.sent()
    assert outgoing.versions == (2, 10)
    body, decode = outgoing.build(10), outgoing.decode
    assert isinstance(body, bytes) and decode is not None
    found = {
        (topic.topic_id, part.partition_index): part.committed_offset
        for topic in OffsetCommitRequest.decode(Reader(body), 10).topics
        for part in topic.partitions
    }
    assert found == {(b"T" * 16, 0): 5, (b"U" * 16, 1): 7}
    part = OffsetCommitResponse.OffsetCommitResponsePartition
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    codes = {(b"T" * 16, 0): ErrorCode.UNKNOWN_TOPIC_ID, (b"U" * 16, 1): 0, (b"?" * 16, 0): 0}
    answered = OffsetCommitResponse(
        topics=[
            topic(topic_id=topic_id, partitions=[part(partition_index=index, error_code=code)])
            for (topic_id, index), code in codes.items()
        ]
    )
    outgoing.done(decode(bytearray(answered.to_bytes(10)), 10), None, 0.0)
    assert commit.finished and commit.error is not None and commit.error.topic == "t"
    assert setting.committer.requests(9.0, yes) == []


def test_an_id_that_the_broker_does_not_know_yet_is_sent_again() -> None:
    setting = Setting()
    setting.ids = {"t": b"T" * 16}
    commit = setting.commit({A: 5})
    setting.sent().done({A: ErrorCode.UNKNOWN_TOPIC_ID}, None, 0.0)
    assert not commit.finished
    setting.now = 2.0
    setting.sent().done({A: 0}, None, 2.0)
    assert commit.finished and commit.error is None


def test_topics_without_an_id_are_committed_by_name() -> None:
    setting = Setting()
    setting.ids = {"t": b"T" * 16}
    setting.commit({A: 5, TopicPartition("u", 1): 6})
    assert offsets_in(setting.sent()) == {A: 5, TopicPartition("u", 1): 6}


def test_a_stale_member_epoch_is_waited_for_by_a_member_that_does_not_know_a_newer_one_yet() -> None:
    """It may have been told to the thread that stands in for it. The member is told to ask."""
    setting = Setting()
    setting.fresh = WHO
    commit = setting.commit({A: 1})
    setting.sent().done(answer({A: ErrorCode.STALE_MEMBER_EPOCH}), None, 0.0)
    assert (setting.refused, commit.finished) == ([ErrorCode.STALE_MEMBER_EPOCH], False)
    setting.now = 1.0
    outgoing = setting.sent()
    assert request_of(outgoing).generation_id_or_member_epoch == WHO.generation_id
    setting.fresh = WHO._replace(generation_id=9)
    outgoing.done(answer({A: ErrorCode.STALE_MEMBER_EPOCH}), None, 1.0)
    setting.now = 2.0
    outgoing = setting.sent()
    assert request_of(outgoing).generation_id_or_member_epoch == 9
    outgoing.done(answer({A: 0}), None, 2.0)
    assert commit.finished and commit.error is None


@pytest.mark.parametrize("sent", [False, True])
def test_a_commit_that_is_out_of_time_says_whether_it_was_sent_and_what_kept_it(sent: bool) -> None:
    """Where a quota of the coordinator had kept it, the offsets were said to be committed perhaps."""
    setting = Setting()
    commit = setting.commit({A: 1}, wait_s=5.0)
    if sent:
        setting.sent().done(None, ConnectionClosed(), setting.now)
        commit.last_error = None
        setting.now += 1.0
        setting.find()
    setting.quotas[setting.coordinator.node_id] = ThrottlingQuotaExceeded("a quota of the coordinator")
    setting.now += 6.0
    assert setting.committer.requests(setting.now, lambda node_id: False) == []
    assert isinstance(commit.error, RequestTimedOut) and isinstance(commit.error.cause, ThrottlingQuotaExceeded)
    assert ("they may be" if sent else "they were not sent") in str(commit.error)
