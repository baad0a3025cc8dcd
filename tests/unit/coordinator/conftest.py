"""A whole broker in this process, on a temporary directory and a free port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig

T = TypeVar("T")


class BrokerBench:
    """Runs coroutines against a broker that is started and stopped for each of them; the data stays."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.settings: dict[str, str] = {"offsets.topic.num.partitions": "4"}

    def run(
        self, work: Callable[[Broker], Awaitable[T]], prepare: Callable[[Broker], object] = lambda broker: None
    ) -> T:
        """Start a broker (`prepare` sees it before), await `work(broker)`, stop it cleanly."""

        async def main() -> T:
            config = BrokerConfig.from_mapping(
                {"log.dirs": str(self.data_dir), "listeners": "PLAINTEXT://127.0.0.1:0", **self.settings}
            )
            broker = Broker(config, asyncio.get_running_loop())
            prepare(broker)
            try:
                await broker.start()
                return await work(broker)
            finally:
                assert await broker.close()

        return asyncio.run(asyncio.wait_for(main(), 30))


@pytest.fixture
def bench(tmp_path: Path) -> BrokerBench:
    return BrokerBench(tmp_path)
