"""Runs the machines of a node's life in an event loop: what they send goes over a channel to the controller, their timers are the loop's.

Rules: everything happens in the loop's thread, in turns (`turns.py`). Who tells the machine of something has it take a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from fastq.errors import ConnectionFailed, FastqError
from fastq_broker.cluster.controller_channel import ControllerChannel
from fastq_broker.cluster.lifecycle import Send
from fastq_broker.log import failures
from fastq_broker.turns import Turns


class Machine(Protocol):
    """What can be driven: BrokerLifecycle, ControllerRegistration."""

    def start(self, now: float) -> None:
        """Begin."""

    def poll(self, now: float) -> Sequence[Any]:
        """What is to be done now."""

    def answered(self, request: Any, response: Any, error: FastqError | None, now: float) -> None:
        """What has come of a Send."""

    def next_wakeup(self) -> float:
        """When `poll` is to be called at the latest."""

    def stop(self) -> None:
        """Send no more."""


M = TypeVar("M", bound=Machine)


class LifeDriver(Generic[M]):
    """One machine at work. `on_news(effect)` hears of all effects but Send, in their order."""

    def __init__(
        self,
        machine: M,
        channel: ControllerChannel,
        loop: asyncio.AbstractEventLoop,
        on_news: Callable[[Any], object],
    ) -> None:
        self.machine = machine
        self.channel = channel
        self._on_news = on_news
        self._turns = Turns(loop, self.now, self._work, lambda now: machine.next_wakeup())

    def start(self) -> None:
        """Begin."""
        self.machine.start(self.now())
        self.turn()

    def now(self) -> float:
        """Seconds, on the clock that the machine is given."""
        return self.channel.now()

    def turn(self) -> None:
        """Do what is due."""
        self._turns.turn()

    def close(self) -> None:
        """Stop without more ado; the channel is its owner's. Idempotent."""
        if self._turns.closed:
            return
        self.machine.stop()
        self.turn()
        self._turns.close()

    def _work(self, now: float) -> None:
        for effect in self.machine.poll(now):
            if isinstance(effect, Send):
                self._send(effect)
            else:  # one that fails keeps nothing of the rest from being done
                failures.attempt("following the life of this node", partial(self._on_news, effect))

    def _send(self, effect: Send) -> None:
        def done(response: Any, error: FastqError | None) -> None:
            self.machine.answered(effect.request, response, error, self.now())
            self.turn()

        try:
            self.channel.ask(effect.request, done, timeout_s=effect.timeout_s)
        except Exception as error:  # the machine waits for what becomes of it
            failures.report("asking the controller about the life of this node", error)
            problem = ConnectionFailed(f"the active controller could not be asked: {error!r}")
            self.machine.answered(effect.request, None, problem, self.now())
