"""The fail-over of a mirror: who hears of it, whom it ends, and how large what it writes down may be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from mirrors import configured, made, running, sent, values_of
from waiting import until

from fastq import Admin, Producer, TopicPartition
from fastq.admin import ConfigResource
from fastq.errors import ConfigError
from fastq.mirror import failover, same_failover
from fastq.mirror.failover import fail_back, fail_over
from fastq.mirror.mirror import Mirror
from fastq.mirror.names import state_topic
from fastq.mirror.progress import MirrorStopped
from fastq.mirror.report import failed_over
from fastq.mirror.state import Offsets, offsets_of, read_state
from fastq.mirror.survey import Survey
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    soon = {"group.initial.rebalance.delay.ms": 0}
    with Broker(in_memory=True, config=soon) as source, Broker(in_memory=True, config=soon) as target:
        yield source, target


def test_a_fail_over_says_that_the_target_is_free_before_it_asks_the_source(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "SOURCE_TIMEOUT_S", 0.3)
    _, target = brokers
    name = new_topic_name()
    with Broker(in_memory=True) as source:
        made(source, name, b"x")
        config = configured((source, target), [name], alias="dead", heartbeat_interval_ms=0)
        with running(config):
            until(lambda: values_of(target, f"dead.{name}") == [b"x"])
    told: list[float] = []
    asked = Admin.describe_cluster

    def describe_cluster(admin: Admin, **settings: Any) -> Any:
        assert told  # the source is asked, and the target is free already
        return asked(admin, **settings)

    monkeypatch.setattr(Admin, "describe_cluster", describe_cluster)
    found = fail_over(config, told.append)
    assert (found.missing, found.heartbeat_age_s, found.groups) == (None, None, 0) and len(told) == 1


def test_a_process_whose_source_is_gone_hears_of_a_fail_over(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lanes have nothing to copy any more, by which they would: it went on trying to reach the source for good."""
    monkeypatch.setattr(failover, "SOURCE_TIMEOUT_S", 0.3)
    asked = Admin.list_topics
    monkeypatch.setattr(Admin, "list_topics", lambda admin, **given: asked(admin, **{"timeout": 2.0, **given}))
    _, target = brokers
    name, alias = new_topic_name(), "lost"
    with Broker(in_memory=True) as source:
        made(source, name, b"x")
        config = configured((source, target), [name], alias=alias, heartbeat_interval_ms=0)
        ended: list[BaseException] = []

        def run() -> None:
            try:
                Mirror(config).run()
            except MirrorStopped as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: values_of(target, f"{alias}.{name}") == [b"x"])
    assert not failed_over(config)
    fail_over(config)
    assert failed_over(config)
    thread.join(30)
    assert ended and "was failed over" in str(ended[0])


@pytest.mark.parametrize("sync_groups", [True, False])
def test_a_fail_over_commits_offsets_of_groups_where_the_mirror_does(
    brokers: tuple[Broker, Broker], new_topic_name: Any, sync_groups: bool
) -> None:
    source, target = brokers
    name, group, alias = new_topic_name(), new_topic_name(), f"groups-{sync_groups}"
    made(source, name, b"x", b"y")
    once = {"heartbeat_interval_ms": 0, "group_interval_ms": 0}
    config = configured(brokers, [name], alias=alias, groups=[group], sync_groups=sync_groups, **once)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.alter_group_offsets(group, {TopicPartition(name, 0): 1}).results()
    with running(config):
        until(lambda: values_of(target, f"{alias}.{name}") == [b"x", b"y"])
    assert fail_over(config).groups == int(sync_groups)
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        assert (group in admin.list_groups()) is sync_groups


