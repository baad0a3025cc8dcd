from typing import Any, final

from typing_extensions import Buffer

@final
class FetchBody:
    @property
    def replica_id(self) -> int: ...
    @property
    def replica_epoch(self) -> int: ...
    @property
    def max_wait_ms(self) -> int: ...
    @property
    def min_bytes(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def isolation_level(self) -> int: ...
    @property
    def session_id(self) -> int: ...
    @property
    def session_epoch(self) -> int: ...
    @property
    def partitions(self) -> list[tuple[bytes, int, int, int, int, int, int]]: ...
    @property
    def forgotten(self) -> list[tuple[bytes, int]]: ...
    @property
    def rack_id(self) -> str: ...
    @property
    def cluster_id(self) -> str | None: ...

def decode_fetch(data: Buffer, start: int, end: int, version: int) -> FetchBody: ...
def encode_fetch_response(
    version: int,
    correlation_id: int,
    throttle_time_ms: int,
    error_code: int,
    session_id: int,
    results: list[
        tuple[
            bytes,
            int,
            int,
            int,
            int,
            int,
            list[tuple[int, int]] | None,
            int,
            Any,
            tuple[int, int] | None,
            tuple[int, int] | None,
        ]
    ],
    endpoints: list[tuple[int, str, int, str | None]] | None = None,
) -> list[Any]: ...
