"""DescribeUserScramCredentials (KIP-554): mechanisms and iterations of the credentials that the metadata has. No listener asks for them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse
from fastq_broker.controller.scram import credentials_of

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 50
VERSIONS = (0, 0)

Result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


def handle(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """One result a user, in the order asked for; null or nobody asks for all that have credentials."""
    known = credentials_of(context.image)
    named = Counter([user.name for user in request.users or ()] or list(known))
    return DescribeUserScramCredentialsResponse(
        error_message=None, results=[_result(user, times, known.get(user, {})) for user, times in named.items()]
    )


def _result(user: str, times: int, credentials: dict[int, int]) -> Result:
    if times > 1:
        return Result(
            user=user,
            error_code=ErrorCode.DUPLICATE_RESOURCE,
            error_message=f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
            credential_infos=[],
        )
    if not credentials:
        return Result(
            user=user,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message=f"Attempt to describe a user credential that does not exist: {user}",
            credential_infos=[],
        )
    return Result(
        user=user,
        error_message=None,
        credential_infos=[
            DescribeUserScramCredentialsResponse.CredentialInfo(mechanism=mechanism, iterations=iterations)
            for mechanism, iterations in sorted(credentials.items())
        ],
    )
