"""Configs of topics, brokers, groups and loggers by the admin APIs, in every version: described, altered, listed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from admin_requests import describe, errors_of, increment, versions
from fastq_broker.controller import NewTopic
from fastq_broker.handlers import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)

from fastq.protocol import messages as m

GROUP = 32


@pytest.mark.parametrize("version", versions(describe_configs))
def test_describe_configs_of_a_topic(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a", configs=[("retention.ms", "7")])])
    request = describe(2, "a", include_synonyms=True)
    request.include_documentation = version >= 3
    (result,) = bench.call(describe_configs, request, version).results
    assert result.error_code == 0
    found = {item.name: item for item in result.configs}
    assert len(found) == 35
    entry = found["retention.ms"]
    assert (entry.value, entry.config_source, entry.read_only, entry.is_sensitive) == ("7", 1, False, False)
    assert [(item.name, item.value, item.source) for item in entry.synonyms] == [
        ("retention.ms", "7", 1),
        ("log.retention.hours", "168", 5),
    ]
    # Like Kafka, a new cluster sets this for all brokers, for eligible leader replicas.
    assert found["min.insync.replicas"].config_source == 3
    if version >= 3:
        assert entry.config_type == 5
        assert "Age beyond which" in entry.documentation
        assert "Has no effect" in found["remote.storage.enable"].documentation
    (only,) = bench.call(describe_configs, describe(2, "a", ["segment.bytes"]), version).results
    assert [(item.name, item.synonyms) for item in only.configs] == [("segment.bytes", [])]
    assert only.configs[0].documentation == (None if version >= 3 else "")  # it was not asked for


@pytest.mark.parametrize(
    ("kind", "name", "keys"),
    [
        (2, "a", ["segment.bytes", "cleanup.policy", "nope", "segment.bytes", "retention.ms"]),
        (4, "1", ["num.partitions", "log.dirs", "nope", "node.id", "log.dirs"]),
        (8, "1", ["ROOT", "nope", "ROOT"]),
        (32, "g", ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]),
    ],
)
def test_named_keys_come_once_in_the_order_asked(bench: Any, kind: int, name: str, keys: list[str]) -> None:
    bench.controller.create_topics([NewTopic("a")])
    (result,) = bench.call(describe_configs, describe(kind, name, keys), 4).results
    known = [key for key in dict.fromkeys(keys) if key not in ("nope", "ROOT")]
    assert [item.name for item in result.configs if item.name != "ROOT"] == known
    assert all(item.documentation is None for item in result.configs)


@pytest.mark.parametrize("version", versions(describe_configs))
def test_describe_configs_of_brokers(make_bench: Any, version: int) -> None:
    bench = make_bench(num_partitions=3, ssl_key_password="secret", insecure_ignore=["ssl.key.password"])
    (result,) = bench.call(describe_configs, describe(4, "1", include_synonyms=True), version).results
    found = {item.name: item for item in result.configs}
    assert (found["num.partitions"].value, found["num.partitions"].config_source) == ("3", 4)
    assert found["num.partitions"].read_only
    secret = found["ssl.key.password"]
    assert (secret.value, secret.is_sensitive) == (None, True)
    assert [item.value for item in secret.synonyms] == [None]
    (default,) = bench.call(describe_configs, describe(4, ""), version).results
    assert [(item.name, item.value, item.config_source) for item in default.configs] == [
        ("min.insync.replicas", "1", 3)
    ]


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [(2, "nope", 3), (2, "a b", 17), (4, "9", 42), (4, "x", 42), (8, "9", 42), (0, "x", 42), (32, "", 42)],
)
def test_describe_configs_of_what_is_not_there(bench: Any, kind: int, name: str, error: int) -> None:
    for version in versions(describe_configs):
        (result,) = bench.call(describe_configs, describe(kind, name), version).results
        assert (result.error_code, result.configs) == (error, [])
        assert result.error_message


@pytest.mark.parametrize("version", versions(incremental_alter_configs))
def test_incremental_alter_configs(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a", configs=[("segment.ms", "7")])])
    changes = (("retention.ms", 0, "5"), ("segment.ms", 1, None), ("cleanup.policy", 2, "compact"))
    assert errors_of(bench.call(incremental_alter_configs, increment(2, "a", *changes, validate=True), version)) == [0]
    assert bench.controller.image.topic_configs("a") == {"segment.ms": "7"}
    assert errors_of(bench.call(incremental_alter_configs, increment(2, "a", *changes), version)) == [0]
    assert bench.controller.image.topic_configs("a") == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    bad = bench.call(incremental_alter_configs, increment(2, "a", ("retention.ms", 0, "x")), version)
    assert errors_of(bad) == [40]
    assert "'x'" in bad.responses[0].error_message
    assert errors_of(bench.call(incremental_alter_configs, increment(4, "1", ("num.partitions", 0, "5")), version)) == [
        42
    ]


@pytest.mark.parametrize("version", versions(incremental_alter_configs))
def test_levels_of_loggers(bench: Any, version: int) -> None:
    name = "fastq_broker.test_levels"
    logger = logging.getLogger(name)
    try:
        assert errors_of(
            bench.call(incremental_alter_configs, increment(8, "1", (name, 0, "DEBUG"), validate=True), version)
        ) == [0]
        assert logger.level == logging.NOTSET
        assert errors_of(bench.call(incremental_alter_configs, increment(8, "1", (name, 0, "DEBUG")), version)) == [0]
        assert logger.level == logging.DEBUG
        (result,) = bench.call(describe_configs, describe(8, "1", [name]), 4).results
        assert [(item.name, item.value, item.config_source) for item in result.configs] == [(name, "DEBUG", 6)]
        assert errors_of(bench.call(incremental_alter_configs, increment(8, "1", (name, 1, None)), version)) == [0]
        assert logger.level == logging.NOTSET
        for bad in ((name, 0, "LOUD"), ("no.such.logger", 0, "INFO"), (name, 2, "INFO"), ("root", 1, None)):
            assert errors_of(bench.call(incremental_alter_configs, increment(8, "1", bad), version)) in ([40], [42])
        assert errors_of(bench.call(incremental_alter_configs, increment(8, "2", (name, 0, "INFO")), version)) == [42]
    finally:
        logger.setLevel(logging.NOTSET)


def test_loggers_are_told_in_the_order_asked_for(bench: Any) -> None:
    names = [logging.getLogger(f"fastq_broker.test_order.{name}").name for name in ("a", "b")]
    for asked in (names, names[::-1], ["root", *names], [names[1], "no.such.logger", "root"]):
        (result,) = bench.call(describe_configs, describe(8, "1", asked), 4).results
        assert [item.name for item in result.configs] == [name for name in asked if name != "no.such.logger"]


@pytest.mark.parametrize("version", versions(alter_configs))
def test_alter_configs_replaces(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a", configs=[("segment.ms", "7")])])
    config = m.AlterConfigsRequest.AlterableConfig(name="retention.ms", value="5")
    resources = [
        m.AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="a", configs=[config]),
        m.AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="nope", configs=[]),
    ]
    response = bench.call(alter_configs, m.AlterConfigsRequest(resources=resources, validate_only=False), version)
    assert errors_of(response) == [0, 3]
    assert bench.controller.image.topic_configs("a") == {"retention.ms": "5"}


def test_a_default_that_no_broker_key_stands_for_is_no_synonym(bench: Any) -> None:
    """As Kafka tells it of topics, of the rates that bound moves of replicas, and of loggers."""
    name, rate = "leader.replication.throttled.replicas", "leader.replication.throttled.rate"
    bench.controller.create_topics([NewTopic("a", configs=[(name, "0:1")])])
    for resource, of, value in ((2, "a", "0:1"), (4, "1", "7")):
        key = name if resource == 2 else rate
        if resource == 4:
            assert errors_of(bench.call(incremental_alter_configs, increment(4, "1", (rate, 0, "7")), 1)) == [0]
        (result,) = bench.call(describe_configs, describe(resource, of, [key], include_synonyms=True), 4).results
        (entry,) = result.configs
        assert [(item.name, item.value) for item in entry.synonyms] == [(key, value)]
    unset = "follower.replication.throttled.replicas"
    (result,) = bench.call(describe_configs, describe(2, "a", [unset], include_synonyms=True), 4).results
    assert [(item.config_source, item.synonyms) for item in result.configs] == [(5, [])]
    (result,) = bench.call(describe_configs, describe(8, "1", ["root"], include_synonyms=True), 4).results
    assert [item.synonyms for item in result.configs] == [[]]


def test_what_is_stored_for_all_brokers_and_does_not_pass_any_more_is_told_as_it_is(bench: Any) -> None:
    """Kafka before 4.0 let a segment be smaller: one such value closed the connection of each who asked for them all."""
    stored = {"log.segment.bytes": "1024", "log.retention.ms": "7", "background.threads": "many"}
    bench.controller.commit(
        [m.ConfigRecord(resource_type=4, resource_name="", name=key, value=value) for key, value in stored.items()]
    )
    (result,) = bench.call(describe_configs, describe(4, "", include_synonyms=True), 4).results
    found = {item.name: item for item in result.configs}
    assert {name: found[name].value for name in stored} == stored
    assert {name: [one.value for one in found[name].synonyms] for name in stored} == {k: [v] for k, v in stored.items()}
    assert (found["log.segment.bytes"].config_type, found["log.retention.ms"].config_type) == (2, 5)


@pytest.mark.parametrize("version", versions(incremental_alter_configs))
def test_settings_of_groups(make_bench: Any, version: int) -> None:
    """A group, also one that is not there, has its own settings, the broker's, or the defaults; within the broker's bounds."""
    bench = make_bench(group_consumer_heartbeat_interval_ms=6000)

    def alter(*changes: tuple[str, int, str | None]) -> tuple[int, str | None]:
        (answer,) = bench.call(incremental_alter_configs, increment(GROUP, "g", *changes), version).responses
        return answer.error_code, answer.error_message

    def settings() -> dict[str, tuple[str | None, int]]:
        (result,) = bench.call(describe_configs, describe(GROUP, "g"), 4).results
        assert result.error_code == 0
        return {item.name: (item.value, item.config_source) for item in result.configs}

    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    before = {session: ("45000", 5), heartbeat: ("6000", 4), "consumer.assignment.interval.ms": ("1000", 5)}
    assert settings() == before
    assert alter((session, 0, "50000"), (heartbeat, 0, "7000")) == (0, None)
    assert settings() == {**before, session: ("50000", 8), heartbeat: ("7000", 8)}
    synonyms = bench.call(describe_configs, describe(GROUP, "g", [heartbeat], include_synonyms=True), 4).results[0]
    assert [(item.name, item.value, item.source) for item in synonyms.configs[0].synonyms] == [
        (heartbeat, "7000", 8),
        ("group.consumer.heartbeat.interval.ms", "6000", 4),
        ("group.consumer.heartbeat.interval.ms", "5000", 5),
    ]
    assert alter((heartbeat, 1, None)) == (0, None)
    assert settings() == {**before, session: ("50000", 8)}
    for name, value, words in (
        (session, "44999", "group.consumer.min.session.timeout.ms = 45000"),
        (session, "60001", "group.consumer.max.session.timeout.ms = 60000"),
        (heartbeat, "15001", "group.consumer.max.heartbeat.interval.ms = 15000"),
        (heartbeat, "often", "'often'"),
        ("consumer.sesion.timeout.ms", "50000", "did you mean consumer.session.timeout.ms?"),
    ):
        code, message = alter((name, 0, value))
        assert code == 40
        assert words in str(message)
    (refused,) = bench.call(incremental_alter_configs, increment(GROUP, "", (session, 0, "50000")), version).responses
    assert refused.error_code == 42
    assert settings() == {**before, session: ("50000", 8)}


@pytest.mark.parametrize("version", versions(list_config_resources))
def test_list_config_resources(bench: Any, version: int) -> None:
    bench.controller.create_topics([NewTopic("a"), NewTopic("b")])
    change = increment(GROUP, "g", ("consumer.session.timeout.ms", 0, "50000"))
    assert errors_of(bench.call(incremental_alter_configs, change, 1)) == [0]

    def listed(*kinds: int) -> list[tuple[int, str]]:
        response = bench.call(list_config_resources, m.ListConfigResourcesRequest(resource_types=list(kinds)), version)
        assert response.error_code == 0
        return [(item.resource_type, item.resource_name) for item in response.config_resources]

    if version == 0:  # client metrics alone, of which nothing is set
        assert listed() == []
        return
    assert listed() == [(2, "a"), (2, "b"), (4, "1"), (8, "1"), (GROUP, "g")]
    assert listed(GROUP, 16) == [(GROUP, "g")]
    unknown = bench.call(list_config_resources, m.ListConfigResourcesRequest(resource_types=[3]), version)
    assert (unknown.error_code, unknown.config_resources) == (35, [])
