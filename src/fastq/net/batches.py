"""Batches as they lie in a log of another broker: fetched as a consumer that reads uncommitted records, and not opened.

Rules of this file:
- Topics are named by their ids where Fetch does (version 13), so that one that was made anew is not taken for the one before.
- The epoch of the last batch goes along (version 12), so that a log that was truncated says so before it sends another history.
- What an answer begins with and lies before what was asked for, as a compressed batch does, is left out; so is a batch that is cut off.
  What is wrong is told when nothing whole comes before it.
- A broker that throttles who asks by a quota may answer at once with nothing at all, as Apache Kafka does: that is told as
  ThrottlingQuotaExceeded of each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastq._native.records import iter_headers
from fastq.errors import CorruptMessage, FastqError, ThrottlingQuotaExceeded, UnknownServerError, error_for_code
from fastq.metadata import TopicPartition
from fastq.net.operations import Call, Operation, Route, ask_nodes
from fastq.net.requests import VersionedRequest
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey
from fastq.values import NamedTuple

EPOCHS_FROM, IDS_FROM = 12, 13
FETCH_VERSIONS = (4, 32767)
RESPONSE_BYTES, PARTITION_BYTES = 4 * 1024 * 1024, 4 * 1024 * 1024


class Wanted(NamedTuple):
    """Of a partition that is fetched: the id that its topic has there, the offset to go on at, the epoch of the batch before (-1: not
    known), and about how many bytes are wanted."""

    topic_id: bytes
    offset: int
    epoch: int = -1
    bytes_max: int = PARTITION_BYTES


class Fetched(NamedTuple):
    """`records` are whole batches, as many records as `amount`, up to `next_offset`; `epochs` those that begin in them, with their first
    offsets; `newest_ms` the last batch's time (-1: none). `asked` is the offset that was asked for; `diverged`: the log has another
    history than who asked. For `throttle_ms` the broker answers nothing more on the connection, by a quota (0: it does)."""

    asked: int
    records: memoryview
    next_offset: int
    amount: int
    epochs: tuple[tuple[int, int], ...]
    log_start: int
    high_watermark: int
    diverged: bool = False
    newest_ms: int = -1
    throttle_ms: int = 0


def fetch(
    wanted_of: Mapping[Route, Mapping[TopicPartition, Wanted]],
    wait_ms: int,
    *,
    response_bytes: int = RESPONSE_BYTES,
    versions: tuple[int, int] = FETCH_VERSIONS,
) -> Operation[dict[TopicPartition, Fetched | FastqError]]:
    """What there is of each partition, asked of the broker that is given for it: after `wait_ms` at most where there is nothing at all. Of
    each broker an answer has about `response_bytes`, one batch at least, and the first partitions come first."""
    found: dict[TopicPartition, Fetched | FastqError] = {}
    calls = [
        Call(
            route,
            VersionedRequest(ApiKey.FETCH, _request(wanted, wait_ms, response_bytes)),
            versions,
        )
        for route, wanted in wanted_of.items()
    ]
    answers = yield from ask_nodes(calls)
    for wanted, answer in zip(wanted_of.values(), answers, strict=True):
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
                    part = read(tp, wanted[tp], data)
                    if answer.throttle_time_ms > 0 and isinstance(part, Fetched):
                        part = part._replace(throttle_ms=answer.throttle_time_ms)
                    found[tp] = part
        for tp in wanted:
            if tp not in found:
                found[tp] = _left_out(tp, answer.throttle_time_ms)
    return found


def _left_out(tp: TopicPartition, throttle_ms: int) -> FastqError:
    if throttle_ms > 0:
        return ThrottlingQuotaExceeded(
            f"a quota of the source keeps it from answering for {throttle_ms} ms",
            topic=tp.topic,
            partition=tp.partition,
        )
    return UnknownServerError(f"the answer leaves {tp} out")


def _request(
    wanted: Mapping[TopicPartition, Wanted], wait_ms: int, response_bytes: int
) -> Callable[[int], m.FetchRequest]:
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
                    partition_max_bytes=asked.bytes_max,
                )
            )
        return m.FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=response_bytes, topics=list(topics.values()))

    return build


def read(tp: TopicPartition, asked: Wanted, data: m.FetchResponse.PartitionData) -> Fetched | FastqError:
    """What an answer has of a partition."""
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


def up_to_epoch(found: Fetched, epoch: int) -> tuple[Fetched, int]:
    """What of it was written under leaders up to this epoch, and the epoch of the batch behind that; -1 where it is all of it."""
    if not found.epochs or found.epochs[-1][0] <= epoch:
        return found, -1
    end, next_offset, amount, newest_ms, later = 0, found.asked, 0, -1, -1
    for position, header in iter_headers(found.records):
        if header.partition_leader_epoch > epoch:
            later = header.partition_leader_epoch
            break
        end, next_offset, newest_ms = position + header.size_bytes, header.next_offset, header.max_timestamp
        amount += header.record_count
    epochs = tuple(begun for begun in found.epochs if begun[0] <= epoch)
    kept = found._replace(
        records=found.records[:end], next_offset=next_offset, amount=amount, epochs=epochs, newest_ms=newest_ms
    )
    return kept, later
