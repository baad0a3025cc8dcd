"""Fail-over and fail-back where offsets are the same: the target's topics become writable; the former source's follow them.

Rules
- Fail-over works without the source, and each step may be done again. First `mirror.source` of the topics says that it has ended, by
  which no mirror writes any more; then where the logs end is written down, lane by lane; then what is open is aborted and the source's
  producers are forgotten; then `mirror.source` goes, and everybody may write. Heartbeats stay as they are, ended: nobody else writes
  them, and the same mirror goes on with them once it has been failed back to.
- Fail-back makes a topic of the former source a mirror of the target's, where it ends before the fail-over did and its last batch is the
  one that lies there. What nobody has copied is refused: offsets would mean two records. But what lies below where the mirror began, as
  at "latest", stays there: the other side has no records of these offsets.
- A transaction that is open there was ended by the fail-over, as aborted: its producer is fenced, so that its commit fails. Its coordinator
  writes no marker while the topic is a mirror's, so a commit that came first is seen, and refuses the fail-back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import islice

from fastq._native.records import BatchHeader, iter_headers
from fastq.admin import Admin, ConfigResource, TransactionListing
from fastq.errors import ConfigError, FastqError, TransactionFenced, UnknownTopicOrPartition
from fastq.metadata import TopicPartition
from fastq.mirror.config import MirrorConfig, Side
from fastq.mirror.lane import ending_producer
from fastq.mirror.names import Names, state_topic
from fastq.mirror.same import ENDED, MIRROR_SOURCE, Epochs, begun_back, source_value
from fastq.mirror.source_reader import Fetched, SourceReader, Wanted
from fastq.mirror.state import Stopped, consumer_at, lane_of, offsets_of, read_state, stopped_key
from fastq.mirror.target_writer import END, Ask, TargetWriter, Told
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.mirror")

TRIES = 50
PAUSE_S = 0.2
FENCE_S = 0.5
OPENED_S = 2.0
ABORTING = ("PrepareAbort", "PrepareEpochFence")
PARTITIONS_AT_ONCE, BATCH_BYTES = 1000, 64 * 1024
"""How many last batches are asked for at once, and of each partition how much, but for the first."""


class Topic(NamedTuple):
    """A topic of the target that a mirror writes: its id, how many partitions, and what its `mirror.source` says."""

    topic_id: bytes
    partitions: int
    source: str


def mirrored_topics(admin: Admin, alias: str) -> dict[str, Topic]:
    """The topics of a cluster that are mirrored from `alias`."""
    sources = {name: value for name, value in _sources(admin, admin.list_topics()).items() if _alias(value) == alias}
    found = admin.describe_topics(list(sources)) if sources else {}
    return {
        name: Topic(answer.result().topic_id, len(answer.result().partitions), sources[name])
        for name, answer in found.items()
        if not isinstance(answer.error, UnknownTopicOrPartition)
    }


def _sources(admin: Admin, topics: Iterable[str]) -> dict[str, str]:
    """What `mirror.source` of topics says, as far as they are there."""
    resources = [ConfigResource.topic(name) for name in topics]
    found: dict[str, str] = {}
    for resource, answer in (admin.describe_configs(resources) if resources else {}).items():
        if isinstance(answer.error, UnknownTopicOrPartition):
            continue
        entry = answer.result().get(MIRROR_SOURCE)
        found[resource.name] = (entry.value if entry is not None else None) or ""
    return found


def _alias(source: str) -> str:
    return source.split("/")[0]


def end_topics(config: MirrorConfig, lanes: int, admin: Admin) -> dict[TopicPartition, int]:
    """End the mirror: see the rules. From where on, by partition of the source, the target had transactions that are aborted now, as far as
    it tells: their records were copied, and nobody reads them. Raises why, once the others are done, where a partition cannot be ended."""
    alias, names = config.source.alias, Names.of(config)
    topics = mirrored_topics(admin, alias)
    with closing(TargetWriter(config.target)) as target:
        for name, topic in topics.items():
            if not topic.source.endswith(ENDED):
                ended = topic.source + ENDED
                admin.set_configs(ConfigResource.topic(name), {MIRROR_SOURCE: ended})
                topics[name] = topic._replace(source=ended)
        topics = {name: topic for name, topic in topics.items() if not names.goes_one_way(name)}
        ends = _ask_all(target, topics)
        _write_ends(config, lanes, {tp: told.log_end for tp, told in ends.items() if told.error is None})
        opened = _opened(admin, [tp for tp, told in ends.items() if told.error is None])
        done = _ask_all(target, topics, operation=END)
    errors = {tp: told.error for tp, told in {**ends, **done}.items() if told.error is not None}
    for name in topics:
        if not any(tp.topic == name for tp in errors):
            admin.set_configs(ConfigResource.topic(name), {MIRROR_SOURCE: None})
    for tp, error in sorted(errors.items()):
        raise type(error)(
            f"{tp} in {config.target.alias} cannot be ended, and {tp.topic} stays read-only: {error}",
            hint="The other topics may be written to. fastq mirror fail-over again, once that is over",
        )
    return {
        TopicPartition(names.in_source(tp.topic) or tp.topic, tp.partition): offset for tp, offset in opened.items()
    }


def _opened(admin: Admin, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Where the first of the transactions begins that are open in partitions; nobody waits long for what does not tell."""
    try:
        answers = admin.describe_producers(partitions, timeout=OPENED_S) if partitions else {}
    except FastqError as error:
        logger.warning("which transactions are aborted in the target is not known: %s", error)
        return {}
    found: dict[TopicPartition, int] = {}
    for tp, answer in answers.items():
        if answer.error is not None:
            logger.warning("%s: which transactions of it are aborted is not known: %s", tp, answer.error)
            continue
        starts = [state.transaction_start_offset for state in answer.result()]
        if begun := [offset for offset in starts if offset is not None]:
            found[tp] = min(begun)
    return found


