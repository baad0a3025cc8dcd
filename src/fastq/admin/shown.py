"""Several nodes asked side by side for what a page or a command shows of them.

Rules: a node that cannot be reached costs one try, and holds up none of the others: whoever looks again asks it again. What it would have
told is missing in what is found, and why is told beside that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastq.admin.core import _error
from fastq.errors import FastqError
from fastq.net.operations import Call, Found, Operation
from fastq.net.requests import EncodedRequest, VersionedRequest
from fastq.protocol.message import Message

T = TypeVar("T")

HAS = "which has what it was to be asked about"


@dataclass(frozen=True, slots=True)
class Shown(Generic[T]):
    """What nodes have told, and of those that did not, by their ids, why."""

    found: T
    silent: dict[int, FastqError]


def ask_once(
    requests: Sequence[tuple[int, Message | EncodedRequest | VersionedRequest]], versions: tuple[int, int] | None = None
) -> Operation[Shown[list[Any]]]:
    """A request to each node named (one may be named twice); the responses in order, None for one that is an error as a whole."""
    calls = [Call(Found(node, HAS), request, versions) for node, request in requests]
    outcomes = (yield calls) if calls else []
    silent: dict[int, FastqError] = {}
    answers: list[Any] = []
    for (node, _), outcome in zip(requests, outcomes, strict=True):
        error = outcome if isinstance(outcome, FastqError) else None
        code = 0 if error is not None else getattr(outcome, "error_code", 0)
        if code:
            error = _error(code, None, broker=f"node {node}")
        if error is not None:
            silent.setdefault(node, error)
        answers.append(outcome if error is None else None)
    return Shown(answers, silent)
