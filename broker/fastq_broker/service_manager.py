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
from functools import partial

from .turns import Repeated

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
        self._repeated: dict[str, Repeated] = {}
        if self._address and self._address[0] not in "/@":
            logger.warning("NOTIFY_SOCKET %r is neither a path nor an abstract name: nobody is told", self._address)
            self._address = ""

    def tell(self, *fields: str) -> bool:
        """Send one message. Answers whether it may be taken later, where it is not now."""
        if not self._address:
            return False
        try:
            message = "\n".join(" ".join(field.splitlines()) for field in fields).encode("utf-8", "backslashreplace")
            address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(message, address)
        except (OSError, MemoryError) as error:
            logger.debug("telling the service manager failed: %r", error)
            return isinstance(error, (BlockingIOError, MemoryError))
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
                self._repeat("watchdog", loop, self._watchdog_s / 2, partial(self.tell, "WATCHDOG=1"))

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
        for repeated in self._repeated.values():
            repeated.close()
        self._repeated.clear()

    def _ask(self, loop: asyncio.AbstractEventLoop, progress: Callable[[], str]) -> None:
        """Ask for more time, now and later, in place of who asked before: a stop may come while it starts, and a second one."""
        extended = f"EXTEND_TIMEOUT_USEC={int(EXTEND_S * 1e6)}"
        self._repeat("time", loop, ASK_S, lambda: self.tell(extended, f"STATUS={progress()}"))

    def _say_ready(self, loop: asyncio.AbstractEventLoop, status: str) -> None:
        def say() -> None:
            if not self.tell("READY=1", f"STATUS={status}"):
                self._cancel("ready")

        self._repeat("ready", loop, AGAIN_S, say)

    def _repeat(
        self, name: str, loop: asyncio.AbstractEventLoop, interval_s: float, work: Callable[[], object]
    ) -> None:
        """Do it now, and again at an interval, in place of what has that name. Who could not be told for want of memory is told then."""
        self._cancel(name)
        repeated = self._repeated[name] = Repeated(loop, interval_s, work)
        repeated.start()
        work()

    def _cancel(self, name: str) -> None:
        repeated = self._repeated.pop(name, None)
        if repeated is not None:
            repeated.close()
