"""Broker keys that do something here, those that map to another, and those of Kafka 0.7 to 3.x.

Rules: one row a key. `DONE` keys are attributes of `BrokerConfig` (a test holds the two equal); `MAPPED` keys write
their value into another key, converted; `REMOVED` keys come from older Kafka and are ignored with the reason.
Keys of our own carry their unit in the name. Defaults are Kafka's, but for node.id, log.dirs, queued.max.request.bytes, and the
socket buffers and backlog, which the system and today's kernels choose better than 100 KiB and 50.
"""

from __future__ import annotations

from fastq_broker.config_keys import (
    GZIP_LEVEL,
    INT32_MAX,
    INT64_MAX,
    Check,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Status,
    at_least,
    between,
    list_of,
    one_of,
    table_of,
)
from fastq_broker.config_table_cluster import CLUSTER
from fastq_broker.config_table_ignored import IGNORED

BOOLEAN = ConfigType.BOOLEAN
STRING = ConfigType.STRING
INT = ConfigType.INT
SHORT = ConfigType.SHORT
LONG = ConfigType.LONG
DOUBLE = ConfigType.DOUBLE
LIST = ConfigType.LIST

CODECS = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
DURABILITY = one_of("page-cache", "fsync")
ASSIGNORS = Check(
    "a list of uniform, range, with one of them at least",
    lambda value: bool(value) and all(name in ("uniform", "range") for name in value),
)
SECURITY_MAP = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"


def row(
    name: str,
    type: ConfigType,
    default: ConfigValue,
    check: Check | None = None,
    doc: str = "",
    *,
    dynamic: bool = False,
) -> ConfigKey:
    return ConfigKey(name, type, default, check, doc=doc, dynamic=dynamic)


NODE = (
    row("node.id", INT, 1, at_least(0), "The number of this node, unique in its cluster."),
    row("process.roles", LIST, ["broker", "controller"], list_of("broker", "controller"), "What this node does."),
    row("broker.rack", STRING, None, doc="The rack of this node, for spreading replicas."),
    row("log.dirs", LIST, ["fastq-data"], doc="Directories that hold the logs."),
    row(
        "cordoned.log.dirs",
        LIST,
        [],
        doc="Those of log.dirs that get no new replicas (KIP-1066), or `*` for all of them; what is there stays. Altered by a "
        "broker's id, at that broker.",
        dynamic=True,
    ),
    row("metadata.log.dir", STRING, None, doc="Where the metadata log lives; the first of log.dirs when not set."),
    row("durability", STRING, "page-cache", DURABILITY, "When a record counts as written: page-cache or fsync."),
)

DISK = (
    row(
        "disk.warn.free.bytes",
        LONG,
        -1,
        at_least(-1),
        "A log directory with less free space is warned of; -1: a twentieth of its file system, 16 GiB at most; 0: never. fastq's own.",
        dynamic=True,
    ),
    row(
        "disk.refuse.free.bytes",
        LONG,
        -1,
        at_least(-1),
        "With less free space clients' records are refused (KAFKA_STORAGE_ERROR, which they try again), the broker's own and followers' "
        "are not; -1: a hundredth of the file system, 256 MiB at most; 0: only once the disk is full. fastq's own.",
        dynamic=True,
    ),
    row(
        "disk.ballast.bytes",
        LONG,
        0,
        at_least(0),
        "A file of this size in each log directory, which is given up when clients' records are refused, and made anew when there is room "
        "again; 0: none. fastq's own.",
        dynamic=True,
    ),
)

