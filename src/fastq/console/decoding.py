"""Bytes of records as something to read: JSON, text, what a schema registry knows, else hex.

Rules: what is decoded is a picture of the bytes, cut to TEXT_MAX characters; the bytes themselves go out by a download or into the form
that sends a record again. JSON deeper than DEPTH_MAX or larger than JSON_BYTES_MAX is a text, and its note says why no path leads into it:
what writes and compares documents recurses, and indents by depth. The
registry is the one of the cluster's configuration, asked in threads that are waited for WAIT_S at most; a schema that cannot be had is a
word beside the hex, never an error of the page, and is not asked for again with each record. Masks are applied here, before anybody sees
or compares anything.

What decodes runs in the event loop, with schemas of anybody who may register one: a value takes time and memory by its bytes alone. So JSON
is not checked against its schema, whose patterns may take any time, and a schema of Avro that makes much of no bytes is not decoded with.
A value has no more letters than JSON_BYTES_MAX, or A_BYTE for each of its bytes: names in its schema may have any length.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fastq.console.masking import MASKED, Mask
from fastq.console.threads import Threads
from fastq.errors import SchemaRegistryError, WaitTimeout
from fastq.schema_registry.letters import A_BYTE, check_letters, check_message_letters

if TYPE_CHECKING:
    from fastq.schema_registry import SchemaRegistryClient

T = TypeVar("T")

TEXT_MAX = 20_000
HEX_BYTES_MAX = 2_048
JSON_BYTES_MAX = 4 << 20
DEPTH_MAX = 100
ASK_S, WAIT_S, ASKED_AT_ONCE = 5.0, 10.0, 8
"""How long an answer of the registry may take, and all that a page asks of it at once, in seconds; and how many are asked for at once."""
UNKNOWN_S, UNKNOWN_MAX = 30.0, 1_000
"""How long a schema that could not be had is not asked for again, in seconds, and how many of them are remembered."""
FRAME = struct.Struct(">bI")

VIEWS = ("auto", "text", "hex")


class Field(NamedTuple):
    """A key, value or header as it is shown, whole. `document` is what a path goes into, if there is one (`has_document`); of hex it
    is the bytes."""

    kind: str
    text: str
    document: Any = None
    has_document: bool = False
    note: str = ""


NULL = Field("null", "", None, True)


class Registry:
    """The schemas of a cluster's registry. One event loop; what waits, waits in a thread."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        from fastq.schema_registry import SchemaRegistryClient

        self._client = SchemaRegistryClient(url, timeout_s=ASK_S, retries=0)
        self._threads = Threads("the schema registry", ASKED_AT_ONCE, WAIT_S)
        self._deserializers: dict[str, Any] = {}
        self._clock = clock
        self._unknown: dict[int | None, tuple[float, str]] = {}
        """Schemas that could not be had, with when to ask again and why not; None: the registry itself does not answer."""

    @property
    def client(self) -> SchemaRegistryClient:
        """What `ask` is for."""
        return self._client

    async def ask(self, call: Callable[..., T], *arguments: Any) -> T:
        """What a call of the client gives or raises, or one that takes its time with what it gave; WaitTimeout after WAIT_S."""
        return await self._threads.run(call, *arguments)

    async def decode(self, topic: str, data: bytes) -> Field | None:
        """What a frame of Confluent's form holds; None where the bytes are none."""
        if len(data) < FRAME.size or data[0] != 0:
            return None
        schema_id = FRAME.unpack_from(data)[1]
        unknown = self._why_unknown(schema_id)
        if unknown is not None:
            return _hex(data)._replace(note=unknown)
        try:
            schema = await self.ask(self._client.schema, schema_id)
            deserializer = self._deserializer(schema.schema_type)
            value = await asyncio.wait_for(deserializer.deserialize_async(topic, (), data), WAIT_S)
            document = _plain(value, max(JSON_BYTES_MAX, A_BYTE * len(data)))
        except (SchemaRegistryError, WaitTimeout, asyncio.TimeoutError) as error:
            return _hex(data)._replace(note=self._is_unknown(schema_id, error))
        except Exception as error:  # the formats' libraries have errors of their own, and the bytes are anybody's
            return _hex(data)._replace(note=f"schema {schema_id}: {str(error)[:300]}")
        kind = schema.schema_type.lower()
        return Field(kind, json.dumps(document, ensure_ascii=False, indent=1), document, True, f"schema {schema_id}")

    def _why_unknown(self, schema_id: int) -> str | None:
        for key in (None, schema_id):
            found = self._unknown.get(key)
            if found is not None and self._clock() < found[0]:
                return found[1]
        return None

    def _is_unknown(self, schema_id: int, error: Exception) -> str:
        text = f"schema {schema_id}: {str(error)[:300] or 'the schema registry takes too long'}"
        while len(self._unknown) >= UNKNOWN_MAX:
            del self._unknown[next(iter(self._unknown))]
        key = None if getattr(error, "status", None) is None else schema_id
        self._unknown[key] = self._clock() + UNKNOWN_S, text
        return text

    def _deserializer(self, schema_type: str) -> Any:
        if schema_type not in self._deserializers:
            self._deserializers[schema_type] = _MADE[schema_type](self._client)
        return self._deserializers[schema_type]


