"""The audit log: who did what to what, and how it went; a line of JSON each.

Rules: a line is written before the answer goes out, and flushed. What was refused is noted too. Values of records and passwords are not
in it. Without a file the lines go to the log `fastq.console.audit`.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger("fastq.console.audit")

TEXT_MAX = 2_000


class AuditLog:
    """Appends to a file, which only its owner may read when this makes it."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._file = None
        if path is not None:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._file = os.fdopen(descriptor, "a", encoding="utf-8")

    def write(
        self, *, who: str, address: str, what: str, cluster: str | None, on: Mapping[str, Any], outcome: str
    ) -> None:
        """`outcome` is "done" or why not."""
        seconds = self._clock()
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z",
            "who": who,
            "address": address,
            "what": what,
            "cluster": cluster,
            "on": {name: _cut(value) for name, value in on.items()},
            "outcome": outcome[:TEXT_MAX],
        }
        text = json.dumps(line, ensure_ascii=True, separators=(",", ":"))  # ASCII: no control character, no second line
        if self._file is None:
            logger.info("%s", text)
        else:
            self._file.write(text + "\n")
            self._file.flush()

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _cut(value: Any) -> Any:
    return value[:TEXT_MAX] if isinstance(value, str) else value
