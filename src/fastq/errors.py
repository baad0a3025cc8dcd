"""Every error of fastq: a short tree of exceptions, and one a code of Kafka.

Rules: `ErrorCode` is the table of codes (error_codes.py): the broker answers with codes, and the client turns a code into an exception with
`error_for_code`. An exception carries what is known of where it happened as attributes,
says it in its message, and survives pickling. What went wrong below it is its `cause`; the
message of both says each thing once, and ends with what to do. `cure` is what to do about
any error of a class, for the reference; a class has one of its own. Every time-out is a TimeoutError too, whatever else it is.

    FastqError
      KafkaError              the broker answered with an error code: one subclass a code
      ConnectionFailed        no usable connection: one subclass a cause
      ProtocolError           a peer sent bytes that are not the protocol
      ConnectionTimeout, RequestTimedOut, DeliveryTimeout, BufferTimeout, WaitTimeout, TransactionTimeout, SchemaRegistryTimeout
                              what did not come in time: TimeoutErrors
      ClientClosed, ForkedClient, WrongEventLoop, ConcurrentModification, UndeliveredRecords, ConfigError,
      SerializationError, DeserializationError, SchemaRegistryError, LoadingWouldBlock, CorruptRecord, MissingPackage
      WakeupError, MaxPollIntervalExceeded, NotAssigned, RecordFailed   a consumer's
      TransactionError        a transaction of a producer
        AbortableTransactionError   abort it and do it again with the same producer
        FatalTransactionError       this producer is of no more use: TransactionFenced, and what else is for good
        TransactionAborted, TransactionTimeout, TransactionStateError
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from fastq.error_codes import ErrorCode as ErrorCode


class _Documented(str):
    """The docstring of an error; who asks for it is told the whole of its cure too, of which `help()` shows the beginning alone."""

    def __get__(self, _: object, cls: type[FastqError]) -> str:
        from inspect import cleandoc

        return f"{cleandoc(self)}\n\nWhat to do: {cls.cure}"


class FastqError(Exception):
    """Base of all errors that fastq raises on purpose.

    `message` is the sentence; the keywords say where it happened and become attributes. `hint` says what to do.
    """

    retriable: bool = False
    maybe_written: bool = False  # of a record: no broker has said that it was refused, so it may be in the log
    broker: str | None = None  # host:port, or a node's id where that is all that is known
    api: str | None = None
    topic: str | None = None
    partition: int | None = None
    hint: str | None = None
    cure: ClassVar[str] = "Read its message: it says where it happened and ends with what to do."  # of any of the class
    default_message: ClassVar[str] = "fastq failed"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if text := cls.__dict__.get("__doc__"):
            cls.__doc__ = _Documented(text)

    def __init__(self, message: str | None = None, **context: Any) -> None:
        self.message = message if message is not None else self.default_message
        self.context = {name: value for name, value in context.items() if value is not None}
        super().__init__(self.message)
        for name, value in self.context.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        text, hints = self._told({})
        for hint in hints:
            text += f" {hint}" if text.endswith(("?", "!")) else f". {hint}"
        return text

    def _told(self, known: Mapping[str, Any]) -> tuple[str, list[str]]:
        """The message with what led to it, without what is `known` of an outer error, and what to do about it."""
        context, text = self.context, self.message
        behind = [_short(str(context["detail"]).strip())] if "detail" in context else []
        said = " ".join([text, *behind])
        shown = [
            f"{name} {_short(value)}"
            for name, value in context.items()
            if name not in _NOT_LISTED
            and (name != "raw" or isinstance(value, bytes | bytearray | memoryview))
            and known.get(name) != value
            and not _says(said, name, value, context)
        ]
        if shown:
            text += f" [{', '.join(shown)}]"
        hints = [self.hint.rstrip(".")] if self.hint else []
        cause = context.get("cause")
        if isinstance(cause, FastqError):
            below, more = cause._told({**known, **context})
            behind.append(below)
            hints = [*more, *(hint for hint in hints if hint not in more)]
        elif cause is not None:
            behind.append(_short(str(cause)) if str(cause) else type(cause).__name__)
        for part in behind:
            if part.rstrip(".") not in text:
                text += f": {part}"
        return (text.rstrip(".") if hints else text), hints

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.context)

    def with_context(self, **context: Any) -> FastqError:
        """The same error with more said about it: one of an answer is shared by all that it was for."""
        return _rebuild(type(self), self.message, {**self.context, **context})


FastqError.__doc__ = _Documented(FastqError.__doc__ or "")


def _rebuild(cls: type[FastqError], message: str, context: dict[str, Any]) -> FastqError:
    return cls(message, **context)


_NOT_LISTED = frozenset({"hint", "cause", "detail", "load", "maybe_written", "package"})


def _says(text: str, name: str, value: object, context: Mapping[str, Any]) -> bool:
    """Whether a text names this already."""
    if name == "partition":
        return f"{context.get('topic')}-{value}" in text or f"partition {value}" in text
    if isinstance(value, int | float):
        return re.search(rf"\b{name}[ =]{value}\b", text) is not None
    if name == "topic" and f"{value}-{context.get('partition')}" in text:
        return True
    if str(value).isalpha() and f"'{value}'" not in text:
        return False  # it may be a word of the sentence, and not what is meant
    return re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", text) is not None


def _short(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    text = str(value)
    # Of a chain of errors, what happened first stands last.
    return text if len(text) <= 400 else f"{text[:180]} ... {text[-200:]}"


class KafkaError(FastqError):
    """The broker answered with an error code. `detail` is what the broker said about it, when it said something."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    name: str = "UNKNOWN_SERVER_ERROR"
    refresh_metadata: bool = False
    detail: str | None = None
    cure = "Look its code up in the table of Kafka's codes; `detail` has the broker's words."
    default_message = "the broker answered with an error"

    def __init_subclass__(cls, code: ErrorCode | None = None, **kwargs: Any) -> None:
        if code is not None:
            cls.code = code
            cls.name = code.name
            cls.retriable = code.retriable
            cls.refresh_metadata = code.refresh_metadata
            cls.cure = code.cure
            cls.default_message = f"{code.name} ({int(code)}): {code.meaning}"
            cls.__doc__ = f"{cls.default_message}."
            _BY_CODE[code] = cls
        super().__init_subclass__(**kwargs)


