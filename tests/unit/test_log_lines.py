"""The example reader of log lines: every line kept, levels and components found."""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from log_lines import classify, line_time, log_files, read_lines  # noqa: E402

RECORDED = sorted((ROOT / "examples" / "data").glob("*.log.gz"))
SHARED = sorted((ROOT.parent / "shared" / "data" / "logs").glob("*.log"))


@pytest.mark.parametrize("path", [*RECORDED, *SHARED], ids=lambda path: path.name)
def test_no_line_is_lost(path: Path) -> None:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    expected = [line.rstrip(b"\r") for line in data.split(b"\n")]
    if expected[-1] == b"":
        expected.pop()
    assert [line.text for line in read_lines(path)] == expected


@pytest.mark.parametrize(
    ("line", "level", "component"),
    [
        (b"[2026-11-21 11:09:07,846] WARN message (kafka.log.LogManager)", "WARN", b"LogManager"),
        (b"26/11/21 11:13:35 INFO SparkContext: Running", "INFO", b"SparkContext"),
        (b"2026-11-21 11:02:56.460 UTC [12430] ERROR:  relation", "ERROR", b"file"),
        (b"2026/11/21 11:05:13 [crit] 15817#15817: *2456 open()", "FATAL", b"file"),
        (b"2015-10-18 18:01:47,978 INFO [main] org.apache.hadoop.Client: x", "INFO", b"Client"),
        (
            b"2015-07-29 17:41:44,747 - WARN  [RecvWorker:188978:QuorumCnxManager$RecvWorker@762] - x",
            "WARN",
            b"QuorumCnxManager$RecvWorker",
        ),
        (b"081109 203615 148 INFO dfs.DataNode$PacketResponder: x", "INFO", b"DataNode$PacketResponder"),
        (b"[Sun Dec 04 04:47:44 2005] [notice] workerEnv.init()", "INFO", b"file"),
        (b"Dec 10 06:55:46 LabSZ sshd[24200]: Invalid user", "-", b"sshd"),
        (b'127.0.0.1 - - [21/Nov/2026:11:05:14 +0000] "GET / HTTP/1.1" 502 13 "-" "curl"', "ERROR", b"file"),
        (b"\tat java.base/java.lang.Thread.run(Thread.java:840)", "-", b"file"),
        (b"", "-", b"file"),
    ],
)
def test_forms(line: bytes, level: str, component: bytes) -> None:
    assert classify(line, b"file") == (line, level, component)


def test_most_recorded_lines_tell_their_level() -> None:
    levels = Counter(line.level for path in RECORDED for line in read_lines(path))
    assert levels["-"] < sum(levels.values()) / 10
    assert min(levels[level] for level in ("INFO", "WARN", "ERROR")) > 1000


def test_folders_are_searched_for_logs_only(tmp_path: Path) -> None:
    for name in ("syslog", "a.log", "b.log.gz", "c.png", "LICENSE"):
        (tmp_path / name).write_bytes(b"x\n")
    assert [path.name for path in log_files(tmp_path)] == ["a.log", "b.log.gz", "syslog"]
    assert log_files(tmp_path / "a.log") == [tmp_path / "a.log"]


READ_AT = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("line", "time"),
    [
        (b"[2026-11-21 11:09:07,846] WARN message (kafka.log.LogManager)", "2026-11-21 11:09:07.846"),
        (b"26/11/21 11:13:35 INFO SparkContext: Running", "2026-11-21 11:13:35"),
        (b"2026-11-21 11:02:56.460 UTC [12430] ERROR:  relation", "2026-11-21 11:02:56.460"),
        (b"2026/11/21 11:05:13 [crit] 15817#15817: *2456 open()", "2026-11-21 11:05:13"),
        (b"2015-07-29 17:41:44,747 - WARN  [RecvWorker:188978:Quorum@762] - x", "2015-07-29 17:41:44.747"),
        (b"nova-api.log.1.2017-05-16_13:53:08 2017-05-16 00:00:00.008 25746 INFO nova", "2017-05-16 00:00:00.008"),
        (b"2026-11-21T11:02:56.5+02:30 host program: x", "2026-11-21 08:32:56.5"),
        (b"081109 203615 148 INFO dfs.DataNode$PacketResponder: x", "2008-11-09 20:36:15"),
        (b"[Sun Dec 04 04:47:44 2005] [notice] workerEnv.init()", "2005-12-04 04:47:44"),
        (b'127.0.0.1 - - [21/Nov/2026:01:05:14 -0800] "GET / HTTP/1.1" 502 13 "-" "curl"', "2026-11-21 09:05:14"),
        (b"Nov 21 11:59:59 combo su: x", "2026-11-21 11:59:59"),
        (b"Dec 10 06:55:46 LabSZ sshd[24200]: Invalid user", "2025-12-10 06:55:46"),  # no year: not in the future
        (b"Feb 29 06:55:46 LabSZ sshd[24200]: Invalid user", "2024-02-29 06:55:46"),
        (b"Jun 31 06:55:46 LabSZ sshd[24200]: Invalid user", None),
        (b"2026-13-21 11:02:56.460 UTC [12430] ERROR:  relation", None),
        (b"\tat java.base/java.lang.Thread.run(Thread.java:840)", None),
        (b"", None),
    ],
)
def test_times(line: bytes, time: str | None) -> None:
    expected = datetime.fromisoformat((time + "00000")[:26] if "." in time else time) if time else None
    assert line_time(line, READ_AT) == (expected and expected.replace(tzinfo=timezone.utc))


@pytest.mark.parametrize("path", [*RECORDED, *SHARED], ids=lambda path: path.name)
def test_every_classified_line_tells_its_time(path: Path) -> None:
    """What has the form of a log line has a time; the lines of traces and listings between them have none."""
    lines = list(read_lines(path))
    timed = [line_time(line.text, READ_AT) is not None for line in lines]
    assert all(
        has for line, has in zip(lines, timed, strict=True) if line.level != "-" or path.stem in ("Linux", "OpenSSH")
    )
    assert sum(timed) > len(lines) / 2