def _ask_all(target: TargetWriter, topics: Mapping[str, Topic], **more: int) -> dict[TopicPartition, Told]:
    wanted = {
        TopicPartition(name, number): Ask(topic.topic_id, topic.source, **more)  # type: ignore[arg-type]
        for name, topic in topics.items()
        for number in range(topic.partitions)
    }
    return target.ask_until(wanted, lambda: time.sleep(PAUSE_S), TRIES) if wanted else {}


def _write_ends(config: MirrorConfig, lanes: int, ends: Mapping[TopicPartition, int]) -> None:
    """Write down, in each lane, that it has ended, and where. What was written by an earlier attempt stands: its ends come first."""
    names = Names.of(config)
    for lane in range(lanes):
        own = {tp: end for tp, end in ends.items() if _lane(names, tp, lanes) == lane}
        for attempt in range(TRIES):
            try:
                _write_end(config, lane, own)
                break
            except TransactionFenced:
                # By a lane that has begun anew: it copies nothing more, but does not know that yet.
                if attempt == TRIES - 1:
                    raise
                time.sleep(PAUSE_S)


def _write_end(config: MirrorConfig, lane: int, own: Mapping[TopicPartition, int]) -> None:
    topic = state_topic(config.source.alias)
    with ending_producer(config, lane) as producer:
        producer.init_transactions()
        before = read_state(config.target, topic, [lane]).stopped.get(lane)
        if before is not None and own.keys() <= before.ends.keys():
            return
        time_ms = time.time_ns() // 1_000_000 if before is None else before.time_ms
        stopped = Stopped(time_ms, {**own} if before is None else {**own, **before.ends})
        with producer.transaction():
            producer.send(topic, stopped.to_json(), stopped_key(), partition=lane)


def _lane(names: Names, tp: TopicPartition, lanes: int) -> int:
    return lane_of(TopicPartition(names.in_source(tp.topic) or tp.topic, tp.partition), lanes)


# -- fail-back


