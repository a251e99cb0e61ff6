"""Batches of one partition with their offsets, decoded from the received bytes without copying."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count, groupby, repeat
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa

from sparklog.client.reading.isolation import NO_ABORTED, AbortedOffsets
from sparklog.client.reading.projection import BATCH_MEMORY_BYTES, Projection
from sparklog.errors import CorruptBatchError, DeserializationError
from sparklog.format.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    BatchHeader,
    verify_checksum,
)
from sparklog.format.offset_column import decode_rows, rows_between
from sparklog.format.schema import NO_PYTHON_OBJECT
from sparklog.format.small_batch import SmallRows, decode_small_batch, is_small_batch
from sparklog.types import Record

__all__ = ["ConsumedBatch", "Projection", "data_together", "decode_batches", "decode_one", "records_of"]

_new_record = partial(tuple.__new__, Record)
_STATED_MS_MAX = (2**63 - 1) // 1000
"""Largest amount of a time in ms that is taken from a header. A header can state any i64, but its µs must fit, too."""


class ConsumedBatch:
    """Rows of one partition in offset order."""

    __slots__ = (
        "_data",
        "_first_row",
        "_header",
        "_offsets",
        "_projection",
        "_source",
        "base_offset",
        "next_offset",
        "schema_id",
        "tp",
    )

    def __init__(
        self,
        tp: Any,
        base_offset: int,
        data: pa.RecordBatch | None,
        header: BatchHeader,
        *,
        first_row: int,
        source: tuple[Any, pa.Schema | None],
        projection: Projection,
        next_offset: int,
        offsets: np.ndarray | None = None,
    ) -> None:
        """Create a batch from its decoded rows or from its stored message.

        Args:
            tp: The partition.
            base_offset: Offset of the first row.
            data: The rows in the topic's layout. None: all rows of the message in `source`, which `is_small_batch` has
                accepted, decoded on demand.
            header: The header of the stored batch.
            first_row: Index of the first row in the stored batch.
            source: The stored message, and the schema of its rows or None.
            projection: The columns to decode.
            next_offset: Offset at which reading continues.
            offsets: The offset of each row. None: dense from `base_offset`.
        """
        self.tp = tp
        """The partition."""
        self.base_offset = base_offset
        """Offset of the first row."""
        self.next_offset = next_offset
        """Offset at which reading goes on: after the last row, and after removed (compacted) records behind it."""
        self._data = data
        self._offsets = offsets
        self.schema_id = header.schema_id
        """Id of the schema that the rows were written with."""
        self._header = header
        self._first_row = first_row
        self._source = source
        self._projection = projection

    @property
    def data(self) -> pa.RecordBatch:
        """The rows in the topic's layout, with the wanted columns only; columns that an older schema lacks are null."""
        if self._data is None:
            self.decode()
        return self._data

    def decode(self) -> None:
        """Decode the rows now, instead of at the first use of `data`."""
        if self._data is None:
            message, _ = self._source
            self._data = self._projection.decode_checked([message], self.schema_id).to_batches()[0]
            self._source = (message, self._projection.stored_schema(self.schema_id))

    @property
    def decoder(self) -> tuple[Projection, int] | None:
        """The projection and the schema's id that `data_together` decodes this batch with; None if it is decoded
        already."""
        return (self._projection, self.schema_id) if self._data is None else None

    @property
    def message(self) -> Any:
        """The whole batch in its stored form."""
        return self._source[0]

    @property
    def size_bytes(self) -> int:
        """Memory of the rows in bytes; of the stored form if they are not decoded."""
        return self._header.size_bytes if self._data is None else int(self._data.nbytes)

    @property
    def memory_bytes(self) -> int:
        """Memory of the batch in bytes, with its stored form and its Python objects."""
        if self._data is None:
            return self._header.size_bytes + BATCH_MEMORY_BYTES
        # not nbytes, which is fifty times as slow
        rows_bytes = max(self._data.get_total_buffer_size(), self._header.size_bytes)
        return int(rows_bytes) + self._projection.objects_bytes

    @property
    def decoded_bytes(self) -> int:
        """Memory in bytes that decoding has taken beside the stored form."""
        return self.memory_bytes - self._header.size_bytes

    def small_rows(self) -> SmallRows | None:
        """Return the rows without Arrow.

        Returns:
            The rows; None if they are decoded already, only some columns are wanted, or the rows are too many or not
            simple enough.
        """
        if self._data is not None or self._projection.columns is not None:
            return None
        return decode_small_batch(memoryview(self._source[0]), 0, self._header)

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that appended the batch."""
        return self._header.leader_epoch

    @property
    def append_time_ms(self) -> int | None:
        """Append time that is the timestamp of all rows (LogAppendTime), in ms since 1970; None for CreateTime."""
        return self._header.append_time_ms if self._header.attributes & ATTRIBUTE_LOG_APPEND_TIME else None

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return str(self.tp.topic)

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return int(self.tp.partition)

    @property
    def is_envelope(self) -> bool:
        """True for an envelope topic, False for a typed one."""
        return self._projection.info.is_envelope

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._header.record_count if self._data is None else int(self._data.num_rows)

    def offsets(self) -> np.ndarray:
        """Return the offset of every row.

        Returns:
            An int64 array in ascending order; compaction leaves gaps.
        """
        if self._offsets is not None:
            return self._offsets
        return np.arange(self.base_offset, self.base_offset + self.num_rows, dtype=np.int64)

    def timestamps_ms(self) -> np.ndarray:
        """Return the stored timestamp of every row.

        In LogAppendTime topics the timestamp is the broker's time. In other topics it is the value of the timestamp
        column; a row with null there has the largest timestamp in the batch's header, as in look-ups by time. In topics
        without a timestamp column it is the time of sending.

        Returns:
            An int64 array in ms since 1970.
        """
        header = self._header
        if self.append_time_ms is not None:
            return np.full(self.num_rows, _countable(self.append_time_ms), np.int64)
        if self._projection.timestamp_column is None:
            return np.full(self.num_rows, _countable(header.max_timestamp_ms), np.int64)
        column = self._stored_timestamps()
        if column.type.unit != "us":
            column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
        if not len(column):
            return np.empty(0, np.int64)
        if column.null_count:
            column = column.fill_null(
                pa.scalar(_countable(header.max_timestamp_ms) * 1000, pa.int64()).cast(column.type)
            )
        # not `to_numpy`, which costs more than the rest where rows come one by one
        return np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8) // 1000

    def _stored_timestamps(self) -> Any:
        index = self.data.schema.get_field_index(self._projection.timestamp_column)
        if index >= 0:
            return self.data.column(index)
        data, schema = self._source  # the column was not wanted, so it has not been decoded
        assert schema is not None  # `data` has been asked for
        column = schema.get_field_index(self._projection.timestamp_column)
        limit = self._projection.info.inflated_bytes_max
        whole, _ = decode_rows(data, schema, self._header, [column], inflated_bytes_max=limit)
        return whole.column(0).slice(self._first_row, self.num_rows)

    def slice(self, start: int, rows: int) -> ConsumedBatch:
        """Return a range of the rows without copying.

        Args:
            start: Index of the first row.
            rows: Number of rows.

        Returns:
            The batch of these rows.
        """
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
        """Return the offset of a row.

        Args:
            row: Index of the row.

        Returns:
            Its offset; after the last row, `next_offset`.
        """
        if row >= self.num_rows:
            return self.next_offset
        return self.base_offset + row if self._offsets is None else int(self._offsets[row])

    def rows_below(self, offset: int) -> int:
        """Count the rows with a smaller offset.

        Args:
            offset: The bound.

        Returns:
            The number of rows.
        """
        if self._offsets is None:
            return min(max(offset - self.base_offset, 0), self.num_rows)
        return int(np.searchsorted(self._offsets, offset))

    def __repr__(self) -> str:
        return f"<ConsumedBatch {self.tp} offsets {self.base_offset} to {self.next_offset - 1}>"


def _countable(time_ms: int) -> int:
    """Return the time in ms, or the nearest time whose µs fit into an i64."""
    return max(-_STATED_MS_MAX, min(time_ms, _STATED_MS_MAX))


class DecodedRows(Protocol):
    """Rows of one partition, from the log or from its Delta table."""

    @property
    def decoder(self) -> tuple[Projection, int] | None: ...

    @property
    def data(self) -> pa.RecordBatch: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    def offsets(self) -> np.ndarray: ...

    def timestamps_ms(self) -> np.ndarray: ...


def data_together(batches: Sequence[DecodedRows], columns: Sequence[str]) -> pa.Table:
    """Return the `data` of all batches in order, with `columns` only.

    The columns are contiguous, as far as the length limit of Arrow's arrays allows. For many small batches the call
    takes a fraction of the time that reading `data` of each batch takes.
    """
    parts = []
    for decoder, group in groupby(batches, lambda b: b.decoder):
        if decoder is None:
            parts += [pa.Table.from_batches([b.data]) for b in group]
        else:
            projection, schema_id = decoder
            messages = [cast(ConsumedBatch, b).message for b in group]  # only the log's rows wait to be decoded
            parts.append(projection.decode_checked(messages, schema_id))
    return pa.concat_tables([p.select(columns) for p in parts]).combine_chunks()


def decode_batches(
    data: pa.Buffer,
    headers: Iterable[tuple[int, BatchHeader]],
    tp: Any,
    projection: Projection,
    start_offset: int,
    end_offset: int | None = None,
    *,
    check_crcs: bool = True,
    aborted: AbortedOffsets = NO_ABORTED,
) -> Iterator[ConsumedBatch]:
    """Yield the rows of [start_offset, end_offset) in `data`, batch by batch. `headers` has the position and header of
    each batch; `end_offset` None: no end. Markers, aborted batches and batches without such rows are left out. Raises
    CorruptBatchError: A batch is damaged; the message names its offset. The batches before it have been yielded;
    UnknownSchemaError: A batch names an unknown schema. The batches before it have been yielded."""
    view = memoryview(data).cast("B")
    for position, header in headers:
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
    aborted: AbortedOffsets,
) -> ConsumedBatch | None:
    """Return the rows of [start_offset, end_offset) of the batch at `position`; None if the batch has none, is a marker
    or is aborted. Raises the errors of `decode_batches`."""
    if check_crcs:
        try:
            verify_checksum(view, position, header)
        except CorruptBatchError as e:
            raise CorruptBatchError(f"{tp} at offset {header.base_offset}: {e}") from e
    end = header.next_offset if end_offset is None else min(header.next_offset, end_offset)
    if max(start_offset, header.base_offset) >= end or header.attributes & ATTRIBUTE_CONTROL or not header.record_count:
        return None
    if aborted.covers(header):
        return None
    message = data.slice(position, header.size_bytes)
    whole = start_offset <= header.base_offset and end == header.next_offset and header.is_dense
    if whole and projection.knows_envelope(header.schema_id) and is_small_batch(view, position, header):
        return ConsumedBatch(
            tp,
            header.base_offset,
            None,
            header,
            first_row=0,
            source=(message, None),
            projection=projection,
            next_offset=end,
        )
    try:
        rows, schema, offsets = projection.decode(message, header)
    except CorruptBatchError as e:
        raise type(e)(
            f"{tp} at offset {header.base_offset}: {e}. The producer of the batch wrote it like this; to continue "
            f"behind it, seek to offset {header.next_offset}"
        ) from e
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


def records_of(batch: ConsumedBatch) -> list[Record]:
    """Return the batch's rows as records, column by column. Raises DeserializationError: A value of a typed topic has
    no Python object, such as a date or timestamp outside of the years 1 to 9999. The error names the first such row."""
    small = batch.small_rows()
    if small is not None:
        return _records_of_small(batch, small)
    n = batch.num_rows
    stamps = batch.timestamps_ms().tolist()
    offsets = batch.offsets().tolist()
    data = batch.data
    keys: Iterable[Any] = repeat(None, n)
    values: Iterable[Any] = repeat(None, n)
    headers: Iterable[Any] = [[] for _ in range(n)]
    if batch.is_envelope:
        names = data.schema.names
        if "key" in names and data.column("key").null_count < n:
            keys = data.column("key").to_pylist()
        if "value" in names:
            values = data.column("value").to_pylist()
        if "headers" in names and data.column("headers").null_count < n:
            rows = data.column("headers").to_pylist()
            headers = [[(h["key"], h["value"]) for h in row] if row else [] for row in rows]
    else:
        try:
            values = data.to_pylist()
        except NO_PYTHON_OBJECT:
            raise _without_object(batch) from None
    return list(
        map(
            _new_record,
            zip(
                repeat(batch.topic, n), repeat(batch.partition, n), offsets, stamps, keys, values, headers, strict=True
            ),
        )
    )


def _without_object(batch: ConsumedBatch) -> DeserializationError:
    """Return the error that names the first row with a value that has no Python object."""
    for row in range(batch.num_rows):
        for name, column in zip(batch.data.schema.names, batch.data.columns, strict=True):
            try:
                column[row].as_py()
            except NO_PYTHON_OBJECT as e:
                offset = batch.offset_at(row)
                error = DeserializationError(
                    f"{batch.tp}: Python has no object for the value of column {name!r} ({column.type}) at offset "
                    f"{offset} ({e}): read it with poll_batches, or seek(error.partition, error.offset + 1) continues "
                    "behind it",
                    partition=batch.tp,
                    offset=offset,
                )
                error.__cause__ = e
                return error
    raise AssertionError("the rows cannot be converted together, but each row can")


def _records_of_small(batch: ConsumedBatch, rows: SmallRows) -> list[Record]:
    topic, partition = batch.tp
    append_time_ms = batch.append_time_ms
    stamps = [us // 1000 for us in rows.timestamps_us] if append_time_ms is None else repeat(append_time_ms)
    columns = zip(count(batch.base_offset), stamps, rows.keys or repeat(None), rows.values)
    return [_new_record((topic, partition, *head, key, value, [])) for *head, key, value in columns]
