"""Batches of a source as they lie there: fetched as a consumer that reads uncommitted records, and not opened.

Rules
- Topics are named by their ids where the source's Fetch does (version 13), so that one that was made anew is not taken for the one before.
- The epoch of the last batch goes along (version 12), so that a source that was truncated says so before it sends another history.
- What an answer begins with and lies before what was asked for, as a compressed batch does, is left out; so is a batch that is cut off.
  What is wrong is told when nothing whole comes before it.
- A request goes to who leads the first partition in it, by the metadata of the moment: also when it is sent again, after a leader died.
- Thread rule: any thread, as a lane places partitions while its next fetch is under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastq._native.records import iter_headers
from fastq.admin.config import AdminConfig
from fastq.errors import CorruptMessage, FastqError, LeaderNotAvailable, UnknownServerError, error_for_code
from fastq.metadata import TopicPartition
from fastq.mirror.config import Side
from fastq.net.client import BlockingClient
from fastq.net.operations import Call, Leader, Operation
from fastq.net.requests import VersionedRequest
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey
from fastq.values import NamedTuple

FETCH_VERSIONS = (4, 32767)
EPOCHS_FROM, IDS_FROM = 12, 13
RESPONSE_BYTES, PARTITION_BYTES = 4 * 1024 * 1024, 4 * 1024 * 1024
"""With what surrounds it, an answer goes into a request whose buffer the target's broker keeps for the next one."""
CALL_S = 30.0
LEADERS_S = 1.0


class Wanted(NamedTuple):
    """Of a partition that is fetched: the source's id of its topic, the offset to go on at, and the epoch of the batch before; -1: not
    known."""

    topic_id: bytes
    offset: int
    epoch: int = -1


class Fetched(NamedTuple):
    """`records` are whole batches, as many records as `amount`, up to `next_offset`; `epochs` those that begin in them, with their first
    offsets; `newest_ms` the last batch's time (-1: none). `asked` is the offset that was asked for; `diverged`: the source has another
    history than who asked."""

    asked: int
    records: memoryview
    next_offset: int
    amount: int
    epochs: tuple[tuple[int, int], ...]
    log_start: int
    high_watermark: int
    diverged: bool = False
    newest_ms: int = -1


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
    """The nodes that lead them, as far as the cluster says so within LEADERS_S."""
    core, driver, wanted = client.core, client.driver, list(partitions)
    topics = {tp.topic for tp in wanted}

    def known() -> bool:
        return all(core.metadata.leader(*tp) is not None for tp in wanted)

    with driver.lock:
        core.metadata_updater.look_at(topics)  # not for longer: one that is deleted would be asked for without an end
        try:
            if not known():
                core.request_metadata_update("leaders of mirrored partitions are not known")
                driver.wait_until(known, LEADERS_S)
            found = ((tp, core.metadata.leader(*tp)) for tp in wanted)
            return {tp: leader.node_id for tp, leader in found if leader is not None}
        finally:
            core.metadata_updater.look_away(topics)


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
        partition_bytes: int = PARTITION_BYTES,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, Fetched | FastqError]:
        """What there is of each partition, after `wait_ms` at most where there is nothing at all: about so many bytes, and one batch at
        least. The first ones come first where there is more than fits. Raises why nothing came within `timeout_s` (None: CALL_S)."""
        leaders = leaders_of(self.client, wanted)
        by_node: dict[int, dict[TopicPartition, Wanted]] = {}
        found: dict[TopicPartition, Fetched | FastqError] = {}
        for tp, asked in wanted.items():
            if tp in leaders:
                by_node.setdefault(leaders[tp], {})[tp] = asked
            else:
                found[tp] = LeaderNotAvailable(f"{tp} has no known leader in {self.side.alias}")
        if by_node:
            wait_ms = wait_ms if len(by_node) == 1 else min(wait_ms, 100)  # others wait for who has nothing
            found |= self.client.run(_fetch(by_node, wait_ms, partition_bytes), timeout_s)
        if any(isinstance(answer, FastqError) for answer in found.values()):
            ask_for_leaders(self.client, "a fetch of the mirror was refused")
        return found

    def batch_at(self, tp: TopicPartition, topic_id: bytes, offset: int) -> Batch | None:
        """The batch that has this offset, None where none has: compaction has left others. Raises why it cannot be read."""
        answer = self.fetch({tp: Wanted(topic_id, offset)}, 0, 1)[tp]
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
        return found | (self.client.run(_epoch_ends(by_node, epochs)) if by_node else {})