LISTENERS = (
    row("listeners", LIST, ["PLAINTEXT://:9092"], doc="NAME://host:port to listen on; port 0 takes a free one."),
    row("advertised.listeners", LIST, None, doc="NAME://host:port that clients are told; the listeners when not set."),
    row("listener.security.protocol.map", STRING, SECURITY_MAP, doc="Listener names and their security protocols."),
    row("inter.broker.listener.name", STRING, None, doc="The listener between brokers; the first one when not set."),
    row("controller.listener.names", LIST, ["CONTROLLER"], doc="Names of the listeners for controllers."),
    row(
        "socket.listen.backlog.size", INT, 1024, at_least(1), "Connections the system queues before they are accepted."
    ),
    row("socket.request.max.bytes", INT, 104857600, at_least(1), "The largest request; a larger one closes."),
    row("non.produce.request.max.bytes", INT, 8388608, at_least(1), "The largest request that is not Produce."),
    row(
        "queued.max.request.bytes",
        LONG,
        1073741824,
        doc="Bytes of large requests that are received or served at one time; 0 or less: no bound.",
    ),
    # Kafka: 102400. A socket that grows as it likes moves a log at half the speed and thrice the CPU (its bytes leave the
    # processor's cache before the reader gets them); measured best on loopback at 200 to 300 kB, and enough for a far reader.
    row("socket.send.buffer.bytes", INT, 262144, at_least(-1), "SO_SNDBUF of a connection; -1 leaves the system's."),
    row("socket.receive.buffer.bytes", INT, -1, at_least(-1), "SO_RCVBUF of a connection; -1 leaves the system's."),
    row("max.connections", INT, INT32_MAX, at_least(0), "Connections at one time in all."),
    row("max.connections.per.ip", INT, INT32_MAX, at_least(0), "Connections at one time from one address."),
    row(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        doc="address:count pairs that stand above the limit per ip; a host's name stands for the addresses that it has at the start.",
    ),
    row(
        "connections.max.idle.ms",
        LONG,
        600000,
        doc="A connection that no byte has gone over for so long is closed; 0 or less: never.",
    ),
    row("fetch.max.bytes", INT, 57671680, at_least(1024), "The most one Fetch returns, whatever it asks for."),
    row("max.incremental.fetch.session.cache.slots", INT, 1000, at_least(0), "Fetch sessions kept."),
    row("max.request.partition.size.limit", INT, 2000, at_least(1), "Partitions in one DescribeTopicPartitions."),
)

TOPICS = (
    row("num.partitions", INT, 1, at_least(1), "Partitions of a topic that does not say."),
    row("default.replication.factor", INT, 1, at_least(1), "Replicas of a topic that does not say."),
    row("auto.create.topics.enable", BOOLEAN, True, doc="A metadata request may create the topics it names."),
    row("delete.topic.enable", BOOLEAN, True, doc="Topics may be deleted."),
    row("offsets.topic.num.partitions", INT, 50, at_least(1), "Partitions of __consumer_offsets."),
    row(
        "offsets.topic.replication.factor",
        SHORT,
        3,
        at_least(1),
        "Replicas of __consumer_offsets, where brokers are registered.",
    ),
    row("offsets.topic.segment.bytes", INT, 104857600, at_least(1048576), "Segment size of __consumer_offsets."),
    row("transaction.state.log.num.partitions", INT, 50, at_least(1), "Partitions of __transaction_state."),
    row("transaction.state.log.replication.factor", SHORT, 3, at_least(1), "Replicas of __transaction_state."),
    row(
        "transaction.state.log.segment.bytes", INT, 104857600, at_least(1048576), "Segment size of __transaction_state."
    ),
    row("transaction.state.log.min.isr", INT, 2, at_least(1), "min.insync.replicas of __transaction_state."),
)

