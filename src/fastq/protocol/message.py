"""What all generated messages share: equality, a readable form, whole-buffer helpers, and the cold ends of their checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fastq._native.wire import DecodeError, EncodeError, Reader, Writer

if TYPE_CHECKING:
    from typing_extensions import Self

NEVER_FLEXIBLE = 32767  # FLEXIBLE_VERSION of a message without flexible versions
ZERO_UUID = bytes(16)  # Kafka's Uuid.ZERO_UUID: no id


class _Unset:
    """Stands for "not given" where the default is a fresh list or struct."""

    def __repr__(self) -> str:
        return "..."


UNSET: Any = _Unset()


class Struct:
    """A group of fields inside a message. Equal when all fields are; mutable, so not hashable."""

    __slots__: tuple[str, ...] = ()

    def encode(self, writer: Writer, version: int) -> None:
        raise NotImplementedError

    @classmethod
    def decode(cls, reader: Reader, version: int) -> Self:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_shown(getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class Message(Struct):
    """A request, a response, or the key or value of a record.

    `API_KEY` is the API's key, or the type of a metadata or coordinator record, or -1. A version outside of MIN_VERSION
    to MAX_VERSION cannot be encoded (EncodeError) or decoded (DecodeError); FLEXIBLE_VERSION is the first one with
    compact lengths and tagged fields.
    """

    __slots__: tuple[str, ...] = ()

    API_KEY: ClassVar[int] = -1
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_VERSION: ClassVar[int] = NEVER_FLEXIBLE

    def to_bytes(self, version: int) -> bytes:
        """The encoded body alone."""
        writer = Writer()
        self.encode(writer, version)
        return writer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, version: int) -> Self:
        """Decode a body that fills `data` to its last byte."""
        reader = Reader(data)
        message = cls.decode(reader, version)
        if reader.remaining:
            raise DecodeError("the end of the message", reader.position, f"{reader.remaining} bytes left", cls.__name__)
        return message


def _shown(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > 64:
        return f"<{len(value)} bytes>"
    return repr(value)


class NotInVersion(EncodeError):
    """A message asks for something that its version does not have, and a later one may."""


def encode_unsupported(message: type[Message], version: int) -> EncodeError:
    return NotInVersion(
        f"{message.__name__} has no version {version}: it has {message.MIN_VERSION} to {message.MAX_VERSION}"
    )


def decode_unsupported(message: type[Message], version: int, reader: Reader) -> DecodeError:
    expected = f"{message.__name__} of version {message.MIN_VERSION} to {message.MAX_VERSION}"
    return DecodeError(expected, reader.position, f"version {version}")


def not_in_version(field: str, version: int) -> EncodeError:
    return NotInVersion(f"{field} is set, but version {version} of the message does not have it")


def null_in_version(field: str, version: int) -> EncodeError:
    return NotInVersion(f"{field} is None, which version {version} of the message does not allow")
