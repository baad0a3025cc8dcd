"""A bootstrap server, or a node, that takes connections and says nothing: the others are asked beside it, and it costs nobody its time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from net_fakes import FakeBroker, all_versions

from fastq import Admin, Consumer, Producer
from fastq.config import ClientConfig
from fastq.net.addresses import Address
from fastq.net.core import ClientCore
from fastq.net.operations import ANY, Call, OperationRun, single
from fastq.net.outages import SLOW_S
from fastq.net.peers import Connect
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey
from fastq.protocol.negotiation import BrokerVersions

FOREVER_MS = 600_000
"""For the connection: whoever waits for the silent one waits longer than the test may take."""


class First:
    """Picks the first where there is a choice: here that is the silent server."""

    def choice(self, among: list[Any]) -> Any:
        return among[0]

    def uniform(self, low: float, high: float) -> float:
        return low

    def random(self) -> float:
        return 0.5


@pytest.fixture
def silent_one() -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.topics = {"t": 1}
        yield broker


def test_an_admin_call_goes_to_the_next_server(silent_one: str, broker: FakeBroker) -> None:
    servers = f"{silent_one},{broker.address}"
    with Admin(bootstrap_servers=servers, socket_connection_setup_timeout_ms=FOREVER_MS) as admin:
        admin._client.core.random = First()  # type: ignore[assignment]
        assert list(admin.list_topics(timeout=30)) == ["t"]


def test_a_producer_goes_to_the_next_server(silent_one: str, broker: FakeBroker) -> None:
    servers = f"{silent_one},{broker.address}"
    with Producer(
        bootstrap_servers=servers, max_block_ms=30_000, socket_connection_setup_timeout_ms=FOREVER_MS
    ) as producer:
        producer._driver.core.random = First()  # type: ignore[assignment]
        assert producer.partitions_for("t") == [0]


def test_a_consumer_goes_to_the_next_server(silent_one: str, broker: FakeBroker) -> None:
    servers = f"{silent_one},{broker.address}"
    with Consumer(bootstrap_servers=servers, socket_connection_setup_timeout_ms=FOREVER_MS) as consumer:
        consumer._driver.core.random = First()  # type: ignore[assignment]
        updater = consumer._driver.core.metadata_updater
        assert consumer._driver.wait_until(lambda: updater.successes, 30)


# -- what waits, and for whom --------------------------------------------------------------------------------------------------


class Servers:
    """A core that connects to nobody: what it asks of its driver, on a clock that the test moves."""

    def __init__(self, count: int, *, asks_metadata: bool = True) -> None:
        self.now = 100.0
        servers = ",".join(f"127.0.0.{i + 1}:9092" for i in range(count))
        config = ClientConfig(bootstrap_servers=servers)
        self.core = ClientCore(config, clock=lambda: self.now, random=First(), asks_metadata=asks_metadata)  # type: ignore[arg-type]
        self.tried: list[Any] = []

    def tick(self, after_s: float = 0.0) -> list[Address]:
        """The addresses that are tried in this turn, which is taken where one is due."""
        self.now += after_s
        if self.now >= self.core.deadline:
            self.core.tick(self.now)
        began = [effect for effect in self.core.take_effects() if isinstance(effect, Connect)]
        self.tried += [effect.connection for effect in began]
        self.core.run_callbacks()
        return [Address(*effect.endpoint.sockaddr[:2]) for effect in began]

    def connect(self, connection: Any) -> list[int]:
        """It is ready; the APIs that are asked on it."""
        connection.connected(self.now)
        connection.versions = BrokerVersions(all_versions())
        connection.is_ready = True
        self.core.connection_ready(connection, self.now)
        return [pending.api_key for pending in connection.in_flight]


def test_the_next_server_is_tried_when_the_first_takes_long_and_not_before() -> None:
    servers = Servers(3)
    first, second, third = (Address(f"127.0.0.{i}", 9092) for i in (1, 2, 3))
    assert servers.tick() == [first] and servers.tick(SLOW_S / 2) == []
    assert servers.tick(SLOW_S / 2) == [second] and servers.tick(SLOW_S / 2) == []
    assert servers.tick(SLOW_S / 2) == [third] and servers.tick(SLOW_S) == []


def test_what_any_broker_can_answer_is_taken_along_and_what_one_is_to_answer_waits_for_it() -> None:
    servers = Servers(2)
    core = servers.core
    servers.tick()
    core.send(-1, m.MetadataRequest(topics=None), lambda *_: None, anywhere=True)
    core.send(-1, m.ListGroupsRequest(), lambda *_: None)
    servers.tick(SLOW_S)
    _, other = servers.tried
    assert core.in_flight(-1) == 2
    asked = servers.connect(other)
    assert [pending.api_key for pending in core._peers[-1].queue] == [ApiKey.LIST_GROUPS]
    assert ApiKey.METADATA in asked


def test_each_that_takes_long_has_another_one_tried_beside_it() -> None:
    """Where metadata was not wanted as well, the third one was not tried before the first had failed."""
    servers = Servers(3, asks_metadata=False)
    first, second, third = (Address(f"127.0.0.{i}", 9092) for i in (1, 2, 3))
    servers.core.send(-1, m.MetadataRequest(topics=None), lambda *_: None, anywhere=True)
    assert [servers.tick(), servers.tick(SLOW_S), servers.tick(SLOW_S)] == [[first], [second], [third]]


def test_one_that_backed_off_is_tried_while_the_other_takes_long() -> None:
    """Nobody looked again once it might be tried: the silent one was waited for."""
    servers = Servers(2)
    first, second = (Address(f"127.0.0.{i}", 9092) for i in (1, 2))
    away = servers.core._peers[-2]
    away.failures, away.retry_at = 8, servers.now + 1.5 * SLOW_S
    assert servers.tick() == [first] and servers.tick(SLOW_S) == []
    assert servers.tick(SLOW_S) == [second]


def test_what_waits_for_a_bootstrap_server_is_asked_of_a_node_that_is_back() -> None:
    servers = Servers(1)
    core = servers.core
    node = m.MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.9", port=9092)
    core.metadata.update(m.MetadataResponse(brokers=[node], controller_id=1))
    core.metadata_changed(servers.now)
    core._peers[1].failures = 1
    core.send(-1, m.ListGroupsRequest(), lambda *_: None, anywhere=True)
    core.can_send(1)
    servers.tick()
    assert ApiKey.LIST_GROUPS in servers.connect(servers.tried[-1]) and not core._peers[-1].queue


def test_a_quota_is_of_the_broker_whose_answer_tells_of_it() -> None:
    """It was of the one that was to be asked at first, which says nothing."""
    servers, ended = Servers(2, asks_metadata=False), list[Any]()
    core = servers.core
    OperationRun(core, single(Call(ANY, m.ListGroupsRequest())), 60.0, lambda *outcome: ended.append(outcome))
    servers.tick()
    servers.tick(SLOW_S)
    _, other = servers.tried
    assert servers.connect(other)[-1] == ApiKey.LIST_GROUPS
    other.in_flight[-1].on_done(m.ListGroupsResponse(throttle_time_ms=5000), None)
    assert ended and core.throttled_until(-2) == servers.now + 5.0 and core.throttled_until(-1) <= servers.now


def one_of_two_is_connected() -> Servers:
    servers = Servers(2, asks_metadata=False)
    servers.core.can_send(-1)
    servers.tick()
    servers.connect(servers.tried[0])
    return servers


def test_what_any_broker_can_answer_does_not_wait_for_the_quota_of_one() -> None:
    """It did, for the whole of it, and another one could have been connected."""
    servers = one_of_two_is_connected()
    core, now = servers.core, servers.now
    core.throttle(-1, SLOW_S / 2, now)
    assert core.least_loaded(now) == -1, "it is waited for no longer than an attempt"
    core.throttle(-1, 60.0, now)
    assert core.least_loaded(now) == -2
    core._peers[-2].retry_at = now + 60.0
    assert core.least_loaded(now) == -1, "there is no other"


def test_a_call_that_waits_for_a_quota_looks_whether_another_may_be_asked() -> None:
    """It waited for all of it where the others had just refused, as while they are restarted, though they were back in a second."""
    servers = one_of_two_is_connected()
    core = servers.core
    core.throttle(-1, 60.0, servers.now)
    core._peers[-2].retry_at = servers.now + 1.0
    OperationRun(core, single(Call(ANY, m.ListGroupsRequest())), 10.0, lambda *_: None)
    assert servers.tick() == []
    tried = [address for _ in range(40) for address in servers.tick(0.05)]
    assert [address.host for address in tried] == ["127.0.0.2"]


def test_a_broker_whose_quota_is_over_takes_what_waits_for_one_that_is_silent() -> None:
    servers = one_of_two_is_connected()
    core, connection = servers.core, servers.tried[0]
    core.throttle(-1, 5.0, servers.now)
    core.send(-2, m.ListGroupsRequest(), lambda *_: None, anywhere=True)
    servers.tick()
    servers.tick(4.9)
    assert connection.in_flight[-1].api_key != ApiKey.LIST_GROUPS and core._peers[-2].queue
    servers.tick(0.2)
    assert connection.in_flight[-1].api_key == ApiKey.LIST_GROUPS and not core._peers[-2].queue
