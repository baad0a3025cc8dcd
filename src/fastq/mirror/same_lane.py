"""A lane that copies batches as they are, with the offsets that they have, to a fastq broker.

Rules
- It goes on where the target's log ends, which the target says: an append that is mistaken about it writes nothing. So there is no
  transaction, and a kill at any moment leaves what an orderly stop leaves. Two that think they own the lane copy the same.
- What is fetched next is fetched while what was fetched last is appended. Whatever goes wrong with a partition, it is placed anew: both
  ends are asked for, and whether the source has the same history.
- Which epochs the source has had is written down before what they wrote is appended, and where "latest" was before anything is, by the
  lane's transactional producer, which fences who had the lane before: an older account of it would look like a truncation.
- Of what has much to come the target is asked to fetch by itself (`pulls.py`), while the others are copied; what comes of that is taken up
  as if this lane had copied it.
- The rest is `Lane`'s: a partition with an error is left out and tried again, any other error begins the lane anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import Any

from fastq.consumer import Consumer
from fastq.errors import (
    ClientClosed,
    FastqError,
    NetworkException,
    OffsetOutOfRange,
    PolicyViolation,
    ThrottlingQuotaExceeded,
)
from fastq.metadata import TopicPartition
from fastq.mirror.lane import AGREE_S, FOREVER_S, RETRY_S, Failure, Lane, Work, opened_producer, stopped_error
from fastq.mirror.progress import MirrorGap
from fastq.mirror.pulls import UNTOUCHED, Pulls
from fastq.mirror.same import ENDED, Epochs, Place, diverged_at, place_same
from fastq.mirror.source_reader import Fetched, SourceReader, Wanted
from fastq.mirror.state import consumer_at, epochs_key, offsets_of, read_state
from fastq.mirror.target_puller import Pull, Pulled, TargetPuller
from fastq.mirror.target_writer import CUT, Ask, TargetWriter, Told
from fastq.mirror.topics import NOT_OURS, Mirrored
from fastq.net.batches import PARTITION_BYTES
from fastq.producer import Producer
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.mirror")

TURN_S = 0.2
WAIT_MS = 500
TRIES_MAX = 20
FIRST_BYTES = 64 * 1024
"""Of a partition of which nothing was fetched yet, or whose next epoch is to be written down: the target may fetch the rest by itself."""

Chunks = dict[TopicPartition, "Fetched | FastqError"]


class _At(NamedTuple):
    """A partition that is copied: where it is to be found in the target, the source's offset to fetch next, and where the target's log
    ends and begins, as far as that is known here; `bytes_max`: how much is fetched next."""

    mirrored: Mirrored
    offset: int
    end: int
    log_start: int
    bytes_max: int = FIRST_BYTES


def _end_waits(source: SourceReader, puller: TargetPuller, consumer: Consumer) -> None:
    source.close()
    puller.close()
    consumer.wakeup()


class SameLane(Lane):
    """Invariants: `_at` are the partitions that are copied, each behind what was fetched of it last; `_pulled` those that the target
    fetches by itself now, each where that began."""

    _at: dict[TopicPartition, _At]
    _pulled: dict[TopicPartition, _At]
    _pulls: Pulls
    _pull_began = 0.0
    _asked: Mapping[TopicPartition, Mirrored]  # what is being fetched
    _epochs: dict[TopicPartition, Epochs]
    _lags: dict[TopicPartition, int]
    _there: SourceReader  # of what was copied
    _tries: dict[TopicPartition, int]
    _goes_on = False  # whether the mirror was read not to be failed over, after the target's last answer

    def _copy(self) -> None:
        """From fencing off who was here before to an error or `stop`."""
        config = self._config
        self._at, self._pulled, self._asked, self._lags, self._tries, self._seen = {}, {}, {}, {}, {}, {}
        with opened_producer(config, self.number) as producer:
            producer.init_transactions()
            if self._stop.is_set():
                return
            state = read_state(config.target, self._state_topic, [self.number])
            if self.number in state.stopped:
                raise stopped_error(config, state.stopped[self.number])
            self._epochs = dict(state.epochs)
            with (
                closing(SourceReader(config.source)) as source,
                closing(TargetWriter(config.target)) as target,
                closing(SourceReader(config.target)) as self._there,
                consumer_at(config.source, isolation_level="read_uncommitted") as consumer,
                ThreadPoolExecutor(1, f"fastq-mirror-pull-{self.number}") as pulling,
                closing(TargetPuller(config.target)) as puller,  # before who waits for it is waited for
                ThreadPoolExecutor(1, f"fastq-mirror-fetch-{self.number}") as beside,
            ):
                self._wakes = [partial(_end_waits, source, puller, consumer)]
                self._pulls = Pulls(config, puller, pulling, self._clock)
                self._copy_all(producer, source, target, consumer, beside)

    def _copy_all(
        self,
        producer: Producer,
        source: SourceReader,
        target: TargetWriter,
        consumer: Consumer,
        beside: ThreadPoolExecutor,
    ) -> None:
        version = -1
        fetching: Future[Chunks] | None = None
        while not self._stop.is_set():
            work = self._work()
            if work.version != version or self._is_due():
                self._follow_same(producer, source, target, consumer, work)
                version = work.version
            self._begin_pull()
            if fetching is None:
                fetching = self._begin_fetch(source, beside)
            under_way: list[Future[Any]] = [one for one in (fetching, self._pulls.under_way) if one is not None]
            if not under_way:
                self._stop.wait(TURN_S)
                continue
            done = wait(under_way, TURN_S, FIRST_COMPLETED).done
            if self._pulls.under_way in done:
                self._take_up(producer, target)
            if fetching is None or fetching not in done:
                continue
            chunks = self._usable(fetching.result())
            before = {tp: self._at[tp] for tp in chunks}
            news = self._with_epochs(before, chunks)
            for tp, chunk in chunks.items():
                if chunk.next_offset > chunk.asked:
                    # It goes to the end: a fetch that is full is for the others next.
                    at, end = self._at.pop(tp), chunk.next_offset
                    self._at[tp] = at._replace(offset=end, end=end, bytes_max=PARTITION_BYTES)
                    self._hold(tp, chunk.asked, chunk.next_offset, chunk.records.nbytes, chunk.high_watermark)
            fetching = self._begin_fetch(source, beside)
            self._append(producer, target, before, chunks, news)

    # -- which partitions

    def _follow_same(
        self, producer: Producer, source: SourceReader, target: TargetWriter, consumer: Consumer, work: Work
    ) -> None:
        """Copy what is to be mirrored by this lane, and is not left out at the moment."""
        wanted = self._not_left_out(work)
        self._at = {tp: at for tp, at in self._at.items() if wanted.get(tp) == at.mirrored}
        self._pulled = {tp: at for tp, at in self._pulled.items() if wanted.get(tp) == at.mirrored}
        fresh = {tp: mirrored for tp, mirrored in wanted.items() if tp not in self._at and tp not in self._pulled}
        if fresh:
            self._write_down(producer, self._place(source, target, consumer, fresh))

    @staticmethod
    def _ask(mirrored: Mirrored, **more: Any) -> Ask:
        return Ask(bytes.fromhex(mirrored.target_id), mirrored.source, **more)

    def _asked_of(self, target: TargetWriter, asks: Mapping[TopicPartition, Ask]) -> Mapping[TopicPartition, Told]:
        self._goes_on = False
        return target.ask(asks)

    def _place(
        self,
        source: SourceReader,
        target: TargetWriter,
        consumer: Consumer,
        fresh: Mapping[TopicPartition, Mirrored],
    ) -> dict[TopicPartition, Epochs]:
        """Find where each of these goes on; of those that begin at the source's end, where that is, for which there is no epoch yet."""
        begun: dict[TopicPartition, Epochs] = {}
        for tp in fresh:
            self._pulls.held.pop(tp, None)  # it is not where it was then
        there = {tp: TopicPartition(mirrored.topic, tp.partition) for tp, mirrored in fresh.items()}
        answers = self._asked_of(target, {there[tp]: self._ask(mirrored) for tp, mirrored in fresh.items()})
        told = self._answered({tp: answers[there[tp]] for tp in fresh})
        begins, ends, missing = offsets_of(consumer, told, *self._patience(told, bool(self._at or self._pulled)))
        for tp, error in missing.items():
            if tp in self._silent:
                self._leave_out(tp, error, RETRY_S)
            else:
                self._set_aside(tp, error)  # its leader may have changed
        self._silent = self._silent.difference(told).union(missing)
        known = {tp: self._epochs[tp] for tp in told if tp in ends and tp in self._epochs}
        # Of a topic that was made anew all is to come, whatever `start` says: what it got before its mirror saw it, too.
        anew = {tp for tp, epochs in known.items() if epochs.topic_id != fresh[tp].topic_id}
        for tp in anew:
            del known[tp]
        asked = {tp: epoch for tp, epochs in known.items() if (epoch := epochs.at(told[tp].log_end)) >= 0}
        epoch_ends = source.epoch_ends(asked) if asked else {}
        for tp, at in told.items():
            if tp not in ends:
                continue
            found, diverged = epoch_ends.get(tp), None
            if isinstance(found, FastqError):
                self._set_aside(tp, found)
                continue
            if found is not None:
                diverged = diverged_at(known[tp], at.log_end, *found)
            # Up to where both may have the same: a source that has lost more than it has written since may have other batches below, too.
            both_from, both_to = max(begins[tp], at.log_start), min(at.log_end, ends[tp])
            if diverged is not None:
                both_to = min(both_to, diverged)
            if both_from < both_to:
                try:
                    other = self._other_batches(source, tp, fresh[tp], both_from, both_to)
                    diverged = diverged if other is None else other
                except FastqError as error:
                    self._set_aside(tp, error)
                    continue
            options = self._config.options
            epochs = known.get(tp)
            first = -1 if epochs is None else epochs.first
            try:
                place = place_same(
                    begins[tp],
                    ends[tp],
                    at.log_start,
                    at.log_end,
                    diverged,
                    start="earliest" if tp in anew else options.start,
                    on_gap=options.on_gap,
                    first=first,
                    is_copied=epochs is not None and bool(epochs.starts),
                )
            except MirrorGap as error:
                self._leave_out(tp, error.with_context(topic=tp.topic, partition=tp.partition), FOREVER_S)
                continue
            if tp in anew:
                del self._epochs[tp]
            if place.why:
                logger.warning("%s: %s; it goes on at offset %d", tp, place.why, place.offset)
            if place.cut is not None:
                self._cut_off(target, tp, fresh[tp], place)
                continue
            self._at[tp] = _At(fresh[tp], place.offset, at.log_end, at.log_start)
            if options.start == "latest" and first < 0 and at.log_end == 0:
                # The end is another one each time it is asked for, and the target does not know where it was.
                begun[tp] = Epochs(fresh[tp].topic_id, begin=place.offset)
        self._epochs |= begun
        return begun

    def _other_batches(
        self, source: SourceReader, tp: TopicPartition, mirrored: Mirrored, begin: int, end: int
    ) -> int | None:
        """Where the source has another batch than the target, below the target's end; None where the last one is the same.

        A node that stands alone may lose power, and records with it, and go on in the same epoch: only the batches tell.
        """
        there = TopicPartition(mirrored.topic, tp.partition)
        ids = bytes.fromhex(mirrored.topic_id), bytes.fromhex(mirrored.target_id)

        def agree(offset: int) -> bool:
            found = source.batch_at(tp, ids[0], offset), self._there.batch_at(there, ids[1], offset)
            return found[0] is None or found[1] is None or found[0].is_same(found[1])

        if agree(end - 1):
            return None
        low, high = begin, end - 1  # what is below `low` is the same, as far as batches tell; at `high` it is not
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if agree(middle) else (low, middle)
        return low

    def _cut_off(self, target: TargetWriter, tp: TopicPartition, mirrored: Mirrored, place: Place) -> None:
        """Have the target forget what the source has lost. It goes on where the log ends then: whole batches go."""
        there = TopicPartition(mirrored.topic, tp.partition)
        told = target.ask({there: self._ask(mirrored, operation=CUT, offset=place.cut)})[there]
        if told.error is not None:
            self._leave_out(tp, told.error, RETRY_S)
            return
        self._at[tp] = _At(mirrored, told.log_end, told.log_end, told.log_start)

    def _answered(self, told: Mapping[TopicPartition, Told]) -> dict[TopicPartition, Told]:
        """Those that were answered without an error; the others are left out."""
        for tp, at in told.items():
            if at.error is not None:
                self._set_aside(tp, at.error)
        return {tp: at for tp, at in told.items() if at.error is None}

    def _set_aside(self, tp: TopicPartition, error: FastqError) -> None:
        """Leave a partition out: for a moment where it may be that its leader has changed, and longer where that goes on. Raises
        MirrorStopped where it is that the mirror was failed over, and ClientClosed where `stop` has ended what was asked."""
        if self._stop.is_set() and isinstance(error, ClientClosed):
            raise error
        self._at.pop(tp, None)
        if isinstance(error, PolicyViolation):
            self._check_goes_on()
            if ENDED in str(error):
                # Its lanes' ends are not written down yet: nobody is to delete what is about to be written to.
                self.failed[tp] = Failure(f"{tp.topic} is being failed over", self._clock() + AGREE_S)
                return
            error = FastqError(f"{error}: {NOT_OURS}")
        self._tries[tp] = self._tries.get(tp, 0) + 1
        if error.retriable and self._tries[tp] < TRIES_MAX:
            logger.info("%s is placed anew: %s", tp, error)
            self.failed[tp] = Failure(str(error), self._clock() + AGREE_S)
        else:
            self._tries.pop(tp)
            self._leave_out(tp, error, RETRY_S)

    def _check_goes_on(self) -> None:
        """Raises MirrorStopped where it was failed over when the target answered last: read once for all that the answer refuses."""
        if self._goes_on:
            return
        state = read_state(self._config.target, self._state_topic, [self.number])
        if self.number in state.stopped:
            raise stopped_error(self._config, state.stopped[self.number])
        self._goes_on = True

    # -- copying

    def _begin_fetch(self, source: SourceReader, beside: ThreadPoolExecutor) -> Future[Chunks] | None:
        wanted = self._wanted()
        return beside.submit(source.fetch, wanted, WAIT_MS) if wanted else None

    def _wanted(self) -> dict[TopicPartition, Wanted]:
        fetched = {tp: at for tp, at in self._at.items() if tp not in self._pulls.held}
        self._asked = {tp: at.mirrored for tp, at in fetched.items()}
        return {
            tp: Wanted(bytes.fromhex(at.mirrored.topic_id), at.offset, self._epoch(tp, at.offset), at.bytes_max)
            for tp, at in fetched.items()
        }

    def _epoch(self, tp: TopicPartition, offset: int) -> int:
        """Of the source's batch before this offset; -1 where it is not known."""
        return self._epochs[tp].at(offset) if tp in self._epochs else -1

    def _usable(self, chunks: Chunks) -> dict[TopicPartition, Fetched]:
        """What goes on from where each partition is; those with an error are left out, or placed anew. Of a topic that has since become
        another, as of a source that does not tell topics apart by their ids, it says nothing, however far both are."""
        found: dict[TopicPartition, Fetched] = {}
        for tp, chunk in chunks.items():
            at = self._at.get(tp)
            if at is None or self._asked.get(tp) != at.mirrored or isinstance(chunk, ThrottlingQuotaExceeded):
                continue  # of the last it is asked for again once that is over
            if isinstance(chunk, OffsetOutOfRange) or (isinstance(chunk, Fetched) and chunk.diverged):
                self._anew(tp, "the source does not go on from there")
            elif isinstance(chunk, FastqError):
                self._set_aside(tp, chunk)
            elif chunk.asked == at.offset:
                found[tp] = chunk
                self._lags[tp] = max(chunk.high_watermark - at.offset, 0)
        return found

    def _anew(self, tp: TopicPartition, why: str) -> None:
        logger.info("%s is placed anew: %s", tp, why)
        del self._at[tp]
        self.failed[tp] = Failure(why, self._clock())

    def _with_epochs(
        self, before: Mapping[TopicPartition, _At], chunks: Mapping[TopicPartition, Fetched]
    ) -> dict[TopicPartition, Epochs]:
        """Note the epochs that begin in what was fetched; those partitions of which that is news."""
        news: dict[TopicPartition, Epochs] = {}
        for tp, chunk in chunks.items():
            known = self._epochs.get(tp) or Epochs(before[tp].mirrored.topic_id)
            now = known.added(chunk.epochs, before[tp].end) if chunk.epochs else known
            if now != known:
                news[tp] = now
        self._epochs |= news
        return news

    def _write_down(self, producer: Producer, news: Mapping[TopicPartition, Epochs]) -> None:
        if not news:
            return
        with producer.transaction():
            for tp, epochs in news.items():
                producer.send(self._state_topic, epochs.to_json(), epochs_key(tp), partition=self.number)

    def _append(
        self,
        producer: Producer,
        target: TargetWriter,
        before: Mapping[TopicPartition, _At],
        chunks: Mapping[TopicPartition, Fetched],
        news: Mapping[TopicPartition, Epochs],
    ) -> None:
        """Append what was fetched, and tell the target where the source begins."""
        begin = self._clock()
        self._write_down(producer, news)
        asks: dict[TopicPartition, Ask] = {}
        places: dict[TopicPartition, TopicPartition] = {}
        for tp, chunk in chunks.items():
            at = before[tp]
            there = TopicPartition(at.mirrored.topic, tp.partition)
            start = self._start(tp, at, chunk)
            if chunk.next_offset > chunk.asked:
                asks[there] = self._ask(at.mirrored, offset=at.end, log_start=start, records=chunk.records)
            elif start > at.log_start and at.end > 0:
                asks[there] = self._ask(at.mirrored, log_start=start)
            else:
                continue
            places[there] = tp
        self.counts.lag = {tp: self._lags[tp] for tp in (*self._at, *self._pulled) if tp in self._lags}
        if not asks:
            return
        for there, told in self._asked_of(target, asks).items():
            tp = places[there]
            if tp not in self._at:
                continue
            if isinstance(told.error, OffsetOutOfRange):
                self._anew(tp, str(told.error))
            elif told.error is not None:
                self._set_aside(tp, told.error)
            else:
                self._tries.pop(tp, None)
                self._at[tp] = self._at[tp]._replace(log_start=told.log_start)
                chunk = chunks[tp]
                self.counts.add_chunk(chunk.amount, chunk.records.nbytes, chunk.newest_ms)
        self.counts.transactions += 1
        self.counts.transactions_s += self._clock() - begin

    # -- what the target fetches by itself

    def _hold(
        self, tp: TopicPartition, asked: int, next_offset: int, size: int, source_end: int, *, again: bool = False
    ) -> None:
        """Have it pulled next where much is to come: nobody fetches it until then."""
        known = self._epoch(tp, next_offset) >= 0 and any(bytes.fromhex(self._at[tp].mirrored.topic_id))
        if known and self._pulls.is_much(tp, asked, next_offset, size, source_end, again=again):
            self._pulls.held[tp] = None

    def _begin_pull(self) -> None:
        """Ask the target for all that are held. Those whose append was refused are not there any more."""
        pulls = self._pulls
        if pulls.under_way is not None or not pulls.held:
            return
        wanted: dict[TopicPartition, Pull] = {}
        for tp in pulls.held:
            at = self._at.pop(tp, None)
            if at is not None:
                self._pulled[tp] = at
                there, target_id = TopicPartition(at.mirrored.topic, tp.partition), bytes.fromhex(at.mirrored.target_id)
                wanted[there] = Pull(target_id, at.mirrored.source, tp.topic, at.end, self._epoch(tp, at.end))
        pulls.held.clear()
        if wanted:
            self._pull_began = self._clock()
            pulls.begin(wanted)

    def _take_up(self, producer: Producer, target: TargetWriter) -> None:
        """Go on behind what the target has fetched, or as if it had not been asked."""
        try:
            outcomes = self._pulls.taken()
        except ClientClosed:
            return  # by `stop`
        except FastqError as error:
            outcomes = dict.fromkeys(
                (TopicPartition(a.mirrored.topic, tp.partition) for tp, a in self._pulled.items()), error
            )
        before: dict[TopicPartition, _At] = {}
        nothing: dict[TopicPartition, Fetched] = {}
        for tp, at in self._pulled.items():
            found = outcomes.get(TopicPartition(at.mirrored.topic, tp.partition))
            self._at[tp] = at
            if isinstance(found, Pulled):
                if self._is_well(tp, found):
                    before[tp] = self._at[tp]
                    nothing[tp] = Fetched(
                        found.next_offset,
                        memoryview(b""),
                        found.next_offset,
                        0,
                        (),
                        found.source_start,
                        found.source_end,
                    )
            else:
                refusal = found or FastqError(f"the target says nothing of {tp}")
                self._pulls.refused(tp, refusal)
                if not isinstance(refusal, UNTOUCHED):
                    self._anew(tp, str(refusal))
        self._pulled = {}
        if any(isinstance(found, Pulled) and found.bytes for found in outcomes.values()):
            self.counts.transactions += 1
            self.counts.transactions_s += self._clock() - self._pull_began
        self._append(producer, target, before, nothing, {})  # where the source begins, if that is news

    def _is_well(self, tp: TopicPartition, found: Pulled) -> bool:
        """Take up what came of a partition; whether it goes on from there."""
        if found.error is not None:
            self._pulls.rest(tp, found.error)
            self._anew(tp, str(found.error))
            return False
        at = self._at[tp]
        end, size = found.next_offset, at.bytes_max if found.later_epoch < 0 else FIRST_BYTES
        self._at[tp] = at._replace(offset=end, end=end, log_start=found.log_start, bytes_max=size)
        if found.bytes:
            self._tries.pop(tp, None)
            self.counts.add_chunk(found.records, found.bytes, found.newest_ms)
            self.counts.pulled_bytes += found.bytes
            self._pulls.worked()
        self._lags[tp] = max(found.source_end - found.next_offset, 0)
        if found.diverged or isinstance(found.source_error, OffsetOutOfRange):
            self._pulls.rest(tp)
            self._anew(tp, "the source does not go on from there")
            return False
        if (
            found.source_error is not None
            and found.source_end >= 0
            and isinstance(found.source_error, NetworkException)
        ):
            self._pulls.rest(tp)
            self._anew(
                tp, f"the source went away in the middle, and may have less when it is back: {found.source_error}"
            )
            return False
        if found.source_error is not None:
            self._pulls.failed(tp, found.source_error)
            return False
        if found.later_epoch < 0:
            self._hold(tp, at.offset, found.next_offset, found.bytes, found.source_end, again=True)
        return True

    def _start(self, tp: TopicPartition, at: _At, chunk: Fetched) -> int:
        """Where the target's log is to begin: where the source's does, or this mirror, in the middle of it. The latter is told again and
        again: a broker that is killed may forget it, and so may one that leads after it. -1 where it is to begin where it does."""
        if at.end == 0:
            return max(chunk.log_start, at.offset)
        epochs = self._epochs.get(tp)
        if epochs is not None and epochs.keeps >= 0:
            return chunk.log_start if chunk.log_start > epochs.keeps else -1
        first = epochs.first if self._config.options.start == "latest" and epochs is not None else -1
        return max(chunk.log_start, first if first < at.end else -1)