def follow_back(
    config: MirrorConfig,
    ends: Mapping[TopicPartition, int],
    known: Mapping[TopicPartition, Epochs],
    source: Admin,
    target: Admin,
    seed: Callable[[Mapping[TopicPartition, Epochs]], object],
    *,
    prepared: bool,
) -> dict[TopicPartition, tuple[int, int]]:
    """Have the former source's topics follow those of the target, whose mirrored records end at `ends`, and the mirror that does it begin,
    by `seed`. `known` is what the ended mirror has kept. `prepared`: it was done before, to the end, so that those that follow may have
    more by now. Which offsets the former source keeps that the target has not.

    Raises ConfigError, with all that is in the way, before anything is changed that is not taken back.
    """
    alias = config.target.alias
    begun = where_begun(config, ends, target)
    with closing(TargetWriter(config.source)) as writer:
        writer.check()
    cluster = target.describe_cluster().cluster_id or ""
    topics = sorted({tp.topic for tp in ends})
    there, here = _described(target, topics), _described(source, topics)
    values = {name: source_value(alias, cluster, there[name].topic_id.hex()) for name in topics if name in there}
    before = _sources(source, here)
    wanted = [name for name in topics if name in values and name in here]
    if prepared:
        wanted = [name for name in wanted if before.get(name) != values[name]]
    # What it says of a third cluster is given back; what an earlier fail-back has left is not.
    thirds = {name: value for name, value in before.items() if value and _alias(value) != alias}
    given_back = {name: thirds.get(name) for name in wanted}
    # What an earlier one has fenced waits for its end still, perhaps.
    left = [name for name in wanted if before.get(name) == values[name]]
    fenced = _waiting_in(
        source, [TopicPartition(name, number) for name in left for number in range(here[name].partitions)]
    )
    kept: dict[TopicPartition, tuple[int, int]] = {}
    try:
        for name in wanted:  # read-only first: what is looked at then stays
            source.set_configs(ConfigResource.topic(name), {MIRROR_SOURCE: values[name]})
        own = [TopicPartition(name, number) for name in wanted for number in range(here[name].partitions)]
        # One that the mirror has never seen has nothing that was copied; one that is there alone is made here.
        logs = _logs(config, {tp: Ask(here[tp.topic].topic_id, values[tp.topic]) for tp in own})
        refused = _differences(config, {tp: ends.get(tp, 0) for tp in own}, logs, here, there)
        if not refused:
            refused = _fence_open(source, own, fenced)
        if not refused:
            _let_go_one_way(config, source)
            for tp, log in logs.items():
                if tp in begun:  # else it is empty, and not there in the target
                    begin, ids = begun[tp].begin, (here[tp.topic].topic_id.hex(), begun[tp].topic_id)
                    begun[tp] = begun_back(known.get(tp), *ids, begin, log.log_start, log.log_end)
                    if log.log_start < begin and begun[tp].keeps >= 0:
                        kept[tp] = log.log_start, begun[tp].keeps
            seed(begun)
    except BaseException:
        _give_back(source, given_back, fenced)
        raise
    if refused:
        _give_back(source, given_back, fenced)  # none of them is followed: who gives it up goes on with all
        names = sorted({tp.topic for tp in refused})
        raise ConfigError(
            f"{config.source.alias} cannot go on with the same offsets: " + "; ".join(refused.values()),
            hint=f"Look at these records, and keep what is needed; then fastq topics delete {' '.join(names)} in {config.source.alias}: "
            "fastq mirror --reverse makes them there and copies them anew",
        )
    return kept


def _let_go_one_way(config: MirrorConfig, source: Admin) -> None:
    """Have heartbeats go on that an earlier mirror the other way was ended with."""
    alias = config.target.alias
    mirrored = Names.of(config)._replace(source=alias, target=config.source.alias)
    for name, topic in mirrored_topics(source, alias).items():
        if mirrored.goes_one_way(name) and topic.source.endswith(ENDED):
            source.set_configs(ConfigResource.topic(name), {MIRROR_SOURCE: topic.source.removesuffix(ENDED)})


def where_begun(
    config: MirrorConfig, ends: Mapping[TopicPartition, int], target: Admin
) -> dict[TopicPartition, Epochs]:
    """From where on the mirror the other way copies what the former source has nothing of, or of a topic that is deleted there: from where
    the target begins, whatever `start` says, which would pass over what was written to it since the fail-over."""
    there = _described(target, sorted({tp.topic for tp in ends}))
    own = [TopicPartition(name, number) for name, topic in there.items() for number in range(topic.partitions)]
    begins = _begins(config.target, own)  # of all: from 0 on, one that does not tell would be a gap later
    return {tp: Epochs(there[tp.topic].topic_id.hex(), begin=begins[tp]) for tp in own}


