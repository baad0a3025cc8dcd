"""How a controller makes itself known to its quorum (KIP-919): asked for until the metadata has this very start of it.

Rules: nothing is asked while the metadata's version knows of no such records. What fails is asked again, from 0.1 s up to two minutes
apart; what succeeds is in the metadata soon, and nothing is asked until that says otherwise: another process of this id has registered,
or somebody has taken the registration away. Source: ControllerRegistrationManager.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from random import Random

from fastq.errors import ErrorCode, FastqError, error_for_code
from fastq.net.backoff import backoff_s
from fastq.protocol.messages import ControllerRegistrationRequest, ControllerRegistrationResponse
from fastq.protocol.uuid import uuid_to_str
from fastq.values import Value
from fastq_broker.cluster.lifecycle import ListenerAddress, Send

logger = logging.getLogger(__name__)

NEVER = float("inf")
FIRST_METADATA_VERSION = 15
"""3.7-IV0, the first with a RegisterControllerRecord."""
FIRST_BACKOFF_MS = 100
LAST_BACKOFF_MS = 120_000


class RegistrationConfig(Value, kw_only=True):
    """Who this controller is and what it can. `incarnation_id` is drawn anew for each start of the process."""

    node_id: int
    incarnation_id: bytes
    listeners: Sequence[ListenerAddress]
    features: Mapping[str, tuple[int, int]]
    timeout_s: float = 5.0


class ControllerRegistration:
    """One controller's registration, without I/O. Invariant: at most one question is on its way."""

    def __init__(self, config: RegistrationConfig, random: Random) -> None:
        self.config = config
        self.registered = False
        """Whether the metadata has this incarnation."""
        self._random = random
        self._metadata_version = 0
        self._asked: ControllerRegistrationRequest | None = None
        self._failures = 0
        self._send_at = NEVER
        self._started = False

    def start(self, now: float) -> None:
        """The controller's listeners are bound: it can be told where it is."""
        self._started = True
        self._send_at = now

    def metadata(self, metadata_version: int, incarnation_id: bytes | None, now: float) -> None:
        """The metadata's version, and the incarnation that it has of this controller, were changed; None for not registered."""
        self._metadata_version = metadata_version
        registered = incarnation_id == self.config.incarnation_id
        if registered != self.registered:
            self.registered = registered
            logger.info(
                "controller %d, incarnation %s, is %s the metadata",
                self.config.node_id,
                uuid_to_str(self.config.incarnation_id),
                "in" if registered else "no more in",
            )
        if self._started:
            self._send_at = now

    def answered(
        self,
        request: ControllerRegistrationRequest,
        response: ControllerRegistrationResponse | None,
        error: FastqError | None,
        now: float,
    ) -> None:
        """What has come of a Send."""
        if request is not self._asked:
            return
        self._asked = None
        if response is not None and response.error_code == ErrorCode.NONE:
            self._failures = 0
            return
        if response is not None:
            error = error_for_code(response.error_code, response.error_message)
        self._failures += 1
        self._send_at = now + backoff_s(FIRST_BACKOFF_MS, LAST_BACKOFF_MS, self._failures, self._random)
        logger.warning("controller %d could not register: %s", self.config.node_id, error)

    def poll(self, now: float) -> list[Send]:
        """What is to be done now."""
        if now < self._send_at:
            return []
        self._send_at = NEVER
        if self.registered or self._metadata_version < FIRST_METADATA_VERSION or self._asked is not None:
            return []
        self._asked = self._request()
        return [Send(self._asked, self.config.timeout_s)]

    def next_wakeup(self) -> float:
        """When `poll` is to be called at the latest, if nothing happens."""
        return self._send_at

    def stop(self) -> None:
        """Ask no more."""
        self._started, self._asked, self._send_at = False, None, NEVER

    def _request(self) -> ControllerRegistrationRequest:
        config = self.config
        return ControllerRegistrationRequest(
            controller_id=config.node_id,
            incarnation_id=config.incarnation_id,
            zk_migration_ready=False,
            listeners=[
                ControllerRegistrationRequest.Listener(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=listener.security_protocol,
                )
                for listener in config.listeners
            ],
            features=[
                ControllerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in config.features.items()
            ],
        )
