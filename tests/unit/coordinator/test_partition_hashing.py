"""The partition of a key, against values of Java's String.hashCode that its documentation and tools show."""

from __future__ import annotations

import pytest
from fastq_broker.coordinator.hashing import java_hash, partition_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("Hello World", -862545276),
        ("polygenelubricants", -2147483648),
        ("ä", 228),
        ("€", 8364),
        ("\U0001f600", 1772899),
    ],
)
def test_java_hash(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_the_hash_without_an_absolute_value_is_partition_0() -> None:
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("polygenelubricants", 7) == 0
    assert partition_of("Hello World", 50) == 862545276 % 50
