"""Questions that each broker answers for itself: those that answer are shown, one that stands still is named, and holds nobody up.

Rules: all are asked at once. The client's own words about a broker that is named here are not told too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from fastq.cli.log_lines import warnings_held
from fastq.cli.output import Waiting, complain
from fastq.errors import BrokerNotAvailable, FastqError, KafkaError

if TYPE_CHECKING:
    from fastq import Admin
    from fastq.admin.shown import Shown
    from fastq.metadata import Node
    from fastq.net.operations import Operation

T = TypeVar("T")
NODE_S = 5.0
"""How long each broker is waited for, where the answer may take work; what is at hand takes less."""
THREADS_MAX = 32


def ask_each(nodes: Sequence[int], ask: Callable[[int], T]) -> dict[int, T | FastqError]:
    """What each says, or why it does not. `ask` is called in several threads."""
    from concurrent.futures import ThreadPoolExecutor

    def answer(node: int) -> T | FastqError:
        try:
            return ask(node)
        except FastqError as error:
            return error

    with ThreadPoolExecutor(max_workers=min(len(nodes), THREADS_MAX) or 1) as threads:
        return dict(zip(nodes, threads.map(answer, nodes), strict=True))


def answers_of(nodes: Mapping[int, Node], ask: Callable[[int], T]) -> dict[int, T]:
    """What those brokers say that answer; why the others do not is told, and so is an answer that is an error."""
    with warnings_held() as held:
        with Waiting("asking each broker"):
            answers = ask_each(sorted(nodes), ask)
        silent = [
            node
            for node, answer in answers.items()
            if isinstance(answer, BrokerNotAvailable)  # the others have given it up meanwhile
            or (isinstance(answer, FastqError) and not isinstance(answer, KafkaError))
        ]
        held.drop([nodes[node] for node in silent])
    for node, answer in answers.items():
        if node in silent and not held.was_told(nodes[node]):
            complain(f"node {node} does not answer")
        elif isinstance(answer, FastqError) and node not in silent:
            complain(f"node {node}: {answer}")
    return {node: answer for node, answer in answers.items() if not isinstance(answer, FastqError)}


def shown_of(admin: Admin, operation: Operation[Shown[T]]) -> Shown[T]:
    """What those brokers tell that answer within NODE_S; of the others it is told that what they have is not shown, and why."""
    with warnings_held() as held, Waiting("asking each broker"):
        told = admin._client.run(operation, NODE_S)
        nodes = admin._client.driver.core.metadata.nodes
        held.drop([nodes[node] for node in told.silent if node in nodes])
    for node, error in sorted(told.silent.items()):
        complain(f"node {node} does not tell what it has, and that is not shown: {error}")
    return told
