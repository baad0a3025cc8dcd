"""The options of the format: the table, its parsers, and what is refused with which words."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fastq.errors import ConfigError
from fastq.metadata import TopicPartition
from fastq.spark.offsets import OffsetLimit
from fastq.spark.options import OPTIONS, Scope, SinkOptions, SourceOptions

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "logs"}

# The guide of Spark's JVM connector: every option of its source and sink, and what it is when left out.
OF_THE_JVM_CONNECTOR = {
    "assign": None,
    "subscribe": None,
    "subscribePattern": None,
    "startingTimestamp": None,
    "startingOffsetsByTimestamp": None,
    "startingOffsets": None,
    "endingTimestamp": None,
    "endingOffsetsByTimestamp": None,
    "endingOffsets": None,
    "failOnDataLoss": True,
    "kafkaConsumer.pollTimeoutMs": 120_000,
    "fetchOffset.numRetries": 3,
    "fetchOffset.retryIntervalMs": 10,
    "maxOffsetsPerTrigger": None,
    "minOffsetsPerTrigger": None,
    "maxTriggerDelay": 15 * 60 * 1000,
    "minPartitions": None,
    "maxRecordsPerPartition": None,
    "groupIdPrefix": "spark-kafka-source",
    "includeHeaders": False,
    "startingOffsetsByTimestampStrategy": "error",
    "topic": None,
}


def source(streaming: bool | None = False, **options: object) -> SourceOptions:
    given = {**BASE, **{name.replace("__", "."): str(value) for name, value in options.items()}}
    return SourceOptions.parse(given, streaming=streaming)


def refusal(streaming: bool | None = False, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        source(streaming, **options)
    return str(caught.value)


def test_the_table_has_every_option_of_the_jvm_connector_with_its_default() -> None:
    table = {option.name: option.default for option in OPTIONS}
    assert OF_THE_JVM_CONNECTOR.items() <= table.items()
    assert table.keys() - OF_THE_JVM_CONNECTOR.keys() == {"delivery", "token"}  # our own
    assert all(option.meaning for option in OPTIONS)


def test_defaults_of_a_batch_and_of_a_stream() -> None:
    batch, stream = source(False), source(True)
    assert (batch.starting, batch.ending) == (OffsetLimit.earliest(), OffsetLimit.latest())
    assert stream.starting == OffsetLimit.latest()
    assert batch.fail_on_data_loss
    assert batch.poll_timeout_ms == 120_000
    assert (batch.offset_attempts, batch.offset_retry_interval_ms) == (3, 10)
    assert stream.max_trigger_delay_ms == 900_000
    assert not batch.include_headers
    assert not batch.read_committed


def test_names_are_compared_without_case() -> None:
    parsed = SourceOptions.parse(
        {"KAFKA.BOOTSTRAP.SERVERS": "h:1", "SUBSCRIBEpattern": "a.*", "FAILONDATALOSS": "False"}, streaming=True
    )
    assert parsed.selection.pattern is not None
    assert not parsed.fail_on_data_loss


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"subscribe": " a , b,a,"}, {"topics": ("a", "b")}),
        ({"assign": '{"b":[1,0],"a":[2]}'}, {"partitions": (("a", 2), ("b", 0), ("b", 1))}),
    ],
)
def test_what_is_read(given: dict[str, str], want: dict[str, Any]) -> None:
    selection = SourceOptions.parse({"kafka.bootstrap.servers": "h:1", **given}).selection
    for name, value in want.items():
        assert getattr(selection, name) == value


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["exactly one of", "assign, subscribe, subscribePattern", "none"]),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, ["exactly one", "assign and subscribe"]),
        ({"subscribe": " , "}, ["subscribe", "' , '"]),
        ({"subscribePattern": "a("}, ["subscribePattern", "regular expression"]),
        ({"assign": "a-0"}, ["assign", '{"topicA": [0, 1]', "Expecting value"]),
        ({"assign": '{"a":[-1]}'}, ["assign", "-1 of topic 'a'"]),
        ({"assign": '{"a":["x"]}'}, ["assign", "'x' of topic 'a'"]),
        ({"assign": '{"a":[true]}'}, ["assign", "True of topic 'a'"]),
        ({"assign": '{"a":[]}'}, ["assign", "no list"]),
    ],
)
def test_what_is_read_is_one_clear_thing(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse({"kafka.bootstrap.servers": "h:1", **given})
    assert all(word in str(caught.value) for word in words), caught.value


def test_bootstrap_servers_are_required() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is required"):
        SourceOptions.parse({"subscribe": "a"})
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is required"):
        SinkOptions.parse({"topic": "a"})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("startingOffset", "did you mean startingOffsets?"),
        ("failOnDataLos", "did you mean failOnDataLoss?"),
        ("bootstrap.servers", "did you mean kafka.bootstrap.servers?"),
        ("maxOffsetPerTrigger", "did you mean maxOffsetsPerTrigger?"),
        ("zzz", "there are assign, subscribe"),
    ],
)
def test_an_unknown_option_names_the_nearest(name: str, near: str) -> None:
    assert near in refusal(True, **{name: "1"})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("failOnDataLoss", "maybe", "true or false"),
        ("minPartitions", "0", "1 or more"),
        ("minPartitions", "two", "1 or more"),
        ("maxRecordsPerPartition", "-5", "1 or more"),
        ("kafkaConsumer.pollTimeoutMs", "1s", "1 or more"),
        ("startingOffsets", "newest", "earliest, latest or JSON"),
        ("startingOffsets", '{"logs":{"0":"x"}}', "'x' of logs-0 is no offset"),
        ("startingOffsets", '{"logs":{"zero":1}}', "'zero' of topic 'logs' is no partition"),
        ("startingOffsets", '{"logs":5}', "no offsets by partition"),
        ("startingOffsets", '{"logs":{"0":-3}}', "-1 for latest, -2 for earliest"),
        ("startingTimestamp", "yesterday", "milliseconds since 1970"),
        ("startingTimestamp", str(2**63), "milliseconds since 1970"),
        ("startingOffsetsByTimestamp", '{"t": {"0": 9223372036854775808}}', "milliseconds since 1970"),
        ("startingOffsetsByTimestamp", '{"logs":{"0":-1}}', "milliseconds since 1970"),
        ("startingOffsetsByTimestampStrategy", "guess", "error or latest"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(name: str, value: str, allowed: str) -> None:
    message = refusal(None, **{name: value})
    assert name in message
    assert repr(value) in message
    assert allowed in message


@pytest.mark.parametrize(
    ("text", "want_ms"),
    [("15m", 900_000), ("10", 10), ("250ms", 250), ("2 s", 2000), ("1h", 3_600_000), ("1d", 86_400_000), ("0s", 0)],
)
def test_durations_as_spark_writes_them(text: str, want_ms: int) -> None:
    assert source(True, maxTriggerDelay=text).max_trigger_delay_ms == want_ms


def test_the_first_of_timestamp_timestamps_and_offsets_wins() -> None:
    by_partition = '{"logs":{"0":5}}'
    tp = TopicPartition("logs", 0)
    all_three = {"startingTimestamp": 7, "startingOffsetsByTimestamp": by_partition, "startingOffsets": "earliest"}
    assert source(**all_three).starting == OffsetLimit.at_time(7)
    del all_three["startingTimestamp"]
    assert source(**all_three).starting == OffsetLimit.at_times({tp: 5})
    del all_three["startingOffsetsByTimestamp"]
    assert source(**all_three).starting == OffsetLimit.earliest()
    ends = {"endingTimestamp": 9, "endingOffsetsByTimestamp": by_partition, "endingOffsets": by_partition}
    assert source(**ends).ending == OffsetLimit.at_time(9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, ["startingOffsets cannot be latest", "batch"]),
        ({"startingOffsets": '{"logs":{"0":0,"1":-1}}'}, ["startingOffsets cannot be latest for logs-1"]),
        ({"endingOffsets": "earliest"}, ["endingOffsets cannot be earliest"]),
        ({"endingOffsets": '{"logs":{"0":-2}}'}, ["endingOffsets cannot be earliest for logs-0"]),
        (
            {"startingOffsets": '{"logs":{"0":9}}', "endingOffsets": '{"logs":{"0":8}}'},
            ["starting offset 9 of logs-0 is above its ending offset 8"],
        ),
        (
            {"startingOffsets": '{"logs":{"0":1}}', "endingOffsets": '{"logs":{"0":8,"1":8}}'},
            ["same partitions", "logs-1"],
        ),
    ],
)
def test_limits_of_a_batch(options: dict[str, str], words: list[str]) -> None:
    message = refusal(False, **options)
    assert all(word in message for word in words), message


def test_a_stream_has_no_end() -> None:
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        assert f"{name} is for batch queries only" in refusal(True, **{name: "latest"})


def test_options_of_a_stream_are_without_effect_in_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    assert source(False, maxOffsetsPerTrigger=5).max_offsets_per_trigger is None
    assert "maxOffsetsPerTrigger has no effect in a batch query" in caplog.text


def test_the_two_limits_of_a_trigger_agree() -> None:
    assert "above maxOffsetsPerTrigger=5" in refusal(True, minOffsetsPerTrigger=6, maxOffsetsPerTrigger=5)
    parsed = source(True, minOffsetsPerTrigger=5, maxOffsetsPerTrigger=5)
    assert (parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger) == (5, 5)


@pytest.mark.parametrize(
    "name", ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"]
)
def test_what_spark_relies_on_is_protected(name: str) -> None:
    message = refusal(None, **{f"kafka.{name}": "x"})
    assert f"kafka.{name} is not supported" in message


@pytest.mark.parametrize("name", ["key.serializer", "value.serializer"])
def test_what_the_sink_relies_on_is_protected(name: str) -> None:
    with pytest.raises(ConfigError, match="not supported"):
        SinkOptions.parse({"kafka.bootstrap.servers": "h:1", f"kafka.{name}": "x"})


def test_client_options_reach_the_client() -> None:
    parsed = source(
        None,
        **{
            "kafka.fetch.max.bytes": 1234567,
            "kafka.isolation.level": "read_committed",
            "kafka.max.partition.fetch.bytes": 77,
            "kafka.group.id": "mine",
            "kafka.request.timeout.ms": 4321,
        },
    )
    consumer = parsed.consumer_config()
    assert consumer.bootstrap_servers == ("localhost:9092",)
    assert (consumer.fetch_max_bytes, consumer.max_partition_fetch_bytes) == (1234567, 77)
    assert consumer.read_committed
    assert parsed.read_committed
    assert consumer.auto_offset_reset == "none"
    assert consumer.group_id is None, "the source is in no group"
    assert parsed.group_id == "mine"
    assert parsed.admin_config().request_timeout_ms == 4321


def test_a_client_option_that_is_none() -> None:
    message = refusal(None, **{"kafka.fetch.max.byte": 5})
    assert "fetch.max.byte" in message
    assert "fetch_max_bytes" in message


def test_options_of_the_other_side_are_refused() -> None:
    assert "topic is for the sink only" in refusal(None, topic="x")
    with pytest.raises(ConfigError, match="subscribe is for the source only"):
        SinkOptions.parse(BASE)


def test_the_sink() -> None:
    servers = {"kafka.bootstrap.servers": "h:1"}
    plain = SinkOptions.parse(servers)
    assert (plain.topic, plain.include_headers, plain.exactly_once, plain.token) == (None, False, False, None)
    given = {"topic": " t ", "delivery": "Exactly-Once", "token": "load-7", "includeHeaders": "TRUE", "kafka.acks": "1"}
    full = SinkOptions.parse({**servers, **given})
    assert (full.topic, full.include_headers, full.exactly_once, full.token) == ("t", True, True, "load-7")
    assert full.client == {"bootstrap.servers": "h:1", "acks": "1"}
    with pytest.raises(ConfigError, match="token is for batch writes only"):
        SinkOptions.parse({**servers, "token": "x"}, streaming=True)


def test_what_spark_itself_adds_to_a_sink_is_let_through() -> None:
    parsed = SinkOptions.parse(
        {"kafka.bootstrap.servers": "h:1", "checkpointLocation": "/c", "queryName": "q"}, streaming=True
    )
    assert parsed.topic is None
    assert "no option 'checkpointlocation'" in refusal(True, checkpointLocation="/c")


def test_scopes_are_named_once() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(names) == len(set(names))
    assert all(option.scope & Scope.ALL for option in OPTIONS)


def test_options_pickle_and_keep_secrets() -> None:
    parsed = source(None, **{"kafka.sasl.password": "hush"})
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    assert "hush" not in repr(parsed)
    sink = SinkOptions.parse({"kafka.bootstrap.servers": "h:1", "kafka.sasl.password": "hush"})
    assert "hush" not in repr(sink)
