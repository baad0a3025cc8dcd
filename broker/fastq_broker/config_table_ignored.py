"""Broker keys of Kafka 4.x that this broker knows and ignores, grouped by the reason why.

Rules: a key here is parsed and checked like any other, described by DescribeConfigs with its default, and setting it
gives one warning with the reason. What somebody sets to be protected is `refused`: setting it to anything but its default is an error
(`fail_closed`). A key moves to `config_table` in the change that makes it do something.
"""

from __future__ import annotations

from fastq.values import replace
from fastq_broker.config_keys import (
    INT32_MAX,
    INT64_MAX,
    NOT_EMPTY,
    Check,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Status,
    at_least,
    between,
    one_of,
)

BOOLEAN = ConfigType.BOOLEAN
STRING = ConfigType.STRING
INT = ConfigType.INT
SHORT = ConfigType.SHORT
LONG = ConfigType.LONG
DOUBLE = ConfigType.DOUBLE
LIST = ConfigType.LIST
CLASS = ConfigType.CLASS
PASSWORD = ConfigType.PASSWORD


def row(
    name: str, type: ConfigType, default: ConfigValue = None, check: Check | None = None, *, dynamic: bool = False
) -> ConfigKey:
    return ConfigKey(name, type, default, check, dynamic=dynamic)


def ignored(note: str, *keys: ConfigKey) -> tuple[ConfigKey, ...]:
    return tuple(replace(key, status=Status.IGNORED, note=note) for key in keys)


def refused(note: str, *keys: ConfigKey) -> tuple[ConfigKey, ...]:
    return tuple(replace(key, protects=True) for key in ignored(note, *keys))


TIERED = refused(
    "tiered storage is not part of this broker, and records that were moved there could not be read",
    row("remote.log.storage.system.enable", BOOLEAN, False),
) + ignored(
    "tiered storage is not part of this broker",
    row("follower.fetch.last.tiered.offset.enable", BOOLEAN, False, dynamic=True),
    row("log.local.retention.bytes", LONG, -2, at_least(-2), dynamic=True),
    row("log.local.retention.ms", LONG, -2, at_least(-2), dynamic=True),
    row("remote.fetch.max.wait.ms", INT, 500, at_least(1), dynamic=True),
    row("remote.list.offsets.request.timeout.ms", LONG, 30000, at_least(1), dynamic=True),
    row("remote.log.index.file.cache.total.size.bytes", LONG, 1073741824, at_least(1), dynamic=True),
    row("remote.log.index.file.cache.ttl.ms", LONG, 900000, at_least(-1)),
    row("remote.log.manager.copier.thread.pool.size", INT, 10, at_least(1), dynamic=True),
    row("remote.log.manager.copy.max.bytes.per.second", LONG, INT64_MAX, at_least(1), dynamic=True),
    row("remote.log.manager.copy.quota.window.num", INT, 11, at_least(1)),
    row("remote.log.manager.copy.quota.window.size.seconds", INT, 1, at_least(1)),
    row("remote.log.manager.expiration.thread.pool.size", INT, 10, at_least(1), dynamic=True),
    row("remote.log.manager.fetch.max.bytes.per.second", LONG, INT64_MAX, at_least(1), dynamic=True),
    row("remote.log.manager.fetch.quota.window.num", INT, 11, at_least(1)),
    row("remote.log.manager.fetch.quota.window.size.seconds", INT, 1, at_least(1)),
    row("remote.log.manager.follower.thread.pool.size", INT, 2, at_least(1), dynamic=True),
    row("remote.log.manager.task.interval.ms", LONG, 30000, at_least(1)),
    row("remote.log.manager.task.retry.backoff.max.ms", LONG, 30000, at_least(1)),
    row("remote.log.manager.task.retry.backoff.ms", LONG, 500, at_least(1)),
    row("remote.log.manager.task.retry.jitter", DOUBLE, 0.2, between(0, 0.5)),
    row("remote.log.manager.thread.pool.size", INT, 2, at_least(1)),
    row("remote.log.metadata.custom.metadata.max.bytes", INT, 128, at_least(0)),
    row(
        "remote.log.metadata.manager.class.name",
        STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        NOT_EMPTY,
    ),
    row("remote.log.metadata.manager.class.path", STRING, None),
    row("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", NOT_EMPTY),
    row("remote.log.metadata.manager.listener.name", STRING, None, NOT_EMPTY),
    row("remote.log.reader.max.pending.tasks", INT, 100, at_least(1)),
    row("remote.log.reader.threads", INT, 10, at_least(1), dynamic=True),
    row("remote.log.storage.manager.class.name", STRING, None, NOT_EMPTY),
    row("remote.log.storage.manager.class.path", STRING, None),
    row("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", NOT_EMPTY),
)

