"""DescribeAcls: there is no authorizer, and so SECURITY_DISABLED, as Apache Kafka answers without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastq.errors import ErrorCode
from fastq.protocol.messages import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 29
VERSIONS = (1, 3)

NO_AUTHORIZER: Final = "No Authorizer is configured on the broker: everything is allowed to everybody who can connect."


def handle(context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Refuse, whatever is asked for."""
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER, resources=[])
