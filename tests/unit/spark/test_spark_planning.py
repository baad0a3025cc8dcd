"""From offsets to tasks, against an oracle that is slow and obvious, and against Spark's own arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastq.metadata import TopicPartition
from fastq.spark.planning import OffsetRange, plan_ranges, rate_limit, split

TP = TopicPartition
A, B, C = TP("t", 0), TP("t", 1), TP("t", 2)

sizes = st.lists(st.integers(-3, 60), min_size=0, max_size=6)
starts = st.integers(0, 1000)


def limits(found: list[int], start: int) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    partitions = [TP("t", i) for i in range(len(found))]
    return dict.fromkeys(partitions, start), {tp: start + size for tp, size in zip(partitions, found, strict=True)}


def offsets_of(ranges: list[OffsetRange]) -> list[tuple[TopicPartition, int]]:
    return [(part.tp, offset) for part in ranges for offset in range(part.start, part.end)]


def parts_by_spark(sizes: list[int], wanted: int) -> list[int]:
    """How many parts each range gets, as Spark's calculator has it: share of the whole, rounded half up, small ones first.

    A share is worked out in double precision there (`getPartCount`), so one that is exactly a half may come out below it; from
    there on this is exact.
    """
    total = sum(sizes)

    def count(size: int, of: int, parts: int) -> int:
        share = Fraction(float(size) / float(of) * parts)
        return max(math.floor(share + Fraction(1, 2)), 1)

    small = [size for size in sizes if count(size, total, wanted) == 1]
    left = max(wanted - len(small), 1)
    return [1 if count(size, total, wanted) == 1 else count(size, total - sum(small), left) for size in sizes]


@given(sizes, starts, st.none() | st.integers(1, 20), st.none() | st.integers(1, 30))
def test_every_offset_is_planned_once_and_in_order(
    found: list[int], start: int, wanted: int | None, most: int | None
) -> None:
    begin, end = limits(found, start)
    ranges = plan_ranges(begin, end, min_partitions=wanted, max_records_per_partition=most)
    every = [(tp, offset) for tp in sorted(end) for offset in range(begin[tp], end[tp])]
    assert offsets_of(ranges) == every
    assert all(part.size > 0 for part in ranges)
    if most is not None:
        assert all(part.size <= most for part in ranges)


@given(sizes, st.integers(1, 20))
def test_min_partitions_as_spark_counts_them(found: list[int], wanted: int) -> None:
    ranges = plan_ranges(*limits(found, 0), min_partitions=wanted)
    positive = [size for size in found if size > 0]
    counts = Counter(part.tp for part in ranges)
    if len(positive) >= wanted:
        assert set(counts.values()) <= {1}
    else:
        # A range never has more parts than offsets.
        expected = [min(parts, size) for parts, size in zip(parts_by_spark(positive, wanted), positive, strict=True)]
        assert [counts[tp] for tp in sorted(counts)] == expected


@given(st.integers(0, 200), st.integers(1, 30))
def test_parts_differ_by_one_at_most(size: int, parts: int) -> None:
    found = list(split(OffsetRange(A, 7, 7 + size), parts))
    assert len(found) == min(parts, size)
    if found:
        widths = [part.size for part in found]
        assert max(widths) - min(widths) <= 1
        assert sum(widths) == size


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        # The cases of Spark's own test of its calculator.
        ([1], 4, [(A, 0, 1)]),
        ([5], 3, [(A, 0, 1), (A, 1, 3), (A, 3, 5)]),
        ([2, 3], 4, [(A, 0, 1), (A, 1, 2), (B, 0, 1), (B, 1, 3)]),
        ([100, 1], 4, [(A, 0, 33), (A, 33, 66), (A, 66, 100), (B, 0, 1)]),
        # 45 / 66 * 11 is 7.5, and 7.499999999999999 in double precision: Spark makes seven parts of it.
        (
            [21, 45],
            11,
            [(A, i, j) for i, j in pairwise([0, 5, 10, 15, 21])]
            + [(B, i, j) for i, j in pairwise([0, 6, 12, 18, 24, 31, 38, 45])],
        ),
    ],
)
def test_known_plans(found: list[int], wanted: int, expected: list[tuple[TopicPartition, int, int]]) -> None:
    assert [part[:3] for part in plan_ranges(*limits(found, 0), min_partitions=wanted)] == expected


def test_most_records_first_then_the_least_number_of_tasks() -> None:
    begin, end = {A: 0, B: 10}, {A: 10, B: 16}
    ranges = plan_ranges(begin, end, max_records_per_partition=4)
    assert [part[:3] for part in ranges] == [(A, 0, 3), (A, 3, 6), (A, 6, 10), (B, 10, 13), (B, 13, 16)]
    assert len(plan_ranges(begin, end, max_records_per_partition=4, min_partitions=5)) == 5
    more = plan_ranges(begin, end, max_records_per_partition=4, min_partitions=10)
    assert 9 <= len(more) <= 11


def test_far_more_tasks_than_offsets_are_wanted() -> None:
    assert [part[:3] for part in plan_ranges({A: 3}, {A: 6}, min_partitions=10**15)] == [
        (A, 3, 4),
        (A, 4, 5),
        (A, 5, 6),
    ]


def test_each_part_tells_of_which_log_it_is() -> None:
    ranges = plan_ranges(
        {A: 0, B: 0}, {A: 10, B: 2}, min_partitions=5, topic_ids={A.topic: bytes(range(16))}, epochs={A: 7}
    )
    assert {(part.topic_id, part.epoch) for part in ranges if part.tp == A} == {(bytes(range(16)), 7)}
    assert {part.epoch for part in ranges if part.tp == B} == {-1}


def test_nothing_to_read_is_no_task() -> None:
    assert plan_ranges({A: 5}, {A: 5}, min_partitions=3, max_records_per_partition=1) == []
    assert plan_ranges({A: 9}, {A: 5}) == []


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=6), st.integers(1, 10**12))
def test_a_limit_is_shared_in_proportion(found: list[int], most: int) -> None:
    begin, end = limits(found, 3)
    limited = rate_limit(most, begin, end)
    total = sum(found)
    assert limited.keys() == end.keys()
    for tp, size in zip(begin, found, strict=True):
        share = Fraction(most * size, total) if total else Fraction(0)
        expected = min(size, math.ceil(share) if share < 1 else math.floor(share))
        assert limited[tp] - begin[tp] == expected, "rounded down, but nobody starves"


def test_a_limit_does_not_move_what_has_nothing_new_or_went_back() -> None:
    assert rate_limit(10, {A: 5, B: 9, C: 0}, {A: 5, B: 4, C: 100}) == {A: 5, B: 4, C: 10}
