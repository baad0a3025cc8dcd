"""What the command `fastq-broker` complains of: one line on standard error, whatever it quotes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from .exit_codes import WRONG_USAGE

LINE_CHARACTERS_MAX = 2000

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def escaped(text: str) -> str:
    """Control characters and separators of lines as `\\x1b`: nobody writes lines of his own into ours, or moves the terminal's cursor."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def one_line(text: str) -> str:
    """`escaped`, and the middle of what is longer than LINE_CHARACTERS_MAX left out: both ends say what is wrong."""
    if len(text) > LINE_CHARACTERS_MAX:
        half = LINE_CHARACTERS_MAX // 2
        text = f"{text[:half]}...({len(text) - 2 * half:,} characters left out)...{text[-half:]}"
    return escaped(text)


def complain(text: object, command: str = "") -> None:
    """A line in the name of `fastq-broker`, or of one of its commands."""
    print(f"fastq-broker{' ' if command else ''}{command}: {one_line(str(text))}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """argparse's, whose errors are one line, and say what an option that is none may have meant."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        options, left = self.parse_known_args(args, namespace)
        if left:
            import difflib

            near = difflib.get_close_matches(left[0].partition("=")[0], self._option_string_actions, n=1)
            self.error(f"unrecognized arguments: {' '.join(left)}{f', did you mean {near[0]}?' if near else ''}")
        return options

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"{self.prog}: {one_line(message)}; see {self.prog} --help\n")


def whole_number(text: str) -> int:
    """The type of options that take a node's id: which ids there are is said where they are looked at."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 30):
        raise argparse.ArgumentTypeError(f"a whole number is expected, not {text!r}")
    return int(text)
