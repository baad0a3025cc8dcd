"""A mirror with the same offsets, between two brokers: batches lie in the target as they lie in the source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from mirrors import cut_off, running
from same_mirrors import ends_of, left_out, read, same, stable_end, two_brokers, values, wait_for_same, written
from waiting import until

from fastq import Admin, Producer, TopicPartition
from fastq._native.records import build_batch
from fastq.admin import CommittedOffset, ConfigResource, OffsetSpec
from fastq.cli import main
from fastq.errors import (
    ConfigError,
    ConnectionClosed,
    CorruptMessage,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    OffsetNotAvailable,
    OffsetOutOfRange,
    PolicyViolation,
    UnknownTopicId,
)
from fastq.mirror import target_writer
from fastq.mirror.config import Side
from fastq.mirror.failover import fail_over
from fastq.mirror.report import status
from fastq.mirror.same import MIRROR_SOURCE
from fastq.mirror.target_writer import CUT, Ask, TargetWriter, Told
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with two_brokers() as pair:
        yield pair


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_arrive_as_they_are(brokers: tuple[Broker, Broker], new_topic_name: Any, codec: str) -> None:
    source, target = brokers
    name = new_topic_name()
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 3, configs={"message.timestamp.type": "LogAppendTime", "segment.bytes": "1048576"})
    with Producer(bootstrap_servers=source.bootstrap_servers, compression_type=codec) as producer:
        for i in range(3000):
            producer.send(name, b"v%d" % i * 100, b"k%d" % i if i % 3 else None, partition=i % 3)
    config = same(brokers, name)
    with running(config) as mirror:
        wait_for_same(config, name, 3)
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(name, b"one more", partition=1)
        wait_for_same(config, name, 3)
        assert mirror.records == 3001
        there = target.bootstrap_servers
        with Producer(bootstrap_servers=there) as producer, pytest.raises(PolicyViolation, match="read-only until"):
            producer.send(name, b"not from here", partition=0).result()
        with Admin(bootstrap_servers=there) as admin:
            answers = admin.delete_records({TopicPartition(name, 0): 1})
            assert isinstance(answers[TopicPartition(name, 0)].error, PolicyViolation)
    with running(config) as mirror:  # a second start goes on where the first ended
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(name, b"after", partition=2)
        wait_for_same(config, name, 3)
        assert mirror.records == 1


def test_transactions_and_what_they_have_aborted_are_the_same(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, _ = brokers
    name = new_topic_name()
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 1)
    config = same(brokers, name)
    with running(config):
        with Producer(bootstrap_servers=source.bootstrap_servers, transactional_id=name) as producer:
            for i in range(10):
                producer.begin_transaction()
                producer.send(name, b"%d" % i)
                producer.commit_transaction() if i % 2 else producer.abort_transaction()
            wait_for_same(config, name)
            producer.begin_transaction()
            producer.send(name, b"open")
            producer.flush()
            wait_for_same(config, name)
            assert values(config, "target", name, "read_committed") == [b"1", b"3", b"5", b"7", b"9"]
            ends = [stable_end(config, side, name) for side in ("source", "target")]
            assert ends[0] == ends[1]
            producer.commit_transaction()
        wait_for_same(config, name)
        until(lambda: values(config, "target", name, "read_committed")[-1] == b"open")
        levels = ("read_committed", "read_uncommitted")
        assert [values(config, "target", name, level) for level in levels] == [
            values(config, "source", name, level) for level in levels
        ]


def test_gaps_of_compaction_stay(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    source, _ = brokers
    name = new_topic_name()
    compacted = {
        "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100", "min.compaction.lag.ms": "0",
    }  # fmt: skip
    config = same(brokers, name)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 1, configs=compacted)
        with Producer(bootstrap_servers=source.bootstrap_servers, linger_ms=0) as producer:
            for i in range(40):
                producer.send(name, b"%d" % i, b"k%d" % (i % 3), partition=0)
                producer.flush()

            def has_gaps() -> bool:
                producer.send(name, b"last", b"last", partition=0).result()
                records = sum(1 for _ in values(config, "source", name, "read_uncommitted"))
                return records < stable_end(config, "source", name) - 20

            until(has_gaps)
        admin.set_configs(ConfigResource.topic(name), {"min.cleanable.dirty.ratio": "1.0"})
    with running(config):
        until(lambda: stable_end(config, "target", name) == stable_end(config, "source", name))
        assert main(["mirror", "check", "--topic", name, "--config", written(config)]) == 0
    last = [{r.key: (r.offset, r.value) for r in read(config, side, name)} for side in ("source", "target")]
    assert last[0] == last[1]


def test_the_logs_start_follows_the_sources(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    source, target = brokers
    name = new_topic_name()
    tp = TopicPartition(name, 0)
    config = same(brokers, name)
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Admin(bootstrap_servers=target.bootstrap_servers) as there,
    ):
        admin.create_topic(name, 1, configs={"retention.ms": "1", "segment.ms": "1"})
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            for i in range(10):
                producer.send(name, b"%d" % i, partition=0).result()
        admin.delete_records({tp: 4}).results()

        def begin(side: Admin) -> int:
            return side.list_offsets({tp: OffsetSpec.EARLIEST})[tp].result().offset

        with running(config):
            until(lambda: name in there.list_topics() and begin(there) >= 4)
            until(lambda: ends_of(config, name) == 10)  # what is deleted before it was copied stops the mirror
            admin.delete_records({tp: 7}).results()
            until(lambda: begin(there) >= 7)
            assert stable_end(config, "target", name) == 10


def test_groups_have_the_same_numbers(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    source, target = brokers
    name = new_topic_name()
    tp = TopicPartition(name, 0)
    config = same(brokers, name, groups=[name], group_interval_ms=100)
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Admin(bootstrap_servers=target.bootstrap_servers) as there,
    ):
        admin.create_topic(name, 1)
        with Producer(bootstrap_servers=source.bootstrap_servers, transactional_id=name) as producer:
            for _ in range(5):  # with markers between: offsets that no record has
                with producer.transaction():
                    producer.send(name, b"v")
        admin.alter_group_offsets(name, {tp: CommittedOffset(7, "a word")}).results()

        def committed() -> Any:
            found = there.list_group_offsets(name, [tp])[tp]
            return (
                None if found.error is not None or found.value is None else (found.value.offset, found.value.metadata)
            )

        with running(config):
            until(lambda: committed() == (7, "a word"))
            admin.alter_group_offsets(name, {tp: 100}).results()  # nothing is there yet
            until(lambda: committed() == (10, ""))


def test_with_start_latest_a_topic_that_is_deleted_in_the_target_is_copied_from_where_it_was_begun(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    tp = TopicPartition(name, 0)
    config = same(brokers, name, start="latest")
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Admin(bootstrap_servers=target.bootstrap_servers) as there,
        Producer(bootstrap_servers=source.bootstrap_servers) as producer,
    ):
        admin.create_topic(name, 1)
        producer.send(name, b"before", partition=0).result()
        with running(config) as mirror:
            until(lambda: any(tp in lane.counts.lag for lane in list(mirror.lanes.values())))
            producer.send(name, b"first", partition=0).result()
            until(lambda: ends_of(config, name) == 2)
        there.delete_topics([name]).results()
        producer.send(name, b"meanwhile", partition=0).result()
        with running(config):
            until(lambda: name in there.list_topics() and ends_of(config, name) == 3)
        assert [(r.offset, r.value) for r in read(config, "target", name)] == [(1, b"first"), (2, b"meanwhile")]


def test_with_start_latest_a_partition_begins_where_it_was_found_first_though_nothing_was_copied(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    """What was produced while the mirror was off was left out, and called the same by a check."""
    source, _ = brokers
    name = new_topic_name()
    tp = TopicPartition(name, 0)
    config = same(brokers, name, start="latest")
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Producer(bootstrap_servers=source.bootstrap_servers) as producer,
    ):
        admin.create_topic(name, 1)
        producer.send(name, b"before", partition=0).result()
        with running(config) as mirror:
            until(lambda: any(tp in lane.counts.lag for lane in list(mirror.lanes.values())))
        producer.send(name, b"meanwhile", partition=0).result()
        with running(config) as mirror:
            until(lambda: any(tp in lane.counts.lag for lane in list(mirror.lanes.values())))
            producer.send(name, b"after", partition=0).result()
            until(lambda: ends_of(config, name) == 3)
        assert [(r.offset, r.value) for r in read(config, "target", name)] == [(1, b"meanwhile"), (2, b"after")]


def test_a_source_that_has_lost_records_stops_the_partition_or_cuts_the_target(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, _ = brokers
    name = new_topic_name()
    tp = TopicPartition(name, 0)
    config = same(brokers, name)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 1)
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            for i in range(8):
                producer.send(name, b"%d" % i, partition=0).result()
        with running(config):
            wait_for_same(config, name)
        cut_off(config, admin, tp, 5)
        with running(config) as mirror:
            until(lambda: any("lost what it had from offset 5" in f.reason for f in left_out(mirror, tp)))
            assert stable_end(config, "target", name) == 8
        going_on = same(brokers, name, int(config.source.alias[1:]), on_gap="continue")
        (part,) = [part for part in status(going_on, 0.0).partitions if part.partition == tp]
        assert part.state.startswith("stopped: the source ends at offset 5"), "until the target is cut off"
        with running(going_on):
            wait_for_same(config, name)
            with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
                producer.send(name, b"another", partition=0).result()
            wait_for_same(config, name)


@pytest.mark.parametrize("since", [30, 7, 4])
def test_other_records_at_the_same_offsets_and_in_the_same_epoch_are_noticed(
    brokers: tuple[Broker, Broker], new_topic_name: Any, since: int
) -> None:
    """As of a node that stands alone, has lost power, and went on, `since` then with fewer records than it has lost too: nobody elected
    anybody."""
    source, _ = brokers
    name = new_topic_name()
    tp = TopicPartition(name, 0)
    config = same(brokers, name)
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Producer(bootstrap_servers=source.bootstrap_servers, enable_idempotence=False) as producer,
    ):
        admin.create_topic(name, 1)
        for i in range(20):
            producer.send(name, b"%d" % i, partition=0).result()
        with running(config):
            wait_for_same(config, name)
        cut_off(config, admin, tp, 13)
        for i in range(since):
            producer.send(name, b"another %d" % i, partition=0).result()
    with running(config) as mirror:
        until(lambda: any("lost what it had from offset 13" in f.reason for f in left_out(mirror, tp)))
    with running(same(brokers, name, int(config.source.alias[1:]), on_gap="continue")):
        wait_for_same(config, name)


def test_a_target_that_is_no_fastq_broker_is_refused(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    config = same(brokers, new_topic_name())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fastq.net.connection.SOFTWARE_NAME", "another")
        with pytest.raises(ConfigError, match="needs a fastq broker as the target, and B"), running(config):
            pass


def test_a_topic_that_is_there_already_is_left_alone(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    source, target = brokers
    name = new_topic_name()
    for broker in (source, target):
        with (
            Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
            Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
        ):
            admin.create_topic(name, 1)
            producer.send(name, b"own", partition=0).result()
    config = same(brokers, name)
    with running(config) as mirror:
        until(lambda: any("it is not mirrored from 'A" in f.reason for f in left_out(mirror, TopicPartition(name, 0))))
    assert values(config, "target", name, "read_uncommitted") == [b"own"]
    found = status(config, 0.0)
    assert [part.state for part in found.partitions if part.partition.topic == name] == ["refused"]
    assert f"the topic {name} in {config.target.alias} is not this mirror's" in found.refused[name]


def test_what_changes_a_mirrored_topic_is_refused_and_its_partitions_follow_the_sources(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    tp = TopicPartition(name, 0)
    config = same(brokers, name)
    with (
        Admin(bootstrap_servers=source.bootstrap_servers) as admin,
        Admin(bootstrap_servers=target.bootstrap_servers) as there,
        Producer(bootstrap_servers=source.bootstrap_servers) as producer,
        Producer(bootstrap_servers=target.bootstrap_servers) as other,
        Producer(bootstrap_servers=target.bootstrap_servers, transactional_id=name) as transactional,
    ):
        admin.create_topic(name, 1)
        producer.send(name, b"one", partition=0).result()
        with running(config):
            wait_for_same(config, name)
            with pytest.raises(PolicyViolation, match="mirrored from another cluster"):
                there.create_partitions({name: 2}).results()
            with pytest.raises(PolicyViolation):
                there.delete_records({tp: 1}).results()
            with pytest.raises(PolicyViolation):
                other.send(name, b"mine", partition=0).result()
            transactional.begin_transaction()
            with pytest.raises(PolicyViolation):
                transactional.send(name, b"mine", partition=0).result()
            transactional.abort_transaction()
            admin.create_partitions({name: 2}).results()
            until(lambda: len(there.describe_topic(name).partitions) == 2)
            producer.send(name, b"two", partition=1).result()
            wait_for_same(config, name, 2)
        fail_over(config)
        there.create_partitions({name: 3}).results()
        there.delete_records({tp: 1}).results()


def test_an_append_is_refused_with_the_words_for_it(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    _, target = brokers
    name = new_topic_name()
    config = same(brokers, name)
    tp = TopicPartition(name, 0)
    batch = memoryview(build_batch([(1, None, b"v")]))
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin, closing(TargetWriter(config.target)) as writer:
        with pytest.raises(InvalidConfig, match="ALIAS/CLUSTER ID/TOPIC ID"):
            admin.create_topic(name, 1, configs={MIRROR_SOURCE: "somewhere"})
        admin.create_topic(name, 1, configs={MIRROR_SOURCE: "A/c/t"})
        ask = Ask(admin.describe_topic(name).topic_id, "A/c/t", 0, -1, batch)
        told = writer.ask({tp: ask})[tp]
        assert (told.log_start, told.log_end, told.high_watermark, told.error) == (0, 1, 1, None)
        for changed, kind, words in (
            (ask, OffsetOutOfRange, "the log ends at offset 1, and 0 was taken for its end"),
            (ask._replace(offset=1), InvalidRecord, "does not follow the log's end 1"),
            (ask._replace(offset=1, records=batch[:-1]), CorruptMessage, ""),
            (ask._replace(source="A/c/u"), PolicyViolation, "it is not mirrored from 'A/c/u'"),
            (ask._replace(source=""), PolicyViolation, "it is not mirrored from ''"),
            (ask._replace(operation=7), InvalidRequest, "operation 7 is none of"),
            (ask._replace(operation=CUT, offset=-1), OffsetOutOfRange, "delete the topic here, and its"),
            (ask._replace(topic_id=bytes(15) + b"x"), UnknownTopicId, ""),
        ):
            told = writer.ask({tp: changed})[tp]
            assert isinstance(told.error, kind), changed
            assert words in str(told.error)
            assert str(told.error).count(told.error.name) == 1, "said once"  # type: ignore[union-attr]
            assert told.log_end == (-1 if kind is UnknownTopicId else 1)


def test_appends_are_divided_and_one_that_is_too_large_names_the_limit(
    monkeypatch: pytest.MonkeyPatch, new_topic_name: Any
) -> None:
    name = new_topic_name()
    monkeypatch.setattr(target_writer, "CALL_S", 1.0)
    monkeypatch.setattr(target_writer, "REQUEST_BYTES_MAX", 1_200_000)
    with Broker(in_memory=True, config={"socket.request.max.bytes": 1_500_000}) as target:
        side = Side("B", {"bootstrap_servers": target.bootstrap_servers}, {}, {})
        with Admin(bootstrap_servers=target.bootstrap_servers) as admin, closing(TargetWriter(side)) as writer:
            configs = {MIRROR_SOURCE: "A/c/t", "max.message.bytes": "3000000"}
            topic_id = admin.create_topic(name, 6, configs=configs).topic_id

            def asked(size: int, offset: int, *partitions: int) -> dict[TopicPartition, Told]:
                batch = memoryview(build_batch([(1, None, bytes(size))], base_offset=offset))
                return writer.ask(
                    {TopicPartition(name, n): Ask(topic_id, "A/c/t", offset, -1, batch) for n in partitions}
                )

            told = asked(500_000, 0, *range(6))
            assert [(tp.partition, at.log_end, at.error) for tp, at in told.items()] == [(n, 1, None) for n in range(6)]
            with pytest.raises(
                ConnectionClosed, match=r"2000\d\d\d bytes of records, .* above its socket.request.max.bytes"
            ):
                asked(2_000_000, 1, 0)
            assert asked(1000, 1, 0)[TopicPartition(name, 0)].log_end == 2, "and it goes on"


def test_status_and_check_tell_how_far_it_is(
    brokers: tuple[Broker, Broker], new_topic_name: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source, _ = brokers
    name = new_topic_name()
    config = same(brokers, name)
    path = written(config)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 1)
    with Producer(bootstrap_servers=source.bootstrap_servers, transactional_id=name) as producer:
        with producer.transaction():
            producer.send(name, b"committed", partition=0)
        producer.begin_transaction()
        producer.send(name, b"open", partition=0)
        producer.flush()
        with running(config):
            wait_for_same(config, name)
        producer.send(name, b"not there yet", partition=0)
        producer.flush()
        assert main(["mirror", "status", "--interval", "0.01", "--json", "--config", path]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert (found["next"], found["end"], found["lag"], found["state"]) == (3, 4, 1, "mirrored")
        assert main(["mirror", "check", "--config", path]) == 0
        assert "2 " in capsys.readouterr().out
        producer.abort_transaction()


def test_a_source_topic_that_was_made_anew_is_refused_until_the_targets_is_deleted(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    tp = TopicPartition(name, 0)
    config = same(brokers, name)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            admin.create_topic(name, 1)
            producer.send(name, b"before", partition=0).result()
            with running(config):
                wait_for_same(config, name)
        admin.delete_topics([name]).results()
        admin.create_topic(name, 1)
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(name, b"after", partition=0).result()
            producer.send(name, b"after that", partition=0).result()
    with running(config) as mirror, Admin(bootstrap_servers=target.bootstrap_servers) as there:
        until(lambda: any("made anew. Delete it in the target" in f.reason for f in left_out(mirror, tp)))
        assert values(config, "target", name, "read_uncommitted") == [b"before"]
        there.delete_topics([name]).results()
        wait_for_same(config, name)


def test_nobody_mirrors_a_coordinators_topic(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    _, target = brokers
    config, group, name = same(brokers, "none"), new_topic_name(), "__consumer_offsets"
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin, closing(TargetWriter(config.target)) as writer:
        admin.create_topic(group, 1)
        admin.alter_group_offsets(group, {TopicPartition(group, 0): 1}).results()
        admin.set_configs(ConfigResource.topic(name), {MIRROR_SOURCE: "A/c/t"})
        tp = TopicPartition(name, 0)
        told = writer.ask({tp: Ask(admin.describe_topic(name).topic_id, "A/c/t")})[tp]
        assert isinstance(told.error, PolicyViolation)
        admin.alter_group_offsets(group, {TopicPartition(group, 0): 2}).results()
        admin.set_configs(ConfigResource.topic(name), {MIRROR_SOURCE: None})


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_whose_end_the_source_has_deleted_holds_nobody_up(
    brokers: tuple[Broker, Broker], new_topic_name: Any, goes_on: bool
) -> None:
    source, name = brokers[0].bootstrap_servers, new_topic_name()
    config, tp = same(brokers, name, on_gap="continue"), TopicPartition(name, 0)
    with (
        Admin(bootstrap_servers=source) as admin,
        Producer(bootstrap_servers=source, transactional_id=name) as producer,
        Producer(bootstrap_servers=source) as other,
    ):
        admin.create_topic(name, 1)
        producer.begin_transaction()
        producer.send(name, b"open")
        producer.flush()
        with running(config):
            wait_for_same(config, name)
        if goes_on:
            producer.send(name, b"more")
            producer.flush()
        else:
            producer.commit_transaction()
        other.send(name, b"gone").result()
        admin.delete_records({tp: 3}).results()
        other.send(name, b"there").result()
        with running(config):
            until(lambda: values(config, "target", name, "read_uncommitted") == [b"there"])
            if goes_on:
                producer.send(name, b"last")
                producer.abort_transaction()
                wait_for_same(config, name)
            until(lambda: stable_end(config, "source", name) == stable_end(config, "target", name))
        for level in ("read_committed", "read_uncommitted"):
            assert values(config, "target", name, level) == values(config, "source", name, level)


@pytest.mark.slow
def test_a_gap_is_passed_over_by_all_nodes_of_a_cluster(new_topic_name: Any) -> None:
    name, quick = new_topic_name(), {"group.initial.rebalance.delay.ms": 0}
    with Broker(config=quick, in_memory=True) as source, Cluster(3, config=quick) as target:
        config, servers = same((source, target), name, on_gap="continue"), source.bootstrap_servers  # type: ignore[arg-type]
        with (
            Admin(bootstrap_servers=servers) as admin,
            Producer(bootstrap_servers=servers, transactional_id=name) as producer,
            Producer(bootstrap_servers=servers) as other,
        ):
            admin.create_topic(name, 1)
            producer.begin_transaction()
            producer.send(name, b"open")
            producer.flush()
            with running(config):
                wait_for_same(config, name)
            producer.commit_transaction()
            other.send(name, b"gone").result()
            admin.delete_records({TopicPartition(name, 0): 3}).results()
            other.send(name, b"there").result()
            with running(config):
                until(lambda: values(config, "target", name, "read_committed") == [b"there"])
                other.send(name, b"more").result()  # with which followers hear at the latest where the log begins
                until(lambda: values(config, "target", name, "read_committed") == [b"there", b"more"])

        def told() -> bool:
            with suppress(OffsetNotAvailable):  # of a leader that has just begun
                return stable_end(config, "target", name) == 5
            return False

        for _ in range(2):
            target.change_leader(name, 0)
            until(told)
            assert values(config, "target", name, "read_committed") == [b"there", b"more"]
