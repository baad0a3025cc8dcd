"""A metadata directory that something has damaged: what costs nothing, what is refused, and what a repair keeps.

The oracle is a list of the changes that were made, each with the offset after it: a start that succeeds has all of them, one
that is refused names file, place and command and changes nothing, and a repair keeps those below the damage.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastq_broker.__main__ import main
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import Controller, MetadataError, NewTopic, repair
from fastq_broker.controller.inspection import inspect, judge
from fastq_broker.controller.snapshot import image_records, list_snapshots, write_snapshot
from fastq_broker.controller.storage import QuorumState, clean_shutdown_epoch
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.raft.voters import ReplicaKey, Voter

from fastq._native.records import build_batch, iter_headers
from fastq.errors import ConfigError

NOW = 1_790_000_000_000
FIRST = "00000000000000000000.log"


class Cluster:
    """A data directory with a history: topics a and b, a snapshot, topics c and d, one topic a batch."""

    def __init__(self, root: Path, *, snapshots: int = 1) -> None:
        self.root = root
        self.meta = root / "__cluster_metadata-0"
        self.made: list[tuple[int, str]] = []
        controller = self.open()
        self.create(controller, "a", "b")
        for number in range(snapshots):
            controller.snapshots.write(controller.image, NOW)
            self.create(controller, *(f"{name}{number or ''}" for name in "cd"))
        self.snapshot_end = list_snapshots(self.meta)[-1].end_offset
        controller.quorum.close()

    def config(self) -> BrokerConfig:
        return BrokerConfig.from_mapping({"log.dirs": str(self.root), "listeners": "PLAINTEXT://127.0.0.1:9092"})

    def open(self) -> Controller:
        config = self.config()
        controller = Controller(config, clock=lambda: NOW)
        controller.open()
        controller.register_broker(config.advertised_listeners)
        return controller

    def create(self, controller: Controller, *names: str) -> None:
        for name in names:
            (result,) = controller.create_topics([NewTopic(name, 2)])
            assert result.error == 0
            self.made.append((controller.quorum.end_offset, name))
        controller.settle()

    def topics(self, below: int = 1 << 62) -> set[str]:
        return {name for end, name in self.made if end <= below}

    def log(self) -> Path:
        return self.meta / FIRST

    def batches(self) -> list[tuple[int, int, int, int]]:
        """(position, end, base offset, next offset) of the batches on disk."""
        data = self.log().read_bytes()
        return [(at, at + item.size_bytes, item.base_offset, item.next_offset) for at, item in iter_headers(data)]

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}

    def flip(self, position: int, mask: int = 0x10) -> None:
        data = bytearray(self.log().read_bytes())
        data[position] ^= mask
        self.log().write_bytes(data)

    def refused(self) -> str:
        """The refusal of a start, which must have changed nothing and say what to do."""
        before = self.files()
        with pytest.raises((MetadataError, ConfigError)) as caught:
            self.open()
        assert self.files() == before
        text = str(caught.value)
        assert str(self.root) in text
        return text

    def repair(self, *arguments: str) -> int:
        return main(["repair", "--data-dir", str(self.root), *arguments])

    def check_grows(self) -> None:
        """A change made now is there after the next start, and lies above every snapshot."""
        controller = self.open()
        before = set(controller.image.topics_by_name)
        assert controller.quorum.end_offset > max(item.end_offset for item in list_snapshots(self.meta))
        self.create(controller, "later")
        controller.quorum.close()
        assert set(self.open().image.topics_by_name) == before | {"later"}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "data")


def boundary(cluster: Cluster) -> int:
    """The position in the log where its latest snapshot ends."""
    return next(at for at, _, base, _ in cluster.batches() if base == cluster.snapshot_end)


def test_damage_below_a_snapshot_costs_nothing(cluster: Cluster) -> None:
    at = next(at for at, _, _, following in cluster.batches() if following == cluster.made[0][0])
    cluster.flip(at + 80)
    controller = cluster.open()
    assert set(controller.image.topics_by_name) == cluster.topics()
    assert controller.quorum.start_offset == cluster.snapshot_end
    cluster.check_grows()


def test_damage_above_a_snapshot_is_refused_until_it_is_accepted(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    at = next(at for at, _, _, following in cluster.batches() if following == cluster.made[2][0])
    cluster.flip(at + 80)
    text = cluster.refused()
    for part in (
        FIRST,
        f"byte {at}",
        "checksum",
        "topic d was created",
        f"fastq-broker repair --data-dir {cluster.root}",
    ):
        assert part in text
    before = cluster.files()
    assert cluster.repair() == 1
    assert cluster.files().items() >= before.items()
    out = capsys.readouterr().out
    assert "lost: topic d was created" in out
    assert "nothing was changed" in out
    assert cluster.repair("--execute") == 0
    assert ".before-repair.1.tar" in capsys.readouterr().out
    assert (cluster.root / "__cluster_metadata-0.before-repair.1.tar").exists()
    controller = cluster.open()
    assert set(controller.image.topics_by_name) == {"a", "b"}
    cluster.check_grows()
    assert cluster.repair() == 0


def test_a_repair_gives_no_producer_id_twice(cluster: Cluster) -> None:
    controller = cluster.open()
    controller.snapshots.write(controller.image, NOW)
    given = controller.allocate_producer_ids().first
    controller.quorum.close()
    cluster.flip(cluster.batches()[-1][0] + 70)
    cluster.refused()
    assert cluster.repair("--execute") == 0
    assert cluster.open().allocate_producer_ids().first >= given + 1000


def every_flip(cluster: Cluster) -> Iterator[tuple[int, int]]:
    for at, end, _, _ in cluster.batches():
        yield from ((position, 1 << (position % 8)) for position in range(at, end))


def test_every_bit_position_of_the_log_is_judged_right(cluster: Cluster) -> None:
    whole = cluster.log().read_bytes()
    border = boundary(cluster)
    ends = {at: (base, following) for at, _, base, following in cluster.batches()}
    for position, mask in every_flip(cluster):
        cluster.flip(position, mask)
        at = max(start for start in ends if start <= position)
        found = inspect(cluster.meta, stopped_cleanly=False, quorum_epoch=1)
        verdict = judge(found, broker_epoch=-1, quorum_epoch=1, alone=True)
        assert found.torn is None, position
        if position < border:
            assert not verdict.losses, position
            assert verdict.begin_at in (None, cluster.snapshot_end), position
        else:
            (loss,) = verdict.losses
            assert f"byte {at}," in loss
            mended = found.damages[0].mended
            assert (mended is not None) is (position - at < 17), position
            if mended is not None:
                assert (mended.base_offset, mended.next_offset) == ends[at]
        cluster.log().write_bytes(whole)


@pytest.mark.parametrize("at", [0, 5, 10, 14, 16])
@pytest.mark.parametrize("which", [-1, -2])
def test_a_header_outside_of_the_checksum_is_mended_without_a_loss(cluster: Cluster, at: int, which: int) -> None:
    cluster.flip(cluster.batches()[which][0] + at)
    assert "No readable change would be lost" in cluster.refused()
    assert cluster.repair("--execute") == 0
    assert set(cluster.open().image.topics_by_name) == cluster.topics()
    cluster.check_grows()


@pytest.mark.parametrize("missing", [1, 5, 60, 100])
def test_a_torn_tail_is_no_damage_after_a_crash(cluster: Cluster, missing: int) -> None:
    at, end, base, _ = cluster.batches()[-1]
    data = cluster.log().read_bytes()
    cluster.log().write_bytes(data[: max(end - missing, at + 1)])
    assert set(cluster.open().image.topics_by_name) == cluster.topics(base)
    cluster.check_grows()


def test_blocks_that_were_never_written_are_a_torn_tail(cluster: Cluster) -> None:
    data = cluster.log().read_bytes()
    size = 4000 - len(data)  # so that it reaches over the ends of sectors
    batch = build_batch([(NOW, None, bytes([7]) * size)], base_offset=cluster.batches()[-1][3], leader_epoch=1)
    written = 3584 - len(data)
    cluster.log().write_bytes(data + batch[:written] + bytes(len(batch) - written))
    assert set(cluster.open().image.topics_by_name) == cluster.topics()
    cluster.log().write_bytes(data + bytes(4096))
    assert set(cluster.open().image.topics_by_name) == cluster.topics()


def test_a_torn_tail_after_a_clean_stop_is_damage(cluster: Cluster) -> None:
    controller = cluster.open()
    cluster.create(controller, "e")
    epoch = controller.broker_epoch
    controller.close()
    (cluster.root / ".kafka_cleanshutdown").write_text(json.dumps({"version": 0, "brokerEpoch": epoch}))
    cluster.log().write_bytes(cluster.log().read_bytes()[:-5])
    assert "is damaged at byte" in cluster.refused()
    assert cluster.repair("--execute") == 0
    assert clean_shutdown_epoch([cluster.root]) == -1
    assert set(cluster.open().image.topics_by_name) == cluster.topics()


def test_a_torn_tail_of_a_start_that_did_not_come_to_its_logs_is_no_damage(cluster: Cluster) -> None:
    """The mark of the clean stop before it is still there, and the epoch is the one in which it wrote."""
    (cluster.root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":2}')
    controller = cluster.open()
    cluster.create(controller, "later", "torn")
    end = cluster.batches()[-1][1]
    image = cluster.root.with_name("image")
    shutil.copytree(cluster.root, image)  # as a loss of power leaves it
    controller.quorum.close()
    log = image / cluster.meta.name / FIRST
    os.truncate(log, end - 3)
    shutil.rmtree(cluster.root)
    image.rename(cluster.root)
    assert set(cluster.open().image.topics_by_name) == cluster.topics() - {"torn"}


def test_a_log_that_ends_before_the_last_clean_stop_is_refused(cluster: Cluster) -> None:
    controller = cluster.open()
    epoch = controller.broker_epoch
    controller.close()
    (cluster.root / ".kafka_cleanshutdown").write_text(json.dumps({"version": 0, "brokerEpoch": epoch}))
    at = next(at for at, _, base, _ in cluster.batches() if base == epoch)
    cluster.log().write_bytes(cluster.log().read_bytes()[:at])
    assert f"had registered at {epoch}" in cluster.refused()
    assert cluster.repair("--execute") == 0
    assert set(cluster.open().image.topics_by_name) == cluster.topics()


@pytest.mark.parametrize("left", ["nothing", "no bytes", "zeros", "a batch", "half a batch"])
def test_a_log_that_ends_below_a_snapshot_is_refused(cluster: Cluster, left: str) -> None:
    """It was taken for one that had nothing above the snapshot: topics made there were gone, deleted ones back, without a word."""
    at, end, _, _ = next(found for found in cluster.batches() if found[3] == cluster.made[0][0])
    data = cluster.log().read_bytes()
    producer_ids = cluster.open().image.next_producer_id
    cluster.log().unlink()
    if left != "nothing":
        kept = {"zeros": bytes(len(data)), "a batch": data[:at], "half a batch": data[: (at + end) // 2]}
        cluster.log().write_bytes(kept.get(left, b""))
    (cluster.meta / "quorum-state").unlink()  # which says that there was an epoch after it
    assert f"below its latest snapshot, which ends at {cluster.snapshot_end}" in cluster.refused()
    assert cluster.repair() == 1
    assert cluster.repair("--execute") == 0
    assert cluster.repair() == 0
    controller = cluster.open()
    assert set(controller.image.topics_by_name) == {"a", "b"}
    assert controller.quorum.start_offset == cluster.snapshot_end
    assert controller.image.next_producer_id > producer_ids + 1_000_000  # of those lost some may be in use
    controller.quorum.close()
    cluster.check_grows()


def test_a_repair_without_room_changes_nothing_and_names_the_file(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "No space left on device" and no more, and left half a copy."""
    cluster.flip(cluster.batches()[-1][0] + 80)
    before = cluster.files()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert cluster.repair("--execute") == 2
    copy = f"{cluster.meta}.before-repair.1.tar"
    assert f"No space left on device: '{copy}'" in capsys.readouterr().err
    assert {path: data for path, data in cluster.files().items() if not path.endswith(".lock")} == before
    assert cluster.repair("--execute") == 0 and Path(copy).exists()


