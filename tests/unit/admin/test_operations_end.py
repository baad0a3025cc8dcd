"""How operations end at their deadline: what each call has found by then is told, and nobody is left waiting."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from operation_world import ANSWER, ASK, World, answers, asks, asks_one, coordinators, refuses, silent

from fastq.admin.core import describe_log_dirs
from fastq.admin.groups import describe_groups, list_group_offsets
from fastq.admin.transactions import fence_producers
from fastq.admin.users import alter_user_scram_credentials
from fastq.errors import (
    ClientClosed,
    ConnectionRefused,
    ConnectionTimeout,
    CoordinatorNotAvailable,
    FastqError,
    NotController,
    ThrottlingQuotaExceeded,
    UnsupportedVersion,
)
from fastq.net.operations import (
    Broker,
    Call,
    Coordinator,
    Leader,
    Operation,
    OutOfTime,
    Retry,
    ask_nodes,
    find_coordinators,
    single,
)
from fastq.protocol import messages as m


@pytest.mark.parametrize("late_s", [0.0, 0.1], ids=["in time", "late"])
@pytest.mark.parametrize(
    ("node", "kind"), [(refuses, ConnectionRefused), (silent, ConnectionTimeout)], ids=["refuses", "silent"]
)
def test_of_several_calls_those_that_are_answered_are_told(
    node: Callable[[Any], Any], kind: type[FastqError], late_s: float
) -> None:
    first, second, third = World({1: answers, 2: node, 3: answers}, late_s=late_s).run(asks(1, 2, 3))
    assert first is third is ANSWER and type(second) is kind


def test_each_call_has_its_own_error() -> None:
    first, second = World({1: refuses, 2: silent}).run(asks(1, 2))
    assert type(first) is ConnectionRefused and type(second) is ConnectionTimeout


def test_an_answer_that_is_there_is_not_out_of_time() -> None:
    """It came in before the deadline, in a turn that was taken behind it."""
    world = World({1: silent})
    _, told = world.start(asks(1), 1.0)
    world.turn()
    (_, on_done), *_ = world._unanswered
    world._unanswered.clear()
    world.core.completions.append((on_done, ANSWER, None))
    world.now += 5.0
    world.core._run_timers(world.now)
    while not told:
        world.turn()
    assert told == [([ANSWER], None)]


def test_what_one_call_waits_for_explains_no_other() -> None:
    """The error that led to another try was of another node than the one that answers nothing then."""
    world = World({1: answers, 2: silent})

    def operation() -> Operation[Any]:
        yield Retry(NotController("of somebody else"))
        found = yield [Call(Broker(1), ASK), Call(Broker(2), ASK)]
        return found

    first, second = world.run(operation())
    assert first is ANSWER and type(second) is ConnectionTimeout


def test_a_call_that_is_alone_ends_with_what_explains_it() -> None:
    with pytest.raises(ConnectionRefused):
        World({1: refuses}).run(asks_one())
    with pytest.raises(ConnectionTimeout):
        World({1: silent}).run(asks_one())


def ignores() -> Operation[Any]:
    while True:
        try:
            yield Call(Broker(1), ASK)
        except OutOfTime:
            pass


def clings() -> Operation[Any]:
    closed = 0
    while closed < 2:
        try:
            yield Call(Broker(1), ASK)
        except OutOfTime:
            pass
        except GeneratorExit:
            closed += 1


def asks_in_its_finally() -> Operation[Any]:
    try:
        yield [Call(Broker(1), ASK)]
    finally:
        yield Call(Broker(1), ASK)


def fails_in_its_finally() -> Operation[Any]:
    try:
        yield Call(Broker(1), ASK)
    finally:
        raise ValueError("at its end")


def tries_for_ever() -> Operation[Any]:
    while True:
        yield Retry(NotController())


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (ignores, ConnectionRefused),
        (clings, ConnectionRefused),
        (asks_in_its_finally, ConnectionRefused),
        (fails_in_its_finally, ValueError),
        (tries_for_ever, NotController),
    ],
)
def test_an_operation_that_does_not_want_to_end_is_ended(
    operation: Callable[[], Operation[Any]], kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits for it is told, in whatever way it holds on."""
    with pytest.raises(kind):
        World({1: refuses}).run(operation())


def test_nested_operations_are_told_that_their_time_is_over() -> None:
    def inner() -> Operation[str]:
        try:
            yield Call(Broker(1), ASK)
        except OutOfTime as late:
            return type(late.error).__name__
        return ""

    def outer() -> Operation[tuple[str, str]]:
        first = yield from inner()
        second = yield from inner()
        return first, second

    assert World({1: refuses}).run(outer()) == ("ConnectionRefused", "ConnectionRefused")


