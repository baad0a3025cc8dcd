"""A member of a metadata quorum that is short of descriptors, memory or room: at each of its steps, in each role. It takes part again once
there is some, and has lost nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.controller import snapshots
from fastq_broker.controller.storage import METADATA_TOPIC
from fastq_broker.log import failures
from fastq_broker.log.files import passes
from fastq_broker.raft import driver as raft_driver
from fastq_broker.raft import storage
from fastq_broker.raft.log import Vote
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.raft.roles import Committed, RaftFatal
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Said, Voter, VoterSet
from faulty_files import Fault, FaultyFiles, Operation
from raft_members import LISTENER, PATIENT, VALUE, Disk, Member, led, quorum, until

from fastq.errors import KafkaStorageError

ME = ReplicaKey(1, b"a" * 16)
VOTERS = VoterSet([Voter(ME, {LISTENER: Endpoint("h", 1)}, (0, 1))])
SHORTAGES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC]


def short_of(code: int) -> KafkaStorageError:
    error = KafkaStorageError("it is short")
    error.__cause__ = OSError(code, os.strerror(code))
    return error


async def alone(path: Path) -> tuple[Member, VoterSet]:
    """The only voter of a quorum, which could have others and observers."""
    member = Member(1, path, election_timeout_s=0.02)  # nobody else stands
    port = await member.bind()
    return member, VoterSet([Voter(ReplicaKey(1), {LISTENER: Endpoint("127.0.0.1", port)})])


def has_left(member: Member) -> bool:
    return any(isinstance(news, RaftFatal) for news in member.news)


@pytest.mark.parametrize("code", SHORTAGES)
@pytest.mark.parametrize("when", ["at the start", "later"])
@pytest.mark.parametrize("what", ["its first record", "its vote"])
def test_an_only_voter_that_cannot_begin_its_epoch_tries_again(
    tmp_path: Path, what: str, when: str, code: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else can lead: brokers that follow it had no controller any more."""
    failures._places.clear()
    refused: list[None] = []
    short = [when == "at the start"]

    def append(log: storage.DiskLog, *given: Any, **named: Any) -> None:
        if short and short[0] and what == "its first record":
            refused.append(None)
            raise short_of(code)
        return append_leader_change(log, *given, **named)

    def write(votes: storage.DiskVotes, vote: Vote) -> None:
        if short[0] and what == "its vote":
            refused.append(None)
            raise OSError(code, os.strerror(code), "quorum-state")
        write_vote(votes, vote)

    append_leader_change, write_vote = storage.DiskLog.append_leader_change, storage.DiskVotes.write
    monkeypatch.setattr(storage.DiskLog, "append_leader_change", append)
    monkeypatch.setattr(storage.DiskVotes, "write", write)

    async def scenario() -> None:
        member, voters = await alone(tmp_path)
        try:
            member.start(voters)
            assert member.driver is not None
            if when == "later":
                assert member.leads
                end = member.append(3)
                await until(lambda: Committed(end) in member.news)
                short[0] = True
                member.driver.resign("is told to")
            await until(lambda: len(refused) > 2 or has_left(member))
            assert not has_left(member) and not member.leads
            short[0] = False
            await until(lambda: member.leads)
            end = member.append(2)
            await until(lambda: Committed(end) in member.news)
        finally:
            await member.stop()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    said = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert 1 <= len(said) <= 3 and not [record for record in caplog.records if record.exc_info], said


def log_that_is_to_begin_anew(path: Path, files: FaultyFiles) -> tuple[Disk, SnapshotId, bytes]:
    """A follower's log of several files, and a snapshot that its leader has."""
    with_it = path / "leader" / f"{METADATA_TOPIC}-0"
    with_it.mkdir(parents=True)
    wanted = SnapshotId(40, 7)
    storage_snapshot(with_it / wanted.file_name, wanted)
    disk = Disk(path / "follower" / f"{METADATA_TOPIC}-0", files)
    disk.log.append_leader_change(1, 1, VOTERS, [ME], 1)
    for epoch in (1, 2, 3):
        disk.log.append_records([VALUE] * 3, epoch)
        disk.partition.roll(0)
    disk.flusher.wait()
    return disk, wanted, (with_it / wanted.file_name).read_bytes()


