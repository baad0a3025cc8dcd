"""Who moves replicas to other directories of their nodes (KIP-113), again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastq.protocol.messages import AlterReplicaLogDirsRequest
from simulation.client import Client, Unreachable
from simulation.node import Node


class Mover:
    """Moves replicas of some topics about, each to any directory of any of `nodes`."""

    def __init__(self, client: Client, topics: dict[str, int], nodes: Callable[[], Sequence[Node]]) -> None:
        self.client, self._topics, self._nodes = client, topics, nodes
        self.stopping = self.ended = False

    async def run(self) -> None:
        random, kind = self.client.random, AlterReplicaLogDirsRequest
        while not self.stopping:
            await self.client.pause(0.4)
            node, topic = random.choice(self._nodes()), random.choice(sorted(self._topics))
            partition, path = random.randrange(self._topics[topic]), str(random.choice(node.directories))
            topics = [kind.AlterReplicaLogDirTopic(name=topic, partitions=[partition])]
            request = kind(dirs=[kind.AlterReplicaLogDir(path=path, topics=topics)])
            try:
                await self.client.ask(node.node_id, request, 2)
            except Unreachable:
                continue
        self.ended = True
