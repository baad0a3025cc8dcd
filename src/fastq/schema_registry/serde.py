"""What the serializers and deserializers of all three formats share: subjects, ids, caches.

Rules: a serializer knows from the first value of a topic on what the topic's values are written with, and that schema's id: the one that
it was given, or the newest of the topic's subject; a deserializer meets ids and keeps what it made of their schemas, or why it can make
nothing of them. After that, a value costs a dictionary look-up and the format's own work.
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

UNUSABLE = ValueError, TypeError, LookupError, RecursionError
"""What the formats' libraries raise for a schema that is none."""

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


class SchemaSerializer(Generic[T]):
    """The schemas of the topics it is used for, their ids, and what was made of them to write with. Thread rule: any thread.

    auto_register: register the schema where it is not yet (False: it must be there). use_latest_version: write with the newest version of
    each topic's subject, as it is at the topic's first value, in place of the schema given. is_key: of keys, for the subject's name.
    """

    schema_type = "AVRO"
    schema_format: str | None = None

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
        self._own: T | None = None
        self._ready: dict[str, tuple[bytes, T]] = {}

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
        schema_id: int = wire.HEADER.unpack_from(self._writing(topic)[0])[1]
        return schema_id

    def _writing(self, topic: str) -> tuple[bytes, T]:
        """What goes before each value of a topic, and what the values are written with."""
        ready = self._ready.get(topic)
        if ready is None:
            try:
                schema_id, made = self._locate(self.subject(topic))
            except LoadingWouldBlock as needed:
                # All of it in one go: what is loaded piece by piece may be out of date by the next look (latest_ttl_s).
                needed.load = partial(self.warm_up, topic)
                raise
            ready = self._ready[topic] = wire.header(schema_id), made
        return ready

    def _locate(self, subject: str) -> tuple[int, T]:
        """The id of the schema that a subject's values are written with, and what was made of it."""
        if self._use_latest:
            latest = self.registry.latest(subject)
            schema_id, schema = latest.schema_id, latest.schema
            if schema.schema_type != self.schema_type:
                raise ValueError(
                    f"the newest version of {subject} (id {schema_id}) is {schema.schema_type}, expected {self.schema_type}: use the "
                    "serializer of that format"
                )
            if self.schema_format is not None:
                schema = self.registry.schema(schema_id, format=self.schema_format)
            try:
                return schema_id, self._prepare(schema)
            except UNUSABLE as error:
                told = str(error) or type(error).__name__
                raise ValueError(f"the newest version of {subject} (id {schema_id}) is of no use: {told}") from error
        schema = self._schema()
        if self._auto_register:
            schema_id = self.registry.register(subject, schema, normalize=self._normalize)
        else:
            schema_id = self.registry.lookup(subject, schema, normalize=self._normalize).schema_id
        if self._own is None:
            self._own = self._prepare_own(schema)
        return schema_id, self._own

    def _schema(self) -> Schema:
        """The schema to register; formats whose schemas build on others register those first."""
        assert self._given is not None
        return self._given

    def _prepare(self, schema: Schema) -> T:
        """What values are written with by a schema of the registry. Raises ValueError for one that is of no use."""
        raise NotImplementedError

    def _prepare_own(self, schema: Schema) -> T:
        """The same of the schema that was given."""
        return self._prepare(schema)


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
        self._prepare_reader()

    def _prepare_reader(self) -> None:
        """Load what the reader's own schema builds on, where there is one."""

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
            except UNUSABLE as error:
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
