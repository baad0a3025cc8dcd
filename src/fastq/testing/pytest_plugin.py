"""The pytest fixtures `fastq_broker`, a broker of the test's own, `fastq_cluster`, several of them that are one cluster, and
`fastq_session_broker`, one broker for all tests of a session; all in memory where the system has a place for that.

    def test_orders(fastq_broker):
        producer = Producer(bootstrap_servers=fastq_broker.bootstrap_servers)

Rules: nothing is imported before a test asks for a fixture. Settings of a test's own broker come from the marker
`@pytest.mark.fastq_broker(config={"auto.create.topics.enable": "false"})`, whose arguments are those of `fastq.testing.Broker`, and
`@pytest.mark.fastq_cluster(nodes=4)` with those of `fastq.testing.Cluster`; those of the session's broker from a fixture
`fastq_session_broker_options` that a conftest.py overrides. Tests that share a broker make topics and groups of their own, and set no
faults: `fastq_new_name` makes names that nobody else has.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fastq.testing import Broker, Cluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "fastq_broker(**options): arguments of the broker behind the fixture fastq_broker"
    )
    config.addinivalue_line(
        "markers", "fastq_cluster(**options): arguments of the cluster behind the fixture fastq_cluster"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A marker without the fixture that hears it changes nothing, which is not what it was written for. One of a file or a class is for
    those of its tests that have the fixture. Not at collection, where a warning that is an error ends the session."""
    for name in ("fastq_broker", "fastq_cluster"):
        is_marked = any(marker.name == name for marker in item.own_markers)
        if is_marked and name not in getattr(item, "fixturenames", (name,)):
            item.warn(
                pytest.PytestWarning(f"the marker {name} is for tests with the fixture {name}: this one has it not")
            )


def _marked(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """The arguments of a test's marker, which go by their names."""
    marker = request.node.get_closest_marker(name)
    if marker is not None and marker.args:
        given = ", ".join(map(repr, marker.args))
        raise pytest.UsageError(f"the marker {name} takes its arguments by name, as in config={{...}}, got {given}")
    return {} if marker is None else dict(marker.kwargs)


@pytest.fixture
def fastq_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A running `fastq.testing.Broker`, ended after the test; its log is shown when the test fails."""
    from fastq.testing import Broker

    with Broker(**{"in_memory": True, **_marked(request, "fastq_broker")}) as broker:
        yield broker
        print(f"--- log of the broker at {broker.bootstrap_servers}\n{broker.log}---")


@pytest.fixture
def fastq_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running `fastq.testing.Cluster` of three nodes, ended after the test; their logs are shown when the test fails."""
    from fastq.testing import Cluster

    with Cluster(**{"in_memory": True, **_marked(request, "fastq_cluster")}) as cluster:
        yield cluster
        print(f"{cluster.log}---")


@pytest.fixture(scope="session")
def fastq_session_broker_options() -> dict[str, Any]:
    """Arguments of the broker behind `fastq_session_broker`, as `fastq.testing.Broker` takes them; override it in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def fastq_session_broker(fastq_session_broker_options: dict[str, Any]) -> Iterator[Broker]:
    """A running `fastq.testing.Broker` for all tests of the session (of a worker, with pytest-xdist); ended after the last one."""
    from fastq.testing import Broker

    with Broker(**{"in_memory": True, **fastq_session_broker_options}) as broker:
        yield broker


_numbers = itertools.count(1)


@pytest.fixture
def fastq_new_name(request: pytest.FixtureRequest) -> Callable[..., str]:
    """`fastq_new_name(stem="")`: a name for a topic or a group that no other test has, with the test's name in it."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:100]

    def make(stem: str = "") -> str:
        return "-".join(filter(None, [stem, test, str(os.getpid()), str(next(_numbers))]))

    return make
