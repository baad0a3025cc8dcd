from collections.abc import Iterable
from typing import Final, final

from fastq._native.columns import ConsumerBatch

COLUMN_NAMES: Final[tuple[str, ...]]
BINARY_BYTES_MAX: Final[int]

@final
class ArrowExport:
    def __init__(self, batch: ConsumerBatch, columns: Iterable[str], *, binary_bytes_max: int = ...) -> None: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
