"""SCRAM credentials as the metadata has them (KIP-554): no listener asks for one, so none can be set; those of a foreign directory can go.

Rules: checks and their words are ScramControlManager's, which takes one change of a user in a request, whatever its mechanism; a user with
one mistake keeps all credentials. No secret is ever told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from fastq.errors import ErrorCode
from fastq.protocol.messages import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from fastq.values import NamedTuple

from .image import MetadataImage, Record
from .topics import Refused, Result

MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16_384


class ScramDeletion(NamedTuple):
    """A credential that is to go."""

    user: str
    mechanism: int


class ScramUpsertion(NamedTuple):
    """A credential that is to be set, without its secrets."""

    user: str
    mechanism: int
    iterations: int


def credentials_of(image: MetadataImage) -> dict[str, dict[int, int]]:
    """The iterations of all credentials, by user and mechanism."""
    found: dict[str, dict[int, int]] = {}
    for record in image.kept.values():
        if isinstance(record, UserScramCredentialRecord):
            found.setdefault(record.name, {})[record.mechanism] = record.iterations
    return found


def plan_scram(
    image: MetadataImage, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
) -> tuple[dict[str, Result], list[Record]]:
    """A result a user, in the order they are first named, and the records that take credentials away."""
    known = credentials_of(image)
    asked: list[ScramDeletion | ScramUpsertion] = [*deletions, *upsertions]
    named = Counter(item.user for item in asked)
    results: dict[str, Result] = {item.user: Result() for item in asked}
    for item in asked:
        try:
            _check(item, named[item.user], known)
        except Refused as refused:
            results[item.user] = results[item.user].refused(refused)
    records: list[Record] = [
        RemoveUserScramCredentialRecord(name=item.user, mechanism=item.mechanism)
        for item in deletions
        if not results[item.user].error
    ]
    return results, records


def _check(item: ScramDeletion | ScramUpsertion, times: int, known: dict[str, dict[int, int]]) -> None:
    """Raises Refused for what Kafka refuses, and for a credential that would be set."""
    if not item.user:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if item.mechanism not in MECHANISMS:
        raise Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(item, ScramDeletion):
        if item.mechanism not in known.get(item.user, {}):
            raise Refused(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    elif item.iterations < ITERATIONS_MIN:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    elif item.iterations > ITERATIONS_MAX:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if times > 1:
        raise Refused(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
    if isinstance(item, ScramUpsertion):
        raise Refused(
            ErrorCode.UNSUPPORTED_VERSION,
            "this version has no listeners with SASL, so it sets no credentials: they would keep nobody out",
        )
