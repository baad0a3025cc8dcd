"""Times that people write: the same ones in each place that takes them, also on the oldest Python. Access controls that they mean."""

from __future__ import annotations

import datetime
from datetime import timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from fastq import words
from fastq.cli.consume_filter import milliseconds, parse_filter
from fastq.cli.group_resets import reset_of
from fastq.cli.offsets import when
from fastq.cli.output import UsageError
from fastq.console.pages.records import time_ms
from fastq.console.visit import BadValue
from fastq.words import acl_remarks, counted, read_time_ms

NOON_MS = 1_800_014_400_000
PLACES = {
    "consume": lambda text: milliseconds(text, "--from"),
    "offsets": when,
    "groups": lambda text: _reset(text),
    "console": lambda text: time_ms("from", text),
}


def _reset(text: str) -> Any:
    names = ["to_earliest", "to_latest", "to_current"]
    return reset_of(SimpleNamespace(**dict.fromkeys(names, False), to_datetime=text)).value  # type: ignore[arg-type]


class Oldest(datetime.datetime):
    """As Python 3.10 has it."""

    @classmethod
    def fromisoformat(cls, text: str) -> Oldest:
        if "Z" in text:
            raise ValueError(f"Invalid isoformat string: {text!r}")
        return super().fromisoformat(text)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", ["2027-01-15T12:00:00Z", "2027-01-15T13:00:00+01:00", str(NOON_MS)])
def test_a_time_with_its_zone(place: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "datetime", Oldest)
    assert PLACES[place](text) == NOON_MS


def test_a_time_of_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "datetime", Oldest)
    fits = parse_filter("timestamp>=2027-01-15T12:00Z")
    assert [fits(SimpleNamespace(timestamp_ms=NOON_MS + n)) for n in (-1, 0)] == [False, True]  # type: ignore[arg-type]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", ["", "Z", "noon", "1960-01-01T00:00Z", "0001-01-01T00:00", "1" * 20, "-7"])
def test_what_is_no_time(place: str, text: str) -> None:
    with pytest.raises((UsageError, BadValue), match="milliseconds since 1970"):
        PLACES[place](text)


def test_a_zone_for_those_without() -> None:
    assert read_time_ms("2027-01-15T12:00", timezone.utc) == NOON_MS
    assert read_time_ms("2027-01-15T12:00", timezone(timedelta(hours=1))) == NOON_MS - 3_600_000
    local = datetime.datetime(2027, 1, 15, 12).timestamp() * 1000
    assert read_time_ms("2027-01-15T12:00") == local


def test_numbers_of_things() -> None:
    assert [counted(n, "record") for n in (0, 1, 2000)] == ["0 records", "1 record", "2,000 records"]
    assert counted(1, "entry") == "1 entry" and counted(3, "entry") == "3 entries"


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("*", ""), ("10.0.0.1", ""), ("0:0:0:0:0:0:0:1", ""), ("2001:db8:0:0:0:0:0:a", ""),  # as Java writes them
        ("::1", "writes that one 0:0:0:0:0:0:0:1"), ("2001:DB8::A", "writes that one 2001:db8:0:0:0:0:0:a"),
        ("::ffff:10.0.0.1", "writes that one 10.0.0.1"), ("fe80::1%eth0", "writes that one fe80:0:0:0:0:0:0:1%eth0"),
        ("localhost", "is no address"), ("10.0.0.0/8", "is no address"), ("10.0.0.*", "is no address"), ("10.0.0.01", "is no address"),
        (" *", "is no address"),
    ],
)  # fmt: skip
def test_hosts_of_access_controls_that_are_nobodys(host: str, words: str) -> None:
    remarks = acl_remarks("t", host, prefixed=False)
    assert len(remarks) == bool(words) and words in "".join(remarks)


def test_a_prefix_of_a_star_is_not_all() -> None:
    assert "a literal *" in acl_remarks("*", "*", prefixed=True)[0]
    assert not acl_remarks("*", "*", prefixed=False) and not acl_remarks("t*", "*", prefixed=True)
