"""Appends: offsets, checks, stamps, idempotence, rolls."""

from __future__ import annotations

import contextlib
import errno
import struct
from pathlib import Path

import pytest
from fastq_broker.log import AppendResult, LogConfig, PartitionLog, admission
from fastq_broker.log.retention import apply_retention
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, StandingClock, crash, one_batch, open_manager, records_of

from fastq._native.crc32c import crc32c
from fastq._native.records import build_batch, decode_records, read_header, stamp, verify_crc
from fastq.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    MissingPackage,
    OutOfOrderSequenceNumber,
    RecordListTooLarge,
    UnsupportedCompressionType,
)

INT32_MAX = (1 << 31) - 1
DAY_MS = 86_400_000


class BegunFiles(FaultyFiles):
    """Notes of which ranges the disk is told to begin."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[int, int]] = []

    def write_range(self, fd: int, position: int, size: int, *, wait: bool = False) -> bool:
        self.begun.append((position, position + size))
        return True


def new_log(directory: Path, config: LogConfig | None = None, clock: StandingClock | None = None) -> PartitionLog:
    return open_manager(directory, config, clock=clock).create("t", 0, bytes(16))


def send(log: PartitionLog, batch: bytearray, now_ms: int = START_MS, leader_epoch: int = 0) -> AppendResult:
    return log.append(batch, leader_epoch=leader_epoch, now_ms=now_ms)


def test_offsets_are_dense_and_batches_are_stamped(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert send(log, one_batch([b"a", b"b"])) == AppendResult(0, 1, -1, 0, False)
    assert send(log, one_batch([b"c"]), leader_epoch=3) == AppendResult(2, 2, -1, 0, False)
    assert [(r.offset, r.value) for r in records_of(log.read(0, 1 << 20))] == [(0, b"a"), (1, b"b"), (2, b"c")]
    header = read_header(log.read(2, 1 << 20).read())
    assert (header.base_offset, header.partition_leader_epoch) == (2, 3)
    assert (log.log_end_offset, log.high_watermark, log.last_stable_offset) == (3, 3, 3)
    assert log.epochs.entries() == [(0, 0), (3, 2)]


def refused(log: PartitionLog, batch: bytearray, error: type[KafkaError]) -> KafkaError:
    size, end = log.size_bytes, log.log_end_offset
    with pytest.raises(error) as caught:
        send(log, batch)
    assert (log.size_bytes, log.log_end_offset) == (size, end)
    assert (caught.value.topic, caught.value.partition) == ("t", 0)
    return caught.value


def test_bad_batches_are_refused_and_leave_no_trace(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(max_message_bytes=2000, segment_bytes=1000))
    flipped = one_batch([b"value"])
    flipped[-1] ^= 1
    refused(log, flipped, CorruptMessage)
    refused(log, one_batch([b"x"])[:-3], InvalidRecord)
    refused(log, one_batch([b"a"]) + one_batch([b"b"]), InvalidRecord)
    refused(log, build_batch([(START_MS, None, b"v")], base_offset=5), InvalidRecord)
    refused(log, build_batch([(START_MS, b"\0\0\0\0", b"")], control=True), InvalidRecord)
    assert "2000" in str(refused(log, one_batch([bytes(3000)]), MessageTooLarge))
    assert "segment.bytes" in str(refused(log, one_batch([bytes(1500)]), RecordListTooLarge))
    assert send(log, one_batch([b"good"])).base_offset == 0


def test_a_compacted_topic_refuses_records_without_a_key_and_names_them(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(cleanup_policy=frozenset({"compact"})))
    for codec in (0, 1, 4):
        batch = build_batch([(START_MS, b"k", b"1"), (START_MS, None, b"2")], codec=codec)
        error = refused(log, batch, InvalidRecord)
        assert [index for index, _ in getattr(error, "record_errors")] == [1]  # noqa: B009 - set by the context


@pytest.mark.parametrize("codec", [0, 4])
def test_timestamps_outside_of_the_bounds(tmp_path: Path, codec: int) -> None:
    log = new_log(tmp_path, LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500))
    refused(log, one_batch([b"v"], timestamp_ms=START_MS + 501, codec=codec), InvalidTimestamp)
    refused(log, one_batch([b"v"], timestamp_ms=START_MS - 1001, codec=codec), InvalidTimestamp)
    send(log, one_batch([b"v"], timestamp_ms=START_MS + 500, codec=codec))
    send(log, one_batch([b"v"], timestamp_ms=START_MS - 1000, codec=codec))


def test_timestamps_of_a_batch_that_is_encoded_anew(tmp_path: Path) -> None:
    log = new_log(
        tmp_path,
        LogConfig(compression_type="lz4", message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500),
    )
    for timestamps, fault in (((-1001, 0), 0), ((0, 501), 1)):  # what the header says of them is within the bounds
        records = [(START_MS + ms, b"k", b"v") for ms in timestamps]
        for codec in (0, 1, 4):
            error = refused(log, build_batch(records, codec=codec, max_timestamp=START_MS), InvalidTimestamp)
            assert [index for index, _ in getattr(error, "record_errors")] == [fault]  # noqa: B009 - set by the context
    for claimed in (START_MS - 99, START_MS + 99, -1):
        for codec in (0, 1, 4):
            batch = build_batch(
                [(START_MS, b"k", b"1"), (START_MS + 7, b"k", b"2")], codec=codec, max_timestamp=claimed
            )
            offset = send(log, batch).base_offset
            raw = log.read(offset, 10_000).read()
            assert (read_header(raw).codec, read_header(raw).max_timestamp, verify_crc(raw)) == (3, START_MS + 7, True)
            assert [record.timestamp_ms for record in decode_records(raw)] == [START_MS, START_MS + 7]
    assert log.largest_timestamp() == START_MS + 7


def test_log_append_time_is_stamped_with_a_valid_checksum(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    result = send(log, one_batch([b"a", b"b"], timestamp_ms=5), now_ms=START_MS + 9)
    assert result.log_append_time_ms == START_MS + 9
    raw = log.read(0, 1000).read()
    header = read_header(raw)
    assert (header.timestamp_type, header.max_timestamp, verify_crc(raw)) == (1, START_MS + 9, True)
    assert {record.timestamp_ms for record in decode_records(raw)} == {START_MS + 9}


def test_a_wrong_maximum_timestamp_is_corrected(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    send(log, build_batch([(START_MS, None, b"v")], max_timestamp=START_MS + 99))
    raw = log.read(0, 1000).read()
    assert (read_header(raw).max_timestamp, verify_crc(raw)) == (START_MS, True)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("claimed", [-1, START_MS - 1, -5])
def test_a_largest_timestamp_that_a_compressed_batch_cannot_have_is_corrected(
    tmp_path: Path, codec: int, claimed: int
) -> None:
    log = new_log(tmp_path, LogConfig(message_timestamp_after_max_ms=500))
    rows = [(START_MS, b"k", b"1"), (START_MS + 7, b"k", b"2")]
    send(log, build_batch(rows, codec=codec, max_timestamp=claimed))
    raw = log.read(0, 10_000).read()
    assert (read_header(raw).codec, read_header(raw).max_timestamp, verify_crc(raw)) == (codec, START_MS + 7, True)
    assert log.largest_timestamp() == START_MS + 7
    found = log.timestamp_query(START_MS + 3).run()
    assert found is not None and found.offset == 1
    error = refused(log, build_batch([(START_MS + 501, b"k", b"v")], codec=codec, max_timestamp=-1), InvalidTimestamp)
    assert [index for index, _ in getattr(error, "record_errors")] == [0]  # noqa: B009 - set by the context
    send(log, build_batch([(-1, b"k", b"v")], codec=codec))  # a record without a time, as its batch says
    assert read_header(log.read(2, 10_000).read()).max_timestamp == -1


def test_records_without_a_largest_timestamp_are_kept_as_long_as_others(tmp_path: Path) -> None:
    clock = StandingClock()
    log = new_log(tmp_path, LogConfig(retention_ms=7 * DAY_MS, segment_ms=1 << 60), clock)
    send(log, one_batch([b"v"]))
    for _ in range(9):
        now_ms = clock.advance(DAY_MS)
        send(log, build_batch([(now_ms, b"k", b"v")], codec=1, max_timestamp=-1), now_ms)
    assert apply_retention(log, clock.now_ms) == 0
    assert (log.log_start_offset, log.log_end_offset) == (0, 10)


def test_a_count_that_no_codec_could_hold_is_looked_at(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for codec in (1, 2, 3, 4):
        batch = build_batch([(START_MS, b"k", b"v")], codec=codec)
        for count in (9 * len(batch), INT32_MAX):
            struct.pack_into(">i", batch, 23, count - 1)
            struct.pack_into(">i", batch, 57, count)
            struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
            assert "fewer than the header says" in str(refused(log, batch, InvalidRecord))
    dense = [(START_MS, None, None)] * 100_000  # as densely as it goes
    for codec in (1, 2, 3, 4):
        send(log, build_batch(dense, codec=codec))
    assert log.log_end_offset == 4 * len(dense)


def without_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> bytes:
        raise MissingPackage("zstd is not installed", hint="install it")

    monkeypatch.setattr(admission, "decompress", missing)


def test_what_has_no_credible_count_and_cannot_be_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(tmp_path)
    without_codecs(monkeypatch)
    send(log, one_batch([b"v"], codec=4))
    for claimed in (START_MS, -1):
        batch = build_batch([(START_MS, b"k", b"v")], codec=4, max_timestamp=claimed)
        struct.pack_into(">i", batch, 23, INT32_MAX - 1)
        struct.pack_into(">i", batch, 57, INT32_MAX)
        struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
        error = refused(log, batch, UnsupportedCompressionType)
        assert f"{INT32_MAX} records in {len(batch)} bytes" in str(error) and "install it" in str(error)


@pytest.mark.parametrize("claimed", [-1, START_MS - 1, -5])
@pytest.mark.parametrize("first_ms", [START_MS, START_MS + 400, START_MS - 5000, -1])
def test_a_batch_without_a_largest_timestamp_that_cannot_be_opened_has_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claimed: int, first_ms: int
) -> None:
    log = new_log(tmp_path, LogConfig(message_timestamp_after_max_ms=500))
    without_codecs(monkeypatch)
    send(log, one_batch([b"v"]))
    batch = build_batch([(first_ms, b"k", b"1"), (first_ms + 7, b"k", b"2")], codec=1, max_timestamp=claimed)
    believed = claimed >= max(first_ms, 0)
    offset = send(log, batch).base_offset
    raw = log.read(offset, 10_000).read()
    largest = claimed if believed else max(first_ms, START_MS) if first_ms >= 0 else -1
    assert (read_header(raw).max_timestamp, verify_crc(raw)) == (largest, True)
    assert [record.timestamp_ms for record in decode_records(raw)] == [first_ms, first_ms + 7]
    assert log.largest_timestamp() == max(largest, START_MS)
    refused(log, build_batch([(START_MS + 501, b"k", b"v")], codec=1, max_timestamp=-1), InvalidTimestamp)


def test_compression_type_of_the_topic(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(compression_type="zstd"))
    values = [b"same again " * 20] * 5
    for codec in (0, 1, 2, 3, 4):
        send(log, one_batch(values, codec=codec))
        raw = log.read(log.log_end_offset - 1, 10_000).read()
        assert (read_header(raw).codec, verify_crc(raw)) == (4, True)
        assert [record.value for record in decode_records(raw)] == values


class TestIdempotence:
    def test_the_last_five_batches_are_recognised(self, tmp_path: Path) -> None:
        log = new_log(tmp_path)
        for sequence in range(7):
            send(log, one_batch([b"v"], producer_id=9, epoch=0, sequence=sequence))
        for sequence in range(2, 7):
            result = send(log, one_batch([b"v"], producer_id=9, epoch=0, sequence=sequence))
            assert (result.base_offset, result.last_offset, result.duplicate) == (sequence, sequence, True)
        with pytest.raises(OutOfOrderSequenceNumber):
            send(log, one_batch([b"v"], producer_id=9, epoch=0, sequence=1))
        assert log.log_end_offset == 7

    def test_gaps_epochs_and_unknown_producers(self, tmp_path: Path) -> None:
        log = new_log(tmp_path)
        send(log, one_batch([b"v"], producer_id=9, epoch=1, sequence=40))  # unknown: any sequence
        with pytest.raises(OutOfOrderSequenceNumber, match="expected sequence 41, got 43"):
            send(log, one_batch([b"v"], producer_id=9, epoch=1, sequence=43))
        with pytest.raises(InvalidProducerEpoch):
            send(log, one_batch([b"v"], producer_id=9, epoch=0, sequence=41))
        with pytest.raises(OutOfOrderSequenceNumber, match="expected sequence 0"):
            send(log, one_batch([b"v"], producer_id=9, epoch=2, sequence=41))
        assert send(log, one_batch([b"v"], producer_id=9, epoch=2, sequence=0)).base_offset == 1

    def test_sequences_wrap_at_int32(self, tmp_path: Path) -> None:
        log = new_log(tmp_path)
        send(log, one_batch([b"a", b"b", b"c"], producer_id=9, epoch=0, sequence=INT32_MAX - 1))  # MAX-1, MAX, 0
        assert send(log, one_batch([b"d"], producer_id=9, epoch=0, sequence=1)).base_offset == 3
        again = send(log, one_batch([b"a", b"b", b"c"], producer_id=9, epoch=0, sequence=INT32_MAX - 1))
        assert (again.base_offset, again.duplicate) == (0, True)
        send(log, one_batch([b"v"], producer_id=10, epoch=0, sequence=INT32_MAX))
        assert send(log, one_batch([b"v"], producer_id=10, epoch=0, sequence=0)).base_offset == 5

    def test_duplicates_are_recognised_after_a_clean_restart(self, tmp_path: Path) -> None:
        manager = open_manager(tmp_path)
        log = manager.create("t", 0, bytes(16))
        for sequence in range(6):
            send(log, one_batch([b"v"], producer_id=9, epoch=0, sequence=sequence))
        manager.close()
        manager = open_manager(tmp_path)
        reopened = manager.get("t", 0)
        assert reopened is not None
        for sequence in range(1, 6):  # the snapshot has only the last one, the log's tail the others
            assert send(reopened, one_batch([b"v"], producer_id=9, epoch=0, sequence=sequence)).base_offset == sequence
        assert send(reopened, one_batch([b"v"], producer_id=9, epoch=0, sequence=6)).duplicate is False

    def test_a_forgotten_producer_may_go_on(self, tmp_path: Path) -> None:
        clock = StandingClock()
        manager = open_manager(
            tmp_path, clock=clock, producer_expiration_ms=1000, producer_expiration_check_interval_ms=10
        )
        log = manager.create("t", 0, bytes(16))
        send(log, one_batch([b"v"], producer_id=9, epoch=0, sequence=0))
        clock.advance(999)
        manager.tick()
        assert len(log.producers) == 1
        clock.advance(11)
        manager.tick()
        assert len(log.producers) == 0
        assert send(log, one_batch([b"v"], producer_id=9, epoch=0, sequence=7), clock()).base_offset == 1


class TestRolls:
    def test_by_size(self, tmp_path: Path) -> None:
        size = len(one_batch([b"v"]))
        log = new_log(tmp_path, LogConfig(segment_bytes=3 * size))
        for _ in range(7):
            send(log, one_batch([b"v"]))
        assert [segment.base_offset for segment in log.segments] == [0, 3, 6]

    def test_by_time_of_the_records_less_the_jitter(self, tmp_path: Path) -> None:
        log = new_log(tmp_path, LogConfig(segment_ms=1000, segment_jitter_ms=0))
        send(log, one_batch([b"v"], timestamp_ms=START_MS))
        send(log, one_batch([b"v"], timestamp_ms=START_MS + 1000))
        assert len(log.segments) == 1
        send(log, one_batch([b"v"], timestamp_ms=START_MS + 1001))
        assert [segment.base_offset for segment in log.segments] == [0, 2]
        jittered = new_log(tmp_path / "jitter", LogConfig(segment_ms=1000, segment_jitter_ms=500))
        assert 0 <= jittered.active_segment.roll_jitter_ms < 500

    def test_by_the_broker_s_clock_without_timestamps(self, tmp_path: Path) -> None:
        log = new_log(tmp_path, LogConfig(segment_ms=1000))
        send(log, one_batch([b"v"], timestamp_ms=-1))
        created = log.active_segment.created_ms
        send(log, one_batch([b"v"], timestamp_ms=-1), now_ms=created + 1000)
        assert len(log.segments) == 1
        send(log, one_batch([b"v"], timestamp_ms=-1), now_ms=created + 1001)
        assert len(log.segments) == 2

    def test_by_a_full_index(self, tmp_path: Path) -> None:
        log = new_log(tmp_path, LogConfig(index_interval_bytes=0, segment_index_bytes=10 * 8))
        for _ in range(13):
            send(log, one_batch([b"v"], timestamp_ms=START_MS))
        assert [segment.base_offset for segment in log.segments] == [0, 11]

    def test_by_an_offset_too_far_from_the_base(self, tmp_path: Path) -> None:
        log = new_log(tmp_path)
        for offset in (0, INT32_MAX, INT32_MAX + 1):
            batch = build_batch([(START_MS, None, b"v")], base_offset=offset)
            log.append_as_follower(batch, now_ms=START_MS)
        assert [segment.base_offset for segment in log.segments] == [0, INT32_MAX + 1]
        assert records_of(log.read(INT32_MAX, 1000))[0].offset == INT32_MAX


class TestFollower:
    def test_takes_batches_as_they_are(self, tmp_path: Path) -> None:
        leader = new_log(tmp_path / "leader")
        for number in range(20):
            send(leader, one_batch([b"v%d" % number]), leader_epoch=number // 8)
        follower = new_log(tmp_path / "follower")
        raw = leader.read(0, 1 << 20).read()
        assert follower.append_as_follower(raw, now_ms=START_MS) == 20
        assert follower.read(0, 1 << 20).read() == raw
        assert follower.epochs.entries() == leader.epochs.entries() == [(0, 0), (1, 8), (2, 16)]

    def test_has_the_disk_begin_with_what_it_catches_up_with(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fastq_broker.log.segment.WRITE_BACK_BYTES", 1000)
        files = BegunFiles()
        manager = open_manager(tmp_path, files=files)
        log = manager.create("t", 0, bytes(16))

        def fetched(*sizes: int) -> None:
            for size in sizes:
                batch = build_batch([(START_MS, None, bytes(size - 70))], base_offset=log.log_end_offset)
                log.append_as_follower(batch, now_ms=START_MS)

        fetched(600)
        manager.flusher.wait()
        assert not files.begun, "too little to tell the disk of"
        fetched(600, 600, 1100)  # while it is being told of the first two, of nothing else
        first = log.segments[0].log.size
        manager.flusher.wait()
        fetched(100)
        manager.flusher.wait()
        assert [begin for begin, _ in files.begun] == [0, files.begun[0][1]]
        assert files.begun[1][1] > first > files.begun[0][1] >= 1000
        log.truncate_to(1)
        fetched(1100)
        manager.flusher.wait()
        assert len(files.begun) == 2, "what is written again after a truncation is the kernel's to write back"

    def test_is_written_in_pieces_where_others_go_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fastq_broker.log.files.PIECE_BYTES", 4096)
        leader, files = new_log(tmp_path / "leader"), FaultyFiles()
        for number in range(5):
            send(leader, one_batch([b"%d" % number * 8000]))
        raw = leader.read(0, 1 << 20).read()
        writes = {}
        for gently in (False, True):
            follower = open_manager(tmp_path / str(gently), files=files).create("t", 0, bytes(16))
            before = files.calls["write"]
            assert follower.append_as_follower(raw, now_ms=START_MS, gently=gently) == 5
            writes[gently] = files.calls["write"] - before
            assert follower.read(0, 1 << 20).read() == raw
        assert writes[True] - writes[False] == -(-len(raw) // 4096) - 1

    def test_pieces_of_which_one_fails_are_taken_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fastq_broker.log.files.PIECE_BYTES", 4096)
        leader, files = new_log(tmp_path / "leader"), FaultyFiles()
        send(leader, one_batch([b"v" * 50_000]))
        raw = leader.read(0, 1 << 20).read()
        follower = open_manager(tmp_path / "follower", files=files).create("t", 0, bytes(16))
        files.plan(Fault("write", errno.ENOSPC, ".log", passes=3, partial=10, repeat=False))
        with pytest.raises(KafkaStorageError):
            follower.append_as_follower(raw, now_ms=START_MS, gently=True)
        assert (follower.log_end_offset, Path(follower.segments[0].log.path).stat().st_size) == (0, 0)
        assert follower.append_as_follower(raw, now_ms=START_MS, gently=True) == 1
        assert follower.read(0, 1 << 20).read() == raw

    def test_refuses_what_does_not_follow(self, tmp_path: Path) -> None:
        log = new_log(tmp_path)
        log.append_as_follower(build_batch([(1, None, b"v")], base_offset=3), now_ms=START_MS)
        with pytest.raises(InvalidRecord, match="does not follow"):
            log.append_as_follower(build_batch([(1, None, b"v")], base_offset=3), now_ms=START_MS)
        bad = build_batch([(1, None, b"v")], base_offset=4)
        bad[-1] ^= 1
        with pytest.raises(CorruptMessage):
            log.append_as_follower(bad, now_ms=START_MS)
        with pytest.raises(CorruptMessage):
            log.append_as_follower(build_batch([(1, None, b"v")], base_offset=4)[:-1], now_ms=START_MS)

    def test_writes_nothing_of_a_fetch_with_a_bad_batch(self, tmp_path: Path) -> None:
        log = new_log(tmp_path)
        good, bad = (build_batch([(1, None, b"v")], base_offset=offset) for offset in (0, 1))
        bad[-1] ^= 1
        with pytest.raises(CorruptMessage, match="offset 1"):
            log.append_as_follower(good + bad, now_ms=START_MS)
        assert (log.log_end_offset, log.size_bytes) == (0, 0)

    def test_writes_what_goes_to_one_segment_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = new_log(tmp_path, LogConfig(segment_bytes=1000))
        batches = [build_batch([(1, None, b"v" * 100)], base_offset=offset) for offset in range(20)]
        written: list[int] = []
        write_all = log.files.write_all
        monkeypatch.setattr(
            log.files, "write_all", lambda fd, data, at: (written.append(len(data)), write_all(fd, data, at))
        )
        log.append_as_follower(b"".join(batches), now_ms=START_MS)
        size = len(batches[0])
        assert [segment.size for segment in log.segments] == [5 * size] * 4
        assert [length for length in written if length >= size] == [5 * size] * 4
        assert b"".join(log.read(offset, 1 << 20).read() for offset in (0, 5, 10, 15)) == b"".join(batches)

    def test_takes_a_marker_whose_transaction_compaction_has_taken(self, tmp_path: Path) -> None:
        log = new_log(tmp_path)
        empty = build_batch(
            [], base_offset=7, producer_id=1, producer_epoch=0, transactional=True, control=True, last_offset_delta=0
        )
        assert log.append_as_follower(empty, now_ms=START_MS) == 8

    def test_forgets_an_epoch_that_began_at_its_end(self, tmp_path: Path) -> None:
        """Else a leader that has never written would ask to be told of its own epoch, and hear of a divergence, for ever."""
        log = new_log(tmp_path)
        log.append_as_follower(build_batch([(1, None, b"v")], leader_epoch=3), now_ms=START_MS)
        log.assign_leader_epoch(5)
        assert not log.truncate_to(1)
        assert (log.epochs.entries(), log.leader_epoch, log.log_end_offset) == ([(3, 0)], 3, 1)


def test_listeners_hear_of_each_append(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    ends: list[int] = []

    def listener(moved: PartitionLog) -> None:
        ends.append(moved.high_watermark)

    log.on_advance(listener)
    send(log, one_batch([b"a"]))
    send(log, one_batch([b"a", b"b"]))
    log.remove_listener(listener)
    send(log, one_batch([b"a"]))
    assert ends == [1, 3]


def test_leader_epochs_end_where_the_next_begins(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, bytes(16))
    for epoch in (1, 1, 4, 9):
        send(log, one_batch([b"v"]), leader_epoch=epoch)
    expected = {-1: (-1, -1), 0: (0, 0), 1: (1, 2), 2: (1, 2), 4: (4, 3), 8: (4, 3), 9: (9, 4), 10: (-1, -1)}
    assert {epoch: log.epoch_end_offset(epoch) for epoch in expected} == expected
    crash(manager)
    reopened = open_manager(tmp_path).get("t", 0)
    assert reopened is not None and reopened.epochs.entries() == [(1, 0), (4, 2), (9, 3)]


@pytest.mark.parametrize("follower", [False, True])
@pytest.mark.parametrize("before", range(6))
def test_an_append_that_could_not_look_at_the_time_index_leaves_no_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: int, follower: bool
) -> None:
    """The map of it has been closed for another file, there is no descriptor to open it again, and an index entry is due."""
    files = FaultyFiles()
    size = len(one_batch([b"v"]))
    config = LogConfig(index_interval_bytes=2 * size)
    manager = open_manager(tmp_path, config, files=files)
    log = manager.create("t", 0, bytes(16))

    def add(count: int, timestamp_ms: int) -> None:
        batches = [one_batch([b"v"], timestamp_ms=timestamp_ms + number) for number in range(count)]
        if follower:
            for number, batch in enumerate(batches):
                stamp(batch, 0, log.log_end_offset + number, 0)
            log.append_as_follower(b"".join(batches), now_ms=START_MS)
        else:
            for batch in batches:
                send(log, batch)

    add(8, START_MS)
    assert manager.close()
    manager = open_manager(tmp_path, config, files=files)
    log = manager.create("t", 0, bytes(16))
    add(before, START_MS + 100)
    log.active_segment.time_index.release()
    files.plan(Fault("open", errno.EMFILE, ".timeindex"))
    end = log.log_end_offset
    with contextlib.suppress(KafkaStorageError):
        add(4, START_MS + 1_000)
    files.heal()
    assert log.dir.offline is None
    assert log.log_end_offset >= end
    latest = START_MS + 1_000 if log.log_end_offset > end else START_MS + 100
    assert log.active_segment.largest_timestamp() < latest + 100
    assert manager.close()
    caplog.clear()
    log = open_manager(tmp_path, config, files=files).create("t", 0, bytes(16))
    log.load()
    index, times = log.active_segment.index, log.active_segment.time_index
    assert index.last()[1] < log.active_segment.size and times.last()[0] < latest + 100
    assert len(set(index.entries())) == index.entry_count == len({position for _, position in index.entries()})
    assert not caplog.records
