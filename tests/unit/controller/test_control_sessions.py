"""Sessions of brokers: who was heard when, and who is gone. Cases are those of Apache Kafka's BrokerHeartbeatManagerTest, and those of its
bugs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from control_world import Cluster
from fastq_broker.controller import brokers
from fastq_broker.controller.brokers import EVERY_OFFSET, BrokerState, HeartbeatResult, Sessions

from fastq.errors import ErrorCode
from fastq.protocol import messages as m

TIMEOUT = 9000
OTHER = b"b" * 16
"""Another incarnation, which wants the id."""


def sessions(cluster: Cluster, now: int = 0) -> Sessions:
    found = Sessions(TIMEOUT)
    found.follow(cluster.image, now)
    return found


def asked(broker_id: int, offset: int = 1000) -> m.BrokerHeartbeatRequest:
    return m.BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=100 + broker_id, current_metadata_offset=offset, want_fence=False
    )


def test_a_new_leader_gives_each_unfenced_broker_a_whole_session() -> None:
    """KAFKA-18138: a broker that died while leaders changed is fenced, though the new one never heard it."""
    cluster = Cluster()
    cluster.brokers(1)
    cluster.broker(2, fenced=True)
    found = sessions(cluster, 100)
    assert found.expired(100 + TIMEOUT) is None
    assert found.expired(101 + TIMEOUT) == 1
    assert found.expired(101 + TIMEOUT) is None


def test_one_broker_is_fenced_at_a_time_the_one_unheard_for_longest_first() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2, 3)
    found = sessions(cluster)
    for broker_id, at in ((1, 300), (2, 100), (3, 200)):
        found.heard(broker_id, 100 + broker_id, at)
    assert [found.expired(10_000) for _ in range(4)] == [2, 3, 1, None]
    assert found.tick_ms == TIMEOUT // 8


def test_a_heartbeat_keeps_the_session() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    found = sessions(cluster)
    found.heard(1, 101, 5000)
    assert found.expired(14_000) is None
    assert found.is_live(1, OTHER, 14_000)
    assert not found.is_live(1, OTHER, 14_001)
    assert found.expired(14_001) == 1


@pytest.mark.parametrize(("broker_id", "epoch"), [(1, 100), (1, 102), (7, 107)])
def test_what_comes_in_another_epoch_counts_for_nothing(broker_id: int, epoch: int) -> None:
    cluster = Cluster()
    cluster.brokers(1)
    found = sessions(cluster)
    found.heard(broker_id, epoch, 9000)
    found.broken(broker_id, epoch, None, 9000)
    found.heartbeat(
        m.BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=9),
        HeartbeatResult(in_controlled_shutdown=True),
        50,
    )
    assert found.state(1).shutdown_at == -1
    assert found.expired(9000) is None
    assert found.expired(9001) == 1


def test_a_fenced_broker_is_not_fenced_again() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    found = sessions(cluster)
    cluster.apply(*brokers.plan_fence(cluster.view, 1))
    found.follow(cluster.image, 0)
    assert found.expired(20_000) is None
    assert not found.is_live(1, OTHER, 20_000)


def test_where_a_fence_was_not_written_the_broker_gets_another_session() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    found = sessions(cluster)
    assert found.expired(10_000) == 1
    found.follow(cluster.image, 10_000)
    assert found.expired(19_000) is None
    assert found.expired(19_001) == 1


def test_a_new_incarnation_begins_without_a_session() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    found = sessions(cluster)
    cluster.broker(1, fenced=True, broker_epoch=300)
    found.follow(cluster.image, 0)
    assert not found.is_live(1, OTHER, 0)
    assert found.state(1).registered_at == cluster.image.offset
    found.heard(1, 300, 10)
    assert found.is_live(1, OTHER, 20)


def test_a_registration_that_says_other_things_is_to_be_read_anew() -> None:
    cluster = Cluster()
    cluster.broker(1, fenced=True)
    found = sessions(cluster)
    before = found.state(1).registered_at
    cluster.brokers(2)
    found.follow(cluster.image, 0)
    assert found.state(1).registered_at == before
    cluster.broker(1, fenced=True, rack="elsewhere")
    found.follow(cluster.image, 0)
    assert found.state(1).registered_at == cluster.image.offset


def test_a_broker_that_is_unregistered_is_forgotten() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    found = sessions(cluster)
    cluster.apply(m.UnregisterBrokerRecord(broker_id=1, broker_epoch=101))
    found.follow(cluster.image, 0)
    assert found.expired(20_000) is None
    assert found.state(1) == BrokerState(EVERY_OFFSET, -1, EVERY_OFFSET)


def test_a_connection_that_was_closed_ends_the_session_unless_the_broker_is_heard_again() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2)
    found = sessions(cluster)
    first, second = object(), object()
    found.heard(1, 101, 1, first)
    found.heard(2, 102, 1, first)
    assert found.broken(1, 101, first, 505) and found.broken(2, 102, first, 505)
    assert [found.is_live(1, OTHER, at) for at in (5, 504, 505)] == [True, True, False]
    assert found.is_silent(1, OTHER, 4000, 5)  # whoever comes in its place need not wait
    found.heard(2, 102, 5, second)
    assert found.is_live(2, OTHER, 5)
    assert not found.broken(2, 102, first, 505)
    assert found.next_look(504) == 505  # however long a tick is
    assert [found.expired(504), found.expired(505), found.expired(505)] == [None, 1, None]
    assert found.next_look(505) == 505 + found.tick_ms
    assert not found.broken(1, 101, first, 505)


def test_who_is_silent_may_be_taken_for_gone_but_not_by_whom_it_displaced() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    found = sessions(cluster)
    assert found.is_silent(7, OTHER, 4000, 0)
    assert not found.is_silent(1, OTHER, 4000, 4000)  # as long as any other, where this node leads anew
    assert found.is_silent(1, OTHER, 4000, 4001)
    found.heard(1, 101, 1000)
    assert not found.is_silent(1, OTHER, 4000, 5000)
    assert found.is_silent(1, OTHER, 4000, 5001)
    before = cluster.image.brokers[1].incarnation_id
    cluster.broker(1, broker_epoch=300, incarnation_id=OTHER)
    found.follow(cluster.image, 6000)
    found.heard(1, 300, 6000)
    assert found.is_silent(1, b"c" * 16, 4000, 10_001) and not found.is_silent(1, before, 4000, 10_001)


def displaced_at_5(cluster: Cluster) -> tuple[Sessions, bytes]:
    """Broker 1 was displaced by an incarnation that has registered, and not been heard; and who it was."""
    cluster.brokers(1)
    found = sessions(cluster)
    found.heard(1, 101, 1)
    before = cluster.image.brokers[1].incarnation_id
    cluster.broker(1, fenced=True, broker_epoch=300, incarnation_id=OTHER)
    found.follow(cluster.image, 5)
    return found, before


def test_who_was_displaced_waits_for_who_has_only_registered() -> None:
    """It had taken the id back before the other's first heartbeat, and that one again."""
    found, before = displaced_at_5(Cluster())
    assert not found.is_live(1, b"c" * 16, 6)  # any other may: this one may be gone
    assert found.is_live(1, before, 5 + TIMEOUT) and not found.is_live(1, before, 6 + TIMEOUT)
    assert not found.is_silent(1, before, 4000, 5000)


