"""Who leads a partition that is not led here, told with the error so that the client need not ask for metadata (KIP-951).

Rules: as the image knows it; a leader that the client's listener cannot reach is named without an address.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .controller import MetadataImage


def current_leader(image: MetadataImage, topic: bytes, by_id: bool, partition: int) -> tuple[int, int] | None:
    """(node id, leader epoch) of a partition of the topic with this name or id; None when nobody leads it, or it is not known."""
    found = image.topic_of_id(topic) if by_id else image.topic(topic.decode("utf-8", "replace"))
    if found is None or not 0 <= partition < len(found.partitions):
        return None
    led = found.partitions[partition]
    return (led.leader, led.leader_epoch) if led.leader >= 0 else None


def endpoints(image: MetadataImage, nodes: Iterable[int], listener: str) -> list[tuple[int, str, int, str | None]]:
    """(node id, host, port, rack) of those nodes that have the listener."""
    found = []
    for node in sorted(set(nodes)):
        broker = image.brokers.get(node)
        endpoint = broker.endpoint(listener) if broker is not None else None
        if broker is not None and endpoint is not None:
            found.append((node, endpoint.host, endpoint.port, broker.rack))
    return found
