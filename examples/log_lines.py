"""Reads log files of any kind and says of each line which level it has, which component wrote it, and when.

Rules: nothing is dropped: a line that fits no known form keeps its text, has the level "-" and, as its component,
the file that it stands in; a time that cannot be read is None. Lines are bytes, without their line end. Files may be
plain or gzip.
"""

from __future__ import annotations

import gzip
import re
from calendar import isleap
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

LEVELS = ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "-")

_SAME_LEVEL = {
    b"WARNING": "WARN", b"SEVERE": "ERROR", b"CRITICAL": "FATAL", b"CRIT": "FATAL", b"EMERG": "FATAL", b"ALERT": "FATAL",
    b"PANIC": "FATAL", b"ERR": "ERROR", b"NOTICE": "INFO", b"LOG": "INFO", b"STATEMENT": "INFO", b"DETAIL": "INFO",
    b"CONTEXT": "INFO", b"HINT": "INFO", b"INFORMATION": "INFO",
}  # fmt: skip

# Each form names `level` and, where the line tells, `component`.
_FORMS = [
    re.compile(form)
    for form in (
        # Kafka: [2026-11-21 11:00:13,123] INFO message (kafka.log.LogManager)
        rb"^\[[\d-]+ [\d:,.]+\] (?P<level>[A-Z]+) .*\((?P<component>[\w.$]+)\)$",
        # Spark: 26/11/21 11:13:35 INFO SparkContext: message
        rb"^\d\d/\d\d/\d\d [\d:]+ (?P<level>[A-Z]+) (?P<component>[\w.$]+):",
        # PostgreSQL: 2026-11-21 11:02:44.182 UTC [8245] LOG:  message
        rb"^[\d-]+ [\d:.]+ [A-Z]+ \[\d+\] (?P<level>[A-Z]+):",
        # nginx, errors: 2026/11/21 11:05:13 [error] 15817#15817: *2456 message
        rb"^[\d/]+ [\d:]+ \[(?P<level>[a-z]+)\] \d+#\d+:",
        # Hadoop: 2015-10-18 18:01:47,978 INFO [main] org.apache.hadoop.Name: message
        rb"^[\d-]+ [\d:,]+ (?P<level>[A-Z]+) \[.*?\] (?P<component>[\w.$]+):",
        # ZooKeeper: 2015-07-29 17:41:44,747 - INFO  [thread:FastLeaderElection@87] - message
        rb"^[\d-]+ [\d:,]+ - (?P<level>[A-Z]+) +\[.*?(?P<component>[\w$]+)@\d+\]",
        # HDFS: 081109 203615 148 INFO dfs.DataNode$PacketResponder: message
        rb"^\d{6} \d{6} \d+ (?P<level>[A-Z]+) (?P<component>[\w.$]+):",
        # OpenStack: nova-api.log.1... 2017-05-16 00:00:00.008 25746 INFO nova.osapi [req-...]
        rb"^\S+ [\d-]+ [\d:.]+ \d+ (?P<level>[A-Z]+) (?P<component>[\w.]+)",
        # Apache httpd: [Sun Dec 04 04:47:44 2005] [notice] message
        rb"^\[\w{3} \w{3} +\d+ [\d:.]+ \d{4}\] \[(?:(?P<component>\w+):)?(?P<level>\w+)\]",
        # syslog, which has no level: Dec 10 06:55:46 LabSZ sshd[24200]: message
        rb"^\w{3} +\d+ [\d:]{8} \S+ (?P<component>[\w./-]+)(?:\([\w-]+\))?(?:\[\d+\])?:",
    )
]
# Web servers' combined form has a status instead of a level.
_ACCESS = re.compile(rb'^\S+ \S+ \S+ \[[^\]]+\] "[^"]*" (?P<status>\d{3}) ')

