"""Batches as a reader gets them: rows of one partition with their offsets, decoded off the wire without copying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.client.isolation import NOTHING_ABORTED, Aborted
from sparklog.client.projection import Projection
from sparklog.errors import CorruptBatchError
from sparklog.format.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    BatchHeader,
    decode_header,
    verify_batch,
)
from sparklog.format.offset_column import decode_rows, rows_between

__all__ = ["ConsumedBatch", "Projection", "decode_batches", "decode_one"]


class ConsumedBatch:
    """Rows of one partition in offset order.

    `base_offset` is the first row's offset, `data` the rows in the topic's layout (only the wanted columns; what an older
    schema lacks is null), `schema_id` the version of the schema they were written with. `next_offset` is where reading
    goes on: behind the last row, and behind what compaction has removed after it.
    """

    __slots__ = (
        "_first_row",
        "_header",
        "_offsets",
        "_projection",
        "_source",
        "base_offset",
        "data",
        "next_offset",
        "schema_id",
        "tp",
    )

    def __init__(
        self,
        tp: Any,
        base_offset: int,
        data: pa.RecordBatch,
        header: BatchHeader,
        *,
        first_row: int,
        source: tuple[Any, pa.Schema],
        projection: Projection,
        next_offset: int,
        offsets: np.ndarray | None = None,
    ) -> None:
        """`offsets` None: dense from `base_offset` on."""
        self.tp = tp
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.data = data
        self._offsets = offsets
        self.schema_id = header.schema_id
        self._header = header
        self._first_row = first_row
        self._source = source
        self._projection = projection

    @property
    def topic(self) -> str:
        return str(self.tp.topic)

    @property
    def partition(self) -> int:
        return int(self.tp.partition)

    @property
    def is_envelope(self) -> bool:
        return self._projection.info.is_envelope

    @property
    def num_rows(self) -> int:
        return int(self.data.num_rows)

    def offsets(self) -> np.ndarray:
        """Every row's offset, int64; compaction leaves gaps."""
        if self._offsets is not None:
            return self._offsets
        return np.arange(self.base_offset, self.base_offset + self.num_rows, dtype=np.int64)

    def timestamps_ms(self) -> np.ndarray:
        """Every row's stored timestamp in ms since 1970, int64: the broker's clock for LogAppendTime topics, else the
        topic's timestamp column (a row without one has the batch's largest), else the time of sending."""
        header = self._header
        if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
            return np.full(self.num_rows, header.append_time_ms, np.int64)
        if self._projection.timestamp_column is None:
            return np.full(self.num_rows, header.max_timestamp_ms, np.int64)
        column = self._stored_timestamps()
        if column.type.unit != "us":
            column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
        if not len(column):
            return np.empty(0, np.int64)
        if column.null_count:
            column = column.fill_null(pa.scalar(header.max_timestamp_ms * 1000, pa.int64()).cast(column.type))
        # not `to_numpy`, which costs more than the rest where rows come one by one
        return np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8) // 1000

    def _stored_timestamps(self) -> Any:
        index = self.data.schema.get_field_index(self._projection.timestamp_column)
        if index >= 0:
            return self.data.column(index)
        data, schema = self._source  # the column was not wanted, so it has not been decoded
        column = schema.get_field_index(self._projection.timestamp_column)
        whole, _ = decode_rows(data, schema, self._header, [column])
        return whole.column(0).slice(self._first_row, self.num_rows)

    def slice(self, start: int, rows: int) -> ConsumedBatch:
        """Rows [start, start + rows), without copying."""
        data = self.data.slice(start, rows)
        return ConsumedBatch(
            self.tp,
            self.offset_at(start),
            data,
            self._header,
            first_row=self._first_row + start,
            source=self._source,
            projection=self._projection,
            next_offset=self.offset_at(start + data.num_rows),
            offsets=None if self._offsets is None else self._offsets[start : start + data.num_rows],
        )

    def offset_at(self, row: int) -> int:
        """The offset of a row; behind the last one, where reading goes on."""
        if row >= self.num_rows:
            return self.next_offset
        return self.base_offset + row if self._offsets is None else int(self._offsets[row])

    def rows_below(self, offset: int) -> int:
        """How many rows have a smaller offset."""
        if self._offsets is None:
            return min(max(offset - self.base_offset, 0), self.num_rows)
        return int(np.searchsorted(self._offsets, offset))

    def __repr__(self) -> str:
        return f"<ConsumedBatch {self.tp} offsets {self.base_offset} to {self.next_offset - 1}>"


def decode_batches(
    data: Any,
    tp: Any,
    projection: Projection,
    start_offset: int,
    end_offset: int | None = None,
    *,
    check_crcs: bool = True,
    first_position: int = 0,
    aborted: Aborted = NOTHING_ABORTED,
) -> Iterator[ConsumedBatch]:
    """The rows of [start_offset, end_offset) in `data` (whole batches back to back), as batches; without those that are
    `aborted`.

    Raises CorruptBatchError (its note names the offset) and UnknownSchemaError, after the batches before it.
    """
    view = memoryview(data).cast("B")
    position = first_position
    while position < len(view):
        header = decode_header(view, position)
        batch = decode_one(
            data,
            view,
            position,
            header,
            tp,
            projection,
            start_offset,
            end_offset,
            check_crcs=check_crcs,
            aborted=aborted,
        )
        if batch is not None:
            yield batch
        position += header.size_bytes


def decode_one(
    data: pa.Buffer,
    view: memoryview,
    position: int,
    header: BatchHeader,
    tp: Any,
    projection: Projection,
    start_offset: int,
    end_offset: int | None,
    *,
    check_crcs: bool,
    aborted: Aborted,
) -> ConsumedBatch | None:
    """The rows of [start_offset, end_offset) of the batch at `position`; None if it has none, or is aborted."""
    if check_crcs:
        try:
            verify_batch(view, position, header)
        except CorruptBatchError as e:
            raise CorruptBatchError(f"{tp} at offset {header.base_offset}: {e}") from e
    end = header.next_offset if end_offset is None else min(header.next_offset, end_offset)
    if max(start_offset, header.base_offset) >= end or header.attributes & ATTRIBUTE_CONTROL or not header.record_count:
        return None
    if aborted.covers(header):
        return None
    message = data.slice(position, header.size_bytes)
    rows, schema, offsets = projection.decode(message, header)
    first, last = rows_between(header, offsets, start_offset, end)
    if first >= last:
        return None
    if first or last < header.record_count:
        rows = rows.slice(first, last - first)
    return ConsumedBatch(
        tp,
        header.base_offset + first if offsets is None else int(offsets[first]),
        rows,
        header,
        first_row=first,
        source=(message, schema),
        projection=projection,
        next_offset=end,
        offsets=None if offsets is None else offsets[first:last],
    )
