"""What a check says of a partition before it reads anything."""

from __future__ import annotations

from fastq.metadata import TopicPartition
from fastq.mirror.comparison import Far, compare
from fastq.mirror.config import parse_config
from fastq.mirror.lane import Lane, Work
from fastq.mirror.progress import Mark, Progress, Run
from fastq.mirror.topics import Mirrored


def test_what_was_copied_and_is_nobody_knows_where_is_not_called_the_same() -> None:
    """A target that has lost records was the same as its source, with nothing compared."""
    side = {"bootstrap.servers": "127.0.0.1:1"}
    document = {"source": {"alias": "A", **side}, "target": {"alias": "B", **side}, "mirror": {"topics": ["t"]}}
    config, tp, there = parse_config(document), TopicPartition("t", 0), TopicPartition("A.t", 0)
    lane = Lane(0, config, lambda: Work(0, {}), lambda _: True)
    before = Progress(10, "1", (Run(0, 0, 10),), None, "2", Mark(10, 0, 5))
    lost = lane._uncut(tp, before, Mirrored("A.t", "1", "2"))
    results = []
    for progress in (lost, Progress(10, "1", (), None, "2")):
        found = compare(config, tp, there, progress, lambda _: None, Far(), target_end=None, compacted=False)
        results.append((found.result, found.compared))
    assert results == [("unknown", 0), ("same", 0)], "of the other nothing was copied"
