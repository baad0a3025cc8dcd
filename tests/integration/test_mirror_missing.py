"""What a fail-over says that the target has not: never "all", where the target lacks a partition or the source does not tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mirrors import configured, cut_off, made, running, sent, values_of
from waiting import until

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.admin import OffsetSpec
from fastq.cli import main
from fastq.errors import RequestTimedOut
from fastq.mirror.config import MirrorConfig, load_config
from fastq.mirror.failover import fail_back, fail_over, reversed_config
from fastq.mirror.names import state_topic
from fastq.mirror.state import read_state
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each

FILE = """
source = {{ alias = "{alias}", bootstrap.servers = "{source}" }}
target = {{ alias = "west", bootstrap.servers = "{target}" }}
mirror = {{ topics = ["{name}.*"], names = "{names}", offsets = "{offsets}", lanes = 2, refresh_interval_ms = 200, {more} }}
"""


@pytest.fixture
def brokers() -> Iterator[tuple[Broker, Broker]]:
    """Of each test its own: a mirror the other way remembers what its target is called."""
    soon = {"group.initial.rebalance.delay.ms": 0}
    with Broker(in_memory=True, config=soon) as source, Broker(in_memory=True, config=soon) as target:
        yield source, target


@pytest.fixture(params=["translated", "same"])
def offsets(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(
    path: Path, brokers: tuple[Broker, Broker], name: str, offsets: str, names: str = "identity"
) -> tuple[str, MirrorConfig]:
    """The file of a mirror of all topics that begin with this name, and what it says."""
    file, (source, target) = path / "mirror.toml", brokers
    sides = {"source": source.bootstrap_servers, "target": target.bootstrap_servers}
    more = "heartbeat_interval_ms = 0"
    alias = f"east-{name[-20:].strip('-')}"
    file.write_text(FILE.format(alias=alias, name=name, names=names, offsets=offsets, more=more, **sides))
    return str(file), load_config(file)


@contextmanager
def open_transaction(broker: Broker, name: str) -> Iterator[Producer[Any, Any]]:
    """One that has written a record to partition 0, and goes on."""
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"open", partition=0)
        producer.flush()
        yield producer
        producer.abort_transaction()


def test_partitions_that_the_target_never_got_are_missing(
    brokers: tuple[Broker, Broker],
    new_topic_name: Any,
    tmp_path: Path,
    offsets: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of topics and of partitions that came after the last look: all of the source was in the target."""
    source, target = brokers
    name = new_topic_name()
    path, config = written(tmp_path, brokers, name, offsets)
    made(source, name, b"x")
    with running(config):
        until(lambda: values_of(target, name) == [b"x"])
    made(source, f"{name}-new", b"1", b"2")
    made(source, f"{name}-empty")
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_partitions({name: 2})
    with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
        producer.send(name, b"y", partition=1).result()
    assert main(["mirror", "fail-over", "--config", path]) == 0
    told, alias = capsys.readouterr(), config.source.alias
    assert f"{name}-new-0: 2 offsets of {alias} from 0 on are not in west: west has no such partition\n" in told.out
    assert f"{name}-1: 1 offset of {alias} from 0 on is not in west: west has no such partition\n" in told.out
    assert f"{name}-empty-0: west has no such partition; it is empty in {alias}" in told.err
    assert "all that" not in told.out and f"fastq consume {name} --partition 1 --offset 0\n" in told.err
    found = fail_over(config)  # once more, as after a kill
    assert found.missing == {
        TopicPartition(name, 0): 0,
        TopicPartition(name, 1): 1,
        TopicPartition(f"{name}-new", 0): 2,
        TopicPartition(f"{name}-empty", 0): 0,
    }


