"""The core against a network that does everything wrong, under a seed: every request completes exactly once, and rightly."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from net_fakes import all_versions

from fastq._native.wire import Reader
from fastq.config import ClientConfig
from fastq.errors import ClientClosed, ConnectionTimeout, FastqError, ThrottlingQuotaExceeded
from fastq.net.addresses import Address, Endpoint
from fastq.net.connection import Connection, State
from fastq.net.core import ClientCore
from fastq.net.operations import Broker, Call, Found, Operation, OperationRun, single
from fastq.net.peers import NODE_UNKNOWN, Close, Connect, Peer, Resolve, separate_id
from fastq.protocol.api import ApiKey
from fastq.protocol.frames import decode_request, decode_request_header, encode_response
from fastq.protocol.messages import ApiVersionsResponse, MetadataRequest, MetadataResponse

NODES = 4


class SimulatedLink:
    """Both directions of one connection, and the broker's end of it."""

    def __init__(self, network: SimulatedNetwork, connection: Connection, node: int) -> None:
        self.network, self.connection, self.node = network, connection, node
        self.received = bytearray()
        self.to_client = bytearray()
        self.open = True

    def write(self, data: bytes) -> None:
        """Bytes of the client arrive at the broker."""
        self.received += data
        while len(self.received) >= 4:
            size = int.from_bytes(self.received[:4], "big")
            if len(self.received) < 4 + size:
                return
            frame = bytes(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            self.answer(frame)

    def answer(self, frame: bytes) -> None:
        network, random = self.network, self.network.random
        reader = Reader(frame)
        header = decode_request_header(reader)
        request = decode_request(header, reader)
        chaos = random.random()
        if chaos < network.mischief / 4:
            return  # never answered: the client's time-out must end it
        if chaos < network.mischief / 2:
            network.after(random.uniform(0, 0.2), self.drop)
            return
        version, response = header.api_version, self.respond(header.api_key, request)
        if header.api_key == ApiKey.API_VERSIONS and random.random() < network.old_brokers and version > 0:
            version, response = 0, ApiVersionsResponse(error_code=35)
        data = encode_response(header.correlation_id, response, version)
        if chaos < network.mischief * 0.6:
            data = bytes(random.randrange(256) for _ in range(random.randrange(1, 64)))
        # Kafka answers in order; the delay is that of the whole stream behind it.
        self.to_client += data
        network.after(random.choice((0.0, 0.001, 0.05, 0.3)), self.deliver)

    def respond(self, api_key: int, request: Any) -> Any:
        if api_key == ApiKey.API_VERSIONS:
            return ApiVersionsResponse(api_keys=all_versions())
        assert api_key == ApiKey.METADATA
        return MetadataResponse(
            throttle_time_ms=self.network.throttle_ms,
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=node, host=self.network.host(node), port=9092)
                for node in range(NODES)
            ],
            controller_id=self.network.random.randrange(NODES),
            topics=[MetadataResponse.MetadataResponseTopic(name=t.name, error_code=3) for t in request.topics or []],
        )

    def deliver(self) -> None:
        """Some of the bytes that wait go to the client, in a piece of any size."""
        if not self.open or not self.to_client or self.connection.state is State.CLOSED:
            return
        buffer = self.connection.get_buffer()
        count = min(len(buffer), len(self.to_client), self.network.random.choice((1, 2, 3, 7, 64, 4096)))
        buffer[:count] = self.to_client[:count]
        del self.to_client[:count]
        self.connection.buffer_updated(count, self.network.now)
        if self.to_client:
            self.network.after(self.network.random.choice((0.0, 0.0, 0.002)), self.deliver)

    def drop(self) -> None:
        """The broker closes the connection, or it breaks."""
        if self.open:
            self.open = False
            error = self.network.random.choice((None, ConnectionResetError("reset"), BrokenPipeError("pipe")))
            self.connection.connection_lost(error, self.network.now)


