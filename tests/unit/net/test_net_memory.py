"""Connections where there is no memory: a request goes out as a whole or not at all, and is completed once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from net_fakes import FakeBroker
from test_net_drivers import PEM, server_context

from fastq.config import ClientConfig
from fastq.errors import ConnectionFailed
from fastq.net.client import BlockingClient
from fastq.net.operations import ANY, Broker
from fastq.net.requests import EncodedRequest
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import MetadataRequest

ASK = MetadataRequest(topics=[])


class Told(list[Any]):
    """What became of requests: an error each, or None."""

    def done(self, response: Any, error: Any) -> None:
        self.append(error)


def client_of(broker: FakeBroker, **options: Any) -> BlockingClient:
    client = BlockingClient(ClientConfig(bootstrap_servers=broker.address, reconnect_backoff_ms=1, **options))
    client.call(Broker(1), ASK, 5.0)
    return client


@pytest.mark.parametrize("kind", ["message", "encoded", "without an answer"])
def test_a_request_is_sent_and_told_once_whichever_allocation_fails(broker: FakeBroker, kind: str) -> None:
    client = client_of(broker)
    core, failed = client.core, 0
    accepted, version = broker.accepted, core.api_version(1, ApiKey.METADATA)
    expects = kind != "without an answer"
    if not expects:
        broker.handlers[ApiKey.METADATA] = lambda request, version: None
    for at in range(40):
        outcomes = Told()
        body = ASK.to_bytes(version)
        request: Any = ASK if kind == "message" else EncodedRequest(3, version, [b"", body], bytes, expects)
        before, raised = len(broker.requests), False
        with client.driver.lock:
            try:
                with AllocationsFail(at):
                    core.send(1, request, outcomes.done)
            except MemoryError:
                raised = True
        assert raised or client.driver.wait_until(outcomes.__len__, 5.0)
        assert len(outcomes) == (not raised), at
        failed += raised or outcomes != [None]
        assert all(isinstance(error, ConnectionFailed) and error.retriable for error in outcomes if error), at
        if expects:
            assert client.call(Broker(1), ASK, 5.0).cluster_id == "fake"
            assert len(broker.requests) - before == 1 + (outcomes == [None]), at
            assert broker.accepted == accepted, "an answer was taken for another's"
    assert failed
    client.close()


def test_with_tls_what_was_encrypted_and_not_sent_ends_the_connection() -> None:
    with FakeBroker(tls=server_context()) as broker:
        client = client_of(broker, security_protocol="SSL", ssl_truststore_location=str(PEM))
        core, failed = client.core, 0
        for at in range(40):
            outcomes = Told()
            raised = False
            with client.driver.lock:
                try:
                    with AllocationsFail(at):
                        core.send(1, ASK, outcomes.done)
                except MemoryError:
                    raised = True
            assert raised or client.driver.wait_until(outcomes.__len__, 5.0)
            assert len(outcomes) == (not raised), at
            failed += raised or outcomes != [None]
            assert client.call(Broker(1), ASK, 5.0).cluster_id == "fake"
        assert failed
        client.close()


def test_a_connection_that_ends_is_made_anew_whichever_allocation_fails(broker: FakeBroker) -> None:
    failed = 0
    for at in range(60):
        client, outcomes = client_of(broker), Told()
        core, answer = client.core, broker.handlers[ApiKey.METADATA]
        broker.handlers[ApiKey.METADATA] = lambda request, version: None
        for _ in range(2):
            core.send(1, ASK, outcomes.done)
        connection = core._peers[1].connection
        assert connection is not None
        with client.driver.lock:
            try:
                with AllocationsFail(at):
                    connection.connection_lost(OSError("gone"), core.clock())
            except MemoryError:
                failed += 1
                if connection.error is None:  # whose end the socket tells of once more
                    connection.connection_lost(OSError("gone"), core.clock())
        client.driver.wait_until(partial(outcomes.__getitem__, slice(1, 2)), 5.0)
        broker.handlers[ApiKey.METADATA] = answer
        assert [isinstance(error, ConnectionFailed) for error in outcomes] == [True, True], at
        assert client.call(Broker(1), ASK, 5.0).cluster_id == "fake"
        assert connection.transport is None, "its socket is left open"
        client.close()
    assert failed


def test_a_client_is_closed_by_the_next_call_whichever_allocation_fails(broker: FakeBroker) -> None:
    """What waited was never told, and connections stayed open: the second close had nothing to do."""
    failed, answer = 0, broker.handlers[ApiKey.METADATA]
    for at in range(60):
        broker.handlers[ApiKey.METADATA] = answer
        client, outcomes = client_of(broker), Told()
        core = client.core
        broker.handlers[ApiKey.METADATA] = lambda request, version: None
        for node_id in (1, 1, -1):
            core.send(node_id, ASK, outcomes.done)
        connections = [peer.connection for peer in core._peers.values() if peer.connection is not None]
        try:
            with AllocationsFail(at):  # in here no thread of the broker has its turn
                core.close()
        except MemoryError:
            failed += 1
        client.close()
        assert [type(error).__name__ for error in outcomes] == ["ClientClosed"] * 3, at
        assert {connection.transport for connection in connections} == {None}, at
    assert failed


def test_metadata_that_there_is_no_memory_to_ask_for_is_asked_for_again(broker: FakeBroker) -> None:
    """It counted as asked for, and the client followed no leader any more."""
    client, failed = client_of(broker), 0
    updater = client.core.metadata_updater
    for at in range(60):
        before = updater.successes
        client.core.request_metadata_update("the test asks")
        with client.driver.lock:
            client.driver.wait_until(lambda: not updater._in_flight, 5.0)
            try:
                with AllocationsFail(at):
                    updater._send(1)
            except MemoryError:
                failed += 1
        assert client.driver.wait_until(partial(_more, updater, before), 5.0), at
    assert failed
    client.close()


def _more(updater: Any, before: int) -> bool:
    return bool(updater.successes > before)


def test_a_request_that_the_core_does_not_take_is_not_told(broker: FakeBroker) -> None:
    """Without a connection it waits for one: in its queue, or not at all."""
    failed = 0
    for at in range(60):
        client, outcomes = BlockingClient(ClientConfig(bootstrap_servers=broker.address)), Told()
        raised = False
        with client.driver.lock:
            try:
                with AllocationsFail(at):
                    client.core.send(-1, ASK, outcomes.done)
            except MemoryError:
                raised = True
        assert client.call(ANY, ASK, 20.0).cluster_id == "fake"
        assert len(outcomes) == (not raised), at
        failed += raised
        client.close()
    assert failed
