"""Consoles of the broker that tests share, and users of theirs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastq.console.config import ClusterConfig, ConsoleConfig
from fastq.console.users import Users, hash_password
from fastq.testing import Broker

sys.path.insert(0, str(Path(__file__).parent))

from console_served import Browser, Served


@pytest.fixture(scope="session")
def served(shared_broker: Broker) -> Iterator[Callable[..., Served]]:
    """`served(...)` starts a console of the shared broker with some settings."""
    open_ones: list[Served] = []

    def start(**settings: Any) -> Served:
        cluster = ClusterConfig("test", {"bootstrap.servers": shared_broker.bootstrap_servers})
        console = Served(ConsoleConfig(**{"clusters": (cluster,), "port": 0, "picture_s": 0.0, **settings}))
        open_ones.append(console)
        return console

    yield start
    for console in open_ones:
        console.close()


@pytest.fixture(scope="session")
def console(served: Callable[..., Served]) -> Served:
    """The console that most tests share: no login."""
    return served()


@pytest.fixture
def browser(console: Served) -> Iterator[Browser]:
    with Browser(console.url) as client:
        yield client


@pytest.fixture(scope="session")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    """ann is admin, olga operator, vera viewer of topics that begin with pub-; the password is the name twice."""
    path = Path(tmp_path_factory.mktemp("console") / "users")
    lines = [
        f"ann:admin:{hash_password('annann')}",
        f"olga:operator:{hash_password('olgaolga')}",
        f"vera:viewer:{hash_password('veravera')}:pub-*",
    ]
    path.write_text("# who may\n" + "\n".join(lines) + "\n")
    return Users.load(path)
