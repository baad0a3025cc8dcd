"""The manager: start and stop of many logs, several directories, deletion, retention, background work."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fastq_broker.controller.storage import write_file
from fastq_broker.log import LogConfig, LogManager
from fastq_broker.log.files import Files
from faulty_files import Fault, FaultyFiles
from forgetful_disk import ForgetfulFiles
from log_support import START_MS, TOPIC_ID, StandingClock, crash, found_at, one_batch, open_manager, records_of

from fastq.errors import ConfigError, KafkaStorageError, OffsetOutOfRange, PolicyViolation

SIZE = len(one_batch([b"v"]))


def test_many_partitions_start_without_being_opened(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    for partition in range(300):
        manager.create("t", partition, TOPIC_ID)
    log = manager.get("t", 7)
    assert log is not None
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    manager.close()
    files = FaultyFiles()
    manager = open_manager(tmp_path, files=files)
    assert len(manager.logs) == 300
    assert files.calls["open"] <= 5  # the checkpoints, and the directory, which is synced without its marker
    for partition in range(300):
        known = manager.create("t", partition, TOPIC_ID, LogConfig())
        known.assign_leader_epoch(3)
        assert not known.loaded
    assert files.calls["open"] <= 5 + 300  # and one topic id each
    log = manager.logs["t", 7]
    assert (log.log_end_offset, log.leader_epoch, log.epochs.entries()) == (1, 3, [(0, 0), (3, 1)])
    manager.close()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text().startswith("0\n300\n")
    assert "t 7 1\n" in (tmp_path / "recovery-point-offset-checkpoint").read_text()


@pytest.mark.skipif(
    not os.path.exists("/proc/self/fd"), reason="the system does not tell which files a process has open"
)
@pytest.mark.parametrize("end", ["close", "abandon"])
def test_one_that_has_ended_holds_no_files(tmp_path: Path, end: str) -> None:
    manager = open_manager(tmp_path, LogConfig(segment_bytes=200, index_interval_bytes=1))
    log = manager.create("t", 0, TOPIC_ID)
    for number in range(9):
        log.append(one_batch([b"%d" % number * 50]), leader_epoch=0, now_ms=START_MS)
        assert found_at(log, 0) is not None

    def held() -> list[str]:
        links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
        return [
            target
            for link in links
            if os.path.lexists(link) and (target := os.readlink(link)).startswith(str(tmp_path))
        ]

    assert len(held()) > 9
    getattr(manager, end)()
    assert not held()


def test_after_a_loss_of_power_no_start_is_clean(tmp_path: Path) -> None:
    """A marker that came back would have what was never synced taken for whole."""
    root = tmp_path / "data"
    open_manager(root).close()
    files = ForgetfulFiles()
    files.all_on_disk(root)
    log = open_manager(root, files=files).create("t", 0, TOPIC_ID)
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    files.lose_power(root, tmp_path / "left")
    assert not (tmp_path / "left" / ".kafka_cleanshutdown").exists()


def test_a_directory_serves_one_broker(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    with pytest.raises(ConfigError, match=r"^another process holds the lock"):
        open_manager(tmp_path)
    manager.close()
    open_manager(tmp_path).close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are no record locks of an open file")
def test_a_directory_of_ours_is_none_of_apache_kafkas(tmp_path: Path) -> None:
    """Java's FileLock is a record lock: each kept away its own kind only, and both could write to the same logs."""
    program = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", program + "; print(); sys.stdin.read()", str(tmp_path / ".lock")]
    manager = open_manager(tmp_path)
    told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert told.returncode == 1 and "BlockingIOError" in told.stderr
    manager.close()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as theirs:
        assert theirs.stdout is not None and theirs.stdout.readline() == b"\n"
        with pytest.raises(ConfigError, match=r"^another process holds the lock"):
            open_manager(tmp_path)
    open_manager(tmp_path).close()


def test_a_directory_of_the_metadata_serves_one_broker(tmp_path: Path) -> None:
    """Two brokers with logs of their own and one metadata log both wrote to it: acknowledged changes of one were gone."""
    metadata, own = tmp_path / "metadata", LogManager([tmp_path / "one"])
    own.lock(str(metadata))
    other = LogManager([tmp_path / "two"])
    with pytest.raises(ConfigError, match=r"another process holds the lock .*metadata/\.lock"):
        other.lock(str(metadata))
    own.release_locks()
    other.lock(str(metadata))
    other.release_locks()


