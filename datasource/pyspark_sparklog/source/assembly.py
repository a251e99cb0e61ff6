"""The assembly of Spark's batches from the log's batches: adds metadata columns and evens out the sizes, without work
per row.

Spark's Arrow channel is fastest at about 10,000 rows a batch. So large batches are sliced (without a copy), and small
batches are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_sparklog.schemas import (
    HEADERS_COLUMN,
    OFFSET,
    PARTITION,
    STORED,
    TIMESTAMP,
    TIMESTAMP_TYPE_ID,
    TOPIC,
    ReadSchema,
)
from sparklog.client.reading.consumed import data_together
from sparklog.errors import SchemaMismatchError
from sparklog.format.schema import KIND_ENVELOPE, TIMESTAMP_TYPE
from sparklog.format.schema_evolution import Rows
from sparklog.types import TopicPartition

if TYPE_CHECKING:
    from sparklog.client.reading.consumed import DecodedRows

ROWS_TARGET = 10_000
GATHERED_BYTES_MAX = 16 * 1024 * 1024

CREATE_TIME = 0
LOG_APPEND_TIME = 1


class BatchAssembler:
    """Assembler of the batches of one partition of a read. `add` and `finish` yield batches with exactly
    `schema.arrow`.

    Small batches are decoded when they are put together, because decoding each alone costs as much as a large batch. So
    both `add` and `finish` raise CorruptBatchError and SchemaMismatchError.
    """

    def __init__(self, schema: ReadSchema, partition: TopicPartition, *, log_append_time: bool) -> None:
        self._schema = schema
        self._stored_columns = schema.stored_columns
        self._partition = partition
        self._log_append_time = log_append_time
        self._not_null = [f.name for f in schema.arrow if not f.nullable]
        self._constants: dict[str, Any] = {}
        self._pending: list[DecodedRows] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    def add(self, batch: DecodedRows) -> Iterator[pa.RecordBatch]:
        """Take the next batch, in offset order, and yield the batches that are complete. A small batch is kept for
        later."""
        if batch.num_rows >= ROWS_TARGET // 2:
            yield from self.finish()
            rows = self._rows([batch], batch.data)
            for start in range(0, rows.num_rows, ROWS_TARGET):
                yield rows.slice(start, ROWS_TARGET)
            return
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.size_bytes
        if self._pending_rows >= ROWS_TARGET or self._pending_bytes >= GATHERED_BYTES_MAX:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the batches that `add` has kept."""
        pending, self._pending = self._pending, []
        self._pending_rows = self._pending_bytes = 0
        if len(pending) == 1:
            yield self._rows(pending, pending[0].data)
        elif pending:
            yield from self._rows(pending, data_together(pending, self._stored_columns)).to_batches()

    def _rows(self, batches: list[DecodedRows], data: Rows) -> Rows:
        """Return the rows for Spark of `batches`, whose stored columns are in `data`."""
        count = sum(b.num_rows for b in batches)
        columns = []
        for column in self._schema.columns:
            if column == HEADERS_COLUMN and self._schema.kind == KIND_ENVELOPE:
                columns.append(_null_if_empty(data.column(column.name)))
            elif column.origin == STORED:
                columns.append(data.column(column.name))
            elif column.origin == OFFSET:
                columns.append(pa.array(_offsets(batches, count), pa.int64()))
            elif column.origin == TIMESTAMP:
                columns.append(self._timestamps(batches, data))
            else:
                columns.append(self._constant(column.origin, count).slice(0, count))
        rows = type(data).from_arrays(columns, schema=self._schema.arrow)
        self._check_not_null(batches, rows)
        return rows

    def _check_not_null(self, batches: list[DecodedRows], rows: Rows) -> None:
        for name in self._not_null:
            nulls = rows.column(name).null_count
            if not nulls:
                continue
            if len(batches) > 1:  # raises the error for the batch that has the null
                for batch in batches:
                    self._rows([batch], batch.data)
            raise SchemaMismatchError(
                f"column {name!r} is declared NOT NULL by the given schema, but {self._partition} has {nulls} nulls in "
                f"offsets {batches[0].base_offset} to {batches[-1].next_offset - 1}: declare it nullable"
            )

    def _timestamps(self, batches: list[DecodedRows], data: Rows) -> Any:
        if self._schema.kind == KIND_ENVELOPE and not self._log_append_time:
            column = data.column("timestamp")
            if column.null_count == 0:
                return column
            if len(batches) > 1:  # rows of batches without a null keep their exact times
                return pa.chunked_array([self._timestamps([b], b.data) for b in batches], TIMESTAMP_TYPE)
        stamps = np.concatenate([b.timestamps_ms() for b in batches])
        return pa.array(stamps * 1000, pa.int64()).cast(TIMESTAMP_TYPE)

    def _constant(self, origin: str, count: int) -> Any:
        """Return a column that repeats one value in at least `count` rows. It is cached, and replaced if it is too
        short."""
        value: object
        if origin == TOPIC:
            value, kind = self._partition.topic, pa.string()
        elif origin == PARTITION:
            value, kind = self._partition.partition, pa.int32()
        else:
            assert origin == TIMESTAMP_TYPE_ID
            value, kind = (LOG_APPEND_TIME if self._log_append_time else CREATE_TIME), pa.int32()
        constant = self._constants.get(origin)
        if constant is None or len(constant) < count:
            constant = self._constants[origin] = pa.repeat(
                pa.scalar(value, kind), count if constant is None else max(ROWS_TARGET, count)
            )
        return constant


def _null_if_empty(headers: Any) -> Any:
    """Return null for a record without headers, as Spark's Kafka source does."""
    empty = pc.equal(pc.list_value_length(headers), 0)
    return pc.if_else(empty, pa.scalar(None, headers.type), headers) if pc.any(empty).as_py() else headers


def _offsets(batches: list[DecodedRows], count: int) -> np.ndarray:
    """Return the offsets of `count` rows, int64. If the batches span as many offsets as they have rows, the offsets are
    consecutive, because offsets rise."""
    first, end = batches[0].base_offset, batches[-1].next_offset
    if end - first == count:
        return np.arange(first, end, dtype=np.int64)
    return np.concatenate([b.offsets() for b in batches])
