"""The blocking driver: non-blocking sockets and a selector, driven by whichever thread has something to wait for.

Rules of this file:
- `lock` guards the core and the sockets. `run_once` is called with the lock held and lets go of it only while it waits in
  the selector, so a thread that wants to send never waits for one that waits for the network.
- A thread may drain the responses that another one waits for; after callbacks have run, those that sleep in `run_once`
  are woken. The background thread passes `background=True` and is left asleep: it waits for no response.
- Being woken takes the system longer than a broker takes for a small answer. So who will wait for one sends by `exchange`: where the last
  answer came within BRIEF_S, the socket is looked at for so long, giving way to others each time, before anything else is done.
- After a fork the child closes its copies of the sockets, without a shutdown, and every use raises ForkedClient.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastq.errors import ClientClosed, ForkedClient
from fastq.net import low_water
from fastq.net.addresses import Endpoint, lookup_in_thread
from fastq.net.connection import Connection, State
from fastq.net.core import ClientCore
from fastq.net.peers import Close, Connect, Resolve

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fastq.net.requests import Done, EncodedRequest

BUFFERS_PER_WRITE = 64  # well under IOV_MAX, which is 1024 on Linux and macOS
READS_PER_TURN = 64
BRIEF_S = 0.00025
NEVER = float("inf")
WINDOWS = sys.platform == "win32"
# On Windows select() does not return for Ctrl-C, so the wait is cut into slices of this length.
SLICE_S = 0.05 if WINDOWS else 3600.0
_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR, getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK))
_HAS_SENDMSG = hasattr(socket.socket, "sendmsg")
KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""Seconds and a count: a host that lost power says nothing, and some requests wait for long, as a JoinGroup does for a rebalance. The
system would ask it after two hours."""


