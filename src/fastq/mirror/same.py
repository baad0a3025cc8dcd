"""What a mirror with the same offsets decides: where a partition goes on, whether the source has lost what is in the target, which epochs
are to be remembered.

Rules: pure. How much is copied is no account of ours: it is where the target's log ends. What is kept is which leader epochs the source had
from which offset on, because the target's own are in its batches; by them it shows that a source was truncated (KIP-101), also while
nobody looked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from fastq.mirror.progress import MirrorGap, StateError
from fastq.values import NamedTuple

MIRROR_SOURCE = "mirror.source"
"""The topic config of a fastq broker by which a mirror alone writes to a topic."""
ENDED = "/ended"
EPOCHS_MAX = 64


def source_value(alias: str, cluster_id: str, topic_id: str) -> str:
    """What `mirror.source` of a topic says: which topic of which cluster it is, by the source's ids."""
    return f"{alias}/{cluster_id}/{topic_id}"


class Epochs(NamedTuple):
    """The source's leader epochs in a partition of it, each with the first offset that it wrote of what was copied, ascending: the last
    EPOCHS_MAX. `begin` is the first offset that was copied, where epochs before those are forgotten; -1: it is that of the first one.
    What the target has below `keeps` stays there until the source begins behind that; -1: it goes as it goes in the source."""

    topic_id: str
    starts: tuple[tuple[int, int], ...] = ()
    begin: int = -1
    keeps: int = -1

    @property
    def first(self) -> int:
        """The first offset that was copied; -1 where none was."""
        return self.starts[0][1] if self.begin < 0 and self.starts else self.begin

    def at(self, end: int) -> int:
        """The epoch of the last record below `end`; -1 where it is not known."""
        return max((epoch for epoch, start in self.starts if start < end), default=-1)

    def start_above(self, epoch: int, end: int) -> int:
        """Where what is below `end` left off to be of epochs up to this one."""
        return min((start for found, start in self.starts if found > epoch and start < end), default=end)

    def added(self, found: Sequence[tuple[int, int]], end: int) -> Epochs:
        """With what comes behind `end`: entries of what was to come there before, and was not copied, go."""
        starts = [(epoch, start) for epoch, start in self.starts if start < end]
        for epoch, start in found:
            if not starts or epoch > starts[-1][0]:
                starts.append((epoch, start))
        begin = self.begin if self.begin < end else -1
        if begin < 0 and len(starts) > EPOCHS_MAX:
            begin = starts[0][1]
        return self._replace(starts=tuple(starts[-EPOCHS_MAX:]), begin=begin)

    def to_json(self) -> bytes:
        offsets = {name: offset for name in ("begin", "keeps") if (offset := getattr(self, name)) >= 0}
        found = {"topic_id": self.topic_id, "epochs": self.starts, **offsets}
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, value: bytes) -> Epochs:
        try:
            found = json.loads(value)
            starts = tuple((int(epoch), int(start)) for epoch, start in found["epochs"])
            return cls(str(found["topic_id"]), starts, int(found.get("begin", -1)), int(found.get("keeps", -1)))
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"no epochs of a partition: {value[:100]!r}", cause=error) from None


def begun_back(known: Epochs | None, source_id: str, topic_id: str, begin: int, start: int, end: int) -> Epochs:
    """How a mirror begins that goes the way back, from a topic that begins at `begin` to a log of the former source from `start` up to
    `end`. `known` is what the former mirror has kept of that, `source_id` the id that its topic has now.

    Where that mirror began in the middle, as at "latest", all below is in the former source alone, and not to be deleted because the
    other log begins later. It is where that begins behind this place, which is its retention's doing, or somebody's."""
    if start >= end:
        return Epochs(topic_id, begin=begin)
    first = known.first if known is not None and known.topic_id == source_id and known.first >= 0 else begin
    return Epochs(topic_id, begin=max(begin, start), keeps=max(first, begin) if start < first else -1)


class Place(NamedTuple):
    """Where a partition goes on. `cut`: where the target is to be cut off first, None: nowhere; `why`: what was passed over, or is cut."""

    offset: int
    cut: int | None = None
    why: str = ""


def diverged_at(epochs: Epochs, end: int, epoch: int, epoch_end: int) -> int | None:
    """Where the source has another history than the target, which ends at `end`; None where it has the same.

    `epoch` and `epoch_end` are the source's answer to where `epochs.at(end)` ends there: the largest epoch up to that one, and its end; -1
    where it knows none.
    """
    if epoch < 0 or epoch_end < 0:
        return None
    border = min(epoch_end, epochs.start_above(epoch, end))
    return border if border < end else None


def place_same(
    begin: int,
    end: int,
    target_start: int,
    target_end: int,
    diverged: int | None,
    *,
    start: str,
    on_gap: str,
    first: int = -1,
    is_copied: bool = True,
) -> Place:
    """Where to go on, of a source with the offsets from `begin` up to `end`; `first` is the first one that was ever copied of this
    topic, or without `is_copied` the one that is to be, -1: none, as far as that is known. Raises MirrorGap where records are missing, or
    the source has lost what the target has, and that is not to be passed over."""
    wanted = target_end
    if target_end == target_start == 0:
        if start != "latest":
            return Place(begin)
        if first < 0:
            return Place(end)
        if is_copied or first >= begin:  # in a topic that was deleted in the target it begins where it began before
            return Place(min(max(begin, first), end))
        wanted = first
    lost = end if target_end > end else None
    if diverged is not None:
        lost = diverged if lost is None else min(lost, diverged)
    if lost is not None:
        why = (
            f"the source has lost what it had from offset {lost} on (it was truncated, as by an unclean election), and the target has it "
            f"up to {target_end}"
        )
        hint = 'with on_gap = "continue" the target is cut off there too, and the mirror goes on with what the source has now'
        found = Place(lost, lost, why)
    elif wanted < begin:
        why = f"the source begins at offset {begin}, and {wanted} was to be copied next"
        hint = 'with on_gap = "continue" the mirror goes on from there, and what is between is not in the target'
        found = Place(begin, None, why)
    else:
        return Place(wanted)
    if on_gap == "stop":
        raise MirrorGap(why, hint=hint)
    return found
