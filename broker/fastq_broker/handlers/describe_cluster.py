"""DescribeCluster: the cluster's id, its controller and its brokers (KIP-700, KIP-919).

Rules: a broker's listener tells of brokers and names a broker as the controller, which forwards what is for the active one; a controller's
listener tells of the controllers that have registered, and of the active one. Source: AuthHelper.computeDescribeClusterResponse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.errors import ErrorCode
from fastq.protocol.messages import DescribeClusterRequest, DescribeClusterResponse
from fastq_broker.handlers import operations

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 60
VERSIONS = (0, 2)

BROKERS = 1
CONTROLLERS = 2


def handle(context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Answer who has the request's listener: controllers, or brokers that are live (in version 2 on request the fenced ones too)."""
    controller = context.controller
    of_controllers = context.listener in context.config.controller_listener_names
    told = CONTROLLERS if of_controllers else BROKERS
    if request.endpoint_type != told:
        known = request.endpoint_type in (BROKERS, CONTROLLERS)
        # The answer's own type is left out, as Kafka does: version 0 has none, and nobody who asks in it wants controllers.
        what = "controllers (2)" if of_controllers else "brokers (1)"
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"this listener tells of {what}, not of endpoints of type {request.endpoint_type}",
            cluster_id=controller.cluster_id,
            brokers=[],
        )
    response = DescribeClusterResponse(
        endpoint_type=told,
        cluster_id=controller.cluster_id,
        controller_id=controller.quorum.leader_id if of_controllers else controller.node_id,
        brokers=_controllers(context) if of_controllers else _brokers(context, request.include_fenced_brokers),
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = operations.CLUSTER
    return response


def _controllers(context: RequestContext) -> list[DescribeClusterResponse.DescribeClusterBroker]:
    return [
        DescribeClusterResponse.DescribeClusterBroker(broker_id=record.controller_id, host=place.host, port=place.port)
        for record in context.image.controllers()
        for place in record.end_points
        if place.name == context.listener
    ]


def _brokers(context: RequestContext, with_fenced: bool) -> list[DescribeClusterResponse.DescribeClusterBroker]:
    found = []
    for broker in context.image.brokers.values():
        endpoint = broker.endpoint(context.listener)
        if endpoint is None or (broker.fenced and not with_fenced):
            continue
        found.append(
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
        )
    return found
