"""A directory for the nodes of a seed, and what they log as lines of its story."""

from __future__ import annotations

import gc
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastq_broker.log.failures import failures

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
