"""The typed topics of a mirror, as their workers see them: the present columns, and the topic of refused records."""

from __future__ import annotations

from sparklog.client.admin.mirror_plan import is_refused_topic
from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import InvalidConfigError
from sparklog.kafka.values.schemas import Schemas
from sparklog.metadata.refused_topics import REFUSED_SCHEMA
from sparklog.mirror.definition import MirroredTopic
from sparklog.mirror.readers import header_reader, key_reader, value_reader
from sparklog.mirror.typed import RefusedTarget, TypedTarget


def typed_target(topic: MirroredTopic, info: TopicInfo, refused: TopicInfo, schemas: Schemas | None) -> TypedTarget:
    """Return the target with the present columns of the topic. `refused`: the topic of its refused records. `schemas`:
    those of the mirror's registry; None: it has none. Raises InvalidConfigError if the mirror cannot fill one of the
    topics."""
    definition = topic.definition
    read = value_reader(
        definition.value_format,
        schemas,
        info.inflated_bytes_max,
        follows_registry=definition.follows_registry(topic.topic),
    )
    if not is_refused_topic(refused, definition.name, topic.topic) or refused.schema != REFUSED_SCHEMA:
        raise InvalidConfigError(
            f"topic {refused.name!r} is needed for the refused records of {topic.topic!r}, but mirror "
            f"{definition.name!r} has not created it, or it has been promoted or altered: delete it, or promote "
            f"{topic.topic!r}"
        )
    return TypedTarget(
        name=topic.topic,
        schema=info.schema,
        schema_id=info.schema_id,
        key_columns=info.key_columns,
        key_format=info.key_format,
        key_schema=info.key_schema,
        is_compacted=info.is_compacted,
        timestamp_column=info.timestamp_column,
        read=read,
        parse_keys=key_reader(info, schemas, info.inflated_bytes_max),
        read_headers=header_reader(definition.value_format, schemas),
        drops_headers=definition.drops_headers,
        batch_bytes_max=info.max_message_bytes,
        inflated_bytes_max=info.inflated_bytes_max,
        refused=RefusedTarget(refused.schema_id, refused.max_message_bytes, refused.inflated_bytes_max),
        refused_max=topic.refused_max,
    )
