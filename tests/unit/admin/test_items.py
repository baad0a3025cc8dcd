"""What becomes of items that are asked about together: one outcome for each, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from operation_world import World, refuses, silent

from fastq.admin import NewTopic, OffsetSpec
from fastq.admin.core import LOOKS_AGAIN, create_topics, look_up_topics, per_item
from fastq.admin.descriptions import describe_topics
from fastq.admin.offsets import list_offsets
from fastq.errors import (
    ConnectionRefused,
    ConnectionTimeout,
    ErrorCode,
    LeaderNotAvailable,
    NotController,
    SaslAuthenticationFailed,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from fastq.metadata import TopicPartition
from fastq.net.operations import CONTROLLER, Call, Operation
from fastq.protocol import messages as m

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
Partition = m.MetadataResponse.MetadataResponsePartition
Topic = m.MetadataResponse.MetadataResponseTopic


def cluster(*topics: Any, nodes: tuple[int, ...] = (1, 2)) -> m.MetadataResponse:
    brokers = [m.MetadataResponse.MetadataResponseBroker(node_id=node, host="h", port=node) for node in nodes]
    return m.MetadataResponse(brokers=brokers, controller_id=1, topics=list(topics))


def led(name: str, leaders: dict[int, int]) -> Any:
    """A topic by its partitions' leaders."""
    return Topic(name=name, partitions=[Partition(partition_index=i, leader_id=node) for i, node in leaders.items()])


def offsets_of(request: Any, codes: dict[int, int] | None = None, offset: int = 7) -> m.ListOffsetsResponse:
    part, topic = m.ListOffsetsResponse.ListOffsetsPartitionResponse, m.ListOffsetsResponse.ListOffsetsTopicResponse
    return m.ListOffsetsResponse(
        topics=[
            topic(
                name=asked.name,
                partitions=[
                    part(
                        partition_index=p.partition_index,
                        error_code=(codes or {}).get(p.partition_index, 0),
                        offset=offset,
                    )
                    for p in asked.partitions
                ],
            )
            for asked in request.topics
        ]
    )


def ends(*partitions: TopicPartition) -> Operation[Any]:
    return list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), read_committed=False, timeout_ms=1000)


def created(request: Any, **codes: int) -> m.CreateTopicsResponse:
    topic = m.CreateTopicsResponse.CreatableTopicResult
    return m.CreateTopicsResponse(
        topics=[topic(name=one.name, error_code=codes.get(one.name, 0), error_message=None) for one in request.topics]
    )


def test_what_was_done_is_told_where_the_second_try_fails_as_a_whole() -> None:
    """One topic is created, the other is to be asked for again, and nobody lets this client in by then."""
    asked: list[Any] = []

    def node(request: Any) -> Any:
        asked.append(request)
        return (
            created(request, b=int(NotController.code)) if len(asked) == 1 else SaslAuthenticationFailed("locked out")
        )

    outcomes = World({1: node}).run(
        create_topics([NewTopic(name="a"), NewTopic(name="b")], validate_only=False, timeout_ms=1000)
    )
    assert outcomes["a"].result().name == "a" and isinstance(outcomes["b"].error, SaslAuthenticationFailed)


def test_where_nothing_is_settled_the_whole_fails() -> None:
    with pytest.raises(SaslAuthenticationFailed):
        World({1: lambda request: SaslAuthenticationFailed("locked out")}).run(
            create_topics([NewTopic(name="a")], validate_only=False, timeout_ms=1000)
        )


def test_items_that_come_once_have_their_outcomes() -> None:
    """An iterator was empty when the outcomes were made: nothing was told of what had been done."""

    def send(left: list[str]) -> Operation[Any]:
        yield Call(CONTROLLER, m.ListGroupsRequest())
        return dict.fromkeys(left, 1)

    def given() -> Iterator[str]:
        yield from ("a", "b", "a")

    outcomes = World({1: lambda request: m.ListGroupsResponse()}).run(per_item(given(), send))  # type: ignore[arg-type]
    assert outcomes.results() == {"a": 1, "b": 1}
    assert World({1: silent}).run(per_item([], send)).results() == {}


def test_a_new_leader_that_does_not_know_its_high_watermark_yet_is_asked_again() -> None:
    asked: list[Any] = []

    def node(request: Any) -> Any:
        if isinstance(request, m.MetadataRequest):
            return cluster(led("t", {0: 1}))
        asked.append(request)
        return offsets_of(request, {0: int(ErrorCode.OFFSET_NOT_AVAILABLE)} if len(asked) == 1 else {})

    assert World({1: node, 2: refuses}).run(ends(T0))[T0].result().offset == 7


def test_a_topic_that_is_not_ready_holds_up_no_other() -> None:
    """It was looked at until the time was over, and the leaders of the other were not asked."""

    def node(request: Any) -> Any:
        if isinstance(request, m.MetadataRequest):
            new = Topic(name="new", error_code=int(LeaderNotAvailable.code))
            topics = {"t": led("t", {0: 1}), "new": new}
            return cluster(*(topics[topic.name] for topic in request.topics))
        return offsets_of(request)

    world = World({1: node, 2: refuses})
    new = TopicPartition("new", 0)
    outcomes = world.run(ends(new, T0))
    assert outcomes[T0].result().offset == 7 and isinstance(outcomes[new].error, LeaderNotAvailable)
    asked = [when for when, _, request in world.sent if isinstance(request, m.ListOffsetsRequest)]
    assert asked == [1000.0]


