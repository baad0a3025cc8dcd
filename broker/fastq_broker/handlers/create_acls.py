"""CreateAcls: there is no authorizer that could enforce one, and so each is SECURITY_DISABLED."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import CreateAclsRequest, CreateAclsResponse
from fastq_broker.handlers.describe_acls import NO_AUTHORIZER

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 30
VERSIONS = (1, 3)


def handle(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Refuse each."""
    refused = CreateAclsResponse.AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return CreateAclsResponse(results=[refused] * len(request.creations))
