"""What a connection has to send: bytes and slices of segment files, in order, without copying the files' bytes.

Rules
- A part is bytes-like or a FileSlice. Parts of one response are queued together, so responses never interleave.
- Nothing here blocks the event loop: sockets are non-blocking, and a file range is sent only when its pages are in
  memory. A range that is not is read ahead by a small thread pool first, and the connection waits for that alone. What cannot be read
  ends it; what has been read and is gone again, as memory is short, is sent all the same, a little at a time: so each moves on.
- One turn sends at most TURN_BYTES, so that one fast reader does not starve the other connections.
- Memory is bounded by the caller: it serves no further request until the queue is empty (`on_drained`).
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from fastq.net.tcp_info import acknowledged_bytes

from .log.files import bring_in, is_absent
from .log.tell_loop import tell_loop
from .surroundings import start_threads

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor
    from typing import TypeAlias

    from .descriptors import DescriptorCount

T = TypeVar("T")

TURN_BYTES = 256 << 10
"""Bytes that one connection sends before others get their turn. A reader on the sender's core takes it over for each piece that it
reads: 2 MiB at once kept the loop for up to 10 ms. Smaller turns cost no more, as far as can be measured."""
SMALL_SLICE_BYTES = 16 << 10
"""Slices up to this size are read and sent together with what surrounds them: one system call instead of three."""
READ_AHEAD_BYTES = 4 << 20
"""What a reader thread brings into memory at a time."""
PROBE_STEP_BYTES = 128 << 10
"""Distance of the pages that are probed: the kernel's usual read-ahead window. Also what is sent at a time while memory is short."""
GATHER_BYTES = 64 << 10
"""Bytes that are joined into one send."""
TLS_CHUNK_BYTES = 256 << 10

READERS = 2
POLL_S = 0.02
"""How often a full socket is looked at that cannot be watched."""

_MSG_MORE = getattr(socket, "MSG_MORE", 0)
_RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class FileSlice(Protocol):
    """A range of an open file; the file stays open for as long as the slice is referenced."""

    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def fd(self) -> int: ...


Part: TypeAlias = "bytes | bytearray | memoryview | FileSlice"


class ReadAhead:
    """The threads that wait for the disk, so that the loop need not. Started at the first cold read; loop thread only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, threads: Callable[[int, str], Executor] = start_threads
    ) -> None:
        self._loop = loop
        self._threads = threads
        self._pool: Executor | None = None
        self.cold_reads = 0

    def run(self, work: Callable[[], object], done: Callable[[], None]) -> None:
        """Run `work` in a thread, then `done` in the loop, whether it raised or not."""
        if self._pool is None:
            self._pool = self._threads(READERS, "fastq-read-ahead")
        self.cold_reads += 1
        untaken = [work]

        def once(tell: Callable[[Callable[[], None]], object]) -> None:
            try:
                mine = untaken.pop()
            except IndexError:
                return  # it was done in the loop
            try:
                mine()
            finally:
                tell(done)

        try:
            self._pool.submit(once, partial(tell_loop, self._loop))
        except (RuntimeError, MemoryError):  # no thread can be started: then the loop waits for the disk
            once(self._loop.call_soon)

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and await its result."""
        results: list[T] = []
        errors: list[BaseException] = []
        ended = self._loop.create_future()

        def guarded() -> None:
            try:
                results.append(work())
            except Exception as error:
                errors.append(error)

        self.run(guarded, lambda: None if ended.done() else ended.set_result(None))
        await ended
        if errors:
            try:
                raise errors[0]
            finally:
                errors.clear()  # its traceback holds this frame
        return results[0]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _read_through(piece: FileSlice, position: int, size: int, problems: list[OSError]) -> None:
    """Touch a file range, and note what keeps it from being read."""
    try:
        bring_in(piece.fd, position, size)
    except OSError as error:
        reason = f"bytes {position} to {position + size} of {piece!r} cannot be read: {error.strerror}"
        problems.append(OSError(error.errno, reason))


