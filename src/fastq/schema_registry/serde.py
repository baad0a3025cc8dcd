"""What the serializers and deserializers of all three formats share: subjects, ids, caches.

Rules: a serializer knows its schema from the start and its id from the first value of a topic on; a deserializer meets ids
and keeps what it made of their schemas, or why it can make nothing of them. After that, a value costs a dictionary look-up
and the format's own work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from fastq.callbacks import check_plain
from fastq.errors import DeserializationError, FastqError, LoadingWouldBlock
from fastq.schema_registry import wire
from fastq.schema_registry.client import Schema, SchemaRegistryClient, check_registry

T = TypeVar("T")
R = TypeVar("R")

SubjectNameStrategy: TypeAlias = "Callable[[str, str | None, bool], str]"
"""(topic, name of the record's type, is it a key) -> subject."""


def topic_name(topic: str, record_name: str | None, is_key: bool) -> str:
    """One schema a topic: `orders-value`, `orders-key`."""
    return f"{topic}-key" if is_key else f"{topic}-value"


def record_name(topic: str, record_name: str | None, is_key: bool) -> str:
    """One subject for each type, in whatever topics it is."""
    if record_name is None:
        raise ValueError("this schema has no name: the subject cannot be the record's name; use topic_name")
    return record_name


def topic_record_name(topic: str, record_name: str | None, is_key: bool) -> str:
    """One subject for each type in each topic."""
    if record_name is None:
        raise ValueError("this schema has no name: the subject cannot hold the record's name; use topic_name")
    return f"{topic}-{record_name}"


class SchemaSerializer:
    """The id of one schema in the subjects of the topics it is used for. Thread rule: any thread.

    auto_register: register the schema where it is not yet (False: it must be there). use_latest_version: write with the
    subject's newest version in place of the schema given. is_key: of keys, for the subject's name.
    """

    def __init__(
        self,
        registry: SchemaRegistryClient,
        schema: Schema | None,
        *,
        record_name: str | None,
        is_key: bool,
        subject_name_strategy: SubjectNameStrategy,
        auto_register: bool,
        use_latest_version: bool,
        normalize: bool,
    ) -> None:
        check_registry(registry)
        check_plain(subject_name_strategy, "subject_name_strategy", "It answers a subject")
        self.registry = registry
        self.is_key = is_key
        self._given = schema
        self._record_name = record_name
        self._strategy = subject_name_strategy
        self._auto_register = auto_register
        self._use_latest = use_latest_version
        self._normalize = normalize
        self._headers: dict[str, bytes] = {}

    def subject(self, topic: str) -> str:
        """Where the schema of a topic's values is registered."""
        return self._strategy(topic, self._record_name, self.is_key)

    def serialize(self, topic: str, value: Any) -> bytes:
        """The frame of one value."""
        raise NotImplementedError

    async def serialize_async(self, topic: str, value: Any) -> bytes:
        """`serialize` in an event loop: what the registry is asked for first is asked in a thread."""
        return await _in_thread_where_needed(partial(self.serialize, topic, value))

    def warm_up(self, topic: str) -> int:
        """Do now what the first value of a topic would: register or look up the schema. Blocks; answers the schema's id."""
        schema_id: int = wire.HEADER.unpack_from(self._header(topic))[1]
        return schema_id

    def _header(self, topic: str) -> bytes:
        """What goes before each value of a topic."""
        header = self._headers.get(topic)
        if header is None:
            header = self._headers[topic] = self._make_header(self._locate(self.subject(topic)))
        return header

    def _locate(self, subject: str) -> int:
        if self._use_latest:
            latest = self.registry.latest(subject)
            self._follow(latest.schema)
            return latest.schema_id
        schema = self._schema()
        if self._auto_register:
            return self.registry.register(subject, schema, normalize=self._normalize)
        return self.registry.lookup(subject, schema, normalize=self._normalize).schema_id

    def _schema(self) -> Schema:
        """The schema to register; formats whose schemas build on others register those first."""
        assert self._given is not None
        return self._given

    def _follow(self, schema: Schema) -> None:
        """Write with a schema that the registry gave."""

    def _make_header(self, schema_id: int) -> bytes:
        return wire.header(schema_id)


class SchemaDeserializer(Generic[T]):
    """What was made of the schemas met so far. Thread rule: any thread."""

    schema_type = "AVRO"
    schema_format: str | None = None

    def __init__(self, registry: SchemaRegistryClient) -> None:
        check_registry(registry)
        self.registry = registry
        self._known: dict[int, T] = {}
        self._refused: dict[int, FastqError] = {}

    def deserialize(self, topic: str, headers: Any, data: bytes) -> Any:
        """The value in one frame."""
        raise NotImplementedError

    async def deserialize_async(self, topic: str, headers: Any, data: bytes) -> Any:
        """`deserialize` in an event loop, for the bytes that an AsyncConsumer hands out: a schema that is new is asked for
        in a thread."""
        return await _in_thread_where_needed(partial(self.deserialize, topic, headers, data))

    def warm_up(self, schema_id: int) -> None:
        """Do now what the first value with this schema would. Blocks."""
        self._writer(schema_id)

    def _writer(self, schema_id: int) -> T:
        """What `_prepare` made of the schema of an id. Raises DeserializationError where it can make nothing of it."""
        known = self._known.get(schema_id)
        if known is None:
            if schema_id in self._refused:
                raise self._refused[schema_id].with_context()
            schema = self.registry.schema(schema_id, format=self.schema_format)
            try:
                if schema.schema_type != self.schema_type:
                    raise DeserializationError(
                        f"schema {schema_id} is {schema.schema_type}, expected {self.schema_type}",
                        hint="Use the deserializer of that format for this topic",
                    )
                known = self._known[schema_id] = self._prepare(schema)
            except DeserializationError as error:
                raise self._refuse(schema_id, error) from error.__cause__
            except (ValueError, TypeError, LookupError, RecursionError) as error:  # as the formats' libraries say it
                told = f"schema {schema_id} is of no use: {str(error) or type(error).__name__}"
                raise self._refuse(schema_id, DeserializationError(told)) from error
        return known

    def _refuse(self, schema_id: int, error: DeserializationError) -> FastqError:
        """Keep why what the registry has answered is of no use: to find that out takes as long with each value."""
        self._refused[schema_id] = found = error.with_context(url=",".join(self.registry.urls))
        return found.with_context()

    def _prepare(self, schema: Schema) -> T:
        raise NotImplementedError


def referenced(registry: SchemaRegistryClient, schema: Schema, format: str | None = None) -> dict[str, Schema]:
    """The schemas that one builds on, by the names it knows them by, what they build on themselves before them."""
    found: dict[str, Schema] = {}
    met: set[tuple[str, int]] = set()  # each is gone into once, however many build on it

    def add(one: Schema) -> None:
        for reference in one.references:
            inner = registry.version(reference.subject, reference.version, format=format).schema
            if reference[1:] not in met:
                met.add(reference[1:])
                add(inner)
            found.setdefault(reference.name, inner)

    add(schema)
    return found


async def _in_thread_where_needed(call: Callable[[], R]) -> R:
    while True:
        try:
            return call()
        except LoadingWouldBlock as needed:
            if needed.load is None:
                raise
            await asyncio.to_thread(needed.load)


def missing(package: str, error: ImportError) -> ImportError:
    """The error for a format whose library is not installed."""
    return ImportError(f"{package} is needed for this format: pip install {package} ({error})")


def convert(function: Callable[[Any], Any] | None, value: Any) -> Any:
    """`value` as the program has it or as the format takes it."""
    return value if function is None else function(value)
