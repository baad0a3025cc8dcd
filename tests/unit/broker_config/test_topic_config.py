"""Topic settings: what is known, where values come from, what the log gets."""

from __future__ import annotations

import pytest
from fastq_broker import topic_config
from fastq_broker.config import BrokerConfig
from fastq_broker.config_keys import ConfigSource, ConfigType, Status
from fastq_broker.config_table import BROKER_KEYS
from fastq_broker.log.config import LogConfig
from fastq_broker.topic_config import TOPIC_KEYS, BrokerLayers, ConfigEntry, TopicDefaults

from fastq.errors import ConfigError

# As Apache Kafka 4.3 describes a topic that overrides nothing: name, value, type.
KAFKA_TOPIC_CONFIGS = """
cleanup.policy delete LIST
compression.gzip.level -1 INT
compression.lz4.level 9 INT
compression.type producer STRING
compression.zstd.level 3 INT
delete.retention.ms 86400000 LONG
file.delete.delay.ms 60000 LONG
flush.messages 9223372036854775807 LONG
flush.ms 9223372036854775807 LONG
follower.replication.throttled.replicas - LIST
index.interval.bytes 4096 INT
leader.replication.throttled.replicas - LIST
local.retention.bytes -2 LONG
local.retention.ms -2 LONG
max.compaction.lag.ms 9223372036854775807 LONG
max.message.bytes 1048588 INT
message.timestamp.after.max.ms 3600000 LONG
message.timestamp.before.max.ms 9223372036854775807 LONG
message.timestamp.type CreateTime STRING
min.cleanable.dirty.ratio 0.5 DOUBLE
min.compaction.lag.ms 0 LONG
min.insync.replicas 1 INT
preallocate false BOOLEAN
remote.log.copy.disable false BOOLEAN
remote.log.delete.on.disable false BOOLEAN
remote.storage.enable false BOOLEAN
retention.bytes -1 LONG
retention.ms 604800000 LONG
segment.bytes 1073741824 INT
segment.index.bytes 10485760 INT
segment.jitter.ms 0 LONG
segment.ms 604800000 LONG
unclean.leader.election.enable false BOOLEAN
"""
OUR_OWN = {"durability", "mirror.source"}


def layers(this: dict[str, str] | None = None, everyone: dict[str, str] | None = None, **settings: str) -> BrokerLayers:
    config = BrokerConfig.from_mapping({name.replace("_", "."): value for name, value in settings.items()})
    return BrokerLayers(config, this or {}, everyone or {})


def described(overrides: dict[str, str], chain: BrokerLayers) -> dict[str, ConfigEntry]:
    return {entry.key.name: entry for entry in topic_config.describe(overrides, chain)}


def test_all_of_kafkas_topic_configs_with_their_types_and_defaults() -> None:
    found = described({}, layers())
    expected = {}
    for line in KAFKA_TOPIC_CONFIGS.split("\n")[1:-1]:
        name, value, kind = line.split()
        expected[name] = ("" if value == "-" else value, kind)
    assert {
        name: (entry.value, entry.key.type.name) for name, entry in found.items() if name not in OUR_OWN
    } == expected
    assert set(found) - set(expected) == OUR_OWN
    assert all(entry.source is ConfigSource.DEFAULT_CONFIG for entry in found.values())


def test_what_does_nothing_yet_says_so() -> None:
    idle = {key.name for key in TOPIC_KEYS.values() if key.status is Status.IGNORED}
    assert {"remote.log.copy.disable", "remote.storage.enable", "local.retention.ms"} <= idle
    assert "retention.ms" not in idle
    for name in idle:
        assert "Has no effect:" in TOPIC_KEYS[name].documentation


def test_synonyms_are_keys_of_the_broker_with_the_same_meaning() -> None:
    for key in TOPIC_KEYS.values():
        for name, factor in key.synonyms:
            assert name in BROKER_KEYS
            assert factor in (1, 60_000, 3_600_000)