GROUPS = (
    row("group.initial.rebalance.delay.ms", INT, 3000, doc="How long the first members of a group wait for others."),
    row("group.min.session.timeout.ms", INT, 6000, doc="The shortest session that a classic member may ask for."),
    row("group.max.session.timeout.ms", INT, 1800000, doc="The longest session that a classic member may ask for."),
    row("group.max.size", INT, INT32_MAX, at_least(1), "Members that a classic group may have."),
    row(
        "group.coordinator.rebalance.protocols",
        LIST,
        ["classic", "consumer", "streams"],
        list_of("consumer", "classic", "share", "streams"),
        "Without consumer in it, only the classic protocol is served; share and streams do nothing.",
    ),
    row(
        "group.consumer.session.timeout.ms",
        INT,
        45000,
        at_least(1),
        "A member of the consumer protocol that is silent for so long is given up.",
    ),
    row(
        "group.consumer.min.session.timeout.ms",
        INT,
        45000,
        at_least(1),
        "Lower bound of group.consumer.session.timeout.ms.",
    ),
    row(
        "group.consumer.max.session.timeout.ms",
        INT,
        60000,
        at_least(1),
        "Upper bound of group.consumer.session.timeout.ms.",
    ),
    row(
        "group.consumer.heartbeat.interval.ms",
        INT,
        5000,
        at_least(1),
        "How often members of the consumer protocol are told to be heard of.",
    ),
    row(
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        5000,
        at_least(1),
        "Lower bound of group.consumer.heartbeat.interval.ms.",
    ),
    row(
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        15000,
        at_least(1),
        "Upper bound of group.consumer.heartbeat.interval.ms.",
    ),
    row("group.consumer.max.size", INT, INT32_MAX, at_least(1), "Members that a consumer group may have."),
    row(
        "group.consumer.assignors",
        LIST,
        ["uniform", "range"],
        ASSIGNORS,
        "Assignors that members may ask for; the first is the default.",
    ),
    row(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        one_of("disabled", "downgrade", "upgrade", "bidirectional"),
        "Whether a group with members may go from the classic to the consumer protocol (upgrade), and back (downgrade).",
    ),
    row(
        "group.consumer.assignment.interval.ms",
        INT,
        1000,
        at_least(0),
        "A group's assignment is worked out at most once in this time; 0: with each change.",
        dynamic=True,
    ),
    row(
        "group.consumer.min.assignment.interval.ms",
        INT,
        0,
        at_least(0),
        "Lower bound of group.consumer.assignment.interval.ms.",
    ),
    row(
        "group.consumer.max.assignment.interval.ms",
        INT,
        15000,
        at_least(0),
        "Upper bound of group.consumer.assignment.interval.ms.",
    ),
    row(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        600000,
        at_least(10000),
        "How often the topics of a pattern are looked up, besides when topics come and go.",
    ),
    row("offset.metadata.max.bytes", INT, 4096, doc="The longest metadata of a committed offset."),
    row(
        "offsets.commit.timeout.ms",
        INT,
        5000,
        at_least(1),
        "A commit or deletion that not all in sync have by then is answered COORDINATOR_NOT_AVAILABLE; so is who asks for it.",
    ),
    row("offsets.retention.minutes", INT, 10080, at_least(1), "Offsets of a group without members are kept this long."),
    row("offsets.retention.check.interval.ms", LONG, 600000, at_least(1), "How often expired offsets are looked for."),
)

# Defaults of topic configs; `topic_config` names the topic key of each.
LOG_DEFAULTS = (
    row("min.insync.replicas", INT, 1, at_least(1), "Default of min.insync.replicas.", dynamic=True),
    row("message.max.bytes", INT, 1048588, at_least(0), "Default of max.message.bytes.", dynamic=True),
    row("compression.type", STRING, "producer", CODECS, "Default of compression.type.", dynamic=True),
    row("compression.gzip.level", INT, -1, GZIP_LEVEL, "Default of compression.gzip.level.", dynamic=True),
    row("compression.lz4.level", INT, 9, between(1, 17), "Default of compression.lz4.level.", dynamic=True),
    row("compression.zstd.level", INT, 3, between(-131072, 22), "Default of compression.zstd.level.", dynamic=True),
    row("log.segment.bytes", INT, 1073741824, at_least(1048576), "Default of segment.bytes.", dynamic=True),
    row("log.roll.ms", LONG, None, at_least(1), "Default of segment.ms.", dynamic=True),
    row("log.roll.jitter.ms", LONG, None, at_least(0), "Default of segment.jitter.ms.", dynamic=True),
    row("log.retention.ms", LONG, None, at_least(-1), "Default of retention.ms; -1: for ever.", dynamic=True),
    row("log.retention.bytes", LONG, -1, at_least(-1), "Default of retention.bytes; -1: no limit.", dynamic=True),
    row(
        "log.cleanup.policy", LIST, ["delete"], list_of("compact", "delete"), "Default of cleanup.policy.", dynamic=True
    ),
    row("log.index.interval.bytes", INT, 4096, at_least(0), "Default of index.interval.bytes.", dynamic=True),
    row("log.index.size.max.bytes", INT, 10485760, at_least(4), "Default of segment.index.bytes.", dynamic=True),
    row("log.segment.delete.delay.ms", LONG, 60000, at_least(0), "Default of file.delete.delay.ms.", dynamic=True),
    row("log.preallocate", BOOLEAN, False, doc="Default of preallocate.", dynamic=True),
    row("log.flush.interval.messages", LONG, INT64_MAX, at_least(1), "Default of flush.messages.", dynamic=True),
    row("log.flush.interval.ms", LONG, None, at_least(0), "Default of flush.ms.", dynamic=True),
    row(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "Default of message.timestamp.type.",
        dynamic=True,
    ),
    row(
        "log.message.timestamp.before.max.ms",
        LONG,
        INT64_MAX,
        at_least(0),
        "Default of message.timestamp.before.max.ms.",
        dynamic=True,
    ),
    row(
        "log.message.timestamp.after.max.ms",
        LONG,
        3600000,
        at_least(0),
        "Default of message.timestamp.after.max.ms.",
        dynamic=True,
    ),
    row(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        0.5,
        between(0, 1),
        "Default of min.cleanable.dirty.ratio.",
        dynamic=True,
    ),
    row("log.cleaner.min.compaction.lag.ms", LONG, 0, at_least(0), "Default of min.compaction.lag.ms.", dynamic=True),
    row(
        "log.cleaner.max.compaction.lag.ms",
        LONG,
        INT64_MAX,
        at_least(1),
        "Default of max.compaction.lag.ms.",
        dynamic=True,
    ),
    row(
        "log.cleaner.delete.retention.ms", LONG, 86400000, at_least(0), "Default of delete.retention.ms.", dynamic=True
    ),
)

