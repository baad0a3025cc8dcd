"""What type checkers know of a producer: it takes what its serializers take, bytes without one, anything by a name.

Rules: for type checkers alone, but for the two variables, which the classes need to be generic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Generic, Protocol, TypeAlias

    from typing_extensions import Buffer, Required, TypeVar

    from fastq.producer.options import PlainProducerOptions

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
    KeyOf = TypeVar("KeyOf", default=Buffer)
    ValueOf = TypeVar("ValueOf", default=Buffer)
    T = TypeVar("T", default=Any)
    Taken = TypeVar("Taken", contravariant=True)

    Headers: TypeAlias = Iterable[tuple[str, Buffer | None]] | Mapping[str, Buffer | None]

    class ArrowArrayLike(Protocol):
        """An array or a batch by the Arrow C interface; its types are known when it is taken."""

        def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...

    class ArrowStreamLike(Protocol):
        """A table or a stream by the Arrow C interface."""

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...

    Arrow: TypeAlias = ArrowArrayLike | ArrowStreamLike

    class TopicSerializerOf(Protocol[Taken]):
        """`fastq.serializers.TopicSerializer`, of values of one type."""

        def serialize(self, topic: str, value: Taken, /) -> Buffer | None:
            """The bytes of a value."""

    SerializerOf: TypeAlias = Callable[[T], Buffer | None] | TopicSerializerOf[T] | type[T]

    class TypedProducerOptions(PlainProducerOptions, Generic[KeyOf, ValueOf], total=False):
        """Serializers by themselves or as types, or none."""

        key_serializer: SerializerOf[KeyOf] | None
        value_serializer: SerializerOf[ValueOf] | None

    class NamedKeySerializer(PlainProducerOptions, Generic[ValueOf], total=False):
        """That of keys by its name."""

        key_serializer: Required[str]
        value_serializer: SerializerOf[ValueOf] | None

    class NamedValueSerializer(PlainProducerOptions, Generic[KeyOf], total=False):
        """That of values by its name."""

        key_serializer: SerializerOf[KeyOf] | None
        value_serializer: Required[str]

    class NamedSerializers(PlainProducerOptions, total=False):
        """Both by their names."""

        key_serializer: Required[str]
        value_serializer: Required[str]

else:
    from typing import TypeVar

    K, V = TypeVar("K"), TypeVar("V")
