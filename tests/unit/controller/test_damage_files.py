"""A metadata log of many files, of which something has damaged, cut or removed one: what lies below the latest snapshot costs nothing,
what lies above it is refused by that file's name, and a repair keeps what comes before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import Controller
from test_damage import NOW, Cluster

from fastq._native.records import iter_headers


class FilesOfOneBatch(Cluster):
    """The same history, of which each batch has a file of its own: time goes on between them."""

    now = NOW

    def config(self) -> BrokerConfig:
        return BrokerConfig.from_mapping(
            {"log.dirs": str(self.root), "listeners": "PLAINTEXT://127.0.0.1:9092", "metadata.log.segment.ms": "10"}
        )

    def _clock(self) -> int:
        self.now += 1000
        return self.now

    def open(self) -> Controller:
        config = self.config()
        controller = Controller(config, clock=self._clock)
        controller.open()
        controller.register_broker(config.advertised_listeners)
        return controller

    def copied(self, root: Path) -> FilesOfOneBatch:
        copy = FilesOfOneBatch.__new__(FilesOfOneBatch)
        copy.root, copy.meta, copy.made = root, root / self.meta.name, list(self.made)
        copy.now, copy.snapshot_end = self.now, self.snapshot_end
        shutil.copytree(self.root, root)
        return copy

    def parts(self) -> list[tuple[Path, int, int]]:
        """The files with something in them, with their first and their next offsets."""
        found = []
        for path in sorted(self.meta.glob("0*.log")):
            headers = [header for _, header in iter_headers(path.read_bytes())]
            if headers:
                found.append((path, headers[0].base_offset, headers[-1].next_offset))
        return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> FilesOfOneBatch:
    cluster = FilesOfOneBatch(tmp_path_factory.mktemp("whole") / "data")
    controller = cluster.open()
    cluster.create(controller, "e", "f")
    controller.quorum.close()
    parts = cluster.parts()
    assert len(parts) >= 10 and sum(end > cluster.snapshot_end for _, _, end in parts) >= 3
    return cluster


def damaged(whole: FilesOfOneBatch, how: str, tmp_path: Path) -> Iterator[tuple[FilesOfOneBatch, Path, int, int]]:
    """Each case: a copy with one file that is damaged, that file, and its first and next offsets."""
    parts = whole.parts()
    for number, (path, base, following) in enumerate(parts):
        if how != "flipped" and number == len(parts) - 1:
            continue  # as a crash leaves it: nobody can tell
        if how == "removed" and number == 0:
            continue  # as what a snapshot stands for is removed
        cluster = whole.copied(tmp_path / f"{how}-{number}" / "data")
        victim = cluster.meta / path.name
        data = bytearray(victim.read_bytes())
        if how == "removed":
            victim.unlink()
        elif how == "cut":
            victim.write_bytes(data[:-5])
        else:
            data[70] ^= 0x10
            victim.write_bytes(data)
        yield cluster, victim, base, following


@pytest.mark.parametrize("how", ["flipped", "cut", "removed"])
def test_one_of_many_files(
    whole: FilesOfOneBatch, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    below = above = 0
    for cluster, victim, base, following in damaged(whole, how, tmp_path):
        if following <= cluster.snapshot_end:
            below += 1
            controller = cluster.open()
            assert set(controller.image.topics_by_name) == cluster.topics(), victim
            controller.quorum.close()
            cluster.check_grows()
            continue
        above += 1
        text = cluster.refused()
        told = victim if how != "removed" else next(path for path, first, _ in cluster.parts() if first >= following)
        assert f"{told} is damaged at byte 0, where offset {base} should be" in text
        assert f"fastq-broker repair --data-dir {cluster.root}" in text
        before = cluster.files()
        assert cluster.repair() == 1
        assert cluster.files().items() >= before.items()
        assert "nothing was changed" in capsys.readouterr().out
        assert cluster.repair("--execute") == 0
        controller = cluster.open()
        kept = set(controller.image.topics_by_name)
        controller.quorum.close()
        assert cluster.topics(base) <= kept <= cluster.topics(), victim
        cluster.check_grows()
        assert cluster.repair() == 0
    assert below >= 3 and above >= 3
