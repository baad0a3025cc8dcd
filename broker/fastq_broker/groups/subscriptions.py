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
    """A consumer's subscription; a version above those known is read as the highest known, and one that ends where version 0 does as
    that: some clients leave out what came later. Raises DecodeError."""
    version = min(_version(metadata), ConsumerProtocolSubscription.MAX_VERSION)
    reader = Reader(metadata, 2)
    first = ConsumerProtocolSubscription.decode(reader, 0)
    if version == 0 or not reader.remaining:
        return first
    return ConsumerProtocolSubscription.decode(Reader(metadata, 2), version)


def _version(metadata: bytes) -> int:
    version = Reader(metadata).read_int16()
    if version < 0:
        raise DecodeError("a version of 0 or more", 0, f"got {version}", "ConsumerProtocolSubscription")
    return version


def _topics(metadata: bytes) -> list[str]:
    """The topics of a subscription, which every version begins with. Raises DecodeError."""
    _version(metadata)
    return ConsumerProtocolSubscription.decode(Reader(metadata, 2), 0).topics


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
        return frozenset(topic for member in found for topic in _topics(member.metadata(protocol_name)))
    except DecodeError:
        return None
