"""What is done once for a whole mirror, by whoever has lane 0: offsets of groups, heartbeats, access controls, MirrorMaker 2's topics.

Rules
- Nothing here is exactly once, and need not be: an offset of a group is committed when it is greater than what is there, heartbeats
  and checkpoints are records of which the last one counts.
- Each piece fails for itself; a failure is told once, and tried again in the next round. That the mirror was failed over ends it: groups of
  the target are others' then.
- Thread rule: `run` is the body of a thread of its own; `stop` may be called by others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from fastq.admin import Admin, CommittedOffset
from fastq.errors import ClientClosed, FastqError, GroupIdNotFound, KafkaError, TopicAlreadyExists
from fastq.metadata import TopicPartition
from fastq.mirror.acls import copy_acls, in_words
from fastq.mirror.config import MirrorConfig, Side
from fastq.mirror.lane import stopped_error
from fastq.mirror.mm2 import Checkpoint, Heartbeat, OffsetSync, checkpoints_topic, offset_syncs_topic
from fastq.mirror.names import HEARTBEATS, Names, state_topic
from fastq.mirror.progress import MirrorStopped, Progress, is_another
from fastq.mirror.same_progress import progress_of
from fastq.mirror.state import State, read_state
from fastq.mirror.survey import admin_of
from fastq.mirror.topics import topics_of
from fastq.mirror.translation import checkpoints, to_commit
from fastq.producer import Delivery, Producer

logger = logging.getLogger("fastq.mirror")

TURN_S = 0.1
MADE_S = 30.0
"""So often it is looked whether a topic that is written to is still there: a producer tries a deleted one for minutes."""
COMPACTED = {"cleanup.policy": "compact"}
OWN_GROUPS = "fastq-mirror."


class Keeper:
    """Invariant: at most one runs a process, while it has lane 0."""

    def __init__(
        self,
        config: MirrorConfig,
        lanes: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        time_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._config, self._lanes, self._clock, self._time_ms = config, lanes, clock, time_ms
        self._names = Names.of(config)
        self._stop = threading.Event()
        self._told: dict[str, str] = {}
        self._checkpoints: dict[bytes, Checkpoint] = {}
        self._syncs: dict[TopicPartition, OffsetSync] = {}
        self._made: dict[tuple[str, str], float] = {}  # until when a topic is taken to be there still
        self._state: State | None = None
        self._source: Admin | None = None
        self._failed: dict[str, FastqError] = {}  # by topic, of records that nobody waits for

    def stop(self) -> None:
        """End. The source is not waited for, which may be away."""
        self._stop.set()
        if self._source is not None:
            self._source.close()

    def run(self) -> None:
        """Go on until `stop`. Raises MirrorStopped once the mirror was failed over."""
        options, config = self._config.options, self._config
        # What is wrong in the settings of either side ends the mirror: it raises here.
        self._source = source = admin_of(config.source)
        target = admin_of(config.target)
        producers = {side.alias: _producer(side) for side in (config.source, config.target)}
        beat_at = groups_at = acls_at = self._clock()
        try:
            while not self._stop.is_set():
                now = self._clock()
                if options.heartbeat_interval_ms and now >= beat_at:
                    beat_at = now + options.heartbeat_interval_ms / 1000
                    self._try("heartbeats", lambda: self._beat(producers[config.source.alias], source))
                if options.group_interval_ms and now >= groups_at:
                    groups_at = now + options.group_interval_ms / 1000
                    self._try("offsets of groups", lambda: self._follow_groups(source, target, producers))
                if options.acl_interval_ms and now >= acls_at:
                    acls_at = now + options.acl_interval_ms / 1000
                    if not self._try("access controls", lambda: self._copy_acls(source, target)):
                        acls_at = min(acls_at, now + options.refresh_interval_ms / 1000)
                self._stop.wait(TURN_S)
        finally:
            self._forget_state()
            for producer in producers.values():
                self._try("the end", lambda producer=producer: producer.close(1.0))  # type: ignore[misc]
            source.close()
            target.close()

    def _try(self, what: str, step: Callable[[], object]) -> bool:
        """Whether it was done, and was not to be done again soon."""
        try:
            done = step()
            self._told.pop(what, None)
        except MirrorStopped:
            raise
        except FastqError as error:
            if not (self._stop.is_set() and isinstance(error, ClientClosed)):
                self._tell(what, logging.WARNING, f"{what}: {error}")
            return False
        return done is not False

    def _tell(self, what: str, level: int, text: str) -> None:
        """What stays is told once."""
        if self._told.get(what) != text:
            self._told[what] = text
            logger.log(level, "%s", text)

    # -- access controls

    def _copy_acls(self, source: Admin, target: Admin) -> bool:
        """Of the topics that are mirrored, by what lanes may write to; False while there are none."""
        written = read_state(self._config.target, state_topic(self._config.source.alias), [0]).provenance
        here = target.list_topics()
        targets = {origin.topic: name for name, origin in written.items() if name in here}
        if not targets:
            return False
        copied = copy_acls(self._config, source, target, targets)
        if copied.why_not:
            self._tell("authorizers", logging.INFO, copied.why_not)
            return True
        self._told.pop("authorizers", None)
        for acl in copied.made:
            logger.info("made in %s: %s", self._config.target.alias, in_words(acl))
        for acl, error in copied.errors.items():
            self._tell(
                repr(acl), logging.WARNING, f"{in_words(acl)} is not made in {self._config.target.alias}: {error}"
            )
        return True

    # -- heartbeats

    def _beat(self, producer: Producer[bytes, bytes], admin: Admin) -> None:
        """Into the source, from where lanes mirror it like any other topic: it arrives when everything works."""
        self._make(admin, self._config.source, HEARTBEATS)
        beat = Heartbeat(self._config.source.alias, self._config.target.alias, self._time_ms())
        self._send(producer, self._config.source, HEARTBEATS, beat.key(), beat.value())

    def _send(self, producer: Producer[bytes, bytes], side: Side, topic: str, key: bytes, value: bytes) -> None:
        """Send one; what has become of those before is raised now, and the topic looked for again."""
        failed = self._failed.pop(topic, None)
        if failed is None:
            try:
                producer.send(topic, value, key, partition=0).add_done_callback(partial(self._delivered, topic))
                return
            except FastqError as error:
                failed = error
        self._made.pop((side.alias, topic), None)
        self._checkpoints.clear()  # of these nobody knows which have arrived
        self._syncs.clear()
        raise failed

    def _delivered(self, topic: str, delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            self._failed[topic] = error

    def _make(self, admin: Admin, side: Side, topic: str) -> None:
        now = self._clock()
        if self._made.get((side.alias, topic), now) > now:
            return
        if topic not in admin.list_topics(include_internal=True):  # who may write to it may not make it, perhaps
            factor = self._config.options.replication_factor if side is self._config.target else -1
            try:
                admin.create_topic(topic, 1, factor, configs=COMPACTED)
            except TopicAlreadyExists:
                pass
        self._made[side.alias, topic] = now + MADE_S

    # -- groups

    def _follow_groups(self, source: Admin, target: Admin, producers: Mapping[str, Producer[bytes, bytes]]) -> None:
        progress = still_there(target, self._read_progress(target), self._names)
        options, config = self._config.options, self._config
        found = group_checkpoints(source, progress, config)
        if options.sync_groups:
            commit_in_target(target, found)
        if not options.mm2_topics:
            return
        topic = checkpoints_topic(config.source.alias)
        self._make(target, config.target, topic)
        for checkpoint in (c for of_group in found.values() for c in of_group):
            if self._checkpoints.get(checkpoint.key()) != checkpoint:
                producer = producers[config.target.alias]
                self._send(producer, config.target, topic, checkpoint.key(), checkpoint.value())
                self._checkpoints[checkpoint.key()] = checkpoint
        self._write_syncs(source, target, producers, progress)

    def _write_syncs(
        self,
        source: Admin,
        target: Admin,
        producers: Mapping[str, Producer[bytes, bytes]],
        progress: Mapping[TopicPartition, Progress],
    ) -> None:
        config, at_source = self._config, self._config.options.offset_syncs == "source"
        side, admin = (config.source, source) if at_source else (config.target, target)
        topic = offset_syncs_topic(config.target.alias if at_source else config.source.alias)
        self._make(admin, side, topic)
        for tp, of_partition in progress.items():
            if of_partition.runs:
                run = of_partition.runs[-1]
                sync = OffsetSync(tp.topic, tp.partition, run.source, run.target)
                if self._syncs.get(tp) != sync:
                    self._send(producers[side.alias], side, topic, sync.key(), sync.value())
                    self._syncs[tp] = sync

    def _read_progress(self, target: Admin) -> Mapping[TopicPartition, Progress]:
        """What has come since the last round is read; from the beginning after an error."""
        if self._state is None:
            self._state = State(self._config.target, state_topic(self._config.source.alias), range(self._lanes))
        try:
            self._state.catch_up()
        except FastqError:
            self._forget_state()
            raise
        for stopped in self._state.stopped.values():
            raise stopped_error(self._config, stopped)
        return progress_of(self._config, target, self._state)

    def _forget_state(self) -> None:
        state, self._state = self._state, None
        if state is not None:
            state.close()


def still_there(
    target: Admin, progress: Mapping[TopicPartition, Progress], names: Names
) -> dict[TopicPartition, Progress]:
    """Of partitions whose topic in the target is the one that was copied to: offsets of another one mean other records."""
    here = sorted({names.in_target(topic) for topic in topics_of(progress)})
    outcomes = target.describe_topics(here) if here else {}
    ids = {name: o.value.topic_id.hex() for name, o in outcomes.items() if o.error is None and o.value is not None}
    return {
        tp: of
        for tp, of in progress.items()
        if (name := names.in_target(tp.topic)) in ids and not is_another(of.target_id, ids[name])
    }


def group_checkpoints(
    source: Admin, progress: Mapping[TopicPartition, Progress], config: MirrorConfig
) -> dict[str, list[Checkpoint]]:
    """Where the groups of the source that are wanted go on in the target."""
    names, options = Names.of(config), config.options
    found: dict[str, list[Checkpoint]] = {}
    for group, listing in source.list_groups().items():
        if group.startswith(OWN_GROUPS) or listing.protocol_type not in ("consumer", ""):
            continue
        if not any(p.fullmatch(group) for p in options.groups) or any(
            p.fullmatch(group) for p in options.exclude_groups
        ):
            continue
        try:
            offsets = source.list_group_offsets(group)
        except FastqError as error:
            if not isinstance(error, KafkaError) or error.retriable:
                raise
            logger.info("offsets of %s are not translated: %s", group, error)
            continue
        found_there = {
            tp: outcome.value for tp, outcome in offsets.items() if outcome.error is None and outcome.value is not None
        }
        committed = {tp: value.offset for tp, value in found_there.items()}
        metadata = {tp: value.metadata for tp, value in found_there.items() if value.metadata}
        of_group = checkpoints(group, committed, progress, names, metadata)
        if of_group:
            found[group] = of_group
    return found


def commit_in_target(target: Admin, found: Mapping[str, list[Checkpoint]]) -> dict[str, dict[TopicPartition, int]]:
    """Commit them for groups that have no members there; what was committed."""
    done: dict[str, dict[TopicPartition, int]] = {}
    if not found:
        return done
    described = target.describe_groups(list(found))
    for group, of_group in found.items():
        outcome = described[group]
        if outcome.error is None:
            if outcome.result().is_active:
                continue
        elif not isinstance(outcome.error, GroupIdNotFound):
            logger.info("offsets of %s are left alone: %s", group, outcome.error)
            continue
        there: dict[TopicPartition, int] = {}
        try:
            if outcome.error is None:
                offsets = target.list_group_offsets(group)
                there = {tp: o.value.offset for tp, o in offsets.items() if o.error is None and o.value is not None}
            wanted = to_commit(of_group, there)
            if not wanted:
                continue
            metadata = {TopicPartition(c.topic, c.partition): c.metadata for c in of_group}
            named = {tp: CommittedOffset(offset, metadata[tp]) for tp, offset in wanted.items()}
            answers = target.alter_group_offsets(group, named)
        except KafkaError as error:  # it has members since, or may not be touched
            logger.info("offsets of %s are left alone: %s", group, error)
            continue
        done[group] = {tp: wanted[tp] for tp, answer in answers.items() if answer.error is None}
    return done


def _producer(side: Side) -> Producer[bytes, bytes]:
    return Producer({**side.common, **side.producer, "allow_auto_create_topics": False, "max_block_ms": 10_000})
