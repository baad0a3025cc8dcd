"""Several nodes asked side by side for what a page or a command shows of them.

Rules: a node that cannot be reached costs one try, and holds up none of the others: whoever looks again asks it again. What it would have
told is missing in what is found, and why is told beside that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastq.admin.core import _error, describe_cluster
from fastq.errors import ConnectionTimeout, FastqError
from fastq.net.operations import Call, Found, Operation, OutOfTime
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


def ask_all_once(
    request: Message | EncodedRequest | VersionedRequest, versions: tuple[int, int] | None = None
) -> Operation[Shown[list[Any]]]:
    """A request to each broker; the responses of those that answer. Raises the first error where not one does."""
    cluster = yield from describe_cluster()
    told = yield from ask_once([(node.node_id, request) for node in cluster.nodes], versions)
    answers = [answer for answer in told.found if answer is not None]
    if told.silent and not answers:
        raise next(iter(told.silent.values()))
    return Shown(answers, told.silent)


def silent_once(operation: Operation[T], silent: dict[int, FastqError]) -> Operation[T]:
    """An operation whose calls are all of nodes that were found to have what they are asked about, where those in `silent` are not asked:
    each has its error at once. Nodes that take no connection in time are added: each try costs more time than the one before."""
    value: Any = None
    error: FastqError | OutOfTime | None = None
    try:
        while True:
            try:
                effect = operation.send(value) if error is None else operation.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            calls = [effect] if isinstance(effect, Call) else effect
            assert isinstance(calls, list)
            value, error = None, None
            asked = [call for call in calls if _node_of(call) not in silent]
            try:
                told = iter((yield asked) if asked else [])
            except OutOfTime as late:
                error = late
                continue
            answers = [silent[_node_of(call)] if _node_of(call) in silent else next(told) for call in calls]
            for call, answer in zip(calls, answers, strict=True):
                if isinstance(answer, ConnectionTimeout) and answer.phase not in (None, "ready"):
                    silent.setdefault(_node_of(call), answer)
            if isinstance(effect, list):
                value = answers
            elif isinstance(answers[0], FastqError):
                error = answers[0]
            else:
                value = answers[0]
    finally:
        operation.close()


def _node_of(call: Call) -> int:
    assert isinstance(call.route, Found)
    return call.route.node_id
