"""Virtual time, and the event loops of hosts that share it.

Rules
- What is to happen lies in one heap, by its time and then by its number: the same seed gives the same order, each time.
- Time passes between callbacks only. A host that stands still runs nothing; what was due is run when it goes on. One that is dead runs
  nothing any more, as a process that was killed.
- Randomness comes from `World.random_of`, by name, so that one part's draws change no other's.
- `World.now` is nobody's clock: where clocks drift, each host's begins anywhere and runs at a pace of its own.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import zlib
from collections.abc import Callable, Collection, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.network import Network

FIRST_MS = 1_790_000_000_000
"""When it begins, on the clocks of the hosts."""
TICK_S = 1e-6
"""What a clock counts in: who waits for the rest of a float's rounding waits that long."""
ASKED_S = 0.005
STEPS_AT_ONCE_MAX = 200_000
DRIFT = 0.1
"""How much faster or slower than the world's time a clock may be."""
BOOTED_S = 100_000.0
"""How long ago a host may have begun to count."""
SHARES = {
    "drift": 0.5,
    "cleaning": 0.3,
    "directories": 0.3,
    "elections": 0.3,
    "own copiers": 0.25,
    "cold reads": 0.25,
    "room ahead": 0.3,
}
"""Kinds of trouble that last all the time of a seed, and how many of the seeds have them."""

ENDS_MAX = 20
"""How often a coroutine that is closed may wait for something once more."""


class Violation(Exception):
    """What must always hold does not; the message says what."""


class World:
    """Everything that happens. `story` has a line for what a reader wants to know; `print` changes with each byte that is sent.

    `without`: kinds of trouble that this seed is not to have.
    """

    def __init__(self, seed: int, without: Collection[str] = ()) -> None:
        self.seed = seed
        self._without = without
        self.now = 0.0
        self.steps = 0
        self.story: list[str] = []
        self.print = 0
        self.after_step: Callable[[Host], None] = lambda host: None
        self.network: Network
        self.reads_are_cold = self.has("cold reads")
        """Until all is mended."""
        self.hosts: list[Host] = []
        self.numbers = itertools.count(1)
        self._due: list[tuple[float, int, Host, asyncio.Handle]] = []
        self._order = itertools.count()

    def random_of(self, name: object) -> Random:
        return Random(f"{self.seed} {name}")

    def has(self, trouble: str) -> bool:
        """Whether this seed has a kind of trouble."""
        return self.random_of(trouble).random() < SHARES[trouble] and trouble not in self._without

    def tell(self, who: object, what: str) -> None:
        self.story.append(f"{self.now:10.4f} {who!s:>8} {what}")

    def note(self, data: bytes | memoryview) -> None:
        """Have the print depend on this."""
        self.print = zlib.crc32(data, self.print)

    def put(self, at: float, host: Host, handle: asyncio.Handle) -> None:
        heapq.heappush(self._due, (max(at, self.now), next(self._order), host, handle))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time go on; whether `until` came true, which is asked every ASKED_S."""
        end, at_once, ask_at = self.now + seconds, 0, self.now
        while self._due and self._due[0][0] <= end:
            if self.now >= ask_at:
                ask_at = self.now + ASKED_S
                if until():
                    return True
            at, number, host, handle = heapq.heappop(self._due)
            if host.dead or handle.cancelled():
                continue
            if host.stands_until > at:
                heapq.heappush(self._due, (host.stands_until, number, host, handle))
                continue
            at_once = at_once + 1 if at == self.now else 0
            if at_once > STEPS_AT_ONCE_MAX:
                raise Violation(f"time stands still at {self.now}: {host} has always something to do: {handle}")
            self.now = at
            self.steps += 1
            asyncio._set_running_loop(host.loop)
            try:
                handle._run()
            finally:
                asyncio._set_running_loop(None)
            self.after_step(host)
        self.now = end
        return until()


class Host:
    """A machine with one process. `ip` is its address; the clock of that machine counts `pace` seconds in one of the world's, and was at
    `booted_s` when that began."""

    def __init__(self, world: World, name: str, ip: str) -> None:
        self.world, self.name, self.ip = world, name, ip
        self.dead = False
        self.stands_until = 0.0
        self.pace, self.booted_s = 1.0, 0.0
        if world.has("drift"):
            random = world.random_of(f"clock of {ip}")
            self.pace, self.booted_s = random.uniform(1 - DRIFT, 1 + DRIFT), random.uniform(0.0, BOOTED_S)
        self.loop = HostLoop(self)
        world.hosts.append(self)

    def __str__(self) -> str:
        return self.name

    @property
    def uptime_s(self) -> float:
        """What its clock has counted since the world began."""
        return self.pace * self.world.now

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Call back at a time of the world."""
        self.world.put(when, self, asyncio.Handle(callback, args, self.loop))


class HostLoop(asyncio.AbstractEventLoop):
    """The event loop of one process on a host: what asyncio asks of a loop, on the world's time and network."""

    def __init__(self, host: Host) -> None:
        self.host, self._world = host, host.world
        self._readers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._writers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def time(self) -> float:
        return self.host.booted_s + self.host.uptime_s

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._world.put(self._world.now, self.host, handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        host = self.host
        at = (when - host.booted_s) / host.pace
        self._world.put(at if host.pace == 1.0 else at + TICK_S, host, handle)  # not before its time by rounding
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        when = self.time() if delay <= 0 else self.time() + max(delay, TICK_S)
        return self.call_at(when, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap until it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # killed processes leave some
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.host.dead:
            return
        error = context.get("exception")
        if isinstance(error, Violation):
            raise error
        raise Violation(f"{self.host}: {context.get('message')}: {error!r}") from error

    def end(self) -> None:
        """Let go of what a killed process has left: its coroutines end here, where what they still try comes to nothing."""
        asyncio._set_running_loop(self)
        try:
            while self._tasks:
                coroutine: Any = self._tasks.pop().get_coro()
                for _ in range(ENDS_MAX):
                    try:
                        coroutine.close()
                        break
                    except (Exception, asyncio.CancelledError):
                        continue
        finally:
            asyncio._set_running_loop(None)

    # -- descriptors: those of listeners are the network's numbers, those of connections are watched for room alone, and have some

    def add_reader(self, fd: int, callback: Any, *args: Any) -> None:
        self._readers[fd] = callback, args
        self.readable(fd)

    def remove_reader(self, fd: int) -> bool:
        return self._readers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        """There may be something to accept."""
        if fd in self._readers:
            self.call_soon(self._read, fd)

    def _read(self, fd: int) -> None:
        if fd in self._readers:
            callback, args = self._readers[fd]
            callback(*args)

    def add_writer(self, fd: int, callback: Any, *args: Any) -> None:
        self._writers[fd] = callback, args
        self.call_soon(self._write, fd)

    def remove_writer(self, fd: int) -> bool:
        return self._writers.pop(fd, None) is not None

    def _write(self, fd: int) -> None:
        if fd in self._writers:
            callback, args = self._writers[fd]
            callback(*args)
            if fd in self._writers:
                self.call_later(0.0001, self._write, fd)

    # -- the network

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        import socket

        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await self._world.network.connect(self.host, sock, address)

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        sock = options.get("sock")
        if sock is None:
            sock = object()
            await self.sock_connect(sock, (host, port))
        return self._world.network.connected(sock, factory())

    async def connect_accepted_socket(self, factory: Any, sock: Any, **options: Any) -> Any:
        return self._world.network.accepted(sock, factory())
