"""Replicas compared: the operation against nodes of a few lines, whose logs differ in every way that matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fastq._native.records import build_batch, read_header
from fastq.admin import replica_comparison
from fastq.admin.replica_comparison import ReplicaReport, compare_replicas
from fastq.errors import ErrorCode, FastqError, error_for_code
from fastq.metadata import TopicPartition
from fastq.net.operations import Call, Found
from fastq.protocol import messages as m

T0 = TopicPartition("t", 0)
LEADER = 1


def log(*values: bytes, epoch: int = 0) -> list[bytes]:
    """A batch for each value, of two records."""
    batches = []
    for number, value in enumerate(values):
        rows = [(1000, None, value, []), (1000, None, value, [])]
        batches.append(bytes(build_batch(rows, base_offset=2 * number, leader_epoch=epoch)))
    return batches


class Node:
    """Has a log, and says what a node says; `watermark` is as far as it lets consumers read."""

    def __init__(self, batches: Sequence[bytes], *, start: int = 0, refuses: Sequence[type] = ()) -> None:
        self.batches = [batch for batch in batches if read_header(batch).base_offset >= start]
        self.start, self.refuses = start, refuses
        self.end = read_header(batches[-1]).last_offset + 1 if batches else start
        self.watermark = self.end

    def answer(self, request: Any, leads: bool) -> Any:
        if not leads and type(request) in self.refuses:
            code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            code = 0
        if isinstance(request, m.FetchRequest):
            assert request.replica_id == -1 and not request.rack_id
            return self._fetch(request.topics[0].partitions[0].fetch_offset, code)
        if isinstance(request, m.ListOffsetsRequest):
            return self._list(request, code)
        return self._log_dirs()

    def _fetch(self, offset: int, code: int) -> m.FetchResponse:
        if not self.start <= offset <= self.end:
            code = code or int(ErrorCode.OFFSET_OUT_OF_RANGE)
        # One batch and a torn one: an answer is cut where it is full.
        readable = [b for b in self.batches if offset <= read_header(b).last_offset < self.watermark][:2]
        records = b"" if code else b"".join(readable[:1]) + b"".join(readable[1:])[:20]
        data = m.FetchResponse.PartitionData(
            partition_index=0,
            error_code=code,
            high_watermark=self.watermark,
            log_start_offset=-1 if code else self.start,
            aborted_transactions=None,
            records=records,
        )
        return m.FetchResponse(responses=[m.FetchResponse.FetchableTopicResponse(topic="t", partitions=[data])])

    def _list(self, request: m.ListOffsetsRequest, code: int) -> m.ListOffsetsResponse:
        earliest = request.topics[0].partitions[0].timestamp == replica_comparison.EARLIEST
        latest = self.watermark if request.replica_id == replica_comparison.CONSUMER else self.end
        answer = m.ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=0, error_code=code, offset=self.start if earliest else latest, leader_epoch=0
        )
        return m.ListOffsetsResponse(
            topics=[m.ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[answer])]
        )

    def _log_dirs(self) -> m.DescribeLogDirsResponse:
        size = sum(map(len, self.batches))
        partition = m.DescribeLogDirsResponse.DescribeLogDirsPartition(
            partition_index=0, partition_size=size, offset_lag=0, is_future_key=False
        )
        topic = m.DescribeLogDirsResponse.DescribeLogDirsTopic(name="t", partitions=[partition])
        return m.DescribeLogDirsResponse(
            results=[m.DescribeLogDirsResponse.DescribeLogDirsResult(log_dir="/d", topics=[topic])]
        )


class Gone(Node):
    """A node that cannot be reached."""

    def __init__(self) -> None:
        super().__init__([])

    def answer(self, request: Any, leads: bool) -> Any:
        return error_for_code(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")


def compare(*nodes: Node, compacted: bool = False) -> list[ReplicaReport]:
    """Run the operation; the first node leads."""
    operation = compare_replicas(T0, range(1, len(nodes) + 1), LEADER, compacted=compacted)
    value: Any = None
    error: FastqError | None = None

    def answer(call: Call) -> Any:
        assert isinstance(call.route, Found), "one try"
        return nodes[call.route.node_id - 1].answer(call.request, call.route.node_id == LEADER)

    for _ in range(10_000):
        try:
            effect = operation.send(value) if error is None else operation.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        answers = [answer(call) for call in (effect if isinstance(effect, list) else [effect])]  # type: ignore[arg-type]
        value, error = answers, None
        if not isinstance(effect, list):
            value, error = (None, answers[0]) if isinstance(answers[0], FastqError) else (answers[0], None)
    raise AssertionError("it does not end")


FULL = log(b"a", b"b", b"c", b"d")


def test_the_same_everywhere() -> None:
    reports = compare(Node(FULL), Node(FULL), Node(FULL))
    assert [(r.node_id, r.is_leader, r.state, r.compared, r.start, r.end) for r in reports] == [
        (1, True, "same", "records", 0, 8),
        (2, False, "same", "records", 0, 8),
        (3, False, "same", "records", 0, 8),
    ]


def test_an_empty_partition_and_one_that_is_alone() -> None:
    assert {r.state for r in compare(Node([]), Node([]))} == {"same"}
    (alone,) = compare(Node(FULL))
    assert (alone.state, alone.compared, alone.end) == ("same", "records", 8)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (log(b"a", b"b", b"x", b"d"), "its batch at offset 4 has checksum"),
        (log(b"a", b"b", b"c", b"d", epoch=1), "its batch at offset 0 has leader epoch 1, that of the leader 0"),
        ([FULL[0], *FULL[2:]], "its batch at offset 4 begins at offset 4, that of the leader 2"),
    ],
    ids=["value", "epoch", "hole"],
)
def test_what_differs_is_named(other: list[bytes], words: str) -> None:
    _, same, different = compare(Node(FULL), Node(FULL), Node(other))
    assert same.state == "same"
    assert different.state == "differs" and words in (different.detail or "")


def test_bytes_that_their_checksum_does_not_fit() -> None:
    torn = bytearray(FULL[1])
    torn[-1] ^= 1
    _, report = compare(Node(FULL), Node([FULL[0], bytes(torn), *FULL[2:]]))
    assert report.state == "differs" and "the batch at offset 2 is damaged" in (report.detail or "")
    # A damaged leader does not make the others look wrong.
    leader, *others = compare(Node([FULL[0], bytes(torn), *FULL[2:]]), Node(FULL), Node(FULL))
    assert leader.state == "differs" and {r.state for r in others} == {"same"}


def test_the_end_that_one_has_and_another_has_not() -> None:
    _, report = compare(Node(FULL), Node(FULL[:2]))
    assert report.state == "behind" and "it has nothing at offset 4 yet" in (report.detail or "")
    silent = Node(FULL)
    silent.watermark = 6  # it has the records, and has not heard that they are committed
    _, report = compare(Node(FULL), silent)
    assert (report.state, report.end) == ("behind", 6)


def test_logs_that_begin_elsewhere_are_compared_from_where_all_begin() -> None:
    reports = compare(Node(FULL, start=2), Node(FULL), Node(FULL, start=4))
    assert {(r.state, r.start) for r in reports} == {("same", 4)}


def test_a_node_that_does_not_answer_is_unread() -> None:
    leader, gone, other = compare(Node(FULL), Gone(), Node(FULL))
    assert leader.state == other.state == "same"
    assert gone.state == "unread" and "the disk is gone" in (gone.detail or "")


def test_nodes_that_are_not_read_from_are_compared_by_ends_or_bytes() -> None:
    _, ends, short = compare(Node(FULL), Node(FULL, refuses=[m.FetchRequest]), Node(FULL[:3], refuses=[m.FetchRequest]))
    assert (ends.compared, ends.state, ends.end) == ("ends", "same", 8)
    assert (short.compared, short.state) == ("ends", "behind") and "offset 6" in (short.detail or "")
    refuses = [m.FetchRequest, m.ListOffsetsRequest]
    leader, same, less = compare(Node(FULL), Node(FULL, refuses=refuses), Node(FULL[:3], refuses=refuses))
    assert (leader.compared, same.compared, same.state) == ("records", "bytes", "same")
    assert less.state == "differs" and "bytes on disk" in (less.detail or "")


def test_compacted_logs_are_compared_by_their_ends() -> None:
    reports = compare(Node(FULL), Node([FULL[0], FULL[3]]), compacted=True)
    assert {(r.state, r.compared, r.end) for r in reports} == {("same", "ends", 8)}
    _, unread = compare(Node(FULL), Node([FULL[3]], refuses=[m.ListOffsetsRequest]), compacted=True)
    assert (unread.state, unread.compared) == ("unread", None), "cleaned logs have any number of bytes"
