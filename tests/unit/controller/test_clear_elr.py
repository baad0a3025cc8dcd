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


def kept_after(cluster: Cluster, value: str, name: str = "t") -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Who is eligible in each partition, and who led last, once the least ISR is another: of a topic, or of the cluster."""
    change = m.ConfigRecord(resource_type=2 if name else 4, resource_name=name, name="min.insync.replicas", value=value)
    cluster.apply(change, *elections.clear_elr(cluster.view.after([change]), [change]))
    partitions = [found.partition for found in cluster.view.partitions()]
    return [(found.eligible_leader_replicas, found.last_known_elr) for found in partitions]


@pytest.mark.parametrize("name", ["t", ""], ids=["topic", "cluster"])
def test_another_least_isr_keeps_who_is_eligible_where_nobody_is_in_sync(name: str) -> None:
    """Nothing was committed since: they have everything, and without them an unclean election alone would give a leader."""
    cluster = Cluster(min_isr=2)
    cluster.brokers(1, 4)
    for down in (2, 3):
        cluster.broker(down, fenced=True)
    cluster.partition(replicas=[1, 2, 3], isr=[], eligible_leader_replicas=[2, 3], last_known_elr=[2])
    cluster.partition(replicas=[1, 2, 3], isr=[], last_known_elr=[2])
    cluster.partition(replicas=[1, 2, 3], isr=[1], eligible_leader_replicas=[2])
    cluster.partition("u", replicas=[4, 2], isr=[], eligible_leader_replicas=[2])
    assert kept_after(cluster, "3", name) == [((2, 3), (2,)), ((), (2,)), ((), ()), ((2,), ())]
    cluster.apply(*elections.broker_joins(cluster.view, 3))
    assert cluster.state("t", 0).leader == 3


def test_where_one_replica_commits_by_itself_one_alone_stays_eligible() -> None:
    """An election makes the one elected the whole ISR: a second that is eligible would be passed by, and elected after it."""
    cluster = Cluster(min_isr=2)
    for down in (1, 2, 3):
        cluster.broker(down, fenced=True)
    cluster.partition(replicas=[1, 2, 3], isr=[], eligible_leader_replicas=[1, 3], last_known_elr=[3])
    cluster.partition(replicas=[1, 2, 3], isr=[], eligible_leader_replicas=[1, 3], last_known_elr=[2])
    assert kept_after(cluster, "1") == [((3,), (3,)), ((1,), (2,))]
