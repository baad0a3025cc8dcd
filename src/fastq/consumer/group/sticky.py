"""The sticky strategies: as even as possible, and with as few partitions moving as that allows.

Rules
- What a member has, it keeps, unless others would have less than their share. Of two claims to a partition the one of the later
  generation counts; two of the same generation cancel each other out.
- Where all members want the same topics, the answer is computed directly (`_divide_alike`). Otherwise partitions are placed and then
  moved along chains of members until nobody has two more than somebody who could take one (`_Exchange`), and moves that were not
  needed are taken back.
- The cooperative strategy gives a partition to its new owner only once the old one has let go of it: a rebalance later.
Sources: Kafka's AbstractStickyAssignor, StickyAssignor, CooperativeStickyAssignor; KIP-54, KIP-429, KIP-792.

User data of sticky: count int32, {topic string, count int32, {partition int32}}, generation int32 (absent in version 0). Of
cooperative-sticky: generation int32.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from fastq._native.wire import DecodeError, Reader, Writer
from fastq.consumer.group.assignors import Assignment, Assignor, GroupTopics
from fastq.consumer.group.subscription import UNKNOWN_GENERATION, MemberSubscription, by_topic
from fastq.metadata import TopicPartition

Claim = tuple[Iterable[TopicPartition], int]  # what a member has, and of which generation


class StickyAssignor(Assignor):
    """Sticky, under the eager protocol: what a member had is remembered in its user data."""

    name = "sticky"

    def __init__(self) -> None:
        self._partitions: tuple[TopicPartition, ...] = ()
        self._generation = UNKNOWN_GENERATION

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        """What this member had, and since when."""
        if not self._partitions:
            return None
        writer = Writer()
        found = by_topic(self._partitions)
        writer.write_int32(len(found))
        for topic, indexes in found.items():
            writer.write_string(topic)
            writer.write_int32(len(indexes))
            writer.write_int32s(indexes)
        writer.write_int32(self._generation)
        return writer.getvalue()

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """Remember."""
        self._partitions, self._generation = tuple(partitions), generation

    def claim(self, member: MemberSubscription) -> Claim:
        """What another member says that it had."""
        if member.user_data is None:
            return member.owned, member.generation
        try:
            reader = Reader(member.user_data)
            found = []
            for _ in range(reader.read_array_length(6)):
                topic = reader.read_string()
                found += [TopicPartition(topic, i) for i in reader.read_int32s(reader.read_array_length(4))]
            return found, reader.read_int32() if reader.remaining else UNKNOWN_GENERATION
        except DecodeError:
            return (), UNKNOWN_GENERATION  # of another strategy, or of no use: it had nothing

    def assign(self, topics: GroupTopics, members: Mapping[str, MemberSubscription]) -> Assignment:
        """As the rules of the file say."""
        return divide(topics, members, {member_id: self.claim(member) for member_id, member in members.items()})


class CooperativeStickyAssignor(StickyAssignor):
    """Sticky, under the cooperative protocol: what a member has it says in its subscription, and goes on reading."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        """The generation, for leaders that do not look for it in the subscription."""
        writer = Writer()
        writer.write_int32(self._generation)
        return writer.getvalue()

    def claim(self, member: MemberSubscription) -> Claim:
        """What another member has; those of before KIP-792 tell the generation in their user data."""
        generation = member.generation
        if generation < 0 and member.user_data is not None and len(member.user_data) == 4:
            generation = int.from_bytes(member.user_data, "big", signed=True)
        return member.owned, generation

    def assign(self, topics: GroupTopics, members: Mapping[str, MemberSubscription]) -> Assignment:
        """As the rules of the file say: what another member still has is left out."""
        found = super().assign(topics, members)
        holders: defaultdict[TopicPartition, set[str]] = defaultdict(set)
        for member_id, member in members.items():
            for tp in member.owned:
                holders[tp].add(member_id)
        return {
            member_id: [tp for tp in partitions if not holders.get(tp, set()) - {member_id}]
            for member_id, partitions in found.items()
        }


def valid_claims(
    topics: GroupTopics, members: Mapping[str, MemberSubscription], claims: Mapping[str, Claim]
) -> dict[TopicPartition, str]:
    """Who has what, as far as it exists, is still wanted, and nobody has a better claim."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id in sorted(claims):
        partitions, generation = claims[member_id]
        wanted = set(members[member_id].topics)
        for tp in set(partitions):
            if tp.topic not in wanted or not 0 <= tp.partition < topics.counts.get(tp.topic, 0):
                continue
            known = best.get(tp)
            if known is None or generation > known[0]:
                best[tp] = (generation, member_id)
            elif generation == known[0]:
                best[tp] = (generation, None)
    return {tp: owner for tp, (_, owner) in best.items() if owner is not None}


