"""A request that is sent by `exchange`: the same answers and the same failures as by the driver's turns, wherever the bytes are cut."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from net_fakes import FakeBroker

from fastq._native.framing import CHUNK_BYTES, FrameReceiver
from fastq.config import ClientConfig
from fastq.errors import (
    ClientClosed,
    ConnectionClosed,
    ConnectionTimeout,
    FastqError,
    ForkedClient,
    ProtocolError,
    UnsupportedVersion,
)
from fastq.net import blocking
from fastq.net.client import BlockingClient
from fastq.net.operations import Broker
from fastq.net.requests import EncodedRequest
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import MetadataRequest

WINDOWS = os.name == "nt"


class Exchanges:
    """A client with one connection, and what its exchanges came to."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.client = BlockingClient(ClientConfig(bootstrap_servers=broker.address))
        self.client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
        self.core, self.driver = self.client.core, self.client.driver
        self.version = self.core.api_version(1, ApiKey.METADATA)
        self.done: list[tuple[Any, FastqError | None]] = []

    def request(self, decode: Callable[[memoryview], Any] = bytes, padding: int = 0, **options: Any) -> EncodedRequest:
        body = MetadataRequest(topics=[]).to_bytes(self.version)
        # What is behind a request's body is let pass by brokers, and by the one of these tests.
        return EncodedRequest(ApiKey.METADATA, self.version, [body + bytes(padding)], decode, **options)

    def exchange(self, request: EncodedRequest | None = None, timeout_s: float | None = None) -> None:
        with self.driver.lock:
            asked = request or self.request()
            self.driver.exchange(1, asked, lambda *answer: self.done.append(answer), timeout_s=timeout_s)

    def settle(self) -> tuple[Any, FastqError | None]:
        """What the one exchange came to, by the driver's turns where it takes them."""
        assert self.driver.wait_until(lambda: self.done, 5.0)
        assert len(self.done) == 1
        return self.done.pop()

    def again(self) -> None:
        """The next exchange works, with whatever connection there is."""
        end = time.monotonic() + 10
        while not self.core.can_send(1):  # nobody announces the end of a back-off
            assert time.monotonic() < end
            with self.driver.lock:
                self.driver.run_once(0.01)
        self.exchange()
        answer, error = self.settle()
        assert error is None and len(answer) > 10


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchanges]:
    """Answers that come at all are waited for in `exchange`, however busy the machine is."""
    monkeypatch.setattr(blocking, "BRIEF_S", 4.0)
    with FakeBroker() as broker:
        broker.topics = {"logs": 1}
        found = Exchanges(broker)
        yield found
        found.client.close()


@pytest.mark.skipif(WINDOWS, reason="sockets are not file descriptors there")
def test_an_answer_comes_before_exchange_returns(exchanges: Exchanges) -> None:
    for number in range(50):
        exchanges.exchange()
        assert len(exchanges.done) == number + 1
    assert all(error is None and answer == exchanges.done[0][0] for answer, error in exchanges.done)
    connection = exchanges.core.idle_connection(1)
    assert connection is not None and connection.is_idle


