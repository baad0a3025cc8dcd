"""Who reads, processes and writes in transactions as a member of a group of KIP-848.

Rules: what it is told to give up it has given up when it says so, which is with its next heartbeat, between two transactions; what it is
given it begins with where the group is. The group's coordinator may move: the member is known there, at the epoch that it has.
"""

from __future__ import annotations

from typing import Any

from fastq.errors import ErrorCode
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest
from simulation.transactions import AGAIN, GROUP, NEVER, REBALANCE_MS, BeginAnew, Worker

OFF = {ErrorCode.UNSUPPORTED_VERSION}
"""What is answered while group.version is 0."""
_Owned = ConsumerGroupHeartbeatRequest.TopicPartitions


class ConsumerWorker(Worker):
    """One life of a transactional id. `_generation` is the member's epoch."""

    offset_fetch_version = 9
    again, never = AGAIN | OFF, NEVER - OFF
    _topic_id = b""

    async def _join(self) -> None:
        if not self._member_id:
            self._member_id = f"{self}-{self._random.getrandbits(64):x}"
        self._positions = {}
        self._generation = 0
        await self._beat()

    async def _is_member(self) -> bool:
        await self._beat()
        return True

    async def _beat(self) -> None:
        known = dict(self.ledger.committed)
        owned = [_Owned(topic_id=self._topic_id, partitions=sorted(self._positions))] if self._positions else []
        joins = self._generation == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._member_id,
            member_epoch=self._generation,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_names=[self.source],
            topic_partitions=owned,
        )
        try:
            answer: Any = await self._call(0, request, 1, lambda answer: answer.error_code, moves=not joins)
        except BeginAnew:
            self._positions = {}
            raise
        self._generation = answer.member_epoch
        if answer.assignment is None:
            return
        own: set[int] = set()
        for topic in answer.assignment.topic_partitions:
            self._topic_id = topic.topic_id
            own.update(topic.partitions)
        self._positions = {partition: at for partition, at in self._positions.items() if partition in own}
        await self._take_over(sorted(own - self._positions.keys()), known)
