"""Mistakes put into the broker's own code, one at a time: each has to be found by the checks, with the seed beside it.

Rules: a mistake is one that a hand could make, in the code that decides, and not in what the simulation lends. A seed that finds one no
more, as the code has changed, is replaced by another: `python -m simulation --mutation NAME` looks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

from fastq_broker.cluster.directories import DirectoryAssignments
from fastq_broker.cluster.lifecycle import BrokerLifecycle, BrokerState
from fastq_broker.controller.brokers import Sessions
from fastq_broker.controller.cluster_control import ClusterControl
from fastq_broker.controller.controller import Controller
from fastq_broker.controller.elections import Election, PartitionChange
from fastq_broker.controller.snapshots import SnapshotKeeper
from fastq_broker.handlers.fetch import _Fetch
from fastq_broker.log.log_file import LogFile
from fastq_broker.log.producer_state import ProducerState
from fastq_broker.log.retention import apply_retention
from fastq_broker.log.visibility import Visibility
from fastq_broker.raft.answers import Answers
from fastq_broker.raft.leader import Leadership
from fastq_broker.raft.machine import RaftMachine
from fastq_broker.raft.roles import Role
from fastq_broker.replicas import Replica, ReplicaTable
from fastq_broker.replication import alter_driver, fetcher
from fastq_broker.replication.alter_partition import AlterPartitions
from fastq_broker.replication.fetcher import Phase, ReplicaFetcher
from fastq_broker.replication.isr import Follower, IsrChange
from fastq_broker.replication.partition import Advanced, Partition
from fastq_broker.replication.shared import SharedPartition

from fastq._native.records import read_header
from fastq.errors import CorruptMessage, ErrorCode
from fastq.producer.transaction_calls import TransactionOperations
from fastq.protocol.messages import AlterPartitionRequest, AlterPartitionResponse

LAST_MOMENT_S = 2.8
"""Shorter than a session."""


class Mutation(NamedTuple):
    """`change(original)` makes what `owner` has under `name` instead; `seed` finds it, and says so with `words`, a regular expression.
    Where there is a `trouble` that the seed has, it finds nothing without that. `other`: owner, name and change of what else it takes."""

    owner: Any
    name: str
    change: Callable[[Any], Any]
    seed: int
    words: str
    trouble: str = ""
    other: tuple[Any, str, Callable[[Any], Any]] | None = None


def _watermark_of_the_leader(original: Any) -> Any:
    def count(self: Partition, now_ms: int) -> list[Any]:
        if not self.leads or self._log.kept <= self._log.high_watermark:
            return []
        self._log = self._log._replace(high_watermark=self._log.kept)
        return [Advanced(self._log.kept)]

    return count


def _answered_at_the_append(original: Any) -> Any:
    def acknowledgement(self: Partition, end_offset: int) -> int | None:
        return 0 if self.leads else original(self, end_offset)

    return acknowledgement


def _votes_for_everybody(original: Any) -> Any:
    def grants(self: Any, ask: Any) -> bool:
        up_to_date = (ask.last_epoch, ask.end_offset) >= (self.log.last_epoch, self.log.end)
        return up_to_date if not ask.pre and self.role is not Role.LEADER else bool(original(self, ask))

    return grants


def _votes_for_who_has_less(original: Any) -> Any:
    def grants(self: Any, ask: Any) -> bool:
        more = ask._replace(last_epoch=self.log.last_epoch, end_offset=self.log.end)
        return bool(original(self, more))

    return grants


def _commits_alone(original: Any) -> Any:
    return lambda self, voters, own_end: own_end


def _does_nothing(original: Any) -> Any:
    return lambda self, *args: None


def _leads_though_not_in_sync(original: Any) -> Any:
    return lambda self, replica: self._is_there(replica)


def _counts_what_is_on_its_way(original: Any) -> Any:
    def fetched(self: Any, offset: int, log_start: int, leader_end: int, broker_epoch: int, now_ms: int) -> None:
        original(self, offset, log_start, leader_end, broker_epoch, now_ms)
        self.log_end = leader_end

    return fetched


def _forgets_producers(original: Any) -> Any:
    def apply(self: Any, image: Any) -> None:
        led = self.machine.leads
        original(self, image)
        if self.machine.leads and not led:
            self._replica.log.producers.clear(self._replica.log.log_end_offset)

    return apply


def _takes_duplicates(original: Any) -> Any:
    return lambda self, header, transaction_version=-1: None


def _takes_its_end_for_committed(original: Any) -> Any:
    def advance(self: Visibility, high_watermark: int, log_start_offset: int) -> None:
        original(self, self.log_end_offset, log_start_offset)

    return advance


def _joins_with_less(original: Any) -> Any:
    def may_join(self: Partition, follower: Follower) -> bool:
        idle = self.isr.pending is None and follower.node_id not in self.isr.committed
        return idle and self._is_eligible(follower)

    return may_join


def _whole_log(original: Any) -> Any:
    return property(lambda self: self.log_end_offset)


def _stable_is_committed(original: Any) -> Any:
    return lambda self: self.high_watermark


def _sleeps_through_records(original: Any) -> Any:
    def wake(self: Replica, log: object = None) -> None:
        if log is None:
            original(self, log)

    return wake


# -- mistakes that one kind of trouble alone finds


def _beats_at_the_last_moment(original: Any) -> Any:
    """Heartbeats come in time, by the clock of who sends them."""

    def answered(self: BrokerLifecycle, response: Any, asked_at: float, now: float) -> None:
        original(self, response, asked_at, now)
        if self.state is BrokerState.RUNNING:
            self._next(LAST_MOMENT_S, now)

    return answered


def _takes_a_gap_for_a_loss(original: Any) -> Any:
    """A follower that a compacted log is behind of never has what comes after what was taken."""

    def make_room(log: Any, records: memoryview, leader_start: int) -> None:
        first, end = read_header(records), log.log_end_offset
        if first.base_offset > end:
            raise CorruptMessage(f"the log ends at {end}, and what comes next begins at {first.base_offset}")
        original(log, records, leader_start)

    return staticmethod(make_room)


def _elects_the_first(original: Any) -> Any:
    """Who asks for a preferred leader gets it, in sync or not."""

    def leader(self: PartitionChange) -> tuple[int, bool]:
        first = self.replicas[0]
        return (first, True) if self.election is Election.PREFERRED and self._is_there(first) else original(self)

    return leader


# -- mistakes that Apache Kafka's own code had


def _never_resigns(original: Any) -> Any:
    """KAFKA-15489."""
    return lambda self: inf


def _takes_answers_of_before(original: Any) -> Any:
    """KAFKA-18991: an answer counts, whatever has become of the partition since it was asked for."""

    def fetched(self: ReplicaFetcher, number: int, response: Any, now: float) -> None:
        known = self._session.known
        for part in response.partitions:
            state = self.partitions.get((part.topic_id, part.partition))
            wanted = known.get((part.topic_id, part.partition))
            if state is not None and wanted is not None and state.phase is Phase.FETCH:
                known[part.topic_id, part.partition] = wanted._replace(position=state.position)
        original(self, number, response, now)

    return fetched


def _trims_to_the_end(original: Any) -> Any:
    """KAFKA-14238: of the metadata log nothing stays but its last segment, whatever the snapshots have."""

    def clean(self: SnapshotKeeper, now_ms: int) -> None:
        original(self, now_ms)
        self._log.delete_records_before(self._log.high_watermark)
        apply_retention(self._log, now_ms)

    return clean


def _never_waits_for_the_silent(original: Any) -> Any:
    """KAFKA-18138: a broker that died while controllers changed has no session that could end."""

    def follow(self: Sessions, image: Any, now_ms: int) -> None:
        original(self, image, now_ms)
        for session in self._brokers.values():
            if not session.was_heard:
                session.contact_ms = None

    return follow


def _keeps_what_was_planned(original: Any) -> Any:
    """KAFKA-17608: what a controller wrote and nobody committed is not taken back when it loses its lead."""

    def news(self: Controller, told: Any) -> None:
        before = self.pending
        original(self, told)
        if not self._active:
            self.pending = before

    return news


def _refuses_markers_again(original: Any) -> Any:
    """KAFKA-19999: a marker whose answer was lost is refused as one of the past when it comes again."""

    def check(self: ProducerState, producer_id: int, epoch: int, coordinator_epoch: int, version: int = 0) -> None:
        entry = self._producers.get(producer_id)
        if entry is not None and version >= 2 and epoch == entry.epoch:
            raise self._error(90, "stale")
        original(self, producer_id, epoch, coordinator_epoch, version)

    return check


def _sends_again_with_nobody(original: Any) -> Any:
    """KAFKA-15353: what is sent again has lost its in-sync set with the first request that was built of it."""
    built: list[IsrChange] = []

    def build(changes: Mapping[Any, IsrChange], *args: Any) -> AlterPartitionRequest:
        emptied = {
            key: change._replace(isr=()) if any(change is one for one in built) else change
            for key, change in changes.items()
        }
        built.extend(changes.values())
        return original(emptied, *args)

    return build


def _waits_for_who_goes(original: Any) -> Any:
    """KAFKA-15021: who has been caught up lately counts, its broker up or not."""

    def count(self: Partition, now_ms: int) -> list[Any]:
        if not self.leads or len(self.isr.committed) < self.min_isr:
            return []
        counted = [
            follower.log_end
            for follower in self._followers.values()
            if follower.node_id in self.isr.maximal
            or follower.is_caught_up(self._log.log_end, now_ms, self._lag_max_ms)
        ]
        watermark = min([self._log.kept, *counted])
        if watermark <= self._log.high_watermark:
            return []
        self._log = self._log._replace(high_watermark=watermark)
        return [Advanced(watermark)]

    return count


def _keeps_what_is_offline(original: Any) -> Any:
    """KAFKA-16157: a partition in a directory that has failed stays what it is, whatever becomes of its topic."""

    def remove_topic(self: ReplicaTable, topic: str, topic_id: bytes) -> list[Replica]:
        known = self.by_name.get(topic.encode(), {})
        kept = {number: replica for number, replica in known.items() if replica.log.dir.offline is not None}
        gone = original(self, topic, topic_id)
        if kept:
            self.by_name[topic.encode()] = kept
        return list(gone)

    return remove_topic


def _refuses_for_good(original: Any) -> Any:
    """KAFKA-14154: who is no controller any more refuses a leader's change in a way that is not asked again."""

    async def serve(self: ClusterControl, request: Any, version: int, link: object = None) -> Any:
        response = await original(self, request, version, link)
        if not isinstance(request, AlterPartitionRequest) or response.error_code != ErrorCode.NOT_CONTROLLER:
            return response
        refused = [
            AlterPartitionResponse.TopicData(
                topic_id=topic.topic_id,
                partitions=[
                    AlterPartitionResponse.PartitionData(
                        partition_index=item.partition_index, error_code=ErrorCode.FENCED_LEADER_EPOCH
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return AlterPartitionResponse(topics=refused)

    return serve


def _has_asked(original: Any) -> Any:
    """KAFKA-14154, of the leader: what it was refused it does not ask once more at its next look."""
    return lambda self, key: True


def _looks_before_it_waits(original: Any) -> Any:
    """KAFKA-18723, of the leader: what is answered is what its log has become since it was looked whether it leads."""

    def find(self: _Fetch, request: Any) -> Any:
        waited = (replica for replica, each in self.watched.items() if each is request)
        return next(waited, None) or original(self, request)

    return find


def _appends_what_is_newer(original: Any) -> Any:
    """KAFKA-18723, of the follower: it appends whatever has come, as it was asked for in the epoch that it knows."""
    return lambda part, leader_epoch: part.records[: part.whole_bytes]


MUTATIONS = {
    "the leader alone moves the high watermark": Mutation(
        Partition, "count", _watermark_of_the_leader, 0, "is committed up to"
    ),
    "acks=all is answered at the append": Mutation(
        Partition, "acknowledgement", _answered_at_the_append, 1, "OUT_OF_ORDER_SEQUENCE_NUMBER|has the acknowledgement"
    ),
    "a follower counts before its write": Mutation(
        Follower, "fetched", _counts_what_is_on_its_way, 0, "is committed up to"
    ),
    "a follower does not truncate at a new epoch": Mutation(
        ReplicaFetcher, "_truncate_to", _does_nothing, 2, "not well|not alike"
    ),
    "a follower takes its log's end for committed": Mutation(
        Visibility, "advance_as_follower", _takes_its_end_for_committed, 5, "was committed"
    ),
    "who is not in sync is elected": Mutation(
        PartitionChange, "_has_everything", _leads_though_not_in_sync, 0, "not well"
    ),
    "producers are forgotten at a fail-over": Mutation(
        SharedPartition, "apply", _forgets_producers, 1, "has the acknowledgement"
    ),
    "a batch that is sent again is appended again": Mutation(
        ProducerState, "check", _takes_duplicates, 1, "has the acknowledgement"
    ),
    "a controller votes twice in an epoch": Mutation(
        Answers, "_grants", _votes_for_everybody, 10, "both lead the metadata quorum"
    ),
    "a controller votes for who has less": Mutation(Answers, "_grants", _votes_for_who_has_less, 1, "was committed"),
    "metadata is committed without a majority": Mutation(
        Leadership, "majority_has", _commits_alone, 0, "was committed"
    ),
    "who has less joins the in-sync replicas": Mutation(
        Partition, "_may_join", _joins_with_less, 0, "is committed up to"
    ),
    "what is not synced counts as kept": Mutation(
        Visibility, "durable_end", _whole_log, 37, "was committed|not alike|OUT_OF_ORDER_SEQUENCE_NUMBER"
    ),
    "the last stable offset ignores open transactions": Mutation(
        Visibility, "_stable_offset", _stable_is_committed, 0, "was committed by"
    ),
    "a sleeping partition sleeps through records": Mutation(
        Replica, "wake", _sleeps_through_records, 0, "after an idle time"
    ),
    "a leader without a majority stays (KAFKA-15489)": Mutation(
        RaftMachine, "_quorum_due", _never_resigns, 15, "no majority has reached it"
    ),
    "an answer of before counts (KAFKA-18991)": Mutation(
        ReplicaFetcher, "fetched", _takes_answers_of_before, 4, "still wait|not alike"
    ),
    "the metadata log goes beyond its snapshots (KAFKA-14238)": Mutation(
        SnapshotKeeper, "_clean", _trims_to_the_end, 0, "begins at offset"
    ),
    "what was never committed stays planned (KAFKA-17608)": Mutation(
        Controller, "_news", _keeps_what_was_planned, 50, "not well|has committed"
    ),
    "who died while controllers changed is not fenced (KAFKA-18138)": Mutation(
        Sessions, "follow", _never_waits_for_the_silent, 55, "has not fenced it"
    ),
    "a marker that comes again is refused (KAFKA-19999)": Mutation(
        ProducerState, "check_marker", _refuses_markers_again, 12, "still waits"
    ),
    "an ISR that is asked for again is empty (KAFKA-15353)": Mutation(
        alter_driver, "build_request", _sends_again_with_nobody, 50, "not well"
    ),
    "who goes keeps the high watermark waiting (KAFKA-15021)": Mutation(
        Partition, "count", _waits_for_who_goes, 3, "stays at"
    ),
    "a topic made anew is the one of before where that is offline (KAFKA-16157)": Mutation(
        ReplicaTable, "remove_topic", _keeps_what_is_offline, 130, "has renewed with the id", "directories"
    ),
    "a controller of before refuses for good (KAFKA-14154)": Mutation(
        ClusterControl, "serve", _refuses_for_good, 488, "not well", other=(AlterPartitions, "has", _has_asked)
    ),
    "a batch of a later epoch is appended (KAFKA-18723)": Mutation(
        fetcher,
        "usable_records",
        _appends_what_is_newer,
        69,
        "of which it does not know",
        other=(_Fetch, "_find", _looks_before_it_waits),
    ),
    "a preferred leader is elected that is not in sync": Mutation(
        PartitionChange, "_leader", _elects_the_first, 43, "is committed up to|was committed", "elections"
    ),
    "a heartbeat comes at the last moment": Mutation(
        BrokerLifecycle, "_heartbeat_answered", _beats_at_the_last_moment, 9, "not well|not alike|idle time", "drift"
    ),
    "nobody is told where a replica lies": Mutation(
        DirectoryAssignments, "note", _does_nothing, 2, "is in logs-., id", "directories"
    ),
    "a follower takes a gap for a loss": Mutation(
        ReplicaFetcher, "_make_room", _takes_a_gap_for_a_loss, 5, "not well|not alike", "cleaning"
    ),
    "a log keeps the room ahead of its end": Mutation(
        LogFile, "give_back", _does_nothing, 29, "takes more than it needs", "room ahead"
    ),
    "a transaction commits no offsets": Mutation(
        TransactionOperations, "_send_offsets", _does_nothing, 13, "as its copy", "own copiers"
    ),
}


@contextmanager
def mistaken(name: str) -> Iterator[Mutation]:
    """The broker with this mistake in it."""
    mutation = MUTATIONS[name]
    parts = [part for part in (mutation[:3], mutation.other) if part is not None]
    originals = [owner.__dict__[part] for owner, part, _ in parts]
    for (owner, part, change), original in zip(parts, originals, strict=True):
        setattr(owner, part, change(original))
    try:
        yield mutation
    finally:
        for (owner, part, _), original in zip(parts, originals, strict=True):
            setattr(owner, part, original)
