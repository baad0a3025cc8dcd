"""What a fetcher asks of a leader, as Kafka's messages, and the answers.

    Fetch 13-18 and ListOffsets 7-11, each in the version that metadata.version says, whatever the leader could

Rules: topics go by id in Fetch, by name in ListOffsets. Records in an answer are views of the frame that was received.
Sources: RemoteLeaderEndPoint, MetadataVersion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from fastq._native.fetch import decode_fetch_response
from fastq._native.wire import Reader, Writer
from fastq.net.requests import EncodedRequest
from fastq.protocol.messages import FetchRequest, ListOffsetsRequest, ListOffsetsResponse
from fastq_broker.replication.fetcher import FetcherConfig, SendFetch, SendListOffsets
from fastq_broker.replication.fetcher_session import Key

Answers: TypeAlias = "dict[tuple[str, int], tuple[int, int]]"

REPLICA_STATE_FROM: Final = 15
# (metadata.version, version of the request), the latest first.
FETCH_VERSIONS: Final = ((27, 18), (21, 17), (19, 16), (10, 15), (9, 14), (0, 13))
LIST_OFFSETS_VERSIONS: Final = ((29, 11), (25, 10), (21, 9), (9, 8), (0, 7))


def version_at(metadata_version: int, versions: Sequence[tuple[int, int]]) -> int:
    """The version of a request at this level of metadata.version."""
    return next(version for level, version in versions if metadata_version >= level)


def fetch_request(effect: SendFetch, config: FetcherConfig, metadata_version: int, broker_epoch: int) -> EncodedRequest:
    """A replica's Fetch; answered as a FetchedResponse. `broker_epoch`: of this node's registration (KIP-903)."""
    version, plan = version_at(metadata_version, FETCH_VERSIONS), effect.plan
    # In the plan's order: a topic is named again where others were in between.
    topics: list[FetchRequest.FetchTopic] = []
    for (topic_id, number), wanted in plan.send.items():
        if not topics or topics[-1].topic_id != topic_id:
            topics.append(FetchRequest.FetchTopic(topic_id=topic_id))
        position = wanted.position
        topics[-1].partitions.append(
            FetchRequest.FetchPartition(
                partition=number,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.offset,
                last_fetched_epoch=position.last_fetched_epoch,
                log_start_offset=wanted.log_start_offset,
                partition_max_bytes=config.partition_bytes_max,
            )
        )
    request = FetchRequest(
        max_wait_ms=effect.wait_ms,
        min_bytes=config.min_bytes,
        max_bytes=effect.bytes_max,
        session_id=plan.session_id,
        session_epoch=plan.session_epoch,
        topics=topics,
        forgotten_topics_data=_forgotten(plan.forgotten),
    )
    if version >= REPLICA_STATE_FROM:
        request.replica_state = FetchRequest.ReplicaState(replica_id=config.replica_id, replica_epoch=broker_epoch)
    else:
        request.replica_id = config.replica_id
    writer = Writer()
    request.encode(writer, version)
    return EncodedRequest(
        FetchRequest.API_KEY, version, (writer.getvalue(),), lambda frame: decode_fetch_response(frame, version)
    )


def _forgotten(keys: Sequence[Key]) -> list[FetchRequest.ForgottenTopic]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in keys:
        topics.setdefault(topic_id, []).append(number)
    return [FetchRequest.ForgottenTopic(topic_id=topic, partitions=numbers) for topic, numbers in topics.items()]


def list_offsets_request(effect: SendListOffsets, config: FetcherConfig, metadata_version: int) -> EncodedRequest:
    """Where logs of the leader begin or end; answered as error code and offset by topic and number."""
    version = version_at(metadata_version, LIST_OFFSETS_VERSIONS)
    topics: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = {}
    for partition, leader_epoch in effect.partitions:
        topics.setdefault(partition.topic, []).append(
            ListOffsetsRequest.ListOffsetsPartition(
                partition_index=partition.number, current_leader_epoch=leader_epoch, timestamp=effect.timestamp
            )
        )
    request = ListOffsetsRequest(
        replica_id=config.replica_id,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=asked) for name, asked in topics.items()],
    )
    writer = Writer()
    request.encode(writer, version)
    return EncodedRequest(
        ListOffsetsRequest.API_KEY, version, (writer.getvalue(),), lambda frame: _offsets_of(frame, version)
    )


def _offsets_of(frame: memoryview, version: int) -> Answers:
    response = ListOffsetsResponse.decode(Reader(frame), version)
    return {
        (topic.name, answer.partition_index): (answer.error_code, answer.offset)
        for topic in response.topics
        for answer in topic.partitions
    }
