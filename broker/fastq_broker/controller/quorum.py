"""This node's place in the metadata quorum: what the controller writes goes through the raft machine, and counts once it is committed.

Rules: a change has an effect only when `committed` says so. `settle` has everything committed before it returns, which only a voter that
is alone can promise. Source: RaftClient as QuorumController uses it (KIP-595, KIP-853).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from fastq.errors import FastqError, KafkaError, KafkaStorageError, NotController
from fastq.protocol.uuid import uuid_to_str
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.commit_times import CommitTimes
from fastq_broker.controller.directory import MetadataDirectory
from fastq_broker.controller.image import MetadataError
from fastq_broker.controller.snapshot import Batch, decode_batches
from fastq_broker.log.partition_log import PartitionLog
from fastq_broker.raft.driver import News, QuorumDriver
from fastq_broker.raft.machine import RaftMachine
from fastq_broker.raft.messages import VoterAnswer
from fastq_broker.raft.roles import Became, Committed, RaftConfig, RaftFatal, Role
from fastq_broker.raft.storage import DiskLog, DiskVotes
from fastq_broker.raft.voters import VoterHistory, VoterSet
from fastq_broker.surroundings import Surroundings

if TYPE_CHECKING:
    from fastq.config import ClientConfig

logger = logging.getLogger(__name__)

READ_BYTES = 8 << 20

Waiter = Callable[[FastqError | None], object]


@contextmanager
def closed_on_failure(log: PartitionLog) -> Iterator[None]:
    """For what is made of a log that has been opened: where that fails the log does not stay open, nor says that all of it is on disk."""
    try:
        yield
    except BaseException:
        log.abandon()
        raise


class MetadataQuorum:
    """The metadata log as its one writer and its readers on this node see it. Event-loop thread only.

    Invariant: who waits is told in the order of the offsets, once, after `on_news` has heard of the same offset.
    """

    def __init__(
        self,
        config: BrokerConfig,
        directory: MetadataDirectory,
        log: PartitionLog,
        *,
        clock: Callable[[], int],
        monotonic_ms: Callable[[], int],
        on_news: Callable[[News], object],
        loop: asyncio.AbstractEventLoop | None = None,
        ports: Mapping[str, int] | None = None,
        client_config: Callable[[], ClientConfig] | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`clock` gives ms since 1970, for the times of records; `monotonic_ms` is for everything else. `on_news` hears of roles, commits
        and snapshots. `loop`, `ports` (those that were bound, by listener) and `client_config` (how to connect to others) are for a quorum
        of several: without them, ConfigError where the log says that the quorum has other voters. `surroundings` (None: this machine) has
        their randomness and connections."""
        here = surroundings or Surroundings()
        self._directory = directory
        self._log = log
        self._on_news = on_news
        self.on_fatal: Callable[[str], object] = lambda reason: None
        """Hears why this node has left the quorum for good."""
        self._waiters: deque[tuple[int, Waiter]] = deque()
        self.commit_times = CommitTimes(monotonic_ms)
        self.disk = DiskLog(log, clock, directory.reserve)
        votes = DiskVotes(
            directory.path,
            directory.cluster_id,
            lambda: self.history.kraft_version,
            lambda: self.history.voters.ids,
            directory.reserve,
        )
        raft, static = self._among_others(config, ports or {}) if loop is not None else self._alone(config)
        self._machine = RaftMachine(raft, self.disk, votes, static, Random(here.random.getrandbits(64)))
        snapshots = self.disk.snapshots
        directory.check_voters(self.history, snapshots[-1] if snapshots else None, alone=loop is None)
        self._driver = QuorumDriver(
            self._machine,
            log,
            loop,
            self._news,
            self._fatal,
            config=client_config,
            clock=lambda: monotonic_ms() / 1000,
            surroundings=here,
        )

    def _alone(self, config: BrokerConfig) -> tuple[RaftConfig, VoterSet]:
        """This node as the only voter, whatever the configuration says of others."""
        directory, me = self._directory, self._directory.own_voter
        said = [item.voters for item in self.disk.said_from(0) if item.voters is not None]
        directory.check_alone(said[-1] if said else None)
        known = said[-1].voter(me.key.node_id) if said else None
        if known is not None and not known.key.is_of(me.key):
            logger.error(
                "%s: the quorum knows this node by the directory id %s, meta.properties says %s; the quorum's counts, as no other node "
                "is in it: put that into meta.properties",
                directory.path,
                uuid_to_str(known.key.directory_id),
                uuid_to_str(me.key.directory_id),
            )
            me = replace(me, key=known.key)
        if known is not None and not config.advertised_controller_listeners:
            me = replace(me, endpoints=known.endpoints)  # without a listener of its own there is nothing to correct
        raft = RaftConfig(
            key=me.key,
            cluster_id=directory.cluster_id,
            listener=config.controller_listener_names[0],
            endpoints=me.endpoints,
            versions=me.versions,
        )
        return raft, VoterSet([me])

    def _among_others(self, config: BrokerConfig, ports: Mapping[str, int]) -> tuple[RaftConfig, VoterSet]:
        """This node as one of several, as the configuration has them."""
        from fastq_broker.cluster import settings  # a node that is alone has no need of it

        directory = self._directory
        raft = settings.raft_config(config, directory.voter_directory, directory.cluster_id, ports)
        return raft, settings.static_voters(config)

    # -- what is known

    @property
    def history(self) -> VoterHistory:
        """Who votes, and the finalized kraft.version."""
        return self._machine.history

    @property
    def kraft_version(self) -> int:
        """The finalized kraft.version; 0 where the log does not say."""
        return self._machine.history.kraft_version

    @property
    def voters(self) -> VoterSet:
        """The voters that the log names; those of the configuration where it names none."""
        return self._machine.history.voters

    @property
    def voter_directory(self) -> bytes:
        """The id of the directory that holds the metadata log."""
        return self._directory.voter_directory

    @property
    def epoch(self) -> int:
        """The quorum's epoch."""
        return self._machine.epoch

    @property
    def leads(self) -> bool:
        """Whether this node leads the quorum."""
        return self._machine.role is Role.LEADER

    @property
    def leader_id(self) -> int:
        """Who leads the quorum, as far as that is known here; -1 for nobody."""
        return self._machine.leader_id

    @property
    def driver(self) -> QuorumDriver:
        """Runs the machine; the router of the controller's listener asks it."""
        return self._driver

    @property
    def end_offset(self) -> int:
        """One above the last record written."""
        return self._log.log_end_offset

    @property
    def start_offset(self) -> int:
        """Where the log begins; a snapshot holds what was before."""
        return self._log.log_start_offset

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed."""
        return max(self._machine.high_watermark, 0)

    @property
    def offline(self) -> bool:
        """Whether the disk has failed, so that nothing more can be written."""
        return self._directory.log_dir.offline is not None

    # -- life

    @contextmanager
    def reading(self) -> Iterator[None]:
        """For what is done with the log until it is open: where that fails nothing stays open."""
        with closed_on_failure(self._log):
            try:
                yield
            except BaseException:
                self._driver.close()
                raise

    def start(self) -> None:
        """Take part; a voter that is alone leads when this returns."""
        self._driver.start()
        self._directory.drain()

    def lead(self) -> None:
        """Take part as the only voter: it leads when this returns, and all is committed. Raises KafkaStorageError."""
        with self.reading():
            self.start()
            for _ in range(2):  # what came before, and with what a leader begins
                self.settle()

    def close(self) -> None:
        """Close the log, with everything on disk, and take part no more."""
        try:
            self._log.close()
            self._directory.log_dir.flusher.wait()
            self._directory.closed()
        finally:
            self._driver.close()
            self._fail(NotController("this node stops"))

    def _fatal(self, error: RaftFatal) -> None:
        self._fail(NotController(str(error)))
        self.on_fatal(str(error))

    # -- records

    def batches(self, start: int) -> Iterator[Batch]:
        """The batches of the log from an offset on. MetadataError where they cannot be read."""
        offset = start
        while offset < self._log.log_end_offset:
            try:
                data = self._log.read(offset, READ_BYTES).read()
            except MemoryError as error:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), self.file_of(offset)) from error
            if not data:
                raise MetadataError(f"{self._log.path} has no records at offset {offset}")
            try:
                for batch in decode_batches(data):
                    if batch.base_offset >= start:
                        yield batch
                    offset = batch.last_offset + 1
            except ValueError as error:
                raise MetadataError(f"{self._log.path} is damaged behind offset {offset}: {error}") from error

    def file_of(self, offset: int) -> str:
        """The file of the log that has this offset, or the directory."""
        files = [segment.log.path for segment in self._log.segments if segment.base_offset <= offset]
        return files[-1] if files else self._log.path

    def append(self, values: Sequence[bytes]) -> int:
        """Write records as one change; how many bytes they take. NotController where this node does not lead, KafkaStorageError when the
        disk fails: then nothing was written."""
        if not self.leads:
            raise NotController(f"node {self._machine.config.key.node_id} does not lead the metadata quorum")
        begun_at = self.end_offset
        try:
            if self._directory.reserve.starting:
                size_bytes = self._directory.reserve.spend(lambda: self._machine.append(values))
            else:
                size_bytes = self._machine.append(values)
        except KafkaStorageError:
            self._hand_over()
            raise
        except BaseException:
            if self.end_offset > begun_at and self._driver.loop is not None:
                # Who writes it does not know that it is there.
                self._driver.resign("fails inside behind records that it has written")
            raise
        self.commit_times.written(self.end_offset)
        self._driver.turn()
        return size_bytes

    def _hand_over(self) -> None:
        """Nothing can be written here: another one's disk may have room."""
        if self.voters.ids != {self._machine.config.key.node_id}:
            self._driver.resign("cannot write to the metadata log that it leads")

    def renounce(self) -> None:
        """Lead no more, as what an active controller has to do fails inside. Where nobody else is in the quorum this node leads again after
        an election time-out, in another epoch. Nothing without a loop."""
        if self._driver.loop is not None:
            self._driver.resign("fails in what an active controller does")

    def finalize_kraft_version(self, *, validate_only: bool = False) -> VoterAnswer:
        """Write that kraft.version is 1 and who the voters are, or (`validate_only`) say whether that could be. KafkaStorageError when the
        disk fails."""
        try:
            answer = self._machine.finalize_version(self._driver.now(), validate_only=validate_only)
        except KafkaStorageError:
            self._hand_over()
            raise
        self._driver.turn()
        return answer

    def drain(self) -> None:
        """Commit what can be, where nobody else drives the disk."""
        self._directory.drain()

    def tick(self) -> None:
        """What a node that is ready does now and then."""
        self.drain()
        self._directory.reserve.tick()

    def when_committed(self, offset: int, callback: Waiter) -> None:
        """Call back once the records below `offset` are committed, or with the error that keeps them from it."""
        if self.high_watermark >= offset:
            callback(None)
            return
        self._waiters.append((offset, callback))
        self._log.wait_durable(offset, self._told_of_disk)
        self._directory.drain()

    def settle(self) -> None:
        """Have everything that was written committed, in this call. KafkaStorageError when the disk fails."""
        offline = self._directory.log_dir.offline
        if offline is not None:
            raise offline.with_traceback(None)
        self._log.sync_now()

    def _told_of_disk(self, error: KafkaError | None) -> None:
        if error is not None:
            self._fail(error)

    def _fail(self, error: FastqError) -> None:
        waiters, self._waiters = self._waiters, deque()
        for _, callback in waiters:
            callback(error)

    def _news(self, news: News) -> None:
        if isinstance(news, Became):
            self.commit_times.forget()
        if isinstance(news, Became) and news.role is not Role.LEADER:
            self._fail(NotController("another node leads the metadata quorum by now"))
        self._on_news(news)
        if not isinstance(news, Committed):
            return
        self.commit_times.committed(news.high_watermark)
        while self._waiters and self._waiters[0][0] <= news.high_watermark:
            self._waiters.popleft()[1](None)
