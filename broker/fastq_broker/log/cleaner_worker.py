"""The cleaner's process: `main` does one round of compaction, then the process ends.

Rules
- The job is one JSON document on standard input, the answer one on standard output: {"result": ...}, or {"error": text,
  "uncleanable": whether another attempt would end in the same way, "aborts": the segment whose transaction index is to be made again}.
- It yields to the broker, which starts it with a low priority, and is the first that the kernel ends when memory is short.
- It ends when the broker that started it has gone, between two reads: nobody would put its files in place.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

from .cleaner_job import CleaningJob, DamagedAborts, UncleanableLog, clean
from .files import Files

_OOM_SCORE = "700"


class Orphaned(Exception):
    """The broker that wanted the round has ended."""


def _step_back() -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)


def answer(text: str, parent: int, files: Files | None = None) -> str:
    """Do the round that `text` asks for, as long as `parent` is this process's parent."""

    def check() -> None:
        if os.getppid() != parent:
            raise Orphaned

    try:
        return json.dumps({"result": clean(CleaningJob.decode(text), files, check).encode()})
    except UncleanableLog as error:
        return json.dumps({"error": str(error), "uncleanable": True})
    except DamagedAborts as error:
        return json.dumps({"error": str(error), "uncleanable": False, "aborts": error.base_offset})
    except Orphaned:
        return json.dumps({"error": "the broker has ended", "uncleanable": False})
    except (OSError, MemoryError) as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}", "uncleanable": False})


def main() -> None:
    """The process; its argument is the broker's process id."""
    parent = int(sys.argv[1])
    _step_back()
    print(answer(sys.stdin.read(), parent), flush=True)
