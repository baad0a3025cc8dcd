"""Kafka's 16-byte ids: raw bytes inside, 22 characters of URL-safe base64 without padding for people and files.

Follows `org.apache.kafka.common.Uuid`: random ids are version 4, and never begin with a dash, which tools would take
for an option.
"""

from __future__ import annotations

import os
import re
from binascii import a2b_base64, b2a_base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

ZERO_UUID = bytes(16)  # no id
ONE_UUID = bytes(15) + b"\x01"  # Kafka's Uuid.ONE_UUID
METADATA_TOPIC_ID = ONE_UUID  # the topic id of __cluster_metadata
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")
_TEXT = r"[A-Za-z0-9_-]{22}(==)?\Z"
_RESERVED = {bytes(15) + bytes([n]) for n in range(100)}  # Uuid.RESERVED: ids up to 99


def uuid_to_str(value: bytes) -> str:
    """`value` as 22 characters. ValueError unless it has 16 bytes."""
    if len(value) != 16:
        raise ValueError(f"an id of {len(value)} bytes; it takes 16")
    return b2a_base64(value, newline=False).rstrip(b"=").translate(_TO_URL).decode("ascii")


def uuid_from_str(text: str) -> bytes:
    """The 16 bytes that `text` stands for, with or without padding. ValueError when it is no id."""
    value = b""
    if re.match(_TEXT, text):
        value = a2b_base64(text.rstrip("=").encode().translate(_FROM_URL) + b"==")
    if len(value) != 16:
        raise ValueError(f"{text!r} is no id: it takes 22 characters of URL-safe base64")
    return value


def random_uuid(source: random.Random | None = None) -> bytes:
    """A fresh id, from the system's randomness or, for simulations, from a seeded `source`."""
    while True:
        raw = bytearray(os.urandom(16) if source is None else source.getrandbits(128).to_bytes(16, "big"))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        value = bytes(raw)
        if value not in _RESERVED and not uuid_to_str(value).startswith("-"):
            return value


def is_reserved(value: bytes) -> bool:
    """Whether no thing has this id, as it has a meaning of its own: those below 100."""
    return value in _RESERVED
