"""A mirror's process: its place among the others, the lanes that it has, and who looks after topics.

Rules
- Lanes are shared out by a group of the target, `fastq-mirror.ALIAS`, whose members subscribe to the mirror's own topic: who is given
  partition i of it runs lane i, and nobody reads anything by it. So a process that dies is noticed after session_timeout_ms, one that
  ends at once. The group is a convenience and no safeguard: that is the lane's transactional id.
- A topic is copied when the provenance of what is written is in the target, and was looked for in the source after that: of two
  mirrors that begin towards each other at the same moment at least one sees the other.
- Who has lane 0 makes and changes topics, and does what is done once (`keeper.py`).
- Thread rule: `run` belongs to one thread; it starts one for the survey and one a lane. `stop` and `lanes` may be used by others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from fastq.consumer import Consumer
from fastq.errors import ConfigError, FastqError, InvalidSessionTimeout, TransactionFenced
from fastq.metadata import TopicPartition
from fastq.mirror.config import MirrorConfig
from fastq.mirror.keeper import Keeper
from fastq.mirror.lane import Counts, Lane, Work, opened_producer, stopped_error
from fastq.mirror.names import Names, state_topic
from fastq.mirror.progress import MirrorStopped
from fastq.mirror.same_lane import SameLane
from fastq.mirror.state import lane_of, provenance_key, provenance_value, read_state, target_key, target_value
from fastq.mirror.survey import Survey
from fastq.mirror.target_writer import TargetWriter
from fastq.mirror.topics import Mirrored, Plan, Provenance, provenances
from fastq.net.outages import says_once
from fastq.producer import Producer

logger = logging.getLogger("fastq.mirror")

TURN_S = 0.2
LOOKS_MAX = 3
"""In a row without a pause: one that makes topics, one that writes down where they come from, one after both. What is left then is what
does not help."""
TRIES = 10
SURVEY_S = 1.0
"""How long the survey may take to end what it does in the target, which may be away, too."""
STOP_S = 10.0
"""How long a lane may take to end its transaction. One that takes longer is left: its successor fences it."""


class Mirror:
    """Copies topics from one cluster to another, as one of any number of processes with the same configuration.

        Mirror(load_config("mirror.toml")).run()

    `run` returns after `stop`, from any thread or a signal handler. Raises ConfigError for what no waiting mends, MirrorStopped once it
    was failed over, why a cluster cannot be reached at the start, and whatever ends one of its threads by a defect; later failures of the
    clusters are logged, and tried again.
    """

    def __init__(self, config: MirrorConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not isinstance(config, MirrorConfig):
            raise TypeError(f"a MirrorConfig is needed, as load_config(path) answers it, got {type(config).__name__}")
        self.config = config
        self.lanes: dict[int, Lane] = {}
        self._clock = clock
        self._work = Work(0, {})
        self._lane_count = 0
        self._threads: dict[int, threading.Thread] = {}
        self._stopping = threading.Event()
        self._look_now = threading.Event()
        self._keeper: tuple[Keeper, threading.Thread] | None = None
        self._known: dict[str, Provenance] = {}
        self._counting = threading.Lock()
        self._before = Counts()  # of lanes that were ours
        self._counts: list[Counts] = []  # of lanes that are, or that have not ended yet
        self._failure: Exception | None = None  # of a thread, which no waiting mends

    def stop(self) -> None:
        """End: lanes commit what they have, and the others take them over."""
        self._stopping.set()
        self._look_now.set()

    @property
    def records(self) -> int:
        """How many this process has copied."""
        return self.totals.records

    @property
    def totals(self) -> Counts:
        """What this process has done, all its lanes together and those that it had."""
        found = Counts()
        with self._counting:
            for counts in (self._before, *self._counts):
                found.add(counts)
        return found

    def run(self) -> None:
        """Copy until `stop`; once. The class says what it raises."""
        with says_once():
            self._run()

    def _run(self) -> None:
        survey = Survey(self.config)
        surveyor = threading.Thread(
            target=self._guarded, args=(self._survey, survey), name="fastq-mirror-survey", daemon=True
        )
        try:
            if self.config.options.offsets == "same":
                with closing(TargetWriter(self.config.target)) as target:
                    target.check()
            self._lane_count = survey.prepare()
            topic = state_topic(self.config.source.alias)
            state = read_state(self.config.target, topic, range(self._lane_count))
            state.check_lanes(self._lane_count)
            survey.check_target(state)
            self._check_source(survey.source_id, state.provenance)
            for stopped in state.stopped.values():
                raise stopped_error(self.config, stopped)
            if not state.target:
                self._name_target(topic)
            surveyor.start()
            self._share()
        finally:
            self.stop()
            survey.source.close()  # which may be away: it is not waited for
            if surveyor.ident is not None:
                surveyor.join(SURVEY_S)
            survey.close()
            if surveyor.ident is not None:
                surveyor.join(STOP_S)

    def _name_target(self, topic: str) -> None:
        """Write down how the target is called, unless another process has meanwhile. Raises ConfigError where that calls it otherwise.

        Of two that begin at once the one that initialises the id last fences the other, which reads again."""
        config = self.config
        for attempt in range(TRIES):
            try:
                with opened_producer(
                    config, 0, transactional_id=f"fastq-mirror.{config.source.alias}.target"
                ) as producer:
                    producer.init_transactions()
                    state = read_state(config.target, topic, [0])
                    state.check_target(config.target.alias)
                    if not state.target:
                        with producer.transaction():
                            producer.send(topic, target_value(config.target.alias), target_key(), partition=0)
                return
            except TransactionFenced:
                if attempt == TRIES - 1:
                    raise
                time.sleep(TURN_S)

    def _check_source(self, source_id: str, provenance: Mapping[str, Provenance]) -> None:
        """Raises ConfigError where all that was copied under this alias is another cluster's."""
        others = sorted({p.clusters[0] for p in provenance.values() if p.clusters})
        if not others or source_id in others:
            return
        alias, known = self.config.source.alias, ", ".join(others)
        if self.config.options.on_gap == "stop":
            raise ConfigError(
                f"what was copied from {alias} so far is of the cluster {known}, and {alias} is {source_id} now",
                hint="Look at its bootstrap.servers, or give this cluster an alias of its own; where it has taken the other's place, "
                'on_gap = "continue" goes on with it',
            )
        logger.warning("%s was the cluster %s so far, and is %s now", alias, known, source_id)

    def _guarded(self, body: Callable[..., None], *arguments: object) -> None:
        """The body of a thread: what ends it ends the mirror, which would go on without it as if nothing were to do."""
        try:
            body(*arguments)
        except MirrorStopped as error:
            self._failure = error
        except Exception as error:
            logger.exception("%s has ended", threading.current_thread().name)
            self._failure = error

    # -- which lanes are ours

    def _share(self) -> None:
        """Be a member of the group until `stop`."""
        config, options = self.config, self.config.options
        topic = state_topic(config.source.alias)
        settings = {
            "group_id": f"fastq-mirror.{config.source.alias}",
            "group_protocol": "classic",  # whose session time-out is ours to choose
            "partition_assignment_strategy": "cooperative-sticky",
            "session_timeout_ms": options.session_timeout_ms,
            "heartbeat_interval_ms": max(options.session_timeout_ms // 3, 1),
            "enable_auto_commit": False,
            "auto_offset_reset": "latest",
        }
        with Consumer({**config.target.common, **config.target.consumer, **settings}) as member:

            def assigned(partitions: Sequence[TopicPartition]) -> None:
                member.pause(*partitions)
                self._start_lanes([tp.partition for tp in partitions])

            def revoked(partitions: Sequence[TopicPartition]) -> None:
                self._stop_lanes([tp.partition for tp in partitions])

            member.subscribe(topic, on_assigned=assigned, on_revoked=revoked)
            told = ""
            try:
                while not self._stopping.is_set():
                    try:
                        member.poll(timeout=TURN_S)
                    except InvalidSessionTimeout:
                        raise  # no other try mends a setting
                    except FastqError as error:
                        if str(error) != told:
                            told = str(error)
                            logger.warning("the group of the mirror: %s", error)
                        self._stopping.wait(TURN_S)
                    else:
                        told = ""
                    for lane in self.lanes.values():
                        if lane.over is not None:
                            raise lane.over
                    if self._failure is not None:
                        raise self._failure
            finally:
                self._stop_lanes(list(self.lanes))

    def _start_lanes(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            logger.info("lane %d is ours", number)
            kind = SameLane if self.config.options.offsets == "same" else Lane
            lane = kind(number, self.config, lambda: self._work, self._mine(number), clock=self._clock)
            thread = threading.Thread(target=lane.run, name=f"fastq-mirror-lane-{number}", daemon=True)
            with self._counting:
                self._counts.append(lane.counts)
            self.lanes[number], self._threads[number] = lane, thread
            thread.start()
        if 0 in self.lanes and self._keeper is None:
            keeper = Keeper(self.config, self._lane_count, clock=self._clock)
            thread = threading.Thread(target=self._guarded, args=(keeper.run,), name="fastq-mirror-keeper", daemon=True)
            self._keeper = keeper, thread
            thread.start()
        self._look_now.set()

    def _mine(self, number: int) -> Callable[[TopicPartition], bool]:
        lanes = self._lane_count
        return lambda tp: lane_of(tp, lanes) == number

    def _stop_lanes(self, numbers: Sequence[int]) -> None:
        ending = [(self.lanes.pop(number), self._threads.pop(number)) for number in numbers if number in self.lanes]
        for lane, _ in ending:
            lane.stop()
        keeper = self._keeper if 0 not in self.lanes else None
        if keeper is not None:
            self._keeper = None
            keeper[0].stop()
        end = time.monotonic() + STOP_S
        for lane, thread in ending:
            thread.join(max(end - time.monotonic(), 0.0))
            if thread.is_alive():
                logger.warning("lane %d did not end within %g s: its successor fences it", lane.number, STOP_S)
                continue
            with self._counting:
                self._before.add(lane.counts)
                self._counts.remove(lane.counts)
        if keeper is not None:
            keeper[1].join(max(end - time.monotonic(), 0.0))

    # -- what is mirrored

    def _survey(self, survey: Survey) -> None:
        """Look again and again."""
        interval_s, told = self.config.options.refresh_interval_ms / 1000, ""
        looks = 0
        while not self._stopping.is_set():
            self._look_now.clear()
            looks += 1
            try:
                if self._look(survey) and looks < LOOKS_MAX:
                    continue
                told = ""
            except MirrorStopped:
                raise
            except FastqError as error:
                if self._stopping.is_set():
                    return
                if str(error) != told:
                    told = str(error)
                    logger.warning("looking at the topics failed, what is known goes on: %s", error)
                self._failure = self._failure or self._failed_over()
            self._look_now.wait(interval_s)
            looks = 0

    def _failed_over(self) -> MirrorStopped | None:
        """Whether the target is written to by others now. Lanes hear it with their next transaction, which never comes where the source is
        gone for good, or idle. The first lane is the first to be ended."""
        try:
            state = read_state(self.config.target, state_topic(self.config.source.alias), [0])
        except FastqError:  # the target does not answer either: with the next look
            return None
        return next((stopped_error(self.config, stopped) for stopped in state.stopped.values()), None)

    def _look(self, survey: Survey) -> bool:
        """One look; whether something was changed, so that another is due at once. Raises MirrorStopped before anything is, where the
        target is written to by others now, as far as that is looked for."""
        if survey.asks_for_everything and 0 in self.lanes and (over := self._failed_over()) is not None:
            raise over
        found = survey.look()
        changed = False
        if 0 in self.lanes:
            changed = survey.carry_out(found.changes)
        ready = self._with_provenance(survey, found)
        if ready is None:
            return True
        if ready != self._work.partitions:
            self._work = Work(self._work.version + 1, ready)
        return changed

    def _with_provenance(self, survey: Survey, found: Plan) -> dict[TopicPartition, Mirrored] | None:
        """What of a plan may be copied; None when provenance was written, and a look is due that comes after it."""
        wanted = provenances(found, Names.of(self.config), survey.source_id, survey.came_from)
        if any(self._known.get(name) != provenance for name, provenance in wanted.items()):
            topic = state_topic(self.config.source.alias)
            self._known = dict(read_state(self.config.target, topic, [0]).provenance)
            missing = {name: p for name, p in wanted.items() if self._known.get(name) != p}
            if missing and 0 in self.lanes:
                self._write(topic, {provenance_key(name): provenance_value(p) for name, p in missing.items()})
                survey.forget()  # what the source's mirrors say is looked for after it
                return None
        return {tp: m for tp, m in found.partitions.items() if self._known.get(m.topic) == wanted[m.topic]}

    def _write(self, topic: str, records: Mapping[bytes, bytes]) -> None:
        side = self.config.target
        with Producer({**side.common, **side.producer, "raise_on_close": True}) as producer:
            for key, value in records.items():
                producer.send(topic, value, key, partition=0)
