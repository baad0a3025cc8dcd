"""Whether the replicas of a partition have the same records: every node is read from, as a consumer that asks that very node.

Rules of this file:
- Read is from the first offset that all have to the leader's high watermark at the start, side by side and batch by batch: a batch is the
  same when its offsets, leader epoch and checksum are, and its checksum is that of its bytes. Memory is bounded by what one answer has of
  each replica.
- A consumer's rack is not told, so that no node names another one to read from (KIP-392). A replica that gets no further in
  `PATIENCE` answers of half a second is behind.
- Where a node lets nobody read from it as a follower, or the topic is compacted (every node cleans its own log), the ends of the logs are
  compared, as ListOffsets tells them to who debugs (replica id -2); where that is refused too, the bytes on disk, which say nothing of logs
  that were cleaned. The report says which.
- The first difference of a replica ends its reading.
- A node that cannot be reached costs one try: its replica is not read, and the report says why. Without the leader nothing is compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fastq._native.records import iter_headers, verify_crc
from fastq.admin.core import _error
from fastq.admin.shown import ask_once
from fastq.errors import FastqError, NotLeaderOrFollower, OffsetNotAvailable, OffsetOutOfRange, UnsupportedVersion
from fastq.metadata import TopicPartition
from fastq.net.operations import Call, Found, Operation
from fastq.protocol import messages as m

READ_BYTES = 1024 * 1024
WAIT_MS = 500
PATIENCE = 20
CONSUMER, DEBUGGING_CONSUMER = -1, -2
EARLIEST, LATEST = -2, -1
FETCH_VERSIONS = (11, 12)
"""Followers serve consumers from 11 on; from 13 on topics are named by their ids."""
HAS_REPLICA = "which has a replica"
LIST_VERSIONS = (4, 32767)
"""With leader epochs."""


@dataclass(slots=True)
class ReplicaReport:
    """What was found of one replica.

    `state`: "same", "differs", "behind", "unread". `compared`: "records", "ends" or "bytes", None where nothing could be. `end` is the
    offset up to which it was read, or its log's end. `detail` says more about anything but "same".
    """

    node_id: int
    is_leader: bool
    state: str = "same"
    compared: str | None = None
    start: int | None = None
    end: int | None = None
    detail: str | None = None

    def note(self, state: str, detail: str) -> None:
        self.state, self.detail = state, detail


class _Batch(NamedTuple):
    base: int
    last: int
    epoch: int
    crc: int


@dataclass(slots=True)
class _Reader:
    """One replica that is read: `batches` were fetched and not compared yet, `position` is the offset behind them."""

    report: ReplicaReport
    position: int
    batches: deque[_Batch] = field(default_factory=deque)
    idle: int = 0


def compare_replicas(
    partition: TopicPartition, nodes: Sequence[int], leader_id: int, *, compacted: bool
) -> Operation[list[ReplicaReport]]:
    """What each node has of a partition, compared with the leader."""
    reports = {node: ReplicaReport(node, node == leader_id) for node in [leader_id, *nodes]}
    left = [report for report in reports.values() if not report.is_leader]
    if not compacted:
        left = yield from _compare_records(partition, reports)
    if left:
        yield from _compare_ends(partition, reports[leader_id], left, or_bytes=not compacted)
    return [reports[node] for node in sorted(reports)]


# -- records -----------------------------------------------------------------------------------------------------------------


def _compare_records(partition: TopicPartition, reports: Mapping[int, ReplicaReport]) -> Operation[list[ReplicaReport]]:
    """Read and compare all that can be read; those that are refused."""
    leader = next(report for report in reports.values() if report.is_leader)
    start, _ = yield from _list_offset(partition, leader.node_id, EARLIEST, CONSUMER)
    target, _ = yield from _list_offset(partition, leader.node_id, LATEST, CONSUMER)
    refused: list[ReplicaReport] = []
    readers: list[_Reader] = []
    answers = yield [_fetch(partition, node, target, wait_ms=0) for node in reports]
    for report, answer in zip(reports.values(), answers, strict=True):
        found = _read_answer(partition, answer, report)
        if isinstance(found, (NotLeaderOrFollower, UnsupportedVersion)) and not report.is_leader:
            refused.append(report)
        elif isinstance(found, (OffsetOutOfRange, OffsetNotAvailable)):
            readers.append(_Reader(report, start))  # behind so far: its log's start is not told with that
        elif isinstance(found, FastqError):
            report.note("unread", str(found))
        else:
            start = max(start, found.log_start_offset)
            readers.append(_Reader(report, start))
    for reader in readers:
        reader.position = reader.report.start = reader.report.end = start
        reader.report.compared = "records"
    yield from _read_on(partition, readers, target)
    return refused


def _read_on(partition: TopicPartition, readers: list[_Reader], target: int) -> Operation[None]:
    """Fetch and compare until every reader is at the target, or is not read any more."""
    while True:
        live = [reader for reader in readers if reader.report.state == "same"]
        wanting = [reader for reader in live if not reader.batches and reader.position < target]
        if wanting:
            answers = yield [_fetch(partition, r.report.node_id, r.position, wait_ms=WAIT_MS) for r in wanting]
            for reader, answer in zip(wanting, answers, strict=True):
                _take(partition, reader, answer, target)
        elif any(reader.batches for reader in live):
            _compare_heads(live)
        else:
            return


def _take(partition: TopicPartition, reader: _Reader, answer: object, target: int) -> None:
    """The batches of an answer, or why there are none."""
    report = reader.report
    found = _read_answer(partition, answer, report)
    if isinstance(found, FastqError) and not isinstance(found, (OffsetOutOfRange, OffsetNotAvailable)):
        report.note("unread", str(found))
        return
    records = b"" if isinstance(found, FastqError) else bytes(found.records or b"")
    before = reader.position
    for position, header in iter_headers(records):
        if header.last_offset < reader.position:
            continue  # a compressed batch that began before
        if not verify_crc(records, position):
            report.note(
                "differs", f"the batch at offset {header.base_offset} is damaged: its checksum is not that of its bytes"
            )
            return
        reader.batches.append(_Batch(header.base_offset, header.last_offset, header.partition_leader_epoch, header.crc))
        reader.position = header.last_offset + 1
        if reader.position >= target:
            break
    reader.idle = reader.idle + 1 if reader.position == before else 0
    report.end = reader.position
    if reader.idle >= PATIENCE:
        report.note("behind", f"it has nothing at offset {before} yet; the leader's high watermark was {target}")


def _compare_heads(live: Sequence[_Reader]) -> None:
    """Compare what was read, batch by batch, with the leader's, or where that is not read, with the first one's.

    Whoever has no batch here is at the target: the others have one where it has none.
    """
    against = next((reader for reader in live if reader.report.is_leader), live[0])
    others = [reader for reader in live if reader is not against]
    whose = _whose(against.report)
    for reader in others:
        if not reader.batches and against.batches:
            reader.report.note("differs", f"it has no batch at offset {against.batches[0].base}, and {whose} has")
        elif reader.batches and not against.batches:
            reader.report.note("differs", f"it has a batch at offset {reader.batches[0].base}, and {whose} has none")
    others = [reader for reader in others if reader.report.state == "same"]
    while against.batches and all(reader.batches for reader in others):
        expected = against.batches.popleft()
        for reader in others:
            found = reader.batches.popleft()
            if found != expected:
                reader.report.note("differs", _difference(found, expected, whose))
        others = [reader for reader in others if reader.report.state == "same"]


def _whose(report: ReplicaReport) -> str:
    return "the leader" if report.is_leader else f"node {report.node_id}"


def _difference(found: _Batch, expected: _Batch, whose: str) -> str:
    """The first field that is another one, in words."""
    for name, mine, other in (
        ("begins at offset", found.base, expected.base),
        ("ends at offset", found.last, expected.last),
        ("has leader epoch", found.epoch, expected.epoch),
        ("has checksum", found.crc, expected.crc),
    ):
        if mine != other:
            return f"its batch at offset {found.base} {name} {mine}, that of {whose} {other}"
    raise AssertionError("two batches that are the same")


def _fetch(partition: TopicPartition, node_id: int, offset: int, *, wait_ms: int) -> Call:
    wanted = m.FetchRequest.FetchPartition(
        partition=partition.partition, fetch_offset=offset, partition_max_bytes=READ_BYTES
    )
    request = m.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=READ_BYTES,
        topics=[m.FetchRequest.FetchTopic(topic=partition.topic, partitions=[wanted])],
    )
    return Call(Found(node_id, HAS_REPLICA), request, FETCH_VERSIONS)


def _read_answer(
    partition: TopicPartition, answer: object, report: ReplicaReport
) -> m.FetchResponse.PartitionData | FastqError:
    """The partition's part of an answer, or its error."""
    if isinstance(answer, FastqError):
        return answer
    assert isinstance(answer, m.FetchResponse)
    context = {"topic": partition.topic, "partition": partition.partition, "broker": f"node {report.node_id}"}
    if answer.error_code:
        return _error(answer.error_code, None, **context)
    for topic in answer.responses:
        for data in topic.partitions:
            if topic.topic == partition.topic and data.partition_index == partition.partition:
                return _error(data.error_code, None, **context) if data.error_code else data
    return _error(-1, "the answer leaves the partition out", **context)


