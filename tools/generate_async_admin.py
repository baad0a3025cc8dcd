"""Writes the asyncio admin client from the blocking one: the same methods with the same signatures and words, awaited.

    python tools/generate_async_admin.py [--check]

Rules: the sources are the keys of FACES, and nothing is decided here. A method waits when it calls the client's `run` or
`close`, or a method that waits; such a call has to be the whole of a statement, of an assignment's right side or of a return.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

ADMIN = Path(__file__).resolve().parents[1] / "src" / "fastq" / "admin"
PARTS = ("group_admin", "cluster_admin")
"""What `admin.py` is put together from."""
FACES = {f"{name}.py": f"async_{name}.py" for name in ("admin", *PARTS)}
MADE_BY = "# Made by tools/generate_async_admin.py: change {source}, then `make generate`.\n"
# What the blocking face has no use for.
ACLOSE = '''    async def aclose(self) -> None:
        """`close`, by the name that `contextlib.aclosing` calls."""
        await self.close()

'''
WORDS = {
    "The blocking admin client.": "The asyncio admin client: the methods of `Admin`, awaited.",
    "the blocking admin client": "the asyncio admin client",
    " Thread-safe.": " For one event loop.",
    " The asyncio face\nis made from this file, `async_group_admin.py` and `async_cluster_admin.py` (`make generate`): what waits is the "
    "whole of a statement, an assignment\nor a return.": "",
    "    def _timeout_ms(self, timeout: float | None) -> int:\n        ": ACLOSE
    + "    def _timeout_ms(self, timeout: float | None) -> int:\n        ",
}
NAMES = {
    "BlockingClient": "AsyncClient",
    "Admin": "AsyncAdmin",
    "GroupAdmin": "AsyncGroupAdmin",
    "ClusterAdmin": "AsyncClusterAdmin",
    **{name: f"async_{name}" for name in PARTS},
}
ENTERING = {"__enter__": "__aenter__", "__exit__": "__aexit__"}
CLIENT_CALLS = {"run", "close"}


def method_called(call: ast.AST) -> tuple[str, bool] | None:
    """The method of a call `self.x(...)` or `self._client.x(...)`, and whether it is the client's."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    owner = call.func.value
    if isinstance(owner, ast.Name) and owner.id == "self":
        return call.func.attr, False
    if isinstance(owner, ast.Attribute) and owner.attr == "_client":
        return call.func.attr, True
    return None


def waiting_methods(methods: list[ast.FunctionDef]) -> set[str]:
    """Those that wait, directly or through others."""
    found: set[str] = set()
    while True:
        before = len(found)
        for method in methods:
            calls = [called for node in ast.walk(method) if (called := method_called(node)) is not None]
            if method.name == "__enter__" or any(
                name in (CLIENT_CALLS if clients else found) for name, clients in calls
            ):
                found.add(method.name)
        if len(found) == before:
            return found


def asynchronous(source: str, origin: str) -> str:
    """The asyncio face of a source file."""
    tree = ast.parse(source)
    methods = [
        node
        for klass in tree.body
        if isinstance(klass, ast.ClassDef)
        for node in klass.body
        if isinstance(node, ast.FunctionDef)
    ]
    waiting = waiting_methods(methods)
    inserted: list[tuple[int, int, str]] = []
    for method in methods:
        if method.name not in waiting:
            continue
        inserted.append((method.lineno, method.col_offset, "async "))
        places = {
            id(node.value)
            for node in ast.walk(method)
            if isinstance(node, ast.Expr | ast.Assign | ast.Return) and node.value
        }
        for node in ast.walk(method):
            called = method_called(node)
            if called is None or called[0] not in (CLIENT_CALLS if called[1] else waiting):
                continue
            if id(node) not in places:
                raise SystemExit(
                    f"{origin}, line {node.lineno}: what waits has to be a whole statement, assignment or return"
                )
            inserted.append((node.lineno, node.col_offset, "await "))
    lines = source.splitlines(keepends=True)
    for line, column, text in sorted(inserted, reverse=True):
        before = lines[line - 1].encode()
        lines[line - 1] = (before[:column] + text.encode() + before[column:]).decode()
    renamed = {**NAMES, **ENTERING}
    text = re.sub(r"(?<![\w.])(\w+)(?=\W)", lambda match: renamed.get(match[1], match[1]), "".join(lines))
    for name in PARTS:
        text = text.replace(f"fastq.admin.{name}", f"fastq.admin.async_{name}")
    text = text.replace("`admin.py`", "`async_admin.py`")
    for words, others in WORDS.items():
        text = text.replace(words, others)
    return formatted(MADE_BY.format(source=origin) + text)


def formatted(text: str) -> str:
    """In the form of the house."""
    for command in (["check", "--quiet", "--fix", "--select", "I"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(ADMIN / "async_admin.py"), "-"],
            input=text, capture_output=True, text=True, check=True, cwd=ADMIN,
        )  # fmt: skip
        text = done.stdout
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes src/fastq/admin/async_*.py from the blocking admin client.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is not what it should be")
    check = parser.parse_args().check
    code = 0
    for source, target in FACES.items():
        made = asynchronous((ADMIN / source).read_text(encoding="utf-8"), source)
        path = ADMIN / target
        if path.read_text(encoding="utf-8") == made:
            continue
        if check:
            print(f"{path} is not what {source} makes: run `make generate`", file=sys.stderr)
            code = 1
        else:
            path.write_text(made, encoding="utf-8")
            print(f"wrote {path}")
    return code


if __name__ == "__main__":
    sys.exit(main())