CLEANER = (
    row("log.cleaner.enable", BOOLEAN, True, doc="Compact the topics that ask for it."),
    row("log.cleaner.threads", INT, 1, at_least(0), "Processes that compact, one log each.", dynamic=True),
    row(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        134217728,
        at_least(1048576),
        "Memory for the latest offset of each key, of all compacting processes; half as much again while it grows.",
        dynamic=True,
    ),
    row(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        0.9,
        Check("above 0, at most 1", lambda value: 0 < value <= 1),
        "How full log.cleaner.dedupe.buffer.size may get, as a share of it.",
        dynamic=True,
    ),
    row(
        "log.cleaner.io.buffer.size",
        INT,
        524288,
        at_least(0),
        "Bytes that all compacting processes read at a time; at least 64 KiB each.",
        dynamic=True,
    ),
    row(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        1.7976931348623157e308,
        Check("above 0", lambda value: value > 0),
        "The most bytes a second that all compacting processes read and write together.",
        dynamic=True,
    ),
    row(
        "log.cleaner.backoff.ms",
        LONG,
        15000,
        at_least(0),
        "Time between two looks at the logs when none is to be compacted.",
        dynamic=True,
    ),
)

TRANSACTIONS = (
    row(
        "add.partitions.to.txn.retry.backoff.ms",
        INT,
        20,
        at_least(1),
        "In a cluster: how long a batch waits before its transaction, which is just ending, is asked about again.",
    ),
    row(
        "add.partitions.to.txn.retry.backoff.max.ms",
        INT,
        100,
        at_least(0),
        "In a cluster: how long a batch waits for that in all; then its producer is told, and tries again.",
    ),
    row("transaction.max.timeout.ms", INT, 900000, at_least(1), "The longest time-out that a producer may ask for."),
    row("transactional.id.expiration.ms", INT, 604800000, at_least(1), "An unused id is forgotten after this."),
    row(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        10000,
        at_least(1),
        "How often transactions past their time-out are looked for, to abort them.",
    ),
    row(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        3600000,
        at_least(1),
        "How often unused transactional ids are looked for.",
    ),
)

LOG_UPKEEP = (
    row("log.retention.check.interval.ms", LONG, 300000, at_least(1), "How often old segments are looked for."),
    row("log.flush.offset.checkpoint.interval.ms", INT, 60000, at_least(0), "How often checkpoints are written."),
    row("producer.id.expiration.ms", INT, 86400000, at_least(1), "An idle producer's state is dropped after this."),
    row(
        "producer.id.expiration.check.interval.ms", INT, 600000, at_least(1), "How often idle producers are looked for."
    ),
    row("metadata.log.max.record.bytes.between.snapshots", LONG, 20971520, at_least(1), "Bytes between snapshots."),
    row("metadata.log.max.snapshot.interval.ms", LONG, 3600000, at_least(0), "Time between snapshots; 0: no limit."),
    row("metadata.log.segment.bytes", INT, 1073741824, at_least(8388608), "Segment size of the metadata log."),
    row("metadata.log.segment.ms", LONG, 604800000, at_least(1), "Segment age of the metadata log."),
    row(
        "metadata.max.retention.bytes",
        LONG,
        104857600,
        at_least(-1),
        "With more in the metadata log and its snapshots together, old ones go; the latest snapshot stays. -1: no limit.",
    ),
    row(
        "metadata.max.retention.ms",
        LONG,
        604800000,
        at_least(-1),
        "Metadata snapshots that reach until longer ago go, and the log before them; the latest stays. -1: no limit.",
    ),
)


