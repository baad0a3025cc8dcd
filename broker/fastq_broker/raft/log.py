"""What the machine needs of a log and of a place for votes. `storage` has them on disk, tests in memory.

Rules: all calls act at once on what the process sees; only `durable_end` says what a crash leaves. Source: ReplicatedLog, QuorumStateStore.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from fastq.values import NamedTuple
from fastq_broker.raft.messages import EpochEnd, SnapshotId
from fastq_broker.raft.voters import ReplicaKey, Said, VoterSet


class Vote(NamedTuple):
    """What a member must not forget. Both may be set: whom it voted for in the epoch, and who leads it."""

    epoch: int
    leader_id: int = -1
    voted: ReplicaKey | None = None


class VoteStore(Protocol):
    """Keeps the vote."""

    def read(self) -> Vote | None:
        """What was written last; None where nothing was."""

    def write(self, vote: Vote) -> None:
        """Keep it: it is on disk when this returns. OSError where the disk refuses."""


class RaftLog(Protocol):
    """The metadata log of this replica."""

    @property
    def start(self) -> int:
        """The first offset that is there."""

    @property
    def end(self) -> int:
        """One above the last record."""

    @property
    def durable_end(self) -> int:
        """Everything below is on disk."""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot that the log begins after; 0 for neither."""

    @property
    def snapshots(self) -> Sequence[SnapshotId]:
        """Those that are whole, the oldest first."""

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The largest epoch up to this one that has records, and where it ends; that of the snapshot below the log, where there is none;
        this epoch and the log's start where there is neither."""

    def said_from(self, offset: int) -> Iterable[Said]:
        """What records from `offset` on say of voters and of kraft.version. From 0 on: what the latest snapshot says, at the offset below
        its end (that of a new directory, 0-0, at -1), and then the records behind it."""

    def append(self, records: bytes, epoch: int) -> int:
        """Append batches of the leader of `epoch` as they came: those that are whole, follow on the log and are of no later epoch.
        Answers how many bytes were taken. ValueError for what is damaged: nothing of it is taken."""

    def append_leader_change(
        self,
        epoch: int,
        leader_id: int,
        voters: VoterSet,
        granting: Sequence[ReplicaKey],
        kraft_version: int | None,
    ) -> None:
        """A leader's first batch. With a `kraft_version` that, and the voters, are said from there on."""

    def append_voters(self, epoch: int, voters: VoterSet, kraft_version: int | None = None) -> int:
        """A leader's batch that names the voters from now on, and with `kraft_version` finalizes that. Answers the offset of its last
        record."""

    def append_records(self, values: Sequence[bytes], epoch: int) -> int:
        """A leader's records, all or none of them; answers how many bytes they take."""

    def truncate(self, end: int) -> None:
        """Take away everything from `end` on."""

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Whole batches from `offset` on, one at least where there is one. KafkaError where it cannot be read."""

    def flush(self) -> None:
        """Begin to bring everything to disk; `durable_end` rises when it is there."""

    # -- snapshots

    def snapshot_size(self, snapshot: SnapshotId) -> int:
        """Bytes of a snapshot that is there; -1 of another. KafkaStorageError where that cannot be found out."""

    def read_snapshot(self, snapshot: SnapshotId, position: int, bytes_max: int) -> bytes:
        """A piece of it. KafkaStorageError where it cannot be read."""

    def receive_snapshot(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        """A piece of one that is fetched; position 0 begins it anew. OSError where it cannot be written: the same piece may come
        again; FileNotFoundError where what came before it is gone."""

    def finish_snapshot(self, snapshot: SnapshotId) -> None:
        """All of it is there: it takes the place of the whole log. ValueError, and it is gone, when it is not whole; OSError, and it is to
        come anew, when it cannot be brought to disk."""
