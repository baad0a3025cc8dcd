"""Who reads what: the strategies by which the leader of a classic group divides partitions among its members.

Rules
- `assign` is a pure function of topics and members; the same input gives the same answer on every member and every client.
- A partition goes to one member that wants its topic; the answer of a strategy of a user's own is checked for that.
Sources: Kafka's ConsumerPartitionAssignor, RangeAssignor, RoundRobinAssignor; KIP-881 (racks).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence

from fastq.consumer.group.subscription import MemberSubscription
from fastq.errors import ConfigError, InconsistentGroupProtocol
from fastq.metadata import ClusterMetadata, TopicPartition
from fastq.values import NamedTuple

Assignment = dict[str, list[TopicPartition]]


class GroupTopics(NamedTuple):
    """The topics of a group that exist. counts: partitions by topic. racks: the racks of each partition's replicas, where the
    brokers have racks."""

    counts: Mapping[str, int]
    racks: Mapping[TopicPartition, frozenset[str]] = {}

    @classmethod
    def of(cls, metadata: ClusterMetadata, counts: Mapping[str, int]) -> GroupTopics:
        """As the metadata has them."""
        racks: dict[TopicPartition, frozenset[str]] = {}
        rack_of = {node_id: node.rack for node_id, node in metadata.nodes.items() if node.rack}
        for topic in counts if rack_of else ():
            found = metadata.topic(topic)
            for part in found.partitions if found is not None else ():
                racks[TopicPartition(topic, part.index)] = frozenset(rack_of[n] for n in part.replicas if n in rack_of)
        return cls(dict(counts), racks)

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """All partitions of those of `topics` that exist, in order."""
        return [
            TopicPartition(topic, index) for topic in sorted(set(topics)) for index in range(self.counts.get(topic, 0))
        ]


class Assignor:
    """A strategy; base of those below and of a user's own.

    name: what the members agree on, the same in every client. cooperative: members keep what stays theirs during a rebalance
    (KIP-429); such a strategy must not give a partition to a member while another one still has it in `owned`.
    """

    name = ""
    cooperative = False

    def assign(
        self, topics: GroupTopics, members: Mapping[str, MemberSubscription]
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """Partitions by member id."""
        raise NotImplementedError

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        """What this member tells the leader's `assign`."""
        return None

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """This member was assigned partitions."""


