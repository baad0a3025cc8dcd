"""The clients are objects like any other: what inspects, wraps, mocks, subclasses and closes objects does so with these.

Rules: nothing listens at the address; what is called here needs no broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import pydoc
import types
import weakref
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import pytest

from fastq import Admin, AsyncAdmin, AsyncConsumer, AsyncConsumerPool, AsyncProducer, Consumer, ConsumerPool, Producer
from fastq.consumer.retry import RetryPolicy
from fastq.errors import ClientClosed, ConfigError, FastqError, WrongEventLoop

NOWHERE = "127.0.0.1:1"
BLOCKING: list[type[Any]] = [Producer, Consumer, Admin]
ASYNCIO: list[type[Any]] = [AsyncProducer, AsyncConsumer, AsyncAdmin]
CLIENTS = [*BLOCKING, *ASYNCIO]
# A call that a client which was closed refuses.
REFUSED: dict[type[Any], Callable[[Any], Any]] = {
    Producer: lambda client: client.partitions_for("in"),
    AsyncProducer: lambda client: client.partitions_for("in"),
    Consumer: lambda client: client.poll(timeout=0),
    AsyncConsumer: lambda client: client.poll(timeout=0),
    Admin: lambda client: client.list_topics(),
    AsyncAdmin: lambda client: client.list_topics(),
}


def made(cls: type[Any]) -> Any:
    """A client, or a pool, of a broker that is not there."""
    if issubclass(cls, ConsumerPool):
        return cls(Consumer("in", group_id="g", enable_auto_commit=False, bootstrap_servers=NOWHERE), print)
    if issubclass(cls, AsyncConsumerPool):
        return cls(
            AsyncConsumer("in", group_id="g", enable_auto_commit=False, bootstrap_servers=NOWHERE), asyncio.sleep
        )
    return cls(bootstrap_servers=NOWHERE)


def methods(cls: type[Any]) -> dict[str, Any]:
    """What a user calls on an object of a class."""
    dunder = ("__enter__", "__exit__", "__aenter__", "__aexit__", "__iter__", "__aiter__")
    names = [name for name in dir(cls) if not name.startswith("_") or name in dunder]
    return {name: getattr(cls, name) for name in names if callable(getattr(cls, name))}


def run(cls: type[Any], call: Callable[[], Any]) -> Any:
    """What a call answers, in an event loop where the class is an asyncio one."""
    if cls in BLOCKING:
        return call()

    async def main() -> Any:
        answer = call()
        return await answer if isinstance(answer, Awaitable) else answer

    return asyncio.run(main())


@pytest.mark.parametrize("cls", [*CLIENTS, ConsumerPool, AsyncConsumerPool])
def test_methods_of_clients_show_what_they_take_and_are_bound_as_any_others(cls: type[Any]) -> None:
    found = methods(cls)
    assert len(found) >= 2

    def look() -> Any:
        client = made(cls)
        for name, method in found.items():
            bound = getattr(client, name)
            of_class, of_object = inspect.signature(method), inspect.signature(bound)
            first, *others = of_class.parameters.values()
            assert first.name == "self", name
            assert list(of_object.parameters.values()) == others, name
            assert of_object.return_annotation == of_class.return_annotation, name
            assert (inspect.getdoc(bound) or "") == (inspect.getdoc(method) or ""), name
            assert inspect.getdoc(bound) or name.startswith("__"), name
            assert inspect.isroutine(method) and inspect.isroutine(bound), name
            for thing in (method, bound):
                text = pydoc.render_doc(thing, renderer=pydoc.plaintext).partition("\n\n")[2]
                assert text.removeprefix("async ").startswith(f"{name}("), text
            assert bound == getattr(client, name) and hash(bound) == hash(getattr(client, name)), name
            assert bound.__self__ is client and bound.__name__ == name, name
            if inspect.ismethod(bound):  # those of extension types are bound by Python in a way of their own
                assert weakref.WeakMethod(bound)() == bound, name
                assert isinstance(inspect.unwrap(bound), types.FunctionType | types.MethodType), name
        return client if not hasattr(client, "consumer") else client.consumer

    async def look_async() -> None:
        await look().close()

    if cls in (*BLOCKING, ConsumerPool):
        look().close()
    else:
        asyncio.run(look_async())


@pytest.mark.parametrize("cls", [*CLIENTS, ConsumerPool, AsyncConsumerPool])
def test_a_mock_has_the_methods_of_its_client(cls: type[Any]) -> None:
    double = mock.create_autospec(cls, instance=True)
    for name, method in methods(cls).items():
        assert isinstance(getattr(double, name), mock.AsyncMock) == inspect.iscoroutinefunction(method), name
    with pytest.raises(AttributeError):
        double.no_such_method()
    run(cls, double.stop if "Pool" in cls.__name__ else double.close)
    if "Pool" not in cls.__name__:
        double.close.assert_called_once_with()
        assert cls in BLOCKING or double.close.await_count == 1


@pytest.mark.parametrize("cls", CLIENTS)
def test_a_subclass_calls_what_it_overrides(cls: type[Any]) -> None:
    """Each of its methods goes by `super()`, as a user's who counts calls; the class's own methods are called by it too."""
    called: list[str] = []

    def overriding(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            called.append(name)
            return getattr(super(counting, self), name)(*args, **kwargs)

        return method

    counting: Any = type("Counting", (cls,), {name: overriding(name) for name in methods(cls)})

    async def use_async() -> None:
        async with made(counting):
            pass

    if cls in BLOCKING:
        with made(counting):
            pass
        assert {"__enter__", "__exit__"} <= set(called)
    else:
        asyncio.run(use_async())
        assert {"__aenter__", "__aexit__"} <= set(called)


@pytest.mark.parametrize("cls", CLIENTS)
@pytest.mark.parametrize("how", ["class", "partial", "methodcaller", "stack", "stack's callback", "closing"])
def test_clients_are_closed_by_whatever_closes_objects(cls: type[Any], how: str) -> None:
    async def close_async(client: Any) -> None:
        if how == "class":
            await cls.__aenter__(client)
            await cls.__aexit__(client, None, None, None)
        elif how == "partial":
            await functools.partial(client.close)()
        elif how == "methodcaller":
            await functools.partial(cls.close, client)()
        else:
            async with contextlib.AsyncExitStack() as stack:
                if how == "stack":
                    assert await stack.enter_async_context(client) is client
                else:
                    stack.push_async_callback(client.close)

    def close(client: Any) -> None:
        if how == "class":
            assert cls.__enter__(client) is client
            cls.__exit__(client, None, None, None)
        elif how == "partial":
            functools.partial(client.close)()
        elif how == "methodcaller":
            functools.partial(cls.close, client)()
        elif how == "closing":
            with contextlib.closing(client) as entered:
                assert entered is client
        else:
            with contextlib.ExitStack() as stack:
                if how == "stack":
                    assert stack.enter_context(client) is client
                else:
                    stack.callback(client.close)

    async def main() -> None:
        client = made(cls)
        await close_async(client)
        with pytest.raises(ClientClosed):
            await REFUSED[cls](client)

    if cls in ASYNCIO:
        asyncio.run(main())
        return
    client = made(cls)
    close(client)
    with pytest.raises(ClientClosed):
        REFUSED[cls](client)


@pytest.mark.parametrize("cls", [Producer])
def test_a_held_method_names_what_it_was_called_on(cls: type[Any]) -> None:
    for wrong in ((), (object(),), (cls,)):
        with pytest.raises(TypeError, match=r"Producer\.flush\(\) is called on an object of its class"):
            cls.flush(*wrong)


@pytest.mark.parametrize("cls", [ConsumerPool, AsyncConsumerPool])
def test_a_pool_refuses_clients_of_the_other_kind_before_it_reads(cls: type[Any]) -> None:
    settings: dict[str, Any] = {"bootstrap_servers": NOWHERE, "enable_auto_commit": False, "group_id": "g"}
    dead = RetryPolicy(dead_letter_topic="dead")

    async def main() -> None:
        with Consumer("in", **settings) as blocking, Producer(bootstrap_servers=NOWHERE) as producer:
            async with (
                AsyncConsumer("in", **settings) as other,
                AsyncProducer(bootstrap_servers=NOWHERE) as async_producer,
            ):
                if cls is ConsumerPool:
                    right, wrong, right_producer, wrong_producer = blocking, other, producer, async_producer
                    handler: Any = print
                    kinds = "a Consumer here, got AsyncConsumer", "a Producer here, got AsyncProducer"
                else:
                    right, wrong, right_producer, wrong_producer = other, blocking, async_producer, producer
                    handler = asyncio.sleep
                    kinds = "an AsyncConsumer here, got Consumer", "an AsyncProducer here, got Producer"
                cls(right, handler, retry=dead, producer=right_producer)
                with pytest.raises(ConfigError, match=kinds[0]):
                    cls(wrong, handler)
                with pytest.raises(ConfigError, match=kinds[1]):
                    cls(right, handler, retry=dead, producer=wrong_producer)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("cls", "call"),
    [
        (AsyncConsumer, lambda client: client.end_offsets([("in", 0)], timeout=0.01)),
        (AsyncAdmin, lambda client: client.list_topics(timeout=0.01)),
    ],
)
def test_a_client_in_another_loop_says_what_to_do(cls: type[Any], call: Callable[[Any], Awaitable[Any]]) -> None:
    own, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    client = cls(bootstrap_servers=NOWHERE)
    try:
        with contextlib.suppress(FastqError):
            own.run_until_complete(call(client))  # nobody is there, but the loop is chosen
        with pytest.raises(WrongEventLoop, match=r"another event loop\. Make a client in each loop"):
            other.run_until_complete(call(client))
    finally:
        own.run_until_complete(client.close())
        own.close()
        other.close()