class SimulatedNetwork:
    """Time, events and brokers; drives the core as a driver would."""

    def __init__(self, seed: int, mischief: float, old_brokers: float = 0.1, **options: Any) -> None:
        self.random = Random(seed)
        self.mischief, self.old_brokers = mischief, old_brokers
        self.now = 1000.0
        self.events: list[tuple[float, int, Callable[[], object]]] = []
        self.ids = itertools.count()
        self.links: dict[Connection, SimulatedLink] = {}
        self.down: set[int] = set()
        servers = [f"{self.host(0)}:9092", "bootstrap.example:9092", "[fd00::2]:9092"]
        self.throttle_ms = 0
        options = {"request_timeout_ms": 2000, "metadata_max_age_ms": 3000, **options}
        config = ClientConfig.from_mapping({"bootstrap_servers": servers, **options})
        self.core = ClientCore(config, random=Random(seed + 1), clock=lambda: self.now)

    @staticmethod
    def host(node: int) -> str:
        return "10.0.0.1" if node == 0 else f"fd00::{node}"

    def after(self, delay: float, call: Callable[[], object]) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.ids), call))

    def run(self, until: float) -> None:
        core = self.core
        for turn in itertools.count():
            assert turn < 400_000, "the core keeps asking for turns"
            self.settle()
            at = min(self.events[0][0] if self.events else until, core.deadline, until)
            self.now = max(self.now, at)
            if self.now >= until:
                return
            while self.events and self.events[0][0] <= self.now:
                heapq.heappop(self.events)[2]()

    def settle(self) -> None:
        core = self.core
        for _ in range(1000):
            if self.now >= core.deadline:
                core.tick(self.now)
            for effect in core.take_effects():
                self.perform(effect)
            writable, core.writable = core.writable, {}
            for connection in writable:
                self.write(connection)
            core.run_callbacks()
            if not (core.effects or core.writable or core.completions) and core.deadline > self.now:
                return
        raise AssertionError("the core does not settle")

    def perform(self, effect: Resolve | Connect | Close) -> None:
        random = self.random
        if isinstance(effect, Close):
            link = self.links.pop(effect.connection, None)
            if link is not None:
                link.open = False
        elif isinstance(effect, Connect):
            self.after(random.choice((0.0, 0.01)), lambda: self.connect(effect))
        elif random.random() < self.mischief:
            if random.random() < 0.5:  # else: the name server never answers
                self.after(0.01, lambda: self.core.resolved(effect, None, OSError("no such name")))
        else:
            endpoints = [Endpoint(2, ("10.9.9.9", 9092)), Endpoint(2, ("10.0.0.1", 9092))]
            self.after(0.01, lambda: self.core.resolved(effect, endpoints, None))

    def connect(self, effect: Connect) -> None:
        connection, host = effect.connection, effect.endpoint.sockaddr[0]
        node = next((node for node in range(NODES) if self.host(node) == host), None)
        if connection.state is State.CLOSED:
            return
        if self.random.random() < self.mischief / 4:
            return  # packets vanish: the connect time-out must end it
        if node is None or node in self.down or self.random.random() < self.mischief / 4:
            connection.connection_lost(ConnectionRefusedError("refused"), self.now)
            return
        self.links[connection] = SimulatedLink(self, connection, node)
        connection.connected(self.now)

    def write(self, connection: Connection) -> None:
        link = self.links.get(connection)
        if link is None or not link.open or connection.state is State.CLOSED:
            return
        data = b"".join(bytes(buffer) for buffer in connection.outgoing)
        count = min(len(data), self.random.choice((1, 5, 100, 1 << 20)))
        connection.data_sent(count)
        if count < len(data):
            self.after(0.001, lambda: self.core.writable.setdefault(connection))
        # The bytes reach the broker in an event of their own.
        self.after(0.0, lambda: link.write(data[:count]))

    def toggle(self, node: int) -> None:
        """A broker vanishes, or comes back."""
        if node in self.down:
            self.down.discard(node)
            return
        self.down.add(node)
        for link in list(self.links.values()):
            if link.node == node:
                link.drop()


