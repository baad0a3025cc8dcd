"""The metadata image and its delta: what each record does, and that nothing published changes."""

from __future__ import annotations

import random

import pytest
from fastq_broker.controller.image import (
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    MetadataDelta,
    MetadataError,
    MetadataImage,
    Record,
)

from fastq.protocol import messages

A, B = b"a" * 16, b"b" * 16
DIRECTORY = b"d" * 16


def after(image: MetadataImage, *records: Record) -> tuple[MetadataImage, MetadataDelta]:
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(image.offset + len(records), 1, 1000), delta


def partition(topic_id: bytes, number: int, replicas: tuple[int, ...] = (1,)) -> messages.PartitionRecord:
    return messages.PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=list(replicas),
        isr=list(replicas),
        removing_replicas=[],
        adding_replicas=[],
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[DIRECTORY] * len(replicas),
    )


def topic(name: str, topic_id: bytes, partitions: int = 1) -> list[Record]:
    made: list[Record] = [messages.TopicRecord(name=name, topic_id=topic_id)]
    return made + [partition(topic_id, number) for number in range(partitions)]


def config(name: str, key: str, value: str | None) -> messages.ConfigRecord:
    return messages.ConfigRecord(resource_type=2, resource_name=name, name=key, value=value)


def test_topics_come_by_name_and_by_id() -> None:
    image, delta = after(MetadataImage(), *topic("x", A, 2))
    assert image.topic("x") is image.topic_of_id(A)
    assert image.partition("x", 1) is not None
    assert image.partition("x", 2) is None
    assert image.partition("x", -1) is None
    assert image.partition("y", 0) is None
    assert image.partition_count == 2
    ((before, now),) = delta.changed_topics
    assert before is None
    assert now is image.topic("x")


def test_partitions_may_come_in_any_order_but_not_with_a_hole() -> None:
    numbers = list(range(50))
    random.Random(1).shuffle(numbers)
    made = messages.TopicRecord(name="x", topic_id=A)
    image, _ = after(MetadataImage(), made, *(partition(A, number) for number in numbers))
    assert image.partition_count == 50
    with pytest.raises(MetadataError, match="topic x has 1 partitions but none of number 0"):
        after(MetadataImage(), made, partition(A, 3))


def test_a_published_image_never_changes_and_shares_what_did_not_change() -> None:
    first, _ = after(MetadataImage(), *topic("x", A), *topic("y", B), config("x", "retention.ms", "1"))
    second, delta = after(first, messages.PartitionChangeRecord(partition_id=0, topic_id=A, leader=-1, isr=[]))
    assert first.topics_by_name["x"].partitions[0].leader == 1
    assert second.topics_by_name["x"].partitions[0].leader == -1
    assert second.topics_by_name["y"] is first.topics_by_name["y"]
    assert second.configs is first.configs
    assert second.brokers is first.brokers
    assert [(before is first.topic("x"), now.name) for before, now in delta.changed_topics] == [(True, "x")]
    with pytest.raises(TypeError):
        second.topics_by_name["z"] = second.topics_by_name["x"]  # type: ignore[index]


def test_a_change_bumps_epochs_as_kafka_does() -> None:
    image, _ = after(MetadataImage(), *topic("x", A))
    image, _ = after(image, messages.PartitionChangeRecord(partition_id=0, topic_id=A, isr=[1]))
    found = image.topics_by_name["x"].partitions[0]
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (1, 0, 1)
    change = messages.PartitionChangeRecord(
        partition_id=0, topic_id=A, leader=-1, isr=[], eligible_leader_replicas=[1], last_known_elr=[1]
    )
    image, _ = after(image, change)
    found = image.topics_by_name["x"].partitions[0]
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (-1, 1, 2)
    assert (found.isr, found.eligible_leader_replicas, found.last_known_elr) == ((), (1,), (1,))


