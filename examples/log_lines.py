"""Reads log files of any kind and says of each line which level it has and which component wrote it.

Rules: nothing is dropped: a line that fits no known form keeps its text, has the level "-" and, as its component,
the file that it stands in. Lines are bytes, without their line end. Files may be plain or gzip.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
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


def log_files(path: Path) -> list[Path]:
    """The files to read: `path` itself, or every regular file below it that is a log by name (.log, .gz, syslog ...)."""
    if path.is_file():
        return [path]
    files = [p for p in sorted(path.rglob("*")) if p.is_file() and not p.is_symlink()]
    return [p for p in files if ".log" in p.name or p.suffix in ("", ".1", ".gz", ".txt")]


def read_lines(path: Path) -> Iterator[LogLine]:
    """Every line of one file, plain or gzip, classified."""
    source = path.name.split(".")[0].encode()
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
        for line in lines:
            yield classify(line.rstrip(b"\r\n"), source)
