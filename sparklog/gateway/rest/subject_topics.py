"""The topics of subjects.

| new version of | effect |
|---|---|
| `TOPIC-value` | creates the topic, or gives it new and wider columns |
| `TOPIC-key` | becomes the key schema of the topic, which has none yet |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

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
from sparklog.format.key_format import (
    KEY_FORMAT_SETTING,
    KEY_SCHEMA_SETTING,
    SCHEMA_FORMATS,
    VALUE_FORMAT_SETTING,
    PinnedSchema,
)
from sparklog.format.schema_evolution import growth
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.backend.key_schemas import set_key_schema
from sparklog.gateway.backend.topics import Topics
from sparklog.kafka.schemas.errors import FORBIDDEN, INCOMPATIBLE, INVALID_SCHEMA, RegistryError
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.framed_keys import (
    check_key_schema,
    columns_of_keys,
    form_of_schema,
    pinned_schema,
    with_key_columns,
)
from sparklog.kafka.values.framed_records import (
    FRAMED_FORMATS,
    JSON_SCHEMA,
    check_columns,
    check_names,
    columns_of_schema,
)
from sparklog.kafka.values.schemas import KEY_SUFFIX, VALUE_SUFFIX, key_subject
from sparklog.protocol.apis import Api
from sparklog.protocol.base import ConfigValue
from sparklog.protocol.topic_messages import (
    AlterSchemaRequest,
    AlterSchemaResponse,
    CreateTopicRequest,
    CreateTopicResponse,
)

Newest = Callable[[str], Awaitable[tuple[int, Parsed] | None]]
"""Function that returns the newest schema of a subject with its id; None without one."""


class SubjectTopics:
    """Prepares topics for the new versions of their subjects. Event-loop thread only."""

    def __init__(self, topics: Topics, *, changes_topics: bool) -> None:
        """`changes_topics`: the setting `auto.create.typed.topics`."""
        self._topics = topics
        self._changes_topics = changes_topics

    async def prepare(self, broker: BrokerConnection, subject: str, schema: Parsed, newest: Newest) -> None:
        """Create the topic of a subject, or change its columns, for the records of a new version. `newest`: function
        that returns the newest schema of a subject. Repeatable. Raises RegistryError: The topic cannot have such
        records; and the broker's errors."""
        form = form_of_schema(schema)
        if subject.endswith(KEY_SUFFIX):
            topic = await self._look_up(broker, subject.removesuffix(KEY_SUFFIX))
            if isinstance(topic, TopicInfo):
                _check_key(topic, form, schema)
            return
        name = subject.removesuffix(VALUE_SUFFIX)
        if name == subject:
            return
        topic = await self._look_up(broker, name)
        if isinstance(topic, str):
            if form != JSON_SCHEMA and self._changes_topics:
                await self._create(broker, name, form, schema, await newest(key_subject(name)))
            return
        if topic is None:
            return
        if topic.is_envelope or topic.value_format not in FRAMED_FORMATS:
            return
        if topic.value_format != form:
            raise RegistryError(
                INCOMPATIBLE, f"topic {name} has {VALUE_FORMAT_SETTING}={topic.value_format}: register such a schema"
            )
        if form == JSON_SCHEMA:
            return
        try:
            await self._fit(broker, topic, schema, await newest(subject))
        except SchemaMismatchError as e:
            raise RegistryError(INCOMPATIBLE, f"records of the schema do not fit the topic {name}: {e}") from None

    async def set_key_schema(self, broker: BrokerConnection, subject: str, newest: Newest) -> None:
        """Give the topic of a key's subject the newest version as its key schema, if it has none. Raises RegistryError;
        and the broker's errors."""
        if not subject.endswith(KEY_SUFFIX):
            return
        topic = await self._look_up(broker, subject.removesuffix(KEY_SUFFIX))
        if not isinstance(topic, TopicInfo) or topic.key_schema or topic.key_format not in SCHEMA_FORMATS:
            return
        registered = await newest(subject)
        if registered is None:
            return
        try:
            await set_key_schema(broker, self._topics, topic, *registered)
        except TopicAuthorizationFailedError:
            raise RegistryError(FORBIDDEN, f"User is denied to write to the topic {topic.name}") from None
        except SchemaMismatchError as e:
            raise _unfit_key(topic, e) from None

    async def _look_up(self, broker: BrokerConnection, name: str) -> TopicInfo | str | None:
        """Return a topic; its name if it does not exist, None if no topic can have the name."""
        if not name:
            return None
        try:
            return await self._topics.look_up(broker, name)
        except (UnknownTopicOrPartitionError, TopicAuthorizationFailedError):
            return name
        except SparklogError as e:
            if e.retriable:
                raise
            return None

    async def _create(
        self, broker: BrokerConnection, name: str, form: str, schema: Parsed, key: tuple[int, Parsed] | None
    ) -> None:
        """Create a topic. `key`: newest schema of its keys; None: it gets no key columns."""
        configs: dict[str, ConfigValue] = {VALUE_FORMAT_SETTING: form}
        try:
            columns, key_names = columns_of_schema(schema), list[str]()
            if key is not None:
                columns, key_names = with_key_columns(columns, key[1])
                configs |= {KEY_FORMAT_SETTING: form_of_schema(key[1]), KEY_SCHEMA_SETTING: pinned_schema(*key).text}
        except SchemaMismatchError as e:
            raise RegistryError(INVALID_SCHEMA, f"topic {name} cannot be created with its columns: {e}") from None
        request = CreateTopicRequest(
            name, arrow_schema=columns.serialize().to_pybytes(), key_columns=key_names, configs=configs
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

    async def _fit(
        self, broker: BrokerConnection, topic: TopicInfo, schema: Parsed, former: tuple[int, Parsed] | None
    ) -> None:
        """Add and widen columns if the setting allows it. `former`: the version before the new one. Raises
        SchemaMismatchError; RegistryError."""
        columns = columns_of_schema(schema, topic.schema.names)
        if not self._changes_topics:
            return
        if former is not None:
            check_names(schema, former[1], topic.schema)
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


def _check_key(topic: TopicInfo, form: str, schema: Parsed) -> None:
    """Raise RegistryError if a topic cannot have keys of a new version of its subject."""
    if topic.key_format not in SCHEMA_FORMATS:
        return
    if topic.key_format != form:
        raise RegistryError(
            INCOMPATIBLE, f"topic {topic.name} has {KEY_FORMAT_SETTING}={topic.key_format}: register such a schema"
        )
    if topic.key_schema:
        raise RegistryError(
            INCOMPATIBLE,
            f"topic {topic.name} has the key schema {PinnedSchema.read(topic.key_schema).id} for life, because keys of "
            "another one would go to other partitions: create a new topic",
        )
    try:
        check_key_schema(schema, form, columns_of_keys(topic))
    except SchemaMismatchError as e:
        raise _unfit_key(topic, e) from None


def _unfit_key(topic: TopicInfo, error: SchemaMismatchError) -> RegistryError:
    return RegistryError(INCOMPATIBLE, f"keys of the schema do not fit the topic {topic.name}: {error}")


def _message(columns: pa.Schema | None) -> bytes | None:
    return None if columns is None else bytes(columns.serialize().to_pybytes())