def storage_snapshot(path: Path, snapshot: SnapshotId) -> None:
    snapshots.write_snapshot(
        path,
        [VALUE],
        epoch=snapshot.epoch,
        timestamp_ms=5,
        last_timestamp_ms=5,
        kraft_version=1,
        voters=VOTERS.to_record(),
    )


@pytest.mark.parametrize("code", SHORTAGES)
@pytest.mark.parametrize("operation", ["open", "write", "truncate", "rename", "unlink", "list"])
@pytest.mark.parametrize("lasts", [False, True])
def test_a_snapshot_that_takes_the_log_s_place_is_kept_until_the_log_begins_behind_it(
    tmp_path: Path, operation: Operation, code: int, lasts: bool
) -> None:
    """Else nothing holds what is below: the log is gone in part, and the start of a log that no snapshot reaches is refused."""
    for step in range(100):
        files = FaultyFiles()
        disk, wanted, whole = log_that_is_to_begin_anew(tmp_path / str(step), files)
        end = disk.log.end
        fault = files.plan(Fault(operation, code, passes=step, repeat=lasts))
        disk.log.receive_snapshot(wanted, 0, whole)
        try:
            disk.log.finish_snapshot(wanted)
            taken = True
        except (KafkaStorageError, OSError) as error:
            taken = False
            for_now = passes(error) if isinstance(error, KafkaStorageError) else True
            assert for_now == (disk.dir.offline is None), "who is offline for good must not wait"
        struck = fault.struck
        files.heal()
        path = disk.partition.path
        if not taken and disk.dir.offline is None and disk.partition.loaded:
            assert (disk.log.start, disk.log.end, disk.log.snapshots) == (0, end, [])
            disk.log.receive_snapshot(wanted, 0, whole)
            disk.log.finish_snapshot(wanted)
            taken = True
        if taken:
            assert (disk.log.start, disk.log.end, disk.log.snapshots) == (40, 40, [wanted])
            assert list(disk.log.said_from(0)) == [Said(39, 1, VOTERS)]
        else:
            assert Path(path, wanted.file_name).exists(), step
        again = Disk(Path(path))
        assert again.log.start in {0, *(snapshot.end_offset for snapshot in again.log.snapshots)}, step
        again.close()
        shutil.rmtree(tmp_path / str(step))
        if not struck:
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_follower_that_finds_no_descriptor_amid_what_it_fetched_goes_on_behind_it(tmp_path: Path, code: int) -> None:
    """Of a piece that goes to two segments the first part is in the log: who votes by it is known without reading it."""
    files = FaultyFiles()
    leader = Disk(tmp_path / "a" / f"{METADATA_TOPIC}-0")
    disk = Disk(tmp_path / "b" / f"{METADATA_TOPIC}-0", files)
    leader.log.append_leader_change(1, 1, VOTERS, [ME], 1)
    two = VOTERS.with_voter(Voter(ReplicaKey(2, b"b" * 16), {LISTENER: Endpoint("h", 2)}, (0, 1)))
    first = leader.log.end
    leader.log.append_voters(1, two)
    data = leader.log.read(0, 1 << 20)
    size = len(leader.log.read(0, 1))
    disk.partition.apply_config(
        disk.partition.config.__class__(**{**vars_of(disk.partition.config), "segment_bytes": size})
    )
    fault = files.plan(Fault("open", code, passes=0, path_part=f"{first:020d}"))
    with pytest.raises(KafkaStorageError) as caught:
        disk.log.append(data, 1)
    assert passes(caught.value) and disk.dir.offline is None and fault.struck
    assert disk.log.end == first
    for segment in disk.partition.segments:
        segment.log.release()
    files.plan(Fault("open", code))
    assert list(disk.log.said_from(0)) == list(leader.log.said_from(0))[:2]
    files.heal()
    disk.log.append(leader.log.read(first, 1 << 20), 1)
    assert list(disk.log.said_from(first)) == [Said(first, None, two)]
    for one in (leader, disk):
        one.close()