_BY_CODE: dict[int, type[KafkaError]] = {}


class ConnectionFailed(FastqError):
    """No usable connection to a broker. `phase` says how far it came, `cause` what the system said."""

    retriable = True
    phase: str | None = None  # resolve, connect, tls, api versions, sasl, ready
    cause: BaseException | str | None = None
    cure = "See that bootstrap_servers names a broker that runs and can be reached from here; `phase` says how far it came."
    default_message = "the connection to the broker failed"


class NameNotResolved(ConnectionFailed):
    """The broker's host name has no address."""

    cure = "Correct the name in bootstrap_servers, or the broker's advertised.listeners, which clients are sent to."
    default_message = "the broker's host name could not be resolved"


class ConnectionRefused(ConnectionFailed):
    """Nothing listens at the broker's address."""

    cure = "Start the broker, or correct the port in bootstrap_servers or in its advertised.listeners."
    default_message = "the broker refused the connection"


class ConnectionTimeout(ConnectionFailed, TimeoutError):
    """The broker did not answer in time."""

    cure = "Look for a firewall or a wrong address; on a slow network raise socket_connection_setup_timeout_ms."
    default_message = "the broker did not answer in time"


class ConnectionClosed(ConnectionFailed):
    """The peer closed the connection, or it broke."""

    cure = "Nothing when it passes. When it recurs: the broker's log says why, as does TLS that is asked for and not spoken."
    default_message = "the connection was closed"


class NotAKafkaBroker(ConnectionFailed):
    """Something listens there, but it does not speak Kafka's protocol."""

    retriable = False
    cure = "Correct the port: an HTTP server, a proxy or a controller's listener answers at this one."
    default_message = "the peer does not speak the Kafka protocol"


class TlsExpected(ConnectionFailed):
    """The listener wants TLS and the client does not use it, or the other way round."""

    retriable = False
    cure = "Set security_protocol as the listener has it: SSL, SASL_SSL with TLS, PLAINTEXT, SASL_PLAINTEXT without."
    default_message = "client and broker disagree on TLS"


