"""AlterClientQuotas (KIP-546): quotas can be taken away and not set, because none is enforced; answered once that is on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.protocol.messages import AlterClientQuotasRequest, AlterClientQuotasResponse
from fastq_broker.controller.quotas import QuotaChange, QuotaOp

if TYPE_CHECKING:
    from fastq_broker.router import RequestContext

API_KEY = 49
VERSIONS = (0, 1)


async def handle(context: RequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    """One result an entity, in the order asked for."""
    controller = context.controller
    changes = [
        QuotaChange(
            tuple((item.entity_type, item.entity_name) for item in entry.entity),
            [QuotaOp(op.key, op.value, op.remove) for op in entry.ops],
        )
        for entry in request.entries
    ]
    results = controller.alter_quotas(changes, validate_only=request.validate_only)
    if not request.validate_only:
        results = await controller.durable(results)
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponse.EntryData(
                error_code=result.error,
                error_message=result.message,
                entity=[
                    AlterClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in dict(change.entity).items()
                ],
            )
            for change, result in zip(changes, results, strict=True)
        ]
    )
