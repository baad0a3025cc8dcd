"""ApiVersions through the router: every version against the generated encoding, and answers that are kept as long as they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import features
from fastq_broker.controller.topics import NewTopic
from fastq_broker.handlers import api_versions
from fastq_broker.metrics import MeteredRouter
from fastq_broker.router import HANDLERS
from fastq_broker.server import flexible_versions

from fastq._native.produce_path import scan_request
from fastq._native.wire import DecodeError
from fastq.errors import ErrorCode
from fastq.protocol.frames import decode_response, encode_request, encode_response
from fastq.protocol.messages import ApiVersionsRequest, ApiVersionsResponse, FeatureLevelRecord

ALL_VERSIONS = range(api_versions.VERSIONS[0], api_versions.VERSIONS[1] + 1)


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[[str], Broker]]:
    """Builds brokers that are not started: metadata and router are there, no listener is bound."""
    made: list[Broker] = []
    loop = asyncio.new_event_loop()

    def make(name: str) -> Broker:
        config = {"log.dirs": str(tmp_path / name), "listeners": "PLAINTEXT://127.0.0.1:9092"}
        broker = Broker(BrokerConfig.from_mapping(config), loop)
        broker.controller.open()
        broker.controller.register_broker(broker.config.advertised_listeners)
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.controller.close()
        broker.logs.flusher.close()
    loop.close()


@pytest.fixture
def broker(make_broker: Callable[[str], Broker]) -> Broker:
    return make_broker("data")


def a_connection() -> Any:
    return SimpleNamespace(peer=("127.0.0.1", 1), listener="PLAINTEXT", software=("", ""))


def a_request(version: int, name: str = "a-client", software_version: str = "1.0") -> ApiVersionsRequest:
    if version < 3:
        return ApiVersionsRequest()
    return ApiVersionsRequest(client_software_name=name, client_software_version=software_version)


def ask(
    broker: Broker, version: int, request: ApiVersionsRequest | None = None, *, connection: Any = None, number: int = 7
) -> bytes:
    """The frame that the router answers."""
    frame = bytearray(encode_request(number, "test", request or a_request(version), version))
    header = scan_request(frame, 0, len(frame), flexible_versions(), len(frame))
    assert header is not None
    answer = broker.router.dispatch(connection or a_connection(), frame, header)
    assert isinstance(answer, bytes)
    return answer


def expected(broker: Broker, version: int, number: int = 7) -> bytes:
    """The answer to a client that is not ours, by the generated message, from the tables themselves."""
    modules = {key: broker.router.route(key) for key in HANDLERS if key < api_versions.OWN_FROM}
    response = ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=route.versions[0] if key else 0, max_version=route.versions[1]
            )
            for key, route in modules.items()
            if route is not None
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in features.SUPPORTED.items()
            if low > 0 or version >= 4
        ],
        finalized_features_epoch=broker.controller.image.offset,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in broker.controller.finalized_features.items()
        ],
    )
    return encode_response(number, response, version)


def told(frame: bytes, version: int) -> Any:
    return decode_response(frame[4:], api_versions.API_KEY, version)[1]


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_every_answer_is_the_generated_encoding(broker: Broker, version: int) -> None:
    for number in (0, 1, 2**31 - 1, -(2**31)):
        assert ask(broker, version, number=number) == expected(broker, version, number)
    listed = {
        item.api_key: (item.min_version, item.max_version) for item in told(ask(broker, version), version).api_keys
    }
    assert set(listed) == {key for key in HANDLERS if key < api_versions.OWN_FROM}
    assert listed[0][0] == 0  # librdkafka looks for Produce from version 0 on


def test_an_answer_is_encoded_once_a_version(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode = ApiVersionsResponse.encode

    def counting(self: ApiVersionsResponse, writer: Any, version: int) -> None:
        encoded.append(version)
        encode(self, writer, version)

    monkeypatch.setattr(ApiVersionsResponse, "encode", counting)
    broker.controller.create_topics([NewTopic("so-that-nothing-is-kept", 1, 1)])
    broker.controller.settle()
    for _ in range(3):
        for version in ALL_VERSIONS:
            ask(broker, version)
    assert encoded == list(ALL_VERSIONS)


@pytest.mark.parametrize("version", [3, 4])
def test_an_answer_goes_with_the_metadata(broker: Broker, version: int) -> None:
    before = ask(broker, version)
    broker.controller.create_topics([NewTopic("new", 3, 1)])
    broker.controller.settle()
    after = ask(broker, version)
    assert after == expected(broker, version) != before
    assert told(after, version).finalized_features_epoch == broker.controller.image.offset
    broker.controller._commit([FeatureLevelRecord(name="streams.version", feature_level=1)])
    broker.controller.settle()
    levels = {item.name: item.max_version_level for item in told(ask(broker, version), version).finalized_features}
    assert levels["streams.version"] == 1
    assert ask(broker, version) == expected(broker, version)


@pytest.mark.parametrize("version", [3, 4])
def test_an_answer_goes_with_the_finalized_features_alone(broker: Broker, version: int) -> None:
    ask(broker, version)
    controller = broker.controller
    controller.image = controller.image._replace(features={**controller.image.features, "group.version": 0})
    assert ask(broker, version) == expected(broker, version)
    controller.quorum.history.truncate(-1)
    assert ask(broker, version) == expected(broker, version)
    assert features.KRAFT_VERSION not in [item.name for item in told(ask(broker, version), version).finalized_features]


def test_brokers_of_one_process_answer_for_themselves(make_broker: Callable[[str], Broker]) -> None:
    one, other = make_broker("one"), make_broker("other")
    other.controller.create_topics([NewTopic("only-here", 1, 1)])
    other.controller.settle()
    for _ in range(2):
        assert ask(one, 4) == expected(one, 4)
        assert ask(other, 4) == expected(other, 4) != ask(one, 4)


@pytest.mark.parametrize("version", [3, 4])
def test_the_software_is_noted_with_every_request(broker: Broker, version: int) -> None:
    for name in ("librdkafka", "apache-kafka-java", "x"):
        connection = a_connection()
        ask(broker, version, a_request(version, name, "4.3.0"), connection=connection)
        assert connection.software == (name, "4.3.0")


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(("name", "software_version"), [("", "1"), ("a", ""), ("-a", "1"), ("a b", "1"), ("a", "1.")])
def test_bad_software_is_refused_and_not_noted(broker: Broker, version: int, name: str, software_version: str) -> None:
    ask(broker, version)
    connection = a_connection()
    frame = ask(broker, version, a_request(version, name, software_version), connection=connection)
    assert frame == encode_response(7, ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST), version)
    assert connection.software == ("", "")
    assert ask(broker, version) == expected(broker, version)


@pytest.mark.parametrize("version", [3, 4])
def test_a_body_that_is_cut_short_is_malformed(broker: Broker, version: int) -> None:
    frame = bytearray(encode_request(7, "test", a_request(version), version))
    header = scan_request(frame, 0, len(frame), flexible_versions(), len(frame))
    assert header is not None
    ask(broker, version)
    for end in range(header[4], header[5]):
        with pytest.raises(DecodeError, match="ApiVersionsRequest"):
            broker.router.dispatch(a_connection(), frame, (*header[:5], end))


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_bytes_behind_a_body_are_let_pass(broker: Broker, version: int) -> None:
    frame = bytearray(encode_request(7, "test", a_request(version), version)) + b"more"
    frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    header = scan_request(frame, 0, len(frame), flexible_versions(), len(frame))
    assert header is not None
    assert broker.router.dispatch(a_connection(), frame, header) == expected(broker, version)


def test_a_table_that_cannot_be_made_is_an_error_and_is_not_kept(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise RuntimeError("on purpose")

    broker.controller.create_topics([NewTopic("so-that-nothing-is-kept", 1, 1)])
    broker.controller.settle()
    with monkeypatch.context() as patched:
        patched.setattr(broker.router, "versions", broken)
        error = ApiVersionsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        assert ask(broker, 4) == encode_response(7, error, 4)
    assert ask(broker, 4) == expected(broker, 4)


def test_metrics_count_a_refusal(broker: Broker) -> None:
    router = MeteredRouter(broker)
    broker.router = router
    ask(broker, 4)
    ask(broker, 4, a_request(4, "bad name"))
    stats = router.stats[api_versions.API_KEY]
    assert (stats.requests, stats.errors) == (2, {ErrorCode.INVALID_REQUEST: 1})


def test_a_node_among_others_offers_what_its_controller_has_too(broker: Broker) -> None:
    def offered() -> dict[int, tuple[int, int]]:
        frame = ask(broker, 3, connection=a_connection())
        response: Any = decode_response(frame[4:], api_versions.API_KEY, 3)[1]
        return {item.api_key: (item.min_version, item.max_version) for item in response.api_keys}

    theirs: dict[int, tuple[int, int]] = {}
    broker.cluster = SimpleNamespace(controller_versions=lambda: dict(theirs), forwards=lambda *_: False)  # type: ignore[assignment]
    api_versions._latest.clear()
    own = offered()
    theirs |= {**own, 19: (0, 5), 1: (0, 4), 57: (7, 9)}
    assert offered() == {key: (2, 5) if key == 19 else own[key] for key in own if key != 57}
    api_versions._latest.clear()


@pytest.mark.parametrize("version", [2, 3, 4])
def test_our_own_apis_are_told_to_our_own_clients(broker: Broker, version: int) -> None:
    def offered(software: str) -> set[int]:
        request = ApiVersionsRequest(client_software_name=software, client_software_version="1")
        frame = ask(broker, version, request if version >= 3 else None, connection=a_connection())
        response: Any = decode_response(frame[4:], api_versions.API_KEY, version)[1]
        return {item.api_key for item in response.api_keys}

    everybody = {key for key in HANDLERS if key < api_versions.OWN_FROM}
    assert offered("librdkafka") == offered("fastq-fork") == everybody
    assert offered("fastq") == (set(HANDLERS) if version >= 3 else everybody)
    assert offered("librdkafka") == everybody
