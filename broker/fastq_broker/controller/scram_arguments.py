"""SCRAM credentials as the command line names them: `SCRAM-SHA-256=[name=alice,password=secret]`, to records of the metadata.

Rules: keys and bounds are those of Apache Kafka's ScramParser. No error shows a password.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import b64decode
from collections.abc import Mapping

from fastq.errors import ConfigError
from fastq.protocol.messages import UserScramCredentialRecord
from fastq_broker.config_keys import is_count, shown
from fastq_broker.controller.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS

_KEYS = ("name", "password", "salt", "saltedpassword", "iterations")
_HASHES = {1: "sha256", 2: "sha512"}
_SALT_BYTES = 26


def parse_credential(text: str) -> UserScramCredentialRecord:
    """The record of one credential. ConfigError."""
    mechanism_name, _, rest = text.strip().partition("=")
    mechanism = next((number for number, name in MECHANISMS.items() if name == mechanism_name), None)
    if mechanism is None or not (rest.startswith("[") and rest.endswith("]")):
        raise ConfigError(
            f"the credential of {shown(mechanism_name)} is not allowed: it takes MECHANISM=[name=...,password=...], mechanism one of "
            + ", ".join(MECHANISMS.values())
        )
    fields = _fields(rest[1:-1], mechanism_name)
    iterations = fields.get("iterations", str(ITERATIONS_MIN))
    if not is_count(iterations) or not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise ConfigError(
            f"iterations={iterations} of {mechanism_name} is not allowed: it takes {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
    salt = _bytes(fields, "salt") if "salt" in fields else os.urandom(_SALT_BYTES)
    digest = _HASHES[mechanism]
    if "saltedpassword" in fields:
        salted = _bytes(fields, "saltedpassword")
    else:
        salted = hashlib.pbkdf2_hmac(digest, fields["password"].encode(), salt, int(iterations))
    return UserScramCredentialRecord(
        name=fields["name"],
        mechanism=mechanism,
        salt=salt,
        stored_key=hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest(),
        server_key=hmac.digest(salted, b"Server Key", digest),
        iterations=int(iterations),
    )


def _fields(text: str, mechanism: str) -> Mapping[str, str]:
    fields: dict[str, str] = {}
    for item in text.split(","):
        key, equals, value = item.strip().partition("=")
        if not equals or key not in _KEYS:
            raise ConfigError(
                f"the credential of {mechanism} has a part that is none of key=value with {', '.join(_KEYS)}"
            )
        fields[key] = value[1:-1] if len(value) >= 2 and value[0] == value[-1] == '"' else value
    if not fields.get("name"):
        raise ConfigError(f"the credential of {mechanism} names no user: add name=")
    if not fields.get("password") and not fields.get("saltedpassword"):
        raise ConfigError(f"the credential of {mechanism} has no secret: add password=, or saltedpassword= with salt=")
    if "password" in fields and "saltedpassword" in fields:
        raise ConfigError(f"the credential of {mechanism} has both password and saltedpassword: leave one out")
    if "saltedpassword" in fields and "salt" not in fields:
        raise ConfigError(f"the credential of {mechanism} has saltedpassword without its salt: add salt=")
    return fields


def _bytes(fields: Mapping[str, str], key: str) -> bytes:
    try:
        return b64decode(fields[key], validate=True)
    except ValueError as error:
        raise ConfigError(f"{key} of the credential is no base64: {error}") from error
