"""A node's stop where there is nobody to hand over to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.cluster import node as module
from fastq_broker.cluster.node import ClusterNode


@pytest.mark.parametrize("hears", [True, False])
def test_a_leader_that_is_gone_is_not_waited_for(
    hears: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays the last one that was known while no other is elected: a stop had waited for it for five minutes."""
    monkeypatch.setattr(module, "QUORUM_LOST_S", 0.03)
    raft = SimpleNamespace(leader_id=2, hears_leader=hears)
    life = SimpleNamespace(shut_down=lambda now: None)

    async def scenario() -> None:
        node: Any = object.__new__(ClusterNode)
        node.life = SimpleNamespace(machine=life, now=lambda: 0.0, turn=lambda: None)
        node._closed, node._stopped, node._loop = False, asyncio.Event(), asyncio.get_running_loop()
        node._ports = SimpleNamespace(
            controller=SimpleNamespace(quorum=SimpleNamespace(driver=SimpleNamespace(machine=raft)))
        )
        stop = asyncio.ensure_future(node.shut_down())
        done, _ = await asyncio.wait([stop], timeout=0.15 if hears else 30)
        assert bool(done) is not hears
        node._stopped.set()
        await stop

    asyncio.run(scenario())
    assert ("without handing over what it leads" in caplog.text) is not hears
