"""How far a partition is mirrored: what is kept of it, where to go on, and which offset of the target is which of the source.

Rules: pure. A `Run` says that so many records from an offset of the source on lie from an offset of the target on, both without a gap.
Runs are kept at growing distances, so that old offsets are translated too, less exactly. A translation never skips a record: it is the same
record where a run has it, else one behind the last record that is known to lie before it, as MirrorMaker 2's is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from fastq.errors import FastqError
from fastq.values import NamedTuple

RUNS_MAX = 16


class MirrorGap(FastqError):
    """The source has not the records any more that would be copied next; see `on_gap`."""

    cure = "Lengthen the source's retention; with on_gap = 'continue' it goes on where the source does, and writes the gap down."
    default_message = "the source has not the records any more that would be copied next"


class MirrorStopped(FastqError):
    """The mirror was failed over: its target is written to by others now, and it copies nothing any more."""

    cure = "Nothing: end the mirror. To mirror the other way, give fastq mirror fail-back its new configuration."
    default_message = (
        "the mirror was failed over: its target is written to by others now, and it copies nothing any more"
    )


class TargetCut(FastqError):
    """The target has not the records any more that were copied to it."""

    cure = "Restore the target's topic, or delete it so that it is mirrored anew from the beginning of the source."
    default_message = "the target has not the records any more that were copied to it"


class StateError(FastqError):
    """A record of the mirror's own topic cannot be read."""

    cure = "See that nothing but the mirror writes to fastq-mirror.ALIAS.internal, and that all run the same version."
    default_message = "a record of the mirror's topic cannot be read"


class Run(NamedTuple):
    """So many `records` from `source` on are those from `target` on."""

    source: int
    target: int
    records: int


class Mark(NamedTuple):
    """The last record that was copied: the offset behind it, and its leader epoch and time (ms) in the source; -1: not known."""

    end: int
    epoch: int = -1
    time_ms: int = -1


