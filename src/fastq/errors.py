"""Every error of fastq: Kafka's error codes as one table, and a short tree of exceptions.

Rules: `ErrorCode` is the table (code, name, what a client may do about it, meaning), as of Apache Kafka 4.3. The broker
answers with codes; the client turns a code into an exception with `error_for_code`. An exception carries what is
known of where it happened as attributes, says it in its message, and survives pickling.

    FastqError
      KafkaError              the broker answered with an error code: one subclass a code
      ConnectionFailed        no usable connection: one subclass a cause
      ProtocolError           a peer sent bytes that are not the protocol
      ClientClosed, ForkedClient, DeliveryTimeout, BufferTimeout, ConfigError,
      SerializationError, DeserializationError, SchemaRegistryError, LoadingWouldBlock, CorruptRecord
      WakeupError, MaxPollIntervalExceeded, NotAssigned, RecordFailed   a consumer's
      TransactionError        a transaction of a producer
        AbortableTransactionError   abort it and do it again with the same producer
        FatalTransactionError       this producer is of no more use: TransactionFenced, and what else is for good
        TransactionAborted, TransactionTimeout, TransactionStateError
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar

_FATAL = (False, False)  # trying again does not help
_RETRY = (True, False)  # trying again may help: Kafka's RetriableException
_REFRESH = (True, True)  # so it may, after a look at fresh metadata: Kafka's InvalidMetadataException


class ErrorCode(IntEnum):
    """Kafka's error codes (`org.apache.kafka.common.protocol.Errors`); the wire carries them as int16."""

    retriable: bool  # the same request may succeed later
    refresh_metadata: bool  # but only once the client's metadata is fresh
    meaning: str

    def __new__(cls, code: int, action: tuple[bool, bool] = _FATAL, meaning: str = "") -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable, member.refresh_metadata = action
        member.meaning = meaning
        return member

    # fmt: off
    UNKNOWN_SERVER_ERROR = -1, _FATAL, "the server failed in a way it has no code for; its log says more"
    NONE = 0, _FATAL, "no error"
    OFFSET_OUT_OF_RANGE = 1, _FATAL, "the offset lies before the start or past the end of the partition's log"
    CORRUPT_MESSAGE = 2, _RETRY, "a batch failed its checksum, has a wrong size or is otherwise damaged"
    UNKNOWN_TOPIC_OR_PARTITION = 3, _REFRESH, "the broker knows no such topic or partition, or does not host it"
    INVALID_FETCH_SIZE = 4, _FATAL, "the fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, _REFRESH, "the partition has no leader at the moment; an election is under way"
    NOT_LEADER_OR_FOLLOWER = 6, _REFRESH, "the broker asked is not the partition's leader, or no replica of it"
    REQUEST_TIMED_OUT = 7, _RETRY, "the broker could not finish the request within its time-out"
    BROKER_NOT_AVAILABLE = 8, _FATAL, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, _REFRESH, "the replica is not available on this broker"
    MESSAGE_TOO_LARGE = 10, _FATAL, "a batch is larger than the topic's max.message.bytes"
    STALE_CONTROLLER_EPOCH = 11, _FATAL, "the request comes from a controller that has been replaced"
    OFFSET_METADATA_TOO_LARGE = 12, _FATAL, "the metadata string of a committed offset is too long"
    NETWORK_EXCEPTION = 13, _REFRESH, "the connection was lost before the response came"
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRY, "the coordinator is still loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, _RETRY, "there is no coordinator at the moment; it may be starting or moving"
    NOT_COORDINATOR = 16, _RETRY, "the broker asked is not the coordinator of this group or transactional id"
    INVALID_TOPIC_EXCEPTION = 17, _FATAL, "the topic's name is not valid, or the operation is not allowed on this topic"
    RECORD_LIST_TOO_LARGE = 18, _FATAL, "a batch is larger than a whole segment of the topic (segment.bytes)"
    NOT_ENOUGH_REPLICAS = 19, _RETRY, "fewer replicas are in sync than min.insync.replicas demands; nothing was written"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _RETRY, "the records were written, but min.insync.replicas was not reached"
    INVALID_REQUIRED_ACKS = 21, _FATAL, "acks is none of -1 (all), 0 and 1"
    ILLEGAL_GENERATION = 22, _FATAL, "the member's generation is not the group's current one"
    INCONSISTENT_GROUP_PROTOCOL = 23, _FATAL, "the member shares no protocol with the group, or offers none"
    INVALID_GROUP_ID = 24, _FATAL, "the group id is not valid"
    UNKNOWN_MEMBER_ID = 25, _FATAL, "the coordinator does not know this member; it has to join again"
    INVALID_SESSION_TIMEOUT = 26, _FATAL, "the session time-out is outside of what the broker allows"
    REBALANCE_IN_PROGRESS = 27, _FATAL, "the group is rebalancing; the member has to join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, _FATAL, "the offset to commit takes too much room"
    TOPIC_AUTHORIZATION_FAILED = 29, _FATAL, "the principal may not do this with the topic"
    GROUP_AUTHORIZATION_FAILED = 30, _FATAL, "the principal may not do this with the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, _FATAL, "the principal may not do this with the cluster"
    INVALID_TIMESTAMP = 32, _FATAL, "a record's timestamp is outside of what the topic allows"
    UNSUPPORTED_SASL_MECHANISM = 33, _FATAL, "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, _FATAL, "the request does not fit the state of the authentication"
    UNSUPPORTED_VERSION = 35, _FATAL, "the version of the API is not supported"
    TOPIC_ALREADY_EXISTS = 36, _FATAL, "a topic of this name exists"
    INVALID_PARTITIONS = 37, _FATAL, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, _FATAL, "the replication factor is below 1 or above the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, _FATAL, "the assignment of replicas is not valid"
    INVALID_CONFIG = 40, _FATAL, "a configuration key or value is not valid"
    NOT_CONTROLLER = 41, _RETRY, "the node asked is not the active controller"
    INVALID_REQUEST = 42, _FATAL, "the request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FATAL, "the format in which the records are stored does not allow this"
    POLICY_VIOLATION = 44, _FATAL, "a policy of the broker or of the topic forbids this"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _FATAL, "a producer's batch does not follow on from its last one"
    DUPLICATE_SEQUENCE_NUMBER = 46, _FATAL, "a producer's batch was written before, too long ago to know its offset"
    INVALID_PRODUCER_EPOCH = 47, _FATAL, "the producer's epoch is older than the one the broker knows"
    INVALID_TXN_STATE = 48, _FATAL, "the transaction is not in a state that allows this"
    INVALID_PRODUCER_ID_MAPPING = 49, _FATAL, "the producer id does not belong to the transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, _FATAL, "the transaction time-out is above transaction.max.timeout.ms"
    CONCURRENT_TRANSACTIONS = 51, _RETRY, "another operation on the same transaction is still going on"
    TRANSACTION_COORDINATOR_FENCED = 52, _FATAL, "the markers come from a replaced transaction coordinator"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _FATAL, "the principal may not use this transactional id"
    SECURITY_DISABLED = 54, _FATAL, "the broker has no authorizer"
    OPERATION_NOT_ATTEMPTED = 55, _FATAL, "another part of the same request failed first, so this was not tried"
    KAFKA_STORAGE_ERROR = 56, _REFRESH, "the broker could not read or write its disk"
    LOG_DIR_NOT_FOUND = 57, _FATAL, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, _FATAL, "the credentials were not accepted"
    UNKNOWN_PRODUCER_ID = 59, _FATAL, "the broker has no state of this producer, or no longer"
    REASSIGNMENT_IN_PROGRESS = 60, _FATAL, "the partition is being moved"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _FATAL, "delegation tokens are not enabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, _FATAL, "there is no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _FATAL, "the principal neither owns the delegation token nor may renew it"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, _FATAL, "delegation tokens are not handed out on this kind of connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _FATAL, "the principal may not do this with the delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, _FATAL, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, _FATAL, "this type of principal is not supported"
    NON_EMPTY_GROUP = 68, _FATAL, "the group has members"
    GROUP_ID_NOT_FOUND = 69, _FATAL, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRY, "the broker no longer knows the fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, _RETRY, "the fetch session's epoch is not the expected one"
    LISTENER_NOT_FOUND = 72, _REFRESH, "the leader has no listener of the name on which the request came in"
    TOPIC_DELETION_DISABLED = 73, _FATAL, "the broker is configured not to delete topics"
    FENCED_LEADER_EPOCH = 74, _REFRESH, "the leader epoch of the request is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, _RETRY, "the leader epoch of the request is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, _FATAL, "the version of the request does not allow this compression type"
    STALE_BROKER_EPOCH = 77, _FATAL, "the broker has registered again since the request was made"
    OFFSET_NOT_AVAILABLE = 78, _RETRY, "the new leader's high watermark has not caught up yet"
    MEMBER_ID_REQUIRED = 79, _FATAL, "the member has to join again with the id it was given"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _REFRESH, "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, _FATAL, "the group has as many members as it may have"
    FENCED_INSTANCE_ID = 82, _FATAL, "another member has taken over this group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _REFRESH, "no replica that could lead the partition is available"
    ELECTION_NOT_NEEDED = 84, _REFRESH, "the partition already has the leader asked for"
    NO_REASSIGNMENT_IN_PROGRESS = 85, _FATAL, "the partition is not being moved"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _FATAL, "the group is subscribed to the topic, so its offsets cannot be deleted"
    INVALID_RECORD = 87, _FATAL, "the broker refused a record of the batch"
    UNSTABLE_OFFSET_COMMIT = 88, _RETRY, "a transaction that commits these offsets is still open"
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRY, "the quota is used up"
    PRODUCER_FENCED = 90, _FATAL, "a newer producer uses the same transactional id"
    RESOURCE_NOT_FOUND = 91, _FATAL, "the resource that the request names does not exist"
    DUPLICATE_RESOURCE = 92, _FATAL, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, _FATAL, "the credential does not meet the requirements"
    INCONSISTENT_VOTER_SET = 94, _FATAL, "the sender or the receiver is not one of the expected voters"
    INVALID_UPDATE_VERSION = 95, _FATAL, "the version the update is based on is no longer the current one"
    FEATURE_UPDATE_FAILED = 96, _FATAL, "the finalized features could not be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _FATAL, "the principal of a forwarded request could not be read"
    SNAPSHOT_NOT_FOUND = 98, _FATAL, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, _FATAL, "the position is negative or past the end of the snapshot"
    UNKNOWN_TOPIC_ID = 100, _REFRESH, "the broker knows no topic of this id"
    DUPLICATE_BROKER_REGISTRATION = 101, _FATAL, "another broker uses this node id"
    BROKER_ID_NOT_REGISTERED = 102, _FATAL, "no broker of this id is registered"
    INCONSISTENT_TOPIC_ID = 103, _REFRESH, "the topic has another id than the request says; it may be a new topic"
    INCONSISTENT_CLUSTER_ID = 104, _FATAL, "the request is meant for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, _FATAL, "there is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRY, "the fetch session mixes topic names and topic ids"
    INELIGIBLE_REPLICA = 107, _FATAL, "a replica of the new ISR may not be in it"
    NEW_LEADER_ELECTED = 108, _FATAL, "the ISR was changed, but another leader was elected at the same time"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _FATAL, "the offset is in remote storage only"
    FENCED_MEMBER_EPOCH = 110, _FATAL, "the member is fenced: it gives up its partitions and joins again"
    UNRELEASED_INSTANCE_ID = 111, _FATAL, "another member still uses this group.instance.id and has to leave first"
    UNSUPPORTED_ASSIGNOR = 112, _FATAL, "the group does not support the assignor"
    STALE_MEMBER_EPOCH = 113, _FATAL, "the member's epoch is out of date; it gets the new one with its next heartbeat"
    MISMATCHED_ENDPOINT_TYPE = 114, _FATAL, "the request was sent to the wrong kind of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FATAL, "this kind of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, _FATAL, "no controller of this id is known"
    UNKNOWN_SUBSCRIPTION_ID = 117, _FATAL, "the telemetry subscription is not known or out of date"
    TELEMETRY_TOO_LARGE = 118, _FATAL, "the telemetry is larger than the broker takes"
    INVALID_REGISTRATION = 119, _FATAL, "the controller does not accept the broker's registration"
    TRANSACTION_ABORTABLE = 120, _FATAL, "the transaction has failed and has to be aborted"
    INVALID_RECORD_STATE = 121, _FATAL, "the record is not in a state in which it can be acknowledged"
    SHARE_SESSION_NOT_FOUND = 122, _RETRY, "the broker does not know the share session"
    INVALID_SHARE_SESSION_EPOCH = 123, _RETRY, "the share session's epoch is not the expected one"
    FENCED_STATE_EPOCH = 124, _FATAL, "the share group's state epoch is not the coordinator's"
    INVALID_VOTER_KEY = 125, _FATAL, "the voter key is not that of the node asked"
    DUPLICATE_VOTER = 126, _FATAL, "the node is a voter already"
    VOTER_NOT_FOUND = 127, _FATAL, "the node is no voter"
    INVALID_REGULAR_EXPRESSION = 128, _FATAL, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, _FATAL, "the client has to start from the bootstrap servers again"
    STREAMS_INVALID_TOPOLOGY = 130, _FATAL, "the topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _FATAL, "the topology's epoch is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, _FATAL, "the topology's epoch is out of date"
    SHARE_SESSION_LIMIT_REACHED = 133, _RETRY, "the broker has as many share sessions as it may have"
    # fmt: on


