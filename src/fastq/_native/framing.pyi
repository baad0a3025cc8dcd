from typing import final

CHUNK_BYTES: int

class FrameSizeError(ValueError):
    size: int
    limit: int
    head: bytes
    def __init__(self, size: int, limit: int, head: bytes) -> None: ...

@final
class FrameReceiver:
    limit: int
    def __init__(self, frame_bytes_max: int) -> None: ...
    def get_buffer(self) -> memoryview: ...
    @property
    def is_mid_frame(self) -> bool: ...
    @property
    def head(self) -> bytes: ...
    def buffer_updated(self, count: int) -> list[memoryview]: ...
