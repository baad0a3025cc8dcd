"""Who makes a topic, writes to it, commits an offset of it, deletes it, and begins anew under the same name.

Rules: what a life of the topic has is of that life alone: its records are those that were written to it, and a group has committed nothing
in it before it does so. All that was sent to one life is answered before it is deleted. Source: KIP-516, KIP-848's offsets by topic id.
"""

from __future__ import annotations

from typing import Any

from fastq.errors import ErrorCode
from fastq.protocol.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from simulation.client import Client, Producer, Unreachable
from simulation.world import Violation

TOPIC, GROUP = "renewed", "renewer"
BATCHES = 6
PACE_S = 0.3
BY_ID = 10
"""The version of OffsetCommit and OffsetFetch from which on topics are named by their ids."""
UNTIL_NEXT = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Renewer:
    """One topic of one partition. `producers`: where who writes to its present life is known; those before are taken out."""

    def __init__(self, client: Client, producers: list[Producer]) -> None:
        self.client, self._producers = client, producers
        self.stopping = self.ended = False
        self.lives = 0
        self.waits_for = ""

    def __str__(self) -> str:
        return str(self.client)

    async def run(self) -> None:
        while True:
            self.lives += 1
            topic_id = await self._create()
            await self._check_forgotten(topic_id)
            producer = Producer(self.client, f"life{self.lives}", TOPIC, 0, BATCHES)
            self._producers.append(producer)
            self.waits_for = "its records"
            await producer.run()
            if self.stopping:
                break
            await self._commit(topic_id, len(producer.acknowledged))
            await self.client.pause(PACE_S)
            if self.stopping:
                break
            self._producers.remove(producer)
            await self._delete(topic_id)
            await self.client.pause(PACE_S)
        self.ended = True

    async def _ask(self, request: Any, version: int, what: str) -> Any:
        """The answer of any node; None where there is none."""
        self.waits_for = what
        try:
            return await self.client.ask(self.client.random.choice(self.client.nodes), request, version, 6.0)
        except Unreachable:
            return None

    async def _create(self) -> bytes:
        """Its id. What was made and not answered is deleted, as its id is not known."""
        configs = [CreateTopicsRequest.CreatableTopicConfig(name="min.insync.replicas", value="2")]
        topic = CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=3, configs=configs)
        while True:
            answer = await self._ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7, "the topic to be made")
            if answer is not None:
                (made,) = answer.topics
                if made.error_code == ErrorCode.NONE:
                    self.client.world.tell(self, f"has made {TOPIC} for the {self.lives}. time: {made.topic_id.hex()}")
                    return bytes(made.topic_id)
                if made.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                    await self._ask_to_delete(DeleteTopicsRequest.DeleteTopicState(name=TOPIC))
            await self.client.pause(0.1)

    async def _delete(self, topic_id: bytes) -> None:
        while await self._ask_to_delete(DeleteTopicsRequest.DeleteTopicState(topic_id=topic_id)) not in UNTIL_NEXT:
            await self.client.pause(0.1)

    async def _ask_to_delete(self, topic: DeleteTopicsRequest.DeleteTopicState) -> int:
        answer = await self._ask(DeleteTopicsRequest(topics=[topic], timeout_ms=5000), 6, "the topic to be deleted")
        return -1 if answer is None else int(answer.responses[0].error_code)

    async def _commit(self, topic_id: bytes, offset: int) -> None:
        """Until it is committed, by whichever node coordinates the group."""
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])
        request = OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=-1, topics=[topic])
        while True:
            answer = await self._ask(request, BY_ID, "its offset to be committed")
            if answer is not None and answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
                return
            await self.client.pause(0.1)

    async def _check_forgotten(self, topic_id: bytes) -> None:
        """A topic that was just made has no offsets, whoever coordinates the group."""
        topic = OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
        while True:
            answer = await self._ask(OffsetFetchRequest(groups=[group]), BY_ID, "the offset of the new topic")
            if answer is not None and answer.groups[0].error_code == ErrorCode.NONE:
                (found,) = answer.groups[0].topics[0].partitions
                if found.error_code == ErrorCode.NONE:
                    if found.committed_offset >= 0:
                        raise Violation(
                            f"{TOPIC} was made for the {self.lives}. time, as {topic_id.hex()}, and group {GROUP} has offset "
                            f"{found.committed_offset} in it, which was committed in the one before"
                        )
                    return
            await self.client.pause(0.1)
