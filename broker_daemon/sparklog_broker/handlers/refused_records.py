"""STORE_REFUSED: records that a typed topic has refused, for the gateways."""

from __future__ import annotations

import logging

from sparklog.errors import InvalidRequestError, LeaderNotAvailableError, SparklogError, TopicAlreadyExistsError
from sparklog.format.key_format import REFUSED_SETTING
from sparklog.metadata.refused_topics import REFUSED_SCHEMA, refused_topic, refused_topic_settings
from sparklog.metadata.store import TIMESTAMP_TYPE_SETTING, Topic
from sparklog.protocol.apis import Api
from sparklog.protocol.refused_messages import StoreRefusedRequest, StoreRefusedResponse
from sparklog.protocol.topic_messages import CreateTopicRequest
from sparklog.security.acls import CLUSTER, Operation, Resource, ResourceType
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext

log = logging.getLogger(__name__)


async def store_refused(request: StoreRefusedRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when the rows are replicated. Raises InvalidRequestError for a client that is no gateway and no broker."""
    is_broker = context.may(Operation.CLUSTER_ACTION, CLUSTER.resource_type, CLUSTER.name)
    if not (context.is_gateway and not request.is_forwarded) and not is_broker:
        raise InvalidRequestError("only gateways and brokers store refused records: write to the topic itself")
    refused_topics = context.broker.refused_topics
    typed = refused_topics.typed_topic(request.topic)
    topic = refused_topics.find(request.topic)
    if topic is None:
        topic = await _create(context, typed)
    if request.batch:
        await refused_topics.append(topic, request)
    has_append_time = refused_topics.setting(topic, TIMESTAMP_TYPE_SETTING) == "LogAppendTime"
    return Response(StoreRefusedResponse(topic.schema_id, has_append_time))


async def _create(context: RequestContext, typed: Topic) -> Topic:
    """Create the refused topic of a typed topic. Raises the errors of CREATE_TOPIC."""
    name, code = refused_topic(typed.name), 0
    create = CreateTopicRequest(
        name,
        typed.partitions,
        REFUSED_SCHEMA.serialize().to_pybytes(),
        configs={**refused_topic_settings(typed.configs), TIMESTAMP_TYPE_SETTING: "CreateTime"},
    )
    assert context.ask_controller is not None
    try:
        await context.ask_controller(Api.CREATE_TOPIC, create, context)
        log.info("created topic %s for refused records of Kafka's clients (%s)", name, REFUSED_SETTING)
    except TopicAlreadyExistsError:
        pass  # another request has just created it
    except SparklogError as e:
        code = e.code
        raise
    finally:
        context.note_act(Api.CREATE_TOPIC, [str(Resource(ResourceType.TOPIC, name))], code, REFUSED_SETTING)
    topic = context.broker.refused_topics.find(typed.name)
    if topic is None:
        raise LeaderNotAvailableError(f"topic {name!r} is being created or deleted: try again")
    return topic
