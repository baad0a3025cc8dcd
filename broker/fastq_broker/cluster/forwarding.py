"""Requests of clients that only the active controller can serve, there and back in an Envelope (KIP-590).

A broker wraps the client's request as it came, with who the client is and its address, and has the channel ask until it is answered; the
controller takes it out, serves it in the client's name, and wraps the answer.

Rules
- The client's answer has the client's correlation id, as its request is forwarded with its own header.
- NOT_CONTROLLER anywhere in the answer (for DescribeQuorum: NOT_LEADER_OR_FOLLOWER) becomes the Envelope's own, so that the channel asks
  again.
- What the controller cannot read is UNSUPPORTED_VERSION: the client's connection is closed, and it agrees on versions anew. An Envelope's
  other errors are a matter between nodes: the client gets UNKNOWN_SERVER_ERROR, the log says more.
- A broker tells its clients of such an API the versions that the controller has as well.

Sources: ForwardingManager, EnvelopeUtils, RequestChannel, DefaultApiVersionManager, DefaultKafkaPrincipalBuilder.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping

from fastq._native.wire import DecodeError, Reader, Writer
from fastq.errors import (
    ClientClosed,
    ClusterAuthorizationFailed,
    ErrorCode,
    FastqError,
    InvalidRequest,
    KafkaError,
    PrincipalDeserializationFailure,
    UnsupportedVersion,
)
from fastq.protocol.api import APIS, api_name
from fastq.protocol.frames import (
    SIZE_BYTES,
    RequestHeader,
    decode_body,
    decode_request,
    decode_request_header,
    decode_response,
    encode_response,
)
from fastq.protocol.message import Message
from fastq.protocol.messages import DefaultPrincipalData, DescribeQuorumRequest, EnvelopeRequest, EnvelopeResponse
from fastq.values import NamedTuple
from fastq_broker.cluster.controller_channel import FORWARD_TIMEOUT_S, ControllerChannel, holds_error
from fastq_broker.error_responses import encode_error, error_response
from fastq_broker.log import failures

logger = logging.getLogger(__name__)

FORWARDED: Mapping[str, str] = {
    "CreateTopics": "writes topics",
    "DeleteTopics": "writes topics",
    "CreatePartitions": "writes topics",
    "CreateAcls": "writes ACLs",
    "DeleteAcls": "writes ACLs",
    "AlterConfigs": "writes configs; what concerns this process alone (loggers) is done here first",
    "IncrementalAlterConfigs": "writes configs; what concerns this process alone (loggers) is done here first",
    "CreateDelegationToken": "writes tokens; that the client did not come with one is checked here first",
    "RenewDelegationToken": "writes tokens; that the client did not come with one is checked here first",
    "ExpireDelegationToken": "writes tokens; that the client did not come with one is checked here first",
    "ElectLeaders": "writes leaders",
    "AlterPartitionReassignments": "writes replicas",
    "ListPartitionReassignments": "the controller knows of those that are not committed yet",
    "AlterClientQuotas": "writes quotas",
    "AlterUserScramCredentials": "writes credentials",
    "DescribeQuorum": "only the leader knows how far the others are",
    "UpdateFeatures": "writes feature levels",
    "UnregisterBroker": "writes registrations",
    "AddRaftVoter": "writes voters",
    "RemoveRaftVoter": "writes voters",
}
"""The APIs that a broker forwards, by name, and why."""

FORWARDED_KEYS = frozenset(key for key, info in APIS.items() if info.name in FORWARDED)

READ_KEYS = frozenset(
    key for key, info in APIS.items() if info.name in ("ListPartitionReassignments", "DescribeQuorum")
)
"""Those of them that change nothing: where the controller stands still, the next one is asked."""

IN_ENVELOPES = FORWARDED_KEYS | {key for key, info in APIS.items() if info.name == "AllocateProducerIds"}
"""What a controller takes out of an Envelope: Apache Kafka's brokers may wrap AllocateProducerIds too."""

PRINCIPAL_VERSION = 0


class Principal(NamedTuple):
    """Who a client is."""

    type: str = "User"
    name: str = "ANONYMOUS"
    token_authenticated: bool = False


