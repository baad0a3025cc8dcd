"""Images from batches: changes that are closed, transactions that are not, and snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from fastq_broker.controller.image import MetadataImage
from fastq_broker.controller.replay import Replayer
from fastq_broker.controller.snapshot import Batch

from fastq.protocol import messages as m


def batch(offset: int, *records: Any) -> Batch:
    return Batch(offset, offset + max(len(records), 1) - 1, 1, 1000 + offset, records, (), 100)


def topic(name: str) -> m.TopicRecord:
    return m.TopicRecord(name=name, topic_id=name.encode() * 16)


BEGIN, END, ABORT = m.BeginTransactionRecord(name="x"), m.EndTransactionRecord(), m.AbortTransactionRecord(reason=None)


def test_what_is_taken_is_given_once() -> None:
    replayer = Replayer(MetadataImage(cluster_id="c"))
    assert replayer.give() is None
    replayer.take([batch(0), batch(1, topic("a")), batch(2, topic("b"))])
    delta = replayer.give()
    assert delta is not None and {after.name for _, after in delta.changed_topics} == {"a", "b"}
    assert (replayer.image.offset, replayer.next_offset, replayer.image.cluster_id) == (2, 3, "c")
    replayer.take([batch(3)])
    assert replayer.give() is None and replayer.next_offset == 4, "control records change no image"


@pytest.mark.parametrize("ends", [END, ABORT, None])
def test_an_image_ends_between_changes(ends: Any) -> None:
    replayer = Replayer(MetadataImage())
    replayer.take([batch(0, topic("a"), BEGIN, topic("b"))])
    assert replayer.give() is None and replayer.in_transaction
    replayer.take([batch(3, topic("c"))])
    assert replayer.give() is None
    if ends is None:  # who had begun it is gone
        replayer.abandon()
    else:
        replayer.take([batch(4, ends)])
    delta = replayer.give()
    assert delta is not None and not replayer.in_transaction
    assert set(replayer.image.topics_by_name) == ({"a", "b", "c"} if ends is END else {"a"})


def test_a_snapshot_takes_the_place_of_all_before() -> None:
    replayer = Replayer(MetadataImage(cluster_id="c"))
    replayer.take([batch(0, topic("a"), topic("b"))])
    replayer.give()
    replayer.take([batch(2, BEGIN, topic("half"))])
    delta = replayer.begin_at([batch(0), batch(1, topic("b"), topic("new"))], 50, 7)
    assert [gone.name for gone in delta.deleted_topics] == ["a"]
    assert [after.name for _, after in delta.changed_topics] == ["new"]
    assert (replayer.next_offset, replayer.image.offset, replayer.image.epoch) == (50, 49, 7)
    assert not replayer.in_transaction and replayer.give() is None
    replayer.take([batch(50, topic("later"))])
    replayer.give()
    assert set(replayer.image.topics_by_name) == {"b", "new", "later"}
