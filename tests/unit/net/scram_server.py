"""The other side of a login."""

from __future__ import annotations

import base64
import hashlib
import hmac


class SlowServer:
    """The server's side of SCRAM, written from RFC 5802 as plainly as can be."""

    def __init__(self, algorithm: str, password: str) -> None:
        self.algorithm, self.salt, self.iterations = algorithm, b"0123456789abcdef", 5000
        self.salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), self.salt, self.iterations)

    def first(self, client_first: bytes) -> bytes:
        self.client_bare = client_first.decode().split(",", 2)[2]
        self.nonce = self.client_bare.split("r=")[1] + "server"
        self.server_first = f"r={self.nonce},s={base64.b64encode(self.salt).decode()},i={self.iterations}"
        return self.server_first.encode()

    def final(self, client_final: bytes) -> bytes:
        bare, proof = client_final.decode().rsplit(",p=", 1)
        signed = ",".join((self.client_bare, self.server_first, bare)).encode()
        client_key = hmac.new(self.salted, b"Client Key", self.algorithm).digest()
        stored = hashlib.new(self.algorithm, client_key).digest()
        signature = hmac.new(stored, signed, self.algorithm).digest()
        recovered = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.algorithm, recovered).digest() != stored:
            return b"e=invalid-proof"
        server_key = hmac.new(self.salted, b"Server Key", self.algorithm).digest()
        return b"v=" + base64.b64encode(hmac.new(server_key, signed, self.algorithm).digest())
