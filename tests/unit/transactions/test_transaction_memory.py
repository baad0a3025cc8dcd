"""Where there is no memory for a moment, whichever, a transaction ends all the same."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.transactions.transaction import Transaction
from transaction_fakes import Bench, begun

from fastq.errors import KafkaError

ALLOCATIONS = 200
"""More than the end of a transaction takes."""


def ignore(txn: Transaction | None, error: KafkaError | None) -> None: ...


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_transaction_ends_whichever_allocations_fail(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where those of the way out failed too, its id was refused, or its decision not carried out, until the next load."""
    monkeypatch.setattr(logging.getLogger("fastq_broker.log.failures"), "disabled", True)
    for first in range(ALLOCATIONS):
        bench = Bench()
        producer = begun(bench)
        with suppress(MemoryError), AllocationsFail(first, count):
            with suppress(MemoryError):
                bench.shard.end("t", *producer, True, 2, ignore)
            bench.turn()
        bench.turn()
        if bench.state() == "Ongoing":
            assert isinstance(bench.end(*producer, True), Transaction), f"allocation {first}"
        for _ in range(3):
            bench.context.advance(10_000)
            bench.shard.abort_timed_out()
            bench.turn()
        assert bench.state() == "CompleteCommit", f"allocation {first}"