def test_new_replicas_keep_the_directories_that_are_known() -> None:
    image, _ = after(MetadataImage(), messages.TopicRecord(name="x", topic_id=A), partition(A, 0, (1, 2)))
    image, _ = after(image, messages.PartitionChangeRecord(partition_id=0, topic_id=A, replicas=[2, 3]))
    assert image.topics_by_name["x"].partitions[0].directories == (DIRECTORY, UNASSIGNED_DIRECTORY)


def test_deleting_a_topic_takes_its_configs_and_leaves_the_name_free() -> None:
    image, _ = after(MetadataImage(), *topic("x", A), config("x", "retention.ms", "1"))
    image, delta = after(image, messages.RemoveTopicRecord(topic_id=A))
    assert image.topic("x") is None
    assert image.topic_configs("x") == {}
    assert [item.topic_id for item in delta.deleted_topics] == [A]
    image, _ = after(image, *topic("x", B))
    assert image.topic_of_id(B) is image.topic("x")


def test_a_topic_made_anew_in_the_same_delta() -> None:
    first, _ = after(MetadataImage(), *topic("x", A, 3), config("x", "retention.ms", "1"))
    removed = messages.RemoveTopicRecord(topic_id=A)
    image, delta = after(first, removed, *topic("x", B), config("x", "segment.ms", "2"))
    assert image.topic("x") is image.topic_of_id(B)
    assert image.topic_of_id(A) is None
    assert image.topic_configs("x") == {"segment.ms": "2"}
    assert [item.topic_id for item in delta.deleted_topics] == [A]
    assert [(before, now.topic_id) for before, now in delta.changed_topics] == [(None, B)]
    image, delta = after(MetadataImage(), *topic("x", A), removed)
    assert (image.topics_by_name, delta.deleted_topics, delta.changed_topics) == ({}, [], [])


def test_configs_are_set_and_removed_one_by_one() -> None:
    image, _ = after(MetadataImage(), config("x", "a", "1"), config("x", "b", "2"))
    image, delta = after(image, config("x", "a", None))
    assert image.topic_configs("x") == {"b": "2"}
    assert delta.changed_configs == {(2, "x")}
    image, _ = after(image, config("x", "b", None))
    assert image.configs == {}


def broker(epoch: int = 5, broker_id: int = 1) -> messages.RegisterBrokerRecord:
    endpoint = messages.RegisterBrokerRecord.BrokerEndpoint(name="PLAINTEXT", host="h", port=1, security_protocol=0)
    return messages.RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=A,
        broker_epoch=epoch,
        end_points=[endpoint],
        features=[],
        rack=None,
        fenced=True,
        log_dirs=[DIRECTORY],
    )


def test_a_broker_registers_and_is_fenced_and_unfenced() -> None:
    image, delta = after(MetadataImage(), broker())
    assert image.brokers[1].fenced
    assert list(image.live_brokers()) == []
    assert delta.changed_brokers == {1}
    change = messages.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, fenced=-1)
    image, _ = after(image, change)
    assert [item.broker_id for item in image.live_brokers()] == [1]
    endpoint = image.brokers[1].endpoint("PLAINTEXT")
    assert endpoint is not None
    assert (endpoint.host, endpoint.port) == ("h", 1)
    assert image.brokers[1].endpoint("OTHER") is None
    image, _ = after(image, messages.FenceBrokerRecord(id=1, epoch=5))
    assert image.brokers[1].fenced
    image, _ = after(image, messages.UnfenceBrokerRecord(id=1, epoch=5))
    assert not image.brokers[1].fenced
    moved = messages.BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=5, in_controlled_shutdown=1, log_dirs=[A, B], cordoned_log_dirs=[B]
    )
    image, _ = after(image, moved)
    assert image.brokers[1].in_controlled_shutdown
    assert (image.brokers[1].directories, image.brokers[1].cordoned_directories) == ((A, B), (B,))
    image, _ = after(image, messages.UnregisterBrokerRecord(broker_id=1, broker_epoch=5))
    assert image.brokers == {}


