"""CREATE_TOPIC, DELETE_TOPIC and ALTER_TOPIC."""

from __future__ import annotations

import pyarrow as pa

from sparklog.errors import InvalidTopicError
from sparklog.metadata.store import TopicSpec
from sparklog.protocol.topic_messages import (
    AlterTopicRequest,
    AlterTopicResponse,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
)
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.handlers.metadata import topic_state
from sparklog_broker.internal_topics import check_internal_configs, check_not_internal
from sparklog_broker.reply import Response

DEFAULT_PARTITIONS = -1


async def create_topic(request: CreateTopicRequest, payload: memoryview, context: RequestContext) -> Response:
    broker = context.broker
    check_not_internal(request.name, "created")
    topic = await broker.create_topic(
        TopicSpec(
            name=request.name,
            partitions=broker.config.num_partitions if request.partitions == DEFAULT_PARTITIONS else request.partitions,
            schema=None if request.arrow_schema is None else _read_schema(request.arrow_schema),
            key_columns=tuple(request.key_columns),
            timestamp_column=request.timestamp_column,
            configs=request.configs,
        )
    )
    return Response(CreateTopicResponse(topic_state(broker, topic.name)))


async def delete_topic(request: DeleteTopicRequest, payload: memoryview, context: RequestContext) -> Response:
    """The topic is gone when this is answered; its files are unlinked in the background."""
    check_not_internal(request.name, "deleted")
    topic = await context.broker.delete_topic(request.name)
    return Response(DeleteTopicResponse(topic.topic_id))


async def alter_topic(request: AlterTopicRequest, payload: memoryview, context: RequestContext) -> Response:
    """The settings are in effect when this is answered."""
    check_internal_configs(request.name, request.configs)
    topic = await context.broker.alter_topic(request.name, request.configs)
    return Response(AlterTopicResponse(topic_state(context.broker, topic.name)))


def _read_schema(data: bytes) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, EOFError, ValueError, TypeError) as e:
        raise InvalidTopicError(f"the topic's schema is not an Arrow IPC schema message: {e}") from e
