"""Tells systemd, or whoever speaks its protocol (sd_notify), how the broker is: that it is ready, that it stops, and that its loop turns.

Rules
- Without NOTIFY_SOCKET in the environment nothing is done. What is read of the environment is taken out of it: processes that the broker
  starts are not who is watched.
- While it starts and while it stops it asks for more time every few seconds, as long as its loop turns: a recovery of many logs is no
  fault. Its progress is the unit's status.
- The watchdog (WATCHDOG_USEC) is fed by the loop twice in its time: a loop that is held up starves it, and the manager starts the
  broker anew.
- A message that cannot be sent is not sent: the broker serves all the same. That it is ready alone is said again, after a start and after
  each reload, for somebody waits for it: a manager that has its hands full takes no more for a while.
Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, MutableMapping

logger = logging.getLogger(__name__)

NOT_TAKEN = "; the file of settings has a mistake, and was not taken"

ASK_S = 5.0
"""How often it asks for more time."""
AGAIN_S = 0.2
"""When it says again that it is ready, to a manager that took nothing."""
EXTEND_S = 30.0
"""How much it asks for."""


class ServiceManager:
    """Who has started this process, if it wants to hear of it. Loop thread only."""

    def __init__(self, environment: MutableMapping[str, str], pid: int) -> None:
        self._ready_as = ""
        self._address = environment.pop("NOTIFY_SOCKET", "")
        watched = environment.pop("WATCHDOG_USEC", "")
        watched_pid = environment.pop("WATCHDOG_PID", "")
        self._watchdog_s = 0.0
        if watched.isdecimal() and watched_pid in ("", str(pid)):
            self._watchdog_s = int(watched) / 1e6
        self._timers: dict[str, asyncio.TimerHandle] = {}
        if self._address and self._address[0] not in "/@":
            logger.warning("NOTIFY_SOCKET %r is neither a path nor an abstract name: nobody is told", self._address)
            self._address = ""

    def tell(self, *fields: str) -> bool:
        """Send one message. Answers whether it may be taken later, where it is not now."""
        if not self._address:
            return False
        message = "\n".join(" ".join(field.splitlines()) for field in fields).encode("utf-8", "backslashreplace")
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(message, address)
        except OSError as error:
            logger.debug("telling the service manager failed: %s", error)
            return isinstance(error, BlockingIOError)
        return False

    def starting(self, loop: asyncio.AbstractEventLoop, progress: Callable[[], str]) -> None:
        """The start begins; `progress` is how far it is, in words."""
        if self._address:
            self._ask(loop, progress)

    def ready(self, loop: asyncio.AbstractEventLoop, status: str) -> None:
        """Clients are served."""
        self._ready_as = status
        if self._address:
            self.close()
            self._say_ready(loop, status)
            if self._watchdog_s > 0:
                self._feed(loop)

    def reloading(self, loop: asyncio.AbstractEventLoop, reload: Callable[[], bool]) -> None:
        """Settings are read again: said before and after, as `systemctl reload` waits for it."""
        self._cancel("ready")
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        good = False
        try:
            good = reload()
        finally:  # who waits is told, whatever went wrong
            self._say_ready(loop, self._ready_as + ("" if good else NOT_TAKEN))

    def stopping(self, loop: asyncio.AbstractEventLoop) -> None:
        """The stop begins; the watchdog is fed on."""
        if self._address:
            self._cancel("ready")
            self.tell("STOPPING=1")
            self._ask(loop, lambda: "stopping")

    def close(self) -> None:
        """Nothing more is told of its own accord."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _ask(self, loop: asyncio.AbstractEventLoop, progress: Callable[[], str]) -> None:
        """Ask for more time, now and later, in place of who asked before: a stop may come while it starts, and a second one."""
        self._cancel("time")
        self.tell(f"EXTEND_TIMEOUT_USEC={int(EXTEND_S * 1e6)}", f"STATUS={progress()}")
        self._timers["time"] = loop.call_later(ASK_S, self._ask, loop, progress)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _say_ready(self, loop: asyncio.AbstractEventLoop, status: str) -> None:
        if self.tell("READY=1", f"STATUS={status}"):
            self._timers["ready"] = loop.call_later(AGAIN_S, self._say_ready, loop, status)

    def _feed(self, loop: asyncio.AbstractEventLoop) -> None:
        self.tell("WATCHDOG=1")
        self._timers["watchdog"] = loop.call_later(self._watchdog_s / 2, self._feed, loop)
