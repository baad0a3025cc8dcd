"""Headers and frames: known bytes, both directions, and the special cases of ApiVersions."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fastq.protocol import APIS, DecodeError, EncodeError, Reader, Writer, frames
from fastq.protocol.api import request_header_version, response_header_version
from fastq.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    HeartbeatRequest,
    MetadataRequest,
    RequestHeader,
    ResponseHeader,
    SaslHandshakeRequest,
)


def test_known_frames() -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert frames.encode_request(7, "me", request, 0) == bytes.fromhex(
        "00000016 000c 0000 00000007 0002 6d65 0001 67 00000001 0001 6d"
    )
    assert frames.encode_request(7, None, request, 4) == bytes.fromhex(
        "00000015 000c 0004 00000007 ffff 00 02 67 00000001 02 6d 00 00"
    )
    response = ApiVersionsResponse(api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, max_version=4)])
    assert frames.encode_response(7, response, 3) == bytes.fromhex(
        "00000013 00000007 0000 02 0012 0000 0004 00 00000000 00"
    )


@pytest.mark.parametrize("key", APIS)
def test_every_api_goes_through_both_directions(key: int) -> None:
    info = APIS[key]
    for version in range(info.min_version, info.max_version + 1):
        request = info.request_class()()
        if key == 18:
            request = ApiVersionsRequest(client_software_name="f" if version >= 3 else "")
        try:
            frame = frames.encode_request(-5, "client", request, version)
        except EncodeError as error:  # a default of null in versions that do not allow null
            assert "is None" in str(error)
            continue
        reader = Reader(frame, 4)
        header = frames.decode_request_header(reader)
        assert header[:4] == (key, version, -5, "client")
        assert frames.decode_request(header, reader) == request
        response = info.response_class()()
        try:
            frame = frames.encode_response(-6, response, version)
        except EncodeError as error:
            assert "is None" in str(error)
            continue
        assert struct.unpack(">i", frame[:4])[0] == len(frame) - 4
        assert frames.decode_response(frame[4:], key, version) == (-6, response)


@pytest.mark.parametrize("key", APIS)
def test_headers_are_those_of_the_definitions(key: int) -> None:
    info = APIS[key]
    for version in range(info.min_version, info.max_version + 1):
        writer = Writer()
        frames.begin_request(writer, key, version, 9, "c")
        frames.end_frame(writer, extra_bytes=100)
        header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=9, client_id="c")
        body = header.to_bytes(request_header_version(key, version))
        assert writer.getvalue() == struct.pack(">i", len(body) + 100) + body
        head = ResponseHeader(correlation_id=9).to_bytes(response_header_version(key, version))
        assert frames.decode_response_header(Reader(head), key, version) == 9


def test_an_api_versions_request_of_the_future_has_a_readable_header() -> None:
    frame = struct.pack(">hhih", 18, 99, 3, 1) + b"c\x00rest"
    header = frames.decode_request_header(Reader(frame))
    assert header == (18, 99, 3, "c", 12)
    with pytest.raises(DecodeError, match="api key 18, version 99"):
        frames.decode_request(header, Reader(frame, 12))


def test_an_api_versions_answer_in_version_0_is_understood() -> None:
    answer = ApiVersionsResponse(
        error_code=35, api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2)]
    )
    frame = frames.encode_response(1, answer, 0)
    assert frames.decode_response(frame[4:], 18, 4) == (1, answer)


def test_errors_name_the_message() -> None:
    with pytest.raises(DecodeError, match="in request header"):
        frames.decode_request_header(Reader(b"\x00\x03\x00"))
    with pytest.raises(DecodeError, match="in MetadataResponse v12"):
        frames.decode_response(b"\x00\x00\x00\x01\x00\x00\x00", 3, 12)
    with pytest.raises(DecodeError, match="in Metadata response header"):
        frames.decode_response(b"\x00\x00\x00", 3, 12)
    good = frames.encode_request(1, "c", MetadataRequest(topics=None), 12)
    reader = Reader(good + b"!", 4)
    with pytest.raises(DecodeError, match=r"the end of the message .* in MetadataRequest v12: 1 bytes left over"):
        frames.decode_body(MetadataRequest, Reader(MetadataRequest(topics=None).to_bytes(12) + b"!"), 12)
    # a request's are let pass: librdkafka's Metadata v13 ends in three bytes too many, and Apache Kafka takes it
    assert frames.decode_request(frames.decode_request_header(reader), reader) == MetadataRequest(topics=None)
    reader = Reader(struct.pack(">hhihb", 999, 0, 1, 1, 65))
    header = frames.decode_request_header(reader)
    with pytest.raises(DecodeError, match="api key 999"):
        frames.decode_request(header, reader)


def test_a_null_client_id_and_the_oldest_sasl_frame() -> None:
    frame = frames.encode_request(1, None, SaslHandshakeRequest(mechanism="PLAIN"), 0)
    assert frame[4:] == struct.pack(">hhih", 17, 0, 1, -1) + b"\x00\x05PLAIN"
    assert frames.decode_request_header(Reader(frame, 4)).client_id is None


def test_every_truncated_header_is_a_decode_error() -> None:
    frame = frames.encode_request(1, "client", MetadataRequest(topics=None), 12)[4:]
    for size in range(len(frame)):
        reader = Reader(frame, 0, size)
        with pytest.raises(DecodeError):
            frames.decode_request(frames.decode_request_header(reader), reader)


@pytest.mark.parametrize("generation", [2**31, "1", None])
def test_a_value_that_does_not_fit_names_the_message(generation: Any) -> None:
    request = HeartbeatRequest(group_id="g", generation_id=generation, member_id="m")
    with pytest.raises(EncodeError, match="HeartbeatRequest v4"):
        frames.encode_request(1, None, request, 4)
