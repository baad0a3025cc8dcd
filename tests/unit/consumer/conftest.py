"""A small cluster of our own, on real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from consumer_fakes import SocketCluster


@pytest.fixture
def cluster() -> Iterator[SocketCluster]:
    made = SocketCluster((1, 2))
    yield made
    made.close()