def is_cached(descriptor: int, position: int, size: int) -> bool:
    """Whether a file range is in the page cache, and has been read: that is judged by its ends and a page in every PROBE_STEP_BYTES.

    True where the system cannot tell (no RWF_NOWAIT): then a cold range is simply read. Where it can tell of what is not there at all, no
    page is probed: that would have the kernel begin to read it, for which the loop waited up to 26 ms while memory was short.
    """
    if is_absent(descriptor, position, size) and position + size <= os.fstat(descriptor).st_size:
        return False  # of a file that was cut since, no reading brings the rest: sending says so
    if not _RWF_NOWAIT:
        return True
    one = (bytearray(1),)
    try:
        for probe in range(position, position + size, PROBE_STEP_BYTES):
            os.preadv(descriptor, one, probe, _RWF_NOWAIT)
        os.preadv(descriptor, one, position + size - 1, _RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without RWF_NOWAIT
    return True


class Writer(Protocol):
    """What a connection sends through: to its socket, or to a TLS transport."""

    def send(self, parts: list[Part]) -> bool: ...
    def has_moved(self) -> bool: ...
    def close(self) -> None: ...


class _QueuedWriter:
    """The queue that both writers share.

    Invariants: `_queue` is empty exactly when nothing is unsent; `_sent` bytes of its first part are gone already, and
    `_moved` is whether any went since `has_moved` was asked;
    its first `_cached` bytes were found in memory (a probe costs as much as sending some ten kilobytes: one a window);
    while `_warming` a reader thread fetches the first part and nothing is sent; once it is `_warmed`, what comes next of that part is sent
    wherever it is; `_window` of it is looked at, and fetched, at a time. Loop thread only.
    """

    __slots__ = (
        "_cached",
        "_closed",
        "_moved",
        "_on_drained",
        "_on_error",
        "_queue",
        "_read_ahead",
        "_sent",
        "_warmed",
        "_warming",
        "_window",
    )

    def __init__(
        self, read_ahead: ReadAhead, on_drained: Callable[[], None], on_error: Callable[[Exception], None]
    ) -> None:
        self._queue: deque[Part] = deque()
        self._sent = 0
        self._cached = 0
        self._moved = False
        self._warming = False
        self._warmed = False
        self._window = READ_AHEAD_BYTES
        self._closed = False
        self._read_ahead = read_ahead
        self._on_drained = on_drained
        self._on_error = on_error

    def send(self, parts: list[Part]) -> bool:
        """Send or queue the parts; True when everything has gone to the kernel (or to TLS), or nothing goes anywhere any more."""
        if self._closed:
            return True
        try:
            self._queue.extend(parts)
        except MemoryError as error:  # some of them may be in it
            self._fail(error)
            return True
        if len(self._queue) == len(parts):
            self._advance()
        return not self._queue

    def has_moved(self) -> bool:
        """Whether any of what waits has been taken since this was asked last: the other side reads, however slowly."""
        moved, self._moved = self._moved, False
        return moved

    def close(self) -> None:
        """Drop what is unsent, and the files it holds open."""
        self._closed = True
        self._queue.clear()

    def _advance(self) -> None:
        """Send until the queue is empty or the other side is full; report an error once."""
        try:
            try:
                self._send_queued()
            except BlockingIOError:
                self._wait_writable()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Send nothing more: an answer without what could not be sent, for want of memory too, would be taken for a whole one."""
        self._queue.clear()
        self._on_error(error)

    def _continue(self) -> None:
        """Go on after a wait, and tell the connection when all is out."""
        if self._closed or self._warming or not self._queue:
            return
        self._advance()
        if not self._queue and not self._closed:
            self._on_drained()

    def _warm(self, piece: FileSlice) -> None:
        self._warming = True
        position = piece.position + self._sent
        size = min(self._window, piece.size - self._sent)
        problems: list[OSError] = []
        self._read_ahead.run(partial(_read_through, piece, position, size, problems), partial(self._go_on, problems))

    def _go_on(self, problems: list[OSError]) -> None:
        self._warming = False
        if problems and not self._closed:
            self._fail(problems[0])
            return
        self._warmed = True
        self._continue()

    def _read(self, piece: FileSlice, offset: int, size: int) -> bytes | None:
        """Bytes of the first part; None when a thread is to read them first."""
        data = read_if_cached(piece, offset, size)
        if data is None and self._warmed:
            data = _read_now(piece, offset, size)
        self._warmed = False
        return data

    def _part_done(self) -> None:
        self._queue.popleft()
        self._sent = 0
        self._cached = 0
        self._warmed = False
        self._window = READ_AHEAD_BYTES

    def _send_queued(self) -> None:
        raise NotImplementedError

    def _wait_writable(self) -> None:
        raise NotImplementedError


class SocketWriter(_QueuedWriter):
    """Sends to a plain socket: `send` for bytes, `sendfile` for slices.

    The transport's own write buffer stays empty, because only this object writes. The descriptor is duplicated when a
    file is first sent or the socket is first full, as event loops refuse to watch a descriptor that a transport owns. Where
    none is left for that, the transport's own is written to, and a full socket is tried again every POLL_S.
    """

    __slots__ = ("_descriptor", "_descriptors", "_loop", "_poll", "_socket", "_watching")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        read_ahead: ReadAhead,
        on_drained: Callable[[], None],
        on_error: Callable[[Exception], None],
        descriptors: DescriptorCount,
    ) -> None:
        super().__init__(read_ahead, on_drained, on_error)
        self._loop = loop
        self._descriptor = descriptor
        self._descriptors = descriptors
        self._socket: socket.socket | None = None
        self._watching = False
        self._poll: asyncio.TimerHandle | None = None

    def send(self, parts: list[Part]) -> bool:
        """Send or queue the parts; the one small response of a hot request takes the short way."""
        if len(parts) == 1 and not self._queue:
            data = parts[0]
            if type(data) is bytes and not self._closed:
                try:
                    try:
                        sent = os.write(self._descriptor, data)
                    except BlockingIOError:
                        sent = 0
                    if sent == len(data):
                        return True
                    self._queue.append(data)
                    self._sent = sent
                    self._wait_writable()
                except Exception as error:
                    self._fail(error)
                return not self._queue
        return super().send(parts)

    def close(self) -> None:
        super().close()
        if self._poll is not None:
            self._poll.cancel()
        if self._socket is not None:
            self._stop_watching()
            self._socket.close()
            self._socket = None
            self._descriptors.give_back()

    def _duplicate(self) -> socket.socket | None:
        """The socket under a descriptor of its own; None when there is none to be had."""
        if self._socket is None and self._descriptors.take():
            try:
                self._socket = _duplicate_of(self._descriptor)
            except (OSError, MemoryError):
                self._descriptors.give_back()
                return None
        return self._socket

    def _wait_writable(self, after_s: float = POLL_S) -> None:
        """Go on when there is room; where it cannot be watched for, after a while."""
        if self._watching or self._poll is not None:
            return
        out = self._duplicate()
        if out is None:
            self._poll = self._loop.call_later(after_s, self._polled)
        else:
            self._watching = True
            self._loop.add_writer(out.fileno(), self._writable)

    def _polled(self) -> None:
        self._poll = None
        self._continue()

    def _stop_watching(self) -> None:
        if self._watching and self._socket is not None:
            self._watching = False
            self._loop.remove_writer(self._socket.fileno())

    def _writable(self) -> None:
        self._continue()
        if not self._queue or self._warming:
            self._stop_watching()

    def _send_queued(self) -> None:
        out = self._duplicate()
        queue = self._queue
        budget = TURN_BYTES
        while queue:
            if budget <= 0:
                self._wait_writable(0)
                return
            part = queue[0]
            if isinstance(part, (bytes, bytearray, memoryview)) or self._is_small(part):
                sent = self._send_gathered(out)
            else:
                sent = self._send_slice(part, budget)
            if self._warming:
                return
            budget -= sent
            self._moved = True

    def _is_small(self, part: FileSlice) -> bool:
        return part.size <= SMALL_SLICE_BYTES and self._sent == 0

    def _send_gathered(self, out: socket.socket | None) -> int:
        """Send the bytes and small slices at the head of the queue at once; a cold one is read by a thread first."""
        queue = self._queue
        gathered: list[bytes | bytearray | memoryview] = []
        size = 0
        flags = 0
        while queue and size < GATHER_BYTES:
            part = queue[0]
            if isinstance(part, (bytes, bytearray, memoryview)):
                data: bytes | bytearray | memoryview = memoryview(part)[self._sent :] if self._sent else part
                self._sent = 0
            else:
                flags = _MSG_MORE  # a large slice follows: let it share the segment
                if part.size > SMALL_SLICE_BYTES or (small := self._read(part, 0, part.size)) is None:
                    break
                data = small
                flags = 0
            gathered.append(data)
            size += len(data)
            queue.popleft()
        if not gathered:
            self._warm(cast("FileSlice", queue[0]))
            return 0
        joined = gathered[0] if len(gathered) == 1 else b"".join(gathered)
        queue.appendleft(joined)  # what is not sent stays at the head
        sent = os.write(self._descriptor, joined) if out is None else out.send(joined, flags)
        if sent == size:
            queue.popleft()
        else:
            self._sent = sent
        return sent

    def _send_slice(self, piece: FileSlice, most: int) -> int:
        """One sendfile of a slice, of so many bytes at most; a cold one is read by a thread first."""
        descriptor = piece.fd
        position = piece.position + self._sent
        if self._cached <= self._sent:
            size = min(piece.size - self._sent, self._window)
            if not is_cached(descriptor, position, size):
                if not self._warmed:
                    self._warm(piece)
                    return 0
                self._window = PROBE_STEP_BYTES  # memory is short: the first of what was read is gone before the last
                size = min(size, self._window)
            self._warmed = False
            self._cached = self._sent + size
        out = self._descriptor if self._socket is None else self._socket.fileno()
        sent = os.sendfile(out, descriptor, position, min(self._cached - self._sent, most))
        if sent == 0:
            _check_end(piece, self._sent, piece.size - self._sent)
            raise OSError(
                f"nothing of the segment file can be sent at byte {position}, where {piece.size - self._sent} bytes are left"
            )
        self._sent += sent
        if self._sent >= piece.size:
            self._part_done()
        return sent


def _duplicate_of(descriptor: int) -> socket.socket:
    """A socket under another descriptor. Raises OSError."""
    number = os.dup(descriptor)
    try:
        duplicate = socket.socket(fileno=number)
    except BaseException:
        os.close(number)
        raise
    duplicate.setblocking(False)
    return duplicate


def _check_end(piece: FileSlice, offset: int, size: int) -> None:
    """Raise OSError when a slice's file ends before the bytes to send: it was cut since, and no read-ahead brings them back."""
    end = os.fstat(piece.fd).st_size
    if end < piece.position + offset + size:
        raise OSError(
            f"the segment file ends at {end}, before the {size} bytes to send from byte {piece.position + offset} on"
        )


def read_if_cached(piece: FileSlice, offset: int, size: int) -> bytes | None:
    """`size` bytes of a slice from `offset` on, or None when they are not in the page cache as a whole."""
    data = bytearray(size)
    try:
        got = os.preadv(piece.fd, [data], piece.position + offset, _RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if not _RWF_NOWAIT or error.errno not in _NOT_SUPPORTED:
            raise
        got = os.preadv(piece.fd, [data], piece.position + offset)
    if got == size:
        return bytes(data)
    _check_end(piece, offset, size)
    return None


def _read_now(piece: FileSlice, offset: int, size: int) -> bytes:
    """`size` bytes of a slice from `offset` on, wherever they are."""
    data = os.pread(piece.fd, size, piece.position + offset)
    if len(data) < size:
        _check_end(piece, offset, size)
        raise OSError(
            f"{len(data)} bytes of the segment file can be read from byte {piece.position + offset} on, not {size}"
        )
    return data


def _errno_not_supported() -> frozenset[int]:
    import errno

    return frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})


