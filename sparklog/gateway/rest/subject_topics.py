"""The topics of subjects: a new version of `TOPIC-value` creates the topic, or gives it new and wider columns."""

from __future__ import annotations

import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import (
    InvalidTopicError,
    SchemaMismatchError,
    SparklogError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.key_format import VALUE_FORMAT_SETTING
from sparklog.format.schema_evolution import growth
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.backend.topics import Topics
from sparklog.kafka.schemas.avro import AvroSchema
from sparklog.kafka.schemas.errors import FORBIDDEN, INCOMPATIBLE, INVALID_SCHEMA, RegistryError
from sparklog.kafka.schemas.protobuf import ProtobufSchema
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.framed_records import (
    AVRO,
    FRAMED_FORMATS,
    JSON_SCHEMA,
    PROTOBUF,
    check_columns,
    columns_of_schema,
)
from sparklog.kafka.values.schemas import VALUE_SUFFIX
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import (
    AlterSchemaRequest,
    AlterSchemaResponse,
    CreateTopicRequest,
    CreateTopicResponse,
)


class SubjectTopics:
    """Prepares topics for the new versions of their subjects. Event-loop thread only."""

    def __init__(self, topics: Topics, *, changes_topics: bool) -> None:
        """`changes_topics`: the setting `auto.create.typed.topics`."""
        self._topics = topics
        self._changes_topics = changes_topics

    async def prepare(self, broker: BrokerConnection, subject: str, schema: Parsed) -> None:
        """Create the topic of a subject, or change its columns, for the records of a new version. Repeatable. Raises
        RegistryError: The topic cannot have such records; and the broker's errors."""
        name = subject.removesuffix(VALUE_SUFFIX)
        if not name or name == subject:
            return
        form = _form_of(schema)
        try:
            topic = await self._topics.look_up(broker, name)
        except (UnknownTopicOrPartitionError, TopicAuthorizationFailedError):
            if form != JSON_SCHEMA and self._changes_topics:
                await self._create(broker, name, form, schema)
            return
        except SparklogError as e:
            if e.retriable:
                raise
            return  # no topic can have this name
        if topic.is_envelope or topic.value_format not in FRAMED_FORMATS:
            return
        if topic.value_format != form:
            raise RegistryError(
                INCOMPATIBLE, f"topic {name} has {VALUE_FORMAT_SETTING}={topic.value_format}: register such a schema"
            )
        if form == JSON_SCHEMA:
            return
        try:
            await self._fit(broker, topic, schema)
        except SchemaMismatchError as e:
            raise RegistryError(INCOMPATIBLE, f"records of the schema do not fit the topic {name}: {e}") from None

    async def _create(self, broker: BrokerConnection, name: str, form: str, schema: Parsed) -> None:
        try:
            columns = columns_of_schema(schema)
        except SchemaMismatchError as e:
            raise RegistryError(INVALID_SCHEMA, f"topic {name} cannot be created with its columns: {e}") from None
        request = CreateTopicRequest(
            name, arrow_schema=columns.serialize().to_pybytes(), configs={VALUE_FORMAT_SETTING: form}
        )
        try:
            await broker.ask(Api.CREATE_TOPIC, request, CreateTopicResponse)
        except TopicAlreadyExistsError:
            raise RegistryError(
                INCOMPATIBLE, f"topic {name} was created meanwhile: register the schema again"
            ) from None
        except TopicAuthorizationFailedError:
            raise RegistryError(FORBIDDEN, f"User is denied to create the topic {name}") from None
        except InvalidTopicError as e:
            raise RegistryError(INVALID_SCHEMA, f"topic {name} cannot be created: {e}") from None

    async def _fit(self, broker: BrokerConnection, topic: TopicInfo, schema: Parsed) -> None:
        """Add and widen columns if the setting allows it. Raises SchemaMismatchError; RegistryError."""
        columns = columns_of_schema(schema)
        if not self._changes_topics:
            return
        change = growth(topic.schema, columns)
        try:
            after = change.applied_to(topic.schema, topic.key_columns, topic.timestamp_column)
        except InvalidTopicError as e:
            raise SchemaMismatchError(str(e)) from None
        check_columns(schema, after)
        if after is topic.schema:
            return
        request = AlterSchemaRequest(topic.name, _message(change.add), _message(change.widen))
        try:
            await broker.ask(Api.ALTER_SCHEMA, request, AlterSchemaResponse)
        except TopicAuthorizationFailedError:
            raise RegistryError(FORBIDDEN, f"User is denied to alter the columns of topic {topic.name}") from None
        except InvalidTopicError as e:
            raise SchemaMismatchError(str(e)) from None
        self._topics.doubt(topic.name)


def _form_of(schema: Parsed) -> str:
    """Return the format of a schema's records."""
    if isinstance(schema, AvroSchema):
        return AVRO
    return PROTOBUF if isinstance(schema, ProtobufSchema) else JSON_SCHEMA


def _message(columns: pa.Schema | None) -> bytes | None:
    return None if columns is None else bytes(columns.serialize().to_pybytes())
