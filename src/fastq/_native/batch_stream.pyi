from collections.abc import Callable, Iterable

from fastq._native.columns import ConsumerBatch

def make_stream(
    advance: Callable[[], ConsumerBatch | None], columns: Iterable[str], done: Callable[[], object] | None = None
) -> object: ...
