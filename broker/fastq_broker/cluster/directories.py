"""Tells the active controller in which log directory this node has put its replicas: it must know what a directory that fails takes along.

Rules
- A controller places a replica in a broker's only directory by itself; where there are several, the broker chooses and says so.
- What is told is what the metadata does not have yet. One request is on its way at a time, of PARTITIONS_MAX partitions at most; what is
  refused is asked again after a while, for as long as the metadata has it otherwise.
Source: AssignmentsManager (KIP-858).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from fastq.errors import ClientClosed, ErrorCode, FastqError
from fastq.protocol.messages import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from fastq_broker.log import failures

logger = logging.getLogger(__name__)

PARTITIONS_MAX: Final = 2250
RETRY_S: Final = 0.5

_SETTLED: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""Nothing is left to tell: the directory is known, or there is no such replica any more."""

Key = tuple[bytes, int]
"""Topic id and partition."""


class Channel(Protocol):
    """What is needed of a ControllerChannel."""

    def ask(self, request: AssignReplicasToDirsRequest, done: Callable[[Any, FastqError | None], object]) -> None:
        """Ask the active controller; `done(response, error)` is called once, later."""


class DirectoryAssignments:
    """One node's directories of replicas on their way. Loop thread only.

    Invariant: while it is open and `_wanted` is not empty, a request is on its way or a turn is due.
    """

    def __init__(
        self, node_id: int, channel: Channel, loop: asyncio.AbstractEventLoop, broker_epoch: Callable[[], int]
    ) -> None:
        self._node_id = node_id
        self._channel = channel
        self._loop = loop
        self._broker_epoch = broker_epoch
        self._wanted: dict[Key, bytes] = {}
        self._turn: asyncio.Handle | None = None
        self._under_way = self._closed = False

    def __len__(self) -> int:
        """How many replicas the metadata does not have in their directories yet."""
        return len(self._wanted)

    def note(self, key: Key, directory: bytes, known: bytes) -> None:
        """A replica lies in a directory, and the metadata has it in the one that is `known`."""
        if directory == known:
            self._wanted.pop(key, None)
        elif not self._closed:
            self._wanted[key] = directory
            self._take_turn(0.0)

    def close(self) -> None:
        """Tell no more. Idempotent."""
        self._closed = True
        if self._turn is not None:
            self._turn.cancel()

    def _take_turn(self, delay_s: float) -> None:
        if self._turn is None and not self._under_way and not self._closed:
            self._turn = self._loop.call_later(delay_s, self._send)

    def _send(self) -> None:
        self._turn = None
        try:
            self._tell()
        except Exception as error:
            failures.report("telling the controller where replicas lie", error)
            self._under_way = False
            self._take_turn(RETRY_S)

    def _tell(self) -> None:
        by_directory: dict[bytes, dict[bytes, list[int]]] = {}
        for (topic_id, number), directory in list(self._wanted.items())[:PARTITIONS_MAX]:
            by_directory.setdefault(directory, {}).setdefault(topic_id, []).append(number)
        if not by_directory:
            return
        kind = AssignReplicasToDirsRequest
        request = kind(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            directories=[
                kind.DirectoryData(
                    id=directory,
                    topics=[
                        kind.TopicData(
                            topic_id=topic_id,
                            partitions=[kind.PartitionData(partition_index=number) for number in numbers],
                        )
                        for topic_id, numbers in topics.items()
                    ],
                )
                for directory, topics in by_directory.items()
            ],
        )
        self._under_way = True
        self._channel.ask(request, self._answered)

    def _answered(self, response: AssignReplicasToDirsResponse | None, error: FastqError | None) -> None:
        self._under_way = False
        if isinstance(error, ClientClosed):
            return
        delay_s = RETRY_S
        try:
            if self._is_taken(response, error):
                delay_s = 0.0
        finally:  # whatever is left goes on
            if self._wanted:
                self._take_turn(delay_s)

    def _is_taken(self, response: AssignReplicasToDirsResponse | None, error: FastqError | None) -> bool:
        """Forget what the controller knows by now, and say what it does not take; whether it took all. One that says nothing of any may do
        so again."""
        refused: dict[Key, int] = {}
        says_something = False
        if response is None or response.error_code:
            why = error if response is None else f"error {response.error_code}"
            failures.say(
                logger.warning,
                "AssignReplicasToDirs",
                "the controller was not told where %d replicas lie: %s; it is told again",
                len(self._wanted),
                why,
            )
        else:
            for directory in response.directories:
                for topic in directory.topics:
                    for item in topic.partitions:
                        key, says_something = (topic.topic_id, item.partition_index), True
                        if item.error_code not in _SETTLED:
                            refused[key] = item.error_code
                        elif self._wanted.get(key) == directory.id:  # a record of it is on its way here
                            del self._wanted[key]
        if refused:
            (topic_id, number), code = next(iter(refused.items()))
            failures.say(
                logger.warning,
                "AssignReplicasToDirs",
                "the controller refuses to know where %d replicas lie, partition %d of topic id %s for one with error %d; it is told again",
                len(refused),
                number,
                topic_id.hex(),
                code,
            )
        return says_something and not refused
