"""What the members of a metadata quorum say to each other. `wire` has the same as Kafka's messages.

Rules: plain values, of the one partition that there is. An answer names the leader and epoch that its sender knows, and where the leader
listens, whatever else it says; an `error` other than 0 leaves the rest as made here.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastq.values import NamedTuple
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter


class SnapshotId(NamedTuple):
    """What a snapshot ends with: the offset after its last record, and that record's epoch."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"{self.end_offset:020}-{self.epoch:010}.checkpoint"


class EpochEnd(NamedTuple):
    """An epoch, and the offset after its last record."""

    epoch: int
    end_offset: int


class Vote(NamedTuple):
    """A candidate asks for a vote; `pre`: whether it would get one (KIP-996). `voter`: whom it asks, as far as it knows."""

    cluster_id: str | None
    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey | None
    last_epoch: int
    end_offset: int
    pre: bool


class BeginEpoch(NamedTuple):
    """A leader tells a voter of itself, and where it listens."""

    cluster_id: str | None
    epoch: int
    leader_id: int
    voter: ReplicaKey | None
    endpoints: Mapping[str, Endpoint]


class EndEpoch(NamedTuple):
    """A leader goes; the first of `successors` should follow it, as it knows the most."""

    cluster_id: str | None
    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...]
    endpoints: Mapping[str, Endpoint]


class Fetch(NamedTuple):
    """A replica asks for what follows its log. `high_watermark`: what it knows of, -1 for none."""

    cluster_id: str | None
    epoch: int
    replica: ReplicaKey
    offset: int
    last_epoch: int
    high_watermark: int
    wait_s: float
    bytes_max: int


class FetchSnapshot(NamedTuple):
    """A replica asks for a piece of a snapshot."""

    cluster_id: str | None
    epoch: int
    replica: ReplicaKey
    snapshot: SnapshotId
    position: int
    bytes_max: int


class UpdateVoter(NamedTuple):
    """A voter tells its leader where it listens now, and which versions of kraft.version it can."""

    cluster_id: str | None
    epoch: int
    voter: Voter


class Versions(NamedTuple):
    """Which versions of kraft.version can you? Asked of one that is to be a voter, for the change `number`."""

    number: int


class AddVoter(NamedTuple):
    """Somebody wants one more voter, in this time; answered when that is committed, or when it is in the leader's log."""

    cluster_id: str | None
    timeout_s: float
    voter: Voter
    when_committed: bool = True


class RemoveVoter(NamedTuple):
    """Somebody wants one voter less."""

    cluster_id: str | None
    key: ReplicaKey


Ask = Vote | BeginEpoch | EndEpoch | Fetch | FetchSnapshot | UpdateVoter | AddVoter | RemoveVoter | Versions


class Answer(NamedTuple):
    """To Vote, whether it is `granted`; to BeginEpoch and EndEpoch."""

    error: int
    leader_id: int
    epoch: int
    endpoint: Endpoint | None = None
    granted: bool = False


class Fetched(NamedTuple):
    """Records, or where the logs part, or the snapshot that is to be had first."""

    error: int
    leader_id: int
    epoch: int
    endpoint: Endpoint | None = None
    high_watermark: int = -1
    log_start: int = -1
    records: bytes = b""
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None


class FetchedSnapshot(NamedTuple):
    """A piece of a snapshot of `size` bytes."""

    error: int
    leader_id: int
    epoch: int
    endpoint: Endpoint | None = None
    snapshot: SnapshotId | None = None
    size: int = -1
    position: int = -1
    data: bytes = b""


class VoterAnswer(NamedTuple):
    """To AddVoter, RemoveVoter and UpdateVoter. `message`: what is to be done about the error; empty without one."""

    error: int
    leader_id: int
    epoch: int
    endpoint: Endpoint | None = None
    message: str = ""


class VersionsAnswer(NamedTuple):
    """To Versions: the lowest and the highest kraft.version."""

    error: int
    leader_id: int = -1
    epoch: int = -1
    endpoint: Endpoint | None = None
    lowest: int = 0
    highest: int = -1


AnyAnswer = Answer | Fetched | FetchedSnapshot | VoterAnswer | VersionsAnswer