SHARE = ignored(
    "share groups are not part of this broker",
    row("group.share.assignment.interval.ms", INT, 1000, at_least(0), dynamic=True),
    row("group.share.assignors", LIST, ["simple"]),
    row("group.share.delivery.count.limit", INT, 5, between(2, 10)),
    row("group.share.heartbeat.interval.ms", INT, 5000, at_least(1)),
    row("group.share.initialize.retry.interval.ms", INT, 30000, at_least(1)),
    row("group.share.max.assignment.interval.ms", INT, 15000, at_least(0)),
    row("group.share.max.delivery.count.limit", INT, 10, between(5, 25)),
    row("group.share.max.heartbeat.interval.ms", INT, 15000, at_least(1)),
    row("group.share.max.partition.max.record.locks", INT, 4000, between(2000, 10000)),
    row("group.share.max.record.lock.duration.ms", INT, 60000, between(30000, 3600000)),
    row("group.share.max.session.timeout.ms", INT, 60000, at_least(1)),
    row("group.share.max.share.sessions", INT, 2000, at_least(1)),
    row("group.share.max.size", INT, 200, between(1, 1000)),
    row("group.share.min.assignment.interval.ms", INT, 0, at_least(0)),
    row("group.share.min.delivery.count.limit", INT, 2, between(2, 5)),
    row("group.share.min.heartbeat.interval.ms", INT, 5000, at_least(1)),
    row("group.share.min.partition.max.record.locks", INT, 100, between(100, 2000)),
    row("group.share.min.record.lock.duration.ms", INT, 15000, between(1000, 30000)),
    row("group.share.min.session.timeout.ms", INT, 45000, at_least(1)),
    row("group.share.partition.max.record.locks", INT, 2000, between(100, 10000)),
    row("group.share.persister.class.name", STRING, "org.apache.kafka.server.share.persister.DefaultStatePersister"),
    row("group.share.record.lock.duration.ms", INT, 30000, between(1000, 3600000)),
    row("group.share.session.timeout.ms", INT, 45000, at_least(1)),
    row("share.coordinator.append.linger.ms", INT, -1, at_least(-1)),
    row("share.coordinator.cached.buffer.max.bytes", INT, 1048588, at_least(524288), dynamic=True),
    row("share.coordinator.cold.partition.snapshot.interval.ms", INT, 300000, at_least(1)),
    row("share.coordinator.load.buffer.size", INT, 5242880, at_least(1)),
    row("share.coordinator.snapshot.update.records.per.snapshot", INT, 500, between(0, 500)),
    row("share.coordinator.state.topic.compression.codec", INT, 0),
    row("share.coordinator.state.topic.min.isr", SHORT, 2, at_least(1)),
    row("share.coordinator.state.topic.num.partitions", INT, 50, at_least(1)),
    row("share.coordinator.state.topic.prune.interval.ms", INT, 300000, at_least(1)),
    row("share.coordinator.state.topic.replication.factor", SHORT, 3, at_least(1)),
    row("share.coordinator.state.topic.segment.bytes", INT, 104857600, at_least(1)),
    row("share.coordinator.threads", INT, 1, at_least(1)),
    row("share.coordinator.write.timeout.ms", INT, 5000, at_least(1)),
    row("share.fetch.purgatory.purge.interval.requests", INT, 1000),
)

