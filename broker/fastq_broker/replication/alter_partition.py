"""AlterPartition: what a node's leaders ask of the controller, many partitions in one request. Sans-I/O.

Rules
- One request is in flight; what is asked meanwhile goes with the next. Each request is built anew from the changes, which are never
  altered: one that is sent again, in another version too, carries the whole in-sync set (KAFKA-15353).
- An error of the whole request, or none at all, has everything sent again after RETRY_MS. A partition that an answer leaves out too.
- In version 2 the in-sync set goes without broker epochs.
Source: DefaultAlterPartitionManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Final, TypeAlias

from fastq.errors import ErrorCode
from fastq.protocol.messages import AlterPartitionRequest, AlterPartitionResponse

from .isr import IsrChange
from .partition import IsrAnswer

RETRY_MS: Final = 50
FIRST_VERSION_WITH_BROKER_EPOCHS: Final = 3

PartitionKey: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""


def build_request(
    changes: Mapping[PartitionKey, IsrChange], broker_id: int, broker_epoch: int, version: int
) -> AlterPartitionRequest:
    """One request for all of `changes`."""
    topics = []
    for topic_id, keys in groupby(sorted(changes), key=lambda key: key[0]):
        partitions = []
        for key in keys:
            change = changes[key]
            partition = AlterPartitionRequest.PartitionData(
                partition_index=key[1], leader_epoch=change.leader_epoch, partition_epoch=change.partition_epoch
            )
            if version >= FIRST_VERSION_WITH_BROKER_EPOCHS:
                partition.new_isr_with_epochs = [
                    AlterPartitionRequest.BrokerState(broker_id=node, broker_epoch=epoch) for node, epoch in change.isr
                ]
            else:
                partition.new_isr = change.nodes
            partitions.append(partition)
        topics.append(AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=partitions))
    return AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch, topics=topics)


class AlterPartitions:
    """The changes that wait for the controller. Thread rule: one thread.

    Invariant: a change is in `_waiting` or `_in_flight`; of a partition the latest of each alone.
    """

    def __init__(self) -> None:
        self._waiting: dict[PartitionKey, IsrChange] = {}
        self._in_flight: dict[PartitionKey, IsrChange] = {}
        self._not_before_ms = 0

    def submit(self, key: PartitionKey, change: IsrChange) -> None:
        """Ask for `change` with the next request."""
        self._waiting[key] = change

    def forget(self, key: PartitionKey) -> None:
        """What was to be asked is out of date: the partition has changed, or is not led here any more."""
        self._waiting.pop(key, None)

    def has(self, key: PartitionKey) -> bool:
        """Whether a change of this partition waits, or is on its way."""
        return key in self._waiting or key in self._in_flight

    @property
    def is_asked(self) -> bool:
        """Whether a request is in flight."""
        return bool(self._in_flight)

    def take(self, now_ms: int) -> Mapping[PartitionKey, IsrChange] | None:
        """What to ask now, in one request; `answered` or `failed` has to follow. None while there is nothing to ask, one is in flight, or
        it is too early (see `due_ms`)."""
        if self._in_flight or not self._waiting or now_ms < self._not_before_ms:
            return None
        changes = dict(self._waiting)
        self._in_flight, self._waiting = self._waiting, {}
        return changes

    @property
    def due_ms(self) -> int | None:
        """When `take` has some; None: not before something else happens."""
        return self._not_before_ms if self._waiting and not self._in_flight else None

    def failed(self, now_ms: int) -> None:
        """No answer came, or the whole request was refused."""
        self._not_before_ms = now_ms + RETRY_MS
        self._waiting = {**self._in_flight, **self._waiting}
        self._in_flight = {}

    def answered(
        self, response: AlterPartitionResponse, now_ms: int
    ) -> list[tuple[PartitionKey, IsrChange, IsrAnswer]]:
        """What each partition is to be told. Where it raises, `failed` has to follow."""
        if response.error_code != ErrorCode.NONE:
            self.failed(now_ms)
            return []
        found = []
        asked = dict(self._in_flight)
        for topic in response.topics:
            for told in topic.partitions:
                key = topic.topic_id, told.partition_index
                change = asked.pop(key, None)
                if change is not None:
                    isr = tuple(told.isr)
                    answer = IsrAnswer(told.error_code, told.leader_epoch, told.partition_epoch, isr)
                    found.append((key, change, answer))
        self._in_flight = asked
        self._not_before_ms = 0
        if asked:
            self.failed(now_ms)
        return found
