from collections.abc import Callable, Sequence
from typing import Any, final

from typing_extensions import Buffer

JOINED_BYTES: int

@final
class EncodedRequest:
    @property
    def api_key(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def buffers(self) -> Sequence[Buffer]: ...
    @property
    def decode(self) -> Callable[[memoryview], Any]: ...
    @property
    def expects_response(self) -> bool: ...
    def __init__(
        self,
        api_key: int,
        version: int,
        buffers: Sequence[Buffer],
        decode: Callable[[memoryview], Any],
        expects_response: bool = True,
    ) -> None: ...

@final
class PendingRequest:
    @property
    def request(self) -> Any: ...
    @property
    def on_done(self) -> Callable[[Any, Any], object]: ...
    @property
    def deadline(self) -> float: ...
    @property
    def versions(self) -> tuple[int, int] | None: ...
    @property
    def anywhere(self) -> bool: ...
    @property
    def api_key(self) -> int: ...
    version: int
    correlation_id: int
    sent_at: float
    def __init__(
        self,
        request: Any,
        on_done: Callable[[Any, Any], object],
        deadline: float,
        versions: tuple[int, int] | None = None,
        anywhere: bool = False,
    ) -> None: ...

def frame_request(
    api_key: int,
    version: int,
    correlation_id: int,
    client_id: bytes,
    first_flexible: bytes,
    buffers: Sequence[Buffer],
) -> tuple[list[Buffer], int]: ...
def response_start(frame: Buffer, correlation_id: int, api_key: int, version: int, first_flexible: bytes) -> int: ...
