"""Exit codes of commands, and which of them an error has."""

from __future__ import annotations

from fastq.errors import ConnectionFailed, ErrorCode, KafkaError

FAILED, WRONG_USAGE, UNREACHABLE, READER_GONE = 1, 2, 3, 141

_UNSERVED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""What brokers answer that can be reached, and are not the ones who could do it."""


def is_unreachable(error: BaseException | None) -> bool:
    """Whether it says that no connection came about."""
    return isinstance(error, ConnectionFailed) and not isinstance(error, KafkaError)


def code_of(error: BaseException | None) -> int:
    """The exit code of a command that ends with an error: UNREACHABLE where the error, or what led to it, is that nobody could be asked."""
    while error is not None:
        if is_unreachable(error) or (isinstance(error, KafkaError) and error.code in _UNSERVED):
            return UNREACHABLE
        error = getattr(error, "cause", None)
        if not isinstance(error, BaseException):
            break
    return FAILED
