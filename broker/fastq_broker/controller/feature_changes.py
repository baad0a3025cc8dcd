"""What UpdateFeatures writes: checks in Kafka's words, then one record a feature (KIP-584, KIP-778).

Rules: all of a request or nothing. A level is refused that this node does not honour: Kafka would finalize it, and clients would trust it.
metadata.version goes down as far as no level between has changed what the metadata holds (MetadataVersion.checkIfMetadataChanged).
kraft.version is no record of the metadata: the quorum's leader writes it with the voters, and the records say that something was done.
With eligible leader replicas min.insync.replicas has one value for the cluster: what sets that up comes before the level. Taken away again,
that value stays, and what partitions have of eligible replicas goes with their next changes.
Source: FeatureControlManager.updateFeatures, LeaderState.maybeAppendUpgradedKRaftVersion, ConfigurationControlManager.updateFeatures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fastq.errors import ErrorCode
from fastq.protocol.messages import ConfigRecord, FeatureLevelRecord, NoOpRecord
from fastq.values import NamedTuple
from fastq_broker.config_keys import ResourceType
from fastq_broker.raft.messages import VoterAnswer

from . import features, releases
from .image import MetadataImage, Record
from .topics import Refused

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3

_NOT_SERVED: Final = {
    "share.version": "this version serves no share groups",
    "streams.version": "this version serves no streams groups",
}
_ELR_NEEDS: Final = 23
"""Level of metadata.version (4.0-IV1) from which on partitions have eligible replicas."""
_MIN_ISR: Final = "min.insync.replicas"
NAMED_MAX: Final = 5


class FeatureUpdate(NamedTuple):
    """A level that a feature is to get; `upgrade_type` 1, 2, 3: up only, down too, down with a loss."""

    name: str
    level: int
    upgrade_type: int


class FeaturePlan(NamedTuple):
    """What an update writes; `raises_kraft_version`: the quorum's leader writes that before."""

    records: list[Record]
    raises_kraft_version: bool


class Member(NamedTuple):
    """A registered node, and the ranges of levels that it supports by feature; None for a controller that has not registered."""

    name: str
    ranges: Mapping[str, tuple[int, int]] | None


def members(image: MetadataImage, voters: Iterable[int]) -> list[Member]:
    """Who has to support what is finalized: registered brokers, registered controllers, and `voters`."""
    found = [
        Member(f"Broker {broker.broker_id}", {name: (low, high) for name, low, high in broker.features})
        for broker in image.brokers.values()
    ]
    registered = {record.controller_id: record for record in image.controllers()}
    found += [
        Member(
            f"Controller {node_id}",
            {item.name: (item.min_supported_version, item.max_supported_version) for item in record.features},
        )
        for node_id, record in registered.items()
    ]
    return [*found, *(Member(f"Controller {node_id}", None) for node_id in sorted(set(voters) - registered.keys()))]


def plan_features(
    node_id: int, finalized: Mapping[str, int], updates: Iterable[FeatureUpdate], others: Sequence[Member] = ()
) -> FeaturePlan:
    """What an update writes; of a feature that is named twice the last one counts. `others` have to support it too. Raises Refused."""
    records: list[Record] = []
    raises_kraft_version = False
    last = {update.name: update for update in updates}
    proposed = {**finalized, **{name: update.level for name, update in last.items()}}
    for update in last.values():
        current = finalized.get(update.name, 0)
        problem = _problem(node_id, update, current) or _problem_of_others(others, update) or _unmet(update, proposed)
        if problem:
            raise _refused(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {update.level} for feature {update.name}. {problem}",
            )
        if update.level == current:
            continue
        if update.name == features.KRAFT_VERSION:
            raises_kraft_version = True
            records.append(NoOpRecord())  # who is told the levels knows by the metadata's offset that there are others
        else:
            records.append(FeatureLevelRecord(name=update.name, feature_level=update.level))
    return FeaturePlan(records, raises_kraft_version)


def eligible_safety(
    image: MetadataImage, updates: Iterable[FeatureUpdate], min_insync_replicas: int
) -> list[ConfigRecord]:
    """What has to be so before replicas can be eligible: one min.insync.replicas for the cluster, where none is set
    the one of this node's file, and none of single brokers (KIP-966). Nothing where no update enables that."""
    if not any(update.name == features.ELIGIBLE_LEADER_REPLICAS and update.level > 0 for update in updates):
        return []
    kind = int(ResourceType.BROKER)
    found: list[ConfigRecord] = []
    if _MIN_ISR not in image.configs_of(ResourceType.BROKER, ""):
        found.append(ConfigRecord(resource_type=kind, resource_name="", name=_MIN_ISR, value=str(min_insync_replicas)))
    return found + [
        ConfigRecord(resource_type=kind, resource_name=name, name=_MIN_ISR, value=None)
        for (resource_type, name), values in image.configs.items()
        if resource_type == kind and name and _MIN_ISR in values
    ]


