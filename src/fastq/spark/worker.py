"""A worker process of Spark, which serves one task after the other: what it has loaded is taken out of the garbage collector's sight.

Rules
- Spark's daemon has a worker collect garbage in full after each task. With pyarrow, pandas and pyspark loaded that is 60 ms of a
  core, as long as a small task takes; the next task waits for it.
- Once a process, when a task or a plan has gone through and all is loaded. In a worker only: another process's heap is its owner's.
- What is taken out still goes when nobody refers to it; only rings of objects that are garbage already stay, to the process's end.
Source: pyspark/daemon.py; the CPython manual on gc.freeze.
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"

_settled = False


def settle() -> None:
    """What is loaded now stays: collect no garbage there. Nothing the second time, and outside of Spark's workers."""
    global _settled
    if _settled or not _in_worker():
        return
    _settled = True
    gc.freeze()


def _in_worker() -> bool:
    """Whether this process is a child of Spark's daemon; it runs as that module."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == DAEMON
