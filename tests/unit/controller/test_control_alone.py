"""What the active controller does with requests and with time, on one that is alone: its clock is the test's, and everything written is
committed at once. What several of them do is in test_cluster_control.py."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller import Controller, NewTopic
from fastq_broker.controller import controller as module
from fastq_broker.controller.cluster_control import ClusterControl
from fastq_broker.controller.config_changes import ConfigChange, ConfigOperation, ResourceChange
from fastq_broker.controller.feature_changes import UPGRADE, FeatureUpdate
from fastq_broker.controller.features import SUPPORTED
from fastq_broker.controller.image import PartitionImage
from fastq_broker.controller.topics import Refused
from fastq_broker.router import load_handler

from fastq.errors import ErrorCode, PolicyViolation
from fastq.protocol import messages as m

SESSION_MS = 9000
NOOP_MS = 500


class World:
    """A controller, and the brokers that speak with it."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.now_ms = 1_000_000
        named = {name.replace("_", "."): value for name, value in settings.items()}
        config = BrokerConfig.from_mapping(
            {
                "log.dirs": str(path / "data"),
                "listeners": "PLAINTEXT://127.0.0.1:9092",
                "broker.session.timeout.ms": SESSION_MS,
                "metadata.max.idle.interval.ms": 0,
                **named,
            }
        )
        self.controller = Controller(config, clock=lambda: 1_790_000_000_000, monotonic_ms=lambda: self.now_ms)
        self.controller.open()
        self.control = ClusterControl(self.controller)
        self.epochs: dict[int, int] = {}
        self.directories: dict[int, bytes] = {}

    def ask(self, request: Any, version: int | None = None) -> Any:
        version = request.MAX_VERSION if version is None else version
        if request.API_KEY in self.control.api_keys:
            return asyncio.run(self.control.serve(request, version))
        context = SimpleNamespace(controller=self.controller, api_version=version)
        return asyncio.run(load_handler(request.API_KEY).handle(context, request))

    def register(self, broker_id: int, incarnation: bytes = b"", **ranges: tuple[int, int]) -> Any:
        directory = self.directories.setdefault(broker_id, os.urandom(16))
        answer = self.ask(
            m.BrokerRegistrationRequest(
                broker_id=broker_id,
                cluster_id=self.controller.cluster_id,
                incarnation_id=incarnation or os.urandom(16),
                listeners=[],
                features=[
                    m.BrokerRegistrationRequest.Feature(
                        name=name, min_supported_version=low, max_supported_version=high
                    )
                    for name, (low, high) in {
                        **SUPPORTED,
                        **{k.replace("_", "."): v for k, v in ranges.items()},
                    }.items()
                ],
                log_dirs=[directory],
                previous_broker_epoch=self.epochs.get(broker_id, -1),
            )
        )
        if not answer.error_code:
            self.epochs[broker_id] = answer.broker_epoch
        return answer

    def beat(self, *broker_ids: int, **fields: Any) -> Any:
        """A heartbeat of each; the last answer."""
        answer = None
        for broker_id in broker_ids:
            answer = self.ask(
                m.BrokerHeartbeatRequest(
                    **{
                        "broker_id": broker_id,
                        "broker_epoch": self.epochs[broker_id],
                        "current_metadata_offset": self.controller.image.offset,
                        "want_fence": False,
                        "want_shut_down": False,
                        **fields,
                    }
                )
            )
            assert answer.error_code == 0
        return answer

    def brokers(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            assert not self.register(broker_id).error_code
            self.beat(broker_id)

    def create(self, name: str, *replicas: int, partitions: int = 1) -> None:
        (made,) = self.controller.create_topics(
            [NewTopic(name, assignments=[(number, replicas) for number in range(partitions)])]
        )
        assert not made.error, made.message

    def state(self, name: str, number: int = 0) -> PartitionImage:
        found = self.controller.image.partition(name, number)
        assert found is not None
        return found

    def passes(self, ms: int) -> None:
        """Time, in which the owner of the controller looks after it every 100 ms."""
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms += 100
            self.control.tick(self.now_ms)


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[World] = []

    def world(**settings: object) -> World:
        made.append(World(tmp_path, **settings))
        return made[-1]

    yield world
    for one in made:
        one.controller.close()


def configure(world: World, kind: ResourceType, name: str, key: str, value: str) -> None:
    change = ResourceChange(int(kind), name, [ConfigChange(key, ConfigOperation.SET, value)])
    (result,) = world.controller.alter_configs([change])
    assert not result.error, result.message


def test_who_is_silent_for_a_session_is_fenced_and_may_come_back(make: Make) -> None:
    world = make()
    world.brokers(1, 2)
    world.create("t", 1, 2)
    for _ in range(30):
        world.passes(SESSION_MS // 3)
        world.beat(1, 2)
    assert not any(broker.fenced for broker in world.controller.image.brokers.values())
    for _ in range(4):
        world.passes(SESSION_MS // 3)
        world.beat(2)
    assert world.controller.image.brokers[1].fenced and not world.controller.image.brokers[2].fenced
    assert (world.state("t").leader, world.state("t").isr) == (2, (2,))
    assert not world.beat(1).is_fenced
    assert world.state("t").leader == 2


def test_one_broker_is_fenced_at_a_time(make: Make) -> None:
    world = make()
    world.brokers(1, 2, 3)
    seen = set()
    for _ in range(200):
        world.passes(100)
        seen.add(sum(broker.fenced for broker in world.controller.image.brokers.values()))
    assert seen == {0, 1, 2, 3}


def test_a_controller_that_stood_still_hears_before_it_fences(make: Make) -> None:
    world = make()
    world.brokers(1, 2)
    world.passes(100)
    world.now_ms += SESSION_MS * 2  # as when the process was stopped
    world.control.tick(world.now_ms)
    world.beat(1)
    world.passes(SESSION_MS // 2)
    world.beat(1)
    assert not world.controller.image.brokers[1].fenced and world.controller.image.brokers[2].fenced


def test_a_new_leader_gives_everybody_a_whole_session(make: Make, tmp_path: Path) -> None:
    world = make()
    world.brokers(1)
    world.passes(SESSION_MS - 1000)
    world.control = ClusterControl(world.controller)  # as the next leader has it
    world.control.tick(world.now_ms)
    world.passes(SESSION_MS - 1000)
    assert not world.controller.image.brokers[1].fenced
    world.passes(3000)
    assert world.controller.image.brokers[1].fenced


def test_a_process_beside_a_living_one_is_refused(make: Make) -> None:
    world = make()
    assert not world.register(1, b"a" * 16).error_code
    assert not world.register(1, b"b" * 16).error_code  # the first one was never heard
    world.beat(1)
    assert world.register(1, b"c" * 16).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    epoch = world.epochs[1]
    assert world.register(1, b"b" * 16).broker_epoch == epoch
    world.passes(SESSION_MS + 2000)
    assert world.register(1, b"c" * 16).broker_epoch > epoch


def test_a_broker_goes_in_a_controlled_way(make: Make) -> None:
    world = make()
    world.brokers(1, 2)
    world.create("t", 1, 2)
    behind = world.controller.image.offset
    answer = world.beat(1, want_shut_down=True)
    assert not answer.should_shut_down
    assert (world.state("t").leader, world.state("t").isr) == (2, (2,))
    world.beat(2, current_metadata_offset=behind)
    assert not world.beat(1, want_shut_down=True).should_shut_down, "broker 2 does not know yet what it leads"
    world.beat(2)
    assert world.beat(1, want_shut_down=True).should_shut_down
    assert world.controller.image.brokers[1].fenced
    assert not world.register(1).error_code  # at once: its session is over


def test_a_fence_of_many_partitions_is_written_in_parts_and_what_must_be_whole_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECORDS_PER_CHANGE_MAX", 100)
    world = make()
    world.brokers(1, 2, 3)
    world.create("t", 1, 2, partitions=95)
    world.create("u", 1, 2, partitions=95)
    changes: list[int] = []
    world.controller.subscribe(lambda image, delta: changes.append(len(delta.changed_topics)))
    for _ in range(4):
        world.passes(SESSION_MS // 3)
        world.beat(2, 3)
    assert world.controller.image.brokers[1].fenced
    assert all(world.state(name, number).isr == (2,) for name in "tu" for number in range(95))
    assert changes == [2, 1]  # 190 partitions and the fence
    kind = m.AlterPartitionReassignmentsRequest
    request = kind(
        topics=[
            kind.ReassignableTopic(
                name=name,
                partitions=[
                    kind.ReassignablePartition(partition_index=number, replicas=[2, 3]) for number in range(95)
                ],
            )
            for name in "tu"
        ]
    )
    end = world.controller.quorum.end_offset
    with pytest.raises(PolicyViolation, match="190 records"):
        world.ask(request)
    assert world.controller.quorum.end_offset == end


def test_preferred_leaders_lead_again_after_a_while(make: Make) -> None:
    world = make(leader_imbalance_check_interval_seconds=20)
    world.brokers(1, 2)
    world.create("t", 1, 2)
    world.passes(100)
    world.beat(1, 2)
    world.beat(1, want_fence=True)
    world.beat(1)
    assert world.state("t").leader == 2
    alter_isr(world, "t", 2, [1, 2])
    for _ in range(4):
        world.passes(SESSION_MS // 2)
        world.beat(1, 2)
    assert world.state("t").leader == 2
    for _ in range(2):
        world.passes(SESSION_MS // 2)
        world.beat(1, 2)
    assert world.state("t").leader == 1


def alter_isr(world: World, name: str, leader: int, isr: list[int]) -> Any:
    kind = m.AlterPartitionRequest
    topic, state = world.controller.image.topics_by_name[name], world.state(name)
    data = kind.PartitionData(
        partition_index=0,
        leader_epoch=state.leader_epoch,
        new_isr_with_epochs=[kind.BrokerState(broker_id=one, broker_epoch=world.epochs[one]) for one in isr],
        partition_epoch=state.partition_epoch,
    )
    answer = world.ask(
        kind(
            broker_id=leader,
            broker_epoch=world.epochs[leader],
            topics=[kind.TopicData(topic_id=topic.topic_id, partitions=[data])],
        )
    )
    assert answer.error_code == 0
    assert answer.topics[0].partitions[0].error_code == 0
    return answer


def test_an_unclean_leader_is_found_where_a_topic_allows_it(make: Make) -> None:
    world = make(unclean_leader_election_interval_ms=10_000)
    world.brokers(1, 2)
    world.create("t", 1, 2)
    alter_isr(world, "t", 1, [1])  # 2 is behind
    world.beat(1, want_fence=True)
    assert world.state("t").leader == -1
    world.control.tick(world.now_ms)
    configure(world, ResourceType.TOPIC, "t", "unclean.leader.election.enable", "true")
    world.control.tick(world.now_ms)
    assert world.state("t").leader == -1
    for _ in range(3):
        world.beat(2)
        world.passes(4000)
    assert (world.state("t").leader, world.state("t").isr) == (2, (2,))
    assert world.state("t").leader_recovery_state == 1


def test_who_was_eligible_under_another_min_isr_is_not_any_more(make: Make) -> None:
    world = make()
    world.brokers(1, 2)
    world.create("t", 1, 2)
    configure(world, ResourceType.TOPIC, "t", "min.insync.replicas", "2")
    alter_isr(world, "t", 1, [1])
    assert world.state("t").eligible_leader_replicas == (2,)
    configure(world, ResourceType.TOPIC, "t", "retention.ms", "1000")
    assert world.state("t").eligible_leader_replicas == (2,)
    configure(world, ResourceType.TOPIC, "t", "min.insync.replicas", "1")
    assert world.state("t").eligible_leader_replicas == ()


def test_producer_ids_are_given_in_blocks_to_brokers_of_their_epoch(make: Make) -> None:
    world = make()
    world.brokers(1)
    asked = m.AllocateProducerIdsRequest(broker_id=1, broker_epoch=world.epochs[1])
    found = [world.ask(asked) for _ in range(3)]
    assert [(one.producer_id_start, one.producer_id_len) for one in found] == [(0, 1000), (1000, 1000), (2000, 1000)]
    assert world.controller.image.next_producer_id == 3000
    stale = m.AllocateProducerIdsRequest(broker_id=1, broker_epoch=world.epochs[1] + 1)
    assert world.ask(stale).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_directories_elections_and_moves(make: Make) -> None:
    world = make()
    world.brokers(1, 2, 3)
    world.create("t", 1, 2)
    topic_id = world.controller.image.topics_by_name["t"].topic_id
    assign = m.AssignReplicasToDirsRequest
    lost = os.urandom(16)
    answer = world.ask(
        assign(
            broker_id=2,
            broker_epoch=world.epochs[2],
            directories=[
                assign.DirectoryData(
                    id=lost,
                    topics=[assign.TopicData(topic_id=topic_id, partitions=[assign.PartitionData(partition_index=0)])],
                )
            ],
        )
    )
    assert answer.error_code == 0
    assert world.state("t").directory_of(2) == lost and world.state("t").isr == (1,)
    elect = m.ElectLeadersRequest
    wanted = [elect.TopicPartitions(topic="t", partitions=[0, 1])]
    answer = world.ask(elect(election_type=0, topic_partitions=wanted))
    codes = [one.error_code for one in answer.replica_election_results[0].partition_result]
    assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    move = m.AlterPartitionReassignmentsRequest
    to = move.ReassignablePartition(partition_index=0, replicas=[1, 3])
    answer = world.ask(move(topics=[move.ReassignableTopic(name="t", partitions=[to])]))
    assert answer.error_code == 0 and answer.responses[0].partitions[0].error_code == 0
    (moving,) = world.ask(m.ListPartitionReassignmentsRequest(topics=None)).topics
    assert (moving.partitions[0].adding_replicas, moving.partitions[0].removing_replicas) == ([3], [2])
    alter_isr(world, "t", 1, [1, 3])
    assert world.state("t").replicas == (1, 3)
    assert world.ask(m.ListPartitionReassignmentsRequest(topics=None)).topics == []


def test_a_broker_is_unregistered(make: Make) -> None:
    world = make()
    world.brokers(1, 2)
    world.create("t", 1, 2)
    assert world.ask(m.UnregisterBrokerRequest(broker_id=3)).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert world.ask(m.UnregisterBrokerRequest(broker_id=1)).error_code == 0
    assert world.controller.image.brokers.keys() == {2}
    assert (world.state("t").leader, world.state("t").isr) == (2, (2,))
    gone = m.BrokerHeartbeatRequest(broker_id=1, broker_epoch=world.epochs[1], current_metadata_offset=1 << 40)
    assert world.ask(gone).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_records_of_nothing_tell_followers_that_time_goes_on(make: Make) -> None:
    world = make(metadata_max_idle_interval_ms=NOOP_MS)
    world.control.tick(world.now_ms)
    end = world.controller.quorum.end_offset
    world.passes(NOOP_MS * 4)
    assert world.controller.quorum.end_offset == end + 4


def test_what_is_finalized_everybody_registered_supports(make: Make) -> None:
    world = make()
    world.register(1, share_version=(0, 0), transaction_version=(0, 2))
    controller = world.controller
    controller.update_features([FeatureUpdate("group.version", 0, 2)])
    world.register(2, group_version=(0, 0))
    with pytest.raises(Refused, match="Broker 2 only supports versions 0-0"):
        controller.update_features([FeatureUpdate("group.version", 1, UPGRADE)])
    world.ask(m.UnregisterBrokerRequest(broker_id=2))
    world.ask(m.ControllerRegistrationRequest(controller_id=7, incarnation_id=b"i" * 16, listeners=[], features=[]))
    with pytest.raises(Refused, match="Controller 7 does not support this feature"):
        controller.update_features([FeatureUpdate("group.version", 1, UPGRADE)])


def test_another_brokers_configuration_is_altered_here(make: Make) -> None:
    world = make()
    world.register(2)
    configure(world, ResourceType.BROKER, "2", "log.retention.ms", "1000")
    assert world.controller.image.configs_of(ResourceType.BROKER, "2") == {"log.retention.ms": "1000"}


def test_who_is_not_active_says_so_in_each_apis_words(make: Make) -> None:
    world = make()
    world.brokers(1)
    world.controller._active = False
    requests = [
        m.BrokerHeartbeatRequest(broker_id=1, broker_epoch=world.epochs[1]),
        m.AllocateProducerIdsRequest(broker_id=1, broker_epoch=world.epochs[1]),
        m.AlterPartitionRequest(broker_id=1, broker_epoch=world.epochs[1], topics=[]),
        m.AssignReplicasToDirsRequest(broker_id=1, broker_epoch=world.epochs[1], directories=[]),
        m.BrokerRegistrationRequest(broker_id=1),
        m.ControllerRegistrationRequest(controller_id=1),
    ]
    assert {request.API_KEY for request in requests} == world.control.api_keys
    end = world.controller.quorum.end_offset
    for request in requests:
        assert world.ask(request).error_code == ErrorCode.NOT_CONTROLLER
    world.passes(SESSION_MS * 2)
    assert world.controller.quorum.end_offset == end
