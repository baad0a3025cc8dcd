"""The metadata cache: what an answer changes, what it must not."""

from __future__ import annotations

from fastq.metadata import ClusterMetadata, Node, TopicPartition
from fastq.protocol.messages import MetadataResponse

Topic = MetadataResponse.MetadataResponseTopic
Partition = MetadataResponse.MetadataResponsePartition
Broker = MetadataResponse.MetadataResponseBroker


def answer(*topics: MetadataResponse.MetadataResponseTopic, nodes: tuple[int, ...] = (1, 2)) -> MetadataResponse:
    return MetadataResponse(
        brokers=[Broker(node_id=node, host=f"h{node}", port=9092) for node in nodes],
        cluster_id="c",
        controller_id=1,
        topics=list(topics),
    )


def topic(name: str, *leaders: tuple[int, int], topic_id: bytes = b"1" * 16, error: int = 0) -> Topic:
    partitions = [
        Partition(partition_index=i, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[1])
        for i, (leader, epoch) in enumerate(leaders)
    ]
    return Topic(name=name, topic_id=topic_id, partitions=partitions[::-1], error_code=error)


def test_an_answer_is_taken_over() -> None:
    metadata = ClusterMetadata()
    assert metadata.topic("t") is None and metadata.leader("t", 0) is None and metadata.controller is None
    assert metadata.update(answer(topic("t", (1, 3), (2, 4))))
    found = metadata.topic("t")
    assert found is not None and [p.index for p in found.partitions] == [0, 1]
    assert metadata.leader("t", 1) == Node(2, "h2", 9092)
    assert str(metadata.controller) == "h1:9092 (node 1)"
    assert metadata.topic_name(b"1" * 16) == "t"
    assert metadata.partition("t", 2) is None and metadata.partition("t", -1) is None
    assert metadata.generation == 1


def test_the_same_again_changes_nothing() -> None:
    metadata = ClusterMetadata()
    metadata.update(answer(topic("t", (1, 3))))
    assert not metadata.update(answer(topic("t", (1, 3))))
    assert metadata.generation == 1


def test_a_leader_epoch_never_goes_back_within_one_topic() -> None:
    metadata = ClusterMetadata()
    metadata.update(answer(topic("t", (1, 5))))
    metadata.update(answer(topic("t", (2, 4))))
    assert metadata.leader("t", 0) == metadata.nodes[1]
    metadata.update(answer(topic("t", (2, 0), topic_id=b"2" * 16)))  # deleted and made again
    assert metadata.leader("t", 0) == metadata.nodes[2]
    assert metadata.topic_name(b"1" * 16) is None


def test_errors_and_topics_that_went() -> None:
    metadata = ClusterMetadata()
    metadata.update(answer(topic("t", (1, 0)), topic("u", (1, 0), topic_id=b"2" * 16)))
    metadata.update(answer(topic("t", error=3)))
    found = metadata.topic("t")
    assert found is not None and found.error == 3 and found.partitions == ()
    assert metadata.topic("u") is not None
    metadata.update(answer(topic("t", (1, 0))), all_topics=True)
    assert metadata.topic("u") is None
    metadata.forget(["t", "never there"])
    assert metadata.topics == {}


def test_no_brokers_keeps_the_known_ones() -> None:
    metadata = ClusterMetadata()
    metadata.update(answer())
    metadata.update(answer(nodes=()))
    assert set(metadata.nodes) == {1, 2}


def test_a_leader_named_by_an_answer_to_produce_or_fetch() -> None:
    metadata = ClusterMetadata()
    metadata.update(answer(topic("t", (1, 5))))
    assert not metadata.update_leader("t", 0, 2, 5)  # no newer
    assert not metadata.update_leader("t", 0, 9, 6)  # unknown broker
    assert not metadata.update_leader("x", 0, 2, 6)
    assert metadata.update_leader("t", 0, 9, 6, [Node(9, "h9", 1)])
    assert metadata.leader("t", 0) == Node(9, "h9", 1)


def test_a_gap_and_an_absurd_index() -> None:
    metadata = ClusterMetadata()
    gap = Topic(name="g", partitions=[Partition(partition_index=2, leader_id=1)])
    absurd = Topic(name="a", partitions=[Partition(partition_index=2**31 - 1, leader_id=1)])
    metadata.update(answer(gap, absurd))
    found = metadata.topic("g")
    assert found is not None and [p.leader_id for p in found.partitions] == [-1, -1, 1]
    assert metadata.topic("a") is not None and metadata.partition("a", 2**31 - 1) is None


def test_topic_partition() -> None:
    assert TopicPartition("t", 1) == ("t", 1) and str(TopicPartition("t", 1)) == "t-1"
    assert sorted([TopicPartition("t", 2), TopicPartition("s", 3)])[0].topic == "s"