class Requests:
    """Requests with a name each, and what became of them."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.outcomes: dict[str, list[tuple[Any, FastqError | None]]] = {}

    def send(self, node: int, timeout_s: float | None = None) -> None:
        name = f"request-{len(self.outcomes)}"
        outcome = self.outcomes.setdefault(name, [])
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True
        )
        self.network.core.send(
            node, request, lambda response, error: outcome.append((response, error)), timeout_s=timeout_s
        )

    def check(self) -> int:
        """Each completed once, with its own response or an error that says something; how many succeeded."""
        good = 0
        for name, outcome in self.outcomes.items():
            assert len(outcome) == 1, (name, outcome)
            response, error = outcome[0]
            if error is None:
                assert [topic.name for topic in response.topics] == [name]
                good += 1
            else:
                assert response is None and isinstance(error, FastqError) and str(error)
        return good


@pytest.mark.parametrize("seed", range(25))
def test_every_request_completes_exactly_once(seed: int) -> None:
    network = SimulatedNetwork(seed, mischief=0.3)
    random, requests = Random(seed + 2), Requests(network)
    for i in range(150):
        at = random.uniform(0, 30)
        node = random.choice((-1, -2, 0, 1, 2, 3, 77))
        network.after(at, partial(requests.send, node, random.choice((None, 0.05, 1.0))))
        if i % 8 == 0:
            network.after(at, partial(network.toggle, random.randrange(NODES)))
    network.run(until=1035.0)
    network.core.close()
    network.settle()
    network.core.run_callbacks()
    assert len(requests.outcomes) == 150
    requests.check()
    assert not network.links or all(not link.open for link in network.links.values())


@pytest.mark.parametrize("seed", range(5))
def test_a_kind_network_loses_nothing(seed: int) -> None:
    network = SimulatedNetwork(seed, mischief=0.0, old_brokers=0.5)
    requests = Requests(network)
    network.core.watch_topics(["t"])
    network.run(until=1002.0)
    assert set(network.core.metadata.nodes) == set(range(NODES))
    for node in range(NODES):
        for _ in range(20):
            requests.send(node)
    network.run(until=1030.0)
    assert requests.check() == 80


def test_the_cluster_is_found_again_after_an_outage() -> None:
    network = SimulatedNetwork(7, mischief=0.0)
    network.run(until=1001.0)
    assert network.core.metadata.nodes
    for node in range(NODES):
        network.toggle(node)
    network.run(until=1020.0)
    before = network.core.metadata_updater.successes
    assert network.core.last_error is not None
    for node in range(NODES):
        network.toggle(node)
    network.run(until=1030.0)
    assert network.core.metadata_updater.successes > before
    assert network.core.last_error is None


def test_back_off_grows_and_keeps_attempts_few() -> None:
    network = SimulatedNetwork(3, mischief=0.0)
    network.down.update(range(NODES))
    attempts: list[float] = []
    connect = network.connect

    def count(effect: Connect) -> None:
        attempts.append(network.now)
        connect(effect)

    network.connect = count  # type: ignore[method-assign]
    network.run(until=1060.0)
    # Three servers, one of two addresses, a second (0.8 to 1.2) apart once the back-off is at its ceiling.
    assert 100 < len(attempts) < 400
    assert len([at for at in attempts if at > 1050]) <= 4 * 14


def test_who_leads_in_place_of_a_broker_that_is_away_is_asked_often_at_first() -> None:
    network = SimulatedNetwork(3, mischief=0.0, metadata_max_age_ms=300_000)
    core = network.core
    network.run(until=1001.0)
    core.can_send(2)
    network.run(until=1002.0)
    assert core.can_send(2)
    network.toggle(2)
    pauses: list[tuple[float, float]] = []  # when it was asked, and how long after the last answer
    updater, answered_at = core.metadata_updater, 1002.0
    for look in range(1000):  # as a producer does that has something for it
        core.can_send(2)
        requests, successes = updater.requests, updater.successes
        network.run(until=1002.0 + 0.02 * look)
        if updater.requests > requests:
            pauses.append((network.now - 1002.0, network.now - answered_at))
        if updater.successes > successes:
            answered_at = network.now
    assert all(pause_s < 0.16 + away_s / 8 for away_s, pause_s in pauses)
    assert 20 < len(pauses) < 60


def test_who_asks_for_metadata_again_and_again_has_no_turn_for_each() -> None:
    """A sender asks in each of its turns for whom nobody leads, and a driver takes a turn when the core is behind: while no broker can be
    asked that was a loop without an end."""
    network = SimulatedNetwork(5, mischief=0.0)
    network.run(until=1001.0)
    for node in range(NODES):
        network.toggle(node)
    core, behind = network.core, 0
    for look in range(500):
        network.run(until=1001.0 + 0.02 * look)
        for _ in range(3):
            core.request_metadata_update("nobody leads")
            behind += core.deadline <= network.now
            network.settle()
    assert behind < 20, "asked for once, and then it is on its way"


def test_closing_completes_what_waits() -> None:
    network = SimulatedNetwork(5, mischief=0.0)
    requests = Requests(network)
    requests.send(-1)
    requests.send(-2)
    network.core.close()
    requests.send(-1)
    network.core.run_callbacks()
    errors = [outcome[0][1] for outcome in requests.outcomes.values()]
    assert len(errors) == 3 and all(isinstance(error, ClientClosed) for error in errors)


def test_timers_run_in_order_and_can_be_cancelled() -> None:
    network, ran = SimulatedNetwork(5, mischief=0.0), []
    core = network.core
    core.call_at(1003.0, lambda now: ran.append(("c", now)))
    core.call_at(1001.0, lambda now: ran.append(("a", now)))
    core.call_at(1002.0, lambda now: ran.append(("b", now))).cancel()
    core.call_at(1002.5, lambda now: 1 / 0)
    network.run(until=1004.0)
    assert [name for name, _ in ran] == ["a", "c"] and ran[1][1] >= 1003.0


def test_an_idle_connection_is_closed_and_made_again_when_needed() -> None:
    network = SimulatedNetwork(9, mischief=0.0, connections_max_idle_ms=2000, metadata_max_age_ms=60_000)
    network.run(until=1001.0)
    network.core.can_send(2)
    network.run(until=1002.0)
    assert network.core.can_send(2) and network.links
    network.run(until=1004.5)
    assert not network.links
    requests = Requests(network)
    requests.send(2)
    network.run(until=1006.0)
    assert requests.check() == 1


def test_a_throttled_broker_is_left_alone_for_that_long() -> None:
    network = SimulatedNetwork(9, mischief=0.0, metadata_max_age_ms=60_000)
    network.run(until=1001.0)
    core = network.core
    core.can_send(2)
    network.run(until=1002.0)
    core.throttle(2, 3.0, network.now)
    assert not core.can_send(2) and core.can_send(2, network.now + 3.0)
    network.run(until=1004.9)
    assert not core.can_send(2)
    network.run(until=1005.1)
    assert core.can_send(2)


def test_a_call_to_a_throttled_broker_waits_for_that_long_and_says_so_where_it_cannot() -> None:
    network = SimulatedNetwork(9, mischief=0.0, metadata_max_age_ms=60_000)
    network.run(until=1001.0)
    ended: list[tuple[float, Any, Any]] = []

    def ask(node_id: int, timeout_s: float) -> None:
        operation = single(Call(Broker(node_id), MetadataRequest(topics=[])))
        OperationRun(network.core, operation, timeout_s, lambda *outcome: ended.append((network.now, *outcome)))

    network.throttle_ms = 5000
    ask(2, 1.0)
    network.run(until=1002.0)
    ((told_at, *_),) = ended
    network.throttle_ms = 0
    for node_id, timeout_s in ((2, 60.0), (2, 1.0), (1, 1.0)):
        ask(node_id, timeout_s)
    network.run(until=1010.0)
    (_, other, no_error), (_, nothing, error), (answered_at, response, failed) = ended[1:]
    assert isinstance(other, MetadataResponse) and no_error is None, "another broker is not throttled"
    assert nothing is None and isinstance(error, ThrottlingQuotaExceeded) and "(node 2)" in str(error)
    assert isinstance(response, MetadataResponse) and failed is None
    assert answered_at >= told_at + 5.0


def test_one_that_does_not_answer_takes_no_answer_of_another_along_however_late_that_is_noticed() -> None:
    network = SimulatedNetwork(9, mischief=0.0, metadata_max_age_ms=60_000)
    network.run(until=1001.0)
    request = MetadataRequest(topics=[])

    def both() -> Operation[list[Any]]:
        answers = yield [Call(Found(node, "one of two"), request) for node in (0, 2)]
        return list(answers)

    ended: list[Any] = []
    network.core.can_send(2)
    network.run(until=1002.0)
    for link in network.links.values():
        if link.node == 2:
            link.answer = lambda _frame: None  # type: ignore[method-assign]
    OperationRun(network.core, both(), 1.0, lambda *outcome: ended.append(outcome))
    network.run(until=1002.9)
    network.now = 1005.0  # the operation's own time, too, is over by the next turn
    network.run(until=network.now + 1.0)
    (((answer, error), failed),) = ended
    assert failed is None and isinstance(answer, MetadataResponse)
    assert isinstance(error, ConnectionTimeout) and "node 2" in str(error)


def test_a_throttled_metadata_answer_delays_the_next_one() -> None:
    network = SimulatedNetwork(9, mischief=0.0, bootstrap_servers="10.0.0.1:9092")
    network.throttle_ms = 4000
    network.run(until=1001.0)
    assert network.core.metadata_updater.successes == 1
    assert not network.core.can_send(-1, network.now)
    network.core.request_metadata_update("a test")
    network.run(until=1002.0)
    assert network.core.metadata_updater.successes == 2, "another broker is not throttled"


def test_a_moved_broker_is_followed() -> None:
    network = SimulatedNetwork(11, mischief=0.0)
    network.run(until=1001.0)
    core = network.core
    core.can_send(1)
    network.run(until=1002.0)
    assert core.can_send(1) and core.broker_label(1).startswith("[fd00::1]")
    moved = MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="fd00::3", port=9092)], controller_id=1
    )
    core.metadata.update(moved)
    core.metadata_changed(network.now)
    assert core.broker_label(1) == f"{Address('fd00::3', 9092)} (node 1)"
    assert not core.can_send(1) and core.in_flight(0) == 0
    requests = Requests(network)
    requests.send(0)
    core.run_callbacks()
    assert "no broker with id 0" in str(requests.outcomes["request-0"][0][1])


def test_a_completion_that_raises_is_told_so_and_stops_nothing() -> None:
    """What waits for it fails with the reason, instead of waiting for its own time-out."""
    network = SimulatedNetwork(9, mischief=0.0)
    told: list[tuple[Any, FastqError | None]] = []

    def mismatch(response: Any, error: FastqError | None) -> None:
        told.append((response, error))
        if error is None:
            raise KeyError("a mismatch")

    requests = Requests(network)
    network.core.send(-1, MetadataRequest(topics=[]), mismatch)
    requests.send(-1)
    network.run(until=network.now + 10)
    assert requests.check() == 1
    (_, error) = told[-1]
    assert len(told) == 2
    assert error is not None and not error.retriable and "a mismatch" in str(error)


def test_an_address_whose_node_nobody_knows_is_named_alone() -> None:
    """A controller that is asked who it is: messages show no number that stands for its place."""
    assert Peer(separate_id(NODE_UNKNOWN + 1), Address("h", 9093)).label == "h:9093"
    assert Peer(separate_id(3), Address("h", 9093)).label == "h:9093 (node 3)"
