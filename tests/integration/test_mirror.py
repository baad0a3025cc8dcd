"""A mirror between two brokers: what comes out is what went in, whatever happens on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mirrors import configured, records_of, running, wait_for_records
from waiting import until

from fastq import Admin, Producer, TopicPartition
from fastq.admin import ConfigResource, ConfigSource
from fastq.cli import main
from fastq.errors import InvalidSessionTimeout
from fastq.mirror import survey
from fastq.mirror.failover import reversed_config
from fastq.mirror.mirror import Mirror
from fastq.mirror.mm2 import Checkpoint, Heartbeat, OffsetSync
from fastq.mirror.same import MIRROR_SOURCE
from fastq.mirror.state import read_state
from fastq.mirror.survey import Survey
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    soon = {"group.initial.rebalance.delay.ms": 0}
    with Broker(in_memory=True, config=soon) as source, Broker(in_memory=True, config=soon) as target:
        yield source, target


def test_records_configs_and_partitions_arrive_as_they_are(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    source, target = brokers
    name = new_topic_name()
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        configs = {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime", "max.message.bytes": "2000000"}
        admin.create_topic(name, 3, configs={**configs, "min.insync.replicas": "1"})
    with Producer(
        bootstrap_servers=source.bootstrap_servers, compression_type="lz4", max_request_size=3_000_000
    ) as producer:
        for i in range(300):
            producer.send(name, b"v%d" % i, b"k%d" % i if i % 3 else None, partition=i % 3)
        producer.send(name, None, b"gone", partition=0)
        producer.send(name, b"", b"", [("h", b"1"), ("h", None), ("", b"")], partition=1)
        producer.send(name, b"x" * 1_500_000, partition=2)
    expected = records_of(source, name)
    with running(configured(brokers, [name])), Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        wait_for_records(target, f"A.{name}", expected)
        assert len(admin.describe_topic(f"A.{name}").partitions) == 3
        with Admin(bootstrap_servers=source.bootstrap_servers) as theirs:
            theirs.create_partitions({name: 4}).results()
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(name, b"in the new one", partition=3)
        wait_for_records(target, f"A.{name}", records_of(source, name))


def test_a_session_time_out_that_the_target_refuses_ends_the_mirror(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    """It warned of it each second, for ever."""
    mirror = Mirror(configured(brokers, [new_topic_name()], session_timeout_ms=1_000))
    with pytest.raises(InvalidSessionTimeout):
        mirror.run()


@pytest.mark.parametrize("offsets", ["translated", "same"])
def test_a_topic_that_comes_later_and_a_config_that_changes_are_followed(
    brokers: tuple[Broker, Broker], new_topic_name: Any, monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    monkeypatch.setattr(survey, "CONFIGS_EVERY", 2)
    source, target = brokers
    name, alias = new_topic_name(), f"follows-{offsets}"
    first, later = f"{name}-first", f"{name}-later"
    config = configured(brokers, [f"{name}-.*"], alias=alias, offsets=offsets)
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Admin(bootstrap_servers=target.bootstrap_servers) as there,
        Producer(bootstrap_servers=source.bootstrap_servers) as producer,
    ):

        def own(topic: str) -> dict[str, str | None]:
            resource = ConfigResource.topic(f"{alias}.{topic}")
            found = there.describe_configs([resource])[resource].result()
            return {
                n: e.value
                for n, e in found.items()
                if e.source is ConfigSource.DYNAMIC_TOPIC_CONFIG and n != MIRROR_SOURCE
            }

        admin.create_topic(first, 1, configs={"retention.ms": "100000000"})
        producer.send(first, b"1", partition=0).result()
        with running(config):
            wait_for_records(target, f"{alias}.{first}", records_of(source, first))
            assert own(first) == {"retention.ms": "100000000"}
            admin.create_topic(later, 2, configs={"cleanup.policy": "compact"})
            producer.send(later, b"2", b"k", partition=1).result()
            wait_for_records(target, f"{alias}.{later}", records_of(source, later))
            assert own(later) == {"cleanup.policy": "compact"}
            admin.set_configs(
                ConfigResource.topic(first), {"retention.ms": "200000000", "max.message.bytes": "2000000"}
            )
            until(lambda: own(first) == {"retention.ms": "200000000", "max.message.bytes": "2000000"})
            admin.set_configs(ConfigResource.topic(first), {"retention.ms": None})
            until(lambda: own(first) == {"max.message.bytes": "2000000"})


def test_a_second_start_goes_on_where_the_first_ended(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    source, target = brokers
    name = new_topic_name()
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 2)
    for round_ in range(2):
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            for i in range(50):
                producer.send(name, b"%d-%d" % (round_, i), partition=i % 2)
        with running(configured(brokers, [name])):
            wait_for_records(target, f"A.{name}", records_of(source, name))


def test_what_was_aborted_in_the_source_is_left_out(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    source, target = brokers
    name = new_topic_name()
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 1)
    with Producer(bootstrap_servers=source.bootstrap_servers, transactional_id=name) as producer:
        for i in range(10):
            producer.begin_transaction()
            producer.send(name, b"%d" % i)
            producer.commit_transaction() if i % 2 else producer.abort_transaction()
    with running(configured(brokers, [name])) as mirror:
        wait_for_records(target, f"A.{name}", records_of(source, name))
        # The mirror comes to the very end, over the markers.
        until(lambda: any(lane.counts.lag.get(TopicPartition(name, 0)) == 0 for lane in mirror.lanes.values()))


def test_groups_heartbeats_and_the_topics_of_mirror_maker_arrive(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    group = f"{name}-group"
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Admin(bootstrap_servers=target.bootstrap_servers) as there,
    ):
        admin.create_topic(name, 1)
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            for i in range(100):
                producer.send(name, b"%d" % i, partition=0)
        admin.alter_group_offsets(group, {TopicPartition(name, 0): 60}).results()
        at = TopicPartition(f"A.{name}", 0)

        def committed() -> int | None:
            found = there.list_group_offsets(group, [at])[at]
            return None if found.error is not None or found.value is None else found.value.offset

        config = configured(brokers, [name], groups=[group], group_interval_ms=100, heartbeat_interval_ms=100)
        with running(config):
            until(lambda: committed() == 60)
            admin.alter_group_offsets(group, {TopicPartition(name, 0): 30}).results()  # back: not in the target
            until(lambda: any(c.upstream == 30 for c in _decoded(target, "A.checkpoints.internal", Checkpoint)))
            assert committed() == 60
            until(lambda: any(b.source == "A" for b in _decoded(target, "A.heartbeats", Heartbeat)))
        assert Checkpoint(group, f"A.{name}", 0, 60, 60) in _decoded(target, "A.checkpoints.internal", Checkpoint)
        assert OffsetSync(name, 0, 0, 0) in _decoded(source, "mm2-offset-syncs.B.internal", OffsetSync)


def _decoded(broker: Broker, topic: str, kind: Any) -> list[Any]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        if topic not in admin.list_topics(include_internal=True):
            return []
    return [kind.decode(key, value) for _, _, key, value, _ in records_of(broker, topic)]


def test_of_two_mirrors_towards_each_other_one_is_refused(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    source, target = brokers
    name = new_topic_name()
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 1)
    with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
        producer.send(name, b"once")
    with running(configured(brokers, [name], names="identity")):
        wait_for_records(target, name, records_of(source, name))
    survey = Survey(configured((target, source), [name], alias="C", names="identity"))
    try:
        survey.prepare()
        assert "go round for ever" in survey.look().refused[name]
    finally:
        survey.close()


def test_a_topic_that_is_made_anew_stops_or_is_gone_on_with(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        for text in (b"old", b"new"):
            admin.create_topic(name, 1)
            with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
                producer.send(name, text)
            if text == b"new":
                break
            with running(configured(brokers, [name])):
                wait_for_records(target, f"A.{name}", records_of(source, name))
            admin.delete_topic(name)
        with running(configured(brokers, [name])) as mirror:
            until(lambda: any(lane.failed for lane in mirror.lanes.values()))
            ((tp, failure),) = [item for lane in mirror.lanes.values() for item in lane.failed.items()]
            assert tp == TopicPartition(name, 0) and "made anew" in failure.reason and "on_gap" in failure.reason
        with running(configured(brokers, [name], on_gap="continue")):
            until(lambda: [r[3] for r in records_of(target, f"A.{name}")] == [b"old", b"new"])
        # Records that are deleted before they are copied are such a gap too.
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            for i in range(4):
                producer.send(name, b"%d" % i)
        admin.delete_records({TopicPartition(name, 0): 3}).results()
        with running(configured(brokers, [name], on_gap="continue")):
            until(lambda: [r[3] for r in records_of(target, f"A.{name}")] == [b"old", b"new", b"2", b"3"])
    progress = read_state(configured(brokers, [name]).target, "fastq-mirror.A.internal", [0, 1]).progress
    assert progress[TopicPartition(name, 0)].gap == (1, 3)


class Shell:
    """`fastq mirror` with one configuration, in this process."""

    def __init__(self, path: Path, capfd: pytest.CaptureFixture[str], text: str) -> None:
        self._path, self._capfd = path / "mirror.toml", capfd
        self._path.write_text(text)

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capfd.readouterr()
        found = main(["mirror", *arguments, "--config", str(self._path)])
        out, self.err = self._capfd.readouterr()
        assert found == code, self.err + out
        return out


def test_status_check_fail_over_and_fail_back(
    brokers: tuple[Broker, Broker], new_topic_name: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = brokers
    name, group = new_topic_name(), "readers"
    config = configured(brokers, [name], alias="east", names="identity", group_interval_ms=0, heartbeat_interval_ms=50)
    fastq = Shell(
        tmp_path,
        capfd,
        f"""
        source = {{ alias = "east", bootstrap.servers = "{source.bootstrap_servers}" }}
        target = {{ alias = "B", bootstrap.servers = "{target.bootstrap_servers}" }}
        mirror = {{ topics = ["{name}"], names = "identity", lanes = 2, refresh_interval_ms = 200 }}
        """,
    )
    assert fastq("status", code=2) == "" and "no mirror from east has run there" in fastq.err
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Admin(bootstrap_servers=target.bootstrap_servers) as there,
    ):
        admin.create_topic(name, 2)
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send_many(name, [b"%d" % i for i in range(100)], partition=0)
        with running(config):
            wait_for_records(target, name, records_of(source, name))
            until(lambda: bool(_decoded(target, "east.heartbeats", Heartbeat)))
        rows = json.loads(fastq("status", "--interval", "0", "--json"))
        assert [(r["partition"], r["next"], r["lag"], r["state"]) for r in rows if r["topic"] == name] == [
            (0, 100, 0, "mirrored"), (1, 0, 0, "mirrored"),
        ]  # fmt: skip
        assert f'{{source="east",target="B",topic="{name}",partition="0"}} 100' in fastq(
            "status", "--interval", "0", "--prometheus"
        )
        assert "source and target are the same" in fastq("check", "--topic", name)
        # What the source takes on, and nobody copies any more.
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(name, b"left behind", partition=1)
        assert [r["lag"] for r in json.loads(fastq("status", "--json", "--interval", "0")) if r["topic"] == name] == [
            0,
            1,
        ]
        admin.alter_group_offsets(group, {TopicPartition(name, 0): 70}).results()
        assert "was not failed over" in fastq("fail-back", code=2) + fastq.err
        told = fastq("fail-over")
        assert f"{name}-1: 1 offset of east from 0 on is not in B" in told and "1 offset of groups" in told
        assert there.list_group_offsets(group, [TopicPartition(name, 0)])[TopicPartition(name, 0)].result().offset == 70
        fastq("fail-over")
        assert "was failed over" in fastq(code=1) + fastq.err
        with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
            producer.send(name, b"new", partition=0)
        assert "copies B to east" in fastq("fail-back") and f"{name}-1: offsets 0 to 0 of east" in fastq.err
        with running(reversed_config(config)):
            until(lambda: len(records_of(source, name)) == 102)
        assert [r[3] for r in records_of(source, name)[-2:]] == [b"new", b"left behind"]
        # And back again: the first way goes on behind all that.
        fastq("fail-over", "--reverse")
        fastq("fail-back", "--reverse")
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(name, b"newer", partition=0)
        with running(config):
            until(lambda: [r[3] for r in records_of(target, name)][-2:] == [b"new", b"newer"])
        # A difference is named.
        with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
            producer.send(name, b"somebody else's", partition=0)
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(name, b"the mirror's", partition=0)
        with running(config):
            until(lambda: records_of(target, name)[-1][3] == b"the mirror's")
        assert 'value is b"the mirror\'s" in the source' in fastq("check", code=1)
