"""Which room may know which: the import directions of the house, read from the sources.

Rules: a room is a module or package directly under `fastq`, or the whole of `fastq_broker`. Imports for type checkers
alone do not count; imports inside functions do. An exception has its reason beside it, and must still be in use.
"""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "src" / "fastq"
BROKER = ROOT / "broker" / "fastq_broker"

FLOOR = {"errors", "values", "timeouts", "arguments", "words", "_native", "compression"}  # bytes and records
CORE = FLOOR | {"protocol", "net", "settings", "config", "client_options", "metadata"}  # talking to brokers
USERS = {"serializers", "interceptors", "callbacks", "recurring"}  # what users plug in

MAY_IMPORT = {
    "error_codes": set[str](),
    "errors": {"error_codes"},
    "properties": {"errors"},
    "lazy": set[str](),
    "values": set[str](),
    "timeouts": set[str](),
    "arguments": set[str](),
    "words": set[str](),
    "client_options": set[str](),
    "_native": FLOOR,
    "compression": FLOOR,
    "callbacks": {"errors"},
    "serializers": {"errors", "callbacks"},
    "interceptors": {"errors", "values", "callbacks", "recurring"},
    "recurring": set[str](),
    "schema_registry": {"errors", "lazy", "arguments", "callbacks"},
    "protocol": FLOOR,
    "metadata": FLOOR | {"protocol"},
    "other_clients": set[str](),
    "settings": {"errors", "values", "other_clients"},
    "config": FLOOR | {"protocol", "net", "settings", ""},
    "net": CORE | {""},  # the version, which it tells brokers
    "metrics": {"metadata"},
    "producer": CORE | USERS | {"metrics", "lazy"},
    "consumer": CORE | USERS | {"metrics", "lazy", "other_clients"},
    "observability": USERS | {"metrics", "producer", "consumer"},
    "admin": CORE | {"lazy"},
    "cli": CORE
    | USERS
    | {
        "",
        "other_clients",
        "properties",
        "producer",
        "consumer",
        "admin",
        "schema_registry",
        "testing",
        "mirror",
        "console",
    },
    "mirror": CORE | {"", "lazy", "properties", "producer", "consumer", "admin", "observability"},
    "console": CORE | USERS | {"", "lazy", "properties", "producer", "consumer", "admin", "schema_registry", "mirror"},
    "spark": CORE | USERS | {"", "lazy", "producer", "consumer", "admin"},
    "__main__": {"cli"},  # `python -m fastq`
    "testing": CORE | {"", "admin"},
    "": CORE | USERS | {"lazy", "producer", "consumer", "admin"},  # fastq/__init__.py: the public names
}
BROKER_MAY_IMPORT = {"errors", "values", "properties", "_native", "compression", "protocol", "net"}
BROKER_TO_BROKER = {
    BROKER / "config_mirror.py",
    BROKER / "mirror_pulls.py",
    BROKER / "raft" / "driver.py",
    BROKER / "cluster" / "controller_channel.py",
    BROKER / "cluster" / "node.py",
    BROKER / "cluster" / "peers.py",
    BROKER / "replication" / "fetcher_driver.py",
}  # what uses net's connections needs their settings, and what net calls a node

LINES_MAX = 600
LARGER = {
    "src/fastq/_native/arrow_source.pyx": 700,  # readers of each kind of column, inlined into one loop over rows
    "src/fastq/_native/wire.pyx": 680,  # a reader and a writer of the same primitives
    "src/fastq/consumer/group/classic.py": 620,  # a state machine: its states are one table
    "src/fastq/errors.py": 625,  # mostly a list, a line an error of Kafka
}  # none grows above this, and none comes to it

IMPORTED_AS = {
    "python-snappy": "snappy",
    "protobuf": "google",
    "opentelemetry-api": "opentelemetry",
}  # packages whose modules have another name

EXCEPTIONS = {
    ("_native/send_many.pyx", "producer"): "the classes of results, loaded when the first one is made",
    ("_native/producer_core.pyx", "producer"): "the class of results, loaded when the first one is made",
}


def is_for_type_checkers(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.unparse(node.test)


def python_imports(body: list[ast.stmt], package: str) -> Iterator[str]:
    """Full names of what a module imports, in functions and branches too."""
    for node in body:
        if isinstance(node, ast.If) and is_for_type_checkers(node):
            yield from python_imports(node.orelse, package)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) - node.level + 1], *filter(None, [base])]
                )
            yield from (f"{base}.{alias.name}" for alias in node.names)
        for field in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, field, None)
            if isinstance(inner, list):
                for item in inner:
                    yield from python_imports(item.body if isinstance(item, ast.ExceptHandler) else [item], package)


CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\s+(.*)|c?import\s+([\w.]+))")


def cython_imports(text: str) -> Iterator[str]:
    for line in text.splitlines():
        match = CYTHON_IMPORT.match(line)
        if match is None:
            continue
        if match[3]:
            yield match[3]
        else:
            names = re.findall(r"\w+", match[2]) or [""]
            yield f"{match[1]}.{names[0]}" if match[1] == "fastq" else match[1]


@functools.cache
def imports_of(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".pyx", ".pxd"):
        return set(cython_imports(text))
    base = CLIENT.parent if path.is_relative_to(CLIENT) else BROKER.parent
    package = ".".join(path.parent.relative_to(base).parts)
    return set(python_imports(ast.parse(text).body, package))


