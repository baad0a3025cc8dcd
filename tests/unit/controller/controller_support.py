"""What tests of a controller that is alone share: a clock, and how its images and files are looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path

from fastq_broker.config_keys import ResourceType
from fastq_broker.controller import Controller, MetadataImage
from fastq_broker.controller.config_changes import ConfigChange, ConfigOperation, ResourceChange

NOW = 1_790_000_000_000
Open = Callable[..., Controller]


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = NOW
        self.set_ahead_ms = 0  # what somebody has set it by, which is no time that went by

    def __call__(self) -> int:
        return self.now


def directory(tmp_path: Path) -> Path:
    return tmp_path / "data" / "__cluster_metadata-0"


def settle(controller: Controller, clock: Clock) -> None:
    """Wait for a snapshot that was begun, and let the next tick take it down."""
    running = controller.snapshots.writing
    if running is not None:
        wait([running])
        controller.tick(clock.now)


def same(one: MetadataImage, other: MetadataImage) -> bool:
    """Equal but for this node's registration and the place in the log."""
    return (one.topics_by_id, one.topics_by_name, one.configs, one.features, one.next_producer_id) == (
        other.topics_by_id,
        other.topics_by_name,
        other.configs,
        other.features,
        other.next_producer_id,
    )


def mark_clean(tmp_path: Path, controller: Controller) -> None:
    text = json.dumps({"version": 0, "brokerEpoch": controller.broker_epoch})
    (tmp_path / "data" / ".kafka_cleanshutdown").write_text(text)


def change(
    name: str, *changes: tuple[str, int, str | None], kind: int = ResourceType.TOPIC, replace: bool = False
) -> ResourceChange:
    return ResourceChange(kind, name, [ConfigChange(*item) for item in changes], replace=replace)


SET, DELETE, APPEND, SUBTRACT = ConfigOperation
