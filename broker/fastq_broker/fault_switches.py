"""Faults on demand, for tests of clients: the next requests of an API fail, wait, are cut off or are throttled.

Rules
- Nothing of this runs unless a switch is set: then `FaultyRouter` takes the router's place, and goes when all are used up and
  no throttled connection is muted any more.
- Switches of an API are used in the order in which they were set, one a request; each for its number of times, None for good.
- Of error responses (`error_responses.py`): APIs that only read are served, and their answer's error codes are
  overwritten; of others nothing is done, and each item of the request gets an answer with the code.
- They are driven through a socket that the process inherits from whoever started it (`--control-fd`): one JSON object a line
  in, one out. When the other end closes, the broker stops: a test that dies leaves no broker behind.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastq._native.wire import DecodeError, Reader
from fastq.errors import ErrorCode
from fastq.protocol.api import APIS
from fastq.protocol.frames import decode_body, decode_response, encode_response
from fastq.protocol.message import Message, Struct

from .connection import Connection, ProtocolViolation
from .error_responses import encode_error, error_response
from .router import Deferred, Router

if TYPE_CHECKING:
    from .broker import Broker
    from .output import Part
    from .router import Header, Result

logger = logging.getLogger(__name__)

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
READING = frozenset({"Metadata", "FindCoordinator", "OffsetFetch", "OffsetForLeaderEpoch", "ConsumerGroupDescribe"})
LINE_BYTES_MAX = 64 << 10


@dataclass(slots=True)
class Switch:
    """One fault: `kind` is fail (with `code`), delay, throttle (with `seconds`) or disconnect; `left` requests, None: all."""

    kind: str
    left: int | None
    code: int = 0
    seconds: float = 0.0


class FaultyRouter(Router):
    """The router while switches are set. Loop thread only. Invariant: no queue in `switches` is empty.

    `muted` are connections that were throttled, and when (on the loop's clock) they are heard again.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.broker = broker
        self.switches: dict[int, deque[Switch]] = {}
        self.muted: dict[Connection, float] = {}

    def add(self, api_key: int, switch: Switch) -> None:
        """Set a switch, and take the router's place."""
        self.switches.setdefault(api_key, deque()).append(switch)
        self.broker.server.router = self

    def clear(self) -> None:
        """Forget all switches and mutings, and give the place back."""
        self.switches.clear()
        self.muted.clear()
        self._leave()

    def _leave(self) -> None:
        if not self.switches and not self.muted:
            self.broker.server.router = self.broker.router

    def dispatch(self, connection: Connection, buffer: bytearray, header: Header) -> Result:
        if connection in self.muted:
            left_s = self.muted[connection] - self.broker.loop.time()
            if left_s > 0:
                return self._delay(connection, buffer, header, left_s, self.dispatch)
            self._unmute(connection)
        switch = self._take(header)
        if switch is None:
            return self.broker.router.dispatch(connection, buffer, header)
        if switch.kind == "disconnect":
            raise ProtocolViolation(f"a fault switch cuts off {APIS[header[0]].name}")
        if switch.kind == "delay":
            return self._delay(connection, buffer, header, switch.seconds, self.broker.router.dispatch)
        if switch.kind == "throttle":
            return self._throttle(connection, buffer, header, round(switch.seconds * 1000))
        return self._fail(connection, buffer, header, switch.code)

    def _take(self, header: Header) -> Switch | None:
        """The switch that this request uses; one that the broker refuses anyway uses none."""
        queue = self.switches.get(header[0])
        route = self.route(header[0])
        if queue is None or route is None or not route.versions[0] <= header[1] <= route.versions[1]:
            return None
        switch = queue[0]
        if switch.left is not None:
            switch.left -= 1
            if switch.left <= 0:
                queue.popleft()
                if not queue:
                    del self.switches[header[0]]
                self._leave()
        return switch

    # --- what a request meets ---

    def _delay(
        self,
        connection: Connection,
        buffer: bytearray,
        header: Header,
        seconds: float,
        dispatch: Callable[[Connection, bytearray, Header], Result],
    ) -> Result:
        """Serve the request later, from a copy: the buffer is used again meanwhile. What follows it waits too."""
        body = bytearray(memoryview(buffer)[header[4] : header[5]])
        moved = (*header[:4], 0, len(body))
        outer = Deferred(connection)

        def serve() -> None:
            try:
                result = dispatch(connection, body, moved)
            except (DecodeError, ProtocolViolation) as error:
                outer.refuse(str(error))
            else:
                _relay(result, outer, lambda answer: answer)

        outer.on_cancel = self.broker.loop.call_later(seconds, serve).cancel
        return outer

    def _throttle(self, connection: Connection, buffer: bytearray, header: Header, throttle_ms: int) -> Result:
        """The real answer with a throttle time; of Fetch an empty one, as a broker answers whose quota is used up.

        From then on the connection is not heard for that time (KIP-219).
        """
        if header[0] == FETCH:
            empty: Any = APIS[FETCH].response_class()()
            empty.throttle_time_ms = throttle_ms
            self._mute(connection, throttle_ms)
            return encode_response(header[2], empty, header[1])

        def change(frame: bytes) -> bytes:
            self._mute(connection, throttle_ms)
            response: Any = _decode(frame, header)
            if "throttle_time_ms" in response.__slots__:
                response.throttle_time_ms = throttle_ms
            return encode_response(header[2], response, header[1])

        return _changed(connection, self.broker.router.dispatch(connection, buffer, header), change)

    def _mute(self, connection: Connection, throttle_ms: int) -> None:
        """Hear nothing of the connection until the throttle time is over."""
        self.muted[connection] = self.broker.loop.time() + throttle_ms / 1000
        self.broker.server.router = self
        self.broker.loop.call_later(throttle_ms / 1000, self._unmute, connection)

    def _unmute(self, connection: Connection) -> None:
        """The end of a muting, unless a later one goes on."""
        if self.muted.get(connection, 0.0) <= self.broker.loop.time():
            self.muted.pop(connection, None)
            self._leave()

    def _fail(self, connection: Connection, buffer: bytearray, header: Header, code: int) -> Result:
        info = APIS[header[0]]
        if info.name.startswith(("Describe", "List")) or info.name in READING:

            def change(frame: bytes) -> bytes:
                response = _decode(frame, header)
                _overwrite(response, code)
                return encode_error(header[2], response, header[1])

            return _changed(connection, self.broker.router.dispatch(connection, buffer, header), change)
        request: Any = decode_body(info.request_class(), Reader(buffer, header[4], header[5]), header[1], exact=False)
        if header[0] == PRODUCE and request.acks == 0:
            return None
        if header[0] == FETCH and request.session_id:
            self._spell_out(request)
        response: Any = error_response(request, code)
        if header[0] == FETCH:
            response.session_id = 0  # the client begins a new one
            if not _is_session_error(code):
                response.error_code = 0  # it belongs to the partitions
        return encode_error(header[2], response, header[1])

    def _spell_out(self, request: Any) -> None:
        """Give an incremental Fetch the partitions that its session stands for."""
        session = self.broker.fetch_sessions.sessions.get(request.session_id)
        topics: dict[bytes, list[int]] = {}
        for topic, partition in session.partitions if session is not None else ():
            topics.setdefault(topic, []).append(partition)
        by_id = session is not None and session.uses_topic_ids
        request.topics = [
            request.FetchTopic(
                **({"topic_id": topic} if by_id else {"topic": bytes(topic).decode()}),
                partitions=[request.FetchPartition(partition=number) for number in numbers],
            )
            for topic, numbers in topics.items()
        ]


# --- answers under way ---


class _Relay:
    """Stands for the connection of an answer that comes later, and hands it to the answer that the connection waits for."""

    def __init__(self, outer: Deferred, change: Callable[[bytes], bytes]) -> None:
        self._outer, self._change = outer, change

    def complete(self, _deferred: Deferred, response: bytes | list[Part] | None) -> None:
        self._outer.complete(_apply(response, self._change))

    def fail(self, reason: str) -> None:
        self._outer.refuse(reason)


def _apply(response: bytes | list[Part] | None, change: Callable[[bytes], bytes]) -> bytes | list[Part] | None:
    return change(response) if isinstance(response, bytes) else response


def _relay(result: Result, outer: Deferred, change: Callable[[bytes], bytes]) -> None:
    """Complete `outer` with what a handler answered, or will answer."""
    if not isinstance(result, Deferred):
        outer.complete(_apply(result, change))
    elif result.answered:
        outer.complete(_apply(result.answer, change))
    else:
        result.hand_over(_Relay(outer, change))
        outer.on_cancel, outer.on_hurry = result.cancel, result.hurry


def _changed(connection: Connection, result: Result, change: Callable[[bytes], bytes]) -> Result:
    """The same answer, changed once it is there."""
    if isinstance(result, Deferred):
        outer = Deferred(connection)
        _relay(result, outer, change)
        return outer
    return _apply(result, change)


# --- answers that are changed ---


def _is_session_error(code: int) -> bool:
    return ErrorCode(code).name.startswith(("FETCH_SESSION", "INVALID_FETCH_SESSION"))


def _decode(frame: bytes, header: Header) -> Message:
    return decode_response(memoryview(frame)[4:], header[0], header[1])[1]


def _overwrite(struct: Struct, code: int) -> None:
    """Set every error code in a message."""
    for name in struct.__slots__:
        value = getattr(struct, name)
        if name.endswith("error_code"):
            setattr(struct, name, code)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Struct):
                    _overwrite(item, code)


