"""Putting a cleaned segment in the place of those that it replaces, and finishing that after a crash.

The names of the files say how far it has come; each step is a rename, and the files' bytes are on disk before the first one:
    .log.cleaned     being written, or written but not in use: removed at the next load
    .log.swap        complete, its place is not free yet: it counts, the segments in its range do not
    .log.deleted     replaced: removed later
A swap renames all `.cleaned` files of the segment to `.swap`, the old segments' files to `.deleted`, then `.swap` to the final names.
Recovery drops a `.swap` when a `.cleaned` file lies at or below its offset (the first step was not complete), else it finishes the swap:
it removes the segments that begin within the swap's offsets and gives it its name. Apache Kafka does the same with the same names.
No size is written down: a swap is whole as its files were synced before they got that name. One that somebody has cut since is found out by
its indexes, whose last entries lie past its end; Apache Kafka believes it.
Source: UnifiedLog.replaceSegments, LogLoader.removeTempFilesAndCollectSwapFiles.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .files import READ, FdBudget, FileHandle, Files
from .offset_index import OffsetIndex
from .scan import CorruptSegment, iter_bounds
from .segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    offset_file_name,
)
from .time_index import TimeIndex

if TYPE_CHECKING:
    from .log_segments import LogSegments

logger = logging.getLogger(__name__)

FILE_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class BrokenSwap(Exception):
    """A swap file that should be complete and is not: the segments that it stands for may be gone."""


class NotAsMade(Exception):
    """What a round of compaction has made is gone, or has another size: nothing was changed."""


class NotUndone(OSError):
    """A swap that could not begin has left files with other names, which the next load gives back or takes."""


def begin_swap(files: Files, first: Segment, made: Mapping[str, int]) -> None:
    """Give the cleaned files beside a segment, its first one, the name of what is to be put in place. `made` are their sizes by their
    suffixes. Raises OSError, NotAsMade: then they have the names that they had, but for NotUndone."""
    path = first.path_of
    for suffix, size in made.items():
        _check(path(suffix) + CLEANED_SUFFIX, size)
    suffixes = [suffix for suffix in FILE_SUFFIXES if suffix in made]
    for number, suffix in enumerate(suffixes):
        try:
            files.rename(path(suffix) + CLEANED_SUFFIX, path(suffix) + SWAP_SUFFIX)
        except OSError:
            for done in reversed(suffixes[:number]):
                try:
                    files.rename(path(done) + SWAP_SUFFIX, path(done) + CLEANED_SUFFIX)
                except OSError as error:
                    raise NotUndone(error.errno, error.strerror, error.filename) from error
            raise


def _check(path: str, size: int) -> None:
    """Whether a file is as it was made. The records that it stands for are about to go."""
    try:
        found = os.stat(path).st_size
    except FileNotFoundError:
        raise NotAsMade(
            f"{path} was made with {size} bytes and is gone: somebody has removed it; the segments that it was to replace stay"
        ) from None
    if found != size:
        raise NotAsMade(
            f"{path} was made with {size} bytes and has {found}: somebody has changed it; the segments that it was to replace stay"
        )


def swap_in(log: LogSegments, old: Sequence[Segment], made: Mapping[str, int]) -> Segment:
    """Replace consecutive segments by the cleaned one that has the first one's offset, to which `begin_swap` has been; answers it.
    Raises OSError.

    Names are not synced: until that is done, a loss of power may bring back any step before.
    """
    files, base = log.files, old[0].base_offset
    path = old[0].path_of
    for segment in old:
        # A snapshot is of what lies below its offset, which is right as long as a segment begins there.
        log.remove_files(segment, keep_snapshot=segment.base_offset == base)
    for suffix in FILE_SUFFIXES:  # the .log first: what is left without it after a crash only waits for its name
        if suffix in made:
            files.rename(path(suffix) + SWAP_SUFFIX, path(suffix))
    cleaned = log.make_segment(base, size=made[LOG_SUFFIX], created_ms=old[0].created_ms)
    cleaned.name_synced = True
    return cleaned


def recover_swaps(files: Files, directory: str, names: set[str]) -> None:
    """Finish or undo the swaps that a crash has cut short, given the names in a log's directory. Raises OSError, BrokenSwap."""
    cleaned = min((_base(name) for name in names if _is(name, CLEANED_SUFFIX)), default=None)
    # The .log first, as in a swap: what is left without it only waits for its name.
    swaps = sorted((name for name in names if _is(name, SWAP_SUFFIX)), key=lambda name: (LOG_SUFFIX not in name, name))
    complete = []
    _check_records(directory, names, swaps, cleaned)
    for name in swaps:
        if cleaned is not None and _base(name) >= cleaned:
            logger.warning("%s: a compaction was cut short and is undone: %s is removed", directory, name)
            files.remove_if_exists(os.path.join(directory, name))
        else:
            complete.append(name)
    bases = [_base(name) for name in complete if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if bases:
        start, end = min(bases), max(_end_of_swap(files, directory, base) for base in bases)
        for name in names:
            if name.endswith(FILE_SUFFIXES) and _is(name, "") and start <= _base(name) < end:
                files.remove_if_exists(os.path.join(directory, name))
    for name in complete:
        path = os.path.join(directory, name)
        files.rename(path, path[: -len(SWAP_SUFFIX)])
    if complete:
        logger.warning("%s: a compaction that was cut short is complete: %s", directory, ", ".join(complete))
        files.sync_directory(directory)


def _check_records(directory: str, names: set[str], swaps: Sequence[str], cleaned: int | None) -> None:
    """Raise BrokenSwap where the records of a swap are gone that is to be finished, and with them, by their names, those that it stands
    for: what there is of these is not removed with the other leftovers."""
    for name in swaps:
        base = _base(name)
        log_name = offset_file_name(base, LOG_SUFFIX)
        gone = log_name not in names and log_name + SWAP_SUFFIX not in names
        if gone and (cleaned is None or base < cleaned) and log_name + DELETED_SUFFIX in names:
            raise BrokenSwap(
                f"{os.path.join(directory, log_name)}{SWAP_SUFFIX} is gone: it had what a compaction has left of the records from offset "
                f"{base} on, and somebody has removed it after a stop amid that; nothing was changed and the partition is not served: "
                f"restore that file, or remove the files that end in {SWAP_SUFFIX} and take {DELETED_SUFFIX} off the names of the files "
                "from that offset on"
            )


def remove_cleaned(files: Files, directory: str) -> None:
    """Remove what a round of compaction has left that will not be put in place. Raises OSError."""
    for name in files.listdir(directory):
        if _is(name, CLEANED_SUFFIX):
            files.remove_if_exists(os.path.join(directory, name))


def is_leftover(name: str) -> bool:
    """Whether a file is of no use when a log is loaded."""
    return name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp"))


def _is(name: str, suffix: str) -> bool:
    """Whether a name is that of a segment's file with one more suffix."""
    stem = name[: len(name) - len(suffix)] if suffix else name
    return name.endswith(suffix) and stem[:20].isdigit() and stem[20:] in (*FILE_SUFFIXES, SNAPSHOT_SUFFIX)


def _base(name: str) -> int:
    return int(name[:20])


def _end_of_swap(files: Files, directory: str, base: int) -> int:
    """One above the last offset of a swap's `.log`. It was synced before it got that name, so it must be whole."""
    path = os.path.join(directory, offset_file_name(base, LOG_SUFFIX + SWAP_SUFFIX))
    end = base
    try:
        for bounds in iter_bounds(files, FileHandle(files, path, READ), 0, files.size_bytes(path)):
            end = bounds.last_offset + 1
        indexed, index = _last_indexed(files, directory, base)
    except CorruptSegment as error:
        raise BrokenSwap(f"{error}; {_advice(base)}") from error
    if indexed >= end:
        raise BrokenSwap(
            f"{path} ends at offset {end}, and {index} has an entry for offset {indexed}: somebody has changed one of them since they were "
            f"made; {_advice(base)}; or, if the first is right, remove its indexes that end in {SWAP_SUFFIX}, which are made again"
        )
    return end


def _last_indexed(files: Files, directory: str, base: int) -> tuple[int, str]:
    """The highest offset that one of a swap's indexes has, and its name; below `base` where they have none. Raises OSError, WildIndex."""
    found = base - 1, ""
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        name = offset_file_name(base, suffix + SWAP_SUFFIX)
        path, budget = os.path.join(directory, name), FdBudget(2)
        index: OffsetIndex | TimeIndex
        if suffix == INDEX_SUFFIX:
            index = OffsetIndex(files, budget, path, base)
            offset = index.last()[0]
        else:
            index = TimeIndex(files, budget, path, base)
            offset = index.last()[1]
        if index.entry_count:
            found = max(found, (offset, name))
        index.release()
    return found


def _advice(base: int) -> str:
    return (
        f"nothing was changed and the partition is not served: restore the directory, or rename that file to end in {CLEANED_SUFFIX} if "
        f"the segments from offset {base} on are still there, and take {DELETED_SUFFIX} off the names of their files"
    )
