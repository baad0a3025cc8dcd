from collections.abc import Iterator
from typing import Any, final

from typing_extensions import Buffer, Self

from fastq._native.batch_codec import (
    CONTROL_ABORT as CONTROL_ABORT,
)
from fastq._native.batch_codec import (
    CONTROL_COMMIT as CONTROL_COMMIT,
)
from fastq._native.batch_codec import (
    CONTROL_KRAFT_VERSION as CONTROL_KRAFT_VERSION,
)
from fastq._native.batch_codec import (
    CONTROL_KRAFT_VOTERS as CONTROL_KRAFT_VOTERS,
)
from fastq._native.batch_codec import (
    CONTROL_LEADER_CHANGE as CONTROL_LEADER_CHANGE,
)
from fastq._native.batch_codec import (
    CONTROL_SNAPSHOT_FOOTER as CONTROL_SNAPSHOT_FOOTER,
)
from fastq._native.batch_codec import (
    CONTROL_SNAPSHOT_HEADER as CONTROL_SNAPSHOT_HEADER,
)
from fastq._native.batch_codec import (
    DECOMPRESSED_BYTES_MAX as DECOMPRESSED_BYTES_MAX,
)
from fastq._native.batch_codec import (
    ControlRecord as ControlRecord,
)
from fastq._native.batch_codec import (
    DecodedRecord as DecodedRecord,
)
from fastq._native.batch_codec import (
    build_batch as build_batch,
)
from fastq._native.batch_codec import (
    build_transaction_marker as build_transaction_marker,
)
from fastq._native.batch_codec import (
    decode_control_record as decode_control_record,
)
from fastq._native.batch_codec import (
    decode_records as decode_records,
)
from fastq._native.batch_codec import (
    encode_control_key as encode_control_key,
)
from fastq._native.batch_codec import (
    recompress as recompress,
)

BATCH_OVERHEAD: int

@final
class BatchHeader:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def batch_length(self) -> int: ...
    @property
    def partition_leader_epoch(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def crc(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def records_max_timestamp(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def codec(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def has_delete_horizon(self) -> bool: ...
    @property
    def last_sequence(self) -> int: ...

@final
class HeaderIterator:
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[int, BatchHeader]: ...

def read_header(data: Buffer, position: int = 0) -> BatchHeader: ...
def iter_headers(data: Buffer, start: int = 0, strict: bool = False) -> Iterator[tuple[int, BatchHeader]]: ...
def verify_crc(data: Buffer, position: int = 0) -> bool: ...
def stamp(data: Buffer, position: int, base_offset: int, leader_epoch: int) -> None: ...
def stamp_log_append_time(data: Buffer, position: int, now_ms: int) -> None: ...
def stamp_max_timestamp(data: Buffer, position: int, max_timestamp: int) -> None: ...
