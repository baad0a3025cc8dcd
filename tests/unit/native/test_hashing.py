"""Murmur2 against the vectors of Kafka's own test, a slow version, and the peers' partitioners."""

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from fastq._native.hashing import murmur2, partition_for_key

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def murmur2_slow(data):
    """Step by step, in numbers without end, masked where Java's would wrap."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) - len(data) % 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@pytest.mark.parametrize(("data", "signed"), VECTORS.items())
def test_kafkas_vectors(data, signed):
    assert murmur2(data) == signed & 0xFFFFFFFF


@settings(max_examples=200)
@given(st.binary(max_size=64), st.integers(1, 1000))
def test_equals_the_slow_version_and_the_peers(data, count):
    expected = murmur2_slow(data)
    assert murmur2(data) == expected
    assert kafka_python_murmur2(data) & 0xFFFFFFFF == expected
    assert aiokafka_murmur2(data) & 0xFFFFFFFF == expected
    assert partition_for_key(data, count) == (expected & 0x7FFFFFFF) % count


def test_partition_of_other_buffers_and_bad_counts():
    assert partition_for_key(bytearray(b"abc"), 7) == partition_for_key(memoryview(b"abc"), 7) == 479470107 % 7
    for count in (0, -1):
        with pytest.raises(ValueError, match="partition_count"):
            partition_for_key(b"abc", count)
    with pytest.raises(TypeError):
        partition_for_key("abc", 7)
