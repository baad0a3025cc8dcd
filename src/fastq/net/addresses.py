"""Where a broker listens, and how a name becomes socket addresses.

Rules of this file:
- `HOST:PORT`, `[IPv6]:PORT`, a bare host (port 9092), each with an optional `PROTOCOL://` before it, as Kafka writes
  listeners.
- A literal address never touches the resolver. A name is looked up in a thread of its own that nobody waits for: a
  resolver that hangs must not hold up an event loop, a lock, or the end of the process. Where no thread can be started, as by an
  interpreter that ends (from Python 3.12 on), it is looked up at once: what is delivered then waits for nothing else.
- A login is no part of an address. What stands before an `@` may be one, and is in no message.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterable

from fastq.values import NamedTuple

DEFAULT_PORT = 9092
_NOT_IN_HOSTS = frozenset("/\\?#@,;")
_NO_LOGIN = (
    "HOST:PORT without a login, which goes into sasl.username and sasl.password (in Python sasl_username and sasl_password; on a command "
    "line --property sasl.username=..., or a file for --command-config)"
)
_SCHEME = r"^[A-Za-z][A-Za-z0-9_+.-]*://"  # compiled by its first use, as re keeps it


class Address(NamedTuple):
    """A broker's host name or literal address, and its port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Endpoint(NamedTuple):
    """One socket address to connect to: address family and what `socket.connect` takes."""

    family: int
    sockaddr: tuple[str, int] | tuple[str, int, int, int]


def parse_address(text: str) -> Address:
    """`HOST:PORT`, `[::1]:9092` or `HOST`; ValueError says what is allowed."""
    server = re.sub(_SCHEME, "", text.strip())
    host, port = server, str(DEFAULT_PORT)
    if server.startswith("["):
        host, closed, rest = server[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"HOST:PORT, or [IPv6]:PORT for an IPv6 address, got {text!r}")
        port = rest[1:] or port
    elif server.count(":") == 1:
        host, _, port = server.partition(":")
    elif server.count(":") > 1 and not is_literal(server):
        raise ValueError(f"HOST:PORT, or [IPv6]:PORT for an IPv6 address, got {text!r}")
    if set(host) & _NOT_IN_HOSTS or any(letter.isspace() for letter in host):
        raise ValueError(f"HOST:PORT without blanks or a path, got {text!r}")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"HOST:PORT with a port from 1 to 65535, got {text!r}")
    return Address(host, int(port))


def parse_servers(servers: str | Iterable[str]) -> tuple[Address, ...]:
    """All servers of a comma-separated string or a list, duplicates dropped, order kept. ValueError says what is allowed."""
    if isinstance(servers, str):
        servers = [server for server in servers.split(",") if server.strip()]
    servers = list(servers)
    if any("@" in server for server in servers):  # looked at before each for itself: a password may have commas
        raise ValueError(_NO_LOGIN)
    return tuple(dict.fromkeys(parse_address(server) for server in servers))


def is_literal(host: str) -> bool:
    """Whether `host` is an IPv4 or IPv6 address (a scope such as fe80::1%eth0 included), so that no lookup is
    needed.
    """
    import ipaddress

    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def lookup(address: Address) -> list[Endpoint]:
    """Every stream endpoint of `address`, in the order the system prefers. Blocks for a name; raises OSError
    (gaierror).
    """
    flags = socket.AI_NUMERICHOST if is_literal(address.host) else 0
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    endpoints = [Endpoint(int(family), sockaddr) for family, _, _, _, sockaddr in found]  # type: ignore[arg-type]
    return list(dict.fromkeys(endpoints))


def lookup_in_thread(address: Address, on_done: Callable[[list[Endpoint] | None, OSError | None], None]) -> None:
    """Look a name up in a daemon thread and call `on_done(endpoints, error)` there, once; or in here, where none can be started."""

    def work() -> None:
        try:
            endpoints = lookup(address)
        except OSError as error:
            on_done(None, error)
        except UnicodeError as error:  # a label longer than 63 characters, or empty
            on_done(None, socket.gaierror(socket.EAI_NONAME, f"not a host name: {error}"))
        else:
            on_done(endpoints, None)

    try:
        threading.Thread(target=work, name=f"fastq-resolve-{address.host}", daemon=True).start()
    except RuntimeError:
        work()
