"""Registration, heartbeats and fencing, one test a rule. Cases are those of Apache Kafka's ClusterControlManagerTest,
BrokerHeartbeatManagerTest and ReplicationControlManagerTest, and those of its bugs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from control_world import CLUSTER, LATEST, Cluster, change_of, directory_id
from fastq_broker.controller import brokers, features
from fastq_broker.controller.brokers import EVERY_OFFSET, BrokerState, HeartbeatResult, Registered
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