def _fence_open(admin: Admin, partitions: Sequence[TopicPartition], fenced: set[str]) -> dict[TopicPartition, str]:
    """Fence the producers that have a transaction open in these partitions, which nobody but a mirror writes now; why some cannot be the
    mirror's, in words: a transaction is committed there that the target has aborted. Raises what keeps a coordinator from answering.

    `fenced` gets the topics whose transactions wait for their abort by that, or may: from then on a look that fails is tried again."""
    error: FastqError | None = None
    cannot: dict[str, FastqError] = {}
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S)
        try:
            opened, listed = _open_in(admin, partitions)
        except FastqError as failure:
            if not fenced:
                raise
            error = failure
            continue
        fenced.clear()
        fenced.update(_waiting(opened, listed))
        committed = {
            tp: f"a transaction of {id_!r} is being committed in {tp}, which was aborted at the fail-over"
            for id_, listing in listed.items()
            if listing.state == "PrepareCommit"
            for tp in opened[listing.producer_id]
        }
        if committed:
            return committed
        going_on = [id_ for id_, listing in listed.items() if listing.state == "Ongoing"]
        if not going_on:
            return {}
        for id_ in going_on:
            if id_ in cannot:
                raise cannot[id_]
        for id_ in going_on:
            logger.warning("the transaction of %r was aborted at the fail-over; its producer is fenced", id_)
            fenced.update(tp.topic for tp in opened[listed[id_].producer_id])
        try:  # Its new epoch counts at once; the answer would wait until the mirror has brought the end.
            failures = admin.fence_producers(going_on, timeout=FENCE_S).errors
        except FastqError as failure:
            error = failure
            continue
        cannot = {id_: failure for id_, failure in failures.items() if not failure.retriable}
        error = next(iter(failures.values()), error)
    raise error or FastqError(f"transactions of {', '.join(going_on)} go on, however often their producers are fenced")


def _open_in(
    admin: Admin, partitions: Sequence[TopicPartition]
) -> tuple[dict[int, list[TopicPartition]], Mapping[str, TransactionListing]]:
    """Ids of the producers that have a transaction open in some partitions, and in which; and their transactions, by their own ids."""
    opened: dict[int, list[TopicPartition]] = {}
    for tp, answer in (admin.describe_producers(partitions) if partitions else {}).items():
        for producer in answer.result():
            if producer.transaction_start_offset is not None:
                opened.setdefault(producer.producer_id, []).append(tp)
    return opened, admin.list_transactions(producer_ids=list(opened)) if opened else {}


def _waiting(opened: Mapping[int, list[TopicPartition]], listed: Mapping[str, TransactionListing]) -> set[str]:
    """The topics whose transactions wait for their abort."""
    aborting = [listing.producer_id for listing in listed.values() if listing.state in ABORTING]
    return {tp.topic for id_ in aborting for tp in opened[id_]}


def _waiting_in(admin: Admin, partitions: Sequence[TopicPartition]) -> set[str]:
    return _waiting(*_open_in(admin, partitions))


def _give_back(admin: Admin, sources: Mapping[str, str | None], fenced: Container[str]) -> None:
    """Take a mirror back from topics; but not from those where a transaction was fenced: its coordinator would write the end of it, which
    the target never had, and no later fail-back could go on."""
    for name, source in sources.items():
        if name in fenced:
            logger.warning(
                "%s stays read-only, for a producer that had a transaction open in it is fenced: run fastq mirror fail-back again, or "
                "fastq configs set --topic %s %s= to write to it, and copy it anew later", name, name, MIRROR_SOURCE,
            )  # fmt: skip
            continue
        try:
            admin.set_configs(ConfigResource.topic(name), {MIRROR_SOURCE: source})
        except FastqError as error:  # the others are given back, and why it was not done is told by who calls
            logger.warning(
                "%s stays read-only: %s; once that is over, fastq configs set --topic %s %s=%s",
                name, error, name, MIRROR_SOURCE, source or "",
            )  # fmt: skip