def test_who_was_displaced_waits_until_one_whose_connection_is_closed_is_fenced() -> None:
    found, before = displaced_at_5(Cluster())
    link = object()
    found.heard(1, 300, 10, link)
    assert found.broken(1, 300, link, 510)
    assert found.is_live(1, before, 511) and not found.is_silent(1, before, 4000, 511)
    assert found.is_silent(1, b"c" * 16, 4000, 11)
    assert found.expired(510) is None  # it was fenced before
    assert not found.is_live(1, before, 511)


def test_the_shutdown_waits_for_who_is_active_and_not_for_who_shuts_down() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2, 3)
    cluster.broker(4, fenced=True)
    found = sessions(cluster)
    found.heartbeat(asked(1, 7), HeartbeatResult(is_fenced=False, in_controlled_shutdown=True), 50)
    assert found.state(1) == BrokerState(cluster.image.offset, 50, -1)  # 2 and 3 have said nothing yet
    found.heartbeat(asked(2, 49), HeartbeatResult(is_fenced=False), 51)
    found.heartbeat(asked(3, 60), HeartbeatResult(is_fenced=False), 51)
    assert found.state(1).lowest_active == 49
    found.heartbeat(asked(1, 70), HeartbeatResult(is_fenced=False, in_controlled_shutdown=True), 99)
    assert found.state(1).shutdown_at == 50  # the first batch took the leaderships