class BlockingDriver:
    """Runs one core. Any thread may hold `lock` and call; see the rules of the file.

    Invariants: every open socket belongs to one connection (`transport`), and is registered with the selector for reading,
    and for writing exactly while `outgoing` could not be written in full or the connect is under way.
    """

    def __init__(self, core: ClientCore) -> None:
        self.core = core
        self.lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[socket.socket, Connection] = {}
        self._resolved: deque[tuple[Resolve, list[Endpoint] | None, OSError | None]] = deque()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._wake_sent = False
        self._asleep_until = -1.0
        self._asleep: dict[int, int] = {}  # how many threads fell asleep in each generation
        self._attentive = 0  # how many of them want to know of callbacks
        self._generation = 0
        self._closed = False
        self._forked = False
        _drivers.add(self)

    # -- for clients -----------------------------------------------------------------------------------------------------

    def run_once(self, timeout_s: float, *, background: bool = False) -> int:
        """One turn, with the lock held: write, wait up to `timeout_s` for something to happen (0: only what is there),
        read, act on time-outs, run callbacks. Returns the number of callbacks that ran, timers among them.

        Raises ForkedClient in a child process and ClientClosed after `close`.
        """
        if self._forked:
            raise ForkedClient()
        if self._closed:
            raise ClientClosed()
        core = self.core
        done = self._pump()
        if done:
            timeout_s = 0.0
        if not self._read_busy_one():
            now = core.clock()
            self._select(
                now, now if core.completions else min(now + timeout_s, core.deadline, now + SLICE_S), background
            )
        done += self._pump()
        if (done and self._attentive) or (self._asleep and core.deadline < self._asleep_until):
            self.wakeup()
        return done

    def exchange(self, node_id: int, request: EncodedRequest, on_done: Done, *, timeout_s: float | None = None) -> None:
        """`core.send`, and on a connection that is idle a look for the answer, with the lock held: `on_done` is called in here when it
        comes within BRIEF_S, else in a later turn. A request that is not small is only sent. Raises as `run_once` does.
        """
        if self._forked:
            raise ForkedClient()
        if self._closed:
            raise ClientClosed()
        core = self.core
        connection = core.idle_connection(node_id)
        core.send(node_id, request, on_done, timeout_s=timeout_s)
        now = core.clock()
        # What is due comes first, and so do requests that are not one small buffer.
        if connection is None or len(connection.outgoing) != 1 or now >= core.deadline:
            return
        try:
            wait_s = BRIEF_S if connection.in_flight and connection.answered_in_s <= BRIEF_S else 0.0
            sent, received, code = connection.exchange(connection.transport.fileno(), wait_s)
            connection.data_sent(sent)
            if not connection.outgoing:
                core.writable.pop(connection, None)
            if received:
                connection.buffer_updated(received, core.clock())
            if code:
                connection.connection_lost(_os_error(code) if code > 0 else None, core.clock())
        except BaseException as error:
            # An interrupt between the bytes and the note of them: the stream's position is no longer certain.
            connection.connection_lost(OSError(f"interrupted by {type(error).__name__}"), core.clock())
            raise
        if core.completions and core.run_callbacks() and self._attentive:
            self.wakeup()

    def wait_until(self, predicate: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Take turns until `predicate()` is true (checked with the lock held) or the time is over; whether it was true."""
        clock = time.monotonic
        end = NEVER if timeout_s is None else clock() + timeout_s
        with self.lock:
            while not predicate():
                remaining = end - clock()
                if remaining <= 0:
                    return False
                self.run_once(min(remaining, 3600.0))
            return True

    def wakeup(self) -> None:
        """Make every thread that waits in `run_once` return soon. From any thread, without the lock."""
        self._generation += 1
        self._send_wakeup()

    def _send_wakeup(self) -> None:
        if not self._wake_sent and not self._forked:
            self._wake_sent = True
            # A full pipe means that a wake-up is already on its way; a closed one that nobody waits any more.
            with contextlib.suppress(OSError):
                self._wake_sender.send(b"\0")

    def flush(self) -> None:
        """Write what is queued, as far as the sockets take it, without reading anything. The lock is held."""
        if self._forked:
            raise ForkedClient()
        if self.core.effects:
            self._run_effects()
        if self.core.writable:
            self._write_all()
        if self._asleep and self.core.deadline < self._asleep_until:
            self.wakeup()

    def close(self) -> None:
        """Close the core and all sockets; what was pending fails with ClientClosed. Idempotent, from any thread."""
        if self._forked:
            self._closed = True
            return
        with self.lock:
            if self._closed:
                return
            self.core.close()
            self._run_effects()
            self.core.run_callbacks()
            self._closed = True
            # The last thread to come out of the selector closes it; nobody drains the byte, so it wakes all of them.
            self.wakeup()
            if not self._asleep:
                self._close_selector()

    # -- turns -----------------------------------------------------------------------------------------------------------

    def _pump(self) -> int:
        """Everything that can be done without waiting; the number of callbacks that ran, timers among them."""
        core, done = self.core, 0
        while self._resolved:
            core.resolved(*self._resolved.popleft())
        while True:
            now = core.clock()
            if now >= core.deadline:
                done += core.tick(now)
            if core.effects:
                self._run_effects()
            if core.writable:
                self._write_all()
            if not core.completions:
                if core.effects or core.deadline <= now:
                    continue
                return done
            done += core.run_callbacks()

    def _run_effects(self) -> None:
        effects = self.core.take_effects()
        done = 0
        try:
            for effect in effects:
                if isinstance(effect, Connect):
                    self._connect(effect)
                elif isinstance(effect, Close):
                    self._close_socket(effect.connection)
                else:
                    self._resolve(effect)
                done += 1
        except BaseException as error:
            # An interrupt: what was not done is for the next turn, and a connection that was half begun is begun anew at once.
            self.core.effects[:0] = effects[done:]
            begun = effects[done] if done < len(effects) else None
            if begun is not None and not isinstance(begun, Close):
                self.core.effects.remove(begun)
            if isinstance(begun, Connect):
                lost = OSError(f"interrupted by {type(error).__name__}")
                begun.connection.connection_lost(lost, self.core.clock())
            raise

    def _resolve(self, effect: Resolve) -> None:
        # A weak reference: a look-up that hangs must not keep a closed client alive.
        driver = weakref.ref(self)

        def done(endpoints: list[Endpoint] | None, error: OSError | None) -> None:
            target = driver()
            if target is not None:
                target._resolved.append((effect, endpoints, error))
                target.wakeup()

        lookup_in_thread(effect.address, done)

    def _select(self, now: float, until: float, background: bool) -> None:
        """Wait with the lock released, then handle what is ready with the lock held."""
        events = self._selector.select(0) if until <= now else self._sleep(now, until, background)
        for key, mask in events:
            if key.fileobj is self._wake_receiver:
                self._drain_wakeups()
                continue
            connection: Connection = key.data
            if connection.state is State.CLOSED:
                continue
            if mask & selectors.EVENT_WRITE:
                self._on_writable(connection)
            if mask & selectors.EVENT_READ and connection.transport is not None:
                self._read(connection)

    def _sleep(self, now: float, until: float, background: bool) -> list[tuple[selectors.SelectorKey, int]]:
        generation, attentive, lock = self._generation, not background, self.lock
        self._asleep[generation] = self._asleep.get(generation, 0) + 1
        self._attentive += attentive
        # As it was asked for, to the last bit: who sleeps until a deadline is not woken because of that deadline.
        self._asleep_until = max(self._asleep_until, until)
        # The whole depth of the lock is let go, as threading.Condition does: a callback may be inside a turn.
        saved = lock._release_save()  # type: ignore[attr-defined]
        events: list[tuple[selectors.SelectorKey, int]] = []
        try:
            events = self._selector.select(until - now)
        except (OSError, ValueError):
            # A socket was closed under a select() that does not know of it: look again next turn.
            pass
        finally:
            lock._acquire_restore(saved)  # type: ignore[attr-defined]
            self._attentive -= attentive
            self._asleep[generation] -= 1
            if not self._asleep[generation]:
                del self._asleep[generation]
            if not self._asleep:
                self._asleep_until = -1.0
        if self._closed:
            if not self._asleep:
                self._close_selector()
            raise ClientClosed()
        return events

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(OSError):
            while self._wake_receiver.recv(4096):
                pass
        # Only now: a byte that another thread sends while these are read is gone too, and the next wake-up needs one of its own.
        self._wake_sent = False
        # The system wakes one thread for one byte: pass it on to those that were asleep when it was meant.
        if any(generation < self._generation for generation in self._asleep):
            self._send_wakeup()

    def _read_busy_one(self) -> bool:
        """With one connection that waits for a response, try it before asking the selector; whether bytes came."""
        busy = None
        for connection in self._sockets.values():
            if connection.in_flight and connection.state is State.READY:
                if busy is not None:
                    return False
                busy = connection
        return busy is not None and self._read(busy)

    # -- sockets ---------------------------------------------------------------------------------------------------------

    def _connect(self, effect: Connect) -> None:
        connection, config, now = effect.connection, self.core.config, self.core.clock()
        if connection.state is State.CLOSED:
            return
        try:
            sock = open_socket(effect.endpoint, config.send_buffer_bytes, config.receive_buffer_bytes)
        except OSError as error:
            connection.connection_lost(error, now)
            return
        connection.transport = sock
        self._sockets[sock] = connection
        code = sock.connect_ex(effect.endpoint.sockaddr)
        if code == 0:
            self._register(connection, selectors.EVENT_READ)
            connection.connected(now)
        elif code in _IN_PROGRESS:
            self._register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        else:
            connection.connection_lost(_os_error(code), now)

    def _register(self, connection: Connection, events: int) -> None:
        try:
            self._selector.modify(connection.transport, events, connection)
        except KeyError:
            self._selector.register(connection.transport, events, connection)
        # epoll and kqueue see the change while another thread waits; select() and poll() work on a copy.
        if self._asleep and not _selects_live:
            self.wakeup()

    def _on_writable(self, connection: Connection) -> None:
        if connection.state is State.CONNECTING:
            sock, now = connection.transport, self.core.clock()
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                connection.connection_lost(_os_error(code), now)
            else:
                self._register(connection, selectors.EVENT_READ)
                connection.connected(now)
        else:
            self.core.writable[connection] = None

    def _write_all(self) -> None:
        writable, self.core.writable = self.core.writable, {}
        try:
            for connection in writable:
                if connection.transport is not None and connection.state not in (State.CLOSED, State.CONNECTING):
                    self._write(connection)
        except BaseException:
            # An interrupt: the others are written in the next turn.
            self.core.writable = {**writable, **self.core.writable}
            raise

    def _write(self, connection: Connection) -> None:
        sock, outgoing = connection.transport, connection.outgoing
        try:
            while outgoing:
                one = len(outgoing) == 1
                connection.data_sent(sock.send(outgoing[0]) if one else self._send_some(sock, outgoing))
        except (BlockingIOError, InterruptedError):
            if not connection.paused:
                connection.paused = True
                self._register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
            return
        except OSError as error:
            connection.connection_lost(error, self.core.clock())
            return
        except BaseException as error:
            # An interrupt between writing and the note of it: the stream's position is no longer certain.
            connection.connection_lost(OSError(f"interrupted by {type(error).__name__}"), self.core.clock())
            raise
        if connection.paused:
            connection.paused = False
            self._register(connection, selectors.EVENT_READ)

    @staticmethod
    def _send_some(sock: socket.socket, outgoing: deque[Buffer]) -> int:
        if not _HAS_SENDMSG:
            return sock.send(outgoing[0])
        if len(outgoing) <= BUFFERS_PER_WRITE:
            return sock.sendmsg(outgoing)
        return sock.sendmsg([outgoing[i] for i in range(BUFFERS_PER_WRITE)])

    def _read(self, connection: Connection) -> bool:
        """Receive until the socket is empty, a response is complete, or it is the others' turn; whether bytes came."""
        receive, clock, completions = connection.transport.recv_into, self.core.clock, self.core.completions
        got = False
        try:
            for _ in range(READS_PER_TURN):
                buffer = connection.get_buffer()
                count = receive(buffer)
                if count == 0:
                    connection.connection_lost(None, clock())
                    return True
                got = True
                connection.buffer_updated(count, clock())
                if count >= low_water.READ_BYTES_MIN or connection.awaits_much:
                    mark = low_water.change(connection)
                    if mark:
                        connection.transport.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
                # A short read emptied the socket; a complete response is worth handing out first.
                if count < len(buffer) or completions or connection.state is State.CLOSED:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            connection.connection_lost(error, clock())
            got = True
        except BaseException as error:
            # An interrupt in the middle of the bookkeeping: the stream's position is no longer certain.
            connection.connection_lost(OSError(f"interrupted by {type(error).__name__}"), clock())
            raise
        return got

    def _close_socket(self, connection: Connection) -> None:
        sock = connection.transport
        if sock is not None:
            self._sockets.pop(sock, None)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(sock)
            sock.close()
            connection.transport = None

    def _close_selector(self) -> None:
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def _after_fork_in_child(self) -> None:
        """Close our copies of the descriptors. No shutdown: the parent goes on using the connections."""
        self._forked = True
        self.lock = threading.RLock()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        # The epoll instance is shared with the parent: closing is fine, unregistering would reach into the parent's set.
        self._close_selector()


def open_socket(endpoint: Endpoint, send_buffer_bytes: int, receive_buffer_bytes: int) -> socket.socket:
    """A non-blocking TCP socket for `endpoint`, not yet connected."""
    sock = socket.socket(endpoint.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        if send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        if receive_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    except BaseException:
        sock.close()
        raise
    return sock


def _os_error(code: int) -> OSError:
    """The right subclass of OSError for an errno."""
    if sys.platform == "win32":  # whose C library has no words for the codes of sockets
        return OSError(code, socket.errorTab.get(code, os.strerror(code)).removesuffix("."))
    return OSError(code, os.strerror(code))


_selects_live = hasattr(select, "epoll") or hasattr(select, "kqueue")
_drivers: weakref.WeakSet[BlockingDriver] = weakref.WeakSet()


def _forked() -> None:
    for driver in list(_drivers):
        driver._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
