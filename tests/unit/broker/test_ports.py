"""What serves requests gets ports, not the broker."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastq_broker
import pytest
from fastq_broker.ports import Ports
from fastq_broker.router import bound_context

ROOT = Path(fastq_broker.__file__).parent


@pytest.mark.parametrize("room", ["handlers", "groups", "transactions", "coordinator"])
def test_nobody_reaches_through_the_broker(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        text = path.read_text()
        assert "fastq_broker.broker" not in text, path
        assert not re.search(r"\b(context|self|ports)\._?broker\b", text), path
        assert not re.search(r"\bports\.controller\.image\b|\bcontext\.controller\.image\b", text), path


def test_handlers_ask_their_ports_and_not_what_those_are_made_of() -> None:
    for path in (ROOT / "handlers").rglob("*.py"):
        assert not re.search(r"\b(groups|transactions)\.runtime\b", path.read_text()), path


def test_a_context_has_the_ports_of_its_node_and_pays_nothing_for_them() -> None:
    ports: Any = SimpleNamespace(**{name: object() for name in Ports.__annotations__})
    ports.clock = lambda: 7
    ports.controller = SimpleNamespace(image="before")
    connection: Any = SimpleNamespace(peer=("", 0), listener="X")
    made = bound_context(ports)
    context = made(connection, 3, b"me")
    assert all(getattr(context, name) is getattr(ports, name) for name in Ports.__annotations__)
    assert context.clock() == 7
    assert not hasattr(context, "__dict__")
    assert context.image == "before"
    ports.controller.image = "after"
    assert context.image == "after"
    assert (context.api_version, context.client_id, context.listener) == (3, "me", "X")
