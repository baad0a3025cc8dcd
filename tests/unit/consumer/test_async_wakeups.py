"""The asyncio consumer hears of what it waits for: it looks by the clock only for what ends by the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastq import AsyncConsumer, Producer
from fastq.testing import Broker

NEVER_S = 3600.0


@pytest.mark.parametrize("how", ["assigned", "subscribed", "classic", "consumer"])
def test_what_it_waits_for_is_told(
    shared_broker: Any, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Connections and metadata were looked for each 5 ms; they are told, and a consumer that never looks reads all the same."""
    for name in ("async_consumer.LOOK_AROUND_S", "async_consumer.OVERDUE_S", "base.OVERDUE_S"):
        monkeypatch.setattr(f"fastq.consumer.{name}", NEVER_S)
    servers = str(shared_broker.bootstrap_servers)
    topic = make_topic(servers, 2)
    with Producer(bootstrap_servers=servers) as producer:
        for partition in (0, 1):
            producer.send(topic, b"%d" % partition, partition=partition)
    group = {"group_id": topic, "group_protocol": how} if how in ("classic", "consumer") else {}

    async def main() -> None:
        async with AsyncConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", **group) as consumer:
            if how == "assigned":
                consumer.assign([(topic, 0), (topic, 1)])
            else:
                consumer.subscribe(topic)
            found: set[bytes | None] = set()
            while len(found) < 2:
                found.update(record.value for record in await asyncio.wait_for(consumer.poll(), 20))

    asyncio.run(main())


@pytest.mark.parametrize("protocol", [None, "classic", "consumer"])
def test_a_consumer_whose_brokers_are_gone_looks_in_moderation(protocol: str | None) -> None:
    async def main() -> int:
        group = {} if protocol is None else {"group_id": "g", "group_protocol": protocol}
        with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
            servers = broker.bootstrap_servers
            with Producer(bootstrap_servers=servers) as producer:
                producer.send("logs", b"1").result(20)
            consumer = AsyncConsumer("logs", bootstrap_servers=servers, auto_offset_reset="earliest", **group)
            assert await consumer.poll(timeout=20)
            looks, step = 0, consumer._step

            def counted() -> None:
                nonlocal looks
                looks += 1
                step()

            consumer._step = counted  # type: ignore[method-assign]
            broker.kill()
            await consumer.poll(timeout=1.5)
            await consumer.close(timeout=0)
            return looks

    assert asyncio.run(main()) < 200
