"""The notation in which the protocol's messages are declared (tools/messages/*.msg), and its parser.

One file holds the messages of one generated module. A message starts at the left margin, its fields are indented by
four, the fields of a struct by four more than the field that first uses it:

    request ProduceRequest key=0 versions=3-13 flexible=9+ listeners=broker
        transactional_id: string nullable default null
        topic_data: []TopicProduceData
            name: string 3-12 ignorable key

- kinds: request, response, header, data, metadata, coordinator-key, coordinator-value.
- `versions=none`: the API is gone, only its key remains. `unstable`: the last version is not to be advertised.
- A range is `3`, `3-7` or `3+`; a field without one is in all versions of what holds it.
- `nullable [range]`: null is allowed. `tag N [range]`: the field is tagged number N (KIP-482). `ignorable`: dropped
  silently in versions without the field, where any other field must then have its default. `key`: identifies the
  element of the list. `inflexible`: in its old encoding even in flexible versions.
- `default X`; without it 0, false, "", an empty list, or a struct of defaults.
- `struct Name` declares a struct that several fields share. `#` starts a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PRIMITIVES = (
    "bool",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float64",
    "string",
    "uuid",
    "bytes",
    "records",
)
KINDS = ("request", "response", "header", "data", "metadata", "coordinator-key", "coordinator-value")
NEVER = 32767  # the first flexible version of a message that has none; the highest int16

_RANGE = re.compile(r"(\d+)(\+|-(\d+))?$")


class NotationError(ValueError):
    """A line that is not in the notation."""


@dataclass(frozen=True)
class Versions:
    """Versions first to last, both included; empty when last < first."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __and__(self, other: Versions) -> Versions:
        return Versions(max(self.first, other.first), min(self.last, other.last))

    def __bool__(self) -> bool:
        return self.first <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))


NO_VERSIONS = Versions(1, 0)


@dataclass
class Field:
    name: str
    type: str  # a primitive or a struct's name; the element's for an array
    array: bool
    versions: Versions
    nullable: Versions = NO_VERSIONS
    tag: int | None = None
    tagged: Versions = NO_VERSIONS
    default: str | None = None  # as written
    ignorable: bool = False
    key: bool = False
    inflexible: bool = False

    @property
    def is_struct(self) -> bool:
        return self.type not in PRIMITIVES


@dataclass
class Struct:
    name: str
    fields: list[Field] = field(default_factory=list)


@dataclass
class Message:
    kind: str
    name: str
    key: int  # API key, record type, or -1
    versions: Versions  # empty when the API is gone
    flexible_version: int
    listeners: tuple[str, ...]
    unstable: bool
    module: str
    structs: dict[str, Struct] = field(default_factory=dict)
    fields: list[Field] = field(default_factory=list)

    def flexible(self, version: int) -> bool:
        return version >= self.flexible_version


def parse_range(text: str, within: Versions) -> Versions:
    match = _RANGE.match(text)
    if match is None:
        raise NotationError(f"{text!r} is not a version range")
    first = int(match[1])
    last = int(match[3]) if match[3] else within.last if match[2] else first
    return Versions(first, last) & within


def parse_file(path: Path) -> list[Message]:
    """The messages of one file; an error names file and line."""
    messages: list[Message] = []
    holders: list[tuple[int, Struct | Message, Versions]] = []  # (indent of its fields, what holds them, its versions)
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        if not line:
            continue
        try:
            indent = len(line) - len(line.lstrip())
            if indent == 0:
                messages.append(_message(line, path.stem))
                holders = [(4, messages[-1], messages[-1].versions)]
                continue
            while holders and holders[-1][0] > indent:
                holders.pop()
            if not holders or holders[-1][0] != indent:
                raise NotationError(f"unexpected indent of {indent}")
            _member(line.strip(), messages[-1], holders)
        except NotationError as error:
            raise NotationError(f"{path}:{number}: {error}") from None
    for message in messages:
        _check(message, path)
    return messages


def parse_folder(folder: Path) -> list[Message]:
    """All messages, in the order of the files' names."""
    return [message for path in sorted(folder.glob("*.msg")) for message in parse_file(path)]


def _message(line: str, module: str) -> Message:
    kind, name, *rest = line.split()
    if kind not in KINDS:
        raise NotationError(f"{kind!r} is none of {', '.join(KINDS)}")
    options = {option: value for option, _, value in (item.partition("=") for item in rest)}
    unknown = options.keys() - {"key", "versions", "flexible", "listeners", "unstable"}
    if unknown or "versions" not in options:
        raise NotationError(f"unknown or missing options: {', '.join(sorted(unknown)) or 'versions'}")
    versions = NO_VERSIONS if options["versions"] == "none" else parse_range(options["versions"], Versions(0, NEVER))
    flexible = options.get("flexible", "none")
    return Message(
        kind,
        name,
        int(options.get("key", "-1")),
        versions,
        NEVER if flexible == "none" else parse_range(flexible, Versions(0, NEVER)).first,
        tuple(options["listeners"].split(",")) if "listeners" in options else (),
        "unstable" in options,
        module,
    )


def _member(text: str, message: Message, holders: list[tuple[int, Struct | Message, Versions]]) -> None:
    indent, holder, versions = holders[-1]
    if text.startswith("struct "):
        struct = Struct(text.split()[1])
        message.structs[struct.name] = struct
        holders.append((indent + 4, struct, message.versions))
        return
    member = _field(text, versions, message)
    holder.fields.append(member)
    if member.is_struct:
        struct = message.structs.setdefault(member.type, Struct(member.type))
        holders.append((indent + 4, struct, member.versions))


def _field(text: str, within: Versions, message: Message) -> Field:
    match = re.match(r"(\w+): (\[\])?(\w+)(.*)$", text)
    if match is None:
        raise NotationError(f"{text!r} is not a field")
    tokens = match[4].split()
    versions = parse_range(tokens.pop(0), within) if tokens and _RANGE.match(tokens[0]) else within
    result = Field(match[1], match[3], match[2] is not None, versions)

    def optional_range() -> Versions:
        return parse_range(tokens.pop(0), versions) if tokens and _RANGE.match(tokens[0]) else versions

    while tokens:
        option = tokens.pop(0)
        if option == "nullable":
            result.nullable = optional_range()
        elif option == "tag":
            result.tag = int(tokens.pop(0))
            result.tagged = optional_range() & Versions(message.flexible_version, NEVER)
        elif option == "default":
            result.default = tokens.pop(0)
        elif option in ("ignorable", "key", "inflexible"):
            setattr(result, option, True)
        else:
            raise NotationError(f"unknown option {option!r}")
    return result


def _check(message: Message, path: Path) -> None:
    """What no single line shows: structs without fields, tags used twice, nulls that are not allowed."""
    holders: tuple[Message | Struct, ...] = (message, *message.structs.values())
    for holder in holders:
        where = f"{path}: {message.name}.{holder.name}"
        if isinstance(holder, Struct) and not holder.fields:
            raise NotationError(f"{where} has no fields")
        names = [member.name for member in holder.fields]
        if len(set(names)) < len(names):
            raise NotationError(f"{where} has two fields of one name")
        tags = sorted(member.tag for member in holder.fields if member.tag is not None)
        if tags != list(range(len(tags))):
            raise NotationError(f"{where} has tags {tags}; they must be 0, 1, 2 and so on")
        for member in holder.fields:
            if member.default == "null" and not member.nullable and member.versions:
                raise NotationError(f"{where}.{member.name} is null by default and not nullable")
