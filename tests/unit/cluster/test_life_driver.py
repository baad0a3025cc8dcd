"""A broker and a controller at work in a loop, whose active controller is this very process: from the registration to the end."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.cluster.controller_channel import ChannelConfig, ControllerChannel, Leader
from fastq_broker.cluster.driver import LifeDriver
from fastq_broker.cluster.lifecycle import (
    BrokerLifecycle,
    BrokerState,
    LifecycleConfig,
    ListenerAddress,
    OpenPorts,
    StateChanged,
)
from fastq_broker.cluster.registration import ControllerRegistration, RegistrationConfig
from raft_members import until

from fastq.config import ClientConfig
from fastq.protocol.message import Message
from fastq.protocol.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationResponse,
)

HERE = Leader(1, 1, None)


class Controller:
    """One that registers and unfences whoever asks, and lets who wants to go, at the second wish."""

    def __init__(self) -> None:
        self.asked: list[Message] = []

    async def __call__(self, request: Message) -> Message:
        self.asked.append(request)
        await asyncio.sleep(0)
        if isinstance(request, BrokerRegistrationRequest):
            return BrokerRegistrationResponse(broker_epoch=5)
        if isinstance(request, BrokerHeartbeatRequest):
            wishes = sum(isinstance(each, BrokerHeartbeatRequest) and each.want_shut_down for each in self.asked)
            caught_up = request.current_metadata_offset >= 5
            return BrokerHeartbeatResponse(
                is_caught_up=caught_up, is_fenced=request.want_fence, should_shut_down=wishes == 2
            )
        return ControllerRegistrationResponse()


def channel_to(controller: Controller) -> ControllerChannel:
    config = ChannelConfig(node_id=1, name="heartbeat")
    client = ClientConfig(bootstrap_servers=["127.0.0.1:1"])
    return ControllerChannel(config, lambda: HERE, controller, client, asyncio.get_running_loop())


def life_of() -> BrokerLifecycle:
    return BrokerLifecycle(
        LifecycleConfig(
            node_id=1,
            cluster_id="c",
            incarnation_id=b"i" * 16,
            listeners=[ListenerAddress("PLAINTEXT", "h", 1)],
            features={},
            log_dirs=[b"d" * 16],
            heartbeat_interval_s=0.01,
        )
    )


def test_a_broker_comes_runs_and_goes() -> None:
    async def scenario() -> None:
        controller, news = Controller(), list[Any]()
        channel = channel_to(controller)
        life = life_of()
        driver = LifeDriver(life, channel, asyncio.get_running_loop(), news.append)
        driver.start()
        await until(lambda: len(controller.asked) > 3)
        assert life.state is BrokerState.STARTING
        life.metadata_at(5)
        await until(lambda: life.state is BrokerState.RECOVERY)
        life.loaded(driver.now())
        driver.turn()
        await until(lambda: OpenPorts() in news)
        life.shut_down(driver.now())
        driver.turn()
        await until(lambda: life.state is BrokerState.SHUTTING_DOWN)
        states = [each.state.name for each in news if isinstance(each, StateChanged)]
        assert states == ["STARTING", "RECOVERY", "RUNNING", "PENDING_CONTROLLED_SHUTDOWN", "SHUTTING_DOWN"]
        count = len(controller.asked)
        driver.close()
        driver.close()
        channel.close()
        await asyncio.sleep(0.03)
        assert len(controller.asked) == count and isinstance(controller.asked[0], BrokerRegistrationRequest)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_broker_lives_on_whatever_becomes_of_its_news() -> None:
    """A heartbeat that is due with them is sent."""

    async def scenario() -> None:
        controller, heard = Controller(), list[Any]()
        channel = channel_to(controller)
        life = life_of()

        def fails(effect: Any) -> None:
            heard.append(effect)
            raise IndexError("a mistake")

        driver = LifeDriver(life, channel, asyncio.get_running_loop(), fails)
        driver.start()
        life.metadata_at(5)
        await until(lambda: life.state is BrokerState.RECOVERY)
        life.loaded(driver.now())
        driver.turn()
        await until(lambda: OpenPorts() in heard)
        count = len(controller.asked)
        await until(lambda: len(controller.asked) > count + 3)
        driver.close()
        channel.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize("what", ["ask", "soon"])
def test_a_broker_lives_on_where_a_heartbeat_cannot_be_asked_for(what: str) -> None:
    """It waited for the answer for good."""

    async def scenario() -> None:
        controller = Controller()
        channel = channel_to(controller)
        life = life_of()
        driver = LifeDriver(life, channel, asyncio.get_running_loop(), lambda effect: None)
        driver.start()
        await until(lambda: len(controller.asked) > 3)
        failed: list[Any] = []
        # Of what is queued, a turn is wanted of the loop, which may have no memory for that.
        owner: Any = channel if what == "ask" else channel._turns
        name, before = ("ask", channel.ask) if what == "ask" else ("_loop", channel._turns._loop)

        def no_memory(request: Any, *_: Any, **options: Any) -> None:
            setattr(owner, name, before)
            failed.append(request)
            raise MemoryError("none left")

        loop = asyncio.get_running_loop()
        given = no_memory if what == "ask" else SimpleNamespace(call_soon=no_memory, call_later=loop.call_later)
        setattr(owner, name, given)
        await until(lambda: bool(failed))
        count = len(controller.asked)
        await until(lambda: len(controller.asked) > count + 1)
        driver.close()
        channel.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_what_news_lead_to_comes_after_them() -> None:
    async def scenario() -> None:
        news: list[Any] = []
        channel = channel_to(Controller())
        life = life_of()

        def on_news(effect: Any) -> None:
            if effect == StateChanged(BrokerState.RUNNING):
                life.shut_down(driver.now())
            driver.turn()
            news.append(effect)

        driver = LifeDriver(life, channel, asyncio.get_running_loop(), on_news)
        life.metadata_at(5)
        life.loaded(driver.now())
        driver.start()
        await until(lambda: StateChanged(BrokerState.SHUTTING_DOWN) in news)
        names = [getattr(effect, "state", effect) for effect in news]
        assert names == [
            BrokerState.STARTING,
            BrokerState.RECOVERY,
            BrokerState.RUNNING,
            OpenPorts(),
            BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            BrokerState.SHUTTING_DOWN,
        ]
        channel.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_broker_whose_driver_is_closed_is_shut_down() -> None:
    async def scenario() -> None:
        news: list[Any] = []
        channel = channel_to(Controller())
        driver = LifeDriver(life_of(), channel, asyncio.get_running_loop(), news.append)
        driver.start()
        driver.close()
        assert news == [StateChanged(BrokerState.STARTING), StateChanged(BrokerState.SHUTTING_DOWN)]
        channel.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_driver_that_is_closed_early_says_so_and_asks_no_more() -> None:
    async def scenario() -> None:
        controller, news = Controller(), list[Any]()
        channel = channel_to(controller)
        machine = ControllerRegistration(
            RegistrationConfig(node_id=1, incarnation_id=b"i" * 16, listeners=[], features={}), Random(1)
        )
        driver = LifeDriver(machine, channel, asyncio.get_running_loop(), news.append)
        machine.metadata(30, None, driver.now())
        driver.start()
        await until(lambda: len(controller.asked) == 1)
        driver.close()
        machine.metadata(30, None, driver.now())
        driver.turn()
        await asyncio.sleep(0.01)
        assert len(controller.asked) == 1 and news == []
        channel.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))
