"""Roles, the quorum, and listeners of a node among others: what Apache Kafka 4.3 takes and refuses, one case a rule."""

from __future__ import annotations

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.config_cluster import HostPort, is_among_others
from fastq_broker.config_keys import Status
from fastq_broker.config_listeners import Listener
from fastq_broker.config_table import BROKER_KEYS
from fastq_broker.config_table_cluster import CLUSTER

from fastq.errors import ConfigError

COMBINED = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.quorum.voters": "1@127.0.0.1:9093,2@b:9093,3@[::1]:9093",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
}
BROKER = {**COMBINED, "process.roles": "broker", "node.id": "7", "listeners": "PLAINTEXT://127.0.0.1:9092"}
CONTROLLER = {**COMBINED, "process.roles": "controller", "listeners": "CONTROLLER://127.0.0.1:9093"}
MAP = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,IN:PLAINTEXT"


def of(base: dict[str, str], **changes: str | None) -> BrokerConfig:
    settings = {**base, **{key.replace("_", "."): value for key, value in changes.items()}}
    return BrokerConfig.from_mapping({key: value for key, value in settings.items() if value is not None})


def names(listeners: object) -> list[str]:
    assert isinstance(listeners, tuple)
    return [listener.name for listener in listeners]


def test_a_node_with_both_roles() -> None:
    config = of(COMBINED)
    assert config.controller_quorum_voters == {
        1: HostPort("127.0.0.1", 9093),
        2: HostPort("b", 9093),
        3: HostPort("::1", 9093),
    }
    assert names(config.listeners) == names(config.advertised_listeners) == ["PLAINTEXT"]
    assert config.controller_listeners == (Listener("CONTROLLER", "127.0.0.1", 9093),)
    assert config.advertised_controller_listeners == config.controller_listeners
    assert config.inter_broker_listener_name == "PLAINTEXT"


def test_a_broker_alone_has_no_listener_for_controllers() -> None:
    config = of(BROKER)
    assert names(config.listeners) == ["PLAINTEXT"]
    assert config.controller_listeners == config.advertised_controller_listeners == ()
    assert config.controller_listener_names == ["CONTROLLER"]


def test_a_controller_alone_has_no_listener_for_clients() -> None:
    config = of(CONTROLLER)
    assert config.listeners == config.advertised_listeners == ()
    assert names(config.controller_listeners) == ["CONTROLLER"]
    assert config.inter_broker_listener_name == ""


