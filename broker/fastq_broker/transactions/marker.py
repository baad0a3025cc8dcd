"""A transaction's end in a partition, as it is asked for and told."""

from __future__ import annotations

from collections.abc import Callable

from fastq.errors import KafkaError
from fastq.values import NamedTuple

Done = Callable[["KafkaError | None"], None]
GiveUp = Callable[[], None]
"""Ends a wait, of which `Done` is told then; does nothing once it has been."""


class Marker(NamedTuple):
    """How a producer's transaction ends."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int
