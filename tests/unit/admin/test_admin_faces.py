"""The two faces of the admin client: one is made from the other, and both have the same methods."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

from generate_async_admin import asynchronous  # noqa: E402

from fastq import Admin, AsyncAdmin  # noqa: E402


def public(cls: type) -> dict[str, object]:
    return {name: value for name, value in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}


def test_the_asyncio_face_is_what_the_blocking_one_makes() -> None:
    done = subprocess.run(
        [sys.executable, "tools/generate_async_admin.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_both_have_the_same_methods_with_the_same_signatures() -> None:
    blocking, asyncio = public(Admin), public(AsyncAdmin)
    assert blocking.keys() | {"aclose"} == asyncio.keys()
    assert len(blocking) > 35
    for name, method in blocking.items():
        twin = asyncio[name]
        assert inspect.signature(method) == inspect.signature(twin), name  # type: ignore[arg-type]
        assert inspect.iscoroutinefunction(twin) and not inspect.iscoroutinefunction(method), name
        assert inspect.getdoc(method) == inspect.getdoc(twin), name


SOURCE = """
class Admin:
    def __enter__(self):
        return self

    def one(self, x):
        operation = plan(x)
        return self._client.run(operation)

    def two(self):
        found = self.one(1)
        return found[0]

    def plain(self):
        return 1
"""


def test_what_waits_is_awaited_and_nothing_else() -> None:
    made = asynchronous(SOURCE, "x.py")
    methods = {
        node.name: node
        for node in ast.walk(ast.parse(made))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: isinstance(node, ast.AsyncFunctionDef) for name, node in methods.items()} == {
        "__aenter__": True,
        "one": True,
        "two": True,
        "plain": False,
    }
    assert "return await self._client.run(operation)" in made
    assert "found = await self.one(1)" in made
    assert "class AsyncAdmin:" in made


def test_what_cannot_be_made_right_is_refused() -> None:
    with pytest.raises(SystemExit, match="line 11: what waits has to be a whole statement"):
        asynchronous(SOURCE.replace("found = self.one(1)", "found = [self.one(1)]"), "x.py")
