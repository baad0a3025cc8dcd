"""Leader epochs: assignment, lookup against a list, truncation at both ends, the file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fastq_broker.log.checkpoints import CorruptCheckpoint
from fastq_broker.log.files import Files
from fastq_broker.log.leader_epochs import LeaderEpochs


def new_epochs(directory: Path, entries: list[tuple[int, int]]) -> LeaderEpochs:
    epochs = LeaderEpochs(Files(), str(directory))
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def test_lookups_agree_with_a_list_of_records(tmp_path: Path) -> None:
    source = random.Random(11)
    for _ in range(50):
        records: list[int] = []  # the epoch of each offset
        epoch = 0
        epochs = new_epochs(tmp_path, [])
        epochs.clear()
        for _ in range(source.randrange(1, 30)):
            if source.random() < 0.4:
                epoch += source.randint(1, 3)
            epochs.assign(epoch, len(records))
            records.append(epoch)
        end = len(records)
        for asked in range(-1, epoch + 3):
            known = [e for e in records if e <= asked]
            later = [offset for offset, e in enumerate(records) if e > asked]
            if asked < 0 or asked > epoch:
                expected = (-1, -1)
            elif asked == epoch:
                expected = (epoch, end)
            else:
                expected = (known[-1] if known else asked, later[0])
            assert epochs.end_offset(asked, end) == expected
        assert [epochs.epoch_for_offset(offset) for offset in range(end)] == records


def test_assignments_that_change_nothing(tmp_path: Path) -> None:
    epochs = new_epochs(tmp_path, [(3, 10), (3, 12), (2, 15), (-1, 16)])
    assert epochs.entries() == [(3, 10)]
    epochs.assign(4, 10)  # epoch 3 has no record
    assert epochs.entries() == [(4, 10)]


def test_truncation(tmp_path: Path) -> None:
    entries = [(1, 0), (4, 10), (9, 20)]
    for end, left in ((30, 3), (20, 2), (11, 2), (10, 1), (0, 0)):
        epochs = new_epochs(tmp_path, entries)
        epochs.truncate_from_end(end)
        assert epochs.entries() == entries[:left]
    for start, expected in ((0, entries), (5, [(1, 5), (4, 10), (9, 20)]), (10, entries[1:]), (25, [(9, 25)])):
        epochs = new_epochs(tmp_path, entries)
        epochs.truncate_from_start(start)
        assert epochs.entries() == expected


def test_the_file_is_read_back_and_checked(tmp_path: Path) -> None:
    entries = [(1, 0), (4, 10)]
    new_epochs(tmp_path, entries)
    loaded = LeaderEpochs(Files(), str(tmp_path))
    loaded.load()
    assert loaded.entries() == entries
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"0\n2\n4 0\n1 10\n")
    with pytest.raises(CorruptCheckpoint, match="epoch 1 at 10 follows epoch 4 at 0"):
        loaded.load()
    assert loaded.entries() == entries


def test_what_there_is_no_memory_to_write_is_written_by_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch was known by then, and its log was told of none."""
    epochs = new_epochs(tmp_path, [(1, 0)])

    def fails(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("fastq_broker.log.leader_epochs.format_epochs", fails)
        epochs.assign(4, 10)
        epochs.truncate_from_end(20)
    assert epochs.entries() == [(1, 0), (4, 10)] and epochs.unsynced
    epochs.write_if_behind()
    loaded = LeaderEpochs(Files(), str(tmp_path))
    loaded.load()
    assert loaded.entries() == [(1, 0), (4, 10)]
