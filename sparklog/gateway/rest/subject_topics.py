"""The topics of subjects.

| new version of | effect |
|---|---|
| `TOPIC-value` | creates the topic, or gives it new and wider columns |
| `TOPIC-key` | becomes the key schema of the topic, which has none yet |

A check of a version takes the same way; the requests to the broker then only validate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import (
    InvalidConfigError,
    InvalidTopicError,
    SchemaMismatchError,
    SparklogError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.ddl import ddl_of
from sparklog.format.key_format import (
    KEY_FORMAT_SETTING,
    KEY_SCHEMA_SETTING,
    SCHEMA_FORMATS,
    VALUE_FORMAT_SETTING,
    PinnedSchema,
)
from sparklog.format.schema_evolution import SchemaChange, growth
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.backend.key_schemas import set_key_schema
from sparklog.gateway.backend.topics import Topics
from sparklog.gateway.rest.registered import RegisteredSchemas, RegisteredVersion
from sparklog.gateway.schemas.operations import NUMBER_MAX
from sparklog.kafka.schemas.errors import (
    FORBIDDEN,
    INCOMPATIBLE,
    INVALID_SCHEMA,
    OPERATION_NOT_PERMITTED,
    RegistryError,
)
from sparklog.kafka.schemas.json_schema import JsonSchema
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.carrying import check_carries
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


class NewVersion(NamedTuple):
    """A schema that becomes a version of a subject."""

    subject: str
    number: int
    schema: Parsed
    is_registered: bool = False
    """True for the newest version that is registered again: it creates a missing topic, and changes no other."""


class SubjectTopics:
    """Prepares topics for the new versions of their subjects. Event-loop thread only."""

    def __init__(self, topics: Topics, *, changes_topics: bool) -> None:
        """`changes_topics`: the setting `auto.create.typed.topics`."""
        self._topics = topics
        self._changes_topics = changes_topics

    async def prepare(
        self, broker: BrokerConnection, new: NewVersion, registered: RegisteredSchemas, *, validates_only: bool
    ) -> list[str]:
        """Create the topic of a subject, or change its columns, for the records of a new version, and return the
        effects in words. Repeatable. `validates_only`: True changes nothing, and does not tell if the user has the
        permission. Raises RegistryError: The topic cannot have such records; and the broker's errors."""
        subject, schema = new.subject, new.schema
        form = form_of_schema(schema)
        if subject.endswith(KEY_SUFFIX):
            topic = await self._look_up(broker, subject.removesuffix(KEY_SUFFIX))
            return _check_key(topic, form, schema) if isinstance(topic, TopicInfo) and not new.is_registered else []
        name = subject.removesuffix(VALUE_SUFFIX)
        if name == subject:
            return []
        topic = await self._look_up(broker, name)
        if isinstance(topic, str):
            if form == JSON_SCHEMA or not self._changes_topics:
                return []
            key = await registered.newest(key_subject(name))
            return await self._create(broker, name, form, schema, key, validates_only=validates_only)
        if not _has_schemas(topic) or new.is_registered:
            return []
        if topic.value_format != form:
            raise RegistryError(
                INCOMPATIBLE, f"topic {name} has {VALUE_FORMAT_SETTING}={topic.value_format}: register such a schema"
            )
        read = registered.versions(subject)
        try:
            change = await registered.run(lambda: self._change(topic, new, read()))
            return await self._alter(broker, topic, change, validates_only=validates_only)
        except SchemaMismatchError as e:
            raise RegistryError(INCOMPATIBLE, f"records of the schema do not fit the topic {name}: {e}") from None

    async def check_deletion(
        self, broker: BrokerConnection, subject: str, number: int, registered: RegisteredSchemas
    ) -> None:
        """Raise RegistryError if the newest version of a subject cannot be deleted, because the one before it has no
        form for rows that consumers would then get in it. Raises the broker's errors."""
        read = registered.versions(subject)
        name = subject.removesuffix(VALUE_SUFFIX)
        topic = None if name == subject else await self._look_up(broker, name)
        if not _has_schemas(topic):
            return

        def check() -> None:
            every = read()
            active = [one for one in every if not one.is_deleted]
            if len(active) > 1 and number == active[-1].number:
                newest = active[-2]
                check_carries(newest.schema, [(o.name, o.schema) for o in every if o is not newest], topic.schema)

        try:
            await registered.run(check)
        except SchemaMismatchError as e:
            raise RegistryError(
                OPERATION_NOT_PERMITTED,
                f"version {number} cannot be deleted: consumers of topic {name} would get its rows in the version before "
                f"it, and {e}; delete the subject, or register a version that has a form for them",
            ) from None

    async def set_key_schema(self, broker: BrokerConnection, subject: str, registered: RegisteredSchemas) -> None:
        """Give the topic of a key's subject the newest version as its key schema, if it has none. Raises RegistryError;
        and the broker's errors."""
        if not subject.endswith(KEY_SUFFIX):
            return
        topic = await self._look_up(broker, subject.removesuffix(KEY_SUFFIX))
        if not isinstance(topic, TopicInfo) or topic.key_schema or topic.key_format not in SCHEMA_FORMATS:
            return
        newest = await registered.newest(subject)
        if newest is None:
            return
        try:
            await set_key_schema(broker, self._topics, topic, *newest)
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
        self,
        broker: BrokerConnection,
        name: str,
        form: str,
        schema: Parsed,
        key: tuple[int, Parsed] | None,
        *,
        validates_only: bool,
    ) -> list[str]:
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
            name,
            arrow_schema=columns.serialize().to_pybytes(),
            key_columns=key_names,
            configs=configs,
            validate_only=validates_only,
        )
        try:
            await broker.ask(Api.CREATE_TOPIC, request, CreateTopicResponse)
        except TopicAlreadyExistsError:
            raise RegistryError(
                INCOMPATIBLE, f"topic {name} was created meanwhile: register the schema again"
            ) from None
        except TopicAuthorizationFailedError:
            if not validates_only:
                raise RegistryError(FORBIDDEN, f"User is denied to create the topic {name}") from None
        except (InvalidTopicError, InvalidConfigError) as e:
            raise RegistryError(INVALID_SCHEMA, f"topic {name} cannot be created: {e}") from None
        keys = f", with the key {', '.join(key_names)}" if key_names else ""
        return [f"topic {name} is created: {ddl_of(columns)}{keys}"]

    def _change(self, topic: TopicInfo, new: NewVersion, versions: Sequence[RegisteredVersion]) -> SchemaChange:
        """Return the change of a topic's columns for a new version. `versions`: those of the subject. Raises
        SchemaMismatchError."""
        schema, change, after = new.schema, SchemaChange(), topic.schema
        if not isinstance(schema, JsonSchema):
            columns = columns_of_schema(schema, topic.schema.names)
            if self._changes_topics:
                change = growth(topic.schema, columns)
                try:
                    after = change.applied_to(topic.schema, topic.key_columns, topic.timestamp_column)
                except InvalidTopicError as e:
                    raise SchemaMismatchError(str(e)) from None
                check_columns(schema, after)
        own = RegisteredVersion(new.number, schema)
        every = [*(one for one in versions if one.number != new.number), own]
        newest = max((one for one in every if not one.is_deleted), key=lambda one: one.number)
        others = [(one.name, one.schema) for one in every if one is not newest]
        check_carries(newest.schema, others, after, topic.schema.names)
        return change

    async def _alter(
        self, broker: BrokerConnection, topic: TopicInfo, change: SchemaChange, *, validates_only: bool
    ) -> list[str]:
        """Add and widen columns. Raises SchemaMismatchError; RegistryError."""
        if change.add is None and change.widen is None:
            return []
        request = AlterSchemaRequest(
            topic.name, _message(change.add), _message(change.widen), validate_only=validates_only
        )
        try:
            await broker.ask(Api.ALTER_SCHEMA, request, AlterSchemaResponse)
        except TopicAuthorizationFailedError:
            if not validates_only:
                raise RegistryError(FORBIDDEN, f"User is denied to alter the columns of topic {topic.name}") from None
        except (InvalidTopicError, InvalidConfigError) as e:  # such as columns that a Delta table cannot have
            raise SchemaMismatchError(str(e)) from None
        if not validates_only:
            self._topics.doubt(topic.name)
        parts = ((change.add, "gets the column"), (change.widen, "has a wider column"))
        return [
            f"topic {topic.name} {effect} {ddl_of(pa.schema([field]))}"
            for columns, effect in parts
            for field in columns or ()
        ]


def _has_schemas(topic: TopicInfo | str | None) -> TypeGuard[TopicInfo]:
    """Return True for a topic whose values have schemas."""
    return isinstance(topic, TopicInfo) and not topic.is_envelope and topic.value_format in FRAMED_FORMATS


def _check_key(topic: TopicInfo, form: str, schema: Parsed) -> list[str]:
    """Return the effect of a new version of a topic's keys. Raises RegistryError if it cannot have such keys."""
    if topic.key_format not in SCHEMA_FORMATS:
        return []
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
        pinned_schema(NUMBER_MAX, schema)
    except SchemaMismatchError as e:
        raise _unfit_key(topic, e) from None
    return [f"topic {topic.name} gets its key schema, for life"]


def _unfit_key(topic: TopicInfo, error: SchemaMismatchError) -> RegistryError:
    return RegistryError(INCOMPATIBLE, f"keys of the schema do not fit the topic {topic.name}: {error}")


def _message(columns: pa.Schema | None) -> bytes | None:
    return None if columns is None else bytes(columns.serialize().to_pybytes())
