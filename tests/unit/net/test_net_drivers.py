"""Both drivers over real sockets, against a small broker: what works, and each distinct way to fail."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from net_fakes import FakeBroker, silent
from scram_server import SlowServer

from fastq.config import ClientConfig
from fastq.errors import (
    BrokerNotAvailable,
    ClientClosed,
    ConfigError,
    ConnectionClosed,
    ConnectionRefused,
    ConnectionTimeout,
    FastqError,
    NameNotResolved,
    NotAKafkaBroker,
    ProtocolError,
    SaslAuthenticationFailed,
    TlsExpected,
    UnknownTopicOrPartition,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
)
from fastq.net import addresses
from fastq.net.client import AsyncClient, BlockingClient
from fastq.net.operations import ANY, CONTROLLER, Broker, Leader
from fastq.protocol.api import ApiKey, api_name
from fastq.protocol.messages import (
    ApiVersionsResponse,
    MetadataRequest,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)

PEM = Path(__file__).with_name("loopback.pem")
Caller = Callable[..., Any]


def call_blocking(config: dict[str, Any], route: Any = ANY, request: Any = None, timeout_s: float = 5.0) -> Any:
    client = BlockingClient(ClientConfig.from_mapping(config))
    try:
        return client.call(route, request or MetadataRequest(topics=None), timeout_s)
    finally:
        client.close()


def call_async(config: dict[str, Any], route: Any = ANY, request: Any = None, timeout_s: float = 5.0) -> Any:
    async def main() -> Any:
        client = AsyncClient(ClientConfig.from_mapping(config))
        try:
            return await client.call(route, request or MetadataRequest(topics=None), timeout_s)
        finally:
            await client.close()

    return asyncio.run(main())


def call_uvloop(*arguments: Any, **options: Any) -> Any:
    uvloop = pytest.importorskip("uvloop", reason="there is no uvloop on this platform")
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        return call_async(*arguments, **options)
    finally:
        asyncio.set_event_loop_policy(None)


@pytest.fixture(params=[call_blocking, call_async, call_uvloop], ids=["blocking", "asyncio", "uvloop"])
def call(request: pytest.FixtureRequest) -> Caller:
    return request.param  # type: ignore[no-any-return]


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    return context


# -- what works --------------------------------------------------------------------------------------------------------------


def test_call(call: Caller, broker: FakeBroker) -> None:
    response = call({"bootstrap.servers": broker.address})
    assert [topic.name for topic in response.topics] == ["logs"]


def test_routes(call: Caller, broker: FakeBroker) -> None:
    for route in (CONTROLLER, Broker(1), Leader("logs", 2)):
        assert call({"bootstrap.servers": broker.address}, route).cluster_id == "fake"


def test_ipv6_and_a_dead_bootstrap_server(call: Caller) -> None:
    with FakeBroker("::1") as broker:
        assert call({"bootstrap.servers": f"127.0.0.1:1,{broker.address}"}).cluster_id == "fake"


def test_a_name_with_several_addresses(call: Caller, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = addresses.Endpoint(socket.AF_INET, ("127.0.0.1", 1))
    live = addresses.Endpoint(socket.AF_INET, (broker.host, broker.port))
    monkeypatch.setattr(addresses, "lookup", lambda address: [closed, live])
    assert (
        call({"bootstrap.servers": f"several.example:{broker.port}", "reconnect.backoff.ms": 60_000}).cluster_id
        == "fake"
    )


def test_tls(call: Caller) -> None:
    with FakeBroker(tls=server_context()) as broker:
        config = {"bootstrap.servers": broker.address, "security.protocol": "SSL", "ssl.truststore.location": str(PEM)}
        assert call(config).cluster_id == "fake"
        with pytest.raises(TlsExpected, match="certificate is not trusted"):
            call({"bootstrap.servers": broker.address, "security.protocol": "SSL"})


def test_who_names_a_truststore_trusts_nobody_else(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificates of the system were trusted beside it: any public authority could speak for a private broker."""
    monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
    other = PEM.parents[1] / "broker/localhost.pem"
    with FakeBroker(tls=server_context()) as broker:
        config = {"bootstrap.servers": broker.address, "security.protocol": "SSL"}
        assert call(config).cluster_id == "fake"
        for named in (
            {"ssl.truststore.location": str(other)},
            {"ssl.truststore.certificates": other.read_text()},
        ):
            with pytest.raises(TlsExpected, match="certificate is not trusted"):
                call(config | named)


