"""AlterPartition: what is asked, one request at a time, and what becomes of the answers."""

from __future__ import annotations

from fastq_broker.replication.alter_partition import RETRY_MS, AlterPartitions, build_request
from fastq_broker.replication.isr import IsrChange

from fastq.protocol.messages import AlterPartitionRequest, AlterPartitionResponse

TOPIC, OTHER = b"a" * 16, b"b" * 16
CHANGE = IsrChange(5, 7, ((1, 101), (2, 102)), joining=2)


def asked(request: AlterPartitionRequest | None) -> list[tuple[bytes, int]]:
    assert request is not None
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
    sender = AlterPartitions(1)
    assert sender.next_request(101, 3, 0) is None
    for key in ((TOPIC, 1), (OTHER, 0), (TOPIC, 0)):
        sender.submit(key, CHANGE)
    assert asked(sender.next_request(101, 3, 0)) == [(TOPIC, 0), (TOPIC, 1), (OTHER, 0)]
    sender.submit((TOPIC, 2), CHANGE)
    assert (sender.next_request(101, 3, 0), sender.due_ms) == (None, None)
    answers = sender.answered(told((TOPIC, 0), (TOPIC, 1), (OTHER, 0), (OTHER, 9)), 0)
    assert [key for key, _, _ in answers] == [(TOPIC, 0), (TOPIC, 1), (OTHER, 0)]
    assert asked(sender.next_request(101, 3, 0)) == [(TOPIC, 2)]


def test_without_an_answer_all_is_asked_again_after_a_while() -> None:
    sender = AlterPartitions(1)
    sender.submit((TOPIC, 0), CHANGE)
    sender.next_request(101, 3, 1000)
    sender.failed(1000)
    assert (sender.next_request(101, 3, 1000), sender.due_ms) == (None, 1000 + RETRY_MS)
    assert asked(sender.next_request(101, 3, 1000 + RETRY_MS)) == [(TOPIC, 0)]
    assert sender.answered(AlterPartitionResponse(error_code=77), 2000) == []
    assert asked(sender.next_request(102, 3, 2000 + RETRY_MS)) == [(TOPIC, 0)]


def test_a_partition_without_an_answer_is_asked_for_again() -> None:
    sender = AlterPartitions(1)
    for at in (0, 1):
        sender.submit((TOPIC, at), CHANGE)
    sender.next_request(101, 3, 0)
    assert len(sender.answered(told((TOPIC, 0)), 0)) == 1
    assert asked(sender.next_request(101, 3, RETRY_MS)) == [(TOPIC, 1)]


def test_a_newer_change_takes_the_place_of_one_that_failed() -> None:
    sender = AlterPartitions(1)
    sender.submit((TOPIC, 0), CHANGE)
    sender.next_request(101, 3, 0)
    newer = CHANGE._replace(partition_epoch=9)
    sender.submit((TOPIC, 0), newer)
    sender.failed(0)
    request = sender.next_request(101, 3, RETRY_MS)
    assert request is not None
    assert request.topics[0].partitions[0].partition_epoch == 9
    [(_, change, _)] = sender.answered(told((TOPIC, 0)), 0)
    assert change is newer


def test_what_is_not_led_any_more_is_not_asked_for() -> None:
    sender = AlterPartitions(1)
    sender.submit((TOPIC, 0), CHANGE)
    sender.forget((TOPIC, 0))
    assert sender.next_request(101, 3, 0) is None
