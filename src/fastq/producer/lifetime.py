"""Producers that are open when the program ends: their records are delivered before the interpreter goes.

Rules: the hook runs when the main thread has ended, also after sys.exit and an unhandled exception, when the threads that Python waits for
have ended too (they may still send, and what an executor was given is still carried out), and before daemon threads are stopped; it starts
no thread (Python 3.12 forbids it by then). A process of multiprocessing ends without atexit: there it is before those threads are waited
for, and an asyncio producer of one of them is left to it. What they leave open is closed by one thread more, which Python waits for too.
A child of a fork has no producers here.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger("fastq.producer")

START_S = 0.01


class Closing(Protocol):
    """What can be left open."""

    def _close_at_exit(self) -> bool:
        """Deliver or tell what there is; False where that is left to a thread that goes on."""


class Dropped(Closing, Protocol):
    """What can be dropped while it has something to do."""

    _thread: threading.Thread | None

    def _wake_background(self) -> None: ...


_open: dict[int, Callable[[], Closing | None]] = {}
_dropped: dict[int, Callable[[], Dropped]] = {}
_parts: dict[int, object] = {}
_ending = False
_pid_with_hook = -1
# Taken for good: two would wait for each other, and a child has its parent's hook and one of its own.
_closer_place = threading.Lock()


def register(producer: Closing, parts: object = None) -> None:
    """Have the producer closed at exit unless it is unregistered before; does not keep it alive, but `parts`, its connections: a collection
    closes the sockets of what it ends, also of what then lives on."""
    _see_to_dropped()
    _open[id(producer)] = weakref.ref(producer)
    _parts[id(producer)] = parts
    _see_to_the_end()


def _see_to_the_end() -> None:
    """Have the hook run in a process of multiprocessing too, if this is one."""
    global _pid_with_hook
    module = sys.modules.get("multiprocessing.process")
    if module is None or module.parent_process() is None or _pid_with_hook == os.getpid():
        return
    try:
        threading._register_atexit(_close_before_threads)  # type: ignore[attr-defined]
    except AttributeError:
        pass
    except RuntimeError:
        # The main thread has ended: that of this process, or that of the one which a thread forked it from.
        if not _close_behind_threads():
            return  # the next producer tries it again
    _pid_with_hook = os.getpid()


def _close_before_threads() -> None:
    close_all()
    if _awaited_threads():
        _close_behind_threads()


class _Closer(threading.Thread):
    """Closes producers when the others have ended; no daemon, whoever makes it: that may be one, also as the main thread of a process that
    one has made."""

    def __init__(self) -> None:
        super().__init__(name="fastq-at-exit", daemon=False)

    def run(self) -> None:
        threading.main_thread().join()
        while threads := _awaited_threads():
            for thread in threads:
                try:
                    thread.join()
                except RuntimeError:  # it is just being started
                    time.sleep(START_S)
        close_all()

    def join(self, timeout: float | None = None) -> None:
        """At once for those that it waits for, as who joins all threads is: both would wait for ever."""
        current = threading.current_thread()
        if current.daemon and current is not threading.main_thread():
            super().join(timeout)


def _close_behind_threads() -> bool:
    """Whether there is a thread that closes what others leave open."""
    if not _closer_place.acquire(blocking=False):
        return True
    try:
        _Closer().start()
    except (RuntimeError, MemoryError) as error:
        _closer_place.release()
        logger.warning(
            "there is no thread to close producers at exit (%s): what threads that Python waits for leave open is not "
            "sent; close() it there",
            error,
        )
        return False
    return True


def _awaited_threads() -> list[threading.Thread]:
    """Other threads that Python waits for at the end of a process."""
    none = (threading.main_thread(), threading.current_thread())
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in none]


def keep(producer: Dropped) -> None:
    """Nobody has the producer any more: keeps it alive until it is unregistered."""
    _open[id(producer)] = _dropped[id(producer)] = lambda: producer


def _see_to_dropped() -> None:
    """Start the threads that close what was dropped, where none could be: in a collection, or for want of threads."""
    for found in list(_dropped.values()):
        producer = found()
        if producer._thread is None:
            producer._wake_background()


def unregister(producer: Closing) -> None:
    """The producer is closed."""
    _open.pop(id(producer), None)
    _dropped.pop(id(producer), None)
    _parts.pop(id(producer), None)


def is_ending() -> bool:
    """Whether the program ends: who says so once more, as a callback's sys.exit() does, says nothing new."""
    return _ending


def close_all() -> None:
    """Close what is open; an interrupt ends the waiting, not the counting of what is lost."""
    global _ending
    _ending = True
    left = {}
    while _open:
        try:
            key, found = _open.popitem()
        except KeyError:  # another thread has closed the last one just now
            break
        producer = found()
        if producer is None:
            continue
        try:
            if not producer._close_at_exit():
                left[key] = found
        except (KeyboardInterrupt, SystemExit):
            continue
        except Exception:
            logger.exception("closing %r at exit failed", producer)
    _open.update(left)


def _forget() -> None:
    global _closer_place, _ending
    _closer_place, _ending = threading.Lock(), False
    _open.clear()
    _dropped.clear()
    _parts.clear()


atexit.register(close_all)  # now, as one made by another hook at exit is too late for it
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
