"""One client connection: bytes in, whole request frames to the router, responses out in order.

Rules
- One request at a time: frames that arrive meanwhile wait, first in `_backlog`, then in the socket; a long poll ends then. Responses
  therefore leave in the order of the requests, and a client that does not read its responses is not read from either.
- Frames are served where they were received. Small ones lie in the server's one receive buffer, which every connection
  fills and empties within a single callback; a larger one gets a buffer of its own size and is received straight
  into it, and so is the next one, which is taken to be of the same size. Handlers must copy what they keep past their return.
- A frame's buffer grows with what has arrived, not with what its size field claims. A large one is begun when the memory for
  all of it is free (`request_memory.py`); until then the connection is not read from.
- Whatever breaks the protocol closes the connection, with one line in the log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from fastq._native.produce_path import scan_request
from fastq._native.wire import DecodeError
from fastq.protocol.api import APIS

from .connection_states import (
    ANSWER,
    CLOSED,
    HALF_CLOSED,
    LARGE,
    MEMORY,
    NARROW,
    OPEN,
    OUTPUT,
    PAUSED,
    READING,
    SMALL,
    WIDE,
)
from .listeners import Accepted
from .log import failures
from .output import SocketWriter, TransportWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from .descriptors import DescriptorCount
    from .output import Part, Writer
    from .router import Deferred
    from .server import Server

CARRY_RECORDS = frozenset({0, 10000})
"""Produce, and MirrorAppend: of what is received nothing becomes larger than it is."""
LARGE_FRAME_BYTES = 32 << 10
"""After a frame of this size or more, the next read asks for as many bytes, into its buffer, or where that was given back for
HEAD_BYTES only: the next large frame is not copied."""
HEAD_BYTES = 512
WIDE_FRAME_BYTES = 256 << 10
"""For a connection that has sent a frame of this size the receive window is widened."""
FIRST_CAPACITY_BYTES = 128 << 10
"""The buffer of a connection's first large frame starts with this, and doubles as data arrives."""
SPARE_BYTES_MAX = 8 << 20
"""A frame buffer up to this size is kept for the connection's next large frame."""
OUTPUT_TURN_BYTES = 64 << 10
"""Responses of pipelined requests are collected up to this size and sent at once."""
SLOW_FRAME_TICKS = 30
SLOW_FRAME_BYTES_PER_TICK = 256
"""A frame that takes longer than SLOW_FRAME_TICKS seconds must arrive faster than this (slow loris)."""
SHORT_MEMORY_TICKS = 120
"""While others wait for request memory it must also arrive as fast as if it had this many seconds."""


class ProtocolViolation(Exception):
    """The peer does not speak the protocol as agreed; the connection is closed with this reason."""


def too_large(api_key: int, size: int, limit: int) -> ProtocolViolation:
    """The reason to refuse a request that is not Produce for its size."""
    name = APIS[api_key].name if api_key in APIS else f"api key {api_key}"
    return ProtocolViolation(
        f"a request of {size} bytes ({name}); other than Produce may have {limit} (non.produce.request.max.bytes)"
    )


