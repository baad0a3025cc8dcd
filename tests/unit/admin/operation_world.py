"""Operations in a world without sockets: nodes are functions, time passes in turns as a driver takes them, and may jump."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastq.config import ClientConfig
from fastq.errors import ConnectionRefused, ConnectionTimeout, FastqError
from fastq.net.core import ClientCore
from fastq.net.operations import Broker, Call, Operation, OperationRun
from fastq.net.requests import VersionedRequest
from fastq.protocol import messages as m

VERSION = 100
"""What requests are built for: the newest of everything."""
Answer = Callable[[Any], Any]
ASK = m.ListGroupsRequest()
ANSWER = m.ListGroupsResponse()


def answers(_request: Any) -> Any:
    return ANSWER


def asks(*nodes: int) -> Operation[Any]:
    found = yield [Call(Broker(node), ASK) for node in nodes]
    return found


def asks_one() -> Operation[Any]:
    response = yield Call(Broker(1), ASK)
    return response


def coordinators(request: Any, **nodes: int) -> Any:
    """FindCoordinator of the newest version."""
    answer = m.FindCoordinatorResponse.Coordinator
    found = [answer(key=key, node_id=nodes[key], host="h", port=1) for key in request.coordinator_keys]
    return m.FindCoordinatorResponse(coordinators=found)


def refuses(_request: Any) -> FastqError:
    """Of a node where nothing listens."""
    return ConnectionRefused("nothing listens there")


def silent(_request: Any) -> None:
    """Of a node that reads, and answers nothing."""


class World:
    """`nodes[id](request)` gives a response, an error, or None for no answer. A turn comes `late_s` after what it is due for."""

    def __init__(self, nodes: dict[int, Answer], *, late_s: float = 0.0, **config: Any) -> None:
        self.nodes, self.now, self.late_s = nodes, 1000.0, late_s
        self.sent: list[tuple[float, int, Any]] = []
        self.core = ClientCore(
            ClientConfig(bootstrap_servers="nowhere:1", **config), clock=lambda: self.now, asks_metadata=False
        )
        self._unanswered: list[tuple[float, Callable[[Any, Any], object]]] = []
        brokers = [m.MetadataResponse.MetadataResponseBroker(node_id=id_, host="h", port=id_) for id_ in nodes]
        self.core.metadata.update(m.MetadataResponse(brokers=brokers, controller_id=min(nodes)), all_topics=False)
        self.core.send = self._send  # type: ignore[method-assign]
        self.core.least_loaded = lambda _now: min(nodes)  # type: ignore[method-assign]

    def _send(
        self,
        node_id: int,
        request: Any,
        on_done: Any,
        *,
        timeout_s: float,
        versions: Any = None,
        anywhere: bool = False,
    ) -> None:
        if isinstance(request, VersionedRequest):
            request = request.build(VERSION)
        self.sent.append((self.now, node_id, request))
        answer = self.nodes[node_id](request)
        if answer is None:
            self._unanswered.append((self.now + timeout_s, on_done))
        elif isinstance(answer, FastqError):
            self.core.completions.append((on_done, None, answer))
        else:
            self.core.completions.append((on_done, answer, None))

    def start(self, operation: Operation[Any], timeout_s: float) -> tuple[OperationRun[Any], list[tuple[Any, Any]]]:
        """The operation, and what is told of its end."""
        told: list[tuple[Any, Any]] = []
        return OperationRun(self.core, operation, timeout_s, lambda result, error: told.append((result, error))), told

    def turn(self) -> bool:
        """Whatever is due next, in the order of a driver's turn: time-outs of requests, timers, then completions."""
        due = [when for when, _ in self._unanswered]
        due += [when for when, _, timer in self.core._timers if timer.callback is not None]
        if not due and not self.core.completions:
            return False
        if not self.core.completions:
            self.now = max(self.now, min(due) + self.late_s)
            for when, on_done in [one for one in self._unanswered if one[0] <= self.now]:
                self._unanswered.remove((when, on_done))
                self.core.completions.append((on_done, None, ConnectionTimeout("no answer in time")))
            self.core._run_timers(self.now)
        self.core.run_callbacks()
        return True

    def run(self, operation: Operation[Any], timeout_s: float = 10.0) -> Any:
        """The operation's result; its error is raised."""
        _, told = self.start(operation, timeout_s)
        for _ in range(100_000):
            if told or not self.turn():
                break
        assert len(told) == 1, "it does not end, or ends twice"
        result, error = told[0]
        if error is not None:
            raise error
        return result
