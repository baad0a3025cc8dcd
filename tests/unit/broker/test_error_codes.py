"""Error codes have one table, errors.ErrorCode: no module of the broker declares one again."""

from __future__ import annotations

import ast
from pathlib import Path

import fastq_broker
import pytest

from fastq.errors import ErrorCode

ROOT = Path(fastq_broker.__file__).parent
CODES = {code.name: int(code) for code in ErrorCode}


def declared(source: str) -> list[tuple[str, int]]:
    """Names of error codes that get their number by an assignment, anywhere in a module."""
    found = []
    for node in ast.walk(ast.parse(source)):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        if not targets or value is None:
            continue
        try:
            number = ast.literal_eval(value)
        except ValueError:
            continue
        found += [
            (t.id, number) for t in targets if isinstance(t, ast.Name) and t.id in CODES and CODES[t.id] == number
        ]
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_is_declared_twice(path: Path) -> None:
    assert declared(path.read_text()) == []


def test_a_declaration_would_be_found() -> None:
    assert declared("KAFKA_STORAGE_ERROR: int = 56\nclass A:\n    UNKNOWN_SERVER_ERROR = -1\nNONE = -1\n") == [
        ("KAFKA_STORAGE_ERROR", 56),
        ("UNKNOWN_SERVER_ERROR", -1),
    ]
