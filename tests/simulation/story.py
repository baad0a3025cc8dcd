"""A directory for the nodes of a seed, what they log as lines of its story, what of their files is not in memory, and their room."""

from __future__ import annotations

import gc
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastq_broker import output
from fastq_broker.log import files, log_appends, log_file
from fastq_broker.log.failures import failures
from fastq_broker.replication import catch_up

from simulation.world import World


class Log(logging.Handler):
    """Has the log's lines in the story; an unforeseen error in them is a violation."""

    def __init__(self, world: World, root: str) -> None:
        super().__init__(logging.INFO)
        self._world, self._root = world, root
        self.problem: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        import asyncio

        loop: Any = asyncio._get_running_loop()
        if loop is None or loop.host.dead:
            return
        text = record.getMessage().replace(self._root, "")
        self._world.tell(loop.host, f"{record.levelname[0]} {text}")
        if record.exc_info and record.exc_info[1] is not None and "simulation" not in text:
            self.problem = self.problem or f"{loop.host} reports an error: {text}: {record.exc_info[1]!r}"


PAGE_BYTES = 4096
"""What a disk writes at once."""
COLD = 0.3
"""How often what a connection is to send is not in memory, where that happens."""


@contextmanager
def cold_reads(world: World) -> Iterator[None]:
    """What is sent of a file is not in memory at times: it goes out later, and is what the file has by then."""
    originals = output.read_if_cached, output.is_cached
    random = world.random_of("cold reads")

    def or_cold(original: Callable[..., Any], cold: object) -> Any:
        return lambda *asked: cold if world.reads_are_cold and random.random() < COLD else original(*asked)

    output.read_if_cached, output.is_cached = or_cold(originals[0], None), or_cold(originals[1], False)
    try:
        yield
    finally:
        output.read_if_cached, output.is_cached = originals


LITTLE = [
    (log_appends, "RESERVE_FROM_BYTES", (1, 120)),
    (log_file, "RESERVED_BYTES_MIN", (1, 400)),
    (log_file, "RESERVED_BYTES_MAX", (20_000,)),
    (log_file, "RESERVED_SHARE", (1, 4)),
    (files, "SLACK_BYTES", (PAGE_BYTES,)),
    (catch_up, "CATCH_UP_BYTES", (700, 5000)),
    (catch_up, "CATCH_UP_FETCHES", (1, 4)),
]
"""What counts as much, with records as small as a seed has them."""


@contextmanager
def room_ahead(world: World) -> Iterator[None]:
    """Where that happens small logs have room on the disk ahead of their ends too, and who lacks a few records is behind."""
    if not world.has("room ahead"):
        yield
        return
    random = world.random_of("how much is much")
    originals = [getattr(module, name) for module, name, _ in LITTLE]
    for module, name, choices in LITTLE:
        setattr(module, name, random.choice(choices))
    try:
        yield
    finally:
        for (module, name, _), original in zip(LITTLE, originals, strict=True):
            setattr(module, name, original)


@contextmanager
def surroundings(world: World) -> Iterator[tuple[Path, Log]]:
    """A directory, and the log's lines in the story."""
    shared = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="fastq-simulation-", dir=shared if shared.is_dir() else None))
    handler = Log(world, str(root))
    loggers = [logging.getLogger("fastq_broker"), logging.getLogger("fastq")]
    before = [(each.level, each.propagate) for each in loggers]
    clock, failures._clock = failures._clock, lambda: world.now
    failures._places.clear()
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.INFO)
        each.propagate = False
    gc.disable()  # what a killed process leaves is collected at the end of a seed: no destructor runs in the middle
    try:
        yield root, handler
    finally:
        for each, (level, propagate) in zip(loggers, before, strict=True):
            each.removeHandler(handler)
            each.setLevel(level)
            each.propagate = propagate
        failures._clock = clock
        logging.disable(logging.NOTSET)
        shutil.rmtree(root, ignore_errors=True)
        gc.enable()
