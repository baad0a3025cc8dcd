"""Frames: a request or response with its header and the four bytes of size in front.

    request    size int32 | api key int16 | version int16 | correlation id int32 | client id nullable string | [tags] | body
    response   size int32 | correlation id int32 | [tags] | body

Rules: the size counts what follows it. Tags are there in flexible versions (see `api.request_header_version`). Bad bytes
raise DecodeError with the message's name; the boundary that calls decides whose fault that is.
"""

from __future__ import annotations

from typing import TypeVar

from fastq._native.wire import DecodeError, EncodeError, Reader, Writer
from fastq.protocol.api import APIS, api_name, request_header_version, response_header_version
from fastq.protocol.message import Message
from fastq.values import NamedTuple

M = TypeVar("M", bound=Message)

SIZE_BYTES = 4
API_VERSIONS_KEY = 18


class RequestHeader(NamedTuple):
    """The header of a request as it came; `position` is where the body begins in the buffer."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    position: int


def begin_request(writer: Writer, api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> None:
    """Write a size to be patched, and the header. The hot paths write their own body behind it and call `end_frame`."""
    writer.write_int32(0)
    writer.write_int16(api_key)
    writer.write_int16(api_version)
    writer.write_int32(correlation_id)
    writer.write_nullable_string(client_id)
    if request_header_version(api_key, api_version) >= 2:
        writer.write_uvarint(0)


def end_frame(writer: Writer, start: int = 0, extra_bytes: int = 0) -> None:
    """Patch the size of the frame that began at `start`; `extra_bytes` follow from other buffers."""
    writer.patch_int32(start, writer.position - start - SIZE_BYTES + extra_bytes)


def encode_request(correlation_id: int, client_id: str | None, request: Message, version: int) -> bytes:
    """A whole request frame. EncodeError when the version cannot carry the request."""
    writer = Writer()
    begin_request(writer, request.API_KEY, version, correlation_id, client_id)
    _encode_body(writer, request, version)
    end_frame(writer)
    return writer.getvalue()


def encode_response(correlation_id: int, response: Message, version: int) -> bytes:
    """A whole response frame. EncodeError when the version cannot carry the response."""
    writer = Writer()
    writer.write_int32(0)
    writer.write_int32(correlation_id)
    if response_header_version(response.API_KEY, version) >= 1:
        writer.write_uvarint(0)
    _encode_body(writer, response, version)
    end_frame(writer)
    return writer.getvalue()


def _encode_body(writer: Writer, message: Message, version: int) -> None:
    try:
        message.encode(writer, version)
    except (OverflowError, TypeError) as error:  # from the writer, which does not know what it writes
        raise EncodeError(
            f"{type(message).__name__} v{version} has a value of the wrong type or range: {error}"
        ) from error


def decode_request_header(reader: Reader) -> RequestHeader:
    """Read a request's header, without the size.

    For an API or version that is not known, whose header cannot be told, the header is read as version 1: the caller
    looks at `APIS` next. An ApiVersions request of a future version has a flexible header.
    """
    try:
        api_key = reader.read_int16()
        api_version = reader.read_int16()
        correlation_id = reader.read_int32()
        client_id = reader.read_nullable_string()
        info = APIS.get(api_key)
        if info is not None and api_version >= info.flexible_version:
            reader.skip_tagged_fields()
    except DecodeError as error:
        raise named(error, "request header") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, reader.position)


def decode_request(header: RequestHeader, reader: Reader) -> Message:
    """Read the body behind `header`; bytes behind it are let pass. DecodeError as well when the API or version is not known."""
    info = APIS.get(header.api_key)
    if info is None or not info.supports(header.api_version):
        detail = f"api key {header.api_key}, version {header.api_version}"
        raise DecodeError("a known API and version", header.position, detail, "request header")
    return decode_body(info.request_class(), reader, header.api_version, exact=False)


def decode_response_header(reader: Reader, api_key: int, version: int) -> int:
    """Read a response's header, without the size, and return its correlation id."""
    try:
        correlation_id = reader.read_int32()
        if response_header_version(api_key, version) >= 1:
            reader.skip_tagged_fields()
    except DecodeError as error:
        raise named(error, f"{api_name(api_key)} response header") from None
    return correlation_id


def decode_response(data: bytes | bytearray | memoryview, api_key: int, version: int) -> tuple[int, Message]:
    """The correlation id and the body of a response frame without its size.

    A broker that does not know the version of an ApiVersions request answers in version 0; that is followed here.
    """
    reader = Reader(data)
    correlation_id = decode_response_header(reader, api_key, version)
    response_class = APIS[api_key].response_class()
    if api_key == API_VERSIONS_KEY and version > 0 and _is_api_versions_fallback(data, reader.position):
        version = 0
    return correlation_id, decode_body(response_class, reader, version)


def decode_body(message: type[M], reader: Reader, version: int, *, exact: bool = True) -> M:
    """Read a message that ends where the reader ends. An error names the message and its version.

    Not `exact`: bytes behind the message are let pass, as Apache Kafka does with a request's; librdkafka's Metadata
    v13 ends in three of them.
    """
    try:
        body = message.decode(reader, version)
    except DecodeError as error:
        raise named(error, f"{message.__name__} v{version}") from None
    if exact and reader.remaining:
        detail = f"{reader.remaining} bytes left over"
        raise DecodeError("the end of the message", reader.position, detail, f"{message.__name__} v{version}")
    return body


def named(error: DecodeError, within: str) -> DecodeError:
    """The same error with the message it occurred in."""
    return DecodeError(error.expected, error.position, error.detail, within)


def _is_api_versions_fallback(data: bytes | bytearray | memoryview, position: int) -> bool:
    """Whether the body begins with error 35 (UNSUPPORTED_VERSION), which comes in version 0 only (KIP-511)."""
    return bytes(data[position : position + 2]) == b"\x00\x23"
