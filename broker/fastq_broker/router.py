"""Requests to handlers: by API key and version, each handler module loaded when its API is first asked for.

Rules
- `HANDLERS` is the one list of what the broker serves; each module declares API_KEY, VERSIONS and handle().
- A module with `handle_frame(connection, ports, buffer, header)` decodes its own frames (Produce and Fetch do).
- An unknown key or version closes the connection, but ApiVersions answers UNSUPPORTED_VERSION in its v0 body.
- An error that a handler raises becomes the API's own error response where it has a top-level error code; otherwise
  the connection is closed, and so it is where no answer can be made. Either way the broker goes on.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from fastq._native.wire import DecodeError, EncodeError, Reader
from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.api import APIS, api_name
from fastq.protocol.frames import decode_body, encode_response
from fastq.protocol.message import Message

from .connection import CARRY_RECORDS, Connection, ProtocolViolation, too_large
from .error_responses import error_said
from .log import failures
from .ports import Ports

if TYPE_CHECKING:
    from types import ModuleType
    from typing import TypeAlias

    from fastq._native.fetch_path import PartitionData

    from .output import Part

logger = logging.getLogger(__name__)

HANDLERS: dict[int, str] = {
    0: "produce",
    1: "fetch",
    2: "list_offsets",
    3: "metadata",
    8: "offset_commit",
    9: "offset_fetch",
    10: "find_coordinator",
    11: "join_group",
    12: "heartbeat",
    13: "leave_group",
    14: "sync_group",
    15: "describe_groups",
    16: "list_groups",
    18: "api_versions",
    19: "create_topics",
    20: "delete_topics",
    21: "delete_records",
    22: "init_producer_id",
    23: "offset_for_leader_epoch",
    24: "add_partitions_to_txn",
    25: "add_offsets_to_txn",
    26: "end_txn",
    27: "write_txn_markers",
    28: "txn_offset_commit",
    29: "describe_acls",
    30: "create_acls",
    31: "delete_acls",
    32: "describe_configs",
    33: "alter_configs",
    34: "alter_replica_log_dirs",
    35: "describe_log_dirs",
    37: "create_partitions",
    42: "delete_groups",
    43: "elect_leaders",
    44: "incremental_alter_configs",
    45: "alter_partition_reassignments",
    46: "list_partition_reassignments",
    47: "offset_delete",
    48: "describe_client_quotas",
    49: "alter_client_quotas",
    50: "describe_user_scram_credentials",
    51: "alter_user_scram_credentials",
    55: "describe_quorum",
    57: "update_features",
    60: "describe_cluster",
    61: "describe_producers",
    64: "unregister_broker",
    65: "describe_transactions",
    66: "list_transactions",
    68: "consumer_group_heartbeat",
    69: "consumer_group_describe",
    74: "list_config_resources",
    75: "describe_topic_partitions",
    80: "add_raft_voter",
    81: "remove_raft_voter",
    10000: "mirror_append",
    10001: "mirror_pull",
}

API_VERSIONS = 18

Header: TypeAlias = "tuple[int, int, int, bytes | None, int, int]"
"""api key, api version, correlation id, client id, body start, frame end: what scan_request answers."""


class Deferred:
    """A response that comes later: created by the handler that waits, completed or cancelled once. Loop thread only.

    It may be completed before the handler returns it: the answer is kept in `answer` until the connection takes it up.

    Invariant: once completed or cancelled it holds nothing of who waited. They hold each other, and a cycle for each request would
    have the collector stop the loop, for a tenth of a second, as often as some thousands of requests have waited.
    """

    __slots__ = ("_connection", "answer", "answered", "attached", "cancelled", "on_cancel", "on_hurry")

    def __init__(self, connection: Connection, on_cancel: Callable[[], object] | None = None) -> None:
        self._connection = connection
        self.on_cancel = on_cancel
        self.on_hurry: Callable[[], None] | None = None
        self.cancelled = False
        self.attached = False
        self.answered = False
        self.answer: bytes | list[Part] | None = None

    def complete(self, response: bytes | list[Part] | None) -> None:
        """Answer; does nothing once the connection is gone."""
        self.on_cancel = self.on_hurry = None
        if self.attached:
            self._connection.complete(self, response)
        else:
            self.answered = True
            self.answer = response

    def complete_with(self, make: Callable[[], bytes | list[Part]], what: str) -> None:
        """Answer what `make` makes; where that fails the client is not left waiting. `what` is the request's name."""
        try:
            self.complete(make())
        except Exception as error:
            failures.report(f"answering a {what}", error)
            self.refuse(f"{what} failed: {error!r}")

    def hand_over(self, connection: Any) -> None:
        """Answer to `connection` instead: what stands between, as the fault switches do, gets `complete` and `fail`."""
        self._connection = connection
        self.attached = True

    @property
    def answers_to(self) -> Any:
        """The connection, or what stands between."""
        return self._connection

    def refuse(self, reason: str) -> None:
        """Close the connection instead of answering."""
        if not self.cancelled:
            self._connection.fail(reason)

    def hurry(self) -> None:
        """The client will not ask for more: answer soon, with what is there."""
        if self.on_hurry is not None:
            self.on_hurry()

    def cancel(self) -> None:
        """The connection is gone: stop waiting."""
        self.cancelled = True
        on_cancel, self.on_cancel, self.on_hurry = self.on_cancel, None, None
        if on_cancel is not None:
            on_cancel()


