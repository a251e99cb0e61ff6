"""Topics: their types, and the rules of their changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from sparklog.environment import Environment
from sparklog.errors import InvalidConfigError, InvalidPartitionsError, InvalidTopicError
from sparklog.format.key_format import check_same_key_format, check_value_format, with_key_format
from sparklog.format.schema import ENVELOPE_SCHEMA, KIND_ENVELOPE, KIND_TYPED, canonical_schema, require_columns
from sparklog.format.schema_evolution import SchemaChange, check_versions
from sparklog.log.model.retention_policy import POLICY_COMPACT
from sparklog.log.model.tiering_policy import check_tiering
from sparklog.metadata.lake_settings import check_lake_settings, check_new_columns
from sparklog.metadata.mirror_settings import check_mirror_settings, check_mirrored_kind
from sparklog.metadata.refused_topics import check_refused_records
from sparklog.settings import Scope, Value, check, check_names, settings_of
from sparklog.types import check_topic_name

PARTITIONS_MAX = 10_000
TIMESTAMP_TYPE_SETTING = "message.timestamp.type"
ENVELOPE_SCHEMA_ID = 1
"""Id of the schema of all envelope topics. Other schema ids are issued once in a cluster. If a typed topic was deleted
and created again, a batch for the deleted topic has an unknown schema id, so it is refused instead of misread.
"""


class TopicSpec(Struct, frozen=True):
    """A request to create a topic."""

    name: str
    partitions: int = 1
    schema: pa.Schema | None = None
    """The columns of a typed topic; None for an envelope topic, which takes no key columns and no timestamp column."""
    key_columns: Sequence[str] = ()
    timestamp_column: str | None = None
    configs: Mapping[str, object] = field(default_factory=dict)
    """Settings of the topic, under Kafka's names."""
    replication_factor: int = -1
    """Number of replicas of each partition; -1 for the cluster's default."""
    assignment: Sequence[Sequence[int]] | None = None
    """Broker ids of each partition's replicas; None if the controller places the replicas."""
    owner: str = ""
    """The user that creates the topic; "" for none."""
    request_id: str = ""
    """Id of the request, the same in a repetition of the request; "" for none."""


class Topic(Struct, frozen=True):
    """A topic as the store has it."""

    name: str
    topic_id: str
    kind: str
    partitions: int
    schemas: Mapping[int, pa.Schema]
    """All schemas by schema id, the newest last."""
    key_columns: tuple[str, ...]
    timestamp_column: str | None
    configs: Mapping[str, Value]
    """The settings of this topic itself, without inherited ones."""
    created_ms: int
    owner: str = ""
    """The user in whose quotas the topic counts; "" for none."""
    request_id: str = ""
    """Id of the request that created the topic; "" if not known."""
    first_leader_epoch: int = 0
    """Leader epoch in which the partitions begin; above all leader epochs of earlier topics of this name."""

    def is_created_by(self, request_id: str) -> bool:
        """Return True if the request with this id created the topic; False for the id ""."""
        return bool(request_id) and self.request_id == request_id

    @property
    def record_timestamp_column(self) -> str | None:
        """Name of the column of the records' timestamps; None if the topic has none."""
        return "timestamp" if self.kind == KIND_ENVELOPE else self.timestamp_column

    @property
    def record_key_columns(self) -> tuple[str, ...]:
        """Names of the key columns; empty for a topic without keys."""
        return ("key",) if self.kind == KIND_ENVELOPE else self.key_columns

    @property
    def record_value_columns(self) -> tuple[str, ...]:
        """Names of the columns that are null in a tombstone. Empty in a typed topic: there, all columns that are not
        key columns are null."""
        return ("value",) if self.kind == KIND_ENVELOPE else ()

    @property
    def schema_id(self) -> int:
        """Id of the newest schema."""
        return max(self.schemas)


def altered_topic(topic: Topic, changes: Mapping[str, object | None]) -> Topic:
    """Return `topic` with changed settings; a value of None restores the default. Raises InvalidConfigError."""
    values = check(Scope.TOPIC, {name: value for name, value in changes.items() if value is not None})
    check_names(Scope.TOPIC, changes)
    kept = {name: value for name, value in topic.configs.items() if name not in changes}
    configs = kept | values
    default = settings_of(Scope.TOPIC)[TIMESTAMP_TYPE_SETTING].default
    if configs.get(TIMESTAMP_TYPE_SETTING, default) != topic.configs.get(TIMESTAMP_TYPE_SETTING, default):
        raise InvalidConfigError(
            f"topic {topic.name!r}: {TIMESTAMP_TYPE_SETTING} cannot be changed, running producers write timestamps "
            "of the old type; create a new topic with the setting"
        )
    check_same_key_format(topic.name, topic.configs, configs)
    check_value_format(topic.name, None if topic.kind == KIND_ENVELOPE else topic.schemas[topic.schema_id], configs)
    check_refused_records(topic.name, configs, is_typed=topic.kind != KIND_ENVELOPE)
    check_cleanup_policy(topic.name, topic.record_key_columns, configs)
    check_tiering(topic.name, configs)
    check_lake_settings(topic.name, topic.record_key_columns, topic.configs, configs)
    check_mirror_settings(topic.name, topic.configs, configs)
    return replace(topic, configs=MappingProxyType(configs))


