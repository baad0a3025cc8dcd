"""AddPartitionsToTxn of another broker: many transactions, of which one may wait for what the others do not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.handlers import add_partitions_to_txn as api
from fastq_broker.transactions.transaction import Transaction

from fastq.errors import ErrorCode, error_for_code
from fastq.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse


class Coordinator:
    """`outcomes` are the answers by transactional id, perhaps to come."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Any] = {}

    def add_partitions(self, transactional_id: str, *_: Any) -> Any:
        return self.outcomes[transactional_id]


def asked(coordinator: Coordinator) -> Any:
    kind = AddPartitionsToTxnRequest
    context: Any = SimpleNamespace(
        api_version=5,
        transactions=coordinator,
        image=SimpleNamespace(topic=lambda name: SimpleNamespace(partitions=[None])),
    )
    transactions = [
        kind.AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=number,
            producer_epoch=0,
            topics=[kind.AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )
        for number, name in enumerate(coordinator.outcomes)
    ]
    return api.handle(context, kind(transactions=transactions))


def codes(response: AddPartitionsToTxnResponse) -> dict[str, int]:
    return {
        each.transactional_id: each.topic_results[0].results_by_partition[0].partition_error_code
        for each in response.results_by_transaction
    }


def test_one_that_takes_long_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks sends this node nothing else before the answer: all of its transactions waited for one partition's replicas."""
    monkeypatch.setattr(api, "ANSWER_S", 0.05)

    async def scenario() -> None:
        coordinator, loop = Coordinator(), asyncio.get_running_loop()
        coordinator.outcomes = {
            "now": Transaction("now", 1, 1000),
            "soon": loop.create_future(),
            "late": loop.create_future(),
        }
        refused = loop.create_future()
        refused.set_exception(error_for_code(ErrorCode.PRODUCER_FENCED, "another came"))
        coordinator.outcomes["refused"] = refused
        loop.call_later(0.01, coordinator.outcomes["soon"].set_result, Transaction("soon", 1, 1000))
        response = await asyncio.wait_for(asked(coordinator), 5)
        assert codes(response) == {"now": 0, "soon": 0, "late": ErrorCode.CONCURRENT_TRANSACTIONS, "refused": 90}

    asyncio.run(scenario())


def test_nobody_waits_for_an_answer_to_a_connection_that_is_gone() -> None:
    async def scenario() -> None:
        coordinator = Coordinator()
        waiting = coordinator.outcomes["late"] = asyncio.get_running_loop().create_future()
        answer = asyncio.ensure_future(asked(coordinator))
        await asyncio.sleep(0.01)
        answer.cancel()
        await asyncio.sleep(0.01)
        assert answer.cancelled() and waiting.cancelled()

    asyncio.run(scenario())
