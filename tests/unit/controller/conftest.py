"""A controller that is alone, in a directory of its own, and the clock that it lives by."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_support import NOW, Clock, Open
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import Controller


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_controller(tmp_path: Path, clock: Clock) -> Open:
    def opened(**settings: object) -> Controller:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        config = BrokerConfig.from_mapping(
            {"log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:9092", **named}
        )
        controller = Controller(config, clock=clock, monotonic_ms=lambda: clock.now - clock.set_ahead_ms - NOW)
        controller.open()
        controller.register_broker(config.advertised_listeners)
        return controller

    return opened