@pytest.mark.parametrize("timeout_s", [0.0, 1e-9, 0.001])
def test_no_time_at_all_is_a_time_out(timeout_s: float) -> None:
    with pytest.raises(ConnectionTimeout):
        World({1: silent}).run(asks_one(), timeout_s)
    (found,) = World({1: silent}).run(asks(1), timeout_s)
    assert isinstance(found, ConnectionTimeout)


def test_what_cannot_be_asked_at_all_is_told_at_once() -> None:
    """A topic that has no name was waited for until the deadline, and the log alone said why."""

    def operation() -> Operation[Any]:
        response = yield Call(Leader("", 0), ASK)
        return response

    world = World({1: answers})
    with pytest.raises(FastqError, match="topic"):
        world.run(operation())
    assert world.now < 1001


def test_nothing_is_asked_behind_the_end_of_an_operation() -> None:
    """The look for a coordinator went on until its own deadline."""

    def missing(request: Any) -> Any:
        answer = m.FindCoordinatorResponse.Coordinator(key="g", error_code=CoordinatorNotAvailable.code)
        return m.FindCoordinatorResponse(coordinators=[answer])

    def operation() -> Operation[Any]:
        response = yield Call(Coordinator("group", "g"), ASK)
        return response

    world = World({1: missing})
    run, told = world.start(operation(), 60.0)
    while world.now < 1002:
        world.turn()
    run.cancel()
    asked = len(world.sent)
    while world.turn():
        pass
    assert len(world.sent) == asked and not told and not world.core.on_close


def test_a_client_that_is_closed_ends_what_is_under_way() -> None:
    ended: list[str] = []

    def operation() -> Operation[Any]:
        try:
            yield [Call(Broker(1), ASK)]
        finally:
            ended.append("closed")

    world = World({1: silent})
    _, told = world.start(operation(), 60.0)
    world.turn()
    world.core.close()
    assert isinstance(told[0][1], ClientClosed) and ended == ["closed"]


# -- what operations make of it ----------------------------------------------------------------------------------------------


def cluster_of(request: Any, *nodes: int) -> Any:
    brokers = [m.MetadataResponse.MetadataResponseBroker(node_id=node, host="h", port=node) for node in nodes]
    return m.MetadataResponse(brokers=brokers, controller_id=1)


def test_log_directories_of_the_nodes_that_are_there_are_told_beside_one_that_is_not() -> None:
    def node(request: Any) -> Any:
        if isinstance(request, m.MetadataRequest):
            return cluster_of(request, 1, 2)
        return m.DescribeLogDirsResponse(results=[m.DescribeLogDirsResponse.DescribeLogDirsResult(log_dir="/d")])

    outcomes = World({1: node, 2: refuses}).run(describe_log_dirs(None, None))
    assert outcomes[1].result()[0].path == "/d"
    assert isinstance(outcomes[2].error, ConnectionRefused)


def test_producers_that_were_fenced_are_told_beside_one_whose_coordinator_is_gone() -> None:
    def node(request: Any) -> Any:
        if isinstance(request, m.FindCoordinatorRequest):
            return coordinators(request, a=1, b=2)
        return m.InitProducerIdResponse(producer_id=7, producer_epoch=3)

    outcomes = World({1: node, 2: refuses}).run(fence_producers(["a", "b"]))
    assert outcomes["a"].result().producer_id == 7
    assert isinstance(outcomes["b"].error, ConnectionRefused)


def test_a_group_that_is_described_is_told_beside_a_classic_one_that_nobody_describes() -> None:
    def node(request: Any) -> Any:
        if isinstance(request, m.FindCoordinatorRequest):
            return coordinators(request, a=1, b=1) if "a" in request.coordinator_keys else None
        described = m.ConsumerGroupDescribeResponse.DescribedGroup
        return m.ConsumerGroupDescribeResponse(
            groups=[
                described(group_id="a", error_message=None),
                described(group_id="b", error_code=69, error_message=None),
            ]
        )

    outcomes = World({1: node}).run(describe_groups(["a", "b"]))
    assert outcomes["a"].result().group_id == "a"
    assert isinstance(outcomes["b"].error, ConnectionTimeout), "not: that there is none"


