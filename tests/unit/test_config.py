"""Configuration: names of every age, ranges, hints, secrets, and the typed keyword arguments."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import pytest

from fastq import Admin, AsyncAdmin, AsyncProducer, Producer, other_clients
from fastq.admin import AdminOptions
from fastq.admin.config import AdminConfig
from fastq.client_options import ClientOptions
from fastq.config import ClientConfig, ConfigWarning
from fastq.consumer import ConsumerOptions
from fastq.consumer.config import ConsumerConfig
from fastq.errors import ConfigError
from fastq.mirror.config import MirrorOptions
from fastq.net.addresses import Address, parse_address, parse_servers
from fastq.net.tls import client_context
from fastq.producer import ProducerOptions
from fastq.producer.config import ProducerConfig
from fastq.settings import Config, Renamed, option, renamed


class SampleConfig(ClientConfig):
    batch_size: int = option(16_384, low=0, high=2**31 - 1)
    acks: str = option("all", choices=("all", "-1", "0", "1"))
    enabled: bool = option(True)
    ratio: float = option(0.5, low=0.0, high=1.0)
    limit: int = option(-1, low=1, also=(-1,))

    RENAMED: ClassVar[Mapping[str, Renamed]] = {
        "queue_buffering_max_ms": renamed("request_timeout_ms"),
        "request_required_acks": renamed("acks"),
        "log_hours": renamed("metadata_max_age_ms", scale=3_600_000),
        "compression_codec": renamed("client_id", values={"0": "none", "1": "gzip"}),
    }
    IGNORED: ClassVar[Mapping[str, str]] = {"zookeeper_connect": "there is no ZooKeeper"}


def test_defaults_are_kafkas() -> None:
    config = ClientConfig()
    assert config.request_timeout_ms == 30_000
    assert config.metadata_max_age_ms == 300_000
    assert config.reconnect_backoff_ms == 50
    assert config.bootstrap_servers == ("localhost:9092",)
    assert config.addresses == (Address("localhost", 9092),)


def test_dotted_names_strings_and_overrides() -> None:
    config = SampleConfig.from_mapping(
        {"bootstrap.servers": "a:1, [::1]:2", "request.timeout.ms": "5000", "enabled": "false", "ratio": "1"},
        request_timeout_ms=7000,
    )
    assert config.addresses == (Address("a", 1), Address("::1", 2))
    assert config.request_timeout_ms == 7000
    assert config.enabled is False
    assert config.ratio == 1.0


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("request_timeout_ms", 0, "from 1"),
        ("request_timeout_ms", "soon", "an integer"),
        ("request_timeout_ms", True, "an integer"),
        ("request_timeout_ms", 1.5, "an integer"),
        ("request_timeout_ms", None, "an integer"),
        ("acks", "2", "'all', '-1', '0', '1'"),
        ("enabled", "maybe", "true or false"),
        ("ratio", float("nan"), "from 0.0 to 1.0"),
        ("ratio", 1.01, "from 0.0 to 1.0"),
        ("limit", 0, "or -1"),
        ("client_id", 5, "a string"),
        ("bootstrap_servers", "", "at least one HOST:PORT"),
        ("bootstrap_servers", "a:b", "HOST:PORT"),
        ("bootstrap_servers", ["a:70000"], "65535"),
        ("bootstrap_servers", 9092, "HOST:PORT"),
        ("ssl_context", "yes", "ssl.SSLContext"),
    ],
)
def test_bad_value_names_key_value_and_what_is_allowed(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SampleConfig.from_mapping({key: value})
    message = str(caught.value)
    assert key in message and allowed in message and repr(value) in message


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown configuration key bootstrap\.server; did you mean bootstrap_servers\?"
    ):
        ClientConfig.from_mapping({"bootstrap.server": "a:1"})
    with pytest.raises(ConfigError, match=r"help\(ClientConfig\)"):
        ClientConfig.from_mapping({"xyzzy": 1})


def test_two_spellings_that_disagree() -> None:
    with pytest.raises(ConfigError, match="two names of client_id"):
        ClientConfig.from_mapping({"client.id": "a", "client_id": "b"})
    assert ClientConfig.from_mapping({"client.id": "a", "client_id": "a"}).client_id == "a"


def test_renamed_keys_warn_and_convert() -> None:
    with pytest.warns(
        ConfigWarning, match="request.required.acks is a name of older releases or other clients; use acks"
    ):
        assert SampleConfig.from_mapping({"request.required.acks": "1"}).acks == "1"
    with pytest.warns(ConfigWarning):
        assert SampleConfig.from_mapping({"log.hours": 2}).metadata_max_age_ms == 7_200_000
    with pytest.warns(ConfigWarning):
        assert SampleConfig.from_mapping({"compression.codec": 1}).client_id == "gzip"
    with (
        pytest.warns(ConfigWarning),
        pytest.raises(ConfigError, match=r"compression.codec: 7; allowed: one of '0', '1'"),
    ):
        SampleConfig.from_mapping({"compression.codec": 7})
    # Tables of the base class still hold in the subclass.
    with pytest.warns(ConfigWarning):
        assert SampleConfig.from_mapping({"metadata.broker.list": "h:1"}).addresses == (Address("h", 1),)


def test_ignored_keys_say_why() -> None:
    with pytest.warns(ConfigWarning, match=r"zookeeper.connect has no effect: there is no ZooKeeper"):
        SampleConfig.from_mapping({"zookeeper.connect": "z:2181"})


def test_aliases_are_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ClientConfig.from_mapping({"ssl.ca.location": "/ca.pem", "security.protocol": "ssl"}).uses_tls


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"ssl_cafile": "/ca.pem"},
            "ssl_truststore_location: without effect: security_protocol=PLAINTEXT.*encrypted and nobody logs",
        ),
        ({"sasl_username": "a", "sasl_password": "b"}, "sasl_password, sasl_username: without effect.*=PLAINTEXT"),
        (
            {"sasl_password": "b", "security_protocol": "SSL"},
            "sasl_password: without effect.*=SSL means that nobody logs in",
        ),
    ],
)
def test_protection_that_is_given_and_not_used_is_told(given: dict[str, Any], said: str) -> None:
    with pytest.warns(ConfigWarning, match=said):
        ClientConfig.from_mapping(given)


@pytest.mark.parametrize("key", ["ssl_cafile", "ssl.keystore.location", "ssl.key.location"])
def test_the_text_of_a_file_where_its_path_belongs_is_not_shown(key: str) -> None:
    text = "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\n"
    with pytest.raises(ConfigError, match=r"the text of a PEM file; allowed: its path \(text is ssl_") as caught:
        ClientConfig.from_mapping({"security.protocol": "SSL", key: text})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("key", ["ssl_key_location", "ssl_keystore_key"])
def test_a_key_without_its_certificates_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is the key of ssl_keystore_.*, which is not given"):
        ClientConfig.from_mapping({"security_protocol": "SSL", key: "k"})


def test_a_login_and_certificates_that_are_used_are_no_news() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ClientConfig(security_protocol="SASL_SSL", sasl_username="a", sasl_password="b", ssl_truststore_location="/ca")
        ClientConfig(sasl_username=None, ssl_context=None)
        ClientConfig(sasl_username="", sasl_password="", ssl_truststore_location="")  # as a template leaves them
        beside = ClientConfig(security_protocol="SSL", ssl_key_location="", ssl_keystore_key="")
    assert beside.ssl_key_location is None, "or OpenSSL looked for a file of no name"


def test_jaas() -> None:
    text = r'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="a\"b";'
    with pytest.warns(
        ConfigWarning, match=r"sasl.jaas.config is what Java clients log in by; .* sasl_username and sasl_password"
    ):
        config = ClientConfig.from_mapping({"sasl.jaas.config": text, "security.protocol": "sasl_plaintext"})
    assert (config.sasl_username, config.sasl_password) == ("alice", 'a"b')
    assert config.security_protocol == "SASL_PLAINTEXT" and config.uses_sasl and not config.uses_tls


@pytest.mark.parametrize("given", [{}, {"sasl_username": "a"}, {"sasl_username": "", "sasl_password": ""}])
def test_sasl_needs_a_name_and_a_password(given: dict[str, str]) -> None:
    """Empty ones, as a template leaves them, were sent, and a broker refused the login of nobody."""
    with pytest.raises(ConfigError, match="sasl_username and sasl_password"):
        ClientConfig(security_protocol="SASL_SSL", **given)  # type: ignore[arg-type]


def test_secrets_are_not_shown() -> None:
    config = SampleConfig(sasl_username="alice", sasl_password="hunter2", acks="1")
    assert "hunter2" not in repr(config) and "alice" in repr(config) and "acks='1'" in repr(config)
    with pytest.raises(ConfigError) as caught:
        ClientConfig.from_mapping({"sasl_password": 12345})
    assert "12345" not in str(caught.value)


def test_frozen_copies_and_pickles() -> None:
    config = SampleConfig(client_id="me")
    with pytest.raises(AttributeError):
        config.client_id = "you"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config == copy.copy(config)
    assert hash(config) == hash(SampleConfig(client_id="me"))
    assert config.replace(client_id="x").client_id == "x"
    with pytest.raises(ConfigError):
        config.replace(request_timeout_ms=-5)


def test_nothing_is_verified_only_by_a_context_of_ones_own() -> None:
    """librdkafka's key was taken for the check of the name, and said to be an old name of that."""
    with pytest.warns(ConfigWarning, match="no effect: the broker's certificate is verified"):
        config = ClientConfig.from_mapping({"enable.ssl.certificate.verification": "true"})
    assert config == ClientConfig()
    with (
        pytest.warns(ConfigWarning),
        pytest.raises(ConfigError, match=r"allowed: true; .*CERT_NONE.*ssl_endpoint_identification_algorithm='none'"),
    ):
        ClientConfig.from_mapping({"enable.ssl.certificate.verification": False})