def test_a_directory_of_the_metadata_that_is_one_of_the_logs_is_locked_once(tmp_path: Path) -> None:
    (tmp_path / "name").symlink_to(tmp_path / "one")
    (tmp_path / "one").mkdir()
    manager = LogManager([tmp_path / "one"])
    manager.lock(str(tmp_path / "name"))
    manager.release_locks()


def test_a_directory_of_the_metadata_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match=r"metadata\.log\.dir=.*/file cannot be used: Not a directory; it takes a directory"
    ):
        LogManager([tmp_path / "one"]).lock(str(tmp_path / "file"))


@pytest.mark.parametrize("kind", ["file", "below a file", "broken link", "circle of links"])
def test_a_data_directory_that_can_be_none_is_refused_with_what_to_do(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data"
    if kind == "file":
        path.write_text("mine")
    elif kind == "below a file":
        (tmp_path / "file").write_text("mine")
        path = tmp_path / "file" / "data"
    else:
        path.symlink_to(tmp_path / ("nowhere" if kind == "broken link" else "data"))
    with pytest.raises(
        ConfigError, match=r"^log\.dirs=.*data cannot be used: .*choose another, or move away what is there"
    ):
        LogManager([path]).lock()


def test_of_two_directories_one_that_is_a_file_leaves_the_other(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    manager = LogManager([tmp_path / "file", tmp_path / "data"])
    manager.start()
    assert list(manager.offline_dirs) == [str(tmp_path / "file")]
    manager.create("t", 0, TOPIC_ID).append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    manager.close()
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["orders-0", "orders-0/deeper", f"orders-0.{'a' * 32}-delete"])
@pytest.mark.parametrize("which", ["log.dirs", "link", "metadata.log.dir"])
def test_a_directory_that_another_would_take_for_a_log_is_refused(tmp_path: Path, name: str, which: str) -> None:
    inner = tmp_path / "data" / name
    if which == "link":
        inner.mkdir(parents=True)
        inner = tmp_path / "link"
        inner.symlink_to(tmp_path / "data" / name)
    manager = LogManager([tmp_path / "data", *([] if which == "metadata.log.dir" else [inner])])
    with pytest.raises(ConfigError, match=r"lies within the log directory .*data, where orders-0"):
        manager.lock(str(inner) if which == "metadata.log.dir" else None)
    assert not list(tmp_path.rglob(".lock"))


def test_a_directory_within_another_that_is_no_logs_is_left_alone(tmp_path: Path) -> None:
    manager = LogManager([tmp_path, tmp_path / "more"])
    manager.start()
    for partition in range(4):
        manager.create("t", partition, TOPIC_ID).append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    manager.close()
    again = LogManager([tmp_path, tmp_path / "more"])
    again.start()
    assert len(again.logs) == 4
    assert all(log.log_end_offset == 1 for log in again.logs.values())
    again.close()


def test_another_brokers_directory_is_no_log(tmp_path: Path) -> None:
    """It was set aside, under the broker that had it, as soon as a topic of that name came."""
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / "meta.properties").write_text("version=1")
    with pytest.raises(ConfigError, match=r"orders-0 is the data directory of a broker"):
        LogManager([tmp_path]).start()


@pytest.mark.parametrize("stop", ["clean", "crash", "none"])
def test_a_log_of_a_deleted_topic_is_set_aside(tmp_path: Path, stop: str, caplog: pytest.LogCaptureFixture) -> None:
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, TOPIC_ID)
    assert manager.create("t", 0, TOPIC_ID) is log
    log.append(one_batch([b"old"]), leader_epoch=0, now_ms=START_MS)
    if stop != "none":
        manager.close() if stop == "clean" else crash(manager)
        manager = open_manager(tmp_path)
    fresh = manager.create("t", 0, bytes(16))
    assert (fresh.topic_id, fresh.log_end_offset) == (bytes(16), 0)
    (stray,) = tmp_path.glob("t-0.*-stray")
    assert re.fullmatch(r"t-0\.[0-9a-f]{32}-stray", stray.name)
    assert records_of((stray / f"{0:020d}.log").read_bytes())[0].value == b"old"
    assert str(stray) in caplog.text and TOPIC_ID.hex() in caplog.text
    fresh.append(one_batch([b"new"]), leader_epoch=0, now_ms=START_MS)
    manager.close()
    manager = open_manager(tmp_path)  # a stray directory is no log, and stays
    assert list(manager.logs) == [("t", 0)] and stray.exists()
    assert [record.value for record in records_of(manager.create("t", 0, bytes(16)).read(0, 1000))] == [b"new"]


