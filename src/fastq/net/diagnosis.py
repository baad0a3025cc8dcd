"""From what a socket or a peer did to the exception that tells the user what is wrong.

Rules of this file: every error names the broker, how far the connection came (`phase`), what the system said
(`cause`), and what to do (`hint`). The raw OSError is never what a user has to read.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastq.errors import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionRefused,
    ConnectionTimeout,
    ErrorCode,
    FastqError,
    InvalidRequest,
    LeaderNotAvailable,
    NameNotResolved,
    NotAKafkaBroker,
    ProtocolError,
    ThrottlingQuotaExceeded,
    TlsExpected,
    UnsupportedVersion,
    error_for_code,
)
from fastq.protocol.message import NotInVersion

if TYPE_CHECKING:
    import ssl

    from fastq.metadata import ClusterMetadata
    from fastq.net.core import ClientCore

# What is said with the error of an address that nobody has given to the client itself.
ADVERTISED = "; the address is the one that the cluster advertises (advertised.listeners of the broker)"
OF_A_CONTROLLER = (
    "; the address is a controller's (from controller.quorum.voters or controller.quorum.bootstrap.servers, or what that controller "
    "has registered)"
)

_TLS_RECORD_TYPES = (20, 21, 22, 23)
_NOT_TLS_REASONS = (
    "WRONG_VERSION_NUMBER",
    "UNKNOWN_PROTOCOL",
    "PACKET_LENGTH_TOO_LONG",
    "HTTP_REQUEST",
    "RECORD_LAYER_FAILURE",
)


def name_not_resolved(broker: str, cause: OSError | str) -> ConnectionFailed:
    """The resolver had no address, or none in time."""
    return NameNotResolved(
        broker=broker, phase="resolve", cause=_words(cause), hint="Check the host name in bootstrap_servers"
    )


def timed_out(broker: str, phase: str, seconds: float) -> ConnectionFailed:
    """A phase of setting up the connection took too long."""
    hints = {
        "resolve": "The name server does not answer; check the DNS",
        "connect": "Check that the broker runs, and that no firewall drops packets to this port",
        "tls": "The peer does not answer a TLS hello; check the port and security_protocol",
        "api versions": "The peer took the connection and says nothing; check that this is the port of a Kafka broker",
    }
    hint = hints.get(phase, "The broker may be overloaded; raise socket_connection_setup_timeout_ms if it is only slow")
    return ConnectionTimeout(broker=broker, phase=phase, cause=f"no answer within {seconds:.3g} s", hint=hint)


def not_ready(broker: str) -> ConnectionFailed:
    """The time of a request was over before its connection could carry it, and no attempt has failed yet."""
    return ConnectionTimeout(
        broker=broker,
        phase="connect",
        cause="the connection was not ready within the time of the request",
        hint="Check that the broker runs, and that no firewall drops packets to this port",
    )


def not_sent(broker: str, api: str, cause: Exception) -> FastqError:
    """Why nothing of a request went out."""
    if isinstance(cause, FastqError):
        return cause
    if isinstance(cause, MemoryError):
        what = f"the request was not sent: there was no memory for {api}"
        return ConnectionFailed(what, broker=broker, api=api, phase="ready", cause=cause)
    return not_encodable(broker, api, cause)


def not_encodable(broker: str, api: str, cause: Exception) -> FastqError:
    """The request asks for something that the negotiated version cannot carry, or none. It was not sent."""
    if not isinstance(cause, NotInVersion):
        return InvalidRequest(
            f"the request was not sent: {api} cannot carry what it was given",
            api=api,
            cause=cause,
            hint="Look at the arguments: names are str of up to 32,767 bytes, numbers are int",
        )
    return UnsupportedVersion(
        f"the broker's version of {api} cannot carry this request",
        broker=broker,
        api=api,
        cause=str(cause),
        hint="The broker is too old for this",
    )


def is_permanent(error: FastqError) -> bool:
    """Whether another address of the same broker, or another attempt at once, would end alike."""
    return not error.retriable or (isinstance(error, ConnectionFailed) and error.phase == "resolve")


def retired(broker: str) -> ConnectionFailed:
    """We closed the connection ourselves, with nothing in flight: idle for long, or its login is about to expire."""
    return ConnectionClosed("the connection was closed by this client", broker=broker, phase="ready")


def request_timed_out(broker: str, api: str, seconds: float) -> ConnectionFailed:
    """A request had no response in time; the connection is given up with it, since responses come in order."""
    return ConnectionTimeout(
        f"the broker did not answer {api} in time",
        broker=broker,
        phase="ready",
        api=api,
        cause=f"waited {seconds:.3g} s",
    )


def from_os_error(broker: str, phase: str, error: BaseException | None, uses_tls: bool) -> ConnectionFailed:
    """What `error` means in this phase; None is an orderly end of the stream by the peer."""
    if isinstance(error, ConnectionFailed):
        return error
    # Not imported: a Python may have none, and where nobody has loaded it nothing is an error of it.
    tls = sys.modules.get("ssl")
    if tls is not None and isinstance(error, tls.SSLError):
        return _from_ssl(broker, phase, error)
    if isinstance(error, socket.gaierror):
        return name_not_resolved(broker, error)
    if isinstance(error, ConnectionRefusedError):
        return ConnectionRefused(
            broker=broker, phase=phase, cause=_words(error), hint="Check that the broker runs and listens there"
        )
    if isinstance(error, TimeoutError):
        return ConnectionTimeout(broker=broker, phase=phase, cause=_words(error), hint="Check the network")
    hint = None
    if phase == "connect":
        hint = "Check the address and the route to the broker"
    elif phase == "tls":
        hint = "The listener may be plain text: try security_protocol=PLAINTEXT (or SASL_PLAINTEXT)"
    elif phase == "api versions":
        other = "plain text" if uses_tls else "TLS (security_protocol=SSL)"
        hint = f"The listener may expect {other}, or not be Kafka's; Kafka before 0.10 is not supported"
    elif phase == "sasl":
        hint = "The broker closes the connection on a failed login; check sasl_mechanism, the name and the password"
    return ConnectionClosed(broker=broker, phase=phase, cause=_words(error) if error else "end of stream", hint=hint)


def _from_ssl(broker: str, phase: str, error: ssl.SSLError) -> ConnectionFailed:
    import ssl

    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsExpected(
            "the broker's certificate is not trusted",
            broker=broker,
            phase=phase,
            cause=error.verify_message or _words(error),
            hint="Give the right CA with ssl_truststore_location, and connect by the name that the certificate is for",
        )
    if reason in _NOT_TLS_REASONS:
        return TlsExpected(
            "the peer does not speak TLS",
            broker=broker,
            phase=phase,
            cause=_words(error),
            hint="The listener is plain text: use security_protocol=PLAINTEXT (or SASL_PLAINTEXT)",
        )
    return ConnectionClosed("TLS failed", broker=broker, phase=phase, cause=_words(error), hint="Check the ssl_ keys")


def not_kafka(broker: str, phase: str, head: bytes, detail: str = "") -> ConnectionFailed:
    """The first answer is not Kafka's; `head` are its first bytes."""
    if len(head) >= 3 and head[0] in _TLS_RECORD_TYPES and head[1] == 3:
        return TlsExpected(
            "the peer speaks TLS",
            broker=broker,
            phase=phase,
            cause="a TLS record came back",
            hint="Use security_protocol=SSL (or SASL_SSL) with this listener",
        )
    hint = "Check host and port in bootstrap_servers"
    if head.startswith((b"HTTP/", b"<htm", b"<!DO")):
        detail, hint = "an HTTP server answered", "This is the port of a web server; check host and port"
    elif head.startswith(b"SSH-"):
        detail, hint = "an SSH server answered", "This is the port of an SSH server; check host and port"
    shown = f"{detail}: {head[:24]!r}" if head else detail
    return NotAKafkaBroker(broker=broker, phase=phase, cause=shown, hint=hint)


