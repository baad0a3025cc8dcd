"""What both clusters say of their topics, and what is made and changed in the target for it.

Rules: one thread uses a `Survey`. `look` asks and answers a plan; `carry_out` does what a plan says, topic by topic: what is refused
for one is logged once, with the reason, and does not keep the others back. Configs are asked for every CONFIGS_EVERY looks, and of a new
topic at once. What the target tells otherwise than it was told to is not set a second time.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping

from fastq.admin import Admin, ConfigResource, ConfigSource, NewTopic, Outcome
from fastq.errors import ConfigError, FastqError, TopicAlreadyExists, UnknownTopicOrPartition
from fastq.metadata import TopicPartition
from fastq.mirror.config import ALIAS, MirrorConfig, Side
from fastq.mirror.names import Names, state_topic
from fastq.mirror.state import CONFIGS, State, end_of, read_state
from fastq.mirror.topics import Changes, Plan, Provenance, Topic, copied_configs, plan, topics_of
from fastq.values import NamedTuple
from fastq.words import counted

logger = logging.getLogger("fastq.mirror")

CONFIGS_EVERY = 12
CONNECT_S = 10.0
SOON_S = 0.1
OWN_REPLICAS = 3
"""Of the mirror's own topic, where there are so many nodes and nothing else is set: as many as MirrorMaker 2 and Connect give theirs."""


def admin_of(side: Side) -> Admin:
    return Admin(side.common)


class _Set(NamedTuple):
    """A config that the target has taken, and what it tells of it since; None: not looked at yet."""

    value: str | None
    told: str | None = None


