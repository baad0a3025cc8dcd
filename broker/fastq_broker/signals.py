"""How a process that has stopped is kept from ending otherwise at its very end."""

from __future__ import annotations

import asyncio
import signal

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def hold_signals(loop: asyncio.AbstractEventLoop) -> None:
    """The stop is through: a signal that comes now must not change how the process ends. Other threads do not block it, so it is ignored,
    and the loop's handlers go first: closing it would have the signal end the process again."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    for number in HELD:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
