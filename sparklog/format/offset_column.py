"""Decoding of a segment's batches, and the offset of each row: the `__offset` column of compacted batches.

Compaction removes rows from the middle of a batch, so row i of the remaining rows no longer has base_offset + i. A
compacted batch (attribute bit 3, `ATTRIBUTE_OFFSET_COLUMN`) has one more column after the topic's columns: ``__offset``
int64 not null, the row's offset itself, strictly increasing within [base_offset, base_offset + last_offset_delta]. The
column is part of the body, so the batch's CRC covers it. All batches of a compacted segment have the column, and so has
the schema in the segment's head: the file stays an Arrow file.

All code that needs the offset of a row uses this module.

Example: a batch with base_offset 50 and last_offset_delta 9 of which the rows 53 and 58 are left has record_count 2
and the column [53, 58]. A batch that has lost all its rows but must stay (the last batch of a segment) has
record_count 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import ATTRIBUTE_OFFSET_COLUMN, BatchHeader, decode_batch, message_of
from sparklog.format.body_layout import INFLATED_BYTES_MAX, stated_bytes
from sparklog.format.compressed_check import check_compressed
from sparklog.format.envelope_layout import is_envelope
from sparklog.format.identity_cache import kept_by_identity
from sparklog.format.json_size import ROW_JSON_BYTES_MAX, bound_of, require_json_rows
from sparklog.format.map_keys import holds_map, require_distinct_keys
from sparklog.format.packed_batch import decode_packed_batch
from sparklog.format.small_batch import is_small_batch

OFFSET_COLUMN = "__offset"
OFFSET_FIELD = pa.field(OFFSET_COLUMN, pa.int64(), nullable=False)


@kept_by_identity
def with_offset_column(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the compacted batches of a topic with `schema`: one more column, `__offset`."""
    return schema.append(OFFSET_FIELD)


def has_offset_column(schema: pa.Schema) -> bool:
    """Return True if `schema`, of a segment's head, has the column of compacted segments."""
    return bool(schema.get_field_index(OFFSET_COLUMN) >= 0)


def topic_schema(schema: pa.Schema) -> pa.Schema:
    """Return the topic's schema from the schema in a segment's head: without the column of compacted segments."""
    index = schema.get_field_index(OFFSET_COLUMN)
    return schema if index < 0 else schema.remove(index)


def decode_rows(
    data: Any,
    schema: pa.Schema,
    header: BatchHeader,
    columns: Sequence[int] | None = None,
    *,
    inflated_bytes_max: int = INFLATED_BYTES_MAX,
) -> tuple[pa.RecordBatch, np.ndarray | None]:
    """Decode a batch, compacted or not. `data`: the batch's bytes, from any source, see `decode_batch`. `columns`:
    indexes of the columns to decode, ascending; None for all. Returns the rows in the topic's schema, or their
    `columns`, and the rows' offsets. The offsets of a batch that is not compacted are None, because they are dense.
    Raises CorruptBatchError: The batch is damaged, or its offsets do not fit its header."""
    if not header.attributes & ATTRIBUTE_OFFSET_COLUMN:
        packed = decode_packed_batch(data, schema, header, columns)
        if packed is not None:
            return packed, None
        return decode_batch(data, schema, columns, header=header, inflated_bytes_max=inflated_bytes_max), None
    indexes = None if columns is None else [*columns, len(schema)]
    rows = decode_batch(data, with_offset_column(schema), indexes, header=header, inflated_bytes_max=inflated_bytes_max)
    last = rows.num_columns - 1
    offsets = np.asarray(rows.column(last).to_numpy(zero_copy_only=False))
    if len(offsets) and not (
        header.base_offset <= offsets[0]
        and offsets[-1] <= header.last_offset
        and (offsets[1:] > offsets[:-1]).all()  # not np.diff: it may overflow
    ):
        raise CorruptBatchError(f"the rows' offsets do not fit a batch of {header.base_offset} to {header.last_offset}")
    return rows.select(list(range(last))), offsets


def check_new_rows(
    data: memoryview,
    position: int,
    header: BatchHeader,
    schema: pa.Schema,
    inflated_bytes_max: int,
    hold: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Check that the batch at `position` of `data`, which is to be appended, conforms to the topic's `schema`, and that
    its offsets fit its header if it has the column of offsets.

    `hold(size_bytes)` returns a context that is entered while that number of bytes is decompressed. Raises
    CorruptBatchError; InflatedSizeError, before any buffer is decompressed; MessageTooLargeError for a row of a typed
    topic without a form in JSON.
    """
    has_offsets = bool(header.attributes & ATTRIBUTE_OFFSET_COLUMN)
    is_typed = not is_envelope(schema)
    if not is_typed and not has_offsets and is_small_batch(data, position, header):
        return
    columns = with_offset_column(schema) if has_offsets else schema
    batch = data[position : position + header.size_bytes]
    packed = decode_packed_batch(batch, schema, header)
    if packed is not None:
        _check_maps(packed)
        return
    message = message_of(batch, 0, header)
    stated = stated_bytes(message, batch[header.size_bytes - header.body_length_bytes :])
    with hold(stated if stated <= inflated_bytes_max else 0):  # larger ones are refused before they take memory
        maps = _map_columns(schema)
        if not check_compressed(batch, columns, header, message, inflated_bytes_max):
            rows = decode_batch(batch, columns, header=header, message=message, inflated_bytes_max=inflated_bytes_max)
            _check_maps(rows.select(maps))
        elif maps:
            _check_maps(decode_batch(batch, columns, maps, header=header, inflated_bytes_max=inflated_bytes_max))
        if has_offsets:
            decode_rows(batch, schema, header, (), inflated_bytes_max=inflated_bytes_max)
        if is_typed and bound_of(message, columns, stated + header.body_length_bytes) > ROW_JSON_BYTES_MAX:
            require_json_rows(decode_rows(batch, schema, header, inflated_bytes_max=inflated_bytes_max)[0])


@kept_by_identity
def _map_columns(schema: pa.Schema) -> list[int]:
    """Return the indexes of the columns that have maps, at any depth."""
    return [index for index, field in enumerate(schema) if holds_map(field.type)]


def _check_maps(rows: pa.RecordBatch) -> None:
    """Raise CorruptBatchError if a map has a key twice."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        try:
            require_distinct_keys(column)
        except pa.ArrowInvalid as e:
            raise CorruptBatchError(f"column {field.name!r}: {e}") from e


def row_offsets(header: BatchHeader, offsets: np.ndarray | None) -> np.ndarray:
    """Return the offset of each row, int64. `offsets` are the offsets that `decode_rows` has returned, or None."""
    if offsets is not None:
        return offsets
    return np.arange(header.base_offset, header.base_offset + header.record_count, dtype=np.int64)


def rows_between(
    header: BatchHeader, offsets: np.ndarray | None, start_offset: int, end_offset: int | None
) -> tuple[int, int]:
    """Return the range (first row, last row + 1) of the rows with offsets in [start_offset, end_offset). `end_offset`
    None: to the batch's end."""
    if offsets is None:
        end = header.record_count if end_offset is None else min(header.record_count, end_offset - header.base_offset)
        return max(start_offset - header.base_offset, 0), end
    last = len(offsets) if end_offset is None else int(np.searchsorted(offsets, end_offset))
    return int(np.searchsorted(offsets, start_offset)), last
