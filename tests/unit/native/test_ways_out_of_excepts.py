"""No way leads out of an `except` of Cython: on one, it lets go of the exception's traceback as if there were one.

Where there is no memory for a traceback there is none, and the process ends by a segmentation fault. Behind the clause, and with `raise`,
Cython looks first.
"""

from __future__ import annotations

import re
from pathlib import Path

import fastq._native

NATIVE = Path(fastq._native.__file__).parent


def ways_out(text: str) -> list[int]:
    """The numbers of lines that leave an `except` by `return`, `break` or `continue`."""
    found, clauses = [], []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.strip()
        if not code or code.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        while clauses and indent <= clauses[-1]:
            clauses.pop()
        if clauses and re.match(r"(return|break|continue)\b", code):
            found.append(number)
        if re.match(r"except\b.*:", code):
            clauses.append(indent)
    return found


def test_no_way_leads_out_of_an_except() -> None:
    faults = {path.name: lines for path in sorted(NATIVE.glob("*.pyx")) if (lines := ways_out(path.read_text("utf-8")))}
    assert not faults, f"set a variable and leave behind the clause: {faults}"


def test_ways_out_are_found() -> None:
    first = "try:\n    a()\nexcept E:\n    if b:\n\n        return 1\n    # no\nreturn 2\n"
    text = first + "while c:\n    try:\n        break\n    except:\n        break\n"
    assert ways_out(text) == [6, 13]
