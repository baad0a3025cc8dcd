"""Registration, heartbeats, fencing and sessions, one test a rule. Cases are those of Apache Kafka's ClusterControlManagerTest,
BrokerHeartbeatManagerTest and ReplicationControlManagerTest, and those of its bugs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
from control_world import CLUSTER, LATEST, Cluster, change_of, directory_id
from fastq_broker.controller import brokers, features
from fastq_broker.controller.brokers import EVERY_OFFSET, BrokerState, HeartbeatResult, Registered, Sessions
from fastq_broker.controller.image import LOST_DIRECTORY, Record

from fastq.errors import ErrorCode
from fastq.protocol import messages as m

FINALIZED = {features.METADATA_VERSION: LATEST, features.KRAFT_VERSION: 1, "group.version": 1}
RANGES = {features.METADATA_VERSION: (7, LATEST), features.KRAFT_VERSION: (0, 1), "group.version": (0, 1)}
CAUGHT_UP = BrokerState(registered_at=0, shutdown_at=-1, lowest_active=EVERY_OFFSET)


def registration(
    broker_id: int = 1, ranges: Mapping[str, tuple[int, int]] = RANGES, **fields: Any
) -> m.BrokerRegistrationRequest:
    kind = m.BrokerRegistrationRequest
    asked: dict[str, Any] = {
        "broker_id": broker_id,
        "cluster_id": CLUSTER,
        "incarnation_id": b"another-one-here",
        "listeners": [kind.Listener(name="INTERNAL", host="h", port=9, security_protocol=0)],
        "features": [
            kind.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in ranges.items()
        ],
        "rack": "r",
        "log_dirs": [directory_id(broker_id)],
        "previous_broker_epoch": -1,
    }
    return kind(**{**asked, **fields})


def register(
    cluster: Cluster,
    request: m.BrokerRegistrationRequest,
    *,
    version: int = 4,
    is_live: bool = False,
    finalized: Mapping[str, int] = FINALIZED,
) -> tuple[Registered, list[Record]]:
    return brokers.plan_registration(
        cluster.view, request, version=version, epoch=500, finalized=finalized, is_live=is_live
    )


def heartbeat(
    cluster: Cluster, broker_id: int = 1, state: BrokerState = CAUGHT_UP, **fields: Any
) -> tuple[HeartbeatResult, list[Record]]:
    asked: dict[str, Any] = {
        "broker_id": broker_id,
        "broker_epoch": 100 + broker_id,
        "current_metadata_offset": 1000,
        "want_fence": False,
        "want_shut_down": False,
        "offline_log_dirs": [],
        "cordoned_log_dirs": None,
    }
    return brokers.plan_heartbeat(cluster.view, m.BrokerHeartbeatRequest(**{**asked, **fields}), state)


def told(result: HeartbeatResult) -> tuple[bool, bool, bool]:
    return result.is_caught_up, result.is_fenced, result.should_shut_down


def registered(broker_id: int, **fields: int) -> m.BrokerRegistrationChangeRecord:
    return m.BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=100 + broker_id, **fields)


# Registration


def test_a_broker_registers_fenced_with_the_next_offset_as_its_epoch() -> None:
    result, records = register(Cluster(), registration())
    assert result == Registered(epoch=500)
    kind = m.RegisterBrokerRecord
    assert records == [
        kind(
            broker_id=1,
            incarnation_id=b"another-one-here",
            broker_epoch=500,
            end_points=[kind.BrokerEndpoint(name="INTERNAL", host="h", port=9, security_protocol=0)],
            features=[
                kind.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in RANGES.items()
            ],
            rack="r",
            fenced=True,
            log_dirs=[directory_id(1)],
        )
    ]


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID, "other"),
        ({"is_migrating_zk_broker": True}, ErrorCode.BROKER_ID_NOT_REGISTERED, "ZooKeeper"),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION, "no log directory"),
        ({"log_dirs": [directory_id(1), LOST_DIRECTORY]}, ErrorCode.INVALID_REGISTRATION, "reserved"),
        ({"log_dirs": [directory_id(1)] * 2}, ErrorCode.INVALID_REGISTRATION, "twice"),
        ({"log_dirs": [directory_id(2)]}, ErrorCode.INVALID_REGISTRATION, "broker 2's"),
        ({"ranges": {"group.version": (0, 1)}}, ErrorCode.UNSUPPORTED_VERSION, "kraft.version"),
        (
            {"ranges": {features.KRAFT_VERSION: (0, 1), "group.version": (0, 1)}},
            ErrorCode.INVALID_REGISTRATION,
            "metadata",
        ),
        ({"ranges": {**RANGES, features.METADATA_VERSION: (7, 29)}}, ErrorCode.UNSUPPORTED_VERSION, "7 to 29"),
        ({"ranges": {**RANGES, features.KRAFT_VERSION: (0, 0)}}, ErrorCode.UNSUPPORTED_VERSION, "kraft.version"),
        ({"ranges": {**RANGES, "group.version": (0, 0)}}, ErrorCode.UNSUPPORTED_VERSION, "group.version"),
        ({"ranges": {**RANGES, "unheard.of": (1, 2)}}, ErrorCode.UNSUPPORTED_VERSION, "unheard.of"),
    ],
)
def test_registrations_that_are_refused(fields: dict[str, Any], code: ErrorCode, words: str) -> None:
    cluster = Cluster()
    cluster.brokers(2)
    result, records = register(cluster, registration(**fields))
    assert (result.error, result.epoch, records) == (code, -1, [])
    assert words in (result.message or "")
    assert "broker 1" in (result.message or "")


def test_a_feature_that_is_not_finalized_may_be_unknown() -> None:
    result, _ = register(Cluster(), registration(ranges={**RANGES, "unheard.of": (0, 2)}))
    assert result.error == ErrorCode.NONE
    result, _ = register(Cluster(), registration(), finalized={**FINALIZED, "share.version": 0})
    assert result.error == ErrorCode.NONE


def test_before_directories_a_broker_names_none() -> None:
    result, records = register(
        Cluster(level=16, elr=False), registration(log_dirs=[]), finalized={features.METADATA_VERSION: 16}
    )
    assert result.error == ErrorCode.NONE
    assert records[0].log_dirs == []


def test_another_incarnation_waits_for_the_end_of_the_session() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    result, records = register(cluster, registration(), is_live=True)
    assert (result.error, records) == (ErrorCode.DUPLICATE_BROKER_REGISTRATION, [])
    result, records = register(cluster, registration(), is_live=False)
    assert (result.error, result.epoch) == (ErrorCode.NONE, 500)


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("shutting", [True, False])
def test_the_same_incarnation_keeps_its_epoch_and_is_fenced_or_not_as_it_was(fenced: bool, shutting: bool) -> None:
    cluster = Cluster()
    cluster.broker(1, fenced=fenced, shutting=shutting)
    cluster.partition(replicas=[1])
    again = registration(incarnation_id=b"%016d" % 1)
    result, records = register(cluster, again, is_live=True)
    assert result == Registered(epoch=101)
    (record,) = records
    assert (record.broker_epoch, record.fenced, record.in_controlled_shutdown) == (101, fenced, shutting)


def two_partitions(**more: Any) -> Cluster:
    cluster = Cluster(min_isr=2, **more)
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1, 2])
    cluster.partition(replicas=[1, 2], isr=[2], eligible_leader_replicas=[1] if more.get("elr", True) else [])
    return cluster


def test_after_a_clean_stop_a_broker_leaves_the_isr_and_stays_eligible() -> None:
    result, records = register(two_partitions(), registration(previous_broker_epoch=101))
    assert result.error == ErrorCode.NONE
    assert records[:-1] == [change_of(leader=2, isr=[2], eligible_leader_replicas=[1])]
    assert isinstance(records[-1], m.RegisterBrokerRecord)


@pytest.mark.parametrize(
    ("previous", "version"),
    [(-1, 4), (100, 4), (101, 2)],
    ids=["nothing is said", "an older epoch", "a version that cannot say it"],
)
def test_after_another_stop_it_is_not_eligible_either(previous: int, version: int) -> None:
    _, records = register(two_partitions(), registration(previous_broker_epoch=previous), version=version)
    assert records[:-1] == [
        change_of(number=0, leader=2, isr=[2]),
        change_of(number=1, eligible_leader_replicas=[]),
    ]


def test_without_eligible_replicas_every_stop_is_alike() -> None:
    _, records = register(two_partitions(elr=False), registration())
    assert records[:-1] == [change_of(leader=2, isr=[2])]


def test_a_broker_that_nobody_knows_has_no_clean_stop() -> None:
    cluster = two_partitions()
    cluster.apply(m.UnregisterBrokerRecord(broker_id=1, broker_epoch=101))
    _, records = register(cluster, registration(previous_broker_epoch=-1))
    assert [record.partition_id for record in records[:-1]] == [0, 1]


def test_unregistering_takes_a_broker_out_of_everything() -> None:
    result, records = brokers.plan_unregistration(two_partitions().view, 1)
    assert result.error == ErrorCode.NONE
    assert records == [
        change_of(number=0, leader=2, isr=[2]),
        change_of(number=1, eligible_leader_replicas=[]),
        m.UnregisterBrokerRecord(broker_id=1, broker_epoch=101),
    ]
    result, records = brokers.plan_unregistration(two_partitions().view, 7)
    assert (result.error, records) == (ErrorCode.BROKER_ID_NOT_REGISTERED, [])


# Heartbeats


@pytest.mark.parametrize(("broker_id", "epoch"), [(1, 100), (1, 102), (7, 107)])
def test_a_heartbeat_of_another_epoch_is_stale(broker_id: int, epoch: int) -> None:
    cluster = Cluster()
    cluster.brokers(1)
    result, records = heartbeat(cluster, broker_id, broker_epoch=epoch)
    assert (result.error, records) == (ErrorCode.STALE_BROKER_EPOCH, [])
    assert f"broker {broker_id}" in (result.message or "")


def test_a_broker_that_has_read_its_registration_is_unfenced_and_leads_what_nobody_led() -> None:
    cluster = Cluster()
    cluster.broker(1, fenced=True)
    cluster.partition(replicas=[1], leader=-1)
    early = CAUGHT_UP._replace(registered_at=1001)
    assert heartbeat(cluster, state=early) == (HeartbeatResult(), [])
    result, records = heartbeat(cluster, state=CAUGHT_UP._replace(registered_at=1000))
    assert told(result) == (True, False, False)
    assert records == [registered(1, fenced=-1), change_of(leader=1)]


def test_a_broker_that_wants_to_stay_fenced_stays_so_and_hears_that_it_has_caught_up() -> None:
    cluster = Cluster()
    cluster.broker(1, fenced=True)
    result, records = heartbeat(cluster, want_fence=True)
    assert (told(result), records) == ((True, True, False), [])


def test_an_unfenced_broker_is_left_alone() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    result, records = heartbeat(cluster)
    assert (told(result), records) == ((True, False, False), [])


def test_a_broker_that_wants_to_be_fenced_is() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1, 2])
    result, records = heartbeat(cluster, want_fence=True)
    assert told(result) == (True, True, False)
    assert records == [change_of(leader=2, isr=[2]), registered(1, fenced=1)]


@pytest.mark.parametrize("fenced", [True, False])
def test_a_broker_that_leads_nothing_shuts_down_at_once(fenced: bool) -> None:
    cluster = Cluster()
    cluster.broker(1, fenced=fenced)
    cluster.brokers(2)
    cluster.partition(replicas=[2, 1], isr=[2] if fenced else [2, 1])
    result, records = heartbeat(cluster, want_shut_down=True)
    assert told(result) == (True, True, True)
    assert records == [*([] if fenced else [change_of(isr=[2])]), registered(1, fenced=1)]


def test_a_broker_that_wants_both_is_fenced_and_shuts_down() -> None:
    cluster = Cluster()
    cluster.brokers(1)
    cluster.partition(replicas=[1])
    result, records = heartbeat(cluster, want_fence=True, want_shut_down=True)
    assert told(result) == (True, True, True)
    assert records[-1] == registered(1, fenced=1)


def test_a_broker_that_leads_shuts_down_in_two_steps() -> None:
    cluster = Cluster()
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1, 2])
    cluster.partition(replicas=[2, 1])
    result, records = heartbeat(cluster, want_shut_down=True)
    assert (told(result), result.in_controlled_shutdown) == ((True, False, False), True)
    assert records == [
        registered(1, in_controlled_shutdown=1),
        change_of(number=0, leader=2, isr=[2]),
        change_of(number=1, isr=[2]),
    ]
    cluster.apply(*records)
    waits = BrokerState(registered_at=0, shutdown_at=50, lowest_active=49)
    result, records = heartbeat(cluster, state=waits, want_shut_down=True)
    assert (told(result), result.in_controlled_shutdown, records) == ((True, False, False), True, [])
    result, records = heartbeat(cluster, state=waits._replace(lowest_active=50), want_shut_down=True)
    assert (told(result), records) == ((True, True, True), [registered(1, fenced=1)])


def test_a_broker_that_still_leads_does_not_shut_down() -> None:
    cluster = Cluster(elr=False)
    cluster.broker(1, shutting=True)
    cluster.partition(replicas=[1])
    state = BrokerState(registered_at=0, shutdown_at=50, lowest_active=EVERY_OFFSET)
    result, records = heartbeat(cluster, state=state, want_shut_down=True)
    assert (told(result), records) == ((True, False, False), [])


def test_a_new_controller_goes_on_with_a_shutdown_that_another_began() -> None:
    cluster = Cluster()
    cluster.broker(1, shutting=True)
    cluster.brokers(2)
    cluster.partition(replicas=[1, 2])
    result, records = heartbeat(cluster, want_shut_down=True)
    assert result.in_controlled_shutdown
    assert records == [change_of(leader=2, isr=[2])]


def test_replicas_of_a_directory_that_failed_leave_their_isr() -> None:
    cluster = Cluster()
    cluster.broker(1, directories=2)
    cluster.brokers(2)
    cluster.partition(replicas=[1, 2], directories=[directory_id(1, 0), directory_id(2)])
    cluster.partition(replicas=[1, 2], directories=[directory_id(1, 1), directory_id(2)])
    result, records = heartbeat(cluster, offline_log_dirs=[directory_id(1, 1), directory_id(9)])
    assert told(result) == (True, False, False)
    left = m.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=101, log_dirs=[directory_id(1, 0)])
    assert records == [change_of(number=1, leader=2, isr=[2]), left]
    cluster.apply(*records)
    assert heartbeat(cluster, offline_log_dirs=[directory_id(1, 1)])[1] == []


def test_a_directory_that_failed_is_told_with_what_else_the_heartbeat_changes_once() -> None:
    """The second step counts from the first: one change of a partition, one epoch more."""
    cluster = Cluster()
    cluster.brokers(1, 2)
    cluster.partition(replicas=[1, 2])
    _, records = heartbeat(cluster, want_fence=True, offline_log_dirs=[directory_id(1)])
    assert [type(record).__name__ for record in records] == [
        "PartitionChangeRecord",
        "BrokerRegistrationChangeRecord",
        "BrokerRegistrationChangeRecord",
    ]
    assert records[0] == change_of(leader=2, isr=[2])


def test_before_directories_nothing_is_made_of_them() -> None:
    cluster = Cluster(elr=False, level=16)
    cluster.brokers(1)
    assert heartbeat(cluster, offline_log_dirs=[directory_id(1)])[1] == []


def test_which_directories_are_cordoned_is_written_when_it_changes() -> None:
    cluster = Cluster()
    cluster.broker(1, directories=2)
    _, records = heartbeat(cluster, cordoned_log_dirs=[directory_id(1)])
    cordoned = m.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=101, cordoned_log_dirs=[directory_id(1)])
    assert records == [cordoned]
    cluster.apply(*records)
    for same in ([directory_id(1)], None):
        assert heartbeat(cluster, cordoned_log_dirs=same)[1] == []
    _, records = heartbeat(cluster, cordoned_log_dirs=[])
    assert records[0].cordoned_log_dirs == []
    older = Cluster(level=29)
    older.brokers(1)
    assert heartbeat(older, cordoned_log_dirs=[directory_id(1)])[1] == []


# Sessions

TIMEOUT = 9000


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
    assert found.is_live(1, 14_000)
    assert not found.is_live(1, 14_001)
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
    assert not found.is_live(1, 20_000)


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
    assert not found.is_live(1, 0)
    assert found.state(1).registered_at == cluster.image.offset
    found.heard(1, 300, 10)
    assert found.is_live(1, 20)


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
    assert not found.is_live(1, 5) and not found.is_live(2, 5)
    found.heard(2, 102, 5, second)
    assert found.is_live(2, 5)
    assert not found.broken(2, 102, first, 505)
    assert found.next_look(504) == 505  # however long a tick is
    assert [found.expired(504), found.expired(505), found.expired(505)] == [None, 1, None]
    assert found.next_look(505) == 505 + found.tick_ms
    assert not found.broken(1, 101, first, 505)


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
    result, records = heartbeat(cluster, want_shut_down=True)
    found.heartbeat(asked(1), result, 50)
    cluster.apply(*records)
    found.follow(cluster.image, 100)
    assert not found.is_live(1, 101)


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
