from typing_extensions import Buffer

def scan_request(
    data: Buffer, position: int, end: int, flexible_versions: bytes, bytes_max: int
) -> tuple[int, int, int, bytes | None, int, int] | None: ...
def decode_produce(
    data: Buffer, start: int, end: int, version: int
) -> tuple[str | None, int, int, list[tuple[bytes, int, int, int]]]: ...
def encode_produce_response(
    version: int,
    correlation_id: int,
    results: list[tuple[bytes, int, int, int, int, int, list[tuple[int, str | None]] | None, str | None]],
    throttle_time_ms: int = 0,
) -> bytes: ...
