"""A mirror whose topics are deleted and made anew on either side, whose memory was meddled with, and whose ways back are walked twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mirrors import configured, cut_off, made, records_of, running, sent, values_of, wait_for_records
from raw_kafka import RawConnection, batch, produce
from waiting import until

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.admin import ConfigResource
from fastq.errors import ConfigError, RequestTimedOut
from fastq.mirror import failover, keeper, lane
from fastq.mirror.comparison import compare_all
from fastq.mirror.config import MirrorConfig
from fastq.mirror.failover import fail_back, fail_over, reversed_config
from fastq.mirror.mirror import Mirror
from fastq.mirror.names import state_topic
from fastq.mirror.progress import StateError
from fastq.mirror.report import heartbeat_age_s, status
from fastq.mirror.source_reader import SourceReader
from fastq.mirror.state import progress_key, read_state
from fastq.mirror.survey import Survey
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    soon = {"group.initial.rebalance.delay.ms": 0}
    with Broker(in_memory=True, config=soon) as source, Broker(in_memory=True, config=soon) as target:
        yield source, target


def deleted(broker: Broker, name: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topic(name)


def test_what_was_copied_to_a_topic_that_is_deleted_in_the_target_is_copied_again(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    group, there = f"{name}-group", TopicPartition(f"A.{name}", 0)
    made(source, name, b"0", b"1", b"2", b"3")
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Admin(bootstrap_servers=target.bootstrap_servers) as theirs,
        running(configured(brokers, [name], groups=[group], group_interval_ms=100)),
    ):
        admin.alter_group_offsets(group, {TopicPartition(name, 0): 3}).results()

        def next_of_group() -> bytes | None:
            """The value that the group would read next in the target."""
            found = theirs.list_group_offsets(group, [there])[there]
            if found.error is not None or found.value is None:
                return None
            return next((r.value for r in _from(target, there, found.value.offset)), None)

        until(lambda: next_of_group() == b"3")
        theirs.delete_topic(f"A.{name}")
        sent(source, name, b"4")
        wait_for_records(target, f"A.{name}", records_of(source, name))
        until(lambda: next_of_group() == b"3")
    assert values_of(target, f"A.{name}") == [b"0", b"1", b"2", b"3", b"4"]


def _from(broker: Broker, tp: TopicPartition, offset: int) -> Iterator[Any]:
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "allow_auto_create_topics": False}
    with Consumer(bootstrap_servers=broker.bootstrap_servers, **settings) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, offset)
        yield from consumer.read_to_end()


def test_a_source_that_is_made_anew_while_it_is_copied_is_copied_once(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name, b"old")
    # The survey hears of it long after the consumer.
    with running(configured(brokers, [name], on_gap="continue", refresh_interval_ms=1500)):
        until(lambda: values_of(target, f"A.{name}") == [b"old"])
        deleted(source, name)
        made(source, name, *[b"%d" % i for i in range(10)])
        until(lambda: len(values_of(target, f"A.{name}")) >= 11)
        sent(source, name, b"end")
        until(lambda: b"end" in values_of(target, f"A.{name}"))
    assert values_of(target, f"A.{name}") == [b"old", *[b"%d" % i for i in range(10)], b"end"]


def test_fail_over_and_check_work_with_topics_that_are_deleted_on_either_side(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    names = [new_topic_name() for _ in range(3)]
    for name in names:
        made(source, name, b"x")
    config = configured(brokers, names, alias="gone", names="identity")
    with running(config):
        for name in names:
            until(lambda name=name: values_of(target, name) == [b"x"])  # type: ignore[misc]
    deleted(source, names[0])
    deleted(target, names[1])
    results = {c.partition.topic: (c.result, c.detail or "") for c in compare_all(config, names)}
    assert results[names[0]] == ("unknown", "it was deleted in gone")
    assert results[names[1]] == ("unknown", "it was deleted in B")
    assert results[names[2]] == ("same", "")
    found = fail_over(config)
    assert found.missing is not None and found.missing[TopicPartition(names[2], 0)] == 0
    prepared = fail_back(config)
    assert set(prepared.partitions) == {TopicPartition(names[2], 0)}
    # What the former source has deleted comes back whole: nothing of it is there.
    with running(reversed_config(config)):
        until(lambda: values_of(source, names[0]) == [b"x"])
        assert values_of(source, names[2]) == [b"x"]


def test_the_way_back_is_refused_before_fail_back_and_not_begun_anew_by_another(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name, b"x")
    config = configured(brokers, [name], alias="back", target_alias="there", names="identity")
    with running(config):
        until(lambda: values_of(target, name) == [b"x"])
    fail_over(config)
    survey = Survey(reversed_config(config))
    try:
        survey.prepare()
        assert "fail-back" in survey.look().refused[name]
        sent(target, name, b"new")
        assert fail_back(config).diverged == {}
        survey.forget()
        assert survey.look().refused == {}
    finally:
        survey.close()
    with running(reversed_config(config)):
        until(lambda: values_of(source, name) == [b"x", b"new"])
    assert fail_back(config).diverged == {}  # it has gone on since
    sent(target, name, b"newer")
    with running(reversed_config(config)):
        until(lambda: b"newer" in values_of(source, name))
    assert values_of(source, name) == [b"x", b"new", b"newer"]


@pytest.mark.parametrize("step", ["_end_lane", "_seed"])
def test_what_is_killed_on_the_way_there_or_back_is_done_again(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name, b"a", partitions=2)  # one a lane
    config = configured(brokers, [name], alias=f"killed{step}", target_alias=f"other{step}", names="identity")
    with running(config):
        until(lambda: values_of(target, name) == [b"a"])
    does, lanes = getattr(failover, step), []

    def killed(config: MirrorConfig, lane: int, *rest: Any) -> None:
        lanes.append(lane)
        if lanes == [0, 1]:  # the second of two, the first time
            raise _Broken
        does(config, lane, *rest)

    monkeypatch.setattr(failover, step, killed)
    if step == "_end_lane":
        with pytest.raises(_Broken):
            fail_over(config)
        with pytest.raises(ConfigError, match="was not failed over"):
            fail_back(config)
    fail_over(config)
    sent(target, name, b"b")
    if step == "_seed":
        with pytest.raises(_Broken):
            fail_back(config)
    fail_back(config)
    with running(reversed_config(config)):
        until(lambda: values_of(source, name) == [b"a", b"b"])
        sent(target, name, b"c")
        until(lambda: b"c" in values_of(source, name))
    assert values_of(source, name) == [b"a", b"b", b"c"]


def test_a_memory_with_more_lanes_or_that_forgets_is_refused(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name, partitions=4)
    config = configured(brokers, [name], alias="lanes")
    with running(config), Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        until(lambda: len(_progress(config)) >= 4)
        resource = ConfigResource.topic("fastq-mirror.lanes.internal")
        admin.set_configs(resource, {"cleanup.policy": "delete"})
        with pytest.raises(ConfigError, match=r"cleanup\.policy=delete"):
            Mirror(config).run()
        admin.set_configs(resource, {"cleanup.policy": "compact"})
        admin.create_partitions({resource.name: 4}).results()
    with pytest.raises(ConfigError, match="began with fewer"):
        Mirror(config).run()


def _progress(config: MirrorConfig) -> Any:
    return read_state(config.target, state_topic(config.source.alias), [0, 1]).progress


def test_configs_that_the_source_does_not_tell_are_left_alone(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name, b"x")
    made(target, f"A.{name}", retention_ms="123456789")
    source.fail("DescribeConfigs", error="TOPIC_AUTHORIZATION_FAILED", times=None)
    try:
        with running(configured(brokers, [name])), Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            until(lambda: values_of(target, f"A.{name}") == [b"x"])
            resource = ConfigResource.topic(f"A.{name}")
            assert admin.describe_configs([resource]).results()[resource]["retention.ms"].value == "123456789"
    finally:
        source.clear_faults()


def test_who_has_copied_open_transactions_goes_on_behind_them(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name)
    with Producer(bootstrap_servers=source.bootstrap_servers, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"open", partition=0).result()
        with running(configured(brokers, [name], read_committed=False)):
            until(lambda: values_of(target, f"A.{name}") == [b"open"])
        with running(configured(brokers, [name])) as mirror:
            until(lambda: any(TopicPartition(name, 0) in lane.counts.lag for lane in mirror.lanes.values()))
            assert not any(lane.failed for lane in mirror.lanes.values())
            producer.commit_transaction()
            sent(source, name, b"next")
            until(lambda: values_of(target, f"A.{name}") == [b"open", b"next"])


def test_another_cluster_under_the_alias_is_refused(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name, b"x")
    with running(configured(brokers, [name], alias="alias")):
        until(lambda: values_of(target, f"alias.{name}") == [b"x"])
    with Broker(in_memory=True) as other, pytest.raises(ConfigError, match="is of the cluster"):
        Mirror(configured((other, target), [name], alias="alias")).run()


def test_records_without_a_time_arrive_and_are_the_same(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name, b"timed")
    with RawConnection(source.bootstrap_servers) as connection:
        assert produce(connection, name, batch(b"untimed", b"too", timestamp_ms=-1)).error_code == 0
        assert produce(connection, name, batch(b"1970", timestamp_ms=0)).error_code == 0
    config = configured(brokers, [name])
    with running(config):
        until(lambda: values_of(target, f"A.{name}") == [b"timed", b"untimed", b"too", b"1970"])
    assert [c.result for c in compare_all(config, [name])] == ["same"]
    assert records_of(target, f"A.{name}")[3][1] == 0


@pytest.mark.parametrize("error", ["OUT_OF_ORDER_SEQUENCE_NUMBER", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE"])
def test_what_is_wrong_with_a_transaction_leaves_no_partition_out(
    brokers: tuple[Broker, Broker], new_topic_name: Any, error: str
) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name, b"0")
    with running(configured(brokers, [name], heartbeat_interval_ms=0)) as mirror:
        until(lambda: values_of(target, f"A.{name}") == [b"0"])
        target.fail("Produce", error=error)
        sent(source, name, b"1")
        until(lambda: values_of(target, f"A.{name}") == [b"0", b"1"])
        assert not any(lane.failed for lane in mirror.lanes.values())


def test_a_record_that_cannot_be_sent_holds_only_its_partition_up(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "RECORD_BYTES_MAX", 100_000)
    source, target = brokers
    name, other = new_topic_name(), new_topic_name()
    made(source, name, b"x" * 200_000)
    made(source, other, partitions=2)  # one of them in the same lane
    with running(configured(brokers, [name, other])) as mirror:
        until(lambda: any(TopicPartition(name, 0) in lane.failed for lane in mirror.lanes.values()))
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            for partition in range(2):
                producer.send(other, b"y", partition=partition).result()
        until(lambda: values_of(target, f"A.{other}") == [b"y", b"y"])


def test_a_record_that_fits_only_compressed_says_what_to_set(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name, max_message_bytes="100000")
    with Producer(
        bootstrap_servers=source.bootstrap_servers, compression_type="gzip", max_request_size=3_000_000
    ) as producer:
        producer.send(name, b"x" * 2_000_000).result()
    config = configured(brokers, [name])
    with running(config) as mirror:
        until(lambda: any(lane.failed for lane in mirror.lanes.values()))
        ((_, failure),) = [item for lane in mirror.lanes.values() for item in lane.failed.items()]
    assert 'set producer.compression.type = "zstd" in [target]' in failure.reason
    assert f"fastq configs set --topic A.{name} max.message.bytes=" in failure.reason
    side = config.target._replace(producer={"compression_type": "gzip"})
    with running(config._replace(target=side)):
        until(lambda: values_of(target, f"A.{name}") == [b"x" * 2_000_000])


@pytest.mark.parametrize("is_same_epoch", [True, False])
def test_a_source_that_was_cut_off_and_has_grown_again_while_the_mirror_was_off(
    brokers: tuple[Broker, Broker], new_topic_name: Any, is_same_epoch: bool
) -> None:
    source, target = brokers
    name = new_topic_name()
    tp = TopicPartition(name, 0)
    made(source, name)

    def sent_alone(word: bytes, amount: int) -> None:
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            for i in range(amount):
                producer.send(name, word + b" %d" % i, partition=0).result()  # a batch each

    sent_alone(b"old", 10)
    config = configured(brokers, [name])
    with running(config):
        until(lambda: len(values_of(target, f"A.{name}")) == 10)
    mark = read_state(config.target, state_topic("A"), [0, 1]).progress[tp].mark
    assert mark is not None and mark.end == 10 and mark.epoch >= 0 and mark.time_ms > 0
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        cut_off(config, admin, tp, 6)
    sent_alone(b"new", 8)
    with pytest.MonkeyPatch.context() as patched:
        if not is_same_epoch:  # what a source answers whose leader was elected since
            ends = {tp: (0, 6)}
            patched.setattr(SourceReader, "epoch_ends", lambda self, asked: {p: ends.get(p, (-1, -1)) for p in asked})
        with running(config) as mirror:
            until(lambda: any(tp in lane.failed for lane in mirror.lanes.values()))
            (failure,) = [lane.failed[tp] for lane in mirror.lanes.values() if tp in lane.failed]
        first = 9 if is_same_epoch else 6  # in the same epoch it is the last record alone that shows it
        assert f"the source has lost what it had, from offset {first} on" in failure.reason
        (row,) = [row for row in status(config, 0.0).partitions if row.partition == tp]
        assert row.state.startswith(f"stopped: the source has lost what it had, from offset {first} on")
        assert len(values_of(target, f"A.{name}")) == 10
        with running(configured(brokers, [name], on_gap="continue")):
            expected = [b"old %d" % i for i in range(10)] + [b"new %d" % i for i in range(first - 6, 8)]
            until(lambda: values_of(target, f"A.{name}") == expected)


def test_a_partition_without_a_leader_holds_no_other_up(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name, b"lost", partitions=4)
    with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
        for partition in range(1, 4):
            producer.send(name, b"%d" % partition, partition=partition).result()
    offline, asked = TopicPartition(name, 0), Consumer.beginning_offsets

    def beginning_offsets(consumer: Any, partitions: Any, timeout: float | None = None) -> Any:
        wanted = list(partitions)
        if offline in wanted:
            raise RequestTimedOut("asking for offsets did not finish")
        return asked(consumer, wanted, timeout)

    monkeypatch.setattr(Consumer, "beginning_offsets", beginning_offsets)
    config = configured(brokers, [name], alias="offline")
    with running(config):
        until(lambda: values_of(target, f"offline.{name}") == [b"1", b"2", b"3"])
    (row,) = [p for p in status(config, 0.0).partitions if p.partition == offline]
    assert row.state.startswith("unknown") and row.lag is None
    found = fail_over(config)
    assert found.missing is not None and offline not in found.missing
    assert all(found.missing[TopicPartition(name, partition)] == 0 for partition in range(1, 4))


def test_a_heartbeat_that_is_none_hides_no_other(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    _, target = brokers
    config = configured(brokers, [new_topic_name()], heartbeat_interval_ms=50)
    with running(config):
        until(lambda: heartbeat_age_s(config) is not None)
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        producer.send("A.heartbeats", b"none", b"somebody's").result()
    assert heartbeat_age_s(config) is not None


def test_records_of_others_in_its_memory_are_passed_over_and_broken_ones_told(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    tp = TopicPartition(name, 0)
    made(source, name, b"x")
    config = configured(brokers, [name], alias="memory", lanes=1)
    with running(config):
        until(lambda: values_of(target, f"memory.{name}") == [b"x"])
    topic = state_topic("memory")
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        producer.send(topic, b"{}", b"not ours").result()
        producer.send(topic, None, b"not ours").result()
        before = read_state(config.target, topic, [0]).progress[tp]
        producer.send(topic, b"{}", progress_key(tp)).result()
        with pytest.raises(StateError, match=r"no progress of a partition.*no value takes it back"):
            read_state(config.target, topic, [0])
        producer.send(topic, before.to_json(), progress_key(tp)).result()
    assert read_state(config.target, topic, [0]).progress[tp] == before


def test_access_controls_are_looked_at_and_a_side_without_an_authorizer_is_told_once(
    brokers: tuple[Broker, Broker],
    new_topic_name: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker of ours has none; Apache Kafka's are in tests/interop."""
    name, copy, rounds = new_topic_name(), keeper.copy_acls, []

    def counted(*arguments: Any) -> Any:
        rounds.append(arguments[-1])
        return copy(*arguments)

    monkeypatch.setattr(keeper, "copy_acls", counted)
    made(brokers[0], name)
    caplog.set_level("INFO", "fastq.mirror")
    with running(configured(brokers, [name], alias="acls", acl_interval_ms=1)):
        until(lambda: len([targets for targets in rounds if name in targets]) > 2)
    assert rounds[-1][name] == f"acls.{name}"
    assert [r.getMessage() for r in caplog.records if "has no authorizer" in r.getMessage()] == [
        "acls has no authorizer: access controls (ACLs) of topics are not copied"
    ]


def test_heartbeats_go_on_when_their_topic_was_deleted(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "MADE_S", 0.2)
    source, _ = brokers
    config = configured(brokers, [new_topic_name()], alias="beat", heartbeat_interval_ms=50)
    with running(config), Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        until(lambda: heartbeat_age_s(config) is not None)
        old = admin.describe_topic("heartbeats").topic_id
        deleted(source, "heartbeats")
        until(lambda: "heartbeats" in admin.list_topics())
        assert admin.describe_topic("heartbeats").topic_id != old


class _Broken(Exception):
    pass


def test_a_defect_in_a_thread_ends_the_mirror(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = brokers
    name = new_topic_name()
    made(source, name, b"x")

    def broken(*_: object) -> None:
        raise _Broken

    monkeypatch.setattr(lane.Lane, "_send", broken)
    with pytest.raises(_Broken):
        Mirror(configured(brokers, [name])).run()
