"""Records with something of everything, batches made by hand, and what decoding has to give."""

import struct

import record_oracle as oracle

from fastq._native.crc32c import crc32c_table

CODECS = [0, 1, 2, 3, 4]
NOW_MS = 1_700_000_000_000

SAMPLE = [
    (NOW_MS, b"key", b"value", [("h", b"1"), ("empty", b""), ("null", None)]),
    (NOW_MS + 5, None, None, None),
    (NOW_MS - 7, b"", b"x" * 300, []),
    (-1, b"k", bytearray(b"bytearray"), (("ключ", memoryview(b"view")),)),
]


def plain(records):
    return [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in records]


def expected_of(given_rows, base_offset=0):
    return [
        (
            base_offset + number,
            row[0],
            None if row[1] is None else bytes(row[1]),
            None if row[2] is None else bytes(row[2]),
            [(name, None if content is None else bytes(content)) for name, content in row[3] or ()],
        )
        for number, row in enumerate(given_rows)
    ]


def sealed(batch):
    """`batch` with length and CRC set right, so that what follows is judged by its content."""
    batch = bytearray(batch)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c_table(batch[21:]))
    return batch


def batch_of(payload, records, **changes):
    """A batch around hand-made record bytes; `changes` overwrite header fields by name."""
    fields = {
        "base_offset": 0, "length": 0, "leader_epoch": -1, "magic": 2, "crc": 0, "attributes": 0,
        "last_offset_delta": records - 1, "base_timestamp": NOW_MS, "max_timestamp": NOW_MS, "producer_id": -1,
        "producer_epoch": -1, "base_sequence": -1, "count": records,
    }  # fmt: skip
    fields.update(changes)
    return sealed(oracle.HEADER.pack(*fields.values()) + payload)