def check_eligible(image: MetadataImage, updates: Iterable[FeatureUpdate]) -> None:
    """Refuse to forget who is eligible while partitions have nobody else: they could never be led again but by an unclean election.
    Unlike Apache Kafka, which forgets; so does an unsafe downgrade here. Raises Refused."""
    if not any(
        update.name == features.ELIGIBLE_LEADER_REPLICAS
        and not update.level
        and update.upgrade_type != UNSAFE_DOWNGRADE
        for update in updates
    ):
        return
    alone = [
        f"{topic.name}-{number}"
        for topic in image.topics_by_name.values()
        for number, partition in enumerate(topic.partitions)
        if partition.has_eligible_alone
    ]
    if alone:
        named = ", ".join(alone[:NAMED_MAX]) + (f" and {len(alone) - NAMED_MAX} more" if len(alone) > NAMED_MAX else "")
        raise _refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version 0 for feature {features.ELIGIBLE_LEADER_REPLICAS}. Nobody is in sync of {named}: without the "
            "feature it would be forgotten who can lead without a loss. Start the brokers that are down first.",
        )


def check_voters(answer: VoterAnswer) -> None:
    """What the quorum's leader said of a higher kraft.version. Raises Refused."""
    if answer.error != ErrorCode.NONE:
        raise _refused(ErrorCode(answer.error), answer.message)


def _refused(error: ErrorCode, message: str) -> Refused:
    return Refused(error, f"The update failed for all features since the following feature had an error: {message}")


def _problem_of_others(others: Sequence[Member], update: FeatureUpdate) -> str:
    """Who else does not support a level, in words; empty when everybody does. What a node does not name it has at 0."""
    for name, ranges in others:
        if ranges is None:
            return f"{name.lower()} has not registered, and may not support this feature"
        if update.name not in ranges and update.level > 0:
            return f"{name} does not support this feature."
        lowest, highest = ranges.get(update.name, (0, 0))
        if update.level > highest or 0 < update.level < lowest:
            return f"{name} only supports versions {lowest}-{highest}"
    return ""


def _unmet(update: FeatureUpdate, proposed: Mapping[str, int]) -> str:
    """What a level needs of another feature and does not find, in words."""
    name, level = update.name, update.level
    if name != features.ELIGIBLE_LEADER_REPLICAS or not level or proposed[features.METADATA_VERSION] >= _ELR_NEEDS:
        return ""
    return f"{name} could not be set to {level} because it depends on {features.METADATA_VERSION} level {_ELR_NEEDS}"


def _problem(node_id: int, update: FeatureUpdate, current: int) -> str:
    """Why a feature cannot have a level; empty when it can."""
    name, level, upgrade_type = update
    lowest, highest = features.SUPPORTED.get(name, (0, 0))
    down = level < current
    problems = {
        "The controller does not support the given upgrade type.": not UPGRADE <= upgrade_type <= UNSAFE_DOWNGRADE,
        "A feature version cannot be less than 0.": level < 0,
        f"Local controller {node_id} does not support this feature.": name not in features.SUPPORTED,
        f"Local controller {node_id} only supports versions {lowest}-{highest}": level > highest
        or (level < lowest and level != 0)
        or (level == 0 and name == features.METADATA_VERSION),
        "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.": down
        and upgrade_type == UPGRADE,
        "Can't downgrade to a newer version.": level > current and upgrade_type != UPGRADE,
        _loss(level, current, upgrade_type): down and name == features.METADATA_VERSION,
        "Can't downgrade the version of this feature.": down and name == features.KRAFT_VERSION,
        f"It is {current} here: {_NOT_SERVED.get(name, '')}.": level != current and name in _NOT_SERVED,
    }
    return next((words for words, is_so in problems.items() if is_so and words), "")


def _loss(level: int, current: int, upgrade_type: int) -> str:
    """Why metadata.version cannot go down so far; empty where no level between has changed what the metadata holds."""
    change = releases.change_between(level, current)
    if change is None:
        return ""
    changed = f"{change} ({releases.name_of(change)}) has changed it"
    if upgrade_type == UNSAFE_DOWNGRADE:
        return f"Unsafe metadata downgrade is not supported in this version: {changed}."
    return (
        f"Unsupported {features.METADATA_VERSION} downgrade from {current} to {level}. Refusing to perform the requested downgrade because "
        f"it might delete metadata information: {changed}."
    )
