"""Serializers: from what a program has to the bytes of a key or a value, and back by name.

Rules: a serializer is any callable `(value) -> bytes-like`, or an object with `serialize(topic, value)`; None always stays
None (a tombstone). They are immutable and may be used from any thread. Formats are those of Kafka's Java serializers:
integers 8 bytes big-endian, floats IEEE 754 double, UUIDs as their text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from fastq.callbacks import check_plain_methods, check_takes
from fastq.errors import LoadingWouldBlock, SerializationError

if TYPE_CHECKING:
    import uuid

    from typing_extensions import Buffer


class Serialized(bytes):
    """Bytes that are what the broker is to have: serializers leave them alone. For records that are passed on as they came."""

    __slots__ = ()


@runtime_checkable
class TopicSerializer(Protocol):
    """A serializer that wants to know the topic."""

    def serialize(self, topic: str, value: Any) -> Buffer | None:
        """The bytes of `value`, which is not None."""
        ...


Serializer: TypeAlias = "Callable[[Any], Buffer | None] | TopicSerializer"


def bytes_serializer(value: Any) -> Buffer:
    """Anything bytes-like, as it is."""
    memoryview(value)
    return value  # type: ignore[no-any-return]


def str_serializer(value: str) -> bytes:
    """Text as UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"expected str, got {type(value).__name__}")
    return value.encode()


def json_serializer(value: Any) -> bytes:
    """Anything the json module takes and that is JSON, without blanks, as UTF-8. ValueError for NaN and infinities: JSON has no such
    numbers, Python alone reads them."""
    import json

    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def int_serializer(value: int) -> bytes:
    """A signed 64-bit integer, big-endian, as Kafka's LongSerializer."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected int, got {type(value).__name__}")
    return value.to_bytes(8, "big", signed=True)


def float_serializer(value: float) -> bytes:
    """A double, big-endian, as Kafka's DoubleSerializer."""
    return struct.pack(">d", value)


def uuid_serializer(value: uuid.UUID | str) -> bytes:
    """A UUID as its 36 characters, as Kafka's UUIDSerializer."""
    import uuid

    return str(value if isinstance(value, uuid.UUID) else uuid.UUID(value)).encode()


BY_NAME: dict[str, Callable[[Any], Buffer | None]] = {
    "bytes": bytes_serializer,
    "str": str_serializer,
    "string": str_serializer,
    "json": json_serializer,
    "int": int_serializer,
    "long": int_serializer,
    "float": float_serializer,
    "double": float_serializer,
    "uuid": uuid_serializer,
}
# By module and name: who asks for UUIDs has imported them, others need not.
_BY_TYPE = {
    ("builtins", "bytes"): "bytes",
    ("builtins", "str"): "str",
    ("builtins", "int"): "int",
    ("builtins", "float"): "float",
    ("uuid", "UUID"): "uuid",
}
# The class names that configurations of the Java clients carry, old and new.
_JAVA = {
    "kafka.serializer.DefaultEncoder": "bytes",
    "kafka.serializer.StringEncoder": "str",
    "org.apache.kafka.common.serialization.ByteArraySerializer": "bytes",
    "org.apache.kafka.common.serialization.StringSerializer": "str",
    "org.apache.kafka.common.serialization.LongSerializer": "int",
    "org.apache.kafka.common.serialization.DoubleSerializer": "float",
    "org.apache.kafka.common.serialization.UUIDSerializer": "uuid",
}


def find_serializer(value: Any) -> Serializer | None:
    """The serializer that a configuration means: a callable, an object with `serialize`, a type (str, int, ...), a name
    of BY_NAME, a dotted name, or a class name of the Java client. ValueError for anything else.
    """
    found: Serializer | None = find_named(value, BY_NAME, _JAVA, TopicSerializer, "serialize(topic, value)")
    return found


def find_named(value: Any, by_name: Mapping[str, Any], java: Mapping[str, str], kind: type, method: str) -> Any:
    """What a configuration means by `value`, for serializers and deserializers alike; see find_serializer. `kind` is the protocol
    of the objects that have `method`, whose last argument is that of a function."""
    if value is None:
        return None
    if isinstance(value, str):
        name = java.get(value, value)
        if name in by_name:
            return by_name[name]
        module, _, attribute = name.rpartition(".")
        try:
            value = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            why = f" ({error})" if module else ""
            raise ValueError(f"one of {', '.join(by_name)}, a callable, or the dotted name of one{why}") from None
    if isinstance(value, type):
        known = _BY_TYPE.get((value.__module__, value.__name__))
        if known is not None:
            return by_name[known]
        value = value()
    if isinstance(value, kind) or callable(value):
        check_plain_methods(value, ("serialize", "deserialize"), "what has to wait loads it beforehand")
        name, _, arguments = method.removesuffix(")").partition("(")
        if isinstance(value, kind):
            check_takes(getattr(value, name), arguments, name)
        else:
            check_takes(value, arguments.rpartition(" ")[2])
        return value
    raise ValueError(f"one of {', '.join(by_name)}, a callable, or an object with {method}")


def serialize(serializer: Serializer | None, topic: str, value: Any, what: str) -> Buffer | None:
    """`value` as bytes; None stays None. Raises SerializationError that names topic and `what` (key or value), and passes
    LoadingWouldBlock on, which the asyncio producer mends."""
    if value is None or serializer is None or type(value) is Serialized:
        return value  # type: ignore[no-any-return]
    try:
        if isinstance(serializer, TopicSerializer):
            return serializer.serialize(topic, value)
        return serializer(value)
    except LoadingWouldBlock:
        raise
    except Exception as error:
        raise SerializationError(
            f"the {what} serializer failed on {type(value).__name__}: {error}", topic=topic
        ) from error
