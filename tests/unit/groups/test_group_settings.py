"""Settings of single groups in the coordinator: who they hold for, and when they begin to."""

from __future__ import annotations

from typing import Any

import pytest
from fastq_broker import group_config
from fastq_broker.config import BrokerConfig
from fastq_broker.groups.consumer_change import ConsumerGroupSettings
from fastq_broker.groups.shard import GroupShard, ShardSettings
from fastq_broker.topic_config import BrokerLayers
from group_world import World

from fastq.errors import ConfigError


class OwnSettings(World):
    """A world whose groups may have settings of their own."""

    own: dict[str, ConsumerGroupSettings] = {}  # noqa: RUF012

    def new_shard(self) -> GroupShard:
        def settings_of(group_id: str) -> ConsumerGroupSettings:
            return self.own.get(group_id, self.settings)

        return GroupShard(self, ShardSettings(consumer=self.settings), lambda: self.image, settings_of)  # type: ignore[arg-type]


def test_a_shorter_session_holds_from_the_change_on() -> None:
    world = OwnSettings(session_timeout_ms=45_000)
    world.own = {}
    world.topics(t=2)
    world.join("a")
    assert world.idle("a", 1).heartbeat_interval_ms == 5000
    world.own = {"g": ConsumerGroupSettings(session_timeout_ms=6000, heartbeat_interval_ms=700)}
    world.consumers.settings_changed(["g", "another"])
    assert world.idle("a", 1).heartbeat_interval_ms == 700
    world.advance(5900)
    assert world.idle("a", 1).member_epoch == 1
    world.advance(5900)
    assert "a" in world.group.members
    world.advance(200)
    assert "a" not in world.group.members


def test_a_longer_session_holds_from_the_change_on() -> None:
    world = OwnSettings(session_timeout_ms=6000)
    world.own = {"g": ConsumerGroupSettings(session_timeout_ms=50_000)}
    world.topics(t=2)
    world.join("a")
    world.advance(49_000)
    assert "a" in world.group.members
    world.own = {}
    world.consumers.settings_changed(["g"])
    world.advance(6100)
    assert "a" not in world.group.members


def test_an_assignment_interval_of_its_own() -> None:
    world = OwnSettings(assignment_interval_ms=0)
    world.own = {"g": ConsumerGroupSettings(assignment_interval_ms=3000)}
    world.topics(t=2)
    world.join("a")
    world.join("b")
    assert world.group.target_epoch == 1 < world.group.group_epoch
    world.advance(3100)
    assert world.group.target_epoch == world.group.group_epoch


def layers(altered: dict[str, str | None] | None = None, **settings: Any) -> BrokerLayers:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerLayers(BrokerConfig.from_mapping(named), all_brokers=altered or {})


def test_values_in_force() -> None:
    broker = layers(group_consumer_heartbeat_interval_ms=6000)
    names = (group_config.SESSION, group_config.HEARTBEAT, group_config.ASSIGNMENT)
    assert list(group_config.in_force({}, broker).values()) == [45_000, 6000, 1000]
    own = dict(zip(names, ["60000", "15000", "0"], strict=True))
    assert list(group_config.in_force(own, broker).values()) == [60_000, 15_000, 0]
    # The bounds have changed since they were set.
    narrow = layers(
        group_consumer_max_session_timeout_ms=50_000,
        group_consumer_max_heartbeat_interval_ms=9000,
        group_consumer_min_assignment_interval_ms=100,
    )
    assert list(group_config.in_force(own, narrow).values()) == [50_000, 9000, 100]
    altered = layers({"group.consumer.assignment.interval.ms": "250"})
    assert group_config.in_force({}, altered)[group_config.ASSIGNMENT] == 250


def test_a_session_has_to_be_longer_than_the_heartbeat_interval() -> None:
    broker = layers(
        group_consumer_min_session_timeout_ms=1000,
        group_consumer_max_heartbeat_interval_ms=20_000,
        group_consumer_heartbeat_interval_ms=6000,
    )
    group_config.validate({group_config.SESSION: "6001"}, broker)
    with pytest.raises(ConfigError, match=r"consumer.session.timeout.ms = 6000 must be greater than .* = 6000"):
        group_config.validate({group_config.SESSION: "6000"}, broker)
    with pytest.raises(ConfigError, match="must be greater than"):
        group_config.validate({group_config.SESSION: "7000", group_config.HEARTBEAT: "8000"}, broker)
