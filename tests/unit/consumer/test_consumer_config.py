"""Consumer configuration and deserializers."""

import pickle
import struct
import uuid
from typing import Any

import pytest

from fastq import AsyncConsumer, Consumer, serializers
from fastq.config import ConfigWarning
from fastq.consumer.config import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ConsumerConfig, duration_ms
from fastq.consumer.deserializers import BY_NAME, find_deserializer
from fastq.errors import ConfigError


def test_defaults_are_kafkas() -> None:
    config = ConsumerConfig()
    assert (config.auto_offset_reset, config.fetch_min_bytes, config.fetch_max_wait_ms) == ("latest", 1, 500)
    assert (config.fetch_max_bytes, config.max_partition_fetch_bytes) == (52428800, 1048576)
    assert (config.max_poll_records, config.isolation_level, config.check_crcs) == (500, "read_uncommitted", True)
    assert (config.default_api_timeout_ms, config.allow_auto_create_topics) == (60000, True)


def test_dotted_names_and_names_of_other_clients() -> None:
    config = ConsumerConfig.from_mapping({"fetch.min.bytes": "5", "fetch.wait.max.ms": 7, "fetch.message.max.bytes": 9})
    assert (config.fetch_min_bytes, config.fetch_max_wait_ms, config.max_partition_fetch_bytes) == (5, 7, 9)
    with pytest.warns(ConfigWarning, match="bounded by prefetch_bytes_max"):
        ConsumerConfig.from_mapping({"queued.min.messages": 5})


def test_the_keys_of_groups_fit_together() -> None:
    config = ConsumerConfig.from_mapping({"group.id": "g", "partition.assignment.strategy": "range,cooperative-sticky"})
    assert (config.group_id, config.partition_assignment_strategy) == ("g", ("range", "cooperative-sticky"))
    with pytest.raises(ConfigError, match="a static member needs a group_id"):
        ConsumerConfig.from_mapping({"group.instance.id": "one"})
    with pytest.raises(ConfigError, match="less than session_timeout_ms, which is 6000"):
        ConsumerConfig(group_id="g", session_timeout_ms=6000, heartbeat_interval_ms=6000)
    with pytest.raises(ConfigError, match="non-empty string"):
        ConsumerConfig(group_id="")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("auto_offset_reset", "middle", "'earliest', 'latest', 'none' or 'by_duration:'"),
        ("auto_offset_reset", "by_duration:1h", "ISO 8601"),
        ("on_deserialization_error", "ignore", "'raise', 'skip', 'raw'"),
        ("prefetch_bytes_max", 0, "from 1"),
        ("value_deserializer", 5, "one of bytes, str"),
        ("key_deserializer", "no.such.thing", "dotted name"),
        ("interceptors", object(), "on_consume"),
        ("isolation_level", "serializable", "'read_committed'"),
    ],
)
def test_bad_values_say_what_is_allowed(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError, match=allowed) as caught:
        ConsumerConfig.from_mapping({key: value})
    assert key in str(caught.value)


def test_reset_policies() -> None:
    def timestamp(policy: str) -> int | None:
        return ConsumerConfig(auto_offset_reset=policy).reset_timestamp(10_000_000)

    assert timestamp("earliest") == timestamp("smallest") == EARLIEST_TIMESTAMP
    assert timestamp("latest") == timestamp("LARGEST") == LATEST_TIMESTAMP
    assert timestamp("none") is None
    assert timestamp("by_duration:PT1H") == 6_400_000
    assert timestamp("by_duration:P99999D") == 0


def test_durations() -> None:
    assert duration_ms("P1DT2H30M0.5S") == ((26 * 60 + 30) * 60 * 1000) + 500
    for text in ("", "P", "PT", "1H", "P1M", "PT-1S"):
        with pytest.raises(ValueError, match="ISO 8601"):
            duration_ms(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes", b"x"),
        ("str", "é"),
        ("json", {"a": [1, None]}),
        ("int", -5),
        ("float", 2.5),
        ("uuid", uuid.UUID(int=7)),
    ],
)
def test_every_serializer_is_read_back_by_the_deserializer_of_its_name(name: str, value: Any) -> None:
    assert BY_NAME[name](bytes(serializers.BY_NAME[name](value))) == value


def test_same_names_on_both_sides() -> None:
    assert BY_NAME.keys() == serializers.BY_NAME.keys()


def test_numbers_of_all_widths() -> None:
    assert [BY_NAME["int"](struct.pack(code, -2)) for code in (">b", ">h", ">i", ">q")] == [-2] * 4
    assert BY_NAME["float"](struct.pack(">f", 0.5)) == 0.5
    for name in ("int", "float"):
        with pytest.raises(ValueError, match=r"3$"):
            BY_NAME[name](b"abc")


def test_find_deserializer() -> None:
    assert find_deserializer(None) is None
    assert find_deserializer(str) is find_deserializer("string") is BY_NAME["str"]
    assert find_deserializer("org.apache.kafka.common.serialization.LongDeserializer") is BY_NAME["int"]
    assert find_deserializer("json.loads")(b"[1]") == [1]
    assert find_deserializer(bytes.upper)(b"a") == b"A"


def test_a_consumer_takes_settings_as_a_mapping_or_a_config() -> None:
    """As the producer does: in Kafka's spelling or today's, before the topics, keyword arguments winning."""
    for cls in (Consumer, AsyncConsumer):
        for settings in (
            {"bootstrap.servers": "somewhere:1", "fetch.min.bytes": 5},
            ConsumerConfig(bootstrap_servers="somewhere:1", fetch_min_bytes=5),
        ):
            consumer = cls(settings, "logs", "more", fetch_max_wait_ms=7)
            assert consumer.subscription() == ["logs", "more"]
            config = consumer.config
            assert (config.fetch_min_bytes, config.fetch_max_wait_ms) == (5, 7)
            assert config.bootstrap_servers == ("somewhere:1",)
            assert cls(settings).subscription() == []
            again = pickle.loads(pickle.dumps(consumer))
            assert again.subscription() == ["logs", "more"] and again.config == config


def test_settings_in_the_wrong_place_say_where_they_go() -> None:
    for given, match in (
        (("logs", {"group.id": "g"}), "settings come first"),
        ((["logs", {"group.id": "g"}],), "settings come first"),
        (("localhost:9092",), "bootstrap_servers='localhost:9092'"),
        (("no such/topic",), "249 letters"),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            Consumer(*given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="settings come first"):
        Consumer().subscribe({"group.id": "g"})


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("error_cb", "logger 'fastq'"),
        ("stats_cb", r"metrics\(\)"),
        ("on_commit", "commit_async"),
        ("consumer_timeout_ms", "timeout"),
        ("topics", "topics are given by themselves: Consumer"),
        ("pattern", "Consumer.re.compile"),
        ("enable.auto.offset.store", "enable_auto_commit=False"),
    ],
)
def test_keys_of_other_clients_get_an_answer_that_helps(key: str, answer: str) -> None:
    with pytest.raises(ConfigError, match=answer) as caught:
        Consumer({key: print})
    assert key in str(caught.value)


def test_a_warning_about_a_key_points_at_the_program() -> None:
    with pytest.warns(ConfigWarning) as caught:
        Consumer({"queued.min.messages": 5}, "logs")
        ConsumerConfig.from_mapping({"queued.min.messages": 5})
    assert [warning.filename for warning in caught if warning.category is ConfigWarning] == [__file__] * 2
