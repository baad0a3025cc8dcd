"""Where a broker may fetch from for mirrors: settings of a client, checked at the start, whose secrets nobody sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastq_broker import config_mirror, preflight, topic_config
from fastq_broker.config import BrokerConfig, check_known
from fastq_broker.container import settings_of, unknown_variables
from fastq_broker.reload import differing
from fastq_broker.topic_config import BrokerLayers

from fastq.errors import ConfigError

EAST = {
    "mirror.pull.east.bootstrap.servers": "east:9092,other:9093",
    "mirror.pull.east.security.protocol": "SASL_PLAINTEXT",
    "mirror.pull.east.sasl.mechanism": "SCRAM-SHA-256",
    "mirror.pull.east.sasl.jaas.config": 'ScramLoginModule required username="me" password="Geheim1";',
}


def test_each_alias_has_the_settings_of_a_client() -> None:
    config = BrokerConfig.from_mapping({**EAST, "mirror.pull.We_st-2.bootstrap.servers": "west:9092"})
    assert sorted(config.mirror_sources) == ["We_st-2", "east"]
    east = config.mirror_sources["east"]
    assert east.bootstrap_servers == ("east:9092", "other:9093")
    assert (east.security_protocol, east.sasl_username, east.sasl_password) == ("SASL_PLAINTEXT", "me", "Geheim1")
    assert (east.client_id, east.response_bytes_max) == ("fastq-mirror-pull", 100 << 20)
    own = {"mirror.pull.east.client.id": "mine", "mirror.pull.east.receive.message.max.bytes": 200 << 20}
    named = BrokerConfig.from_mapping({**EAST, **own}).mirror_sources["east"]
    assert (named.client_id, named.response_bytes_max) == ("mine", 200 << 20)
    assert BrokerConfig.from_mapping({}).mirror_sources == {}


def test_a_file_has_them_too(tmp_path: Path) -> None:
    toml, properties = tmp_path / "server.toml", tmp_path / "server.properties"
    toml.write_text('[mirror.pull.east]\nbootstrap.servers = "east:9092"\nrequest.timeout.ms = 5000\n')
    properties.write_text("mirror.pull.east.bootstrap.servers=east:9092\nmirror.pull.east.request.timeout.ms=5000\n")
    one, two = (BrokerConfig.load(path).mirror_sources["east"] for path in (toml, properties))
    assert one == two and one.request_timeout_ms == 5_000
    settings, _ = settings_of({"KAFKA_MIRROR_PULL_EAST_BOOTSTRAP_SERVERS": "east:9092"})
    assert unknown_variables(settings) == ""
    assert list(BrokerConfig.from_mapping(settings).mirror_sources) == ["east"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("mirror.pull.east", "east:9092", r"mirror\.pull\.ALIAS\.KEY"),
        ("mirror.pull.", "east:9092", r"mirror\.pull\.ALIAS\.KEY"),
        ("mirror.pull", "east:9092", r"mirror\.pull\.ALIAS\.KEY"),
        (
            "mirror.pul.east.bootstrap.servers",
            "east:9092",
            r"mirror\.pul\.east\.\S+: it takes mirror\.pull\.ALIAS\.KEY",
        ),
        ("miror.pull.east.sasl.username", "me", r"mirror\.pull\.ALIAS\.KEY"),
        ("mirrorpull.east.bootstrap.servers", "east:9092", r"mirror\.pull\.ALIAS\.KEY"),
        ("mirror.pull..bootstrap.servers", "east:9092", r"mirror\.pull\.ALIAS\.KEY"),
        ("mirror.pull.ea st.bootstrap.servers", "east:9092", r"mirror\.pull\.ALIAS\.KEY"),
        ("mirror.pull.west.client.id", "me", r"mirror\.pull\.west has no mirror\.pull\.west\.bootstrap\.servers"),
        (
            "mirror.pull.east.sasl.pasword",
            "Geheim2",
            r"mirror\.pull\.east: unknown configuration key sasl\.pasword; did you",
        ),
        (
            "mirror.pull.east.request.timeout.ms",
            "soon",
            r"mirror\.pull\.east: bad value for request_timeout_ms: 'soon'",
        ),
        ("mirror.pull.east.bootstrap.servers", "", r"mirror\.pull\.east: bad value for bootstrap_servers"),
        ("mirror.pull.east.group.id", "g", r"mirror\.pull\.east: .* it is a setting of a consumer"),
        ("mirror.pul.east.bootstrap.servers", "east:9092", "unknown broker setting"),
    ],
)
def test_a_wrong_one_refuses_the_start(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        BrokerConfig.from_mapping({**EAST, name: value})
    assert "Geheim" not in str(caught.value)


def test_a_file_of_tls_that_cannot_be_used_refuses_the_start(tmp_path: Path) -> None:
    settings = {
        "mirror.pull.east.bootstrap.servers": "east:9092",
        "mirror.pull.east.security.protocol": "SSL",
        "mirror.pull.east.ssl.truststore.location": str(tmp_path / "none.pem"),
    }
    with pytest.raises(ConfigError, match=r"mirror\.pull\.east: ssl_truststore_location=.*none\.pem"):
        BrokerConfig.from_mapping(settings)


def test_what_has_no_effect_is_said() -> None:
    config = BrokerConfig.from_mapping({**EAST, "mirror.pull.east.metric.reporters": "x"})
    assert [w for w in config.warnings if "metric" in w] == [
        "mirror.pull.east: metric.reporters has no effect: metrics are read with .metrics()"
    ]


def test_secrets_are_shown_nowhere() -> None:
    config = BrokerConfig.from_mapping(EAST)
    lines = list(preflight.report(config, preflight.look(config, 1_024), {}))
    told = [line.partition("    ")[0] for line in lines if line.startswith("mirror.pull")]
    assert "mirror.pull.east.bootstrap.servers=east:9092,other:9093" in told
    assert "mirror.pull.east.sasl.password=[hidden]" in told and "mirror.pull.east.sasl.username=me" in told
    described = topic_config.describe_broker(BrokerLayers(config))
    assert not any(entry.key.name.startswith("mirror.pull") for entry in described)
    for text in ("\n".join(lines), repr(config), repr(config.mirror_sources), repr(described)):
        assert "Geheim" not in text


def test_what_is_another_counts_from_the_next_start_on() -> None:
    old, new = (
        BrokerConfig.from_mapping({**EAST, "mirror.pull.east.sasl.mechanism": m}) for m in ("PLAIN", "SCRAM-SHA-256")
    )
    assert differing(old, new) == ([], ["mirror.pull.east"])
    assert differing(old, BrokerConfig.from_mapping({})) == ([], ["mirror.pull.east"])
    assert differing(old, old) == ([], [])


def test_a_setting_of_the_table_is_not_compared_with_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start with min.insync.replicas took a module for that."""
    monkeypatch.setattr(config_mirror, "is_meant", lambda name: pytest.fail(name))
    check_known("min.insync.replicas")
