"""Topics whose logs do not keep everything: one that is compacted, one whose oldest segments go, and what is left of them.

Rules: of a compacted log the last record of each key is left, its tombstone or nothing where that has no value. Of a log that is trimmed
what is left is the end of what was sent, whole; its start moves by age, and as far as somebody asks for.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastq.protocol.messages import DeleteRecordsRequest
from simulation.client import Client, Producer, Unreachable

KEYED, TRIMMED = "keyed", "trimmed"
SETTINGS = {
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "300",
    "log.cleaner.dedupe.buffer.size": "1048576",
    "log.retention.check.interval.ms": "400",
}
"""Of brokers that look after their logs often."""
_OFTEN = {"segment.ms": "400", "flush.ms": "200", "file.delete.delay.ms": "300"}
CONFIGS = {
    KEYED: {**_OFTEN, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "500"},
    TRIMMED: {**_OFTEN, "retention.ms": "2000"},
}
KEYS, TOMBSTONES = 7, 5
"""One of so many records of a key is a tombstone."""


class KeyedProducer(Producer):
    """Writes to a few keys, and takes some of them away."""

    def _record(self, value: bytes) -> tuple[bytes | None, bytes | None]:
        number = int(value.partition(b":")[2])
        key = b"%s/%d" % (self.name.encode(), number % KEYS)
        return key, None if number // KEYS % TOMBSTONES == 0 else value

    def problem_of(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> str | None:
        known = dict(map(self._record, self.acknowledged))
        allowed = {key: {value} for key, value in known.items()}
        for key, value in map(self._record, self.doubtful):
            allowed.setdefault(key, {None}).add(value)
        mine = self.name.encode() + b"/"
        found = {key: value for key, value in records if key is not None and key.startswith(mine)}
        for key in sorted({*found, *allowed}, key=str):
            if found.get(key) not in allowed.get(key, ()):
                return f"{key!r} has the value {found.get(key)!r}, and last it was given {known.get(key)!r}"
        return None


class TrimmedProducer(Producer):
    """Writes to a log that does not keep everything."""

    def problem_of(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> str | None:
        name = self.name.encode() + b":"
        own = [value for _, value in records if value is not None and value.startswith(name)]
        is_longer = bool(self.doubtful) and own[-len(self.doubtful) :] == self.doubtful
        sent = self.acknowledged + (self.doubtful if is_longer else [])
        if own and own != sent[-len(own) :]:
            return f"{self.name} has {own[:3]} ... {own[-3:]}, {len(own)} records, and the last that it sent are {sent[-3:]}"
        return None


class Trimmer:
    """Has records of the trimmed topic deleted, up to where `producer` has written at least."""

    def __init__(self, client: Client, producer: Producer) -> None:
        self.client, self._producer = client, producer

    async def run(self) -> None:
        topic, random = self._producer.topic, self.client.random
        while True:
            await self.client.pause(1.0)
            offset = random.randint(0, len(self._producer.acknowledged))
            partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
            asked = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[partition])
            try:
                leader = await self.client.leader_of(topic, 0)
                await self.client.ask(leader, DeleteRecordsRequest(topics=[asked], timeout_ms=2000), 2)
            except Unreachable:
                continue
