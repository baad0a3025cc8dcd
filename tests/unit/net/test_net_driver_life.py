"""Both drivers beside threads, forks, interrupts, cancellation and loops that close, against a small broker."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
import time
import types
from typing import Any

import pytest
from net_fakes import FakeBroker, silent
from typing_extensions import Buffer

from fastq.config import ClientConfig
from fastq.errors import ClientClosed, ForkedClient
from fastq.net.addresses import Endpoint
from fastq.net.blocking import KEEPALIVE, open_socket
from fastq.net.client import AsyncClient, BlockingClient
from fastq.net.operations import ANY, Broker
from fastq.net.requests import EncodedRequest
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import MetadataRequest, SaslAuthenticateResponse, SaslHandshakeResponse

# -- threads, processes, interrupts ------------------------------------------------------------------------------------------


def test_many_threads_share_one_driver(broker: FakeBroker) -> None:
    client = BlockingClient(ClientConfig(bootstrap_servers=broker.address))
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                assert client.call(Broker(1), MetadataRequest(topics=[]), 10.0).cluster_id == "fake"
        except BaseException as error:
            failed.append(error)

    background_runs = threading.Event()

    def background() -> None:
        while not background_runs.is_set():
            with client.driver.lock:
                client.driver.run_once(5.0, background=True)

    threads = [threading.Thread(target=work) for _ in range(6)]
    helper = threading.Thread(target=background, daemon=True)
    helper.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    background_runs.set()
    client.driver.wakeup()
    helper.join(5)
    assert not helper.is_alive() and not failed
    client.close()


def test_close_wakes_every_waiting_thread(broker: FakeBroker) -> None:
    good = broker.handlers[ApiKey.METADATA]
    broker.handlers[ApiKey.METADATA] = lambda request, version: None if request.topics == [] else good(request, version)
    broker.topics = {"logs": 1}
    client = BlockingClient(ClientConfig(bootstrap_servers=broker.address))
    client.core.watch_topics(["logs"])
    assert client.driver.wait_until(lambda: client.core.metadata.topic("logs"), 5.0)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            client.call(Broker(1), MetadataRequest(topics=[]), 20.0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    client.close()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert len(errors) == 4 and all(isinstance(error, ClientClosed) for error in errors)


def test_a_request_without_a_response_is_done_once_written(broker: FakeBroker) -> None:
    client = BlockingClient(ClientConfig(bootstrap_servers=broker.address))
    client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
    core, driver, done = client.core, client.driver, []
    broker.handlers[ApiKey.METADATA] = lambda request, version: None
    version = core.api_version(1, ApiKey.METADATA)
    body = MetadataRequest(topics=[]).to_bytes(version)
    pieces: list[Buffer] = [body[:1], memoryview(bytearray(body[1:]))]
    request = EncodedRequest(ApiKey.METADATA, version, pieces, bytes, expects_response=False)
    with driver.lock:
        core.send(1, request, lambda response, error: done.append((response, error)))
    assert driver.wait_until(lambda: done, 5.0) and done == [(None, None)]
    assert core.in_flight(1) == 0
    client.close()


def test_large_requests_in_many_buffers_are_written_in_full(broker: FakeBroker) -> None:
    client = BlockingClient(ClientConfig(bootstrap_servers=broker.address))
    client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
    names = [f"{i:06}" + "x" * 200 for i in range(40_000)]
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names])
    version = client.core.api_version(1, ApiKey.METADATA)
    body = memoryview(request.to_bytes(version))
    pieces = [body[i : i + 50_001] for i in range(0, len(body), 50_001)]
    received: list[Any] = []
    answered = broker.handlers[ApiKey.METADATA]

    def handler(request: Any, version: int) -> Any:
        received.append(request)
        request.topics = []
        return answered(request, version)

    broker.handlers[ApiKey.METADATA] = handler
    response = client.call(Broker(1), EncodedRequest(ApiKey.METADATA, version, pieces, lambda view: len(view)), 20.0)
    assert response > 10 and len(body) > 8_000_000
    client.close()


def test_a_slow_reader_gives_back_pressure(broker: FakeBroker) -> None:
    client = BlockingClient(ClientConfig(bootstrap_servers=broker.address, send_buffer_bytes=4096))
    client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
    gate = threading.Event()
    broker.handlers[ApiKey.METADATA] = lambda request, version: gate.wait(20) and None
    version, done = client.core.api_version(1, ApiKey.METADATA), []
    for _ in range(12):
        request = EncodedRequest(ApiKey.METADATA, version, [bytes(4 << 20)], bytes, expects_response=False)
        with client.driver.lock:
            if not client.core.can_send(1):
                break
            client.core.send(1, request, lambda response, error: done.append(error))
            client.driver.run_once(0)
    else:
        pytest.fail("48 MiB were taken for a socket that nobody reads")
    gate.set()
    client.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")
def test_a_forked_child_raises_and_leaves_the_parents_sockets_alone(broker: FakeBroker) -> None:
    client = BlockingClient(ClientConfig(bootstrap_servers=broker.address))
    client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
    accepted = broker.accepted
    child = os.fork()
    if child == 0:
        status = 1
        try:
            client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
        except ForkedClient:
            status = 0
        except BaseException:
            status = 2
        client.close()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gc.collect()
    assert client.call(Broker(1), MetadataRequest(topics=[]), 5.0).cluster_id == "fake"
    assert broker.accepted == accepted, "the parent had to reconnect"
    client.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")
def test_a_forked_child_of_an_asyncio_client_raises(broker: FakeBroker) -> None:
    async def main() -> None:
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address))
        await client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
        accepted = broker.accepted
        child = os.fork()
        if child == 0:
            status = 1
            try:
                client.driver.kick()
            except ForkedClient:
                status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222
        assert (await client.call(Broker(1), MetadataRequest(topics=[]), 5.0)).cluster_id == "fake"
        assert broker.accepted == accepted, "the parent had to reconnect"
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("meanwhile", ["the connection has ended", "the client is closed"])
def test_a_transport_that_is_not_wanted_any_more_closes_its_descriptor_once(broker: FakeBroker, meanwhile: str) -> None:
    """A descriptor that is closed twice is somebody else's the second time: a log's, on a broker."""
    uvloop = pytest.importorskip("uvloop")
    taken: list[socket.socket] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address))
        core, create = client.core, loop.create_connection

        async def create_connection(factory: Any, *, sock: socket.socket) -> Any:
            taken.append(sock)
            protocol = factory()
            if meanwhile == "the connection has ended":
                protocol._connection.connection_lost(None, core.clock())
            else:
                client.driver._closed = True
            return await create(lambda: protocol, sock=sock)

        client.driver.loop = types.SimpleNamespace(  # type: ignore[assignment]
            call_soon=loop.call_soon,
            call_later=loop.call_later,
            call_soon_threadsafe=loop.call_soon_threadsafe,
            create_task=loop.create_task,
            sock_connect=loop.sock_connect,
            create_connection=create_connection,
        )
        core.send(ANY, MetadataRequest(topics=[]), lambda response, error: None)
        client.driver.kick()
        deadline = loop.time() + 10
        while loop.time() < deadline and (not taken or client.driver._connects or taken[0].fileno() != -1):  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0)
        client.driver._closed = False
        client.driver.loop = loop
        await client.close()

    uvloop.run(main())
    assert [sock.fileno() for sock in taken[:1]] == [-1], "the socket is left with the number of a closed descriptor"


def test_a_login_that_expires_is_renewed_by_a_new_connection(broker: FakeBroker) -> None:
    broker.handlers[ApiKey.SASL_HANDSHAKE] = lambda request, version: SaslHandshakeResponse(mechanisms=["PLAIN"])
    broker.handlers[ApiKey.SASL_AUTHENTICATE] = lambda request, version: SaslAuthenticateResponse(
        session_lifetime_ms=200
    )
    config = ClientConfig(
        bootstrap_servers=broker.address, security_protocol="SASL_PLAINTEXT", sasl_username="a", sasl_password="b"
    )
    client = BlockingClient(config)
    client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
    accepted = broker.accepted
    assert not client.driver.wait_until(lambda: False, 0.4)
    assert not client.core.in_flight(1)
    assert client.call(Broker(1), MetadataRequest(topics=[]), 5.0).cluster_id == "fake"
    assert broker.accepted > accepted
    client.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent the POSIX way")
def test_an_interrupt_ends_a_blocking_call_at_once() -> None:
    program = """
