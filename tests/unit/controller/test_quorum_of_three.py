"""Three controllers on real files and loopback sockets: one is active, all know what is committed, and another goes on when it goes."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from controllers import Cluster, Node, SimulatedBroker, active, free_ports, until_async
from fastq_broker.controller import Controller, MetadataError, NewTopic, features, quorum
from fastq_broker.controller.quorum import MetadataQuorum
from fastq_broker.controller.snapshot import Batch
from fastq_broker.controller.storage import MetaProperties
from fastq_broker.log import failures
from fastq_broker.log.partition_log import PartitionLog
from fastq_broker.log.scan import LogSlice
from fastq_broker.raft.machine import RaftMachine
from fastq_broker.raft.roles import RaftFatal
from fastq_broker.raft.serving import change_voters
from raft_members import until

from fastq._native.records import iter_headers
from fastq.errors import KafkaError, NotController
from fastq.protocol.messages import (
    AddRaftVoterRequest,
    RegisterBrokerRecord,
    RemoveRaftVoterRequest,
    UpdateFeaturesRequest,
)
from fastq.protocol.uuid import uuid_to_str


def broker_record(controller: Controller) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=b"i" * 16,
        broker_epoch=controller.quorum.end_offset,
        fenced=False,
        log_dirs=[b"d" * 16],
    )


def test_one_is_active_and_all_know(tmp_path: Path) -> None:
    async def scenario() -> None:
        places = free_ports()
        nodes = [Node(number, tmp_path, places) for number in places]
        try:
            for node in nodes:
                await node.start()
            first = await active(nodes)
            assert set(features.BOOTSTRAP.items()) <= set(first.pending.features.items())
            first._commit([broker_record(first)])
            (made,) = first.create_topics([NewTopic("a", 3)])
            assert not made.error, made.message
            await first.flushed()
            assert first.image.topic("a") is not None
            everywhere = [node.controller for node in nodes if node.controller is not None]
            await until(lambda: all(controller.image.topic("a") is not None for controller in everywhere))
            assert all(controller.image.topics_by_id == first.image.topics_by_id for controller in everywhere)
            other = next(controller for controller in everywhere if controller is not first)
            (refused,) = other.create_topics([NewTopic("b")])
            assert refused.error == NotController.code
            gone = next(node for node in nodes if node.controller is first)
            (lost,) = first.create_topics([NewTopic("lost")])
            assert not lost.error and first.image.topic("lost") is None
            await gone.kill()
            rest = [node for node in nodes if node is not gone]
            second = await active(rest)
            (made,) = second.create_topics([NewTopic("c")])
            assert not made.error, made.message
            await second.flushed()
            await until(lambda: all(node.controller is not None and node.controller.image.topic("c") for node in rest))
            for node in rest:
                offsets = [image.offset for image in node.heard]
                assert offsets == sorted(offsets)
        finally:
            for node in nodes:
                await node.kill()

    asyncio.run(scenario())


@pytest.mark.parametrize("snapshot", [False, True])
def test_one_that_was_away_learns_what_it_missed(tmp_path: Path, snapshot: bool) -> None:
    async def scenario() -> None:
        places = free_ports()
        nodes = [Node(number, tmp_path, places) for number in places]
        away = nodes[2]
        try:
            for node in nodes[:2]:
                await node.start()
            leader = await active(nodes)
            leader._commit([broker_record(leader)])
            for number in range(20):
                leader.create_topics([NewTopic(f"t{number}")])
            topic = leader.pending.topics_by_name["t3"]
            leader.delete_topics([topic.topic_id])
            await leader.flushed()
            if snapshot:
                for _ in range(3):
                    leader.create_topics([NewTopic(f"more{leader.quorum.end_offset}")])
                    await leader.flushed()
                    leader.snapshots.write(leader.image, 1_790_000_000_000)
                assert leader.quorum.start_offset > 0
            await away.start()
            assert away.controller is not None
            learner = away.controller
            await until(lambda: learner.image.topics_by_id.keys() == leader.image.topics_by_id.keys())
            assert learner.image.topics_by_id == leader.image.topics_by_id
            assert learner.image.features == leader.image.features
        finally:
            for node in nodes:
                await node.kill()

    asyncio.run(scenario())


def test_one_whose_log_is_damaged_is_formatted_anew(tmp_path: Path) -> None:
    """Its start says that, and not how to repair it: the others have all of it, and it must not count as the one that had it."""

    async def scenario() -> None:
        places = free_ports()
        nodes = [Node(number, tmp_path, places) for number in places]
        try:
            for node in nodes:
                await node.start()
            leader = await active(nodes)
            leader._commit([broker_record(leader)])
            leader.create_topics([NewTopic("a")])
            leader.create_topics([NewTopic("b")])
            await leader.flushed()
            damaged = next(node for node in nodes if node.controller is not leader)
            await until(lambda: damaged.image.topic("b") is not None)
            await damaged.kill()
            log = damaged.path / "__cluster_metadata-0" / f"{0:020d}.log"
            data = bytearray(log.read_bytes())
            (at,) = [at for at, item in iter_headers(bytes(data)) if b"a" in data[at + 61 : at + item.size_bytes]][
                -2:-1
            ]
            data[at + 70] ^= 1
            log.write_bytes(data)
            with pytest.raises(MetadataError) as caught:
                await damaged.start()
            damaged.controller = None
            await damaged.server.stop()
            for part in (
                f"{log} is damaged at byte {at}",
                f"set {damaged.path} aside",
                "fastq-broker format",
                "majority",
            ):
                assert part in str(caught.value)
            assert "repair --" not in str(caught.value) and log.read_bytes() == data
            damaged.path.rename(tmp_path / "aside")
            await damaged.start()
            await until(lambda: damaged.image.topics_by_id == leader.image.topics_by_id)
        finally:
            for node in nodes:
                await node.kill()

    asyncio.run(scenario())


def test_who_cannot_apply_what_is_committed_goes(tmp_path: Path) -> None:
    """Here a record of a later version, from a leader that knows it: the others do not stay with metadata that stands still."""

    async def scenario() -> None:
        places = free_ports()
        nodes = [Node(number, tmp_path, places) for number in places]
        try:
            for node in nodes:
                await node.start()
            leader = await active(nodes)
            await leader.flushed()
            others = [node for node in nodes if node.controller is not leader]
            await until(lambda: all(node.image.offset == leader.image.offset for node in others))
            said: dict[int, str] = {}
            for node in others:
                assert node.controller is not None
                node.controller.quorum.on_fatal = partial(said.__setitem__, node.node_id)
            at = leader.quorum.end_offset
            leader.quorum.append([b"\x01\xff\x01\x00"])
            await until(lambda: len(said) == 2)
            for node in others:
                file = node.path / "__cluster_metadata-0" / f"{0:020d}.log"
                assert (
                    f"{file} holds a record that cannot be applied, in the batch at offset {at}: " in said[node.node_id]
                )
                assert "start this node with the version of the one that wrote it" in said[node.node_id]
                assert node.controller is not None and node.controller.quorum.driver.closed
        finally:
            for node in nodes:
                await node.kill()

    asyncio.run(scenario())


def test_a_leader_that_cannot_go_on_hands_over_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        places = free_ports()
        # Who goes waits for the others to hear it for as long as an election: not to be outlasted by a busy machine.
        times = {"controller_quorum_fetch_timeout_ms": 600_000, "controller_quorum_election_timeout_ms": 2_000}
        nodes = [Node(number, tmp_path, places, **times) for number in places]
        try:
            for node in nodes:
                await node.start()
            first = await active(nodes)
            first._commit([broker_record(first)])
            await first.flushed()
            said = list[str]()
            first.quorum.on_fatal = said.append

            def fails(news: object) -> None:
                raise MetadataError("no such record")

            monkeypatch.setattr(first.quorum.driver, "_on_news", fails)
            first.create_topics([NewTopic("a")])
            await until(lambda: bool(said))
            assert said == ["what is committed cannot be followed: no such record"] and first.quorum.driver.closed
            rest = [node for node in nodes if node.controller is not first]
            second = await active(rest)  # long before anybody's fetches time out
            await until(lambda: second.image.topic("a") is not None)
        finally:
            for node in nodes:
                await node.kill()

    asyncio.run(scenario())


def test_one_that_may_not_go_on_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        node = Node(1, tmp_path, free_ports())
        await node.start()
        try:
            assert node.controller is not None
            quorum, said = node.controller.quorum, list[str]()
            quorum.on_fatal = said.append

            def poll(now: float) -> None:
                raise RaftFatal("the leader's log contradicts what is committed here")

            monkeypatch.setattr(quorum.driver.machine, "poll", poll)
            quorum.driver.turn()
            quorum.driver.turn()
            assert said == ["the leader's log contradicts what is committed here"]
            assert quorum.driver.closed
            with pytest.raises(KafkaError, match="takes no part in its quorum any more"):
                # As who asks for a vote is told.
                await change_voters(quorum.driver, AddRaftVoterRequest(voter_id=4, voter_directory_id=b"d" * 16))
        finally:
            await node.kill()

    asyncio.run(scenario())


def level(name: str, level: int, upgrade_type: int = 1) -> UpdateFeaturesRequest.FeatureUpdateKey:
    return UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)


def test_voters_that_were_configured_come_and_go_from_kraft_version_1_on(tmp_path: Path) -> None:
    """And all that is still so when everybody was away."""

    async def scenario() -> None:
        async with Cluster(tmp_path) as cluster:

            async def update(*updates: UpdateFeaturesRequest.FeatureUpdateKey, validate_only: bool = False) -> str:
                request = UpdateFeaturesRequest(feature_updates=list(updates), validate_only=validate_only)
                response = await cluster.ask(request)
                assert response.error_code in (0, 95), response.error_message
                return response.error_message or ""

            def versions() -> list[int]:
                return [node.controller.quorum.kraft_version for node in cluster.nodes if node.controller is not None]

            def voters() -> list[list[int]]:
                return [sorted(node.controller.quorum.voters.ids) for node in cluster.nodes if node.controller]

            def remove(number: int) -> RemoveRaftVoterRequest:
                key = MetaProperties.read(cluster.nodes[number - 1].path)
                assert key is not None
                return RemoveRaftVoterRequest(cluster_id=None, voter_id=number, voter_directory_id=key.directory_id)

            async def could_be() -> bool:
                return not await update(level("kraft.version", 1), validate_only=True)

            assert "has not registered, and may not support this feature" in await update(level("kraft.version", 1))
            await cluster.register_controllers()
            await until_async(could_be)  # each voter tells its leader that it can
            assert (await cluster.ask(remove(3))).error_code == 35
            assert "only supports versions 0-1" in await update(level("kraft.version", 2))
            assert "Can't downgrade to a newer version." in await update(level("kraft.version", 1, 2))
            assert "feature transaction.version" in await update(
                level("kraft.version", 1), level("transaction.version", 9)
            )
            assert versions() == [0, 0, 0]
            before = (await cluster.image()).offset
            assert not await update(level("kraft.version", 1), level("group.version", 0, 2))
            image = await cluster.image()
            assert image.offset > before and image.features.get("group.version", 0) == 0
            await until(lambda: versions() == [1, 1, 1])
            assert "Can't downgrade the version of this feature." in await update(level("kraft.version", 0, 2))
            for node in cluster.nodes:
                await node.kill()
            for node in cluster.nodes:
                await node.start()
            leader = await cluster.active()
            assert versions() == [1, 1, 1] and voters() == [[1, 2, 3]] * 3
            assert leader.controller is not None
            assert leader.controller.finalized_features["kraft.version"] == 1
            other = next(node for node in cluster.nodes if node is not leader)
            response = await cluster.ask(remove(other.node_id))
            assert response.error_code == 0, response.error_message
            rest = sorted({1, 2, 3} - {other.node_id})
            await until(lambda: voters() == [rest] * 3)
            key = MetaProperties.read(other.path)
            assert key is not None
            joins = AddRaftVoterRequest(
                cluster_id=None,
                voter_id=other.node_id,
                voter_directory_id=key.directory_id,
                timeout_ms=60_000,
                listeners=[AddRaftVoterRequest.Listener(name="CONTROLLER", host="127.0.0.1", port=other.port)],
            )
            response = await cluster.ask(joins)
            assert response.error_code == 0, response.error_message
            await until(lambda: voters() == [[1, 2, 3]] * 3)

    asyncio.run(scenario())


def test_a_controller_whose_directory_has_another_id_is_told_that_it_has_no_vote(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.register_controllers()

            async def is_raised() -> bool:
                request = UpdateFeaturesRequest(feature_updates=[level("kraft.version", 1)])
                return not (await cluster.ask(request)).error_code

            await until_async(is_raised)
            changed = next(node for node in cluster.nodes if not node.is_active)
            await until(lambda: changed.controller is not None and changed.controller.quorum.kraft_version == 1)
            await changed.kill()
            before = MetaProperties.read(changed.path)
            assert before is not None
            replace(before, directory_id=b"other" * 3 + b"!").write(changed.path)
            await changed.start()
            active = await cluster.active()
            await until(lambda: changed.image.offset >= active.image.offset)
            (said,) = [record.message for record in caplog.records if "it has no vote until" in record.message]
            for part in (str(changed.path), uuid_to_str(before.directory_id), f"remove-controller {changed.node_id}"):
                assert part in said

    asyncio.run(scenario())


def test_clocks_an_hour_apart_move_nothing(tmp_path: Path) -> None:
    """No session, no election and no snapshot goes by the time of day; every controller is active once, and all start again."""

    async def scenario() -> None:
        cluster = Cluster(tmp_path, broker_session_timeout_ms=3000)
        for node, hours in zip(cluster.nodes, (-1, 0, 1), strict=True):
            node.clock_ms += hours * 3_600_000

        def is_followed(epoch: int) -> bool:
            return any(node.is_active and node.image.epoch > epoch for node in cluster.nodes)

        async with cluster:
            broker = SimulatedBroker(11, cluster)
            await broker.run()
            was_active = set[int]()
            while len(was_active) < 3:
                node = await cluster.active()
                controller = node.controller
                assert controller is not None
                if node.node_id not in was_active:
                    was_active.add(node.node_id)
                    (created,) = controller.create_topics([NewTopic(f"t{node.node_id}", replication_factor=1)])
                    assert not created.error, created.message
                    await controller.flushed()
                    controller.snapshots.write(controller.image, node.clock_ms)
                epoch = controller.epoch
                controller.quorum.driver.machine.resign(epoch, controller.quorum.driver.now())
                controller.quorum.driver.turn()
                await until(partial(is_followed, epoch))
            image = await cluster.image()
            assert not image.brokers[11].fenced and image.brokers[11].epoch == broker.epoch
            broker.kill()
            for node in cluster.nodes:
                await node.kill()
            for node in cluster.nodes:
                await node.start()
            made = {"t1", "t2", "t3"}
            await until(lambda: all(node.image.topics_by_name.keys() == made for node in cluster.nodes))

    asyncio.run(asyncio.wait_for(scenario(), 120))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("who", ["a follower", "the next leader"])
def test_one_without_a_descriptor_to_read_what_is_committed_goes_on_when_it_has_one(
    tmp_path: Path, who: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It leaves no quorum by that, misses nothing, and is not active before it has read all."""
    failures._places.clear()

    async def scenario() -> None:
        places = free_ports()
        nodes = [Node(number, tmp_path, places) for number in places]
        fatal: list[str] = []
        short = [True]
        reading: list[bool] = []  # what is written has its descriptor
        struck: list[str] = []
        try:
            for node in nodes:
                await node.start()
            first = await active(nodes)
            first._commit([broker_record(first)])
            await first.flushed()
            await until(lambda: all(node.image.offset == first.image.offset for node in nodes))
            gone = next(node for node in nodes if node.controller is first)
            rest = [node for node in nodes if node is not gone]
            for node in rest:
                assert node.controller is not None
                quorum, opens = node.controller.quorum, node.controller.log_dir.files.open
                quorum.on_fatal = fatal.append

                def fails(path: str, flags: int, opens: Callable[[str, int], int] = opens) -> int:
                    if short and reading and path.endswith(".log"):
                        struck.append(path)
                        raise OSError(code, os.strerror(code), path)
                    return opens(path, flags)

                def batches(start: int, quorum: MetadataQuorum = quorum) -> Iterator[Batch]:
                    for segment in quorum._log.segments:  # as the budget of descriptors does
                        segment.log.release()
                    reading.append(True)
                    try:
                        yield from MetadataQuorum.batches(quorum, start)
                    finally:
                        reading.clear()

                node.controller.log_dir.files.open = fails  # type: ignore[method-assign]
                quorum.batches = batches  # type: ignore[method-assign]
            first.create_topics([NewTopic("a", 3)])
            await first.flushed()
            await until(lambda: len(struck) > 3 or bool(fatal))
            if who == "the next leader":
                await gone.kill()
                await until(
                    lambda: any(node.controller and node.controller.quorum.leads for node in rest) or bool(fatal)
                )
                for _ in range(20):
                    await asyncio.sleep(0.01)
                    for node in rest:
                        assert node.controller is not None
                        node.controller.tick(node.clock_ms)
                assert not any(node.is_active for node in rest)
            assert not fatal
            assert all(node.image.topic("a") is None for node in rest)
            short.clear()
            await until(lambda: all(node.image.topic("a") is not None for node in rest))
            last = await active(rest if who == "the next leader" else nodes)
            (made,) = last.create_topics([NewTopic("b")])
            assert not made.error, made.message
            await last.flushed()
            await until(lambda: all(node.image.topic("b") is not None for node in rest))
            assert not fatal
        finally:
            for node in nodes:
                await node.kill()

    asyncio.run(scenario())
    said = [record for record in caplog.records if "does not follow its metadata quorum for now" in record.message]
    assert len(said) == 2 and {record.levelname for record in said} == {"WARNING"}