def grown_topic(topic: Topic, total: int) -> Topic:
    """Return `topic` with `total` partitions. Raises InvalidPartitionsError if `total` is not above the present number,
    or above PARTITIONS_MAX."""
    if isinstance(total, bool) or not 1 <= total <= PARTITIONS_MAX:
        raise InvalidPartitionsError(f"topic {topic.name!r}: {total} partitions; use 1 to {PARTITIONS_MAX}")
    if total <= topic.partitions:
        raise InvalidPartitionsError(
            f"topic {topic.name!r} has {topic.partitions} partitions, and cannot get {total}: partitions can only be "
            "added; for fewer partitions create a new topic"
        )
    return replace(topic, partitions=total)


def check_cleanup_policy(name: str, key_columns: Sequence[str], configs: Mapping[str, object]) -> None:
    """Raise InvalidConfigError if `configs` ask for compaction and the topic has no key columns."""
    policy = str(configs.get("cleanup.policy", ""))
    if POLICY_COMPACT in policy.split(",") and not key_columns:
        raise InvalidConfigError(
            f"topic {name!r}: cleanup.policy={policy} keeps the last record of each key, but the topic has no key "
            f"columns; create it with key columns (key_columns=…, --key-columns …)"
        )


def new_topic(spec: TopicSpec, typed_schema_id: int, environment: Environment) -> Topic:
    """Check `spec` and return the new topic, with a new topic id. `typed_schema_id` is the schema id of a typed topic.

    Raises InvalidTopicError, InvalidPartitionsError, InvalidConfigError.
    """
    check_topic_name(spec.name)
    if isinstance(spec.partitions, bool) or not 1 <= spec.partitions <= PARTITIONS_MAX:
        raise InvalidPartitionsError(f"topic {spec.name!r}: {spec.partitions} partitions; use 1 to {PARTITIONS_MAX}")
    configs = check(Scope.TOPIC, spec.configs)
    check_tiering(spec.name, configs)
    key_columns = list(spec.key_columns)
    if spec.schema is None:
        if key_columns or spec.timestamp_column is not None:
            raise InvalidTopicError(
                f"topic {spec.name!r}: an envelope topic has its own key and timestamp; give a schema to name columns"
            )
        kind, schema, schema_id = KIND_ENVELOPE, ENVELOPE_SCHEMA, ENVELOPE_SCHEMA_ID
    else:
        kind, schema, schema_id = KIND_TYPED, canonical_schema(spec.schema), typed_schema_id
        require_columns(schema, key_columns, spec.timestamp_column)
        check_cleanup_policy(spec.name, key_columns, configs)
    configs = with_key_format(spec.name, None if spec.schema is None else schema, key_columns, configs)
    check_value_format(spec.name, spec.schema, configs)
    check_refused_records(spec.name, configs, is_typed=spec.schema is not None)
    check_lake_settings(spec.name, ["key"] if spec.schema is None else key_columns, configs, configs)
    check_mirror_settings(spec.name, configs, configs)
    check_mirrored_kind(spec.name, configs, is_typed=kind != KIND_ENVELOPE)
    return Topic(
        name=spec.name,
        topic_id=environment.randomness.new_id(),
        kind=kind,
        partitions=spec.partitions,
        schemas=MappingProxyType({schema_id: schema}),
        key_columns=tuple(key_columns),
        timestamp_column=spec.timestamp_column,
        configs=MappingProxyType(configs),
        created_ms=environment.clock.now_ms(),
        owner=spec.owner,
        request_id=spec.request_id,
    )


def changed_columns(
    name: str,
    kind: str,
    newest: pa.Schema,
    change: SchemaChange,
    key_columns: Sequence[str],
    timestamp_column: str | None,
) -> pa.Schema:
    """Return a topic's columns after `change` of its `newest` schema; `newest` itself if no column changes. Raises
    InvalidTopicError for a change that is not allowed, and for every change of an envelope topic."""
    if kind == KIND_ENVELOPE:
        raise InvalidTopicError(
            f"topic {name!r} is an envelope topic: its columns key, value, headers and timestamp cannot change; "
            "create a typed topic for other columns"
        )
    try:
        return change.applied_to(newest, key_columns, timestamp_column)
    except InvalidTopicError as e:
        raise InvalidTopicError(f"topic {name!r}: {e}") from e


def altered_schema(topic: Topic, change: SchemaChange, schema_id: int) -> Topic:
    """Return `topic` with the changed schema under `schema_id`; `topic` itself if its newest schema has the change
    already. Raises InvalidTopicError for a change that is not allowed, or too many schemas; InvalidConfigError for
    columns that the topic's Delta table cannot have.
    """
    newest = topic.schemas[topic.schema_id]
    schema = changed_columns(topic.name, topic.kind, newest, change, topic.key_columns, topic.timestamp_column)
    if schema is newest:
        return topic
    check_new_columns(topic.name, topic.configs, newest, schema)
    schemas = {**topic.schemas, schema_id: schema}
    check_versions(topic.name, schemas)
    return replace(topic, schemas=MappingProxyType(schemas))