class Survey:
    """Admin clients of both sides, and what they said last."""

    def __init__(self, config: MirrorConfig) -> None:
        self._config, self._names = config, Names.of(config)
        self.source, self.target = admin_of(config.source), admin_of(config.target)
        self.source_id = self.target_id = ""
        self.came_from: Mapping[str, Provenance] = {}
        self.ended: frozenset[str] = frozenset()
        self.unknown: dict[tuple[str, str], str] = {}  # topics of a side that could not be looked at, and why
        self._configs: dict[tuple[str, str], Mapping[str, str]] = {}
        self._config_ids: dict[tuple[str, str], bytes] = {}  # the ids of the topics that these are of
        self._known_configs: frozenset[str] | None = None  # that the target has for topics, as far as it says
        self._set: dict[tuple[str, str], _Set] = {}  # by topic and config, as long as the target tells another value
        self._looks = 0
        self._told: dict[str, str] = {}

    def close(self) -> None:
        self.source.close()
        self.target.close()

    def identify(self) -> None:
        """Learn who the clusters are. Raises ConfigError for one cluster in both places."""
        self.source_id = self.source.describe_cluster(timeout=CONNECT_S).cluster_id or ""
        self.target_id = self.target.describe_cluster(timeout=CONNECT_S).cluster_id or ""
        if self.source_id == self.target_id:
            raise ConfigError(f"source and target are one cluster, {self.source_id}; look at their bootstrap.servers")

    def prepare(self) -> int:
        """`identify`, and make the mirror's own topic; the number of its lanes."""
        self.identify()
        config, name = self._config, state_topic(self._config.source.alias)
        if name not in self.target.list_topics(include_internal=True):
            replicas = config.options.replication_factor
            if replicas < 0:
                replicas = min(OWN_REPLICAS, len(self.target.describe_cluster(timeout=CONNECT_S).nodes))
            try:
                self.target.create_topic(name, config.options.lanes, replicas, configs=CONFIGS)
            except TopicAlreadyExists:
                pass
        lanes = self._lanes_there()
        self._check_compacted(name)
        if lanes != config.options.lanes:
            logger.warning(
                "the mirror has %d lanes, as %s says; lanes = %d has no effect", lanes, name, config.options.lanes
            )
        return lanes

    def _lanes_there(self) -> int:
        """`lanes` of a topic that is there, or was made just now: the node that is asked may hear of it a little later than who told."""
        until = time.monotonic() + CONNECT_S
        while True:
            try:
                return self.lanes()
            except ConfigError as error:
                if not isinstance(error.__cause__, UnknownTopicOrPartition) or time.monotonic() >= until:
                    raise
                time.sleep(SOON_S)

    def _check_compacted(self, name: str) -> None:
        """Raises ConfigError where what the mirror keeps would be deleted with time: it would copy everything once more."""
        found = self.target.describe_configs([ConfigResource.topic(name)])[ConfigResource.topic(name)]
        if found.error is not None:
            logger.warning("whether %s is compacted cannot be seen: %s", name, found.error)
        elif (policy := found.result()["cleanup.policy"].value) != "compact":
            raise ConfigError(
                f"{name} in {self._config.target.alias} has cleanup.policy={policy}, and what the mirror has to remember would be deleted",
                hint=f"fastq configs set --topic {name} cleanup.policy=compact",
            )

    def check_target(self, state: State) -> None:
        """Raises ConfigError where the mirror calls its target otherwise, as its state says, or where an older release has begun that, the
        ids of its lanes, which the target may still know."""
        if not state.target and (state.progress or state.epochs or state.provenance):
            used = self._targets_aliases()
            if self._config.target.alias not in used:
                state.target = min(used, default="")
        state.check_target(self._config.target.alias)

    def _targets_aliases(self) -> set[str]:
        """By which lanes of the source's alias have called the target."""
        of_lane = re.compile(rf"fastq-mirror\.{self._config.source.alias}\.({ALIAS.pattern})\.[0-9]+")
        try:
            found = map(of_lane.fullmatch, self.target.list_transactions(timeout=CONNECT_S))
        except FastqError as error:  # an older target does not list them
            logger.info("which lanes have written to %s is not known: %s", self._config.target.alias, error)
            return set()
        return {match[1] for match in found if match}

    def lanes(self) -> int:
        """How many the mirror has. Raises ConfigError where it has never run."""
        name = state_topic(self._config.source.alias)
        try:
            return len(self.target.describe_topic(name, timeout=CONNECT_S).partitions)
        except UnknownTopicOrPartition as error:
            raise ConfigError(
                f"there is no topic {name} in {self._config.target.alias}: no mirror from {self._config.source.alias} has run there"
            ) from error

    @property
    def asks_for_everything(self) -> bool:
        """Whether the next `look` asks for configs too, and for what other mirrors say."""
        return self._looks % CONFIGS_EVERY == 0

    def look(self) -> Plan:
        """What is to be mirrored, and what is to be done for it."""
        fresh_configs = self.asks_for_everything
        self._looks += 1
        self.unknown = {}
        names = self.source.list_topics()
        self._tell_unmatched(names)
        wanted = [name for name in names if self._names.wanted(name, self._config)]
        source = self._described(self.source, wanted, fresh_configs)
        there = self.target.list_topics()
        target = self._described(
            self.target, [n for n in map(self._names.in_target, source) if n in there], fresh_configs
        )
        for (side, name), why in self.unknown.items():
            self._tell(name, f"{name} in the {side} cannot be looked at, and is not mirrored for now: {why}")
        hidden = {name for side, name in self.unknown if side == "target"}
        source = {name: topic for name, topic in source.items() if self._names.in_target(name) not in hidden}
        if fresh_configs:
            self.came_from, self.ended = self._provenances()
            self._known_configs = self._configs_of_target()
        self._tell_unknown_configs(source)
        known = self._known_configs
        found = plan(self._config, source, target, self.came_from, self.target_id, self.ended, self.source_id, known)
        for name, why in found.refused.items():
            self._tell(name, f"{name} is not mirrored: {why}")
        unseen = {
            self._names.in_source(name) if side == "target" else name: why for (side, name), why in self.unknown.items()
        }
        refused = {**found.refused, **{name: f"it cannot be looked at: {why}" for name, why in unseen.items() if name}}
        return found._replace(refused=refused)

    def not_made(self, changes: Changes) -> dict[str, str]:
        """Which topics the target would not make, by the source's names, and why: asked, and nothing made."""
        if not changes.create:
            return {}
        alias = self._config.target.alias
        outcomes = self.target.create_topics(self._new_topics(changes), validate_only=True).items()
        return {
            self._names.in_source(name) or name: f"{name} cannot be made in {alias}: {outcome.error}"
            for name, outcome in outcomes
            if outcome.error is not None
        }

    def _configs_of_target(self) -> frozenset[str] | None:
        """The names of all configs that the target has for topics: those of the mirror's own. None where it does not say."""
        resource = ConfigResource.topic(state_topic(self._config.source.alias))
        found = self.target.describe_configs([resource])[resource]
        return None if found.error is not None else frozenset(found.result())

    def _tell_unknown_configs(self, source: Mapping[str, Topic]) -> None:
        known, options = self._known_configs, self._config.options
        if known is None:
            return
        wanted = {name for topic in source.values() for name in copied_configs(topic.configs or {}, options)}
        if unknown := sorted(wanted - known):
            alias = self._config.target.alias
            self._tell("unknown configs", f"{alias} does not know {', '.join(unknown)}: topics are mirrored without")

    def forget(self) -> None:
        """The next `look` asks for everything."""
        self._looks = 0

    def _described(self, admin: Admin, names: list[str], fresh_configs: bool) -> dict[str, Topic]:
        side = "source" if admin is self.source else "target"
        outcomes = admin.describe_topics(names) if names else {}
        topics = {}
        for name, described in outcomes.items():
            if described.error is None:
                topics[name] = described.result()
            elif described.error.retriable and not isinstance(described.error, UnknownTopicOrPartition):
                raise described.error
            elif not isinstance(described.error, UnknownTopicOrPartition):
                # What is not known is not "nothing": the others go on, and nothing is made or changed for this one.
                self.unknown[side, name] = str(described.error)
        # Those of the target say, with the same offsets, whether a topic is this mirror's.
        if self._config.options.copy_configs or (side == "target" and self._config.options.offsets == "same"):
            unknown = [n for n, of in topics.items() if fresh_configs or self._config_ids.get((side, n)) != of.topic_id]
            answers = admin.describe_configs([ConfigResource.topic(n) for n in unknown]) if unknown else {}
            for resource, outcome in answers.items():
                if outcome.error is not None:
                    self._configs.pop((side, resource.name), None)
                    self._config_ids.pop((side, resource.name), None)
                    what = "are not copied" if side == "source" else "do not say whose it is"
                    self._tell(
                        f"configs of {side} {resource.name}",
                        f"configs of {resource.name} in the {side} cannot be read, and {what}: {outcome.error}",
                    )
                else:
                    own = {e.name: e.value or "" for e in outcome.result().values() if _is_own(e.source)}
                    self._configs[side, resource.name] = own
                    self._config_ids[side, resource.name] = topics[resource.name].topic_id
        return {
            name: Topic(topic.topic_id.hex(), len(topic.partitions), self._configs.get((side, name)))
            for name, topic in topics.items()
        }

    def _provenances(self) -> tuple[dict[str, Provenance], frozenset[str]]:
        """What mirrors that write to the source say of its topics; and those topics that one has copied from the target which was failed
        over, and for which we were not prepared since. Where names tell, these are refused by their names."""
        found: dict[str, Provenance] = {}
        ended: set[str] = set()
        for name in self.source.list_topics():
            if name.startswith("fastq-mirror.") and name.endswith(".internal"):
                lanes = len(self.source.describe_topic(name).partitions)
                state = read_state(self._config.source, name, range(lanes))
                if not state.stopped:
                    found |= state.provenance
                elif self._names.identity and not self._is_returned(end_of(state.stopped)):
                    ended.update(n for n, p in state.provenance.items() if self.target_id in p.clusters)
        return found, frozenset(ended)

    def _is_returned(self, time_ms: int) -> bool:
        """Whether each lane was prepared for what was failed over then."""
        lanes = range(self.lanes())
        returned = read_state(self._config.target, state_topic(self._config.source.alias), lanes).returned
        return all(returned.get(lane) == time_ms for lane in lanes)

    def carry_out(self, changes: Changes) -> bool:
        """Make and change topics of the target; whether anything was done."""
        alias, done = self._config.target.alias, False
        if changes.create:
            for name, created in self.target.create_topics(self._new_topics(changes)).items():
                if isinstance(created.error, TopicAlreadyExists):
                    self._tell(
                        name, f"{name} is there already in {alias}, which has not told of it: DESCRIBE may be missing"
                    )
                    done = True  # or it was made at this moment
                else:
                    text = f"made {name}: {counted(changes.create[name].partitions, 'partition')}"
                    done |= self._outcome(name, created.error, text)
        if changes.grow:
            for name, grown in self._grown(changes).items():
                done |= self._outcome(name, grown.error, f"{name} has {counted(changes.grow[name], 'partition')} now")
        self._set = dict(self._taken(changes))
        for name, wanted in changes.configs.items():
            values = {key: value for key, value in wanted.items() if (name, key) not in self._set}
            if left := wanted.keys() - values.keys():
                self._tell(
                    f"configs of {name}",
                    f"configs of {name}: {alias} has taken {', '.join(sorted(left))}, and tells another value",
                )
            if not values:
                continue
            try:
                self.target.set_configs(ConfigResource.topic(name), values)
            except FastqError as error:
                self._outcome(name, error, "")
                continue
            self._configs.pop(("target", name), None)
            self._config_ids.pop(("target", name), None)
            self._set |= {(name, key): _Set(value) for key, value in values.items()}
            done |= self._outcome(name, None, f"configs of {name}: {', '.join(f'{k}={v}' for k, v in values.items())}")
        return done

    def _taken(self, changes: Changes) -> Iterator[tuple[tuple[str, str], _Set]]:
        """What was set as it is wanted, and is told otherwise since, always in the same way: to set it again would change nothing."""
        for (name, key), (value, before) in self._set.items():
            wanted = changes.configs.get(name, {})
            told = (self._configs.get(("target", name)) or {}).get(key, "")
            if key in wanted and wanted[key] == value and before in (None, told):
                yield (name, key), _Set(value, told)

    def _new_topics(self, changes: Changes) -> list[NewTopic]:
        replicas = self._config.options.replication_factor
        return [
            NewTopic(name=name, partitions=topic.partitions, replication_factor=replicas, configs=topic.configs or {})
            for name, topic in changes.create.items()
        ]

    def _grown(self, changes: Changes) -> dict[str, Outcome[None]]:
        """Give topics more partitions. One that is read-only for others takes it from who names its source, as the client id."""
        found: dict[str, Outcome[None]] = {}
        alike = {name: count for name, count in changes.grow.items() if name not in changes.sources}
        if alike:
            found.update(self.target.create_partitions(alike))
        for name, source in changes.sources.items():
            with Admin({**self._config.target.common, "client_id": source}) as admin:
                found.update(admin.create_partitions({name: changes.grow[name]}))
        return found

    def _outcome(self, name: str, error: FastqError | None, text: str) -> bool:
        if error is None:
            self._told.pop(name, None)
            logger.info("%s", text)
            return True
        self._tell(name, f"{name} in {self._config.target.alias}: {error}")
        return False

    def _tell_unmatched(self, names: Iterable[str]) -> None:
        """A pattern that no topic has may be a typing error: a mirror that copies nothing looks like one that has nothing to copy."""
        for pattern in self._config.options.topics:
            # A topic may come later: a space before it, which no topic's name has, keeps it apart from those.
            key = f" {pattern.pattern}"
            if any(pattern.fullmatch(name) for name in names):
                self._told.pop(key, None)
            else:
                alias = self._config.source.alias
                self._tell(
                    key,
                    f"no topic of {alias} matches {pattern.pattern!r} of topics in [mirror]: nothing is copied for it yet",
                )

    def _tell(self, name: str, text: str) -> None:
        """What stays is told once."""
        if self._told.get(name) != text:
            self._told[name] = text
            logger.warning("%s", text)


def _is_own(source: ConfigSource) -> bool:
    return source is ConfigSource.DYNAMIC_TOPIC_CONFIG


def partitions_of(admin: Admin, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
    """Those of some partitions that a cluster has, and the ids of their topics (hex)."""
    partitions = list(wanted)
    names = topics_of(partitions)
    outcomes = admin.describe_topics(names) if names else {}
    topics = {name: o.result() for name, o in outcomes.items() if not isinstance(o.error, UnknownTopicOrPartition)}
    return {
        tp: topics[tp.topic].topic_id.hex()
        for tp in partitions
        if tp.topic in topics and tp.partition < len(topics[tp.topic].partitions)
    }