# The times of all these forms. Groups: Y or y year, m month by number or b by name, d day, H M S, f fraction, z zone.
_CLOCK = rb"(?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)"
_TIMES = [
    re.compile(form)
    for form in (
        # Kafka, PostgreSQL, nginx, Hadoop, ZooKeeper; OpenStack, where a file's name stands before it
        rb"^(?:\[|\S+ )?(?P<Y>\d{4})[-/](?P<m>\d\d)[-/](?P<d>\d\d)[ T]" + _CLOCK + rb"(?:[.,](?P<f>\d{1,6}))?(?P<z>Z|[+-]\d\d:?\d\d)?",
        # web servers' combined form
        rb"^\S+ \S+ \S+ \[(?P<d>\d\d)/(?P<b>\w{3})/(?P<Y>\d{4}):" + _CLOCK + rb" (?P<z>[+-]\d{4})\]",
        # Spark
        rb"^(?P<y>\d\d)/(?P<m>\d\d)/(?P<d>\d\d) " + _CLOCK,
        # HDFS
        rb"^(?P<y>\d\d)(?P<m>\d\d)(?P<d>\d\d) (?P<H>\d\d)(?P<M>\d\d)(?P<S>\d\d) ",
        # Apache httpd
        rb"^\[\w{3} (?P<b>\w{3}) +(?P<d>\d{1,2}) " + _CLOCK + rb"(?:\.(?P<f>\d{1,6}))? (?P<Y>\d{4})\]",
        # syslog, which tells no year
        rb"^(?P<b>\w{3}) +(?P<d>\d{1,2}) " + _CLOCK + rb" ",
    )
]  # fmt: skip
_MONTHS = {name: number for number, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}


class LogLine(NamedTuple):
    """One line: its text, its level (one of LEVELS) and the component that wrote it."""

    text: bytes
    level: str
    component: bytes


def classify(text: bytes, source: bytes) -> LogLine:
    """Level and component of one line of the file `source`; "-" and the file where the line does not tell."""
    access = _ACCESS.match(text)
    if access:
        status = access["status"]
        return LogLine(text, "ERROR" if status >= b"500" else "WARN" if status >= b"400" else "INFO", source)
    for form in _FORMS:
        found = form.match(text)
        if found:
            named = found.groupdict()
            level = (named.get("level") or b"-").upper()
            shown = _SAME_LEVEL.get(level) or level.decode()
            component = named.get("component") or source
            return LogLine(text, shown if shown in LEVELS else "-", component.rsplit(b".", 1)[-1])
    return LogLine(text, "-", source)


def line_time(text: bytes, read_at: datetime) -> datetime | None:
    """The time that a line tells, in UTC; None where it tells none, or none that exists.

    A time without a zone is taken for UTC. Syslog tells no year: it is the latest one in which the time is not after
    `read_at`, which must have a zone, so that the same line read at the same time always gives the same.
    """
    for form in _TIMES:
        found = form.match(text)
        if found:
            try:
                return _built(found.groupdict(), read_at)
            except (KeyError, ValueError, OverflowError):  # the 31st of June; Foo 12 ...
                return None
    return None


def _built(told: dict[str, bytes], read_at: datetime) -> datetime | None:
    month = int(told["m"]) if "m" in told else _MONTHS[told["b"]]
    fraction = int((told.get("f") or b"0").ljust(6, b"0"))
    rest = (month, int(told["d"]), int(told["H"]), int(told["M"]), int(told["S"]), fraction)
    if "Y" not in told and "y" not in told:
        return _latest(rest, read_at + timedelta(days=1))  # the writer's zone may be ahead of UTC
    time = datetime(int(told["Y"]) if "Y" in told else 2000 + int(told["y"]), *rest, tzinfo=timezone.utc)
    zone = told.get("z")
    if zone and zone != b"Z":
        ahead = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
        time += ahead if zone[:1] == b"-" else -ahead
    return time


def _latest(rest: tuple[int, int, int, int, int, int], limit: datetime) -> datetime | None:
    for year in range(limit.year, limit.year - 9, -1):  # a 29 February may be eight years ago
        if rest[:2] == (2, 29) and not isleap(year):
            continue
        time = datetime(year, *rest, tzinfo=timezone.utc)
        if time <= limit:
            return time
    return None


def log_files(path: Path) -> list[Path]:
    """The files to read: `path` itself, or every regular file below it that is a log by name (.log, .gz, syslog ...)."""
    if path.is_file():
        return [path]
    papers = {"LICENSE", "NOTICE", "README", "Makefile"}
    files = [p for p in sorted(path.rglob("*")) if p.is_file() and not p.is_symlink() and p.name not in papers]
    return [p for p in files if ".log" in p.name or p.suffix in ("", ".1", ".gz", ".txt")]


def read_lines(path: Path) -> Iterator[LogLine]:
    """Every line of one file, plain or gzip, classified."""
    source = path.name.split(".")[0].encode()
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
        for line in lines:
            yield classify(line.rstrip(b"\r\n"), source)
