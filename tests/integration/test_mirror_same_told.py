"""What status and check say of a mirror with the same offsets where not all is copied: that is neither mirrored nor the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mirrors import running
from same_mirrors import left_out, same, two_brokers, wait_for_same, written
from waiting import until

from fastq import Admin, Producer, TopicPartition
from fastq.cli import main
from fastq.mirror.report import status
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with two_brokers() as pair:
        yield pair


@pytest.mark.parametrize("on_gap", ["stop", "continue"])
def test_a_source_topic_that_was_made_anew_is_not_called_mirrored(
    brokers: tuple[Broker, Broker], new_topic_name: Any, on_gap: str
) -> None:
    """With fewer records than before it looked as if all of it had been copied."""
    source, _ = brokers
    name = new_topic_name()
    config = same(brokers, name, on_gap=on_gap)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 1)
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            for value in (b"before", b"and more"):
                producer.send(name, value, partition=0).result()
        with running(config):
            wait_for_same(config, name)
        admin.delete_topics([name]).results()
        admin.create_topic(name, 1)
    with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
        producer.send(name, b"after", partition=0).result()
    found = status(config, 0.0)
    (part,) = [part for part in found.partitions if part.partition.topic == name]
    if on_gap == "stop":
        assert "deleted and made anew" in part.state
    else:
        assert (part.state, part.next_offset, part.lag) == ("refused", None, 1)
        assert "is not this mirror's" in found.refused[name]


def test_a_check_names_what_was_deleted_in_the_target(
    brokers: tuple[Broker, Broker], new_topic_name: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what is not there nothing is compared: source and target were the same."""
    source, target = brokers
    names = [new_topic_name() for _ in range(3)]
    config = same(brokers, "|".join(names))
    for name in names[:2]:
        with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topic(name, 2)
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(name, b"value", partition=0).result()
    path = written(config)
    with running(config):
        wait_for_same(config, names[0])
        wait_for_same(config, names[1])
    assert main(["mirror", "check", "--config", path]) == 0
    with Admin(bootstrap_servers=target.bootstrap_servers) as there:
        there.delete_topics([names[1]]).results()
        until(lambda: names[1] not in there.list_topics())
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(names[2], 2)
    capsys.readouterr()
    assert main(["mirror", "check", "--config", path]) == 1
    told = capsys.readouterr()
    assert f"not compared: {names[1]}-0: {config.source.alias} has records there or does not tell" in told.err
    assert "source and target are the same" not in told.out
    to_come = [tp for tp in status(config, 0.0).to_come if tp.topic in names]
    assert to_come == sorted(TopicPartition(n, p) for n in names[1:] for p in range(2))
    assert main(["mirror", "check", "--topic", names[0], "--config", path]) == 0


def test_without_copies_of_configs_a_topic_that_is_there_already_is_left_alone_too(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    """Whose topic it is was not asked for then: it got the partitions of the source's, and was new for ever."""
    name = new_topic_name()
    for broker, partitions in zip(brokers, (2, 1), strict=True):
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topic(name, partitions)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send(name, b"own", partition=0).result()
    config = same(brokers, name, copy_configs=False)
    with running(config) as mirror:
        until(lambda: any("it is not mirrored from 'A" in f.reason for f in left_out(mirror, TopicPartition(name, 0))))
    found = status(config, 0.0)
    assert [part.state for part in found.partitions if part.partition.topic == name] == ["refused"]
    with Admin(bootstrap_servers=brokers[1].bootstrap_servers) as there:
        assert len(there.describe_topic(name).partitions) == 1
