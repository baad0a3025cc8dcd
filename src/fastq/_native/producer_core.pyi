from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeAlias, final

from typing_extensions import Buffer, Self

from fastq._native.accumulator import Accumulator
from fastq.errors import FastqError
from fastq.producer.delivery import RecordMetadata

_Headers: TypeAlias = Iterable[tuple[str, Buffer | None]] | Mapping[str, Buffer | None]

def pairs_of(headers: _Headers) -> Iterator[Any]: ...
def encode_headers(headers: _Headers | None) -> bytes: ...

class DeliveryBase:
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    def done(self) -> bool: ...
    def add_done_callback(self, callback: Callable[[Self], object]) -> None: ...

@final
class Delivery(DeliveryBase):
    def result(self, timeout: float | None = None) -> RecordMetadata: ...
    def exception(self, timeout: float | None = None) -> FastqError | None: ...

@final
class AsyncDelivery(DeliveryBase):
    def result(self) -> RecordMetadata: ...
    def exception(self) -> FastqError | None: ...
    def __await__(self) -> Generator[Any, None, RecordMetadata]: ...

class ProducerCore:
    def __init__(self, accumulator: Accumulator) -> None: ...
    @property
    def accumulator(self) -> Accumulator: ...

class SyncProducerCore(ProducerCore):
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: _Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery: ...
    def _enqueue(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None,
        headers: _Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Delivery: ...

@final
class Sent:
    def __await__(self) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def send(self, value: Any) -> Any: ...
    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> Any: ...
    def close(self) -> None: ...

class AsyncProducerCore(ProducerCore):
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: _Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Awaitable[AsyncDelivery]: ...
    def _at_home(self) -> None: ...
    def _sent(self, delivery: AsyncDelivery) -> Sent: ...
    def _try_enqueue(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None,
        headers: _Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> AsyncDelivery | None: ...
    def _close_full(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None,
        headers: _Headers | None,
        partition: int | None,
    ) -> bool: ...