def _described(admin: Admin, topics: Iterable[str]) -> dict[str, Topic]:
    names = list(topics)
    found = admin.describe_topics(names) if names else {}
    return {
        name: Topic(answer.result().topic_id, len(answer.result().partitions), "")
        for name, answer in found.items()
        if not isinstance(answer.error, UnknownTopicOrPartition)
    }


def _logs(config: MirrorConfig, asks: Mapping[TopicPartition, Ask]) -> dict[TopicPartition, Told]:
    """Where the logs of the former source begin and end. Raises why one does not tell."""
    if not asks:
        return {}
    with closing(TargetWriter(config.source)) as writer:
        told = writer.ask_until(asks, lambda: time.sleep(PAUSE_S), TRIES)
    for at in told.values():
        if at.error is not None:
            raise at.error
    return told


def _differences(
    config: MirrorConfig,
    ends: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, Told],
    here: Mapping[str, Topic],
    there: Mapping[str, Topic],
) -> dict[TopicPartition, str]:
    """Why partitions of the former source go on otherwise than the target's, in words."""
    found: dict[TopicPartition, str] = {}
    if not ends:
        return found
    same: dict[TopicPartition, int] = {}  # where the former source's log ends, which the target's has to agree with
    for tp, at in logs.items():
        if at.log_end > ends[tp]:
            found[tp] = (
                f"{tp} has the offsets {ends[tp]} to {at.log_end - 1}, which {config.target.alias} never had before the fail-over"
            )
        elif at.log_end > at.log_start:
            same[tp] = at.log_end
    begins = _begins(config.target, same)
    # Nothing is compared where the target has deleted all that it would have to agree with.
    same = {tp: end for tp, end in same.items() if end > begins[tp]}
    sides = [
        _last_batches(
            side,
            {tp: Wanted(topics[tp.topic].topic_id, end - 1, bytes_max=BATCH_BYTES) for tp, end in same.items()},
        )
        for side, topics in ((config.source, here), (config.target, there))
    ]
    for tp, end in same.items():
        if sides[0][tp] != sides[1][tp]:
            found[tp] = f"the last batch of {tp}, before offset {end}, is another one in {config.target.alias}"
    return found


def _begins(side: Side, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
    with consumer_at(side) as consumer:
        offsets = offsets_of(consumer, partitions)
    for error in offsets.missing.values():
        raise error
    return offsets.begins


def _last_batches(
    side: Side, wanted: Mapping[TopicPartition, Wanted]
) -> dict[TopicPartition, tuple[int, int, int] | None]:
    """Offsets and checksum of the batch that ends with the record at each offset, None where there is none: compaction has left others.

    Many at once: an answer has the first of them whole that has anything, and others as far as there is room; those are asked for again.
    """
    found: dict[TopicPartition, tuple[int, int, int] | None] = {}
    left, tries = dict(wanted), 0
    if not left:
        return found
    with closing(SourceReader(side)) as reader:
        while left:
            asked = dict(islice(left.items(), PARTITIONS_AT_ONCE))
            answers = reader.fetch(asked, 0)
            told = {tp: answer for tp, answer in answers.items() if isinstance(answer, Fetched)}
            some = {tp: answer for tp, answer in told.items() if answer.amount or len(answer.records)}
            for tp, answer in (some or told).items():  # where no answer has anything, there is nothing
                headers: Iterable[tuple[int, BatchHeader]] = iter_headers(answer.records)
                last = [header for _, header in headers if header.last_offset == asked[tp].offset]
                found[tp] = (last[0].base_offset, last[0].last_offset, last[0].crc) if last else None
                del left[tp]
            for tp, failure in answers.items():
                if isinstance(failure, FastqError):
                    left[tp] = left.pop(tp)  # behind the others
                    error = failure
            if told:
                tries = 0
                continue
            tries += 1
            if tries == TRIES:
                raise error
            time.sleep(PAUSE_S)
    return found