def sources(folder: Path) -> list[Path]:
    return [path for pattern in ("*.py", "*.pyx", "*.pxd") for path in sorted(folder.rglob(pattern))]


def room_of(path: Path) -> str:
    first = path.relative_to(CLIENT).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imported_room(name: str) -> str | None:
    """The room of `fastq` that a full name is in; None for names of other packages."""
    parts = name.split(".")
    if parts[0] != "fastq":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ""


def short(path: Path) -> str:
    return path.relative_to(CLIENT).as_posix()


@pytest.mark.parametrize("path", sources(CLIENT), ids=short)
def test_a_room_of_the_client_knows_only_what_it_may(path: Path) -> None:
    room = room_of(path)
    assert room in MAY_IMPORT, f"{path} is in a room that this test does not know"
    allowed = MAY_IMPORT[room] | {room}
    known = {imported_room(name) for name in imports_of(path)} - {None}
    excused = {target for source, target in EXCEPTIONS if source == short(path)}
    assert known - allowed - excused == set()


@pytest.mark.parametrize("path", sources(CLIENT), ids=short)
def test_the_client_does_not_know_the_broker(path: Path) -> None:
    if room_of(path) != "testing":
        assert not any(name.split(".")[0] == "fastq_broker" for name in imports_of(path))


@pytest.mark.parametrize("path", sources(BROKER), ids=lambda path: path.relative_to(BROKER).as_posix())
def test_the_broker_knows_only_the_lower_rooms(path: Path) -> None:
    known = {imported_room(name) for name in imports_of(path)} - {None}
    allowed = BROKER_MAY_IMPORT
    if path in BROKER_TO_BROKER:
        allowed = allowed | {"config", "metadata"}
    assert known - allowed == set()


@pytest.mark.parametrize("path", sources(BROKER / "log"), ids=lambda path: path.name)
def test_the_log_does_not_know_who_uses_it(path: Path) -> None:
    above = {name for name in imports_of(path) if name.startswith("fastq_broker.")}
    assert {name for name in above if not name.startswith("fastq_broker.log")} == set()


def test_every_package_that_is_imported_is_declared() -> None:
    """What the sources import comes with Python, or is named as a dependency: not with another package by chance."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    declared = {match[0].lower() for match in (re.match(r"[\w-]+", line) for line in requirements) if match}
    declared |= {module for package, module in IMPORTED_AS.items() if package in declared}
    for path in [*CLIENT.rglob("*.py"), *BROKER.rglob("*.py")]:
        packages = {name.split(".")[0] for name in imports_of(path)} - {"fastq", "fastq_broker", "__future__"}
        bring = {"pytest"} if path.name == "pytest_plugin.py" else set()  # who loads it is there
        assert packages - set(sys.stdlib_module_names) - declared - bring == set(), path


def test_exceptions_are_still_needed() -> None:
    for source, target in EXCEPTIONS:
        assert target in {imported_room(name) for name in imports_of(CLIENT / source)}, source


def test_the_test_sees_imports_of_every_kind() -> None:
    code = """
import fastq.net
from fastq import Producer
from fastq.errors import X
from . import sibling
from ..admin import y
if TYPE_CHECKING:
    import fastq.cli
else:
    import one
def f():
    try:
        import two
    except ImportError:
        from three import z
"""
    found = set(python_imports(ast.parse(code).body, "fastq.consumer"))
    assert found == {
        "fastq.net",
        "fastq.Producer",
        "fastq.errors.X",
        "fastq.consumer.sibling",
        "fastq.admin.y",
        "one",
        "two",
        "three.z",
    }
    cython = "cimport cython\nfrom fastq._native.bits cimport (\n    a,\n)\n    from fastq.producer.delivery import B\n"
    assert set(cython_imports(cython)) == {"cython", "fastq._native.bits", "fastq.producer.delivery"}


def test_every_directory_of_sources_is_a_package_that_is_installed() -> None:
    """A wheel holds what `setuptools.find_packages` finds: directories with an `__init__.py`."""
    where = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["where"]
    for root in (CLIENT, BROKER):
        assert root.parent.relative_to(ROOT).as_posix() in where
        bare = {source.parent for source in root.rglob("*.py*") if "__pycache__" not in source.parts}
        assert [str(folder) for folder in bare if not (folder / "__init__.py").is_file()] == []


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest takes all of them for modules of one level: two of a name cannot be run together."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_file_is_about_one_thing() -> None:
    """Of more lines a file has a seam somewhere, and is two. What is generated has its makers' size."""
    faults = []
    for path in (*sources(CLIENT), *sources(BROKER), *sources(ROOT / "tests")):
        if path.is_relative_to(CLIENT / "protocol" / "messages"):
            continue
        name, count = path.relative_to(ROOT).as_posix(), len(path.read_text(encoding="utf-8").splitlines())
        if count > LARGER.get(name, LINES_MAX):
            faults.append(f"{name} has {count} lines: split it where its two halves know least of each other")
        elif name in LARGER and count <= LINES_MAX:
            faults.append(f"{name} is no larger than others any more: take it from LARGER")
    assert not faults, "\n".join(faults)
