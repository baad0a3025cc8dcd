"""What the fetcher asks of its driver: requests to send, and who is told of the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastq.errors import FastqError
from fastq.protocol.message import Message
from fastq.values import NamedTuple

Answered = Callable[[Any, "FastqError | None", float], None]


class Outgoing(NamedTuple):
    """One request. The version is the driver's to negotiate, within the message's and `versions`: `build(version)` makes the
    message, or, where there is a `decode`, perhaps its bytes; `decode(body, version)` reads the answer (None: the generated decoder
    does), `done(response, error, now)` is called once. timeout_s: None for request_timeout_ms.
    """

    node_id: int
    api_key: int
    build: Callable[[int], Message | bytes]
    decode: Callable[[memoryview, int], Any] | None
    done: Answered
    timeout_s: float | None = None
    versions: tuple[int, int] | None = None