def test_an_answer_that_takes_longer_comes_in_a_later_turn(
    exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "BRIEF_S", 0.001)
    good, gate = exchanges.broker.handlers[ApiKey.METADATA], threading.Event()
    exchanges.broker.handlers[ApiKey.METADATA] = lambda request, version: gate.wait(5) and good(request, version)
    exchanges.exchange()
    assert exchanges.done == [] and exchanges.core.in_flight(1) >= 1
    gate.set()
    answer, error = exchanges.settle()
    assert error is None and len(answer) > 10
    # What came late is not waited for the next time: the answer is taken in by the driver's turns, which are as good.
    exchanges.again()


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 8, 9, 20])
def test_an_answer_in_pieces(exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    monkeypatch.setattr(blocking, "BRIEF_S", 0.05)

    def write(sock: socket.socket, data: bytes) -> None:
        sock.sendall(data[:cut])
        time.sleep(0.15)
        sock.sendall(data[cut:])

    exchanges.broker.write = write
    exchanges.exchange()
    answer, error = exchanges.settle()
    assert error is None and len(answer) > 10
    exchanges.broker.write = lambda sock, data: sock.sendall(data)
    exchanges.again()


def test_an_answer_that_is_larger_than_a_chunk(exchanges: Exchanges) -> None:
    exchanges.broker.topics = {f"{number:016}": 1 for number in range(2500)}
    body = MetadataRequest(topics=None).to_bytes(exchanges.version)
    exchanges.exchange(EncodedRequest(ApiKey.METADATA, exchanges.version, [body], bytes))
    answer, error = exchanges.settle()
    assert error is None and len(answer) > 2 * CHUNK_BYTES
    exchanges.again()


def test_a_connection_that_ends(exchanges: Exchanges) -> None:
    def hang_up(sock: socket.socket, data: bytes) -> None:
        sock.sendall(data[:5])
        sock.shutdown(socket.SHUT_RDWR)

    exchanges.broker.write, good = hang_up, exchanges.broker.write
    exchanges.exchange()
    _, error = exchanges.settle()
    assert isinstance(error, ConnectionClosed)
    exchanges.broker.write = good
    exchanges.again()


@pytest.mark.parametrize("place", [4, 0], ids=["correlation id", "size"])
def test_an_answer_to_something_else(exchanges: Exchanges, place: int) -> None:
    def other(sock: socket.socket, data: bytes) -> None:
        sock.sendall(data[:place] + b"\x7f" + data[place + 1 :])

    exchanges.broker.write, good = other, exchanges.broker.write
    exchanges.exchange()
    _, error = exchanges.settle()
    assert isinstance(error, ProtocolError)
    exchanges.broker.write = good
    exchanges.again()


def test_two_answers_to_one_request(exchanges: Exchanges) -> None:
    exchanges.broker.write, good = lambda sock, data: sock.sendall(data + data), exchanges.broker.write
    exchanges.exchange()
    answer, error = exchanges.settle()
    assert error is None and len(answer) > 10
    exchanges.broker.write = good
    exchanges.again()


def test_a_request_that_is_not_small_is_sent_as_any_other(exchanges: Exchanges) -> None:
    exchanges.exchange(exchanges.request(padding=5_000_000))
    _, error = exchanges.settle()
    assert error is None
    exchanges.again()


def test_a_request_without_an_answer(exchanges: Exchanges) -> None:
    exchanges.broker.handlers[ApiKey.METADATA], good = (
        lambda request, version: None,
        exchanges.broker.handlers[ApiKey.METADATA],
    )
    started = time.monotonic()
    exchanges.exchange(exchanges.request(expects_response=False))
    assert exchanges.settle() == (None, None) and time.monotonic() - started < 3.9
    exchanges.broker.handlers[ApiKey.METADATA] = good


def test_behind_another_request_and_without_a_connection(exchanges: Exchanges) -> None:
    order: list[str] = []
    with exchanges.driver.lock:
        exchanges.core.send(1, exchanges.request(), lambda *answer: order.append("first"))
        exchanges.driver.exchange(1, exchanges.request(), lambda *answer: order.append("second"))
    assert exchanges.driver.wait_until(lambda: len(order) == 2, 5.0) and order == ["first", "second"]
    exchanges.broker.drop_connections()
    assert exchanges.driver.wait_until(lambda: not exchanges.core.broker_versions(1), 5.0)
    exchanges.exchange()
    exchanges.settle()
    exchanges.again()


def test_a_version_that_the_broker_does_not_have(exchanges: Exchanges) -> None:
    exchanges.exchange(EncodedRequest(ApiKey.METADATA, 99, [b""], bytes))
    _, error = exchanges.settle()
    assert isinstance(error, UnsupportedVersion)
    exchanges.again()


def test_a_time_out(exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "BRIEF_S", 0.001)
    good = exchanges.broker.handlers[ApiKey.METADATA]
    exchanges.broker.handlers[ApiKey.METADATA] = lambda request, version: None
    exchanges.exchange(timeout_s=0.1)
    _, error = exchanges.settle()
    assert isinstance(error, ConnectionTimeout)
    exchanges.broker.handlers[ApiKey.METADATA] = good
    exchanges.again()


def test_an_interrupt_closes_the_connection(exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(view: memoryview) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exchanges.exchange(exchanges.request(interrupted))
        exchanges.settle()
    _, error = exchanges.settle()
    assert isinstance(error, FastqError) and "KeyboardInterrupt" in str(error)
    exchanges.again()


def test_a_closed_client_and_a_child_of_a_fork(exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(exchanges.driver, "_forked", True)
        with pytest.raises(ForkedClient):
            exchanges.exchange()
    exchanges.client.close()
    with pytest.raises(ClientClosed):
        exchanges.exchange()


@pytest.mark.skipif(WINDOWS, reason="sockets are not file descriptors there")
def test_a_socket_that_takes_only_a_part() -> None:
    near, far = socket.socketpair()
    try:
        near.setblocking(False)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        receiver, request = FrameReceiver(1 << 20), os.urandom(8 << 20)
        sent, received, code = receiver.exchange(near.fileno(), request, 1.0)
        assert 0 < sent < len(request) and (received, code) == (0, 0)
        far.close()
        _, received, code = receiver.exchange(near.fileno(), b"more", 1.0)
        assert received == 0 and code > 0
    finally:
        near.close()
        far.close()


def test_an_exchange_in_the_middle_of_a_frame_is_a_mistake() -> None:
    receiver = FrameReceiver(1 << 20)
    receiver.get_buffer()[:5] = b"\0\0\0\x09x"
    receiver.buffer_updated(5)
    with pytest.raises(ValueError, match="on its way"):
        receiver.exchange(-1, b"request", 0.0)


def test_windows_has_words_for_what_a_socket_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its C library calls all of it "Unknown error"."""
    monkeypatch.setattr(blocking.sys, "platform", "win32")
    monkeypatch.setattr(
        blocking.socket, "errorTab", {errno.ECONNREFUSED: "Connection refused by Windows."}, raising=False
    )
    error = blocking._os_error(errno.ECONNREFUSED)
    assert isinstance(error, ConnectionRefusedError) and error.strerror == "Connection refused by Windows"
    assert blocking._os_error(errno.EPERM).strerror == os.strerror(errno.EPERM)


@pytest.mark.skipif(WINDOWS, reason="sockets are not file descriptors there")
def test_a_connection_is_one_to_exchange_on_again_once_a_quota_is_over(
    exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer that came with a quota made all commits slower, for as long as the client lived."""
    exchanges.exchange()
    core = exchanges.core
    now = core.clock()
    core.throttle(1, 3.0, now)
    for passed_s, is_idle in ((2.9, False), (3.1, True)):
        with monkeypatch.context() as patch:
            patch.setattr(core, "clock", lambda later=now + passed_s: later)
            assert (core.idle_connection(1) is not None) == is_idle
