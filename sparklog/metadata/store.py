"""Where topics are stored: the types and the protocol every store has, and the checks they share."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import pyarrow as pa

from sparklog.errors import InvalidPartitionsError, InvalidTopicError
from sparklog.format.schema import ENVELOPE_SCHEMA, KIND_ENVELOPE, KIND_TYPED, canonical_schema, require_columns
from sparklog.settings import Scope, Value, check
from sparklog.types import check_topic_name

PARTITIONS_MAX = 10_000
ENVELOPE_SCHEMA_ID = 1
"""All envelope topics have this schema. Other ids are given out once per cluster and never again, so that a batch
made for a topic that has been deleted and made anew with other columns is refused, not misread."""


@dataclass(frozen=True)
class TopicSpec:
    """A topic to be created. `schema` None: an envelope topic, which has no key columns or timestamp column to name.

    `configs` are topic settings under Kafka's names.
    """

    name: str
    partitions: int = 1
    schema: pa.Schema | None = None
    key_columns: Sequence[str] = ()
    timestamp_column: str | None = None
    configs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Topic:
    """A topic as it is stored. `schemas` by id, the newest last; `configs` only what was set for the topic."""

    name: str
    topic_id: str
    kind: str
    partitions: int
    schemas: Mapping[int, pa.Schema]
    key_columns: tuple[str, ...]
    timestamp_column: str | None
    configs: Mapping[str, Value]
    created_ms: int

    @property
    def record_timestamp_column(self) -> str | None:
        """The column that holds the records' timestamps, if there is one."""
        return "timestamp" if self.kind == KIND_ENVELOPE else self.timestamp_column


class MetadataStore(Protocol):
    """Keeps topics durably: a change is on the disk when the call returns. May be used by several threads."""

    def cluster_id(self) -> str:
        """Made with the store, never changes."""
        ...

    def create_topic(self, spec: TopicSpec) -> Topic:
        """Raises TopicAlreadyExistsError, InvalidTopicError, InvalidPartitionsError, InvalidConfigError,
        StorageFullError, StorageError."""
        ...

    def delete_topic(self, name: str) -> Topic:
        """The topic that was. Raises UnknownTopicOrPartitionError, StorageFullError, StorageError."""
        ...

    def topics(self) -> dict[str, Topic]:
        """All topics by name (a copy)."""
        ...

    def close(self) -> None: ...


def new_topic(spec: TopicSpec, typed_schema_id: int) -> Topic:
    """The topic `spec` asks for, checked, with a new id; `typed_schema_id` is its schema's if it is typed.

    Raises InvalidTopicError, InvalidPartitionsError, InvalidConfigError.
    """
    check_topic_name(spec.name)
    if isinstance(spec.partitions, bool) or not 1 <= spec.partitions <= PARTITIONS_MAX:
        raise InvalidPartitionsError(f"topic {spec.name!r}: {spec.partitions} partitions; use 1 to {PARTITIONS_MAX}")
    configs = check(Scope.TOPIC, spec.configs)
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
    return Topic(
        name=spec.name,
        topic_id=uuid.uuid4().hex,
        kind=kind,
        partitions=spec.partitions,
        schemas=MappingProxyType({schema_id: schema}),
        key_columns=tuple(key_columns),
        timestamp_column=spec.timestamp_column,
        configs=MappingProxyType(configs),
        created_ms=time.time_ns() // 1_000_000,
    )
