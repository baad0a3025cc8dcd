"""One node of a cluster that is silent and not fenced yet: what the others know is told, and of what it has, why that is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from operation_world import World, refuses, silent

from fastq.admin.groups import describe_groups, groups_shown
from fastq.admin.replica_comparison import compare_replicas
from fastq.admin.shown import silent_once
from fastq.admin.transactions import find_hanging_transactions, hanging_shown, transactions_shown
from fastq.errors import ConnectionRefused, ConnectionTimeout, ErrorCode, FastqError, LeaderNotAvailable
from fastq.metadata import TopicPartition
from fastq.net.operations import Call, Found, Operation, OutOfTime
from fastq.protocol import messages as m

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
LEADERS = {0: 1, 1: 2, 2: -1}
"""Of the partitions of t: node 1, which answers, node 2, which does not, and nobody."""
OLD_MS, NOW_MS = 1000, 1_000_000
Asked = Callable[[], Operation[Any]]


def metadata(request: m.MetadataRequest) -> m.MetadataResponse:
    brokers = [m.MetadataResponse.MetadataResponseBroker(node_id=node, host="h", port=node) for node in (1, 2)]
    partition = m.MetadataResponse.MetadataResponsePartition
    partitions = [partition(partition_index=i, leader_id=node, replica_nodes=[1, 2]) for i, node in LEADERS.items()]
    topic = m.MetadataResponse.MetadataResponseTopic(name="t", partitions=partitions)
    return m.MetadataResponse(
        brokers=brokers, controller_id=1, topics=[topic] if request.topics is None or request.topics else []
    )


def node(request: Any) -> Any:
    """Answers, and coordinates what begins with a; node 2 the rest."""
    if isinstance(request, m.MetadataRequest):
        return metadata(request)
    if isinstance(request, m.ListGroupsRequest):
        return m.ListGroupsResponse(groups=[m.ListGroupsResponse.ListedGroup(group_id="a", group_state="Stable")])
    if isinstance(request, m.ListTransactionsRequest):
        state = m.ListTransactionsResponse.TransactionState
        known = [state(transactional_id="a", producer_id=7, transaction_state="Ongoing")]
        return m.ListTransactionsResponse(
            transaction_states=[t for t in known if t.producer_id in (request.producer_id_filters or [7])]
        )
    if isinstance(request, m.FindCoordinatorRequest):
        answer = m.FindCoordinatorResponse.Coordinator
        return m.FindCoordinatorResponse(
            coordinators=[
                answer(key=key, node_id=1 if key.startswith("a") else 2, host="h", port=1)
                for key in request.coordinator_keys
            ]
        )
    if isinstance(request, m.ConsumerGroupDescribeRequest):
        described = m.ConsumerGroupDescribeResponse.DescribedGroup
        return m.ConsumerGroupDescribeResponse(
            groups=[described(group_id=id_, error_code=ErrorCode.GROUP_ID_NOT_FOUND) for id_ in request.group_ids]
        )
    if isinstance(request, m.DescribeGroupsRequest):
        group = m.DescribeGroupsResponse.DescribedGroup
        return m.DescribeGroupsResponse(groups=[group(group_id=id_, group_state="Empty") for id_ in request.groups])
    if isinstance(request, m.DescribeTransactionsRequest):
        state_of = m.DescribeTransactionsResponse.TransactionState
        return m.DescribeTransactionsResponse(
            transaction_states=[state_of(transactional_id=id_, producer_id=7) for id_ in request.transactional_ids]
        )
    assert isinstance(request, m.DescribeProducersRequest)
    partition = m.DescribeProducersResponse.PartitionResponse
    producer = m.DescribeProducersResponse.ProducerState
    return m.DescribeProducersResponse(
        topics=[
            m.DescribeProducersResponse.TopicResponse(
                name=topic.name,
                partitions=[
                    partition(
                        partition_index=index,
                        active_producers=[
                            producer(producer_id=id_, last_timestamp=OLD_MS, current_txn_start_offset=5)
                            for id_ in PRODUCERS
                        ],
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


PRODUCERS = [7]
"""Whose transactions are open since long; the coordinator of a does not count the partition in."""


def hanging() -> Operation[Any]:
    return hanging_shown(None, None, max_timeout_ms=1000, clock_ms=lambda: NOW_MS)


@pytest.mark.parametrize(
    "operation",
    [
        lambda: groups_shown((), ()),
        lambda: transactions_shown((), (), longer_than_ms=None, id_pattern=None),
    ],
    ids=["groups", "transactions"],
)
@pytest.mark.parametrize("why", [silent, refuses])
def test_what_those_list_that_answer_is_shown(operation: Asked, why: Callable[[Any], Any]) -> None:
    told = World({1: node, 2: why}).run(operation(), 5.0)
    assert list(told.found) == ["a"] and list(told.silent) == [2]


def test_where_nobody_lists_anything_that_is_an_error() -> None:
    def knows_nodes(request: Any) -> Any:
        return metadata(request) if isinstance(request, m.MetadataRequest) else refuses(request)

    with pytest.raises(ConnectionRefused):
        World({1: knows_nodes, 2: refuses}).run(groups_shown((), ()), 5.0)


def test_a_coordinator_that_is_silent_has_no_group_of_another_one_wait() -> None:
    """All the time was waited for it, so that the others were never asked in the classic protocol."""
    found = World({1: node, 2: silent}, late_s=0.1).run(describe_groups(["a1", "b", "a2"]), 31.0)
    assert [found[id_].result().state for id_ in ("a1", "a2")] == ["Empty", "Empty"]
    assert isinstance(found["b"].error, ConnectionTimeout)


def test_what_hangs_is_shown_beside_partitions_that_nobody_can_be_asked_about() -> None:
    told = World({1: node, 2: refuses}).run(hanging())
    assert [(each.topic_partition, each.transactional_id) for each in told.hanging] == [(T0, "a")]
    assert {tp: type(error) for tp, error in told.unknown.items()} == {T1: ConnectionRefused, T2: LeaderNotAvailable}


def test_where_a_silent_node_has_taken_all_the_time_it_is_told_of_which_partitions_nothing_is_known() -> None:
    """A connection from before was waited on until the end: whose transactions those were could not be asked, and an error was all."""
    told = World({1: node, 2: silent}, late_s=0.1).run(hanging(), 10.0)
    assert told.hanging == [] and {tp: type(error) for tp, error in told.unknown.items()} == {
        T0: ConnectionTimeout,
        T1: ConnectionTimeout,
        T2: LeaderNotAvailable,
    }


def test_a_transaction_does_not_hang_by_what_a_silent_node_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producer 8 is not among what node 1 coordinates: node 2 may do so, and will end what it has open."""
    monkeypatch.setitem(LEADERS, 1, 1)
    monkeypatch.setitem(LEADERS, 2, 1)
    monkeypatch.setattr("test_one_silent_node.PRODUCERS", [8])

    def none_of(request: Any) -> Any:
        return m.ListTransactionsResponse() if isinstance(request, m.ListTransactionsRequest) else node(request)

    told = World({1: none_of, 2: refuses}).run(hanging())
    assert told.hanging == [] and list(told.unknown) == [T0, T1, T2]
    told = World({1: none_of, 2: none_of}).run(hanging())
    assert [each.topic_partition for each in told.hanging] == [T0, T1, T2] and not told.unknown


