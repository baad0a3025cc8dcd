"""New logs of a running broker: their files are made beside the loop, are those that a load makes, and count as unsynced."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastq_broker.log import LogConfig
from fastq_broker.log.files import Files
from fastq_broker.log.log_manager import LogManager
from fastq_broker.log.partition_log import PartitionLog

TOPIC_ID = bytes(range(16))
FILES = {
    "00000000000000000000.index",
    "00000000000000000000.log",
    "00000000000000000000.timeindex",
    "leader-epoch-checkpoint",
    "partition.metadata",
}


class Attached:
    """A manager on a loop of its own, which runs only when the test says so."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.directory = directory
        self.logs = LogManager([directory])
        self.logs.start()
        self.logs.attach(self.loop)

    def create(self, partition: int, epoch: int = 0) -> PartitionLog:
        log = self.logs.create("t", partition, TOPIC_ID)
        log.assign_leader_epoch(epoch)
        return log

    def let_make(self) -> None:
        """Run what was asked for up to now, to its end."""
        self.loop.run_until_complete(asyncio.sleep(0))
        assert self.logs._maker is not None
        self.logs._maker.wait()

    def content(self, partition: int) -> dict[str, bytes]:
        folder = self.directory / f"t-{partition}"
        return {name: (folder / name).read_bytes() for name in os.listdir(folder)}

    def close(self) -> None:
        self.logs.close()
        self.loop.close()


@pytest.fixture
def attached(tmp_path: Path) -> Iterator[Attached]:
    made = Attached(tmp_path / "data")
    yield made
    made.close()


def test_nothing_is_made_before_the_loop_turns(attached: Attached) -> None:
    logs = [attached.create(number) for number in range(20)]
    assert not [name for name in os.listdir(attached.directory) if name.startswith("t-")]
    attached.let_make()
    assert not any(log.unmade or log.loaded for log in logs)
    assert all(set(attached.content(number)) == FILES for number in range(20))


def test_nothing_is_made_once_the_manager_is_closed(tmp_path: Path) -> None:
    """Another process may hold the directory by then."""
    attached = Attached(tmp_path / "data")
    for number in range(20):
        attached.create(number)
    attached.logs.close()
    attached.loop.run_until_complete(asyncio.sleep(0))
    attached.loop.close()
    assert not [name for name in os.listdir(attached.directory) if name.startswith("t-")]


def test_a_touch_makes_the_same_files(attached: Attached) -> None:
    touched = attached.create(0, epoch=3)
    assert touched.log_end_offset == 0
    attached.create(1, epoch=3)
    attached.let_make()
    assert attached.content(0) == attached.content(1)
    assert attached.content(1)["leader-epoch-checkpoint"] == b"0\n1\n3 0\n"


def test_a_load_of_what_was_made_writes_nothing(attached: Attached) -> None:
    log = attached.create(0, epoch=3)
    attached.let_make()
    before = {name: os.stat(attached.directory / "t-0" / name).st_ino for name in FILES}
    log.load()
    assert (log.log_end_offset, log.leader_epoch, log.topic_id) == (0, 3, TOPIC_ID)
    assert {name: os.stat(attached.directory / "t-0" / name).st_ino for name in FILES} == before


def test_the_first_full_job_syncs_all_that_is_new(attached: Attached) -> None:
    log = attached.create(0)
    attached.let_make()
    log.load()
    assert not log.durability.settled
    synced = {os.path.basename(handle.path) for handle in log.durability._handles(full=True)[0]}
    assert synced >= {"leader-epoch-checkpoint", "partition.metadata", "t-0", "data"}


def test_a_log_deleted_before_it_was_made_leaves_nothing(attached: Attached) -> None:
    attached.create(0)
    assert attached.logs.delete("t", 0)
    attached.let_make()
    assert not [name for name in os.listdir(attached.directory) if name.startswith("t-")]


def test_what_was_not_made_is_made_at_the_next_start(tmp_path: Path) -> None:
    first = Attached(tmp_path / "data")
    first.create(0)
    first.close()
    second = Attached(tmp_path / "data")
    assert second.create(0).log_end_offset == 0
    second.close()
    assert set(second.content(0)) >= FILES


class Killed(BaseException):
    """The process is gone."""


class FilesUntil(Files):
    """The disk of a process that is killed before the file operation of this number."""

    left = -1

    def open(self, path: str, flags: int) -> int:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return super().open(path, flags)


@pytest.mark.parametrize("preallocate", [False, True])
def test_a_kill_in_the_making_of_a_log_is_no_loss_of_records(
    tmp_path: Path, preallocate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its indexes came first: the next start said with an error that its records were gone."""
    config = LogConfig(preallocate=preallocate, segment_bytes=4096)
    for left in range(12):
        files = FilesUntil()
        manager = LogManager([tmp_path / str(left)], default_config=config, files=files)
        manager.start()
        files.left = left
        try:
            log = manager.create("t", 0, TOPIC_ID)
            made = log.loaded
        except Killed:
            made = False
        manager.release_locks()
        again = LogManager([tmp_path / str(left)], default_config=config)
        again.start()
        assert again.create("t", 0, TOPIC_ID).log_end_offset == 0
        again.close()
        assert "are gone" not in caplog.text, left
    assert made


@pytest.mark.parametrize("lacking", ["to say so", "to begin a thread", "to ask the thread", "to make one"])
def test_a_log_that_there_was_no_memory_to_make_keeps_no_later_one_unmade(
    attached: Attached, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    manager, maker = attached.logs, attached.logs._maker
    assert maker is not None

    def short(*args: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        if lacking == "to say so":
            patch.setattr(maker, "_loop", SimpleNamespace(call_soon=short))
            with pytest.raises(MemoryError):
                attached.create(0)
        else:
            log = attached.create(0)
            attached.create(2)
            if lacking == "to begin a thread":
                patch.setattr(maker, "_threads", short)
            elif lacking == "to ask the thread":
                patch.setattr(maker, "_thread", SimpleNamespace(submit=short))
            else:
                patch.setattr(PartitionLog, "make", short)
            attached.let_make()
            assert log.unmade
    assert ("t", 0) in manager.logs or lacking == "to say so"
    log = attached.create(1)
    attached.let_make()
    assert not log.unmade
