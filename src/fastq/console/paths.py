"""Paths into JSON, as `$.order.lines[0].price`: parsed once into names and numbers, and followed; nothing is evaluated.

Rules: a subset of JSONPath: names after dots or in quoted brackets, numbers in brackets, and `*` for all of a list or an object. A path
that leads nowhere finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

LENGTH_MAX, DEPTH_MAX = 500, 32
_STEP = re.compile(r"""\.([^.\[\]'"*\s]+)|\[(\d{1,9})\]|\['([^']*)'\]|\["([^"]*)"\]|\.?(\*)|\[(\*)\]""")

Path = tuple["str | int | None", ...]
"""Names, numbers, and None for all."""


def parse(text: str) -> Path:
    """Raises ValueError with the place that is not understood. `$` alone is the whole."""
    text = text.strip()
    if len(text) > LENGTH_MAX:
        raise ValueError(f"a path has up to {LENGTH_MAX} characters, not {len(text)}")
    rest = text.removeprefix("$")
    if rest == text and rest:
        rest = f".{rest}" if not rest.startswith(("[", ".")) else rest
    steps: list[str | int | None] = []
    place = 0
    while place < len(rest):
        match = _STEP.match(rest, place)
        if match is None:
            raise ValueError(
                f"path {text!r} is not understood from {rest[place:]!r} on; it is as $.order.lines[0].price"
            )
        place = match.end()
        name = next((found for found in match.group(1, 3, 4) if found is not None), None)
        steps.append(int(match[2]) if match[2] is not None else name)
    if len(steps) > DEPTH_MAX:
        raise ValueError(f"a path has up to {DEPTH_MAX} steps, not {len(steps)}")
    return tuple(steps)


def find(path: Path, document: Any) -> Iterator[Any]:
    """What a path leads to."""
    if not path:
        yield document
        return
    step, rest = path[0], path[1:]
    if step is None:
        inner = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
        for item in inner:
            yield from find(rest, item)
    elif isinstance(step, str):
        if isinstance(document, dict) and step in document:
            yield from find(rest, document[step])
    elif isinstance(document, list) and step < len(document):
        yield from find(rest, document[step])
