"""Producers that are open when the program ends: their records are delivered before the interpreter goes.

Rules: the hook runs when the main thread has ended, also after sys.exit and an unhandled exception, and before daemon
threads are stopped; it starts no thread (Python 3.12 forbids it by then). A child of a fork has no producers here.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import Protocol

logger = logging.getLogger("fastq.producer")


class Closing(Protocol):
    """What can be left open."""

    def _close_at_exit(self) -> None: ...


_open: dict[int, Closing] = {}
_installed = False


def register(producer: Closing) -> None:
    """Have the producer closed at exit unless it is unregistered before; keeps it alive until then."""
    global _installed
    _open[id(producer)] = producer
    if not _installed:
        _installed = True
        try:
            # Before the executor threads of concurrent.futures are joined and after the main thread has ended.
            threading._register_atexit(close_all)  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError):
            pass
        atexit.register(close_all)


def unregister(producer: Closing) -> None:
    """The producer is closed."""
    _open.pop(id(producer), None)


def close_all() -> None:
    """Close what is open; an interrupt ends the waiting, not the counting of what is lost."""
    while _open:
        _, producer = _open.popitem()
        try:
            producer._close_at_exit()
        except KeyboardInterrupt:
            continue
        except Exception:
            logger.exception("closing %r at exit failed", producer)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open.clear)
