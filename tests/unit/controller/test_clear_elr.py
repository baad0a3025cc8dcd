"""What another min.insync.replicas means for who is eligible."""

from __future__ import annotations

import pytest
from control_world import Cluster
from fastq_broker.controller import elections

from fastq.protocol import messages as m


def test_another_least_isr_forgets_who_is_eligible() -> None:
    def changed(kind: int, name: str, key: str = "min.insync.replicas") -> m.ConfigRecord:
        return m.ConfigRecord(resource_type=kind, resource_name=name, name=key, value="2")

    changes = [changed(2, "t"), changed(4, ""), changed(2, "t", "retention.ms"), m.NoOpRecord()]
    assert elections.clear_elr(Cluster().view, changes) == [m.ClearElrRecord(topic_name="t"), m.ClearElrRecord()]
    assert elections.clear_elr(Cluster(elr=False).view, changes) == []


@pytest.mark.parametrize("name", ["t", ""], ids=["topic", "cluster"])
def test_another_least_isr_keeps_who_is_eligible_where_nobody_is_in_sync(name: str) -> None:
    """Nothing was committed since: they have everything, and without them an unclean election alone would give a leader."""
    cluster = Cluster(min_isr=2)
    cluster.brokers(1, 4)
    for down in (2, 3):
        cluster.broker(down, fenced=True)
    cluster.partition(replicas=[1, 2, 3], isr=[], eligible_leader_replicas=[2, 3], last_known_elr=[2])
    cluster.partition(replicas=[1, 2], isr=[], last_known_elr=[2])
    cluster.partition(replicas=[1, 2], isr=[1], eligible_leader_replicas=[2])
    cluster.partition("u", replicas=[4, 2], isr=[], eligible_leader_replicas=[2])
    change = m.ConfigRecord(resource_type=2 if name else 4, resource_name=name, name="min.insync.replicas", value="1")
    cluster.apply(change, *elections.clear_elr(cluster.view, [change]))
    known = [
        (found.partition.eligible_leader_replicas, found.partition.last_known_elr)
        for found in cluster.view.partitions()
    ]
    assert known == [((2, 3), (2,)), ((), (2,)), ((), ()), ((2,), ())]
    cluster.apply(*elections.broker_joins(cluster.view, 3))
    assert cluster.state("t", 0).leader == 3
