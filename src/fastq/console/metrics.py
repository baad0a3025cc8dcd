"""What the nodes of a cluster tell of themselves by their metrics pages, for charts: rates and latencies between two looks.

Rules: the addresses come from the console's file of settings alone, never from a request, and no redirect is followed. A page has
PAGE_BYTES_MAX at most and is there within PAGE_S of its head, and all of it within WAIT_S, or its node is left out, and told: by its host
and port, as viewers see it and the rest of an address may be secret. All who have a chart open share one look, LOOK_S old at most; the
counters of the look before are kept, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import re
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from fastq.console.threads import Threads
from fastq.errors import WaitTimeout
from fastq.schema_registry.client import RedirectsNowhere

PAGE_BYTES_MAX, PAGE_S, LOOK_S = 4 << 20, 5.0, 2.0
WAIT_S, ASKED_AT_ONCE = 8.0, 64
"""How long a page is waited for with its head, whose lines may trickle, in seconds; and how many are asked for at once."""
APIS = ("Produce", "Fetch")
SHARE = 0.99
_LINE = re.compile(
    r"^(fastq_requests_total|fastq_request_seconds_bucket|fastq_request_bytes_total|fastq_response_bytes_total)\{([^}]*)\} ([0-9.e+]+)$",
    re.M,
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Counter = tuple[str, str, float]
"""Name, API and, of a histogram, the upper bound in seconds (0: none)."""
Counters = dict[Counter, float]


class Look(NamedTuple):
    """What was told at a time, in seconds of the clock, by address; `failed` are the addresses that told nothing."""

    at_s: float
    counters: Mapping[str, Counters]
    failed: tuple[str, ...]


def read_counters(text: str) -> Counters:
    """What is charted of a metrics page, of APIS alone."""
    found: Counters = {}
    for name, labels, value in _LINE.findall(text):
        known = dict(_LABEL.findall(labels))
        if known.get("api") in APIS:
            found[name, known["api"], float(known.get("le", 0))] = float(value)
    return found


def host_of(url: str) -> str:
    """What of an address anybody may see: the host, with its port where one is given."""
    return urlsplit(url).netloc.rpartition("@")[2]


def page_of(url: str) -> Counters:
    """Ask a node, with the login of the address if it has one; raises OSError, ValueError, HTTPException."""
    parts = urlsplit(url)
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=host_of(url))))
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    opener = urllib.request.build_opener(RedirectsNowhere())
    until_s = time.monotonic() + PAGE_S
    page = bytearray()
    with opener.open(request, timeout=PAGE_S) as answer:
        while part := answer.read1(PAGE_BYTES_MAX):
            page += part
            if len(page) > PAGE_BYTES_MAX:
                raise ValueError(f"the page has more than {PAGE_BYTES_MAX} bytes")
            if time.monotonic() > until_s:  # the socket's time-out is of each of its reads
                raise WaitTimeout(f"the page took longer than {PAGE_S} s")
    return read_counters(page.decode())


def charted(before: Look, now: Look) -> dict[str, float]:
    """Between two looks: requests and bytes a second, and the time in ms that SHARE of the requests took no longer than. A counter that
    went back is of a node that began anew, and one that is new of a node that answers again: they count from this look on."""
    seconds = max(0.001, now.at_s - before.at_s)
    grown: defaultdict[Counter, float] = defaultdict(float)
    for url, counters in now.counters.items():
        known = before.counters.get(url, {})
        for key, value in counters.items():
            grown[key] += max(0.0, value - known.get(key, value))
    told: dict[str, float] = {}
    for api in APIS:
        name = api.lower()
        told[f"{name}_rate"] = grown.get(("fastq_requests_total", api, 0.0), 0.0) / seconds
        buckets = {bound: n for (kind, of, bound), n in grown.items() if kind.endswith("_bucket") and of == api}
        told[f"{name}_ms"] = quantile(buckets) * 1000
    for kind in ("request", "response"):
        told[f"{kind}_bytes"] = (
            sum(n for (name, _, _), n in grown.items() if name == f"fastq_{kind}_bytes_total") / seconds
        )
    return told


def quantile(buckets: Mapping[float, float], share: float = SHARE) -> float:
    """The least bound of a histogram, in seconds, that `share` of what came lies within; 0 where nothing came, the largest where it is
    beyond."""
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return 0.0
    wanted = share * buckets[bounds[-1]]
    finite = [bound for bound in bounds if bound != float("inf")]
    return next((bound for bound in finite if buckets[bound] >= wanted), finite[-1] if finite else 0.0)


class Metrics:
    """The metrics of a cluster's nodes. One event loop; pages are asked in threads."""

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._urls = tuple(urls)
        self._clock = clock
        self._before: Look | None = None
        self._now: Look | None = None
        self._looking = asyncio.Lock()
        self._threads = Threads("a metrics page", ASKED_AT_ONCE, WAIT_S)

    async def told(self) -> dict[str, Any]:
        """The charted numbers of now, of the nodes that answered both looks; without any where none has, as at the first look. `silent` are
        the hosts of the others."""
        async with self._looking:
            if self._now is None or self._clock() - self._now.at_s >= LOOK_S:
                self._before, self._now = self._now, await self._look()
        before, now = self._before, self._now
        silent = {*now.failed, *(() if before is None else before.failed)}
        numbers = {}
        if before is not None and before.counters.keys() & now.counters.keys():
            numbers = charted(before, now)
        return {**numbers, "silent": sorted({host_of(url) for url in silent})}

    async def _look(self) -> Look:
        pages = await asyncio.gather(*(self._threads.run(page_of, url) for url in self._urls), return_exceptions=True)
        counters: dict[str, Counters] = {}
        failed = []
        for url, page in zip(self._urls, pages, strict=True):
            if isinstance(page, OSError | ValueError | http.client.HTTPException):
                failed.append(url)
            elif isinstance(page, BaseException):
                raise page
            else:
                counters[url] = page
        return Look(self._clock(), counters, tuple(failed))
