"""What arguments of public calls may be: numbers, lists and mappings, looked at before anything is done with them.

Rule: what is wrong with one is said in its own words, with what was meant, not by the code that it would end in; a bool is no number,
and a str is no list of its letters.
"""

from __future__ import annotations

from math import inf
from operator import index

TYPE_CHECKING = False  # as in fastq/__init__.py
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

INT64_MAX = 2**63 - 1


def int_of(given: Any, what: str, least: int, most: int = INT64_MAX) -> int:
    """A number as an application gives it, of numpy too. Raises TypeError for what is none, ValueError outside of least to most."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{what} is an int, got {given!r}")
    number = index(given)
    if not least <= number <= most:
        span = f"{least} or more" if most == INT64_MAX else f"{least} to {most}"
        raise ValueError(f"{what} is {span}, got {given!r}")
    return number


def number_of(given: Any, what: str, least: float, most: float = inf) -> float:
    """A number with a fraction or without. Raises TypeError for what is none, ValueError outside of least to most, and for NaN."""
    if isinstance(given, bool) or not hasattr(given, "__float__"):
        raise TypeError(f"{what} is a number, got {given!r}")
    if not least <= given <= most:
        raise ValueError(f"{what} is {least} {'or more' if most == inf else f'to {most}'}, got {given!r}")
    return float(given)


def text_of(given: Any, what: str) -> str:
    """A name: a str, not an empty one. Raises TypeError, or ValueError."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is a str, got {given!r}")
    if not given:
        raise ValueError(f"{what} is a str that is not empty, got {given!r}")
    return given


def without_logins(servers: object) -> str:
    """What was given for one or more addresses, as a message may show it: of a string nothing that is before its last `@`."""
    quoted = repr(servers)
    if "@" not in quoted:
        return quoted
    if isinstance(servers, (list, tuple)):
        return "[" + ", ".join(map(without_logins, servers)) + "]"
    return repr("***@" + servers.rpartition("@")[2]) if isinstance(servers, str) else "***@" + quoted.rpartition("@")[2]


def mapping_of(given: Mapping[K, V], what: str, example: str) -> Mapping[K, V]:
    """A mapping. Raises TypeError for anything else, with an example of one."""
    if not hasattr(given, "items") or not hasattr(given, "keys"):
        raise TypeError(f"{what}: a mapping is needed, as in {example}, got {given!r}")
    return given


def items_of(given: Iterable[V], kind: type[V], what: str, example: str) -> list[V]:
    """A list of objects of a class. Raises TypeError for anything else, with an example of one."""
    items = list(given) if hasattr(given, "__iter__") and not isinstance(given, (str, bytes)) else None
    if items is None or not all(isinstance(item, kind) for item in items):
        raise TypeError(f"{what}: a list of {kind.__name__} is needed, as in {example}, got {given!r}")
    return items
