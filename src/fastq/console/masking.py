"""Fields that nobody sees in the console: of keys, values and headers of topics, by the console's own configuration.

Rules: what is masked is masked before anything else looks at a record: what is shown, what is downloaded, and what a search compares,
else a search would tell it piece by piece. What cannot be taken apart (no JSON, where a path is masked) is hidden as a whole. A masked
record cannot be edited and sent again: its masks would be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, cast, get_args

from fastq.console import paths

MASKED = "•••"

Part = Literal["key", "value", "header"]


@dataclass(frozen=True)
class Mask:
    """A path of the keys or values of some topics; for headers it is the header's name."""

    topics: str
    part: Part
    path: paths.Path

    @classmethod
    def of(cls, topics: str, part: str, path: str) -> Mask:
        """Of a table of the configuration; raises ValueError."""
        if part not in get_args(Part):
            raise ValueError(f"in = {part!r}: it is one of {', '.join(get_args(Part))}")
        steps = paths.parse(path)
        if part == "header" and not (len(steps) == 1 and isinstance(steps[0], str | None)):
            raise ValueError(f"path = {path!r}: of a header it is its name, or * for all")
        return cls(topics, cast(Part, part), steps)


def masks_of(masks: Sequence[Mask], topic: str) -> tuple[Mask, ...]:
    """Those that hold for a topic."""
    return tuple(mask for mask in masks if fnmatchcase(topic, mask.topics))
