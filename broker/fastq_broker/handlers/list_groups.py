"""ListGroups: the groups that this broker coordinates, of all kinds or some (KIP-518: states, KIP-848: types).

Rules: filters compare without regard to case. While a partition is loading the list would be short, so that is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 16
VERSIONS = (0, 5)


def handle(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """List what passes the filters."""
    if context.groups.loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, groups=[])
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    return ListGroupsResponse(
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.listed_protocol_type,
                group_state=group.state_name,
                group_type=group.kind,
            )
            for group in context.groups.groups()
            if (not states or group.state_name.lower() in states) and (not types or group.kind in types)
        ]
    )
