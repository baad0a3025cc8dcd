"""Envelopes, both ways, a rule a test; the bytes are Apache Kafka's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.cluster import forwarding
from fastq_broker.cluster.forwarding import (
    FORWARDED,
    FORWARDED_KEYS,
    ClientRequest,
    Forwarded,
    Forwarder,
    Principal,
    decode_principal,
    encode_principal,
    open_envelope,
    serve_envelope,
    shared_versions,
    unwrap,
    wrap,
)
from fastq_broker.cluster.node import ClusterNode

from fastq._native.wire import DecodeError, Reader
from fastq.admin.config import AdminConfig
from fastq.errors import (
    ClientClosed,
    FastqError,
    InvalidRequest,
    NotController,
    NotLeaderOrFollower,
    PrincipalDeserializationFailure,
    RequestTimedOut,
    TopicAlreadyExists,
    UnsupportedVersion,
    error_for_code,
)
from fastq.protocol.api import APIS
from fastq.protocol.frames import decode_body, encode_request, encode_response
from fastq.protocol.message import Message
from fastq.protocol.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EnvelopeRequest,
    EnvelopeResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataRequest,
    UpdateFeaturesResponse,
)

CREATE = CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1)], timeout_ms=5)
CREATED = CreateTopicsResponse(topics=[CreateTopicsResponse.CreatableTopicResult(name="t", num_partitions=1)])
ALICE = Principal("User", "alice", True)


def client(request: Message = CREATE, version: int = 7, **options: Any) -> ClientRequest:
    fields: dict[str, Any] = {"client_id": b"app", "principal": ALICE, "address": "10.1.2.3", **options}
    return ClientRequest(request.API_KEY, version, 77, body=request.to_bytes(version), **fields)


def envelope_of(response: Message, version: int = 7, number: int = 77) -> EnvelopeResponse:
    return EnvelopeResponse(response_data=encode_response(number, response, version)[4:])


def serve(envelope: EnvelopeRequest, handle: Any, *, allowed: bool = True) -> EnvelopeResponse:
    return asyncio.run(serve_envelope(envelope, handle, allowed=allowed))


# -- the table


def test_every_forwarded_api_is_served_on_both_listeners_and_has_its_reason() -> None:
    for key in FORWARDED_KEYS:
        assert {"broker", "controller"} <= set(APIS[key].listeners), APIS[key].name
    assert len(FORWARDED_KEYS) == len(FORWARDED) and all(FORWARDED.values())


def test_what_writes_metadata_is_forwarded_and_what_is_read_from_the_image_is_not() -> None:
    image = {
        "Metadata",
        "DescribeConfigs",
        "DescribeAcls",
        "DescribeClientQuotas",
        "DescribeUserScramCredentials",
        "DescribeCluster",
    }
    here = {"ApiVersions", "SaslHandshake", "SaslAuthenticate", "Fetch", "DescribeDelegationToken"}
    both = {info.name for info in APIS.values() if {"broker", "controller"} <= set(info.listeners)}
    assert both - image - here == set(FORWARDED)


# -- there


@pytest.mark.parametrize(("version", "client_id"), [(7, b"app"), (4, b"app"), (7, None), (4, None), (7, b"\xff")])
def test_a_request_is_forwarded_with_the_header_that_it_came_with(version: int, client_id: bytes | None) -> None:
    request = wrap(client(version=version, client_id=client_id))
    text = None if client_id is None else client_id.decode(errors="replace")
    assert request.request_data == encode_request(77, text, CREATE, version)[4:]


def test_the_principal_is_what_kafka_writes() -> None:
    assert encode_principal(ALICE) == b"\0\0" + b"\x05User" + b"\x06alice" + b"\x01" + b"\0"
    assert decode_principal(encode_principal(ALICE)) == ALICE
    assert decode_principal(encode_principal(Principal())) == Principal("User", "ANONYMOUS", False)


@pytest.mark.parametrize(
    ("address", "packed"),
    [
        ("10.1.2.3", b"\x0a\x01\x02\x03"),
        ("::1", bytes(15) + b"\x01"),
        ("fe80::1%eth0", b"\xfe\x80" + bytes(13) + b"\x01"),
    ],
)
def test_the_address_is_raw(address: str, packed: bytes) -> None:
    assert wrap(client(address=address)).client_host_address == packed


def test_the_controller_serves_the_request_in_the_name_of_the_client() -> None:
    forwarded: list[Forwarded] = []

    def handle(request: Forwarded) -> Message:
        forwarded.append(request)
        return CREATED

    answer = serve(wrap(client()), handle)
    (got,) = forwarded
    assert got.request == CREATE and (got.principal, got.address) == (ALICE, "10.1.2.3")
    assert (got.header.api_version, got.header.client_id, got.header.correlation_id) == (7, "app", 77)
    assert answer == envelope_of(CREATED)
    assert unwrap(client(), answer, None) == CREATED


def test_an_answer_that_comes_later_is_waited_for() -> None:
    async def handle(request: Forwarded) -> Message:
        await asyncio.sleep(0)
        return CREATED

    assert serve(wrap(client()), handle) == envelope_of(CREATED)


# -- what goes wrong at the controller


def never(request: Forwarded) -> Message:
    raise AssertionError("it must not be served")


def test_who_may_not_act_for_the_cluster_forwards_nothing() -> None:
    assert serve(wrap(client()), never, allowed=False) == EnvelopeResponse(error_code=31)


@pytest.mark.parametrize(
    ("change", "error", "code"),
    [
        ({"request_principal": b""}, PrincipalDeserializationFailure, 97),
        ({"request_principal": None}, PrincipalDeserializationFailure, 97),
        ({"request_principal": b"\0\1" + encode_principal(ALICE)[2:]}, PrincipalDeserializationFailure, 97),
        ({"client_host_address": b"123"}, InvalidRequest, 42),
        ({"request_data": b""}, UnsupportedVersion, 35),
        ({"request_data": wrap(client()).request_data[:-3]}, UnsupportedVersion, 35),
        ({"request_data": b"\x7f\xff" + wrap(client()).request_data[2:]}, UnsupportedVersion, 35),
        ({"request_data": b"\0\x13\0\x63" + wrap(client()).request_data[4:]}, UnsupportedVersion, 35),
        ({"request_data": encode_request(1, None, MetadataRequest(), 12)[4:]}, InvalidRequest, 42),
    ],
)
def test_an_envelope_that_cannot_be_opened_says_why(change: dict[str, Any], error: type[FastqError], code: int) -> None:
    envelope = wrap(client())
    for name, value in change.items():
        setattr(envelope, name, value)
    with pytest.raises(error):
        open_envelope(envelope)
    assert serve(envelope, never) == EnvelopeResponse(error_code=code)


def test_the_principal_is_looked_at_before_the_address_and_that_before_the_request() -> None:
    envelope = EnvelopeRequest(request_data=b"", request_principal=b"", client_host_address=b"")
    assert serve(envelope, never).error_code == 97
    envelope.request_principal = encode_principal(ALICE)
    assert serve(envelope, never).error_code == 42
    envelope.client_host_address = bytes(4)
    assert serve(envelope, never).error_code == 35


def refused(code: int) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[CreateTopicsResponse.CreatableTopicResult(name="t", error_code=code)])


def test_not_controller_anywhere_in_the_answer_is_the_envelopes() -> None:
    assert serve(wrap(client()), lambda _: refused(41)) == EnvelopeResponse(error_code=41)
    assert serve(wrap(client()), lambda _: refused(6)).error_code == 0


def test_of_describe_quorum_not_leader_means_the_same() -> None:
    ask = client(DescribeQuorumRequest(), 2)
    for code, wanted in ((6, 41), (41, 41), (29, 0)):
        part = DescribeQuorumResponse.PartitionData(error_code=code)
        response = DescribeQuorumResponse(topics=[DescribeQuorumResponse.TopicData(partitions=[part])])
        assert serve(wrap(ask), lambda _, response=response: response).error_code == wanted


@pytest.mark.parametrize(
    ("error", "request_", "wanted"),
    [
        (NotController(), CREATE, EnvelopeResponse(error_code=41)),
        (NotController(), CreateTopicsRequest(), EnvelopeResponse(error_code=41)),
        (NotLeaderOrFollower(), DescribeQuorumRequest(), EnvelopeResponse(error_code=41)),
        (NotLeaderOrFollower(), CREATE, envelope_of(refused(6))),
        (TopicAlreadyExists(), CREATE, envelope_of(refused(36))),
        (ValueError("a bug"), CREATE, envelope_of(refused(-1))),
    ],
)
def test_what_the_controller_raises_becomes_the_inner_answer(error: Exception, request_: Message, wanted: Any) -> None:
    def handle(_: Forwarded) -> Message:
        raise error

    answer = serve(wrap(client(request_, 2 if isinstance(request_, DescribeQuorumRequest) else 7)), handle)
    if wanted.response_data is None:
        assert answer == wanted
    else:
        response: Any = unwrap(client(), answer, None)
        assert [topic.error_code for topic in response.topics] == [
            topic.error_code
            for topic in unwrap(client(), wanted, None).topics  # type: ignore[union-attr]
        ]


def test_an_answer_that_its_version_cannot_carry_is_an_error_of_the_server() -> None:
    answer = serve(wrap(client()), lambda _: CreateTopicsResponse(topics=[None]))  # type: ignore[list-item]
    response: Any = unwrap(client(), answer, None)
    assert [topic.error_code for topic in response.topics] == [-1]


# -- and back


@pytest.mark.parametrize(
    ("envelope", "error", "code"),
    [
        (EnvelopeResponse(error_code=97), None, -1),
        (EnvelopeResponse(error_code=31), None, -1),
        (EnvelopeResponse(), None, -1),
        (EnvelopeResponse(response_data=b"\0\0"), None, -1),
        (EnvelopeResponse(response_data=envelope_of(CREATED).response_data + b"x"), None, -1),  # type: ignore[operator]
        (envelope_of(CREATED, number=78), None, -1),
        (None, UnsupportedVersion(), -1),
        (None, RequestTimedOut(), 7),
    ],
)
def test_the_client_gets_an_answer_of_its_own_api(
    envelope: EnvelopeResponse | None, error: Any, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    response: Any = unwrap(client(), envelope, error)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("t", code)]
    assert "CreateTopics version 7 of 10.1.2.3" in caplog.text


@pytest.mark.parametrize(
    ("request_", "version", "items"),
    [
        (CREATE, 7, "topics"),
        (CREATE, 2, "topics"),
        (DeleteTopicsRequest(topic_names=["t"]), 5, "responses"),
        (DeleteTopicsRequest(topic_names=["t"]), 4, "responses"),  # has no room for words
    ],
)
def test_a_client_hears_why_no_active_controller_has_answered(
    request_: Message, version: int, items: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = error_for_code(7, "Envelope was not answered", hint="The metadata quorum has no leader")
    response: Any = unwrap(client(request_, version), None, said)
    known = type(response).from_bytes(response.to_bytes(version), version)
    (item,) = getattr(known, items)
    words = f"{type(request_).__name__.removesuffix('Request')} was not answered by an active controller in 25 s. {said.hint}"
    assert (item.name, item.error_code, item.error_message) == ("t", 7, None if version == 4 else words)
    assert (
        caplog.messages[-1].endswith(f"is answered with REQUEST_TIMED_OUT: {words}") and "Envelope" not in caplog.text
    )


def test_a_client_whose_version_the_controller_does_not_have_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert unwrap(client(), EnvelopeResponse(error_code=35), None) is None
    assert "has no CreateTopics version 7" in caplog.text
    assert unwrap(client(), None, ClientClosed()) is None  # this broker stops


class Channel:
    """What a Forwarder asks; answered by hand."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def ask(self, request: Any, done: Any, *, timeout_s: float, moves_on: bool) -> None:
        self.asked.append((request, done, timeout_s))
        self.moves_on = moves_on


