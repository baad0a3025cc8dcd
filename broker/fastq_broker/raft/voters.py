"""Who votes: the voters of the metadata quorum, and what the log says of them.

Rules: a voter set never changes; its history follows the log, uncommitted records too, and a truncation takes back what it cuts off. A
directory id of zeros is not known, and matches any. Source: KIP-853; VoterSet, VoterSetHistory, KRaftVersion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fastq.protocol.messages import VotersRecord
from fastq.protocol.uuid import ZERO_UUID
from fastq.values import NamedTuple


class ReplicaKey(NamedTuple):
    """A node, and the directory that holds its metadata log: another directory is another replica, which knows nothing of the first
    one's votes."""

    node_id: int
    directory_id: bytes = ZERO_UUID

    def is_of(self, other: ReplicaKey) -> bool:
        """Whether these can be the same replica, as far as both directories are known."""
        return self.node_id == other.node_id and (
            self.directory_id == other.directory_id or ZERO_UUID in (self.directory_id, other.directory_id)
        )


class Endpoint(NamedTuple):
    """Where a controller listens."""

    host: str
    port: int


@dataclass(frozen=True)
class Voter:
    """One voter. `endpoints` by the listener's name; `versions`: the lowest and the highest kraft.version that it can."""

    key: ReplicaKey
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    versions: tuple[int, int] = (0, 0)


class VoterSet:
    """Voters by node id, at most one of an id. Never changes."""

    def __init__(self, voters: Iterable[Voter] = ()) -> None:
        self._voters = {voter.key.node_id: voter for voter in voters}

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def __len__(self) -> int:
        return len(self._voters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(frozenset(self._voters))

    def __repr__(self) -> str:
        return f"VoterSet({sorted(self._voters)})"

    @property
    def ids(self) -> frozenset[int]:
        """Node ids of all voters."""
        return frozenset(self._voters)

    @property
    def majority(self) -> int:
        """How many are a majority."""
        return len(self._voters) // 2 + 1

    def voter(self, node_id: int) -> Voter | None:
        """The voter of this id."""
        return self._voters.get(node_id)

    def has(self, key: ReplicaKey) -> bool:
        """Whether this replica is a voter."""
        voter = self._voters.get(key.node_id)
        return voter is not None and voter.key.is_of(key)

    def is_only(self, key: ReplicaKey) -> bool:
        """Whether this replica is the only voter."""
        return len(self._voters) == 1 and self.has(key)

    def endpoint(self, node_id: int, listener: str) -> Endpoint | None:
        """Where a voter is reached by that listener."""
        voter = self._voters.get(node_id)
        return None if voter is None else voter.endpoints.get(listener)

    def with_voter(self, voter: Voter) -> VoterSet:
        """These and one more, or one in the place of what had its id."""
        return VoterSet([*(known for known in self if known.key.node_id != voter.key.node_id), voter])

    def without(self, node_id: int) -> VoterSet:
        """These without one."""
        return VoterSet(voter for voter in self if voter.key.node_id != node_id)

    def to_record(self) -> VotersRecord:
        """As the log has it."""
        return VotersRecord(
            voters=[
                VotersRecord.Voter(
                    voter_id=voter.key.node_id,
                    voter_directory_id=voter.key.directory_id,
                    endpoints=[
                        VotersRecord.Endpoint(name=name, host=place.host, port=place.port)
                        for name, place in voter.endpoints.items()
                    ],
                    kraft_version_feature=VotersRecord.KRaftVersionFeature(
                        min_supported_version=voter.versions[0], max_supported_version=voter.versions[1]
                    ),
                )
                for voter in self
            ]
        )

    @classmethod
    def from_record(cls, record: VotersRecord) -> VoterSet:
        """What a record of the log says."""
        return cls(
            Voter(
                ReplicaKey(voter.voter_id, voter.voter_directory_id),
                {place.name: Endpoint(place.host, place.port) for place in voter.endpoints},
                (
                    voter.kraft_version_feature.min_supported_version,
                    voter.kraft_version_feature.max_supported_version,
                ),
            )
            for voter in record.voters
        )


class Said(NamedTuple):
    """What a record of the log, or a snapshot that ends behind `offset`, says from there on (None: as before)."""

    offset: int
    kraft_version: int | None
    voters: VoterSet | None


class VoterHistory:
    """What the log says of its voters, up to its end. `static`: the voters of controller.quorum.voters, which count until the log names
    others. Invariant: `_said` is in the order of its offsets."""

    def __init__(self, static: VoterSet) -> None:
        self._static = static
        self._said: list[Said] = []

    @property
    def voters(self) -> VoterSet:
        """Who votes now, whether that is committed or not."""
        return next((said.voters for said in reversed(self._said) if said.voters is not None), self._static)

    @property
    def kraft_version(self) -> int:
        """The finalized kraft.version now, whether that is committed or not."""
        return next((said.kraft_version for said in reversed(self._said) if said.kraft_version is not None), 0)

    @property
    def voters_offset(self) -> int:
        """Where the log names the voters of now; -1 where it does not."""
        return next((said.offset for said in reversed(self._said) if said.voters is not None), -1)

    def at(self, offset: int) -> tuple[int, VoterSet]:
        """The kraft.version and the voters below an offset, as a snapshot has to say them."""
        before = [said for said in self._said if said.offset < offset]
        voters = next((said.voters for said in reversed(before) if said.voters is not None), self._static)
        return next((said.kraft_version for said in reversed(before) if said.kraft_version is not None), 0), voters

    def sets_from(self, offset: int) -> list[VoterSet]:
        """The voters at an offset, and all later ones."""
        later = [said.voters for said in self._said if said.offset >= offset and said.voters is not None]
        return [self.at(offset)[1], *later]

    def take_in(self, said: Iterable[Said]) -> None:
        """Records at offsets beyond all before."""
        self._said += said

    def truncate(self, end: int) -> None:
        """What was said at or above `end` was not."""
        self._said = [said for said in self._said if said.offset < end]