def test_a_stray_log_that_cannot_be_set_aside_is_not_served(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create("t", 0, TOPIC_ID)
    manager.close()
    files = FaultyFiles()
    manager = open_manager(tmp_path, files=files)
    files.plan(Fault("rename", errno.EIO, "t-0"))
    with pytest.raises(KafkaStorageError, match="setting a stray log aside"):
        manager.create("t", 0, bytes(16))
    assert manager.get("t", 0) is None


def test_a_stray_log_whose_longer_name_has_no_room_waits_for_some(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create("t", 0, TOPIC_ID).append(one_batch([b"old"]), leader_epoch=0, now_ms=START_MS)
    manager.close()
    files = FaultyFiles()
    manager = open_manager(tmp_path, files=files)
    files.plan(Fault("rename", errno.ENOSPC, "t-0"))
    for _ in range(2):
        with pytest.raises(KafkaStorageError, match="setting a stray log aside"):
            manager.create("t", 0, bytes(16))
        assert manager.get("t", 0) is None and not manager.offline_dirs
    files.heal()
    assert manager.create("t", 0, bytes(16)).log_end_offset == 0
    (stray,) = tmp_path.glob("t-0.*-stray")
    assert records_of((stray / f"{0:020d}.log").read_bytes())[0].value == b"old"


@pytest.mark.parametrize("content", [None, b"", b"version: 0\ntopic_id: short"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_topic_id_is_written_again(tmp_path: Path, content: bytes | None, clean: bool) -> None:
    manager = open_manager(tmp_path)
    manager.create("t", 0, TOPIC_ID).append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    path = tmp_path / "t-0" / "partition.metadata"
    written = path.read_bytes()
    manager.close() if clean else crash(manager)
    path.unlink() if content is None else path.write_bytes(content)
    files = FaultyFiles()
    manager = open_manager(tmp_path, files=files)
    log = manager.create("t", 0, TOPIC_ID)
    assert (log.topic_id, path.read_bytes()) == (TOPIC_ID, written)
    assert files.synced[str(path)] == len(written)
    assert log.log_end_offset == 1
    manager.close()
    assert [path.name for path in (tmp_path / "t-0").glob("partition*")] == ["partition.metadata"]


def test_deletion_renames_at_once_and_empties_later(tmp_path: Path) -> None:
    clock = StandingClock()
    config = LogConfig(segment_bytes=2 * SIZE, file_delete_delay_ms=5000)
    manager = open_manager(tmp_path, config, clock=clock)
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(100):
        log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    held = log.read(0, 100)
    assert manager.delete("t", 0) is True
    assert manager.delete("t", 0) is False
    assert manager.get("t", 0) is None
    names = [path.name for path in tmp_path.iterdir() if path.is_dir()]
    assert len(names) == 1 and names[0].startswith("t-0.") and names[0].endswith("-delete")
    again = manager.create("t", 0, bytes(16))
    assert again.log_end_offset == 0
    clock.advance(4999)
    manager.tick()
    assert (tmp_path / names[0]).exists()
    clock.advance(1)
    manager.tick()
    assert list((tmp_path / names[0]).iterdir()), "the loop does not wait for it"
    manager.flusher.wait()
    assert not (tmp_path / names[0]).exists()
    assert [record.offset for record in records_of(held)] == [0]


def test_a_deletion_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    manager.create("t", 0, TOPIC_ID)
    manager.delete("t", 0)
    crash(manager)
    manager = open_manager(tmp_path)
    manager.tick()
    manager.flusher.wait()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_unknown_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    manager = open_manager(tmp_path)
    assert manager.logs == {}
    manager.close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


class TestDirectories:
    def test_logs_are_spread_and_found_again(self, tmp_path: Path) -> None:
        dirs = [tmp_path / "a", tmp_path / "b"]
        manager = open_manager(dirs)
        for partition in range(6):
            manager.create("t", partition, TOPIC_ID)
        assert [len(list(path.glob("t-*"))) for path in dirs] == [3, 3]
        manager.close()
        assert len(open_manager(dirs).logs) == 6

    def test_one_that_fails_does_not_stop_the_other(self, tmp_path: Path) -> None:
        files = FaultyFiles()
        dirs = [tmp_path / "a", tmp_path / "b"]
        manager = open_manager(dirs, files=files)
        logs = [manager.create("t", partition, TOPIC_ID) for partition in range(2)]
        gone: list[str] = []
        manager.on_dir_offline = lambda log_dir: gone.append(log_dir.path)
        files.plan(Fault("write", errno.EIO, str(dirs[0])))
        bad, good = sorted(logs, key=lambda log: log.dir.path)
        with pytest.raises(KafkaStorageError, match="EIO"):
            bad.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
        assert gone == list(manager.offline_dirs) == [str(dirs[0])]
        good.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
        assert manager.create("u", 0, TOPIC_ID).dir is good.dir
        manager.close()
        assert not (dirs[0] / ".kafka_cleanshutdown").exists()
        assert (dirs[1] / ".kafka_cleanshutdown").exists()

    @pytest.mark.parametrize("how", ["moved", "removed", "replaced", "lock"])
    def test_one_that_is_gone_from_its_path_fails_alone(self, tmp_path: Path, how: str) -> None:
        now = [START_MS]
        dirs = [tmp_path / "a", tmp_path / "b"]
        manager = LogManager(dirs, clock=lambda: now[0])
        manager.start()
        (dirs[0] / "meta.properties").touch()
        if how == "lock":
            (dirs[0] / ".lock").unlink()
        elif how == "removed":
            shutil.rmtree(dirs[0])
        else:
            dirs[0].rename(tmp_path / "elsewhere")
        if how == "replaced":
            dirs[0].mkdir()
            (dirs[0] / ".lock").touch()
        now[0] += 4_000
        manager.tick()
        assert not manager.offline_dirs
        now[0] += 1_000
        manager.tick()
        assert list(manager.offline_dirs) == ([] if how == "lock" else [str(dirs[0])])
        for error in manager.offline_dirs.values():
            assert "failed: it was moved away or removed; the log directory is offline" in str(error)
        manager.close()
        assert (dirs[1] / ".kafka_cleanshutdown").exists()


class TestRetention:
    def fill(self, tmp_path: Path, **settings: object) -> tuple[StandingClock, object, object]:
        clock = StandingClock()
        config = LogConfig(segment_bytes=2 * SIZE, file_delete_delay_ms=0, **settings)  # type: ignore[arg-type]
        manager = open_manager(tmp_path, config, clock=clock, retention_check_interval_ms=10)
        log = manager.create("t", 0, TOPIC_ID)
        for number in range(7):
            log.append(one_batch([b"v"], timestamp_ms=START_MS + number), leader_epoch=0, now_ms=START_MS)
        manager.flusher.wait()
        return clock, manager, log

    def test_by_time_goes_segment_by_segment_and_rolls_the_last(self, tmp_path: Path) -> None:
        clock, manager, log = self.fill(tmp_path, retention_ms=1000)
        clock.advance(1003)
        manager.tick()  # type: ignore[attr-defined]
        assert log.log_start_offset == 2  # type: ignore[attr-defined]
        clock.advance(10)
        manager.tick()  # type: ignore[attr-defined]
        assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (7, 7, 1)  # type: ignore[attr-defined]
        assert log.size_bytes == 0  # type: ignore[attr-defined]
        clock.advance(10)
        manager.tick()  # type: ignore[attr-defined]
        names = sorted(path.name for path in (tmp_path / "t-0").glob("*.log*"))
        assert names == [f"{7:020d}.log"]

    def test_by_size_keeps_at_least_that_much(self, tmp_path: Path) -> None:
        clock, manager, log = self.fill(tmp_path, retention_bytes=3 * SIZE, retention_ms=-1)
        clock.advance(10)
        manager.tick()  # type: ignore[attr-defined]
        assert log.log_start_offset == 4  # type: ignore[attr-defined]

    def test_nothing_goes_without_the_delete_policy(self, tmp_path: Path) -> None:
        policy = frozenset({"compact"})
        clock, manager, log = self.fill(tmp_path, retention_bytes=0, retention_ms=0, cleanup_policy=policy)
        clock.advance(10_000)
        manager.tick()  # type: ignore[attr-defined]
        assert log.log_start_offset == 0  # type: ignore[attr-defined]


def test_delete_records_lasts_and_frees_segments(tmp_path: Path) -> None:
    clock = StandingClock()
    config = LogConfig(segment_bytes=2 * SIZE, retention_ms=-1, file_delete_delay_ms=0)
    manager = open_manager(tmp_path, config, clock=clock)
    log = manager.create("t", 0, TOPIC_ID)
    for epoch in range(7):
        log.append(one_batch([b"v"]), leader_epoch=epoch, now_ms=START_MS)
    assert log.delete_records_before(5) == 5
    assert log.delete_records_before(3) == 5
    with pytest.raises(OffsetOutOfRange):
        log.read(4, 100)
    for offset in (8, -2):
        with pytest.raises(OffsetOutOfRange, match="high watermark 7"):
            log.delete_records_before(offset)
    assert log.epochs.entries()[0] == (5, 5)
    manager.close()
    manager = open_manager(tmp_path, config, clock=clock)
    log = manager.logs["t", 0]
    assert log.log_start_offset == 5
    clock.advance(300_000)
    manager.tick()
    assert log.segments[0].base_offset == 4
    assert log.delete_records_before(-1) == 7
    log.apply_config(LogConfig(cleanup_policy=frozenset({"compact"})))
    with pytest.raises(PolicyViolation):
        log.delete_records_before(7)


def test_flush_ms_moves_the_recovery_point(tmp_path: Path) -> None:
    clock = StandingClock()
    manager = open_manager(tmp_path, LogConfig(flush_ms=1000), clock=clock)
    log = manager.create("t", 0, TOPIC_ID)
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    clock.advance(1000)
    manager.tick()
    clock.advance(1)
    manager.tick()
    assert log.recovery_point == 1


def test_flush_messages_counts_records(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, LogConfig(flush_messages=3))
    log = manager.create("t", 0, TOPIC_ID)
    for expected in (0, 0, 3, 3, 3, 6):
        log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
        manager.flusher.wait()
        assert log.recovery_point == expected


def test_a_file_that_cannot_be_replaced_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system reports of a descriptor has no name: a full disk was said of the directory."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "recovery-point-offset-checkpoint"
    files = Files()
    monkeypatch.setattr(files, "pwrite", full)
    with pytest.raises(OSError, match="No space left") as caught:
        files.write_file(str(path), b"0\n", sync=True)
    assert caught.value.filename == str(path)
    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_file(path, b"0\n")
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("kind", ["file", "pipe", "circle", "dangling"])
@pytest.mark.parametrize("name", ["core-1234", f"t-1.{'a' * 32}-delete"])
@pytest.mark.parametrize("clean", [True, False])
def test_what_has_a_logs_name_and_is_no_directory_is_left_alone(
    tmp_path: Path, kind: str, name: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A core dump took the whole directory offline: at the start after a crash, else with the next round of retention."""
    manager = open_manager(tmp_path)
    manager.create("t", 0, TOPIC_ID).append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    if clean:
        assert manager.close()
    else:
        crash(manager)
    path = tmp_path / name
    if kind == "file":
        path.write_text("mine")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name if kind == "circle" else "nowhere")
    clock = StandingClock()
    manager = open_manager(tmp_path, clock=clock)
    for _ in range(20):
        clock.now_ms += 100_000
        manager.tick()
    assert list(manager.logs) == [("t", 0)]
    assert not manager.offline_dirs
    assert f"{path} is no directory, and no log: it is left alone" in caplog.text
    assert manager.close()
    assert os.path.lexists(path)


@pytest.mark.parametrize("name", ["t-00", "t-٠", "t-99999999999", "-0", "t-1\n"])
def test_a_directory_with_nearly_a_logs_name_is_none(tmp_path: Path, name: str) -> None:
    """It was looked for under the name that it ought to have, and missed."""
    (tmp_path / name).mkdir()
    manager = open_manager(tmp_path)
    assert not manager.logs
    assert manager.close()
    assert not (tmp_path / "t-0").exists()
