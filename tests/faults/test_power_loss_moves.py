"""A log that moves to another directory of its node, with a loss of power between any two operations on files: after the start there is
one log, in one directory, with all that was synced. What the metadata says of its directory is on disk, as a committed record is."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "log"))

from fastq_broker.log import LogConfig, LogManager
from forgetful_disk import FailingPower, NoPower
from log_support import TOPIC_ID, StandingClock, crash, one_batch, open_manager, records_of

KEY = ("t", 0)
DIRECTORIES = ("a", "b")


class Node:
    """The logs of a node that moves one of them while it is written to, and what was told of it."""

    def __init__(self, root: Path, *, fsync: bool, eager: bool) -> None:
        self.root, self.eager = root, eager
        self.config = LogConfig(segment_bytes=600, durability="fsync" if fsync else "page-cache")
        for name in DIRECTORIES:
            (root / name).mkdir(parents=True)
        self.files = FailingPower()
        self.clock = StandingClock()
        self.manager = open_manager(
            [root / name for name in DIRECTORIES], self.config, files=self.files, clock=self.clock
        )
        self.log = self.manager.create(*KEY, TOPIC_ID, self.config, home=str(root / "a"))
        self.values: list[bytes] = []
        self.known = "a"
        """Where the metadata has the log."""
        self.promised = 0
        """One above the last record that is on disk for good."""
        self.manager.moves.on_changed = lambda log: self._tell()
        self.manager.moves.may_swap = lambda log, log_dir: self.known == os.path.basename(log_dir.path)
        self.write(10)
        self.log.flush()
        self.manager.flusher.wait()
        self.files.all_on_disk(root)
        self.promised = self.log.recovery_point

    def _tell(self) -> None:
        self.known = os.path.basename(self.manager.moves.home(self.log).path)

    def write(self, count: int) -> None:
        log = self.log
        for _ in range(count):
            self.values.append(b"%06d" % len(self.values))
            log.append(one_batch([self.values[-1]]), leader_epoch=1, now_ms=self.clock())
        if self.config.synchronous:
            end = log.log_end_offset
            log.wait_durable(end, lambda error: setattr(self, "promised", max(self.promised, end)))

    def move(self) -> None:
        self.manager.moves.begin(self.log, self.manager.dirs[1])
        for turn in range(8):
            self.write(turn < 5)
            self.manager.tick()
            if self.eager or turn % 3 == 0:
                self.manager.flusher.wait()
        self.manager.flusher.wait()
        self.clock.advance(120_000)  # what was the log's is deleted for good
        for _ in range(3):
            self.manager.tick()
            self.manager.flusher.wait()

    def after(self, target: Path) -> LogManager:
        """The start after the loss of power."""
        self.files.left = None
        self.files.lose_power(self.root, target)
        crash(self.manager)
        again = open_manager([target / name for name in DIRECTORIES], self.config)
        again.create(*KEY, TOPIC_ID, self.config, home=str(target / self.known))
        return again


def read_all(manager: LogManager) -> Iterator[bytes]:
    log = manager.create(*KEY)
    offset = 0
    while offset < log.log_end_offset:
        for record in records_of(log.read(offset, 1 << 20)):
            yield record.value or b""
            offset = record.offset + 1


@pytest.mark.parametrize(
    ("fsync", "eager"),
    [
        pytest.param(True, True, id="fsync"),
        pytest.param(True, False, id="fsync-late", marks=pytest.mark.soak),
        pytest.param(False, False, id="page-cache-late", marks=pytest.mark.soak),
        pytest.param(False, True, id="page-cache", marks=pytest.mark.soak),
    ],
)
def test_one_log_with_all_that_was_synced(
    tmp_path: Path, fsync: bool, eager: bool, caplog: pytest.LogCaptureFixture
) -> None:
    step, ended = 0, False
    while not ended:
        node = Node(tmp_path / f"{step}", fsync=fsync, eager=eager)
        node.files.left = step
        try:
            node.move()
            ended = True
            assert node.known == "b" and os.listdir(node.root / "a") and step > 50
        except NoPower:
            pass
        again = node.after(tmp_path / f"{step}-after")
        found = list(read_all(again))
        assert found == node.values[: len(found)] and len(found) >= node.promised, (step, len(found), node.promised)
        for _ in range(10):  # a copy goes on, and takes the log's place; nothing else is left
            again.moves.may_swap = lambda log, log_dir: True
            again.tick()
            again.flusher.wait()
        kept = [
            (name, entry)
            for name in DIRECTORIES
            for entry in os.listdir(tmp_path / f"{step}-after" / name)
            if entry.startswith("t-0") and not entry.endswith(("-delete", "-stray"))
        ]
        assert len(kept) == 1 and kept[0][1] == "t-0", (step, kept)
        assert list(read_all(again)) == found
        crash(again)
        shutil.rmtree(tmp_path / f"{step}")
        shutil.rmtree(tmp_path / f"{step}-after")
        step += 1
    assert "a deleted topic" not in caplog.text