def vars_of(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def test_memory_that_is_short_amid_an_append_has_the_leader_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = Disk(tmp_path / "a" / f"{METADATA_TOPIC}-0")
    disk = Disk(tmp_path / "b" / f"{METADATA_TOPIC}-0")
    leader.log.append_leader_change(1, 1, VOTERS, [ME], 1)
    data = leader.log.read(0, 1 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(type(disk.partition), "append_as_follower", raises(MemoryError()))
        with pytest.raises(KafkaStorageError) as caught:
            disk.log.append(data, 1)
    assert passes(caught.value) and disk.dir.offline is None
    disk.log.append(data, 1)
    assert disk.log.end == leader.log.end
    append = type(disk.partition).append

    def short_behind(*given: Any, **named: Any) -> None:
        append(*given, **named)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(type(disk.partition), "append", short_behind)
        assert disk.log.append_voters(1, VOTERS) == disk.log.end - 1, (
            "a set of voters counts from when it is in the log"
        )
    assert list(disk.log.said_from(3)) == [Said(3, None, VOTERS)]
    for one in (leader, disk):
        one.close()


def raises(error: BaseException) -> Callable[..., Any]:
    def fails(*given: Any, **named: Any) -> Any:
        raise error

    return fails


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_snapshot_that_cannot_be_read_for_now_is_not_called_damaged(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, wanted, whole = log_that_is_to_begin_anew(tmp_path, FaultyFiles())
    disk.log.receive_snapshot(wanted, 0, whole)
    with monkeypatch.context() as patch, pytest.raises(OSError, match=os.strerror(code)):
        patch.setattr("fastq_broker.controller.snapshot.read_file", raises(OSError(code, os.strerror(code))))
        disk.log.finish_snapshot(wanted)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="memory"):
        patch.setattr("fastq_broker.controller.snapshot.read_file", raises(MemoryError()))
        disk.log.finish_snapshot(wanted)
    disk.log.finish_snapshot(wanted)
    assert disk.log.start == 40
    disk.close()


def test_a_snapshot_that_is_gone_needs_no_descriptor_to_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this a leader that was asked for it left its quorum."""
    disk, wanted, whole = log_that_is_to_begin_anew(tmp_path, FaultyFiles())
    disk.log.receive_snapshot(wanted, 0, whole)
    disk.log.finish_snapshot(wanted)
    Path(disk.partition.path, wanted.file_name).unlink()
    monkeypatch.setattr(storage, "list_snapshots", raises(OSError(errno.EMFILE, "Too many open files")))
    assert disk.log.snapshot_size(wanted) == -1 and not disk.log.snapshots
    disk.close()


@pytest.mark.parametrize("problem", [OSError(errno.EMFILE, "Too many open files"), MemoryError()], ids=repr)
def test_a_question_that_cannot_be_sent_is_as_one_that_nobody_answers(
    tmp_path: Path, problem: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one loads what it is sent with: files that have to be opened."""
    failures._places.clear()
    refused: list[None] = []
    send = raft_driver.QuorumDriver._send

    def short(driver: raft_driver.QuorumDriver, effect: Any) -> None:
        if len(refused) < 5:
            refused.append(None)
            raise problem
        send(driver, effect)

    monkeypatch.setattr(raft_driver.QuorumDriver, "_send", short)

    async def scenario() -> None:
        async with quorum(tmp_path, **PATIENT) as members:
            await until(lambda: any(member.leads for member in members) or any(map(has_left, members)))
            assert not any(map(has_left, members))
            await led(members, 5)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert len(refused) == 5
    assert 1 <= sum("cannot ask" in record.message for record in caplog.records) <= 3
