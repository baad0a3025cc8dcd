"""Clients of the clusters that this node fetches from for mirrors: those of `mirror.pull.ALIAS.KEY`, and no others.

Rules
- A client is one pull's at a time, and kept for the next one for KEPT_S: so none waits behind another's fetch, and no connection is made
  for each. One that still waits for an answer when its pull ends is closed, so nothing stays in flight, and so is one that cannot reach
  the source: it would go on trying, and the next pull is to ask anew.
- So many pulls run at a time as PULLS_MAX says: each may hold two answers of `batches.RESPONSE_BYTES`, and the loop is everybody's.
- Everything happens in the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fastq.errors import BrokerNotAvailable, ResourceNotFound, ThrottlingQuotaExceeded

from .config_keys import shown
from .config_mirror import PREFIX
from .log import failures

if TYPE_CHECKING:
    from fastq.config import ClientConfig

    from .source_client import SourceClient
    from .surroundings import Surroundings

PULLS_MAX = 8
KEPT_S = 60.0


class MirrorSources:
    """All of a node's. Loop thread only. Invariants: of `_free` each is idle and has a timer; `_taken` are those that a pull has."""

    def __init__(
        self,
        configs: Mapping[str, ClientConfig],
        loop: asyncio.AbstractEventLoop,
        surroundings: Surroundings,
    ) -> None:
        self._configs = configs
        self._loop = loop
        self._here = surroundings
        self._free: dict[str, list[SourceClient]] = {}
        self._taken: set[SourceClient] = set()
        self.closed = False

    @contextmanager
    def borrowed(self, alias: str) -> Iterator[SourceClient]:
        """A client for one pull. Raises ResourceNotFound for a source that this node was not told of, ThrottlingQuotaExceeded where as many
        pull as may, BrokerNotAvailable once this node stops, ConfigError for TLS files that have become unusable."""
        client = self._take(alias)
        try:
            yield client
        finally:
            self._taken.discard(client)
            self._give_back(alias, client)

    def close(self) -> None:
        """Lend no more; who has one hears that it is closed. Idempotent."""
        self.closed = True
        for client in [*self._taken, *(client for free in self._free.values() for client in free)]:
            failures.attempt("closing a client of a mirror's source", client.close)
        self._free.clear()

    def check(self, alias: str) -> None:
        """Raises ResourceNotFound for a source that this node was not told of."""
        if alias not in self._configs:
            raise ResourceNotFound(
                f"this node was not told how to reach {shown(alias)} by itself: {PREFIX}{alias[:64]}.bootstrap.servers is not set"
            )

    def _take(self, alias: str) -> SourceClient:
        from .source_client import SourceClient  # a node that was told of no source has no need of it

        self.check(alias)
        if self.closed:
            raise BrokerNotAvailable("this node stops")
        if len(self._taken) >= PULLS_MAX:
            raise ThrottlingQuotaExceeded(f"{PULLS_MAX} pulls of mirrors are under way here already")
        free = self._free.get(alias)
        if free:
            client = free.pop()
            if client.timer is not None:
                client.timer.cancel()
        else:
            core = self._here.client(self._configs[alias], of_another_cluster=True)
            client = SourceClient(core, self._loop)
        self._taken.add(client)
        return client

    def _give_back(self, alias: str, client: SourceClient) -> None:
        if client.may_be_kept and not self.closed:
            with suppress(MemoryError):
                client.timer = self._loop.call_later(KEPT_S, self._end, alias, client)
                self._free.setdefault(alias, []).append(client)
                return
        client.close()

    def _end(self, alias: str, client: SourceClient) -> None:
        free = self._free.get(alias, [])
        if client in free:
            free.remove(client)
            client.close()
