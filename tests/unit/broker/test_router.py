"""The router by itself: what it does when a handler cannot be loaded, or nobody waits for one any more."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker import router
from fastq_broker.connection import ProtocolViolation

from fastq.protocol.api import APIS


def test_a_handler_that_cannot_be_loaded_closes_the_connection_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports: Any = SimpleNamespace(config=SimpleNamespace(non_produce_request_max_bytes=1 << 20))
    node = router.Router(ports)
    monkeypatch.setattr(router, "bound_context", lambda _: object)
    real = router.import_module

    def short(name: str) -> Any:
        raise OSError(24, "Too many open files", name)

    monkeypatch.setattr(router, "import_module", short)
    header: Any = (75, 0, 1, None, 0, 0)
    with pytest.raises(ProtocolViolation, match=r"handler of DescribeTopicPartitions cannot be loaded: .*Too many"):
        node.dispatch(None, bytearray(), header)  # type: ignore[arg-type]  # not looked at before the handler is there
    monkeypatch.setattr(router, "import_module", real)
    assert node.route(75) is not None


NOT_SERVED = sorted(set(APIS) - set(router.HANDLERS))


@pytest.mark.parametrize("key", [*NOT_SERVED, -1, max(APIS) + 1, 32767])
def test_an_api_that_is_not_served_closes_the_connection_by_its_name(key: int) -> None:
    ports: Any = SimpleNamespace(config=SimpleNamespace(non_produce_request_max_bytes=1 << 20))
    name = APIS[key].name if key in APIS else "not known"
    header: Any = (key, 3, 1, None, 0, 0)
    with pytest.raises(ProtocolViolation, match=rf"api key {key} \({name}\), version 3, is not served"):
        router.Router(ports).dispatch(None, bytearray(), header)  # type: ignore[arg-type]  # nothing else is looked at


def test_who_is_gone_before_a_handler_has_begun_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        ports: Any = SimpleNamespace(
            config=SimpleNamespace(non_produce_request_max_bytes=1 << 20), loop=asyncio.get_running_loop()
        )

        async def handle() -> None:
            raise AssertionError("nobody waits for it")

        coroutine = handle()
        header: Any = (18, 0, 1, None, 0, 0)
        connection: Any = None
        router.Router(ports)._later(SimpleNamespace(), connection, header, coroutine).cancel()  # type: ignore[arg-type]
        for _ in range(3):
            await asyncio.sleep(0)
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED

    asyncio.run(scenario())
