"""Leaders, followers and a controller under faults: see partition_world. And the faults in the machine that it has to find."""

from __future__ import annotations

import pytest
from fastq_broker.replication.isr import Follower, IsrChange
from fastq_broker.replication.partition import AskController, Effect, Ends, IsrAnswer, Partition
from partition_world import run

SEEDS = 60


@pytest.mark.parametrize("block", range(4))
def test_what_is_acknowledged_survives_every_clean_election(block: int) -> None:
    committed = 0
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        try:
            committed += len(run(seed).committed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert committed > SEEDS


class JoinsBelowTheEpoch(Partition):
    """KAFKA-7128."""

    def _may_join(self, follower: Follower) -> bool:
        epoch_start, self.epoch_start = self.epoch_start, -1
        try:
            return super()._may_join(follower)
        finally:
            self.epoch_start = epoch_start


class CountsWhoIsInAlone(Partition):
    """A proposal that the controller has carried out already does not count."""

    def count(self, now_ms: int) -> list[Effect]:
        maximal, self.isr.maximal = self.isr.maximal, self.isr.committed
        lag, self._lag_max_ms = self._lag_max_ms, -1
        try:
            return super().count(now_ms)
        finally:
            self.isr.maximal, self._lag_max_ms = maximal, lag


class ShrinksAtOnce(Partition):
    """Who is to go does not count any more, before the controller has said so."""

    def _propose(self, nodes: list[int], joining: int = -1) -> AskController:
        asked = super()._propose(nodes, joining)
        self.isr.maximal = frozenset(nodes)
        return asked


class CommitsBelowMinIsr(Partition):
    @property
    def min_isr(self) -> int:
        return 1


class CountsTheLeadersMemory(Partition):
    """With durability "fsync" a leader's own end is what is on its disk."""

    def apply(self, image, log: Ends, now_ms: int) -> list[Effect]:  # type: ignore[no-untyped-def]
        return super().apply(image, log._replace(kept=log.log_end), now_ms)

    def appended(self, log_end: int, kept: int, now_ms: int) -> list[Effect]:
        return super().appended(log_end, log_end, now_ms)


class CountsWhatIsSent(Partition):
    """A follower has what it was sent."""

    def fetched(self, node_id: int, offset: int, log_start: int, broker_epoch: int, now_ms: int) -> list[Effect]:
        return super().fetched(
            node_id, max(offset, min(offset + 1, self._log.log_end)), log_start, broker_epoch, now_ms
        )


class GivesUpOnAZombie(Partition):
    """KAFKA-14154: NOT_CONTROLLER for a partition is no final answer."""

    def answered(self, change: IsrChange, answer: IsrAnswer, now_ms: int) -> list[Effect]:
        return [] if answer.error_code == 41 else super().answered(change, answer, now_ms)


class AsksWithNobody(Partition):
    """KAFKA-15353: what is asked again has lost its in-sync set."""

    def answered(self, change: IsrChange, answer: IsrAnswer, now_ms: int) -> list[Effect]:
        effects = super().answered(change, answer, now_ms)
        for index, effect in enumerate(effects):
            if isinstance(effect, AskController):
                empty = change._replace(isr=())
                self.isr.pending = empty
                effects[index] = AskController(empty)
        return effects


class ForgetsHowFarItWas(Partition):
    """The high watermark is what is counted now."""

    def count(self, now_ms: int) -> list[Effect]:
        self._log = self._log._replace(high_watermark=min(self._log.high_watermark, self._log.kept, 1))
        return super().count(now_ms)


MUTATIONS = [
    JoinsBelowTheEpoch,
    CountsWhoIsInAlone,
    ShrinksAtOnce,
    CommitsBelowMinIsr,
    CountsTheLeadersMemory,
    CountsWhatIsSent,
    GivesUpOnAZombie,
    AsksWithNobody,
    ForgetsHowFarItWas,
]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_simulation_finds(mutation: type[Partition]) -> None:
    for seed in range(600):
        try:
            run(seed, mutation)
        except AssertionError:
            return
    pytest.fail("nothing was found")
