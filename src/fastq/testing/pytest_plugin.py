"""The pytest fixture `fastq_broker`: a broker of the test's own, in memory where the system has a place for that.

    def test_orders(fastq_broker):
        producer = Producer(bootstrap_servers=fastq_broker.bootstrap_servers)

Rules: nothing is imported before a test asks for the fixture. Settings of the broker come from the marker
`@pytest.mark.fastq_broker(config={"auto.create.topics.enable": "false"})`, whose arguments are those of `fastq.testing.Broker`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fastq.testing import Broker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "fastq_broker(**options): arguments of the broker behind the fixture fastq_broker"
    )


@pytest.fixture
def fastq_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A running `fastq.testing.Broker`, ended after the test; its log is shown when the test fails."""
    from fastq.testing import Broker

    marker = request.node.get_closest_marker("fastq_broker")
    options = {"in_memory": True, **(marker.kwargs if marker is not None else {})}
    with Broker(**options) as broker:
        yield broker
        print(f"--- log of the broker at {broker.bootstrap_servers}\n{broker.log}---")
