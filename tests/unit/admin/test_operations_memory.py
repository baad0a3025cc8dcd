"""Operations where there is no memory as they end: whoever waits is told all the same."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from operation_world import ANSWER, ASK, World, answers, asks, asks_one, coordinators, refuses, silent

from fastq.errors import (
    NotController,
)
from fastq.net.client import run_async
from fastq.net.operations import (
    Broker,
    Call,
    Coordinator,
    Found,
    Operation,
    OperationRun,
    Retry,
)
from fastq.protocol import messages as m


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # generators that are closed without memory
@pytest.mark.parametrize("turns", range(9))
def test_whoever_waits_is_told_whichever_allocation_fails(turns: int) -> None:
    """Where there was no memory as a call failed for good, the operation was over and nobody heard of it."""

    def operation() -> Operation[Any]:
        yield Call(Broker(1), ASK)
        yield [Call(Broker(1), ASK), Call(Broker(2), ASK)]
        yield Retry(NotController())
        yield [Call(Found(2, "which is dead"), ASK)]
        yield Call(Coordinator("group", "g"), ASK)

    def node(request: Any) -> Any:
        return coordinators(request, g=1) if isinstance(request, m.FindCoordinatorRequest) else ANSWER

    for at in range(60):
        world = World({1: node, 2: refuses})
        _, told = world.start(operation(), 3.0)
        for _ in range(turns):
            world.turn()
        try:
            with AllocationsFail(at):
                world.turn()
        except MemoryError:
            pass
        while not told and world.turn():
            pass
        assert len(told) == 1, at


def test_the_end_is_known_where_there_is_no_memory_to_tell_of_it() -> None:
    """Whoever waited for it in a thread waited for ever."""
    world = World({1: answers})
    tries, told = told_at_a_later_try()
    run = OperationRun(world.core, asks(1), 10.0, told)
    while not run.done:
        assert world.turn()
    assert run.result == [ANSWER] and run.error is None
    while world.turn():
        pass
    assert tries == [[ANSWER]] * 2 and world.now < 1011, "whoever cannot look is told at the deadline"


@pytest.mark.parametrize("failures", [1, 3])
def test_an_end_at_the_deadline_is_told_again_too(failures: int) -> None:
    world = World({1: silent})
    tries, told = told_at_a_later_try(failures)
    OperationRun(world.core, asks_one(), 10.0, told)
    while world.turn():
        pass
    assert tries == [None] * (failures + 1) and 1010 < world.now < 1011


def test_an_end_with_the_client_is_told_as_it_is_closed_again() -> None:
    """The second close, which does what there was no memory for, knew of no such operation any more."""
    world = World({1: silent})
    tries, told = told_at_a_later_try(1)
    OperationRun(world.core, asks_one(), 10.0, told)
    world.turn()
    with pytest.raises(MemoryError):
        world.core.close()
    world.core.close()
    assert tries == [None] * 2 and not world.core.on_close


def told_at_a_later_try(failures: int = 1) -> tuple[list[Any], Callable[[Any, object], None]]:
    """The results that were told, of which the first find no memory."""
    tries: list[Any] = []

    def told(result: Any, _error: object) -> None:
        tries.append(result)
        if len(tries) <= failures:
            raise MemoryError

    return tries, told


@contextmanager
def a_loop_short_of_memory(when: Callable[[Callable[[], Any]], Any]) -> Iterator[asyncio.AbstractEventLoop]:
    """As it is to call whom a future wakes, for the first time, it does `when(that call)` and raises."""
    loop = asyncio.new_event_loop()
    call_soon, short = loop.call_soon, list[Any]()

    def woken(callback: Any, *arguments: Any, context: Any = None) -> Any:
        call = partial(call_soon, callback, *arguments, context=context)
        if short or not arguments or not isinstance(arguments[0], asyncio.Future):
            return call()
        short.append(arguments[0])
        when(call)
        raise MemoryError

    loop.call_soon = woken  # type: ignore[method-assign]
    try:
        yield loop
        assert len(short) == 1
    finally:
        loop.close()


async def run_in(world: World, operation: Operation[Any]) -> Any:
    loop = asyncio.get_running_loop()
    driver: Any = SimpleNamespace(core=world.core, loop=loop, check_loop=lambda: None, kick=lambda: None)
    return await run_async(driver, operation, 10.0)


async def turns(world: World) -> None:
    """Those of the loop between those of the driver."""
    for _ in range(20):
        world.turn()
        await asyncio.sleep(0)
    assert not world.turn()


@pytest.mark.parametrize("node", [answers, silent])
def test_an_await_ends_where_no_memory_was_there_to_wake_it(node: Callable[[Any], Any]) -> None:
    """asyncio had lost what it was to call, and the future was done: nothing woke the task any more, not even a cancel."""

    async def awaited() -> bool:
        world = World({1: node})
        task = asyncio.create_task(run_in(world, asks(1)))
        await asyncio.sleep(0)
        await turns(world)
        return task.done()

    with a_loop_short_of_memory(lambda _: None) as loop:
        assert loop.run_until_complete(awaited())


def test_a_task_that_has_been_woken_is_not_woken_again() -> None:
    """It waits for something else by now, and was stepped in the middle of that."""
    told: list[dict[str, Any]] = []

    async def goes_on(world: World, other: asyncio.Future[None]) -> None:
        await run_in(world, asks(1))
        await other

    async def awaited() -> None:
        world, other = World({1: answers}), asyncio.get_running_loop().create_future()
        task = asyncio.create_task(goes_on(world, other))
        await asyncio.sleep(0)
        await turns(world)
        other.set_result(None)
        await task

    with a_loop_short_of_memory(lambda call: call()) as loop:
        loop.set_exception_handler(lambda _, context: told.append(context))
        loop.run_until_complete(awaited())
        assert told == []


def test_a_cancelled_await_whose_operation_ends_in_the_same_turn_is_woken_once() -> None:
    told: list[dict[str, Any]] = []

    async def cancelled() -> None:
        world = World({1: answers})
        task = asyncio.create_task(run_in(world, asks(1)))
        await asyncio.sleep(0)
        task.cancel()
        while world.core.on_close:
            world.turn()
        for _ in range(3):
            await asyncio.sleep(0)
        assert task.cancelled()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    loop.run_until_complete(cancelled())
    loop.close()
    assert told == []


WITHOUT_MEMORY = """
import faulthandler
from failing_allocations import AllocationsFail
from net_fakes import FakeBroker
from fastq.config import ClientConfig
from fastq.errors import FastqError
from fastq.net.client import BlockingClient
from fastq.net.operations import ANY
from fastq.protocol import messages as m

faulthandler.dump_traceback_later(60, exit=True)
for at in range(0, 200, 7):
    with FakeBroker() as broker:
        client = BlockingClient(ClientConfig(bootstrap_servers=broker.address))
        client.call(ANY, m.MetadataRequest(topics=[]), 10.0)
        turns = client.driver.core.run_callbacks

        def fails():
            if not client.driver.core.completions:
                return turns()
            with AllocationsFail(at, 3):
                return turns()

        client.driver.core.run_callbacks = fails
        try:
            client.call(ANY, m.MetadataRequest(topics=[]), 1.0)
        except (MemoryError, FastqError):
            pass
        client.driver.core.run_callbacks = turns
        client.close()
"""


def test_a_call_ends_where_no_memory_is_there_for_its_end() -> None:
    """In a process of its own: what fails while the call waits may be another thread's allocation, and one of these brings the tests."""
    pytest.importorskip("_testcapi", reason="this Python lacks what its own tests have for failing allocations")
    here = Path(__file__).resolve().parents[2]
    paths = {"PYTHONPATH": os.pathsep.join([str(here), *sys.path])}
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY], env={**os.environ, **paths}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
