"""Consoles of the broker that tests share, and users of theirs."""

from __future__ import annotations

import contextlib
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


@contextlib.contextmanager
def _serving(broker: Broker) -> Iterator[Callable[..., Served]]:
    """What starts consoles, which are closed behind it: a client of a cluster that is gone warns of that as long as it lives."""
    open_ones: list[Served] = []

    def start(**settings: Any) -> Served:
        cluster = ClusterConfig("test", {"bootstrap.servers": broker.bootstrap_servers})
        console = Served(ConsoleConfig(**{"clusters": (cluster,), "port": 0, "picture_s": 0.0, **settings}))
        open_ones.append(console)
        return console

    try:
        yield start
    finally:
        for console in open_ones:
            console.close()


@pytest.fixture
def served(shared_broker: Broker) -> Iterator[Callable[..., Served]]:
    """`served(...)` starts a console of the shared broker with some settings, for one test."""
    with _serving(shared_broker) as start:
        yield start


@pytest.fixture(scope="module")
def served_to_all(shared_broker: Broker) -> Iterator[Callable[..., Served]]:
    """The same, for the tests of a module."""
    with _serving(shared_broker) as start:
        yield start


@pytest.fixture(scope="module")
def console(shared_broker: Broker) -> Iterator[Served]:
    """The console that most tests of a module share: no login. It is a thread, which other modules' tests may have no memory for."""
    with _serving(shared_broker) as start:
        yield start()


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