STREAMS = ignored(
    "streams groups are not part of this broker",
    row("group.streams.assignment.interval.ms", INT, 1000, at_least(0), dynamic=True),
    row("group.streams.heartbeat.interval.ms", INT, 5000, at_least(1)),
    row("group.streams.initial.rebalance.delay.ms", INT, 3000, at_least(0)),
    row("group.streams.max.assignment.interval.ms", INT, 15000, at_least(0)),
    row("group.streams.max.heartbeat.interval.ms", INT, 15000, at_least(1)),
    row("group.streams.max.session.timeout.ms", INT, 60000, at_least(1)),
    row("group.streams.max.size", INT, INT32_MAX, at_least(1)),
    row("group.streams.max.standby.replicas", INT, 2, at_least(0)),
    row("group.streams.min.assignment.interval.ms", INT, 0, at_least(0)),
    row("group.streams.min.heartbeat.interval.ms", INT, 5000, at_least(1)),
    row("group.streams.min.session.timeout.ms", INT, 45000, at_least(1)),
    row("group.streams.num.standby.replicas", INT, 0, at_least(0)),
    row("group.streams.session.timeout.ms", INT, 45000, at_least(1)),
)

GROUPS = ignored(
    "groups need no such setting here: one loop serves them, and their records are written at once",
    row("group.coordinator.append.linger.ms", INT, -1, at_least(-1)),
    row("group.coordinator.background.threads", INT, 2, at_least(1)),
    row("group.coordinator.cached.buffer.max.bytes", INT, 1048588, at_least(524288), dynamic=True),
    row("group.coordinator.threads", INT, 4, at_least(1)),
    row("offsets.load.buffer.size", INT, 5242880, at_least(1)),
    row("offsets.topic.compression.codec", INT, 0),
)

TRANSACTIONS = ignored(
    "partitions are always verified; there is no two-phase commit",
    row("transaction.partition.verification.enable", BOOLEAN, True, dynamic=True),
    row("transaction.state.log.load.buffer.size", INT, 5242880, at_least(1)),
    row("transaction.two.phase.commit.enable", BOOLEAN, False),
)

