"""Time-outs that are none are refused by every call that takes one, before it does anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from fastq import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer
from fastq.testing import Broker
from fastq.timeouts import check_timeout

TP = ("timed", 0)
READS: dict[str, Callable[[Any, Any], Any]] = {
    "poll": lambda client, timeout: client.poll(timeout=timeout),
    "poll_batch": lambda client, timeout: client.poll_batch(timeout=timeout),
    "read_to_end": lambda client, timeout: client.read_to_end(timeout=timeout),
    "commit": lambda client, timeout: client.commit({TP: 1}, timeout=timeout),
    "committed": lambda client, timeout: client.committed([TP], timeout=timeout),
    "end_offsets": lambda client, timeout: client.end_offsets([TP], timeout=timeout),
    "close": lambda client, timeout: client.close(timeout=timeout),
}
SENDS: dict[str, Callable[[Any, Any], Any]] = {
    "flush": lambda client, timeout: client.flush(timeout),
    "init_transactions": lambda client, timeout: client.init_transactions(timeout),
    "commit_transaction": lambda client, timeout: client.commit_transaction(timeout),
    "abort_transaction": lambda client, timeout: client.abort_transaction(timeout),
    "close": lambda client, timeout: client.close(timeout),
}
ASKS: dict[str, Callable[[Any, Any], Any]] = {
    "describe_cluster": lambda client, timeout: client.describe_cluster(timeout=timeout),
    "create_topic": lambda client, timeout: client.create_topic("timed-too", timeout=timeout),
    "list_groups": lambda client, timeout: client.list_groups(timeout=timeout),
}
REFUSED = [("5", "got '5'"), (timedelta(seconds=5), "total_seconds"), ([1], "got \\[1\\]")]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(in_memory=True) as running:
        with Producer(bootstrap_servers=running.bootstrap_servers) as producer:
            producer.send("timed", b"x").result(30)
        yield running


@pytest.mark.parametrize(("timeout", "said"), REFUSED)
def test_blocking_calls_refuse_what_is_no_time_out(broker: Broker, timeout: Any, said: str) -> None:
    servers = broker.bootstrap_servers
    with (
        Consumer(bootstrap_servers=servers, group_id="timed") as consumer,
        Producer(bootstrap_servers=servers, linger_ms=60_000) as plain,
        Producer(bootstrap_servers=servers, transactional_id="timed") as producer,
        Admin(bootstrap_servers=servers) as admin,
    ):
        delivery, many = plain.send("timed", b"x"), plain.send_many("timed", [b"x"])
        consumer.assign([TP])
        for client, calls_of in ((consumer, READS), (producer, SENDS), (admin, ASKS)):
            for call in calls_of.values():
                with pytest.raises(TypeError, match=f"a time-out is a number of seconds, or None, {'.*' + said}"):
                    call(client, timeout)
        for handle in (delivery, many):
            for wait in (handle.result, handle.exception):  # type: ignore[attr-defined]
                with pytest.raises(TypeError, match="a time-out is a number of seconds"):
                    wait(timeout)
        # Nothing was done: all of them are open.
        assert "timed-too" not in admin.list_topics()
        consumer.commit({TP: 1}, timeout=float("inf"))
        plain.flush(float("inf"))
        assert admin.describe_cluster(timeout=float("inf")).nodes


@pytest.mark.parametrize(("timeout", "said"), REFUSED)
def test_asyncio_calls_refuse_what_is_no_time_out(broker: Broker, timeout: Any, said: str) -> None:
    servers = broker.bootstrap_servers

    async def main() -> None:
        async with (
            AsyncConsumer(bootstrap_servers=servers, group_id="timed-2") as consumer,
            AsyncProducer(bootstrap_servers=servers, transactional_id="timed-2") as producer,
            AsyncAdmin(bootstrap_servers=servers) as admin,
        ):
            consumer.assign([TP])
            for client, calls_of in ((consumer, READS), (producer, SENDS), (admin, ASKS)):
                for call in calls_of.values():
                    with pytest.raises(TypeError, match=f"a time-out is a number of seconds, or None, {'.*' + said}"):
                        await call(client, timeout)
            assert "timed-too" not in await admin.list_topics()
            await consumer.commit({TP: 1}, timeout=float("inf"))

    asyncio.run(main())


def test_what_is_a_time_out() -> None:
    for timeout in (None, 0, -1, 2.5, True, float("inf")):
        check_timeout(timeout)
    with pytest.raises(ValueError, match="NaN"):
        check_timeout(float("nan"))
    with pytest.raises(TypeError):
        check_timeout(Decimal(1))
