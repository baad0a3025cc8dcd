"""Broker keys of a node among others: the metadata quorum, the life of a broker, replication.

Rules: one row a key, each an attribute of `BrokerConfig` with Kafka's default and bounds. A row with a `note` has no effect, and setting
it gives a warning with that reason. A node that is alone needs none of them.
"""

from __future__ import annotations

from fastq_broker.config_keys import INT64_MAX, Check, ConfigKey, ConfigType, ConfigValue, Status, at_least, one_of

BOOLEAN = ConfigType.BOOLEAN
STRING = ConfigType.STRING
INT = ConfigType.INT
LONG = ConfigType.LONG
LIST = ConfigType.LIST

SELECTORS = one_of(
    "org.apache.kafka.common.replica.RackAwareReplicaSelector", "org.apache.kafka.common.replica.LeaderSelector"
)
NOT_NEGATIVE = at_least(0)


def row(
    name: str,
    type: ConfigType,
    default: ConfigValue,
    check: Check | None,
    doc: str,
    *,
    dynamic: bool = False,
    note: str = "",
) -> ConfigKey:
    return ConfigKey(name, type, default, check, Status.IGNORED if note else Status.DONE, note, doc, dynamic)


QUORUM = (
    row("controller.quorum.voters", LIST, [], None, "id@host:port of all controllers, where they never change."),
    row("controller.quorum.bootstrap.servers", LIST, [], None, "host:port of controllers to ask for the leader."),
    row(
        "controller.quorum.voter.addresses",
        LIST,
        [],
        None,
        "id@host:port of voters that are not where the log has them, as when a whole quorum has moved: it is started with these, says so "
        "in its log, and needs them no more. fastq's own.",
    ),
    row("controller.quorum.auto.join.enable", BOOLEAN, False, None, "A controller becomes a voter by itself."),
    row("controller.quorum.election.timeout.ms", INT, 1000, NOT_NEGATIVE, "An election without a winner is over."),
    row(
        "controller.quorum.election.backoff.max.ms",
        INT,
        1000,
        NOT_NEGATIVE,
        "The longest wait for the next election after one without a winner.",
    ),
    row("controller.quorum.fetch.timeout.ms", INT, 2000, NOT_NEGATIVE, "A leader that is silent so long is given up."),
    row("controller.quorum.request.timeout.ms", INT, 2000, NOT_NEGATIVE, "A request to a controller has failed."),
    row("controller.quorum.retry.backoff.ms", INT, 20, NOT_NEGATIVE, "Time before a failed request is sent again."),
    row(
        "controller.quorum.append.linger.ms",
        INT,
        25,
        NOT_NEGATIVE,
        "How long records wait for others in a batch.",
        note="a change is written when it is made",
    ),
    row("controller.quorum.fetch.max.bytes", INT, 1048576, at_least(1), "The most one Fetch of metadata returns."),
    row(
        "controller.quorum.fetch.snapshot.max.bytes",
        INT,
        1048576,
        at_least(1),
        "The same of a snapshot.",
        note="controller.quorum.fetch.max.bytes bounds pieces of snapshots too",
    ),
    row("metadata.max.idle.interval.ms", INT, 500, NOT_NEGATIVE, "How often an idle leader writes; 0: never."),
)
LIFE = (
    row("broker.heartbeat.interval.ms", INT, 2000, at_least(1), "How often a broker is heard of by the controller."),
    row("broker.session.timeout.ms", INT, 9000, at_least(1), "A broker that is silent so long is fenced."),
    row(
        "broker.disconnect.timeout.ms",
        INT,
        500,
        at_least(-1),
        "A broker whose connection to the active controller is gone for so long is fenced; -1: only its session counts. fastq's own.",
    ),
    row(
        "initial.broker.registration.timeout.ms", INT, 60000, at_least(1), "A start without a registration has failed."
    ),
    row(
        "server.max.startup.time.ms",
        LONG,
        INT64_MAX,
        NOT_NEGATIVE,
        "A start that takes longer has failed.",
        note="a start takes as long as the recovery of its logs",
    ),
    row(
        "early.start.listeners",
        LIST,
        None,
        None,
        "Listeners that serve before the broker is unfenced.",
        note="listeners for clients serve once the broker is unfenced, those of controllers before",
    ),
    row(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        None,
        "A stop moves leaderships to others first.",
        note="a stop always hands over what it can",
    ),
    row("controller.socket.timeout.ms", INT, 30000, at_least(1), "A request from broker to controller has failed."),
    row(
        "request.timeout.ms",
        INT,
        30000,
        at_least(1),
        "A request to another node has failed.",
        note="each kind of request to another node has a time-out of its own",
    ),
    row(
        "socket.connection.setup.timeout.ms",
        LONG,
        10000,
        at_least(1),
        "The first try of a connection has failed.",
        note="a connection between nodes has the time of its first request",
    ),
    row(
        "socket.connection.setup.timeout.max.ms",
        LONG,
        30000,
        at_least(1),
        "The longest a later try may take.",
        note="a connection between nodes has the time of its first request",
    ),
    row("log.dir.failure.timeout.ms", LONG, 30000, at_least(1), "The controller must know of a failed directory."),
)
REPLICATION = (
    row("num.replica.fetchers", INT, 1, at_least(1), "Connections for replication to each broker."),
    row("replica.fetch.backoff.ms", INT, 1000, NOT_NEGATIVE, "Time before a partition that failed is fetched again."),
    row("replica.fetch.max.bytes", INT, 1048576, NOT_NEGATIVE, "The most a follower fetches of one partition."),
    row("replica.fetch.min.bytes", INT, 1, NOT_NEGATIVE, "A follower's Fetch waits for so much."),
    row("replica.fetch.response.max.bytes", INT, 10485760, NOT_NEGATIVE, "The most a follower fetches at a time."),
    row("replica.fetch.wait.max.ms", INT, 500, NOT_NEGATIVE, "The longest that a follower's Fetch waits."),
    row(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5000,
        at_least(1),
        "How often high watermarks are written down, on a node among others.",
    ),
    row("replica.lag.time.max.ms", LONG, 30000, at_least(1), "A follower that is behind so long leaves the ISR."),
    row("replica.selector.class", ConfigType.CLASS, None, SELECTORS, "Which replica consumers of a rack read from."),
    row(
        "replica.socket.receive.buffer.bytes",
        INT,
        65536,
        at_least(-1),
        "SO_RCVBUF of a fetcher; -1: the system's.",
        note="the system chooses",
    ),
    row("replica.socket.timeout.ms", INT, 30000, at_least(1), "A follower's Fetch has failed."),
    row(
        "num.replica.alter.log.dirs.threads",
        INT,
        None,
        at_least(1),
        "Moves between directories at one time; one a directory unless it is set.",
    ),
    row(
        "alter.log.dirs.replication.quota.window.num",
        INT,
        11,
        at_least(1),
        "Windows in which the bytes of moves between directories are counted.",
    ),
    row(
        "alter.log.dirs.replication.quota.window.size.seconds",
        INT,
        1,
        at_least(1),
        "Length of such a window of moves between directories.",
    ),
    row("replication.quota.window.num", INT, 11, at_least(1), "Windows in which throttled replication is counted."),
    row(
        "replication.quota.window.size.seconds",
        INT,
        1,
        at_least(1),
        "Length of such a window of throttled replication.",
    ),
    row(
        "leader.replication.throttled.rate",
        LONG,
        INT64_MAX,
        at_least(0),
        "Bytes a second sent of a topic's leader.replication.throttled.replicas to replicas out of sync.",
        dynamic=True,
    ),
    row(
        "follower.replication.throttled.rate",
        LONG,
        INT64_MAX,
        at_least(0),
        "Bytes a second fetched of a topic's follower.replication.throttled.replicas while out of sync.",
        dynamic=True,
    ),
    row(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        INT64_MAX,
        at_least(0),
        "Bytes a second copied between this broker's directories.",
        dynamic=True,
    ),
)
ELECTIONS = (
    row("auto.leader.rebalance.enable", BOOLEAN, True, None, "Preferred leaders are elected again."),
    row(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        at_least(1),
        "How often leaders are looked at, to elect preferred ones again.",
    ),
    row(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        None,
        "Default of unclean.leader.election.enable.",
        dynamic=True,
    ),
    row(
        "unclean.leader.election.interval.ms",
        LONG,
        300000,
        at_least(1),
        "How often partitions without a leader are looked for that an unclean election would give one.",
    ),
)
CLUSTER = QUORUM + LIFE + REPLICATION + ELECTIONS
