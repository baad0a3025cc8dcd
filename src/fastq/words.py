"""What people write and read: times and access controls in, a number of things out.

Rule: whoever takes one of these from a person takes it here, so that each place takes the same; what it says where there is none is its
own.
"""

from __future__ import annotations

import struct
from datetime import datetime, tzinfo

INT64_MAX = 2**63 - 1


def read_time_ms(text: str, zone: tzinfo | None = None) -> int:
    """Milliseconds since 1970, of a number of them or of an ISO date and time, which is in `zone` (None: local time) unless it says. Raises
    ValueError for what is neither, and for a time before 1970, which would mean a special place in the protocol."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= INT64_MAX:
        return int(text)
    if text[-1:] in ("Z", "z"):  # which datetime takes from Python 3.11 on
        text = f"{text[:-1]}+00:00"
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=zone)
    try:
        milliseconds = int(found.timestamp() * 1000)
    except (OverflowError, OSError) as error:  # of years at the ends of the calendar
        raise ValueError(str(error)) from None
    if milliseconds < 0:
        raise ValueError("it is before 1970")
    return milliseconds


def counted(number: int, thing: str) -> str:
    """A number of things in words: `1 record`, `2,000 records`, `3 batches`."""
    if number != 1:
        thing = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}es" if thing.endswith("ch") else f"{thing}s"
    return f"{number:,} {thing}"


ACL_OPERATIONS = {
    "topic": ("read", "write", "create", "delete", "alter", "describe", "describe-configs", "alter-configs"),
    "group": ("read", "describe", "delete", "describe-configs", "alter-configs"),
    "cluster": (
        "create", "alter", "describe", "cluster-action", "describe-configs", "alter-configs", "idempotent-write",
    ),
    "transactional-id": ("describe", "write", "two-phase-commit"),
    "delegation-token": ("describe",),
    "user": ("create-tokens", "describe-tokens"),
}  # fmt: skip
"""What access controls of each kind of resource are about, besides `all`: others a broker would keep, without effect."""


def check_acl_operation(kind: str, operation: str) -> None:
    """Raises ValueError for an operation that a kind of resource does not know."""
    if operation not in ("all", *ACL_OPERATIONS[kind]):
        raise ValueError(f"a {kind} knows no {operation}: it is one of all, {', '.join(ACL_OPERATIONS[kind])}")


def check_principal(text: str) -> None:
    """Raises ValueError for what is no principal."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ValueError(f"a principal such as User:alice or User:* is expected, not {text[:80]!r}")


def acl_remarks(name: str, host: str, *, prefixed: bool) -> list[str]:
    """What is to be said of an access control that may be made, and most likely means something else."""
    remarks = []
    if prefixed and name == "*":
        remarks.append("* and all that begin so are names that begin with a star: all names are a literal *")
    written = _as_kafka_writes(host)
    if host != "*" and written is None:
        remarks.append(
            f"the host {host!r} is no address: Kafka compares it with the addresses of clients, letter by letter, so it is nobody's"
        )
    elif written is not None and written != host:
        remarks.append(
            f"the host {host} is nobody's: Kafka compares it with addresses letter by letter, and writes that one {written}"
        )
    return remarks


def _as_kafka_writes(host: str) -> str | None:
    """An address as Java does (InetAddress.getHostAddress), which shortens none; None for what is none."""
    from ipaddress import IPv4Address, ip_address

    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    parts = struct.unpack(">8H", address.packed)
    return ":".join(f"{part:x}" for part in parts) + (f"%{address.scope_id}" if address.scope_id else "")
