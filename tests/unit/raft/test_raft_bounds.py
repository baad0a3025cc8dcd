"""Questions that no member of a quorum asks: each is answered with Kafka's error, none of them moves anything, or makes anything grow."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.log import failures
from fastq_broker.raft import leader, wire
from fastq_broker.raft.messages import (
    AddVoter,
    BeginEpoch,
    EndEpoch,
    FetchedSnapshot,
    FetchSnapshot,
    SnapshotId,
    VoterAnswer,
)
from fastq_broker.raft.roles import Committed, RaftFatal, Role
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter
from raft_members import PATIENT, Member, quorum, until
from raft_setting import PLACES, B, Setting, T, from_leader, with_snapshot

from fastq.errors import ErrorCode, KafkaStorageError
from fastq.protocol import messages as m

LAST = 2**31 - 1


def test_an_epoch_that_none_can_follow_is_nobodys() -> None:
    setting = Setting(1, 4)
    told = {"CONTROLLER": PLACES[2]}
    assert setting.vote(epoch=LAST).error == ErrorCode.INVALID_REQUEST
    assert setting.machine.begin_epoch(BeginEpoch("c", LAST, 2, None, told), T).error == ErrorCode.INVALID_REQUEST
    assert setting.machine.end_epoch(EndEpoch("c", LAST, 2, (), told), T).error == ErrorCode.INVALID_REQUEST
    assert setting.machine.epoch == 4
    setting.vote(epoch=LAST - 1)
    with pytest.raises(RaftFatal, match="no epoch comes after 2147483646"):
        setting.lead()


def test_a_leader_that_names_thousands_of_successors_goes_all_the_same() -> None:
    setting = Setting(1, 4)
    successors = (*(ReplicaKey(number) for number in range(10, 5010)), ReplicaKey(1))
    assert setting.machine.end_epoch(EndEpoch("c", 5, 2, successors, {"CONTROLLER": PLACES[2]}), T).error == 0
    assert setting.machine.next_wakeup(T) <= T + setting.machine.config.election_backoff_max_s


def test_a_piece_of_a_snapshot_of_less_than_nothing() -> None:
    setting = with_snapshot()
    ask = FetchSnapshot("c", setting.machine.epoch, B, SnapshotId(2, 1), 0, -1)
    assert setting.machine.fetch_snapshot(ask, setting.now).error == ErrorCode.INVALID_REQUEST
    assert setting.machine.fetch_snapshot(ask._replace(bytes_max=0), setting.now).data == b""


def test_a_fetch_takes_no_more_than_a_leader_gives() -> None:
    asked = []
    setting = Setting(1, 4, fetch_bytes_max=4096)
    setting.lead()
    read = setting.log.read
    setting.log.read = lambda offset, bytes_max: asked.append(bytes_max) or read(offset, bytes_max)  # type: ignore
    for bytes_max in (LAST, 100, -1):
        (answer,) = setting.fetch(offset=1, last_epoch=1, bytes_max=bytes_max)
        assert answer.error == 0 and answer.records
    assert asked == [4096, 100, 0]


@pytest.mark.parametrize("waits", [True, False])
def test_records_that_cannot_be_read_are_an_error_to_who_asks_and_to_nobody_else(waits: bool) -> None:
    setting = Setting(1, 4)
    setting.lead()
    machine, end = setting.machine, setting.log.end
    answers: list[Any] = []
    ask = wire.Fetch("c", machine.epoch, B, end, machine.epoch, end, 0.5, 1 << 20)
    if waits:
        for _ in range(2):
            machine.fetch(ask, setting.now, answers.append)

    def fails(offset: int, bytes_max: int) -> bytes:
        raise KafkaStorageError("no descriptor")

    setting.log.read = fails  # type: ignore[method-assign]
    assert machine.append([b"v"]) > 0  # that it was written is true whoever can read it
    if not waits:
        machine.fetch(ask, setting.now, answers.append)
    assert [answer.error for answer in answers] == [ErrorCode.KAFKA_STORAGE_ERROR] * (1 + waits)
    assert machine.role is Role.LEADER


def test_readers_without_an_id_are_answered_and_not_known() -> None:
    setting = Setting(1, 4)
    setting.lead()
    assert setting.machine.leadership is not None
    known = len(setting.machine.leadership.others)
    (answer,) = setting.fetch(offset=1, last_epoch=1, replica=ReplicaKey(-1))
    assert answer.error == 0 and answer.records
    assert len(setting.machine.leadership.others) == known


def test_so_many_observers_are_known_and_every_voter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "OBSERVERS_MAX", 20)
    setting = Setting(1, 4)
    setting.lead()
    machine, end = setting.machine, setting.log.end
    for number in range(100, 200):
        (answer,) = setting.fetch(offset=end - 1, last_epoch=4, replica=ReplicaKey(number, b"o" * 16), wait_s=0.0)
        assert answer.error == 0
    assert machine.leadership is not None and len(machine.leadership.others) == 20
    del machine.leadership.others[B]  # it has been silent for long
    setting.fetch(offset=end, last_epoch=machine.epoch, wait_s=0.0)
    assert B in machine.leadership.others and machine.high_watermark == end


def test_a_voter_without_an_id_is_none() -> None:
    setting = Setting(1, 4)
    setting.lead()
    said: list[VoterAnswer] = []
    nobody = Voter(ReplicaKey(-5, b"d" * 16), {"CONTROLLER": Endpoint("h", 1)}, (0, 1))
    setting.machine.add_voter(AddVoter("c", 5.0, nobody, True), setting.now, said.append)
    assert said[0].error == ErrorCode.INVALID_REQUEST and "a node id" in said[0].message
    assert setting.machine.change is None


def test_two_that_lead_one_epoch_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    failures._places.clear()
    setting = Setting(1, 4)
    setting.follow(epoch=5)
    for _ in range(50):
        ask = BeginEpoch("c", 5, 3, None, {"CONTROLLER": PLACES[3]})
        assert setting.machine.begin_epoch(ask, T).error == ErrorCode.INVALID_REQUEST
    assert len([record for record in caplog.records if "says that it leads" in record.message]) == 1


def test_an_empty_piece_of_a_snapshot_is_not_asked_for_without_a_pause() -> None:
    """As of a leader whose snapshot is cut short under it."""
    follower = Setting()
    follower.machine.begin_epoch(BeginEpoch("c", 5, 2, None, {"CONTROLLER": PLACES[2]}), T)
    follower.fetched(from_leader(snapshot=SnapshotId(4, 2)))
    send = follower.asks()
    assert isinstance(send.ask, FetchSnapshot)
    empty = FetchedSnapshot(0, 2, 5, PLACES[2], SnapshotId(4, 2), 1000, 0, b"")
    follower.machine.answered(send.link, send.ask, empty, T)
    asked = [ask for ask in follower.sent(T) if ask.link == send.link]
    assert asked == [] and follower.machine.next_wakeup(T) == T + follower.machine.config.retry_backoff_s


# -- on sockets


def asks(cluster: str, epoch: int) -> list[Any]:
    """A question of each API that names the metadata log, as a node without endpoints (KIP-853) asks it."""
    vote = m.VoteRequest.PartitionData(partition_index=0, replica_epoch=epoch, replica_id=9)
    begun = m.BeginQuorumEpochRequest.PartitionData(partition_index=0, leader_id=9, leader_epoch=epoch - 1)
    ended = m.EndQuorumEpochRequest.PartitionData(partition_index=0, leader_id=9, leader_epoch=epoch - 1)
    piece = m.FetchSnapshotRequest.PartitionSnapshot(
        partition=0, current_leader_epoch=epoch, snapshot_id=m.FetchSnapshotRequest.SnapshotId(end_offset=9, epoch=9)
    )
    name = "__cluster_metadata"
    return [
        m.VoteRequest(cluster_id=cluster, topics=[m.VoteRequest.TopicData(topic_name=name, partitions=[vote])]),
        m.BeginQuorumEpochRequest(
            cluster_id=cluster, topics=[m.BeginQuorumEpochRequest.TopicData(topic_name=name, partitions=[begun])]
        ),
        m.EndQuorumEpochRequest(
            cluster_id=cluster, topics=[m.EndQuorumEpochRequest.TopicData(topic_name=name, partitions=[ended])]
        ),
        m.FetchSnapshotRequest(
            cluster_id=cluster,
            max_bytes=1 << 20,
            topics=[m.FetchSnapshotRequest.TopicSnapshot(name=name, partitions=[piece])],
        ),
    ]


def test_the_oldest_versions_are_answered_where_a_leader_is_known() -> None:
    """They have no place for its address."""
    setting = Setting(1, 4)
    setting.follow()
    for request in asks("c", 5):
        ask = wire.ask_of(request)
        answer: Any
        if isinstance(ask, FetchSnapshot):
            answer = setting.machine.fetch_snapshot(ask, T)
        elif isinstance(ask, BeginEpoch):
            answer = setting.machine.begin_epoch(ask, T)
        elif isinstance(ask, EndEpoch):
            answer = setting.machine.end_epoch(ask, T)
        else:
            answer = setting.machine.vote(ask, T)  # type: ignore[arg-type]
        assert answer.endpoint == PLACES[2]
        for version in range(request.MIN_VERSION, request.MAX_VERSION + 1):
            response = wire.response_of(request, answer, version)
            assert bytes(response.to_bytes(version))
            assert bool(response.node_endpoints) == (version > 0)


# -- what fails inside


async def settled(members: list[Member]) -> Member:
    await until(lambda: any(member.leads for member in members))
    first = next(member for member in members if member.leads)
    await until(lambda: all(Committed(first.disk.log.end) in member.news for member in members))
    return first


@pytest.mark.parametrize("where", ["poll", "answered"])
def test_a_leader_that_fails_inside_resigns_says_so_and_goes(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with quorum(tmp_path, **PATIENT) as members:
            first = await settled(members)
            assert first.driver is not None
            machine, broken = first.driver.machine, [True]
            works: Callable[..., Any] = getattr(machine, where)

            def fails(*given: Any, **named: Any) -> Any:
                if broken and (where == "poll" or machine.role is Role.FOLLOWER):
                    broken.clear()
                    raise IndexError("a mistake")
                return works(*given, **named)

            if where == "answered":
                first = next(member for member in members if not member.leads)
                assert first.driver is not None
                machine = first.driver.machine
                works = machine.answered
            monkeypatch.setattr(machine, where, fails)
            first.driver.turn()
            await until(lambda: any(isinstance(news, RaftFatal) for news in first.news))
            (fatal,) = [news for news in first.news if isinstance(news, RaftFatal)]
            assert "it fails inside" in str(fatal) and "IndexError('a mistake')" in str(fatal)
            assert first.driver.closed
            rest = [member for member in members if member is not first]
            await until(lambda: any(member.leads for member in rest))
            if where == "poll":
                assert machine.role is Role.RESIGNED and machine.may_end  # the others have been told

    asyncio.run(scenario())
    assert [record for record in caplog.records if record.exc_info and "fails in what it does" in record.message]


def test_a_leader_without_a_descriptor_for_a_snapshot_leads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it cannot read now may be asked for again; one that is gone is nobody's to be told of."""

    async def scenario() -> None:
        async with quorum(tmp_path, **PATIENT) as members:
            first = await settled(members)
            assert first.driver is not None
            log, machine = first.disk.log, first.driver.machine
            snapshot = SnapshotId(log.end, machine.epoch)
            path = first.path / snapshot.file_name
            path.write_bytes(b"s" * 100)
            log.snapshots_changed()
            epoch = m.FetchSnapshotRequest.PartitionSnapshot(
                partition=0,
                current_leader_epoch=machine.epoch,
                snapshot_id=m.FetchSnapshotRequest.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
            )
            topic = m.FetchSnapshotRequest.TopicSnapshot(name="__cluster_metadata", partitions=[epoch])
            ask = wire.ask_of(m.FetchSnapshotRequest(cluster_id="c", replica_id=9, max_bytes=10, topics=[topic]))
            assert isinstance(ask, FetchSnapshot)
            assert machine.fetch_snapshot(ask, first.driver.now()).data == b"s" * 10
            opens = Path.open

            def short(path: Path, *given: Any, **named: Any) -> Any:
                if path.name.endswith(".checkpoint"):
                    raise OSError(errno.EMFILE, "Too many open files", str(path))
                return opens(path, *given, **named)

            monkeypatch.setattr(Path, "open", short)
            with pytest.raises(KafkaStorageError):
                machine.fetch_snapshot(ask, first.driver.now())
            monkeypatch.setattr(Path, "open", opens)
            assert first.disk.dir.offline is None
            assert machine.fetch_snapshot(ask, first.driver.now()).data == b"s" * 10
            path.unlink()
            assert machine.fetch_snapshot(ask, first.driver.now()).error == ErrorCode.SNAPSHOT_NOT_FOUND
            assert first.leads and not log.snapshots

    asyncio.run(scenario())
