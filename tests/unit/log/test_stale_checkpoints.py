"""What the checkpoints say of a log that was cut: no more than holds, before anything comes in the place of what was cut off."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.checkpoints import CLEANED, HIGH_WATERMARK, LOG_START, RECOVERY_POINT, read_offsets
from fastq_broker.log.half_done import RETRY_MS_MAX
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, TOPIC_ID, clock_of, crash, one_batch, open_manager, records_of

from fastq.errors import KafkaStorageError

SIZE = len(one_batch([b"v000"]))
CONFIG = LogConfig(index_interval_bytes=5 * SIZE)


def filled(
    directory: Path, count: int = 100, *, files: FaultyFiles | None = None, logs: int = 1
) -> tuple[LogManager, PartitionLog]:
    """Logs that are on disk, and said to be; the first of them."""
    manager = open_manager(directory, CONFIG, files=files)
    for partition in range(logs):
        log = manager.create("t", partition, TOPIC_ID)
        append(log, 0, count)
        log.flush()
        manager.flusher.wait()
        log.cleaned_offset = count
    manager.write_checkpoints(manager.dirs[0], wait=True)
    return manager, manager.logs["t", 0]


def append(log: PartitionLog, first: int, end: int, letter: bytes = b"v") -> None:
    for number in range(first, end):
        log.append(one_batch([letter + b"%03d" % number]), leader_epoch=0, now_ms=START_MS)


def values(log: PartitionLog) -> list[bytes]:
    found: list[bytes] = []
    while log.log_start_offset + len(found) < log.log_end_offset:
        found += [record.value for record in records_of(log.read(log.log_start_offset + len(found), 1 << 20))]
    return found


def said(directory: Path, name: str) -> int:
    return read_offsets(FaultyFiles(), str(directory), name).get(("t", 0), 0)


def crash_without(manager: LogManager, log: PartitionLog, position: int) -> None:
    """The power goes, and of what was not synced all reaches the disk but one batch."""
    log.active_segment.index.write_pending()
    path = Path(log.active_segment.log.path)
    crash(manager)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(SIZE))


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("how", ["cut", "begun anew"])
def test_what_comes_in_the_place_of_records_that_were_cut_off_is_not_trusted_after_a_crash(
    tmp_path: Path, how: str, role: str
) -> None:
    """A loss of power had kept some of it: what was said to be on disk were others."""
    manager, log = filled(tmp_path)
    if how == "cut":
        log.truncate_to(50)
    else:
        log.truncate_fully_and_start_at(50)
    if role == "leader":
        append(log, 50, 110, b"w")
    else:
        other = open_manager(tmp_path / "leader").create("t", 0, TOPIC_ID)
        append(other, 0, 50)
        append(other, 50, 110, b"w")
        log.append_as_follower(other.read(50, 1 << 20).read(), now_ms=START_MS)
    assert log.log_end_offset == 110
    crash_without(manager, log, SIZE * (60 if how == "cut" else 10))
    manager = open_manager(tmp_path, CONFIG)
    log = manager.logs["t", 0]
    assert log.log_end_offset == 60 and log.cleaned_offset == 50
    assert values(log)[-1] == b"w059"


@pytest.mark.parametrize("stop", ["crash", "clean"])
def test_what_comes_in_the_place_of_records_that_were_lost_is_not_trusted_after_another_crash(
    tmp_path: Path, stop: str
) -> None:
    """A log that ends below its recovery point goes on there."""
    manager, log = filled(tmp_path)
    path = Path(log.active_segment.log.path)
    if stop == "clean":
        assert manager.close()
    else:
        crash(manager)
    with path.open("r+b") as file:
        file.truncate(50 * SIZE)
    manager = open_manager(tmp_path, CONFIG)
    log = manager.logs["t", 0]
    append(log, 50, 110, b"w")
    crash_without(manager, log, 60 * SIZE)
    log = open_manager(tmp_path, CONFIG).logs["t", 0]
    assert log.log_end_offset == 60 and log.cleaned_offset == 50


@pytest.mark.parametrize("how", ["cut", "begun anew"])
@pytest.mark.parametrize("shortage", [False, True])
def test_records_below_where_the_log_began_before_it_was_cut_are_there_after_a_crash(
    tmp_path: Path, how: str, shortage: bool
) -> None:
    """They were acknowledged. The start that was said before lay above them, and a start drops what lies below it."""
    files = FaultyFiles()
    manager, log = filled(tmp_path, files=files)
    log.delete_records_before(80)
    manager.write_checkpoints(manager.dirs[0], wait=True)
    assert said(tmp_path, LOG_START) == 80
    cut = log.truncate_to if how == "cut" else log.truncate_fully_and_start_at
    if shortage:
        operation = "truncate" if how == "cut" else "rename"
        fault = files.plan(Fault(operation, errno.ENOMEM, "t-0", passes=0, repeat=True))
        with pytest.raises(KafkaStorageError):
            cut(50)
        assert fault.struck and not log.loaded
        manager.write_checkpoints(manager.dirs[0], wait=True)  # it is half cut
        files.heal()
        clock_of(manager).advance(RETRY_MS_MAX)
        manager.tick()
        assert log.loaded
    else:
        cut(50)
    append(log, log.log_end_offset, 70, b"w")
    manager.flusher.wait()
    crash(manager)
    log = open_manager(tmp_path, CONFIG).logs["t", 0]
    assert log.log_start_offset <= 50 and log.log_end_offset == 70
    assert values(log)[50 - log.log_start_offset :] == [b"w%03d" % number for number in range(50, 70)]


def test_a_checkpoint_that_was_under_way_at_the_cut_comes_to_nothing(tmp_path: Path) -> None:
    manager, log = filled(tmp_path)
    append(log, 100, 120)
    log.flush()
    manager.flusher.wait()
    manager.checkpoint(manager.dirs[0])  # and nobody waits for it
    log.truncate_to(110)
    append(log, 110, 130, b"w")
    manager.flusher.wait()
    assert said(tmp_path, RECOVERY_POINT) == 110 and said(tmp_path, CLEANED) == 100
    manager.checkpoint(manager.dirs[0])
    manager.flusher.wait()
    assert said(tmp_path, RECOVERY_POINT) == 110


def test_a_high_watermark_that_was_cut_below_is_not_believed_after_a_crash(tmp_path: Path) -> None:
    """An unclean election: what others have of the log ends there."""
    manager, log = filled(tmp_path)
    log.share(True)
    log.advance_high_watermark(90)
    manager.write_checkpoints(manager.dirs[0], wait=True)
    log.truncate_to(50)
    append(log, 50, 110, b"w")
    assert said(tmp_path, HIGH_WATERMARK) == 50


def test_logs_that_are_cut_together_have_the_files_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no log that was not cut below what was said has them written at all."""
    files = FaultyFiles()
    manager, _ = filled(tmp_path, files=files, logs=20)
    written: list[str] = []
    write_file = FaultyFiles.write_file

    def noted(self: FaultyFiles, path: str, data: bytes, *, sync: bool) -> None:
        if path.startswith(str(tmp_path)) and path.endswith("offset-checkpoint"):
            written.append(Path(path).name)
            assert sync
        write_file(self, path, data, sync=sync)

    monkeypatch.setattr(FaultyFiles, "write_file", noted)
    logs = [manager.logs["t", partition] for partition in range(20)]
    for log in logs:
        append(log, 100, 110)
        log.truncate_to(105)
        append(log, 105, 106)
    assert not written
    for log in logs:
        log.truncate_to(50)
    for log in logs:
        append(log, 50, 60)
    assert sorted(written) == sorted([RECOVERY_POINT, CLEANED])