def divide(topics: GroupTopics, members: Mapping[str, MemberSubscription], claims: Mapping[str, Claim]) -> Assignment:
    """The most even division, with the fewest moves from the claims."""
    before = valid_claims(topics, members, claims)
    wanted = {member_id: frozenset(member.topics).intersection(topics.counts) for member_id, member in members.items()}
    if len(set(wanted.values())) <= 1:
        found = _divide_alike(topics.partitions(next(iter(wanted.values()), ())), sorted(members), before)
    else:
        found = _Exchange(topics, wanted, before).run()
    return {member_id: sorted(partitions) for member_id, partitions in found.items()}


def _divide_alike(
    partitions: Sequence[TopicPartition], members: Sequence[str], before: Mapping[TopicPartition, str]
) -> dict[str, set[TopicPartition]]:
    """Everybody may have everything: each keeps up to its share, those with most are the ones with one more."""
    kept: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
    free: list[TopicPartition] = []
    for tp in partitions:
        owner = before.get(tp)
        if owner is None:
            free.append(tp)
        else:
            kept[owner].append(tp)
    share, more = divmod(len(partitions), len(members))
    quota = dict.fromkeys(members, share)
    for member_id in sorted(members, key=lambda member_id: -len(kept[member_id]))[:more]:
        quota[member_id] += 1
    for member_id, mine in kept.items():
        free += mine[quota[member_id] :]
        del mine[quota[member_id] :]
    free.sort()
    # Round and round, so that a topic spreads over the members that have room.
    open_members = deque(member_id for member_id in members if len(kept[member_id]) < quota[member_id])
    for tp in free:
        member_id = open_members.popleft()
        kept[member_id].append(tp)
        if len(kept[member_id]) < quota[member_id]:
            open_members.append(member_id)
    return {member_id: set(mine) for member_id, mine in kept.items()}


