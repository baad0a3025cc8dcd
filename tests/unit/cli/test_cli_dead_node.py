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
