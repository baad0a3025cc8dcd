"""Who may use the console: a file of users with roles and hashes, and whether a password is right.

Rules: a line is `name:role:hash` or `name:role:hash:PATTERN[,PATTERN]`; `#` begins a comment. Roles: viewer sees, operator also writes
records and moves offsets, admin also changes topics, configs and replicas. Patterns (`*`, `?`) bound a user to topics. A hash is
scrypt's with its costs and salt; a name that is not there costs as much time as one that is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from pathlib import Path

from fastq.errors import ConfigError

N, R, P, LENGTH = 2**14, 8, 1, 32  # 16 MiB and some 50 ms a try
PASSWORD_LENGTH_MAX = 1024
NAME = re.compile(r"[^\s:#]{1,64}")


class Role(IntEnum):
    """What somebody may do; each may what those below may."""

    VIEWER = 0
    OPERATOR = 1
    ADMIN = 2


@dataclass(frozen=True)
class User:
    """Somebody. `topics` are patterns; all topics where there are none. `subject` is who a provider of identities says it is, by a name
    that never changes there; empty for users of the file."""

    name: str
    role: Role
    topics: tuple[str, ...] = ()
    subject: str = ""

    def may_see(self, topic: str) -> bool:
        """Whether a topic is one of theirs."""
        return not self.topics or any(fnmatchcase(topic, pattern) for pattern in self.topics)

    @property
    def identity(self) -> str:
        """The name, which a provider's users may choose perhaps, with what they may not."""
        return f"{self.name} ({self.subject})" if self.subject else self.name


ANYBODY = User("anybody on this machine", Role.ADMIN)
"""Who uses a console without a login."""


def hash_password(password: str, salt: bytes | None = None) -> str:
    """`scrypt$N$r$p$salt$hash`, as it stands in the file of users. Raises ValueError for a password that is empty or too long."""
    if not 0 < len(password.encode()) <= PASSWORD_LENGTH_MAX:
        raise ValueError(f"a password has 1 to {PASSWORD_LENGTH_MAX} bytes")
    salt = secrets.token_bytes(16) if salt is None else salt
    return f"scrypt${N}${R}${P}${_b64(salt)}${_b64(_scrypt(password, salt, N, R, P))}"


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=2**28, dklen=LENGTH)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclass(frozen=True)
class _Hash:
    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, text: str) -> _Hash:
        kind, *numbers, salt, digest = text.split("$")
        if kind != "scrypt" or len(numbers) != 3:
            raise ValueError
        n, r, p = map(int, numbers)
        if not (2**10 <= n <= 2**18 and n & (n - 1) == 0 and 1 <= r <= 16 and 1 <= p <= 4 and 128 * n * r <= 2**27):
            raise ValueError
        return cls(n, r, p, base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True))

    def fits(self, password: str) -> bool:
        return hmac.compare_digest(_scrypt(password, self.salt, self.n, self.r, self.p), self.digest)


_NOBODY = _Hash(N, R, P, b"0" * 16, b"0" * LENGTH)


def stamp_of(path: Path) -> tuple[int, ...] | None:
    """What differs once a file is another one, or was written; None where it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Users:
    """The users of a file, as it was when it was read. Immutable."""

    def __init__(self, users: dict[str, tuple[User, _Hash]], path: Path, stamp: tuple[int, ...] | None) -> None:
        self._users = users
        self.path = path
        self.stamp = stamp

    def __len__(self) -> int:
        return len(self._users)

    @classmethod
    def load(cls, path: Path) -> Users:
        """Raises ConfigError with the line that is wrong; the error shows no hash."""
        users: dict[str, tuple[User, _Hash]] = {}
        stamp = stamp_of(path)  # of before it is read: what changes meanwhile is seen later
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: this is no text of UTF-8; a line is name:role:hash") from None
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, *rest = line.split(":")
            where = f"{path}:{number}: user {name!r}"
            if len(rest) not in (2, 3) or not NAME.fullmatch(name):
                raise ConfigError(f"{path}:{number}: a line is name:role:hash or name:role:hash:PATTERN[,PATTERN]")
            if name in users:
                raise ConfigError(f"{where} is there twice")
            try:
                role = Role[rest[0].upper()]
            except KeyError:
                role_shown = f"role {rest[0]!r}" if rest[0].isalpha() else "the role"  # else it may be the hash
                raise ConfigError(f"{where}: {role_shown} is none of viewer, operator, admin") from None
            try:
                digest = _Hash.of(rest[1])
            except ValueError:
                raise ConfigError(f"{where}: the hash is none of fastq console hash-password") from None
            patterns = tuple(filter(None, (part.strip() for part in rest[2].split(",")))) if len(rest) == 3 else ()
            if len(rest) == 3 and not patterns:
                raise ConfigError(f"{where}: no pattern stands behind the last colon; leave it out to mean all topics")
            users[name] = User(name, role, patterns), digest
        if not users:
            raise ConfigError(f"{path}: there is no user in it; a line is name:role:hash")
        return cls(users, path, stamp)

    def now(self, user: User, before: Users) -> User | None:
        """Who somebody is that logged in when the file was as `before`: with the role and the topics of now; None for who is not there
        any more, or has another password."""
        was, found = before._users.get(user.name), self._users.get(user.name)
        return found[0] if was is not None and found is not None and was[1] == found[1] else None

    def check(self, name: str, password: str) -> User | None:
        """Who it is, or None. Takes some 50 ms of processor time: for a thread."""
        user, digest = self._users.get(name, (None, _NOBODY))
        right = len(password) <= PASSWORD_LENGTH_MAX and digest.fits(password)
        return user if right else None