class _Exchange:
    """Members that want different topics. Invariant: every partition that somebody wants has one owner who wants it.

    A step from one member to another hands over a partition of a topic that the other wants. What can be handed over is looked at
    by topic, and by whether it would go back to who had it before, so a step costs members times topics; what was found is kept
    (`_known_moves`) until the giver's partitions change.
    """

    def __init__(
        self, topics: GroupTopics, wanted: Mapping[str, frozenset[str]], before: Mapping[TopicPartition, str]
    ) -> None:
        self.members = sorted(wanted)
        self.wanted = wanted
        self.before = before
        self.owned: dict[str, set[TopicPartition]] = {member_id: set() for member_id in self.members}
        readers = {
            topic: [member_id for member_id in self.members if topic in wanted[member_id]] for topic in topics.counts
        }
        self._known_moves: dict[str, dict[str, tuple[int, TopicPartition]]] = {}
        free = []
        for tp in topics.partitions(topic for topic in topics.counts if readers[topic]):
            owner = before.get(tp)
            if owner is None:
                free.append(tp)
            else:
                self.owned[owner].add(tp)
        for tp in sorted(free, key=lambda tp: (len(readers[tp.topic]), tp)):
            self.owned[min(readers[tp.topic], key=lambda member_id: (len(self.owned[member_id]), member_id))].add(tp)

    def run(self) -> dict[str, set[TopicPartition]]:
        """Even out, then take back what moved in vain."""
        while self._even_out():
            pass
        while self._take_back():
            pass
        return self.owned

    def _moves(self, giver: str) -> dict[str, tuple[int, TopicPartition]]:
        """For each other member, the cheapest partition that `giver` could hand it: 1 for a partition that leaves who had it
        before, -1 for one that returns, 0 for another."""
        known_moves = self._known_moves.get(giver)
        if known_moves is not None:
            return known_moves
        found: dict[str, tuple[int, TopicPartition]] = {}
        seen: set[tuple[str, str | None]] = set()
        for tp in sorted(self.owned[giver]):
            had = self.before.get(tp)
            if (tp.topic, had) in seen:
                continue
            seen.add((tp.topic, had))
            for taker in self.members:
                if taker == giver or tp.topic not in self.wanted[taker]:
                    continue
                cost = (1 if had == giver else 0) - (1 if had == taker else 0)
                known = found.get(taker)
                if known is None or cost < known[0]:
                    found[taker] = (cost, tp)
        self._known_moves[giver] = found
        return found

    def _hand_over(self, path: Sequence[tuple[str, str, TopicPartition]]) -> None:
        for giver, taker, tp in path:
            self.owned[giver].remove(tp)
            self.owned[taker].add(tp)
            self._known_moves.pop(giver, None)
            self._known_moves.pop(taker, None)

    def _even_out(self) -> bool:
        """Shorten one member that has two more than another, along the shortest chain; False when there is none."""
        settled: set[str] = set()  # nobody that can be reached from these is small enough for any start to come
        for start in sorted(self.members, key=lambda member_id: -len(self.owned[member_id])):
            if start in settled:
                continue
            came: dict[str, tuple[str, TopicPartition]] = {}
            queue = deque([start])
            reached = {start}
            while queue:
                giver = queue.popleft()
                for taker, (_, tp) in sorted(self._moves(giver).items(), key=lambda move: (move[1][0], move[0])):
                    if taker in reached or taker in settled:
                        continue
                    reached.add(taker)
                    came[taker] = (giver, tp)
                    if len(self.owned[taker]) <= len(self.owned[start]) - 2:
                        self._hand_over(self._path(came, taker, start))
                        return True
                    queue.append(taker)
            settled |= reached
        return False

    @staticmethod
    def _path(
        came: Mapping[str, tuple[str, TopicPartition]], end: str, start: str
    ) -> list[tuple[str, str, TopicPartition]]:
        path = []
        while end != start:
            giver, tp = came[end]
            path.append((giver, end, tp))
            end = giver
        return path

    def _take_back(self) -> bool:
        """Undo moves that evenness did not need: a circle of exchanges, or a chain between members that differ by one, that
        brings more partitions back than it takes away (Bellman and Ford); False when there is none."""
        moves = {giver: self._moves(giver) for giver in self.members}
        # A chain that ends one below its start swaps their sizes: an edge of no cost closes it to a circle.
        sizes = {member_id: len(partitions) for member_id, partitions in self.owned.items()}
        distance = dict.fromkeys(self.members, 0)
        came: dict[str, tuple[str, TopicPartition | None]] = {}
        last: str | None = None
        for _ in self.members:
            last = None
            for giver in self.members:
                edges: list[tuple[str, int, TopicPartition | None]] = [
                    (taker, cost, tp) for taker, (cost, tp) in moves[giver].items()
                ]
                edges += [(other, 0, None) for other in self.members if sizes[other] == sizes[giver] + 1]
                for taker, cost, tp in edges:
                    if distance[giver] + cost < distance[taker]:
                        distance[taker] = distance[giver] + cost
                        came[taker] = (giver, tp)
                        last = taker
            if last is None:
                return False
        return last is not None and self._undo_circle(came, last)

    def _undo_circle(self, came: Mapping[str, tuple[str, TopicPartition | None]], at: str) -> bool:
        for _ in self.members:
            at = came[at][0]
        path: list[tuple[str, str, TopicPartition]] = []
        end = at
        while True:
            giver, tp = came[end]
            if tp is not None:
                path.append((giver, end, tp))
            end = giver
            if end == at:
                break
        self._hand_over(path)
        return True