class Connection(asyncio.BufferedProtocol, Accepted):
    """State of one connection. Loop thread only.

    Invariants (the states and what moves them are in `connection_states`):
    - `pending` is the request in progress that answers later; while `_waits` for it, for output or for memory, no request is served.
    - `_frame` is the buffer of an incomplete frame, with `_filled` bytes in it; `_wanted` is the frame's whole size, or
      4 while the size field itself is incomplete; between frames, the size of the last.
    - `_backlog` holds received bytes that follow the request in progress; reading is paused while it is not empty.
    - `_held` bytes of the request memory belong to `_frame` or `_spare`; while it waits for MEMORY, none do, `_backlog` starts
      with a large frame, and reading is paused.
    """

    __slots__ = (
        "_backlog",
        "_expects",
        "_filled",
        "_frame",
        "_frame_tick",
        "_frame_view",
        "_held",
        "_input",
        "_life",
        "_server",
        "_spare",
        "_transport",
        "_waits",
        "_wanted",
        "_window",
        "_writer",
        "active_tick",
        "client_id",
        "descriptors",
        "listener",
        "on_closed",
        "peer",
        "pending",
        "software",
        "state",
    )

    def __init__(self, server: Server, listener: str, descriptors: DescriptorCount) -> None:
        """`descriptors`: where its own was taken."""
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._writer: Writer | None = None
        self._frame: bytearray | None = None
        self._frame_view: memoryview | None = None
        self._filled = 0
        self._wanted = 0
        self._frame_tick = 0
        self._spare: bytearray | None = None
        self._held = 0
        self._backlog = bytearray()
        self._life = OPEN
        self._waits = 0
        self._input = READING
        self._expects = SMALL
        self._window = NARROW
        self.active_tick = server.tick
        self.pending: Deferred | None = None
        self.client_id: bytes | None = None
        self.listener = listener
        self.descriptors = descriptors
        self.peer: tuple[str, int] = ("", 0)
        self.software = ("", "")
        self.state: dict[str, Any] = {}
        self.on_closed: Callable[[], object] | None = None
        """Called once when it is closed."""

    # --- what the event loop calls ---

    @property
    def connected(self) -> bool:
        return self._transport is not None

    @property
    def open(self) -> bool:
        """Whether it is not being closed."""
        return self._life != CLOSED

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but ancestry
        self._transport = transport
        server = self._server
        peer = transport.get_extra_info("peername")
        self.peer = (peer[0], peer[1]) if isinstance(peer, tuple) else (str(peer or "unix"), 0)
        sock = transport.get_extra_info("socket")
        server.set_buffers(sock)
        if transport.get_extra_info("sslcontext") is None:
            descriptor = sock.fileno()
            self._writer = SocketWriter(
                server.loop, descriptor, server.read_ahead, self._drained, self._write_failed, self.descriptors
            )
        else:
            self._writer = TransportWriter(server.loop, transport, server.read_ahead, self._drained, self._write_failed)
        refusal = server.admit(self)
        if refusal is not None:
            self.fail(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._life = CLOSED
        if self._writer is not None:
            self._writer.close()
            self._writer = None  # they hold each other
        self._cancel_pending()
        self._frame = self._frame_view = None
        self._backlog = bytearray()
        self.drop_spare()
        self._release()
        self._server.memory.forget(self)
        self._server.forget(self)
        on_closed, self.on_closed = self.on_closed, None
        if on_closed is not None:
            on_closed()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            if not self._expects:
                return self._server.receive_view
            spare = self._spare
            return self._server.head_view if spare is None else memoryview(spare)[: self._wanted]
        if self._filled == len(self._frame):
            self._grow()
        assert self._frame_view is not None
        return self._frame_view[self._filled : self._wanted]

    def buffer_updated(self, nbytes: int) -> None:
        if self._life == CLOSED:
            return
        self.active_tick = self._server.tick
        try:
            if self._frame is None:
                spare = self._spare if self._expects else None
                if spare is None:
                    self._received(self._server.receive_buffer, nbytes)
                else:
                    self._received_into_spare(spare, nbytes)
            else:
                self._filled += nbytes
                if self._filled >= self._wanted:
                    self._frame_filled()
        except (DecodeError, ProtocolViolation) as error:
            self.fail(self._describe(error))

    def eof_received(self) -> bool:
        """The client will send no more: what it has asked for is still answered, but a wait for more ends.

        A client that has closed looks the same; it is noticed when the answer is sent.
        """
        if self._life == OPEN:
            self._life = HALF_CLOSED
        if self.pending is not None:
            self.pending.hurry()
        return bool(self._waits or self._backlog)

    def pause_writing(self) -> None:
        if isinstance(self._writer, TransportWriter):
            self._writer.paused()

    def resume_writing(self) -> None:
        if isinstance(self._writer, TransportWriter):
            self._writer.resumed()

    # --- frames in ---

    def _received_into_spare(self, spare: bytearray, end: int) -> None:
        """A piece of a large frame that fits stays where it is; whatever else has come is served from there."""
        wanted = 4 + int.from_bytes(spare[:4], "big") if end >= 4 else 0
        if max(end, LARGE_FRAME_BYTES) < wanted <= len(spare) and not self._waits:
            self._begin_frame(memoryview(spare)[:end], in_place=True)
        else:
            self._received(spare, end)

    def _received(self, buffer: bytearray, end: int) -> None:
        """Serve the frames in a buffer and keep what is left: a piece of a frame, or a backlog."""
        waits = self._waits
        if self._expects and not waits and end >= 4:
            wanted = 4 + int.from_bytes(buffer[:4], "big")
            if max(end, LARGE_FRAME_BYTES) < wanted <= self._server.request_bytes_max:  # as expected
                self._begin_frame(memoryview(buffer)[:end])
                return
        position = 0 if waits else self._serve(buffer, 0, end)
        if position == end or self._life == CLOSED:
            return
        if self._waits:
            # A fresh one: views of the old may be about.
            self._backlog = self._backlog + memoryview(buffer)[position:end]
            self._pause()
            if self.pending is not None:
                self.pending.hurry()  # who asks for more does not want to wait for what is not there
        else:
            self._begin_frame(memoryview(buffer)[position:end])

    def _begin_frame(self, piece: memoryview, *, in_place: bool = False) -> None:
        """Give an incomplete frame a buffer of its own. Its size field, if it is there, has been checked.

        `in_place`: the piece lies at the start of the spare buffer, which is large enough.
        """
        size = len(piece)
        self._wanted = 4 + int.from_bytes(piece[:4], "big") if size >= 4 else 4
        if self._wanted >= LARGE_FRAME_BYTES:
            self._check_size(piece)
        spare = self._spare
        if spare is not None and len(spare) >= self._wanted and self._wanted >= LARGE_FRAME_BYTES:
            self._spare = None
            self._server.memory.spares.discard(self)
        else:
            proven = 0 if spare is None else len(spare)  # the connection has sent a frame of that size
            if self._wanted >= LARGE_FRAME_BYTES and not self._take_memory():
                self._waits = MEMORY
                self._backlog = bytearray(piece)
                self._pause()
                return
            spare = bytearray(min(self._wanted, max(FIRST_CAPACITY_BYTES, 2 * size, proven)))
        self._frame = spare
        self._frame_view = memoryview(spare)
        if not in_place:
            self._frame_view[:size] = piece
        self._filled = size
        self._frame_tick = self._server.tick
        if self._wanted < LARGE_FRAME_BYTES:
            self._expects = SMALL

    def _check_size(self, piece: memoryview) -> None:
        """Refuse a large request early: what is not Produce becomes many times its size in objects."""
        limit = self._server.limits.non_produce_request_bytes_max
        if self._wanted - 4 > limit and len(piece) >= 6:
            api_key = int.from_bytes(piece[4:6], "big", signed=True)
            if api_key not in CARRY_RECORDS:
                raise too_large(api_key, self._wanted - 4, limit)

    def _take_memory(self) -> bool:
        """Hold the wanted frame's bytes; False when that has to wait."""
        if self._held >= self._wanted and self._spare is None:
            return True  # granted after a wait
        self.drop_spare()
        self._release()
        if not self._server.memory.take(self, self._wanted):
            return False
        self._held = self._wanted
        return True

    def memory_granted(self) -> None:
        """The frame that waited is let in."""
        self._waits = 0
        self._held = self._wanted
        self._go_on()
        if self._frame is None:  # it has ended in another way
            self._release()

    def drop_spare(self) -> None:
        """Give the kept buffer back."""
        if self._spare is not None:
            self._spare = None
            self._server.memory.spares.discard(self)
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._server.memory.release(held)

    def _grow(self) -> None:
        """Double the frame's buffer: the data so far justifies it."""
        assert self._frame is not None and self._frame_view is not None
        grown = bytearray(min(self._wanted, 2 * len(self._frame)))
        grown[: self._filled] = self._frame_view[: self._filled]
        self._frame = grown
        self._frame_view = memoryview(grown)

    def _frame_filled(self) -> None:
        """The wanted bytes are there: the size field of a frame, or all of it."""
        frame, filled = self._frame, self._filled
        assert frame is not None
        self._frame = self._frame_view = None
        if self._waits:
            self._backlog = bytearray(memoryview(frame)[:filled])
            self._release()
            self._pause()
            return
        position = self._serve(frame, 0, filled)
        if self._life == CLOSED:
            return  # what is held is released when the connection is lost
        if position < filled:
            self._begin_frame(memoryview(frame)[position:filled])
        elif filled >= LARGE_FRAME_BYTES:
            self._expects = LARGE
            if filled >= WIDE_FRAME_BYTES and not self._window and self._transport is not None:
                self._window = WIDE
                self._server.widen(self._transport.get_extra_info("socket"))
            memory = self._server.memory
            if len(frame) <= SPARE_BYTES_MAX and not memory.short:
                self._spare = frame
                memory.spares.add(self)
            else:
                self._release()

    def _serve(self, buffer: bytearray, position: int, end: int) -> int:
        """Serve whole frames from `position` on; answer where the first unserved byte lies."""
        server = self._server
        dispatch = server.router.dispatch
        responses: list[Part] = []
        size = 0
        violation: Exception | None = None
        while True:
            try:
                request = scan_request(buffer, position, end, server.flexible_versions, server.request_bytes_max)
                if request is None:
                    break
                position = request[5]
                response = dispatch(self, buffer, request)
            except (DecodeError, ProtocolViolation) as error:
                violation = error  # the requests before it are still answered
                break
            if isinstance(response, bytes):
                responses.append(response)
                size += len(response)
                if size < OUTPUT_TURN_BYTES:
                    continue
                break
            if response is None:
                continue
            if isinstance(response, list):
                responses += response
            elif not response.answered:
                response.attached = True
                self.pending = response
                self._waits |= ANSWER
            elif response.answer is None:
                continue
            else:
                responses += [response.answer] if isinstance(response.answer, bytes) else response.answer
            break
        if responses and not self._writer.send(responses):  # type: ignore[union-attr]
            self._waits |= OUTPUT
        if violation is not None:
            try:
                raise violation
            finally:
                violation = None  # its traceback holds this frame
        if position < end and request is not None and not self._waits:
            self._waits = OUTPUT  # a turn's worth of output: the frames that wait are served in the next one
            server.loop.call_soon(self._drained)
        return position

    # --- responses out ---

    def complete(self, deferred: Deferred, response: bytes | list[Part] | None) -> None:
        """Send the response of the pending request and go on with what has arrived meanwhile."""
        if self.pending is not deferred:
            return  # the connection was lost or refused meanwhile
        self.pending = None
        self.active_tick = self._server.tick  # it was this side that took its time
        self._waits &= ~ANSWER
        if response is not None and self._writer is not None:
            parts: list[Part] = [response] if isinstance(response, bytes) else response
            if not self._writer.send(parts):
                self._waits |= OUTPUT
                return
        self._go_on()

    def _drained(self) -> None:
        self.active_tick = self._server.tick
        self._waits &= ~OUTPUT
        self._go_on()

    def _go_on(self) -> None:
        """Serve the backlog, then read again. What fails inside ends the connection, as where it is called by the transport: a request
        that is taken out of the backlog is answered by nobody else."""
        try:
            self._serve_backlog()
        except (DecodeError, ProtocolViolation) as error:
            self.fail(self._describe(error))
        except Exception as error:
            failures.report("serving what waited on a connection", error)
            self.fail(f"the broker failed: {error!r}")

    def _serve_backlog(self) -> None:
        if self._waits or self._life == CLOSED:
            return
        backlog = self._backlog
        if backlog:
            self._backlog = bytearray()
            position = self._serve(backlog, 0, len(backlog))
            if self._life == CLOSED:
                return
            if self._waits:
                self._backlog = backlog[position:]
                return
            if position < len(backlog):
                self._begin_frame(memoryview(backlog)[position:])
            if self._waits:
                return
        if self._life == HALF_CLOSED or self._server.stopping:
            self.close()
        elif self._input and self._transport is not None:
            self._input = READING
            self._transport.resume_reading()

    def _pause(self) -> None:
        if not self._input and self._transport is not None and self._life == OPEN:
            self._input = PAUSED
            self._transport.pause_reading()

    def _write_failed(self, error: Exception) -> None:
        """The other side is gone, a segment file cannot be read (then the log has said so), or there is no memory: drop the connection."""
        try:
            if not isinstance(error, (BrokenPipeError, ConnectionError)):
                self._server.report_bad(self, f"cannot send: {error if isinstance(error, OSError) else repr(error)}")
        finally:
            self.abort()

    # --- ends ---

    def close(self) -> None:
        """Close in good order; what was sent still arrives."""
        self._life = CLOSED
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once. The request in progress is cancelled here: its answer must not meet a descriptor that is another's."""
        self._life = CLOSED
        self._cancel_pending()
        if self._writer is not None:
            self._writer.close()
        if self._transport is not None:
            self._transport.abort()

    def _cancel_pending(self) -> None:
        pending, self.pending = self.pending, None
        self._waits &= ~ANSWER
        if pending is not None:
            failures.attempt("ending a request whose connection is gone", pending.cancel)

    def fail(self, reason: str) -> None:
        """Close because of what the peer did, with one line in the log."""
        if self._life != CLOSED:
            try:
                self._server.report_bad(self, reason)
            finally:
                self.abort()

    def stop(self) -> None:
        """Begin a graceful end: no more is read, the request in progress is answered, then the connection closes."""
        self._pause()
        self._backlog = bytearray()
        if self._waits in (0, MEMORY):
            self.close()

    def check_idle(self, tick: int, idle_ticks_max: int) -> None:
        """Called about once a second: end idle and trickling connections, give back a spare buffer."""
        if self._life == CLOSED:
            return
        if self._waits & OUTPUT and self._writer is not None and self._writer.has_moved():
            self.active_tick = tick  # who reads slowly is at work, as with Apache Kafka
        idle = tick - self.active_tick
        if idle in (idle_ticks_max // 2, idle_ticks_max) and not self._waits & OUTPUT and self._writer is not None:
            # TLS may hold the end of an answer still. To ask each second is dear: asked twice, it tells what has moved in between.
            moved = self._writer.has_moved()
            if moved and idle == idle_ticks_max:
                self.active_tick, idle = tick, 0
        if idle >= 2:
            self.drop_spare()
        if self._frame is not None:
            age = tick - self._frame_tick
            pace = SLOW_FRAME_BYTES_PER_TICK
            others = ""
            if self._server.memory.short:
                pace = max(pace, self._wanted // SHORT_MEMORY_TICKS)
                others = ", while others wait for memory (queued.max.request.bytes)"
            if age > SLOW_FRAME_TICKS and self._filled < age * pace:
                self.fail(f"{self._filled} of {self._wanted} bytes of a request in {age} s: too slow{others}")
                return
        if idle > idle_ticks_max and not self._waits & (ANSWER | MEMORY):
            if self._waits or self._frame is not None:
                self.fail(f"idle for {idle} s in the middle of a request or response")
            else:
                self.close()

    def _describe(self, error: Exception) -> str:
        """The reason for the log; what is plainly another protocol is named."""
        if not isinstance(error, DecodeError) or self._expects:  # that one has sent whole requests
            return str(error)
        source = self._server.receive_buffer if self._frame is None else self._frame
        start = bytes(source[:5])
        if start[:2] == b"\x16\x03":
            return "a TLS hello on a plain listener; the client wants security.protocol=PLAINTEXT"
        if start[:4] in _HTTP_STARTS:
            return "an HTTP request on a Kafka listener"
        return str(error)


_HTTP_STARTS = frozenset(
    {b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ", b"HTTP"}
)