def test_who_fails_inside_behind_records_that_it_has_written_leads_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the log, and it does not know: the next change would rest on metadata that nobody else has."""

    async def scenario() -> None:
        async with Cluster(tmp_path) as cluster:
            first = (await cluster.active()).controller
            assert first is not None
            first._commit([broker_record(first)])
            await first.flushed()
            append = RaftMachine.append

            def short(machine: RaftMachine, values: Sequence[bytes]) -> int:
                append(machine, values)
                raise MemoryError

            epoch = first.epoch
            with monkeypatch.context() as patch, pytest.raises(MemoryError):
                patch.setattr(RaftMachine, "append", short)
                first.create_topics([NewTopic("a")])
            await until(lambda: not first.is_active or first.epoch > epoch)
            last = await active(cluster.nodes)
            for name in ("a", "b"):
                last.create_topics([NewTopic(name)])  # the first may be there by then
            await last.flushed()
            await until(lambda: all(node.image.topics_by_name.keys() == {"a", "b"} for node in cluster.nodes))
            ids = {topic.topic_id for node in cluster.nodes for topic in node.image.topics_by_name.values()}
            assert len(ids) == 2
            assert all(
                node.controller is not None and not node.controller.quorum.driver.closed for node in cluster.nodes
            )

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_memory_that_is_short_to_read_what_is_committed_keeps_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path) as cluster:
            leader = (await cluster.active()).controller
            assert leader is not None
            leader._commit([broker_record(leader)])
            await leader.flushed()
            short: list[None] = []
            read = PartitionLog.read

            def fails(log: PartitionLog, offset: int, bytes_max: int, **how: Any) -> LogSlice:
                if bytes_max == quorum.READ_BYTES and len(short) < 4:
                    short.append(None)
                    raise MemoryError
                return read(log, offset, bytes_max, **how)

            with monkeypatch.context() as patch:
                patch.setattr(PartitionLog, "read", fails)
                leader.create_topics([NewTopic("a")])
                await leader.flushed()
                await until(lambda: all(node.image.topic("a") is not None for node in cluster.nodes))
            assert len(short) == 4
            assert all(
                node.controller is not None and not node.controller.quorum.driver.closed for node in cluster.nodes
            )

    asyncio.run(asyncio.wait_for(scenario(), 60))
