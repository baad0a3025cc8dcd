"""The asyncio driver: plain transports and buffered protocols; works the same with uvloop.

Rules of this file:
- Everything happens in the loop's thread; there is no lock. The driver runs itself: an event of a transport, a timer, or
  `kick()` leads to a turn, and many kicks within one pass of the loop to one turn.
- TLS is the connection's matter (see tls.py), so a transport moves bytes and nothing else.
- No `await` of a user is ever inside the core: cancelling one leaves the request to complete unheard.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import weakref
from asyncio import selector_events
from collections.abc import Callable
from typing import Any

from fastq.errors import ClientClosed, ForkedClient, WrongEventLoop
from fastq.net import low_water
from fastq.net.addresses import Endpoint, lookup_in_thread
from fastq.net.blocking import open_socket
from fastq.net.connection import Connection, State
from fastq.net.core import ClientCore
from fastq.net.peers import Close, Connect, Resolve

NEVER = float("inf")
AGAIN_S = 1.0
"""After a turn that failed: when the next one is taken at the latest."""
# Before Python 3.12, asyncio's writelines() copies all buffers into one. Since then it takes them one by one, but in 3.12.0 to 3.12.8,
# 3.13.0 and 3.13.1 it never calls pause_writing, so that memory would have no bound (CVE-2024-12254), where no distribution mended it.
WRITELINES_HELPS = (
    sys.version_info >= (3, 12)
    and "_maybe_pause_protocol" in selector_events._SelectorSocketTransport.writelines.__code__.co_names
)
# Without it, few bytes are joined to one buffer; for more a few more system calls are cheaper than the copy.
JOINED_BYTES_MAX = 32 * 1024


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop of who calls. Raises WrongEventLoop where none runs."""
    loop = asyncio._get_running_loop()
    if loop is None:
        raise WrongEventLoop(
            "an asyncio client is used where no event loop runs",
            hint="Use it in a coroutine that asyncio.run(...) runs, or take the blocking client",
        )
    return loop


