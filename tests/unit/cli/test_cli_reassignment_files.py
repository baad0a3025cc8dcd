"""Kafka's JSON files about partitions, what is wrong in them, and how far a move is said to be."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from fastq import TopicPartition
from fastq.admin import PartitionReassignment, TopicPartitionReplica
from fastq.cli.output import UsageError
from fastq.cli.reassign import log_progress, progress
from fastq.cli.reassignment_files import (
    Placement,
    assignment_document,
    on_one_line,
    read_assignment,
    read_partitions,
    read_topics,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def written(path: Path, document: object) -> str:
    file = path / "file.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(file)


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = {T1: (3, 1), T0: (2,)}
    placed = {T1: Placement((3, 1), (None, None)), T0: Placement((2,), (None,))}
    assert read_assignment(written(tmp_path, assignment_document(moves))) == placed
    monkeypatch.setattr("sys.stdin", io.StringIO(on_one_line(moves)))
    assert read_assignment("-") == placed


def test_what_kafka_writes_is_read(tmp_path: Path) -> None:
    item = {"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/data/b"]}
    assert read_assignment(written(tmp_path, {"version": 1, "partitions": [item]})) == {
        T0: Placement((1, 2), (None, "/data/b"))
    }
    assert read_topics(
        written(tmp_path, {"topics": [{"topic": "b"}, {"topic": "a"}, {"topic": "b"}], "version": 1})
    ) == [
        "b",
        "a",
    ]
    assert read_partitions(written(tmp_path, {"partitions": [{"topic": "t", "partition": 1}]})) == [T1]


GOOD = {"topic": "t", "partition": 0, "replicas": [1, 2]}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "JSON is expected"),
        ([], "a JSON object is expected"),
        ({"version": 2, "partitions": [GOOD]}, "version 1 is expected, not 2"),
        ({"topics": []}, "a list \"partitions\" is expected; it has 'topics'"),
        ({"partitions": []}, 'a list "partitions" is expected'),
        ({"partitions": [GOOD, GOOD]}, r"partitions\[1\]: t-0 is there twice"),
        ({"partitions": [7]}, r"partitions\[0\]: .* is expected, not 7"),
        ({"partitions": [{**GOOD, "partition": "0"}]}, "is expected"),
        ({"partitions": [{**GOOD, "partition": True}]}, "is expected"),
        ({"partitions": [{**GOOD, "replicas": []}]}, "takes a list of node ids, not \\[\\]"),
        ({"partitions": [{**GOOD, "replicas": ["1"]}]}, "takes a list of node ids"),
        ({"partitions": [{**GOOD, "replicas": [1, 1]}]}, "names a node twice"),
        ({"partitions": [{**GOOD, "log_dirs": ["any"]}]}, "a directory for each of the 2 replicas"),
        ({"partitions": [{**GOOD, "log_dirs": ["any", "data"]}]}, "an absolute path or \"any\", not 'data'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, document: object, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        read_assignment(written(tmp_path, document))
    assert "file.json" in str(caught.value)


def test_how_far_a_partition_is() -> None:
    place = Placement((2, 3), (None, None))
    assert progress(place, (2, 3), None, {}) == ("done", "")
    assert progress(place, None, None, {}) == ("failed", "the partition is not there")
    assert progress(place, (1, 2), None, {}) == ("failed", "it has 1, 2, and does not move")
    assert progress(place, (3, 2), None, {})[0] == "failed", "the preferred leader is another one"
    moving = PartitionReassignment((2, 3, 1), (3,), (1,))
    assert progress(place, moving.replicas, moving, {1: 200, 3: 90}) == (
        "under way",
        "adding 3; removing 1; 45 % copied",
    )
    assert progress(place, moving.replicas, moving, {}) == ("under way", "adding 3; removing 1")
    elsewhere = PartitionReassignment((2, 4, 1), (4,), (1,))
    assert progress(place, elsewhere.replicas, elsewhere, {}) == ("failed", "it moves to 2, 4 instead")


def test_how_far_the_logs_of_a_partition_are() -> None:
    first, second = TopicPartitionReplica("t", 0, 1), TopicPartitionReplica("t", 0, 2)
    place = Placement((1, 2), (None, "/b"))
    assert log_progress(T0, Placement((1, 2), (None, None)), {}) == ("done", "")
    assert log_progress(T0, place, {first: [("/a", False)], second: [("/b", False)]}) == ("done", "")
    copied = {second: [("/a", False), ("/b", True)]}
    assert log_progress(T0, place, copied) == ("under way", "its log on node 2 is copied to /b")
    assert log_progress(T0, place, {second: [("/a", False)]}) == ("failed", "its log on node 2 is in /a, not in /b")
    assert log_progress(T0, place, {}) == ("failed", "its log on node 2 is in no directory that answers, not in /b")
