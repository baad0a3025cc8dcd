"""`RawConnection` for tests that run against one node and against three: the same requests, each to the node that answers it.

Rules
- One of the nodes, another one for each connection in turn, leads the topics that are created through it, and the others follow: what
  names no group and no transaction goes there, as do bytes that are no request.
- What names a group or a transaction goes to its coordinator. Those have one each: the fixture `one_coordinator`.
- Nothing else is hidden: no request is split, and none tried again.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from raw_kafka import RawConnection

from fastq.protocol.messages import FindCoordinatorRequest, MetadataRequest

PATIENCE_S = 60.0
OF_GROUPS = {8, 9, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69}
OF_TRANSACTIONS = {22, 24, 25, 26, 65, 66}
"""The API keys of what coordinators answer."""
_homes = itertools.count()


def connect(servers: str, *, topic: str | None = None) -> RawConnection:
    """A connection to the broker at that address, or to the cluster at those; there, to the node that leads the topic, if one is named."""
    addresses = servers.split(",")
    return RawConnection(servers) if len(addresses) == 1 else ClusterConnection(addresses, topic)


class ClusterConnection(RawConnection):
    """Connections to all nodes of a cluster; itself it is the one to the node that leads its topics."""

    def __init__(self, addresses: list[str], topic: str | None) -> None:
        at = next(_homes) % len(addresses) if topic is None else addresses.index(_leader(addresses[0], topic))
        super().__init__(addresses[at])
        self._others = {other: RawConnection(other) for other in addresses if other != self.address}
        self._asked: list[RawConnection | None] = []
        self._coordinators: dict[int, RawConnection | None] = {}
        deadline = time.monotonic() + PATIENCE_S
        nodes: dict[str, int] = {}
        while len(nodes) < len(addresses):  # it may not have heard yet that all have started
            assert time.monotonic() < deadline, nodes
            nodes = {f"{node.host}:{node.port}": node.node_id for node in _metadata(self).brokers}
        self.replicas = tuple(nodes[address] for address in (*addresses[at:], *addresses[:at]))

    def close(self) -> None:
        super().close()
        for other in self._others.values():
            other.close()

    def send(self, request: Any, version: int, *, expects_response: bool = True) -> None:
        if isinstance(request, FindCoordinatorRequest):  # whoever asks that has found that it is another
            self._coordinators.clear()
        node = self._coordinator(request)
        (super() if node is None else node).send(request, version, expects_response=expects_response)
        if expects_response:
            self._asked.append(node)

    def receive(self) -> Any:
        node = self._asked.pop(0)
        return (super() if node is None else node).receive()

    def wait_for_topic(self, name: str) -> None:
        """Until all nodes know of its leaders."""
        deadline = time.monotonic() + PATIENCE_S
        for node in (self, *self._others.values()):
            while not _led(topic := _metadata(node, name).topics[0]):
                assert time.monotonic() < deadline, topic
                time.sleep(0.01)

    def _coordinator(self, request: Any) -> RawConnection | None:
        """Where a request goes, None for the node that leads."""
        if request.API_KEY not in OF_GROUPS | OF_TRANSACTIONS:
            return None
        key_type = int(request.API_KEY in OF_TRANSACTIONS)
        if key_type not in self._coordinators:
            deadline = time.monotonic() + PATIENCE_S
            asked = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"])
            while (found := self.call(asked, 4).coordinators[0]).error_code:
                assert time.monotonic() < deadline, found
                time.sleep(0.02)
            self._coordinators[key_type] = self._others.get(f"{found.host}:{found.port}")
        return self._coordinators[key_type]


def _metadata(node: RawConnection, *names: str) -> Any:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return node.call(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)


def _led(topic: Any) -> bool:
    return not topic.error_code and not any(partition.error_code for partition in topic.partitions)


def _leader(address: str, name: str) -> str:
    """The address of the node that leads all partitions of a topic."""
    deadline = time.monotonic() + PATIENCE_S
    with RawConnection(address) as node:
        while not _led((told := _metadata(node, name)).topics[0]):
            assert time.monotonic() < deadline, told
            time.sleep(0.02)
    (leader,) = {partition.leader_id for partition in told.topics[0].partitions}
    return next(f"{node.host}:{node.port}" for node in told.brokers if node.node_id == leader)
