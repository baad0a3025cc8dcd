"""Closing a transactional producer whose broker is gone: it ends, though nobody knows what became of the commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from under_test import broker_under_test

from fastq import Admin, AsyncProducer, Producer
from fastq.errors import TransactionTimeout

pytestmark = pytest.mark.any_nodes

NewName = Callable[[], str]
IMPATIENT = {"max_block_ms": 1000, "delivery_timeout_ms": 1500, "request_timeout_ms": 500, "linger_ms": 0}


def test_close_does_not_wait_for_a_broker_that_is_gone(new_topic_name: NewName) -> None:
    with broker_under_test(in_memory=True) as broker:
        topic, servers = new_topic_name(), broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(topic, 1)
        with (
            pytest.raises(TransactionTimeout),
            Producer(bootstrap_servers=servers, transactional_id=topic, **IMPATIENT) as producer,
            producer.transaction(),
        ):
            producer.send(topic, b"undecided").result(10)
            broker.kill()


def test_async_close_does_not_wait_for_a_broker_that_is_gone(new_topic_name: NewName) -> None:
    async def run(servers: str, topic: str) -> None:
        async with (
            AsyncProducer(bootstrap_servers=servers, transactional_id=topic, **IMPATIENT) as producer,
            producer.transaction(),
        ):
            await (await producer.send(topic, b"undecided"))
            broker.kill()

    with broker_under_test(in_memory=True) as broker:
        topic = new_topic_name()
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topic(topic, 1)
        with pytest.raises(TransactionTimeout):
            asyncio.run(run(broker.bootstrap_servers, topic))
