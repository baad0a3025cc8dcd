"""ListOffsets and OffsetForLeaderEpoch: building them, reading them, and queries of many partitions that follow their leaders. Sans-I/O.

Source: Kafka's OffsetFetcher.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from fastq.consumer.effects import Outgoing
from fastq.errors import ErrorCode, FastqError, LeaderNotAvailable, UnknownTopicOrPartition, error_for_code
from fastq.metadata import ClusterMetadata, TopicMetadata, TopicPartition
from fastq.net.diagnosis import no_leader
from fastq.net.metadata_updater import MetadataUpdater
from fastq.net.troubles import Troubles
from fastq.protocol.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from fastq.values import NamedTuple

LIST_OFFSETS_API = 2
LEADER_EPOCH_API = 23
RETRY_S = 0.1
# A topic or a partition may be in creation: not known for so long is an error.
UNKNOWN_GRACE_S = 3.0
# The broker is not, or not yet, the one to ask: learn who is, and ask again.
MOVED: frozenset[int] = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a point in time. timestamp_ms: its own. leader_epoch: -1 when unknown."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


def list_offsets_request(
    targets: Iterable[tuple[TopicPartition, int, int]], read_committed: bool
) -> ListOffsetsRequest:
    """A request for (partition, current leader epoch, timestamp or special value)."""
    topics: dict[str, ListOffsetsRequest.ListOffsetsTopic] = {}
    for tp, leader_epoch, timestamp in targets:
        topic = topics.get(tp.topic)
        if topic is None:
            topic = topics[tp.topic] = ListOffsetsRequest.ListOffsetsTopic(name=tp.topic, partitions=[])
        topic.partitions.append(
            ListOffsetsRequest.ListOffsetsPartition(
                partition_index=tp.partition, current_leader_epoch=leader_epoch, timestamp=timestamp
            )
        )
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=1 if read_committed else 0, topics=list(topics.values()), timeout_ms=0
    )


def offsets_answered(
    response: ListOffsetsResponse,
) -> dict[TopicPartition, ListOffsetsResponse.ListOffsetsPartitionResponse]:
    """The answer by partition."""
    return {
        TopicPartition(topic.name, part.partition_index): part for topic in response.topics for part in topic.partitions
    }


def leader_epochs_request(targets: Iterable[tuple[TopicPartition, int, int]]) -> OffsetForLeaderEpochRequest:
    """OffsetForLeaderEpoch for (partition, its leader's epoch, the epoch that is asked about)."""
    topics: dict[str, OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = {}
    for tp, current, epoch in targets:
        topic = topics.setdefault(
            tp.topic, OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=tp.topic, partitions=[])
        )
        topic.partitions.append(
            OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                partition=tp.partition, current_leader_epoch=current, leader_epoch=epoch
            )
        )
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.values()))


def epoch_ends_answered(
    response: OffsetForLeaderEpochResponse,
) -> dict[TopicPartition, OffsetForLeaderEpochResponse.EpochEndOffset]:
    """The answer by partition."""
    return {TopicPartition(topic.topic, part.partition): part for topic in response.topics for part in topic.partitions}


def unknown_topic(name: str) -> UnknownTopicOrPartition:
    """The error of a topic that has not been there for UNKNOWN_GRACE_S."""
    return UnknownTopicOrPartition("no broker knows the topic; create it, or look at its name", topic=name)


def _refusal_by(topic: TopicMetadata, partition: int) -> FastqError | None:
    """Why offsets of the partition cannot be asked for, as the metadata has its topic; None where they can, or may soon."""
    if topic.error == 0 and not 0 <= partition < len(topic.partitions):
        what = f"there is no such partition: the topic has {len(topic.partitions)}"
        return UnknownTopicOrPartition(what, topic=topic.name, partition=partition)
    error = error_for_code(topic.error, topic=topic.name, api="Metadata") if topic.error else None
    return None if error is None or error.retriable else error


