"""The hash of a group's topics against numbers that Apache Kafka 4.3 wrote into its own group records."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fastq_broker.controller.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from fastq_broker.groups.metadata_hash import hash_of_topics

COUNTS = {"a": 1, "b": 3, "orders.eu_1": 12}


def image(ids: dict[str, str], racks: Sequence[str | None] = (None,)) -> MetadataImage:
    """Topics with these ids, each partition on nodes 1, 2, ... in these racks."""
    nodes = tuple(range(1, len(racks) + 1))
    topics = {
        name: TopicImage(
            name, bytes.fromhex(topic_id), tuple([PartitionImage(1, 0, 0, nodes, nodes, ())] * COUNTS[name])
        )
        for name, topic_id in ids.items()
    }
    brokers = {
        node: BrokerImage(node, 0, bytes(16), (), (), rack, False, False, ())
        for node, rack in zip(nodes, racks, strict=True)
    }
    return MetadataImage(
        topics_by_name=topics, topics_by_id={item.topic_id: item for item in topics.values()}, brokers=brokers
    )


WITHOUT_RACK = {
    "a": "7b0ef343e7b24a21ab510b179b756e34",
    "b": "deee3ed8f8564bf2bf0ff7eccf97ce84",
    "orders.eu_1": "9b9b35e4c9774fbb9e94870d2cddd58e",
}
IN_RACK = {
    "a": "f7412f3e331f4a00a99464f8252dc012",
    "b": "6d7907008fa74a8f8aeebee66ac60e79",
    "orders.eu_1": "e5eb8f8e81c94631962663fd45ae47c0",
}
IN_STRANGE_RACK = {
    "a": "0784fd74e7354abd8d67fad63394df2c",
    "b": "f62b3ea7118642c793dce37af6689dc8",
    "orders.eu_1": "e6c8fa6b833e44dc96454e68696aa9d0",
}


@pytest.mark.parametrize(
    ("ids", "rack", "names", "number"),
    [
        (WITHOUT_RACK, None, ["a"], -7624965698099650012),
        (WITHOUT_RACK, None, ["b", "a"], -6221238552089071952),
        (WITHOUT_RACK, None, ["orders.eu_1", "b"], 8892725984880082596),
        (WITHOUT_RACK, None, ["none", "a", "a"], -7624965698099650012),
        (IN_RACK, "rack-1", ["a"], 1277178971810976356),
        (IN_RACK, "rack-1", ["b", "a"], 6950540422734422474),
        (IN_RACK, "rack-1", ["b", "orders.eu_1"], -8563219254940908826),
        (IN_STRANGE_RACK, "ré-\U0001f600", ["a"], 3406520746833465192),
        (IN_STRANGE_RACK, "ré-\U0001f600", ["a", "b"], 713988928985889109),
        (IN_STRANGE_RACK, "ré-\U0001f600", ["b", "orders.eu_1"], 1771218889137343195),
    ],
)
def test_numbers_that_kafka_wrote(ids: dict[str, str], rack: str | None, names: list[str], number: int) -> None:
    assert hash_of_topics(names, image(ids, [rack])) == number


def test_without_topics_it_is_0() -> None:
    assert hash_of_topics([], image(WITHOUT_RACK)) == 0
    assert hash_of_topics(["none"], image(WITHOUT_RACK)) == 0


def test_it_changes_with_what_it_says() -> None:
    numbers = {
        hash_of_topics(["a", "b"], image(ids, racks))
        for ids in (WITHOUT_RACK, IN_RACK)
        for racks in ((None,), ("x",), ("x", "x"), ("x", "y"), ("xx",), ("",))
    }
    assert len(numbers) == 12
    assert hash_of_topics(["a"], image(IN_RACK, ["y", "x"])) == hash_of_topics(["a"], image(IN_RACK, ["x", "y"]))
    # In the order of UTF-16, where a character of two units comes before U+FFFD.
    assert hash_of_topics(["a"], image(IN_RACK, ["\ufffd", "\U0001f600"])) == hash_of_topics(
        ["a"], image(IN_RACK, ["\U0001f600", "\ufffd"])
    )