def test_features_and_producer_ids() -> None:
    level = messages.FeatureLevelRecord(name="group.version", feature_level=1)
    ids = messages.ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=1000)
    image, delta = after(MetadataImage(), level, ids)
    assert image.features == {"group.version": 1}
    assert delta.features_changed
    assert (image.next_producer_id, image.producer_ids_owner) == (1000, (1, 5))
    image, _ = after(image, messages.FeatureLevelRecord(name="group.version", feature_level=0))
    assert image.features == {}


def test_records_for_later_are_kept_and_removed() -> None:
    acl = messages.AccessControlEntryRecord(id=A, resource_name="x", principal="User:p", host="*")
    entity = messages.ClientQuotaRecord.EntityData(entity_type="user", entity_name=None)
    quota = messages.ClientQuotaRecord(entity=[entity], key="producer_byte_rate", value=5.0, remove=False)
    scram = messages.UserScramCredentialRecord(
        name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
    )
    image, _ = after(MetadataImage(), acl, quota, scram)
    assert list(image.kept.values()) == [acl, quota, scram]
    gone = messages.ClientQuotaRecord(entity=[entity], key="producer_byte_rate", value=5.0, remove=True)
    image, _ = after(
        image,
        messages.RemoveAccessControlEntryRecord(id=A),
        gone,
        messages.RemoveUserScramCredentialRecord(name="u", mechanism=1),
    )
    assert image.kept == {}


def test_clear_elr_of_one_topic_and_of_all() -> None:
    elr = [
        messages.PartitionChangeRecord(partition_id=0, topic_id=topic_id, eligible_leader_replicas=[2])
        for topic_id in (A, B)
    ]
    image, _ = after(MetadataImage(), *topic("x", A), *topic("y", B))
    image, _ = after(image, *elr)
    one, _ = after(image, messages.ClearElrRecord(topic_name="x"))
    assert [item.partitions[0].eligible_leader_replicas for item in one.topics_by_name.values()] == [(), (2,)]
    every, _ = after(image, messages.ClearElrRecord(topic_name=""))
    assert [item.partitions[0].eligible_leader_replicas for item in every.topics_by_name.values()] == [(), ()]


def test_eligible_replicas_are_gone_once_their_level_is_taken_away() -> None:
    """Snapshots leave them out: who had them still would count on them at the next level. Epochs are as Apache Kafka's nodes count them."""
    image, _ = after(MetadataImage(), *topic("x", A))
    change = messages.PartitionChangeRecord(partition_id=0, topic_id=A, eligible_leader_replicas=[2])
    level = messages.FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1)
    image, _ = after(image, level, change)
    known = image.topics_by_name["x"].partitions[0]
    assert known.eligible_leader_replicas == (2,)
    image, _ = after(image, messages.FeatureLevelRecord(name=level.name, feature_level=0))
    assert image.topics_by_name["x"].partitions[0] == known._replace(eligible_leader_replicas=())


def test_clear_elr_is_a_change_of_the_partitions_that_have_such_replicas() -> None:
    """Everybody counts the same epochs, or AlterPartition is refused for good."""
    image, _ = after(MetadataImage(), *topic("x", A, 2))
    image, _ = after(image, messages.PartitionChangeRecord(partition_id=1, topic_id=A, eligible_leader_replicas=[2]))
    image, _ = after(image, messages.ClearElrRecord(topic_name=""))
    assert [(found.partition_epoch, found.leader_epoch) for found in image.topics_by_name["x"].partitions] == [
        (0, 0),
        (2, 0),
    ]


@pytest.mark.parametrize("name", ["", "x"])
def test_clear_elr_of_a_topic_that_the_same_delta_made(name: str) -> None:
    """A log is replayed as one delta."""
    change = messages.PartitionChangeRecord(
        partition_id=0, topic_id=A, eligible_leader_replicas=[2], last_known_elr=[2]
    )
    image, _ = after(MetadataImage(), *topic("x", A), change, messages.ClearElrRecord(topic_name=name))
    found = image.topics_by_name["x"].partitions[0]
    assert (found.eligible_leader_replicas, found.last_known_elr, found.partition_epoch) == ((), (), 2)


