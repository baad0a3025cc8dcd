"""What an error says about a batch that was sent: refused for certain, or perhaps in the log.

Rules: one table, `REFUSED`, of the codes that a broker answers before it appends anything. Whatever is not in it leaves the batch in
doubt: a lost answer, a time-out, a code of after the append (20, 7), one that a leader also gives to a write whose replication it
could not see to its end because it ceased to lead (6, 3, 56), and codes newer than this client. A batch that was once in doubt stays
it: a later refusal is one of the copy. Source: Kafka's ReplicaManager.appendRecords and DelayedProduce, KIP-360.
"""

from __future__ import annotations

from fastq._native.producer_batch import IN_FLIGHT, Batch
from fastq.errors import ErrorCode, FastqError, KafkaError

_E = ErrorCode
REFUSED = frozenset(
    {
        # the request, or who sent it
        _E.INVALID_REQUEST,
        _E.UNSUPPORTED_VERSION,
        _E.INVALID_REQUIRED_ACKS,
        _E.TOPIC_AUTHORIZATION_FAILED,
        _E.CLUSTER_AUTHORIZATION_FAILED,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _E.THROTTLING_QUOTA_EXCEEDED,
        # the topic
        _E.INVALID_TOPIC_EXCEPTION,
        _E.UNKNOWN_TOPIC_ID,
        _E.INCONSISTENT_TOPIC_ID,
        _E.NOT_ENOUGH_REPLICAS,
        # the batch
        _E.CORRUPT_MESSAGE,
        _E.MESSAGE_TOO_LARGE,
        _E.RECORD_LIST_TOO_LARGE,
        _E.INVALID_TIMESTAMP,
        _E.INVALID_RECORD,
        _E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        _E.UNSUPPORTED_COMPRESSION_TYPE,
        _E.POLICY_VIOLATION,
        # the producer and its transaction
        _E.OUT_OF_ORDER_SEQUENCE_NUMBER,
        _E.UNKNOWN_PRODUCER_ID,
        _E.INVALID_PRODUCER_EPOCH,
        _E.PRODUCER_FENCED,
        _E.INVALID_PRODUCER_ID_MAPPING,
        _E.INVALID_TXN_STATE,
        _E.CONCURRENT_TRANSACTIONS,
        _E.TRANSACTION_ABORTABLE,
        _E.COORDINATOR_NOT_AVAILABLE,
        _E.COORDINATOR_LOAD_IN_PROGRESS,
        _E.NOT_COORDINATOR,
    }
)
IN_DOUBT_HINT = "No broker has said that it was refused: it may have been written"


def leaves_in_doubt(error: FastqError) -> bool:
    """Whether a batch that was sent and met `error` may be in the log all the same."""
    return not isinstance(error, KafkaError) or error.code not in REFUSED


def maybe_written(batch: Batch) -> bool:
    """Whether a batch that is given up now may be in the log."""
    return batch.in_doubt or batch.state == IN_FLIGHT


def in_doubt(error: FastqError) -> FastqError:
    """The error of a record that may have been written: says so, in words and as `maybe_written`."""
    hint = f"{error.hint}. {IN_DOUBT_HINT}" if error.hint else IN_DOUBT_HINT
    return error.with_context(maybe_written=True, hint=hint)
