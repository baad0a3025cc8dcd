"""The fixtures that come with the package, as a test of somebody else uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastq import Admin
from fastq.testing import Broker

seen: list[int] = []


@pytest.fixture(scope="session")
def fastq_session_broker_options() -> dict[str, Any]:
    return {"config": {"num.partitions": 5}}


@pytest.mark.parametrize("turn", [1, 2])
def test_one_broker_for_all_tests(fastq_session_broker: Broker, fastq_new_name: Callable[..., str], turn: int) -> None:
    seen.append(fastq_session_broker.pid)
    assert len(set(seen)) == 1
    one, other = fastq_new_name(), fastq_new_name("orders")
    assert one != other and other.startswith("orders-")
    with Admin(bootstrap_servers=fastq_session_broker.bootstrap_servers) as admin:
        assert admin.create_topic(one).partitions == 5, "the settings of the override"
        assert len(admin.list_topics()) == turn, "what other tests made is there"


def test_a_broker_of_its_own(fastq_broker: Broker, fastq_session_broker: Broker) -> None:
    assert fastq_broker.pid != fastq_session_broker.pid
    with Admin(bootstrap_servers=fastq_broker.bootstrap_servers) as admin:
        assert admin.list_topics() == {}
