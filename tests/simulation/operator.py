"""Who runs the cluster: has a node join it late, moves partitions about and thinks better of it, changes features, and lets the node go.

Rules: partitions are moved while anything befalls the cluster. A node goes when nothing is on it any more: it ends, and is unregistered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastq.errors import ErrorCode
from fastq.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from simulation.client import Client, Unreachable

Places = dict[tuple[str, int], list[int] | None]
"""Where each partition is to be; None: as it was before the move that is under way."""
FEATURES = {"eligible.leader.replicas.version": 1, "group.version": 1, "transaction.version": 2}
"""What is changed to and fro, and the highest level that is."""
FEATURES_CHANGED = 0.2
TAKEN_BACK = 0.2
UPGRADE, DOWNGRADE = 1, 2
"""The second one is a safe downgrade (FeatureUpdateKey.upgrade_type)."""


class Operator:
    """Moves the partitions of some topics about, among `nodes`, until it is told to stop."""

    def __init__(self, client: Client, topics: dict[str, int], nodes: Callable[[], list[int]], pace_s: float) -> None:
        self.client, self.topics, self._nodes, self._pace_s = client, topics, nodes, pace_s
        self.stopping = self.ended = False
        self.moves = 0
        """How many were taken."""

    async def run(self) -> None:
        random = self.client.random
        while not self.stopping:
            await self.client.pause(self._pace_s)
            topic = random.choice(sorted(self.topics))
            partition = random.randrange(self.topics[topic])
            target: list[int] | None = random.sample(self._nodes(), 3)
            try:
                if random.random() < FEATURES_CHANGED:
                    await self._change_feature()
                else:
                    taken = await self.move({(topic, partition): None if random.random() < TAKEN_BACK else target})
                    self.moves += taken
            except Unreachable:
                pass
        while not self.ended:  # groups of KIP-848 go on at this level alone
            try:
                self.ended = await self._set_feature("group.version", FEATURES["group.version"], UPGRADE)
            except Unreachable:
                await self.client.pause(self._pace_s)

    async def _change_feature(self) -> None:
        random = self.client.random
        name = random.choice(sorted(FEATURES))
        level = random.randint(0 if name != "transaction.version" else 1, FEATURES[name])
        for upgrade_type in (UPGRADE, DOWNGRADE):
            await self._set_feature(name, level, upgrade_type)

    async def _set_feature(self, name: str, level: int, upgrade_type: int) -> bool:
        """Whether it is so now. Raises Unreachable."""
        update = UpdateFeaturesRequest.FeatureUpdateKey(
            feature=name, max_version_level=level, upgrade_type=upgrade_type
        )
        answer = await self._ask(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=5000), 1)
        return not answer.error_code

    async def _ask(self, request: Any, version: int) -> Any:
        return await self.client.ask(self.client.random.choice(self.client.nodes), request, version, 6.0)

    async def move(self, places: Places) -> bool:
        """Whether the controller has taken it. Raises Unreachable."""
        topics: dict[str, list[Any]] = {}
        for (topic, partition), replicas in places.items():
            asked = AlterPartitionReassignmentsRequest.ReassignablePartition(
                partition_index=partition, replicas=replicas
            )
            topics.setdefault(topic, []).append(asked)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=5000,
            topics=[
                AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        answer = await self._ask(request, 0)
        return not answer.error_code and not any(each.error_code for t in answer.responses for each in t.partitions)

    async def drain(self, node_id: int, placed: Callable[[], Places]) -> None:
        """Have everything moved off a node; `placed` answers where what is on it is to go."""
        while places := placed():
            try:
                await self.move(places)
            except Unreachable:
                pass
            await self.client.pause(0.5)

    async def unregister(self, node_id: int) -> None:
        """Take a node that has ended out of the metadata."""
        while True:
            try:
                answer = await self._ask(UnregisterBrokerRequest(broker_id=node_id), 0)
                if answer.error_code in (ErrorCode.NONE, ErrorCode.BROKER_ID_NOT_REGISTERED):
                    return
            except Unreachable:
                pass
            await self.client.pause(0.2)
