"""The small files that make a directory a Kafka log directory, and a metadata directory a quorum member's.

    meta.properties                  version=1, cluster.id, node.id, directory.id (base64url of 16 bytes)
    bootstrap.checkpoint             a snapshot of the FeatureLevel records a directory was formatted with
    __cluster_metadata-0/quorum-state  JSON: data_version 1 (kraft.version 1): leaderId, leaderEpoch, votedId,
                                     votedDirectoryId; data_version 0 (a static quorum): clusterId, leaderId,
                                     leaderEpoch, votedId, appliedOffset, currentVoters

Rules: files are replaced at once (write beside, fsync, rename, fsync of the directory). A directory of another node or
cluster is refused, never changed. Source: MetaProperties, FileQuorumStateStore, Formatter.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastq.errors import ConfigError
from fastq.properties import parse_properties
from fastq.protocol.uuid import ZERO_UUID, random_uuid, uuid_from_str, uuid_to_str
from fastq.values import Value, replace
from fastq_broker.log.files import NO_DIRECTORY_SYNC
from fastq_broker.log.log_dir import advice_for

logger = logging.getLogger(__name__)

META_PROPERTIES = "meta.properties"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
QUORUM_STATE = "quorum-state"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
METADATA_TOPIC = "__cluster_metadata"
_INT32_MAX = 2**31 - 1
METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
_META_ADVICE = (
    "restore it, or write it again: version=1, node.id=<this node's>, cluster.id=<that of meta.properties in the other directories; "
    "where there are none, any 22 characters of base64url>"
)


def read_file(path: Path) -> bytes:
    """The bytes of a small file. OSError where something else lies there: a pipe would wait for a writer, for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ESPIPE, "it is no file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Replace a file at once and durably: it holds the old bytes or the new ones, whenever the machine stops. What could not be written
    whole takes no room of the disk. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except OSError as error:
        error.filename = error.filename or str(path)  # who is told wants to know which disk it is
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable, where its file system can: see Files.sync_names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in NO_DIRECTORY_SYNC:
            return
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


class MetaProperties(Value):
    """Whose directory it is."""

    cluster_id: str
    node_id: int
    directory_id: bytes

    @classmethod
    def read(cls, directory: Path) -> MetaProperties | None:
        """What `meta.properties` says; None when there is none. ConfigError when it makes no sense. One that was written before
        directories had ids, or by hand, has none."""
        path = directory / META_PROPERTIES
        try:
            found = parse_properties(read_file(path).decode("utf-8"))
            if found["version"] not in ("0", "1"):
                raise ConfigError(f"{path} has version {found['version']}, expected 0 or 1; {_META_ADVICE}")
            node_id = int(found["node.id"] if "node.id" in found else found["broker.id"])
            text = found.get("directory.id", "")
            return cls(found["cluster.id"], node_id, uuid_from_str(text) if text else ZERO_UUID)
        except FileNotFoundError:
            return None
        except ConfigError:
            raise
        except KeyError as error:
            raise ConfigError(f"{path} has no {error.args[0]}; {_META_ADVICE}") from error
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}; {advice_for(error)}") from error
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read: {error}; {_META_ADVICE}") from error

    def write(self, directory: Path) -> None:
        text = (
            f"#\nnode.id={self.node_id}\ndirectory.id={uuid_to_str(self.directory_id)}\nversion=1\n"
            f"cluster.id={self.cluster_id}\n"
        )
        write_file(directory / META_PROPERTIES, text.encode())