def test_nothing_is_appended_behind_a_cut_while_the_checkpoints_cannot_be_written(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager, log = filled(tmp_path, files=files)
    log.truncate_to(50)
    files.plan(Fault("open", errno.EMFILE, RECOVERY_POINT, passes=0, repeat=True))
    for _ in range(2):
        with pytest.raises(KafkaStorageError):
            append(log, 50, 51)
    assert log.log_end_offset == 50 and not manager.offline_dirs
    files.heal()
    append(log, 50, 51)
    assert log.log_end_offset == 51 and said(tmp_path, RECOVERY_POINT) == 50


def test_a_name_that_only_the_directory_s_sync_has_failed_for_is_known(tmp_path: Path) -> None:
    """The file has it: the next log of that name would begin with what is said there."""
    files = FaultyFiles()
    manager, _ = filled(tmp_path, files=files)
    manager.create("u", 0, bytes(range(16)))
    append(manager.logs["u", 0], 0, 10)
    manager.logs["u", 0].flush()
    manager.flusher.wait()
    opens = files.plan(Fault("open", errno.EMFILE, str(tmp_path), passes=1, repeat=True))
    with pytest.raises(OSError):
        manager.write_checkpoints(manager.dirs[0], wait=True)
    assert opens.struck
    files.heal()
    assert ("u", 0) in read_offsets(files, str(tmp_path), RECOVERY_POINT)
    manager.delete("u", 0)
    assert manager._checkpoints[str(tmp_path)].names(("u", 0))


def test_what_was_said_of_a_copy_that_was_cut_is_not_said_of_the_log_that_it_becomes(tmp_path: Path) -> None:
    manager = open_manager([tmp_path / "a", tmp_path / "b"], CONFIG)
    log = manager.create("t", 0, TOPIC_ID, home=str(tmp_path / "a"))
    append(log, 0, 50)
    may_swap: list[bool] = []
    manager.moves.may_swap = lambda *_: bool(may_swap)
    manager.moves.begin(log, manager.dirs[1])
    for _ in range(5):
        manager.tick()
        manager.flusher.wait()
    copy = log.future
    assert copy is not None and copy.log_end_offset == 50
    append(copy, 50, 100)  # as one has that was begun before a crash in which its log lost these
    copy.flush()
    manager.flusher.wait()
    manager.write_checkpoints(manager.dirs[1], wait=True)
    assert said(tmp_path / "b", RECOVERY_POINT) == 100
    copy.truncate_to(50)
    may_swap.append(True)
    while log.dir is not manager.dirs[1]:
        manager.flusher.wait()
        manager.tick()
    append(log, 50, 60, b"w")  # while the checkpoints are under way that the end of a move has written
    assert said(tmp_path / "b", RECOVERY_POINT) == 50
