"""Who is logged in, what token their forms carry, and how often somebody may try a password.

Rules: a session is a random cookie, of which the console keeps a hash; a form's token is a MAC of the cookie, so a page of elsewhere has
none. Tables are bounded, the oldest goes. Everything is in memory: a restart logs everybody out. One event loop.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from fastq.console.users import User

SESSIONS_MAX = 1_000
SESSION_S = 12 * 3600.0
TRIES_MAX = 10_000
FREE_TRIES = 5
DELAY_MAX_S = 300.0


class Sessions:
    """Cookies and their users."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._users: OrderedDict[bytes, tuple[User, float]] = OrderedDict()

    @staticmethod
    def new_cookie() -> str:
        """256 random bits."""
        return secrets.token_urlsafe(32)

    def token(self, cookie: str) -> str:
        """What the forms of a session carry."""
        return hmac.new(self._secret, cookie.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def is_token(self, cookie: str, token: str) -> bool:
        """Whether a form is of this session."""
        return hmac.compare_digest(self.token(cookie).encode(), token.encode("utf-8", "replace"))

    def log_in(self, user: User, lasts_s: float = SESSION_S) -> str:
        """The cookie of a new session: never the one from before the login."""
        cookie = self.new_cookie()
        self._users[_hashed(cookie)] = user, self._clock() + lasts_s
        while len(self._users) > SESSIONS_MAX:
            self._users.popitem(last=False)
        return cookie

    def log_out(self, cookie: str) -> None:
        """End a session; nothing for one that is not there."""
        self._users.pop(_hashed(cookie), None)

    def revise(self, now: Callable[[User], User | None]) -> int:
        """Make users who they are now, and end the sessions of those that `now` has nobody for; how many ended."""
        before = len(self._users)
        for key, (user, ends) in list(self._users.items()):
            found = now(user)
            if found is None:
                del self._users[key]
            else:
                self._users[key] = found, ends
        return before - len(self._users)

    def user(self, cookie: str) -> User | None:
        """Whose session it is."""
        found = self._users.get(_hashed(cookie))
        if found is None:
            return None
        if found[1] <= self._clock():
            self.log_out(cookie)
            return None
        return found[0]


def _hashed(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).digest()


class Throttle:
    """Failed tries by name and by address: after FREE_TRIES each one doubles the wait, up to DELAY_MAX_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait_s(self, *keys: str) -> float:
        """Seconds until one may try again; 0: now."""
        now = self._clock()
        return max([0.0, *(self._failed[key][1] - now for key in keys if key in self._failed)])

    def failed(self, *keys: str) -> None:
        """Note a wrong password."""
        now = self._clock()
        for key in keys:
            tries = self._failed.pop(key, (0, 0.0))[0] + 1
            delay = 0.0 if tries < FREE_TRIES else min(2.0 ** (tries - FREE_TRIES), DELAY_MAX_S)
            self._failed[key] = tries, now + delay
        while len(self._failed) > TRIES_MAX:
            self._failed.popitem(last=False)

    def succeeded(self, *keys: str) -> None:
        """Forget the failures."""
        for key in keys:
            self._failed.pop(key, None)
