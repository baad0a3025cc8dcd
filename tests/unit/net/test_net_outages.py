"""What the log says of brokers that cannot be reached: within a second, when the cause changes, now and then, and when they are back."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from net_fakes import FakeBroker, silent
from test_net_drivers import babbling, call_blocking, server_context
from test_net_simulation import NODES, SimulatedNetwork

from fastq import Consumer
from fastq.config import ClientConfig
from fastq.errors import (
    ConnectionClosed,
    ConnectionRefused,
    ConnectionTimeout,
    FastqError,
    NameNotResolved,
    ProtocolError,
)
from fastq.net import addresses
from fastq.net import outages as outages_module
from fastq.net.addresses import Address
from fastq.net.client import BlockingClient
from fastq.net.operations import ANY
from fastq.net.outages import SHORT_LIFE_S, SLOW_S, UNTRIED_S, Outages, says_once
from fastq.net.troubles import CHANGE_S
from fastq.protocol.messages import MetadataRequest

HERE = Address("host", 9092)
REFUSED = ConnectionRefused(broker="host:9092", phase="connect", cause="Connection refused")
CLOSED = ConnectionClosed(broker="host:9092", phase="ready", cause="end of stream")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was said since the last call."""
    caplog.set_level(logging.WARNING, "fastq.net")

    def take() -> list[str]:
        found = list(caplog.messages)
        caplog.clear()
        return found

    return take


Said = Callable[[], list[str]]


def test_clients_that_belong_together_say_an_outage_once(said: Said) -> None:
    with says_once():
        clients = [Outages() for _ in range(12)]
        for turn in range(200):
            for client in clients:
                client.failed(HERE, REFUSED, 100.0 + turn / 3)
        lines = said()
        assert len(lines) == 2 and "for 30 s now" in lines[1]
        late = Outages()  # as a lane that begins anew
        late.failed(HERE, REFUSED, 167.0)
        assert said() == []
        late.failed(Address("other", 9092), REFUSED, 167.0)
        assert len(said()) == 1, "another broker is another outage"
        for client in (*clients, late):
            client.ready(HERE, "host:9092 (node 1)", 168.0)
        assert said() == ["connected to host:9092 (node 1), after 68.0 s"]
        with says_once():
            clients[3].failed(HERE, REFUSED, 170.0)
        clients[4].failed(HERE, REFUSED, 170.1)
        assert len(said()) == 1
    clients[5].failed(HERE, REFUSED, 170.2)
    clients[6].failed(HERE, REFUSED, 170.3)
    assert len(said()) == 2, "each for itself again"


def test_an_outage_that_a_client_has_said_which_is_no_more_is_taken_back_by_another(said: Said) -> None:
    """It counted on, so that the next one was not said for up to a minute."""
    with says_once():
        Outages().failed(HERE, REFUSED, 100.0)  # of a lane that has ended since
        assert len(said()) == 1
        late = Outages()
        late.ready(HERE, "host:9092", 110.0)
        assert said() == [] and late.knows(HERE), "whether it lasts is seen in SHORT_LIFE_S"
        late.lasting(HERE, "host:9092", 110.0 + SHORT_LIFE_S)
        assert said() == [f"connected to host:9092, after {10 + SHORT_LIFE_S:.1f} s"] and not late.knows(HERE)
        Outages().failed(HERE, REFUSED, 117.0)
        assert len(said()) == 1


def test_a_line_amid_a_line_of_the_same_thread_is_said(said: Said) -> None:
    """A handler of a signal may close another client, or use one, in the middle of a line: it waited for itself."""
    assert outages_module._lock.acquire(blocking=False)
    try:
        assert outages_module._lock.acquire(blocking=False)
        outages_module._lock.release()
        Outages().failed(HERE, REFUSED, 100.0)
    finally:
        outages_module._lock.release()
    assert len(said()) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")
def test_a_child_of_a_fork_amid_a_line_says_its_own() -> None:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with outages_module._lock:
            held.set()
            over.wait(60)

    other = threading.Thread(target=hold, daemon=True)
    other.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if outages_module._lock.acquire(blocking=False) else 1)
    over.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other.join()


def test_a_failure_is_said_at_once_and_then_now_and_then(said: Said) -> None:
    outages = Outages()
    outages.failed(HERE, REFUSED, 100.0)
    (line,) = said()
    assert "host:9092" in line and "phase connect" in line and "Connection refused" in line
    for attempt in range(1, 300):
        outages.failed(HERE, REFUSED, 100.0 + attempt / 3)
    again = said()
    assert len(again) == 2  # after REPEAT_S, and twice as long after that
    assert "for 30 s now, 91 attempts" in again[0]
    outages.ready(HERE, "host:9092", 200.0)
    assert said() == ["connected to host:9092, after 100.0 s"]
    outages.ready(HERE, "host:9092", 201.0)
    assert said() == []


