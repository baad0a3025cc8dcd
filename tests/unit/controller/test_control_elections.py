"""One change of one partition, rule by rule: who leads, who is in sync, who stays eligible, which epoch grows.

Cases are those of Apache Kafka's PartitionChangeBuilderTest and ReplicationControlManagerTest, and those of its bugs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from control_world import Cluster, change_of, directory_id, topic_id
from fastq_broker.controller import elections, features
from fastq_broker.controller.elections import (
    PREFERRED_TYPE,
    RECOVERED,
    RECOVERING,
    UNCLEAN_TYPE,
    Election,
    PartitionChange,
)
from fastq_broker.controller.image import LOST_DIRECTORY, UNASSIGNED_DIRECTORY
from fastq_broker.controller.view import Located

from fastq.errors import ErrorCode
from fastq.protocol import messages as m


def build(cluster: Cluster, found: Located | None = None, **wanted: Any) -> m.PartitionChangeRecord | None:
    change = PartitionChange(cluster.view, found or cluster.located())
    for name, value in wanted.items():
        assert hasattr(change, name)
        setattr(change, name, value)
    return change.build()


def foo(*, absent: Sequence[int] = (3,), **more: Any) -> Cluster:
    """Replicas 2, 1, 3, all in sync, led by 1; of the brokers one is fenced."""
    cluster = Cluster(**more)
    for broker_id in (1, 2, 3, 4):
        cluster.broker(broker_id, fenced=broker_id in absent)
    cluster.partition(replicas=[2, 1, 3], leader=1)
    return cluster


def bar(**more: Any) -> Cluster:
    """On the way from 1, 2, 3 to 2, 3, 4."""
    cluster = Cluster(**more)
    cluster.brokers(1, 2, 3, 4)
    cluster.partition(replicas=[1, 2, 3, 4], isr=[1, 2, 3], removing_replicas=[1], adding_replicas=[4])
    return cluster


# Who leads


@pytest.mark.parametrize(
    ("election", "isr", "leader"),
    [
        (Election.PREFERRED, [2, 1, 3], 2),
        (Election.ONLINE, [2, 1, 3], None),
        (Election.UNCLEAN, [2, 1, 3], None),
        (Election.ONLINE, [1, 3], None),
        (Election.ONLINE, [2, 3], 2),
        (Election.ONLINE, [3], -1),
    ],
)
@pytest.mark.parametrize("elr", [True, False])
def test_who_is_elected(election: Election, isr: list[int], leader: int | None, elr: bool) -> None:
    record = build(foo(elr=elr, min_isr=1), election=election, isr=isr)
    assert (None if record is None or record.leader == -2 else record.leader) == leader


def test_the_preferred_election_keeps_a_leader_that_may_when_the_preferred_one_may_not() -> None:
    cluster = foo(absent=[2])
    assert build(cluster, election=Election.PREFERRED, isr=[1, 3]) == change_of(isr=[1, 3])


def test_an_unclean_election_takes_the_first_replica_that_is_there_and_leaves_it_recovering() -> None:
    record = build(foo(elr=False), election=Election.UNCLEAN, isr=[3])
    assert record == change_of(leader=2, isr=[2], leader_recovery_state=RECOVERING)


def test_an_unclean_election_forgets_who_was_eligible() -> None:
    cluster = Cluster(min_isr=2)
    cluster.broker(1)
    cluster.broker(2, fenced=True)
    cluster.broker(3, fenced=True)
    cluster.partition(
        replicas=[2, 1, 3], isr=[], eligible_leader_replicas=[3], last_known_elr=[2], leader=-1, leader_epoch=4
    )
    record = build(cluster, election=Election.UNCLEAN)
    assert record == change_of(
        leader=1, isr=[1], leader_recovery_state=RECOVERING, eligible_leader_replicas=[], last_known_elr=[]
    )
    assert build(cluster) is None


def test_a_leader_that_recovers_recovers_still_when_it_comes_back() -> None:
    cluster = Cluster(elr=False)
    cluster.broker(1, fenced=True)
    cluster.partition(replicas=[1, 2], isr=[1], leader_recovery_state=RECOVERING)
    offline = build(cluster, isr=[])
    assert offline == change_of(leader=-1)
    cluster.apply(offline)
    assert (cluster.state().isr, cluster.state().leader_recovery_state) == ((1,), RECOVERING)
    cluster.broker(1)
    assert build(cluster) == change_of(leader=1)


def test_a_broker_whose_directory_is_gone_is_not_elected() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2, 3)
    cluster.partition(replicas=[1, 2, 3], directories=[directory_id(1), directory_id(77), directory_id(3)])
    assert build(cluster, isr=[2, 3]) == change_of(isr=[2, 3], leader=3)


@pytest.mark.parametrize("directory", [LOST_DIRECTORY, directory_id(77)])
def test_a_replica_in_a_lost_directory_leads_not_even_uncleanly(directory: bytes) -> None:
    cluster = Cluster()
    cluster.broker(1, fenced=True)
    cluster.broker(2)
    cluster.partition(replicas=[1, 2], isr=[1], leader=-1, directories=[directory_id(1), directory])
    assert build(cluster, election=Election.UNCLEAN) is None


def test_a_broker_that_names_no_directory_has_them_all() -> None:
    cluster = Cluster()
    cluster.broker(1, log_dirs=[])
    cluster.partition(replicas=[1], leader=-1)
    assert build(cluster) == change_of(leader=1)


def test_a_broker_that_shuts_down_is_not_elected() -> None:
    cluster = Cluster()
    cluster.broker(1, fenced=True)
    cluster.broker(2, shutting=True)
    cluster.broker(3)
    cluster.partition(replicas=[1, 2, 3])
    assert build(cluster, isr=[2, 3]) == change_of(isr=[2, 3], leader=3)


def test_no_change_is_no_record() -> None:
    for election in Election:
        assert build(bar(), election=election) is None
    assert build(foo()) is None


# Eligible leader replicas


def test_who_leaves_below_the_least_isr_stays_eligible() -> None:
    cluster = Cluster(min_isr=3)
    cluster.brokers(1, 2, 3, 4)
    cluster.partition(replicas=[1, 2, 3, 4])
    assert build(cluster, isr=[1, 2]) == change_of(isr=[1, 2], eligible_leader_replicas=[3, 4])


def test_above_the_least_isr_nobody_is_eligible() -> None:
    cluster = Cluster(min_isr=3)
    cluster.brokers(1, 2, 3, 4)
    cluster.partition(replicas=[1, 2, 3, 4], isr=[1, 2], eligible_leader_replicas=[3], last_known_elr=[4])
    assert build(cluster, isr=[1, 2, 3]) == change_of(isr=[1, 2, 3], eligible_leader_replicas=[])


def test_a_new_member_leaves_the_eligible_ones_as_they_are() -> None:
    cluster = Cluster(min_isr=3)
    cluster.brokers(1, 2, 3, 4)
    cluster.partition(replicas=[1, 2, 3, 4], isr=[1], eligible_leader_replicas=[3])
    assert build(cluster, isr=[1, 4]) == change_of(isr=[1, 4])


def test_who_stopped_uncleanly_is_eligible_no_more() -> None:
    cluster = Cluster(min_isr=3)
    cluster.brokers(1, 2, 3, 4)
    cluster.partition(replicas=[1, 2, 3, 4], isr=[1], eligible_leader_replicas=[2, 3])
    assert build(cluster, unclean=[3]) == change_of(eligible_leader_replicas=[2])


def test_the_least_isr_is_never_more_than_there_are_replicas() -> None:
    cluster = Cluster(min_isr=3)
    cluster.brokers(1)
    found = cluster.partition(replicas=[1])
    assert cluster.view.min_isr(found.topic) == 1


def test_the_cluster_s_least_isr_counts_where_the_topic_has_none() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2, 3)
    cluster.partition(replicas=[1, 2, 3])
    cluster.config("t", "min.insync.replicas", None)
    assert build(cluster, isr=[1]) == change_of(isr=[1])  # 1 is the default


def test_with_eligible_replicas_the_isr_may_be_empty_and_who_led_last_is_kept() -> None:
    cluster = Cluster(min_isr=2)
    cluster.broker(1, fenced=True)
    cluster.broker(2, fenced=True)
    cluster.partition(replicas=[1, 2], isr=[1])
    record = build(cluster, isr=[])
    assert record == change_of(isr=[], leader=-1, eligible_leader_replicas=[1], last_known_elr=[1])


def test_without_eligible_replicas_the_last_member_stays_in_the_isr() -> None:
    cluster = Cluster(elr=False)
    cluster.broker(1, fenced=True)
    cluster.partition(replicas=[1], isr=[1])
    record = build(cluster, isr=[])
    assert record == change_of(leader=-1)
    cluster.apply(record)
    assert cluster.state().isr == (1,)


def test_an_eligible_replica_is_elected_cleanly_when_the_isr_is_empty() -> None:
    cluster = Cluster(min_isr=2)
    cluster.brokers(2, 3)
    cluster.broker(1, fenced=True)
    cluster.partition(replicas=[1, 2, 3], isr=[], eligible_leader_replicas=[1, 3], last_known_elr=[1], leader=-1)
    record = build(cluster)
    assert record == change_of(leader=3, isr=[3], eligible_leader_replicas=[1], last_known_elr=[])


def test_an_eligible_replica_is_not_elected_while_somebody_is_in_sync() -> None:
    cluster = Cluster(min_isr=2)
    cluster.broker(1, fenced=True)
    cluster.broker(2)
    cluster.partition(replicas=[1, 2], isr=[1], eligible_leader_replicas=[2])
    assert build(cluster) == change_of(leader=-1, last_known_elr=[1])


def test_the_last_leader_is_elected_when_nobody_is_left_and_has_to_recover() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1, 2], isr=[], last_known_elr=[2], leader=-1)
    record = build(cluster)
    assert record == change_of(leader=2, isr=[2], leader_recovery_state=RECOVERING, last_known_elr=[])


def test_who_stayed_in_sync_as_nobody_led_is_asked_first_when_it_has_stopped_uncleanly() -> None:
    """Nobody leads before the ELR comes, which alone knows who led last: nobody did for good."""
    cluster = Cluster(elr=False)
    cluster.broker(1)
    cluster.broker(2, fenced=True)
    cluster.partition(replicas=[1, 2], isr=[2])
    record = build(cluster, isr=[])
    assert record is not None
    cluster.apply(record, m.FeatureLevelRecord(name=features.ELIGIBLE_LEADER_REPLICAS, feature_level=1))
    lost = elections.broker_lost_records(cluster.view, 2)
    assert cluster.apply(*lost) == [change_of(isr=[], last_known_elr=[2])]
    (record,) = elections.broker_joins(cluster.view, 2)
    assert record == change_of(leader=2, isr=[2], leader_recovery_state=RECOVERING, last_known_elr=[])


@pytest.mark.parametrize("last", [[2], [1, 2], []])
def test_the_last_leader_is_elected_only_if_it_is_there_and_alone(last: list[int]) -> None:
    cluster = Cluster()
    cluster.broker(1)
    cluster.broker(2, fenced=True)
    cluster.partition(replicas=[1, 2], isr=[], last_known_elr=last, leader=-1)
    assert build(cluster) is None


def test_when_all_were_killed_at_once_the_last_to_be_known_leads_again_and_one_line_says_what_that_means(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(min_isr=2)
    cluster.brokers(1, 2, 3)
    for _ in range(elections.NAMED_MAX + 2):
        cluster.partition(replicas=[1, 2, 3])
    for broker_id in (1, 2, 3):  # each is back, and does not say that it stopped cleanly
        cluster.apply(*elections.broker_lost_records(cluster.view, broker_id))
        cluster.broker(broker_id, fenced=True, broker_epoch=200 + broker_id)
    assert not elections.broker_joins(cluster.view, 1) and not elections.broker_joins(cluster.view, 2)
    assert not caplog.messages
    cluster.apply(*elections.broker_joins(cluster.view, 3))
    partitions = cluster.located().topic.partitions
    assert {(found.leader, found.isr, found.last_known_elr) for found in partitions} == {(3, (3,), ())}
    (told,) = caplog.messages
    assert told.startswith("broker 3 leads again what it led last (t-0, t-1, t-2, t-3, t-4 and 2 more): ")
    assert "Where processes were killed none is missing" in told and "where its disk was replaced, all are" in told


def test_one_that_is_elected_by_hand_and_led_last_is_told_as_that(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1, 2], isr=[], last_known_elr=[2], leader=-1)
    assert build(cluster, election=Election.UNCLEAN) is not None
    assert [message[:47] for message in caplog.messages] == ["broker 2 leads again what it led last (t-0): ev"]


def test_an_unclean_election_says_what_it_costs(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.broker(1)
    cluster.broker(2, fenced=True)
    cluster.partition(replicas=[1, 2], isr=[], last_known_elr=[2], leader=-1)
    assert build(cluster, election=Election.UNCLEAN) is not None
    assert caplog.messages == [
        "the partition t-0 gets broker 1 as its leader in an unclean election: what was committed and that broker has not is lost "
        "(in sync: [], eligible: [])"
    ]


def test_the_last_leader_is_not_elected_while_somebody_is_eligible() -> None:
    cluster = Cluster(min_isr=2)
    cluster.broker(1, fenced=True)
    cluster.broker(2)
    cluster.partition(replicas=[1, 2], isr=[], eligible_leader_replicas=[1], last_known_elr=[2], leader=-1)
    assert build(cluster) is None


def test_who_led_last_is_kept_from_the_first_time_on() -> None:
    cluster = Cluster()
    cluster.broker(1, fenced=True)
    cluster.broker(2, fenced=True)
    cluster.partition(replicas=[1, 2], isr=[1], last_known_elr=[2])
    assert build(cluster) == change_of(leader=-1)


def test_a_partition_that_never_had_a_leader_has_no_last_one() -> None:
    cluster = Cluster()
    cluster.brokers(3)
    cluster.partition(replicas=[1, 2], isr=[], leader=-1)
    record = build(cluster, replicas=[3])
    assert record is not None
    assert record.last_known_elr is None


def test_a_broker_that_is_no_replica_any_more_is_not_eligible() -> None:
    """Placed there again it would count as one that has what was committed (Apache Kafka keeps it)."""
    cluster = bar(min_isr=4)
    record = build(cluster, isr=[1, 2, 3, 4])
    assert record is not None
    assert record.replicas == [2, 3, 4]
    assert record.eligible_leader_replicas is None


# Epochs


@pytest.mark.parametrize("level", [12, 30])
def test_from_3_6_on_an_isr_that_shrinks_leaves_the_leader_epoch(level: int) -> None:
    assert build(foo(elr=False, level=level), isr=[2, 1]) == change_of(isr=[2, 1])


def test_before_3_6_an_isr_that_shrinks_raises_the_leader_epoch() -> None:
    cluster = foo(elr=False, level=11)
    assert build(cluster, isr=[2, 1]) == change_of(isr=[2, 1], leader=1)
    assert build(cluster) is None


def test_before_3_6_a_last_member_that_cannot_leave_raises_nothing() -> None:
    """KAFKA-16624: what is wanted is not what is written."""
    cluster = Cluster(elr=False, level=11)
    cluster.broker(1)
    cluster.partition(replicas=[1])
    assert build(cluster, isr=[1]) is None


def test_an_isr_that_grows_leaves_the_leader_epoch() -> None:
    cluster = Cluster(elr=False, level=11)
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1, 2], isr=[1])
    assert build(cluster, isr=[1, 2]) == change_of(isr=[1, 2])


def test_a_replica_that_leaves_the_partition_raises_the_leader_epoch() -> None:
    cluster = foo(elr=False, absent=[])
    record = build(cluster, replicas=[2, 1], isr=[2, 1])
    assert record is not None
    assert record.leader == 1


def test_a_replica_that_comes_leaves_the_leader_epoch() -> None:
    cluster = foo(absent=[])
    record = build(cluster, replicas=[2, 1, 3, 4], adding=[4])
    assert record is not None
    assert record.leader == -2


# Reassignments


def test_a_reassignment_is_complete_when_all_that_come_are_in_sync() -> None:
    record = build(bar(), isr=[1, 2, 3, 4])
    assert record == change_of(
        replicas=[2, 3, 4],
        isr=[2, 3, 4],
        leader=2,
        removing_replicas=[],
        adding_replicas=[],
        directories=[directory_id(2), directory_id(3), directory_id(4)],
    )


def test_a_reassignment_waits_for_all_that_come() -> None:
    assert build(bar(), isr=[1, 2]) == change_of(isr=[1, 2])


def test_a_reassignment_does_not_wait_for_who_stays() -> None:
    record = build(bar(), isr=[1, 4])
    assert record is not None
    assert (record.replicas, record.isr, record.leader) == ([2, 3, 4], [4], 4)


def test_a_reassignment_to_fewer_replicas_waits_for_who_stays() -> None:
    """From 0, 1, 2, 3, 4 to 2, 3, 4, 5 while 0, 1 and 5 are in sync: the ISR would be 5 alone."""
    cluster = Cluster()
    cluster.brokers(0, 1, 2, 3, 4, 5)
    cluster.partition(replicas=[2, 3, 4, 5, 0, 1], isr=[0, 1], leader=0, adding_replicas=[5], removing_replicas=[0, 1])
    assert build(cluster, isr=[0, 1, 5]) == change_of(isr=[0, 1, 5])
    record = build(cluster, isr=[0, 1, 2, 3, 4, 5])
    assert record is not None
    assert record.replicas == [2, 3, 4, 5]


def test_a_reassignment_needs_a_survivor() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2)
    cluster.partition(replicas=[2, 1], isr=[1], removing_replicas=[1], leader=1)
    assert build(cluster) is None


def test_a_leader_that_is_removed_does_not_lead_on_though_nobody_else_can() -> None:
    cluster = Cluster(elr=False)
    for broker_id in range(4):
        cluster.broker(broker_id, fenced=True)
    cluster.partition(replicas=[2, 3, 0, 1], isr=[0, 1], leader=0, adding_replicas=[2, 3], removing_replicas=[0, 1])
    record = build(cluster, isr=[0, 1, 2, 3])
    assert record is not None
    assert (record.leader, record.isr, record.replicas) == (-1, [2, 3], [2, 3])


def test_replicas_in_another_order_take_their_directories_along() -> None:
    cluster = foo()
    record = build(cluster, replicas=[3, 2, 1])
    assert record == change_of(replicas=[3, 2, 1], directories=[directory_id(3), directory_id(2), directory_id(1)])


def test_a_new_replica_is_in_its_broker_s_only_directory_or_in_one_to_choose() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2)
    cluster.broker(3, directories=2)
    cluster.partition(replicas=[1])
    record = build(cluster, replicas=[1, 2, 3], adding=[2, 3])
    assert record is not None
    assert record.directories == [directory_id(1), directory_id(2), UNASSIGNED_DIRECTORY]


def test_before_directories_there_are_none() -> None:
    cluster = Cluster(elr=False, level=16)
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1], directories=[])
    assert build(cluster, replicas=[1, 2], adding=[2]) == change_of(replicas=[1, 2], adding_replicas=[2])


# Plans


def test_a_broker_that_leaves_is_out_of_every_isr_and_leads_nothing() -> None:
    cluster = Cluster(min_isr=1)
    cluster.brokers(1, 2, 3)
    cluster.partition(replicas=[1, 2, 3])
    cluster.partition(replicas=[2, 1, 3])
    cluster.partition(replicas=[2, 3])
    assert elections.broker_leaves(cluster.view, 1) == [
        change_of(number=0, isr=[2, 3], leader=2),
        change_of(number=1, isr=[2, 3]),
    ]


def test_a_broker_that_leaves_is_not_elected_uncleanly_either() -> None:
    cluster = Cluster(elr=False)
    cluster.broker(1)
    cluster.broker(2, fenced=True)
    cluster.partition(replicas=[1, 2], isr=[1])
    cluster.config("t", "unclean.leader.election.enable", "true")
    assert elections.broker_leaves(cluster.view, 1) == [change_of(leader=-1)]


def test_where_the_topic_allows_it_a_leader_that_leaves_is_followed_uncleanly() -> None:
    cluster = Cluster(elr=False)
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1, 2], isr=[1])
    cluster.config("t", "unclean.leader.election.enable", "true")
    assert elections.broker_leaves(cluster.view, 1) == [change_of(leader=2, isr=[2], leader_recovery_state=RECOVERING)]


def test_a_broker_that_lost_records_is_neither_in_sync_nor_eligible() -> None:
    cluster = Cluster(min_isr=2)
    cluster.broker(1, fenced=True)
    cluster.brokers(2)
    cluster.partition(replicas=[1, 2], isr=[2], eligible_leader_replicas=[1])
    cluster.partition(replicas=[1, 2], isr=[1], leader=-1)
    cluster.partition(replicas=[2])
    assert elections.broker_lost_records(cluster.view, 1) == [
        change_of(number=0, eligible_leader_replicas=[]),
        change_of(number=1, isr=[], last_known_elr=[1]),
    ]


def test_a_broker_that_joins_leads_what_nobody_led_where_it_has_everything() -> None:
    cluster = Cluster(elr=False)
    cluster.broker(1, fenced=True)
    cluster.broker(2, fenced=True)
    cluster.partition(replicas=[2, 1], isr=[1], leader=-1)
    cluster.partition(replicas=[2, 1], isr=[2], leader=-1)
    cluster.partition(replicas=[2, 1], isr=[2], leader=2)
    assert elections.broker_joins(cluster.view, 1) == [change_of(number=0, leader=1)]


@pytest.mark.parametrize(
    ("kind", "partition", "code", "leader"),
    [
        (PREFERRED_TYPE, 0, ErrorCode.ELECTION_NOT_NEEDED, None),
        (PREFERRED_TYPE, 1, ErrorCode.NONE, 2),
        (PREFERRED_TYPE, 2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, None),
        (UNCLEAN_TYPE, 1, ErrorCode.ELECTION_NOT_NEEDED, None),
        (UNCLEAN_TYPE, 3, ErrorCode.NONE, 1),
        (UNCLEAN_TYPE, 4, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, None),
        (PREFERRED_TYPE, 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (PREFERRED_TYPE, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
    ],
)
def test_elections_that_are_asked_for(kind: int, partition: int, code: ErrorCode, leader: int | None) -> None:
    cluster = asked_for()
    answer, records = elections.plan_elect_leaders(cluster.view, kind, [("t", [partition])])
    assert answer.error_code == ErrorCode.NONE
    (topic,) = answer.replica_election_results
    assert [(item.partition_id, item.error_code) for item in topic.partition_result] == [(partition, code)]
    assert [record.leader for record in records] == ([] if leader is None else [leader])


def asked_for() -> Cluster:
    cluster = Cluster(elr=False)
    cluster.brokers(1, 2)
    cluster.broker(3, fenced=True)
    cluster.partition(replicas=[1, 2])
    cluster.partition(replicas=[2, 1], leader=1)
    cluster.partition(replicas=[3, 1], isr=[1])
    cluster.partition(replicas=[3, 1], isr=[3], leader=-1)
    cluster.partition(replicas=[3], leader=-1)
    return cluster


def test_an_election_of_all_leaves_out_what_needs_none() -> None:
    answer, records = elections.plan_elect_leaders(asked_for().view, PREFERRED_TYPE, None)
    (topic,) = answer.replica_election_results
    assert [(item.partition_id, item.error_code) for item in topic.partition_result] == [
        (1, ErrorCode.NONE),
        (2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (3, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (4, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ]
    assert [record.partition_id for record in records] == [1]


def test_elections_of_what_is_not_there() -> None:
    cluster = asked_for()
    answer, records = elections.plan_elect_leaders(cluster.view, UNCLEAN_TYPE, [("u", [0])])
    assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert records == []


def test_preferred_leaders_come_back_in_rounds() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2)
    for _ in range(5):
        cluster.partition(replicas=[1, 2], leader=2)
    cluster.partition(replicas=[1, 2], leader=1)
    more, records = elections.plan_preferred_leaders(cluster.view, limit=3)
    assert more
    assert [(record.partition_id, record.leader) for record in records] == [(0, 1), (1, 1), (2, 1)]
    cluster.apply(*records)
    more, records = elections.plan_preferred_leaders(cluster.view, limit=3)
    assert not more
    assert [record.partition_id for record in records] == [3, 4]


def test_unclean_leaders_only_where_the_topic_allows_them() -> None:
    cluster = Cluster(elr=False)
    cluster.broker(1)
    cluster.broker(2, fenced=True)
    for name in ("safe", "bold"):
        cluster.partition(name, replicas=[2, 1], isr=[2], leader=-1)
        cluster.partition(name, replicas=[2], leader=-1)
    cluster.config("bold", "unclean.leader.election.enable", "true")
    more, records = elections.plan_unclean_leaders(cluster.view)
    assert not more
    assert [(record.topic_id, record.partition_id, record.leader) for record in records] == [(topic_id("bold"), 0, 1)]
    assert elections.plan_unclean_leaders(cluster.view, limit=1)[0]


def test_recovered_is_what_a_leader_may_become() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    cluster.partition(replicas=[1], leader_recovery_state=RECOVERING)
    assert build(cluster, recovery=RECOVERED) == change_of(leader_recovery_state=RECOVERED)
