"""Batches of another cluster, appended with the offsets that they have there; and what an end leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, PartitionLog
from fastq_broker.log.mirrored import append_mirrored, end_mirror
from fastq_broker.log.producer_state import BORDER_PRODUCER_ID
from fastq_broker.log.retention import apply_retention
from log_support import START_MS, StandingClock, crash, one_batch, open_manager, records_of

from fastq._native.records import CONTROL_ABORT, build_transaction_marker, iter_headers, stamp
from fastq.errors import CorruptMessage, InvalidProducerEpoch, InvalidRecord, KafkaStorageError, OffsetOutOfRange

OFFSETS_AND_EPOCH = slice(0, 16)  # of a batch: base offset, length, epoch; the checksum covers none of it
MIRRORED = LogConfig(mirror_source="A/cluster/topic")


def at(offset: int, batch: bytearray, epoch: int = 9) -> bytearray:
    """A batch as the source has it."""
    stamp(batch, 0, offset, epoch)
    return batch


def stored(log: PartitionLog) -> bytes:
    return b"".join((Path(log.path) / f"{s.base_offset:020d}.log").read_bytes() for s in log.segments)


def append(log: PartitionLog, *batches: bytearray, offset: int, leader_epoch: int = 2) -> int:
    return append_mirrored(log, bytearray(b"".join(batches)), offset=offset, leader_epoch=leader_epoch, now_ms=START_MS)


def test_batches_keep_their_offsets_gaps_and_bytes(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16), MIRRORED)
    batches = [
        at(0, one_batch([b"a", b"b"])),
        at(7, one_batch([b"c"] * 3, codec=3)),  # compaction has taken what was between
        at(10, one_batch([b"d"], producer_id=4, epoch=1, sequence=50)),
    ]
    assert append(log, *batches[:2], offset=0) == 10
    assert append(log, batches[2], offset=10) == 11
    found = stored(log)
    ours = [(h.base_offset, h.last_offset, h.partition_leader_epoch) for _, h in iter_headers(found)]
    assert ours == [(0, 1, 2), (7, 9, 2), (10, 10, 2)]
    position = 0
    for batch in batches:
        assert found[position + 16 : position + len(batch)] == batch[16:]
        position += len(batch)
    assert log.epochs.latest == 2
    entry = log.producers.get(4)
    assert entry is not None
    assert (entry.epoch, entry.next_sequence) == (1, 51)


def test_who_is_mistaken_about_the_end_writes_nothing(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16), MIRRORED)
    append(log, at(5, one_batch([b"a", b"b"])), offset=0)
    before = stored(log)
    for offset, base in ((0, 5), (6, 7), (8, 8)):
        with pytest.raises(OffsetOutOfRange, match="ends at offset 7"):
            append(log, at(base, one_batch([b"x"])), offset=offset)
    with pytest.raises(InvalidRecord, match="does not follow"):
        append(log, at(6, one_batch([b"x"])), offset=7)
    with pytest.raises(InvalidRecord, match="does not follow"):
        append(log, at(9, one_batch([b"x", b"y"])), at(10, one_batch([b"z"])), offset=7)
    broken = at(7, one_batch([b"x"]))
    broken[-1] ^= 1
    with pytest.raises(CorruptMessage):
        append(log, broken, offset=7)
    with pytest.raises(CorruptMessage):
        append(log, at(7, one_batch([b"x"]))[:-1], offset=7)
    assert (stored(log), log.log_end_offset) == (before, 7)


@pytest.mark.parametrize("base", [(1 << 62) + 1, (1 << 63) - 2, (1 << 63) - 1])
def test_offsets_that_leave_no_room_are_refused(tmp_path: Path, base: int) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16), MIRRORED)
    with pytest.raises(InvalidRecord, match=r"takes offsets up to"):
        append(log, at(0, one_batch([b"a"])), at(base, one_batch([b"b"])), offset=0)
    assert (stored(log), log.log_end_offset) == (b"", 0)
    append(log, at(1 << 62, one_batch([b"a"], producer_id=1, epoch=0, sequence=0)), offset=0)
    assert end_mirror(log, leader_epoch=2, now_ms=START_MS) == (1 << 62) + 2


@pytest.mark.parametrize("clean", [True, False])
def test_a_first_batch_far_above_the_begin_is_no_loss_to_recovery(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    first, manager = 3 << 31, open_manager(tmp_path)
    log = manager.create("t", 0, bytes(16), MIRRORED)
    append(log, at(first, one_batch([b"a"])), offset=0)
    append(log, at(first + 1, one_batch([b"b"])), offset=first + 1)
    manager.close() if clean else crash(manager)
    log = open_manager(tmp_path).get("t", 0)
    assert log is not None
    log.load()
    assert (log.log_start_offset, log.log_end_offset) == (0, first + 2)
    assert [record.getMessage() for record in caplog.records if "are gone" in record.getMessage()] == []
    assert append(log, at(first + 2, one_batch([b"c"])), offset=first + 2) == first + 3
    log.raise_start(first)  # as the mirror has it follow the source's
    assert apply_retention(log, START_MS) == 1
    assert [segment.base_offset for segment in log.segments] == [first]


def test_a_disk_without_room_for_clients_has_none_for_a_mirror_and_its_end_is_written(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16), MIRRORED)
    append(log, at(0, one_batch([b"a"], producer_id=1, epoch=0, sequence=0, transactional=True)), offset=0)
    before = stored(log)
    log.dir.close_to_clients("7 bytes are free", "Add space")
    with pytest.raises(KafkaStorageError, match="7 bytes are free") as refused:
        append(log, at(1, one_batch([b"b"])), offset=1)
    assert refused.value.retriable and stored(log) == before
    assert end_mirror(log, leader_epoch=2, now_ms=START_MS) == 3
    log.dir.open_to_clients()
    assert append(log, at(3, one_batch([b"b"])), offset=3) == 4


def test_transactions_are_what_they_are_in_the_source(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16), MIRRORED)

    def data(offset: int, producer_id: int) -> bytearray:
        return at(offset, one_batch([b"v"], producer_id=producer_id, epoch=0, sequence=0, transactional=True))

    abort = build_transaction_marker(
        CONTROL_ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=3, timestamp_ms=START_MS
    )
    append(log, data(0, 1), data(1, 2), at(2, abort), offset=0)
    assert (log.last_stable_offset, log.log_end_offset) == (1, 3)
    assert [tuple(entry) for entry in log.aborted_transactions(0, 3)] == [(1, 0, 2, 1)]


def test_an_end_aborts_what_is_open_and_forgets_the_producers(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, bytes(16), MIRRORED)
    append(
        log,
        at(0, one_batch([b"open"], producer_id=1, epoch=3, sequence=0, transactional=True)),
        at(1, one_batch([b"theirs"], producer_id=2, epoch=6, sequence=7)),
        offset=0,
    )
    assert end_mirror(log, leader_epoch=2, now_ms=START_MS) == 4
    assert end_mirror(log, leader_epoch=2, now_ms=START_MS) == 4, "done again it writes nothing"
    assert (log.last_stable_offset, len(log.producers)) == (4, 0)
    assert [(entry.producer_id, entry.first_offset) for entry in log.aborted_transactions(0, 4)] == [(1, 0)]
    markers = [(h.producer_id, h.is_control) for _, h in iter_headers(stored(log)) if h.base_offset >= 2]
    assert markers == [(1, True), (BORDER_PRODUCER_ID, True)]
    # A producer of this cluster with the same id begins anew, in whatever epoch.
    log.append(one_batch([b"ours"], producer_id=2, epoch=0, sequence=0), leader_epoch=2, now_ms=START_MS)
    crash(manager)
    for clean in (False, True):  # recovered from the records; and from the snapshot of a clean stop
        manager = open_manager(tmp_path)
        again = manager.create("t", 0, bytes(16), MIRRORED)
        again.load()
        assert [(p, entry.epoch, entry.next_sequence) for p, entry in again.producers.items()] == [(2, 0, 1)], clean
        assert again.last_stable_offset == 5
        manager.close()


def test_a_marker_of_nobody_is_refused(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16))
    with pytest.raises(InvalidProducerEpoch, match="nobody has the producer id"):
        log.append_transaction_marker(
            producer_id=BORDER_PRODUCER_ID,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=True,
            leader_epoch=0,
            now_ms=START_MS,
        )


def test_a_mirrored_log_deletes_nothing_by_itself_and_follows_its_sources_start(tmp_path: Path) -> None:
    clock = StandingClock()
    config = LogConfig(mirror_source="A/cluster/topic", retention_ms=1, retention_bytes=1, segment_bytes=200)
    log = open_manager(tmp_path, clock=clock).create("t", 0, bytes(16), config)
    for offset in range(5):
        append(log, at(offset, one_batch([b"v" * 100])), offset=offset)
    clock.advance(1_000_000)
    assert apply_retention(log, clock()) == 0
    log.raise_start(3)
    assert apply_retention(log, clock()) == 3
    assert (log.log_start_offset, log.log_end_offset) == (3, 5)
    assert [record.value for record in records_of(stored(log))] == [b"v" * 100] * 2


def test_what_is_open_below_the_start_alone_holds_nothing_back(tmp_path: Path) -> None:
    """The source had deleted the ends of the first two, if they had any; the third one is still seen."""
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, bytes(16), MIRRORED)
    other = manager.create("others", 0, bytes(16), LogConfig())

    def opened(offset: int, producer_id: int, sequence: int = 0) -> bytearray:
        return at(offset, one_batch([b"a"], producer_id=producer_id, epoch=0, sequence=sequence, transactional=True))

    append(log, opened(0, 1), opened(1, 2), opened(2, 3), opened(5, 3, 1), offset=0)
    append(log, opened(6, 2, 1), at(7, one_batch([b"there"])), offset=6)
    append(other, opened(0, 1), at(7, one_batch([b"there"])), offset=0)
    for each in (log, other):
        each.raise_start(5)
    assert [found[0] for found in log.producers.open_transactions()] == [2, 3]
    assert other.last_stable_offset == 5, "its coordinator ends it"
    for start, stable in ((6, 6), (7, 8)):
        log.raise_start(start)
        assert log.last_stable_offset == stable
    crash(manager)  # the start is forgotten: the mirror tells it again
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, bytes(16), MIRRORED)
    log.load()
    log.raise_start(7)
    assert log.last_stable_offset == 8
    manager.close()
    log = open_manager(tmp_path).create("t", 0, bytes(16), MIRRORED)
    log.load()
    assert (log.log_start_offset, log.last_stable_offset) == (7, 8)
    append(log, opened(8, 1, 1), offset=8)
    assert log.last_stable_offset == 8, "it goes on, and is open anew"
    marker = build_transaction_marker(
        CONTROL_ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=START_MS
    )
    append(log, at(9, bytearray(marker)), offset=9)
    assert log.last_stable_offset == 10


def test_a_read_in_a_gap_begins_behind_it(tmp_path: Path) -> None:
    """As a follower reads that has what is before it: a batch that it has already it could not append."""
    log = open_manager(tmp_path).create("t", 0, bytes(16), MIRRORED)
    append(log, at(0, one_batch([b"a"])), offset=0)
    append(log, at(3, one_batch([b"b"])), at(6, one_batch([b"c"])), offset=1)
    for offset, expected in ((0, [0, 3, 6]), (1, [3, 6]), (3, [3, 6]), (4, [6]), (6, [6])):
        found = log.read(offset, 10_000)
        assert [h.base_offset for _, h in iter_headers(found.read())] == expected, offset
