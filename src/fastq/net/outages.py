"""What the log says of brokers that cannot be reached: at once, when the cause changes, now and then, and when they are back.

Rules of this file:
- An address has one outage, whichever of its connections notices it (bootstrap, node, the one apart). While a process `says_once`, as a
  mirror does that has a dozen clients, all of its clients have one.
- How often a cause is said is decided as for any other trouble (`troubles.py`), but at once.
- An attempt that has neither come through nor failed after SLOW_S is said too: a time-out takes ten seconds, and nobody waits for so long
  without a word.
- That a broker closes a connection that was in use is ordinary (it restarts, it is idle): what is said is that no new one can be made, or
  that new ones are closed again and again.
- Nodes of a cluster start one after the other and are restarted: among themselves they say nothing of what passes within `grace_s`.
- What was said is taken back, with how long it took: when a connection is ready, or, where the last ones broke in use, when it lasts.
No clock and no I/O but the log: `now` comes in.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from fastq.errors import ConnectionTimeout, FastqError
from fastq.net.addresses import Address
from fastq.net.troubles import Told

logger = logging.getLogger("fastq.net")

SLOW_S = 0.8
SHORT_LIFE_S = 5.0
SHORT_LIVES = 3
"""So many connections in a row, each closed by the broker within SHORT_LIFE_S, are an outage. In a row is one behind the other: those that
lived at a time count as one."""
UNTRIED_S = 60.0
"""An address that nobody has tried for so long was not needed meanwhile, and may have been back: what fails then is another outage."""


class _Outage(Told):
    """Of one address. `short_lives`: connections in a row that were closed soon after they were ready, the last of them at `closed_at`;
    `tried_at`: the last of what was noticed of it."""

    __slots__ = ("closed_at", "short_lives", "tried_at")

    def __init__(self, since: float) -> None:
        super().__init__(since)
        self.short_lives = 0
        self.closed_at = -inf
        self.tried_at = since


class Outages:
    """Those of one client; its thread rule is the core's."""

    def __init__(self, grace_s: float = 0.0) -> None:
        """`grace_s`: nothing is said of an outage that is younger."""
        self._grace_s = grace_s
        self._by_address: dict[Address, _Outage] = {}

    def failed(
        self,
        address: Address,
        error: FastqError,
        now: float,
        *,
        note: str = "",
        final: bool = False,
        was_ready: bool = False,
    ) -> None:
        """An attempt to connect failed, or a connection broke in a way that is not ordinary. `note` goes with what is said of it;
        `final`: waiting does not mend it, so who waits is told by an error too. `was_ready`: it broke in use, so that the next one's
        being ready says nothing yet."""
        outage = self._noticed(address, now)
        outage.attempts += 1
        if was_ready:
            outage.short_lives = SHORT_LIVES
        self._tell(address, outage, error, now, note if final else f"{note}; trying on")

    def slow(self, address: Address, error: FastqError, now: float, *, note: str = "") -> None:
        """An attempt has been under way for SLOW_S; `error` says which phase waits for an answer."""
        self._tell(address, self._noticed(address, now, now - SLOW_S), error, now, f"{note}; trying on")

    def closed(self, address: Address, error: FastqError, lived_s: float, now: float) -> None:
        """The broker closed a connection that had been ready for so long."""
        if lived_s > SHORT_LIFE_S:
            self._by_address.pop(address, None)
            return
        outage = self._noticed(address, now)
        if now - lived_s < outage.closed_at:
            return  # it lived beside the last one: they died together with their broker
        outage.closed_at = now
        outage.short_lives += 1
        outage.attempts += 1
        if outage.short_lives >= SHORT_LIVES:
            self._tell(
                address,
                outage,
                error,
                now,
                f"; {outage.short_lives} times in a row, soon after it was ready; trying on",
            )

    def ready(self, address: Address, broker: str, now: float) -> None:
        """A connection has all its phases behind it."""
        outage = self._by_address.get(address)
        if outage is None or outage.short_lives >= SHORT_LIVES:
            return  # whether it lasts is seen in SHORT_LIFE_S; see `lasting`
        self._take_back(address, outage, broker, now)
        if not outage.short_lives:
            del self._by_address[address]
        elif outage.told:
            fresh = self._by_address[address] = _Outage(now)
            fresh.short_lives, fresh.closed_at = outage.short_lives, outage.closed_at

    def lasting(self, address: Address, broker: str, now: float) -> None:
        """A connection has been ready for SHORT_LIFE_S: what clients that are no more have said of it is taken back, too."""
        outage = self._by_address.pop(address, None)
        self._take_back(address, outage if outage is not None and outage.told else None, broker, now)

    def knows(self, address: Address) -> bool:
        """Whether something is remembered of an address, so that a connection is to be looked at when it may be `lasting`."""
        of_all = _all  # once: another thread may end it
        return address in self._by_address or (of_all is not None and address in of_all._by_address)

    def _noticed(self, address: Address, now: float, since: float | None = None) -> _Outage:
        """The outage of an address; one that begins now, or at `since`, if there is none."""
        outage = self._by_address.get(address)
        if outage is None or now - outage.tried_at > UNTRIED_S:
            outage = self._by_address[address] = _Outage(now if since is None else since)
        outage.tried_at = now
        return outage

    def _tell(self, address: Address, outage: _Outage, error: FastqError, now: float, note: str) -> None:
        cause = "" if isinstance(error, ConnectionTimeout) else str(getattr(error, "cause", "") or "")
        what = (type(error), getattr(error, "phase", None), cause)
        if outage.due(what, now, self._grace_s):
            again: str | None = outage.say(what, now)
            with _lock:
                if _all is not None:
                    of_all = _all._noticed(address, now, outage.since)
                    of_all.attempts += 1
                    again = of_all.say(what, now) if of_all.due(what, now, 0.0) else None
            if again is not None:
                logger.warning("%s%s%s", str(error), note, again)

    def _take_back(self, address: Address, outage: _Outage | None, broker: str, now: float) -> None:
        if outage is not None and not outage.told:
            return
        with _lock:
            of_all = outage if _all is None else _all._by_address.pop(address, None)
        if of_all is not None:
            logger.warning("connected to %s, after %.1f s", broker, now - of_all.since)


_lock = threading.RLock()  # a handler of a signal may close a client amid a line of another one
_all: Outages | None = None
"""What all clients have said, while somebody `says_once`; `_lock` guards it."""
_asking = 0


@contextmanager
def says_once() -> Iterator[None]:
    """Meanwhile, clients of this process that meet the same outage say it once, all together."""
    global _all, _asking
    with _lock:
        _all, _asking = _all or Outages(), _asking + 1
    try:
        yield
    finally:
        with _lock:
            _asking -= 1
            _all = _all if _asking else None


def _forked() -> None:
    global _lock
    _lock = threading.RLock()  # who holds it is in the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
