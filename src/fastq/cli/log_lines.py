"""Warnings of the clients' log as lines on standard error, while a command runs.

Rules: what is told is remembered, so that an error that was among it is not said twice. A command that says itself which brokers do not
answer holds the clients' own words back until it knows, and drops those about the same brokers; all others are told.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

from fastq.cli.output import complain

if TYPE_CHECKING:
    from fastq.metadata import Node


class Lines(logging.Handler):
    """Warnings as lines. `told` are those that were shown, `held` those that are to be, in the end: None while each is shown at once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []
        self.held: list[logging.LogRecord] | None = None

    @property
    def stream(self) -> TextIO | None:
        """As a StreamHandler has it: where the lines go, so that nobody says the same beside them."""
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        if self.held is not None:
            self.held.append(record)
            return
        text = record.getMessage()
        self.told.append(text)
        complain(text)
        if record.exc_info:
            for line in logging.Formatter().formatException(record.exc_info).splitlines():
                complain(line)

    def drop(self, nodes: Iterable[Node]) -> None:
        """Of what is held, forget what is about these brokers."""
        about = [_names(node) for node in nodes]
        with self.lock or contextlib.nullcontext():
            self.held = [
                record
                for record in self.held or ()
                if not any(_is_about(record.getMessage(), names) for names in about)
            ]

    def was_told(self, node: Node) -> bool:
        """Whether something has been shown about this broker."""
        return any(_is_about(text, _names(node)) for text in self.told)


def _names(node: Node) -> tuple[str, ...]:
    return f"(node {node.node_id})", f"[broker {node.host}:{node.port},"


def _is_about(text: str, names: tuple[str, ...]) -> bool:
    return any(name in text for name in names)


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[Lines]:
    """While this lasts, what the package logs goes to standard error, and nowhere else."""
    handler, logger = Lines(), logging.getLogger("fastq")
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: complain(str(message))
        try:
            yield handler
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagates


@contextlib.contextmanager
def infos_as_lines(name: str) -> Iterator[None]:
    """While this lasts, what this logger of the package tells at INFO is shown too; of the others their warnings are."""
    logger = logging.getLogger(name)
    level = logger.level
    handlers = [handler for handler in logging.getLogger("fastq").handlers if isinstance(handler, Lines)]
    logger.setLevel(logging.INFO)
    for handler in handlers:
        handler.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        for handler in handlers:
            handler.setLevel(logging.WARNING)


@contextlib.contextmanager
def warnings_held() -> Iterator[Lines]:
    """Hold back what the clients warn of, and tell at the end what was not dropped by then."""
    found = [handler for handler in logging.getLogger("fastq").handlers if isinstance(handler, Lines)]
    lines = found[-1] if found else Lines()  # a command that is run by itself has nobody to tell
    lines.held = []
    try:
        yield lines
    finally:
        with lines.lock or contextlib.nullcontext():
            left, lines.held = lines.held or [], None
        for record in left:
            lines.handle(record)


@contextlib.contextmanager
def undelivered_untold() -> Iterator[None]:
    """While this lasts, a producer's log does not tell of records that were not delivered: who asks about each tells of them."""
    logger = logging.getLogger("fastq.producer")

    def tells_more(record: logging.LogRecord) -> bool:
        return "not delivered" not in record.getMessage()

    logger.addFilter(tells_more)
    try:
        yield
    finally:
        logger.removeFilter(tells_more)
