"""CRC32C: both paths against published vectors and a bit-at-a-time version."""

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastq._native.crc32c import HARDWARE, crc32c, crc32c_table

PATHS = [pytest.param(crc32c, id="dispatched"), pytest.param(crc32c_table, id="table")]

# RFC 3720, appendix B.4, and the check value of the CRC catalogue.
VECTORS = [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (
        bytes.fromhex(
            "01c00000000000000000000000000000140000000000040000000014000000182800000000000000020000000000000000"
        )[:48],
        0xD9963A56,
    ),
]


def crc32c_bitwise(data, value=0):
    crc = value ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("crc", PATHS)
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_known_vectors(crc, data, expected):
    assert crc(data) == expected


@pytest.mark.parametrize("crc", PATHS)
def test_every_short_length_and_alignment(crc):
    data = random.Random(1).randbytes(700)
    for length in [*range(70), 503, 504, 505, 511, 512, 513, 671]:
        for start in range(9):
            piece = data[start : start + length]
            assert crc(memoryview(data)[start : start + length]) == crc32c_bitwise(piece)


@pytest.mark.parametrize(
    "length",
    [
        504,
        505,
        1008,
        1023,
        1024,
        1025,
        1279,
        1280,
        1535,
        6143,
        6144,
        6145,
        6648,
        12288,
        18432 + 504 + 8 + 3,
        65536,
        200_001,
    ],
)
def test_both_paths_agree_around_their_block_sizes(length):
    data = random.Random(length).randbytes(length)
    assert crc32c(data) == crc32c_table(data)
    assert crc32c(data, 0xDEADBEEF) == crc32c_table(data, 0xDEADBEEF)


@settings(max_examples=60)
@given(st.binary(max_size=400), st.binary(max_size=400))
def test_goes_on_from_a_checksum(first, second):
    whole = crc32c_bitwise(first + second)
    for crc in (crc32c, crc32c_table):
        assert crc(second, crc(first)) == whole


def test_takes_any_contiguous_buffer_and_nothing_else():
    assert crc32c(bytearray(b"123456789")) == crc32c(memoryview(b"_123456789_")[1:-1]) == 0xE3069283
    for wrong in ("text", 5, None):
        with pytest.raises(TypeError):
            crc32c(wrong)
    with pytest.raises(BufferError):
        crc32c(memoryview(b"abcdef")[::2])
    with pytest.raises(OverflowError):
        crc32c(b"", 1 << 32)


def test_threads_share_it():
    data = random.Random(3).randbytes(1 << 20)
    expected = crc32c_table(data)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(crc32c(data))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 4


def test_says_whether_the_instruction_is_used():
    assert isinstance(HARDWARE, bool)
