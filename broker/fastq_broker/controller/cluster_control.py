"""The controller of a cluster: what brokers and controllers ask of the active one, and what it looks after by itself.

Rules
- A request is planned against `pending`, written as one change, and answered once that is committed; what changes nothing is answered once
  what it has seen is. Who is not the active controller says NOT_CONTROLLER, in the words of the API that was asked.
- What a plan allows to be made in parts (all that only moves leaders and ISRs) is cut where Kafka bounds a batch, in the order planned.
- Who was heard when (`Sessions`) is known to the leader of an epoch only: it begins anew with each.
- A process that is gone is not waited for, unless broker.disconnect.timeout.ms says so: its connection is closed for so long, nobody
  listens in its place (which the owner finds out: `on_term`, `unheard`, `broken`), or another one that advertises its place registers
  where its connection is closed, or it is silent for SILENT_INTERVALS. All these may be wrong, at the cost of a fence that the next
  heartbeat takes away: Kafka's epochs guard what is written.
- One that speaks keeps its id, whoever else comes with the same: two processes may well advertise one place, that of what forwards to them.
Source: QuorumController, ControllerApis, PeriodicTaskControlManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fastq.errors import ErrorCode, KafkaError, NotController
from fastq.protocol.message import Message
from fastq.protocol.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    NoOpRecord,
    ProducerIdsRecord,
    RegisterControllerRecord,
)
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import brokers, elections
from fastq_broker.controller.alter_partition import plan_alter_partition
from fastq_broker.controller.assign_directories import plan_assignments
from fastq_broker.controller.brokers import Sessions
from fastq_broker.controller.controller import Controller
from fastq_broker.controller.image import BrokerImage, Record
from fastq_broker.controller.records import PRODUCER_ID_BLOCK
from fastq_broker.controller.topics import Refused
from fastq_broker.controller.view import CONTROLLERS, ControlView
from fastq_broker.error_responses import error_response
from fastq_broker.log import failures

logger = logging.getLogger(__name__)

SILENT_INTERVALS = 2
"""How many of its heartbeats a broker has missed when another process in its place is let in before its session is over."""

Planned = tuple[Message, list[Record]]
"""An answer, and the records that make it true."""


class _Term:
    """One epoch in which this node is the active controller: what it knows, and what it does when. Times are monotonic ms."""

    def __init__(self, epoch: int, config: BrokerConfig, now_ms: int) -> None:
        self.epoch = epoch
        self.sessions = Sessions(config.broker_session_timeout_ms)
        self.brokers: Mapping[int, BrokerImage] | None = None  # those that the sessions know
        self.ticked_ms = self.noop_at = now_ms
        self.fence_at = now_ms + self.sessions.tick_ms
        self.rebalance_at = now_ms + config.leader_imbalance_check_interval_seconds * 1000
        self.unclean_at = now_ms + config.unclean_leader_election_interval_ms


class ClusterControl:
    """Serves a cluster by a controller that takes part in a quorum. Event-loop thread only.

    Invariant: there is a term exactly while this node is the active controller, as far as `tick` or a request has looked since.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._config = controller.config
        self._now = controller.monotonic_ms
        self._term: _Term | None = None
        self.on_term: Callable[[], object] = lambda: None
        """Hears that this node has become the active controller."""
        self._plans: Mapping[int, Callable[[Any, int], Planned]] = {
            BrokerRegistrationRequest.API_KEY: self._register_broker,
            AllocateProducerIdsRequest.API_KEY: self._allocate_producer_ids,
            AlterPartitionRequest.API_KEY: self._alter_partition,
            AssignReplicasToDirsRequest.API_KEY: self._assign_directories,
            ControllerRegistrationRequest.API_KEY: self._register_controller,
        }

    # -- requests

    @property
    def api_keys(self) -> frozenset[int]:
        """What `serve` takes."""
        return frozenset(self._plans) | {BrokerHeartbeatRequest.API_KEY}

    async def serve(self, request: Message, version: int, link: object = None) -> Message:
        """The answer to a request of one of `api_keys`, that came in this version, once it is true; one that fails has its error.

        `link` is what it came over, where that can break: `broken` tells that it has.
        """
        try:
            response = self._made(request, version, link)
            await self._controller.flushed()
        except KafkaError as error:
            return error_response(request, error.code)
        return response

    def broken(self, broker_id: int, epoch: int, link: object) -> None:
        """What a heartbeat came over is closed: a broker that is not heard again soon (broker.disconnect.timeout.ms) is gone."""
        term, patience_ms = self._term, self._config.broker_disconnect_timeout_ms
        if term is None or patience_ms < 0:
            return
        gone_at_ms = self._now() + patience_ms
        if term.sessions.broken(broker_id, epoch, link, gone_at_ms):
            term.fence_at = min(term.fence_at, gone_at_ms)

    def unheard(self) -> list[tuple[int, int]]:
        """Id and epoch of the brokers that should live, and were not heard since this node is the active controller."""
        return [] if self._term is None else self._term.sessions.unheard()

    def _made(self, request: Message, version: int, link: object) -> Message:
        """Plan and write."""
        self._active_term()
        if isinstance(request, BrokerHeartbeatRequest):
            return self._heartbeat(request, link)
        response, records = self._plans[request.API_KEY](request, version)
        self._write(records)
        return response

    def _active_term(self) -> _Term:
        """The term that this node is in, begun where it is a new one. NotController."""
        controller = self._controller
        if not controller.is_active:
            self._term = None
            raise NotController(f"node {controller.node_id} is not the active controller")
        term = self._term
        if term is None or term.epoch != controller.epoch:
            term = self._term = _Term(controller.epoch, self._config, self._now())
            logger.info(
                "node %d is the active controller of epoch %d, and looks after %d brokers",
                controller.node_id,
                term.epoch,
                len(controller.pending.brokers),
            )
            self._follow()
            self.on_term()
        self._follow()
        return term

    @property
    def _view(self) -> ControlView:
        return self._controller.view

    def _write(self, records: list[Record]) -> None:
        """Write what was planned. NotController, KafkaStorageError."""
        try:
            self._controller.commit(records, whole=False)
        finally:
            self._follow()

    def _follow(self) -> None:
        """Have the sessions know the brokers that are written, whoever has written them."""
        term, image = self._term, self._controller.pending
        if term is not None and image.brokers is not term.brokers:
            term.brokers = image.brokers
            term.sessions.follow(image, self._now())

    # -- brokers

    def _register_broker(self, request: BrokerRegistrationRequest, version: int) -> Planned:
        controller, sessions = self._controller, self._active_term().sessions
        is_live = sessions.is_live(request.broker_id, request.incarnation_id, self._now())
        registered, records = brokers.plan_registration(
            self._view,
            request,
            version=version,
            epoch=controller.quorum.end_offset,
            finalized=controller.pending_features,
            is_live=is_live and not self._follows(request),
        )
        if registered.error:
            failures.say(
                logger.warning,
                f"registration of broker {request.broker_id}",
                "the registration of broker %d is refused: %s",
                request.broker_id,
                registered.message,
            )
        return BrokerRegistrationResponse(error_code=registered.error, broker_epoch=registered.epoch), records

    def _follows(self, request: BrokerRegistrationRequest) -> bool:
        """Whether a broker is taken for the one after the registered one of its id, whose session goes on: it has that one's place, and
        that one is not heard any more."""
        config, sessions, broker_id = self._config, self._active_term().sessions, request.broker_id
        known = self._view.image.brokers.get(broker_id)
        if known is None or config.broker_disconnect_timeout_ms < 0:
            return False
        silent_ms = SILENT_INTERVALS * config.broker_heartbeat_interval_ms
        if not sessions.is_silent(broker_id, request.incarnation_id, silent_ms, self._now()):
            return False
        places = {(item.name, item.host, item.port) for item in request.listeners}
        return bool(places) and places == {(item.name, item.host, item.port) for item in known.endpoints}

    def _heartbeat(self, request: BrokerHeartbeatRequest, link: object) -> BrokerHeartbeatResponse:
        sessions, broker_id = self._active_term().sessions, request.broker_id
        sessions.heard(broker_id, request.broker_epoch, self._now(), link)
        result, records = brokers.plan_heartbeat(self._view, request, sessions.state(broker_id))
        self._write(records)
        sessions.heartbeat(request, result, self._controller.quorum.end_offset - 1)
        if result.error:
            failures.say(
                logger.info,
                f"heartbeats of broker {broker_id}",
                "a heartbeat of broker %d is refused: %s",
                broker_id,
                result.message,
            )
        return BrokerHeartbeatResponse(
            error_code=result.error,
            is_caught_up=result.is_caught_up,
            is_fenced=result.is_fenced,
            should_shut_down=result.should_shut_down,
        )

    def _allocate_producer_ids(self, request: AllocateProducerIdsRequest, version: int) -> Planned:
        try:
            self._view.check_broker_epoch(request.broker_id, request.broker_epoch)
        except Refused as refused:
            return AllocateProducerIdsResponse(error_code=refused.error), []
        first = self._controller.pending.next_producer_id
        record = ProducerIdsRecord(
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            next_producer_id=first + PRODUCER_ID_BLOCK,
        )
        return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK), [record]

    def _alter_partition(self, request: AlterPartitionRequest, version: int) -> Planned:
        return plan_alter_partition(self._view, request, version)

    def _assign_directories(self, request: AssignReplicasToDirsRequest, version: int) -> Planned:
        return plan_assignments(self._view, request)

    # -- controllers

    def _register_controller(self, request: ControllerRegistrationRequest, version: int) -> Planned:
        """The last registration of an id counts."""
        if request.controller_id < 0:
            return ControllerRegistrationResponse(
                error_code=ErrorCode.INVALID_REGISTRATION,
                error_message=f"{request.controller_id} is no controller's id",
            ), []
        if self._view.metadata_version < CONTROLLERS:
            return ControllerRegistrationResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                error_message="The current metadata.version is too old to support controller registrations.",
            ), []
        record = RegisterControllerRecord(
            controller_id=request.controller_id,
            incarnation_id=request.incarnation_id,
            zk_migration_ready=request.zk_migration_ready,
            end_points=[
                RegisterControllerRecord.ControllerEndpoint(
                    name=item.name, host=item.host, port=item.port, security_protocol=item.security_protocol
                )
                for item in request.listeners
            ],
            features=[
                RegisterControllerRecord.ControllerFeature(
                    name=item.name,
                    min_supported_version=item.min_supported_version,
                    max_supported_version=item.max_supported_version,
                )
                for item in request.features
            ],
        )
        return ControllerRegistrationResponse(error_message=None), [record]

    # -- by itself

    def tick(self, now_ms: int) -> None:
        """Do what is due by now, on the controller's monotonic clock; nothing where this node is not the active controller. To be called
        every 0.1 s or so."""
        try:
            term = self._active_term()
            self._fence_the_silent(term, now_ms)
            self._elect(term, now_ms)
            if now_ms >= term.noop_at and self._config.metadata_max_idle_interval_ms > 0:
                term.noop_at = now_ms + self._config.metadata_max_idle_interval_ms
                self._write([NoOpRecord()])
        except NotController:
            return
        except KafkaError as error:
            logger.error("the active controller could not do what is due, and tries again: %s", error)
        except Exception:  # as Kafka's: what fails in it may not fail in another one
            logger.exception("the active controller fails in what is due by now")
            self._controller.quorum.renounce()

    def _fence_the_silent(self, term: _Term, now_ms: int) -> None:
        """Fence one broker whose session is over: what that does is seen before the next one is. While this process stood still nobody
        was heard: then what has come meanwhile is served first."""
        tick_ms = term.sessions.tick_ms
        if now_ms - term.ticked_ms > tick_ms:
            term.fence_at = now_ms + tick_ms
        term.ticked_ms = now_ms
        if now_ms < term.fence_at:
            return
        silent = term.sessions.expired(now_ms)
        if silent is None:
            term.fence_at = term.sessions.next_look(now_ms)
            return
        try:
            self._write(brokers.plan_fence(self._view, silent))
        except KafkaError:
            term.sessions.follow(self._controller.pending, now_ms)
            raise

    def _elect(self, term: _Term, now_ms: int) -> None:
        """Elections that nobody asks for; where there may be more of them than one round makes, the next one follows at once."""
        config = self._config
        if config.auto_leader_rebalance_enable and now_ms >= term.rebalance_at:
            more, records = elections.plan_preferred_leaders(self._view)
            self._write(records)
            if not more:
                term.rebalance_at = now_ms + config.leader_imbalance_check_interval_seconds * 1000
        if now_ms >= term.unclean_at:
            more, records = elections.plan_unclean_leaders(self._view)
            self._write(records)
            if not more:
                term.unclean_at = now_ms + config.unclean_leader_election_interval_ms