class FastqError(Exception):
    """Base of all errors that fastq raises on purpose.

    `message` is the sentence; the keywords say where it happened and become attributes. `hint` says what to do.
    """

    retriable: bool = False
    broker: str | None = None  # host:port, or a node's id where that is all that is known
    api: str | None = None
    topic: str | None = None
    partition: int | None = None
    hint: str | None = None
    default_message: ClassVar[str] = "fastq failed"

    def __init__(self, message: str | None = None, **context: Any) -> None:
        self.message = message if message is not None else self.default_message
        self.context = {name: value for name, value in context.items() if value is not None}
        super().__init__(self.message)
        for name, value in self.context.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        shown = ", ".join(
            f"{name} {_short(value)}" for name, value in self.context.items() if name not in ("hint", "cause")
        )
        text = f"{self.message} [{shown}]" if shown else self.message
        cause = self.context.get("cause")
        if cause is not None:
            text += f": {cause}"
        return f"{text}. {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.context)


def _rebuild(cls: type[FastqError], message: str, context: dict[str, Any]) -> FastqError:
    return cls(message, **context)


def _short(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    text = str(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


class KafkaError(FastqError):
    """The broker answered with an error code. `detail` is what the broker said about it, when it said something."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    name: str = "UNKNOWN_SERVER_ERROR"
    refresh_metadata: bool = False
    detail: str | None = None
    default_message = "the broker answered with an error"

    def __init_subclass__(cls, code: ErrorCode | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if code is None:
            return
        cls.code = code
        cls.name = code.name
        cls.retriable = code.retriable
        cls.refresh_metadata = code.refresh_metadata
        cls.default_message = f"{code.name} ({int(code)}): {code.meaning}"
        cls.__doc__ = f"{code.name} ({int(code)}): {code.meaning}."
        _BY_CODE[code] = cls


_BY_CODE: dict[int, type[KafkaError]] = {}


class ConnectionFailed(FastqError):
    """No usable connection to a broker. `phase` says how far it came, `cause` what the system said."""

    retriable = True
    phase: str | None = None  # resolve, connect, tls, api versions, sasl, ready
    cause: BaseException | str | None = None
    default_message = "the connection to the broker failed"


class NameNotResolved(ConnectionFailed):
    """The broker's host name has no address."""

    default_message = "the broker's host name could not be resolved"


class ConnectionRefused(ConnectionFailed):
    """Nothing listens at the broker's address."""

    default_message = "the broker refused the connection"


class ConnectionTimeout(ConnectionFailed):
    """The broker did not answer in time."""

    default_message = "the broker did not answer in time"


class ConnectionClosed(ConnectionFailed):
    """The peer closed the connection, or it broke."""

    default_message = "the connection was closed"


class NotAKafkaBroker(ConnectionFailed):
    """Something listens there, but it does not speak Kafka's protocol."""

    retriable = False
    default_message = "the peer does not speak the Kafka protocol"


class TlsExpected(ConnectionFailed):
    """The listener wants TLS and the client does not use it, or the other way round."""

    retriable = False
    default_message = "client and broker disagree on TLS"


class UnsupportedVersion(ConnectionFailed, KafkaError, code=ErrorCode.UNSUPPORTED_VERSION):
    """Broker and client share no version of an API; also what a broker's code 35 becomes."""

    retriable = False


class ProtocolError(FastqError):
    """A peer sent bytes that are not what the protocol says they are."""

    default_message = "the peer sent a malformed message"


class ClientClosed(FastqError):
    """The client was used after it was closed, or closed while this was waiting."""

    default_message = "the client is closed"


class ForkedClient(FastqError):
    """The client was made by the parent of this process; its sockets and threads stayed there."""

    default_message = "the client belongs to the parent process: make a new one after the fork"


class DeliveryTimeout(FastqError):
    """A record was not acknowledged within delivery_timeout_ms; it may or may not have been written."""

    default_message = "the record was not acknowledged within delivery_timeout_ms"


class BufferTimeout(FastqError):
    """The buffer or the metadata was not available within max_block_ms; the record was not accepted."""

    retriable = True
    default_message = "no room in the buffer, or no metadata, within max_block_ms"


class ConfigError(FastqError, ValueError):
    """A configuration that cannot be: an unknown key, a bad value, or two that exclude each other."""

    default_message = "the configuration is not valid"


class SerializationError(FastqError):
    """A serializer could not turn a key or a value into bytes; the record was not sent."""

    default_message = "the record could not be serialized"


class DeserializationError(FastqError):
    """A deserializer could not read a record; `raw` has its bytes."""

    offset: int | None = None
    raw: Any = None
    default_message = "the record could not be deserialized"


class WakeupError(FastqError):
    """`Consumer.wakeup` was called: the call that waited, or the next one that would, ends with this. Nothing is lost."""

    default_message = "the consumer was woken up"


class MaxPollIntervalExceeded(FastqError):
    """A record took longer than max_poll_interval_ms: the member left its group, and others may read its partitions by now.

    topic, partition, offset: the record that was being handled (the last one, after a `poll` of several; None when none was).
    """

    group: str | None = None
    offset: int | None = None
    elapsed_s: float | None = None
    default_message = "the application did not poll within max_poll_interval_ms"


class NotAssigned(FastqError):
    """A commit for a partition that is not, or no longer, assigned to this consumer. Nothing was committed."""

    group: str | None = None
    member: str | None = None
    generation: int | None = None
    default_message = "the partition is not assigned to this consumer"


class RecordFailed(FastqError):
    """The handler failed for a record for as often as it may, and there is nowhere else to put it. `cause` is its last error."""

    offset: int | None = None
    attempts: int | None = None
    cause: BaseException | None = None
    default_message = "a record could not be handled"


class TransactionError(FastqError):
    """Something about a transaction; `transactional_id` says whose. `cause` is the error that led to it, if there is one."""

    transactional_id: str | None = None
    cause: BaseException | None = None
    default_message = "the transaction failed"


class AbortableTransactionError(TransactionError):
    """The transaction cannot be committed. Abort it (the end of a `with producer.transaction()` does), and do it again."""

    default_message = "the transaction cannot be committed"


class FatalTransactionError(TransactionError):
    """The producer can do no more transactions, and its open one is not committed. Close it and make a new one."""

    default_message = "the producer can do no more transactions"


class TransactionFenced(FatalTransactionError):
    """A newer producer has taken the transactional id over, or the transaction was open for too long."""

    default_message = "the producer was fenced off"


class TransactionAborted(TransactionError):
    """The record was not written, or no read_committed consumer will see it: its transaction was aborted."""

    default_message = "the transaction of this record was aborted"


class TransactionTimeout(TransactionError, TimeoutError):
    """The coordinator did not answer in time. Nothing is decided by it: call the same method again to go on waiting."""

    retriable = True
    default_message = "the transaction coordinator did not answer in time"


class TransactionStateError(TransactionError):
    """A call that does not fit the state of the producer: a send outside of a transaction, a commit without one."""

    default_message = "this call does not fit the state of the transaction"


class SchemaRegistryError(FastqError):
    """A schema registry refused, failed or could not be reached. `status` is HTTP's (None: no answer), `error_code` its own."""

    url: str | None = None
    subject: str | None = None
    schema_id: int | None = None
    status: int | None = None
    error_code: int | None = None
    default_message = "the schema registry failed"


class LoadingWouldBlock(FastqError):
    """A serializer or deserializer needs something from elsewhere, and the thread that asks runs an event loop.

    `load()` gets it, in another thread; after that the same call succeeds.
    """

    load: Callable[[], object] | None = None
    default_message = "what this needs has not been loaded, and loading it would block the event loop"


class CorruptRecord(FastqError):
    """Stored or received records fail their checksum or their structure."""

    file: str | None = None
    position: int | None = None
    offset: int | None = None
    default_message = "the records are corrupt"


# One exception a code; a class's documentation is the code's meaning.
# fmt: off
class UnknownServerError(KafkaError, code=ErrorCode.UNKNOWN_SERVER_ERROR): ...
class OffsetOutOfRange(KafkaError, code=ErrorCode.OFFSET_OUT_OF_RANGE): ...
class CorruptMessage(KafkaError, code=ErrorCode.CORRUPT_MESSAGE): ...
class UnknownTopicOrPartition(KafkaError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): ...
class InvalidFetchSize(KafkaError, code=ErrorCode.INVALID_FETCH_SIZE): ...
class LeaderNotAvailable(KafkaError, code=ErrorCode.LEADER_NOT_AVAILABLE): ...
class NotLeaderOrFollower(KafkaError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER): ...
class RequestTimedOut(KafkaError, code=ErrorCode.REQUEST_TIMED_OUT): ...
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
class TopicAuthorizationFailed(KafkaError, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED): ...
class GroupAuthorizationFailed(KafkaError, code=ErrorCode.GROUP_AUTHORIZATION_FAILED): ...
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
    return cls(None, detail=message, **context)
