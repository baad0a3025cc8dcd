"""`fastq consume --format`: a record in the letters that kcat's -f has.

    %t topic   %p partition   %o offset   %T timestamp in ms   %k key   %K its bytes   %s value   %S its bytes   %R the same as 4 bytes,
    big-endian   %h headers as name=value,...   %% a percent sign   \\n \\t \\r \\\\ \\xNN

Rules: parsed once; keys and values go out as they are. Of what is null there is nothing, and its size is -1. Nothing is put behind a
record: a format ends with \\n where lines are wanted.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastq.cli.output import UsageError

if TYPE_CHECKING:
    from fastq import Record

Part = Callable[["Record"], bytes]
_TOKEN = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Record) -> bytes:
    shown = (b"%b=%b" % (name.encode(), b"NULL" if value is None else value) for name, value in record.headers)
    return b",".join(shown)


LETTERS: dict[str, Part] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % _size(record.key),
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % _size(record.value),
    "R": lambda record: struct.pack(">i", _size(record.value)),
    "h": _headers,
}


def parse_format(text: str) -> Callable[[Record], bytes]:
    """What makes a record's bytes. Raises UsageError for a letter that there is none of."""
    parts: list[Part] = []

    def literal(data: bytes) -> None:
        parts.append(lambda _: data)

    for letter, byte, escape, plain, rest in _TOKEN.findall(text):
        if letter == "%":
            literal(b"%")
        elif letter in LETTERS and letter:
            parts.append(LETTERS[letter])
        elif byte:
            literal(bytes.fromhex(byte))
        elif escape in _ESCAPES and escape:
            literal(_ESCAPES[escape])
        elif plain:
            literal(plain.encode("utf-8", "surrogateescape"))
        else:
            what = f"%{letter}" if letter else f"\\{escape}" if escape else rest
            known = ", ".join(f"%{name}" for name in LETTERS)
            raise UsageError(
                f"--format: {what!r} is not known; letters are {known}, %%, and escapes \\n, \\t, \\r, \\\\, \\xNN"
            )
    return lambda record: b"".join([part(record) for part in parts])
