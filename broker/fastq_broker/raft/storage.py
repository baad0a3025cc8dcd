"""The machine's log and votes on disk, as Apache Kafka keeps them.

    __cluster_metadata-0/           an ordinary partition log in `fsync` durability
        <end offset>-<epoch>.checkpoint        snapshots that are whole; `.checkpoint.part` is one that is being received
        quorum-state                           epoch, leader, vote: version 0, from kraft.version 1 on version 1

Rules: the log and its snapshots are this machine's alone. What a snapshot that was received holds counts from the moment when it has
its name, which it gets once it is on disk and read through. Sources: KafkaMetadataLog, FileQuorumStateStore, FileRawSnapshotWriter.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fastq._native.records import decode_records, iter_headers, verify_crc
from fastq._native.wire import DecodeError, Reader
from fastq.errors import ConfigError, KafkaStorageError
from fastq.protocol.messages import KRaftVersionRecord, LeaderChangeMessage, VotersRecord
from fastq_broker.controller.image import MetadataError
from fastq_broker.controller.records import ControlType, control_batch, data_batches, encode_control
from fastq_broker.controller.snapshot import Batch, list_snapshots, read_snapshot
from fastq_broker.controller.storage import QuorumState, sync_directory
from fastq_broker.log.files import is_for_now, is_shortage, passes
from fastq_broker.log.partition_log import PartitionLog
from fastq_broker.log.reserve import Reserve
from fastq_broker.raft.log import Vote
from fastq_broker.raft.messages import EpochEnd, SnapshotId
from fastq_broker.raft.voters import ReplicaKey, Said, VoterSet

logger = logging.getLogger(__name__)

READ_BYTES = 8 << 20
PART = ".part"


def first_offset(directory: Path) -> int:
    """Where the log in a directory begins: the files of a log that was trimmed still hold records below that, and only the snapshots say
    so. 0 without any. Raises OSError."""
    bases = [int(name[:20]) for name in os.listdir(directory) if name.endswith(".log") and name[:20].isdigit()]
    base = min(bases, default=0)
    return min((item.end_offset for item in list_snapshots(directory) if item.end_offset >= base), default=base)


class DiskVotes:
    """Votes in `quorum-state`. `kraft_version()` is what the log says now; `voters()` who votes, which version 0 of the file names;
    `reserve` has room for them on a full disk."""

    def __init__(
        self,
        directory: Path,
        cluster_id: str,
        kraft_version: Callable[[], int],
        voters: Callable[[], Iterable[int]],
        reserve: Reserve,
    ) -> None:
        self._directory = directory
        self._cluster_id = cluster_id
        self._kraft_version = kraft_version
        self._voters = voters
        self._reserve = reserve

    def read(self) -> Vote | None:
        """What was written last. ConfigError for a file that makes no sense."""
        try:
            state = QuorumState.read(self._directory)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; restore it. Without a copy, remove it while the other controllers have a leader: this node then takes the epoch "
                "from its log, and does not know any more whom it voted for"
            ) from error
        if state is None:
            return None
        voted = None if state.voted_id < 0 else ReplicaKey(state.voted_id, state.voted_directory_id)
        return Vote(state.leader_epoch, state.leader_id, voted)

    def write(self, vote: Vote) -> None:
        """Replace the file, durably. Raises OSError."""
        voted = ReplicaKey(-1) if vote.voted is None else vote.voted
        state = QuorumState(
            vote.epoch,
            vote.leader_id,
            voted.node_id,
            voted.directory_id,
            data_version=1 if self._kraft_version() > 0 else 0,
            cluster_id=self._cluster_id,
            voters=tuple(sorted(self._voters())),
        )
        self._reserve.spend(lambda: state.write(self._directory))


class DiskLog:
    """The metadata log of this node, and its snapshots. `now_ms` is wall-clock time, for timestamps. Event-loop thread only.

    Invariants: `snapshots` are those that have their names, the oldest first; the log begins where one of them ends, or at 0, and ends
    nowhere below the latest of them; `_latest` is what the last append, or snapshot that took the log's place, said of voters, with the
    offsets where it begins and ends.
    """

    def __init__(self, log: PartitionLog, now_ms: Callable[[], int], reserve: Reserve) -> None:
        """`reserve` has room for a leader's first record on a full disk."""
        self._log = log
        self._reserve = reserve
        self._directory = Path(log.path)
        self._now_ms = now_ms
        self._snapshots = list_snapshots(self._directory)
        self._latest: tuple[int, int, list[Said]] | None = None

    # -- where it stands

    @property
    def start(self) -> int:
        return self._log.log_start_offset

    @property
    def end(self) -> int:
        return self._log.log_end_offset

    @property
    def durable_end(self) -> int:
        return self._log.on_disk_offset

    @property
    def last_epoch(self) -> int:
        if self._log.log_end_offset > self._log.log_start_offset:
            return self._log.leader_epoch
        below = self._below()
        return 0 if below is None else below.epoch

    @property
    def snapshots(self) -> Sequence[SnapshotId]:
        return self._snapshots

    def _below(self) -> SnapshotId | None:
        """The snapshot that the log begins behind."""
        return next((snapshot for snapshot in self._snapshots if snapshot.end_offset == self.start), None)

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        log, below = self._log, self._below()
        if log.log_end_offset > log.log_start_offset:
            if epoch >= log.leader_epoch:
                return EpochEnd(log.leader_epoch, log.log_end_offset)
            found = EpochEnd(*log.epoch_end_offset(epoch))
            if found.epoch >= 0 and found.end_offset > log.log_start_offset:
                return found
        if below is not None and self.start > 0 and below.epoch <= epoch:
            return EpochEnd(below.epoch, self.start)
        return EpochEnd(epoch, self.start)

    # -- what it says of voters

    def said_from(self, offset: int) -> Iterator[Said]:
        if self._latest is not None and self._latest[:2] == (offset, self.end):
            yield from self._latest[2]  # without a file, for which there may be no descriptor
            return
        at = max(offset, self.start)
        if offset == 0 and self._snapshots:
            latest = self._snapshots[-1]
            yield from said_by_snapshot(latest, read_snapshot(self._directory / latest.file_name))
            offset = at = latest.end_offset
        while at < self.end:
            data = self._log.read(at, READ_BYTES).read()
            for position, header in iter_headers(data):
                if header.is_control and header.last_offset >= offset:
                    yield from (said for said in _said_in(data, position) if said.offset >= offset)
                at = header.next_offset

    # -- records

    def append(self, records: bytes, epoch: int) -> int:
        taken, begun_at = 0, self.end
        expected, said = begun_at, list[Said]()
        try:
            for position, header in iter_headers(records, strict=False):
                if header.partition_leader_epoch > epoch:
                    break
                if header.base_offset != expected:
                    raise ValueError(f"a batch begins at offset {header.base_offset}, expected {expected}")
                if not verify_crc(records, position):
                    raise ValueError(f"the checksum of the batch at offset {header.base_offset} is wrong")
                if header.is_control:
                    said += _said_in(records, position)
                taken, expected = position + header.size_bytes, header.next_offset
        except DecodeError as error:
            raise ValueError(str(error)) from error
        if taken:
            try:
                with self._writing():
                    self._log.append_as_follower(memoryview(records)[:taken], now_ms=self._now_ms())
            finally:
                if self.end > begun_at:  # what goes to the next segment may have had no room any more
                    self._latest = begun_at, self.end, [item for item in said if item.offset < self.end]
        return taken

    def append_leader_change(
        self,
        epoch: int,
        leader_id: int,
        voters: VoterSet,
        granting: Sequence[ReplicaKey],
        kraft_version: int | None,
    ) -> None:
        # Apache Kafka 4.3 writes version 0, which has no directory ids, whatever the kraft.version is, and reads no other.
        message = LeaderChangeMessage(
            leader_id=leader_id,
            voters=[_voter(voter.key) for voter in voters],
            granting_voters=[_voter(key) for key in granting],
        )
        controls = [encode_control(ControlType.LEADER_CHANGE, message)]
        if kraft_version is not None:
            controls += _voter_controls(voters, kraft_version)
        self._reserve.spend(lambda: self._append_controls(epoch, controls))

    def append_voters(self, epoch: int, voters: VoterSet, kraft_version: int | None = None) -> int:
        self._append_controls(epoch, _voter_controls(voters, kraft_version))
        return self.end - 1

    def _append_controls(self, epoch: int, controls: Sequence[tuple[bytes, bytes]]) -> None:
        now_ms = self._now_ms()
        batch, begun_at = control_batch(controls, base_offset=0, epoch=epoch, timestamp_ms=now_ms), self.end
        try:
            with self._writing():
                self._log.append(batch, leader_epoch=epoch, now_ms=now_ms, from_client=False)
        except KafkaStorageError as error:
            if not passes(error) or self.end == begun_at:  # memory may be short after it is there
                raise
        found = (said_by(offset, key, value) for offset, (key, value) in enumerate(controls, begun_at))
        self._latest = begun_at, self.end, [said for said in found if said is not None]

    def append_records(self, values: Sequence[bytes], epoch: int) -> int:
        now_ms, size_bytes, begun_at = self._now_ms(), 0, self.end
        self._latest = None
        try:
            for batch, _ in data_batches(values, base_offset=0, epoch=epoch, timestamp_ms=now_ms):
                self._log.append(batch, leader_epoch=epoch, now_ms=now_ms, from_client=False)
                size_bytes += len(batch)
        except BaseException:
            if not self._log.loaded or self.end > begun_at:  # half a change would be committed with the next one
                self._take_back(begun_at)
            raise
        return size_bytes

    def _take_back(self, end: int) -> None:
        """Cut off half a change, at a shortage before anybody reads or appends. Raises KafkaStorageError where the directory is offline."""
        try:
            self._log.insist_on(partial(self._log.truncate_to, end), end)
        except KafkaStorageError as error:
            if not passes(error):
                raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Do what may be done later where a shortage keeps it from being done, and nothing is changed. What it has left half done, so that
        the directory is offline, ends this member: the next start finishes it. Raises KafkaStorageError."""
        try:
            yield
        except MemoryError as error:
            short = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            short.__cause__ = error
            raise self._log.dir.refuse("writing", self._log.path, short) from short
        except KafkaStorageError as error:
            if self._log.dir.offline is None or not passes(error):
                raise
            raise KafkaStorageError(error.message, **error.context) from error

    def truncate(self, end: int) -> None:
        self._latest = None
        with self._writing():
            self._log.truncate_to(end)

    def read(self, offset: int, bytes_max: int) -> bytes:
        try:
            return bytes(self._log.read(offset, bytes_max).read())
        except OSError as error:
            raise self._log.dir.refuse("reading", self._log.path, error) from error

    def flush(self) -> None:
        """Nothing: in `fsync` durability each append asks for it."""

    # -- snapshots

    def snapshot_size(self, snapshot: SnapshotId) -> int:
        if snapshot not in self._snapshots:
            return -1
        path = self._directory / snapshot.file_name
        try:
            return path.stat().st_size
        except FileNotFoundError:
            logger.error(
                "%s is gone, and was not removed by this node: it is served from the others that there are", path
            )
            self._snapshots = [other for other in self._snapshots if other != snapshot]
            return -1
        except OSError as error:
            raise self._log.dir.refuse("reading", str(path), error) from error

    def read_snapshot(self, snapshot: SnapshotId, position: int, bytes_max: int) -> bytes:
        path = self._directory / snapshot.file_name
        try:
            with path.open("rb") as file:
                return os.pread(file.fileno(), bytes_max, position)
        except OSError as error:
            raise self._log.dir.refuse("reading", str(path), error) from error

    def receive_snapshot(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        part = self._part(snapshot)
        with part.open("wb" if position == 0 else "r+b") as file:
            file.seek(position)
            file.write(data)
            file.truncate()

    def _part(self, snapshot: SnapshotId) -> Path:
        return self._directory / f"{snapshot.file_name}{PART}"

    def finish_snapshot(self, snapshot: SnapshotId) -> None:
        part = self._part(snapshot)
        try:
            said = said_by_snapshot(snapshot, read_snapshot(part))
        except MetadataError as error:
            if is_for_now(error) and isinstance(error.__cause__, OSError):  # nobody knows what is in it
                raise error.__cause__ from error
            part.unlink(missing_ok=True)
            raise ValueError(str(error)) from error
        try:
            with part.open("r+b") as file:
                os.fsync(file.fileno())
            part.rename(self._directory / snapshot.file_name)
            sync_directory(self._directory)
        except OSError:
            # After a sync that failed nobody knows what of it is on disk: it is fetched anew.
            part.unlink(missing_ok=True)
            (self._directory / snapshot.file_name).unlink(missing_ok=True)
            raise
        # First: who hears that the log begins anew asks the leader by the epoch of what lies below it.
        self._snapshots = sorted({*self._snapshots, snapshot})
        try:
            with self._writing():
                self._log.truncate_fully_and_start_at(snapshot.end_offset)
        except KafkaStorageError as error:
            if passes(error) and self._log.loaded:
                self._withdraw(snapshot)
            self._latest = None
            raise  # a log that is half cut begins behind the snapshot once it is loaded
        self._latest = 0, self.end, said

    def _withdraw(self, snapshot: SnapshotId) -> None:
        """The log stays the old one, so that the snapshot must not be found beside it: a restart would take for committed what the
        log has of another history. Where it cannot be removed the directory goes offline; the next start lets the log begin anew."""
        path = self._directory / snapshot.file_name
        try:
            path.unlink(missing_ok=True)
            self._snapshots = [other for other in self._snapshots if other != snapshot]
            sync_directory(self._directory)
        except OSError as error:
            if not is_shortage(error) or snapshot not in self._snapshots:
                raise self._log.dir.fail("removing a metadata snapshot", str(path), error) from error
            end = snapshot.end_offset
            self._log.insist_on(partial(self._log.truncate_fully_and_start_at, end), self.start)

    def snapshots_changed(self, found: Sequence[SnapshotId] | None = None) -> None:
        """A snapshot was made here, or one was removed: `found` are those that there are (None: it is looked for them). OSError."""
        self._snapshots = list_snapshots(self._directory) if found is None else list(found)


def _voter(key: ReplicaKey) -> LeaderChangeMessage.Voter:
    return LeaderChangeMessage.Voter(voter_id=key.node_id)


def _voter_controls(voters: VoterSet, kraft_version: int | None) -> list[tuple[bytes, bytes]]:
    named = encode_control(ControlType.KRAFT_VOTERS, voters.to_record())
    if kraft_version is None:
        return [named]
    return [encode_control(ControlType.KRAFT_VERSION, KRaftVersionRecord(kraft_version=kraft_version)), named]


def said_by(offset: int, key: bytes, value: bytes) -> Said | None:
    """What a control record says of voters and of kraft.version."""
    kind = int.from_bytes(key[2:4], "big")
    if kind == ControlType.KRAFT_VERSION:
        return Said(offset, KRaftVersionRecord.decode(Reader(value), 0).kraft_version, None)
    if kind == ControlType.KRAFT_VOTERS:
        return Said(offset, None, VoterSet.from_record(VotersRecord.decode(Reader(value), 0)))
    return None


def _said_in(records: bytes, position: int) -> list[Said]:
    """What the control batch at a position says of voters and of kraft.version."""
    found = (
        said_by(record.offset, record.key or b"", record.value or b"") for record in decode_records(records, position)
    )
    return [said for said in found if said is not None]


def said_by_snapshot(snapshot: SnapshotId, batches: Iterable[Batch]) -> list[Said]:
    """What a snapshot says of them, at the offset below its end. All of it is read."""
    version, voters = None, None
    for batch in batches:
        for key, value in batch.controls:
            said = said_by(-1, key, value)
            if said is not None:
                version = version if said.kraft_version is None else said.kraft_version
                voters = voters if said.voters is None else said.voters
    return [] if version is None and voters is None else [Said(snapshot.end_offset - 1, version, voters)]
