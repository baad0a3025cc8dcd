"""Deserializers: what a program gets from the bytes of a key or a value.

Rules: the counterparts of fastq.serializers, by the same names and in the same formats; a deserializer is any callable
`(bytes) -> value`, or an object with `deserialize(topic, headers, data)`. Null stays None and is not asked about. They are
immutable and may be used from any thread; what cannot be read raises ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from fastq.serializers import find_named

if TYPE_CHECKING:
    import uuid

Headers: TypeAlias = "tuple[tuple[str, bytes | None], ...]"
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class TopicDeserializer(Protocol[T_co]):
    """A deserializer that wants to know the topic and the headers."""

    def deserialize(self, topic: str, headers: Headers, data: bytes) -> T_co:
        """The value that `data` stands for."""
        ...


Deserializer: TypeAlias = "Callable[[bytes], T] | TopicDeserializer[T]"


def bytes_deserializer(data: bytes) -> bytes:
    """The bytes as they are."""
    return data


def str_deserializer(data: bytes) -> str:
    """UTF-8 text."""
    return data.decode()


def json_deserializer(data: bytes) -> Any:
    """JSON text."""
    import json

    return json.loads(data)


def int_deserializer(data: bytes) -> int:
    """A signed big-endian integer of 1, 2, 4 or 8 bytes, as Kafka's integer serializers write."""
    if len(data) not in (1, 2, 4, 8):
        raise ValueError(f"an integer takes 1, 2, 4 or 8 bytes, got {len(data)}")
    return int.from_bytes(data, "big", signed=True)


def float_deserializer(data: bytes) -> float:
    """A big-endian IEEE 754 number of 4 or 8 bytes."""
    if len(data) not in (4, 8):
        raise ValueError(f"a floating-point number takes 4 or 8 bytes, got {len(data)}")
    number: float = struct.unpack(">d" if len(data) == 8 else ">f", data)[0]
    return number


def uuid_deserializer(data: bytes) -> uuid.UUID:
    """A UUID as its 36 characters, as Kafka's UUIDSerializer writes."""
    import uuid

    return uuid.UUID(data.decode("ascii"))


BY_NAME: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes_deserializer,
    "str": str_deserializer,
    "string": str_deserializer,
    "json": json_deserializer,
    "int": int_deserializer,
    "long": int_deserializer,
    "float": float_deserializer,
    "double": float_deserializer,
    "uuid": uuid_deserializer,
}
# The class names that configurations of the Java clients carry, old and new.
_JAVA_PACKAGE = "org.apache.kafka.common.serialization."
_JAVA = {
    "kafka.serializer.DefaultDecoder": "bytes",
    "kafka.serializer.StringDecoder": "str",
    **{
        f"{_JAVA_PACKAGE}{java}Deserializer": name
        for java, name in {
            "ByteArray": "bytes",
            "String": "str",
            "Short": "int",
            "Integer": "int",
            "Long": "int",
            "Float": "float",
            "Double": "float",
            "UUID": "uuid",
        }.items()
    },
}


def find_deserializer(value: Any) -> Deserializer[Any] | None:
    """The deserializer that a configuration means: a callable, an object with `deserialize`, a type (str, int, ...), a
    name of BY_NAME, a dotted name, or a class name of the Java client. ValueError for anything else.
    """
    method = "deserialize(topic, headers, data)"
    found: Deserializer[Any] | None = find_named(value, BY_NAME, _JAVA, TopicDeserializer, method)
    return found
