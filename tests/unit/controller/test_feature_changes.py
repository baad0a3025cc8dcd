"""What a level of a feature may not cost."""

from __future__ import annotations

import re

import pytest
from control_world import Cluster
from fastq_broker.controller import features
from fastq_broker.controller.feature_changes import UNSAFE_DOWNGRADE, FeatureUpdate, check_eligible, plan_features
from fastq_broker.controller.topics import Refused

from fastq.errors import ErrorCode
from fastq.protocol import messages as m


@pytest.mark.parametrize(("elr", "last"), [([2], []), ([], [1])])
def test_who_is_eligible_is_not_forgotten_while_nobody_else_can_lead(elr: list[int], last: list[int]) -> None:
    """Without the feature such a partition could be led again by an unclean election only."""
    cluster = Cluster()
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1, 2], isr=[], leader=-1, eligible_leader_replicas=elr, last_known_elr=last)
    lowered = FeatureUpdate(features.ELIGIBLE_LEADER_REPLICAS, 0, 2)
    with pytest.raises(Refused, match="Nobody is in sync of t-0") as refused:
        check_eligible(cluster.image, [lowered])
    assert refused.value.error == ErrorCode.INVALID_UPDATE_VERSION
    check_eligible(cluster.image, [lowered._replace(upgrade_type=UNSAFE_DOWNGRADE)])
    check_eligible(cluster.image, [lowered._replace(level=1)])
    sound = Cluster()
    sound.brokers(1, 2)
    sound.partition(replicas=[1, 2], isr=[1], eligible_leader_replicas=[2])
    check_eligible(sound.image, [lowered])


@pytest.mark.parametrize(
    ("current", "level", "upgrade_type", "words"),
    [
        (29, 23, 2, None),
        (29, 28, UNSAFE_DOWNGRADE, None),
        (22, 17, 2, None),
        (10, 8, 2, None),
        (30, 29, 2, "delete metadata information: 30 (4.3-IV0) has changed it"),
        (30, 29, UNSAFE_DOWNGRADE, "not supported in this version: 30 (4.3-IV0)"),
        (29, 22, 2, "23 (4.0-IV1)"),
        (18, 16, 2, "17 (3.7-IV2)"),
        (29, 28, 1, "without setting the upgrade type"),
    ],
)
def test_the_metadatas_version_goes_down_where_its_levels_hold_the_same(
    current: int, level: int, upgrade_type: int, words: str | None
) -> None:
    """As with Apache Kafka: each step down was refused, for a loss that most do not have."""
    update = FeatureUpdate(features.METADATA_VERSION, level, upgrade_type)
    if words is None:
        (record,) = plan_features(1, {features.METADATA_VERSION: current}, [update]).records
        assert record == m.FeatureLevelRecord(name=features.METADATA_VERSION, feature_level=level)
        return
    with pytest.raises(Refused, match=re.escape(words)):
        plan_features(1, {features.METADATA_VERSION: current}, [update])