_NOT_SUPPORTED = _errno_not_supported()


class TransportWriter(_QueuedWriter):
    """Sends through an asyncio transport (TLS): slices are read in chunks as the transport has room.

    The connection calls `paused` and `resumed` from its protocol's pause_writing and resume_writing.
    """

    __slots__ = ("_full", "_held", "_loop", "_taken", "_transport")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        read_ahead: ReadAhead,
        on_drained: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        super().__init__(read_ahead, on_drained, on_error)
        self._loop = loop
        self._transport = transport
        self._full = False
        self._held = 0  # by the transport, when it was looked at last
        self._taken = 0  # by the other side, likewise
        transport.set_write_buffer_limits(high=2 * TLS_CHUNK_BYTES)

    def has_moved(self) -> bool:
        held, self._held = self._held, self._transport.get_write_buffer_size()
        taken, self._taken = self._taken, acknowledged_bytes(self._transport.get_extra_info("socket"))
        # Below TLS there is a transport with a buffer of its own, of which only the other side's acknowledgements tell.
        return super().has_moved() or self._held < held or self._taken > taken

    def paused(self) -> None:
        self._full = True

    def resumed(self) -> None:
        self._full = False
        self._continue()

    def _wait_writable(self) -> None:
        """Nothing to do: `resumed` is called when there is room."""

    def _send_queued(self) -> None:
        queue = self._queue
        budget = TURN_BYTES
        while queue and not self._full:
            part = queue[0]
            if budget <= 0:
                self._loop.call_soon(self._continue)
                return
            data: bytes | bytearray | memoryview | None
            if isinstance(part, (bytes, bytearray, memoryview)):
                whole = len(part)
                data = part if whole <= TLS_CHUNK_BYTES else memoryview(part)[self._sent : self._sent + TLS_CHUNK_BYTES]
            else:
                whole = part.size
                data = self._read(part, self._sent, min(TLS_CHUNK_BYTES, whole - self._sent))
                if data is None:
                    self._warm(part)
                    return
            self._sent += len(data)
            self._moved = True
            budget -= len(data)
            if self._sent >= whole:
                self._part_done()
            self._transport.write(data)
