"""The controller: it leads the metadata quorum, and makes the changes of the cluster's metadata.

A change is planned (`topics`, `config_changes`) against `pending`, the image with everything that was written, and written to the log
as one batch. It has an effect once it is committed: then `image` is replaced, the listeners are told, and who waits for it
(`flushed`, `durable`) goes on. So what they do to files, and tell to clients, follows what cannot be taken back any more.

Whoever leads the quorum (`quorum`) is active once all that came before is committed and known: it ends a transaction that another left
open, and on an empty log writes the bootstrap records. Who does not lead follows what is committed (`replay`). Who leads no more forgets
what it wrote and nobody committed; who waited for that is told. Source: KRaft (KIP-595, KIP-630, KIP-853), QuorumController.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastq.errors import (
    ConfigError,
    FastqError,
    KafkaStorageError,
    NotController,
    PolicyViolation,
)
from fastq.protocol.messages import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)
from fastq.values import NamedTuple
from fastq_broker import fail_closed
from fastq_broker.config import BrokerConfig, Listener
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller import alone, features, topics
from fastq_broker.controller.brokers import plan_cordons
from fastq_broker.controller.changes import Changes
from fastq_broker.controller.directory import MetadataDirectory
from fastq_broker.controller.image import (
    MetadataDelta,
    MetadataError,
    MetadataImage,
    Record,
)
from fastq_broker.controller.quorum import MetadataQuorum, closed_on_failure
from fastq_broker.controller.records import encode_record
from fastq_broker.controller.replay import Replayer
from fastq_broker.controller.snapshot import Batch, list_snapshots, read_snapshot
from fastq_broker.controller.snapshots import SnapshotKeeper
from fastq_broker.controller.storage import clean_shutdown_epoch
from fastq_broker.controller.view import CORDONED, ControlView
from fastq_broker.log import LogDir, failures
from fastq_broker.log.files import FdBudget, Files, passes
from fastq_broker.raft.driver import News
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.raft.roles import Committed, LoadSnapshot
from fastq_broker.surroundings import Surroundings
from fastq_broker.topic_config import BrokerLayers, TopicDefaults, cordoned_dirs

if TYPE_CHECKING:
    from fastq.config import ClientConfig

logger = logging.getLogger(__name__)

RECORDS_PER_CHANGE_MAX = 10_000
"""Kafka's bound on one batch of the metadata log (QuorumController.MAX_RECORDS_PER_BATCH)."""

_CANNOT_APPLY = "start this node with the version of the one that wrote it, or a later one"

Listen = Callable[[MetadataImage, MetadataDelta], None]


class _Change(NamedTuple):
    """A change that is written and not committed yet: the offset behind it, and what it makes of the change before."""

    end_offset: int
    image: MetadataImage
    delta: MetadataDelta


