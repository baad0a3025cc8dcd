"""The metadata log on disk: `__cluster_metadata-0` with its quorum state, snapshots and bootstrap records.

Rules: an ordinary partition log in `fsync` durability (a change is committed once it is on disk), written in batches of
one change, each in the quorum's epoch. Everything below the oldest snapshot kept may go: old segments and snapshots are
removed when a newer snapshot is on disk. Source: KafkaMetadataLog, SnapshotGenerator, BootstrapDirectory.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shlex
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fastq.errors import ConfigError, KafkaError
from fastq.protocol.messages import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    VotersRecord,
)
from fastq.protocol.uuid import METADATA_TOPIC_ID
from fastq_broker.config import BrokerConfig, Listener
from fastq_broker.controller import features, repair
from fastq_broker.controller.formatting import feature_records, write_bootstrap, write_founders
from fastq_broker.controller.image import MetadataDelta, MetadataError, MetadataImage, Record
from fastq_broker.controller.inspection import Inspection, Verdict, inspect, judge, kept_batches
from fastq_broker.controller.records import (
    ControlType,
    control_batch,
    data_batches,
    encode_control,
)
from fastq_broker.controller.snapshot import (
    Batch,
    decode_batches,
    image_records,
    list_snapshots,
    read_snapshot,
    replay_batches,
    write_snapshot,
)
from fastq_broker.controller.storage import (
    BOOTSTRAP_CHECKPOINT,
    METADATA_DIRECTORY,
    METADATA_TOPIC,
    QUORUM_STATE,
    QuorumState,
    format_directories,
    sync_directory,
)
from fastq_broker.log import checkpoints
from fastq_broker.log.config import LogConfig
from fastq_broker.log.failures import failures
from fastq_broker.log.files import FdBudget, Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.log_dir import LogDir
from fastq_broker.log.partition_log import PartitionLog
from fastq_broker.log.retention import apply_retention
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet

logger = logging.getLogger(__name__)

CONTROLLER_PORT = 9093
READ_BYTES = 8 << 20
RETRY_MS = 10_000
"""A snapshot that a shortage of descriptors, memory or threads has prevented is tried again after this."""


Effect = Callable[[KafkaError | None], None]
"""What follows a change once that is on disk; called with the error that keeps it from there."""


class LogPoint(NamedTuple):
    """A place in the metadata: the last record taken, its epoch and its time."""

    offset: int = -1
    epoch: int = 0
    timestamp_ms: int = 0


class MetadataLog:
    """Reads and writes the metadata log of one node. Event-loop thread only.

    Invariant: `end_offset` is one above the last record written; `last` is what `replay` read up to, and
    `in_transaction` says whether that is inside of a transaction of records that nobody ended.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Callable[[], int],
        monotonic_ms: Callable[[], int],
        log_dir: LogDir | None = None,
    ) -> None:
        """`log_dir` is the directory object of metadata.log.dir that the broker's logs share; its flusher must be drained
        by whoever made it. None: one of its own, which syncs in the caller's thread."""
        self._config = config
        self._clock = clock
        self._monotonic_ms = monotonic_ms
        self._root = Path(config.metadata_log_dir)
        self.directory = self._root / METADATA_DIRECTORY
        self._own_flusher: ManualFlusher | None = None
        self._log_dir = log_dir or self._make_log_dir()
        self.last = LogPoint()
        self.is_new = False
        self.in_transaction = False
        self.cluster_id = ""
        self.directory_ids: Sequence[bytes] = ()
        self.kraft_version: int | None = None
        self.voters: VotersRecord | None = None
        self._epoch = 0
        self._state = QuorumState(0)
        self._effects: deque[tuple[int, Effect]] = deque()
        self._state_problem: ConfigError | None = None
        self._quorum_epoch: int | None = None
        self._voter_directory = bytes(16)
        self._bytes_since_snapshot = 0
        self._last_snapshot_ms = 0
        self._last_snapshot_offset = 0
        self._no_snapshot_before_ms = 0
        self._writer: ThreadPoolExecutor | None = None
        self._snapshot: Future[None] | None = None

    def _make_log_dir(self) -> LogDir:
        files = Files()
        self._own_flusher = ManualFlusher(files)
        return LogDir(str(self._root), files, FdBudget(64), self._own_flusher, monotonic_ms=self._monotonic_ms)

    # Opening

    def open(self, clean_epoch: int = -1) -> str:
        """Format what is new and open the log; answers the cluster id. `clean_epoch`: the broker epoch of the last clean stop, -1 for none.

        ConfigError when a directory does not fit, MetadataError when changes would be lost.
        """
        roots = list(dict.fromkeys([*map(Path, self._config.log_dirs), self._root]))
        found = format_directories(roots, self._config.node_id)
        self.cluster_id = found[0].cluster_id
        self.directory_ids = [item.directory_id for item in found[: len(self._config.log_dirs)]]
        self._voter_directory = found[roots.index(self._root)].directory_id
        if not self.directory.exists():
            self._check_unused(roots, "is not there")
            self._check_founds()
            self._format(found[0].cluster_id)
        self._remove_unfinished()
        self._read_quorum_state()
        end = self._check_log(clean_epoch)
        if end == 0:
            self._check_unused(roots, "holds no record")
        self._log = PartitionLog(
            self._log_dir,
            str(self.directory),
            METADATA_TOPIC,
            0,
            config=LogConfig(
                segment_bytes=self._config.metadata_log_segment_bytes,
                segment_ms=self._config.metadata_log_segment_ms,
                retention_ms=-1,
                max_message_bytes=READ_BYTES * 2,
                durability="fsync",
            ),
            clock=self._clock,
            topic_id=METADATA_TOPIC_ID,
            clean=False,
        )
        self._log.load()
        if self._log.log_end_offset != end:
            raise MetadataError(
                f"{self.directory} was found to end at offset {end}, and loading it ended at {self._log.log_end_offset}: "
                "does another process write there?"
            )
        self.is_new = self._log.log_end_offset == 0
        return self.cluster_id

    def _check_unused(self, roots: Sequence[Path], what: str) -> None:
        """ConfigError when there are logs of partitions although the metadata that knows them is gone: they would all be forgotten."""
        for root in roots:
            logs = [
                name
                for name in os.listdir(root)
                if name != METADATA_DIRECTORY and (root / name / checkpoints.PARTITION_METADATA).exists()
            ]
            if logs:
                raise ConfigError(
                    f"{self.directory} {what}, but {root} holds the logs of {len(logs)} partitions ({logs[0]}, for one), which a new "
                    "metadata log would not know: restore that directory, set metadata.log.dir to where it is, or "
                    "choose an empty data directory"
                )

    def _check_founds(self) -> None:
        """ConfigError for a directory that was formatted without voters, for a node that asks others for them: alone it would found a
        cluster beside theirs."""
        config = self._config
        joins = config.controller_quorum_bootstrap_servers and not config.controller_quorum_voters
        if joins and (self._root / BOOTSTRAP_CHECKPOINT).exists():
            raise ConfigError(
                f"{self._root} was formatted to join other controllers (--no-initial-controllers), and this version runs a node alone: "
                "format an empty directory with --standalone, or run this node with Apache Kafka"
            )

    def _check_log(self, clean_epoch: int) -> int:
        """Find out whether the log can be trusted, and let it begin anew behind a snapshot where it is damaged below that;
        answers where it ends. MetadataError when changes would be lost."""
        found, verdict = self._inspect(clean_epoch)
        if verdict.losses:
            raise MetadataError(repair.refusal(repair.plan_repair(found, verdict), self._repair_command()))
        for snapshot, reason in found.unreadable:
            aside = repair.set_aside(self.directory / snapshot.file_name)
            logger.error("%s; nothing is lost by it, and it is %s now", reason, aside.name)
        if verdict.begin_at is None:
            return max(found.end_offset, 0)
        for damage in found.damages:
            logger.error("%s; a snapshot holds what was there", damage)
        kept = list(kept_batches(found, verdict.begin_at))
        end = kept[-1].next_offset if kept else verdict.begin_at
        logger.error(
            "%s: the log begins anew at offset %d, where its latest snapshot ends, and ends at %d (it was %d to %d)",
            self.directory,
            verdict.begin_at,
            end,
            found.start_offset,
            found.end_offset,
        )
        repair.begin_anew(self.directory, (batch.read() for batch in kept), verdict.begin_at)
        return end

    def _inspect(self, clean_epoch: int) -> tuple[Inspection, Verdict]:
        try:
            found = inspect(self.directory, stopped_cleanly=clean_epoch >= 0, quorum_epoch=self._quorum_epoch)
        except OSError as error:
            raise MetadataError(
                f"{error.filename or self.directory} cannot be read: {error.strerror}. Nothing was changed: check the disk "
                "and what lies there, give the broker's user read and write access, or restore it from a copy"
            ) from error
        return found, judge(found, broker_epoch=clean_epoch, quorum_epoch=self._quorum_epoch)

    def plan_repair(self, clean_epoch: int) -> repair.Plan | None:
        """What a repair of the log would do, for one that is not open; None when nothing is to be accepted. ConfigError, OSError."""
        if not self.directory.is_dir():
            raise ConfigError(f"{self.directory} is not there: there is no metadata log to repair")
        self._read_quorum_state()
        found, verdict = self._inspect(clean_epoch)
        return repair.plan_repair(found, verdict) if verdict.losses else None

    def _repair_command(self) -> str:
        where = f"--data-dir {shlex.quote(self._config.log_dirs[0])}"
        if os.path.abspath(self._config.metadata_log_dir) != os.path.abspath(self._config.log_dirs[0]):
            where += f" --set metadata.log.dir={shlex.quote(self._config.metadata_log_dir)}"
        return f"fastq-broker repair {where}"

    def _format(self, cluster_id: str) -> None:
        """Write what a new metadata directory begins with: identity and voters, and the bootstrap records where it has none.

        The directory is filled under another name and renamed, so that one that has its name is whole.
        """
        now_ms = self._clock()
        unfinished = self._root / f"{METADATA_DIRECTORY}{repair.UNFINISHED}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        (unfinished / checkpoints.PARTITION_METADATA).write_bytes(
            checkpoints.format_partition_metadata(METADATA_TOPIC_ID)
        )
        write_founders(unfinished, self._own_voters(), now_ms)
        unfinished.rename(self.directory)
        sync_directory(self._root)
        if not (self._root / BOOTSTRAP_CHECKPOINT).exists():
            write_bootstrap(self._root, feature_records(features.BOOTSTRAP), features.BOOTSTRAP, now_ms)
        logger.info("formatted %s for cluster %s", self._root, cluster_id)

    def _own_voters(self) -> VoterSet:
        """This node as the only voter, where its controller is reached (or would be)."""
        listeners = self._config.advertised_controller_listeners or [
            Listener(self._config.controller_listener_names[0], self._advertised_host(), CONTROLLER_PORT)
        ]
        endpoints = {item.name: Endpoint(item.host or self._advertised_host(), item.port) for item in listeners}
        key = ReplicaKey(self._config.node_id, self._voter_directory)
        return VoterSet([Voter(key, endpoints, features.SUPPORTED[features.KRAFT_VERSION])])

    def _advertised_host(self) -> str:
        return self._config.advertised_listeners[0].host

    def _remove_unfinished(self) -> None:
        for name in os.listdir(self.directory):
            path = self.directory / name
            if name.endswith((repair.UNFINISHED, ".checkpoint.deleted")) and not path.is_dir():
                path.unlink(missing_ok=True)

    @property
    def bootstrap_records(self) -> list[Record]:
        """What a new cluster begins with: feature levels, credentials; read when it is needed only. MetadataError."""
        path = self._root / BOOTSTRAP_CHECKPOINT
        if not path.exists():
            return feature_records(features.BOOTSTRAP)
        try:
            return [record for batch in read_snapshot(path) for record in batch.records]
        except MetadataError as error:
            raise MetadataError(
                f"{error}: it says what the new cluster begins with; remove it to begin with the levels of this version"
            ) from error

    def _read_quorum_state(self) -> None:
        try:
            state = QuorumState.read(self.directory)
        except ConfigError as error:
            self._state_problem = error
            return
        except OSError as error:
            self._state_problem = ConfigError(f"{self.directory / QUORUM_STATE} cannot be read: {error.strerror}")
            return
        if state is None:
            return
        others = [voter for voter in state.voters if voter != self._config.node_id]
        if others:
            raise ConfigError(f"{self.directory} belongs to a quorum with the voters {others}: this version runs alone")
        self._state = state
        self._quorum_epoch = state.leader_epoch

    # Replay

    def replay(self, delta: MetadataDelta) -> None:
        """Feed the latest snapshot and the log behind it to `delta`. MetadataError when something is damaged."""
        start = 0
        found = self._latest_snapshot()
        if found is not None:
            latest, batches = found
            start = latest.end_offset
            for batch in batches:
                for record in batch.records:
                    delta.replay(record)
                self._note(batch)
            self.last = LogPoint(start - 1, latest.epoch, self.last.timestamp_ms)
        if self._log.log_start_offset > start:
            raise MetadataError(
                f"{self.directory} begins at offset {self._log.log_start_offset}, "
                f"and no snapshot holds what was before (the latest ends at {start})"
            )
        self._last_snapshot_offset = start
        age_ms = self._clock() - self.last.timestamp_ms if self.last.timestamp_ms else 0
        self._last_snapshot_ms = self._monotonic_ms() - max(age_ms, 0)
        self._replay_log(start, delta)
        self._check_voters()

    def _latest_snapshot(self) -> tuple[SnapshotId, list[Batch]] | None:
        """The newest snapshot that is whole; one that is damaged is stepped over with an error in the log."""
        for snapshot in reversed(list_snapshots(self.directory)):
            try:
                return snapshot, list(read_snapshot(self.directory / snapshot.file_name))
            except MetadataError as error:
                logger.error("%s; the snapshot before it is tried", error)
        return None

    def _replay_log(self, start: int, delta: MetadataDelta) -> None:
        self.in_transaction = replay_batches(self._noted(self._batches(start)), delta)

    def _noted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches of the log, each noted once it has been replayed."""
        for batch in batches:
            self._bytes_since_snapshot += batch.size_bytes
            yield batch
            self._note(batch)

    def _batches(self, start: int) -> Iterator[Batch]:
        offset = start
        while offset < self._log.log_end_offset:
            data = self._log.read(offset, READ_BYTES).read()
            if not data:
                raise MetadataError(f"{self.directory} has no records at offset {offset}")
            try:
                for batch in decode_batches(data):
                    if batch.base_offset >= start:
                        yield batch
                    offset = batch.last_offset + 1
            except ValueError as error:
                raise MetadataError(f"{self.directory} is damaged behind offset {offset}: {error}") from error

    def _note(self, batch: Batch) -> None:
        self._take_controls(batch)
        self.last = LogPoint(batch.last_offset, batch.epoch, batch.timestamp_ms)

    def _take_controls(self, batch: Batch) -> None:
        for key, value in batch.controls:
            kind = int.from_bytes(key[2:4], "big")
            if kind == ControlType.KRAFT_VERSION:
                self.kraft_version = KRaftVersionRecord.from_bytes(value, 0).kraft_version
            elif kind == ControlType.KRAFT_VOTERS:
                self.voters = VotersRecord.from_bytes(value, 0)

    def _check_voters(self) -> None:
        if self.voters is None:
            if self._state_problem is not None:
                raise ConfigError(
                    f"{self._state_problem}, and the log does not say who else belongs to its quorum: restore that file, or remove it if "
                    "this node is alone in it"
                ) from self._state_problem
            return
        others = [voter.voter_id for voter in self.voters.voters if voter.voter_id != self._config.node_id]
        if others:
            raise ConfigError(f"{self.directory} belongs to a quorum with the voters {others}: this version runs alone")
        if self._state_problem is not None:
            aside = repair.set_aside(self.directory / QUORUM_STATE)
            logger.error(
                "%s; this node is alone in its quorum, so the log's epoch will do, and the file is %s now",
                self._state_problem,
                aside.name,
            )

    # Writing

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
        """Everything below it is on disk."""
        return self._log.high_watermark

    @property
    def offline(self) -> bool:
        """Whether the disk has failed, so that nothing more can be written."""
        return self._log_dir.offline is not None

    @property
    def epoch(self) -> int:
        """The epoch that this node leads; 0 before `begin_epoch`."""
        return self._epoch

    @property
    def voter_directory(self) -> bytes:
        """The id of the directory that holds the metadata log."""
        return self._voter_directory

    def begin_epoch(self) -> int:
        """Become the leader of a new epoch: persist it first, then say so in the log. Answers the epoch."""
        self._epoch = max(self._state.leader_epoch, self.last.epoch) + 1
        node_id = self._config.node_id
        QuorumState(
            self._epoch,
            leader_id=node_id,
            data_version=1 if self.kraft_version else self._state.data_version,
            cluster_id=self.cluster_id,
            voters=(node_id,),
        ).write(self.directory)
        now_ms = self._clock()
        controls = [encode_control(ControlType.LEADER_CHANGE, self._leader_change())]
        if self.is_new and self.kraft_version:
            controls.append(
                encode_control(ControlType.KRAFT_VERSION, KRaftVersionRecord(kraft_version=self.kraft_version))
            )
            controls.append(encode_control(ControlType.KRAFT_VOTERS, self.voters))
        batch = control_batch(controls, base_offset=0, epoch=self._epoch, timestamp_ms=now_ms)
        self._append(batch, now_ms)
        return self._epoch

    def _leader_change(self) -> LeaderChangeMessage:
        voter = LeaderChangeMessage.Voter(voter_id=self._config.node_id)
        return LeaderChangeMessage(leader_id=self._config.node_id, voters=[voter], granting_voters=[voter])

    def append(self, values: Sequence[bytes], now_ms: int) -> None:
        """Append records in this epoch. KafkaStorageError when the disk fails: the change did not happen."""
        for batch, _ in data_batches(values, base_offset=0, epoch=self._epoch, timestamp_ms=now_ms):
            self._append(batch, now_ms)

    def _append(self, batch: bytearray, now_ms: int) -> None:
        self._log.append(batch, leader_epoch=self._epoch, now_ms=now_ms, from_client=False)
        self._bytes_since_snapshot += len(batch)

    async def flushed(self) -> None:
        """Wait until everything appended so far is on disk. KafkaStorageError when the disk fails."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(error: KafkaError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._log.wait_durable(self._log.log_end_offset, end)
        if self._own_flusher is not None:
            self._own_flusher.wait()
        await done

    def flush(self) -> None:
        """Wait, in this thread, until everything appended so far is on disk. KafkaStorageError when the disk fails."""
        errors: list[KafkaError | None] = []
        self._log.wait_durable(self._log.log_end_offset, errors.append)
        if not errors:
            self._log_dir.flusher.wait()
        if errors and errors[0] is not None:
            raise errors[0]

    def when_durable(self, effect: Effect) -> None:
        """Call `effect` once everything appended so far is on disk, after those that were asked for before; or with the error that
        keeps it from the disk."""
        end = self._log.log_end_offset
        self._effects.append((end, effect))
        self._log.wait_durable(end, lambda error: self._run_effects(end, error))

    def settle(self) -> None:
        """Have everything appended so far on disk, and what waits for that done, in this call and thread. KafkaStorageError when
        the disk fails."""
        end = self._log.log_end_offset
        if self._log_dir.offline is not None:
            raise self._log_dir.offline.with_traceback(None)
        try:
            for segment in self._log.segments_from(self._log.on_disk_offset):
                self._log.files.sync_data(segment.log.handle().fd)
            self._log.files.sync_directory(self._log.path)
        except OSError as error:
            raise self._log_dir.fail("syncing", error.filename or self._log.path, error) from error
        self._run_effects(end, None)

    def _run_effects(self, end: int, error: KafkaError | None) -> None:
        effects = self._effects
        while effects and effects[0][0] <= end:
            effect = effects.popleft()[1]
            failures.attempt("what follows a change of the metadata", partial(effect, error))

    # Snapshots

    def tick(self, image: MetadataImage, now_ms: int) -> None:
        """Begin a snapshot of `image` when metadata.log.max.record.bytes.between.snapshots were written or
        metadata.log.max.snapshot.interval.ms went by since the last one, and something is new.

        It is written in another thread; the tick after its end drops what it makes superfluous.
        """
        if self._own_flusher is not None:
            self._log_dir.tick()
            self._own_flusher.wait()
        if self._snapshot is not None:
            if self._snapshot.done():
                self._end_snapshot(now_ms)
        elif self._is_snapshot_due(image):
            self._begin_snapshot(image, now_ms)

    def _is_snapshot_due(self, image: MetadataImage) -> bool:
        if image.offset + 1 <= self._last_snapshot_offset or not self._bytes_since_snapshot or self.offline:
            return False
        if image.offset >= self.high_watermark or self._monotonic_ms() < self._no_snapshot_before_ms:
            return False  # not on disk yet: a snapshot must not know more than the log
        interval = self._config.metadata_log_max_snapshot_interval_ms
        late = interval > 0 and self._monotonic_ms() - self._last_snapshot_ms >= interval
        return late or self._bytes_since_snapshot >= self._config.metadata_log_max_record_bytes_between_snapshots

    def _begin_snapshot(self, image: MetadataImage, now_ms: int) -> None:
        made = SnapshotId(image.offset + 1, image.epoch)
        self._last_snapshot_offset = made.end_offset
        self._last_snapshot_ms = self._monotonic_ms()
        self._bytes_since_snapshot = 0
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="fastq-snapshot")
        try:
            self._snapshot = self._writer.submit(self._write_snapshot, made, image, now_ms)
        except RuntimeError as error:  # no thread can be started now
            self._writer, self._snapshot = None, Future()
            self._snapshot.set_exception(OSError(errno.EAGAIN, str(error)))

    def _write_snapshot(self, made: SnapshotId, image: MetadataImage, now_ms: int) -> None:
        """Runs in another thread: reads the image, which never changes, and nothing else that does."""
        write_snapshot(
            self.directory / made.file_name,
            list(image_records(image)),
            epoch=image.epoch,
            timestamp_ms=now_ms,
            last_timestamp_ms=image.timestamp_ms,
            kraft_version=self.kraft_version,
            voters=self.voters,
        )

    def _end_snapshot(self, now_ms: int) -> KafkaError | None:
        """Take down how the last snapshot ended; a failed one takes the directory offline as any failed write does, but for a
        shortage, after which it is due again a while later. Answers why there is none."""
        ended, self._snapshot = self._snapshot, None
        assert ended is not None
        try:
            ended.result()
        except OSError as error:
            self._last_snapshot_offset = 0
            self._bytes_since_snapshot += self._config.metadata_log_max_record_bytes_between_snapshots
            self._no_snapshot_before_ms = self._monotonic_ms() + RETRY_MS
            return self._log_dir.refuse("writing a metadata snapshot", error.filename or str(self.directory), error)
        self._clean(now_ms)
        return None

    def snapshot(self, image: MetadataImage, now_ms: int) -> SnapshotId:
        """Write a snapshot of `image` and wait for it. KafkaStorageError when the disk fails."""
        self.flush()
        if self._snapshot is not None:
            wait([self._snapshot])
            self._end_snapshot(now_ms)
        self._begin_snapshot(image, now_ms)
        assert self._snapshot is not None
        wait([self._snapshot])
        failure = self._end_snapshot(now_ms) or self._log_dir.offline
        if failure is not None:
            raise failure
        return SnapshotId(image.offset + 1, image.epoch)

    def _clean(self, now_ms: int) -> None:
        """Keep the two latest snapshots and the log from the older of them on: a damaged one can be stepped over."""
        snapshots = list_snapshots(self.directory)
        for old in snapshots[:-2]:
            (self.directory / old.file_name).unlink(missing_ok=True)
        self._log.delete_records_before(snapshots[-2:][0].end_offset)
        apply_retention(self._log, now_ms)

    def close(self) -> None:
        """Write everything to disk and close the log."""
        if self._writer is not None:
            self._writer.shutdown()
        self._log.close()
        self._log_dir.flusher.wait()
