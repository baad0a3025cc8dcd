"""Every file of a node, in turn, cut, flipped, gone or replaced by what is no file: the start is refused by name, or what is lost is said;
it never waits, raises or forgets in silence."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from fastq_broker.broker import Broker, StartFailed
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import NewTopic
from fastq_broker.groups.classic_state import Committer
from fastq_broker.groups.shard import Commit

from fastq._native.records import build_batch, iter_headers, verify_crc
from fastq.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, FastqError

COUNT = 40
WAIT_S = 20


def node(directory: Path) -> Broker:
    config = BrokerConfig.from_mapping(
        {
            "log.dirs": str(directory),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions": 1,
            "log.index.interval.bytes": 200,
        }
    )
    return Broker(config, asyncio.get_running_loop())


async def fill(directory: Path, left: Path) -> None:
    """A node with a topic and an offset committed for it; what a kill leaves of it is put into `left`."""
    broker = node(directory)
    await broker.start()
    broker.controller.create_topics([NewTopic("t", 1)])
    broker.controller.settle()
    replica = broker.replicas.get("t", 0)
    assert replica is not None
    for number in range(COUNT):
        batch = build_batch([(0, None, b"%d" % number)], producer_id=7, producer_epoch=0, base_sequence=number)
        replica.log.append(batch, leader_epoch=0, now_ms=0)
    while True:
        try:
            shard = broker.groups.shard("g")
            break
        except (CoordinatorNotAvailable, CoordinatorLoadInProgress):
            await asyncio.sleep(0.001)
    answers: list[dict[tuple[str, int], int]] = []
    shard.commit(Commit("g", Committer("", -1, None), [("t", 0, 9, -1, None)], 9), answers.append)
    assert answers == [{("t", 0): 0}]
    for log in broker.logs.logs.values():
        log.flush()
    await broker.controller.flushed()
    broker.logs.flusher.wait()
    assert all(log.durability.settled for log in broker.logs.logs.values())
    broker.logs.write_checkpoints(broker.logs.dirs[0], wait=True)
    shutil.copytree(directory, left)
    assert await broker.close()


async def look(directory: Path) -> dict[str, object]:
    """What a start makes of a directory."""
    broker = node(directory)
    found: dict[str, object] = {}
    try:
        await broker.start()
        if (loader := broker.groups.runtime._loader) is not None:
            await loader
        log = broker.logs.get("t", 0)
        try:
            found["records"] = 0 if log is None else whole_records(log)
            committed = broker.groups.shard("g").offsets.get("g", "t", 0)
            found["committed"] = committed and committed.offset
        except FastqError as error:
            found["error"] = str(error)
    finally:
        await broker.close()
    return found


def whole_records(log: object) -> int:
    count, offset = 0, log.log_start_offset  # type: ignore[attr-defined]
    while offset < log.high_watermark:  # type: ignore[attr-defined]
        raw = log.read(offset, 1 << 20).read()  # type: ignore[attr-defined]
        for position, header in iter_headers(raw):
            count += verify_crc(raw, position)
            offset = header.next_offset
    return count


WHOLE = {"records": COUNT, "committed": 9}


@contextmanager
def no_wait() -> Iterator[None]:
    """A start that stands still fails, instead of standing still here."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it waited for {WAIT_S} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(WAIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def harm(path: Path, how: str, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        for _ in range(3 if data else 0):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif how in ("empty", "one byte", "one byte short"):
        path.write_bytes(data[: {"empty": 0, "one byte": 1, "one byte short": -1}[how]])
    elif how == "grown":
        path.write_bytes(bytes(data) + rng.randbytes(33))
    else:
        path.unlink()
        if how == "pipe":
            os.mkfifo(path)
        elif how == "directory":
            path.mkdir()
        elif how == "circle":
            path.symlink_to(path.name)


@pytest.fixture(scope="module")
def protos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("node")
    asyncio.run(fill(root / "clean", root / "killed"))
    return {"clean": root / "clean", "killed": root / "killed"}


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize(
    "how", ["gone", "empty", "one byte", "one byte short", "flipped", "grown", "pipe", "directory", "circle"]
)
def test_no_file_of_a_node_is_missed_or_waited_for(
    tmp_path: Path, protos: dict[str, Path], stop: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    proto = protos[stop]
    rng = random.Random(how)
    for path in sorted(item for item in proto.rglob("*") if item.is_file()):
        name = str(path.relative_to(proto))
        directory = tmp_path / "data"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(proto, directory)
        harm(directory / name, how, rng)
        caplog.clear()
        try:
            with no_wait():
                found = asyncio.run(look(directory))
        except (StartFailed, FastqError) as refusal:
            assert str((directory / name).parent) in str(refusal), (name, refusal)
            continue
        records = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
        assert not [record for record in records if record.exc_info], (name, caplog.text)
        if (how, path.parent.name, path.suffix) == ("flipped", "t-0", ".log"):
            continue  # trusted, as it lies below the recovery point: whoever reads it sees the checksum
        if found != WHOLE:
            parent = str((directory / name).parent)
            assert any(parent in record.getMessage() for record in records), (name, found, caplog.text)


def test_a_metadata_log_that_was_emptied_is_not_begun_anew(tmp_path: Path, protos: dict[str, Path]) -> None:
    """After a kill it looked like a first start that was cut short: all topics were forgotten, without a word."""
    for item in protos["killed"].iterdir():
        (shutil.copytree if item.is_dir() else shutil.copy)(item, tmp_path / item.name)
    (path,) = (tmp_path / "__cluster_metadata-0").glob("*.log")
    before = path.read_bytes()
    path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(FastqError, match=r"__cluster_metadata-0 holds no record, but .* holds the logs of 2 part"):
            asyncio.run(look(tmp_path))
    path.write_bytes(before)
    assert asyncio.run(look(tmp_path)) == WHOLE


@pytest.mark.parametrize("bit", [1 << 62, 1 << 40, 1 << 31])
def test_an_offset_that_no_index_can_hold_is_damage(tmp_path: Path, protos: dict[str, Path], bit: int) -> None:
    """The checksum does not cover it: the broker did not start."""
    shutil.copytree(protos["killed"], tmp_path / "data")
    (tmp_path / "data" / "recovery-point-offset-checkpoint").unlink()
    (path,) = (tmp_path / "data" / "t-0").glob("*.log")
    data = bytearray(path.read_bytes())
    position, header = list(iter_headers(bytes(data)))[COUNT // 2]
    data[position : position + 8] = (header.base_offset | bit).to_bytes(8, "big")
    path.write_bytes(data)
    assert asyncio.run(look(tmp_path / "data")) == {"records": COUNT // 2, "committed": 9}
