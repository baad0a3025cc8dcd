from typing import Any

from typing_extensions import Buffer

_Topic = Any  # a str, or in version 10 an id of 16 bytes

def encode_commit_request(
    version: int,
    group_id: str,
    generation: int,
    member_id: str,
    instance_id: str | None,
    offsets: list[tuple[_Topic, int, int, int, str | None]],
) -> bytes: ...
def decode_commit_request(
    data: Buffer, start: int, end: int, version: int
) -> tuple[str, int, str, str | None, int, list[tuple[_Topic, int, int, int, str | None]]]: ...
def encode_commit_response(version: int, correlation_id: int, codes: list[tuple[_Topic, int, int]]) -> bytes: ...
def decode_commit_response(data: Buffer, version: int) -> dict[tuple[str | bytes, int], int]: ...
def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes: ...
def decode_offset_key(key: bytes) -> tuple[str, tuple[str, int]]: ...
def encode_offset_value(
    offset: int,
    leader_epoch: int,
    metadata: str,
    commit_timestamp_ms: int,
    expire_timestamp_ms: int,
    topic_id: bytes = ...,
) -> bytes: ...
def decode_offset_value(value: bytes) -> tuple[int, int, str, int, int, bytes]: ...