def test_clear_elr_passes_over_a_topic_that_is_gone() -> None:
    first, _ = after(MetadataImage(), *topic("x", A))
    image, _ = after(first, messages.RemoveTopicRecord(topic_id=A), messages.ClearElrRecord(topic_name=""))
    assert image.topic("x") is None


def test_a_partition_of_before_directories_has_none_that_is_known() -> None:
    """UNASSIGNED would say that the broker has yet to choose one (DirectoryId)."""
    made, old = topic("x", A)
    old.directories = []
    image, _ = after(MetadataImage(), made, old)
    assert set(image.topics_by_name["x"].partitions[0].directories) == {MIGRATING_DIRECTORY}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (partition(A, 0), "does not exist"),
        (messages.PartitionChangeRecord(partition_id=0, topic_id=A), "does not exist"),
        (messages.RemoveTopicRecord(topic_id=A), "does not exist"),
        (messages.FenceBrokerRecord(id=1, epoch=5), "broker 1 in epoch 5"),
        (messages.UnregisterBrokerRecord(broker_id=1, broker_epoch=5), "broker 1 in epoch 5"),
        (messages.ListGroupsRequest(), "type 16"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(record: Record, words: str) -> None:
    with pytest.raises(MetadataError, match=words):
        MetadataDelta(MetadataImage()).replay(record)


def test_a_change_of_a_partition_that_is_not_there() -> None:
    image, _ = after(MetadataImage(), *topic("x", A))
    with pytest.raises(MetadataError, match="partition 4 of x"):
        MetadataDelta(image).replay(messages.PartitionChangeRecord(partition_id=4, topic_id=A))
    with pytest.raises(MetadataError, match="does not exist"):
        after(image, messages.RemoveTopicRecord(topic_id=A), partition(A, 1))


def test_many_small_changes_and_one_replay_lead_to_the_same_image() -> None:
    source = random.Random(7)
    records: list[Record] = []
    image = MetadataImage()
    ids: dict[str, bytes] = {}
    for step in range(300):
        name = f"t{source.randrange(20)}"
        if name not in ids:
            ids[name] = step.to_bytes(16, "big")
            made = topic(name, ids[name], source.randrange(1, 4))
        elif source.random() < 0.3:
            made = [messages.RemoveTopicRecord(topic_id=ids.pop(name))]
        elif source.random() < 0.5:
            made = [config(name, "retention.ms", source.choice(["1", "2", None]))]
        else:
            made = [messages.PartitionChangeRecord(partition_id=0, topic_id=ids[name], leader=1)]
        records += made
        image, _ = after(image, *made)
    whole, _ = after(MetadataImage(), *records)
    assert whole == image


def test_the_difference_of_two_images_is_what_the_records_between_them_say() -> None:
    """Of a snapshot that takes the place of records a listener hears what it would have heard of these, topics that are gone too."""
    made = [*topic("x", A, 2), *topic("y", B), config("x", "k", "1"), config("y", "k", "1"), broker()]
    old, _ = after(MetadataImage(), *made)
    feature = messages.FeatureLevelRecord(name="f", feature_level=2)
    new, delta = after(
        old,
        messages.RemoveTopicRecord(topic_id=B),
        *topic("y", b"c" * 16),
        partition(A, 2),
        config("x", "k", None),
        messages.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, fenced=-1),
        feature,
    )
    found = MetadataDelta.between(old, new)
    assert sorted(found.changed_topics, key=str) == sorted(delta.changed_topics, key=str)
    assert found.deleted_topics == delta.deleted_topics
    assert found.changed_configs == delta.changed_configs
    assert found.changed_brokers == delta.changed_brokers
    assert found.features_changed and delta.features_changed
    same = MetadataDelta.between(new, new)
    assert not (same.changed_topics or same.deleted_topics or same.changed_configs or same.changed_brokers)
    assert not same.features_changed
