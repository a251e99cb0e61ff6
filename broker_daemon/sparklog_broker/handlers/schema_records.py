"""SCHEMA_RECORDS: the log of the schema registry, for the gateways."""

from __future__ import annotations

from msgspec import structs

from sparklog.errors import InvalidRequestError
from sparklog.protocol.apis import Api
from sparklog.protocol.permissions import resources_of
from sparklog.protocol.schema_messages import SchemaRecordsRequest, SchemaRecordsResponse, SubjectTopic
from sparklog.security.acls import CLUSTER, Operation
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def schema_records(request: SchemaRecordsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Exchange records with the log, and state the permission on each topic. A request with a denied topic appends
    nothing. Raises InvalidRequestError for a client that is no gateway and no broker."""
    results = [SubjectTopic(context.denied[n].code if n in context.denied else 0) for n in request.topics]
    is_broker = context.may(Operation.CLUSTER_ACTION, CLUSTER.resource_type, CLUSTER.name)
    is_gateway = context.is_gateway and not request.is_forwarded
    if context.denied and (request.records or not is_gateway):
        return Response(SchemaRecordsResponse(request.from_offset, request.from_offset, [], results=results))
    if not is_broker and not is_gateway:
        raise InvalidRequestError(
            "only gateways and brokers use the log of the schema registry: use its REST interface"
        )
    answer = await context.broker.schema_log.exchange(request)
    if answer.is_appended and not request.is_forwarded:
        context.note_act(Api.SCHEMA_RECORDS, resources_of(Api.SCHEMA_RECORDS, request), 0)
    return Response(structs.replace(answer, results=results))
