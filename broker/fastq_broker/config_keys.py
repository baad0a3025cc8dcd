"""The vocabulary of configuration tables: key, type, allowed values, status.

Rules: a key is declared once, in a table; everything else (parsing, DescribeConfigs, warnings, documentation) reads the
table. Values travel as text on the wire and in files and as Python values in the program; `ConfigKey.parse` and
`ConfigKey.render` are the only ways between the two.
Names are those of Apache Kafka 4.3, and so are defaults where the table does not say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum
from typing import Any

from fastq.errors import ConfigError
from fastq.values import Value, replace

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

# A value of a configuration: None where a key has no value at all.
ConfigValue = Any


class ConfigType(IntEnum):
    """Types as DescribeConfigs numbers them (`DescribeConfigsResponse.ConfigType` in Kafka)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs numbers it (`DescribeConfigsResponse.ConfigSource` in Kafka)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Status(Enum):
    """What this broker does with a key that somebody sets."""

    DONE = "done"
    MAPPED = "mapped"
    IGNORED = "ignored"


class ResourceType(IntEnum):
    """Kinds of resource that carry configuration (`ConfigResource.Type` in Kafka)."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Check(Value):
    """A test of a parsed value and the words that say what passes it."""

    allowed: str
    passes: Callable[[ConfigValue], bool]


SHOWN_CHARACTERS_MAX = 200


def shown(text: object) -> str:
    """A name or value from outside as an error message may carry it: quoted, and cut where it is long."""
    head = text[: SHOWN_CHARACTERS_MAX + 1] if isinstance(text, str) else text  # a long one costs no more than it shows
    quoted = repr(head)
    return quoted if len(quoted) <= SHOWN_CHARACTERS_MAX else f"{quoted[:SHOWN_CHARACTERS_MAX]}..."


def at_least(low: float) -> Check:
    """A number of `low` or more."""
    return Check(f"{low} or more", lambda value: value >= low)


def between(low: float, high: float) -> Check:
    """A number from `low` to `high`, both included."""
    return Check(f"{low} to {high}", lambda value: low <= value <= high)


def one_of(*names: str) -> Check:
    """One of the names, as they are written."""
    return Check("one of " + ", ".join(names), lambda value: value in names)


def list_of(*names: str) -> Check:
    """Any of the names, or none of them."""
    return Check("a list of " + ", ".join(names), lambda value: all(item in names for item in value))


GZIP_LEVEL = Check("1 to 9, or -1 for the codec's own", lambda value: value == -1 or 1 <= value <= 9)
NOT_EMPTY = Check("a text that is not empty", lambda value: bool(value))
THROTTLED_REPLICAS = Check(
    "`*` or a list of partition:broker",
    lambda value: value == ["*"] or all(_is_replica(item) for item in value),
)
MIRROR_SOURCE = Check(
    "ALIAS/CLUSTER ID/TOPIC ID, as fastq mirror writes it, or nothing",
    lambda value: not value or (len(value) <= 300 and value.count("/") in (2, 3)),
)


def is_count(text: str) -> bool:
    """Whether a text is a whole number that is not negative and has at most 10 digits."""
    return text.isascii() and text.isdigit() and len(text) <= 10


def _is_replica(item: str) -> bool:
    partition, colon, broker = item.partition(":")
    return bool(colon) and is_count(partition) and is_count(broker)


_INTEGER_LIMITS = {
    ConfigType.SHORT: (-INT16_MAX - 1, INT16_MAX),
    ConfigType.INT: (-INT32_MAX - 1, INT32_MAX),
    ConfigType.LONG: (-INT64_MAX - 1, INT64_MAX),
}


class ConfigKey(Value):
    """One row of a configuration table.

    `note` says why a key is ignored, or what it is mapped to; `doc` says what it does. A `dynamic` key may be altered
    while the broker runs. `synonyms` are the broker keys a topic key falls back to, in order, each with the
    factor that turns its unit into this key's. `protects`: who sets it wants to be protected (from others, or from losing data) by
    something that is not done here, so setting it is refused; see `fail_closed`.
    """

    name: str
    type: ConfigType
    default: ConfigValue = None
    check: Check | None = None
    status: Status = Status.DONE
    note: str = ""
    doc: str = ""
    dynamic: bool = False
    synonyms: tuple[tuple[str, int], ...] = ()
    protects: bool = False

    @property
    def sensitive(self) -> bool:
        """Whether the value is a secret that is never shown."""
        return self.type is ConfigType.PASSWORD

    @property
    def attribute(self) -> str:
        """The key in Python's spelling: `log.dirs` is `log_dirs`."""
        return self.name.replace(".", "_").replace("-", "_")

    @property
    def documentation(self) -> str:
        """What DescribeConfigs tells: what it does, and whether it does so yet."""
        if self.status is Status.DONE:
            return self.doc
        effect = "Has no effect" if self.status is Status.IGNORED else "Mapped"
        if self.protects:
            effect = "Refused unless --insecure-ignore names it"
        return f"{self.doc} {effect}: {self.note}.".strip()

    def named(self, name: str) -> ConfigKey:
        """The same key, by another name."""
        return replace(self, name=name)

    def parse(self, text: ConfigValue) -> ConfigValue:
        """Text (or a TOML value) as a checked Python value; ConfigError names key, value, and what is allowed."""
        value = self._convert(text)
        if self.check is not None and value is not None and not self.check.passes(value):
            raise self._bad(text)
        return value

    def render(self, value: ConfigValue) -> str | None:
        """A Python value as Kafka writes it on the wire."""
        if value is None:
            return None
        if self.type is ConfigType.BOOLEAN:
            return "true" if value else "false"
        if self.type is ConfigType.LIST:
            return ",".join(str(item) for item in value)
        if self.type is ConfigType.DOUBLE:
            return "1.7976931348623157E308" if value == _DOUBLE_MAX else repr(float(value))
        return str(value)

    def _convert(self, raw: ConfigValue) -> ConfigValue:
        if raw is None:
            return None
        if self.type is ConfigType.LIST:
            return self._convert_list(raw)
        if isinstance(raw, (list, dict)):
            raise self._bad(raw)
        if isinstance(raw, bool):
            raw = "true" if raw else "false"
        text = str(raw).strip()
        if self.type is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._bad(raw)
            return text.lower() == "true"
        if self.type in _INTEGER_LIMITS:
            return self._convert_integer(text)
        if self.type is ConfigType.DOUBLE:
            return self._convert_double(text)
        return text

    def _convert_integer(self, text: str) -> int:
        low, high = _INTEGER_LIMITS[self.type]
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdigit()):
            raise self._bad(text, of_type=True)
        value = int(text) if len(digits) <= 20 else high + 1
        if not low <= value <= high:
            raise self._bad(text, of_type=True)
        return value

    def _convert_double(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self._bad(text) from None
        if not math.isfinite(value):
            raise self._bad(text)
        return value

    def _convert_list(self, raw: ConfigValue) -> list[str]:
        items: Iterable[ConfigValue] = raw if isinstance(raw, (list, tuple)) else str(raw).split(",")
        return list(dict.fromkeys(text for text in (str(item).strip() for item in items) if text))

    def _bad(self, value: ConfigValue, *, of_type: bool = False) -> ConfigError:
        """`of_type`: it is no value of the key's type, whose words stand beside the check's, that may know no upper end."""
        allowed = self.check.allowed if self.check is not None else _TYPE_WORDS[self.type]
        if of_type and self.check is not None:
            allowed = f"{_TYPE_WORDS[self.type]}, {allowed}"
        text = "(hidden)" if self.sensitive else shown(value)
        return ConfigError(f"{self.name} = {text} is not allowed: it takes {allowed}")


_DOUBLE_MAX = 1.7976931348623157e308
_TYPE_WORDS = {
    ConfigType.UNKNOWN: "any text",
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a text",
    ConfigType.INT: "a whole number of 32 bits",
    ConfigType.SHORT: "a whole number of 16 bits",
    ConfigType.LONG: "a whole number of 64 bits",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a comma-separated list",
    ConfigType.CLASS: "a class name",
    ConfigType.PASSWORD: "a secret text",
}


def table_of(keys: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    """A table by name; a name declared twice is a mistake of the table."""
    table: dict[str, ConfigKey] = {}
    for key in keys:
        if key.name in table:
            raise ValueError(f"{key.name} is declared twice")
        table[key.name] = key
    return table


def unknown_key(name: str, known: Mapping[str, ConfigKey], what: str, page: str) -> ConfigError:
    """The error for a key that no table has, naming the nearest one that does exist, or else the page of the reference that has all."""
    if len(name) > SHOWN_CHARACTERS_MAX:
        return ConfigError(f"unknown {what} {shown(name)}")
    if not name.strip():
        return ConfigError(f"unknown {what} {name!r}: a name is missing")
    import difflib

    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]}?" if nearest else f"docs/reference/{page} shows the known ones"
    return ConfigError(f"unknown {what} {name}; {hint}")