def test_bootstrap_servers_instead_of_voters() -> None:
    config = of(BROKER, controller_quorum_voters=None, controller_quorum_bootstrap_servers="a:1, [::1]:2")
    assert config.controller_quorum_bootstrap_servers == (HostPort("a", 1), HostPort("::1", 2))
    assert config.controller_quorum_voters == {}


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        # roles and the quorum
        (COMBINED, {"process_roles": ""}, ["process.roles", "broker, controller"]),
        (COMBINED, {"process_roles": "broker,zoo"}, ["process.roles", "broker,zoo"]),
        (BROKER, {"controller_quorum_voters": None}, ["process.roles", "controller.quorum.bootstrap.servers"]),
        (CONTROLLER, {"controller_quorum_voters": None}, ["process.roles", "controller.quorum.bootstrap.servers"]),
        (COMBINED, {"node_id": "4"}, ["controller.quorum.voters", "1, 2, 3", "node 4", "add it"]),
        (CONTROLLER, {"node_id": "4"}, ["controller.quorum.voters", "node 4", "add it"]),
        (BROKER, {"node_id": "2"}, ["controller.quorum.voters", "node 2", "remove it"]),
        (COMBINED, {"controller_quorum_voters": "1@h"}, ["controller.quorum.voters", "'1@h'", "id@host:port"]),
        (COMBINED, {"controller_quorum_voters": "h:1"}, ["controller.quorum.voters", "id@host:port"]),
        (COMBINED, {"controller_quorum_voters": "1@h:0"}, ["controller.quorum.voters", "id@host:port"]),
        (COMBINED, {"controller_quorum_voters": "1@h:99999"}, ["controller.quorum.voters", "id@host:port"]),
        (COMBINED, {"controller_quorum_voters": "-1@h:1"}, ["controller.quorum.voters", "id@host:port"]),
        (COMBINED, {"controller_quorum_voters": "1@::1:1"}, ["controller.quorum.voters", "id@host:port"]),
        (COMBINED, {"controller_quorum_voters": "1@h:1,1@g:2"}, ["controller.quorum.voters", "node 1 twice"]),
        (
            COMBINED,
            {"controller_quorum_voter_addresses": "1@h:1"},
            ["voter.addresses does not go with controller.quorum.voters"],
        ),
        (
            COMBINED,
            {"controller_quorum_voters": None, "controller_quorum_voter_addresses": "1@h"},
            ["controller.quorum.voter.addresses = '1@h' is not allowed"],
        ),
        (BROKER, {"controller_quorum_bootstrap_servers": "h"}, ["controller.quorum.bootstrap.servers", "host:port"]),
        (BROKER, {"controller_quorum_bootstrap_servers": ":1"}, ["controller.quorum.bootstrap.servers", "host:port"]),
        # listeners of controllers
        (COMBINED, {"listeners": "PLAINTEXT://h:1"}, ["controller.listener.names", "listeners has no CONTROLLER"]),
        (COMBINED, {"controller_listener_names": "CONTROLLER,C2"}, ["controller.listener.names", "has no C2"]),
        (BROKER, {"listeners": COMBINED["listeners"]}, ["CONTROLLER://127.0.0.1:9093", "no controller"]),
        (CONTROLLER, {"listeners": COMBINED["listeners"]}, ["PLAINTEXT://127.0.0.1:9092", "controller only"]),
        (
            BROKER,
            {"listener_security_protocol_map": "PLAINTEXT:PLAINTEXT"},
            ["controller.listener.names", "CONTROLLER"],
        ),
        # names and protocols
        (
            COMBINED,
            {"listener_security_protocol_map": "PLAINTEXT:PLAINTEXT"},
            ["listeners", "has no protocol for CONTROLLER"],
        ),
        (COMBINED, {"listener_security_protocol_map": f"{MAP},in:SSL"}, ["listener.security.protocol.map", "IN twice"]),
        (COMBINED, {"listener_security_protocol_map": "PLAINTEXT:TLS"}, ["listener.security.protocol.map", "SASL_SSL"]),
        (BROKER, {"controller_listener_names": "SSL,C"}, ["controller.listener.names", "no protocol for C"]),
        # what is advertised
        (COMBINED, {"advertised_listeners": "CONTROLLER://h:1"}, ["advertised.listeners", "clients", "PLAINTEXT"]),
        (
            COMBINED,
            {"advertised_listeners": "PLAINTEXT://h:1,IN://h:2", "listener_security_protocol_map": MAP},
            ["advertised.listeners", "IN://h:2", "PLAINTEXT"],
        ),
        (
            COMBINED,
            {"advertised_listeners": "PLAINTEXT://h:1,CONTROLLER://0.0.0.0:2"},
            ["advertised.listeners", "0.0.0.0", "other nodes"],
        ),
        (COMBINED, {"advertised_listeners": "PLAINTEXT://0.0.0.0:1"}, ["advertised.listeners", "0.0.0.0", "clients"]),
        (COMBINED, {"advertised_listeners": "PLAINTEXT://h:1,PLAINTEXT://g:1"}, ["advertised.listeners", "twice"]),
        # between brokers
        (COMBINED, {"inter_broker_listener_name": "CONTROLLER"}, ["inter.broker.listener.name", "no controller's"]),
        (COMBINED, {"inter_broker_listener_name": "IN"}, ["inter.broker.listener.name", "'IN'", "protocol.map"]),
        (
            COMBINED,
            {"listeners": "IN://h:1,CONTROLLER://h:2", "listener_security_protocol_map": MAP},
            ["inter.broker.listener.name", "'PLAINTEXT' (the default)", "IN"],
        ),
        (
            COMBINED,
            {"inter_broker_listener_name": "PLAINTEXT", "security_inter_broker_protocol": "PLAINTEXT"},
            ["inter.broker.listener.name", "security.inter.broker.protocol", "remove"],
        ),
        (CONTROLLER, {"inter_broker_listener_name": "CONTROLLER"}, ["inter.broker.listener.name", "controller only"]),
        (CONTROLLER, {"inter_broker_listener_name": "IN"}, ["inter.broker.listener.name", "'IN'", "protocol.map"]),
        (COMBINED, {"early_start_listeners": "IN"}, ["early.start.listeners", "'IN'", "CONTROLLER, PLAINTEXT"]),
        (BROKER, {"early_start_listeners": "CONTROLLER"}, ["early.start.listeners", "'CONTROLLER'", "PLAINTEXT"]),
        # times and classes
        (
            COMBINED,
            {"broker_heartbeat_interval_ms": "4501"},
            ["broker.heartbeat.interval.ms", "4501", "half of", "9000"],
        ),
        (
            COMBINED,
            {"replica_socket_timeout_ms": "499"},
            ["replica.fetch.wait.max.ms", "replica.socket.timeout.ms, 499"],
        ),
        (COMBINED, {"replica_lag_time_max_ms": "499"}, ["replica.fetch.wait.max.ms", "replica.lag.time.max.ms, 499"]),
        (COMBINED, {"replica_selector_class": "a.B"}, ["replica.selector.class", "a.B", "RackAwareReplicaSelector"]),
        (COMBINED, {"num_replica_fetchers": "0"}, ["num.replica.fetchers", "1 or more"]),
        (
            COMBINED,
            {"controller_quorum_election_timeout_ms": "-1"},
            ["controller.quorum.election.timeout.ms", "0 or more"],
        ),
        # settings of one listener
        (COMBINED, {"listener_name_plaintext_max_connektions": "1"}, ["listener.name.plaintext", "max.connections"]),
        (COMBINED, {"listener_name_plaintext_num_network_threads": "x"}, ["listener.name.plaintext.num", "'x'"]),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_what_would(
    base: dict[str, str], changes: dict[str, str | None], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        of(base, **changes)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (COMBINED, {"listeners": "plaintext://h:1,controller://h:2"}),
        (COMBINED, {"inter_broker_listener_name": "plaintext"}),
        (COMBINED, {"listener_security_protocol_map": "plaintext:PLAINTEXT,controller:plaintext,TLS:SSL"}),
        (COMBINED, {"security_inter_broker_protocol": "PLAINTEXT"}),
        (COMBINED, {"broker_heartbeat_interval_ms": "4500"}),
        (COMBINED, {"early_start_listeners": "PLAINTEXT,CONTROLLER"}),
        (BROKER, {"advertised_listeners": "PLAINTEXT://h:1,CONTROLLER://h:2"}),
        (BROKER, {"controller_listener_names": "CONTROLLER,C2"}),
        (CONTROLLER, {"advertised_listeners": "PLAINTEXT://h:1"}),
        (CONTROLLER, {"listeners": "CONTROLLER://0.0.0.0:9093"}),
        (CONTROLLER, {"inter_broker_listener_name": "PLAINTEXT"}),
    ],
    ids=str,
)
def test_what_kafka_takes_is_taken(base: dict[str, str], changes: dict[str, str | None]) -> None:
    of(base, **changes)