def test_an_address_that_was_not_needed_for_long_has_another_outage(said: Said) -> None:
    """It counted from the one before, though the broker had been there meanwhile."""
    outages = Outages()
    outages.failed(HERE, REFUSED, 100.0)
    later = 101.0 + UNTRIED_S
    outages.failed(HERE, REFUSED, later)
    before, after = said()
    assert before == after and "for" not in after.rpartition(":")[2]
    outages.slow(HERE, ConnectionTimeout("slow"), 2 * later)
    outages.ready(HERE, "host:9092", 2 * later + 1)
    assert said()[-1] == f"connected to host:9092, after {1 + SLOW_S:.1f} s"


def test_among_nodes_what_passes_soon_is_not_said(said: Said) -> None:
    outages = Outages(5.0)
    for attempt in range(40):
        outages.failed(HERE, REFUSED, 100.0 + attempt / 10)
    outages.ready(HERE, "host:9092", 104.5)
    assert said() == []
    for attempt in range(60):
        outages.failed(HERE, REFUSED, 200.0 + attempt / 10)
    (line,) = said()
    assert "Connection refused" in line
    outages.ready(HERE, "host:9092", 206.0)
    assert said() == ["connected to host:9092, after 6.0 s"]


def test_another_cause_is_said_but_two_in_turn_do_not_flood(said: Said) -> None:
    outages = Outages()
    outages.failed(HERE, REFUSED, 0.0)
    outages.failed(HERE, NameNotResolved(broker="host:9092", phase="resolve", cause="unknown"), CHANGE_S)
    assert ["refused" in line for line in said()] == [True, False]
    for turn in range(1, 1000):
        outages.failed(HERE, CLOSED if turn % 2 else REFUSED, 2 + turn / 100)
    assert len(said()) <= 10 / CHANGE_S + 1


def test_a_broker_that_restarts_is_nothing_to_talk_about(said: Said) -> None:
    outages = Outages()
    for time_s in (0.0, 1.0):
        outages.closed(HERE, CLOSED, 600.0, time_s)
        outages.ready(HERE, "host:9092", time_s + 0.5)
    assert said() == []
    assert not outages.knows(HERE)


def test_connections_that_are_closed_again_and_again(said: Said) -> None:
    outages, now = Outages(), 0.0
    for _ in range(300):
        outages.ready(HERE, "host:9092", now)
        outages.closed(HERE, CLOSED, 0.1, now + 0.1)
        now += 0.3
    found = said()
    assert "3 times in a row" in found[0]
    assert len(found) == 2  # the next one is due after another 2 * REPEAT_S
    outages.ready(HERE, "host:9092", now)
    assert said() == []
    outages.lasting(HERE, "host:9092", now + SHORT_LIFE_S)
    (line,) = said()
    assert line.startswith("connected to host:9092, after 9")


def test_connections_that_die_together_are_one_that_was_closed(said: Said) -> None:
    """A young client's three, of a broker that restarts: "3 times in a row" was said of them, and what followed was longer for it."""
    outages = Outages()
    for begun in (100.0, 100.1, 100.2):
        outages.ready(HERE, "host:9092", begun)
    for place, begun in enumerate((100.0, 100.1, 100.2)):
        closed_at = 102.0 + place / 1000
        outages.closed(HERE, CLOSED, closed_at - begun, closed_at)
    assert said() == []
    outages.failed(HERE, REFUSED, 102.5)
    assert len(said()) == 1
    outages.ready(HERE, "host:9092", 104.0)
    assert said() == ["connected to host:9092, after 2.0 s"]
    for begun in (105.0, 106.0):  # but those that come behind it count, two at a time or not
        for lived_s in (0.3, 0.4):
            outages.closed(HERE, CLOSED, lived_s, begun + lived_s)
    (line,) = said()
    assert "3 times in a row" in line


def test_answers_that_break_every_connection_are_not_taken_back_in_between(said: Said) -> None:
    outages, now = Outages(), 0.0
    rubbish = ProtocolError("a malformed response", broker="host:9092", api="Fetch")
    for _ in range(300):
        outages.ready(HERE, "host:9092", now)
        outages.failed(HERE, rubbish, now + 0.1, final=True, was_ready=True)
        now += 0.3
    found = said()
    assert len(found) == 2  # the next one is due after another 2 * REPEAT_S
    assert all("a malformed response" in line for line in found)
    outages.ready(HERE, "host:9092", now)
    assert said() == []
    outages.lasting(HERE, "host:9092", now + SHORT_LIFE_S)
    assert said()[0].startswith("connected to host:9092")


# -- in the core, on a clock of its own


def test_every_broker_of_an_outage_is_said_once_and_taken_back(said: Said) -> None:
    network = SimulatedNetwork(7, mischief=0.0)
    network.run(until=1001.0)
    said()
    for node in range(NODES):
        network.toggle(node)
    network.run(until=1020.0)
    gone = said()
    assert 1 <= len(gone) <= NODES + 3
    for node in range(NODES):
        network.toggle(node)
    network.run(until=1040.0)
    assert any(line.startswith("connected to ") for line in said())
    assert network.core.unreachable() is None