Result: TypeAlias = "bytes | list[Part] | Deferred | None"


class RequestContext(Ports):
    """What a handler knows of the request besides its body, and the ports that it may use.

    The ports are attributes of the class that `bound_context` makes, so that a request pays nothing for them.
    """

    __slots__ = ("api_version", "client_id", "connection", "listener", "peer")
    forwarded: ClassVar[bool] = False
    """Whether a broker passes the request on, and has judged of it what it alone can."""

    def __init__(self, connection: Connection, api_version: int, client_id: bytes | None) -> None:
        self.connection = connection
        self.api_version = api_version
        self.client_id = "" if client_id is None else client_id.decode("utf-8", "replace")
        self.peer = connection.peer
        self.listener = connection.listener


def bound_context(ports: Ports, **more: Any) -> type[RequestContext]:
    """The contexts of requests to one node: of its parts those that are there, and `more`."""
    parts = {name: getattr(ports, name) for name in Ports.__annotations__ if hasattr(ports, name)} | more
    for name, part in parts.items():
        if inspect.isfunction(part):  # the clock: no method of the context
            parts[name] = staticmethod(part)
    return type("BoundContext", (RequestContext,), {"__slots__": (), **parts})


class Route:
    """A loaded handler."""

    __slots__ = ("api_key", "handle", "handle_frame", "name", "versions")

    def __init__(self, api_key: int, module: ModuleType) -> None:
        info = APIS[api_key]
        self.api_key = api_key
        self.name = info.name
        self.versions: tuple[int, int] = module.VERSIONS
        self.handle: Callable[[RequestContext, Any], Any] | None = getattr(module, "handle", None)
        self.handle_frame = getattr(module, "handle_frame", None)
        if self.handle is None and self.handle_frame is None:
            raise TypeError(f"{module.__name__} has neither handle nor handle_frame")


def load_handler(api_key: int) -> ModuleType:
    """The module of `HANDLERS` for an API."""
    return import_module(f"fastq_broker.handlers.{HANDLERS[api_key]}")


