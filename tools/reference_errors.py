"""The page of errors: every exception and every code of Kafka, with its cause and what to do about it.

Rules: the exceptions are those of the client, whichever of its modules have been imported: what a broker's own rooms raise among themselves
no user meets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reference_classes import members, signature
from reference_words import cell, doc, table

from fastq import errors as module


def errors() -> Iterator[str]:
    yield "Every error of fastq is a `fastq.FastqError`; every time-out is a `TimeoutError` too. Its message says where it happened,"
    yield "and ends with what to do. Below are the [exceptions](#exceptions), and the [codes](#codes-of-kafka) that brokers answer with."
    yield from ("", "```text", *tree(module.FastqError, 0), "```")
    yield from ("", "## Exceptions")
    for cls in sorted(subclasses(module.FastqError), key=lambda cls: cls.__name__):
        if not is_of_a_code(cls):
            again = " Trying again may help." if cls.retriable else ""
            about = doc(cls).replace("What to do:", "**What to do:**")
            yield from ("", f"### {cls.__name__}", "", about + again)
            yield from methods(cls)
    yield from ("", "## Codes of Kafka", "")
    yield "A broker's code is raised as the exception beside it, which is a `KafkaError`."
    yield "Where the same request may succeed later, the clients send it again by themselves until their time is over."
    yield ""
    rows = []
    for code in module.ErrorCode:
        again = "after fresh metadata" if code.refresh_metadata else "yes" if code.retriable else ""
        raised = f" `{type(module.error_for_code(code)).__name__}`" if code else ""
        rows.append((f"`{code.name}`{raised}", cell(code.meaning), cell(code.cure), str(int(code)), again))
    yield from table(("name", "cause", "what to do", "code", "sent again"), rows)


def methods(cls: type) -> Iterator[str]:
    """Those of a class that it has not from another one."""
    for name, member in members(cls):
        if name in vars(cls):
            yield from (
                "",
                f"#### `{cls.__name__}.{name}`",
                "",
                "```python",
                signature(name, member, cls),
                "```",
                "",
                doc(member),
            )


def is_of_a_code(cls: type) -> bool:
    return issubclass(cls, module.KafkaError) and cls is not module.KafkaError


def of_the_client(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "fastq"


def subclasses(cls: Any) -> set[Any]:
    """The class, and those below it that the client itself defines."""
    found = {cls}
    for child in cls.__subclasses__():
        if of_the_client(child):
            found |= subclasses(child)
    return found


def tree(cls: type, depth: int) -> Iterator[str]:
    yield "    " * depth + cls.__name__
    for child in sorted(cls.__subclasses__(), key=lambda child: child.__name__):
        if of_the_client(child) and not is_of_a_code(child):
            yield from tree(child, depth + 1)
