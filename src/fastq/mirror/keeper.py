"""What is done once for a whole mirror, by whoever has lane 0: offsets of groups, heartbeats, MirrorMaker 2's topics.

Rules
- Nothing here is exactly once, and need not be: an offset of a group is committed when it is greater than what is there, heartbeats
  and checkpoints are records of which the last one counts.
- Each piece fails for itself; a failure is told once, and tried again in the next round.
- Thread rule: `run` is the body of a thread of its own; `stop` may be called by others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from fastq.admin import Admin
from fastq.errors import FastqError, GroupIdNotFound, TopicAlreadyExists
from fastq.metadata import TopicPartition
from fastq.mirror.config import MirrorConfig, Side
from fastq.mirror.mm2 import Checkpoint, Heartbeat, OffsetSync, checkpoints_topic, offset_syncs_topic
from fastq.mirror.names import HEARTBEATS, Names, state_topic
from fastq.mirror.progress import Progress
from fastq.mirror.state import State
from fastq.mirror.survey import admin_of
from fastq.mirror.translation import checkpoints, to_commit
from fastq.producer import Producer

logger = logging.getLogger("fastq.mirror")

TURN_S = 0.1
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
        self._made: set[tuple[str, str]] = set()

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Go on until `stop`."""
        options, config = self._config.options, self._config
        source, target = admin_of(config.source), admin_of(config.target)
        producers = {side.alias: _producer(side) for side in (config.source, config.target)}
        beat_at = groups_at = self._clock()
        try:
            while not self._stop.is_set():
                now = self._clock()
                if options.heartbeat_interval_ms and now >= beat_at:
                    beat_at = now + options.heartbeat_interval_ms / 1000
                    self._try("heartbeats", lambda: self._beat(producers[config.source.alias], source))
                if options.group_interval_ms and now >= groups_at:
                    groups_at = now + options.group_interval_ms / 1000
                    self._try("offsets of groups", lambda: self._follow_groups(source, target, producers))
                self._stop.wait(TURN_S)
        finally:
            for producer in producers.values():
                self._try("the end", lambda producer=producer: producer.close(1.0))  # type: ignore[misc]
            source.close()
            target.close()

    def _try(self, what: str, step: Callable[[], None]) -> None:
        try:
            step()
            self._told.pop(what, None)
        except FastqError as error:
            if self._told.get(what) != str(error):
                self._told[what] = str(error)
                logger.warning("%s: %s", what, error)

    # -- heartbeats

    def _beat(self, producer: Producer[bytes, bytes], admin: Admin) -> None:
        """Into the source, from where lanes mirror it like any other topic: it arrives when everything works."""
        self._make(admin, self._config.source, HEARTBEATS)
        beat = Heartbeat(self._config.source.alias, self._config.target.alias, self._time_ms())
        producer.send(HEARTBEATS, beat.value(), beat.key(), partition=0)

    def _make(self, admin: Admin, side: Side, topic: str) -> None:
        if (side.alias, topic) in self._made:
            return
        factor = self._config.options.replication_factor if side is self._config.target else -1
        try:
            admin.create_topic(topic, 1, factor, configs=COMPACTED)
        except TopicAlreadyExists:
            pass
        self._made.add((side.alias, topic))

    # -- groups

    def _follow_groups(self, source: Admin, target: Admin, producers: Mapping[str, Producer[bytes, bytes]]) -> None:
        progress = self._read_progress()
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
                producers[config.target.alias].send(topic, checkpoint.value(), checkpoint.key(), partition=0)
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
                    producers[side.alias].send(topic, sync.value(), sync.key(), partition=0)
                    self._syncs[tp] = sync

    def _read_progress(self) -> dict[TopicPartition, Progress]:
        state = State(self._config.target, state_topic(self._config.source.alias), list(range(self._lanes)))
        try:
            state.catch_up()
        finally:
            state.close()
        return state.progress


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
        offsets = source.list_group_offsets(group)
        committed = {
            tp: outcome.value.offset
            for tp, outcome in offsets.items()
            if outcome.error is None and outcome.value is not None
        }
        of_group = checkpoints(group, committed, progress, names)
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
        if isinstance(outcome.error, GroupIdNotFound):
            there: dict[TopicPartition, int] = {}
        elif outcome.error is not None or outcome.result().is_active:
            continue
        else:
            offsets = target.list_group_offsets(group)
            there = {tp: o.value.offset for tp, o in offsets.items() if o.error is None and o.value is not None}
        wanted = to_commit(of_group, there)
        if not wanted:
            continue
        try:
            answers = target.alter_group_offsets(group, wanted)
        except FastqError as error:  # it has members since
            logger.info("offsets of %s are left alone: %s", group, error)
            continue
        done[group] = {tp: wanted[tp] for tp, answer in answers.items() if answer.error is None}
    return done


def _producer(side: Side) -> Producer[bytes, bytes]:
    return Producer({**side.common, **side.producer, "allow_auto_create_topics": False, "max_block_ms": 10_000})
