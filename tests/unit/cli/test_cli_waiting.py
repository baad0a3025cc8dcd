"""What is told of what takes longer than a second: a line on a terminal, written over and gone at the end, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fastq.admin.transactions import HangingShown
from fastq.cli import each_broker, main, mirror, output, transactions
from fastq.cli.consume import _last_of_each_key
from fastq.mirror.comparison import Far

WAIT_S = 30.0


class Terminal(io.StringIO):
    """Says when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        self.told.set()
        return written

    def until(self, text: str) -> None:
        """Wait until a text has been told."""
        while text not in self.getvalue():
            self.told.clear()
            assert self.told.wait(WAIT_S), self.getvalue()


def at_terminal(monkeypatch: pytest.MonkeyPatch, waiting_s: float = 0.001) -> Terminal:
    """Called in a test: between its fixtures and itself the standard streams are taken anew."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(output, "WAITING_S", waiting_s)
    return terminal


def test_a_line_with_what_is_done_and_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    done = [""]
    with output.Waiting("compared", lambda: done[0]):
        assert terminal.told.wait(WAIT_S)
        done[0] = " 7,000"
        terminal.told.clear()
        assert terminal.told.wait(WAIT_S)
        terminal.told.clear()
        assert terminal.told.wait(WAIT_S)
    text = terminal.getvalue()
    assert text.startswith("\rcompared  0 s\x1b[K") and "\rcompared 7,000  0 s\x1b[K" in text
    assert text.endswith("\r\x1b[K") and "\n" not in text


def test_what_is_over_soon_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch, 3600.0)
    with output.Waiting("compared"):
        pass
    assert terminal.getvalue() == ""


def test_where_nobody_looks_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        before = threading.active_count()
        with output.Waiting("compared"):
            assert threading.active_count() == before


def test_brokers_that_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)

    def answer(node: int) -> int:
        assert terminal.told.wait(WAIT_S)
        return node

    nodes: Any = {1: SimpleNamespace(node_id=1), 2: SimpleNamespace(node_id=2)}
    assert each_broker.answers_of(nodes, answer) == {1: 1, 2: 2}
    assert "\rasking each broker  " in terminal.getvalue()


def test_a_search_for_hanging_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)

    def search(_: object) -> HangingShown:
        assert terminal.told.wait(WAIT_S)
        return HangingShown([], {})

    monkeypatch.setattr(
        transactions,
        "opened_admin",
        lambda _: contextlib.nullcontext(SimpleNamespace(_client=SimpleNamespace(run=search))),
    )
    assert main(["transactions", "find-hanging"]) == 0
    assert "\rasking all leaders about open transactions  " in terminal.getvalue()


def a_mirror_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command looks at beside the comparison: a file, and whether the source is there, and all of it has been begun."""
    monkeypatch.setattr(mirror, "_config", lambda _: SimpleNamespace(source=None, target=None))
    monkeypatch.setattr(mirror, "_patient", lambda config: config)
    monkeypatch.setattr(mirror, "_reach", lambda *_: None)
    monkeypatch.setattr(mirror, "_not_begun", lambda *_: [])


def test_a_check_of_a_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)

    def compared(_config: object, _topics: object, far: Far) -> Iterator[object]:
        place = SimpleNamespace(topic="t", partition=0)
        assert terminal.told.wait(WAIT_S)
        far.begin([(10, 5_010), (0, 7)])
        far.enter(10, 5_010)
        far.at(1_010)
        terminal.until("\rcompared 0 of 2 partitions, 1,000 of 5,007 offsets  ")
        far.leave()
        yield SimpleNamespace(partition=place, target="t", start=0, end=1, compared=1, result="same", detail="")
        far.enter(0, 7)
        far.at(9)  # behind what there was when it began
        terminal.until("\rcompared 1 of 2 partitions, 5,007 of 5,007 offsets  ")

    a_mirror_that_answers(monkeypatch)
    monkeypatch.setattr("fastq.mirror.comparison.compare_all", compared)
    assert main(["mirror", "check"]) == 0
    assert terminal.getvalue().startswith("\rcompared  ") and terminal.getvalue().endswith("\r\x1b[K")


def test_a_check_of_nothing_proves_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    a_mirror_that_answers(monkeypatch)
    monkeypatch.setattr("fastq.mirror.comparison.compare_all", lambda *_: iter(()))
    assert main(["mirror", "check"]) == 1
    told = capsys.readouterr()
    assert "nothing was compared" in told.err and "the same" not in told.out


def test_the_last_of_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    clock = iter(range(1000))
    monkeypatch.setattr(output.time, "monotonic", lambda: float(next(clock)))
    records: Any = [SimpleNamespace(topic="t", partition=0, offset=number, key=b"k") for number in range(3)]
    (last,) = _last_of_each_key([records])
    assert [record.offset for record in last] == [2]
    assert "\rrecords read 3  " in terminal.getvalue() and terminal.getvalue().endswith("\r\x1b[K")
