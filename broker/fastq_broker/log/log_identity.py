"""Which directory is a topic's log: topic ids decide, not names. What is nobody's is renamed.

Rules
- An id on disk decides before any record is served or appended: a deleted topic's log under a new one's name is set aside, never served.
- A log of one name in two directories (a stop amid the end of a move leaves them) is a double until an id is told for it.
- Nothing is deleted here but by its new name: `-stray` stays for the operator, `-delete` goes later.
Source: LogManager.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from fastq.errors import KafkaError

from .checkpoints import PARTITION_METADATA, TopicPartition, format_partition_metadata
from .dir_checkpoints import NAMES, DirCheckpoints
from .dir_moves import LogMoves
from .files import Files, is_full, is_shortage
from .late_recovery import LateRecovery
from .loading import topic_id_on_disk
from .log_dir import LogDir
from .partition_log import PartitionLog
from .segment import LOG_SUFFIX

logger = logging.getLogger(__name__)

_BITS_OF_A_LETTER: Final = 6


def _is_nearly(one: bytes, other: bytes) -> bool:
    """Whether two ids differ, and by so few bits (one letter of their text) that they were the same: random ones never come that close."""
    return 0 < (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_count() <= _BITS_OF_A_LETTER


class LogIdentity:
    """The part of a LogManager that tells whose log a directory is; see there for what the attributes are. Event-loop thread only."""

    cordoned: Collection[str]
    dirs: Sequence[LogDir]
    files: Files
    late: LateRecovery
    logs: dict[TopicPartition, PartitionLog]
    moves: LogMoves
    offline_dirs: Mapping[str, KafkaError]
    _checkpoints: Mapping[str, DirCheckpoints]
    _doubles: dict[TopicPartition, list[PartitionLog]]
    _random: random.Random

    def write_checkpoints(self, log_dir: LogDir, *, wait: bool, names: Collection[str] = NAMES) -> None:
        raise NotImplementedError

    def retire(self, log: PartitionLog) -> None:
        raise NotImplementedError

    def make_way(self, key: TopicPartition, log_dir: LogDir) -> None:
        """Have nothing of an older log left where a new one of that name is to be made, or moved. Raises KafkaStorageError."""
        for log in [double for double in self._doubles.get(key, ()) if double.dir is log_dir]:
            self._doubles[key].remove(log)
            self._set_aside(log, None)
        if self._checkpoints[log_dir.path].names(key):
            self._write_now(log_dir, NAMES)

    def restate(self, log: PartitionLog) -> None:
        """Have nothing on disk that says more of a log than holds. What says too much of others in its directory goes with it: a new leader
        may have thousands cut at once. Raises KafkaStorageError."""
        names = self._checkpoints[log.dir.path].overstating(log)
        if names:
            self._write_now(log.dir, names)

    def _write_now(self, log_dir: LogDir, names: Collection[str]) -> None:
        try:
            self.write_checkpoints(log_dir, wait=True, names=names)
        except OSError as error:
            raise log_dir.refuse("writing checkpoints", error.filename or log_dir.path, error) from error

    def unique(self) -> str:
        """32 letters for the name of a directory that no other has."""
        return f"{self._random.getrandbits(128):032x}"

    def id_of(self, log: PartitionLog) -> bytes | None:
        """The topic id that a log's directory carries. Raises OSError."""
        if log.topic_id is None and not log.loaded:
            log.topic_id = topic_id_on_disk(self.files, log.path)
        return log.topic_id

    def _choose_double(self, key: TopicPartition, topic_id: bytes, home: str | None) -> None:
        """A stop amid the end of a move leaves two logs of one topic: the one counts that is where the metadata has it, else the one that
        has more; the other is set aside. Raises KafkaStorageError."""
        named = self.logs.get(key)
        logs = [*([] if named is None else [named]), *self._doubles[key]]
        try:
            same = [log for log in logs if log.durability.deleted is None and self.id_of(log) == topic_id]
        except OSError as error:
            raise logs[0].dir.refuse("reading topic ids", error.filename or logs[0].path, error) from error
        if len(same) < 2:
            return
        best = max(same, key=lambda log: (log.dir.path == home, log.epochs.latest, log.log_end_offset))
        self._doubles[key] = [log for log in logs if log not in same]
        self.logs[key] = best
        for log in same:
            if log is not best:
                self._set_aside(log, topic_id)

    def _adopt(self, log: PartitionLog, topic_id: bytes | None) -> bool:
        """Whether an existing log is that of the controller's topic: an id on disk decides, before any record is served or appended.

        For a log that is not loaded this reads one file of some 50 bytes. Where that is missing or damaged the controller's id is taken,
        and written down. One that was deleted, and has its name still for a shortage, is nobody's. Raises KafkaStorageError.
        """
        if log.durability.deleted is not None:
            return False
        if topic_id is None:
            return True
        try:
            self.id_of(log)
            if log.topic_id is not None and _is_nearly(log.topic_id, topic_id):
                logger.error(
                    "%s says topic id %s, but for some bits that of its topic: it is damaged",
                    log.path,
                    log.topic_id.hex(),
                )
                log.topic_id = None
            if log.topic_id is None:
                log.topic_id = topic_id
                if log.dir.offline is None:
                    self._write_topic_id(log, topic_id, sync=True)
                    logger.warning("%s had no readable topic id: it is %s now", log.path, topic_id.hex())
        except OSError as error:
            raise log.dir.refuse("reading or writing a log's topic id", error.filename or log.path, error) from error
        return log.topic_id == topic_id

    def _write_topic_id(self, log: PartitionLog, topic_id: bytes, *, sync: bool) -> None:
        path = os.path.join(log.path, PARTITION_METADATA)
        self.files.write_file(path, format_partition_metadata(topic_id), sync=sync)

    def _set_aside(self, log: PartitionLog, topic_id: bytes | None) -> None:
        """Rename the directory of a log whose topic is gone, or that has moved to another directory when the power went, to `-stray`, as
        Kafka does; its records stay for the operator.

        Raises KafkaStorageError.
        """
        if log.dir.offline is not None:
            raise log.dir.offline.with_traceback(None)
        was_deleted = log.durability.deleted is not None
        target = self._out_of_use(log, "stray", "setting a stray log aside")
        if was_deleted:
            logger.warning(
                "%s was to be deleted, and a shortage has kept it from that until its partition was placed here again: it is kept as %s; "
                "delete that directory when its records are not needed",
                log.path,
                target,
            )
            return
        if topic_id is not None and log.topic_id == topic_id:
            logger.warning(
                "%s is a second log of %s, which is in another directory now: its move there was cut short. It is kept as %s; "
                "delete that directory when the partition has all its records",
                log.path,
                log.name,
                target,
            )
            return
        logger.warning(
            "%s belongs to topic id %s, which is not the one of topic %s now (%s): it was left from a deleted topic and is kept as %s; "
            "delete that directory when its records are not needed",
            log.path,
            log.topic_id and log.topic_id.hex(),
            log.topic,
            topic_id and topic_id.hex(),
            target,
        )

    def _out_of_use(self, log: PartitionLog, suffix: str, action: str) -> str | None:
        """Forget a log and rename its directory to `<topic>-<partition>.<uuid>-<suffix>`; answers that path, or None for a log that
        has no directory yet. Raises KafkaStorageError."""
        key = log.topic, log.partition
        if self.logs.get(key) is log:
            del self.logs[key]
        self.moves.stop(log, "it is no topic's any more")
        self.late.stop(log)
        target = os.path.join(log.dir.path, f"{log.topic[:200]}-{log.partition}.{self.unique()}-{suffix}")
        is_gone = suffix == "delete"
        if is_gone:
            log.abandon()
        renamed = not log.forget_unmade()
        try:
            if renamed:
                self._rename_log(log, target, is_gone=is_gone)
        except FileNotFoundError:
            logger.warning("%s was removed by somebody: there is nothing to rename any more", log.path)
            renamed = False
        except OSError as error:
            if not is_shortage(error):
                raise log.dir.fail(action, log.path, error) from error
            if is_gone:
                log.dir.refuse(action, log.path, error)  # which tells it
                self._retire_later(log)
                return None
            self._doubles.setdefault(key, []).append(log)  # as it was, under nobody's name: the next attempt finds it
            raise log.dir.refuse(action, log.path, error) from error
        if not is_gone:
            log.abandon()
        return target if renamed else None

    def _retire_later(self, log: PartitionLog) -> None:
        """At the next tick: until then a log that is made under its name finds it, and sets it aside first."""
        key = log.topic, log.partition
        # Else a copy, or what was moved.
        named = key not in self.logs and os.path.basename(log.path) == f"{log.topic}-{log.partition}"
        if named:
            self._doubles.setdefault(key, []).append(log)

        def again() -> None:
            if named:
                others = self._doubles.get(key, [])
                if log not in others:
                    return
                others.remove(log)
            self.retire(log)

        log.dir.soon(again)

    def _rename_log(self, log: PartitionLog, target: str, *, is_gone: bool) -> None:
        """Give a log's directory another name. A longer one may take room: a full disk gets some from a log that `is_gone`, whose records
        go first. Raises OSError."""
        try:
            self.files.rename(log.path, target)
        except OSError as error:
            if not is_gone or not is_full(error):
                raise
            for name in self.files.listdir(log.path):
                if name.endswith(LOG_SUFFIX):
                    self.files.remove_if_exists(os.path.join(log.path, name))
            self.files.rename(log.path, target)

    def _take_double(self, key: TopicPartition) -> PartitionLog | None:
        """Nothing of that name is in use: what was found under it in another directory may be the topic's."""
        others = self._doubles.pop(key, None)
        if others:
            log = self.logs[key] = others.pop(0)
            if others:
                self._doubles[key] = others
            return log
        return None

    def _choose_dir(self, key: TopicPartition) -> LogDir:
        preferred = self.moves.preferred.pop(key, None)
        if preferred is not None and preferred.offline is None:
            return preferred
        online = [log_dir for log_dir in self.dirs if log_dir.offline is None]
        if not online:
            raise next(iter(self.offline_dirs.values()))
        if len(online) == 1:
            return online[0]
        open_dirs = [log_dir for log_dir in online if log_dir.path not in self.cordoned]
        if not open_dirs:  # the replica was placed here before the controller heard of it
            return online[0]
        counts = {id(log_dir): 0 for log_dir in open_dirs}
        for log in self.logs.values():
            if id(log.dir) in counts:
                counts[id(log.dir)] += 1
        return min(open_dirs, key=lambda log_dir: counts[id(log_dir)])