class UnsupportedVersion(ConnectionFailed, KafkaError, code=ErrorCode.UNSUPPORTED_VERSION):
    """Broker and client share no version of an API; also what a broker's code 35 becomes."""

    retriable = False


class ProtocolError(FastqError):
    """A peer sent bytes that are not what the protocol says they are."""

    cure = "See that nothing between the two changes what is sent; otherwise it is a defect: report it with the broker's version."
    default_message = "the peer sent a malformed message"


class ClientClosed(FastqError):
    """The client was used after it was closed, or closed while this was waiting."""

    cure = "Make a new client, and close it only when nobody uses it any more."
    default_message = "the client is closed"


class ForkedClient(FastqError):
    """The client was made by the parent of this process; its sockets and threads stayed there."""

    cure = "Make the client after the fork, in the process that uses it."
    default_message = "the client belongs to the parent process: make a new one after the fork"


class WrongEventLoop(FastqError, RuntimeError):
    """An asyncio client was used in another event loop than the one of its first use, or outside of one; nothing was sent."""

    cure = "Make a client in each event loop, with `async with` in a coroutine."
    default_message = "the client belongs to another event loop: make one in each loop, with `async with`"


class ConcurrentModification(FastqError, RuntimeError):
    """A consumer was called while another thread is in one of its calls, or another task waits for its next record; that call goes on,
    and nothing of this one was done."""

    cure = "Give each thread a consumer of its own, or use ConsumerPool; only wakeup() may be called by another thread."
    default_message = "the consumer is used by another thread: give each thread a consumer of its own"


class DeliveryTimeout(FastqError, TimeoutError):
    """A record was not acknowledged within delivery_timeout_ms; it may or may not have been written."""

    cause: BaseException | None = None
    cure = "Look at the brokers' health by its cause; sending the record again may double it. delivery_timeout_ms is how long it is tried."
    default_message = "the record was not acknowledged within delivery_timeout_ms"


class UndeliveredRecords(FastqError):
    """What closing a producer with raise_on_close=True raises: `count` of its records were not delivered, the last by `cause`."""

    count: int = 0
    cause: BaseException | None = None
    cure = "Ask each delivery for its result, or add a callback, and send again what failed."
    default_message = "records of this producer were not delivered"


class BufferTimeout(FastqError, TimeoutError):
    """The buffer or the metadata was not available within max_block_ms; the record was not accepted."""

    retriable = True
    cause: BaseException | None = None
    cure = "Send again later, or raise buffer_memory or max_block_ms: records come faster than they leave, or no broker answers."
    default_message = "no room in the buffer, or no metadata, within max_block_ms"


class WaitTimeout(FastqError, TimeoutError):
    """What was waited for has not come within the `timeout` of the call. Nothing is decided by it: it is still on its way."""

    retriable = True
    cure = "Call it again to go on waiting, or with a longer timeout."
    default_message = "what was waited for has not come in time"


class ConfigError(FastqError, ValueError):
    """A configuration that cannot be: an unknown key, a bad value, or two that exclude each other."""

    cure = "Correct the key or value that it names; the pages of settings have what is allowed."
    default_message = "the configuration is not valid"


class SerializationError(FastqError):
    """A serializer could not turn a key or a value into bytes; the record was not sent."""

    cure = "Correct the value, or give the producer the serializer that fits; its cause says what did not."
    default_message = "the record could not be serialized"


class DeserializationError(FastqError):
    """A deserializer could not read a record; `raw` has its bytes."""

    offset: int | None = None
    raw: Any = None
    cure = "Read with the deserializer that fits, or set on_deserialization_error to go on; `raw` has the bytes."
    default_message = "the record could not be deserialized"


class WakeupError(FastqError):
    """`Consumer.wakeup` was called: the call that waited, or the next one that would, ends with this. Nothing is lost."""

    cure = "Nothing: end the loop, or go on with the next call."
    default_message = "the consumer was woken up"


