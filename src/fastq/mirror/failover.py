"""Fail-over: the target takes the source's place. Fail-back: the former source is prepared to follow it.

Rules
- Fail-over works without the source. Lane by lane the transactional id is initialised, which fences whoever copies, and in one transaction
  it is written down that the lane has ended, with the ends of its partitions in the target: whoever begins in the lane later reads that
  first. So nothing is copied behind those ends, whatever processes still run.
- What a mirror that has ended wrote down about where topics come from counts no more (`survey.py`): they may be mirrored the other way.
- Fail-back is for identical names. The mirror the other way begins at those ends: what was copied is not copied back. What the former
  source has and nobody has copied stays there, and is told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastq.admin import Admin
from fastq.errors import ConfigError, FastqError, TransactionFenced
from fastq.metadata import TopicPartition
from fastq.mirror.config import MirrorConfig
from fastq.mirror.keeper import commit_in_target, group_checkpoints, still_there
from fastq.mirror.lane import ending_producer, opened_producer
from fastq.mirror.missing import missing_in_target, never_copied
from fastq.mirror.names import Names, state_topic
from fastq.mirror.progress import Progress, Run, is_another
from fastq.mirror.report import heartbeat_age_s
from fastq.mirror.same import Epochs
from fastq.mirror.same_failover import end_topics, follow_back
from fastq.mirror.same_progress import progress_of
from fastq.mirror.state import (
    Stopped,
    consumer_at,
    end_of,
    epochs_key,
    lane_of,
    offsets_of,
    progress_key,
    read_state,
    returned_key,
    returned_value,
    stopped_key,
)
from fastq.mirror.survey import Survey, partitions_of
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.mirror")

SOURCE_TIMEOUT_S = 5.0
TRIES = 10
PAUSE_S = 0.2
NOTHING: Mapping[Any, Any] = {}


class FailedOver(NamedTuple):
    """What a fail-over found and did.

    `missing`: by partition of the source how many offsets the target has not, None where the source does not answer. `heartbeat_age_s`: how
    long before the fail-over the last heartbeat was sent that has arrived: what the source took since then may be missing. `groups`: how
    many offsets were committed now, none without `sync_groups`. `seconds`: how long it took. `aborted`: with the same offsets, from where
    on the target had transactions without their end, which this fail-over has aborted there; one that is done again finds none. `starts`:
    the first of the offsets that are missing; `reasons`: why they are, in words, as far as it is known. `unknown`: partitions of the source
    of which nobody can say what is missing, and why; `refused`: topics of it that were not mirrored at all, and why.
    """

    partitions: Mapping[TopicPartition, Progress]
    missing: Mapping[TopicPartition, int] | None
    heartbeat_age_s: float | None
    groups: int
    seconds: float
    aborted: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int] = NOTHING
    reasons: Mapping[TopicPartition, str] = NOTHING
    unknown: Mapping[TopicPartition, str] = NOTHING
    refused: Mapping[str, str] = NOTHING


def fail_over(config: MirrorConfig, ended: Callable[[float], None] = lambda _: None) -> FailedOver:
    """End the mirror for good, so that the target can be written to. May be done again, as when it was interrupted.

    ended: called with the seconds that it took as soon as the target may be written to, before the source, which is gone perhaps, is asked.
    """
    begin = time.monotonic()
    survey = Survey(config)
    try:
        lanes = survey.lanes()
        survey.check_target(read_state(config.target, state_topic(config.source.alias), [0]))
        aborted: Mapping[TopicPartition, int] = {}
        if config.options.offsets == "same":
            aborted = end_topics(config, lanes, survey.target)
        else:
            for lane in range(lanes):
                _end_lane(config, lane, survey.target)
        ended(time.monotonic() - begin)
        state = read_state(config.target, state_topic(config.source.alias), range(lanes))
        progress = progress_of(config, survey.target, state)
        age_s = heartbeat_age_s(config)
        if age_s is not None:
            age_s = max(age_s - (time.monotonic() - begin), 0.0)
        missing, groups, alias = None, 0, config.source.alias
        try:
            survey.source.describe_cluster(timeout=SOURCE_TIMEOUT_S)
            try:
                groups = _commit_groups(config, progress, survey) if config.options.sync_groups else 0
            except FastqError as error:  # what is missing may be told all the same
                logger.warning("offsets of groups stay as they were last seen: %s", error)
            missing = missing_in_target(config, survey, progress, state.epochs)
        except FastqError as error:
            logger.warning("%s does not answer all that is asked: %s", alias, error)
        seconds = time.monotonic() - begin
        if missing is None:
            return FailedOver(progress, None, age_s, groups, seconds, aborted)
        return FailedOver(progress, missing.counts, age_s, groups, seconds, aborted, *missing[1:])
    finally:
        survey.close()


def _end_lane(config: MirrorConfig, lane: int, target: Admin) -> None:
    """Write down that a lane has ended. A lane that is still at it fences us as we fence it, once: then again."""
    topic, names = state_topic(config.source.alias), Names.of(config)
    for attempt in range(TRIES):
        try:
            with ending_producer(config, lane) as producer:
                producer.init_transactions()
                state = read_state(config.target, topic, [lane])
                if lane in state.stopped:
                    return
                copied = {
                    TopicPartition(names.in_target(tp.topic), tp.partition): of for tp, of in state.progress.items()
                }
                there = partitions_of(target, copied)  # some were deleted since, perhaps
                # Whatever transaction of somebody else's is open there: what was copied behind it lies before the end, too.
                with consumer_at(config.target, isolation_level="read_uncommitted") as consumer:
                    found = offsets_of(consumer, there)
                # Behind what is known to be there is nothing of ours, where the end itself is not told.
                ends = {tp: found.ends[tp] if tp in found.ends else copied[tp].target_end for tp in there}
                stopped = Stopped(time.time_ns() // 1_000_000, ends)
                with producer.transaction():
                    producer.send(topic, stopped.to_json(), stopped_key(), partition=lane)
            return
        except TransactionFenced:
            if attempt == TRIES - 1:
                raise
            time.sleep(PAUSE_S)


def _commit_groups(config: MirrorConfig, progress: Mapping[TopicPartition, Progress], survey: Survey) -> int:
    """Have groups go on in the target where they are in the source now; how many offsets were committed."""
    alive = still_there(survey.target, progress, Names.of(config))
    done = commit_in_target(survey.target, group_checkpoints(survey.source, alive, config))
    return sum(map(len, done.values()))


class Prepared(NamedTuple):
    """What a fail-back has prepared: where the mirror the other way begins, and ranges of the former source that the target has not:
    `diverged` of partitions of which something was copied, `never_copied` of the others."""

    partitions: Mapping[TopicPartition, int]
    diverged: Mapping[TopicPartition, tuple[int, int]]
    never_copied: Mapping[TopicPartition, tuple[int, int]] = NOTHING


def fail_back(config: MirrorConfig) -> Prepared:
    """Prepare the mirror the other way, `reversed_config(config)`. Raises ConfigError before a fail-over, and for prefixed names."""
    source, target = config.source.alias, config.target.alias
    if config.options.names != "identity":
        raise ConfigError(
            f'only a mirror with names = "identity" can be failed back: {target} has its topics under other names than {source}'
        )
    survey, back = Survey(config), reversed_config(config)
    returning = Survey(back)
    try:
        lanes = survey.lanes()
        state = read_state(config.target, state_topic(source), range(lanes))
        survey.check_target(state)
        if len(state.stopped) < lanes:
            raise ConfigError(
                f"the mirror from {source} to {target} was not failed over; do fastq mirror fail-over first"
            )
        ends = {tp: end for stopped in state.stopped.values() for tp, end in stopped.ends.items()}
        if config.options.offsets == "same":
            time_ms = end_of(state.stopped)
            back_lanes = returning.prepare()  # before anything else is changed: it may be refused
            prepared = not _left(back, back_lanes, time_ms)
            seed = partial(_seed_left, back, back_lanes, time_ms)
            admins = survey.source, survey.target
            kept = follow_back(config, ends, state.epochs, *admins, seed, prepared=prepared)
            return Prepared(ends, kept, {} if prepared else never_copied(config, survey, ends))
        ids, theirs = partitions_of(survey.target, ends), partitions_of(survey.source, state.progress)
        # A topic that one of both has deleted, or made anew, has not what was copied: nothing is to be passed over there.
        same = [
            tp
            for tp, of in state.progress.items()
            if tp in ids
            and tp in theirs
            and not is_another(theirs[tp], of.topic_id)
            and not is_another(ids[tp], of.target_id)
        ]
        # Up to the high watermark: what lies behind an open transaction was not copied, and the target's records come behind it.
        with consumer_at(config.source, isolation_level="read_uncommitted") as consumer:
            source_ends = consumer.end_offsets(same)
        places = {
            tp: Progress(ends[tp], ids[tp], (Run(ends[tp], source_ends[tp], 0),), None, theirs[tp]) for tp in same
        }
        left = _seed_left(back, returning.prepare(), end_of(state.stopped), places)
        diverged = {
            tp: (state.progress[tp].next_offset, source_ends[tp])
            for tp in same
            if left and source_ends[tp] > state.progress[tp].next_offset
        }
        never = never_copied(config, survey, state.progress) if left else {}
        return Prepared({tp: p.next_offset for tp, p in places.items()}, diverged, never)
    finally:
        survey.close()
        returning.close()


def _left(back: MirrorConfig, lanes: int, time_ms: int) -> list[int]:
    """The lanes of the mirror the other way that were not prepared for this end yet."""
    state = read_state(back.target, state_topic(back.source.alias), range(lanes))
    state.check_target(back.target.alias)
    return [lane for lane in range(lanes) if state.returned.get(lane) != time_ms]


def _seed_left(
    back: MirrorConfig, lanes: int, time_ms: int, begun: Mapping[TopicPartition, Progress | Epochs]
) -> Sequence[int]:
    """Seed those lanes that were not prepared for this end yet; which they are."""
    left = _left(back, lanes, time_ms)
    for lane in left:  # the others were prepared before, and have gone on since, perhaps
        _seed(back, lane, {tp: of for tp, of in begun.items() if lane_of(tp, lanes) == lane}, time_ms)
    return left


def _seed(config: MirrorConfig, lane: int, begun: Mapping[TopicPartition, Progress | Epochs], time_ms: int) -> None:
    """Where a lane begins, in place of what it may have known, and for which end of the other mirror that is."""
    topic = state_topic(config.source.alias)
    epochs = read_state(config.target, topic, [lane]).epochs
    with opened_producer(config, lane) as producer, producer.transaction():
        producer.send(topic, None, stopped_key(), partition=lane)
        producer.send(topic, returned_value(time_ms), returned_key(), partition=lane)
        for tp in epochs:  # which the source had of what it has since taken from the target too
            producer.send(topic, None, epochs_key(tp), partition=lane)
        for tp, of in begun.items():
            key = epochs_key(tp) if isinstance(of, Epochs) else progress_key(tp)
            producer.send(topic, of.to_json(), key, partition=lane)


def reversed_config(config: MirrorConfig) -> MirrorConfig:
    """The mirror the other way."""
    return MirrorConfig(config.target, config.source, config.options)
