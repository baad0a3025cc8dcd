"""What those who serve requests may use of a node, each part one step away.

Rules: a handler gets its ports with the request's context (`router.RequestContext`), or, where it decodes its own frames, as they
are. It names the part that it needs, and never the broker: what is no port (the server, housekeeping, the start) is nobody's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from .cluster.node import ClusterNode
    from .config import BrokerConfig
    from .controller import Controller, MetadataImage
    from .fetch_session import FetchSessionCache
    from .groups.service import GroupCoordinator
    from .log import LogManager
    from .mirror_sources import MirrorSources
    from .output import ReadAhead
    from .producer_ids import ProducerIdPool
    from .purgatory import Purgatory
    from .replicas import ReplicaTable
    from .router import Router
    from .surroundings import Surroundings
    from .throttles import ReplicationThrottles
    from .transactions import TransactionCoordinator


class Ports:
    """The parts of a node. They stay the same objects for as long as it runs, but for `image`, which each change of the
    metadata replaces."""

    __slots__ = ()

    config: BrokerConfig
    node_id: int
    loop: asyncio.AbstractEventLoop
    surroundings: Surroundings
    clock: Callable[[], int]
    """Milliseconds since 1970."""
    monotonic_ms: Callable[[], int]
    controller: Controller
    cluster: ClusterNode | None
    """This node among others; None on one that is alone."""
    logs: LogManager
    replicas: ReplicaTable
    producer_ids: ProducerIdPool
    purgatory: Purgatory
    fetch_sessions: FetchSessionCache
    read_ahead: ReadAhead
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    router: Router
    throttles: ReplicationThrottles
    mirror_sources: MirrorSources

    @property
    def image(self) -> MetadataImage:
        """The metadata as of now."""
        return self.controller.image
