"""Fields that nobody sees in the console: of keys, values and headers of topics, by the console's own configuration.

Rules: what is masked is masked before anything else looks at a record: what is shown, what is downloaded, and what a search compares,
else a search would tell it piece by piece. A path that meets something else than it says (a text, a number or a list where it goes on by
a name) hides that as a whole, as does one into what cannot be taken apart (no JSON): whoever writes records has other shapes than whoever
wrote the mask. A masked record cannot be edited and sent again: its masks would be written. It is copied only to where the same is masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, cast, get_args

from fastq.console import paths

MASKED = "•••"

Part = Literal["key", "value", "header"]


@dataclass(frozen=True)
class Mask:
    """A path of the keys or values of some topics, and as it was written; for headers it is the header's name."""

    topics: str
    part: Part
    path: paths.Path
    text: str

    @classmethod
    def of(cls, topics: str, part: str, path: str) -> Mask:
        """Of a table of the configuration; raises ValueError."""
        if part not in get_args(Part):
            raise ValueError(f"in = {part!r}: it is one of {', '.join(get_args(Part))}")
        steps = paths.parse(path)
        if part == "header" and not (len(steps) == 1 and isinstance(steps[0], str | None)):
            raise ValueError(f"path = {path!r}: of a header it is its name, or * for all")
        return cls(topics, cast(Part, part), steps, path)

    def __str__(self) -> str:
        return f"{self.part} {self.text}"

    def covers(self, other: Mask) -> bool:
        """Whether it hides, of any record, all that the other one hides."""
        if self.part != other.part:
            return False
        # `*` does not stand for a name here: of a list the name hides the whole, and `*` what is in its items.
        return self.path == other.path[: len(self.path)] or (self.part == "header" and self.path == (None,))

    def hide(self, document: Any) -> Any:
        """A copy of a key's or a value's document without what is masked."""
        return _hidden(self.path, document)


def masks_of(masks: Sequence[Mask], topic: str) -> tuple[Mask, ...]:
    """Those that hold for a topic."""
    return tuple(mask for mask in masks if fnmatchcase(topic, mask.topics))


def not_masked_in(masks: Sequence[Mask], source: str, target: str) -> Mask | None:
    """The first mask of a topic whose fields can be seen once its records are in another one."""
    there = masks_of(masks, target)
    return next((mask for mask in masks_of(masks, source) if not any(other.covers(mask) for other in there)), None)


def _hidden(path: paths.Path, document: Any) -> Any:
    if not path:
        return MASKED
    step, rest = path[0], path[1:]
    if isinstance(document, dict) and not isinstance(step, int):
        found = {
            name: _hidden(rest, inner) if step is None or step == name else inner for name, inner in document.items()
        }
        if _is_wrapped(document):
            found["value"] = _hidden(path, found["value"])
        return found
    if isinstance(document, list) and not isinstance(step, str):
        return [
            _hidden(rest, inner) if step is None or step == index else inner for index, inner in enumerate(document)
        ]
    return document if document is None else MASKED


def _is_wrapped(document: dict[Any, Any]) -> bool:
    """Whether it is an Any that holds what has a form of its own in JSON (a wrapper, a Struct, a time, another Any), which lies under
    `value` then: the fields of other messages lie beside their type."""
    kind = document.get("@type")
    return isinstance(kind, str) and "value" in document and kind.rpartition("/")[2].startswith("google.protobuf.")