class ClientRequest(NamedTuple):
    """A request as its client sent it, and who that is. `address`: the client's IP address."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: bytes | None
    body: bytes
    principal: Principal
    address: str


class Forwarded(NamedTuple):
    """A client's request as the controller gets it."""

    header: RequestHeader
    request: Message
    principal: Principal
    address: str


Handle = Callable[[Forwarded], Message | Awaitable[Message]]


# -- the broker's side


def wrap(client: ClientRequest) -> EnvelopeRequest:
    """The Envelope of a client's request."""
    writer = Writer()
    writer.write_int16(client.api_key)
    writer.write_int16(client.api_version)
    writer.write_int32(client.correlation_id)
    writer.write_nullable_string(None if client.client_id is None else client.client_id.decode("utf-8", "replace"))
    if client.api_version >= APIS[client.api_key].flexible_version:
        writer.write_uvarint(0)
    writer.write_raw(client.body)
    return EnvelopeRequest(
        request_data=writer.getvalue(),
        request_principal=encode_principal(client.principal),
        client_host_address=ipaddress.ip_address(client.address).packed,
    )


def unwrap(client: ClientRequest, envelope: EnvelopeResponse | None, error: FastqError | None) -> Message | None:
    """What to answer to the client: None means that its connection is to be closed."""
    name = api_name(client.api_key)
    if envelope is None:
        if isinstance(error, ClientClosed):
            return None  # this broker stops
        if isinstance(error, KafkaError) and error.code == ErrorCode.REQUEST_TIMED_OUT:
            words = f"{name} was not answered by an active controller in {FORWARD_TIMEOUT_S:g} s"
            if error.hint:
                words += f". {error.hint}"
            return _refusal(client, ErrorCode.REQUEST_TIMED_OUT, words, words)
        return _refusal(client, ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
    if envelope.error_code == ErrorCode.UNSUPPORTED_VERSION:
        logger.info(
            "the active controller has no %s version %d: it may have changed; the connection of %s is closed, so that the client asks "
            "for the versions again",
            name,
            client.api_version,
            client.address,
        )
        return None
    if envelope.error_code != ErrorCode.NONE or envelope.response_data is None:
        return _refusal(client, ErrorCode.UNKNOWN_SERVER_ERROR, f"its Envelope says error {envelope.error_code}")
    try:
        number, response = decode_response(envelope.response_data, client.api_key, client.api_version)
    except DecodeError as problem:
        return _refusal(client, ErrorCode.UNKNOWN_SERVER_ERROR, str(problem))
    if number != client.correlation_id:
        return _refusal(
            client, ErrorCode.UNKNOWN_SERVER_ERROR, f"correlation id {number}, expected {client.correlation_id}"
        )
    return response


def _refusal(client: ClientRequest, code: ErrorCode, why: str, words: str | None = None) -> Message:
    """`why` is for this node's log, `words` for the client."""
    logger.warning(
        "%s version %d of %s, forwarded to the active controller, is answered with %s: %s",
        api_name(client.api_key),
        client.api_version,
        client.address,
        code.name,
        why,
    )
    request_class = APIS[client.api_key].request_class()
    request = decode_body(request_class, Reader(client.body), client.api_version, exact=False)
    return error_response(request, code, words)


class Forwarder:
    """Has the active controller serve requests of clients. Loop thread only."""

    def __init__(self, channel: ControllerChannel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop

    async def forward(self, client: ClientRequest) -> Message | None:
        """The response to a client's request; None means that its connection is to be closed. Raises DecodeError for a request that
        cannot be read."""
        answered: asyncio.Future[Message | None] = self._loop.create_future()

        def done(envelope: EnvelopeResponse | None, error: FastqError | None) -> None:
            if answered.done():
                return  # the client is gone
            try:
                answered.set_result(unwrap(client, envelope, error))
            except DecodeError as problem:
                answered.set_exception(problem)

        self._channel.ask(wrap(client), done, timeout_s=FORWARD_TIMEOUT_S, moves_on=client.api_key in READ_KEYS)
        return await answered


def shared_versions(
    own: Mapping[int, tuple[int, int]], controller: Mapping[int, tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """What a broker tells its clients of its versions, with those of the active controller as far as they are known: empty, they are
    not (ApiVersionsResponse.controllerApiVersions)."""
    if not controller:
        return dict(own)
    shared = {}
    for key, (low, high) in own.items():
        if key in FORWARDED_KEYS:
            theirs = controller.get(key)
            if theirs is None or max(low, theirs[0]) > min(high, theirs[1]):
                continue
            low, high = max(low, theirs[0]), min(high, theirs[1])
        shared[key] = (low, high)
    return shared


# -- the controller's side


def open_envelope(envelope: EnvelopeRequest) -> Forwarded:
    """What is in an Envelope. Raises the KafkaError that the Envelope is answered with."""
    principal = decode_principal(envelope.request_principal)
    try:
        address = str(ipaddress.ip_address(bytes(envelope.client_host_address)))
    except ValueError:
        raise InvalidRequest(
            f"an Envelope has a client address of {len(envelope.client_host_address)} bytes, expected 4 or 16"
        ) from None
    reader = Reader(envelope.request_data)
    try:
        header = decode_request_header(reader)
        if header.api_key in APIS and header.api_key not in IN_ENVELOPES:
            raise InvalidRequest(f"{api_name(header.api_key)} is nothing that a broker forwards")
        request = decode_request(header, reader)
    except DecodeError as error:
        raise UnsupportedVersion(f"the request in an Envelope cannot be read: {error}") from None
    return Forwarded(header, request, principal, address)


async def serve_envelope(envelope: EnvelopeRequest, handle: Handle, *, allowed: bool) -> EnvelopeResponse:
    """Serve what is in an Envelope. `allowed`: whether its sender may act for the cluster (CLUSTER_ACTION on the cluster)."""
    try:
        if not allowed:
            raise ClusterAuthorizationFailed("to forward requests takes CLUSTER_ACTION on the cluster")
        forwarded = open_envelope(envelope)
    except KafkaError as error:
        failures.say(logger.warning, "an Envelope", "an Envelope is refused: %s", error)
        return EnvelopeResponse(error_code=error.code)
    header = forwarded.header
    try:
        answer = handle(forwarded)
        response = await answer if inspect.isawaitable(answer) else answer
        if any(holds_error(response, code) for code in _moved(header)):
            return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        frame = encode_response(header.correlation_id, response, header.api_version)
    except Exception as error:
        code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        if code in _moved(header):
            return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        if code == ErrorCode.UNKNOWN_SERVER_ERROR:
            logger.error(
                "%s version %d, forwarded, failed", api_name(header.api_key), header.api_version, exc_info=error
            )
        frame = encode_error(header.correlation_id, error_response(forwarded.request, code), header.api_version)
    return EnvelopeResponse(response_data=frame[SIZE_BYTES:])


def _moved(header: RequestHeader) -> tuple[ErrorCode, ...]:
    """What says that this controller is not the active one."""
    if header.api_key == DescribeQuorumRequest.API_KEY:
        return ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER
    return (ErrorCode.NOT_CONTROLLER,)


# -- principals


def encode_principal(principal: Principal) -> bytes:
    """A principal as Kafka's default serde writes it: the version, and the message."""
    data = DefaultPrincipalData(
        type=principal.type, name=principal.name, token_authenticated=principal.token_authenticated
    )
    return PRINCIPAL_VERSION.to_bytes(2, "big") + data.to_bytes(PRINCIPAL_VERSION)


def decode_principal(data: bytes | None) -> Principal:
    """The principal that `encode_principal`, or an Apache Kafka node, has written. Raises PrincipalDeserializationFailure."""
    reader = Reader(data or b"")
    try:
        version = reader.read_int16()
        found = decode_body(DefaultPrincipalData, reader, version, exact=False)
    except DecodeError as error:
        raise PrincipalDeserializationFailure(f"the principal in an Envelope cannot be read: {error}") from None
    return Principal(found.type, found.name, found.token_authenticated)
