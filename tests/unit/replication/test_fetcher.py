"""What a follower's fetcher asks, in which session, and what it makes of errors and old answers: one test a rule, against an obvious
leader. What becomes of records is in test_fetcher_records."""

from __future__ import annotations

import errno
from collections.abc import Collection

import pytest
from fastq_broker.replication.fetcher import Phase
from fastq_broker.replication.fetcher_session import EPOCH_MAX, ReplicaPartition
from fetcher_world import BROKER_EPOCH, T0, T1, U0, Follower, MemoryLog, fetches, log_of, named, pair

from fastq._native.records import build_batch
from fastq.errors import ErrorCode, KafkaStorageError
from fastq.protocol.messages import FetchResponse, ListOffsetsRequest


class TestRequest:
    def test_says_who_asks_and_from_where(self) -> None:
        mine = log_of(3, 4)
        mine.delete_before(1)
        follower = pair(log_of(3, 4, 4), mine, 5)
        follower.step()
        (request,) = fetches(follower)
        assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (2, BROKER_EPOCH)
        assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 10 << 20)
        assert (request.session_id, request.session_epoch, request.isolation_level) == (0, 0, 0)
        (topic,) = request.topics
        (wanted,) = topic.partitions
        assert (topic.topic_id, wanted.partition, wanted.current_leader_epoch) == (T0.topic_id, 0, 5)
        assert (wanted.fetch_offset, wanted.last_fetched_epoch, wanted.log_start_offset) == (2, 4, 1)
        assert wanted.partition_max_bytes == 1 << 20

    @pytest.mark.parametrize(
        ("level", "fetch", "list_offsets"),
        [
            *((30, 18, 11), (29, 18, 11), (28, 18, 10), (27, 18, 10), (26, 17, 10), (25, 17, 10), (24, 17, 9)),
            *((21, 17, 9), (20, 16, 8), (19, 16, 8), (18, 15, 8), (10, 15, 8), (9, 14, 8), (8, 13, 7), (7, 13, 7)),
        ],
    )
    def test_has_the_version_of_metadata_version(self, level: int, fetch: int, list_offsets: int) -> None:
        leader_log = log_of(0, 0)
        leader_log.delete_before(1)
        follower = pair(leader_log, MemoryLog(), 0)
        follower.level = level
        versions = []
        for _ in range(3):
            follower.poll()
            versions.append(follower.asked[0][2].version)
            follower.step()
        assert versions == [fetch, list_offsets, list_offsets]
        assert isinstance(follower.leader.requests[1], ListOffsetsRequest)
        replica = fetches(follower)[0].replica_state.replica_id if fetch >= 15 else fetches(follower)[0].replica_id
        assert (replica, follower.leader.requests[1].replica_id) == (2, 2)

    def test_waits_for_the_answer_of_the_one_before(self) -> None:
        follower = pair(log_of(0), MemoryLog(), 0)
        follower.poll()
        follower.follow(T1, MemoryLog(), 0)
        follower.poll()
        assert len(follower.asked) == 1
        assert follower.machine.next_wakeup(follower.now) == float("inf")

    def test_names_many_partitions_of_many_topics(self) -> None:
        follower = Follower()
        logs = {name: log_of(0) for name in (T0, T1, U0)}
        mine = {name: MemoryLog() for name in logs}
        for name, log in logs.items():
            follower.leader.lead(name, log, 0)
            follower.follow(name, mine[name], 0)
        follower.step()
        assert sorted(named(fetches(follower)[0])) == sorted(name.key for name in logs)
        assert all(mine[name].data == log.data for name, log in logs.items())


