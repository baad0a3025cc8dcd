"""Kafka's error codes as one table: code, name, what a client may do about it, meaning, and what to do. As of Apache Kafka 4.3.

Rules: the table and nothing else; everybody has it from fastq.errors, beside the exceptions.
"""

from __future__ import annotations

from enum import IntEnum

_FATAL = (False, False)  # trying again does not help
_RETRY = (True, False)  # trying again may help: Kafka's RetriableException
_REFRESH = (True, True)  # so it may, after a look at fresh metadata: Kafka's InvalidMetadataException


class ErrorCode(IntEnum):
    """Kafka's error codes (`org.apache.kafka.common.protocol.Errors`); the wire carries them as int16."""

    retriable: bool  # the same request may succeed later
    refresh_metadata: bool  # but only once the client's metadata is fresh
    meaning: str
    cure: str  # what a person does about it; "Nothing" where the client does it. It stands in the reference

    def __new__(cls, code: int, action: tuple[bool, bool] = _FATAL, meaning: str = "", cure: str = "") -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable, member.refresh_metadata = action
        member.meaning = meaning
        member.cure = cure
        return member

    # fmt: off
    UNKNOWN_SERVER_ERROR = (
        -1, _FATAL, "the server failed in a way it has no code for; its log says more",
        "Read the log of the broker that answered, at the time of the request; the cause stands there with its traceback.")
    NONE = 0, _FATAL, "no error"
    OFFSET_OUT_OF_RANGE = (
        1, _FATAL, "the offset lies before the start or past the end of the partition's log",
        "Set auto_offset_reset to earliest or latest, or seek to an offset that is there; longer retention keeps slow readers inside.")
    CORRUPT_MESSAGE = (
        2, _RETRY, "a batch failed its checksum, has a wrong size or is otherwise damaged",
        "Send or read again. When it stays: fastq dump-log --records on the segment, and look at the disk's and the network's health.")
    UNKNOWN_TOPIC_OR_PARTITION = (
        3, _REFRESH, "the broker knows no such topic or partition, or does not host it",
        "Check the name (fastq topics list) and create the topic, or wait some seconds for one that was just made.")
    INVALID_FETCH_SIZE = (
        4, _FATAL, "the fetch size is not valid",
        "Ask for 1 byte or more: fetch_max_bytes and max_partition_fetch_bytes.")
    LEADER_NOT_AVAILABLE = (
        5, _REFRESH, "the partition has no leader at the moment; an election is under way",
        "Wait, the client tries again. When it stays, fastq topics describe shows which replicas are down: start their brokers.")
    NOT_LEADER_OR_FOLLOWER = (
        6, _REFRESH, "the broker asked is not the partition's leader, or no replica of it",
        "Nothing: the client asks who leads now and sends again.")
    REQUEST_TIMED_OUT = (
        7, _RETRY, "the broker could not finish the request within its time-out",
        "Try again. When it stays: of acks=all a follower is slow (fastq topics describe --under-replicated), of others the broker is "
        "busy.")
    BROKER_NOT_AVAILABLE = (
        8, _FATAL, "the broker is not available",
        "See that the broker runs and is let in: fastq cluster nodes.")
    REPLICA_NOT_AVAILABLE = (
        9, _REFRESH, "the replica is not available on this broker",
        "Wait, the client asks elsewhere. When it stays, the replica's log is being recovered or copied, or its directory failed: see "
        "the broker's log, and fastq cluster nodes.")
    MESSAGE_TOO_LARGE = (
        10, _FATAL, "a batch is larger than the topic's max.message.bytes",
        "Send smaller records or batches (batch_size, compression_type), or raise the topic's max.message.bytes.")
    STALE_CONTROLLER_EPOCH = (
        11, _FATAL, "the request comes from a controller that has been replaced",
        "Nothing: the controller that was replaced finds out by this and steps down.")
    OFFSET_METADATA_TOO_LARGE = (
        12, _FATAL, "the metadata string of a committed offset is too long",
        "Shorten the metadata of the commit, or raise the broker's offset.metadata.max.bytes.")
    NETWORK_EXCEPTION = (
        13, _REFRESH, "the connection was lost before the response came",
        "Nothing: the client connects and sends again. When it stays, look at the network and at connections.max.idle.ms of what lies "
        "between.")
    COORDINATOR_LOAD_IN_PROGRESS = (
        14, _RETRY, "the coordinator is still loading its state",
        "Wait, the client tries again: after a start or a move the coordinator reads its log.")
    COORDINATOR_NOT_AVAILABLE = (
        15, _RETRY, "there is no coordinator at the moment; it may be starting or moving",
        "Wait, the client tries again. When it stays, __consumer_offsets or __transaction_state has partitions without a leader.")
    NOT_COORDINATOR = (
        16, _RETRY, "the broker asked is not the coordinator of this group or transactional id",
        "Nothing: the client asks who coordinates now and sends again.")
    INVALID_TOPIC_EXCEPTION = (
        17, _FATAL, "the topic's name is not valid, or the operation is not allowed on this topic",
        "Take 1 to 249 of A-Z a-z 0-9 . _ - (not . or .. alone); do not write to __consumer_offsets or __transaction_state.")
    RECORD_LIST_TOO_LARGE = (
        18, _FATAL, "a batch is larger than a whole segment of the topic (segment.bytes)",
        "Send smaller batches (batch_size), or raise the topic's segment.bytes.")
    NOT_ENOUGH_REPLICAS = (
        19, _RETRY, "fewer replicas are in sync than min.insync.replicas demands; nothing was written",
        "Start the brokers that are down (fastq topics describe --under-replicated); the client tries again until delivery_timeout_ms.")
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20, _RETRY, "the records were written, but min.insync.replicas was not reached",
        "Start the brokers that are down; the client sends again, and idempotence keeps the record from being doubled.")
    INVALID_REQUIRED_ACKS = (
        21, _FATAL, "acks is none of -1 (all), 0 and 1",
        "Set acks to all, 1 or 0.")
    ILLEGAL_GENERATION = (
        22, _FATAL, "the member's generation is not the group's current one",
        "Nothing: the consumer joins its group anew. In a commit of your own, commit what the new assignment has.")
    INCONSISTENT_GROUP_PROTOCOL = (
        23, _FATAL, "the member shares no protocol with the group, or offers none",
        "Give all members of the group one assignor in common (partition_assignment_strategy), or another group_id.")
    INVALID_GROUP_ID = (
        24, _FATAL, "the group id is not valid",
        "Give a group_id that is not empty, and that no other kind of group has.")
    UNKNOWN_MEMBER_ID = (
        25, _FATAL, "the coordinator does not know this member; it has to join again",
        "Nothing: the consumer joins anew. When it recurs, raise session_timeout_ms or max_poll_interval_ms, or handle records faster.")
    INVALID_SESSION_TIMEOUT = (
        26, _FATAL, "the session time-out is outside of what the broker allows",
        "Choose session_timeout_ms within the broker's group.min.session.timeout.ms and group.max.session.timeout.ms.")
    REBALANCE_IN_PROGRESS = (
        27, _FATAL, "the group is rebalancing; the member has to join again",
        "Go on polling, the consumer joins anew; commit after that.")
    INVALID_COMMIT_OFFSET_SIZE = (
        28, _FATAL, "the offset to commit takes too much room",
        "Commit fewer partitions at once, with shorter metadata.")
    TOPIC_AUTHORIZATION_FAILED = (
        29, _FATAL, "the principal may not do this with the topic",
        "Have the cluster's administrator allow the principal to read, write or describe the topic (an ACL): "
        "fastq acls add --allow User:NAME --operation read --topic TOPIC.")
    GROUP_AUTHORIZATION_FAILED = (
        30, _FATAL, "the principal may not do this with the group",
        "Have the cluster's administrator allow the principal to read the group (an ACL): "
        "fastq acls add --allow User:NAME --operation read --group GROUP.")
    CLUSTER_AUTHORIZATION_FAILED = (
        31, _FATAL, "the principal may not do this with the cluster",
        "Have the cluster's administrator allow the principal this operation on the cluster (an ACL).")
    INVALID_TIMESTAMP = (
        32, _FATAL, "a record's timestamp is outside of what the topic allows",
        "Check timestamp_ms (milliseconds since 1970) and the clock; the topic's message.timestamp.before.max.ms and .after.max.ms are "
        "the bounds.")
    UNSUPPORTED_SASL_MECHANISM = (
        33, _FATAL, "the broker does not offer this SASL mechanism",
        "Set sasl_mechanism to one that the broker offers; its answer names them.")
    ILLEGAL_SASL_STATE = (
        34, _FATAL, "the request does not fit the state of the authentication",
        "Give security_protocol as the listener has it: SASL_SSL or SASL_PLAINTEXT where it asks for SASL, and not where it does not.")
    UNSUPPORTED_VERSION = (
        35, _FATAL, "the version of the API is not supported",
        "Update the older of the two, or do without what needs it; fastq api-versions shows what a broker has.")
    TOPIC_ALREADY_EXISTS = (
        36, _FATAL, "a topic of this name exists",
        "Use the topic that is there, or another name; fastq topics create --if-not-exists takes it for done.")
    INVALID_PARTITIONS = (
        37, _FATAL, "the number of partitions is not valid",
        "Ask for 1 partition or more, and never for fewer than there are.")
    INVALID_REPLICATION_FACTOR = (
        38, _FATAL, "the replication factor is below 1 or above the number of brokers",
        "Ask for at least 1 and at most as many replicas as brokers that are let in: fastq cluster nodes.")
    INVALID_REPLICA_ASSIGNMENT = (
        39, _FATAL, "the assignment of replicas is not valid",
        "Name nodes that are there (fastq cluster nodes), each once a partition, as many for all partitions.")
    INVALID_CONFIG = (
        40, _FATAL, "a configuration key or value is not valid",
        "Correct the key or value that the broker's words name; the pages of settings have what is allowed.")
    NOT_CONTROLLER = (
        41, _RETRY, "the node asked is not the active controller",
        "Nothing: the client asks who is the active controller and sends again.")
    INVALID_REQUEST = (
        42, _FATAL, "the request contradicts itself or the protocol",
        "Read the broker's words. From our own client it is a defect: report it with them and the broker's version.")
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (
        43, _FATAL, "the format in which the records are stored does not allow this",
        "Update the broker, or the topic's message.format.version on brokers before Kafka 4.0.")
    POLICY_VIOLATION = (
        44, _FATAL, "a policy of the broker or of the topic forbids this",
        "Keep to the policy that the broker's words name, or have the cluster's administrator change it.")
    OUT_OF_ORDER_SEQUENCE_NUMBER = (
        45, _FATAL, "a producer's batch does not follow on from its last one",
        "A record before this one failed or was lost: abort the transaction, or make a new producer and send again what was not "
        "delivered.")
    DUPLICATE_SEQUENCE_NUMBER = (
        46, _FATAL, "a producer's batch was written before, too long ago to know its offset",
        "Nothing: the record is in the log, only its offset is not known any more.")
    INVALID_PRODUCER_EPOCH = (
        47, _FATAL, "the producer's epoch is older than the one the broker knows",
        "Abort the transaction and begin again; when another producer has taken the transactional_id over, close this one.")
    INVALID_TXN_STATE = (
        48, _FATAL, "the transaction is not in a state that allows this",
        "Begin, commit and abort in that order, each once; abort when the state is not known.")
    INVALID_PRODUCER_ID_MAPPING = (
        49, _FATAL, "the producer id does not belong to the transactional id",
        "Make a new producer: the transactional id was unused for longer than transactional.id.expiration.ms.")
    INVALID_TRANSACTION_TIMEOUT = (
        50, _FATAL, "the transaction time-out is above transaction.max.timeout.ms",
        "Lower transaction_timeout_ms, or raise the broker's transaction.max.timeout.ms.")
    CONCURRENT_TRANSACTIONS = (
        51, _RETRY, "another operation on the same transaction is still going on",
        "Nothing: the client tries again until the earlier transaction is finished.")
    TRANSACTION_COORDINATOR_FENCED = (
        52, _FATAL, "the markers come from a replaced transaction coordinator",
        "Nothing: the new coordinator writes the markers.")
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = (
        53, _FATAL, "the principal may not use this transactional id",
        "Have the cluster's administrator allow the principal to write with this transactional id (an ACL).")
    SECURITY_DISABLED = (
        54, _FATAL, "the broker has no authorizer",
        "Configure an authorizer on the broker first; without one there are no ACLs to read or change.")
    OPERATION_NOT_ATTEMPTED = (
        55, _FATAL, "another part of the same request failed first, so this was not tried",
        "Mend what the other part of the answer names, then send all of it again.")
    KAFKA_STORAGE_ERROR = (
        56, _REFRESH, "the broker could not read or write its disk",
        "The client goes to another replica. Look at the broker's log and disk; replace the disk and restart: fastq log-dirs shows "
        "which failed.")
    LOG_DIR_NOT_FOUND = (
        57, _FATAL, "the broker has no such log directory",
        "Name one of the broker's log.dirs by its absolute path: fastq log-dirs.")
    SASL_AUTHENTICATION_FAILED = (
        58, _FATAL, "the credentials were not accepted",
        "Correct sasl_username and sasl_password, or the token; the broker's words say what it did not accept.")
    UNKNOWN_PRODUCER_ID = (
        59, _FATAL, "the broker has no state of this producer, or no longer",
        "Nothing for an idempotent producer, which begins a new epoch; in a transaction abort it and do it again.")
    REASSIGNMENT_IN_PROGRESS = (
        60, _FATAL, "the partition is being moved",
        "Wait until the move is done (fastq partitions reassign --list), or cancel it.")
    DELEGATION_TOKEN_AUTH_DISABLED = (
        61, _FATAL, "delegation tokens are not enabled",
        "Set delegation.token.secret.key on the brokers (Apache Kafka's; fastq's broker has no delegation tokens).")
    DELEGATION_TOKEN_NOT_FOUND = (
        62, _FATAL, "there is no such delegation token",
        "Create a new token, or correct its id.")
    DELEGATION_TOKEN_OWNER_MISMATCH = (
        63, _FATAL, "the principal neither owns the delegation token nor may renew it",
        "Renew or expire the token as its owner, or as one of its renewers.")
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64, _FATAL, "delegation tokens are not handed out on this kind of connection",
        "Connect with SASL (not with a token) or with TLS and a client certificate, and ask again.")
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = (
        65, _FATAL, "the principal may not do this with the delegation token",
        "Have the cluster's administrator allow the principal this operation on the token (an ACL).")
    DELEGATION_TOKEN_EXPIRED = (
        66, _FATAL, "the delegation token has expired",
        "Create a new token; renew the next one before it ends.")
    INVALID_PRINCIPAL_TYPE = (
        67, _FATAL, "this type of principal is not supported",
        "Name the principal as User:NAME.")
    NON_EMPTY_GROUP = (
        68, _FATAL, "the group has members",
        "Stop the group's members, or remove them (fastq groups remove-members), and try again.")
    GROUP_ID_NOT_FOUND = (
        69, _FATAL, "there is no such group",
        "Check the name: fastq groups list. A group is gone when it is empty and its offsets have expired.")
    FETCH_SESSION_ID_NOT_FOUND = (
        70, _RETRY, "the broker no longer knows the fetch session",
        "Nothing: the client begins a new session.")
    INVALID_FETCH_SESSION_EPOCH = (
        71, _RETRY, "the fetch session's epoch is not the expected one",
        "Nothing: the client begins a new session.")
    LISTENER_NOT_FOUND = (
        72, _REFRESH, "the leader has no listener of the name on which the request came in",
        "Give all brokers listeners of the same names, or let the client bootstrap from a listener that all have.")
    TOPIC_DELETION_DISABLED = (
        73, _FATAL, "the broker is configured not to delete topics",
        "Set delete.topic.enable=true on the brokers.")
    FENCED_LEADER_EPOCH = (
        74, _REFRESH, "the leader epoch of the request is older than the broker's",
        "Nothing: the client asks for fresh metadata.")
    UNKNOWN_LEADER_EPOCH = (
        75, _RETRY, "the leader epoch of the request is newer than the broker's",
        "Nothing: the client tries again until the broker has heard of the new leader.")
    UNSUPPORTED_COMPRESSION_TYPE = (
        76, _FATAL, "the version of the request does not allow this compression type",
        "Take another compression_type, or update the older of client and broker: zstd needs Kafka 2.1.")
    STALE_BROKER_EPOCH = (
        77, _FATAL, "the broker has registered again since the request was made",
        "Nothing: the broker registers anew. When it recurs, two brokers have the same node.id.")
    OFFSET_NOT_AVAILABLE = (
        78, _RETRY, "the new leader's high watermark has not caught up yet",
        "Nothing: the client tries again until the new leader knows.")
    MEMBER_ID_REQUIRED = (
        79, _FATAL, "the member has to join again with the id it was given",
        "Nothing: the consumer joins again with the id.")
    PREFERRED_LEADER_NOT_AVAILABLE = (
        80, _REFRESH, "the preferred leader is not available",
        "Start the broker of the partition's first replica and wait until it is in sync: fastq topics describe.")
    GROUP_MAX_SIZE_REACHED = (
        81, _FATAL, "the group has as many members as it may have",
        "Start fewer members, or raise the broker's group.max.size or group.consumer.max.size.")
    FENCED_INSTANCE_ID = (
        82, _FATAL, "another member has taken over this group.instance.id",
        "Give each member a group_instance_id of its own; end the one of the two that should not run.")
    ELIGIBLE_LEADERS_NOT_AVAILABLE = (
        83, _REFRESH, "no replica that could lead the partition is available",
        "Start a broker that was in sync (fastq topics describe). Only where none comes back: fastq partitions elect unclean, which may "
        "lose records.")
    ELECTION_NOT_NEEDED = (
        84, _REFRESH, "the partition already has the leader asked for",
        "Nothing: the leader is the one that was asked for.")
    NO_REASSIGNMENT_IN_PROGRESS = (
        85, _FATAL, "the partition is not being moved",
        "Nothing to cancel: fastq partitions reassign --list shows what moves.")
    GROUP_SUBSCRIBED_TO_TOPIC = (
        86, _FATAL, "the group is subscribed to the topic, so its offsets cannot be deleted",
        "Stop the members that read the topic, or have them subscribe to others, and try again.")
    INVALID_RECORD = (
        87, _FATAL, "the broker refused a record of the batch",
        "Read the broker's words: a compacted topic asks for a key, and a timestamp may be out of bounds.")
    UNSTABLE_OFFSET_COMMIT = (
        88, _RETRY, "a transaction that commits these offsets is still open",
        "Nothing: the client tries again until the transaction has ended, at the latest by its time-out.")
    THROTTLING_QUOTA_EXCEEDED = (
        89, _RETRY, "the quota is used up",
        "Do it more slowly, or have the cluster's administrator raise the quota.")
    PRODUCER_FENCED = (
        90, _FATAL, "a newer producer uses the same transactional id",
        "Close this producer, the newer one goes on; give each running instance a transactional_id of its own.")
    RESOURCE_NOT_FOUND = (
        91, _FATAL, "the resource that the request names does not exist",
        "Check the names of what the request was for.")
    DUPLICATE_RESOURCE = (
        92, _FATAL, "the request names a resource twice",
        "Name each resource once.")
    UNACCEPTABLE_CREDENTIAL = (
        93, _FATAL, "the credential does not meet the requirements",
        "Give the user a name and a password that are not empty, and iterations within the mechanism's bounds.")
    INCONSISTENT_VOTER_SET = (
        94, _FATAL, "the sender or the receiver is not one of the expected voters",
        "Make controller.quorum.voters the same on all nodes, or use controller.quorum.bootstrap.servers on all.")
    INVALID_UPDATE_VERSION = (
        95, _FATAL, "the version that is asked for, or that the update is based on, is not valid",
        "Describe what is there now, and make the change from that.")
    FEATURE_UPDATE_FAILED = (
        96, _FATAL, "the finalized features could not be updated",
        "See which levels all nodes support (fastq cluster features), update those that lag, and ask for one of these.")
    PRINCIPAL_DESERIALIZATION_FAILURE = (
        97, _FATAL, "the principal of a forwarded request could not be read",
        "Give brokers and controllers the same principal.builder.class.")
    SNAPSHOT_NOT_FOUND = (
        98, _FATAL, "there is no such snapshot",
        "Nothing: the follower asks which snapshot there is now.")
    POSITION_OUT_OF_RANGE = (
        99, _FATAL, "the position is negative or past the end of the snapshot",
        "Nothing: the follower begins the snapshot again.")
    UNKNOWN_TOPIC_ID = (
        100, _REFRESH, "the broker knows no topic of this id",
        "Nothing: the client asks for fresh metadata. When it stays, the topic was deleted: make it again, or read another.")
    DUPLICATE_BROKER_REGISTRATION = (
        101, _FATAL, "another broker uses this node id",
        "Give each node a node.id of its own; after a crash wait broker.session.timeout.ms for the old one to be fenced.")
    BROKER_ID_NOT_REGISTERED = (
        102, _FATAL, "no broker of this id is registered",
        "Check the id: fastq cluster nodes.")
    INCONSISTENT_TOPIC_ID = (
        103, _REFRESH, "the topic has another id than the request says; it may be a new topic",
        "Nothing: the client asks for fresh metadata. A topic that was deleted and made again is a new one, with other records.")
    INCONSISTENT_CLUSTER_ID = (
        104, _FATAL, "the request is meant for another cluster",
        "Point the node at its own cluster's controllers, or format its directories for this one: cluster.id is in meta.properties.")
    TRANSACTIONAL_ID_NOT_FOUND = (
        105, _FATAL, "there is no such transactional id",
        "Check the name: fastq transactions list. An id is forgotten after transactional.id.expiration.ms without use.")
    FETCH_SESSION_TOPIC_ID_ERROR = (
        106, _RETRY, "the fetch session mixes topic names and topic ids",
        "Nothing: the client begins a new session.")
    INELIGIBLE_REPLICA = (
        107, _FATAL, "a replica of the new ISR may not be in it",
        "Nothing: the leader asks again once the replica's broker is let in and its directory serves.")
    NEW_LEADER_ELECTED = (
        108, _FATAL, "the ISR was changed, but another leader was elected at the same time",
        "Nothing: the change is made, and the new leader goes on from it.")
    OFFSET_MOVED_TO_TIERED_STORAGE = (
        109, _FATAL, "the offset is in remote storage only",
        "Read from a broker with tiered storage; fastq's broker has none, its followers begin at what is local.")
    FENCED_MEMBER_EPOCH = (
        110, _FATAL, "the member is fenced: it gives up its partitions and joins again",
        "Nothing: the consumer gives up its partitions and joins anew. When it recurs, handle records faster or raise the session time- "
        "out.")
    UNRELEASED_INSTANCE_ID = (
        111, _FATAL, "another member still uses this group.instance.id and has to leave first",
        "End the other member of this group_instance_id, or wait until its session is over.")
    UNSUPPORTED_ASSIGNOR = (
        112, _FATAL, "the group does not support the assignor",
        "Set group_remote_assignor to one of the broker's group.consumer.assignors.")
    STALE_MEMBER_EPOCH = (
        113, _FATAL, "the member's epoch is out of date; it gets the new one with its next heartbeat",
        "Nothing: the consumer tries again with the new epoch.")
    MISMATCHED_ENDPOINT_TYPE = (
        114, _FATAL, "the request was sent to the wrong kind of endpoint",
        "Give clients the listeners of brokers, and not those of controllers (controller.listener.names).")
    UNSUPPORTED_ENDPOINT_TYPE = (
        115, _FATAL, "this kind of endpoint is not supported",
        "Ask a broker for brokers; update one that does not know of controllers.")
    UNKNOWN_CONTROLLER_ID = (
        116, _FATAL, "no controller of this id is known",
        "Check the id: fastq quorum status.")
    UNKNOWN_SUBSCRIPTION_ID = (
        117, _FATAL, "the telemetry subscription is not known or out of date",
        "Nothing: the client asks for its subscription again.")
    TELEMETRY_TOO_LARGE = (
        118, _FATAL, "the telemetry is larger than the broker takes",
        "Subscribe to fewer metrics (fastq client-metrics set), or raise the broker's telemetry.max.bytes.")
    INVALID_REGISTRATION = (
        119, _FATAL, "the controller does not accept the broker's registration",
        "Read the broker's log: its listeners, features or directories are not what this cluster takes.")
    TRANSACTION_ABORTABLE = (
        120, _FATAL, "the transaction has failed and has to be aborted",
        "Abort the transaction and do it again with the same producer.")
    INVALID_RECORD_STATE = (
        121, _FATAL, "the record is not in a state in which it can be acknowledged",
        "Acknowledge a record of a share group once, before its lock is over (group.share.record.lock.duration.ms).")
    SHARE_SESSION_NOT_FOUND = (
        122, _RETRY, "the broker does not know the share session",
        "The client of the share group begins a new session (fastq has no share groups: this is another client's).")
    INVALID_SHARE_SESSION_EPOCH = (
        123, _RETRY, "the share session's epoch is not the expected one",
        "The client of the share group begins a new session (fastq has no share groups: this is another client's).")
    FENCED_STATE_EPOCH = (
        124, _FATAL, "the share group's state epoch is not the coordinator's",
        "Nothing: the new owner of the share partition goes on (fastq has no share groups: this is another client's).")
    INVALID_VOTER_KEY = (
        125, _FATAL, "the voter key is not that of the node asked",
        "Name the controller's directory.id as its meta.properties has it: fastq quorum status.")
    DUPLICATE_VOTER = (
        126, _FATAL, "the node is a voter already",
        "Nothing, when it is the same directory; else remove the old voter first: fastq quorum remove-controller.")
    VOTER_NOT_FOUND = (
        127, _FATAL, "the node is no voter",
        "Check id and directory: fastq quorum status.")
    INVALID_REGULAR_EXPRESSION = (
        128, _FATAL, "the regular expression is not valid",
        "Write the pattern in RE2's syntax, as the broker's words say: it has no look-around and no back-references.")
    REBOOTSTRAP_REQUIRED = (
        129, _FATAL, "the client has to start from the bootstrap servers again",
        "Nothing: the client does so, unless metadata_recovery_strategy is none.")
    STREAMS_INVALID_TOPOLOGY = (
        130, _FATAL, "the topology is not valid",
        "Correct the topology of the Kafka Streams program (fastq has none: this is another client's).")
    STREAMS_INVALID_TOPOLOGY_EPOCH = (
        131, _FATAL, "the topology's epoch is not valid",
        "Give the Kafka Streams program the epoch of its topology (fastq has none: this is another client's).")
    STREAMS_TOPOLOGY_FENCED = (
        132, _FATAL, "the topology's epoch is out of date",
        "Update the member of the Kafka Streams group to the newer topology (fastq has none: this is another client's).")
    SHARE_SESSION_LIMIT_REACHED = (
        133, _RETRY, "the broker has as many share sessions as it may have",
        "Wait, or have fewer members of share groups at a broker (fastq has no share groups: this is another client's).")
    # fmt: on
