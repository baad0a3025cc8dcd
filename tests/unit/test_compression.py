"""Codecs: round trips, the peers' codecs in both directions, and input that means harm."""

import gc
import random
import struct
import sys
import threading
import tracemalloc
import zlib

import cramjam
import kafka.codec
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from fastq._native.wire import DecodeError
from fastq.compression import LEVELS, Codec, codec_by_name, compress, decompress

PACKING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
LINES = b"".join(
    b"2026-11-21T10:%02d:%02d INFO request %d done\n" % (i // 60 % 60, i % 60, i * 7919) for i in range(20_000)
)
SAMPLES = {
    "empty": b"",
    "one byte": b"x",
    "lines": LINES,
    "noise": random.Random(1).randbytes(200_000),
    "zeros": bytes(3_000_000),
    "one snappy block": random.Random(2).randbytes(32 * 1024),
    "one more byte": random.Random(2).randbytes(32 * 1024 + 1),
}

PEER_PACK = {
    Codec.GZIP: kafka.codec.gzip_encode,
    Codec.SNAPPY: kafka.codec.snappy_encode,
    Codec.LZ4: kafka.codec.lz4_encode,
    Codec.ZSTD: kafka.codec.zstd_encode,
}
PEER_UNPACK = {
    Codec.GZIP: kafka.codec.gzip_decode,
    Codec.SNAPPY: kafka.codec.snappy_decode,
    Codec.LZ4: kafka.codec.lz4_decode,
    Codec.ZSTD: kafka.codec.zstd_decode,
}


def streamed_zstd(data):
    """A frame without a content size, of several blocks, as Java's writer makes it."""
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return (
        packer.compress(data[: len(data) // 2])
        + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        + packer.compress(data[len(data) // 2 :])
        + packer.flush()
    )


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES)
def test_round_trip_at_the_exact_limit_and_not_below(codec, data):
    packed = compress(codec, data)
    assert isinstance(packed, bytes)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, bytearray(packed), len(data) + 1000) == data
    if data:
        for limit in (len(data) - 1, len(data) // 2, 0):
            with pytest.raises(DecodeError, match="unpacks to"):
                decompress(codec, packed, limit)


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("data", [LINES, SAMPLES["noise"], b"x"], ids=["lines", "noise", "one byte"])
def test_the_peers_codecs(codec, data):
    assert PEER_UNPACK[codec](compress(codec, data)) == data
    assert decompress(codec, PEER_PACK[codec](data), len(data)) == data


@settings(max_examples=60)
@given(st.sampled_from(Codec), st.binary(max_size=2000), st.binary(max_size=50))
def test_any_bytes(codec, data, repeated):
    data += repeated * 20
    assert decompress(codec, compress(codec, memoryview(data)), len(data)) == data


@pytest.mark.parametrize("codec", PACKING)
def test_concatenated_streams_are_one(codec):
    packed = compress(codec, LINES) + compress(codec, b"") + compress(codec, b"tail")
    assert decompress(codec, packed, len(LINES) + 4) == LINES + b"tail"
    with pytest.raises(DecodeError, match="unpacks to"):
        decompress(codec, packed, len(LINES) + 3)


@pytest.mark.parametrize("codec", PACKING)
def test_more_than_one_step_of_input(codec):
    data = random.Random(4).randbytes(9 << 20)
    packed = compress(codec, data)
    assert decompress(codec, packed + compress(codec, LINES), len(data) + len(LINES)) == data + LINES
    with pytest.raises(DecodeError):
        decompress(codec, packed[:-1], len(data))


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("data", [b"a", LINES[:5000], LINES], ids=["one byte", "short", "long"])
def test_cut_off_and_followed_by_rubbish(codec, data):
    packed = compress(codec, data)
    for cut in {1, 2, 3, 4, 5, len(packed) // 2, len(packed) - 1, len(packed)}:
        with pytest.raises(DecodeError):
            decompress(codec, packed[: len(packed) - cut], 1 << 30)
    with pytest.raises(DecodeError):
        decompress(codec, packed + b"\x01\x02\x03", 1 << 30)


@pytest.mark.parametrize("codec", PACKING)
def test_random_damage_never_gets_further_than_an_error(codec):
    random_ = random.Random(int(codec))
    packed = compress(codec, LINES[:3000]) + compress(codec, LINES[:50])
    refused = 0
    for _ in range(1500):
        damaged = bytearray(packed)
        for _ in range(random_.randrange(1, 4)):
            damaged[random_.randrange(len(damaged))] = random_.randrange(256)
        try:
            assert len(decompress(codec, damaged, 5000)) <= 5000
        except DecodeError:
            refused += 1
    assert refused > 500


# --- levels, names, codecs


@pytest.mark.parametrize("codec", LEVELS)
def test_levels(codec):
    lowest, highest = LEVELS[codec]
    sizes = []
    for level in (max(lowest, -5), {Codec.ZSTD: 12, Codec.LZ4: 8}.get(codec, 9)):
        packed = compress(codec, LINES, level)
        assert decompress(codec, packed, len(LINES)) == LINES
        sizes.append(len(packed))
    assert sizes[0] > sizes[1]
    assert decompress(codec, compress(codec, LINES[:1000], highest), 1000) == LINES[:1000]
    for level in (lowest - 1, highest + 1):
        with pytest.raises(ValueError, match=rf"{codec.name.lower()} level .*{lowest} to {highest}"):
            compress(codec, b"", level)


def test_codecs_without_levels_take_no_notice():
    assert compress(Codec.SNAPPY, LINES, 7) == compress(Codec.SNAPPY, LINES)
    assert compress(Codec.NONE, LINES, 7) == LINES


def test_names():
    assert [codec_by_name(name) for name in ("none", "gzip", "snappy", "lz4", "zstd")] == list(Codec)
    for wrong in ("", "GZIP", "brotli", "uncompressed"):
        with pytest.raises(ValueError, match="unknown"):
            codec_by_name(wrong)


@pytest.mark.parametrize("codec", [-1, 5, 6, 7, 255])
def test_unknown_codecs(codec):
    with pytest.raises(DecodeError, match="codec"):
        decompress(codec, b"", 10)
    with pytest.raises(ValueError, match="unknown"):
        compress(codec, b"")


# --- the forms that Kafka's clients use


def test_snappy_is_written_as_kafka_does():
    packed = compress(Codec.SNAPPY, bytes(70_000))
    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    sizes, position = [], 16
    while position < len(packed):
        (size,) = struct.unpack_from(">i", packed, position)
        sizes.append(cramjam.snappy.decompress_raw_len(packed[position + 4 : position + 4 + size]))
        position += 4 + size
    assert sizes == [32768, 32768, 70_000 - 65536]


def test_raw_snappy_is_read():
    raw = bytes(cramjam.snappy.compress_raw(LINES))
    assert decompress(Codec.SNAPPY, raw, len(LINES)) == LINES
    with pytest.raises(DecodeError, match="unpacks to"):
        decompress(Codec.SNAPPY, raw, len(LINES) - 1)


def test_lz4_is_written_as_kafka_does():
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, LINES))
    assert info["block_size"] == 64 * 1024
    assert not info["block_linked"]
    assert info["content_size"] == 0


def test_lz4_level_nine_is_kafkas_default_and_fast():
    fast = lz4.frame.compress(
        LINES, compression_level=0, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
    )
    assert compress(Codec.LZ4, LINES) == compress(Codec.LZ4, LINES, 9) == fast
    sizes = {level: len(compress(Codec.LZ4, LINES, level)) for level in (8, 10, 17)}
    assert max(sizes.values()) < len(fast)


@pytest.mark.parametrize("store_size", [False, True])
@pytest.mark.parametrize("block_linked", [False, True])
@pytest.mark.parametrize("block_size", [lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB])
def test_lz4_of_other_writers(block_size, block_linked, store_size):
    data = SAMPLES["zeros"] + SAMPLES["noise"]
    packed = lz4.frame.compress(
        data, block_size=block_size, block_linked=block_linked, store_size=store_size, content_checksum=True
    )
    assert decompress(Codec.LZ4, packed, len(data)) == data
    with pytest.raises(DecodeError):
        decompress(Codec.LZ4, packed, len(data) - 1)


def test_zstd_without_a_content_size():
    for data in (LINES, b"ab", SAMPLES["zeros"], SAMPLES["noise"]):
        packed = streamed_zstd(data)
        assert decompress(Codec.ZSTD, packed, len(data)) == data
        with pytest.raises(DecodeError, match="unpacks to"):
            decompress(Codec.ZSTD, packed, len(data) - 1)


def test_zstd_checksums_and_skippable_frames():
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(LINES)
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"12345"
    assert decompress(Codec.ZSTD, skippable + packed + skippable, len(LINES)) == LINES
    damaged = packed[:-1] + bytes([packed[-1] ^ 1])
    with pytest.raises(DecodeError):
        decompress(Codec.ZSTD, damaged, len(LINES))
    with pytest.raises(DecodeError, match="skippable"):
        decompress(Codec.ZSTD, packed + skippable[:-1], len(LINES))


# --- bombs


def zstd_bomb(blocks):
    """RLE blocks: four bytes that unpack to 128 KiB each; neither content size nor checksum."""
    block = lambda last: struct.pack("<I", 128 * 1024 << 3 | 1 << 1 | last)[:3] + b"\0"  # noqa: E731
    return b"\x28\xb5\x2f\xfd\x00\x60" + block(0) * (blocks - 1) + block(1)


def zstd_liar(claimed):
    """A frame of one raw block of 3 bytes which claims to unpack to `claimed`."""
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", claimed) + struct.pack("<I", 3 << 3 | 1)[:3] + b"abc"


def snappy_liar(claimed):
    size = bytearray()
    while claimed >= 0x80:
        size.append(claimed & 0x7F | 0x80)
        claimed >>= 7
    return bytes([*size, claimed]) + b"\x08abc"


def lz4_liar(claimed):
    """A frame that claims a content size it does not have, its descriptor's checksum found by trying."""
    liar = bytearray(lz4.frame.compress(b"abc" * 100, store_size=True))
    struct.pack_into("<Q", liar, 6, claimed)
    for checksum in range(256):
        liar[14] = checksum
        try:
            if lz4.frame.get_frame_info(bytes(liar))["content_size"] == claimed:
                return bytes(liar)
        except RuntimeError:
            pass
    raise AssertionError("no checksum fits")


BOMBS = {
    "gzip": (Codec.GZIP, compress(Codec.GZIP, bytes(100 << 20))),
    "gzip members": (Codec.GZIP, compress(Codec.GZIP, bytes(1 << 20)) * 100),
    "lz4": (Codec.LZ4, compress(Codec.LZ4, bytes(100 << 20))),
    "lz4 of large blocks": (Codec.LZ4, lz4.frame.compress(bytes(100 << 20), block_size=lz4.frame.BLOCKSIZE_MAX4MB)),
    "lz4 liar": (Codec.LZ4, lz4_liar(1 << 40)),
    "zstd": (Codec.ZSTD, compress(Codec.ZSTD, bytes(100 << 20))),
    "zstd blocks": (Codec.ZSTD, zstd_bomb(800)),
    "zstd frames": (Codec.ZSTD, compress(Codec.ZSTD, bytes(1 << 20)) * 100),
    "zstd liar": (Codec.ZSTD, zstd_liar(1 << 40)),
    "zstd small liar": (Codec.ZSTD, zstd_liar(900_000)),
    "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, bytes(100 << 20))),
    "snappy raw": (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(100 << 20)))),
    "snappy liar": (Codec.SNAPPY, snappy_liar(2**32 - 1)),
    "snappy small liar": (Codec.SNAPPY, snappy_liar(900_000)),
    "snappy framed liar": (
        Codec.SNAPPY,
        compress(Codec.SNAPPY, b"") + struct.pack(">i", len(snappy_liar(2**31))) + snappy_liar(2**31),
    ),
    "snappy negative block": (Codec.SNAPPY, compress(Codec.SNAPPY, b"") + struct.pack(">i", -2) + b"abc"),
}


def peak_resident_growth(call):
    """How far `call` moves the process's high-water mark, in bytes; 0 where the system does not tell."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # reset the mark
    except OSError:
        call()
        return 0

    def field(name):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

    before = field("VmRSS:")
    call()
    return max(0, field("VmHWM:") - before)


@pytest.mark.parametrize(("codec", "packed"), BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_without_the_memory_they_ask_for(codec, packed):
    limit = 1_000_000
    decompress(codec, compress(codec, bytes(limit)), limit)  # contexts and arenas are made before measuring
    gc.collect()

    def refuse():
        with pytest.raises(DecodeError):
            decompress(codec, packed, limit)

    tracemalloc.start()
    try:
        grown = peak_resident_growth(refuse)
        python_peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # One LZ4 block of 4 MiB is unpacked before its size is known, and its frame's buffer holds another.
    allowed = limit + (12 << 20 if "lz4" in Codec(codec).name.lower() else 4 << 20)
    assert grown <= allowed
    assert python_peak <= allowed


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY])
def test_very_many_empty_members_are_read_in_linear_time(codec):
    member = compress(codec, b"")
    assert decompress(codec, member * (300_000 // len(member)), 0) == b""


# --- threads


@pytest.mark.parametrize("codec", PACKING)
def test_threads_do_not_disturb_each_other(codec):
    wrong = []
    interval = sys.getswitchinterval()

    def work(seed):
        random_ = random.Random(seed)
        for _ in range(30):
            data = random_.randbytes(random_.randrange(5000)) * random_.randrange(1, 5)
            level = None if codec == Codec.SNAPPY else random_.randrange(1, 6)
            if decompress(codec, compress(codec, data, level), len(data)) != data:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_errors_carry_the_librarys_word():
    with pytest.raises(DecodeError) as caught:
        decompress(Codec.GZIP, b"\x1f\x8b" + bytes(20), 10)
    assert isinstance(caught.value.__cause__, zlib.error)
    assert "gzip" in str(caught.value)
