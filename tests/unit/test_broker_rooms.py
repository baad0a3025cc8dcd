"""Which room of the broker may know which, and that no import goes round: read from the sources, as in `test_architecture`.

Rules: a room is a package directly under `fastq_broker`; "" are the modules beside the packages, which make the others a broker. No two
modules need each other at run time, imports inside functions included. What a room knows for type checkers alone, against the direction
of its other imports, is in FOR_TYPES: each is the broker's own parts, which `ports` puts together, seen from where they are used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from test_architecture import BROKER, is_for_type_checkers, python_imports

RUN_TIME: dict[str, set[str]] = {
    "log": set(),
    "raft": {"", "controller", "log"},
    "replication": {"", "controller", "log"},
    "controller": {"", "cluster", "handlers", "log", "raft"},
    "coordinator": {"controller", "log"},
    "groups": {"", "controller", "coordinator", "log"},
    "transactions": {"", "cluster", "controller", "coordinator", "log"},
    "cluster": {"", "controller", "log", "raft", "replication", "transactions"},
    "handlers": {"", "cluster", "controller", "coordinator", "groups", "log", "raft", "transactions"},
    "": {"cluster", "controller", "groups", "log", "raft", "replication", "transactions"},
}
FOR_TYPES: dict[str, set[str]] = {
    "": {"coordinator"},
    "coordinator": {""},
    "handlers": {"replication"},
}

ROUND = {
    ("fastq_broker.container", "fastq_broker.__main__"): "begins the command anew with the file that it has made",
    (
        "fastq_broker.log.flusher",
        "fastq_broker.log.native_flusher",
    ): "makes the flusher of the platform, which is one of its kind",
    (
        "fastq_broker.groups.consumer_group",
        "fastq_broker.groups.consumer_records",
    ): "a group is its own tombstones' maker",
}
"""Imports that would go round, but for being made when a function is called: module, whom it imports, and why."""

MODULES = {
    ".".join(path.relative_to(BROKER.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(BROKER.rglob("*.py"))
}


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (BROKER / parts[1]).is_dir() else ""


def known_of(module: str, body: list[ast.stmt]) -> set[str]:
    """The modules of the broker that these statements import."""
    path = MODULES[module]
    names = python_imports(body, module if path.name == "__init__.py" else module.rpartition(".")[0])
    return {found for name in names if (found := _module_of(name)) and found != module}


def _module_of(name: str) -> str:
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def _for_types(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If) and is_for_type_checkers(node):
            yield from node.body


TREES = {module: ast.parse(path.read_text(encoding="utf-8")).body for module, path in MODULES.items()}
KNOWN = {module: known_of(module, body) for module, body in TREES.items()}


def rooms(known: Mapping[str, set[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for module, others in known.items():
        here = found.setdefault(room_of(module), set())
        here |= {room_of(other) for other in others} - {room_of(module)}
    return found


def cycle(known: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        return [str(module) for module in error.args[1]]
    return []


def test_no_import_of_the_broker_goes_round_at_run_time() -> None:
    for module, other in ROUND:
        assert other in KNOWN[module], "an exception that is not needed"
    straight = {module: {other for other in others if (module, other) not in ROUND} for module, others in KNOWN.items()}
    assert cycle(straight) == []
    assert set(cycle({"one": {"two"}, "two": {"three"}, "three": {"one"}})) == {"one", "two", "three"}


@pytest.mark.parametrize("room", sorted(RUN_TIME))
def test_a_room_of_the_broker_knows_only_what_it_may(room: str) -> None:
    """Both ways: what it may know it does, or the table would promise less than holds."""
    assert rooms(KNOWN)[room] == RUN_TIME[room]


def test_what_is_known_for_types_alone_is_named() -> None:
    for_types = rooms({module: known_of(module, list(_for_types(body))) for module, body in TREES.items()})
    more = {room: others - RUN_TIME[room] for room, others in for_types.items()}
    assert {room: others for room, others in more.items() if others} == FOR_TYPES


def test_every_package_is_a_room() -> None:
    packages = {path.parent.name for path in Path(BROKER).glob("*/__init__.py")}
    assert packages | {""} == set(RUN_TIME)
