"""Which partitions were taken away with records that no commit covers, to the record: a transaction is aborted for those alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fastq._native.heartbeat import Progress
from fastq.consumer.group.handed import Handed
from fastq.metadata import TopicPartition

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Reader:
    """An application that is given records of one partition, which holds markers, too."""

    def __init__(self) -> None:
        self.handed = Handed()
        self.handed.progress = self.progress = Progress()
        self.state: Any = SimpleNamespace(tp=TP, position=0)

    def poll(self, records: int, markers: int = 0) -> None:
        self.handed.next_asked()
        self.handed.taking(TP, (self.state.position, -1))
        self.state.position += records + markers
        if records:
            self.handed.took(TP)

    def ask_for_a_chunk(self) -> None:
        """The iterator has nothing any more, and is given another chunk."""
        self.handed.next_asked()
        self.handed.iterating(SimpleNamespace(topic=TP.topic, partition=TP.partition))  # type: ignore[arg-type]

    def iterate(self, records: int, markers: int = 0) -> None:
        self.state.position += records + markers
        for _ in range(records):
            self.progress.add()

    def commit(self, offset: int | None = None) -> None:
        self.handed.committing(self.state, self.state.position if offset is None else offset)

    def lose(self) -> bool:
        """Whether a transaction may be about something of it."""
        self.handed.taking_away(self.state)
        return TP in self.handed.taken


@pytest.mark.parametrize("way", ["poll", "iterate"])
def test_what_was_handed_out_and_not_committed_is_missed(way: str) -> None:
    reader = Reader()
    if way == "poll":
        reader.poll(5)
    else:
        reader.ask_for_a_chunk()
        reader.iterate(5)
    assert reader.lose()
    assert reader.handed.tell() == [TP]
    assert reader.handed.tell() == [], "who has gone on from there by seeks of its own could never commit"
    assert reader.handed.undone() == {TP: reader.state}
    assert reader.handed.undone() == {}


def test_what_was_committed_is_not() -> None:
    reader = Reader()
    reader.poll(5)
    reader.commit(4)
    reader.handed.choosing([OTHER])
    assert TP in reader.handed.uncommitted
    reader.commit()
    assert not reader.lose()


def test_markers_alone_are_nothing() -> None:
    reader = Reader()
    reader.poll(5)
    reader.commit()
    reader.poll(0, markers=1)
    reader.ask_for_a_chunk()
    reader.iterate(0, markers=1)
    assert not reader.lose()


def test_a_chunk_that_goes_on_behind_a_commit_is_missed() -> None:
    """Nobody is asked between two records of a chunk."""
    reader = Reader()
    reader.ask_for_a_chunk()
    reader.iterate(5)
    reader.commit()
    reader.iterate(1)
    assert reader.lose()


def test_a_chunk_that_ended_with_a_commit_is_not() -> None:
    reader = Reader()
    reader.ask_for_a_chunk()
    reader.iterate(5)
    reader.commit()
    reader.iterate(0, markers=1)
    reader.ask_for_a_chunk()
    assert not reader.lose()


def test_what_is_read_behind_a_seek_does_not_cover_what_was_read_before() -> None:
    reader = Reader()
    reader.ask_for_a_chunk()
    reader.iterate(5)
    reader.handed.forget(TP)
    reader.state.position = 2
    assert reader.lose()


def test_a_partition_that_came_back_and_was_committed_is_missed_all_the_same() -> None:
    """What was made of it the first time is in the transaction, too; where it was first begun is where it begins again."""
    reader, first = Reader(), None
    reader.poll(5)
    first = reader.state
    assert reader.lose()
    reader.state = SimpleNamespace(tp=TP, position=0)
    reader.poll(5)
    assert reader.lose()
    assert reader.handed.undone()[TP] is first
    reader.state = SimpleNamespace(tp=TP, position=0)
    assert not reader.lose(), "it was given nothing since"
