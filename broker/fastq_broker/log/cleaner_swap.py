"""Putting a cleaned segment in the place of those that it replaces, and finishing that after a crash.

The names of the files say how far it has come; each step is a rename, and the files' bytes are on disk before the first one:
    .log.cleaned     being written, or written but not in use: removed at the next load
    .log.swap        complete, its place is not free yet: it counts, the segments in its range do not
    .log.deleted     replaced: removed later
A swap renames all `.cleaned` files of the segment to `.swap`, the old segments' files to `.deleted`, then `.swap` to the final names.
Recovery drops a `.swap` when a `.cleaned` file lies at or below its offset (the first step was not complete), else it finishes the swap:
it removes the segments that begin within the swap's offsets and gives it its name. Apache Kafka does the same with the same names.
Source: UnifiedLog.replaceSegments, LogLoader.removeTempFilesAndCollectSwapFiles.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .files import READ, FileHandle, Files
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

if TYPE_CHECKING:
    from .log_segments import LogSegments

logger = logging.getLogger(__name__)

FILE_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class BrokenSwap(Exception):
    """A swap file that should be complete and is not: the segments that it stands for may be gone."""


def begin_swap(files: Files, first: Segment) -> list[str]:
    """Give the cleaned files beside a segment, its first one, the name of what is to be put in place; answers which there are, by their
    suffixes. Raises OSError: then they have the names that they had, unless the disk has failed."""
    path = first.path_of
    made = [suffix for suffix in FILE_SUFFIXES if os.path.exists(path(suffix) + CLEANED_SUFFIX)]
    for number, suffix in enumerate(made):
        try:
            files.rename(path(suffix) + CLEANED_SUFFIX, path(suffix) + SWAP_SUFFIX)
        except OSError:
            for done in reversed(made[:number]):
                files.rename(path(done) + SWAP_SUFFIX, path(done) + CLEANED_SUFFIX)
            raise
    return made


def swap_in(log: LogSegments, old: Sequence[Segment], made: Sequence[str]) -> Segment:
    """Replace consecutive segments by the cleaned one that has the first one's offset, of which `begin_swap` has made these; answers it.
    Raises OSError.

    Names are not synced: until that is done, a loss of power may bring back any step before.
    """
    files, base = log.files, old[0].base_offset
    path = old[0].path_of
    for segment in old:
        # A snapshot is of what lies below its offset, which is right as long as a segment begins there.
        log.remove_files(segment, keep_snapshot=segment.base_offset == base)
    for suffix in made:
        files.rename(path(suffix) + SWAP_SUFFIX, path(suffix))
    cleaned = log.make_segment(base, size=files.size_bytes(path(LOG_SUFFIX)), created_ms=old[0].created_ms)
    cleaned.name_synced = True
    return cleaned


def recover_swaps(files: Files, directory: str, names: set[str]) -> None:
    """Finish or undo the swaps that a crash has cut short, given the names in a log's directory. Raises OSError, BrokenSwap."""
    cleaned = min((_base(name) for name in names if _is(name, CLEANED_SUFFIX)), default=None)
    # The .log first, as in a swap: what is left without it only waits for its name.
    swaps = sorted((name for name in names if _is(name, SWAP_SUFFIX)), key=lambda name: (LOG_SUFFIX not in name, name))
    complete = []
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
    except CorruptSegment as error:
        raise BrokenSwap(
            f"{error}; nothing was changed and the partition is not served: restore the directory, or rename that file to end in "
            f"{CLEANED_SUFFIX} if the segments from offset {base} on are still there"
        ) from error
    return end
