"""FindCoordinator: asking for the coordinators of groups and transactional ids, and reading the answer, for all who do. Sans-I/O.

Rules: several ids at once from version 4 on (KIP-699), one before; version 0 knows groups only. Who asks decides what becomes of an error;
one that an answer leaves out is a ProtocolError to all, as other malformed answers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastq.errors import ProtocolError
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


def coordinator_answers(
    key_type: int, response: FindCoordinatorResponse, ids: Sequence[str]
) -> dict[str, Answer | ProtocolError]:
    """The answer by id, the first one's alone where the version answers one; or that it leaves the id out."""
    found = {answer.key: answer for answer in response.coordinators}
    if not found:
        ids = ids[:1]
        if response.error_code or response.host:
            return dict.fromkeys(ids, response)
    return {id_: found.get(id_) or _left_out(key_type, id_) for id_ in ids}


def _left_out(key_type: int, id_: str) -> ProtocolError:
    what, name = ("group", "group") if key_type == GROUP else ("transactional id", "transactional_id")
    return ProtocolError(f"a FindCoordinator response leaves the {what} out", api="FindCoordinator", **{name: id_})
