"""The audit log: who did what to what, and how it went; a line of JSON each.

Rules: a line is written before the answer goes out, and flushed. What was refused is noted too. Values of records and passwords are not
in it. Without a file the lines go to the log `fastq.console.audit`. A file that takes no line (a full disk) gets it later, PENDING_MAX
bytes at most, and the log gets it at once; what was done is done then, and is not told as failed, but `check` lets nothing more begin.
A file that was renamed away is no longer written to: what has its path is, made anew where nothing has it. Lines are whole in either.
`recent` reads the file's end, RECENT_BYTES of it, or what is remembered without one, RECENT_LINES; in any thread.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger("fastq.console.audit")

TEXT_MAX = 2_000
PENDING_MAX = 1 << 20
RECENT_BYTES, RECENT_LINES = 1 << 20, 500


class AuditFailed(RuntimeError):
    """The audit log takes no line."""


class AuditLog:
    """Appends to a file, which only its owner may read when this makes it."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._path = path
        self._pending = b""
        self._sent = 0
        """Bytes of the first pending line that the file has already: a full disk tears lines."""
        self._kept: deque[str] = deque(maxlen=RECENT_LINES)
        """Without a file, the newest lines."""
        self._file = None if path is None else _opened(path)

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
            self._kept.append(text)
        else:
            if len(self._pending) < PENDING_MAX:
                self._pending += text.encode() + b"\n"
            error = self._flush()
            if error is not None:
                logger.error("the audit log takes no line (%s), which is: %s", error, text)

    @property
    def has_file(self) -> bool:
        """Whether lines outlive this process."""
        return self._path is not None

    def recent(self, having: str = "") -> list[dict[str, Any]]:
        """The newest lines that have a text in them, in any case, the newest first; raises OSError."""
        lines = list(self._kept) if self._path is None else _end_of(self._path)
        wanted = json.dumps(having, ensure_ascii=True)[1:-1].lower()
        found = [_line(text) for text in reversed(lines) if wanted in text.lower()]
        return [line for line in found if line is not None]

    def check(self) -> None:
        """Raises AuditFailed while the file has not taken all lines: nothing is to be done that it could not tell of."""
        error = self._flush()
        if error is not None:
            raise AuditFailed(f"Nothing was done: the console's audit log takes no line ({error.strerror}).") from error

    def _flush(self) -> OSError | None:
        try:
            self._follow()
            while self._pending and self._file is not None:
                self._sent += os.write(self._file, self._pending[self._sent :])
                whole = self._pending.rfind(b"\n", 0, self._sent) + 1
                self._pending, self._sent = self._pending[whole:], self._sent - whole
        except OSError as error:
            return error
        return None

    def _follow(self) -> None:
        """Open what has the path now, if that is another file: a rotation compresses and deletes the one that it has renamed. Raises
        OSError; the one that is open stays so then, and is not written to."""
        if self._path is None or self._file is None:
            return
        try:
            if os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                return
        except FileNotFoundError:
            pass
        before, self._file = self._file, _opened(self._path)
        self._sent = 0
        os.close(before)

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _end_of(path: Path) -> list[str]:
    """The whole lines of a file's end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - RECENT_BYTES))
        lines = file.read(RECENT_BYTES).decode(errors="replace").splitlines()
    return lines[1:] if size > RECENT_BYTES else lines


def _line(text: str) -> dict[str, Any] | None:
    """What a line says; None for one that is not of a console's, or torn by a full disk."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    known = ("time", "who", "address", "what", "cluster", "outcome")
    if not isinstance(found, dict) or not isinstance(found.get("on"), dict):
        return None
    return {**{name: found.get(name) for name in known}, "on": found["on"]}


def _cut(value: Any) -> Any:
    """A value of TEXT_MAX characters at most: of lists and tables as many items as fit, and how many are left out."""
    if isinstance(value, str):
        return value[:TEXT_MAX]
    if isinstance(value, Mapping):
        kept = dict(_fitting((str(name), item) for name, item in value.items()))
        return {**kept, "…": f"{len(value) - len(kept):,} more"} if len(kept) < len(value) else kept
    if isinstance(value, list | tuple):
        items = [item for _, item in _fitting(("", item) for item in value)]
        return [*items, f"… {len(value) - len(items):,} more"] if len(items) < len(value) else items
    return value


def _fitting(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    left = TEXT_MAX
    for name, item in pairs:
        cut = _cut(item)
        left -= len(name) + len(json.dumps(cut, ensure_ascii=False))
        if left < 0:
            return
        yield name, cut