class TestSession:
    def test_names_what_changed(self) -> None:
        follower = pair(log_of(0), MemoryLog(), 0)
        idle = log_of(0)
        follower.leader.lead(T1, idle, 0)
        idle_too = log_of(0)
        follower.follow(T1, idle_too, 0)
        follower.steps(3)
        full, moved, quiet = fetches(follower)
        assert (full.session_id, full.session_epoch, len(named(full))) == (0, 0, 2)
        assert (moved.session_id, moved.session_epoch, named(moved)) == (1, 1, [T0.key])
        assert (quiet.session_id, quiet.session_epoch, named(quiet)) == (1, 2, [])

    def test_forgets_what_is_not_followed_any_more(self) -> None:
        follower = pair(log_of(0), log_of(0), 0)
        follower.leader.lead(T1, log_of(0), 0)
        follower.follow(T1, log_of(0), 0)
        follower.step()
        follower.machine.remove([T1.key])
        follower.step()
        (forgotten,) = fetches(follower)[1].forgotten_topics_data
        assert (forgotten.topic_id, forgotten.partitions) == (T1.topic_id, [1])

    def test_a_topic_that_was_made_again_is_another(self) -> None:
        follower = pair(log_of(0), log_of(0), 0)
        follower.step()
        again = ReplicaPartition("t", bytes([9]) * 16, 0)
        leader_log, mine = log_of(0, 0), MemoryLog()
        follower.leader.lead(again, leader_log, 0)
        follower.machine.remove([T0.key])
        follower.follow(again, mine, 0)
        follower.step()
        request = fetches(follower)[1]
        assert named(request) == [again.key]
        assert [topic.topic_id for topic in request.forgotten_topics_data] == [T0.topic_id]
        assert mine.data == leader_log.data

    def test_with_nothing_left_asks_nothing_and_begins_anew_later(self) -> None:
        follower = pair(log_of(0), log_of(0), 0)
        follower.step()
        follower.machine.remove([T0.key])
        assert not follower.step()
        assert follower.machine.next_wakeup(follower.now) == float("inf")
        follower.follow(T0, log_of(0), 0)
        follower.step()
        assert (fetches(follower)[1].session_id, fetches(follower)[1].session_epoch) == (1, 0)

    def test_one_that_the_leader_lost_begins_anew_at_once(self) -> None:
        follower = pair(log_of(0), log_of(0), 0)
        follower.step()
        follower.leader.sessions.clear()
        follower.steps(2)
        assert [(request.session_id, request.session_epoch) for request in fetches(follower)] == [
            (0, 0),
            (1, 1),
            (0, 0),
        ]
        assert named(fetches(follower)[2]) == [T0.key]

    def test_one_of_another_epoch_is_closed(self) -> None:
        follower = pair(log_of(0), log_of(0), 0)
        follower.step()
        session_id, (epoch, wanted) = next(iter(follower.leader.sessions.items()))
        follower.leader.sessions[session_id] = epoch + 1, wanted
        follower.steps(2)
        assert [(request.session_id, request.session_epoch) for request in fetches(follower)] == [
            (0, 0),
            (1, 1),
            (1, 0),
        ]

    def test_one_that_is_lost_now_and_then_costs_no_pause(self) -> None:
        follower = pair(log_of(0), log_of(0), 0)
        for _ in range(3):
            follower.step()
            follower.leader.sessions.clear()
            assert follower.step()
            assert follower.step()

    def test_what_went_and_came_back_as_it_was_is_known(self) -> None:
        follower, mine = pair(log_of(0), log_of(0), 0), log_of(0)
        follower.step()
        follower.machine.remove([T0.key])
        follower.follow(T0, mine, 0)
        follower.step()
        assert (named(fetches(follower)[1]), fetches(follower)[1].forgotten_topics_data) == ([], [])

    def test_a_leader_that_knows_none_twice_costs_a_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        follower = pair(log_of(0), log_of(0), 0)
        refusal = FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        monkeypatch.setattr(follower.leader, "fetch", lambda request, version: refusal)
        assert follower.step()
        assert follower.step()
        assert not follower.step()
        assert follower.machine.next_wakeup(follower.now) == follower.now + 1.0

    def test_a_leader_that_keeps_none_is_told_all_each_time(self) -> None:
        follower = pair(log_of(0, 0), MemoryLog(), 0)
        follower.leader.keeps_sessions = False
        follower.steps(3)
        assert [(request.session_id, request.session_epoch) for request in fetches(follower)] == [(0, 0)] * 3
        assert [named(request) for request in fetches(follower)] == [[T0.key]] * 3

    def test_its_epoch_wraps(self) -> None:
        follower = pair(log_of(0), log_of(0), 0)
        follower.step()
        session = follower.machine._session
        session.epoch = EPOCH_MAX
        follower.leader.sessions[session.session_id] = EPOCH_MAX, follower.leader.sessions[session.session_id][1]
        follower.steps(1)
        assert session.epoch == 1

    def test_another_error_costs_a_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        follower = pair(log_of(0), MemoryLog(), 0)
        refusal = FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        with monkeypatch.context() as patch:
            patch.setattr(follower.leader, "fetch", lambda request, version: refusal)
            follower.step()
        assert not follower.step()
        follower.now += 1.0
        assert follower.step()

    def test_an_answer_with_a_strange_partition_is_followed_by_all_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        follower = pair(log_of(0), log_of(0), 0)
        follower.step()
        part = FetchResponse.PartitionData(partition_index=9, high_watermark=5)
        topic = FetchResponse.FetchableTopicResponse(topic_id=T0.topic_id, partitions=[part])
        with monkeypatch.context() as patch:
            patch.setattr(
                follower.leader, "fetch", lambda request, version: FetchResponse(session_id=1, responses=[topic])
            )
            follower.step()
        assert not follower.step()
        follower.now += 1.0
        follower.step()
        assert (fetches(follower)[-1].session_epoch, named(fetches(follower)[-1])) == (0, [T0.key])

    def test_a_lost_request_is_asked_again_whole_after_a_pause(self) -> None:
        follower = pair(log_of(0), log_of(0), 0)
        follower.step()
        follower.poll()
        number, _, _ = follower.asked.pop()
        follower.machine.failed(number, follower.now)
        assert not follower.step()
        assert follower.machine.next_wakeup(follower.now) == follower.now + 1.0
        follower.now += 1.0
        follower.step()
        last = fetches(follower)[-1]
        assert (last.session_id, last.session_epoch, named(last)) == (1, 0, [T0.key])

    def test_retention_here_is_told_to_the_leader(self) -> None:
        mine = log_of(0, 0, 0)
        follower = pair(log_of(0, 0, 0), mine, 0)
        follower.step()
        mine.delete_before(2)
        follower.step()
        assert named(fetches(follower)[1]) == []
        follower.now += 1.0
        follower.step()
        (topic,) = fetches(follower)[2].topics
        assert topic.partitions[0].log_start_offset == 2


