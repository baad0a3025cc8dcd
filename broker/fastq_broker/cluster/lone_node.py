"""The directory of a node that was alone becomes that of the first of several: all that the node has in DIR is moved to DIR/node-1.

    DIR/meta.properties, DIR/logs-0, ...   ->   DIR/node-1.moving/...   ->   DIR/node-1/...

Rules
- Everything is looked at before anything is moved: the node has the id 1, one log directory, is the only voter, by the log, and the only
  broker. What is in the way of that is said, and how to come round it.
- A step is a rename within DIR, and a process may be killed between any two. meta.properties goes first, the metadata log last: from the
  first step on nothing takes DIR for a node's directory, nor for one to be formatted. The next `--nodes` goes on where this one ended.
- Where a step fails, those before it are taken back, and DIR is what it was.
- Only what is a node's is moved: other files of whoever owns DIR stay.
- DIR/node-1 is a lone node's directory, as DIR was: until another controller has joined, `fastq-broker --data-dir DIR/node-1` serves it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from fastq._native.records import decode_records, iter_headers
from fastq.errors import ConfigError, FastqError
from fastq_broker.controller.image import MetadataDelta, MetadataImage
from fastq_broker.controller.snapshot import Batch, decode_batches, list_snapshots, read_snapshot, replay_batches
from fastq_broker.controller.storage import (
    BOOTSTRAP_CHECKPOINT,
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    METADATA_DIRECTORY,
    MetaProperties,
    read_file,
    sync_directory,
)
from fastq_broker.log.directories import LOG_NAME, DirectoryLocks
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.raft.storage import said_by
from fastq_broker.raft.voters import VoterSet

logger = logging.getLogger(__name__)

FIRST = "node-1"
MOVING = f"{FIRST}.moving"
_BY_HAND = "docs/operations.md says how it becomes one of several with a configuration of its own (One node to three)"
_FILES = re.compile(
    rf"{re.escape(META_PROPERTIES)}|{re.escape(BOOTSTRAP_CHECKPOINT)}|{re.escape(CLEAN_SHUTDOWN)}|[a-z-]+-checkpoint"
)
_OUT_OF_USE = re.compile(r".+\.[0-9a-f]{32}-(delete|future|stray)")


def is_there(root: Path) -> bool:
    """Whether `root` is a lone node's directory, or one that is being moved."""
    return (root / META_PROPERTIES).exists() or (root / MOVING / META_PROPERTIES).exists()


def move(root: Path) -> None:
    """Make a lone node's directory that of the first of several. ConfigError where it is no such directory or is in use, OSError; either
    way it is as it was."""
    locks = DirectoryLocks()
    try:
        locks.take(str(root))
        if not (root / MOVING / META_PROPERTIES).exists():
            _check(root)
        try:
            _move_all(root, root / MOVING)
            os.rename(root / MOVING, root / FIRST)
        except OSError:
            _move_back(root)
            raise
        sync_directory(root)
    finally:
        locks.release()


# -- what is there


def read_metadata(directory: Path) -> tuple[VoterSet | None, MetadataImage]:
    """What a metadata log says of its voters (None: nothing), and its image. Its node is not running. ConfigError where it cannot be
    read."""
    voters: VoterSet | None = None
    delta = MetadataDelta(MetadataImage())
    try:
        snapshots = list_snapshots(directory)
        batches = list(_batches(directory, snapshots))
        replay_batches(batches, delta)
    except (FastqError, OSError, ValueError) as error:
        raise ConfigError(
            f"{directory} cannot be read: {error}; start its node alone, which says what is to be done"
        ) from error
    for batch in batches:
        for key, value in batch.controls:
            said = said_by(batch.base_offset, key, value)
            voters = voters if said is None or said.voters is None else said.voters
    ends = [snapshot.end_offset - 1 for snapshot in snapshots] + [batch.last_offset for batch in batches[-1:]]
    return voters, delta.apply(max(ends, default=-1), 0, 0)