def test_a_forwarder_asks_as_long_as_clients_wait_and_hands_out_the_answer() -> None:
    async def scenario() -> None:
        channel = Channel()
        forwarder = Forwarder(channel, asyncio.get_running_loop())  # type: ignore[arg-type]

        async def begin(what: Awaitable[Any]) -> asyncio.Task[Any]:
            task = asyncio.ensure_future(what)
            await asyncio.sleep(0)
            return task  # type: ignore[return-value]

        answer = await begin(forwarder.forward(client()))
        request, done, timeout_s = channel.asked.pop()
        assert 20 < timeout_s < AdminConfig().request_timeout_ms / 1000  # so that they hear why nothing was done
        assert request == wrap(client()) and not channel.moves_on
        done(envelope_of(CREATED), None)
        assert await answer == CREATED

        reading = await begin(forwarder.forward(client()._replace(api_key=DescribeQuorumRequest.API_KEY)))
        assert channel.moves_on  # a controller that stands still is not waited for
        reading.cancel()

        gone = await begin(forwarder.forward(client()))
        done = channel.asked.pop()[1]
        gone.cancel()
        await asyncio.sleep(0)
        done(envelope_of(CREATED), None)  # nobody is there any more

        broken = await begin(forwarder.forward(client()._replace(body=b"\xff")))
        channel.asked.pop()[1](EnvelopeResponse(error_code=97), None)
        with pytest.raises(DecodeError):
            await broken

    asyncio.run(scenario())


