"""Which partitions of a lane the target fetches from the source by itself, and when it is asked.

Rules
- What is pulled is what has much to come, behind what was copied as ever: where a partition begins, what its log's start is, and which
  epochs the source had, stays with the lane. A partition that is about to be pulled is held: nobody fetches it meanwhile.
- One pull of a lane is under way at a time, with all partitions that were held when it began. It goes on as long as there is much to come.
- Whatever else comes of it, the partition is copied as ever for a while. A target that was not told of the source, or does not know the
  request, is asked again rarely, and that is said once; one that was told and cannot is warned of, each WARN_S at most.
- Thread rule: one thread, but for the one of `beside` that waits for the answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future

from fastq.errors import (
    FastqError,
    NetworkException,
    ResourceNotFound,
    ThrottlingQuotaExceeded,
    UnsupportedVersion,
)
from fastq.metadata import TopicPartition
from fastq.mirror.config import MirrorConfig
from fastq.mirror.target_puller import Outcomes, Pull, TargetPuller

logger = logging.getLogger("fastq.mirror")

MUCH_BYTES, MORE_BYTES = 8 * 1024 * 1024, 256 * 1024
"""What a partition has to come, by the size of what came, to be pulled; and to be pulled again."""
PULL_BYTES = 128 * 1024 * 1024
"""By each node of the target, at a time."""
PARTITIONS_MAX = 500
SOON_S, AGAIN_S, LATER_S = 1.0, 30.0, 60.0
WARN_S = 60.0
UNTOUCHED = (ResourceNotFound, ThrottlingQuotaExceeded, UnsupportedVersion)
"""Errors of a request of which nothing was done."""


class Said:
    """What was said to the log of a mirror, by all lanes of a process. Thread rule: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[tuple[str, str, str], float] = {}

    def may(self, source: str, target: str, what: str, now: float, again_s: float = float("inf")) -> bool:
        """Whether this is to be said now, which is so once in `again_s`."""
        with self._lock:
            before = self._at.get((source, target, what))
            if before is not None and now - before < again_s:
                return False
            self._at[source, target, what] = now
            return True


SAID = Said()


class Pulls:
    """The pulls of a lane. Invariants: of `held` none is being pulled, nor fetched from the moment on that it is held; `_rests` are
    those that are not to be, and until when."""

    def __init__(
        self, config: MirrorConfig, puller: TargetPuller, beside: Executor, clock: Callable[[], float]
    ) -> None:
        self.held: dict[TopicPartition, None] = {}
        self.under_way: Future[Outcomes] | None = None
        self._config, self._puller, self._beside, self._clock = config, puller, beside, clock
        self._rests: dict[TopicPartition, float] = {}

    def is_much(
        self, tp: TopicPartition, asked: int, next_offset: int, size: int, source_end: int, *, again: bool = False
    ) -> bool:
        """Whether a partition is to be pulled (`again`: after a pull), of which what lies from `asked` up to `next_offset` had so many
        bytes, and that ends there in the source."""
        much = MORE_BYTES if again else MUCH_BYTES
        if (source_end - next_offset) * size < much * (next_offset - asked):
            return False
        rests = self._rests.get(tp)
        if rests is not None and self._clock() < rests:
            return False
        self._rests.pop(tp, None)
        return len(self.held) < PARTITIONS_MAX and next_offset > asked

    def begin(self, wanted: Mapping[TopicPartition, Pull]) -> None:
        """Have the target pull these, by its names of topics."""
        self.under_way = self._beside.submit(self._puller.pull, wanted, PULL_BYTES)

    def taken(self) -> Outcomes:
        """What has come of the pull that is over. Raises what `TargetPuller.pull` does."""
        future, self.under_way = self.under_way, None
        assert future is not None
        return future.result()

    def worked(self) -> None:
        """The target has fetched something by itself."""
        source, target = self._config.source.alias, self._config.target.alias
        if SAID.may(source, target, "does", self._clock()):
            logger.info("%s fetches from %s by itself what has much to come", target, source)

    def rest(self, tp: TopicPartition, error: FastqError | None = None) -> None:
        """Not to be pulled for a while; longer for an error that does not pass by itself."""
        self._rest(tp, SOON_S if error is None or error.retriable else AGAIN_S)

    def refused(self, tp: TopicPartition, error: FastqError) -> None:
        """The target has refused the whole request, or has not answered it."""
        source, target = self._config.source.alias, self._config.target.alias
        if isinstance(error, (ResourceNotFound, UnsupportedVersion)):
            self._rest(tp, LATER_S)
            if SAID.may(source, target, "does not", self._clock()):
                logger.info(
                    "%s does not fetch from %s by itself, so all bytes go through this process: %s",
                    target,
                    source,
                    error,
                )
        elif error.retriable:
            self._rest(tp, SOON_S)
        else:
            self._complain(tp, error)

    def failed(self, tp: TopicPartition, error: FastqError) -> None:
        """The source has refused the target, or cannot be reached from there."""
        if error.retriable and not isinstance(error, NetworkException):  # as where its leader has changed
            self._rest(tp, SOON_S)
        else:
            self._complain(tp, error)

    def _complain(self, tp: TopicPartition, error: FastqError) -> None:
        self._rest(tp, AGAIN_S)
        source, target = self._config.source.alias, self._config.target.alias
        if SAID.may(source, target, "cannot", self._clock(), WARN_S):
            logger.warning(
                "%s was told how to fetch from %s by itself and cannot, so all bytes go through this process: %s",
                target,
                source,
                error,
            )

    def _rest(self, tp: TopicPartition, seconds: float) -> None:
        self._rests[tp] = self._clock() + seconds
