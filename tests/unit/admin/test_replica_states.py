"""The states of partitions and replicas, as brokers' answers tell them; offsets of who does not answer are unknown."""

from __future__ import annotations

from fastq.admin import PartitionDescription
from fastq.admin.replica_states import replica_states
from fastq.errors import ErrorCode, KafkaError
from fastq.metadata import Node, TopicPartition
from fastq.protocol import messages as m

NODE = Node(1, "a", 9092)


def described(leader: Node | None, epoch: int, isr: tuple[int, ...], offline: tuple[int, ...]) -> PartitionDescription:
    return PartitionDescription(0, leader, epoch, (1, 2, 3), isr, offline, elr=(2,))


def answer(request: m.ListOffsetsRequest, offset: int, error: int = 0) -> m.ListOffsetsResponse:
    told = m.ListOffsetsResponse.ListOffsetsPartitionResponse
    return m.ListOffsetsResponse(
        topics=[
            m.ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    told(partition_index=p.partition_index, offset=offset, error_code=error) for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def marked(high: int, stable: int, error: int = 0) -> m.FetchResponse:
    told = m.FetchResponse.PartitionData(
        partition_index=0, error_code=error, high_watermark=high, last_stable_offset=stable
    )
    return m.FetchResponse(responses=[m.FetchResponse.FetchableTopicResponse(topic="t", partitions=[told])])


def test_who_does_not_answer_for_followers_is_left_out() -> None:
    tp = TopicPartition("t", 0)
    operation = replica_states({tp: described(NODE, 3, (1, 2), (3,))}, {})
    calls = next(operation)
    told = zip(calls, (5, 0, 9, 9), (0, 6, 0, 0), strict=True)
    calls = operation.send([answer(call.request, offset, error) for call, offset, error in told])
    try:
        operation.send([marked(9, 9), marked(-1, -1, error=6)])
    except StopIteration as done:
        _, follower, _ = done.value.found[tp].replicas
        assert not done.value.silent
    assert follower == (2, "OnlineReplica", False, True, True, None, 9, None, None)


def test_of_nodes_that_answer_and_others() -> None:
    tp = TopicPartition("t", 0)
    operation = replica_states({tp: described(NODE, 3, (1,), (3,))}, {tp: [2]})
    calls = next(operation)  # the starts and the ends, of the nodes that are there
    assert [(call.route.node_id, call.request.replica_id) for call in calls] == [(1, -2), (2, -2)] * 2
    late = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    calls = operation.send(
        [answer(calls[0].request, 5), late, answer(calls[2].request, 9), answer(calls[3].request, 7)]
    )
    assert [(call.route.node_id, call.request.isolation_level) for call in calls] == [(1, 1), (2, 1)]
    assert [call.request.topics[0].partitions[0].fetch_offset for call in calls] == [9, 7]
    try:
        operation.send([marked(8, 7), marked(6, 5)])
    except StopIteration as done:
        status = done.value.found[tp]
        assert done.value.silent == {2: late}
    assert status.state == "OnlinePartition"
    leader, follower, gone = status.replicas
    assert leader == (1, "OnlineReplica", True, True, False, 5, 9, 8, 7)
    assert follower == (2, "NewReplica", False, False, True, None, 7, 6, 5)
    assert gone == (3, "OfflineReplica", False, False, False, None, None, None, None)


def test_without_a_leader() -> None:
    tp = TopicPartition("t", 0)
    for epoch, state in ((0, "NewPartition"), (4, "OfflinePartition")):
        operation = replica_states({tp: described(None, epoch, (), (1, 2, 3))}, {})
        try:
            next(operation)
        except StopIteration as done:
            assert done.value.found[tp].state == state  # nobody is asked