# -- ends --------------------------------------------------------------------------------------------------------------------


def _compare_ends(
    partition: TopicPartition, leader: ReplicaReport, followers: Sequence[ReplicaReport], *, or_bytes: bool
) -> Operation[None]:
    """Compare the ends of logs, the leader's last: what is written meanwhile does not make it look short."""
    ends: list[tuple[ReplicaReport, tuple[int, int] | FastqError]] = []
    for report in [*followers, leader]:
        try:
            end = yield from _list_offset(partition, report.node_id, LATEST, DEBUGGING_CONSUMER)
        except FastqError as error:
            ends.append((report, error))
        else:
            ends.append((report, end))
    _, of_leader = ends.pop()
    if isinstance(of_leader, FastqError):
        leader.note("unread", str(of_leader))
        for report in followers:
            report.note("unread", "nobody knows where the leader's log ends")
        return
    if leader.compared is None:
        leader.compared, leader.end = "ends", of_leader[0]
    by_bytes = []
    for report, found in ends:
        if isinstance(found, NotLeaderOrFollower) and or_bytes:
            by_bytes.append(report)
            continue
        if isinstance(found, FastqError):
            report.note("unread", str(found))
            continue
        report.compared, report.end = "ends", found[0]
        if found[1] != of_leader[1]:
            report.note("differs", f"its leader epoch is {found[1]}, that of the leader {of_leader[1]}")
        elif found[0] < of_leader[0]:
            report.note("behind", f"its log ends at offset {found[0]}, the leader's at {of_leader[0]}")
    if by_bytes:
        yield from _compare_bytes(partition, leader, by_bytes)