def test_a_controllers_listener_is_advertised_under_its_own_address() -> None:
    config = of(COMBINED, advertised_listeners="PLAINTEXT://p:1,CONTROLLER://c:2")
    assert [str(item) for item in config.advertised_listeners] == ["PLAINTEXT://p:1"]
    assert [str(item) for item in config.advertised_controller_listeners] == ["CONTROLLER://c:2"]


def test_controllers_are_advertised_in_the_order_of_their_names() -> None:
    config = of(
        COMBINED,
        listeners="A://h:1,PLAINTEXT://h:2,B://h:3",
        controller_listener_names="B,A",
        listener_security_protocol_map=None,
    )
    assert names(config.advertised_controller_listeners) == ["B", "A"]


def test_settings_of_a_listener_are_the_listeners_own() -> None:
    config = BrokerConfig.from_mapping(
        {
            "listeners": "PLAINTEXT://h:1,IN://h:2",
            "listener.security.protocol.map": MAP,
            "listener.name.in.num.network.threads": "5",
            "listener.name.in.scram-sha-256.sasl.jaas.config": "secret-word",
        },
        insecure_ignore=["listener.name.in.scram-sha-256.sasl.jaas.config"],
    )
    plain, inside = config.listeners
    assert plain.settings == {}
    assert inside.settings == {"num.network.threads": 5, "scram-sha-256.sasl.jaas.config": "secret-word"}
    assert "secret-word" not in repr(config)
    (warning,) = config.warnings
    assert warning.startswith("listener.name.in.num.network.threads is ignored")


def test_settings_of_a_listener_that_is_not_there_are_said() -> None:
    (warning,) = BrokerConfig.from_mapping({"listener.name.out.num.network.threads": "5"}).warnings
    assert "no listener OUT" in warning


def test_a_key_of_a_cluster_that_has_no_effect_says_why() -> None:
    without_default = {
        "controller.quorum.voters": "1@h:1",
        "controller.quorum.bootstrap.servers": "h:1",
        "early.start.listeners": "PLAINTEXT",
        "num.replica.alter.log.dirs.threads": "2",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    for key in CLUSTER:
        assert BROKER_KEYS[key.name] is key and key.doc
        assert key.status is (Status.IGNORED if key.note else Status.DONE)
        text = without_default.get(key.name) or key.render(key.default)
        warnings = BrokerConfig.from_mapping({key.name: text}).warnings
        assert list(warnings) == ([f"{key.name} is ignored: {key.note}"] if key.note else [])


@pytest.mark.parametrize(
    "settings",
    [
        BROKER,
        CONTROLLER,
        COMBINED,
        {**COMBINED, "controller.quorum.voters": "", "controller.quorum.bootstrap.servers": "a:1,b:1"},
        {**COMBINED, "controller.quorum.voters": "", "controller.quorum.bootstrap.servers": "a:9094"},
    ],
)
def test_a_node_among_others_is_not_run_as_one_that_is_alone(settings: dict[str, str]) -> None:
    assert is_among_others(of(settings))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"controller.quorum.voters": "1@localhost:9093"},
        {"controller.quorum.bootstrap.servers": "localhost:9093"},
        {
            "controller.quorum.bootstrap.servers": "c.example:99",
            "listeners": "PLAINTEXT://:1,CONTROLLER://:9093",
            "advertised.listeners": "PLAINTEXT://h:1,CONTROLLER://c.example:99",
        },
        {**COMBINED, "controller.quorum.voters": "1@localhost:9093"},
        {  # Apache Kafka's own config/server.properties
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": "localhost:9093",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "inter.broker.listener.name": "PLAINTEXT",
            "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
            "num.network.threads": "3",
            "share.coordinator.state.topic.replication.factor": "1",
        },
    ],
)
def test_a_node_that_is_alone_is_run(settings: dict[str, str]) -> None:
    assert not is_among_others(of(settings))
