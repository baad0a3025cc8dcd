"""Records of MirrorMaker 2's topics, byte by byte, and the offsets of groups that are in them."""

from __future__ import annotations

import pytest

from fastq.errors import DeserializationError
from fastq.metadata import TopicPartition
from fastq.mirror.mm2 import Checkpoint, Heartbeat, OffsetSync
from fastq.mirror.names import Names
from fastq.mirror.progress import Progress, Run
from fastq.mirror.translation import checkpoints, to_commit

SAMPLES = [
    (Heartbeat("A", "Bé", 0x0102030405060708), "0001 41 0003 42c3a9", "0000 0102030405060708"),
    (
        Checkpoint("g", "A.t", 3, 9, 1 << 40, "m"),
        "0001 67 0003 412e74 00000003",
        "0000 0000000000000009 0000010000000000 0001 6d",
    ),
    (OffsetSync("t", 258, 7, 8), "0001 74 00000102", "0000000000000007 0000000000000008"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "key", "value"), SAMPLES)
def test_the_bytes_are_those_of_the_java_classes(
    record: Heartbeat | Checkpoint | OffsetSync, key: str, value: str
) -> None:
    assert (record.key(), record.value()) == (bytes.fromhex(key), bytes.fromhex(value))
    assert type(record).decode(record.key(), record.value()) == record
    for wrong in (record.key()[:-1], record.key() + b"x", b"\xff\xff" + record.key(), b""):
        with pytest.raises(DeserializationError):
            type(record).decode(wrong, record.value())
    with pytest.raises(DeserializationError):
        type(record).decode(record.key(), record.value()[:-1])


def test_another_version_is_refused() -> None:
    with pytest.raises(DeserializationError, match="version 1"):
        Heartbeat.decode(Heartbeat("A", "B", 1).key(), b"\0\1" + b"\0" * 8)


def test_groups_go_on_at_what_they_have_not_read_and_never_back() -> None:
    names = Names("A", "B", ".", False)
    progress = {
        TopicPartition("t", 0): Progress(10, "id", (Run(5, 100, 5),)),
        TopicPartition("u", 0): Progress(4, "id"),
    }
    committed = {TopicPartition("t", 0): 7, TopicPartition("u", 0): 4, TopicPartition("v", 0): 1}
    found = checkpoints("g", committed, progress, names)
    assert found == [Checkpoint("g", "A.t", 0, 7, 102)]
    there = TopicPartition("A.t", 0)
    assert to_commit(found, {}) == to_commit(found, {there: 101}) == {there: 102}
    assert to_commit(found, {there: 102}) == to_commit(found, {there: 103}) == {}
