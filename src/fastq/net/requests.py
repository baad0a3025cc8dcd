"""Requests as bytes: those of the generated messages and those that are bytes already, and the answers to both.

Rule of this file: what is known of versions stays here; `_native/requests` makes and reads the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fastq._native.requests import EncodedRequest, PendingRequest, frame_request, response_start
from fastq._native.wire import Reader, Writer
from fastq.errors import ErrorCode
from fastq.protocol.api import APIS, ApiKey
from fastq.protocol.frames import decode_body
from fastq.protocol.message import Message

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fastq.errors import FastqError

__all__ = [
    "Done",
    "EncodedRequest",
    "HeaderEncoder",
    "PendingRequest",
    "VersionedRequest",
    "decode_response",
    "with_quota",
]

_UNSUPPORTED_VERSION = int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")
_NEVER_FLEXIBLE = 255

Done: TypeAlias = "Callable[[Any, FastqError | None], object]"
"""Called once, with the response and None, or with None and the error. (None, None) for a request without a
response.
"""


def _first_flexible() -> bytes:
    """By API key, the first version whose headers have tagged fields."""
    table = bytearray([_NEVER_FLEXIBLE]) * (max(APIS) + 1)
    for key, info in APIS.items():
        table[key] = min(info.flexible_version, _NEVER_FLEXIBLE)
    return bytes(table)


_REQUESTS_FLEXIBLE = _first_flexible()
# The header of an ApiVersions response never is: its reader does not know the version yet (KIP-511).
_RESPONSES_FLEXIBLE = bytes(
    _NEVER_FLEXIBLE if key == ApiKey.API_VERSIONS else first for key, first in enumerate(_REQUESTS_FLEXIBLE)
)


class VersionedRequest:
    """A request whose fields depend on the version that the broker speaks: made by `build(version)` when it is sent."""

    __slots__ = ("API_KEY", "build")

    def __init__(self, api_key: int, build: Callable[[int], Message]) -> None:
        self.API_KEY = api_key
        self.build = build


class HeaderEncoder:
    """Makes the frames of requests for one client id."""

    __slots__ = ("_client_id",)

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id.encode()[:32767]

    def frame(self, pending: PendingRequest) -> tuple[list[Buffer], int]:
        """The whole request, as buffers to write in order, and their size in bytes."""
        request, version = pending.request, pending.version
        buffers: Sequence[Buffer]
        if type(request) is EncodedRequest:
            buffers = request.buffers
        else:
            if isinstance(request, VersionedRequest):
                request = request.build(version)
            writer = Writer(keep_large=True)
            request.encode(writer, version)
            buffers = writer.buffers()
        return frame_request(
            pending.api_key, version, pending.correlation_id, self._client_id, _REQUESTS_FLEXIBLE, buffers
        )


def decode_response(pending: PendingRequest, frame: memoryview) -> Any:
    """The response in `frame` (without its size). Raises DecodeError, also for another correlation id than the request's."""
    request, api_key, version = pending.request, pending.api_key, pending.version
    start = response_start(frame, pending.correlation_id, api_key, version, _RESPONSES_FLEXIBLE)
    if type(request) is EncodedRequest:
        return request.decode(frame[start:])
    if api_key == ApiKey.API_VERSIONS and frame[start : start + 2] == _UNSUPPORTED_VERSION:
        # A broker that does not know the request's version answers in version 0 (KIP-511).
        version = 0
    return decode_body(APIS[api_key].response_class(), Reader(frame, start), version)


def with_quota(pending: PendingRequest, throttle: Callable[[float], object]) -> PendingRequest:
    """The same request, whose answer calls `throttle` with the seconds that a quota keeps its broker from being asked for, if one does."""
    on_done = pending.on_done

    def answered(response: Any, error: FastqError | None) -> None:
        if error is None and (throttle_ms := getattr(response, "throttle_time_ms", 0)) > 0:
            throttle(throttle_ms / 1000)
        on_done(response, error)

    return PendingRequest(pending.request, answered, pending.deadline, pending.versions, True)
