"""Markers for other nodes' partitions: how they share a request, and what becomes of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fastq_broker.transactions import marker_sender
from fastq_broker.transactions.marker import Marker
from fastq_broker.transactions.marker_sender import MarkerSender

from fastq.errors import ConnectionTimeout, KafkaError
from fastq.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

COMMIT = Marker(1000, 3, True, 7, 2)
ABORT = Marker(1001, 0, False, 8, 0)


class Bench:
    """A sender whose requests the test answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, WriteTxnMarkersRequest, Any]] = []
        self.outcomes: dict[tuple[int, str, int], int] = {}
        self._turn: list[Callable[[], object]] = []
        self.sender = MarkerSender(self._ask, self._turn.append)

    def _ask(self, node_id: int, request: Any, done: Any, versions: object = None) -> None:
        self.requests.append((node_id, request, done))

    def write(self, leader: int, marker: Marker, topic: str, index: int) -> None:
        self.sender.write(leader, (topic, index), marker, partial(self._done, (marker.producer_id, topic, index)))

    def _done(self, key: tuple[int, str, int], error: KafkaError | None) -> None:
        assert key not in self.outcomes
        self.outcomes[key] = 0 if error is None else int(error.code)

    def take_turns(self) -> None:
        while self._turn:
            self._turn.pop(0)()


def response(*results: tuple[int, str, int, int]) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WriteTxnMarkersResponse.WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=[
                    WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                        name=topic,
                        partitions=[
                            WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=code
                            )
                        ],
                    )
                ],
            )
            for producer_id, topic, index, code in results
        ]
    )


def test_what_waits_for_a_node_goes_in_one_request_by_marker_and_topic() -> None:
    bench = Bench()
    bench.write(2, COMMIT, "t", 0)
    bench.write(2, COMMIT, "t", 3)
    bench.write(2, ABORT, "u", 1)
    bench.write(3, COMMIT, "t", 1)
    bench.take_turns()
    (two, request, _), (three, _, _) = bench.requests
    assert (two, three) == (2, 3)
    told = [
        (
            Marker(
                each.producer_id,
                each.producer_epoch,
                each.transaction_result,
                each.coordinator_epoch,
                each.transaction_version,
            ),
            [(topic.name, topic.partition_indexes) for topic in each.topics],
        )
        for each in request.markers
    ]
    assert told == [(COMMIT, [("t", [0, 3])]), (ABORT, [("u", [1])])]


def test_each_partition_has_its_own_outcome() -> None:
    bench = Bench()
    for index in range(3):
        bench.write(2, COMMIT, "t", index)
    bench.take_turns()
    bench.requests[0][2](response((1000, "t", 0, 0), (1000, "t", 1, 6)), None)
    assert bench.outcomes == {(1000, "t", 0): 0, (1000, "t", 1): 6, (1000, "t", 2): -1}


def test_one_that_cannot_be_told_keeps_no_other_from_hearing() -> None:
    """The transactions behind it in the same answer stayed as they were, for good."""
    bench = Bench()

    def no_memory(error: KafkaError | None) -> None:
        raise MemoryError("none left")

    bench.sender.write(2, ("t", 0), COMMIT, no_memory)
    bench.write(2, COMMIT, "t", 1)
    bench.take_turns()
    bench.requests[0][2](response((1000, "t", 0, 0), (1000, "t", 1, 0)), None)
    assert bench.outcomes == {(1000, "t", 1): 0}


def test_an_outcome_that_cannot_be_made_is_told_to_nobody_before_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before it were told twice."""
    bench = Bench()
    bench.write(2, COMMIT, "t", 0)
    bench.write(2, COMMIT, "t", 1)
    bench.take_turns()
    made = marker_sender._outcome

    def outcome(partition: Any, code: int | None, error: Any) -> Any:
        if error is None and partition == ("t", 1):
            raise MemoryError("none left")
        return made(partition, code, error)

    monkeypatch.setattr(marker_sender, "_outcome", outcome)
    bench.requests[0][2](response((1000, "t", 0, 0), (1000, "t", 1, 0)), None)
    assert bench.outcomes == {(1000, "t", 0): 13, (1000, "t", 1): 13}


def test_a_request_that_fails_fails_for_all_of_them() -> None:
    bench = Bench()
    bench.write(2, COMMIT, "t", 0)
    bench.write(2, ABORT, "t", 0)
    bench.take_turns()
    bench.requests[0][2](None, ConnectionTimeout())
    assert bench.outcomes == {(1000, "t", 0): 13, (1001, "t", 0): 13}
