"""What a follower's fetcher makes of records: appends, what is durable, where it goes on when its log and the leader's part."""

from __future__ import annotations

from typing import Any

import pytest
from fastq_broker.replication.fetcher import Phase
from fastq_broker.replication.fetcher_session import Position
from fetcher_world import T0, T1, U0, Follower, MemoryLog, fetches, log_of, named, pair

from fastq.errors import CorruptMessage, ErrorCode, KafkaStorageError
from fastq.protocol.messages import ListOffsetsRequest, ListOffsetsResponse


class TestAppend:
    def test_takes_records_as_they_came_with_one_write(self) -> None:
        leader_log, mine = log_of(0, 0, 1, 3), MemoryLog()
        follower = pair(leader_log, mine, 3)
        follower.step()
        assert mine.data == leader_log.data
        assert (mine.epochs, mine.writes) == ([(0, 0), (1, 2), (3, 3)], 1)
        assert follower.machine.partitions[T0.key].position == Position(4, 3, 3)

    def test_the_high_watermark_is_the_leaders_but_the_logs_end_at_most(self) -> None:
        leader_log, mine = log_of(0, 0, 0), MemoryLog()
        follower = pair(leader_log, mine, 0, partition_bytes_max=1)
        seen = []
        leader_log.high_watermark = 2
        for _ in range(4):
            follower.step()
            seen.append((mine.log_end_offset, mine.high_watermark))
        assert seen == [(1, 1), (2, 2), (3, 2), (3, 2)]
        leader_log.high_watermark = 3
        follower.step()
        assert mine.high_watermark == 3

    def test_the_high_watermark_is_not_below_the_logs_start(self) -> None:
        """A new leader knows its high watermark once the others have fetched."""
        leader_log, mine = log_of(0, 0, 0), log_of(0, 0, 0)
        mine.delete_before(2)
        follower = pair(leader_log, mine, 0)
        leader_log.high_watermark = 1
        follower.step()
        assert (mine.high_watermark, mine.log_start_offset) == (2, 2)

    def test_the_log_start_follows_the_leaders(self) -> None:
        leader_log, mine = log_of(0, 0, 0), log_of(0, 0, 0)
        follower = pair(leader_log, mine, 0)
        leader_log.delete_before(2)
        follower.step()
        assert mine.log_start_offset == 2

    def test_the_log_start_is_the_high_watermark_at_most(self) -> None:
        leader_log, mine = log_of(0, 0, 0), log_of(0, 0, 0)
        follower = pair(leader_log, mine, 0)
        leader_log.log_start_offset, leader_log.high_watermark = 2, 1
        follower.step()
        assert (mine.log_start_offset, mine.high_watermark) == (1, 1)

    def test_a_leader_that_knows_no_high_watermark_says_nothing_of_it(self) -> None:
        leader_log, mine = log_of(0, 0), log_of(0)
        follower = pair(leader_log, mine, 0)
        mine.high_watermark, leader_log.high_watermark = 1, -1
        follower.step()
        assert (mine.log_end_offset, mine.high_watermark) == (2, 1)

    def test_batches_above_the_fetch_s_leader_epoch_are_dropped(self) -> None:
        leader_log, mine = log_of(0, 1, 2, 2), MemoryLog()
        follower = pair(leader_log, mine, 1)
        follower.step()
        assert mine.log_end_offset == 2
        assert mine.high_watermark == 2
        follower.step()  # nothing of this one can be taken
        assert mine.log_end_offset == 2
        assert not follower.step()
        follower.leader.lead(T0, leader_log, 2)
        follower.follow(T0, mine, 2)
        follower.step()
        assert mine.data == leader_log.data

    def test_a_batch_that_is_not_whole_waits_for_the_next_fetch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        leader_log, mine = log_of(0, 0), MemoryLog()
        follower = pair(leader_log, mine, 0)
        with monkeypatch.context() as patch:
            patch.setattr(leader_log, "read", lambda offset, bytes_max: leader_log.data[:-1])
            follower.step()
        assert mine.log_end_offset == 1
        follower.step()
        assert mine.data == leader_log.data

    @pytest.mark.parametrize("position", [-1, 16, 8], ids=["records", "magic", "size"])
    def test_a_damaged_batch_is_asked_for_again_after_a_pause(
        self, monkeypatch: pytest.MonkeyPatch, position: int
    ) -> None:
        leader_log, mine = log_of(0), MemoryLog()
        follower = pair(leader_log, mine, 0)
        other = log_of(0)
        follower.leader.lead(T1, other, 0)
        copy = MemoryLog()
        follower.follow(T1, copy, 0)
        damaged = bytearray(leader_log.data)
        damaged[position] ^= 0x80
        with monkeypatch.context() as patch:
            patch.setattr(leader_log, "read", lambda offset, bytes_max: bytes(damaged))
            follower.step()
            follower.step()
        assert mine.data == b""
        assert copy.data == other.data  # the others do not suffer
        assert "cannot be appended" in follower.machine.partitions[T0.key].problem
        follower.now += 1.0
        follower.steps(2)
        assert mine.data == leader_log.data

    def test_offsets_that_do_not_follow_are_asked_for_again_after_a_pause(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leader_log, mine = log_of(0, 0), log_of(0)
        follower = pair(leader_log, mine, 0)
        monkeypatch.setattr(leader_log, "read", lambda offset, bytes_max: leader_log.data)
        follower.step()
        assert mine.log_end_offset == 1
        assert not follower.step() or named(fetches(follower)[-1]) == []

    def test_the_first_batch_may_begin_below_an_empty_logs_start(self) -> None:
        leader_log, mine = MemoryLog(), MemoryLog()
        leader_log.append(0, b"a", b"b", b"c")
        leader_log.append(0, b"d")
        follower = pair(leader_log, mine, 0)
        leader_log.delete_before(1)
        follower.steps(6)
        assert mine.data == leader_log.data
        assert (mine.log_start_offset, mine.log_end_offset) == (1, 4)

    def test_a_log_that_ends_within_the_leaders_first_batch_begins_with_it(self) -> None:
        """Its last record is another than the leader's, which has forgotten the epochs below its start, and cannot tell."""
        leader_log, mine = MemoryLog(), log_of(0, 0)
        leader_log.append(0, b"a")
        leader_log.append(2, b"b", b"c")
        follower = pair(leader_log, mine, 2)
        leader_log.delete_before(2)
        assert leader_log.epochs == [(2, 2)]
        follower.steps(2)
        assert mine.data == leader_log.data
        assert (mine.log_start_offset, mine.log_end_offset) == (2, 3)

    def test_an_empty_log_begins_below_its_start_also_where_the_leader_begins_earlier(self) -> None:
        """The one before had deleted more."""
        leader_log, mine = MemoryLog(), MemoryLog()
        leader_log.append(0, b"a", b"b")
        mine.truncate_fully_and_start_at(1)
        follower = pair(leader_log, mine, 0)
        follower.step()
        assert (mine.data, mine.log_start_offset) == (leader_log.data, 0)

    def test_a_log_with_records_that_the_leader_has_never_begins_anew(self) -> None:
        leader_log, mine = MemoryLog(), log_of(0, 0)
        leader_log.append(0, b"a")
        leader_log.append(0, b"b", b"c")
        before = mine.data
        follower = pair(leader_log, mine, 0)
        follower.step()
        assert mine.data == before
        assert "cannot be appended" in follower.machine.partitions[T0.key].problem

    def test_an_empty_log_does_not_begin_with_a_batch_that_lies_below_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        leader_log, mine = log_of(0, 0), MemoryLog()
        mine.truncate_fully_and_start_at(1)
        follower = pair(leader_log, mine, 0)
        monkeypatch.setattr(leader_log, "read", lambda offset, bytes_max: leader_log.data)
        follower.step()
        assert (mine.log_start_offset, mine.log_end_offset) == (1, 1)

    def test_of_a_damaged_first_batch_an_empty_log_learns_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        leader_log, mine = MemoryLog(), MemoryLog()
        leader_log.append(0, b"a", b"b")
        mine.truncate_fully_and_start_at(1)
        follower = pair(leader_log, mine, 0)
        damaged = bytearray(leader_log.data)
        damaged[-1] ^= 1
        monkeypatch.setattr(leader_log, "read", lambda offset, bytes_max: bytes(damaged))
        follower.step()
        assert (mine.log_start_offset, mine.log_end_offset) == (1, 1)

    def test_a_log_that_others_have_moved_is_fetched_from_its_end(self) -> None:
        leader_log, mine = log_of(0, 0), log_of(0)
        follower = pair(leader_log, mine, 0)
        follower.poll()
        mine.truncate_to(0)
        follower.step()
        assert mine.data == b""
        follower.now += 1.0
        follower.steps(2)
        assert mine.data == leader_log.data

    @pytest.mark.parametrize("call", ["append_as_follower", "advance_as_follower"])
    def test_a_log_whose_disk_fails_is_followed_no_more(self, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        mine = MemoryLog()
        follower = pair(log_of(0), mine, 0)

        def fail(*_: Any, **__: Any) -> None:
            raise KafkaStorageError("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(mine, call, fail)
            follower.step()
        follower.now += 10.0
        assert not follower.step()
        assert follower.machine.partitions[T0.key].phase is Phase.STOPPED
        follower.follow(T0, mine, 0)  # its directory is back
        follower.steps(1)
        assert mine.log_end_offset == 1

    @pytest.mark.parametrize("passes", [False, True])
    def test_a_disk_that_takes_its_logs_away_as_it_fails(self, monkeypatch: pytest.MonkeyPatch, passes: bool) -> None:
        """The directory's failure is told before the log's error comes back: the partition is followed no more by then."""
        mine = MemoryLog()
        follower = pair(log_of(0, 0), mine, 0)

        def fail(*_: Any, **__: Any) -> None:
            follower.machine.remove([T0.key])
            raise (CorruptMessage if passes else KafkaStorageError)("the disk is gone")

        monkeypatch.setattr(mine, "append_as_follower", fail)
        follower.step()
        follower.now += 10.0
        assert not follower.step() and not follower.machine.partitions

    def test_a_fault_of_ours_in_one_partition_holds_up_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mine, other, copy = MemoryLog(), log_of(0), MemoryLog()
        follower = pair(log_of(0), mine, 0)
        follower.leader.lead(T1, other, 0)
        follower.follow(T1, copy, 0)
        monkeypatch.setattr(mine, "append_as_follower", None)
        follower.step()
        assert copy.data == other.data
        assert follower.machine.partitions[T0.key].phase is Phase.STOPPED


class TestDurability:
    def test_with_fsync_the_next_fetch_waits_for_the_disk(self) -> None:
        mine = MemoryLog(fsync=True)
        follower = pair(log_of(0), mine, 0)
        follower.step()
        assert mine.log_end_offset == 1
        assert not follower.step()
        assert follower.machine.next_wakeup(follower.now) == follower.now + 0.5
        mine.sync()
        assert follower.woken == 1
        follower.step()
        (topic,) = fetches(follower)[1].topics
        assert topic.partitions[0].fetch_offset == 1

    def test_others_wait_with_it_but_not_for_ever(self) -> None:
        mine, other, copy = MemoryLog(fsync=True), log_of(0), MemoryLog()
        follower = pair(log_of(0), mine, 0)
        follower.leader.lead(T1, other, 0)
        follower.follow(T1, copy, 0)
        follower.step()
        assert not follower.step()
        follower.now += 0.5
        follower.step()
        request = fetches(follower)[1]
        assert named(request) == [T1.key]
        assert [topic.partitions for topic in request.forgotten_topics_data] == [[0]]  # nothing is said of it till then
        assert follower.step()
        mine.sync()
        follower.step()
        assert named(fetches(follower)[-1]) == [T0.key]

    def test_a_log_that_is_not_on_disk_when_it_is_added_waits_too(self) -> None:
        follower = pair(log_of(0, 0), log_of(0, fsync=True), 0)
        assert not follower.step()
        follower.now += 0.5
        assert not follower.step()
        # The disk tells, unless there was no memory to have it tell.
        assert follower.machine.next_wakeup(follower.now) == follower.now + 0.5


class TestDivergence:
    def test_records_that_the_leader_does_not_have_are_cut_off(self) -> None:
        leader_log, mine = log_of(0, 0, 2), log_of(0, 0, 0, 0)
        follower = pair(leader_log, mine, 2)
        follower.step()
        assert mine.log_end_offset == 2
        follower.step()
        assert mine.data == leader_log.data
        assert mine.epochs == leader_log.epochs

    def test_nothing_else_of_the_answer_counts(self) -> None:
        leader_log, mine = log_of(0, 0, 2), log_of(0, 0, 0)
        mine.high_watermark = 1
        follower = pair(leader_log, mine, 2)
        follower.step()
        assert (mine.log_end_offset, mine.high_watermark) == (2, 1)

    def test_an_epoch_that_only_this_log_has_is_cut_off(self) -> None:
        leader_log, mine = log_of(0, 0, 3), log_of(0, 0, 1)
        follower = pair(leader_log, mine, 3)
        follower.steps(2)
        assert mine.data == leader_log.data

    def test_an_epoch_unknown_here_costs_a_fetch_more_each(self) -> None:
        leader_log, mine = log_of(1, 3, 5), log_of(0, 2, 4)
        follower = pair(leader_log, mine, 5)
        ends = []
        for _ in range(4):
            follower.step()
            ends.append(mine.log_end_offset)
        # (3, 2) is answered for epoch 4, and (1, 1) for 2: this log knows 2 and 0 at most. For 0 the leader has nothing.
        assert ends == [2, 1, 0, 3]
        assert mine.data == leader_log.data

    def test_of_an_epoch_unknown_here_the_leaders_end_does_not_count(self) -> None:
        leader_log, mine = log_of(0, 1, 3), log_of(0, 0, 0, 2)
        follower = pair(leader_log, mine, 3)
        follower.step()
        assert mine.log_end_offset == 3  # it is asked of epoch 0 next
        follower.steps(2)
        assert mine.data == leader_log.data

    def test_the_own_end_of_the_epoch_counts_where_it_is_smaller(self) -> None:
        leader_log, mine = log_of(0, 0, 0, 0, 3), log_of(0, 0, 1)
        follower = pair(leader_log, mine, 3)
        follower.step()
        assert mine.log_end_offset == 2
        follower.step()
        assert mine.data == leader_log.data

    def test_an_epoch_without_records_goes_too(self, caplog: pytest.LogCaptureFixture) -> None:
        """A leader that never wrote: its epoch begins at its log's end. The log does not go back, and nobody says that it does."""
        leader_log, mine = log_of(0, 0, 2), log_of(0, 0)
        mine.assign_epoch(1, 2)
        caplog.set_level("INFO")
        follower = pair(leader_log, mine, 2)
        follower.steps(2)
        assert mine.data == leader_log.data
        assert mine.epochs == [(0, 0), (2, 2)] and "goes back" not in caplog.text

    def test_how_far_a_log_goes_back_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        follower = pair(log_of(0, 2), log_of(0, 1, 1), 2)
        follower.steps(2)
        (line,) = [record for record in caplog.records if "goes back" in record.getMessage()]
        assert line.levelname == "INFO" and "the log goes back from offset 3 to 1, " in line.getMessage()

    def test_a_log_without_epochs_goes_back_to_its_high_watermark(self) -> None:
        leader_log, mine = log_of(0, 0, 2), log_of(0, 0, 0)
        mine.epochs, mine.high_watermark = [], 1
        follower = pair(leader_log, mine, 2)
        assert mine.log_end_offset == 1
        follower.steps(2)
        assert mine.data == leader_log.data

    def test_a_log_with_epochs_keeps_what_is_above_its_high_watermark(self) -> None:
        mine = log_of(0, 0)
        mine.on_cut = lambda gone: pytest.fail("nothing is to be cut off")
        follower = pair(log_of(0, 0, 0), mine, 1)
        follower.steps(2)
        assert mine.log_end_offset == 3

    def test_at_an_epoch_above_all_of_this_log_only_the_leaders_end_counts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mine = log_of(0, 0)
        follower = pair(log_of(0, 0), mine, 0)
        monkeypatch.setattr(follower.leader.led[T0.key].log, "epoch_end_offset", lambda epoch: (5, 1))
        follower.step()
        assert mine.log_end_offset == 1

    def test_one_that_changes_nothing_costs_a_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        leader_log, mine = log_of(0), log_of(0)
        follower = pair(leader_log, mine, 0)
        monkeypatch.setattr(leader_log, "epoch_end_offset", lambda epoch: (epoch - 1, 1))
        monkeypatch.setattr(mine, "truncate_to", lambda offset: False)
        monkeypatch.setattr(mine, "epoch_end_offset", lambda epoch: (0, 1))
        leader_log.epochs = [(1, 0)]
        mine.epochs = [(1, 0)]
        follower = pair(leader_log, mine, 1)
        assert follower.step()
        assert not follower.step()

    def test_one_without_an_end_costs_a_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        leader_log, mine = log_of(0, 1), log_of(0, 1)
        follower = pair(leader_log, mine, 1)
        monkeypatch.setattr(leader_log, "epoch_end_offset", lambda epoch: (0, -1))
        follower.step()
        assert mine.log_end_offset == 2
        assert not follower.step()

    def test_a_leader_whose_epochs_are_not_those_of_its_records_costs_pauses(self) -> None:
        """It sends the records that it has the follower cut off next: a round trip each, for ever."""
        leader_log, mine = log_of(0, 1, 1), log_of(0)
        follower = pair(leader_log, mine, 3)
        leader_log.epochs = [(0, 0), (3, 3)]  # of epoch 1 it knows no more
        cuts = []
        mine.on_cut = cuts.append
        follower.steps(40)
        assert len(cuts) == 2
        follower.now += 10.0
        follower.steps(40)
        assert len(cuts) == 3


class TestGap:
    def test_what_is_missing_in_the_middle_comes_anew_with_all_behind_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        leader_log, mine = log_of(0, 0, 0, 0, 0), log_of(0, 0, 0, 0)
        del mine.batches[1]
        mine.gap_offset, mine.high_watermark = 1, 4
        follower = pair(leader_log, mine, 0)
        assert (mine.log_end_offset, mine.gap_offset) == (1, None)
        assert "records are missing from offset 1 on in the middle of the log" in caplog.text
        follower.steps(3)
        assert mine.data == leader_log.data

    def test_who_is_in_sync_does_not_go_back_below_what_is_committed(self, caplog: pytest.LogCaptureFixture) -> None:
        leader_log, mine = log_of(0, 0, 0, 0, 0), log_of(0, 0, 0, 0)
        del mine.batches[1]
        mine.gap_offset, mine.high_watermark = 1, 4
        follower = Follower()
        follower.leader.lead(T0, leader_log, 0)
        follower.follow(T0, mine, 0, in_sync=True)
        follower.steps(3)
        assert (mine.log_end_offset, mine.gap_offset) == (5, 1)
        assert "stays as it is, as the replica is in sync, or eligible" in caplog.text


class TestOutOfRange:
    def test_a_log_beyond_the_leaders_end_is_cut_there(self) -> None:
        leader_log, mine = log_of(0), log_of(0, 0, 0)
        mine.epochs = []  # else the leader sees the divergence
        mine.high_watermark = 3
        follower = pair(leader_log, mine, 0)
        follower.steps(2)
        assert mine.log_end_offset == 1
        latest = follower.leader.requests[1]
        assert isinstance(latest, ListOffsetsRequest)
        (topic,) = latest.topics
        (asked,) = topic.partitions
        assert (topic.name, asked.partition_index, asked.timestamp, asked.current_leader_epoch) == ("t", 0, -1, 0)

    def test_a_log_below_the_leaders_start_begins_there_anew(self) -> None:
        leader_log, mine = log_of(0, 0, 0, 0), log_of(0)
        leader_log.delete_before(2)
        follower = pair(leader_log, mine, 0)
        follower.steps(4)
        assert mine.data == leader_log.data
        assert (mine.log_start_offset, mine.log_end_offset, mine.high_watermark) == (2, 4, 4)
        timestamps = [
            request.topics[0].partitions[0].timestamp
            for request in follower.leader.requests
            if isinstance(request, ListOffsetsRequest)
        ]
        assert timestamps == [-1, -2]

    def test_a_log_within_the_leaders_range_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The leader's log grew between the two requests."""
        leader_log, mine = log_of(0, 0, 0), log_of(0, 0)
        monkeypatch.setattr(mine, "truncate_fully_and_start_at", None)
        follower = pair(leader_log, mine, 0)
        follower.leader.failures[T0.key] = ErrorCode.OFFSET_OUT_OF_RANGE
        follower.step()
        follower.leader.failures.clear()
        follower.steps(3)
        assert mine.data == leader_log.data

    def test_a_log_as_long_as_the_leaders_may_still_lie_below_its_start(self) -> None:
        follower = pair(log_of(0, 0), log_of(0, 0), 0)
        follower.leader.failures[T0.key] = ErrorCode.OFFSET_OUT_OF_RANGE
        follower.step()
        follower.leader.failures.clear()
        follower.steps(2)
        asked = [request for request in follower.leader.requests if isinstance(request, ListOffsetsRequest)]
        assert [request.topics[0].partitions[0].timestamp for request in asked] == [-1, -2]

    def test_after_a_good_answer_it_costs_none(self) -> None:
        follower = pair(log_of(0, 0), log_of(0, 0), 0)
        for _ in range(2):
            follower.leader.failures[T0.key] = ErrorCode.OFFSET_OUT_OF_RANGE
            follower.step()
            follower.leader.failures.clear()
            assert follower.step()
            follower.steps(2)  # the second one is a fetch, which finds all well

    def test_an_answer_without_an_offset_costs_a_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mine = log_of(0, 0)
        follower = pair(log_of(0, 0), mine, 0)
        follower.leader.failures[T0.key] = ErrorCode.OFFSET_OUT_OF_RANGE
        follower.step()
        follower.leader.failures.clear()
        part = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=-1)
        topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[part])
        monkeypatch.setattr(follower.leader, "list_offsets", lambda request: ListOffsetsResponse(topics=[topic]))
        follower.step()
        assert mine.log_end_offset == 2
        assert not follower.step()

    def test_an_answer_without_the_partition_costs_a_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        follower = pair(log_of(0, 0), log_of(0, 0), 0)
        follower.leader.failures[T0.key] = ErrorCode.OFFSET_OUT_OF_RANGE
        follower.step()
        monkeypatch.setattr(follower.leader, "list_offsets", lambda request: ListOffsetsResponse())
        follower.step()
        assert not follower.step()

    def test_again_and_again_costs_pauses(self) -> None:
        follower = pair(log_of(0, 0, 0), log_of(0, 0), 0)

        def out_of_range() -> None:
            follower.leader.failures[T0.key] = ErrorCode.OFFSET_OUT_OF_RANGE
            follower.step()
            follower.leader.failures.clear()

        out_of_range()
        follower.steps(2)
        out_of_range()
        assert not follower.step()
        follower.now += 1.0
        assert follower.step()

    @pytest.mark.parametrize("answers", [0, 1], ids=["latest", "earliest"])
    def test_an_error_of_the_question_costs_a_pause(self, answers: int) -> None:
        leader_log, mine = log_of(0, 0, 0), log_of(0)
        leader_log.delete_before(2)
        follower = pair(leader_log, mine, 0)
        follower.steps(1 + answers)
        follower.leader.failures[T0.key] = ErrorCode.OFFSET_NOT_AVAILABLE
        follower.step()
        assert not follower.step()
        follower.leader.failures.clear()
        follower.now += 1.0
        follower.steps(4)
        assert mine.data == leader_log.data

    def test_fenced_there_it_stops(self) -> None:
        follower = pair(log_of(0), log_of(0), 0)
        follower.leader.failures[T0.key] = ErrorCode.OFFSET_OUT_OF_RANGE
        follower.step()
        follower.leader.failures[T0.key] = ErrorCode.FENCED_LEADER_EPOCH
        follower.step()
        assert follower.machine.partitions[T0.key].phase is Phase.STOPPED

    def test_many_are_asked_in_one_request_and_the_others_go_on(self) -> None:
        follower = Follower()
        mine = {name: MemoryLog() for name in (T0, T1, U0)}
        leads = {name: log_of(0, 0) for name in mine}
        for name in (T0, T1):
            leads[name].delete_before(1)
        for name, log in mine.items():
            follower.leader.lead(name, leads[name], 0)
            follower.follow(name, log, 0)
        follower.steps(4)
        asked = [request for request in follower.leader.requests if isinstance(request, ListOffsetsRequest)]
        assert [len(request.topics[0].partitions) for request in asked] == [2, 2]
        assert all(mine[name].data == leads[name].data for name in mine)

    def test_a_lost_question_is_asked_again(self) -> None:
        leader_log, mine = log_of(0, 0), MemoryLog()
        leader_log.delete_before(1)
        follower = pair(leader_log, mine, 0)
        follower.step()
        follower.poll()
        follower.machine.failed(follower.asked.pop()[0], follower.now)
        assert follower.machine.next_wakeup(follower.now) == follower.now + 1.0
        follower.now += 1.0
        follower.steps(4)
        assert mine.data == leader_log.data

    def test_what_is_added_meanwhile_does_not_hear_where_the_old_leader_begins(self) -> None:
        leader_log, mine = log_of(0, 0, 0), log_of(0)
        leader_log.delete_before(2)
        follower = pair(leader_log, mine, 0)
        follower.steps(2)
        follower.poll()
        assert follower.asked[0][2].api_key == ListOffsetsRequest.API_KEY
        follower.follow(T0, mine, 1)
        follower.step()
        assert (mine.log_start_offset, mine.log_end_offset) == (0, 1)

    def test_what_is_added_meanwhile_does_not_hear_of_it(self) -> None:
        leader_log, mine = log_of(0), log_of(0, 0)
        mine.epochs, mine.high_watermark = [], 2
        follower = pair(leader_log, mine, 0)
        follower.step()
        follower.poll()
        mine.epochs = [(0, 0)]
        follower.follow(T0, mine, 1)
        follower.step()
        assert mine.log_end_offset == 2  # the leader's end was that of another leader epoch
