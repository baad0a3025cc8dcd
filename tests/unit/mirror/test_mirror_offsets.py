"""Where a source's partitions begin and end, of which some have no leader, or one that says nothing: the others go on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastq.errors import RequestTimedOut, TopicAuthorizationFailed
from fastq.metadata import TopicPartition
from fastq.mirror.config import parse_config
from fastq.mirror.lane import AGREE_S, RETRY_S, Lane, Work
from fastq.mirror.same_lane import SameLane, _At
from fastq.mirror.state import ASKED_ALONE, OFFSETS_ALONE_S, OFFSETS_S, offsets_of
from fastq.mirror.target_writer import Ask, Told
from fastq.mirror.topics import Mirrored

TPS = [TopicPartition("t", number) for number in range(8)]


class Source:
    """A consumer of a cluster whose partitions are led by nodes 0 and 1 in turn, but for those that nobody leads."""

    def __init__(self, silent: Collection[TopicPartition], leaderless: Collection[TopicPartition] = ()) -> None:
        self.silent, self.leaderless = silent, leaderless
        self.refused: Collection[TopicPartition] = ()
        self.asked: list[tuple[list[TopicPartition], float]] = []
        self.assigned: list[TopicPartition] = []
        self._fetcher = SimpleNamespace(metadata=SimpleNamespace(leader=self.leader, topic=lambda _: None))

    def leader(self, _topic: str, partition: int) -> Any:
        return None if TPS[partition] in self.leaderless else SimpleNamespace(node_id=partition % 2)

    def beginning_offsets(self, partitions: Sequence[TopicPartition], seconds: float) -> dict[TopicPartition, int]:
        self.asked.append((list(partitions), seconds))
        if set(partitions) & set(self.refused):
            raise TopicAuthorizationFailed("not this one")
        if set(partitions) & {*self.silent, *self.leaderless}:
            raise RequestTimedOut("asking for offsets did not finish")
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Sequence[TopicPartition], _: float) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 9)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned = list(partitions)


def test_a_node_that_says_nothing_costs_the_others_nothing_but_time() -> None:
    """Its partitions came first, three of them: the lane took it for the cluster, and copied nothing for as long as that lasted."""
    silent = TPS[0::2]
    source = Source(silent)
    found = offsets_of(cast("Any", source), [*silent, *TPS[1::2]])
    assert (list(found.ends), list(found.missing)) == (TPS[1::2], silent)
    assert source.asked[0] == ([*silent, *TPS[1::2]], OFFSETS_S)
    alone = [asked for asked, _ in source.asked if len(asked) == 1]
    assert len(alone) == ASKED_ALONE < len(silent), "what a node has is not waited for one after the other"


def test_partitions_without_a_leader_are_missing_and_those_of_their_topic_are_not() -> None:
    source = Source((), TPS[:5])
    found = offsets_of(cast("Any", source), TPS)
    assert (sorted(found.ends), sorted(found.missing)) == (TPS[5:], TPS[:5])


def test_a_node_that_answers_is_asked_for_each_of_its_own() -> None:
    source = Source(TPS[0:1])
    source.refused = TPS[2:7:2] + TPS[1:6:2]
    found = offsets_of(cast("Any", source), TPS)
    assert sorted(found.ends) == [TPS[7]] and sorted(found.missing) == TPS[:7]


@pytest.mark.parametrize("count", [1, 8])
def test_where_nobody_tells_it_is_the_cluster_unless_others_are_told(count: int) -> None:
    source = cast("Any", Source(TPS))
    with pytest.raises(RequestTimedOut):
        offsets_of(source, TPS[:count])
    found = offsets_of(source, TPS[:count], 0.5, False)
    assert (found.begins, found.ends, list(found.missing)) == ({}, {}, [*TPS[0:count:2], *TPS[1:count:2]])
    assert (TPS[:count], 0.5) in source.asked


def configured(offsets: str) -> Any:
    side = {"bootstrap.servers": "127.0.0.1:1"}
    document = {"source": {"alias": "A", **side}, "target": {"alias": "B", **side}}
    return parse_config({**document, "mirror": {"topics": ["t"], "offsets": offsets}})


class Target:
    def ask(self, asks: Mapping[TopicPartition, Ask]) -> dict[TopicPartition, Told]:
        return dict.fromkeys(asks, Told(0, 0, 0, None))


MIRRORED = Mirrored("A.t", "1" * 32, "2" * 32, "A/c/1")


def test_a_lane_that_copies_others_does_not_begin_anew_for_a_partition_without_a_leader() -> None:
    """Half a second later it was the only one to be placed: that ended the lane, again and again."""
    lane = SameLane(0, configured("same"), lambda: Work(0, {}), lambda _: True, clock=lambda: 100.0)
    lane._pulled, lane._tries, lane._epochs = {}, {}, {}
    lane._pulls = cast("Any", SimpleNamespace(held={}))
    lane._at = {TPS[1]: _At(MIRRORED, 5, 5, 0)}
    source, target = Source((), TPS[:1]), cast("Any", Target())
    lane._place(cast("Any", None), target, cast("Any", source), {TPS[0]: MIRRORED})
    assert source.asked[0] == ([TPS[0]], OFFSETS_S)
    assert (list(lane._at), lane.failed[TPS[0]].until) == ([TPS[1]], 100.0 + AGREE_S)
    source.asked.clear()
    lane._place(cast("Any", None), target, cast("Any", source), {TPS[0]: MIRRORED})
    assert {seconds for _, seconds in source.asked} == {OFFSETS_ALONE_S}, "the others wait for it"
    assert (list(lane._at), lane.failed[TPS[0]].until) == ([TPS[1]], 100.0 + RETRY_S)
    source.leaderless = ()
    lane._place(cast("Any", None), target, cast("Any", source), {TPS[0]: MIRRORED})
    assert sorted(lane._at) == TPS[:2] and lane._silent == set()
    with pytest.raises(RequestTimedOut):
        lane._at, source.leaderless = {}, TPS[:1]
        lane._place(cast("Any", None), target, cast("Any", source), {TPS[0]: MIRRORED})


def test_a_lane_that_produces_anew_leaves_a_partition_without_a_leader_out() -> None:
    lane = Lane(0, configured("translated"), lambda: Work(0, {}), lambda _: True, clock=lambda: 100.0)
    lane._targets = {TPS[1]: "A.t"}
    source = Source((), TPS[:1])
    for patience_s in (OFFSETS_S, OFFSETS_ALONE_S):
        source.asked.clear()
        assert lane._placed(cast("Any", source), {TPS[0]: MIRRORED}) == {}
        assert source.asked[0] == ([TPS[0]], patience_s)
        assert source.assigned == [TPS[1]]
        assert lane.failed[TPS[0]].until == 100.0 + RETRY_S
