"""What a schema of Avro lets few bytes become, told by the schema alone: values of anybody who may register one are read.

Rules: `schema` is as fastavro has parsed it, `named` are the types it knows by name, its own among them. What takes no bytes is null, fixed
of size 0 and a record of nothing else; a union has an index, and an array, a map and a text their length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

VOID_MAX = 100
"""How many values of no bytes a schema may have beside those of some, counted where they are used."""
DECIMAL_BYTES_MAX = 1_000
_BOUNDED = "fastq.bounded-decimal"


def is_recursive(named: Mapping[str, Any], *, always: bool = False) -> bool:
    """Whether a type is somewhere in itself, so that the bytes say how deep a value is; `always`: in each value, which has no end."""
    done: set[str] = set()

    def visit(one: Any, inside: frozenset[str]) -> bool:
        name = _name(one, named)
        if name in inside or name in done:
            return name in inside
        if always and _kind(one if name is None else named[name]) not in _RECORDS:
            return False
        deeper = inside if name is None else inside | {name}
        found = any(visit(part, deeper) for part in _parts(one if name is None else named[name]))
        if name is not None:
            done.add(name)
        return found

    return any(visit(name, frozenset()) for name in named)


def levels(schema: Any, named: Mapping[str, Any], *, free: bool = False) -> int:
    """How many levels of records, unions, arrays and maps a value has, where no type is within itself. `free`: how many it goes down at
    most between two of its bytes, where one may be, but in each value: a union, an array and a map begin with a byte."""
    known: dict[str, int] = {}

    def of(one: Any) -> int:
        name = _name(one, named)
        if name is None:
            return of_parts(one)
        if name not in known:
            known[name] = of_parts(named[name])
        return known[name]

    def of_parts(one: Any) -> int:
        parts = _parts(one)
        if free and _kind(one) not in _RECORDS:
            return int(bool(parts))
        return 1 + max(map(of, parts)) if parts else 0

    # In the order in which they are told: each builds on earlier ones, so that no chain of them is gone down at once.
    return max(map(of, [*named, schema]), default=0)


def why_endless(schema: Any, named: Mapping[str, Any]) -> str:
    """Why its values may be larger than their bytes by any factor; "" where they are not."""
    known: dict[str, int] = {}

    def void(one: Any) -> int:
        """How many values are made of no bytes, 0 where it takes some."""
        name = _name(one, named)
        if name is not None:
            if name not in known:
                known[name] = VOID_MAX  # of one that is in itself
                known[name] = void_of(named[name])
            return known[name]
        return void_of(one)

    def void_of(one: Any) -> int:
        kind = _kind(one)
        if kind in _RECORDS:
            inner = [void(part) for part in _parts(one)]
            return 1 + sum(inner) if all(inner) else 0
        return int(kind == "null" or (kind == "fixed" and one["size"] == 0))

    total = 0
    for one in _all([schema, *named.values()]):
        kind = _kind(one)
        if kind == "array" and void(one["items"]):
            return "an array of it has items that take no bytes"
        if kind in _RECORDS:
            total += sum(void(part) for part in _parts(one))
        if total > VOID_MAX:
            return f"it has more than {VOID_MAX} values that take no bytes"
    return ""


def bound_decimals(schema: Any, named: Mapping[str, Any]) -> None:
    """Have decimals of more than DECIMAL_BYTES_MAX bytes read as bytes: what their digits take grows with the square of those."""
    from fastavro.read import LOGICAL_READERS  # those of the process, to which one is added

    for one in _all([schema, *named.values()]):
        read = LOGICAL_READERS.get(f"{_kind(one)}-decimal")
        if read is not None and isinstance(one, dict) and one.get("logicalType") == "decimal":
            LOGICAL_READERS[f"{one['type']}-{_BOUNDED}"] = lambda data, *more, read=read: (
                data if len(data) > DECIMAL_BYTES_MAX else read(data, *more)
            )
            one["logicalType"] = _BOUNDED


_RECORDS = ("record", "error")


def _name(schema: Any, named: Mapping[str, Any]) -> str | None:
    name = schema if isinstance(schema, str) else schema.get("name") if isinstance(schema, dict) else None
    return name if name in named else None


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return schema if isinstance(schema, str) else str(schema["type"])


def _parts(schema: Any) -> list[Any]:
    kind = _kind(schema)
    if kind == "union":
        return list(schema)
    if kind in _RECORDS:
        return [field["type"] for field in schema["fields"]]
    return [schema[key] for key in ("items", "values") if key in schema] if isinstance(schema, dict) else []


def _all(schemas: list[Any]) -> Iterator[Any]:
    """Each schema of these, those within them too, but for what is only named."""
    left, seen = list(schemas), set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left.extend(_parts(one))
