"""Replication quotas (KIP-73): which partitions' copying to and from other nodes is bounded, and moves between this node's directories.

Rules
- A topic names the replicas whose traffic counts (`leader.` and `follower.replication.throttled.replicas`: partition:broker, or `*`), a
  broker how much of it there may be, each way.
- All traffic of those partitions counts; held back is only what replicas out of sync would have. So nobody falls out of sync for a quota.
- Without a quota nothing is counted.
Source: ReplicationQuotaManager, ReplicaManager.shouldLeaderThrottle, ConfigHandler.TopicConfigHandler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from .config_keys import INT64_MAX, ConfigValue
from .log.byte_rate import UNBOUNDED, ByteRate
from .topic_config import broker_layers_of

if TYPE_CHECKING:
    from .config import BrokerConfig
    from .replicas import Replica
    from .topic_config import BrokerLayers

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
MOVES_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"

Key = tuple[bytes, int]
"""Topic id and partition."""
NOTHING: Final[frozenset[Key]] = frozenset()


class Throttle:
    """One way of replication: its rate, and the partitions whose traffic counts. Loop thread only."""

    def __init__(self, rate: ByteRate, now: Callable[[], float]) -> None:
        """`now` gives seconds that only go on."""
        self.rate = rate
        self.keys: set[Key] = set()
        self._now = now

    def throttled(self) -> Collection[Key]:
        """The partitions of which replicas that are out of sync get nothing now: see FollowerQuota."""
        return self.keys if self.keys and self.rate.exceeded(self._now()) else NOTHING

    def record(self, key: Key, size_bytes: int) -> None:
        """Bytes of a partition that were sent, or have come."""
        if key in self.keys and self.rate.bytes_per_s_max != UNBOUNDED:
            self.rate.record(size_bytes, self._now())


class ReplicationThrottles:
    """The quotas of a node. Loop thread only. Invariant: keys are of replicas that are here."""

    def __init__(self, config: BrokerConfig, monotonic_ms: Callable[[], int]) -> None:
        self._node_id = config.node_id

        def throttle() -> Throttle:
            rate = ByteRate(
                windows=config.replication_quota_window_num, window_s=config.replication_quota_window_size_seconds
            )
            return Throttle(rate, lambda: monotonic_ms() / 1000)

        self.leader = throttle()
        self.follower = throttle()

    def follow(self, replica: Replica, values: Mapping[str, ConfigValue]) -> None:
        """Heed the settings of a replica's topic."""
        key = replica.topic_id, replica.partition
        for throttle, name in ((self.leader, LEADER_REPLICAS), (self.follower, FOLLOWER_REPLICAS)):
            if _names(values[name], replica.partition, self._node_id):
                throttle.keys.add(key)
            else:
                throttle.keys.discard(key)

    def forget(self, replica: Replica) -> None:
        """The replica is not here any more."""
        for throttle in (self.leader, self.follower):
            throttle.keys.discard((replica.topic_id, replica.partition))

    def apply_config(self, layers: BrokerLayers) -> None:
        """Heed the broker's settings, as set and altered."""
        self.leader.rate.bytes_per_s_max = bound_of(layers, LEADER_RATE)
        self.follower.rate.bytes_per_s_max = bound_of(layers, FOLLOWER_RATE)


def bound_of(layers: BrokerLayers, name: str) -> float:
    """A rate of the broker's settings."""
    value = broker_layers_of(name, layers)[0].value
    return UNBOUNDED if value == INT64_MAX else float(value)


def _names(replicas: Sequence[str], partition: int, node_id: int) -> bool:
    return replicas == ["*"] or any(
        (int(number), int(node)) == (partition, node_id)
        for number, _, node in (item.partition(":") for item in replicas)
    )
