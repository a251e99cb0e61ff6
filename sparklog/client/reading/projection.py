"""The columns of a reader and their types, for batches of any schema version."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import SchemaMismatchError
from sparklog.format.batch import BatchHeader, read_checked_batch
from sparklog.format.offset_column import decode_rows
from sparklog.format.schema_evolution import RowAdapter
from sparklog.settings import did_you_mean


class _SchemaSteps(NamedTuple):
    """The steps for the batches of one schema."""

    schema: pa.Schema
    adapter: RowAdapter


BATCH_MEMORY_BYTES = 1_500
"""Memory of the Python objects of a batch that is not decoded."""
COLUMN_MEMORY_BYTES = 500
"""Memory of the objects of a decoded column, or of a column inside of it. Measured with batches of one row: 300 bytes
for a number, 800 for a part of a list of structs."""


def _objects_bytes(schema: pa.Schema) -> int:
    return BATCH_MEMORY_BYTES + COLUMN_MEMORY_BYTES * sum(map(_columns_in, schema.types))


def _columns_in(t: Any) -> int:
    """Return the number of columns of a type: itself and those inside."""
    return 1 + sum(_columns_in(t.field(i).type) for i in range(t.num_fields))


class Projection:
    """The columns of a topic that a reader wants, in the reader's order. For one thread.

    `schema` is the layout of all decoded rows. Rows of older schemas have null in columns that they lack, and the wider
    type of a column that was widened since. The layout is fixed, unless `follow` is set: then a batch of an unknown
    schema replaces it by the topic's newest layout.
    """

    def __init__(
        self,
        info: TopicInfo,
        columns: Sequence[str] | None,
        *,
        layout: pa.Schema | None = None,
        newest: Callable[[], TopicInfo] | None = None,
        follow: bool = False,
    ) -> None:
        """Create a projection. `columns` None: all columns of `layout`, or of the topic without a `layout`. `layout`:
        columns with a fixed type; other columns have their newest type. `newest` returns the topic's current metadata.

        Raises SchemaMismatchError for a column that the topic does not have.
        """
        self.info = info
        self.columns = None if columns is None else list(dict.fromkeys(columns))
        self.timestamp_column = "timestamp" if info.is_envelope else info.timestamp_column
        self._layout = layout
        self._newest = newest
        self._follow = follow
        self._by_schema: dict[int, _SchemaSteps] = {}
        self.is_of_an_earlier_topic = False
        """True if the topic was deleted and created again, as a batch with an unknown schema has shown."""
        if newest is not None and not set(self.columns or ()) <= set(info.schema.names):
            self.info = newest()
        self.schema = self._target()
        self.objects_bytes = _objects_bytes(self.schema)
        """Memory of the Python objects of a decoded batch."""

    @property
    def fetched_columns(self) -> list[str] | None:
        """Names of the columns that a broker has to send: those of the reader, and the one with the timestamps. None:
        all."""
        if self.columns is None or self.info.is_envelope or len(self.columns) >= len(self.info.schema):
            return None
        timestamps = self.timestamp_column
        return self.columns if timestamps is None or timestamps in self.columns else [*self.columns, timestamps]

    def copy(self) -> Projection:
        """Return a copy for another thread, in the same layout."""
        copied = copy.copy(self)
        copied._by_schema = dict(self._by_schema)
        return copied

    def _target(self) -> pa.Schema:
        newest = self.info.schema
        layout = self._layout
        if self.columns is None:
            return newest if layout is None else layout
        fields = []
        for name in self.columns:
            if layout is not None and layout.get_field_index(name) >= 0:
                fields.append(layout.field(name))
            elif newest.get_field_index(name) >= 0:
                fields.append(newest.field(name))
            else:
                raise SchemaMismatchError(
                    f"topic {self.info.name!r} has no column {name!r}{did_you_mean(name, newest.names)}"
                )
        return pa.schema(fields)

    def decode(self, data: Any, header: BatchHeader) -> tuple[pa.RecordBatch, pa.Schema, np.ndarray | None]:
        """Return the wanted columns of one batch in the layout `schema`; the schema that the batch was written with;
        and the offsets of the rows, or None if they are dense.

        Raises CorruptBatchError, UnknownSchemaError, and SchemaMismatchError for a column whose type in the batch is
        wider than in `schema`.
        """
        steps = self._by_schema.get(header.schema_id) or self._learn(header.schema_id)
        indexes = steps.adapter.indexes
        decoded, offsets = decode_rows(
            data,
            steps.schema,
            header,
            indexes if len(indexes) < len(steps.schema) else None,
            inflated_bytes_max=self.info.inflated_bytes_max,
        )
        return steps.adapter.adapt(decoded), steps.schema, offsets

    def decode_checked(self, messages: Sequence[Any], schema_id: int) -> pa.Table:
        """Return the rows of several batches as a table with one chunk for each batch. The batches have one schema, and
        `is_small_batch` has accepted each.

        Raises UnknownSchemaError and SchemaMismatchError, as `decode` does.
        """
        steps = self._by_schema.get(schema_id) or self._learn(schema_id)
        return steps.adapter.adapt(pa.Table.from_batches([read_checked_batch(m, steps.schema) for m in messages]))

    def knows_envelope(self, schema_id: int) -> bool:
        """True if the topic is an envelope topic and its schema of this id is known without a request."""
        return self.info.is_envelope and schema_id in self.info.schemas

    def stored_schema(self, schema_id: int) -> pa.Schema:
        """Return the schema that batches with this id were written with. Raises UnknownSchemaError."""
        steps = self._by_schema.get(schema_id) or self._learn(schema_id)
        return steps.schema

    def _learn(self, schema_id: int) -> _SchemaSteps:
        if schema_id not in self.info.schemas and self._newest is not None:
            newest = self._newest()
            self.is_of_an_earlier_topic = newest.topic_id != self.info.topic_id
            if not self.is_of_an_earlier_topic:
                self.info = newest
                if self._follow:
                    self._by_schema.clear()
                    self.schema = self._target()
                    self.objects_bytes = _objects_bytes(self.schema)
        schema = self.info.schema_of(schema_id)
        steps = self._by_schema[schema_id] = _SchemaSteps(schema, RowAdapter(schema, self.schema, self.info.name))
        return steps