def no_leader(metadata: ClusterMetadata, topic: str, partition: int) -> FastqError:
    """Why there is no broker to ask about a partition, as far as the metadata says."""
    entry, found = metadata.topic(topic), metadata.partition(topic, partition)
    where: dict[str, Any] = {"topic": topic, "partition": partition}
    if found is None:
        code = entry.error if entry is not None else 0
        if code:
            return error_for_code(code, **where)
        return LeaderNotAvailable(f"no broker has said yet who leads {topic}-{partition}", **where)
    if found.leader_id >= 0:
        what = f"is led by node {found.leader_id}, which is not among the brokers that the cluster names"
    elif found.error not in (0, ErrorCode.LEADER_NOT_AVAILABLE):
        return error_for_code(found.error, **where)
    else:
        away = [node for node in found.replicas if node not in metadata.nodes or node in found.offline_replicas]
        return leaderless(topic, partition, found.replicas, away)
    return LeaderNotAvailable(f"{topic}-{partition} {what}", hint="Look at the log of that broker", **where)


def leaderless(topic: str, partition: int, replicas: Sequence[int], away: Sequence[int]) -> FastqError:
    """The cluster says that nobody leads a partition; `away` are those of its replicas that are on no broker that runs."""
    if len(replicas) == 1:
        what = f"its only replica is on node {replicas[0]}{', which is down' if away else ''}"
    else:
        down = f", of which {', '.join(map(str, away))} are down" if away else ""
        what = f"its replicas are on nodes {', '.join(map(str, replicas))}{down}"
    return LeaderNotAvailable(
        f"{topic}-{partition} has no leader: {what}",
        topic=topic,
        partition=partition,
        hint=f"Start the brokers that are down; fastq topics describe {topic} shows where its replicas are",
    )


def doubtful_versions(broker: str, missing: list[str]) -> ConnectionFailed:
    """The answer to ApiVersions lacks what every broker offers: it may have been damaged on its way."""
    return ConnectionClosed(
        "the broker's answer to ApiVersions was not taken, it is asked again",
        broker=broker,
        phase="api versions",
        cause=f"it shares no version of {', '.join(missing)} with this client",
        hint="If this stays so, it is no listener for clients, a controller's for example, or something between changes what is sent",
    )


def malformed(broker: str, api: str, cause: object) -> FastqError:
    """An established broker sent bytes that are not a response to what was asked."""
    return ProtocolError(
        f"the broker sent a malformed response: {cause}",
        broker=broker,
        api=api,
        hint="The connection was closed; report this to whoever runs the broker",
    )


def _words(error: BaseException | str) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def muted(core: ClientCore, node_id: int) -> ThrottlingQuotaExceeded | None:
    """The quota that keeps a broker from being asked now (KIP-219); None where none does."""
    seconds = core.throttled_until(node_id) - core.clock()
    if seconds <= 0:
        return None
    return ThrottlingQuotaExceeded(
        f"a quota of {core.broker_label(node_id)} keeps it from being asked for {seconds:.3g} s more"
    )
