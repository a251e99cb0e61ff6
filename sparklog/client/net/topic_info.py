"""A topic as the broker describes it: partitions, schemas, settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import pyarrow as pa

from sparklog.errors import (
    InvalidPartitionsError,
    InvalidRequestError,
    SparklogError,
    TopicAuthorizationFailedError,
    UnknownSchemaError,
    error_from_code,
)
from sparklog.format.body_layout import INFLATED_BYTES_MAX
from sparklog.format.key_format import (
    KEY_FORMAT_SETTING,
    KEY_SCHEMA_SETTING,
    REFUSED_SETTING,
    REFUSED_TO_TOPIC,
    VALUE_FORMAT_SETTING,
    key_rules,
)
from sparklog.format.schema import KIND_ENVELOPE
from sparklog.protocol.topic_messages import PartitionState, TopicState
from sparklog.settings import Scope, Setting, settings_of
from sparklog.types import whole_number

SCHEMAS_DECODED_MAX = 128
"""Largest number of schemas that stay decoded in a cache. A schema has up to 2 MiB (SCHEMA_BYTES_MAX); most have less
than 1 KiB."""

_MAX_MESSAGE_BYTES = settings_of(Scope.TOPIC)["max.message.bytes"]
_INFLATED_RATIO = settings_of(Scope.TOPIC)["max.message.inflated.ratio"]


@dataclass(frozen=True)
class TopicInfo:
    """A topic as the broker describes it. `partitions` is the number of partitions, `schema` the newest schema."""

    name: str
    topic_id: str
    kind: str
    partitions: int
    schema_id: int
    schemas: dict[int, pa.Schema]
    key_columns: tuple[str, ...]
    timestamp_column: str | None
    configs: dict[str, object]
    created_ms: int
    partition_states: tuple[PartitionState, ...] = field(repr=False)
    broker_defaults: dict[str, object] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        return self.schemas[self.schema_id]

    @property
    def is_envelope(self) -> bool:
        return self.kind == KIND_ENVELOPE

    @cached_property
    def max_message_bytes(self) -> int:
        """Largest size in bytes of a batch that the topic takes."""
        return self._number(_MAX_MESSAGE_BYTES)

    @cached_property
    def inflated_bytes_max(self) -> int:
        """Largest size in bytes of a decompressed batch of the topic, by the topic's settings, the broker's defaults,
        or this client's. It is never more than INFLATED_BYTES_MAX."""
        return min(self.max_message_bytes * self._number(_INFLATED_RATIO), INFLATED_BYTES_MAX)

    def _number(self, setting: Setting) -> int:
        values = self.broker_defaults | self.configs
        return int(setting.parse(values.get(setting.name, setting.default)))

    @property
    def log_append_time(self) -> bool:
        """True if the broker sets the records' timestamps to the time of the append."""
        return (self.broker_defaults | self.configs).get("message.timestamp.type") == "LogAppendTime"

    @property
    def compression_type(self) -> str:
        """Compression in which Kafka's clients get the topic's batches; "producer": as each batch was sent."""
        return str((self.broker_defaults | self.configs).get("compression.type", "producer"))

    @property
    def is_compacted(self) -> bool:
        """True if only the last record of each key stays, so that every record needs a key."""
        policy = str((self.broker_defaults | self.configs).get("cleanup.policy", ""))
        return "compact" in policy.split(",")

    def is_converted_as(self, other: TopicInfo) -> bool:
        """Return True if both states of the topic give records the same form and the same limits."""
        return (
            self.topic_id == other.topic_id
            and self.partitions == other.partitions  # it decides the partition of a key
            and self.schemas.keys() == other.schemas.keys()
            and (self.configs == other.configs and self.broker_defaults == other.broker_defaults)
        )

    @cached_property
    def key_rules(self) -> int:
        """Number for the rules by which the keys of records are checked (`format/key_format.py`)."""
        return key_rules(self.partitions, self.key_columns, self.broker_defaults | self.configs)

    @property
    def key_format(self) -> str:
        """Form of the keys, which decides the partition of a row; "" for topics without the setting
        (`format/key_format.py`)."""
        return str(self.configs.get(KEY_FORMAT_SETTING, ""))

    @property
    def key_schema(self) -> str:
        """Schema of the keys with its id; "" if the topic has none yet (`kafka/values/framed_keys.py`)."""
        return str(self.configs.get(KEY_SCHEMA_SETTING, ""))

    @property
    def value_format(self) -> str:
        """Form of a typed topic's records for Kafka's clients."""
        return str((self.broker_defaults | self.configs).get(VALUE_FORMAT_SETTING, "json"))

    @property
    def has_refused_topic(self) -> bool:
        """True if records of Kafka's clients that do not fit the topic go to its refused topic."""
        return not self.is_envelope and (self.broker_defaults | self.configs).get(REFUSED_SETTING) == REFUSED_TO_TOPIC

    def schema_of(self, schema_id: int) -> pa.Schema:
        """Return the schema of an id. Raises UnknownSchemaError."""
        schema = self.schemas.get(schema_id)
        if schema is None:
            raise UnknownSchemaError(
                f"topic {self.name!r} has no schema {schema_id} (known: {', '.join(map(str, self.schemas))})"
            )
        return schema

    def check_partition(self, partition: object) -> int:
        """Return the partition's number if the topic has it. Raises InvalidPartitionsError."""
        number = whole_number(partition)
        if number is None or not 0 <= number < self.partitions:
            raise InvalidPartitionsError(
                f"topic {self.name!r} has partitions 0 to {self.partitions - 1}, and no partition {partition!r}"
            )
        return number


def topic_info(state: TopicState) -> TopicInfo:
    """Decode a topic's state from the metadata. Raises InvalidRequestError if it is malformed."""
    try:
        schemas = {s.schema_id: _decoded_schema(s.arrow_schema) for s in state.schemas}
    except (pa.ArrowException, OSError, ValueError) as e:
        raise InvalidRequestError(f"the broker's response has an invalid schema of topic {state.name!r}: {e}") from e
    if not schemas or sorted(p.partition for p in state.partitions) != list(range(len(state.partitions))):
        raise InvalidRequestError(f"the broker's answer about topic {state.name!r} lacks schemas or partitions")
    return TopicInfo(
        name=state.name,
        topic_id=state.topic_id,
        kind=state.kind,
        partitions=len(state.partitions),
        schema_id=max(schemas),
        schemas=schemas,
        key_columns=tuple(state.key_columns),
        timestamp_column=state.timestamp_column,
        configs=dict(state.configs),
        created_ms=state.created_ms,
        broker_defaults=dict(state.broker_defaults),
        partition_states=tuple(sorted(state.partitions, key=lambda p: p.partition)),
    )


@lru_cache(maxsize=SCHEMAS_DECODED_MAX)
def _decoded_schema(message: bytes) -> pa.Schema:
    """Decode a schema, with a cache: repeated metadata contain the same schemas."""
    return pa.ipc.read_schema(pa.py_buffer(message)).remove_metadata()


def topic_error(code: int, name: str) -> SparklogError:
    """Return the client's error for a broker's error about a topic."""
    if code == TopicAuthorizationFailedError.code:
        return TopicAuthorizationFailedError(f"Describe on topic {name!r} is not allowed, or the topic does not exist")
    return error_from_code(code, f"topic {name!r} cannot be used: the broker answered error {code}")
