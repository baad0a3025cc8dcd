"""Interrupts wherever they can come: a signal to this process before the n-th bytecode that runs in the package."""

from __future__ import annotations

import dis
import opcode
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any

import fastq

PACKAGE = os.path.join(os.path.dirname(fastq.__file__), "")
"""Not every path with that name in it: a clone of the project may have it too, and what the tests do themselves is not interrupted."""
RETURN_VALUE = opcode.opmap["RETURN_VALUE"]
LOADS = {code for name, code in opcode.opmap.items() if name.startswith(("LOAD_FAST", "LOAD_CONST"))}


@cache
def leaving(code: CodeType) -> frozenset[int]:
    """Where a `with` is left in good order: three times None is loaded, and its exit called with them. There is no look at signals from the
    end of its body to that call, which the trace function would make, and the exit would not be called."""
    found: set[int] = set()
    run: list[int] = []
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_CONST" and each.argval is None:
            run.append(each.offset)
            continue
        if each.opname in ("PRECALL", "CALL") and len(run) >= 3:
            found.update((*run, each.offset))
            if each.opname == "PRECALL":
                continue
        run.clear()
    return frozenset(found)


class Interruptions:
    """While it is entered: `what` (SIGINT) before the bytecodes of these numbers. `ran`: how many there were; `sent`: how many interrupts.
    within: count only those of functions of these names; none: of all."""

    def __init__(self, *numbers: int, within: Collection[str] = (), what: signal.Signals = signal.SIGINT) -> None:
        self.numbers = set(numbers)
        self.within = within
        self.what = what
        self.ran = self.sent = 0

    def __enter__(self) -> Interruptions:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it for what they run in the background
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.settrace(self._call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name == "_on_signal":
            return None
        if self.within and frame.f_code.co_name not in self.within:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.ran += 1
            # The last instructions of a call, `return name`, are not followed by a look at signals, which the trace function
            # would make them be.
            ahead = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 4 : 2]
            returns = RETURN_VALUE in (ahead if ahead[0] in LOADS else ahead[:1])
            if self.ran in self.numbers and not returns and frame.f_lasti not in leaving(frame.f_code):
                self.sent += 1
                signal.raise_signal(self.what)
        return self._opcode


def every_place(
    call: Callable[[], Any],
    then: int = 0,
    step: int = 1,
    within: Collection[str] = (),
    what: signal.Signals = signal.SIGINT,
) -> Iterator[Any]:
    """Call, interrupted at every place in turn, until it was not reached any more; what it answered, or None when interrupted."""
    number = 1
    while True:
        with Interruptions(number, number + then, within=within, what=what) as interruptions:
            answer = None
            try:
                answer = call()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
        yield answer
        if interruptions.ran < number:
            return
        number += step
