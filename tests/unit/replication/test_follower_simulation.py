"""Followers whose leaders change, vanish and come back: nothing that was committed is ever cut off, and in the end all logs are one.

And the faults in the machine that this has to find.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastq_broker.replication.fetcher import Followed, ReplicaFetcher
from fastq_broker.replication.fetcher_session import Key, Wanted
from fetcher_cluster import troubled


def run(seeds: range) -> int:
    """How often logs were cut back."""
    cuts = 0
    for seed in seeds:
        try:
            cuts += troubled(seed).cuts
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    return cuts


@pytest.mark.parametrize("block", range(4))
def test_followers_end_with_their_leaders_logs(block: int) -> None:
    assert run(range(10 * block, 10 * block + 10)) > 20, "the seeds are too kind: histories hardly part"


@pytest.mark.soak
def test_followers_end_with_their_leaders_logs_for_long(soak: bool) -> None:
    run(range(1000, 2000 if soak else 1004))


class HeedsOldAnswers(ReplicaFetcher):
    """KAFKA-18991: what was asked in another leader epoch counts too."""

    def fetched(self, number: int, response: Any, now: float) -> None:
        for key, wanted in self._session.known.items():
            if key in self.partitions:
                self.partitions[key].position = wanted.position
        super().fetched(number, response, now)


class DoesNotWaitForTheDisk(ReplicaFetcher):
    """It says that it has what the next loss of power takes."""

    def _go_on(self, state: Followed, leader_epoch: int, now: float) -> None:
        super()._go_on(state, leader_epoch, now)
        self._syncing.clear()


class DoesNotSayWhichEpoch(ReplicaFetcher):
    """The leader cannot see that the histories part."""

    def _wanted(self, key: Key, throttled: Any, now: float) -> Wanted | None:
        wanted = super()._wanted(key, throttled, now)
        if wanted is not None:
            self.partitions[key].position = wanted.position._replace(last_fetched_epoch=-1)
            wanted = wanted._replace(position=self.partitions[key].position)
        return wanted


class CutsToTheHighWatermark(ReplicaFetcher):
    """KIP-101: before there were leader epochs, a new follower went back to its own high watermark."""

    def _go_on(self, state: Followed, leader_epoch: int, now: float) -> None:
        if state.position.leader_epoch < leader_epoch:
            state.log.truncate_to(state.log.high_watermark)
        super()._go_on(state, leader_epoch, now)


@pytest.mark.parametrize(
    "faulty",
    [HeedsOldAnswers, DoesNotWaitForTheDisk, DoesNotSayWhichEpoch, CutsToTheHighWatermark],
    ids=lambda faulty: faulty.__name__,
)
def test_the_simulation_finds(faulty: type[ReplicaFetcher]) -> None:
    with pytest.raises(AssertionError):
        for seed in range(60):
            troubled(seed, faulty)
