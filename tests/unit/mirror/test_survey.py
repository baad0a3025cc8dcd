"""What is made and set in a target, and how often; targets that do not know a config, or tell it in a spelling of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fastq.admin import ConfigResource, ConfigSource, CreatedTopic, NewTopic, Outcome, Outcomes
from fastq.errors import ConfigError, FastqError, InvalidConfig, TopicAlreadyExists, UnknownTopicOrPartition
from fastq.mirror import mirror as mirror_module
from fastq.mirror import survey as survey_module
from fastq.mirror.config import MirrorConfig, parse_config
from fastq.mirror.mirror import Mirror
from fastq.mirror.survey import Survey


class Described:
    def __init__(self, partitions: int) -> None:
        self.topic_id, self.partitions = b"\1" * 16, [None] * partitions


class Entry:
    def __init__(self, name: str, value: str | None, own: bool) -> None:
        self.name, self.value = name, value
        self.source = ConfigSource.DYNAMIC_TOPIC_CONFIG if own else ConfigSource.DEFAULT_CONFIG


class Cluster:
    """As much of an admin client as a survey uses, with topics and their own configs; `known` are the configs it has for topics."""

    def __init__(
        self,
        topics: Mapping[str, Mapping[str, str]],
        known: Sequence[str] = (),
        spelled: Callable[[str], str] = lambda value: value,
    ) -> None:
        self.topics = {name: dict(configs) for name, configs in topics.items()}
        self.hidden: set[str] = set()
        self.known, self.spelled = known, spelled
        self.sets: list[tuple[str, Mapping[str, str | None]]] = []
        self.creations = 0
        self.late = 0
        self.nodes = 1
        self.replicas: dict[str, int] = {}

    def list_topics(self, **_: Any) -> list[str]:
        return [name for name in self.topics if name not in self.hidden]

    def describe_cluster(self, timeout: float | None = None) -> Any:
        return SimpleNamespace(cluster_id=str(id(self)), nodes=(None,) * self.nodes)

    def create_topic(self, name: str, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        self.topics[name] = dict(configs)
        self.replicas[name] = replicas

    def describe_topic(self, name: str, timeout: float | None = None) -> Any:
        if self.late:
            self.late -= 1
            raise UnknownTopicOrPartition("of a node that has not heard of it")
        return Described(2)

    def describe_topics(self, names: list[str]) -> Outcomes[str, Any]:
        return Outcomes({name: Outcome(Described(1)) for name in names})

    def describe_configs(self, resources: list[ConfigResource]) -> Outcomes[ConfigResource, Any]:
        found: dict[ConfigResource, Outcome[Any]] = {}
        for resource in resources:
            if resource.name not in self.topics:
                found[resource] = Outcome(error=UnknownTopicOrPartition("no"))
                continue
            own = self.topics[resource.name]
            entries = {name: Entry(name, None, own=False) for name in self.known}
            found[resource] = Outcome(entries | {k: Entry(k, self.spelled(v), own=True) for k, v in own.items()})
        return Outcomes(found)

    def create_topics(self, topics: list[NewTopic], validate_only: bool = False) -> Outcomes[str, CreatedTopic]:
        self.creations += not validate_only
        return Outcomes({topic.name: self._made(topic, validate_only) for topic in topics})

    def _made(self, topic: NewTopic, validate_only: bool) -> Outcome[CreatedTopic]:
        error: FastqError | None = None
        if unknown := topic.configs.keys() - set(self.known):
            error = InvalidConfig(f"Unknown topic config name: {min(unknown)}")
        elif topic.name in self.topics:
            error = TopicAlreadyExists("it is there")
        if error is not None:
            return Outcome(error=error)
        if not validate_only:
            self.topics[topic.name] = {key: str(value) for key, value in topic.configs.items()}
        return Outcome(CreatedTopic(topic.name, None, None, None, {}))

    def set_configs(self, resource: ConfigResource, values: Mapping[str, str | None]) -> None:
        self.sets.append((resource.name, values))
        for name, value in values.items():
            if value is None:
                self.topics[resource.name].pop(name, None)
            else:
                self.topics[resource.name][name] = value


def config(**options: object) -> MirrorConfig:
    return parse_config(
        {
            "source": {"alias": "A", "bootstrap.servers": "a:1"},
            "target": {"alias": "B", "bootstrap.servers": "b:1"},
            "mirror": {"topics": ["t", "u"], **options},
        }
    )


def surveyed(monkeypatch: pytest.MonkeyPatch, source: Cluster, target: Cluster, **options: object) -> Survey:
    sides = {"A": source, "B": target}
    monkeypatch.setattr(survey_module, "admin_of", lambda side: sides[side.alias])
    return Survey(config(**options))


def looks(survey: Survey, count: int = 3) -> list[bool]:
    found = []
    for _ in range(count):
        survey.forget()  # so that configs are asked for each time
        found.append(survey.carry_out(survey.look().changes))
    return found


STATE = {"fastq-mirror.A.internal": {"cleanup.policy": "compact"}}
KNOWN = ("cleanup.policy", "retention.ms", "min.cleanable.dirty.ratio")


@pytest.mark.parametrize("there", [False, True])
def test_the_mirrors_own_topic_may_come_to_a_node_a_little_later(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """A mirror ended at its first start: a node that was asked had not heard yet of what was made by way of another."""
    target = Cluster(STATE if there else {})
    target.late = 3
    monkeypatch.setattr(survey_module, "SOON_S", 0.0)
    assert surveyed(monkeypatch, Cluster({}), target).prepare() == 2
    assert target.late == 0 and STATE.keys() == target.topics.keys()


@pytest.mark.parametrize(("nodes", "given", "replicas"), [(1, -1, 1), (2, -1, 2), (3, -1, 3), (5, -1, 3), (5, 2, 2)])
def test_the_mirrors_own_topic_has_three_replicas_unless_it_is_told_or_cannot(
    monkeypatch: pytest.MonkeyPatch, nodes: int, given: int, replicas: int
) -> None:
    """It had the one of `default.replication.factor`: with its node the mirror's progress was lost."""
    target = Cluster({})
    target.nodes = nodes
    assert surveyed(monkeypatch, Cluster({}), target, replication_factor=given).prepare() == 2
    assert target.replicas == {"fastq-mirror.A.internal": replicas}


