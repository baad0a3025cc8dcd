"""AlterPartition: what is asked, one request at a time, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.replication import alter_partition
from fastq_broker.replication.alter_driver import AlterPartitionDriver
from fastq_broker.replication.alter_partition import RETRY_MS, AlterPartitions, build_request
from fastq_broker.replication.isr import IsrChange
from fastq_broker.replication.shared import Replication
from shared_bench import Loop

from fastq.errors import KafkaStorageError, UnsupportedVersion
from fastq.protocol.messages import AlterPartitionResponse

TOPIC, OTHER = b"a" * 16, b"b" * 16
CHANGE = IsrChange(5, 7, ((1, 101), (2, 102)), joining=2)


def asked(changes: Mapping[tuple[bytes, int], IsrChange] | None) -> list[tuple[bytes, int]]:
    assert changes is not None
    request = build_request(changes, 1, 101, 3)
    return [(topic.topic_id, partition.partition_index) for topic in request.topics for partition in topic.partitions]


def told(*keys: tuple[bytes, int], error: int = 0) -> AlterPartitionResponse:
    data = AlterPartitionResponse.PartitionData
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponse.TopicData(
                topic_id=topic, partitions=[data(partition_index=at, error_code=error, partition_epoch=8, isr=[1, 2])]
            )
            for topic, at in keys
        ]
    )


def test_a_request_names_the_whole_set_in_every_version_and_again() -> None:
    """KAFKA-15353: what was sent in one version and then in another had an empty set."""
    for version in (3, 2, 3):
        request = build_request({(TOPIC, 0): CHANGE}, 1, 101, version)
        [partition] = request.topics[0].partitions
        with_epochs = [(state.broker_id, state.broker_epoch) for state in partition.new_isr_with_epochs]
        assert (with_epochs or partition.new_isr) == ([1, 2] if version == 2 else [(1, 101), (2, 102)])
        assert (partition.leader_epoch, partition.partition_epoch, partition.leader_recovery_state) == (5, 7, 0)


def test_one_request_at_a_time_for_many_partitions() -> None:
    sender = AlterPartitions()
    assert sender.take(0) is None
    for key in ((TOPIC, 1), (OTHER, 0), (TOPIC, 0)):
        sender.submit(key, CHANGE)
    assert asked(sender.take(0)) == [(TOPIC, 0), (TOPIC, 1), (OTHER, 0)]
    sender.submit((TOPIC, 2), CHANGE)
    assert (sender.take(0), sender.due_ms) == (None, None)
    answers = sender.answered(told((TOPIC, 0), (TOPIC, 1), (OTHER, 0), (OTHER, 9)), 0)
    assert [key for key, _, _ in answers] == [(TOPIC, 0), (TOPIC, 1), (OTHER, 0)]
    assert asked(sender.take(0)) == [(TOPIC, 2)]


def test_without_an_answer_all_is_asked_again_after_a_while() -> None:
    sender = AlterPartitions()
    sender.submit((TOPIC, 0), CHANGE)
    sender.take(1000)
    sender.failed(1000)
    assert (sender.take(1000), sender.due_ms) == (None, 1000 + RETRY_MS)
    assert asked(sender.take(1000 + RETRY_MS)) == [(TOPIC, 0)]
    assert sender.answered(AlterPartitionResponse(error_code=77), 2000) == []
    assert asked(sender.take(2000 + RETRY_MS)) == [(TOPIC, 0)]


def test_a_partition_without_an_answer_is_asked_for_again() -> None:
    sender = AlterPartitions()
    for at in (0, 1):
        sender.submit((TOPIC, at), CHANGE)
    sender.take(0)
    assert len(sender.answered(told((TOPIC, 0)), 0)) == 1
    assert asked(sender.take(RETRY_MS)) == [(TOPIC, 1)]


def test_a_newer_change_takes_the_place_of_one_that_failed() -> None:
    sender = AlterPartitions()
    sender.submit((TOPIC, 0), CHANGE)
    sender.take(0)
    newer = CHANGE._replace(partition_epoch=9)
    sender.submit((TOPIC, 0), newer)
    sender.failed(0)
    assert sender.take(RETRY_MS) == {(TOPIC, 0): newer}
    [(_, change, _)] = sender.answered(told((TOPIC, 0)), 0)
    assert change is newer


def test_what_is_not_led_any_more_is_not_asked_for() -> None:
    sender = AlterPartitions()
    sender.submit((TOPIC, 0), CHANGE)
    sender.forget((TOPIC, 0))
    assert sender.take(0) is None


class Channel:
    """A controller far away: what was asked, in version 3, and who waits for the answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Any]] = []

    def ask(self, request: Any, done: Any) -> None:
        self.asked.append((request, done))


def test_what_is_asked_in_one_turn_goes_in_one_request_and_again_until_it_is_answered() -> None:
    loop, channel = Loop(), Channel()
    heard: list[Any] = []
    no_follow: Any = None
    replication = Replication(1, {}.get, lambda: int(loop.now * 1000), lag_max_ms=1, follow=no_follow)
    partition: Any = SimpleNamespace(answered=lambda change, answer: heard.append((change, answer.error_code)))
    replication.partitions = {(TOPIC, 0): partition, (TOPIC, 1): partition}
    any_loop: Any = loop
    epochs = iter((100, 101, 102))
    driver = AlterPartitionDriver(replication, channel, any_loop, lambda: next(epochs))

    def submit(number: int) -> None:
        replication.alter.submit((TOPIC, number), CHANGE)
        replication.ask()

    submit(0)
    submit(1)
    loop.pass_time()
    [(request, done)] = channel.asked
    builds = [request.build(version) for version in (3, 2)]
    assert [build.broker_epoch for build in builds] == [100, 101]
    assert all(len(build.topics[0].partitions) == 2 for build in builds)
    done(None, UnsupportedVersion("not that one"))
    loop.pass_time(RETRY_MS / 1000 + 0.002)
    done = channel.asked[1][1]
    done(AlterPartitionResponse(error_code=77), None)
    loop.pass_time(RETRY_MS / 1000 + 0.002)
    done = channel.asked[2][1]
    submit(1)  # while one is in flight
    done(told((TOPIC, 0), (TOPIC, 1)), None)
    assert heard == [(CHANGE, 0), (CHANGE, 0)]
    loop.pass_time()
    assert len(channel.asked) == 4
    driver.close()
    submit(0)
    channel.asked[3][1](None, UnsupportedVersion("not that one"))
    loop.pass_time(1)
    assert len(channel.asked) == 4