def mapped(
    name: str, type: ConfigType, default: ConfigValue, target: str, check: Check | None = None, factor: int = 1
) -> tuple[ConfigKey, tuple[str, int]]:
    """An older name of `target`; the value is multiplied by `factor` on the way."""
    note = f"to {target}" if factor == 1 else f"to {target}, times {factor}"
    return ConfigKey(name, type, default, check, Status.MAPPED, note), (target, factor)


HOUR_MS = 3600_000
MINUTE_MS = 60_000
# Where a newer name is set too, the newer name wins; among older ones the first of this table does.
_MAPPED = (
    mapped("broker.id", INT, -1, "node.id"),
    mapped("brokerid", INT, None, "node.id"),
    mapped("log.dir", LIST, None, "log.dirs"),
    mapped("log.retention.minutes", INT, None, "log.retention.ms", at_least(-1), MINUTE_MS),
    mapped("log.retention.hours", INT, 168, "log.retention.ms", at_least(-1), HOUR_MS),
    mapped("log.roll.hours", INT, 168, "log.roll.ms", at_least(1), HOUR_MS),
    mapped("log.roll.jitter.hours", INT, 0, "log.roll.jitter.ms", at_least(0), HOUR_MS),
    mapped("log.flush.scheduler.interval.ms", LONG, INT64_MAX, "log.flush.interval.ms", at_least(1)),
    mapped("log.default.flush.interval.ms", LONG, None, "log.flush.interval.ms", at_least(1)),
    mapped("log.flush.interval", LONG, None, "log.flush.interval.messages", at_least(1)),
    mapped("log.cleanup.interval.mins", INT, None, "log.retention.check.interval.ms", at_least(1), MINUTE_MS),
    mapped("log.retention.size", LONG, None, "log.retention.bytes", at_least(-1)),
    mapped("log.file.size", INT, None, "log.segment.bytes", at_least(1048576)),
    mapped("log.delete.delay.ms", LONG, None, "log.segment.delete.delay.ms", at_least(0)),
    mapped("log.message.timestamp.difference.max.ms", LONG, None, "log.message.timestamp.before.max.ms", at_least(0)),
    mapped("max.message.size", INT, None, "message.max.bytes", at_least(0)),
    mapped("max.socket.request.bytes", INT, None, "socket.request.max.bytes", at_least(1)),
    mapped("socket.send.buffer", INT, None, "socket.send.buffer.bytes"),
    mapped("socket.receive.buffer", INT, None, "socket.receive.buffer.bytes"),
    # The four parts of a listener in Kafka 0.8; `config` joins them.
    mapped("host.name", STRING, None, "listeners"),
    mapped("port", INT, None, "listeners", between(0, 65535)),
    mapped("advertised.host.name", STRING, None, "advertised.listeners"),
    mapped("advertised.port", INT, None, "advertised.listeners", between(0, 65535)),
)
LISTENER_PARTS = frozenset({"host.name", "port", "advertised.host.name", "advertised.port"})
TARGETS = {key.name: target for key, target in _MAPPED}
MAPPED = tuple(key for key, _ in _MAPPED)

_ZOOKEEPER = "there is no ZooKeeper: the controller is a KRaft quorum"
_LAG = "a follower is in sync by time (replica.lag.time.max.ms), not by a count of messages"
_PER_TOPIC = "settings of one topic belong to that topic's configuration"
_VERSION = "the features of the metadata log (metadata.version) decide on formats"
_ENCODER = "secrets are not kept encrypted in ZooKeeper"
_MIGRATION = "there is no ZooKeeper to migrate from"
_QUOTA = "this version enforces no quotas"
_SHUTDOWN = "a controlled shutdown is one request to the controller and is not retried"
_RATE = "this version enforces no rates of connections; max.connections and max.connections.per.ip bound their number"
_TOKENS = "this version serves PLAINTEXT listeners without authentication"
_GONE = "Apache Kafka dropped it, and nothing here needs it"

