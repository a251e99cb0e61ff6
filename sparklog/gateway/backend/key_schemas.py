"""The key schema of a topic (`kafka.key.schema`): set once, to the newest schema of the subject `TOPIC-key`."""

from __future__ import annotations

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import InvalidConfigError
from sparklog.format.key_format import KEY_SCHEMA_SETTING
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.backend.topics import Topics
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.framed_keys import check_key_schema, columns_of_keys, pinned_schema
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import AlterTopicRequest, AlterTopicResponse


async def set_key_schema(
    broker: BrokerConnection, topics: Topics, topic: TopicInfo, schema_id: int, schema: Parsed
) -> TopicInfo:
    """Give a topic its key schema, and return the topic. If another gateway has been faster, its schema stays. Raises
    SchemaMismatchError if the schema does not fit the topic; and the broker's errors."""
    check_key_schema(schema, topic.key_format, columns_of_keys(topic))
    request = AlterTopicRequest(topic.name, {KEY_SCHEMA_SETTING: pinned_schema(schema_id, schema).text})
    try:
        await broker.ask(Api.ALTER_TOPIC, request, AlterTopicResponse)
    except InvalidConfigError:
        topic = await topics.look_up(broker, topic.name, to_write=True)
        if topic.key_schema:
            return topic
        raise
    return await topics.look_up(broker, topic.name, to_write=True)
