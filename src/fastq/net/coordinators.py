"""FindCoordinator: asking for the coordinators of groups and transactional ids, and reading the answer, for all who do. Sans-I/O.

Rules: several ids at once from version 4 on (KIP-699), one before; version 0 knows groups only. Who asks decides what becomes of an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastq.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION = 0, 1  # key types
FIND_COORDINATOR_API = 10
SEVERAL_FROM = 4
# One answer: an error code with perhaps a message, or a node.
Answer = FindCoordinatorResponse | FindCoordinatorResponse.Coordinator


def coordinator_request(key_type: int, ids: Sequence[str]) -> Callable[[int], FindCoordinatorRequest]:
    """What asks for the coordinators of ids, of the first one where the version takes one alone."""

    def build(version: int) -> FindCoordinatorRequest:
        if version < SEVERAL_FROM:
            return FindCoordinatorRequest(key=ids[0], key_type=key_type)
        return FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(ids))

    return build


def coordinator_answers(response: FindCoordinatorResponse, ids: Sequence[str]) -> dict[str, Answer]:
    """The answer by id; the first one's alone where the version answers one. A malformed answer may leave ids out."""
    if response.coordinators:
        return {answer.key: answer for answer in response.coordinators}
    if not ids or not (response.error_code or response.host):
        return {}
    return {ids[0]: response}