def test_the_chain_from_topic_to_default() -> None:
    chain = layers({"log.retention.ms": "3"}, {"log.retention.ms": "4"}, log_retention_hours="1")
    entry = described({"retention.ms": "2"}, chain)["retention.ms"]
    assert entry.value == "2"
    assert [(item.name, item.value, item.source) for item in entry.synonyms] == [
        ("retention.ms", 2, ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", 3, ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("log.retention.ms", 4, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.hours", 1, ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", 168, ConfigSource.DEFAULT_CONFIG),
    ]
    assert described({}, chain)["retention.ms"].value == "3"
    assert TopicDefaults(chain).log_config.retention_ms == 3
    by_file = layers(log_retention_hours="1")
    assert described({}, by_file)["retention.ms"].value == "3600000"
    assert described({}, by_file)["retention.ms"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert TopicDefaults(layers(log_retention_hours="-1")).log_config.retention_ms == -1


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"retention.ms": "x"}, ["retention.ms", "'x'", "-1 or more"]),
        ({"retention.ms": "-2"}, ["retention.ms", "-1 or more"]),
        ({"segment.bytes": "1024"}, ["segment.bytes", "1048576 or more"]),
        ({"cleanup.policy": "compact,shred"}, ["cleanup.policy", "compact, delete"]),
        ({"retention.mss": "1"}, ["retention.mss", "retention.ms"]),
        ({"retention.ms": None}, ["retention.ms"]),
        (
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
            ["min.compaction.lag.ms", "max.compaction.lag.ms"],
        ),
        ({"compression.gzip.level": "0"}, ["compression.gzip.level", "1 to 9"]),
        ({"remote.storage.enable": "true"}, ["remote.storage.enable", "tiered storage"]),
        ({"leader.replication.throttled.replicas": "1-2"}, ["partition:broker"]),
    ],
)
def test_a_bad_config_names_key_value_and_what_is_allowed(configs: dict[str, str | None], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        topic_config.validate(configs)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("value", ["compact", "delete", "compact,delete", " delete , compact "])
def test_cleanup_policies(value: str) -> None:
    assert set(topic_config.validate({"cleanup.policy": value})["cleanup.policy"]) <= {"compact", "delete"}


def test_the_log_gets_what_is_in_force() -> None:
    defaults = TopicDefaults(layers(log_segment_bytes="2097152", durability="fsync"))
    log = defaults.log_config_of({"retention.bytes": "7", "cleanup.policy": "compact", "compression.gzip.level": "4"})
    assert (log.segment_bytes, log.retention_bytes, log.durability) == (2097152, 7, "fsync")
    assert log.cleanup_policy == {"compact"}
    assert log.compression_gzip_level == 4
    assert defaults.log_config_of({}) is defaults.log_config
    assert defaults.log_config_of({"internal.segment.bytes": "100"}).segment_bytes == 100
    # A key of a newer broker stays in the metadata and does nothing here.
    assert defaults.log_config_of({"no.such.key": "1"}) == defaults.log_config


def test_the_logs_own_defaults_are_the_tables() -> None:
    ours = TopicDefaults(layers()).log_config
    plain = LogConfig(compression_lz4_level=9, compression_zstd_level=3)
    assert ours == plain


def test_brokers_are_described_without_secrets_and_names_of_the_past() -> None:
    chain = layers()
    found = {entry.key.name: entry for entry in topic_config.describe_broker(chain)}
    assert "zookeeper.connect" not in found
    assert found["ssl.key.password"].value is None
    assert found["num.partitions"].read_only
    assert not found["message.max.bytes"].read_only
    assert found["log.retention.hours"].value == "168"
    with_past = layers(zookeeper_connect="x")
    assert "zookeeper.connect" in {entry.key.name for entry in topic_config.describe_broker(with_past)}


def test_types_have_kafkas_numbers() -> None:
    assert [kind.value for kind in ConfigType] == list(range(10))


def test_a_stored_value_that_does_not_pass_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka before 4.0 let a segment be smaller; its directories must open."""
    chain = layers({"log.retention.ms": "x"})
    defaults = TopicDefaults(chain)
    assert defaults.log_config.retention_ms == 604800000
    assert defaults.log_config_of({"segment.bytes": "1000", "retention.ms": "5"}).segment_bytes == 1073741824
    assert "segment.bytes = '1000' is not allowed" in caplog.text
    assert defaults.log_config_of({"internal.segment.bytes": "0"}).segment_bytes == 1073741824
    assert described({"segment.bytes": "1000"}, chain)["segment.bytes"].source is ConfigSource.DEFAULT_CONFIG