import signal, sys, threading, time, os
from fastq.config import ClientConfig
from fastq.net.client import BlockingClient
from fastq.net.operations import ANY
from fastq.protocol.messages import MetadataRequest
client = BlockingClient(ClientConfig(bootstrap_servers=sys.argv[1], socket_connection_setup_timeout_ms=60000))
at = []
def interrupt():
    time.sleep(0.3)
    at.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    client.call(ANY, MetadataRequest(topics=None), 30.0)
except KeyboardInterrupt:
    print(time.monotonic() - at[0])
"""
    with FakeBroker() as broker:
        broker.on_connect = silent
        done = subprocess.run(
            [sys.executable, "-c", program, broker.address], capture_output=True, text=True, timeout=30, check=True
        )
    assert float(done.stdout) < 0.5, "the bound is 50 ms; the rest is room for a busy machine"


def test_an_interrupt_in_the_middle_of_a_read_closes_that_connection(broker: FakeBroker) -> None:
    client = BlockingClient(ClientConfig(bootstrap_servers=broker.address))

    def interrupted(view: memoryview) -> None:
        raise KeyboardInterrupt

    client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
    version = client.core.api_version(1, ApiKey.METADATA)
    body = MetadataRequest(topics=[]).to_bytes(version)
    with pytest.raises(KeyboardInterrupt):
        client.call(Broker(1), EncodedRequest(ApiKey.METADATA, version, [body], interrupted), 5.0)
    assert client.call(Broker(1), MetadataRequest(topics=[]), 5.0).cluster_id == "fake"
    client.close()


# -- asyncio -----------------------------------------------------------------------------------------------------------------


def test_cancelling_an_await_leaves_the_client_whole(broker: FakeBroker) -> None:
    async def main() -> None:
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address))
        await client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
        for delay in (0.0, 0.0005, 0.002, 0.01):
            task = asyncio.ensure_future(client.call(Broker(1), MetadataRequest(topics=[]), 5.0))
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        results = await asyncio.gather(*(client.call(Broker(1), MetadataRequest(topics=[]), 5.0) for _ in range(20)))
        assert len(results) == 20
        assert not client.core.on_close
        waiting = asyncio.ensure_future(client.call(Broker(1), MetadataRequest(topics=[]), 5.0))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            await client.call(ANY, MetadataRequest(topics=[]), 5.0)

    asyncio.run(main())


@pytest.mark.parametrize("size_bytes", [20 << 10, 4 << 20], ids=["joined", "one by one"])
def test_asyncio_back_pressure_holds_what_the_transport_does_not_take(broker: FakeBroker, size_bytes: int) -> None:
    """Of requests in several buffers, in any way that they are written."""

    async def main() -> None:
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address, send_buffer_bytes=4096))
        await client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
        gate = threading.Event()
        broker.handlers[ApiKey.METADATA] = lambda request, version: gate.wait(20) and None
        version = client.core.api_version(1, ApiKey.METADATA)
        sent_bytes = 0
        while client.core.can_send(1) and sent_bytes < 48 << 20:
            request = EncodedRequest(ApiKey.METADATA, version, [bytes(size_bytes)], bytes, expects_response=False)
            client.core.send(1, request, lambda response, error: None)
            client.driver.kick()
            await asyncio.sleep(0)
            sent_bytes += size_bytes
        assert sent_bytes <= 12 << 20
        gate.set()
        await client.close()

    asyncio.run(main())


def no_memory(*_: Any) -> None:
    raise MemoryError("none left")


def test_a_turn_that_the_loop_cannot_take_is_wanted_again(broker: FakeBroker) -> None:
    """It counted as scheduled for good: nothing was sent any more before something else led to a turn."""

    async def scenario() -> None:
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address))
        await client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
        driver: Any = client.driver

        loop, driver.loop = driver.loop, types.SimpleNamespace(call_soon=no_memory)
        with pytest.raises(MemoryError):
            driver.kick()
        driver.loop = loop
        driver.kick()
        assert driver._turn_scheduled
        await asyncio.sleep(0)
        assert not driver._turn_scheduled
        await client.close()

    asyncio.run(scenario())


def test_a_time_out_for_which_no_timer_can_be_had_has_one_with_the_next_turn(broker: FakeBroker) -> None:
    async def scenario() -> None:
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address))
        await client.call(Broker(1), MetadataRequest(topics=[]), 5.0)
        driver: Any = client.driver

        loop, driver.loop = driver.loop, types.SimpleNamespace(call_later=no_memory)
        before, driver._timer_at = driver._timer, driver.core.deadline + 1.0
        with pytest.raises(MemoryError):
            driver._turn()
        assert driver._timer is before and not before.cancelled() and driver.is_behind
        driver.loop = loop
        driver._turn()
        assert driver._timer is not before and before.cancelled() and not driver.is_behind
        await client.close()

    asyncio.run(scenario())


def test_a_loop_that_closes_with_the_client_open_is_no_error(broker: FakeBroker) -> None:
    async def main() -> AsyncClient:
        client = AsyncClient(ClientConfig(bootstrap_servers=broker.address))
        await client.call(ANY, MetadataRequest(topics=[]), 5.0)
        return client

    client = asyncio.run(main())
    client.driver.close()


def test_a_wakeup_while_others_are_drained_is_not_the_last_one() -> None:
    """The byte of a wake-up may be read together with those before it; the next wake-up has to send one all the same."""
    client = BlockingClient(ClientConfig.from_mapping({"bootstrap_servers": "127.0.0.1:1"}))
    driver = client.driver

    class WokenWhileReading:
        """The receiving end, with another thread that wakes at the worst moment."""

        def __init__(self, receiver: socket.socket) -> None:
            self.receiver = receiver
            self.woken = False

        def recv(self, size: int) -> bytes:
            if not self.woken:
                self.woken = True
                driver.wakeup()
            return self.receiver.recv(size)

    receiver = driver._wake_receiver
    try:
        driver.wakeup()
        driver._wake_receiver = WokenWhileReading(receiver)  # type: ignore[assignment]
        driver._drain_wakeups()
        driver._wake_receiver = receiver
        driver.wakeup()
        assert receiver.recv(1) == b"\0"
    finally:
        driver._wake_receiver = receiver
        client.close()


def test_who_sleeps_until_a_deadline_is_not_woken_by_that_deadline(broker: FakeBroker) -> None:
    """A thread in the background looks after time-outs; each small request of another woke it, and it took the processor for nothing."""
    client = BlockingClient(ClientConfig(bootstrap_servers=broker.address))
    driver = client.driver
    client.call(ANY, MetadataRequest(topics=[]), 10.0)
    ends = threading.Event()

    def background() -> None:
        while not ends.is_set():
            with driver.lock:
                driver.run_once(3600.0, background=True)

    sleeper = threading.Thread(target=background, daemon=True)
    sleeper.start()
    try:
        while True:  # it comes out of a first sleep for what is left of the call
            with driver.lock:
                if driver._asleep:
                    break
        with driver.lock:
            before = driver._generation
            for _ in range(5):
                driver.run_once(0.0)
            assert driver._generation == before
            client.core.call_at(driver.core.deadline - 0.001, lambda: None)
            driver.run_once(0.0)
            assert driver._generation > before, "what is due before it would come back wakes it"
    finally:
        ends.set()
        driver.wakeup()
        sleeper.join(10)
        client.close()


def test_a_host_that_says_nothing_is_asked_within_a_minute() -> None:
    with open_socket(Endpoint(socket.AF_INET, ("127.0.0.1", 9)), -1, -1) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            asked_s = [sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name, _ in KEEPALIVE]
            assert asked_s[0] + asked_s[1] * asked_s[2] == 60
