"""The typed topics of a mirror as the targets of records: the present columns, and the topic of refused records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from sparklog.client.admin.mirror_plan import is_refused_topic
from sparklog.client.net.registry_reader import registry_schemas
from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import InvalidConfigError
from sparklog.format.ddl import parse_ddl
from sparklog.format.key_format import with_key_format
from sparklog.format.schema import KIND_TYPED, canonical_schema
from sparklog.kafka.values.schemas import Schemas
from sparklog.metadata.refused_topics import REFUSED_SCHEMA, refused_topic
from sparklog.mirror.definition import MirrorDefinition, MirroredTopic, mirrored_topic
from sparklog.mirror.plan import PlannedTopic
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


def planned_target(definition: MirrorDefinition, planned: PlannedTopic) -> TypedTarget:
    """Return the target of a typed topic that does not exist yet, to try records. Raises InvalidConfigError and the
    registry's errors."""
    schema = planned.schemas[0]
    columns = canonical_schema(parse_ddl(schema) if isinstance(schema, str) else schema)
    configs = with_key_format(planned.name, columns, planned.key_columns, planned.configs)
    info = _planned_info(planned.name, columns, planned.key_columns, configs)
    refused = _planned_info(refused_topic(planned.name), REFUSED_SCHEMA, (), planned.refused or {})
    topic = mirrored_topic(planned.name, planned.configs)
    assert topic is not None  # the plan has the mirror's settings
    return typed_target(topic, info, refused, registry_schemas(definition.registry) if definition.registry else None)


def _planned_info(
    name: str, columns: pa.Schema, key_columns: Sequence[str], configs: Mapping[str, object]
) -> TopicInfo:
    return TopicInfo(name, "", KIND_TYPED, 0, 0, {0: columns}, tuple(key_columns), None, dict(configs), 0, ())
