"""What the handlers of the transaction APIs have in common: results that may come later, errors in the words of a version."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from fastq.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from .transaction import Transaction

T = TypeVar("T")


def fenced_code(error: KafkaError, version: int, first_with_fenced: int) -> int:
    """The code for a client: PRODUCER_FENCED is INVALID_PRODUCER_EPOCH in versions that came before it (KIP-588)."""
    if error.code == ErrorCode.PRODUCER_FENCED and version < first_with_fenced:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return int(error.code)


def answered(
    ask: Callable[[], Transaction | Awaitable[Transaction]],
    respond: Callable[[Transaction | None, KafkaError | None], T],
) -> T | Awaitable[T]:
    """`respond` to what `ask` answers: at once where it does."""
    try:
        answer = ask()
    except KafkaError as error:
        return respond(None, error)
    if inspect.isawaitable(answer):
        return _later(answer, respond)
    return respond(answer, None)


async def _later(answer: Awaitable[Transaction], respond: Callable[[Transaction | None, KafkaError | None], T]) -> T:
    try:
        txn = await answer
    except KafkaError as error:
        return respond(None, error)
    return respond(txn, None)