def test_a_target_that_never_hears_of_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Cluster({})
    target.late = 1_000_000
    monkeypatch.setattr(survey_module, "SOON_S", 0.0)
    monkeypatch.setattr(survey_module, "CONNECT_S", 0.0)
    with pytest.raises(ConfigError, match=r"there is no topic fastq-mirror\.A\.internal in B"):
        surveyed(monkeypatch, Cluster({}), target).prepare()


def test_a_config_that_the_target_does_not_know_is_left_out_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"durability": "fsync", "retention.ms": "5"}
    target = Cluster(STATE, KNOWN)
    survey = surveyed(monkeypatch, Cluster({"t": own, "u": own}), target)
    with caplog.at_level(logging.WARNING, "fastq.mirror"):
        assert looks(survey) == [True, False, False]
    assert target.topics["A.t"] == target.topics["A.u"] == {"retention.ms": "5"}
    assert target.sets == [] and target.creations == 1
    assert [r.message for r in caplog.records] == ["B does not know durability: topics are mirrored without"]


def test_a_pattern_that_no_topic_has_is_told_once_and_again_when_its_topic_has_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = Cluster({"t": {}})
    survey = surveyed(monkeypatch, source, Cluster(STATE, KNOWN))
    told = "no topic of A matches 'u' of topics in [mirror]: nothing is copied for it yet"
    with caplog.at_level(logging.WARNING, "fastq.mirror"):
        looks(survey)
        assert [r.message for r in caplog.records] == [told]
        source.topics["u"] = {}
        looks(survey)
        assert [r.message for r in caplog.records] == [told]
        del source.topics["u"]
        looks(survey)
    assert [r.message for r in caplog.records] == [told] * 2


def test_a_topic_that_the_target_would_not_make_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Cluster({}, ())  # which does not say what it knows
    survey = surveyed(monkeypatch, Cluster({"t": {"durability": "fsync"}, "u": {}}), target)
    refused = survey.not_made(survey.look().changes)
    assert refused == {"t": f"A.t cannot be made in B: {InvalidConfig('Unknown topic config name: durability')}"}
    assert target.topics == {} and target.creations == 0
    assert looks(survey) == [True, False, False]
    assert survey.not_made(survey.look().changes) == refused, "and the other one is there"