def test_what_cannot_be_asked_for_a_moment_is_asked_again() -> None:
    """It counted as being on its way for good: no follower left or joined those in sync any more."""
    loop, channel = Loop(), Channel()
    heard: list[int] = []
    no_follow: Any = None
    replication = Replication(1, {}.get, lambda: int(loop.now * 1000), lag_max_ms=1, follow=no_follow)
    partition: Any = SimpleNamespace(answered=lambda change, answer: heard.append(answer.error_code))
    replication.partitions = {(TOPIC, 0): partition}
    any_loop: Any = loop
    AlterPartitionDriver(replication, channel, any_loop, lambda: 100)
    ask = channel.ask

    def no_memory(request: Any, done: Any) -> None:
        ask(request, done)  # it is on its way all the same
        raise MemoryError("none left")

    channel.ask = no_memory  # type: ignore[method-assign]
    replication.alter.submit((TOPIC, 0), CHANGE)
    replication.ask()
    loop.pass_time()
    channel.ask = ask  # type: ignore[method-assign]
    loop.pass_time(RETRY_MS / 1000 + 0.002)
    (_, late), (_, done) = channel.asked
    late(AlterPartitionResponse(error_code=77), None)
    done(told((TOPIC, 0)), None)
    assert heard == [0] and replication.alter.due_ms is None


@pytest.mark.parametrize("then", ["failed", "call_later"])
def test_what_cannot_even_be_noted_as_not_asked_is_asked_at_the_next_look(
    then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second shortage in a row left it on its way for good."""
    loop, channel = Loop(), Channel()
    no_follow: Any = None
    replication = Replication(1, {}.get, lambda: int(loop.now * 1000), lag_max_ms=1, follow=no_follow)
    any_loop: Any = loop
    AlterPartitionDriver(replication, channel, any_loop, lambda: 100)

    def no_memory(*_: Any) -> None:
        raise MemoryError("none left")

    replication.alter.submit((TOPIC, 0), CHANGE)
    replication.ask()
    with monkeypatch.context() as patch:
        patch.setattr(channel, "ask", no_memory)
        patch.setattr(*((replication.alter, then) if then == "failed" else (loop, then)), no_memory)
        with pytest.raises(MemoryError):
            loop.pass_time()
    loop.pass_time(1)
    assert channel.asked == []
    for _ in range(2):  # once more is not twice
        replication.check()
        loop.pass_time(RETRY_MS / 1000 + 0.002)
    assert len(channel.asked) == 1


def test_an_answer_that_cannot_be_read_for_a_moment_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partitions waited for theirs for good, and proposed no other set in sync."""
    loop, channel = Loop(), Channel()
    heard: list[int] = []
    no_follow: Any = None
    replication = Replication(1, {}.get, lambda: int(loop.now * 1000), lag_max_ms=1, follow=no_follow)
    partition: Any = SimpleNamespace(answered=lambda change, answer: heard.append(answer.error_code))
    replication.partitions = {(TOPIC, 0): partition, (TOPIC, 1): partition}
    any_loop: Any = loop
    AlterPartitionDriver(replication, channel, any_loop, lambda: 100)
    for number in (0, 1):
        replication.alter.submit((TOPIC, number), CHANGE)
    replication.ask()
    loop.pass_time()

    def no_memory(*_: Any) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(alter_partition, "IsrAnswer", no_memory)
        with pytest.raises(MemoryError):
            channel.asked[0][1](told((TOPIC, 0), (TOPIC, 1)), None)
    loop.pass_time(RETRY_MS / 1000 + 0.002)
    channel.asked[1][1](told((TOPIC, 0), (TOPIC, 1)), None)
    assert heard == [0, 0]


def test_a_partition_whose_log_is_gone_keeps_no_other_from_its_answer() -> None:
    """The one behind it waited for its answer for good: no follower of it left or joined those in sync any more."""
    loop, channel = Loop(), Channel()
    heard: list[int] = []
    no_follow: Any = None
    replication = Replication(1, {}.get, lambda: int(loop.now * 1000), lag_max_ms=1, follow=no_follow)

    def gone(*_: Any) -> None:
        raise KafkaStorageError("the disk is gone")

    bad: Any = SimpleNamespace(answered=gone)
    good: Any = SimpleNamespace(answered=lambda change, answer: heard.append(answer.error_code))
    replication.partitions = {(TOPIC, 0): bad, (TOPIC, 1): good}
    any_loop: Any = loop
    AlterPartitionDriver(replication, channel, any_loop, lambda: 100)

    def submit(*numbers: int) -> None:
        for number in numbers:
            replication.alter.submit((TOPIC, number), CHANGE)
            replication.ask()

    submit(0, 1)
    loop.pass_time()
    submit(1)
    channel.asked[0][1](told((TOPIC, 0), (TOPIC, 1)), None)
    assert heard == [0]
    loop.pass_time()
    assert len(channel.asked) == 2
