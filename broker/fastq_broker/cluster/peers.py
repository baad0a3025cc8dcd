"""How a node asks the other brokers of its cluster: markers of transactions, and what their coordinators say of them.

Rules
- One request is on its way to each broker at a time; what is to be asked meanwhile goes together into the next one.
- Whoever asks hears of each item once: the broker's response, or why there is none, as where there is no memory for the request. Nothing is
  asked again here.
- Each purpose has connections of its own: an answer that waits for followers must not keep others from being given.
Source: InterBrokerSendThread, TransactionMarkerChannelManager, AddPartitionsToTxnManager.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from fastq.config import ClientConfig
from fastq.errors import ClientClosed, ConnectionFailed, FastqError
from fastq.metadata import Node
from fastq.net.aio import AsyncDriver
from fastq.protocol.message import Message
from fastq_broker.log import failures
from fastq_broker.surroundings import Surroundings

T = TypeVar("T")

Done = Callable[[Any, "FastqError | None"], object]
"""Called once, with the response and None, or with None and the error."""


class Peers:
    """Connections to other brokers, opened when somebody is asked. Loop thread only."""

    def __init__(
        self,
        place_of: Callable[[int], Node | None],
        client: ClientConfig,
        loop: asyncio.AbstractEventLoop,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`place_of(node_id)` is where a broker listens for others; None where that is not known. `surroundings`: None for this
        machine."""
        self._place_of = place_of
        self._loop = loop
        self._core = (surroundings or Surroundings()).client(client)
        self._network = AsyncDriver(self._core, loop)

    def ask(self, node_id: int, request: Message, done: Done, versions: tuple[int, int] | None = None) -> None:
        """Ask a broker; `done(response, error)` is called once, later."""
        place = self._place_of(node_id)
        error: FastqError | None = None
        if self._core.closed:
            error = ClientClosed()
        elif place is None:
            error = ConnectionFailed(f"the metadata does not say where node {node_id} listens for other brokers")
        if place is None or error is not None:
            self._loop.call_soon(done, None, error)
            return
        self._network.kick()  # where there is no memory for the turn, nothing is sent
        self._core.send(self._core.separate(place), request, done, versions=versions)

    def close(self) -> None:
        """Ask no more; what has no answer ends with ClientClosed. Idempotent."""
        self._network.close()


class Ask(Protocol):
    """Peers.ask, or what a test has in its place."""

    def __call__(
        self, node_id: int, request: Message, done: Done, versions: tuple[int, int] | None = None, /
    ) -> None: ...


class PeerQueues(Generic[T]):
    """What waits to be asked of other brokers, for each of them. Loop thread only.

    Invariant: a broker with items that wait has a request on its way, or one is made in the next turn of the loop; it is in `_under_way`
    then, with the items that are on their way.
    """

    def __init__(
        self,
        ask: Ask,
        soon: Callable[[Callable[[], object]], object],
        build: Callable[[deque[T]], tuple[Message, list[T]]],
        answered: Callable[[Collection[T], Any, FastqError | None], object],
        versions: tuple[int, int] | None = None,
    ) -> None:
        """`build` takes items out of what waits, one at least, and answers the request with them; `answered(items, response, error)`
        is what came of it: each of them is told, whatever another one does with that. Where it raises it has told nobody, and is called
        with the error."""
        self._ask = ask
        self._soon = soon
        self._build = build
        self._answered = answered
        self._versions = versions
        self._waiting: dict[int, deque[T]] = {}
        self._under_way: dict[int, Collection[T]] = {}

    def put(self, node_id: int, item: T) -> None:
        """Ask a broker for one thing more."""
        if node_id not in self._under_way:
            self._begin(node_id)
        self._waiting.setdefault(node_id, deque()).append(item)

    def _begin(self, node_id: int) -> None:
        self._soon(partial(self._send, node_id))
        self._under_way[node_id] = []

    def _send(self, node_id: int) -> None:
        waiting = self._waiting.get(node_id)
        if not waiting:
            self._end(node_id)
            return
        all_items: Collection[T] = waiting  # where there is no memory for a list of them
        try:
            all_items = list(waiting)
            request, items = self._build(waiting)
            self._under_way[node_id] = items
            self._ask(node_id, request, partial(self._done, node_id, items), self._versions)
        except Exception as failure:
            self._failed(node_id, all_items, failure)

    def _failed(self, node_id: int, items: Collection[T], failure: Exception) -> None:
        """These wait no more."""
        self._waiting.pop(node_id, None)
        self._under_way[node_id] = items
        failures.report(f"asking node {node_id}", failure)
        self._tell(node_id, items, "no request to node %d could be made: %r", failure)

    def _done(self, node_id: int, items: Collection[T], response: Any, error: FastqError | None) -> None:
        if self._under_way.get(node_id) is not items:
            return  # what failed after it was sent, and has been told so
        try:
            self._answered(items, response, error)
        except Exception as failure:
            failures.report(f"reading the answer of node {node_id}", failure)
            self._tell(node_id, items, "the answer of node %d could not be read: %r", failure)
        else:
            self._end(node_id)

    def _tell(self, node_id: int, items: Collection[T], why: str, failure: Exception) -> None:
        """There is no answer to these; where there is no memory to be told that they are told in the next turn."""
        again = False
        try:
            self._answered(items, None, FastqError(why % (node_id, failure)))
        except MemoryError:
            self._soon(partial(self._tell, node_id, items, why, failure))
            again = True
        finally:
            if not again:
                self._end(node_id)

    def _end(self, node_id: int) -> None:
        """No request is on its way: the next one has what waits."""
        del self._under_way[node_id]
        waiting = self._waiting.get(node_id)
        if not waiting:
            self._waiting.pop(node_id, None)
            return
        try:
            self._begin(node_id)
        except Exception as failure:
            self._failed(node_id, waiting, failure)
