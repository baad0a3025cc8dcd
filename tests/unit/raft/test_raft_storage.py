"""The machine's log on disk, against the one in memory that the simulation has, step by step; and quorums on real files."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from fastq_broker.controller import records
from fastq_broker.controller.snapshot import list_snapshots, write_snapshot
from fastq_broker.controller.storage import METADATA_TOPIC
from fastq_broker.log.files import Files
from fastq_broker.log.reserve import Reserve
from fastq_broker.log.retention import apply_retention
from fastq_broker.raft import storage
from fastq_broker.raft.log import Vote
from fastq_broker.raft.messages import BeginEpoch, EpochEnd, FetchedSnapshot, FetchSnapshot, SnapshotId
from fastq_broker.raft.storage import DiskLog, DiskVotes
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Said, Voter, VoterSet
from faulty_files import Fault, FaultyFiles
from raft_members import VALUE, Disk
from raft_setting import PLACES, Setting, T, from_leader
from raft_world import MemoryLog

from fastq._native.records import decode_records
from fastq.errors import KafkaStorageError

ME = ReplicaKey(1, b"a" * 16)
VOTERS = VoterSet([Voter(ME, {"CONTROLLER": Endpoint("h", 1)}, (0, 1))])


@contextmanager
def opened_disk(path: Path, files: Files | None = None) -> Iterator[Disk]:
    disk = Disk(path, files)
    try:
        yield disk
    finally:
        disk.close()


@contextmanager
def opened(path: Path, files: Files | None = None) -> Iterator[DiskLog]:
    with opened_disk(path / f"{METADATA_TOPIC}-0", files) as disk:
        yield disk.log


def snapshot_in(path: Path, snapshot: SnapshotId, voters: VoterSet | None = None) -> None:
    write_snapshot(
        path / f"{METADATA_TOPIC}-0" / snapshot.file_name,
        [VALUE],
        epoch=snapshot.epoch,
        timestamp_ms=5,
        last_timestamp_ms=5,
        kraft_version=None if voters is None else 1,
        voters=None if voters is None else voters.to_record(),
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_log_on_disk_is_the_log_in_memory(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    model, epoch = MemoryLog(), 0
    with opened(tmp_path) as log, opened(tmp_path / "leader") as leader:
        for _ in range(60):
            what = rng.random()
            if what < 0.25:
                epoch += rng.randrange(1, 3)
                says = rng.choice((None, None, 1))
                for side in (log, model):
                    side.append_leader_change(epoch, 1, VOTERS, [ME], says)
                if says is not None:  # there it is a record of its own, in memory it is not
                    model.append_records([b"kraft.version", b"voters"], epoch)
            elif what < 0.7:
                values = [VALUE] * rng.randrange(1, 4)
                before = len(log.read(0, 1 << 20))
                assert log.append_records(values, epoch) == len(log.read(0, 1 << 20)) - before
                model.append_records(values, epoch)
            elif what < 0.85:
                end = rng.randrange(model.start, model.end + 1)
                log.truncate(end)
                cut = log.end  # a batch goes as a whole
                assert model.start <= cut <= max(end, model.start)
                model.truncate(cut)
                epoch = max(epoch, model.last_epoch)
            assert (log.start, log.end, log.last_epoch) == (model.start, model.end, model.last_epoch)
            for asked in range(epoch + 2):
                assert log.end_of_epoch(asked) == model.end_of_epoch(asked), asked
        # And all of it again in another log, as a follower gets it.
        while leader.end < log.end:
            data = log.read(leader.end, rng.choice((1, 300, 1 << 20)))
            assert leader.append(data, epoch) == len(data)
        assert leader.read(0, 1 << 20) == log.read(0, 1 << 20)
        assert list(leader.said_from(0)) == list(log.said_from(0))


def test_what_the_log_says_of_voters(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.append_leader_change(3, 1, VOTERS, [ME], 1)
        log.append_records([VALUE], 3)
        more = VOTERS.with_voter(Voter(ReplicaKey(2, b"b" * 16), {"CONTROLLER": Endpoint("i", 2)}, (0, 1)))
        assert log.append_voters(3, more) == 4
        said = [Said(1, 1, None), Said(2, None, VOTERS), Said(4, None, more)]
        assert list(log.said_from(0)) == said and list(log.said_from(2)) == said[1:] and list(log.said_from(5)) == []


@pytest.mark.parametrize("says", [None, 1])
def test_who_leads_is_said_as_apache_kafka_reads_it(tmp_path: Path, says: int | None) -> None:
    """In version 0, whatever the kraft.version: bytes of one of its own logs, which has it."""
    with opened(tmp_path) as log:
        log.append_leader_change(3, 1, VOTERS, [ME], says)
        first = decode_records(log.read(0, 1 << 20))[0]
    assert (first.key, first.value) == (
        bytes.fromhex("00000002"),
        bytes.fromhex("0000 00000001 02 00000001 00 02 00000001 00 00"),
    )


def test_a_new_directory_says_what_it_was_formatted_with(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    snapshot_in(tmp_path, SnapshotId(0, 0), VOTERS)
    with opened(tmp_path) as log:
        assert list(log.said_from(0)) == [Said(-1, 1, VOTERS)] and list(log.said_from(1)) == []
        assert log.snapshots == [SnapshotId(0, 0)] and log.end_of_epoch(3) == EpochEnd(3, 0) and log.last_epoch == 0


@pytest.mark.parametrize("damage", ["checksum", "offset", "torn", "epoch", "rubbish"])
def test_what_is_damaged_is_not_taken(damage: str, tmp_path: Path) -> None:
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as log:
        for epoch in (1, 2):
            leader.append_leader_change(epoch, 1, VOTERS, [ME], None)
        data = bytearray(leader.read(0, 1 << 20))
        first = len(leader.read(0, 1))
        if damage == "torn":
            assert log.append(bytes(data[:-1]), 2) == first and log.end == 1
            return
        if damage == "epoch":
            assert log.append(bytes(data), 1) == first and log.end == 1
            return
        if damage == "checksum":
            data[-1] ^= 1
        elif damage == "offset":
            data = data[first:]
        else:
            data = bytearray(Random(1).randbytes(200))
        before = log.end
        try:
            log.append(bytes(data), 2)
        except ValueError:
            pass
        assert log.end == before


@pytest.mark.parametrize("partial", [0, 30])
def test_a_change_of_several_batches_of_which_a_later_one_has_no_room_is_not_there_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partial: int
) -> None:
    monkeypatch.setattr(records, "BATCH_BYTES_MAX", 2 * (len(VALUE) + records.RECORD_OVERHEAD_BYTES_MAX))
    files = FaultyFiles()
    with opened(tmp_path, files) as log:
        log.append_leader_change(1, 1, VOTERS, [ME], None)
        log.append_records([VALUE], 1)
        before = log.read(0, 1 << 20)
        files.plan(Fault("write", errno.ENOSPC, passes=2, partial=partial))
        with pytest.raises(KafkaStorageError):
            log.append_records([VALUE] * 7, 1)
        assert (log.end, log.read(0, 1 << 20)) == (2, before)
        files.heal()
        log.append_records([VALUE] * 7, 1)
        assert log.end == 9
    with opened(tmp_path) as log:
        assert log.end == 9


def test_nor_is_one_that_finds_no_memory_for_a_later_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BATCH_BYTES_MAX", 2 * (len(VALUE) + records.RECORD_OVERHEAD_BYTES_MAX))

    def two(*given: object, **options: object) -> Iterator[object]:
        yield from itertools.islice(records.data_batches(*given, **options), 2)  # type: ignore[arg-type]
        raise MemoryError

    with opened(tmp_path) as log:
        log.append_leader_change(1, 1, VOTERS, [ME], None)
        before = log.read(0, 1 << 20)
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(storage, "data_batches", two)
            log.append_records([VALUE] * 7, 1)
        assert (log.end, log.read(0, 1 << 20)) == (1, before)
        log.append_records([VALUE] * 7, 1)
        assert log.end == 8


@pytest.mark.parametrize("partial", [0, 30])
def test_an_epoch_whose_records_find_no_room_is_not_the_logs(tmp_path: Path, partial: int) -> None:
    """Who has nothing of an epoch and says that it has is elected by those who have more: what was committed is lost."""
    files = FaultyFiles()
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b", files) as log:
        leader.append_leader_change(1, 2, VOTERS, [ME], None)
        log.append(leader.read(0, 1 << 20), 1)
        leader.append_records([VALUE], 1)
        leader.append_leader_change(2, 2, VOTERS, [ME], None)
        missing = leader.read(1, 1 << 20)
        files.plan(Fault("write", errno.ENOSPC, partial=partial))
        with pytest.raises(KafkaStorageError):
            log.append(missing, 2)
        assert (log.end, log.last_epoch, log.end_of_epoch(2)) == (1, 1, EpochEnd(1, 1))
        files.heal()
        log.append(missing, 2)
        assert (log.end, log.last_epoch, log.end_of_epoch(1)) == (3, 2, EpochEnd(1, 2))
    with opened(tmp_path / "b") as log:
        assert (log.end, log.last_epoch) == (3, 2)


def test_a_snapshot_takes_the_place_of_the_log(tmp_path: Path) -> None:
    with opened(tmp_path / "a"), opened(tmp_path / "b"):
        pass
    wanted = SnapshotId(40, 7)
    snapshot_in(tmp_path / "a", wanted, VOTERS)
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as log:
        log.append_leader_change(1, 1, VOTERS, [ME], None)
        size, position = leader.snapshot_size(wanted), 0
        assert leader.snapshot_size(SnapshotId(40, 8)) == -1
        while position < size:
            data = leader.read_snapshot(wanted, position, 50)
            log.receive_snapshot(wanted, position, data)
            position += len(data)
        log.finish_snapshot(wanted)
        assert (log.start, log.end, log.last_epoch, log.snapshots) == (40, 40, 7, [wanted])
        assert list(log.said_from(0)) == [Said(39, 1, VOTERS)]
        assert log.end_of_epoch(9) == EpochEnd(7, 40) and log.end_of_epoch(6) == EpochEnd(6, 40)
        log.append_records([VALUE], 8)
    with opened(tmp_path / "b") as log:
        assert (log.start, log.end, log.last_epoch) == (40, 41, 8)


@pytest.mark.parametrize("rolls", [True, False])
def test_a_log_that_was_trimmed_knows_its_voters_after_a_restart(tmp_path: Path, rolls: bool) -> None:
    """What named them is below the log by then, and the file that the log begins in begins somewhere else."""
    path = tmp_path / f"{METADATA_TOPIC}-0"
    with opened(tmp_path) as log:
        log.append_leader_change(1, 1, VOTERS, [ME], 1)
    for _ in range(4):
        with opened_disk(path) as disk:
            disk.log.append_records([VALUE] * 3, 1)
            if rolls:
                disk.partition.roll(0)
            disk.log.append_records([VALUE] * 2, 1)
            disk.partition.sync_now()
            snapshot_in(tmp_path, SnapshotId(disk.log.end - 1, 1), VOTERS)
            for old in list_snapshots(path)[:-2]:
                (path / old.file_name).unlink()
            disk.log.snapshots_changed()
            disk.partition.delete_records_before(list_snapshots(path)[0].end_offset)
            apply_retention(disk.partition, 0)
            known = disk.log.start, disk.log.end, disk.log.last_epoch, disk.log.end_of_epoch(0)
        with opened(tmp_path) as log:
            assert [said.voters for said in log.said_from(0)] == [VOTERS]
            assert [said.kraft_version for said in log.said_from(0)] == [1]
            assert (log.start, log.end, log.last_epoch, log.end_of_epoch(0)) == known
            assert log.start in {snapshot.end_offset for snapshot in log.snapshots}
    bases = sorted(int(name[:20]) for name in os.listdir(path) if name.endswith(".log"))
    assert (0 < bases[0] < log.start) == rolls


def test_a_snapshot_that_is_cut_short_is_none(tmp_path: Path) -> None:
    with opened(tmp_path / "a"):
        pass
    wanted = SnapshotId(40, 7)
    snapshot_in(tmp_path / "a", wanted)
    whole = (tmp_path / "a" / f"{METADATA_TOPIC}-0" / wanted.file_name).read_bytes()
    with opened(tmp_path / "b") as log:
        log.append_leader_change(1, 1, VOTERS, [ME], None)
        for data in (whole[:-10], b"", whole[:60], whole[:-1] + b"?"):
            log.receive_snapshot(wanted, 0, data)
            with pytest.raises(ValueError, match="damaged"):
                log.finish_snapshot(wanted)
        assert (log.start, log.end, log.snapshots) == (0, 1, [])
        assert not list((tmp_path / "b").rglob("*.part"))
        log.receive_snapshot(wanted, 0, b"x" * 1000)  # what was begun before
        log.receive_snapshot(wanted, 0, whole)
        log.finish_snapshot(wanted)
        assert log.start == 40


@pytest.mark.parametrize("operation", ["write", "fsync", "rename", "fsync of the directory"])
def test_a_snapshot_that_finds_no_room_is_fetched_anew(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log stays as it was. After a sync that failed nobody knows what of it is on disk: not a byte of it is used again."""
    with opened(tmp_path / "a"):
        pass
    wanted = SnapshotId(40, 7)
    snapshot_in(tmp_path / "a", wanted)
    whole = (tmp_path / "a" / f"{METADATA_TOPIC}-0" / wanted.file_name).read_bytes()

    def full(*_given: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(tmp_path / "b") as log:
        log.append_leader_change(1, 1, VOTERS, [ME], None)
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            if operation == "write":
                patch.setattr(Path, "open", full)
            log.receive_snapshot(wanted, 0, whole)
            if operation == "fsync":
                patch.setattr(os, "fsync", full)
            elif operation == "rename":
                patch.setattr(Path, "rename", full)
            else:
                patch.setattr(storage, "sync_directory", full)
            log.finish_snapshot(wanted)
        assert (log.start, log.end, log.snapshots) == (0, 1, [])
        assert not list((tmp_path / "b").rglob("*.part"))
        log.receive_snapshot(wanted, 0, whole)
        log.finish_snapshot(wanted)
        assert (log.start, log.end, log.snapshots) == (40, 40, [wanted])


@pytest.mark.parametrize("removable", [True, False])
def test_a_snapshot_behind_which_the_log_cannot_begin_is_not_there(
    removable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart would take for committed what the log has below its end, which may be of a history that has lost."""
    with opened(tmp_path / "a"):
        pass
    wanted = SnapshotId(2, 7)
    snapshot_in(tmp_path / "a", wanted)
    whole = (tmp_path / "a" / f"{METADATA_TOPIC}-0" / wanted.file_name).read_bytes()
    files = FaultyFiles()
    with opened_disk(tmp_path / "b" / f"{METADATA_TOPIC}-0", files) as disk:
        log = disk.log
        log.append_leader_change(1, 1, VOTERS, [ME], None)
        log.append_records([VALUE] * 4, 1)
        files.plan(Fault("open", errno.ENOSPC))
        log.receive_snapshot(wanted, 0, whole)
        with monkeypatch.context() as patch:
            if not removable:
                patch.setattr(Path, "unlink", lambda *_given, **_named: os.stat("/nowhere"))
            with pytest.raises(KafkaStorageError, match="No space" if removable else "removing a metadata snapshot"):
                log.finish_snapshot(wanted)
        assert (disk.dir.offline is None) == removable
        assert (log.start, log.end, log.last_epoch, log.snapshots) == (0, 5, 1, [] if removable else [wanted])
        if not removable:
            return
        files.heal()
        log.receive_snapshot(wanted, 0, whole)
        log.finish_snapshot(wanted)
        assert (log.start, log.end, log.last_epoch, log.snapshots) == (2, 2, 7, [wanted])


def test_votes_are_kept_as_kafka_keeps_them(tmp_path: Path) -> None:
    version = [0]
    votes = DiskVotes(tmp_path, "cluster", lambda: version[0], lambda: [2, 1], Reserve(tmp_path, Files(), lambda: 0))
    assert votes.read() is None
    votes.write(Vote(4, -1, ME))
    assert votes.read() == Vote(4, -1, ReplicaKey(1))  # version 0 has no directories
    text = (tmp_path / "quorum-state").read_text()
    assert '"currentVoters":[{"voterId":1},{"voterId":2}]' in text and '"data_version":0' in text
    version[0] = 1
    for vote in (Vote(4, 2, ME), Vote(5), Vote(6, 3)):
        votes.write(vote)
        assert votes.read() == vote
    assert "currentVoters" not in (tmp_path / "quorum-state").read_text()


def test_a_snapshot_that_is_removed_between_two_pieces_is_fetched_from_its_begin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "a"):
        pass
    wanted = SnapshotId(40, 7)
    snapshot_in(tmp_path / "a", wanted, VOTERS)
    whole = (tmp_path / "a" / f"{METADATA_TOPIC}-0" / wanted.file_name).read_bytes()
    with opened(tmp_path / "b") as log:
        follower = Setting()
        follower.machine.log = log
        follower.machine.begin_epoch(BeginEpoch("c", 5, 2, None, {"CONTROLLER": PLACES[2]}), T)
        follower.fetched(from_leader(snapshot=wanted))
        positions = []
        for number in range(20):
            send = follower.asks()
            if not isinstance(send.ask, FetchSnapshot):
                break
            positions.append(send.ask.position)
            piece = whole[send.ask.position : send.ask.position + len(whole) // 3 + 1]
            answer = FetchedSnapshot(0, 2, 5, PLACES[2], wanted, len(whole), send.ask.position, piece)
            if number == 1:
                next((tmp_path / "b").rglob("*.part")).unlink()
            follower.machine.answered(send.link, send.ask, answer, T)
        step = len(whole) // 3 + 1
        assert positions == [0, step, 0, step, 2 * step]
        assert (log.start, log.snapshots) == (40, [wanted])
        assert "is fetched from its begin" in caplog.text


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_was_just_appended_says_who_votes_without_a_descriptor(tmp_path: Path, code: int) -> None:
    """A member acts upon a set of voters from the moment when that is in its log: it must not have to read it again."""
    files = FaultyFiles()
    two = VOTERS.with_voter(Voter(ReplicaKey(2, b"b" * 16), {"CONTROLLER": Endpoint("h", 2)}, (0, 1)))
    with opened_disk(tmp_path / "a" / f"{METADATA_TOPIC}-0", files) as disk, opened(tmp_path / "leader") as leader:

        def said(offset: int) -> list[Said]:
            for segment in disk.partition.segments:
                segment.log.release()
            fault = files.plan(Fault("open", code))
            found = list(disk.log.said_from(offset))
            assert not fault.struck
            files.heal()
            assert list(disk.log.said_from(offset)) == found == list(leader.said_from(offset))
            return found

        leader.append_leader_change(1, 1, VOTERS, [ME], 1)
        leader.append_records([VALUE], 1)
        disk.log.append(leader.read(0, 1 << 20), 1)
        assert said(0) == [Said(1, 1, None), Said(2, None, VOTERS)]
        for log in (leader, disk.log):
            log.append_voters(1, two)
        assert said(4) == [Said(4, None, two)]
        for log in (leader, disk.log):
            log.truncate(4)
            log.append_records([VALUE], 1)
        assert list(disk.log.said_from(4)) == []


def test_a_snapshot_that_takes_the_log_s_place_says_who_votes_without_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "a"):
        pass
    wanted = SnapshotId(2, 7)
    snapshot_in(tmp_path / "a", wanted, VOTERS)
    whole = (tmp_path / "a" / f"{METADATA_TOPIC}-0" / wanted.file_name).read_bytes()
    with opened(tmp_path / "b") as log:
        log.append_leader_change(1, 1, VOTERS, [ME], None)
        log.receive_snapshot(wanted, 0, whole)
        log.finish_snapshot(wanted)
        with monkeypatch.context() as patch:
            patch.setattr(storage, "read_snapshot", lambda path: pytest.fail("it is read again"))
            found = list(log.said_from(0))
        assert found == [Said(1, 1, VOTERS)]
    with opened(tmp_path / "b") as log:
        assert list(log.said_from(0)) == found