class MaxPollIntervalExceeded(FastqError):
    """A record took longer than max_poll_interval_ms: the member left its group, and others may read its partitions by now.

    topic, partition, offset: the record that was being handled (the last one, after a `poll` of several; None when none was).
    elapsed_s: how long it took; of a record that an iterator handed out, how long at least.
    """

    group: str | None = None
    offset: int | None = None
    elapsed_s: float | None = None
    cure = "Raise max_poll_interval_ms, take fewer records a poll (max_poll_records), or hand them to a ConsumerPool."
    default_message = "the application did not poll within max_poll_interval_ms"


class NotAssigned(FastqError, ValueError):
    """A commit, a seek or another call for a partition that is not, or no longer, assigned to this consumer. Nothing was done."""

    group: str | None = None
    member: str | None = None
    generation: int | None = None
    cure = "Commit and seek only what assignment() has; in a group, in time before a rebalance (RebalanceListener)."
    default_message = "the partition is not assigned to this consumer"


class RecordFailed(FastqError):
    """The handler failed for a record for as often as it may, and there is nowhere else to put it. `cause` is its last error."""

    offset: int | None = None
    attempts: int | None = None
    cause: BaseException | None = None
    cure = "Mend what its cause says, or give the RetryPolicy more attempts, a dead_letter_topic or skip=True."
    default_message = "a record could not be handled"


class TransactionError(FastqError):
    """Something about a transaction; `transactional_id` says whose. `cause` is the error that led to it, if there is one."""

    transactional_id: str | None = None
    cause: BaseException | None = None
    cure = "Read its cause, and whether it is an AbortableTransactionError or a FatalTransactionError."
    default_message = "the transaction failed"


class AbortableTransactionError(TransactionError):
    """The transaction cannot be committed. Abort it (the end of a `with producer.transaction()` does), and do it again."""

    cure = "Abort it, or leave the `with producer.transaction()`, and do it again with the same producer."
    default_message = "the transaction cannot be committed"


class FatalTransactionError(TransactionError):
    """The producer can do no more transactions, and its open one is not committed. Close it and make a new one."""

    cure = "Close the producer, make a new one with the same transactional_id, and do the transaction again."
    default_message = "the producer can do no more transactions"


class TransactionFenced(FatalTransactionError):
    """A newer producer has taken the transactional id over, or the transaction was open for too long."""

    cure = "Let the newer producer go on. If there is none, raise transaction_timeout_ms or make transactions shorter."
    default_message = "the producer was fenced off"


class TransactionAborted(TransactionError):
    """The record was not written, or no read_committed consumer will see it: its transaction was aborted."""

    cure = "Send the record again in the next transaction."
    default_message = "the transaction of this record was aborted"


class TransactionTimeout(TransactionError, TimeoutError):
    """The coordinator did not answer in time. Nothing is decided by it: call the same method again to go on waiting."""

    retriable = True
    cure = "Call the same method again; when it recurs, look at the coordinator: fastq transactions describe."
    default_message = "the transaction coordinator did not answer in time"


class TransactionStateError(TransactionError):
    """A call that does not fit the state of the producer: a send outside of a transaction, a commit without one."""

    cure = "Send within begin_transaction() and commit_transaction(), or `with producer.transaction()`."
    default_message = "this call does not fit the state of the transaction"


class SchemaRegistryError(FastqError):
    """A schema registry refused, failed or could not be reached. `status` is HTTP's (None: no answer), `error_code` its own."""

    url: str | None = None
    subject: str | None = None
    schema_id: int | None = None
    status: int | None = None
    error_code: int | None = None
    cure = "Correct what `status` and the registry's words say: URL, credentials, subject, or a schema that is not compatible."
    default_message = "the schema registry failed"


class SchemaRegistryTimeout(SchemaRegistryError, TimeoutError):
    """The schema registry did not answer in time."""

    retriable = True
    cure = "Try again; see that the registry runs and can be reached at its URL."
    default_message = "the schema registry did not answer in time"


