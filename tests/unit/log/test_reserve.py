"""The room that is kept for what a node must write on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from fastq_broker.log.files import Space
from fastq_broker.log.reserve import FREE_BYTES_MIN, LOOK_MS, PIECE_BYTES, RESERVE, SIZE_BYTES, Reserve
from faulty_files import Fault, FaultyFiles

from fastq.errors import KafkaStorageError

ROOM = Space(FREE_BYTES_MIN, FREE_BYTES_MIN)
NO_ROOM = Space(FREE_BYTES_MIN - 1, FREE_BYTES_MIN)


class World:
    def __init__(self, directory: Path) -> None:
        self.now_ms = 0
        self.files = FaultyFiles()
        self.files.room = ROOM
        self.path = directory / RESERVE
        self.reserve = Reserve(directory, self.files, lambda: self.now_ms)

    def work(self, needs: int) -> int:
        """Succeeds once so many bytes less are kept."""
        if self.size > SIZE_BYTES - needs:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return needs

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


def test_pieces_are_given_up_until_there_is_room_and_made_again_later(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.reserve.starting
    world.reserve.tick()
    assert world.size == SIZE_BYTES and world.path.stat().st_blocks * 512 >= SIZE_BYTES
    assert not world.reserve.starting
    assert world.reserve.spend(lambda: world.work(1)) == 1
    assert world.size == SIZE_BYTES - PIECE_BYTES
    world.reserve.spend(lambda: world.work(3 * PIECE_BYTES))
    assert world.size == SIZE_BYTES - 3 * PIECE_BYTES
    world.files.room = NO_ROOM
    for _ in range(3):
        world.now_ms += LOOK_MS
        world.reserve.tick()
    assert world.size == SIZE_BYTES - 3 * PIECE_BYTES
    world.files.room = ROOM
    world.reserve.tick()
    assert world.size < SIZE_BYTES  # looked at once a minute
    world.now_ms += LOOK_MS
    world.reserve.tick()
    assert world.size == SIZE_BYTES


def test_what_finds_no_room_at_all_says_so_and_the_reserve_is_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.reserve.tick()
    with pytest.raises(OSError, match="No space"):
        world.reserve.spend(lambda: world.work(SIZE_BYTES + 1))
    assert not world.path.exists()
    with pytest.raises(OSError, match="No space"):
        world.reserve.spend(lambda: world.work(SIZE_BYTES + 1))


def test_other_errors_and_those_of_a_log_are_told_apart_by_their_cause(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.reserve.tick()

    def fail(code: int) -> None:
        raise KafkaStorageError("no") from OSError(code, os.strerror(code))

    with pytest.raises(KafkaStorageError):
        world.reserve.spend(lambda: fail(errno.EIO))
    assert world.size == SIZE_BYTES
    with pytest.raises(KafkaStorageError):
        world.reserve.spend(lambda: fail(errno.ENOSPC))
    assert not world.path.exists()


def test_a_reserve_that_cannot_be_given_up_leaves_the_error_of_the_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.reserve.tick()
    world.files.plan(Fault("truncate", errno.EIO, RESERVE))
    with pytest.raises(OSError, match="No space"):
        world.reserve.spend(lambda: world.work(1))
    assert "cannot be given up" in caplog.text


def test_one_that_cannot_be_made_keeps_nobody_from_anything(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.files.plan(Fault("open", errno.ENOSPC, RESERVE))
    world.reserve.tick()
    assert not world.path.exists()
    world.files.heal()
    world.now_ms += LOOK_MS
    world.reserve.tick()
    assert world.size == SIZE_BYTES
