"""Fail-over and fail-back of a mirror with the same offsets that began in the middle: what one side alone has stays where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mirrors import running
from same_mirrors import same, two_brokers, values
from waiting import until

from fastq import Admin, Producer, TopicPartition
from fastq.admin import OffsetSpec
from fastq.cli import main
from fastq.mirror.comparison import compare_all
from fastq.mirror.config import MirrorConfig
from fastq.mirror.failover import fail_back, fail_over, reversed_config
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with two_brokers() as pair:
        yield pair


def begin_of(side: Any, topic: str) -> int:
    tp = TopicPartition(topic, 0)
    with Admin(side.common) as admin:
        return admin.list_offsets({tp: OffsetSpec.EARLIEST})[tp].result().offset


def put(side: Any, topic: str, value: bytes) -> None:
    with Producer(side.common) as producer:
        producer.send(topic, value, key=b"key", partition=0).result()


def begun_in_the_middle(brokers: tuple[Broker, Broker], name: str, **configs: str) -> MirrorConfig:
    """A mirror that was failed over, of a topic that had four records before it began, and has got one since."""
    config = same(brokers, name, start="latest", lanes=1)
    with Admin(config.source.common) as admin:
        admin.create_topic(name, 1, configs=configs)
    with Producer(config.source.common) as producer:
        for i in range(4):
            producer.send(name, b"before %d" % i, key=b"%d" % i, partition=0).result()
    with running(config) as mirror:
        until(lambda: any(lane.counts.lag for lane in list(mirror.lanes.values())))
        put(config.source, name, b"copied")
        until(lambda: values(config, "target", name, "read_committed") == [b"copied"])
        if configs:
            assert [(found.result, found.start) for found in compare_all(config, [])] == [("same", 4)]
    fail_over(config)
    return config


BEFORE = [b"before %d" % i for i in range(4)]


@pytest.mark.parametrize("configs", [{}, {"cleanup.policy": "compact"}], ids=["deleted", "compacted"])
def test_a_fail_back_deletes_nothing_that_was_there_before_the_mirror_began(
    brokers: tuple[Broker, Broker], new_topic_name: Any, capsys: Any, tmp_path: Any, configs: dict[str, str]
) -> None:
    name = new_topic_name()
    config = begun_in_the_middle(brokers, name, **configs)
    back = reversed_config(config)
    put(config.target, name, b"there")
    path = tmp_path / "mirror.toml"
    sides = [
        f'[{which}]\nalias = "{side.alias}"\nbootstrap.servers = "{side.common["bootstrap_servers"]}"\n'
        for which, side in (("source", config.source), ("target", config.target))
    ]
    options = f'topics = ["{name}"]\nnames = "identity"\noffsets = "same"\nstart = "latest"\nlanes = 1\n'
    path.write_text("".join(sides) + "[mirror]\nheartbeat_interval_ms = 0\n" + options)
    assert main(["mirror", "fail-back", "--config", str(path)]) == 0
    a, b = config.source.alias, config.target.alias
    told = f"{name}-0: offsets 0 to 3 of {a} are not in {b}; they stay in {a} until {b} begins behind offset 4\n"
    assert told in capsys.readouterr().err
    with running(back):
        until(lambda: values(config, "source", name, "read_committed")[-1] == b"there")
        assert [(found.result, found.start) for found in compare_all(back, [])] == [("same", 4)]
    fail_over(back)
    put(config.source, name, b"home")
    assert fail_back(back).diverged == {}, "the target has nothing that the source has not"
    with running(config):
        until(lambda: values(config, "target", name, "read_committed")[-1] == b"home")
    fail_over(config)
    put(config.target, name, b"there again")
    # Once more: the mirror began where its target does, and not where its source does.
    assert fail_back(config).diverged == {TopicPartition(name, 0): (0, 4)}
    with running(back):
        until(lambda: values(config, "source", name, "read_committed")[-1] == b"there again")
        since = [b"copied", b"there", b"home", b"there again"]
        assert values(config, "source", name, "read_committed") == BEFORE + since
        assert values(config, "target", name, "read_committed") == since
        if not configs:  # what the target deletes then goes in the source, with all that came before it
            with Admin(config.target.common) as admin:
                admin.delete_records({TopicPartition(name, 0): 5}).results()
            until(lambda: begin_of(config.source, name) == 5)
            assert values(config, "source", name, "read_committed") == since[1:]


def test_a_fail_back_follows_what_was_deleted_since_where_nothing_is_there_alone(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    name = new_topic_name()
    config = begun_in_the_middle(brokers, name)
    put(config.target, name, b"there")
    with Admin(config.source.common) as admin, Admin(config.target.common) as there:
        admin.delete_records({TopicPartition(name, 0): 4}).results()
        there.delete_records({TopicPartition(name, 0): 5}).results()
    assert fail_back(config).diverged == {}
    with running(reversed_config(config)):
        until(lambda: values(config, "source", name, "read_committed") == [b"there"])