class LoadingWouldBlock(FastqError):
    """A serializer or deserializer needs something from elsewhere, and the thread that asks runs an event loop.

    `load()` gets it, in another thread; after that the same call succeeds. A notebook runs an event loop in the thread of its cells.
    """

    load: Callable[[], object] | None = None
    cure = "Use an asyncio client, or the blocking one in a thread (`asyncio.to_thread`); or call `load()` in one and try again."
    default_message = "what this needs has not been loaded, and loading it would block the event loop"


class CorruptRecord(FastqError):
    """Stored or received records fail their checksum or their structure."""

    file: str | None = None
    position: int | None = None
    offset: int | None = None
    cure = "Look at `file` with fastq dump-log --records; restore it from a replica or a backup, and check the disk."
    default_message = "the records are corrupt"


class MissingPackage(FastqError, ImportError):
    """Something needs a package that is not installed, or that cannot be imported here: `package` is its name for pip, `cause` what
    the import said. The hint is the command. Everything that does not need the package goes on working.
    """

    package: str | None = None
    cure = "Install it, by the command that the message ends with; where it is installed, its cause says why it cannot be imported."
    default_message = "a package is missing"

    @classmethod
    def needed(cls, by: str, package: str, cause: ImportError) -> MissingPackage:
        """That `by`, the beginning of a sentence, needs `package`, whose import raised `cause`."""
        message = f"{by} needs the package {package}, which cannot be imported"
        return cls(message, package=package, cause=cause, hint=f"pip install {package}")


