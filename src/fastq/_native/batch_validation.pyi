from collections.abc import Sequence

from typing_extensions import Buffer

from fastq._native.batch_codec import DECOMPRESSED_BYTES_MAX as DECOMPRESSED_BYTES_MAX
from fastq._native.batch_codec import _Decompress
from fastq._native.records import BatchHeader

class InvalidBatch(ValueError):
    reason: str
    record_index: int
    error_code: int
    record_errors: list[tuple[int, str]]
    def __init__(
        self, reason: str, record_index: int = -1, error_code: int = 87, record_errors: Sequence[tuple[int, str]] = ()
    ) -> None: ...

def validate_batch(
    data: Buffer,
    position: int = 0,
    end: int | None = None,
    *,
    compacted: bool = False,
    from_client: bool = True,
    check_crc: bool = True,
    timestamp_type: int = 0,
    now_ms: int = -1,
    before_max_ms: int = ...,
    after_max_ms: int = ...,
    decompress: _Decompress | None = None,
    limit_bytes: int = ...,
) -> BatchHeader: ...