# --- the control channel ---


class FaultControl:
    """Reads commands from a socket and answers each. Loop thread only."""

    def __init__(self, broker: Broker, descriptor: int) -> None:
        self._broker = broker
        self._router = FaultyRouter(broker)
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._input = bytearray()
        broker.loop.add_reader(self._socket, self.readable)

    def readable(self) -> None:
        """Take in what is there; a closed channel ends the broker."""
        try:
            data = self._socket.recv(LINE_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._input) > LINE_BYTES_MAX:
            self._broker.loop.remove_reader(self._socket)
            logger.info("whoever started this broker is gone: stopping")
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._input += data
        while (end := self._input.find(b"\n")) >= 0:
            line = bytes(self._input[:end])
            del self._input[: end + 1]
            self._socket.sendall(json.dumps(self._answer(line)).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, object]:
        """The answer, with its command's number: whoever has given that command up does not take it for another one's."""
        number = None
        try:
            command = json.loads(line)
            number = command.pop("number")
            return {"number": number, "result": self._perform(command)}
        except Exception as error:
            return {"number": number, "error": str(error)}

    def _perform(self, command: dict[str, Any]) -> object:
        do = command.pop("do")
        if do == "clear":
            self._router.clear()
            return None
        if do == "left":
            return {
                APIS[key].name: [[switch.kind, switch.left] for switch in queue]
                for key, queue in self._router.switches.items()
            }
        if do == "change_leader":
            return self._broker.controller.bump_leader_epoch(command["topic"], command["partition"])
        self._router.add(command.pop("api"), Switch(kind=do, **command))
        return None
