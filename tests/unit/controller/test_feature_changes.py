"""What a level of a feature may not cost."""

from __future__ import annotations

import pytest
from control_world import Cluster
from fastq_broker.controller import features
from fastq_broker.controller.feature_changes import UNSAFE_DOWNGRADE, FeatureUpdate, check_eligible
from fastq_broker.controller.topics import Refused

from fastq.errors import ErrorCode


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
