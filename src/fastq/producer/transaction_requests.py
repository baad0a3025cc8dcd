"""What a transactional producer asks of coordinators, and what their answers say: requests in, error codes out. Pure.

Rules: a request is built for the version that the coordinator speaks; AddPartitionsToTxn stays at version 3, as later ones
are for brokers; an answer becomes (error code, where) pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastq.errors import ProtocolError
from fastq.metadata import TopicPartition
from fastq.net.coordinators import GROUP as GROUP
from fastq.net.coordinators import TRANSACTION as TRANSACTION
from fastq.net.coordinators import Answer, coordinator_answers, coordinator_request
from fastq.net.requests import VersionedRequest
from fastq.protocol.api import ApiKey
from fastq.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

if TYPE_CHECKING:
    from fastq._native.producer_batch import PartitionState
    from fastq.metadata import GroupMetadata, OffsetAndMetadata
    from fastq.producer.identity import ProducerIdentity

PRODUCE_VERSION_MAX_V1, PRODUCE_VERSION_MAX = 11, 13  # Produce 12 adds its partitions to the transaction (KIP-890)


class OffsetsCommit:
    """Offsets on their way into the transaction."""

    __slots__ = ("group", "offsets")

    def __init__(self, group: GroupMetadata, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self.group, self.offsets = group, offsets


class Coordinator:
    """Where one coordinator is, and whether something is under way there.

    Invariant: at most one request, maybe its own look-up. `found_after`: the requests for Metadata there were before `node_id` was known.
    """

    __slots__ = ("busy", "failures", "found_after", "key", "key_type", "node_id", "retry_at")

    def __init__(self, key_type: int, key: str) -> None:
        self.key_type, self.key = key_type, key
        self.node_id: int | None = None
        self.busy = False
        self.failures = self.found_after = 0
        self.retry_at = 0.0


def find_coordinator(key_type: int, key: str) -> VersionedRequest:
    """Ask where the coordinator of a group or of a transactional id is."""
    return VersionedRequest(ApiKey.FIND_COORDINATOR, coordinator_request(key_type, [key]))


def coordinator_of(key_type: int, response: FindCoordinatorResponse, key: str) -> Answer | ProtocolError:
    """What the answer says of the one coordinator that was asked for."""
    return coordinator_answers(key_type, response, [key])[key]


def init_producer_id(transactional_id: str, timeout_ms: int, producer_id: int, epoch: int) -> VersionedRequest:
    """Ask for a producer id, or with one that is known for its next epoch (KIP-360; from version 3 on)."""

    def build(version: int) -> InitProducerIdRequest:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        if version >= 3:
            request.producer_id, request.producer_epoch = producer_id, epoch
        return request

    return VersionedRequest(ApiKey.INIT_PRODUCER_ID, build)


def add_partitions(
    transactional_id: str, identity: ProducerIdentity, partitions: Iterable[PartitionState]
) -> VersionedRequest:
    """Add partitions to the transaction, before anything is sent to them."""
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic.name, []).append(partition.index)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in by_topic.items()
        ],
    )
    return VersionedRequest(ApiKey.ADD_PARTITIONS_TO_TXN, lambda _version: request)


def add_offsets(transactional_id: str, identity: ProducerIdentity, group_id: str) -> VersionedRequest:
    """Add a group's offsets to the transaction, before any is committed."""
    request = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group_id,
    )
    return VersionedRequest(ApiKey.ADD_OFFSETS_TO_TXN, lambda _version: request)


def txn_offset_commit(
    transactional_id: str,
    identity: ProducerIdentity,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> VersionedRequest:
    """Commit offsets of a group within the transaction; the member's identity from version 3 on (KIP-447)."""
    topics: dict[str, list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
    for (topic, index), entry in offsets.items():
        topics.setdefault(topic, []).append(
            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=entry.offset,
                committed_leader_epoch=entry.leader_epoch,
                committed_metadata=entry.metadata,
            )
        )
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )
    return VersionedRequest(ApiKey.TXN_OFFSET_COMMIT, lambda _version: request)


def end_txn(transactional_id: str, identity: ProducerIdentity, committed: bool) -> VersionedRequest:
    """Commit or abort."""
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=committed,
    )
    return VersionedRequest(ApiKey.END_TXN, lambda _version: request)


def partition_errors(response: Any, **where: Any) -> list[tuple[int, dict[str, Any]]]:
    """(error code, where) of every partition of an AddPartitionsToTxn or TxnOffsetCommit response."""
    if hasattr(response, "results_by_topic_v3_and_below"):
        return [
            (entry.partition_error_code, {"topic": topic.name, "partition": entry.partition_index, **where})
            for topic in response.results_by_topic_v3_and_below
            for entry in topic.results_by_partition
        ]
    return [
        (entry.error_code, {"topic": topic.name, "partition": entry.partition_index, **where})
        for topic in response.topics
        for entry in topic.partitions
    ]
