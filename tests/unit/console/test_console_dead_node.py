"""Pages of a cluster one of whose nodes is dead, and in the metadata still: what the others know, and a word of the one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "net"))

from console_served import Browser, Served
from dead_node import make_second_node_dead
from net_fakes import FakeBroker

from fastq.console.config import ClusterConfig, ConsoleConfig
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey

NOTE = "Node 2 does not tell what it has"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with FakeBroker() as broker:
        make_second_node_dead(broker)
        group = m.ListGroupsResponse.ListedGroup(group_id="of-node-1", group_state="Empty")
        state = m.ListTransactionsResponse.TransactionState(transactional_id="tx-of-node-1", producer_id=7)
        listed = {
            ApiKey.LIST_GROUPS: m.ListGroupsResponse(groups=[group]),
            ApiKey.LIST_TRANSACTIONS: m.ListTransactionsResponse(transaction_states=[state]),
            ApiKey.DESCRIBE_PRODUCERS: m.DescribeProducersResponse(),
        }
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
    assert (told["value"], told["of"], told["silent"]) == (4321, 1, [2])