def _fetch(
    by_node: Mapping[int, Mapping[TopicPartition, Wanted]], wait_ms: int, partition_bytes: int
) -> Operation[dict[TopicPartition, Fetched | FastqError]]:
    found: dict[TopicPartition, Fetched | FastqError] = {}
    calls = [
        Call(
            Leader(*next(iter(wanted))),
            VersionedRequest(ApiKey.FETCH, _request(wanted, wait_ms, partition_bytes)),
            FETCH_VERSIONS,
        )
        for wanted in by_node.values()
    ]
    answers = yield calls
    for wanted, answer in zip(by_node.values(), answers, strict=True):
        if isinstance(answer, FastqError):
            found.update(dict.fromkeys(wanted, answer))
            continue
        if answer.error_code:
            found.update(dict.fromkeys(wanted, error_for_code(answer.error_code)))
            continue
        names = {asked.topic_id: tp.topic for tp, asked in wanted.items()}
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                tp = TopicPartition(name, data.partition_index)
                if tp in wanted:
                    found[tp] = _read(tp, wanted[tp], data)
        for tp in wanted:
            found.setdefault(tp, UnknownServerError(f"the answer leaves {tp} out"))
    return found


def _request(wanted: Mapping[TopicPartition, Wanted], wait_ms: int, partition_bytes: int) -> Any:
    def build(version: int) -> m.FetchRequest:
        topics: dict[str, m.FetchRequest.FetchTopic] = {}
        for tp, asked in wanted.items():
            if tp.topic not in topics:
                by_id = version >= IDS_FROM
                topics[tp.topic] = (
                    m.FetchRequest.FetchTopic(topic_id=asked.topic_id)
                    if by_id
                    else m.FetchRequest.FetchTopic(topic=tp.topic)
                )
            topics[tp.topic].partitions.append(
                m.FetchRequest.FetchPartition(
                    partition=tp.partition,
                    fetch_offset=asked.offset,
                    last_fetched_epoch=asked.epoch if version >= EPOCHS_FROM else -1,
                    partition_max_bytes=partition_bytes,
                )
            )
        return m.FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=RESPONSE_BYTES, topics=list(topics.values()))

    return build


def _read(tp: TopicPartition, asked: Wanted, data: m.FetchResponse.PartitionData) -> Fetched | FastqError:
    if data.error_code:
        return error_for_code(data.error_code, topic=tp.topic, partition=tp.partition)
    nothing = memoryview(b"")
    log_start, high_watermark = data.log_start_offset, data.high_watermark
    if data.diverging_epoch is not None and data.diverging_epoch.end_offset >= 0:
        return Fetched(asked.offset, nothing, asked.offset, 0, (), log_start, high_watermark, diverged=True)
    records = memoryview(data.records or b"")
    begin, end, next_offset, amount = -1, 0, asked.offset, 0
    newest_ms = -1
    epochs: list[tuple[int, int]] = []
    wrong: FastqError | None = None
    try:
        for position, header in iter_headers(records):
            if header.last_offset < header.base_offset:
                wrong = _damaged(
                    tp, next_offset, f"a batch from {header.base_offset} to last offset {header.last_offset}"
                )
                break
            if header.last_offset < asked.offset:
                wrong = _damaged(tp, next_offset, f"a batch that ends at offset {header.last_offset}")
                continue
            if begin < 0:
                begin = position
            if not epochs or header.partition_leader_epoch > epochs[-1][0]:
                epochs.append((header.partition_leader_epoch, header.base_offset))
            end, next_offset = position + header.size_bytes, header.next_offset
            amount += header.record_count
            newest_ms = header.max_timestamp
    except ValueError as error:
        wrong = UnknownServerError(
            f"{tp}: what the source has at offset {next_offset} is no batch of magic 2, and cannot be copied as it is: {error}",
            hint='a mirror without offsets = "same" copies records of all formats',
        )
    if wrong is not None and begin < 0:
        return wrong
    whole = records[begin:end] if begin >= 0 else nothing
    return Fetched(
        asked.offset, whole, next_offset, amount, tuple(epochs), log_start, high_watermark, newest_ms=newest_ms
    )


def _damaged(tp: TopicPartition, offset: int, what: str) -> CorruptMessage:
    return CorruptMessage(
        f"what the source has at offset {offset} is {what}",
        topic=tp.topic,
        partition=tp.partition,
        hint="The log of the source's broker is damaged: have it copied anew from another replica",
    )


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
    answers = yield calls
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
