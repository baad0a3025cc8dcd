"""One TCP connection to a broker, without the socket: bytes and `now` in, buffers to write and responses out.

The phases of a connection, by security protocol; a phase that succeeds leads to the next, anything else leads to CLOSED:

    PLAINTEXT       CONNECTING  API_VERSIONS  READY
    SSL             CONNECTING  TLS  API_VERSIONS  READY
    SASL_PLAINTEXT  CONNECTING  API_VERSIONS  SASL_HANDSHAKE  SASL_AUTHENTICATE  READY
    SASL_SSL        CONNECTING  TLS  API_VERSIONS  SASL_HANDSHAKE  SASL_AUTHENTICATE  READY

Rules of this file:
- Kafka answers in the order of the requests, so a response belongs to the oldest request; another correlation id, or bytes
  that do not decode, end the connection: nothing after them can be trusted.
- A connection is used once. Reconnecting makes a new one (see `peers.py`), so a late event of an old socket harms nobody.
- Every request handed to `send` is completed exactly once: with its response, or with the error that closed the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from fastq import __version__
from fastq._native.framing import FrameReceiver, FrameSizeError
from fastq._native.wire import DecodeError
from fastq.errors import (
    ErrorCode,
    FastqError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
    error_for_code,
)
from fastq.net import diagnosis
from fastq.net.requests import Done, EncodedRequest, HeaderEncoder, PendingRequest, decode_response
from fastq.net.sasl import Mechanism, SaslError, mechanism
from fastq.protocol.api import APIS, ApiKey, api_name
from fastq.protocol.messages import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from fastq.protocol.negotiation import BrokerVersions

if TYPE_CHECKING:
    import ssl

    from typing_extensions import Buffer

    from fastq.config import ClientConfig
    from fastq.net.tls import TlsLayer

SOFTWARE_NAME, SOFTWARE_VERSION = "fastq", __version__  # what KIP-511 tells the broker
SETUP_RESPONSE_BYTES_MAX = 1024 * 1024
NEVER = float("inf")


class State(Enum):
    """Phases; the value is what error messages call it."""

    CONNECTING = "connect"
    TLS = "tls"
    API_VERSIONS = "api versions"
    SASL_HANDSHAKE = "sasl handshake"
    SASL_AUTHENTICATE = "sasl"
    READY = "ready"
    CLOSED = "closed"


_TLS = (State.TLS,)
_SASL = (State.SASL_HANDSHAKE, State.SASL_AUTHENTICATE)
PATHS: dict[str, tuple[State, ...]] = {
    "PLAINTEXT": (State.CONNECTING, State.API_VERSIONS, State.READY),
    "SSL": (State.CONNECTING, *_TLS, State.API_VERSIONS, State.READY),
    "SASL_PLAINTEXT": (State.CONNECTING, State.API_VERSIONS, *_SASL, State.READY),
    "SASL_SSL": (State.CONNECTING, *_TLS, State.API_VERSIONS, *_SASL, State.READY),
}
NEXT: dict[tuple[str, State], State] = {
    (protocol, path[i]): path[i + 1] for protocol, path in PATHS.items() for i in range(len(path) - 1)
}


class Owner(Protocol):
    """What a connection tells the core."""

    completions: deque[tuple[Done, Any, FastqError | None]]
    writable: dict[Connection, None]
    deadline: float

    def call_at(self, when: float, callback: Callable[[float], object]) -> object:
        """Call `callback(now)` at `when` on the core's clock."""

    def doubt(self, connection: Connection, versions: BrokerVersions) -> FastqError | None:
        """What keeps the connection from being used with these versions."""

    def connection_ready(self, connection: Connection, now: float) -> None:
        """All phases are through."""

    def connection_closed(self, connection: Connection, error: FastqError, now: float) -> None:
        """The connection is over, and all its requests are completed."""


class ConnectionSettings:
    """What all connections of one client share."""

    __slots__ = ("config", "header", "phase_timeout_s", "ssl_context")

    def __init__(self, config: ClientConfig, ssl_context: ssl.SSLContext | None) -> None:
        self.config = config
        self.ssl_context = ssl_context
        self.header = HeaderEncoder(config.client_id)
        self.phase_timeout_s = config.socket_connection_setup_timeout_ms / 1000


