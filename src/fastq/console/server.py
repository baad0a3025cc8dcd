"""The console's process: uvicorn with bounds, and a line that says where it is.

Rules: a request's head, idle time and the number of connections are bounded: a head is there within HEAD_S of the connection or of the
answer before, however its bytes come, and who takes nothing of an answer for STALLED_S is cut off, which ends what makes the answer. What
is open when the process is told to end has SHUTDOWN_S.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fastq.console.app import create_app
from fastq.console.config import ConsoleConfig
from fastq.errors import ConfigError

CONNECTIONS_MAX = 500
HEAD_BYTES_MAX = 32 * 1024
IDLE_S = 15
SHUTDOWN_S = 3
CLOSE_S = 0.5
"""How long a peer of TLS may take to say goodbye when the process ends."""
HEAD_S = 15.0
STALLED_S = 30.0


class Connection(H11Protocol):
    """uvicorn's, which bounds the time between requests only, with two further times: for a head, and for a reader that has stopped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._stall_timer = None
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_response_complete(self) -> None:
        self._await_head()
        super().on_response_complete()

    def _await_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(HEAD_S, self._late)

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(CLOSE_S, self._late)

    def _late(self) -> None:
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._await_reader()

    def _await_reader(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(STALLED_S, self._look_at_reader, waiting)

    def _look_at_reader(self, waiting: int) -> None:
        if self.transport.get_write_buffer_size() < waiting:
            self._await_reader()  # slow, and not stopped
        else:
            self._late()

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()


async def serve(config: ConsoleConfig, tell: Callable[[str], None]) -> None:
    """Serve until the task is cancelled or a signal comes; `tell` gets the console's URL once it can be asked."""
    app = create_app(config)
    _check_certificate(config)
    for cluster in app.state.console.clusters.values():
        cluster.check()
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # Named as TCP, or asyncio leaves Nagle's algorithm on, and every answer waits 40 ms for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    scheme = "http" if config.certificate is None else "https"
    host = f"[{config.host}]" if ":" in config.host else config.host
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            http=Connection,
            ws="none",
            lifespan="on",
            ssl_certfile=config.certificate,
            ssl_keyfile=config.key,
        )
    )
    with listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((config.host, config.port))
            listening.listen(128)
        except OSError as error:
            words = f"cannot listen on {host}:{config.port}: {error.strerror}; choose another address with --listen"
            raise OSError(error.errno, words) from None
        tell(f"{scheme}://{host}:{listening.getsockname()[1]}/")
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.should_exit = True  # the way that closes the clients too
            if not serving.done():  # else by a signal, which comes out of the loop by itself
                await serving
            raise


def _check_certificate(config: ConsoleConfig) -> None:
    """Raises ConfigError with the files, where OpenSSL's error names none."""
    if config.certificate is None or config.key is None:
        return
    for path in (config.certificate, config.key):
        path.read_bytes()  # the error of one that is not there names it
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.certificate, config.key)
    except ssl.SSLError as error:
        raise ConfigError(
            f"--tls-certificate {config.certificate} and --tls-key {config.key} are no PEM chain and its key: {error}"
        ) from None


def run(config: ConsoleConfig, tell: Callable[[str], None]) -> None:
    """`serve`, in a loop of its own."""
    asyncio.run(serve(config, tell))
