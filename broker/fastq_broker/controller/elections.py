"""Who leads a partition, and who is in sync with it: one change of a partition, and the plans that make such changes.

`PartitionChange` takes what is wanted of a partition (its ISR, its replicas) and says what is written: it completes a reassignment that
has become complete, elects, and keeps count of who may lead though it is not in sync (ELR, KIP-966).

Rules
- A leader is active, has the directory of its replica, and is in the ISR, or, where that is empty, in the ELR. Whoever else is elected
  may lack what was committed: the last that led, with ELR, or anybody where the topic allows unclean elections. The ISR is then that one
  alone, and it is RECOVERING.
- Without ELR the last member stays in the ISR when it goes; with ELR the ISR may be empty. While the ISR is below min.insync.replicas, who
  leaves it with all that was committed is in the ELR; once it is not, the ELR is empty.
- A leader epoch grows with each record that names a leader: when another leads, or nobody, or when a replica leaves the partition. An ISR
  that grows or shrinks is no such thing from 3.6-IV0 on (KAFKA-15021).
- A plan reads one view. It says records in the order of topics and partitions, a partition at most once.
Four departures from Apache Kafka: the ELR keeps no broker that is no replica any more (Kafka's may, until the ISR is large enough; placed
there again it would count as one that has everything), an unregistered broker leaves it, which Kafka says and does not do, and another
min.insync.replicas leaves it to a partition with an empty ISR, which in Kafka has nobody left then but by an unclean election. Nor has one
there that had no leader as ELR was switched on, once who had stayed in its ISR has stopped uncleanly.
Source: PartitionChangeBuilder, PartitionReassignmentReplicas, ReplicationControlManager.generateLeaderAndIsrUpdates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from typing import Final

from fastq.errors import ErrorCode
from fastq.protocol.messages import ClearElrRecord, ConfigRecord, ElectLeadersResponse, PartitionChangeRecord
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller import view as control
from fastq_broker.controller.image import NO_LEADER, NO_LEADER_CHANGE, PartitionImage, Record
from fastq_broker.controller.topics import Refused
from fastq_broker.controller.view import ControlView, Located

logger = logging.getLogger(__name__)

RECOVERED, RECOVERING = 0, 1
ELECTIONS_PER_ROUND_MAX: Final = 1_000
"""Elections that one round of balancing makes; when there may be more the next round follows at once."""
NOBODY: Final = -1
NAMED_MAX: Final = 5
"""Partitions that one line of the log names."""

MayLead = Callable[[int], bool]


class Election(Enum):
    """How a leader is found."""

    PREFERRED = "preferred"
    """The first replica, if it may; else as ONLINE."""
    ONLINE = "online"
    """Whoever leads, if it still may; else the first replica that may."""
    UNCLEAN = "unclean"
    """As ONLINE; else the first replica that is there, though it may lack what was committed."""


class PartitionChange:
    """One change of one partition: set what is wanted, then `build`. Used once."""

    def __init__(
        self,
        view: ControlView,
        found: Located,
        may_lead: MayLead | None = None,
        led_again: dict[int, list[Located]] | None = None,
    ) -> None:
        """`may_lead`: who may, besides that its directory has to be online; None: who is active. `led_again` gets the partition where its
        last leader is elected though nobody is known to have everything, by leader; None: that is logged at once."""
        partition = found.partition
        self._view = view
        self._found = found
        self._partition = partition
        self._may_lead = may_lead or view.is_active
        self._led_again = led_again
        self._elr = list(partition.eligible_leader_replicas)
        self._record = PartitionChangeRecord(partition_id=found.number, topic_id=found.topic.topic_id)
        self.election = Election.ONLINE
        self.isr: Sequence[int] = partition.isr
        self.replicas: Sequence[int] = partition.replicas
        self.removing: Sequence[int] = partition.removing_replicas
        self.adding: Sequence[int] = partition.adding_replicas
        self.recovery = partition.leader_recovery_state
        self.directories = dict(zip(partition.replicas, partition.directories, strict=False))
        """Of each replica that has one; a new one gets the default of its broker."""
        self.unclean: Sequence[int] = ()
        """Brokers that stopped without writing everything: what they have in the log may be less than was committed."""

    def build(self) -> PartitionChangeRecord | None:
        """The record of the change; None where nothing changes."""
        partition, record = self._partition, self._record
        self._complete_reassignment()
        self._count_eligible()
        self._elect()
        if record.leader == NO_LEADER_CHANGE and not set(partition.replicas) <= set(self.replicas):
            record.leader = partition.leader
        self._set_eligible()
        isr = list(self.isr)
        if record.isr is None and (isr or self._view.elr) and isr != list(partition.isr):
            record.isr = isr
        self._follow_shrink()
        self._set_last_leader()
        self._set_assignment()
        if self.recovery != partition.leader_recovery_state:
            record.leader_recovery_state = self.recovery
        unchanged = PartitionChangeRecord(partition_id=record.partition_id, topic_id=record.topic_id)
        return None if record == unchanged else record

    # In the order of `build`

    def _complete_reassignment(self) -> None:
        """Take the replicas away that are to go, once those that come are in sync.

        Where the partition is to have fewer replicas, only once all that stay are in sync, or the ISR would shrink for nothing.
        """
        if not self.removing and not self.adding:
            return
        isr = [replica for replica in self.isr if replica not in self.removing]
        replicas = [replica for replica in self.replicas if replica not in self.removing]
        awaited = set(self.adding)
        if len(self.adding) < len(self.removing):
            awaited |= set(replicas)
        if not replicas or not awaited <= set(isr):
            return
        self.isr, self.replicas, self.removing, self.adding = isr, replicas, (), ()

    def _count_eligible(self) -> None:
        if not self._view.elr:
            return
        if len(self.isr) >= self._view.min_isr(self._found.topic):
            self._elr = []
            return
        candidates = {*self._elr, *self._partition.isr} & set(self.replicas)
        self._elr = sorted(candidates - set(self.isr) - set(self.unclean))

    def _elect(self) -> None:
        partition, record = self._partition, self._record
        leader, clean = self._leader()
        if leader == partition.leader:
            return
        record.leader = leader
        if leader in self._elr:
            self.isr = [leader]
            self._elr.remove(leader)
        if not clean:
            record.isr = [leader]
            if partition.leader_recovery_state != RECOVERING:
                record.leader_recovery_state = RECOVERING
            self._tell_doubt(leader)

    def _tell_doubt(self, leader: int) -> None:
        partition = self._partition
        if self._is_last_leader(leader):
            if self._led_again is None:
                _tell_led_again({leader: [self._found]})
            else:
                self._led_again.setdefault(leader, []).append(self._found)
            return
        logger.warning(
            "the partition %s gets broker %d as its leader in an unclean election: what was committed and that broker has not is lost "
            "(in sync: %s, eligible: %s)",
            self._found,
            leader,
            list(partition.isr),
            list(partition.eligible_leader_replicas),
        )

    def _leader(self) -> tuple[int, bool]:
        """Who is to lead, and whether it has all that was committed."""
        order = [self._partition.leader, *self.replicas]
        if self.election is Election.PREFERRED:
            order.insert(0, self.replicas[0])
        leader = next((replica for replica in order if self._has_everything(replica)), NOBODY)
        if leader != NOBODY:
            return leader, True
        last = self._partition.last_known_elr
        if len(last) == 1 and self._is_last_leader(last[0]) and self._is_there(last[0]):
            return last[0], False
        if self.election is Election.UNCLEAN:
            leader = next((replica for replica in self.replicas if self._is_there(replica)), NOBODY)
            return leader, leader == NOBODY
        return NOBODY, True

    def _is_last_leader(self, replica: int) -> bool:
        """Whether nobody is left that surely has everything, and this one led last."""
        nobody = self._view.elr and not self.isr and not self._elr
        return nobody and self._partition.last_known_elr == (replica,)

    def _has_everything(self, replica: int) -> bool:
        return (replica in self.isr or (not self.isr and replica in self._elr)) and self._is_there(replica)

    def _is_there(self, replica: int) -> bool:
        return (
            replica in self.replicas and self._may_lead(replica) and self._view.has_directory(replica, self._partition)
        )

    def _set_eligible(self) -> None:
        if self._record.isr is not None or not self._view.elr:
            # An election was unclean: who was eligible has not what is now there.
            self._elr = []
        if self._elr != list(self._partition.eligible_leader_replicas):
            self._record.eligible_leader_replicas = self._elr

    def _follow_shrink(self) -> None:
        record = self._record
        if self._view.metadata_version >= control.EPOCH_GROWS_ON_SHRINK_BELOW or record.isr is None:
            return
        if record.leader == NO_LEADER_CHANGE and not set(self._partition.isr) <= set(record.isr):
            record.leader = self._partition.leader

    def _set_last_leader(self) -> None:
        """Who led last, while nobody leads: who is asked first when nobody is left that surely has everything. Where nobody led as ELR came
        it is who had stayed in the ISR until now."""
        partition, record = self._partition, self._record
        if not self._view.elr:
            return
        if record.leader == NO_LEADER != partition.leader and not partition.last_known_elr:
            record.last_known_elr = [partition.leader]
        elif record.leader >= 0 and partition.last_known_elr:
            record.last_known_elr = []
        elif record.isr == [] and partition.leader == NO_LEADER and not partition.last_known_elr:
            record.last_known_elr = list(partition.isr)

    def _set_assignment(self) -> None:
        partition, record, view = self._partition, self._record, self._view
        replicas = list(self.replicas)
        if view.metadata_version >= control.DIRECTORIES:
            directories = [
                self.directories[replica] if replica in self.directories else view.default_directory(replica)
                for replica in replicas
            ]
            if directories != list(partition.directories):
                record.directories = directories
        if replicas != list(partition.replicas):
            record.replicas = replicas
        if list(self.removing) != list(partition.removing_replicas):
            record.removing_replicas = list(self.removing)
        if list(self.adding) != list(partition.adding_replicas):
            record.adding_replicas = list(self.adding)


# Plans: what the changes of brokers mean for partitions


def partition_changes(
    view: ControlView,
    partitions: Iterable[Located],
    *,
    leaving: int = NOBODY,
    joining: int = NOBODY,
    unclean: int = NOBODY,
) -> list[Record]:
    """The changes of these partitions when a broker leaves, joins, or is found to have stopped uncleanly.

    `leaving` goes out of ISR and leadership, `joining` may lead though the view still has it fenced, `unclean` goes out of the ELR too.
    """

    def may_lead(broker: int) -> bool:
        return broker not in (leaving, unclean) and (broker == joining or view.is_active(broker))

    records: list[Record] = []
    led_again: dict[int, list[Located]] = {}
    for found in partitions:
        change = PartitionChange(view, found, may_lead, led_again)
        if view.allows_unclean(found.topic):
            change.election = Election.UNCLEAN
        if unclean != NOBODY:
            change.unclean = (unclean,)
        change.isr = [replica for replica in found.partition.isr if replica not in (leaving, unclean)]
        record = change.build()
        if record is not None:
            records.append(record)
    _tell_led_again(led_again)
    return records


def _tell_led_again(found: Mapping[int, Sequence[Located]]) -> None:
    """One line a leader: after a kill of all nodes these are most partitions that there are."""
    for leader, partitions in found.items():
        named = ", ".join(str(partition) for partition in partitions[:NAMED_MAX])
        more = f" and {len(partitions) - NAMED_MAX} more" if len(partitions) > NAMED_MAX else ""
        logger.warning(
            "broker %d leads again what it led last (%s%s): every replica that had all committed records has stopped without a clean "
            "shutdown since. The records that it has are kept. Where processes were killed none is missing, and nothing is to be "
            "done; where machines lost power, those of the last moments may be (durability=fsync prevents that); where its disk was "
            "replaced, all are",
            leader,
            named,
            more,
        )


def broker_leaves(view: ControlView, broker_id: int) -> list[Record]:
    """A broker that is fenced, shuts down, or comes back after a clean stop: it is out of every ISR and leads nothing."""
    return partition_changes(view, view.in_sync(broker_id), leaving=broker_id)


def broker_lost_records(view: ControlView, broker_id: int) -> list[Record]:
    """A broker that stopped uncleanly, or is gone for good: it is out of every ISR and every ELR."""
    if not view.elr:
        return broker_leaves(view, broker_id)
    partitions = view.where(
        lambda partition: broker_id in partition.isr or broker_id in partition.eligible_leader_replicas
    )
    return partition_changes(view, partitions, unclean=broker_id)


def broker_joins(view: ControlView, broker_id: int) -> list[Record]:
    """A broker that is unfenced: partitions without a leader get one, where it has what was committed."""
    return partition_changes(view, _leaderless(view), joining=broker_id)


def _leaderless(view: ControlView) -> Iterable[Located]:
    return view.where(lambda partition: partition.leader == NO_LEADER)


# Plans: elections that are asked for, and those that come by themselves

PREFERRED_TYPE, UNCLEAN_TYPE = 0, 1
ELECTIONS: Final = {PREFERRED_TYPE: Election.PREFERRED, UNCLEAN_TYPE: Election.UNCLEAN}


def plan_elect_leaders(
    view: ControlView, election_type: int, wanted: Sequence[tuple[str, Sequence[int]]] | None
) -> tuple[ElectLeadersResponse, list[Record]]:
    """ElectLeaders (KIP-183, KIP-460) by one of `ELECTIONS`, for the partitions of these topics, or all (None): those that need none are
    then left out."""
    records: list[Record] = []
    results = []
    named = wanted
    if named is None:
        named = [(topic.name, range(len(topic.partitions))) for topic in view.image.topics_by_name.values()]
    for topic, numbers in named:
        found = [_elected(view, election_type, topic, number, records) for number in numbers]
        if wanted is None:
            found = [result for result in found if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        results.append(ElectLeadersResponse.ReplicaElectionResult(topic=topic, partition_result=found))
    return ElectLeadersResponse(error_code=ErrorCode.NONE, replica_election_results=results), records


def _elected(
    view: ControlView, election_type: int, topic: str, number: int, records: list[Record]
) -> ElectLeadersResponse.PartitionResult:
    result = ElectLeadersResponse.PartitionResult(partition_id=number, error_message=None)
    try:
        records.append(_election(view, election_type, topic, number))
    except Refused as refused:
        result.error_code, result.error_message = refused.error, refused.message
    return result


def _election(view: ControlView, election_type: int, name: str, number: int) -> PartitionChangeRecord:
    topic = view.image.topic(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= number < len(topic.partitions):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{number}")
    found = Located(topic, number)
    partition = found.partition
    if _has_preferred(partition) if election_type == PREFERRED_TYPE else partition.leader != NO_LEADER:
        raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"{found} has the leader asked for, broker {partition.leader}.")
    change = PartitionChange(view, found)
    change.election = ELECTIONS[election_type]
    record = change.build()
    if record is not None:
        return record
    if election_type == PREFERRED_TYPE:
        raise Refused(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader of {found}, broker {partition.replicas[0]}, cannot lead now: in sync are {list(partition.isr)}.",
        )
    raise Refused(
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        f"None of the replicas of {found}, brokers {list(partition.replicas)}, is active with its directory online.",
    )


def _has_preferred(partition: PartitionImage) -> bool:
    return partition.leader == partition.replicas[0]


def plan_preferred_leaders(view: ControlView, limit: int = ELECTIONS_PER_ROUND_MAX) -> tuple[bool, list[Record]]:
    """Give leadership back to preferred replicas (auto.leader.rebalance.enable); whether there may be more, and the records."""
    records: list[Record] = []
    for found in view.partitions():
        if len(records) == limit:
            break
        if not _has_preferred(found.partition) and view.is_active(found.partition.replicas[0]):
            change = PartitionChange(view, found)
            change.election = Election.PREFERRED
            record = change.build()
            if record is not None:
                records.append(record)
    return len(records) == limit, records


def plan_unclean_leaders(view: ControlView, limit: int = ELECTIONS_PER_ROUND_MAX) -> tuple[bool, list[Record]]:
    """Leaders for partitions without one, of topics that allow unclean elections; whether there may be more, and the records."""
    records: list[Record] = []
    for found in _leaderless(view):
        if len(records) == limit:
            break
        if view.allows_unclean(found.topic):
            change = PartitionChange(view, found)
            change.election = Election.UNCLEAN
            record = change.build()
            if record is not None:
                records.append(record)
    return len(records) == limit, records


def clear_elr(after: ControlView, changes: Iterable[Record]) -> list[Record]:
    """What a change of configuration adds: who was eligible under another min.insync.replicas may lack what is now committed.

    Not where nobody is in sync: nothing was committed since, so that who was eligible still has everything, and is all there is. `after`:
    the view with the change made.
    """
    if not after.elr:
        return []
    cleared = [
        record.resource_name if record.resource_type == ResourceType.TOPIC else ""
        for record in changes
        if isinstance(record, ConfigRecord) and record.name == "min.insync.replicas"
    ]
    return [*(ClearElrRecord(topic_name=name) for name in cleared), *_kept_eligible(after, set(cleared))]


def _kept_eligible(after: ControlView, cleared: Set[str]) -> Iterator[Record]:
    """One alone where one commits by itself: whoever is elected is in sync alone, and the others would not count as passed by."""
    if not cleared:
        return
    for found in after.where(lambda partition: partition.has_eligible_alone):
        if "" in cleared or found.topic.name in cleared:
            elr, last = list(found.partition.eligible_leader_replicas), list(found.partition.last_known_elr)
            if after.min_isr(found.topic) <= 1:
                elr = [replica for replica in last if replica in elr] or elr[:1]
            yield PartitionChangeRecord(
                partition_id=found.number,
                topic_id=found.topic.topic_id,
                eligible_leader_replicas=elr or None,
                last_known_elr=last or None,
            )