@pytest.mark.parametrize(
    ("offsets", "fetch_s"),
    [("translated", 300.0), ("same", 300.0), ("same", 0.5)],
    ids=["translated", "fetch", "place"],
)
def test_a_process_whose_source_is_gone_does_not_wait_for_it_to_end(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch, offsets: str, fetch_s: float
) -> None:
    """It took ten seconds for its lanes and ten for its survey, after each of which it went on without."""
    monkeypatch.setattr("fastq.mirror.mirror.STOP_S", 300.0)
    monkeypatch.setattr("fastq.mirror.source_reader.CALL_S", fetch_s)
    placing = threading.Event()

    def placed(*arguments: Any) -> Any:
        placing.set()
        return offsets_of(*arguments)

    _, target = brokers
    name, alias = new_topic_name(), f"away-{offsets}-{fetch_s:.0f}"
    with Broker(in_memory=True, config={"group.initial.rebalance.delay.ms": 0}) as source:
        made(source, name, b"x")
        config = configured(
            (source, target), [name], alias=alias, names="identity", offsets=offsets, group_interval_ms=100
        )
        with running(config):
            until(lambda: values_of(target, name) == [b"x"])
            monkeypatch.setattr("fastq.mirror.state.OFFSETS_S", 300.0)
            monkeypatch.setattr("fastq.mirror.same_lane.offsets_of", placed)
            source.stop()
            if fetch_s < 1:
                assert placing.wait(30)


