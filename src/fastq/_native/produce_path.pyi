from typing import final

from typing_extensions import Buffer

@final
class PartitionResponse:
    def __init__(
        self,
        topic: bytes,
        partition: int,
        error_code: int = 0,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        record_errors: list[tuple[int, str | None]] | None = None,
        error_message: str | None = None,
    ) -> None: ...
    @property
    def topic(self) -> bytes: ...
    @property
    def partition(self) -> int: ...
    @property
    def error_code(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def log_append_time_ms(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def record_errors(self) -> list[tuple[int, str | None]] | None: ...
    @property
    def error_message(self) -> str | None: ...

def scan_request(
    data: Buffer, position: int, end: int, flexible_versions: bytes, bytes_max: int
) -> tuple[int, int, int, bytes | None, int, int] | None: ...
def decode_produce(
    data: Buffer, start: int, end: int, version: int
) -> tuple[str | None, int, int, list[tuple[bytes, int, int, int]]]: ...
def encode_produce_response(
    version: int,
    correlation_id: int,
    results: list[PartitionResponse],
    throttle_time_ms: int = 0,
) -> bytes: ...