def by_seniority(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Member ids in the order of all clients: static members by their instance id, then the others by member id."""

    def place(member_id: str) -> tuple[bool, str]:
        instance = members[member_id].group_instance_id
        return instance is None, member_id if instance is None else instance

    return sorted(members, key=place)


class RangeAssignor(Assignor):
    """Topic by topic, consecutive partitions to each member, the first members one more: topics with as many partitions and the
    same readers are divided alike. With racks, a member gets partitions of its own rack first, as far as its share goes."""

    name = "range"

    def assign(self, topics: GroupTopics, members: Mapping[str, MemberSubscription]) -> Assignment:
        found: Assignment = {member_id: [] for member_id in members}
        alike: dict[tuple[int, tuple[str, ...]], list[str]] = {}
        seniority = by_seniority(members)
        for topic in sorted(topics.counts):
            readers = tuple(member_id for member_id in seniority if topic in members[member_id].topics)
            if readers and topics.counts[topic]:
                alike.setdefault((topics.counts[topic], readers), []).append(topic)
        for (count, readers), names in alike.items():
            owner = self._divide(count, readers, names, topics, members)
            for topic in names:
                for index in range(count):
                    found[owner[index]].append(TopicPartition(topic, index))
        for partitions in found.values():
            partitions.sort()
        return found

    @staticmethod
    def _divide(
        count: int,
        readers: Sequence[str],
        names: Sequence[str],
        topics: GroupTopics,
        members: Mapping[str, MemberSubscription],
    ) -> list[str]:
        """The reader of each partition index, of topics that are divided alike."""
        share, more = divmod(count, len(readers))
        quota = {reader: share + (place < more) for place, reader in enumerate(readers)}
        owner = [""] * count
        if _racks_matter(readers, names, count, topics, members):
            for index in range(count):
                racks = frozenset.intersection(*(topics.racks[TopicPartition(topic, index)] for topic in names))
                nearby = next((r for r in readers if quota[r] and members[r].rack in racks), None)
                if nearby is not None:
                    owner[index] = nearby
                    quota[nearby] -= 1
        left = (index for index in range(count) if not owner[index])
        for reader in readers:
            for _ in range(quota[reader]):
                owner[next(left)] = reader
        return owner


def _racks_matter(
    readers: Sequence[str],
    names: Sequence[str],
    count: int,
    topics: GroupTopics,
    members: Mapping[str, MemberSubscription],
) -> bool:
    """Whether who reads what makes a difference to how far the records travel."""
    here = {members[reader].rack for reader in readers} - {None}
    if not here:
        return False
    found = [topics.racks.get(TopicPartition(topic, index), frozenset()) for topic in names for index in range(count)]
    return all(found) and any(here & racks for racks in found) and any(not here <= racks for racks in found)


class RoundRobinAssignor(Assignor):
    """All partitions of all topics in order, one to each member in turn, passing over those that do not want the topic."""

    name = "roundrobin"

    def assign(self, topics: GroupTopics, members: Mapping[str, MemberSubscription]) -> Assignment:
        found: Assignment = {member_id: [] for member_id in members}
        circle = by_seniority(members)
        wanted = {topic for member in members.values() for topic in member.topics}
        place = 0
        for tp in topics.partitions(wanted):
            while tp.topic not in members[circle[place % len(circle)]].topics:
                place += 1
            found[circle[place % len(circle)]].append(tp)
            place += 1
        return found


def check_assignment(
    assignor: Assignor,
    topics: GroupTopics,
    members: Mapping[str, MemberSubscription],
    answer: Mapping[str, Iterable[TopicPartition]],
) -> Assignment:
    """What a strategy answered, when it makes sense: raises InconsistentGroupProtocol with what does not."""
    found: Assignment = {member_id: [] for member_id in members}
    owner: dict[TopicPartition, str] = {}
    for member_id, partitions in answer.items():
        if member_id not in members:
            raise InconsistentGroupProtocol(
                f"the assignor {assignor.name!r} names a member {member_id!r} that there is not"
            )
        for given in partitions:
            tp = TopicPartition(*given)
            what = None
            if not 0 <= tp.partition < topics.counts.get(tp.topic, 0):
                what = "which does not exist"
            elif tp.topic not in members[member_id].topics:
                what = f"to member {member_id}, which is not subscribed to the topic"
            elif tp in owner:
                what = f"to both {owner[tp]} and {member_id}"
            if what is not None:
                raise InconsistentGroupProtocol(
                    f"the assignor {assignor.name!r} gives {tp} {what}", topic=tp.topic, partition=tp.partition
                )
            owner[tp] = member_id
            insort(found[member_id], tp)
    return found


def find_assignors(strategies: Iterable[object]) -> tuple[Assignor, ...]:
    """Strategies by name (also those of Kafka's classes), by class, or as they are; raises ConfigError."""
    from fastq.consumer.group.sticky import CooperativeStickyAssignor, StickyAssignor

    known: dict[str, type[Assignor]] = {}
    for cls in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor):
        known[cls.name] = known[f"org.apache.kafka.clients.consumer.{cls.__name__}"] = cls
    found: list[Assignor] = []
    for item in strategies:
        if isinstance(item, str):
            strategy = known.get(item.strip())
            if strategy is None:
                names = ", ".join(repr(name) for name in known if "." not in name)
                raise ConfigError(
                    f"partition_assignment_strategy={item!r}: one of {names}, or an object with a name and assign()"
                )
            found.append(strategy())
        else:
            found.append(_as_assignor(item() if isinstance(item, type) else item))
    names_given = [assignor.name for assignor in found]
    if not found or len(set(names_given)) < len(found):
        raise ConfigError(f"partition_assignment_strategy={names_given!r}: one or more strategies, each once")
    return tuple(found)


def _as_assignor(item: object) -> Assignor:
    if isinstance(item, Assignor) and item.name:
        return item
    raise ConfigError(
        f"partition_assignment_strategy={item!r}: a subclass of fastq.consumer.Assignor with a name, and assign()"
    )