class Progress(NamedTuple):
    """What is committed in the target of one partition of the source.

    `next_offset` is the first offset that was not looked at. `topic_id` is that of the source's topic (hex), `gap` the last range of
    offsets that could not be copied, `runs` are in ascending order. `target_id` is that of the topic it was copied to, "" where a mirror
    wrote it that did not keep it. By `mark` it shows that the source has lost what was copied (`history.py`); None: not known.
    """

    next_offset: int
    topic_id: str
    runs: tuple[Run, ...] = ()
    gap: tuple[int, int] | None = None
    target_id: str = ""
    mark: Mark | None = None

    def advanced(self, next_offset: int, runs: Iterable[Run], mark: Mark | None = None) -> Progress:
        """After more was copied; without a `mark`, no record."""
        return self._replace(next_offset=next_offset, runs=kept(merged([*self.runs, *runs])), mark=mark or self.mark)

    @property
    def target_end(self) -> int:
        """The offset of the target behind the last record that is known to be there; 0 where none is."""
        return self.runs[-1].target + self.runs[-1].records if self.runs else 0

    @classmethod
    def begun(cls, before: Progress | None, start: Start, topic_id: str, target_id: str = "") -> Progress:
        """Of a partition that is read from `start` on. Runs of records that the source has no more, or has others for, or that are not in
        the target's topic of this id, are forgotten."""
        if before is None or before.topic_id != topic_id:
            return cls(start.offset, topic_id, (), start.gap, target_id)
        gap = start.gap or before.gap
        mark = before.mark if before.mark is not None and before.mark.end <= start.offset else None
        if is_another(before.target_id, target_id):
            return cls(start.offset, topic_id, (), gap, target_id)
        runs = [run for run in before.runs if run.source < start.offset]
        if runs and runs[-1].source + runs[-1].records > start.offset:
            runs[-1] = runs[-1]._replace(records=start.offset - runs[-1].source)
        return cls(start.offset, topic_id, tuple(runs), gap, target_id, mark)

    def to_json(self) -> bytes:
        document: dict[str, Any] = {"next": self.next_offset, "topic_id": self.topic_id, "runs": self.runs}
        if self.target_id:
            document["target_id"] = self.target_id
        if self.gap is not None:
            document["gap"] = self.gap
        if self.mark is not None:
            document["mark"] = self.mark
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, value: bytes) -> Progress:
        try:
            found = json.loads(value)
            gap, mark = found.get("gap"), found.get("mark")
            return cls(
                int(found["next"]),
                str(found["topic_id"]),
                tuple(Run(*map(int, run)) for run in found["runs"]),
                None if gap is None else (int(gap[0]), int(gap[1])),
                str(found.get("target_id", "")),
                None if mark is None else Mark(*map(int, mark)),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise StateError(
                f"no progress of a partition: {value[:100]!r}",
                hint="Was something else written to it? A record with that key and no value takes it back; the partition then begins anew",
                cause=error,
            ) from None

    def translated(self, offset: int) -> int | None:
        """The offset of the target to go on from for who would read `offset` of the source next; None where nothing is known so
        far back."""
        before = [run for run in self.runs if run.source <= offset]
        if not before:
            return None
        run = before[-1]
        inside = offset - run.source
        return run.target + min(inside, run.records)


def is_another(topic_id: str, other: str) -> bool:
    """Whether two ids are of different topics. "" and zeros are of a cluster, or a state, that does not tell."""
    return topic_id.strip("0") != "" != other.strip("0") and topic_id != other


def merged(runs: Sequence[Run]) -> list[Run]:
    """Runs that go on from one another as one."""
    found: list[Run] = []
    for run in runs:
        if found:
            last = found[-1]
            if last.source + last.records == run.source and last.target + last.records == run.target:
                found[-1] = Run(last.source, last.target, last.records + run.records)
                continue
        found.append(run)
    return found


def kept(runs: Sequence[Run]) -> tuple[Run, ...]:
    """At most RUNS_MAX of them, the newest, and older ones at distances that grow with their age.

    Of two neighbours the younger goes where the span of both is least for their age, so spans are about powers of two.
    """
    left = list(runs)
    while len(left) > RUNS_MAX:
        end = left[-1].source + left[-1].records
        # The first is kept as long as there is one: what is before it cannot be translated at all.
        place = min(
            range(1, len(left) - 1),
            key=lambda i: (left[i + 1].source - left[i - 1].source) / (end - left[i].source + 1),
        )
        del left[place]
    return tuple(left)


class Start(NamedTuple):
    """Where to go on, and the range of offsets that is passed over with it."""

    offset: int
    gap: tuple[int, int] | None = None
    why: str = ""


def place_to_start(
    progress: Progress | None,
    topic_id: str,
    begin: int,
    end: int,
    *,
    start: str,
    on_gap: str,
    target_id: str = "",
    lost: int | None = None,
) -> Start:
    """Where a partition of the source is read from, which has the offsets from `begin` up to `end`. Raises MirrorGap where records are
    missing and that is not to be passed over. What was copied to a topic of the target that is there no more is copied anew. `lost`: from
    where on the source has not what was copied of it, None: it has all."""
    if progress is None:
        return Start(begin if start == "earliest" else end)
    if is_another(progress.target_id, target_id) and start == "earliest":
        why = f"the target's topic was deleted and made anew (id {target_id}, was {progress.target_id})"
        return Start(begin, None, why)
    wanted = progress.next_offset
    if progress.topic_id != topic_id:
        found = Start(
            begin, (wanted, wanted), f"the topic was deleted and made anew (id {topic_id}, was {progress.topic_id})"
        )
    elif lost is not None and lost >= begin:
        found = Start(
            lost,
            (lost, wanted),
            f"the source has lost what it had, from offset {lost} on at the latest (it was truncated, as by an unclean election), and all "
            f"before {wanted} was copied: it may have other records there now",
        )
    elif wanted < begin:
        found = Start(
            begin, (wanted, begin), f"the source begins at offset {begin}, and {wanted} was to be copied next"
        )
    elif wanted > end:
        found = Start(
            end, (end, wanted), f"the source ends at offset {end}, and all before {wanted} was copied: it was truncated"
        )
    else:
        return Start(wanted)
    if on_gap == "stop":
        raise MirrorGap(
            found.why,
            hint='with on_gap = "continue" the mirror goes on from there, and what is between is not in the target',
        )
    return found
