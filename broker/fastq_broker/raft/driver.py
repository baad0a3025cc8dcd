"""Runs a quorum's machine in an event loop: its questions go over the client's connections, its timers are the loop's.

Rules: everything happens in the loop's thread, in turns (`turns.py`). A place that is asked has a connection of its own (the voter of a
node id, or one of the bootstrap servers), with one question at a time on it. News that a shortage keeps from being followed waits, and what
comes after it too; what the disk has failed for ends this member. Source: KafkaRaftClientDriver, KafkaNetworkChannel.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastq.errors import ConnectionRefused, FastqError, KafkaError, KafkaStorageError, ProtocolError, UnsupportedVersion
from fastq.metadata import Node
from fastq_broker.log import failures
from fastq_broker.log.files import is_for_now, passes
from fastq_broker.log.partition_log import PartitionLog
from fastq_broker.raft import wire
from fastq_broker.raft.machine import RaftMachine
from fastq_broker.raft.messages import AnyAnswer, Ask, Fetch, Vote
from fastq_broker.raft.roles import Became, Committed, LoadSnapshot, NoRoom, RaftFatal, Role, Send
from fastq_broker.surroundings import Surroundings
from fastq_broker.turns import NEVER, Turns

if TYPE_CHECKING:
    from fastq.config import ClientConfig
    from fastq.net.aio import AsyncDriver
    from fastq.net.core import ClientCore

logger = logging.getLogger(__name__)

PRE_VOTE_VERSIONS = (2, 2)
PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
"""Before news is told again that a shortage kept from being followed: the first time, and at most, each twice the one before."""

News = Became | Committed | LoadSnapshot


class QuorumDriver:
    """One member of the quorum, at work. `on_news(news)` hears of roles, commits and snapshots, in their order; `on_fatal(error)` that
    this node must not go on. Without a `loop` it has no timers and reaches nobody, which a lonely voter has no need of; connections and
    what they need are made with the first question."""

    def __init__(
        self,
        machine: RaftMachine,
        log: PartitionLog,
        loop: asyncio.AbstractEventLoop | None,
        on_news: Callable[[News], object],
        on_fatal: Callable[[RaftFatal], object],
        *,
        config: Callable[[], ClientConfig] | None = None,
        clock: Callable[[], float] = time.monotonic,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`clock` gives seconds that only go on; `config` how to connect to others, by the network of `surroundings` (None: this
        machine's)."""
        self._here = surroundings or Surroundings()
        self.machine = machine
        self.loop = loop
        self.now = clock
        self._log = log
        self._on_news = on_news
        self._on_fatal = on_fatal
        self._config = config
        self._network: tuple[ClientCore, AsyncDriver] | None = None
        self._leaving: RaftFatal | None = None  # why this node goes, once the others know that it leads no more
        self._untold: deque[News] = deque()
        self._pause_s, self._tell_at = 0.0, 0.0
        self._turns = Turns(loop, clock, self._work, self._next_wakeup)

    @property
    def closed(self) -> bool:
        """Whether it takes part no more."""
        return self._turns.closed

    @property
    def is_behind(self) -> bool:
        """Whether news wait for a shortage to end: what the machine knows is not what was told."""
        return bool(self._untold)

    def start(self) -> None:
        """Take part."""
        self._log.on_advance(self._advanced)
        try:
            self.machine.start(self.now())
        except (KafkaStorageError, NoRoom) as error:  # who is the only voter leads at once, where it can
            if self.loop is None or not is_for_now(error):
                raise
            logger.error(
                "node %d cannot lead its metadata quorum for now, and tries again: %s",
                self.machine.config.key.node_id,
                error,
            )
        self.turn()

    def close(self) -> None:
        """Take part no more: questions on their way are given up. Idempotent."""
        if self.closed:
            return
        self._turns.close()
        self._log.remove_listener(self._advanced)
        if self._network is not None:
            self._network[1].close()

    def resign(self, reason: str) -> None:
        """Lead no more, because of what cannot be done here (a verb and the rest)."""
        if self.machine.role is Role.LEADER:
            logger.error(
                "node %d %s: it resigns from epoch %d", self.machine.config.key.node_id, reason, self.machine.epoch
            )
            self.machine.resign(self.machine.epoch, self.now())
            self._turns.soon()

    def turn(self) -> None:
        """Do what is due."""
        self._turns.turn()

    def check_log(self) -> None:
        """Have the log loaded, which a shortage may have left half cut: the machine does nothing before. Raises KafkaError."""
        if not self._log.loaded:
            self._log.load()

    def _is_whole(self) -> bool:
        """`check_log`; whether the machine may go on. Raises KafkaError where that does not come by itself, or there are no timers."""
        try:
            self.check_log()
        except KafkaError as error:
            if self.loop is None or not passes(error):
                raise
            failures.say(
                logger.warning,
                f"the half cut log of node {self.machine.config.key.node_id}",
                "node %d takes no part in its metadata quorum for now, and tries again: %s",
                self.machine.config.key.node_id,
                error,
            )
            return False
        return True

    def _next_wakeup(self, now: float) -> float:
        if not self._log.loaded:
            return now + PAUSE_MAX_S
        return min(self.machine.next_wakeup(now), self._tell_at if self._untold else NEVER)

    def _work(self, now: float) -> None:
        try:
            if not self._is_whole():
                return
            for effect in self.machine.poll(now):
                if isinstance(effect, Send):
                    self._ask(effect)
                else:
                    self._untold.append(effect)
                    self._tell_on(now)
            self._tell_on(now)
            if self._leaving is not None and self.machine.may_end:
                self._fatal(self._leaving)
        except RaftFatal as error:
            self._fatal(error)
        except (KafkaStorageError, OSError) as error:
            if self.loop is None:
                raise  # nobody else is in the quorum: who asked for it hears of it
            self.disk_failed(error)
        except Exception as error:
            if self.loop is None:
                raise
            self._failed_inside(error)

    def _tell_on(self, now: float) -> None:
        """Have what is untold heard, in its order, as far as there are descriptors and memory to follow it."""
        while self._untold and self._leaving is None and now >= self._tell_at:
            news = self._untold.popleft()
            try:
                self._tell(news)
                self._pause_s = 0.0
            except (FastqError, OSError) as error:
                if not is_for_now(error):
                    raise
                self._untold.appendleft(news)
                if self.loop is None:
                    raise
                self._pause_s = min(max(2 * self._pause_s, PAUSE_S), PAUSE_MAX_S)
                self._tell_at = now + self._pause_s
                failures.say(
                    logger.warning,
                    f"the news of node {self.machine.config.key.node_id}",
                    "node %d does not follow its metadata quorum for now, and tries again: %s",
                    self.machine.config.key.node_id,
                    error,
                )

    def _tell(self, news: News) -> None:
        """Have the news heard. Where what is committed cannot be followed this node goes, since it would lack it for good; one that leads
        hands over first."""
        try:
            self._on_news(news)
        except (RaftFatal, KafkaStorageError, OSError):
            raise
        except Exception as error:
            if self.loop is None or (isinstance(error, FastqError) and is_for_now(error)):
                raise
            logger.exception("node %d cannot follow its metadata quorum", self.machine.config.key.node_id)
            self._leave(RaftFatal(f"what is committed cannot be followed: {error}"))

    def _failed_inside(self, error: Exception) -> None:
        """The machine did not get through what it had to do: nobody knows what of it is done, so that it must not go on."""
        logger.error(
            "node %d fails in what it does for its metadata quorum", self.machine.config.key.node_id, exc_info=error
        )
        reason = RaftFatal(f"it fails inside, in epoch {self.machine.epoch}, by {error!r}: restart this node")
        if self._leaving is None:
            self._leave(reason)
        else:
            self._fatal(reason)

    def _leave(self, reason: RaftFatal) -> None:
        """Go, once the others know that this node leads no more."""
        self._leaving = reason
        self.machine.stop(self.now())
        self._turns.soon()

    def _fatal(self, error: RaftFatal) -> None:
        logger.critical("this node leaves its metadata quorum: %s", error)
        self.close()
        self._on_fatal(error)

    def disk_failed(self, error: KafkaStorageError | OSError) -> None:
        """What the machine had to keep is not kept: it has said nothing that rests on it, and must not go on as if it were."""
        if not self.closed:
            self._fatal(
                RaftFatal(f"what it must not forget cannot be written: {error}; mend the disk, then restart this node")
            )

    def _advanced(self, log: PartitionLog) -> None:
        """More of the log is there, or on disk. The machine may be in the middle of it: what is due is asked for once it is through, as a
        leader that wrote its first record after a slow disk had kept its vote would resign inside its own election."""
        self.machine.flushed(self.now())
        if self.loop is None:
            self.turn()
        else:
            self._turns.soon()

    # -- questions

    def _connections(self) -> tuple[ClientCore, AsyncDriver]:
        if self._network is None:
            from fastq.net.aio import AsyncDriver

            assert self._config is not None and self.loop is not None
            core = self._here.client(self._config(), of_controllers=True)
            self._network = core, AsyncDriver(core, self.loop)
        return self._network

    def _ask(self, effect: Send) -> None:
        """Send a question. One for which there is no descriptor or memory, as the first one needs what it is sent with, is as one that
        nobody answers."""
        try:
            self._send(effect)
        except (OSError, MemoryError) as error:
            failures.say(
                logger.warning,
                f"questions of node {self.machine.config.key.node_id}",
                "node %d cannot ask %s:%d for now, and tries again: %s",
                *(self.machine.config.key.node_id, *effect.endpoint, error),
            )
            assert self.loop is not None
            self.loop.call_soon(self._answered, effect.link, effect.ask, None, None)

    def _send(self, effect: Send) -> None:
        from fastq.net.peers import NODE_UNKNOWN

        core, network = self._connections()
        number, ask = effect.link, effect.ask
        node_id = number if number >= 0 else NODE_UNKNOWN - 2 - number  # that of a bootstrap server
        peer = core.separate(Node(node_id, effect.endpoint.host, effect.endpoint.port))

        def done(response: wire.Response | None, error: FastqError | None) -> None:
            self._answered(number, ask, response, error)

        core.send(
            peer,
            wire.request_of(ask),
            done,
            timeout_s=self.machine.config.request_timeout_s,
            versions=_versions(ask),
        )
        network.kick()

    def _answered(self, number: int, ask: Ask, response: wire.Response | None, error: FastqError | None) -> None:
        if self.closed:
            return
        answer = None
        if response is not None:
            try:
                answer = wire.answer_of(response)
            except ProtocolError as problem:
                logger.error("%s of node %d: %s", type(ask).__name__, self.machine.config.key.node_id, problem)
        self._hear(number, ask, answer, error)

    def _hear(self, number: int, ask: Ask, answer: AnyAnswer | None, error: FastqError | None) -> None:
        if self.closed:
            return
        try:
            if not self._is_whole():
                assert self.loop is not None
                self.loop.call_later(PAUSE_MAX_S, self._hear, number, ask, answer, error)
                return
            self.machine.answered(
                number,
                ask,
                answer,
                self.now(),
                unsupported=isinstance(error, UnsupportedVersion),
                refused=isinstance(error, ConnectionRefused),
            )
        except RaftFatal as problem:
            self._fatal(problem)
            return
        except (KafkaStorageError, OSError) as problem:
            self.disk_failed(problem)
            return
        except Exception as problem:
            self._failed_inside(problem)
            return
        self.turn()


def _versions(ask: Ask) -> tuple[int, int] | None:
    """What a question needs to be said in; None for what every version can."""
    if isinstance(ask, Fetch):
        return wire.FETCH_VERSIONS
    return PRE_VOTE_VERSIONS if isinstance(ask, Vote) and ask.pre else None