def test_of_a_topic_whose_answer_leaves_a_partition_out_the_others_are_asked_of_their_leaders() -> None:
    def first(request: Any) -> Any:
        if isinstance(request, m.MetadataRequest):
            return cluster(led("t", {0: 1, 2: 2}))
        return offsets_of(request, offset=1)

    outcomes = World({1: first, 2: lambda request: offsets_of(request, offset=2)}).run(
        ends(T0, T1, T2, TopicPartition("t", 3))
    )
    assert outcomes[T0].result().offset == 1 and outcomes[T2].result().offset == 2
    assert isinstance(outcomes[T1].error, UnknownServerError)
    assert isinstance(outcomes[TopicPartition("t", 3)].error, UnknownTopicOrPartition)


def test_a_broker_that_names_what_it_was_not_asked_about_says_nothing_of_it() -> None:
    def of_all(request: Any, offset: int) -> Any:
        asked = m.ListOffsetsRequest.ListOffsetsPartition
        topic = m.ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[asked(partition_index=i) for i in range(2)])
        return offsets_of(m.ListOffsetsRequest(topics=[topic]), offset=offset)

    def first(request: Any) -> Any:
        return cluster(led("t", {0: 1, 1: 2})) if isinstance(request, m.MetadataRequest) else of_all(request, 1)

    outcomes = World({1: first, 2: lambda request: of_all(request, 2)}).run(ends(T0, T1))
    assert [outcome.result().offset for outcome in outcomes.values()] == [1, 2]


def test_nodes_that_name_each_other_as_leader_end_with_what_they_say() -> None:
    code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    looks: list[Any] = []

    def node(request: Any) -> Any:
        if isinstance(request, m.MetadataRequest):
            looks.append(request)
            return cluster(led("t", {0: 1 + len(looks) % 2, 1: 1}))
        return offsets_of(request, {0: code})

    world = World({1: node, 2: node}, late_s=0.01)
    outcomes = world.run(ends(T0, T1))
    assert outcomes[T1].result().offset == 7
    assert outcomes[T0].error is not None and outcomes[T0].error.name == "NOT_LEADER_OR_FOLLOWER"
    assert world.now < 1010.1 and len(looks) < 40


def test_a_leader_that_is_silent_is_told_beside_those_that_answer() -> None:
    def node(request: Any) -> Any:
        return cluster(led("t", {0: 1, 1: 2})) if isinstance(request, m.MetadataRequest) else offsets_of(request)

    for gone, kind in ((silent, ConnectionTimeout), (refuses, ConnectionRefused)):
        outcomes = World({1: node, 2: gone}, late_s=0.02).run(ends(T0, T1))
        assert outcomes[T0].result().offset == 7
        assert type(outcomes[T1].error) is kind


def test_pages_that_do_not_get_on_end_the_description() -> None:
    """They were asked for until the time was over, and kept all."""
    pages: list[Any] = []

    def node(request: Any) -> Any:
        if isinstance(request, m.MetadataRequest):
            return cluster()
        pages.append(request)
        response = m.DescribeTopicPartitionsResponse
        return response(next_cursor=response.Cursor(topic_name="t", partition_index=3))

    with pytest.raises(UnknownServerError, match="do not get on"):
        World({1: node}).run(describe_topics(["t", "u"]))
    assert len(pages) == 2


def test_an_unknown_topic_is_not_looked_for_again() -> None:
    world = World({1: lambda request: cluster(Topic(name="t", error_code=3))})
    assert isinstance(world.run(look_up_topics(["t", "t"]))["t"].error, UnknownTopicOrPartition)
    assert len(world.sent) == 1


def test_a_leader_that_has_not_heard_of_the_partition_yet_is_asked_again() -> None:
    """A topic that was made a moment ago: its leader was not the first node to hear of it, and the partition was said not to exist."""
    asked: list[Any] = []

    def node(request: Any) -> Any:
        if isinstance(request, m.MetadataRequest):
            return cluster(led("t", {0: 1}))
        asked.append(request)
        return offsets_of(request, {0: 3} if len(asked) == 1 else {})

    assert World({1: node, 2: refuses}).run(ends(T0))[T0].result().offset == 7


def test_a_partition_that_its_leader_does_not_know_for_good_ends_with_what_the_last_look_tells() -> None:
    looks: list[Any] = []

    def node(request: Any) -> Any:
        if isinstance(request, m.MetadataRequest):
            looks.append(request)
            return cluster(led("t", {0: 1}) if len(looks) < 3 else Topic(name="t", error_code=3))
        return offsets_of(request, {0: 3})

    assert isinstance(World({1: node, 2: refuses}).run(ends(T0))[T0].error, UnknownTopicOrPartition)
    assert len(looks) == 3 + LOOKS_AGAIN


@pytest.mark.parametrize("late", [1, LOOKS_AGAIN, LOOKS_AGAIN + 1])
def test_a_topic_that_a_node_has_not_heard_of_yet_is_looked_for_a_little_longer(late: int) -> None:
    """One that was made a moment ago was unknown, as any node answers, and not the one that has made it."""
    looks: list[Any] = []

    def node(request: Any) -> Any:
        if not isinstance(request, m.MetadataRequest):
            return offsets_of(request)
        looks.append([topic.name for topic in request.topics])
        found = [led("u", {0: 1}), led("t", {0: 1}) if len(looks) > late else Topic(name="t", error_code=3)]
        return cluster(*(topic for topic in found if topic.name in looks[-1]))

    other = TopicPartition("u", 0)
    world = World({1: node, 2: refuses})
    outcomes = world.run(ends(other, T0))
    assert outcomes[other].result().offset == 7
    assert looks[1:] == [["t"]] * min(late, LOOKS_AGAIN)
    if late <= LOOKS_AGAIN:
        assert outcomes[T0].result().offset == 7
    else:
        assert isinstance(outcomes[T0].error, UnknownTopicOrPartition) and world.now < 1002
