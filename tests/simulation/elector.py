"""Who asks for elections: of preferred leaders, of any topic; and of whoever is there, of one topic that may lose records by it.

Rules: what was acknowledged survives a preferred election. In the topic of unclean ones nobody is promised anything once such an election
may have been made, but that its replicas are alike again and have nothing that was not sent, or twice what was sent once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from raw_kafka import batch, produce_request

from fastq.errors import ErrorCode
from fastq.protocol.messages import ElectLeadersRequest
from simulation.client import Client, Producer, Unreachable
from simulation.world import FIRST_MS

RISKY = "risky"
REPLICAS = 2
"""Of the topic of unclean elections."""
CONFIGS = {"min.insync.replicas": "1"}
PREFERRED, UNCLEAN = 0, 1
ALL = 0.2
"""How often all preferred leaders are asked for."""


class Elector:
    """Asks for elections of `topics`, and of RISKY."""

    def __init__(self, client: Client, topics: dict[str, int], writer: CarelessProducer) -> None:
        self.client, self._topics, self._writer = client, topics, writer
        self.stopping = self.ended = False

    async def run(self) -> None:
        random = self.client.random
        while not self.stopping:
            await self.client.pause(0.3)
            if random.random() < 0.5:
                self._writer.may_have_lost |= await self._elect(UNCLEAN, RISKY, 0) not in (
                    ErrorCode.ELECTION_NOT_NEEDED,
                    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                    ErrorCode.NOT_CONTROLLER,
                )
            elif random.random() < ALL:
                await self._elect(PREFERRED, None, 0)
            else:
                topic = random.choice(sorted(self._topics))
                await self._elect(PREFERRED, topic, random.randrange(self._topics[topic]))
        self.ended = True

    async def _elect(self, kind: int, topic: str | None, partition: int) -> int | None:
        """What it was answered for the partition; None: that is not known. `topic` None: all."""
        named = None if topic is None else [ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[partition])]
        request = ElectLeadersRequest(election_type=kind, topic_partitions=named, timeout_ms=3000)
        try:
            answer = await self.client.ask(self.client.random.choice(self.client.nodes), request, 2, 6.0)
        except Unreachable:
            return None
        for found in answer.replica_election_results:
            for result in found.partition_result:
                return int(result.error_code)
        return int(answer.error_code) or None


class CarelessProducer(Producer):
    """Sends each batch once, with acks=all and no sequence, and goes on whatever it is answered."""

    may_have_lost = False
    """Whether an election that was not clean may have been made."""

    async def run(self) -> None:
        client, number = self.client, 0
        self._sent: set[bytes] = set()
        while not self.stopping:
            values = [b"%s:%d" % (self.name.encode(), number + at) for at in range(client.random.choice((1, 2, 5)))]
            number += len(values)
            records = batch(*values, timestamp_ms=FIRST_MS + int(client.world.now * 1000))
            try:
                leader = await client.leader_of(self.topic, self.partition)
                self._sent.update(values)
                answer = await client.ask(leader, produce_request(self.topic, records, acks=-1), 9)
                (result,) = answer.responses[0].partition_responses
            except Unreachable:
                await client.pause(0.1)
                continue
            if result.error_code == ErrorCode.NONE:
                self.acknowledged += values
            await client.pause(self.pause_s)
        self.ended = True

    def problem_of(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> str | None:
        found = Counter(value for _, value in records)
        lost = [value for value in self.acknowledged if not found[value]]
        if lost and not self.may_have_lost:
            return f"{self.name} has the acknowledgement of {lost[0]!r}, which is nowhere, and no election was unclean"
        wrong = [value for value, count in found.items() if count > 1 or value not in self._sent]
        return f"{self.name} finds {wrong[0]!r} {found[wrong[0]]} times" if wrong else None