class OffsetQuery:
    """Where some points in time lie, in the logs of some partitions.

    Invariants: `missing` are the partitions without an answer, each in at most one request on its way. Finished when nothing is
    missing, or with `error`. What may pass is told of by `troubles` when it lasts; that a topic is not there is an error by then, and what
    the metadata refuses once a request was answered that was sent since: a topic may have been allowed by then, or have got partitions.
    """

    API = LIST_OFFSETS_API

    def __init__(
        self,
        metadata: ClusterMetadata,
        updater: MetadataUpdater,
        targets: Mapping[TopicPartition, int],
        read_committed: bool,
        troubles: Troubles,
    ) -> None:
        self.metadata = metadata
        self.updater = updater
        self.troubles = troubles
        self.missing = dict(targets)
        self.results: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        self.error: FastqError | None = None
        self.wants_metadata: str | None = None
        self._read_committed = read_committed
        self._requests_before = updater.requests
        self._asked: set[TopicPartition] = set()
        self._retry_at = 0.0
        self._unknown_since: dict[str, float] = {}

    @property
    def finished(self) -> bool:
        """True when there is nothing to wait for."""
        return self.error is not None or not self.missing

    def answers(self, targets: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The results in the order asked, None where no record is that young; raises what went wrong."""
        if self.error is not None:
            raise self.error
        return {tp: self.results[tp] for tp in targets}

    def end(self) -> None:
        """Nobody waits for it any more."""
        for tp in self.missing:
            self.troubles.forget((self, tp))

    def next_wakeup(self, now: float) -> float | None:
        """Seconds until something is to be tried again."""
        due = [since + UNKNOWN_GRACE_S for since in self._unknown_since.values()]
        if self._retry_at > now:
            due.append(self._retry_at)
        return max(0.0, min(due) - now) if due else None

    def requests(self, now: float, can_send: Callable[[int], bool]) -> list[Outgoing]:
        """What to send now."""
        self._look_for_topics(now)
        if now < self._retry_at:
            return []
        nodes: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for tp in self.missing:
            if tp not in self._asked:
                leader = self.metadata.leader(*tp)
                topic = self.metadata.topic(tp.topic)
                refusal = None if topic is None else _refusal_by(topic, tp.partition)
                if refusal is not None and self.updater.answered > self._requests_before:
                    self.error = refusal
                elif refusal is not None:
                    self._again(now, f"{tp} was refused before")
                elif leader is None:
                    self.wants_metadata = f"{tp} has no known leader"
                    self._passing(tp, partial(no_leader, self.metadata, *tp), LeaderNotAvailable, now)
                else:
                    nodes[leader.node_id].append(tp)
        ready = [(node_id, tps) for node_id, tps in nodes.items() if can_send(node_id)]
        out = [self._ask(node_id, tps) for node_id, tps in ready]
        # Once they are made: there may be no memory for all of them.
        self._asked = self._asked.union(*(tps for _, tps in ready))
        return out

    def _look_for_topics(self, now: float) -> None:
        """Those that the cluster says it does not have, and since when."""
        gone = {tp.topic for tp in self.missing if self.metadata.is_gone(tp.topic)}
        self._unknown_since = {name: self._unknown_since.get(name, now) for name in gone}
        late = [name for name, since in self._unknown_since.items() if now >= since + UNKNOWN_GRACE_S]
        if late and self.error is None:
            self.error = unknown_topic(min(late))

    def _ask(self, node_id: int, tps: list[TopicPartition]) -> Outgoing:
        targets = []
        for tp in tps:
            found = self.metadata.partition(*tp)
            targets.append((tp, -1 if found is None else found.leader_epoch, self.missing[tp]))
        request = self._request(targets)

        def done(response: Any, error: FastqError | None, now: float) -> None:
            self._asked.difference_update(tps)
            if response is None:
                if error is not None and not error.retriable:
                    self.error = error
                self._again(now, f"offsets could not be asked for: {error}")
            else:
                self._answered(node_id, tps, response, now)

        return Outgoing(node_id, self.API, lambda version: request, None, done)

    def _request(self, targets: list[tuple[TopicPartition, int, int]]) -> Any:
        """The request for (partition, its leader's epoch, what is asked about it)."""
        return list_offsets_request(targets, self._read_committed)

    def _answers_in(self, response: Any) -> Mapping[TopicPartition, Any]:
        return offsets_answered(response)

    def _found_in(self, answer: Any) -> OffsetAndTimestamp | None:
        return None if answer.offset < 0 else OffsetAndTimestamp(answer.offset, answer.timestamp, answer.leader_epoch)

    def _again(self, now: float, why: str) -> None:
        self.wants_metadata = why
        self._retry_at = now + RETRY_S

    def _answered(self, node_id: int, tps: list[TopicPartition], response: Any, now: float) -> None:
        answers = self._answers_in(response)
        for tp in tps:
            answer = answers.get(tp)
            code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer.error_code
            if answer is None or code in MOVED:
                self._again(now, f"{tp} moved")
                self._passing(tp, partial(self._refusal, node_id, tp, code), code, now)
            elif code != 0:
                self.error = self._refusal(node_id, tp, code)
            else:
                self.troubles.over((self, tp), now)
                del self.missing[tp]
                self.results[tp] = self._found_in(answer)

    def _passing(
        self, tp: TopicPartition, error: FastqError | Callable[[], FastqError], cause: object, now: float
    ) -> None:
        self.troubles.failed((self, tp), "asked for its offsets", error, now, name=str(tp), cause=cause)

    def _refusal(self, node_id: int, tp: TopicPartition, code: int) -> FastqError:
        broker = str(self.metadata.nodes.get(node_id, node_id))
        what = "its offset could not be learned"
        return error_for_code(code, what, broker=broker, topic=tp.topic, partition=tp.partition)


class EpochEndQuery(OffsetQuery):
    """Where leader epochs end in the logs of some partitions, as their leaders of now have them (KIP-320): the targets are epochs, and a
    result is None where the leader knows none up to that one."""

    API = LEADER_EPOCH_API

    def _request(self, targets: list[tuple[TopicPartition, int, int]]) -> Any:
        return leader_epochs_request(targets)

    def _answers_in(self, response: Any) -> Mapping[TopicPartition, Any]:
        return epoch_ends_answered(response)

    def _found_in(self, answer: Any) -> OffsetAndTimestamp | None:
        return None if answer.end_offset < 0 else OffsetAndTimestamp(answer.end_offset, -1, answer.leader_epoch)


def offsets_of(found: Mapping[TopicPartition, OffsetAndTimestamp | None]) -> dict[TopicPartition, int]:
    """The offsets alone, of the ends of logs, which always have one."""
    return {tp: -1 if place is None else place.offset for tp, place in found.items()}


def epochs_of(found: Mapping[TopicPartition, OffsetAndTimestamp | None]) -> dict[TopicPartition, int]:
    """The leader epochs of the offsets, where brokers tell them."""
    return {tp: place.leader_epoch for tp, place in found.items() if place is not None and place.leader_epoch >= 0}
