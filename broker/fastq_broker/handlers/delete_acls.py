"""DeleteAcls: there is no authorizer, and so each filter is SECURITY_DISABLED."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import DeleteAclsRequest, DeleteAclsResponse
from fastq_broker.handlers.describe_acls import NO_AUTHORIZER

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 31
VERSIONS = (1, 3)


def handle(context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Refuse each."""
    refused = DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER, matching_acls=[]
    )
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