def test_who_asks_for_all_that_hangs_is_told_what_could_not_be_asked() -> None:
    world = World({1: node, 2: node})
    with pytest.raises(LeaderNotAvailable):
        world.run(find_hanging_transactions(None, None, max_timeout_ms=1000, clock_ms=lambda: NOW_MS), 10.0)
    asked = [of for _, _, of in world.sent if isinstance(of, m.DescribeProducersRequest)]
    assert len(asked) == 2, "those that have answered are not asked again"


def test_a_leader_that_is_elected_meanwhile_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World({1: node, 2: node})
    _, told = world.start(find_hanging_transactions(None, None, max_timeout_ms=1000, clock_ms=lambda: NOW_MS), 60.0)
    while world.now < 1003:
        world.turn()
    monkeypatch.setitem(LEADERS, 2, 1)
    while not told:
        world.turn()
    assert [each.topic_partition for each in told[0][0]] == [T0, T1, T2]


# -- one round about many partitions -----------------------------------------------------------------------------------------


def takes_no_connection(_request: Any) -> FastqError:
    return ConnectionTimeout("the broker did not answer in time", phase="api versions")


def test_a_round_over_many_partitions_tries_a_silent_node_once() -> None:
    """Each partition waited for it anew, longer each time."""
    world, away = World({1: takes_no_connection, 2: takes_no_connection}), dict[int, FastqError]()
    for _ in range(3):
        with pytest.raises(ConnectionTimeout):
            world.run(silent_once(compare_replicas(T0, (1, 2), 1, compacted=False), away))
    assert len(world.sent) == 1 and list(away) == [1]


def two_of(node_id: int) -> Operation[list[Any]]:
    request = m.ListGroupsRequest()
    first = yield [Call(Found(node_id, "x"), request), Call(Found(1, "x"), request)]
    try:
        second = yield Call(Found(node_id, "x"), request)
    except FastqError as error:
        second = error
    return [*first, second]


@pytest.mark.parametrize(("why", "tries"), [(takes_no_connection, 1), (refuses, 4)], ids=["silent", "refuses"])
def test_answers_stay_in_their_places(why: Callable[[Any], Any], tries: int) -> None:
    world, away = World({1: node, 2: why}), dict[int, FastqError]()
    for _ in range(2):
        one, other, again = world.run(silent_once(two_of(2), away))
        assert isinstance(one, FastqError) and type(again) is type(one) and other.groups[0].group_id == "a"
    assert sum(asked == 2 for _, asked, _ in world.sent) == tries


def test_an_operation_that_runs_out_of_time_is_told_so() -> None:
    def late() -> Operation[str]:
        try:
            yield Call(Found(1, "x"), m.ListGroupsRequest())
        except (OutOfTime, FastqError) as error:
            return type(error).__name__
        return ""

    away = dict[int, FastqError]()
    assert World({1: silent}).run(silent_once(late(), away), 1.0) in ("OutOfTime", "ConnectionTimeout") and not away