class Controller(Changes):
    """The metadata of the cluster, and the only one that changes it.

    Invariants: `image` is what is committed, `pending` what the log says up to its end. Listeners are called in the order of `subscribe`,
    once for each change, with the image after it and the delta that led to it. Used by the event loop's thread only; `flushed` may be
    awaited there.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Callable[[], int],
        monotonic_ms: Callable[[], int] | None = None,
        log_dir: LogDir | None = None,
        files: Files | None = None,
        budget: FdBudget | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`clock` gives the time in ms since 1970, `monotonic_ms` is for intervals (None: `clock`). Randomness, threads and connections
        are those of `surroundings` (None: this machine's).

        `log_dir` is the broker's object of metadata.log.dir, whose flusher the broker drains; None: one of the controller's own, which
        syncs in the caller's thread, with the broker's `files` and `budget` of open ones.
        """
        self.config = config
        self.node_id = config.node_id
        self.clock = clock
        self.image = MetadataImage()
        self.pending = self.image
        self.quorum: MetadataQuorum
        """This node's place in the quorum, once open."""
        self.snapshots: SnapshotKeeper
        self.broker_epoch = -1
        self.missing_directories: frozenset[bytes] = frozenset()
        """The ids of log directories that this node had and that are not here. They stay registered until `forget_directories`, so that
        the start after this one knows of them too."""
        self.unprotected: Sequence[str] = ()
        """What of the metadata would protect, is not honoured and may be ignored."""
        self.monotonic_ms = monotonic_ms or clock
        self._here = surroundings or Surroundings()
        self._directory = MetadataDirectory(
            config, clock=clock, monotonic_ms=self.monotonic_ms, log_dir=log_dir, files=files, budget=budget
        )
        self._written: deque[_Change] = deque()
        self._replayer = Replayer(self.image)
        self._opened = False  # and all that is in the log is known
        self._active = False  # this node leads the quorum, and knows all that came before
        self._unwritten: KafkaStorageError | None = None  # what keeps the leader of this term from being active
        self._leads_from = 0  # the first record of this leader's epoch lies below it
        self._clean_epoch = -1
        self._listeners: list[Listen] = []
        self.before_creation: Callable[[frozenset[str]], None] = lambda names: None
        """Called before topics of these names are made: what is left of older topics of a name goes first, on disk too. Raises
        KafkaStorageError."""
        self._defaults: TopicDefaults | None = None
        self._defaults_configs: tuple[Mapping[str, str | None], Mapping[str, str | None]] | None = None

    # Life

    @property
    def log_dir(self) -> LogDir:
        """The directory that holds the metadata log: one of log.dirs, or its own."""
        return self._directory.log_dir

    @property
    def is_active(self) -> bool:
        """Whether changes are made here."""
        return self._active

    def open(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        ports: Mapping[str, int] | None = None,
        client_config: Callable[[], ClientConfig] | None = None,
        on_fatal: Callable[[str], object] = lambda reason: None,
    ) -> MetadataImage:
        """Format what is new, and replay what is there. A node that is alone (without `loop`) leads the next epoch when this returns; one
        of several takes part, and listeners hear of what is committed as it comes. `ports` are those that were bound, by listener;
        `client_config` is how to connect to other controllers; `on_fatal` hears why this node has left the quorum for good.

        Comes before the logs are started, which takes away the marks of a clean stop that are looked for here. ConfigError when the
        directories belong to another node, cluster or quorum, need features that this node lacks, or have what would protect and is not
        honoured; MetadataError when the log is damaged. Listeners hear of everything found, as one delta from nothing.
        """
        if loop is not None:
            self._make_quorum(loop=loop, ports=ports, client_config=client_config)
            self.quorum.on_fatal = on_fatal
            with self.quorum.reading():
                self._join()
            return self.image
        if not self._opened:
            self.read()
        self._opened = False
        self.quorum.lead()
        self._opened = True
        return self.image

    def read(self) -> None:
        """The part of `open` that takes long where there is much metadata, for a node that is alone: all but taking the lead. May be done
        in a thread beforehand, if nobody uses the controller or the files of the log directories meanwhile. Raises what `open` does."""
        self._make_quorum()
        with self.quorum.reading():
            self._replay()
            first = alone.begun(self.pending, lambda: self._directory.bootstrap_records)
            problems = features.unsupported({**first.features, features.KRAFT_VERSION: self.quorum.kraft_version})
            if problems:
                raise ConfigError(f"{self._directory.path} cannot be opened: {'; '.join(problems)}")
            self.unprotected = fail_closed.unprotected(first, self.config.insecure_ignore)
        self._opened = True

    def _make_quorum(self, **others: Any) -> None:
        """Format what is new and open the log; `others`, where there are any: how they are reached."""
        self._clean_epoch = clean_shutdown_epoch([Path(directory) for directory in self.config.log_dirs])
        log = self._directory.open(self._clean_epoch, alone=not others)
        with closed_on_failure(log):
            self.quorum = MetadataQuorum(
                self.config,
                self._directory,
                log,
                clock=self.clock,
                monotonic_ms=self.monotonic_ms,
                on_news=self._news,
                surroundings=self._here,
                **others,
            )
            self.snapshots = SnapshotKeeper(
                self.config,
                log,
                self.quorum.history,
                monotonic_ms=self.monotonic_ms,
                changed=self.quorum.disk.snapshots_changed,
                threads=self._here.threads,
            )
        self.image = self.pending = MetadataImage(cluster_id=self._directory.cluster_id)
        self._replayer = Replayer(self.image)

    def _join(self) -> None:
        """Take part in a quorum of several: begin with the latest snapshot, and go on as records are committed."""
        snapshots = self.quorum.disk.snapshots
        if snapshots:
            self._load(snapshots[-1])
        if self.quorum.start_offset > self._replayer.next_offset:
            raise MetadataError(
                f"{self._directory.path} begins at offset {self.quorum.start_offset}, and no snapshot holds what was before"
            )
        self.quorum.start()
        self._opened = True

    def _load(self, snapshot: SnapshotId) -> None:
        """Begin anew with a snapshot. MetadataError where it cannot be read, or applied."""
        path = self._directory.path / snapshot.file_name
        batches = list(read_snapshot(path))
        try:
            delta = self._replayer.begin_at(batches, snapshot.end_offset, snapshot.epoch)
        except MetadataError as error:
            raise MetadataError(f"{path} holds a record that cannot be applied: {error}; {_CANNOT_APPLY}") from error
        self.snapshots.found(snapshot.end_offset, self.clock() - batches[-1].timestamp_ms)
        self._publish(self._replayer.image, delta)

    def _news(self, news: News) -> None:
        """What became of the quorum."""
        if isinstance(news, Committed):
            self._committed(news.high_watermark)
            return
        if isinstance(news, LoadSnapshot):
            self._load(news.snapshot)
            return
        self._unwritten = None  # of a term that is over: who leads again and is not active yet knows nothing against it
        if self.quorum.leads:
            self._leads_from = self.quorum.end_offset
        elif self._active or self._written:
            self._active = False
            self._written.clear()
            self.pending = self.image

    def _replay(self) -> None:
        """Read the latest snapshot and the log behind it into `pending`; listeners hear of it, as of one change, once it is committed.
        MetadataError when something is damaged."""
        replayer = self._replayer
        for snapshot in reversed(list_snapshots(self._directory.path)):
            try:
                batches = list(read_snapshot(self._directory.path / snapshot.file_name))
            except MetadataError as error:
                logger.error("%s; the snapshot before it is tried", error)
                continue
            replayer.begin_at(batches, snapshot.end_offset, snapshot.epoch)
            break
        if self.quorum.start_offset > replayer.next_offset:
            raise MetadataError(
                f"{self._directory.path} begins at offset {self.quorum.start_offset}, "
                f"and no snapshot holds what was before (the latest ends at {replayer.next_offset})"
            )
        written_ms = replayer.image.timestamp_ms
        self.snapshots.found(replayer.next_offset, self.clock() - written_ms if written_ms else 0)
        self._take(self.quorum.batches(replayer.next_offset))
        replayer.give(force=True)
        self.pending = replayer.image
        delta = MetadataDelta.between(self.image, self.pending)
        self._written = deque([_Change(self.quorum.end_offset, self.pending, delta)])

    def _take(self, batches: Iterator[Batch]) -> None:
        """Apply batches of the log, the next ones. MetadataError, which says where, for one that cannot be read or applied."""
        replayer = self._replayer
        try:
            for batch in batches:
                self.snapshots.grown(batch.size_bytes)
                replayer.take([batch])
        except MetadataError as error:
            raise MetadataError(
                f"{self.quorum.file_of(replayer.next_offset)} holds a record that cannot be applied, in the batch at offset "
                f"{replayer.next_offset}: {error}; {_CANNOT_APPLY}"
            ) from error

    def register_broker(self, listeners: Sequence[Listener]) -> int:
        """Register this broker with the addresses it advertises, unfence it, and let it lead what it can.

        Answers the broker's epoch. A partition's leader epoch goes up where the last stop was not clean, or nobody led.
        """
        before = self.pending.brokers.get(self.node_id)
        if before is not None:
            self.missing_directories = frozenset(before.directories).difference(self.directory_ids)
        epoch = self.quorum.end_offset
        self._commit(
            [
                alone.registration(
                    self.node_id,
                    listeners,
                    epoch,
                    rack=self.config.broker_rack,
                    directories={*self.directory_ids, *self.missing_directories},
                )
            ]
        )
        self.broker_epoch = epoch
        unfence = BrokerRegistrationChangeRecord(broker_id=self.node_id, broker_epoch=epoch, fenced=-1)
        bump = before is not None and before.epoch != self._clean_epoch
        self._commit([*self._cordons(), unfence, *alone.elections(self.pending, self.node_id, bump=bump)])
        self.quorum.settle()
        return epoch

    def cordon(self) -> None:
        """Have the metadata know which log directories get no new replicas now, where this node is alone."""
        records = self._cordons()
        if records:
            self._commit(records)

    def _cordons(self) -> list[Record]:
        if self.pending.features.get(features.METADATA_VERSION, 0) < CORDONED:
            return []
        paths = cordoned_dirs(self._layers_of(self.pending))
        ids = zip(map(os.path.abspath, self.config.log_dirs), self.directory_ids, strict=True)
        cordoned = sorted(directory_id for path, directory_id in ids if path in paths)
        return plan_cordons(self.pending.brokers[self.node_id], cordoned)

    def forget_directories(self) -> None:
        """Nothing is in the missing directories that the metadata knows: they do not belong to this node any more."""
        self.missing_directories = frozenset()
        self._commit(
            [
                BrokerRegistrationChangeRecord(
                    broker_id=self.node_id, broker_epoch=self.broker_epoch, log_dirs=sorted(self.directory_ids)
                )
            ]
        )

    def close(self) -> None:
        """Fence this broker, so that whoever opens the directory next need not wait for it; write everything to disk. Nothing is done
        where the metadata could not be opened."""
        if not self._opened:
            return
        with ExitStack() as closing:  # each, whatever becomes of those before; what was raised goes on
            closing.callback(self.quorum.close)
            closing.callback(self.snapshots.close)
            registered = self.pending.brokers.get(self.node_id)
            if (
                registered is not None
                and registered.epoch == self.broker_epoch
                and self._active
                and not self.quorum.offline
            ):
                fence = BrokerRegistrationChangeRecord(broker_id=self.node_id, broker_epoch=self.broker_epoch, fenced=1)
                try:
                    self._commit([fence])
                except KafkaStorageError as error:
                    if not passes(error):
                        raise
                    # A full disk: the next start registers it anew, as after a crash.
                    logger.warning("the metadata does not hear of this stop: %s", error)

    def subscribe(self, listener: Listen) -> None:
        """Call `listener(image, delta)` for each change that is committed from now on."""
        self._listeners.append(listener)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use other settings of this broker from now on, of those that may be altered while it runs; listeners hear of it as of a change
        of these. Nothing is written."""
        self.config = config
        self._defaults = None
        delta = MetadataDelta(self.image)
        delta.changed_configs.add((int(ResourceType.BROKER), str(self.node_id)))
        for listener in self._listeners:
            failures.attempt("following a change of the settings", partial(listener, self.image, delta))

    def tick(self, now_ms: int) -> None:
        """Write a snapshot when enough was written or enough time has passed, and drop what it makes superfluous."""
        self.quorum.tick()
        if self.quorum.leads and not self._active and not self.quorum.driver.is_behind:
            self._committed(self.quorum.high_watermark)
        self.snapshots.tick(self.image, now_ms)

    async def flushed(self) -> None:
        """Wait until every change made so far is committed, and the listeners have heard of it. Calls at the same time share a flush.
        KafkaStorageError where the disk fails, NotController where another node leads by now."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(error: FastqError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.quorum.when_committed(self.quorum.end_offset, end)
        await done

    def settle(self) -> None:
        """Have every change made so far committed, and the listeners told, before this returns. KafkaStorageError when the disk fails."""
        self.quorum.settle()

    # What the image means

    @property
    def cluster_id(self) -> str:
        """22 characters of base64url, the same in every directory of the cluster."""
        return self.image.cluster_id

    @property
    def directory_ids(self) -> Sequence[bytes]:
        """The ids of this node's log directories, in the order of log.dirs."""
        return self._directory.directory_ids

    @property
    def clean_epoch(self) -> int:
        """The broker epoch that the marks of a clean stop agree on; -1 when the last stop was none."""
        return self._clean_epoch

    @property
    def epoch(self) -> int:
        """The quorum's epoch, which this node leads."""
        return self.quorum.epoch

    @property
    def finalized_features(self) -> Mapping[str, int]:
        """Finalized levels for ApiVersions; their epoch is the image's offset."""
        return self._features_of(self.image)

    def _features_of(self, image: MetadataImage) -> Mapping[str, int]:
        if self.quorum.kraft_version:
            return {**image.features, features.KRAFT_VERSION: self.quorum.kraft_version}
        return image.features

    @property
    def pending_features(self) -> Mapping[str, int]:
        """Finalized levels as far as they are written."""
        return self._features_of(self.pending)

    @property
    def view(self) -> ControlView:
        """What is written, as the plans of elections and placements see it."""
        return self.view_of(self.pending)

    def view_of(self, image: MetadataImage) -> ControlView:
        """What plans see of an image, with the settings that it makes."""
        return ControlView(image, self._defaults_of(image))

    @property
    def layers(self) -> BrokerLayers:
        """The broker's settings, from the strongest to the file."""
        return self._layers_of(self.image)

    def _layers_of(self, image: MetadataImage) -> BrokerLayers:
        return BrokerLayers(
            self.config,
            image.configs_of(ResourceType.BROKER, str(self.node_id)),
            image.configs_of(ResourceType.BROKER, ""),
        )

    @property
    def topic_defaults(self) -> TopicDefaults:
        """Topic settings in force where a topic overrides nothing; changes with the broker's dynamic settings."""
        return self._defaults_of(self.image)

    def _defaults_of(self, image: MetadataImage) -> TopicDefaults:
        layers = self._layers_of(image)
        if self._defaults is None or (layers.this_broker, layers.all_brokers) != self._defaults_configs:
            self._defaults = TopicDefaults(layers)
            self._defaults_configs = (layers.this_broker, layers.all_brokers)
        return self._defaults

    # Inside

    def commit(self, records: Sequence[Record], *, whole: bool = True) -> None:
        """Write what was planned against `pending`, if anything: in one batch, or (not `whole`) in several, in the order given, of which a
        crash may leave the first ones. NotController, KafkaStorageError; PolicyViolation where one batch has no room for it all, and
        nothing was written."""
        if not records:
            return
        if whole:
            values = self._encoded(records)
            if len(records) > RECORDS_PER_CHANGE_MAX:
                raise PolicyViolation(
                    f"a change of {len(records)} records is to be made whole, and one may have {RECORDS_PER_CHANGE_MAX}: ask for less"
                )
            try:
                topics.check_size(values)
            except topics.Refused as refusal:
                raise PolicyViolation(refusal.message) from None
            self._commit(records, values)
            return
        for start in range(0, len(records), RECORDS_PER_CHANGE_MAX):
            self._commit(records[start : start + RECORDS_PER_CHANGE_MAX])

    def _encoded(self, records: Sequence[Record]) -> list[bytes]:
        version = self.pending.features.get(features.METADATA_VERSION, features.BOOTSTRAP[features.METADATA_VERSION])
        return [encode_record(record, version) for record in records]

    def _commit(self, records: Sequence[Record], values: Sequence[bytes] | None = None) -> None:
        """Write a change. The delta is built first: records that do not fit are never written. NotController, KafkaStorageError."""
        self._check_active()
        delta = MetadataDelta(self.pending)
        for record in records:
            delta.replay(record)
        if values is None:
            values = self._encoded(records)
        image = delta.apply(self.quorum.end_offset + len(values) - 1, self.epoch, self.clock())
        self.snapshots.grown(self.quorum.append(values))
        self.pending = image
        self._written.append(_Change(self.quorum.end_offset, image, delta))
        self.quorum.drain()

    def _check_active(self) -> None:
        if self._active:
            return
        offline = self._directory.log_dir.offline
        if offline is not None:
            raise offline.with_traceback(None)
        if self._unwritten is not None and self.quorum.leads:
            raise self._unwritten.with_traceback(None)
        raise NotController(f"node {self.node_id} is not the active controller")

    def _committed(self, high_watermark: int) -> None:
        """Let take effect what is committed: what this node wrote, or what others did."""
        while self._written and self._written[0].end_offset <= high_watermark:
            end_offset, image, delta = self._written.popleft()
            self._replayer.go_on(image, end_offset)
            self._publish(image, delta)
        if self._active:
            return
        replayer = self._replayer
        if replayer.next_offset < high_watermark:
            batches = self.quorum.batches(replayer.next_offset)
            self._take(itertools.takewhile(lambda batch: batch.base_offset < high_watermark, batches))
            found = replayer.give()
            if found is not None:
                self._publish(replayer.image, found)
        if self.quorum.leads and high_watermark >= self._leads_from and replayer.next_offset >= self._leads_from:
            self._activate()

    def _publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.image = image
        if not self._active:
            self.pending = image
        for listener in self._listeners:  # the change is made: one that fails does not keep it from the others
            failures.attempt("following a change of the metadata", partial(listener, image, delta))

    def _activate(self) -> None:
        """All that came before is known: from now on changes are made here, if what a leader begins with can be written; `tick` tries it
        again."""
        found = self._replayer.give(force=True)
        if found is not None:
            self._publish(self._replayer.image, found)
        has_begun = features.METADATA_VERSION in self.pending.features
        bootstrap = [] if has_begun else self._directory.bootstrap_records
        self._active, self._unwritten = True, None
        try:
            if self._replayer.in_transaction:
                self._commit([AbortTransactionRecord(reason="the controller failed over")])
                self._replayer.abandon()
            if not has_begun:
                self._commit(self._first_change(bootstrap))
        except KafkaStorageError as error:  # which has been said
            self._active, self._unwritten = False, error

    def _first_change(self, bootstrap: Sequence[Record]) -> list[Record]:
        """What a new cluster begins with, as one change, as Kafka writes it."""
        records = list(bootstrap)
        if any(
            isinstance(record, FeatureLevelRecord) and record.name == features.ELIGIBLE_LEADER_REPLICAS
            for record in records
        ):
            # Eligible leader replicas need one min.insync.replicas for the whole cluster (KIP-966).
            value = str(self.config.min_insync_replicas)
            records.append(
                ConfigRecord(
                    resource_type=int(ResourceType.BROKER), resource_name="", name="min.insync.replicas", value=value
                )
            )
        return [BeginTransactionRecord(name="Bootstrap records"), *records, EndTransactionRecord()]
