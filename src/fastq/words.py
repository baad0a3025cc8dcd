"""What people write and read: a time in, a number of things out.

Rule: whoever takes a time from a person takes it here, so that each place takes the same; what it says where there is none is its own.
"""

from __future__ import annotations

from datetime import datetime, tzinfo

INT64_MAX = 2**63 - 1


def read_time_ms(text: str, zone: tzinfo | None = None) -> int:
    """Milliseconds since 1970, of a number of them or of an ISO date and time, which is in `zone` (None: local time) unless it says. Raises
    ValueError for what is neither, and for a time before 1970, which would mean a special place in the protocol."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= INT64_MAX:
        return int(text)
    if text[-1:] in ("Z", "z"):  # which datetime takes from Python 3.11 on
        text = f"{text[:-1]}+00:00"
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=zone)
    try:
        milliseconds = int(found.timestamp() * 1000)
    except (OverflowError, OSError) as error:  # of years at the ends of the calendar
        raise ValueError(str(error)) from None
    if milliseconds < 0:
        raise ValueError("it is before 1970")
    return milliseconds


def counted(number: int, thing: str) -> str:
    """A number of things in words: `1 record`, `2,000 records`."""
    things = thing if number == 1 else f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{number:,} {things}"
