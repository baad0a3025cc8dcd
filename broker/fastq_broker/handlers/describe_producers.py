"""DescribeProducers: what the logs remember of their producers, open transactions among it (KIP-664).

Rules: every replica answers of its own log, whoever leads; a node without one, that it does not lead. Who wants the leader's asks there.
Source: ReplicaManager.activeProducerState.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import KafkaError
from fastq.protocol.messages import DescribeProducersRequest, DescribeProducersResponse

if TYPE_CHECKING:
    from fastq_broker.replicas import ReplicaTable
    from fastq_broker.router import RequestContext

API_KEY = 61
VERSIONS = (0, 0)


def handle(context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """Each partition for itself."""
    return DescribeProducersResponse(
        topics=[
            DescribeProducersResponse.TopicResponse(
                name=topic.name,
                partitions=[_describe(context.replicas, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _describe(replicas: ReplicaTable, topic: str, index: int) -> DescribeProducersResponse.PartitionResponse:
    answer = DescribeProducersResponse.PartitionResponse(partition_index=index)
    replica = replicas.get(topic, index)
    if replica is None:
        answer.error_code = replicas.missing_error(topic.encode(), index, by_id=False)
        return answer
    try:
        producers = replica.log.producers
    except KafkaError as error:
        answer.error_code, answer.error_message = int(error.code), str(error)
        return answer
    answer.active_producers = [
        DescribeProducersResponse.ProducerState(
            producer_id=producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
            last_timestamp=entry.last_seen_ms,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.txn_first_offset,
        )
        for producer_id, entry in producers.items()
    ]
    return answer
