"""What members of a classic group tell each other: subscriptions and assignments, as the consumer protocol's bytes.

Layout: version int16, then the fields of ConsumerProtocolSubscription or ConsumerProtocolAssignment of that version; the bytes of a
newer version end in fields that an older reader leaves unread. Rules: written in the newest version, as every reader may stop
early; a version below 0 or bytes that end too soon are a DecodeError. Source: Kafka's ConsumerProtocol.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastq._native.wire import DecodeError, Reader, Writer
from fastq.metadata import TopicPartition
from fastq.protocol.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from fastq.values import NamedTuple

NEWEST = 3
UNKNOWN_GENERATION = -1


class MemberSubscription(NamedTuple):
    """What one member of the group wants and has, as its leader sees it.

    owned: what it has in a cooperative rebalance. generation: in which it was given that, -1 when unknown. user_data: what its
    assignor sent along. group_instance_id: of a static member.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = UNKNOWN_GENERATION
    user_data: bytes | None = None
    rack: str | None = None
    group_instance_id: str | None = None


def encode_subscription(
    topics: Iterable[str],
    user_data: bytes | None = None,
    owned: Iterable[TopicPartition] = (),
    generation: int = UNKNOWN_GENERATION,
    rack: str | None = None,
) -> bytes:
    """The metadata of a member in JoinGroup."""
    names = sorted(set(topics))
    message = ConsumerProtocolSubscription(
        topics=names,
        user_data=user_data,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(owned).items()
        ],
        generation_id=generation,
        rack_id=rack,
    )
    writer = Writer()
    writer.write_int16(NEWEST)
    message.encode(writer, NEWEST)
    return writer.getvalue()


def decode_subscription(data: bytes, group_instance_id: str | None = None) -> MemberSubscription:
    """What another member sent, in its version, or as version 0 where it ends as that does: some clients leave out what came later.

    Raises DecodeError.
    """
    version = _version(Reader(data))
    reader = Reader(data, 2)
    message = ConsumerProtocolSubscription.decode(reader, 0)
    if version > 0 and reader.remaining:
        message = ConsumerProtocolSubscription.decode(Reader(data, 2), version)
    owned = tuple(TopicPartition(part.topic, index) for part in message.owned_partitions for index in part.partitions)
    return MemberSubscription(
        tuple(message.topics), owned, message.generation_id, message.user_data, message.rack_id, group_instance_id
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    """The assignment of a member in SyncGroup."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(partitions).items()
        ],
        user_data=user_data,
    )
    writer = Writer()
    writer.write_int16(NEWEST)
    message.encode(writer, NEWEST)
    return writer.getvalue()


def decode_assignment(data: bytes) -> tuple[tuple[TopicPartition, ...], bytes | None]:
    """The partitions that the leader gave, and the user data of its assignor. No bytes at all are no partitions."""
    if not data:
        return (), None
    reader = Reader(data)
    message = ConsumerProtocolAssignment.decode(reader, _version(reader))
    partitions = tuple(
        TopicPartition(part.topic, index) for part in message.assigned_partitions for index in part.partitions
    )
    return partitions, message.user_data


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition indexes by topic, both in order."""
    found: dict[str, list[int]] = {}
    for tp in sorted(set(partitions)):
        found.setdefault(tp.topic, []).append(tp.partition)
    return found


def _version(reader: Reader) -> int:
    version = reader.read_int16()
    if version < 0:
        raise DecodeError("a version of the consumer protocol", 0, f"got {version}")
    return min(version, NEWEST)
