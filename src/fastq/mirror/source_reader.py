"""Batches of a source as they lie there: fetched as a consumer that reads uncommitted records, and not opened.

Rules
- What is asked, and what of an answer counts, is `fastq.net.batches`'.
- A request goes to who leads the first partition in it, by the metadata of the moment: also when it is sent again, after a leader died.
- Thread rule: any thread, as a lane places partitions while its next fetch is under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, inf

from fastq._native.records import iter_headers
from fastq.admin.config import AdminConfig
from fastq.errors import ConnectionFailed, FastqError, LeaderNotAvailable, ThrottlingQuotaExceeded, error_for_code
from fastq.metadata import TopicPartition
from fastq.mirror.config import Side
from fastq.net.batches import Fetched as Fetched
from fastq.net.batches import Wanted as Wanted
from fastq.net.batches import fetch
from fastq.net.client import BlockingClient
from fastq.net.operations import Call, Leader, Operation, Route, ask_nodes
from fastq.protocol import messages as m
from fastq.values import NamedTuple

CALL_S = 30.0
LEADERS_S = 1.0


class Batch(NamedTuple):
    """What tells a batch from others, in both clusters: compaction leaves it, but for records that go."""

    base_offset: int
    last_offset: int
    producer: tuple[int, int, int]
    records: int
    max_timestamp: int

    def is_same(self, other: Batch) -> bool:
        if self[:3] != other[:3]:
            return False
        return self.records != other.records or self.max_timestamp == other.max_timestamp


def leaders_of(client: BlockingClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The nodes that lead them, as far as the cluster says so within LEADERS_S: after `ask_for_leaders`, as it says from then on. A request
    that leaves while nobody looks at a topic would not name it, and who led it would be taken to lead it for ever."""
    core, driver, wanted = client.core, client.driver, list(partitions)
    updater, topics = core.metadata_updater, {tp.topic for tp in wanted}

    def known() -> bool:
        return all(core.metadata.leader(*tp) is not None for tp in wanted)

    with driver.lock:
        updater.look_at(topics)  # not for longer: one that is deleted would be asked for without an end
        try:
            if updater.is_wanted or not known():
                asked = updater.requests
                core.request_metadata_update("leaders of mirrored partitions are not known")
                driver.wait_until(lambda: updater.answered > asked and known(), LEADERS_S)
            found = ((tp, core.metadata.leader(*tp)) for tp in wanted)
            return {tp: leader.node_id for tp, leader in found if leader is not None}
        finally:
            updater.look_away(topics)


def ask_for_leaders(client: BlockingClient, reason: str) -> None:
    """Have the leaders looked up anew: what was refused may have gone to another."""
    with client.driver.lock:
        client.core.request_metadata_update(reason)


