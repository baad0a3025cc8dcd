"""Gives directories their identity before a node's first start: cluster, node, feature levels, and the first voters.

    meta.properties                        in each directory, written last: a directory that has it is formatted
    bootstrap.checkpoint                   in each directory: feature levels, SCRAM credentials
    __cluster_metadata-0/0-0.checkpoint    in the metadata directory of a node that is told the first voters

Rules: the files are Apache Kafka's, byte for byte but for times and random ids. A directory that is formatted is left as it is. All
checks come before the first write. Source: Formatter, DynamicVoters, BootstrapDirectory.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fastq.errors import ConfigError
from fastq.protocol.messages import FeatureLevelRecord
from fastq.protocol.uuid import is_reserved, random_uuid, uuid_from_str
from fastq.values import Value
from fastq_broker.config_keys import is_count, shown
from fastq_broker.controller import features
from fastq_broker.controller.image import Record
from fastq_broker.controller.records import encode_record
from fastq_broker.controller.snapshot import write_snapshot
from fastq_broker.controller.storage import (
    BOOTSTRAP_CHECKPOINT,
    METADATA_DIRECTORY,
    MetaProperties,
    check_directories,
)
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet


class Plan(Value, kw_only=True):
    """What a node is formatted as. `levels` has all features; `voters` None: the voters are not in the log, or not known yet."""

    cluster_id: str
    node_id: int
    directories: Sequence[Path]
    metadata_directory: Path
    levels: Mapping[str, int]
    credentials: Sequence[Record] = ()
    voters: VoterSet | None = None


def parse_controllers(text: str, listener: str) -> VoterSet:
    """`id@host:port:directory-id` of all first voters, between commas, by the listener they reach each other. ConfigError."""
    voters: dict[int, Voter] = {}
    for item in text.split(","):
        number, at, rest = item.strip().partition("@")
        place, _, directory = rest.rpartition(":")
        host, _, port = place.rpartition(":")
        if not at or not is_count(number) or not is_count(port) or not 0 < int(port) <= 65535 or not _is_host(host):
            raise ConfigError(
                f"the controller {shown(item)} is not allowed: it takes id@host:port:directory-id, as in "
                "1@example.com:9093:JEXY6aqzQY-32P5TStzaFg"
            )
        try:
            directory_id = uuid_from_str(directory)
        except ValueError as error:
            raise ConfigError(f"the controller {shown(item)} is not allowed: {error}") from error
        if is_reserved(directory_id):
            raise ConfigError(f"the controller {shown(item)} is not allowed: {directory} is no id of a directory")
        if int(number) in voters:
            raise ConfigError(f"node {int(number)} is named twice; it takes each controller once")
        voters[int(number)] = one_voter(int(number), directory_id, listener, host, int(port))
    return VoterSet(voters[number] for number in sorted(voters))


def _is_host(host: str) -> bool:
    return bool(host) and (":" not in host or (host.startswith("[") and host.endswith("]")))


def one_voter(node_id: int, directory_id: bytes, listener: str, host: str, port: int) -> Voter:
    """A first voter. An address of IPv6 is written as Kafka writes it."""
    plain = host.strip("[]")
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        address = None
    if isinstance(address, ipaddress.IPv6Address):
        plain = ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":"))
    return Voter(
        ReplicaKey(node_id, directory_id),
        {listener: Endpoint(plain, port)},
        features.SUPPORTED[features.KRAFT_VERSION],
    )


def format_node(plan: Plan, *, ignore_formatted: bool, now_ms: int) -> list[tuple[str, Path]]:
    """Write what is not formatted; answers what each written directory is, and which. ConfigError, OSError."""
    found = [MetaProperties.read(directory) for directory in plan.directories]
    check_directories(plan.directories, found, plan.node_id, plan.cluster_id)
    formatted = [directory for directory, known in zip(plan.directories, found, strict=True) if known is not None]
    if formatted and not ignore_formatted:
        raise ConfigError(
            f"{formatted[0]} is formatted already: --ignore-formatted leaves it so, and formats the others"
        )
    new = [directory for directory in plan.directories if directory not in formatted]
    for directory in new:
        _refuse_records(directory)
    taken = {known.directory_id for known in found if known is not None}
    written = []
    for directory in sorted(new, key=lambda directory: directory != plan.metadata_directory):
        directory_id = _directory_id(plan, directory, taken)
        taken.add(directory_id)
        directory.mkdir(parents=True, exist_ok=True)
        write_bootstrap(directory, [*feature_records(plan.levels), *plan.credentials], plan.levels, now_ms)
        if directory == plan.metadata_directory and plan.voters is not None:
            (directory / METADATA_DIRECTORY).mkdir(exist_ok=True)
            write_founders(directory / METADATA_DIRECTORY, plan.voters, now_ms)
        MetaProperties(plan.cluster_id, plan.node_id, directory_id).write(directory)
        written.append((_kind(plan, directory), directory))
    return written


def _refuse_records(directory: Path) -> None:
    """ConfigError for a directory with a metadata log that has lost its identity: formatting it would mix two clusters."""
    if any((directory / METADATA_DIRECTORY).glob("*.log")):
        raise ConfigError(
            f"{directory} holds a metadata log but no meta.properties: restore that file, or choose an empty directory"
        )


def _directory_id(plan: Plan, directory: Path, taken: Iterable[bytes]) -> bytes:
    """The id that the first voters give this directory, else a new one."""
    voter = None if plan.voters is None else plan.voters.voter(plan.node_id)
    if directory == plan.metadata_directory and voter is not None:
        return voter.key.directory_id
    return next(made for made in iter(random_uuid, b"") if made not in taken)


def _kind(plan: Plan, directory: Path) -> str:
    """What Kafka's tool calls such a directory."""
    if directory != plan.metadata_directory:
        return "data directory"
    if plan.voters is None:
        return "metadata directory"
    return f"dynamic metadata {'voter ' if plan.node_id in plan.voters.ids else ''}directory"


def feature_records(levels: Mapping[str, int]) -> list[Record]:
    """The records of feature levels, metadata.version first; kraft.version is no record, but a control record of the log."""
    names = sorted(name for name in levels if levels[name] and name != features.KRAFT_VERSION)
    names.sort(key=lambda name: name != features.METADATA_VERSION)
    return [FeatureLevelRecord(name=name, feature_level=levels[name]) for name in names]


def write_bootstrap(root: Path, records: Sequence[Record], levels: Mapping[str, int], now_ms: int) -> None:
    """The records that a new cluster begins with, in `bootstrap.checkpoint`."""
    write_snapshot(
        root / BOOTSTRAP_CHECKPOINT,
        [encode_record(record, levels[features.METADATA_VERSION]) for record in records],
        epoch=0,
        timestamp_ms=now_ms,
        last_timestamp_ms=0,
        kraft_version=None,
        voters=None,
    )


def write_founders(directory: Path, voters: VoterSet, now_ms: int) -> None:
    """The first voters, in the snapshot that ends where the log begins; it is never replicated."""
    write_snapshot(
        directory / SnapshotId(0, 0).file_name,
        [],
        epoch=0,
        timestamp_ms=now_ms,
        last_timestamp_ms=now_ms,
        kraft_version=1,
        voters=voters.to_record(),
    )
