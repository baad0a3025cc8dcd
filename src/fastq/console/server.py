"""The console's process: uvicorn with bounds, and a line that says where it is.

Rules: a request's head, idle time and the number of connections are bounded; what is open when the process is told to end has SHUTDOWN_S.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from fastq.console.app import create_app
from fastq.console.config import ConsoleConfig

CONNECTIONS_MAX = 500
HEAD_BYTES_MAX = 32 * 1024
IDLE_S = 15
SHUTDOWN_S = 3


async def serve(config: ConsoleConfig, tell: Callable[[str], None]) -> None:
    """Serve until the task is cancelled or a signal comes; `tell` gets the console's URL once it can be asked."""
    app = create_app(config)
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
            http="h11",
            ws="none",
            lifespan="on",
            ssl_certfile=config.certificate,
            ssl_keyfile=config.key,
        )
    )
    with listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((config.host, config.port))
        listening.listen(128)
        tell(f"{scheme}://{host}:{listening.getsockname()[1]}/")
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.should_exit = True  # the way that closes the clients too
            await serving
            raise


def run(config: ConsoleConfig, tell: Callable[[str], None]) -> None:
    """`serve`, in a loop of its own."""
    asyncio.run(serve(config, tell))
