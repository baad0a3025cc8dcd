"""What Python 3.10, the oldest that the package is for, would not compile, and newer ones do; feature_version alone does not know it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "broker", "examples")
PLAIN = (ast.ListComp, ast.SetComp, ast.DictComp)


def too_new(text: str) -> Iterator[int]:
    """Lines with an asynchronous comprehension within another that is not (3.11 has them), or with syntax that 3.10 has not."""
    for outer in ast.walk(ast.parse(text, feature_version=(3, 10))):
        if isinstance(outer, PLAIN) and not is_asynchronous(outer):
            first = outer.generators[0].iter  # belongs to what is around
            outside = {id(node) for node in ast.walk(first)}
            yield from (
                inner.lineno
                for inner in ast.walk(outer)
                if isinstance(inner, PLAIN)
                and inner is not outer
                and id(inner) not in outside
                and is_asynchronous(inner)
            )


def is_asynchronous(comprehension: ast.AST) -> bool:
    """By itself: what is within a comprehension of its own, or a lambda, does not count."""
    if isinstance(comprehension, PLAIN) and any(each.is_async for each in comprehension.generators):
        return True
    waiting = list(ast.iter_child_nodes(comprehension))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Await):
            return True
        if not isinstance(node, (*PLAIN, ast.GeneratorExp, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return False


def test_nothing_is_too_new() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if "await" in (text := path.read_text(encoding="utf-8"))
        for line in too_new(text)
    }
    assert found == set()


def test_what_is_too_new_is_found() -> None:
    assert list(too_new("async def f(a):\n return [g([await d for d in p]) for p in a]\n")) == [2]
    assert list(too_new("async def f(a):\n return [d for d in [await p for p in a]]\n")) == []
    with pytest.raises(SyntaxError):
        list(too_new("try:\n pass\nexcept* OSError:\n pass\n"))
