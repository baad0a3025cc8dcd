"""Producer ids are given once each, whoever asks at the same time, and none where there is no block to be had."""

from __future__ import annotations

import asyncio

import pytest
from fastq_broker.producer_ids import ProducerIdPool

from fastq.errors import NotController


class Blocks:
    """A controller that gives blocks of ten, after a turn of the loop; `fails` of them not."""

    def __init__(self) -> None:
        self.given = self.fails = 0

    async def allocate(self) -> tuple[int, int]:
        await asyncio.sleep(0)
        if self.fails:
            self.fails -= 1
            raise NotController("no leader")
        self.given += 1
        return (self.given - 1) * 10, 10


def test_each_once_and_one_block_at_a_time() -> None:
    async def scenario() -> None:
        blocks = Blocks()
        pool = ProducerIdPool(blocks.allocate)
        taken = await asyncio.gather(*(pool.take() for _ in range(25)))
        assert sorted(taken) == [[number] for number in range(25)]
        assert blocks.given == 3

    asyncio.run(scenario())


def test_several_at_once_are_of_one_block_and_what_is_left_is_given_up() -> None:
    async def scenario() -> None:
        pool = ProducerIdPool(Blocks().allocate)
        assert await pool.take(8) == list(range(8))
        assert await pool.take(8) == list(range(10, 18))
        assert await pool.take(2) == [18, 19]

    asyncio.run(scenario())


def test_without_a_block_nothing_is_used_up() -> None:
    async def scenario() -> None:
        blocks = Blocks()
        pool = ProducerIdPool(blocks.allocate)
        assert await pool.take(9) == list(range(9))
        blocks.fails = 1
        with pytest.raises(NotController):
            await pool.take(2)
        assert await pool.take() == [9]

    asyncio.run(scenario())
