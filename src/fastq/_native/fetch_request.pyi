from collections.abc import Mapping
from typing import Any

def encode_fetch_request(
    version: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int,
    session_id: int,
    session_epoch: int,
    send: Mapping[Any, tuple[bytes, int, int, int]],
    forgotten: Mapping[Any, bytes],
    rack_id: str,
) -> bytes: ...
