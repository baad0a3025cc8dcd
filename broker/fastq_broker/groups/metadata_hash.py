"""The number by which a group knows that its topics have changed, exactly as Apache Kafka 4.3 reckons it.

Rules
- A topic is XXH3-64 (seed 0) over: a byte 0 for the version; the topic id as two halves; the name; the count of partitions; for each
  partition its number and, for each rack of its replicas in order, its length and the rack.
- A group is XXH3-64 over the numbers of its topics, in the order of their names; 0 without topics. Topics that are not there do not count.
- Numbers are little-endian (a half of an id is a big-endian number of the id's bytes), lengths and numbers of partitions 32 bits.
  A string is its UTF-16 units, little-endian, then their count; so a rack has its length before and behind it.
- Racks are not made unique, and are ordered by UTF-16 units, as Java orders strings.
- Without the package xxhash another hash is in its place: the number says nothing but whether something has changed, so that a group goes
  through one more rebalance when its coordinator moves between a broker with the package and one without.
Source: Utils.computeTopicHash, Utils.computeGroupHash, hash4j's HashStream.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fastq_broker.controller import MetadataImage
    from fastq_broker.controller.image import TopicImage

VERSION: Final = b"\0"


def _blake2b(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()


_digest: Callable[[bytes], bytes] = _blake2b
"""The number of some bytes, in big-endian order."""
try:
    from xxhash import xxh3_64_digest
except ImportError:
    pass
else:
    _digest = xxh3_64_digest


def hash_of_topics(names: Iterable[str], image: MetadataImage) -> int:
    """The group's number for these topics: it changes when one of them comes, goes, gets partitions, or its replicas other racks."""
    # A digest is its number in big-endian order, and goes into the next in little-endian order.
    topics = [topic for name in sorted(set(names)) if (topic := image.topic(name)) is not None]
    if not topics:
        return 0
    return int.from_bytes(
        _digest(b"".join([_digest(_topic_bytes(topic, image))[::-1] for topic in topics])), "big", signed=True
    )


def _topic_bytes(topic: TopicImage, image: MetadataImage) -> bytes:
    parts = [VERSION, topic.topic_id[7::-1], topic.topic_id[:7:-1], _text(topic.name)]
    parts.append(struct.pack("<i", len(topic.partitions)))
    for number, partition in enumerate(topic.partitions):
        parts.append(struct.pack("<i", number))
        brokers = [image.brokers.get(node) for node in partition.replicas]
        racks = [
            broker.rack.encode("utf-16-be") for broker in brokers if broker is not None and broker.rack is not None
        ]
        for rack in sorted(racks):
            parts += (struct.pack("<i", len(rack) // 2), _text(rack.decode("utf-16-be")))
    return b"".join(parts)


def _text(text: str) -> bytes:
    units = text.encode("utf-16-le")
    return units + struct.pack("<i", len(units) // 2)
