"""What a node takes from the machine it runs on: time, randomness, disk, network, threads and their turns.

Rules: a node's code asks here and nowhere else, so that a simulation can hand in all of it and be the same each time
(tests/simulation). Whatever is handed in counts for everything that the node does.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from fastq._native.scheduling import set_slice_us
from fastq.protocol.uuid import random_uuid

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

    from fastq.config import ClientConfig
    from fastq.net.core import ClientCore

    from .log.files import Files
    from .log.flusher import Flusher


def system_clock() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def start_threads(count: int, name: str) -> Executor:
    """A pool of so many threads, which start when they have something to do, and take their turns as the system has it: one that starts
    while its node's loop has long turns would have those for good."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(count, name, set_slice_us, (0,))


class Binds(Protocol):
    """Binds a listener's address: `listeners.bind_sockets`, or what has its place."""

    def __call__(self, loop: asyncio.AbstractEventLoop, host: str, port: int, /) -> Awaitable[list[Any]]: ...


async def bind_here(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[Any]:
    """Sockets of this machine. Raises ListenError."""
    from .listeners import bind_sockets

    return [*await bind_sockets(loop, host, port)]


@dataclass(frozen=True)
class Surroundings:
    """The machine, as one node has it; by default it is this one.

    `monotonic_s` never jumps and begins anywhere; `clock` is milliseconds since 1970, for what is compared with the times of records.
    """

    clock: Callable[[], int] = system_clock
    monotonic_s: Callable[[], float] = time.monotonic
    random: Random = field(default_factory=Random)
    """For back-offs, election time-outs and where placements begin."""
    new_id: Callable[[], bytes] = random_uuid
    """Ids that nothing else ever has, 16 bytes."""
    files: Files | None = None
    flusher: Flusher | None = None
    """What syncs `files`; None: threads of its own."""
    threads: Callable[[int, str], Executor] = start_threads
    turns_us: Callable[[int], object] = set_slice_us
    """How long the thread that says so would run at a time; 0: as the system has it."""
    bind: Binds = bind_here

    def monotonic_ms(self) -> int:
        """Milliseconds on the clock that never jumps."""
        return int(self.monotonic_s() * 1000)

    def new_name(self) -> str:
        """A new id, as text: a UUID."""
        import uuid

        return str(uuid.UUID(bytes=self.new_id()))

    def client(
        self, config: ClientConfig, *, of_controllers: bool = False, of_another_cluster: bool = False
    ) -> ClientCore:
        """What speaks with other nodes, or with controllers as such: each request goes where the caller says. One of another cluster asks
        there for its nodes, as any client does."""
        from fastq.net.core import ClientCore
        from fastq.net.diagnosis import ADVERTISED, OF_A_CONTROLLER

        return ClientCore(
            config,
            asks_metadata=of_another_cluster,
            clock=self.monotonic_s,
            random=Random(self.random.getrandbits(64)),
            origin=OF_A_CONTROLLER if of_controllers else ADVERTISED,
        )
