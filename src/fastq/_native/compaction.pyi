from collections.abc import Iterable
from typing import final

from typing_extensions import Buffer

from fastq._native.cleaned_segment import SegmentWriter
from fastq._native.offset_map import OffsetMap

_Aborted = tuple[int, int, int, int]

class OldFormat(ValueError): ...

@final
class TransactionFilter:
    def __init__(self, aborted: Iterable[_Aborted]) -> None: ...
    def take_kept(self) -> list[_Aborted]: ...

def index_batches(
    offsets: OffsetMap, transactions: TransactionFilter, data: Buffer, position: int, start_offset: int
) -> tuple[int, bool]: ...

@final
class BatchFilter:
    def __init__(
        self,
        offsets: OffsetMap,
        transactions: TransactionFilter,
        *,
        now_ms: int,
        delete_retention_ms: int,
        upper_offset: int,
        last_offsets: dict[int, tuple[int, int]],
    ) -> None: ...
    @property
    def batches_read(self) -> int: ...
    @property
    def records_read(self) -> int: ...
    @property
    def records_kept(self) -> int: ...
    @property
    def keyless_records(self) -> int: ...
    def feed(self, data: Buffer, position: int, out: SegmentWriter) -> int: ...