def _avro(client: SchemaRegistryClient) -> Any:
    from fastq.schema_registry.avro import BoundedAvroDeserializer

    return BoundedAvroDeserializer(client)


def _protobuf(client: SchemaRegistryClient) -> Any:
    from fastq.schema_registry import ProtobufDeserializer

    return ProtobufDeserializer(client)


def _json_schema(client: SchemaRegistryClient) -> Any:
    from fastq.schema_registry import JsonSchemaDeserializer

    return JsonSchemaDeserializer(client, validate=False)  # a pattern of the schema may take any time


_MADE = {"AVRO": _avro, "PROTOBUF": _protobuf, "JSON": _json_schema}


def _plain(value: Any, letters: int) -> Any:
    """A document of JSON's kinds of what a format gave; raises ValueError for one that is too deep, or would have more `letters`."""
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped, unused-ignore]

        # In the writer's own pool of types: of those is what an Any holds.
        pool = value.DESCRIPTOR.file.pool
        check_message_letters(value, letters)
        document = MessageToDict(value, preserving_proto_field_name=True, descriptor_pool=pool)
    else:
        check_letters(value, letters)
        # NaN and infinities by their names: JSON has no such numbers.
        document = json.loads(json.dumps(value, default=_other, ensure_ascii=False), parse_constant=str)
    if _is_deep(document):
        raise ValueError(f"the value is more than {DEPTH_MAX} levels deep")
    return document


