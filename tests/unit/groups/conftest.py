"""The bench of classic groups, as most of its tests want it."""

from __future__ import annotations

import pytest
from classic_bench import GroupBench


@pytest.fixture
def bench() -> GroupBench:
    return GroupBench()
