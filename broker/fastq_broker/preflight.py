"""What would hold, and on what machine: `fastq-broker --check-config`, and the words about the machine at a start.

Rules
- Nothing is made, bound, locked or written: it may run beside the broker whose file it looks at.
- A setting is told where it was set, an older name beside the one that it stands for; a secret is told as there, never as it is.
- What will go wrong is a problem (code 1), what may is a warning. The start tells the warnings alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fastq.values import NamedTuple

from .complaints import complain
from .config_keys import ConfigKey, ConfigType, Status
from .config_mirror import told_settings
from .config_table import BROKER_KEYS, TARGETS
from .descriptors import plan_descriptors, raise_limit
from .exit_codes import FAILED, OK

if TYPE_CHECKING:
    from .config import BrokerConfig

DESCRIPTORS_MIN = 4_096
FREE_MIN = 1 << 30
MEMORY_MIN = 256 << 20
NOT_FOR_LOGS = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "vboxsf")
FOR_NO_FILES = ("proc", "sysfs", "devpts", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "pstore", "bpf")
"""The system's own: nobody makes a directory there, whatever its permissions say."""
GONE_AT_RESTART = ("tmpfs", "ramfs")
PACKAGES = (
    (
        "lz4",
        "lz4",
        "batches in lz4 are kept and handed out as they are, but not opened or made (compaction, compression.type)",
    ),
    (
        "snappy",
        "python-snappy",
        "batches in snappy are kept and handed out as they are, but not opened or made (compaction, compression.type)",
    ),
    (
        "zstandard",
        "zstandard",
        "batches in zstd are kept and handed out as they are, but not opened or made (compaction, compression.type)",
    ),
    (
        "xxhash",
        "xxhash",
        "groups of the consumer protocol go through one rebalance more when their coordinator moves to or from a broker with it",
    ),
)
"""Module, package for pip, what is without it."""
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
CLOCK_BEGINS_S = 1_735_689_600
"""2025-01-01: a clock before it has not been set."""


class Place(NamedTuple):
    """Where a directory is, or will be made: its file system, and what is free of it."""

    path: str
    kind: str
    free_bytes: int
    size_bytes: int
    problem: str


class Machine(NamedTuple):
    """What a start finds. `memory_bytes` is 0 where the system does not say."""

    descriptors: int
    memory_bytes: int
    now_s: float
    places: tuple[Place, ...]
    missing: tuple[str, ...] = ()
    """Packages for pip that are not installed."""


def look(config: BrokerConfig, descriptors: int) -> Machine:
    """The machine as it is now; `descriptors` is how many files may be open. Its places are the directories of logs and of the metadata."""
    directories = dict.fromkeys((*config.log_dirs, config.metadata_log_dir))
    return Machine(descriptors, _memory_bytes(), time.time(), tuple(map(_place, directories)), _missing())


def _missing() -> tuple[str, ...]:
    return tuple(package for module, package, _ in PACKAGES if find_spec(module) is None)


def _place(path: str) -> Place:
    there = os.path.abspath(path)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    problem = ""
    if not os.path.exists(there):
        problem = f"{there} is a symbolic link to {os.path.realpath(there)}, which is not there"
        there = os.path.dirname(there)
    elif not os.path.isdir(there):
        problem = f"{there} is no directory"
    elif not os.access(there, os.W_OK | os.X_OK):
        problem = (
            f"{there} cannot be written to by user {os.geteuid() if hasattr(os, 'geteuid') else 'of this process'}"
        )
    if not hasattr(os, "statvfs"):
        return Place(path, "", 0, 0, problem)
    found, kind = os.statvfs(there), _file_system(there)
    if kind in FOR_NO_FILES:
        problem = problem or f"{there} is on {kind}, which holds no files of anybody's"
    return Place(path, kind, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, problem)


_ESCAPED = re.compile(r"\\([0-7]{3})")


def _file_system(path: str) -> str:
    """The kind of file system of a path; empty where the system does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in lines:
        fields = line.split()
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[1])
        if len(point) >= len(best) and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, kind = point, fields[2]
    return kind


def _memory_bytes() -> int:
    """Of the machine, or of this process's control group where that is less."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return found
    return min(found, int(limit)) if limit.isdecimal() else found


