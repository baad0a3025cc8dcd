"""A request as the pages see it: who asks, of which cluster, with which values; and what they may.

Rules: each value of a request is read by a method that says what it may be, and raises BadValue with that. Topics are checked against the
user's patterns here, and what is not theirs is not there. No method gives a URL, a host, a path or a class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from fastq.console.clusters import Cluster
from fastq.console.users import Role, User
from fastq.errors import FastqError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from fastq.console.app import Console

TEXT_MAX = 1_000


class BadValue(ValueError):
    """A value of a form or a link that is none; the page says what it may be."""


class Refused(Exception):
    """Something that this user may not."""


class SessionOver(Refused):
    """Who asked may ask no more."""


class Visit:
    """One request. `form` is empty but for a POST whose token was right."""

    def __init__(
        self, console: Console, request: Request, user: User, cookie: str, form: Mapping[str, Sequence[str]]
    ) -> None:
        self.console = console
        self.request = request
        self.user = user
        self.cookie = cookie
        self.form = form
        self.audited = False

    # -- where

    @property
    def cluster(self) -> Cluster:
        """The cluster of the address."""
        return self.console.clusters[self.request.path_params["cluster"]]

    def url(self, *parts: str | int) -> str:
        """A path below the cluster."""
        return "/".join([f"/c/{quote(self.cluster.name)}", *(quote(str(part), safe="") for part in parts)])

    @property
    def topic(self) -> str:
        """The topic of the address."""
        return self.seen(self.request.path_params["topic"])

    def group_url(self, group_id: str) -> str:
        """A group's page; an id may be any text, so it is a value and no part of the path."""
        return f"{self.url('group')}?id={quote(group_id, safe='')}"

    @property
    def who(self) -> str:
        """Whose readers these are; empty where nobody logs in, and all are one."""
        return self.user.identity if self.console.config.has_login else ""

    def check_session(self) -> None:
        """Raises SessionOver: what goes on for long ends with the session that it is of, and when the user's role or topics change."""
        if self.console.user_of(self.cookie) != self.user:
            raise SessionOver("The session is over: log in again.")

    # -- what may be done

    def sees(self, role: Role) -> bool:
        """Whether the user is shown what a role is shown."""
        return self.user.role >= role

    def may(self, role: Role) -> bool:
        """Whether the user changes what a role may change, in a console that does not only show."""
        return self.sees(role) and not self.console.config.read_only

    def check_role(self, role: Role) -> None:
        """Raises Refused for who has not the role, and for a POST where the console only shows."""
        if not self.sees(role):
            raise Refused(
                f"This needs the role {role.name.lower()}; {self.user.name} is {self.user.role.name.lower()}."
            )
        if self.request.method == "POST":
            self.check_writable()

    def check_writable(self) -> None:
        """Refuses what changes something, and the pages that are forms of that, where the console only shows."""
        if self.console.config.read_only:
            raise Refused("This console only shows: it was started with --read-only.")

    def seen(self, topic: str) -> str:
        """A topic's name, if it is one of the user's; else it is not there."""
        if not self.user.may_see(topic):
            raise UnknownTopicOrPartition(topic=topic)
        return topic

    def check_everywhere(self, what: str) -> None:
        """Refuses users of some topics what is about all of them."""
        if self.user.topics:
            raise Refused(f"{what} is about all topics, and {self.user.name} has {', '.join(self.user.topics)} only")

    # -- values

    def _value(self, name: str) -> str:
        if self.request.method == "POST":
            found = self.form.get(name)
            return found[-1] if found else ""
        return self.request.query_params.get(name, "")

    def text(self, name: str, length_max: int = TEXT_MAX) -> str:
        """A text, empty when it is not there."""
        text = self._value(name)
        if len(text) > length_max:
            raise BadValue(f"{name} has {len(text):,} characters, the most is {length_max:,}")
        return text

    def check_edges(self, name: str) -> None:
        """Raises BadValue for a text that begins or ends with a blank, which no page shows: a slip, where something is to be made."""
        text = self._value(name)
        if text != text.strip():
            raise BadValue(f"{name} begins or ends with a blank: {text[:80]!r}")

    def texts(self, name: str, count_max: int = 1_000) -> list[str]:
        """All values of a name."""
        found = (
            list(self.form.get(name, ())) if self.request.method == "POST" else self.request.query_params.getlist(name)
        )
        if len(found) > count_max:
            raise BadValue(f"{name} is there {len(found):,} times, the most is {count_max:,}")
        return found

    def number(self, name: str, default: int | None = None, *, low: int = 0, high: int = 2**63 - 1) -> int:
        """A whole number within bounds."""
        text = self._value(name).strip()
        if not text and default is not None:
            return default
        digits = text.removeprefix("-")  # what Python takes besides, 1_000 or other scripts' digits, is somebody's slip
        found = int(text) if digits.isascii() and digits.isdigit() and len(text) <= 20 else None
        if found is None or not low <= found <= high:
            raise BadValue(f"{name} is a whole number from {low:,} to {high:,}, not {text[:40]!r}")
        return found

    def choice(self, name: str, choices: Iterable[str], default: str = "") -> str:
        """One of some words."""
        text = self._value(name) or default
        known = list(choices)
        if text not in known:
            raise BadValue(f"{name} is one of {', '.join(known)}, not {text[:40]!r}")
        return text

    def flag(self, name: str) -> bool:
        """A box that is checked."""
        return self._value(name) == "1"

    # -- answers

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """A page of the console."""
        text = self.console.render(template, visit=self, Role=Role, **values)
        return HTMLResponse(text, status)

    def redirect(self, url: str) -> Response:
        """To another page of the console."""
        return RedirectResponse(url, 303)

    def audit(self, what: str, outcome: str | FastqError | None = None, **on: Any) -> None:
        """Note what was done, or why not."""
        self.audited = True
        client = self.request.client
        self.console.audit.write(
            who=self.user.identity,
            address=client.host if client else "",
            what=what,
            cluster=self.request.path_params.get("cluster"),
            on=on,
            outcome="done" if outcome is None else str(outcome),
        )

    def result(self, what: str, outcomes: Iterable[tuple[str, object]], back: str) -> Response:
        """The page after something was done: each item, with "done", another word, or its error."""
        rows = [
            (item, str(outcome) if outcome is not None else "done", isinstance(outcome, Exception))
            for item, outcome in outcomes
        ]
        return self.page("result.html", what=what, rows=rows, back=back)


PAGE_SIZE, PARTITIONS_PAGE = 50, 200


class Pager:
    """A page of a list: `shown` are its items."""

    def __init__(self, visit: Visit, items: Sequence[Any], size: int = PAGE_SIZE) -> None:
        self.total = len(items)
        self.pages = max(1, math.ceil(self.total / size))
        self.page = min(visit.number("page", 1, low=1, high=1_000_000), self.pages)
        self.shown = items[(self.page - 1) * size : self.page * size]
        self._query = visit.request.query_params

    def link(self, **changed: object) -> str:
        """The query of this list with some values changed."""
        return "?" + str(self._query_with(changed))

    def _query_with(self, changed: Mapping[str, object]) -> str:
        from urllib.parse import urlencode

        values = {**dict(self._query), **{name: str(value) for name, value in changed.items()}}
        return urlencode(values)
