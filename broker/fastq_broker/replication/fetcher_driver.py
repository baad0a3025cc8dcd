"""Runs a node's fetchers in its event loop: their requests go over the client's connections, their timers are the loop's.

Rules
- Everything happens in the loop's thread, what a fetcher does in turns (`turns.py`).
- A partition belongs to one fetcher of its leader, by the hash of its name, as long as the leader stays; `num.replica.fetchers` is how
  many a leader has.
- A fetcher has a connection of its own, on which one request waits at a time. Fetchers that follow nothing ask nothing, and stay.
- While one of the fetchers is far behind, the loop's thread asks for long turns (`Surroundings.turns_us`): what it writes then is nobody's
  hurry, and nodes, or clients, that share its cores and have little to do come first.
- Versions are those of metadata.version: a leader that does not offer them cannot be followed.
Sources: ReplicaFetcherManager, AbstractFetcherManager, BrokerBlockingSender.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from fastq.config import ClientConfig
from fastq.errors import FastqError
from fastq.metadata import Node
from fastq.net.aio import AsyncDriver
from fastq.net.connection import SOFTWARE_NAME, SOFTWARE_VERSION
from fastq.protocol.messages import ApiVersionsRequest
from fastq.values import NamedTuple
from fastq_broker.log import failures
from fastq_broker.replication.fetcher import (
    AwaitDurable,
    Effect,
    FetcherConfig,
    ReplicaFetcher,
    SendFetch,
    SendListOffsets,
)
from fastq_broker.replication.fetcher_session import Key, ReplicaPartition
from fastq_broker.replication.fetcher_wire import fetch_request, list_offsets_request
from fastq_broker.replication.follower_log import FollowerLog
from fastq_broker.replication.follower_quota import FollowerQuota
from fastq_broker.surroundings import Surroundings
from fastq_broker.turns import Turns

logger = logging.getLogger(__name__)

CATCH_UP_TURNS_US = 20_000
"""Much more than what a fetch takes, so that whoever wakes up beside a node that catches up comes first; one has 3 ms or so."""


class Assignment(NamedTuple):
    """Whom to follow: the leader of a partition, at the listener for other brokers, in its epoch. `in_sync`: what the metadata says of this
    replica."""

    partition: ReplicaPartition
    leader: Node
    leader_epoch: int
    log: FollowerLog
    in_sync: bool = False


class NodeState(NamedTuple):
    """What requests say of this node, asked when each is made: the epoch of its registration, and metadata.version."""

    broker_epoch: Callable[[], int]
    metadata_version: Callable[[], int]


class _Runner:
    """One fetcher at work."""

    def __init__(self, fetchers: ReplicaFetchers, leader: Node, network: AsyncDriver) -> None:
        self.leader = leader
        self.machine = ReplicaFetcher(fetchers.config, str(leader), fetchers.now_ms, fetchers.quota)
        self._fetchers = fetchers
        self._network = network
        self._core = network.core
        self.turns = Turns(network.loop, self.now, self._work, self.machine.next_wakeup)
        self._failing = False  # the last request had no answer, which the log says once
        self._hurried = False
        self.was_behind = False  # as the fetchers have counted it

    def now(self) -> float:
        """Seconds, on the clock that the machine is given."""
        return self._core.clock()

    def move(self, leader: Node) -> None:
        """The leader listens elsewhere: what was asked there is given up."""
        self.leader = leader
        self.machine.leader = str(leader)
        self._core.separate(leader)
        self._network.kick()

    def hurry(self) -> None:
        """Something new is to be fetched: a leader that only waits for records shall not have it wait until then. One of ours ends the wait
        of a connection that asks for more; for any other it is a question that is soon answered."""
        if self.machine.in_flight and not self._hurried:
            self._hurried = True
            request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
            self._core.send(self._core.separate(self.leader), request, lambda response, error: None)
            self._network.kick()
        self.turns.soon()

    def _work(self, now: float) -> None:
        for effect in self.machine.poll(now):
            self._do(effect)
        self._fetchers.look(self)

    def _do(self, effect: Effect) -> None:
        """Do it, or, for want of memory as a rule, not: nobody answers what was not asked. What is not waited for is looked at later."""
        try:
            if isinstance(effect, AwaitDurable):
                effect.log.wait_durable(effect.offset, lambda error: self.turns.turn())
            else:
                self._ask(effect)
        except Exception as error:
            failures.report(f"what it takes to follow {self.leader}", error)
            if not isinstance(effect, AwaitDurable):
                self.machine.failed(effect.number, self.now())

    def _ask(self, effect: SendFetch | SendListOffsets) -> None:
        machine, node = self.machine, self._fetchers.node
        level = node.metadata_version()
        take: Callable[[int, Any, float], None]
        if isinstance(effect, SendFetch):
            request, take = fetch_request(effect, machine.config, level, node.broker_epoch()), machine.fetched
        else:
            request, take = list_offsets_request(effect, machine.config, level), machine.listed
        self._hurried = False
        peer = self._core.separate(self.leader)
        if machine.is_behind:
            machine.way_s = self._core.round_trip_s(peer)
        self._core.send(peer, request, partial(self._answered, effect.number, take))
        self._network.kick()

    def _answered(
        self, number: int, take: Callable[[int, Any, float], None], answer: Any, error: FastqError | None
    ) -> None:
        if self.turns.closed:
            return
        try:
            if error is None:
                if self._failing:
                    logger.warning("following %s: it answers again", self.leader)
                self._failing = False
                take(number, answer, self.now())
            else:
                self.machine.failed(number, self.now())
                logger.log(logging.DEBUG if self._failing else logging.WARNING, "following %s: %s", self.leader, error)
                self._failing = True
        finally:  # there may be no memory for what has come, or to say so: no timer waits for the next one
            self.turns.turn()


class ReplicaFetchers:
    """All fetchers of a node. `client` is how to reach other brokers: security, and `request_timeout_ms` for replica.socket.timeout.ms;
    `count` is num.replica.fetchers; `now_ms` is wall-clock time. Event-loop thread only.

    Invariants: a key of `_runner_of` is followed by that runner alone; `_behind` runners have `was_behind`.
    """

    def __init__(
        self,
        config: FetcherConfig,
        client: ClientConfig,
        loop: asyncio.AbstractEventLoop,
        node: NodeState,
        *,
        now_ms: Callable[[], int],
        quota: FollowerQuota | None = None,
        count: int = 1,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`surroundings` has the network that they use; None: this machine's."""
        here = surroundings or Surroundings()
        self.config = config
        self.node = node
        self.now_ms = now_ms
        self.quota = quota
        self._turns_us = here.turns_us
        self._behind = 0
        self._networks = [AsyncDriver(here.client(client), loop) for _ in range(count)]
        self._runners: dict[tuple[int, int], _Runner] = {}
        self._runner_of: dict[Key, _Runner] = {}

    @property
    def followed(self) -> Mapping[Key, int]:
        """The leaders that are followed."""
        return {key: runner.leader.node_id for key, runner in self._runner_of.items()}

    @property
    def lag_max(self) -> int:
        """Records that the replica lacks which is furthest behind, as far as leaders have told."""
        lags = (one.lag or 0 for runner in self._runners.values() for one in runner.machine.partitions.values())
        return max(lags, default=0)

    def follow(self, assignments: Iterable[Assignment]) -> None:
        """Follow these leaders from now on; partitions of other leaders go over. What is said in one pass of the loop is asked for in one
        fetch, so that none has to wait for the answer to another's."""
        for partition, leader, leader_epoch, log, in_sync in assignments:
            runner = self._runner(leader, self._number(partition))
            before = self._runner_of.get(partition.key)
            if before is not None and before is not runner:
                self._drop(before, partition.key)
            self._runner_of[partition.key] = runner
            runner.machine.add(partition, leader_epoch, log, runner.now(), in_sync=in_sync)
            runner.hurry()

    def unfollow(self, keys: Iterable[Key]) -> None:
        """Follow nobody in these partitions."""
        for key in keys:
            runner = self._runner_of.get(key)
            if runner is not None:
                self._drop(runner, key)
                del self._runner_of[key]  # last: what there is no memory for is done again

    def look(self, runner: _Runner) -> None:
        """Whether this one is far behind may have changed."""
        is_behind = runner.machine.is_behind
        if is_behind is runner.was_behind or runner.turns.closed:
            return
        runner.was_behind = is_behind
        before, self._behind = self._behind, self._behind + (1 if is_behind else -1)
        if not before or not self._behind:
            self._turns_us(CATCH_UP_TURNS_US if self._behind else 0)

    def close(self) -> None:
        """Follow nothing any more; requests on their way are given up. Idempotent."""
        for runner in self._runners.values():
            runner.turns.close()
        if self._behind:
            self._behind = 0
            self._turns_us(0)
        for network in self._networks:
            network.close()
        self._runner_of.clear()

    def _drop(self, runner: _Runner, key: Key) -> None:
        runner.machine.remove((key,))
        runner.turns.soon()
        self.look(runner)

    def _number(self, partition: ReplicaPartition) -> int:
        return zlib.crc32(str(partition).encode()) % len(self._networks)

    def _runner(self, leader: Node, number: int) -> _Runner:
        """The fetcher of this number; a leader that listens elsewhere now is asked there."""
        runner = self._runners.get((leader.node_id, number))
        if runner is None:
            runner = self._runners[leader.node_id, number] = _Runner(self, leader, self._networks[number])
        elif runner.leader != leader:
            runner.move(leader)
        return runner
