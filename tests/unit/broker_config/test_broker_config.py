"""Reading, mapping and checking the broker's configuration."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import fastq_broker.config
import pytest
from fastq_broker.broker import _limits
from fastq_broker.config import (
    ATTRIBUTES,
    BrokerConfig,
    Listener,
)
from fastq_broker.config_keys import INT64_MAX, ConfigSource, ConfigType, Status
from fastq_broker.config_listeners import limits_by_address, parse_listener
from fastq_broker.config_table import BROKER_KEYS, DONE, REMOVED, TARGETS
from fastq_broker.config_table_cluster import CLUSTER

from fastq.errors import ConfigError
from fastq.properties import parse_properties


def load(**settings: object) -> BrokerConfig:
    return BrokerConfig.from_mapping(settings)


def of(*pairs: tuple[str, object]) -> BrokerConfig:
    return BrokerConfig.from_mapping(dict(pairs))


def test_every_key_that_does_something_is_an_attribute_and_no_other() -> None:
    assert {key.attribute for key in (*DONE, *CLUSTER)} == ATTRIBUTES


def test_every_key_that_does_something_is_read_by_the_broker() -> None:
    tables = ("config.py", "config_table.py", "config_table_cluster.py", "config_table_ignored.py", "container.py")
    rooms = Path(fastq_broker.config.__file__).parent
    source = "".join(path.read_text() for path in rooms.rglob("*.py") if path.name not in tables)
    unread = {key.name for key in DONE if not re.search(rf'\.{key.attribute}\b|"{re.escape(key.name)}"', source)}
    assert unread == {"listener.security.protocol.map"}, "config.py checks"


def test_upkeep_that_is_done_another_way_is_said() -> None:
    name = "log.flush.start.offset.checkpoint.interval.ms"
    (warning,) = of((name, "7000")).warnings
    assert warning.startswith(f"{name} is ignored: ")


def test_what_is_told_of_sockets_is_what_is_done() -> None:
    limits = _limits(of())
    assert (limits.send_buffer_bytes, limits.receive_buffer_bytes, limits.backlog) == (262144, -1, 1024)
    assert of().get("socket.send.buffer.bytes") == 262144
    assert of().get("socket.receive.buffer.bytes") == -1
    assert of().get("socket.listen.backlog.size") == 1024
    limits = _limits(
        of(("socket.send.buffer", 5000), ("socket.receive.buffer.bytes", 6000), ("queued.max.request.bytes", -1))
    )
    assert (limits.send_buffer_bytes, limits.receive_buffer_bytes, limits.queued_bytes_max) == (5000, 6000, -1)


def test_every_default_passes_its_own_check() -> None:
    for key in BROKER_KEYS.values():
        if key.default is not None:
            assert key.parse(key.render(key.default)) == key.default, key.name


def test_every_key_that_does_nothing_says_why() -> None:
    for key in BROKER_KEYS.values():
        assert (key.status is Status.DONE) == (not key.note), key.name
        assert key.documentation, key.name


def test_mapped_keys_lead_to_keys_that_do_something() -> None:
    done = {key.name for key in DONE}
    assert {target for target, _ in TARGETS.values()} <= done


def test_defaults_are_kafkas() -> None:
    config = of()
    assert config.log_retention_ms == 7 * 24 * 3600 * 1000
    assert config.log_roll_ms == 7 * 24 * 3600 * 1000
    assert config.log_roll_jitter_ms == 0
    assert config.log_flush_interval_ms == INT64_MAX
    assert config.message_max_bytes == 1048588
    assert config.socket_request_max_bytes == 104857600
    assert config.connections_max_idle_ms == 600000
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"log.retention.hours": "2"}, 7200000),
        ({"log.retention.minutes": 3}, 180000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180000),
        ({"log.retention.hours": "2", "log.retention.ms": "5"}, 5),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_retention_takes_the_finest_unit_that_is_set(settings: dict[str, object], expected: int) -> None:
    assert BrokerConfig.from_mapping(settings).log_retention_ms == expected


def test_older_names_reach_their_keys() -> None:
    config = of(("broker.id", "7"), ("log.dir", "/a"), ("log.file.size", "2097152"), ("log.flush.interval", "10"))
    assert (config.node_id, config.log_dirs, config.log_segment_bytes) == (7, ["/a"], 2097152)
    assert config.log_flush_interval_messages == 10
    assert of(("broker.id", "-1")).node_id == 1
    assert of(("broker.id", "7"), ("node.id", "8")).node_id == 8


def test_listeners_of_kafka_0_8() -> None:
    config = of(("host.name", "127.0.0.1"), ("port", "9999"), ("advertised.host.name", "kafka.example"))
    assert config.listeners == (Listener("PLAINTEXT", "127.0.0.1", 9999),)
    assert config.advertised_listeners == (Listener("PLAINTEXT", "kafka.example", 9999),)


def test_listeners_names_addresses_and_controllers() -> None:
    config = of(
        ("listeners", "PLAINTEXT://[::1]:0,inside://10.0.0.1:9093,CONTROLLER://:9094"),
        ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"),
        ("inter.broker.listener.name", "INSIDE"),
        ("advertised.listeners", "PLAINTEXT://host:1,INSIDE://host:2"),
    )
    assert config.listeners == (Listener("PLAINTEXT", "::1", 0), Listener("INSIDE", "10.0.0.1", 9093))
    assert config.controller_listeners == (Listener("CONTROLLER", "", 9094),)
    assert [str(item) for item in config.advertised_listeners] == ["PLAINTEXT://host:1", "INSIDE://host:2"]
    assert str(config.listeners[0]) == "PLAINTEXT://[::1]:0"


def test_all_interfaces_are_advertised_by_the_name_of_the_machine() -> None:
    import socket

    assert of(("listeners", "PLAINTEXT://0.0.0.0:9092")).advertised_listeners[0].host == socket.gethostname()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num.partitions": "0"}, ["num.partitions", "'0'", "1 or more"]),
        ({"num.partitions": "many"}, ["num.partitions", "'many'", "1 or more"]),
        ({"num.partitions": "99999999999999999999999"}, ["num.partitions", "32 bits, 1 or more"]),
        ({"auto.create.topics.enable": "yes"}, ["auto.create.topics.enable", "'yes'", "true or false"]),
        ({"compression.type": "lzma"}, ["compression.type", "lzma", "zstd"]),
        ({"log.cleanup.policy": "shred"}, ["log.cleanup.policy", "shred", "compact"]),
        ({"durability": "maybe"}, ["durability", "maybe", "page-cache", "fsync"]),
        ({"listeners": "127.0.0.1"}, ["listeners", "NAME://host:port"]),
        ({"listeners": "PLAINTEXT://::1:9092"}, ["brackets"]),
        ({"listeners": "PLAINTEXT://:70000"}, ["listeners", "70000"]),
        ({"listeners": "PLAINTEXT://:\u00b2"}, ["listeners", "NAME://host:port"]),
        ({"listeners": "PLAINTEXT://:" + "9" * 5000}, ["listeners", "NAME://host:port"]),
        ({"listeners": "SSL://:9092"}, ["listeners", "this version serves PLAINTEXT; nothing is served in the clear"]),
        ({"listeners": "OTHER://:9092"}, ["OTHER", "listener.security.protocol.map"]),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, ["PLAINTEXT", "twice"]),
        ({"listeners": "CONTROLLER://:1"}, ["listeners", "clients"]),
        ({"listeners": ""}, ["listeners", "at least one"]),
        ({"log.dirs": ""}, ["log.dirs", "at least one"]),
        ({"log.dirs": "/a,/b,/a/"}, ["log.dirs", "twice", "/a and /a/"]),
        ({"log.dirs": "/a,/b", "cordoned.log.dirs": "/b,/c"}, ["cordoned.log.dirs", "/c is none of log.dirs, /a, /b"]),
        ({"log.dirs": "/a,/b", "cordoned.log.dirs": "*,/a"}, ["cordoned.log.dirs", "stands alone"]),
        ({"controller.listener.names": ","}, ["controller.listener.names", "at least one"]),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, ["advertised.listeners", "0.0.0.0"]),
        (
            {"inter.broker.listener.name": "X"},
            ["inter.broker.listener.name", "'X', which", "does not have, is not", "PLAINTEXT"],
        ),
        ({"process.roles": "broker"}, ["process.roles", "'broker'", "controller.quorum.bootstrap.servers"]),
        ({"group.consumer.session.timeout.ms": "1000"}, ["group.consumer.min.session.timeout.ms", "45000 to 60000"]),
        (
            {"group.consumer.heartbeat.interval.ms": "60000", "group.consumer.max.heartbeat.interval.ms": "60000"},
            ["group.consumer.session.timeout.ms", "60000"],
        ),
        ({"group.consumer.assignors": "uniform,mine"}, ["group.consumer.assignors", "uniform, range"]),
        ({"max.connections.per.ip.overrides": "10.0.0.1"}, ["max.connections.per.ip.overrides", "address:count"]),
        ({"max.connections.per.ip.overrides": "not a host:1"}, ["'not a host' is no address", "address:count"]),
        ({"max.connections.per.ip.overrides": ":1"}, ["'' is no address", "address:count"]),
        ({"listener.security.protocol.map": "A"}, ["listener.security.protocol.map", "NAME:PROTOCOL"]),
        ({"log.cleaner.min.cleanable.ratio": "2"}, ["log.cleaner.min.cleanable.ratio", "0 to 1"]),
    ],
)
def test_a_bad_value_names_key_value_and_what_is_allowed(settings: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_mapping(settings)
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_key_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"log\.retention\.hour; did you mean log\.retention\.hours\?"):
        of(("log.retention.hour", "1"))
    with pytest.raises(
        ConfigError, match=r"unknown broker setting zzzz; docs/reference/broker-settings\.md shows the known ones$"
    ):
        of(("zzzz", "1"))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("zookeeper.connect", "localhost:2181", "there is no ZooKeeper"),
        ("replica.lag.max.messages", "4000", "replica.lag.time.max.ms"),
        ("remote.log.manager.thread.pool.size", "4", "tiered storage"),
        ("num.io.threads", "8", "event loop"),
        ("listener.name.inside.num.io.threads", "8", "no listener INSIDE"),
        ("listener.name.plaintext.num.io.threads", "8", "one listener"),
        ("controlled.shutdown.enable", "false", "hands over"),
        ("log.retention.hours.per.topic", "a:1", "topic"),
    ],
)
def test_a_key_that_does_nothing_is_one_warning_that_says_why(name: str, value: str, why: str) -> None:
    (warning,) = of((name, value)).warnings
    assert warning.startswith(f"{name} is ignored: ")
    assert why in warning


def test_a_secret_is_not_shown_in_an_error() -> None:
    key = BROKER_KEYS["delegation.token.secret.key"]
    with pytest.raises(ConfigError) as caught:
        key.parse(["hunter2"])
    assert "hunter2" not in str(caught.value)
    assert key.sensitive
    assert all(key.type is ConfigType.PASSWORD for key in REMOVED if "password" in key.name)


def test_properties_follow_java() -> None:
    text = "# comment\n! another\n a = b \nc:d\ne f\n\\ g\\:h=i\\u0041\\t\\\n   j\nempty\nk\\=l=m=n\n"
    assert parse_properties(text) == {
        "a": "b ",
        "c": "d",
        "e": "f",
        " g:h": "iA\tj",
        "empty": "",
        "k=l": "m=n",
    }
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        parse_properties("a=\\u00")
    assert parse_properties("a=1\f2\x85\u2028\r\f b=2\r\n\rc=3") == {"a": "1\f2\x85\u2028", "b": "2", "c": "3"}


def test_a_key_that_is_there_twice_is_told_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.retention.hours=1\n\n# more\nnode.id=\\\n  1\nlog.retention.hours : 2\nnode.id 3\n")
    config = BrokerConfig.read(path)
    assert (config.node_id, config.log_retention_ms) == (3, 2 * 3600_000)
    assert config.warnings == (
        f"{path}: log.retention.hours is in line 1 and again in line 6: the last one holds",
        f"{path}: node.id is in line 4 and again in line 7: the last one holds",
    )


def test_a_file_with_a_mark_or_in_latin_1_is_read_and_what_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    for text in (b"\xef\xbb\xbfnode.id=7\r\nlog.dirs=/caf\xc3\xa9\r\n", b"node.id=7\nlog.dirs=/caf\xe9\n"):
        path.write_bytes(text)
        assert BrokerConfig.load(str(path), {}).log_dirs == ["/caf\u00e9"]
    path.write_bytes(b"\xff\xfen\0")
    with pytest.raises(ConfigError, match=r"server\.properties: it is UTF-16"):
        BrokerConfig.load(str(path), {})
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*: Is a directory$"):
        BrokerConfig.load(str(tmp_path), {})


def test_a_toml_file_nests_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("a = ")
    with pytest.raises(ConfigError, match="not a TOML document"):
        BrokerConfig.load(path)
    path.write_text('node.id = 3\nnum_partitions = 4\n"max.connections" = 9\n[log]\ndirs = ["/a", "/b"]\n')
    config = BrokerConfig.load(path, {"log.retention.hours": "1"})
    assert (config.node_id, config.num_partitions, config.max_connections) == (3, 4, 9)
    assert (config.log_dirs, config.log_retention_ms) == (["/a", "/b"], 3600000)


def test_overrides_stand_above_a_properties_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "server.properties"
    path.write_text("node.id=3\nlog.dirs=/a\nzookeeper.connect=x\n")
    with caplog.at_level(logging.WARNING):
        config = BrokerConfig.load(path, {"node.id": "4"})
    assert (config.node_id, config.log_dirs) == (4, ["/a"])
    assert caplog.messages == [config.warnings[0]]
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        BrokerConfig.load(tmp_path / "missing.properties")


def test_any_key_can_be_read_with_its_source() -> None:
    config = of(("num.io.threads", "4"), ("log.retention.hours", "1"))
    assert config.get("num.io.threads") == 4
    assert config.get("log.retention.ms") == 3600000
    assert config.source("num.io.threads") is ConfigSource.STATIC_BROKER_CONFIG
    assert config.source("log.retention.ms") is ConfigSource.DEFAULT_CONFIG


def test_a_listener_without_a_name_is_plaintext() -> None:
    assert parse_listener("localhost:9092") == Listener("PLAINTEXT", "localhost", 9092)


def test_limits_per_address() -> None:
    config = of(("max.connections.per.ip.overrides", "10.0.0.1:5, [::1]:6"))
    assert config.max_connections_per_ip_overrides == {"10.0.0.1": 5, "::1": 6}
    config = of(("max.connections.per.ip.overrides", "[0:0:0:0:0:0:0:1]:6,::FFFF:10.0.0.1:5,FE80::A:2,localhost:7"))
    limits = dict(config.max_connections_per_ip_overrides)
    assert limits.pop("127.0.0.1") == 7 and limits.pop("::1", 6) in (6, 7)  # where that name has both
    assert limits == {"10.0.0.1": 5, "fe80::a": 2}


def test_limits_of_an_address_with_a_scope_are_those_of_the_address() -> None:
    """A peer has its address without one, whatever interface it came over, and Kafka compares addresses alone."""
    config = of(("max.connections.per.ip.overrides", "[fe80::1%eth0]:3,FE80::2%7:4"))
    assert config.max_connections_per_ip_overrides == {"fe80::1": 3, "fe80::2": 4}


def test_limits_that_are_not_looked_up_leave_out_names_alone() -> None:
    """What the next start refuses is refused by SIGHUP too: an address that is none passed for a name."""
    assert limits_by_address("clients.example:7,10.0.0.1:5", looks_up=False) == {"10.0.0.1": 5}
    for wrong in (":7", "10.0.0.300:7", "[fe80::zz]:7", "clients..example:7"):
        with pytest.raises(ConfigError, match="is no address"):
            limits_by_address(wrong, looks_up=False)


def test_a_document_nested_without_end_is_a_mistake_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text("a = " + "[" * 20_000)
    with pytest.raises(ConfigError, match="is not a TOML document"):
        BrokerConfig.read(path)
