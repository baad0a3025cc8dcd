"""UnregisterBroker: a broker that is gone for good is taken out of the metadata (KIP-500); answered once that is committed.

Rules: its replicas are in no ISR any more, and stay where they are: they are moved by a reassignment. One that lives is told that it is not
registered, and stays out until it is started again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import UnregisterBrokerRequest, UnregisterBrokerResponse
from fastq_broker.controller.brokers import plan_unregistration

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 64
VERSIONS = (0, 0)


async def handle(context: RequestContext, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    """Answer BROKER_ID_NOT_REGISTERED for one that is not known."""
    controller = context.controller
    result, records = plan_unregistration(controller.view, request.broker_id)
    controller.commit(records, whole=False)
    await controller.flushed()
    return UnregisterBrokerResponse(error_code=result.error, error_message=result.message)
