"""What an import loads: the milliseconds that every program pays before it does anything, held as a list of modules."""

import ast
import subprocess
import sys
from importlib import import_module
from inspect import getclosurevars
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"

# Each of these takes milliseconds, and is needed by some programs only: its place is in the function that needs it.
# `dataclasses` imports inspect, which imports ast and dis: fastq.values makes the small classes instead.
LATER = {
    "ast",
    "asyncio",
    "base64",
    "concurrent",
    "copy",
    "cramjam",
    "dataclasses",
    "datetime",
    "difflib",
    "dis",
    "hashlib",
    "hmac",
    "inspect",
    "ipaddress",
    "json",
    "lz4",
    "pyarrow",
    "secrets",
    "shutil",
    "snappy",
    "ssl",
    "stringprep",
    "subprocess",
    "tempfile",
    "typing_extensions",
    "urllib",
    "uuid",
    "xxhash",
    "zstandard",
}


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh Python, without site packages' start-up files, has after `statement` and not before."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    script = f"""
import sys
sys.path[:0] = {[str(SOURCES), *packages]!r}
before = set(sys.modules)
{statement}
print(*sorted(set(sys.modules) - before))
"""
    command = [sys.executable, "-S", "-c", script]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_import_fastq_loads_next_to_nothing() -> None:
    found = loaded_by("import fastq")
    assert {name.partition(".")[0] for name in found} <= {"__future__", "_warnings", "fastq", "importlib", "warnings"}
    assert {name for name in found if name.startswith("fastq")} == {"fastq", "fastq.lazy"}


@pytest.mark.parametrize("names", ["Producer", "Consumer", "Producer, Consumer"])
def test_clients_load_what_they_always_need(names: str) -> None:
    found = {name.partition(".")[0] for name in loaded_by(f"from fastq import {names}")}
    assert found & LATER == set()


def test_a_blocking_client_loads_nothing_of_the_other_kind() -> None:
    found = loaded_by("from fastq import Producer")
    assert {name for name in found if name.startswith(("fastq.consumer", "fastq.admin", "fastq.net.aio"))} == set()
    assert not any("async" in name for name in found if name.startswith("fastq"))


def lazy_packages() -> list[str]:
    files = [path for path in SOURCES.rglob("__init__.py") if "lazy_names(" in path.read_text(encoding="utf-8")]
    return sorted(".".join(path.parent.relative_to(SOURCES).parts) for path in files)


@pytest.mark.parametrize("package", lazy_packages())
def test_a_name_is_public_to_programs_and_to_type_checkers_alike(package: str) -> None:
    """What a package says for type checkers is what it has: a name that one list lacks would be an error for half of its users."""
    module = import_module(package)
    assert module.__file__ is not None
    body = ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
    inner = [node for block in body if isinstance(block, ast.If) for node in block.body]
    named = [node for node in (*body, *inner) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in named if (node.module or "").startswith("fastq.") and node.module != "fastq.lazy"]
    public = [name for name in module.__all__ if not name.startswith("__")]
    checkers = {alias.name: node.module for node in ours for alias in node.names}
    assert sorted(alias.name for node in ours for alias in node.names) == sorted(public)
    lazily = getclosurevars(module.__getattr__).nonlocals["where"]
    assert lazily == {name: checkers[name] for name in lazily}, "from the same module, or they are two different things"
    assert [name for name in public if getattr(module, name, None) is None] == []
    assert set(public) <= set(dir(module))
    texts = [node.value for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.Constant)]
    assert [name for name in public if texts.count(name) > 1] == [], "once, beside what type checkers read"
