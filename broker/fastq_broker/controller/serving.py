"""What a controller's listener answers: to its quorum, to the cluster's brokers, and to administrators.

Rules: all of `QuorumRouter`; what `ClusterControl` serves; what brokers forward, directly (KIP-919) and in an Envelope (KIP-590), by the
handlers that a broker's listener has; and who is there. Only the active controller answers what is not for each of them: the others say
NOT_CONTROLLER in the words of the API. A node that is broker and controller asks itself by `serve`. Source: ControllerApis.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from fastq.errors import KafkaError, NotController, UnsupportedVersion
from fastq.protocol.api import APIS, api_name
from fastq.protocol.message import Message
from fastq.protocol.messages import (
    ApiVersionsRequest,
    BrokerHeartbeatRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    EnvelopeRequest,
    EnvelopeResponse,
)
from fastq.values import NamedTuple
from fastq_broker.cluster.forwarding import FORWARDED_KEYS, Forwarded, serve_envelope
from fastq_broker.controller.cluster_control import ClusterControl
from fastq_broker.controller.controller import Controller
from fastq_broker.error_responses import error_response, fitted
from fastq_broker.handlers import api_versions
from fastq_broker.ports import Ports
from fastq_broker.raft.serving import QuorumRouter
from fastq_broker.router import HANDLERS, RequestContext, Route, bound_context, load_handler

if TYPE_CHECKING:
    from types import ModuleType

    from fastq_broker.connection import Connection

EVERYWHERE = frozenset(
    {
        DescribeClusterRequest.API_KEY,
        DescribeConfigsRequest.API_KEY,
        DescribeQuorumRequest.API_KEY,
    }
)
"""What each controller answers; DescribeQuorum says itself that this one does not lead."""


class _Caller(NamedTuple):
    """Who asks without a connection of its own: what a handler may want to know of one."""

    peer: tuple[str, int]
    listener: str


class ControllerRouter(QuorumRouter):
    """Requests to the controller of one node. Loop thread only."""

    def __init__(self, ports: Ports, controller: Controller, control: ClusterControl) -> None:
        """`ports` may lack what only a broker has."""
        super().__init__(ports, controller.quorum.driver)
        self._controller = controller
        self._control = control
        self._listener = controller.config.controller_listener_names[0]
        self._context = bound_context(ports, controller=controller, router=self)
        self._forwarded = bound_context(ports, controller=controller, router=self, forwarded=True)
        for key in control.api_keys:
            self._add(key, (APIS[key].min_version, APIS[key].max_stable_version), self._ask_control)
        self._add(ApiVersionsRequest.API_KEY, api_versions.VERSIONS, api_versions.handle)
        self._add(EnvelopeRequest.API_KEY, (0, 0), self._envelope)
        self._borrowed = (EVERYWHERE | FORWARDED_KEYS) & HANDLERS.keys() - self._routes.keys()

    def route(self, api_key: int) -> Route | None:
        """The handler of an API; one of the broker's is loaded at its first use."""
        found = super().route(api_key)
        if found is None and api_key in self._borrowed:
            module = load_handler(api_key)
            self._add(api_key, module.VERSIONS, self._guarded(api_key, module.handle))
            found = self._routes[api_key]
        return found

    def versions(self) -> dict[int, tuple[int, int]]:
        for key in self._borrowed:
            self.route(key)
        return super().versions()

    def _add(self, key: int, versions: tuple[int, int], handle: Callable[[RequestContext, Any], Any]) -> None:
        self._routes[key] = Route(key, cast("ModuleType", SimpleNamespace(VERSIONS=versions, handle=handle)))

    async def serve(self, message: Message) -> Message:
        """The answer to a request of this very process, by a call: what a `ControllerChannel` is given as `local`."""
        return await self._served(message, APIS[message.API_KEY].max_stable_version, None, ("127.0.0.1", 0))

    async def _served(self, request: Message, version: int, client_id: bytes | None, peer: tuple[str, int]) -> Message:
        """Have the handler of a request answer that came over no connection. Raises what it raises."""
        route = self.route(request.API_KEY)
        if route is None or not route.versions[0] <= version <= route.versions[1]:
            raise UnsupportedVersion(
                f"{api_name(request.API_KEY)} version {version} is nothing that this controller serves"
            )
        caller = cast("Connection", _Caller(peer, self._listener))
        assert route.handle is not None
        answer = route.handle(self._forwarded(caller, version, client_id), request)
        response: Message = await answer if inspect.isawaitable(answer) else answer
        return response

    async def _ask_control(self, context: RequestContext, request: Message) -> Message:
        link = context.connection
        if isinstance(link, _Caller):  # that is this process
            return await self._control.serve(request, context.api_version)
        if isinstance(request, BrokerHeartbeatRequest):
            link.on_closed = partial(self._control.broken, request.broker_id, request.broker_epoch, link)
        return await self._control.serve(request, context.api_version, link)

    def _guarded(self, key: int, handle: Callable[[RequestContext, Any], Any]) -> Callable[[RequestContext, Any], Any]:
        """A handler of the broker's, for a controller that may not be the active one."""

        async def served(context: RequestContext, request: Message) -> Message:
            try:
                if key not in EVERYWHERE and not self._controller.is_active:
                    raise NotController(f"node {self._controller.node_id} is not the active controller")
                answer = handle(context, request)
                response: Message = await answer if inspect.isawaitable(answer) else answer
            except KafkaError as error:
                return fitted(error_response(request, error.code), context.api_version)
            return response

        return served

    async def _envelope(self, context: RequestContext, envelope: EnvelopeRequest) -> EnvelopeResponse:
        async def handle(forwarded: Forwarded) -> Message:
            header = forwarded.header
            client_id = None if header.client_id is None else header.client_id.encode()
            return await self._served(forwarded.request, header.api_version, client_id, (forwarded.address, 0))

        # Nobody is authorized here, nor anywhere in the broker.
        return await serve_envelope(envelope, handle, allowed=True)
