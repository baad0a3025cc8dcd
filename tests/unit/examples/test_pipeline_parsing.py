"""What the pipeline reads and sends: templates, lines laid over time, flights as records."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples"))

from log_lines import log_files, read_lines  # noqa: E402
from pipeline import flights, lines  # noqa: E402
from pipeline.templates import LENGTH_MAX, template  # noqa: E402

RECORDED = ROOT / "examples" / "data"
SHARED = ROOT.parent / "shared" / "data" / "logs"
FOLDERS = [folder for folder in (RECORDED, SHARED) if folder.is_dir()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            b"26/11/21 11:17:38 INFO Executor: Running task 0.0 in stage 342.0 (TID 296)",
            "INFO Executor: Running task <*> in stage <*> (TID <*>)",
        ),
        (
            b"2026-11-21 11:02:45.617 UTC [8768] LOG:  disconnection: session time: 0:00:00.016 user=postgres",
            "LOG: disconnection: session time: <*> user=postgres",
        ),
        (b'127.0.0.1 - - [21/Nov/2026:11:05:11 +0000] "GET /old/7?q=1 HTTP/1.1" 404 153 "-" "x"', "GET /old/<*> 404"),
        (b'127.0.0.1 - - [21/Nov/2026:11:05:11 +0000] "GET / HTTP/1.1" 200 15 "-" "x"', "GET / 200"),
        (b"[Sun Dec 04 04:47:44 2005] [error] mod_jk child in error state 6", "[error] mod_jk child in error state <*>"),
        (b"Dec 10 06:55:46 LabSZ sshd[24200]: Invalid user webmaster from 173.234.31.186",
         "LabSZ sshd[<*>]: Invalid user webmaster from <*>"),
        (b"\tat java.base/java.lang.Thread.run(Thread.java:840)", "at <*>(<*>)"),
        (b"081109 203615 148", "<*>"),
        (b"", "<*>"),
        (b"\xff\xfe bad bytes", "\ufffd\ufffd bad bytes"),
        (b"word " * 100, ("word " * 100)[:LENGTH_MAX]),
    ],
)  # fmt: skip
def test_templates(line: bytes, expected: str) -> None:
    assert template(line) == expected


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_ten_templates_cover_most_lines_of_a_source(folder: Path) -> None:
    for path in log_files(folder):
        if path.suffix in (".log", ".gz"):
            counts = Counter(template(line.text) for line in read_lines(path))
            top = sum(count for _, count in counts.most_common(10))
            assert top > counts.total() / 3, path
            assert len(counts) < counts.total() / 7, path


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"minutes": 10, "lines_max": 10**9, "days": 0, **given})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_every_line_is_replayed_once_in_the_order_of_its_source(folder: Path) -> None:
    replay = lines.replay(options(input=folder))
    for topic in replay.topics:
        source = topic[len(lines.PREFIX) :]
        paths = [path for path in log_files(folder) if path.name.split(".")[0] == source]
        expected = [line.text for path in paths for line in read_lines(path)]
        assert [event.value for event in replay.events if event.topic == topic] == expected
    assert len(replay.topics) >= 5
    assert lines.totals(replay).total() == len(replay.events)


def test_lines_are_spread_over_whole_minutes_in_order() -> None:
    replay = lines.replay(options(input=RECORDED, minutes=10))
    times = [event.time_ms for event in replay.events]
    assert times == sorted(times)
    minutes = Counter(time // lines.MINUTE_MS for time in times)
    assert len(minutes) == 10
    assert max(minutes.values()) - min(minutes.values()) < 10
    assert [event for tick in replay.ticks() for event in tick] == replay.events
    assert all(tick[-1].time_ms - tick[0].time_ms < replay.tick_ms for tick in replay.ticks())
    # The closing records take the watermark, a minute behind them, past the last window.
    assert replay.closing_ms - lines.MINUTE_MS >= (times[-1] // lines.MINUTE_MS + 1) * lines.MINUTE_MS


def test_more_sources_than_topics_share_the_last_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(lines.SOURCES_MAX + 4):
        (tmp_path / f"source {number:02}.log").write_bytes(b"one\ntwo\n")
    (tmp_path / "empty.log").write_bytes(b"")
    found = lines.read_sources(tmp_path, 1000)
    assert len(found) == lines.SOURCES_MAX
    assert sum(map(len, found.values())) == 2 * (lines.SOURCES_MAX + 4)
    assert all(set(name) <= set("source-0123456789other") for name in found)
    cut = lines.read_sources(tmp_path, 5)
    assert sum(map(len, cut.values())) == 5
    assert "1 of its 2 lines left out" in capsys.readouterr().err


def test_no_lines_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=str(tmp_path)):
        lines.replay(options(input=tmp_path))


@pytest.mark.soak
def test_flights_are_all_there_and_add_up_to_what_is_published() -> None:
    replay = flights.replay(options())
    times = [event.time_ms for event in replay.events]
    assert times == sorted(times)
    assert {event.key for event in replay.events} == {b"EWR", b"JFK", b"LGA"}
    totals = flights.totals(replay)
    assert flights.against_published(totals) == []
    totals["cancelled"] -= 1
    totals["cancelled 2013-02-08"] -= 100
    faults = flights.against_published(totals)
    assert len(faults) == 2 and "8,254" in faults[0] and "2013-02-08" in faults[1]


def test_a_flight_is_a_record_at_the_time_it_was_due() -> None:
    row = {
        "year": "2013", "month": "2", "day": "8", "hour": "17", "minute": "29", "time_hour": "2013-02-08T22:00:00Z",
        "carrier": "UA", "flight": "1714", "tailnum": "N24211", "origin": "LGA", "dest": "IAH",
        "dep_delay": "NA", "arr_delay": "",
    }  # fmt: skip
    event = flights.event_of(row)
    assert (event.topic, event.key, event.time_ms) == ("flights", b"LGA", 1_360_362_540_000)
    flight = json.loads(event.value)
    assert (flight["day"], flight["hour"], flight["dep_delay"], flight["arr_delay"]) == ("2013-02-08", 17, None, None)