def _compare_bytes(
    partition: TopicPartition, leader: ReplicaReport, followers: Sequence[ReplicaReport]
) -> Operation[None]:
    """Compare how many bytes the logs have on disk, which is the least that can be said."""
    topic = m.DescribeLogDirsRequest.DescribableLogDirTopic(topic=partition.topic, partitions=[partition.partition])
    reports = [*followers, leader]
    told = yield from ask_once([(report.node_id, m.DescribeLogDirsRequest(topics=[topic])) for report in reports])
    *sizes, of_leader = [None if answer is None else _size(answer) for answer in told.found]
    for report, size in zip(followers, sizes, strict=True):
        if size is None:
            report.note(
                "unread",
                "it is not read from as a follower, and does not say how large its log is" + _why(report, told.silent),
            )
        elif of_leader is None:
            words = "it is not read from as a follower, and the leader does not say how large its log is"
            report.note("unread", words + _why(leader, told.silent))
        else:
            report.compared = "bytes"
            if size != of_leader:
                report.note("differs", f"its log has {size} bytes on disk, the leader's {of_leader}")


def _why(report: ReplicaReport, silent: Mapping[int, FastqError]) -> str:
    return f": {silent[report.node_id]}" if report.node_id in silent else ""


def _size(answer: m.DescribeLogDirsResponse) -> int | None:
    """The bytes of the one log that was asked for; None where no directory has it."""
    found = [
        p.partition_size
        for result in answer.results
        for t in result.topics
        for p in t.partitions
        if not p.is_future_key
    ]
    return found[0] if found else None


def _list_offset(
    partition: TopicPartition, node_id: int, timestamp: int, replica_id: int
) -> Operation[tuple[int, int]]:
    """An offset of one node's log, and its leader epoch."""
    wanted = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=partition.partition, timestamp=timestamp)
    request = m.ListOffsetsRequest(
        replica_id=replica_id,
        topics=[m.ListOffsetsRequest.ListOffsetsTopic(name=partition.topic, partitions=[wanted])],
    )
    response: m.ListOffsetsResponse = yield Call(Found(node_id, HAS_REPLICA), request, LIST_VERSIONS)
    context = {"topic": partition.topic, "partition": partition.partition, "broker": f"node {node_id}"}
    told = [of for topic in response.topics if topic.name == partition.topic for of in topic.partitions]
    found = next((of for of in told if of.partition_index == partition.partition), None)
    if found is None:
        raise _error(-1, "the answer leaves the partition out", **context)
    if found.error_code:
        raise _error(found.error_code, None, **context)
    return found.offset, found.leader_epoch