def test_every_option_is_in_the_typed_keywords_and_documented() -> None:
    assert set(ClientOptions.__annotations__) == set(ClientConfig.options())


@pytest.mark.parametrize(
    ("options", "config"),
    [(ProducerOptions, ProducerConfig), (ConsumerOptions, ConsumerConfig), (AdminOptions, AdminConfig)],
)
def test_every_option_has_a_type_that_can_be_asked_for(options: Any, config: type[Config]) -> None:
    assert set(get_type_hints(options)) == set(config.options())


def test_inspection_finds_every_option_and_its_default() -> None:
    parameters = inspect.signature(ProducerConfig).parameters
    assert set(parameters) == set(ProducerConfig.options())
    assert (parameters["linger_ms"].default, parameters["linger_ms"].annotation) == (5.0, "float")
    assert "linger_ms: 'float' = 5.0" in pydoc.plain(pydoc.render_doc(ProducerConfig))


def test_a_constructor_refuses_what_is_no_option_and_a_configuration_does_not_change() -> None:
    with pytest.raises(TypeError, match="ProducerConfig has no option 'linger'"):
        ProducerConfig(linger=1)  # type: ignore[call-arg]
    config: Any = ProducerConfig(linger_ms=1)
    for change in (lambda: setattr(config, "linger_ms", 2), lambda: delattr(config, "linger_ms")):
        with pytest.raises(AttributeError, match="linger_ms"):
            change()
    assert config == ProducerConfig(linger_ms=1) != ProducerConfig()
    assert config != ConsumerConfig()
    assert hash(config) == hash(ProducerConfig(linger_ms=1))
    assert all(declared.doc for declared in ClientConfig.options().values())


