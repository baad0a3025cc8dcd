"""Pages of a cluster one of whose nodes is dead, and in the metadata still: what the others know, and a word of the one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "net"))
sys.path.insert(0, str(Path(__file__).parents[1] / "admin"))

from admin_fakes import Coordinators, limit
from console_served import Browser, Served
from dead_node import Partition, make_second_node_dead
from net_fakes import FakeBroker

from fastq.console.config import ClusterConfig, ConsoleConfig
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey


def with_one_of_nobody(answer: Any) -> Any:
    """The same metadata with a third partition, which has no leader."""

    def wrapped(request: Any, version: int) -> Any:
        response = answer(request, version)
        for topic in response.topics:
            nobodys = Partition(error_code=5, partition_index=2, leader_id=-1, replica_nodes=[2], isr_nodes=[])
            topic.partitions = [*topic.partitions, nobodys]
        return response

    return wrapped


def committed(request: Any, version: int) -> Any:
    """Of partitions 0 to 2 of `logs`, the last of which is without a leader, and of a topic that is gone."""
    answer = m.OffsetFetchResponse
    topics = [
        answer.OffsetFetchResponseTopics(
            name=name,
            partitions=[answer.OffsetFetchResponsePartitions(partition_index=n, committed_offset=4_300) for n in parts],
        )
        for name, parts in (("logs", range(3)), ("gone", range(1)))
    ]
    group = answer.OffsetFetchResponseGroup(group_id=request.groups[0].group_id, topics=topics)
    return answer(groups=[group])


NOTE = "Node 2 does not tell what it has"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with FakeBroker() as broker:
        make_second_node_dead(broker)
        broker.handlers[ApiKey.METADATA] = with_one_of_nobody(broker.handlers[ApiKey.METADATA])
        group = m.ListGroupsResponse.ListedGroup(group_id="of-node-1", group_state="Empty")
        state = m.ListTransactionsResponse.TransactionState(transactional_id="tx-of-node-1", producer_id=7)
        listed = {
            ApiKey.LIST_GROUPS: m.ListGroupsResponse(groups=[group]),
            ApiKey.LIST_TRANSACTIONS: m.ListTransactionsResponse(transaction_states=[state]),
            ApiKey.DESCRIBE_PRODUCERS: m.DescribeProducersResponse(),
        }
        broker.handlers[ApiKey.FIND_COORDINATOR] = Coordinators(broker)
        limit(broker, ApiKey.OFFSET_FETCH, 9)
        broker.handlers[ApiKey.OFFSET_FETCH] = committed
        for key, response in listed.items():
            broker.handlers[key] = lambda request, version, response=response: response  # type: ignore[misc]
        cluster = ClusterConfig("test", {"bootstrap.servers": broker.address, "default.api.timeout.ms": "600000"})
        console = Served(ConsoleConfig((cluster,), port=0, picture_s=0.0))
        try:
            with Browser(console.url) as client:
                yield client
        finally:
            console.close()


@pytest.mark.parametrize(
    ("page", "known"),
    [
        ("/c/test", "50 %"),
        ("/c/test/topics", "logs"),
        ("/c/test/topics?sort=size", "logs"),
        ("/c/test/topics/logs/offsets", "4,321"),
        ("/c/test/topics/logs/replicas", "4,321"),
        ("/c/test/partitions", "logs-0"),
        ("/c/test/groups", "of-node-1"),
        ("/c/test/transactions", "tx-of-node-1"),
        ("/c/test/transactions?hanging=1", "Nothing is known of logs-1"),
    ],
)
def test_a_page_shows_what_the_others_know_and_says_who_does_not_tell(browser: Browser, page: str, known: str) -> None:
    """Each of them was waited for until the time of the call was over."""
    answer = browser.get(page)
    assert answer.status_code == 200, answer.text
    assert known in answer.text and NOTE in answer.text and "refused" in answer.text


def test_a_chart_says_whose_partitions_it_is_without(browser: Browser) -> None:
    told = browser.get("/c/test/topics/logs/ends", headers={"accept": "application/json"}).json()
    assert (told["value"], told["of"], told["silent"], told["unknown"]) == (4321, 1, [2], 1)


def test_a_chart_of_lag_does_too(browser: Browser) -> None:
    """It fell by what the dead node leads, and said nothing."""
    told = browser.get("/c/test/group/lag", params={"id": "g"}, headers={"accept": "application/json"}).json()
    assert (told["value"], told["of"], told["silent"], told["unknown"]) == (21, 1, [2], 1)