def test_a_large_response_over_tls_and_plain(call: Caller) -> None:
    for tls in (None, server_context()):
        with FakeBroker(tls=tls) as broker:
            broker.topics = {f"topic-{i:06}": 20 for i in range(1500)}
            config = {"bootstrap.servers": broker.address, "ssl.truststore.location": str(PEM)}
            config["security.protocol"] = "PLAINTEXT" if tls is None else "SSL"
            response = call(config, timeout_s=30.0)
            assert len(response.topics) == 1500 and len(response.topics[-1].partitions) == 20


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl(call: Caller, broker: FakeBroker, mechanism: str) -> None:
    servers: list[SlowServer] = []
    logins: list[int] = []

    def handshake(request: Any, version: int) -> SaslHandshakeResponse:
        logins.append(version)
        return SaslHandshakeResponse(mechanisms=[mechanism])

    broker.handlers[ApiKey.SASL_HANDSHAKE] = handshake

    def authenticate(request: Any, version: int) -> SaslAuthenticateResponse:
        message = request.auth_bytes
        if mechanism == "PLAIN":
            good = message == b"\0ann\0secret"
            return SaslAuthenticateResponse(
                error_code=0 if good else 58, error_message=None if good else "no such login"
            )
        if message.startswith(b"n,,"):
            servers.append(SlowServer("sha256" if "256" in mechanism else "sha512", "secret"))
            return SaslAuthenticateResponse(auth_bytes=servers[-1].first(message))
        answer = servers[-1].final(message)
        if answer.startswith(b"e="):
            return SaslAuthenticateResponse(error_code=58, error_message="no such login")
        return SaslAuthenticateResponse(auth_bytes=answer)

    broker.handlers[ApiKey.SASL_AUTHENTICATE] = authenticate
    config = {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "ann",
        "sasl.password": "secret",
    }
    assert call(config).cluster_id == "fake"
    logins.clear()
    with pytest.raises(SaslAuthenticationFailed, match="no such login") as caught:
        call({**config, "sasl.password": "wrong-guess"})
    assert len(logins) == 1, "a failed login is not tried again"
    assert caught.value.broker == broker.address and caught.value.hint and "wrong-guess" not in str(caught.value)


def test_sasl_mechanism_not_offered(call: Caller, broker: FakeBroker) -> None:
    broker.handlers[ApiKey.SASL_HANDSHAKE] = lambda request, version: SaslHandshakeResponse(
        error_code=33, mechanisms=["GSSAPI"]
    )
    config = {"bootstrap.servers": broker.address, "security.protocol": "SASL_PLAINTEXT"}
    with pytest.raises(UnsupportedSaslMechanism, match="It offers GSSAPI"):
        call({**config, "sasl.username": "a", "sasl.password": "b"})


def test_a_login_at_a_listener_that_takes_none(call: Caller, broker: FakeBroker) -> None:
    broker.versions = [ApiVersionsResponse.ApiVersion(api_key=key, max_version=3) for key in (3, 18)]
    config = {"bootstrap.servers": broker.address, "security.protocol": "SASL_PLAINTEXT"}
    with pytest.raises(UnsupportedVersion, match="no logins: try security_protocol=PLAINTEXT") as caught:
        call({**config, "sasl.username": "a", "sasl.password": "b"})
    assert caught.value.broker == broker.address


def test_an_old_broker_answers_api_versions_in_version_0(call: Caller, broker: FakeBroker) -> None:
    asked: list[int] = []

    def api_versions(request: Any, version: int) -> ApiVersionsResponse:
        asked.append(version)
        ranges = [ApiVersionsResponse.ApiVersion(api_key=k, max_version=2) for k in (3, 18)]
        return ApiVersionsResponse(error_code=35 if version > 2 else 0, api_keys=ranges)

    broker.handlers[ApiKey.API_VERSIONS] = api_versions
    assert call({"bootstrap.servers": broker.address}).cluster_id == "fake"
    assert asked[:2] == [4, 2] and broker.requests[-1][1] == 2


def test_the_signal_module_is_left_alone(broker: FakeBroker) -> None:
    before = signal.getsignal(signal.SIGINT)
    call_blocking({"bootstrap.servers": broker.address})
    assert signal.getsignal(signal.SIGINT) is before


# -- what fails, and how -----------------------------------------------------------------------------------------------------


def babbling(data: bytes, wait: bool = True) -> Callable[[socket.socket], None]:
    """A server that is not Kafka's: reads something, says `data`, and goes."""

    def serve(sock: socket.socket) -> None:
        sock.settimeout(5)
        sock.recv(1000)
        sock.sendall(data)
        if wait:
            sock.recv(1000)

    return serve