def test_a_number_that_the_target_spells_in_its_own_way_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Cluster({**STATE, "A.t": {"min.cleanable.dirty.ratio": "1.0E-4"}}, KNOWN)
    survey = surveyed(monkeypatch, Cluster({"t": {"min.cleanable.dirty.ratio": "0.0001"}}), target)
    assert looks(survey) == [False] * 3 and target.sets == []


def test_what_the_target_tells_otherwise_is_set_once_and_again_when_somebody_changes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Cluster({**STATE, "A.t": {}}, KNOWN, lambda value: f"[{value}]")
    source = Cluster({"t": {"cleanup.policy": "compact, delete"}})
    survey = surveyed(monkeypatch, source, target)
    assert looks(survey) == [True, False, False]
    assert target.sets == [("A.t", {"cleanup.policy": "compact, delete"})]
    target.topics["A.t"]["cleanup.policy"] = "delete"
    assert looks(survey) == [True, False, False]
    assert len(target.sets) == 2 and target.topics["A.t"] == {"cleanup.policy": "compact, delete"}
    source.topics["t"]["cleanup.policy"] = "compact"
    assert looks(survey) == [True, False, False]
    assert len(target.sets) == 3 and target.topics["A.t"] == {"cleanup.policy": "compact"}


def test_what_was_taken_back_in_the_target_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Cluster({**STATE, "A.t": {}}, KNOWN)
    survey = surveyed(monkeypatch, Cluster({"t": {"retention.ms": "5"}}), target)
    for _ in range(2):
        assert looks(survey) == [True, False, False]
        del target.topics["A.t"]["retention.ms"]
    assert len(target.sets) == 2


def test_a_topic_that_is_hidden_from_the_mirror_is_told_and_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = Cluster({**STATE, "A.t": {}}, KNOWN)
    target.hidden.add("A.t")
    survey = surveyed(monkeypatch, Cluster({"t": {}, "u": {}}), target)
    with caplog.at_level(logging.WARNING, "fastq.mirror"):
        looks(survey)
    assert [r.message for r in caplog.records] == [
        "A.t is there already in B, which has not told of it: DESCRIBE may be missing"
    ]
    assert "it is there" in survey.not_made(survey.look().changes)["t"]


@pytest.mark.parametrize("helps", [0, 1, 2, 3])
def test_looks_that_do_not_help_are_not_made_without_a_pause(monkeypatch: pytest.MonkeyPatch, helps: int) -> None:
    mirror = Mirror(config())
    made: list[int] = []
    pauses: list[int] = []

    def look(_: Survey) -> bool:
        made.append(len(made))
        return len(made) <= helps

    class Pause:
        def clear(self) -> None: ...
        def set(self) -> None: ...
        def wait(self, _: float) -> None:
            pauses.append(len(made))
            if len(pauses) == 2:
                mirror.stop()

    monkeypatch.setattr(mirror, "_look", look)
    monkeypatch.setattr(mirror, "_look_now", Pause())
    mirror._survey(surveyed(monkeypatch, Cluster({}), Cluster(STATE)))
    first = min(helps + 1, mirror_module.LOOKS_MAX)
    assert pauses == [first, first + 1]


def test_whose_a_topic_is_is_asked_for_though_configs_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for the mirror's, and got the partitions of the source's."""
    source, target = Cluster({"t": {"retention.ms": "5"}}), Cluster({**STATE, "A.t": {}}, KNOWN)
    survey = surveyed(monkeypatch, source, target, offsets="same", copy_configs=False)
    found = survey.look()
    assert (list(found.others), found.changes.configs) == (["t"], {})
    target.topics["A.t"] = {"mirror.source": f"A//{Described(1).topic_id.hex()}"}
    assert list(survey.look().others) == ["t"], "configs are not asked for each time"
    anew = Described(1)
    anew.topic_id = b"\2" * 16
    monkeypatch.setattr(target, "describe_topics", lambda names: Outcomes({name: Outcome(anew) for name in names}))
    assert survey.look().others == {}, "but of a topic that was made anew"
