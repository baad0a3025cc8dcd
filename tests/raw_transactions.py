"""A transactional producer of a few lines for tests, on raw connections: versions and codes as they are, nothing hidden."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from raw_kafka import RawConnection, batch, fetch, produce

from fastq._native.records import decode_records, iter_headers
from fastq.protocol.messages import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
)

COORDINATOR_NOT_THERE_YET = (14, 15, 16)
NOT_YET = (3, 6, 19, 51)
"""What a produce request is told while the partition, its coordinator or the end of the last transaction is on the way."""
CONCURRENT = 51


def wait_for(call: Callable[[], Any], wrong: Callable[[Any], bool]) -> Any:
    """The first answer that is not one that tells to try again."""
    deadline = time.monotonic() + 20
    while wrong(answer := call()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer


def initialize(connection: RawConnection, name: str, version: int = 5, **fields: Any) -> Any:
    """InitProducerId as a client does it: find the coordinator, and have patience while it loads."""
    if name:
        asked = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
        wait_for(
            lambda: connection.call(asked, 4).coordinators[0].error_code, lambda code: code in COORDINATOR_NOT_THERE_YET
        )
    request = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=fields.pop("transaction_timeout_ms", 60_000), **fields
    )
    return wait_for(
        lambda: connection.call(request, version), lambda answer: answer.error_code in COORDINATOR_NOT_THERE_YET
    )


class Producer:
    """A transactional producer of a few lines. `version` is that of the transactions, 1 or 2."""

    def __init__(self, connection: RawConnection, name: str, version: int = 2, **fields: Any) -> None:
        self.connection = connection
        self.name = name
        self.version = version
        answer = wait_for(
            lambda: initialize(connection, name, **fields), lambda answer: answer.error_code == CONCURRENT
        )
        assert answer.error_code == 0, answer
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences: dict[tuple[str, int], int] = {}

    def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        (result,) = self.connection.call(request, version).results_by_topic_v3_and_below
        codes = {answer.partition_index: answer.partition_error_code for answer in result.results_by_partition}
        return [codes[partition] for partition in partitions]  # Apache Kafka answers in the order of a hash map

    def send(self, topic: str, *values: bytes, partition: int = 0, version: int | None = None) -> Any:
        place = topic, partition
        records = batch(
            *values,
            transactional=True,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(place, 0),
        )
        version = version or (12 if self.version == 2 else 9)
        answer = wait_for(
            lambda: produce(
                self.connection, topic, records, version, partition=partition, acks=-1, transactional_id=self.name
            ),
            lambda answer: answer.error_code in NOT_YET,
        )
        if answer.error_code == 0:
            self.sequences[place] = self.sequences.get(place, 0) + len(values)
        return answer

    def end(self, committed: bool, version: int | None = None) -> Any:
        version = version or (5 if self.version == 2 else 4)
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, committed=committed
        )
        answer = self.connection.call(request, version)
        if answer.error_code == 0 and version >= 5:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer

    def finish(self, committed: bool) -> int:
        """End the transaction and wait until its markers are written; answers the error code."""
        answer = wait_for(lambda: self.end(committed), lambda answer: answer.error_code == CONCURRENT)
        wait_for(self.state, lambda state: state.startswith("Prepare"))
        return int(answer.error_code)

    def state(self) -> str:
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        return str(self.connection.call(request, 0).transaction_states[0].transaction_state)


def committed_values(connection: RawConnection, topic: str, partition: int = 0) -> list[bytes]:
    """What a read_committed consumer sees, worked out from one fetch as consumers do."""
    answer = fetch(connection, topic, 0, partition=partition, isolation_level=1)
    assert answer.error_code == 0
    aborted = sorted((entry.first_offset, entry.producer_id) for entry in answer.aborted_transactions or ())
    dropping: set[int] = set()
    found: list[bytes] = []
    records = bytes(answer.records or b"")
    for position, header in iter_headers(records):
        while aborted and aborted[0][0] <= header.last_offset:
            dropping.add(aborted.pop(0)[1])
        if header.is_control:
            dropping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            found += [record.value for record in decode_records(records, position)]
    return found


def latest(connection: RawConnection, topic: str, isolation_level: int) -> int:
    asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])],
    )
    offset: int = connection.call(request, 7).topics[0].partitions[0].offset
    return offset
