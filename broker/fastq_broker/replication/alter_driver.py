"""Sends a node's AlterPartition requests over a channel to the active controller, and tells the partitions what it answers.

Rules: everything happens in the loop's thread. What is asked in one turn of the loop goes in one request, made anew each time it is sent.
Source: DefaultAlterPartitionManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from fastq.errors import ClientClosed, FastqError
from fastq.net.requests import VersionedRequest
from fastq.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from fastq_broker.log import failures

from .alter_partition import PartitionKey, build_request
from .isr import IsrChange
from .shared import Replication

logger = logging.getLogger(__name__)


class Channel(Protocol):
    """What is needed of a ControllerChannel."""

    def ask(self, request: VersionedRequest, done: Callable[[Any, FastqError | None], object]) -> None:
        """Ask the active controller; `done(response, error)` is called once, later."""


class AlterPartitionDriver:
    """One node's changes on their way. `broker_epoch()` is that of its registration. Loop thread only.

    Invariant: while it is open and something is to be asked, a request is in flight or a turn is due; what there was no memory to do for
    that is done at the next `Replication.check`.
    """

    def __init__(
        self,
        replication: Replication,
        channel: Channel,
        loop: asyncio.AbstractEventLoop,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._replication = replication
        self._channel = channel
        self._loop = loop
        self._broker_epoch = broker_epoch
        self._turn: asyncio.Handle | None = None
        self._asked: Mapping[PartitionKey, IsrChange] | None = None
        self._closed = False
        replication.ask = self._ask

    def close(self) -> None:
        """Ask no more. Idempotent."""
        self._closed = True
        if self._turn is not None:
            self._turn.cancel()

    def _ask(self) -> None:
        if self._asked is None and self._replication.alter.is_asked:  # so it is not: there was no memory to say so
            self._replication.alter.failed(self._replication.monotonic_ms())
        due_ms = self._replication.alter.due_ms
        if self._turn is None and due_ms is not None and not self._closed:
            wait_ms = due_ms - self._replication.monotonic_ms()
            self._turn = self._loop.call_later(max(wait_ms, 0) / 1000, self._send)

    def _send(self) -> None:
        self._turn = None
        try:
            self._ask_now()
        except Exception as error:
            failures.report("asking AlterPartition", error)
            self._asked = None
            self._replication.alter.failed(self._replication.monotonic_ms())
            self._ask()

    def _ask_now(self) -> None:
        replication = self._replication
        changes = replication.alter.take(replication.monotonic_ms())
        if changes is None:
            self._ask()  # the loop's clock was early
            return
        self._asked = changes

        def build(version: int) -> AlterPartitionRequest:
            return build_request(changes, replication.node_id, self._broker_epoch(), version)

        self._channel.ask(VersionedRequest(AlterPartitionRequest.API_KEY, build), partial(self._answered, changes))

    def _answered(
        self,
        changes: Mapping[PartitionKey, IsrChange],
        response: AlterPartitionResponse | None,
        error: FastqError | None,
    ) -> None:
        if changes is not self._asked:
            return  # it was asked all the same, and is asked again
        self._asked = None
        try:
            self._take(response, error)
        finally:  # whatever waits goes on
            self._ask()

    def _take(self, response: AlterPartitionResponse | None, error: FastqError | None) -> None:
        alter, now_ms = self._replication.alter, self._replication.monotonic_ms()
        if response is not None:
            try:
                answers = alter.answered(response, now_ms)
            except Exception:
                alter.failed(now_ms)
                raise
            for key, change, answer in answers:
                try:
                    self._replication.answered(key, change, answer)
                except Exception as failure:
                    failures.report(f"following the answer to AlterPartition for partition {key[1]}", failure)
            if response.error_code:
                code = response.error_code
                failures.say(
                    logger.warning,
                    "AlterPartition",
                    "AlterPartition was refused with error %d; it is asked again",
                    code,
                )
        else:
            alter.failed(now_ms)
            if not isinstance(error, ClientClosed):
                failures.say(logger.warning, "AlterPartition", "AlterPartition failed: %s; it is asked again", error)
