"""A member of a quorum whose log a shortage has left half cut: it takes no part until the log is whole, and is not gone."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.controller.storage import METADATA_TOPIC
from fastq_broker.log import PartitionLog, partition_log, truncation
from fastq_broker.log.log_dir import system_monotonic_ms
from fastq_broker.raft import storage
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.raft.roles import Committed, LoadSnapshot, RaftFatal
from faulty_files import Fault, FaultyFiles
from raft_members import PATIENT, VALUE, led, quorum, snapshot_at, until, without_log
from test_raft_storage import ME, VOTERS, opened_disk, snapshot_in

from fastq.errors import KafkaStorageError


class Shortage:
    """Keeps cuts from being finished, while it lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lasts, self.met = False, 0
        whole = truncation.load_producers

        def load(log: Any, *given: Any) -> None:
            if self.lasts and log.topic == METADATA_TOPIC:
                self.met += 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), log.path)
            whole(log, *given)

        monkeypatch.setattr(truncation, "load_producers", load)
        monkeypatch.setattr("fastq_broker.log.half_done.RETRY_MS", 50)


def test_a_log_that_begins_anew_behind_a_snapshot_does_so_after_the_shortage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortage = Shortage(monkeypatch)

    async def scenario() -> None:
        async with quorum(tmp_path, **PATIENT) as members:
            leader, end = await led(members, 10)
            empty = next(member for member in members if member is not leader)
            voters = without_log(empty)
            snapshot = snapshot_at(leader, end)
            shortage.lasts = True
            empty.start(voters)
            empty.disk.dir.monotonic_ms = system_monotonic_ms
            await until(lambda: shortage.met > 2)
            assert empty.disk.dir.offline is None and not empty.driver.closed  # type: ignore[union-attr]
            assert not [news for news in empty.news if isinstance(news, RaftFatal)]
            shortage.lasts = False
            end = leader.append(5)
            await until(lambda: Committed(end) in empty.news or any(isinstance(it, RaftFatal) for it in empty.news))
            assert LoadSnapshot(snapshot) in empty.news and Committed(end) in empty.news
            assert (empty.disk.log.start, empty.disk.log.end) == (snapshot.end_offset, end)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_follower_that_is_to_cut_its_log_waits_for_the_shortage_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortage = Shortage(monkeypatch)

    async def scenario() -> None:
        async with quorum(tmp_path, **PATIENT) as members:
            leader, end = await led(members, 10)
            other = next(member for member in members if member is not leader)
            assert other.driver is not None
            epoch, voters = other.driver.machine.epoch, other.driver.machine.voters
            other.driver.close()
            other.driver = None
            other.disk.log.append_records([VALUE] * 3, epoch)  # what a leader of this epoch never wrote
            other.disk.close()
            other.news.clear()
            shortage.lasts = True
            other.start(voters)
            other.disk.dir.monotonic_ms = system_monotonic_ms
            await until(lambda: shortage.met > 0)
            assert other.disk.dir.offline is None and not other.driver.closed
            shortage.lasts = False
            end = leader.append(5)
            await until(lambda: all(Committed(end) in member.news for member in members))
            logs = {member.disk.log.read(0, 1 << 20) for member in members}
            assert len(logs) == 1
            assert not [news for member in members for news in member.news if isinstance(news, RaftFatal)]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_half_a_change_goes_before_the_next_one_after_a_shortage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the directory offline."""
    from fastq_broker.raft import storage

    files = FaultyFiles()
    with opened_disk(tmp_path / f"{METADATA_TOPIC}-0", files) as disk:
        log = disk.log
        log.append_leader_change(1, 1, VOTERS, [ME], None)
        end, epoch = log.end, log.last_epoch
        whole = storage.data_batches

        def in_two(values: Any, **settings: Any) -> Any:
            yield from whole(values[:1], **settings)
            files.plan(Fault("write", errno.ENOSPC))
            files.plan(Fault("list", errno.EMFILE))
            files.plan(Fault("open", errno.EMFILE))
            yield from whole(values[1:], **settings)

        monkeypatch.setattr(storage, "data_batches", in_two)
        with pytest.raises(KafkaStorageError):
            log.append_records([VALUE] * 4, 1)
        assert disk.dir.offline is None
        with pytest.raises(KafkaStorageError):
            _ = log.end
        files.heal()
        disk.dir.monotonic_ms = system_monotonic_ms
        assert (log.end, log.last_epoch) == (end, epoch)
        monkeypatch.setattr(storage, "data_batches", whole)
        log.append_records([VALUE] * 2, 1)
        assert log.end == end + 2


@pytest.mark.parametrize("kept", [True, False])
def test_a_snapshot_stays_where_the_log_is_half_cut_for_it(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken away, and the log began behind nothing."""
    wanted = SnapshotId(2, 7)
    with opened_disk(tmp_path / "a" / f"{METADATA_TOPIC}-0"):
        snapshot_in(tmp_path / "a", wanted)
    data = (tmp_path / "a" / f"{METADATA_TOPIC}-0" / wanted.file_name).read_bytes()
    shortage = Shortage(monkeypatch)
    path = tmp_path / "b" / f"{METADATA_TOPIC}-0"
    files = FaultyFiles()
    with opened_disk(path, files) as disk:
        log = disk.log
        log.append_leader_change(1, 1, VOTERS, [ME], None)
        log.append_records([VALUE] * 4, 1)
        log.receive_snapshot(wanted, 0, data)
        with monkeypatch.context() as patch, pytest.raises(KafkaStorageError):
            if kept:
                shortage.lasts = True
            else:  # it cannot be taken away either

                def short(*_given: Any, **_named: Any) -> None:
                    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

                files.plan(Fault("list", errno.EMFILE))
                patch.setattr(Path, "unlink", short)
            log.finish_snapshot(wanted)
        assert disk.dir.offline is None and log.snapshots == [wanted]
        shortage.lasts = False
        files.heal()
        disk.dir.monotonic_ms = system_monotonic_ms
        assert (log.start, log.end, log.last_epoch, log.snapshots) == (2, 2, 7, [wanted])


def test_nobody_hears_of_half_a_change_that_a_load_finds_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is alone commits what is on disk: that half was committed, and cut off then."""
    with opened_disk(tmp_path / f"{METADATA_TOPIC}-0") as disk:
        log = disk.log
        log.append_leader_change(1, 1, VOTERS, [ME], None)
        disk.flusher.wait()
        end, whole = log.end, storage.data_batches
        heard: list[tuple[int, int]] = []
        disk.log._log.on_advance(lambda moved: heard.append((moved.log_end_offset, moved.durable_end)))

        def in_two(values: Any, **settings: Any) -> Any:
            yield from whole(values[:1], **settings)
            patch.setattr(PartitionLog, "_advance_end", raises_memory_error)
            patch.setattr(partition_log, "truncate_log", once)
            yield from whole(values[1:], **settings)

        def once(*_given: Any) -> None:
            patch.undo()
            raise MemoryError

        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(storage, "data_batches", in_two)
            log.append_records([VALUE] * 4, 1)
        disk.dir.monotonic_ms = system_monotonic_ms
        assert (log.end, disk.dir.offline) == (end, None)
        disk.flusher.wait()
        assert all(durable <= end for _, durable in heard), heard


def raises_memory_error(*_given: Any, **_named: Any) -> None:
    raise MemoryError
