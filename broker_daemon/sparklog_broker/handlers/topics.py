"""CREATE_TOPIC, DELETE_TOPIC, ALTER_TOPIC and CREATE_PARTITIONS."""

from __future__ import annotations

import pyarrow as pa

from sparklog.errors import InvalidReplicaAssignmentError, InvalidTopicError, TopicAlreadyExistsError
from sparklog.metadata.store import TopicSpec
from sparklog.protocol.topic_messages import (
    AlterTopicRequest,
    AlterTopicResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
)
from sparklog.types import INTERNAL_TOPICS
from sparklog_broker.coordinators.internal_topics import check_internal_configs, check_not_internal
from sparklog_broker.handlers.metadata import planned_topic, topic_answer, unknown_topic
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext

DEFAULT_PARTITIONS = -1
DEFAULT_REPLICAS = -1


async def create_topic(request: CreateTopicRequest, payload: memoryview, context: RequestContext) -> Response:
    broker = context.broker
    if request.name in INTERNAL_TOPICS and request.name in broker.topics.partitions.topics:
        raise TopicAlreadyExistsError(f"topic {request.name!r} already exists: the broker has created it for itself")
    check_not_internal(request.name, "created")
    if request.assignment is not None and request.partitions not in (DEFAULT_PARTITIONS, len(request.assignment)):
        raise InvalidReplicaAssignmentError(
            f"topic {request.name!r}: {request.partitions} partitions, but an assignment of "
            f"{len(request.assignment)}; leave the number out, or assign replicas to each partition"
        )
    if request.assignment is not None and any(
        request.replication_factor not in (DEFAULT_REPLICAS, len(replicas)) for replicas in request.assignment
    ):
        raise InvalidReplicaAssignmentError(
            f"topic {request.name!r}: replication factor {request.replication_factor}, but the assignment has "
            "another number of replicas; leave the factor out, or assign that many replicas to each partition"
        )
    spec = TopicSpec(
        name=request.name,
        partitions=_partition_count(request, broker.config.num_partitions),
        schema=None if request.arrow_schema is None else _read_schema(request.arrow_schema),
        key_columns=tuple(request.key_columns),
        timestamp_column=request.timestamp_column,
        configs=request.configs,
        replication_factor=request.replication_factor,
        assignment=request.assignment,
        owner=context.principal.name,
        request_id=request.request_id or context.request_id,
    )
    if request.validate_only:
        topic, partitions = broker.topics.check_creation(spec)
        return Response(CreateTopicResponse(planned_topic(broker, topic, partitions[:1])))
    topic = await broker.topics.create(spec)
    return await topic_answer(context, CreateTopicResponse(unknown_topic(topic.name)), topic.name)


def _partition_count(request: CreateTopicRequest, default: int) -> int:
    if request.assignment is not None:
        return len(request.assignment)
    return default if request.partitions == DEFAULT_PARTITIONS else request.partitions


async def delete_topic(request: DeleteTopicRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when the topic is deleted; its files are unlinked in the background."""
    check_not_internal(request.name, "deleted")
    topics, is_repeated = context.broker.topics, context.is_repeated
    topic_id = await topics.delete(request.name, request.topic_id, mirror=request.mirror, is_repeated=is_repeated)
    return Response(DeleteTopicResponse(topic_id))


async def alter_topic(request: AlterTopicRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when the settings are in effect."""
    check_internal_configs(request.name, request.configs)
    topics, validate_only = context.broker.topics, request.validate_only
    topic = await topics.alter(request.name, request.configs, validate_only=validate_only)
    return await topic_answer(context, AlterTopicResponse(unknown_topic(topic.name)), topic.name)


async def create_partitions(request: CreatePartitionsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when the new partitions can be written and read."""
    check_not_internal(request.name, "given more partitions")
    topics, is_repeated = context.broker.topics, context.is_repeated
    if request.validate_only:
        topic = topics.check_partitions(request.name, request.total, request.assignment)
    else:
        topic = await topics.add_partitions(request.name, request.total, request.assignment, is_repeated=is_repeated)
    return await topic_answer(context, CreatePartitionsResponse(unknown_topic(topic.name)), topic.name)


def _read_schema(data: bytes) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, EOFError, ValueError, TypeError) as e:
        raise InvalidTopicError(f"the topic's schema is not an Arrow IPC schema message: {e}") from e
