"""What lines have in common: their text with everything that varies masked.

Rules: a token that holds a digit, a path, an address and a quoted text become `<*>`, neighbouring ones fall together, and
the time at the beginning goes away. A web server's line becomes its request, the parts of the path that hold a digit
masked, and its status. It is cheap (one pass of a few expressions) and needs no training; two templates of one statement
are possible, two statements in one template only where they differ in what is masked.
"""

from __future__ import annotations

import re

LENGTH_MAX = 160
MASK = b"<*>"

_REQUEST = re.compile(rb'^\S+ \S+ \S+ \[[^\]]+\] "(?P<method>[A-Z]+) (?P<path>[^ "?]*)[^"]*" (?P<status>\d{3}) ')
_PART = re.compile(rb"[^/]*\d[^/]*")
_QUOTED = re.compile(rb"\"[^\"]*\"|'[^']*'")
_TOKEN = re.compile(rb"[^\s,;=()\[\]{}<>|]*[\d/\\@][^\s,;=()\[\]{}<>|]*")
_NEIGHBOURS = re.compile(rb"<\*>(?:[\s,;:|.-]*<\*>)+")
_DATE = re.compile(rb"^\[?(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) ")
_LEADING = re.compile(rb"^(?:[\s\[-]*<\*>(?: UTC\b)?[\s\]:,-]*)+")
_SPACES = re.compile(r"\s+")


def template(text: bytes) -> str:
    """The template of one line, at most LENGTH_MAX characters; `<*>` alone where all of it varies."""
    request = _REQUEST.match(text)
    if request:
        masked = b"%b %b %b" % (request["method"], _PART.sub(MASK, request["path"]), request["status"])
    else:
        masked = _QUOTED.sub(MASK, _DATE.sub(b"", text))
        masked = _LEADING.sub(b"", _NEIGHBOURS.sub(MASK, _TOKEN.sub(MASK, masked)))
    shown = _SPACES.sub(" ", masked.decode(errors="replace")).strip()
    return shown[:LENGTH_MAX] or "<*>"
