"""The states of a connection: five small machines, each a number, because they are looked at with each request.

| machine | states | what changes it |
|---|---|---|
| life | OPEN -> HALF_CLOSED -> CLOSED, OPEN -> CLOSED | the client's last byte; a close, an abort, the loss |
| waits | a set: nothing, {ANSWER}, {OUTPUT}, {ANSWER, OUTPUT}, {MEMORY} | what has to come before the next request is served |
| input | READING <-> PAUSED | PAUSED while bytes wait in the backlog, and from the begin of a stop |
| expects | SMALL <-> LARGE | whether the last frame was a large one, so that room for the next is made before it comes |
| window | NARROW -> WIDE | the first very large frame |

Rules
- SMALL, NARROW, READING, OPEN and no waits are 0, and so false: that is how a connection begins.
- ANSWER is in `waits` exactly while `pending` is set; MEMORY is alone, because who waits for memory serves nothing.
- A CLOSED connection serves, sends and reads nothing more; what waits then is of no interest.
- A HALF_CLOSED one never pauses or resumes reading: there is nothing to read; it closes when nothing waits.
"""

from __future__ import annotations

from typing import Final

OPEN: Final = 0
HALF_CLOSED: Final = 1
CLOSED: Final = 2

ANSWER: Final = 1
"""The request in progress answers later."""
OUTPUT: Final = 2
"""Responses are unsent, or a turn's worth has been sent and the rest comes in the next one."""
MEMORY: Final = 4
"""A large frame waits for request memory."""
WAITS: Final = frozenset({0, ANSWER, OUTPUT, ANSWER | OUTPUT, MEMORY})

READING: Final = 0
PAUSED: Final = 1

SMALL: Final = 0
LARGE: Final = 1

NARROW: Final = 0
WIDE: Final = 1
