"""The topics that members of a classic group read, where it speaks the consumers' protocol.

A member's metadata is opaque to the broker but here: for protocol type `consumer` it is a version (int16), then a
ConsumerProtocolSubscription. Source: ClassicGroup.computeSubscribedTopics, ConsumerProtocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastq._native.wire import DecodeError, Reader
from fastq.protocol.messages import ConsumerProtocolSubscription

if TYPE_CHECKING:
    from .classic_member import Member

CONSUMER_PROTOCOL_TYPE = "consumer"


def decode_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """A consumer's subscription; a version above those known is read as the highest known. Raises DecodeError."""
    reader = Reader(metadata)
    version = reader.read_int16()
    if version < 0:
        raise DecodeError("a version of 0 or more", 0, f"got {version}", "ConsumerProtocolSubscription")
    return ConsumerProtocolSubscription.decode(reader, min(version, ConsumerProtocolSubscription.MAX_VERSION))


def subscribed_topics(
    protocol_type: str | None, protocol_name: str | None, members: Iterable[Member]
) -> frozenset[str] | None:
    """The topics of all members; None when the broker cannot know."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    found = list(members)
    if not found:
        return frozenset()
    if protocol_name is None:
        return None
    try:
        return frozenset(
            topic for member in found for topic in decode_subscription(member.metadata(protocol_name)).topics
        )
    except DecodeError:
        return None
