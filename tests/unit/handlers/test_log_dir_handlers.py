"""AlterReplicaLogDirs, and what DescribeLogDirs and the metadata say of it, on a whole broker with two directories."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.handlers import alter_replica_log_dirs, describe_log_dirs
from fastq_broker.log import half_done
from group_support import GroupHandlers, HandlerBroker

import fastq.protocol.messages as m
from fastq._native.records import build_batch
from fastq.errors import ErrorCode, KafkaStorageError

LOW, HIGH = alter_replica_log_dirs.VERSIONS


@pytest.fixture
def two(tmp_path: Path) -> HandlerBroker:
    server = HandlerBroker(tmp_path)
    server.settings["log.dirs"] = f"{tmp_path / 'one'},{tmp_path / 'two'}"
    return server


def begin(calls: GroupHandlers) -> tuple[Any, str, str]:
    """A log with some records, the directory that it is in, and the other one."""
    calls.topics("t", partitions=1)
    log = calls.broker.logs.logs["t", 0]
    log.append(bytearray(build_batch([(1, None, b"a", []), (1, None, b"b", [])])), leader_epoch=0, now_ms=1)
    (other,) = [directory.path for directory in calls.broker.logs.dirs if directory is not log.dir]
    return log, log.dir.path, other


async def alter(calls: GroupHandlers, path: str, topic: str = "t", version: int = HIGH) -> int:
    kind = m.AlterReplicaLogDirsRequest
    topics = [kind.AlterReplicaLogDirTopic(name=topic, partitions=[0])]
    answer = await calls.call(kind(dirs=[kind.AlterReplicaLogDir(path=path, topics=topics)]), version)
    return int(answer.results[0].partitions[0].error_code)


async def described(calls: GroupHandlers) -> list[tuple[str, bool, int, bool]]:
    """Directory, whether it is a copy, its lag, and whether it has any bytes."""
    kind = m.DescribeLogDirsRequest
    request = kind(topics=[kind.DescribableLogDirTopic(topic="t", partitions=[0])])
    return sorted(
        (result.log_dir, part.is_future_key, part.offset_lag, part.partition_size > 0)
        for result in (await calls.call(request, 4)).results
        for topic in result.topics
        for part in topic.partitions
    )


def assigned(calls: GroupHandlers) -> str | None:
    """The directory that the metadata has."""
    broker = calls.broker
    partition = broker.image.partition("t", 0)
    assert partition is not None
    directories = dict(zip(broker.controller.directory_ids, broker.logs.dirs, strict=True))
    found = directories.get(partition.directory_of(1))
    return found and found.path


async def until(happened: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if happened():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it does not happen")


async def until_moved(calls: GroupHandlers) -> None:
    await until(lambda: not calls.broker.logs.moves.moves)


def test_a_log_that_cannot_be_loaded_has_an_unknown_lag(two: HandlerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(calls: GroupHandlers) -> None:
        log, here, there = begin(calls)
        assert await alter(calls, there) == 0

        def refuse(_: object) -> None:
            raise KafkaStorageError("no descriptors")

        with monkeypatch.context() as short:
            short.setattr(half_done.HalfDone, "load", refuse)
            log.unload(0)
            unknown = describe_log_dirs.UNKNOWN_LAG
            assert await described(calls) == sorted([(here, False, 0, True), (there, True, unknown, False)])
        await until_moved(calls)
        assert await described(calls) == [(there, False, 0, True)]

    two.run(work, ready=False)


@pytest.mark.parametrize("version", range(LOW, HIGH + 1))
def test_a_log_moves_and_the_metadata_knows(two: HandlerBroker, version: int) -> None:
    async def work(calls: GroupHandlers) -> None:
        log, here, there = begin(calls)
        assert await alter(calls, here + "/", version=version) == 0
        assert await described(calls) == [(here, False, 0, True)]
        assert await alter(calls, there, version=version) == 0
        assert await described(calls) == sorted([(here, False, 0, True), (there, True, 2, False)])
        await until_moved(calls)
        assert await described(calls) == [(there, False, 0, True)] and assigned(calls) == there
        assert log.log_end_offset == log.high_watermark == 2

    two.run(work, ready=False)


def test_moves_of_internal_topics_go_on_beside_their_use(two: HandlerBroker) -> None:
    """The log of a coordinator moves while it is written to; after a restart all of it is there."""

    async def work(calls: GroupHandlers) -> tuple[str, int]:
        log = calls.broker.logs.logs["__consumer_offsets", 0]
        (other,) = [directory.path for directory in calls.broker.logs.dirs if directory is not log.dir]
        for number in range(3):
            await calls.call(m.FindCoordinatorRequest(key=f"g{number}"), 0)
        assert await alter(calls, other, "__consumer_offsets") == 0
        await until_moved(calls)
        return log.dir.path, log.log_end_offset

    async def look(calls: GroupHandlers) -> tuple[str, int]:
        log = calls.broker.logs.logs["__consumer_offsets", 0]
        return log.dir.path, log.log_end_offset

    assert two.run(work) == two.run(look)


def test_what_cannot_be_moved(two: HandlerBroker) -> None:
    async def work(calls: GroupHandlers) -> None:
        log, here, _ = begin(calls)
        assert await alter(calls, "/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await alter(calls, "two") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await alter(calls, here, "later") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        calls.topics("later", partitions=1)
        assert calls.broker.logs.logs["later", 0].dir is log.dir, "where it was said that it is to be"

    two.run(work, ready=False)


def test_a_move_that_is_called_off_is_told_to_the_metadata(two: HandlerBroker) -> None:
    async def work(calls: GroupHandlers) -> None:
        _, here, there = begin(calls)
        moves = calls.broker.logs.moves
        may_swap, moves.may_swap = moves.may_swap, lambda log, log_dir: False
        assert await alter(calls, there) == 0
        await until(lambda: assigned(calls) == there)
        assert await alter(calls, here) == 0
        calls.broker.controller.settle()
        assert assigned(calls) == here and await described(calls) == [(here, False, 0, True)]
        moves.may_swap = may_swap

    two.run(work, ready=False)


@pytest.mark.parametrize("copied", [False, True])
def test_records_are_deleted_of_a_copy_too_before_that_is_answered(two: HandlerBroker, copied: bool) -> None:
    """Also where it does not have so many yet."""

    async def work(calls: GroupHandlers) -> None:
        log, _, there = begin(calls)
        moves = calls.broker.logs.moves
        may_swap, moves.may_swap = moves.may_swap, lambda log, log_dir: False
        assert await alter(calls, there) == 0
        if copied:
            await until(lambda: log.future.log_end_offset == 2)
        kind = m.DeleteRecordsRequest
        asked = kind.DeleteRecordsTopic(name="t", partitions=[kind.DeleteRecordsPartition(partition_index=0, offset=1)])
        answer = await calls.call(kind(topics=[asked], timeout_ms=9000), 2)
        (result,) = answer.topics[0].partitions
        assert (result.error_code, result.low_watermark) == (0, 1)
        assert log.log_start_offset == log.future.log_start_offset == 1
        moves.may_swap = may_swap
        await until_moved(calls)
        assert (log.dir.path, log.log_start_offset, log.log_end_offset) == (there, 1, 2)

    two.run(work, ready=False)


def test_the_rate_is_the_brokers_setting(two: HandlerBroker) -> None:
    async def work(calls: GroupHandlers) -> float:
        kind = m.IncrementalAlterConfigsRequest
        config = kind.AlterableConfig(
            name="replica.alter.log.dirs.io.max.bytes.per.second", config_operation=0, value="5000"
        )
        resource = kind.AlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
        answer = await calls.call(kind(resources=[resource], validate_only=False), 1)
        assert answer.responses[0].error_code == 0
        return calls.broker.logs.moves.rate.bytes_per_s_max

    assert two.run(work, ready=False) == 5000


# -- cordoned directories (KIP-1066)


async def cordon(calls: GroupHandlers, value: str | None, name: str = "1", operation: int = 0) -> int:
    kind = m.IncrementalAlterConfigsRequest
    config = kind.AlterableConfig(
        name="cordoned.log.dirs", config_operation=1 if value is None else operation, value=value
    )
    resource = kind.AlterConfigsResource(resource_type=4, resource_name=name, configs=[config])
    answer = await calls.call(kind(resources=[resource], validate_only=False), 1)
    await asyncio.sleep(0)
    calls.broker.controller.settle()
    return int(answer.responses[0].error_code)


async def cordoned(calls: GroupHandlers, version: int = 5) -> dict[str, bool]:
    """What is told of each directory, which the metadata has as well."""
    told = await calls.call(m.DescribeLogDirsRequest(topics=[]), version)
    broker = calls.broker
    known = broker.image.brokers[1].cordoned_directories
    if version >= 5:
        paths = zip(broker.controller.directory_ids, broker.logs.dirs, strict=True)
        assert {path.path for directory, path in paths if directory in known} == broker.logs.cordoned
    return {result.log_dir: result.is_cordoned for result in told.results}


def made_in(calls: GroupHandlers, name: str) -> set[str]:
    calls.topics(name, partitions=3)
    return {log.dir.path for (topic, _), log in calls.broker.logs.logs.items() if topic == name}


@pytest.mark.parametrize("how", ["in the file", "altered"])
def test_a_cordoned_directory_gets_no_new_logs(two: HandlerBroker, tmp_path: Path, how: str) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "two")
    if how == "in the file":
        two.settings["cordoned.log.dirs"] = one

    async def work(calls: GroupHandlers) -> None:
        if how == "altered":
            assert made_in(calls, "before") == {one, other}
            assert await cordon(calls, one) == 0
        assert await cordoned(calls) == {one: True, other: False}
        assert not any((await cordoned(calls, 4)).values())
        assert made_in(calls, "t") == {other}
        assert await alter(calls, one) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await alter(calls, one, "later") == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await alter(calls, other) == 0
        if how == "altered":
            assert await cordon(calls, None) == 0
            assert await cordoned(calls) == {one: False, other: False}
            assert one in made_in(calls, "after")

    two.run(work, ready=False)


def test_where_all_are_cordoned_no_topic_is_made(two: HandlerBroker, tmp_path: Path) -> None:
    """The controller places nothing here; a replica that it has placed all the same has its log somewhere."""

    async def create(calls: GroupHandlers, name: str) -> int:
        kind = m.CreateTopicsRequest
        topic = kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        return int((await calls.call(kind(topics=[topic], timeout_ms=9000), 7)).topics[0].error_code)

    async def work(calls: GroupHandlers) -> None:
        assert await cordon(calls, "*") == 0
        assert all((await cordoned(calls)).values())
        assert await create(calls, "t") == ErrorCode.INVALID_REPLICATION_FACTOR
        assert calls.broker.logs.create("by-hand", 0).dir is calls.broker.logs.dirs[0]

    async def after_a_restart(calls: GroupHandlers) -> None:
        assert all((await cordoned(calls)).values())
        assert await create(calls, "t") == ErrorCode.INVALID_REPLICATION_FACTOR
        assert await cordon(calls, "") == 0
        assert await create(calls, "t") == 0

    two.run(work, ready=False)
    two.run(after_a_restart, ready=False)


def test_what_cannot_be_cordoned(two: HandlerBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "two")

    async def work(calls: GroupHandlers) -> None:
        for value in ("/nowhere", f"{one},/nowhere", f"*,{one}"):
            assert await cordon(calls, value) == ErrorCode.INVALID_REQUEST
        assert await cordon(calls, one, name="") == ErrorCode.INVALID_REQUEST
        assert await cordon(calls, one, operation=2) == 0
        assert await cordon(calls, other, operation=2) == 0
        assert await cordoned(calls) == {one: True, other: True}
        assert await cordon(calls, one, operation=3) == 0
        assert await cordoned(calls) == {one: False, other: True}

    async def without_it(calls: GroupHandlers) -> None:
        assert not any((await cordoned(calls)).values())

    two.run(work, ready=False)
    two.settings["log.dirs"] = f"{one},{tmp_path / 'three'}"
    two.run(without_it, ready=False)
    assert f"{other} is none of log.dirs" in caplog.text
