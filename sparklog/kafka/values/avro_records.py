"""Avro records of one schema as columns: `avro_bytes` or `avro_scalar` decodes them, `avro_columns` converts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.format.plain_layout import plain_layout
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX
from sparklog.kafka.schemas.avro import AvroType
from sparklog.kafka.values.avro_bytes import AvroReader, Space, physical_type
from sparklog.kafka.values.avro_columns import Column, Resolution
from sparklog.kafka.values.avro_scalar import AvroValueError, scalar_decoder
from sparklog.kafka.values.rows_at_fault import rows_at_fault

SLICE_RECORDS, SLICE_BYTES = 16_384, 1024 * 1024
"""A slice of records is decoded at once; it ends before it has more, but has at least one record."""
SCALAR_RECORDS, SCALAR_BYTES = 16, 16 * 1024
"""Slices up to this size are decoded in a Python loop, which takes less time than the calls of NumPy."""


def read_avro(
    payloads: Any, writer: AvroType, resolution: Resolution, space: Space
) -> tuple[list[Any], dict[int, str]]:
    """Decode records of one schema. `payloads`: binary array without nulls. Returns an array per column, and the
    reasons why records are refused, by index; their rows have no meaning. Raises MessageTooLargeError."""
    columns: list[list[Any]] = [[] for _ in resolution.columns]
    refused: dict[int, str] = {}
    for first, part in slices(payloads):
        arrays, faults = _decode(part, writer, space)
        for parts, column in zip(columns, resolution.columns, strict=True):
            parts.append(_converted(arrays, len(part), column, faults))
            space.spend(parts[-1].nbytes)
        refused.update({first + row: reason for row, reason in faults.items()})
        if len(refused) >= RECORDS_NAMED_MAX:
            break
    return [pa.concat_arrays(parts) if len(parts) != 1 else parts[0] for parts in columns], refused


def slices(payloads: Any) -> Iterator[tuple[int, Any]]:
    """Yield slices with the index of their first record."""
    count = len(payloads)
    ends = np.frombuffer(payloads.buffers()[1], np.int32, count + 1, 4 * payloads.offset)[1:]
    first = 0
    while first < count:
        begin = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, begin + SLICE_BYTES, side="right"))
        end = min(max(last, first + 1), first + SLICE_RECORDS, count)
        yield first, payloads.slice(first, end - first)
        first = end


def _decode(payloads: Any, writer: AvroType, space: Space) -> tuple[list[Any], dict[int, str]]:
    """Return the physical arrays of the writer's fields, and reasons by the index of the record."""
    if len(payloads) <= SCALAR_RECORDS and payloads.nbytes <= SCALAR_BYTES:
        return _decode_each(payloads.to_pylist(), writer)
    reader = AvroReader(payloads, space)
    arrays = reader.read(writer)
    if not reader.is_long.any():
        return arrays, dict(sorted(reader.refused.items()))
    long = np.flatnonzero(reader.is_long)
    others, faults = _decode_each([payloads[i].as_py() for i in long.tolist()], writer)
    place = np.arange(len(payloads))
    place[long] = len(payloads) + np.arange(len(long))
    arrays = [
        pa.concat_arrays([array, other]).take(pa.array(place)) for array, other in zip(arrays, others, strict=True)
    ]
    reader.refused.update({int(long[i]): reason for i, reason in faults.items()})
    return arrays, dict(sorted(reader.refused.items()))


def _decode_each(payloads: list[bytes], writer: AvroType) -> tuple[list[Any], dict[int, str]]:
    decode = scalar_decoder(writer)
    rows: list[dict[str, Any]] = []
    faults: dict[int, str] = {}
    for i, payload in enumerate(payloads):
        try:
            rows.append(decode(payload))
        except AvroValueError as e:
            faults[i] = str(e)
            rows.append({})
    return [pa.array([row.get(f.name) for row in rows], physical_type(f.type)) for f in writer.fields], faults


def _converted(arrays: list[Any], count: int, column: Column, faults: dict[int, str]) -> Any:
    """Return a column; add the reasons of its rows to `faults`."""
    array = arrays[column.field] if column.field >= 0 else pa.nulls(count)
    try:
        return column.convert(array)
    except pa.ArrowInvalid:
        limit = RECORDS_NAMED_MAX - len(faults)
        reasons = rows_at_fault(array, lambda part: column.convert(plain_layout(part)), pa.ArrowInvalid, limit)
        if limit > 0 and not reasons:
            return column.convert(plain_layout(array))
        for row, reason in reasons.items():
            faults.setdefault(row, f"field {column.name!r}: {reason}")
        return pa.nulls(count, column.type)