def test_a_repair_that_is_cut_short_keeps_its_reason(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """That a snapshot beyond the log cannot be used is all that says that something is lost."""
    damage_file(cluster.meta / list_snapshots(cluster.meta)[-1].file_name, "flipped")
    at = next(at for at, _, _, following in cluster.batches() if following == cluster.made[0][0])
    cluster.log().write_bytes(cluster.log().read_bytes()[:at])
    given_out = cluster.made[-1][0]

    def stops(*_: object) -> None:
        raise OSError(errno.EIO, "the power goes")

    for step in ("begin_anew", "set_aside"):
        with monkeypatch.context() as patch:
            patch.setattr(repair, step, stops)
            assert cluster.repair("--execute") == 2
        assert "before a snapshot that cannot be used" in cluster.refused()
    assert cluster.repair("--execute") == 0
    assert cluster.open().image.next_producer_id > given_out


@pytest.mark.parametrize("version", [0, 1])
def test_the_metadata_of_one_of_several_is_not_repaired(
    cluster: Cluster, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others have what it cuts off. Whoever asks need not say that there are others: `quorum-state` names them, or the log does."""
    controller = cluster.open()
    others = {number: Voter(ReplicaKey(number, bytes([number]) * 16), {}, (0, 1)) for number in (2, 3)}
    voters = controller.quorum.voters.with_voter(others[2]).with_voter(others[3])
    if version:
        controller.quorum.disk.append_voters(controller.epoch, voters)
    controller.quorum.close()
    if not version:
        QuorumState(controller.epoch, 1, data_version=0, voters=(1, 2, 3)).write(cluster.meta)
    at = next(at for at, _, _, following in cluster.batches() if following == cluster.made[2][0])
    cluster.flip(at + 80)
    before = cluster.files()
    for arguments in ((), ("--execute",)):
        assert cluster.repair(*arguments) == 2
        said = capsys.readouterr().err
        assert f"{FIRST} is damaged at byte {at}" in said and f"set {cluster.root} aside" in said
        assert (
            f"fastq-broker format --cluster-id {controller.cluster_id} --config FILE --no-initial-controllers" in said
        )
    assert {path: data for path, data in cluster.files().items() if not path.endswith(".lock")} == before


def test_voters_that_the_log_has_lost_are_missed(cluster: Cluster) -> None:
    """A log that knew them, by `quorum-state`, and does not any more: nobody founds a quorum of his own over that."""
    latest = list_snapshots(cluster.meta)[-1]
    image = cluster.open().image
    for path in cluster.meta.glob("0*"):
        path.unlink()
    write_snapshot(
        cluster.meta / latest.file_name,
        list(image_records(image)),
        epoch=latest.epoch,
        timestamp_ms=NOW,
        last_timestamp_ms=NOW,
        kraft_version=None,
        voters=None,
    )
    (cluster.meta / f"{latest.end_offset:020d}.log").touch()
    QuorumState(latest.epoch, 1, data_version=1).write(cluster.meta)
    with pytest.raises(MetadataError, match=r"quorum-state was written under kraft.version 1.* names any: restore"):
        cluster.open()


@pytest.mark.parametrize(("removed", "votes", "losses"), [(False, True, 0), (True, False, 0), (True, True, 1)])
def test_the_log_of_one_among_others_may_end_below_a_snapshot(
    cluster: Cluster, removed: bool, votes: bool, losses: int
) -> None:
    """It has fetched the snapshot, and was stopped before its log began there, or its disk failed to sync what others had. One that is
    gone altogether was removed: on what a voter had in it others may count."""
    if removed:
        cluster.log().unlink()
    else:
        cluster.log().write_bytes(b"")
    for quorum_epoch in (None, 9):
        found = inspect(cluster.meta, stopped_cleanly=False, quorum_epoch=quorum_epoch)
        verdict = judge(found, broker_epoch=-1, quorum_epoch=quorum_epoch, alone=False, votes=votes)
        assert (verdict.begin_at, len(verdict.losses)) == (cluster.snapshot_end, losses if quorum_epoch else 0)


def test_a_log_that_is_gone_is_refused_when_more_was_in_it(cluster: Cluster) -> None:
    cluster.open().quorum.close()  # epoch 2 begins behind the snapshot of epoch 1
    cluster.log().unlink()
    assert "quorum-state says that epoch 2 has begun" in cluster.refused()
    assert cluster.repair("--execute") == 0
    assert set(cluster.open().image.topics_by_name) == {"a", "b"}
    cluster.check_grows()


@pytest.mark.parametrize("steps", range(8))
def test_a_new_begin_that_is_cut_short_is_begun_again(
    cluster: Cluster, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = next(at for at, _, _, following in cluster.batches() if following == cluster.made[0][0])
    cluster.flip(at + 80)
    left = steps

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.EIO, "the power is gone")
            return real(*arguments, **named)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(repair, "sync_directory", counted(repair.sync_directory))
        patch.setattr(Path, "replace", counted(Path.replace))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        with contextlib.suppress(OSError):
            cluster.open()
    assert set(cluster.open().image.topics_by_name) == cluster.topics()
    cluster.check_grows()


def test_a_log_that_cannot_be_read_is_refused_by_name(cluster: Cluster) -> None:
    cluster.log().unlink()
    cluster.log().mkdir()
    text = cluster.refused()
    assert str(cluster.log()) in text
    assert "restore it from a copy" in text
    assert cluster.repair() == 2


def test_a_metadata_directory_that_is_gone_is_not_made_anew_over_logs(cluster: Cluster) -> None:
    log = cluster.root / "a-0"
    log.mkdir()
    (log / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    shutil.rmtree(cluster.meta)
    assert "holds the logs of 1 partitions" in cluster.refused()


def damage_file(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "directory":
        path.unlink()
        path.mkdir()
    elif how == "flipped":
        path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :])
    else:
        path.write_bytes(data[: int(how)])


HOWS = ["gone", "directory", "flipped", "0", "1", "61", "200"]


@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_snapshot_is_stepped_over(tmp_path: Path, how: str) -> None:
    cluster = Cluster(tmp_path / "data", snapshots=2)
    newest = cluster.meta / list_snapshots(cluster.meta)[-1].file_name
    damage_file(newest, how)
    controller = cluster.open()
    assert set(controller.image.topics_by_name) == cluster.topics()
    assert not newest.exists()
    controller.snapshots.write(controller.image, NOW)
    cluster.check_grows()


@pytest.mark.parametrize("how", HOWS[1:])
def test_a_damaged_snapshot_that_was_needed_is_refused(cluster: Cluster, how: str) -> None:
    at = next(at for at, _, _, following in cluster.batches() if following == cluster.made[0][0])
    cluster.flip(at + 80)
    damage_file(cluster.meta / list_snapshots(cluster.meta)[-1].file_name, how)
    text = cluster.refused()
    assert f"byte {at}" in text
    assert "topic b was created" in text


def test_a_damaged_snapshot_beyond_the_log_is_refused(cluster: Cluster) -> None:
    damage_file(cluster.meta / list_snapshots(cluster.meta)[-1].file_name, "flipped")
    at = next(at for at, _, _, following in cluster.batches() if following == cluster.made[0][0])
    cluster.log().write_bytes(cluster.log().read_bytes()[:at])
    assert "before a snapshot that cannot be used" in cluster.refused()
    assert cluster.repair("--execute") == 0
    assert set(cluster.open().image.topics_by_name) == set()
    cluster.check_grows()


@pytest.mark.parametrize("how", HOWS)
def test_quorum_state_is_made_anew_where_the_node_is_alone(cluster: Cluster, how: str) -> None:
    before = QuorumState.read(cluster.meta)
    assert before is not None
    damage_file(cluster.meta / "quorum-state", how if how != "flipped" else "30")
    controller = cluster.open()
    assert controller.epoch == before.leader_epoch + 1
    assert set(controller.image.topics_by_name) == cluster.topics()


def test_a_quorum_that_nobody_knows_is_refused(cluster: Cluster) -> None:
    controller = cluster.open()
    controller.quorum.close()
    image = controller.image
    for path in cluster.meta.glob("0*"):
        path.unlink()
    write_snapshot(  # as a directory of a static quorum has it
        cluster.meta / SnapshotId(image.offset + 1, image.epoch).file_name,
        list(image_records(image)),
        epoch=image.epoch,
        timestamp_ms=NOW,
        last_timestamp_ms=NOW,
        kraft_version=None,
        voters=None,
    )
    (cluster.meta / f"{image.offset + 1:020d}.log").touch()
    (cluster.meta / "quorum-state").write_text("?")
    with pytest.raises(ConfigError, match=r"quorum-state.*restore that file, or remove it if this node is alone in it"):
        cluster.open()
    (cluster.meta / "quorum-state").unlink()
    assert set(cluster.open().image.topics_by_name) == cluster.topics()


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"version=1\nnode.id=1\n", b"version=3\nnode.id=1\ncluster.id=c\n"]
)
def test_a_damaged_identity_is_refused(cluster: Cluster, content: bytes) -> None:
    (cluster.root / "meta.properties").write_bytes(content)
    text = cluster.refused()
    assert "meta.properties" in text
    assert "cluster.id=" in text


@pytest.mark.parametrize("how", HOWS)
def test_bootstrap_records_are_not_needed_any_more(cluster: Cluster, how: str) -> None:
    damage_file(cluster.root / "bootstrap.checkpoint", how)
    assert set(cluster.open().image.topics_by_name) == cluster.topics()


def flip_some(data: bytearray, choose: random.Random) -> int:
    places = [choose.randrange(len(data)) for _ in range(choose.choice([1, 1, 2, 5]))]
    for place in places:
        data[place] ^= 1 << choose.randrange(8)
    return min(places)


def zero_some(data: bytearray, choose: random.Random) -> int:
    start = choose.randrange(len(data))
    end = min(start + choose.choice([1, 61, 512]), len(data))
    data[start:end] = bytes(end - start)
    return start


def remove_some(data: bytearray, choose: random.Random) -> int:
    start = choose.randrange(len(data) - 1)
    del data[start : min(start + choose.choice([1, 100, 700]), len(data) - 1)]
    return start


def insert_some(data: bytearray, choose: random.Random) -> int:
    start = choose.randrange(len(data))
    data[start:start] = choose.randbytes(choose.choice([1, 20, 600]))
    return start


DAMAGES: list[Callable[[bytearray, random.Random], int]] = [flip_some, zero_some, remove_some, insert_some]


@pytest.mark.parametrize("seed", range(60))
def test_random_damage_loses_nothing_in_silence(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    cluster = Cluster(tmp_path / "data", snapshots=choose.choice([1, 1, 2]))
    if choose.random() < 0.5:
        controller = cluster.open()
        cluster.create(controller, "e")
        controller.quorum.close()
    damage = DAMAGES[seed % len(DAMAGES)]
    data = bytearray(cluster.log().read_bytes())
    batches = cluster.batches()
    position = damage(data, choose)
    reached = max(base for at, _, base, _ in batches if at <= position)
    cluster.log().write_bytes(data)
    try:
        found = set(cluster.open().image.topics_by_name)
    except MetadataError as error:
        text = str(error)
        assert "fastq-broker repair" in text
        assert str(cluster.meta) in text
        assert cluster.repair("--execute") == 0
        found = set(cluster.open().image.topics_by_name)
        for name in cluster.topics() - found:
            assert f"topic {name} was created" in text or "what stood at byte" in text
        assert found >= cluster.topics(cluster.snapshot_end)
    else:
        # A last batch that is too short, or ends in zeros, is what a crash leaves of one that was not synced.
        torn = damage in (zero_some, remove_some)
        assert found >= (cluster.topics(reached) if torn else cluster.topics())
    cluster.check_grows()