@pytest.mark.parametrize("asked", ["epochs", "times", "ends of the log"])
def test_a_lane_whose_source_is_gone_while_it_looks_for_losses_does_not_wait_for_it_to_end(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    _, target = brokers
    name, alias = new_topic_name(), f"looks-{asked.split()[0]}"
    looking = threading.Event()
    with Broker(in_memory=True, config={"group.initial.rebalance.delay.ms": 0}) as source:
        made(source, name, b"x")
        config = configured((source, target), [name], alias=alias, names="identity", heartbeat_interval_ms=0)
        with running(config):
            until(lambda: values_of(target, name) == [b"x"])

        def placed(*arguments: Any) -> Any:
            found = offsets_of(*arguments)
            if name in {tp.topic for tp in found.ends}:
                source.stop()
                looking.set()
            short = {tp: end - (asked == "ends of the log") for tp, end in found.ends.items()}
            return found._replace(ends=short)

        monkeypatch.setattr("fastq.mirror.lane.offsets_of", placed)
        monkeypatch.setattr("fastq.mirror.mirror.STOP_S", 300.0)
        monkeypatch.setattr("fastq.mirror.source_reader.LEADERS_S", 300.0)
        monkeypatch.setattr("fastq.mirror.history.LOOK_S", 300.0)
        if asked == "times":
            monkeypatch.setattr("fastq.mirror.history._by_epochs", lambda *_: {})
        with running(config):
            assert looking.wait(30)


@pytest.mark.parametrize(("group_interval_ms", "refresh_interval_ms"), [(0, 200), (100, 300_000)])
def test_a_process_whose_source_is_idle_hears_of_a_fail_over_and_leaves_the_target_alone(
    brokers: tuple[Broker, Broker], new_topic_name: Any, group_interval_ms: int, refresh_interval_ms: int
) -> None:
    """Nothing comes by which its lanes would hear it: configs of the target were set back to the source's for ever."""
    source, target = brokers
    name = new_topic_name()
    alias = f"idle{group_interval_ms}"
    made(source, name, b"x")
    often = {"group_interval_ms": group_interval_ms, "refresh_interval_ms": refresh_interval_ms}
    config = configured(brokers, [name], alias=alias, heartbeat_interval_ms=0, **often)
    with pytest.raises(MirrorStopped, match="was failed over"), running(config) as mirror:
        until(lambda: values_of(target, f"{alias}.{name}") == [b"x"])
        fail_over(config)
        topic = ConfigResource.topic(f"{alias}.{name}")
        with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            admin.set_configs(topic, {"retention.ms": "12345678"})
            until(lambda: mirror._stopping.is_set())
            assert admin.describe_configs([topic])[topic].result()["retention.ms"].value == "12345678"


def test_another_alias_of_the_target_is_refused(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    """Its lanes would not be fenced: they copied on behind the ends of a fail-over that called the target otherwise."""
    source, target = brokers
    name, alias = new_topic_name(), "renamed"
    made(source, name, b"x")
    config = configured(brokers, [name], alias=alias, names="identity", heartbeat_interval_ms=0)
    other = config._replace(target=config.target._replace(alias="B-1"))
    with running(config):
        until(lambda: values_of(target, name) == [b"x"])
        for refused in (Mirror(other).run, lambda: fail_over(other), lambda: fail_back(other)):
            words = r'calls its target B, and here it is B-1.*alias = "B".*\["target"\] and the value {"alias":"B-1"}'
            with pytest.raises(ConfigError, match=words):
                refused()
        sent(source, name, b"y")
        until(lambda: values_of(target, name) == [b"x", b"y"])
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:  # the way that the hint names
        producer.send(state_topic(alias), b'{"alias":"B-1"}', b'["target"]', partition=0).result()
    with running(other):
        sent(source, name, b"z")
        until(lambda: values_of(target, name) == [b"x", b"y", b"z"])
    with pytest.raises(ConfigError, match="calls its target B-1"):
        fail_over(config)
    fail_over(other)
    fail_back(other)


def test_another_alias_of_the_target_is_refused_of_a_mirror_that_an_older_release_runs(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    """It has not written down how it calls the target; its lanes' ids say so."""
    source, target = brokers
    name, alias = new_topic_name(), "older"
    made(source, name, b"x")
    config = configured(brokers, [name], alias=alias, names="identity", heartbeat_interval_ms=0)
    other = config._replace(target=config.target._replace(alias="B-1"))
    with running(config):
        until(lambda: values_of(target, name) == [b"x"])
        with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
            producer.send(state_topic(alias), None, b'["target"]', partition=0).result()
        for refused in (Mirror(other).run, lambda: fail_over(other), lambda: fail_back(other)):
            with pytest.raises(ConfigError, match="calls its target B, and here it is B-1"):
                refused()
    with running(config):
        until(lambda: read_state(config.target, state_topic(alias), [0]).target == "B")


@pytest.mark.parametrize("reads", [1, 2, 3])
def test_of_two_aliases_of_the_target_that_begin_at_once_one_is_refused(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    """Each wrote its own over the other's, and read that."""
    source, target = brokers
    name, alias = new_topic_name(), f"at-once-{reads}"
    made(source, name, b"x")
    config = configured(brokers, [name], alias=alias, names="identity", heartbeat_interval_ms=0)
    other = config._replace(target=config.target._replace(alias="B-1"))
    begun = [0]

    def read(*arguments: Any) -> Any:
        state = read_state(*arguments)
        begun[0] += 1
        if begun[0] == reads:  # it begins, and has written its own, while the first one holds what it has read
            thread.start()
            until(lambda: values_of(target, name) == [b"x"] or not thread.is_alive())
        return state

    mirror = Mirror(other)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            mirror.run()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    monkeypatch.setattr("fastq.mirror.mirror.read_state", read)
    try:
        if reads < 3:
            with pytest.raises(ConfigError, match="calls its target B-1, and here it is B"):
                Mirror(config).run()
            assert not ended
        else:  # the first one has written it
            with running(config):
                until(lambda: ended)
            assert isinstance(ended[0], ConfigError) and "calls its target B, and here it is B-1" in str(ended[0])
    finally:
        mirror.stop()
        thread.join(30)


@pytest.mark.parametrize("offsets", ["translated", "same"])
def test_a_lane_of_tens_of_thousands_of_partitions_is_ended(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    """Where they end is one record, which was larger than the target took."""
    config = configured(brokers, ["none"], alias=f"large-{offsets}", lanes=1)
    ends = {TopicPartition(f"a-topic-of-a-few-dozen-letters-{n // 100}", n % 100): n * 1000 for n in range(30_000)}
    survey = Survey(config)
    try:
        survey.prepare()
        if offsets == "same":
            same_failover._write_end(config, 0, ends)
        else:
            monkeypatch.setattr(failover, "partitions_of", lambda *_: dict.fromkeys(ends, ""))
            monkeypatch.setattr(failover, "offsets_of", lambda *_: Offsets({}, ends, {}))
            failover._end_lane(config, 0, survey.target)
    finally:
        survey.close()
    assert read_state(config.target, state_topic(config.source.alias), [0]).stopped[0].ends == ends
