"""Which topics a client keeps in its metadata: those that somebody needs. A deleted one is not asked for without an end, or made anew."""

import time
from types import SimpleNamespace

import pytest

from fastq import Admin, Consumer
from fastq.consumer.topic_watch import TopicWatch
from fastq.errors import ErrorCode, InvalidTopic
from fastq.metadata import TopicPartition
from fastq.protocol.messages import MetadataResponse


@pytest.fixture
def consumer():
    """One whose broker is not there."""
    with Consumer(bootstrap_servers="127.0.0.1:1") as consumer:
        yield consumer


def watched(consumer):
    return sorted(consumer._core.metadata_updater.topics)


def creates(consumer):
    return consumer._core.metadata_updater._build(12).allow_auto_topic_creation


def test_topics_that_were_assigned_are_not_watched_any_more(consumer):
    consumer.assign([("a", 0)])
    assert watched(consumer) == ["a"]
    consumer.assign([("b", 0), ("c", 0)])
    assert watched(consumer) == ["b", "c"]
    consumer.unsubscribe()
    assert watched(consumer) == []
    consumer.subscribe(["d", "e"])
    consumer.subscribe(["e"])
    assert watched(consumer) == ["e"]
    consumer.unsubscribe()
    assert watched(consumer) == []


@pytest.mark.parametrize("error", [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_topics_are_forgotten_together(consumer, error):
    """One by one each would cost what all of them do."""
    metadata, updater = consumer._core.metadata, consumer._core.metadata_updater
    names = [f"t{n}" for n in range(50)]
    answer = MetadataResponse(
        topics=[MetadataResponse.MetadataResponseTopic(name=name, error_code=error) for name in names]
    )
    consumer.assign([(name, 0) for name in names])
    metadata.update(answer)
    before = metadata.generation
    consumer.unsubscribe()
    assert (metadata.topics, metadata.generation) == ({}, before + 1)
    updater.look_at(names)
    metadata.update(answer)
    before = metadata.generation
    updater.look_away(names)
    updater._done(1, MetadataResponse(), None, False, tuple(names))
    assert (metadata.topics, metadata.generation) == ({}, before + 1)


def test_a_topic_that_is_asked_about_is_neither_made_nor_watched_for_long(consumer):
    consumer.assign([("a", 0)])
    target = {TopicPartition("x", 0): -1}
    queries = [consumer._query(target) for _ in range(2)]
    assert watched(consumer) == ["a", "x"] and not creates(consumer)
    consumer._end_query(queries[0], target)
    consumer.assign([("x", 0)])
    assert watched(consumer) == ["x"] and creates(consumer)
    consumer.assign([("a", 0)])
    assert watched(consumer) == ["a", "x"] and not creates(consumer)
    consumer._end_query(queries[1], target)
    assert watched(consumer) == ["a"] and creates(consumer)
    with pytest.raises(InvalidTopic):
        consumer.end_offsets([("no such/name", 0)])
    assert watched(consumer) == ["a"]


def test_a_leader_watches_its_groups_topics():
    kept = []
    core = SimpleNamespace(
        metadata=SimpleNamespace(generation=1, topic=lambda name: None),
        watch_topics=len,
        metadata_updater=SimpleNamespace(keep=kept.append),
    )
    group = SimpleNamespace(membership=SimpleNamespace(group_topics=["other"]), subscribed=True, pattern=None)
    watch = TopicWatch(core, SimpleNamespace(partitions={TopicPartition("old", 0): None}), group)
    watch.read(("own",))
    assert kept.pop() == {"own", "other", "old"}
    group.membership.group_topics = []
    watch.follow(0.0)
    assert kept.pop() == {"own", "old"}


def test_a_deleted_topic_stays_away(shared_broker, make_topic):
    servers = shared_broker.bootstrap_servers
    looked_at, read, left = (make_topic(servers, 1) for _ in range(3))
    options = {"bootstrap_servers": servers, "metadata_max_age_ms": 100}
    with Consumer(**options) as consumer, Admin(bootstrap_servers=servers) as admin:
        consumer.assign([(left, 0)])
        consumer.assign([(read, 0)])
        assert consumer.end_offsets([(looked_at, 0)]) == {TopicPartition(looked_at, 0): 0}
        admin.delete_topics([looked_at, left])
        end = time.monotonic() + 1
        while time.monotonic() < end:
            consumer.poll(timeout=0.1)
        assert set(admin.list_topics()) & {looked_at, read, left} == {read}
