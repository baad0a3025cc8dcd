"""The exit codes of `fastq-broker`, whichever command it is: what they mean to who starts it again, or asks.

Those that `fastq` has too are the same (`fastq/cli/codes.py`).
"""

from __future__ import annotations

from typing import Final

OK: Final = 0
"""Done; a broker: it has stopped cleanly."""
FAILED: Final = 1
"""It could not start, or has not ended cleanly, or what was asked for is not so (`status`, `info`, `repair`): another start may go well."""
WRONG_USAGE: Final = 2
"""Arguments or configuration are wrong, or name what cannot be looked at (`repair`): no other start mends that, so none is tried."""
INTERRUPTED: Final = 130
"""Ctrl-C before a broker takes signals, as shells have it: 128 and the signal's number."""
READER_GONE: Final = 141
"""The reader of a command's output went away, as `head` does: 128 and SIGPIPE's number."""