def test_packets_that_vanish_are_said_within_a_second(said: Said) -> None:
    network = SimulatedNetwork(7, mischief=0.0)
    network.connect = lambda effect: None  # type: ignore[method-assign]
    network.run(until=1000.0 + SLOW_S + 0.2)
    (line,) = said()
    assert re.search(r"phase (connect|resolve)\]: no answer within 0\.8\d* s", line)
    error = network.core.unreachable()
    assert error is not None and "no answer within 1 s" in str(error)


def test_an_address_that_only_the_cluster_names_is_told_as_such(said: Said) -> None:
    network = SimulatedNetwork(7, mischief=0.0)
    network.down.add(3)
    network.run(until=1001.0)
    said()
    network.core.can_send(3)
    network.run(until=1002.0)
    (line,) = said()
    assert "[fd00::3]:9092 (node 3)" in line and "advertised.listeners" in line


def test_closing_says_nothing(said: Said) -> None:
    network = SimulatedNetwork(7, mischief=0.0)
    network.run(until=1001.0)
    said()
    network.core.close()
    assert said() == []


# -- with sockets: a consumer that only waits


@pytest.fixture
def waiting(said: Said) -> Callable[..., tuple[str, FastqError | None]]:
    """`waiting(servers, **more)`: the first line of a consumer that polls, and the error of the poll, if it raised one."""

    def wait(servers: str, **more: Any) -> tuple[str, FastqError | None]:
        with Consumer("logs", bootstrap_servers=servers, **more) as consumer:
            for _ in range(40):
                error = None
                try:
                    assert consumer.poll(timeout=0.5) == []
                except FastqError as raised:
                    error = raised
                found = said()
                if found:
                    return found[0], error
        raise AssertionError("20 s without a word")

    return wait


Waiting = Callable[..., "tuple[str, FastqError | None]"]


def test_a_refused_port(waiting: Waiting) -> None:
    line, error = waiting("127.0.0.1:1")
    assert error is None
    assert re.search(r"refused.*127\.0\.0\.1:1\b.*phase connect", line)


def test_a_black_hole(waiting: Waiting, broker: FakeBroker) -> None:
    broker.on_connect = silent
    line, error = waiting(broker.address)
    assert error is None
    assert f"broker {broker.address}, phase api versions" in line
    assert "took the connection and says nothing" in line


def test_a_tls_port(waiting: Waiting) -> None:
    with FakeBroker(tls=server_context()) as broker:
        line, _ = waiting(broker.address)
    assert broker.address in line
    assert "phase api versions" in line
    assert "TLS" in line


def test_a_tls_client_at_a_silent_port(waiting: Waiting, broker: FakeBroker) -> None:
    broker.on_connect = silent
    line, error = waiting(broker.address, security_protocol="SSL")
    assert error is None
    assert "phase tls" in line


def test_a_web_server(waiting: Waiting, broker: FakeBroker) -> None:
    broker.on_connect = babbling(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    line, error = waiting(broker.address)
    assert "an HTTP server answered" in line
    assert error is not None and "an HTTP server answered" in str(error)


def test_a_wrong_name(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(address: object) -> list[addresses.Endpoint]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(addresses, "lookup", fail)
    line, _ = waiting("no.such.host.invalid:9092")
    assert "no.such.host.invalid:9092" in line
    assert "Name or service not known" in line


def test_a_name_that_is_away_while_its_broker_restarts(
    said: Said, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a container: who waited was told at once that the name is unknown, and each time that it tried again."""
    gone, told = threading.Event(), threading.Event()

    def lookup(address: Address) -> list[addresses.Endpoint]:
        if gone.is_set():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [addresses.Endpoint(socket.AF_INET, ("127.0.0.1", broker.port))]

    def back(line: str) -> bool:
        if "Name or service not known" in line:
            assert line.endswith("; trying on")
            gone.clear()
            told.set()
        return True

    monkeypatch.setattr(addresses, "lookup", lookup)
    broker.host = "kafka.example"
    listener = logging.Handler()
    listener.emit = lambda record: back(record.getMessage())  # type: ignore[method-assign,assignment]
    logging.getLogger("fastq.net").addHandler(listener)
    client = BlockingClient(ClientConfig(bootstrap_servers=f"kafka.example:{broker.port}"))
    try:
        client.call(ANY, MetadataRequest(topics=None))
        gone.set()
        broker.drop_connections()
        assert client.call(ANY, MetadataRequest(topics=None), 60.0).cluster_id == "fake"
        assert told.is_set()
    finally:
        client.close()
        logging.getLogger("fastq.net").removeHandler(listener)


def test_a_name_server_that_hangs(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(addresses, "lookup", lambda address: release.wait(30) and [])
    try:
        line, _ = waiting("slow.example:9092")
    finally:
        release.set()
    assert "phase resolve" in line


def test_half_of_the_bootstrap_servers_dead(said: Said, broker: FakeBroker) -> None:
    """The dead half is said, at most once, and nothing is raised."""
    assert call_blocking({"bootstrap.servers": f"127.0.0.1:1,{broker.address},127.0.0.1:2"}).cluster_id == "fake"
    assert all("refused" in line for line in said())
