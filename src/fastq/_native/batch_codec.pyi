from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, final

from typing_extensions import Buffer

# (timestamp_ms, key, value) or with headers: pairs of key and nullable value.
_Headers: TypeAlias = Iterable[tuple[str | Buffer, Buffer | None]]
_Row: TypeAlias = (
    tuple[int, Buffer | None, Buffer | None] | tuple[int, Buffer | None, Buffer | None, _Headers | None] | Sequence[Any]
)
_Compress: TypeAlias = Callable[[int, Buffer, int | None], bytes]
_Decompress: TypeAlias = Callable[[int, Buffer, int], Buffer]

DECOMPRESSED_BYTES_MAX: int
CONTROL_ABORT: int
CONTROL_COMMIT: int
CONTROL_LEADER_CHANGE: int
CONTROL_SNAPSHOT_HEADER: int
CONTROL_SNAPSHOT_FOOTER: int
CONTROL_KRAFT_VERSION: int
CONTROL_KRAFT_VOTERS: int

class ControlRecord(NamedTuple):
    type: int
    version: int
    coordinator_epoch: int

@final
class DecodedRecord:
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...
    def row(self) -> tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]: ...
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __eq__(self, value: object, /) -> bool: ...

def decode_records(
    data: Buffer,
    position: int = 0,
    decompress: _Decompress | None = None,
    *,
    check_crc: bool = True,
    limit_bytes: int = ...,
) -> list[DecodedRecord]: ...
def build_batch(
    records: Iterable[_Row],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: int = 0,
    compress: _Compress | None = None,
    level: int | None = None,
    timestamp_type: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    offset_deltas: Iterable[int] | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray: ...
def recompress(
    data: Buffer,
    position: int,
    codec: int,
    *,
    level: int | None = None,
    compress: _Compress | None = None,
    decompress: _Decompress | None = None,
    limit_bytes: int = ...,
) -> bytearray: ...
def encode_control_key(control_type: int, version: int = 0) -> bytes: ...
def build_transaction_marker(
    control_type: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray: ...
def decode_control_record(key: bytes | None, value: bytes | None) -> ControlRecord: ...
