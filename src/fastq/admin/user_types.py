"""What the admin clients say about users: SCRAM credentials (KIP-554) and quotas of clients (KIP-546).

Rules: as in `types.py`: names are Kafka's. A password is in no text that is made here, and leaves this process salted alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import ClassVar

from fastq.admin.types import check_kind
from fastq.net.sasl import ITERATIONS_MAX, ITERATIONS_MIN, saslprep

__all__ = [
    "ClientQuotaEntity",
    "ClientQuotaFilter",
    "ClientQuotaMatch",
    "ScramCredentialInfo",
    "ScramMechanism",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
]


class ScramMechanism(IntEnum):
    """How a password is proven (RFC 5802, RFC 7677)."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """A credential that a user has: no more than this is told of it."""

    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True)
class UserScramCredentialUpsertion:
    """A credential that a user is to have, instead of the one of this mechanism, if there is one.

    The password goes out hashed with a salt (None: 32 random bytes) by PBKDF2, `iterations` times, 4,096 or more; a broker of Apache
    Kafka takes 16,384 at most. Raises ValueError, among others for a name or password that RFC 4013 would write in another way: some
    clients do so before they log in, and others do not. Neither password nor salt is in its `repr`.
    """

    user: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    iterations: int = ITERATIONS_MIN
    salt: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_user(self)
        if not isinstance(self.iterations, int) or isinstance(self.iterations, bool):
            raise TypeError(f"iterations: an int is expected, got {_kind(self.iterations)}")
        if not isinstance(self.password, str):
            raise TypeError("the password is a text")  # and is not told, whatever it is
        if not ITERATIONS_MIN <= self.iterations <= ITERATIONS_MAX:
            raise ValueError(f"iterations are {ITERATIONS_MIN:,} to {ITERATIONS_MAX:,}, got {self.iterations:,}")
        if not self.password:
            raise ValueError(f"the password of {self.user!r} is empty")
        for what, text in (("name", self.user), ("password", self.password)):
            if saslprep(text) != text:
                raise ValueError(
                    f"the {what} of a SCRAM credential of {self.user!r} has characters that RFC 4013 writes in another way, as some "
                    "clients do before they log in: give it in that form (NFKC, plain spaces)"
                )
        if self.salt is not None and not self.salt:
            raise ValueError("a salt has bytes; None makes one")


@dataclass(frozen=True, slots=True)
class UserScramCredentialDeletion:
    """A credential that a user is to lose."""

    user: str
    mechanism: ScramMechanism

    def __post_init__(self) -> None:
        _check_user(self)


def _kind(value: object) -> str:
    return f"a value of the type {type(value).__name__}"


def _check_user(change: UserScramCredentialUpsertion | UserScramCredentialDeletion) -> None:
    check_kind("user", change.user, str, "a text")
    if not isinstance(change.mechanism, ScramMechanism):
        # It may be the password, where two were taken for each other.
        raise TypeError(
            f"mechanism: a ScramMechanism is expected, as ScramMechanism.SCRAM_SHA_512, got {_kind(change.mechanism)}"
        )
    if change.mechanism is ScramMechanism.UNKNOWN:
        raise ValueError("mechanism is SCRAM_SHA_256 or SCRAM_SHA_512")


@dataclass(frozen=True, slots=True)
class ClientQuotaEntity:
    """Whom a quota is for, by kind: `{"user": "alice", "client-id": None}` is alice's clients that have no quota by their id.

    A name of None is the default, of all that have none of their own. Apache Kafka knows users, client ids, both together, and addresses.
    """

    USER: ClassVar[str] = "user"
    CLIENT_ID: ClassVar[str] = "client-id"
    IP: ClassVar[str] = "ip"

    entries: Mapping[str, str | None]

    def __post_init__(self) -> None:
        check_kind("entries", self.entries, Mapping, "a mapping of kinds to names")
        for kind, name in self.entries.items():
            check_kind("the kind of an entity", kind, str, "a text")
            if name is not None:
                check_kind(f"the name of a {kind}", name, str, "a text or None")
        object.__setattr__(self, "entries", dict(self.entries))

    def __hash__(self) -> int:
        return hash(frozenset(self.entries.items()))

    def __str__(self) -> str:
        return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in self.entries.items())


class ClientQuotaMatch(Enum):
    """ANY: every entity that has a name of a kind, or is its default."""

    ANY = "any"


@dataclass(frozen=True, slots=True)
class ClientQuotaFilter:
    """Whose quotas, by kind: a name, None for the default, or ClientQuotaMatch.ANY. Without kinds: all.

    Entities have all of these kinds, and with `strict` no other.
    """

    components: Mapping[str, str | ClientQuotaMatch | None] = field(default_factory=dict)
    strict: bool = False

    def __post_init__(self) -> None:
        check_kind("components", self.components, Mapping, "a mapping of kinds to names")


def check_quota(key: str, value: float | None) -> None:
    """TypeError or ValueError for a value that is no number; None takes a quota away."""
    check_kind("the name of a quota", key, str, "a text")
    if value is not None:
        check_kind(key, value, int | float, "a number or None")  # type: ignore[arg-type]  # isinstance takes unions
        if not math.isfinite(value):
            raise ValueError(f"{key}: a finite number is expected, got {value!r}")
