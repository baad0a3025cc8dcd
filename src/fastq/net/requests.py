"""One request and its response: what is sent, who is told, and the bytes of the header.

Request header (version 1, and 2 with the last byte): size 4, api key 2, api version 2, correlation id 4, client id
(2 + n), tagged fields 1 (always empty). Response header: correlation id 4, and from version 1 on tagged fields.

Rules of this file: a body given as buffers is not copied, unless the whole request has at most JOINED_BYTES: then it goes out as one
buffer, which is cheaper than a list of pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fastq._native.wire import Reader, Writer
from fastq.protocol.api import APIS, ApiKey, request_header_version, response_header_version
from fastq.protocol.frames import decode_body
from fastq.protocol.message import Message

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fastq.errors import FastqError

_UNSUPPORTED_VERSION = b"\x00\x23"  # error code 35
_HEADER = struct.Struct(">ihhih")
JOINED_BYTES = 1024

_header_versions: dict[tuple[int, int], int] = {}  # of responses, as they were asked for

Done: TypeAlias = "Callable[[Any, FastqError | None], object]"
"""Called once, with the response and None, or with None and the error. (None, None) for a request without a
response.
"""


class EncodedRequest:
    """A request whose body is already bytes, for the hot paths.

    `buffers` go out in order, without a copy; they must not change until the request is done. `decode` gets the body
    of the response as a memoryview over memory of its own and returns what `on_done` gets; a `DecodeError` of it
    closes the connection. Without `expects_response` (Produce with acks=0) the request is done once its last byte is
    with the operating system.
    """

    __slots__ = ("api_key", "buffers", "decode", "expects_response", "version")

    def __init__(
        self,
        api_key: int,
        version: int,
        buffers: Sequence[Buffer],
        decode: Callable[[memoryview], Any],
        expects_response: bool = True,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.buffers = buffers
        self.decode = decode
        self.expects_response = expects_response


class VersionedRequest:
    """A request whose fields depend on the version that the broker speaks: made by `build(version)` when it is sent."""

    __slots__ = ("API_KEY", "build")

    def __init__(self, api_key: int, build: Callable[[int], Message]) -> None:
        self.API_KEY = api_key
        self.build = build


class PendingRequest:
    """A request on its way. `deadline` is on the core's clock; `versions` narrows what may be negotiated."""

    __slots__ = ("api_key", "correlation_id", "deadline", "on_done", "request", "sent_at", "version", "versions")

    def __init__(
        self,
        request: Message | EncodedRequest | VersionedRequest,
        on_done: Done,
        deadline: float,
        versions: tuple[int, int] | None = None,
    ) -> None:
        self.request = request
        self.api_key: int = request.API_KEY if not isinstance(request, EncodedRequest) else request.api_key
        self.on_done = on_done
        self.deadline = deadline
        self.versions = versions
        self.version = -1
        self.correlation_id = -1
        self.sent_at = 0.0


class HeaderEncoder:
    """Makes request headers for one client id."""

    __slots__ = ("_client_id", "_tails")

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id.encode()[:32767]
        self._tails: dict[tuple[int, int], bytes] = {}  # what follows the client id's length, by API key and version

    def header(self, api_key: int, version: int, correlation_id: int, body_bytes: int) -> bytes:
        """The size field and the header of a request whose body has `body_bytes` bytes."""
        tail = self._tails.get((api_key, version))
        if tail is None:
            tail = self._client_id + b"\0" * (request_header_version(api_key, version) >= 2)
            self._tails[api_key, version] = tail
        size = 10 + len(tail) + body_bytes
        return _HEADER.pack(size, api_key, version, correlation_id, len(self._client_id)) + tail

    def frame(self, pending: PendingRequest) -> tuple[list[Buffer], int]:
        """The whole request, as buffers to write in order, and their size in bytes."""
        request = pending.request
        buffers: Sequence[Buffer]
        if isinstance(request, EncodedRequest):
            buffers = request.buffers
            size = 0
            for buffer in buffers:
                # len() of a memoryview counts items; every other bytes-like object counts bytes.
                size += buffer.nbytes if type(buffer) is memoryview else len(buffer)  # type: ignore[arg-type]
        else:
            if isinstance(request, VersionedRequest):
                request = request.build(pending.version)
            writer = Writer()
            request.encode(writer, pending.version)
            body = writer.getvalue()
            buffers, size = (body,), len(body)
        header = self.header(pending.api_key, pending.version, pending.correlation_id, size)
        size += len(header)
        if size <= JOINED_BYTES:
            return [b"".join((header, *buffers))], size
        return [header, *buffers], size


def decode_response(pending: PendingRequest, frame: memoryview) -> Any:
    """The response in `frame` (without its size), the correlation id already checked. Raises DecodeError."""
    request = pending.request
    header_version = _header_versions.get((pending.api_key, pending.version))
    if header_version is None:
        header_version = response_header_version(pending.api_key, pending.version)
        _header_versions[pending.api_key, pending.version] = header_version
    if header_version == 0:
        start = 4
    elif len(frame) > 4 and frame[4] == 0:
        start = 5
    else:
        reader = Reader(frame, 4)
        reader.skip_tagged_fields()
        start = reader.position
    if isinstance(request, EncodedRequest):
        return request.decode(frame[start:])
    version = pending.version
    if pending.api_key == ApiKey.API_VERSIONS and frame[start : start + 2] == _UNSUPPORTED_VERSION:
        # A broker that does not know the request's version answers in version 0 (KIP-511).
        version = 0
    return decode_body(APIS[pending.api_key].response_class(), Reader(frame, start), version)
