"""A connection under random events: its states stay within their table, answers keep their order, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

import pytest
from fastq_broker.connection import Connection
from fastq_broker.connection_states import ANSWER, CLOSED, MEMORY, OPEN, PAUSED, WAITS
from fastq_broker.router import Deferred
from fastq_broker.server import Limits, Server


class World:
    """A connection whose peer, socket, router and event loop are random. Requests are numbered by their correlation id."""

    def __init__(self, seed: int, loop: asyncio.AbstractEventLoop) -> None:
        self.rng = random.Random(seed)
        self.sent: list[int] = []
        self.open_answers: list[tuple[int, Deferred]] = []
        self.full = False
        self.to_feed = bytearray()
        self.asked = 0
        self.served: list[int] = []
        self.paused = self.closing = False
        self.server = Server(loop, Limits(queued_bytes_max=200_000))
        self.server.router = self  # type: ignore[assignment]
        self.connections = [self.connect(), self.connect()]
        self.connection = self.connections[0]

    def connect(self) -> Connection:
        self.server.descriptors.take()
        connection = Connection(self.server, "X", self.server.descriptors)
        transport: Any = self
        connection.connection_made(transport)
        return connection

    # the transport
    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("127.0.0.1", 1), "socket": self}.get(name)

    def fileno(self) -> int:
        return -1

    def setsockopt(self, *_: object) -> None: ...

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closing = True

    abort = close

    # the writer
    def send(self, parts: list[bytes]) -> bool:
        self.sent += [int.from_bytes(part[4:8], "big") for part in parts]
        self.full = self.full or self.rng.random() < 0.3  # as a queue: what was unsent stays so
        return not self.full

    # the router
    def dispatch(self, connection: Connection, buffer: bytearray, header: Any) -> Any:
        number = header[2]
        self.served.append(number)
        answer = struct.pack(">ii", 4, number) + bytes(self.rng.choice([0, 0, 40_000]))
        if self.rng.random() < 0.6:
            return answer
        deferred = Deferred(connection)
        self.open_answers.append((number, deferred))
        return deferred

    def step(self) -> None:
        rng, connection = self.rng, self.connection
        kind = rng.random()
        if kind < 0.5 and not self.paused and not self.closing:
            if not self.to_feed:
                for _ in range(rng.choice([1, 1, 3, 20])):
                    body = bytes(rng.choice([0, 50, 3_000, 40_000, 150_000]))
                    frame = struct.pack(">hhih", 0, 0, self.asked, -1) + body
                    self.to_feed += struct.pack(">i", len(frame)) + frame
                    self.asked += 1
            buffer = connection.get_buffer(-1)
            size = min(len(buffer), len(self.to_feed), rng.choice([1, 3, 10, 100, 10_000, 1 << 20]))
            buffer[:size] = self.to_feed[:size]
            del buffer, self.to_feed[:size]
            connection.buffer_updated(size)
        elif kind < 0.7 and self.open_answers:
            number, deferred = self.open_answers.pop(0)
            deferred.complete(struct.pack(">ii", 4, number))
        elif kind < 0.85 and self.full:
            self.full = False
            connection._drained()
        elif kind < 0.9:  # another connection takes the memory, or gives it back
            other, memory = self.connections[1], self.server.memory
            if other._held:
                other._release()
            elif not memory.short and memory.held + 150_000 <= memory.bytes_max:
                assert memory.take(other, 150_000)
                other._held = 150_000

    def check(self) -> None:
        connection = self.connection
        assert connection._waits in WAITS
        assert bool(connection._waits & ANSWER) == (connection.pending is not None)
        assert (connection._life == CLOSED) == self.closing
        if connection._life == OPEN:
            assert (connection._input == PAUSED) == self.paused
            if connection._backlog and not self.turn_due():
                assert self.paused and connection._waits
        if connection._waits == MEMORY:
            assert connection._held == 0 and connection._frame is None and connection._backlog
        assert self.served == list(range(len(self.served)))
        assert self.sent == self.served[: len(self.sent)]

    def turn_due(self) -> bool:
        """Whether the loop has something to do for it."""
        return not self.full and not self.open_answers


@pytest.mark.parametrize("seed", range(40))
def test_states_stay_within_their_table(seed: int) -> None:
    async def main() -> None:
        world = World(seed, asyncio.get_running_loop())
        writer: Any = world
        world.connection._writer = writer
        for number in range(600):
            world.step()
            world.check()
            if world.rng.random() < 0.3:
                await asyncio.sleep(0)
                world.check()
            if world.closing:
                raise AssertionError(f"seed {seed}, step {number}: nobody has closed it")
        world.connections[1]._release()
        while world.open_answers or world.full or world.connection._waits:
            # Everything that was asked whole is answered.
            if world.open_answers:
                number, deferred = world.open_answers.pop(0)
                deferred.complete(struct.pack(">ii", 4, number))
            if world.full:
                world.full = False
                world.connection._drained()
            await asyncio.sleep(0)
            world.check()
        assert world.sent == world.served and len(world.sent) > 20
        ending = world.rng.randrange(3)
        if ending == 0:
            assert world.connection.eof_received() is False
        elif ending == 1:
            world.connection.stop()
            assert world.closing
        world.connection.connection_lost(None)
        assert world.connection._life == CLOSED and world.connection._held == 0
        assert world.connection not in world.server.connections

    asyncio.run(main())