def names_voters(directory: Path) -> bool:
    """Whether a metadata log, or its latest snapshot, names its voters. Its node is not running, and says itself what is damaged there."""
    with suppress(OSError, ValueError):
        latest = [directory / snapshot.file_name for snapshot in list_snapshots(directory)[-1:]]
        for path in (*latest, *directory.glob("*.log")):
            data = read_file(path)
            for position, header in iter_headers(data):
                for record in decode_records(data, position) if header.is_control else ():
                    said = said_by(record.offset, record.key or b"", record.value or b"")
                    if said is not None and said.voters is not None:
                        return True
    return False


def _batches(directory: Path, snapshots: Sequence[SnapshotId]) -> Iterator[Batch]:
    """Those of the latest snapshot, and of the log behind it."""
    end = 0
    if snapshots:
        yield from read_snapshot(directory / snapshots[-1].file_name)
        end = snapshots[-1].end_offset
    for path in sorted(directory.glob("*.log")):
        for batch in decode_batches(read_file(path)):
            if batch.base_offset >= end:
                yield batch


def _check(root: Path) -> None:
    """ConfigError where this is no lone node with the id 1 and all its data here."""
    properties = MetaProperties.read(root)
    if properties is not None and properties.node_id != 1:
        raise ConfigError(
            f"{root} is the directory of node {properties.node_id}, and the first of --nodes is node 1: choose another --data-dir; "
            f"{_BY_HAND}"
        )
    others = sorted(path.parent.name for path in root.glob(f"node-[1-9]*/{META_PROPERTIES}"))
    if others:
        raise ConfigError(
            f"{root} is the directory of a node of its own, and holds {', '.join(others)}, which are others': move one or the other away"
        )
    if not (root / METADATA_DIRECTORY).is_dir():
        raise ConfigError(
            f"{root} is the directory of a node, and holds no metadata log ({METADATA_DIRECTORY}): bring it here from metadata.log.dir, or "
            f"choose another --data-dir; {_BY_HAND}"
        )
    voters, image = read_metadata(root / METADATA_DIRECTORY)
    if voters is None:
        raise ConfigError(
            f"{root} is the directory of a node whose voters are not in its log (kraft.version 0), so no controller can join it: "
            "start it alone and run `fastq cluster features --upgrade kraft.version=1`"
        )
    if voters.ids != {1} or image.brokers.keys() - {1}:
        known = sorted(voters.ids | image.brokers.keys())
        raise ConfigError(
            f"{root} is the directory of a node among others ({', '.join(map(str, known))}): --nodes takes in one that is alone; {_BY_HAND}"
        )
    own = image.brokers.get(1)
    if own is not None and len(own.directories) > 1:
        raise ConfigError(
            f"{root} is one of the {len(own.directories)} log directories of its node, and a node of --nodes has one: start it alone and "
            f"move all here (`fastq log-dirs move`), and once more with --data-dir {root} alone; {_BY_HAND}"
        )


# -- moving it


def _is_own(entry: os.DirEntry[str]) -> bool:
    name = entry.name
    if not entry.is_dir(follow_symlinks=False):
        return _FILES.fullmatch(name) is not None
    return bool(LOG_NAME.match(name) or _OUT_OF_USE.fullmatch(name) or name.startswith(METADATA_DIRECTORY))


def _order(name: str) -> int:
    return 0 if name == META_PROPERTIES else 2 if name == METADATA_DIRECTORY else 1


def _move_all(source: Path, target: Path) -> None:
    """Each kind is on disk before the next one begins."""
    target.mkdir(exist_ok=True)
    with os.scandir(source) as entries:
        names = sorted((entry.name for entry in entries if _is_own(entry)), key=_order)
    last = 0
    for name in names:
        if _order(name) != last:
            sync_directory(target)
            sync_directory(source)
            last = _order(name)
        os.rename(source / name, target / name)
    sync_directory(target)
    sync_directory(source)


def _move_back(root: Path) -> None:
    """As far as that can be done; what is left goes on at the next try."""
    with suppress(OSError):
        for name in sorted(os.listdir(root / MOVING), key=_order, reverse=True):
            os.rename(root / MOVING / name, root / name)
        (root / MOVING).rmdir()
        sync_directory(root)
