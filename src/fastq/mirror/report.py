"""How far a mirror is, asked of both clusters by anybody at any time: no process of the mirror has to run.

Rules: what is committed in the target counts. A lag in records counts offsets, those without a record too. The lag in seconds is the age
of the oldest record that is not in the target yet, by its own time (`ages.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Mapping, Sequence

from fastq.consumer import Record
from fastq.errors import DeserializationError, FastqError
from fastq.metadata import TopicPartition
from fastq.mirror.ages import Ages, Behind
from fastq.mirror.config import MirrorConfig
from fastq.mirror.history import SoundMarks, lost_from, marks_of
from fastq.mirror.mm2 import Heartbeat
from fastq.mirror.names import HEARTBEATS, Names, state_topic
from fastq.mirror.progress import MirrorGap, Progress, place_to_start
from fastq.mirror.same_progress import progress_of
from fastq.mirror.state import State, Stopped, consumer_at, offsets_of, read_state, with_open_transactions
from fastq.mirror.survey import Survey, admin_of
from fastq.mirror.topics import Mirrored
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.mirror")

REFUSED = "refused"
HEARTBEATS_S = 5.0
HEARTBEATS_READ = 10_000
"""So many of the newest are looked at first: they are one a second and mirror, and are compacted late."""


class PartitionStatus(NamedTuple):
    """`next_offset` is None where nothing was copied yet, `end` and `lag` where the source does not tell. `rate` is offsets a second
    between two looks; `state` "mirrored", "new", "refused" with its topic, or why it is stopped or not known."""

    partition: TopicPartition
    target: str
    next_offset: int | None
    end: int | None
    lag: int | None
    age_s: float | None
    rate: float
    state: str
    gap: tuple[int, int] | None


class MirrorStatus(NamedTuple):
    """`heartbeat_age_s`: how long ago the last heartbeat that has arrived was sent; `refused`: topics and why they are not mirrored;
    `to_come`: partitions that are to be mirrored, and that the target has not yet."""

    partitions: Sequence[PartitionStatus]
    refused: Mapping[str, str]
    stopped: Stopped | None
    heartbeat_age_s: float | None
    to_come: Sequence[TopicPartition] = ()


class Watch:
    """Looks at a mirror again and again, over the same connections. Raises, at the first look, ConfigError where it has never run. Thread
    rule: one thread."""

    def __init__(self, config: MirrorConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self._survey = Survey(config)
        self._state: State | None = None
        self._ages, self._sound = Ages(config.source), SoundMarks()
        self._before: tuple[float, dict[TopicPartition, Progress]] | None = None

    def begin(self) -> None:
        """Note how far the mirror is now: rates of the next look are since then."""
        self._before = self._clock(), self._progress(self._caught_up())

    def look(self) -> MirrorStatus:
        """How far it is."""
        plan = self._survey.look()
        state, now = self._caught_up(), self._clock()
        progress = self._progress(state)
        at, before = self._before or (now, progress)
        stopped = next(iter(state.stopped.values()), None)
        others = plan.others if stopped is None else {}  # once it is failed over none is this mirror's
        partitions = self._partitions(plan.partitions, others, before, progress, max(now - at, 1e-9))
        self._before = now, progress
        never = {part.partition.topic: others[part.partition.topic] for part in partitions if part.state == REFUSED}
        refused = {**plan.refused, **self._survey.not_made(plan.changes), **never}
        return MirrorStatus(partitions, refused, stopped, heartbeat_age_s(self._config), sorted(plan.to_come))

    def close(self) -> None:
        self._survey.close()
        self._ages.close()
        if self._state is not None:
            self._state.close()

    def _partitions(
        self,
        mirrored: Mapping[TopicPartition, Mirrored],
        others: Container[str],
        before: Mapping[TopicPartition, Progress],
        progress: Mapping[TopicPartition, Progress],
        elapsed_s: float,
    ) -> list[PartitionStatus]:
        config, options = self._config, self._config.options
        level = "read_committed" if options.read_committed and options.offsets != "same" else "read_uncommitted"
        with consumer_at(config.source, isolation_level=level, auto_offset_reset="earliest") as consumer:
            begins, ends, missing = offsets_of(consumer, mirrored)
            known_ends = with_open_transactions(config.source, progress, ends)
            marks = marks_of(progress, {tp: to.topic_id for tp, to in mirrored.items() if tp not in missing})
            lost = lost_from(config.source, marks, begins, known_ends, self._sound.of(marks, ends))
            self._sound.compared(marks, ends, lost)
            behind: dict[TopicPartition, Behind] = {}
            states: dict[TopicPartition, str] = {}
            for tp, to in mirrored.items():
                known = progress.get(tp)
                if tp in missing:
                    states[tp] = f"unknown: {missing[tp].message}"
                    continue
                lost_at = lost.get(tp)
                if isinstance(lost_at, FastqError):
                    states[tp] = f"unknown: {lost_at.message}"
                    continue
                # What the source has lost goes in the target first, which may refuse that.
                is_ahead = (
                    options.offsets == "same"
                    and known is not None
                    and known.topic_id == to.topic_id
                    and known.next_offset > known_ends[tp]
                )
                # Once it is failed over nobody knows any more of which topic it was.
                topic_id = to.topic_id if known is None or known.topic_id else ""
                try:
                    start = place_to_start(
                        known,
                        topic_id,
                        begins[tp],
                        known_ends[tp],
                        start=options.start,
                        on_gap="stop" if is_ahead else options.on_gap,
                        target_id=to.target_id,
                        lost=lost_at,
                    )
                    if tp.topic in others and (known is None or known.topic_id != to.topic_id):
                        states[tp] = REFUSED
                    else:
                        states[tp] = "new" if known is None else "mirrored"
                    if start.offset < ends[tp]:
                        copied_ms = -1 if known is None or known.mark is None else known.mark.time_ms
                        behind[tp] = Behind(to.topic_id, start.offset, copied_ms)
                except MirrorGap as error:
                    states[tp] = f"stopped: {error.message}"
        times = self._ages.times(behind)
        now_ms, found = time.time() * 1000, []
        for tp, to in sorted(mirrored.items()):
            if tp in missing:
                known = progress.get(tp)
                next_offset = None if known is None else known.next_offset
                found.append(PartitionStatus(tp, to.topic, next_offset, None, None, None, 0.0, states[tp], None))
                continue
            # Of what is refused the target has nothing: what is known is of the topic before.
            known, earlier = (None, None) if states[tp] == REFUSED else (progress.get(tp), before.get(tp))
            next_offset = None if known is None else known.next_offset
            rate = 0.0 if known is None else (known.next_offset - (earlier or known).next_offset) / elapsed_s
            lag = max(ends[tp] - (begins[tp] if next_offset is None else next_offset), 0)
            age_s = max(now_ms - times[tp], 0.0) / 1000 if tp in times else (0.0 if tp not in behind else None)
            gap = None if known is None else known.gap
            found.append(PartitionStatus(tp, to.topic, next_offset, ends[tp], lag, age_s, rate, states[tp], gap))
        return found

    def _progress(self, state: State) -> dict[TopicPartition, Progress]:
        return dict(progress_of(self._config, self._survey.target, state))

    def _caught_up(self) -> State:
        if self._state is None:
            self._survey.identify()
            lanes = range(self._survey.lanes())
            self._state = State(self._config.target, state_topic(self._config.source.alias), lanes)
        self._state.catch_up()
        return self._state


def status(config: MirrorConfig, interval_s: float = 1.0) -> MirrorStatus:
    """Look, with rates of the `interval_s` seconds before."""
    watch = Watch(config)
    try:
        watch.begin()
        time.sleep(interval_s)
        return watch.look()
    finally:
        watch.close()


def failed_over(config: MirrorConfig) -> bool:
    """Whether the mirror was, as far as the target tells it; the source is not asked."""
    survey = Survey(config)
    try:
        state = read_state(config.target, state_topic(config.source.alias), range(survey.lanes()))
    except FastqError as error:
        logger.info("what the mirror wrote down in %s cannot be read: %s", config.target.alias, error)
        return False
    finally:
        survey.close()
    return bool(state.stopped)


def heartbeat_age_s(config: MirrorConfig) -> float | None:
    """How long ago the last heartbeat was sent that is in the target; None where there is none, or it cannot be read."""
    partition = TopicPartition(Names.of(config).in_target(HEARTBEATS), 0)
    newest = None
    try:
        with admin_of(config.target) as admin:
            if partition.topic not in admin.list_topics(timeout=HEARTBEATS_S):
                return None
        settings = {"auto_offset_reset": "earliest", "default_api_timeout_ms": int(HEARTBEATS_S * 1000)}
        with consumer_at(config.target, **settings) as consumer:
            end = consumer.end_offsets([partition])[partition]
            begin = consumer.beginning_offsets([partition])[partition]
            consumer.assign([partition])
            for start in sorted({max(begin, end - HEARTBEATS_READ), begin}, reverse=True):
                consumer.seek(partition, start)
                for record in consumer.read_to_end():
                    newest = _beat_of(record, config) or newest
                if newest is not None:
                    break
    except FastqError as error:
        logger.info("heartbeats in %s cannot be read: %s", config.target.alias, error)
        return None
    return None if newest is None else max(time.time() * 1000 - newest, 0.0) / 1000


def _beat_of(record: Record[bytes, bytes], config: MirrorConfig) -> int | None:
    """When it was sent, of a heartbeat of this mirror. Others write there too, and not only heartbeats perhaps."""
    try:
        beat = Heartbeat.decode(record.key or b"", record.value or b"")
    except DeserializationError:
        return None
    return beat.time_ms if (beat.source, beat.target) == (config.source.alias, config.target.alias) else None