SECURITY = refused(
    "this version serves PLAINTEXT listeners without authentication or authorization",
    row("allow.everyone.if.no.acl.found", BOOLEAN, False),
    row("super.users", STRING, ""),
    row("authorizer.class.name", STRING, ""),
    row("connection.failed.authentication.delay.ms", INT, 100, at_least(0)),
    row("connections.max.reauth.ms", LONG, 0),
    row("delegation.token.expiry.check.interval.ms", LONG, 3600000, at_least(1)),
    row("delegation.token.expiry.time.ms", LONG, 86400000, at_least(1)),
    row("delegation.token.max.lifetime.ms", LONG, 604800000, at_least(1)),
    row("delegation.token.secret.key", PASSWORD, None),
    row(
        "principal.builder.class",
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        dynamic=True,
    ),
    row("sasl.client.callback.handler.class", CLASS, None),
    row("sasl.enabled.mechanisms", LIST, ["GSSAPI"], dynamic=True),
    row("sasl.jaas.config", PASSWORD, None, dynamic=True),
    row("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", dynamic=True),
    row("sasl.kerberos.min.time.before.relogin", LONG, 60000, dynamic=True),
    row("sasl.kerberos.principal.to.local.rules", LIST, ["DEFAULT"], dynamic=True),
    row("sasl.kerberos.service.name", STRING, None, dynamic=True),
    row("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05, dynamic=True),
    row("sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8, dynamic=True),
    row("sasl.login.callback.handler.class", CLASS, None),
    row("sasl.login.class", CLASS, None),
    row("sasl.login.connect.timeout.ms", INT, None),
    row("sasl.login.read.timeout.ms", INT, None),
    row("sasl.login.refresh.buffer.seconds", SHORT, 300, dynamic=True),
    row("sasl.login.refresh.min.period.seconds", SHORT, 60, dynamic=True),
    row("sasl.login.refresh.window.factor", DOUBLE, 0.8, dynamic=True),
    row("sasl.login.refresh.window.jitter", DOUBLE, 0.05, dynamic=True),
    row("sasl.login.retry.backoff.max.ms", LONG, 10000),
    row("sasl.login.retry.backoff.ms", LONG, 100),
    row("sasl.mechanism.controller.protocol", STRING, "GSSAPI"),
    row("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", dynamic=True),
    row("sasl.oauthbearer.assertion.algorithm", STRING, "RS256", one_of("ES256", "RS256")),
    row("sasl.oauthbearer.assertion.claim.aud", STRING, None),
    row("sasl.oauthbearer.assertion.claim.exp.seconds", INT, 300, between(0, 86400)),
    row("sasl.oauthbearer.assertion.claim.iss", STRING, None),
    row("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, False),
    row("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, 60, between(0, 3600)),
    row("sasl.oauthbearer.assertion.claim.sub", STRING, None),
    row("sasl.oauthbearer.assertion.file", STRING, None),
    row("sasl.oauthbearer.assertion.private.key.file", STRING, None),
    row("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None),
    row("sasl.oauthbearer.assertion.template.file", STRING, None),
    row("sasl.oauthbearer.client.credentials.client.id", STRING, None),
    row("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None),
    row("sasl.oauthbearer.clock.skew.seconds", INT, 30),
    row("sasl.oauthbearer.expected.audience", LIST, []),
    row("sasl.oauthbearer.expected.issuer", STRING, None),
    row("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3600000),
    row("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10000),
    row("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100),
    row("sasl.oauthbearer.jwks.endpoint.url", STRING, None),
    row(
        "sasl.oauthbearer.jwt.retriever.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
    ),
    row(
        "sasl.oauthbearer.jwt.validator.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
    ),
    row("sasl.oauthbearer.scope", STRING, None),
    row("sasl.oauthbearer.scope.claim.name", STRING, "scope"),
    row("sasl.oauthbearer.sub.claim.name", STRING, "sub"),
    row("sasl.oauthbearer.token.endpoint.url", STRING, None),
    row("sasl.server.callback.handler.class", CLASS, None),
    row("sasl.server.max.receive.size", INT, 524288),
    row(
        "security.inter.broker.protocol", STRING, "PLAINTEXT", one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
    ),
    row("security.providers", STRING, None),
    row("ssl.allow.dn.changes", BOOLEAN, False),
    row("ssl.allow.san.changes", BOOLEAN, False),
    row("ssl.cipher.suites", LIST, [], dynamic=True),
    row("ssl.client.auth", STRING, "none", one_of("required", "requested", "none"), dynamic=True),
    row("ssl.enabled.protocols", LIST, ["TLSv1.2", "TLSv1.3"], dynamic=True),
    row("ssl.endpoint.identification.algorithm", STRING, "https", dynamic=True),
    row("ssl.engine.factory.class", CLASS, None, dynamic=True),
    row("ssl.key.password", PASSWORD, None, dynamic=True),
    row("ssl.keymanager.algorithm", STRING, "SunX509", dynamic=True),
    row("ssl.keystore.certificate.chain", PASSWORD, None, dynamic=True),
    row("ssl.keystore.key", PASSWORD, None, dynamic=True),
    row("ssl.keystore.location", STRING, None, dynamic=True),
    row("ssl.keystore.password", PASSWORD, None, dynamic=True),
    row("ssl.keystore.type", STRING, "JKS", dynamic=True),
    row("ssl.principal.mapping.rules", STRING, "DEFAULT"),
    row("ssl.protocol", STRING, "TLSv1.3", dynamic=True),
    row("ssl.provider", STRING, None, dynamic=True),
    row("ssl.secure.random.implementation", STRING, None, dynamic=True),
    row("ssl.trustmanager.algorithm", STRING, "PKIX", dynamic=True),
    row("ssl.truststore.certificates", PASSWORD, None, dynamic=True),
    row("ssl.truststore.location", STRING, None, dynamic=True),
    row("ssl.truststore.password", PASSWORD, None, dynamic=True),
    row("ssl.truststore.type", STRING, "JKS", dynamic=True),
)

PROVIDERS = ignored(
    "configuration providers are Java classes",
    row("config.providers", LIST, [], dynamic=True),
)

POLICIES = refused(
    "policies are Java classes, so nothing would be held against them",
    row("alter.config.policy.class.name", CLASS, None),
    row("create.topic.policy.class.name", CLASS, None),
)

QUOTAS = refused(
    "this version enforces no quotas",
    row("controller.quota.window.num", INT, 11, at_least(1)),
    row("controller.quota.window.size.seconds", INT, 1, at_least(1)),
    row("max.connection.creation.rate", INT, INT32_MAX, at_least(0), dynamic=True),
    row("client.quota.callback.class", CLASS, None),
    row("quota.window.num", INT, 11, at_least(1)),
    row("quota.window.size.seconds", INT, 1, at_least(1)),
)

THREADS = ignored(
    "one event loop serves a node, so there are no such pools or queues to size",
    row("background.threads", INT, 10, at_least(1), dynamic=True),
    row("delete.records.purgatory.purge.interval.requests", INT, 1),
    row("fetch.purgatory.purge.interval.requests", INT, 1000),
    row("num.io.threads", INT, 8, at_least(1), dynamic=True),
    row("num.network.threads", INT, 3, at_least(1), dynamic=True),
    row("num.recovery.threads.per.data.dir", INT, 2, at_least(1), dynamic=True),
    row("producer.purgatory.purge.interval.requests", INT, 1000),
    row("queued.max.requests", INT, 500, at_least(1)),
)

METRICS = ignored(
    "metrics reporters are Java classes; this version has no reporters",
    row("kafka.metrics.polling.interval.secs", INT, 10, at_least(1)),
    row("kafka.metrics.reporters", LIST, []),
    row("metric.reporters", LIST, ["org.apache.kafka.common.metrics.JmxReporter"], dynamic=True),
    row("metrics.num.samples", INT, 2, at_least(1)),
    row("metrics.recording.level", STRING, "INFO"),
    row("metrics.sample.window.ms", LONG, 30000, at_least(1)),
    row("telemetry.max.bytes", INT, 1048576, at_least(1)),
)

CHECKPOINTS = ignored(
    "log.flush.offset.checkpoint.interval.ms is the interval of all three checkpoints",
    row("log.flush.start.offset.checkpoint.interval.ms", INT, 60000, at_least(0)),
)

OTHER = ignored(
    "this broker has no such mechanism",
    row("controller.performance.always.log.threshold.ms", LONG, 2000, at_least(0)),
    row("controller.performance.sample.period.ms", LONG, 60000, at_least(100)),
    row("internal.metadata.delete.delay.millis", LONG, 60000),
    row("internal.metadata.log.segment.bytes", INT, None),
    row("internal.metadata.max.batch.size.in.bytes", INT, 8388608),
    row("log.initial.task.delay.ms", LONG, 30000, at_least(0)),
    row("unstable.api.versions.enable", BOOLEAN, False),
    row("unstable.feature.versions.enable", BOOLEAN, False),
)

IGNORED = (
    TIERED
    + SHARE
    + STREAMS
    + GROUPS
    + TRANSACTIONS
    + SECURITY
    + PROVIDERS
    + POLICIES
    + QUOTAS
    + THREADS
    + METRICS
    + CHECKPOINTS
    + OTHER
)
