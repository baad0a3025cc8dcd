"""The directory of the metadata log: `__cluster_metadata-0`, formatted, looked through, and opened.

Rules: an ordinary partition log in `fsync` durability. What does not fit this node is refused and never changed; a log that is damaged
above its latest snapshot is never cut (`repair`). Source: KafkaMetadataLog, Formatter, BootstrapDirectory.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fastq.errors import ConfigError
from fastq.protocol.uuid import METADATA_TOPIC_ID, uuid_to_str
from fastq_broker.config import BrokerConfig, Listener
from fastq_broker.config_cluster import is_among_others
from fastq_broker.controller import features, repair
from fastq_broker.controller.formatting import feature_records, write_bootstrap, write_founders
from fastq_broker.controller.image import MetadataError, Record
from fastq_broker.controller.inspection import Inspection, Verdict, inspect, judge, kept_batches
from fastq_broker.controller.snapshot import read_snapshot
from fastq_broker.controller.storage import (
    BOOTSTRAP_CHECKPOINT,
    META_PROPERTIES,
    METADATA_DIRECTORY,
    METADATA_TOPIC,
    QUORUM_STATE,
    MetaProperties,
    QuorumState,
    format_directories,
    sync_directory,
)
from fastq_broker.log import checkpoints
from fastq_broker.log.config import LogConfig
from fastq_broker.log.files import FdBudget, Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.log_dir import LogDir
from fastq_broker.log.partition_log import PartitionLog
from fastq_broker.log.reserve import Reserve
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.raft.storage import first_offset
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet

logger = logging.getLogger(__name__)

CONTROLLER_PORT = 9093
FILES_MAX = 64
"""Of the metadata log, where the process has no other logs."""
BATCH_BYTES_MAX = 16 << 20
_BEING_FORMATTED = f"{METADATA_DIRECTORY}{repair.UNFINISHED}"
_IN_USE = ".in-use"
"""There from before the first write until the log is closed. The mark of the last clean stop goes later, when the logs of topics are
opened: after a crash before that it is still there, and says nothing of what the metadata log was given since."""


class MetadataDirectory:
    """Where this node keeps the metadata log, its snapshots and its votes. Event-loop thread only.

    Invariant once open: `log` ends where it was found to end; `directory_ids` are those of log.dirs, in their order.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Callable[[], int],
        monotonic_ms: Callable[[], int],
        log_dir: LogDir | None = None,
        files: Files | None = None,
        budget: FdBudget | None = None,
    ) -> None:
        """`log_dir` is the directory object of metadata.log.dir that the broker's logs share; its flusher must be drained
        by whoever made it. None: one of its own, which syncs in the caller's thread (`drain`), with the `files` and the `budget` of the
        logs that the process has besides: what is open counts once, and each makes room for all."""
        self._config = config
        self._clock = clock
        self._monotonic_ms = monotonic_ms
        self._root = Path(config.metadata_log_dir)
        self.path = self._root / METADATA_DIRECTORY
        self._own_flusher: ManualFlusher | None = None
        self.log_dir = log_dir or self._make_log_dir(files or Files(), budget or FdBudget(FILES_MAX))
        self.reserve = Reserve(self._root, self.log_dir.files, monotonic_ms)
        """Room for what this node must write to take part, on a disk that is full."""
        self.cluster_id = ""
        self.directory_ids: Sequence[bytes] = ()
        self.voter_directory = bytes(16)
        """The id of the directory that holds the metadata log."""
        self._state_problem: ConfigError | None = None
        self._quorum_epoch: int | None = None
        self._state_version = 0
        self._state_voters: Sequence[int] = ()  # which version 0 names

    def _make_log_dir(self, files: Files, budget: FdBudget) -> LogDir:
        self._own_flusher = ManualFlusher(files)
        return LogDir(str(self._root), files, budget, self._own_flusher, monotonic_ms=self._monotonic_ms)

    def drain(self) -> None:
        """Have what is appended on disk, where nobody else does it."""
        if self._own_flusher is not None:
            self.log_dir.tick()
            self._own_flusher.wait()

    def open(self, clean_epoch: int = -1, *, alone: bool = True) -> PartitionLog:
        """Format what is new and open the log. `clean_epoch`: the broker epoch of the last clean stop, -1 for none; `alone`: no other node
        is in the quorum.

        ConfigError when a directory does not fit, or where a node among others has not been formatted; MetadataError when changes would
        be lost.
        """
        roots = list(dict.fromkeys([*map(Path, self._config.log_dirs), self._root]))
        self._check_elsewhere(roots)
        if not alone:
            self._check_formatted(roots)
        had_identity = any(MetaProperties.read(root) is not None for root in roots)
        found = format_directories(roots, self._config.node_id)
        self.cluster_id = found[0].cluster_id
        self.directory_ids = [item.directory_id for item in found[: len(self._config.log_dirs)]]
        self.voter_directory = found[roots.index(self._root)].directory_id
        if not alone and not any(self.path.glob("*.checkpoint")):
            # Others know the topics: what is on disks that are left goes on.
            roots = [self._root]
        if not self.path.exists():
            self._check_unused(roots, "is not there")
            if alone:
                self._check_founds()
                self._tell_anew(had_identity=had_identity)
            self._format(found[0].cluster_id, founds=alone)
        self._remove_unfinished()
        self._read_quorum_state()
        others = [voter for voter in self._state_voters if voter != self._config.node_id]
        if others and alone:
            raise ConfigError(self._belongs_to(others))
        end = self._check_log(clean_epoch, alone=alone)
        if end == 0:
            self._check_unused(roots, "holds no record")
        log = PartitionLog(
            self.log_dir,
            str(self.path),
            METADATA_TOPIC,
            0,
            config=LogConfig(
                segment_bytes=self._config.metadata_log_segment_bytes,
                segment_ms=self._config.metadata_log_segment_ms,
                retention_ms=-1,
                max_message_bytes=BATCH_BYTES_MAX,
                durability="fsync",
            ),
            clock=self._clock,
            topic_id=METADATA_TOPIC_ID,
            log_start_offset=first_offset(self.path),
            clean=False,
        )
        (self.path / _IN_USE).touch()
        sync_directory(self.path)
        log.takes_long = True  # nothing goes on before it is read
        log.load()
        if log.log_end_offset != end:
            raise MetadataError(
                f"{self.path} was found to end at offset {end}, and loading it ended at {log.log_end_offset}: "
                "does another process write there?"
            )
        return log

    def closed(self) -> None:
        """The log is closed, and all of it on disk."""
        if self.log_dir.offline is None:
            with suppress(OSError):  # a start that finds it is the more careful
                (self.path / _IN_USE).unlink(missing_ok=True)

    def _check_formatted(self, roots: Sequence[Path]) -> None:
        """ConfigError for a node among others whose metadata directory has no identity: it would be of a cluster of its own."""
        known = [MetaProperties.read(root) for root in roots]
        if known[roots.index(self._root)] is not None:
            return
        if (self._root / METADATA_DIRECTORY).exists() or (self._root / BOOTSTRAP_CHECKPOINT).exists():
            return  # it had one: `format_directories` refuses it
        cluster_id = next((properties.cluster_id for properties in known if properties is not None), None)
        if cluster_id is not None:
            raise ConfigError(
                f"{self._root} is not formatted, and other directories of this node are: mount the disk that was there, or, where it is "
                f"lost, run {self._format_command(cluster_id)}"
            )
        first = (
            ", and for its first controller with --standalone in place of --no-initial-controllers"
            if self._joins
            else ""
        )
        raise ConfigError(
            f"{self._root} is not formatted, and this node is one of several, which share a cluster's id: mount the disk that was there, "
            f"or, before the first start and where the disk is lost, run {self._format_command('ID')}, with the ID that meta.properties "
            f"of the others names; for a new cluster with one that fastq-broker random-uuid prints{first}"
        )

    def _check_elsewhere(self, roots: Sequence[Path]) -> None:
        """ConfigError for a metadata log in another directory of this node, as Apache Kafka refuses it: a new one would begin here without
        its topics, users and rules, or one that is older than that would go on."""
        for root in roots:
            other = root / METADATA_DIRECTORY
            if other.is_dir() and other.resolve() != self.path.resolve():
                raise ConfigError(
                    f"{other} is a metadata log, and so is {self.path}, of metadata.log.dir: find out which of them counts, and move the "
                    "other one to where no log directory is"
                    if self.path.exists()
                    else f"{other} is the metadata log of this node, and metadata.log.dir is {self._root}, where there is none: set it to "
                    f"{root}, or move {other} there; where {self._root} has no {META_PROPERTIES}, give it one: version=1, and node.id and "
                    f"cluster.id as in {root}"
                )

    def _tell_anew(self, *, had_identity: bool) -> None:
        """A node that is not new, and whose metadata log is not here, may have had it elsewhere."""
        if had_identity and not (self._root / BOOTSTRAP_CHECKPOINT).exists():
            logger.warning(
                "%s is of a node that was started before, and holds no metadata log: a new one begins, without topics, users and rules. "
                "Where there was one, stop this node, set metadata.log.dir to where it is, or restore it from a copy, and remove %s",
                self._root,
                self.path,
            )

    @property
    def _joins(self) -> bool:
        """Whether this is a controller whose quorum is in the log, and not in the configuration."""
        return "controller" in self._config.process_roles and not self._config.controller_quorum_voters

    def _check_unused(self, roots: Sequence[Path], what: str) -> None:
        """ConfigError when there are logs of partitions although the metadata that knows them is gone: they would all be forgotten."""
        for root in roots:
            logs = [
                name
                for name in os.listdir(root)
                if name not in (METADATA_DIRECTORY, _BEING_FORMATTED)
                and (root / name / checkpoints.PARTITION_METADATA).exists()
            ]
            if logs:
                raise ConfigError(
                    f"{self.path} {what}, but {root} holds the logs of {len(logs)} partitions ({logs[0]}, for one), which a new "
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
                f"{self._root} was formatted to join other controllers (--no-initial-controllers), and its configuration names "
                "itself only: set controller.quorum.bootstrap.servers to them, or format an empty directory with --standalone"
            )

    def _check_log(self, clean_epoch: int, *, alone: bool) -> int:
        """Find out whether the log can be trusted, and let it begin anew behind a snapshot where it is damaged below that;
        answers where it ends. MetadataError when changes would be lost."""
        found = self._inspect(clean_epoch)
        verdict = self._judge(found, clean_epoch, alone=alone)
        if verdict.losses and not alone:
            raise MetadataError(self._refusal_among_others(verdict.losses))
        if verdict.losses:
            raise MetadataError(repair.refusal(repair.plan_repair(found, verdict), self._repair_command()))
        for snapshot, reason in found.unreadable:
            aside = repair.set_aside(self.path / snapshot.file_name)
            logger.error("%s; nothing is lost by it, and it is %s now", reason, aside.name)
        if verdict.begin_at is None:
            return max(found.end_offset, 0)
        for damage in found.damages:
            logger.error("%s; a snapshot holds what was there", damage)
        kept = list(kept_batches(found, verdict.begin_at)) if verdict.keeps else []
        end = kept[-1].next_offset if kept else verdict.begin_at
        logger.error(
            "%s: the log begins anew at offset %d, where its latest snapshot ends, and ends at %d (it was %d to %d)",
            self.path,
            verdict.begin_at,
            end,
            found.start_offset,
            found.end_offset,
        )
        repair.begin_anew(self.path, (batch.read() for batch in kept), verdict.begin_at)
        return end

    def _inspect(self, clean_epoch: int) -> Inspection:
        stopped_cleanly = clean_epoch >= 0 and not (self.path / _IN_USE).exists()
        try:
            return inspect(self.path, stopped_cleanly=stopped_cleanly, quorum_epoch=self._quorum_epoch)
        except OSError as error:
            raise MetadataError(
                f"{error.filename or self.path} cannot be read: {error.strerror}. Nothing was changed: check the disk "
                "and what lies there, give the broker's user read and write access, or restore it from a copy"
            ) from error

    def _judge(self, found: Inspection, clean_epoch: int, *, alone: bool) -> Verdict:
        votes = alone or "controller" in self._config.process_roles
        return judge(found, broker_epoch=clean_epoch, quorum_epoch=self._quorum_epoch, alone=alone, votes=votes)

    def plan_repair(self, clean_epoch: int) -> repair.Plan | None:
        """What a repair of the log would do, for one that is not open; None when nothing is to be accepted. OSError;
        ConfigError where the node is one of several, of which none is repaired."""
        if not self.path.is_dir():
            raise ConfigError(f"{self.path} is not there: there is no metadata log to repair")
        properties = MetaProperties.read(self._root)  # a node that is alone need not be told its own id
        me = self._config.node_id if properties is None else properties.node_id
        self._read_quorum_state()
        found = self._inspect(clean_epoch)
        alone = not is_among_others(self._config) and {*self._state_voters, *repair.named_voters(found)} <= {me}
        verdict = self._judge(found, clean_epoch, alone=alone)
        if verdict.losses and not alone:
            raise ConfigError(self._refusal_among_others(verdict.losses))
        return repair.plan_repair(found, verdict) if verdict.losses else None

    def _refusal_among_others(self, reasons: Sequence[str]) -> str:
        properties = MetaProperties.read(self._root)
        cluster_id = "ID" if properties is None else properties.cluster_id
        return repair.refusal_among_others(reasons, self._root, self._format_command(cluster_id))

    def _format_command(self, cluster_id: str) -> str:
        """How metadata.log.dir gets a new identity in its cluster."""
        command = f"fastq-broker format --cluster-id {cluster_id}"
        if any(os.path.abspath(path) != os.path.abspath(self._root) for path in self._config.log_dirs):
            command += " --ignore-formatted"
        return f"{command} --config FILE{' --no-initial-controllers' if self._joins else ''}"

    def _repair_command(self) -> str:
        import shlex

        where = f"--data-dir {shlex.quote(self._config.log_dirs[0])}"
        if os.path.abspath(self._config.metadata_log_dir) != os.path.abspath(self._config.log_dirs[0]):
            where += f" --set metadata.log.dir={shlex.quote(self._config.metadata_log_dir)}"
        return f"fastq-broker repair {where}"

    def _format(self, cluster_id: str, *, founds: bool) -> None:
        """Write what a new metadata directory begins with: identity and voters, and the bootstrap records where it has none.

        The directory is filled under another name and renamed, so that one that has its name is whole.
        """
        now_ms = self._clock()
        unfinished = self._root / _BEING_FORMATTED
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        (unfinished / checkpoints.PARTITION_METADATA).write_bytes(
            checkpoints.format_partition_metadata(METADATA_TOPIC_ID)
        )
        if founds:
            write_founders(unfinished, VoterSet([self.own_voter]), now_ms)
        unfinished.rename(self.path)
        sync_directory(self._root)
        if not (self._root / BOOTSTRAP_CHECKPOINT).exists():  # no `format` was here
            write_bootstrap(self._root, feature_records(features.BOOTSTRAP), features.BOOTSTRAP, now_ms)
            logger.info("formatted %s for cluster %s", self._root, cluster_id)

    @property
    def own_voter(self) -> Voter:
        """This node as a voter, where its controller is reached (or would be)."""
        listeners = self._config.advertised_controller_listeners or [
            Listener(self._config.controller_listener_names[0], self._advertised_host(), CONTROLLER_PORT)
        ]
        endpoints = {item.name: Endpoint(item.host or self._advertised_host(), item.port) for item in listeners}
        key = ReplicaKey(self._config.node_id, self.voter_directory)
        return Voter(key, endpoints, features.SUPPORTED[features.KRAFT_VERSION])

    def _advertised_host(self) -> str:
        return self._config.advertised_listeners[0].host

    def _remove_unfinished(self) -> None:
        for name in os.listdir(self.path):
            path = self.path / name
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
            state = QuorumState.read(self.path)
        except ConfigError as error:
            self._state_problem = error
            return
        except OSError as error:
            self._state_problem = ConfigError(f"{self.path / QUORUM_STATE} cannot be read: {error.strerror}")
            return
        if state is not None:
            self._quorum_epoch, self._state_version = state.leader_epoch, state.data_version
            self._state_voters = state.voters

    def _belongs_to(self, others: Sequence[int]) -> str:
        return f"{self.path} belongs to a quorum with the voters {others}: name them in controller.quorum.bootstrap.servers"

    def check_voters(self, history: VoterHistory, latest: SnapshotId | None, *, alone: bool) -> None:
        """MetadataError where the log has lost who votes: this node has known it by the log, and now neither that nor the `latest` snapshot
        says it. Without a snapshot the records that named them may never have been on disk."""
        lost = self._state_version > 0 and history.kraft_version == 0 and latest is not None and latest.end_offset > 0
        if lost and (alone or not self._config.controller_quorum_voters):
            reason = (
                f"{self.path / QUORUM_STATE} was written under kraft.version 1, where the log names the voters of the quorum, and neither "
                "the log nor its latest snapshot names any"
            )
            if alone:
                raise MetadataError(f"{reason}: restore {self.path} from a copy")
            raise MetadataError(self._refusal_among_others([reason]))
        me = ReplicaKey(self._config.node_id, self.voter_directory)
        known = history.voters.voter(me.node_id)
        votes = not alone and "controller" in self._config.process_roles
        if votes and known is not None and not known.key.is_of(me):
            logger.warning(
                "%s has the directory id %s, and the quorum knows this node as a voter by %s: it has no vote until that one is removed "
                "(`fastq quorum remove-controller %d --directory-id %s`) and this one added (`fastq quorum add-controller`); "
                "controller.quorum.auto.join.enable does both, and meta.properties is the place to put an id right that was changed",
                self._root,
                uuid_to_str(me.directory_id),
                uuid_to_str(known.key.directory_id),
                me.node_id,
                uuid_to_str(known.key.directory_id),
            )

    def check_alone(self, voters: VoterSet | None) -> None:
        """ConfigError when the log says that others belong to the quorum, or (None: it does not say) nothing else does."""
        if voters is None:
            if self._state_problem is not None:
                raise ConfigError(
                    f"{self._state_problem}, and the log does not say who else belongs to its quorum: restore that file, or remove it if "
                    "this node is alone in it"
                ) from self._state_problem
            return
        others = sorted(voters.ids - {self._config.node_id})
        if others:
            raise ConfigError(self._belongs_to(others))
        if self._state_problem is not None:
            aside = repair.set_aside(self.path / QUORUM_STATE)
            logger.error(
                "%s; this node is alone in its quorum, so the log's epoch will do, and the file is %s now",
                self._state_problem,
                aside.name,
            )