def test_an_option_without_a_type_is_refused() -> None:
    with pytest.raises(TypeError, match="kind"):
        option(None)
    assert Config.options() == {}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("h", Address("h", 9092)),
        ("h:1", Address("h", 1)),
        ("PLAINTEXT://h:1", Address("h", 1)),
        ("[::1]:2", Address("::1", 2)),
        ("[::1]", Address("::1", 9092)),
        ("::1", Address("::1", 9092)),
        (" 10.0.0.1:65535 ", Address("10.0.0.1", 65535)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", ":1", "h:", "h:0", "h:65536", "h:-1", "h:+1", "[::1", "[::1]x", "a:b:c", "h:１"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)


def test_servers_drop_duplicates_in_order() -> None:
    assert parse_servers("b:1,a:2,b:1,") == (Address("b", 1), Address("a", 2))


def test_help_of_a_configuration_tells_every_setting() -> None:
    from fastq.producer import ProducerConfig

    text = pydoc.render_doc(ProducerConfig, renderer=pydoc.plaintext)
    assert "Everything a producer can be told." in text
    for key, declared in ProducerConfig.options().items():
        assert f"{key} = " in text
        assert declared.doc in text
    assert "sasl_password = '" not in text, "a secret's default is not shown either"


# -- what people bring along from other clients, and what they misspell


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("error_cb", "logged by the logger 'fastq'"),
        ("stats_cb", r"metrics\(\)"),
        ("on_delivery", "result"),
        ("dr_msg_cb", "result"),
        ("rebalance_cb", "on_revoked"),
        ("on_commit", "commit_async"),
        ("default.topic.config", "keys of the client itself"),
        ("schema.registry.url", "fastq.schema_registry"),
        ("sasl.kerberos.service.name", "Kerberos"),
    ],
)
def test_keys_that_a_program_relies_on_say_what_to_write_instead(key: str, words: str) -> None:
    for config in (ClientConfig, ProducerConfig, ConsumerConfig, AdminConfig):
        with pytest.raises(ConfigError, match=f"{re.escape(key)} is a key of another client: .*{words}"):
            config.from_mapping({key: print})