class Router:
    """Dispatches requests. Loop thread only."""

    forwards = True
    """Whether what only the active controller can do is for it to serve; where nodes speak with each other, it is served or refused."""
    counts_fetches = False
    """Whether `fetched` wants to hear of what fetches are answered with."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._context = RequestContext
        self._routes: dict[int, Route] = {}
        self._non_produce_bytes_max = ports.config.non_produce_request_max_bytes

    def route(self, api_key: int) -> Route | None:
        """The handler of an API, loaded at its first use; None when the broker does not serve it."""
        found = self._routes.get(api_key)
        if found is None and api_key in HANDLERS:
            if self._context is RequestContext:  # the first request: all parts of the node are there by now
                self._context = bound_context(self._ports)
            found = Route(api_key, load_handler(api_key))
            self._routes[api_key] = found
        return found

    def versions(self) -> dict[int, tuple[int, int]]:
        """The served versions of each API, by key."""
        return {key: route.versions for key in HANDLERS if (route := self.route(key)) is not None}

    def dispatch(self, connection: Connection, buffer: bytearray, header: Header) -> Result:
        """Serve one request. Raises DecodeError or ProtocolViolation for one that closes the connection."""
        try:
            route = self._routes.get(header[0]) or self.route(header[0])
        except (ImportError, OSError) as error:  # short of descriptors or memory
            raise ProtocolViolation(f"the handler of {api_name(header[0])} cannot be loaded: {error}") from error
        if route is None:
            name = APIS[header[0]].name if header[0] in APIS else "not known"
            raise ProtocolViolation(f"api key {header[0]} ({name}), version {header[1]}, is not served by this broker")
        versions = route.versions
        if not versions[0] <= header[1] <= versions[1]:
            if header[0] == API_VERSIONS:
                return self._unsupported_api_versions(header, versions)
            raise ProtocolViolation(
                f"{route.name} version {header[1]} is not supported; the broker serves {versions[0]} to {versions[1]}"
            )
        if header[5] - header[4] > self._non_produce_bytes_max and header[0] not in CARRY_RECORDS:
            raise too_large(header[0], header[5] - header[4], self._non_produce_bytes_max)
        try:
            if route.handle_frame is not None:
                result: Result = route.handle_frame(connection, self._ports, buffer, header)
                return result
            return self._call(route, connection, buffer, header)
        except (DecodeError, ProtocolViolation):
            raise
        except Exception as error:
            logger.exception("%s version %d failed", route.name, header[1])
            raise ProtocolViolation(f"{route.name} failed: {error}") from error

    def partition_failed(self, api_key: int, code: int) -> None:
        """A partition of a Produce or Fetch was answered with an error: for metrics, where they are on."""

    def rejected(self, topic: str, size_bytes: int) -> None:
        """A batch of a producer was refused for its size: for metrics, where they are on."""

    def fetched(self, by_id: bool, follower: bool, results: Iterable[PartitionData]) -> None:
        """What a fetch is answered with, where `counts_fetches` asks for it."""

    def _call(self, route: Route, connection: Connection, buffer: bytearray, header: Header) -> Result:
        """Decode, call, encode: the way of every API but the hot ones."""
        api_key, version, _, client_id, start, end = header
        request = decode_body(APIS[api_key].request_class(), Reader(buffer, start, end), version, exact=False)
        context = self._context(connection, version, client_id)
        try:
            assert route.handle is not None
            cluster = self._ports.cluster if self.forwards else None
            if cluster is not None and cluster.forwards(api_key, request):
                answer = cluster.forward(context, header, buffer, request, route.handle)
                return self._later(route, connection, header, request, answer)
            response = route.handle(context, request)
        except Exception as error:
            response = self._error_response(route, header, request, error)
        if inspect.isawaitable(response):
            return self._later(route, connection, header, request, response)
        return self._encode(route, header, response)

    def _later(
        self, route: Route, connection: Connection, header: Header, request: Message, response: Awaitable[Any]
    ) -> Deferred:
        """Answer when the handler's coroutine is done; whatever keeps it from that closes the connection, which waits for nothing else. One
        with a `hurry` of its own is told where nobody wants to wait any longer."""

        async def run() -> None:
            try:
                try:
                    result = await response
                except Exception as error:
                    result = self._error_response(route, header, request, error)
                if result is None:
                    raise ProtocolViolation(f"{route.name} version {header[1]} is not known to the active controller")
                deferred.complete(self._encode(route, header, result))
            except ProtocolViolation as violation:
                deferred.refuse(str(violation))
            except Exception as error:
                logger.exception("%s version %d cannot be answered", route.name, header[1])
                deferred.refuse(f"{route.name} failed: {error!r}")
            except BaseException as error:  # cancelled: by who waited, who hears no more of it, or in what was awaited
                deferred.refuse(f"{route.name} failed: {error!r}")
                raise

        coroutine: Coroutine[Any, Any, None] = run()
        loop = self._ports.loop
        task = loop.create_task(coroutine)
        # Not before it has begun: what it, and what that, was to wait for would never be awaited, and say so.
        deferred = Deferred(connection, on_cancel=partial(loop.call_soon, task.cancel))
        deferred.on_hurry = getattr(response, "hurry", None)
        return deferred

    def _encode(self, route: Route, header: Header, response: Any) -> bytes:
        """The response frame; one that its version cannot carry is a mistake of the broker, and closes the connection."""
        try:
            return encode_response(header[2], response, header[1])
        except EncodeError as error:
            logger.error("%s version %d: the response cannot be encoded", route.name, header[1], exc_info=error)
            raise ProtocolViolation(f"{route.name} failed") from error

    def _error_response(self, route: Route, header: Header, request: Message, error: Exception) -> Message:
        """The error, at the top or for each item of the request; ProtocolViolation where the answer has room for neither."""
        code, words = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
        if code == ErrorCode.UNKNOWN_SERVER_ERROR:
            words = f"{route.name} failed in the broker, whose log has more: {error!r}"
            logger.error("%s version %d failed", route.name, header[1], exc_info=error)
        response = error_said(request, header[1], code, words)
        if response is None:
            raise ProtocolViolation(f"{route.name} failed: {error}")
        return response

    def _unsupported_api_versions(self, header: Header, versions: tuple[int, int]) -> bytes:
        """KIP-511: error 35 in a v0 body that lists ApiVersions alone, so that the client can come down."""
        response_class: Any = APIS[API_VERSIONS].response_class()
        own = response_class.ApiVersion(api_key=API_VERSIONS, min_version=versions[0], max_version=versions[1])
        return encode_response(header[2], response_class(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own]), 0)
