"""Index search against a linear scan, over bytes, padded files and maps."""

import bisect
import mmap
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastq._native.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    lookup_offset,
    lookup_timestamp,
    offset_entry,
    time_entry,
)

INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(-1, 2**63 - 1)


def pack_offsets(entries):
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def pack_times(entries):
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


def last_at_or_below(entries, target):
    below = [entry for entry in entries if entry[0] <= target]
    return below[-1] if below else None


@settings(max_examples=100)
@given(st.lists(INT32, unique=True).map(sorted), INT32, st.integers(0, 5))
def test_offset_lookup_is_the_linear_scan(offsets, target, padding):
    entries = [(offset, number * 4096) for number, offset in enumerate(offsets)]
    data = pack_offsets(entries) + bytes(OFFSET_ENTRY_BYTES * padding)
    for probe in {target, *offsets[:3], *(offset - 1 for offset in offsets[:3])}:
        assert lookup_offset(data, probe, len(entries)) == last_at_or_below(entries, probe)


@settings(max_examples=100)
@given(st.lists(INT64).map(sorted), INT64, st.integers(0, 5))
def test_timestamp_lookup_is_the_linear_scan(times, target, padding):
    entries = [(time, number) for number, time in enumerate(times)]
    data = pack_times(entries) + bytes(TIME_ENTRY_BYTES * padding)
    for probe in {target, *times[:3]}:
        assert lookup_timestamp(data, probe, len(entries)) == last_at_or_below(entries, probe)


def test_search_in_a_mapped_preallocated_file(tmp_path):
    path = tmp_path / "00000000000000000000.index"
    offsets = sorted(random.Random(5).sample(range(1, 10**9), 5000))
    path.write_bytes(pack_offsets((offset, offset // 2) for offset in offsets) + bytes(8 * 3000))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for target in random.Random(6).sample(range(1, 10**9), 200):
            at = bisect.bisect_right(offsets, target) - 1
            expected = (offsets[at], offsets[at] // 2) if at >= 0 else None
            assert lookup_offset(mapped, target, 5000) == expected
        assert lookup_offset(mapped, 2**62, 5000) == (offsets[-1], offsets[-1] // 2)


def test_empty_and_below_the_first():
    assert lookup_offset(b"", 5) is None
    assert lookup_timestamp(b"", 5) is None
    assert lookup_offset(pack_offsets([(10, 1)]), 9) is None
    assert lookup_timestamp(pack_times([(10, 1)]), 9) is None
    assert lookup_offset(bytes(80), 9, 0) is None


def test_entries_by_number():
    offsets, times = pack_offsets([(1, 2), (3, 4)]), pack_times([(5, 6), (7, 8)])
    assert [offset_entry(offsets, 0), offset_entry(offsets, 1)] == [(1, 2), (3, 4)]
    assert [time_entry(times, 0), time_entry(times, 1)] == [(5, 6), (7, 8)]
    for number in (-1, 2):
        with pytest.raises(IndexError):
            offset_entry(offsets, number)
        with pytest.raises(IndexError):
            time_entry(times, number)
    with pytest.raises(IndexError):
        offset_entry(offsets, 1, 1)


def test_a_torn_last_entry_is_not_read():
    assert lookup_offset(pack_offsets([(1, 2), (3, 4)])[:-1], 100) == (1, 2)
    assert lookup_timestamp(pack_times([(1, 2), (3, 4)])[:-1], 100) == (1, 2)


@pytest.mark.parametrize("count", [-1, 3])
def test_a_count_beyond_the_buffer_is_refused(count):
    with pytest.raises(ValueError, match="entry count"):
        lookup_offset(bytes(16), 1, count)
    with pytest.raises(ValueError, match="entry count"):
        lookup_timestamp(bytes(24), 1, count)