def _size(size_bytes: int) -> str:
    """In powers of 1024."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.3g} TiB"


def problems(machine: Machine) -> list[str]:
    """What no start gets over."""
    return [f"{place.path}: {place.problem}" for place in machine.places if place.problem]


def warnings(machine: Machine) -> list[str]:
    """What a start gets over, and its user may not."""
    found = []
    if machine.descriptors < DESCRIPTORS_MIN:
        plan = plan_descriptors(machine.descriptors)
        found.append(
            f"{machine.descriptors} files may be open, {plan.files} of logs and {plan.connections} connections: raise the limit "
            f"(ulimit -n, LimitNOFILE) to {DESCRIPTORS_MIN} or more"
        )
    if 0 < machine.memory_bytes < MEMORY_MIN:
        found.append(
            f"{_size(machine.memory_bytes)} of memory: little is left for the page cache, which readers live on"
        )
    found += [
        f"the package {package} is not installed: {without} (pip install {package})"
        for _, package, without in PACKAGES
        if package in machine.missing
    ]
    if machine.now_s < CLOCK_BEGINS_S:
        day = time.strftime("%Y-%m-%d", time.gmtime(machine.now_s))
        found.append(f"the clock says {day}: records are stamped and retained by it; set it before the first record")
    for place in machine.places:
        if place.kind in NOT_FOR_LOGS:
            found.append(
                f"{place.path} is on {place.kind}: locks and syncs of a network's file system are not those of a disk"
            )
        if place.size_bytes and place.free_bytes < FREE_MIN:
            found.append(
                f"{place.path} has {_size(place.free_bytes)} free: a full disk refuses producers, and a controller with one does not lead"
            )
    return found


def kept_in_memory(machine: Machine) -> list[str]:
    """Directories that last as long as the machine runs: what tests want, so that a start says nothing of it."""
    return [
        f"{place.path} is on {place.kind}: the data is gone when the machine restarts"
        for place in machine.places
        if place.kind in GONE_AT_RESTART
    ]


def report(config: BrokerConfig, machine: Machine, origins: Mapping[str, str]) -> Iterator[str]:
    """Lines: what was set and where, what of it is without effect, what holds besides, and the machine. `origins` say where a key was
    set."""
    yield "# what was set, and where"
    for name in sorted(config.settings):
        key = BROKER_KEYS.get(name)
        secret = key is not None and key.type is ConfigType.PASSWORD
        value = "[hidden]" if secret else _text(config.settings[name])
        note = ""
        if key is not None and key.status is Status.IGNORED:
            note = f"; without effect: {key.note}"
        elif key is not None and key.status is Status.MAPPED:
            note = "; another name of a setting"
        yield f"{name}={value}    # {origins.get(name, 'the command line')}{note}"
    for name, text in told_settings(config.mirror_sources):
        yield f"{name}={_text(text)}    # fetched from, for a mirror whose source it is"
    yield "# what holds besides"
    for name, key in sorted(BROKER_KEYS.items()):
        if key.status is not Status.DONE or name in config.settings:
            continue
        older = [old for old, (target, _) in TARGETS.items() if target == name and config.settings.get(old) is not None]
        said = _held(config, key)
        yield f"{name}={said}    # {'by ' + ' and '.join(older) if older else 'the default'}"
    yield "# the machine"
    yield from described(machine)


def _held(config: BrokerConfig, key: ConfigKey) -> str:
    """A value that was not set by its own name: its default, or what is made of others (`advertised.listeners`); empty: none."""
    value = config.get(key.name)
    if value is None or key.name == "listeners":
        value = getattr(config, key.attribute, None)
    return "" if value is None else _text(value if isinstance(value, (tuple, list)) else key.render(value))


def described(machine: Machine) -> Iterator[str]:
    """The machine, a line each: the start's log has them as one."""
    plan = plan_descriptors(machine.descriptors)
    yield f"open files: {machine.descriptors:,} ({plan.files:,} of logs, {plan.connections:,} connections)"
    if machine.memory_bytes:
        yield f"memory: {_size(machine.memory_bytes)}"
    yield f"clock: {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(machine.now_s))}"
    for place in machine.places:
        yield f"{_text(place.path)}: {place.kind or 'file system'}, {_size(place.free_bytes)} free of {_size(place.size_bytes)}"


def check(config: BrokerConfig, origins: Mapping[str, str]) -> int:
    """`--check-config`: print the report, what may go wrong and what will; the exit code."""
    machine = look(config, raise_limit())
    for line in report(config, machine, origins):
        print(line)
    for warning in [*warnings(machine), *kept_in_memory(machine)]:
        complain(f"warning: {warning}")
    found = problems(machine)
    for problem in found:
        complain(problem)
    return FAILED if found else OK


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
