"""How far a partition is mirrored: where it goes on, and what offsets are in the target."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from fastq.metadata import TopicPartition
from fastq.mirror.config import parse_config
from fastq.mirror.lane import FOREVER_S, Lane, Work
from fastq.mirror.progress import (
    RUNS_MAX,
    Mark,
    MirrorGap,
    Progress,
    Run,
    Start,
    StateError,
    kept,
    merged,
    place_to_start,
)
from fastq.mirror.topics import Mirrored


def test_a_translation_never_skips_a_record_and_is_exact_where_the_runs_are_kept() -> None:
    rng = random.Random(7)
    progress, where, source, target = Progress(0, "id"), {}, 0, 0
    for _ in range(2000):
        source += rng.choice([0, 0, 3])  # what the source has no record at
        target += rng.choice([1, 2])  # markers of the target
        count = rng.randrange(1, 40)
        where.update({source + i: target + i for i in range(count)})
        progress = progress.advanced(source + count, [Run(source, target, count)])
        source, target = source + count, target + count
        assert len(progress.runs) <= RUNS_MAX
    inexact = 0
    for offset in range(source):
        found = progress.translated(offset)
        first = next((where[o] for o in range(offset, source) if o in where), target)
        assert found is not None and found <= first
        inexact += found < first
    assert progress.translated(source) == target
    near = [offset for offset in range(source - 20, source) if offset in where]
    assert all(progress.translated(offset) == where[offset] for offset in near)
    # What is passed over grows with the age: the first half of the offsets may be far off, the last hundredth is not.
    spans = [b.source - a.source for a, b in zip(progress.runs[1:], progress.runs[2:], strict=False)]
    assert spans[-1] < max(spans) / 50


def test_runs_that_go_on_from_one_another_are_one() -> None:
    assert merged([Run(0, 5, 3), Run(3, 8, 2), Run(6, 10, 1)]) == [Run(0, 5, 5), Run(6, 10, 1)]
    assert kept([Run(i, i, 1) for i in range(RUNS_MAX)]) == tuple(Run(i, i, 1) for i in range(RUNS_MAX))


def test_nothing_is_known_before_the_first_run() -> None:
    assert Progress(9, "id", (Run(5, 0, 4),)).translated(4) is None
    assert Progress(9, "id").translated(9) is None


def test_progress_is_read_as_it_was_written() -> None:
    progress = Progress(70, "ab", (Run(1, 2, 3), Run(50, 60, 20)), (4, 9))
    assert Progress.from_json(progress.to_json()) == progress
    for wrong in (b"", b"[]", b'{"next": 1}', b'{"next":1,"topic_id":"a","runs":[[1]]}', b"\xff"):
        with pytest.raises(StateError, match="no progress of a partition"):
            Progress.from_json(wrong)


def test_a_partition_goes_on_where_it_was() -> None:
    assert place_to_start(None, "id", 3, 9, start="earliest", on_gap="stop") == Start(3)
    assert place_to_start(None, "id", 3, 9, start="latest", on_gap="stop") == Start(9)
    for at in (3, 5, 9):
        assert place_to_start(Progress(at, "id"), "id", 3, 9, start="latest", on_gap="stop") == Start(at)


@pytest.mark.parametrize(
    ("progress", "offset", "gap", "words"),
    [
        (Progress(2, "id"), 3, (2, 3), "begins at offset 3"),
        (Progress(12, "id"), 9, (9, 12), "truncated"),
        (Progress(5, "old"), 3, (5, 5), "made anew"),
    ],
)
def test_records_that_are_gone_stop_a_partition_or_are_passed_over_and_said(
    progress: Progress, offset: int, gap: tuple[int, int], words: str
) -> None:
    with pytest.raises(MirrorGap, match=words):
        place_to_start(progress, "id", 3, 9, start="earliest", on_gap="stop")
    start = place_to_start(progress, "id", 3, 9, start="earliest", on_gap="continue")
    assert (start.offset, start.gap) == (offset, gap)
    assert words in start.why


def test_a_topic_of_the_target_that_is_another_has_nothing_of_what_was_copied() -> None:
    before = Progress(30, "id", (Run(0, 0, 30),), None, "there")
    assert Progress.from_json(before.to_json()) == before
    for same in ("there", "", "0" * 32):  # a cluster without ids tells nothing
        assert place_to_start(before, "id", 3, 40, start="earliest", on_gap="stop", target_id=same) == Start(30)
    start = place_to_start(before, "id", 3, 40, start="earliest", on_gap="stop", target_id="new")
    assert (start.offset, start.gap) == (3, None) and "made anew" in start.why
    assert Progress.begun(before, start, "id", "new") == Progress(3, "id", (), None, "new")
    # Who did not want the old records then does not get them now.
    start = place_to_start(before, "id", 3, 40, start="latest", on_gap="stop", target_id="new")
    assert Progress.begun(before, start, "id", "new") == Progress(30, "id", (), None, "new")


def test_runs_of_records_that_the_source_has_others_for_are_forgotten() -> None:
    before = Progress(30, "id", (Run(0, 0, 10), Run(15, 20, 15)))
    assert Progress.begun(before, Start(20, (20, 30)), "id").runs == (Run(0, 0, 10), Run(15, 20, 5))
    assert Progress.begun(before, Start(15, (15, 30)), "id").runs == (Run(0, 0, 10),)
    assert Progress.begun(before, Start(0, (30, 30)), "other").runs == ()


def test_a_mark_is_kept_and_what_the_source_has_lost_is_gone_back_to_or_stops() -> None:
    mark = Mark(10, 3, 1_700_000_000_000)
    progress = Progress(12, "id", (Run(0, 0, 10),), None, "there", mark)
    assert Progress.from_json(progress.to_json()) == progress
    assert Progress.from_json(b'{"next":1,"topic_id":"id","runs":[]}').mark is None, "as it was written before"
    assert progress.advanced(15, ()).mark == mark, "no record has come"
    assert progress.advanced(15, (), Mark(15, 4)).mark == Mark(15, 4)
    options: Any = {"start": "earliest", "target_id": "there"}
    assert place_to_start(progress, "id", 0, 40, on_gap="stop", **options) == Start(12)
    with pytest.raises(MirrorGap, match="lost what it had, from offset 6 on"):
        place_to_start(progress, "id", 0, 40, on_gap="stop", lost=6, **options)
    start = place_to_start(progress, "id", 0, 40, on_gap="continue", lost=6, **options)
    assert (start.offset, start.gap) == (6, (6, 12))
    begun = Progress.begun(progress, start, "id", "there")
    assert (begun.next_offset, begun.runs, begun.mark) == (6, (Run(0, 0, 6),), None)


def test_a_partition_that_was_given_up_is_looked_at_again_when_it_is_another_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of which the lane hears in one step, where a topic of the target is deleted and made anew between two looks."""
    tp, side = TopicPartition("t", 0), {"bootstrap.servers": "127.0.0.1:1"}
    document = {"source": {"alias": "A", **side}, "target": {"alias": "B", **side}, "mirror": {"topics": ["t"]}}
    lane = Lane(0, parse_config(document), lambda: Work(0, {}), lambda _: True)
    placed: list[Mapping[TopicPartition, Mirrored]] = []
    monkeypatch.setattr(lane, "_placed", lambda _, fresh: placed.append(fresh) or {})

    class Assigned:
        def assign(self, _: object) -> None: ...

    old, new = (Mirrored("A.t", "1" * 32, number * 32, "") for number in "23")
    consumer: Any = Assigned()
    lane._follow(consumer, Work(1, {tp: old}))
    lane._leave_out(tp, MirrorGap("it is gone"), FOREVER_S)
    lane._follow(consumer, Work(2, {tp: old}))
    assert placed == [{tp: old}] and tp in lane.failed
    lane._follow(consumer, Work(3, {tp: new}))
    assert placed == [{tp: old}, {tp: new}] and lane.failed == {}