# -- versions


def test_clients_are_told_of_versions_that_both_have() -> None:
    own = {3: (0, 13), 19: (2, 7), 20: (1, 6), 57: (0, 2), 64: (0, 0)}
    theirs = {3: (0, 1), 19: (0, 5), 20: (7, 9), 57: (1, 3)}
    assert shared_versions(own, theirs) == {3: (0, 13), 19: (2, 5), 57: (1, 2)}
    assert shared_versions(own, {}) == own


def test_brokers_of_apache_kafka_may_wrap_what_is_no_clients_request() -> None:
    assert {APIS[key].name for key in forwarding.IN_ENVELOPES - FORWARDED_KEYS} == {"AllocateProducerIds"}
    response = UpdateFeaturesResponse(error_code=41)
    assert serve(wrap(client(DescribeQuorumRequest(), 0)), lambda _: response).error_code == 41


@pytest.mark.parametrize("known", [True, False])
def test_loggers_are_altered_here_and_the_rest_is_forwarded(known: bool) -> None:
    """Mixed in one request: the controller must not be asked for another process's loggers."""
    kind = IncrementalAlterConfigsRequest
    resources = [kind.AlterConfigsResource(resource_type=t, resource_name="4") for t in (8, 2, 8, 4)]
    request = kind(resources=resources, validate_only=True)
    answer = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    altered: list[Any] = []

    async def handle(_: Any, own: Any) -> Any:
        altered.append((own.validate_only, [item.resource_type for item in own.resources]))
        return IncrementalAlterConfigsResponse(responses=[answer(resource_type=8) for _ in own.resources])

    async def forward(wrapped: ClientRequest) -> Any:
        rest = decode_body(kind, Reader(wrapped.body), wrapped.api_version)
        altered.append((rest.validate_only, [item.resource_type for item in rest.resources]))
        return IncrementalAlterConfigsResponse(responses=[answer(resource_type=t) for t in (2, 4)]) if known else None

    node = object.__new__(ClusterNode)
    node.forwarder = SimpleNamespace(forward=forward)  # type: ignore[assignment]
    node._ports = SimpleNamespace(image=None, controller=SimpleNamespace(layers=None))  # type: ignore[assignment]
    body = bytearray(request.to_bytes(1))
    header = (kind.API_KEY, 1, 7, b"c", 0, len(body))
    context: Any = SimpleNamespace(peer=("127.0.0.1", 1))

    async def ask() -> Any:
        return await node.forward(context, header, body, request, handle)

    assert node.forwards(kind.API_KEY, request)
    response = asyncio.run(ask())
    assert altered == [(True, [8, 8]), (True, [2, 4])]
    assert (response and [item.resource_type for item in response.responses]) == ([8, 8, 2, 4] if known else None)