@pytest.mark.parametrize("key", ["on_assign", "on_revoke", "on_lost"])
def test_listeners_of_a_rebalance_are_given_to_subscribe(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} is a key of another client: give it to subscribe\(\), as {key}"):
        ConsumerConfig.from_mapping({key: print})


@pytest.mark.parametrize("key", ["socket.keepalive.enable", "api.version.request", "debug", "statistics.interval.ms"])
def test_keys_that_change_nothing_warn(key: str) -> None:
    with pytest.warns(ConfigWarning, match=f"{re.escape(key)} has no effect"):
        ConsumerConfig.from_mapping({key: "1"})


@pytest.mark.parametrize("config", [ClientConfig, ProducerConfig, ConsumerConfig, AdminConfig])
def test_no_key_of_ours_is_said_to_be_anothers(config: type[ClientConfig]) -> None:
    names = {*config.options(), *config._merged("RENAMED")}
    names.update(alias for declared in config.options().values() for alias in declared.aliases)
    assert not names & {*other_clients.IGNORED, *other_clients.REFUSED}
    assert not {*other_clients.IGNORED} & {*other_clients.REFUSED}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("linger", "linger_ms"),
        ("bootstrap_server", "bootstrap_servers"),
        ("bootstrap.brokers", "bootstrap_servers"),
        ("metadata_broker_lists", "bootstrap_servers"),
        ("queue.buffering.max.mss", "linger_ms"),
        ("compresion.type", "compression_type"),
        ("timeout", "request_timeout_ms"),
        ("idempotence", "enable_idempotence"),
    ],
)
def test_what_is_suggested_is_todays_name(key: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown configuration key {re.escape(key)}; did you mean .*\b{said}\b"):
        ProducerConfig.from_mapping({key: "1"})


@pytest.mark.parametrize(
    ("config", "key", "whose"),
    [
        (ConsumerConfig, "linger_ms", "producer"),
        (ConsumerConfig, "queue.buffering.max.ms", "producer"),
        (ProducerConfig, "group.id", "consumer"),
        (ProducerConfig, "fetch.wait.max.ms", "consumer"),
        (AdminConfig, "acks", "producer"),
    ],
)
def test_a_setting_of_another_client_is_said_to_be_one(config: type[ClientConfig], key: str, whose: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown configuration key {re.escape(key)}: it is a setting of a {whose}"):
        config.from_mapping({key: "1"})


@pytest.mark.parametrize("config", [ProducerConfig, ConsumerConfig, AdminConfig])
def test_what_a_setting_allows_is_said_of_every_one(config: type[ClientConfig]) -> None:
    vague = [key for key, declared in config.options().items() if "another value" in declared.allowed()]
    assert vague == []
    with pytest.raises(ConfigError, match="bootstrap_servers: None; allowed: HOST:PORT"):
        config(bootstrap_servers=None)  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("text", ["localhost 9092", "http://localhost:9092/", "a:1;b:2", "me@host:9092", "host\t:1"])
def test_what_is_no_address_is_refused_before_it_is_looked_up(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bad value for bootstrap_servers.*HOST:PORT"):
        ProducerConfig(bootstrap_servers=text)


@pytest.mark.parametrize(
    ("servers", "shown"),
    [
        ("me:hush@host:9092", "'***@host:9092'"),
        ("SASL_SSL://me:hush@host:9092", "'***@host:9092'"),
        ("me:hu,hush/@:@host:9092", "'***@host:9092'"),
        ("a:1,me:hush@host:9092,b:2", "'***@host:9092,b:2'"),
        (["a:1", "me:hush@host:9092"], "['a:1', '***@host:9092']"),
        (("me:hush@host",), "['***@host']"),
        (b"me:hush@host:9092", "***@host:9092'"),
        ([5, "me:hush@host:9092"], "[5, '***@host:9092']"),
    ],
)
@pytest.mark.parametrize("config", [ProducerConfig, ConsumerConfig, AdminConfig])
def test_a_login_in_an_address_is_not_shown(config: type[ClientConfig], servers: Any, shown: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(bootstrap_servers=servers)
    assert "hush" not in str(caught.value) and f"bad value for bootstrap_servers: {shown};" in str(caught.value)
    if isinstance(servers, str):
        assert "sasl.username" in str(caught.value) and "sasl_username" in str(caught.value)
    with pytest.warns(ConfigWarning), pytest.raises(ConfigError) as caught:
        config.from_mapping({"metadata.broker.list": servers, "bootstrap.servers": "x:2"})
    assert "disagree" in str(caught.value) and "hush" not in str(caught.value)


@pytest.mark.parametrize("key", ["frobnicate", "x", "no.such.thing"])
def test_nothing_far_away_is_suggested(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown configuration key {key}; help\(ProducerConfig\)"):
        ProducerConfig.from_mapping({key: "1"})


@pytest.mark.parametrize("config", [ProducerConfig, ConsumerConfig, AdminConfig, ClientConfig, MirrorOptions])
def test_an_unknown_key_names_the_page_of_the_known_ones(config: type[Config]) -> None:
    """Who gave it to a command is at no Python prompt."""
    with pytest.raises(ConfigError) as caught:
        config.from_mapping({"frobnicate": "1"})
    page = caught.value.args[0].partition(" and ")[2].removesuffix(" show the known keys")
    text = (Path(__file__).resolve().parents[2] / page).read_text()
    beside = ClientConfig.options() if config is not ClientConfig else {}
    assert all(f"| `{key}` |" in text or key in beside for key in config.options())
    assert any(f"| `{key}` |" in text for key in config.options())


def test_errors_say_a_value_once_and_a_secret_never() -> None:
    with pytest.raises(ConfigError) as caught:
        ClientConfig(bootstrap_servers="x:99999")
    assert str(caught.value).count("x:99999") == 1
    with pytest.raises(ConfigError, match="'x:99999'"):
        ClientConfig(bootstrap_servers="a:1,x:99999")
    with pytest.warns(ConfigWarning), pytest.raises(ConfigError) as caught:
        ClientConfig.from_mapping({"sasl.jaas.config": 'username="me" password="hush"'})
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        ClientConfig.from_mapping({"sasl.password": "hush", "sasl_plain_password": "hush-hush"})
    assert "disagree" in str(caught.value) and "hush" not in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"ssl_truststore_location='/no/such.pem' cannot be used: No such file"):
        client_context(ClientConfig(security_protocol="SSL", ssl_truststore_location="/no/such.pem"))


def test_the_reason_why_a_name_means_nothing_is_kept() -> None:
    with pytest.raises(ConfigError, match="No module named 'nowhere'"):
        ProducerConfig(value_serializer="nowhere.Serializer")


@pytest.mark.parametrize("make", [Producer, AsyncProducer, Admin, AsyncAdmin])
def test_an_address_in_place_of_settings(make: Any) -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers='host:9092'"):
        make("host:9092")
    with pytest.raises(ConfigError, match=r"bootstrap_servers='\*\*\*@host:9092'") as caught:
        make("me:hush@host:9092")
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigError, match="settings are a mapping"):
        make(5)
