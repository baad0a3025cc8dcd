"""Offsets as text, and as what brokers say: against a cluster that is a dictionary."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastq.admin.types import OffsetResult, Outcome, Outcomes, TopicDescription, TopicListing
from fastq.errors import ConfigError, LeaderNotAvailable, UnknownTopicOrPartition
from fastq.metadata import TopicPartition
from fastq.spark.offsets import (
    DataLoss,
    OffsetReader,
    named,
    parse_offsets,
    read_offsets,
    report_data_loss,
    start_within,
    topic_ids_within,
    with_start,
    write_offsets,
)
from fastq.spark.options import SourceOptions
from fastq.spark.planning import plan_batch

TP = TopicPartition
topics = st.text("abc.-_019", min_size=1, max_size=5)
offset_maps = st.dictionaries(
    st.builds(TopicPartition, topics, st.integers(0, 20)), st.integers(0, 2**63 - 1), max_size=12
)


# -- text


@given(offset_maps)
def test_offsets_go_through_json_and_back(offsets: dict[TopicPartition, int]) -> None:
    text = json.dumps(write_offsets(offsets))
    assert read_offsets(text) == offsets
    assert read_offsets(json.loads(text)) == offsets


@given(offset_maps)
def test_equal_offsets_are_equal_text_whatever_their_order(offsets: dict[TopicPartition, int]) -> None:
    other = dict(reversed(list(offsets.items())))
    assert json.dumps(write_offsets(offsets)) == json.dumps(write_offsets(other))
    again = json.dumps(json.loads(json.dumps(write_offsets(offsets))))
    assert again == json.dumps(write_offsets(offsets)), "as it comes back from a checkpoint"


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    assert json.dumps(write_offsets({TP("b", 10): 1, TP("b", 9): 2, TP("a", 0): 3})) == (
        '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'
    )


def test_the_text_of_the_jvm_connector_is_read() -> None:
    # As it stands in a checkpoint of Spark 3.5: no spaces, topics in any order.
    assert read_offsets('{"logs":{"1":7,"0":23},"alerts":{"0":0}}') == {
        TP("logs", 0): 23,
        TP("logs", 1): 7,
        TP("alerts", 0): 0,
    }


@pytest.mark.parametrize("text", ["[]", "5", '{"a":[1]}', '{"a":{"0":"1"}}', '{"a":{"x":1}}', '{"a":{"0":1.5}}'])
def test_what_is_not_offsets_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="topicA"):
        read_offsets(text)


def test_an_empty_json_is_no_option() -> None:
    assert read_offsets("{}") == {}
    with pytest.raises(ValueError, match="topicA"):
        parse_offsets("{}")


@given(offset_maps, offset_maps)
def test_the_end_of_a_first_batch_tells_where_it_began(
    start: dict[TopicPartition, int], end: dict[TopicPartition, int]
) -> None:
    offsets = json.loads(json.dumps(with_start(write_offsets(end), start)))
    assert read_offsets(offsets) == end
    assert start_within(offsets) == (start or None)
    assert start_within(write_offsets(end)) is None
    assert list(offsets) == sorted(offsets)


def test_many_partitions_are_counted() -> None:
    assert named([TP("b", 1), TP("a", 0)]) == "a-0, b-1"
    assert named(TP("t", i) for i in range(13)).endswith("t-9 and 3 more")


def test_data_loss_fails_or_warns(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLoss, match="set failOnDataLoss to false"):
        report_data_loss(True, "t-0 is gone")
    report_data_loss(False, "t-0 is gone")
    assert "t-0 is gone; going on" in caplog.text


def test_ids_of_topics_are_where_the_other_connector_finds_no_partition() -> None:
    ids = {"a": bytes(range(16)), "b": bytes(16), "gone": b"g" * 16}
    written = json.loads(json.dumps(with_start(write_offsets({TP("a", 0): 7, TP("b", 1): 8}, ids), {TP("a", 0): 3})))
    assert written == {"a": {"0": 7}, "a@id=AAECAwQFBgcICQoLDA0ODw": {}, "a@start": {"0": 3}, "b": {"1": 8}}
    assert read_offsets(written) == {TP("a", 0): 7, TP("b", 1): 8}
    assert (start_within(written), topic_ids_within(written)) == ({TP("a", 0): 3}, {"a": ids["a"]})


# -- what brokers say


class Cluster:
    """An admin client over {partition: (first, end, [(timestamp, offset)])}."""

    def __init__(
        self, logs: Mapping[TopicPartition, tuple[int, int]], times: Mapping[TopicPartition, Any] = {}
    ) -> None:
        self.logs = dict(logs)
        self.times = times
        self.asked: list[str] = []
        self.failures: list[Exception] = []
        self.behind: list[Mapping[TopicPartition, int]] = []
        self.closed = 0
        self.ids: dict[str, bytes] = {}

    def close(self) -> None:
        self.closed += 1

    def list_topics(self) -> dict[str, TopicListing]:
        return {name: TopicListing(name, bytes(16), False) for name in sorted({tp.topic for tp in self.logs})}

    def describe_topics(self, names: Iterable[str]) -> Outcomes[str, TopicDescription]:
        self.asked.append("topics")
        outcomes: dict[str, Outcome[TopicDescription]] = {}
        for name in names:
            parts = tuple(None for tp in self.logs if tp.topic == name)
            found = TopicDescription(name, self.ids.get(name, bytes(16)), False, parts)  # type: ignore[arg-type]  # only their count is looked at
            outcomes[name] = Outcome(found) if parts else Outcome(error=UnknownTopicOrPartition(topic=name))
        return Outcomes(outcomes)

    def list_offsets(
        self, times: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> Outcomes[TopicPartition, OffsetResult]:
        self.asked.append("offsets")
        if self.failures:
            raise self.failures.pop(0)
        behind = self.behind.pop(0) if self.behind else {}
        outcomes = {}
        for tp, time in times.items():
            first, end = self.logs[tp]
            if time >= 0:
                offset = next((at for stamp, at in self.times.get(tp, ()) if stamp >= time), -1)
            else:
                offset = first if time == -2 else behind.get(tp, end)
            outcomes[tp] = Outcome(OffsetResult(offset, -1, 0))
        return Outcomes(outcomes)


def reader(cluster: Cluster, streaming: bool | None = None, **options: object) -> OffsetReader:
    values = {
        "kafka.bootstrap.servers": "nowhere:1",
        **{name.replace("__", "."): str(v) for name, v in options.items()},
    }
    found = OffsetReader(SourceOptions.parse(values, streaming=streaming))
    found.open_admin = lambda: cluster  # type: ignore[method-assign, assignment, return-value]
    return found


LOGS = {TP("a", 0): (5, 20), TP("a", 1): (0, 7), TP("b", 0): (0, 0)}


def test_partitions_of_every_kind_of_selection() -> None:
    cluster = Cluster(LOGS)
    assert reader(cluster, subscribe="a").partitions() == {TP("a", 0), TP("a", 1)}
    assert reader(cluster, subscribe="a,b").partitions() == set(LOGS)
    assert reader(cluster, subscribePattern="[ab]").partitions() == set(LOGS)
    assert reader(cluster, subscribePattern="a|x").partitions() == {TP("a", 0), TP("a", 1)}
    assert reader(cluster, assign='{"a":[1]}').partitions() == {TP("a", 1)}


def test_a_pattern_matches_whole_names_and_may_match_none() -> None:
    cluster = Cluster({TP("logs-1", 0): (0, 1)})
    assert reader(cluster, subscribePattern="logs").partitions() == set()
    assert reader(cluster, subscribePattern="logs.*").partitions() == {TP("logs-1", 0)}


def test_topics_and_partitions_that_are_not_there_are_named() -> None:
    with pytest.raises(UnknownTopicOrPartition, match="no such topic: x, y, of subscribe a,x,y"):
        reader(Cluster(LOGS), subscribe="a,x,y").partitions()
    with pytest.raises(UnknownTopicOrPartition, match="no such topic: x"):
        reader(Cluster(LOGS), assign='{"x":[0]}').partitions()
    with pytest.raises(UnknownTopicOrPartition, match=r"not there: a-2, a-7 \(a has 2, from 0 on\)"):
        reader(Cluster(LOGS), assign='{"a":[0,2,7]}').partitions()


def test_what_was_known_before_may_be_gone() -> None:
    known = [TP("gone", 0), TP("a", 5)]
    assert reader(Cluster(LOGS), subscribe="a,gone").partitions(known) == {TP("a", 0), TP("a", 1)}
    assert reader(Cluster(LOGS), assign='{"a":[1,5]}').partitions(known) == {TP("a", 1)}
    with pytest.raises(UnknownTopicOrPartition, match="no such topic: x"):
        reader(Cluster(LOGS), subscribe="a,x").partitions(known)


def test_limits_are_looked_up() -> None:
    cluster = Cluster(LOGS, {TP("a", 0): [(100, 6), (200, 9)], TP("a", 1): [(50, 1), (150, 3)]})
    every = {TP("a", 0), TP("a", 1)}

    def resolve(starting: bool = True, **options: object) -> dict[TopicPartition, int]:
        made = reader(cluster, subscribe="a", **options)
        limit = made.options.starting if starting else made.options.ending
        return made.resolve(limit, every, starting=starting)

    assert resolve(startingOffsets="earliest") == {TP("a", 0): 5, TP("a", 1): 0}
    assert resolve(startingOffsets="latest") == {TP("a", 0): 20, TP("a", 1): 7}
    assert resolve(startingOffsets='{"a":{"0":-2,"1":-1}}') == {TP("a", 0): 5, TP("a", 1): 7}
    assert resolve(startingOffsets='{"a":{"0":11,"1":-1}}') == {TP("a", 0): 11, TP("a", 1): 7}
    assert resolve(startingTimestamp=120) == {TP("a", 0): 9, TP("a", 1): 3}
    assert resolve(startingOffsetsByTimestamp='{"a":{"0":100,"1":50}}') == {TP("a", 0): 6, TP("a", 1): 1}
    assert resolve(False, endingTimestamp=120) == {TP("a", 0): 9, TP("a", 1): 3}
    assert resolve(False, endingTimestamp=190) == {TP("a", 0): 9, TP("a", 1): 7}, "the end where nothing is as young"


def test_a_start_that_nothing_is_younger_than() -> None:
    cluster = Cluster(LOGS, {TP("a", 0): [(100, 6)], TP("a", 1): []})
    strict = reader(cluster, subscribe="a", startingTimestamp=60)
    with pytest.raises(ConfigError, match="no record of a-1 is as young as the starting timestamp 60"):
        strict.resolve(strict.options.starting, {TP("a", 0), TP("a", 1)}, starting=True)
    mild = reader(cluster, subscribe="a", startingTimestamp=60, startingOffsetsByTimestampStrategy="latest")
    found = mild.resolve(mild.options.starting, {TP("a", 0), TP("a", 1)}, starting=True)
    assert found == {TP("a", 0): 6, TP("a", 1): 7}


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ('{"a":{"0":1}}', ["a-1 missing"]),
        ('{"a":{"0":1,"1":1,"2":1}}', ["a-2 not among what is read"]),
        ('{"a":{"0":1},"b":{"0":1}}', ["a-1 missing", "b-0 not among what is read", "subscribe a", "-2 earliest"]),
    ],
)
def test_missing_and_extra_partitions_are_named(offsets: str, words: list[str]) -> None:
    made = reader(Cluster(LOGS), subscribe="a", startingOffsets=offsets)
    with pytest.raises(ConfigError) as caught:
        made.resolve(made.options.starting, made.partitions(), starting=True)
    assert all(word in str(caught.value) for word in words), caught.value


def test_all_partitions_are_asked_for_at_once() -> None:
    cluster = Cluster({TP(f"t{i}", 0): (0, i) for i in range(50)})
    made = reader(cluster, subscribePattern="t.*")
    assert made.latest(made.partitions()) == {TP(f"t{i}", 0): i for i in range(50)}
    assert cluster.asked == ["topics", "offsets"]
    assert made.earliest([]) == {}
    assert cluster.asked == ["topics", "offsets"], "nothing to ask is not asked"


def test_a_leader_that_does_not_know_its_end_yet_is_asked_again() -> None:
    cluster = Cluster(LOGS)
    cluster.behind = [{TP("a", 0): 12}]
    made = reader(cluster, subscribe="a", fetchOffset__retryIntervalMs=0)
    assert made.latest([TP("a", 0)], {TP("a", 0): 18}) == {TP("a", 0): 20}
    cluster.behind = [{TP("a", 0): 12}] * 3
    assert made.latest([TP("a", 0)], {TP("a", 0): 18}) == {TP("a", 0): 12}, "what it still says is what is"


def test_errors_that_may_pass_are_tried_again_with_another_client() -> None:
    cluster = Cluster(LOGS)
    made = reader(cluster, subscribe="a", fetchOffset__numRetries=3, fetchOffset__retryIntervalMs=0)
    cluster.failures = [LeaderNotAvailable(), LeaderNotAvailable()]
    assert made.attempts(lambda: made.latest([TP("a", 1)])) == {TP("a", 1): 7}
    assert cluster.closed == 2
    cluster.failures = [LeaderNotAvailable()] * 3
    with pytest.raises(LeaderNotAvailable):
        made.attempts(lambda: made.latest([TP("a", 1)]))
    cluster.failures = [ConfigError("no"), LeaderNotAvailable()]
    with pytest.raises(ConfigError):
        made.attempts(lambda: made.latest([TP("a", 1)]))
    assert len(cluster.failures) == 1, "what cannot pass is not tried again"


def test_a_reader_pickles_without_its_client() -> None:
    made = OffsetReader(SourceOptions.parse({"kafka.bootstrap.servers": "h:1", "subscribe": "a"}))
    assert pickle.loads(pickle.dumps(made)).options == made.options


# -- the plan of a batch


def plan(cluster: Cluster, **given: object) -> list[tuple[str, int, int]]:
    found = plan_batch(reader(cluster, streaming=False, subscribe="a", **given))
    return [(str(part.tp), part.start, part.end) for part in found]


def test_a_batch_reads_what_is_there() -> None:
    assert plan(Cluster(LOGS)) == [("a-0", 5, 20), ("a-1", 0, 7)]
    assert plan(Cluster(LOGS), endingOffsets='{"a":{"0":6,"1":0}}') == [("a-0", 5, 6)]
    assert plan(Cluster(LOGS), startingOffsets='{"a":{"0":19,"1":-2}}', minPartitions=4) == [
        ("a-0", 19, 20),
        ("a-1", 0, 2),
        ("a-1", 2, 4),
        ("a-1", 4, 7),
    ]


@pytest.mark.parametrize(
    ("given", "words", "mild"),
    [
        (
            {"startingOffsets": '{"a":{"0":2,"1":0}}'},
            "startingOffsets has 2, which is gone: a-0 goes from 5 to 20",
            (5, 20),
        ),
        ({"startingOffsets": '{"a":{"0":21,"1":0}}'}, "startingOffsets has 21, which is beyond the log", None),
        ({"endingOffsets": '{"a":{"0":99,"1":7}}'}, "endingOffsets has 99, which is beyond the log", (5, 20)),
    ],
)
def test_offsets_that_are_not_in_the_log(given: dict[str, str], words: str, mild: tuple[int, int] | None) -> None:
    with pytest.raises(DataLoss, match=words):
        plan(Cluster(LOGS), **given)
    found = plan(Cluster(LOGS), failOnDataLoss="false", **given)
    assert found == ([("a-0", *mild)] if mild else []) + [("a-1", 0, 7)]
