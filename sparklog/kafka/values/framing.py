"""Confluent's framing of records: a byte 0, the schema's id in four bytes, the payload."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.kafka.records.errors import RECORDS_NAMED_MAX
from sparklog.kafka.records.varints import Array

MAGIC = 0
FRAME_BYTES = 5
_FRAME = struct.Struct(">BI")


class Frames(NamedTuple):
    """Values without their frames."""

    ids: Array
    """The schema's id of each record; -1 for a record without a value, and for a refused one."""
    payloads: Any
    """Binary array of the payloads; without meaning for a record without an id."""
    refused: dict[int, str]
    """Reasons by the index of the record."""


def split_frames(values: Any, part: str = "value") -> Frames:
    """Split values, an array of binary. `part`: the part of the records that they are, for errors."""
    data, begins, ends = _spans(values)
    ids = ids_of_frames(values)
    is_framed = ids >= 0
    refused = {}
    is_set = values.is_valid().to_numpy(zero_copy_only=False)
    for i in np.flatnonzero(is_set & ~is_framed)[:RECORDS_NAMED_MAX].tolist():
        size = int(ends[i] - begins[i])
        reason = f"it has {size} bytes" if size < FRAME_BYTES else f"it begins with the byte {data[begins[i]]}"
        refused[i] = f"its {part} has no schema id: {reason}; a {part} begins with a byte 0 and the id in four bytes"
    return Frames(ids, byte_slices(data, np.where(is_framed, begins + FRAME_BYTES, begins), ends), refused)


def ids_of_frames(values: Any) -> Array:
    """Return the schema's id of each value; -1 for null, and for a value without a frame."""
    data, begins, ends = _spans(values)
    is_framed = values.is_valid().to_numpy(zero_copy_only=False) & (ends - begins >= FRAME_BYTES)
    is_framed[is_framed] = data[begins[is_framed]] == MAGIC
    ids = np.full(len(values), -1, np.int64)
    if is_framed.any():
        windows: Array = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))
        ids[is_framed] = windows[begins[is_framed] + 1]
    return ids


def _spans(values: Any) -> tuple[Array, Array, Array]:
    """Return the bytes of binary values, and the beginning and end of each."""
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
    body = values.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(1, np.uint8)
    return data, offsets[:-1], offsets[1:]


def byte_slices(data: Array, starts: Array, ends: Array) -> Any:
    """Return a binary array of slices of bytes. No slice begins before the end of the preceding one."""
    if not len(starts):
        return pa.array([], pa.binary())
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    whole = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return whole.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32)))


def frame_of(schema_id: int) -> bytes:
    """Return the bytes before a payload."""
    return _FRAME.pack(MAGIC, schema_id)


def with_frames(payloads: Any, schema_id: int) -> Any:
    """Return the payloads, an array of binary, with frames."""
    frame = pa.scalar(frame_of(schema_id), pa.binary())
    return pc.binary_join_element_wise(frame, payloads, pa.scalar(b"", pa.binary()))