def test_offsets_that_are_known_are_told_beside_one_that_stays_unstable() -> None:
    asked = 0

    def node(request: Any) -> Any:
        nonlocal asked
        if isinstance(request, m.FindCoordinatorRequest):
            return coordinators(request, g=1)
        asked += 1
        if asked > 1:
            return None
        partition = m.OffsetFetchResponse.OffsetFetchResponsePartitions
        topic = m.OffsetFetchResponse.OffsetFetchResponseTopics(
            name="t",
            partitions=[
                partition(partition_index=0, committed_offset=5),
                partition(partition_index=1, committed_offset=-1, error_code=88),
            ],
        )
        group = m.OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", topics=[topic])
        return m.OffsetFetchResponse(groups=[group])

    first, second = World({1: node}).run(list_group_offsets("g", None, require_stable=True)).values()
    assert first.result().offset == 5 and isinstance(second.error, FastqError)


def test_what_was_set_of_one_mechanism_is_told_where_the_other_is_not_answered() -> None:
    from fastq.admin import ScramMechanism, UserScramCredentialDeletion

    def node(request: Any) -> Any:
        if request.deletions[0].mechanism == ScramMechanism.SCRAM_SHA_512:
            return UnsupportedVersion("of another broker")
        result = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
        return m.AlterUserScramCredentialsResponse(
            results=[result(user=one.name, error_message=None) for one in request.deletions]
        )

    changes = [
        UserScramCredentialDeletion("ann", ScramMechanism.SCRAM_SHA_256),
        UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_512),
    ]
    outcomes = World({1: node}).run(alter_user_scram_credentials(changes))
    assert outcomes["ann"].error is None and isinstance(outcomes["bob"].error, UnsupportedVersion)


def test_coordinators_of_brokers_of_two_ages() -> None:
    """The first broker answers one at a time, the next one as many as it is asked for."""
    newer: list[bool] = []

    def node(request: Any) -> Any:
        newer.append(True)
        if len(newer) == 1:
            return m.FindCoordinatorResponse(node_id=1, host="h", port=1)
        return coordinators(request, b=2)

    found = World({1: node}).run(find_coordinators("group", ["a", "b"]))
    assert {id_: answer.node_id for id_, answer in found.items()} == {"a": 1, "b": 2}


def test_the_log_is_quiet_where_operations_end_as_they_should(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        World({1: answers, 2: refuses}).run(asks(1, 2))
        with pytest.raises(ConnectionRefused):
            World({1: refuses}).run(asks_one())
    assert not caplog.records


def of_coordinator(*, throttle_ms: int = 0) -> tuple[World, Operation[Any]]:
    """What is asked of the coordinator of a group, node 2."""
    answer = m.DeleteGroupsResponse(throttle_time_ms=throttle_ms)
    world = World({1: lambda request: coordinators(request, g=2), 2: lambda _request: answer})
    return world, single(Call(Coordinator("group", "g"), m.DeleteGroupsRequest(groups_names=["g"])))


def test_a_coordinators_quota_is_no_bootstrap_servers() -> None:
    world, operation = of_coordinator(throttle_ms=5000)
    world.run(operation)
    assert world.core.throttled_until(-1) <= world.now


def test_the_quota_of_a_coordinator_is_named_where_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told that the operation had not finished."""
    world, operation = of_coordinator()
    monkeypatch.setattr(world.core, "throttled_until", {1: 0.0, 2: 5000.0}.__getitem__)
    with pytest.raises(ThrottlingQuotaExceeded, match="node 2"):
        world.run(operation, 5.0)
    assert [node for _, node, _ in world.sent] == [1]


def test_a_node_that_was_waited_for_is_told_whatever_came_before() -> None:
    """What it had been refused for first was told, though it had been silent nearly all of the time."""
    world = World({1: refuses})

    def operation() -> Operation[Any]:
        found = yield [Call(Broker(1), ASK), Call(Broker(1), ASK)]
        return found

    _, told = world.start(operation(), 30.0)
    while not world.sent:
        world.turn()
    world.nodes[1] = silent
    while not told:
        world.turn()
    assert [type(error) for error in told[0][0]] == [ConnectionTimeout] * 2


def test_what_came_before_the_last_moment_is_told() -> None:
    world = World({1: refuses})
    _, told = world.start(asks(1), 30.0)
    while world.now < 1029.5:
        world.turn()
    world.nodes[1] = silent
    while not told:
        world.turn()
    assert type(told[0][0][0]) is ConnectionRefused


def test_where_no_node_is_reached_it_is_no_error_of_the_parts() -> None:
    def of(*nodes: int) -> Operation[Any]:
        return ask_nodes([Call(Broker(node), ASK) for node in nodes])

    first, second = World({1: answers, 2: refuses}).run(of(1, 2))
    assert first is ANSWER and type(second) is ConnectionRefused
    with pytest.raises(ConnectionRefused):
        World({1: refuses, 2: refuses}).run(of(1, 2))
    assert World({1: refuses}).run(of()) == []