class SourceReader:
    """A client of the source."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.client = BlockingClient(AdminConfig.from_mapping(side.common), CALL_S)

    def close(self) -> None:
        self.client.close()

    def fetch(
        self,
        wanted: Mapping[TopicPartition, Wanted],
        wait_ms: int,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, Fetched | FastqError]:
        """What there is of each partition, after `wait_ms` at most where there is nothing at all: one batch at least. The first ones come
        first where there is more than fits, and those on nodes that a quota mutes are left out. Raises why nothing came within `timeout_s`
        (None: CALL_S)."""
        leaders = leaders_of(self.client, wanted)
        by_node: dict[int, dict[TopicPartition, Wanted]] = {}
        found: dict[TopicPartition, Fetched | FastqError] = {}
        for tp, asked in wanted.items():
            if tp in leaders:
                by_node.setdefault(leaders[tp], {})[tp] = asked
            else:
                found[tp] = LeaderNotAvailable(f"{tp} has no known leader in {self.side.alias}")
        if by_node:
            heard, muted_s, left_s = self._heard(by_node)
            timeout_s = CALL_S + muted_s if timeout_s is None else timeout_s
            wait_ms = wait_ms if len(heard) == 1 else min(wait_ms, 100)  # others wait for who has nothing
            wait_ms = ceil(min(wait_ms, left_s * 1000))  # so do those that may be asked soon
            routes: dict[Route, dict[TopicPartition, Wanted]] = {
                Leader(*next(iter(of_node))): of_node for of_node in heard.values()
            }
            try:
                found |= self.client.run(fetch(routes, wait_ms), timeout_s)
            except ConnectionFailed as error:
                if len(heard) == len(by_node):
                    raise
                for of_node in heard.values():  # the others may be well
                    found |= dict.fromkeys(of_node, error)
        if any(
            isinstance(answer, FastqError) and not isinstance(answer, ThrottlingQuotaExceeded)
            for answer in found.values()
        ):
            ask_for_leaders(self.client, "a fetch of the mirror was refused")
        return found

    def _heard(
        self, by_node: dict[int, dict[TopicPartition, Wanted]]
    ) -> tuple[dict[int, dict[TopicPartition, Wanted]], float, float]:
        """The nodes that no quota keeps from being asked, or else the one that may be first, and in how many seconds that is: nobody waits
        for the answer of one that is muted. What is on the others is asked for next time: the first of them may be so much later."""
        core = self.client.core
        with self.client.driver.lock:
            now = core.clock()
            muted_s = {node_id: core.throttled_until(node_id) - now for node_id in by_node}
        heard = {node_id: of_node for node_id, of_node in by_node.items() if muted_s[node_id] <= 0}
        first_s = 0.0
        if not heard:
            first = min(by_node, key=muted_s.__getitem__)
            heard, first_s = {first: by_node[first]}, muted_s[first]
        left = [seconds for node_id, seconds in muted_s.items() if node_id not in heard]
        return heard, first_s, min(left, default=inf) - first_s

    def batch_at(self, tp: TopicPartition, topic_id: bytes, offset: int) -> Batch | None:
        """The batch that has this offset, None where none has: compaction has left others. Raises why it cannot be read."""
        answer = self.fetch({tp: Wanted(topic_id, offset, bytes_max=1)}, 0)[tp]
        if isinstance(answer, FastqError):
            raise answer
        for _, header in iter_headers(answer.records):
            if header.base_offset > offset:
                return None
            producer = header.producer_id, header.producer_epoch, header.base_sequence
            return Batch(header.base_offset, header.last_offset, producer, header.record_count, header.max_timestamp)
        return None

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int] | FastqError]:
        """Of each partition the largest epoch up to this one, and where it ends."""
        leaders = leaders_of(self.client, epochs)
        by_node: dict[int, list[TopicPartition]] = {}
        found: dict[TopicPartition, tuple[int, int] | FastqError] = {}
        for tp in epochs:
            if tp in leaders:
                by_node.setdefault(leaders[tp], []).append(tp)
            else:
                found[tp] = LeaderNotAvailable(f"{tp} has no known leader in {self.side.alias}")
        if by_node:
            found |= self.client.run(_epoch_ends(by_node, epochs))
        if any(isinstance(answer, FastqError) for answer in found.values()):
            ask_for_leaders(self.client, "a question of the mirror was refused")
        return found


def _epoch_ends(
    by_node: Mapping[int, Iterable[TopicPartition]], epochs: Mapping[TopicPartition, int]
) -> Operation[dict[TopicPartition, tuple[int, int] | FastqError]]:
    calls = []
    for partitions in by_node.values():
        topics: dict[str, m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = {}
        for tp in partitions:
            topic = topics.setdefault(tp.topic, m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=tp.topic))
            topic.partitions.append(
                m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=tp.partition, leader_epoch=epochs[tp])
            )
        request = m.OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.values()))
        calls.append(Call(Leader(*next(iter(partitions))), request, (3, 32767)))
    answers = yield from ask_nodes(calls)
    found: dict[TopicPartition, tuple[int, int] | FastqError] = {}
    for partitions, answer in zip(by_node.values(), answers, strict=True):
        if isinstance(answer, FastqError):
            found.update(dict.fromkeys(partitions, answer))
            continue
        for topic in answer.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.topic, part.partition)
                failed = part.error_code
                found[tp] = error_for_code(failed) if failed else (part.leader_epoch, part.end_offset)
    return found
