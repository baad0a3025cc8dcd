"""How much text a value has, counted before more is made of it: a name in a schema may have any length, and is in each value.

Rules: what is counted are names, texts and bytes; numbers and what stands between them are a few letters for each byte of a value. A
message of Protobuf is counted before it is a document, as that has each of its names anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

A_BYTE = 32
"""How many letters a byte of a value may become."""


class _Letters:
    """Those that are left."""

    __slots__ = ("left", "most")

    def __init__(self, most: int) -> None:
        self.most = self.left = most

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ValueError(
                f"the value has more than {self.most:,} letters, of {A_BYTE} a byte that it has, and is not looked into"
            )


def check_letters(value: Any, most: int) -> None:
    """Raises ValueError for a document that has more letters."""
    letters, left = _Letters(most), [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            letters.take(sum(map(len, one)))
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        elif isinstance(one, str | bytes):
            letters.take(len(one))


def check_message_letters(message: Any, most: int) -> None:
    """Raises ValueError for a message of Protobuf whose document would have more letters."""
    letters, left = _Letters(most), [message]
    pool = message.DESCRIPTOR.file.pool
    while left:
        one = left.pop()
        if one.DESCRIPTOR.full_name == "google.protobuf.Any":
            left += _held(one, pool)
            continue
        for field, value in one.ListFields():
            letters.take(len(field.full_name if field.is_extension else field.name))
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                for key in value:
                    letters.take(len(key) if isinstance(key, str) else 1)
                left += _counted(field.message_type.fields_by_name["value"], value.values(), letters)
            else:
                left += _counted(field, value if _is_repeated(value) else (value,), letters)


def _counted(field: Any, values: Any, letters: _Letters) -> list[Any]:
    """The messages that are among the values of a field, of which the others are counted."""
    if field.message_type is not None:
        return list(values)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number
        for value in values:
            letters.take(len(known[value].name) if value in known else 0)
    elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        for value in values:
            letters.take(len(value))
    return []


def _is_repeated(value: Any) -> bool:
    return not isinstance(value, str | bytes | int | float) and not hasattr(value, "DESCRIPTOR")


def _held(holder: Any, pool: Any) -> list[Any]:
    """The message in an Any. None where there is none, which is for who makes the document to say."""
    from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped, unused-ignore]

    try:
        held = GetMessageClass(pool.FindMessageTypeByName(holder.type_url.rpartition("/")[2]))()
        held.ParseFromString(holder.value)
    except Exception:  # protobuf's have several bases
        return []
    return [held]
