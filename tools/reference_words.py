"""What the generators of the reference share: cells and tables of Markdown, and docstrings as Markdown.

Rules: what stands outside of backticks is prose, in which a `<` is a `<` and no tag. Indented code becomes a block with a language.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_OWN = ("fastq", "fastq_broker", "pyspark_fastq")


def prose(text: str) -> str:
    """Text with nothing in it that Markdown takes for more than text, but for code in backticks."""
    parts, at = [], 0
    for found in _CODE.finditer(text):
        parts += [_plain(text[at : found.start()]), found[0]]
        at = found.end()
    return "".join([*parts, _plain(text[at:])])


def _plain(text: str) -> str:
    text = re.sub(r"<(?=[A-Za-z/!])", r"&lt;", text)
    return re.sub(r"(?<!\w)_(?=\w)|(?<!\\)\*", lambda found: "\\" + found[0], text)


def cell(text: object) -> str:
    """Text in a cell of a table."""
    return prose(" ".join(str(text).split())).replace("|", "\\|")


def code(text: object) -> str:
    """Code in a cell of a table; nothing for nothing."""
    words = " ".join(str(text).split()).replace("|", "\\|")
    return f"`{words}`" if words else ""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = list(head)
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def doc(thing: Any) -> str:
    """The docstring as Markdown, without the line that Cython puts before it; "" where another package wrote it."""
    text = inspect.getdoc(thing) or ""
    first, _, rest = text.partition("\n")
    text = rest.strip() if re.match(r"^[\w.]+\(.*\)( -> .*)?$", first) else text
    return as_markdown(text)


def as_markdown(text: str) -> str:
    """Paragraphs and blocks of code, which a docstring indents."""
    found = []
    for block in re.split(r"\n{2,}(?=\S)|\n\n(?=    )|(?<=\n)\n+", text.strip("\n")):
        if not block.strip():
            continue
        if block.startswith("    "):
            lines = textwrap.dedent(block).rstrip()
            if found and found[-1].endswith("\n```") and found[-1].startswith("```"):
                before = found.pop()
                lines = before.partition("\n")[2].removesuffix("\n```") + "\n\n" + lines
            found.append(f"```{_language(lines)}\n{lines}\n```")
        else:
            found.append(prose(block.rstrip()))
    return "\n\n".join(found)


def _language(text: str) -> str:
    try:
        ast.parse(text)
    except SyntaxError:
        return "text"
    return "python"


def is_own(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _OWN
