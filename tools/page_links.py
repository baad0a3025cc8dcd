"""Links and anchors of Markdown pages, for the site's hooks and for the test that finds broken ones.

Rules: what is code is left alone, fenced or in backticks. An anchor is what GitHub makes of a heading, and mkdocs.yml has the site
make the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

_FENCE = re.compile(r"^ *(```|~~~)")
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_LINK = re.compile(r"(\]\()([^()\s]+(?:\([^()\s]*\))?)((?: \"[^\"]*\")?\))")
_HEADING = re.compile(r"^#{1,6} +(.*?)(?: #+)? *$")
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def _prose(text: str) -> Iterator[tuple[bool, str]]:
    """The lines with their ends: whether each is prose, or of a block of code."""
    fence = ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if fence:
            yield False, line
            if found and found[1] == fence:
                fence = ""
        elif found:
            fence = found[1]
            yield False, line
        else:
            yield True, line


def with_targets(text: str, new: Callable[[str], str]) -> str:
    """The page with each target of a link replaced by what `new` makes of it."""
    parts = []
    for prose, line in _prose(text):
        if not prose:
            parts.append(line)
            continue
        spans = [found.span() for found in _CODE.finditer(line)]

        def of(found: re.Match[str], spans: list[tuple[int, int]] = spans) -> str:
            in_code = any(start < found.start(1) < end for start, end in spans)
            return found[0] if in_code else f"{found[1]}{new(found[2])}{found[3]}"

        parts.append(_LINK.sub(of, line))
    return "".join(parts)


def targets(text: str) -> list[str]:
    """What the page links to, pictures too, in its order."""
    found: list[str] = []

    def note(target: str) -> str:
        found.append(target)
        return target

    with_targets(text, note)
    return found


def anchors(text: str) -> list[str]:
    """The anchors of its headings, in its order."""
    seen: Counter[str] = Counter()
    found = []
    for prose, line in _prose(text):
        heading = _HEADING.match(line.rstrip("\n")) if prose else None
        if heading is None:
            continue
        words = _MARKUP.sub(r"\1", heading[1]).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        found.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found
