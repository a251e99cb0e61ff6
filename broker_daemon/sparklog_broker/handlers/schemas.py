"""ALTER_SCHEMA: adds a schema to a typed topic. Earlier schemas stay, for stored batches and older producers."""

from __future__ import annotations

import pyarrow as pa

from sparklog.errors import InvalidRequestError, InvalidTopicError
from sparklog.format.schema_evolution import SchemaChange
from sparklog.protocol.topic_messages import AlterSchemaRequest, AlterSchemaResponse
from sparklog_broker.handlers.metadata import topic_answer, unknown_topic
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def alter_schema(request: AlterSchemaRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when batches with the new schema can be appended."""
    parts = request.add_columns is not None or request.widen_columns is not None
    if parts == (request.arrow_schema is not None):
        raise InvalidRequestError("ALTER_SCHEMA takes either columns to add or to widen, or a whole schema")
    change = SchemaChange(
        add=_read_schema(request.add_columns),
        widen=_read_schema(request.widen_columns),
        whole=_read_schema(request.arrow_schema),
    )
    topic = await context.broker.topics.alter_schema(request.name, change, validate_only=request.validate_only)
    return await topic_answer(context, AlterSchemaResponse(unknown_topic(topic.name)), topic.name)


def _read_schema(data: bytes | None) -> pa.Schema | None:
    if data is None:
        return None
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, EOFError, ValueError, TypeError) as e:
        raise InvalidTopicError(f"the schema is not an Arrow IPC schema message: {e}") from e
