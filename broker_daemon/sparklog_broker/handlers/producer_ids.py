"""INIT_PRODUCER_ID: identities of producers, and fencing tokens. For a transactional id, the coordinator issues the
identity."""

from __future__ import annotations

from sparklog.protocol.apis import Api
from sparklog.protocol.cluster_messages import AlterSecurityRecordsRequest
from sparklog.protocol.transaction_messages import InitProducerIdRequest, InitProducerIdResponse
from sparklog.security.principals import ANONYMOUS
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def init_producer_id(request: InitProducerIdRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with a new producer id and epoch 0. For a transactional id or a fencing token, the coordinator answers.

    An authenticated principal gets an owned id even without an authorizer, so that an authorizer can be enabled on one
    broker after the other.
    """
    if request.transactional_id is not None:
        identity = await context.broker.transactions.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch
        )
        return Response(InitProducerIdResponse(*identity))
    if request.fencing_token:
        producer_id = await context.broker.transactions.draw_fencing_token()
    else:
        producer_id = await context.broker.storage.new_producer_id()
    if context.broker.access is not None or context.principal != ANONYMOUS:
        owned_ids = context.broker.owned_ids
        if (secret := owned_ids.new_secret()) is not None and context.ask_controller is not None:
            await context.ask_controller(Api.ALTER_SECURITY_RECORDS, AlterSecurityRecordsRequest([secret]), context)
        producer_id = owned_ids.issue(producer_id, context.principal)
    return Response(InitProducerIdResponse(producer_id, 0))
