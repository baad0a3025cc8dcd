"""Where an idempotent producer without transactions gets its producer id: any broker gives one. Sans-I/O."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import FastqError, KafkaError, error_for_code
from fastq.net.backoff import backoff_s
from fastq.net.core import ClientCore
from fastq.net.troubles import Troubles
from fastq.producer.identity import ProducerIdentity
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from fastq.producer.sender import SenderSettings

Tell = Callable[[FastqError | None], None]
"""Called with what no other answer can mend, or None."""
LOOK_AGAIN_S = 0.02
"""When to ask again for a broker that cannot take a request: nobody announces the end of a back-off."""


class ProducerIdRequests:
    """Asks for an id, one request at a time, until a broker gives one: `identity` assumes it. Thread rule: whoever holds the driver."""

    def __init__(
        self, core: ClientCore, settings: SenderSettings, identity: ProducerIdentity, troubles: Troubles
    ) -> None:
        self._core = core
        self._settings = settings
        self._identity = identity
        self._troubles = troubles
        self._requested = False
        self._retry_at = 0.0
        self._failures = 0

    def step(self, now: float, tell: Tell) -> float | None:
        """Ask, unless an answer is awaited, which `tell` hears of; says when to look again where that cannot be now."""
        if self._requested:
            return None
        if now < self._retry_at:
            return self._retry_at
        node_id = self._core.least_loaded(now)
        if node_id is None or not self._core.can_send(node_id, now):
            return now + LOOK_AGAIN_S
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
        self._core.send(
            node_id,
            request,
            partial(self._answered, node_id, tell),
            timeout_s=self._settings.request_timeout_s,
            versions=(0, 5),
        )
        self._requested = True  # once it is on its way: there may be no memory for it
        return None

    def _answered(
        self, node_id: int, tell: Tell, answer: InitProducerIdResponse | None, error: FastqError | None
    ) -> None:
        self._requested = False
        if answer is not None and answer.throttle_time_ms > 0:
            self._core.throttle(node_id, answer.throttle_time_ms / 1000, self._core.clock())
        if answer is not None and answer.error_code:
            error = error_for_code(
                answer.error_code, broker=self._core.broker_label(node_id), api=ApiKey.INIT_PRODUCER_ID.name
            )
        if error is None and answer is not None:
            self._failures = 0
            self._troubles.over(ApiKey.INIT_PRODUCER_ID, self._core.clock())
            self._identity.assume(answer.producer_id, answer.producer_epoch)
            tell(None)
            return
        assert error is not None
        self._failures += 1
        settings = self._settings
        pause = backoff_s(settings.retry_backoff_ms, settings.retry_backoff_max_ms, self._failures, self._core.random)
        self._retry_at = self._core.clock() + pause
        if isinstance(error, KafkaError) and error.retriable:
            self._troubles.failed(ApiKey.INIT_PRODUCER_ID, "had", error, self._core.clock(), name="a producer id")
        tell(None if error.retriable else error)
