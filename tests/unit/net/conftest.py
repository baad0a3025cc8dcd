"""The broker that most tests of the network layer speak to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from net_fakes import FakeBroker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """It has one topic, `logs`, of three partitions."""
    with FakeBroker() as broker:
        broker.topics = {"logs": 3}
        yield broker
