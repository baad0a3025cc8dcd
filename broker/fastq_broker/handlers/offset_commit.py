"""OffsetCommit: a group's offsets, by topic name, or by topic id from version 10 on (KIP-848 brought its errors in version 9).

Rules
- Topics and partitions that the cluster does not have are refused one by one; the rest is committed as one batch.
- Frames are decoded and encoded natively (`_native/commit_path`): an application that commits after every record sends no other request as
  often. The answer goes out with the request's own turn of the loop, unless the log has to be synced first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastq._native.commit_path import decode_commit_request, encode_commit_response
from fastq.errors import ErrorCode, KafkaError
from fastq_broker.groups.group import Committer
from fastq_broker.groups.offsets import TopicPartition
from fastq_broker.groups.shard import Commit, CommitEntry
from fastq_broker.router import Deferred

if TYPE_CHECKING:
    from fastq_broker.connection import Connection
    from fastq_broker.controller import MetadataImage
    from fastq_broker.ports import Ports
    from fastq_broker.router import Header, Result

API_KEY = 8
VERSIONS = (2, 10)

FIRST_VERSION_WITH_TOPIC_IDS = 10


def handle_frame(connection: Connection, ports: Ports, buffer: bytearray, header: Header) -> Result:
    """Commit, and answer an error for each partition."""
    version = header[1]
    group_id, generation, member_id, instance_id, retention_ms, asked = decode_commit_request(
        buffer, header[4], header[5], version
    )
    image = ports.image
    names = _names(image, asked) if version >= FIRST_VERSION_WITH_TOPIC_IDS else None
    offsets, refused = _known_partitions(image, asked if names is None else _named(asked, names))

    def respond(errors: dict[TopicPartition, int]) -> bytes:
        codes = {**refused, **errors} if refused else errors
        if names is None:
            results = [(entry[0], entry[1], codes[entry[0], entry[1]]) for entry in asked]
        else:
            results = [
                (
                    entry[0],
                    entry[1],
                    codes[names[entry[0]], entry[1]] if entry[0] in names else ErrorCode.UNKNOWN_TOPIC_ID,
                )
                for entry in asked
            ]
        return encode_commit_response(version, header[2], results)

    if not offsets:
        return respond({})
    try:
        shard = ports.groups.shard(group_id)
    except KafkaError as unavailable:
        return respond(dict.fromkeys(((entry[0], entry[1]) for entry in offsets), unavailable.code))
    committer = Committer(member_id, generation, instance_id)
    answered: dict[TopicPartition, int] | None = None
    deferred: Deferred | None = None

    def answer(errors: dict[TopicPartition, int]) -> None:
        nonlocal answered
        answered = errors
        if deferred is not None:
            deferred.complete_with(respond_answered, "OffsetCommit")

    # Made before it is wanted: there may be no memory then, and nobody else would answer.
    def respond_answered() -> bytes:
        assert answered is not None
        return respond(answered)

    shard.commit(Commit(group_id, committer, offsets, version, retention_ms), answer)
    if answered is not None:
        return respond(answered)
    deferred = Deferred(connection)
    return deferred


def _names(image: MetadataImage, asked: list[Any]) -> dict[bytes, str]:
    """The names of the topics that are asked about by id, of those that the cluster has."""
    found = ((topic_id, image.topic_of_id(topic_id)) for topic_id in {entry[0] for entry in asked})
    return {topic_id: topic.name for topic_id, topic in found if topic is not None}


def _named(asked: list[Any], names: dict[bytes, str]) -> list[CommitEntry]:
    return [(names[entry[0]], *entry[1:]) for entry in asked if entry[0] in names]


def _known_partitions(
    image: MetadataImage, named: list[CommitEntry]
) -> tuple[list[CommitEntry], dict[TopicPartition, int]]:
    """What can be committed, and the errors of the named partitions that cannot."""
    refused: dict[TopicPartition, int] = {
        (entry[0], entry[1]): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for entry in named
        if image.partition(entry[0], entry[1]) is None
    }
    if not refused:
        return named, refused
    return [entry for entry in named if (entry[0], entry[1]) not in refused], refused
