"""DescribeCluster: the cluster's id, its controller and its brokers (KIP-700, KIP-919)."""

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
    """Answer the brokers that are live (or, in version 2 on request, the fenced ones too) on the request's listener."""
    controller = context.controller
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"this listener tells of brokers (1), not of endpoints of type {request.endpoint_type}",
            endpoint_type=BROKERS,
            cluster_id=controller.cluster_id,
            brokers=[],
        )
    response = DescribeClusterResponse(
        cluster_id=controller.cluster_id,
        controller_id=controller.node_id,
        brokers=_brokers(context, request.include_fenced_brokers),
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = operations.CLUSTER
    return response


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