def check(error: FastqError, broker: str, phase: str) -> None:
    assert error.broker is not None and error.broker.startswith(broker), error
    assert getattr(error, "phase", None) == phase and error.hint, error
    assert broker in str(error) and error.hint in str(error)


def test_refused(call: Caller) -> None:
    with pytest.raises(ConnectionRefused) as caught:
        call({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=0.4)
    check(caught.value, "127.0.0.1:1", "connect")


def test_name_not_resolved(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(address: object) -> list[addresses.Endpoint]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(addresses, "lookup", fail)
    with pytest.raises(NameNotResolved) as caught:
        call({"bootstrap.servers": "no.such.host.invalid:9"})
    check(caught.value, "no.such.host.invalid:9", "resolve")


def test_a_resolver_that_hangs(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(address: object) -> list[addresses.Endpoint]:
        release.wait(10)
        return []

    monkeypatch.setattr(addresses, "lookup", hang)
    try:
        with pytest.raises(ConnectionTimeout) as caught:
            call({"bootstrap.servers": "slow.example:9", "socket.connection.setup.timeout.ms": 100}, timeout_s=5)
        check(caught.value, "slow.example:9", "resolve")
    finally:
        release.set()


def test_a_name_is_looked_up_where_no_thread_can_be_started(
    call: Caller, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an interpreter that ends: what a producer has left to deliver goes to a leader that was not needed before."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("fastq-resolve"):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert call({"bootstrap.servers": f"localhost:{broker.address.rpartition(':')[2]}"}).cluster_id == "fake"
    with pytest.raises(NameNotResolved):
        call({"bootstrap.servers": f"{'x' * 64}.example:9"})


def test_a_silent_server_times_out(call: Caller, broker: FakeBroker) -> None:
    broker.on_connect = silent
    config = {"bootstrap.servers": broker.address, "socket.connection.setup.timeout.ms": 1000}
    with pytest.raises(ConnectionTimeout) as caught:
        call(config, timeout_s=3.0)
    check(caught.value, broker.address, "api versions")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP server"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH server"),
        (b"\x00\x00\x00\x08rubbishh", "rubbishh"),
        (b"\xff\xff\xff\xff", "-1 bytes announced"),
    ],
)
def test_not_kafka(call: Caller, broker: FakeBroker, answer: bytes, words: str) -> None:
    broker.on_connect = babbling(answer)
    with pytest.raises(NotAKafkaBroker, match=words) as caught:
        call({"bootstrap.servers": broker.address})
    check(caught.value, broker.address, "api versions")


def test_tls_expected(call: Caller, broker: FakeBroker) -> None:
    broker.on_connect = babbling(b"\x15\x03\x01\x00\x02\x02\x16")
    with pytest.raises(TlsExpected, match="security_protocol=SSL") as caught:
        call({"bootstrap.servers": broker.address})
    check(caught.value, broker.address, "api versions")


def test_plain_text_expected(call: Caller, broker: FakeBroker) -> None:
    config = {"bootstrap.servers": broker.address, "security.protocol": "SSL", "ssl.truststore.location": str(PEM)}
    broker.on_connect = babbling(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(TlsExpected, match="security_protocol=PLAINTEXT") as caught:
        call(config)
    check(caught.value, broker.address, "tls")
    # A Kafka broker sees a request of 369 MB in the hello, and hangs up.
    broker.on_connect = babbling(b"", wait=False)
    with pytest.raises(ConnectionClosed, match="may be plain text") as closed:
        call(config, timeout_s=0.4)
    check(closed.value, broker.address, "tls")


def test_unsupported_version(call: Caller, broker: FakeBroker) -> None:
    broker.versions = [ApiVersionsResponse.ApiVersion(api_key=18, max_version=3)]
    with pytest.raises(UnsupportedVersion, match="does not offer the Metadata API") as caught:
        call({"bootstrap.servers": broker.address})
    assert caught.value.broker == broker.address and caught.value.api == "Metadata"


@pytest.mark.parametrize("api", [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA])
@pytest.mark.parametrize("damage", ["gone", "first after last"])
def test_damaged_versions_are_asked_for_again(
    call: Caller, broker: FakeBroker, caplog: pytest.LogCaptureFixture, api: int, damage: str
) -> None:
    damaged = [entry for entry in broker.versions if entry.api_key != api]
    if damage == "first after last":
        damaged.append(ApiVersionsResponse.ApiVersion(api_key=api, min_version=64, max_version=9))
    answers = [damaged]
    broker.handlers[ApiKey.API_VERSIONS] = lambda request, version: ApiVersionsResponse(
        api_keys=answers.pop() if answers else broker.versions
    )
    caplog.set_level(logging.WARNING, "fastq.net")
    assert call({"bootstrap.servers": broker.address}).cluster_id == "fake"
    assert api_name(api) in caplog.text and "asked again" in caplog.text
    # The first connection is the damaged one; the others are to the bootstrap server and to the node that it names.
    assert 2 <= broker.accepted <= 3


def test_what_a_broker_says_twice_is_taken_as_it_is(call: Caller, broker: FakeBroker) -> None:
    broker.versions = [entry for entry in broker.versions if entry.api_key != ApiKey.FETCH]
    assert call({"bootstrap.servers": broker.address}).cluster_id == "fake"


def test_rubbish_from_a_broker_names_broker_and_api(call: Caller, broker: FakeBroker) -> None:
    good = broker.handlers[ApiKey.METADATA]
    broker.handlers[ApiKey.METADATA] = lambda request, version: (
        b"\x00\x00\x00\x05abcde" if request.topics is None else good(request, version)
    )
    with pytest.raises(ProtocolError, match="malformed") as caught:
        call({"bootstrap.servers": broker.address})
    assert caught.value.broker and broker.address in caught.value.broker and caught.value.api == "Metadata"


def test_a_response_counts_whatever_comes_behind_it(call: Caller, broker: FakeBroker) -> None:
    broker.write = lambda sock, data: sock.sendall(
        data + (b"\xff" * 4 if broker.requests[-1][0] == ApiKey.METADATA else b"")
    )
    assert call({"bootstrap.servers": broker.address}).cluster_id == "fake"


def test_a_response_over_the_bound_is_refused(call: Caller, broker: FakeBroker) -> None:
    broker.topics = {f"topic-{i}": 10 for i in range(100)}
    with pytest.raises(ProtocolError, match="at most 4096 are accepted"):
        call({"bootstrap.servers": broker.address, "response_bytes_max": 4096})


def test_an_unknown_broker_and_an_unknown_topic(call: Caller, broker: FakeBroker) -> None:
    with pytest.raises(BrokerNotAvailable, match="no broker with id 42"):
        call({"bootstrap.servers": broker.address}, Broker(42))
    with pytest.raises(UnknownTopicOrPartition) as caught:
        call({"bootstrap.servers": broker.address}, Leader("nope", 0), timeout_s=0.5)
    assert caught.value.topic == "nope"


def test_a_topic_is_watched_for_the_length_of_a_call(broker: FakeBroker) -> None:
    """One that is deleted would be asked for without an end by a client that lives on."""
    client = BlockingClient(ClientConfig.from_mapping({"bootstrap.servers": broker.address}))
    updater = client.core.metadata_updater
    try:
        for _ in range(2):
            client.call(Leader("logs", 2), MetadataRequest(topics=None))
            assert list(updater.topics) == [] and client.core.metadata.topic("logs") is not None
        with pytest.raises(UnknownTopicOrPartition):
            client.call(Leader("nope", 0), MetadataRequest(topics=None), 0.5)
        assert list(updater.topics) == [] and client.core.metadata.topic("nope") is None
    finally:
        client.close()


def test_bad_tls_files() -> None:
    with pytest.raises(ConfigError, match=r"ssl_truststore_location=.*cannot be used"):
        BlockingClient(ClientConfig(security_protocol="SSL", ssl_truststore_location="/no/such/file.pem"))


def test_certificates_without_their_key(tmp_path: Path) -> None:
    """OpenSSL calls it "PEM lib", which says neither what is missing nor where it is looked for."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    alone = tmp_path / "alone.pem"
    alone.write_text(begin + PEM.read_text().partition(begin)[2].partition(end)[0] + end + "\n")
    files = {"ssl_keystore_location": str(alone)}
    with pytest.raises(ConfigError, match="and their private key, unless ssl_key_location names its file"):
        BlockingClient(ClientConfig(security_protocol="SSL", **files))
    with pytest.raises(ConfigError, match=r"alone\.pem' with ssl_key_location='.*alone\.pem' cannot be used"):
        BlockingClient(ClientConfig(security_protocol="SSL", ssl_key_location=str(alone), **files))


def test_a_broker_that_restarts_is_found_again(broker: FakeBroker) -> None:
    client = BlockingClient(ClientConfig(bootstrap_servers=broker.address))
    for _ in range(3):
        assert client.call(Broker(1), MetadataRequest(topics=[]), 5.0).cluster_id == "fake"
        broker.drop_connections()
    client.close()
    with pytest.raises(ClientClosed):
        client.call(ANY, MetadataRequest(topics=[]), 5.0)
    client.close()
