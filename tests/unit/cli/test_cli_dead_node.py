"""Commands that ask each node of a cluster one of whose nodes is dead, and in the metadata still: what the others know, at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "net"))

from dead_node import make_second_node_dead, offsets
from net_fakes import FakeBroker

from fastq.cli import main
from fastq.errors import ErrorCode
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey

Run = Callable[..., tuple[str, str]]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        make_second_node_dead(broker)
        yield broker


@pytest.fixture
def run(broker: FakeBroker, capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int) -> tuple[str, str]:
        assert main([*arguments, "--bootstrap", broker.address]) == code
        out, err = capfd.readouterr()
        return out, err

    return run


def test_states_of_replicas(run: Run) -> None:
    out, err = run("topics", "describe", "logs", "--states", "--json", code=0)
    assert [(row["node"], row["leo"]) for row in json.loads(out)] == [(1, 4321), (2, None)] * 2
    assert "node 2 does not tell how far its logs reach" in err
    assert err.count("does not tell") == 1


def test_partitions_whose_leader_is_dead_are_not_compared_and_the_others_are(broker: FakeBroker, run: Run) -> None:
    described = m.DescribeConfigsResponse.DescribeConfigsResult
    policy = m.DescribeConfigsResponse.DescribeConfigsResourceResult(name="cleanup.policy", value="delete")
    result = described(error_message=None, resource_type=2, resource_name="logs", configs=[policy])
    broker.handlers[ApiKey.DESCRIBE_CONFIGS] = lambda request, version: m.DescribeConfigsResponse(results=[result])

    def fetched(request: m.FetchRequest, version: int) -> m.FetchResponse:
        data = m.FetchResponse.PartitionData(partition_index=0, high_watermark=4321, log_start_offset=4321)
        return m.FetchResponse(responses=[m.FetchResponse.FetchableTopicResponse(topic="logs", partitions=[data])])

    broker.handlers[ApiKey.FETCH] = fetched
    out, err = run("replicas", "verify", "logs", "--json", code=1)
    assert [(row["partition"], row["node"], row["result"]) for row in json.loads(out)] == [
        (0, 1, "same"),
        (0, 2, "unread"),
    ]
    assert "logs-1 was not compared" in err and "refused" in err


def test_offsets_that_are_not_known_are_told_of(broker: FakeBroker, run: Run) -> None:
    """They were dashes without a word."""

    def refused(request: m.ListOffsetsRequest, version: int) -> m.ListOffsetsResponse:
        response = offsets(request, version)
        response.topics[0].partitions[0].error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return response

    good = broker.handlers[ApiKey.METADATA]

    def led_here(request: m.MetadataRequest, version: int) -> m.MetadataResponse:
        response = good(request, version)
        for partition in [part for topic in response.topics for part in topic.partitions]:
            partition.leader_id = 1
        return response

    broker.handlers.update({ApiKey.METADATA: led_here, ApiKey.LIST_OFFSETS: refused})
    out, err = run("topics", "describe", "logs", "--json", code=0)
    assert [row["end"] for row in json.loads(out)] == [None, 4321]
    assert "not all offsets are known" in err and "TOPIC_AUTHORIZATION_FAILED" in err


def two_groups(broker: FakeBroker) -> None:
    """Of which node 2 coordinates b."""

    def coordinators(request: m.FindCoordinatorRequest, version: int) -> m.FindCoordinatorResponse:
        answer = m.FindCoordinatorResponse.Coordinator
        return m.FindCoordinatorResponse(
            coordinators=[
                answer(key=key, node_id=2 if key == "b" else 1, host=broker.host, port=1, error_message=None)
                for key in request.coordinator_keys
            ]
        )

    def described(request: m.ConsumerGroupDescribeRequest, version: int) -> m.ConsumerGroupDescribeResponse:
        group = m.ConsumerGroupDescribeResponse.DescribedGroup
        return m.ConsumerGroupDescribeResponse(
            groups=[group(group_id=id_, group_state="Empty", error_message=None) for id_ in request.group_ids]
        )

    def committed(request: m.OffsetFetchRequest, version: int) -> m.OffsetFetchResponse:
        partition, topic = (
            m.OffsetFetchResponse.OffsetFetchResponsePartitions,
            m.OffsetFetchResponse.OffsetFetchResponseTopics,
        )
        of_logs = topic(name="logs", partitions=[partition(partition_index=0, committed_offset=4000)])
        group = m.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=request.groups[0].group_id, topics=[of_logs])
        return m.OffsetFetchResponse(groups=[group])

    broker.handlers[ApiKey.FIND_COORDINATOR] = coordinators
    broker.handlers[ApiKey.CONSUMER_GROUP_DESCRIBE] = described
    broker.handlers[ApiKey.OFFSET_FETCH] = committed


def test_groups_are_listed_of_those_that_answer(broker: FakeBroker, run: Run) -> None:
    listed = m.ListGroupsResponse(groups=[m.ListGroupsResponse.ListedGroup(group_id="a", group_state="Empty")])
    broker.handlers[ApiKey.LIST_GROUPS] = lambda request, version: listed
    out, err = run("groups", "list", "--json", code=1)
    assert [row["group"] for row in json.loads(out)] == ["a"]
    assert err.count("\n") == 1 and "node 2 does not tell what it has" in err


def test_transactions_are_listed_of_those_that_answer(broker: FakeBroker, run: Run) -> None:
    state = m.ListTransactionsResponse.TransactionState
    listed = m.ListTransactionsResponse(
        transaction_states=[state(transactional_id="a", producer_id=7, transaction_state="Ongoing")]
    )
    broker.handlers[ApiKey.LIST_TRANSACTIONS] = lambda request, version: listed
    out, err = run("transactions", "list", "--json", code=1)
    assert [row["transactional_id"] for row in json.loads(out)] == ["a"]
    assert err.count("\n") == 1 and "node 2 does not tell what it has" in err


def test_partitions_that_nobody_can_be_asked_about_are_told_beside_what_hangs(broker: FakeBroker, run: Run) -> None:
    def producers(request: m.DescribeProducersRequest, version: int) -> m.DescribeProducersResponse:
        producer = m.DescribeProducersResponse.ProducerState(
            producer_id=7, last_timestamp=1, current_txn_start_offset=5
        )
        partition = m.DescribeProducersResponse.PartitionResponse(error_message=None, active_producers=[producer])
        topic = m.DescribeProducersResponse.TopicResponse(name="logs", partitions=[partition])
        return m.DescribeProducersResponse(topics=[topic])

    broker.handlers[ApiKey.DESCRIBE_PRODUCERS] = producers
    broker.handlers[ApiKey.LIST_TRANSACTIONS] = lambda request, version: m.ListTransactionsResponse()
    _, err = run("transactions", "find-hanging", "--topic", "logs", "--json", code=1)
    # What node 1 has open, node 2 may coordinate.
    assert "nothing is known of logs-1, logs-0: " in err and "refused" in err


def test_groups_whose_coordinator_answers_are_described(
    broker: FakeBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_groups(broker)
    short = ("--property", "default.api.timeout.ms=1500")
    out, err = run("groups", "describe", "a", "b", "--json", *short, code=3)
    assert [(row["group"], row["committed"], row["end"], row["lag"]) for row in json.loads(out)] == [
        ("a", 4000, 4321, 321)
    ]
    assert "b: " in err


def test_all_groups_are_those_that_are_listed(broker: FakeBroker, run: Run) -> None:
    two_groups(broker)
    group = m.ListGroupsResponse.ListedGroup(group_id="a", group_state="Empty", group_type="consumer")
    broker.handlers[ApiKey.LIST_GROUPS] = lambda request, version: m.ListGroupsResponse(groups=[group])
    out, err = run("groups", "describe", "--all-groups", "--json", code=1)
    assert [row["group"] for row in json.loads(out)] == ["a"] and "node 2 does not tell what it has" in err
