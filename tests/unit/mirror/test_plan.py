"""Which topics are mirrored under which names, what is changed for it in the target, and the configuration that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastq.errors import ConfigError
from fastq.metadata import TopicPartition
from fastq.mirror.config import MirrorConfig, load_config, parse_config
from fastq.mirror.mirror import Mirror
from fastq.mirror.names import Names
from fastq.mirror.state import lane_of
from fastq.mirror.topics import Mirrored, Provenance, Topic, plan, provenances


def config(**options: Any) -> MirrorConfig:
    return parse_config(
        {
            "source": {"alias": "A", "bootstrap.servers": "a:1"},
            "target": {"alias": "B", "bootstrap.servers": "b:1"},
            "mirror": {"topics": [".*"], **options},
        }
    )


def planned(source: dict[str, Topic], target: dict[str, Topic], came_from: Any = None, **options: Any) -> Any:
    return plan(config(**options), source, target, came_from or {}, "id-of-b")


def test_names_go_there_and_back() -> None:
    prefixed, other = Names.of(config()), Names.of(config(separator="-from-"))
    identity = Names.of(config(names="identity"))
    assert (prefixed.in_target("logs"), prefixed.in_source("A.logs")) == ("A.logs", "logs")
    assert prefixed.in_source("logs") is None and prefixed.in_source("A.") is None
    assert other.in_target("a.b") == "A-from-a.b"
    assert (identity.in_target("logs"), identity.in_source("logs")) == ("logs", "logs")
    # MirrorMaker 2's heartbeats have the alias before them always: its tools read from it who mirrors whom.
    assert (identity.in_target("heartbeats"), identity.in_source("A.heartbeats")) == ("A.heartbeats", "heartbeats")


def test_what_belongs_to_kafka_and_to_mirrors_is_left_alone() -> None:
    names, wanted = Names.of(config()), config(exclude=["secret.*"])
    for topic in (
        "__consumer_offsets",
        "x.checkpoints.internal",
        "mm2-offset-syncs.B.internal",
        "a-internal",
        "secrets",
    ):
        assert not names.wanted(topic, wanted)
    assert names.wanted("heartbeats", config(topics=["logs"]))
    assert names.wanted("logs", wanted) and not names.wanted("logs2", config(topics=["logs"]))


def test_topics_are_made_grown_and_configured_and_never_made_smaller() -> None:
    own = {"retention.ms": "5", "min.insync.replicas": "2", "message.timestamp.type": "LogAppendTime"}
    source = {
        "new": Topic("1", 2, own), "more": Topic("2", 3), "fewer": Topic("3", 1, own), "same": Topic("4", 1),
    }  # fmt: skip
    target = {
        "A.more": Topic("5", 1),
        "A.fewer": Topic("6", 4, {"retention.ms": "6", "max.message.bytes": "9", "min.insync.replicas": "1"}),
        "A.same": Topic("7", 1),
    }
    found = planned(source, target)
    assert found.changes.create == {"A.new": Topic("", 2, {"retention.ms": "5"})}
    assert found.changes.grow == {"A.more": 3}
    assert found.changes.configs == {"A.fewer": {"retention.ms": "5", "max.message.bytes": None}}
    assert found.partitions == {
        TopicPartition("more", 0): Mirrored("A.more", "2", "5"),
        TopicPartition("fewer", 0): Mirrored("A.fewer", "3", "6"),
        TopicPartition("same", 0): Mirrored("A.same", "4", "7"),
    }
    assert planned(source, target, copy_configs=False).changes.configs == {}


def test_with_the_same_offsets_a_topic_that_is_not_this_mirrors_is_left_as_it_is() -> None:
    source = {name: Topic("1", 3, {"retention.ms": "5"}) for name in ("mine", "other", "plain", "hidden")}
    values = {"mine": {"mirror.source": "A//1"}, "other": {"mirror.source": "Z//1"}, "plain": {}, "hidden": None}
    target = {f"A.{name}": Topic("2", 1, configs) for name, configs in values.items()}
    found = planned(source, target, offsets="same")
    assert sorted(found.others) == ["other", "plain"] and found.refused == {}
    changes = found.changes
    assert changes.grow == {"A.mine": 3, "A.hidden": 3}  # what is not told the target judges
    assert changes.sources == {"A.mine": "A//1", "A.hidden": "A//1"}
    assert changes.configs == {"A.mine": {"retention.ms": "5"}}


def test_partitions_that_the_target_has_not_are_to_come() -> None:
    source = {name: Topic("1", 3) for name in ("new", "grown", "there")}
    found = planned(source, {"A.grown": Topic("2", 1), "A.there": Topic("3", 4)})
    new = [TopicPartition("new", index) for index in range(3)]
    grown = [TopicPartition("grown", index) for index in (1, 2)]
    assert found.to_come == {*new, *grown}
    assert not found.to_come & found.partitions.keys()


def test_configs_that_a_side_does_not_tell_are_not_taken_back() -> None:
    source, target = {"t": Topic("1", 1, None)}, {"A.t": Topic("2", 1, {"retention.ms": "5"})}
    assert planned(source, target).changes.configs == {}
    assert planned({"t": Topic("1", 1, {"retention.ms": "6"})}, {"A.t": Topic("2", 1, None)}).changes.configs == {}
    assert planned(source, {}).changes.create == {"A.t": Topic("", 1, {})}


def test_loops_are_refused_by_name_and_by_provenance() -> None:
    source = {name: Topic("1", 1) for name in ("B.logs", "C.B.logs", "C.logs", "logs", "bills", "x" * 248)}
    refused = planned(source, {}).refused
    assert set(refused) == {"B.logs", "C.B.logs", "x" * 248}
    came_from = {"logs": Provenance("logs", ("id-of-c", "id-of-b")), "bills": Provenance("bills", ("id-of-c",))}
    found = planned({n: source[n] for n in ("logs", "bills")}, {"bills": Topic("2", 1)}, came_from, names="identity")
    assert set(found.refused) == {"logs"} and set(found.changes.create) == set()
    written = provenances(found, Names.of(config(names="identity")), "id-of-a", came_from)
    assert written == {"bills": Provenance("bills", ("id-of-a", "id-of-c"))}


def test_a_dot_in_an_identical_name_is_no_alias() -> None:
    source = {"B.logs": Topic("1", 1), "B.heartbeats": Topic("2", 1)}
    found = planned(source, {}, names="identity")
    assert set(found.changes.create) == {"B.logs"} and set(found.refused) == {"B.heartbeats"}


def test_partitions_of_a_topic_are_in_all_lanes() -> None:
    assert {lane_of(TopicPartition("logs", index), 4) for index in range(4)} == {0, 1, 2, 3}


def test_a_file_is_read_and_what_is_wrong_in_it_named(tmp_path: Path) -> None:
    path = tmp_path / "mirror.toml"
    sides = '[source]\nalias = "A"\nbootstrap.servers = "a:1"\n[target]\nalias = "B"\nbootstrap.servers = "b:1"\n'
    path.write_text(sides + 'producer.compression.type = "lz4"\n[mirror]\ntopics = ["logs"]\nlanes = 2\n')
    found = load_config(path)
    assert found.source.common == {"bootstrap_servers": "a:1"} and found.options.lanes == 2
    assert found.target.producer == {"compression_type": "lz4"}
    for text, words in (
        ("x", "no TOML"),
        ("[mirror]\n", r"\[source\] is missing"),
        ("z = 1", "unknown table or key z"),
        (sides, r"\[mirror\] is missing"),
        (sides + "[mirror]\n", "no topics"),
        (sides + '[mirror]\ntopics = ["("]', "regular expressions"),
        (sides + '[mirror]\ntopics = ["a"]\nlane = 2', "did you mean lanes"),
        (sides + '[mirror]\ntopics = ["a"]\nlanes = 0', "from 1 to 256"),
        (sides + '[mirror]\ntopics = ["a"]\nseparator = "/"', "A-Z"),
        (sides.replace('"B"', '"A"') + '[mirror]\ntopics = ["a"]', "same alias"),
        (sides.replace('"B"', '"a b"') + '[mirror]\ntopics = ["a"]', "alias of"),
        (sides + 'group.id = "x"\n[mirror]\ntopics = ["a"]', "decided by the mirror"),
        (sides + 'sasl.mecanism = "PLAIN"\n[mirror]\ntopics = ["a"]', r"\[target\]: .*did you mean sasl_mechanism"),
        (sides + 'producer.acks = 1\n[mirror]\ntopics = ["a"]', r"\[target\]: .*needs idempotence"),
        (sides + 'consumer.fetch.min.bite = 1\n[mirror]\ntopics = ["a"]', "did you mean fetch_min_bytes"),
        (sides + 'value.serializer = "json"\n[mirror]\ntopics = ["a"]', "decided by the mirror"),
        (
            sides.replace('"b:1"', '"me:hush@b:1"') + '[mirror]\ntopics = ["a"]',
            r"\[target\]: [^@]*'\*\*\*@b:1'.*sasl.username",
        ),
        (sides.replace('bootstrap.servers = "b:1"', "") + '[mirror]\ntopics = ["a"]', "no bootstrap.servers"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words) as caught:
            load_config(path)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("given", [None, 5, True, b"mirror.toml", {}])
def test_what_names_no_file_is_refused(given: Any) -> None:
    """An int is an open file's number, which was read and closed."""
    with pytest.raises(TypeError, match="path is a str or a path"):
        load_config(given)


@pytest.mark.parametrize("given", [None, "mirror.toml", {}])
def test_a_mirror_is_made_of_its_configuration(given: Any) -> None:
    with pytest.raises(TypeError, match="a MirrorConfig is needed, as load_config"):
        Mirror(given)
