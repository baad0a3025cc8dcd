"""The page of errors: every exception and every code of Kafka, with its cause and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reference_words import cell, doc, is_own, table

from fastq import errors as module


def errors() -> Iterator[str]:
    yield from (
        "Every error of fastq is a `fastq.FastqError`; every time-out is a `TimeoutError` too. Its message ends with what to do.",
        "",
    )
    yield from ("```text", *tree(module.FastqError, 0), "```")
    yield from ("", "## Exceptions")
    for cls in sorted(subclasses(module.FastqError), key=lambda cls: cls.__name__):
        if not is_of_a_code(cls):
            again = " Trying again may help." if cls.retriable else ""
            yield from ("", f"### {cls.__name__}", "", doc(cls), "", f"**What to do.** {cell(cls.cure)}{again}")
    yield from ("", "## Codes of Kafka", "")
    yield from (
        "A broker's code is a subclass of `KafkaError`, named after it: code 3 is `UnknownTopicOrPartition`.",
        "",
    )
    yield from ("Try again: the same request may succeed later, which the clients see to until their time is over.", "")
    rows = []
    for code in module.ErrorCode:
        again = "after fresh metadata" if code.refresh_metadata else "yes" if code.retriable else ""
        rows.append((str(int(code)), f"`{code.name}`", again, cell(code.meaning), cell(code.cure)))
    yield from table(("code", "name", "try again", "cause", "what to do"), rows)


def is_of_a_code(cls: type) -> bool:
    return issubclass(cls, module.KafkaError) and cls is not module.KafkaError


def subclasses(cls: Any) -> set[Any]:
    """The classes below this one that the package itself defines."""
    found = {cls}
    for child in cls.__subclasses__():
        if is_own(child.__module__):
            found |= subclasses(child)
    return found


def tree(cls: type, depth: int) -> Iterator[str]:
    yield "    " * depth + cls.__name__
    for child in sorted(cls.__subclasses__(), key=lambda child: child.__name__):
        if is_own(child.__module__) and not is_of_a_code(child):
            yield from tree(child, depth + 1)