# One exception a code; a class's documentation is the code's meaning.
# fmt: off
class UnknownServerError(KafkaError, code=ErrorCode.UNKNOWN_SERVER_ERROR): ...
class OffsetOutOfRange(KafkaError, code=ErrorCode.OFFSET_OUT_OF_RANGE): ...
class CorruptMessage(KafkaError, code=ErrorCode.CORRUPT_MESSAGE): ...
class UnknownTopicOrPartition(KafkaError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): ...
class InvalidFetchSize(KafkaError, code=ErrorCode.INVALID_FETCH_SIZE): ...
class LeaderNotAvailable(KafkaError, code=ErrorCode.LEADER_NOT_AVAILABLE): ...
class NotLeaderOrFollower(KafkaError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER): ...
class RequestTimedOut(KafkaError, TimeoutError, code=ErrorCode.REQUEST_TIMED_OUT): ...
class BrokerNotAvailable(KafkaError, code=ErrorCode.BROKER_NOT_AVAILABLE): ...
class ReplicaNotAvailable(KafkaError, code=ErrorCode.REPLICA_NOT_AVAILABLE): ...
class MessageTooLarge(KafkaError, code=ErrorCode.MESSAGE_TOO_LARGE): ...
class StaleControllerEpoch(KafkaError, code=ErrorCode.STALE_CONTROLLER_EPOCH): ...
class OffsetMetadataTooLarge(KafkaError, code=ErrorCode.OFFSET_METADATA_TOO_LARGE): ...
class NetworkException(KafkaError, code=ErrorCode.NETWORK_EXCEPTION): ...
class CoordinatorLoadInProgress(KafkaError, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): ...
class CoordinatorNotAvailable(KafkaError, code=ErrorCode.COORDINATOR_NOT_AVAILABLE): ...
class NotCoordinator(KafkaError, code=ErrorCode.NOT_COORDINATOR): ...
class InvalidTopic(KafkaError, code=ErrorCode.INVALID_TOPIC_EXCEPTION): ...
class RecordListTooLarge(KafkaError, code=ErrorCode.RECORD_LIST_TOO_LARGE): ...
class NotEnoughReplicas(KafkaError, code=ErrorCode.NOT_ENOUGH_REPLICAS): ...
class NotEnoughReplicasAfterAppend(KafkaError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND): ...
class InvalidRequiredAcks(KafkaError, code=ErrorCode.INVALID_REQUIRED_ACKS): ...
class IllegalGeneration(KafkaError, code=ErrorCode.ILLEGAL_GENERATION): ...
class InconsistentGroupProtocol(KafkaError, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL): ...
class InvalidGroupId(KafkaError, code=ErrorCode.INVALID_GROUP_ID): ...
class UnknownMemberId(KafkaError, code=ErrorCode.UNKNOWN_MEMBER_ID): ...
class InvalidSessionTimeout(KafkaError, code=ErrorCode.INVALID_SESSION_TIMEOUT): ...
class RebalanceInProgress(KafkaError, code=ErrorCode.REBALANCE_IN_PROGRESS): ...
class InvalidCommitOffsetSize(KafkaError, code=ErrorCode.INVALID_COMMIT_OFFSET_SIZE): ...
class TopicAuthorizationFailed(KafkaError, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
    hint = ErrorCode.TOPIC_AUTHORIZATION_FAILED.cure
class GroupAuthorizationFailed(KafkaError, code=ErrorCode.GROUP_AUTHORIZATION_FAILED):
    hint = ErrorCode.GROUP_AUTHORIZATION_FAILED.cure
class ClusterAuthorizationFailed(KafkaError, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED): ...
class InvalidTimestamp(KafkaError, code=ErrorCode.INVALID_TIMESTAMP): ...
class UnsupportedSaslMechanism(KafkaError, code=ErrorCode.UNSUPPORTED_SASL_MECHANISM): ...
class IllegalSaslState(KafkaError, code=ErrorCode.ILLEGAL_SASL_STATE): ...
class TopicAlreadyExists(KafkaError, code=ErrorCode.TOPIC_ALREADY_EXISTS): ...
class InvalidPartitions(KafkaError, code=ErrorCode.INVALID_PARTITIONS): ...
class InvalidReplicationFactor(KafkaError, code=ErrorCode.INVALID_REPLICATION_FACTOR): ...
class InvalidReplicaAssignment(KafkaError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT): ...
class InvalidConfig(KafkaError, code=ErrorCode.INVALID_CONFIG): ...
class NotController(KafkaError, code=ErrorCode.NOT_CONTROLLER): ...
class InvalidRequest(KafkaError, code=ErrorCode.INVALID_REQUEST): ...
class UnsupportedForMessageFormat(KafkaError, code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT): ...
class PolicyViolation(KafkaError, code=ErrorCode.POLICY_VIOLATION): ...
class OutOfOrderSequenceNumber(KafkaError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER): ...
class DuplicateSequenceNumber(KafkaError, code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER): ...
class InvalidProducerEpoch(KafkaError, code=ErrorCode.INVALID_PRODUCER_EPOCH): ...
class InvalidTxnState(KafkaError, code=ErrorCode.INVALID_TXN_STATE): ...
class InvalidProducerIdMapping(KafkaError, code=ErrorCode.INVALID_PRODUCER_ID_MAPPING): ...
class InvalidTransactionTimeout(KafkaError, code=ErrorCode.INVALID_TRANSACTION_TIMEOUT): ...
class ConcurrentTransactions(KafkaError, code=ErrorCode.CONCURRENT_TRANSACTIONS): ...
class TransactionCoordinatorFenced(KafkaError, code=ErrorCode.TRANSACTION_COORDINATOR_FENCED): ...
class TransactionalIdAuthorizationFailed(KafkaError, code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED): ...
class SecurityDisabled(KafkaError, code=ErrorCode.SECURITY_DISABLED): ...
class OperationNotAttempted(KafkaError, code=ErrorCode.OPERATION_NOT_ATTEMPTED): ...
class KafkaStorageError(KafkaError, code=ErrorCode.KAFKA_STORAGE_ERROR): ...
class LogDirNotFound(KafkaError, code=ErrorCode.LOG_DIR_NOT_FOUND): ...
class SaslAuthenticationFailed(KafkaError, code=ErrorCode.SASL_AUTHENTICATION_FAILED): ...
class UnknownProducerId(KafkaError, code=ErrorCode.UNKNOWN_PRODUCER_ID): ...
class ReassignmentInProgress(KafkaError, code=ErrorCode.REASSIGNMENT_IN_PROGRESS): ...
class DelegationTokenAuthDisabled(KafkaError, code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED): ...
class DelegationTokenNotFound(KafkaError, code=ErrorCode.DELEGATION_TOKEN_NOT_FOUND): ...
class DelegationTokenOwnerMismatch(KafkaError, code=ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH): ...
class DelegationTokenRequestNotAllowed(KafkaError, code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED): ...
class DelegationTokenAuthorizationFailed(KafkaError, code=ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED): ...
class DelegationTokenExpired(KafkaError, code=ErrorCode.DELEGATION_TOKEN_EXPIRED): ...
class InvalidPrincipalType(KafkaError, code=ErrorCode.INVALID_PRINCIPAL_TYPE): ...
class NonEmptyGroup(KafkaError, code=ErrorCode.NON_EMPTY_GROUP): ...
class GroupIdNotFound(KafkaError, code=ErrorCode.GROUP_ID_NOT_FOUND): ...
class FetchSessionIdNotFound(KafkaError, code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND): ...
class InvalidFetchSessionEpoch(KafkaError, code=ErrorCode.INVALID_FETCH_SESSION_EPOCH): ...
class ListenerNotFound(KafkaError, code=ErrorCode.LISTENER_NOT_FOUND): ...
class TopicDeletionDisabled(KafkaError, code=ErrorCode.TOPIC_DELETION_DISABLED): ...
class FencedLeaderEpoch(KafkaError, code=ErrorCode.FENCED_LEADER_EPOCH): ...
class UnknownLeaderEpoch(KafkaError, code=ErrorCode.UNKNOWN_LEADER_EPOCH): ...
class UnsupportedCompressionType(KafkaError, code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE): ...
class StaleBrokerEpoch(KafkaError, code=ErrorCode.STALE_BROKER_EPOCH): ...
class OffsetNotAvailable(KafkaError, code=ErrorCode.OFFSET_NOT_AVAILABLE): ...
class MemberIdRequired(KafkaError, code=ErrorCode.MEMBER_ID_REQUIRED): ...
class PreferredLeaderNotAvailable(KafkaError, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE): ...
class GroupMaxSizeReached(KafkaError, code=ErrorCode.GROUP_MAX_SIZE_REACHED): ...
class FencedInstanceId(KafkaError, code=ErrorCode.FENCED_INSTANCE_ID): ...
class EligibleLeadersNotAvailable(KafkaError, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE): ...
class ElectionNotNeeded(KafkaError, code=ErrorCode.ELECTION_NOT_NEEDED): ...
class NoReassignmentInProgress(KafkaError, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS): ...
class GroupSubscribedToTopic(KafkaError, code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC): ...
class InvalidRecord(KafkaError, code=ErrorCode.INVALID_RECORD): ...
class UnstableOffsetCommit(KafkaError, code=ErrorCode.UNSTABLE_OFFSET_COMMIT): ...
class ThrottlingQuotaExceeded(KafkaError, code=ErrorCode.THROTTLING_QUOTA_EXCEEDED): ...
class ProducerFenced(KafkaError, code=ErrorCode.PRODUCER_FENCED): ...
class ResourceNotFound(KafkaError, code=ErrorCode.RESOURCE_NOT_FOUND): ...
class DuplicateResource(KafkaError, code=ErrorCode.DUPLICATE_RESOURCE): ...
class UnacceptableCredential(KafkaError, code=ErrorCode.UNACCEPTABLE_CREDENTIAL): ...
class InconsistentVoterSet(KafkaError, code=ErrorCode.INCONSISTENT_VOTER_SET): ...
class InvalidUpdateVersion(KafkaError, code=ErrorCode.INVALID_UPDATE_VERSION): ...
class FeatureUpdateFailed(KafkaError, code=ErrorCode.FEATURE_UPDATE_FAILED): ...
class PrincipalDeserializationFailure(KafkaError, code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE): ...
class SnapshotNotFound(KafkaError, code=ErrorCode.SNAPSHOT_NOT_FOUND): ...
class PositionOutOfRange(KafkaError, code=ErrorCode.POSITION_OUT_OF_RANGE): ...
class UnknownTopicId(KafkaError, code=ErrorCode.UNKNOWN_TOPIC_ID): ...
class DuplicateBrokerRegistration(KafkaError, code=ErrorCode.DUPLICATE_BROKER_REGISTRATION): ...
class BrokerIdNotRegistered(KafkaError, code=ErrorCode.BROKER_ID_NOT_REGISTERED): ...
class InconsistentTopicId(KafkaError, code=ErrorCode.INCONSISTENT_TOPIC_ID): ...
class InconsistentClusterId(KafkaError, code=ErrorCode.INCONSISTENT_CLUSTER_ID): ...
class TransactionalIdNotFound(KafkaError, code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND): ...
class FetchSessionTopicIdError(KafkaError, code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR): ...
class IneligibleReplica(KafkaError, code=ErrorCode.INELIGIBLE_REPLICA): ...
class NewLeaderElected(KafkaError, code=ErrorCode.NEW_LEADER_ELECTED): ...
class OffsetMovedToTieredStorage(KafkaError, code=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE): ...
class FencedMemberEpoch(KafkaError, code=ErrorCode.FENCED_MEMBER_EPOCH): ...
class UnreleasedInstanceId(KafkaError, code=ErrorCode.UNRELEASED_INSTANCE_ID): ...
class UnsupportedAssignor(KafkaError, code=ErrorCode.UNSUPPORTED_ASSIGNOR): ...
class StaleMemberEpoch(KafkaError, code=ErrorCode.STALE_MEMBER_EPOCH): ...
class MismatchedEndpointType(KafkaError, code=ErrorCode.MISMATCHED_ENDPOINT_TYPE): ...
class UnsupportedEndpointType(KafkaError, code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE): ...
class UnknownControllerId(KafkaError, code=ErrorCode.UNKNOWN_CONTROLLER_ID): ...
class UnknownSubscriptionId(KafkaError, code=ErrorCode.UNKNOWN_SUBSCRIPTION_ID): ...
class TelemetryTooLarge(KafkaError, code=ErrorCode.TELEMETRY_TOO_LARGE): ...
class InvalidRegistration(KafkaError, code=ErrorCode.INVALID_REGISTRATION): ...
class TransactionAbortable(KafkaError, code=ErrorCode.TRANSACTION_ABORTABLE): ...
class InvalidRecordState(KafkaError, code=ErrorCode.INVALID_RECORD_STATE): ...
class ShareSessionNotFound(KafkaError, code=ErrorCode.SHARE_SESSION_NOT_FOUND): ...
class InvalidShareSessionEpoch(KafkaError, code=ErrorCode.INVALID_SHARE_SESSION_EPOCH): ...
class FencedStateEpoch(KafkaError, code=ErrorCode.FENCED_STATE_EPOCH): ...
class InvalidVoterKey(KafkaError, code=ErrorCode.INVALID_VOTER_KEY): ...
class DuplicateVoter(KafkaError, code=ErrorCode.DUPLICATE_VOTER): ...
class VoterNotFound(KafkaError, code=ErrorCode.VOTER_NOT_FOUND): ...
class InvalidRegularExpression(KafkaError, code=ErrorCode.INVALID_REGULAR_EXPRESSION): ...
class RebootstrapRequired(KafkaError, code=ErrorCode.REBOOTSTRAP_REQUIRED): ...
class StreamsInvalidTopology(KafkaError, code=ErrorCode.STREAMS_INVALID_TOPOLOGY): ...
class StreamsInvalidTopologyEpoch(KafkaError, code=ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH): ...
class StreamsTopologyFenced(KafkaError, code=ErrorCode.STREAMS_TOPOLOGY_FENCED): ...
class ShareSessionLimitReached(KafkaError, code=ErrorCode.SHARE_SESSION_LIMIT_REACHED): ...
# fmt: on


def error_for_code(code: int, message: str | None = None, **context: Any) -> KafkaError:
    """The exception for a broker's error code: `message` is what the broker said, the keywords where it happened.

    A code that is not known becomes an UnknownServerError that names it. Code 0 is no error: ValueError.
    """
    if code == 0:
        raise ValueError("code 0 is no error")
    cls = _BY_CODE.get(code)
    if cls is None:
        return UnknownServerError(f"unknown error code {code}", detail=message, **context)
    if message is not None:  # a broker's words may begin with the name that stands before them here
        message = message.removeprefix(f"{cls.name}: ")
    return cls(None, detail=message, **context)