def _is_deep(document: Any) -> bool:
    level = [document]
    for _ in range(DEPTH_MAX):
        inner = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _other(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    return str(value)


def decode(data: bytes | None, view: str = "auto") -> Field:
    """What bytes are by themselves."""
    if data is None:
        return NULL
    if view == "hex":
        return _hex(data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _hex(data)
    note = ""
    if view == "auto" and text.removeprefix(BOM).lstrip(_BLANKS)[:1] in _JSON_STARTS:
        found = _json(text.removeprefix(BOM), len(data))
        if isinstance(found, Field):
            return found
        note = found
    if any(char < " " and char not in "\t\r\n" for char in text[:1_000]):
        return _hex(data)
    return Field("text", text, note=note)


def _json(text: str, size: int) -> Field | str:
    """The document, or why one that may be JSON is not read as such; empty where it is none."""
    if size > JSON_BYTES_MAX:
        return (
            f"not looked into as JSON: {size:,} bytes, the most is {JSON_BYTES_MAX:,}"
            if text.lstrip(_BLANKS)[0] in '{["'
            else ""
        )
    deep = f"not looked into as JSON: more than {DEPTH_MAX} levels deep"
    try:
        document = json.loads(text)
    except RecursionError:
        return deep
    except ValueError:
        return ""
    # Counting is cheap, and what opens few brackets is not deep.
    if text.count("[") + text.count("{") > DEPTH_MAX and _is_deep(document):
        return deep
    return Field("json", text, document, True)


BOM, _BLANKS = "\ufeff", " \t\r\n"
"""What may stand before JSON: the mark that some programs begin a file with, and what JSON takes for blank."""
_JSON_STARTS = frozenset('{["-0123456789tfn')


def _hex(data: bytes) -> Field:
    lines = []
    for place in range(0, min(len(data), HEX_BYTES_MAX), 16):
        part = data[place : place + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{place:06x}  {part.hex(' '):47}  {letters}")
    note = f"the first {HEX_BYTES_MAX:,} of {len(data):,} bytes" if len(data) > HEX_BYTES_MAX else ""
    return Field("hex", "\n".join(lines), data, note=note)


class Row(NamedTuple):
    """A record as it is shown and compared."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Field
    value: Field
    headers: tuple[tuple[str, Field], ...]
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """For the page, long texts cut."""
        return {
            "partition": self.partition,
            "offset": self.offset,
            "time": self.timestamp_ms,
            "key": _cut(self.key),
            "value": _cut(self.value),
            "headers": [[name, _cut(field)] for name, field in self.headers],
            "size": self.size_bytes,
        }


def _cut(field: Field) -> dict[str, Any]:
    text = field.text
    note = field.note
    if field.kind == "json" and len(text) <= TEXT_MAX:
        text = json.dumps(field.document, ensure_ascii=False, indent=1)
    if len(text) > TEXT_MAX:
        note = ", ".join(filter(None, [f"the first {TEXT_MAX:,} of {len(text):,} characters", note]))
        text = text[:TEXT_MAX]
    return {"kind": field.kind, "text": text, "note": note}


class Decoder:
    """Records of one topic into rows: the registry, the view and the masks of it."""

    def __init__(self, topic: str, view: str, masks: Sequence[Mask], registry: Registry | None) -> None:
        self.topic = topic
        self._view = view
        self._masks = masks
        self._registry = registry if view == "auto" or any(mask.part != "header" for mask in masks) else None

    @property
    def is_raw(self) -> bool:
        """Whether what is shown is the bytes themselves, so that a search may look at those."""
        return not self._masks and self._registry is None

    async def row(self, record: Any) -> Row:
        """A record as this user sees it."""
        key, value, headers = record.key, record.value, record.headers
        size = len(key or b"") + len(value or b"") + sum(len(name) + len(data or b"") for name, data in headers)
        return Row(
            record.partition,
            record.offset,
            record.timestamp_ms,
            await self._field("key", key),
            await self._field("value", value),
            tuple((name, self._header(name, data)) for name, data in headers),
            size,
        )

    async def _field(self, part: str, data: bytes | None) -> Field:
        masks = [mask for mask in self._masks if mask.part == part]
        view = "auto" if masks else self._view
        field = None
        if self._registry is not None and data is not None and view == "auto":
            field = await self._registry.decode(self.topic, data)
        if field is None:
            field = decode(data, view)
        return _masked(field, masks)

    def _header(self, name: str, data: bytes | None) -> Field:
        masks = [mask for mask in self._masks if mask.part == "header" and mask.path[0] in (None, name)]
        return Field("masked", MASKED) if masks and data is not None else decode(data, self._view)


def _masked(field: Field, masks: Sequence[Mask]) -> Field:
    if not masks or field.kind == "null":
        return field
    if not field.has_document or any(not mask.path for mask in masks):
        return Field("masked", MASKED)
    document = field.document
    for mask in masks:
        document = mask.hide(document)
    return Field(field.kind, json.dumps(document, ensure_ascii=False), document, True, field.note)
