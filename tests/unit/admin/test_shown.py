"""What is shown of nodes one of which is dead, and in the metadata still: one try, and what the others know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from net_fakes import FakeBroker
from operation_world import World, refuses

from fastq.admin import Admin, PartitionDescription
from fastq.admin.replica_comparison import ReplicaReport, _compare_bytes, compare_replicas
from fastq.admin.replica_states import replica_states
from fastq.admin.shown import ask_once
from fastq.console.picture import disks, ends_of, leaders_sizes, replica_sizes
from fastq.errors import ConnectionFailed, ConnectionRefused, ConnectionTimeout, FastqError
from fastq.metadata import Node, TopicPartition
from fastq.net.operations import Broker, Operation
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NODES = (1, 2)
Operations = Callable[[], Operation[Any]]


def living(request: Any) -> Any:
    """Answers for whatever it is asked about."""
    if isinstance(request, m.ListOffsetsRequest):
        part, topic = m.ListOffsetsResponse.ListOffsetsPartitionResponse, m.ListOffsetsResponse.ListOffsetsTopicResponse
        return m.ListOffsetsResponse(
            topics=[
                topic(
                    name=of.name, partitions=[part(partition_index=p.partition_index, offset=7) for p in of.partitions]
                )
                for of in request.topics
            ]
        )
    if isinstance(request, m.FetchRequest):
        data, topics = m.FetchResponse.PartitionData, m.FetchResponse.FetchableTopicResponse
        return m.FetchResponse(
            responses=[
                topics(
                    topic=of.topic,
                    partitions=[
                        data(partition_index=p.partition, high_watermark=7, last_stable_offset=7, log_start_offset=7)
                        for p in of.partitions
                    ],
                )
                for of in request.topics
            ]
        )
    held, topic = m.DescribeLogDirsResponse.DescribeLogDirsPartition, m.DescribeLogDirsResponse.DescribeLogDirsTopic
    topics = [
        topic(name=of.topic, partitions=[held(partition_index=index, partition_size=5) for index in of.partitions])
        for of in request.topics
    ]
    return m.DescribeLogDirsResponse(
        results=[m.DescribeLogDirsResponse.DescribeLogDirsResult(log_dir="/d", topics=topics)]
    )


def described(leader: int) -> PartitionDescription:
    return PartitionDescription(0, Node(leader, "h", leader), 1, NODES, NODES, ())


@pytest.mark.parametrize(
    ("operation", "found"),
    [
        (lambda: ends_of({T0: 1, T1: 2}), lambda of: (of[T0], of[T1]) == ((7, 7), (None, None))),
        (lambda: replica_sizes(NODES, {"t": [0]}), lambda of: of == {T0: {1: 5}}),
        (lambda: leaders_sizes("t", {1: [0], 2: [1]}), lambda of: of == {0: 5}),
        (lambda: disks(NODES), lambda of: list(of) == [1] and of[1][0].path == "/d"),
        (
            lambda: replica_states({T0: described(1)}, {}),
            lambda of: [replica.log_end for replica in of[T0].replicas] == [7, None],
        ),
    ],
    ids=["ends", "sizes of replicas", "sizes of leaders", "disks", "states"],
)
@pytest.mark.parametrize("why", ["refuses", "has left", "answers with an error"])
def test_a_dead_node_costs_one_try_and_is_told_of(
    operation: Operations, found: Callable[[Any], bool], why: str
) -> None:
    def locked(request: Any) -> Any:
        return m.DescribeLogDirsResponse(error_code=31) if isinstance(request, m.DescribeLogDirsRequest) else refuses(0)

    dead = {"refuses": refuses, "has left": gone, "answers with an error": locked}[why]
    world = World({1: living, 2: dead})
    told = world.run(operation())
    assert found(told.found) and list(told.silent) == [2] and isinstance(told.silent[2], FastqError)
    assert world.now < 1000.1, "nobody has waited for it"
    kinds = [(type(request).__name__, getattr(request, "topics", None)) for _, node, request in world.sent if node == 2]
    assert len(kinds) == len({str(kind) for kind in kinds}), "nothing was asked of it twice"


def gone(_request: Any) -> FastqError:
    from fastq.errors import BrokerNotAvailable

    return BrokerNotAvailable("no broker with id 2")


def test_a_replica_on_a_dead_node_is_unread_and_the_others_are_compared() -> None:
    world = World({1: living, 2: refuses, 3: living})
    reports = world.run(compare_replicas(T0, (1, 2, 3), 1, compacted=False), 3600.0)
    assert [(report.state, report.end) for report in reports] == [("same", 7), ("unread", None), ("same", 7)]
    assert "nothing listens there" in str(reports[1].detail) and world.now < 1000.1
    compacted = world.run(compare_replicas(T0, (1, 2, 3), 1, compacted=True), 3600.0)
    assert [report.state for report in compacted] == ["same", "unread", "same"] and world.now < 1000.2


def test_without_the_leader_nothing_is_compared_at_once() -> None:
    world = World({1: refuses, 2: living})
    with pytest.raises(ConnectionRefused):
        world.run(compare_replicas(T0, (1, 2), 1, compacted=False), 3600.0)
    assert world.now < 1000.1


def test_bytes_are_not_compared_with_a_leader_that_does_not_tell() -> None:
    """Each follower was said to differ from it."""
    leader, follower, dead = ReplicaReport(1, True), ReplicaReport(2, False), ReplicaReport(3, False)
    World({1: refuses, 2: living, 3: refuses}).run(_compare_bytes(T0, leader, [follower, dead]))
    assert follower.state == dead.state == "unread"
    assert "the leader does not say" in str(follower.detail) and "nothing listens" in str(follower.detail)
    assert "nothing listens" in str(dead.detail)


def test_an_answer_that_leaves_the_partition_out_says_so() -> None:
    world = World({1: lambda request: m.ListOffsetsResponse(topics=[]), 2: living})
    with pytest.raises(FastqError, match="leaves the partition out"):
        world.run(compare_replicas(T0, (1, 2), 1, compacted=False))


def test_nobody_is_asked_where_nothing_is_wanted() -> None:
    told = World({1: refuses}).run(ask_once([]))
    assert told.found == [] and told.silent == {}


def test_what_was_found_to_have_left_is_an_error_of_the_connection() -> None:
    told = World({1: living, 2: gone}).run(ends_of({T1: 2}))
    assert isinstance(told.silent[2], ConnectionFailed) and "node 2" in str(told.silent[2])


def test_a_connection_that_ended_unnoticed_is_no_try() -> None:
    """A node that began anew meanwhile was told to be away: what is sent on the old connection tells nothing of it."""
    with FakeBroker() as broker, Admin(bootstrap_servers=broker.address) as admin:
        broker.topics = {"t": 1}
        broker.handlers[ApiKey.LIST_OFFSETS] = lambda request, version: living(request)
        for _ in range(3):
            told = admin._client.run(ends_of({T0: 1}))
            assert told.found[T0] == (7, 7) and not told.silent
            broker.drop_connections()


def test_an_answer_that_did_not_come_is_no_error_of_what_is_asked_next(
    admin_of_silent: Admin,
) -> None:
    """While the connection was made anew, the next call was told that another request had not been answered."""
    admin = admin_of_silent
    with pytest.raises(ConnectionTimeout, match="ListOffsets"):
        admin._client.call(Broker(1), m.ListOffsetsRequest(), 0.3)
    with pytest.raises(ConnectionTimeout) as failed:
        admin._client.call(Broker(1), m.ListGroupsRequest(), 1.5)
    assert "ListOffsets" not in str(failed.value)


@pytest.fixture
def admin_of_silent() -> Iterator[Admin]:
    """The node stops in the middle: it takes connections, and answers nothing on them."""
    with FakeBroker() as broker, Admin(bootstrap_servers=broker.address, retry_backoff_max_ms=100) as admin:
        admin.api_versions(1)
        broker.handlers.update(dict.fromkeys(ApiKey, lambda request, version: None))
        yield admin
