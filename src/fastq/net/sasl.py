"""SASL mechanisms, client side: PLAIN (RFC 4616) and SCRAM (RFC 5802, 7677), as challenge-and-response objects
without I/O.

Rules of this file: secrets never appear in an error; the server's proof is checked, in constant time, before the login
counts; the nonce is a parameter, so that a test can replay an exchange of the RFC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 10_000_000
HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class SaslError(ValueError):
    """The exchange cannot go on: the server's message is malformed, or it could not prove that it knows the
    password.
    """


class Mechanism(Protocol):
    """One login. `first()` starts it; each `respond(challenge)` gives the next message, or None when the login is
    complete.
    """

    name: str

    def first(self) -> bytes:
        """The client's first message."""

    def respond(self, challenge: bytes) -> bytes | None:
        """The answer to a message of the server. Raises SaslError."""


class Plain:
    """PLAIN: the name and the password in clear; use it under TLS only."""

    name = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        self._message = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        """Authorization id (empty), name, password, separated by zero bytes."""
        return self._message

    def respond(self, challenge: bytes) -> bytes | None:
        """The server has nothing to say on success."""
        return None


class Scram:
    """SCRAM-SHA-256 and SCRAM-SHA-512, without channel binding."""

    def __init__(self, name: str, username: str, password: str, nonce: str | None = None) -> None:
        import secrets

        self.name = name
        self._hash = HASHES[name]
        self._password = saslprep(password)
        user = saslprep(username).replace("=", "=3D").replace(",", "=2C")
        self._nonce = nonce if nonce is not None else secrets.token_urlsafe(24)
        self._bare = f"n={user},r={self._nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        """client-first-message."""
        return f"n,,{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """client-final-message for the server's first message; None once the server's signature is right."""
        import hmac

        try:
            fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        except ValueError:
            raise SaslError("the broker's SCRAM message is malformed") from None
        if self._server_signature is None:
            return self._final(challenge.decode(), fields)
        if "e" in fields:
            raise SaslError(f"the broker refused the login: {fields['e']}")
        if not hmac.compare_digest(_decode64(fields.get("v", "")), self._server_signature):
            raise SaslError("the broker could not prove that it knows the password")
        return None

    def _final(self, server_first: str, fields: dict[str, str]) -> bytes:
        import base64
        import hashlib
        import hmac

        nonce, salt = fields.get("r", ""), _decode64(fields.get("s", ""))
        try:
            iterations = int(fields.get("i", ""))
        except ValueError:
            raise SaslError("the broker's SCRAM message has no iteration count") from None
        if not nonce.startswith(self._nonce) or nonce == self._nonce or "m" in fields:
            raise SaslError("the broker's SCRAM nonce does not continue ours")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            bounds = f"{ITERATIONS_MIN} to {ITERATIONS_MAX}"
            raise SaslError(f"the broker asks for {iterations} iterations, allowed: {bounds}")
        salted = salted_password(self.name, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{server_first},{without_proof}".encode()
        signature = hmac.digest(stored_key, signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        self._server_signature = hmac.digest(server_key, signed, self._hash)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def salted_password(name: str, password: str, salt: bytes, iterations: int) -> bytes:
    """What a mechanism of SCRAM makes of a password (RFC 5802's Hi), which is all that a broker has to know of it."""
    import hashlib

    return hashlib.pbkdf2_hmac(HASHES[name], password.encode(), salt, iterations)


def _decode64(text: str) -> bytes:
    import base64
    import binascii

    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SaslError("the broker's SCRAM message is malformed") from None


def saslprep(text: str) -> str:
    """RFC 4013's normal form of a name or password, so far as it changes the text; prohibited characters raise
    SaslError.
    """
    if text.isascii() and text.isprintable():
        return text
    import stringprep
    import unicodedata

    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    normal = unicodedata.normalize("NFKC", mapped)
    for char in normal:
        if stringprep.in_table_c21_c22(char) or stringprep.in_table_c3(char) or stringprep.in_table_c8(char):
            raise SaslError("a name or password for SCRAM has a character that RFC 4013 prohibits")
    return normal


def mechanism(name: str, username: str, password: str) -> Mechanism:
    """A fresh login by the mechanism called `name`."""
    if name == "PLAIN":
        return Plain(username, password)
    return Scram(name, username, password)
