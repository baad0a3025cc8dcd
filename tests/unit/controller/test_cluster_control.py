"""A quorum of three controllers serves brokers that register, live, go and die, over sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from controllers import CLUSTER, Cluster, Node, SimulatedBroker, ask, until_async
from fastq_broker.cluster.controller_channel import holds_error
from fastq_broker.cluster.forwarding import ClientRequest, Principal, wrap
from fastq_broker.controller import brokers as plans_of_brokers
from fastq_broker.controller.records import PRODUCER_ID_BLOCK
from raft_members import until

from fastq.errors import ErrorCode, UnsupportedVersion
from fastq.protocol import messages as m
from fastq.protocol.api import APIS
from fastq.protocol.frames import decode_response


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


async def create(cluster: Cluster, name: str, partitions: int = 1, factor: int = 2) -> Any:
    wanted = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
    response = await cluster.ask(m.CreateTopicsRequest(topics=[wanted], timeout_ms=5000))
    (made,) = response.topics
    assert made.error_code == 0, made.error_message
    return made


async def partition(cluster: Cluster, name: str, number: int = 0) -> Any:
    found = (await cluster.image()).partition(name, number)
    assert found is not None
    return found


def test_brokers_register_live_and_are_fenced_when_silent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path, broker_session_timeout_ms=800) as cluster:
            brokers = [SimulatedBroker(number, cluster) for number in (11, 12)]
            for broker in brokers:
                await broker.run()
            assert len({broker.epoch for broker in brokers}) == 2
            await create(cluster, "t")
            assert (await partition(cluster, "t")).isr == (await partition(cluster, "t")).replicas
            brokers[0].kill()
            node = await cluster.active()
            assert node.controller is not None
            controller = node.controller
            await until(lambda: controller.image.brokers[11].fenced)
            found = await partition(cluster, "t")
            assert (found.leader, found.isr) == (12, (12,))
            assert not controller.image.brokers[12].fenced
            assert (await brokers[0].heartbeat(want_fence=True)).is_fenced
            assert not (await brokers[0].heartbeat()).is_fenced
            brokers[1].kill()

    run(scenario())


@pytest.mark.parametrize("patience_ms", [300, -1])
def test_a_broker_whose_connection_is_closed_is_not_waited_for(tmp_path: Path, patience_ms: int) -> None:
    """Neither to have others lead, nor when it comes back; unless only sessions count."""

    async def scenario() -> None:
        settings = {"broker_session_timeout_ms": 600_000, "broker_disconnect_timeout_ms": patience_ms}
        async with Cluster(tmp_path, **settings) as cluster:
            broker = SimulatedBroker(11, cluster)
            await broker.run()
            broker.kill()
            node = await cluster.active()
            assert node.controller is not None
            controller = node.controller
            if patience_ms < 0:
                assert (await broker.register()).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
                assert not controller.image.brokers[11].fenced
                return
            await until(lambda: controller.image.brokers[11].fenced)
            assert not (await broker.heartbeat()).is_fenced  # it lives after all
            assert not (
                await broker.register()
            ).error_code  # another process, once that connection is closed too: at once

    run(scenario())


class Unbroken:
    """A controller that is asked over what cannot break."""

    def __init__(self, node: Node) -> None:
        self.node = node

    async def ask(self, request: Any, version: int | None = None) -> Any:
        return await self.node.control.serve(request, APIS[request.API_KEY].max_stable_version)

    async def image(self) -> Any:
        return self.node.image


def test_a_second_process_that_advertises_a_live_brokers_place_is_refused(tmp_path: Path) -> None:
    """They had thrown each other out, again and again: two behind one name, or two replicas of one container."""

    async def scenario() -> None:
        settings = {"broker_session_timeout_ms": 600_000, "broker_heartbeat_interval_ms": 300_000}
        async with Cluster(tmp_path, **settings) as cluster:
            node = await cluster.active()
            one, other = (SimulatedBroker(11, Unbroken(node)) for _ in range(2))  # type: ignore[arg-type]
            await one.run()
            refused = await other.register()
            assert refused.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
            assert (node.image.brokers[11].epoch, node.image.brokers[11].fenced) == (one.epoch, False)

            one.kill()
            node.control.broken(11, one.epoch, None)
            assert not (await other.register(again=True)).error_code  # at once
            await until_async(other._is_unfenced)
            assert (await one.heartbeat()).error_code == ErrorCode.STALE_BROKER_EPOCH
            assert (await one.register(again=True)).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
            assert node.image.brokers[11].epoch == other.epoch

            await node.kill()
            one.cluster = other.cluster = Unbroken(await cluster.active())  # type: ignore[assignment]
            refused = await one.register(again=True)  # the next controller may not have heard the other one yet
            assert refused.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
            assert not (await other.heartbeat()).error_code

    run(scenario())


def test_a_new_controller_knows_whom_it_has_not_heard(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path, broker_session_timeout_ms=600_000, broker_disconnect_timeout_ms=1000) as cluster:
            brokers = [SimulatedBroker(number, cluster) for number in (11, 12, 13)]
            for broker in brokers:
                await broker.run()
            for broker in brokers[:2]:
                broker.kill()
            first = await cluster.active()
            terms: list[int] = []
            for node in cluster.nodes:
                node.control.on_term = lambda number=node.node_id: terms.append(number)  # type: ignore[misc]
            await first.kill()
            second = await cluster.active()
            await until(lambda: terms == [second.node_id] and 13 not in dict(second.control.unheard()))
            assert second.controller is not None
            image = second.controller.image
            silent = [(number, image.brokers[number].epoch) for number in (11, 12) if not image.brokers[number].fenced]
            assert second.control.unheard() == silent
            for number, epoch in silent:
                second.control.broken(number, epoch, None)
            controller = second.controller
            await until(lambda: controller.image.brokers[11].fenced and controller.image.brokers[12].fenced)
            assert not controller.image.brokers[13].fenced and second.control.unheard() == []
            brokers[2].kill()

    run(scenario())


def test_brokers_go_on_with_the_next_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path, broker_session_timeout_ms=3000) as cluster:
            brokers = [SimulatedBroker(number, cluster) for number in (11, 12)]
            for broker in brokers:
                await broker.run()
            await create(cluster, "t")
            ids = [await block(cluster, brokers[0])]
            first = await cluster.active()
            await answers_of_the_others(cluster, first, brokers[0])
            await asked_without_a_socket(first)
            await described(cluster, first)

            await first.kill()
            second = await cluster.active()
            assert second is not first
            await create(cluster, "u")
            ids.append(await block(cluster, brokers[0]))
            assert ids == [0, PRODUCER_ID_BLOCK]
            shrunk = await shrink(cluster, brokers, "u")
            assert (await partition(cluster, "u")).isr == (shrunk,)

            going = next(broker for broker in brokers if broker.broker_id == shrunk)
            expand = await alter_isr(cluster, going, "u", brokers)
            assert expand.error_code == 0
            await going.shut_down()
            found = await partition(cluster, "u")
            assert found.leader not in (-1, shrunk) and shrunk not in found.isr
            assert (await going.register()).broker_epoch > going.previous_epoch
            for broker in brokers:
                broker.kill()

    run(scenario())


async def block(cluster: Cluster, broker: SimulatedBroker) -> int:
    answer = await cluster.ask(m.AllocateProducerIdsRequest(broker_id=broker.broker_id, broker_epoch=broker.epoch))
    assert (answer.error_code, answer.producer_id_len) == (0, PRODUCER_ID_BLOCK)
    return int(answer.producer_id_start)


async def alter_isr(
    cluster: Cluster, leader: SimulatedBroker, name: str, isr: list[SimulatedBroker], version: int = 3
) -> Any:
    kind = m.AlterPartitionRequest
    topic = (await cluster.image()).topics_by_name[name]
    state = topic.partitions[0]
    data = kind.PartitionData(
        partition_index=0,
        leader_epoch=state.leader_epoch,
        new_isr=[one.broker_id for one in isr] if version < 3 else [],
        new_isr_with_epochs=[kind.BrokerState(broker_id=one.broker_id, broker_epoch=one.epoch) for one in isr]
        if version >= 3
        else [],
        partition_epoch=state.partition_epoch,
    )
    answer = await cluster.ask(
        kind(
            broker_id=leader.broker_id,
            broker_epoch=leader.epoch,
            topics=[kind.TopicData(topic_id=topic.topic_id, partitions=[data])],
        ),
        version,
    )
    assert answer.error_code == 0
    return answer.topics[0].partitions[0]


async def shrink(cluster: Cluster, brokers: list[SimulatedBroker], name: str) -> int:
    """The leader takes everybody else out of the ISR; who that is."""
    led = await partition(cluster, name)
    leader = next(broker for broker in brokers if broker.broker_id == led.leader)
    answer = await alter_isr(cluster, leader, name, [leader], version=2)
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (0, [led.leader], led.partition_epoch + 1)
    return int(led.leader)


async def answers_of_the_others(cluster: Cluster, first: Node, broker: SimulatedBroker) -> None:
    """Who is not active says so, in an Envelope too."""
    topic = m.CreateTopicsRequest.CreatableTopic(name="enveloped", num_partitions=1, replication_factor=1)
    create_topics = m.CreateTopicsRequest(topics=[topic], timeout_ms=5000)
    client = ClientRequest(19, 7, 42, b"app", create_topics.to_bytes(7), Principal("User", "alice"), "10.0.0.9")
    beat = m.BrokerHeartbeatRequest(broker_id=broker.broker_id, broker_epoch=broker.epoch)
    for node in cluster.nodes:
        if node is not first:
            port = node.port
            assert (await ask(port, beat)).error_code == ErrorCode.NOT_CONTROLLER
            (refused,) = (await ask(port, create_topics)).topics
            assert (refused.name, refused.error_code) == ("enveloped", ErrorCode.NOT_CONTROLLER)
            moves = m.ListPartitionReassignmentsRequest(topics=None)
            assert (await ask(port, moves)).error_code == ErrorCode.NOT_CONTROLLER
            elect = m.ElectLeadersRequest(
                topic_partitions=[m.ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])]
            )
            for version in (0, 2):
                (result,) = (await ask(port, elect, version)).replica_election_results[0].partition_result
                assert result.error_code == ErrorCode.NOT_CONTROLLER
            assert (await ask(port, wrap(client))).error_code == ErrorCode.NOT_CONTROLLER
    envelope = await ask(first.port, wrap(client))
    assert envelope.error_code == 0
    number, response = decode_response(envelope.response_data, 19, 7)
    assert number == 42
    (made,) = response.topics
    assert (made.name, made.error_code) == ("enveloped", 0)
    token = ClientRequest(38, 2, 43, b"app", m.CreateDelegationTokenRequest().to_bytes(2), Principal(), "10.0.0.9")
    envelope = await ask(first.port, wrap(token))
    number, response = decode_response(envelope.response_data, 38, 2)
    assert (number, response.error_code) == (43, ErrorCode.UNSUPPORTED_VERSION)


async def asked_without_a_socket(first: Node) -> None:
    answer: Any = await first.router.serve(m.ListPartitionReassignmentsRequest(topics=None))
    assert answer.error_code == 0
    answer = await first.router.serve(m.ElectLeadersRequest(election_type=0, topic_partitions=None))
    assert answer.error_code == 0
    with pytest.raises(UnsupportedVersion):
        await first.router.serve(m.ProduceRequest())


async def described(cluster: Cluster, first: Node) -> None:
    """The quorum by its leader, the controllers by each of them, the APIs as they are answered."""
    kind = m.DescribeQuorumRequest
    one = kind.PartitionData(partition_index=0)
    request = kind(topics=[kind.TopicData(topic_name="__cluster_metadata", partitions=[one])])
    await cluster.register_controllers()
    for node in cluster.nodes:
        port = node.port
        (told,) = (await ask(port, request)).topics[0].partitions
        if node is not first:
            assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            continue
        assert (told.error_code, told.leader_id, told.observers) == (0, first.node_id, [])
        assert {voter.replica_id for voter in told.current_voters} == {1, 2, 3}
        assert {voter.replica_directory_id for voter in told.current_voters} == {bytes(16)}, (
            "voters of the configuration"
        )
        ends = {voter.replica_id: voter.log_end_offset for voter in told.current_voters}
        assert 0 < told.high_watermark <= ends[first.node_id]
        assert all(voter.last_fetch_timestamp > 0 for voter in told.current_voters)
        assert told.high_watermark <= sorted(ends.values())[1], "a majority has what is committed"
    everywhere = [node.controller for node in cluster.nodes if node.controller is not None]
    await until(lambda: all(len(list(controller.image.controllers())) == 3 for controller in everywhere))
    for node in cluster.nodes:
        port = node.port
        told = await ask(port, m.DescribeClusterRequest(endpoint_type=2))
        assert (told.error_code, told.cluster_id, told.controller_id) == (0, CLUSTER, first.node_id)
        assert {(one.broker_id, one.port) for one in told.brokers} == set(node.places.items())
        for version in (0, 1, 2):
            told = await ask(port, m.DescribeClusterRequest(), version)
            assert told.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
        versions = await ask(port, m.ApiVersionsRequest(client_software_name="t", client_software_version="1"))
        served = {item.api_key: (item.min_version, item.max_version) for item in versions.api_keys}
        assert served == node.router.versions()
        assert {1, 18, 19, 32, 43, 52, 55, 56, 58, 59, 60, 62, 63, 64, 67, 70, 73, 80, 81, 82} <= served.keys()
        assert not {0, 3, 10} & served.keys()
        finalized = {item.name: item.max_version_level for item in versions.finalized_features}
        assert finalized["metadata.version"] == 30


def test_without_a_majority_nothing_is_done_and_nobody_is_told_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path) as cluster:
            broker = SimulatedBroker(11, cluster)
            await broker.run()
            broker.kill()
            left = await cluster.active()
            for node in cluster.nodes:
                if node is not left:
                    await node.kill()
            topic = m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            request = m.CreateTopicsRequest(topics=[topic], timeout_ms=5000)
            beat = m.BrokerHeartbeatRequest(
                broker_id=11, broker_epoch=broker.epoch, current_metadata_offset=0, want_fence=True
            )
            port = left.port
            answers = await asyncio.gather(*(ask(port, one) for one in (request, beat)))
            assert all(holds_error(answer, ErrorCode.NOT_CONTROLLER) for answer in answers)
            controller = left.controller
            assert controller is not None and not left.is_active
            assert controller.pending is controller.image and "t" not in controller.image.topics_by_name
            assert not controller.image.brokers[11].fenced

    run(scenario())


def test_an_active_controller_that_fails_inside_is_none_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would fence nobody, and nobody would know."""

    async def scenario() -> None:
        async with Cluster(tmp_path, broker_session_timeout_ms=800) as cluster:
            broker = SimulatedBroker(11, cluster)
            await broker.run()
            first = await cluster.active()
            assert first.controller is not None
            epoch, failed = first.controller.epoch, list[int]()
            plans = plans_of_brokers.plan_fence

            def fails_once(view: Any, broker_id: int) -> Any:
                if not failed:
                    failed.append(broker_id)
                    raise IndexError("a mistake")
                return plans(view, broker_id)

            monkeypatch.setattr(plans_of_brokers, "plan_fence", fails_once)
            broker.kill()
            await until(lambda: bool(failed))
            await until(lambda: any(node.is_active and node.image.brokers[11].fenced for node in cluster.nodes))
            assert (await cluster.active()).image.epoch > epoch

    run(scenario())
    said = [record for record in caplog.records if record.exc_info]
    assert [record.message for record in said] == ["the active controller fails in what is due by now"]
    assert any(
        "fails in what an active controller does: it resigns from epoch" in each.message for each in caplog.records
    )


@pytest.mark.parametrize("number", [-1, -9000])
def test_nobody_is_registered_under_an_id_that_means_nobody(tmp_path: Path, number: int) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path) as cluster:
            assert (await SimulatedBroker(number, cluster).register()).error_code == ErrorCode.INVALID_REGISTRATION
            request = m.ControllerRegistrationRequest(controller_id=number, incarnation_id=b"i" * 16)
            assert (await cluster.ask(request)).error_code == ErrorCode.INVALID_REGISTRATION
            image = await cluster.image()
            assert not image.brokers and not list(image.controllers())

    run(scenario())