class Connection:
    """The state machine. Not thread-safe: whoever has the driver's turn may touch it.

    Invariants: `in_flight` holds the requests that wait for a response, oldest first; `outgoing` the buffers not yet taken
    by the system; in state CLOSED both are empty. `error` is why it was closed, or is to be, where there was no memory for that.
    `answered_in_s` is how long the last answer took; `awaits_much` says that the socket has the mark of `low_water.py`. `is_ready` says
    whether new requests may be sent: in state READY until it is retired. `transport` is the driver's own handle and opaque here.
    """

    __slots__ = (
        "_bytes_queued",
        "_bytes_sent",
        "_cipher",
        "_correlation_id",
        "_frames",
        "_hostname",
        "_owner",
        "_sasl",
        "_settings",
        "_tls",
        "_unanswered",
        "answered_in_s",
        "awaits_much",
        "broker",
        "error",
        "in_flight",
        "is_ready",
        "last_used",
        "node_id",
        "outgoing",
        "paused",
        "phase_deadline",
        "reached_ready",
        "retire_at",
        "state",
        "transport",
        "versions",
    )

    def __init__(
        self,
        owner: Owner,
        settings: ConnectionSettings,
        node_id: int,
        broker: str,
        hostname: str,
        now: float,
        phase_timeout_s: float | None = None,
    ) -> None:
        self._owner = owner
        self._settings = settings
        self._hostname = hostname
        # Set-up responses are small; a TLS record or a line of text read as a size is not.
        self._frames = FrameReceiver(min(SETUP_RESPONSE_BYTES_MAX, settings.config.response_bytes_max))
        self._tls: TlsLayer | None = None
        self._cipher: memoryview | None = None
        self._sasl: Mechanism | None = None
        self._correlation_id = 0
        self._bytes_queued = self._bytes_sent = 0
        self._unanswered: deque[tuple[int, PendingRequest]] = deque()
        self.node_id = node_id
        self.broker = broker
        self.state = State.CONNECTING
        self.error: FastqError | None = None
        self.in_flight: deque[PendingRequest] = deque()
        self.outgoing: deque[Buffer] = deque()
        self.paused = False
        self.transport: Any = None
        self.versions: BrokerVersions | None = None
        self.last_used = now
        self.answered_in_s = 0.0
        self.awaits_much = False
        self.phase_deadline = now + (phase_timeout_s or settings.phase_timeout_s)
        self.retire_at = NEVER
        self.is_ready = self.reached_ready = False

    def __repr__(self) -> str:
        return f"<Connection to {self.broker}: {self.state.value}, {len(self.in_flight)} in flight>"

    # -- from the driver -------------------------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """The socket is connected."""
        if self.state is State.CONNECTING:
            self._advance(now)

    def get_buffer(self) -> memoryview:
        """Where the next received bytes go; never empty."""
        return self._frames.get_buffer() if self._cipher is None else self._cipher

    @property
    def is_idle(self) -> bool:
        """Whether a request may be sent, and nothing is on its way in either direction, without TLS."""
        return (
            self.is_ready
            and not self.in_flight
            and not self.outgoing
            and self._tls is None
            and not self._frames.is_mid_frame
        )

    @property
    def awaited_bytes(self) -> int:
        """How many bytes of a large answer are still to be received; 0 where that is not known, and with TLS."""
        return self._frames.awaited_bytes if self._tls is None else 0

    def exchange(self, descriptor: int, wait_s: float) -> tuple[int, int, int]:
        """On a connection that was idle before its one request was queued: `FrameReceiver.exchange`, whose words hold."""
        return self._frames.exchange(descriptor, self.outgoing[0], wait_s)  # type: ignore[arg-type]  # joined: bytes

    def buffer_updated(self, count: int, now: float) -> None:
        """`count` bytes were received into the buffer that `get_buffer` gave."""
        if self.state is State.CLOSED:
            return
        self.last_used = now
        if self._tls is not None:
            self._decrypt(count, now)
        else:
            self._received(count, now)

    def connection_lost(self, error: BaseException | None, now: float) -> None:
        """The socket is gone, or could not be connected: an OSError, or None at the peer's orderly end."""
        if self.state is not State.CLOSED:
            uses_tls = self._settings.config.uses_tls
            self.close(diagnosis.from_os_error(self.broker, self.phase, error, uses_tls), now)

    def data_sent(self, count: int) -> None:
        """The system took the first `count` bytes of `outgoing`."""
        self._bytes_sent += count
        outgoing = self.outgoing
        if self._bytes_sent == self._bytes_queued:
            outgoing.clear()
        while outgoing:
            first = outgoing[0]
            size = first.nbytes if type(first) is memoryview else len(first)  # type: ignore[arg-type]
            if count < size:
                if count:
                    outgoing[0] = memoryview(first).cast("B")[count:]
                break
            # Empty buffers (a body without fields) go with what is before them.
            outgoing.popleft()
            count -= size
        # A request that expects no response is done when the system has its last byte.
        while self._unanswered and self._unanswered[0][0] <= self._bytes_sent:
            self._owner.completions.append((self._unanswered[0][1].on_done, None, None))
            self._unanswered.popleft()

    # -- from the core ---------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """How far it has come, as messages call it."""
        return "sasl" if self.state is State.SASL_HANDSHAKE else self.state.value

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that wait for the system to take them."""
        return self._bytes_queued - self._bytes_sent

    def send(self, pending: PendingRequest, now: float) -> None:
        """Queue a request. Raises UnsupportedVersion or an encoder's error, in which case nothing was queued."""
        request, versions = pending.request, self.versions
        assert versions is not None
        if type(request) is EncodedRequest:
            version = pending.version = request.version
            versions.pick(pending.api_key, version, version)  # raises, with the words for it
            expects_response = request.expects_response
        else:
            low, high = pending.versions or (None, None)
            pending.version = versions.pick(pending.api_key, low, high)
            expects_response = True
        self._queue(pending, now, expects_response)

    def expire(self, now: float) -> None:
        """Close the connection when its phase or one of its requests is out of time."""
        if self.state is State.CLOSED:
            return
        if self.error is not None:  # there was no memory to close it
            self.close(self.error, now)
            return
        if self.state is not State.READY:
            if now >= self.phase_deadline:
                self.close(diagnosis.timed_out(self.broker, self.phase, self._settings.phase_timeout_s), now)
            return
        late = next((pending for pending in self.in_flight if pending.deadline <= now), None)
        if late is None:
            late = next((pending for _, pending in self._unanswered if pending.deadline <= now), None)
        if late is not None:
            self.close(diagnosis.request_timed_out(self.broker, api_name(late.api_key), now - late.sent_at), now)

    @property
    def deadline(self) -> float:
        """When `expire` has something to do."""
        if self.error is not None:
            return 0.0
        if self.state is not State.READY:
            return self.phase_deadline
        waiting = [pending.deadline for pending in self.in_flight]
        waiting.extend(pending.deadline for _, pending in self._unanswered)
        return min(waiting, default=NEVER)

    def close(self, error: FastqError, now: float) -> None:
        """Complete every request with `error` and tell the owner. Idempotent; what there is no memory for, `expire` goes on with."""
        if self.state is State.CLOSED:
            return
        self.is_ready, self.error = False, error
        owner, was_ready = self._owner, self.state is State.READY
        owner.deadline = min(owner.deadline, now)
        completions = owner.completions
        while self.in_flight:
            if was_ready:
                completions.append((self.in_flight[0].on_done, None, error))
            self.in_flight.popleft()
        while self._unanswered:
            completions.append((self._unanswered[0][1].on_done, None, error))
            self._unanswered.popleft()
        owner.connection_closed(self, error, now)
        self.state = State.CLOSED
        self.outgoing.clear()

    # -- phases ----------------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """The current phase succeeded: enter the next."""
        config = self._settings.config
        self.state = NEXT[config.security_protocol, self.state]
        self.phase_deadline = now + self._settings.phase_timeout_s
        if self.state is State.TLS:
            context = self._settings.ssl_context
            assert context is not None
            from fastq.net.tls import CIPHER_CHUNK_BYTES, TlsLayer

            self._tls = TlsLayer(context, self._hostname)
            self._cipher = memoryview(bytearray(CIPHER_CHUNK_BYTES))
            self._tls_handshake(now)
        elif self.state is State.API_VERSIONS:
            self._ask_versions(APIS[ApiKey.API_VERSIONS].max_stable_version, now)
        elif self.state is State.SASL_HANDSHAKE:
            assert self.versions is not None
            try:
                version = self.versions.pick(ApiKey.SASL_HANDSHAKE, 1)
            except UnsupportedVersion as error:
                plain = config.security_protocol.removeprefix("SASL_")
                self.close(
                    error.with_context(hint=f"The listener may take no logins: try security_protocol={plain}"), now
                )
                return
            self._ask(SaslHandshakeRequest(mechanism=config.sasl_mechanism), version, now)
        elif self.state is State.SASL_AUTHENTICATE:
            try:
                self._sasl = mechanism(config.sasl_mechanism, config.sasl_username or "", config.sasl_password or "")
            except SaslError as error:
                self._sasl_failed(str(error), now)
                return
            self._authenticate(self._sasl.first(), now)
        else:
            self.reached_ready = True
            self.is_ready = self.retire_at == NEVER
            self._frames.limit = config.response_bytes_max
            self._owner.connection_ready(self, now)

    def _ask(self, request: Any, version: int, now: float) -> None:
        pending = PendingRequest(request, _ignore, NEVER)
        pending.version = version
        self._queue(pending, now, True)

    def _ask_versions(self, version: int, now: float) -> None:
        request = ApiVersionsRequest()
        if version >= 3:
            request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        self._ask(request, version, now)

    def _authenticate(self, message: bytes, now: float) -> None:
        assert self.versions is not None
        version = self.versions.pick(ApiKey.SASL_AUTHENTICATE)
        self._ask(SaslAuthenticateRequest(auth_bytes=message), version, now)

    def _phase_response(self, pending: PendingRequest, response: Any, now: float) -> None:
        if self.state is State.API_VERSIONS:
            self._versions_received(pending, response, now)
        elif self.state is State.SASL_HANDSHAKE:
            self._mechanisms_received(response, now)
        else:
            self._challenge_received(response, now)

    def _versions_received(self, pending: PendingRequest, response: Any, now: float) -> None:
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and pending.version > 0:
            # An older broker answers in version 0, and may say which versions of ApiVersions it has (KIP-511).
            theirs = [entry.max_version for entry in response.api_keys if entry.api_key == ApiKey.API_VERSIONS]
            self._ask_versions(max(0, min([pending.version - 1, *theirs])) if theirs else 0, now)
        elif response.error_code:
            error = error_for_code(response.error_code, broker=self.broker, api="ApiVersions")
            self.close(error, now)
        else:
            features = {entry.name: entry.max_version_level for entry in response.finalized_features}
            epoch = response.finalized_features_epoch
            self.versions = BrokerVersions(response.api_keys, self.broker, features, epoch)
            doubt = self._owner.doubt(self, self.versions)
            if doubt is None:
                self._advance(now)
            else:
                self.close(doubt, now)

    def _mechanisms_received(self, response: Any, now: float) -> None:
        wanted = self._settings.config.sasl_mechanism
        if response.error_code or wanted not in response.mechanisms:
            self.close(
                UnsupportedSaslMechanism(
                    f"the broker does not offer the SASL mechanism {wanted}",
                    broker=self.broker,
                    phase="sasl",
                    hint=f"It offers {', '.join(response.mechanisms) or 'none'}; set sasl_mechanism to one of them",
                ),
                now,
            )
        else:
            self._advance(now)

    def _challenge_received(self, response: Any, now: float) -> None:
        if response.error_code:
            self._sasl_failed(response.error_message or error_for_code(response.error_code).message, now)
            return
        assert self._sasl is not None
        try:
            answer = self._sasl.respond(response.auth_bytes)
        except SaslError as error:
            self._sasl_failed(str(error), now)
            return
        if answer is not None:
            self._authenticate(answer, now)
            return
        if response.session_lifetime_ms > 0:
            # KIP-368: the broker ends the session then; a new connection well before is simpler than a second login.
            self._owner.call_at(now + 0.85e-3 * response.session_lifetime_ms, self._retire)
        self._advance(now)

    def _retire(self, now: float) -> None:
        self.retire_at, self.is_ready = now, False
        if not self.in_flight:
            self.close(diagnosis.retired(self.broker), now)

    def _sasl_failed(self, cause: str, now: float) -> None:
        config = self._settings.config
        self.close(
            SaslAuthenticationFailed(
                f"the broker refused the login of {config.sasl_username!r} by {config.sasl_mechanism}",
                broker=self.broker,
                phase="sasl",
                cause=cause,
                hint="Check sasl_username, sasl_password and sasl_mechanism",
            ),
            now,
        )

    # -- bytes -----------------------------------------------------------------------------------------------------------

    def _queue(self, pending: PendingRequest, now: float, expects_response: bool) -> None:
        pending.correlation_id = self._correlation_id
        buffers, size = self._settings.header.frame(pending)
        following, before = (self._correlation_id + 1) & 0x7FFFFFFF, len(self.outgoing)
        self._owner.writable[self] = None
        try:  # all of it is queued, or nothing where there is no memory: an answer belongs to the oldest request
            if self._tls is not None:
                for buffer in buffers:
                    self._tls.encrypt(buffer)
                buffers = [self._tls.take_output()]
                size = len(buffers[0])  # type: ignore[arg-type]  # bytes
            self.outgoing.extend(buffers)
            queued = self._bytes_queued + size
            if expects_response:
                self.in_flight.append(pending)
            else:
                self._unanswered.append((queued, pending))
        except BaseException as error:
            while len(self.outgoing) > before:
                self.outgoing.pop()
            if self._tls is not None:  # the peer would miss what was encrypted
                self.connection_lost(OSError(f"interrupted by {type(error).__name__}"), now)
            raise
        self._correlation_id, self._bytes_queued = following, queued
        pending.sent_at = self.last_used = now

    def _received(self, count: int, now: float) -> None:
        try:
            frames = self._frames.buffer_updated(count)
        except FrameSizeError as error:
            if self.state is State.READY:
                api = api_name(self.in_flight[0].api_key) if self.in_flight else "none"
                self.close(diagnosis.malformed(self.broker, api, error), now)
            else:
                self.close(diagnosis.not_kafka(self.broker, self.state.value, error.head, str(error)), now)
            return
        for frame in frames:
            self._frame(frame, now)
            if self.state is State.CLOSED:
                return
        if self._frames.is_broken:  # what came before that counts
            self._received(0, now)

    def _frame(self, frame: memoryview, now: float) -> None:
        if not self.in_flight:
            self.close(diagnosis.malformed(self.broker, "none", "a response to no request"), now)
            return
        pending = self.in_flight[0]
        try:
            response = decode_response(pending, frame)
        except DecodeError as error:
            if self.state is State.API_VERSIONS:
                head = len(frame).to_bytes(4, "big") + bytes(frame[:28])
                self.close(diagnosis.not_kafka(self.broker, self.state.value, head, str(error)), now)
            else:
                self.close(diagnosis.malformed(self.broker, api_name(pending.api_key), error), now)
            return
        if self.state is not State.READY:
            self.in_flight.popleft()
            self._phase_response(pending, response, now)
            return
        self.answered_in_s = now - pending.sent_at
        self._owner.completions.append((pending.on_done, response, None))
        self.in_flight.popleft()  # then: where there is no memory for the answer, it is told of the end of the connection
        if self.retire_at != NEVER and not self.in_flight:
            self._retire(now)

    def _decrypt(self, count: int, now: float) -> None:
        import ssl

        tls, cipher = self._tls, self._cipher
        assert tls is not None and cipher is not None
        tls.feed(cipher[:count])
        try:
            if self.state is State.TLS:
                self._tls_handshake(now)
            while self.state not in (State.TLS, State.CLOSED):
                plain = tls.read_into(self._frames.get_buffer())
                if plain == 0:
                    break
                self._received(plain, now)
        except EOFError:
            self.connection_lost(None, now)
        except ssl.SSLError as error:
            self.connection_lost(error, now)
        else:
            self._flush_tls()

    def _tls_handshake(self, now: float) -> None:
        import ssl

        tls = self._tls
        assert tls is not None
        try:
            done = tls.handshake()
        except ssl.SSLError as error:
            self.connection_lost(error, now)
            return
        self._flush_tls()
        if done:
            self._advance(now)

    def _flush_tls(self) -> None:
        # Handshake records, key updates and alerts, which no request of ours asked for.
        assert self._tls is not None
        cipher = self._tls.take_output()
        if cipher and self.state is not State.CLOSED:
            self.outgoing.append(cipher)
            self._bytes_queued += len(cipher)
            self._owner.writable[self] = None


def _ignore(_response: object, _error: object) -> None:
    """The phases of a connection look at their responses themselves."""