class AsyncDriver:
    """Runs one core in one event loop. Not thread-safe: the loop's thread only, but `kick_threadsafe`.

    Invariant: while the driver is open, a turn is scheduled for `core.deadline` or earlier. `told` is called at the end of a turn in which,
    or before which, a connection became ready or the metadata changed: who could not send something may look again.
    """

    def __init__(self, core: ClientCore, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.core = core
        self.loop = loop if loop is not None else running_loop()
        self.told: Callable[[], object] | None = None
        self._told_of = (0, 0)
        self._turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._connects: set[asyncio.Task[None]] = set()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._closed = False
        self._forked = False
        _drivers.add(self)
        self.kick()

    # -- for clients -----------------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Something was given to the core: take a turn in this pass of the loop. Raises ForkedClient, ClientClosed."""
        if self._forked:
            raise ForkedClient()
        if self._closed:
            raise ClientClosed()
        if not self._turn_scheduled:
            self.loop.call_soon(self._turn)
            self._turn_scheduled = True  # once the loop has it: there may be no memory for that

    @property
    def is_behind(self) -> bool:
        """Whether the core has something to do before this driver would take a turn by itself: a kick is due."""
        return self.core.deadline < self._timer_at

    def check_loop(self) -> None:
        """Raises WrongEventLoop in another loop than the driver's, where its answers would wake nobody."""
        running = asyncio._get_running_loop()
        if running is not None and running is not self.loop:
            raise WrongEventLoop(
                "this client belongs to another event loop" + (", which is closed" if self.loop.is_closed() else ""),
                hint="Make a client in each loop, with `async with` in a coroutine",
            )

    def kick_threadsafe(self) -> None:
        """`kick` from another thread."""
        # The loop may be closed already, when nobody waits for anything any more.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._turn)

    def close(self) -> None:
        """Close the core and all connections; what was pending fails with ClientClosed, now. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._forked:
            return
        try:
            self._close_all()
        except BaseException:  # there may be no memory for it: the next one goes on
            self._closed = False
            raise

    def _close_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._connects:
            with contextlib.suppress(RuntimeError):  # a loop that is closed carries nothing out any more
                task.cancel()
        self.core.close()
        with contextlib.suppress(RuntimeError):  # a loop that is closed has closed its transports
            self._run_effects()
        self.core.run_callbacks()

    # -- turns -----------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._turn_scheduled = False
        if self._closed or self._forked:
            return
        try:
            self._take_turn()
        except Exception:  # there may be no memory for it: what was not come to is due all the same
            again_at = self.core.clock() + AGAIN_S
            if again_at < self._timer_at and not self._closed:
                self._arm(again_at, AGAIN_S)
            raise

    def _take_turn(self) -> None:
        core = self.core
        while True:
            now = core.clock()
            if now >= core.deadline:
                core.tick(now)
            if core.effects:
                self._run_effects()
            if core.writable:
                self._write_all()
            if core.completions:
                core.run_callbacks()
                if self._closed:
                    return
            elif not core.effects and core.deadline > now:
                break
        if core.deadline < self._timer_at:
            self._arm(core.deadline, core.deadline - now)
        if self.told is not None and self._told_of != (core.ready_total, core.metadata.generation):
            self._told_of = (core.ready_total, core.metadata.generation)
            self.told()

    def _arm(self, when: float, delay_s: float) -> None:
        before, self._timer = self._timer, self.loop.call_later(delay_s, self._on_timer)
        self._timer_at = when
        if before is not None:  # until then: there may be no memory for the other
            before.cancel()

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, NEVER
        self._turn()

    def _run_effects(self) -> None:
        effects = self.core.take_effects()
        try:
            while effects:
                self._run_effect(effects[0])
                del effects[0]
        except BaseException as error:  # what was not done is for the next turn, and a connection is begun anew
            self.core.effects[:0] = effects
            begun = effects[0]
            if not isinstance(begun, Close):
                self.core.effects.remove(begun)
            if isinstance(begun, Connect):
                lost = OSError(f"interrupted by {type(error).__name__}")
                begun.connection.connection_lost(lost, self.core.clock())
            raise

    def _run_effect(self, effect: Resolve | Connect | Close) -> None:
        if isinstance(effect, Connect):
            if self._closed:  # nobody would see to the task
                return
            task = self.loop.create_task(self._connect(effect))
            self._connects.add(task)
            task.add_done_callback(self._connects.discard)
        elif isinstance(effect, Close):
            if effect.connection.transport is not None:
                effect.connection.transport.abort()
            effect.connection.transport = None
        else:
            self._resolve(effect)

    def _resolve(self, effect: Resolve) -> None:
        driver = weakref.ref(self)

        def done(endpoints: list[Endpoint] | None, error: OSError | None) -> None:
            target = driver()
            if target is not None:
                # The loop may have ended while the name server was thinking.
                with contextlib.suppress(RuntimeError):
                    target.loop.call_soon_threadsafe(target._resolved, effect, endpoints, error)

        lookup_in_thread(effect.address, done)

    def _resolved(self, effect: Resolve, endpoints: list[Endpoint] | None, error: OSError | None) -> None:
        if not self._closed:
            self.core.resolved(effect, endpoints, error)
            self._turn()

    async def _connect(self, effect: Connect) -> None:
        connection, config, sock = effect.connection, self.core.config, None
        try:
            sock = open_socket(effect.endpoint, config.send_buffer_bytes, config.receive_buffer_bytes)
            self._sockets.add(sock)
            await self.loop.sock_connect(sock, effect.endpoint.sockaddr)
            if connection.state is State.CLOSED:  # timed out meanwhile
                sock.close()
                return
            transport, _ = await self.loop.create_connection(lambda: _Protocol(self, connection), sock=sock)
        except Exception as error:
            if sock is not None:
                sock.close()
            lost = error if isinstance(error, OSError) else OSError(f"interrupted by {type(error).__name__}")
            if not self._closed:
                connection.connection_lost(lost, self.core.clock())
                self._turn()
            if lost is not error:
                raise
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        else:
            self._connected(connection, transport)

    def _connected(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Take the transport over. Not in `connection_made`: uvloop's transport has taken the socket over only when `create_connection`
        is through. Aborted before, it closes the descriptor and leaves the socket its number, to close again whatever has it then."""
        if connection.state is State.CLOSED or self._closed:
            transport.abort()
            return
        connection.transport = transport
        connection.connected(self.core.clock())
        self._turn()

    def _write_all(self) -> None:
        writable, self.core.writable = self.core.writable, {}
        try:
            for connection in writable:
                if connection.transport is not None and not connection.paused:
                    self._write(connection)
        except BaseException as error:
            # How much of it the transport has taken is not certain, and the others are written in the next turn.
            connection.connection_lost(OSError(f"interrupted by {type(error).__name__}"), self.core.clock())
            self.core.writable = {**writable, **self.core.writable}
            raise

    def _write(self, connection: Connection) -> None:
        outgoing = connection.outgoing
        if not outgoing:
            return
        size = connection.outgoing_bytes
        # A pause asked for during the write leaves nothing here: the transport has taken all of it, and `paused` holds
        # back what comes next.
        if len(outgoing) == 1:
            connection.transport.write(outgoing[0])
        elif WRITELINES_HELPS:
            connection.transport.writelines(list(outgoing))
        elif size > JOINED_BYTES_MAX:
            for buffer in list(outgoing):
                connection.transport.write(buffer)
        else:
            connection.transport.write(b"".join(outgoing))
        if connection.state is not State.CLOSED:
            connection.data_sent(size)

    def _after_fork_in_child(self) -> None:
        """Close our copies of the descriptors without telling the loop: its selector is the parent's too."""
        self._forked = True
        for sock in list(self._sockets):
            # detach(): the socket object must not close a descriptor of that number again later.
            descriptor = sock.detach()
            if descriptor >= 0:
                os.close(descriptor)


class _Protocol(asyncio.BufferedProtocol):
    """Glue between one transport and one connection."""

    __slots__ = ("_connection", "_driver")

    def __init__(self, driver: AsyncDriver, connection: Connection) -> None:
        self._driver = driver
        self._connection = connection

    def get_buffer(self, sizehint: int) -> Any:
        return self._connection.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        driver = self._driver
        core = driver.core
        now = core.clock()
        connection = self._connection
        connection.buffer_updated(nbytes, now)
        if nbytes >= low_water.READ_BYTES_MIN or connection.awaits_much:
            mark = low_water.change(connection)
            if mark and connection.transport is not None:
                connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
        # A connection that became ready asks for a turn by the deadline alone.
        if core.completions or core.effects or core.writable or core.deadline <= now:
            driver._turn()

    def eof_received(self) -> bool:
        self._connection.connection_lost(None, self._driver.core.clock())
        self._driver._turn()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._driver._closed and not self._driver._forked:
            self._connection.connection_lost(exc, self._driver.core.clock())
            self._driver._turn()

    def pause_writing(self) -> None:
        self._connection.paused = True

    def resume_writing(self) -> None:
        self._connection.paused = False
        if self._connection.outgoing:
            self._driver.core.writable[self._connection] = None
        self._driver._turn()


_drivers: weakref.WeakSet[AsyncDriver] = weakref.WeakSet()


def _forked() -> None:
    for driver in list(_drivers):
        driver._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