_REMOVED = (
    (
        _ZOOKEEPER,
        "zookeeper.connect zookeeper.session.timeout.ms zookeeper.connection.timeout.ms zookeeper.sync.time.ms "
        "zookeeper.set.acl zookeeper.max.in.flight.requests zookeeper.clientCnxnSocket zookeeper.ssl.client.enable "
        "zookeeper.ssl.keystore.location zookeeper.ssl.keystore.password zookeeper.ssl.keystore.type "
        "zookeeper.ssl.truststore.location zookeeper.ssl.truststore.password zookeeper.ssl.truststore.type "
        "zookeeper.ssl.protocol zookeeper.ssl.enabled.protocols zookeeper.ssl.cipher.suites zookeeper.ssl.crl.enable "
        "zookeeper.ssl.ocsp.enable zookeeper.ssl.endpoint.identification.algorithm enable.zookeeper zk.connect "
        "zk.connectiontimeout.ms zk.sessiontimeout.ms zk.synctime.ms",
    ),
    (_LAG, "replica.lag.max.messages"),
    (
        _PER_TOPIC,
        "log.retention.hours.per.topic log.retention.minutes.per.topic log.retention.bytes.per.topic "
        "log.segment.bytes.per.topic log.roll.hours.per.topic log.flush.intervals.ms.per.topic "
        "log.flush.interval.ms.per.topic log.cleanup.policy.per.topic topic.log.retention.hours "
        "topic.flush.intervals.ms topic.partition.count.map log.retention.size.per.topic log.file.size.per.topic",
    ),
    (
        _VERSION,
        "inter.broker.protocol.version log.message.format.version log.message.downconversion.enable "
        "group.coordinator.new.enable",
    ),
    (
        _ENCODER,
        "password.encoder.secret password.encoder.old.secret password.encoder.keyfactory.algorithm "
        "password.encoder.cipher.algorithm password.encoder.key.length password.encoder.iterations",
    ),
    (_MIGRATION, "zookeeper.metadata.migration.enable zookeeper.metadata.migration.min.batch.size"),
    (
        _QUOTA,
        "quota.producer.default quota.consumer.default quota.producer.bytes.per.second.overrides "
        "quota.consumer.bytes.per.second.overrides",
    ),
    (_RATE, "max.connections.creation.rate.per.ip"),
    (_TOKENS, "delegation.token.master.key"),
    (_SHUTDOWN, "controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms"),
    (
        _GONE,
        "broker.id.generation.enable reserved.broker.max.id control.plane.listener.name offsets.commit.required.acks "
        "offsets.topic.retention.minutes leader.imbalance.per.broker.percentage "
        "controller.message.queue.size replica.fetch.message.max.bytes producer.purgatory.size fetch.purgatory.size "
        "log.default.flush.scheduler.interval.ms log.append.enable num.threads monitoring.period.secs hostname "
        "kafka.csv.metrics.dir kafka.csv.metrics.reporter.enabled auto.topic.create.num.partitions "
        "replica.fetch.max.message.bytes num.network.acceptors "
        "eligible.leader.replicas.enable unstable.metadata.versions.enable",
    ),
)
# Values that must not be shown even though they do nothing.
_SECRETS = ("password", "secret", "master.key")
REMOVED = tuple(
    ConfigKey(
        name,
        ConfigType.PASSWORD if any(word in name for word in _SECRETS) else STRING,
        status=Status.IGNORED,
        note=note,
        protects=note in (_QUOTA, _RATE, _TOKENS),
    )
    for note, names in _REMOVED
    for name in names.split()
)

THROTTLES = frozenset(
    (
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
)
"""What kafka-reassign-partitions sets while partitions move (Kafka's DynamicConfig.Broker)."""

# Names that Kafka 4.3 no longer has; DescribeConfigs tells of them only where they are set.
RETIRED = frozenset(key.name for key in REMOVED + MAPPED) - {
    "broker.id",
    "log.dir",
    "log.retention.minutes",
    "log.retention.hours",
    "log.roll.hours",
    "log.roll.jitter.hours",
    "log.flush.scheduler.interval.ms",
}
DONE = NODE + DISK + LISTENERS + TOPICS + LOG_DEFAULTS + CLEANER + LOG_UPKEEP + TRANSACTIONS + GROUPS
BROKER_KEYS = table_of(DONE + CLUSTER + MAPPED + IGNORED + REMOVED)