class QuorumState(Value):
    """What a voter must not forget: the epoch and whom it voted for in it."""

    leader_epoch: int
    leader_id: int = -1
    voted_id: int = -1
    voted_directory_id: bytes = bytes(16)
    data_version: int = 1
    cluster_id: str = ""
    voters: tuple[int, ...] = ()

    @classmethod
    def read(cls, directory: Path) -> QuorumState | None:
        """The state in `directory`; None when there is none. ConfigError when it makes no sense."""
        path = directory / QUORUM_STATE
        try:
            found: Any = json.loads(read_file(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}; {advice_for(error)}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise ConfigError(f"{path} is not a quorum state: it holds {type(found).__name__}, expected an object")
        try:
            voted = found.get("votedDirectoryId")
            state = cls(
                leader_epoch=int(found["leaderEpoch"]),
                leader_id=int(found["leaderId"]),
                voted_id=int(found["votedId"]),
                voted_directory_id=uuid_from_str(voted) if voted else bytes(16),
                data_version=int(found["data_version"]),
                cluster_id=str(found.get("clusterId", "")),
                voters=tuple(int(voter["voterId"]) for voter in found.get("currentVoters") or ()),
            )
            state._check()
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is not a quorum state: {error!r}") from error
        return state

    def _check(self) -> None:
        """ValueError for what no member writes."""
        if self.data_version not in (0, 1):
            raise ValueError(f"data_version {self.data_version}, expected 0 or 1")
        if not 0 <= self.leader_epoch <= _INT32_MAX or not min(self.leader_id, self.voted_id) >= -1:
            raise ValueError(f"leaderEpoch {self.leader_epoch}, leaderId {self.leader_id}, votedId {self.voted_id}")
        if max(self.leader_id, self.voted_id) > _INT32_MAX:
            raise ValueError(f"leaderId {self.leader_id}, votedId {self.voted_id}")

    def write(self, directory: Path) -> None:
        state: dict[str, Any] = {
            "leaderId": self.leader_id,
            "leaderEpoch": self.leader_epoch,
            "votedId": self.voted_id,
        }
        if self.data_version == 0:
            voters = [{"voterId": voter} for voter in self.voters]
            state = {"clusterId": self.cluster_id, **state, "appliedOffset": 0, "currentVoters": voters}
        else:
            state["votedDirectoryId"] = uuid_to_str(self.voted_directory_id)
        state["data_version"] = self.data_version
        write_file(directory / QUORUM_STATE, json.dumps(state, separators=(",", ":")).encode())


def check_directories(
    directories: Sequence[Path], found: Sequence[MetaProperties | None], node_id: int, cluster_id: str | None
) -> str | None:
    """That all belong to this node and to one cluster, `cluster_id` if it is known; answers which.

    ConfigError names the one that does not fit.
    """
    for directory, properties in zip(directories, found, strict=True):
        if properties is None:
            continue
        if properties.node_id != node_id:
            raise ConfigError(f"{directory} belongs to node {properties.node_id}, this is node {node_id}: set node.id")
        if cluster_id is not None and properties.cluster_id != cluster_id:
            raise ConfigError(
                f"{directory} belongs to cluster {properties.cluster_id}, expected {cluster_id}: use that cluster's id, choose another "
                "directory, or remove this one if nothing in it is needed"
            )
        cluster_id = properties.cluster_id
    return cluster_id


def format_directories(
    directories: Sequence[Path], node_id: int, cluster_id: str | None = None
) -> list[MetaProperties]:
    """Give every directory its identity, making those that are new; what each is, in order.

    All directories of a node share its id and its cluster's; ConfigError names the one that does not fit.
    """
    found = [MetaProperties.read(directory) for directory in directories]
    cluster_id = check_directories(directories, found, node_id, cluster_id)
    cluster_id = cluster_id or uuid_to_str(random_uuid())
    result = []
    new = all(properties is None for properties in found)
    for directory, properties in zip(directories, found, strict=True):
        if properties is None:
            directory.mkdir(parents=True, exist_ok=True)
            _check_identity(directory, new=new)
            properties = MetaProperties(cluster_id, node_id, random_uuid())
            properties.write(directory)
            if not new:
                logger.warning(
                    "%s was empty, unlike other directories of this node, and is formatted: it is new, or another disk is mounted there, "
                    "or none. Partitions that were there are copied from their other replicas, where there are some",
                    directory,
                )
        elif properties.directory_id == ZERO_UUID:  # the metadata names it, so it is the same at the next start
            properties = replace(properties, directory_id=random_uuid())
            properties.write(directory)
        result.append(properties)
    return result


def _check_identity(directory: Path, *, new: bool) -> None:
    """ConfigError for a directory without an identity that has had one, or was to get another than that of a `new` node."""
    metadata = directory / METADATA_DIRECTORY
    begun = (directory / BOOTSTRAP_CHECKPOINT).exists() and not any(metadata.glob("*.log"))
    if begun and (new or metadata.exists()):
        raise ConfigError(
            f"{directory} holds {BOOTSTRAP_CHECKPOINT} but no {META_PROPERTIES}: `fastq-broker format` was cut short there; "
            "run it again, as it was run"
        )
    if metadata.exists():
        raise ConfigError(f"{directory} holds a metadata log but no {META_PROPERTIES}; {_META_ADVICE}")


def clean_shutdown_epoch(directories: Sequence[Path]) -> int:
    """The broker epoch that all directories say was shut down cleanly; -1 when one says nothing, or another."""
    epochs = set()
    for directory in directories:
        try:
            found = json.loads(read_file(directory / CLEAN_SHUTDOWN))
            epochs.add(int(found["brokerEpoch"]))
        except (OSError, ValueError, KeyError, TypeError):
            epochs.add(-1)
    return epochs.pop() if len(epochs) == 1 else -1
