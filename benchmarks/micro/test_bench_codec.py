"""Micro benches of the native codec: checksums, hashing, record batches, compression, index search.

Each round does one unit of work; `extra_info` says how many bytes or records that is, so that rates can be worked out.
Memory is touched before the clock starts: the first write to a page of a virtual machine's memory costs ten times more.
"""

import random
import struct

import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from fastq._native.batch_validation import validate_batch
from fastq._native.crc32c import crc32c, crc32c_table
from fastq._native.hashing import partition_for_key
from fastq._native.index import lookup_offset
from fastq._native.records import build_batch, decode_records, stamp, stamp_log_append_time
from fastq.compression import Codec, compress, decompress

MIB = bytes(random.Random(1).randbytes(1 << 20))
ROWS = [(1_700_000_000_000 + number, None, b"%0100d" % number, None) for number in range(9000)]
BATCH = bytes(build_batch(ROWS))
LOG_LINES = b"".join(
    b'10.0.%d.%d - - [21/Nov/2026:10:%02d:%02d +0000] "GET /item/%d HTTP/1.1" 200 %d\n'
    % (i % 7, i % 251, i // 60 % 60, i % 60, i * 7919 % 10007, i * 104729 % 65536)
    for i in range(12_000)
)


@pytest.mark.parametrize("size", [100, 16 << 10, 1 << 20])
@pytest.mark.parametrize("function", [crc32c, crc32c_table])
def test_crc32c(benchmark, function, size):
    benchmark.extra_info["bytes"] = size
    assert benchmark(function, MIB[:size]) == crc32c(MIB[:size])


def test_partition_of_a_key(benchmark):
    assert 0 <= benchmark(partition_for_key, b"customer-1234567", 64) < 64


def test_build_batch(benchmark):
    benchmark.extra_info["records"] = len(ROWS)
    assert benchmark(build_batch, ROWS) == BATCH


def test_decode_records(benchmark):
    benchmark.extra_info["records"] = len(ROWS)
    assert len(benchmark(decode_records, BATCH)) == len(ROWS)


def test_validate_batch(benchmark):
    benchmark.extra_info.update(records=len(ROWS), bytes=len(BATCH))
    assert benchmark(validate_batch, BATCH, now_ms=1_700_000_000_000).record_count == len(ROWS)


def test_validate_batch_header_and_checksum_only(benchmark):
    packed = build_batch(ROWS, codec=Codec.ZSTD)
    benchmark.extra_info["bytes"] = len(packed)
    assert benchmark(validate_batch, packed).record_count == len(ROWS)


def test_stamp_offset(benchmark):
    benchmark(stamp, bytearray(BATCH), 0, 5, 1)


def test_stamp_log_append_time(benchmark):
    batch = bytearray(BATCH)
    times = iter(range(1 << 62))
    benchmark.extra_info["bytes"] = len(batch)
    benchmark(lambda: stamp_log_append_time(batch, 0, next(times)))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_compress(benchmark, codec):
    benchmark.extra_info["bytes"] = len(LOG_LINES)
    packed = benchmark(compress, codec, LOG_LINES)
    benchmark.extra_info["ratio"] = round(len(LOG_LINES) / len(packed), 2)
    assert len(packed) < len(LOG_LINES)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_decompress(benchmark, codec):
    benchmark.extra_info["bytes"] = len(LOG_LINES)
    assert benchmark(decompress, codec, compress(codec, LOG_LINES), len(LOG_LINES)) == LOG_LINES


def test_index_lookup(benchmark):
    index = b"".join(struct.pack(">ii", 40 * number, 4096 * number) for number in range(250_000))
    assert benchmark(lookup_offset, index, 7_654_321) == (7_654_320, 4096 * 191_358)


class TestPeer:
    """kafka-python's codec at the same work, for the ratio."""

    def test_build_batch(self, benchmark):
        def build():
            builder = DefaultRecordBatchBuilder(
                magic=2, compression_type=0, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1,
                batch_size=1 << 30,
            )  # fmt: skip
            for offset, (timestamp, key, value, _) in enumerate(ROWS):
                builder.append(offset, timestamp, key, value, [])
            return builder.build()

        benchmark.extra_info["records"] = len(ROWS)
        assert len(benchmark.pedantic(build, rounds=3)) == len(BATCH)

    def test_decode_records(self, benchmark):
        benchmark.extra_info["records"] = len(ROWS)
        assert len(benchmark.pedantic(lambda: list(DefaultRecordBatch(BATCH)), rounds=3)) == len(ROWS)
