"""The map of a round of compaction: its hash against the published vectors, itself against a dict."""

from __future__ import annotations

import random
import struct

import pytest

from fastq._native.offset_map import OffsetMap, siphash128

KEY = bytes(range(16))
MASK = (1 << 64) - 1


def slow_siphash128(key: bytes, data: bytes) -> bytes:
    """SipHash-2-4 with 128 bits, as the paper and the reference describe it."""

    def rotate(x: int, b: int) -> int:
        return (x << b | x >> (64 - b)) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[2] = (v[2] + v[3]) & MASK
            v[1] = rotate(v[1], 13) ^ v[0]
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[1]) & MASK
            v[0] = (v[0] + v[3]) & MASK
            v[1] = rotate(v[1], 17) ^ v[2]
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = rotate(v[2], 32)

    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    padded = data + bytes(-len(data) % 8 if len(data) % 8 else 8)
    padded = padded[:-1] + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


@pytest.mark.parametrize(
    ("size", "digest"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),  # of the reference's vectors_sip128, as OpenSSL computes it too
        (1, "da87c1d86b99af44347659119b22fc45"),
        (10, "00110dc378146956c95447d3f3d0fbba"),
    ],
)
def test_the_hash_is_the_published_one(size: int, digest: str) -> None:
    assert siphash128(KEY, bytes(range(size))).hex() == digest


def test_the_hash_is_the_slow_one_for_every_length() -> None:
    source = random.Random(5)
    for size in [*range(70), 255, 256, 1000]:
        key, data = source.randbytes(16), source.randbytes(size)
        assert siphash128(key, data) == slow_siphash128(key, data), size
    with pytest.raises(ValueError, match="16 bytes"):
        siphash128(b"short", b"")


def test_each_bit_of_a_key_changes_half_of_the_hash() -> None:
    source = random.Random(6)
    data = bytearray(source.randbytes(16))
    before = int.from_bytes(siphash128(KEY, data), "little")
    for bit in range(128):
        data[bit // 8] ^= 1 << bit % 8
        changed = (before ^ int.from_bytes(siphash128(KEY, data), "little")).bit_count()
        assert 30 < changed < 98  # 64 with a deviation of 5.7
        data[bit // 8] ^= 1 << bit % 8


def test_the_map_is_a_dict(seed: int = 7) -> None:
    source = random.Random(seed)
    offsets, expected = OffsetMap(24 * 40_000), {}
    for offset in range(60_000):
        key = b"%d" % source.randrange(20_000)
        assert offsets.put(key, offset)
        expected[key] = offset
    assert len(offsets) == len(expected)
    assert all(offsets.get(key) == offset for key, offset in expected.items())
    assert offsets.get(b"another") == -1
    assert offsets.latest_offset == 59_999


@pytest.mark.parametrize("load_factor", [0.25, 0.9, 1.0])
@pytest.mark.parametrize("slots", [2, 3, 100, 4096, 5000, 100_000])
def test_the_map_stays_in_its_memory(slots: int, load_factor: float) -> None:
    offsets = OffsetMap(24 * slots, load_factor)
    stored = 0
    while offsets.put(b"%d" % stored, stored):
        stored += 1
        assert offsets.capacity <= slots
    assert stored == len(offsets) == min(slots - 1, max(1, int(slots * load_factor)))
    assert offsets.latest_offset == stored - 1
    assert all(offsets.get(b"%d" % number) == number for number in range(stored))
    assert offsets.put(b"0", stored + 5), "a key that is there needs no room"
    assert not offsets.put(b"new", stored + 6)


@pytest.mark.parametrize(("memory", "load"), [(0, 0.9), (47, 0.9), (1000, 0.0), (1000, 1.5)])
def test_a_map_that_could_hold_nothing_is_refused(memory: int, load: float) -> None:
    with pytest.raises(ValueError):
        OffsetMap(memory, load)
