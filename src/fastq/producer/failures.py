"""Records that were not delivered: told in the log, because nobody may hold their handles, and counted for the end.

Rules: the first of a kind (topic, partition, reason) at once, later ones counted and told together, one line in EVERY_S; what was not
told yet is told at the end. The clock is a parameter. Records of a transaction that is aborted are not counted here: its commit raises.
"""

from __future__ import annotations

import logging

from fastq.errors import FastqError, SerializationError, UndeliveredRecords

logger = logging.getLogger("fastq.producer")

EVERY_S = 10.0
KINDS_MAX = 1000
"""Of failures that are told apart; beyond it they share lines."""


class _Kind:
    """One kind of failure: how many records since its last line, and when that was."""

    __slots__ = ("error", "told_at", "untold")

    def __init__(self, error: FastqError) -> None:
        self.error, self.untold, self.told_at = error, 0, float("-inf")


class Failures:
    """What failed, of one producer. Thread rule: under the GIL, from whichever thread ends batches.

    Invariant: `total` is the number of records noted; the `untold` of all kinds are those of them that no line has told of.
    """

    def __init__(self) -> None:
        self.total = 0
        self._kinds: dict[tuple[str | None, int | None, str], _Kind] = {}

    def note(self, count: int, error: FastqError, now: float) -> None:
        """`count` records of one partition failed, or were refused before they had one."""
        self.total += count
        key = (error.topic, error.partition, type(error).__name__)
        if key not in self._kinds and len(self._kinds) >= KINDS_MAX:
            key = (None, None, type(error).__name__)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(error)
        kind.error = error
        kind.untold += count
        if now - kind.told_at >= EVERY_S:
            kind.told_at = now
            self._tell(kind)

    def count(self, count: int, error: FastqError) -> None:
        """The same, of what has been told already."""
        if count:
            self.total += count
            self._kinds[None, None, type(error).__name__] = _Kind(error)

    @staticmethod
    def _tell(kind: _Kind) -> None:
        logger.warning(
            "%d record%s not delivered: %s", kind.untold, " was" if kind.untold == 1 else "s were", kind.error
        )
        kind.untold = 0

    def tell_rest(self) -> None:
        """Tell what no line has told of."""
        for kind in self._kinds.values():
            if kind.untold:
                self._tell(kind)

    def tell_total(self, raises: bool) -> None:
        """At the end of the producer: say how many failed, or raise UndeliveredRecords."""
        self.tell_rest()
        if not self.total:
            return
        last = next(reversed(self._kinds.values())).error
        if raises:
            verb = "was" if self.total == 1 else "were"
            raise UndeliveredRecords(
                f"of this producer's records {self.total} {verb} not delivered", count=self.total, cause=last
            )
        logger.warning(
            "the producer is closed: %d of its records %s not delivered",
            self.total,
            "was" if self.total == 1 else "were",
        )


def not_loaded(error: BaseException, topic: str) -> SerializationError:
    """The error of a record for whose serializer something was loaded in a thread, which failed with `error`."""
    failed = SerializationError(f"the serializer failed to load what it needs: {error}", topic=topic)
    failed.__cause__ = error
    return failed