class TestErrors:
    def test_fenced_at_its_epoch_it_stops_till_there_is_another(self) -> None:
        leader_log, mine = log_of(0, 0), log_of(0)
        follower = pair(leader_log, mine, 0)
        follower.leader.lead(T0, leader_log, 1)
        follower.step()
        follower.now += 100.0
        assert not follower.step()
        assert follower.machine.next_wakeup(follower.now) == float("inf")
        follower.follow(T0, mine, 1)
        follower.step()
        assert mine.log_end_offset == 2

    @pytest.mark.parametrize(
        "code",
        [
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.INCONSISTENT_TOPIC_ID,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ],
    )
    def test_others_cost_the_partition_a_second_at_most(self, code: ErrorCode) -> None:
        mine, copy = MemoryLog(), MemoryLog()
        follower = pair(log_of(0), mine, 0)
        other = log_of(0)
        follower.leader.lead(T1, other, 0)
        follower.follow(T1, copy, 0)
        follower.leader.failures[T0.key] = code
        follower.step()
        follower.leader.failures.clear()
        other.append(0, b"more")
        follower.step()
        assert (mine.log_end_offset, copy.log_end_offset) == (0, 2)
        forgotten = fetches(follower)[1].forgotten_topics_data
        assert [topic.partitions for topic in forgotten] == [[0]]
        follower.now += 1.0
        follower.step()
        assert mine.log_end_offset == 1

    @pytest.mark.parametrize(
        ("code", "pauses"),
        [
            (ErrorCode.UNKNOWN_TOPIC_ID, [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]),
            (ErrorCode.UNKNOWN_SERVER_ERROR, [1.0] * 8),
        ],
    )
    def test_news_that_are_on_their_way_to_the_leader_are_soon_there(
        self, code: ErrorCode, pauses: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        mine = MemoryLog()
        follower = pair(log_of(0), mine, 0)
        follower.leader.failures[T0.key] = code
        found = []
        for _ in pauses:
            while follower.step():
                pass
            found.append(round(follower.machine.next_wakeup(follower.now) - follower.now, 3))
            follower.now += found[-1]
        assert found == pauses
        assert len([line for line in caplog.records if line.levelname == "WARNING"]) == 1
        follower.leader.failures.clear()
        follower.step()
        assert mine.log_end_offset == 1

    def test_no_fetch_waits_at_the_leader_for_longer_than_a_pause_lasts(self) -> None:
        """The leader has heard of itself in a moment, and nobody writes to the other partition."""
        follower = pair(log_of(0), MemoryLog(), 0)
        follower.leader.lead(T1, log_of(0), 0)
        follower.follow(T1, MemoryLog(), 0)
        follower.leader.failures[T0.key] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        follower.step()
        follower.now += 0.0125
        follower.step()
        follower.leader.failures.clear()
        follower.now += 0.0075
        follower.steps()
        first, meanwhile, *rest = fetches(follower)
        assert (first.max_wait_ms, meanwhile.max_wait_ms) == (500, 8)
        assert T0.key not in named(meanwhile)
        assert T0.key in named(rest[0])
        assert {request.max_wait_ms for request in rest} == {500}

    def test_a_new_leader_epoch_ends_a_pause(self) -> None:
        leader_log, mine = log_of(0), MemoryLog()
        follower = pair(leader_log, mine, 0)
        follower.leader.failures[T0.key] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        follower.step()
        follower.leader.failures.clear()
        follower.leader.lead(T0, leader_log, 1)
        follower.follow(T0, mine, 1)
        follower.step()
        assert mine.log_end_offset == 1

    def test_the_same_leader_epoch_changes_nothing(self) -> None:
        mine = MemoryLog()
        follower = pair(log_of(0), mine, 0)
        follower.leader.failures[T0.key] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        follower.step()
        follower.follow(T0, mine, 0)
        assert not follower.step()

    def test_another_log_of_the_partition_is_followed_from_its_end(self) -> None:
        """It was opened anew, or in another directory."""
        leader_log, mine, again = log_of(0), MemoryLog(), MemoryLog()
        follower = pair(leader_log, mine, 0)
        follower.step()
        follower.follow(T0, again, 0)
        follower.step()
        assert again.data == leader_log.data


class TestOldAnswers:
    """Of the answer to a fetch nothing counts for a partition that has moved since (KAFKA-18991, KAFKA-18723)."""

    def test_of_another_leader_epoch_divergence_does_not_count(self) -> None:
        leader_log, mine = log_of(0, 2), log_of(0, 1)
        follower = pair(leader_log, mine, 2)
        follower.poll()  # it will hear that its second record is not the leader's
        newer = log_of(0, 1, 3)  # but with the next leader it is
        follower.follow(T0, mine, 3)
        follower.step()
        assert mine.log_end_offset == 2
        follower.leader.lead(T0, newer, 3)
        follower.steps(2)
        assert mine.data == newer.data

    def test_of_another_leader_epoch_records_do_not_count(self) -> None:
        leader_log, mine = log_of(0, 2), log_of(0)
        follower = pair(leader_log, mine, 2)
        follower.poll()
        follower.follow(T0, mine, 3)
        follower.step()
        assert mine.log_end_offset == 1

    def test_of_another_leader_epoch_errors_do_not_count(self) -> None:
        leader_log, mine = log_of(0, 3), log_of(0)
        follower = pair(leader_log, mine, 2)
        follower.leader.lead(T0, leader_log, 3)
        follower.poll()  # it will hear that it is fenced
        follower.follow(T0, mine, 3)
        follower.step()
        assert follower.machine.partitions[T0.key].phase is Phase.FETCH
        follower.step()
        assert mine.data == leader_log.data

    def test_of_a_partition_that_went_nothing_counts(self) -> None:
        mine = MemoryLog()
        follower = pair(log_of(0), mine, 0)
        follower.poll()
        follower.machine.remove([T0.key])
        follower.step()
        assert mine.data == b""

    def test_of_a_partition_that_went_and_came_back_nothing_counts(self) -> None:
        mine = MemoryLog()
        follower = pair(log_of(0), mine, 0)
        follower.poll()
        follower.machine.remove([T0.key])
        follower.follow(T0, mine, 0)
        follower.step()
        assert mine.data == b""
        follower.steps(2)
        assert mine.log_end_offset == 1

    def test_twice_an_answer_counts_once(self) -> None:
        leader_log, mine = log_of(0, 0), MemoryLog()
        follower = pair(leader_log, mine, 0, partition_bytes_max=1)
        follower.poll()
        number, take, request = follower.asked.pop()
        answer = follower.leader.answer(request)
        take(number, answer, follower.now)
        take(number, answer, follower.now)
        assert (mine.log_end_offset, follower.machine._session.epoch) == (1, 1)

    def test_after_its_time_an_answer_does_not_count(self) -> None:
        leader_log, mine = log_of(0, 0), MemoryLog()
        follower = pair(leader_log, mine, 0)
        follower.poll()
        number, take, request = follower.asked.pop()
        answer = follower.leader.answer(request)
        follower.machine.failed(number, follower.now)
        take(number, answer, follower.now)
        assert mine.data == b""
        follower.now += 1.0
        follower.poll()
        take(number, answer, follower.now)
        assert mine.data == b""

    def test_a_failure_that_comes_late_does_not_count(self) -> None:
        follower = pair(log_of(0), MemoryLog(), 0)
        follower.step()
        follower.machine.failed(1, follower.now)
        assert follower.step()


class Quota:
    """A quota of a test's making."""

    def __init__(self) -> None:
        self.held: set[tuple[bytes, int]] = set()
        self.recorded: list[tuple[tuple[bytes, int], int]] = []

    def throttled(self) -> Collection[tuple[bytes, int]]:
        return self.held

    def record(self, key: tuple[bytes, int], size_bytes: int) -> None:
        self.recorded.append((key, size_bytes))


class TestQuota:
    def test_throttled_partitions_are_left_out_until_they_are_not(self) -> None:
        quota, leader_log, mine = Quota(), log_of(0, 0, 0), MemoryLog()
        follower = pair(leader_log, mine, 0, quota=quota, partition_bytes_max=1)
        other, copy = log_of(0), MemoryLog()
        follower.leader.lead(T1, other, 0)
        follower.follow(T1, copy, 0)
        follower.step()
        quota.held = {T0.key}
        follower.steps(2)
        assert (mine.log_end_offset, copy.log_end_offset) == (1, 1)
        assert [topic.partitions for topic in fetches(follower)[1].forgotten_topics_data] == [[0]]
        quota.held = set()
        follower.steps(3)
        assert mine.data == leader_log.data
        assert quota.recorded[0] == (T0.key, len(leader_log.batches[0].data))

    def test_a_replica_in_sync_is_never_throttled(self) -> None:
        quota, leader_log, mine = Quota(), log_of(0), MemoryLog()
        follower = pair(leader_log, mine, 0, quota=quota)
        follower.step()
        quota.held = {T0.key}
        leader_log.append(0, b"more")
        follower.steps(2)
        assert mine.data == leader_log.data

    def test_a_replica_in_sync_is_not_throttled_before_the_leader_has_said_how_far_it_is(self) -> None:
        """As after each election: the topic's throttle, `*` say, is there before the first fetch."""
        quota, leader_log, mine = Quota(), log_of(0), MemoryLog()
        follower = pair(leader_log, mine, 0, quota=quota)
        follower.step()
        quota.held = {T0.key}
        leader_log.append(0, b"more")
        for in_sync, end in ((False, 1), (True, 2)):
            follower.machine.remove([T0.key])
            follower.machine.add(T0, 0, mine, follower.now, in_sync=in_sync)
            follower.step()
            assert mine.log_end_offset == end

    def test_a_replica_above_the_high_watermark_is_in_sync(self) -> None:
        quota, leader_log, mine = Quota(), log_of(0), MemoryLog()
        follower = pair(leader_log, mine, 0, quota=quota)
        leader_log.high_watermark = 0
        follower.step()
        quota.held = {T0.key}
        leader_log.append(0, b"more")
        follower.steps(2)
        assert mine.data == leader_log.data

    def test_a_replica_that_was_cut_to_the_leaders_end_is_in_sync(self) -> None:
        quota, leader_log, mine = Quota(), log_of(0), log_of(0, 0)
        mine.epochs, mine.high_watermark = [], 2
        follower = pair(leader_log, mine, 0, quota=quota)
        follower.steps(2)
        quota.held = {T0.key}
        leader_log.append(0, b"more")
        follower.step()
        assert mine.data == leader_log.data

    def test_with_all_throttled_it_asks_the_quota_again_later(self) -> None:
        quota, mine = Quota(), MemoryLog()
        quota.held = {T0.key}
        follower = pair(log_of(0), mine, 0, quota=quota)
        assert not follower.step()
        assert follower.machine.next_wakeup(follower.now) == follower.now + 1.0
        quota.held = set()
        follower.now += 1.0
        follower.steps(1)
        assert mine.log_end_offset == 1


def test_a_partition_with_records_goes_behind_the_others() -> None:
    """So that under the size limit of an answer none starves, with a leader that keeps no session."""
    follower = Follower()
    follower.leader.keeps_sessions = False
    logs = {T0: log_of(0, 0), T1: MemoryLog(), U0: MemoryLog()}
    for name, log in logs.items():
        follower.leader.lead(name, log, 0)
        follower.follow(name, MemoryLog(), 0)
    follower.steps(2)
    assert named(fetches(follower)[1])[-1] == T0.key


def test_old_magics_are_named(caplog: pytest.LogCaptureFixture) -> None:
    leader_log, mine = log_of(0), MemoryLog()
    follower = pair(leader_log, mine, 0)
    old = bytearray(build_batch([(1, None, b"v")]))
    old[16] = 1
    leader_log.read = lambda offset, bytes_max: bytes(old)  # type: ignore[method-assign]
    follower.step()
    assert "magic" in follower.machine.partitions[T0.key].problem


class ShortLog(MemoryLog):
    """A log that lacks a descriptor the first times it is to be loaded, and to be written to."""

    loads = appends = 3

    @staticmethod
    def lacks() -> KafkaStorageError:
        error = KafkaStorageError("loading a log failed: Too many open files")
        error.__cause__ = OSError(errno.EMFILE, "Too many open files")
        return error

    @property
    def leader_epoch(self) -> int:
        if self.loads:
            self.loads -= 1
            raise self.lacks()
        return super().leader_epoch

    def append_as_follower(self, batches: memoryview, *, now_ms: int, gently: bool = False) -> int:
        if self.appends:
            self.appends -= 1
            raise self.lacks()
        return super().append_as_follower(batches, now_ms=now_ms, gently=gently)


def test_a_shortage_of_descriptors_ends_with_the_shortage(caplog: pytest.LogCaptureFixture) -> None:
    leader_log, mine = log_of(0, 0, 1), ShortLog()
    follower = pair(leader_log, mine, 1)
    follower.poll()
    assert follower.machine.partitions[T0.key].phase is Phase.UNREAD and not follower.asked
    for _ in range(mine.loads + mine.appends + 1):
        follower.now += 1
        follower.steps(2)
    assert mine.data == leader_log.data and follower.machine.partitions[T0.key].phase is Phase.FETCH
    assert [record.levelname for record in caplog.records] == ["WARNING"], "said once, however long it lasts"


def test_a_shortage_ends_with_the_shortage_where_nothing_is_waited_for() -> None:
    """With replica.fetch.backoff.ms=0 what could not be read at two looks was looked at no more."""
    leader_log, mine = log_of(0, 0, 1), ShortLog()
    follower = pair(leader_log, mine, 1, backoff_s=0.0)
    follower.steps(2 * (mine.loads + mine.appends + 1))
    assert mine.data == leader_log.data and follower.machine.partitions[T0.key].phase is Phase.FETCH
