"""What a time-out may be.

Rule: whoever takes one from the application looks at it here before anything is done; what is wrong with it is said in its own words, not
by the arithmetic that it would end in.
"""

from __future__ import annotations


def check_timeout(timeout: object) -> None:
    """Raises TypeError for what is not a number of seconds, or None; ValueError for NaN. Zero and less are over at once."""
    if timeout is None:
        return
    if isinstance(timeout, (int, float)):
        if timeout != timeout:
            raise ValueError("a time-out is a number of seconds, or None, got NaN")
        if isinstance(timeout, int) and abs(timeout) >= 1 << 1023:  # no clock can be added to it
            raise ValueError(
                f"a time-out is a number of seconds that a float can hold, got one of {timeout.bit_length()} bits"
            )
        return
    try:
        timeout + 0.0  # type: ignore[operator]  # a number of another library
    except TypeError:
        hint = "; timedelta has total_seconds()" if hasattr(timeout, "total_seconds") else ""
        raise TypeError(f"a time-out is a number of seconds, or None, got {timeout!r}{hint}") from None