def test_all_is_in_the_target_where_it_is(
    brokers: tuple[Broker, Broker],
    new_topic_name: Any,
    tmp_path: Path,
    offsets: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = new_topic_name()
    path, config = written(tmp_path, brokers, name, offsets)
    made(brokers[0], name, b"x")
    with running(config):
        until(lambda: values_of(brokers[1], name) == [b"x"])
    assert main(["mirror", "fail-over", "--config", path]) == 0
    told = capsys.readouterr()
    assert f"all that {config.source.alias} has is in west" in told.out and "not" not in told.out + told.err


def test_a_source_that_does_not_tell_of_its_groups_tells_what_is_missing(
    brokers: tuple[Broker, Broker],
    new_topic_name: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one of whose nodes does not answer: it was taken for one that is gone."""
    name = new_topic_name()
    _, config = written(tmp_path, brokers, name, "translated")
    made(brokers[0], name, b"x")
    with running(config):
        until(lambda: values_of(brokers[1], name) == [b"x"])
    sent(brokers[0], name, b"y")

    def list_groups(_: Admin) -> Any:
        raise RequestTimedOut("a node does not answer")

    monkeypatch.setattr(Admin, "list_groups", list_groups)
    found = fail_over(config)
    assert (found.missing, found.groups) == ({TopicPartition(name, 0): 1}, 0)
    assert "offsets of groups stay as they were last seen: a node does not answer" in caplog.text


@pytest.mark.parametrize("alone", [False, True])
def test_a_partition_that_the_source_does_not_tell_of_is_not_known(
    brokers: tuple[Broker, Broker],
    new_topic_name: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    alone: bool,
) -> None:
    """It was a warning, and "all" was said of the others; where it was the only one, that the source does not answer."""
    name = new_topic_name()
    path, config = written(tmp_path, brokers, name, "translated", "prefixed")
    made(brokers[0], name, b"x", partitions=1 if alone else 2)
    with running(config):
        until(lambda: values_of(brokers[1], f"{config.source.alias}.{name}") == [b"x"])
    offline, asked = TopicPartition(name, 0), Consumer.beginning_offsets

    def beginning_offsets(consumer: Any, partitions: Any, timeout: float | None = None) -> Any:
        wanted = list(partitions)
        if offline in wanted:
            raise RequestTimedOut("it has no leader")
        return asked(consumer, wanted, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "beginning_offsets", beginning_offsets)
        assert main(["mirror", "fail-over", "--config", path]) == 0
    told, alias = capsys.readouterr(), config.source.alias
    assert f"{name}-0: what of {alias} from 1 on is not in west is not known: it has no leader" in told.out
    assert "all that" not in told.out and "does not answer" not in told.out
    assert f"fastq mirror fail-over --config {path} once more" in told.err
    assert main(["mirror", "fail-over", "--config", path]) == 0  # which says how it was
    assert f"all that {alias} has is in west" in capsys.readouterr().out


def test_what_lies_behind_an_open_transaction_of_the_source_is_missing(
    brokers: tuple[Broker, Broker],
    new_topic_name: Any,
    tmp_path: Path,
    offsets: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was acknowledged, and counted up to the transaction alone."""
    source, target = brokers
    name = new_topic_name()
    path, config = written(tmp_path, brokers, name, offsets)
    made(source, name, b"x")
    with open_transaction(source, name):
        with running(config):
            until(lambda: values_of(target, name) == [b"x"])
        sent(source, name, b"1", b"2", b"3")
        assert main(["mirror", "fail-over", "--config", path]) == 0
        told, alias, tp = capsys.readouterr(), config.source.alias, TopicPartition(name, 0)
        found = fail_over(config)
        first, count = (1, 4) if offsets == "translated" else (2, 3)
        assert f"{tp}: {count} offsets of {alias} from {first} on are not in west" in told.out
        held = f": a transaction is open in {alias} at offset 1, and nothing behind it is copied before it ends\n"
        assert (held in told.out) == (offsets == "translated") and "all that" not in told.out
        assert found.missing == {tp: count}
        if offsets == "translated":
            assert fail_back(config).diverged == {tp: (1, 5)}


def test_a_fail_back_names_what_the_target_never_got(
    brokers: tuple[Broker, Broker],
    new_topic_name: Any,
    tmp_path: Path,
    offsets: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It named what came behind what was copied, and no partition of which nothing was."""
    source, target = brokers
    name = new_topic_name()
    path, config = written(tmp_path, brokers, name, offsets)
    made(source, name, b"x")
    with running(config):
        until(lambda: values_of(target, name) == [b"x"])
    made(source, f"{name}-new", b"1", b"2")
    made(source, f"{name}-empty")
    fail_over(config)
    assert main(["mirror", "fail-back", "--config", path]) == 0
    told, alias = capsys.readouterr().err, config.source.alias
    words = f"{name}-new-0: offsets 0 to 1 of {alias} were never copied to west; they stay in {alias}\n"
    assert words in told and told.count("never copied") == 1
    with running(reversed_config(config)):
        sent(target, name, b"y")
        until(lambda: values_of(source, name) == [b"x", b"y"])
    assert values_of(source, f"{name}-new") == [b"1", b"2"]


@pytest.mark.parametrize("is_committed", [False, True], ids=["open", "committed"])
def test_what_a_fail_over_aborts_is_told(
    brokers: tuple[Broker, Broker],
    new_topic_name: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_committed: bool,
) -> None:
    """Of a transaction that is in the target but for its end, nobody reads anything there: one offset was missing at most."""
    source, target = brokers
    name = new_topic_name()
    path, config = written(tmp_path, brokers, name, "same")
    made(source, name, b"x")
    tp = TopicPartition(name, 0)
    with open_transaction(source, name) as producer:
        with running(config):
            until(lambda: end_in(target, tp) == 2)
        if is_committed:
            producer.commit_transaction()
            producer.begin_transaction()
        assert main(["mirror", "fail-over", "--config", path]) == 0
    told = capsys.readouterr().out
    assert f"{tp}: a transaction that had not ended in west is aborted there, from offset 1 on\n" in told
    assert "all that" not in told and ("1 offset of " in told) == is_committed
    assert values_of(target, name) == [b"x"]


def end_in(broker: Broker, tp: TopicPartition) -> int:
    """Its high watermark; 0 where there is no such topic."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        if tp.topic not in admin.list_topics():
            return 0
        return admin.list_offsets({tp: OffsetSpec.LATEST})[tp].result().offset


def test_what_is_copied_behind_a_transaction_that_is_open_in_the_target_is_not_copied_back(
    brokers: tuple[Broker, Broker], new_topic_name: Any, tmp_path: Path
) -> None:
    """Somebody else's: the end that was written down lay before it, and all behind it was in the former source twice."""
    source, target = brokers
    name = new_topic_name()
    _, config = written(tmp_path, brokers, name, "translated")
    made(source, name, b"1")
    with running(config):
        until(lambda: values_of(target, name) == [b"1"])
        with open_transaction(target, name):
            sent(source, name, b"2")
            lanes = [0, 1]
            until(
                lambda: (
                    read_state(config.target, state_topic(config.source.alias), lanes)
                    .progress[TopicPartition(name, 0)]
                    .next_offset
                    == 2
                )
            )
            fail_over(config)
    fail_back(config)
    sent(target, name, b"3")
    with running(reversed_config(config)):
        until(lambda: b"3" in values_of(source, name))
    assert values_of(source, name) == [b"1", b"2", b"3"]


def test_what_was_deleted_and_made_anew_on_either_side_is_missing(
    brokers: tuple[Broker, Broker], new_topic_name: Any, tmp_path: Path, offsets: str
) -> None:
    """What was copied of another topic, or to another one, says nothing of this one."""
    source, target = brokers
    name = new_topic_name()
    _, config = written(tmp_path, brokers, name, offsets)
    here, there, gone = (f"{name}-{end}" for end in ("here", "there", "gone"))
    for topic in (here, there, gone):
        made(source, topic, b"1", b"2", b"3")
    with running(config):
        for topic in (here, there, gone):
            until(lambda topic=topic: len(values_of(target, topic)) == 3)  # type: ignore[misc]
    for broker, topic in ((source, here), (target, there), (target, gone)):
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.delete_topic(topic)
            until(lambda admin=admin, topic=topic: topic not in admin.list_topics())  # type: ignore[misc]
    made(source, here, b"4", b"5")
    made(target, there, b"another's")
    found = fail_over(config)
    counts = {here: 2, there: 3, gone: 3}
    assert found.missing == {TopicPartition(topic, 0): count for topic, count in counts.items()}
    assert found.starts == dict.fromkeys(found.missing, 0)
    assert "anew in east" in found.reasons[TopicPartition(here, 0)]
    assert found.reasons[TopicPartition(gone, 0)] == "west has no such partition"


def test_what_a_source_has_lost_is_not_known(
    brokers: tuple[Broker, Broker], new_topic_name: Any, tmp_path: Path, offsets: str
) -> None:
    """It ends before what was copied, so nothing was missing; but it may have other records since."""
    source, target = brokers
    name = new_topic_name()
    _, config = written(tmp_path, brokers, name, offsets)
    made(source, name, b"1")
    sent(source, name, b"2", b"3")
    tp = TopicPartition(name, 0)
    with running(config):
        until(lambda: len(values_of(target, name)) == 3)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        cut_off(config, admin, tp, 1)
    found = fail_over(config)
    assert found.missing == {} and "ends at offset 1, and all before 3 was copied" in found.unknown[tp]


def test_what_came_from_the_target_by_another_mirror_is_not_missing_there(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    ours, theirs = new_topic_name(), new_topic_name()
    made(source, ours, b"x")
    made(target, theirs, b"y", b"z")
    settings = {"names": "identity", "heartbeat_interval_ms": 0}
    config = configured(brokers, [ours, theirs], alias="here", target_alias="there", **settings)
    back = configured((target, source), [theirs], alias="there", target_alias="here", **settings)
    with running(back):
        until(lambda: values_of(source, theirs) == [b"y", b"z"])
    with running(config):
        until(lambda: values_of(target, ours) == [b"x"])
    found = fail_over(config)
    assert found.missing == {TopicPartition(ours, 0): 0} and set(found.refused) == {theirs}
