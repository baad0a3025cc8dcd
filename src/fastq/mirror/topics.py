"""What is to be made and changed in the target so that its topics are like those of the source.

Rules: pure, over what both sides say of themselves. A topic is never deleted, no partition ever taken away, no config changed that the
options leave to the target, none set that the target does not know. What cannot be mirrored is refused by topic with the reason, and the
others go on.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set

from fastq.metadata import TopicPartition
from fastq.mirror.config import MirrorConfig, MirrorOptions
from fastq.mirror.names import Names
from fastq.mirror.same import MIRROR_SOURCE, source_value
from fastq.values import NamedTuple

NOTHING: Mapping[str, str] = {}
NOT_OURS = (
    "it was there before, or the source's was deleted and made anew. Delete it in the target, and it is copied anew"
)


class Topic(NamedTuple):
    """A topic as its cluster tells it. `configs` are those that somebody has set for it; None where the cluster does not say."""

    topic_id: str
    partitions: int
    configs: Mapping[str, str] | None = NOTHING


class Provenance(NamedTuple):
    """Of a topic that a mirror writes: the topic of the cluster before, and the ids of all clusters it came through, that one first."""

    topic: str
    clusters: tuple[str, ...]


class Mirrored(NamedTuple):
    """A partition that is copied: the topic in the target, the id of the source's topic, and that of the target's; `source` is what the
    target's `mirror.source` says where offsets are the same."""

    topic: str
    topic_id: str
    target_id: str = ""
    source: str = ""


class Changes(NamedTuple):
    """What is to be done in the target, by its names of topics. `sources`: where offsets are the same, the `mirror.source` of those
    that are to grow."""

    create: Mapping[str, Topic]
    grow: Mapping[str, int]
    configs: Mapping[str, Mapping[str, str | None]]
    sources: Mapping[str, str] = NOTHING


class Plan(NamedTuple):
    """What is mirrored now, what is to be changed for it, and what is refused, by the source's names; `others`: of what is mirrored with
    the same offsets, those whose topic in the target is not this mirror's as far as is known, and why: it refuses what is appended;
    `to_come`: partitions that the target has not, and is to get."""

    partitions: Mapping[TopicPartition, Mirrored]
    changes: Changes
    refused: Mapping[str, str]
    others: Mapping[str, str] = NOTHING
    to_come: Set[TopicPartition] = frozenset()


def plan(
    config: MirrorConfig,
    source: Mapping[str, Topic],
    target: Mapping[str, Topic],
    came_from: Mapping[str, Provenance],
    target_id: str,
    ended: Container[str] = (),
    source_id: str = "",
    known_configs: Container[str] | None = None,
) -> Plan:
    """`came_from` is what the mirrors that write to the source say of their topics; `target_id` and `source_id` the ids of the clusters;
    `ended` are topics of the source that a mirror has copied from the target, which was failed over and not failed back;
    `known_configs` those that the target has for topics, None where it does not say."""
    names, options = Names.of(config), config.options
    partitions: dict[TopicPartition, Mirrored] = {}
    refused: dict[str, str] = {}
    create: dict[str, Topic] = {}
    grow: dict[str, int] = {}
    configs: dict[str, Mapping[str, str | None]] = {}
    sources: dict[str, str] = {}
    others: dict[str, str] = {}
    to_come: set[TopicPartition] = set()
    for name, theirs in sorted(source.items()):
        if not names.wanted(name, config):
            continue
        if names.comes_from_target(name):
            refused[name] = f"it comes from {names.target} by its name: mirrored back it would go round for ever"
            continue
        origin = came_from.get(name)
        if origin is not None and target_id in origin.clusters:
            refused[name] = (
                f"a mirror writes it, and its records come from {names.target}: mirrored back they would go round for ever"
            )
            continue
        if name in ended:
            refused[name] = (
                f"a mirror from {names.target} has copied it, and was failed over: mirrored back, all that it has copied would be there "
                "twice; fastq mirror fail-back prepares this mirror to go on behind that"
            )
            continue
        here = names.in_target(name)
        if len(here) > 249:
            refused[name] = f"its name in the target would have {len(here)} letters, and 249 are allowed"
            continue
        ours, value = target.get(here), ""
        there = 0 if ours is None else ours.partitions
        to_come |= {TopicPartition(name, index) for index in range(there, theirs.partitions)}
        own: dict[str, str] = {}
        if options.offsets == "same":
            value = source_value(names.source, source_id, theirs.topic_id)
            own[MIRROR_SOURCE] = value
        if ours is None:
            wanted = copied_configs(theirs.configs or {}, options, known_configs)
            create[here] = Topic("", theirs.partitions, wanted | own)
            continue
        # One that is there and is not this mirror's is left as it is: what is appended there is refused.
        is_ours = not value or ours.configs is None or ours.configs.get(MIRROR_SOURCE) == value
        if not is_ours:
            others[name] = f"the topic {here} in {names.target} is not this mirror's: {NOT_OURS}"
        if ours.partitions < theirs.partitions and is_ours:
            grow[here] = theirs.partitions
            if value:
                sources[here] = value
        if options.copy_configs and is_ours and theirs.configs is not None and ours.configs is not None:
            wanted = copied_configs(theirs.configs, options, known_configs)
            if changed := config_changes(wanted, copied_configs(ours.configs, options)):
                configs[here] = changed
        for index in range(min(ours.partitions, theirs.partitions)):
            partitions[TopicPartition(name, index)] = Mirrored(here, theirs.topic_id, ours.topic_id, value)
    return Plan(partitions, Changes(create, grow, configs, sources), refused, others, to_come)


def copied_configs(
    configs: Mapping[str, str], options: MirrorOptions, known: Container[str] | None = None
) -> dict[str, str]:
    """Those of a topic's own configs that the target is to have too, of those that it knows (None: of all)."""
    if not options.copy_configs:
        return {}
    return {
        name: value
        for name, value in configs.items()
        if name != MIRROR_SOURCE
        and (known is None or name in known)
        and not any(pattern.fullmatch(name) for pattern in options.exclude_configs)
    }


def config_changes(wanted: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str | None]:
    """What to set, and what to take back (None)."""
    changes: dict[str, str | None] = {
        name: value for name, value in wanted.items() if name not in found or not is_one_value(value, found[name])
    }
    changes.update(dict.fromkeys(found.keys() - wanted.keys()))
    return changes


def is_one_value(value: str, other: str) -> bool:
    """Whether two clusters mean the same: Java writes 1.0E-4 what others write 0.0001."""
    if value == other:
        return True
    try:
        return "." in value + other and float(value) == float(other)
    except ValueError:
        return False


def provenances(plan: Plan, names: Names, source_id: str, came_from: Mapping[str, Provenance]) -> dict[str, Provenance]:
    """What the mirror is to write down of the topics that it writes, by their names in the target."""
    found: dict[str, Provenance] = {}
    for name in topics_of(plan.partitions):
        before = came_from[name].clusters if name in came_from else ()
        found[names.in_target(name)] = Provenance(name, (source_id, *(c for c in before if c != source_id)))
    return found


def topics_of(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted({tp.topic for tp in partitions})