def test_a_fence_ends_the_shutdown() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    found = sessions(cluster)
    found.heartbeat(asked(1), HeartbeatResult(is_fenced=False, in_controlled_shutdown=True), 50)
    cluster.apply(*brokers.plan_fence(cluster.view, 1))
    found.follow(cluster.image, 0)
    assert found.state(1).shutdown_at == -1


def test_a_broker_that_has_shut_down_may_come_back_at_once() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    found = sessions(cluster)
    found.heard(1, 101, 100)
    leaving = m.BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=101, current_metadata_offset=1000, want_fence=False, want_shut_down=True
    )
    result, records = brokers.plan_heartbeat(cluster.view, leaving, found.state(1))
    found.heartbeat(asked(1), result, 50)
    cluster.apply(*records)
    found.follow(cluster.image, 100)
    assert not found.is_live(1, OTHER, 101)


def test_a_heartbeat_that_is_refused_says_nothing() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    found = sessions(cluster)
    found.heartbeat(asked(1, 5), HeartbeatResult(ErrorCode.STALE_BROKER_EPOCH), 50)
    assert found.state(1).lowest_active == -1


def test_every_broker_of_a_sequence_is_fenced_within_a_session_and_its_ticks() -> None:
    cluster = Cluster()
    cluster.brokers(*range(1, 6))
    found = sessions(cluster)
    fenced: Sequence[int | None] = [found.expired(now) for now in range(0, 2 * TIMEOUT, found.tick_ms)]
    assert sorted(filter(None, fenced)) == [1, 2, 3, 4, 5]


def test_the_least_offset_of_active_brokers_is_that_of_all_sessions_looked_at() -> None:
    """Against the slow way, through heartbeats, fences, shutdowns, new epochs and removals."""
    random = Random(7)
    cluster = Cluster()
    cluster.brokers(1, 2, 3, 4)
    found, image = sessions(cluster), cluster.image
    for turn in range(400):
        broker_id = random.choice((1, 2, 3, 4))
        known = image.brokers.get(broker_id)
        what = random.random()
        if what < 0.7 and known is not None:
            request = m.BrokerHeartbeatRequest(
                broker_id=broker_id, broker_epoch=known.epoch, current_metadata_offset=random.randrange(40)
            )
            leaves = random.random() < 0.1
            found.heartbeat(request, HeartbeatResult(in_controlled_shutdown=leaves), turn)
        else:
            brokers = dict(image.brokers)
            if known is None:
                brokers[broker_id] = cluster.image.brokers[broker_id]._replace(epoch=1000 + turn)
            elif what < 0.75:
                del brokers[broker_id]
            else:
                brokers[broker_id] = known._replace(fenced=not known.fenced)
            image = image._replace(brokers=brokers)
            found.follow(image, turn)
        active = [s.metadata_offset for s in found._brokers.values() if not s.is_fenced and s.shutdown_at < 0]
        for each in image.brokers:
            assert found.state(each).lowest_active == min(active, default=EVERY_OFFSET)
